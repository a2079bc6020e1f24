//! Folders and tokenizers as people bring them: tiny models with random weights, with the ids and the
//! greedy continuations that transformers 5.24 gives in f32, and those of GGUF files with numbers that
//! the package gguf decodes. `golden/brought.zst` is one line of JSON that says what there is and where,
//! and the bytes of all files behind it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use odeon_algorithms::{
    generate::{Generator, GeneratorConfig, Request, Sampling},
    tokenizer::{Message, Tokenizer},
    weights::{Gguf, LoadedModel, StoredType, load_directory, load_gguf, save},
};
use odeon_gpu::Cpu;
use serde::Deserialize;
use tempfile::TempDir;

/// What there is.
#[derive(Deserialize)]
struct Brought {
    /// Of each file of a folder the first byte, and how many.
    folders: BTreeMap<String, BTreeMap<String, [usize; 2]>>,
    models: Vec<ModelCase>,
    tokenizers: Vec<TokenizerCase>,
    #[serde(skip)]
    bytes: Vec<u8>,
}

/// A model, a prompt, and the right answer.
#[derive(Deserialize)]
struct ModelCase {
    name: String,
    prompt: Option<String>,
    chat: Option<String>,
    ids: Vec<u32>,
    #[serde(default)]
    refused: bool,
    #[serde(default)]
    right: Vec<u32>,
    #[serde(default)]
    text: String,
}

/// A tokenizer, a text, and its ids.
#[derive(Deserialize)]
struct TokenizerCase {
    name: String,
    text: String,
    ids: Vec<u32>,
    #[serde(default)]
    continued: Vec<u32>,
}

static BROUGHT: LazyLock<Brought> = LazyLock::new(|| {
    let packed = include_bytes!("../golden/brought.zst");
    let mut decoder = zstd::Decoder::new(&packed[..]).unwrap();
    decoder.window_log_max(27).unwrap();
    let mut bytes = vec![];
    std::io::copy(&mut decoder, &mut bytes).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let mut brought: Brought = serde_json::from_slice(&bytes[..end]).unwrap();
    brought.bytes = bytes.split_off(end + 1);
    brought
});

/// A folder with its files on the disk.
struct Folder(TempDir);

impl Folder {
    fn of(kind: &str, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (file, [at, length]) in &BROUGHT.folders[&format!("{kind}/{name}")] {
            let bytes = &BROUGHT.bytes[*at..at + length];
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn gguf(&self) -> Option<PathBuf> {
        let named = ["model.gguf", "model-00001-of-00002.gguf"];
        let mut paths = named.iter().map(|name| self.path().join(name));
        paths.find(|path| path.exists())
    }

    fn tokenizer(&self) -> Result<Tokenizer, String> {
        let tokenizer = match self.gguf() {
            Some(path) => {
                let gguf = Gguf::open(&path).map_err(|error| error.to_string())?;
                Tokenizer::from_gguf(&gguf)
            }
            None => Tokenizer::from_directory(self.path()),
        };
        tokenizer.map_err(|error| error.to_string())
    }

    fn model(&self) -> Result<LoadedModel, String> {
        let model = match self.gguf() {
            Some(path) => Gguf::open(&path).and_then(|gguf| load_gguf(&gguf)),
            None => load_directory(self.path()),
        };
        model.map_err(|error| error.to_string())
    }
}

/// The likeliest tokens behind a prompt, up to and with one that ends a reply.
fn continued(model: LoadedModel, prompt: &[u32], ends: &[u32], most: usize) -> Vec<u32> {
    let model = model.into_model(Cpu::new(1)).unwrap();
    let options = GeneratorConfig {
        slots: 1,
        max_tokens: 256,
        ..GeneratorConfig::default()
    };
    let mut generator = Generator::new(Cpu::new(1), model.config().clone(), options).unwrap();
    generator.load_flat(model.flat()).unwrap();
    let sampling = Sampling {
        temperature: 0.0,
        top_p: 1.0,
        stop: ends.to_vec(),
    };
    let request = Request {
        id: 0,
        prompt: prompt.to_vec(),
        max_new_tokens: most,
        sampling,
        seed: 0,
        resumed: 0,
    };
    generator.submit(request).unwrap();
    loop {
        if let Some(sampled) = generator.step().pop() {
            return sampled.tokens;
        }
    }
}

/// What is wrong with a case; `refusals` are words that an error has to have.
fn wrong(case: &ModelCase, refusal: Option<&[&str]>) -> Option<String> {
    let folder = Folder::of("models", &case.name);
    let tokenizer = folder.tokenizer();
    let model = folder.model();
    if let Some(words) = refusal {
        let error = match (&tokenizer, &model) {
            (Err(error), _) | (_, Err(error)) => error,
            _ => return Some("it is taken".into()),
        };
        let lacks = words.iter().find(|word| !error.contains(**word));
        return lacks.map(|word| format!("`{word}` is not in: {error}"));
    }
    let (tokenizer, model) = match (tokenizer, model) {
        (Ok(tokenizer), Ok(model)) => (tokenizer, model),
        (Err(error), _) | (_, Err(error)) => return Some(error),
    };
    let ids = match (&case.chat, &case.prompt) {
        (Some(chat), _) => tokenizer.encode_chat(&[Message::user(chat.as_str())]),
        (None, prompt) => tokenizer.encode_whole(prompt.as_ref().unwrap()),
    };
    let ids = match ids {
        Ok(ids) => ids,
        Err(error) => return Some(error.to_string()),
    };
    if ids != case.ids {
        return Some(format!("prompt {ids:?} instead of {:?}", case.ids));
    }
    let tokens = continued(model, &ids, tokenizer.ends(), 8);
    if tokens != case.right {
        return Some(format!("answer {tokens:?} instead of {:?}", case.right));
    }
    let text = tokenizer.decode_reply(&tokens).unwrap();
    (text != case.text).then(|| format!("text {text:?} instead of {:?}", case.text))
}

/// Words of the errors of folders that are refused.
const REFUSED: &[(&str, &[&str])] = &[
    ("bin-only", &["pytorch_model.bin", "model.safetensors"]),
    (
        "no-tokenizer-json",
        &["vocab.json", "merges.txt", "tokenizer.json"],
    ),
    (
        "nan-weight",
        &["model.layers.1.mlp.down_proj.weight", "NaN"],
    ),
    ("gguf-nan", &["blk.1.ffn_down.weight", "NaN"]),
    ("gguf-experts", &["llama.expert_count", "2 experts"]),
    ("gguf-two-parts", &["split.count", "part 1 of 2"]),
    ("truncated-data", &["model.safetensors", "damaged"]),
    ("untied-no-head", &["lm_head.weight"]),
    ("gptq", &["gptq"]),
    ("classifier", &["LlamaForSequenceClassification"]),
];

#[test]
fn models_that_people_bring_are_continued_as_transformers_does_or_refused_by_name() {
    let mut faults = vec![];
    for case in &BROUGHT.models {
        let refusal = REFUSED.iter().find(|(name, _)| *name == case.name);
        assert!(!case.refused || refusal.is_some(), "{}", case.name);
        if let Some(fault) = wrong(case, refusal.map(|(_, words)| *words)) {
            faults.push(format!("{}: {fault}", case.name));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn tokenizers_that_people_bring_give_the_ids_of_transformers() {
    let mut faults = vec![];
    for case in &BROUGHT.tokenizers {
        let folder = Folder::of("tokenizers", &case.name);
        let tokenizer = folder.tokenizer().unwrap();
        let ids = tokenizer.encode_whole(&case.text).unwrap();
        if ids != case.ids {
            let (name, text) = (&case.name, &case.text);
            faults.push(format!(
                "{name}: {text:?}: {ids:?} instead of {:?}",
                case.ids
            ));
        }
        if !case.continued.is_empty() {
            let tokens = continued(folder.model().unwrap(), &ids, tokenizer.ends(), 6);
            assert_eq!(tokens, case.continued, "{}", case.name);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A folder that was loaded and saved says the same in all its files, but for the layout of the weights.
#[test]
fn a_folder_that_is_loaded_and_saved_says_what_it_said() {
    for case in &BROUGHT.models {
        let folder = Folder::of("models", &case.name);
        let (Ok(tokenizer), Ok(model)) = (folder.tokenizer(), folder.model()) else {
            continue;
        };
        let target = folder.path().join("saved");
        save(&target, &model.view(), StoredType::F32, Some(&tokenizer)).unwrap();
        let again = Tokenizer::from_directory(&target).unwrap();
        assert_eq!(again.ends(), tokenizer.ends(), "{}", case.name);
        let prompt = case.prompt.as_deref().unwrap_or("The cat");
        let ids = |it: &Tokenizer| it.encode_whole(prompt).unwrap();
        assert_eq!(ids(&again), ids(&tokenizer), "{}", case.name);
        let read = load_directory(&target).unwrap();
        assert_eq!(read.tensors, model.tensors, "{}", case.name);
        assert_eq!(read.fields.model_config(), model.fields.model_config());
        if folder.gguf().is_some() {
            continue;
        }
        for file in BROUGHT.folders[&format!("models/{}", case.name)].keys() {
            let path = folder.path().join(file);
            if !file.ends_with(".json") && !file.ends_with(".jinja") {
                continue;
            }
            if file.starts_with("model.safetensors") {
                continue;
            }
            let read = |path: &Path| fs::read_to_string(path).unwrap();
            let (before, after) = (read(&path), read(&target.join(file)));
            if file == "config.json" {
                let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
                let before = parsed(&before);
                let mut after = parsed(&after);
                if case.name == "tied-other-head" {
                    assert_eq!(after["tie_word_embeddings"], false);
                    continue;
                }
                // Numbers of eight bytes are rounded to four.
                after["dtype"] = before["dtype"].clone();
                assert_eq!(after, before, "{}", case.name);
            } else {
                assert_eq!(after, before, "{} {file}", case.name);
            }
        }
    }
}

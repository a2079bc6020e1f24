//! Folders and tokenizers as people bring them: tiny models with random weights, with the ids and the
//! greedy continuations that transformers 5.24 gives in f32, and those of GGUF files with numbers that
//! the package gguf decodes. `golden/brought.zst` is one line of JSON that says what there is and where,
//! and the bytes of all files behind it.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use odeon_algorithms::{
    generate::{Generator, GeneratorConfig, Request, Sampling},
    tokenizer::{Message, Tokenizer},
    weights::{Gguf, LoadedModel, StoredType, load_directory, load_gguf, save},
};
use odeon_gpu::Cpu;
use serde::{Deserialize, de::DeserializeOwned};

use crate::unpack::{BROUGHT, Folder};

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

fn cases<T: DeserializeOwned>(kind: &str) -> Vec<T> {
    serde_json::from_value(BROUGHT.cases[kind].clone()).unwrap()
}

fn gguf(folder: &Path) -> Option<PathBuf> {
    let named = ["model.gguf", "model-00001-of-00002.gguf"];
    let mut paths = named.iter().map(|name| folder.join(name));
    paths.find(|path| path.exists())
}

fn tokenizer(folder: &Path) -> Result<Tokenizer, String> {
    let tokenizer = match gguf(folder) {
        Some(path) => {
            let gguf = Gguf::open(&path).map_err(|error| error.to_string())?;
            Tokenizer::from_gguf(&gguf)
        }
        None => Tokenizer::from_directory(folder),
    };
    tokenizer.map_err(|error| error.to_string())
}

fn model(folder: &Path) -> Result<LoadedModel, String> {
    let model = match gguf(folder) {
        Some(path) => Gguf::open(&path).and_then(|gguf| load_gguf(&gguf)),
        None => load_directory(folder),
    };
    model.map_err(|error| error.to_string())
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
    let (tokenizer, model) = (tokenizer(folder.path()), model(folder.path()));
    if let Some(words) = refusal {
        let ((Err(error), _) | (_, Err(error))) = (&tokenizer, &model) else {
            return Some("it is taken".into());
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
    ("truncated-data", &["model.safetensors", "damaged"]),
    ("untied-no-head", &["lm_head.weight"]),
    ("gptq", &["gptq"]),
    ("classifier", &["LlamaForSequenceClassification"]),
];

// SEMANTICS 118.
#[test]
fn models_that_people_bring_are_continued_as_transformers_does_or_refused_by_name() {
    let mut faults = vec![];
    for case in &cases::<ModelCase>("models") {
        let refusal = REFUSED.iter().find(|(name, _)| *name == case.name);
        assert!(!case.refused || refusal.is_some(), "{}", case.name);
        if let Some(fault) = wrong(case, refusal.map(|(_, words)| *words)) {
            faults.push(format!("{}: {fault}", case.name));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

// SEMANTICS 118.
#[test]
fn tokenizers_that_people_bring_give_the_ids_of_transformers() {
    let mut faults = vec![];
    for case in &cases::<TokenizerCase>("tokenizers") {
        let folder = Folder::of("tokenizers", &case.name);
        let tokenizer = tokenizer(folder.path()).unwrap();
        let ids = tokenizer.encode_whole(&case.text).unwrap();
        if ids != case.ids {
            let (name, text) = (&case.name, &case.text);
            faults.push(format!(
                "{name}: {text:?}: {ids:?} instead of {:?}",
                case.ids
            ));
        }
        if !case.continued.is_empty() {
            let tokens = continued(model(folder.path()).unwrap(), &ids, tokenizer.ends(), 6);
            assert_eq!(tokens, case.continued, "{}", case.name);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

// SEMANTICS 118: what is written.
/// A folder that was loaded and saved says the same in all its files, but for the layout of the weights.
#[test]
fn a_folder_that_is_loaded_and_saved_says_what_it_said() {
    for case in &cases::<ModelCase>("models") {
        let folder = Folder::of("models", &case.name);
        let (Ok(tokenizer), Ok(model)) = (tokenizer(folder.path()), model(folder.path())) else {
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
        if gguf(folder.path()).is_some() {
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

/// Numbers by chance, from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((self.0 >> 33) as usize) % bound.max(1)
    }

    /// A file that differs: bits, digits, cuts, pieces twice, pieces of another file.
    fn mutated(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(3) {
            // Descriptions stand at the beginning of most files.
            let reach = if self.below(2) == 0 {
                2_048
            } else {
                usize::MAX
            };
            let at = self.below(bytes.len().min(reach));
            match self.below(6) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => bytes[at] = b'0' + self.below(10) as u8,
                3 => {
                    let length = self.below(bytes.len().saturating_sub(at).min(64));
                    let piece = bytes[at..at + length].to_vec();
                    bytes.splice(at..at, piece);
                }
                4 => {
                    let length = self.below(bytes.len().saturating_sub(at).min(64));
                    bytes.drain(at..at + length);
                }
                _ => {
                    let words: [&[u8]; 6] = [b"null", b"-1", b"1e99", b"\"\"", b"[[", b"\xff\xff"];
                    let word = words[self.below(words.len())];
                    bytes.splice(at..at, word.iter().copied());
                }
            }
        }
        bytes
    }
}

/// The first part of a split file is named, and the others lie beside it.
#[test]
fn parts_of_a_split_file_are_read_together_or_what_is_wrong_with_them_is_said() {
    let folder = Folder::of("models", "gguf-two-parts");
    let place = |name: &str| folder.path().join(name);
    let (first, second) = (
        place("model-00001-of-00002.gguf"),
        place("model-00002-of-00002.gguf"),
    );
    let whole = Gguf::open(&first).unwrap();
    let kept = fs::read(&second).unwrap();
    assert!(whole.tensors().len() > 1 && load_gguf(&whole).is_ok());
    let refused = |path: &Path, words: &[&str]| {
        let error = Gguf::open(path).unwrap_err().to_string();
        let lacks = words.iter().find(|word| !error.contains(**word));
        assert_eq!(lacks, None, "{error}");
    };
    refused(
        &second,
        &["part 2 of 2", "name the first", "model-00001-of-00002.gguf"],
    );
    fs::copy(&first, place("other.gguf")).unwrap();
    refused(
        &place("other.gguf"),
        &["split.count", "-00001-of-00002.gguf"],
    );
    fs::copy(&first, &second).unwrap();
    refused(&first, &["model-00002-of-00002.gguf", "no part 2 of 2"]);
    fs::write(&second, &kept[..kept.len() / 2]).unwrap();
    refused(&first, &["model-00002-of-00002.gguf"]);
    fs::remove_file(&second).unwrap();
    refused(&first, &["model-00002-of-00002.gguf", "No such file"]);
    fs::write(&second, kept).unwrap();
    assert!(Gguf::open(&first).is_ok());
}

/// Files that differ by chance are read or refused: nothing panics. `ODEON_MUTATIONS` says how many.
#[test]
fn files_that_were_changed_by_chance_are_read_or_refused() {
    let count = std::env::var("ODEON_MUTATIONS").map_or(400, |count| count.parse().unwrap());
    let names: Vec<&String> = BROUGHT.folders.keys().collect();
    let mut chance = Chance(1);
    let (mut refused, mut folder, mut kept) = (0_u32, None, String::new());
    for round in 0..count {
        if round % 50 == 0 {
            let (kind, name) = names[chance.below(names.len())].split_once('/').unwrap();
            folder = Some(Folder::of(kind, name));
            kept = format!("{kind}/{name}");
        }
        let path = folder.as_ref().unwrap().path();
        let files: Vec<&String> = BROUGHT.folders[&kept].keys().collect();
        let file = path.join(files[chance.below(files.len())]);
        let before = fs::read(&file).unwrap();
        fs::write(&file, chance.mutated(&before)).unwrap();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let tokenizer = tokenizer(path);
            if let Ok(tokenizer) = &tokenizer {
                let _ = tokenizer.encode_whole("The cat <|im_end|> sat 12");
                let _ = tokenizer.encode_chat(&[Message::user("What <|im_end|>?")]);
                let _ = tokenizer.decode_reply(&[0, 5, 299, 4_000_000]);
            }
            model(path).is_err() || tokenizer.is_err()
        }));
        refused += u32::from(read.unwrap_or_else(|_| panic!("{kept}: {}", file.display())));
        fs::write(&file, before).unwrap();
    }
    assert!(refused > count / 10, "{refused} of {count} were refused");
}

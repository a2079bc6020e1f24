//! The description of a tokenizer, out of its files together.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::Path,
};

use serde_json::{Map, Value, json};

use super::{SubwordSpec, TOKENIZER, description};
use crate::tokenizer::{
    chat::ChatTemplate,
    error::{TokenizerError, read},
};
use crate::{json, lfs};

/// What a tokenizer's files say.
#[derive(Debug)]
pub(super) struct Described {
    /// `tokenizer.json` with the tokens that other files add.
    pub(super) json: String,
    /// Added tokens and the ids that they are to have.
    pub(super) ids: BTreeMap<String, u32>,
    /// The token that is named as the first of a sequence. It stands there only if the
    /// post-processor puts it there.
    pub(super) bos: Option<u32>,
    /// The token that the tokenizer names as the last of a sequence.
    pub(super) eos: Option<u32>,
    /// Tokens that end a reply; the first is written by training. Never empty.
    pub(super) ends: Vec<u32>,
    pub(super) pad: Option<u32>,
    /// Whether a first and a last token are put around a text, where that is said outright.
    pub(super) adds: Option<[bool; 2]>,
    pub(super) chat: Option<ChatTemplate>,
    /// Special tokens by what they are named in templates: `bos_token` and its like.
    pub(super) named: BTreeMap<String, String>,
    /// True when spaces before punctuation are dropped in decoded text.
    pub(super) cleans_up: bool,
    /// What is odd in the files and does not keep them from being used.
    pub(super) notes: Vec<String>,
}

/// Reads the files of a directory.
pub(super) fn read_spec(directory: &Path) -> Result<SubwordSpec, TokenizerError> {
    let there = |name: &str| directory.join(name).exists();
    if !there(TOKENIZER) {
        let others = OTHER_KINDS.iter().copied().filter(|name| there(name));
        let others: Vec<&str> = others.collect();
        if !others.is_empty() {
            return Err(TokenizerError::OtherFiles {
                directory: directory.into(),
                found: others.join(", "),
            });
        }
    }
    let mut files = BTreeMap::from([(TOKENIZER.to_owned(), read(&directory.join(TOKENIZER))?)]);
    for name in BESIDE {
        match read(&directory.join(name)) {
            Ok(text) => {
                files.insert((*name).to_owned(), text);
            }
            Err(TokenizerError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let ends = match read(&directory.join(MODEL_CONFIG)) {
        Ok(text) => ends_of(MODEL_CONFIG, &object(MODEL_CONFIG, &text)?)?,
        Err(_) => vec![],
    };
    Ok(SubwordSpec { files, ends })
}

impl Described {
    pub(super) fn of(spec: &SubwordSpec) -> Result<Self, TokenizerError> {
        let files = &spec.files;
        let text = files.get(TOKENIZER);
        let text = text.ok_or_else(|| description(format!("there is no {TOKENIZER}")))?;
        let mut json = object(TOKENIZER, text)?;
        let config = optional(files, CONFIG)?;
        let map = optional(files, SPECIAL)?;
        let ids = add_tokens(&mut json, &config, &optional(files, ADDED)?)?;
        let vocabulary = Vocabulary::of(&json);
        let mut notes = vec![];
        let mut named = BTreeMap::new();
        let mut role = |key: &str| {
            // A token is given as text, or as an object with its text inside.
            let token = [&config, &map].into_iter().find_map(|file| {
                let token = file.get(key)?;
                token.as_str().or_else(|| token.get("content")?.as_str())
            })?;
            named.insert(key.to_owned(), token.to_owned());
            let id = vocabulary.id(token);
            if id.is_none() {
                notes.push(format!(
                    "`{key}` is {token:?}, which the vocabulary does not have"
                ));
            }
            id
        };
        let [bos, eos, pad] = ["bos_token", "eos_token", "pad_token"].map(&mut role);
        role("unk_token");
        let mut ends: Vec<u32> = eos.into_iter().collect();
        let generation = optional(files, GENERATION)?;
        let others = ends_of(GENERATION, &generation)?;
        for end in others.into_iter().chain(spec.ends.iter().copied()) {
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        if ends.is_empty() {
            return Err(description(format!(
                "no token ends a reply: neither `eos_token` in {CONFIG} or {SPECIAL} nor \
                 `eos_token_id` in {GENERATION} or {MODEL_CONFIG} names one"
            )));
        }
        let flag = |key: &str| match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(description(format!("{CONFIG}: `{key}` is {other}"))),
        };
        let [adds_bos, adds_eos] = [flag("add_bos_token")?, flag("add_eos_token")?];
        let adds = (adds_bos.is_some() || adds_eos.is_some())
            .then(|| [adds_bos == Some(true), adds_eos == Some(true)]);
        let bpe = json.get("model").and_then(|model| model.get("type")) == Some(&json!("BPE"));
        let cleans_up = flag("clean_up_tokenization_spaces")? == Some(true);
        notes.extend(unfollowed(&json, flag("add_prefix_space")?));
        let model = json.get_mut("model").and_then(Value::as_object_mut);
        if let Some(dropout) = model.and_then(|model| model.get_mut("dropout"))
            && dropout.as_f64().is_some_and(|part| part > 0.0)
        {
            notes.push(format!(
                "`dropout` of {TOKENIZER} is {dropout}, by which a text has other tokens each time: it is off"
            ));
            *dropout = Value::Null;
        }
        Ok(Self {
            json: Value::Object(json).to_string(),
            ids,
            bos,
            eos,
            ends,
            pad,
            adds,
            chat: chat(files, &config)?,
            named,
            // Pairs of bytes have their spaces inside, and cleaning would corrupt them.
            cleans_up: cleans_up && !bpe,
            notes,
        })
    }
}

/// Notes of what the files say and is not followed.
fn unfollowed(json: &Map<String, Value>, spaced: Option<bool>) -> Vec<String> {
    let mut notes = vec![];
    for (key, word) in [("truncation", "truncated"), ("padding", "padded")] {
        if json.get(key).is_some_and(|found| !found.is_null()) {
            notes.push(format!(
                "{TOKENIZER} has `{key}`, which is for batches that ask for it: texts are not {word}"
            ));
        }
    }
    let own = json.get("pre_tokenizer").and_then(prefix_space);
    if let (Some(spaced), Some(own)) = (spaced, own)
        && spaced != own
    {
        notes.push(format!(
            "`add_prefix_space` is {spaced} in {CONFIG} and {own} in {TOKENIZER}, which counts"
        ));
    }
    notes
}

/// True where a pre-tokenizer, or one of its parts, puts a space before a text; nothing where none can.
fn prefix_space(pre_tokenizer: &Value) -> Option<bool> {
    let own = pre_tokenizer
        .get("add_prefix_space")
        .and_then(Value::as_bool);
    own.or_else(|| {
        let parts = pre_tokenizer.get("pretokenizers")?.as_array()?;
        parts.iter().find_map(prefix_space)
    })
}

/// The template that counts: that in a file of its own, else the one among the settings.
fn chat(
    files: &BTreeMap<String, String>,
    config: &Map<String, Value>,
) -> Result<Option<ChatTemplate>, TokenizerError> {
    if let Some(text) = files.get(CHAT) {
        return Ok(Some(ChatTemplate::new(CHAT, text)));
    }
    let other = optional(files, CHAT_JSON)?;
    let named = [(CHAT_JSON, &other), (CONFIG, config)];
    let found = named.iter().find_map(|(file, object)| {
        let found = object.get("chat_template")?;
        (!found.is_null()).then_some((*file, found))
    });
    let Some((file, found)) = found else {
        return Ok(None);
    };
    match found {
        Value::String(text) => Ok(Some(ChatTemplate::new(file, text))),
        Value::Array(list) => {
            let field = |one: &Value, key: &str| Some(one.get(key)?.as_str()?.to_owned());
            let one = |one| field(one, "name").zip(field(one, "template"));
            let all: Option<Vec<_>> = list.iter().map(one).collect();
            let all = all.ok_or_else(|| {
                description(format!(
                    "{file}: `chat_template` is a list of something else than names with templates"
                ))
            })?;
            let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            let default = all.iter().find(|(name, _)| name == "default");
            let (_, text) = default.ok_or_else(|| {
                description(format!(
                    "{file}: `chat_template` names {}, and none is called \"default\"",
                    names.join(", ")
                ))
            })?;
            Ok(Some(ChatTemplate::new(file, text)))
        }
        other => Err(description(format!("{file}: `chat_template` is {other}"))),
    }
}

/// Ids of tokens.
struct Vocabulary<'a> {
    json: &'a Map<String, Value>,
}

impl<'a> Vocabulary<'a> {
    fn of(json: &'a Map<String, Value>) -> Self {
        Self { json }
    }

    fn id(&self, token: &str) -> Option<u32> {
        let whole = |id: &Value| u32::try_from(id.as_u64()?).ok();
        let model = self.json.get("model");
        let vocabulary = model.and_then(|model| model.get("vocab"));
        let in_model = || match vocabulary? {
            Value::Object(map) => whole(map.get(token)?),
            // Unigram: pairs of text and score.
            Value::Array(list) => {
                let at = list.iter().position(|pair| pair[0] == *token)?;
                u32::try_from(at).ok()
            }
            _ => None,
        };
        let added = self.json.get("added_tokens").and_then(Value::as_array);
        let added = added.map_or(&[][..], Vec::as_slice).iter();
        let in_added = added
            .filter(|one| one["content"] == *token)
            .find_map(|one| whole(&one["id"]));
        in_model().or(in_added)
    }
}

/// Tokens beside those of a vocabulary, and their ids.
#[derive(Default)]
struct AddedTokens {
    list: Vec<Value>,
    ids: BTreeMap<String, u32>,
}

impl AddedTokens {
    fn push(&mut self, content: &str, id: u32, token: Value) {
        self.list.push(token);
        self.ids.insert(content.to_owned(), id);
    }

    /// Those of `tokenizer.json`.
    fn listed(json: &Map<String, Value>) -> Result<Self, TokenizerError> {
        let list = match json.get("added_tokens") {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Array(list)) => list,
            Some(_) => {
                let what = format!("{TOKENIZER}: `added_tokens` is no list");
                return Err(description(what));
            }
        };
        let mut all = Self::default();
        for token in list {
            let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok());
            let (Some(id), Some(content)) = (id, token["content"].as_str()) else {
                let what = format!("{TOKENIZER}: `added_tokens` has {token}");
                return Err(description(what));
            };
            all.push(content, id, token.clone());
        }
        Ok(all)
    }

    /// Those of `added_tokens_decoder` that are not there.
    fn extend_by_settings(&mut self, config: &Map<String, Value>) -> Result<(), TokenizerError> {
        let more = config.get("added_tokens_decoder");
        for (id, token) in more.and_then(Value::as_object).into_iter().flatten() {
            let content = token.get("content").and_then(Value::as_str);
            let (Ok(id), Some(content)) = (id.parse::<u32>(), content) else {
                let what = format!("{CONFIG}: `added_tokens_decoder` has {id}: {token}");
                return Err(description(what));
            };
            if self.ids.contains_key(content) {
                continue;
            }
            let flag = |key: &str| token.get(key) == Some(&Value::Bool(true));
            let special = flag("special");
            let normalized = token.get("normalized").and_then(Value::as_bool);
            let token = json!({
                "id": id, "content": content, "special": special, "lstrip": flag("lstrip"),
                "rstrip": flag("rstrip"), "single_word": flag("single_word"),
                "normalized": normalized.unwrap_or(!special),
            });
            self.push(content, id, token);
        }
        Ok(())
    }

    /// Those of `added_tokens.json` that are not there.
    fn extend_by_list(&mut self, added: &Map<String, Value>) -> Result<(), TokenizerError> {
        for (content, id) in added {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
                let what = format!("{ADDED}: {content:?} has the id {id}");
                return Err(description(what));
            };
            if !self.ids.contains_key(content) {
                let token = json!({
                    "id": id, "content": content, "special": false, "lstrip": false,
                    "rstrip": false, "single_word": false, "normalized": true,
                });
                self.push(content, id, token);
            }
        }
        Ok(())
    }

    /// Gives each its id: those that a vocabulary does not have would be numbered in turn.
    fn enter(&self, vocabulary: &mut Map<String, Value>) -> Result<(), TokenizerError> {
        let ids: HashMap<u64, &str> = vocabulary
            .iter()
            .filter_map(|(token, id)| Some((id.as_u64()?, token.as_str())))
            .collect();
        for (content, id) in &self.ids {
            if let Some(other) = ids.get(&u64::from(*id)).filter(|other| *other != content) {
                return Err(description(format!(
                    "the added token {content:?} is to have the id {id}, which {other:?} has"
                )));
            }
        }
        for (content, id) in &self.ids {
            if !vocabulary.contains_key(content) {
                vocabulary.insert(content.clone(), (*id).into());
            }
        }
        Ok(())
    }
}

/// Puts tokens that other files add behind those of `tokenizer.json`, and gives all added ones the
/// ids that they are to have.
fn add_tokens(
    json: &mut Map<String, Value>,
    config: &Map<String, Value>,
    added: &Map<String, Value>,
) -> Result<BTreeMap<String, u32>, TokenizerError> {
    let mut all = AddedTokens::listed(json)?;
    all.extend_by_settings(config)?;
    all.extend_by_list(added)?;
    let vocabulary = json.get_mut("model").and_then(|it| it.get_mut("vocab"));
    if let Some(Value::Object(vocabulary)) = vocabulary {
        all.enter(vocabulary)?;
    }
    all.list.sort_by_key(|token| token["id"].as_u64());
    json.insert("added_tokens".into(), Value::Array(all.list));
    Ok(all.ids)
}

/// `eos_token_id`: a number, or several.
fn ends_of(file: &str, object: &Map<String, Value>) -> Result<Vec<u32>, TokenizerError> {
    let wrong = |found: &Value| description(format!("{file}: `eos_token_id` is {found}"));
    let one = |found: &Value| {
        let id = found.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(found))
    };
    match object.get("eos_token_id") {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::Array(all)) => all.iter().map(one).collect(),
        Some(found) => Ok(vec![one(found)?]),
    }
}

fn optional(
    files: &BTreeMap<String, String>,
    name: &str,
) -> Result<Map<String, Value>, TokenizerError> {
    files
        .get(name)
        .map_or_else(|| Ok(Map::new()), |text| object(name, text))
}

fn object(name: &str, text: &str) -> Result<Map<String, Value>, TokenizerError> {
    let text = text.trim_start_matches('\u{feff}');
    if lfs::is_pointer(text.as_bytes()) {
        return Err(description(format!(
            "{name} is a pointer of Git LFS and not the file itself: fetch that with `git lfs pull`"
        )));
    }
    let read = serde_json::from_str(text);
    // Python writes numbers that are none, which are no JSON.
    let finite = || serde_json::from_slice(&json::finite(text.as_bytes())?).ok();
    read.or_else(|error| finite().ok_or(error))
        .map_err(|error| description(format!("{name}: {error}")))
}

pub(super) const CONFIG: &str = "tokenizer_config.json";
pub(super) const GENERATION: &str = "generation_config.json";
const SPECIAL: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";
const CHAT: &str = "chat_template.jinja";
const CHAT_JSON: &str = "chat_template.json";
const MODEL_CONFIG: &str = "config.json";
const BESIDE: &[&str] = &[CONFIG, SPECIAL, ADDED, GENERATION, CHAT, CHAT_JSON];
/// Files from which other libraries make a tokenizer.
const OTHER_KINDS: &[&str] = &[
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tiktoken.model",
];

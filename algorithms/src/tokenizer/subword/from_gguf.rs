//! The tokenizer inside of a GGUF file, as the files that describe it elsewhere.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::{
    SubwordSpec, TOKENIZER, description,
    folder::{CONFIG, GENERATION},
};
use crate::tokenizer::error::TokenizerError;
use crate::weights::gguf::{Gguf, GgufValue};

/// What of a tokenizer's description depends on its kind.
struct Kind {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
    /// True where a file that says nothing means that a first token is put before each text.
    adds_bos: bool,
}

pub(super) fn spec(gguf: &Gguf) -> Result<SubwordSpec, TokenizerError> {
    let tokens = gguf.strings("tokenizer.ggml.tokens");
    let tokens = tokens.ok_or_else(|| absent("tokenizer.ggml.tokens"))?;
    let vocabulary: Map<String, Value> = tokens
        .iter()
        .zip(0_u32..)
        .map(|(&token, id)| (token.into(), id.into()))
        .collect();
    if vocabulary.len() != tokens.len() {
        return Err(description("a token occurs twice".into()));
    }
    let kind = match gguf.string("tokenizer.ggml.model") {
        Some("gpt2") => byte_level(gguf, &vocabulary)?,
        Some("llama") => sentence_piece(gguf, &tokens, &vocabulary)?,
        Some(other) => {
            return Err(description(format!(
                "its kind is {other:?}; of GGUF files, gpt2 (byte-level BPE) and llama \
                 (SentencePiece) are read"
            )));
        }
        None => return Err(absent("tokenizer.ggml.model")),
    };
    let id = |key: &str| token(gguf, key, tokens.len());
    let eos = id(EOS)?.ok_or_else(|| absent(EOS))?;
    let bos = id("tokenizer.ggml.bos_token_id")?;
    let pad = id("tokenizer.ggml.padding_token_id")?;
    let mut ends = vec![eos];
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(id(key)?.filter(|end| !ends.contains(end)));
    }
    let adds = |key: &str, otherwise: bool| match gguf.metadata().get(key) {
        None => Ok(otherwise),
        Some(GgufValue::Bool(adds)) => Ok(*adds),
        Some(_) => Err(absent(key)),
    };
    let adds_bos = adds("tokenizer.ggml.add_bos_token", kind.adds_bos)?;
    let adds_eos = adds("tokenizer.ggml.add_eos_token", false)?;
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": kind.normalizer,
        "added_tokens": added(gguf, &tokens), "pre_tokenizer": kind.pre_tokenizer,
        "post_processor": around(
            bos.filter(|_| adds_bos).map(|id| (tokens[id], id)),
            adds_eos.then(|| (tokens[eos], eos)),
        ),
        "decoder": kind.decoder, "model": kind.model,
    });
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "eos_token": tokens[eos],
    });
    if let Some(bos) = bos {
        config["bos_token"] = tokens[bos].into();
    }
    if let Some(pad) = pad {
        config["pad_token"] = tokens[pad].into();
    }
    if let Some(template) = gguf.string("tokenizer.chat_template") {
        config["chat_template"] = template.into();
    }
    let generation = json!({"bos_token_id": bos, "eos_token_id": ends, "pad_token_id": pad});
    let files = BTreeMap::from([
        (TOKENIZER.to_owned(), json.to_string()),
        (CONFIG.to_owned(), format!("{config:#}")),
        (GENERATION.to_owned(), format!("{generation:#}")),
    ]);
    Ok(SubwordSpec {
        files,
        ends: vec![],
    })
}

/// Tokens that are never made by merges.
fn added(gguf: &Gguf, tokens: &[&str]) -> Vec<Value> {
    let types = gguf.integers("tokenizer.ggml.token_type");
    let typed = tokens.iter().zip(types.unwrap_or_default());
    (0_u32..)
        .zip(typed)
        .filter(|(_, (_, kind))| matches!(*kind, TYPE_CONTROL | TYPE_USER_DEFINED))
        .map(|(id, (content, kind))| {
            json!({
                "id": id, "content": content, "special": kind == TYPE_CONTROL,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect()
}

/// The token that a key names, where it names one.
fn token(gguf: &Gguf, key: &str, vocabulary: usize) -> Result<Option<usize>, TokenizerError> {
    match gguf.metadata().get(key) {
        None => Ok(None),
        Some(GgufValue::Integer(id)) => match usize::try_from(*id) {
            Ok(id) if id < vocabulary => Ok(Some(id)),
            // Some converters write that for a token that there is none of.
            _ if *id < 0 || *id == i128::from(u32::MAX) => Ok(None),
            _ => Err(TokenizerError::Token {
                token: u32::try_from(*id).unwrap_or(u32::MAX),
                vocabulary,
            }),
        },
        Some(_) => Err(absent(key)),
    }
}

/// The post-processor that puts these tokens around a text.
fn around(before: Option<(&str, usize)>, after: Option<(&str, usize)>) -> Value {
    if before.is_none() && after.is_none() {
        return Value::Null;
    }
    let special = |(name, _): (&str, usize)| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let of = |texts: &[&str]| -> Vec<Value> {
        let texts = texts.iter().map(|id| text(id));
        let (before, after) = (before.map(special), after.map(special));
        before.into_iter().chain(texts).chain(after).collect()
    };
    let ids: Map<String, Value> = [before, after]
        .into_iter()
        .flatten()
        .map(|(name, id)| {
            let own = json!({"id": name, "ids": [id], "tokens": [name]});
            (name.to_owned(), own)
        })
        .collect();
    json!({
        "type": "TemplateProcessing", "single": of(&["A"]), "pair": of(&["A", "B"]),
        "special_tokens": ids,
    })
}

/// Byte-level byte-pair encoding.
fn byte_level(gguf: &Gguf, vocabulary: &Map<String, Value>) -> Result<Kind, TokenizerError> {
    let merges = gguf.strings("tokenizer.ggml.merges");
    let merges: Option<Vec<(&str, &str)>> = merges
        .ok_or_else(|| absent("tokenizer.ggml.merges"))?
        .into_iter()
        .map(|merge| merge.split_once(' '))
        .collect();
    let merges = merges.ok_or_else(|| absent("tokenizer.ggml.merges"))?;
    let bytes = |regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": regex,
        })
    };
    let splits = |patterns: &[&str]| {
        let splits = patterns.iter().map(|pattern| {
            json!({
                "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                "invert": false,
            })
        });
        let all: Vec<Value> = splits.chain([bytes(false)]).collect();
        json!({"type": "Sequence", "pretokenizers": all})
    };
    // The names and patterns of llama.cpp.
    let name = gguf.string("tokenizer.ggml.pre").unwrap_or("default");
    let llama3 = matches!(name, "llama-bpe" | "llama-v3" | "llama3" | "falcon3");
    let pre_tokenizer = match name {
        "gpt-2" | "phi-2" => bytes(true),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => json!({
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true}, bytes(true)],
        }),
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" => splits(&[QWEN2]),
        "default" => splits(&DEFAULT),
        _ if llama3 => splits(&[LLAMA3]),
        other => {
            return Err(description(format!(
                "its pre-tokenizer is {other:?}; gpt-2, default, llama-bpe, qwen2, smollm and their \
                 like are read"
            )));
        }
    };
    Ok(Kind {
        normalizer: Value::Null,
        pre_tokenizer,
        decoder: bytes(true),
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": llama3,
            "vocab": vocabulary, "merges": merges,
        }),
        adds_bos: llama3,
    })
}

/// SentencePiece's byte-pair encoding: pairs are merged by the score of what they make.
fn sentence_piece(
    gguf: &Gguf,
    tokens: &[&str],
    vocabulary: &Map<String, Value>,
) -> Result<Kind, TokenizerError> {
    let scores = match gguf.metadata().get("tokenizer.ggml.scores") {
        Some(GgufValue::Array(scores)) if scores.len() == tokens.len() => scores,
        _ => return Err(absent("tokenizer.ggml.scores")),
    };
    let scores: Option<Vec<f64>> = scores
        .iter()
        .map(|score| match score {
            GgufValue::Float(score) if score.is_finite() => Some(*score),
            _ => None,
        })
        .collect();
    let scores = scores.ok_or_else(|| absent("tokenizer.ggml.scores"))?;
    let unknown = gguf.integer("tokenizer.ggml.unknown_token_id").unwrap_or(0);
    let unknown = usize::try_from(unknown).ok().and_then(|id| tokens.get(id));
    let prefix = match gguf.metadata().get("tokenizer.ggml.add_space_prefix") {
        None => true,
        Some(GgufValue::Bool(prefix)) => *prefix,
        Some(_) => return Err(absent("tokenizer.ggml.add_space_prefix")),
    };
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let back = json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "});
    let mut normalizers = vec![];
    let mut decoders = vec![
        back,
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.push(json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(replace);
    Ok(Kind {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": unknown,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges(tokens, &scores),
        }),
        adds_bos: true,
    })
}

/// The pairs that make a token, those first whose token has the greatest score.
fn merges<'a>(tokens: &[&'a str], scores: &[f64]) -> Vec<(&'a str, &'a str)> {
    let ids: HashMap<&str, usize> = tokens.iter().copied().zip(0..).collect();
    let mut ranked = vec![];
    for (&token, &score) in tokens.iter().zip(scores) {
        let mut pairs: Vec<(&str, &str)> = token
            .char_indices()
            .skip(1)
            .map(|(at, _)| token.split_at(at))
            .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
            .collect();
        pairs.sort_by_key(|(left, right)| (ids[left], ids[right]));
        ranked.extend(pairs.into_iter().map(|pair| (score, pair)));
    }
    let lengths = |(left, right): (&str, &str)| (left.chars().count(), right.chars().count());
    ranked.sort_by(|(one, left), (other, right)| {
        let by_score = other.total_cmp(one);
        by_score.then_with(|| lengths(*right).cmp(&lengths(*left)))
    });
    ranked.into_iter().map(|(_, pair)| pair).collect()
}

fn absent(key: &str) -> TokenizerError {
    description(format!("the file has no usable `{key}`"))
}

const EOS: &str = "tokenizer.ggml.eos_token_id";
/// GGUF's kinds of tokens that are never made by merges.
const TYPE_CONTROL: i64 = 3;
const TYPE_USER_DEFINED: i64 = 4;
const QWEN2: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| \
                     ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const LLAMA3: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| \
                      ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const DEFAULT: [&str; 4] = [
    "[\\p{P}\\$\\+<=>\\^~\\|]+",
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)",
    "\\p{N}+",
    "[0-9][0-9][0-9]",
];

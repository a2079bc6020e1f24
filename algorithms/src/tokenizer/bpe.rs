//! Byte-level byte-pair encoding.

mod words;

use std::{
    fmt::{self, Debug},
    path::Path,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::words::Words;
use super::{
    chat::{ChatTemplate, Message, Piece},
    error::{TokenizerError, read},
};
use crate::weights::gguf::Gguf;

/// Everything a byte-level BPE tokenizer is made from.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpeSpec {
    /// The contents of Hugging Face's `tokenizer.json`: vocabulary, merges, special tokens. Some
    /// megabytes.
    pub json: String,
    /// The token to begin a sequence with, where the model expects one.
    pub bos: Option<u32>,
    /// The token that ends a reply.
    pub eos: u32,
    /// The token that fills short rows of a batch.
    pub pad: u32,
    /// The chat template, if the model has one.
    pub chat: Option<ChatTemplate>,
}

#[derive(Clone)]
pub(super) struct Bpe {
    spec: Arc<BpeSpec>,
    inner: Arc<tokenizers::Tokenizer>,
    words: Option<Arc<Words>>,
}

impl BpeSpec {
    /// Builds the description from a GGUF file's metadata.
    ///
    /// # Errors
    /// [`TokenizerError::Description`] when the metadata is incomplete, or of another kind.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let absent = |key: &str| description(format!("the file has no usable `{key}`"));
        let strings = |key| gguf.strings(key).ok_or_else(|| absent(key));
        let model = gguf.string("tokenizer.ggml.model").unwrap_or_default();
        if model != "gpt2" {
            return Err(description(format!(
                "its kind is {model:?}, not byte-level BPE (gpt2)"
            )));
        }
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        });
        let pre_tokenizer = match gguf.string("tokenizer.ggml.pre").unwrap_or("gpt-2") {
            "smollm" => json!({
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level],
            }),
            "gpt-2" | "default" => byte_level.clone(),
            other => {
                return Err(description(format!(
                    "its pre-tokenizer {other:?} is unknown"
                )));
            }
        };
        let tokens = strings("tokenizer.ggml.tokens")?;
        let merges: Option<Vec<(&str, &str)>> = strings("tokenizer.ggml.merges")?
            .into_iter()
            .map(|merge| merge.split_once(' '))
            .collect();
        let merges = merges.ok_or_else(|| absent("tokenizer.ggml.merges"))?;
        let types = gguf
            .integers("tokenizer.ggml.token_type")
            .unwrap_or_default();
        let added: Vec<Value> = (0_u32..)
            .zip(tokens.iter().zip(types))
            .filter(|(_, (_, kind))| matches!(*kind, TYPE_CONTROL | TYPE_USER_DEFINED))
            .map(|(id, (content, kind))| {
                json!({
                    "id": id, "content": content, "special": kind == TYPE_CONTROL,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                })
            })
            .collect();
        let vocabulary: serde_json::Map<String, Value> = tokens
            .iter()
            .zip(0_u32..)
            .map(|(&token, id)| (token.into(), id.into()))
            .collect();
        if vocabulary.len() != tokens.len() {
            return Err(description("a token occurs twice".into()));
        }
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": added, "pre_tokenizer": pre_tokenizer, "post_processor": null,
            "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocabulary, "merges": merges,
            },
        });
        let id = |key| gguf.integer(key).and_then(|id| u32::try_from(id).ok());
        let eos = id(GGUF_EOS).ok_or_else(|| absent(GGUF_EOS))?;
        Ok(Self {
            json: json.to_string(),
            bos: id("tokenizer.ggml.bos_token_id"),
            eos,
            pad: id("tokenizer.ggml.padding_token_id").unwrap_or(eos),
            chat: gguf
                .string("tokenizer.chat_template")
                .map(ChatTemplate::recognise),
        })
    }

    /// Reads `tokenizer.json` and `tokenizer_config.json` of a Hugging Face directory.
    ///
    /// # Errors
    /// [`TokenizerError`] when a file is absent or not understood.
    pub fn from_directory(directory: &Path) -> Result<Self, TokenizerError> {
        let json = read(&directory.join(TOKENIZER))?;
        let config: Value = serde_json::from_str(&read(&directory.join(CONFIG))?)
            .map_err(|error| description(format!("{CONFIG}: {error}")))?;
        let inner = parse(&json)?;
        // A token is given as text, or as an object with its text inside.
        let id = |key: &str| {
            let token = config.get(key)?;
            inner.token_to_id(token.as_str().or_else(|| token.get("content")?.as_str())?)
        };
        let eos = id("eos_token").ok_or_else(|| description(format!("{CONFIG}: no eos_token")))?;
        let template = config.get("chat_template").and_then(Value::as_str);
        Ok(Self {
            bos: id("bos_token"),
            eos,
            pad: id("pad_token").unwrap_or(eos),
            chat: template.map(ChatTemplate::recognise),
            json,
        })
    }
}

impl Bpe {
    pub(super) fn new(spec: BpeSpec) -> Result<Self, TokenizerError> {
        let mut inner = parse(&spec.json)?;
        // Text is literal: what looks like a special token in it is none.
        inner.set_encode_special_tokens(true);
        let vocabulary = inner.get_vocab_size(true);
        for token in [Some(spec.eos), Some(spec.pad), spec.bos]
            .into_iter()
            .flatten()
        {
            if token as usize >= vocabulary {
                return Err(TokenizerError::Token { token, vocabulary });
            }
        }
        Ok(Self {
            words: Words::of(&spec.json).map(Arc::new),
            spec: Arc::new(spec),
            inner: Arc::new(inner),
        })
    }

    pub(super) fn spec(&self) -> &BpeSpec {
        &self.spec
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.words {
            Some(words) => words.encode(text, |word| self.encode_slowly(word)),
            None => self.encode_slowly(text),
        }
    }

    /// Encodes text of any kind.
    fn encode_slowly(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|error| description(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.inner
            .decode(tokens, true)
            .map_err(|error| description(error.to_string()))
    }

    pub(super) fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, TokenizerError> {
        let template = self.spec.chat.as_ref().ok_or(TokenizerError::NoChat)?;
        let mut tokens = Vec::new();
        for piece in template.pieces(messages)? {
            match piece {
                Piece::Special(name) => tokens.push(
                    self.inner
                        .token_to_id(name)
                        .ok_or_else(|| description(format!("the vocabulary has no {name}")))?,
                ),
                Piece::Text(text) => tokens.extend(self.encode(&text)?),
            }
        }
        Ok(tokens)
    }

    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        let name = |id| self.inner.id_to_token(id);
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.spec.bos.and_then(name),
            "eos_token": name(self.spec.eos),
            "pad_token": name(self.spec.pad),
            "chat_template": self.spec.chat.as_ref().map(ChatTemplate::jinja),
        });
        vec![
            (TOKENIZER, self.spec.json.clone()),
            (CONFIG, format!("{config:#}")),
        ]
    }
}

impl Debug for BpeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BpeSpec")
            .field("json_bytes", &self.json.len())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("pad", &self.pad)
            .field("chat", &self.chat)
            .finish()
    }
}

impl Debug for Bpe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

fn parse(json: &str) -> Result<tokenizers::Tokenizer, TokenizerError> {
    json.parse()
        .map_err(|error: tokenizers::Error| description(format!("{TOKENIZER}: {error}")))
}

fn description(detail: String) -> TokenizerError {
    TokenizerError::Description { detail }
}

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const GGUF_EOS: &str = "tokenizer.ggml.eos_token_id";
/// GGUF's kinds of tokens that are never made by merges.
const TYPE_CONTROL: i64 = 3;
const TYPE_USER_DEFINED: i64 = 4;

#[cfg(test)]
mod tests {
    use odeon_skip::{Need, skip};
    use proptest::prelude::*;

    use super::*;

    /// A tokenizer with most bytes, and merges of common pairs in an order that is not that of length.
    fn bpe(digits: bool) -> Bpe {
        let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let mut spare = 0x100;
        let mut tokens: Vec<String> = Vec::new();
        for byte in 0..256 {
            let code = if printable(byte) { byte } else { spare };
            spare += u32::from(code == spare);
            if byte != 4 {
                tokens.push(char::from_u32(code).unwrap().into());
            }
        }
        let merges = [
            "b c",
            "a b",
            "ab c",
            "a a",
            "aa aa",
            "\u{120} a",
            "\u{120} \u{120}",
            "1 2",
            "bc bc",
            "' s",
            "\u{c3} \u{a4}",
            "! !",
            "\u{120}a b",
            "aa a",
            "\u{120}\u{120} \u{120}\u{120}",
        ];
        tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        let vocabulary: serde_json::Map<String, Value> = tokens
            .into_iter()
            .zip(0..)
            .map(|(token, id)| (token, id.into()))
            .collect();
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true});
        let pre_tokenizer = if digits {
            json!({"type": "Sequence", "pretokenizers":
                [{"type": "Digits", "individual_digits": true}, byte_level]})
        } else {
            byte_level
        };
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": [], "pre_tokenizer": pre_tokenizer, "post_processor": null,
            "decoder": null, "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        });
        let spec = BpeSpec {
            json: json.to_string(),
            bos: None,
            eos: 0,
            pad: 0,
            chat: None,
        };
        Bpe::new(spec).unwrap()
    }

    fn texts() -> impl Strategy<Value = String> {
        let pieces = prop::sample::select(vec![
            "a",
            "b",
            "c",
            "aa",
            "abc",
            " ",
            "  ",
            "\n",
            "\t",
            "\u{a0}",
            "\u{3000}",
            "1",
            "12",
            "\u{b2}",
            "\u{2167}",
            "\u{661}",
            "'",
            "'s",
            "'ll",
            "'S",
            "!",
            "?!",
            "\u{e4}",
            "\u{308}",
            "\u{4e2d}",
            "\u{1f600}",
            "\u{200d}",
            "\u{345}",
            "\u{24b6}",
            "\u{85}",
            "\u{1c}",
            "\u{4}",
        ]);
        prop_oneof![
            prop::collection::vec(pieces, 0..30).prop_map(|pieces| pieces.concat()),
            any::<String>(),
            "[ab]{50,90}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn looked_up_words_have_the_tokens_that_merging_finds(text in texts(), digits: bool) {
            thread_local! {
                static BOTH: [Bpe; 2] = [bpe(false), bpe(true)];
            }
            BOTH.with(|both| {
                let bpe = &both[usize::from(digits)];
                prop_assert!(bpe.words.is_some());
                let slowly = bpe.encode_slowly(&text).unwrap();
                prop_assert_eq!(&bpe.encode(&text).unwrap(), &slowly, "{:?}", text);
                prop_assert_eq!(bpe.encode(&text).unwrap(), slowly);
                Ok(())
            })?;
        }
    }

    #[test]
    fn other_kinds_of_tokenizers_are_not_taken_for_this_one() {
        let json: Value = serde_json::from_str(&bpe(true).spec.json).unwrap();
        let taken = |change: &dyn Fn(&mut Value)| {
            let mut json = json.clone();
            change(&mut json);
            Words::of(&json.to_string()).is_some()
        };
        assert!(taken(&|_| {}));
        assert!(!taken(&|json| json["normalizer"] = json!({"type": "NFC"})));
        assert!(!taken(&|json| json["model"]["ignore_merges"] = json!(true)));
        assert!(!taken(&|json| json["model"]["dropout"] = json!(0.1)));
        assert!(!taken(
            &|json| json["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = json!(false)
        ));
        assert!(!taken(
            &|json| json["added_tokens"] = json!([{"content": "x", "special": false}])
        ));
        assert!(!taken(&|json| json["model"]["vocab"] = json!({"a": 0})));
    }

    /// With the tokenizer of a real model, on the text of this repository.
    #[test]
    fn a_real_vocabulary_gives_the_same_tokens_either_way() {
        let Some(path) = std::env::var_os("ODEON_GGUF") else {
            return skip(Need::Model, "ODEON_GGUF does not name a model file");
        };
        let gguf = Gguf::open(Path::new(&path)).unwrap();
        let bpe = Bpe::new(BpeSpec::from_gguf(&gguf).unwrap()).unwrap();
        assert!(bpe.words.is_some());
        for text in [include_str!("bpe.rs"), include_str!("../model/network.rs")] {
            assert_eq!(bpe.encode(text).unwrap(), bpe.encode_slowly(text).unwrap());
        }
    }
}

//! Tokenizers of subwords: byte-pair encoding, Unigram, WordPiece and whole words, as Hugging Face's
//! `tokenizer.json` describes them.

mod checks;
mod folder;
mod from_gguf;
mod words;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    ops::Range,
    path::Path,
    sync::{Arc, OnceLock},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::tokenizer::AddedToken;

use self::{folder::Described, words::Words};
use super::{
    chat::{ChatTemplate, Guard, Message, Rendering},
    conversation::{Conversation, LearntTurns, MaskedTokens},
    error::TokenizerError,
};
use crate::weights::gguf::Gguf;

/// Everything a tokenizer of subwords is made from.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubwordSpec {
    /// The files that describe it, by name and as they were read: `tokenizer.json`, and of
    /// `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`,
    /// `generation_config.json`, `chat_template.jinja` and `chat_template.json` those that there are.
    /// Some megabytes.
    pub files: BTreeMap<String, String>,
    /// Tokens that end a reply and that the model's own configuration names: `eos_token_id` in
    /// `config.json`.
    pub ends: Vec<u32>,
}

/// A tokenizer of subwords.
#[derive(Clone)]
pub(super) struct Subword {
    spec: Arc<SubwordSpec>,
    described: Arc<Described>,
    /// Takes text literally: what looks like a special token in it is none.
    literal: Arc<tokenizers::Tokenizer>,
    /// Reads special tokens in text, for rendered conversations.
    speaking: Arc<OnceLock<tokenizers::Tokenizer>>,
    words: Option<Arc<Words>>,
    vocabulary: usize,
    around: Around,
}

/// Tokens that stand around a text, by the post-processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl SubwordSpec {
    /// Builds the description from a GGUF file's metadata.
    ///
    /// # Errors
    /// [`TokenizerError::Description`] when the metadata is incomplete, or of an unknown kind.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        from_gguf::spec(gguf)
    }

    /// Reads the files of a Hugging Face directory.
    ///
    /// # Errors
    /// [`TokenizerError`] when a file is absent or not understood.
    pub fn from_directory(directory: &Path) -> Result<Self, TokenizerError> {
        folder::read_spec(directory)
    }
}

impl Subword {
    pub(super) fn new(spec: SubwordSpec) -> Result<Self, TokenizerError> {
        let described = Described::of(&spec)?;
        checks::post_processor(&described.json)?;
        let mut literal = parse(&described.json)?;
        for (content, id) in &described.ids {
            let found = literal.token_to_id(content);
            if found != Some(*id) {
                return Err(description(format!(
                    "the added token {content:?} is to have the id {id}, which another token has"
                )));
            }
        }
        let vocabulary = literal.get_vocab(true);
        let vocabulary = vocabulary.values().max().map_or(0, |max| *max as usize + 1);
        let named = [described.bos, described.pad].into_iter().flatten();
        if let Some(token) = named.chain(described.ends.iter().copied()).find(|token| {
            // Rows of an embedding are none of a tokenizer's business, but text and ids are.
            *token as usize >= vocabulary && literal.id_to_token(*token).is_none()
        }) {
            return Err(TokenizerError::Token { token, vocabulary });
        }
        // Both are for batches that ask for them.
        let untruncated = literal.with_truncation(None).map(drop);
        untruncated.map_err(|error| description(error.to_string()))?;
        literal.with_padding(None);
        let around = match described.adds {
            Some([bos, eos]) => Around {
                before: described.bos.filter(|_| bos).into_iter().collect(),
                after: described.eos.filter(|_| eos).into_iter().collect(),
            },
            None => around(&literal)?,
        };
        literal.set_encode_special_tokens(true);
        Ok(Self {
            words: Words::of(&described.json).map(Arc::new),
            spec: Arc::new(spec),
            described: Arc::new(described),
            literal: Arc::new(literal),
            speaking: Arc::default(),
            vocabulary,
            around,
        })
    }

    pub(super) fn spec(&self) -> &SubwordSpec {
        &self.spec
    }

    pub(super) fn files(&self) -> Vec<(&str, String)> {
        let files = self.spec.files.iter();
        files
            .map(|(name, text)| (name.as_str(), text.clone()))
            .collect()
    }

    pub(super) fn chat(&self) -> Option<&ChatTemplate> {
        self.described.chat.as_ref()
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.described.notes
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn before(&self) -> &[u32] {
        &self.around.before
    }

    pub(super) fn after(&self) -> &[u32] {
        &self.around.after
    }

    pub(super) fn ends(&self) -> &[u32] {
        &self.described.ends
    }

    pub(super) fn bos(&self) -> Option<u32> {
        self.described.bos
    }

    pub(super) fn pad(&self) -> u32 {
        self.described.pad.unwrap_or(self.described.ends[0])
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.words {
            Some(words) => words.encode(text, |word| self.encode_slowly(word)),
            None => self.encode_slowly(text),
        }
    }

    /// Encodes text of any kind.
    fn encode_slowly(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        ids(&self.literal, text)
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let text = self
            .literal
            .decode(tokens, true)
            .map_err(|error| description(error.to_string()))?;
        Ok(match self.described.cleans_up {
            true => cleaned_up(text),
            false => text,
        })
    }

    /// Decodes tokens that stand behind others: decoders drop a space that is first in a text.
    pub(super) fn decode_reply(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let Some((&first, rest)) = tokens.split_first() else {
            return Ok(String::new());
        };
        // The first that has text stands twice, and its first text is what comes before.
        let alone = self.decode(&[first])?;
        if alone.is_empty() && !rest.is_empty() && self.silent(first) {
            return self.decode_reply(rest);
        }
        let twice = [&[first], tokens].concat();
        let both = self.decode(&twice)?;
        match both.strip_prefix(&alone) {
            // Bytes of a character that is not whole say nothing of what stands before them.
            Some(text) if !alone.contains(char::REPLACEMENT_CHARACTER) => Ok(text.to_owned()),
            _ => self.decode(tokens),
        }
    }

    pub(super) fn piece(&self, token: u32) -> String {
        let named = self.literal.id_to_token(token).unwrap_or_default();
        match self.decode_reply(&[token]) {
            // A special token, or a part of a character.
            Ok(text) if !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER) => text,
            _ => named,
        }
    }

    /// Returns true for a token that leaves no text anywhere.
    fn silent(&self, token: u32) -> bool {
        let Some(text) = self.literal.id_to_token(token) else {
            return true;
        };
        self.literal.get_added_vocabulary().is_special_token(&text)
    }

    pub(super) fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, TokenizerError> {
        let template = self.described.chat.as_ref().ok_or(TokenizerError::NoChat)?;
        let specials = self.specials();
        let messages = Message::values(messages);
        let guard = Guard::of(&messages, None, &specials, template);
        let asked = Rendering::next_turn(&guard.messages);
        let rendered = template.render_with(&asked, &self.described.named)?;
        if guard.mark.is_none() {
            return ids(self.speaking(), &rendered);
        }
        let tokens = self.placed(&rendered, guard.mark, &specials)?;
        Ok(tokens.into_iter().map(|(token, _)| token).collect())
    }

    /// The tokens of a rendered text with the bytes that each stands for, marks taken out. A text with
    /// the mark in it that looks like a special token is none; all else is as without it.
    fn placed(
        &self,
        rendered: &str,
        mark: Option<char>,
        specials: &[String],
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let (mut tokens, mut rest, mut begin) = (vec![], rendered, 0);
        while let Some((mark, at)) = mark.and_then(|mark| Some((mark, rest.find(mark)?))) {
            let start = rest[..at].char_indices().next_back().map_or(at, |it| it.0);
            let (first, behind) = (&rest[start..at], &rest[at + mark.len_utf8()..]);
            let tails = specials.iter().filter_map(|name| name.strip_prefix(first));
            let tails = tails.filter(|tail| behind.starts_with(tail));
            let tail = tails.max_by_key(|tail| tail.len()).unwrap_or_default();
            tokens.extend(placed(self.speaking(), &rest[..start], begin)?);
            begin += start;
            let text = format!("{first}{tail}");
            tokens.extend(placed(&self.literal, &text, begin)?);
            begin += text.len();
            rest = &behind[tail.len()..];
        }
        tokens.extend(placed(self.speaking(), rest, begin)?);
        Ok(tokens)
    }

    pub(super) fn encode_conversation(
        &self,
        conversation: &Conversation,
        learnt: LearntTurns,
    ) -> Result<MaskedTokens, TokenizerError> {
        let template = self.described.chat.as_ref().ok_or(TokenizerError::NoChat)?;
        let specials = self.specials();
        let (messages, tools) = (conversation.messages(), conversation.tools());
        let guard = Guard::of(messages, tools, &specials, template);
        let render = |count: usize, opens_turn, marks| {
            let asked = Rendering {
                messages: &guard.messages[..count],
                tools: guard.tools.as_ref(),
                opens_turn,
                marks,
            };
            template.render_with(&asked, &self.described.named)
        };
        let all = messages.len();
        let (text, ranges) = match learnt {
            LearntTurns::All => {
                let text = render(all, false, None)?;
                let whole = 0..text.len();
                (text, vec![whole])
            }
            LearntTurns::Replies | LearntTurns::Last if template.marks_replies() => {
                unmarked(&render(all, false, Some(guard.marks))?, guard.marks)
            }
            LearntTurns::Replies | LearntTurns::Last => {
                let text = render(all, false, None)?;
                let turns = conversation.replies(learnt).into_iter();
                let ranges = turns.map(|turn| {
                    let prior = match turn {
                        0 => String::new(),
                        turn => render(turn, false, None)?,
                    };
                    let before = render(turn, true, None)?;
                    let behind = render(turn + 1, false, None)?;
                    found(&text, [&prior, &before, &behind], &specials).map_err(|detail| {
                        let (file, turn) = (template.file().to_owned(), turn + 1);
                        TokenizerError::Turn { file, turn, detail }
                    })
                });
                let ranges = ranges.collect::<Result<_, TokenizerError>>()?;
                (text, ranges)
            }
        };
        let ranges = match learnt {
            LearntTurns::Last => ranges.last().cloned().into_iter().collect(),
            _ => ranges,
        };
        let ranges = without(&text, &ranges, guard.mark);
        let placed = self.placed(&text, guard.mark, &specials)?;
        Ok(MaskedTokens::of(placed, &ranges))
    }

    /// The texts of all special tokens.
    fn specials(&self) -> Vec<String> {
        let added = self.literal.get_added_tokens_decoder().into_values();
        let special = added.filter(|token: &AddedToken| token.special);
        special.map(|token| token.content).collect()
    }

    fn speaking(&self) -> &tokenizers::Tokenizer {
        self.speaking.get_or_init(|| {
            let mut speaking = tokenizers::Tokenizer::clone(&self.literal);
            speaking.set_encode_special_tokens(false);
            speaking
        })
    }
}

/// The text between marks and around them, without these, and where what is between them lies.
fn unmarked(marked: &str, [begin, end]: [char; 2]) -> (String, Vec<Range<usize>>) {
    let (mut text, mut ranges) = (String::with_capacity(marked.len()), vec![]);
    for piece in marked.split(begin).enumerate() {
        match piece {
            (0, before) => text.push_str(before),
            (_, piece) => {
                let (own, rest) = piece.split_once(end).unwrap_or((piece, ""));
                let start = text.len();
                text.push_str(own);
                ranges.push(start..text.len());
                text.push_str(rest);
            }
        }
    }
    ranges.retain(|range| !range.is_empty());
    (text, ranges)
}

/// Tokens of a text with the bytes that each stands for, counted from `begin` on.
fn placed(
    tokenizer: &tokenizers::Tokenizer,
    text: &str,
    begin: usize,
) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
    let encoding = tokenizer.encode(text, false);
    let encoding = encoding.map_err(|error| description(error.to_string()))?;
    let places = encoding.get_offsets().iter();
    let places = places.map(|(start, end)| begin + start..begin + end);
    Ok(encoding.get_ids().iter().copied().zip(places).collect())
}

/// Where a reply lies in a text: behind what opens its turn, up to the token that ends it. Of three
/// texts the first ends before its turn, the second where that is opened, the third at its end. White
/// space behind a special token is between turns, and the model never writes it.
fn found(
    text: &str,
    [prior, before, behind]: [&str; 3],
    specials: &[String],
) -> Result<Range<usize>, &'static str> {
    let is_special = |name: &&String| !name.is_empty();
    let trimmed = behind.trim_end();
    let ends = specials.iter().filter(is_special);
    let end = match ends.clone().any(|name| trimmed.ends_with(name.as_str())) {
        true => trimmed.len(),
        false => behind.len(),
    };
    if !text.starts_with(prior) {
        return Err("renders the turns before it otherwise when others follow");
    }
    if !text.starts_with(before) || !behind.starts_with(before) {
        return Err("opens it with a text that is not there when the reply is");
    }
    if !text.starts_with(&behind[..end]) {
        return Err("renders it otherwise when others follow");
    }
    let reply = behind.get(before.len()..end).unwrap_or_default();
    // What opens a turn has a text behind its token; an empty reply is what ends it.
    let mut begins = ends;
    let begins = begins.any(|name| {
        let behind = reply.trim_start().strip_prefix(name.as_str());
        behind.is_some_and(|text| !text.is_empty())
    });
    if before == prior && begins {
        return Err("does not open it where `add_generation_prompt` asks for that");
    }
    Ok(before.len()..end.max(before.len()))
}

/// Ranges of a text as they are without the mark in it.
fn without(text: &str, ranges: &[Range<usize>], mark: Option<char>) -> Vec<Range<usize>> {
    let Some(mark) = mark else {
        return ranges.to_vec();
    };
    let (mut at, mut marks) = (0, 0);
    let mut plain = |bound: usize| {
        marks += text[at..bound].matches(mark).count();
        at = bound;
        bound - marks * mark.len_utf8()
    };
    ranges
        .iter()
        .map(|range| plain(range.start)..plain(range.end))
        .collect()
}

/// Tokens that the post-processor puts around a text.
fn around(tokenizer: &tokenizers::Tokenizer) -> Result<Around, TokenizerError> {
    let failed = |error: tokenizers::Error| description(error.to_string());
    let encoding = tokenizer.encode(SAMPLE, true).map_err(failed)?;
    let bare = tokenizer.encode(SAMPLE, false).map_err(failed)?;
    let (all, text) = (encoding.get_ids(), bare.get_ids());
    let at = all.windows(text.len().max(1)).position(|ids| ids == text);
    let Some(at) = at.filter(|_| !text.is_empty()) else {
        // A vocabulary without that letter.
        let special = encoding.get_special_tokens_mask();
        let before = special.iter().take_while(|it| **it == 1).count();
        let after = special[before..]
            .iter()
            .rev()
            .take_while(|it| **it == 1)
            .count();
        return Ok(Around {
            before: all[..before].to_vec(),
            after: all[all.len() - after..].to_vec(),
        });
    };
    Ok(Around {
        before: all[..at].to_vec(),
        after: all[at + text.len()..].to_vec(),
    })
}

/// A letter that most vocabularies have.
const SAMPLE: &str = "a";

fn ids(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    let encoding = tokenizer.encode_fast(text, false);
    let encoding = encoding.map_err(|error| description(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

/// A text as `clean_up_tokenization_spaces` has it.
fn cleaned_up(text: String) -> String {
    let pairs = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    pairs
        .into_iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
}

impl Debug for SubwordSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.files.iter();
        let files: BTreeMap<&str, usize> = files
            .map(|(name, text)| (name.as_str(), text.len()))
            .collect();
        f.debug_struct("SubwordSpec")
            .field("bytes_of_files", &files)
            .field("ends", &self.ends)
            .finish()
    }
}

impl Debug for Subword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

fn parse(json: &str) -> Result<tokenizers::Tokenizer, TokenizerError> {
    json.parse().map_err(|error: tokenizers::Error| {
        let mut told = format!("{TOKENIZER}: {error}");
        // The library does not say which of its kinds it does not know.
        if told.contains("did not match any variant")
            && let Some(types) = types(json)
        {
            told = format!("{told}; a part of it is of no kind that is known: {types}");
        }
        description(told)
    })
}

/// The parts of a description with their types.
fn types(json: &str) -> Option<String> {
    let json: Value = serde_json::from_str(json).ok()?;
    let parts = [
        "normalizer",
        "pre_tokenizer",
        "model",
        "post_processor",
        "decoder",
    ];
    let types = parts.iter().filter_map(|part| {
        let part_of = json.get(part)?;
        let own = part_of.get("type")?.as_str()?;
        let below = [part_of.get("pretokenizers"), part_of.get("normalizers")];
        let below = below
            .into_iter()
            .flatten()
            .filter_map(Value::as_array)
            .flatten();
        let below: Vec<&str> = below.filter_map(|it| it.get("type")?.as_str()).collect();
        Some(match below.is_empty() {
            true => format!("`{part}` is {own}"),
            false => format!("`{part}` is {own} of {}", below.join(", ")),
        })
    });
    Some(types.collect::<Vec<_>>().join(", "))
}

fn description(detail: String) -> TokenizerError {
    TokenizerError::Description { detail }
}

const TOKENIZER: &str = "tokenizer.json";

#[cfg(test)]
mod tests {
    use odeon_skip::{Need, skip};
    use proptest::prelude::*;

    use serde_json::json;

    use super::*;

    /// A tokenizer with most bytes, and merges of common pairs in an order that is not that of length.
    fn bpe(digits: bool) -> Subword {
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
        Subword::new(SubwordSpec {
            files: BTreeMap::from([(TOKENIZER.to_owned(), json.to_string())]),
            ends: vec![0],
        })
        .unwrap()
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
                static BOTH: [Subword; 2] = [bpe(false), bpe(true)];
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
        let json: Value = serde_json::from_str(&bpe(true).spec.files[TOKENIZER]).unwrap();
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
        let bpe = Subword::new(SubwordSpec::from_gguf(&gguf).unwrap()).unwrap();
        assert!(bpe.words.is_some());
        for text in [
            include_str!("subword.rs"),
            include_str!("../model/network.rs"),
        ] {
            assert_eq!(bpe.encode(text).unwrap(), bpe.encode_slowly(text).unwrap());
        }
    }
}

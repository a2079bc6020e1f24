//! The same tokens sooner: words that were met before are looked up.
//!
//! Text is cut into words as GPT-2 does, and most words come again and again. Only tokenizers of that
//! kind are served; of others, [`Words::of`] says that it cannot.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use regex_syntax::hir::{Class, HirKind};
use serde_json::Value;

/// Cuts text into words, and knows or finds the tokens of each.
#[derive(Debug)]
pub(super) struct Words {
    /// The token of each byte. Some vocabularies lack bytes that are rare, which leave no token.
    bytes: Vec<Option<u32>>,
    /// Of two tokens: how early they are merged, and into which.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// The ranges of letters, sorted.
    letters: Vec<(char, char)>,
    /// Set when each digit is a word.
    single_digits: bool,
    /// One for each thread that encodes at the time. They are filled alike.
    caches: Mutex<Vec<Cache>>,
}

#[derive(Debug, Default)]
struct Cache {
    words: HashMap<Box<[u8]>, (u32, u32)>,
    tokens: Vec<u32>,
}

impl Words {
    /// Reads `tokenizer.json`; none if its tokenizer does anything else than words and merges.
    pub(super) fn of(json: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(json).ok()?;
        let model = &json["model"];
        let none = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::Array(_) | Value::Object(_) | Value::Bool(true) => false,
        };
        let plain = ["normalizer", "truncation", "padding"]
            .iter()
            .all(|key| none(&json[key]))
            && [
                "dropout",
                "unk_token",
                "continuing_subword_prefix",
                "end_of_word_suffix",
                "byte_fallback",
                "ignore_merges",
            ]
            .iter()
            .all(|key| none(&model[key]));
        let special = |token: &Value| token["special"] == Value::Bool(true);
        let added = json["added_tokens"]
            .as_array()
            .map_or(&[][..], |added| added);
        if !plain || model["type"] != "BPE" || !added.iter().all(special) {
            return None;
        }
        let single_digits = pre_tokenizer(&json["pre_tokenizer"])?;
        let vocabulary = model["vocab"].as_object()?;
        let id = |token: &str| u32::try_from(vocabulary.get(token)?.as_u64()?).ok();
        let byte = |byte: u8| id(byte_character(byte).encode_utf8(&mut [0; 4]));
        let mut merges = HashMap::new();
        for (rank, merge) in (0..).zip(model["merges"].as_array()?) {
            let (left, right) = match merge {
                Value::String(both) => both.split_once(' ')?,
                _ => (merge[0].as_str()?, merge[1].as_str()?),
            };
            let merged = id(&format!("{left}{right}"))?;
            merges.insert((id(left)?, id(right)?), (rank, merged));
        }
        Some(Self {
            bytes: (0..=255).map(byte).collect(),
            merges,
            letters: letters()?,
            single_digits,
            caches: Mutex::default(),
        })
    }

    /// Encodes text; `long` encodes words that are too long to be merged here.
    pub(super) fn encode<E>(
        &self,
        text: &str,
        mut long: impl FnMut(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, E> {
        let caches = || self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cache = caches().pop().unwrap_or_default();
        let mut tokens = Vec::with_capacity(text.len() / 3);
        let mut rest = text;
        while !rest.is_empty() {
            let (word, after) = rest.split_at(self.word(rest));
            rest = after;
            if word.len() > LONG {
                tokens.extend(long(word)?);
            } else {
                cache.take(word.as_bytes(), &mut tokens, |word| self.merged(word));
            }
        }
        caches().push(cache);
        Ok(tokens)
    }

    /// The length of the word that text begins with: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|`
    /// ` ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, after digits are cut off where each is a word.
    fn word(&self, text: &str) -> usize {
        if text.starts_with('\'') {
            let endings = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
            if let Some(ending) = endings.iter().find(|&&ending| text.starts_with(ending)) {
                return ending.len();
            }
        }
        let mut characters = text.char_indices().peekable();
        let first = characters.next().map_or(' ', |(_, first)| first);
        if self.single_digits && first.is_numeric() {
            return first.len_utf8();
        }
        // A space belongs to the word after it.
        let kind = match (first, characters.peek()) {
            (' ', Some(&(_, next))) => {
                let digit = self.single_digits && next.is_numeric();
                if digit { Kind::Space } else { self.kind(next) }
            }
            _ => self.kind(first),
        };
        if kind != Kind::Space {
            let end = characters.find(|&(_, next)| {
                let digit = self.single_digits && next.is_numeric();
                digit || self.kind(next) != kind
            });
            return end.map_or(text.len(), |(at, _)| at);
        }
        // All spaces, but not the last before a word that is not cut off by itself.
        let mut last = 0;
        for (at, next) in text.char_indices() {
            if self.single_digits && next.is_numeric() {
                return at;
            }
            if !next.is_whitespace() {
                return if last > 0 { last } else { at };
            }
            last = at;
        }
        text.len()
    }

    fn kind(&self, character: char) -> Kind {
        if character.is_ascii() {
            return match character {
                'a'..='z' | 'A'..='Z' => Kind::Letter,
                '0'..='9' => Kind::Number,
                character if character.is_whitespace() => Kind::Space,
                _ => Kind::Other,
            };
        }
        if character.is_whitespace() {
            return Kind::Space;
        }
        let at = self.letters.partition_point(|&(_, last)| last < character);
        if self
            .letters
            .get(at)
            .is_some_and(|&(first, _)| first <= character)
        {
            Kind::Letter
        } else if character.is_numeric() {
            Kind::Number
        } else {
            Kind::Other
        }
    }

    /// Merges what is merged earliest, and of that the leftmost, until nothing is.
    fn merged(&self, word: &[u8]) -> Vec<u32> {
        let known = word
            .iter()
            .filter_map(|&byte| self.bytes[usize::from(byte)]);
        let mut tokens: Vec<u32> = known.collect();
        loop {
            let ranked = tokens.windows(2).enumerate().filter_map(|(at, pair)| {
                let &(rank, merged) = self.merges.get(&(pair[0], pair[1]))?;
                Some((rank, at, merged))
            });
            let Some((_, at, merged)) = ranked.min() else {
                return tokens;
            };
            tokens[at] = merged;
            tokens.remove(at + 1);
        }
    }
}

impl Cache {
    fn take(&mut self, word: &[u8], out: &mut Vec<u32>, find: impl FnOnce(&[u8]) -> Vec<u32>) {
        if let Some(&(start, end)) = self.words.get(word) {
            out.extend_from_slice(&self.tokens[start as usize..end as usize]);
            return;
        }
        let found = find(word);
        out.extend_from_slice(&found);
        if self.words.len() >= WORDS_MAX {
            *self = Self::default();
        }
        let start = self.tokens.len() as u32;
        self.tokens.extend_from_slice(&found);
        self.words
            .insert(word.into(), (start, self.tokens.len() as u32));
    }
}

/// The class of the characters in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Letter,
    Number,
    Space,
    Other,
}

/// Returns true when each digit is a word; none if words are cut in another way.
fn pre_tokenizer(json: &Value) -> Option<bool> {
    let bytes = |json: &Value| {
        let regex = json
            .get("use_regex")
            .is_none_or(|regex| *regex == Value::Bool(true));
        json["type"] == "ByteLevel" && json["add_prefix_space"] == Value::Bool(false) && regex
    };
    let digits =
        |json: &Value| json["type"] == "Digits" && json["individual_digits"] == Value::Bool(true);
    match json["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([first, second]) => (digits(first) && bytes(second)).then_some(true),
        Some([only]) => bytes(only).then_some(false),
        Some(_) => None,
        None => bytes(json).then_some(false),
    }
}

/// The character that stands for a byte in the vocabulary: itself where it is printable, and one from
/// U+0100 on where it is not.
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !printable(byte)).count() as u32;
    char::from_u32(0x100 + before).expect("there are fewer than 256 of them")
}

/// The ranges of characters that `\p{L}` matches.
fn letters() -> Option<Vec<(char, char)>> {
    let class = regex_syntax::parse(r"\p{L}").ok()?;
    let HirKind::Class(Class::Unicode(class)) = class.kind() else {
        return None;
    };
    Some(
        class
            .iter()
            .map(|range| (range.start(), range.end()))
            .collect(),
    )
}

/// Merging takes the square of a word's length. Almost all words are far shorter.
const LONG: usize = 64;
/// Some megabytes for each thread.
const WORDS_MAX: usize = 1 << 16;

//! One token per character.

use std::collections::HashMap;

use super::error::TokenizerError;

/// A tokenizer over a small alphabet: id 0 pads, 1 begins, 2 ends, and characters follow in the
/// order of the alphabet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharTokenizer {
    characters: Vec<char>,
    ids: HashMap<char, u32>,
}

impl CharTokenizer {
    /// Digits, operators and separators: what the plain forms of the generated tasks are written
    /// in.
    pub const ARITHMETIC: &str = "0123456789+-*/=():,.#?<>;|' \n";

    /// The characters that can be typed in ASCII: programs and questions about them are written in
    /// these.
    pub const TEXT: &str = concat!(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \t\n"
    );

    /// The id that pads.
    pub const PAD: u32 = 0;
    /// The id that begins a sequence.
    pub const BOS: u32 = 1;
    /// The id that ends a sequence.
    pub const EOS: u32 = 2;

    /// Makes a tokenizer over these characters.
    ///
    /// # Errors
    /// [`TokenizerError::Repeated`] when a character occurs twice.
    pub fn new(alphabet: &str) -> Result<Self, TokenizerError> {
        let characters: Vec<char> = alphabet.chars().collect();
        let mut ids = HashMap::with_capacity(characters.len());
        for (id, &character) in (SPECIAL..).zip(&characters) {
            if ids.insert(character, id).is_some() {
                return Err(TokenizerError::Repeated { character });
            }
        }
        Ok(Self { characters, ids })
    }

    /// The characters in the order of their ids.
    #[must_use]
    pub fn alphabet(&self) -> String {
        self.characters.iter().collect()
    }

    /// The number of ids, the special ones included.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.characters.len() + SPECIAL as usize
    }

    /// Encodes text.
    ///
    /// # Errors
    /// [`TokenizerError::Character`] for the first character outside the alphabet.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let id = |character| {
            self.ids
                .get(&character)
                .copied()
                .ok_or(TokenizerError::Character { character })
        };
        text.chars().map(id).collect()
    }

    /// Decodes tokens; special and unknown ids leave no text.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        let character = |&token: &u32| self.characters.get(token.checked_sub(SPECIAL)? as usize);
        tokens.iter().filter_map(character).collect()
    }
}

/// Number of ids before the characters.
const SPECIAL: u32 = 3;

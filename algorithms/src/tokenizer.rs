//! Text to token ids and back.
//!
//! A [`Tokenizer`] is made from a [`TokenizerSpec`], which carries everything it needs and travels
//! in messages and checkpoints: a small alphabet of characters ([`TokenizerSpec::Chars`]), bytes as
//! they are ([`TokenizerSpec::Bytes`]), or a byte-level BPE with its vocabulary
//! ([`TokenizerSpec::Bpe`]), read from a Hugging Face directory or from the metadata of a GGUF file.
//!
//! Text is always taken literally: special tokens written in it are encoded as the characters they
//! are, so no text can end a turn of a conversation. Special tokens come in by their ids only.
//!
//! ```
//! use odeon_algorithms::tokenizer::Tokenizer;
//!
//! let tokenizer = Tokenizer::arithmetic();
//! let tokens = tokenizer.encode("7+12=")?;
//! assert_eq!(tokenizer.decode(&tokens)?, "7+12=");
//! # Ok::<(), odeon_algorithms::tokenizer::TokenizerError>(())
//! ```

mod bpe;
mod bytes;
mod chars;
mod chat;
mod error;

use std::path::Path;

use serde::{Deserialize, Serialize};

use self::{bpe::Bpe, error::read};
pub use self::{
    bpe::BpeSpec,
    bytes::ByteTokenizer,
    chars::CharTokenizer,
    chat::{ChatTemplate, Message, Role},
    error::TokenizerError,
};
use crate::weights::gguf::Gguf;

/// Encodes text, decodes tokens, and knows the special tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "TokenizerSpec", into = "TokenizerSpec")]
pub struct Tokenizer {
    kind: Kind,
}

/// Everything a [`Tokenizer`] is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenizerSpec {
    /// One token per character of this alphabet.
    Chars {
        /// The characters, each once.
        alphabet: String,
    },
    /// One token per byte.
    Bytes,
    /// Byte-level byte-pair encoding.
    Bpe(BpeSpec),
}

#[derive(Clone, Debug)]
enum Kind {
    Chars(CharTokenizer),
    Bytes(ByteTokenizer),
    Bpe(Bpe),
}

impl Tokenizer {
    /// One token per character of [`CharTokenizer::ARITHMETIC`]: 32 ids with the special ones.
    #[must_use]
    pub fn arithmetic() -> Self {
        let chars = CharTokenizer::new(CharTokenizer::ARITHMETIC);
        Self {
            kind: Kind::Chars(chars.expect("its characters are distinct")),
        }
    }

    /// One token per character of [`CharTokenizer::TEXT`]: 100 ids with the special ones.
    #[must_use]
    pub fn text() -> Self {
        let chars = CharTokenizer::new(CharTokenizer::TEXT);
        Self {
            kind: Kind::Chars(chars.expect("its characters are distinct")),
        }
    }

    /// One token per byte: 259 ids with the special ones, and none of them for what no text has.
    #[must_use]
    pub fn bytes() -> Self {
        Self {
            kind: Kind::Bytes(ByteTokenizer),
        }
    }

    /// Makes the tokenizer that the specification describes.
    ///
    /// # Errors
    /// [`TokenizerError`] when the description is inconsistent.
    pub fn new(spec: TokenizerSpec) -> Result<Self, TokenizerError> {
        let kind = match spec {
            TokenizerSpec::Chars { alphabet } => Kind::Chars(CharTokenizer::new(&alphabet)?),
            TokenizerSpec::Bytes => Kind::Bytes(ByteTokenizer),
            TokenizerSpec::Bpe(spec) => Kind::Bpe(Bpe::new(spec)?),
        };
        Ok(Self { kind })
    }

    /// Builds the tokenizer from the vocabulary, merges and chat template inside a GGUF file.
    ///
    /// # Errors
    /// [`TokenizerError`] when the metadata is incomplete, or of another kind than byte-level
    /// BPE.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        Self::new(TokenizerSpec::Bpe(BpeSpec::from_gguf(gguf)?))
    }

    /// Reads a Hugging Face directory (`tokenizer.json` and `tokenizer_config.json`), or one that
    /// holds the [`files`](Self::files) of another tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError`] when a file is absent or not understood.
    pub fn from_directory(directory: &Path) -> Result<Self, TokenizerError> {
        let path = directory.join(CHARACTERS);
        if path.exists() {
            return Self::new(TokenizerSpec::Chars {
                alphabet: read(&path)?,
            });
        }
        if directory.join(BYTES).exists() {
            return Ok(Self::bytes());
        }
        Self::new(TokenizerSpec::Bpe(BpeSpec::from_directory(directory)?))
    }

    /// The names and contents of the files from which
    /// [`from_directory`](Self::from_directory) makes an equal tokenizer.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, String)> {
        match &self.kind {
            Kind::Chars(chars) => vec![(CHARACTERS, chars.alphabet())],
            Kind::Bytes(_) => vec![(BYTES, "A token is a byte.\n".into())],
            Kind::Bpe(bpe) => bpe.files(),
        }
    }

    /// The description from which an equal tokenizer can be made.
    #[must_use]
    pub fn spec(&self) -> TokenizerSpec {
        match &self.kind {
            Kind::Chars(chars) => TokenizerSpec::Chars {
                alphabet: chars.alphabet(),
            },
            Kind::Bytes(_) => TokenizerSpec::Bytes,
            Kind::Bpe(bpe) => TokenizerSpec::Bpe(bpe.spec().clone()),
        }
    }

    /// Encodes text, without special tokens before or after it.
    ///
    /// # Errors
    /// [`TokenizerError::Character`] when an alphabet lacks a character. Bytes and byte-level BPE
    /// encode any text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Chars(chars) => chars.encode(text),
            Kind::Bytes(bytes) => Ok(bytes.encode(text)),
            Kind::Bpe(bpe) => bpe.encode(text),
        }
    }

    /// Decodes tokens; special tokens leave no text. Byte sequences that are not UTF-8 become
    /// replacement characters.
    ///
    /// # Errors
    /// [`TokenizerError::Token`] for an id outside the vocabulary.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        if let Some(&token) = tokens
            .iter()
            .find(|&&token| token as usize >= self.vocabulary())
        {
            return Err(TokenizerError::Token {
                token,
                vocabulary: self.vocabulary(),
            });
        }
        match &self.kind {
            Kind::Chars(chars) => Ok(chars.decode(tokens)),
            Kind::Bytes(bytes) => Ok(bytes.decode(tokens)),
            Kind::Bpe(bpe) => bpe.decode(tokens),
        }
    }

    /// Encodes a conversation with the chat template, ready for the model's next turn.
    ///
    /// # Errors
    /// [`TokenizerError::NoChat`] when the tokenizer has no chat template, and
    /// [`TokenizerError::UnknownTemplate`] when it has one that is not built in.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => Err(TokenizerError::NoChat),
            Kind::Bpe(bpe) => bpe.encode_chat(messages),
        }
    }

    /// The chat template, if there is one.
    #[must_use]
    pub fn chat(&self) -> Option<&ChatTemplate> {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => None,
            Kind::Bpe(bpe) => bpe.spec().chat.as_ref(),
        }
    }

    /// The number of token ids: the rows of the embedding.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match &self.kind {
            Kind::Chars(chars) => chars.vocabulary(),
            Kind::Bytes(_) => ByteTokenizer::VOCABULARY,
            Kind::Bpe(bpe) => bpe.vocabulary(),
        }
    }

    /// The token that fills short rows of a batch.
    #[must_use]
    pub fn pad(&self) -> u32 {
        match &self.kind {
            Kind::Chars(_) => CharTokenizer::PAD,
            Kind::Bytes(_) => ByteTokenizer::PAD,
            Kind::Bpe(bpe) => bpe.spec().pad,
        }
    }

    /// The token to begin a sequence with, where the model expects one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        match &self.kind {
            Kind::Chars(_) => Some(CharTokenizer::BOS),
            Kind::Bytes(_) => Some(ByteTokenizer::BOS),
            Kind::Bpe(bpe) => bpe.spec().bos,
        }
    }

    /// The token that ends a reply.
    #[must_use]
    pub fn eos(&self) -> u32 {
        match &self.kind {
            Kind::Chars(_) => CharTokenizer::EOS,
            Kind::Bytes(_) => ByteTokenizer::EOS,
            Kind::Bpe(bpe) => bpe.spec().eos,
        }
    }
}

impl TryFrom<TokenizerSpec> for Tokenizer {
    type Error = TokenizerError;

    fn try_from(spec: TokenizerSpec) -> Result<Self, Self::Error> {
        Self::new(spec)
    }
}

impl From<Tokenizer> for TokenizerSpec {
    fn from(tokenizer: Tokenizer) -> Self {
        tokenizer.spec()
    }
}

/// The file that holds an alphabet.
const CHARACTERS: &str = "characters.txt";
/// The file that says that tokens are bytes.
const BYTES: &str = "bytes.txt";

#[cfg(test)]
mod tests;

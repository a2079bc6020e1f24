//! Text to token ids and back.
//!
//! A [`Tokenizer`] is made from a [`TokenizerSpec`], which carries everything it needs and travels
//! in messages and checkpoints: a small alphabet of characters ([`TokenizerSpec::Chars`]), bytes as
//! they are ([`TokenizerSpec::Bytes`]), or subwords with their vocabulary
//! ([`TokenizerSpec::Subword`]), read from a Hugging Face directory or from the metadata of a GGUF
//! file.
//!
//! Text is always taken literally: special tokens written in it are encoded as the characters they
//! are, so no text can end a turn of a conversation. Special tokens come in by their ids, and from the
//! chat template.
//!
//! What stands around a text follows from the tokenizer's description alone, as in `transformers`:
//! [`before`](Tokenizer::before) and [`after`](Tokenizer::after) are what its post-processor puts
//! there. That a token is called `bos_token` puts it nowhere.
//!
//! ```
//! use odeon_algorithms::tokenizer::Tokenizer;
//!
//! let tokenizer = Tokenizer::arithmetic();
//! let tokens = tokenizer.encode("7+12=")?;
//! assert_eq!(tokenizer.decode(&tokens)?, "7+12=");
//! # Ok::<(), odeon_algorithms::tokenizer::TokenizerError>(())
//! ```

mod bytes;
mod chars;
mod chat;
mod conversation;
mod error;
mod subword;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::{
    bytes::ByteTokenizer,
    chars::CharTokenizer,
    chat::{ChatTemplate, Message, Role},
    conversation::{Conversation, LearntTurns, MaskedTokens},
    error::TokenizerError,
    subword::SubwordSpec,
};
use self::{error::read, subword::Subword};
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
    /// Subwords, as Hugging Face's files describe them.
    Subword(SubwordSpec),
}

#[derive(Clone, Debug)]
enum Kind {
    Chars(CharTokenizer),
    Bytes(ByteTokenizer),
    Subword(Subword),
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
            TokenizerSpec::Subword(spec) => Kind::Subword(Subword::new(spec)?),
        };
        Ok(Self { kind })
    }

    /// Builds the tokenizer from the vocabulary, merges and chat template inside a GGUF file.
    ///
    /// # Errors
    /// [`TokenizerError`] when the metadata is incomplete, or of an unknown kind.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        Self::new(TokenizerSpec::Subword(SubwordSpec::from_gguf(gguf)?))
    }

    /// Reads a Hugging Face directory ([`SubwordSpec::files`]), or one that holds the
    /// [`files`](Self::files) of another tokenizer.
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
        Self::new(TokenizerSpec::Subword(SubwordSpec::from_directory(
            directory,
        )?))
    }

    /// The names and contents of the files from which
    /// [`from_directory`](Self::from_directory) makes an equal tokenizer, beside the `config.json` of its
    /// model, which may name more tokens that end a reply.
    #[must_use]
    pub fn files(&self) -> Vec<(&str, String)> {
        match &self.kind {
            Kind::Chars(chars) => vec![(CHARACTERS, chars.alphabet())],
            Kind::Bytes(_) => vec![(BYTES, "A token is a byte.\n".into())],
            Kind::Subword(subword) => subword.files(),
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
            Kind::Subword(subword) => TokenizerSpec::Subword(subword.spec().clone()),
        }
    }

    /// Encodes text, without the tokens before and after it.
    ///
    /// # Errors
    /// [`TokenizerError::Character`] when an alphabet lacks a character. Others encode any text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Chars(chars) => chars.encode(text),
            Kind::Bytes(bytes) => Ok(bytes.encode(text)),
            Kind::Subword(subword) => subword.encode(text),
        }
    }

    /// Encodes a text that stands by itself, as a prompt does: with the tokens before and after it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let text = self.encode(text)?;
        Ok([self.before(), &text, self.after()].concat())
    }

    /// Decodes the tokens of a text. Special tokens leave none, and so do ids that have none, such as
    /// rows that pad an embedding. Byte sequences that are not UTF-8 become replacement characters.
    ///
    /// # Errors
    /// [`TokenizerError::Description`]: the decoder refuses them.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        match &self.kind {
            Kind::Chars(chars) => Ok(chars.decode(tokens)),
            Kind::Bytes(bytes) => Ok(bytes.decode(tokens)),
            Kind::Subword(subword) => subword.decode(tokens),
        }
    }

    /// Decodes tokens that stand behind others, as a reply behind its prompt: a space that they begin
    /// with stays.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_reply(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => self.decode(tokens),
            Kind::Subword(subword) => subword.decode_reply(tokens),
        }
    }

    /// A token as people can read it: a special one by its name, others by their text, and one that has
    /// none by nothing.
    #[must_use]
    pub fn piece(&self, token: u32) -> String {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => self.decode(&[token]).unwrap_or_default(),
            Kind::Subword(subword) => subword.piece(token),
        }
    }

    /// Encodes a conversation with the chat template, ready for the model's next turn.
    ///
    /// # Errors
    /// [`TokenizerError::NoChat`] when the tokenizer has no chat template, and
    /// [`TokenizerError::Template`] when that is no Jinja or refuses the conversation.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => Err(TokenizerError::NoChat),
            Kind::Subword(subword) => subword.encode_chat(messages),
        }
    }

    /// Encodes a whole conversation with the chat template, as it is learnt from: nothing stands before or
    /// behind it but what the template puts there.
    ///
    /// # Errors
    /// As [`encode_chat`](Self::encode_chat); and [`TokenizerError::Turn`] for a template without
    /// `generation` blocks that renders a turn otherwise when others follow, so that nothing says where
    /// it lies.
    pub fn encode_conversation(
        &self,
        conversation: &Conversation,
        learnt: LearntTurns,
    ) -> Result<MaskedTokens, TokenizerError> {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => Err(TokenizerError::NoChat),
            Kind::Subword(subword) => subword.encode_conversation(conversation, learnt),
        }
    }

    /// The chat template, if there is one.
    #[must_use]
    pub fn chat(&self) -> Option<&ChatTemplate> {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => None,
            Kind::Subword(subword) => subword.chat(),
        }
    }

    /// The number of token ids, one more than the greatest: the rows that an embedding needs. That of a
    /// model may have more.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match &self.kind {
            Kind::Chars(chars) => chars.vocabulary(),
            Kind::Bytes(_) => ByteTokenizer::VOCABULARY,
            Kind::Subword(subword) => subword.vocabulary(),
        }
    }

    /// The token that fills short rows of a batch.
    #[must_use]
    pub fn pad(&self) -> u32 {
        match &self.kind {
            Kind::Chars(_) => CharTokenizer::PAD,
            Kind::Bytes(_) => ByteTokenizer::PAD,
            Kind::Subword(subword) => subword.pad(),
        }
    }

    /// The tokens that stand before a text that stands by itself.
    #[must_use]
    pub fn before(&self) -> &[u32] {
        match &self.kind {
            Kind::Chars(_) => &[CharTokenizer::BOS],
            Kind::Bytes(_) => &[ByteTokenizer::BOS],
            Kind::Subword(subword) => subword.before(),
        }
    }

    /// The tokens that stand after a text that stands by itself, but for those that end a reply.
    #[must_use]
    pub fn after(&self) -> &[u32] {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => &[],
            Kind::Subword(subword) => subword.after(),
        }
    }

    /// The tokens that end a reply: the tokenizer's own, and those that the model's configurations
    /// name. Never empty.
    #[must_use]
    pub fn ends(&self) -> &[u32] {
        match &self.kind {
            Kind::Chars(_) => &[CharTokenizer::EOS],
            Kind::Bytes(_) => &[ByteTokenizer::EOS],
            Kind::Subword(subword) => subword.ends(),
        }
    }

    /// Returns true for a token that ends a reply.
    #[must_use]
    pub fn is_end(&self, token: u32) -> bool {
        self.ends().contains(&token)
    }

    /// The token that training writes at the end of a reply: the first of [`ends`](Self::ends).
    #[must_use]
    pub fn eos(&self) -> u32 {
        self.ends()[0]
    }

    /// Oddities of the tokenizer's files, and what is made of it.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match &self.kind {
            Kind::Chars(_) | Kind::Bytes(_) => &[],
            Kind::Subword(subword) => subword.notes(),
        }
    }

    /// The token that configurations of models name as the first of a sequence.
    pub(crate) fn bos(&self) -> Option<u32> {
        match &self.kind {
            Kind::Chars(_) => Some(CharTokenizer::BOS),
            Kind::Bytes(_) => Some(ByteTokenizer::BOS),
            Kind::Subword(subword) => subword.bos(),
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

//! Why text or tokens could not be translated, or a tokenizer not be made.

use std::path::{Path, PathBuf};

/// Why text or tokens could not be translated, or a tokenizer not be made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The alphabet does not have this character.
    #[error("the alphabet has no {character:?}")]
    Character {
        /// The character.
        character: char,
    },
    /// The alphabet has this character twice.
    #[error("the alphabet has {character:?} twice")]
    Repeated {
        /// The character.
        character: char,
    },
    /// The vocabulary does not have this token id.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Token {
        /// The id.
        token: u32,
        /// The number of ids.
        vocabulary: usize,
    },
    /// The file's description of the tokenizer lacks something, or is of another kind.
    #[error("cannot make a tokenizer from this description: {detail}")]
    Description {
        /// The error in it.
        detail: String,
    },
    /// The chat template is no Jinja, or refuses this conversation. Give prompts as plain text, or
    /// mend the template.
    #[error("the chat template in {file} cannot be rendered: {detail}")]
    Template {
        /// The file that has it.
        file: String,
        /// The reason, with the line.
        detail: String,
    },
    /// Nothing says where a turn of a conversation lies.
    #[error(
        "the chat template in {file} has no `generation` blocks, and of turn {turn} it {detail}, so that it \
         cannot be told what of it is learnt: put `{{% generation %}}` and `{{% endgeneration %}}` around \
         replies in the template, or learn `all`"
    )]
    Turn {
        /// The file that has it.
        file: String,
        /// The turn, from 1.
        turn: usize,
        /// The reason: what the template does with it.
        detail: &'static str,
    },
    /// The directory has files of tokenizers of other kinds alone.
    #[error(
        "{} has {found}, but no tokenizer.json; make one of them: \
         `AutoTokenizer.from_pretrained(\"{}\").save_pretrained(\"{}\")` of transformers",
        directory.display(), directory.display(), directory.display()
    )]
    OtherFiles {
        /// The directory.
        directory: PathBuf,
        /// The files.
        found: String,
    },
    /// The tokenizer has no chat template; give prompts as plain text.
    #[error("the tokenizer has no chat template")]
    NoChat,
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
}

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, TokenizerError> {
    let refused = |source| TokenizerError::Read {
        path: path.into(),
        source,
    };
    std::fs::read_to_string(path).map_err(refused)
}

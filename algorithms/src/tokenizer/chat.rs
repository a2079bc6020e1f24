//! Chat templates, which turn a conversation into one text.

use serde::{Deserialize, Serialize};

use super::error::TokenizerError;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// The text of the turn.
    pub content: String,
}

/// The speaker of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions that stand above the conversation.
    System,
    /// The person, or the task.
    User,
    /// The model.
    Assistant,
}

/// A chat template that is built in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChatTemplate {
    /// `<|im_start|>role\ncontent<|im_end|>\n` per turn.
    ChatMl {
        /// The system turn of conversations that do not begin with one.
        default_system: Option<String>,
    },
    /// Any other template. Rendering it fails; put one of the others in its place if you know that
    /// the model was trained with it.
    Unknown {
        /// The template, in Jinja.
        template: String,
    },
}

/// A piece of a rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A special token, by its name.
    Special(&'static str),
    /// Text to be taken literally.
    Text(String),
}

impl Message {
    /// A turn of the person or the task.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self {
            role: Role::User,
            content: content.into(),
        }
    }

    /// A turn of the model.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self {
            role: Role::Assistant,
            content: content.into(),
        }
    }

    /// Instructions above the conversation.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self {
            role: Role::System,
            content: content.into(),
        }
    }
}

impl Role {
    /// The name that templates use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

impl ChatTemplate {
    /// Recognises a Jinja template by its text: ChatML with or without a default system turn.
    /// Templates are not executed.
    #[must_use]
    pub fn recognise(template: &str) -> Self {
        match default_system(template) {
            Some(default_system) => Self::ChatMl { default_system },
            None => Self::Unknown {
                template: template.into(),
            },
        }
    }

    /// The template in Jinja, as Hugging Face's `tokenizer_config.json` holds it.
    #[must_use]
    pub fn jinja(&self) -> String {
        match self {
            Self::ChatMl {
                default_system: None,
            } => format!("{LOOP}{CHATML_TURN}"),
            Self::ChatMl {
                default_system: Some(system),
            } => {
                format!("{LOOP}{SYSTEM_BEFORE}{system}{SYSTEM_AFTER}{CHATML_TURN}")
            }
            Self::Unknown { template } => template.clone(),
        }
    }

    /// The whole conversation as one text that ends where the model's turn begins. For people to
    /// read; encode with [`encode_chat`](super::Tokenizer::encode_chat).
    ///
    /// # Errors
    /// [`TokenizerError::UnknownTemplate`] for a template that is not built in.
    pub fn render(&self, messages: &[Message]) -> Result<String, TokenizerError> {
        let text = |piece| match piece {
            Piece::Special(name) => name.to_owned(),
            Piece::Text(text) => text,
        };
        Ok(self.pieces(messages)?.into_iter().map(text).collect())
    }

    pub(super) fn pieces(&self, messages: &[Message]) -> Result<Vec<Piece>, TokenizerError> {
        let default_system = match self {
            Self::ChatMl { default_system } => default_system,
            Self::Unknown { template } => {
                return Err(TokenizerError::UnknownTemplate {
                    template: template.clone(),
                });
            }
        };
        let mut pieces = Vec::with_capacity(4 * messages.len() + 6);
        let mut turn = |role: Role, content: &str| {
            pieces.extend([
                Piece::Special(START),
                Piece::Text(format!("{}\n{content}", role.as_str())),
                Piece::Special(END),
                Piece::Text("\n".into()),
            ]);
        };
        if let (Some(system), Some(first)) = (default_system, messages.first())
            && first.role != Role::System
        {
            turn(Role::System, system);
        }
        for message in messages {
            turn(message.role, &message.content);
        }
        pieces.extend([
            Piece::Special(START),
            Piece::Text(format!("{}\n", Role::Assistant.as_str())),
        ]);
        Ok(pieces)
    }
}

/// The default system turn of a ChatML template, or `None` when the template is another.
fn default_system(template: &str) -> Option<Option<String>> {
    let text = template.replace("\\n", "\n");
    let body = text.trim().strip_prefix(LOOP)?.strip_suffix(CHATML_TURN)?;
    if body.is_empty() {
        return Some(None);
    }
    let system = body
        .strip_prefix(SYSTEM_BEFORE)?
        .strip_suffix(SYSTEM_AFTER)?;
    (!system.contains(['{', '}', '\''])).then(|| Some(system.into()))
}

const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
const LOOP: &str = "{% for message in messages %}";
const SYSTEM_BEFORE: &str = "{% if loop.first and messages[0]['role'] != 'system' %}{{ \
                                     '<|im_start|>system\n";
const SYSTEM_AFTER: &str = "<|im_end|>\n' }}{% endif %}";
const CHATML_TURN: &str = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + \
                           '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
                           '<|im_start|>assistant\n' }}{% endif %}";

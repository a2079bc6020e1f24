//! Chat templates, which turn a conversation into one text: Jinja, as `transformers` renders it.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, OnceLock},
};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
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

/// A chat template in Jinja.
///
/// Templates see what they see in `transformers`: `messages`, `add_generation_prompt`, `bos_token`
/// and its like, `raise_exception`, `tojson`, methods of Python's strings and dictionaries, loop
/// controls. `tools` and `documents` are none. `strftime_now` is not defined, so that a prompt does not
/// depend on the day: templates that ask for it have a date of their own, or fail.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    file: String,
    text: String,
    compiled: Arc<OnceLock<Result<Environment<'static>, String>>>,
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
    /// A template out of a file, which errors name.
    #[must_use]
    pub fn new(file: &str, text: &str) -> Self {
        Self {
            file: file.to_owned(),
            text: text.to_owned(),
            compiled: Arc::default(),
        }
    }

    /// The file that it was read from.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The template, in Jinja.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole conversation as one text that ends where the model's turn begins. For people to
    /// read; encode with [`encode_chat`](super::Tokenizer::encode_chat).
    ///
    /// # Errors
    /// [`TokenizerError::Template`]: it is no Jinja, or refuses this conversation.
    pub fn render(&self, messages: &[Message]) -> Result<String, TokenizerError> {
        self.render_with(messages, &BTreeMap::new())
    }

    /// Renders with special tokens by name.
    pub(super) fn render_with(
        &self,
        messages: &[Message],
        named: &BTreeMap<String, String>,
    ) -> Result<String, TokenizerError> {
        let failed = |detail: String| TokenizerError::Template {
            file: self.file.clone(),
            detail,
        };
        let compiled = self
            .compiled
            .get_or_init(|| compile(transparent(&self.text)).map_err(|error| told(&error)));
        let environment = compiled.as_ref().map_err(|error| failed(error.clone()))?;
        let turn = |message: &Message| {
            context! { role => message.role.as_str(), content => message.content.as_str() }
        };
        let messages: Vec<Value> = messages.iter().map(turn).collect();
        let named = named
            .iter()
            .map(|(name, token)| (name.as_str(), token.as_str()));
        let values = context! {
            messages, tools => (), documents => (), add_generation_prompt => true,
            ..Value::from_pairs(named),
        };
        let template = environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(values));
        rendered.map_err(|error| failed(told(&error)))
    }
}

impl PartialEq for ChatTemplate {
    fn eq(&self, other: &Self) -> bool {
        (&self.file, &self.text) == (&other.file, &other.text)
    }
}

impl Eq for ChatTemplate {}

fn compile(text: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |text: String| -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_filter(
        "tojson",
        |value: &Value, arguments: minijinja::value::Kwargs| to_json(value, &arguments),
    );
    // Prompts of no template come near it; one that counts for ever ends.
    environment.set_fuel(Some(FUEL));
    environment.add_template_owned(NAME, text)?;
    Ok(environment)
}

/// An error and its causes on one line.
fn told(error: &Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        let _ = write!(text, "{}{error}", if text.is_empty() { "" } else { ": " });
        next = error.source();
    }
    text
}

/// Python's `json.dumps` without escapes for other alphabets: separators with a space behind them.
fn to_json(value: &Value, arguments: &minijinja::value::Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    arguments.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut bytes = vec![];
    let spaces = " ".repeat(indent.unwrap_or(0));
    let written = match indent {
        Some(_) => {
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(
                &mut bytes, pretty,
            ))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut bytes, Spaced,
        )),
    };
    written.map_err(failed)?;
    Ok(Value::from_safe_string(
        String::from_utf8_lossy(&bytes).into_owned(),
    ))
}

/// Separators as Python has them.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
    ) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

/// A template whose `generation` blocks, which mark what the model is to learn and print what is in
/// them, are blocks that Jinja knows.
fn transparent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{%") {
        let Some(length) = rest[at..].find("%}") else {
            break;
        };
        let (before, tag) = (&rest[..at], &rest[at + 2..at + length]);
        let (left, right) = (tag.starts_with(['-', '+']), tag.ends_with(['-', '+']));
        let inner = tag.trim_matches(['-', '+']).trim();
        let word = match inner {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => {
                out.push_str(&rest[..at + length + 2]);
                rest = &rest[at + length + 2..];
                continue;
            }
        };
        let sign = |there: bool, sign: Option<char>| {
            sign.filter(|_| there).map_or(String::new(), String::from)
        };
        out.push_str(before);
        let (first, last) = (tag.chars().next(), tag.chars().last());
        let _ = write!(
            out,
            "{{%{} {word} {}%}}",
            sign(left, first),
            sign(right, last)
        );
        rest = &rest[at + length + 2..];
    }
    out.push_str(rest);
    out
}

/// Messages in which no text can pass for a special token.
pub(super) struct Guard {
    pub(super) messages: Vec<Message>,
    /// The character inside of texts that look like special tokens, where there are any.
    pub(super) mark: Option<char>,
}

impl Guard {
    /// Puts a mark, which nothing else has, into every text that looks like a special token.
    pub(super) fn of(messages: &[Message], specials: &[String], template: &ChatTemplate) -> Self {
        let mut messages = messages.to_vec();
        let looks = |text: &str| {
            let mut specials = specials.iter().filter(|name| !name.is_empty());
            specials.any(|name| text.contains(name.as_str()))
        };
        if !messages.iter().any(|message| looks(&message.content)) {
            return Self {
                messages,
                mark: None,
            };
        }
        // Characters that Unicode keeps for such uses.
        let mark = ('\u{f0000}'..='\u{ffffd}').find(|mark| {
            let mut texts = messages.iter().map(|message| &message.content);
            !template.text.contains(*mark) && !texts.any(|text| text.contains(*mark))
        });
        let mark = mark.unwrap_or(char::REPLACEMENT_CHARACTER);
        for message in &mut messages {
            while let Some((at, name)) = specials
                .iter()
                .filter_map(|name| Some((message.content.find(name.as_str())?, name)))
                .find(|(_, name)| !name.is_empty())
            {
                let first = name.chars().next().map_or(0, char::len_utf8);
                message.content.insert(at + first, mark);
            }
        }
        Self {
            messages,
            mark: Some(mark),
        }
    }
}

const NAME: &str = "chat";
/// Instructions of one rendering.
const FUEL: u64 = 50_000_000;

//! Chat templates, which turn a conversation into one text: Jinja, as `transformers` renders it.

use std::{
    collections::BTreeMap,
    fmt::Write,
    io,
    sync::{Arc, OnceLock},
};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, context, escape_formatter};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter};

use super::error::TokenizerError;
use crate::json::OrderedJson as Json;

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
/// controls, `tools` where a conversation has some. `documents` are none. `strftime_now` is not defined, so that a prompt does not
/// depend on the day: templates that ask for it have a date of their own, or fail.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    file: String,
    text: String,
    compiled: Arc<OnceLock<Result<Environment<'static>, String>>>,
}

impl Message {
    /// Turns as templates see them.
    pub(super) fn values(messages: &[Self]) -> Vec<Json> {
        let turn = |it: &Self| {
            let fields = [("role", it.role.as_str()), ("content", it.content.as_str())];
            Json::Object(
                fields
                    .map(|(name, text)| (name.into(), Json::Text(text.into())))
                    .into(),
            )
        };
        messages.iter().map(turn).collect()
    }

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
        let messages = Message::values(messages);
        self.render_with(&Rendering::next_turn(&messages), &BTreeMap::new())
    }

    /// Returns true where the template marks what the model is to learn, with `generation` blocks.
    pub(super) fn marks_replies(&self) -> bool {
        transparent(&self.text) != self.text
    }

    /// Renders with special tokens by name.
    pub(super) fn render_with(
        &self,
        asked: &Rendering<'_>,
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
        let messages: Vec<Value> = asked.messages.iter().map(seen).collect();
        let tools = asked.tools.map(seen);
        let marks = asked.marks.map(String::from_iter);
        let named = named
            .iter()
            .map(|(name, token)| (name.as_str(), token.as_str()));
        let values = context! {
            messages, tools, documents => (), add_generation_prompt => asked.opens_turn,
            generation_marks => marks,
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
    environment.add_function("generation", generation);
    environment.set_formatter(print);
    environment.add_filter("tojson", |value: &Value, arguments: Kwargs| {
        to_json(value, &arguments)
    });
    // Prompts of no template come near it; one that counts for ever ends.
    environment.set_fuel(Some(FUEL));
    environment.add_template_owned(NAME, text)?;
    Ok(environment)
}

/// A value as templates see it.
fn seen(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::Text(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(seen).collect::<Vec<_>>()),
        Json::Object(fields) => {
            let fields = fields.iter();
            Value::from_pairs(fields.map(|(name, value)| (name.as_str(), seen(value))))
        }
    }
}

/// The text of a `generation` block, between marks where some are asked for.
#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what a function of templates is given"
)]
fn generation(state: &mut State<'_, '_>, arguments: Kwargs) -> Result<Value, Error> {
    let caller: Value = arguments.get("caller")?;
    let text = caller.call(state, &[])?;
    let marks = state.lookup("generation_marks");
    let marks = marks.as_ref().and_then(Value::as_str).unwrap_or_default();
    let mut marks = marks.chars();
    Ok(match (marks.next(), marks.next()) {
        (Some(begin), Some(end)) => Value::from_safe_string(format!("{begin}{text}{end}")),
        _ => text,
    })
}

/// Prints a value as Python does.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool if value.is_true() => "True".to_owned(),
        ValueKind::Bool => "False".to_owned(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => python(number),
            Err(_) => return escape_formatter(out, state, value),
        },
        _ => return escape_formatter(out, state, value),
    };
    out.write_str(&text).map_err(Error::from)
}

/// A number as Python writes it.
fn python(number: f64) -> String {
    let scientific = format!("{number:e}");
    let parts = scientific.split_once('e');
    let parts = parts.and_then(|(digits, power)| Some((digits, power.parse::<i32>().ok()?)));
    match parts {
        Some((digits, power)) if !(-4..16).contains(&power) => {
            let sign = if power < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", power.abs())
        }
        Some(_) => format!("{number:?}"),
        None => scientific.to_lowercase(),
    }
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
fn to_json(value: &Value, arguments: &Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    arguments.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut bytes = vec![];
    let spaces = " ".repeat(indent.unwrap_or(0));
    let written = match indent {
        Some(_) => {
            let pretty = Lines(PrettyFormatter::with_indent(spaces.as_bytes()));
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

/// Separators and numbers as Python has them.
struct Spaced;

impl Formatter for Spaced {
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, number: f64) -> io::Result<()> {
        out.write_all(python(number).as_bytes())
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// The same with indentation.
struct Lines<'a>(PrettyFormatter<'a>);

/// Hands on what indentation has to do with.
macro_rules! indented {
    ($($name:ident $(, $first:ident)?;)*) => {
        $(fn $name<W: ?Sized + io::Write>(
            &mut self,
            out: &mut W,
            $($first: bool,)?
        ) -> io::Result<()> {
            self.0.$name(out $(, $first)?)
        })*
    };
}

impl Formatter for Lines<'_> {
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, number: f64) -> io::Result<()> {
        out.write_all(python(number).as_bytes())
    }

    indented! {
        begin_array;
        end_array;
        begin_array_value, first;
        end_array_value;
        begin_object;
        end_object;
        begin_object_key, first;
        begin_object_value;
        end_object_value;
    }
}

/// A template whose `generation` blocks, which mark what the model is to learn and print what is in
/// them, are calls of [`generation`], which Jinja knows.
fn transparent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{%") {
        // A comment is as it is, whatever stands in it.
        if let Some(comment) = rest[..at].find("{#")
            && let Some(length) = rest[comment..].find("#}")
        {
            let end = comment + length + 2;
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let Some(length) = rest[at..].find("%}") else {
            break;
        };
        let (before, tag) = (&rest[..at], &rest[at + 2..at + length]);
        let (left, right) = (tag.starts_with(['-', '+']), tag.ends_with(['-', '+']));
        let inner = tag.trim_matches(['-', '+']).trim();
        let word = match inner {
            "generation" => "call generation()",
            "endgeneration" => "endcall",
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

/// A rendering that is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rendering<'a> {
    pub(super) messages: &'a [Json],
    pub(super) tools: Option<&'a Json>,
    /// True when it ends where the model's turn begins.
    pub(super) opens_turn: bool,
    /// What is put around `generation` blocks.
    pub(super) marks: Option<[char; 2]>,
}

impl<'a> Rendering<'a> {
    /// Up to where the model's next turn begins.
    pub(super) fn next_turn(messages: &'a [Json]) -> Self {
        Self {
            messages,
            tools: None,
            opens_turn: true,
            marks: None,
        }
    }
}

/// Messages in which no text can pass for a special token.
pub(super) struct Guard {
    pub(super) messages: Vec<Json>,
    pub(super) tools: Option<Json>,
    /// The character inside of texts that look like special tokens, where there are any.
    pub(super) mark: Option<char>,
    /// Two more that nothing has.
    pub(super) marks: [char; 2],
}

impl Guard {
    /// Puts a mark, which nothing else has, into every text that looks like a special token.
    pub(super) fn of(
        messages: &[Json],
        tools: Option<&Json>,
        specials: &[String],
        template: &ChatTemplate,
    ) -> Self {
        let (mut messages, mut tools) = (messages.to_vec(), tools.cloned());
        let mut all = String::new();
        messages
            .iter()
            .chain(&tools)
            .for_each(|it| gather(it, &mut all));
        // Characters that Unicode keeps for such uses.
        let free = ('\u{f0000}'..='\u{ffffd}')
            .filter(|mark| !template.text.contains(*mark) && !all.contains(*mark));
        let mut free = free.chain(std::iter::repeat(char::REPLACEMENT_CHARACTER));
        let mut next = || free.next().unwrap_or(char::REPLACEMENT_CHARACTER);
        let (mark, marks) = (next(), [next(), next()]);
        let mut looks = specials.iter().filter(|name| !name.is_empty());
        let looks = looks.any(|name| all.contains(name.as_str()));
        if looks {
            let values = messages.iter_mut().chain(&mut tools);
            values.for_each(|value| set_apart(value, specials, mark));
        }
        Self {
            messages,
            tools,
            mark: looks.then_some(mark),
            marks,
        }
    }
}

/// All texts in a value, one behind the other with something between them.
fn gather(value: &Json, all: &mut String) {
    match value {
        Json::Text(text) => {
            all.push_str(text);
            all.push('\n');
        }
        Json::Array(items) => items.iter().for_each(|item| gather(item, all)),
        Json::Object(fields) => {
            for (key, value) in fields {
                all.push_str(key);
                all.push('\n');
                gather(value, all);
            }
        }
        _ => {}
    }
}

/// Puts the mark into all texts that look like special tokens, keys of objects among them.
fn set_apart(value: &mut Json, specials: &[String], mark: char) {
    match value {
        Json::Text(text) => set_text_apart(text, specials, mark),
        Json::Array(items) => items
            .iter_mut()
            .for_each(|item| set_apart(item, specials, mark)),
        Json::Object(fields) => {
            for (key, value) in fields {
                set_text_apart(key, specials, mark);
                set_apart(value, specials, mark);
            }
        }
        _ => {}
    }
}

fn set_text_apart(text: &mut String, specials: &[String], mark: char) {
    let mut apart = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let mut looks = specials.iter().filter(|name| !name.is_empty());
        let looks = looks.any(|name| rest.starts_with(name.as_str()));
        apart.push(first);
        if looks {
            apart.push(mark);
        }
        rest = &rest[first.len_utf8()..];
    }
    *text = apart;
}

const NAME: &str = "chat";
/// Instructions of one rendering.
const FUEL: u64 = 50_000_000;

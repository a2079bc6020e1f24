//! Conversations to learn from: turns as data sets have them, and which of their tokens are learnt.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::json::OrderedJson as Json;

/// A conversation as templates see it: messages, and the tools that the model is told of.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    messages: Vec<Json>,
    tools: Option<Json>,
}

/// The turns of a conversation that are learnt; the others are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearntTurns {
    /// Those of the model: what stands in the template's `generation` blocks. Of a template without
    /// these, from where a turn is opened to the token that ends it.
    #[default]
    Replies,
    /// The last one of the model.
    Last,
    /// All, and what the template puts between them.
    All,
}

/// Tokens, and which of them are learnt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskedTokens {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Places of those that are learnt: runs in their order, none empty, none touching another.
    pub learnt: Vec<Range<usize>>,
}

impl Conversation {
    /// Takes messages as data sets have them: an array of objects with `role` and `content`, and
    /// whatever else templates read (`tool_calls`, `name`), or with `from` and `value`, as ShareGPT
    /// has them. `tools` are an array of what a function is in JSON schema.
    ///
    /// # Errors
    /// What is no conversation, in words: no array, no message, a message without a role or with a
    /// content that is neither text nor parts.
    pub fn new(messages: Json, tools: Option<Json>) -> Result<Self, String> {
        let messages = match by_rows(messages) {
            Json::Array(messages) => messages,
            other => return Err(format!("messages are {} and no array", other.kind())),
        };
        if messages.is_empty() {
            return Err("there are no messages".to_owned());
        }
        let messages = messages.into_iter().enumerate();
        let messages: Result<Vec<Json>, String> = messages
            .map(|(number, message)| turn(number + 1, message))
            .collect();
        let tools = match tools {
            None | Some(Json::Null) => None,
            Some(Json::Array(tools)) if tools.is_empty() => None,
            Some(tools @ Json::Array(_)) => Some(tools),
            Some(other) => return Err(format!("tools are {} and no array", other.kind())),
        };
        Ok(Self {
            messages: messages?,
            tools,
        })
    }

    pub(super) fn messages(&self) -> &[Json] {
        &self.messages
    }

    pub(super) fn tools(&self) -> Option<&Json> {
        self.tools.as_ref()
    }

    /// Numbers of the turns of the model that are learnt.
    pub(super) fn replies(&self, learnt: LearntTurns) -> Vec<usize> {
        let turns = self.messages.iter().enumerate();
        let own =
            turns.filter(|(_, message)| message.get("role").and_then(Json::as_text) == Some(MODEL));
        let mut own: Vec<usize> = own.map(|(number, _)| number).collect();
        if learnt == LearntTurns::Last {
            own.drain(..own.len().saturating_sub(1));
        }
        own
    }
}

/// Messages whose fields are arrays, each of one field of all messages, as `datasets` stores sequences.
fn by_rows(messages: Json) -> Json {
    let Json::Object(fields) = &messages else {
        return messages;
    };
    let columns = fields.iter().map(|(name, values)| match values {
        Json::Array(values) => Some((name, values)),
        _ => None,
    });
    let Some(columns) = columns.collect::<Option<Vec<_>>>() else {
        return messages;
    };
    let rows = columns.first().map_or(0, |(_, values)| values.len());
    if rows == 0 || columns.iter().any(|(_, values)| values.len() != rows) {
        return messages;
    }
    let row = |at: usize| {
        let fields = columns.iter();
        Json::Object(
            fields
                .map(|(name, values)| ((*name).clone(), values[at].clone()))
                .collect(),
        )
    };
    Json::Array((0..rows).map(row).collect())
}

/// The role of the model.
const MODEL: &str = "assistant";

/// A message as templates see it.
fn turn(number: usize, message: Json) -> Result<Json, String> {
    let Json::Object(mut fields) = message else {
        let kind = message.kind();
        return Err(format!("message {number} is {kind} and no object"));
    };
    if !fields.iter().any(|it| it.0 == "role") {
        for (name, value) in &mut fields {
            match name.as_str() {
                "from" => {
                    "role".clone_into(name);
                    *value = role(number, value)?;
                }
                "value" => "content".clone_into(name),
                _ => {}
            }
        }
    }
    // Columns of tables have all fields of all messages.
    fields.retain(|(_, value)| *value != Json::Null);
    let message = Json::Object(fields);
    let role = message.get("role").and_then(Json::as_text);
    if role.is_none_or(|role| role.trim().is_empty()) {
        return Err(format!("message {number} has no role"));
    }
    let calls = message.get("tool_calls");
    let calls = calls.is_some_and(|calls| !matches!(calls, Json::Array(calls) if calls.is_empty()));
    match message.get("content") {
        Some(Json::Text(_) | Json::Array(_)) => {}
        None if calls => {}
        None => return Err(format!("message {number} has no content")),
        Some(other) => {
            let kind = other.kind();
            return Err(format!("the content of message {number} is {kind}"));
        }
    }
    Ok(message)
}

/// The role that ShareGPT calls so.
fn role(number: usize, from: &Json) -> Result<Json, String> {
    let role = match from.as_text() {
        Some("human" | "user") => "user",
        Some("gpt" | "assistant" | "model" | "chatgpt" | "bing") => MODEL,
        Some("system") => "system",
        Some("tool" | "observation" | "function_response") => "tool",
        Some(other) => {
            return Err(format!(
                "message {number} is from `{other}`, which is no role"
            ));
        }
        None => return Err(format!("message {number} has no role")),
    };
    Ok(Json::Text(role.into()))
}

impl MaskedTokens {
    /// Tokens with the bytes that each stands for; those are learnt of which a byte lies in a range,
    /// and all between the first and the last of a range.
    pub(super) fn of(placed: Vec<(u32, Range<usize>)>, ranges: &[Range<usize>]) -> Self {
        let mut learnt: Vec<Range<usize>> = vec![];
        let mut next = 0;
        for range in ranges {
            let within = |own: &Range<usize>| own.start < range.end && own.end > range.start;
            let from = |at: &usize| placed.get(*at).is_some_and(|it| it.1.start < range.end);
            // Tokens stand in the order of their bytes; some have none.
            let own = (next..placed.len()).take_while(from);
            let mut own = own.filter(|at| within(&placed[*at].1));
            let Some(first) = own.next() else {
                continue;
            };
            let last = own.last().unwrap_or(first);
            // A token may be of two ranges.
            next = last;
            match learnt.last_mut() {
                Some(before) if before.end >= first => before.end = before.end.max(last + 1),
                _ => learnt.push(first..last + 1),
            }
        }
        Self {
            tokens: placed.into_iter().map(|(token, _)| token).collect(),
            learnt,
        }
    }
}

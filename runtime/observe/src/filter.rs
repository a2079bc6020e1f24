//! The language in which people choose actors: words that must all hold.
//!
//! ```text
//! state:failed type:Rollout node:n2 mailbox>100 age>10s -system:yes "worker"
//! ```

use std::time::Duration;

use thiserror::Error;

use crate::actor::{Actor, State};
use crate::date::Date;

/// A filter, read from its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    negated: bool,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    /// A part of a text field; any of name, type and id without a key.
    Text(Text, String),
    Number(Number, Sign, f64),
    System(Option<bool>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Text {
    Any,
    State,
    Type,
    Node,
    Job,
    Name,
    Device,
    Process,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Mailbox,
    Rate,
    Restarts,
    /// Seconds that the present message takes.
    Age,
    Busy,
    Waiting,
    Failed,
    Received,
    Handled,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sign {
    More,
    Less,
    Same,
}

/// Why a filter cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{word}` in the filter: {why}")]
pub struct FilterError {
    word: String,
    why: &'static str,
}

const STATES: &str = "states are idle, busy, waiting, starting, restarting, stopped, failed";

const KEYS: &str = "keys are state: type: node: job: name: device: process: system: and mailbox> rate> \
                    restarts> age> busy> waiting> failed> received> handled>";

impl Filter {
    /// Reads it.
    ///
    /// # Errors
    /// A key that there is none of, or a number that is none.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let terms = words(text).into_iter().map(Term::parse);
        let terms = terms.collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// Returns true where an actor is chosen. Those of the system are not, unless the filter speaks
    /// of them.
    #[must_use]
    pub fn takes(&self, actor: &Actor, system: bool, now: Date) -> bool {
        let speaks = |term: &Term| matches!(term.test, Test::System(_));
        if system && !self.terms.iter().any(speaks) {
            return false;
        }
        let holds = |term: &Term| term.test.holds(actor, system, now) != term.negated;
        self.terms.iter().all(holds)
    }
}

/// Words, and what stands in quotes together, with whether the whole is quoted.
fn words(text: &str) -> Vec<(String, bool)> {
    let (mut words, mut word, mut quoted, mut inside) = (vec![], String::new(), false, false);
    for c in text.chars() {
        match c {
            '"' => {
                quoted |= word.is_empty();
                inside = !inside;
            }
            c if c.is_whitespace() && !inside => {
                if !word.is_empty() {
                    words.push((std::mem::take(&mut word), quoted));
                }
                quoted = false;
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push((word, quoted));
    }
    words
}

impl Term {
    fn parse((word, quoted): (String, bool)) -> Result<Self, FilterError> {
        let (negated, rest) = match word.strip_prefix('-') {
            Some(rest) if !rest.is_empty() => (true, rest),
            _ => (false, word.as_str()),
        };
        let error = |why| FilterError {
            word: word.clone(),
            why,
        };
        let test = match rest.find([':', '>', '<', '=']) {
            Some(at) if at > 0 && !quoted => {
                let (key, value) = (&rest[..at], &rest[at + 1..]);
                Test::keyed(key, &rest[at..=at], value).map_err(error)?
            }
            _ => Test::Text(Text::Any, rest.to_lowercase()),
        };
        Ok(Self { negated, test })
    }
}

impl Test {
    fn keyed(key: &str, sign: &str, value: &str) -> Result<Self, &'static str> {
        let text = match key {
            "state" => Some(Text::State),
            "type" => Some(Text::Type),
            "node" => Some(Text::Node),
            "job" => Some(Text::Job),
            "name" => Some(Text::Name),
            "device" => Some(Text::Device),
            "process" => Some(Text::Process),
            _ => None,
        };
        if let (Some(text), ":" | "=") = (text, sign) {
            let value = value.to_lowercase();
            if matches!(text, Text::State) && !State::ALL.iter().any(|it| it.word() == value) {
                return Err(STATES);
            }
            return Ok(Self::Text(text, value));
        }
        if key == "system" {
            return match value {
                "yes" => Ok(Self::System(Some(true))),
                "no" => Ok(Self::System(Some(false))),
                "any" => Ok(Self::System(None)),
                _ => Err("system: takes yes, no or any"),
            };
        }
        let number = match key {
            "mailbox" => Number::Mailbox,
            "rate" => Number::Rate,
            "restarts" => Number::Restarts,
            "age" => Number::Age,
            "busy" => Number::Busy,
            "waiting" => Number::Waiting,
            "failed" => Number::Failed,
            "received" => Number::Received,
            "handled" => Number::Handled,
            _ => return Err(KEYS),
        };
        let sign = match sign {
            ">" => Sign::More,
            "<" => Sign::Less,
            _ => Sign::Same,
        };
        let value = match number {
            Number::Age => seconds(value),
            _ => value.parse().ok().filter(|value: &f64| value.is_finite()),
        };
        let value = value.ok_or("this is no number; times end in ms, s, m or h")?;
        Ok(Self::Number(number, sign, value))
    }

    fn holds(&self, actor: &Actor, system: bool, now: Date) -> bool {
        match self {
            Self::System(which) => which.is_none_or(|which| which == system),
            Self::Text(text, part) => text.of(actor).iter().any(|it| match text {
                Text::State => it == part,
                Text::Job | Text::Node | Text::Device | Text::Process => {
                    has_number(&it.to_lowercase(), part)
                }
                _ => it.to_lowercase().contains(part),
            }),
            Self::Number(number, sign, than) => {
                let Some(value) = number.of(actor, now) else {
                    return false;
                };
                match sign {
                    Sign::More => value > *than,
                    Sign::Less => value < *than,
                    Sign::Same => (value - than).abs() < 1e-9,
                }
            }
        }
    }
}

impl Text {
    fn of(self, actor: &Actor) -> Vec<String> {
        let view = &actor.view;
        let name = actor.name.clone();
        match self {
            Self::Any => {
                let own = [actor.title(), view.actor.clone(), view.id.to_string()];
                own.into_iter().chain(name).collect()
            }
            Self::State => vec![actor.state.word().to_owned()],
            Self::Type => vec![view.actor.clone()],
            Self::Node => vec![actor.node.clone()],
            Self::Job => vec![actor.job.clone()],
            Self::Name => name.into_iter().collect(),
            Self::Device => {
                let devices = view.devices.iter();
                devices
                    .map(|device| format!("{}/{device}", actor.node))
                    .collect()
            }
            Self::Process => vec![view.process.to_string()],
        }
    }
}

impl Number {
    fn of(self, actor: &Actor, now: Date) -> Option<f64> {
        Some(match self {
            Self::Mailbox => f64::from(actor.view.queued),
            Self::Rate => actor.rate,
            Self::Restarts => f64::from(actor.restarts()),
            Self::Age => now.since(actor.running_since?).as_secs_f64(),
            Self::Busy => actor.busy,
            Self::Waiting => actor.waiting,
            Self::Failed => actor.view.failed as f64,
            Self::Received => actor.handled as f64 + f64::from(actor.view.queued),
            Self::Handled => actor.handled as f64,
        })
    }
}

/// `1500ms`, `10s`, `2m`, `1h`; seconds without a unit.
fn seconds(text: &str) -> Option<f64> {
    let at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let number: f64 = number.parse().ok()?;
    let unit = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * unit)
        .ok()
        .map(|it| it.as_secs_f64())
}

/// Returns true where a part is in a text, and a number at its end is whole there: `j1` is not in
/// `j12`.
fn has_number(text: &str, part: &str) -> bool {
    let digit = |it: Option<char>| it.is_some_and(|it| it.is_ascii_digit());
    let ends_in_number = digit(part.chars().last());
    text.match_indices(part).any(|(at, _)| {
        let next = text[at + part.len()..].chars().next();
        !(ends_in_number && digit(next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_at_the_end_is_a_whole_one() {
        for (text, part, is_in) in [
            ("default/j12.1", "j1", false),
            ("default/j1.12", "j1", true),
            ("node-10", "node-1", false),
            ("node-10", "node", true),
            ("vm/1", "vm/1", true),
            ("j11 j1", "j1", true),
        ] {
            assert_eq!(has_number(text, part), is_in, "{part} in {text}");
        }
    }

    #[test]
    fn words_and_quotes_are_told_apart() {
        let words = words(r#"a "b c"  node:"n 2""#);
        let words: Vec<_> = words.iter().map(|(word, _)| word.as_str()).collect();
        assert_eq!(words, ["a", "b c", "node:n 2"]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, part) in [
            ("speed>3", "keys are"),
            ("mailbox>many", "no number"),
            ("age>3 age>3d", "`age>3d`"),
            ("system:perhaps", "yes, no or any"),
            ("state:nope", "states are idle"),
            ("state>3", "keys are"),
        ] {
            let error = Filter::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for text in [
            "",
            "  ",
            "-",
            "\"a:b c\"",
            "worker",
            "-state:failed age>1.5h rate<3",
        ] {
            assert!(Filter::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        let told: Vec<_> = ["90", "1500ms", "2m", "1h"].map(seconds).into();
        assert_eq!(told, [Some(90.0), Some(1.5), Some(120.0), Some(3_600.0)]);
        assert_eq!(seconds("-3s"), None);
    }
}

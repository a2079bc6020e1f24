//! Signs: a state is always a sign, a word and a colour, so that it is told without colours too.

use odeon_client::inspect::ActorRow;
use ratatui::style::{Color, Modifier, Style};

/// The tone of a text: how much it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As the rest.
    #[default]
    Plain,
    /// Less than the rest.
    Dim,
    /// A heading.
    Strong,
    /// It goes well.
    Good,
    /// It works.
    Busy,
    /// It waits, or is worth a look.
    Waiting,
    /// It comes up.
    Starting,
    /// It does not work.
    Failed,
}

/// The use of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    /// They may.
    Some,
    /// Somebody does not want them, or cannot see them (`NO_COLOR`).
    None,
}

impl Tone {
    pub(crate) fn style(self, colours: Colours) -> Style {
        let style = match self {
            Self::Plain => Style::new(),
            Self::Dim => Style::new().add_modifier(Modifier::DIM),
            Self::Strong => Style::new().add_modifier(Modifier::BOLD),
            Self::Good => Style::new().fg(Color::Green),
            Self::Busy => Style::new().fg(Color::Cyan),
            Self::Waiting => Style::new().fg(Color::Yellow),
            Self::Starting => Style::new().fg(Color::Blue),
            Self::Failed => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        };
        match colours {
            Colours::Some => style,
            Colours::None => Style {
                fg: None,
                bg: None,
                ..style
            },
        }
    }
}

/// The sign and the tone of a state, by its word.
pub(crate) fn of(state: &str) -> (char, Tone) {
    match state {
        "idle" | "queued" => ('\u{25cb}', Tone::Dim),
        "busy" | "running" => ('\u{25b6}', Tone::Busy),
        "waiting" | "stopping" => ('\u{25d0}', Tone::Waiting),
        "starting" | "placing" => ('\u{25cc}', Tone::Starting),
        "restarting" => ('\u{21bb}', Tone::Starting),
        "stopped" | "gone" => ('\u{25a1}', Tone::Dim),
        "failed" | "lost" | "down" | "faulty" | "error" => ('\u{2717}', Tone::Failed),
        "up" | "ok" => ('\u{25cf}', Tone::Good),
        "succeeded" | "finished" => ('\u{2713}', Tone::Good),
        "suspect" | "warning" => ('!', Tone::Waiting),
        "draining" | "refused" | "halted" => ('\u{25d0}', Tone::Waiting),
        _ => ('\u{b7}', Tone::Plain),
    }
}

/// A state with its sign.
pub(crate) fn worded(state: &str) -> String {
    format!("{} {state}", of(state).0)
}

/// The sign of an event.
pub(crate) fn of_severity(severity: &str) -> char {
    match severity {
        "error" | "warning" => of(severity).0,
        _ => ' ',
    }
}

/// The name of an actor for people.
pub(crate) fn title(row: &ActorRow) -> String {
    match &row.name {
        Some(name) => name.clone(),
        None => {
            let serial = row.id.rsplit('.').next().unwrap_or(&row.id);
            format!("{} {serial}", row.r#type)
        }
    }
}

/// The work that an actor is at, and since when.
pub(crate) fn doing(row: &ActorRow) -> (String, Option<f64>) {
    if let Some(ended) = &row.ended {
        return (ended.sentence.clone(), Some(ended.at));
    }
    if let Some(wait) = &row.waits_on {
        let handles = row.current.as_ref().map(|it| format!("{}, ", it.message));
        let handles = handles.unwrap_or_default();
        let name = &wait.name;
        let what = match wait.how.as_str() {
            "place" => format!("waits for a place: {name}"),
            "room" => format!("{handles}waits for room at {name}"),
            _ => format!("{handles}waits for {name} to {}", wait.message),
        };
        return (what, Some(wait.since));
    }
    match &row.current {
        Some(current) => (current.message.clone(), Some(current.since)),
        None => (String::new(), None),
    }
}

//! The actor of the stories, and a record of what its handlers saw, over all lives in this thread.

use std::cell::RefCell;
use std::time::Duration;

use odeon::{
    Actor, Clock, Context, Failure, Handler, Incarnation, Limits, Message, Shape, Timestamp,
};
use serde::{Deserialize, Serialize};

thread_local!(static SEEN: RefCell<Vec<Event>> = const { RefCell::new(vec![]) });

/// An event in a life of the actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// This life begins.
    Started(Incarnation),
    /// A note is handled.
    Handled(Handled),
}

/// A note that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handled {
    pub(crate) sender: u64,
    pub(crate) number: u64,
    pub(crate) life: Incarnation,
    /// The life that it was meant for, or 0.
    pub(crate) fence: Incarnation,
    pub(crate) panics: bool,
    /// When its turn came.
    pub(crate) at: Timestamp,
}

fn record(event: Event) {
    SEEN.with_borrow_mut(|seen| seen.push(event));
}

/// Gives the record and begins a new one.
pub(crate) fn take() -> Vec<Event> {
    SEEN.take()
}

/// The notes of a record, in the order in which they were handled.
pub(crate) fn notes(events: &[Event]) -> impl Iterator<Item = &Handled> {
    events.iter().filter_map(|event| match event {
        Event::Handled(handled) => Some(handled),
        Event::Started(_) => None,
    })
}

/// The life that began last.
pub(crate) fn last_life() -> Incarnation {
    let life = |event: &Event| match event {
        Event::Started(life) => Some(*life),
        Event::Handled(_) => None,
    };
    let last = SEEN.with_borrow(|seen| seen.iter().rev().find_map(life));
    last.unwrap_or(1)
}

/// The act that a note asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Act {
    Answer,
    /// An answer that is longer than a link carries.
    AnswerAtLength,
    Panic,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) sender: u64,
    pub(crate) number: u64,
    /// The life that it is meant for, or 0.
    pub(crate) fence: Incarnation,
    pub(crate) act: Act,
}

impl Note {
    /// The encoding's length.
    pub(crate) const BYTES: usize = 24;

    pub(crate) const fn new(sender: u64, number: u64, act: Act) -> Self {
        Self {
            sender,
            number,
            fence: 0,
            act,
        }
    }
}

impl Shape for Note {
    const SHAPE: u64 = 11;
}
impl Message for Note {
    const NAME: &'static str = "Note";
    type Reply = Vec<u64>;
}

/// The largest message in a story.
const MESSAGE_BYTES: usize = 2 << 10;

/// Nodes that soon notice a loss.
pub(crate) fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.heartbeat_interval = Duration::from_millis(100);
    limits.connection_idle = Duration::from_millis(300);
    limits.link_idle_timeout = Duration::from_millis(900);
    limits
}

/// The same, where room is short.
pub(crate) fn narrow() -> Limits {
    let mut limits = limits();
    limits.message_bytes_max = MESSAGE_BYTES;
    limits.mailbox_messages_max = 3;
    limits.credit_messages = 4;
    limits.backlog_messages_max = 6;
    limits
}

pub(crate) struct Recorder;
impl Actor for Recorder {
    const NAME: &'static str = "test.Recorder";
    type Args = ();
    async fn start((): (), cx: &mut Context<Self>) -> Result<Self, Failure> {
        record(Event::Started(cx.incarnation()));
        Ok(Self)
    }
}
impl Handler<Note> for Recorder {
    async fn handle(&mut self, note: Note, cx: &mut Context<Self>) -> Vec<u64> {
        record(Event::Handled(Handled {
            sender: note.sender,
            number: note.number,
            life: cx.incarnation(),
            fence: note.fence,
            panics: note.act == Act::Panic,
            at: Clock::now(),
        }));
        Clock::sleep(Duration::from_micros(note.number % 7 * 100)).await;
        match note.act {
            Act::Answer => vec![note.number],
            Act::AnswerAtLength => vec![note.number; MESSAGE_BYTES / size_of::<u64>()],
            // A panic that prints nothing.
            Act::Panic => std::panic::resume_unwind(Box::new("as ordered")),
        }
    }
}
odeon::register!(Recorder: Note);

/// Small and good enough to choose faults with.
pub(crate) struct Dice(pub(crate) u64);
impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    /// A time shorter than so many milliseconds.
    pub(crate) fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.roll(below))
    }
}

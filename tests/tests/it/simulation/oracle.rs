//! The oracle: what the senders were told, held against what the handlers saw; and a tally, to see
//! that the stories are worth telling.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use odeon::{Effect, Timestamp};

use super::recorder::{Event, Handled, notes};
use super::story::Trouble;

/// A promise that was broken, by its number in SEMANTICS.md, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) promise: u32,
    pub(crate) how: String,
}

impl Broken {
    pub(crate) fn new(promise: u32, how: impl Into<String>) -> Self {
        let how = how.into();
        Self { promise, how }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}: {}", self.promise, self.how)
    }
}

/// A kind of event that a story is told for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    // Asks.
    AskAnswered,
    /// It was refused, and had no effect.
    AskRefused,
    /// Its handler ran, and only the answer is missing.
    AnswerTooLong,
    /// Its process or the link to it was lost.
    AskLost,
    /// Its deadline passed, and it was handled all the same.
    AskLate,
    /// Its deadline passed, and nobody handled it.
    AskLateNotRun,
    /// It was dropped, and handled all the same.
    AskDropped,
    /// It was dropped, and nobody handled it.
    AskDroppedNotRun,
    /// It was meant for one life, which answered.
    FencedAnswered,
    /// It met another life.
    FencedRefused,
    /// It was for an actor that has ended.
    AskOfTheDead,
    // Tells.
    TellHandled,
    /// It came back, since there was no room or no way.
    TellRefused,
    /// It was accepted, and nobody handled it.
    TellLost,
    /// The same, where it was meant for one life.
    FencedTellDropped,
    DeadLetter,
    // Both.
    /// A sender waited for room.
    WaitedForRoom,
    /// A note came after another of its sender, in their order.
    CameInOrder,
    /// The same in another life than that other.
    CameInOrderToNextLife,
    // The network.
    Partition,
    Snap,
    ShortCut,
    LongCut,
    FrameDamaged,
    FrameSentAgain,
    LinkBegun,
    LinkBegunAgain,
    /// It went on over another connection.
    LinkWentOn,
    // Actors and their processes.
    ProcessKilled,
    HandlerPanicked,
    Restart,
    /// A life that was over before it had begun, with the process that it was meant for.
    LifeSkipped,
}

use Happening as H;

/// Happenings that must come in some story, whatever the trouble.
const ALWAYS: &[Happening] = &[
    H::AskAnswered,
    H::AskRefused,
    H::AnswerTooLong,
    H::AskLate,
    H::AskLateNotRun,
    H::AskDropped,
    H::AskDroppedNotRun,
    H::FencedAnswered,
    H::FencedRefused,
    H::FencedTellDropped,
    H::TellHandled,
    H::TellRefused,
    H::DeadLetter,
    H::WaitedForRoom,
    H::CameInOrder,
    H::Partition,
    H::Snap,
    H::ShortCut,
    H::FrameSentAgain,
    H::LinkBegun,
    H::LinkWentOn,
];

/// Happenings that must come too where processes, handlers and links are lost.
const LOSSES: &[Happening] = &[
    H::AskLost,
    H::AskOfTheDead,
    H::TellLost,
    H::CameInOrderToNextLife,
    H::LongCut,
    H::FrameDamaged,
    H::LinkBegunAgain,
    H::ProcessKilled,
    H::HandlerPanicked,
    H::Restart,
    H::LifeSkipped,
];

/// The number of times that each of it happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(BTreeMap<Happening, u64>);

impl Tally {
    pub(crate) fn note(&mut self, what: Happening) {
        self.note_times(what, 1);
    }

    pub(crate) fn note_times(&mut self, what: Happening, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub(crate) fn times(&self, what: Happening) -> u64 {
        self.0.get(&what).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.note_times(*what, *times);
        }
    }

    /// Happenings that must come and never did.
    pub(crate) fn missing(&self, trouble: Trouble) -> Vec<Happening> {
        let losses = match trouble {
            Trouble::Anything => LOSSES,
            Trouble::Network => &[],
        };
        let all = ALWAYS.iter().chain(losses).copied();
        all.filter(|what| self.times(*what) == 0).collect()
    }
}

/// The end of a request, as its sender was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    /// A tell was accepted.
    Accepted,
    Failed(Effect),
    /// Its deadline passed.
    Late,
    /// Its sender dropped it.
    Dropped,
}

/// A request and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) sender: u64,
    pub(crate) number: u64,
    pub(crate) fenced: bool,
    pub(crate) end: End,
    pub(crate) sent: Timestamp,
    pub(crate) deadline: Timestamp,
    pub(crate) ended: Timestamp,
}

/// All that is known of a story once it is over.
pub(crate) struct Evidence {
    pub(crate) trouble: Trouble,
    /// The actor lived in the process of node 0 itself.
    pub(crate) at_home: bool,
    pub(crate) sent: Vec<Sent>,
    pub(crate) seen: Vec<Event>,
    /// When the network was not quiet.
    pub(crate) unquiet: Vec<(Timestamp, Timestamp)>,
    pub(crate) dead_letters: u64,
    pub(crate) tally: Tally,
    pub(crate) broken: Vec<Broken>,
}

/// The longest time that a message or the word of its withdrawal is on its way while the network is
/// quiet: two ways, on each of which it may wait for what left before it.
pub(crate) const TRAVEL: Duration = Duration::from_millis(25);

impl Evidence {
    fn broken(&mut self, promise: u32, how: impl Into<String>) {
        self.broken.push(Broken::new(promise, how));
    }

    /// Holds all of it against the promises, and counts.
    pub(crate) fn judge(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        let sent = std::mem::take(&mut self.sent);
        let mut handled = HashMap::new();
        self.judge_order(&seen, &mut handled);
        self.judge_lives(&seen);
        for sent in &sent {
            self.judge_end(sent, handled.get(&(sent.sender, sent.number)));
        }
        self.judge_dead_letters(&sent, &seen, &handled);
        (self.seen, self.sent) = (seen, sent);
    }

    fn judge_order(&mut self, seen: &[Event], handled: &mut HashMap<(u64, u64), Handled>) {
        let mut last: HashMap<u64, Handled> = HashMap::new();
        for note in notes(seen) {
            let (sender, number) = (note.sender, note.number);
            if handled.insert((sender, number), *note).is_some() {
                self.broken(2, format!("{sender}/{number} is handled twice"));
            }
            if note.fence != 0 && note.fence != note.life {
                let (fence, life) = (note.fence, note.life);
                self.broken(
                    9,
                    format!("life {life} handles {sender}/{number}, for life {fence}"),
                );
            }
            if let Some(before) = last.insert(sender, *note) {
                if before.number > number {
                    let before = before.number;
                    self.broken(
                        1,
                        format!("{sender}/{number} is handled after {sender}/{before}"),
                    );
                }
                self.tally.note(H::CameInOrder);
                if before.life != note.life {
                    self.tally.note(H::CameInOrderToNextLife);
                }
            }
            if note.panics {
                self.tally.note(H::HandlerPanicked);
            }
        }
    }

    fn judge_lives(&mut self, seen: &[Event]) {
        let mut last = 0;
        let mut failed = HashSet::new();
        for event in seen {
            match event {
                Event::Started(life) => {
                    if *life <= last {
                        self.broken(6, format!("life {life} begins after life {last}"));
                    }
                    if last != 0 {
                        self.tally.note(H::Restart);
                    }
                    let skipped = u64::from(life.saturating_sub(last + 1));
                    self.tally.note_times(H::LifeSkipped, skipped);
                    last = *life;
                }
                Event::Handled(note) => {
                    if failed.contains(&note.life) {
                        self.broken(6, format!("life {} goes on after its panic", note.life));
                    }
                    if note.panics {
                        failed.insert(note.life);
                    }
                }
            }
        }
    }

    /// Holds what a sender was told against what became of its message.
    fn judge_end(&mut self, sent: &Sent, handled: Option<&Handled>) {
        let name = format!("{}/{}", sent.sender, sent.number);
        match (sent.end, handled) {
            (End::Answered, None) => self.broken(3, format!("{name} is answered, not handled")),
            (End::Answered, Some(_)) => {
                self.tally.note(H::AskAnswered);
                if sent.fenced {
                    self.tally.note(H::FencedAnswered);
                }
            }
            (End::Failed(Effect::No), Some(_)) => {
                self.broken(3, format!("{name} is handled, called not done"));
            }
            (End::Failed(Effect::Yes), None) => {
                self.broken(3, format!("{name} is not handled, called done"));
            }
            (End::Failed(Effect::Yes), Some(_)) => self.tally.note(H::AnswerTooLong),
            (End::Failed(Effect::No), None) => {}
            (End::Failed(Effect::Unknown), _) => self.tally.note(H::AskLost),
            (End::Accepted, Some(_)) => self.tally.note(H::TellHandled),
            // It may have met another life on its way.
            (End::Accepted, None) if sent.fenced => self.tally.note(H::FencedTellDropped),
            (End::Accepted, None) => {
                self.tally.note(H::TellLost);
                if self.trouble == Trouble::Network {
                    self.broken(7, format!("{name} is accepted, not handled"));
                }
            }
            (End::Late, None) => self.tally.note(H::AskLateNotRun),
            (End::Dropped, None) => self.tally.note(H::AskDroppedNotRun),
            (End::Late, Some(handled)) => {
                self.tally.note(H::AskLate);
                self.judge_late(sent, handled, sent.deadline);
            }
            (End::Dropped, Some(handled)) => {
                self.tally.note(H::AskDropped);
                self.judge_late(sent, handled, sent.ended);
            }
        }
    }

    /// A message is not handled when nobody waits for its answer and the word has had time to come.
    fn judge_late(&mut self, sent: &Sent, handled: &Handled, over: Timestamp) {
        let (begun, at) = (sent.sent, handled.at);
        let quiet = self
            .unquiet
            .iter()
            .all(|(from, to)| *to < begun || at < *from);
        let near = self.at_home && sent.sender <= 2;
        let travel = match (near, quiet) {
            (true, _) => Duration::ZERO,
            (false, true) => TRAVEL,
            (false, false) => return,
        };
        if at > over.after(travel) {
            let late = at.since(over);
            let (sender, number) = (sent.sender, sent.number);
            self.broken(
                11,
                format!("{sender}/{number} is handled {late:?} after its end"),
            );
        }
    }

    /// Of the tells that were accepted, those that were not handled or failed are dead letters at most.
    fn judge_dead_letters(
        &mut self,
        sent: &[Sent],
        seen: &[Event],
        handled: &HashMap<(u64, u64), Handled>,
    ) {
        let accepted: HashSet<_> = sent
            .iter()
            .filter(|sent| sent.end == End::Accepted)
            .map(|sent| (sent.sender, sent.number))
            .collect();
        let lost = accepted
            .iter()
            .filter(|tell| !handled.contains_key(*tell))
            .count();
        let failed = notes(seen)
            .filter(|note| note.panics && accepted.contains(&(note.sender, note.number)))
            .count();
        let (most, counted) = ((lost + failed) as u64, self.dead_letters);
        self.tally.note_times(H::DeadLetter, counted);
        // Without a lost process or link each of them is known.
        let all_known = self.at_home && self.tally.times(H::LinkBegun) == 1;
        if counted > most || (all_known && counted < most) {
            self.broken(
                15,
                format!("{counted} dead letters of {lost} lost tells and {failed} that failed"),
            );
        }
    }
}

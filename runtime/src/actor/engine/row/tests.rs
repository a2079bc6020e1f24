//! Rows against a model that knows nothing but what happened, and against a book of everybody who waits.

mod book;
mod model;
mod schedules;

use proptest::prelude::{TestCaseError, any, prop, proptest};

use super::*;
use book::Book;
use model::History;

/// The function under test, or one with a flaw in it.
type Apply = fn(RowState, Event) -> (RowState, Commands);

const PARENT: ActorId = ActorId {
    home: ProcessId(9),
    serial: 1,
};
const CHILD: ActorId = ActorId {
    home: ProcessId(9),
    serial: 2,
};

fn facts(alone: bool) -> Facts {
    Facts {
        id: CHILD,
        parent: PARENT,
        actor: "test.Actor",
        alone,
    }
}

fn failed() -> Reason {
    Reason::Failed(Failure::new(FailureKind::Error, String::new()))
}

fn down(life: Incarnation, reason: Reason) -> Down {
    Down {
        id: CHILD,
        incarnation: life,
        reason,
    }
}

/// Numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A row of one kind: one that lives here, that shares its process, or that has one of its own.
fn new_row(kind: u8) -> RowState {
    match kind % 3 {
        0 => RowState::here(facts(false)),
        1 => RowState::away(facts(false)),
        _ => RowState::away(facts(true)),
    }
}

/// An event that a number stands for. Most are of the present life, place and restart.
fn event_of(word: u64, row: &RowState, planned: u64) -> Event {
    let bits = |from: u32, n: u64| (word >> from) % n;
    let life = match bits(8, 8) {
        0 => row.life.saturating_sub(1).max(1),
        1 => row.life + 1,
        _ => row.life,
    };
    let some = ProcessId(1 + bits(12, 3));
    let process = match row.site() {
        Some(Site::At { process, .. } | Site::Lost { process }) if bits(16, 4) > 0 => process,
        _ => some,
    };
    let number = match bits(20, 4) {
        0 => planned.saturating_sub(1),
        1 => planned + 1,
        _ => planned,
    };
    let (flag, other) = (bits(24, 2) == 0, bits(25, 4) == 0);
    let reason = if flag { failed() } else { Reason::Stopped };
    match word % 41 {
        0..=5 => Event::Placed {
            life,
            process: some,
            lease: flag.then_some(Granted {
                node: ProcessId(8),
                lease: bits(28, 3),
            }),
            way: !other,
        },
        6..=10 => Event::Started { life },
        11..=14 => Event::Ended { life, reason },
        15..=16 => Event::ProcessGone { process, reason },
        17..=18 => Event::WayClosed { process },
        19..=21 => Event::RestartPlanned {
            number: planned + 1,
        },
        22..=27 => Event::RestartBegins { number },
        28 => Event::Failed { reason },
        29..=30 => Event::Halted {
            reason,
            keep_mail: bits(28, 8) > 0,
        },
        31..=32 => Event::HaltOver { life, reason },
        33 => Event::Displaced { process },
        34 if bits(28, 4) == 0 => Event::Disposed { reason },
        34..=36 => Event::Message { full: other },
        37 => Event::Withdrawn,
        38..=39 => Event::StartAwaited { next: flag },
        _ => Event::EndAwaited {
            known: life.saturating_sub(1),
        },
    }
}

/// Compares the function with the model, and keeps the book, over the events that these numbers stand
/// for. The first difference, in words.
fn compare(
    apply: Apply,
    kind: u8,
    words: impl IntoIterator<Item = u64>,
    reached: &mut Reached,
) -> Result<(), String> {
    let row = new_row(kind);
    let mut history = History::new(row);
    let mut book = Book::new(row);
    for word in words {
        let event = event_of(word, &book.row, history.planned_last());
        reached.event(&book.row, &event);
        let expected = history.expect(&event);
        let before = book.row;
        let told = || format!("{event:?} at {before:?}");
        let commands = book
            .happen(apply, &event)
            .map_err(|why| format!("{why} after {}", told()))?;
        for command in &commands {
            reached.command(command);
        }
        if commands != expected {
            return Err(format!(
                "{commands:?} follow, not {expected:?}, from {}",
                told()
            ));
        }
        let state = history.state();
        if book.row != state {
            return Err(format!(
                "it is {:?}, not {state:?}, after {}",
                book.row,
                told()
            ));
        }
    }
    Ok(())
}

/// The stages in each of the places that a row can have there, before the last stage.
const STAGES: [&str; 19] = [
    "Placing",
    "Starting here",
    "Starting at",
    "Starting lost",
    "Running here",
    "Running at",
    "Running lost",
    "Halting here",
    "Halting at",
    "Halting lost",
    "Halting nowhere",
    "Ended here",
    "Ended at",
    "Ended lost",
    "Ended nowhere",
    "Stopping here",
    "Stopping at",
    "Stopping lost",
    "Stopping nowhere",
];

const EVENTS: [&str; 16] = [
    "Placed",
    "Started",
    "Ended",
    "ProcessGone",
    "WayClosed",
    "RestartPlanned",
    "RestartBegins",
    "Failed",
    "Halted",
    "HaltOver",
    "Displaced",
    "Disposed",
    "Message",
    "Withdrawn",
    "StartAwaited",
    "EndAwaited",
];

const COMMANDS: [&str; 24] = [
    "OrderStart",
    "OrderHalt",
    "SendStart",
    "SendHalt",
    "SendHost",
    "SendBacklog",
    "KeepMessage",
    "RefuseMessage",
    "ReturnMessage",
    "DropMessage",
    "RefuseBacklog",
    "KeepStart",
    "AnswerStart",
    "TellStarts",
    "RefuseStarts",
    "KeepWatcher",
    "AnswerWatcher",
    "TellWatchers",
    "NoteDown",
    "TellRestart",
    "Forget",
    "Place",
    "Judge",
    "Release",
];

/// The number of times that each event came in each stage, and that each command followed.
struct Reached {
    events: [[u64; EVENTS.len()]; STAGES.len() + 1],
    commands: [u64; COMMANDS.len()],
}

impl Reached {
    const fn new() -> Self {
        Self {
            events: [[0; EVENTS.len()]; STAGES.len() + 1],
            commands: [0; COMMANDS.len()],
        }
    }

    fn event(&mut self, row: &RowState, event: &Event) {
        self.events[stage_of(row)][number_of_event(event)] += 1;
    }

    fn command(&mut self, command: &Command) {
        self.commands[number_of_command(command)] += 1;
    }

    fn add(&mut self, other: &Self) {
        let mine = self.events.as_flattened_mut().iter_mut();
        mine.zip(other.events.as_flattened())
            .for_each(|(mine, other)| *mine += other);
        let mine = self.commands.iter_mut().zip(other.commands);
        mine.for_each(|(mine, other)| *mine += other);
    }

    /// The pairs of event and stage of which this is true, and the commands that never followed.
    fn never(&self, wanted: impl Fn(&str, &str) -> bool) -> Vec<String> {
        let pairs = STAGES.iter().enumerate().flat_map(|(n, stage)| {
            let events = EVENTS.iter().zip(self.events[n]);
            let missing = events.filter(|(event, count)| *count == 0 && wanted(event, stage));
            missing.map(move |(event, _)| format!("{event} in {stage}"))
        });
        let commands = COMMANDS.iter().zip(self.commands);
        let commands = commands.filter(|(_, count)| *count == 0);
        let commands = commands.map(|(command, _)| format!("the command {command}"));
        pairs
            .collect::<Vec<_>>()
            .into_iter()
            .chain(commands)
            .collect()
    }
}

/// Its index among the stages.
fn stage_of(row: &RowState) -> usize {
    let site = match row.site() {
        Some(Site::Here) => 0,
        Some(Site::At { .. }) => 1,
        Some(Site::Lost { .. }) => 2,
        None => 3,
    };
    match row.stage {
        Stage::Placing { .. } => 0,
        Stage::Starting { .. } => 1 + site,
        Stage::Running { .. } => 4 + site,
        Stage::Halting { .. } => 7 + site,
        Stage::Ended { .. } => 11 + site,
        Stage::Stopping { .. } => 15 + site,
        Stage::Gone => 19,
    }
}

const fn number_of_event(event: &Event) -> usize {
    match event {
        Event::Placed { .. } => 0,
        Event::Started { .. } => 1,
        Event::Ended { .. } => 2,
        Event::ProcessGone { .. } => 3,
        Event::WayClosed { .. } => 4,
        Event::RestartPlanned { .. } => 5,
        Event::RestartBegins { .. } => 6,
        Event::Failed { .. } => 7,
        Event::Halted { .. } => 8,
        Event::HaltOver { .. } => 9,
        Event::Displaced { .. } => 10,
        Event::Disposed { .. } => 11,
        Event::Message { .. } => 12,
        Event::Withdrawn => 13,
        Event::StartAwaited { .. } => 14,
        Event::EndAwaited { .. } => 15,
    }
}

const fn number_of_command(command: &Command) -> usize {
    match command {
        Command::OrderStart => 0,
        Command::OrderHalt { .. } => 1,
        Command::SendStart { .. } => 2,
        Command::SendHalt { .. } => 3,
        Command::SendHost { .. } => 4,
        Command::SendBacklog { .. } => 5,
        Command::KeepMessage => 6,
        Command::RefuseMessage => 7,
        Command::ReturnMessage => 8,
        Command::DropMessage => 9,
        Command::RefuseBacklog => 10,
        Command::KeepStart { .. } => 11,
        Command::AnswerStart => 12,
        Command::TellStarts => 13,
        Command::RefuseStarts => 14,
        Command::KeepWatcher => 15,
        Command::AnswerWatcher => 16,
        Command::TellWatchers(_) => 17,
        Command::NoteDown(_) => 18,
        Command::TellRestart => 19,
        Command::Forget => 20,
        Command::Place => 21,
        Command::Judge(_) => 22,
        Command::Release { .. } => 23,
    }
}

proptest! {
    /// SEMANTICS 6, 7, 8, 10, 17.
    #[test]
    fn a_row_does_what_its_history_asks_for(
        kind in 0u8..3, words in prop::collection::vec(any::<u64>(), 1..80),
    ) {
        let compared = compare(apply, kind, words, &mut Reached::new());
        compared.map_err(TestCaseError::fail)?;
    }
}

fn words(seed: u64) -> impl Iterator<Item = u64> {
    let mut draw = Draw(seed);
    std::iter::repeat_with(move || draw.next())
}

/// SEMANTICS 6, 7, 8, 10, 17.
#[test]
fn every_event_comes_in_every_stage_and_every_command_follows() {
    let mut reached = Reached::new();
    for seed in 0..4_000 {
        let compared = compare(apply, seed as u8, words(seed).take(60), &mut reached);
        assert_eq!(compared, Ok(()), "seed {seed}");
    }
    let never = reached.never(|_, _| true);
    assert!(never.is_empty(), "never reached: {never:#?}");
}

/// The life that an event is about becomes the present one.
fn of_the_present(row: &RowState, event: Event) -> Event {
    let now = row.life;
    match event {
        Event::Started { .. } => Event::Started { life: now },
        Event::Ended { reason, .. } => Event::Ended { life: now, reason },
        other => other,
    }
}

/// Flaws that somebody might make, each with its name.
const FLAWS: [(&str, Apply); 10] = [
    (
        "an answer of another life starts this one",
        |row, event| match event {
            Event::Started { .. } => apply(row, of_the_present(&row, event)),
            event => apply(row, event),
        },
    ),
    (
        "the end of another life ends this one",
        |row, event| match event {
            Event::Ended { .. } => apply(row, of_the_present(&row, event)),
            event => apply(row, event),
        },
    ),
    (
        "a replaced restart begins a life",
        |row, event| match event {
            Event::RestartBegins { number } => {
                let number = row.next().unwrap_or(number);
                apply(row, Event::RestartBegins { number })
            }
            event => apply(row, event),
        },
    ),
    ("a disposal forgets the messages that wait", |row, event| {
        without(row, event, |command| *command == Command::RefuseBacklog)
    }),
    (
        "a new place forgets the messages that wait",
        |row, event| {
            without(row, event, |command| {
                matches!(command, Command::SendBacklog { .. })
            })
        },
    ),
    (
        "the watchers of a halted life hear nothing",
        |row, event| {
            let halted = matches!(event, Event::HaltOver { .. });
            without(row, event, |command| {
                halted && matches!(command, Command::TellWatchers(_))
            })
        },
    ),
    ("a life that is told to end is judged, too", |row, event| {
        let over = matches!(event, Event::HaltOver { .. });
        let (row, mut commands) = apply(row, event);
        if over && !commands.is_empty() {
            commands.push(Command::Judge(row.down(Reason::Stopped)));
        }
        (row, commands)
    }),
    ("a closed way is forgotten", |row, event| match event {
        Event::WayClosed { .. } => (row, vec![]),
        event => apply(row, event),
    }),
    ("the process of its own is not given back", |row, event| {
        without(row, event, |command| {
            matches!(command, Command::Release { .. })
        })
    }),
    (
        "a life that was told to end is followed at once",
        |row, event| match (row.stage, &event) {
            (Stage::Halting { site, ran, next }, Event::RestartBegins { .. }) => {
                apply(row.at_stage(Stage::Ended { site, ran, next }), event)
            }
            _ => apply(row, event),
        },
    ),
];

fn without(
    row: RowState,
    event: Event,
    left_out: impl Fn(&Command) -> bool,
) -> (RowState, Commands) {
    let (row, mut commands) = apply(row, event);
    commands.retain(|command| !left_out(command));
    (row, commands)
}

#[test]
fn the_model_finds_every_flaw() {
    for (flaw, flawed) in FLAWS {
        let found = (0..500u64).find_map(|seed| {
            let words = words(seed).take(60);
            compare(flawed, seed as u8, words, &mut Reached::new()).err()
        });
        assert!(found.is_some(), "not found: {flaw}");
    }
}

/// SEMANTICS 6.
/// SEMANTICS 8. What is asked about a life goes for the present one alone.
#[test]
fn a_row_says_for_its_present_life_alone_how_far_it_is() {
    let away = RowState::away(facts(false));
    assert!(away.is_placing(1) && !away.is_placing(2) && !away.is_running());
    let here = RowState::here(facts(false));
    assert!(!here.is_placing(1) && !here.is_running() && !here.awaits_verdict(1));
    let (running, _) = apply(here, Event::Started { life: 1 });
    assert!(running.is_running() && !running.is_placing(1) && !running.awaits_verdict(1));
    let reason = failed();
    let (ended, _) = apply(running, Event::Ended { life: 1, reason });
    assert!(ended.awaits_verdict(1) && !ended.awaits_verdict(2) && !ended.is_placing(1));
    let (planned, _) = apply(ended, Event::RestartPlanned { number: 1 });
    assert!(!planned.awaits_verdict(1));
}

#[test]
fn a_late_answer_of_one_life_does_not_start_the_next() {
    let (process, lease, way) = (ProcessId(1), None, true);
    let mut row = RowState::away(facts(true));
    let mut happen = |event| {
        let (next, commands) = apply(row, event);
        row = next;
        commands
    };
    let placed = |life| Event::Placed {
        life,
        process,
        lease,
        way,
    };
    happen(placed(1));
    let reason = failed();
    happen(Event::ProcessGone { process, reason });
    happen(Event::RestartPlanned { number: 0 });
    happen(Event::RestartBegins { number: 0 });
    happen(placed(2));
    assert_eq!(happen(Event::Started { life: 1 }), []);
    let awaited = happen(Event::StartAwaited { next: false });
    assert_eq!(awaited, [Command::KeepStart { from: 2 }]);
    assert_eq!(happen(Event::Started { life: 2 }), [Command::TellStarts]);
    assert!(row.is_running());
}

/// SEMANTICS 17.
#[test]
fn the_late_end_of_a_halt_is_not_told_to_watchers_of_the_next_life() {
    let mut row = RowState::here(facts(false));
    let mut happen = |event| {
        let (next, commands) = apply(row, event);
        row = next;
        commands
    };
    let reason = Reason::Sibling;
    let over = Event::HaltOver {
        life: 1,
        reason: reason.clone(),
    };
    let keep_mail = true;
    happen(Event::Halted { reason, keep_mail });
    assert_eq!(happen(over.clone()).len(), 2);
    happen(Event::RestartPlanned { number: 0 });
    happen(Event::RestartBegins { number: 0 });
    assert_eq!(
        happen(Event::EndAwaited { known: 1 }),
        [Command::KeepWatcher]
    );
    assert_eq!(happen(over), []);
}

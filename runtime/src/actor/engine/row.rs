//! The row of an actor as its home keeps it: a state machine. [`apply`] says what becomes of a row when
//! something happens, and what follows; [`super::carry_out`] does what follows. Pure.
//!
//! ```text
//!              placed            started
//!   Placing ───────────> Starting ─────> Running        for an actor that lives here: from Starting on
//!      │ ended, its process gone  │         │
//!      ├──────────────────────────┴─────────┤───────────> Ended ── a restart begins ──> Placing, Starting
//!      │ halted, failed                     │               ^
//!      ├────────────────────────────────────┤──> Halting ───┘ it has ended
//!      │ halted for good                    │
//!      └────────────────────────────────────┴──> Stopping ── disposed ──> Gone          also from the others
//! ```

use crate::actor::placing::Granted;
use crate::base::failure::{Down, Failure, FailureKind, Reason};
use crate::base::id::{ActorId, Incarnation, ProcessId};

/// The state of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowState {
    pub(crate) facts: Facts,
    /// The present life, or the last one.
    pub(crate) life: Incarnation,
    pub(crate) stage: Stage,
}

/// The part of a row that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    /// The name of its type, for people.
    pub(crate) actor: &'static str,
    /// True if no other actor may live in its process, which is given back after it.
    pub(crate) alone: bool,
}

/// The stage of the present life. `next` is the number of the restart that is to begin the next life:
/// of the latest verdict over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A process is looked for.
    Placing { next: Option<u64> },
    /// It was told to start.
    Starting { site: Site, next: Option<u64> },
    /// It has started.
    Running { site: Site, next: Option<u64> },
    /// It was told to end, and has not said that it has. Another life may follow.
    Halting {
        site: Option<Site>,
        ran: bool,
        next: Option<u64>,
    },
    /// It is over, and why is known. Another life may follow.
    Ended {
        site: Option<Site>,
        ran: bool,
        next: Option<u64>,
    },
    /// It was told to end, and is the last one.
    Stopping { site: Option<Site>, ran: bool },
    /// The actor is disposed of.
    Gone,
}

/// The place of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// In the process that keeps the row, for all its lives.
    Here,
    /// In another process, with what it has leased there.
    At {
        process: ProcessId,
        lease: Option<Granted>,
    },
    /// In another process. The way there has closed, and what became of that is not known yet.
    Lost { process: ProcessId },
}

/// An event in the life of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// A process was found for this life. `way`: there is a way to it.
    Placed {
        life: Incarnation,
        process: ProcessId,
        lease: Option<Granted>,
        way: bool,
    },
    /// This life has started.
    Started { life: Incarnation },
    /// This life has ended, by itself or because it could not begin.
    Ended { life: Incarnation, reason: Reason },
    /// A process is gone, and with it whatever lived there.
    ProcessGone { process: ProcessId, reason: Reason },
    /// The way to a process has closed.
    WayClosed { process: ProcessId },
    /// A verdict begins the next life by the restart of this number, and by none before.
    RestartPlanned { number: u64 },
    /// The back-off of this restart is over.
    RestartBegins { number: u64 },
    /// Somebody has the present life fail.
    Failed { reason: Reason },
    /// The present life is to end. Without `keep_mail` it is the last one.
    Halted { reason: Reason, keep_mail: bool },
    /// This life has ended as it was told to, or cannot be ended and is left to itself.
    HaltOver { life: Incarnation, reason: Reason },
    /// Its process was ended because the actor in it must not go on.
    Displaced { process: ProcessId },
    /// It ends for good.
    Disposed { reason: Reason },
    /// A message found no place to go. `full`: as many wait as may.
    Message { full: bool },
    /// A message is not wanted any more.
    Withdrawn,
    /// Somebody waits for its start; with `next` for the next one when the present life is over.
    StartAwaited { next: bool },
    /// Somebody waits for the end of its present life. `known` is the last life whose end is known.
    EndAwaited { known: Incarnation },
}

/// An act that follows from an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    // ---- to whom it lives with; in the order of events ----
    /// Orders the cell here to begin this life.
    OrderStart,
    /// Orders the cell here to end its life.
    OrderHalt { reason: Reason, keep_mail: bool },
    /// Tells its process to begin this life in place.
    SendStart { process: ProcessId },
    /// Tells its process to end its life.
    SendHalt {
        process: ProcessId,
        lease: Option<Granted>,
        reason: Reason,
        keep_mail: bool,
    },
    /// Tells a process to host it.
    SendHost { process: ProcessId },
    /// Sends it the messages that waited, behind the order to host it.
    SendBacklog { process: ProcessId },

    // ---- to those who wait ----
    /// Keeps the message, behind those that wait.
    KeepMessage,
    /// Gives the message back: too many wait.
    RefuseMessage,
    /// Gives the message back: there is a place to send it to.
    ReturnMessage,
    /// Drops the message among those that wait.
    DropMessage,
    /// Refuses the messages that wait, by its obituary.
    RefuseBacklog,
    /// Keeps whoever waits for a start, of this life or a later one.
    KeepStart { from: Incarnation },
    /// Says to whoever waits for a start that it has started.
    AnswerStart,
    /// Tells those who wait for the start of this life, or of one before it.
    TellStarts,
    /// Tells those who wait for a start that there will be none, by its obituary.
    RefuseStarts,
    /// Keeps whoever waits for its end.
    KeepWatcher,
    /// Tells whoever waits for its end of it, by its obituary.
    AnswerWatcher,
    /// Tells those who wait for its end of this one; without one, by its obituary.
    TellWatchers(Option<Down>),

    // ---- to others ----
    /// Notes how it ended.
    NoteDown(Down),
    /// Says to people that a life begins.
    TellRestart,
    /// Frees its names and the room that others have at it.
    Forget,
    /// Has a process found for this life.
    Place,
    /// Has its supervisor decide what follows from its end.
    Judge(Down),
    /// Gives a process of its own back, or its lease in one.
    Release {
        process: ProcessId,
        lease: Option<Granted>,
    },
}

/// The acts that follow from an event, in order.
pub(crate) type Commands = Vec<Command>;

/// The state of a row after an event, and what follows from it.
pub(crate) fn apply(row: RowState, event: Event) -> (RowState, Commands) {
    if row.stage == Stage::Gone {
        return (row, vec![]);
    }
    match event {
        Event::Placed {
            life,
            process,
            lease,
            way,
        } => row.placed(life, process, lease, way),
        Event::Started { life } if life == row.life => row.started(),
        Event::Ended { life, reason } if life == row.life && row.is_living() => {
            row.ended(row.site(), reason)
        }
        Event::ProcessGone { process, reason } => row.process_gone(process, reason),
        Event::WayClosed { process } if row.process() == Some(process) => {
            (row.moved_to(Some(Site::Lost { process })), vec![])
        }
        Event::RestartPlanned { number } => (row.with_next(number), vec![]),
        Event::RestartBegins { number } => row.begun_by(number),
        Event::Failed { reason } if row.is_living() => row.halted(reason, true),
        Event::Halted { reason, keep_mail } => row.halted(reason, keep_mail),
        Event::HaltOver { life, reason } if life == row.life => row.halt_over(reason),
        Event::Displaced { process } if !row.is_living() && row.was_in(process) => {
            (row.moved_to(None), vec![])
        }
        Event::Disposed { reason } => row.disposed(reason),
        Event::Message { full } => (row, vec![row.message(full)]),
        Event::Withdrawn if row.holds() => (row, vec![Command::DropMessage]),
        Event::StartAwaited { next } => (row, vec![row.start_awaited(next)]),
        Event::EndAwaited { known } => (row, vec![row.end_awaited(known)]),
        // Of another life or another place.
        Event::Started { .. }
        | Event::Ended { .. }
        | Event::WayClosed { .. }
        | Event::Failed { .. }
        | Event::HaltOver { .. }
        | Event::Displaced { .. }
        | Event::Withdrawn => (row, vec![]),
    }
}

impl RowState {
    /// The row of an actor that lives in this process, which is about to host it.
    pub(crate) const fn here(facts: Facts) -> Self {
        let site = Site::Here;
        let stage = Stage::Starting { site, next: None };
        Self {
            facts,
            life: 1,
            stage,
        }
    }

    /// The row of an actor that a process is to be found for.
    pub(crate) const fn away(facts: Facts) -> Self {
        let stage = Stage::Placing { next: None };
        Self {
            facts,
            life: 1,
            stage,
        }
    }

    /// Its place; `None` while it has none.
    pub(crate) const fn site(&self) -> Option<Site> {
        match self.stage {
            Stage::Starting { site, .. } | Stage::Running { site, .. } => Some(site),
            Stage::Halting { site, .. }
            | Stage::Ended { site, .. }
            | Stage::Stopping { site, .. } => site,
            Stage::Placing { .. } | Stage::Gone => None,
        }
    }

    /// The other process that it is reached in, if it is.
    pub(crate) const fn process(&self) -> Option<ProcessId> {
        match self.site() {
            Some(Site::At { process, .. }) => Some(process),
            _ => None,
        }
    }

    /// Returns true if it is in this other process, as far as is known.
    pub(crate) fn was_in(&self, other: ProcessId) -> bool {
        match self.site() {
            Some(Site::At { process, .. } | Site::Lost { process }) => process == other,
            Some(Site::Here) | None => false,
        }
    }

    /// Returns true if its messages wait here.
    pub(crate) const fn holds(&self) -> bool {
        match self.site() {
            Some(Site::Lost { .. }) => true,
            Some(Site::Here | Site::At { .. }) => false,
            None => !matches!(self.stage, Stage::Gone),
        }
    }

    /// Returns true if the present life has not ended and was not told to.
    pub(crate) const fn is_living(&self) -> bool {
        matches!(
            self.stage,
            Stage::Placing { .. } | Stage::Starting { .. } | Stage::Running { .. }
        )
    }

    /// Returns true if the present life has started and was not told to end.
    pub(crate) const fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running { .. })
    }

    /// Returns true if a process has to be found for this life.
    pub(crate) fn is_placing(&self, life: Incarnation) -> bool {
        matches!(self.stage, Stage::Placing { .. }) && self.life == life
    }

    /// Returns true if what follows from the end of this life is for its supervisor to say, and no
    /// verdict over a sibling has said it.
    pub(crate) fn awaits_verdict(&self, life: Incarnation) -> bool {
        let open = match self.stage {
            Stage::Halting { next, .. } | Stage::Ended { next, .. } => next.is_none(),
            Stage::Stopping { .. } => true,
            Stage::Placing { .. }
            | Stage::Starting { .. }
            | Stage::Running { .. }
            | Stage::Gone => false,
        };
        open && self.life == life
    }

    const fn next(&self) -> Option<u64> {
        match self.stage {
            Stage::Placing { next }
            | Stage::Starting { next, .. }
            | Stage::Running { next, .. }
            | Stage::Halting { next, .. }
            | Stage::Ended { next, .. } => next,
            Stage::Stopping { .. } | Stage::Gone => None,
        }
    }

    /// Returns true if the present life has started.
    const fn ran(&self) -> bool {
        match self.stage {
            Stage::Running { .. } => true,
            Stage::Halting { ran, .. } | Stage::Ended { ran, .. } | Stage::Stopping { ran, .. } => {
                ran
            }
            Stage::Placing { .. } | Stage::Starting { .. } | Stage::Gone => false,
        }
    }

    fn down(&self, reason: Reason) -> Down {
        Down {
            id: self.facts.id,
            incarnation: self.life,
            reason,
        }
    }

    const fn at_stage(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// The same in another place. One that lives has one, or is being placed.
    fn moved_to(mut self, to: Option<Site>) -> Self {
        match (&mut self.stage, to) {
            (Stage::Starting { site, .. } | Stage::Running { site, .. }, Some(to)) => *site = to,
            (
                Stage::Halting { site, .. }
                | Stage::Ended { site, .. }
                | Stage::Stopping { site, .. },
                to,
            ) => *site = to,
            _ => {}
        }
        self
    }

    const fn with_next(mut self, number: u64) -> Self {
        match &mut self.stage {
            Stage::Placing { next }
            | Stage::Starting { next, .. }
            | Stage::Running { next, .. }
            | Stage::Halting { next, .. }
            | Stage::Ended { next, .. } => *next = Some(number),
            Stage::Stopping { .. } | Stage::Gone => {}
        }
        self
    }

    fn placed(
        self,
        life: Incarnation,
        process: ProcessId,
        lease: Option<Granted>,
        way: bool,
    ) -> (Self, Commands) {
        match self.stage {
            Stage::Placing { next } if life == self.life && way => {
                let site = Site::At { process, lease };
                let commands = vec![
                    Command::SendHost { process },
                    Command::SendBacklog { process },
                ];
                (self.at_stage(Stage::Starting { site, next }), commands)
            }
            Stage::Placing { .. } if life == self.life => {
                let what = "its process was gone before it could be hosted there";
                let failure = Failure::new(FailureKind::ProcessLost, what);
                self.ended(None, Reason::Failed(failure))
            }
            // Nobody wants it any more.
            _ if self.facts.alone => (self, vec![Command::Release { process, lease }]),
            _ => (self, vec![]),
        }
    }

    /// The present life has started, also if it has been told to end meanwhile.
    fn started(self) -> (Self, Commands) {
        let stage = match self.stage {
            Stage::Starting { site, next } => Stage::Running { site, next },
            Stage::Halting {
                site,
                ran: false,
                next,
            } => Stage::Halting {
                site,
                ran: true,
                next,
            },
            Stage::Ended {
                site,
                ran: false,
                next,
            } => Stage::Ended {
                site,
                ran: true,
                next,
            },
            Stage::Stopping { site, ran: false } => Stage::Stopping { site, ran: true },
            _ => return (self, vec![]),
        };
        (self.at_stage(stage), vec![Command::TellStarts])
    }

    /// The present life, which has not been told to, has ended.
    fn ended(self, site: Option<Site>, reason: Reason) -> (Self, Commands) {
        let down = self.down(reason);
        let (ran, next) = (self.ran(), self.next());
        let commands = vec![
            Command::NoteDown(down.clone()),
            Command::TellWatchers(Some(down.clone())),
            Command::Judge(down),
        ];
        (self.at_stage(Stage::Ended { site, ran, next }), commands)
    }

    fn process_gone(self, process: ProcessId, reason: Reason) -> (Self, Commands) {
        match (self.was_in(process), self.is_living()) {
            (true, true) => self.ended(None, reason),
            (true, false) => (self.moved_to(None), vec![]),
            (false, _) => (self, vec![]),
        }
    }

    /// Begins the next life, unless a later restart will, or nobody has ended this one.
    fn begun_by(self, number: u64) -> (Self, Commands) {
        let site = match self.stage {
            Stage::Ended { site, next, .. } if next == Some(number) => site,
            _ => return (self, vec![]),
        };
        let mut commands = vec![Command::TellRestart];
        match site {
            Some(Site::Here) => commands.push(Command::OrderStart),
            Some(Site::At { process, .. }) => commands.push(Command::SendStart { process }),
            // It begins when the process is known to be gone, which ends this life too.
            Some(Site::Lost { .. }) => {}
            None => commands.push(Command::Place),
        }
        let stage = match site {
            Some(site) => Stage::Starting { site, next: None },
            None => Stage::Placing { next: None },
        };
        let life = self.life.saturating_add(1);
        let begun = Self {
            life,
            stage,
            ..self
        };
        (begun, commands)
    }

    /// Whoever it lives with is told in any stage: it may be held by a thread that blocks, or wait for
    /// another life.
    fn halted(self, reason: Reason, keep_mail: bool) -> (Self, Commands) {
        let (site, ran, next) = (self.site(), self.ran(), self.next());
        let stage = match keep_mail {
            false => Stage::Stopping { site, ran },
            true if self.is_living() => Stage::Halting { site, ran, next },
            true => self.stage,
        };
        let commands = match site {
            Some(Site::Here) => vec![Command::OrderHalt { reason, keep_mail }],
            Some(Site::At { process, lease }) => vec![Command::SendHalt {
                process,
                lease,
                reason,
                keep_mail,
            }],
            Some(Site::Lost { .. }) | None => vec![],
        };
        (self.at_stage(stage), commands)
    }

    /// Of an actor that ends for good, watchers hear when it is disposed of.
    fn halt_over(self, reason: Reason) -> (Self, Commands) {
        let Stage::Halting { site, ran, next } = self.stage else {
            return (self, vec![]);
        };
        let down = self.down(reason);
        let commands = vec![
            Command::NoteDown(down.clone()),
            Command::TellWatchers(Some(down)),
        ];
        (self.at_stage(Stage::Ended { site, ran, next }), commands)
    }

    fn disposed(self, reason: Reason) -> (Self, Commands) {
        let mut commands = vec![
            Command::NoteDown(self.down(reason)),
            Command::Forget,
            Command::RefuseStarts,
            Command::TellWatchers(None),
            Command::RefuseBacklog,
        ];
        if let Some(Site::At { process, lease }) = self.site()
            && self.facts.alone
        {
            commands.push(Command::Release { process, lease });
        }
        (self.at_stage(Stage::Gone), commands)
    }

    const fn message(&self, full: bool) -> Command {
        match (self.holds(), full) {
            (true, false) => Command::KeepMessage,
            (true, true) => Command::RefuseMessage,
            (false, _) => Command::ReturnMessage,
        }
    }

    const fn start_awaited(&self, next: bool) -> Command {
        let from = self.life;
        match (next && !self.is_living(), self.ran()) {
            (true, _) => Command::KeepStart {
                from: from.saturating_add(1),
            },
            (false, true) => Command::AnswerStart,
            (false, false) => Command::KeepStart { from },
        }
    }

    const fn end_awaited(&self, known: Incarnation) -> Command {
        match self.stage {
            Stage::Ended { .. } => Command::AnswerWatcher,
            // While it is being ended, nobody can say why yet.
            Stage::Halting { .. } | Stage::Stopping { .. } if known >= self.life => {
                Command::AnswerWatcher
            }
            _ => Command::KeepWatcher,
        }
    }
}

#[cfg(test)]
mod tests;

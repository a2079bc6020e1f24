//! The rows of the actors that this process is home of, with those who wait beside them, and the
//! families that they belong to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::lives::HostOrder;
use super::row::{Command, Commands, Event, Facts, RowState, Site, apply};
use crate::actor::placing::LaunchOrder;
use crate::base::clock::{Clock, Timestamp};
use crate::base::failure::Down;
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::id_map::IdMap;
use crate::base::supervise::{Family, Restart, Supervision};
use crate::net::wire::Call;

/// The orders that place an actor in another process, again and again.
#[derive(Clone, Debug)]
pub(crate) struct Placing {
    pub(crate) host: HostOrder,
    pub(crate) launch: LaunchOrder,
}

/// The catalog's part that this process writes: one row for each actor it is home of.
#[derive(Default)]
pub(crate) struct Members {
    pub(super) rows: IdMap<ActorId, Row>,
    pub(super) families: IdMap<ActorId, Arc<Siblings>>,
    pub(super) serial: AtomicU64,
    /// Numbers the restarts.
    pub(super) restarts: AtomicU64,
}

impl Members {
    /// The number of the last actor.
    pub(crate) fn last_serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The next actor comes after this one.
    pub(crate) fn go_on_after(&self, serial: u64) {
        self.serial.store(serial, Ordering::Relaxed);
    }
}

/// Where to send a message for an actor.
#[derive(PartialEq, Eq)]
pub(super) enum PlaceOf {
    At(ProcessId),
    Nowhere,
    /// It was here and is gone, or was never known.
    Gone,
    /// Another process is its home.
    Elsewhere,
}

/// A message that was not kept for an actor that is being placed.
pub(super) enum Unheld {
    /// Too many wait already.
    Full(Box<Call>),
    /// The actor has a place again, or is gone: look again.
    Moved(Box<Call>),
}

/// A life of an actor, as its home knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) incarnation: Incarnation,
    /// True if it has started and not ended.
    pub(crate) running: bool,
    /// Where it runs; `None` while it is on its way there.
    pub(crate) process: Option<ProcessId>,
}

/// An actor that has no place, as its home knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placeless {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    pub(crate) actor: &'static str,
    pub(crate) incarnation: Incarnation,
    /// Messages that wait for it here.
    pub(crate) held: u32,
}

/// The facts that a new row needs.
pub(crate) struct NewRow {
    pub(crate) actor: &'static str,
    pub(crate) parent: ActorId,
    pub(crate) restart: Restart,
    pub(crate) supervision: Supervision,
}

/// A supervisor's family and the right to end lives of it: one verdict at a time. The starts that
/// follow take no turn, or a slow one would hold up siblings that do not share its fate.
#[derive(Default)]
pub(super) struct Siblings {
    pub(super) family: Mutex<Family>,
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Members {
    pub(crate) fn contains(&self, id: ActorId) -> bool {
        self.rows.contains_key(&id)
    }

    pub(super) fn place_of(&self, id: ActorId, me: ProcessId) -> PlaceOf {
        match self.rows.get(&id).map(|row| row.state.site()) {
            Some(Some(Site::At { process, .. })) => PlaceOf::At(process),
            Some(Some(Site::Lost { .. }) | None) => PlaceOf::Nowhere,
            Some(Some(Site::Here)) => PlaceOf::Gone,
            None if id.home == me => PlaceOf::Gone,
            None => PlaceOf::Elsewhere,
        }
    }

    /// The actors placed in a process.
    pub(super) fn at(&self, process: ProcessId) -> Vec<ActorId> {
        let mut ids: Vec<_> = self
            .rows
            .iter()
            .filter(|row| row.state.was_in(process))
            .map(|row| *row.key())
            .collect();
        ids.sort_unstable();
        ids
    }

    /// The actors of this home that have no place at the moment.
    pub(crate) fn placeless(&self) -> Vec<Placeless> {
        let rows = self.rows.iter();
        let rows = rows.filter(|row| row.state.holds());
        let seen = rows.map(|row| Placeless {
            id: *row.key(),
            parent: row.state.facts.parent,
            actor: row.state.facts.actor,
            incarnation: row.state.life,
            held: row.held() as u32,
        });
        seen.collect()
    }

    /// The process that hosts an actor of this home, while it has a place.
    pub(crate) fn host_of(&self, id: ActorId) -> Option<ProcessId> {
        let row = self.rows.get(&id)?;
        process_of(&row.state, id.home)
    }

    /// Every row: id, incarnation and where it is.
    pub(crate) fn list(&self) -> Vec<(ActorId, ActorId, Incarnation, Option<ProcessId>)> {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                let state = &row.state;
                let process = process_of(state, row.key().home);
                (*row.key(), state.facts.parent, state.life, process)
            })
            .collect();
        rows.sort_unstable_by_key(|row| row.0);
        rows
    }

    pub(super) fn number_restart(&self) -> u64 {
        self.restarts.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn siblings_of(&self, parent: ActorId) -> Option<Arc<Siblings>> {
        self.families
            .get(&parent)
            .map(|siblings| Arc::clone(&siblings))
    }

    pub(super) fn siblings(&self, parent: ActorId, supervision: Supervision) -> Arc<Siblings> {
        if let Some(siblings) = self.siblings_of(parent) {
            return siblings;
        }
        let new = || {
            Arc::new(Siblings {
                family: Mutex::new(Family::new(supervision)),
                ..Siblings::default()
            })
        };
        Arc::clone(&self.families.entry(parent).or_insert_with(new))
    }
}

impl NewRow {
    pub(super) const fn facts(&self, id: ActorId, alone: bool) -> Facts {
        let (parent, actor) = (self.parent, self.actor);
        Facts {
            id,
            parent,
            actor,
            alone,
        }
    }
}

/// A row: its state, and those who wait beside it.
pub(super) struct Row {
    pub(super) state: RowState,
    /// The orders that place it; `None` for an actor that only lives here.
    pub(super) order: Option<Box<Placing>>,
    /// Those that wait for it to start, each with the first life that counts.
    pub(super) starts: Vec<(Incarnation, oneshot::Sender<Started>)>,
    pub(super) watchers: Vec<oneshot::Sender<Down>>,
    pub(super) backlog: VecDeque<Held>,
}

/// The outcome of a wait for a start.
pub(super) type Started = Result<(), Down>;

/// A call that waits for its actor to be placed.
pub(super) struct Held {
    pub(super) call: Call,
    pub(super) since: Timestamp,
}

impl Row {
    pub(super) const fn new(state: RowState, order: Option<Box<Placing>>) -> Self {
        Self {
            state,
            order,
            starts: vec![],
            watchers: vec![],
            backlog: VecDeque::new(),
        }
    }

    /// The number of messages that wait.
    pub(super) fn held(&self) -> usize {
        self.backlog.len()
    }

    /// Has somebody wait for the start of the present life, or with `next` for that of the next one when
    /// it has ended.
    pub(super) fn await_start(&mut self, next: bool) -> oneshot::Receiver<Started> {
        let (tell, told) = oneshot::channel();
        match self.happen(Event::StartAwaited { next }).pop() {
            Some(Command::KeepStart { from }) => self.starts.push((from, tell)),
            // The receiver is in our hands, so that it cannot fail.
            _ => drop(tell.send(Ok(()))),
        }
        told
    }

    pub(super) fn happen(&mut self, event: Event) -> Commands {
        let (state, commands) = apply(self.state, event);
        self.state = state;
        commands
    }
}

impl Members {
    /// Keeps a message for an actor that is being placed, or gives it back.
    pub(super) fn hold(&self, call: Call, most: usize) -> Result<(), Unheld> {
        let Some(mut row) = self.rows.get_mut(&call.to) else {
            return Err(Unheld::Moved(Box::new(call)));
        };
        let full = row.backlog.len() >= most;
        match row.happen(Event::Message { full }).pop() {
            Some(Command::KeepMessage) => {
                let since = Clock::now();
                row.backlog.push_back(Held { call, since });
                Ok(())
            }
            Some(Command::RefuseMessage) => Err(Unheld::Full(Box::new(call))),
            // Whoever placed it has sent the backlog on already.
            _ => Err(Unheld::Moved(Box::new(call))),
        }
    }

    /// Withdraws a held call.
    pub(super) fn drop_held(&self, to: ActorId, from: ProcessId, call: u64) {
        if let Some(mut row) = self.rows.get_mut(&to)
            && row.happen(Event::Withdrawn) == [Command::DropMessage]
        {
            row.backlog
                .retain(|held| held.call.call != call || held.call.from != from);
        }
    }

    /// The way to the process of an actor has closed. Returns true if the actor was there.
    pub(super) fn lose(&self, id: ActorId, process: ProcessId) -> bool {
        let Some(mut row) = self.rows.get_mut(&id) else {
            return false;
        };
        let was_there = row.state.process() == Some(process);
        row.happen(Event::WayClosed { process });
        was_there
    }

    /// Numbers a restart of these actors. One that was to begin their next lives no longer does.
    pub(super) fn plan_restart(&self, ids: &[ActorId]) -> u64 {
        let number = self.number_restart();
        for id in ids {
            if let Some(mut row) = self.rows.get_mut(id) {
                row.happen(Event::RestartPlanned { number });
            }
        }
        number
    }
}

/// The process that an actor is in, if it has a place that is known.
pub(super) fn process_of(row: &RowState, home: ProcessId) -> Option<ProcessId> {
    match row.site() {
        Some(Site::Here) => Some(home),
        _ => row.process(),
    }
}

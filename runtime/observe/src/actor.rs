//! Actors as they are seen: those that live, and those that have ended and stay for a while.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use odeon::inspect::{ActorView, RunningView};
use odeon::{ActorId, Incarnation, Phase, ProcessId};
use serde::{Deserialize, Serialize};

use crate::SYSTEM_JOB;
use crate::bounds::{FAILED_MAX, STOPPED_FOR, STOPPED_MAX};
use crate::date::{Date, Shift};
use crate::past::Remnant;

/// The state of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It was stopped in order.
    Stopped,
    /// It waits for mail.
    Idle,
    /// A handler runs.
    Busy,
    /// It begins its first life.
    Starting,
    /// It waits for another: its handler has asked and has not been answered.
    Waiting,
    /// A life has ended and the next has not begun.
    Restarting,
    /// It has failed and is not started again.
    Failed,
}

impl State {
    /// All of them, the harmless ones first.
    pub const ALL: [Self; 7] = [
        Self::Stopped,
        Self::Idle,
        Self::Busy,
        Self::Starting,
        Self::Waiting,
        Self::Restarting,
        Self::Failed,
    ];

    /// The word that people read.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Restarting => "restarting",
            Self::Failed => "failed",
        }
    }
}

/// One actor as it is seen.
#[derive(Clone, Debug)]
pub struct Actor {
    /// The actor as its process shows it.
    pub view: ActorView,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The job that it belongs to.
    pub job: String,
    /// The node that it is on.
    pub node: String,
    /// Its state.
    pub state: State,
    /// Since when.
    pub since: Date,
    /// When the handler that runs began.
    pub running_since: Option<Date>,
    /// Messages in a second, of late.
    pub rate: f64,
    /// The part of the time that handlers ran, of late.
    pub busy: f64,
    /// The part of that in which they waited for others, as far as looks have met it.
    pub waiting: f64,
    /// Messages handled in all its lives and processes.
    pub handled: u64,
    /// Those of them that it had handled before anybody saw it.
    handled_before: u64,
    /// Its end, once it has ended.
    pub ended: Option<Ended>,
    /// Its lives, the last ones.
    pub lives: VecDeque<LifeRow>,
    /// The number of the change that it was last part of.
    pub changed: u64,
    /// The same of what is remembered of it: that it is there, where, its lives, its end.
    pub(crate) turned: u64,
    /// When its mailbox was first seen nearly full, if it still is.
    pub full_since: Option<Date>,
    sample: Sample,
}

/// The counts of a moment, from which rates are worked out.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at: Date,
    handled: u64,
    busy: u64,
    /// Looks since then, and those that met it waiting.
    looks: u32,
    waits: u32,
}

/// The end of an actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// When.
    pub at: Date,
    /// Why, in words.
    pub sentence: String,
    /// It failed.
    pub failed: bool,
}

/// The end of an actor of which nobody says that it has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'a> {
    /// In order, as far as is known.
    Stopped(&'a str),
    /// With its process or its node.
    Lost(&'a str),
}

/// The longest time before or after the end of a process at which its actors may be seen to go with
/// it. One that went long before was stopped.
const JUST: Duration = Duration::from_secs(5);

/// One life of an actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifeRow {
    /// Its number.
    pub number: Incarnation,
    /// When it was first seen.
    pub from: Date,
    /// When it ended.
    pub to: Option<Date>,
    /// Why, in words.
    pub cause: Option<String>,
    /// The causes that led to that.
    pub chain: Vec<String>,
}

/// Lives that are kept of one actor.
const LIVES_MAX: usize = 32;
/// The time over which rates are worked out.
const SAMPLE: Duration = Duration::from_secs(1);

impl Actor {
    fn new(view: ActorView, job: &str, node: &str, now: Date) -> Self {
        let first = LifeRow {
            number: view.incarnation,
            from: now,
            to: None,
            cause: None,
            chain: vec![],
        };
        Self {
            name: None,
            job: job.to_owned(),
            node: node.to_owned(),
            state: State::Starting,
            since: now,
            running_since: None,
            rate: 0.0,
            busy: 0.0,
            waiting: 0.0,
            handled: view.handled,
            handled_before: 0,
            ended: None,
            lives: VecDeque::from([first]),
            changed: 0,
            turned: 0,
            full_since: None,
            sample: Sample {
                at: now,
                handled: view.handled,
                busy: view.busy,
                ..Sample::default()
            },
            view,
        }
    }

    /// The actor's identity.
    #[must_use]
    pub const fn id(&self) -> ActorId {
        self.view.id
    }

    /// The name of it for people: its own, or its type and number.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => format!("{} {}", self.view.actor, self.view.id.serial),
        }
    }

    /// Number of times that it has begun anew.
    #[must_use]
    pub const fn restarts(&self) -> u32 {
        self.view.incarnation.saturating_sub(1)
    }

    /// Messages that it has handled since it is seen.
    pub(crate) const fn handled_here(&self) -> u64 {
        self.handled.saturating_sub(self.handled_before)
    }

    /// The handler that runs.
    #[must_use]
    pub const fn running(&self) -> Option<&RunningView> {
        self.view.running.as_ref()
    }

    /// Part of the room in its mailbox that is taken; `None` where it has none of its own.
    #[must_use]
    pub fn fill(&self) -> Option<f64> {
        let room = self.view.room;
        (room > 0).then(|| f64::from(self.view.queued) / f64::from(room))
    }

    fn state_now(&self, waits: bool) -> State {
        match (&self.ended, self.view.phase) {
            (Some(ended), _) if ended.failed => State::Failed,
            (Some(_), _) => State::Stopped,
            (None, Phase::Starting | Phase::Waiting) if self.view.incarnation <= 1 => {
                State::Starting
            }
            (None, Phase::Starting | Phase::Waiting) => State::Restarting,
            (None, Phase::Over) => State::Stopped,
            (None, Phase::Running) if waits => State::Waiting,
            (None, Phase::Running) if self.view.running.is_some() => State::Busy,
            (None, Phase::Running) => State::Idle,
        }
    }

    /// Works out state and rates. Returns true if anything that people see has changed.
    fn settle(&mut self, now: Date, waits: bool) -> bool {
        let before = (self.state, self.rate, self.busy);
        let state = self.state_now(waits);
        if state != self.state {
            self.state = state;
            self.since = now;
        }
        self.sample.looks += 1;
        self.sample.waits += u32::from(waits);
        let passed = now.since(self.sample.at);
        if passed >= SAMPLE {
            // The handler that runs counts as far as it has come.
            let running = self
                .running_since
                .map_or(0, |since| now.since(since).as_nanos() as u64);
            let busy = self.view.busy + running;
            let handled = self.handled.saturating_sub(self.sample.handled);
            self.rate = handled as f64 / passed.as_secs_f64();
            let ran = busy.saturating_sub(self.sample.busy) as f64;
            self.busy = (ran / passed.as_nanos() as f64).min(1.0);
            self.waiting = f64::from(self.sample.waits) / f64::from(self.sample.looks);
            self.sample = Sample {
                at: now,
                handled: self.handled,
                busy,
                looks: 0,
                waits: 0,
            };
        }
        before != (self.state, self.rate, self.busy)
    }
}

/// All actors that are seen or remembered.
#[derive(Clone, Debug, Default)]
pub struct Actors {
    rows: HashMap<ActorId, Actor>,
    /// Those that have ended, in that order.
    failed: VecDeque<ActorId>,
    stopped: VecDeque<ActorId>,
    /// Those that lived when they were remembered, and have not been seen again yet.
    awaited: HashSet<ActorId>,
    /// Those that are not shown any more, with the number of the change.
    removed: VecDeque<(u64, ActorId)>,
    /// Counts changes up.
    change: u64,
}

/// Removals that are remembered for those who look seldom.
const REMOVED_MAX: usize = 10_000;

impl Actors {
    /// One actor.
    #[must_use]
    pub fn get(&self, id: ActorId) -> Option<&Actor> {
        self.rows.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ActorId) -> Option<&mut Actor> {
        self.rows.get_mut(&id)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Actor> {
        self.rows.values()
    }

    /// Number of actors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true where there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The number of the last change.
    #[must_use]
    pub const fn change(&self) -> u64 {
        self.change
    }

    /// Those that are not shown any more since the change of this number; `None` when that is too
    /// long ago to know.
    pub fn removed_since(&self, change: u64) -> Option<impl Iterator<Item = ActorId>> {
        let oldest = self.removed.front().map_or(0, |(at, _)| *at);
        let knows = self.removed.len() < REMOVED_MAX || oldest <= change;
        knows.then(|| {
            let later = self.removed.iter().filter(move |(at, _)| *at > change);
            later.map(|(_, id)| *id)
        })
    }

    /// Those of which something that is remembered has changed since the change of this number; what
    /// belongs to the system itself only where it has failed.
    pub(crate) fn turned_since(&self, change: u64) -> impl Iterator<Item = &Actor> {
        let later = self.rows.values().filter(move |row| row.turned > change);
        later.filter(|row| {
            let failed = row.ended.as_ref().is_some_and(|ended| ended.failed);
            failed || row.job != SYSTEM_JOB
        })
    }

    /// The children of an actor, in no order.
    pub fn children(&self, parent: ActorId) -> impl Iterator<Item = &Actor> {
        let own = move |row: &&Actor| row.view.parent == parent && row.id() != parent;
        self.rows.values().filter(own)
    }

    /// Begins a change.
    pub(crate) fn begin(&mut self) {
        self.change += 1;
    }

    /// A process shows an actor; `arrives` with a node that was not seen before.
    pub(crate) fn show(
        &mut self,
        view: ActorView,
        job: &str,
        node: &str,
        shift: Shift,
        now: Date,
        arrives: bool,
    ) {
        let change = self.change;
        let running = view.running.as_ref().map(|it| shift.date(it.since));
        let mut turns = !self.rows.contains_key(&view.id);
        let mut was_there = turns && arrives;
        let row = self
            .rows
            .entry(view.id)
            .or_insert_with(|| Actor::new(view.clone(), job, node, now));
        // A place that was left may be shown once more after the next one.
        if view.incarnation < row.view.incarnation {
            return;
        }
        if row.ended.take().is_some() {
            let id = view.id;
            if self.awaited.remove(&id) {
                was_there = true;
            } else {
                self.failed.retain(|it| *it != id);
                self.stopped.retain(|it| *it != id);
            }
            turns = true;
        }
        if view.incarnation > row.view.incarnation {
            row.begin_life(view.incarnation, now);
            turns = true;
        }
        let moved = view.process != row.view.process;
        if turns || moved {
            row.turned = change;
        }
        let before = if moved { 0 } else { row.view.handled };
        row.handled += view.handled.saturating_sub(before);
        if was_there {
            row.handled_before = row.handled;
        }
        if moved {
            row.sample.busy = view.busy;
        }
        node.clone_into(&mut row.node);
        row.running_since = running;
        row.view = view;
        row.changed = change;
    }

    /// Those that were there before anything was looked at. One that lived is taken for stopped now,
    /// until it is seen again.
    pub(crate) fn recall(&mut self, actors: Vec<Remnant>, now: Date) {
        self.change += 1;
        let mut ended = vec![];
        for it in actors {
            let id = it.view.id;
            let mut row = Actor {
                name: it.name,
                handled: it.handled,
                handled_before: it.handled,
                lives: it.lives,
                changed: self.change,
                ..Actor::new(it.view, &it.job, &it.node, Date::default())
            };
            row.view.running = None;
            row.view.queued = 0;
            let end = it.ended.unwrap_or_else(|| {
                self.awaited.insert(id);
                Ended {
                    at: now,
                    sentence: "it was not there any more when looking on began again".to_owned(),
                    failed: false,
                }
            });
            row.since = end.at;
            row.state = match end.failed {
                true => State::Failed,
                false => State::Stopped,
            };
            ended.push((end.at, id, end.failed));
            row.ended = Some(end);
            self.rows.insert(id, row);
        }
        ended.sort_unstable();
        for (_, id, failed) in ended {
            match failed {
                true => self.failed.push_back(id),
                false if self.awaited.contains(&id) => {}
                false => self.stopped.push_back(id),
            }
        }
    }

    /// Those that lived when they were remembered are not waited for any more.
    pub(crate) fn give_up(&mut self) {
        let change = self.change;
        for id in std::mem::take(&mut self.awaited) {
            self.stopped.push_back(id);
            if let Some(row) = self.rows.get_mut(&id) {
                row.turned = change;
            }
        }
    }

    /// A process shows an actor no more.
    pub(crate) fn gone(&mut self, id: ActorId, process: ProcessId, now: Date, end: End<'_>) {
        let Some(row) = self.rows.get_mut(&id) else {
            return;
        };
        if row.view.process != process || row.ended.is_some() {
            return;
        }
        let failure = row.lives.back().and_then(|life| life.cause.clone());
        let (why, lost) = match end {
            End::Stopped(why) => (why, false),
            End::Lost(why) => (why, true),
        };
        let failed = failure.is_some() || lost;
        row.ended = Some(Ended {
            at: now,
            sentence: failure.unwrap_or_else(|| why.to_owned()),
            failed,
        });
        if let Some(life) = row.lives.back_mut() {
            life.to.get_or_insert(now);
        }
        row.running_since = None;
        row.view.running = None;
        row.view.queued = 0;
        row.changed = self.change;
        row.turned = self.change;
        match failed {
            true => self.failed.push_back(id),
            false => self.stopped.push_back(id),
        }
    }

    /// A process was lost: those of its actors that were just taken for stopped were lost with it.
    pub(crate) fn lost_with(&mut self, process: ProcessId, at: Date, why: &str) {
        let change = self.change;
        let lost = self.rows.values_mut().filter(|row| {
            let ended = row.ended.as_ref().filter(|ended| !ended.failed);
            let just = ended.is_some_and(|it| it.at.since(at).max(at.since(it.at)) <= JUST);
            row.view.process == process && just
        });
        for row in lost {
            let id = row.view.id;
            if self.awaited.contains(&id) {
                continue;
            }
            if let Some(ended) = &mut row.ended {
                why.clone_into(&mut ended.sentence);
                ended.failed = true;
            }
            row.changed = change;
            row.turned = change;
            self.stopped.retain(|it| *it != id);
            self.failed.push_back(id);
        }
    }

    /// A life of an actor has failed.
    pub(crate) fn failed(&mut self, id: ActorId, life: Incarnation, at: Date, chain: &[String]) {
        let change = self.change;
        let Some(row) = self.rows.get_mut(&id) else {
            return;
        };
        row.note_life(life, at);
        if let Some(row) = row.lives.iter_mut().find(|row| row.number == life) {
            row.to = Some(at);
            row.cause = chain.first().cloned();
            row.chain = chain.to_vec();
        }
        row.changed = change;
        row.turned = change;
        // Its cell may have gone a moment before it was known why.
        let is_last = row.lives.back().is_some_and(|last| last.number == life);
        if let Some(ended) = row.ended.as_mut().filter(|ended| is_last && !ended.failed) {
            ended.failed = true;
            ended.sentence = chain.first().cloned().unwrap_or_default();
            self.awaited.remove(&id);
            self.stopped.retain(|it| *it != id);
            self.failed.push_back(id);
        }
    }

    /// One that has never been looked at has failed: it is shown for as long as nothing else is known.
    pub(crate) fn failed_unseen(
        &mut self,
        view: ActorView,
        place: (&str, &str),
        at: Date,
        why: &str,
    ) {
        let (job, node) = place;
        let id = view.id;
        let row = Actor {
            state: State::Failed,
            ended: Some(Ended {
                at,
                sentence: why.to_owned(),
                failed: true,
            }),
            changed: self.change,
            turned: self.change,
            ..Actor::new(view, job, node, at)
        };
        self.rows.insert(id, row);
        self.failed.push_back(id);
    }

    /// A life of an actor has begun.
    pub(crate) fn begun(&mut self, id: ActorId, life: Incarnation, at: Date) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.note_life(life, at);
            let noted = row.lives.iter_mut().find(|row| row.number == life);
            // It was first seen later than it began.
            if let Some(noted) = noted.filter(|noted| noted.from > at) {
                noted.from = at;
            }
            row.changed = self.change;
            row.turned = self.change;
        }
    }

    /// Those that a process shows.
    pub(crate) fn of_process(&self, process: ProcessId) -> Vec<ActorId> {
        let shown = |row: &&Actor| row.view.process == process && row.ended.is_none();
        self.rows.values().filter(shown).map(Actor::id).collect()
    }

    /// Names are known anew.
    pub(crate) fn name(&mut self, names: &HashMap<ActorId, String>) {
        let change = self.change;
        for row in self.rows.values_mut() {
            let name = names.get(&row.view.id);
            // A name is remembered when its owner has gone.
            if name.is_some() && name != row.name.as_ref() {
                row.name = name.cloned();
                row.changed = change;
                row.turned = change;
            }
        }
    }

    /// Works out states and rates, and forgets those that have been gone for long.
    pub(crate) fn settle(&mut self, now: Date, waits: impl Fn(ActorId) -> bool) {
        let change = self.change;
        for row in self.rows.values_mut() {
            if row.settle(now, waits(row.view.id)) {
                row.changed = change;
            }
        }
        let long_ago = |rows: &HashMap<_, Actor>, id: &ActorId| {
            let ended = rows.get(id).and_then(|row| row.ended.as_ref());
            ended.is_none_or(|ended| now.since(ended.at) > STOPPED_FOR)
        };
        while self.failed.len() > FAILED_MAX {
            let first = self.failed.pop_front();
            first.into_iter().for_each(|id| self.forget(id));
        }
        while let Some(first) = self.stopped.front().copied() {
            if self.stopped.len() <= STOPPED_MAX && !long_ago(&self.rows, &first) {
                break;
            }
            self.stopped.pop_front();
            self.forget(first);
        }
    }

    fn forget(&mut self, id: ActorId) {
        self.rows.remove(&id);
        self.removed.push_back((self.change, id));
        if self.removed.len() > REMOVED_MAX {
            self.removed.pop_front();
        }
    }
}

impl Actor {
    /// Notes that it is in this life, if it is a later one.
    fn begin_life(&mut self, number: Incarnation, now: Date) {
        if self.lives.back().is_some_and(|life| life.number >= number) {
            return;
        }
        if let Some(last) = self.lives.back_mut() {
            last.to.get_or_insert(now);
        }
        self.lives.push_back(LifeRow {
            number,
            from: now,
            to: None,
            cause: None,
            chain: vec![],
        });
        if self.lives.len() > LIVES_MAX {
            self.lives.pop_front();
        }
    }

    /// Notes a life that may have been over before it was seen.
    fn note_life(&mut self, number: Incarnation, at: Date) {
        let last = self.lives.back().map_or(0, |life| life.number);
        if number > last {
            return self.begin_life(number, at);
        }
        let known = self.lives.iter().any(|life| life.number == number);
        if known || self.lives.len() >= LIVES_MAX {
            return;
        }
        self.lives.push_front(LifeRow {
            number,
            from: at,
            to: Some(at),
            cause: None,
            chain: vec![],
        });
        self.lives
            .make_contiguous()
            .sort_unstable_by_key(|life| life.number);
    }

    /// Number of its lives that have begun since a moment, but the first.
    #[must_use]
    pub fn restarts_since(&self, moment: Date) -> usize {
        let again = self.lives.iter().filter(|life| life.number > 1);
        again.filter(|life| life.from >= moment).count()
    }
}

//! Ways to processes that are not neighbours, as neighbours tell of them, and what each is told in turn.
//!
//! A shorter way is news and is told on; so is a lost one. News of a lost way may meet news that are older than it, and
//! both would run after one another through all neighbours of all, many times at once where everybody is linked with
//! everybody. Two rules prevent that:
//!
//! - A process that has ended for good is told of as such, once by each to all, and no way to it is believed any more:
//!   numbers of processes never come back.
//! - Whoever has lost a way otherwise believes at once only one that is as short: no such way leads back through
//!   itself (the feasibility condition of DUAL, Garcia-Luna-Aceves, 1993). Longer ones wait for as long as a link may
//!   be silent, and are believed if they have not been taken back until then.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Engine;
use crate::base::clock::{Clock, Timestamp};
use crate::base::failure::ProcessExit;
use crate::base::id::ProcessId;
use crate::base::id_map::IdMap;
use crate::net::link::Link;
use crate::net::wire::{Fact, Frame, Hello};

/// The longest way to a process that is believed, in links. Nodes are linked with one another, so a
/// worker of another node is three away from a worker here.
const HOPS_MAX: u8 = 16;
/// Lost ways that are kept before those whose time is over are forgotten.
const LOST_MIN: usize = 64;
/// The number of ended processes that are remembered: more than end while news of one of them is under way.
const ENDED_MAX: usize = 4096;

/// A way to a process that is not a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    /// The links from the neighbour on.
    pub(crate) hops: u8,
    /// The neighbour that leads there.
    pub(crate) through: ProcessId,
}

/// A way that was lost.
struct LostWay {
    /// The shortest that was known since it is being lost.
    hops: u8,
    until: Timestamp,
    /// Longer ones, by the neighbours that have told of them meanwhile.
    told: BTreeMap<ProcessId, u8>,
}

#[derive(Default)]
struct Lost {
    of: HashMap<ProcessId, LostWay>,
    /// The last processes that have ended, in that order.
    ended: VecDeque<ProcessId>,
    are_ended: HashSet<ProcessId>,
    /// The number of lost ways from which on they are looked through.
    look_at: usize,
    /// Somebody will ask for those whose time is over.
    awaited: bool,
}

/// An answer to a neighbour's word of a way.
#[derive(Debug, PartialEq, Eq)]
enum Learnt {
    /// One that is as short is known.
    Nothing,
    /// It is the way now, and all others are to be told.
    News {
        /// The neighbour that led there before.
        before: Option<ProcessId>,
    },
    /// It may be believed later; the first of them says when somebody is to ask.
    Later { ask: bool },
}

/// The ways of a process.
pub(crate) struct Ways {
    known: IdMap<ProcessId, Way>,
    lost: Mutex<Lost>,
    /// The time after the loss of a way in which longer ones are not believed.
    settling: Duration,
}

impl Ways {
    pub(super) fn new(settling: Duration) -> Self {
        Self {
            known: IdMap::default(),
            lost: Mutex::default(),
            settling,
        }
    }

    pub(crate) fn to(&self, process: ProcessId) -> Option<Way> {
        self.known.get(&process).map(|way| *way)
    }

    pub(crate) fn all(&self) -> Vec<(ProcessId, Way)> {
        let rows = self.known.iter();
        rows.map(|row| (*row.key(), *row.value())).collect()
    }

    /// Takes over a way of the engine before this one.
    pub(crate) fn inherit(&self, process: ProcessId, way: Way) {
        self.known.insert(process, way);
    }

    /// Forgets the way to a process that is a neighbour now.
    fn forget(&self, process: ProcessId) {
        let mut lost = self.lost.lock();
        lost.of.remove(&process);
        self.known.remove(&process);
    }

    fn learn(&self, process: ProcessId, way: Way, now: Timestamp) -> Learnt {
        let mut lost = self.lost.lock();
        let known = self.to(process);
        if known.is_some_and(|known| known.hops <= way.hops) || lost.are_ended.contains(&process) {
            return Learnt::Nothing;
        }
        if let Some(past) = lost.of.get_mut(&process)
            && past.until > now
            && past.hops < way.hops
        {
            past.told.insert(way.through, way.hops);
            let ask = !lost.awaited;
            lost.awaited = true;
            return Learnt::Later { ask };
        }
        self.known.insert(process, way);
        Learnt::News {
            before: known.map(|known| known.through),
        }
    }

    /// Loses the way to a process, which may be a neighbour.
    fn lose(&self, process: ProcessId, now: Timestamp) {
        let mut lost = self.lost.lock();
        let hops = self.known.remove(&process).map_or(1, |(_, way)| way.hops);
        if lost.are_ended.contains(&process) {
            return;
        }
        let until = now.after(self.settling);
        let past = lost.of.entry(process).or_insert_with(|| LostWay {
            hops,
            until,
            told: BTreeMap::new(),
        });
        past.hops = match past.until > now {
            true => past.hops.min(hops),
            false => hops,
        };
        past.until = until;
        if lost.of.len() >= lost.look_at.max(LOST_MIN) {
            lost.of
                .retain(|_, past| past.until > now || !past.told.is_empty());
            lost.look_at = lost.of.len() * 2;
        }
    }

    /// Notes that a process has ended for good. Returns false if that was known.
    fn end(&self, process: ProcessId) -> bool {
        let mut lost = self.lost.lock();
        if !lost.are_ended.insert(process) {
            return false;
        }
        lost.of.remove(&process);
        lost.ended.push_back(process);
        if lost.ended.len() > ENDED_MAX
            && let Some(oldest) = lost.ended.pop_front()
        {
            lost.are_ended.remove(&oldest);
        }
        true
    }

    fn has_ended(&self, process: ProcessId) -> bool {
        self.lost.lock().are_ended.contains(&process)
    }

    /// A neighbour takes back the way to a process that it has told of.
    fn take_back(&self, process: ProcessId, through: ProcessId) {
        if let Some(past) = self.lost.lock().of.get_mut(&process) {
            past.told.remove(&through);
        }
    }

    /// Loses a neighbour, and gives the processes behind it.
    fn behind(&self, neighbour: ProcessId) -> Vec<ProcessId> {
        let mut lost = self.lost.lock();
        for past in lost.of.values_mut() {
            past.told.remove(&neighbour);
        }
        let rows = self.known.iter().filter(|row| row.through == neighbour);
        rows.map(|row| *row.key()).collect()
    }

    /// The shortest of the ways that waited long enough, each once, and when to ask again.
    fn settled(&self, now: Timestamp) -> (Vec<(ProcessId, Way)>, Option<Timestamp>) {
        let mut lost = self.lost.lock();
        let mut ways = vec![];
        lost.of.retain(|process, past| {
            let told = past.told.iter();
            let best = told.map(|(through, hops)| Way {
                hops: *hops,
                through: *through,
            });
            match best.min() {
                Some(way) if past.until <= now => ways.push((*process, way)),
                _ => return true,
            }
            false
        });
        let waiting = lost.of.values().filter(|past| !past.told.is_empty());
        let next = waiting.map(|past| past.until).min();
        lost.awaited = next.is_some();
        (ways, next)
    }
}

/// A process is not reached by the way that was told of any more.
fn way_lost(process: ProcessId) -> Frame {
    let status = "it has ended, or the way to it has".to_owned();
    Frame::Fact(Fact::ProcessDown(ProcessExit::new(process, status)))
}

impl Engine {
    /// The processes that are reached through this one, and how far they are: for a neighbour,
    /// which must not hear of ways through itself.
    pub(super) fn carries(&self, neighbour: Option<ProcessId>) -> Vec<(ProcessId, u8)> {
        let near = self.links.iter().map(|link| (link.peer, 1));
        let far = self.ways.all().into_iter();
        let far = far
            .filter(|(_, way)| Some(way.through) != neighbour)
            .map(|(process, way)| (process, way.hops.saturating_add(1)));
        let all = near.chain(far);
        all.filter(|row| Some(row.0) != neighbour).collect()
    }

    /// A neighbour is linked, and tells what it reaches.
    pub(super) fn learn_ways(&self, link: &Link, hello: &Hello) {
        let up = Fact::ProcessUp {
            process: link.peer,
            hops: 1,
        };
        self.tell_neighbours(&Frame::Fact(up), link.peer);
        for (process, hops) in &hello.carries {
            self.learn_way(*process, link.peer, *hops);
        }
    }

    /// Tells a neighbour what has changed since it was told this hello, of the processes that are reached through this
    /// one. Returns false if nothing has.
    pub(super) fn catch_up_with_ways(&self, link: &Link, told: &mut Hello) -> bool {
        let carried: BTreeMap<_, _> = told.carries.iter().copied().collect();
        let carries: BTreeMap<_, _> = self.carries(Some(link.peer)).into_iter().collect();
        if carries == carried {
            return false;
        }
        // A longer way is another one: a neighbour that kept the lost one while the new one leads
        // back through it would send in a circle.
        let lost = |row: &(&ProcessId, &u8)| carries.get(row.0).is_none_or(|hops| hops > row.1);
        for (process, _) in carried.iter().filter(lost) {
            link.push(&way_lost(*process), false);
        }
        for (process, hops) in &carries {
            if carried.get(process) != Some(hops) {
                let (process, hops) = (*process, *hops);
                link.push(&Frame::Fact(Fact::ProcessUp { process, hops }), false);
            }
        }
        told.carries = carries.into_iter().collect();
        true
    }

    /// A neighbour reaches a process.
    pub(super) fn learn_way(&self, process: ProcessId, through: ProcessId, hops: u8) {
        if process == self.process || self.links.contains_key(&process) || hops > HOPS_MAX {
            return;
        }
        let before = match self
            .ways
            .learn(process, Way { hops, through }, Clock::now())
        {
            Learnt::Nothing => return,
            Learnt::Later { ask } => {
                if ask {
                    self.await_settled();
                }
                return;
            }
            Learnt::News { before } => before,
        };
        if before.is_some_and(|before| before != through)
            && let Some(link) = self.links.get(&through)
        {
            // It was told of the way that there was before, and must not send to itself by it.
            link.push(&way_lost(process), true);
        }
        let fact = Fact::ProcessUp {
            process,
            hops: hops.saturating_add(1),
        };
        self.tell_neighbours(&Frame::Fact(fact), through);
    }

    /// Believes longer ways when their time has come.
    fn await_settled(&self) {
        let engine = self.this();
        self.spawn_task(async move {
            let mut next = Some(Clock::now().after(engine.ways.settling));
            while let Some(at) = next {
                Clock::sleep(at.left(Clock::now())).await;
                if engine.is_closing() {
                    return;
                }
                let settled;
                (settled, next) = engine.ways.settled(Clock::now());
                for (process, way) in settled {
                    if engine.links.contains_key(&way.through) {
                        engine.learn_way(process, way.through, way.hops);
                    }
                }
            }
        });
    }

    /// A neighbour says that a process is not reached through it any more.
    pub(super) fn unlearn_way(self: &Arc<Self>, exit: &ProcessExit, through: ProcessId) {
        let process = exit.process;
        self.ways.take_back(process, through);
        // Only the neighbour on the way to a process can know that it is gone.
        let way = self.ways.to(process);
        if way.is_some_and(|way| way.through == through) {
            self.process_down(exit, through);
        }
    }

    /// A neighbour says that a process has ended. What that process has said last may still come by the way to it, whose
    /// neighbour tells of the end after it, as a link with the process itself does.
    pub(super) fn learn_end(self: &Arc<Self>, exit: &ProcessExit, heard_from: ProcessId) {
        let process = exit.process;
        if self.links.contains_key(&process) {
            return;
        }
        let is_news = self.ways.end(process);
        let is_over = match self.ways.to(process) {
            Some(way) => way.through == heard_from,
            None => is_news,
        };
        if is_over {
            self.process_down(exit, heard_from);
        }
    }

    /// Notes that a process that this one has started has ended.
    pub(super) fn bury(&self, process: ProcessId) {
        self.ways.end(process);
    }

    /// Forgets the way to a process that is gone, and gives what the others are told of that.
    pub(super) fn lose_way(&self, exit: &ProcessExit) -> Frame {
        self.ways.lose(exit.process, Clock::now());
        Frame::Fact(match self.ways.has_ended(exit.process) {
            true => Fact::ProcessEnded(exit.clone()),
            false => Fact::ProcessDown(exit.clone()),
        })
    }

    /// A neighbour is lost; gives the processes behind it.
    pub(super) fn lose_neighbour(&self, neighbour: ProcessId) -> Vec<ProcessId> {
        self.ways.behind(neighbour)
    }

    /// A process is a neighbour now.
    pub(super) fn gain_neighbour(&self, process: ProcessId) {
        self.ways.forget(process);
    }
}

#[cfg(test)]
mod tests;

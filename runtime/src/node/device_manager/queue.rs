//! The queue of actors that wait for room: the reasons, and the order in which they may not
//! overtake each other.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon_placement::Refusal;

use super::protocol::Waiting;
use crate::actor::placing::Ask;
use crate::base::clock::Timestamp;
use crate::base::id::ActorId;

/// The number of a place in the queue.
pub(super) type Ticket = u64;

/// Those who wait at one node.
#[derive(Debug, Default)]
pub(super) struct Queue {
    next: Ticket,
    entries: BTreeMap<Ticket, Entry>,
}

#[derive(Debug)]
struct Entry {
    holder: String,
    job: String,
    actors: Vec<ActorId>,
    priority: i32,
    wants_devices: bool,
    since: Timestamp,
    refusal: Option<Refusal>,
    behind: Option<String>,
}

impl Queue {
    pub(super) fn enter(&mut self, asks: &[Ask], now: Timestamp) -> Ticket {
        self.next += 1;
        let demands = || asks.iter().map(|ask| &ask.needs.demand);
        let actors = asks.iter().flat_map(|ask| &ask.actors);
        let entry = Entry {
            holder: asks
                .first()
                .map_or_else(String::new, |ask| ask.holder.clone()),
            job: demands()
                .next()
                .map_or_else(String::new, |demand| demand.job.clone()),
            actors: actors.map(|(actor, _)| *actor).collect(),
            priority: demands().map(|demand| demand.priority).max().unwrap_or(0),
            wants_devices: demands().any(|demand| demand.devices.is_some()),
            since: now,
            refusal: None,
            behind: None,
        };
        self.entries.insert(self.next, entry);
        self.next
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.entries.remove(&ticket);
    }

    /// Keeps what is in the way, for people to read.
    pub(super) fn note(&mut self, ticket: Ticket, refusal: Refusal) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.refusal = Some(refusal);
            entry.behind = None;
        }
    }

    pub(super) fn note_behind(&mut self, ticket: Ticket, holder: String) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.behind = Some(holder);
        }
    }

    /// The holder that must be placed before this one: whoever was refused and has a higher
    /// priority, or the same and has waited for `overtaking` already. Until then smaller ones may
    /// take what a larger one cannot use yet; after that it would starve. Only devices are waited
    /// for in this way.
    pub(super) fn ahead(
        &self,
        ticket: Ticket,
        now: Timestamp,
        overtaking: Duration,
    ) -> Option<String> {
        let me = self.entries.get(&ticket).filter(|me| me.wants_devices)?;
        let first = self.entries.iter().find(|(number, other)| {
            let waits = other.wants_devices && other.refusal.is_some();
            let older = **number < ticket && now.since(other.since) >= overtaking;
            let before = other.priority > me.priority || (other.priority == me.priority && older);
            **number != ticket && waits && before
        });
        first.map(|(_, other)| other.holder.clone())
    }

    pub(super) fn waiting(&self, now: Timestamp) -> Vec<Waiting> {
        let waiting = self.entries.values().map(|entry| Waiting {
            holder: entry.holder.clone(),
            job: entry.job.clone(),
            actors: entry.actors.clone(),
            priority: entry.priority,
            waited: now.since(entry.since),
            refusal: entry.refusal.clone(),
            behind: entry.behind.clone(),
        });
        waiting.collect()
    }
}

#[cfg(test)]
mod tests {
    use odeon_placement::{Demand, Node, Resources, View, solve};

    use super::*;
    use crate::base::id::ProcessId;
    use crate::base::needs::Needs;

    const WINDOW: Duration = Duration::from_secs(10);

    fn ask(holder: &str, gpus: u32, priority: i32) -> Ask {
        let home = ProcessId(1);
        Ask {
            job: "j".to_owned(),
            holder: holder.to_owned(),
            actors: vec![(ActorId { home, serial: 1 }, 0)],
            needs: Needs::new().gpus(gpus).priority(priority),
            again: false,
        }
    }

    fn refusal() -> Refusal {
        let view = View::new([Node::new("a", Resources::new())]);
        solve(&view, &[Demand::new("j", "x", Resources::new()).gpus(1)]).unwrap_err()
    }

    /// SEMANTICS 46.
    #[test]
    fn the_small_overtake_for_a_while_and_the_dear_always() {
        let mut queue = Queue::default();
        let at = |seconds| Timestamp(0).after(Duration::from_secs(seconds));
        let large = queue.enter(&[ask("large", 8, 0)], at(0));
        let small = queue.enter(&[ask("small", 1, 0)], at(1));
        let light = Ask {
            needs: Needs::new().cpus(1.0),
            ..ask("light", 1, 0)
        };
        let light = queue.enter(&[light], at(1));
        assert_eq!(
            queue.ahead(small, at(2), WINDOW),
            None,
            "nobody was refused"
        );
        queue.note(large, refusal());
        assert_eq!(queue.ahead(small, at(9), WINDOW), None);
        assert_eq!(queue.ahead(small, at(10), WINDOW).as_deref(), Some("large"));
        assert_eq!(queue.ahead(large, at(10), WINDOW), None);
        assert_eq!(queue.ahead(light, at(10), WINDOW), None);
        let dear = queue.enter(&[ask("dear", 2, 5)], at(11));
        assert_eq!(queue.ahead(dear, at(30), WINDOW), None);
        queue.note(dear, refusal());
        assert_eq!(queue.ahead(large, at(11), WINDOW).as_deref(), Some("dear"));
        queue.leave(dear);
        queue.leave(large);
        assert_eq!(queue.ahead(small, at(60), WINDOW), None);
        assert_eq!(queue.waiting(at(60)).len(), 2);
    }
}

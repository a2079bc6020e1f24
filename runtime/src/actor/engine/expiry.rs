//! Asks whose time is over, and the circles of actors that wait for each other, which are named to them.

use std::collections::{BTreeMap, VecDeque};

use super::Engine;
use crate::actor::pending::{Caller, Waiting};
use crate::base::clock::Clock;
use crate::base::id::ActorId;

/// A wait of an actor's handler for another actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    on: ActorId,
    message: &'static str,
}

/// The waits of a process's actors.
type Waits = BTreeMap<ActorId, Vec<Wait>>;

impl Engine {
    /// Ends the asks whose time is over.
    pub(super) fn expire(&self) {
        let due = self.pending.sweep(Clock::now());
        if due.is_empty() {
            return;
        }
        let waits = self.waits(&due);
        for (key, waiting) in due {
            self.withdraw(key, &waiting);
            let circle = circle(&waits, waiting.actor);
            waiting.expire(self.in_words(&circle));
        }
    }

    /// The waits of handlers here that have not ended, those of asks that are due among them.
    fn waits(&self, due: &[(u64, Waiting)]) -> Waits {
        let mut waits = Waits::new();
        let mut see = |caller: &Caller, on, message| {
            let Some(who) = caller.inside() else { return };
            let running = self.cells.get(&who).and_then(|cell| cell.stats.running());
            let asked_by = caller.span.span_id;
            if running.is_some_and(|it| it.span == asked_by && asked_by != 0) {
                waits.entry(who).or_default().push(Wait { on, message });
            }
        };
        for (_, it) in due {
            see(&it.caller, it.actor, it.message);
        }
        self.pending
            .each(|it| see(&it.caller, it.actor, it.message));
        self.crowd.each(|it| see(&it.caller, it.actor, it.message));
        waits
    }

    fn in_words(&self, circle: &[(ActorId, Wait)]) -> String {
        let name = |id: &ActorId| match self.cells.get(id) {
            Some(cell) => format!("{} {id}", cell.actor.name),
            None => id.to_string(),
        };
        let mut words = String::new();
        for (who, wait) in circle {
            words += &match words.is_empty() {
                true => format!("{} waits", name(who)),
                false => ", which waits".to_owned(),
            };
            words += &format!(" for {} ({})", name(&wait.on), wait.message);
        }
        words
    }
}

/// A circle that a wait for an actor leads into: each in it waits for the next, the last for the first.
/// Empty without one. Pure.
fn circle(waits: &Waits, on: ActorId) -> Vec<(ActorId, Wait)> {
    // All that it leads to, the nearest first.
    let mut ahead = vec![on];
    let mut next = 0;
    while let Some(actor) = ahead.get(next) {
        let (way, more) = (way_back(waits, *actor), waits.get(actor));
        if !way.is_empty() {
            return way;
        }
        let more = more.into_iter().flatten().map(|wait| wait.on);
        let more: Vec<_> = more.filter(|actor| !ahead.contains(actor)).collect();
        ahead.extend(more);
        next += 1;
    }
    vec![]
}

/// A shortest way from an actor back to itself.
fn way_back(waits: &Waits, start: ActorId) -> Vec<(ActorId, Wait)> {
    let mut came: BTreeMap<ActorId, (ActorId, Wait)> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(actor) = next.pop_front() {
        for wait in waits.get(&actor).into_iter().flatten() {
            if came.contains_key(&wait.on) {
                continue;
            }
            came.insert(wait.on, (actor, *wait));
            next.push_back(wait.on);
        }
        if came.contains_key(&start) {
            break;
        }
    }
    let (mut way, mut at) = (vec![], start);
    while let Some((who, wait)) = came.get(&at) {
        way.push((*who, *wait));
        at = *who;
        if at == start {
            way.reverse();
            return way;
        }
    }
    vec![]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::ProcessId;

    fn id(serial: u64) -> ActorId {
        ActorId {
            home: ProcessId(1),
            serial,
        }
    }

    fn waits(rows: &[(u64, u64)]) -> Waits {
        let mut waits = Waits::new();
        for (who, on) in rows {
            let (on, message) = (id(*on), "m");
            waits
                .entry(id(*who))
                .or_default()
                .push(Wait { on, message });
        }
        waits
    }

    fn who(circle: &[(ActorId, Wait)]) -> Vec<u64> {
        circle.iter().map(|(who, _)| who.serial).collect()
    }

    #[test]
    fn a_circle_is_found_from_in_it_and_from_before_it() {
        let rows = waits(&[(1, 2), (2, 3), (2, 4), (3, 1), (4, 4), (9, 1)]);
        assert_eq!(who(&circle(&rows, id(2))), [2, 3, 1]);
        assert_eq!(who(&circle(&rows, id(9))), [1, 2, 3]);
        assert_eq!(who(&circle(&rows, id(4))), [4]);
    }

    #[test]
    fn a_chain_that_ends_is_no_circle() {
        let rows = waits(&[(1, 2), (2, 3), (1, 3)]);
        assert!(circle(&rows, id(1)).is_empty());
        assert!(circle(&rows, id(7)).is_empty());
    }
}

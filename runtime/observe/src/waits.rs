//! Waits: chains to their ends, and circles that nobody can leave.
//!
//! A circle is a *deadlock* when no actor in it can be woken from outside: all that each of them waits
//! for leads back into the circle, and each is in a handler that has not ended. Where a handler waits
//! for several at once, one of them may answer; then the circle is only worth a look.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use odeon::ActorId;
use odeon::inspect::WaitKind;

use crate::date::Date;

/// An actor that waits for another.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// The actor that waits.
    pub who: ActorId,
    /// For whom.
    pub on: ActorId,
    /// The thing that it waits for.
    pub how: WaitKind,
    /// The message that is asked or told.
    pub message: String,
    /// Since when.
    pub since: Date,
    /// The handler that asked has not ended.
    pub in_handler: bool,
}

/// Actors that wait for each other, in the order in which they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// Each waits for the next, the last for the first. Begins with the smallest.
    pub actors: Vec<ActorId>,
    /// When the last of these waits began.
    pub since: Date,
    /// Nothing from outside can end it, but a deadline.
    pub is_deadlock: bool,
}

/// The waits of a whole system at one moment.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    by: BTreeMap<ActorId, Vec<Wait>>,
}

impl Waits {
    /// Those of handlers that have not ended; others hold up nobody.
    #[must_use]
    pub fn new(waits: impl IntoIterator<Item = Wait>) -> Self {
        let mut by: BTreeMap<_, Vec<Wait>> = BTreeMap::new();
        for wait in waits.into_iter().filter(|wait| wait.in_handler) {
            by.entry(wait.who).or_default().push(wait);
        }
        for waits in by.values_mut() {
            waits.sort_by_key(|wait| (wait.since, wait.on));
        }
        Self { by }
    }

    /// The waits of an actor, the longest first.
    #[must_use]
    pub fn of(&self, actor: ActorId) -> &[Wait] {
        self.by.get(&actor).map_or(&[], Vec::as_slice)
    }

    /// Follows the longest wait of each actor to the end, and whether it comes back to where it has
    /// been.
    #[must_use]
    pub fn chain(&self, from: ActorId) -> (Vec<&Wait>, bool) {
        let (mut chain, mut seen, mut at) = (vec![], BTreeSet::from([from]), from);
        while let Some(wait) = self.of(at).first() {
            chain.push(wait);
            if !seen.insert(wait.on) {
                return (chain, true);
            }
            at = wait.on;
        }
        (chain, false)
    }

    /// All circles, one for each set of actors that lead to each other.
    #[must_use]
    pub fn circles(&self) -> Vec<Circle> {
        let mut circles = vec![];
        let mut done = BTreeSet::new();
        for start in self.by.keys() {
            if done.contains(start) {
                continue;
            }
            let ahead = self.reached(*start);
            if !ahead.contains(start) {
                continue;
            }
            let mut tied: BTreeSet<_> = ahead.iter().copied().collect();
            tied.retain(|actor| self.reached(*actor).contains(start));
            done.extend(tied.iter().copied());
            if let Some(circle) = self.circle(*start, &tied) {
                circles.push(circle);
            }
        }
        circles
    }

    /// All that a wait of this actor leads to, itself among them if one does.
    fn reached(&self, from: ActorId) -> BTreeSet<ActorId> {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(actor) = next.pop() {
            for wait in self.of(actor) {
                if reached.insert(wait.on) {
                    next.push(wait.on);
                }
            }
        }
        reached
    }

    /// A shortest way from `start` back to itself among `tied`.
    fn circle(&self, start: ActorId, tied: &BTreeSet<ActorId>) -> Option<Circle> {
        let mut came: BTreeMap<ActorId, &Wait> = BTreeMap::new();
        let mut next = std::collections::VecDeque::from([start]);
        'search: while let Some(actor) = next.pop_front() {
            for wait in self.of(actor).iter().filter(|it| tied.contains(&it.on)) {
                if wait.on == start {
                    came.insert(start, wait);
                    break 'search;
                }
                if let Entry::Vacant(place) = came.entry(wait.on) {
                    place.insert(wait);
                    next.push_back(wait.on);
                }
            }
        }
        let (mut actors, mut since, mut at) = (vec![], Date::default(), start);
        loop {
            let wait = came.get(&at)?;
            since = since.max(wait.since);
            at = wait.who;
            actors.push(at);
            if at == start {
                break;
            }
        }
        actors.reverse();
        // Whoever waits for somebody who is free may go on.
        let leaves = |actor: &ActorId| self.of(*actor).iter().any(|it| !tied.contains(&it.on));
        Some(Circle {
            is_deadlock: !tied.iter().any(leaves),
            actors,
            since,
        })
    }
}

#[cfg(test)]
mod tests {
    use odeon::ProcessId;
    use proptest::prelude::*;

    use super::*;

    fn actor(serial: u64) -> ActorId {
        let home = ProcessId(1);
        ActorId { home, serial }
    }

    fn waits(edges: &[(u64, u64)]) -> Waits {
        Waits::new(edges.iter().zip(1..).map(|(&(who, on), at)| Wait {
            who: actor(who),
            on: actor(on),
            how: WaitKind::Answer,
            message: "m".to_owned(),
            since: Date(at),
            in_handler: true,
        }))
    }

    #[test]
    fn a_chain_ends_with_who_waits_for_nobody() {
        let waits = waits(&[(1, 2), (2, 3)]);
        let (chain, back) = waits.chain(actor(1));
        let on: Vec<_> = chain.iter().map(|wait| wait.on.serial).collect();
        assert_eq!((on, back), (vec![2, 3], false));
        assert!(waits.circles().is_empty());
    }

    #[test]
    fn a_circle_that_nobody_can_leave_is_a_deadlock() {
        let circles = waits(&[(9, 1), (1, 2), (2, 3), (3, 1)]).circles();
        let [circle] = circles.as_slice() else {
            panic!("{circles:?}")
        };
        assert_eq!(circle.actors, [actor(1), actor(2), actor(3)]);
        assert!(circle.is_deadlock);
        assert_eq!(
            circle.since,
            Date(4),
            "it was none before the last of them waited"
        );
    }

    #[test]
    fn somebody_who_also_waits_for_one_that_is_free_may_go_on() {
        let circles = waits(&[(1, 2), (2, 1), (2, 5)]).circles();
        assert_eq!(circles.len(), 1);
        assert!(!circles[0].is_deadlock);
    }

    #[test]
    fn a_handler_that_has_ended_holds_up_nobody() {
        let mut wait = waits(&[(1, 2), (2, 1)])
            .by
            .remove(&actor(1))
            .unwrap()
            .remove(0);
        wait.in_handler = false;
        let mut all = vec![wait];
        all.extend(waits(&[(2, 1)]).by.remove(&actor(2)).unwrap());
        assert!(Waits::new(all).circles().is_empty());
    }

    proptest! {
        /// Against the plain definition: who can come back to itself is in a circle.
        #[test]
        fn circles_are_those_who_come_back_to_themselves(
            edges in proptest::collection::vec((0u64..9, 0u64..9), 0..20),
        ) {
            let waits = waits(&edges);
            let circles = waits.circles();
            for circle in &circles {
                for (at, who) in circle.actors.iter().enumerate() {
                    let next = circle.actors[(at + 1) % circle.actors.len()];
                    prop_assert!(waits.of(*who).iter().any(|wait| wait.on == next));
                }
                let free = |id: &ActorId| waits.of(*id).is_empty();
                let ahead = waits.reached(circle.actors[0]);
                prop_assert!(!circle.is_deadlock || !ahead.iter().any(free));
            }
            for serial in 0..9 {
                let back = waits.reached(actor(serial)).contains(&actor(serial));
                let tied = circles.iter().any(|circle| {
                    let first = circle.actors[0];
                    first == actor(serial) || (waits.reached(first).contains(&actor(serial))
                        && waits.reached(actor(serial)).contains(&first))
                });
                prop_assert_eq!(back, tied, "{}", serial);
            }
        }
    }
}

//! Waits of actors for each other, and the circles in them. Pure.

pub(crate) mod protocol;
mod service;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::base::id::ActorId;

/// A wait of an actor's handler for another actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wait {
    pub(crate) on: ActorId,
    pub(crate) message: Cow<'static, str>,
}

/// What an actor's handler waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaitingActor {
    /// The name of its type.
    pub(crate) name: Cow<'static, str>,
    pub(crate) waits: Vec<Wait>,
}

/// The waits of actors, of one process or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waits(BTreeMap<ActorId, WaitingActor>);

impl Waits {
    /// Adds a wait of an actor, whose type has this name.
    pub(crate) fn add(&mut self, who: ActorId, name: &'static str, wait: Wait) {
        let row = self.0.entry(who).or_insert_with(|| WaitingActor {
            name: Cow::Borrowed(name),
            waits: vec![],
        });
        row.waits.push(wait);
    }

    /// Adds those that another process knows.
    pub(crate) fn learn(&mut self, others: Self) {
        for (who, row) in others.0 {
            self.0.entry(who).or_insert(row);
        }
    }

    /// Returns true if one actor waits for another.
    pub(crate) fn has(&self, who: ActorId, on: ActorId) -> bool {
        self.of(who).any(|wait| wait.on == on)
    }

    fn of(&self, who: ActorId) -> impl Iterator<Item = &Wait> {
        self.0.get(&who).into_iter().flat_map(|row| &row.waits)
    }

    /// All that a wait for an actor leads to, the nearest first.
    fn ahead(&self, on: ActorId) -> Vec<ActorId> {
        let mut ahead = vec![on];
        let mut next = 0;
        while let Some(actor) = ahead.get(next) {
            let more = self.of(*actor).map(|wait| wait.on);
            let more: Vec<_> = more.filter(|actor| !ahead.contains(actor)).collect();
            ahead.extend(more);
            next += 1;
        }
        ahead
    }

    /// The actors that a wait leads to and of which nothing is known here.
    pub(crate) fn ends(&self, on: ActorId) -> Vec<ActorId> {
        let mut ends = self.ahead(on);
        ends.retain(|actor| !self.0.contains_key(actor));
        ends
    }

    /// The rows of at most so many actors that a wait for one leads to.
    pub(crate) fn from(&self, on: ActorId, most: usize) -> Self {
        let ahead = self.ahead(on).into_iter();
        let rows = ahead.filter_map(|actor| Some((actor, self.0.get(&actor)?.clone())));
        Self(rows.take(most).collect())
    }

    /// The circle that a wait for an actor leads into, in words: each in it waits for the next, the last
    /// for the first. Empty without one.
    pub(crate) fn circle(&self, on: ActorId) -> String {
        let named = |id: &ActorId| match self.0.get(id) {
            Some(row) => format!("{} {id}", row.name),
            None => id.to_string(),
        };
        let mut words = String::new();
        for (who, wait) in circle(self, on) {
            words += &match words.is_empty() {
                true => format!("{} waits", named(&who)),
                false => ", which waits".to_owned(),
            };
            words += &format!(" for {} ({})", named(&wait.on), wait.message);
        }
        words
    }
}

/// A circle that a wait for an actor leads into: each in it waits for the next, the last for the first.
/// Empty without one.
fn circle(waits: &Waits, on: ActorId) -> Vec<(ActorId, Wait)> {
    let ways = waits.ahead(on).into_iter();
    let mut ways = ways.map(|actor| way_back(waits, actor));
    ways.find(|way| !way.is_empty()).unwrap_or_default()
}

/// A shortest way from an actor back to itself.
fn way_back(waits: &Waits, start: ActorId) -> Vec<(ActorId, Wait)> {
    let mut came: BTreeMap<ActorId, (ActorId, &Wait)> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(actor) = next.pop_front() {
        for wait in waits.of(actor) {
            if came.contains_key(&wait.on) {
                continue;
            }
            came.insert(wait.on, (actor, wait));
            next.push_back(wait.on);
        }
        if came.contains_key(&start) {
            break;
        }
    }
    let (mut way, mut at) = (vec![], start);
    while let Some((who, wait)) = came.get(&at) {
        way.push((*who, (*wait).clone()));
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
        let mut waits = Waits::default();
        for (who, on) in rows {
            let (on, message) = (id(*on), "m".into());
            waits.add(id(*who), "Actor", Wait { on, message });
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
        assert_eq!(rows.circle(id(1)), "");
    }

    #[test]
    fn a_circle_of_two_processes_is_seen_when_each_has_told_its_part() {
        let (mut here, there) = (waits(&[(1, 2), (5, 6)]), waits(&[(2, 3), (3, 1), (8, 9)]));
        assert_eq!(here.ends(id(2)), [id(2)]);
        let told = there.from(id(2), 64);
        assert_eq!(told, waits(&[(2, 3), (3, 1)]));
        assert_eq!(there.from(id(2), 1), waits(&[(2, 3)]));
        here.learn(told);
        assert_eq!(who(&circle(&here, id(2))), [2, 3, 1]);
        let way = format!("Actor {} waits for Actor {} (m), which", id(2), id(3));
        assert!(here.circle(id(2)).starts_with(&way));
        assert!(here.ends(id(2)).is_empty());
    }
}

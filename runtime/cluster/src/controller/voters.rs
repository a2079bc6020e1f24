//! Choice of the voters: a pure function of the tables, of who votes now, of how long nodes have
//! been silent, and of the time.
//!
//! The cluster says how many voters it wants ([`Tables::voters_wanted`]). There are as many as that,
//! or the next smaller odd number when there are too few nodes: two voters would be lost with one of
//! them, and are worse than one. A voter that is gone keeps its seat for a while, since it knows the
//! log and will mostly be back; it loses it when another node can take it. A voter that has come back
//! without its disk has forgotten what it promised and loses its seat at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::plan::Rules;
use crate::tables::{NodeRow, NodeState, Tables};
use crate::unix::Unix;

/// The voters and learners, by the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The node that asks: the leader.
    pub leader: u64,
    /// The voters by their numbers.
    pub voters: BTreeMap<u64, String>,
    /// Nodes that get the log and do not vote.
    pub learners: BTreeMap<u64, String>,
}

/// The next change of the voters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node gets a disk for the log, and then the log.
    Enlist {
        /// Its name.
        node: String,
        /// Its number.
        number: u64,
    },
    /// The voters are these from now on.
    Elect {
        /// By their numbers.
        voters: BTreeSet<u64>,
    },
    /// A node does not get the log any more.
    Strike {
        /// Its number.
        number: u64,
    },
    /// A node that has no seat any more closes its disk for the log.
    Dismiss {
        /// Its name.
        node: String,
    },
}

/// The next change, if one is due.
#[must_use]
pub fn next(
    tables: &Tables,
    standing: &Standing,
    silent: &BTreeMap<String, Duration>,
    rules: &Rules,
    now: Unix,
) -> Option<Change> {
    let field = Field {
        tables,
        standing,
        silent,
        rules,
        now,
    };
    let target = field.target();
    let mut wanted = target.iter();
    if let Some(row) = wanted.find_map(|number| field.unready(*number)) {
        return Some(Change::Enlist {
            node: row.spec.name.clone(),
            number: row.number,
        });
    }
    if !target.iter().eq(standing.voters.keys()) {
        return Some(Change::Elect { voters: target });
    }
    if let Some(number) = standing.learners.keys().next() {
        return Some(Change::Strike { number: *number });
    }
    let mut up = tables.living_nodes();
    let idle = up.find(|row| row.spec.votes && !standing.voters.contains_key(&row.number));
    idle.map(|row| Change::Dismiss {
        node: row.spec.name.clone(),
    })
}

struct Field<'a> {
    tables: &'a Tables,
    standing: &'a Standing,
    silent: &'a BTreeMap<String, Duration>,
    rules: &'a Rules,
    now: Unix,
}

impl<'a> Field<'a> {
    fn row(&self, number: u64) -> Option<&'a NodeRow> {
        let mut rows = self.tables.nodes.values();
        rows.find(|row| row.number == number)
    }

    /// A node that should vote and cannot yet.
    fn unready(&self, number: u64) -> Option<&'a NodeRow> {
        let row = self.row(number)?;
        let gets_log = self.standing.learners.contains_key(&number) && row.spec.votes;
        let ready = gets_log || self.standing.voters.contains_key(&number);
        (!ready).then_some(row)
    }

    fn is_healthy(&self, row: &NodeRow) -> bool {
        let silent = self.silent.get(&row.spec.name).copied();
        row.state == NodeState::Up && self.rules.judge(silent.unwrap_or_default()).is_none()
    }

    fn is_up(&self, number: u64) -> bool {
        let row = self.row(number);
        row.is_some_and(|row| row.state == NodeState::Up)
    }

    /// Returns true where a voter is gone for so long that another may take its seat.
    fn is_gone(&self, number: u64) -> bool {
        match self.row(number) {
            None => true,
            Some(row) if row.state == NodeState::Up => row.drained,
            Some(row) => self.now.since(row.since) >= self.rules.replaced_after,
        }
    }

    /// Returns true where a voter is up and knows nothing of the log. Whoever leads knows it.
    fn has_forgotten(&self, number: u64) -> bool {
        let row = self.row(number).filter(|_| number != self.standing.leader);
        row.is_some_and(|row| row.state == NodeState::Up && !row.spec.votes)
    }

    /// The nodes that should vote, by their numbers.
    fn target(&self) -> BTreeSet<u64> {
        let wanted = self.tables.voters_wanted.max(1) as usize;
        let present = self.standing.voters.keys().copied();
        let remembering: Vec<u64> = present.filter(|it| !self.has_forgotten(*it)).collect();
        if remembering.len() < self.standing.voters.len() {
            return remembering.into_iter().collect();
        }
        let (gone, mut stay): (Vec<u64>, Vec<u64>) =
            remembering.into_iter().partition(|it| self.is_gone(*it));
        // The leader stays when there are too many, then who is here, so that those who are left can
        // write, and then who came first.
        stay.sort_by_key(|it| (*it != self.standing.leader, !self.is_up(*it), *it));
        let mut fresh: Vec<u64> = self
            .tables
            .nodes
            .values()
            .filter(|row| self.is_healthy(row) && row.takes_jobs())
            .map(|row| row.number)
            .filter(|number| !self.standing.voters.contains_key(number))
            .collect();
        fresh.sort_unstable();
        // A seat that nobody can take is kept by who had it.
        let pool = stay.iter().chain(&fresh).chain(&gone).copied();
        let mut target: Vec<u64> = pool.take(wanted).collect();
        if target.len().is_multiple_of(2) && target.last().is_some_and(|last| !stay.contains(last))
        {
            target.pop();
        }
        // Seats are not given up for a choice that could not write: who is away will be back, or gone.
        let up = target.iter().filter(|it| self.is_up(**it)).count();
        if up * 2 <= target.len() {
            return self.standing.voters.keys().copied().collect();
        }
        target.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;

//! State of all ranks, in which equal parts are listed once.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::local::{Local, StatePart};

/// Parts of the job's state that ranks have. Replicas have the same, so for most layouts this is
/// much smaller than what each rank says, and it stays so when it is joined on its way up a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// Distinct parts: tensors of one state of one role, each listed once.
    pub(crate) parts: Vec<StatePart>,
    /// The ranks, each with what it has, in its order.
    pub(crate) ranks: Vec<(usize, Vec<usize>)>,
    #[serde(skip)]
    known: HashMap<StatePart, usize>,
}

impl Census {
    /// Of one rank.
    #[must_use]
    pub fn of(rank: usize, local: Local) -> Self {
        let mut census = Self::default();
        census.add(rank, local.parts);
        census
    }

    /// Takes in what other ranks have.
    pub fn join(&mut self, other: Self) {
        let places: Vec<usize> = other
            .parts
            .into_iter()
            .map(|part| self.place(part))
            .collect();
        for (rank, parts) in other.ranks {
            let parts = parts
                .into_iter()
                .filter_map(|part| places.get(part).copied());
            self.ranks.push((rank, parts.collect()));
        }
    }

    /// Number of ranks that it knows of.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Number of different states of roles that it knows.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// State of the rank at a place in the list.
    pub(crate) fn local(&self, at: usize) -> Local {
        let parts = self.ranks.get(at).into_iter().flat_map(|(_, parts)| parts);
        Local {
            parts: parts.map(|part| self.parts[*part].clone()).collect(),
        }
    }

    /// The ranks in order.
    pub(crate) fn sorted(mut self) -> Self {
        self.ranks.sort_unstable();
        self
    }

    fn add(&mut self, rank: usize, parts: Vec<StatePart>) {
        let places = parts.into_iter().map(|part| self.place(part)).collect();
        self.ranks.push((rank, places));
    }

    fn place(&mut self, part: StatePart) -> usize {
        if self.known.is_empty() && !self.parts.is_empty() {
            // It was sent, so what it knows has to be found again.
            let parts = self.parts.iter().cloned();
            self.known = parts.enumerate().map(|(at, part)| (part, at)).collect();
        }
        if let Some(place) = self.known.get(&part) {
            return *place;
        }
        self.known.insert(part.clone(), self.parts.len());
        self.parts.push(part);
        self.parts.len() - 1
    }
}

//! The ranks of a job, put together from looks at the processes that they are in.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::look::{RankLook, RankWindow};
use super::{FlowJob, FlowMember};

/// The ranks of a job in the order in which they were first seen. Processes are named by whoever looks.
#[derive(Debug)]
pub struct FlowRanks<P> {
    windows: Vec<RankWindow>,
    /// The process of each, and its place among the windows.
    places: HashMap<FlowMember, (P, usize)>,
}

impl<P> Default for FlowRanks<P> {
    fn default() -> Self {
        Self {
            windows: vec![],
            places: HashMap::new(),
        }
    }
}

impl<P: Copy + Eq + Hash> FlowRanks<P> {
    /// All of them.
    #[must_use]
    pub fn job(&self) -> FlowJob<'_> {
        FlowJob {
            ranks: &self.windows,
        }
    }

    /// Takes in the ranks of a process at a look.
    pub fn note(&mut self, process: P, looks: Vec<RankLook>, at: Duration) {
        for look in looks {
            let next = (process, self.windows.len());
            let place = self.places.entry(look.member).or_insert(next);
            place.0 = process;
            if place.1 == self.windows.len() {
                self.windows.push(RankWindow::new(look.member, at));
            }
            self.windows[place.1].push(at, look);
        }
    }

    /// A process is gone, and its ranks with it.
    pub fn forget(&mut self, process: P) {
        self.places.retain(|_, (of, _)| *of != process);
        if self.places.len() == self.windows.len() {
            return;
        }
        self.windows
            .retain(|it| self.places.contains_key(&it.member()));
        for (at, window) in self.windows.iter().enumerate() {
            if let Some(place) = self.places.get_mut(&window.member()) {
                place.1 = at;
            }
        }
    }
}

//! The last ends of other processes, for calls that were on their way there.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::base::failure::ProcessExit;
use crate::base::id::ProcessId;

/// The number of ends that are kept: more than come within the time of a call.
const EXITS_MAX: usize = 256;

/// The last ends of processes that an engine knows of.
#[derive(Default)]
pub(super) struct Exits(Mutex<VecDeque<ProcessExit>>);

impl Exits {
    pub(super) fn note(&self, exit: &ProcessExit) {
        let mut exits = self.0.lock();
        exits.retain(|known| known.process != exit.process);
        exits.push_back(exit.clone());
        if exits.len() > EXITS_MAX {
            exits.pop_front();
        }
    }

    /// How a process has ended, if that was not long ago.
    pub(super) fn of(&self, process: ProcessId) -> Option<ProcessExit> {
        let exits = self.0.lock();
        exits.iter().find(|exit| exit.process == process).cloned()
    }
}

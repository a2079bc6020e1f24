//! The end of an engine that lives inside another's process, as if its own had been killed.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Engine;
use crate::base::failure::Reason;

impl Engine {
    /// Prepares for [`Self::crash`].
    pub(crate) fn can_crash(&self) {
        self.mortal.get_or_init(Mutex::default);
    }

    /// Ends at once without a word, as a killed process would: no handler, task or `stop` of its actors
    /// goes on.
    pub(crate) fn crash(&self) {
        for link in self.links.iter() {
            link.close("killed");
        }
        let cells: Vec<_> = self.cells.iter().map(|cell| Arc::clone(&cell)).collect();
        for cell in cells {
            cell.kill();
            self.remove_cell(&cell, Reason::Unknown);
        }
        if let Some(tasks) = self.mortal.get() {
            tasks.lock().abort_all();
        }
    }
}

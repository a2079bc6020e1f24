//! Faults, and the orders by which ranks hear of them.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The groups of a rank, in the order in which it calls them.
pub(crate) const KINDS: [&str; 4] = ["tp", "pp", "dp", "dp-pp-tp"];

/// A thing that goes wrong at a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// It computes for longer.
    Slow,
    /// Its bytes in one group leave it in small pieces.
    Throttled,
    /// It takes what it is sent in one group late.
    Delayed,
    /// Its process is stopped.
    Stopped,
    /// It leaves out one call.
    Skips,
    /// The thread that sends sleeps now and then.
    Sleeps,
    /// It computes on a processor instead of a device, and others want that processor.
    Load,
    /// One of its calls has another size.
    Differs,
    /// It makes two calls in the other order.
    Swaps,
}

const ALL: [(Fault, &str, &str); 9] = [
    (Fault::Slow, "producer", "it is not in a call"),
    (Fault::Throttled, "sender", "does not leave it"),
    (Fault::Delayed, "acknowledgement", "does not arrive there"),
    (Fault::Stopped, "stopped", "its process is stopped"),
    (Fault::Skips, "skipped", "it has gone on without call"),
    (Fault::Sleeps, "transport", "does not leave it"),
    (Fault::Load, "load", "gets no processor"),
    (Fault::Differs, "size", "is not that of the others"),
    (Fault::Swaps, "order", "it has called another group before"),
];

impl Fault {
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let found = ALL.iter().find(|it| it.1 == name);
        found.map(|it| it.0)
    }

    fn row(self) -> (&'static str, &'static str) {
        let found = ALL.iter().find(|it| it.0 == self);
        found.map_or(("", ""), |it| (it.1, it.2))
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().0
    }

    /// Words of the finding that names it.
    pub(crate) fn said(self) -> &'static str {
        self.row().1
    }

    /// True where it is of the transport of messages.
    pub(crate) const fn needs_messages(self) -> bool {
        matches!(self, Self::Throttled | Self::Delayed | Self::Sleeps)
    }
}

/// The order that ranks have, in a file that each reads before every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    Nothing,
    /// This fault, which is another one than that of another number, befalls a rank, in calls of one kind.
    Begin {
        number: u64,
        fault: Fault,
        rank: usize,
        kind: usize,
    },
    End,
}

impl Order {
    pub(crate) fn read(file: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(file)?)?)
    }

    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let next = file.with_extension("next");
        fs::write(&next, serde_json::to_vec(self)?)?;
        fs::rename(next, file)
    }
}

//! The owner's book: which processes hold its blobs, and which handles are on their way. Pure.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use odeon_shm::Leases;

use crate::base::clock::Timestamp;
use crate::base::id::ProcessId;

/// Keeps a `P` alive for others. What leaves the book is returned, never dropped inside: the caller
/// drops it without the lock on the book.
#[derive(Debug)]
pub(super) struct Book<P> {
    /// Everything whose handle has ever left and that is alive for any reason.
    known: HashMap<u64, Weak<P>>,
    leases: Leases<u64, Arc<P>>,
    tickets: HashMap<u64, Ticket<P>>,
    due: BTreeSet<(Timestamp, u64)>,
}

/// A handle on its way.
#[derive(Debug)]
struct Ticket<P> {
    pin: Arc<P>,
    until: Timestamp,
    /// Arrivals that end it; 0 when only time does.
    left: u32,
}

/// The facts that a pin is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Journey {
    pub(super) ticket: u64,
    pub(super) arrivals: u32,
    pub(super) until: Timestamp,
}

impl<P> Default for Book<P> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            leases: Leases::new(),
            tickets: HashMap::new(),
            due: BTreeSet::new(),
        }
    }
}

impl<P> Book<P> {
    /// The owner sends a handle on its way.
    pub(super) fn depart(&mut self, serial: u64, pin: Arc<P>, journey: Journey) {
        self.known
            .entry(serial)
            .or_insert_with(|| Arc::downgrade(&pin));
        self.enter(pin, journey);
    }

    /// Another process sends a handle on its way. `false` when the blob is gone.
    #[must_use]
    pub(super) fn pin(&mut self, serial: u64, journey: Journey) -> bool {
        let Some(pin) = self.find(serial) else {
            return false;
        };
        self.enter(pin, journey);
        true
    }

    fn enter(
        &mut self,
        pin: Arc<P>,
        Journey {
            ticket,
            arrivals,
            until,
        }: Journey,
    ) {
        self.due.insert((until, ticket));
        self.tickets.insert(
            ticket,
            Ticket {
                pin,
                until,
                left: arrivals,
            },
        );
    }

    /// A blob that is alive for any reason.
    pub(super) fn find(&self, serial: u64) -> Option<Arc<P>> {
        self.known.get(&serial)?.upgrade()
    }

    /// Gives `holder` a lease. `false` when the blob is gone.
    #[must_use]
    pub(super) fn hold(&mut self, serial: u64, holder: ProcessId) -> bool {
        let Some(pin) = self.find(serial) else {
            return false;
        };
        self.leases.grant(serial, holder.0, || pin);
        true
    }

    /// Takes one lease of `holder` back.
    #[must_use]
    pub(super) fn release(&mut self, serial: u64, holder: ProcessId) -> Option<Arc<P>> {
        // A release that crosses with the news of its holder's death finds nothing.
        self.leases.release(&serial, holder.0).ok().flatten()
    }

    /// A handle has arrived.
    #[must_use]
    pub(super) fn arrived(&mut self, ticket: u64) -> Option<Arc<P>> {
        let journey = self.tickets.get_mut(&ticket)?;
        if journey.left != 1 {
            journey.left = journey.left.saturating_sub(1);
            return None;
        }
        self.due.remove(&(journey.until, ticket));
        self.tickets.remove(&ticket).map(|journey| journey.pin)
    }

    /// Takes everything back that a dead process held.
    #[must_use]
    pub(super) fn died(&mut self, holder: ProcessId) -> Vec<Arc<P>> {
        self.leases
            .holder_died(holder.0)
            .into_iter()
            .map(|(_, pin)| pin)
            .collect()
    }

    /// Ends the journeys that took too long.
    #[must_use]
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<Arc<P>> {
        let mut ended = vec![];
        while let Some(&(until, ticket)) = self.due.first()
            && until <= now
        {
            self.due.pop_first();
            ended.extend(self.tickets.remove(&ticket).map(|journey| journey.pin));
        }
        ended
    }

    /// When the next journey takes too long.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(until, _)| *until)
    }

    /// A blob is no more.
    pub(super) fn forget(&mut self, serial: u64) {
        self.known.remove(&serial);
    }

    /// Blobs that other processes hold, and handles on their way.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.leases.len(), self.tickets.len())
    }
}

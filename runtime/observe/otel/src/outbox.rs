//! A queue of requests that wait to be sent: bounded, tried again after a while, and counted when
//! they are thrown away. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use odeon::Timestamp;

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Numbers.
    Metrics,
    /// Events.
    Logs,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    /// Its word in addresses.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

/// A request that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Its body.
    pub body: Bytes,
    /// Spans, data points or records in it.
    pub items: u64,
}

/// Counts of the items of one signal, by what has become of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalCounts {
    /// They have arrived.
    pub sent: u64,
    /// Whoever they were for did not want them.
    pub rejected: u64,
    /// There was no room for them any more, or no time left.
    pub dropped: u64,
    /// Bytes that wait.
    pub queued_bytes: u64,
}

/// Counts of all items, by signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub(crate) traces: SignalCounts,
    pub(crate) metrics: SignalCounts,
    pub(crate) logs: SignalCounts,
}

impl Counts {
    /// Those of one signal.
    #[must_use]
    pub const fn of(&self, signal: Signal) -> SignalCounts {
        match signal {
            Signal::Traces => self.traces,
            Signal::Metrics => self.metrics,
            Signal::Logs => self.logs,
        }
    }
}

/// The requests of one signal that wait.
#[derive(Debug)]
pub struct Outbox {
    queue: VecDeque<Parcel>,
    bytes: usize,
    bytes_max: usize,
    /// Tries that have failed since the last that did not, and until when the next one waits.
    failures: u32,
    not_before: Timestamp,
    /// Items that were taken out and that nothing was heard of yet.
    on_its_way: u64,
    counts: SignalCounts,
}

/// The first pause after a failure; the next is twice as long, and so on.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Outbox {
    /// One with room for so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            bytes_max,
            failures: 0,
            not_before: Timestamp(0),
            on_its_way: 0,
            counts: SignalCounts::default(),
        }
    }

    /// Puts something in. The oldest goes when there is no room.
    pub fn offer(&mut self, parcel: Parcel) {
        self.bytes += parcel.body.len();
        self.queue.push_back(parcel);
        self.make_room();
    }

    /// Takes the oldest out, when it is time to send it.
    pub fn take(&mut self, now: Timestamp) -> Option<Parcel> {
        if now < self.not_before {
            return None;
        }
        let parcel = self.queue.pop_front()?;
        self.bytes -= parcel.body.len();
        self.on_its_way = parcel.items;
        Some(parcel)
    }

    /// It has arrived, and so many of its items were not wanted.
    pub fn sent(&mut self, parcel: &Parcel, rejected: u64) {
        self.on_its_way = 0;
        let rejected = rejected.min(parcel.items);
        self.failures = 0;
        self.counts.sent += parcel.items - rejected;
        self.counts.rejected += rejected;
    }

    /// It is not wanted, and would not be later.
    pub const fn refused(&mut self, parcel: &Parcel) {
        self.on_its_way = 0;
        self.failures = 0;
        self.counts.rejected += parcel.items;
    }

    /// It did not arrive; it is tried again after a pause, which whoever it is for may set.
    pub fn failed(&mut self, parcel: Parcel, now: Timestamp, pause: Option<Duration>) {
        self.on_its_way = 0;
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        let pause = pause.unwrap_or(doubled).min(LONGEST_PAUSE);
        self.failures += 1;
        self.not_before = now.after(pause);
        self.bytes += parcel.body.len();
        self.queue.push_front(parcel);
        self.make_room();
    }

    /// The time until something can be sent; `None` when nothing waits.
    #[must_use]
    pub fn pause(&self, now: Timestamp) -> Option<Duration> {
        (!self.queue.is_empty()).then(|| self.not_before.left(now))
    }

    /// Returns true where nothing is on its way, and nothing waits but what did not arrive.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.on_its_way == 0 && (self.queue.is_empty() || self.failures > 0)
    }

    /// Tries that have failed since the last that did not.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Throws away what waits, and gives up what is on its way.
    pub fn clear(&mut self) {
        self.counts.dropped += std::mem::take(&mut self.on_its_way);
        while let Some(parcel) = self.queue.pop_front() {
            self.counts.dropped += parcel.items;
        }
        self.bytes = 0;
    }

    /// Counts of all items.
    #[must_use]
    pub const fn counts(&self) -> SignalCounts {
        let mut counts = self.counts;
        counts.queued_bytes = self.bytes as u64;
        counts
    }

    fn make_room(&mut self) {
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.queue.pop_front()
        {
            self.bytes -= oldest.body.len();
            self.counts.dropped += oldest.items;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(bytes: usize, items: u64) -> Parcel {
        Parcel {
            body: vec![0; bytes].into(),
            items,
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(1).after(Duration::from_secs(seconds))
    }

    #[test]
    fn the_oldest_go_when_there_is_no_room_and_are_counted() {
        let mut outbox = Outbox::new(10);
        for items in 1..=4 {
            outbox.offer(parcel(4, items));
        }
        let counts = outbox.counts();
        assert_eq!((counts.dropped, counts.queued_bytes), (3, 8));
        let third = outbox.take(at(0)).unwrap();
        assert_eq!(third.items, 3);
        outbox.sent(&third, 1);
        // In the place that is free now; with what comes back there is no room for all.
        outbox.offer(parcel(4, 5));
        outbox.failed(third, at(0), None);
        let counts = outbox.counts();
        assert_eq!((counts.sent, counts.rejected, counts.dropped), (2, 1, 6));
        outbox.clear();
        assert_eq!(outbox.counts().dropped, 15);
        assert_eq!(outbox.pause(at(0)), None);
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_end_with_what_arrives() {
        let mut outbox = Outbox::new(100);
        outbox.offer(parcel(1, 1));
        let mut pauses = vec![];
        for _ in 0..7 {
            let now = at(1_000);
            outbox.not_before = now;
            let parcel = outbox.take(now).unwrap();
            outbox.failed(parcel, now, None);
            assert!(outbox.take(now).is_none());
            pauses.push(outbox.pause(now).unwrap().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        let parcel = outbox.take(at(1_030)).unwrap();
        outbox.failed(parcel, at(1_030), Some(Duration::from_secs(3)));
        assert_eq!(outbox.pause(at(1_030)), Some(Duration::from_secs(3)));
        let parcel = outbox.take(at(1_033)).unwrap();
        outbox.sent(&parcel, 0);
        assert_eq!((outbox.failures(), outbox.counts().sent), (0, 1));
    }
}

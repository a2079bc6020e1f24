//! Which chunks to ask for next. Pure.

use std::collections::{HashMap, HashSet};

use super::{RANGE_CHUNKS, TRIES_MAX, WINDOW_CHUNKS};

/// The chunks of one fetch.
#[derive(Debug)]
pub(super) struct Plan {
    chunks: u64,
    next: u64,
    left: u64,
    /// Asked for and not here.
    flying: HashSet<u64>,
    tries: HashMap<u64, u32>,
}

/// The treatment of a chunk that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Write it.
    New,
    /// It was not asked for, or came before.
    Unasked,
    /// It was damaged; it is to be asked for again.
    Again,
    /// It was damaged too often.
    TooBad,
}

impl Plan {
    pub(super) fn new(chunks: u64) -> Self {
        Self {
            chunks,
            next: 0,
            left: chunks,
            flying: HashSet::new(),
            tries: HashMap::new(),
        }
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// The next range to ask for (first chunk and count), when the window has room for it.
    pub(super) fn ask(&mut self) -> Option<(u64, u64)> {
        let count = RANGE_CHUNKS.min(self.chunks - self.next);
        if count == 0 || self.flying.len() as u64 + count > WINDOW_CHUNKS {
            return None;
        }
        let first = self.next;
        self.next += count;
        self.flying.extend(first..self.next);
        Some((first, count))
    }

    /// A chunk came, undamaged or not. What is asked for again stays in the window.
    pub(super) fn take(&mut self, index: u64, good: bool) -> Taken {
        if !self.flying.contains(&index) {
            return Taken::Unasked;
        }
        if good {
            self.flying.remove(&index);
            self.left -= 1;
            return Taken::New;
        }
        let tries = self.tries.entry(index).or_default();
        *tries += 1;
        if *tries < TRIES_MAX {
            Taken::Again
        } else {
            Taken::TooBad
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is damaged on the way, every chunk is taken once, in a bounded window.
        #[test]
        fn every_chunk_is_taken_once_within_the_window(
            chunks in 0u64..300,
            damage in prop::collection::vec(0u8..10, 0..400),
        ) {
            let mut plan = Plan::new(chunks);
            let mut wire = VecDeque::new();
            let mut damage = damage.into_iter();
            let mut taken = HashSet::new();
            loop {
                while let Some((first, count)) = plan.ask() {
                    wire.extend(first..first + count);
                }
                prop_assert!(wire.len() as u64 <= WINDOW_CHUNKS);
                let Some(index) = wire.pop_front() else { break };
                let bad = damage.next() == Some(0);
                match plan.take(index, !bad) {
                    Taken::New => prop_assert!(taken.insert(index)),
                    Taken::Again => wire.push_back(index),
                    Taken::TooBad => return Ok(()),
                    Taken::Unasked => prop_assert!(false, "{} was asked for", index),
                }
                prop_assert_eq!(plan.take(index, true), if bad { Taken::New } else { Taken::Unasked });
                if bad {
                    wire.retain(|other| *other != index);
                    prop_assert!(taken.insert(index));
                }
            }
            prop_assert!(plan.is_complete());
            prop_assert_eq!(taken.len() as u64, chunks);
        }
    }

    #[test]
    fn a_chunk_that_is_always_bad_ends_the_fetch() {
        let mut plan = Plan::new(1);
        plan.ask();
        let outcomes: Vec<_> = (0..TRIES_MAX).map(|_| plan.take(0, false)).collect();
        assert_eq!(
            outcomes[..outcomes.len() - 1],
            [Taken::Again; TRIES_MAX as usize - 1]
        );
        assert_eq!(outcomes.last(), Some(&Taken::TooBad));
    }
}

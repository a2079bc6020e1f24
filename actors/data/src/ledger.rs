//! The ledger: where plans were when, and what was built of them.
//!
//! It keeps what a planner knew before each step that is not durably done, and for whom it plans, so
//! that the next life of the planner goes on as if it had never been away; and the digest of each batch
//! that was built, so that one which is built again is known to be the same, and a fault is never
//! trained on.

use odeon_mesh::Mesh;
use std::collections::BTreeMap;
use std::fmt;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Failure, actor, message};

use crate::plan::{PlanState, Slice};
use crate::planner::Readers;

/// The state that a step begins with. Told before its plan is given to anybody.
#[message(name = "data.Planned")]
#[derive(Clone, Debug)]
pub struct Planned {
    /// The planner's state before it.
    pub state: PlanState,
    /// Its number.
    pub step: u64,
}

/// For whom steps are planned from now on, and who reads: told when that is no more what the planner
/// was made from.
#[message(name = "data.Arranged")]
#[derive(Clone, Debug)]
pub struct Arranged {
    /// The mesh of ranks that steps are planned for.
    pub mesh: Mesh,
    /// The loaders that read the cells of each source.
    pub readers: Readers,
}

/// Asks for the last [`Arranged`] that was told.
#[message(reply = Option<(Mesh, Readers)>, name = "data.Arrangement")]
#[derive(Clone, Debug)]
pub struct Arrangement;

/// Asks for the planner's state before a step, or before the last that is kept in front of it.
#[message(reply = Option<PlanState>, name = "data.Recall")]
#[derive(Clone, Debug)]
pub struct Recall {
    /// Which step.
    pub step: u64,
}

/// Something of a step was built.
#[message(reply = Result<(), Failure>, name = "data.Built")]
#[derive(Clone, Debug)]
pub struct Built {
    /// The step.
    pub step: u64,
    /// The product that was built.
    pub product: Product,
    /// A hash of its bytes.
    pub digest: [u8; 32],
}

/// A product of a step that ranks are given. With others a step is dealt out anew.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, odeon::Shape,
)]
#[serde(crate = "odeon::serde")]
pub enum Product {
    /// The batch of a bucket, or a slice of it.
    Batch {
        /// The bucket.
        bucket: u32,
        /// Of how many.
        buckets: u32,
        /// Which part of each sequence.
        slice: Slice,
    },
    /// The pictures that a rank encodes.
    Pictures {
        /// The rank.
        rank: u32,
        /// Of how many.
        ranks: u32,
    },
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch { bucket, .. } => write!(f, "bucket {bucket}"),
            Self::Pictures { rank, .. } => write!(f, "what rank {rank} encodes"),
        }
    }
}

/// Steps before this one are durably done: a run goes back to it at most.
#[message(name = "data.Committed")]
#[derive(Clone, Debug)]
pub struct Committed {
    /// The step.
    pub next: u64,
}

/// Asks for the counts of the ledger.
#[message(reply = LedgerCounts, name = "data.CountLedger")]
#[derive(Clone, Debug)]
pub struct CountLedger;

/// See [`CountLedger`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct LedgerCounts {
    /// Batches that were built for the first time.
    pub built: u64,
    /// Batches that were built again, each to the bit as before.
    pub again: u64,
    /// Steps that are kept.
    pub kept: u64,
}

/// The actor that remembers, for the next life of a planner, where plans were and what was built.
#[derive(Debug, Default)]
pub struct Ledger {
    states: BTreeMap<u64, PlanState>,
    arranged: Option<(Mesh, Readers)>,
    digests: BTreeMap<(u64, Product), [u8; 32]>,
    counts: LedgerCounts,
}

#[actor(name = "data.Ledger")]
impl Ledger {
    fn start(first: PlanState) -> Self {
        Self {
            states: BTreeMap::from([(first.step, first)]),
            ..Self::default()
        }
    }

    #[handler(message = Planned)]
    fn planned(&mut self, planned: Planned) {
        self.states.insert(planned.step, planned.state);
    }

    #[handler(message = Arranged)]
    fn arranged(&mut self, arranged: Arranged) {
        self.arranged = Some((arranged.mesh, arranged.readers));
    }

    #[handler(message = Arrangement)]
    fn arrangement(&mut self, _arrangement: Arrangement) -> Option<(Mesh, Readers)> {
        self.arranged.clone()
    }

    #[handler(message = Recall)]
    fn recall(&mut self, recall: Recall) -> Option<PlanState> {
        let at = self.states.range(..=recall.step).next_back();
        at.map(|(_, state)| state.clone())
    }

    #[handler(message = Built)]
    fn built(&mut self, built: Built) -> Result<(), Failure> {
        let Built {
            step,
            product,
            digest,
        } = built;
        let name = (step, product);
        match self.digests.insert(name, digest) {
            None => self.counts.built += 1,
            Some(before) if before == digest => self.counts.again += 1,
            Some(before) => {
                self.digests.insert(name, before);
                return Err(Failure::error(format!(
                    "{product} of step {step} was built again and is not what it was: a \
                     source gives other bytes than before; begin from the last checkpoint with \
                     sources that do not change"
                ))
                .fatal());
            }
        }
        Ok(())
    }

    #[handler(message = Committed)]
    fn committed(&mut self, committed: Committed) {
        let next = committed.next;
        self.digests.retain(|(step, _), _| *step >= next);
        if let Some((&from, _)) = self.states.range(..=next).next_back() {
            self.states = self.states.split_off(&from);
        }
    }

    #[handler(message = CountLedger)]
    fn count(&mut self, _count: CountLedger) -> LedgerCounts {
        LedgerCounts {
            kept: self.states.len() as u64,
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests {
    use odeon::FailureKind;

    use super::*;

    fn built(step: u64, bucket: u32, digest: u8) -> Built {
        Built {
            step,
            product: Product::Batch {
                bucket,
                buckets: 2,
                slice: Slice::WHOLE,
            },
            digest: [digest; 32],
        }
    }

    /// SEMANTICS 103.
    #[test]
    fn a_batch_that_is_built_again_and_differs_ends_the_run() {
        let mut ledger = Ledger::default();
        for fresh in [built(4, 0, 7), built(4, 1, 8), built(5, 0, 9)] {
            ledger.built(fresh).unwrap();
        }
        ledger.built(built(4, 0, 7)).unwrap();
        // What was first is what it must be, also after the difference was seen.
        for _ in 0..2 {
            let failure = ledger.built(built(4, 0, 1)).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Fatal);
            let words = failure.to_string();
            assert!(words.contains("bucket 0 of step 4"), "{words}");
        }
        ledger.built(built(4, 0, 7)).unwrap();
        let counts = ledger.count(CountLedger);
        assert_eq!((counts.built, counts.again), (3, 2));
        // What is durably done is never built again.
        ledger.committed(Committed { next: 5 });
        ledger.built(built(4, 0, 1)).unwrap();
        ledger.built(built(5, 0, 1)).unwrap_err();
    }
}

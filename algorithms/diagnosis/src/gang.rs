//! Programs on many ranks, seen from outside: which of those that ended failed first, and which of those that run make
//! no progress, crawl, or print numbers that are none. Nothing of it needs code in the program.

mod first_failure;
mod output;
mod progress;
mod stacks;

pub use first_failure::{FallenRank, FallenRankEnd, first_failure, lost_its_peer};
pub use output::{LineProgress, NumberKind};
pub use progress::{
    OddNumber, OddNumbers, Others, RankDetectors, RankLook, RankTrouble, SlowRanks, StillRanks,
};
#[cfg(feature = "stacks")]
pub use stacks::read_py_spy;
pub use stacks::{StackCluster, StackFrame, ThreadStack, cluster_stacks, outliers, smallest_group};

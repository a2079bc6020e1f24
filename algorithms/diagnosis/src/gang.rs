//! Programs on many ranks, seen from outside: which of those that ended failed first. Nothing of it needs code in the
//! program.

mod first_failure;

pub use first_failure::{FallenRank, FallenRankEnd, first_failure, lost_its_peer};

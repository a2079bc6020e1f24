//! NCCL's flight recorder: dumps of any training program on PyTorch, and the ranks to blame for what hangs in them.
//!
//! A rank keeps its last calls of collectives in a ring, and writes them when one does not end in time
//! (`TORCH_NCCL_TRACE_BUFFER_SIZE`, `TORCH_NCCL_DUMP_ON_TIMEOUT`). [`FlightDump`] reads one, [`UnfinishedCollectives`]
//! judges those of all ranks together.

mod dump;
mod pickle;
#[cfg(test)]
mod tests;
mod unfinished;

pub use dump::{DumpError, FlightDump, FlightEntry, FlightGroup, FlightState};
pub use unfinished::{FlightCall, FlightCause, FlightDumps, UnfinishedCollectives};

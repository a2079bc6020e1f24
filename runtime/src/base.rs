//! The vocabulary: ids, failures, limits, clocks, shapes, spans. It knows of no frame, no actor that runs
//! and no process.

pub(crate) mod answer;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod failure;
pub(crate) mod id;
pub(crate) mod id_map;
pub(crate) mod journal;
pub(crate) mod limits;
pub(crate) mod message;
pub(crate) mod needs;
pub(crate) mod panic_place;
pub(crate) mod random;
pub(crate) mod recent;
pub mod shape;
pub(crate) mod sketch;
pub mod supervise;
pub mod trace;

//! The view of running systems, put together from what each of their processes shows.
//!
//! ```text
//!  processes ── Sight ──> node ── NodeSight ──> Observatory ── rows, waits, spans, problems ──> faces
//! ```
//!
//! Each process shows what has changed since it was last looked at ([`odeon::inspect`]). An
//! [`Observatory`] takes these looks in, one node at a time, and keeps the picture of now, the dead,
//! and what has happened, each within stated [`bounds`]. It is told the time and does nothing by
//! itself, so that a recorded run shows the same as a living one. An [`Observer`] shares one, and looks.
//!
//! Knows: what the runtime shows of itself. Does not know: HTTP, terminals, the catalog of a cluster.

#![forbid(unsafe_code)]

pub mod actor;
pub mod bounds;
mod date;
pub mod event;
pub mod filter;
pub mod lint;
pub mod node;
pub mod observatory;
mod observer;
pub mod past;
pub mod recording;
pub mod series;
pub mod spans;
pub mod timeline;
pub mod trace;
pub mod waits;

/// The job that what the system itself runs belongs to.
pub const SYSTEM_JOB: &str = "odeon";

pub use date::Date;
pub use observatory::Observatory;
pub use observer::{Observer, Viewer, here, today};
pub use recording::{Recorder, Recording};

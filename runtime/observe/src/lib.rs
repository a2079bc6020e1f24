//! The view of running systems, put together from what each of their processes shows.
//!
//! ```text
//!  processes ── Sight ──> node ── NodeSight ──> ClusterView ── rows, waits, spans, problems ──> faces
//! ```
//!
//! Each process shows what has changed since it was last looked at ([`odeon::inspect`]). An
//! [`ClusterView`] takes these looks in, one node at a time, and keeps the picture of now, the dead,
//! and what has happened, each within stated [`bounds`]. It is told the time and does nothing by
//! itself, so that a recorded run shows the same as a living one. An [`Observer`] shares one, and looks.
//!
//! Knows: what the runtime shows of itself. Does not know: HTTP, terminals, the catalog of a cluster.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `cluster_view`, `cluster_view/*` | the picture of a system, told the time, which does nothing by itself: how looks get into it (`look`), numbers over time (`numbers`) |
//! | `observer` | a picture that is shared, with those who look on |
//! | `past` | what outlives an observer: its news since a mark, and how the next one recalls it |
//! | `actor`, `node`, `spans`, `spans/ring`, `event`, `series` | rows of the picture, those that have ended too; numbers over time |
//! | `machines`, `machines/*` | numbers of machines second by second (`history`), and which machines do the same for a job (`alike`), beside each other (`heat`) |
//! | `detectors`, `detectors/*` | findings of what is wrong, each detector in a file; the rules with what is done and what people can do (`rules`). Pure |
//! | `problems` | which findings are one problem, since when it lasts, and when it is over |
//! | `waits`, `trace`, `timeline`, `filter` | chains and circles of waits; one trace and its critical path; lanes of time; the language in which people choose actors. All pure |
//! | `passes` | ranks of a training run and the passes of its pipeline, as they record them |
//! | `recording`, `recording/*` | all that a cluster view is told, as a file: written block by block (`write`), read up to where it is whole (`read`) |
//! | `date`, `bounds` | moments of different clocks on one axis; how much is kept, and from when on something is a problem |

#![forbid(unsafe_code)]

pub mod actor;
pub mod bounds;
pub mod cluster_view;
mod date;
pub mod detectors;
pub mod event;
pub mod filter;
pub mod machines;
pub mod node;
mod observer;
pub mod passes;
pub mod past;
mod problems;
pub mod recording;
pub mod series;
pub mod spans;
pub mod timeline;
pub mod trace;
pub mod waits;

/// The job that what the system itself runs belongs to.
pub const SYSTEM_JOB: &str = "odeon";

pub use cluster_view::ClusterView;
pub use date::Date;
pub use observer::{Observer, Viewer, here, today};
pub use problems::PastProblem;
pub use recording::{Recorder, Recording};

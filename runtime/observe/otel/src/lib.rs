//! Exports of what is seen of running systems, told to other tools.
//!
//! ```text
//!  ClusterView ── Reader ──> spans, numbers, records ── Outbox ── HTTP ──> a collector (OTLP)
//!       └──────── Exposition ──> text ──> whoever scrapes (Prometheus)
//! ```
//!
//! An export reads a [`ClusterView`](odeon_observe::ClusterView), as a page in a browser does: it
//! enters no mailbox, and what it cannot send in time it counts and throws away, so that the run is
//! never slower for it. What is new since the last look ([`Reader`]) and what waits to be sent
//! ([`Outbox`]) are pure; [`Exporter`] is the thin rest.
//!
//! Names follow the semantic conventions of OpenTelemetry where these have one, and begin with
//! `odeon.` elsewhere. [`metric::METRICS`] lists every number.
//!
//! Knows: OTLP over HTTP, the text format of Prometheus. Does not know: who leads a cluster, keys.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `reader`, `numbers`, `tally` | what is new since the last look; all numbers as they are now; counts by type that never go down. Pure |
//! | `resource`, `span`, `log`, `metric`, `attributes` | rows as OpenTelemetry has them; `metric` is the list of all numbers |
//! | `outbox` | requests that wait to be sent: bounds, pauses, losses. Pure |
//! | `settings`, `post`, `exporter` | where to; one request; the tasks that read and send |
//! | `prometheus` | the text that is scraped |

#![forbid(unsafe_code)]

mod attributes;
mod exporter;
mod log;
pub mod metric;
mod numbers;
mod outbox;
mod post;
pub mod prometheus;
mod reader;
mod resource;
mod settings;
mod span;
mod tally;

pub use exporter::{Counting, ExportSource, Exporter, ProbeError};
pub use outbox::{Counts, Outbox, Parcel, Signal, SignalCounts};
pub use prometheus::Exposition;
pub use reader::{Export, OVERLAP, Reader};
pub use resource::Names;
pub use settings::{Endpoint, Settings, SettingsError};

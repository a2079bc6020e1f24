//! The data plane: sources, loading plans, and the actors that carry them out.
//!
//! ```text
//!  files, buckets                                     metadata alone
//!     │                                 ┌───────────────> Planner ──┐ plan of step k
//!     v            cells                │ what a cell has           v
//!  source ──> SourceLoader, ShadowLoader ── samples ──> DataConstructor ── batches ──> DataClient, rank
//! ```
//!
//! A [`source`] is files whose records come in an order that follows from a seed, cell by cell; what
//! a record becomes is a function of source, epoch and record alone. So every sample has a name
//! ([`sample::SampleId`]) that means the same whoever makes it, however often.
//! [`plan`] decides which samples a step has and who gets them; it sees lengths and never bytes.
//!
//! The crate does not know models, optimisers or terminals.

#![forbid(unsafe_code)]

mod asking;
pub mod client;
pub mod constructor;
pub mod corpus;
pub mod ledger;
pub mod loader;
pub mod pack;
pub mod plan;
pub mod plane;
pub mod planner;
pub mod sample;
pub mod source;
pub mod transform;

/// All actors of this crate: what a program that uses a data plane, and each of its worker processes,
/// can host.
#[must_use]
pub fn job() -> odeon::Job {
    use client::DataClient;
    use constructor::DataConstructor;
    use ledger::Ledger;
    use loader::{ShadowLoader, SourceLoader};
    use planner::Planner;
    odeon::job![
        DataClient,
        DataConstructor,
        Ledger,
        Planner,
        ShadowLoader,
        SourceLoader
    ]
}

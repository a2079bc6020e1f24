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
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `sample`, `pack`, `pack/slice` | samples: names, what a plan sees of them, bytes; those of a micro-batch packed one after the other, and a part of each for context parallelism |
//! | `source`, `source/*` | files as records in an order: how they are found and stored (`finding`, `pattern`, `storage`, `spool`), cut into blocks (`index`, `format/*`), read (`reading`), ordered (`order`, pure), what goes wrong (`fault`), what is left out (`left_out`), which files are this machine's (`on_disk`), and what files were when they were read (`file_state`, pure) |
//! | `transform`, `transform/*` | what a record becomes: tokens, patches. A function of source, epoch and record |
//! | `corpus` | published corpora, pinned by checksum |
//! | `plan`, `plan/*` | which samples a step has and who gets them; who reads how many sources, and when that changes. Pure |
//! | `loader`, `loader/shelf` | loaders that read cells ahead of need and hand samples out, and those that stand in for them; the cells of one |
//! | `planner`, `planner/account`, `ledger` | the actor that has plans ready; what was left out of the cells that it has heard of; what its next life has to know |
//! | `constructor` | the actors that make batches of samples, near those who train on them |
//! | `client` | the actor that brings a rank its batches: from a constructor, or from the rank that fetches for it |
//! | `check` | reading sources through without actors: what a run would have of them |
//! | `asking` | asking a loader, and its shadow when it is late |
//! | `plane`, `plane/found` | all of that as a graph; what is found of its sources |

#![forbid(unsafe_code)]

mod asking;
pub mod check;
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

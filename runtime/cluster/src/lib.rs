//! A cluster of Odeon nodes: its memory, its jobs, and the daemon that a machine runs.
//!
//! ```text
//!  submit ─ files, cut into pieces ─> Store          a daemon per machine:
//!         └ JobSubmitted ─> Catalog                    Daemon ─ engine, links, Mesh
//!                              │ the same tables on every voter   │
//!                              v                                  v
//!                           Keeper ── begin, finish ──────────> Agent ─ Stage, Driver, Forward
//!                              ^                                  │
//!                              └───────── Started, Over ──────────┘
//! ```
//!
//! - The [`catalog`] is what the cluster remembers: nodes, jobs, keys, quotas. [`tables`] is a pure
//!   state machine; openraft replicates it, redb keeps it.
//! - The [`keeper`] acts while its node leads the voters: [`keeper::plan`] says what is next.
//! - An agent on each node brings a job's files there ([`odeon_artifacts`]), runs its driver, and
//!   tells the catalog how that ends; [`tries`] says what begins and what has to end.
//! - What jobs print goes to the voters' [`logs`].
//!
//! Daemons are an Odeon program: they reach each other through actors and names, over the links that
//! the jobs use too. HTTP is not known here; the `odeon` command brings it.

#![forbid(unsafe_code)]

pub mod access;
pub mod admit;
mod agent;
pub mod catalog;
pub mod daemon;
pub mod fact;
pub mod folder;
mod forward;
mod history;
pub mod hollow;
pub mod job;
mod json;
pub mod keeper;
mod left;
pub mod logs;
pub mod named;
mod observer;
mod presence;
mod raft;
pub mod seat;
mod stage;
mod strays;
pub mod submit;
pub mod tables;
pub mod tries;
pub mod unix;
pub mod upgrade;
mod voting;

pub use daemon::{Daemon, DaemonConfig, DaemonError, Entry};
pub use stage::demand::OnDemand;

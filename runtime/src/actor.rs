//! Actors: their traits, mailboxes and loops, the engine of a process with its rows and its router, names,
//! asks and tells.

pub(crate) mod act;
pub(crate) mod actor_type;
pub(crate) mod blocked;
pub(crate) mod cell;
#[doc(hidden)]
pub mod check;
mod company;
pub(crate) mod console;
pub(crate) mod engine;
pub(crate) mod envelope;
pub mod foreign;
pub(crate) mod handler;
pub(crate) mod host;
pub(crate) mod io_watchdog;
pub(crate) mod mail;
#[doc(hidden)]
pub mod manifest;
pub(crate) mod names;
pub(crate) mod panic_hook;
pub(crate) mod pending;
pub(crate) mod placing;
pub(crate) mod registry;
pub(crate) mod remote;
pub(crate) mod replies;
pub(crate) mod request;
pub(crate) mod service_row;
pub(crate) mod spawn;
pub(crate) mod stats;
pub(crate) mod task_context;
pub(crate) mod tasks;
pub mod telemetry;
pub(crate) mod timers;
pub(crate) mod user_code;
pub(crate) mod waits;

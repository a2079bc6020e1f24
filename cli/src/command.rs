//! The commands, one a file.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod cluster;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod eval;
mod export;
pub(crate) mod fetch;
pub(crate) mod gang;
pub(crate) mod generate;
pub(crate) mod job;
pub(crate) mod kill;
pub(crate) mod model;
pub(crate) mod plan;
pub(crate) mod processes;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod signals;
pub(crate) mod ui;
mod upgrade;
pub(crate) mod why;

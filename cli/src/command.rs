//! The commands, one a file.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod cluster;
pub(crate) mod daemon;
pub(crate) mod devices;
pub(crate) mod eval;
pub(crate) mod events;
pub(crate) mod fetch;
pub(crate) mod gang;
pub(crate) mod generate;
pub(crate) mod job;
pub(crate) mod kill;
pub(crate) mod model;
mod pages;
pub(crate) mod plan;
pub(crate) mod processes;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod signals;
pub(crate) mod stack;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod ui;
mod upgrade;
pub(crate) mod watched;
pub(crate) mod why;

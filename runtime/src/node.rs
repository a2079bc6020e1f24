//! The parts of a node beside its actors: worker processes, devices and their leases, blobs, gangs, views, and
//! its passage to another program.

pub(crate) mod blob;
pub(crate) mod detached;
pub(crate) mod device_manager;
pub(crate) mod driver;
pub(crate) mod flows;
pub(crate) mod gang;
pub(crate) mod handoff;
pub mod inspect;
pub(crate) mod printed_lines;
pub(crate) mod program;
pub(crate) mod program_stack;
pub mod upgrade;
pub(crate) mod worker;

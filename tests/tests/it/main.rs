//! Tests that cross crates and processes, in one binary: a test that starts it again names its module
//! (see `odeon_tests::again`), and one that counts or sets what belongs to the process runs alone.

mod actors;
mod bindings;
mod blobs;
mod cluster;
mod collectives;
mod daemons;
mod detached;
mod devices;
mod frames;
mod groups;
mod hosts;
mod inspect;
mod links;
mod macros;
mod on_demand;
mod semantics;
mod simulation;
mod spans;
mod stubborn;
mod supervision;
mod workers;

//! The command as people use it: its binary, its files, its exit codes, and clusters of its daemons.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod bench;
mod brought;
mod cli;
mod cluster;
mod faults;
mod gang;
mod inspect;
mod nodes;
mod programs;
mod reservations;
#[path = "../../../algorithms/tests/golden/unpack.rs"]
mod unpack;
mod upgrade;
mod voters;

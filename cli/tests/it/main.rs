//! The command as people use it: its binary, its files, its exit codes, and clusters of its daemons.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod bench;
mod cli;
mod cluster;
mod faults;
mod gang;
mod inspect;
mod nodes;
mod own_data;
mod reservations;
mod upgrade;
mod voters;

//! The command as people use it: its binary, its files, its exit codes, and clusters of its daemons.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod bench;
mod brought;
mod cli;
mod clock;
mod cluster;
mod diagnosis;
mod elastic;
mod faults;
mod gang;
mod group_test;
mod inspect;
mod ipv6;
mod nodes;
mod orders;
mod own_data;
mod pretraining;
mod programs;
mod recover;
mod reinforcement;
mod reservations;
mod stacks;
mod startup;
#[path = "../../../algorithms/tests/golden/unpack.rs"]
mod unpack;
mod updates;
mod upgrade;
mod voters;

/// A section of the page for who brings something of their own.
fn section(title: &str) -> &'static str {
    let page = include_str!("../../../docs/bring-your-own.md");
    let from = page.split(&format!("\n## {title}\n")).nth(1).unwrap();
    from.split("\n## ").next().unwrap()
}

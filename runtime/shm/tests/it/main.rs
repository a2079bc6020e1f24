//! Regions and collectives between real processes, each of which is this program run again.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests; the other processes talk through their output"
)]

mod collectives;
mod processes;

use std::env;
use std::process::Command;
use std::time::Duration;

/// Looks until something is so, for a minute at least.
fn eventually(what: &str, mut fact: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if fact() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("waited in vain for {what}");
}

/// This program with one test alone, of a module by its `module_path!()`.
fn again(module: &str, test: &str) -> Command {
    // The first part is the binary.
    let (_, module) = module.split_once("::").unwrap();
    let name = format!("{module}::{test}");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([&name, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

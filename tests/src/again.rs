//! Test binaries that start themselves again with one test alone: a worker, another node, or a test
//! that wants a process to itself.
//!
//! A test is known by its module and its name; a module says what it is by `module_path!()`.

use std::process::Command;

use odeon::WorkerCommand;

/// The variable that is set in a process which one test has to itself.
const ALONE: &str = "ODEON_TEST_ALONE";

/// The name by which a test binary knows a test.
pub fn name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        // The first part is the binary.
        Some((_, inside)) => format!("{inside}::{test}"),
        None => test.to_owned(),
    }
}

/// Workers that are this binary again. The module needs a test `worker_entry` that becomes one.
pub fn worker(module: &str) -> WorkerCommand {
    let worker = WorkerCommand::current_exe().unwrap();
    worker.arg(name(module, "worker_entry")).arg("--exact")
}

/// Runs a test in a process of its own: false when it has passed there, true where it is that process
/// and the test is to go on.
pub fn alone(module: &str, test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([&name(module, test), "--exact", "--nocapture"]);
    expect_passed(again.env(ALONE, "1"));
    false
}

/// Runs a test binary that is to pass one test, and shows what it says.
pub fn expect_passed(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    // A name that fits no test is a success, too.
    let passed = said.contains("test result: ok. 1 passed");
    assert!(output.status.success() && passed, "see above");
}

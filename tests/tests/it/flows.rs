//! A rank of sixteen processes that is stopped, as an observer finds it by the records of collectives.

use std::process::Command;

/// SEMANTICS 168.
#[test]
fn a_stopped_process_of_sixteen_is_named_within_seconds() {
    let program = env!("CARGO_BIN_EXE_flow_faults");
    let output = Command::new(program)
        .args(["stopped", "1", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.starts_with('{'));
    let line = line.unwrap_or_else(|| panic!("{output:?}"));
    let found: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(found["right_rank"], true, "{line}");
    assert_eq!(found["right_class"], true, "{line}");
    assert!(output.status.success());
}

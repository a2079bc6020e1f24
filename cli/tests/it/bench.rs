//! The measurements of `odeon bench`.

use std::process::Command;

use serde_json::Value;

use crate::nodes::text;

/// Each group that takes seconds gives numbers: processes, other nodes and floors are begun by the command
/// itself, and one that cannot begin is an error.
#[test]
fn every_group_measures_what_it_says() {
    for (group, row) in [
        ("local", "local ask"),
        ("unix", "unix asks, 1000 outstanding"),
        ("quic", "spawn light actors on another node"),
        ("spawn", "isolated actor ready"),
        ("trace", "ask, sampled"),
        ("timer", "tick of a timer"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_odeon"))
            .args(["bench", group, "--rounds", "1", "--json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{group}: {}", text(&output.stderr));
        let out = text(&output.stdout);
        let rows = out
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let values: Vec<(String, Value)> = rows
            .map(|row| {
                (
                    row["name"].as_str().unwrap().to_owned(),
                    row["value"].clone(),
                )
            })
            .collect();
        let said = |(_, value): &(String, Value)| value.as_f64().is_some_and(|it| it >= 0.0);
        assert!(values.iter().all(said), "{group}: {values:?}");
        assert!(values.iter().any(|(name, _)| name == row), "{values:?}");
    }
}

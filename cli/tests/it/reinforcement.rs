//! Runs of reinforcement learning as jobs of a cluster, whose models several ranks share: where these are, and what
//! becomes of a run when a node of theirs is killed.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::nodes::{Nodes, eventually, text};
use crate::pretraining::up;

/// A recipe whose trainer has two stages, each on a rank that reserves so many processors.
fn recipe(place: &Path, cores: usize) {
    let text = format!(
        r#"
[run]
name = "sent"
seed = 3
out = "results"
[model]
hidden = 16
layers = 2
heads = 2
kv_heads = 2
ffn = 32
context = 16
[task.sums]
form = "compact"
operands_min = 2
operands_max = 2
digits_min = 1
digits_max = 1
[warmup]
steps = 40
batch = 8
lr = 2e-3
[rl]
algorithm = "grpo"
steps = 300
groups = 4
group_size = 4
lr = 6e-4
response_max = 4
checkpoint_every = 10
[processes]
ranks = 2
slots = 8
[parallel]
pp = 2
[placement]
trainer_cpus = {cores}.0
[eval]
problems = 4
"#
    );
    fs::create_dir_all(place.join("work")).unwrap();
    fs::write(place.join("work/r.toml"), text).unwrap();
}

/// Submits something from the folder of the test.
fn submit(nodes: &Nodes, args: &[&str]) {
    let all = [&["submit"], args].concat();
    let mut command = nodes.command("head", &all);
    let output = command.current_dir(nodes.folder.path().join("work"));
    let output = output.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// SEMANTICS 155, 156.
#[test]
fn a_node_of_the_ranks_of_a_trainer_that_is_killed_costs_no_try_and_no_step() {
    let nodes = up();
    let place = nodes.folder.path();
    let cores = std::thread::available_parallelism().unwrap().get();
    recipe(place, cores);
    // A rank takes all processors of a node, and those of one are taken: the two ranks are on the others.
    let all = format!("--cpus={cores}");
    let sleep = ["/bin/sleep", "--", "600"];
    submit(
        &nodes,
        &[&["--name=full", "--node=node-3", all.as_str()], &sleep[..]].concat(),
    );
    eventually("a full node", || {
        nodes.job("head", "full")["state"] == "running"
    });
    submit(&nodes, &["--node=head", "--name=sent", "r.toml"]);
    let told = || {
        let metrics = fs::read_to_string(place.join("work/results/sent/metrics.jsonl"));
        metrics.unwrap_or_default()
    };
    // Of the reinforcement, behind all supervised steps.
    eventually("a checkpoint", || {
        told().contains("\"Saved\":{\"warmup\":40,\"version\":10}")
    });
    let why = || nodes.ok("head", &["why", "sent"]);
    eventually("stages that are seen", || why().contains(" has stage"));
    let said = why();
    assert!(said.contains("ranks of trainer: head has stage"), "{said}");
    assert_eq!(said.matches("node-2 has stage").count(), 1, "{said}");
    assert!(said.contains("of copy 0 crosses"), "{said}");
    assert!(!said.contains("\ntrainer-rank-0 ("), "{said}");
    nodes.kill("node-2");
    eventually("ranks that wait", || told().contains("\"Waiting\""));
    eventually("what is in the way", || why().contains("node-3 has 0 of"));
    nodes.ok("head", &["stop", "full"]);
    nodes.ok("head", &["wait", "sent"]);
    assert_eq!(nodes.job("head", "sent")["tries"], 1);
    // Each step is made, those behind the last checkpoint again.
    let told = told();
    let lines = told.lines();
    let lines: Vec<Value> = lines
        .filter_map(|it| serde_json::from_str(it).ok())
        .collect();
    let steps = lines.iter().filter_map(|it| it["Step"]["version"].as_u64());
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable();
    steps.dedup();
    assert_eq!(steps, (1..=300).collect::<Vec<_>>(), "{told}");
    let lives = lines
        .iter()
        .filter_map(|it| it["Resumed"]["incarnation"].as_u64());
    assert_eq!(lives.max(), Some(2), "{told}");
}

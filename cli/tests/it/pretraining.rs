//! Pretraining runs as jobs of a cluster: three daemons of this machine, and what becomes of a run when one is
//! killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::nodes::{Nodes, eventually, found, text};

const NAMES: [&str; 3] = ["head", "node-2", "node-3"];

/// Three nodes of this machine, all of which vote.
pub(crate) fn up() -> Nodes {
    let mut nodes = Nodes::new(|_| vec![]);
    let head = nodes.folder.path().join("head");
    nodes.add("head", &head);
    for name in &NAMES[1..] {
        nodes.add(name, &head.join("nodes").join(name));
    }
    let up = [
        "up",
        "--api",
        "127.0.0.1:0",
        "--name",
        "head",
        "--nodes=3",
        "--voters",
    ];
    nodes.ok("head", &up);
    nodes
}

/// A recipe with sources beside it and elsewhere, below a folder of each test.
pub(crate) fn recipe(place: &Path, steps: u32) {
    let write = |name: &str, text: String| {
        let path = place.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let lines = |word: &str| {
        let line = |n| format!("{{\"text\": \"{word} {n:04}\"}}\n");
        (0..200).map(line).collect::<String>()
    };
    write("work/texts/a.jsonl", lines("left"));
    write("work/texts/more/b.jsonl", lines("right"));
    write("elsewhere/notes.txt", "a line\nanother line\n".repeat(50));
    let elsewhere = place.join("elsewhere/notes.txt").display().to_string();
    let recipe = format!(
        r#"
[run]
name = "sent"
seed = 3
out = "results"
deterministic = true
[model]
hidden = 8
layers = 1
heads = 2
kv_heads = 1
ffn = 8
context = 64
[pretrain]
steps = {steps}
checkpoint_every = 5
[processes]
ranks = 2
[plan]
step = {{ samples = 4 }}
[plan.mixture.sources.texts]
weight = {{ constant = 1.0 }}
[plan.mixture.sources.notes]
weight = {{ constant = 1.0 }}
[data]
cache = "cache"
[eval]
every = 20
tokens = 64
one_of = 4
[[source]]
name = "texts"
path = "texts/**/*.jsonl"
format = {{ jsonl = {{ text = "text" }} }}
context = 64
block_bytes = 200
[[source]]
name = "notes"
path = "{elsewhere}"
format = {{ text = {{ document = "line" }} }}
context = 64
block_bytes = 100
"#
    );
    write("work/r.toml", recipe);
}

/// The same with two stages.
fn staged(place: &Path, steps: u32) {
    recipe(place, steps);
    let path = place.join("work/r.toml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("layers = 1", "layers = 2");
    fs::write(path, text + "[parallel]\npp = 2\n").unwrap();
}

/// The losses of all steps as the run has them at its end, by their bits.
pub(crate) fn losses(place: &Path) -> Vec<(u64, u64)> {
    let told = fs::read_to_string(place.join("work/results/sent/metrics.jsonl")).unwrap();
    let lines = told
        .lines()
        .filter_map(|it| serde_json::from_str::<Value>(it).ok());
    let mut losses = std::collections::BTreeMap::new();
    for line in lines {
        let step = &line["Step"];
        if let (Some(number), Some(loss)) = (step["step"].as_u64(), step["loss"].as_f64()) {
            losses.insert(number, loss.to_bits());
        }
    }
    losses.into_iter().collect()
}

fn alone(place: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
    command
        .args(["run", "--no-ui", "r.toml"])
        .env_remove("ODEON_LOG");
    command.current_dir(place.join("work")).output().unwrap()
}

/// The losses of a recipe when it runs here and by itself.
pub(crate) fn expected(recipe: fn(&Path, u32), steps: u32) -> Vec<(u64, u64)> {
    let folder = tempfile::tempdir().unwrap();
    recipe(folder.path(), steps);
    let output = alone(folder.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let losses = losses(folder.path());
    assert_eq!(losses.len(), steps as usize);
    losses
}

/// SEMANTICS 136.
#[test]
fn a_pretraining_recipe_has_the_losses_on_a_cluster_that_it_has_alone() {
    let nodes = up();
    let place = nodes.folder.path();
    recipe(place, 20);
    let work = place.join("work");
    let run = |args: &[&str]| {
        let command = nodes.command("head", args).current_dir(&work).output();
        command.unwrap()
    };
    // A rank that reserves all processors of its node leaves none there to the other: they are on two nodes.
    let cores = std::thread::available_parallelism().unwrap();
    let apart = format!("placement.rank_cpus={cores}.0");
    let output = run(&["run", "r.toml", "--cluster", "--set", &apart]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(losses(place), expected(recipe, 20), "{said}");
    // Here it is known as the same run: nothing is left to do.
    let output = alone(place);
    let said = text(&output.stderr);
    assert!(said.contains("is done: 20 of 20 steps"), "{said}");
    // A source that is not there is refused before anything is sent.
    fs::remove_dir_all(work.join("texts")).unwrap();
    let output = run(&["submit", "r.toml"]);
    let said = text(&output.stderr);
    assert!(
        !output.status.success() && said.contains("r.toml:33: source `texts`"),
        "{said}"
    );
}

/// SEMANTICS 136.
#[test]
fn a_pretraining_run_whose_node_is_killed_goes_on_with_the_same_losses() {
    let nodes = up();
    let place = nodes.folder.path();
    recipe(place, 400);
    let work = place.join("work");
    let submit = ["submit", "--retries=1", "--name=sent", "r.toml"];
    let output = nodes
        .command("head", &submit)
        .current_dir(&work)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = || {
        let metrics = work.join("results/sent/metrics.jsonl");
        fs::read_to_string(metrics).unwrap_or_default()
    };
    eventually("a checkpoint", || told().contains("\"Saved\""));
    let node = nodes.job("head", "sent")["node"].clone();
    let node = node.as_str().unwrap();
    nodes.kill(node);
    let other = nodes.others(node).remove(0);
    nodes.ok(&other, &["wait", "sent"]);
    assert_eq!(nodes.job(&other, "sent")["tries"], 2);
    assert_eq!(losses(place), expected(recipe, 400));
}

/// SEMANTICS 155, 156.
#[test]
fn a_node_of_ranks_alone_that_is_killed_costs_no_number_and_no_try() {
    let nodes = up();
    let place = nodes.folder.path();
    staged(place, 1000);
    let work = place.join("work");
    let submit = |args: &[&str]| {
        let all = [&["submit"], args].concat();
        let output = nodes
            .command("head", &all)
            .current_dir(&work)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    // A rank takes all processors of a node, and those of one are taken: the two ranks are on the others.
    let cores = std::thread::available_parallelism().unwrap();
    let all = format!("--cpus={cores}");
    submit(&[
        "--name=full",
        "--node=node-3",
        &all,
        "/bin/sleep",
        "--",
        "600",
    ]);
    eventually("a full node", || {
        nodes.job("head", "full")["state"] == "running"
    });
    let apart = format!("placement.rank_cpus={cores}.0");
    submit(&[
        "--node=head",
        "--name=sent",
        "r.toml",
        "--",
        "--set",
        &apart,
    ]);
    let told = || {
        let metrics = work.join("results/sent/metrics.jsonl");
        fs::read_to_string(metrics).unwrap_or_default()
    };
    eventually("a checkpoint", || told().contains("\"Saved\""));
    let why = || nodes.ok("head", &["why", "sent"]);
    eventually("stages that are seen", || why().contains(" has stage"));
    let said = why();
    assert_eq!(said.matches("node-2 has stage").count(), 1, "{said}");
    assert!(said.contains("of copy 0 crosses"), "{said}");
    nodes.kill("node-2");
    eventually("ranks that wait", || told().contains("\"Waiting\""));
    eventually("what is in the way", || why().contains("node-3 has 0 of"));
    nodes.ok("head", &["stop", "full"]);
    nodes.ok("head", &["wait", "sent"]);
    assert_eq!(nodes.job("head", "sent")["tries"], 1);
    assert_eq!(losses(place), expected(staged, 1000));
}

/// SEMANTICS 178, 179.
#[test]
fn a_rank_that_is_stopped_on_another_node_is_ended_there_and_the_reason_is_told() {
    let nodes = up();
    let place = nodes.folder.path();
    recipe(place, 400);
    let work = place.join("work");
    let cores = std::thread::available_parallelism().unwrap();
    // Each rank takes all processors of a node, so that one of the two is not on the driver's.
    let apart = format!("placement.rank_cpus={cores}.0");
    let submit = [
        "submit",
        "--node=head",
        "--name=sent",
        "r.toml",
        "--set",
        &apart,
        "--set",
        "recovery.hang_seconds=3",
    ];
    let output = nodes.command("head", &submit).current_dir(&work).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = || {
        let metrics = work.join("results/sent/metrics.jsonl");
        fs::read_to_string(metrics).unwrap_or_default()
    };
    eventually("a checkpoint", || told().contains("\"Saved\""));
    let pid = found("a rank elsewhere", || {
        let listed = nodes.ok("head", &["ps", "--filter", "name:rank-"]);
        let ranks = listed.lines().filter(|line| line.starts_with("rank-"));
        let mut elsewhere = ranks.filter(|line| !line.contains(" head "));
        elsewhere.next()?.split_whitespace().last()?.parse().ok()
    });
    let pid = Pid::from_raw(pid).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    eventually("what was done", || told().contains("\"Recovery\""));
    let why = "it is made again in its place (restart 1 of 10";
    assert!(told().contains(why), "{}", told());
    eventually("its end", || test_kill_process(pid).is_err());
    nodes.ok("head", &["wait", "sent"]);
    assert_eq!(nodes.job("head", "sent")["tries"], 1);
    assert_eq!(losses(place), expected(recipe, 400));
}

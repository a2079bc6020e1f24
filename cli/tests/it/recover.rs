//! `odeon recover`: a person's hand on the recovery of a job's ranks, through the daemons.

use std::fs;

use crate::nodes::{eventually, text};
use crate::pretraining::{recipe, up};
use crate::programs::Node;

/// SEMANTICS 199, 201, 202.
#[test]
fn what_people_order_about_the_ranks_of_a_job_is_done_and_outlives_its_driver() {
    let nodes = up();
    let place = nodes.folder.path();
    // More steps than are made meanwhile.
    recipe(place, 1_000_000);
    let work = place.join("work");
    // Each rank takes all processors of a node, of which there is one more.
    let cores = std::thread::available_parallelism().unwrap();
    let apart = format!("placement.rank_cpus={cores}.0");
    let submit = [
        "submit",
        "--retries=1",
        "--name=sent",
        "r.toml",
        "--set",
        &apart,
    ];
    let output = nodes.command("head", &submit).current_dir(&work).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = || {
        let metrics = work.join("results/sent/metrics.jsonl");
        fs::read_to_string(metrics).unwrap_or_default()
    };
    eventually("a checkpoint", || told().contains("\"Saved\""));
    let shown = nodes.ok("head", &["recover", "sent"]);
    assert!(shown.contains("nothing is forbidden"), "{shown}");
    assert!(shown.contains("10 of 10 restarts are left"), "{shown}");
    let why = "--why=a debugger is there";
    let said = nodes.ok("head", &["recover", "sent", "forbid", "end_process", why]);
    assert!(
        said.contains("forbids end_process: a debugger is there"),
        "{said}"
    );
    eventually("the problem", || {
        let why = nodes.ok("head", &["why", "sent"]);
        why.contains("end_process is not done by itself about the ranks of a job")
    });
    // From another node, for a rank that may be on a third.
    let force = [
        "recover",
        "sent",
        "force",
        "evict_node",
        "--rank=1",
        "--why=it is mine",
    ];
    let said = nodes.ok("node-2", &force);
    assert!(said.contains("asked for it: it is mine"), "{said}");
    eventually("its next life", || {
        told().matches("\"Resumed\"").count() >= 2
    });
    let shown = nodes.json("head", &["recover", "sent", "--json"]);
    let left = shown["avoided"][0].as_str().unwrap().to_owned();
    assert!(said.contains(&format!("rank 1 on node {left}")), "{said}");
    nodes.ok("head", &["node", "allow", &left, "--why=it is well"]);
    let shown = nodes.ok("head", &["recover", "sent"]);
    assert!(shown.contains("no node is avoided"), "{shown}");
    let says = format!("has node {left} used again: it is well");
    assert!(shown.contains(&says), "{shown}");
    let refusals: [(&[&str], &str); 5] = [
        (
            &["sent", "force", "end_process", "--rank=9"],
            "ranks 0 to 1",
        ),
        (
            &["sent", "forbid", "restart"],
            "actions are end_process, evict_node",
        ),
        (
            &["sent", "force", "return_node", "--rank=0"],
            "`undo --node NODE` has a node used again",
        ),
        (&["sent", "undo", "--node=node-3"], "it avoids none"),
        (&["j99"], "there is no job"),
    ];
    for (args, why) in refusals {
        eventually(why, || {
            let said = nodes.fails("head", &[&["recover"], args].concat());
            // Ranks may still begin again.
            assert!(said.contains(why) || said.contains("begin again"), "{said}");
            said.contains(why)
        });
    }
    let node = nodes.job("head", "sent")["node"].clone();
    let node = node.as_str().unwrap();
    nodes.kill(node);
    let other = nodes.others(node).remove(0);
    eventually("the next try", || {
        let output = nodes.run(&other, &["recover", "sent", "--json"]);
        let shown: serde_json::Value = match output.status.success() {
            true => serde_json::from_str(&text(&output.stdout)).unwrap(),
            false => return false,
        };
        let forbidden = &shown["forbidden"][0];
        let is_first = shown["done"].as_array().unwrap().is_empty();
        is_first
            && forbidden["action"] == "end_process"
            && forbidden["why"] == "a debugger is there"
    });
    let said = nodes.ok(&other, &["recover", "sent", "undo"]);
    assert!(said.contains("allows end_process again"), "{said}");
    nodes.ok(&other, &["stop", "sent"]);
    let said = nodes.fails(&other, &["recover", "sent"]);
    assert!(said.contains("is over"), "{said}");
}

/// SEMANTICS 201.
#[test]
fn a_job_without_ranks_says_so() {
    let node = Node::up(&[]);
    node.ok(&["submit", "--name", "sleeps", "/bin/sleep", "--", "600"]);
    let said = node.run(&["recover", "sleeps", "forbid", "end_process"]);
    assert!(!said.status.success());
    let said = text(&said.stderr);
    let waits = said.contains("has no ranks yet");
    assert!(waits || said.contains("supervises no ranks"), "{said}");
    node.ok(&["stop", "sleeps"]);
}

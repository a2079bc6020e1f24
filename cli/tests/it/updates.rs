//! Versions of jobs: `odeon update` and `odeon rollback`, through the daemons.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::nodes::{Nodes, eventually, text};
use crate::pretraining::{expected, losses, recipe};
use crate::programs::Node;

/// So many nodes of this machine, all of which vote where there are three.
fn up(count: usize) -> Nodes {
    let mut nodes = Nodes::new(|_| vec![]);
    let head = nodes.folder.path().join("head");
    nodes.add("head", &head);
    for n in 2..=count {
        let name = format!("node-{n}");
        nodes.add(&name, &head.join("nodes").join(&name));
    }
    let count = format!("--nodes={count}");
    let up = [
        "up",
        "--api",
        "127.0.0.1:0",
        "--name",
        "head",
        &count,
        "--voters",
    ];
    nodes.ok("head", &up);
    nodes
}

/// Steps of the run that is updated: more than are made until it is.
const STEPS: u32 = 300;

/// Submits a run of two ranks, each on a node of its own, which it has to itself.
fn submit(nodes: &Nodes) {
    let place = nodes.folder.path();
    recipe(place, STEPS);
    let cores = std::thread::available_parallelism().unwrap();
    let (each, apart) = (
        format!("--cpus={cores}"),
        format!("placement.rank_cpus={cores}.0"),
    );
    let submit = [
        "submit",
        "--name=sent",
        "--ranks=2",
        &each,
        "r.toml",
        "--set",
        &apart,
    ];
    let output = nodes
        .command("head", &submit)
        .current_dir(place.join("work"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn told(nodes: &Nodes) -> String {
    let metrics = nodes.folder.path().join("work/results/sent/metrics.jsonl");
    fs::read_to_string(metrics).unwrap_or_default()
}

fn steps(nodes: &Nodes) -> usize {
    told(nodes).matches("\"Step\":").count()
}

/// The nodes on which a job has something to itself.
fn places(job: &Value) -> Vec<String> {
    let reserved = job["reserved"].as_array().unwrap();
    let nodes = reserved.iter().map(|it| it["node"].as_str().unwrap());
    nodes.map(str::to_owned).collect()
}

/// SEMANTICS 215, 221.
#[test]
fn a_run_goes_over_to_another_version_and_back_on_its_places_with_the_losses_of_a_run_without() {
    let nodes = up(2);
    submit(&nodes);
    eventually("its first steps", || steps(&nodes) > 3);
    let before = nodes.job("head", "sent");
    assert_eq!(before["version"], 1);
    assert_eq!(places(&before).len(), 2, "{before}");
    // Who waits for its places does not get them.
    let cores = std::thread::available_parallelism().unwrap();
    let cores = format!("--cpus={cores}");
    let waiting = [&cores, "--name=behind", "--priority=9", "/bin/true"];
    nodes.submit("head", &waiting);
    let why = "--why=checkpoints less often";
    let update = [
        "update",
        "sent",
        "--set",
        "pretrain.checkpoint_every=50",
        why,
    ];
    let said = nodes.ok("node-2", &update);
    assert!(said.contains("with version 2"), "{said}");
    let updated = nodes.job("head", "sent");
    assert_eq!(updated["version"], 2);
    assert_eq!(
        (updated["tries"].as_u64(), updated["state"].as_str()),
        (Some(2), Some("running"))
    );
    assert_eq!(updated["reserved"], before["reserved"]);
    assert_eq!(updated["versions"][1]["state"], "at work");
    let shown = nodes.ok("head", &["job", "show", "sent"]);
    assert!(shown.contains("replaced by version 2"), "{shown}");
    assert!(shown.contains("checkpoints less often"), "{shown}");
    assert_eq!(nodes.job("head", "behind")["state"], "waiting");
    let said = nodes.ok("head", &["rollback", "sent", "--why=it was better"]);
    assert!(said.contains("with version 1"), "{said}");
    let back = nodes.job("head", "sent");
    assert_eq!(
        (back["version"].as_u64(), back["tries"].as_u64()),
        (Some(1), Some(3))
    );
    assert_eq!(back["reserved"], before["reserved"]);
    nodes.ok("head", &["wait", "sent"]);
    assert_eq!(losses(nodes.folder.path()), expected(recipe, STEPS));
    // Each version went on behind the last step of the one before: nothing was made twice.
    assert_eq!(steps(&nodes), STEPS as usize);
    let resumed = told(&nodes).matches("\"Resumed\"").count();
    assert_eq!(resumed, 3);
    let events = nodes.ok("head", &["events", "--kind", "job"]);
    assert!(
        events.contains("version 2 takes the place of version 1"),
        "{events}"
    );
    assert!(
        events.contains("version 1 takes the place of version 2"),
        "{events}"
    );
    nodes.ok("head", &["wait", "behind"]);
}

/// SEMANTICS 216, 221.
#[test]
fn a_version_that_fails_before_it_was_at_work_goes_back_by_itself() {
    let node = Node::up(&[]);
    node.write(
        "well.sh",
        "#!/bin/sh\necho \"version $ODEON_VERSION\"\nexec sleep 600\n",
    );
    node.write("fails.sh", "#!/bin/sh\necho this cannot be >&2\nexit 3\n");
    node.ok(&["submit", "--name=it", "well.sh"]);
    let said = node.fails(&["update", "it", "missing.sh"]);
    assert!(said.contains("there is no program `missing.sh`"), "{said}");
    // It runs for a moment, and may be seen to.
    let _ = node.run(&["update", "it", "fails.sh"]);
    let shown = || -> Value {
        let (out, _) = node.ok(&["job", "show", "it", "--json"]);
        serde_json::from_str(&out).unwrap()
    };
    eventually("the way back", || {
        let job = shown();
        job["version"] == 1 && job["state"] == "running"
    });
    let job = shown();
    assert_eq!(
        (job["tries"].as_u64(), job["versions"][1]["state"].as_str()),
        (Some(3), Some("failed"))
    );
    let (events, _) = node.ok(&["events", "--kind", "job"]);
    let told = "version 2 was not at work yet and failed: exit status: 3; it said last: this cannot be; it goes back to \
                version 1, on the same places";
    assert!(events.contains(told), "{events}");
    // One that says that it is at work does not, and ends as any job.
    node.write(
        "late.sh",
        "#!/bin/sh\ntouch \"$ODEON_AT_WORK\"\nsleep 1\nexit 4\n",
    );
    let _ = node.run(&["update", "it", "late.sh"]);
    let output = node.run(&["wait", "it"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert_eq!(shown()["version"], 3);
    // Any program may ask for the version before.
    node.write(
        "asks.sh",
        "#!/bin/sh\ntouch \"$ODEON_AT_WORK\"\nsleep 1\nexit 85\n",
    );
    node.ok(&["submit", "--name=other", "well.sh"]);
    node.ok(&["update", "other", "asks.sh", "--no-wait"]);
    eventually("the way back", || {
        let (out, _) = node.ok(&["job", "show", "other", "--json"]);
        let job: Value = serde_json::from_str(&out).unwrap();
        job["versions"][1]["state"] == "failed" && job["version"] == 1 && job["state"] == "running"
    });
    node.ok(&["stop", "other"]);
}

/// SEMANTICS 218, 221.
#[test]
fn an_update_waits_for_a_restart_or_is_taken_back() {
    let node = Node::up(&[]);
    node.write(
        "well.sh",
        "#!/bin/sh\necho \"version $ODEON_VERSION\"\nexec sleep 600\n",
    );
    node.ok(&["submit", "--name=it", "well.sh"]);
    let shown = || -> Value {
        let (out, _) = node.ok(&["job", "show", "it", "--json"]);
        serde_json::from_str(&out).unwrap()
    };
    eventually("its begin", || shown()["state"] == "running");
    let pid = shown()["pid"].clone();
    let (_, said) = node.ok(&["update", "it", "--env", "A=1", "--lazy"]);
    assert!(said.contains("waits for the next restart"), "{said}");
    assert_eq!(shown()["pid"], pid);
    assert_eq!(shown()["versions"][1]["next"], true);
    node.ok(&["rollback", "it"]);
    let job = shown();
    assert_eq!(
        (&job["pid"], job["versions"].as_array().unwrap().len()),
        (&pid, 1)
    );
    node.ok(&["update", "it", "--env", "A=2", "--lazy=12h"]);
    // A restart that comes anyway, though the job has no retries.
    let pid = pid.as_u64().unwrap();
    let kill = format!("kill -KILL {pid}");
    assert!(
        std::process::Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    eventually("its version", || {
        let job = shown();
        job["version"] == 3 && job["state"] == "running"
    });
    // When it is due it comes by itself.
    node.ok(&["update", "it", "--env", "A=3", "--lazy=1s"]);
    eventually("its version", || {
        let job = shown();
        job["version"] == 4 && job["state"] == "running"
    });
    node.ok(&["stop", "it"]);
    assert_eq!(shown()["state"], "stopped");
}

/// SEMANTICS 217.
#[test]
fn what_cannot_be_updated_is_refused_before_anything_stops() {
    let nodes = up(2);
    submit(&nodes);
    eventually("its first steps", || steps(&nodes) > 1);
    let before = nodes.job("head", "sent");
    let work = nodes.folder.path().join("work");
    let fails = |args: &[&str], why: &str| {
        let output = nodes.command("head", args).current_dir(&work).output();
        let output = output.unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains(why),
            "{args:?}: {said}"
        );
    };
    let refused: [(&[&str], &str); 10] = [
        (&["update", "sent"], "nothing changes: name a program"),
        (
            &["update", "sent", "--set", "model.hidden=16"],
            "model.hidden is 8 in the version that runs and 16 here",
        ),
        (
            &["update", "sent", "--set", "processes.ranks=4"],
            "processes.ranks is 2",
        ),
        (
            &["update", "sent", "--set", "run.name=other"],
            "its checkpoint lies there",
        ),
        (&["update", "sent", "--set", "pretrain.stesp=9"], "stesp"),
        (
            &["update", "sent", "r.toml", "--set", "run.seed=4"],
            "run.seed is 3",
        ),
        (
            &["update", "sent", "--set", "pretrain.lr=1e-4", "--lazy=30d"],
            "for 604800 s at most",
        ),
        (&["rollback", "sent"], "has taken the place of none"),
        (&["rollback", "sent", "--to", "7"], "has no version 7"),
        (
            &["update", "j99", "--set", "pretrain.lr=1"],
            "there is no job j99",
        ),
    ];
    for (args, why) in refused {
        fails(args, why);
    }
    let now = nodes.job("head", "sent");
    assert_eq!(
        (&now["pid"], &now["tries"], now["state"].as_str()),
        (&before["pid"], &before["tries"], Some("running"))
    );
    assert!(now.get("versions").is_none(), "{now}");
    nodes.ok("head", &["stop", "sent"]);
    fails(
        &["update", "sent", "--set", "pretrain.checkpoint_every=9"],
        "is over",
    );
}

/// SEMANTICS 215.
#[test]
fn an_update_whose_leader_is_killed_is_made_all_the_same() {
    let nodes = up(3);
    let place = nodes.folder.path();
    recipe(place, STEPS);
    let leader = nodes.leader("head").unwrap();
    let other = nodes.others(&leader).remove(0);
    let submit = ["submit", "--name=sent", "--node", &other, "r.toml"];
    let output = nodes
        .command("head", &submit)
        .current_dir(place.join("work"))
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    eventually("its first steps", || steps(&nodes) > 3);
    let update = [
        "update",
        "sent",
        "--set",
        "pretrain.checkpoint_every=50",
        "--no-wait",
    ];
    nodes.ok(&other, &update);
    nodes.kill(&leader);
    eventually("the version", || {
        let output = nodes.run(&other, &["job", "show", "sent", "--json"]);
        let job: Value = match output.status.success() {
            true => serde_json::from_str(&text(&output.stdout)).unwrap(),
            false => return false,
        };
        job["version"] == 2
    });
    nodes.ok(&other, &["wait", "sent"]);
    assert_eq!(losses(Path::new(place)), expected(recipe, STEPS));
}

/// SEMANTICS 220.
#[test]
fn a_young_version_whose_ranks_fail_too_often_goes_back_before_a_person_is_asked() {
    let nodes = up(1);
    let place = nodes.folder.path();
    recipe(place, STEPS);
    let submit = ["submit", "--name=sent", "r.toml"];
    let output = nodes
        .command("head", &submit)
        .current_dir(place.join("work"))
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    eventually("its first steps", || steps(&nodes) > 3);
    // A rank may be lost no more.
    let said = nodes.ok("head", &["update", "sent", "--set", "recovery.restarts=0"]);
    assert!(said.contains("with version 2"), "{said}");
    let shown = nodes.ok("head", &["why", "sent"]);
    assert!(
        shown.contains("2 the present one, at work; by owner"),
        "{shown}"
    );
    let run = place.join("work/results/sent").display().to_string();
    eventually("a rank to kill", || {
        nodes
            .run("head", &["kill", &run, "rank-1"])
            .status
            .success()
    });
    eventually("the way back", || {
        let job = nodes.job("head", "sent");
        job["version"] == 1 && job["state"] == "running"
    });
    let job = nodes.job("head", "sent");
    let why = job["versions"][1]["failed"].as_str().unwrap();
    assert!(
        why.contains("asks for the version before: failed: exit status: 85"),
        "{why}"
    );
    assert!(why.contains("the job goes back to version 1"), "{why}");
    assert!(told(&nodes).contains("\"roll_back\""));
    nodes.ok("head", &["wait", "sent"]);
    assert_eq!(losses(place), expected(recipe, STEPS));
    // One without a version before it stops for a person as ever.
    let said = nodes.fails("head", &["recover", "sent", "force", "roll_back"]);
    assert!(said.contains("is over"), "{said}");
}

//! Jobs that ask for what they need, as people submit them: to three daemons of this machine.
//!
//! `ODEON_JOBS=200` packs so many jobs in place of a few.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::nodes::{Nodes, eventually, found, text};

const NAMES: [&str; 3] = ["head", "node-2", "node-3"];

/// Three nodes of this machine, all of which vote.
fn up() -> Nodes {
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

fn jobs(nodes: &Nodes, at: &str) -> Vec<Value> {
    let shown = nodes.run(at, &["jobs", "--all", "--limit=1000", "--json"]);
    let lines = text(&shown.stdout);
    let rows = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

/// Processors in thousandths and memory in bytes, of each node and of what is reserved there.
type Sums = BTreeMap<String, [u64; 2]>;

fn capacity(nodes: &Nodes, at: &str) -> Sums {
    let status = nodes.status(at);
    let rows = status["nodes"].as_array().unwrap().iter();
    rows.map(|node| {
        let name = node["name"].as_str().unwrap().to_owned();
        let (cpus, memory) = (node["cpus"].as_u64(), node["memory_bytes"].as_u64());
        (name, [cpus.unwrap() * 1000, memory.unwrap()])
    })
    .collect()
}

fn reserved(jobs: &[Value]) -> Sums {
    let mut sums = Sums::new();
    let all = jobs.iter().filter_map(|job| job["reserved"].as_array());
    for it in all.flatten() {
        let sum = sums
            .entry(it["node"].as_str().unwrap().to_owned())
            .or_default();
        let allotment = &it["allotment"];
        sum[0] += allotment["cpu_milli"].as_u64().unwrap();
        sum[1] += allotment["memory_bytes"].as_u64().unwrap();
    }
    sums
}

fn within(reserved: &Sums, capacity: &Sums) {
    for (node, held) in reserved {
        let all = capacity[node];
        assert!(
            held[0] <= all[0] && held[1] <= all[1],
            "{node}: {held:?} of {all:?}"
        );
    }
}

/// All that a job asks for.
fn asked(job: &Value) -> [u64; 2] {
    let of = |what: &str, name: &str| job["resources"][what][name].as_u64().unwrap_or(0);
    let ranks = job["resources"]["ranks"].as_u64().unwrap_or(0);
    ["cpu_milli", "memory_bytes"].map(|name| of("driver", name) + ranks * of("rank", name))
}

/// The time-weighted share that was reserved of what could have been of each kind, and how scarce that
/// kind was, from the first that came to the time when the last has its place.
fn utilisation(jobs: &[Value], capacity: &Sums) -> [(f64, f64); 2] {
    let at = |job: &Value, name: &str| job[name].as_u64().unwrap();
    let begin = jobs
        .iter()
        .map(|job| at(job, "submitted_ms"))
        .min()
        .unwrap();
    let end = jobs.iter().map(|job| at(job, "begun_ms")).max().unwrap();
    let mut moments: Vec<u64> = jobs
        .iter()
        .flat_map(|job| ["submitted_ms", "begun_ms", "since_ms"].map(|name| at(job, name)))
        .filter(|moment| (begin..=end).contains(moment))
        .collect();
    moments.sort_unstable();
    let all = |i: usize| capacity.values().map(|it| it[i]).sum::<u64>();
    [0, 1].map(|i| {
        let (mut used, mut possible) = (0.0, 0.0);
        for pair in moments.windows(2) {
            let during = |job: &&Value, from: &str| {
                at(job, from) <= pair[0] && at(job, "since_ms") > pair[0]
            };
            let sum = |from: &str| {
                let here = jobs.iter().filter(|job| during(job, from));
                here.map(|job| asked(job)[i]).sum::<u64>()
            };
            let time = (pair[1] - pair[0]) as f64;
            used += sum("begun_ms") as f64 * time;
            possible += sum("submitted_ms").min(all(i)) as f64 * time;
        }
        let scarce = possible / (all(i) as f64 * (end - begin).max(1) as f64);
        (used / possible, scarce)
    })
}

/// Draws from a seed: small, and good enough.
fn pick<T: Copy>(dice: &mut u64, of: &[T]) -> T {
    *dice = dice
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    of[(*dice >> 33) as usize % of.len()]
}

/// SEMANTICS 115.
#[test]
fn many_jobs_on_three_nodes_all_end_and_leave_little_unused() {
    let nodes = up();
    let capacity = capacity(&nodes, "head");
    let [cpus, memory] = capacity["node-2"];
    let count: u64 = std::env::var("ODEON_JOBS").map_or(40, |count| count.parse().unwrap());
    let mut dice = 7;
    for n in 0..count {
        let at = NAMES[n as usize % 3];
        let cores = format!(
            "--cpus={}",
            pick(&mut dice, &[125, 250, 250, 375, 500]) as f64 / 1000.0 * cpus as f64 / 1000.0
        );
        let part = (memory / pick(&mut dice, &[4, 8, 8, 16, 32])) >> 20;
        let memory = format!("--memory={part}MiB");
        let priority = format!("--priority={}", pick(&mut dice, &[0, 0, 0, 1, 5]));
        let limit = format!("--time-limit={}", pick(&mut dice, &["20s", "1m", "2h"]));
        let script = format!("sleep {}", pick(&mut dice, &["0.5", "1", "1.5", "2", "3"]));
        let mut args = vec!["/bin/sh", &cores, &memory, &priority];
        args.extend(pick(
            &mut dice,
            &[None, None, None, Some("--ranks=2"), Some("--ranks=2")],
        ));
        args.extend((pick(&mut dice, &[0, 1, 1, 1]) == 1).then_some(&*limit));
        args.extend(["--", "-c", &script]);
        nodes.submit(at, &args);
        if n % 10 == 0 {
            within(&reserved(&jobs(&nodes, at)), &capacity);
        }
    }
    let ended = found("the end of all jobs", || {
        let all = jobs(&nodes, "head");
        within(&reserved(&all), &capacity);
        all.iter().all(|job| job["over"] == true).then_some(all)
    });
    assert_eq!(ended.len() as u64, count);
    for job in &ended {
        assert_eq!(job["state"], "succeeded", "{job}");
        assert_eq!(job["tries"], 1, "{job}");
    }
    assert_eq!(reserved(&ended), Sums::new());
    let shares = utilisation(&ended, &capacity);
    eprintln!("{count} jobs: reserved of what could be, and how scarce it was: {shares:?}");
    let scarcest = shares
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap();
    // What a look and a write of the catalog take is in this; short jobs show it most.
    let least = if count >= 200 { 0.9 } else { 0.75 };
    assert!(scarcest.0 >= least, "{shares:?}");
}

/// SEMANTICS 115.
#[test]
fn who_waits_is_told_for_what_and_by_whom_and_the_dead_hold_nothing() {
    let nodes = up();
    let leader = nodes.leader("head").unwrap();
    let others = nodes.others(&leader);
    let (dies, stays) = (others[0].as_str(), others[1].as_str());
    let cores = capacity(&nodes, &leader)[dies][0] / 1000;
    let all = format!("--cpus={cores}");
    let hold = |node: &str| {
        let node = format!("--node={node}");
        let args = ["/bin/sleep", &all, &node, "--retries=3", "--", "1000"];
        nodes.submit(stays, &args)
    };
    let runs = |job: &str| nodes.job(stays, job)["state"] == "running";
    let held: Vec<String> = NAMES.iter().map(|node| hold(node)).collect();
    for job in &held {
        eventually("a job that runs", || runs(job));
    }
    let waits = nodes.submit(stays, &["/bin/true", &all, "--time-limit=1h"]);
    let why = found("why it waits", || {
        let why = nodes.ok(stays, &["why", &waits]);
        why.contains("holds").then_some(why)
    });
    for (part, job) in [
        ("cpu free", &held[0]),
        ("holds", &held[1]),
        ("held since", &held[2]),
    ] {
        assert!(why.contains(part) && why.contains(job.as_str()), "{why}");
    }
    let shown = nodes.ok(stays, &["job", "show", &held[0]]);
    assert!(
        shown.contains(&format!("holds      {cores} cpu on")),
        "{shown}"
    );
    let listed = nodes.ok(stays, &["jobs"]);
    assert!(
        listed.contains("asks for") && listed.contains(&format!("{cores} cpu")),
        "{listed}"
    );
    let status = nodes.ok(stays, &["status"]);
    let why = nodes.ok(stays, &["why", &held[0]]);
    // Where groups bound jobs nothing is said; else both say why they do not.
    let unbound = "not held to the processors and memory that they reserve";
    assert_eq!(
        status.contains(unbound),
        why.contains(unbound),
        "{status}{why}"
    );

    // The node dies with what runs there, which waits for it, and holds nothing any more.
    let at = NAMES.iter().position(|name| *name == dies).unwrap();
    nodes.kill(dies);
    eventually("a node that is lost", || {
        let status = nodes.status(stays);
        let rows = status["nodes"].as_array().unwrap();
        rows.iter()
            .any(|node| node["name"] == dies && node["state"] == "lost")
    });
    let rows = jobs(&nodes, stays);
    assert!(!reserved(&rows).contains_key(dies), "{rows:?}");
    eventually("a job that waits for its node", || {
        nodes.job(stays, &held[at])["state"] == "waiting"
    });
    // It comes back in another life, and is all free: for who was first.
    nodes.ok(
        "head",
        &[
            "up",
            "--api",
            "127.0.0.1:0",
            "--name",
            "head",
            "--nodes=3",
            "--voters",
        ],
    );
    eventually("a job that runs again", || runs(&held[at]));
    assert_eq!(nodes.job(stays, &waits)["state"], "waiting");
    nodes.ok(stays, &["stop", "--force", &held[at]]);
    eventually("the end of who waited", || {
        nodes.job(stays, &waits)["state"] == "succeeded"
    });
}

/// SEMANTICS 116.
#[test]
fn what_cannot_be_meant_is_refused_and_time_limits_end_jobs() {
    let mut nodes = Nodes::new(|_| vec![]);
    let head = nodes.folder.path().join("head");
    nodes.add("head", &head);
    nodes.ok("head", &["up", "--api", "127.0.0.1:0", "--name", "head"]);
    for (flags, why) in [
        (&["--memory=4GB"][..], "`4GB` is no size"),
        (&["--memory=-1GiB"], "`-1GiB` is no size"),
        (&["--cpus=0"], "from 0.001 to 1024"),
        (&["--time-limit=2"], "`2` is no time"),
        (&["--time-limit=0s"], "at least 1s, at most 366d"),
        (&["--device-memory=20GiB"], "--gpus"),
        (&["--gpus=0"], "0 is not in 1..=128"),
        (&["--ranks=2"], "say what (--cpus, --memory, --gpus)"),
    ] {
        let said = nodes.fails("head", &[&["submit", "/bin/true"], flags].concat());
        assert!(said.contains(why), "{flags:?}: {said}");
    }
    let gang = [
        "submit",
        "--gang=2",
        "--gpus=1",
        "--devices-per-rank=1",
        "--",
        "/bin/true",
    ];
    let said = nodes.fails("head", &gang);
    assert!(said.contains("say the same: give one"), "{said}");
    let submit = [
        "submit",
        "/bin/sleep",
        "--time-limit=1s",
        "--retries=3",
        "--wait",
        "--",
        "1000",
    ];
    let output = nodes.run("head", &submit);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(124), "{said}");
    assert!(said.contains("after 1 s, its time limit"), "{said}");
    let job = nodes.job("head", "j1");
    assert_eq!(
        (&job["state"], &job["tries"]),
        (&"failed".into(), &1.into()),
        "{job}"
    );
    // It can never run here, and says so.
    let large = nodes.submit("head", &["/bin/true", "--gpus=100"]);
    let why = found("why it waits", || {
        let why = nodes.ok("head", &["why", &large]);
        why.contains("idle nodes").then_some(why)
    });
    assert!(why.contains("100 gpu"), "{why}");
}

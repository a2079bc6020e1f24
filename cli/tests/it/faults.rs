//! Faults that need a network or a disk of one's own: partitions, slow links, full and damaged disks.
//! Each story runs in namespaces, so that it disturbs nobody and leaves nothing behind.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use odeon::Clock;
use odeon_skip::{Need, skip};
use odeon_tests::again;

use crate::nodes::{Nodes, eventually, found, text};

/// Set where a test runs in namespaces.
const APART: &str = "ODEON_TEST_APART";

/// Tells a story in namespaces of network, mounts and processes that end with it. Where this machine
/// allows none, the test is skipped.
fn apart(test: &str, story: fn()) {
    if std::env::var_os(APART).is_some() {
        return story();
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        command
    };
    let script = "mount -t tmpfs none /run && ip netns add probe && ip link add probe type bridge";
    let probe = unshare().args(["sh", "-c", script]).output();
    let may = probe.as_ref().is_ok_and(|output| output.status.success());
    if !may {
        let why = probe.map_or_else(|error| error.to_string(), |output| text(&output.stderr));
        return skip(Need::Networks, why);
    }
    let mut apart = unshare();
    apart
        .arg(std::env::current_exe().unwrap())
        .args([&again::name(module_path!(), test), "--exact", "--nocapture"])
        .env(APART, "1");
    again::expect_passed(&mut apart);
}

fn sh(script: &str) {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        text(&output.stderr)
    );
}

/// Three voters, n1 to n3, each in a network namespace of its own, with a wire to a switch.
struct Lab {
    nodes: Nodes,
}

impl std::ops::Deref for Lab {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Lab {
    fn new() -> Self {
        sh(
            "mount -t tmpfs none /run; ip link set lo up; ip link add switch type bridge; ip link set switch up",
        );
        let mut nodes = Nodes::new(|node| {
            let words = ["ip", "netns", "exec", node];
            words.map(str::to_owned).to_vec()
        });
        for n in 1..=3 {
            sh(&format!(
                "ip netns add n{n}
                 ip link add wire{n} type veth peer name eth0 netns n{n}
                 ip link set wire{n} master switch
                 ip link set wire{n} up
                 ip -n n{n} addr add 10.77.0.{n}/24 dev eth0
                 ip -n n{n} link set eth0 up
                 ip -n n{n} link set lo up"
            ));
            let dir = nodes.folder.path().join(format!("n{n}"));
            nodes.add(&format!("n{n}"), &dir);
        }
        let lab = Self { nodes };
        lab.ok(
            "n1",
            &[
                "up",
                "--name",
                "n1",
                "--listen",
                "10.77.0.1:7432",
                "--voters",
            ],
        );
        for n in 2..=3 {
            let token = lab.json("n1", &["token", "--json"]);
            let (node, listen) = (format!("n{n}"), format!("10.77.0.{n}:7432"));
            let token = token["token"].as_str().unwrap().to_owned();
            let join = [
                "join",
                "10.77.0.1:7432",
                "--token",
                &token,
                "--name",
                &node,
                "--listen",
                &listen,
            ];
            lab.ok(&node, &join);
        }
        let voters = || lab.status("n1")["voters"].as_array().unwrap().len();
        eventually("three voters", || voters() >= 3);
        lab
    }

    /// Pulls a node's wire out, or puts it back.
    fn wire(node: &str, how: &str) {
        sh(&format!("ip link set wire{} {how}", &node[1..]));
    }

    /// Waits until a node sees a leader among these.
    fn led(&self, node: &str, by: &[String]) -> String {
        found("a leader", || {
            self.leader(node).filter(|leader| by.contains(leader))
        })
    }
}

/// Notes which process works, ten times a second.
const WORKER: &str = "while :; do echo $$ >> $1; sleep 0.1; done";

fn beats(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Waits until so many more beats are in a file, and gives those.
fn more_beats(path: &Path, more: usize) -> Vec<u32> {
    let before = beats(path).len();
    found("beats", || {
        let now = beats(path);
        (now.len() >= before + more).then(|| now[before..].to_vec())
    })
}

/// SEMANTICS 58, 60.
#[test]
fn a_leader_that_is_cut_off_writes_nothing_and_comes_back_to_what_the_others_wrote() {
    apart(
        "a_leader_that_is_cut_off_writes_nothing_and_comes_back_to_what_the_others_wrote",
        || {
            let lab = Lab::new();
            let cut = lab.leader("n2").unwrap();
            let others = lab.others(&cut);
            let other = others[0].as_str();
            // A job of the node that will be cut off, which may be begun again elsewhere.
            for node in &others {
                lab.ok(other, &["drain", node]);
            }
            let work = lab.folder.path().join("work");
            let file = work.display().to_string();
            let job = lab.submit(
                other,
                &[
                    "/bin/sh",
                    "--retries=1",
                    "--",
                    "-c",
                    WORKER,
                    "worker",
                    &file,
                ],
            );
            let first = more_beats(&work, 3)[0];
            for node in &others {
                lab.ok(other, &["drain", node, "--undo"]);
            }
            assert_eq!(lab.job(other, &job)["node"], cut);

            Lab::wire(&cut, "down");
            let begun = Clock::now();
            let leader = lab.led(other, &others);
            eprintln!(
                "{leader} leads {:?} after {cut} was cut off",
                Clock::now().since(begun)
            );
            // The one accepts nothing and says so; it still tells what it knows.
            let why = lab.fails(&cut, &["drain", other]);
            assert!(
                why.contains("the catalog cannot be written") || why.contains("did not answer"),
                "{why}"
            );
            assert!(lab.leader(&cut).is_none());
            assert_eq!(lab.job(&cut, &job)["state"], "running");
            // The two go on.
            let meanwhile = lab.submit(other, &["/bin/true"]);
            lab.ok(other, &["wait", &meanwhile]);
            // They give the node up, and begin its job again.
            eventually("a second try", || lab.job(other, &job)["tries"] == 2);
            let runs = || lab.job(other, &job)["state"] == "running";
            eventually("a second try that runs", runs);
            let shown = lab.job(other, &job);
            assert_ne!(shown["node"], cut);
            let second = shown["pid"].as_u64().unwrap() as u32;

            Lab::wire(&cut, "up");
            // It hears what the others wrote, and ends the try that they have given up.
            lab.led(&cut, &others);
            let heard = || lab.ok(&cut, &["jobs", "--all"]).contains(&meanwhile);
            eventually("what the others wrote", heard);
            let gone = || !Path::new(&format!("/proc/{first}")).exists() || is_zombie(first);
            eventually("the end of the first try", gone);
            let last = more_beats(&work, 10);
            assert!(
                last[5..].iter().all(|pid| *pid == second),
                "{last:?}, not {second}"
            );
            assert_eq!(lab.job(&cut, &job)["tries"], 2);
            let drained = lab.status(other)["nodes"].to_string();
            assert!(
                !drained.contains("\"drained\""),
                "what was refused was done: {drained}"
            );
            lab.ok(&cut, &["stop", &job]);
        },
    );
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Bytes that no piece repeats.
fn noise(path: &Path, bytes: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let bytes: Vec<u8> = words.take(bytes / 8).flatten().collect();
    fs::write(path, bytes).unwrap();
}

fn checksum(path: &Path) -> String {
    let output = Command::new("cksum").arg(path).output().unwrap();
    text(&output.stdout).split(' ').next().unwrap().to_owned()
}

/// SEMANTICS 55, 60.
#[test]
fn files_come_over_a_slow_link_and_nobody_is_given_up_meanwhile() {
    apart(
        "files_come_over_a_slow_link_and_nobody_is_given_up_meanwhile",
        || {
            let lab = Lab::new();
            let leader = lab.leader("n1").unwrap();
            let slow = lab.others(&leader)[0].clone();
            // A megabyte in a second, and a queue in front of it.
            sh(&format!(
                "tc qdisc add dev wire{} root tbf rate 8mbit burst 64kbit latency 400ms",
                &slow[1..]
            ));
            let data = lab.folder.path().join("data");
            noise(&data, 8 << 20);
            let file = data.display().to_string();
            let begun = Clock::now();
            let job = lab.submit(
                &leader,
                &[
                    "/bin/sh",
                    "--node",
                    &slow,
                    "--file",
                    &file,
                    "--",
                    "-c",
                    "cksum < data",
                ],
            );
            lab.ok(&leader, &["wait", &job]);
            let took = Clock::now().since(begun);
            assert!(
                took > Duration::from_secs(5),
                "the link was not slow: {took:?}"
            );
            let printed = lab.ok(&leader, &["logs", &job]);
            assert!(printed.starts_with(&checksum(&data)), "{printed}");
            let events = lab.ok(&leader, &["events"]);
            assert!(!events.contains("is lost"), "{events}");
            assert_eq!(lab.leader(&slow), Some(leader));
        },
    );
}

/// SEMANTICS 54, 59.
#[test]
fn a_full_disk_refuses_in_words_and_costs_nothing_that_was_accepted() {
    apart(
        "a_full_disk_refuses_in_words_and_costs_nothing_that_was_accepted",
        || {
            sh("ip link set lo up");
            let mut nodes = Nodes::new(|_| vec![]);
            let dir = nodes.folder.path().join("n1");
            fs::create_dir(&dir).unwrap();
            sh(&format!(
                "mount -t tmpfs -o size=64m none {}",
                dir.display()
            ));
            nodes.add("n1", &dir);
            nodes.ok("n1", &["up", "--name", "n1"]);
            let kept = nodes.submit("n1", &["/bin/sh", "--", "-c", "echo kept"]);
            nodes.ok("n1", &["wait", &kept]);
            let data = nodes.folder.path().join("data");
            noise(&data, 48 << 20);
            let file = data.display().to_string();
            // Half of the disk is free, which is not enough for this.
            let ballast = dir.join("ballast");
            sh(&format!("head -c 24M /dev/zero > {}", ballast.display()));
            let why = nodes.fails("n1", &["submit", "/bin/true", "--file", &file]);
            assert!(
                why.contains("No space left") || why.contains("room"),
                "{why}"
            );
            let first = nodes.submit("n1", &["/bin/sh", "--", "-c", "sleep 1000"]);
            // Nothing is free at all, but what the catalog holds for itself.
            sh(&format!("cat /dev/zero > {} || true", ballast.display()));
            let mut refused = String::new();
            let mut accepted = vec![kept.clone(), first.clone()];
            let variable = format!("LARGE={}", "x".repeat(60_000));
            let next = ["submit", "--after", &first, "--env", &variable, "--json"];
            for _ in 0..400 {
                let output = nodes.run(
                    "n1",
                    &[&next[..], &["/bin/sh", "--", "-c", "true"]].concat(),
                );
                if !output.status.success() {
                    refused = text(&output.stderr);
                    break;
                }
                let job: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                accepted.push(job["id"].as_str().unwrap().to_owned());
            }
            assert!(!refused.is_empty(), "the disk was never full");
            eprintln!("a full disk says after {} jobs: {refused}", accepted.len());
            // Without a limit of its own the command shows the newest 50.
            let all = ["jobs", "--all", "--json", "--limit", "1000"];
            let listed = |what: &[String]| {
                let jobs = nodes.ok("n1", &all);
                let ids: HashSet<String> = (jobs.lines())
                    .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
                    .map(|job| job["id"].as_str().unwrap().to_owned())
                    .collect();
                for id in what {
                    assert!(ids.contains(id), "{id} is lost: {jobs}");
                }
            };
            listed(&accepted);
            // There is room again.
            fs::remove_file(&ballast).unwrap();
            let after = found("room for a job", || {
                let output = nodes.run("n1", &["submit", "/bin/true", "--json"]);
                if !output.status.success() {
                    return None;
                }
                let job: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                Some(job["id"].as_str().unwrap().to_owned())
            });
            nodes.ok("n1", &["wait", &after]);
            assert_eq!(nodes.ok("n1", &["logs", &kept]), "kept\n");
            nodes.ok("n1", &["down"]);
            nodes.ok("n1", &["up", "--name", "n1"]);
            accepted.push(after);
            listed(&accepted);
        },
    );
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if !path.is_symlink() {
            files.push(path);
        }
    }
    files
}

/// SEMANTICS 55.
#[test]
fn a_store_that_was_damaged_or_half_written_is_mended_from_the_other_nodes() {
    let mut nodes = Nodes::new(|_| vec![]);
    let head = nodes.folder.path().join("head");
    let other = head.join("nodes/node-2");
    nodes.add("head", &head);
    nodes.add("node-2", &other);
    nodes.ok(
        "head",
        &["up", "--name", "head", "--api", "127.0.0.1:0", "--nodes=2"],
    );
    let data = nodes.folder.path().join("data");
    noise(&data, 4 << 20);
    let file = data.display().to_string();
    let right = checksum(&data);
    let run = || {
        let submit = [
            "/bin/sh",
            "--node=node-2",
            "--file",
            &file,
            "--",
            "-c",
            "cksum < data",
        ];
        let job = nodes.submit("head", &submit);
        let ended = nodes.run("head", &["wait", &job]);
        let printed = nodes.ok("head", &["logs", &job]);
        assert!(ended.status.success(), "{printed}{}", text(&ended.stderr));
        assert!(printed.starts_with(&right), "{printed}, not {right}");
    };
    run();
    let large = || {
        let files = files_below(&other.join("artifacts"));
        files
            .into_iter()
            .filter(|path| fs::metadata(path).unwrap().len() > 10_000)
    };
    let writable = |path: &Path| {
        sh(&format!("chmod u+w {}", path.display()));
        fs::OpenOptions::new().write(true).open(path).unwrap()
    };
    // Bytes that have changed on the disk.
    assert!(large().count() > 4);
    for path in large() {
        writable(&path).write_all_at(b"damaged", 5000).unwrap();
    }
    run();
    // Files that were written in part when the machine lost its power.
    for path in large() {
        writable(&path).set_len(7000).unwrap();
    }
    nodes.kill("node-2");
    nodes.ok("head", &["up", "--name", "head", "--nodes=2"]);
    run();
}

/// SEMANTICS 56.
#[test]
fn a_job_that_forks_for_ever_is_ended_whole() {
    apart("a_job_that_forks_for_ever_is_ended_whole", || {
        sh("ip link set lo up");
        let mut nodes = Nodes::new(|_| vec![]);
        let dir = nodes.folder.path().join("n1");
        nodes.add("n1", &dir);
        nodes.ok("n1", &["up", "--name", "n1"]);
        // Some of them leave its session, too.
        let script = "setsid sh -c 'sleep 1000 & sleep 1000' & setsid sleep 1000 & echo begun; \
                      while :; do sleep 1000 & done";
        let job = nodes.submit("n1", &["/bin/sh", "--", "-c", script]);
        let begun = || nodes.ok("n1", &["logs", &job]).contains("begun");
        eventually("the job's begin", begun);
        let count = || {
            // Those that have ended and wait to be reaped do nothing any more.
            let listed = Command::new("pgrep")
                .args(["-c", "-x", "-r", "R,S,D,T", "sleep"])
                .output()
                .unwrap();
            text(&listed.stdout).trim().parse::<u32>().unwrap()
        };
        eventually("a hundred processes", || count() >= 100);
        nodes.ok("n1", &["stop", "--force", &job]);
        assert_eq!(count(), 0, "some of its processes are left");
    });
}

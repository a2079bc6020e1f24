//! The start of a job: how long its stages took, and the environment that one node installs and others take.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use odeon_skip::{Need, skip};
use serde_json::Value;

use crate::nodes::{eventually, found};
use crate::programs::Node;

/// Makes an environment of a program that shows the lock file, notes that it does, and waits for a file.
const SETUP: &str = "echo made >> $NOTES/made
    mkdir -p $ODEON_ENVIRONMENT/bin
    cp a.lock $ODEON_ENVIRONMENT/version
    printf '#!/bin/sh\\necho version $(cat %s/version) on $ODEON_NODE\\n' $ODEON_ENVIRONMENT > $ODEON_ENVIRONMENT/bin/tool
    chmod +x $ODEON_ENVIRONMENT/bin/tool
    until [ -e $NOTES/go ]; do sleep 0.05; done
    head -c ${BYTES:-1} /dev/urandom > $ODEON_ENVIRONMENT/data";

impl Node {
    fn notes(&self) -> PathBuf {
        self.folder().join("notes")
    }

    /// A cluster with a folder of notes.
    fn with_notes(args: &[&str]) -> Self {
        let node = Self::up(args);
        fs::create_dir(node.notes()).unwrap();
        node
    }

    /// Times that an environment was made.
    fn made(&self) -> usize {
        let made = fs::read_to_string(self.notes().join("made"));
        made.map_or(0, |text| text.lines().count())
    }

    /// Submits a job in an environment of what `a.lock` says, and gives its number.
    fn submit_in_environment(&self, args: &[&str], words: &[&str]) -> String {
        let notes = format!("NOTES={}", self.notes().display());
        let of = ["--environment", "a.lock", "--setup", SETUP, "--env", &notes];
        let all = [&["submit", "--json"], args, &of, &["--"], words].concat();
        let job: Value = serde_json::from_str(&self.ok(&all).0).unwrap();
        job["id"].as_str().unwrap().to_owned()
    }

    fn job(&self, id: &str) -> Value {
        serde_json::from_str(&self.ok(&["job", "show", id, "--json"]).0).unwrap()
    }

    fn stage(&self, id: &str, stage: &str) -> Option<Value> {
        let answer = self.get(&format!("/api/v1/inspect/jobs/{id}"));
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let from = body.find('{').unwrap();
        let till = body.rfind('}').unwrap();
        let told: Value = serde_json::from_str(&body[from..=till]).unwrap();
        let stages = told["data"]["startup"].as_array()?.clone();
        stages.into_iter().find(|it| it["stage"] == stage)
    }
}

/// SEMANTICS 189, 191.
#[test]
fn a_gang_starts_in_an_environment_that_one_node_has_installed_and_tells_how_long_it_took() {
    let node = Node::with_notes(&["--nodes", "2"]);
    node.write("a.lock", "7");
    let cores = std::thread::available_parallelism().unwrap().get();
    let half = (cores as f64 / 2.0).to_string();
    let gang = ["--gang", "4", "--cpus", &half, "--node", "head"];
    let script = "tool; until [ -e $NOTES/end ]; do sleep 0.05; done";
    let job = node.submit_in_environment(&gang, &["sh", "-c", script]);
    // Both nodes prepare at the same time, and one of them installs.
    eventually("a setup", || node.made() == 1);
    fs::write(node.notes().join("go"), "").unwrap();
    let says = |what: &str| {
        let (out, _) = node.ok(&["logs", &job]);
        out.lines().filter(|line| line.contains(what)).count()
    };
    eventually("two ranks on one node", || says("version 7 on head") == 2);
    eventually("two on the other", || says("version 7 on node-2") == 2);
    assert_eq!(node.made(), 1, "it was installed once");
    for stage in ["files", "environment", "process"] {
        let nodes = || node.stage(&job, stage)?["nodes"].as_object().cloned();
        eventually(&format!("the stage `{stage}` of both nodes"), || {
            nodes().is_some_and(|nodes| nodes.contains_key("head") && nodes.contains_key("node-2"))
        });
    }
    // Who asks too often is told nothing for a second.
    let queued = found("how long it was queued", || node.stage(&job, "queued"));
    assert_eq!(queued["nodes"].as_object().unwrap().len(), 1);
    let why = node.ok(&["why", &job]).0;
    let start = why.lines().find(|line| line.starts_with("start: it took"));
    let start = start.unwrap_or_else(|| panic!("{why}"));
    for stage in ["queued", "placed", "files", "environment", "process"] {
        assert!(start.contains(stage), "{stage}: {start}");
    }
    assert!(
        start.contains("(slowest ") && start.contains(", median "),
        "{start}"
    );
    let events = node.ok(&["events"]).0;
    assert!(
        events.contains("its environment was installed here"),
        "{events}"
    );
    // One of which a file was changed is brought again, beside the one that the gang runs in.
    let environments = node.dir().join("nodes/node-2/environments");
    let entries = |extension: Option<&str>| -> Vec<PathBuf> {
        let entries = fs::read_dir(&environments).unwrap();
        let paths = entries.map(|it| it.unwrap().path());
        let fits = |it: &PathBuf| it.extension().and_then(|it| it.to_str()) == extension;
        paths.filter(fits).collect()
    };
    let [folder] = &entries(None)[..] else {
        panic!("{:?}", entries(None))
    };
    fs::write(folder.join("data"), "changed").unwrap();
    let second = node.submit_in_environment(&["--node", "node-2"], &["tool"]);
    node.ok(&["wait", &second]);
    assert_eq!(node.ok(&["logs", &second]).0, "version 7 on node-2\n");
    assert_eq!(node.made(), 1, "others had it still");
    assert_eq!(fs::read_to_string(folder.join("data")).unwrap(), "changed");
    fs::write(node.notes().join("end"), "").unwrap();
    node.ok(&["wait", &job]);
    eventually("the end of its last user", || !folder.exists());
    eventually("nobody uses any", || entries(Some("users")).is_empty());
    assert_eq!(entries(None).len(), 1);
    // The next start has it, and one with another lock file does not.
    let job = node.submit_in_environment(&["--node", "node-2"], &["tool"]);
    node.ok(&["wait", &job]);
    assert_eq!(node.made(), 1);
    node.write("a.lock", "8");
    let job = node.submit_in_environment(&["--node", "node-2"], &["tool"]);
    node.ok(&["wait", &job]);
    assert_eq!(node.ok(&["logs", &job]).0, "version 8 on node-2\n");
    assert_eq!(node.made(), 2);
}

/// SEMANTICS 192.
#[test]
fn a_node_that_is_killed_while_it_keeps_an_environment_leaves_nothing_half() {
    let node = Node::with_notes(&["--nodes", "2"]);
    node.write("a.lock", "1");
    let large = [
        "--node",
        "node-2",
        "--env",
        "BYTES=50000000",
        "--retries",
        "1",
    ];
    let first = node.submit_in_environment(&large, &["tool"]);
    eventually("a setup on the other node", || node.made() == 1);
    let dir = node.dir().join("nodes/node-2");
    let pieces = || {
        let folders = fs::read_dir(dir.join("artifacts/pieces"))
            .into_iter()
            .flatten();
        let files = folders.flat_map(|it| fs::read_dir(it.unwrap().path()).into_iter().flatten());
        files.count()
    };
    let before = pieces();
    fs::write(node.notes().join("go"), "").unwrap();
    eventually("pieces of the environment", || pieces() > before + 3);
    let pid = fs::read_to_string(dir.join("daemon.pid")).unwrap();
    let killed = Command::new("kill").args(["-KILL", pid.trim()]).status();
    assert!(killed.unwrap().success());
    // Whatever of it was there, another node has all of it or makes its own.
    let second = node.submit_in_environment(&["--node", "head"], &["tool"]);
    node.ok(&["wait", &second]);
    assert_eq!(node.ok(&["logs", &second]).0, "version 1 on head\n");
    // The one that was killed takes that when it is back.
    let made = node.made();
    node.ok(&["up", "--api", "127.0.0.1:0", "--nodes", "2"]);
    node.ok(&["wait", &first]);
    assert!(node.ok(&["logs", &first]).0.contains("version 1 on node-2"));
    assert_eq!(node.made(), made);
}

/// SEMANTICS 190, 191.
#[test]
fn a_damaged_snapshot_is_refused_and_a_setup_that_fails_is_told() {
    let node = Node::with_notes(&["--nodes", "2"]);
    node.write("a.lock", "3");
    fs::write(node.notes().join("go"), "").unwrap();
    let run = |on: &str| {
        let job = node.submit_in_environment(&["--node", on], &["tool"]);
        node.ok(&["wait", &job]);
        assert_eq!(node.ok(&["logs", &job]).0, format!("version 3 on {on}\n"));
    };
    run("head");
    run("node-2");
    assert_eq!(node.made(), 1);
    // Its folder there is changed, and so are all pieces that it was made of.
    let dir = node.dir().join("nodes/node-2");
    let environments = fs::read_dir(dir.join("environments")).unwrap();
    let folder = environments
        .map(|it| it.unwrap().path())
        .find(|it| it.extension().is_none());
    fs::write(folder.unwrap().join("version"), "another").unwrap();
    for folder in fs::read_dir(dir.join("artifacts/pieces")).unwrap() {
        for piece in fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = piece.unwrap().path();
            // Those of the program are larger.
            if fs::metadata(&path).unwrap().len() < 5000 {
                fs::remove_file(&path).unwrap();
                fs::write(&path, "damaged").unwrap();
            }
        }
    }
    run("node-2");
    assert_eq!(node.made(), 1, "it was brought again, and not made");
    // One that cannot be made says why.
    let failing = [
        "submit",
        "--setup",
        "echo no such package >&2; exit 4",
        "--wait",
        "--",
        "true",
    ];
    let said = node.fails(&failing);
    assert!(
        said.contains("could not be installed") && said.contains("no such package"),
        "{said}"
    );
    // Nothing of it stays.
    let folders = ["environments", "nodes/node-2/environments"].map(|it| node.dir().join(it));
    let is_failed = |path: &PathBuf| {
        let is_log = path.extension().is_some_and(|it| it == "log");
        is_log && !path.with_extension("").exists()
    };
    eventually("no log without an environment", || {
        let entries = folders.iter().flat_map(|it| fs::read_dir(it).unwrap());
        !entries
            .map(|it| it.unwrap().path())
            .any(|it| is_failed(&it))
    });
    let said = node.fails(&["submit", "--environment", "b.lock", "--", "true"]);
    assert!(said.contains("`--environment b.lock` is no file"), "{said}");
    node.write("b.lock", "x==1\n-e ./pkg\n");
    let said = node.fails(&["submit", "--environment", "b.lock", "--", "true"]);
    assert!(said.contains("line 2 of `b.lock`"), "{said}");
}

/// SEMANTICS 191.
#[test]
fn packages_of_a_lock_file_are_installed_by_pip() {
    let venv = Command::new("python3")
        .args(["-c", "import venv, ensurepip"])
        .output();
    if !venv.is_ok_and(|output| output.status.success()) {
        return skip(Need::Python, "there is no python3 with venv here");
    }
    let node = Node::up(&[]);
    let wheel = "import zipfile
w = zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w')
w.writestr('tiny.py', 'number = 41\\n')
d = 'tiny-1.0.dist-info/'
w.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')
w.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
w.writestr(d + 'RECORD', 'tiny.py,,\\n' + d + 'METADATA,,\\n' + d + 'WHEEL,,\\n' + d + 'RECORD,,\\n')
w.close()";
    let made = Command::new("python3")
        .args(["-c", wheel])
        .current_dir(node.here())
        .status();
    assert!(made.unwrap().success());
    node.write("requirements.lock", "./tiny-1.0-py3-none-any.whl\n");
    let submit = [
        "submit",
        "--environment",
        "requirements.lock",
        "--file",
        "tiny-1.0-py3-none-any.whl",
        "--env",
        "PIP_NO_INDEX=1",
        "--json",
        "--",
        "python3",
        "-c",
        "import sys, tiny; print(tiny.number + 1, sys.prefix != sys.base_prefix)",
    ];
    let job: Value = serde_json::from_str(&node.ok(&submit).0).unwrap();
    let job = job["id"].as_str().unwrap();
    let over = found("the end of the job", || {
        let job = node.job(job);
        (job["over"] == true).then_some(job)
    });
    assert_eq!(over["state"], "succeeded", "{over}");
    assert_eq!(node.ok(&["logs", job]).0, "42 True\n");
}

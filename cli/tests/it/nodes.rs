//! Nodes of a cluster as their people use them: the command alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use odeon::Clock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The longest time that the machine may take for what comes about by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tries until it gives something.
pub(crate) fn found<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Clock::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        let waited = Clock::now().since(begun);
        assert!(waited < PATIENCE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Looks until something is so.
pub(crate) fn eventually(what: &str, mut fact: impl FnMut() -> bool) {
    found(what, || fact().then_some(()));
}

/// Nodes by their names, each with its folder. They end with the test.
pub(crate) struct Nodes {
    /// Where everything of the test lies.
    pub(crate) folder: tempfile::TempDir,
    /// The words before each command of a node, if any.
    before: fn(&str) -> Vec<String>,
    dirs: BTreeMap<String, PathBuf>,
}

impl Nodes {
    pub(crate) fn new(before: fn(&str) -> Vec<String>) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            before,
            dirs: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, name: &str, dir: &Path) {
        self.dirs.insert(name.to_owned(), dir.to_owned());
    }

    pub(crate) fn dir(&self, node: &str) -> &Path {
        &self.dirs[node]
    }

    /// The other nodes.
    pub(crate) fn others(&self, node: &str) -> Vec<String> {
        let names = self.dirs.keys().filter(|name| *name != node);
        names.cloned().collect()
    }

    /// A command at a node.
    pub(crate) fn command(&self, node: &str, args: &[&str]) -> Command {
        let odeon = env!("CARGO_BIN_EXE_odeon").to_owned();
        let mut words = (self.before)(node);
        words.push(odeon);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(args)
            .env_remove("ODEON_LOG")
            .env("ODEON_DIR", self.dir(node));
        command
    }

    /// Runs a command at a node.
    pub(crate) fn run(&self, node: &str, args: &[&str]) -> Output {
        self.command(node, args).output().unwrap()
    }

    /// Runs a command that must succeed, and gives what it says and shows.
    pub(crate) fn ok(&self, node: &str, args: &[&str]) -> String {
        let output = self.run(node, args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?} at {node}: {out}{err}");
        out + &err
    }

    /// Runs a command that must fail, and gives why it says it did.
    pub(crate) fn fails(&self, node: &str, args: &[&str]) -> String {
        let output = self.run(node, args);
        let out = text(&output.stdout);
        assert!(!output.status.success(), "{args:?} at {node}: {out}");
        text(&output.stderr)
    }

    pub(crate) fn json(&self, node: &str, args: &[&str]) -> Value {
        let output = self.run(node, args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?} at {node}: {out}{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// The cluster as a node sees it, with a majority or without one.
    pub(crate) fn status(&self, node: &str) -> Value {
        let output = self.run(node, &["status", "--json"]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let status: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let code = if status["majority"] == true { 0 } else { 3 };
        assert_eq!(output.status.code(), Some(code), "{err}");
        status
    }

    /// The node that leads, as this one sees it.
    pub(crate) fn leader(&self, node: &str) -> Option<String> {
        self.status(node)["leader"].as_str().map(str::to_owned)
    }

    pub(crate) fn job(&self, node: &str, job: &str) -> Value {
        self.json(node, &["job", "show", job, "--json"])
    }

    /// Submits a job. Its name.
    pub(crate) fn submit(&self, node: &str, args: &[&str]) -> String {
        let job = self.json(node, &[&["submit", "--json"], args].concat());
        job["id"].as_str().unwrap().to_owned()
    }

    /// The process of a node's daemon.
    pub(crate) fn pid(&self, node: &str) -> i32 {
        let file = self.dir(node).join("daemon.pid");
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Kills a node's daemon as nothing else does.
    pub(crate) fn kill(&self, node: &str) {
        self.signal(node, Signal::KILL);
    }

    /// Sends a signal to a node's daemon.
    pub(crate) fn signal(&self, node: &str, signal: Signal) {
        let pid = Pid::from_raw(self.pid(node)).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in self.dirs.keys() {
            // It may have been ended by the test.
            let _ = self.run(node, &["down"]);
        }
    }
}

//! Clocks of machines that are set while jobs run and wait.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use odeon_skip::{Need, skip};

use crate::nodes::{eventually, text};
use crate::programs::Node;

/// Lies between programs and the machine's clock, and adds the seconds that a file has.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int file = -1;

__attribute__((constructor)) static void begin(void) {
    const char* path = getenv("TEST_CLOCK");
    if (path) file = open(path, O_RDONLY | O_CLOEXEC);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    int code = syscall(SYS_clock_gettime, clock, now);
    char text[32] = {0};
    if (code == 0 && clock == CLOCK_REALTIME && pread(file, text, 31, 0) > 0) now->tv_sec += atol(text);
    return code;
}
"#;

/// A node whose daemons go by a clock that the test sets.
struct Clocked {
    node: Node,
    clock: PathBuf,
}

impl Clocked {
    fn up(args: &[&str]) -> Result<Self, String> {
        let node = Node::new();
        let [source, shim, clock] =
            ["shim.c", "shim.so", "clock"].map(|name| node.folder().join(name));
        fs::write(&source, SHIM).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&shim, &source])
            .output()
            .map_err(|error| error.to_string())?;
        if !compiled.status.success() {
            return Err(text(&compiled.stderr));
        }
        fs::write(&clock, "0").unwrap();
        let up = ["up", "--api", "127.0.0.1:0", "--name", "head"];
        let up = node
            .command(&[&up, args].concat())
            .env("LD_PRELOAD", &shim)
            .env("TEST_CLOCK", &clock)
            .output()
            .unwrap();
        assert!(up.status.success(), "{}", text(&up.stderr));
        Ok(Self { node, clock })
    }

    /// Sets the clock of all daemons, and has them see it.
    fn set(&self, seconds: i64) {
        fs::write(&self.clock, format!("{seconds:<12}")).unwrap();
        self.node.ok(&["submit", "--wait", "--", "true"]);
    }

    fn state(&self, job: &str) -> String {
        let (shown, _) = self.node.ok(&["job", "show", job, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["state"].as_str().unwrap().to_owned()
    }
}

/// SEMANTICS 130.
#[test]
fn a_clock_that_is_set_by_hours_ends_no_job_and_keeps_none_from_its_turn_or_its_end() {
    let clocked = match Clocked::up(&["--nodes", "3", "--voters"]) {
        Ok(clocked) => clocked,
        Err(why) => return skip(Need::CCompiler, why),
    };
    let node = &clocked.node;
    let go = node.here().join("go");
    let variable = format!("GO={}", go.display());
    let waits = "until [ -e $GO ]; do sleep 0.05; done; echo it has gone";
    let submit = |args: &[&str], script: &str| {
        let command = [
            &["submit", "--env", &variable],
            args,
            &["--", "sh", "-c", script],
        ];
        node.ok(&command.concat());
    };
    submit(&["--name", "long", "--time-limit", "50m"], waits);
    submit(&["--name", "calm", "--idle-limit", "50m"], "sleep 1000");
    submit(&["--name", "short", "--time-limit", "8s"], "sleep 1000");
    // It waits for its second try when the clock is set back, and has been told until when.
    let second = "[ $ODEON_ATTEMPT = 3 ] || exit 1";
    for job in ["long", "calm", "short"] {
        eventually("a job that runs", || clocked.state(job) == "running");
    }
    for seconds in [3600, -3600, 0] {
        clocked.set(seconds);
        let again = ["submit", "--wait", "--retries", "2", "--", "sh", "-c"];
        node.ok(&[&again[..], &[second]].concat());
        let (seen, _) = node.ok(&["status"]);
        assert_eq!(seen.matches(" up ").count(), 3, "{seen}");
        assert_eq!(
            (clocked.state("long"), clocked.state("calm")),
            ("running".to_owned(), "running".to_owned())
        );
    }
    eventually("the end of its time", || clocked.state("short") == "failed");
    let (_, why) = (node.run(&["wait", "short"]), node.ok(&["why", "short"]).0);
    assert!(why.contains("its time limit"), "{why}");
    fs::write(&go, "").unwrap();
    let (lines, _) = node.ok(&["logs", "--follow", "long"]);
    assert_eq!(lines, "it has gone\n");
    node.ok(&["stop", "calm"]);
    let ended = node.run(&["wait", "calm"]);
    assert!(!ended.status.success());
}

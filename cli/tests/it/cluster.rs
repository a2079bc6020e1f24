//! A cluster as people use it: the command alone, from `odeon up` to `odeon down`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use odeon::Clock;
use odeon_skip::{Need, skip};

use crate::nodes::{eventually, found, text};

/// A cluster of this machine, in a folder of its own; it ends with the test.
struct Cluster {
    folder: tempfile::TempDir,
}

fn odeon() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
    command.env_remove("ODEON_DIR").env_remove("ODEON_LOG");
    command
}

impl Cluster {
    fn up(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Self { folder };
        let output =
            cluster.run(&[&["up", "--api", "127.0.0.1:0", "--name", "head"], args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        cluster
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("head")
    }

    fn run(&self, args: &[&str]) -> Output {
        odeon()
            .args(args)
            .env("ODEON_DIR", self.dir())
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed, and gives what it says and shows.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {out}{err}");
        out + &err
    }

    /// Runs a command that must fail, and gives why it says it did.
    fn fails(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(
            !output.status.success(),
            "{args:?}: {}",
            text(&output.stdout)
        );
        text(&output.stderr)
    }

    /// The process of a job's driver, once it runs.
    fn driver(&self, job: &str) -> u32 {
        found("a driver", || {
            let shown = self.ok(&["job", "show", job, "--json"]);
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            shown["pid"].as_u64().map(|pid| pid as u32)
        })
    }

    /// Waits until a job has printed that it has begun.
    fn begun(&self, job: &str) {
        let begun = || self.ok(&["logs", job]).contains("begun");
        eventually("the job's begin", begun);
    }

    /// The processes of its daemons.
    fn daemons(&self) -> Vec<u32> {
        let own = self.dir().join("daemon.pid");
        let nodes = fs::read_dir(self.dir().join("nodes")).into_iter().flatten();
        let nodes = nodes.map(|node| node.unwrap().path().join("daemon.pid"));
        let files = std::iter::once(own).chain(nodes);
        files
            .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ = self.run(&["down"]);
    }
}

/// Returns true if a process runs; one that has ended and that nobody has reaped does not.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned());
    state.is_some_and(|state| !state.starts_with('Z'))
}

fn shell(cluster: &Cluster, name: &str, script: &str) -> String {
    let path = cluster.folder.path().join(name);
    fs::write(&path, script).unwrap();
    path.display().to_string()
}

/// SEMANTICS 57.
#[test]
fn a_program_is_submitted_watched_and_forgotten_by_its_terminal() {
    let cluster = Cluster::up(&[]);
    let said = cluster.ok(&["status"]);
    assert!(
        said.contains("leader head, voters head") && said.contains("no jobs yet"),
        "{said}"
    );
    let script = shell(
        &cluster,
        "hello.sh",
        "echo hello $1 from $(basename $PWD); cat note; exit 3",
    );
    let note = shell(&cluster, "note", "remember\n");
    let submit = [
        "submit", "/bin/sh", "--name", "greeter", "--file", &script, "--file", &note, "--wait",
        "--", "hello.sh", "you",
    ];
    let output = cluster.run(&submit);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{out}{err}");
    assert_eq!(out, "hello you from j1.1\nremember\n");
    assert!(
        err.contains("submitted j1 (greeter)") && err.contains("failed: exit status: 3"),
        "{err}"
    );
    assert_eq!(
        cluster.ok(&["logs", "j1"]),
        "hello you from j1.1\nremember\n"
    );
    let shown = cluster.ok(&["job", "show", "j1"]);
    assert!(
        shown.contains("exit code  3") && shown.contains("by owner"),
        "{shown}"
    );
    assert!(cluster.ok(&["jobs", "--all"]).contains("greeter"));
    assert_eq!(cluster.run(&["wait", "j1"]).status.code(), Some(3));
    cluster.ok(&["retry", "j1"]);
    assert_eq!(cluster.run(&["wait", "j1"]).status.code(), Some(3));
    let events = cluster.ok(&["events"]);
    assert!(
        events.contains("j1") && events.contains("runs on node `head`"),
        "{events}"
    );
}

/// SEMANTICS 57. 50 MB, of which the log keeps the end.
#[test]
fn a_job_that_prints_much_loses_nothing_but_what_finds_no_room_in_the_log() {
    const LINES: u64 = 250_000;
    let cluster = Cluster::up(&[]);
    let script = format!("seq -f '%.0f {}' {LINES}", "x".repeat(192));
    let said = cluster.ok(&["submit", "/bin/sh", "--", "-c", &script]);
    let job = said.split(' ').nth(1).unwrap();
    cluster.ok(&["wait", job]);
    let logs = cluster.run(&["logs", job]);
    let (printed, said) = (text(&logs.stdout), text(&logs.stderr));
    let number = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    let kept: Vec<u64> = printed.lines().map(number).collect();
    let first = LINES - kept.len() as u64 + 1;
    assert_eq!(kept, (first..=LINES).collect::<Vec<_>>());
    // 32 MiB of them, and what is said of each.
    assert!(kept.len() > 80_000, "{}", kept.len());
    let gone = format!(
        "... {} lines from head are not kept any more ...\n",
        first - 1
    );
    assert_eq!(said, gone);
}

/// SEMANTICS 56.
#[test]
fn a_job_is_stopped_and_leaves_nothing() {
    let cluster = Cluster::up(&[]);
    let script = shell(
        &cluster,
        "work.sh",
        "sleep 1000 & sleep 1000 & echo begun; wait",
    );
    cluster.ok(&["submit", "/bin/sh", "--file", &script, "--", "work.sh"]);
    cluster.begun("j1");
    let group = cluster.driver("j1");
    let said = cluster.ok(&["stop", "j1"]);
    assert!(said.contains("j1 stopped by owner"), "{said}");
    assert_eq!(cluster.run(&["wait", "j1"]).status.code(), Some(143));
    assert_eq!(members(u64::from(group)), 0, "its children live");
    let left = fs::read_dir(cluster.dir().join("jobs")).unwrap().count();
    assert_eq!(left, 0, "its folder is left");
    assert!(
        cluster
            .fails(&["stop", "j1"])
            .contains("job j1 is over: it stopped by owner")
    );
    assert!(
        cluster
            .fails(&["cancel", "j1"])
            .contains("j1 is over already: stopped by owner")
    );
    // One that takes it well was stopped all the same.
    let polite = "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done";
    let script = shell(&cluster, "polite.sh", polite);
    cluster.ok(&["submit", "/bin/sh", "--file", &script, "--", "polite.sh"]);
    cluster.begun("j2");
    let said = cluster.ok(&["stop", "j2"]);
    assert!(said.contains("j2 stopped by owner"), "{said}");
}

/// Processes of a group.
fn members(group: u64) -> usize {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        // Behind the name, which may have spaces and parentheses: state, parent, group.
        let rest = stat.rsplit_once(')')?.1.to_owned();
        rest.split_whitespace().nth(2)?.parse::<u64>().ok()
    });
    processes.filter(|of| *of == group).count()
}

/// SEMANTICS 186, 188.
fn node_is_refused_and_let_back(cluster: &Cluster) {
    let no_reason = cluster.fails(&["node", "refuse", "node-2", "--why", ""]);
    assert!(no_reason.contains("without a reason"), "{no_reason}");
    let sound = cluster.fails(&["node", "allow", "node-2"]);
    assert!(sound.contains("`node-2` is not refused"), "{sound}");
    let why = "it flips bits";
    cluster.ok(&["node", "refuse", "node-2", "--why", why]);
    let said = cluster.ok(&["status"]);
    let line = format!("node-2 is refused by owner: {why}");
    assert!(said.contains(&line), "{said}");
    cluster.ok(&["submit", "/bin/sh", "--node", "node-2", "--", "-c", "true"]);
    let refusal = "it must run on node `node-2`, which is refused";
    eventually(refusal, || cluster.ok(&["jobs"]).contains(refusal));
    cluster.ok(&["node", "allow", "node-2", "--why", "its memory is new"]);
    cluster.ok(&["wait", "j3"]);
    cluster.ok(&["node", "refuse", "node-2", "--why", why]);
    // Whether this machine passes depends on the machine; what follows does not.
    let checked = cluster.run(&["node", "check", "node-2", "--all"]);
    let shown = text(&checked.stdout);
    assert!(shown.contains("arithmetic"), "{shown}");
    let passed = checked.status.success();
    let is_refused = cluster.ok(&["status"]).contains(&line);
    assert_eq!(is_refused, !passed, "{shown}");
    let outcome = match passed {
        true => "node node-2: let back by a check for owner",
        false => "node node-2: checked by a check for owner",
    };
    for said in [
        outcome,
        "node node-2: refused by owner: it flips bits",
        "node node-2: let back by owner: its memory is new",
    ] {
        eventually(said, || {
            cluster.ok(&["events", "--kind", "node"]).contains(said)
        });
    }
}

#[test]
fn several_nodes_run_on_one_machine_and_all_end() {
    let cluster = Cluster::up(&["--nodes", "3"]);
    let said = cluster.ok(&["status"]);
    assert!(said.contains("node-2") && said.contains("node-3"), "{said}");
    let daemons = cluster.daemons();
    assert_eq!(daemons.len(), 3);
    let script = shell(&cluster, "where.sh", "echo here");
    let submit = [
        "submit", "/bin/sh", "--file", &script, "--node", "node-3", "--wait", "--", "where.sh",
    ];
    assert!(cluster.ok(&submit).contains("here"));
    assert!(
        cluster
            .ok(&["job", "show", "j1"])
            .contains("node       node-3")
    );
    cluster.ok(&["drain", "node-3"]);
    let again = [
        "submit", "/bin/sh", "--file", &script, "--node", "node-3", "--", "where.sh",
    ];
    cluster.ok(&again);
    let refusal = "it must run on node `node-3`, which is drained";
    eventually(refusal, || cluster.ok(&["jobs"]).contains(refusal));
    let said = cluster.ok(&["cancel", "j2"]);
    assert!(said.contains("j2 cancelled by owner"), "{said}");
    node_is_refused_and_let_back(&cluster);
    assert!(cluster.ok(&["down"]).contains("3 nodes down"));
    assert!(!daemons.into_iter().any(is_alive));
    assert!(cluster.fails(&["down"]).contains("no daemon runs"));
    let gone = cluster.fails(&["status"]);
    assert!(
        gone.contains("does not answer") && gone.contains("odeon up"),
        "{gone}"
    );
}

/// <https://github.com/huggingface/transformers/issues/30061>,
/// <https://github.com/NVIDIA-NeMo/RL/issues/309>
#[test]
fn a_program_that_reads_finds_the_end_of_its_input_and_may_start_others_of_odeon() {
    let cluster = Cluster::up(&[]);
    let submit = |script: &str| cluster.ok(&["submit", "--wait", "/bin/sh", "--", "-c", script]);
    let said = submit("read line; echo \"read <$line>\"; cat; echo at the end");
    assert!(said.contains("read <>\nat the end"), "{said}");
    let odeon = env!("CARGO_BIN_EXE_odeon");
    let said = submit(&format!(
        "{odeon} gang 1 -- /bin/echo from within; echo and after"
    ));
    assert!(said.contains("from within\nand after"), "{said}");
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let cluster = Cluster::up(&[]);
    let script = shell(&cluster, "script.py", "print('hello')\n");
    let why = cluster.fails(&["submit", &script]);
    assert!(why.contains("script.py"), "{why}");
    assert!(
        cluster
            .fails(&["submit", "/nowhere/at/all"])
            .contains("/nowhere/at/all")
    );
    assert!(
        cluster
            .fails(&["submit", "/bin/sh", "--name", "a b"])
            .contains("`a b` does not")
    );
    let why = cluster.fails(&["submit", "/bin/sh", "--env", "ODEON_WORKER=1"]);
    assert!(why.contains("the runtime keeps for itself"), "{why}");
    assert!(
        cluster
            .fails(&["job", "show", "j99"])
            .contains("there is no job j99")
    );
    assert!(
        cluster
            .fails(&["logs", "nonsense"])
            .contains("`nonsense` is no job")
    );
    assert!(
        cluster
            .fails(&["drain", "nobody"])
            .contains("there is no node `nobody`")
    );
    assert!(cluster.fails(&["up"]).contains("a daemon runs in"));
    let nowhere = tempfile::tempdir().unwrap();
    let folder = nowhere.path().display().to_string();
    let why = cluster.fails(&["up", "--listen", "0.0.0.0:0", "--dir", &folder]);
    assert!(why.contains("--advertise"), "{why}");
    let other = tempfile::tempdir().unwrap();
    let none = odeon()
        .arg("status")
        .env("ODEON_DIR", other.path())
        .output()
        .unwrap();
    assert!(
        text(&none.stderr).contains("odeon up"),
        "{}",
        text(&none.stderr)
    );
}

/// SEMANTICS 54, 55.
#[test]
fn a_program_of_another_machine_and_one_that_is_too_large_are_refused_and_leave_nothing() {
    let cluster = Cluster::up(&["--artifacts-gib=1"]);
    // The number of the architecture, as that of 64-bit Arm.
    let mut foreign = fs::read("/bin/true").unwrap();
    foreign[18..20].copy_from_slice(&[0xb7, 0]);
    let path = cluster.folder.path().join("foreign");
    fs::write(&path, foreign).unwrap();
    let foreign = path.display().to_string();
    let output = cluster.run(&["submit", &foreign, "--wait"]);
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{why}");
    assert!(why.contains("refused") && why.contains("aarch64"), "{why}");
    // More than there is room for, without a byte of it on this disk.
    let path = cluster.folder.path().join("large");
    let large = fs::File::create(&path).unwrap();
    large.set_len(600 << 20).unwrap();
    let large = path.display().to_string();
    let why = cluster.fails(&["submit", "/bin/true", "--file", &large]);
    assert!(why.contains("at most") && why.contains("bytes"), "{why}");
    let jobs = fs::read_dir(cluster.dir().join("jobs"));
    assert_eq!(jobs.into_iter().flatten().count(), 0);
    assert!(!cluster.ok(&["jobs"]).contains("j2"));
}

#[test]
fn an_api_beyond_this_machine_speaks_tls_with_the_authority_of_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster { folder };
    let up = ["up", "--name", "head", "--api", "0.0.0.0:0"];
    let said = cluster.ok(&up);
    assert!(said.contains("https://127.0.0.1:"), "{said}");
    assert!(cluster.ok(&["status"]).contains("leader head"));
    let said = cluster.ok(&["submit", "/bin/echo", "--wait", "--", "over TLS"]);
    assert!(said.contains("over TLS"), "{said}");
    // The file is all that another machine needs, and what it trusts decides.
    let file = cluster.dir().join("api.json");
    let known: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let elsewhere = cluster.folder.path().join("elsewhere.json");
    let at_elsewhere = |connection: &serde_json::Value| {
        fs::write(&elsewhere, connection.to_string()).unwrap();
        let mut command = odeon();
        command.arg("status").env("ODEON_CONNECTION", &elsewhere);
        command.output().unwrap()
    };
    assert!(at_elsewhere(&known).status.success());
    let stranger = Cluster::up(&[]);
    let authority = fs::read_to_string(stranger.dir().join("ca.pem")).unwrap();
    let mut wrong = known.clone();
    wrong["authority"] = authority.into();
    let refused = at_elsewhere(&wrong);
    assert!(!refused.status.success());
    let why = text(&refused.stderr);
    assert!(why.contains("certificate"), "{why}");
    // Without TLS nobody is heard.
    let mut plain = known.clone();
    let url = known["url"].as_str().unwrap().replace("https:", "http:");
    plain["url"] = url.into();
    plain.as_object_mut().unwrap().remove("authority");
    assert!(!at_elsewhere(&plain).status.success());
}

/// Sends a request as it stands, and gives the status and the body of the answer.
fn http(cluster: &Cluster, head: &str, body: &str) -> (u16, String) {
    let connection = fs::read_to_string(cluster.dir().join("api.json")).unwrap();
    let connection: serde_json::Value = serde_json::from_str(&connection).unwrap();
    let address = connection["url"]
        .as_str()
        .unwrap()
        .strip_prefix("http://")
        .unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!("{head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn the_api_lets_in_who_has_a_key_and_no_more_than_that_allows() {
    let cluster = Cluster::up(&[]);
    let (status, why) = http(
        &cluster,
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost",
        "",
    );
    assert_eq!(status, 401, "{why}");
    let stranger = "GET /api/v1/status HTTP/1.1\r\nHost: evil.example";
    let (status, why) = http(&cluster, stranger, "");
    assert!(
        status == 403 && why.contains("--allow-host"),
        "{status} {why}"
    );
    let wrong = "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong";
    assert_eq!(http(&cluster, wrong, "").0, 401);
    let version = "GET /api/v1/version HTTP/1.1\r\nHost: localhost";
    assert_eq!(http(&cluster, version, "").0, 200);

    let said = cluster.ok(&["key", "make", "guest", "--role", "view"]);
    let key = said
        .lines()
        .find(|line| line.starts_with("odeon-"))
        .unwrap()
        .to_owned();
    let with = |method: &str, path: &str| {
        format!(
            "{method} /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json"
        )
    };
    assert_eq!(http(&cluster, &with("GET", "jobs"), "").0, 200);
    let (status, why) = http(&cluster, &with("POST", "jobs/j1/stop"), "{}");
    assert!(
        status == 403 && why.contains("role `submit`"),
        "{status} {why}"
    );
    assert_eq!(
        http(
            &cluster,
            &with("POST", "tokens"),
            "{\"uses\":1,\"valid_s\":60}"
        )
        .0,
        403
    );
    // The role is looked at before the body.
    assert_eq!(http(&cluster, &with("POST", "tokens"), "nonsense").0, 403);
    assert_eq!(http(&cluster, &with("GET", "nothing"), "").0, 404);
    let audit = fs::read_to_string(cluster.dir().join("audit.log")).unwrap();
    assert!(
        audit.contains("\"key\":\"guest\",\"from\":\"127.0.0.1\"")
            && audit.contains("jobs/j1/stop"),
        "{audit}"
    );
    assert!(audit.contains("\"made\":\"key `guest` (view)\""), "{audit}");
    cluster.ok(&["key", "revoke", "guest"]);
    assert_eq!(http(&cluster, &with("GET", "jobs"), "").0, 401);
    assert!(
        cluster
            .fails(&["key", "revoke", "owner"])
            .contains("the key that asks")
    );
    // A name is a part of an address, whatever is in it.
    cluster.ok(&["key", "make", "v", "--role", "view"]);
    for (odd, why) in [
        ("v?x", "`v?x` does not"),
        ("a/b", "`a/b` does not"),
        ("..", "`..` does not"),
    ] {
        let refused = cluster.fails(&["key", "make", odd]);
        assert!(
            refused.contains("letters, digits") && refused.contains(why),
            "{refused}"
        );
        cluster.fails(&["key", "revoke", odd]);
        cluster.fails(&["key", "revoke", &format!("v?{odd}")]);
    }
    let keys = cluster.ok(&["key", "list"]);
    assert!(keys.lines().any(|line| line.starts_with("v ")), "{keys}");
    let said = cluster.ok(&["key", "make", "robot"]);
    let key = said
        .lines()
        .find(|line| line.starts_with("odeon-"))
        .unwrap()
        .to_owned();
    let large = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json"
    );
    let (status, why) = http(
        &cluster,
        &large,
        &format!("{{\"name\":\"{}\"}}", "x".repeat(2 << 20)),
    );
    assert_eq!(status, 413, "{why}");
}

/// The key of the cluster's owner.
fn owner(cluster: &Cluster) -> String {
    let file = fs::read_to_string(cluster.dir().join("api.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    file["key"].as_str().unwrap().to_owned()
}

#[test]
fn what_cannot_be_meant_is_refused_and_lists_are_read_by_programs() {
    let cluster = Cluster::up(&[]);
    let why = cluster.fails(&["namespace", "rm", "nosuch"]);
    assert!(why.contains("there is no namespace `nosuch`"), "{why}");
    let said = cluster.ok(&["namespace", "set", "lab", "--running-max", "1"]);
    assert!(said.contains("lab may have 1 job\n"), "{said}");
    let rows = cluster.ok(&["namespace", "ls", "--json"]);
    let row: serde_json::Value = serde_json::from_str(&rows).unwrap();
    assert_eq!(row["name"], "lab");
    cluster.ok(&["namespace", "rm", "lab"]);
    let rows = cluster.ok(&["key", "list", "--json"]);
    let row: serde_json::Value = serde_json::from_str(&rows).unwrap();
    assert_eq!(
        (&row["name"], &row["role"]),
        (&"owner".into(), &"admin".into())
    );

    let submit = ["submit", "/bin/true", "--file", "a=/bin/sh"];
    let why = cluster.fails(&[&submit[..], &["--file", "a=/bin/ls"]].concat());
    assert!(why.contains("two files `a`"), "{why}");
    for name in ["a b", "a\u{1b}[31m", "..", ""] {
        let name = format!("--name={name}");
        for args in [&["up"][..], &["join", "127.0.0.1:1", "--token=x"]] {
            let why = cluster.fails(&[args, &[&name]].concat());
            let plain = !why.trim_end().contains(char::is_control);
            assert!(why.contains("is no name for a node") && plain, "{why}");
        }
    }

    let more = ["--env", "A=secret", "--", "-c", "echo \"a\nb\""];
    let args = [&["submit", "/bin/sh", "--wait"][..], &more].concat();
    assert!(cluster.ok(&args).contains("a\nb\n"));
    let shown = cluster.ok(&["job", "show", "j1"]);
    assert!(shown.contains(r#"arguments  -c $'echo "a\nb"'"#), "{shown}");
    assert!(
        shown.contains("variables  A\n") && shown.contains("took "),
        "{shown}"
    );
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn whatever_is_wrong_with_a_request_is_said_in_one_form() {
    let cluster = Cluster::up(&[]);
    let key = owner(&cluster);
    let head = |line: &str, more: &str| {
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}{more}")
    };
    let json = "\r\nContent-Type: application/json";
    for (line, more, body, expect) in [
        ("POST /api/v1/keys", json, "{\"name\":", 400),
        ("POST /api/v1/keys", json, "{\"name\": 5}", 422),
        ("POST /api/v1/keys", "", "{}", 415),
        // What a terminal would take for an order is shown, not given.
        (
            "POST /api/v1/keys",
            json,
            r#"{"name": "a\u001b[31m", "role": "view"}"#,
            422,
        ),
        // A field that nobody knows may be one that is meant.
        (
            "POST /api/v1/keys",
            json,
            r#"{"name": "a", "role": "view", "rol": "admin"}"#,
            422,
        ),
        (
            "POST /api/v1/jobs/j1/recovery",
            json,
            r#"{"order": "undo", "nod": "n7"}"#,
            422,
        ),
        (
            "POST /api/v1/group-test",
            json,
            r#"{"node": ["a", "b"], "refuse": true}"#,
            422,
        ),
        ("GET /api/v1/jobs?limit=many", "", "", 400),
        ("GET /api/v1/jobs?from=5", "", "", 400),
        ("GET /api/v1/jobs/j1/logs?after=nonsense", "", "", 422),
        ("GET /api/v1/jobs/%ff", "", "", 400),
        ("PATCH /api/v1/jobs", "", "", 405),
        ("GET /api/v1/nothing", "", "", 404),
    ] {
        let (status, answer) = http(&cluster, &head(line, more), body);
        assert_eq!(status, expect, "{line}: {answer}");
        let problem: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert!(problem["kind"].is_string(), "{line}: {answer}");
        let why = problem["why"].as_str().unwrap();
        assert!(
            why.len() > 10 && !why.contains(char::is_control),
            "{line}: {answer}"
        );
    }
}

#[test]
fn wrong_keys_from_one_address_are_slowed_and_good_ones_are_not() {
    let cluster = Cluster::up(&[]);
    let ask = |key: &str| {
        let head = "GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer";
        http(&cluster, &format!("{head} {key}"), "")
    };
    let mut answers = (0..1000).map(|_| ask("wrong"));
    let (status, why) = answers.find(|(status, _)| *status != 401).unwrap();
    assert!(
        status == 429 && why.contains("wrong keys"),
        "{status} {why}"
    );
    assert_eq!(ask(&owner(&cluster)).0, 200);
}

/// SEMANTICS 157. A node that is there and says nothing is named beside those that answer.
#[test]
fn a_doctor_checks_all_machines_and_beside_each_other() {
    let cluster = Cluster::up(&["--nodes=2"]);
    let look = || {
        let output = cluster.run(&["doctor", "--cluster", "--json"]);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), told)
    };
    let (_, told) = look();
    let names = |told: &serde_json::Value| -> Vec<String> {
        let nodes = told["nodes"].as_array().unwrap().iter();
        nodes
            .map(|it| it["node"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&told).len(), 2, "{told}");
    for node in told["nodes"].as_array().unwrap() {
        assert!(node["checks"].as_array().unwrap().len() >= 6, "{node}");
        assert!(node.get("unreached").is_none(), "{node}");
    }
    let together = told["together"].as_array().unwrap().iter();
    let clocks = together
        .into_iter()
        .find(|it| it["what"] == "clocks")
        .unwrap();
    assert_eq!(clocks["fitness"], "good", "one machine has one clock");
    let shown = cluster.run(&["doctor", "--cluster", "--all"]);
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("node-2:") && shown.contains("beside each other"),
        "{shown}"
    );
    let still = cluster.daemons()[1].to_string();
    let signal = |name: &str| Command::new("kill").args([name, &still]).status().unwrap();
    assert!(signal("-STOP").success());
    let (code, told) = look();
    assert!(signal("-CONT").success());
    assert_eq!(code, Some(1), "{told}");
    let unreached = told["nodes"].as_array().unwrap().iter();
    assert_eq!(
        unreached.filter(|it| it.get("unreached").is_some()).count(),
        1,
        "{told}"
    );
}

/// SEMANTICS 65.
#[test]
fn namespaces_are_bounded_and_nodes_forgotten_by_the_command() {
    let cluster = Cluster::up(&["--nodes=2"]);
    cluster.ok(&["namespace", "set", "ann", "--running-max", "1"]);
    let submit = ["submit", "/bin/sleep", "--namespace", "ann", "--", "1000"];
    cluster.ok(&submit);
    cluster.ok(&submit);
    let row = || {
        let shown = cluster.ok(&["namespace", "ls"]);
        let row = shown.lines().find(|line| line.starts_with("ann"));
        let words = row.unwrap_or("").split_whitespace().map(str::to_owned);
        words.collect::<Vec<_>>()
    };
    eventually("a job that waits", || {
        row() == ["ann", "1", "1", "1", "job"]
    });
    cluster.ok(&["namespace", "rm", "ann"]);
    eventually("its start", || row() == ["ann", "2", "0", "-"]);
    let said = cluster.ok(&[
        "namespace",
        "set",
        "ann",
        "--gpus",
        "0.5",
        "--memory-gib",
        "8",
    ]);
    assert!(said.contains("ann may have 0.5 gpus, 8 GiB"), "{said}");
    assert_eq!(row()[3..], ["0.5", "gpus,", "8", "GiB"]);
    let none = cluster.fails(&["namespace", "set", "ann"]);
    assert!(none.contains("--running-max"), "{none}");
    let odd = cluster.fails(&["namespace", "set", "a b", "--running-max", "1"]);
    assert!(odd.contains("`a b` does not"), "{odd}");
    cluster.ok(&["stop", "j1"]);
    cluster.ok(&["stop", "j2"]);

    let why = cluster.fails(&["forget", "node-2"]);
    assert!(why.contains("is up: stop it first"), "{why}");
    let second = cluster.dir().join("nodes/node-2");
    cluster.ok(&["down", "--dir", second.to_str().unwrap()]);
    let left = || cluster.ok(&["status"]).contains("node-2  left");
    eventually("the leave of a node", left);
    cluster.ok(&["forget", "node-2"]);
    assert!(!cluster.ok(&["status"]).contains("node-2"));
    let why = cluster.fails(&["forget", "node-2"]);
    assert!(why.contains("node-2"), "{why}");
    // What its folder holds is of no use any more.
    let keys = cluster.ok(&["key", "list"]);
    assert!(!keys.contains("owner@node-2"), "{keys}");
    let status: serde_json::Value =
        serde_json::from_str(&cluster.ok(&["status", "--json"])).unwrap();
    let head = status["nodes"][0]["address"].as_str().unwrap();
    let why = cluster.fails(&["join", head, "--dir", second.to_str().unwrap()]);
    // By its link, or by the catalog, whichever hears of it first.
    assert!(why.contains("join with a new token"), "{why}");
}

#[test]
fn a_driver_that_a_signal_ends_is_told_by_the_exit_code() {
    let cluster = Cluster::up(&[]);
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        let script = format!("kill -{signal} $$");
        let done = cluster.run(&["submit", "--wait", "/bin/sh", "--", "-c", &script]);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert!(said.contains(&format!("SIG{signal}")), "{said}");
    }
    assert_eq!(cluster.run(&["wait", "j1"]).status.code(), Some(137));
}

/// A command that shows what a job prints, after the first line of that.
fn watching(cluster: &Cluster, args: &[&str]) -> std::process::Child {
    let mut child = odeon()
        .args(args)
        .env("ODEON_DIR", cluster.dir())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    child
}

#[test]
fn ctrl_c_leaves_a_job_running_and_says_how_to_come_back() {
    let cluster = Cluster::up(&[]);
    let script = "echo here; sleep 1000";
    let child = watching(
        &cluster,
        &["submit", "--wait", "/bin/sh", "--", "-c", script],
    );
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(
        said.contains("j1 goes on")
            && said.contains("odeon logs -f j1")
            && said.contains("odeon stop j1"),
        "{said}"
    );
    assert!(is_alive(cluster.driver("j1")));
}

#[test]
fn who_follows_a_job_of_a_cluster_that_is_ended_is_told_so() {
    let cluster = Cluster::up(&[]);
    cluster.ok(&["submit", "/bin/sh", "--", "-c", "echo here; sleep 1000"]);
    let child = watching(&cluster, &["logs", "-f", "j1"]);
    cluster.ok(&["down"]);
    let done = child.wait_with_output().unwrap();
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("does not answer any more"), "{said}");
    assert!(!said.contains("http"), "{said}");
}

#[test]
fn a_machine_that_comes_with_an_expired_token_is_told_so() {
    let cluster = Cluster::up(&[]);
    let head = format!(
        "POST /api/v1/tokens HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json",
        owner(&cluster)
    );
    let (status, answer) = http(&cluster, &head, "{\"uses\":1,\"valid_s\":1}");
    assert_eq!(status, 200, "{answer}");
    let token: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let until = token["until_ms"].as_u64().unwrap();
    let over = || Clock::unix_time().as_millis() as u64 > until;
    eventually("the end of a token", over);
    let folder = tempfile::tempdir().unwrap();
    let (address, token) = (token["address"].as_str(), token["token"].as_str());
    let joined = odeon()
        .args(["join", address.unwrap(), "--token", token.unwrap(), "--dir"])
        .arg(folder.path().join("late"))
        .output()
        .unwrap();
    let why = text(&joined.stderr);
    assert!(!joined.status.success());
    assert!(
        why.contains("the token has expired: ask whoever gave it for a new one"),
        "{why}"
    );
    assert!(!cluster.ok(&["status"]).contains("late"));
}

#[test]
fn a_machine_joins_with_a_token_and_no_other() {
    let cluster = Cluster::up(&[]);
    let said = cluster.ok(&["token"]);
    let words: Vec<&str> = said.split_whitespace().collect();
    let (address, token) = (words[2], words[4]);
    let place = tempfile::tempdir().unwrap();
    let join = |name: &str, token: &str| {
        let folder = place.path().join(name);
        let args = ["join", address, "--token", token, "--name", name, "--dir"];
        odeon().args(args).arg(folder).output().unwrap()
    };
    let why = |output: Output| {
        assert!(!output.status.success(), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    assert!(why(join("other", "nonsense")).contains("this is no token"));
    // Of the same cluster, with another secret.
    let mut wrong = token.to_owned();
    wrong.replace_range(7..8, if &token[7..8] == "a" { "b" } else { "a" });
    assert!(why(join("other", &wrong)).contains("does not know this token"));
    assert!(why(join("head", token)).contains("has a node `head`"));
    let joined = join("second", token);
    assert!(joined.status.success(), "{}", text(&joined.stderr));
    let status = cluster.ok(&["status"]);
    assert!(status.contains("second  up"), "{status}");
    assert!(why(join("third", token)).contains("used up"));
    let folder = place.path().join("second");
    let down = |folder: &PathBuf| {
        odeon()
            .arg("down")
            .arg("--dir")
            .arg(folder)
            .output()
            .unwrap()
    };
    assert!(down(&folder).status.success());
    let status = cluster.ok(&["status"]);
    assert!(status.contains("second  left"), "{status}");
    // The second time without a token.
    let again = odeon()
        .args(["join", address, "--dir"])
        .arg(&folder)
        .output()
        .unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(cluster.ok(&["status"]).contains("second  up"));
    assert!(down(&folder).status.success());
}

#[test]
fn what_is_wrong_with_joining_is_told_before_anything_is_started() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("node");
    for (address, token, why) in [
        // No resolver is asked for a name with a space.
        ("no host:1234", Some("x"), "no host `no host` ("),
        ("10.0.0.1", Some("x"), "`10.0.0.1` is not HOST:PORT"),
        ("::1", Some("x"), "`::1` is not HOST:PORT"),
        ("[fd00::1]", Some("x"), "`[fd00::1]` is not HOST:PORT"),
        (":7432", Some("x"), "`:7432` is not HOST:PORT"),
        ("10.0.0.1:70000", Some("x"), "`70000` is no port"),
        ("10.0.0.1:0", Some("x"), "`0` is no port"),
        ("127.0.0.1:1", Some("x"), "this is no token"),
        ("127.0.0.1:1", None, "a token is needed (--token TOKEN)"),
    ] {
        let mut command = odeon();
        command.args(["join", address, "--dir"]).arg(&folder);
        command.args(token.map(|token| format!("--token={token}")));
        let output = command.env_remove("ODEON_TOKEN").output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{address}: {told}");
        assert!(told.contains(why), "{address}: {told}");
        let advised = told.contains("`odeon token`") || told.contains("copy all of it");
        assert!(advised && told.lines().count() == 1, "{address}: {told}");
        assert!(!told.contains("daemon did not start"), "{address}: {told}");
        assert!(!folder.exists(), "{address}: nothing was started");
    }
}

fn kill_9(pid: u32) {
    let killed = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    eventually("the end of a process", || !is_alive(pid));
}

/// SEMANTICS 54.
#[test]
fn a_killed_head_comes_back_with_all_that_it_knew() {
    let cluster = Cluster::up(&[]);
    let script = shell(&cluster, "work.sh", "echo begun; sleep 1000");
    let submit = [
        "submit",
        "/bin/sh",
        "--file",
        &script,
        "--retries",
        "1",
        "--",
        "work.sh",
    ];
    cluster.ok(&["submit", "/bin/true", "--wait"]);
    cluster.ok(&submit);
    cluster.begun("j2");
    let driver = cluster.driver("j2");
    kill_9(cluster.daemons()[0]);
    cluster.ok(&["up", "--api", "127.0.0.1:0"]);
    let jobs = cluster.ok(&["jobs", "--all"]);
    assert!(jobs.contains("j1") && jobs.contains("succeeded"), "{jobs}");
    let runs = || cluster.ok(&["job", "show", "j2"]).contains("running");
    eventually("a job that runs again", runs);
    let shown = cluster.ok(&["job", "show", "j2"]);
    assert!(
        shown.contains("try 1") && shown.contains("lost with node `head`"),
        "{shown}"
    );
    assert!(!is_alive(driver), "a driver of a daemon that was killed");
    cluster.ok(&["stop", "j2"]);
    // Without its memory it does not pretend to be a new cluster.
    cluster.ok(&["down"]);
    fs::remove_file(cluster.dir().join("catalog.redb")).unwrap();
    let why = cluster.fails(&["up", "--api", "127.0.0.1:0"]);
    assert!(why.contains("catalog.redb is missing or empty"), "{why}");
}

/// A cluster of one node whose daemon was killed, with a driver and a mount left, and what tells of these two; nothing
/// where the daemon has mounted nothing.
fn killed_with_a_mount() -> Option<(Cluster, u32, impl Fn() -> bool)> {
    // So that all that is larger than nothing is worth a mount.
    let cluster = Cluster::up(&["--on-demand-above-mib=0"]);
    let mounts = cluster.dir().canonicalize().unwrap().join("mounts");
    let (first, below) = (mounts.join("0"), mounts.to_string_lossy().into_owned());
    let mounted = move || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(&below)
    };
    cluster.ok(&["submit", "/bin/sh", "--", "-c", "echo begun; sleep 1000"]);
    cluster.begun("j1");
    if !mounted() {
        skip(Need::Mounts, "the daemon has mounted nothing");
        return None;
    }
    let driver = cluster.driver("j1");
    kill_9(cluster.daemons()[0]);
    assert!(
        mounted() && fs::read_dir(first).is_err(),
        "nobody answers there"
    );
    Some((cluster, driver, mounted))
}

/// SEMANTICS 56.
#[test]
fn what_a_killed_daemon_has_left_mounted_is_gone_when_it_is_back() {
    let Some((cluster, driver, mounted)) = killed_with_a_mount() else {
        return;
    };
    cluster.ok(&["up", "--api", "127.0.0.1:0"]);
    assert!(!mounted() && !is_alive(driver));
    cluster.ok(&["submit", "/bin/sh", "--wait", "--", "-c", "echo again"]);
    cluster.ok(&["down"]);
    assert!(!mounted());
}

/// SEMANTICS 56.
#[test]
fn what_a_killed_daemon_has_left_is_gone_when_its_node_is_told_to_end() {
    let Some((cluster, driver, mounted)) = killed_with_a_mount() else {
        return;
    };
    let said = cluster.ok(&["down"]);
    let left = ": 1 of its drivers ended, 1 mounts taken away";
    assert!(said.contains(left), "{said}");
    assert!(!mounted() && !is_alive(driver));
    let why = cluster.fails(&["down"]);
    assert!(why.contains("no daemon runs in"), "{why}");
}

/// SEMANTICS 56.
#[test]
fn what_a_lost_driver_had_on_another_node_is_gone_moments_later() {
    let Some(program) = crate::upgrade::program() else {
        return;
    };
    let cluster = Cluster::up(&["--nodes=3"]);
    let spawns = ["--node", "node-2", "--", "lingers", "node-3"];
    // Nodes that have just come are linked to each other a moment later: until then it fails.
    let (job, worker) = found("an actor elsewhere", || {
        let said = cluster.ok(&[&["submit", &program], &spawns[..]].concat());
        let job = said.split_whitespace().nth(1).unwrap().to_owned();
        let spawned = found("its actor, or its end", || {
            let said = cluster.ok(&["logs", &job]);
            let mut pids = said.lines().filter_map(|it| it.strip_prefix("on node-3: "));
            let pid = pids.next().map(|pid| pid.parse::<u32>().unwrap());
            (pid.is_some() || said.contains("no node `node-3`")).then_some(pid)
        });
        spawned.map(|worker| (job, worker))
    });
    let nodes = cluster.dir().join("nodes");
    let folders = |node: &str| {
        let folders = fs::read_dir(nodes.join(node).join("jobs"));
        folders.into_iter().flatten().count()
    };
    eventually("the end of those that failed", || folders("node-2") == 1);
    assert!(is_alive(worker) && folders("node-3") == 1);
    let daemon = fs::read_to_string(nodes.join("node-2/daemon.pid")).unwrap();
    kill_9(daemon.trim().parse().unwrap());
    // That its last life is over is known when the next one begins.
    cluster.ok(&["up", "--api", "127.0.0.1:0", "--name", "head", "--nodes=3"]);
    let why = cluster.run(&["wait", &job]);
    assert!(!why.status.success(), "{}", text(&why.stdout));
    let gone = || !is_alive(worker) && folders("node-3") == 0;
    eventually("the end of what it had on another node", gone);
    assert_eq!(folders("node-2"), 0);
}

#[test]
fn a_folder_may_be_named_from_where_one_is() {
    let folder = tempfile::tempdir().unwrap();
    let here = |args: &[&str]| {
        let mut command = odeon();
        command.args(args).current_dir(folder.path());
        let output = command.output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {out}{err}");
        out
    };
    here(&["up", "--dir", "here", "--api", "127.0.0.1:0"]);
    let submit = [
        "submit",
        "/bin/echo",
        "--dir",
        "here",
        "--wait",
        "--",
        "hello",
    ];
    assert_eq!(here(&submit), "hello\n");
    here(&["down", "--dir", "here"]);
}

/// SEMANTICS 62.
#[test]
fn a_gang_is_submitted_and_its_ranks_meet_across_nodes() {
    if !Command::new("python3")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip(Need::Python, "there is no python3 here");
    }
    let cluster = Cluster::up(&["--nodes", "2"]);
    let script = "
import os, socket, sys, time
socket.setdefaulttimeout(60)
rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
if rank == 0:
    with socket.create_server(at) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
    total = 1 + sum(int(peer.recv(64)) for peer in peers)
    for peer in peers:
        peer.sendall(b'%d' % total)
else:
    begun = time.monotonic()
    while True:
        try:
            peer = socket.create_connection(at)
            break
        except ConnectionRefusedError:
            if time.monotonic() - begun > 60:
                raise
    peer.sendall(b'%d' % (rank + 1))
    total = int(peer.recv(64))
print('sum', total, 'group', os.environ['GROUP_RANK'], 'of', os.environ['GROUP_WORLD_SIZE'],
    open(sys.argv[1]).read().strip(), flush=True)
sys.exit(5 if rank == 3 and sys.argv[2:] else 0)
";
    let here = cluster.folder.path();
    shell(&cluster, "train.py", script);
    shell(&cluster, "note", "remember\n");
    // Two ranks fill a node, however many cores it has.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = (cores as f64 / 2.0).to_string();
    let submit = |more: &[&str]| {
        let args = ["submit", "--gang", "4", "--cpus", &cpus, "--wait", "--"];
        let program = ["python3", "train.py", "note"];
        let mut command = odeon();
        command.args(args).args(program).args(more);
        let run = command.env("ODEON_DIR", cluster.dir()).current_dir(here);
        run.output().unwrap()
    };
    let output = submit(&[]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(err.contains("submitted j1 (train)"), "{err}");
    for rank in 0..4 {
        let line = out
            .lines()
            .find(|it| it.starts_with(&format!("[rank {rank} on ")) && it.contains("sum 10 group"));
        let line = line.unwrap_or_else(|| panic!("{out}{err}"));
        assert!(line.ends_with("of 2 remember"), "{line}");
    }
    for node in ["head", "node-2"] {
        assert_eq!(out.matches(&format!(" on {node}] sum")).count(), 2, "{out}");
    }
    // Its exit code is that of the rank that failed, which is named.
    let output = submit(&["fail"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(5), "{out}{err}");
    assert_eq!(err.matches("rank 3 of 4").count(), 1, "{out}{err}");
    let why = cluster.fails(&["submit", "--gang", "2"]);
    assert!(why.contains("--"), "{why}");
    let why = cluster.fails(&["submit", "/bin/sh", "--max-restarts", "2"]);
    assert!(why.contains("--gang"), "{why}");
}

#[test]
fn a_recipe_runs_on_the_cluster_and_leaves_its_results_where_it_says() {
    let cluster = Cluster::up(&[]);
    let here = cluster.folder.path();
    let recipe = "[run]\nname = \"tiny\"\nout = \"results\"\n
[model]\nhidden = 16\nlayers = 1\nheads = 2\nkv_heads = 2\nffn = 16\ncontext = 32\n
[task.sums]\nform = \"compact\"\noperands_min = 2\noperands_max = 2\ndigits_min = 1\ndigits_max = 1\n
[rl]\nalgorithm = \"grpo\"\nsteps = 2\ngroups = 2\ngroup_size = 2\nlr = 0.001\nresponse_max = 8\n
[processes]\nrollouts = 1\nslots = 4\n[eval]\nproblems = 2\n";
    shell(&cluster, "tiny.toml", recipe);
    let run = |args: &[&str]| {
        let mut command = odeon();
        command.args(["run", "tiny.toml", "--cluster"]).args(args);
        let run = command.env("ODEON_DIR", cluster.dir()).current_dir(here);
        run.output().unwrap()
    };
    let output = run(&[]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(err.contains("submitted j1 (tiny)"), "{err}");
    let metrics = fs::read_to_string(here.join("results/tiny/metrics.jsonl")).unwrap();
    assert!(
        metrics.contains("\"step\":2") || metrics.lines().count() > 2,
        "{metrics}"
    );
    // It goes on where it is: there is nothing left to do, unless it begins anew.
    let output = run(&[]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(err.contains("is done: 2 of 2 steps"), "{out}{err}");
    let output = run(&["--fresh", "--detach"]);
    assert!(
        text(&output.stderr).contains("submitted j3"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(cluster.run(&["wait", "j3"]).status.code(), Some(0));
    // What cannot travel is refused before anything is sent.
    shell(
        &cluster,
        "tiny.toml",
        &recipe.replace("hidden = 16", "load = \"nowhere.gguf\"\nhidden = 16"),
    );
    let output = run(&[]);
    let err = text(&output.stderr);
    assert!(
        !output.status.success() && err.contains("nowhere.gguf is not there"),
        "{err}"
    );
}

#[test]
fn a_recipe_that_asks_for_more_than_there_is_fails_with_what_is_missing() {
    let cluster = Cluster::up(&[]);
    let here = cluster.folder.path();
    let recipe = "[run]\nname = \"big\"\nout = \"results\"\n
[model]\nhidden = 16\nlayers = 1\nheads = 2\nkv_heads = 2\nffn = 16\ncontext = 32\n
[task.sums]\nform = \"compact\"\noperands_min = 2\noperands_max = 2\ndigits_min = 1\ndigits_max = 1\n
[rl]\nalgorithm = \"grpo\"\nsteps = 2\ngroups = 2\ngroup_size = 2\nlr = 0.001\nresponse_max = 8\n
[processes]\nrollouts = 1\nslots = 4\n[placement]\ntrainer_cpus = 1000\n";
    shell(&cluster, "big.toml", recipe);
    let run = odeon()
        .args(["run", "big.toml", "--cluster"])
        .env("ODEON_DIR", cluster.dir())
        .current_dir(here)
        .output()
        .unwrap();
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    // Who looks later reads the same.
    let shown = cluster.ok(&["job", "show", "j1"]);
    for words in [said, shown] {
        assert!(
            words.contains("1000 needed") && words.contains("would not fit on idle nodes either"),
            "{words}"
        );
    }
}

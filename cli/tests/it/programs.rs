//! Programs that are none of Odeon, as people have them: scripts, packages, folders, progress bars, long
//! lines; and what a cluster keeps of them.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use odeon_skip::{Need, skip};

use crate::nodes::{eventually, found, text};

/// A node of this machine and a folder to work in; it ends with the test.
pub(crate) struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    /// One that is not up yet.
    pub(crate) fn new() -> Self {
        let node = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(node.here()).unwrap();
        node
    }

    pub(crate) fn up(args: &[&str]) -> Self {
        let node = Self::new();
        let up = ["up", "--api", "127.0.0.1:0", "--name", "head"];
        node.ok(&[&up, args].concat());
        node
    }

    /// The folder in which commands are given.
    pub(crate) fn here(&self) -> PathBuf {
        self.folder.path().join("here")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The answer of its API to a question, whatever it is.
    pub(crate) fn get(&self, path: &str) -> String {
        let connection = fs::read_to_string(self.dir().join("api.json")).unwrap();
        let connection: serde_json::Value = serde_json::from_str(&connection).unwrap();
        let host = connection["url"]
            .as_str()
            .unwrap()
            .trim_start_matches("http://");
        let key = connection["key"].as_str().unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let ask = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = vec![];
        stream.read_to_end(&mut answer).unwrap();
        text(&answer)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("head")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.here().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
        command
            .env_remove("ODEON_LOG")
            .env_remove("PYTHONUNBUFFERED")
            .env("ODEON_DIR", self.dir())
            .current_dir(self.here())
            .args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed, and gives what it shows and says.
    pub(crate) fn ok(&self, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {out}{err}");
        (out, err)
    }

    /// Runs a command that must fail, and gives why it says it did.
    pub(crate) fn fails(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let out = text(&output.stdout);
        assert!(!output.status.success(), "{args:?}: {out}");
        text(&output.stderr)
    }

    fn pid(&self) -> String {
        let pid = fs::read_to_string(self.dir().join("daemon.pid")).unwrap();
        pid.trim().to_owned()
    }

    /// Descriptors of the daemon whose targets have this text.
    fn descriptors(&self, text: &str) -> usize {
        let folder = format!("/proc/{}/fd", self.pid());
        let entries = fs::read_dir(folder).unwrap().flatten();
        let targets = entries.filter_map(|it| fs::read_link(it.path()).ok());
        targets
            .filter(|it| it.to_string_lossy().contains(text))
            .count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ = self.run(&["down"]);
    }
}

fn has_python() -> bool {
    let python = Command::new("python3").arg("--version").output();
    let there = python.is_ok_and(|output| output.status.success());
    if !there {
        skip(Need::Python, "there is no python3 here");
    }
    there
}

/// SEMANTICS 57.
#[test]
fn programs_of_all_kinds_run_with_the_files_that_they_need() {
    let node = Node::up(&[]);
    // A script, with a file that its words name; a name that is looked up.
    node.write("start.sh", "#!/bin/sh -e\ncat $1; echo \"$USER\" | grep -q . && echo $HOME | grep -q /; echo unbuffered $PYTHONUNBUFFERED\n");
    node.write("note", "a note\n");
    let (out, _) = node.ok(&["submit", "--wait", "start.sh", "note"]);
    assert_eq!(out, "a note\nunbuffered 1\n");
    let (out, _) = node.ok(&[
        "submit",
        "--wait",
        "--env",
        "PYTHONUNBUFFERED=",
        "sh",
        "start.sh",
        "note",
    ]);
    assert_eq!(out, "a note\nunbuffered\n");
    let (out, err) = node.ok(&["jobs", "--all", "--limit", "1"]);
    assert!(out.contains("j2") && !out.contains("j1"), "{out}");
    assert!(
        err.contains("the 1 newest jobs; older ones with --limit"),
        "{err}"
    );
    // Files keep their paths, and a folder is sent without what is to stay.
    node.write("pkg/sub/x.txt", "x\n");
    node.write("pkg/.gitignore", "secret\n");
    node.write("pkg/secret", "s\n");
    let list = [
        "--",
        "sh",
        "-c",
        "find . -name '*.txt' -o -name secret | sort; cat data/sub/x.txt",
    ];
    let submit = [
        "submit",
        "--wait",
        "--file",
        "pkg/sub/x.txt",
        "--file",
        "data=pkg",
    ];
    let (out, err) = node.ok(&[submit.as_slice(), &list].concat());
    assert_eq!(out, "./data/sub/x.txt\n./pkg/sub/x.txt\nx\n");
    assert!(err.contains("pkg: 2 files"), "{err}");
    // What would wait for ever, and what is not there.
    let fifo = node.here().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let error = node.fails(&["submit", "./fifo"]);
    assert!(error.contains("fifo"), "{error}");
    let error = node.fails(&["submit", "no-such-program"]);
    assert!(error.contains("in this folder or in PATH"), "{error}");
    if !has_python() {
        return;
    }
    node.write("mod/__init__.py", "");
    node.write(
        "mod/__main__.py",
        "import mod, sys\nprint('module', __name__)\n",
    );
    node.write("main.py", "import mod\nprint('imported')\n");
    let (out, _) = node.ok(&[
        "submit", "--gang", "1", "--wait", "--", "python3", "-m", "mod",
    ]);
    assert_eq!(out, "module __main__\n");
    let error = node.fails(&[
        "submit", "--gang", "1", "--wait", "--", "python3", "main.py",
    ]);
    assert!(
        error.contains("main.py imports `mod`, which is not sent: add --file mod"),
        "{error}"
    );
    let gang = [
        "submit", "--gang", "1", "--file", "mod", "--wait", "--", "python3", "main.py",
    ];
    let (out, _) = node.ok(&gang);
    assert_eq!(out, "imported\n");
    // An environment stays where it is.
    let venv = ["-m", "venv", "--without-pip", "venv"];
    let made = Command::new("python3")
        .args(venv)
        .current_dir(node.here())
        .status();
    if !made.unwrap().success() {
        return skip(Need::Python, "python3 makes no environments here");
    }
    node.write("prefix.py", "import sys\nprint(sys.prefix)\n");
    let prefix = format!("{}\n", node.here().join("venv").display());
    for words in [
        ["submit", "--wait", "venv/bin/python", "prefix.py"].as_slice(),
        &[
            "submit",
            "--gang",
            "1",
            "--wait",
            "--",
            "venv/bin/python",
            "prefix.py",
        ],
    ] {
        let (out, err) = node.ok(words);
        assert_eq!(out, prefix);
        assert!(err.contains("which is not sent"), "{err}");
    }
}

/// SEMANTICS 62.
#[test]
fn what_programs_print_is_seen_soon_and_whole_and_is_found_again() {
    let node = Node::up(&[]);
    // A line of any length in one piece, or in pieces that say so.
    let long = "b=$(head -c 102398 /dev/zero | tr '\\0' x); echo \"B${b}E\"; echo after";
    let (out, _) = node.ok(&["submit", "--wait", "sh", "--", "-c", long]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        (lines[0].len(), lines[1], lines.len()),
        (102_400, "after", 2)
    );
    assert!(lines[0].starts_with("Bx") && lines[0].ends_with("xE"));
    let (out, _) = node.ok(&["submit", "--gang", "1", "--wait", "sh", "--", "-c", long]);
    assert_eq!(out.lines().next().unwrap().len(), 102_400);
    let huge = "head -c 600000 /dev/zero | tr '\\0' x; echo";
    let (out, _) = node.ok(&["submit", "--wait", "sh", "--", "-c", huge]);
    assert_eq!(out.matches('x').count(), 600_000);
    assert_eq!(
        out.matches(" [this line goes on]\n[the line before goes on] ")
            .count(),
        2
    );
    // A bar is one line at last, and its states are seen while it runs.
    let bar = "printf '\\r  0%%'; sleep 0.4; printf '\\r 50%%'; sleep 0.4; printf '\\r100%%\\n'; \
               until [ -e \"$GO\" ]; do sleep 0.05; done; echo end";
    let go = node.here().join("go");
    let variable = format!("GO={}", go.display());
    let submit = [
        "submit", "--wait", "--name", "bar", "--env", &variable, "sh", "--", "-c", bar,
    ];
    let mut follow = node
        .command(&submit)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = follow.stdout.take().unwrap();
    let mut told = vec![];
    while !text(&told).contains("100%\n") {
        let mut some = [0; 64];
        let count = seen.read(&mut some).unwrap();
        assert!(count > 0, "{}", text(&told));
        told.extend_from_slice(&some[..count]);
    }
    assert_eq!(text(&told), "  0%\n 50%\n100%\n");
    fs::write(&go, "").unwrap();
    assert!(follow.wait().unwrap().success());
    drop(seen);
    let (out, _) = node.ok(&["logs", "j4"]);
    assert_eq!(out, "100%\nend\n");
    // Parts of a log.
    let (out, _) = node.ok(&["logs", "-t", "--tail", "1", "j4"]);
    assert!(
        out.starts_with("20") && out.ends_with(" end\n") && out.lines().count() == 1,
        "{out}"
    );
    let (out, _) = node.ok(&["logs", "--grep", "100", "j4"]);
    assert_eq!(out, "100%\n");
    let ranks = "echo rank $RANK; echo other";
    node.ok(&["submit", "--gang", "2", "--wait", "sh", "--", "-c", ranks]);
    let (out, _) = node.ok(&["logs", "--rank", "1", "j5"]);
    assert_eq!(out, "[rank 1 on head] rank 1\n[rank 1 on head] other\n");
}

#[test]
fn jobs_leave_no_descriptor_and_a_client_waits_where_it_is_told_to() {
    let node = Node::up(&["--api-rate", "5"]);
    // Some 200 pieces at five requests a second would be refused.
    let noise = node.here().join("noise");
    let made = Command::new("sh")
        .args(["-c", "head -c 4000000 /dev/urandom > \"$0\""])
        .arg(&noise)
        .status();
    assert!(made.unwrap().success());
    let count = [
        "submit",
        "--wait",
        "--file",
        "noise",
        "--",
        "sh",
        "-c",
        "wc -c < noise",
    ];
    let (out, _) = node.ok(&count);
    assert_eq!(out.trim(), "4000000");
    for _ in 0..4 {
        node.ok(&["submit", "--wait", "true"]);
    }
    eventually("the end of what jobs had", || {
        node.descriptors("odeon-ledger") <= 1
    });
    // Who connects and asks for nothing is not kept.
    let connection = fs::read_to_string(node.dir().join("api.json")).unwrap();
    let connection: serde_json::Value = serde_json::from_str(&connection).unwrap();
    let url = connection["url"].as_str().unwrap();
    let address = url.strip_prefix("http://").unwrap();
    let mut silent = TcpStream::connect(address).unwrap();
    silent
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut rest = vec![];
    silent
        .read_to_end(&mut rest)
        .expect("it is closed in the end");
}

#[test]
fn a_daemon_that_does_not_start_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = taken.local_addr().unwrap().to_string();
    let dir = folder.path().join("some/where");
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_odeon"))
            .env("ODEON_DIR", &dir)
            .args(args)
            .output()
            .unwrap()
    };
    let output = run(&["up", "--api", &api]);
    let error = text(&output.stderr);
    assert!(
        !output.status.success() && error.contains("cannot listen"),
        "{error}"
    );
    assert!(!folder.path().join("some").exists());
    // A folder that was there stays, with what is in it.
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("own"), "").unwrap();
    assert!(!run(&["up", "--api", &api]).status.success());
    assert!(dir.join("own").exists());
}

/// A gang of four whose ranks end when their peer, rank 2, is gone: with a code of their own.
const PEERS: &str = "
import os, socket, sys, time
rank = int(os.environ['RANK'])
at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
if rank == 2:
    with socket.create_server(at) as server:
        peers = [server.accept()[0] for _ in range(3)]
    sys.exit(3)
while True:
    try:
        peer = socket.create_connection(at)
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
if not peer.recv(1):
    raise ConnectionResetError('Connection reset by peer')
";

/// SEMANTICS 62.
#[test]
fn the_rank_that_failed_first_is_named_and_not_one_that_lost_it() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("peers.py"), PEERS).unwrap();
    for _ in 0..5 {
        let output = gang(folder.path(), &["4", "--", "python3", "peers.py"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains("rank 2 of 4"), "{error}");
    }
}

fn gang(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_odeon"))
        .env_remove("ODEON_LOG")
        .env_remove("PYTHONUNBUFFERED")
        .current_dir(folder)
        .arg("gang")
        .args(args)
        .output()
        .unwrap()
}

/// SEMANTICS 61.
#[test]
fn signals_of_terminals_and_schedulers_give_ranks_their_grace() {
    let trap = "trap 'sleep 0.2; echo saved > saved-$RANK; exit 0' TERM; echo > ready-$RANK; \
                while true; do sleep 0.05; done";
    for (name, code) in [("HUP", 129), ("USR1", 138), ("USR2", 140)] {
        let folder = tempfile::tempdir().unwrap();
        // Who runs the tests under nohup has it ignored.
        let mut driver = Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_odeon")])
            .env_remove("ODEON_LOG")
            .current_dir(folder.path())
            .args(["gang", "2", "--", "/bin/sh", "-c", trap])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        for rank in ["ready-0", "ready-1"] {
            eventually("a rank", || folder.path().join(rank).exists());
        }
        let sent = Command::new("kill")
            .args(["-s", name, &driver.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        assert_eq!(driver.wait().unwrap().code(), Some(code), "{name}");
        for rank in ["saved-0", "saved-1"] {
            assert!(folder.path().join(rank).exists(), "{name}: {rank}");
        }
    }
    // Under nohup a terminal that goes away is no reason to end.
    let folder = tempfile::tempdir().unwrap();
    let script = "trap '' HUP; exec \"$0\" gang 1 -- /bin/sh -c 'echo > ready; while ! [ -e go ]; do sleep 0.05; done'";
    let mut driver = Command::new("/bin/sh")
        .current_dir(folder.path())
        .args(["-c", script, env!("CARGO_BIN_EXE_odeon")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    found("a rank", || {
        folder.path().join("ready").exists().then_some(())
    });
    let sent = Command::new("kill")
        .args(["-s", "HUP", &driver.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(driver.wait().unwrap().code(), Some(0));
}

/// The blocks of a page in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let blocks = page.split(begin.as_str()).skip(1);
    blocks.map(|it| it.split("```").next().unwrap()).collect()
}

#[test]
fn what_the_page_for_who_brings_a_program_shows_works() {
    if !has_python() {
        return;
    }
    let page = crate::section("Programs");
    let node = Node::up(&[]);
    let [train, step] = blocks(page, "python")[..2] else {
        panic!("the page has a script and a package");
    };
    node.write("train.py", train);
    node.write("steps/__init__.py", step);
    node.write("start.sh", blocks(page, "sh")[0]);
    node.write(".odeonignore", blocks(page, "text")[1]);
    node.write("results/large", "no");
    let mut shown = vec![];
    for line in blocks(page, "console")[0].lines() {
        let words: Vec<&str> = line.strip_prefix("$ odeon ").unwrap().split(' ').collect();
        shown.push(node.ok(&words).0);
    }
    let [gang, alone, ranks, script, last] = shown.as_slice() else {
        panic!("the page shows five commands");
    };
    for text in ["[rank 0] rank 0 step 2 is 4", "[rank 1] rank 1 step 2 is 4"] {
        assert!(gang.contains(text), "{gang}");
    }
    assert_eq!(
        alone,
        "rank 0 step 0 is 0\nrank 0 step 1 is 1\nrank 0 step 2 is 4\n"
    );
    assert!(
        ranks.contains("[rank 1 on head] rank 1 step 2 is 4"),
        "{ranks}"
    );
    assert!(
        script.starts_with("started by ") && script.ends_with("step 2 is 4\n"),
        "{script}"
    );
    assert_eq!(last, "[rank 1 on head] rank 1 step 2 is 4\n");
    let said = "rank 1 step 2 is 4";
    assert!(page.contains(&format!("at last: `{said}`")));
}

/// On a disk of 48 MB, in a namespace of its own: the test begins again there.
#[test]
fn a_full_disk_refuses_what_has_no_room_keeps_none_of_it_and_tells_what_it_lost() {
    const DISK: &str = "ODEON_TEST_SMALL_DISK";
    let Some(disk) = std::env::var_os(DISK) else {
        let folder = tempfile::tempdir().unwrap();
        let this = std::env::current_exe().unwrap();
        let mounted = "mount -t tmpfs -o size=48m none \"$1\" || exit 99; shift; exec \"$@\"";
        let name = "programs::a_full_disk_refuses_what_has_no_room_keeps_none_of_it_and_tells_what_it_lost";
        let run = Command::new("unshare")
            .args(["-m", "sh", "-c", mounted, "sh"])
            .args([folder.path(), &this])
            .args([name, "--exact", "--nocapture"])
            .env(DISK, folder.path())
            .output();
        let run = match run {
            Ok(run) if run.status.code() != Some(99) => run,
            _ => return skip(Need::Mounts, "no disk can be mounted here"),
        };
        let (out, err) = (text(&run.stdout), text(&run.stderr));
        assert!(run.status.success(), "{out}{err}");
        return;
    };
    let node = Node::up(&[]);
    let disk = PathBuf::from(disk);
    let data = disk.join("data");
    let on_disk = |args: &[&str]| node.command(args).env("ODEON_DIR", &data).output().unwrap();
    let up = on_disk(&["up", "--api", "127.0.0.1:0", "--name", "small"]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let made = Command::new("sh")
        .args(["-c", "head -c 60000000 /dev/urandom > noise"])
        .current_dir(node.here())
        .status();
    assert!(made.unwrap().success());
    let refused = on_disk(&["submit", "--wait", "--file", "noise", "true"]);
    let error = text(&refused.stderr);
    assert!(
        !refused.status.success() && error.contains("no room left"),
        "{error}"
    );
    // Its pieces are gone, and the next job has room.
    let next = on_disk(&["submit", "--wait", "--", "sh", "-c", "echo there is room"]);
    assert_eq!(
        text(&next.stdout),
        "there is room\n",
        "{}",
        text(&next.stderr)
    );
    // The disk fills up while a job prints: what is not kept is told.
    let prints = "until [ -e $GO ]; do sleep 0.05; done; i=0; \
                  while [ $i -lt 4000 ]; do echo line $i of those that find no room; i=$((i+1)); done";
    let go = node.here().join("go");
    let variable = format!("GO={}", go.display());
    let begun = on_disk(&["submit", "--env", &variable, "--", "sh", "-c", prints]);
    assert!(begun.status.success(), "{}", text(&begun.stderr));
    eventually("the job's begin", || {
        let shown = on_disk(&["job", "show", "j2"]);
        text(&shown.stdout).contains("running")
    });
    // What fills it fails at its end.
    let _ = Command::new("sh")
        .args(["-c", "head -c 60000000 /dev/zero > \"$0\" 2>/dev/null"])
        .arg(disk.join("fill"))
        .status();
    fs::write(&go, "").unwrap();
    // The voters have room of their own: they write down how it ends.
    let ended = on_disk(&["wait", "j2"]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let logs = on_disk(&["logs", "j2"]);
    let kept = text(&logs.stdout).lines().count();
    let told = text(&logs.stderr);
    if kept < 4000 {
        assert!(
            told.contains("were not kept when it ended"),
            "{kept}: {told}"
        );
    }
    let down = on_disk(&["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
}

/// SEMANTICS 62.
#[test]
fn a_gang_that_has_lost_a_node_waits_for_it_and_goes_on_when_it_is_back() {
    let nodes = ["--nodes", "3", "--voters"];
    let node = Node::up(&nodes);
    let script = "echo life $TORCHELASTIC_RESTART_COUNT; until [ -e $GO ]; do sleep 0.05; done";
    let go = node.here().join("go");
    let variable = format!("GO={}", go.display());
    // Two fit on a node.
    let cores = std::thread::available_parallelism().unwrap().get();
    let cores = (cores as f64 / 2.0).to_string();
    let gang = [
        "submit",
        "--gang",
        "5",
        "--cpus",
        &cores,
        "--max-restarts",
        "3",
        "--env",
        &variable,
    ];
    node.ok(&[gang.as_slice(), &["--", "sh", "-c", script]].concat());
    let lives = |life: &str| {
        let (out, _) = node.ok(&["logs", "j1"]);
        out.lines().filter(|line| line.ends_with(life)).count()
    };
    eventually("five ranks", || lives("life 0") == 5);
    let (shown, _) = node.ok(&["job", "show", "j1", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let lost = if shown["node"] == "node-2" {
        "node-3"
    } else {
        "node-2"
    };
    let pid = fs::read_to_string(node.dir().join("nodes").join(lost).join("daemon.pid")).unwrap();
    let killed = Command::new("kill").args(["-KILL", pid.trim()]).status();
    assert!(killed.unwrap().success());
    let said = |text: &str| {
        let (out, err) = node.ok(&["logs", "j1"]);
        (out + &err).contains(text)
    };
    eventually("ranks that wait", || {
        said("the 5 ranks wait for their places")
    });
    assert!(said(&format!("node `{lost}`")), "the lost node is named");
    node.ok(&[&["up", "--api", "127.0.0.1:0"], nodes.as_slice()].concat());
    eventually("five ranks again", || lives("life 1") == 5);
    fs::write(&go, "").unwrap();
    node.ok(&["wait", "j1"]);
}

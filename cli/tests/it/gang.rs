//! `odeon gang` as people use it: ranks find each other, fail together, begin again together, and
//! leave nothing behind.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use odeon_skip::{Need, skip};

use crate::nodes::{eventually, found, text};

/// Ranks meet at MASTER_ADDR and MASTER_PORT and add up their numbers from 1. With the file
/// `fail-RANK` in its folder, that rank ends with 7 in the first life of the gang; with `always`
/// in all.
const ALL_REDUCE: &str = "
import os, socket, sys, time
socket.setdefaulttimeout(60)
rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
life = os.environ['TORCHELASTIC_RESTART_COUNT']
if os.path.exists('fail-%d' % rank) and (life == '0' or os.path.exists('always')):
    print('no more memory', file=sys.stderr)
    sys.exit(7)
at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
if rank == 0:
    peers = []
    with socket.create_server(at) as server:
        while len(peers) < world - 1:
            peers.append(server.accept()[0])
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
print('sum %d of %d, node %s, local rank %s of %s, life %s' % (total, world, os.environ['NODE_RANK'],
    os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE'], life), flush=True)
";

fn has_python() -> bool {
    let python = Command::new("python3").arg("--version").output();
    let there = python.is_ok_and(|output| output.status.success());
    if !there {
        skip(Need::Python, "there is no python3 here");
    }
    there
}

fn gang(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
    command
        .env_remove("ODEON_LOG")
        .env_remove("OMP_NUM_THREADS")
        .current_dir(folder)
        .arg("gang")
        .args(args);
    command
}

fn ended(output: &Output) -> (Option<i32>, String, String) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output.status.code(), out, err)
}

/// The number that a script has written into a file.
fn noted(file: &Path) -> u32 {
    found("a number in a file", || {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.strip_suffix('\n')?.parse().ok()
    })
}

/// State, parent and group of a process.
fn stat(pid: u32) -> Option<(String, u32, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit_once(") ")?.1.to_owned();
    let mut fields = rest.split(' ');
    let state = fields.next()?.to_owned();
    Some((
        state,
        fields.next()?.parse().ok()?,
        fields.next()?.parse().ok()?,
    ))
}

/// Waits until nothing of a group runs.
fn gone(group: u32) {
    let lives = || {
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            stat(pid)
        });
        let mut of_group = processes.filter(|(state, _, of)| *of == group && state != "Z");
        of_group.next().is_some()
    };
    eventually("the end of a group", || !lives());
}

fn signal(pid: u32, name: &str) {
    let signal = ["-s", name, "--", &pid.to_string()];
    assert!(
        Command::new("kill")
            .args(signal)
            .status()
            .unwrap()
            .success()
    );
}

/// Two ranks that write their numbers and live for ever, with children.
fn started(folder: &Path, args: &[&str]) -> Child {
    let script =
        "sleep 1000 & (sleep 1000 &); echo $$ > pid-$RANK-$TORCHELASTIC_RESTART_COUNT; wait";
    let program = ["--", "/bin/sh", "-c", script];
    gang(folder, &[&["2"], args, &program].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// SEMANTICS 62.
#[test]
fn ranks_meet_and_reduce_together() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("reduce.py"), ALL_REDUCE).unwrap();
    let output = gang(folder.path(), &["4", "--", "python3", "reduce.py"]).output();
    let (code, out, err) = ended(&output.unwrap());
    assert_eq!(code, Some(0), "{out}{err}");
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let expect = (0..4)
        .map(|rank| format!("[rank {rank}] sum 10 of 4, node 0, local rank {rank} of 4, life 0"));
    assert_eq!(lines, expect.collect::<Vec<_>>(), "{err}");
}

/// SEMANTICS 62.
#[test]
fn when_one_rank_dies_all_begin_again() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("reduce.py"), ALL_REDUCE).unwrap();
    fs::write(folder.path().join("fail-2"), "").unwrap();
    let args = ["4", "--max-restarts", "2", "--", "python3", "reduce.py"];
    let (code, out, err) = ended(&gang(folder.path(), &args).output().unwrap());
    assert_eq!(code, Some(0), "{out}{err}");
    assert_eq!(out.matches("sum 10 of 4").count(), 4, "{out}{err}");
    assert_eq!(out.matches("life 1").count(), 4, "{out}{err}");
    assert!(
        err.contains("rank 2 of 4") && err.contains("restart 1 of 2"),
        "{err}"
    );
}

/// SEMANTICS 62.
#[test]
fn when_no_restart_helps_the_rank_that_failed_first_is_named() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("reduce.py"), ALL_REDUCE).unwrap();
    for name in ["fail-2", "always"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    for restarts in ["0", "1"] {
        let args = [
            "4",
            "--max-restarts",
            restarts,
            "--",
            "python3",
            "reduce.py",
        ];
        let (code, out, err) = ended(&gang(folder.path(), &args).output().unwrap());
        assert_eq!(code, Some(7), "{out}{err}");
        let told = err.split("error: ").last().unwrap();
        for word in ["rank 2 of 4", "exit status: 7", "no more memory"] {
            assert!(told.contains(word), "{err}");
        }
        assert_eq!(
            told.contains("1 restart did not help"),
            restarts == "1",
            "{err}"
        );
        assert!(!err.contains("dead letter"), "{err}");
        assert_eq!(out, "", "{err}");
    }
}

#[test]
fn one_rank_alone_prints_as_it_does_and_has_the_variables() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "echo $RANK $WORLD_SIZE $OMP_NUM_THREADS $MASTER_ADDR $ROLE_NAME $TORCHELASTIC_MAX_RESTARTS
        test -n \"$MASTER_PORT\" || exit 1; test -z \"$ODEON_WORKER\" || exit 2; exit 3";
    let args = ["1", "--", "/bin/sh", "-c", script];
    let (code, out, err) = ended(&gang(folder.path(), &args).output().unwrap());
    assert_eq!(
        (code, out.as_str()),
        (Some(3), "0 1 1 127.0.0.1 default 0\n"),
        "{err}"
    );
    // A program of the folder, and one that is not there.
    fs::write(folder.path().join("tool"), "#!/bin/sh\necho from here\n").unwrap();
    let args = ["1", "--", "tool"];
    let (code, _, err) = ended(&gang(folder.path(), &args).output().unwrap());
    assert!(
        code == Some(1) && err.contains("cannot be executed"),
        "{err}"
    );
    let mode = Command::new("chmod")
        .arg("+x")
        .arg(folder.path().join("tool"))
        .status();
    assert!(mode.unwrap().success());
    let (code, out, err) = ended(&gang(folder.path(), &args).output().unwrap());
    assert_eq!((code, out.as_str()), (Some(0), "from here\n"), "{err}");
}

/// SEMANTICS 61.
#[test]
fn ctrl_c_and_sigterm_end_all_ranks() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let folder = tempfile::tempdir().unwrap();
        let mut driver = started(folder.path(), &[]);
        let ranks = [0, 1].map(|rank| noted(&folder.path().join(format!("pid-{rank}-0"))));
        signal(driver.id(), name);
        assert_eq!(driver.wait().unwrap().code(), Some(code));
        ranks.into_iter().for_each(gone);
    }
}

/// SEMANTICS 61.
#[test]
fn nothing_is_left_when_the_driver_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut driver = started(folder.path(), &[]);
    let ranks = [0, 1].map(|rank| noted(&folder.path().join(format!("pid-{rank}-0"))));
    driver.kill().unwrap();
    driver.wait().unwrap();
    ranks.into_iter().for_each(gone);
}

/// SEMANTICS 62.
#[test]
fn a_worker_that_is_killed_takes_its_rank_along_and_all_begin_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut driver = started(folder.path(), &["--max-restarts", "1"]);
    let lives = [0, 1].map(|life| {
        let ranks = [0, 1].map(|rank| noted(&folder.path().join(format!("pid-{rank}-{life}"))));
        let (_, worker, _) = stat(ranks[1]).expect("a rank that runs");
        assert_ne!(worker, driver.id());
        signal(worker, "KILL");
        ranks
    });
    // The second time is one too many.
    assert_eq!(driver.wait().unwrap().code(), Some(1));
    lives.into_iter().flatten().for_each(gone);
}

/// SEMANTICS 128.
#[test]
fn a_rank_that_stands_still_is_named_and_all_begin_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = "test $TORCHELASTIC_RESTART_COUNT = 0 || exit 0
        test $RANK != 1 || exec sleep 1000
        while true; do echo at work; sleep 0.1; done";
    let limit = ["3", "--hang-after", "5s", "--max-restarts", "1"];
    let args = [&limit[..], &["--", "/bin/sh", "-c", script]].concat();
    let (code, out, err) = ended(&gang(folder.path(), &args).output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("[rank 0] at work"), "{out}");
    for text in [
        "rank 1 of 3, on node local (pid ",
        "stands still: it has neither printed nor worked for",
        "while others have",
        "restart 1 of 1",
    ] {
        assert!(err.contains(text), "{text}: {err}");
    }
}

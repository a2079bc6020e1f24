//! SIGINT and SIGTERM: a program that knows nothing of signals stops its actors in order, alone and as a job.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use odeon::Clock;
use odeon_cluster::job::Outcome;
use rustix::process::{Pid, Signal};

use crate::PATIENCE;
use crate::daemons::{ended, found, is_alive, printed, prints, stop, submit};

fn start(names: &[&str]) -> Child {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_job")));
    command.arg("idles").args(names);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Lines of a program up to one that it prints last.
fn until(lines: &mut impl Iterator<Item = std::io::Result<String>>, last: &str) -> Vec<String> {
    let mut read = vec![];
    while read.last().is_none_or(|line: &String| !line.contains(last)) {
        let next = lines
            .next()
            .unwrap_or_else(|| panic!("no {last}: {read:?}"));
        read.push(next.unwrap());
    }
    read
}

/// Processes that guests have said they are in.
fn pids(lines: &[String]) -> Vec<u32> {
    let pids = lines.iter().filter_map(|line| line.split_once("is here: "));
    pids.map(|(_, pid)| pid.parse().unwrap()).collect()
}

/// SEMANTICS 114.
#[test]
fn a_signal_stops_actors_in_order_and_then_the_program() {
    for (asked, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut program = start(&["near", "far"]);
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let begun = until(&mut lines, "waiting");
        signal(&program, asked);
        let rest: Vec<_> = lines.map(Result::unwrap).collect();
        let mut said = String::new();
        program
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(program.wait().unwrap().code(), Some(code), "{said}");
        let mut left = rest.clone();
        left.sort();
        assert_eq!(left, ["far leaves", "near leaves"], "{said}");
        assert!(said.contains("asked to end by signal"), "{said}");
        let pids = pids(&begun);
        assert!(
            pids.len() == 2 && !pids.iter().any(|pid| is_alive(*pid)),
            "{begun:?}"
        );
    }
}

/// SEMANTICS 114.
#[test]
fn a_second_signal_ends_the_program_at_once() {
    let mut program = start(&["stubborn", "far"]);
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let begun = until(&mut lines, "waiting");
    signal(&program, Signal::TERM);
    until(&mut lines, "stubborn leaves");
    signal(&program, Signal::INT);
    assert_eq!(program.wait().unwrap().code(), Some(130));
    let worker = *pids(&begun).last().unwrap();
    // It ends with its node, which nobody waits for.
    let begun = Clock::now();
    while is_alive(worker) {
        assert!(Clock::now().since(begun) < PATIENCE, "the worker is left");
        std::thread::yield_now();
    }
}

/// SEMANTICS 114.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_stopped_stops_its_actors_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let id = submit(&head, &["idles", "near", "far"]).await;
    prints(&head, id, "waiting").await;
    stop(&head, id, true).await;
    let by = "tester".to_owned();
    assert_eq!(ended(&head, id).await, Outcome::Stopped { by });
    let lines = printed(&head, id);
    for name in ["near", "far"] {
        let leaves = format!("{name} leaves");
        assert!(lines.contains(&leaves), "{lines:?}");
    }
    assert!(head.system().admin().processes().is_empty());
    head.shutdown().await;
}

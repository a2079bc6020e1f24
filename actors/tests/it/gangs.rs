//! Gangs of Python programs that know nothing of Odeon: the rank that failed first is named.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use odeon::{
    Clock, FailureKind, ProgramEnd, Reason, Supervision, System, SystemBuilder, WorkerMode,
};
use odeon_actors::exec::{ExecSpec, Gang, GangSpec};
use odeon_skip::{Need, skip};
use odeon_tests::again;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn worker_entry() {
    odeon_actors::job().serve_if_worker();
}

fn builder() -> SystemBuilder {
    let worker = again::worker(module_path!()).arg("--nocapture");
    let never = Supervision::one_for_one().budget(0, Duration::from_secs(3600));
    System::builder()
        .job(odeon_actors::job())
        .workers(WorkerMode::Processes(worker))
        .supervision(never)
}

/// Returns true if there is a Python; tests that need one say so when there is none.
fn has_python() -> bool {
    let python = Command::new("python3").arg("--version").output();
    let there = python.is_ok_and(|output| output.status.success());
    if !there {
        skip(Need::Python, "there is no python3 here");
    }
    there
}

/// Four ranks in a ring of sockets: each sends a step to the next and reads one of the rank before.
const RING: &str = "
import os, signal, socket, sys, time
rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
server = socket.socket(socket.AF_UNIX)
server.bind('ring-%d' % rank)
server.listen()
after = socket.socket(socket.AF_UNIX)
while True:
    try:
        after.connect('ring-%d' % ((rank + 1) % world))
        break
    except (FileNotFoundError, ConnectionRefusedError):
        time.sleep(0.002)
before = server.accept()[0]
";

/// The end of one rank in the midst of it, and what the others make of that.
fn failing(folder: &Path, seed: u64) -> (ExecSpec, usize, ProgramEnd) {
    let (culprit, step) = (seed % 4, 1 + seed * 7 % 23);
    let (ending, end) = match seed / 4 % 4 {
        0 => (
            "os.kill(os.getpid(), signal.SIGKILL)",
            ProgramEnd::Signal(9),
        ),
        1 => ("sys.exit(1)", ProgramEnd::Code(1)),
        2 => ("raise RuntimeError('bad batch')", ProgramEnd::Code(1)),
        _ => ("sys.exit('no more memory')", ProgramEnd::Code(1)),
    };
    // Each takes the loss of a peer in its own way.
    let script = format!(
        "{RING}
for step in range(100000):
    if rank == {culprit} and step == {step}:
        {ending}
    after.sendall(b'1')
    if rank == 0:
        token = int(before.recv(1))
    elif rank == 1:
        if not before.recv(1):
            raise ConnectionError('peer closed the connection')
    elif not before.recv(1):
        raise EOFError
    time.sleep(0.001)
"
    );
    fs::write(folder.join("ring.py"), script).unwrap();
    let program = ExecSpec::new("python3").args(["ring.py"]).folder(folder);
    (program, culprit as usize, end)
}

/// SEMANTICS 180. More of them with `ODEON_SEEDS`.
#[tokio::test(flavor = "multi_thread")]
async fn the_rank_that_ends_first_is_named_however_the_others_take_it() {
    if !has_python() {
        return;
    }
    let seeds = std::env::var("ODEON_SEEDS").ok();
    let seeds = seeds.map_or(8, |it| it.parse().unwrap());
    for seed in 0..seeds {
        // Every end and every rank, from few seeds on.
        let seed = seed * 5;
        let folder = tempfile::tempdir().unwrap();
        let (program, culprit, end) = failing(folder.path(), seed);
        let system = builder().start().await.unwrap();
        let gang = system
            .spawn::<Gang>(GangSpec::new(program, 4))
            .await
            .unwrap();
        let down = Clock::timeout(PATIENCE, gang.down()).await.unwrap();
        let Reason::Failed(failure) = down.reason else {
            panic!("seed {seed}: {:?}", down.reason);
        };
        let said = failure.to_string();
        let named = format!("rank {culprit} of 4, on node ");
        assert!(said.contains(&named), "seed {seed}: {said}");
        assert_eq!(
            failure.kind,
            FailureKind::Program(end),
            "seed {seed}: {said}"
        );
        system.shutdown().await;
    }
}

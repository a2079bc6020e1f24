//! Gangs of Python programs that know nothing of Odeon: the rank that failed first is named, and so is one that holds up
//! the others.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use odeon::{
    Clock, FailureKind, ProgramEnd, Reason, Supervision, System, SystemBuilder, WorkerMode,
};
use odeon_actors::exec::{Disband, ExecSpec, Gang, GangSpec};
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

/// SEMANTICS 158. More of them with `ODEON_SEEDS`.
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

/// A gang whose ranks make steps together, and what one of them does from its tenth step on; the text of `when` is a line
/// of Python in the loop.
fn in_trouble(folder: &Path, when: &str) -> ExecSpec {
    let script = format!(
        "{RING}
def exchange():
    after.sendall(b'1')
    before.recv(1)

def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass

for step in range(100000):
    loss, pace = 2.5, 0.05
    {when}
    work(pace)
    for _ in range(world):
        exchange()
    print('rank', rank, 'step', step, 'loss', loss, flush=True)
"
    );
    fs::write(folder.join("train.py"), script).unwrap();
    ExecSpec::new("python3").args(["train.py"]).folder(folder)
}

/// What a gang says of its ranks: the first words of trouble, or nothing within a time.
async fn told(system: &System, within: Duration) -> Option<(String, Vec<(String, String)>)> {
    let mut watch = system.admin().watch();
    let found = async {
        loop {
            let look = watch.look(Duration::from_secs(1)).await;
            let points = look
                .processes
                .into_iter()
                .flat_map(|process| process.sight.points);
            let mut trouble =
                points.filter(|it| it.name.starts_with("gang.rank_") && it.value > 0.0);
            if let Some(it) = trouble.next() {
                let labels = it.labels.into_iter();
                let labels = labels.map(|(name, label)| (name.to_string(), label.to_string()));
                return (it.name.to_string(), labels.collect());
            }
            Clock::sleep(Duration::from_millis(50)).await;
        }
    };
    Clock::timeout(within, found).await
}

/// SEMANTICS 159.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_sleeps_crawls_or_prints_nan_is_named_without_a_word_from_its_program() {
    if !has_python() {
        return;
    }
    for (when, series, words) in [
        (
            "if rank == 2 and step > 9: time.sleep(1000)",
            "gang.rank_still_s",
            "does not wait for anybody",
        ),
        (
            "if rank == 2 and step > 9: pace = 0.25",
            "gang.rank_slow_s",
            "the others wait for",
        ),
        (
            "if rank == 2 and step > 9: time.sleep(0.2)",
            "gang.rank_slow_s",
            "the others wait for",
        ),
        (
            "if rank == 2 and step > 9: loss = float('nan')",
            "gang.rank_not_finite_s",
            "printed a loss that is no number",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let system = builder().start().await.unwrap();
        let spec =
            GangSpec::new(in_trouble(folder.path(), when), 4).name_after(Duration::from_secs(4));
        let gang = system.spawn::<Gang>(spec).await.unwrap();
        let (name, labels) = told(&system, PATIENCE)
            .await
            .unwrap_or_else(|| panic!("{when}: nobody is named"));
        let label = |name: &str| {
            labels
                .iter()
                .find(|(known, _)| known == name)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(
            (name.as_str(), label("rank")),
            (series, "2".to_owned()),
            "{when}: {labels:?}"
        );
        assert!(label("what").contains(words), "{when}: {labels:?}");
        gang.ask(Disband).await.unwrap();
        system.shutdown().await;
    }
}

/// SEMANTICS 160.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_named_of_a_gang_that_waits_at_its_start_works_and_is_quiet_together() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let system = builder().start().await.unwrap();
    // All sleep at first, from when all are there; then they work; then one evaluates, and the others wait for it.
    let when = "if step == 0:
        for _ in range(world): exchange()
        time.sleep(4)
    if step == 5 and rank == 0: work(5)";
    let spec = GangSpec::new(in_trouble(folder.path(), when), 4).name_after(Duration::from_secs(3));
    let gang = system.spawn::<Gang>(spec).await.unwrap();
    let found = told(&system, Duration::from_secs(14)).await;
    assert_eq!(found, None);
    gang.ask(Disband).await.unwrap();
    system.shutdown().await;
}

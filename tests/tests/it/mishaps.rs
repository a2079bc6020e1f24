//! A program whose actors fail, with what it says of that and how it ends: alone, and as a job of a cluster.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use odeon::simulation::{SimulationSpec, World};
use odeon::{AskError, Clock, Effect, Limits, Ref, Restart, System, WorkerMode};
use odeon_cluster::job::Outcome;
use tokio::sync::Semaphore;

use crate::daemons::{ended, found, printed, upload_of};

/// The mark of a line of the runtime.
const MARK: &str = "odeon: ";

pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mishap"))
}

/// Runs the program alone: its exit code, and the lines on its standard error.
pub(crate) fn run(what: &str) -> (Option<i32>, Vec<String>) {
    let mut command = Command::new(program());
    let output = command.arg(what).env_remove("RUST_BACKTRACE").output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (
        output.status.code(),
        said.lines().map(str::to_owned).collect(),
    )
}

/// Runs the program as a job of a cluster of one node: its outcome, and the lines of its log.
async fn submit(what: &str) -> (Outcome, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let spec = upload_of(&head, program(), &[what]).await;
    let id = head.submit(spec, "tester".to_owned(), None).await.unwrap();
    let outcome = ended(&head, id).await;
    let lines = printed(&head, id);
    head.shutdown().await;
    (outcome, lines)
}

pub(crate) fn with<'a>(lines: &'a [String], words: &[&str]) -> Vec<&'a String> {
    let fits = |line: &&String| words.iter().all(|word| line.contains(word));
    lines.iter().filter(fits).collect()
}

/// The lines about an actor that fails more often than its supervisor bears.
fn expect_budget(lines: &[String]) {
    for life in 1..=5 {
        let next = format!("as life {}", life + 1);
        let life = format!("failed in life {life}: DropIt: shattered (");
        let said = with(lines, &[MARK, "mishap.Vase", &life, "mishap.rs:", &next]);
        assert_eq!(said.len(), 1, "{lines:#?}");
    }
    let last = with(lines, &[MARK, "mishap.Vase", "in life 6", "gives up"]);
    assert_eq!(last.len(), 1, "{lines:#?}");
    let whole = [
        "the system fails",
        "mishap.Vase",
        "5 restarts within 30s",
        "shattered",
    ];
    assert_eq!(
        with(lines, &[&[MARK], &whole[..]].concat()).len(),
        1,
        "{lines:#?}"
    );
    // Nobody says it a second time.
    assert_eq!(with(lines, &["panicked at"]).len(), 0, "{lines:#?}");
    let end = with(
        lines,
        &["Error: the system has failed", "mishap.Vase", "5 restarts"],
    );
    assert_eq!(end.len(), 1, "{lines:#?}");
}

/// SEMANTICS 18.
#[test]
fn a_program_whose_system_fails_says_so_and_fails() {
    let (code, lines) = run("budget");
    assert_eq!(code, Some(1), "{lines:#?}");
    expect_budget(&lines);
}

/// SEMANTICS 18.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_system_fails_says_so_once_in_its_log_and_fails() {
    let (outcome, lines) = submit("budget").await;
    assert_eq!(outcome.exit_code(), 1, "{outcome}");
    expect_budget(&lines);
}

#[test]
fn a_start_that_panics_is_said_once_for_each_try_with_its_actor() {
    let (code, lines) = run("stillborn");
    assert_eq!(code, Some(1), "{lines:#?}");
    for life in 1..=6 {
        let said = format!("failed in life {life}: start: it has a crack (");
        let said = with(&lines, &["mishap.Vase", &said, "mishap.rs:"]);
        assert_eq!(said.len(), 1, "{lines:#?}");
    }
    assert_eq!(with(&lines, &["panicked at"]).len(), 0, "{lines:#?}");
}

#[test]
fn a_failure_in_another_process_is_said_once_and_a_program_that_it_does_not_end_succeeds() {
    let (code, lines) = run("away");
    assert_eq!(code, Some(0), "{lines:#?}");
    let said = with(
        &lines,
        &[
            MARK,
            "mishap.Vase",
            "life 1: chipped; it restarts in",
            "as life 2",
        ],
    );
    assert_eq!(said.len(), 1, "{lines:#?}");
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

#[test]
fn a_storm_of_failures_is_cut_and_told_how_many_were_left_out() {
    let (code, lines) = run("storm");
    assert_eq!(code, Some(0), "{lines:#?}");
    let said = with(&lines, &["it is not started again"]).len();
    let left_out: Vec<usize> = with(&lines, &["were left out"])
        .iter()
        .map(|line| {
            line[MARK.len()..]
                .split(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    assert_eq!(said + left_out.iter().sum::<usize>(), 200, "{lines:#?}");
    assert!(said < 100, "{lines:#?}");
}

/// SEMANTICS 7.
#[test]
fn asks_while_their_process_is_killed_end_with_died_alone() {
    let (code, lines) = run("killed");
    assert_eq!(code, Some(0), "{lines:#?}");
}

/// SEMANTICS 7.
#[tokio::test(flavor = "multi_thread")]
async fn asks_while_their_process_is_killed_end_with_died_in_a_job() {
    let (outcome, lines) = submit("killed").await;
    assert_eq!(outcome, Outcome::Succeeded, "{lines:#?}");
}

#[test]
fn a_program_lists_and_kills_its_workers_alone() {
    let (code, lines) = run("listed");
    assert_eq!(code, Some(0), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_lists_and_kills_its_workers_as_a_job() {
    let (outcome, lines) = submit("listed").await;
    assert_eq!(outcome, Outcome::Succeeded, "{lines:#?}");
}

static HELD: Semaphore = Semaphore::const_new(0);

/// Asks another actor, which may ask it.
struct Peer {
    other: Option<Ref<Self>>,
}

#[odeon::actor(name = "mishaps.Peer")]
impl Peer {
    fn start(_: ()) -> Self {
        Self { other: None }
    }

    #[handler]
    fn meet(&mut self, other: Ref<Self>) {
        self.other = Some(other);
    }

    #[handler]
    async fn ping(&mut self, hops: u32) -> Result<u32, AskError> {
        match self.other {
            Some(other) if hops > 0 => {
                let patience = Duration::from_millis(200);
                other.ask(Ping { hops: hops - 1 }).timeout(patience).await?
            }
            _ => Ok(hops),
        }
    }

    #[handler]
    fn weigh(&mut self, bytes: Vec<u8>) -> u64 {
        bytes.len() as u64
    }

    /// Waits for ever, and says that it does.
    #[handler]
    async fn hold(&mut self) {
        HELD.add_permits(1);
        std::future::pending::<()>().await;
    }

    #[handler]
    async fn wait(&mut self) {
        std::future::pending::<()>().await;
    }
}

/// SEMANTICS 10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_that_is_late_in_a_circle_names_the_circle() {
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(10);
    let system = System::builder().limits(limits).start().await.unwrap();
    let peer = async || system.spawn::<Peer>(()).await.unwrap();
    let (a, b) = (peer().await, peer().await);
    a.ask(Meet { other: b }).await.unwrap();
    b.ask(Meet { other: a }).await.unwrap();
    let error = a.ask(Ping { hops: 2 }).await.unwrap().unwrap_err();
    let name = |peer: Ref<Peer>| format!("mishaps.Peer {}", peer.id());
    let (a, b) = (name(a), name(b));
    let circle = [
        format!("{b} waits for {a} (Ping)"),
        format!("which waits for {b} (Ping)"),
    ];
    let said = error.to_string();
    assert!(
        said.contains("since actors wait for each other: "),
        "{said}"
    );
    assert!(circle.iter().all(|part| said.contains(part)), "{said}");
    // One who is late for another reason waits in no circle.
    let slow = peer().await;
    let error = slow.ask(Wait).timeout(Duration::from_millis(50)).await;
    assert!(!error.unwrap_err().to_string().contains("each other"));
    system.shutdown().await;
}

/// SEMANTICS 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_says_that_nobody_waited_or_how_long() {
    let mut limits = Limits::default();
    limits.mailbox_messages_max = 1;
    limits.stop_grace = Duration::from_millis(10);
    let system = System::builder().limits(limits).start().await.unwrap();
    let peer = system.spawn::<Peer>(()).await.unwrap();
    // One is handled, and one lies in the mailbox.
    peer.tell(Hold).await.unwrap();
    let held = Clock::timeout(crate::PATIENCE, HELD.acquire());
    held.await.expect("it is handled").unwrap().forget();
    peer.tell(Wait).now().unwrap();
    let said = peer.tell(Wait).now().unwrap_err().to_string();
    assert!(said.contains("is full, and nobody waited"), "{said}");
    let patience = Duration::from_millis(20);
    let said = peer.tell(Wait).timeout(patience).await.unwrap_err();
    assert!(said.to_string().contains("stayed full for 20ms"), "{said}");
    system.shutdown().await;
}

/// A message to another process has a bound, and the error says that one in the same process has none.
#[test]
fn a_message_that_is_too_large_for_another_process_says_so_and_is_handled_in_this_one() {
    let spec = SimulationSpec::new(odeon::job![Peer]).nodes(1);
    System::simulated(1, spec).run(async |world: World| {
        let home = &world.nodes[0];
        let large = || Weigh {
            bytes: vec![0; 5 << 20],
        };
        let near = home.spawn::<Peer>(()).await.unwrap();
        assert_eq!(near.ask(large()).await, Ok(5 << 20));
        let far = home.spawn::<Peer>(()).isolated().await.unwrap();
        let error = far.ask(large()).await.unwrap_err();
        assert_eq!(error.effect(), Effect::No);
        assert!(
            error.to_string().contains("to an actor of another process"),
            "{error}"
        );
    });
}

/// A worker that is no process is listed, and can be killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_inside_of_a_process_are_listed() {
    let builder = System::builder().job(odeon::job![Peer]);
    let system = builder.workers(WorkerMode::InProcess).start();
    let system = system.await.unwrap();
    assert_eq!(system.admin().workers(), []);
    let peer = system.spawn::<Peer>(()).isolated();
    let peer = peer.restart(Restart::Permanent).await.unwrap();
    let process = system.admin().process_of(peer).unwrap();
    let own = std::process::id();
    assert_eq!(system.admin().workers(), [(process, own)]);
    let down = peer.down();
    assert!(system.admin().kill_worker(process));
    down.await;
    let again = Clock::timeout(crate::PATIENCE, peer.ask(Ping { hops: 0 }).into_future());
    assert_eq!(again.await, Some(Ok(Ok(0))));
    let there = system.admin().process_of(peer).unwrap();
    assert_eq!(system.admin().workers(), [(there, own)]);
    system.shutdown().await;
}

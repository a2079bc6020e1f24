//! Threads that actors block: who does it is named, and no process is taken for dead.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use odeon::prelude::*;
use odeon::{ActorId, WorkerMode};
use odeon_observe::event::Subject;
use odeon_tests::again;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream as Held};

use crate::inspect::seen;

/// Blocks its thread until somebody else closes a socket.
struct Blocker;

#[odeon::actor(name = "blocked.Blocker")]
impl Blocker {
    fn start(_: ()) -> Self {
        Self
    }

    #[handler]
    fn block_on(&mut self, path: PathBuf) {
        block(&path);
    }

    /// The same in a task.
    #[handler]
    fn block_beside(&mut self, path: PathBuf, cx: &mut Context<Self>) {
        cx.spawn_task(async move { block(&path) });
    }

    #[handler]
    fn pid(&mut self) -> u32 {
        std::process::id()
    }
}

fn block(path: &std::path::Path) {
    let mut held = UnixStream::connect(path).expect("the test listens");
    // The test has let go, or has ended.
    let _ = held.read(&mut [0]);
}

#[test]
fn worker_entry() {
    odeon::job![Blocker].serve_if_worker();
}

const IDLE: Duration = Duration::from_millis(600);

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.link_idle_timeout = IDLE;
    limits.heartbeat_interval = IDLE / 5;
    limits.pulse_interval = IDLE / 30;
    limits.blocked_after = IDLE / 3;
    limits
}

async fn system() -> System {
    let builder = System::builder().job(odeon::job![Blocker]).limits(limits());
    let workers = WorkerMode::Processes(again::worker(module_path!()));
    builder.workers(workers).start().await.unwrap()
}

/// A socket on which handlers wait.
struct Gate {
    folder: TempDir,
    listener: UnixListener,
}

impl Gate {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let listener = UnixListener::bind(folder.path().join("gate")).unwrap();
        Self { folder, listener }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("gate")
    }

    /// A handler has come, and is held until this is dropped.
    async fn came(&self) -> Held {
        let came = Clock::timeout(crate::PATIENCE, self.listener.accept()).await;
        came.expect("a handler comes").unwrap().0
    }
}

/// What is said of an actor, once it has been so for three times as long as a link may be silent.
async fn blocked_for_long(system: &System, actor: ActorId) -> (String, String) {
    seen(system, |seen| {
        let nodes = seen.nodes().flat_map(|node| &node.blocked);
        let mut rows = nodes.filter(|(it, _)| it.actor == actor);
        let (row, since) = rows.next()?;
        let node = seen.nodes().next()?;
        let problems = seen.findings().iter();
        let mut own = problems.filter(|it| {
            it.cause.rule == "blocked_thread" && it.who.contains(&Subject::Actor(actor))
        });
        let sentence = own.next()?.cause.sentence.clone();
        (node.seen.since(*since) > 3 * IDLE).then(|| (row.message.clone(), sentence))
    })
    .await
}

/// Returns true once nobody blocks a thread.
async fn none_blocked(system: &System) {
    seen(system, |seen| {
        let free = seen.nodes().all(|node| node.blocked.is_empty());
        free.then_some(())
    })
    .await;
}

/// SEMANTICS 113.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_threads_are_all_blocked_lives_and_its_node_says_who_does_it() {
    let (system, gate) = (system().await, Gate::new());
    let mut blockers = vec![];
    for _ in 0..4 {
        let blocker = system.spawn::<Blocker>(()).in_worker("shared");
        blockers.push(blocker.await.unwrap());
    }
    let pid = blockers[0].ask(Pid).await.unwrap();
    let asks = blockers.iter().map(|blocker| {
        let path = gate.path();
        tokio::spawn(
            blocker
                .ask(BlockOn { path })
                .timeout(crate::PATIENCE)
                .into_future(),
        )
    });
    let asks: Vec<_> = asks.collect();
    // As many as a worker has threads.
    let threads = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .clamp(2, 4);
    let mut held = vec![];
    for _ in 0..threads {
        held.push(gate.came().await);
    }
    let blocked = seen(&system, |seen| {
        let rows: Vec<_> = seen.nodes().flat_map(|node| &node.blocked).collect();
        (rows.len() == threads).then(|| rows[0].0.actor)
    });
    let (message, sentence) = blocked_for_long(&system, blocked.await).await;
    assert_eq!(message, "BlockOn");
    assert!(
        sentence.contains("blocked a thread") && sentence.contains("in BlockOn"),
        "{sentence}"
    );
    drop(held);
    for _ in threads..4 {
        drop(gate.came().await);
    }
    for ask in asks {
        ask.await
            .unwrap()
            .expect("it was blocked, and did its work");
    }
    assert_eq!(blockers[0].ask(Pid).await.unwrap(), pid, "the same process");
    none_blocked(&system).await;
    system.shutdown().await;
}

/// SEMANTICS 113.
#[test]
fn a_node_whose_threads_are_all_blocked_keeps_its_processes() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let gate = runtime.block_on(async { Gate::new() });
    let (system, worker, pid) = runtime.block_on(async {
        let system = system().await;
        let worker = system.spawn::<Blocker>(()).isolated().await.unwrap();
        let pid = worker.ask(Pid).await.unwrap();
        (system, worker, pid)
    });
    // Another runtime waits for the handlers, since theirs has no thread left.
    let other = std::os::unix::net::UnixListener::bind(gate.folder.path().join("other")).unwrap();
    let path = gate.folder.path().join("other");
    let asks: Vec<_> = (0..2)
        .map(|_| {
            let (system, path) = (system.clone(), path.clone());
            runtime.spawn(async move {
                let blocker = system.spawn::<Blocker>(()).await.unwrap();
                blocker.ask(BlockOn { path }).timeout(crate::PATIENCE).await
            })
        })
        .collect();
    let held: Vec<_> = (0..2).map(|_| other.accept().unwrap().0).collect();
    let begun = Clock::now();
    let alive = || std::path::Path::new(&format!("/proc/{pid}/stat")).exists();
    while Clock::now().since(begun) < 3 * IDLE {
        assert!(alive(), "the worker has taken its node for dead");
        std::thread::yield_now();
    }
    drop(held);
    runtime.block_on(async {
        for ask in asks {
            ask.await.unwrap().unwrap();
        }
        assert_eq!(worker.ask(Pid).await.unwrap(), pid);
        system.shutdown().await;
    });
}

/// SEMANTICS 113.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_task_that_blocks_is_named_too_and_one_that_waits_is_not() {
    let (system, gate) = (system().await, Gate::new());
    let blocker = system.spawn::<Blocker>(()).await.unwrap();
    blocker
        .ask(BlockBeside { path: gate.path() })
        .await
        .unwrap();
    let held = gate.came().await;
    let (message, sentence) = blocked_for_long(&system, blocker.id()).await;
    assert_eq!(message, "");
    assert!(sentence.contains("beside its handlers"), "{sentence}");
    assert_eq!(blocker.ask(Pid).await.unwrap(), std::process::id());
    drop(held);
    none_blocked(&system).await;
    system.shutdown().await;
}

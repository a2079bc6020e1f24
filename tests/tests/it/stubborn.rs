//! Actors that start slowly, block their thread or do not want to end: they hold up nobody else.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use odeon::inspect::ActorView;
use odeon::{
    AskError, Clock, Context, Failure, FailureKind, Incarnation, Limits, Reason, Ref, Restart,
    Supervision, System, WorkerMode,
};
use odeon_tests::again;
use tokio::sync::{Notify, Semaphore};

use crate::eventually;

/// Every start of a slow actor but its first passes the gate.
static GATE: Semaphore = Semaphore::const_new(0);

/// Fails when told to, and may start slowly after its first life.
struct Fragile;

#[odeon::message]
struct Boom;

#[odeon::message(reply = (Incarnation, u32))]
struct Life;

#[odeon::actor(name = "stubborn.Fragile")]
impl Fragile {
    async fn start(slow: bool, cx: &mut Context<Self>) -> Result<Self, Failure> {
        if slow && cx.incarnation() > 1 {
            GATE.acquire().await.map_err(Failure::error)?.forget();
        }
        Ok(Self)
    }

    #[handler(message = Boom)]
    fn boom(&mut self, _: Boom) {
        panic!("boom");
    }

    #[handler(message = Life)]
    fn life(&mut self, _: Life, cx: &mut Context<Self>) -> (Incarnation, u32) {
        (cx.incarnation(), std::process::id())
    }
}

/// Blocks its thread when told to: until the test lets go, or for ever in a process of its own.
struct Blocker {
    test: usize,
}

/// The signal that a blocked actor of this process waits for, for each test that holds one.
static HOLD: [Mutex<Option<Receiver<()>>>; 2] = [const { Mutex::new(None) }; 2];
/// Says that a handler does not end now, for each test that waits for that.
static BLOCKED: [Notify; 4] = [const { Notify::const_new() }; 4];

#[odeon::message]
struct Block;

#[odeon::actor(name = "stubborn.Blocker")]
impl Blocker {
    fn start(test: usize) -> Self {
        Self { test }
    }

    #[handler(message = Block)]
    fn block(&mut self, _: Block) {
        let held = HOLD[self.test].lock().unwrap().take();
        BLOCKED[self.test].notify_one();
        match held {
            // The test has let go, or has ended.
            Some(held) => drop(held.recv()),
            None => loop {
                std::thread::park();
            },
        }
    }

    #[handler(message = Life)]
    fn life(&mut self, _: Life, cx: &mut Context<Self>) -> (Incarnation, u32) {
        (cx.incarnation(), std::process::id())
    }
}

/// Its `stop` never ends, nor does its handler.
struct Endless {
    test: usize,
}

#[odeon::actor(name = "stubborn.Endless")]
impl Endless {
    fn start(test: usize) -> Self {
        Self { test }
    }

    async fn stop(self) {
        std::future::pending().await
    }

    #[handler(message = Block)]
    async fn block(&mut self, _: Block) {
        BLOCKED[self.test].notify_one();
        std::future::pending().await
    }
}

/// A supervisor whose handler does not end, over a child that fails for good.
struct Busy {
    test: usize,
    child: Ref<Fragile>,
}

#[odeon::message(reply = Ref<Fragile>)]
struct Child;

#[odeon::actor(name = "stubborn.Busy")]
impl Busy {
    fn supervision() -> Supervision {
        Supervision::one_for_one().budget(0, Duration::from_secs(60))
    }

    async fn start(test: usize, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let child = cx.spawn::<Fragile>(false).restart(Restart::Permanent);
        let child = child.await.map_err(Failure::error)?;
        Ok(Self { test, child })
    }

    #[handler(message = Child)]
    fn child(&mut self, _: Child) -> Ref<Fragile> {
        self.child
    }

    #[handler(message = Block)]
    async fn block(&mut self, _: Block) {
        BLOCKED[self.test].notify_one();
        std::future::pending().await
    }
}

/// Cannot start without an answer of another.
struct Needy;

#[odeon::actor(name = "stubborn.Needy")]
impl Needy {
    async fn start(other: Ref<Fragile>) -> Result<Self, Failure> {
        other.ask(Life).await.map_err(Failure::error)?;
        Ok(Self)
    }

    #[handler(message = Life)]
    fn life(&mut self, _: Life, cx: &mut Context<Self>) -> (Incarnation, u32) {
        (cx.incarnation(), std::process::id())
    }
}

fn job() -> odeon::Job {
    odeon::job![Fragile, Blocker, Endless, Busy, Needy]
}

#[test]
fn worker_entry() {
    job().serve_if_worker();
}

const SHORT: Duration = Duration::from_millis(50);

async fn system(supervision: Supervision) -> System {
    let worker = again::worker(module_path!());
    let mut limits = Limits::default();
    limits.stop_grace = SHORT;
    System::builder()
        .supervision(supervision)
        .workers(WorkerMode::Processes(worker))
        .limits(limits)
        .start()
        .await
        .unwrap()
}

async fn fragile(system: &System) -> Ref<Fragile> {
    let spawn = system.spawn::<Fragile>(false).restart(Restart::Permanent);
    spawn.await.unwrap()
}

/// Lets the next [`Block`] of a test go when it is dropped.
fn hold(test: usize) -> Sender<()> {
    let (let_go, held) = channel();
    *HOLD[test].lock().unwrap() = Some(held);
    let_go
}

/// SEMANTICS 18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_start_holds_up_no_sibling() {
    let system = system(Supervision::one_for_one()).await;
    let late = system.spawn::<Fragile>(true).restart(Restart::Permanent);
    let (late, sibling) = (late.await.unwrap(), fragile(&system).await);
    late.ask(Boom).await.unwrap_err();
    let waiting = tokio::spawn(async move { late.ask(Life).await });
    for life in 2..5 {
        sibling.ask(Boom).await.unwrap_err();
        assert_eq!(sibling.ask(Life).await.unwrap().0, life);
    }
    assert!(!waiting.is_finished());
    GATE.add_permits(1);
    assert_eq!(waiting.await.unwrap().unwrap().0, 2);
    system.shutdown().await;
}

/// SEMANTICS 8.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_child_that_blocks_its_thread_does_not_hold_up_its_family() {
    let system = system(Supervision::one_for_all()).await;
    let blocker = system.spawn::<Blocker>(0).restart(Restart::Permanent);
    let (blocker, sibling) = (blocker.await.unwrap(), fragile(&system).await);
    let let_go = hold(0);
    blocker.tell(Block).await.unwrap();
    BLOCKED[0].notified().await;
    sibling.ask(Boom).await.unwrap_err();
    assert_eq!(sibling.ask(Life).await.unwrap().0, 2);
    drop(let_go);
    assert_eq!(blocker.ask(Life).await.unwrap().0, 2);
    system.shutdown().await;
}

/// SEMANTICS 8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_only_actor_blocks_is_ended_with_its_family() {
    let system = system(Supervision::one_for_all()).await;
    let blocker = system.spawn::<Blocker>(0).restart(Restart::Permanent);
    let (blocker, sibling) = (blocker.isolated().await.unwrap(), fragile(&system).await);
    let (_, first) = blocker.ask(Life).await.unwrap();
    blocker.tell(Block).await.unwrap();
    // A message that still waits would be kept for the next life, and block that.
    let blocks = |view: &ActorView| {
        let running = view.running.as_ref();
        view.id == blocker.id() && running.is_some_and(|it| it.message == "Block")
    };
    let blocked = async || system.admin().actors().await.iter().any(blocks);
    eventually("an actor that blocks", blocked).await;
    sibling.ask(Boom).await.unwrap_err();
    assert_eq!(sibling.ask(Life).await.unwrap().0, 2);
    let (life, second) = blocker.ask(Life).await.unwrap();
    assert_eq!(life, 2);
    assert_ne!(first, second);
    system.shutdown().await;
}

/// SEMANTICS 8.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stop_ends_whatever_the_actor_does() {
    let system = system(Supervision::one_for_one()).await;
    let spawned = system.spawn::<Endless>(2).await.unwrap();
    spawned.stop().await.unwrap();
    let endless = system.spawn::<Endless>(2).await.unwrap();
    let asked = tokio::spawn(async move { endless.ask(Block).await });
    BLOCKED[2].notified().await;
    endless.stop().await.unwrap();
    assert!(matches!(asked.await.unwrap(), Err(AskError::Died(_))));
    let blocker = system.spawn::<Blocker>(1).await.unwrap();
    let let_go = hold(1);
    blocker.tell(Block).await.unwrap();
    BLOCKED[1].notified().await;
    // The wait may be cut short; the end goes on.
    let cut = blocker.stop().timeout(Duration::from_nanos(1)).await;
    assert!(matches!(cut, Err(AskError::Timeout { .. })), "{cut:?}");
    blocker.down().await;
    assert!(matches!(blocker.ask(Life).await, Err(AskError::Dead(_))));
    drop(let_go);
    system.shutdown().await;
}

/// SEMANTICS 18, 21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_whose_family_fails_ends_whatever_it_does() {
    let system = system(Supervision::one_for_one()).await;
    let busy = system.spawn::<Busy>(3).restart(Restart::Temporary);
    let busy = busy.await.unwrap();
    let child = busy.ask(Child).await.unwrap();
    busy.tell(Block).await.unwrap();
    BLOCKED[3].notified().await;
    child.ask(Boom).await.unwrap_err();
    let Reason::Failed(failure) = busy.down().await.reason else {
        panic!("it failed");
    };
    assert_eq!(failure.kind, FailureKind::Escalated, "{failure}");
    assert!(failure.to_string().contains("boom"), "{failure}");
    system.shutdown().await;
}

/// SEMANTICS 18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_are_lost_at_once_come_back_though_one_needs_the_other() {
    let generous = Supervision::one_for_one()
        .budget(100, Duration::from_secs(60))
        .backoff(Duration::from_millis(1), Duration::from_millis(10));
    let system = system(generous).await;
    let needed = system.spawn::<Fragile>(false).restart(Restart::Permanent);
    let needed = needed.isolated().await.unwrap();
    let needy = system.spawn::<Needy>(needed).restart(Restart::Permanent);
    let needy = needy.isolated().await.unwrap();
    needy.ask(Life).await.unwrap();
    for round in 0..6 {
        let processes = [
            system.admin().process_of(needy),
            system.admin().process_of(needed),
        ];
        let begun = Clock::now();
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            assert!(system.admin().kill_worker(processes[which].unwrap()));
        }
        // An ask that left before the loss was noticed ends with it.
        let back = async || needy.ask(Life).await.is_ok() && needed.ask(Life).await.is_ok();
        eventually("both of them", back).await;
        let took = Clock::now().since(begun);
        assert!(took < Limits::default().ask_timeout / 2, "{took:?}");
    }
    system.shutdown().await;
}

/// SEMANTICS 19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_before_the_start_leaves_the_neighbours_alone() {
    let system = system(Supervision::one_for_one()).await;
    let first = system.spawn::<Fragile>(false).in_worker("shared");
    let first = first.await.unwrap();
    let before = first.ask(Life).await.unwrap();
    for _ in 0..20 {
        let second = system.spawn::<Fragile>(false).in_worker("shared");
        second.await.unwrap().stop().await.unwrap();
    }
    assert_eq!(first.ask(Life).await, Ok(before));
    system.shutdown().await;
}

//! Local and isolated actors: asks, failures, restarts, stops. The same text runs in both modes.

use std::time::Duration;

use odeon::{
    Actor, AskError, Context, Effect, Failure, FailureKind, Handler, Message, Reason, Ref, Restart,
    Shape, System, WorkerMode,
};
use odeon_tests::again;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Add(u64);
#[derive(Serialize, Deserialize)]
struct Boom;
#[derive(Serialize, Deserialize)]
struct Pid;

impl Shape for Add {
    const SHAPE: u64 = 1;
}
impl Shape for Boom {
    const SHAPE: u64 = 2;
}
impl Shape for Pid {
    const SHAPE: u64 = 3;
}
impl Message for Add {
    const NAME: &'static str = "Add";
    type Reply = u64;
}
impl Message for Boom {
    const NAME: &'static str = "Boom";
    type Reply = ();
}
impl Message for Pid {
    const NAME: &'static str = "Pid";
    type Reply = u32;
}

struct Counter(u64);
impl Actor for Counter {
    const NAME: &'static str = "test.Counter";
    type Args = u64;
    async fn start(args: u64, _: &mut Context<Self>) -> Result<Self, Failure> {
        if args == 13 {
            return Err(Failure::error("13 brings bad luck"));
        }
        Ok(Self(args))
    }
}
impl Handler<Add> for Counter {
    async fn handle(&mut self, Add(n): Add, _: &mut Context<Self>) -> u64 {
        self.0 += n;
        self.0
    }
}
impl Handler<Boom> for Counter {
    async fn handle(&mut self, _: Boom, _: &mut Context<Self>) {
        panic!("boom");
    }
}
impl Handler<Pid> for Counter {
    async fn handle(&mut self, _: Pid, _: &mut Context<Self>) -> u32 {
        std::process::id()
    }
}
odeon::register!(Counter: Add, Boom, Pid);

/// Becomes a worker when this test binary is started as one.
#[test]
fn worker_entry() {
    odeon::job![Counter].serve_if_worker();
}

async fn system() -> System {
    let worker = again::worker(module_path!());
    System::builder()
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap()
}

async fn counter(system: &System, isolated: bool, start: u64) -> Ref<Counter> {
    let spawn = system.spawn::<Counter>(start).restart(Restart::Permanent);
    if isolated { spawn.isolated() } else { spawn }
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_counts_panics_and_starts_again() {
    for isolated in [false, true] {
        let system = system().await;
        let actor = counter(&system, isolated, 5).await;
        assert_eq!(actor.ask(Add(2)).await, Ok(7));
        assert_eq!(
            actor.ask(Pid).await.unwrap() != std::process::id(),
            isolated
        );
        let error = actor.ask(Boom).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown);
        let AskError::Died(down) = error else {
            panic!("{error}")
        };
        let Reason::Failed(failure) = down.reason else {
            panic!("{down}")
        };
        assert_eq!(failure.kind, FailureKind::Panic);
        // Messages queue behind the restart.
        assert_eq!(actor.ask(Add(1)).await, Ok(6));
        actor.stop().await.unwrap();
        let error = actor.ask(Add(1)).await.unwrap_err();
        assert!(matches!(error, AskError::Dead(_)), "{error}");
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_start_says_why() {
    for isolated in [false, true] {
        let system = system().await;
        let spawn = system.spawn::<Counter>(13).restart(Restart::Temporary);
        let error = if isolated { spawn.isolated() } else { spawn }
            .await
            .unwrap_err();
        assert!(error.to_string().contains("13 brings bad luck"), "{error}");
        system.shutdown().await;
    }
}

/// SEMANTICS 7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_process_comes_back() {
    let system = system().await;
    let actor = counter(&system, true, 5).await;
    let before = actor.ask(Pid).await.unwrap();
    assert!(
        system
            .admin()
            .kill_worker(system.admin().process_of(actor).unwrap())
    );
    let down = actor.down().await;
    let Reason::Failed(failure) = &down.reason else {
        panic!("{down}")
    };
    assert_eq!(failure.kind, FailureKind::ProcessLost);
    assert!(failure.message.contains("SIGKILL"), "{failure}");
    assert_eq!(
        actor.ask(Add(1)).timeout(Duration::from_secs(20)).await,
        Ok(6)
    );
    assert_ne!(actor.ask(Pid).await.unwrap(), before);
    system.shutdown().await;
}

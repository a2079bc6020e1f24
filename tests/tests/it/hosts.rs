//! An actor behaves the same whatever drives it: every test here runs on each host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use odeon::{
    Actix, AskError, Context, Down, Effect, Failure, FailureKind, Host, Kameo, Later, Limits,
    Reason, Ref, Restart, Supervision, System, WorkerMode, actix, kameo,
};
use odeon_tests::again;
use tokio::sync::Semaphore;

use crate::eventually;

#[odeon::message]
struct Boom;

/// Waits for a permit of the gate with this number.
#[odeon::message(reply = u64)]
struct Pass(usize);

#[odeon::message]
struct Hang;

#[odeon::message(reply = String)]
struct Thread;

static GATES: [Semaphore; 5] = [const { Semaphore::const_new(0) }; 5];

struct Counter {
    sum: u64,
}

#[odeon::actor(name = "hosts.Counter")]
impl Counter {
    async fn start(first: u64, cx: &mut Context<Self>) -> Result<Self, Failure> {
        // Mail to oneself waits for the end of the start.
        cx.me()
            .tell(Add { n: first })
            .now()
            .map_err(Failure::error)?;
        Ok(Self { sum: 0 })
    }

    #[handler]
    fn add(&mut self, n: u64) -> u64 {
        self.sum += n;
        self.sum
    }

    #[handler(message = Boom)]
    fn boom(&mut self, _: Boom) {
        panic!("boom");
    }

    #[handler]
    fn fail(&mut self, cx: &mut Context<Self>) {
        cx.fail(Failure::error("on purpose"));
    }

    #[handler]
    fn quit(&mut self, cx: &mut Context<Self>) {
        cx.stop();
    }

    #[handler(message = Pass)]
    async fn pass(&mut self, gate: Pass) -> u64 {
        GATES[gate.0].acquire().await.unwrap().forget();
        self.sum += 1;
        self.sum
    }

    /// Answers what the sum was when there is a permit, and goes on meanwhile; 0 panics then.
    #[handler]
    fn recall(&mut self, gate: usize) -> Later<u64> {
        let sum = self.sum;
        Later::new(async move {
            GATES[gate].acquire().await.unwrap().forget();
            assert_ne!(sum, 0, "nothing to recall");
            sum
        })
    }

    #[handler(message = Hang)]
    async fn hang(&mut self, _: Hang) {
        std::future::pending().await
    }

    #[handler(message = Thread)]
    async fn thread(&mut self, _: Thread) -> String {
        tokio::task::yield_now().await;
        std::thread::current().name().unwrap_or_default().to_owned()
    }
}

/// Supervises one counter and may not restart it even once.
struct Parent {
    child: Ref<Counter>,
    downs: u32,
}

#[odeon::actor(name = "hosts.Parent")]
impl Parent {
    fn supervision() -> Supervision {
        Supervision::one_for_one().budget(0, Duration::from_secs(60))
    }

    async fn start(on: Host, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let child = cx
            .spawn::<Counter>(1)
            .host(on)
            .await
            .map_err(Failure::error)?;
        cx.watch(child);
        Ok(Self { child, downs: 0 })
    }

    #[handler]
    fn child(&mut self) -> Ref<Counter> {
        self.child
    }

    #[handler(message = Down)]
    fn down(&mut self, _: Down) {
        self.downs += 1;
    }
}

// A kameo actor and an actix actor, as their users write them.

#[odeon::message(reply = Result<u64, String>)]
struct Deposit(u64);

#[odeon::message(reply = u64)]
struct Balance;

#[odeon::message]
struct Close;

impl actix::Message for Deposit {
    type Result = Result<u64, String>;
}
impl actix::Message for Balance {
    type Result = u64;
}
impl actix::Message for Boom {
    type Result = ();
}
impl actix::Message for Close {
    type Result = ();
}

struct KameoAccount(u64);
impl kameo::Actor for KameoAccount {
    type Args = u64;
    type Error = String;
    async fn on_start(args: u64, _: kameo::actor::ActorRef<Self>) -> Result<Self, String> {
        if args == 13 {
            Err("13 brings bad luck".to_owned())
        } else {
            Ok(Self(args))
        }
    }
}
impl kameo::message::Message<Deposit> for KameoAccount {
    type Reply = Result<u64, String>;
    async fn handle(
        &mut self,
        Deposit(n): Deposit,
        _: &mut kameo::message::Context<Self, Self::Reply>,
    ) -> Self::Reply {
        self.0 += n;
        if n == 0 {
            Err("nothing to deposit".to_owned())
        } else {
            Ok(self.0)
        }
    }
}
impl kameo::message::Message<Balance> for KameoAccount {
    type Reply = u64;
    async fn handle(
        &mut self,
        _: Balance,
        _: &mut kameo::message::Context<Self, Self::Reply>,
    ) -> u64 {
        self.0
    }
}
impl kameo::message::Message<Boom> for KameoAccount {
    type Reply = ();
    async fn handle(&mut self, _: Boom, _: &mut kameo::message::Context<Self, ()>) {
        panic!("boom");
    }
}
impl kameo::message::Message<Close> for KameoAccount {
    type Reply = ();
    async fn handle(&mut self, _: Close, cx: &mut kameo::message::Context<Self, ()>) {
        cx.stop();
    }
}
odeon::register_kameo!(KameoAccount as "hosts.KameoAccount": Deposit, Balance, Boom, Close);

struct ActixAccount(u64);
impl actix::Actor for ActixAccount {
    type Context = actix::Context<Self>;
}
impl odeon::foreign::ActixActor for ActixAccount {
    type Args = u64;
    fn make(args: u64, _: &mut actix::Context<Self>) -> Result<Self, Failure> {
        if args == 13 {
            Err(Failure::error("13 brings bad luck"))
        } else {
            Ok(Self(args))
        }
    }
}
impl actix::Handler<Deposit> for ActixAccount {
    type Result = Result<u64, String>;
    fn handle(&mut self, Deposit(n): Deposit, _: &mut actix::Context<Self>) -> Self::Result {
        self.0 += n;
        if n == 0 {
            Err("nothing to deposit".to_owned())
        } else {
            Ok(self.0)
        }
    }
}
impl actix::Handler<Balance> for ActixAccount {
    type Result = u64;
    fn handle(&mut self, _: Balance, _: &mut actix::Context<Self>) -> u64 {
        self.0
    }
}
impl actix::Handler<Boom> for ActixAccount {
    type Result = ();
    fn handle(&mut self, _: Boom, _: &mut actix::Context<Self>) {
        panic!("boom");
    }
}
impl actix::Handler<Close> for ActixAccount {
    type Result = ();
    fn handle(&mut self, _: Close, context: &mut actix::Context<Self>) {
        actix::ActorContext::stop(context);
    }
}
odeon::register_actix!(ActixAccount as "hosts.ActixAccount": Deposit, Balance, Boom, Close);

#[test]
fn worker_entry() {
    odeon::job![Counter, Parent, Kameo<KameoAccount>, Actix<ActixAccount>].serve_if_worker();
}

async fn system() -> System {
    let worker = again::worker(module_path!());
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(300);
    let builder = System::builder()
        .limits(limits)
        .workers(WorkerMode::Processes(worker));
    builder.start().await.unwrap()
}

/// Waits until an actor has taken this many messages out of its mailbox. The first is its own mail
/// from the start.
async fn handled(system: &System, actor: Ref<Counter>, messages: u64) {
    let seen = async || {
        let views = system.admin().actors().await;
        views
            .iter()
            .any(|view| view.id == actor.id() && view.handled == messages)
    };
    eventually("the end of a message", seen).await;
}

const HOSTS: [Host; 2] = [Host::Kameo, Host::Actix];

async fn counter(system: &System, on: Host, isolated: bool) -> Ref<Counter> {
    let spawn = system
        .spawn::<Counter>(5)
        .host(on)
        .restart(Restart::Permanent);
    if isolated { spawn.isolated() } else { spawn }
        .await
        .unwrap()
}

/// SEMANTICS 10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_later_holds_up_nobody() {
    for on in HOSTS {
        let system = system().await;
        let actor = counter(&system, on, false).await;
        let mut asked: Vec<_> = (0..3)
            .map(|_| Box::pin(actor.ask(Recall { gate: 4 }).into_future()))
            .collect();
        for ask in &mut asked {
            assert!(tokio::time::timeout(Duration::ZERO, ask).await.is_err());
        }
        assert_eq!(actor.ask(Add { n: 1 }).await, Ok(6), "{on:?}");
        GATES[4].add_permits(1);
        let (sum, _, others) = futures::future::select_all(asked).await;
        assert_eq!(sum, Ok(5));
        // It outlives its actor, whose end answers what is asked of it afterwards.
        actor.stop().await.unwrap();
        GATES[4].add_permits(others.len());
        for ask in others {
            assert_eq!(ask.await, Ok(5), "{on:?}");
        }
        // A panic is one answer, and the end of nobody.
        let empty = system.spawn::<Counter>(0).host(on).await.unwrap();
        let broken = tokio::spawn(empty.ask(Recall { gate: 4 }).into_future());
        GATES[4].add_permits(1);
        let error = broken.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("nothing to recall"), "{error}");
        assert_eq!(empty.ask(Add { n: 2 }).await, Ok(2));
        system.shutdown().await;
    }
}

/// SEMANTICS 6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_caught_and_a_restart_keeps_the_mail() {
    for on in HOSTS {
        for isolated in [false, true] {
            let system = system().await;
            let actor = counter(&system, on, isolated).await;
            let add = |n| actor.ask(Add { n });
            let (first, boom, second, third) =
                tokio::join!(add(1), actor.ask(Boom), add(10), add(100));
            assert_eq!(first, Ok(6));
            let error = boom.unwrap_err();
            assert_eq!(error.effect(), Effect::Unknown);
            let AskError::Died(Down {
                reason: Reason::Failed(failure),
                ..
            }) = error
            else {
                panic!("{error}")
            };
            assert_eq!(failure.kind, FailureKind::Panic);
            // The mail behind the panic met the next life, before or behind what its start sent.
            let (second, third) = (second.unwrap(), third.unwrap());
            assert!(
                [10, 15].contains(&second),
                "{on:?} isolated: {isolated}: {second}"
            );
            assert!(
                [110, 115].contains(&third),
                "{on:?} isolated: {isolated}: {third}"
            );
            assert_eq!(add(1).await, Ok(116));
            system.shutdown().await;
        }
    }
}

/// SEMANTICS 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_from_one_sender_keeps_its_order() {
    for on in HOSTS {
        let system = system().await;
        let actor = counter(&system, on, false).await;
        let asks = (0..1000u64).map(|_| actor.ask(Add { n: 1 }));
        let sums = futures_join(asks.collect()).await;
        let expected: Vec<_> = (6..1006).map(Ok).collect();
        assert_eq!(sums, expected, "{on:?}");
        system.shutdown().await;
    }
}

async fn futures_join<F: Future + Send + 'static>(futures: Vec<F>) -> Vec<F::Output>
where
    F::Output: Send,
{
    // Each future sends when it is first polled, in this order.
    let mut polled: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = polled.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in polled.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *output = Some(value);
            }
        }
        if outputs.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// SEMANTICS 14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_lets_the_message_end_and_answers_the_mail() {
    for on in HOSTS {
        let system = system().await;
        let actor = counter(&system, on, false).await;
        let mut first = Box::pin(actor.ask(Pass(0)));
        let mut second = Box::pin(actor.ask(Pass(0)));
        let mut stop = Box::pin(actor.stop());
        // The first poll of each sends it.
        assert!(
            tokio::time::timeout(Duration::ZERO, &mut first)
                .await
                .is_err()
        );
        handled(&system, actor, 2).await;
        assert!(
            tokio::time::timeout(Duration::ZERO, &mut second)
                .await
                .is_err()
        );
        assert!(
            tokio::time::timeout(Duration::ZERO, &mut stop)
                .await
                .is_err()
        );
        GATES[0].add_permits(1);
        assert_eq!(first.await, Ok(6), "{on:?}");
        let error = second.await.unwrap_err();
        assert!(matches!(error, AskError::Died(_)), "{on:?}: {error}");
        stop.await.unwrap();
        assert_eq!(
            GATES[0].available_permits(),
            0,
            "the second message was not handled"
        );
        let error = actor.ask(Add { n: 1 }).await.unwrap_err();
        assert!(matches!(error, AskError::Dead(_)), "{on:?}: {error}");
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_reaches_an_idle_actor_and_a_hanging_one() {
    for on in HOSTS {
        for isolated in [false, true] {
            let system = system().await;
            let idle = counter(&system, on, isolated).await;
            idle.stop().await.unwrap();
            assert!(
                matches!(idle.ask(Add { n: 1 }).await, Err(AskError::Dead(_))),
                "{on:?}"
            );

            let hangs = counter(&system, on, isolated).await;
            let hanging = tokio::spawn(hangs.ask(Hang));
            handled(&system, hangs, 2).await;
            hangs.stop().await.unwrap();
            let error = hanging.await.unwrap().unwrap_err();
            let AskError::Died(Down {
                reason: Reason::Failed(failure),
                ..
            }) = error
            else {
                panic!("{on:?}: {error}")
            };
            assert_eq!(failure.kind, FailureKind::Hang);
            system.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_and_stopping_oneself_go_to_the_supervisor() {
    for on in HOSTS {
        let system = system().await;
        let spawn = system
            .spawn::<Counter>(5)
            .host(on)
            .restart(Restart::Transient);
        let actor = spawn.await.unwrap();
        assert_eq!(actor.ask(Fail).await, Ok(()));
        assert_eq!(actor.ask(Add { n: 0 }).await.map(|sum| sum % 5), Ok(0));
        assert_eq!(actor.ask(Quit).await, Ok(()));
        let down = actor.down().await;
        assert_eq!(
            (down.reason, down.incarnation),
            (Reason::Stopped, 2),
            "{on:?}"
        );
        system.shutdown().await;
    }
}

/// SEMANTICS 21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_beyond_the_budget_ends_parent_and_child() {
    for on in HOSTS {
        let system = system().await;
        let parent = system
            .spawn::<Parent>(on)
            .host(on)
            .restart(Restart::Temporary)
            .await
            .unwrap();
        let child = parent.ask(Child).await.unwrap();
        child.ask(Boom).await.unwrap_err();
        let Reason::Failed(failure) = parent.down().await.reason else {
            panic!("{on:?}")
        };
        assert_eq!(failure.kind, FailureKind::Escalated);
        assert_eq!(failure.root_cause().kind, FailureKind::Panic);
        assert!(
            matches!(child.ask(Add { n: 1 }).await, Err(AskError::Dead(_))),
            "{on:?}"
        );
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actix_host_keeps_its_thread_and_shares_it() {
    let system = system().await;
    let actors: Vec<_> = futures_join(
        // Four panics among them, within the restart budget of their supervisor.
        (0..5)
            .map(|_| system.spawn::<Counter>(1).host(Host::Actix).into_future())
            .collect(),
    )
    .await
    .into_iter()
    .map(Result::unwrap)
    .collect();
    let busy = tokio::spawn(actors[0].ask(Pass(1)));
    for actor in &actors[1..] {
        let before = actor.ask(Thread).await.unwrap();
        assert!(before.starts_with("actix-rt"), "{before}");
        actor.ask(Boom).await.unwrap_err();
        assert_eq!(actor.ask(Thread).await.unwrap(), before);
    }
    GATES[1].add_permits(1);
    assert_eq!(busy.await.unwrap(), Ok(2));
    system.shutdown().await;
}

/// Tests of the promises that both wrappers keep.
macro_rules! wrapped {
    ($name:ident, $wrapper:ty) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            for isolated in [false, true] {
                let system = system().await;
                let spawn = |args| {
                    let spawn = system.spawn::<$wrapper>(args);
                    if isolated { spawn.isolated() } else { spawn }
                };
                let account = spawn(5).restart(Restart::Transient).await.unwrap();
                assert_eq!(account.ask(Deposit(2)).await, Ok(Ok(7)));
                let refused = account.ask(Deposit(0)).await.unwrap();
                assert_eq!(refused, Err("nothing to deposit".to_owned()));
                // A tell that ends in an error hurts nobody.
                account.tell(Deposit(0)).await.unwrap();
                assert_eq!(account.ask(Balance).await, Ok(7));

                let error = account.ask(Boom).await.unwrap_err();
                let AskError::Died(Down {
                    reason: Reason::Failed(failure),
                    ..
                }) = error
                else {
                    panic!("{error}")
                };
                assert_eq!(failure.kind, FailureKind::Panic, "{failure}");
                assert!(failure.message.contains("boom"), "{failure}");
                assert_eq!(
                    account.ask(Balance).await,
                    Ok(5),
                    "made again from its arguments"
                );

                // Its own end is an orderly one.
                let down = account.down();
                account.tell(Close).await.unwrap();
                let down = down.await;
                assert_eq!((down.reason, down.incarnation), (Reason::Stopped, 2));
                assert!(account.ask(Balance).await.is_err());

                let error = spawn(13).restart(Restart::Temporary).await.unwrap_err();
                assert!(error.to_string().contains("bad luck"), "{error}");
                let second = spawn(1).await.unwrap();
                second.stop().await.unwrap();
                let gone = async || system.admin().actors().await.is_empty();
                eventually("the end of all actors", gone).await;
                system.shutdown().await;
            }
        }
    };
}
wrapped!(
    a_kameo_actor_is_reached_supervised_and_made_again,
    Kameo<KameoAccount>
);
wrapped!(
    an_actix_actor_is_reached_supervised_and_made_again,
    Actix<ActixAccount>
);

/// Counts how many are alive.
struct Alive(Arc<AtomicU32>);
static ALIVE: std::sync::LazyLock<Arc<AtomicU32>> = std::sync::LazyLock::new(Arc::default);
impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
impl actix::Actor for Alive {
    type Context = actix::Context<Self>;
}
impl odeon::foreign::ActixActor for Alive {
    type Args = ();
    fn make((): (), _: &mut actix::Context<Self>) -> Result<Self, Failure> {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Ok(Self(Arc::clone(&ALIVE)))
    }
}
impl actix::Handler<Balance> for Alive {
    type Result = u64;
    fn handle(&mut self, _: Balance, _: &mut actix::Context<Self>) -> u64 {
        self.0.load(Ordering::SeqCst).into()
    }
}
odeon::register_actix!(Alive as "hosts.Alive": Balance);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrapper_takes_its_actor_along() {
    let system = system().await;
    let actor = system.spawn::<Actix<Alive>>(()).await.unwrap();
    assert_eq!(actor.ask(Balance).await, Ok(1));
    actor.stop().await.unwrap();
    assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
    system.shutdown().await;
}

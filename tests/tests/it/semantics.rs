//! Promises of SEMANTICS.md that no other suite shows, in the calling process and, where it
//! differs, in a worker process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use odeon::{
    AskError, Context, Effect, Failure, Incarnation, Limits, NameError, Reason, Ref, Restart,
    System, WorkerMode, inspect::ActorView,
};
use odeon_tests::again;
use tokio::sync::Semaphore;

use crate::eventually;

/// Handlers and starts wait here; each test has its own.
static GATES: [Semaphore; 15] = [const { Semaphore::const_new(0) }; 15];

/// Notes handled, by gate, over all lives.
static NOTED: [AtomicU64; 15] = [const { AtomicU64::new(0) }; 15];

struct Clerk {
    gate: usize,
}

#[odeon::message]
struct Boom;

#[odeon::actor(name = "semantics.Clerk")]
impl Clerk {
    fn start(gate: usize) -> Self {
        Self { gate }
    }

    /// Keeps the actor busy until its gate opens.
    #[handler]
    async fn hold(&mut self) {
        GATES[self.gate]
            .acquire()
            .await
            .expect("gates stay")
            .forget();
    }

    #[handler]
    fn note(&mut self) -> u64 {
        NOTED[self.gate].fetch_add(1, Ordering::SeqCst) + 1
    }

    #[handler]
    fn life(&mut self, cx: &mut Context<Self>) -> Incarnation {
        cx.incarnation()
    }

    #[handler]
    async fn ask_yourself(&mut self, cx: &mut Context<Self>) -> Result<u64, AskError> {
        cx.me().ask(Note).await
    }

    #[handler]
    async fn tell_yourself(&mut self, cx: &mut Context<Self>) -> bool {
        cx.me().tell(Note).await.is_ok()
    }

    #[handler(message = Boom)]
    fn boom(&mut self, _: Boom) {
        panic!("boom");
    }
}

/// Takes its time to come to life.
struct Sleepy;

#[odeon::actor(name = "semantics.Sleepy")]
impl Sleepy {
    async fn start(gate: Option<usize>) -> Result<Self, Failure> {
        if let Some(gate) = gate {
            GATES[gate]
                .acquire()
                .await
                .map_err(Failure::error)?
                .forget();
        }
        Ok(Self)
    }

    #[handler]
    fn awake(&mut self) -> bool {
        true
    }
}

#[test]
fn worker_entry() {
    odeon::job![Clerk, Sleepy].serve_if_worker();
}

fn workers() -> WorkerMode {
    let worker = again::worker(module_path!());
    WorkerMode::Processes(worker)
}

async fn system_with(change: impl FnOnce(&mut Limits)) -> System {
    let mut limits = Limits::default();
    change(&mut limits);
    let builder = System::builder().limits(limits).workers(workers());
    builder.start().await.unwrap()
}

async fn system() -> System {
    system_with(|_| ()).await
}

async fn clerk(system: &System, gate: usize, isolated: bool) -> Ref<Clerk> {
    let spawn = system.spawn::<Clerk>(gate).restart(Restart::Permanent);
    if isolated { spawn.isolated() } else { spawn }
        .await
        .unwrap()
}

/// Polls once, which sends what is to be sent.
async fn begun<F: Future + Unpin>(mut future: F) -> F {
    let first =
        std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut future).poll(cx).is_ready()));
    assert!(!first.await, "it ended at once");
    future
}

/// Waits until the counters of an actor show a fact.
async fn seen<A>(system: &System, actor: Ref<A>, fact: impl Fn(&ActorView) -> bool) {
    let waiting = async {
        loop {
            let views = system.admin().actors().await;
            if views.iter().any(|view| view.id == actor.id() && fact(view)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .expect("the fact comes true");
}

/// SEMANTICS 5: messages sent before the actor lives wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_message_queues_behind_creation() {
    let system = system().await;
    let sleepy = system.spawn::<Sleepy>(Some(0)).start().unwrap();
    let asked = begun(sleepy.ask(Awake)).await;
    GATES[0].add_permits(1);
    assert_eq!(asked.await, Ok(true));
    // In another process, which has yet to be started.
    let sleepy = system.spawn::<Sleepy>(None).isolated().start().unwrap();
    let asked = begun(sleepy.ask(Awake)).await;
    assert_eq!(asked.await, Ok(true));
    system.shutdown().await;
}

/// SEMANTICS 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_is_sent_when_it_is_first_polled() {
    let system = system().await;
    for (gate, isolated) in [(11, false), (12, true)] {
        let actor = clerk(&system, gate, isolated).await;
        let late = actor.ask(Note);
        assert_eq!(actor.ask(Note).await, Ok(1));
        assert_eq!(late.await, Ok(2));
    }
    system.shutdown().await;
}

/// SEMANTICS 7.
#[test]
fn limits_are_what_guarantees_say_of_them() {
    let limits = Limits::default();
    let seconds = [limits.link_idle_timeout, limits.connection_idle].map(|it| it.as_secs_f64());
    assert_eq!(seconds, [10.0, 4.0]);
}

/// SEMANTICS 4: a full mailbox makes senders wait, and after their time says that it was full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_makes_senders_wait() {
    let system = system_with(|limits| limits.mailbox_messages_max = 2).await;
    let actor = clerk(&system, 1, false).await;
    let held = begun(actor.ask(Hold)).await;
    seen(&system, actor, |view| view.handled == 1).await;
    actor.tell(Note).await.unwrap();
    actor.tell(Note).await.unwrap();
    let error = actor.tell(Note).now().unwrap_err();
    assert!(
        matches!(error.error, AskError::Full { .. }) && error.message.is_some(),
        "{error}"
    );
    let error = actor
        .ask(Note)
        .timeout(Duration::from_millis(20))
        .await
        .unwrap_err();
    assert!(matches!(error, AskError::Full { .. }), "{error}");
    assert_eq!(error.effect(), Effect::No);
    let waits = begun(actor.ask(Note)).await;
    GATES[1].add_permits(1);
    assert_eq!(held.await, Ok(()));
    assert_eq!(waits.await, Ok(3), "what was refused was not handled");
    system.shutdown().await;
}

/// SEMANTICS 11: an ask whose time is over before its turn comes is not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_that_is_late_is_not_run() {
    let system = system().await;
    let actor = clerk(&system, 2, false).await;
    let held = begun(actor.ask(Hold)).await;
    let error = actor
        .ask(Note)
        .timeout(Duration::from_millis(20))
        .await
        .unwrap_err();
    assert!(matches!(error, AskError::Timeout { .. }), "{error}");
    GATES[2].add_permits(1);
    assert_eq!(held.await, Ok(()));
    assert_eq!(actor.ask(Note).await, Ok(1));
    system.shutdown().await;
}

/// SEMANTICS 12: an actor that asks itself is told at once; telling itself is fine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_that_asks_itself_is_refused() {
    let system = system().await;
    let actor = clerk(&system, 3, false).await;
    assert_eq!(
        actor.ask(AskYourself).await,
        Ok(Err(AskError::SelfAsk(actor.id())))
    );
    assert_eq!(actor.ask(TellYourself).await, Ok(true));
    assert_eq!(actor.ask(Note).await, Ok(2), "after the note to itself");
    system.shutdown().await;
}

/// SEMANTICS 6, 9: a fenced reference reaches its incarnation and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_reference_refuses_the_next_life() {
    for isolated in [false, true] {
        let system = system().await;
        let actor = clerk(&system, 4, isolated).await;
        let fenced = actor.fenced(1);
        assert_eq!(fenced.ask(Life).await, Ok(1));
        actor.ask(Boom).await.unwrap_err();
        assert_eq!(
            actor.ask(Life).await,
            Ok(2),
            "the same id, the next incarnation"
        );
        let error = fenced.ask(Life).await.unwrap_err();
        let expected = AskError::Stale {
            actor: actor.id(),
            fence: 1,
            current: 2,
        };
        assert_eq!(error, expected, "isolated: {isolated}");
        assert_eq!(error.effect(), Effect::No);
        assert_eq!(actor.fenced(2).ask(Life).await, Ok(2));
        system.shutdown().await;
    }
}

/// SEMANTICS 11: an ask that waits for its actor to be placed again is withdrawn as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_that_was_given_up_while_it_was_held_is_not_handled() {
    let long = Duration::from_secs(1);
    let system = System::builder()
        .workers(workers())
        .supervision(odeon::Supervision::one_for_one().backoff(long, long))
        .start()
        .await
        .unwrap();
    let actor = clerk(&system, 8, true).await;
    let process = system.admin().process_of(actor).unwrap();
    let watched = begun(Box::pin(actor.down())).await;
    assert!(system.admin().kill_worker(process));
    watched.await;
    let short = Duration::from_millis(10);
    let error = actor.ask(Note).timeout(short).await.unwrap_err();
    assert!(matches!(error, AskError::Timeout { .. }), "{error}");
    drop(begun(actor.ask(Note)).await);
    assert_eq!(actor.ask(Note).await, Ok(1), "the first that is handled");
    system.shutdown().await;
}

/// SEMANTICS 10: the wait for room and the wait for the answer share one timeout.
#[tokio::test(start_paused = true)]
async fn a_timeout_covers_the_wait_for_room_too() {
    let mut limits = Limits::default();
    limits.mailbox_messages_max = 1;
    let system = System::builder().limits(limits).start().await.unwrap();
    let actor = clerk(&system, 9, false).await;
    let first = begun(actor.ask(Hold)).await;
    seen(&system, actor, |view| view.handled == 1).await;
    let second = begun(actor.ask(Hold)).await;
    let begin = odeon::Clock::now();
    let third = begun(actor.ask(Hold).timeout(Duration::from_millis(300))).await;
    odeon::Clock::sleep(Duration::from_millis(200)).await;
    GATES[9].add_permits(1);
    assert_eq!(first.await, Ok(()));
    let error = third.await.unwrap_err();
    assert!(matches!(error, AskError::Timeout { .. }), "{error}");
    let waited = odeon::Clock::now().since(begin);
    assert!(waited < Duration::from_millis(400), "{waited:?}");
    GATES[9].add_permits(2);
    assert_eq!(second.await, Ok(()));
    system.shutdown().await;
}

/// SEMANTICS 10: an ask whose caller names no time ends after that of the limits.
#[tokio::test(start_paused = true)]
async fn an_ask_without_a_timeout_ends_after_the_default() {
    let mut limits = Limits::default();
    let most = Duration::from_secs(7);
    limits.ask_timeout = most;
    let system = System::builder().limits(limits).start().await.unwrap();
    let actor = clerk(&system, 10, false).await;
    let begin = odeon::Clock::now();
    let error = actor.ask(Hold).await.unwrap_err();
    assert!(
        matches!(error, AskError::Timeout { waited, .. } if waited == most),
        "{error}"
    );
    let waited = odeon::Clock::now().since(begin);
    assert!(
        most <= waited && waited < most + Duration::from_secs(1),
        "{waited:?}"
    );
    // As long as the caller says, where that is longer.
    let patient = actor.ask(Hold).timeout(most * 2).await.unwrap_err();
    assert!(matches!(patient, AskError::Timeout { .. }), "{patient}");
    assert!(odeon::Clock::now().since(begin) >= most * 3);
    GATES[10].add_permits(2);
    system.shutdown().await;
}

/// SEMANTICS 14, 15: what lies in the mailbox of an actor that ends is answered or counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mail_of_the_dead_is_answered_or_counted() {
    let system = system().await;
    let actor = clerk(&system, 5, false).await;
    let held = begun(actor.ask(Hold)).await;
    seen(&system, actor, |view| view.handled == 1).await;
    let queued = begun(actor.ask(Note)).await;
    actor.tell(Note).await.unwrap();
    let stop = begun(Box::pin(actor.stop())).await;
    GATES[5].add_permits(1);
    assert_eq!(held.await, Ok(()));
    let error = queued.await.unwrap_err();
    assert!(matches!(error, AskError::Died(_)), "{error}");
    stop.await.unwrap();
    // The mailbox goes after the actor: the count follows its end.
    let counted = async {
        while system.admin().dead_letters() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let counted = odeon::Clock::timeout(Duration::from_secs(10), counted).await;
    assert!(counted.is_some(), "the tell was lost in silence");
    assert_eq!(system.admin().dead_letters(), 1);
    assert_eq!(NOTED[5].load(Ordering::SeqCst), 0);
    // Whoever tells the dead gets the message back.
    let error = actor.tell(Note).await.unwrap_err();
    assert!(error.message.is_some());
    let AskError::Dead(down) = error.error else {
        panic!("{error}")
    };
    assert_eq!(down.reason, Reason::Stopped);
    system.shutdown().await;
}

/// SEMANTICS 15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tells_that_are_lost_with_a_process_are_no_dead_letters() {
    let system = system().await;
    let actor = clerk(&system, 13, true).await;
    let held = begun(actor.ask(Hold)).await;
    for _ in 0..5 {
        actor.tell(Note).await.unwrap();
    }
    seen(&system, actor, |view| view.queued == 5).await;
    assert!(
        system
            .admin()
            .kill_worker(system.admin().process_of(actor).unwrap())
    );
    let error = held.await.unwrap_err();
    assert!(matches!(error, AskError::Died(_)), "{error}");
    assert_eq!(actor.ask(Life).await, Ok(2));
    assert_eq!(actor.ask(Note).await, Ok(1), "they were lost");
    assert_eq!(system.admin().dead_letters(), 0);
    system.shutdown().await;
}

/// Text that a test's own thread has logged.
#[derive(Clone, Default)]
pub(crate) struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    /// Takes what is logged while the guard lives.
    pub(crate) fn take(&self) -> tracing::subscriber::DefaultGuard {
        let to = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || to.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// SEMANTICS 15.
#[tokio::test]
async fn a_dead_letter_is_logged_with_whose_it_was() {
    let written = Written::default();
    let _here = written.take();
    let system = System::local().await.unwrap();
    let actor = clerk(&system, 14, false).await;
    let held = begun(actor.ask(Hold)).await;
    seen(&system, actor, |view| view.handled == 1).await;
    actor.tell(Note).await.unwrap();
    let stop = begun(Box::pin(actor.stop())).await;
    GATES[14].add_permits(1);
    assert_eq!(held.await, Ok(()));
    stop.await.unwrap();
    eventually("a dead letter", async || system.admin().dead_letters() == 1).await;
    let text = written.text();
    let mut lines = text.lines().filter(|line| line.contains("dead letter"));
    let line = lines.next().unwrap_or_else(|| panic!("none in: {text}"));
    for part in [format!("actor={}", actor.id()), "Note".to_owned()] {
        assert!(line.contains(&part), "{part} is not in: {line}");
    }
    system.shutdown().await;
}

/// SEMANTICS 16: a name belongs to one living actor, over its restarts, and is free after its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_belongs_to_one_living_actor() {
    let system = system().await;
    let (actor, other) = (
        clerk(&system, 6, true).await,
        clerk(&system, 6, false).await,
    );
    system.register("clerk", actor).await.unwrap();
    let taken = system.register("clerk", other).await.unwrap_err();
    assert_eq!(
        taken,
        NameError::Taken {
            name: "clerk".into(),
            owner: actor.id()
        }
    );
    let wrong = system.lookup::<Sleepy>("clerk").await.unwrap_err();
    assert!(matches!(wrong, NameError::WrongType { .. }), "{wrong}");
    actor.ask(Boom).await.unwrap_err();
    assert_eq!(actor.ask(Life).await, Ok(2));
    assert_eq!(system.lookup::<Clerk>("clerk").await, Ok(actor));
    actor.stop().await.unwrap();
    let gone = system.lookup::<Clerk>("clerk").await.unwrap_err();
    assert_eq!(gone, NameError::NotFound("clerk".into()));
    system.register("clerk", other).await.unwrap();
    system.shutdown().await;
}

/// SEMANTICS 20: looking at an actor that is busy waits for nothing and changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_enters_no_mailbox() {
    let system = system().await;
    let actor = clerk(&system, 7, false).await;
    let held = begun(actor.ask(Hold)).await;
    seen(&system, actor, |view| view.handled == 1).await;
    let queued = begun(actor.ask(Note)).await;
    for _ in 0..3 {
        seen(&system, actor, |view| (view.queued, view.handled) == (1, 1)).await;
    }
    GATES[7].add_permits(1);
    assert_eq!((held.await, queued.await), (Ok(()), Ok(1)));
    system.shutdown().await;
}

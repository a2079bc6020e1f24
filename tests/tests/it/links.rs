//! Promises of every link between two systems, whatever carries its bytes; and two systems in two
//! processes, over QUIC.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{LazyLock, Mutex};
use std::task::Poll;
use std::time::Duration;

use odeon::inspect::{ActorView, LinkView};
use odeon::{
    Actor, AskError, Clock, ClusterIdentity, Context, Down, Effect, Failure, FailureKind, Handler,
    Job, Limits, Message, NameError, NodeIdentity, ProcessId, Reason, Ref, Restart, Shape,
    SpawnError, System, SystemError, WorkerMode,
};
use odeon_tests::again;
use odeon_tests::peer::{self, Peer, Workers};
use odeon_tests::wires::{Flow, Kind, Other, Pair, limits, loopback};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// Nothing in these tests takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The module with the entries of the other processes.
const HERE: &str = module_path!();

// ---- the actor ----

macro_rules! messages {
    ($($name:ident($($field:ty),*) -> $reply:ty;)*) => { $(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        struct $name($($field),*);
        impl Shape for $name {
            const SHAPE: u64 = odeon::shape::name(stringify!($name));
        }
        impl Message for $name {
            const NAME: &'static str = stringify!($name);
            type Reply = $reply;
        }
    )* };
}

/// Bytes that serde reads in one go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bulk(#[serde(with = "serde_bytes")] Vec<u8>);
impl Shape for Bulk {
    const SHAPE: u64 = odeon::shape::name("Bulk");
}

messages! {
    Note(u64) -> ();
    Notes() -> Vec<u64>;
    Echo(Bulk) -> Bulk;
    Fill(usize) -> Bulk;
    Hold(u64) -> u64;
    Boom() -> ();
    Unlisted() -> ();
    Pid() -> u32;
    Watch(Ref<Probe>) -> ();
}

/// Does what messages say.
struct Probe {
    number: u64,
    notes: Vec<u64>,
}

impl Actor for Probe {
    const NAME: &'static str = "test.Probe";
    type Args = u64;
    async fn start(number: u64, _: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self {
            number,
            notes: vec![],
        })
    }
}
impl Handler<Note> for Probe {
    async fn handle(&mut self, Note(n): Note, _: &mut Context<Self>) {
        self.notes.push(n);
    }
}
impl Handler<Notes> for Probe {
    async fn handle(&mut self, _: Notes, _: &mut Context<Self>) -> Vec<u64> {
        self.notes.clone()
    }
}
impl Handler<Echo> for Probe {
    async fn handle(&mut self, Echo(bytes): Echo, _: &mut Context<Self>) -> Bulk {
        bytes
    }
}
impl Handler<Fill> for Probe {
    async fn handle(&mut self, Fill(bytes): Fill, _: &mut Context<Self>) -> Bulk {
        Bulk(vec![7; bytes])
    }
}
impl Handler<Hold> for Probe {
    /// Waits until the gate of this number opens.
    async fn handle(&mut self, Hold(gate): Hold, _: &mut Context<Self>) -> u64 {
        self.notes.push(gate);
        let gate = Door::of(gate);
        gate.entered.send_modify(|entered| *entered += 1);
        gate.open.subscribe().wait_for(|open| *open).await.unwrap();
        self.number
    }
}
impl Handler<Boom> for Probe {
    async fn handle(&mut self, _: Boom, _: &mut Context<Self>) {
        panic!("boom");
    }
}
impl Handler<Unlisted> for Probe {
    async fn handle(&mut self, _: Unlisted, _: &mut Context<Self>) {}
}
impl Handler<Pid> for Probe {
    async fn handle(&mut self, _: Pid, _: &mut Context<Self>) -> u32 {
        std::process::id()
    }
}
impl Handler<Watch> for Probe {
    async fn handle(&mut self, Watch(target): Watch, cx: &mut Context<Self>) {
        cx.watch(target);
    }
}
impl Handler<Down> for Probe {
    async fn handle(&mut self, down: Down, _: &mut Context<Self>) {
        if let Some(downs) = DOWNS.lock().unwrap().get(&self.number) {
            downs.send(down).unwrap();
        }
    }
}
odeon::register!(Probe: Note, Notes, Echo, Fill, Hold, Boom, Pid, Watch, Down);

/// Where a probe of this number reports the ends that it is told of.
static DOWNS: LazyLock<Mutex<HashMap<u64, mpsc::UnboundedSender<Down>>>> =
    LazyLock::new(Mutex::default);

/// Something that handlers of this process wait for, named by a number.
#[derive(Clone)]
struct Door {
    open: watch::Sender<bool>,
    entered: watch::Sender<usize>,
}

impl Door {
    fn of(number: u64) -> Self {
        static DOORS: LazyLock<Mutex<HashMap<u64, Door>>> = LazyLock::new(Mutex::default);
        let new = || Self {
            open: watch::channel(false).0,
            entered: watch::channel(0).0,
        };
        DOORS
            .lock()
            .unwrap()
            .entry(number)
            .or_insert_with(new)
            .clone()
    }
}

fn job() -> Job {
    odeon::job![Probe]
}

// ---- the other node ----

/// An order to node `b`, wherever it lives and whatever has become of its link.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Spawn a probe that is always started again; gives a `Ref<Probe>`.
    Probe,
    /// Register it as `probe`.
    Register(Ref<Probe>),
    Note(Ref<Probe>, u64),
    /// Gives a `Vec<u64>`.
    Notes(Ref<Probe>),
    /// Wait until a handler has come to this door.
    Entered(u64),
    Open(u64),
    /// Gives a `Vec<ActorView>`.
    Actors,
    /// Gives a `u64`.
    DeadLetters,
}

async fn obey(system: &System, order: Order) -> Value {
    match order {
        Order::Probe => {
            let spawn = system.spawn::<Probe>(1).restart(Restart::Permanent);
            json!(spawn.await.unwrap())
        }
        Order::Register(actor) => json!(system.register("probe", actor).await.unwrap()),
        Order::Note(actor, n) => json!(system.scope(actor.ask(Note(n))).await.unwrap()),
        Order::Notes(actor) => json!(system.scope(actor.ask(Notes())).await.unwrap()),
        Order::Entered(door) => {
            let mut entered = Door::of(door).entered.subscribe();
            entered.wait_for(|entered| *entered > 0).await.unwrap();
            Value::Null
        }
        Order::Open(door) => {
            Door::of(door).open.send_replace(true);
            Value::Null
        }
        Order::Actors => json!(system.admin().actors().await),
        Order::DeadLetters => json!(system.admin().dead_letters()),
    }
}

async fn at_b<T: DeserializeOwned>(pair: &Pair, order: Order) -> T {
    match &pair.b {
        Other::Here(system) => serde_json::from_value(obey(system, order).await).unwrap(),
        Other::There(peer) => peer.order(&order).await,
    }
}

/// A probe at `b`, for messages from `a`.
async fn probe(pair: &Pair) -> Ref<Probe> {
    at_b(pair, Order::Probe).await
}

async fn actors_at_b(pair: &Pair) -> Vec<ActorView> {
    at_b(pair, Order::Actors).await
}

/// A door at `b` that no other test uses.
struct Gate<'a> {
    pair: &'a Pair,
    number: u64,
}

impl<'a> Gate<'a> {
    fn new(pair: &'a Pair) -> Self {
        let number = ProcessId::random().0;
        Self { pair, number }
    }

    async fn open(&self) {
        at_b(self.pair, Order::Open(self.number)).await
    }

    async fn entered(&self) {
        at_b(self.pair, Order::Entered(self.number)).await
    }
}

/// Polls a future once, so that it sends what it has to send.
async fn begun<'a, F>(mut future: F) -> Pin<Box<dyn Future<Output = F::Output> + 'a>>
where
    F: Future<Output: 'a> + Unpin + 'a,
{
    let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await;
    match first {
        Poll::Ready(outcome) => Box::pin(async move { outcome }),
        Poll::Pending => Box::pin(future),
    }
}

/// Tries until it gives something; every try is a round trip or a short wait.
async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let trying = async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            Clock::sleep(Duration::from_millis(2)).await;
        }
    };
    Clock::timeout(PATIENCE, trying)
        .await
        .expect("it happens in time")
}

// ---- the suite ----

macro_rules! conformance {
    (
        everywhere: $($test:ident),*;
        on_time: $($on_time:ident),*;
        in_sessions: $($in_session:ident),* $(,)?
    ) => {
        conformance!(@kind memory Memory $($test)* $($on_time)*);
        conformance!(@kind unix Unix $($test)* $($on_time)*);
        conformance!(@kind torn Torn $($test)* $($in_session)*);
        conformance!(@kind quic Quic $($test)* $($on_time)* $($in_session)*);
        conformance!(@kind quic_torn QuicTorn $($test)* $($in_session)*);
        conformance!(@kind quic_processes QuicProcesses $($test)* $($on_time)* $($in_session)*);
    };
    (@kind $module:ident $kind:ident $($test:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let test = async {
                        let pair = Pair::new(Kind::$kind, job(), HERE).await;
                        pair.a.scope(super::$test(&pair)).await;
                        pair.shutdown().await;
                    };
                    Clock::timeout(PATIENCE, test).await.expect("the test ends in time");
                }
            )*
        }
    };
}

conformance! {
    everywhere:
    messages_of_one_sender_keep_their_order,
    asks_and_tells_of_one_sender_keep_their_order,
    a_message_up_to_the_limit_passes_and_a_larger_one_does_not,
    a_dropped_ask_is_not_handled_and_gives_its_credit_back,
    a_slow_actor_holds_up_nobody_else,
    who_waits_for_credit_is_not_overtaken,
    all_credit_of_tells_is_back_when_nothing_is_queued,
    a_dead_actor_says_so,
    an_unknown_method_is_refused,
    a_panic_is_told_and_the_actor_restarts,
    a_stop_is_seen_by_whoever_watches,
    what_is_sent_after_a_stop_is_not_handled,
    names_are_known_on_both_sides,
    a_lost_link_ends_what_is_under_way,
    a_lost_link_ends_the_wait_for_credit,
    an_ask_that_had_left_when_its_system_ends_may_have_been_handled,
    a_cut_wire_can_be_replaced,
    control_overtakes_a_queue_of_large_messages,
    an_actor_is_placed_on_the_other_node,
    an_actor_on_a_lost_node_is_reported_and_placed_again,
    clocks_are_compared,
    garbage_on_the_wire_reaches_no_actor;
    // What is late on a torn wire may be too late for these.
    on_time:
    an_ask_ends_at_its_deadline;
    in_sessions:
    an_outage_loses_nothing,
    another_join_leaves_the_link_as_it_is,
}

async fn messages_of_one_sender_keep_their_order(pair: &Pair) {
    let actor = probe(pair).await;
    for n in 0..10_000 {
        actor.tell(Note(n)).await.unwrap();
    }
    assert_eq!(
        actor.ask(Notes()).await.unwrap(),
        (0..10_000).collect::<Vec<_>>()
    );
}

/// SEMANTICS 1.
async fn asks_and_tells_of_one_sender_keep_their_order(pair: &Pair) {
    let actor = probe(pair).await;
    let mut asks = vec![];
    for n in 0..2_000 {
        match n % 3 {
            0 => actor.tell(Note(n)).await.unwrap(),
            1 => {
                if let Err(error) = actor.tell(Note(n)).now() {
                    assert_eq!(
                        error.error.effect(),
                        Effect::No,
                        "there was no room just now"
                    );
                }
            }
            _ => asks.push(begun(actor.ask(Note(n))).await),
        }
        if asks.len() == 100 {
            for ask in asks.drain(..) {
                ask.await.unwrap();
            }
        }
    }
    for ask in asks {
        ask.await.unwrap();
    }
    let notes = actor.ask(Notes()).await.unwrap();
    assert!(
        notes.is_sorted() && notes.len() >= 1_333,
        "{} notes",
        notes.len()
    );
}

/// SEMANTICS 3.
async fn a_message_up_to_the_limit_passes_and_a_larger_one_does_not(pair: &Pair) {
    let actor = probe(pair).await;
    // A length of eight bytes comes before the content.
    let most = limits().message_bytes_max - 8;
    let bytes = Bulk((0..most).map(|n| (n * 31) as u8).collect());
    assert!(actor.ask(Echo(bytes.clone())).await.unwrap() == bytes);
    let error = actor.ask(Echo(Bulk(vec![0; most + 1]))).await.unwrap_err();
    assert!(matches!(error, AskError::TooLarge { .. }), "{error}");
    assert_eq!(error.effect(), Effect::No);
    let error = actor.ask(Fill(most + 1)).await.unwrap_err();
    assert!(matches!(error, AskError::BadReply { .. }), "{error}");
    assert_eq!(error.effect(), Effect::Yes);
    assert_eq!(actor.ask(Fill(3)).await, Ok(Bulk(vec![7; 3])));
}

/// SEMANTICS 11.
async fn an_ask_ends_at_its_deadline(pair: &Pair) {
    let actor = probe(pair).await;
    let (gate, late) = (Gate::new(pair), Gate::new(pair));
    let short = Duration::from_millis(40);
    let (held, queued) = tokio::join!(
        actor.ask(Hold(gate.number)).timeout(short),
        actor.ask(Hold(late.number)).timeout(short)
    );
    for error in [held.unwrap_err(), queued.unwrap_err()] {
        assert!(matches!(error, AskError::Timeout { .. }), "{error}");
        assert_eq!(error.effect(), Effect::Unknown);
    }
    // The cancellations were sent before this, on the same way.
    let other = probe(pair).await;
    assert_eq!(other.ask(Notes()).await.unwrap(), [0; 0]);
    gate.open().await;
    // The second was late before its turn came.
    assert_eq!(actor.ask(Notes()).await.unwrap(), [gate.number]);
}

/// SEMANTICS 11.
async fn a_dropped_ask_is_not_handled_and_gives_its_credit_back(pair: &Pair) {
    let actor = probe(pair).await;
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    for _ in 0..2 * limits().credit_messages {
        drop(begun(actor.ask(Note(3))).await);
    }
    // Each cancellation was sent before this, on the same way, and so has come.
    let other = probe(pair).await;
    assert_eq!(other.ask(Notes()).await.unwrap(), [0; 0]);
    gate.open().await;
    assert_eq!(held.await, Ok(1));
    assert_eq!(actor.ask(Notes()).await.unwrap(), [gate.number]);
}

/// SEMANTICS 1.
async fn who_waits_for_credit_is_not_overtaken(pair: &Pair) {
    let (actor, other) = (probe(pair).await, probe(pair).await);
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    let credit = limits().credit_messages;
    let mut queued = vec![];
    for _ in 1..credit {
        queued.push(begun(actor.ask(Note(0))).await);
    }
    let waiting = begun(actor.ask(Note(1))).await;
    gate.open().await;
    let handled = async || {
        let views = actors_at_b(pair).await;
        let done = |view: &ActorView| view.id == actor.id() && view.handled >= u64::from(credit);
        views.iter().any(done).then_some(())
    };
    eventually(handled).await;
    // All answers are here when one that was sent after them is.
    other.ask(Notes()).await.unwrap();
    let later = async {
        held.await.unwrap();
        for asked in queued {
            asked.await.unwrap();
        }
        actor.ask(Note(2)).await.unwrap();
    };
    let ((), waited) = tokio::join!(later, waiting);
    waited.unwrap();
    assert!(actor.ask(Notes()).await.unwrap().ends_with(&[1, 2]));
}

/// SEMANTICS 4.
async fn all_credit_of_tells_is_back_when_nothing_is_queued(pair: &Pair) {
    let actor = probe(pair).await;
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    // Fewer tells than are credited at a time, and an ask behind them.
    actor.tell(Note(0)).await.unwrap();
    let last = begun(actor.ask(Note(1))).await;
    gate.open().await;
    held.await.unwrap();
    last.await.unwrap();
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    for note in 1..u64::from(limits().credit_messages) {
        let told = actor.tell(Note(note)).timeout(Duration::from_secs(5)).await;
        told.unwrap();
    }
    gate.open().await;
    held.await.unwrap();
}

/// SEMANTICS 4, 24.
async fn a_slow_actor_holds_up_nobody_else(pair: &Pair) {
    let (slow, quick) = (probe(pair).await, probe(pair).await);
    let gate = Gate::new(pair);
    let held = begun(slow.ask(Hold(gate.number))).await;
    gate.entered().await;
    let mut sent = 0;
    let error = loop {
        match slow.tell(Note(sent)).now() {
            Ok(()) => sent += 1,
            Err(error) => break error.error,
        }
        assert!(
            sent < u64::from(limits().credit_messages),
            "{sent} were accepted"
        );
    };
    assert!(matches!(error, AskError::Full { .. }), "{error}");
    let waiting = slow
        .tell(Note(sent))
        .timeout(Duration::from_millis(30))
        .await
        .unwrap_err();
    assert!(matches!(waiting.error, AskError::Full { .. }) && waiting.message.is_some());
    for n in 0..100 {
        quick
            .ask(Note(n))
            .timeout(Duration::from_secs(10))
            .await
            .unwrap();
    }
    gate.open().await;
    assert_eq!(held.await, Ok(1));
    slow.tell(Note(sent)).await.unwrap();
    let expected: Vec<_> = [gate.number].into_iter().chain(0..=sent).collect();
    assert_eq!(slow.ask(Notes()).await.unwrap(), expected);
}

/// SEMANTICS 14, 15.
async fn a_dead_actor_says_so(pair: &Pair) {
    let actor = probe(pair).await;
    actor.ask(Note(1)).await.unwrap();
    actor.stop().await.unwrap();
    let error = actor.ask(Note(2)).await.unwrap_err();
    assert!(
        matches!(&error, AskError::Dead(down) if down.reason == Reason::Stopped),
        "{error}"
    );
    assert_eq!(error.effect(), Effect::No);
    let down = actor.down().await;
    assert_eq!(down.reason, Reason::Stopped);
    // A tell has left before anybody here can know, and is counted where it comes.
    let before: u64 = at_b(pair, Order::DeadLetters).await;
    actor.tell(Note(3)).await.unwrap();
    eventually(async || {
        let now: u64 = at_b(pair, Order::DeadLetters).await;
        (now > before).then_some(())
    })
    .await;
    // The others live on.
    probe(pair).await.ask(Note(4)).await.unwrap();
}

/// SEMANTICS 13.
async fn an_unknown_method_is_refused(pair: &Pair) {
    let actor = probe(pair).await;
    let error = actor.ask(Unlisted()).await.unwrap_err();
    assert!(matches!(error, AskError::NoSuchMethod { .. }), "{error}");
    assert_eq!(error.effect(), Effect::No);
    actor.ask(Note(1)).await.unwrap();
}

/// SEMANTICS 9.
async fn a_panic_is_told_and_the_actor_restarts(pair: &Pair) {
    let actor = probe(pair).await;
    actor.ask(Note(1)).await.unwrap();
    let watched = begun(Box::pin(actor.down())).await;
    let error = actor.ask(Boom()).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    let AskError::Died(down) = error else {
        panic!("{error}")
    };
    assert!(matches!(&down.reason, Reason::Failed(failure) if failure.kind == FailureKind::Panic));
    // A new life without notes, behind the same reference; a fenced one knows the difference.
    assert_eq!(actor.ask(Notes()).await.unwrap(), [0; 0]);
    let stale = actor
        .fenced(down.incarnation)
        .ask(Notes())
        .await
        .unwrap_err();
    assert!(
        matches!(stale, AskError::Stale { current: 2, .. }),
        "{stale}"
    );
    let seen = watched.await;
    assert_eq!((seen.id, seen.incarnation), (down.id, down.incarnation));
}

/// SEMANTICS 17.
async fn a_stop_is_seen_by_whoever_watches(pair: &Pair) {
    let actor = probe(pair).await;
    let number = ProcessId::random().0;
    let (report, mut downs) = mpsc::unbounded_channel();
    DOWNS.lock().unwrap().insert(number, report);
    let watcher = pair.a.spawn::<Probe>(number).await.unwrap();
    watcher.ask(Watch(actor)).await.unwrap();
    let outside = begun(Box::pin(actor.down())).await;
    actor.stop().await.unwrap();
    let (inside, outside) = (downs.recv().await.unwrap(), outside.await);
    assert_eq!((inside.id, &inside.reason), (actor.id(), &Reason::Stopped));
    assert_eq!(inside, outside);
}

/// SEMANTICS 14.
async fn what_is_sent_after_a_stop_is_not_handled(pair: &Pair) {
    let at_b = probe(pair).await;
    let placed = pair.a.spawn::<Probe>(1).on_node("b").await.unwrap();
    for actor in [at_b, placed] {
        actor.ask(Note(1)).await.unwrap();
        let stop = begun(actor.stop()).await;
        let later = begun(actor.ask(Note(2))).await;
        stop.await.unwrap();
        // Its process may be gone as well, and the way to it.
        assert!(later.await.is_err(), "it was handled");
    }
}

/// SEMANTICS 16.
async fn names_are_known_on_both_sides(pair: &Pair) {
    let actor = probe(pair).await;
    let missing = pair.a.lookup::<Probe>("probe").await.unwrap_err();
    assert!(matches!(missing, NameError::NotFound(_)), "{missing}");
    at_b::<()>(pair, Order::Register(actor)).await;
    let found = eventually(async || pair.a.lookup::<Probe>("probe").await.ok()).await;
    assert_eq!(found, actor);
    found.ask(Note(1)).await.unwrap();
    let other = pair.a.spawn::<Probe>(2).await.unwrap();
    let taken = pair.a.register("probe", other).await.unwrap_err();
    assert!(matches!(taken, NameError::Taken { .. }), "{taken}");
    actor.stop().await.unwrap();
    eventually(async || pair.a.lookup::<Probe>("probe").await.is_err().then_some(())).await;
    pair.a.register("probe", other).await.unwrap();
}

/// SEMANTICS 10.
async fn a_lost_link_ends_what_is_under_way(pair: &Pair) {
    let actor = probe(pair).await;
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    let watched = begun(Box::pin(actor.down())).await;
    gate.entered().await;
    pair.set(Flow::Cut);
    let error = held.await.unwrap_err();
    assert!(matches!(error, AskError::LinkLost { .. }), "{error}");
    assert_eq!(error.effect(), Effect::Unknown);
    let down = watched.await;
    let Reason::Failed(failure) = &down.reason else {
        panic!("{down}")
    };
    assert_eq!(failure.kind, FailureKind::NodeLost);
    let error = actor.ask(Note(1)).await.unwrap_err();
    assert!(matches!(error, AskError::Unreachable(_)), "{error}");
    assert_eq!(error.effect(), Effect::No);
    gate.open().await;
}

/// SEMANTICS 10.
async fn a_lost_link_ends_the_wait_for_credit(pair: &Pair) {
    let actor = probe(pair).await;
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    let mut sent = 0;
    while actor.tell(Note(1)).now().is_ok() {
        sent += 1;
        assert!(sent < limits().credit_messages, "{sent} were accepted");
    }
    let waiting = begun(actor.ask(Note(2)).timeout(PATIENCE)).await;
    pair.set(Flow::Cut);
    let error = waiting.await.unwrap_err();
    assert!(matches!(error, AskError::Unreachable(_)), "{error}");
    assert!(held.await.is_err());
    gate.open().await;
}

/// SEMANTICS 3.
async fn an_ask_that_had_left_when_its_system_ends_may_have_been_handled(pair: &Pair) {
    let actor = probe(pair).await;
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    let ending = tokio::spawn({
        let a = pair.a.clone();
        async move { a.shutdown().await }
    });
    let error = held.await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    gate.open().await;
    ending.await.unwrap();
}

/// SEMANTICS 16.
async fn a_cut_wire_can_be_replaced(pair: &Pair) {
    let actor = probe(pair).await;
    at_b::<()>(pair, Order::Register(actor)).await;
    for n in 1..4 {
        let watched = begun(Box::pin(actor.down())).await;
        pair.set(Flow::Cut);
        watched.await;
        // Names of a node that is gone are gone as well.
        assert!(pair.a.lookup::<Probe>("probe").await.is_err());
        pair.set(Flow::Free);
        eventually(async || pair.join().await.ok()).await;
        let found = eventually(async || pair.a.lookup::<Probe>("probe").await.ok()).await;
        // A link that two sides make anew at once may be lost once more.
        eventually(async || found.ask(Note(n)).await.ok()).await;
        let mut notes = actor.ask(Notes()).await.unwrap();
        notes.dedup();
        assert_eq!(notes, (1..=n).collect::<Vec<_>>());
    }
}

/// Longer than a connection may be silent, and shorter than a link may.
const OUTAGE: Duration = Duration::from_millis(1_600);

/// SEMANTICS 1, 2, 7.
async fn an_outage_loses_nothing(pair: &Pair) {
    let actor = probe(pair).await;
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    pair.set(Flow::Cut);
    for n in 0..100 {
        actor.tell(Note(n)).await.unwrap();
    }
    gate.open().await;
    Clock::sleep(OUTAGE).await;
    pair.set(Flow::Free);
    assert_eq!(held.await, Ok(1));
    let expected: Vec<_> = [gate.number].into_iter().chain(0..100).collect();
    assert_eq!(actor.ask(Notes()).await.unwrap(), expected);
    let link = link_to_b(pair);
    assert!(link.resumed > 0 && link.last_break.is_some(), "{link:?}");
    // All of it is acknowledged with the next beat.
    eventually(async || (link_to_b(pair).unacknowledged_bytes == 0).then_some(())).await;
}

/// The link to `b` as `a` sees it.
fn link_to_b(pair: &Pair) -> LinkView {
    let links = pair.a.admin().links();
    let to_b = |link: &LinkView| !link.is_worker && link.node == "b";
    links.into_iter().find(to_b).expect("the link is there")
}

async fn clocks_are_compared(pair: &Pair) {
    let compared = async || {
        let link = link_to_b(pair);
        Some((link.clock_offset?, link.offset_error?, link.round_trip?))
    };
    let (offset, error, round_trip) = eventually(compared).await;
    assert!(round_trip > Duration::ZERO && round_trip < Duration::from_secs(1));
    assert!(error >= round_trip / 2);
    if let Other::Here(_) = &pair.b {
        // It is one clock.
        let offset = Duration::from_nanos(offset.unsigned_abs());
        assert!(offset <= error, "{offset:?} apart, said {error:?} at most");
    }
}

/// SEMANTICS 7.
async fn another_join_leaves_the_link_as_it_is(pair: &Pair) {
    let actor = probe(pair).await;
    let gate = Gate::new(pair);
    let held = begun(actor.ask(Hold(gate.number))).await;
    gate.entered().await;
    let peer = eventually(async || pair.join().await.ok()).await;
    // Also while it has no connection.
    pair.set(Flow::Cut);
    Clock::sleep(OUTAGE).await;
    pair.set(Flow::Free);
    assert_eq!(eventually(async || pair.join().await.ok()).await, peer);
    gate.open().await;
    assert_eq!(held.await, Ok(1));
}

/// SEMANTICS 25.
async fn control_overtakes_a_queue_of_large_messages(pair: &Pair) {
    let (actor, other) = (probe(pair).await, probe(pair).await);
    pair.set(Flow::Slow);
    let megabyte = Bulk(vec![1; 1 << 20]);
    let mut echoes = vec![];
    for _ in 0..6 {
        echoes.push(begun(actor.ask(Echo(megabyte.clone()))).await);
    }
    // A question to the other node, while six megabytes lie before it.
    other.stop().await.unwrap();
    let handled: u64 = actors_at_b(pair)
        .await
        .iter()
        .filter(|view| view.id == actor.id())
        .map(|view| view.handled)
        .sum();
    assert!(handled < 6, "all {handled} messages came before the stop");
    pair.set(Flow::Free);
    for echo in echoes {
        assert!(echo.await.unwrap() == megabyte);
    }
}

async fn an_actor_is_placed_on_the_other_node(pair: &Pair) {
    let actor = pair.a.spawn::<Probe>(1).on_node("b").await.unwrap();
    let process = pair.a.admin().process_of(actor).unwrap();
    let views = actors_at_b(pair).await;
    assert!(
        views
            .iter()
            .any(|view| view.id == actor.id() && view.process == process)
    );
    // Many messages right behind the spawn, and a panic in between.
    let second = pair.a.spawn::<Probe>(2).on_node("b").start().unwrap();
    for n in 0..500 {
        second.tell(Note(n)).await.unwrap();
    }
    assert_eq!(
        second.ask(Notes()).await.unwrap(),
        (0..500).collect::<Vec<_>>()
    );
    assert!(second.ask(Boom()).await.is_err());
    assert_eq!(second.ask(Notes()).await.unwrap(), [0; 0]);
    // Its home has credit like everybody else.
    let gate = Gate::new(pair);
    let held = begun(second.ask(Hold(gate.number))).await;
    gate.entered().await;
    let mut sent = 0;
    while second.tell(Note(0)).now().is_ok() {
        sent += 1;
        assert!(sent < limits().credit_messages, "{sent} were accepted");
    }
    gate.open().await;
    assert_eq!(held.await, Ok(2));
    // Actors of `b` reach it as well.
    at_b::<()>(pair, Order::Note(actor, 9)).await;
    assert_eq!(actor.ask(Notes()).await.unwrap(), [9]);
    // Two share a worker process of the other node by its name.
    let shared = async |n| {
        let spawn = pair.a.spawn::<Probe>(n).on_node("b").in_worker("pool");
        pair.a.admin().process_of(spawn.await.unwrap()).unwrap()
    };
    assert_eq!(shared(3).await, shared(4).await);
    // The node is given its worker back.
    actor.stop().await.unwrap();
    eventually(async || {
        let views = actors_at_b(pair).await;
        views
            .iter()
            .all(|view| view.process != process)
            .then_some(())
    })
    .await;
    let error = pair
        .a
        .spawn::<Probe>(1)
        .on_node("nowhere")
        .await
        .unwrap_err();
    let SpawnError::NotPlaced(why) = &error else {
        panic!("{error}")
    };
    assert!(
        why.contains("`nowhere`") && why.contains("`a` (this one), `b`"),
        "{why}"
    );
}

/// SEMANTICS 8.
async fn an_actor_on_a_lost_node_is_reported_and_placed_again(pair: &Pair) {
    let actor = pair
        .a
        .spawn::<Probe>(1)
        .on_node("b")
        .restart(Restart::Temporary)
        .await
        .unwrap();
    actor.ask(Note(1)).await.unwrap();
    pair.set(Flow::Cut);
    let down = actor.down().await;
    let Reason::Failed(failure) = &down.reason else {
        panic!("{down}")
    };
    assert_eq!(failure.kind, FailureKind::NodeLost);
    assert!(failure.message.contains("node `b`"), "{failure}");
    // Nobody handles messages for it on the other node: its supervisor is gone.
    eventually(async || actors_at_b(pair).await.is_empty().then_some(())).await;
    pair.set(Flow::Free);
    eventually(async || pair.join().await.ok()).await;
    let again = pair.a.spawn::<Probe>(2).on_node("b").await.unwrap();
    again.ask(Note(2)).await.unwrap();
}

/// SEMANTICS 26.
async fn garbage_on_the_wire_reaches_no_actor(pair: &Pair) {
    let actor = probe(pair).await;
    actor.ask(Note(1)).await.unwrap();
    let near = pair.a.spawn::<Probe>(1).await.unwrap();
    pair.set(Flow::Damaged);
    // Over QUIC, packets that fail their check are lost, and the silence is noticed in time.
    // Elsewhere the side that reads garbage hangs up.
    let outcome = actor.ask(Note(2)).timeout(Duration::from_secs(20)).await;
    assert!(
        matches!(
            outcome,
            // A beat may have been damaged before this was sent.
            Err(AskError::LinkLost { .. } | AskError::Unreachable(_))
        ),
        "{outcome:?}"
    );
    near.ask(Note(3)).await.unwrap();
    let notes: Vec<u64> = at_b(pair, Order::Notes(actor)).await;
    assert_eq!(notes, [1]);
    pair.set(Flow::Free);
    eventually(async || pair.join().await.ok()).await;
    actor.ask(Note(4)).await.unwrap();
}

// ---- processes that start, leave and die ----

/// Becomes a worker when this test binary is started as one.
#[test]
fn worker_entry() {
    job().serve_if_worker();
}

/// Becomes the other node when this test binary is started as one.
#[test]
fn peer_entry() {
    peer::serve(job(), workers(), obey);
}

fn workers() -> WorkerMode {
    let worker = again::worker(HERE);
    WorkerMode::Processes(worker)
}

async fn node_a(cluster: &ClusterIdentity, limits: Limits) -> System {
    let builder = System::builder()
        .job(job())
        .limits(limits)
        .workers(workers());
    builder
        .listen(loopback(), cluster.issue("a").unwrap())
        .start()
        .await
        .unwrap()
}

/// Limits under which nobody notices a loss by silence.
fn patient() -> Limits {
    let mut limits = limits();
    limits.link_idle_timeout = PATIENCE;
    limits
}

/// Runs a test in the scope of a node `a`; it also gets the identity of a node `b`.
async fn with_node(limits: Limits, test: impl AsyncFnOnce(&System, &NodeIdentity)) {
    let work = async {
        let cluster = ClusterIdentity::generate().unwrap();
        let system = node_a(&cluster, limits).await;
        let identity = cluster.issue("b").unwrap();
        system.scope(test(&system, &identity)).await;
        system.shutdown().await;
    };
    Clock::timeout(PATIENCE, work)
        .await
        .expect("the test ends in time");
}

/// A process of node `b`, joined, and a probe there.
async fn joined(system: &System, identity: &NodeIdentity) -> (Peer, Ref<Probe>) {
    let peer = Peer::start(HERE, identity, Workers::Processes);
    system.join(peer.address()).await.unwrap();
    let actor = peer.order(&Order::Probe).await;
    (peer, actor)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_is_noticed_with_all_it_hosts() {
    with_node(limits(), async |system, identity| {
        // The second round: the node comes back as another process.
        for round in 0..2 {
            let (mut peer, actor) = joined(system, identity).await;
            assert_eq!(actor.ask(Pid()).await.unwrap(), peer.pid(), "round {round}");
            // An actor of ours on that node lives in a process of its own there.
            let placed = system
                .spawn::<Probe>(2)
                .on_node("b")
                .restart(Restart::Temporary)
                .await
                .unwrap();
            let worker = placed.ask(Pid()).await.unwrap();
            assert!(worker != peer.pid() && worker != std::process::id());

            let number = ProcessId::random().0;
            let (report, mut downs) = mpsc::unbounded_channel();
            DOWNS.lock().unwrap().insert(number, report);
            let watcher = system.spawn::<Probe>(number).await.unwrap();
            watcher.ask(Watch(actor)).await.unwrap();
            let held: Vec<_> = [
                begun(actor.ask(Hold(1)).timeout(PATIENCE)).await,
                begun(placed.ask(Hold(1)).timeout(PATIENCE)).await,
            ]
            .into();
            let killed = Clock::now();
            peer.kill();
            for ask in held {
                let error = ask.await.unwrap_err();
                assert!(matches!(error, AskError::LinkLost { .. }), "{error}");
                assert_eq!(error.effect(), Effect::Unknown);
            }
            for down in [downs.recv().await.unwrap(), placed.down().await] {
                let Reason::Failed(failure) = &down.reason else {
                    panic!("{down}")
                };
                assert_eq!(failure.kind, FailureKind::NodeLost, "{failure}");
            }
            let noticed = Clock::now().since(killed);
            let most = limits().link_idle_timeout + Duration::from_secs(1);
            assert!(noticed < most, "{noticed:?}");
            let error = actor.ask(Pid()).await.unwrap_err();
            assert!(matches!(error, AskError::Unreachable(_)), "{error}");
            // The workers of a node die with it.
            eventually(async || {
                let status = std::fs::read_to_string(format!("/proc/{worker}/stat"));
                status
                    .map_or(true, |status| status.contains(") Z "))
                    .then_some(())
            })
            .await;
        }
    })
    .await;
}

/// SEMANTICS 7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_known_everywhere_in_time() {
    let work = async {
        let cluster = ClusterIdentity::generate().unwrap();
        let mut nodes = vec![];
        for name in ["a", "c", "d"] {
            let builder = System::builder().job(job()).limits(limits());
            let builder = builder.workers(WorkerMode::InProcess);
            let identity = cluster.issue(name).unwrap();
            nodes.push(builder.listen(loopback(), identity).start().await.unwrap());
        }
        let (mut peer, actor) = joined(&nodes[0], &cluster.issue("b").unwrap()).await;
        nodes[1].join(peer.address()).await.unwrap();
        // Hears of it from the first alone.
        nodes[2].join(nodes[0].address().unwrap()).await.unwrap();
        let mut watches = vec![];
        for node in &nodes {
            let ask = async || actor.ask(Note(1)).await.ok();
            node.scope(eventually(ask)).await;
            let watch = Box::pin(node.scope(async { actor.down().await }));
            watches.push(begun(watch).await);
        }
        // The watches were sent before this.
        for node in &nodes {
            node.scope(actor.ask(Note(2))).await.unwrap();
        }
        let killed = Clock::now();
        peer.kill();
        for watch in watches {
            let down = watch.await;
            let Reason::Failed(failure) = &down.reason else {
                panic!("{down}")
            };
            assert_eq!(failure.kind, FailureKind::NodeLost, "{failure}");
        }
        let noticed = Clock::now().since(killed);
        let most = limits().link_idle_timeout + Duration::from_secs(1);
        assert!(noticed < most, "{noticed:?}");
        for node in nodes {
            node.shutdown().await;
        }
    };
    Clock::timeout(PATIENCE, work)
        .await
        .expect("the test ends in time");
}

/// SEMANTICS 7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_again_where_it_was_is_noticed_at_once() {
    with_node(patient(), async |system, identity| {
        let (mut peer, actor) = joined(system, identity).await;
        let held = begun(actor.ask(Hold(1)).timeout(PATIENCE)).await;
        peer.kill();
        let killed = Clock::now();
        let again = Peer::start_at(HERE, peer.address(), identity, Workers::Processes);
        let error = held.await.unwrap_err();
        assert!(
            matches!(&error, AskError::LinkLost { why, .. } if why.contains("started again")),
            "{error}"
        );
        let noticed = Clock::now().since(killed);
        assert!(noticed < Duration::from_secs(5), "{noticed:?}");
        // It can be joined like any other.
        system.join(again.address()).await.unwrap();
        let actor: Ref<Probe> = again.order(&Order::Probe).await;
        assert_eq!(actor.ask(Pid()).await.unwrap(), again.pid());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_at_once_takes_its_old_links_place() {
    with_node(patient(), async |system, identity| {
        let (mut peer, actor) = joined(system, identity).await;
        let held = begun(actor.ask(Hold(1)).timeout(PATIENCE)).await;
        peer.kill();
        let (peer, actor) = joined(system, identity).await;
        let error = held.await.unwrap_err();
        assert!(
            matches!(&error, AskError::LinkLost { why, .. } if why.contains("again")),
            "{error}"
        );
        assert_eq!(actor.ask(Pid()).await.unwrap(), peer.pid());
    })
    .await;
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_another_cluster_is_refused() {
    with_node(limits(), async |system, _| {
        let theirs = ClusterIdentity::generate().unwrap();
        let identity = theirs.issue("b").unwrap();
        let peer = Peer::start(HERE, &identity, Workers::Processes);
        let error = system.join(peer.address()).await.unwrap_err();
        assert!(matches!(error, SystemError::Security(_)), "{error}");
        assert!(error.to_string().contains("another cluster"), "{error}");
        // One of their own still gets in.
        let friend = node_a(&theirs, limits()).await;
        friend.join(peer.address()).await.unwrap();
        friend.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_in_order_is_noticed_at_once() {
    with_node(patient(), async |system, identity| {
        let (mut peer, actor) = joined(system, identity).await;
        let watched = begun(Box::pin(actor.down())).await;
        actor.ask(Note(1)).await.unwrap();
        peer.leave().await;
        let down = watched.await;
        match &down.reason {
            Reason::Stopped | Reason::Sibling => {}
            Reason::Failed(failure) => assert_eq!(failure.kind, FailureKind::NodeLost, "{down}"),
            _ => panic!("{down}"),
        }
        eventually(async || {
            matches!(actor.ask(Note(2)).await, Err(AskError::Unreachable(_))).then_some(())
        })
        .await;
        let stopped = actor.stop().await;
        assert_eq!(stopped, Err(AskError::Unreachable(actor.id())));
        assert!(peer.wait());
    })
    .await;
}

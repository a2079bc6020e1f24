//! Traces of asks, tells and handlers that are left to look at: spans in the ring, and the logs of
//! handlers.

use std::io::Write;
use std::sync::{Arc, Mutex};

use odeon::telemetry::Label;
use odeon::trace::{FOLLOWS, Outcome, Span, SpanKind};
use odeon::{AskError, Context, Reason, Ref, System, WorkerMode};
use odeon_tests::again;
use tokio::sync::Semaphore;

use crate::found;

/// Opens nothing: whoever waits here waits until it is dropped.
static SHUT: Semaphore = Semaphore::const_new(0);

struct Near;

#[odeon::actor(name = "spans.Near")]
impl Near {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    fn touch(&mut self) {
        tracing::info!("touched");
    }

    #[handler]
    fn rest(&mut self) {}

    #[handler]
    async fn wait(&mut self) {
        let _never = SHUT.acquire().await;
    }
}

struct Far;

#[odeon::actor(name = "spans.Far")]
impl Far {
    fn start(_args: ()) -> Self {
        Self
    }

    /// Tells itself to go on, so many times.
    #[handler]
    async fn go_on(&mut self, times: u32, cx: &mut Context<Self>) {
        if let Some(times) = times.checked_sub(1) {
            cx.me().tell(GoOn { times }).await.unwrap();
        }
    }

    /// Tells the other to tell it, so many times.
    #[handler]
    async fn pass_on(&mut self, times: u32, other: Ref<Self>, cx: &mut Context<Self>) {
        if let Some(times) = times.checked_sub(1) {
            let back = PassOn {
                times,
                other: cx.me(),
            };
            other.tell(back).await.unwrap();
        }
    }

    /// Asks back over the link that the message came by.
    #[handler]
    async fn touch_back(&mut self, near: Ref<Near>) -> Result<u32, AskError> {
        near.ask(Touch).await?;
        Ok(std::process::id())
    }
}

fn job() -> odeon::Job {
    odeon::job![Near, Far]
}

#[test]
fn worker_entry() {
    job().serve_if_worker();
}

fn one<'a>(spans: &'a [Span], kind: SpanKind, message: &str) -> &'a Span {
    let mut of_it = spans
        .iter()
        .filter(|span| span.kind == kind && span.message == message);
    let span = of_it.next().expect("such a span");
    assert_eq!(of_it.next(), None);
    span
}

/// SEMANTICS 39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_through_other_processes() {
    let worker = again::worker(module_path!());
    let system = System::builder()
        .job(job())
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap();
    let near = system.spawn::<Near>(()).await.unwrap();
    let far = system.spawn::<Far>(()).isolated().await.unwrap();
    let process = far.ask(TouchBack { near }).await.unwrap().unwrap();
    assert_ne!(process, std::process::id());
    near.tell(Touch).await.unwrap();
    // Handled after the tell.
    near.ask(Rest).await.unwrap();

    let spans = system.admin().spans();
    let asked = one(&spans, SpanKind::Ask, "TouchBack");
    assert_eq!((asked.parent, asked.outcome), (0, Outcome::Ok));
    let touched: Vec<_> = spans
        .iter()
        .filter(|span| span.kind == SpanKind::Handle && span.message == "Touch")
        .collect();
    let back = touched[0];
    assert_eq!(back.context.trace_id, asked.context.trace_id);
    // Its parent is the ask of the other process, which is a child of the handler there.
    assert!(back.parent != 0 && back.parent != asked.context.span_id);
    assert!(asked.queued <= back.started && back.ended <= asked.ended);
    // A tell is the parent of what it caused, and the root of another trace.
    let told = one(&spans, SpanKind::Tell, "Touch");
    assert_eq!((touched[1].parent, told.parent), (told.context.span_id, 0));
    assert_ne!(told.context.trace_id, asked.context.trace_id);
    system.shutdown().await;
}

/// The spans of handlers of a message, once there are so many, in the order in which they ran.
async fn handled(system: &System, message: &str, count: usize) -> Vec<Span> {
    found("the spans of handlers", async || {
        let mut spans = system.admin().spans();
        spans.retain(|it| it.kind == SpanKind::Handle && it.message == message);
        (spans.len() == count).then_some(spans)
    })
    .await
}

/// SEMANTICS 39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_ends_where_actors_go_on_for_ever() {
    let system = System::local().await.unwrap();
    let [one, other] = [
        system.spawn::<Far>(()).await.unwrap(),
        system.spawn::<Far>(()).await.unwrap(),
    ];
    // Each turn that an actor gives itself is a trace, which says what it follows.
    one.tell(GoOn { times: 9 }).await.unwrap();
    let turns = handled(&system, "GoOn", 10).await;
    let spans = system.admin().spans();
    for pair in turns.windows(2) {
        let [before, after] = pair else {
            unreachable!()
        };
        assert_ne!(before.context.trace_id, after.context.trace_id);
        let is_tell = |span: &&Span| span.context.span_id == after.parent;
        let tell = spans.iter().find(is_tell).unwrap();
        assert_eq!(tell.parent, 0);
        let follows = Label::from(before.context.traceparent());
        assert_eq!(tell.labels, [(FOLLOWS.into(), follows)]);
    }
    // What others tell is of the trace, but only so far.
    one.tell(PassOn { times: 99, other }).await.unwrap();
    let mut runs: Vec<usize> = vec![];
    let mut last = None;
    for turn in handled(&system, "PassOn", 100).await {
        let trace = Some(turn.context.trace_id);
        match trace == last {
            true => *runs.last_mut().unwrap() += 1,
            false => runs.push(1),
        }
        last = trace;
    }
    assert_eq!(runs, [31, 31, 31, 7]);
    system.shutdown().await;
}

/// SEMANTICS 39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_leaves_a_span_as_well() {
    let system = System::local().await.unwrap();
    let actor = system.spawn::<Near>(()).await.unwrap();
    let short = std::time::Duration::from_millis(1);
    let error = actor.ask(Wait).timeout(short).await.unwrap_err();
    assert!(matches!(error, AskError::Timeout { .. }), "{error}");
    let spans = system.admin().spans();
    assert_eq!(one(&spans, SpanKind::Ask, "Wait").outcome, Outcome::Failed);

    let mut dropped = Box::pin(actor.ask(Touch).into_future());
    let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(dropped.as_mut().poll(cx))).await;
    assert!(poll.is_pending());
    drop(dropped);
    let spans = system.admin().spans();
    assert_eq!(one(&spans, SpanKind::Ask, "Touch").outcome, Outcome::Failed);

    let other = system.spawn::<Far>(()).await.unwrap();
    other.stop().await.unwrap();
    let error = other.ask(TouchBack { near: actor }).await.unwrap_err();
    assert!(matches!(&error, AskError::Dead(down) if down.reason == Reason::Stopped));
    let refused = other.tell(TouchBack { near: actor }).await;
    assert!(refused.is_err());
    let spans = system.admin().spans();
    for kind in [SpanKind::Ask, SpanKind::Tell] {
        assert_eq!(one(&spans, kind, "TouchBack").outcome, Outcome::Failed);
    }
    system.shutdown().await;
}

/// The text that a subscriber wrote.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// SEMANTICS 39. The subscriber is that of the whole process, which the test has to itself: with one of
/// this thread alone, a neighbouring test that is first at a callsite would switch it off for all.
#[tokio::test]
async fn the_log_of_a_handler_says_where_it_comes_from() {
    let test = "the_log_of_a_handler_says_where_it_comes_from";
    if !again::alone(module_path!(), test) {
        return;
    }
    let written = Written::default();
    let to = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || to.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test sets one");
    let system = System::local().await.unwrap();
    let actor = system.spawn::<Near>(()).await.unwrap();
    actor.ask(Touch).await.unwrap();
    let spans = system.admin().spans();
    let handled = one(&spans, SpanKind::Handle, "Touch");
    system.shutdown().await;

    let written = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let trace = format!("trace={}", handled.context.traceparent());
    let line = written
        .lines()
        .find(|line| line.contains("touched") && line.contains(&trace))
        .unwrap_or_else(|| panic!("nothing was logged of {trace}: {written}"));
    for part in [
        format!("actor={}", actor.id()),
        "method=\"Touch\"".to_owned(),
    ] {
        assert!(line.contains(&part), "{part} is not in: {line}");
    }
}

//! Joins over streams of one's own whose peer leaves, or whose link ends, before both sides have it. Time
//! is virtual.

use std::future::{pending, ready};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use odeon::{Clock, ProcessId, System, SystemError, WorkerMode};
use odeon_tests::wires::limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::PATIENCE;

/// Both halves of a stream as a dialler gives them.
type Halves = (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>);

/// What the other side of the streams has given, in order.
type Answers = Arc<Mutex<Vec<Result<ProcessId, SystemError>>>>;

async fn node(name: &str) -> System {
    let builder = System::builder().limits(limits()).node(name);
    let builder = builder.workers(WorkerMode::InProcess);
    builder.start().await.unwrap()
}

/// Has `b` take in one end of a stream; the other end is given.
fn taken_in(b: &System, answers: &Answers) -> DuplexStream {
    let (near, far) = duplex(64 << 10);
    let (b, answers) = (b.clone(), Arc::clone(answers));
    drop(tokio::spawn(async move {
        let (reader, writer) = split(far);
        let answer = b.admin().accept_stream(reader, writer).await;
        answers.lock().unwrap().push(answer);
    }));
    near
}

/// Passes the first words of both sides, one each, and then those of the dialler alone, until it is told
/// to pass all.
async fn half_open(near: DuplexStream, far: DuplexStream, mut all: watch::Receiver<bool>) {
    let (mut from_a, mut to_a) = split(near);
    let (mut from_b, mut to_b) = split(far);
    let forth = async {
        let _ended = tokio::io::copy(&mut from_a, &mut to_b).await;
        let _ended = to_b.shutdown().await;
    };
    let back = async {
        let _ended = pass_once(&mut from_b, &mut to_a).await;
        if all.wait_for(|all| *all).await.is_err() {
            pending::<()>().await;
        }
        let _ended = tokio::io::copy(&mut from_b, &mut to_a).await;
        let _ended = to_a.shutdown().await;
    };
    tokio::join!(forth, back);
}

/// Passes what comes next.
async fn pass_once(
    from: &mut ReadHalf<DuplexStream>,
    to: &mut WriteHalf<DuplexStream>,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    let read = from.read(&mut bytes).await?;
    to.write_all(&bytes[..read]).await
}

/// Has `a` join `b` over a stream that says nothing of `b` after its hello until it is told to; nobody can
/// be dialled a second time. Returns when `b` has the link.
async fn half_joined(
    a: &System,
    b: &System,
    all: &watch::Sender<bool>,
) -> JoinHandle<Result<ProcessId, SystemError>> {
    let answers = Answers::default();
    let first = Mutex::new(Some((taken_in(b, &answers), all.subscribe())));
    let dial = move || {
        ready(match first.lock().unwrap().take() {
            Some((far, all)) => {
                let (own, near) = duplex(64 << 10);
                drop(tokio::spawn(half_open(near, far, all)));
                Ok(split(own))
            }
            None => Err(io::ErrorKind::HostUnreachable.into()),
        })
    };
    let joining = a.clone();
    let joining = tokio::spawn(async move { joining.admin().join_over(dial).await });
    let linked = async {
        // Time goes on while all sleep.
        while answers.lock().unwrap().is_empty() {
            Clock::sleep(Duration::from_millis(1)).await;
        }
    };
    let linked = Clock::timeout(PATIENCE, linked).await;
    linked.expect("b has the link");
    answers.lock().unwrap().remove(0).unwrap();
    assert_eq!(b.admin().links().len(), 1);
    assert!(!joining.is_finished(), "a has heard nothing of the link");
    joining
}

/// The words with which a join was refused.
async fn refused(joining: JoinHandle<Result<ProcessId, SystemError>>) -> String {
    let joined = Clock::timeout(PATIENCE, joining).await;
    match joined.expect("a join ends").unwrap() {
        Err(SystemError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_leaves_before_it_says_hello_leaves_no_link() {
    let a = node("a").await;
    let dialled = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dialled);
    let dial = move || {
        counted.fetch_add(1, SeqCst);
        let (own, mut far) = duplex(64 << 10);
        drop(tokio::spawn(async move {
            // It hears the greeting and is gone.
            let _hello = far.read_u8().await;
        }));
        ready(Ok(split(own)))
    };
    let joining = a.clone();
    let joining = tokio::spawn(async move { joining.admin().join_over(dial).await });
    let why = refused(joining).await;
    assert_eq!(why, "it hung up");
    assert_eq!((dialled.load(SeqCst), a.admin().links().len()), (1, 0));
    a.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_join_whose_peer_leaves_in_order_during_the_greeting_is_refused() {
    let (a, b) = (node("a").await, node("b").await);
    let (all, _) = watch::channel(false);
    let joining = half_joined(&a, &b, &all).await;
    let leaving = tokio::spawn(b.shutdown());
    all.send_replace(true);
    let why = refused(joining).await;
    assert_eq!(why, "the other side is leaving");
    leaving.await.unwrap();
    assert!(a.admin().links().is_empty());
    a.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_join_whose_peer_falls_silent_during_the_greeting_is_refused_in_time() {
    let (a, b) = (node("a").await, node("b").await);
    let (all, _) = watch::channel(false);
    let begun = Clock::now();
    let joining = half_joined(&a, &b, &all).await;
    let why = refused(joining).await;
    assert!(why.contains("silent for"), "{why}");
    let took = Clock::now().since(begun);
    assert!(took < 2 * limits().link_idle_timeout, "{took:?}");
    assert!(a.admin().links().is_empty());
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_join_is_refused_when_its_own_side_ends() {
    let (a, b) = (node("a").await, node("b").await);
    let (all, _) = watch::channel(false);
    let joining = half_joined(&a, &b, &all).await;
    a.shutdown().await;
    refused(joining).await;
    b.shutdown().await;
}

/// The stream breaks before the other side hears that it carries the link: there, that link never was.
#[tokio::test(start_paused = true)]
async fn a_link_that_the_other_side_has_never_had_is_refused_there_and_made_anew() {
    let (a, b) = (node("a").await, node("b").await);
    let answers = Answers::default();
    let (far_side, heard) = (b.clone(), Arc::clone(&answers));
    let dialled = AtomicUsize::new(0);
    let dial = move || {
        let mut far = taken_in(&far_side, &heard);
        if dialled.fetch_add(1, SeqCst) > 0 {
            return ready(Ok(split(far)));
        }
        let (own, mut near) = duplex(64 << 10);
        drop(tokio::spawn(async move {
            // Both have said hello, and what is said then is lost.
            greeting(&mut near, &mut far).await.unwrap();
            near.read_u8().await.unwrap();
        }));
        ready(Ok::<Halves, io::Error>(split(own)))
    };
    let joined = Clock::timeout(PATIENCE, a.admin().join_over(dial)).await;
    assert_eq!(joined.unwrap().unwrap(), b.process());
    let views = [a.admin().links(), b.admin().links()];
    assert_eq!(views.map(|it| it.len()), [1, 1]);
    let mut told = answers
        .lock()
        .unwrap()
        .iter()
        .map(|it| match it {
            Ok(process) => format!("{process}"),
            Err(error) => error.to_string(),
        })
        .collect::<Vec<_>>();
    assert_eq!(told.pop(), Some(a.process().to_string()), "{told:?}");
    assert!(told[0].contains("it hung up"), "{told:?}");
    assert!(
        told[1..]
            .iter()
            .all(|it| it.contains("that session is not here"))
            && told.len() > 1,
        "{told:?}"
    );
    a.shutdown().await;
    b.shutdown().await;
}

/// Passes the hello of each side.
async fn greeting(near: &mut DuplexStream, far: &mut DuplexStream) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    let read = near.read(&mut bytes).await?;
    far.write_all(&bytes[..read]).await?;
    let read = far.read(&mut bytes).await?;
    near.write_all(&bytes[..read]).await
}

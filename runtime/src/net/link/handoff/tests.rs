//! A stream that stops anywhere, and the one that goes on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::io::AsyncWrite;

use super::super::Writer;
use super::*;
use crate::base::id::ActorId;
use crate::net::wire::{Chunk, Frame};

/// A stream that takes so many bytes at once, in turn, and none where that is 0.
struct Narrow {
    taken: Arc<Mutex<Vec<u8>>>,
    widths: Vec<usize>,
    next: usize,
}

impl AsyncWrite for Narrow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let width = self.widths[self.next % self.widths.len()];
        self.next += 1;
        if width == 0 {
            return Poll::Pending;
        }
        let n = width.min(bytes.len());
        self.taken.lock().extend_from_slice(&bytes[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A stream, and the bytes that it has taken.
fn stream(widths: &[usize]) -> (Writer, Arc<Mutex<Vec<u8>>>) {
    let taken = Arc::default();
    let writer = Narrow {
        taken: Arc::clone(&taken),
        widths: widths.to_vec(),
        next: 0,
    };
    (Box::new(writer), taken)
}

/// A step of a test on a pipe.
#[derive(Clone, Debug)]
enum Step {
    Control { alone: bool },
    Call { alone: bool },
    Bulk { bytes: usize, alone: bool },
    Write,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        any::<bool>().prop_map(|alone| Step::Control { alone }),
        any::<bool>().prop_map(|alone| Step::Call { alone }),
        (0..5000usize, any::<bool>()).prop_map(|(bytes, alone)| Step::Bulk { bytes, alone }),
        Just(Step::Write),
        Just(Step::Write),
    ];
    proptest::collection::vec(step, 0..40)
}

fn numbered(n: u64) -> Frame {
    let id = ActorId {
        home: ProcessId(1),
        serial: n,
    };
    Frame::Cancel {
        call: n,
        from: ProcessId(2),
        to: id,
    }
}

fn bulk(n: u64, bytes: usize) -> Chunk {
    Chunk {
        transfer: n,
        to: ProcessId(3),
        index: 0,
        checksum: 0,
        bytes: Bytes::from(vec![n as u8; bytes]),
    }
}

/// Does the steps, and gives the frames that were pushed.
fn act(pipe: &Pipe, steps: &[Step], first: u64) -> Vec<Frame> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut pushed = vec![];
    for (n, step) in (first..).zip(steps) {
        match *step {
            Step::Control { alone } => {
                pipe.push(alone, |queue| numbered(n).encode(&mut queue.control));
                pushed.push(numbered(n));
            }
            Step::Call { alone } => {
                pipe.push(alone, |queue| numbered(n).encode(&mut queue.calls));
                pushed.push(numbered(n));
            }
            Step::Bulk { bytes, alone } => {
                pipe.push(alone, |queue| queue.bulk.push_back(bulk(n, bytes)));
                pushed.push(Frame::Chunk(bulk(n, bytes)));
            }
            Step::Write => {
                let _ = pipe.poll_batch(&mut cx);
            }
        }
    }
    pushed
}

/// Writes until nothing waits.
fn drain(pipe: &Pipe) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut written = || matches!(pipe.poll_batch(&mut cx), Poll::Ready(Ok(false)));
    assert!((0..1_000_000).any(|_| written()), "something always waits");
}

/// The whole frames at the front, and how many bytes they are.
fn frames(bytes: &[u8]) -> (Vec<Frame>, usize) {
    let mut buffer = BytesMut::from(bytes);
    let mut frames = vec![];
    while let Some(frame) = Frame::decode(&mut buffer, 1 << 20).expect("bytes of frames") {
        frames.push(frame);
    }
    (frames, bytes.len() - buffer.len())
}

fn sorted(mut frames: Vec<Frame>) -> Vec<String> {
    let mut words: Vec<String> = frames.drain(..).map(|frame| format!("{frame:?}")).collect();
    words.sort();
    words
}

proptest! {
    /// SEMANTICS 66.
    #[test]
    fn a_link_that_passes_on_loses_no_byte_wherever_it_stops(
        before in steps(),
        after in steps(),
        widths in proptest::collection::vec(0..3000usize, 1..8),
        in_session in any::<bool>(),
        heard in 0.0..1.0f64,
    ) {
        let widths = [&widths[..], &[64]].concat();
        let (writer, taken) = stream(&widths);
        let pipe = Pipe::new(writer, in_session);
        let mut pushed = act(&pipe, &before, 0);
        let (next_writer, next_taken) = stream(&widths);
        let (next, received) = if in_session {
            // The other side has taken in some of the whole frames that came, and said less.
            let (_, whole) = frames(&taken.lock());
            let part = (whole as f64 * heard) as usize;
            let (_, mark) = frames(&taken.lock()[..part]);
            let handoff = pipe.handoff();
            let next = Pipe::of_handoff(handoff);
            next.connect(next_writer, mark as u64).expect("a mark within what was sent");
            (next, taken.lock()[..mark].to_vec())
        } else {
            let unwritten = pipe.unwritten();
            (Pipe::going_on(next_writer, &unwritten), taken.lock().clone())
        };
        // What the old one is still asked to do has no effect.
        let stood = taken.lock().len();
        act(&pipe, &[Step::Control { alone: true }, Step::Write], 9000);
        prop_assert_eq!(taken.lock().len(), stood);
        pushed.extend(act(&next, &after, 1000));
        drain(&next);
        let all = [&received[..], &next_taken.lock()].concat();
        let (came, bytes) = frames(&all);
        prop_assert_eq!(bytes, all.len());
        prop_assert_eq!(sorted(came), sorted(pushed));
    }
}

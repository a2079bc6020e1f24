//! The ways between ranks of a pipeline, over the collectives of pairs of neighbours.
//!
//! Each way has one direction and a pair of ranks of its own, and whoever sends has a thread for it. So no rank waits
//! until another wants what it has made, and none can wait for one that waits for it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use odeon::collective::Collective;
use odeon::group::Communicator;
use odeon::{Clock, Failure, Timestamp, telemetry};
use odeon_algorithms::model::{StageLetter, StageLinks};
use odeon_algorithms::train::StepOperation;

/// Something on its way.
type Post = (StageLetter, Vec<f32>);

/// The first of two ranks sends.
const SENDER: usize = 0;
/// The second receives.
const RECEIVER: usize = 1;

/// The end of a way that sends.
#[derive(Debug)]
struct Outgoing(Mutex<Option<Sender<Post>>>);

impl Outgoing {
    /// Sends what is posted, on a thread of its own, until nothing more can come.
    fn over(comm: Communicator, failure: &Arc<Latch>) -> Self {
        let (sender, posted) = channel();
        let failure = Arc::clone(failure);
        std::thread::spawn(move || send_all(comm, &posted, &failure));
        Self(Mutex::new(Some(sender)))
    }

    fn post(&self, post: Post) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = sender.as_ref() {
            // Its thread has ended where the other rank is lost: that is latched.
            let _ = sender.send(post);
        }
    }
}

fn send_all(mut comm: Communicator, posted: &Receiver<Post>, failure: &Latch) {
    for (letter, numbers) in posted {
        let header = header(letter, numbers.len());
        let sent = comm
            .send(&header, RECEIVER)
            .and_then(|()| comm.send(&numbers, RECEIVER));
        if let Err(error) = sent {
            failure.set(Failure::error(error));
            return;
        }
    }
}

/// The end of a way that receives, with what came before it was wanted; nobody's where it was left.
struct Incoming(Mutex<(Option<Communicator>, Letters)>);

/// Letters that came before they were wanted.
type Letters = HashMap<StageLetter, Vec<f32>>;

impl Incoming {
    fn over(comm: Communicator) -> Self {
        Self(Mutex::new((Some(comm), Letters::new())))
    }

    fn wait_for(&self, letter: StageLetter) -> Result<Vec<f32>, Failure> {
        let mut incoming = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (comm, early) = &mut *incoming;
        loop {
            if let Some(numbers) = early.remove(&letter) {
                return Ok(numbers);
            }
            let comm = comm.as_mut();
            let comm = comm.ok_or_else(|| Failure::error("this rank has left the others"))?;
            let mut said = [0.0; HEADER];
            comm.receive(&mut said, SENDER).map_err(Failure::error)?;
            let (letter, len) = letter_of(said);
            let mut numbers = vec![0.0; len];
            comm.receive(&mut numbers, SENDER).map_err(Failure::error)?;
            early.insert(letter, numbers);
        }
    }
}

/// Numbers before each letter: whether it is a gradient, the stage, the micro-batch, and the digits of its length.
const HEADER: usize = 5;

/// Whole numbers below 2^24 have all of their digits in four bytes.
const DIGIT: usize = 1 << 20;

fn header(letter: StageLetter, len: usize) -> [f32; HEADER] {
    let (is_gradient, stage, micro) = match letter {
        StageLetter::Rows { stage, micro } => (0, stage, micro),
        StageLetter::Gradient { stage, micro } => (1, stage, micro),
    };
    [is_gradient, stage, micro, len / DIGIT, len % DIGIT].map(|number| number as f32)
}

fn letter_of(header: [f32; HEADER]) -> (StageLetter, usize) {
    let [is_gradient, stage, micro, high, low] = header.map(|number| number as usize);
    let letter = match is_gradient {
        0 => StageLetter::Rows { stage, micro },
        _ => StageLetter::Gradient { stage, micro },
    };
    (letter, high * DIGIT + low)
}

/// The reason why a step is worth nothing, as far as it is known.
#[derive(Debug, Default)]
struct Latch(Mutex<Option<Failure>>);

impl Latch {
    fn set(&self, failure: Failure) {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        own.get_or_insert(failure);
    }

    fn get(&self) -> Option<Failure> {
        let own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        own.clone()
    }
}

/// The seats of a rank on the ways to and from its neighbours; a rank at an end of the pipeline has fewer.
#[derive(Debug, Default)]
pub(crate) struct StageSeats<T> {
    /// Where it sends rows, to the rank of the stage behind.
    pub(crate) rows_out: Option<T>,
    /// Where it gets rows.
    pub(crate) rows_in: Option<T>,
    /// Where it sends gradients, to the rank of the stage before.
    pub(crate) gradients_out: Option<T>,
    /// Where it gets gradients.
    pub(crate) gradients_in: Option<T>,
}

/// The ways of a pipeline rank.
pub(crate) struct StageGang {
    rows_out: Option<Outgoing>,
    rows_in: Option<Incoming>,
    gradients_out: Option<Outgoing>,
    gradients_in: Option<Incoming>,
    failure: Arc<Latch>,
    /// Time for which it waited, since that was asked for.
    waited: Mutex<Duration>,
}

impl std::fmt::Debug for StageGang {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StageGang").finish_non_exhaustive()
    }
}

impl StageGang {
    pub(crate) fn new(seats: StageSeats<Communicator>) -> Self {
        let failure = Arc::default();
        let out = |comm: Option<_>| comm.map(|comm| Outgoing::over(comm, &failure));
        Self {
            rows_out: out(seats.rows_out),
            rows_in: seats.rows_in.map(Incoming::over),
            gradients_out: out(seats.gradients_out),
            gradients_in: seats.gradients_in.map(Incoming::over),
            failure,
            waited: Mutex::default(),
        }
    }

    /// Leaves the neighbours, who know at once.
    pub(crate) fn leave(&self) {
        for out in [&self.rows_out, &self.gradients_out].into_iter().flatten() {
            out.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        for incoming in [&self.rows_in, &self.gradients_in].into_iter().flatten() {
            let mut own = incoming.0.lock().unwrap_or_else(PoisonError::into_inner);
            own.0.take();
        }
    }

    /// The time for which it waited since this was asked last.
    pub(crate) fn take_waited(&self) -> Duration {
        let mut waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waited)
    }

    /// Checks that nothing was lost on the ways so far.
    ///
    /// # Errors
    /// The first reason why something was.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.failure.get().map_or(Ok(()), Err)
    }
}

impl StageLinks for StageGang {
    fn send(&self, letter: StageLetter, numbers: Vec<f32>) {
        if self.failure.get().is_some() {
            return;
        }
        let way = match letter {
            StageLetter::Rows { .. } => &self.rows_out,
            StageLetter::Gradient { .. } => &self.gradients_out,
        };
        let way = way.as_ref();
        way.expect("a stage with a neighbour has a way to it")
            .post((letter, numbers));
    }

    fn receive(&self, letter: StageLetter, len: usize) -> Vec<f32> {
        if self.failure.get().is_some() {
            return vec![0.0; len];
        }
        let way = match letter {
            StageLetter::Rows { .. } => &self.rows_in,
            StageLetter::Gradient { .. } => &self.gradients_in,
        };
        let begun = Clock::now();
        let way = way.as_ref();
        let received = way
            .expect("a stage with a neighbour has a way from it")
            .wait_for(letter);
        let mut waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        *waited += Clock::now().since(begun);
        let received = received.and_then(|numbers| match numbers.len() == len {
            true => Ok(numbers),
            false => Err(Failure::error(format!(
                "{letter:?} has {} numbers, and this rank expects {len}",
                numbers.len()
            ))),
        });
        received.unwrap_or_else(|failure| {
            self.failure.set(failure);
            vec![0.0; len]
        })
    }
}

/// Records the pass that an operation of a step was as a span that ends now, and returns when it has done so. A pass
/// waits for its neighbour first, so that it is at work from `began` on.
pub(crate) fn record_pass(step: u64, operation: StepOperation, began: Timestamp) -> Timestamp {
    let pass = match operation {
        StepOperation::StageForward(pass) => Some((FORWARD_PASS, pass)),
        StepOperation::StageBackward(pass) => Some((BACKWARD_PASS, pass)),
        StepOperation::StageBackwardInput(pass) => Some((INPUT_PASS, pass)),
        StepOperation::StageBackwardWeight(pass) => Some((WEIGHT_PASS, pass)),
        _ => None,
    };
    if let Some((name, pass)) = pass {
        let span = telemetry::span_from(name, began).with("step", step + 1);
        let span = span.with("micro_batch", pass.micro);
        span.with("chunk", pass.chunk).end();
    }
    Clock::now()
}

/// The name of the span of a forward pass through a stage.
const FORWARD_PASS: &str = "forward pass";
/// The same of a backward pass.
const BACKWARD_PASS: &str = "backward pass";
/// The same of a backward pass for the gradients of rows alone.
const INPUT_PASS: &str = "input gradient pass";
/// The same for those of weights that are left then.
const WEIGHT_PASS: &str = "weight gradient pass";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_a_letter_is() {
        for len in [0, 7, DIGIT, 3 * DIGIT + 5, 5_000_000_000] {
            for letter in [
                StageLetter::Rows { stage: 3, micro: 9 },
                StageLetter::Gradient { stage: 0, micro: 1 },
            ] {
                assert_eq!(letter_of(header(letter, len)), (letter, len));
            }
        }
    }
}

//! A model between training and generation on the same ranks: HybridFlow's 3D-HybridEngine, and the
//! two engines it is compared with, with real bytes.
//!
//! ```text
//!  training shard ── spread ──> generation buffer, own boxes in place
//!                                    │  gives to and takes from its group, a parcel at a time
//!                                    v
//!  training shard <── condense ── generation shard
//! ```
//!
//! [`parallel`](odeon_algorithms::parallel) says who gives what to whom; here it is done, over the
//! links of a formed group. With [`Engine::HybridFlow`] a rank has one buffer of parameters, which
//! grows to the generation shard and shrinks back: beside it lies a parcel, whatever the model. The
//! bytes are not in blobs, since those never change once others may read them: a shard that is lent
//! as one could not grow where it is, and would be there twice.

use std::mem;

use odeon::collective::{Collective, CollectiveError, bf16};
use odeon::group::{Communicator, Protocol, WorkerCall};
use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Blobs, Context, Failure, Shape, actor, message};
use odeon_algorithms::parallel::{
    Engine, Exchange, Grouping, ModelSpec, Origin, Plan, Reshard, Transfer, Window, condense,
    copy_box, spread,
};
use odeon_mesh::Mesh;

use super::calls::Join;
use super::workers::sit;
use crate::engine::in_place;

/// Settings that a rank is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ReshardArgs {
    /// Which rank it is.
    pub rank: usize,
    /// The model.
    pub model: ModelSpec,
    /// The layout in training.
    pub training: Mesh,
    /// The layout in generation.
    pub generation: Mesh,
    /// The way from one layout to the other.
    pub engine: Engine,
}

/// Take your training shard out of the whole model: all its tensors, one after the other.
#[message(reply = Result<(), Failure>, name = "reshard.Load")]
#[derive(Clone, Debug)]
pub struct Load(pub Blob);

/// Get what you generate with. One that has it does nothing. A rank that fails has its training
/// shard as before.
#[message(reply = Result<Moved, Failure>, name = "reshard.ToGeneration")]
#[derive(Clone, Copy, Debug)]
pub struct ToGeneration;

/// Go back to your training shard; nothing is sent. One that has it does nothing.
#[message(reply = Result<(), Failure>, name = "reshard.ToTraining")]
#[derive(Clone, Copy, Debug)]
pub struct ToTraining;

/// Show the shard that you have at present.
#[message(reply = Result<Shown, Failure>, name = "reshard.Show")]
#[derive(Clone, Copy, Debug)]
pub struct Show;

/// Bytes that a rank moved and allocated to begin generating, counted as it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Moved {
    /// Bytes that came from others.
    pub received: u64,
    /// Bytes that others got.
    pub sent: u64,
    /// The most that was allocated for what it gathered.
    pub peak: u64,
    /// Bytes that are allocated for its training shard beside that.
    pub redundant: u64,
    /// Bytes of the shard that it generates with.
    pub generation: u64,
}

/// See [`Show`].
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Shown {
    /// Set when it is the generation shard.
    pub generates: bool,
    /// A copy of the shard.
    pub bytes: Blob,
}

/// One rank of a model.
#[derive(Debug)]
pub struct ReshardWorker {
    rank: usize,
    reshard: Reshard,
    plan: Plan,
    exchanges: Vec<Exchange>,
    views: Vec<Transfer>,
    comm: Option<Communicator>,
    held: Held,
    blobs: Blobs,
}

/// The shard that a rank has of the model.
#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    Training(Vec<u8>),
    Generation {
        buffer: Vec<u8>,
        /// The training shard, where the engine keeps it beside.
        beside: Vec<u8>,
    },
}

/// So much is on its way between two ranks at a time, and lies in memory beside the parameters.
const PARCEL_BYTES: usize = 1 << 20;

#[actor(name = "hybrid.Resharding")]
impl ReshardWorker {
    fn start(args: ReshardArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let fatal = |error| Failure::error(error).fatal();
        let ReshardArgs {
            rank,
            model,
            training,
            generation,
            engine,
        } = args;
        let reshard = Reshard::new(model, &training, &generation, engine).map_err(fatal)?;
        Ok(Self {
            rank,
            plan: reshard.plan(rank).map_err(fatal)?,
            exchanges: reshard.exchanges(rank).map_err(fatal)?,
            views: reshard.views(rank).map_err(fatal)?,
            reshard,
            comm: None,
            held: Held::Nothing,
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Join)]
    fn join(&mut self, join: Join, cx: &mut Context<Self>) -> Result<(), Failure> {
        self.comm = Some(sit(&join, cx)?);
        Ok(())
    }

    #[handler(message = Load)]
    async fn load(&mut self, load: Load) -> Result<(), Failure> {
        let view = load.0.open().await.map_err(Failure::error)?;
        let shard = in_place(|| self.cut(&view))?;
        self.held = Held::Training(shard);
        Ok(())
    }

    #[handler(message = ToGeneration)]
    fn begin_generation(&mut self, _to: ToGeneration) -> Result<Moved, Failure> {
        in_place(|| self.gather())
    }

    #[handler(message = ToTraining)]
    fn begin_training(&mut self, _to: ToTraining) -> Result<(), Failure> {
        self.held = match mem::take(&mut self.held) {
            Held::Generation { buffer, beside } => self.back(buffer, beside)?,
            other => other,
        };
        Ok(())
    }

    #[handler(message = Show)]
    fn show(&mut self, _show: Show) -> Result<Shown, Failure> {
        let (generates, bytes) = match &self.held {
            Held::Nothing => return Err(unloaded()),
            Held::Training(shard) => (false, shard),
            Held::Generation { buffer, .. } => (true, buffer),
        };
        let bytes = self.blobs.copy_in(bytes).map_err(Failure::error)?;
        Ok(Shown { generates, bytes })
    }

    /// The training shard of a whole model.
    fn cut(&self, whole: &[u8]) -> Result<Vec<u8>, Failure> {
        let all = self.reshard.model().whole();
        let shards = self.reshard.training(self.rank).map_err(Failure::error)?;
        let mut buffer = vec![0; shards.bytes()];
        for shard in shards.as_slice() {
            for from in all.of(shard.tensor) {
                let from = from.window(&shard.region).map_err(Failure::error)?;
                let to = shard.window(&shard.region).map_err(Failure::error)?;
                copy_box(whole, &from, &mut buffer, &to).map_err(Failure::error)?;
            }
        }
        Ok(buffer)
    }

    fn gather(&mut self) -> Result<Moved, Failure> {
        let (mut buffer, beside) = match mem::take(&mut self.held) {
            Held::Nothing => return Err(unloaded()),
            Held::Training(shard) => self.open(shard)?,
            held @ Held::Generation { .. } => {
                self.held = held;
                return Ok(Moved::default());
            }
        };
        let (sent, received) = match self.exchange(&mut buffer, &beside) {
            Ok(counts) => counts,
            Err(failure) => {
                self.held = self.back(buffer, beside)?;
                return Err(failure);
            }
        };
        let peak = buffer.capacity() as u64;
        if self.grouping() == Grouping::Usual {
            let bytes = self.plan.cost.generation_bytes;
            condense(&mut buffer, &self.plan.slices, bytes).map_err(Failure::error)?;
        }
        let moved = Moved {
            received,
            sent,
            peak,
            redundant: beside.capacity() as u64,
            generation: buffer.len() as u64,
        };
        self.held = Held::Generation { buffer, beside };
        Ok(moved)
    }

    /// The gathered buffer with what of it is here, and what stays beside it.
    fn open(&self, mut shard: Vec<u8>) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let own = self.plan.gather.iter();
        let own = own.filter(|transfer| transfer.from == Origin::Own);
        let bytes = self.plan.cost.peak_bytes;
        if self.grouping() == Grouping::Strided {
            let own: Vec<Transfer> = own.cloned().collect();
            spread(&mut shard, &own, bytes).map_err(Failure::error)?;
            return Ok((shard, vec![]));
        }
        let mut buffer = vec![0; bytes];
        for transfer in own {
            let copied = transfer.apply(&shard, &mut buffer);
            copied.map_err(Failure::error)?;
        }
        Ok((buffer, shard))
    }

    /// Fills the rest; bytes that were sent, and that came.
    fn exchange(&mut self, buffer: &mut [u8], beside: &[u8]) -> Result<(u64, u64), Failure> {
        let grouping = self.grouping();
        let unformed = || Failure::error("the rank has no seat; form its group first");
        let comm = self.comm.as_mut().ok_or_else(unformed)?;
        let (mut sent, mut received) = (0, 0);
        for exchange in &self.exchanges {
            let Exchange { peer, gives, takes } = exchange;
            let gives_first = self.rank < *peer;
            for gives_now in [gives_first, !gives_first] {
                let done = if !gives_now {
                    take(comm, *peer, buffer, takes).map(|bytes| received += bytes)
                } else if grouping == Grouping::Strided {
                    give(comm, *peer, buffer, gives).map(|bytes| sent += bytes)
                } else {
                    give(comm, *peer, beside, gives).map(|bytes| sent += bytes)
                };
                done.map_err(Failure::error)?;
            }
        }
        Ok((sent, received))
    }

    fn back(&self, mut buffer: Vec<u8>, beside: Vec<u8>) -> Result<Held, Failure> {
        if self.grouping() == Grouping::Usual {
            return Ok(Held::Training(beside));
        }
        let shards = self.reshard.training(self.rank).map_err(Failure::error)?;
        condense(&mut buffer, &self.views, shards.bytes()).map_err(Failure::error)?;
        Ok(Held::Training(buffer))
    }

    const fn grouping(&self) -> Grouping {
        self.reshard.engine().grouping()
    }
}

fn unloaded() -> Failure {
    Failure::error("the rank has no weights yet")
}

/// Sends boxes of a buffer, one after the other.
fn give(
    comm: &mut Communicator,
    peer: usize,
    source: &[u8],
    windows: &[Window],
) -> Result<u64, CollectiveError> {
    let (mut sent, mut parcel) = (0, vec![]);
    let mut send = |parcel: &mut Vec<u8>| {
        sent += parcel.len() as u64;
        let (pairs, odd) = parcel.as_chunks::<2>();
        let odd = odd.iter().map(|byte| [*byte, 0]);
        let elements = pairs.iter().copied().chain(odd);
        let elements: Vec<bf16> = elements.map(bf16::from_le_bytes).collect();
        parcel.clear();
        comm.send(&elements, peer)
    };
    for range in windows.iter().flat_map(Window::ranges) {
        let mut rest = &source[range];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(PARCEL_BYTES - parcel.len()));
            parcel.extend_from_slice(now);
            rest = later;
            if parcel.len() == PARCEL_BYTES {
                send(&mut parcel)?;
            }
        }
    }
    if !parcel.is_empty() {
        send(&mut parcel)?;
    }
    Ok(sent)
}

/// Receives boxes of a buffer, one after the other.
fn take(
    comm: &mut Communicator,
    peer: usize,
    target: &mut [u8],
    windows: &[Window],
) -> Result<u64, CollectiveError> {
    let all: usize = windows.iter().map(Window::bytes).sum();
    let (mut received, mut parcel, mut at) = (0, vec![], 0);
    for range in windows.iter().flat_map(Window::ranges) {
        let mut rest = &mut target[range];
        while !rest.is_empty() {
            if at == parcel.len() {
                let bytes = PARCEL_BYTES.min(all - received);
                let mut elements = vec![bf16::ZERO; bytes.div_ceil(2)];
                comm.receive(&mut elements, peer)?;
                parcel = elements.into_iter().flat_map(bf16::to_le_bytes).collect();
                parcel.truncate(bytes);
                received += bytes;
                at = 0;
            }
            let bytes = rest.len().min(parcel.len() - at);
            let (now, later) = rest.split_at_mut(bytes);
            now.copy_from_slice(&parcel[at..at + bytes]);
            at += bytes;
            rest = later;
        }
    }
    Ok(received as u64)
}

/// A call that all ranks get as it is.
macro_rules! all_ranks {
    ($call:ty => $part:ty) => {
        impl WorkerCall for $call {
            type Part = $part;
            type Output = Vec<$part>;

            fn protocol(&self) -> Protocol {
                Protocol::OneToAll
            }

            fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
                Ok(vec![self.clone(); parts])
            }

            fn join(&self, parts: Vec<$part>) -> Result<Vec<$part>, Failure> {
                Ok(parts)
            }
        }
    };
}

all_ranks!(Load => ());
all_ranks!(ToGeneration => Moved);
all_ranks!(ToTraining => ());
all_ranks!(Show => Shown);

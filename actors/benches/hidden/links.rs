//! Shards between two ranks, threads with a core each, over links on which bytes take the time of a wire and none of a
//! core.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use odeon::collective::queue::{self, Queues};
use odeon::collective::{
    Collective, CollectiveError, Communicator, Membership, Reduce, Report, Topology, Transport,
    Trouble,
};
use odeon_algorithms::model::{
    Batch, Model, ModelConfig, PassGroups, Sequence, ShardGroups, ShardTime, TokenScores,
};
use odeon_algorithms::train::{
    Peers, Sharing, StepPeers, StepShape, StepWork, TokenGradients, TrainConfig, Trainer,
    ZeroStage, plan,
};
use odeon_gpu::{Cpu, CpuBuffer, PassRanks, Precision};

const RANKS: usize = 2;
const MICRO_BATCHES: usize = 2;
const TOKENS: usize = 512;
const STEPS: usize = 8;
/// Steps in which memory is made.
const BEFORE: usize = 2;
/// Bytes that a link takes at once.
const PIECE: usize = 32 << 10;
/// A link that is used again within this time was not idle: threads wake up so late.
const SLACK: Duration = Duration::from_millis(1);

/// The ways in which the two ranks keep shards.
pub(crate) const PLANS: [(&str, Sharing); 5] = {
    let shards = Sharing {
        copies: RANKS,
        zero: ZeroStage::Parameters,
        ..Sharing::ALONE
    };
    [
        ("zero = 3", shards),
        ("zero = 3, prefetch = 2", Sharing { ahead: 2, ..shards }),
        ("zero = 3, prefetch = 4", Sharing { ahead: 4, ..shards }),
        (
            "zero = 3, params = \"bf16\"",
            Sharing {
                params: Precision::Bf16,
                ..shards
            },
        ),
        (
            "zero = 2",
            Sharing {
                zero: ZeroStage::Gradients,
                ..shards
            },
        ),
    ]
};

/// A step of the first rank: how long it took, and what its shards took of that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkStep {
    pub(crate) took: Duration,
    pub(crate) shards: ShardTime,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A transport that sends so many bytes a second, and waits in between.
#[derive(Debug)]
struct Link {
    below: Queues,
    bytes_per_s: f64,
    /// When what was sent has left.
    free_at: Instant,
}

impl Transport for Link {
    fn membership(&self) -> &Membership {
        self.below.membership()
    }

    fn send_some(&mut self, to: usize, bytes: &[u8]) -> Result<usize, Trouble> {
        let now = Instant::now();
        if now < self.free_at {
            return Ok(0);
        }
        let sent = self.below.send_some(to, &bytes[..bytes.len().min(PIECE)])?;
        let begun = match now.duration_since(self.free_at) < SLACK {
            true => self.free_at,
            false => now,
        };
        self.free_at = begun + Duration::from_secs_f64(sent as f64 / self.bytes_per_s);
        Ok(sent)
    }

    fn receive_some(&mut self, from: usize, into: &mut [u8]) -> Result<usize, Trouble> {
        self.below.receive_some(from, into)
    }

    fn under_way(&self, to: usize) -> usize {
        self.below.under_way(to)
    }

    fn wait(&mut self, to: &[usize], from: &[usize], until: Instant) -> Result<(), Trouble> {
        match !to.is_empty() && Instant::now() < self.free_at {
            true => self.below.wait(&[], from, until.min(self.free_at)),
            false => self.below.wait(to, from, until),
        }
    }

    fn abort(&mut self, report: &Report) {
        self.below.abort(report);
    }
}

/// The ranks that keep shards, as a pass asks for them, with what is counted of it.
#[derive(Debug)]
struct Keepers {
    rank: usize,
    over: Mutex<Communicator<Link>>,
    time: Mutex<ShardTime>,
}

impl Keepers {
    /// A move of shards, which is timed.
    fn moved(
        &self,
        over: impl FnOnce(&mut Communicator<Link>) -> Result<(), CollectiveError>,
    ) -> usize {
        let begun = Instant::now();
        over(&mut lock(&self.over)).expect("both ranks are there");
        lock(&self.time).moving += begun.elapsed();
        0
    }
}

impl PassRanks<Cpu> for Keepers {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        RANKS
    }

    fn sum(&self, _: &Cpu, numbers: &mut CpuBuffer, range: Range<usize>) {
        let numbers = &mut numbers.as_mut_slice()[range];
        let summed = lock(&self.over).all_reduce(numbers, Reduce::Sum);
        summed.expect("both ranks are there");
    }

    fn scatter(&self, _: &Cpu, _: &mut CpuBuffer, _: usize) {
        unreachable!("shards are reduced where they lie")
    }

    fn gather(&self, _: &Cpu, _: &mut CpuBuffer, _: usize) {
        unreachable!("shards are gathered from where they lie")
    }

    fn gather_shards(&self, _: &Cpu, shard: &[f32], len: usize, all: &mut CpuBuffer) -> usize {
        let all = &mut all.as_mut_slice()[..RANKS * len];
        self.moved(|over| over.all_gather(shard, all))
    }

    fn reduce_shards(&self, _: &Cpu, all: &mut CpuBuffer, len: usize, shard: &mut [f32]) -> usize {
        let mut sums = vec![0.0; len];
        let all = &all.as_slice()[..RANKS * len];
        self.moved(|over| over.reduce_scatter(all, &mut sums, Reduce::Sum));
        for (own, sum) in shard.iter_mut().zip(sums) {
            *own += sum;
        }
        0
    }

    fn wait(&self, until: &mut (dyn FnMut() + Send)) {
        let begun = Instant::now();
        until();
        lock(&self.time).waited += begun.elapsed();
    }

    fn exchange(&self, _: &Cpu, _: &CpuBuffer, _: &[usize], _: &mut CpuBuffer, _: &[usize]) {
        unreachable!("ranks with shards exchange nothing")
    }

    fn tell(&self, _: &Cpu, _: &[u32]) -> Vec<u32> {
        unreachable!("ranks with shards tell nothing")
    }
}

/// The other ranks, between passes.
struct Others(Communicator<Queues>);

impl Peers<Cpu> for Others {
    type Error = CollectiveError;

    fn rank(&self) -> usize {
        self.0.membership().rank
    }

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), CollectiveError> {
        self.0.all_reduce(numbers, Reduce::Sum)
    }

    fn count(&mut self, counts: &mut [u64]) -> Result<(), CollectiveError> {
        // Digits of 16 bits, of which sums of a few are numbers to the bit.
        let mut digits: Vec<f32> = counts
            .iter()
            .flat_map(|count| [0, 16, 32, 48].map(|at| (count >> at & 0xffff) as f32))
            .collect();
        self.0.all_reduce(&mut digits, Reduce::Sum)?;
        for (count, digits) in counts.iter_mut().zip(digits.as_chunks::<4>().0) {
            let digits = digits.iter().rev().map(|digit| *digit as u64);
            *count = digits.fold(0, |sum, digit| (sum << 16).wrapping_add(digit));
        }
        Ok(())
    }

    fn scatter_buffer(
        &mut self,
        _: &Cpu,
        _: &mut CpuBuffer,
        _: &[usize],
    ) -> Result<(), CollectiveError> {
        unreachable!("ranks with shards share no optimiser")
    }

    fn gather_buffer(
        &mut self,
        _: &Cpu,
        _: &mut CpuBuffer,
        _: &[usize],
    ) -> Result<(), CollectiveError> {
        unreachable!("ranks with shards share no optimiser")
    }
}

/// The samples of a rank.
struct Texts(usize);

impl StepWork for Texts {
    type Error = CollectiveError;

    fn micro_batches(&self) -> usize {
        MICRO_BATCHES
    }

    fn batch(&mut self, micro: usize) -> Result<Batch, CollectiveError> {
        let first = (self.0 * MICRO_BATCHES + micro) as u32;
        let token = |at: u32| (at * at + 5 * first) % 259;
        let tokens: Vec<u32> = (0..=TOKENS as u32).map(token).collect();
        let sequence = Sequence {
            tokens: &tokens,
            prompt: 1,
        };
        Ok(Batch::pack(&[sequence]).expect("a sequence of these tokens"))
    }

    fn evaluate(
        &mut self,
        _: usize,
        _: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, CollectiveError> {
        let each = 1.0 / (RANKS * MICRO_BATCHES * TOKENS) as f32;
        gradients.logprobs.fill(-each);
        Ok(-f64::from(scores.logprobs.iter().sum::<f32>() * each))
    }
}

/// A model of eight layers, which has all of it in them but one part in a hundred.
fn config(width: usize) -> ModelConfig {
    ModelConfig {
        vocab: 259,
        dim: width,
        layers: 8,
        heads: 4,
        kv_heads: 4,
        head_dim: width / 4,
        ffn: 3 * width,
        ..ModelConfig::default()
    }
}

/// Steps of two ranks over links of so many bytes a second, without those in which memory is made.
pub(crate) fn steps(
    sharing: Sharing,
    width: usize,
    bytes_per_s: f64,
) -> anyhow::Result<Vec<LinkStep>> {
    // Each on a node of its own.
    let apart = Topology::new((0..RANKS).collect());
    let ends = queue::gang(&apart, 1).into_iter();
    let ends = ends.zip(queue::gang(&apart, 2));
    let threads = ends.enumerate().map(|(rank, (links, others))| {
        let link = Link {
            below: links,
            bytes_per_s,
            free_at: Instant::now(),
        };
        thread::spawn(move || of_rank(rank, link, others, sharing, width))
    });
    let threads: Vec<_> = threads.collect();
    let mut all = vec![];
    for thread in threads {
        let steps = thread.join().ok().context("a rank has failed")?;
        all.push(steps?);
    }
    Ok(all.swap_remove(0))
}

fn of_rank(
    rank: usize,
    link: Link,
    others: Queues,
    sharing: Sharing,
    width: usize,
) -> anyhow::Result<Vec<LinkStep>> {
    let keepers = Arc::new(Keepers {
        rank,
        over: Mutex::new(Communicator::new(link)),
        time: Mutex::default(),
    });
    let model = Model::init(Cpu::new(1), config(width), 11)?;
    let place = sharing.shard_place(rank).context("ranks keep shards")?;
    let mut model = model.into_shard(place)?;
    model.meet(PassGroups {
        shards: ShardGroups {
            data: Some(Arc::clone(&keepers) as Arc<dyn PassRanks<Cpu>>),
            ..ShardGroups::default()
        },
        ..PassGroups::default()
    });
    let mut trainer = Trainer::new(model, TrainConfig::default())
        .with_parameters_in(sharing.params)
        .with_layers_ahead(sharing.ahead);
    if sharing.zero == ZeroStage::Gradients {
        trainer = trainer.with_parameters_that_stay();
    }
    let mut work = Texts(rank);
    let operations = plan(&StepShape {
        has_shard: true,
        ..StepShape::of(&work, true, true)
    });
    let mut others = Others(Communicator::new(others));
    let mut steps = vec![];
    for step in 0..STEPS {
        others.0.barrier()?;
        let begun = Instant::now();
        let peers = StepPeers {
            data: Some(&mut others),
            ..StepPeers::none()
        };
        trainer.run(&operations, &mut work, peers, &mut |_| Ok(()))?;
        let took = begun.elapsed();
        let shards = std::mem::take(&mut *lock(&keepers.time));
        if step >= BEFORE {
            steps.push(LinkStep { took, shards });
        }
    }
    Ok(steps)
}

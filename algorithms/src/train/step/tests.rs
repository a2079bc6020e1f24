//! Tests of steps as data.

mod guarded;
mod parts;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use odeon_gpu::Cpu;
use odeon_gpu::cpu::CpuBuffer;
use proptest::prelude::*;

use super::StepOperation::*;
use super::*;
use crate::model::{ContextKind, Dropout, Model, ModelConfig, RankOf, Sequence, VisionConfig};
use crate::setting::Chosen;
use crate::train::{Optimizer, StatePart, TrainConfig};

const VISION: VisionConfig = VisionConfig {
    patch: 2,
    dim: 16,
    layers: 2,
    heads: 2,
    ffn: 12,
};

fn trainer() -> Trainer {
    let config = ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        ffn: 20,
        vision: Some(VISION),
        ..ModelConfig::default()
    };
    let mut model = Model::init(Cpu::new(1), config, 11).unwrap();
    // Initial weights are so small that every distribution is nearly flat.
    let flat = model.flat().iter().map(|w| match *w {
        1.0 => 1.0,
        w => 8.0 * w,
    });
    let flat: Vec<f32> = flat.collect();
    model.load_flat(&flat).unwrap();
    // Sums over ranks differ by rounding, which the first steps of AdamW would blow up.
    Trainer::new(
        model,
        TrainConfig {
            clip: None,
            ..TrainConfig::default()
        },
    )
}

/// Sums over as many threads, one a rank.
struct Meeting {
    barrier: Barrier,
    table: Mutex<Vec<Vec<u64>>>,
}

struct Rank {
    rank: usize,
    meeting: Arc<Meeting>,
}

impl Rank {
    fn all(ranks: usize) -> Vec<Self> {
        let meeting = Arc::new(Meeting {
            barrier: Barrier::new(ranks),
            table: Mutex::new(vec![vec![]; ranks]),
        });
        let rank = |rank| Self {
            rank,
            meeting: Arc::clone(&meeting),
        };
        (0..ranks).map(rank).collect()
    }

    /// What all ranks say, in their order: as many numbers, else they are in different operations.
    fn all_say(&self, own: Vec<u64>) -> Vec<Vec<u64>> {
        let len = own.len();
        let all = self.each_says(own);
        let alike = all.iter().all(|numbers| numbers.len() == len);
        assert!(alike, "ranks are in one collective");
        all
    }

    /// The same of ranks that have more or less to say.
    fn each_says(&self, own: Vec<u64>) -> Vec<Vec<u64>> {
        self.meeting.table.lock().unwrap()[self.rank] = own;
        self.meeting.barrier.wait();
        let all = self.meeting.table.lock().unwrap().clone();
        self.meeting.barrier.wait();
        all
    }

    fn total(&self, own: &[f32]) -> Vec<f32> {
        let bits = own.iter().map(|number| u64::from(number.to_bits()));
        let all = self.all_say(bits.collect());
        let of = |numbers: &Vec<u64>, at: usize| f64::from(f32::from_bits(numbers[at] as u32));
        let sum = |at| all.iter().map(|numbers| of(numbers, at)).sum::<f64>() as f32;
        (0..own.len()).map(sum).collect()
    }
}

impl Peers<Cpu> for Rank {
    type Error = &'static str;

    fn rank(&self) -> usize {
        self.rank
    }

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Self::Error> {
        let sums = self.total(numbers);
        numbers.copy_from_slice(&sums);
        Ok(())
    }

    fn count(&mut self, counts: &mut [u64]) -> Result<(), Self::Error> {
        let all = self.all_say(counts.to_vec());
        for (at, count) in counts.iter_mut().enumerate() {
            *count = all.iter().map(|counts| counts[at]).sum();
        }
        Ok(())
    }

    fn scatter_buffer(
        &mut self,
        _: &Cpu,
        numbers: &mut CpuBuffer,
        counts: &[usize],
    ) -> Result<(), Self::Error> {
        let own = self.part(counts);
        let sums = self.total(numbers.as_slice());
        // Of the others' parts it has anything.
        numbers.as_mut_slice().fill(f32::NAN);
        numbers.as_mut_slice()[own.clone()].copy_from_slice(&sums[own]);
        Ok(())
    }

    fn gather_buffer(
        &mut self,
        _: &Cpu,
        numbers: &mut CpuBuffer,
        counts: &[usize],
    ) -> Result<(), Self::Error> {
        let mut own = vec![0.0; numbers.as_slice().len()];
        let part = self.part(counts);
        own[part.clone()].copy_from_slice(&numbers.as_slice()[part]);
        let sums = self.total(&own);
        numbers.as_mut_slice().copy_from_slice(&sums);
        Ok(())
    }
}

impl Rank {
    fn part(&self, counts: &[usize]) -> Range<usize> {
        let begin = counts[..self.rank].iter().sum();
        begin..begin + counts[self.rank]
    }
}

const LONGEST: usize = 9;

/// Sequences of these lengths, each a micro-batch of its own, which see the feature of their number where
/// they see any.
#[derive(Clone)]
struct Texts {
    /// Which of all, and the lengths of all.
    own: Range<usize>,
    lengths: Vec<usize>,
    pictures: Option<StepPictures>,
    /// The micro-batch whose loss is not defined.
    fails: Option<usize>,
    wanted: bool,
    /// Weights of log-probabilities and entropies in the loss.
    policy: f32,
    entropy: f32,
    /// The rank whose rows are computed, of those with rows of the same sequences.
    context: RankOf,
    /// The way in which these attend to each other's rows.
    context_kind: ContextKind,
    /// Tensor ranks.
    tensor: usize,
    /// Lengths of sequences that stand in each batch behind its own.
    beside: Vec<usize>,
    /// Micro-batches at least: behind its own are empty ones.
    at_least: usize,
    /// Share of numbers that are dropped, and the run and the step in which they are.
    dropout: f32,
    seed: u64,
    step: u64,
    /// Set where each rank has a seed of its own, in place of the run's.
    has_own_seeds: bool,
    /// Set where passes wait for each gather and sum of shards.
    waits: bool,
}

impl Texts {
    fn of(lengths: &[usize], own: Range<usize>) -> Self {
        Self {
            own,
            lengths: lengths.to_vec(),
            pictures: None,
            fails: None,
            wanted: true,
            policy: 1.0,
            entropy: 0.0,
            context: RankOf::ALONE,
            context_kind: ContextKind::Ulysses,
            tensor: 1,
            beside: vec![],
            at_least: 0,
            dropout: 0.0,
            seed: 5,
            step: 0,
            has_own_seeds: false,
            waits: false,
        }
    }

    /// A sequence as a batch, with others beside it; behind all of them is a token that predicts nothing.
    fn packed(&self, number: usize) -> Batch {
        let lengths = match self.lengths.get(number) {
            Some(own) => [*own].iter().chain(&self.beside).copied().collect(),
            None => vec![1],
        };
        let tokens = |(nth, length): (usize, &usize)| {
            let token = |at: u32| (at * at + 5 * number as u32 + 7 * nth as u32) % 23;
            (0..*length as u32).map(token).collect::<Vec<u32>>()
        };
        let all: Vec<_> = lengths.iter().enumerate().map(tokens).collect();
        let sequences = all.iter().map(|tokens| Sequence { tokens, prompt: 1 });
        let batch = Batch::pack(&sequences.collect::<Vec<_>>()).unwrap();
        let dropout = Dropout::of_step(self.dropout, self.seed, self.step);
        let samples = (0..lengths.len()).map(|nth| (number << 8 | nth) as u128);
        let batch = batch.dropping(dropout, &samples.collect::<Vec<_>>());
        batch.of_ranks(self.context, self.context_kind, self.tensor)
    }

    /// Each sequence sees a picture of one visual token. This rank encodes those of its own sequences
    /// where features are not shared, else the part of all that `encodes` says.
    fn seeing(mut self, is_shared: bool, encodes: Range<usize>) -> Self {
        let pass = |picture: usize| {
            let mut pictures = Pictures::new();
            let pixels: Vec<u8> = (0..48).map(|at| (at * 37 + picture * 91) as u8).collect();
            pictures.push(&pixels, [(0, 0), (0, 1), (1, 0), (1, 1)]);
            pictures
        };
        self.pictures = Some(StepPictures {
            passes: encodes.clone().map(pass).collect(),
            rows: self.lengths.len(),
            first: encodes.start,
            is_shared,
        });
        self
    }
}

impl StepWork for Texts {
    type Error = &'static str;

    fn micro_batches(&self) -> usize {
        self.own.len().max(self.at_least)
    }

    fn pictures(&self) -> Option<&StepPictures> {
        self.pictures.as_ref()
    }

    fn counts(&self) -> Vec<u64> {
        let own = self.own.clone();
        let predicted = own.map(|number| self.packed(number).predicted() as u64);
        vec![predicted.sum()]
    }

    fn sums_loss(&self) -> bool {
        true
    }

    fn is_wanted(&self, counts: &[u64]) -> bool {
        assert_eq!(counts.len(), 1);
        self.wanted
    }

    fn batch(&mut self, micro: usize) -> Result<Batch, Self::Error> {
        let own = self.own.clone().nth(micro);
        let number = own.unwrap_or(self.lengths.len());
        let batch = self.packed(number);
        Ok(match self.pictures {
            None => batch,
            Some(_) => {
                let mut seen = vec![0; batch.processed()];
                seen[0] = number as u32 + 1;
                batch.seeing(seen)
            }
        })
    }

    fn evaluate(
        &mut self,
        micro: usize,
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Self::Error> {
        if self.fails == Some(micro) {
            return Err("no loss");
        }
        let weight = 1.0 / counts[0] as f32;
        gradients.logprobs.fill(-self.policy * weight);
        gradients.entropies.fill(-self.entropy * weight);
        let nats: f64 = scores.logprobs.iter().map(|it| -f64::from(*it)).sum();
        let mut loss = f64::from(self.policy) * nats;
        let entropy: f32 = scores.entropies.iter().sum();
        loss -= f64::from(self.entropy * entropy);
        for (value, gradient) in scores.values.iter().zip(&mut gradients.values) {
            *gradient = weight * (value - 1.0);
            loss += 0.5 * f64::from((value - 1.0) * (value - 1.0));
        }
        Ok(loss / counts[0] as f64)
    }
}

type Told = (StepOutcome, Vec<f32>, Vec<StepOperation>);

/// One step: its outcome, the parameters after it, and the operations that were done.
fn stepped(mut work: Texts, learns: bool, mut rank: Option<Rank>) -> Result<Told, &'static str> {
    let mut trainer = trainer();
    let mut done = vec![];
    let plan = plan(&StepShape::of(&work, rank.is_some(), learns));
    let mut after = |operation| {
        done.push(operation);
        Ok(())
    };
    let peers = StepPeers {
        data: rank.as_mut(),
        ..StepPeers::none()
    };
    let outcome = trainer.run(&plan, &mut work, peers, &mut after)?;
    Ok((outcome, trainer.model().to_flat(), done))
}

/// The same on ranks.
fn together(works: Vec<Texts>) -> Vec<Told> {
    let ranks = Rank::all(works.len()).into_iter().zip(works);
    let threads: Vec<_> = ranks
        .map(|(rank, work)| thread::spawn(move || stepped(work, true, Some(rank)).unwrap()))
        .collect();
    threads.into_iter().map(|it| it.join().unwrap()).collect()
}

fn apart(one: &[f32], other: &[f32]) -> f32 {
    let pairs = one.iter().zip(other);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_plan_has_what_its_shape_asks_for_in_one_order() {
    let alone = StepShape {
        micro_batches: 2,
        learns: true,
        ..StepShape::default()
    };
    assert_eq!(plan(&alone), [Accumulate(0), Accumulate(1), Apply]);
    let rates = StepShape {
        learns: false,
        ..alone
    };
    assert_eq!(plan(&rates), [Forward(0), Forward(1)]);
    let among = StepShape {
        has_peers: true,
        sums_loss: true,
        ..alone
    };
    assert_eq!(
        plan(&among),
        [
            Count,
            Accumulate(0),
            Accumulate(1),
            SumGradients,
            Apply,
            SumLoss
        ]
    );
    let own_pictures = StepShape {
        pictures: Some(PictureShape {
            passes: 1,
            is_shared: false,
        }),
        micro_batches: 1,
        ..among
    };
    assert_eq!(
        plan(&own_pictures),
        [
            Count,
            Encode(0),
            Accumulate(0),
            AccumulateEncoder(0),
            SumGradients,
            Apply,
            SumLoss
        ]
    );
    let shared = StepShape {
        shares_optimizer: true,
        ..among
    };
    assert_eq!(
        plan(&shared),
        [
            Count,
            Accumulate(0),
            Accumulate(1),
            ScatterGradients,
            Apply,
            GatherParameters,
            SumLoss
        ]
    );
    let part = StepShape {
        has_tensor_part: true,
        ..among
    };
    assert_eq!(
        plan(&part),
        [
            Count,
            Accumulate(0),
            Accumulate(1),
            SumPartialGradients,
            SumGradients,
            SumSquares,
            Apply,
            SumLoss
        ]
    );
    let shard = StepShape {
        has_tensor_part: true,
        has_shard: true,
        has_replicas: true,
        ..among
    };
    assert_eq!(
        plan(&shard),
        [
            Count,
            Accumulate(0),
            Accumulate(1),
            SumReplicas,
            SumSquares,
            Apply,
            SumLoss
        ]
    );
    // One copy of the model, shared by several.
    let only = StepShape {
        has_peers: false,
        micro_batches: 1,
        ..part
    };
    assert_eq!(
        plan(&only),
        [Accumulate(0), SumPartialGradients, SumSquares, Apply]
    );
    let of_experts = StepShape {
        has_expert_part: true,
        has_same_experts: true,
        ..among
    };
    assert_eq!(
        plan(&of_experts),
        [
            Count,
            Accumulate(0),
            Accumulate(1),
            SumGradients,
            SumExpertGradients,
            SumSquares,
            Apply,
            SumLoss
        ]
    );
    // A rank with nothing of its own encodes nothing, learns from nothing, and takes part in all sums.
    let idle = StepShape {
        micro_batches: 0,
        pictures: Some(PictureShape {
            passes: 0,
            is_shared: true,
        }),
        ..among
    };
    assert_eq!(
        plan(&idle),
        [
            Count,
            SumFeatures,
            SumFeatureGradients,
            SumGradients,
            Apply,
            SumLoss
        ]
    );
}

proptest! {
    /// Else ranks would wait for each other for ever.
    #[test]
    fn all_ranks_plan_the_same_collectives(
        micro_batches in prop::array::uniform2(0usize..4),
        passes in prop::array::uniform2(0usize..3),
        is_shared in any::<bool>(),
        learns in any::<bool>(),
        sums_loss in any::<bool>(),
        has_pictures in any::<bool>(),
        shares_optimizer in any::<bool>(),
        has_tensor_part in any::<bool>(),
        has_expert_part in any::<bool>(),
        has_shard in any::<bool>(),
    ) {
        let collectives = |rank: usize| -> Vec<StepOperation> {
            let shape = StepShape {
                micro_batches: micro_batches[rank],
                // Pictures are shared on all or on none; a rank may have none of its own.
                pictures: has_pictures.then_some(PictureShape { passes: passes[rank], is_shared }),
                has_peers: true,
                has_tensor_part,
                has_expert_part,
                has_same_experts: has_expert_part,
                has_shard,
                has_replicas: has_shard,
                pipeline: None,
                learns,
                sums_loss,
                shares_optimizer,
                // To look is no matter of others.
                is_guarded: rank == 0,
            };
            let plan = plan(&shape);
            let once: BTreeSet<String> = plan.iter().map(|it| format!("{it:?}")).collect();
            assert_eq!(once.len(), plan.len(), "nothing is done twice");
            plan.into_iter().filter(|it| it.is_collective()).collect()
        };
        prop_assert_eq!(collectives(0), collectives(1));
    }

    /// SEMANTICS 34.
    /// SEMANTICS 87.
    #[test]
    fn ranks_take_the_step_that_one_would_take(
        lengths in prop::collection::vec(2..LONGEST, 1..6),
        cut in 0usize..6,
        pictures in prop::option::of((any::<bool>(), 0usize..6)),
    ) {
        let (count, cut) = (lengths.len(), cut.min(lengths.len()));
        let sees = |work: Texts| match pictures {
            None => work,
            Some((true, encoded)) => {
                let encoded = encoded.min(count);
                let part = if work.own.start == 0 && work.own.end == cut { 0..encoded } else { encoded..count };
                work.seeing(true, part)
            }
            Some((false, _)) => {
                let own = work.own.clone();
                work.seeing(false, own)
            }
        };
        let whole = Texts::of(&lengths, 0..count);
        let whole = match pictures {
            None => whole,
            Some(_) => whole.seeing(false, 0..count),
        };
        let (outcome, parameters, _) = stepped(whole, true, None).unwrap();
        let first = sees(Texts::of(&lengths, 0..cut));
        let mut second = Texts::of(&lengths, cut..count);
        second = match pictures {
            Some((true, encoded)) => second.seeing(true, encoded.min(count)..count),
            _ => sees(second),
        };
        let ranks = together(vec![first, second]);
        for (theirs, own, _) in &ranks {
            prop_assert_eq!(&theirs.counts, &outcome.counts);
            prop_assert!((theirs.loss - outcome.loss).abs() < 1e-5, "{} {}", theirs.loss, outcome.loss);
            let (ours, theirs) = (outcome.update.unwrap(), theirs.update.unwrap());
            prop_assert!((ours.grad_norm / theirs.grad_norm - 1.0).abs() < 1e-5);
            let (before, lr) = (trainer().model().to_flat(), ours.lr);
            prop_assert!(apart(&before, own) > 0.5 * lr, "it has learnt");
        }
        prop_assert!(ranks[0].1 == ranks[1].1, "ranks have the same weights to the bit");
        let flops: f64 = ranks.iter().map(|it| it.0.flops).sum();
        prop_assert!((flops / outcome.flops - 1.0).abs() < 1e-12, "{flops} {}", outcome.flops);
        // AdamW's first step goes by the sign alone: gradients that are nearly nothing may differ in it.
        let differ = parameters.iter().zip(&ranks[0].1).filter(|(a, b)| (*a - *b).abs() > 1e-6);
        prop_assert!(differ.count() * 100 < parameters.len());
    }
}

/// A rank's part, and what its optimiser keeps of that.
type KeptPart = (Range<usize>, Vec<Vec<f32>>);

/// Parameters after some steps of ranks with so many sequences each, what each keeps, and its part.
fn trained(config: &TrainConfig, dealt: &[usize], shares: bool) -> (Vec<f32>, Vec<KeptPart>) {
    let lengths = [5, 3, 8, 2, 7, 4, 6, 9];
    let ranks = Rank::all(dealt.len()).into_iter().enumerate();
    let threads = ranks.map(|(number, mut rank)| {
        let first: usize = dealt[..number].iter().sum();
        let mut work = Texts::of(&lengths, first..first + dealt[number]);
        let (config, world) = (config.clone(), dealt.len());
        thread::spawn(move || {
            let model = trainer().into_model();
            let mut trainer = match shares {
                true => Trainer::sharing(model, config, number, world),
                false => Trainer::new(model, config),
            };
            let shape = StepShape {
                shares_optimizer: shares,
                ..StepShape::of(&work, true, true)
            };
            for _ in 0..3 {
                let done = trainer.run(
                    &plan(&shape),
                    &mut work,
                    StepPeers::data(&mut rank),
                    &mut |_| Ok(()),
                );
                assert!(done.unwrap().update.unwrap().applied);
                assert!(trainer.gradient().iter().all(|number| *number == 0.0));
            }
            let part = trainer.part().clone();
            let states = 0..trainer.config().optimizer.state().len();
            let states = states.map(|number| {
                let mut kept = vec![0.0; part.len()];
                trainer.read_part(StatePart::State(number), part.start, &mut kept);
                kept
            });
            let states = states.collect();
            (trainer.model().to_flat(), (part, states))
        })
    });
    let threads: Vec<_> = threads.collect();
    let all = threads.into_iter().map(|it| it.join().unwrap());
    let (parameters, kept): (Vec<_>, Vec<_>) = all.unzip();
    assert!(
        parameters.iter().all(|it| *it == parameters[0]),
        "the same to the bit"
    );
    (parameters.into_iter().next().unwrap(), kept)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 131. To the bit; where gradients are clipped, but for how the squares are added up.
    #[test]
    fn ranks_that_share_an_optimiser_take_the_steps_of_those_that_do_not(
        dealt in prop::collection::vec(0usize..3, 1..5),
        optimizer in prop::sample::select(vec!["adamw", "muon", "lion"]),
        clip in prop::option::of(Just(0.05f32)),
    ) {
        prop_assume!(dealt.iter().sum::<usize>() > 0);
        let config = TrainConfig {
            optimizer: Optimizer::named(optimizer).unwrap(),
            clip,
            ..TrainConfig::default()
        };
        let (apart, whole) = trained(&config, &dealt, false);
        let (shared, parts) = trained(&config, &dealt, true);
        let near = |a: f32, b: f32| match clip {
            None => a.to_bits() == b.to_bits(),
            Some(_) => (a - b).abs() <= 1e-6 * (a.abs() + 1e-3),
        };
        prop_assert!(apart.iter().zip(&shared).all(|(a, b)| near(*a, *b)));
        // Each number that is kept is with one rank, and is what all ranks kept before.
        let mut next = 0;
        for (part, states) in &parts {
            prop_assert_eq!(part.start, next);
            next = part.end;
            for (own, all) in states.iter().zip(&whole[0].1) {
                prop_assert!(own.iter().zip(&all[part.clone()]).all(|(a, b)| near(*a, *b)));
            }
        }
        prop_assert_eq!(next, shared.len());
        let most = parts.iter().map(|(part, _)| part.len()).max().unwrap();
        let even = shared.len().div_ceil(dealt.len());
        prop_assert!(optimizer == "muon" || most < even + 16, "{} of {}", most, even);
    }
}

/// A gradient that is no number changes no rank's weights.
#[test]
fn a_shared_step_without_a_finite_gradient_changes_nothing() {
    let ranks = Rank::all(2).into_iter().enumerate();
    let threads: Vec<_> = ranks
        .map(|(number, mut rank)| {
            thread::spawn(move || {
                let model = trainer().into_model();
                let mut trainer = Trainer::sharing(model, TrainConfig::default(), number, 2);
                let before = trainer.model().to_flat();
                let mut work = Texts::of(&[5, 4], number..number + 1);
                let shape = StepShape {
                    shares_optimizer: true,
                    ..StepShape::of(&work, true, true)
                };
                let part = trainer.part().clone();
                // In the part of the other rank alone.
                let poisoned = match number {
                    0 => part.end,
                    _ => part.start - 1,
                };
                trainer.trained_gradient_mut().as_mut_slice()[poisoned] = f32::NAN;
                let done = trainer.run(
                    &plan(&shape),
                    &mut work,
                    StepPeers::data(&mut rank),
                    &mut |_| Ok(()),
                );
                let update = done.unwrap().update.unwrap();
                assert!(!update.applied && update.step == 0);
                assert_eq!(trainer.model().to_flat(), before);
            })
        })
        .collect();
    threads.into_iter().for_each(|it| it.join().unwrap());
}

#[test]
fn a_step_that_fails_leaves_nothing_behind() {
    let work = Texts::of(&[5, 4, 7], 0..3);
    let mut trainer = trainer();
    let mut failing = Texts {
        fails: Some(1),
        ..work.clone()
    };
    let steps = plan(&StepShape::of(&failing, false, true));
    let failed = trainer.run(&steps, &mut failing, StepPeers::<Rank>::none(), &mut |_| {
        Ok(())
    });
    assert_eq!(failed.unwrap_err(), "no loss");
    assert!(trainer.gradient().iter().all(|number| *number == 0.0));
    let mut again = work.clone();
    let done = trainer.run(&steps, &mut again, StepPeers::<Rank>::none(), &mut |_| {
        Ok(())
    });
    let (outcome, parameters, _) = stepped(work, true, None).unwrap();
    assert_eq!(done.unwrap(), outcome);
    assert!(trainer.model().to_flat() == parameters);
}

#[test]
fn a_step_that_rates_learns_nothing_and_says_the_same() {
    let work = Texts::of(&[5, 4, 7], 0..3).seeing(false, 0..3);
    let (learnt, ..) = stepped(work.clone(), true, None).unwrap();
    let (rated, parameters, done) = stepped(work, false, None).unwrap();
    assert!((rated.loss - learnt.loss).abs() < 1e-6);
    assert_eq!(rated.update, None);
    assert!(rated.flops < 0.5 * learnt.flops);
    assert!(parameters == trainer().model().to_flat());
    assert_eq!(done.len(), 6);
}

#[test]
fn a_step_in_which_nobody_has_anything_changes_nothing_on_any_rank() {
    let unwanted = |own| Texts {
        wanted: false,
        ..Texts::of(&[5, 4], own)
    };
    let (outcome, parameters, done) = stepped(unwanted(0..2), true, None).unwrap();
    assert_eq!((outcome.update, done), (None, vec![]));
    assert!(parameters == trainer().model().to_flat());
    for (outcome, parameters, done) in together(vec![unwanted(0..1), unwanted(1..2)]) {
        assert_eq!((outcome.update, done), (None, vec![Count]));
        assert_eq!(outcome.counts, [7]);
        assert!(parameters == trainer().model().to_flat());
    }
}

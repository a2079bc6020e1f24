//! Tests of steps as data.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use odeon_gpu::Cpu;
use proptest::prelude::*;

use super::StepOperation::*;
use super::*;
use crate::model::{Model, ModelConfig, Sequence, VisionConfig};
use crate::train::TrainConfig;

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
    table: Mutex<Vec<Vec<f64>>>,
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

    /// All ranks say as many numbers: else they are in different operations.
    fn total(&self, own: Vec<f64>) -> Vec<f64> {
        let len = own.len();
        self.meeting.table.lock().unwrap()[self.rank] = own;
        self.meeting.barrier.wait();
        let mut sums = vec![0.0; len];
        for numbers in self.meeting.table.lock().unwrap().iter() {
            assert_eq!(numbers.len(), len, "ranks are in one collective");
            sums.iter_mut()
                .zip(numbers)
                .for_each(|(sum, own)| *sum += own);
        }
        self.meeting.barrier.wait();
        sums
    }
}

impl Peers<Cpu> for Rank {
    type Error = &'static str;

    fn rank(&self) -> usize {
        self.rank
    }

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Self::Error> {
        let sums = self.total(numbers.iter().copied().map(f64::from).collect());
        numbers
            .iter_mut()
            .zip(sums)
            .for_each(|(own, sum)| *own = sum as f32);
        Ok(())
    }

    fn count(&mut self, counts: &mut [u64]) -> Result<(), Self::Error> {
        let sums = self.total(counts.iter().map(|count| *count as f64).collect());
        counts
            .iter_mut()
            .zip(sums)
            .for_each(|(own, sum)| *own = sum as u64);
        Ok(())
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
}

impl Texts {
    fn of(lengths: &[usize], own: Range<usize>) -> Self {
        Self {
            own,
            lengths: lengths.to_vec(),
            pictures: None,
            fails: None,
            wanted: true,
        }
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
        self.own.len()
    }

    fn pictures(&self) -> Option<&StepPictures> {
        self.pictures.as_ref()
    }

    fn counts(&self) -> Vec<u64> {
        let own = &self.lengths[self.own.clone()];
        vec![own.iter().map(|length| *length as u64 - 1).sum()]
    }

    fn sums_loss(&self) -> bool {
        true
    }

    fn is_wanted(&self, counts: &[u64]) -> bool {
        assert_eq!(counts.len(), 1);
        self.wanted
    }

    fn batch(&mut self, micro: usize) -> Result<Batch, Self::Error> {
        let number = self.own.start + micro;
        let length = self.lengths[number] as u32;
        let tokens: Vec<u32> = (0..length)
            .map(|at| (at * at + 5 * number as u32) % 23)
            .collect();
        let batch = Batch::pack(&[Sequence {
            tokens: &tokens,
            prompt: 1,
        }]);
        let batch = batch.unwrap();
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
        gradients.logprobs.fill(-weight);
        let nats: f64 = scores.logprobs.iter().map(|it| -f64::from(*it)).sum();
        Ok(nats / counts[0] as f64)
    }
}

type Told = (StepOutcome, Vec<f32>, Vec<StepOperation>);

/// One step: its outcome, the parameters after it, and the operations that were done.
fn stepped(mut work: Texts, learns: bool, mut rank: Option<Rank>) -> Result<Told, &'static str> {
    let mut trainer = trainer();
    let mut done = vec![];
    let plan = plan(&StepShape::of(&work, rank.is_some(), learns));
    let mut after = |operation| done.push(operation);
    let outcome = trainer.run(&plan, &mut work, rank.as_mut(), &mut after)?;
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
    ) {
        let collectives = |rank: usize| -> Vec<StepOperation> {
            let shape = StepShape {
                micro_batches: micro_batches[rank],
                // Pictures are shared on all or on none; a rank may have none of its own.
                pictures: has_pictures.then_some(PictureShape { passes: passes[rank], is_shared }),
                has_peers: true,
                learns,
                sums_loss,
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

#[test]
fn a_step_that_fails_leaves_nothing_behind() {
    let work = Texts::of(&[5, 4, 7], 0..3);
    let mut trainer = trainer();
    let mut failing = Texts {
        fails: Some(1),
        ..work.clone()
    };
    let steps = plan(&StepShape::of(&failing, false, true));
    let failed = trainer.run(&steps, &mut failing, None::<&mut Rank>, &mut |_| {});
    assert_eq!(failed.unwrap_err(), "no loss");
    assert!(trainer.gradient().iter().all(|number| *number == 0.0));
    let mut again = work.clone();
    let done = trainer.run(&steps, &mut again, None::<&mut Rank>, &mut |_| {});
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

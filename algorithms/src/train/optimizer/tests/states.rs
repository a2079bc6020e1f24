//! States of optimisers inside a trainer: their size, their way out and back, and whose they are.

use odeon_gpu::Cpu;

use super::*;
use crate::model::{Batch, LoraConfig, Model, ModelConfig, Sequence};
use crate::train::tests::state;
use crate::train::{CrossEntropy, StateError, TrainConfig, Trainer};

fn model(rank: Option<usize>) -> Model {
    let config = ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        ffn: 20,
        ..ModelConfig::default()
    };
    let mut model = Model::init(Cpu::new(1), config, 11).unwrap();
    if let Some(rank) = rank {
        model.add_lora(
            LoraConfig {
                rank,
                ..LoraConfig::default()
            },
            5,
        );
    }
    model
}

fn trainer(optimizer: Optimizer, rank: Option<usize>) -> Trainer {
    let settings = TrainConfig {
        lr: 3e-3,
        optimizer,
        ..TrainConfig::default()
    };
    Trainer::new(model(rank), settings)
}

fn lion() -> Optimizer {
    Optimizer::Lion(Lion::default())
}

fn adamw() -> Optimizer {
    Optimizer::AdamW(AdamW::default())
}

fn step(trainer: &mut Trainer) -> (f64, f32) {
    let tokens: Vec<u32> = (0..60).map(|i| i * i % 23).collect();
    let sequence = Sequence {
        tokens: &tokens,
        prompt: 1,
    };
    let batch = Batch::pack(&[sequence]).unwrap();
    let mut objective = CrossEntropy::mean_over(batch.predicted());
    let loss = trainer.accumulate(&batch, &mut objective).loss;
    (loss, trainer.apply(1.0).grad_norm)
}

#[test]
fn a_state_of_lion_has_one_number_a_parameter_where_adamw_has_two() {
    for rank in [None, Some(3)] {
        let sizes = [lion(), adamw(), Optimizer::Muon(Muon::default())].map(|optimizer| {
            let trainer = trainer(optimizer, rank);
            let held: usize = trainer.optimizer.state.iter().map(Cpu::len).sum();
            let stored = state(&trainer).parts[1..].concat().concat().len();
            assert_eq!(stored, 4 * held, "in memory as in checkpoints");
            held
        });
        let parameters = model(rank).trainable_parameters();
        assert_eq!(sizes, [parameters, 2 * parameters, 2 * parameters]);
    }
}

#[test]
fn lion_learns_and_goes_on_from_a_state_in_the_middle_to_the_bit() {
    for rank in [None, Some(3)] {
        let mut whole = trainer(lion(), rank);
        let (first, _) = step(&mut whole);
        for _ in 0..30 {
            step(&mut whole);
        }
        let middle = state(&whole);
        let mut again = trainer(lion(), rank);
        let weights = whole.model().flat().to_vec();
        again.model_mut().load_flat(&weights).unwrap();
        middle.put_into(&mut again).unwrap();
        let mut last = first;
        for _ in 0..30 {
            let ours = step(&mut again);
            assert_eq!(ours, step(&mut whole));
            last = ours.0;
        }
        assert_eq!(again.model().to_flat(), whole.model().to_flat());
        assert_eq!(state(&again), state(&whole));
        assert!(last < 0.95 * first, "from {first} to {last}");
    }
}

/// The first step of Lion moves each element by the learning rate, whatever the gradient's size: clipping
/// shows in the moment alone.
#[test]
fn a_large_gradient_is_scaled_down_before_it_enters_the_moment() {
    let moment = |clip| {
        let settings = TrainConfig {
            optimizer: lion(),
            clip,
            ..TrainConfig::default()
        };
        let mut trainer = Trainer::new(model(None), settings);
        let (_, norm) = step(&mut trainer);
        let moment = trainer.optimizer.state[0].as_slice().iter();
        let squares: f64 = moment.map(|m| f64::from(*m).powi(2)).sum();
        // One part of a hundred of the gradient enters.
        (f64::from(norm), squares.sqrt() / (1.0 - f64::from(0.99f32)))
    };
    let (norm, entered) = moment(None);
    assert!((entered / norm - 1.0).abs() < 1e-4, "{entered} of {norm}");
    let (same, entered) = moment(Some(norm as f32 / 4.0));
    assert!((same - norm).abs() < 1e-6 && (4.0 * entered / norm - 1.0).abs() < 1e-4);
}

#[test]
fn a_state_of_another_optimiser_is_refused_and_both_are_named() {
    let all = Optimizer::WORDS.iter();
    let all: Vec<_> = all.map(|word| Optimizer::named(word).unwrap()).collect();
    for theirs in &all {
        let state = state(&trainer(*theirs, None));
        for ours in &all {
            let read = state.put_into(&mut trainer(*ours, None));
            if theirs == ours {
                read.unwrap();
                continue;
            }
            let error = read.unwrap_err();
            let StateError::Optimizer { found, expected } = error else {
                panic!("{error}");
            };
            assert_eq!((found, expected), (theirs.name(), ours.name()));
            assert!(error.to_string().contains(&format!(
                "the state is of {found}, and this trainer uses {expected}"
            )));
        }
    }
}

/// The supervised steps before a reinforcement have an optimiser of their own.
#[test]
fn a_restart_with_another_optimiser_is_as_if_it_had_been_the_first() {
    let mut begun = trainer(adamw(), None);
    for _ in 0..3 {
        step(&mut begun);
    }
    let mut fresh = trainer(lion(), None);
    let weights = begun.model().flat().to_vec();
    fresh.model_mut().load_flat(&weights).unwrap();
    begun.restart(fresh.config().clone());
    assert_eq!(begun.optimizer.state.len(), 1);
    for _ in 0..3 {
        assert_eq!(step(&mut begun), step(&mut fresh));
    }
    assert_eq!(begun.model().flat(), fresh.model().flat());
    assert_eq!(state(&begun), state(&fresh));
}

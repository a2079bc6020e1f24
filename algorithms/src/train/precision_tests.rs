//! Tests of training with products in bf16.

use odeon_gpu::{CpuOptions, Precision};
use odeon_skip::{Need, skip};

use super::*;
use crate::model::{ModelConfig, Sequence};

/// The losses of 80 steps over texts of a few words.
fn losses(cpu: Cpu) -> Vec<f64> {
    let config = ModelConfig {
        vocab: 40,
        dim: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 150,
        ..ModelConfig::default()
    };
    let model = Model::init(cpu, config, 3).unwrap();
    let settings = TrainConfig {
        lr: 2e-3,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(model, settings);
    let words = [3u32, 17, 5, 29, 11];
    let texts: Vec<Vec<u32>> = (0..8)
        .map(|text| {
            let token = |at: u32| (at * words[(text + at as usize / 7) % 5] + at / 3) % 40;
            (0..65).map(token).collect()
        })
        .collect();
    let sequences: Vec<_> = texts
        .iter()
        .map(|tokens| Sequence { tokens, prompt: 1 })
        .collect();
    let batch = Batch::pack(&sequences).unwrap();
    let step = |_| {
        let mut objective = CrossEntropy::mean_over(batch.predicted());
        let loss = trainer.accumulate(&batch, &mut objective).loss;
        trainer.apply(1.0);
        loss
    };
    (0..80).map(step).collect()
}

#[test]
fn a_model_learns_in_bf16_what_it_learns_in_f32() {
    let options = CpuOptions {
        threads: 2,
        products: Precision::Bf16,
        ..CpuOptions::default()
    };
    let open = || Cpu::open(&options);
    let (one, other) = match (open(), open()) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(error), _) | (_, Err(error)) => return skip(Need::Bf16, error),
    };
    let (rounded, whole) = (losses(one), losses(Cpu::new(2)));
    // Of what there is to learn; a loss that falls steeply is soon some percent of itself apart.
    for (step, (rounded, whole_loss)) in rounded.iter().zip(&whole).enumerate() {
        let apart = (rounded - whole_loss).abs() / whole[0];
        assert!(
            apart < 0.03,
            "step {step}: {rounded} beside {whole_loss} in f32"
        );
    }
    let [sum, sum_whole] = [&rounded, &whole].map(|all| all.iter().sum::<f64>());
    let apart = (sum / sum_whole - 1.0).abs();
    assert!(apart < 0.03, "losses are {apart} of themselves apart");
    let learned = rounded[79] / rounded[0];
    assert!(learned < 0.5, "the loss fell to {learned} of what it was");
    assert_ne!(rounded, whole, "products are rounded");
    assert_eq!(rounded, losses(other), "a run repeats to the bit");
}

//! Tests of training a model that reads pictures.

use super::*;
use crate::model::{ModelConfig, Pictures, Sequence, VisionConfig};

fn config() -> ModelConfig {
    ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        ffn: 20,
        vision: Some(VisionConfig {
            patch: 2,
            dim: 16,
            layers: 2,
            heads: 2,
            ffn: 12,
        }),
        ..ModelConfig::default()
    }
}

fn trainer() -> Trainer {
    let mut model = Model::init(Cpu::new(1), config(), 11).unwrap();
    let flat: Vec<f32> = model
        .flat()
        .iter()
        .map(|w| if *w == 1.0 { 1.0 } else { 8.0 * w })
        .collect();
    model.load_flat(&flat).unwrap();
    Trainer::new(model, TrainConfig::default())
}

/// Pictures of these sizes in visual tokens, each with pixels of its own.
fn pictures(which: &[usize]) -> Pictures {
    let sizes = [(1, 2), (2, 2), (1, 1)];
    let mut pictures = Pictures::new();
    for picture in which {
        let (height, width) = sizes[*picture];
        let patches = 4 * height * width;
        let pixels: Vec<u8> = (0..patches * 12)
            .map(|at| (at * 37 + picture * 91 + at * at) as u8)
            .collect();
        let places = (0..patches as u32).map(|patch| {
            let (token, corner) = (patch / 4, patch % 4);
            let (row, column) = (token / width as u32, token % width as u32);
            (row * 2 + corner / 2, column * 2 + corner % 2)
        });
        pictures.push(&pixels, places);
    }
    pictures
}

/// Two sequences with the first two pictures, one with the third; features are numbered in the order
/// of the pictures.
fn batch() -> Batch {
    let rows: [&[u32]; 3] = [&[0, 0, 3, 4, 5, 9], &[1, 0, 0, 0, 0, 7, 2], &[0, 8, 9, 9]];
    let sequences = rows.map(|tokens| Sequence { tokens, prompt: 2 });
    let batch = Batch::pack(&sequences).unwrap();
    batch.seeing(vec![1, 2, 0, 0, 0, 0, 3, 4, 5, 6, 0, 7, 0, 0])
}

fn mixed(scores: &TokenScores, gradients: &mut TokenGradients) -> f64 {
    let mut loss = 0.0;
    for i in 0..scores.logprobs.len() {
        let c = [0.3, -0.7, 1.1][i % 3] / 10.0;
        loss += f64::from(c * scores.logprobs[i]);
        gradients.logprobs[i] = c;
    }
    loss
}

/// One pass over all.
fn pass(trainer: &mut Trainer) -> f64 {
    let pictures = pictures(&[0, 1, 2]);
    let features = trainer.encode(&pictures);
    let (evaluation, gradient) = trainer.accumulate_seeing(&batch(), &features, &mut mixed);
    assert_eq!(gradient.len(), features.len());
    trainer.accumulate_encoder(&pictures, &gradient);
    evaluation.loss
}

/// SEMANTICS 109.
#[test]
fn the_gradient_through_pictures_is_the_slope_of_the_loss() {
    let mut trainer = trainer();
    pass(&mut trainer);
    let gradient = trainer.gradient();
    let of_vision: f64 = trainer
        .model()
        .layout()
        .entries()
        .iter()
        .filter(|entry| entry.name.starts_with("vision_tower"))
        .flat_map(|entry| &gradient[entry.range.clone()])
        .map(|g| f64::from(*g) * f64::from(*g))
        .sum();
    let squares: f64 = gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
    assert!(of_vision > 0.01 * squares, "{of_vision} of {squares}");
    let start = trainer.model().flat().to_vec();
    let step = 2e-3 / squares.sqrt();
    let mut loss_at = |side: f64| {
        let moved = start.iter().zip(&gradient);
        let moved: Vec<f32> = moved.map(|(s, g)| s + (side * step) as f32 * g).collect();
        trainer.model_mut().load_flat(&moved).unwrap();
        pass(&mut trainer)
    };
    let slope = (loss_at(1.0) - loss_at(-1.0)) / (2.0 * step);
    assert!(
        (slope / squares - 1.0).abs() < 0.01,
        "slope {slope}, gradient squared {squares}"
    );
}

/// Pictures may be encoded in any company and by anybody.
/// SEMANTICS 109.
#[test]
fn whoever_encodes_a_picture_the_gradient_is_the_same() {
    let mut whole = trainer();
    let loss = pass(&mut whole);
    let mut one = trainer();
    let mut other = trainer();
    let dim = 16;
    let (mut features, own) = (vec![0.0; 7 * dim], other.encode(&pictures(&[1])));
    let rest = one.encode(&pictures(&[0, 2]));
    features[..2 * dim].copy_from_slice(&rest[..2 * dim]);
    features[2 * dim..6 * dim].copy_from_slice(&own);
    features[6 * dim..].copy_from_slice(&rest[2 * dim..]);
    let (evaluation, gradient) = one.accumulate_seeing(&batch(), &features, &mut mixed);
    assert!((evaluation.loss - loss).abs() < 1e-6);
    other.accumulate_encoder(&pictures(&[1]), &gradient[2 * dim..6 * dim]);
    let rest = [&gradient[..2 * dim], &gradient[6 * dim..]].concat();
    one.accumulate_encoder(&pictures(&[0, 2]), &rest);
    let sum = one.gradient().into_iter().zip(other.gradient());
    let largest = sum
        .zip(whole.gradient())
        .map(|((a, b), all)| (a + b - all).abs())
        .fold(0.0, f32::max);
    assert!(largest < 1e-6, "{largest}");
}

#[test]
fn a_picture_changes_what_is_predicted_and_its_place_matters() {
    let mut trainer = trainer();
    let batch = batch();
    let features = trainer.encode(&pictures(&[0, 1, 2]));
    let seen = trainer.logprobs_seeing(&batch, &features);
    assert_ne!(seen, trainer.logprobs(&batch));
    let others = trainer.encode(&pictures(&[0, 1, 2]));
    assert_eq!(features, others, "a picture has one set of features");
    let alone = trainer.encode(&pictures(&[1]));
    let apart = features[2 * 16..6 * 16].iter().zip(&alone);
    let apart = apart.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-6, "in any company, but for rounding: {apart}");
}

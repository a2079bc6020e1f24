//! The head against its formulas, written out.

use odeon_gpu::Cpu;

use super::*;
use crate::model::Model;
use crate::model::{ContextKind, ModelConfig, PartPlace, Sequence, StagePlace};
use crate::model::{RankOf, Recompute};
use crate::train::{CrossEntropy, TrainConfig, Trainer};
use crate::weights::{ModelFields, ModelView, StoredType, load_directory, save};

const DIM: usize = 8;
const VOCAB: usize = 11;
const FFN: usize = 6;
const HEAD: usize = 4;

fn config(tied_head: bool) -> ModelConfig {
    ModelConfig {
        vocab: VOCAB,
        dim: DIM,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: HEAD,
        ffn: FFN,
        tied_head,
        next_token: true,
        ..ModelConfig::default()
    }
}

/// A model whose distributions are not flat.
fn stirred(config: &ModelConfig) -> Model {
    let mut model = Model::init(Cpu::new(1), config.clone(), 3).unwrap();
    let values = model
        .flat()
        .iter()
        .enumerate()
        .map(|(at, value)| match *value {
            1.0 => 1.0 + 0.1 * (at as f32).sin(),
            value => 12.0 * value,
        });
    let values: Vec<f32> = values.collect();
    model.load_flat(&values).unwrap();
    model
}

type Rows = Vec<Vec<f64>>;

/// Parameters by name, in `f64`.
struct Plain<'a> {
    model: &'a Model,
    flat: &'a [f64],
}

impl Plain<'_> {
    fn tensor(&self, name: &str) -> &[f64] {
        let entries = self.model.layout().entries().iter();
        let entry = entries.clone().find(|it| it.name == name);
        &self.flat[entry.unwrap().range.clone()]
    }

    fn norm(&self, name: &str, rows: &Rows) -> Rows {
        let weight = self.tensor(name);
        let normed = |row: &Vec<f64>| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let by = 1.0 / (mean + f64::from(self.model.config().norm_eps)).sqrt();
            row.iter().zip(weight).map(|(x, w)| x * by * w).collect()
        };
        rows.iter().map(normed).collect()
    }

    fn linear(&self, name: &str, rows: &Rows) -> Rows {
        let weight = self.tensor(name);
        let made = |row: &Vec<f64>| {
            let lines = weight.chunks(row.len());
            lines
                .map(|line| line.iter().zip(row).map(|(w, x)| w * x).sum())
                .collect()
        };
        rows.iter().map(made).collect()
    }

    /// Rotary positions of halves, causal attention of two query heads and one key head, and SwiGLU.
    fn layer(&self, number: usize, x: &Rows) -> Rows {
        let name = |own: &str| format!("model.layers.{number}.{own}.weight");
        let h = self.norm(&name("input_layernorm"), x);
        let [q, k, v] =
            ["q", "k", "v"].map(|it| self.linear(&name(&format!("self_attn.{it}_proj")), &h));
        let turned = |row: &[f64], position: usize| -> Vec<f64> {
            let half = HEAD / 2;
            let turn = |at: usize| {
                let angle =
                    position as f64 / 10_000f64.powf((2 * (at % half)) as f64 / HEAD as f64);
                let (sin, cos) = angle.sin_cos();
                match at < half {
                    true => row[at] * cos - row[at + half] * sin,
                    false => row[at] * cos + row[at - half] * sin,
                }
            };
            (0..HEAD).map(turn).collect()
        };
        let attended = |(at, row): (usize, &Vec<f64>)| -> Vec<f64> {
            let of_head = |head: &[f64]| -> Vec<f64> {
                let query = turned(head, at);
                let scores = (0..=at).map(|other| {
                    let key = turned(&k[other], other);
                    let dot: f64 = query.iter().zip(&key).map(|(a, b)| a * b).sum();
                    (dot / (HEAD as f64).sqrt()).exp()
                });
                let scores: Vec<f64> = scores.collect();
                let sum: f64 = scores.iter().sum();
                let value = |col: usize| {
                    (0..=at)
                        .map(|other| scores[other] / sum * v[other][col])
                        .sum()
                };
                (0..HEAD).map(value).collect()
            };
            row.chunks(HEAD).flat_map(of_head).collect()
        };
        let a = q.iter().enumerate().map(attended).collect();
        let x = added(x, &self.linear(&name("self_attn.o_proj"), &a));
        let h = self.norm(&name("post_attention_layernorm"), &x);
        let [gate, up] = ["gate", "up"].map(|it| self.linear(&name(&format!("mlp.{it}_proj")), &h));
        let pairs = gate.iter().zip(&up);
        let inner = pairs.map(|(gate, up)| {
            let gated = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
            gated.collect()
        });
        added(&x, &self.linear(&name("mlp.down_proj"), &inner.collect()))
    }

    fn logprobs(&self, norm: &str, rows: &Rows, labels: &[u32]) -> Vec<f64> {
        let head = match self.model.config().tied_head {
            true => "model.embed_tokens.weight",
            false => "lm_head.weight",
        };
        let logits = self.linear(head, &self.norm(norm, rows));
        let pairs = logits.iter().zip(labels);
        let each = pairs.map(|(row, label)| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row[*label as usize] - sum.ln()
        });
        each.collect()
    }

    /// Log-probabilities of a sequence from its second token on, and from its third on by the head.
    fn scores(&self, tokens: &[u32]) -> [Vec<f64>; 2] {
        let embedding = self.tensor("model.embed_tokens.weight");
        let embedded = |token: &u32| embedding[*token as usize * DIM..][..DIM].to_vec();
        let (last, read) = (tokens.len() - 1, &tokens[..tokens.len() - 1]);
        let mut x: Rows = read.iter().map(embedded).collect();
        for layer in 0..2 {
            x = self.layer(layer, &x);
        }
        let own = self.logprobs("model.norm.weight", &x, &tokens[1..]);
        let name = |own: &str| format!("model.layers.2.{own}.weight");
        // The row that knows the last token behind it is the last but one.
        let rows = self.norm(&name("hnorm"), &x[..last - 1].to_vec());
        let behind = self.norm(
            &name("enorm"),
            &tokens[1..last].iter().map(embedded).collect(),
        );
        let x = added(
            &self.linear(&name("h_proj"), &rows),
            &self.linear(&name("e_proj"), &behind),
        );
        let x = self.layer(2, &x);
        [
            own,
            self.logprobs(&name("shared_head.norm"), &x, &tokens[2..]),
        ]
    }
}

fn added(a: &Rows, b: &Rows) -> Rows {
    let rows = a.iter().zip(b);
    rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect())
        .collect()
}

const TEXTS: [&[u32]; 3] = [&[1, 5, 9, 2, 7, 3], &[4, 8], &[10, 0, 6, 6]];

fn batch() -> Batch {
    let sequences = TEXTS.map(|tokens| Sequence { tokens, prompt: 1 });
    Batch::pack(&sequences).unwrap()
}

/// The mean loss of the texts, and that of the head with as many tokens below the line.
fn losses(model: &Model, flat: &[f64]) -> [f64; 2] {
    let plain = Plain { model, flat };
    let all = TEXTS.map(|tokens| plain.scores(tokens));
    let mean = |which: usize| -all.iter().flat_map(|it| &it[which]).sum::<f64>() / 9.0;
    [mean(0), mean(1)]
}

fn settings(weight: f32) -> TrainConfig {
    TrainConfig {
        next_token_weight: weight,
        ..TrainConfig::default()
    }
}

fn accumulated(model: Model, settings: TrainConfig) -> (Trainer, [f64; 2]) {
    let mut trainer = Trainer::new(model, settings);
    let batch = batch();
    let mut mean = CrossEntropy::mean_over(batch.predicted());
    let done = trainer.accumulate(&batch, &mut mean);
    (trainer, [done.loss, done.next_token_loss])
}

/// SEMANTICS 145. Both losses are those of the formulas, and the gradient is the difference quotient of their weighted sum.
#[test]
fn losses_and_gradients_are_those_of_the_formulas() {
    for tied in [false, true] {
        let config = config(tied);
        let model = stirred(&config);
        let flat: Vec<f64> = model.flat().iter().map(|it| f64::from(*it)).collect();
        let expected = losses(&model, &flat);
        let (trainer, found) = accumulated(stirred(&config), settings(0.3));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
        let gradient = trainer.gradient();
        for entry in model.layout().entries() {
            let mut places: Vec<usize> = entry.range.clone().collect();
            places.sort_by(|a, b| gradient[*b].abs().total_cmp(&gradient[*a].abs()));
            for at in places.into_iter().take(4) {
                let moved = |by: f64| {
                    let mut flat = flat.clone();
                    flat[at] += by;
                    let [own, further] = losses(&model, &flat);
                    own + f64::from(0.3f32) * further
                };
                let differs = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let gradient = f64::from(gradient[at]);
                let within = 1e-4 * differs.abs() + 2e-6;
                assert!(
                    (gradient - differs).abs() < within,
                    "{}: {gradient} {differs}",
                    entry.name
                );
            }
        }
    }
}

/// Without a weight the head costs nothing and learns nothing, and what is computed again is the same to the bit.
#[test]
fn a_head_without_a_weight_is_left_alone() {
    let of = |weight, recompute| {
        let settings = TrainConfig {
            recompute,
            ..settings(weight)
        };
        accumulated(stirred(&config(true)), settings)
    };
    let (without, told) = of(0.0, Recompute::Nothing);
    let gradient = without.gradient();
    for entry in without.model().layout().entries() {
        let is_still = gradient[entry.range.clone()].iter().all(|it| *it == 0.0);
        assert_eq!(
            is_still,
            entry.name.starts_with("model.layers.2."),
            "{}",
            entry.name
        );
    }
    assert_eq!(told[1], 0.0);
    let (with, _) = of(0.3, Recompute::Nothing);
    assert!(with.activation_bytes(&batch()).device > without.activation_bytes(&batch()).device);
    assert!(of(0.3, Recompute::Layers).0.gradient() == with.gradient());
}

#[test]
fn the_head_learns_beside_the_model() {
    let settings = TrainConfig {
        lr: 1e-2,
        ..settings(0.3)
    };
    let mut trainer = Trainer::new(stirred(&config(true)), settings);
    let batch = batch();
    let told = (0..60).map(|_| {
        let mut mean = CrossEntropy::mean_over(batch.predicted());
        let done = trainer.accumulate(&batch, &mut mean);
        trainer.apply(1.0);
        [done.loss, done.next_token_loss]
    });
    let told: Vec<[f64; 2]> = told.collect();
    for which in 0..2 {
        assert!(
            told[59][which] < 0.2 * told[0][which],
            "{:?} {:?}",
            told[0],
            told[59]
        );
    }
}

#[test]
fn ranks_that_cannot_have_it_are_named() {
    let config = config(true);
    let of = |place| config.part(place).unwrap_err().to_string();
    let tensor = of(PartPlace::of_tensor(0, 2));
    let stage = of(PartPlace {
        stage: StagePlace {
            rank: RankOf::new(0, 2),
            chunks: 1,
            layers: None,
        },
        ..PartPlace::WHOLE
    });
    let context = config
        .check_context(ContextKind::Ring, 2)
        .unwrap_err()
        .to_string();
    for (error, kind) in [
        (tensor, "tensor"),
        (stage, "pipeline"),
        (context, "context"),
    ] {
        let expected = "a model with a head for one token further (multi-token prediction) cannot be shared by 2";
        assert!(
            error.starts_with(expected) && error.contains(kind),
            "{error}"
        );
    }
    let wide = ModelConfig {
        width: Some(crate::model::VirtualWidth::default()),
        ..config
    };
    assert!(
        wide.check()
            .unwrap_err()
            .to_string()
            .contains("a head for one token further, and")
    );
}

/// SEMANTICS 145. The head is part of the files, and is there again.
#[test]
fn a_saved_head_comes_back() {
    let model = stirred(&config(false));
    let folder = tempfile::tempdir().unwrap();
    let (flat, path) = (model.to_flat(), folder.path().join("model"));
    let view = ModelView::of(&model, &flat, ModelFields::of(model.config(), 64));
    save(&path, &view, StoredType::F32, None).unwrap();
    let again = load_directory(&path)
        .unwrap()
        .into_model(Cpu::new(1))
        .unwrap();
    assert_eq!(again.config(), model.config());
    assert_eq!(again.to_flat(), flat);
}

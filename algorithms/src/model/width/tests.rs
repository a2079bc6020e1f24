//! Connections against plain computations, and the models that they are in special cases.

use odeon_gpu::cuda::emulated::{EmulatedError, ThreadOrder};
use odeon_gpu::cuda::{Cuda, Emulated};
use odeon_gpu::{Cpu, Precision};
use odeon_skip::{Need, skip};
use proptest::prelude::*;

use super::*;
use crate::model::ModelConfig;
use crate::model::{Batch, LoraConfig, Model, PartPlace, Recompute, Scorer, Sequence};
use crate::train::{CrossEntropy, TrainConfig, Trainer};
use crate::weights::{ModelFields, ModelView, StoredType, load_directory, save};

fn width(fraction: usize, segments: usize, dynamic: bool) -> VirtualWidth {
    VirtualWidth {
        fraction,
        segments,
        dynamic,
    }
}

fn config(width: Option<VirtualWidth>, tied_head: bool) -> ModelConfig {
    ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        ffn: 20,
        tied_head,
        width,
        ..ModelConfig::default()
    }
}

/// All special cases: the residual stream, hyper-connections, fractional ones, and what has neither name.
const SHAPES: [[usize; 2]; 7] = [[1, 1], [1, 2], [1, 4], [2, 2], [4, 4], [2, 3], [2, 8]];

fn texts() -> Batch {
    let tokens: Vec<u32> = (0..40).map(|at| at * at % 23).collect();
    let sequence = |tokens| Sequence { tokens, prompt: 1 };
    Batch::pack(&[sequence(&tokens[..17]), sequence(&tokens[17..])]).unwrap()
}

fn logprobs(config: ModelConfig) -> Vec<f32> {
    let model = Model::init(Cpu::new(1), config, 7).unwrap();
    let mut scorer = Scorer::new(model);
    scorer.logprobs(&texts()).logprobs
}

/// SEMANTICS 145. At first each is the plain model of the same seed: connections pass on what there is.
#[test]
fn a_new_model_of_any_width_computes_what_the_plain_one_does() {
    // Behind each other two norms have that number twice.
    let config = |width| ModelConfig {
        norm_eps: 1e-10,
        ..config(width, true)
    };
    let plain = logprobs(config(None));
    for [fraction, segments] in SHAPES {
        for dynamic in [false, true] {
            let wide = logprobs(config(Some(width(fraction, segments, dynamic))));
            for (wide, plain) in wide.iter().zip(&plain) {
                assert!(
                    (wide - plain).abs() < 2e-5,
                    "{fraction} {segments}: {wide} {plain}"
                );
            }
        }
    }
}

/// Tables of whole rows are as random as those of plain models, so losses begin alike.
#[test]
fn an_embedding_that_is_not_the_head_is_as_wide_as_rows() {
    let wide = config(Some(width(2, 3, true)), false);
    let model = Model::init(Cpu::new(1), wide, 7).unwrap();
    let shapes = model.layout().entries().iter();
    let shape = |name: &str| {
        shapes
            .clone()
            .find(|it| it.name == name)
            .map(|it| it.shape.clone())
    };
    assert_eq!(shape("model.embed_tokens.weight"), Some(vec![23, 24]));
    assert_eq!(shape("lm_head.weight"), Some(vec![23, 16]));
    assert_eq!(shape("model.width_reduce.weight"), Some(vec![16, 24]));
    // Rows of one and a half widths are no groups of one.
    assert_eq!(shape("model.width_norm.weight"), None);
    assert_eq!(shape("model.embed_expand.weight"), None);
    let dynamic = "model.layers.2.feed_forward_connection.dynamic.weight";
    assert_eq!(shape(dynamic), Some(vec![7, 8]));
}

/// A connection by its formulas, in `f64`: `fixed + scale tanh(products)`, then both mixtures.
fn in_f64(
    [m, n, d]: [usize; 3],
    tokens: usize,
    [fixed, scale, products, stream, made]: &[Vec<f64>; 5],
) -> [Vec<f64>; 2] {
    let columns = 2 * m + n;
    let [mut rows, mut new] = [vec![0.0; tokens * m * d], vec![0.0; tokens * n * d]];
    for token in 0..tokens {
        let k = |row: usize, col: usize| {
            let at = row * columns + col;
            fixed[at] + scale[at] * products[token * n * columns + at].tanh()
        };
        for at in 0..d {
            let h = |segment: usize| stream[(token * n + segment) * d + at];
            let z = |segment: usize| made[(token * m + segment) * d + at];
            for i in 0..m {
                rows[(token * m + i) * d + at] = (0..n).map(|j| k(j, i) * h(j)).sum();
            }
            for j in 0..n {
                let carried: f64 = (0..n).map(|l| k(l, m + j) * h(l)).sum();
                let written: f64 = (0..m).map(|i| k(j, m + n + i) * z(i)).sum();
                new[(token * n + j) * d + at] = carried + written;
            }
        }
    }
    [rows, new]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 145. Both mixtures are their formulas, and gradients their central differences.
    #[test]
    fn mixtures_and_their_gradients_are_those_of_the_formulas(
        [fraction, segments] in prop::sample::select(SHAPES.to_vec()),
        seed in any::<u64>(),
    ) {
        let sizes = [fraction, segments, 3];
        let [m, n, d] = sizes;
        let (tokens, columns) = (2, 2 * m + n);
        let mut state = seed;
        let mut draw = |len: usize| -> Vec<f64> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                f64::from(((state >> 40) as f32) / 8_388_608.0 - 1.0)
            };
            (0..len).map(|_| next()).collect()
        };
        let matrix = n * columns;
        let variables = [matrix, matrix, tokens * matrix, tokens * n * d, tokens * m * d].map(&mut draw);
        let weights = [tokens * m * d, tokens * n * d].map(&mut draw);
        let narrow = |values: &[f64]| values.iter().map(|it| *it as f32).collect::<Vec<f32>>();
        let [fixed, scale, products, stream, made] = variables.each_ref().map(|it| narrow(it));
        let of = Coefficients { fixed: &fixed, dynamic: Some([&scale, &products]) };
        let mixing = Mixing::of(width(m, n, true), m * d);
        let near = |a: &[f32], b: &[f64]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-5 * (1.0 + b.abs()))
        };
        let expected = in_f64(sizes, tokens, &variables);
        prop_assert!(near(&mixing.read(of, &stream), &expected[0]));
        prop_assert!(near(&mixing.write(of, &stream, &made), &expected[1]));
        let back = [
            mixing.read_back(of, &stream, &narrow(&weights[0])),
            mixing.write_back(of, &stream, &made, &narrow(&weights[1])),
        ];
        for (which, back) in back.into_iter().enumerate() {
            let loss = |variables: &[Vec<f64>; 5]| -> f64 {
                let made = &in_f64(sizes, tokens, variables)[which];
                made.iter().zip(&weights[which]).map(|(a, b)| a * b).sum()
            };
            let gradients = [&back.fixed, &back.scale, &back.products, &back.stream, &back.made];
            for (number, gradient) in gradients.into_iter().enumerate() {
                for (at, gradient) in gradient.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut moved = variables.clone();
                        moved[number][at] += by;
                        loss(&moved)
                    };
                    let differs = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    let gradient = f64::from(*gradient);
                    prop_assert!((gradient - differs).abs() < 1e-4 * (1.0 + differs.abs()), "{which} {number} {at}");
                }
            }
        }
    }

    /// Behind linear layers a row is a sum over all of them, each carried on by the connections behind it.
    #[test]
    fn linear_layers_unroll_to_a_sum_over_depth(factors in prop::collection::vec(-1.0f64..1.0, 3)) {
        let [m, n, d] = [2, 3, 2];
        let columns = 2 * m + n;
        let fixed = |layer: usize| -> Vec<f64> {
            let value = |at: usize| ((layer * 37 + at * 11) % 17) as f64 / 17.0 - 0.4;
            (0..n * columns).map(value).collect()
        };
        let stream: Vec<f64> = (0..n * d).map(|at| at as f64 / 3.0 - 1.0).collect();
        let narrow = |values: &[f64]| values.iter().map(|it| *it as f32).collect::<Vec<f32>>();
        let mixing = Mixing::of(width(m, n, false), m * d);
        let mut own = narrow(&stream);
        let mut layers = vec![];
        for (layer, factor) in factors.iter().enumerate() {
            let matrix = narrow(&fixed(layer));
            let of = Coefficients { fixed: &matrix, dynamic: None };
            let made: Vec<f32> = mixing.read(of, &own).iter().map(|x| *factor as f32 * x).collect();
            own = mixing.write(of, &own, &made);
            layers.push(made);
        }
        // What a layer has made is written once, and carried by all layers behind it.
        let carried = |from: usize, mut rows: Vec<f64>| {
            for layer in from..factors.len() {
                let k = fixed(layer);
                let sum = |j: usize, at: usize| (0..n).map(|l| k[l * columns + m + j] * rows[l * d + at]).sum();
                rows = (0..n * d).map(|at| sum(at / d, at % d)).collect();
            }
            rows
        };
        let mut sum = carried(0, stream);
        for (layer, made) in layers.iter().enumerate() {
            let k = fixed(layer);
            let of = |j: usize, at: usize| (0..m).map(|i| k[j * columns + m + n + i] * f64::from(made[i * d + at])).sum();
            let written = (0..n * d).map(|at| of(at / d, at % d)).collect();
            let carried = carried(layer + 1, written);
            sum.iter_mut().zip(carried).for_each(|(sum, it)| *sum += it);
        }
        for (own, sum) in own.iter().zip(&sum) {
            prop_assert!((f64::from(*own) - sum).abs() < 1e-5, "{own} {sum}");
        }
    }
}

/// A model whose connections do something, and whose distributions are not flat.
fn stirred(config: ModelConfig) -> Model {
    let mut model = Model::init(Cpu::new(1), config, 7).unwrap();
    let values = model
        .flat()
        .iter()
        .enumerate()
        .map(|(at, value)| match *value {
            1.0 => 1.0 + 0.1 * (at as f32).sin(),
            0.0 => 0.05 * (at as f32).cos(),
            value => 8.0 * value,
        });
    let values: Vec<f32> = values.collect();
    model.load_flat(&values).unwrap();
    model
}

/// SEMANTICS 145. The gradient of the loss with respect to what is there for the width alone.
#[test]
fn gradients_of_a_model_are_differences_of_its_loss() {
    for (tied, shape) in [(true, [2, 3]), (false, [1, 4]), (true, [2, 8])] {
        let config = config(Some(width(shape[0], shape[1], true)), tied);
        let batch = texts();
        let loss = |model: Model| {
            let mut scorer = Scorer::new(model);
            let all = scorer.logprobs(&batch).logprobs;
            let sum: f64 = all.iter().map(|it| -f64::from(*it)).sum();
            sum / all.len() as f64
        };
        let mut trainer = Trainer::new(stirred(config.clone()), TrainConfig::default());
        let mut mean = CrossEntropy::mean_over(batch.predicted());
        let _ = trainer.accumulate(&batch, &mut mean);
        let gradient = trainer.gradient();
        let flat = stirred(config.clone()).to_flat().to_vec();
        let entries = trainer.model().layout().entries().to_vec();
        let of_width = |name: &str| {
            name.contains("_connection.") || name.contains("embed") || name.contains("width_")
        };
        for entry in entries.iter().filter(|it| of_width(&it.name)) {
            let largest = entry
                .range
                .clone()
                .max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()));
            let at = largest.unwrap();
            let moved = |by: f32| {
                let mut flat = flat.clone();
                flat[at] += by;
                let mut model = stirred(config.clone());
                model.load_flat(&flat).unwrap();
                loss(model)
            };
            let differs = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            let gradient = f64::from(gradient[at]);
            let within = 0.02 * differs.abs() + 2e-4;
            assert!(
                (gradient - differs).abs() < within,
                "{}: {gradient} {differs}",
                entry.name
            );
        }
    }
}

/// Connections are computed by the processor, whatever the device.
#[test]
fn a_wide_model_on_an_emulated_card_has_the_gradient_of_the_processor() {
    let card = match Emulated::start(ThreadOrder::Backwards) {
        Ok(card) => Cuda::over(card, Precision::F32),
        Err(error @ EmulatedError::NoCompiler { .. }) => {
            skip(Need::CppCompiler, error);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let config = config(Some(width(2, 3, true)), true);
    let batch = texts();
    let stirred = stirred(config.clone());
    let mut on_card = Model::zeros(card, config).unwrap();
    on_card.load_flat(stirred.flat()).unwrap();
    let (mut ours, mut theirs) = (
        Trainer::new(stirred, TrainConfig::default()),
        Trainer::new(on_card, TrainConfig::default()),
    );
    let mean = || CrossEntropy::mean_over(batch.predicted());
    let losses = [
        ours.accumulate(&batch, &mut mean()).loss,
        theirs.accumulate(&batch, &mut mean()).loss,
    ];
    assert!((losses[0] - losses[1]).abs() < 1e-5);
    let (ours, theirs) = (ours.gradient(), theirs.gradient());
    let size = ours.iter().fold(0.0f32, |most, it| most.max(it.abs()));
    let apart = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs());
    assert!(apart.fold(0.0, f32::max) < 1e-4 * size);
}

/// SEMANTICS 139, 145. What is computed again is the same to the bit.
#[test]
fn a_wide_model_that_computes_layers_again_has_the_same_gradient() {
    let gradient = |recompute| {
        let settings = TrainConfig {
            recompute,
            ..TrainConfig::default()
        };
        let mut trainer = Trainer::new(stirred(config(Some(width(2, 3, true)), true)), settings);
        let batch = texts();
        let mut mean = CrossEntropy::mean_over(batch.predicted());
        let _ = trainer.accumulate(&batch, &mut mean);
        trainer.gradient()
    };
    let all = gradient(Recompute::Nothing);
    assert!(all.iter().any(|it| *it != 0.0));
    assert!(gradient(Recompute::FeedForward) == all && gradient(Recompute::Layers) == all);
}

/// The operations of two connections as the paper counts them: 42 D and 6 D each at one and a half widths.
#[test]
fn operations_are_those_of_the_paper() {
    assert!((width(2, 3, true).layer_flops(64) - 2.0 * 48.0 * 64.0).abs() < 1e-9);
}

#[test]
fn widths_that_cannot_be_are_refused() {
    let refused = |config: ModelConfig| config.check().unwrap_err().to_string();
    let of = |fraction, segments| refused(config(Some(width(fraction, segments, true)), true));
    assert_eq!(
        of(3, 4),
        "model: a width of 16 has no 3 equal segments (fraction)"
    );
    assert_eq!(
        of(0, 1),
        "model: a width of 16 has no 0 equal segments (fraction)"
    );
    assert_eq!(
        of(4, 3),
        "model: rows of 3 segments: there are 4 (fraction) to 256"
    );
    let gpt2 = config(Some(width(2, 3, true)), true);
    let gpt2 = gpt2.of_block(
        crate::model::LayerBlock::Gelu(crate::model::Gelu::default()),
        9,
    );
    assert!(
        refused(ModelConfig {
            kv_heads: 4,
            ..gpt2
        })
        .contains("a virtual width, and learned positions")
    );
    let shared = config(Some(width(2, 3, true)), true).part(PartPlace::of_tensor(0, 2));
    let error = shared.unwrap_err().to_string();
    assert_eq!(
        error,
        "a model of virtual width cannot be shared by 2 tensor ranks"
    );
}

/// Adapters beside a wide stream learn, and merge into what they were.
#[test]
fn adapters_of_a_wide_model_learn() {
    let mut model = stirred(config(Some(width(2, 3, true)), true));
    model.add_lora(
        LoraConfig {
            rank: 2,
            ..LoraConfig::default()
        },
        3,
    );
    let settings = TrainConfig {
        lr: 1e-2,
        ..TrainConfig::default()
    };
    let (mut trainer, batch) = (Trainer::new(model, settings), texts());
    let losses = (0..20).map(|_| {
        let mut mean = CrossEntropy::mean_over(batch.predicted());
        let loss = trainer.accumulate(&batch, &mut mean).loss;
        trainer.apply(1.0);
        loss
    });
    let losses: Vec<f64> = losses.collect();
    assert!(losses[19] < 0.9 * losses[0], "{losses:?}");
}

/// SEMANTICS 145. A folder of a wide model is the model again, and is not taken for its backbone.
#[test]
fn a_saved_model_comes_back_and_is_not_read_as_its_backbone() {
    for (shape, dynamic, tied) in [
        ([2, 3], true, true),
        ([2, 8], true, false),
        ([4, 4], false, true),
    ] {
        let model = stirred(config(Some(width(shape[0], shape[1], dynamic)), tied));
        let folder = tempfile::tempdir().unwrap();
        let flat = model.to_flat();
        let fields = ModelFields::of(model.config(), 64);
        let view = ModelView::of(&model, &flat, fields);
        save(&folder.path().join("model"), &view, StoredType::F32, None).unwrap();
        let path = folder.path().join("model");
        let again = load_directory(&path)
            .unwrap()
            .into_model(Cpu::new(1))
            .unwrap();
        assert_eq!(again.config(), model.config());
        assert_eq!(again.to_flat(), flat);
        let told = std::fs::read_to_string(path.join("config.json")).unwrap();
        let mut told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["model_type"], "virtual_width");
        assert_eq!(told["backbone_type"], "llama");
        // As an edit by hand would have it, without the sums of files.
        for file in std::fs::read_dir(&path).unwrap() {
            let file = file.unwrap().path();
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if name != "config.json" && !name.ends_with(".safetensors") {
                std::fs::remove_file(file).unwrap();
            }
        }
        told["model_type"] = "llama".into();
        std::fs::write(path.join("config.json"), told.to_string()).unwrap();
        let error = load_directory(&path).unwrap_err().to_string();
        assert!(
            error.contains("`virtual_width` of another model type"),
            "{error}"
        );
    }
}

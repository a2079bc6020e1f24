//! Tests of blocks: each in its recording and in its step of generation, against its formula.

use odeon_gpu::cuda::emulated::{EmulatedError, ThreadOrder};
use odeon_gpu::cuda::{Cuda, Emulated};
use odeon_gpu::{Arena, Cpu, LinearExtras, Precision};
use odeon_skip::{Need, skip};
use proptest::prelude::*;

use super::*;
use crate::model::{ConfigError, LoraConfig, Model, ModelConfig};

fn moe(experts: usize, experts_per_token: usize) -> LayerBlock {
    LayerBlock::Moe(Moe {
        experts,
        experts_per_token,
    })
}

/// Numbers in [-1, 1].
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u32 << 30) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The matrices of a block that begins where its parameters do, without adapters.
struct Plain {
    matrices: Vec<Matrix>,
    places: Vec<Range<usize>>,
}

impl<B: Backend> Products<B> for Plain {
    fn param(&self, matrix: usize) -> Param {
        Param::new(0, self.places[matrix].clone())
    }

    fn linear(&self, tape: &mut Tape<B>, matrix: usize, x: Var, residual: Option<Var>) -> Var {
        let extras = LinearExtras {
            residual,
            ..LinearExtras::default()
        };
        let outputs = self.matrices[matrix].outputs();
        let weight = Param::new(0, self.places[matrix].clone());
        tape.linear_with(x, weight, outputs, extras)
    }

    fn expert_ranks(&self) -> Option<&Arc<dyn PassRanks<B>>> {
        None
    }
}

/// A block with its parameters, and rows that it reads and adds to.
struct Case {
    block: LayerBlock,
    widths: Widths,
    params: Vec<f32>,
    h: Vec<f32>,
    x: Vec<f32>,
}

impl Case {
    fn new(block: LayerBlock, widths: Widths, rows: usize, seed: u64) -> Self {
        let len = block.parameters(widths.dim, widths.ffn) as usize;
        let inputs = rows * widths.dim;
        Self {
            block,
            widths,
            params: noise(seed, len),
            h: noise(seed + 1, inputs),
            x: noise(seed + 2, inputs),
        }
    }

    fn rows(&self) -> usize {
        self.h.len() / self.widths.dim
    }

    fn recorded(&self) -> Vec<f32> {
        self.recorded_on(&Cpu::new(2))
    }

    fn recorded_on<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let (dim, rows) = (self.widths.dim, self.rows());
        let products = Plain {
            matrices: self.block.matrices(self.widths),
            places: self.block.places(self.widths, 0),
        };
        let mut tape = Tape::<B>::new();
        let (h, x) = (tape.input(rows, dim), tape.input(rows, dim));
        let y = self
            .block
            .record(&mut tape, self.widths, &products, h, Some(x));
        let plan = tape.plan_inference(&[y]);
        let mut arena = Arena::default();
        arena.prepare(backend, &plan);
        tape.write(backend, &mut arena, &plan, h, &self.h);
        tape.write(backend, &mut arena, &plan, x, &self.x);
        let mut params = backend.parameters(self.params.len());
        backend.write(B::view_mut(&mut params, 0..self.params.len()), &self.params);
        tape.forward(backend, &mut arena, &plan, &[&params]);
        tape.read(backend, &arena, &plan, y)
    }

    /// A step of generation with these rows alone.
    fn stepped(&self, rows: Range<usize>) -> Vec<f32> {
        self.stepped_on(&Cpu::new(1), rows)
    }

    fn stepped_on<B: Backend>(&self, backend: &B, rows: Range<usize>) -> Vec<f32> {
        let dim = self.widths.dim;
        let params = backend.buffer(&self.params);
        let matrices = self.block.matrices(self.widths);
        let places = self.block.places(self.widths, 0);
        let packed: Vec<_> = matrices
            .iter()
            .zip(places)
            .map(|(matrix, place)| {
                backend.pack(matrix.outputs(), matrix.inputs, B::view(&params, place))
            })
            .collect();
        let own = rows.start * dim..rows.end * dim;
        let mut x = backend.buffer(&self.x[own.clone()]);
        let h = backend.buffer(&self.h[own.clone()]);
        // Room for more rows than there are, with what another step has left in it.
        let scratch = self.block.scratch(self.widths).into_iter();
        let mut scratch: Vec<_> = scratch
            .map(|cols| backend.buffer(&vec![f32::NAN; (rows.len() + 3) * cols]))
            .collect();
        let memory = StepMemory {
            rows: rows.len(),
            h: B::view(&h, 0..own.len()),
            x: &mut x,
            biases: vec![],
            scratch: &mut scratch,
        };
        self.block.step(backend, self.widths, &packed, memory);
        backend.to_vec(&x)
    }

    /// `W row` for the tensor of this number.
    fn product(&self, tensor: usize, row: &[f64]) -> Vec<f64> {
        let tensors = self.block.tensors(self.widths);
        let len = |(_, shape, _): &(String, Vec<usize>, Cutting)| shape.iter().product::<usize>();
        let start: usize = tensors[..tensor].iter().map(len).sum();
        let weights = &self.params[start..start + len(&tensors[tensor])];
        let dot = |weights: &[f32]| {
            let terms = weights.iter().zip(row);
            terms.map(|(w, h)| f64::from(*w) * h).sum()
        };
        weights.chunks_exact(row.len()).map(dot).collect()
    }

    /// SwiGLU with the tensors of gate, up and down of these numbers.
    fn gated(&self, [gate, up, down]: [usize; 3], row: &[f64]) -> Vec<f64> {
        let gate = self.product(gate, row).into_iter();
        let silu = gate.map(|g| g / (1.0 + (-g).exp()));
        let gated = silu.zip(self.product(up, row)).map(|(g, u)| g * u);
        self.product(down, &gated.collect::<Vec<_>>())
    }

    /// The formula of [`Moe`], row by row in `f64`; and how near a choice was.
    fn naive(&self, experts: usize, top: usize) -> (Vec<f64>, f64) {
        let (dim, mut near) = (self.widths.dim, f64::INFINITY);
        let mut y: Vec<f64> = self.x.iter().map(|x| f64::from(*x)).collect();
        for (h, y) in self.h.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
            let h: Vec<f64> = h.iter().map(|h| f64::from(*h)).collect();
            let logits = self.product(0, &h);
            let all: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let mut ranked: Vec<usize> = (0..experts).collect();
            ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            if let Some(next) = ranked.get(top) {
                near = near.min(logits[ranked[top - 1]] - logits[*next]);
            }
            let probability = |expert: usize| logits[expert].exp() / all;
            let sum: f64 = ranked[..top].iter().map(|e| probability(*e)).sum();
            for expert in &ranked[..top] {
                // Behind the router: w1, w3 and w2 of each.
                let tensors = [1, 2, 3].map(|part| 3 * expert + part);
                let made = self.gated(tensors, &h);
                let weight = probability(*expert) / sum;
                y.iter_mut().zip(made).for_each(|(y, m)| *y += weight * m);
            }
        }
        (y, near)
    }
}

fn distance(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1.0, |most: f64, w| most.max(w.abs()));
    let errors = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs());
    errors.fold(0.0, f64::max) / scale
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In training and in generation, whatever the sizes; and in generation each row by itself, to
    /// the bit.
    #[test]
    fn a_mixture_is_its_formula(
        (experts, top) in (1usize..10).prop_flat_map(|experts| (Just(experts), 1..=experts)),
        rows in 1usize..20,
        dim in 1usize..20,
        ffn in 1usize..9,
        seed in 0u64..10_000,
    ) {
        let case = Case::new(moe(experts, top), Widths::new(dim, ffn), rows, seed);
        let (want, near) = case.naive(experts, top);
        prop_assume!(near > 1e-5);
        prop_assert!(distance(&case.recorded(), &want) < 1e-5);
        let together = case.stepped(0..rows);
        prop_assert!(distance(&together, &want) < 1e-5);
        let alone: Vec<f32> = (0..rows).flat_map(|row| case.stepped(row..row + 1)).collect();
        prop_assert_eq!(together, alone);
    }

    #[test]
    fn a_dense_block_is_its_formula(rows in 1usize..9, dim in 1usize..20, ffn in 1usize..20) {
        let case = Case::new(LayerBlock::default(), Widths::new(dim, ffn), rows, 7);
        let mut want = vec![];
        for (h, x) in case.h.chunks_exact(dim).zip(case.x.chunks_exact(dim)) {
            let h: Vec<f64> = h.iter().map(|h| f64::from(*h)).collect();
            let made = case.gated([0, 1, 2], &h);
            want.extend(made.iter().zip(x).map(|(m, x)| m + f64::from(*x)));
        }
        prop_assert!(distance(&case.recorded(), &want) < 1e-5);
        prop_assert!(distance(&case.stepped(0..rows), &want) < 1e-5);
    }
}

/// The formula of [`Gelu`], row by row in `f64`.
fn gelu_of(case: &Case) -> Vec<f64> {
    let dim = case.widths.dim;
    let mut want = vec![];
    for (h, x) in case.h.chunks_exact(dim).zip(case.x.chunks_exact(dim)) {
        let h: Vec<f64> = h.iter().map(|h| f64::from(*h)).collect();
        let root = (2.0 / std::f64::consts::PI).sqrt();
        let up = case.product(0, &h).into_iter();
        let up = up.map(|v| 0.5 * v * (1.0 + (root * (v + 0.044_715 * v.powi(3))).tanh()));
        let made = case.product(1, &up.collect::<Vec<_>>());
        want.extend(made.iter().zip(x).map(|(m, x)| m + f64::from(*x)));
    }
    want
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_block_of_gpt2_is_its_formula(rows in 1usize..9, dim in 1usize..20, ffn in 1usize..20) {
        let gelu = LayerBlock::Gelu(Gelu::default());
        let case = Case::new(gelu, Widths::new(dim, ffn), rows, 9);
        let want = gelu_of(&case);
        prop_assert!(distance(&case.recorded(), &want) < 1e-5);
        let together = case.stepped(0..rows);
        prop_assert!(distance(&together, &want) < 1e-5);
        let alone: Vec<f32> = (0..rows).flat_map(|row| case.stepped(row..row + 1)).collect();
        prop_assert_eq!(together, alone);
    }
}

/// No type of model has a part of what GPT-2 has, so it could not be saved.
#[test]
fn layer_norms_learned_positions_and_gelu_come_together() {
    let gelu = LayerBlock::Gelu(Gelu::default());
    let whole = ModelConfig::default().of_block(gelu, 64);
    assert_eq!(whole.check(), Ok(()));
    assert_eq!(whole.check_tokens(64), Ok(()));
    let more = whole.check_tokens(65).unwrap_err().to_string();
    assert_eq!(
        more,
        "model: 65 tokens are more than its 64 learned positions"
    );
    let broken: [fn(&mut ModelConfig); 8] = [
        |it| it.learned_positions = None,
        |it| it.layer_norms = false,
        |it| it.block = LayerBlock::default(),
        |it| it.mlp_bias = false,
        |it| it.qkv_bias = false,
        |it| it.head_norms = true,
        |it| it.kv_heads = 2,
        |it| it.head_dim = 16,
    ];
    for (number, break_it) in broken.into_iter().enumerate() {
        let mut config = whole.clone();
        break_it(&mut config);
        let refused = config.check();
        assert!(
            matches!(refused, Err(ConfigError::Beside(_))),
            "{number}: {refused:?}"
        );
    }
    let none = ModelConfig {
        learned_positions: Some(0),
        ..whole
    };
    assert_eq!(none.check(), Err(ConfigError::Zero("learned_positions")));
}

#[test]
fn a_block_is_chosen_by_its_word_and_refuses_settings_that_mean_nothing() {
    let moe_of = |experts, experts_per_token| ModelConfig {
        block: moe(experts, experts_per_token),
        ..ModelConfig::default()
    };
    for (experts, top, field, found) in [
        (0, 1, "experts", 0),
        (1025, 2, "experts", 1025),
        (4, 0, "experts_per_token", 0),
        (4, 5, "experts_per_token", 5),
    ] {
        let Err(ConfigError::Block(error)) = moe_of(experts, top).check() else {
            panic!("{experts} and {top} are taken");
        };
        assert_eq!((error.of, error.field), ("moe", field));
        assert!(
            error.to_string().ends_with(&format!("found {found}")),
            "{error}"
        );
    }
    assert_eq!(moe_of(4, 4).check(), Ok(()));
    let biased = ModelConfig {
        qkv_bias: true,
        ..moe_of(4, 2)
    };
    assert!(matches!(biased.check(), Err(ConfigError::Beside(_))));

    assert_eq!(LayerBlock::WORDS, ["mlp", "moe", "gelu"]);
    for word in LayerBlock::WORDS {
        let block = LayerBlock::named(word).unwrap();
        block.check().unwrap();
        let written = serde_json::to_string(&block).unwrap();
        assert_eq!(serde_json::from_str::<LayerBlock>(&written).unwrap(), block);
    }
    let wrong = r#"{"moe": {"expert": 4}}"#;
    let error = serde_json::from_str::<LayerBlock>(wrong).unwrap_err();
    assert!(
        error.to_string().contains("unknown field `expert`"),
        "{error}"
    );
}

#[test]
fn a_mixture_has_the_names_of_mixtral_and_begins_small_where_it_ends() {
    let config = ModelConfig {
        dim: 16,
        layers: 1,
        ffn: 24,
        block: moe(2, 1),
        ..ModelConfig::default()
    };
    let model = Model::init(Cpu::new(1), config.clone(), 3).unwrap();
    let names = model.tensors().map(|(name, shape, values)| {
        let squares: f32 = values.iter().map(|v| v * v).sum();
        (name, shape.to_vec(), (squares / values.len() as f32).sqrt())
    });
    let own = names.filter_map(|(name, shape, size)| {
        let name = name.strip_prefix("model.layers.0.block_sparse_moe.")?;
        Some((name.to_owned(), shape, size))
    });
    let own: Vec<_> = own.collect();
    let expected = [
        ("gate.weight", [2, 16], 0.02),
        ("experts.0.w1.weight", [24, 16], 0.02),
        ("experts.0.w3.weight", [24, 16], 0.02),
        ("experts.0.w2.weight", [16, 24], 0.014),
        ("experts.1.w1.weight", [24, 16], 0.02),
        ("experts.1.w3.weight", [24, 16], 0.02),
        ("experts.1.w2.weight", [16, 24], 0.014),
    ];
    assert_eq!(own.len(), expected.len());
    for ((name, shape, size), want) in own.iter().zip(expected) {
        assert_eq!((name.as_str(), shape.as_slice()), (want.0, &want.1[..]));
        assert!((size / want.2 - 1.0).abs() < 0.35, "{name}: {size}");
    }
    let block = config.block.parameters(16, 24);
    assert_eq!(block, 2 * 16 + 2 * 3 * 16 * 24);
}

#[test]
fn adapters_of_a_mixture_are_on_attention_alone() {
    let config = ModelConfig {
        dim: 16,
        heads: 2,
        kv_heads: 2,
        head_dim: 8,
        ffn: 24,
        layers: 2,
        block: moe(3, 2),
        ..ModelConfig::default()
    };
    let mut model = Model::init(Cpu::new(1), config, 3).unwrap();
    let before = model.to_flat();
    let lora = LoraConfig {
        rank: 2,
        alpha: 4.0,
    };
    model.add_lora(lora, 1);
    assert_eq!(model.trainable_parameters(), 2 * 2 * (16 + 48 + 16 + 16));
    assert_eq!(model.to_flat(), before, "adapters start as the identity");
}

/// In both orders of threads, with and without rounding of products; and in generation each row by
/// itself, to the bit.
#[test]
fn blocks_on_the_emulated_card_are_their_formulas() {
    let widths = Widths::new(20, 12);
    let blocks = [
        LayerBlock::default(),
        moe(5, 2),
        LayerBlock::Gelu(Gelu::default()),
    ];
    let cases = blocks.map(|block| Case::new(block, widths, 13, 4));
    let (_, near) = cases[1].naive(5, 2);
    assert!(near > 0.02, "rounding must not change a choice: {near}");
    for order in [ThreadOrder::Forwards, ThreadOrder::Backwards] {
        for precision in [Precision::F32, Precision::Bf16] {
            let card = match Emulated::start(order) {
                Ok(card) => card,
                Err(error @ EmulatedError::NoCompiler { .. }) => {
                    return skip(Need::CppCompiler, error);
                }
                Err(error) => panic!("{error}"),
            };
            let cuda = Cuda::over(card, precision);
            let tolerance = 1e-5 + 8.0 * precision.roundoff();
            for case in &cases {
                let want = case.recorded().into_iter().map(f64::from);
                let want: Vec<f64> = want.collect();
                let recorded = case.recorded_on(&cuda);
                assert!(distance(&recorded, &want) < tolerance);
                let together = case.stepped_on(&cuda, 0..13);
                assert!(distance(&together, &want) < tolerance);
                let alone = (0..13).flat_map(|row| case.stepped_on(&cuda, row..row + 1));
                assert_eq!(together, alone.collect::<Vec<_>>());
            }
        }
    }
}

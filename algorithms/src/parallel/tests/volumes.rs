//! Bytes of plans against the formulas of HybridFlow's table 2, as integers.

use super::*;
use crate::model::LayerBlock;

/// Bytes of a model whose stages are alike.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    /// Of all tensors.
    all: usize,
    /// Of those that each tensor rank of a stage has whole.
    whole: usize,
    /// Of those that are cut into so many heads, fewer than tensor ranks.
    shared: usize,
    heads: usize,
}

impl Sizes {
    /// The bytes that the shards of one stage after another have more, all together, than those of
    /// a model that is cut evenly over `tensor` ranks.
    fn more(self, tensor: usize) -> usize {
        let copies = if self.shared == 0 {
            1
        } else {
            exact(tensor, self.heads)
        };
        self.whole * (tensor - 1) + self.shared * (copies - 1)
    }
}

/// The bytes that the formulas give.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Volume {
    received: usize,
    peak: usize,
    redundant: usize,
}

/// `over` parts of a number that divides.
#[track_caller]
fn exact(number: usize, over: usize) -> usize {
    assert!(number.is_multiple_of(over), "{number} / {over}");
    number / over
}

/// Table 2 of HybridFlow, without what is whole.
fn table(engine: Engine, m: usize, layouts: &Layouts) -> Volume {
    let (n, s) = (layouts.training.len(), replica_ranks(&layouts.training));
    let s_g = layouts.generation.len();
    let volume = |received, peak, redundant| Volume {
        received,
        peak,
        redundant,
    };
    match engine {
        Engine::DeepSpeedChat => volume(exact(m * (n - 1), n), m, exact(m, n)),
        Engine::HybridFlowV => volume(exact(m * (s - 1), s), m, exact(m, s)),
        Engine::HybridFlow => volume(exact(m * (s - s_g), s_g * s), exact(m, s_g), 0),
    }
}

/// The table in the documentation of [`Reshard`]: the paper's, with what is with several ranks.
/// All terms over one denominator, since they are no integers one by one.
fn formula(engine: Engine, sizes: Sizes, layouts: &Layouts) -> Volume {
    let m = sizes.all;
    let more = sizes.more(layouts.training.size(TP));
    let more_g = sizes.more(layouts.generation.size(TP));
    let s = replica_ranks(&layouts.training);
    let s_g = layouts.generation.len();
    match engine {
        Engine::DeepSpeedChat => table(engine, m, layouts),
        Engine::HybridFlowV => Volume {
            received: exact(m * (s - 1) - more, s),
            peak: m,
            redundant: exact(m + more, s),
        },
        Engine::HybridFlow => Volume {
            received: exact(m * (s - s_g) + more_g * s - more * s_g, s_g * s),
            peak: exact(m + more_g, s_g),
            redundant: 0,
        },
    }
}

/// Layers that are all alike, `each` to a stage. Whatever is cut can be cut for all layouts, and
/// all elements can be dealt to all ranks.
fn even(
    layouts: &Layouts,
    each: usize,
    factors: &[usize],
    whole: Option<usize>,
    heads: Option<usize>,
) -> (ModelSpec, Sizes) {
    let (p, t, d) = (
        layouts.training.size(PP),
        layouts.training.size(TP),
        layouts.training.size(DP),
    );
    let (mut tensors, mut sizes) = (vec![], Sizes::default());
    for layer in 0..p * each {
        let mut push = |name: String, shape: Vec<usize>, cut| {
            let tensor = TensorSpec {
                name,
                shape,
                element_bytes: 2,
                cut,
                home: Home::Layer(layer),
            };
            sizes.all += tensor.bytes();
            tensors.push(tensor);
        };
        for (at, factor) in factors.iter().enumerate() {
            let mut shape = vec![d * factor, d * factor];
            shape[at % 2] = t * factor;
            let cut = match at % 3 {
                0 | 1 => Cut::Split {
                    dim: at % 2,
                    unit: *factor,
                },
                _ => Cut::Cover {
                    dim: at % 2,
                    unit: 1,
                },
            };
            push(format!("{layer}.{at}"), shape, cut);
        }
        if let Some(whole) = whole {
            push(format!("{layer}.norm"), vec![whole * t * d], Cut::Whole);
            sizes.whole += 2 * whole * t * d;
        }
        if let Some(heads) = heads {
            let cut = Cut::Cover { dim: 0, unit: 3 };
            push(format!("{layer}.keys"), vec![3 * heads, t * d], cut);
            sizes.shared += 2 * 3 * heads * t * d;
            sizes.heads = heads;
        }
    }
    (ModelSpec::new(p * each, tensors).unwrap(), sizes)
}

fn volume(cost: Cost) -> Volume {
    Volume {
        received: cost.received_bytes,
        peak: cost.peak_bytes,
        redundant: cost.redundant_bytes,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn counts_are_the_formulas(
        layouts in layouts(),
        each in 1..3_usize,
        factors in prop::collection::vec(1..4_usize, 1..4),
        whole in prop::option::of(1..4_usize),
        heads in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let divisors = divisors(layouts.generation.size(TP));
        let heads = heads.map(|index| *index.get(&divisors));
        let plain = whole.is_none() && heads.is_none();
        let (model, sizes) = even(&layouts, each, &factors, whole, heads);
        prop_assert_eq!(model.bytes(), sizes.all);
        for engine in Engine::ALL {
            let expected = formula(engine, sizes, &layouts);
            if plain {
                prop_assert_eq!(expected, table(engine, model.bytes(), &layouts));
            }
            let Layouts { training, generation, .. } = &layouts;
            let reshard = Reshard::new(model.clone(), training, generation, engine).unwrap();
            let mut outside = vec![];
            for rank in 0..training.len() {
                let cost = reshard.plan(rank).unwrap().cost;
                prop_assert_eq!(volume(cost), expected, "{:?} rank {}", engine, rank);
                prop_assert!(cost.outside_bytes <= cost.redundant_bytes);
                outside.push(cost.outside_bytes);
            }
            // Why engines of usual grouping keep the whole shard beside: some rank has to.
            let (t, t_g) = (training.size(TP), generation.size(TP));
            let apart = training.size(PP) == 1 && 1 < t_g && t_g < t && plain;
            if engine == Engine::HybridFlowV && apart {
                prop_assert_eq!(outside.into_iter().max(), Some(expected.redundant));
            }
        }
    }
}

/// N = 8, 1-4-2 -> 1-2-2-2: 7/8, 3/4 and 1/4 of the model.
#[test]
fn the_papers_example_moves_a_quarter_of_the_model() {
    let layouts = Layouts {
        training: layout(1, 4, 2),
        generation: generation(1, 2),
        usual: generation(1, 2),
    };
    let (model, _) = even(&layouts, 3, &[1, 2, 3], None, None);
    let eighths = |engine| {
        let reshard = Reshard::new(
            model.clone(),
            &layouts.training,
            &layouts.generation,
            engine,
        );
        let reshard = reshard.unwrap();
        let costs: Vec<Cost> = (0..8)
            .map(|rank| reshard.plan(rank).unwrap().cost)
            .collect();
        let first = volume(costs[0]);
        assert!(costs.iter().all(|cost| volume(*cost) == first));
        let eighth = exact(model.bytes(), 8);
        [first.received, first.peak, first.redundant].map(|bytes| exact(bytes, eighth))
    };
    assert_eq!(eighths(Engine::DeepSpeedChat), [7, 8, 1]);
    assert_eq!(eighths(Engine::HybridFlowV), [6, 8, 2]);
    assert_eq!(eighths(Engine::HybridFlow), [2, 4, 0]);
}

/// A real shape: its ends are not alike, so each rank's bytes are summed by hand.
#[test]
fn a_model_of_72_billion_parameters_is_counted_to_the_byte() {
    let model = Llama {
        layers: 80,
        hidden: 8192,
        intermediate: 29_568,
        block: LayerBlock::default(),
        heads: 64,
        kv_heads: 8,
        head_width: 128,
        vocabulary: 152_064,
        element_bytes: 2,
        tied: false,
        qkv_bias: true,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    };
    let model = model.spec().unwrap();
    assert_eq!(model.elements(), 72_706_203_648);
    let (h, f, kv, v) = (8192, 29_568, 1024, 152_064);
    // Of a layer, over `t` ranks, t at most 8; bytes.
    let layer = |t: usize| 2 * ((2 * h * h + 2 * kv * h + 3 * f * h + h + 2 * kv) / t + 2 * h);
    let table = |t: usize| 2 * v * h / t;

    let reshard = Reshard::new(
        model,
        &layout(4, 8, 32),
        &generation(1, 8),
        Engine::HybridFlow,
    );
    let reshard = reshard.unwrap();
    let peak = 80 * layer(8) + 2 * table(8) + 2 * h;
    for (rank, resident) in [
        (0, 20 * layer(8) + table(8)),
        (8, 20 * layer(8)),
        (24, 20 * layer(8) + table(8) + 2 * h),
    ] {
        let cost = reshard.plan(rank).unwrap().cost;
        assert_eq!((cost.resident_bytes, cost.peak_bytes), (resident, peak));
        assert_eq!(
            (cost.received_bytes, cost.redundant_bytes),
            (peak - resident, 0)
        );
    }
}

//! The shards of each rank.

use super::*;
use crate::model::{LayerBlock, Moe, RopeScaling};
use crate::weights::{Family, ModelFields};

/// Two layers, and sizes that differ from each other.
fn llama() -> Llama {
    Llama {
        layers: 2,
        hidden: 24,
        intermediate: 40,
        block: LayerBlock::default(),
        heads: 8,
        kv_heads: 2,
        head_width: 4,
        vocabulary: 56,
        element_bytes: 2,
        tied: false,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    }
}

fn tensor(name: &str, shape: &[usize], cut: Cut, home: Home) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        shape: shape.to_vec(),
        element_bytes: 2,
        cut,
        home,
    }
}

/// A rank's boxes by name.
fn shown(model: &ModelSpec, shards: &Shards) -> Vec<String> {
    let name = |shard: &Shard| format!("{} {}", model.tensors()[shard.tensor].name, shard.region);
    shards.as_slice().iter().map(name).collect()
}

#[test]
fn tensors_are_those_of_model_files() {
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
        for (tied, value_head) in [(false, false), (true, false), (false, true), (true, true)] {
            let model = Llama {
                tied,
                value_head,
                qkv_bias: family == Family::Qwen2,
                head_norms: family == Family::Qwen3,
                ..llama()
            };
            let fields = ModelFields {
                family,
                vocabulary: model.vocabulary,
                hidden: model.hidden,
                layers: model.layers,
                heads: model.heads,
                kv_heads: model.kv_heads,
                head_width: model.head_width,
                feed_forward: model.intermediate,
                block: model.block,
                context: 128,
                rope_theta: 10_000.0,
                norm_epsilon: 1e-5,
                tied,
                value_head,
                vision: None,
                width: None,
                next_token: false,
                rope_scaling: RopeScaling::None,
                window: None,
                qkv_bias: family == Family::Qwen2,
                out_bias: false,
                mlp_bias: false,
                config: None,
            };
            let spec = model.spec().unwrap();
            let tensors = spec.tensors().iter();
            let shapes: Vec<_> = tensors.map(|t| (t.name.clone(), t.shape.clone())).collect();
            assert_eq!(shapes, fields.tensor_shapes(), "{family:?}");
        }
    }
}

#[test]
fn a_llama_is_cut_by_heads_rows_columns_and_layers() {
    let model = llama().spec().unwrap();
    // The last rank of the first stage, of four.
    let shards = model.shards_on(&layout(2, 4, 1), 3).unwrap();
    let expected = [
        "model.embed_tokens.weight [42:56, 0:24]",
        "model.layers.0.input_layernorm.weight [0:24]",
        "model.layers.0.self_attn.q_proj.weight [24:32, 0:24]",
        // Two key heads over four ranks: the second is also with its neighbour.
        "model.layers.0.self_attn.k_proj.weight [4:8, 0:24]",
        "model.layers.0.self_attn.v_proj.weight [4:8, 0:24]",
        "model.layers.0.self_attn.o_proj.weight [0:24, 24:32]",
        "model.layers.0.post_attention_layernorm.weight [0:24]",
        "model.layers.0.mlp.gate_proj.weight [30:40, 0:24]",
        "model.layers.0.mlp.up_proj.weight [30:40, 0:24]",
        "model.layers.0.mlp.down_proj.weight [0:24, 30:40]",
    ];
    assert_eq!(shown(&model, &shards), expected);
    let elements = 14 * 24 + 2 * 24 + 4 * (8 * 24) - 2 * (4 * 24) + 3 * (10 * 24);
    assert_eq!(shards.bytes(), 2 * elements);

    let shards = model.shards_on(&layout(2, 4, 1), 4).unwrap();
    let shown = shown(&model, &shards);
    let layer = "model.layers.1.input_layernorm.weight [0:24]";
    assert_eq!(shown.first().unwrap(), layer);
    let end = ["model.norm.weight [0:24]", "lm_head.weight [0:14, 0:24]"];
    assert_eq!(&shown[shown.len() - 2..], end);
}

#[test]
fn experts_are_cut_like_dense_blocks_and_their_router_is_whole() {
    let block = LayerBlock::Moe(Moe {
        experts: 2,
        experts_per_token: 1,
    });
    let model = Llama { block, ..llama() }.spec().unwrap();
    let shards = model.shards_on(&layout(2, 4, 1), 3).unwrap();
    let shown = shown(&model, &shards);
    let expected = [
        "model.layers.0.block_sparse_moe.gate.weight [0:2, 0:24]",
        "model.layers.0.block_sparse_moe.experts.0.w1.weight [30:40, 0:24]",
        "model.layers.0.block_sparse_moe.experts.0.w3.weight [30:40, 0:24]",
        "model.layers.0.block_sparse_moe.experts.0.w2.weight [0:24, 30:40]",
        "model.layers.0.block_sparse_moe.experts.1.w1.weight [30:40, 0:24]",
        "model.layers.0.block_sparse_moe.experts.1.w3.weight [30:40, 0:24]",
        "model.layers.0.block_sparse_moe.experts.1.w2.weight [0:24, 30:40]",
    ];
    assert_eq!(shown[7..], expected);
    let none = LayerBlock::Moe(Moe {
        experts: 0,
        experts_per_token: 1,
    });
    let refused = Llama {
        block: none,
        ..llama()
    };
    assert!(matches!(refused.spec(), Err(SpecError::Block(_))));
}

#[test]
fn a_tied_embedding_is_with_the_first_and_the_last_stage() {
    let tied = Llama {
        layers: 3,
        tied: true,
        ..llama()
    };
    let model = tied.spec().unwrap();
    let stages: Vec<bool> = (0..3)
        .map(|rank| {
            let shards = model.shards_on(&layout(3, 1, 1), rank).unwrap();
            !shards.of(0).is_empty()
        })
        .collect();
    assert_eq!(stages, [true, false, true]);
    // In one stage it is there once.
    assert_eq!(model.shards_on(&layout(1, 1, 1), 0).unwrap(), model.whole());
}

#[test]
fn layers_and_rows_that_do_not_divide_differ_by_one() {
    let rows = Cut::Split { dim: 0, unit: 1 };
    let layers = (0..5).map(|at| tensor(&at.to_string(), &[7], rows, Home::Layer(at)));
    let model = ModelSpec::new(5, layers.collect()).unwrap();
    let held = |rank| shown(&model, &model.shards_on(&layout(2, 3, 1), rank).unwrap());
    assert_eq!(held(0), ["0 [0:2]", "1 [0:2]"]);
    assert_eq!(held(1), ["0 [2:4]", "1 [2:4]"]);
    assert_eq!(held(5), ["2 [4:7]", "3 [4:7]", "4 [4:7]"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Grouped-query attention needs it, however few key heads there are.
    #[test]
    fn key_heads_are_with_their_query_heads(
        kv in 1..9_usize,
        group in 1..5_usize,
        ranks in any::<prop::sample::Index>(),
    ) {
        let t = 1 + ranks.index(kv * group);
        let model = Llama { heads: kv * group, kv_heads: kv, head_width: 1, ..llama() };
        let model = Llama { intermediate: 32, vocabulary: 32, ..model }.spec().unwrap();
        for rank in 0..t {
            let shards = model.shards_on(&layout(1, t, 1), rank).unwrap();
            let rows = |name: &str| {
                let named = |tensor: &TensorSpec| tensor.name.contains(name);
                let at = model.tensors().iter().position(named).unwrap();
                let span = shards.of(at)[0].region.spans()[0];
                span.offset..span.end()
            };
            let (queries, keys) = (rows("0.self_attn.q_proj"), rows("0.self_attn.k_proj"));
            prop_assert!(keys.contains(&(queries.start / group)));
            prop_assert!(keys.contains(&((queries.end - 1) / group)));
            if kv.is_multiple_of(t) || t.is_multiple_of(kv) {
                prop_assert_eq!(keys.len(), kv.div_ceil(t), "no more than it needs");
            }
        }
    }

    /// Split tensors have each element once in a replica; others at least once.
    #[test]
    fn a_replica_has_all_of_the_model((layouts, model) in worlds()) {
        let training = &layouts.training;
        let mut times: Vec<Vec<usize>> =
            model.tensors().iter().map(|tensor| vec![0; tensor.elements()]).collect();
        for rank in 0..replica_ranks(training) {
            for (tensor, at) in elements(&model, &model.shards_on(training, rank).unwrap()) {
                times[tensor][at] += 1;
            }
        }
        for (tensor, times) in model.tensors().iter().zip(times) {
            let stages = if tensor.home == Home::Ends { training.size(PP).min(2) } else { 1 };
            match tensor.cut {
                Cut::Split { .. } => prop_assert!(times.iter().all(|&n| n == stages)),
                Cut::Whole => prop_assert!(times.iter().all(|&n| n == stages * training.size(TP))),
                Cut::Cover { .. } => prop_assert!(times.iter().all(|&n| n >= stages)),
            }
        }
    }

    #[test]
    fn flat_parts_are_the_model_in_order((_, model) in worlds(), ranks in 1..80_usize) {
        let parts: Vec<_> =
            (0..ranks).map(|rank| model.flat(Part::new(rank, ranks).unwrap())).collect();
        let all: Vec<_> = parts.iter().flat_map(|part| elements(&model, part)).collect();
        prop_assert_eq!(&all, &elements(&model, &model.whole()));
        prop_assert_eq!(all.len(), model.elements());
        let sizes = parts.iter().map(|part| elements(&model, part).len());
        prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
    }
}

#[test]
fn models_that_contradict_themselves_are_refused() {
    let check = |layers, tensors: Vec<TensorSpec>, message: &str| {
        let refused = ModelSpec::new(layers, tensors).unwrap_err();
        assert_eq!(refused.to_string(), message);
    };
    let whole = |shape: &[usize]| tensor("a", shape, Cut::Whole, Home::First);
    check(0, vec![], "the model has no layers");
    check(
        1,
        vec![whole(&[1]), whole(&[2])],
        "two tensors are named `a`",
    );
    check(
        1,
        vec![whole(&[3, 0])],
        "tensor `a` of shape [3, 0] with 2 bytes an element is empty",
    );
    check(
        1,
        vec![
            whole(&[1 << 62]),
            tensor("b", &[1 << 62], Cut::Whole, Home::Last),
        ],
        "up to tensor `b` the model is larger than memory",
    );
    let cut = Cut::Split { dim: 1, unit: 1 };
    check(
        1,
        vec![tensor("a", &[4], cut, Home::First)],
        "tensor `a` of shape [4] has no dimension 1 to be cut along",
    );
    let cut = Cut::Cover { dim: 0, unit: 3 };
    check(
        1,
        vec![tensor("a", &[4], cut, Home::First)],
        "dimension 0 of tensor `a` has extent 4, which is not units of 3",
    );
    check(
        2,
        vec![tensor("a", &[4], Cut::Whole, Home::Layer(2))],
        "tensor `a` is of layer 2, and the model has 2, from 0 on",
    );
    let odd = Llama {
        heads: 8,
        kv_heads: 3,
        ..llama()
    };
    assert_eq!(
        odd.spec().unwrap_err().to_string(),
        "8 query heads cannot share 3 key-value heads evenly",
    );
    let huge = Llama {
        head_width: usize::MAX,
        ..llama()
    };
    assert!(matches!(huge.spec(), Err(SpecError::TooLarge { .. })));
}

#[test]
fn models_that_cannot_be_cut_are_refused_by_name() {
    let model = llama().spec().unwrap();
    assert!(model.shards_on(&layout(2, 8, 1), 0).is_ok());
    let check = |refused: CutError, message: &str| assert_eq!(refused.to_string(), message);
    check(
        model.shards_on(&layout(3, 1, 1), 0).unwrap_err(),
        "2 layers cannot be spread over 3 stages; use at most 2",
    );
    check(
        model.shards_on(&layout(1, 9, 1), 0).unwrap_err(),
        "tensor `model.layers.0.self_attn.q_proj.weight` has 8 units of 4 along dimension 0 and \
         cannot be split over 9 tensor ranks; use at most 8",
    );
    check(
        model.shards_on(&layout(1, 4, 2), 8).unwrap_err(),
        "no rank 8; the mesh has 8",
    );
    check(
        model.place(vec![(99, Region::whole(&[1]))]).unwrap_err(),
        "the model has 21 tensors and none with number 99",
    );
    let outside = Region::cut(&[56, 24], 0, 50..57);
    check(
        model.place(vec![(0, outside)]).unwrap_err(),
        "the box [50:57, 0:24] is empty or not in tensor `model.embed_tokens.weight` of shape \
         [56, 24]",
    );
}

#[test]
fn a_model_that_is_sent_is_checked() {
    let model = llama().spec().unwrap();
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), model);
    let broken = text.replace(r#""layers":2"#, r#""layers":1"#);
    let message = serde_json::from_str::<ModelSpec>(&broken)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("is of layer 1, and the model has 1"),
        "{message}"
    );
}

//! Shapes of public models, group by group, in the order in which transformers defines their parameters.

/// A tensor of a model.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: String,
    /// The product of all dimensions but the last; 1 for vectors.
    pub(crate) rows: usize,
    pub(crate) row_len: usize,
    /// A vector, or one for each expert: never cut into tiles, so each of its elements is a block.
    pub(crate) is_vector: bool,
}

impl Shape {
    fn matrix(name: impl Into<String>, rows: usize, row_len: usize) -> Self {
        Self {
            name: name.into(),
            rows,
            row_len,
            is_vector: false,
        }
    }

    fn vector(name: impl Into<String>, len: usize) -> Self {
        Self {
            name: name.into(),
            rows: 1,
            row_len: len,
            is_vector: true,
        }
    }
}

/// A layer, or a part of the model beside its layers, and how many of it there are.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) count: usize,
    pub(crate) shapes: Vec<Shape>,
}

/// The gated feed-forward part of a layer.
fn mlp(name: &str, hidden: usize, inner: usize) -> [Shape; 3] {
    [
        Shape::matrix(format!("{name}.gate_proj"), inner, hidden),
        Shape::matrix(format!("{name}.up_proj"), inner, hidden),
        Shape::matrix(format!("{name}.down_proj"), hidden, inner),
    ]
}

fn norms(hidden: usize) -> [Shape; 2] {
    [
        Shape::vector("input_layernorm", hidden),
        Shape::vector("post_attention_layernorm", hidden),
    ]
}

fn ends(hidden: usize, vocabulary: usize) -> [Group; 2] {
    [
        Group {
            count: 1,
            shapes: vec![Shape::matrix("embed_tokens", vocabulary, hidden)],
        },
        Group {
            count: 1,
            shapes: vec![
                Shape::vector("norm", hidden),
                Shape::matrix("lm_head", vocabulary, hidden),
            ],
        },
    ]
}

/// DeepSeek-V3-671B (arXiv 2412.19437 and its config.json), without the layer that predicts a second
/// token.
pub(crate) fn deepseek_v3() -> Vec<Group> {
    const HIDDEN: usize = 7168;
    const Q_LORA: usize = 1536;
    const KV_LORA: usize = 512;
    const HEADS: usize = 128;
    const NOPE: usize = 128;
    const ROPE: usize = 64;
    const V_HEAD: usize = 128;
    const EXPERTS: usize = 256;
    const EXPERT_INNER: usize = 2048;
    let attention = || {
        vec![
            Shape::matrix("q_a_proj", Q_LORA, HIDDEN),
            Shape::vector("q_a_layernorm", Q_LORA),
            Shape::matrix("q_b_proj", HEADS * (NOPE + ROPE), Q_LORA),
            Shape::matrix("kv_a_proj_with_mqa", KV_LORA + ROPE, HIDDEN),
            Shape::vector("kv_a_layernorm", KV_LORA),
            Shape::matrix("kv_b_proj", HEADS * (NOPE + V_HEAD), KV_LORA),
            Shape::matrix("o_proj", HIDDEN, HEADS * V_HEAD),
        ]
    };
    let mut dense = attention();
    dense.extend(mlp("mlp", HIDDEN, 18432));
    dense.extend(norms(HIDDEN));
    let mut experts = attention();
    for expert in 0..EXPERTS {
        experts.extend(mlp(&format!("experts.{expert}"), HIDDEN, EXPERT_INNER));
    }
    experts.push(Shape::matrix("gate", EXPERTS, HIDDEN));
    experts.push(Shape::vector("gate.e_score_correction_bias", EXPERTS));
    experts.extend(mlp("shared_experts", HIDDEN, EXPERT_INNER));
    experts.extend(norms(HIDDEN));
    let [embedding, head] = ends(HIDDEN, 129_280);
    vec![
        embedding,
        Group {
            count: 3,
            shapes: dense,
        },
        Group {
            count: 58,
            shapes: experts,
        },
        head,
    ]
}

/// The order of the last two dimensions of the first product of GPT-OSS's experts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GateUp {
    /// Outputs by inputs, as the published file has it: rows of 2,880.
    AsPublished,
    /// Inputs by outputs, as transformers has it: rows of 5,760.
    AsTransformers,
}

/// GPT-OSS-120B (its config.json), whose experts of a layer are one tensor each.
pub(crate) fn gpt_oss(gate_up: GateUp) -> Vec<Group> {
    const HIDDEN: usize = 2880;
    const HEAD: usize = 64;
    const HEADS: usize = 64;
    const KV_HEADS: usize = 8;
    const EXPERTS: usize = 128;
    const INNER: usize = 2880;
    let mut layer = vec![];
    for (name, outputs, inputs) in [
        ("q_proj", HEADS * HEAD, HIDDEN),
        ("k_proj", KV_HEADS * HEAD, HIDDEN),
        ("v_proj", KV_HEADS * HEAD, HIDDEN),
        ("o_proj", HIDDEN, HEADS * HEAD),
    ] {
        layer.push(Shape::matrix(name, outputs, inputs));
        layer.push(Shape::vector(format!("{name}.bias"), outputs));
    }
    layer.push(Shape::vector("sinks", HEADS));
    layer.push(Shape::matrix("router", EXPERTS, HIDDEN));
    layer.push(Shape::vector("router.bias", EXPERTS));
    let (rows, row_len) = match gate_up {
        GateUp::AsPublished => (2 * INNER, HIDDEN),
        GateUp::AsTransformers => (HIDDEN, 2 * INNER),
    };
    layer.push(Shape::matrix(
        "experts.gate_up_proj",
        EXPERTS * rows,
        row_len,
    ));
    layer.push(Shape::vector(
        "experts.gate_up_proj_bias",
        EXPERTS * 2 * INNER,
    ));
    layer.push(Shape::matrix("experts.down_proj", EXPERTS * INNER, HIDDEN));
    layer.push(Shape::vector("experts.down_proj_bias", EXPERTS * HIDDEN));
    layer.extend(norms(HIDDEN));
    let [embedding, head] = ends(HIDDEN, 201_088);
    vec![
        embedding,
        Group {
            count: 36,
            shapes: layer,
        },
        head,
    ]
}

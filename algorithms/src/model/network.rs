//! Where each tensor lies, and the forward pass as a recording.

use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{Backend, Layout, LinearExtras, Param, PassRanks, RopeShape, Tape, Var, VocabVars};

use super::block::{Cutting, Matrix, Products};
use super::context::ContextAttention;
use super::dropout::{DropoutRows, DropoutSite};
use super::lora::Adapters;
use super::next_token::{self, NextTargets};
use super::outputs::{Outputs, Seen, StageOutput, StageVars, Wanted};
use super::rank::RankOf;
use super::recompute::Recompute;
use super::stage::Stage;
use super::vision::{self, VisionPlaces};
use super::width::{Connected, ConnectionPlaces, WidthPlaces};
use super::{Batch, Model, ModelConfig};

/// Ranges of the flat buffer, neighbours fused where one product serves several tensors.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) embed: Range<usize>,
    /// The table of positions, where they are learned.
    pub(crate) positions: Option<Range<usize>>,
    pub(crate) layers: Vec<LayerPlaces>,
    pub(crate) width: WidthPlaces,
    pub(crate) norm: NormPlaces,
    /// The embedding table again if the head is tied.
    pub(crate) head: Range<usize>,
    /// The head that predicts one token further, where there is one.
    pub(crate) next_token: Option<NextTokenPlaces>,
    /// Weight and bias.
    pub(crate) value: Option<(Range<usize>, Range<usize>)>,
    pub(crate) vision: Option<VisionPlaces>,
}

/// Ranges of the head that predicts one token further.
#[derive(Clone, Debug)]
pub(crate) struct NextTokenPlaces {
    row_norm: NormPlaces,
    embedding_norm: NormPlaces,
    /// The matrices behind both.
    row: Range<usize>,
    embedding: Range<usize>,
    layer: LayerPlaces,
    norm: NormPlaces,
}

/// Ranges of a norm.
#[derive(Clone, Debug)]
pub(crate) struct NormPlaces {
    pub(crate) weight: Range<usize>,
    /// That of a layer norm; an RMSNorm has none.
    pub(crate) bias: Option<Range<usize>>,
}

impl NormPlaces {
    /// Lays a norm out; `push` takes a name and a shape.
    fn push(
        name: &str,
        config: &ModelConfig,
        mut push: impl FnMut(&str, &[usize]) -> Range<usize>,
    ) -> Self {
        let weight = push(&format!("{name}.weight"), &[config.dim]);
        let layer_norm = config.layer_norms;
        let bias = layer_norm.then(|| push(&format!("{name}.bias"), &[config.dim]));
        Self { weight, bias }
    }

    /// Records the norm of rows.
    fn record<B: Backend>(&self, tape: &mut Tape<B>, model: &Model<B>, x: Var) -> Var {
        let (weight, eps) = (model.param(&self.weight), model.config.norm_eps);
        match &self.bias {
            None => tape.rms_norm(x, weight, eps),
            Some(bias) => tape.layer_norm(x, weight, model.param(bias), eps),
        }
    }

    /// One past the last of its elements.
    fn end(&self) -> usize {
        self.bias.as_ref().unwrap_or(&self.weight).end
    }
}

/// Ranges of one block.
#[derive(Clone, Debug)]
pub(crate) struct LayerPlaces {
    /// Those of attention and of the feed-forward part, where rows are wider than layers.
    pub(crate) connections: Option<[ConnectionPlaces; 2]>,
    pub(crate) attention_norm: NormPlaces,
    /// Queries, keys and values.
    pub(crate) qkv: Range<usize>,
    pub(crate) qkv_bias: Option<Range<usize>>,
    /// Weight of query heads, then of key heads.
    pub(crate) head_norms: Option<Range<usize>>,
    pub(crate) out: Range<usize>,
    pub(crate) out_bias: Option<Range<usize>>,
    pub(crate) ffn_norm: NormPlaces,
    /// The matrices of the feed-forward part, in its order.
    pub(crate) block: Vec<Range<usize>>,
    /// The biases behind them, where there are some.
    pub(crate) block_biases: Vec<Range<usize>>,
}

/// Places of the biases behind the matrices of the feed-forward part, where it has some.
fn block_biases(
    config: &ModelConfig,
    push: &mut impl FnMut(&str, &[usize]) -> Range<usize>,
) -> Vec<Range<usize>> {
    let matrices = config.block.matrices(config.widths()).into_iter();
    let biased = matrices.filter(|_| config.mlp_bias);
    let places = biased.map(|matrix| {
        let names = matrix.tensors.iter();
        let own = names.map(|name| push(&format!("{name}.bias"), &[matrix.rows]));
        let own: Vec<Range<usize>> = own.collect();
        own[0].start..own[own.len() - 1].end
    });
    places.collect()
}

/// Names in Hugging Face's spelling. Queries, keys and values stand together, and so do the tensors
/// of each matrix of the feed-forward part. What other pipeline ranks have is without rows.
pub(super) fn layout(config: &ModelConfig) -> (Layout, Places) {
    let &ModelConfig { vocab, dim, .. } = config;
    let block = config.block.tensors(config.widths());
    let mut layout = Layout::new();
    let (embeds, scores, own_layers) = (config.embeds(), config.scores(), config.own_layers());
    let embedding = [
        if embeds || scores && config.tied_head {
            vocab
        } else {
            0
        },
        config.embedding_columns(),
    ];
    let embed = layout.push("model.embed_tokens.weight", &embedding);
    let positions = config.learned_positions.map(|rows| {
        let rows = if embeds { rows } else { 0 };
        layout.push("model.embed_positions.weight", &[rows, dim])
    });
    let width = config.width;
    let expand = width.and_then(|it| it.expansion(dim, config.tied_head));
    let expand = expand.map(|(name, shape)| layout.push(name, &there(embeds, &shape)));
    let mut layers = Vec::with_capacity(config.layers);
    for i in 0..config.layers {
        let is_there = own_layers.iter().any(|own| own.contains(&i));
        let mut push = |name: &str, shape: &[usize]| {
            layout.push(format!("model.layers.{i}.{name}"), &there(is_there, shape))
        };
        layers.push(layer_places(config, &block, &mut push));
    }
    let mut push = |name: &str, shape: &[usize]| layout.push(name, &there(scores, shape));
    let mut width = WidthPlaces {
        expand,
        ..WidthPlaces::default()
    };
    for (name, shape) in config.width.iter().flat_map(|it| it.reduction(dim)) {
        let place = Some(push(name, &shape));
        match shape.len() {
            1 => width.norm = place,
            _ => width.reduce = place,
        }
    }
    let norm = NormPlaces::push("model.norm", config, &mut push);
    let head = match config.tied_head {
        true => embed.clone(),
        false => push("lm_head.weight", &[vocab, dim]),
    };
    let value = config.value_head.then(|| {
        (
            push("value_head.weight", &[1, dim]),
            push("value_head.bias", &[1]),
        )
    });
    let next_token = config
        .next_token
        .then(|| next_token_places(config, &block, &mut layout));
    let vision = config.vision.as_ref();
    let vision = vision.map(|vision| vision::layout(vision, dim, &mut layout));
    (
        layout,
        Places {
            embed,
            positions,
            layers,
            width,
            norm,
            head,
            next_token,
            value,
            vision,
        },
    )
}

/// Lays the head that predicts one token further out, as one more layer.
fn next_token_places(
    config: &ModelConfig,
    block: &[(String, Vec<usize>, Cutting)],
    layout: &mut Layout,
) -> NextTokenPlaces {
    let number = config.layers;
    let mut push =
        |name: &str, shape: &[usize]| layout.push(format!("model.layers.{number}.{name}"), shape);
    let own = next_token::tensors(config.dim);
    let [row_norm, embedding_norm, row, embedding, norm] =
        own.map(|(name, shape)| push(name, &shape));
    let of_norm = |weight| NormPlaces { weight, bias: None };
    NextTokenPlaces {
        row_norm: of_norm(row_norm),
        embedding_norm: of_norm(embedding_norm),
        row,
        embedding,
        layer: layer_places(config, block, &mut push),
        norm: of_norm(norm),
    }
}

/// Lays a layer out; `push` takes names below `model.layers.N.` and shapes.
fn layer_places(
    config: &ModelConfig,
    block: &[(String, Vec<usize>, Cutting)],
    push: &mut impl FnMut(&str, &[usize]) -> Range<usize>,
) -> LayerPlaces {
    let &ModelConfig { dim, head_dim, .. } = config;
    let (q, kv) = (config.heads * head_dim, config.kv_heads * head_dim);
    let width = config.width.map(|width| (width, dim));
    let connections = width.map(|width| ConnectionPlaces::push(width, push));
    let attention_norm = NormPlaces::push("input_layernorm", config, &mut *push);
    let start = push("self_attn.q_proj.weight", &[q, dim]).start;
    push("self_attn.k_proj.weight", &[kv, dim]);
    let qkv = start..push("self_attn.v_proj.weight", &[kv, dim]).end;
    let qkv_bias = config.qkv_bias.then(|| {
        let start = push("self_attn.q_proj.bias", &[q]).start;
        push("self_attn.k_proj.bias", &[kv]);
        start..push("self_attn.v_proj.bias", &[kv]).end
    });
    let head_norms = config.head_norms.then(|| {
        let start = push("self_attn.q_norm.weight", &[head_dim]).start;
        start..push("self_attn.k_norm.weight", &[head_dim]).end
    });
    let out = push("self_attn.o_proj.weight", &[dim, q]);
    let out_bias = config
        .out_bias
        .then(|| push("self_attn.o_proj.bias", &[dim]));
    let ffn_norm = NormPlaces::push("post_attention_layernorm", config, &mut *push);
    for (name, shape, _) in block {
        push(name, shape);
    }
    let block_biases = block_biases(config, push);
    LayerPlaces {
        connections,
        attention_norm,
        qkv,
        qkv_bias,
        head_norms,
        out,
        out_bias,
        block: config.block.places(config.widths(), ffn_norm.end()),
        block_biases,
        ffn_norm,
    }
}

/// The shape of a tensor, without rows where it is another rank's.
fn there(is_there: bool, shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if !is_there {
        shape[0] = 0;
    }
    shape
}

/// The parameter set of the model's own weights.
pub(crate) const BASE: usize = 0;
/// The parameter set of the adapters.
pub(crate) const ADAPTERS: usize = 1;

/// Records the forward pass over a packed batch, of a model that has all layers.
pub(super) fn record<B: Backend>(
    tape: &mut Tape<B>,
    model: &Model<B>,
    batch: &Batch,
    seen: Option<Seen>,
    wanted: Wanted,
) -> Outputs {
    let is_whole = model.config.own_stages.is_none();
    assert!(is_whole, "a stage is recorded as such");
    let all = model.config.stage(0);
    match record_stage(tape, model, batch, seen, (&all, wanted)).output {
        StageOutput::Scores(outputs) => outputs,
        StageOutput::Rows(_) => unreachable!("the last stage scores"),
    }
}

/// Records the part of it that a stage has.
///
/// Tensor ranks have a share of the rows of the residual stream each. They gather normed rows before products, and add
/// up what they have made of all rows behind them (sequence parallelism, arXiv
/// [2205.05198](https://arxiv.org/abs/2205.05198)). Biases behind a sum are the first rank's to add; so each rank has an
/// addend of the gradient of every tensor that it has whole. Ranks that have some of the experts send each other rows
/// for these, and ranks that have some of the rows of a batch attend to those of all together.
pub(super) fn record_stage<B: Backend>(
    tape: &mut Tape<B>,
    model: &Model<B>,
    batch: &Batch,
    seen: Option<Seen>,
    (stage, wanted): (&Stage, Wanted),
) -> StageVars {
    let (config, places) = (&model.config, &model.places);
    let param = |range: &Range<usize>| model.param(range);
    let wide = config.recorder(&param);
    let ranks = model.shared().map(|(_, ranks)| ranks);
    let own = model
        .context_ranks()
        .map_or(RankOf::ALONE, |it| RankOf::new(it.rank(), it.count()));
    batch.check_rows(own, ranks.map_or(1, |ranks| ranks.count()));
    let dropout = dropout_of_share(batch, ranks);
    let (mut x, input) = if stage.embeds {
        let x = embedded(tape, model, batch);
        let x = share_of(tape, ranks, x, None);
        let x = with_pictures(tape, config, places, batch, seen, x);
        let mask = dropout.as_ref().map(|it| it.mask(DropoutSite::Embedding));
        let x = mask.map_or(x, |mask| tape.dropout(x, None, mask));
        let x = wide.map_or(x, |wide| wide.segments_of(tape, &places.width, x));
        (x, None)
    } else {
        let rows = batch.processed() / ranks.map_or(1, |ranks| ranks.count());
        let (segments, segment) = config
            .width
            .map_or((1, config.dim), |it| (it.segments, it.segment(config.dim)));
        let input = tape.learnt_input(rows * segments, segment);
        (input, Some(input))
    };
    let context = model.context_ranks();
    let all = LayersRecorded {
        matrices: config.block.matrices(config.widths()),
        rope: config.rope_shape(),
        context: context
            .map(|ranks| ContextAttention::of(batch.spans(), batch.context_kind(), ranks)),
        recompute: wanted.recompute,
        offload: wanted.offload,
        ranks,
        dropout,
    };
    for layer in stage.layers.clone() {
        let places = &model.places.layers[layer];
        x = record_layer(tape, model, batch, (layer, places, &all), x);
    }
    if !stage.scores {
        return StageVars {
            input,
            output: StageOutput::Rows(x),
        };
    }
    let next_token = match wanted.next_token && !batch.spans().share() {
        true => further_scored(tape, model, batch, &all, x),
        false => None,
    };
    x = all_rows(tape, ranks, x);
    x = wide.map_or(x, |wide| wide.rows_of(tape, x));
    if batch.selects() {
        x = tape.select(x, batch.rows().clone());
    }
    let x = wide.map_or(x, |wide| wide.narrowed(tape, &places.width, x));
    let h = places.norm.record(tape, model, x);
    StageVars {
        input,
        output: StageOutput::Scores(Outputs {
            next_token,
            ..scored(tape, model, batch, h, wanted)
        }),
    }
}

/// Everything that all layers of a recording have in common.
struct LayersRecorded<'a, B: Backend> {
    matrices: Vec<Matrix>,
    rope: Option<RopeShape>,
    context: Option<ContextAttention<'a, B>>,
    recompute: Recompute,
    offload: bool,
    /// Those that each have a part of every matrix.
    ranks: Option<&'a Arc<dyn PassRanks<B>>>,
    /// Numbers of this rank's rows of the residual stream that are dropped.
    dropout: Option<DropoutRows>,
}

impl<B: Backend> LayersRecorded<'_, B> {
    /// The residual that a product adds by itself: none where it is added up over ranks, or numbers of it are dropped,
    /// before the residual comes.
    fn own(&self, to: Stream) -> Option<Var> {
        match to {
            Stream::Rows(x) if self.ranks.is_none() && self.dropout.is_none() => Some(x),
            Stream::Rows(_) | Stream::Segments(_) => None,
        }
    }

    /// Rows of the residual stream behind what this rank, or all of them together, have made for it.
    fn added(&self, tape: &mut Tape<B>, site: DropoutSite, y: Var, to: Stream) -> Var {
        let x = match to {
            Stream::Rows(x) => x,
            Stream::Segments(connected) => {
                let mask = self.dropout.as_ref().map(|it| it.mask(site));
                let y = mask.map_or(y, |mask| tape.dropout(y, None, mask));
                return connected.write(tape, y);
            }
        };
        match &self.dropout {
            None => share_of(tape, self.ranks, y, Some(x)),
            Some(dropout) => {
                let y = share_of(tape, self.ranks, y, None);
                tape.dropout(y, Some(x), dropout.mask(site))
            }
        }
    }
}

/// The residual stream beside an attention or a feed-forward part.
#[derive(Clone, Copy)]
enum Stream {
    /// Rows that it reads, and adds to.
    Rows(Var),
    /// Wider rows, of which it reads some.
    Segments(Connected),
}

impl Stream {
    /// What a part of a layer reads, and the stream that what it makes is added to.
    fn read<B: Backend>(
        tape: &mut Tape<B>,
        model: &Model<B>,
        places: Option<&ConnectionPlaces>,
        x: Var,
    ) -> (Self, Var) {
        let param = |range: &Range<usize>| model.param(range);
        match model.config.recorder(&param).zip(places) {
            None => (Self::Rows(x), x),
            Some((wide, places)) => {
                let (connected, read) = wide.connect(tape, places, x);
                (Self::Segments(connected), read)
            }
        }
    }
}

/// Records a layer of this number.
fn record_layer<B: Backend>(
    tape: &mut Tape<B>,
    model: &Model<B>,
    batch: &Batch,
    (i, layer, all): (usize, &LayerPlaces, &LayersRecorded<'_, B>),
    x: Var,
) -> Var {
    let (config, adapters) = (&model.config, model.adapters());
    let (ranks, adds_whole) = (all.ranks, model.adds_whole());
    let base = |range: &Range<usize>| model.param(range);
    let attention = config.attention();
    let linear = |tape: &mut Tape<B>, which, x, range: &Range<usize>, outputs, extras| {
        let y = tape.linear_with(x, base(range), outputs, extras);
        adapted(tape, adapters, i, which, [x, y])
    };
    let of_layer = tape.mark();
    let connections = layer.connections.as_ref();
    let (stream, x) = Stream::read(tape, model, connections.map(|it| &it[0]), x);
    let h = layer.attention_norm.record(tape, model, x);
    let h = all_rows(tape, ranks, h);
    let extras = LinearExtras {
        bias: layer.qkv_bias.as_ref().map(base),
        ..Default::default()
    };
    let mut qkv = linear(tape, QKV, h, &layer.qkv, attention.qkv_cols(), extras);
    if let (Some(weight), Some(shape)) = (&layer.head_norms, config.head_norm()) {
        qkv = tape.head_norm(qkv, base(weight), shape);
    }
    if let Some(rope) = &all.rope {
        tape.rope(qkv, rope.clone(), batch.positions().clone());
    }
    let shape = config.attention_of(i);
    let a = match &all.context {
        None => tape.attention(qkv, shape, batch.spans().clone()),
        Some(context) => context.record(tape, qkv, shape),
    };
    let extras = LinearExtras {
        residual: all.own(stream),
        bias: layer.out_bias.as_ref().filter(|_| adds_whole).map(base),
        ..Default::default()
    };
    let y = linear(tape, OUT, a, &layer.out, config.dim, extras);
    let x = all.added(tape, DropoutSite::Attention(i), y, stream);
    let of_block = tape.mark();
    let (stream, x) = Stream::read(tape, model, connections.map(|it| &it[1]), x);
    let h = layer.ffn_norm.record(tape, model, x);
    let h = all_rows(tape, ranks, h);
    let products = LayerProducts {
        model,
        layer: i,
        matrices: &all.matrices,
        places: &layer.block,
        biases: &layer.block_biases,
        adds_whole,
    };
    let (block, own) = (&config.block, all.own(stream));
    let y = block.record(tape, config.widths(), &products, h, own);
    let x = all.added(tape, DropoutSite::FeedForward(i), y, stream);
    match all.recompute {
        Recompute::Nothing => {}
        Recompute::FeedForward => tape.recompute(of_block),
        Recompute::Layers => tape.recompute(of_layer),
    }
    if all.offload {
        tape.offload(of_layer);
    }
    x
}

/// Numbers of a rank's share of the rows that are dropped, where there is dropout.
fn dropout_of_share<B: Backend>(
    batch: &Batch,
    ranks: Option<&Arc<dyn PassRanks<B>>>,
) -> Option<DropoutRows> {
    let all = batch.dropout()?;
    Some(match ranks {
        None => all.clone(),
        Some(ranks) => all.part(RankOf::new(ranks.rank(), ranks.count()).piece(batch.processed())),
    })
}

/// The share of a tensor rank in the sum of what all of them have made, and the residual of these rows. One that has
/// all has added that already.
fn share_of<B: Backend>(
    tape: &mut Tape<B>,
    ranks: Option<&Arc<dyn PassRanks<B>>>,
    x: Var,
    residual: Option<Var>,
) -> Var {
    match ranks {
        None => x,
        Some(ranks) => tape.scatter_sum(x, residual, Arc::clone(ranks)),
    }
}

/// The rows of all tensor ranks, of which this one has its share.
fn all_rows<B: Backend>(tape: &mut Tape<B>, ranks: Option<&Arc<dyn PassRanks<B>>>, x: Var) -> Var {
    match ranks {
        None => x,
        Some(ranks) => tape.gather_rows(x, Arc::clone(ranks)),
    }
}

/// The scores of normed rows: by the head, and by the value head where there is one.
fn scored<B: Backend>(
    tape: &mut Tape<B>,
    model: &Model<B>,
    batch: &Batch,
    h: Var,
    wanted: Wanted,
) -> Outputs {
    let places = &model.places;
    let base = |range: &Range<usize>| model.param(range);
    let vocab = wanted.logprobs.then(|| {
        let (head, scale) = (base(&places.head), 1.0 / batch.temperature());
        match model.shared() {
            None => tape.vocab(h, head, scale, batch.labels().clone()),
            Some((part, ranks)) => {
                let others = (part.first_entry() as u32, Arc::clone(ranks));
                tape.vocab_part(h, head, scale, batch.labels(), others)
            }
        }
    });
    let values = places
        .value
        .as_ref()
        .filter(|_| wanted.values)
        .map(|(weight, bias)| {
            let extras = LinearExtras {
                bias: Some(base(bias)),
                ..Default::default()
            };
            tape.linear_with(h, base(weight), 1, extras)
        });
    Outputs {
        vocab,
        values,
        next_token: None,
    }
}

/// The scores of the head that predicts one token further, by the rows behind all layers.
fn further_scored<B: Backend>(
    tape: &mut Tape<B>,
    model: &Model<B>,
    batch: &Batch,
    all: &LayersRecorded<'_, B>,
    rows: Var,
) -> Option<VocabVars> {
    let (places, config) = (model.places.next_token.as_ref()?, &model.config);
    let param = |range: &Range<usize>| model.param(range);
    let targets = NextTargets::of(batch);
    let row = places.row_norm.record(tape, model, rows);
    let embedded = tape.embed(param(&model.places.embed), config.dim, targets.tokens);
    let embedded = places.embedding_norm.record(tape, model, embedded);
    let x = tape.linear(row, param(&places.row), config.dim);
    let extras = LinearExtras {
        residual: Some(x),
        ..LinearExtras::default()
    };
    let x = tape.linear_with(embedded, param(&places.embedding), config.dim, extras);
    let x = record_layer(tape, model, batch, (config.layers, &places.layer, all), x);
    let x = tape.select(x, targets.rows);
    let h = places.norm.record(tape, model, x);
    let (head, scale) = (param(&model.places.head), 1.0 / batch.temperature());
    Some(tape.vocab(h, head, scale, targets.labels))
}

/// The rows of tokens, with those of their positions where these are learnt.
fn embedded<B: Backend>(tape: &mut Tape<B>, model: &Model<B>, batch: &Batch) -> Var {
    let (places, tokens) = (&model.places, batch.tokens());
    let base = |range: &Range<usize>| model.param(range);
    let table = base(&places.embed);
    let dim = model.config.embedding_columns();
    let x = match model.shared() {
        None => tape.embed(table, dim, tokens.clone()),
        Some((part, _)) => {
            let known = tokens.iter().all(|it| (*it as usize) < part.whole().vocab);
            assert!(known, "tokens of the vocabulary");
            tape.embed_part(table, dim, tokens, part.first_entry() as u32)
        }
    };
    let positions = places.positions.as_ref();
    match positions.filter(|_| model.adds_whole()) {
        None => x,
        Some(table) => tape.embed_onto(x, base(table), batch.positions().clone()),
    }
}

/// Adds the features of pictures to the rows that stand for them.
fn with_pictures<B: Backend>(
    tape: &mut Tape<B>,
    config: &ModelConfig,
    places: &Places,
    batch: &Batch,
    seen: Option<Seen>,
    x: Var,
) -> Var {
    let (Some(vision), Some(own), Some(seen)) = (&config.vision, &places.vision, seen) else {
        return x;
    };
    let table = Param::new(seen.set, 0..seen.rows * vision.dim);
    let features = tape.embed(table, vision.dim, batch.visual().clone());
    let extras = LinearExtras {
        residual: Some(x),
        ..Default::default()
    };
    let out = Param::new(BASE, own.out.clone());
    tape.linear_with(features, out, config.dim, extras)
}

/// Adds to the output `y` of a linear layer what its adapter makes of `x`, if it has one.
fn adapted<B: Backend>(
    tape: &mut Tape<B>,
    adapters: Option<&Adapters<B>>,
    layer: usize,
    which: usize,
    [x, y]: [Var; 2],
) -> Var {
    match adapters {
        None => y,
        Some(adapters) => adapters.record(tape, layer, which, x, y),
    }
}

/// The matrices of a layer's feed-forward part.
struct LayerProducts<'a, B: Backend> {
    model: &'a Model<B>,
    layer: usize,
    matrices: &'a [Matrix],
    places: &'a [Range<usize>],
    biases: &'a [Range<usize>],
    /// Set where this rank adds biases that are no part of a cut.
    adds_whole: bool,
}

impl<B: Backend> Products<B> for LayerProducts<'_, B> {
    fn param(&self, matrix: usize) -> Param {
        self.model.param(&self.places[matrix])
    }

    fn linear(&self, tape: &mut Tape<B>, matrix: usize, x: Var, residual: Option<Var>) -> Var {
        let is_own = self.adds_whole || self.matrices[matrix].cutting == Cutting::Outputs;
        let bias = self.biases.get(matrix).filter(|_| is_own);
        let extras = LinearExtras {
            residual,
            bias: bias.map(|place| self.model.param(place)),
            ..Default::default()
        };
        let outputs = self.matrices[matrix].outputs();
        let y = tape.linear_with(x, self.param(matrix), outputs, extras);
        adapted(
            tape,
            self.model.adapters(),
            self.layer,
            BLOCK + matrix,
            [x, y],
        )
    }

    fn expert_ranks(&self) -> Option<&Arc<dyn PassRanks<B>>> {
        self.model.expert_ranks()
    }
}

/// Number of the linear layer of queries, keys and values.
const QKV: usize = 0;
/// Number of the linear layer behind attention.
const OUT: usize = 1;
/// Number of the first matrix of the feed-forward part.
const BLOCK: usize = 2;

/// A linear layer that may have an adapter.
pub(super) struct Linear {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// Name of the adapter below `model.layers.N.`; without one it has none.
    pub(super) adapter: Option<&'static str>,
}

impl Linear {
    /// Those of a layer, by number.
    pub(super) fn all(config: &ModelConfig) -> Vec<Self> {
        let attention = config.attention();
        let of_attention = |outputs, inputs, name| Self {
            outputs,
            inputs,
            adapter: Some(name),
        };
        let mut all = vec![
            of_attention(attention.qkv_cols(), config.dim, "self_attn.qkv_proj"),
            of_attention(config.dim, attention.out_cols(), "self_attn.o_proj"),
        ];
        let block = config.block.matrices(config.widths()).into_iter();
        all.extend(block.map(|matrix| Self {
            outputs: matrix.outputs(),
            inputs: matrix.inputs,
            adapter: matrix.adapter,
        }));
        all
    }

    /// Where the one of this number lies.
    pub(super) fn place(number: usize, layer: &LayerPlaces) -> &Range<usize> {
        match number {
            QKV => &layer.qkv,
            OUT => &layer.out,
            matrix => &layer.block[matrix - BLOCK],
        }
    }
}

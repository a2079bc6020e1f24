//! The arithmetic that a batch costs a model, by its shape: the utilisation of a device is measured
//! against it.

use odeon_gpu::Backend;

use super::{Batch, Model, ModelConfig};

/// Floating point operations of a pass, in the order they are done.
struct Pass {
    /// Of products with weights.
    weights: f64,
    /// Of products of tokens with tokens.
    attention: f64,
}

impl Pass {
    /// The forward pass: two operations for each weight of a matrix and token that meets it, and
    /// four for each element of a head and pair of a token with one that it attends to, which are
    /// itself and those before it. Of experts those count that a token passes. The output head
    /// meets the predicted tokens alone. Of a pipeline rank the layers count that it has. After
    /// Chowdhery et al. 2022, appendix B, which counts the pairs that the causal mask leaves out as
    /// well.
    fn forward(config: &ModelConfig, batch: &Batch) -> Self {
        let head = config.head_dim as f64;
        let dim = config.dim as f64;
        let queries = config.heads as f64 * head;
        let keys_and_values = 2.0 * config.kv_heads as f64 * head;
        let layer = dim * (queries + keys_and_values)
            + queries * dim
            + config.block.met(config.widths()) as f64;
        let values = if config.value_head { 1.0 } else { 0.0 };
        let output = match config.scores() {
            true => dim * (config.vocab as f64 + values),
            false => 0.0,
        };
        let layers = config.own_layers().into_iter().map(|own| own.len());
        let layers = layers.sum::<usize>() as f64;
        let pairs = batch.spans().iter().map(|span| {
            let (own, prefix) = (span.rows.len() as f64, span.prefix.len() as f64);
            own * (own + 1.0) / 2.0 + own * prefix
        });
        let met = layers * layer * batch.processed() as f64 + output * batch.predicted() as f64;
        Self {
            weights: 2.0 * met
                + of_width(config, layers, batch)
                + of_next_token(config, layer, batch),
            // Ranks that share rows each compute some of the heads of all rows, or all heads for as many pairs.
            attention: 4.0 * queries * layers * pairs.sum::<f64>() / batch.context().ranks as f64,
        }
    }
}

/// Operations of the head that predicts one token further, as if it had as many to predict: attention in it is left out.
fn of_next_token(config: &ModelConfig, layer: f64, batch: &Batch) -> f64 {
    let (dim, vocab) = (config.dim as f64, config.vocab as f64);
    let own = (layer + 2.0 * dim * dim) * batch.processed() as f64;
    match config.next_token {
        true => 2.0 * (own + dim * vocab * batch.predicted() as f64),
        false => 0.0,
    }
}

/// Operations of connections, and of what makes rows wider and narrower.
fn of_width(config: &ModelConfig, layers: f64, batch: &Batch) -> f64 {
    let Some(width) = config.width else {
        return 0.0;
    };
    let (dim, row, tokens) = (
        config.dim as f64,
        config.row() as f64,
        batch.processed() as f64,
    );
    let there = |is_there: bool, rows: f64| {
        if is_there {
            2.0 * dim * row * rows
        } else {
            0.0
        }
    };
    let widens = width.widens();
    layers * width.layer_flops(config.dim) * tokens
        + there(widens && config.tied_head && config.embeds(), tokens)
        + there(widens && config.scores(), batch.predicted() as f64)
}

impl<B: Backend> Model<B> {
    /// Floating point operations of a forward pass over this batch.
    #[must_use]
    pub fn forward_flops(&self, batch: &Batch) -> f64 {
        let forward = Pass::forward(&self.config, batch);
        forward.weights + forward.attention
    }

    /// Floating point operations of a training step over this batch: the forward pass, and the
    /// backward pass, in which each product becomes two. The gradient of a frozen weight is none of
    /// them; adapters, which are small, are not counted, nor are norms and the optimiser.
    #[must_use]
    pub fn training_flops(&self, batch: &Batch) -> f64 {
        let forward = Pass::forward(&self.config, batch);
        let times = if self.has_adapters() { 2.0 } else { 3.0 };
        times * forward.weights + 3.0 * forward.attention
    }
}

#[cfg(test)]
mod tests {
    use odeon_gpu::Cpu;

    use super::*;
    use crate::model::{LayerBlock, LoraConfig, Moe, Sequence};

    /// By hand: a layer has 4*(4+4) + 4*4 + 3*4*6 = 120 weights in matrices, the head 4*10. Of
    /// sequences of 5 and 3 tokens 4 and 2 are read, 3 and 1 predicted. Pairs: 10 and 3.
    #[test]
    fn operations_are_those_counted_by_hand() {
        let config = ModelConfig {
            vocab: 10,
            dim: 4,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 2,
            ffn: 6,
            ..ModelConfig::default()
        };
        let sequence = |tokens, prompt| Sequence { tokens, prompt };
        let rows = [sequence(&[1, 2, 3, 4, 5][..], 2), sequence(&[1, 2, 3], 2)];
        let batch = Batch::pack(&rows).expect("it packs");
        let weights = 2.0 * (2.0 * 120.0 * 6.0 + 40.0 * 4.0);
        let attention = 4.0 * 4.0 * 2.0 * 13.0;
        let mut model = Model::init(Cpu::new(1), config, 1).expect("a model");
        let flops = model.training_flops(&batch);
        assert_eq!(flops, 3.0 * (weights + attention));
        assert_eq!(model.forward_flops(&batch), weights + attention);
        let experts = Moe {
            experts: 5,
            experts_per_token: 2,
        };
        let mixed = ModelConfig {
            block: LayerBlock::Moe(experts),
            ..model.config().clone()
        };
        let mixed = Model::init(Cpu::new(1), mixed, 1).expect("a model");
        // Each token passes the router of 4*5 and one expert more than there was.
        let more = 2.0 * (2.0 * (20.0 + 72.0) * 6.0);
        assert_eq!(mixed.forward_flops(&batch), weights + more + attention);
        model.add_lora(LoraConfig::default(), 1);
        let flops = model.training_flops(&batch);
        assert_eq!(flops, 2.0 * weights + 3.0 * attention);
    }
}

//! The kernels and collectives of a layer on one card of a tensor group, for a micro-batch.

use super::super::shard::{ELEMENT_BYTES, prefill_attention, product};
use super::model::attended;
use super::{
    AttentionKernel, Elementwise, FeedForward, Machine, Recomputed, Techniques, TrainedModel,
    TrainingPlan,
};
use odeon_replay::{StageKernel, StageKernels};

/// Seconds of one layer, or of the head, on one card.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LayerTime {
    /// Kernels forward.
    pub(super) forward_s: f64,
    /// Kernels on the way back, with what is computed again.
    pub(super) backward_s: f64,
    /// Collectives of the tensor group that nothing hides, forward.
    pub(super) forward_tensor_s: f64,
    /// The same on the way back.
    pub(super) backward_tensor_s: f64,
}

/// A model on one card of its tensor group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer<'a> {
    pub(super) machine: &'a Machine,
    pub(super) model: &'a TrainedModel,
    pub(super) plan: &'a TrainingPlan,
    pub(super) techniques: &'a Techniques,
    /// Tokens attend to those before them alone. Patches of a picture attend to all.
    pub(super) masked: bool,
}

impl Layer<'_> {
    /// Tokens of a micro-batch.
    pub(super) fn rows(&self) -> f64 {
        (self.plan.micro_batch * self.plan.sequence) as f64
    }

    fn tensor(&self) -> f64 {
        f64::from(self.plan.tensor)
    }

    /// A layer, with a run's slowdown of kernels.
    pub(super) fn time(&self) -> LayerTime {
        let parallel = self.techniques.parallel_block;
        let products = self.model.products(self.rows(), self.tensor(), parallel);
        let speed = if self.techniques.float8 { 2.0 } else { 1.0 };
        let forward: f64 = products.iter().map(|it| self.product(*it, speed)).sum();
        let backward: f64 = products.iter().map(|it| self.gradients(*it, speed)).sum();
        let attention = self.attention();
        let elementwise = self.elementwise();
        let again = match self.plan.recomputed {
            Recomputed::Nothing => 0.0,
            Recomputed::Half => forward / 2.0 + elementwise,
            Recomputed::Layers => forward + attention + elementwise,
        };
        // Of attention five products for two (FlashAttention, arXiv 2205.14135); what is between products is read and
        // written twice as often.
        let backward = backward + 2.5 * attention + 2.0 * elementwise + again;
        let exposed = self.collectives();
        let again = match self.plan.recomputed {
            Recomputed::Layers => exposed,
            Recomputed::Nothing | Recomputed::Half => 0.0,
        };
        let sustained = self.machine.sustained;
        LayerTime {
            forward_s: sustained * (forward + attention + elementwise),
            backward_s: sustained * backward,
            forward_tensor_s: exposed,
            backward_tensor_s: exposed + again,
        }
    }

    /// The kernels of a layer in their order, each slowed by so much: all that [`time`](Self::time) has, one by one.
    pub(super) fn kernels(&self, slowest: f64) -> StageKernels {
        let slowed = slowest * self.machine.sustained;
        let compute = |seconds: f64| StageKernel::compute(slowed * seconds);
        let speed = if self.techniques.float8 { 2.0 } else { 1.0 };
        let products =
            self.model
                .products(self.rows(), self.tensor(), self.techniques.parallel_block);
        let exposed = self.collective();
        let collective = (exposed > 0.0).then(|| StageKernel::collective(exposed));
        // Attention lies between the first two products, and what is between products behind each part of the layer.
        let parts = products.len() / 2;
        let between = self.elementwise() / parts as f64;
        let mut kernels = StageKernels::default();
        for (part, pair) in products.chunks(2).enumerate() {
            let inner = (part == 0).then(|| self.attention());
            let forward = [Some(self.product(pair[0], speed)), inner];
            let forward = forward.into_iter().flatten();
            kernels.forward.extend(collective);
            kernels.forward.extend(forward.map(compute));
            kernels.forward.push(compute(self.product(pair[1], speed)));
            kernels.forward.extend(collective);
            kernels.forward.push(compute(between));
        }
        match self.plan.recomputed {
            Recomputed::Nothing => {}
            Recomputed::Half => {
                let all: f64 = products.iter().map(|it| self.product(*it, speed)).sum();
                kernels
                    .backward
                    .push(compute(all / 2.0 + self.elementwise()));
            }
            Recomputed::Layers => kernels.backward.clone_from(&kernels.forward),
        }
        for (part, pair) in products.chunks(2).enumerate().rev() {
            kernels.backward.push(compute(2.0 * between));
            kernels.backward.extend(collective);
            let inner = (part == 0).then(|| 2.5 * self.attention());
            let gradients = |[m, n, k]: [f64; 3]| [[m, k, n], [n, k, m]];
            let behind = gradients(pair[1]).map(|it| self.product(it, speed));
            let before = gradients(pair[0]).map(|it| self.product(it, speed));
            let all = behind.into_iter().chain(inner).chain(before);
            kernels.backward.extend(all.map(compute));
            kernels.backward.extend(collective);
        }
        kernels
    }

    /// The head with its loss.
    pub(super) fn head(&self) -> LayerTime {
        let size = &self.model.size;
        let vocabulary = size.vocabulary as f64 / self.tensor();
        let head = [self.rows(), vocabulary, size.hidden as f64];
        let elements = self.rows() * vocabulary;
        // The loss reads logits in four bytes, and writes their gradient.
        let each = match self.techniques.elementwise {
            Elementwise::Apart => 24.0,
            Elementwise::Norms | Elementwise::Fused => 10.0,
        };
        let loss = self.memory(each * elements);
        let sustained = self.machine.sustained;
        LayerTime {
            forward_s: sustained * (self.product(head, 1.0) + loss / 2.0),
            backward_s: sustained * (self.gradients(head, 1.0) + loss / 2.0),
            ..LayerTime::default()
        }
    }

    fn product(&self, [m, n, k]: [f64; 3], speed: f64) -> f64 {
        if speed == 1.0 {
            return product(&self.machine.card, m, n, k);
        }
        let mut fast = self.machine.card.clone();
        fast.device.flops *= speed;
        // Operands are cast: read in two bytes and written in one.
        product(&fast, m, n, k) + self.memory(3.0 * (m * k + n * k))
    }

    /// The gradients by input and by weights.
    fn gradients(&self, [m, n, k]: [f64; 3], speed: f64) -> f64 {
        self.product([m, k, n], speed) + self.product([n, k, m], speed)
    }

    /// Attention forward.
    fn attention(&self) -> f64 {
        let size = &self.model.size;
        let heads = [size.heads, size.kv_heads].map(|all| all as f64 / self.tensor());
        let sequence = self.plan.sequence as f64;
        let pairs = match self.masked {
            true => attended(self.plan.sequence, self.techniques.window),
            // The mask leaves half of them.
            false => 2.0,
        };
        let squares = self.plan.micro_batch as f64 * sequence * sequence * pairs;
        let card = &self.machine.card;
        let measured = prefill_attention(card, self.rows(), squares, heads, size.head as f64);
        let flash2 = (FLASH2_FLOPS / card.device.flops).min(card.kernels.prefill.flops);
        match self.techniques.attention {
            AttentionKernel::Measured => measured,
            AttentionKernel::Flash2 => measured * card.kernels.prefill.flops / flash2,
            AttentionKernel::Flash1 => 2.0 * measured * card.kernels.prefill.flops / flash2,
        }
    }

    /// Norms, residuals, rotation and activation forward. With sequence parallelism each card has its part of the rows
    /// of what is between products.
    fn elementwise(&self) -> f64 {
        let size = &self.model.size;
        let [norms, residuals] = match self.techniques.parallel_block {
            true => [1.0, 1.0],
            false => [2.0, 2.0],
        };
        let passed = match self.model.feed_forward {
            FeedForward::Plain | FeedForward::Gated => 1.0,
            FeedForward::Experts { passed, .. } => passed as f64,
        };
        // Bytes for each element, at the rate at which products read. Apart, a norm casts to four bytes, squares, sums,
        // scales, casts back and multiplies by its weight, and a rotation does as much in its way. Those of one kernel
        // were measured (Vidur, A100 and H100): a norm moves 4 bytes at 0.4 of that rate, a rotation at half of it, and a
        // gated activation 6 bytes at two thirds.
        let (norm, residual, rotation, activation) = match self.techniques.elementwise {
            Elementwise::Apart => (36.0, 6.0, 32.0, 10.0),
            Elementwise::Norms => (10.0, 15.0, 8.0, 10.0),
            Elementwise::Fused => (10.0, 6.0, 8.0, 9.0),
        };
        let heads = ((size.heads + size.kv_heads) * size.head) as f64;
        let stream = size.hidden as f64 * (norms * norm + residuals * residual);
        // Tokens are ordered by expert, and brought back.
        let ordered = if passed > 1.0 {
            8.0 * passed * size.hidden as f64
        } else {
            0.0
        };
        let rotated = match self.model.feed_forward {
            FeedForward::Plain => 0.0,
            FeedForward::Gated | FeedForward::Experts { .. } => heads * rotation,
        };
        let inner = passed * size.ffn as f64 * activation;
        let bytes = self.rows() * (stream + ordered + rotated + inner) / self.tensor();
        self.memory(bytes)
    }

    /// Seconds of reading and writing so many bytes.
    fn memory(&self, bytes: f64) -> f64 {
        let card = &self.machine.card;
        bytes / (card.device.memory_bytes_per_second * card.kernels.product.bandwidth)
    }

    /// Collectives of the tensor group that nothing hides, in one direction: a gather before and a scatter behind each of
    /// attention and feed-forward part, or both together.
    fn collectives(&self) -> f64 {
        let count = if self.techniques.parallel_block {
            2.0
        } else {
            4.0
        };
        count * self.collective()
    }

    /// One of them.
    fn collective(&self) -> f64 {
        let bytes = self.rows() * self.model.size.hidden as f64 * ELEMENT_BYTES;
        let one = self
            .machine
            .gather(self.plan.tensor, self.plan.tensor, bytes);
        // Of chunks that run beside each other's products the first one is left.
        let exposed = if self.techniques.tensor_overlap {
            1.0 / TENSOR_CHUNKS
        } else {
            1.0
        };
        one * exposed
    }

    /// Seconds of the optimiser on one card.
    pub(super) fn optimizer(&self, parameters: f64) -> f64 {
        self.memory(UPDATE_BYTES * parameters)
    }

    /// Seconds of copying so many bytes of a buffer: read and written once.
    pub(super) fn copy(&self, bytes: f64) -> f64 {
        self.memory(2.0 * bytes)
    }
}

/// The most that FlashAttention 2 reaches on H100, FLOP/s (arXiv 2307.08691, section 4.1).
const FLASH2_FLOPS: f64 = 335e12;

/// Chunks of a product and its collective (assumed).
const TENSOR_CHUNKS: f64 = 4.0;

/// Gradient, master copy and two moments read, the last three and the parameter written.
const UPDATE_BYTES: f64 = 30.0;

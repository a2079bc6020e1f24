//! Prices from formulas.

use odeon_topology::DeviceModel;
use serde::{Deserialize, Serialize};

use super::{
    cost::{CostModel, Generation, Run},
    degrees::Degrees,
    pool::Pool,
    workload::{Batch, Model, Role, Work},
};

/// Prices from closed formulas: a start where nothing has been measured yet, and good for ratios
/// rather than seconds.
///
/// They are stand-ins for HybridFlow's simulators (arXiv 2409.19256): training and scoring are
/// bound by arithmetic, generation by the memory's bandwidth, and each has its communication.
/// For `p-t-d` on `n` devices: `P` parameters, `L` layers, `H` hidden, `F` the device's FLOP/s
/// times [`efficiency`], `ring(k) = 2 (k - 1) / k`, the share of an all-reduce's bytes that each
/// of `k` members sends.
///
/// | what | formula | unit |
/// | --- | --- | --- |
/// | resident memory | `18 P / (t p)` trained, `2 P / (t p)` frozen | B |
/// | training | `6 P tokens / (n F) * ragged * bubble + tensor + gradients` | s |
/// | scoring | `2 P tokens / (n F) * ragged * bubble + tensor` | s |
/// | generation | `gather + prefill + max(reads, arithmetic) + tensor` | s |
///
/// - 18 B are parameters (bf16, 2), gradients (f32, 4), Adam's master copy and moments (f32, 12).
/// - `ragged = ceil(sequences / d) d / sequences`, of one update: replicas wait for the fullest.
/// - `bubble = 1 + (p - 1) / micro`, with the micro-batches of one replica in one update.
/// - `tensor = k L / p * ring(t) * 2 H tokens / d / node_link`, `k` 2 forward and 4 with the way
///   back: each layer all-reduces its tokens' activations (2 B an element) twice each way.
/// - `gradients`, once each update, 4 B a parameter: `ring(replicas in a node) * 4 P / (t p) /
///   node_link`, then `ring(nodes of a replica's peers) * 4 P * share / cross_link`, where a node
///   sends the share of the parameters that it has, over its one link (two-level all-reduce).
/// - `gather`: the parameters from the training shards to those that generate,
///   `2 P (1 / (t_g p_g) - 1 / (t p))` bytes to each device (HybridFlow, table 2).
/// - `reads`: for each token of the response, a wave reads the device's share of the parameters,
///   and the cache of its sequences at their mean length. `waves = ceil(sequences of a replica /
///   those whose full-length cache fits)`. A pipeline needs `p_g` groups of sequences to be busy,
///   and each group reads the parameters again, so a wave reads `2 P / t_g` and not
///   `2 P / (t_g p_g)`: pipelining saves memory, not time.
/// - `arithmetic` and `prefill`: `2 P tokens / (n F) * ragged`, so that devices with little
///   arithmetic are not taken for fast ones (prefill and decode differ by device: LLM-PQ, arXiv
///   2403.01136).
/// - `tensor` of generation has also the latency of its many small all-reduces, `2 (t_g - 1)` hops
///   each, which is what keeps generation's tensor groups small.
///
/// Not counted: activations (they are in the share of memory that is not usable), messages between
/// pipeline stages, and weights sent between models of different sets.
///
/// [`efficiency`]: Self::efficiency
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analytic {
    /// Share of the peak arithmetic that training, scoring and prefill reach.
    pub efficiency: f64,
    /// Share of a device's memory for states and caches; activations, buffers and fragmentation
    /// have the rest.
    pub memory_share: f64,
    /// Sequences in a micro-batch of a pipeline.
    pub micro_batch: u64,
    /// Latency of one hop of a small all-reduce inside a node, seconds, with its share of the
    /// launch.
    pub hop_seconds: f64,
}

impl Default for Analytic {
    /// 40 % of peak, 90 % of memory, micro-batches of eight, 8 µs a hop.
    ///
    /// None of these is in the paper. The first two are usual. The others are calibrated to what
    /// it reports of 16 machines with 8 A100 each: with eight sequences in a micro-batch, models
    /// are split between 64 and 128 devices and share them before; with 6 to 16 µs a hop,
    /// generation on 16 devices is fastest in tensor groups of 2 (7B) and 4 (13B).
    fn default() -> Self {
        Self {
            efficiency: 0.4,
            memory_share: 0.9,
            micro_batch: 8,
            hop_seconds: 8e-6,
        }
    }
}

impl CostModel for Analytic {
    fn usable_bytes(&self, device: &DeviceModel) -> u64 {
        (device.memory_bytes as f64 * self.memory_share) as u64
    }

    fn resident_bytes(&self, model: &Model, role: Role, parallel: Degrees) -> u64 {
        let bytes_per_parameter = match role {
            Role::Trained => TRAINED_BYTES,
            Role::Frozen => PARAMETER_BYTES,
        };
        let bytes = bytes_per_parameter * model.parameters as f64 / f64::from(parallel.shards());
        bytes.ceil() as u64
    }

    fn seconds(&self, run: &Run<'_>) -> f64 {
        let tokens = run.task.batch.tokens() as f64;
        match run.task.work {
            Work::Train { updates } => {
                let pass = self.arithmetic(run, 6.0, tokens) + tensor_traffic(run, 4.0, tokens);
                pass * self.idle(run, updates) + f64::from(updates) * gradient_seconds(run)
            }
            Work::Forward | Work::Generate => {
                let pass = self.arithmetic(run, 2.0, tokens) + tensor_traffic(run, 2.0, tokens);
                pass * self.idle(run, 1)
            }
        }
    }

    fn generation_bytes(&self, run: &Run<'_>, resident: Degrees) -> u64 {
        gathered_bytes(run, resident).saturating_add(cache_bytes(run))
    }

    fn generation(&self, run: &Run<'_>, resident: Degrees, free_bytes: u64) -> Generation {
        let (model, batch, parallel) = (run.model, &run.task.batch, run.parallel);
        let gathered = gathered_bytes(run, resident);
        let sequences = batch.sequences.div_ceil(u64::from(parallel.data));
        let capacity = free_bytes.saturating_sub(gathered) / cache_bytes(run).max(1);
        let waves = sequences.div_ceil(capacity.max(1));

        let steps = batch.response_tokens as f64;
        let weights = PARAMETER_BYTES * model.parameters as f64 / f64::from(parallel.tensor);
        let mean_tokens = batch.prompt_tokens as f64 + steps / 2.0;
        let caches = sequences as f64 * mean_tokens * model.kv_bytes_per_token as f64
            / f64::from(parallel.shards());
        let reads =
            steps * (waves as f64 * weights + caches) / run.pool.device.memory_bytes_per_second;

        let [prompt, response] = [batch.prompt_tokens, batch.response_tokens]
            .map(|tokens| batch.sequences as f64 * tokens as f64);
        let arithmetic = |tokens| self.arithmetic(run, 2.0, tokens) * ragged(run, 1);
        let traffic = tensor_traffic(run, 2.0, prompt + response) * ragged(run, 1);
        let hops = 2.0 * f64::from(parallel.tensor - 1);
        let groups = waves as f64 * f64::from(parallel.pipeline);
        let layers = f64::from(model.layers) / f64::from(parallel.pipeline);
        let latency = steps * groups * layers * 2.0 * hops * self.hop_seconds;

        let gather = gathered as f64 / gather_link(run.pool, resident);
        let decode = reads.max(arithmetic(response));
        Generation {
            seconds: gather + arithmetic(prompt) + decode + traffic + latency,
            waves,
            bytes: gathered + sequences.div_ceil(waves) * cache_bytes(run),
        }
    }
}

impl Analytic {
    /// Seconds for so many operations per parameter and token, spread over all devices.
    fn arithmetic(&self, run: &Run<'_>, per_parameter: f64, tokens: f64) -> f64 {
        let flops = run.pool.device.flops * self.efficiency;
        let devices = f64::from(run.parallel.devices());
        per_parameter * run.model.parameters as f64 * tokens / (devices * flops)
    }

    /// The time of a pass relative to devices that are never idle, at least 1: in each update the
    /// replicas wait for the fullest, and its pipeline fills and drains.
    fn idle(&self, run: &Run<'_>, updates: u32) -> f64 {
        let sequences = fullest(run, updates);
        let micro = sequences.div_ceil(self.micro_batch.max(1));
        let bubble = 1.0 + f64::from(run.parallel.pipeline - 1) / micro as f64;
        ragged(run, updates) * bubble
    }
}

/// Sequences of the fullest replica in one update.
fn fullest(run: &Run<'_>, updates: u32) -> u64 {
    let shares = u64::from(run.parallel.data) * u64::from(updates);
    run.task.batch.sequences.div_ceil(shares)
}

/// The load of the fullest replica relative to an even share, at least 1.
fn ragged(run: &Run<'_>, updates: u32) -> f64 {
    let shares = f64::from(run.parallel.data) * f64::from(updates);
    fullest(run, updates) as f64 * shares / run.task.batch.sequences as f64
}

/// Seconds that a tensor group spends on so many all-reduces of each token in each layer, at the
/// link's speed.
fn tensor_traffic(run: &Run<'_>, reduces: f64, tokens: f64) -> f64 {
    let Degrees {
        data,
        tensor,
        pipeline,
    } = run.parallel;
    let layers = f64::from(run.model.layers) / f64::from(pipeline);
    let bytes = ACTIVATION_BYTES * tokens / f64::from(data) * f64::from(run.model.hidden);
    reduces * layers * ring(tensor) * bytes / run.pool.node_link.bytes_per_second
}

/// Seconds to all-reduce the gradients once.
fn gradient_seconds(run: &Run<'_>) -> f64 {
    let (shards, devices) = (run.parallel.shards(), run.parallel.devices());
    let node = run.pool.device.per_node.min(devices);
    let all = GRADIENT_BYTES * run.model.parameters as f64;
    let replicas_in_node = (node / shards).max(1);
    let inside =
        ring(replicas_in_node) * all / f64::from(shards) / run.pool.node_link.bytes_per_second;
    let in_node = f64::from(node.min(shards)) / f64::from(shards);
    let between =
        ring(devices / node.max(shards)) * all * in_node / run.pool.cross_link.bytes_per_second;
    inside + between
}

/// Bytes of parameters that each device gets from others in order to generate.
fn gathered_bytes(run: &Run<'_>, resident: Degrees) -> u64 {
    let all = PARAMETER_BYTES * run.model.parameters as f64;
    let share = 1.0 / f64::from(run.parallel.shards()) - 1.0 / f64::from(resident.shards());
    (all * share).ceil() as u64
}

/// B/s at which each device of a replica gathers parameters.
fn gather_link(pool: &Pool, resident: Degrees) -> f64 {
    if resident.shards() <= pool.device.per_node {
        pool.node_link.bytes_per_second
    } else {
        pool.cross_link.bytes_per_second / f64::from(pool.device.per_node)
    }
}

/// Bytes of each device for the cache of one sequence at its full length.
fn cache_bytes(run: &Run<'_>) -> u64 {
    let Batch {
        prompt_tokens,
        response_tokens,
        ..
    } = run.task.batch;
    let tokens = prompt_tokens as f64 + response_tokens as f64;
    let bytes = tokens * run.model.kv_bytes_per_token as f64 / f64::from(run.parallel.shards());
    bytes.ceil() as u64
}

/// Share of the bytes of a ring all-reduce over `members` that each of them sends.
fn ring(members: u32) -> f64 {
    2.0 * f64::from(members - 1) / f64::from(members)
}

/// A parameter in bf16.
const PARAMETER_BYTES: f64 = 2.0;

/// A gradient in f32.
const GRADIENT_BYTES: f64 = 4.0;

/// A trained parameter with its gradient, master copy and two moments.
const TRAINED_BYTES: f64 = PARAMETER_BYTES + GRADIENT_BYTES + 12.0;

/// An element of the residual stream in bf16.
const ACTIVATION_BYTES: f64 = 2.0;

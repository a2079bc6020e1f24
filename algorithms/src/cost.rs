//! Predicted durations on cards that are not here: decoding, prefill, training, and weights on
//! their way.
//!
//! An engine of a simulation asks these functions and lets that much simulated time pass. They are
//! pure: a [`Card`], a [`ModelSize`] and a number of cards in, a [`Duration`]
//! out. So a run on a thousand cards costs no card.
//!
//! ```text
//!  Card      what a GPU can do, and what its kernels reached when they were measured
//!  ModelSize a transformer's shape
//!    ├─ Replica  decode_step, prefill, KV capacity, roofline batch   (rollouts)
//!    ├─ Trainer  train_step, log_probs                               (trainers)
//!    └─ Card     publish, relay_hop, relay_chain, pull, global_broadcast (weights)
//! ```
//!
//! A step is the sum of its kernels, each with the time that one GPU of a tensor group needs:
//!
//! | kernel | seconds |
//! | --- | --- |
//! | product `m x k x n` | `floor + norm(2 (mk + nk + mn) / bw, 2 mnk / flops)` |
//! | attention of a step | `floor + norm(keys and values / bw, sequences heads rate)` |
//! | attention of a prefill | `floor + 2 heads d sum(s^2) / flops + bytes / bw` (causal) |
//! | all-reduce of `n` | `start + w + sqrt(w ramp)`, `w = 2 (n - 1) / n bytes / link` |
//! | the rest of a layer | bytes of norms, rotation and gate, and a fixed launch overhead |
//!
//! `norm(a, b) = (a^q + b^q)^(1/q)`, nearly the larger of two bounds. `bw`, `flops` and `link` are a
//! peak times a share. The shares, floors and the sharpness `q` are fitted to kernels measured on
//! H100, H200 and A100, published in NVIDIA's `aiconfigurator-core` 0.12.0 (Apache-2.0, on PyPI):
//! products and attention of vLLM 0.24 (0.14 on A100), all-reduces of its custom kernel in a graph.
//! The fixed overheads are fitted to a whole server: Qwen3-32B in vLLM on H100, from the same
//! package.
//!
//! The tests hold a sample of both, and say how far off the formulas are: 3 to 8 % in the median for
//! kernels. An output token of that server is within 7 %, of two others that nothing was fitted to
//! within 12 % (vLLM on A100) and 24 % (TensorRT-LLM, which does less for each sequence).
//!
//! `odeon_placement::mapping` has a cost model too. It asks which models should share which cards,
//! prices a whole iteration at one efficiency, and needs ratios. Here one step is priced, for
//! engines that `actors` builds, and `actors` does not stand on `placement`.
//!
//! Not counted: pipeline parallelism, experts, quantised weights, tensor groups larger than a
//! machine, and several replicas that disturb each other on one machine's PCIe or memory.
//!
//! ```
//! use odeon_algorithms::cost::{Card, ModelSize, Replica};
//!
//! let replica = Replica::new(&Card::h100(), &ModelSize::qwen2_5_7b(), 1)?;
//! // 64 sequences with 1,000 tokens each: about 9 ms for 64 tokens.
//! let step = replica.decode_step(64, 64_000);
//! assert!((8..11).contains(&step.as_millis()));
//! assert!(replica.kv_capacity_tokens() > 900_000);
//! # Ok::<(), odeon_algorithms::cost::CostError>(())
//! ```

mod card;
mod model_size;
mod replica;
mod sequences;
mod shard;
mod trainer;
mod transfer;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use card::{AllReduce, Card, DecodeAttention, Kernels, PrefillAttention, Product};
pub use model_size::ModelSize;
pub use replica::Replica;
pub use sequences::Sequences;
pub use trainer::{Recompute, Trainer};

/// Why durations cannot be told. Nothing was built; ask with other numbers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// A number of a card or a model is zero, negative or not finite.
    #[error("{of}: {field} is {value}, it must be a positive number")]
    NotPositive {
        /// The card or the model.
        of: String,
        /// Which number.
        field: &'static str,
        /// The number.
        value: f64,
    },
    /// The tensor group is no power of two up to the largest that was measured, or does not divide
    /// the model's heads.
    #[error("{model} cannot be split over {tensor} GPUs: {why}")]
    Split {
        /// The model.
        model: String,
        /// GPUs of the group.
        tensor: u32,
        /// The obstacle.
        why: &'static str,
    },
    /// The trainer's GPUs are not a multiple of its tensor group.
    #[error("{gpus} GPUs are no whole number of tensor groups of {tensor}")]
    Groups {
        /// GPUs in all.
        gpus: u32,
        /// GPUs of a group.
        tensor: u32,
    },
    /// The memory is too small.
    #[error(
        "{model} needs {needed} bytes on each of {gpus} {card}, there are {usable}: \
         take more GPUs"
    )]
    Memory {
        /// The model.
        model: String,
        /// The card.
        card: String,
        /// GPUs that share it.
        gpus: u32,
        /// Bytes that each of them has to hold at least.
        needed: u64,
        /// Bytes that each of them has for it.
        usable: u64,
    },
}

/// A time from formulas, which only add, multiply and divide what was checked to be positive.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

/// Refuses the first number that is not positive.
fn all_positive(of: &str, numbers: &[(&'static str, f64)]) -> Result<(), CostError> {
    let bad = |&&(_, value): &&(&str, f64)| !(value.is_finite() && value > 0.0);
    match numbers.iter().find(bad) {
        None => Ok(()),
        Some(&(field, value)) => Err(CostError::NotPositive {
            of: of.to_owned(),
            field,
            value,
        }),
    }
}

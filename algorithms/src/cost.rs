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
//!    ├─ training a step of pretraining, in pipelines on thousands of cards
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
//! # Errors
//!
//! Constants are fitted to all of the tables, so the errors on these are no evidence. Errors on shapes
//! that a fit has not seen are: shapes are divided into families (a matrix with all numbers of rows,
//! prompts of one number and length with all numbers of heads, a size of an all-reduce in all groups,
//! a number of sequences at once on all groups of a server), every third family is held out, the
//! formulas are fitted to the others, and that thrice, so that each shape is held out once. Errors are
//! relative; the median, the one that nine of ten shapes are within, and the largest:
//!
//! | card, kernel | shapes | held out | | | the constants here | | |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | H100, product | 18,870 | 6 % | 13 % | 47 % | 5 % | 13 % | 46 % |
//! | H100, attention of a step | 6,770 | 6 % | 17 % | 48 % | 5 % | 17 % | 48 % |
//! | H100, attention of a prefill | 5,763 | 7 % | 23 % | 91 % | 7 % | 22 % | 91 % |
//! | H100, all-reduce | 69 | 7 % | 19 % | 26 % | 5 % | 18 % | 27 % |
//! | H200, product | 18,870 | 6 % | 14 % | 65 % | 6 % | 13 % | 66 % |
//! | H200, attention of a step | 6,770 | 6 % | 16 % | 59 % | 6 % | 17 % | 60 % |
//! | H200, attention of a prefill | 5,763 | 8 % | 22 % | 91 % | 7 % | 22 % | 91 % |
//! | H200, all-reduce | 69 | 6 % | 15 % | 23 % | 5 % | 16 % | 25 % |
//! | A100, product | 4,704 | 7 % | 18 % | 61 % | 7 % | 17 % | 49 % |
//! | A100, attention of a step | 5,431 | 15 % | 36 % | 98 % | 10 % | 40 % | 98 % |
//! | A100, attention of a prefill | 5,457 | 14 % | 37 % | 90 % | 9 % | 37 % | 91 % |
//! | A100, all-reduce | 69 | 9 % | 31 % | 57 % | 6 % | 29 % | 58 % |
//! | H100, vLLM, Qwen3-32B, each output token | 28 | 2 % | 4 % | 6 % | 2 % | 5 % | 6 % |
//!
//! Held-out shapes are hardly worse than those of the fit: the formulas err, not the constants. They err
//! most by predicting too little: attention of a prefill over dozens of prompts with one token each, and
//! on the A100 a step of few long sequences with as many key-value heads as heads, which took up to 45
//! times as long. What nothing was fitted to:
//!
//! | what | shapes | median | nine of ten | largest |
//! | --- | --- | --- | --- | --- |
//! | the same server, responses of 512 | 29 | 3 % | 5 % | 7 % |
//! | the same server, responses of 128, mostly prompts of others | 29 | 7 % | 12 % | 16 % |
//! | SGLang 0.5.1, Qwen3-32B, H100 | 25 | 26 % | 41 % | 44 % |
//! | TensorRT-LLM 1.0, Llama-3.1-8B, H100 | 18 | 14 % | 19 % | 23 % |
//! | vLLM 0.6.3, Qwen2.5 7B and 72B, one sequence, A100 | 5 | 5 % | 11 % | 11 % |
//! | products of Llama-2-70B, H100, measured by Microsoft's Vidur | 24 | 11 % | 26 % | 31 % |
//! | products of Llama-3-8B, A100, from there | 24 | 11 % | 18 % | 21 % |
//! | all-reduces of NCCL, 16 MiB and more, H100, from there | 9 | 3 % | 15 % | 21 % |
//! | the same, A100 | 9 | 20 % | 27 % | 38 % |
//! | all-reduces of NCCL, 1 MiB and more, H100, from there | 21 | 21 % | 61 % | 75 % |
//! | the same, A100 | 21 | 38 % | 68 % | 72 % |
//!
//! All of SGLang and TensorRT-LLM is predicted too long: they do less for each sequence than vLLM did.
//! Small all-reduces of NCCL are predicted too short: the host launches each, and here a graph does.
//! **Of the H800 there is no measurement at all.** Its constants are those of the H100 with the link of
//! its data sheet, so its errors are unknown and at least as large.
//!
//! ```sh
//! scripts/cost-tables
//! ODEON_COST_TABLES=target/cost-tables cargo test -p odeon-algorithms --lib calibration -- --nocapture
//! ```
//!
//! prints these numbers; without the tables, the tests hold a sample of them to the same bounds.
//!
//! # Beside it
//!
//! `odeon_placement::mapping` has a cost model too. It asks which models should share which cards,
//! prices a whole iteration at one efficiency, and needs ratios. Here one step is priced, for
//! engines that `actors` builds, and `actors` does not stand on `placement`.
//!
//! Not counted here: pipeline parallelism and experts, which [`training`] has; quantised weights, tensor groups larger
//! than a machine, and several replicas that disturb each other on one machine's PCIe or memory.
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
mod flops;
mod model_size;
mod replica;
mod sequences;
mod shard;
mod trainer;
pub mod training;
mod transfer;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use card::{AllReduce, Card, DecodeAttention, Kernels, PrefillAttention, Product};
pub use flops::{AttentionFlops, FlopsError, ModelFlops, Pairs, VisionFlops, utilisation};
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

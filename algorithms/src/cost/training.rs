//! Steps of training at the size of papers: how long one takes on thousands of cards, and what its time goes into.
//!
//! ```text
//!  TrainedModel ─┐
//!  Machine ──────┼─ Training ── stage costs, messages ── odeon_replay ── StepTime
//!  TrainingPlan ─┤              (layer by layer where all states are shared)
//!  Techniques ───┘
//! ```
//!
//! A layer is the sum of its kernels on one card of a tensor group, by the formulas of [`cost`](super), and of the
//! collectives between them. Layers make stages; stages and messages become the event graph of an interleaved schedule
//! ([`odeon_replay::PipelineSchedule`]), whose replay has the bubbles, the messages that nothing hides, and the
//! collectives of replicas beside passes. [`published`] has the tables of papers that it is held against.
//!
//! With an encoder ([`MultimodalTraining`]) each layer becomes its kernels, one by one, and the encoder's are run in the
//! bubbles between them ([`odeon_replay::BubblePlanner`]). Where the mix of text and pictures changes, four places of the
//! encoder's passes are compared ([`MixedTraining`]).
//!
//! Ranks that share a model in any mixture of ways, as a run of this project has them, are priced by [`SharedStep`]: the
//! same kernels, and as many bytes as their footprint says.
//!
//! # What it stands on
//!
//! | constant | value | from |
//! | --- | --- | --- |
//! | kernels of products and attention | by shape | measured, see [`cost`](super) |
//! | products in a long run on A100 | 1.12 of the formula | measured (Vidur) |
//! | steps on H100 and H800 | 1.3 of their kernels | Megatron-Core, 72B ([`Card::SUSTAINED`](super::Card::SUSTAINED)) |
//! | rings inside a machine | 188 GB/s on A100, 377 GB/s on H100 | measured (Vidur) |
//! | messages between machines | 0.72 of the network | measured on H100 (Vidur) |
//! | slow machines | 0.5 % of them, by 10 % | told by MegaScale |
//! | FlashAttention 1 and 2 | half of the second; 335 TFLOP/s on H100 | told by its paper |
//! | MegaScale's window | 736 tokens | follows from its seconds and utilisations |
//! | chunks of a product beside its collective | 4 | assumed |
//! | bytes of what is between products | by kernel | counted |
//! | norms and activations of one kernel | 0.4 and 0.67 of the rate of products | measured (Vidur) |
//! | the host in a step | 0.3 s, 0.2 s ([`HostSeconds`]) | **fitted** to the rows with 768 sequences |
//! | kernels of Optimus' runs | 1.487 of the formulas in place of 1.3 | **fitted** to one row ([`published::optimus`]) |
//! | a request at a store | 0.89 ms, 0.31 ms ([`Meeting`]) | **fitted** to MegaScale's two times |
//!
//! # What is left out
//!
//! Contention between collectives and kernels, and of networks under load; data that arrives late; evaluation and
//! checkpoints. Tokens are spread evenly over experts, whose weights are read as one's, and are not exchanged between cards.

mod layer;
mod machine;
mod mix;
mod model;
mod multimodal;
mod plan;
pub mod published;
mod sharded;
mod shared_step;
mod start_up;
mod step;
mod techniques;

#[cfg(test)]
mod tests;

pub use machine::{Machine, Stragglers};
pub use mix::{EncoderDesign, MixedTraining, PlannedMix};
pub use model::{FeedForward, TrainedModel};
pub use multimodal::MultimodalTraining;
pub use plan::{Recomputed, Shared, TrainingPlan, TrainingPlanError};
pub use sharded::LayerMessages;
pub use shared_step::{SharedStep, SharedStepError, SharedStepTime};
pub use start_up::Meeting;
pub use step::{StepParts, StepTime, Training};
pub use techniques::{AttentionKernel, Elementwise, HostSeconds, Techniques};

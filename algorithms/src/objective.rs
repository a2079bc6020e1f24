//! Objectives of reinforcement learning from sampled sequences: losses with their gradients.
//!
//! Everything here is a pure function over plain slices with one entry per response token, the
//! sequences of a micro-batch one after the other. A train engine computes the log-probability,
//! entropy and value of each response token, gives them in, and takes back the loss and its
//! derivative by each of them. Inputs and gradients are `f32`; sums and exponentials are `f64`.
//!
//! | piece | source |
//! | --- | --- |
//! | clipped surrogate, value loss, entropy bonus | PPO, Schulman et al. 2017, arXiv 1707.06347 |
//! | generalised advantage estimation | Schulman et al. 2016, arXiv 1506.02438 |
//! | group-relative advantages, KL in the loss | GRPO (DeepSeekMath), Shao et al. 2024, arXiv 2402.03300 |
//! | no division by deviation or own length | Dr. GRPO, Liu et al. 2025, arXiv 2503.20783 |
//! | clip-higher, token mean, cost of length | DAPO, Yu et al. 2025, arXiv 2503.14476 |
//! | length-adaptive and decoupled decays, likelihood of right replies | VAPO, Yue et al. 2025, arXiv 2504.05118 |
//! | ratio of whole replies | GSPO, Zheng et al. 2025, arXiv 2507.18071 |
//! | likelihood weighed by the ratio | CISPO (MiniMax-M1), MiniMax 2025, arXiv 2506.13585 |
//! | leave-one-out baseline | RLOO, Ahmadian et al. 2024, arXiv 2402.14740 |
//! | greedy baseline | ReMax, Li et al. 2023, arXiv 2310.10505 |
//! | rewards to go over the whole batch | REINFORCE++, Hu 2025, arXiv 2501.03262 |
//! | price of harm | Safe-RLHF, Dai et al. 2023, arXiv 2310.12773 |
//! | trust region around a policy that did not sample | decoupled PPO, Hilton et al. 2022, arXiv 2110.00641 |
//! | truncated importance weights | IMPALA, Espeholt et al. 2018, arXiv 1802.01561 |
//! | loss over pairs of replies | Christiano et al. 2017, arXiv 1706.03741; Ouyang et al. 2022, arXiv 2203.02155 |
//! | KL estimators k1, k2, k3 | Schulman 2020, "Approximating KL Divergence" |
//!
//! ```
//! use odeon_algorithms::objective::{GroupBaseline, PolicyBatch, PolicyObjective, Totals, per_token};
//!
//! // Two replies to one prompt, of 2 and 1 tokens; the first was right.
//! let lengths = [2, 1];
//! let advantages = GroupBaseline::default().advantages(&[1.0, 0.0])?;
//! let log_probs = [-0.5, -1.0, -0.7];
//! let loss = PolicyObjective::default().evaluate(
//!     &PolicyBatch {
//!         new_log_probs: &log_probs,
//!         old_log_probs: &log_probs,
//!         behaviour_log_probs: None,
//!         advantages: &per_token(&advantages, &lengths)?,
//!         reference_log_probs: None,
//!         entropies: None,
//!         positive: None,
//!         lengths: &lengths,
//!     },
//!     Totals::of(&lengths),
//! )?;
//! assert!(loss.d_log_probs[0] < 0.0, "the right reply becomes more likely");
//! # Ok::<(), odeon_algorithms::objective::ObjectiveError>(())
//! ```

mod advantage;
mod divergence;
mod error;
mod policy;
mod preference;
mod reduction;
mod shaping;
mod surrogate;
mod value;

pub use self::{
    advantage::{
        Baseline, Estimates, Gae, GroupBaseline, Lambda, Scale, leave_one_out, over_greedy,
        per_token, rewards_to_go, whiten,
    },
    divergence::{KlEstimator, KlPenalty},
    error::ObjectiveError,
    policy::{PolicyBatch, PolicyLoss, PolicyMetrics, PolicyObjective},
    preference::{Blend, PreferenceLoss, preference, probability},
    reduction::{Reduction, Totals},
    shaping::{Lagrangian, Overlong},
    surrogate::{Cispo, Clipped, Gspo, Ratio, Surrogate},
    value::{ValueBatch, ValueLoss, ValueObjective},
};

#[cfg(test)]
mod tests;

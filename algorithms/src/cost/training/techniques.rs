//! The ways in which systems make a step quicker.

use serde::Serialize;

/// The kernel of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKernel {
    /// FlashAttention, half as fast as the second one (arXiv 2307.08691, abstract).
    Flash1,
    /// FlashAttention 2, which does not know the tensor cores of Hopper: 335 TFLOP/s on H100 at most (from there,
    /// section 4.1). On A100 it is what was measured.
    Flash2,
    /// The one that was measured on the card.
    Measured,
}

/// The kernels of norms, activations and rotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Elementwise {
    /// One kernel for each step of their formula, with intermediates in four bytes: PyTorch without a compiler.
    Apart,
    /// One kernel for a norm; biases, dropout, activations and residuals each apart.
    Norms,
    /// One kernel each.
    Fused,
}

/// The ways in which a system spares time. None of them changes how many tokens are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Techniques {
    /// Attention and feed-forward part read the same normed rows, and are added up together: half of the collectives of
    /// a tensor group, and of the norms.
    pub parallel_block: bool,
    /// Tokens that each attends to at most.
    pub window: Option<u64>,
    /// Collectives of a tensor group run in chunks beside the products that they feed or follow.
    pub tensor_overlap: bool,
    /// Messages between stages run beside passes. Otherwise a stage sends and receives between them.
    pub pipeline_overlap: bool,
    /// Parameters are gathered and gradients scattered chunk by chunk, beside passes of other chunks.
    pub data_overlap: bool,
    /// The kernel of attention.
    pub attention: AttentionKernel,
    /// Norms and activations.
    pub elementwise: Elementwise,
    /// Data is prepared while gradients are summed, and read once a machine; nothing holds the host up.
    pub host_tuned: bool,
    /// Products have operands of eight bits, at twice the rate; the head has not.
    pub float8: bool,
    /// Parameters are gathered where products read them ([`GroupBuffer`]); otherwise they are copied there, and
    /// gradients from there.
    ///
    /// [`GroupBuffer`]: https://arxiv.org/abs/2602.22437
    pub planned_buffer: bool,
}

impl Techniques {
    /// The baseline of MegaScale: Megatron-LM with an interleaved schedule, sequence parallelism and a sharded
    /// optimiser.
    pub const MEGATRON: Self = Self {
        parallel_block: false,
        window: None,
        tensor_overlap: false,
        pipeline_overlap: false,
        data_overlap: false,
        attention: AttentionKernel::Flash1,
        elementwise: Elementwise::Norms,
        host_tuned: false,
        float8: false,
        planned_buffer: true,
    };

    /// MegaScale (arXiv 2402.15627).
    pub const MEGASCALE: Self = Self {
        parallel_block: true,
        window: Some(Self::MEGASCALE_WINDOW),
        tensor_overlap: true,
        pipeline_overlap: true,
        data_overlap: true,
        attention: AttentionKernel::Flash2,
        elementwise: Elementwise::Fused,
        host_tuned: true,
        float8: false,
        planned_buffer: true,
    };

    /// FSDP2 of PyTorch, as torchtitan runs it without a compiler.
    pub const FSDP2: Self = Self {
        parallel_block: false,
        window: None,
        tensor_overlap: false,
        pipeline_overlap: false,
        data_overlap: true,
        attention: AttentionKernel::Flash2,
        elementwise: Elementwise::Apart,
        host_tuned: true,
        float8: false,
        planned_buffer: false,
    };

    /// The same with `torch.compile`.
    pub const FSDP2_COMPILED: Self = Self {
        elementwise: Elementwise::Fused,
        ..Self::FSDP2
    };

    /// MegaScale's window. The paper does not say it: its own seconds and utilisations say that a token has 1.1 % fewer
    /// operations than in the baseline, which is 41 % of attention's.
    pub const MEGASCALE_WINDOW: u64 = 736;
}

/// Seconds of each step in which no card computes, the only constants that are fitted to runs of training.
///
/// Least squares over the eight utilisations with 768 sequences in [`MEGASCALE`](super::published::MEGASCALE) give 0.3 s
/// for both systems, to tenths of a second. MegaScale's are a tenth less, since its ladder has a step for them.
#[derive(Clone, Copy, Debug)]
pub struct HostSeconds;

impl HostSeconds {
    /// Of Megatron-LM.
    pub const MEGATRON: f64 = 0.3;

    /// Of MegaScale, which prepares data beside the step and freed the host.
    pub const MEGASCALE: f64 = 0.2;

    /// Those of a system.
    #[must_use]
    pub const fn of(techniques: &Techniques) -> f64 {
        match techniques.host_tuned {
            true => Self::MEGASCALE,
            false => Self::MEGATRON,
        }
    }
}

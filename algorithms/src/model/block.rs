//! Blocks: the feed-forward part of a layer, between its norm and the residual stream. Each is a file
//! or a folder of its own: its settings, its matrices, its recording for training and scoring, its
//! step of generation, and its fields in Hugging Face's `config.json`.
//!
//! Attention, norms, adapters, trainers, generators, optimisers, model files and the cut over ranks
//! stay as they are. The list at the end of this file is the only one that knows all.

mod gelu;
mod mlp;
mod moe;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{Backend, Param, PassRanks, RouteShape, Tape, Var};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::setting::{Chosen, SettingError};

pub use gelu::Gelu;
pub use mlp::Mlp;
pub use moe::Moe;

/// Some of the experts of each layer, which lie next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRange {
    /// The first, from 0.
    pub first: usize,
    /// Number of them.
    pub count: usize,
}

impl ExpertRange {
    /// True where an expert is one of them.
    #[must_use]
    pub const fn contains(&self, expert: usize) -> bool {
        self.first <= expert && expert < self.first + self.count
    }
}

/// Elements of a row outside and inside of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths {
    /// Of the residual stream.
    pub(crate) dim: usize,
    /// Between the products.
    pub(crate) ffn: usize,
    /// Experts that are there, where it is not all of them.
    pub(crate) experts: Option<ExpertRange>,
}

impl Widths {
    /// Those of a block with all of its experts.
    pub(crate) const fn new(dim: usize, ffn: usize) -> Self {
        Self {
            dim,
            ffn,
            experts: None,
        }
    }
}

/// The way in which ranks share a matrix `[outputs, inputs]` (Megatron-LM, arXiv 1909.08053).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cutting {
    /// Each has it whole.
    Whole,
    /// Each has some of the outputs.
    Outputs,
    /// Each has some of the inputs, and the sum over ranks goes to the residual stream.
    Inputs,
}

/// A matrix that a product reads: one tensor, or several that lie one behind the other.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// Hugging Face's names of the tensors below `model.layers.N.`, without `.weight`.
    pub(crate) tensors: Vec<String>,
    /// Rows of each tensor.
    pub(crate) rows: usize,
    /// Inputs of the product.
    pub(crate) inputs: usize,
    /// The way in which ranks share each tensor.
    pub(crate) cutting: Cutting,
    /// Set where it is an expert's: expert ranks have it whole or not at all.
    pub(crate) is_expert: bool,
    /// Name of its low-rank adapter below `model.layers.N.`; without one it has none.
    pub(crate) adapter: Option<&'static str>,
}

/// The matrices of a feed-forward part that all tokens pass: that out of the residual stream, of
/// these tensors and with an adapter of this name, and that back to it.
fn up_and_down(up: &[&str], adapter: &'static str, widths: Widths) -> Vec<Matrix> {
    let Widths { dim, ffn, .. } = widths;
    let up = Matrix {
        tensors: up.iter().map(|&name| name.to_owned()).collect(),
        rows: ffn,
        inputs: dim,
        cutting: Cutting::Outputs,
        is_expert: false,
        adapter: Some(adapter),
    };
    let down = Matrix {
        tensors: vec!["mlp.down_proj".to_owned()],
        rows: dim,
        inputs: ffn,
        cutting: Cutting::Inputs,
        is_expert: false,
        adapter: Some("mlp.down_proj"),
    };
    vec![up, down]
}

impl Matrix {
    /// Outputs of the product.
    pub(crate) fn outputs(&self) -> usize {
        self.tensors.len() * self.rows
    }

    /// Number of its elements.
    pub(crate) fn len(&self) -> usize {
        self.outputs() * self.inputs
    }
}

/// The matrices of a block in one layer, as a recording reads them.
pub(crate) trait Products<B: Backend> {
    /// The matrix of this number, for an operation that adds no adapter.
    fn param(&self, matrix: usize) -> Param;

    /// `x W^T + bias + residual` with the matrix of this number and its bias, if it has one, and what its
    /// adapter adds.
    fn linear(&self, tape: &mut Tape<B>, matrix: usize, x: Var, residual: Option<Var>) -> Var;

    /// The ranks that each have some of the experts, where these are shared.
    fn expert_ranks(&self) -> Option<&Arc<dyn PassRanks<B>>>;
}

/// The memory of a step of generation.
#[derive(Debug)]
pub(crate) struct StepMemory<'a, B: Backend> {
    /// Rows of the step.
    pub(crate) rows: usize,
    /// The normed rows that the block reads.
    pub(crate) h: B::View<'a>,
    /// The residual stream, to which it adds; its first rows are those of the step.
    pub(crate) x: &'a mut B::Buffer,
    /// The biases of the matrices, in their order; none where they have none.
    pub(crate) biases: Vec<B::View<'a>>,
    /// Buffers of [`Rule::scratch`], with room for the rows of the largest step.
    pub(crate) scratch: &'a mut [B::Buffer],
}

/// A block, by its settings. It has matrices alone, which are numbered in the order of
/// [`matrices`](Self::matrices).
trait Rule: Copy + Default {
    /// Hugging Face's `model_type` and class of models with it; dense ones are told by their family.
    const HUGGING_FACE: Option<(&'static str, &'static str)>;

    /// Checks the settings.
    fn check(&self) -> Result<(), SettingError>;

    /// Reads its fields in a `config.json` of its `model_type`, or names what it cannot do.
    fn read(config: &Value) -> Result<Self, String>;

    /// Writes them.
    fn write(&self, config: &mut Value);

    /// Its matrices in one layer, in the order in which they lie in the flat buffer.
    fn matrices(&self, widths: Widths) -> Vec<Matrix>;

    /// Elements of matrices that a token meets.
    fn met(&self, widths: Widths) -> usize;

    /// Experts of a layer, and those that a token passes, where it has some.
    fn experts(&self) -> Option<RouteShape> {
        None
    }

    /// Records what it makes of normed rows, plus the residual where this rank adds it.
    fn record<B: Backend>(
        &self,
        tape: &mut Tape<B>,
        widths: Widths,
        products: &impl Products<B>,
        h: Var,
        residual: Option<Var>,
    ) -> Var;

    /// Elements a row of each buffer that a step of generation uses.
    fn scratch(&self, widths: Widths) -> Vec<usize>;

    /// The same as [`record`](Self::record) in a step of generation. A row's result must not depend
    /// on which other rows there are, to the bit.
    fn step<B: Backend>(
        &self,
        backend: &B,
        widths: Widths,
        packed: &[B::Packed],
        memory: StepMemory<'_, B>,
    );
}

/// Makes the choice of a block out of the list of all.
macro_rules! blocks {
    ($($(#[$meta:meta])* $block:ident $word:literal;)*) => {
        /// The feed-forward part of a model's layers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum LayerBlock {
            $($(#[$meta])* #[serde(rename = $word)] $block($block),)*
        }

        impl Chosen for LayerBlock {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn named(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$block($block::default())),)*
                    _ => None,
                }
            }

            fn check(&self) -> Result<(), SettingError> {
                match self {
                    $(Self::$block(block) => Rule::check(block),)*
                }
            }
        }

        impl LayerBlock {
            /// The block of models of this `model_type`, if they are told by it.
            pub(crate) fn read(model_type: &str, config: &Value) -> Option<Result<Self, String>> {
                $(if let Some((own, _)) = $block::HUGGING_FACE && own == model_type {
                    return Some($block::read(config).map(Self::$block));
                })*
                None
            }

            /// Writes its fields, and gives the `model_type` and class that tell it.
            pub(crate) fn write(
                &self,
                config: &mut Value,
            ) -> Option<(&'static str, &'static str)> {
                match self {
                    $(Self::$block(block) => {
                        block.write(config);
                        $block::HUGGING_FACE
                    })*
                }
            }

            /// Its matrices in one layer, in the order in which they lie in the flat buffer.
            pub(crate) fn matrices(&self, widths: Widths) -> Vec<Matrix> {
                match self {
                    $(Self::$block(block) => block.matrices(widths),)*
                }
            }

            /// Elements of matrices that a token meets.
            pub(crate) fn met(&self, widths: Widths) -> usize {
                match self {
                    $(Self::$block(block) => block.met(widths),)*
                }
            }

            /// Experts of a layer, and those that a token passes, where it has some.
            #[must_use]
            pub fn experts(&self) -> Option<RouteShape> {
                match self {
                    $(Self::$block(block) => Rule::experts(block),)*
                }
            }

            /// Records what it makes of normed rows, plus the residual where this rank adds it.
            pub(crate) fn record<B: Backend>(
                &self,
                tape: &mut Tape<B>,
                widths: Widths,
                products: &impl Products<B>,
                h: Var,
                residual: Option<Var>,
            ) -> Var {
                match self {
                    $(Self::$block(block) => block.record(tape, widths, products, h, residual),)*
                }
            }

            /// Elements a row of each buffer that a step of generation uses.
            pub(crate) fn scratch(&self, widths: Widths) -> Vec<usize> {
                match self {
                    $(Self::$block(block) => block.scratch(widths),)*
                }
            }

            /// Runs it in a step of generation.
            pub(crate) fn step<B: Backend>(
                &self,
                backend: &B,
                widths: Widths,
                packed: &[B::Packed],
                memory: StepMemory<'_, B>,
            ) {
                match self {
                    $(Self::$block(block) => block.step(backend, widths, packed, memory),)*
                }
            }
        }
    };
}

impl LayerBlock {
    /// Parameters of it in one layer, for a residual stream of `dim` and an inner width of `ffn`
    /// elements.
    #[must_use]
    pub fn parameters(&self, dim: usize, ffn: usize) -> u64 {
        let matrices = self.matrices(Widths::new(dim, ffn));
        matrices.iter().map(|matrix| matrix.len() as u64).sum()
    }

    /// Names below `model.layers.N.`, shapes and cutting of its tensors, in their order.
    pub(crate) fn tensors(&self, widths: Widths) -> Vec<(String, Vec<usize>, Cutting)> {
        let matrices = self.matrices(widths).into_iter();
        let tensors = matrices.flat_map(|matrix| {
            let (shape, cutting) = (vec![matrix.rows, matrix.inputs], matrix.cutting);
            let names = matrix.tensors.into_iter();
            names.map(move |name| (format!("{name}.weight"), shape.clone(), cutting))
        });
        tensors.collect()
    }

    /// Names of the tensors of experts, below `model.layers.N.`; none where it has no experts.
    pub(crate) fn expert_tensors(&self, widths: Widths) -> HashSet<String> {
        let matrices = self.matrices(widths).into_iter();
        let of_experts = matrices.filter(|matrix| matrix.is_expert);
        let names = of_experts.flat_map(|matrix| matrix.tensors);
        names.map(|name| format!("{name}.weight")).collect()
    }

    /// Where its matrices lie in a flat buffer, from `start` on.
    pub(crate) fn places(&self, widths: Widths, start: usize) -> Vec<Range<usize>> {
        let mut end = start;
        let matrices = self.matrices(widths).into_iter();
        let places = matrices.map(|matrix| {
            let start = end;
            end += matrix.len();
            start..end
        });
        places.collect()
    }
}

impl Default for LayerBlock {
    fn default() -> Self {
        Self::Mlp(Mlp::default())
    }
}

// All blocks.
blocks! {
    /// One SwiGLU that all tokens pass.
    Mlp "mlp";
    /// A mixture of experts, of which each token passes some.
    Moe "moe";
    /// Two products with GELU between them, as GPT-2 has.
    Gelu "gelu";
}

#[cfg(test)]
mod tests;

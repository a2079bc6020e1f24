//! The block of GPT-2: two products with GELU between them.

use odeon_gpu::{Backend, Store, Tape, Var};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Matrix, Products, Rule, StepMemory, Widths, up_and_down};
use crate::setting::SettingError;

/// Two products with GELU between them that all tokens pass (Radford et al. 2019):
/// `W_down gelu(W_up h)`, the approximation by a tangent. Layer norms, learned positions and biases
/// come with it: [`ModelConfig::of_block`](crate::model::ModelConfig::of_block).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gelu {}

/// Number of the matrix out of the residual stream.
const UP: usize = 0;
/// Number of the matrix back to it.
const DOWN: usize = 1;

impl Rule for Gelu {
    // Its family is told by more than its feed-forward part.
    const HUGGING_FACE: Option<(&'static str, &'static str)> = None;

    fn check(&self) -> Result<(), SettingError> {
        Ok(())
    }

    fn read(_: &Value) -> Result<Self, String> {
        Ok(Self {})
    }

    fn write(&self, _: &mut Value) {}

    fn matrices(&self, widths: Widths) -> Vec<Matrix> {
        up_and_down(&["mlp.up_proj"], "mlp.up_proj", widths)
    }

    fn met(&self, Widths { dim, ffn, .. }: Widths) -> usize {
        2 * dim * ffn
    }

    fn record<B: Backend>(
        &self,
        tape: &mut Tape<B>,
        _: Widths,
        products: &impl Products<B>,
        h: Var,
        residual: Option<Var>,
    ) -> Var {
        let up = products.linear(tape, UP, h, None);
        let s = tape.gelu(up);
        products.linear(tape, DOWN, s, residual)
    }

    fn scratch(&self, Widths { ffn, .. }: Widths) -> Vec<usize> {
        vec![ffn, ffn]
    }

    fn step<B: Backend>(
        &self,
        backend: &B,
        Widths { dim, ffn, .. }: Widths,
        packed: &[B::Packed],
        memory: StepMemory<'_, B>,
    ) {
        let StepMemory {
            rows,
            h,
            x,
            biases,
            scratch,
        } = memory;
        let mut biases = biases.into_iter();
        let [up, gated] = scratch else {
            panic!("two buffers of scratch memory")
        };
        let (n_x, n_ffn) = (rows * dim, rows * ffn);
        backend.packed_linear(h, &packed[UP], B::view_mut(up, 0..n_ffn), Store::Set);
        if let Some(bias) = biases.next() {
            backend.add_bias(bias, B::view_mut(up, 0..n_ffn));
        }
        backend.gelu(B::view(up, 0..n_ffn), B::view_mut(gated, 0..n_ffn));
        let (gated, dst) = (B::view(gated, 0..n_ffn), B::view_mut(x, 0..n_x));
        backend.packed_linear(gated, &packed[DOWN], dst, Store::Add);
        if let Some(bias) = biases.next() {
            backend.add_bias(bias, B::view_mut(x, 0..n_x));
        }
    }
}

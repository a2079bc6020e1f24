//! The dense block: one SwiGLU.

use odeon_gpu::{Backend, Store, Tape, Var};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Matrix, Products, Rule, StepMemory, Widths, up_and_down};
use crate::setting::SettingError;

/// One SwiGLU that all tokens pass (Shazeer 2020): `W_down (silu(W_gate h) * W_up h)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mlp {}

/// Number of the matrix of gate and up.
const GATE_UP: usize = 0;
/// Number of the matrix back to the residual stream.
const DOWN: usize = 1;

impl Rule for Mlp {
    const HUGGING_FACE: Option<(&'static str, &'static str)> = None;

    fn check(&self) -> Result<(), SettingError> {
        Ok(())
    }

    fn read(_: &Value) -> Result<Self, String> {
        Ok(Self {})
    }

    fn write(&self, _: &mut Value) {}

    fn matrices(&self, widths: Widths) -> Vec<Matrix> {
        up_and_down(
            &["mlp.gate_proj", "mlp.up_proj"],
            "mlp.gate_up_proj",
            widths,
        )
    }

    fn met(&self, Widths { dim, ffn, .. }: Widths) -> usize {
        3 * dim * ffn
    }

    fn record<B: Backend>(
        &self,
        tape: &mut Tape<B>,
        _: Widths,
        products: &impl Products<B>,
        h: Var,
        residual: Option<Var>,
    ) -> Var {
        let gate_up = products.linear(tape, GATE_UP, h, None);
        let s = tape.swiglu(gate_up);
        products.linear(tape, DOWN, s, residual)
    }

    fn scratch(&self, Widths { ffn, .. }: Widths) -> Vec<usize> {
        vec![2 * ffn, ffn]
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
        let [gate_up, gated] = scratch else {
            panic!("two buffers of scratch memory")
        };
        let (n_x, n_ffn) = (rows * dim, rows * ffn);
        let dst = B::view_mut(gate_up, 0..2 * n_ffn);
        backend.packed_linear(h, &packed[GATE_UP], dst, Store::Set);
        if let Some(bias) = biases.next() {
            backend.add_bias(bias, B::view_mut(gate_up, 0..2 * n_ffn));
        }
        let dst = B::view_mut(gated, 0..n_ffn);
        backend.swiglu(ffn, B::view(gate_up, 0..2 * n_ffn), dst);
        let (gated, dst) = (B::view(gated, 0..n_ffn), B::view_mut(x, 0..n_x));
        backend.packed_linear(gated, &packed[DOWN], dst, Store::Add);
        if let Some(bias) = biases.next() {
            backend.add_bias(bias, B::view_mut(x, 0..n_x));
        }
    }
}

//! A mixture of experts, on one device or with some experts on each rank.

use std::sync::Arc;

use odeon_gpu::{Backend, Dispatch, OwnExperts, RouteShape, Store, Tape, Var};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Cutting, Matrix, Products, Rule, StepMemory, Widths};
use crate::setting::SettingError;

/// A mixture of experts (Shazeer et al. 2017), as Mixtral has it (Jiang et al. 2024, section 2.1):
///
/// ```text
/// p = softmax(W_router h)
/// y = sum over the k experts e of the largest p of  p_e / (sum of these p)  E_e(h)
/// E_e(h) = W2_e (silu(W1_e h) * W3_e h)
/// ```
///
/// The softmax is f32. Of equally likely experts the lowest is taken. No expert has a bound on its
/// tokens, so none is dropped. The results of a token's experts are added in the order of the
/// experts, so they do not depend on which other tokens are in the batch.
///
/// The loss has no part that balances the load of experts, and the router's inputs get no noise:
/// `router_aux_loss_coef`, `output_router_logits` and `router_jitter_noise` of a `config.json` are
/// not used. Adapters ([`LoraConfig`](crate::model::LoraConfig)) are on attention alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Moe {
    /// Experts of a layer: `num_local_experts`.
    pub experts: usize,
    /// Experts that a token passes: `num_experts_per_tok`.
    pub experts_per_token: usize,
}

impl Default for Moe {
    fn default() -> Self {
        Self {
            experts: 8,
            experts_per_token: 2,
        }
    }
}

/// Bounds what is allocated for a file before its tensors are seen.
const EXPERTS_MAX: usize = 1024;

/// Number of the router's matrix; those of the experts follow, two each.
const ROUTER: usize = 0;

/// Number of an expert's matrix of gate and up.
const fn gate_up(expert: usize) -> usize {
    1 + 2 * expert
}

/// Number of its matrix back to the residual stream.
const fn down(expert: usize) -> usize {
    2 + 2 * expert
}

impl Moe {
    fn shape(self) -> RouteShape {
        RouteShape {
            experts: self.experts,
            top: self.experts_per_token,
        }
    }
}

impl Rule for Moe {
    const HUGGING_FACE: Option<(&'static str, &'static str)> =
        Some(("mixtral", "MixtralForCausalLM"));

    fn check(&self) -> Result<(), SettingError> {
        let wrong = |field, found: usize, expected| SettingError {
            of: "moe",
            field,
            found: found as f32,
            expected,
        };
        if !(1..=EXPERTS_MAX).contains(&self.experts) {
            let expected = "a whole number from 1 to 1024";
            return Err(wrong("experts", self.experts, expected));
        }
        if !(1..=self.experts).contains(&self.experts_per_token) {
            let expected = "a whole number from 1 to the number of experts";
            return Err(wrong("experts_per_token", self.experts_per_token, expected));
        }
        Ok(())
    }

    fn read(config: &Value) -> Result<Self, String> {
        // Where these are left out, Mixtral's own defaults are others than those of Llama.
        let rope = config.get("rope_parameters").filter(|it| !it.is_null());
        let theta = rope.and_then(|rope| rope.get("rope_theta"));
        let fields = ["num_key_value_heads", "rms_norm_eps"].map(|key| (key, config.get(key)));
        let theta = ("rope_theta", theta.or_else(|| config.get("rope_theta")));
        if let Some((key, _)) = fields.into_iter().chain([theta]).find(|it| it.1.is_none()) {
            return Err(format!("configuration without `{key}`"));
        }
        let needed = |key: &str| {
            let found = config.get(key).filter(|it| !it.is_null());
            let found = found.ok_or_else(|| format!("configuration without `{key}`"))?;
            let number = found.as_u64().and_then(|it| usize::try_from(it).ok());
            number.ok_or_else(|| format!("`{key}` of {found}"))
        };
        Ok(Self {
            experts: needed("num_local_experts")?,
            experts_per_token: needed("num_experts_per_tok")?,
        })
    }

    fn write(&self, config: &mut Value) {
        config["num_local_experts"] = json!(self.experts);
        config["num_experts_per_tok"] = json!(self.experts_per_token);
        config["sliding_window"] = Value::Null;
        config["output_router_logits"] = json!(false);
    }

    fn matrices(&self, Widths { dim, ffn, experts }: Widths) -> Vec<Matrix> {
        let router = Matrix {
            tensors: vec!["block_sparse_moe.gate".to_owned()],
            rows: self.experts,
            inputs: dim,
            cutting: Cutting::Whole,
            is_expert: false,
            adapter: None,
        };
        // An expert of another rank has tensors without rows, so that names and numbers are those of the whole.
        let rows = |expert, rows| match experts {
            Some(own) if !own.contains(expert) => 0,
            _ => rows,
        };
        let experts = (0..self.experts).flat_map(|expert| {
            let name = |part| format!("block_sparse_moe.experts.{expert}.{part}");
            [
                Matrix {
                    tensors: vec![name("w1"), name("w3")],
                    rows: rows(expert, ffn),
                    inputs: dim,
                    cutting: Cutting::Outputs,
                    is_expert: true,
                    adapter: None,
                },
                Matrix {
                    tensors: vec![name("w2")],
                    rows: rows(expert, dim),
                    inputs: ffn,
                    cutting: Cutting::Inputs,
                    is_expert: true,
                    adapter: None,
                },
            ]
        });
        std::iter::once(router).chain(experts).collect()
    }

    fn met(&self, Widths { dim, ffn, .. }: Widths) -> usize {
        self.experts * dim + self.experts_per_token * 3 * dim * ffn
    }

    fn experts(&self) -> Option<RouteShape> {
        Some(self.shape())
    }

    fn record<B: Backend>(
        &self,
        tape: &mut Tape<B>,
        Widths { dim, ffn, experts }: Widths,
        products: &impl Products<B>,
        h: Var,
        residual: Option<Var>,
    ) -> Var {
        let (first, count) = match experts {
            Some(own) => (own.first, own.count),
            None => (0, self.experts),
        };
        let of_all = |number: fn(usize) -> usize| {
            let experts = first..first + count;
            experts
                .map(|expert| products.param(number(expert)))
                .collect()
        };
        let logits = products.linear(tape, ROUTER, h, None);
        let routed = tape.route(logits, self.experts_per_token);
        let taken = tape.dispatch(h, &routed);
        if let Some(ranks) = products.expert_ranks() {
            let own = OwnExperts {
                gate_up: of_all(gate_up),
                down: of_all(down),
                inner: ffn,
            };
            let made = tape.experts_of_ranks(taken, &routed, own, Arc::clone(ranks));
            return tape.collect(made, &routed, residual);
        }
        let both = tape.experts(taken, &routed, of_all(gate_up), 2 * ffn);
        let gated = tape.swiglu(both);
        let made = tape.experts(gated, &routed, of_all(down), dim);
        tape.collect(made, &routed, residual)
    }

    fn scratch(&self, Widths { dim, ffn, .. }: Widths) -> Vec<usize> {
        let top = self.experts_per_token;
        // The rows that experts take are no longer needed when theirs are made.
        vec![self.experts, top, top, top * dim, top * 2 * ffn, top * ffn]
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
            scratch,
            ..
        } = memory;
        let [logits, by_row, weights, taken, both, gated] = scratch else {
            panic!("six buffers of scratch memory")
        };
        let (n_logits, count) = (rows * self.experts, rows * self.experts_per_token);
        let dst = B::view_mut(logits, 0..n_logits);
        backend.packed_linear(h, &packed[ROUTER], dst, Store::Set);
        let mut dispatch = Dispatch::default();
        let (logits, dst) = (B::view(logits, 0..n_logits), B::view_mut(by_row, 0..count));
        dispatch.route(backend, self.shape(), rows, logits, dst);
        let dst = B::view_mut(weights, 0..count);
        backend.gather(1, dispatch.slots(), B::view(by_row, 0..count), dst);
        let dst = B::view_mut(taken, 0..count * dim);
        backend.gather(dim, dispatch.rows(), h, dst);
        for (expert, own) in dispatch.experts() {
            let of = |cols: usize| own.start * cols..own.end * cols;
            let (src, dst) = (B::view(taken, of(dim)), B::view_mut(both, of(2 * ffn)));
            backend.packed_linear(src, &packed[gate_up(expert)], dst, Store::Set);
        }
        let dst = B::view_mut(gated, 0..count * ffn);
        backend.swiglu(ffn, B::view(both, 0..count * 2 * ffn), dst);
        for (expert, own) in dispatch.experts() {
            let of = |cols: usize| own.start * cols..own.end * cols;
            let (src, dst) = (B::view(gated, of(ffn)), B::view_mut(taken, of(dim)));
            backend.packed_linear(src, &packed[down(expert)], dst, Store::Set);
        }
        let (made, weights) = (B::view(taken, 0..count * dim), B::view(weights, 0..count));
        let x = B::view_mut(x, 0..rows * dim);
        backend.combine(dim, dispatch.rows(), weights, made, x);
    }
}

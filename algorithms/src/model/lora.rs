//! Low-rank adapters (Hu et al. 2021, LoRA): `y = W x + alpha/rank * B A x` with `W` frozen.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use odeon_gpu::{Backend, Layout, LinearExtras, MatMul, Param, Store, Strides, Tape, Var};

use super::ModelConfig;
use super::network::{ADAPTERS, Linear, Places};
use super::normal::Normal;

/// Size and strength of the adapters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    /// Rank of each update.
    pub rank: usize,
    /// Updates are scaled by `alpha / rank`.
    pub alpha: f32,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.0,
        }
    }
}

/// Adapters of the linear layers that have one; fused projections share it.
#[derive(Debug)]
pub(crate) struct Adapters<B: Backend> {
    config: LoraConfig,
    layout: Layout,
    /// By layer and number of the linear layer.
    adapters: Vec<Vec<Option<Adapter>>>,
    params: B::Buffer,
}

/// The adapter of one linear layer.
#[derive(Debug)]
struct Adapter {
    /// `A`, `[rank, inputs]`.
    low: Param,
    /// `B`, `[outputs, rank]`.
    high: Param,
    outputs: usize,
    inputs: usize,
    /// Of the linear layer in the model's parameters.
    place: Range<usize>,
}

impl<B: Backend> Adapters<B> {
    pub(super) fn init(
        backend: &B,
        model: &ModelConfig,
        places: &Places,
        config: LoraConfig,
        seed: u64,
    ) -> Self {
        let rank = config.rank;
        let mut layout = Layout::new();
        let mut normal = Normal::new(seed);
        let mut flat = Vec::new();
        let linears = Linear::all(model);
        let mut adapter = |layer: usize, number: usize, linear: &Linear| {
            let &Linear {
                outputs, inputs, ..
            } = linear;
            let name = format!("model.layers.{layer}.{}", linear.adapter?);
            let a = layout.push(format!("{name}.lora_A.weight"), &[rank, inputs]);
            let b = layout.push(format!("{name}.lora_B.weight"), &[outputs, rank]);
            let deviation = 1.0 / (inputs as f32).sqrt();
            flat.extend((0..a.len()).map(|_| deviation * normal.draw()));
            flat.resize(flat.len() + b.len(), 0.0);
            Some(Adapter {
                low: Param::new(ADAPTERS, a),
                high: Param::new(ADAPTERS, b),
                outputs,
                inputs,
                place: Linear::place(number, &places.layers[layer]).clone(),
            })
        };
        let adapters = (0..model.layers).map(|layer| {
            let linears = linears.iter().enumerate();
            linears
                .map(|(number, linear)| adapter(layer, number, linear))
                .collect()
        });
        let adapters = adapters.collect();
        Self {
            config,
            layout,
            adapters,
            params: backend.buffer(&flat),
        }
    }

    pub(crate) fn config(&self) -> LoraConfig {
        self.config
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn params(&self) -> &B::Buffer {
        &self.params
    }

    pub(crate) fn layout_and_params_mut(&mut self) -> (&Layout, &mut B::Buffer) {
        (&self.layout, &mut self.params)
    }

    fn scale(&self) -> f32 {
        self.config.alpha / self.config.rank as f32
    }

    /// Adds the adapter's part to the frozen layer's output `y`, where there is one.
    pub(super) fn record(
        &self,
        tape: &mut Tape<B>,
        layer: usize,
        which: usize,
        x: Var,
        y: Var,
    ) -> Var {
        let Some(adapter) = &self.adapters[layer][which] else {
            return y;
        };
        let low = tape.linear(x, adapter.low.clone(), self.config.rank);
        let extras = LinearExtras {
            residual: Some(y),
            scale: self.scale(),
            ..Default::default()
        };
        tape.linear_with(low, adapter.high.clone(), adapter.outputs, extras)
    }

    /// The model's parameters with `alpha/rank * B A` added to each linear layer that has one.
    pub(super) fn merged(&self, backend: &B, base: &B::Buffer) -> Vec<f32> {
        let len = B::len(base);
        let mut merged = backend.alloc(len);
        backend.copy(B::view(base, 0..len), B::view_mut(&mut merged, 0..len));
        let rank = self.config.rank;
        for adapter in self.adapters.iter().flatten().flatten() {
            let &Adapter {
                outputs, inputs, ..
            } = adapter;
            let call = MatMul {
                b: Strides::rows(inputs),
                ..MatMul::linear(outputs, inputs, rank)
            };
            backend.matmul(
                call.scaled(self.scale()).stored(Store::Add),
                B::view(&self.params, adapter.high.range()),
                B::view(&self.params, adapter.low.range()),
                B::view_mut(&mut merged, adapter.place.clone()),
            );
        }
        backend.to_vec(&merged)
    }
}

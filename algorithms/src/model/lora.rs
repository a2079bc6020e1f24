//! Low-rank adapters (Hu et al. 2021, LoRA): `y = W x + alpha/rank * B A x` with `W` frozen.

use serde::{Deserialize, Serialize};

use odeon_gpu::{Backend, Layout, LinearExtras, MatMul, Param, Store, Strides, Tape, Var};

use super::ModelConfig;
use super::network::{ADAPTERS, Linear, Normal, Places};

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

/// Adapters of every linear layer; fused projections share one.
#[derive(Debug)]
pub(crate) struct Adapters<B: Backend> {
    config: LoraConfig,
    layout: Layout,
    /// `A` and `B` by layer and [`Linear`].
    places: Vec<[(Param, Param); 4]>,
    params: B::Buffer,
}

impl<B: Backend> Adapters<B> {
    pub(super) fn init(backend: &B, model: &ModelConfig, config: LoraConfig, seed: u64) -> Self {
        let rank = config.rank;
        let mut layout = Layout::new();
        let mut normal = Normal::new(seed);
        let mut flat = Vec::new();
        let places = (0..model.layers)
            .map(|layer| {
                Linear::ALL.map(|which| {
                    let (outputs, inputs) = which.shape(model);
                    let name = format!("model.layers.{layer}.{}", which.name());
                    let a = layout.push(format!("{name}.lora_A.weight"), &[rank, inputs]);
                    let b = layout.push(format!("{name}.lora_B.weight"), &[outputs, rank]);
                    let deviation = 1.0 / (inputs as f32).sqrt();
                    flat.extend((0..a.len()).map(|_| deviation * normal.draw()));
                    flat.resize(flat.len() + b.len(), 0.0);
                    (Param::new(ADAPTERS, a), Param::new(ADAPTERS, b))
                })
            })
            .collect();
        Self {
            config,
            layout,
            places,
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

    /// Adds the adapter's part to the frozen layer's output `y`.
    pub(super) fn record(
        &self,
        tape: &mut Tape<B>,
        layer: usize,
        which: Linear,
        x: Var,
        y: Var,
        outputs: usize,
    ) -> Var {
        let (a, b) = &self.places[layer][which as usize];
        let low = tape.linear(x, a.clone(), self.config.rank);
        let extras = LinearExtras {
            residual: Some(y),
            scale: self.scale(),
            ..Default::default()
        };
        tape.linear_with(low, b.clone(), outputs, extras)
    }

    /// The model's parameters with `alpha/rank * B A` added to each linear layer.
    pub(super) fn merged(&self, backend: &B, places: &Places, base: &B::Buffer) -> Vec<f32> {
        let len = B::len(base);
        let mut merged = backend.alloc(len);
        backend.copy(B::view(base, 0..len), B::view_mut(&mut merged, 0..len));
        let rank = self.config.rank;
        for (layer, adapters) in places.layers.iter().zip(&self.places) {
            for (which, (a, b)) in Linear::ALL.into_iter().zip(adapters) {
                let place = which.place(layer).clone();
                let inputs = a.range().len() / rank;
                let outputs = b.range().len() / rank;
                let call = MatMul {
                    b: Strides::rows(inputs),
                    ..MatMul::linear(outputs, inputs, rank)
                };
                backend.matmul(
                    call.scaled(self.scale()).stored(Store::Add),
                    B::view(&self.params, b.range()),
                    B::view(&self.params, a.range()),
                    B::view_mut(&mut merged, place),
                );
            }
        }
        backend.to_vec(&merged)
    }
}

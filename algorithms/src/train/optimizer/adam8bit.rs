//! 8-bit Adam: AdamW whose moments are kept in bytes.

use odeon_gpu::{Backend, TensorEntry};
use serde::{Deserialize, Serialize};

use super::tiles::{self, TILE};
use super::{AdamW, Cutting, ElementRule, Holding, Kept, Rule, StateForm, Step, Stepper};
use crate::setting::SettingError;

/// AdamW with both moments in bytes: each tile of 32 x 32 numbers of a matrix has a scale, which is its largest number,
/// and each number a code of one of 256 values between zero and that (blockwise dynamic quantisation, Dettmers et al.,
/// arXiv [2110.02861](https://arxiv.org/abs/2110.02861), in the tiles of veScale-FSDP, arXiv 2602.22437).
///
/// A step reads the moments of a tile, makes AdamW's step of them in 32 bits, and rounds what it keeps to the nearest
/// code. A second moment above zero has no code of zero, since steps are divided by its root. A vector has blocks of 32.
///
/// Moments are in memory of the host, and the processor moves them, whatever the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Adam8bit {
    /// The settings, which are AdamW's.
    pub adamw: AdamW,
}

impl Rule for Adam8bit {
    const NAME: &'static str = "8-bit Adam";
    const STATE: &'static [&'static str] =
        &["exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale"];

    fn check(&self) -> Result<(), SettingError> {
        self.adamw.check_as("adam8bit")
    }

    fn cutting(&self, _: &TensorEntry) -> Cutting {
        Cutting::Rows(TILE)
    }

    fn form(state: usize) -> StateForm {
        let moment = state / 2;
        match state % 2 {
            0 => StateForm::Codes(moment),
            _ => StateForm::Scales(moment),
        }
    }

    fn bytes(&self, holding: &Holding) -> usize {
        tiles::bytes(holding)
    }

    fn stepper<B: Backend>(&self, _: &B, _: &Holding, weight_decay: f32) -> Box<dyn Stepper<B>> {
        Box::new(TiledSteps {
            adamw: self.adamw,
            weight_decay,
        })
    }
}

#[derive(Debug)]
struct TiledSteps {
    adamw: AdamW,
    weight_decay: f32,
}

impl<B: Backend> Stepper<B> for TiledSteps {
    fn step(
        &mut self,
        backend: &B,
        step: Step,
        params: &mut B::Buffer,
        grads: &B::Buffer,
        kept: Kept<'_, B>,
    ) {
        let tiled = kept.tiled.expect("moments in tiles");
        for tensor in tiled.tensors.iter_mut().filter(|it| it.len() > 0) {
            let decay = if tensor.decays {
                self.weight_decay
            } else {
                0.0
            };
            let update = self.adamw.update(step, decay);
            let range = tensor.at..tensor.at + tensor.len();
            let on_host = B::host(grads).map(|grads| &grads[range.clone()]);
            if let (Some(grads), Some(params)) = (on_host, B::host_mut(params)) {
                tensor.update(update, &mut params[range], grads);
                continue;
            }
            let [mut own, mut of_own] = [(); 2].map(|()| vec![0.0; range.len()]);
            backend.read(B::view(params, range.clone()), &mut own);
            backend.read(B::view(grads, range.clone()), &mut of_own);
            tensor.update(update, &mut own, &of_own);
            backend.write(B::view_mut(params, range), &own);
        }
    }
}

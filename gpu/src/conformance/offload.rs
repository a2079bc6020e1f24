//! Activations that leave the device between the forward pass and the way back.

use super::Noise;
use crate::backend::Backend;
use crate::tape::{Arena, Division, LinearExtras, Param, Resident, Tape, Var};

/// Numbers of a row, rows, and layers.
const WIDTH: usize = 24;
const ROWS: usize = 17;
const LAYERS: usize = 5;

/// What layers keep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeping {
    All,
    /// The input of each alone.
    Inputs,
}

/// A tape of some layers, each a norm and two products with a residual, and what it has made in the end.
fn layers<B: Backend>(keeping: Keeping, offload: bool) -> (Tape<B>, Var, usize) {
    let mut tape = Tape::<B>::new();
    let mut at = 0;
    let mut param = |len: usize| {
        at += len;
        Param::new(0, at - len..at)
    };
    let rows: Vec<u32> = (0..ROWS as u32).collect();
    let mut x = tape.embed(param(ROWS * WIDTH), WIDTH, rows.into());
    for _ in 0..LAYERS {
        let of_layer = tape.mark();
        let h = tape.rms_norm(x, param(WIDTH), 1e-5);
        let both = tape.linear(h, param(4 * WIDTH * WIDTH), 4 * WIDTH);
        let gated = tape.swiglu(both);
        let extras = LinearExtras {
            residual: Some(x),
            ..LinearExtras::default()
        };
        x = tape.linear_with(gated, param(2 * WIDTH * WIDTH), WIDTH, extras);
        if keeping == Keeping::Inputs {
            tape.recompute(of_layer);
        }
        if offload {
            tape.offload(of_layer);
        }
    }
    let out = tape.linear(x, param(WIDTH * WIDTH), WIDTH);
    (tape, out, at)
}

/// Activations that leave come back as they were, before they are read: results and gradients are those of a pass that
/// keeps them, to the bit, with passes back in one and in two; and the device has less of them where these go in one.
pub fn offload<B: Backend>(b: &B) {
    let mut noise = Noise(77);
    let (.., len) = layers::<B>(Keeping::All, false);
    let params = b.buffer(&noise.vec(len));
    let seed = noise.vec(ROWS * WIDTH);
    for keeping in [Keeping::All, Keeping::Inputs] {
        for division in [Division::Whole, Division::Resident] {
            let pass = |offload| {
                let (tape, out, _) = layers::<B>(keeping, offload);
                let plan = tape.plan_divided(&[true], &[out], division);
                let mut arena = Arena::default();
                arena.prepare(b, &plan);
                let (sets, mut grads) = ([&params], [Some(b.alloc(len))]);
                let mut sets = Resident(&sets);
                tape.forward_over(b, &mut arena, &plan, &mut sets);
                let made = tape.read(b, &arena, &plan, out);
                tape.seed(b, &mut arena, &plan, out, &seed);
                tape.backward_over(b, &mut arena, &plan, &mut sets, &mut grads);
                if division != Division::Whole {
                    tape.backward_weights(b, &mut arena, &plan, &mut sets, &mut grads);
                }
                let [gradient] = grads.map(|of_set| of_set.expect("the set is trained"));
                assert_eq!(
                    plan.offloaded_bytes(),
                    arena.offloaded_bytes(),
                    "what leaves is planned"
                );
                let bits = |all: Vec<f32>| all.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                let numbers = (bits(made), bits(b.to_vec(&gradient)));
                (numbers, plan.bytes(), plan.offloaded_bytes())
            };
            let ((kept, all, none), (away, fewer, out)) = (pass(false), pass(true));
            assert!(kept == away, "offload: the same to the bit");
            assert_eq!(none, 0);
            // Products whose weights come later have their rows back until then.
            let is_less = division != Division::Whole || fewer < all;
            assert!(
                out > 0 && is_less,
                "offload: {out} bytes leave, {fewer} of {all} stay"
            );
        }
    }
}

//! Encoders in the first stage, and in all stages alike.

use proptest::prelude::*;

use super::language;
use crate::{SharedEncoder, StageKernel, StageKernels};

/// Seconds of both passes of a stage of [`language`].
const STAGE_S: f64 = 8.0;

proptest! {
    /// Each pass is longer by its share, and nothing else is: the bubbles grow as passes do.
    #[test]
    fn stages_that_share_an_encoder_stay_as_long_as_each_other(
        stages in 1_usize..6,
        more in 0_usize..8,
        forward_s in 0.0_f64..9.0,
        backward_s in 0.0_f64..9.0,
        exchange_s in 0.0_f64..1.0,
    ) {
        let micro_batches = stages + more;
        let mut step = language(stages, micro_batches, 1);
        (step.gather_s, step.scatter_s) = (0.0, 0.0);
        let encoder = SharedEncoder { forward_s, backward_s, exchange_s };
        let with = step.with_encoder_everywhere(&encoder).timeline().unwrap().step_s;
        let ranks = stages as f64;
        let share = (forward_s + backward_s) / ranks;
        // Exchanges are of passes that have something to exchange.
        let exchanges = 2.0 * exchange_s;
        let passes = (micro_batches + stages - 1) as f64;
        let expected = passes * (STAGE_S + share + exchanges) + share + exchanges;
        prop_assert!((with - expected).abs() < 1e-6 * expected, "{with}, {expected}");
        let least = step.timeline().unwrap().step_s + step.encoder_s(&encoder);
        prop_assert!(with > least - 1e-6);

        // In the first stage it is the stage that all wait for.
        let kernels = |seconds: f64| vec![StageKernel::compute(seconds)];
        let whole = StageKernels {
            forward: kernels(forward_s),
            backward: kernels(backward_s),
        };
        let first = step.with_encoder_first(&whole.scaled(1.0)).timeline().unwrap().step_s;
        let busy = micro_batches as f64 * (STAGE_S + forward_s + backward_s);
        prop_assert!(first > busy - 1e-6, "{first}, {busy}");
    }
}

#[test]
fn an_encoder_without_pictures_changes_nothing() {
    let step = language(3, 6, 2);
    assert_eq!(
        step.with_encoder_everywhere(&SharedEncoder::default()),
        step
    );
    let whole = StageKernels {
        forward: vec![StageKernel::compute(2.0)],
        backward: vec![],
    };
    assert_eq!(step.with_encoder_first(&whole.scaled(0.0)), step);
    let shared = SharedEncoder::of(&whole.scaled(3.0), 2, 0.0);
    assert_eq!((shared.forward_s, shared.backward_s), (3.0, 0.0));
    assert_eq!(step.encoder_s(&shared), 6.0 * 3.0 / 3.0);
}

//! Generation by models whose rows are wider than layers.

use super::*;
use crate::model::VirtualWidth;

fn wide(fraction: usize, segments: usize, dynamic: bool, tied_head: bool) -> Model {
    let config = ModelConfig {
        tied_head,
        width: Some(VirtualWidth {
            fraction,
            segments,
            dynamic,
        }),
        ..config()
    };
    let mut model = Model::init(Cpu::new(1), config, 5).unwrap();
    let flat = model.flat().iter().enumerate();
    let flat = flat.map(|(at, value)| match *value {
        1.0 => 1.0 + 0.1 * (at as f32).sin(),
        0.0 => 0.05 * (at as f32).cos(),
        value => 8.0 * value,
    });
    let flat: Vec<f32> = flat.collect();
    model.load_flat(&flat).unwrap();
    model
}

fn generator_of(model: &Model, slots: usize) -> Generator {
    let options = GeneratorConfig {
        slots,
        max_tokens: 80,
        prefill_tokens: 16,
        ..GeneratorConfig::default()
    };
    let mut generator = Generator::new(Cpu::new(2), model.config().clone(), options).unwrap();
    generator.load_flat(model.flat()).unwrap();
    generator
}

/// SEMANTICS 145. What is sampled has the log-probabilities of the forward pass, and those of a sequence do not depend
/// on who else there is.
#[test]
fn log_probabilities_of_a_wide_model_are_those_of_the_forward_pass() {
    for (shape, dynamic, tied) in [
        ([1, 1], true, true),
        ([1, 2], true, true),
        ([2, 2], false, false),
        ([2, 3], true, false),
        ([2, 3], false, true),
        ([2, 8], true, true),
    ] {
        let model = wide(shape[0], shape[1], dynamic, tied);
        let together = run(&mut generator_of(&model, 8), 0..8);
        let mut scorer = Scorer::new(wide(shape[0], shape[1], dynamic, tied));
        for sampled in together {
            let alone = run(&mut generator_of(&model, 1), sampled.id..sampled.id + 1).remove(0);
            assert_eq!(alone, sampled, "{shape:?}");
            let prompt = request(sampled.id).prompt;
            let tokens = [prompt.clone(), sampled.tokens.clone()].concat();
            let sequence = Sequence {
                tokens: &tokens,
                prompt: prompt.len(),
            };
            let batch = Batch::pack(&[sequence]).unwrap();
            let want = scorer.logprobs(&batch).logprobs;
            assert_eq!(sampled.logprobs.len(), want.len());
            for (got, want) in sampled.logprobs.iter().zip(want) {
                assert!((got - want).abs() < 1e-4, "{shape:?}: {got} {want}");
            }
        }
    }
}

//! Tests of dropout.

use super::*;
use crate::train::CrossEntropy;

/// The furthest that a loss of the first rank is from that of one device.
fn off(one: &Trained, work: &Texts, dealt: &[usize], sharing: Sharing) -> f64 {
    let all = in_parts(&models()[0], &settings(false, None), work, dealt, sharing);
    let pairs = all[0].0.losses.iter().zip(&one.losses);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// SEMANTICS 140. Numbers that are dropped by their place make the difference: with a seed for each rank, as is usual,
/// losses are off by orders of magnitude more.
#[test]
fn ranks_with_seeds_of_their_own_are_far_from_one_device() {
    let mut work = Texts::of(&[5, 3, 8, 2, 7, 4], 0..6);
    work.dropout = 0.2;
    let one = on_one_device(&models()[0], &settings(false, None), &work);
    let own_seeds = Texts {
        has_own_seeds: true,
        ..work.clone()
    };
    let of_copies = |copies| Sharing {
        copies,
        ..Sharing::ALONE
    };
    let tensor = Sharing {
        tensor: 2,
        ..of_copies(1)
    };
    let context = Sharing {
        context: 2,
        ..of_copies(1)
    };
    let stages = Sharing {
        stages: 2,
        ..of_copies(2)
    };
    for (dealt, sharing) in [
        (&[3, 3][..], of_copies(2)),
        (&[6], tensor),
        (&[6], context),
        (&[4, 2], stages),
    ] {
        let with_one = off(&one, &work, dealt, sharing);
        let with_own = off(&one, &own_seeds, dealt, sharing);
        assert!(with_one < 1e-5, "{with_one} {sharing:?}");
        let apart = with_own > 1e3 * with_one && with_own > 1e-2;
        assert!(apart, "{with_one} and {with_own} {sharing:?}");
    }
}

/// SEMANTICS 140. A sample that is computed beside others, elsewhere among them or alone, has the same numbers.
#[test]
fn a_sample_is_scored_the_same_wherever_it_is_packed() {
    let mut trainer = Trainer::new(model(&models()[1]), TrainConfig::default());
    let mut scored = |samples: &[u32], step| -> Vec<Vec<f32>> {
        let tokens = |sample: &u32| -> Vec<u32> {
            let at = 0..4 + *sample;
            at.map(|at| (at * at + *sample) % 23).collect()
        };
        let all: Vec<_> = samples.iter().map(tokens).collect();
        let sequences = all.iter().map(|tokens| Sequence { tokens, prompt: 1 });
        let batch = Batch::pack(&sequences.collect::<Vec<_>>()).unwrap();
        let names: Vec<_> = samples.iter().map(|sample| u128::from(*sample)).collect();
        let batch = batch.dropping(Dropout::of_step(0.3, 1, step), &names);
        let done = trainer.accumulate(&batch, &mut CrossEntropy::mean_over(1));
        let responses = batch.responses().iter();
        responses
            .map(|own| done.scores.logprobs[own.clone()].to_vec())
            .collect()
    };
    let together = scored(&[3, 5, 2], 0);
    let turned = scored(&[2, 3], 0);
    assert!(near(&together[0], &turned[1], 1e-5) && near(&together[2], &turned[0], 1e-5));
    assert!(near(&together[1], &scored(&[5], 0)[0], 1e-5));
    assert!(
        !near(&together[1], &scored(&[5], 1)[0], 1e-2),
        "another step drops others"
    );
}

/// SEMANTICS 140. Nothing is dropped of what is rated.
#[test]
fn a_step_that_rates_drops_nothing() {
    let loss = |dropout, learns| {
        let mut work = Texts::of(&[5, 4, 7], 0..3);
        work.dropout = dropout;
        let shape = StepShape::of(&work, false, learns);
        let mut trainer = Trainer::new(model(&models()[0]), TrainConfig::default());
        let peers = StepPeers::<Rank>::none();
        let done = trainer.run(&plan(&shape), &mut work, peers, &mut |_| Ok(()));
        done.unwrap().loss
    };
    assert_eq!(loss(0.5, false).to_bits(), loss(0.0, false).to_bits());
    assert!((loss(0.0, true) - loss(0.0, false)).abs() < 1e-6);
    assert!((loss(0.5, true) - loss(0.0, true)).abs() > 1e-2);
}

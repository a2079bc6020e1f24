//! Tests of gradients that are not taken.

use super::*;
use crate::model::GradientFault;
use crate::train::GradientGuard;

/// Tries of one step on two ranks, each with the guards of both: their outcomes, and the parameters in the end.
fn tried(tries: &'static [[GradientGuard; 2]], shares: bool) -> Vec<(Vec<StepOutcome>, Vec<f32>)> {
    let ranks = Rank::all(2).into_iter().enumerate();
    let threads: Vec<_> = ranks
        .map(|(number, mut rank)| {
            thread::spawn(move || {
                let mut trainer = trainer();
                if shares {
                    let config = trainer.config().clone();
                    trainer = Trainer::sharing(trainer.into_model(), config, number, 2);
                }
                let outcomes = tries.iter().map(|guards| {
                    trainer.guard(Some(guards[number]));
                    let mut work = Texts::of(&[5, 4], number..number + 1);
                    let shape = StepShape {
                        shares_optimizer: shares,
                        is_guarded: trainer.is_guarded(),
                        ..StepShape::of(&work, true, true)
                    };
                    let peers = StepPeers::data(&mut rank);
                    let done = trainer.run(&plan(&shape), &mut work, peers, &mut |_| Ok(()));
                    done.unwrap()
                });
                (outcomes.collect(), trainer.model().to_flat())
            })
        })
        .collect();
    threads.into_iter().map(|it| it.join().unwrap()).collect()
}

const PLAIN: GradientGuard = GradientGuard {
    norm_max: Some(1e3),
    known: None,
    drill: None,
};

const fn committing(fault: GradientFault) -> GradientGuard {
    GradientGuard {
        drill: Some(fault),
        ..PLAIN
    }
}

/// SEMANTICS 169.
#[test]
fn a_gradient_that_one_rank_spoils_changes_nothing_and_the_next_try_is_a_step_like_any_other() {
    const NAN: &[[GradientGuard; 2]] = &[[PLAIN, committing(GradientFault::Nan)], [PLAIN; 2]];
    const BIT: &[[GradientGuard; 2]] = &[[committing(GradientFault::Bit), PLAIN], [PLAIN; 2]];
    for shares in [false, true] {
        let whole = tried(&[[PLAIN; 2]], shares);
        for (tries, bad) in [(NAN, 1), (BIT, 0)] {
            let both = tried(tries, shares);
            for (rank, (outcomes, parameters)) in both.iter().enumerate() {
                let [first, again] = &outcomes[..] else {
                    panic!("two tries");
                };
                assert!(!first.update.unwrap().applied && again.update.unwrap().applied);
                assert_eq!(again, &whole[rank].0[0]);
                assert!(*parameters == whole[rank].1);
                let (was, is) = (first.gradient.clone(), again.gradient.clone());
                let (was, is) = (was.unwrap(), is.unwrap());
                if rank == bad {
                    assert!(is.worst.is_none() && was.worst.is_some(), "{was:?}");
                    let norm = was.squares.sqrt();
                    assert!(norm.is_nan() || norm > 1e3, "{was:?}");
                } else {
                    assert_eq!(was, is);
                }
            }
            let norms = both.iter().map(|it| it.0[0].update.unwrap().grad_norm);
            let norms: Vec<_> = norms.map(f32::to_bits).collect();
            assert_eq!(norms[0], norms[1], "they do the same then");
        }
    }
}

/// SEMANTICS 169.
#[test]
fn a_norm_that_was_seen_before_is_taken_and_another_beyond_the_limit_is_not() {
    let guard = |norm_max, known| GradientGuard {
        norm_max,
        known,
        drill: None,
    };
    let limited = guard(Some(5.0), None);
    assert!(limited.takes(5.0) && !limited.takes(5.1));
    assert!(!limited.takes(f32::NAN) && !limited.takes(f32::INFINITY));
    let known = guard(Some(5.0), Some(9.0));
    assert!(known.takes(9.0) && known.takes(9.005) && known.takes(1.0) && !known.takes(9.1));
    assert!(!guard(None, Some(f32::INFINITY)).takes(f32::INFINITY));
    assert!(guard(None, None).takes(f32::MAX));
}

/// The backward pass spoils all that lies before the tensor where it goes wrong.
#[test]
fn the_last_tensor_that_is_spoilt_is_the_worst_and_of_large_ones_the_largest() {
    let mut trainer = trainer();
    trainer.guard(Some(PLAIN));
    let entries = trainer.trained_layout().entries().to_vec();
    let [spoilt, last] = [entries[2].range.clone(), entries[5].range.clone()];
    let gradient = trainer.trained_gradient_mut().as_mut_slice();
    gradient[..last.end].fill(0.5);
    gradient[spoilt.start..last.start + 1].fill(f32::NAN);
    let look = trainer.look_at_gradient();
    let worst = look.worst.unwrap();
    assert_eq!(
        (worst.name, worst.not_finite, worst.of),
        (entries[5].name.clone(), 4, 6)
    );
    let gradient = trainer.trained_gradient_mut().as_mut_slice();
    gradient.fill(0.5);
    gradient[spoilt.start] = 1e4;
    let worst = trainer.look_at_gradient().worst.unwrap();
    assert_eq!((worst.name, worst.not_finite), (entries[2].name.clone(), 0));
}

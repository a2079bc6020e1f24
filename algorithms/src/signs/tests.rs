//! No alarm over noise, and one for each shape that is planted.

use proptest::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;

const STEPS: u64 = 400;

/// About normal, of mean 0 and deviation 1.
fn chance(rng: &mut ChaCha8Rng) -> f64 {
    let sum: f64 = (0..12).map(|_| rng.random_range(0.0..1.0)).sum();
    sum - 6.0
}

/// The signs of a run that goes as `shape` says at each part of it, from 0 to 1, with this much
/// noise.
fn run(seed: u64, steps: u64, noise: f64, shape: impl Fn(f64) -> Facts) -> Vec<(u64, Sign)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut watch = Watch::new(steps);
    let mut signs = vec![];
    for step in 1..=steps {
        let facts = shape((step - 1) as f64 / steps as f64);
        let facts = Facts {
            step,
            reward: facts.reward + noise * chance(&mut rng),
            right: facts.right + noise * chance(&mut rng),
            length: facts.length * (1.0 + noise * chance(&mut rng)),
            entropy: facts
                .entropy
                .map(|it| it * (1.0 + noise * chance(&mut rng))),
        };
        signs.extend(watch.step(&facts).into_iter().map(|sign| (step, sign)));
    }
    signs
}

const STILL: Facts = Facts {
    step: 0,
    reward: 0.4,
    right: 0.4,
    length: 100.0,
    entropy: Some(1.0),
};

fn names(signs: &[(u64, Sign)]) -> Vec<&'static str> {
    let mut names: Vec<_> = signs.iter().map(|(_, sign)| sign.name()).collect();
    names.dedup();
    names
}

/// A hundredth at most, as the module says. SEMANTICS 92.
#[test]
fn noise_alone_is_no_sign() {
    let seeds = 1000;
    for noise in [0.0, 0.01, 0.03, 0.1] {
        for steps in [60, STEPS] {
            let told = (0..seeds).filter(|seed| !run(*seed, steps, noise, |_| STILL).is_empty());
            let told = told.count();
            assert!(told * 100 <= seeds as usize, "{noise} {steps}: {told}");
        }
    }
}

#[test]
fn held_out_noise_alone_is_no_sign() {
    let mut told = 0;
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut watch = Watch::new(STEPS);
        for step in 1..=STEPS {
            // The reward rises, and what is held out stays as it is.
            let reward = 0.2 + 0.5 * step as f64 / STEPS as f64;
            let facts = Facts {
                step,
                reward,
                right: reward,
                ..STILL
            };
            assert_eq!(watch.step(&facts), []);
            if step.is_multiple_of(10) {
                let correct = (0..200)
                    .filter(|_| rng.random_range(0.0..1.0) < 0.5)
                    .count();
                told += watch.held_out(correct as u64, 200).len();
            }
        }
    }
    assert!(told <= 3, "{told}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn learning_well_is_no_sign(
        seed: u64, noise in 0.0_f64..0.04, from in 0.05_f64..0.5, by in 0.0_f64..0.45,
        slope in 0.6_f64..1.6, at_once in 1.0_f64..10.0,
    ) {
        let signs = run(seed, STEPS, noise, |part| {
            let grown = by * (1.0 - (-at_once * part).exp());
            Facts { reward: 0.3 + slope * grown, right: from + grown, ..STILL }
        });
        prop_assert_eq!(signs, vec![]);
    }

    /// SEMANTICS 92.
    #[test]
    fn a_reward_that_rises_while_less_is_right_is_hacked(
        seed: u64, noise in 0.0_f64..0.04, turn in 0.2_f64..0.6, fall in 0.15_f64..0.4,
    ) {
        let signs = run(seed, STEPS, noise, |part| {
            let right = match part < turn {
                true => 0.3 + 0.3 * part / turn,
                false => 0.6 - fall * (part - turn) / (1.0 - turn),
            };
            Facts { reward: 0.3 + 0.6 * part, right, ..STILL }
        });
        prop_assert_eq!(names(&signs), ["reward_hacking"]);
        let (step, sign) = signs[0];
        prop_assert!(step as f64 > turn * STEPS as f64, "{step} {sign}");
    }

    #[test]
    fn a_reward_that_rises_while_nothing_else_does_is_hacked(
        seed: u64, noise in 0.0_f64..0.04, rise in 0.3_f64..0.6,
    ) {
        let signs = run(seed, STEPS, noise, |part| Facts { reward: 0.3 + rise * part, ..STILL });
        prop_assert_eq!(names(&signs), ["reward_hacking"]);
    }

    #[test]
    fn held_out_problems_that_are_answered_worse_show_that_a_reward_is_hacked(
        seed: u64, noise in 0.0_f64..0.04,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut watch = Watch::new(STEPS);
        let mut signs = vec![];
        for step in 1..=STEPS {
            let part = step as f64 / STEPS as f64;
            let reward = 0.2 + 0.6 * part + noise * chance(&mut rng);
            watch.step(&Facts { step, reward, right: reward, ..STILL });
            if step.is_multiple_of(20) {
                signs.extend(watch.held_out((200.0 * (0.9 - 0.6 * part)) as u64, 200));
            }
        }
        let names: Vec<_> = signs.iter().map(Sign::name).collect();
        prop_assert_eq!(names, ["reward_hacking"], "it is told once");
    }

    /// SEMANTICS 92.
    #[test]
    fn replies_that_become_short_are_noticed(
        seed: u64, noise in 0.0_f64..0.1, at in 0.1_f64..0.8, to in 0.1_f64..0.5,
    ) {
        let signs = run(seed, STEPS, noise, |part| Facts {
            length: if part < at { 100.0 } else { 100.0 * to },
            ..STILL
        });
        prop_assert_eq!(names(&signs), ["length_collapse"]);
        prop_assert_eq!(signs.len(), 1, "it is told once");
        prop_assert!(signs[0].0 as f64 >= at * STEPS as f64);
        let longer = run(seed, STEPS, noise, |part| Facts {
            length: if part < at { 100.0 } else { 80.0 },
            ..STILL
        });
        prop_assert_eq!(longer, vec![]);
    }

    /// SEMANTICS 92.
    #[test]
    fn a_reward_that_falls_at_first_and_comes_back_is_noticed(
        seed: u64, noise in 0.0_f64..0.02, low in 0.02_f64..0.2,
    ) {
        let signs = run(seed, STEPS, noise, |part| {
            let reward = match part < 0.06 {
                true => 0.4 - (0.4 - low) * part / 0.06,
                false => low + 0.5 * (part - 0.06),
            };
            Facts { reward, right: reward, ..STILL }
        });
        prop_assert_eq!(names(&signs), ["hockey_stick"]);
        // One that stays down has no handle.
        let signs = run(seed, STEPS, noise, |part| {
            let reward = (0.4 - (0.4 - low) * part / 0.06).max(low);
            Facts { reward, right: reward, ..STILL }
        });
        prop_assert_eq!(signs, vec![]);
    }

    /// SEMANTICS 92.
    #[test]
    fn a_policy_that_is_certain_of_what_is_wrong_is_noticed(
        seed: u64, noise in 0.0_f64..0.04, right in 0.2_f64..0.8,
    ) {
        let falls = |right: f64| run(seed, STEPS, noise, move |part| Facts {
            entropy: Some((-8.0 * part).exp()),
            reward: right,
            right,
            ..STILL
        });
        prop_assert_eq!(names(&falls(right)), ["entropy_collapse"]);
        prop_assert_eq!(falls(0.97), vec![], "of what is right it may be certain");
    }

    /// SEMANTICS 92.
    #[test]
    fn steps_that_come_again_add_nothing(seed: u64, back in 1_u64..100) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let all: Vec<Facts> = (1..=STEPS).map(|step| Facts {
            step,
            reward: 0.3 + 0.001 * step as f64 + 0.01 * chance(&mut rng),
            ..STILL
        }).collect();
        let (mut plain, mut repeated) = (Watch::new(STEPS), Watch::new(STEPS));
        for facts in &all {
            let once = plain.step(facts);
            prop_assert_eq!(&repeated.step(facts), &once);
            let from = (facts.step as usize).saturating_sub(back as usize);
            for again in &all[from..facts.step as usize] {
                prop_assert_eq!(repeated.step(again), vec![]);
            }
        }
        prop_assert_eq!(plain, repeated);
    }
}

#[test]
fn a_sign_that_was_gone_is_told_again() {
    let short = |part: f64| (0.2..0.4).contains(&part) || (0.6..0.8).contains(&part);
    let signs = run(1, STEPS, 0.01, |part| Facts {
        length: if short(part) { 20.0 } else { 100.0 },
        ..STILL
    });
    assert_eq!(signs.len(), 2, "{signs:?}");
}

#[test]
fn numbers_that_are_none_add_nothing() {
    let mut watch = Watch::new(STEPS);
    for step in 1..=STEPS {
        let facts = Facts {
            step,
            reward: f64::NAN,
            ..STILL
        };
        assert_eq!(watch.step(&facts), []);
    }
    assert_eq!(watch.held_out(0, 0), []);
    assert_eq!(watch, Watch::new(STEPS));
}

#[test]
fn a_watch_remembers_a_window_and_no_more() {
    for steps in [1, 100, 1_000_000_000] {
        let mut watch = Watch::new(steps);
        for step in 1..=1000 {
            watch.step(&Facts { step, ..STILL });
        }
        assert!((5..=20).contains(&watch.last.len()));
    }
}

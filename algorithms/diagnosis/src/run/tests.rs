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

/// The findings of a run that goes as `shape` says at each part of it, from 0 to 1, with this much
/// noise.
fn run(seed: u64, steps: u64, noise: f64, shape: impl Fn(f64) -> RlStep) -> Vec<Found> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut watch = Watch::new(steps);
    let mut found = vec![];
    for at in 1..=steps {
        let step = shape((at - 1) as f64 / steps as f64);
        let step = RlStep {
            reward: step.reward + noise * chance(&mut rng),
            right: step.right + noise * chance(&mut rng),
            length: step.length * (1.0 + noise * chance(&mut rng)),
            entropy: step.entropy.map(|it| it * (1.0 + noise * chance(&mut rng))),
        };
        found.extend(told(&mut watch, step, at));
    }
    found
}

/// The step that shows it, and the finding.
type Found = (u64, Finding<RunEvent>);

fn told(watch: &mut Watch, step: RlStep, at: u64) -> Vec<Found> {
    let found = watch.observe(&RunEvent::Step(step), at).into_iter();
    found.map(|it| (at, it)).collect()
}

fn evaluated(watch: &mut Watch, correct: u64, problems: u64, at: u64) -> Vec<Finding<RunEvent>> {
    watch.observe(&RunEvent::Evaluated { correct, problems }, at)
}

/// All that it remembers.
fn memory(watch: &Watch) -> String {
    format!("{watch:?}")
}

const STILL: RlStep = RlStep {
    reward: 0.4,
    right: 0.4,
    length: 100.0,
    entropy: Some(1.0),
};

fn names(found: &[Found]) -> Vec<&'static str> {
    let mut names: Vec<_> = found.iter().map(|(_, it)| it.cause.rule).collect();
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
    let mut alarms = 0;
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut watch = Watch::new(STEPS);
        for step in 1..=STEPS {
            // The reward rises, and what is held out stays as it is.
            let reward = 0.2 + 0.5 * step as f64 / STEPS as f64;
            let facts = RlStep {
                reward,
                right: reward,
                ..STILL
            };
            assert_eq!(told(&mut watch, facts, step), []);
            if step.is_multiple_of(10) {
                let right = (0..200).filter(|_| rng.random_range(0.0..1.0) < 0.5);
                alarms += evaluated(&mut watch, right.count() as u64, 200, step).len();
            }
        }
    }
    assert!(alarms <= 3, "{alarms}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn learning_well_is_no_sign(
        seed: u64, noise in 0.0_f64..0.04, from in 0.05_f64..0.5, by in 0.0_f64..0.45,
        slope in 0.6_f64..1.6, at_once in 1.0_f64..10.0,
    ) {
        let found = run(seed, STEPS, noise, |part| {
            let grown = by * (1.0 - (-at_once * part).exp());
            RlStep { reward: 0.3 + slope * grown, right: from + grown, ..STILL }
        });
        prop_assert_eq!(found, vec![]);
    }

    /// SEMANTICS 92.
    #[test]
    fn a_reward_that_rises_while_less_is_right_is_hacked(
        seed: u64, noise in 0.0_f64..0.04, turn in 0.2_f64..0.6, fall in 0.15_f64..0.4,
    ) {
        let found = run(seed, STEPS, noise, |part| {
            let right = match part < turn {
                true => 0.3 + 0.3 * part / turn,
                false => 0.6 - fall * (part - turn) / (1.0 - turn),
            };
            RlStep { reward: 0.3 + 0.6 * part, right, ..STILL }
        });
        prop_assert_eq!(names(&found), ["reward_hacking"]);
        let (step, finding) = &found[0];
        prop_assert!(*step as f64 > turn * STEPS as f64, "{step} {finding:?}");
        prop_assert!(finding.since < *step && finding.who.is_empty());
    }

    #[test]
    fn a_reward_that_rises_while_nothing_else_does_is_hacked(
        seed: u64, noise in 0.0_f64..0.04, rise in 0.3_f64..0.6,
    ) {
        let found = run(seed, STEPS, noise, |part| RlStep { reward: 0.3 + rise * part, ..STILL });
        prop_assert_eq!(names(&found), ["reward_hacking"]);
    }

    #[test]
    fn held_out_problems_that_are_answered_worse_show_that_a_reward_is_hacked(
        seed: u64, noise in 0.0_f64..0.04,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut watch = Watch::new(STEPS);
        let mut found = vec![];
        for step in 1..=STEPS {
            let part = step as f64 / STEPS as f64;
            let reward = 0.2 + 0.6 * part + noise * chance(&mut rng);
            told(&mut watch, RlStep { reward, right: reward, ..STILL }, step);
            if step.is_multiple_of(20) {
                found.extend(evaluated(&mut watch, (200.0 * (0.9 - 0.6 * part)) as u64, 200, step));
            }
        }
        let names: Vec<_> = found.iter().map(|it| it.cause.rule).collect();
        prop_assert_eq!(names, ["reward_hacking"], "it is told once");
    }

    /// SEMANTICS 92.
    #[test]
    fn replies_that_become_short_are_noticed(
        seed: u64, noise in 0.0_f64..0.1, at in 0.1_f64..0.8, to in 0.1_f64..0.5,
    ) {
        let found = run(seed, STEPS, noise, |part| RlStep {
            length: if part < at { 100.0 } else { 100.0 * to },
            ..STILL
        });
        prop_assert_eq!(names(&found), ["length_collapse"]);
        prop_assert_eq!(found.len(), 1, "it is told once");
        prop_assert!(found[0].0 as f64 >= at * STEPS as f64);
        let longer = run(seed, STEPS, noise, |part| RlStep {
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
        let found = run(seed, STEPS, noise, |part| {
            let reward = match part < 0.06 {
                true => 0.4 - (0.4 - low) * part / 0.06,
                false => low + 0.5 * (part - 0.06),
            };
            RlStep { reward, right: reward, ..STILL }
        });
        prop_assert_eq!(names(&found), ["hockey_stick"]);
        // One that stays down has no handle.
        let found = run(seed, STEPS, noise, |part| {
            let reward = (0.4 - (0.4 - low) * part / 0.06).max(low);
            RlStep { reward, right: reward, ..STILL }
        });
        prop_assert_eq!(found, vec![]);
    }

    /// SEMANTICS 92.
    #[test]
    fn a_policy_that_is_certain_of_what_is_wrong_is_noticed(
        seed: u64, noise in 0.0_f64..0.04, right in 0.2_f64..0.8,
    ) {
        let falls = |right: f64| run(seed, STEPS, noise, move |part| RlStep {
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
        let all: Vec<RlStep> = (1..=STEPS).map(|step| RlStep {
            reward: 0.3 + 0.001 * step as f64 + 0.01 * chance(&mut rng),
            ..STILL
        }).collect();
        let (mut plain, mut repeated) = (Watch::new(STEPS), Watch::new(STEPS));
        for (step, at) in all.iter().zip(1_u64..) {
            let once = told(&mut plain, *step, at);
            prop_assert_eq!(&told(&mut repeated, *step, at), &once);
            for before in at.saturating_sub(back)..at {
                let again = all[before as usize];
                prop_assert_eq!(told(&mut repeated, again, before + 1), vec![]);
            }
        }
        prop_assert_eq!(memory(&plain), memory(&repeated));
    }
}

#[test]
fn a_sign_that_was_gone_is_told_again() {
    let short = |part: f64| (0.2..0.4).contains(&part) || (0.6..0.8).contains(&part);
    let found = run(1, STEPS, 0.01, |part| RlStep {
        length: if short(part) { 20.0 } else { 100.0 },
        ..STILL
    });
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn numbers_that_are_none_add_nothing() {
    let mut watch = Watch::new(STEPS);
    for step in 1..=STEPS {
        let none = RlStep {
            reward: f64::NAN,
            ..STILL
        };
        assert_eq!(told(&mut watch, none, step), []);
    }
    assert_eq!(evaluated(&mut watch, 0, 0, STEPS), []);
    assert_eq!(memory(&watch), memory(&Watch::new(STEPS)));
}

#[test]
fn a_copy_of_a_watch_goes_on_by_itself() {
    let mut watch = Watch::new(STEPS);
    told(&mut watch, STILL, 1);
    let mut copy = watch.clone();
    assert_eq!(memory(&copy), memory(&watch));
    told(&mut copy, STILL, 2);
    assert_ne!(memory(&copy), memory(&watch));
}

/// SEMANTICS 204.
#[test]
fn what_was_found_goes_on_until_it_was_gone_for_three_windows() {
    let mut watch = Watch::new(STEPS);
    let mut goes_on = vec![];
    for at in 1..=STEPS {
        let length = if (100..200).contains(&at) {
            30.0
        } else {
            100.0
        };
        let found = told(&mut watch, RlStep { length, ..STILL }, at);
        assert!(found.len() <= 1);
        let all: Vec<_> = watch.going_on(at).map(|it| it.cause.rule).collect();
        if all == ["length_collapse"] {
            goes_on.push(at);
        } else {
            assert_eq!(all.len(), 0);
        }
    }
    let window = 20;
    let (first, last) = (goes_on[0], goes_on[goes_on.len() - 1]);
    assert_eq!(
        goes_on.len() as u64,
        last - first + 1,
        "it does not come and go"
    );
    assert!((100..160).contains(&first), "{first}");
    assert!((200..=200 + 4 * window).contains(&last), "{last}");
    // A copy, with which a run goes on after a loss, knows it too.
    let copy = watch.clone();
    assert_eq!(copy.going_on(last).count(), watch.going_on(last).count());
    let losses = RunEvent::Losses(vec![Some(1.0), Some(f64::NAN)]);
    let mut watch = Watch::new(STEPS);
    assert_eq!(watch.observe(&losses, 1).len(), 1);
    assert_eq!(watch.going_on(1).count(), 1);
    assert!(
        watch
            .observe(&RunEvent::Losses(vec![Some(1.0), Some(1.0)]), 2)
            .is_empty()
    );
    assert_eq!(watch.going_on(2).count(), 0);
}

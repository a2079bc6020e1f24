//! Shares of sources.

use odeon_mesh::{DP, Mesh};
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::world::*;
use crate::plan::mixture::{WHOLE, next_of_equals, next_owed, pay, shares};
use crate::plan::*;

proptest! {
    #[test]
    fn shares_add_up(weights in prop::collection::vec(0.0f64..1e9, 1..300)) {
        let shares = shares(&weights);
        let sum: f64 = weights.iter().sum();
        prop_assume!(sum > 0.0);
        prop_assert_eq!(shares.iter().sum::<i64>(), WHOLE);
        for (weight, share) in weights.iter().zip(&shares) {
            prop_assert!((weight / sum * WHOLE as f64 - *share as f64).abs() <= 1.0 + 1e-6 * *share as f64);
            prop_assert!(*weight > 0.0 || *share == 0);
        }
    }

    #[test]
    fn nobody_is_ahead_or_behind_by_a_sample(
        weights in prop::collection::vec(0.0f64..1.0, 1..25), skew in 1i32..6,
    ) {
        let weights: Vec<f64> = weights.iter().map(|w| w.powi(skew)).collect();
        let shares = shares(&weights);
        prop_assume!(shares.iter().any(|share| *share > 0));
        let mut owed = vec![0; weights.len()];
        for _ in 0..2000 {
            let giver = next_of_equals(&owed, &shares).unwrap();
            pay(&mut owed, &shares, giver, 1);
            prop_assert_eq!(owed.iter().sum::<i64>(), 0);
            prop_assert!(owed.iter().all(|owed| owed.abs() < WHOLE), "{owed:?}");
        }
    }

    #[test]
    fn by_tokens_nobody_is_ahead_by_more_than_a_sample(
        weights in prop::collection::vec(0.01f64..1.0, 2..12),
        lengths in prop::collection::vec(1u32..1000, 500),
    ) {
        let shares = shares(&weights);
        let mut owed = vec![0; weights.len()];
        for length in lengths {
            let giver = next_owed(&owed, &shares).unwrap();
            pay(&mut owed, &shares, giver, length);
            prop_assert_eq!(owed.iter().sum::<i64>(), 0);
            prop_assert!(owed.iter().all(|owed| *owed >= -1000 * WHOLE));
            // Behind by the harmonic sum of samples at most, as water in cups.
            prop_assert!(owed.iter().all(|owed| *owed <= 4000 * WHOLE), "{owed:?}");
        }
    }

    #[test]
    fn over_steps_shares_are_exact_within_a_sample(
        seed in any::<u64>(), weights in prop::collection::vec(1u32..20, 2..6),
    ) {
        let world = World { seed, cells: vec![3; weights.len()], samples: 9, length: 300 };
        let mut mixture = Mixture::even(world.shapes().iter().map(|shape| shape.name.clone()));
        mixture.by = Unit::Samples;
        for (at, weight) in weights.iter().enumerate() {
            mixture.sources.get_mut(&format!("s{at}")).unwrap().weight = Schedule::Constant(f64::from(*weight));
        }
        let spec = PlanSpec::mix(mixture, Budget::Samples(13));
        let plans = world.plans(&mut world.planning(&spec, &Mesh::new([(DP, 2)]).unwrap()), 60, 1);
        let mut given = vec![0.0; weights.len()];
        for plan in plans {
            for id in plan.sample_set() {
                given[usize::from(id.source.0)] += 1.0;
            }
            let all: f64 = given.iter().sum();
            let sum: u32 = weights.iter().sum();
            for (given, weight) in given.iter().zip(&weights) {
                prop_assert!((given - all * f64::from(*weight) / f64::from(sum)).abs() < 1.0 + 1e-6);
            }
        }
    }
}

fn counts(plans: &[StepPlan]) -> Vec<BTreeMap<u16, u32>> {
    let count = |plan: &StepPlan| {
        let mut counts = BTreeMap::new();
        for id in plan.sample_set() {
            *counts.entry(id.source.0).or_default() += 1;
        }
        counts
    };
    plans.iter().map(count).collect()
}

#[test]
fn a_mixture_changes_when_its_schedule_does() {
    let world = World {
        seed: 5,
        cells: vec![9, 9],
        samples: 30,
        length: 100,
    };
    let mut mixture = Mixture::even(["s0", "s1"]);
    mixture.by = Unit::Samples;
    for (name, points) in [("s0", [(0, 0.9), (10, 0.1)]), ("s1", [(0, 0.1), (10, 0.9)])] {
        mixture.sources.get_mut(name).unwrap().weight = Schedule::Stages(points.to_vec());
    }
    let spec = PlanSpec::mix(mixture, Budget::Samples(100));
    let mut planning = world.planning(&spec, &Mesh::new([(DP, 2)]).unwrap());
    let plans = world.plans(&mut planning, 10, 1);
    assert!(counts(&plans).iter().all(|c| (89..=91).contains(&c[&0])));
    let plans = world.plans(&mut planning, 10, 1);
    assert!(counts(&plans).iter().all(|c| (9..=11).contains(&c[&0])));
}

#[test]
fn when_a_source_ends_its_weight_goes_to_the_others_or_the_run_ends() {
    let world = World {
        seed: 6,
        cells: vec![4, 4, 4],
        samples: 30,
        length: 100,
    };
    let mut mixture = Mixture::even(["s0", "s1", "s2"]);
    mixture.by = Unit::Samples;
    mixture.sources.get_mut("s0").unwrap().epochs = Some(1);
    mixture.sources.get_mut("s1").unwrap().weight = Schedule::Constant(3.0);
    let mut spec = PlanSpec::mix(mixture, Budget::Samples(40));
    let mesh = Mesh::new([(DP, 2)]).unwrap();
    let plans = world.plans(&mut world.planning(&spec, &mesh), 60, 1);
    assert_eq!(plans.len(), 60);
    let last = &counts(&plans)[59];
    assert_eq!((last.get(&0), last[&1], last[&2]), (None, 30, 10));
    spec.mixture.at_end = AtEnd::Stop;
    let mut planning = world.planning(&spec, &mesh);
    let stopped = world.plans(&mut planning, 60, 1);
    assert!(stopped.len() < 30);
    let of_it: u32 = counts(&stopped).iter().filter_map(|c| c.get(&0)).sum();
    let all: u32 = counts(&plans).iter().filter_map(|c| c.get(&0)).sum();
    assert_eq!(of_it, all);
    let steps = stopped.len() as u64;
    assert_eq!(planning.plan(), Err(Waiting::Ended { steps }));
}

#[test]
fn schedules_say_a_number_for_each_step() {
    let stages = Schedule::Stages(vec![(2, 1.0), (5, 3.0)]);
    let linear = Schedule::Linear(vec![(2, 1.0), (6, 3.0)]);
    let at = |schedule: &Schedule| [0, 2, 4, 5, 9].map(|step| schedule.at(step));
    assert_eq!(at(&stages), [1.0, 1.0, 1.0, 3.0, 3.0]);
    assert_eq!(at(&linear), [1.0, 1.0, 2.0, 2.5, 3.0]);
    assert_eq!(stages.largest(0, 5), 1.0);
    assert_eq!(stages.largest(0, 6), 3.0);
}

#[test]
fn a_plan_is_refused_with_its_field() {
    let shapes = |names: &[&str]| -> Vec<SourceShape> {
        let shape = |name: &&str| SourceShape {
            name: (*name).to_owned(),
            cells: 1,
        };
        names.iter().map(shape).collect()
    };
    let mesh = || Mesh::new([(DP, 1)]).unwrap();
    let spec = || PlanSpec::mix(Mixture::even(["a", "b"]), Budget::Samples(2));
    let refused = |spec: PlanSpec, names: &[&str]| {
        let error = Planning::new(spec, &shapes(names), mesh()).unwrap_err();
        error.to_string()
    };
    assert!(refused(spec(), &["a"]).contains("`b`"));
    assert!(refused(spec(), &["a", "b", "c"]).contains("`c`"));
    assert!(refused(spec().broadcast_at(DP), &["a", "b"]).contains("Data"));
    let mut wrong = spec();
    wrong.microbatch.tokens = 0;
    assert!(refused(wrong, &["a", "b"]).contains("`microbatch.tokens`"));
    let mut wrong = spec();
    wrong.curriculum = Some(Curriculum {
        tokens: Schedule::Linear(vec![(4, 1.0), (4, 2.0)]),
    });
    assert!(refused(wrong, &["a", "b"]).contains("`curriculum.tokens`"));
    let mut state = Planning::new(spec(), &shapes(&["a", "b"]), mesh())
        .unwrap()
        .state();
    state.sources.swap(0, 1);
    let error = Planning::at(spec(), &shapes(&["a", "b"]), mesh(), state);
    assert!(matches!(error, Err(PlanError::State(_))));
}

#[test]
fn a_plan_reads_as_data() {
    let json = r#"{
        "step": { "tokens": 4096 },
        "mixture": { "sources": {
            "web": { "weight": { "stages": [[0, 0.9], [100, 0.1]] } },
            "ocr": { "weight": { "constant": 1 }, "epochs": 2 }
        } },
        "contexts": [{ "tokens": 4096, "share": 0.75 }, { "tokens": 32768, "share": 0.25 }],
        "distribute": { "axis": "data", "group": 128 },
        "balance": "karmarkar_karp",
        "encoder": { "group": 256 },
        "broadcast_at": ["tensor"]
    }"#;
    let spec: PlanSpec = serde_json::from_str(json).unwrap();
    assert_eq!(spec.balance, Method::KarmarkarKarp);
    assert_eq!(spec.encoder.unwrap().method, Method::Greedy);
    let bytes = odeon::codec::encode(&spec).unwrap();
    let decoded: PlanSpec = odeon::codec::decode(&bytes).unwrap();
    assert_eq!(decoded, spec);
    assert!(serde_json::from_str::<PlanSpec>(&json.replace("balance", "ballance")).is_err());
}

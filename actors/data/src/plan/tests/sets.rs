//! The sample set of a step, and what it does not depend on.

use odeon_mesh::{DP, Mesh};
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::world::*;
use crate::plan::*;
use crate::sample::{SampleId, SourceNumber};

fn world_and_spec() -> impl Strategy<Value = (World, PlanSpec)> {
    worlds().prop_flat_map(|world| {
        let sources = world.cells.len();
        (Just(world), specs(sources))
    })
}

fn sets(plans: &[StepPlan]) -> Vec<Vec<SampleId>> {
    plans.iter().map(StepPlan::sample_set).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// SEMANTICS 104.
    #[test]
    fn sets_depend_on_no_tree_balance_cost_or_arrival(
        (world, spec) in world_and_spec(), trees in (trees(), trees()),
        methods in (methods(), methods()), orders in any::<(u64, u64)>(),
    ) {
        let one = spec.clone().balance(methods.0);
        let mut other = spec.balance(methods.1).encoder(EncoderSpec::default()).cost(Quadratic { linear: 0.0, square: 3.0 });
        other.distribute = Distribute { axis: Axis::World, group: Some(3) };
        other.ahead = Ahead { steps: 9, cells: 7 };
        let first = world.plans(&mut world.planning(&one, &trees.0), 25, orders.0);
        let second = world.plans(&mut world.planning(&other, &trees.1), 25, orders.1);
        prop_assert_eq!(sets(&first), sets(&second));
        for (step, plan) in first.iter().enumerate() {
            prop_assert_eq!(plan.step, step as u64);
            prop_assert_eq!(plan.samples as usize, plan.sample_set().len());
        }
    }

    #[test]
    fn a_state_goes_on_with_the_same_plans(
        (world, spec) in world_and_spec(), mesh in trees(), at in 0usize..12, orders in any::<(u64, u64)>(),
    ) {
        let mut planning = world.planning(&spec, &mesh);
        let before = world.plans(&mut planning, at, orders.0).len();
        // Also in the middle of a step that waits.
        let _ = planning.plan();
        let mut planning = world.planning(&spec, &mesh);
        world.plans(&mut planning, before, orders.0);
        let _ = planning.clone().plan();
        let state = planning.state();
        let json = serde_json::to_string(&state).unwrap();
        let bytes = odeon::codec::encode(&state).unwrap();
        let read: PlanState = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(&read, &state);
        let decoded: PlanState = odeon::codec::decode(&bytes).unwrap();
        prop_assert_eq!(&decoded, &state);
        let on = world.plans(&mut planning, 12, orders.0);
        let mut again = Planning::at(spec, &world.shapes(), mesh, read).unwrap();
        let again = world.plans(&mut again, 12, orders.1);
        prop_assert_eq!(on, again);
    }

    #[test]
    fn ranks_may_change_in_mid_run(
        (world, spec) in world_and_spec(), trees in (trees(), trees()), at in 0usize..10,
    ) {
        let whole = world.plans(&mut world.planning(&spec, &trees.0), 20, 1);
        // While it runs.
        let mut planning = world.planning(&spec, &trees.0);
        let mut elastic = world.plans(&mut planning, at, 2);
        planning.place_on(trees.1.clone());
        let state = planning.state();
        elastic.extend(world.plans(&mut planning, 20 - elastic.len(), 3));
        prop_assert_eq!(sets(&whole), sets(&elastic));
        // And from a checkpoint.
        let mut begun = Planning::at(spec, &world.shapes(), trees.1.clone(), state).unwrap();
        let from = begun.step() as usize;
        let rest = world.plans(&mut begun, 20 - from, 4);
        prop_assert_eq!(&sets(&whole)[from..], &sets(&rest)[..]);
        prop_assert_eq!(&elastic[from..], &rest[..]);
        for plan in &elastic[from..] {
            prop_assert_eq!(plan.buckets.len(), trees.1.size(DP));
        }
    }

    #[test]
    fn every_sample_of_every_pass_comes_once(
        (world, mut spec) in world_and_spec(), mesh in trees(), order in any::<u64>(),
    ) {
        for source in spec.mixture.sources.values_mut() {
            source.epochs = Some(source.epochs.unwrap_or(2));
        }
        spec.mixture.at_end = AtEnd::Others;
        let mut planning = world.planning(&spec, &mesh);
        let plans = world.plans(&mut planning, 100_000, order);
        let steps = plans.len() as u64;
        prop_assert_eq!(planning.plan(), Err(Waiting::Ended { steps }));
        prop_assert!(planning.wants().is_empty());
        let first = CellName { source: SourceNumber(0), epoch: 0, cell: 0 };
        prop_assert_eq!(planning.hear(world.cell(first)), Ok(Heard::Passed));
        let mut expected = vec![];
        for (at, cells) in (0..).zip(&world.cells) {
            let epochs = spec.mixture.sources[&format!("s{at}")].epochs.unwrap();
            for (epoch, cell) in (0..epochs).flat_map(|epoch| (0..*cells).map(move |c| (epoch, c))) {
                let name = CellName { source: SourceNumber(at), epoch, cell };
                expected.extend(world.cell(name).samples.into_iter().map(|sample| sample.id));
            }
        }
        let mut given: Vec<SampleId> = sets(&plans).concat();
        given.sort_unstable();
        prop_assert_eq!(given, expected);
    }

    #[test]
    fn steps_keep_to_their_budget((world, spec) in world_and_spec(), mesh in trees()) {
        let mut planning = world.planning(&spec, &mesh);
        // One more than is looked at shows that the data did not end with the last.
        let plans = world.plans(&mut planning, 26, 7);
        let ended = plans.len() < 26;
        for (at, plan) in plans.iter().take(25).enumerate() {
            let last = ended && at + 1 == plans.len();
            match spec.step {
                Budget::Samples(samples) => {
                    prop_assert!(plan.samples == samples || (last && plan.samples < samples));
                }
                Budget::Tokens(tokens) => prop_assert!(plan.tokens <= tokens || plan.samples == 1),
            }
        }
    }

    #[test]
    fn what_is_passed_is_never_needed(
        (world, spec) in world_and_spec(), mesh in trees(), back in 0usize..4,
    ) {
        let mut planning = world.planning(&spec, &mesh);
        let mut plans = vec![];
        let mut said = vec![];
        for _ in 0..15 {
            let more = world.plans(&mut planning, 1, plans.len() as u64);
            if more.is_empty() {
                break;
            }
            plans.extend(more);
            let step = plans.len().saturating_sub(back);
            said.push((step, planning.passed(step as u64)));
            for name in planning.wants() {
                let passed = &said.last().unwrap().1;
                let own = passed.iter().find(|passed| passed.below.source == name.source);
                prop_assert!(own.is_some_and(|own| own.below <= name));
            }
        }
        for (step, passed) in said {
            for id in sets(&plans[step..]).concat() {
                let own = &passed[usize::from(id.source.0)];
                prop_assert!(CellName::of(id) >= own.below || own.kept.contains(&id), "{id:?} {own:?}");
            }
            let kept: usize = passed.iter().map(|passed| passed.kept.len()).max().unwrap();
            prop_assert!(kept <= spec.waiting as usize);
        }
    }

    #[test]
    fn lengths_follow_the_curriculum(world in worlds(), waiting in 1u32..2000) {
        // With room for all to wait, none is over the bound until the order ends.
        let sources = world.shapes();
        let mut spec = PlanSpec::mix(Mixture::even(sources.iter().map(|s| &*s.name)), Budget::Samples(3));
        for source in spec.mixture.sources.values_mut() {
            source.weight = Schedule::Constant(1.0);
        }
        spec.waiting = waiting;
        spec.curriculum = Some(Curriculum { tokens: Schedule::Linear(vec![(0, f64::from(world.length / 8 + 1)), (30, 600.0)]) });
        let mut planning = world.planning(&spec, &Mesh::new([(DP, 2)]).unwrap());
        let mut over = 0;
        for plan in world.plans(&mut planning, 40, 3) {
            let bound = plan.length_max.unwrap();
            let ids: BTreeSet<SampleId> = plan.sample_set().into_iter().collect();
            for id in ids {
                let sample = world.cell(CellName::of(id)).samples.into_iter().find(|s| s.id == id).unwrap();
                over += u32::from(sample.tokens > bound);
            }
        }
        let longest = planning.state().sources.iter().map(|s| s.waiting.len()).max().unwrap();
        prop_assert!(longest <= waiting as usize);
        if waiting > 1000 {
            prop_assert_eq!(over, 0);
        }
    }
}

#[test]
fn contexts_have_their_shares_of_steps() {
    let world = World {
        seed: 3,
        cells: vec![40, 40],
        samples: 50,
        length: 600,
    };
    let mut spec = PlanSpec::mix(Mixture::even(["s0", "s1"]), Budget::Tokens(5000));
    // A quarter of the samples is uniform up to 600, the rest below 75: about 0.7 of the tokens are
    // in samples over 100.
    spec.contexts = vec![
        ContextSpec {
            tokens: 100,
            share: 0.34,
        },
        ContextSpec {
            tokens: 600,
            share: 0.66,
        },
    ];
    let mut planning = world.planning(&spec, &Mesh::new([(DP, 2)]).unwrap());
    let plans = world.plans(&mut planning, 100, 5);
    let short: Vec<&StepPlan> = plans.iter().filter(|plan| plan.cap_tokens == 100).collect();
    assert!((32..=36).contains(&short.len()), "{}", short.len());
    for plan in plans {
        for id in plan.sample_set() {
            let cell = world.cell(CellName::of(id));
            let sample = cell.samples.into_iter().find(|s| s.id == id).unwrap();
            assert_eq!(sample.tokens <= 100, plan.cap_tokens == 100);
        }
    }
}

#[test]
fn samples_that_press_get_steps_whatever_the_shares() {
    let world = World {
        seed: 4,
        cells: vec![40],
        samples: 50,
        length: 600,
    };
    let mut spec = PlanSpec::mix(Mixture::even(["s0"]), Budget::Samples(20));
    // Long samples are a fifth, and get a thousandth of the steps.
    spec.contexts = vec![
        ContextSpec {
            tokens: 100,
            share: 0.999,
        },
        ContextSpec {
            tokens: 600,
            share: 0.001,
        },
    ];
    spec.waiting = 100;
    let mut planning = world.planning(&spec, &Mesh::new([(DP, 2)]).unwrap());
    let plans = world.plans(&mut planning, 100, 5);
    let long = plans.iter().filter(|plan| plan.cap_tokens == 600).count();
    assert!((10..=25).contains(&long), "{long}");
}

#[test]
fn a_source_without_samples_is_told() {
    let spec = PlanSpec::mix(Mixture::even(["s0"]), Budget::Samples(2));
    let shape = SourceShape {
        name: "s0".into(),
        cells: 2,
    };
    let mut planning = Planning::new(spec, &[shape], Mesh::new([(DP, 1)]).unwrap()).unwrap();
    for cell in 0..2 {
        let name = CellName {
            source: SourceNumber(0),
            epoch: 0,
            cell,
        };
        assert_eq!(planning.plan(), Err(Waiting::Cell(name)));
        planning.hear(CellMeta::of(name, vec![])).unwrap();
    }
    assert_eq!(planning.plan(), Err(Waiting::Barren(SourceNumber(0))));
}

#[test]
fn cells_that_lie_are_refused() {
    let spec = PlanSpec::mix(Mixture::even(["s0"]), Budget::Samples(2));
    let world = World {
        seed: 1,
        cells: vec![2],
        samples: 4,
        length: 10,
    };
    let mut planning = world.planning(&spec, &Mesh::new([(DP, 1)]).unwrap());
    let name = planning.wants()[0];
    let good = world.cell(name);
    let mut twice = good.clone();
    twice.samples.push(good.samples[0].clone());
    assert!(matches!(
        planning.hear(twice),
        Err(CellError::Stranger { .. })
    ));
    let mut long = good.clone();
    long.samples[0].tokens = u32::MAX;
    assert!(matches!(planning.hear(long), Err(CellError::Long { .. })));
    let mut strange = good.clone();
    strange.cell = 9;
    assert!(matches!(
        planning.hear(strange),
        Err(CellError::Unknown { .. })
    ));
    assert_eq!(planning.wants()[0], name);
    assert_eq!(planning.hear(good.clone()), Ok(Heard::New));
    assert_eq!(planning.hear(good), Ok(Heard::Known));
    let mut late = name;
    late.epoch = 40;
    assert_eq!(planning.hear(world.cell(late)), Ok(Heard::Far));
    assert_ne!(planning.wants().first(), Some(&name));
}

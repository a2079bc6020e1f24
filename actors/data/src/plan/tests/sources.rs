//! Loaders of sources: how many, and when.

use odeon_mesh::{DP, Mesh};
use proptest::prelude::*;

use super::world::World;
use crate::plan::*;
use crate::sample::SourceNumber;

fn profile(source: u16, rate: f64, work: f64, memory: u64) -> Profile {
    Profile {
        source: SourceNumber(source),
        work_seconds: work,
        transfer_seconds: work / 10.0,
        memory_fixed: memory,
        memory_per_thread: memory / 4,
        samples_per_second: rate,
    }
}

proptest! {
    #[test]
    fn loaders_keep_their_caps_and_have_every_source(
        sources in prop::collection::vec((0.0f64..400.0, 0.0f64..0.5, 1u64..900), 1..60),
    ) {
        let caps = LoaderCaps { threads: 8, memory: 2000, fill: 0.8 };
        let profiles: Vec<Profile> = (0..).zip(&sources)
            .map(|(at, (rate, work, memory))| profile(at, *rate, *work, *memory))
            .collect();
        let loaders = partition(&profiles, &caps).unwrap();
        for profile in &profiles {
            let parts: Vec<(Part, u32)> = loaders.iter()
                .flat_map(|loader| loader.parts.iter().map(|part| (*part, loader.threads)))
                .filter(|(part, _)| part.source == profile.source)
                .collect();
            let mut shards: Vec<u32> = parts.iter().map(|(part, _)| part.shard).collect();
            shards.sort_unstable();
            prop_assert_eq!(shards, (0..parts[0].0.shards).collect::<Vec<_>>());
            let threads: u32 = parts.iter().map(|(_, threads)| threads).sum();
            prop_assert!(f64::from(threads) * caps.fill >= profile.busy() - 1e-9);
        }
        for loader in &loaders {
            prop_assert!(loader.threads <= caps.threads && loader.memory <= caps.memory);
        }
        // Loaders that hold several sources have room for what they read together.
        for loader in loaders.iter().filter(|loader| loader.parts.len() > 1) {
            let busy: f64 = loader.parts.iter().map(|part| profiles[usize::from(part.source.0)].busy()).sum();
            prop_assert!(busy <= f64::from(loader.threads) * caps.fill + 1e-9);
        }
    }

    #[test]
    fn a_steady_demand_settles(demand in 0.0f64..50.0, shards in 1u32..64, noise in 0.0f64..0.3) {
        let mut scaling = Scaling::new(ScalingSpec::default(), &[(shards, Some(10.0))]);
        let mut changes = vec![];
        for step in 0..1500u32 {
            // Swings about the demand, each hundred steps to the other side.
            let swing = if step / 100 % 2 == 0 { 1.0 + noise } else { 1.0 - noise };
            let drawn = (demand * 10.0 * swing).round() as u32;
            for change in scaling.step(&[drawn], &[demand * 10.0]) {
                changes.push((step, change.shards));
            }
        }
        // One change up or down to where it stays, and at most one more while the mean settles.
        prop_assert!(changes.len() <= 2, "{changes:?}");
        prop_assert!(changes.iter().all(|(step, _)| *step < 400), "{changes:?}");
        let has = f64::from(scaling.shards()[0]);
        prop_assert!(demand * (1.0 - noise) <= 0.85 * has + 1.0);
    }

    #[test]
    fn dealing_keeps_what_was_dealt(
        changes in prop::collection::vec((1u32..40, prop::collection::vec(0u32..9, 1..9)), 0..6),
        cells in 1u32..12,
    ) {
        let name = |at: u32| CellName { source: SourceNumber(0), epoch: at / cells, cell: at % cells };
        let mut dealing = Dealing::around(vec![0, 1, 2]);
        let mut at = 0;
        for (more, loaders) in changes {
            let before: Vec<u32> = (0..at + more).map(|cell| dealing.loader(name(cell))).collect();
            at += more;
            dealing.redeal(name(at), loaders.clone());
            let after: Vec<u32> = (0..at).map(|cell| dealing.loader(name(cell))).collect();
            prop_assert_eq!(before, after);
            let around = |cell: u32| loaders[name(cell).cell as usize % loaders.len()];
            prop_assert!((at..at + 50).all(|cell| dealing.loader(name(cell)) == around(cell)));
            prop_assert_eq!(dealing.loaders_from(name(at)), loaders.into_iter().collect());
        }
        let mut short = dealing.clone();
        short.forget(name(at));
        prop_assert!((at..at + 99).all(|cell| dealing.loader(name(cell)) == short.loader(name(cell))));
    }

    #[test]
    fn no_loader_is_busier_than_it_may_be_where_that_can_be_helped(
        busy in prop::collection::vec(0.0f64..6.0, 1..30), threads in 1u32..4, loaders in 1u32..5,
    ) {
        let caps = LoaderCaps { threads, ..LoaderCaps::default() };
        let around = (0..busy.len() as u32).map(|source| vec![source % loaders]);
        let mut roster = Roster::new(around.collect());
        for (source, busy_of) in busy.iter().enumerate() {
            let shards = (busy_of / (f64::from(threads) * caps.fill)).ceil() as u32;
            roster.reshard(source, shards, &busy, &caps);
            prop_assert_eq!(roster.sources()[source].len() as u32, shards.max(1));
        }
        roster.relieve(&busy, &caps);
        for loader in roster.loaders() {
            prop_assert!(roster.load(loader, &busy) <= f64::from(threads) + 1e-9);
        }
        for (at, own) in roster.sources().iter().enumerate() {
            let mut once = own.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), own.len(), "source {} twice with a loader", at);
        }
        // And back: each source keeps one of those that it had.
        let before = roster.clone();
        for source in 0..busy.len() {
            roster.reshard(source, 1, &busy, &caps);
            prop_assert!(before.sources()[source].contains(&roster.sources()[source][0]));
        }
    }
}

#[test]
fn light_sources_share_a_loader_and_heavy_ones_have_several() {
    let caps = LoaderCaps::default();
    let gib = 1 << 30;
    let mut profiles: Vec<Profile> = (0..300)
        .map(|at| profile(at, 1.0, 0.001, gib / 100))
        .collect();
    profiles.push(profile(300, 400.0, 0.05, gib));
    let loaders = partition(&profiles, &caps).unwrap();
    let heavy: Vec<_> = loaders
        .iter()
        .filter(|loader| loader.parts[0].source == SourceNumber(300))
        .collect();
    // 400 samples of 55 ms keep 22 threads busy; at 0.8 that is 28, which is 4 loaders of 7.
    assert_eq!((heavy.len(), heavy[0].threads), (4, 7));
    assert!(loaders.len() - heavy.len() <= 2, "{}", loaders.len());
    let error = partition(&[profile(0, 1.0, 1.0, 8 * gib)], &caps).unwrap_err();
    assert!(matches!(error, PartitionError::Memory { .. }));
}

#[test]
fn loaders_come_before_the_mixture_turns_and_go_after() {
    let world = World {
        seed: 8,
        cells: vec![500, 500],
        samples: 40,
        length: 50,
    };
    let mut mixture = Mixture::even(["s0", "s1"]);
    mixture.by = Unit::Samples;
    for (name, points) in [
        ("s0", [(0, 0.9), (300, 0.1)]),
        ("s1", [(0, 0.1), (300, 0.9)]),
    ] {
        mixture.sources.get_mut(name).unwrap().weight = Schedule::Stages(points.to_vec());
    }
    let spec = PlanSpec::mix(mixture, Budget::Samples(100));
    let mut planning = world.planning(&spec, &Mesh::new([(DP, 2)]).unwrap());
    // A loader gives 20 samples in the time of a step.
    let mut scaling = Scaling::new(ScalingSpec::default(), &[(8, Some(20.0)), (1, Some(20.0))]);
    let mut told = vec![];
    for step in 0..600 {
        let plan = &world.plans(&mut planning, 1, step)[0];
        let mut drawn = [0, 0];
        for id in plan.sample_set() {
            drawn[usize::from(id.source.0)] += 1;
        }
        let coming = planning.coming(50);
        for change in scaling.step(&drawn, &coming) {
            told.push((step, change.source.0, change.shards));
        }
    }
    let [(up, 1, 8), (down, 0, 1)] = told[..] else {
        panic!("{told:?}");
    };
    assert!((245..=300).contains(&up) && down > 350, "{told:?}");
}

#[test]
fn loaders_follow_what_is_measured_and_what_is_coming() {
    let caps = LoaderCaps {
        threads: 1,
        ..LoaderCaps::default()
    };
    let roster = Roster::new(vec![vec![0], vec![0], vec![0]]);
    let mut scaler = Scaler::new(ScalingSpec::default(), caps, roster, 1.0);
    let mut look = Look {
        drawn: vec![vec![10, 10, 10]; 10],
        coming: vec![10.0, 10.0, 10.0],
        work_seconds: vec![None; 3],
        step_seconds: None,
    };
    // Nothing is known, and nothing changes.
    for _ in 0..20 {
        assert_eq!(scaler.look(&look), []);
    }
    // All three together are more than a thread has time for; no single one is.
    look.work_seconds = vec![Some(0.05), Some(0.04), Some(0.03)];
    assert_eq!(scaler.look(&look), [SourceNumber(2)]);
    assert_eq!(scaler.roster().sources(), [vec![0], vec![0], vec![1]]);
    assert_eq!(scaler.look(&look), []);
    // The mixture will want much of the second.
    look.coming[1] = 60.0;
    assert!(scaler.look(&look).contains(&SourceNumber(1)));
    let sources = scaler.roster().sources();
    assert_eq!(sources[1].len(), 4, "{sources:?}");
    // Steps take ten times as long, so one is enough for each, in time.
    look.step_seconds = Some(10.0);
    look.coming[1] = 10.0;
    for _ in 0..20 {
        scaler.look(&look);
    }
    let sources = scaler.roster().sources();
    assert!(sources.iter().all(|it| it.len() == 1), "{sources:?}");
}

//! Tests of the mapping.

use std::hash::{DefaultHasher, Hash, Hasher};

use odeon_mesh::{DP, PP, TP};
use odeon_topology::{DeviceModel, Link, LinkKind};
use proptest::prelude::*;

use super::*;

mod brute;
mod errors;

/// 1024 sequences of 1024 + 1024 tokens: HybridFlow's setting.
fn batch() -> Batch {
    Batch::new(1024, 1024, 1024)
}

fn device(flops: f64, memory_bytes: u64, memory_bytes_per_second: f64) -> DeviceModel {
    DeviceModel {
        flops,
        memory_bytes,
        memory_bytes_per_second,
        // 200 Gbit/s for a whole node of eight.
        network_bytes_per_second: 25e9 / 8.0,
        ..DeviceModel::a100()
    }
}

fn nvlink(bytes_per_second: f64) -> Link {
    Link::new(LinkKind::Nvlink, bytes_per_second)
}

fn a100() -> DeviceModel {
    device(312e12, 80_000_000_000, 2.0e12)
}

/// Machines of 8 with NVLink and 200 Gbit/s between them: HybridFlow's setting.
fn pool(devices: u32) -> Pool {
    Pool::new("a", a100(), devices)
}

fn seven(name: &str) -> Model {
    Model::new(name, 7_000_000_000, 32, 4096)
}

fn thirteen(name: &str) -> Model {
    Model::new(name, 13_000_000_000, 40, 5120)
}

/// PPO with four models of a size, 8 updates an iteration.
fn ppo(model: impl Fn(&str) -> Model) -> Workload {
    Workload::new(["actor", "critic", "reference", "reward"].map(model))
        .stage("generate", [Task::generate("actor", batch())])
        .stage(
            "prepare",
            ["critic", "reference", "reward"].map(|name| Task::forward(name, batch())),
        )
        .stage(
            "train",
            ["actor", "critic"].map(|name| Task::train(name, batch(), 8)),
        )
}

#[track_caller]
fn mapped(workload: &Workload, pools: &[Pool]) -> Mapping {
    let mapping = map(workload, pools, &Analytic::default()).unwrap_or_else(|e| panic!("{e}"));
    check_valid(&mapping, workload, pools);
    mapping
}

/// Asserts what holds of every mapping.
#[track_caller]
fn check_valid(mapping: &Mapping, workload: &Workload, pools: &[Pool]) {
    let mut names: Vec<&str> = workload.models.iter().map(|m| m.name.as_str()).collect();
    names.sort_unstable();
    let placed = mapping.sets.iter().flat_map(|set| &set.models);
    let mut found: Vec<&str> = placed.map(|placed| placed.model.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, names, "each model is in one set");

    for set in &mapping.sets {
        let pool = pools.iter().find(|pool| pool.name == set.pool).unwrap();
        let (first, end) = (set.first_device, set.first_device + set.devices);
        assert!(end <= pool.devices);
        let node = pool.device.per_node;
        if set.devices < node {
            assert_eq!(first / node, (end - 1) / node, "it straddles two nodes");
        } else {
            assert_eq!((first % node, end % node), (0, 0), "it fills its nodes");
        }
        let overlaps = |other: &&Set| {
            other.pool == set.pool
                && other.first_device < end
                && first < other.first_device + other.devices
        };
        assert_eq!(mapping.sets.iter().filter(overlaps).count(), 1);
        assert!(set.peak_bytes() <= set.usable_bytes);
        assert!(set.usable_bytes <= pool.device.memory_bytes);
        for placed in &set.models {
            let model = workload.models.iter().find(|m| m.name == placed.model);
            let devices = set.devices as usize;
            assert_eq!(placed.mesh.len(), devices);
            assert!(placed.mesh.size(TP) <= node as usize);
            assert!(placed.mesh.size(PP) <= model.unwrap().layers as usize);
            if let Some(generation) = &placed.generation {
                assert_eq!(generation.len(), devices);
                // No more shards than in training.
                assert!(generation.size(DP) >= placed.mesh.size(DP));
            }
        }
    }
    for (at, (_, seconds)) in mapping.stages.iter().enumerate() {
        let sums = mapping
            .sets
            .iter()
            .map(|set| set.models.iter().map(|placed| placed.seconds[at]).sum());
        assert_close(sums.fold(0.0, f64::max), *seconds);
    }
    let total: f64 = mapping.stages.iter().map(|(_, seconds)| seconds).sum();
    assert_close(total, mapping.seconds);
}

/// Equal but for rounding in another order.
#[track_caller]
fn assert_close(a: f64, b: f64) {
    assert!(
        (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
        "{a} is not {b}"
    );
}

#[test]
fn few_devices_are_shared_by_all_models_and_many_are_split() {
    for model in [seven, thirteen] {
        for devices in [16, 32, 64] {
            let mapping = mapped(&ppo(model), &[pool(devices)]);
            assert_eq!(mapping.sets.len(), 1, "{devices} devices\n{mapping}");
        }
        let mapping = mapped(&ppo(model), &[pool(128)]);
        assert!(mapping.sets.len() > 1, "{mapping}");
        assert_ne!(mapping.set_of("actor"), mapping.set_of("critic"));
    }
}

#[test]
fn generation_takes_smaller_tensor_groups_than_training() {
    let check = |model: fn(&str) -> Model, generation: usize| {
        let mapping = mapped(&ppo(model), &[pool(16)]);
        let actor = mapping.of("actor").unwrap();
        let tensor = actor.generation.as_ref().map(|mesh| mesh.size(TP));
        assert_eq!((actor.mesh.size(TP), tensor), (8, Some(generation)));
    };
    check(seven, 2);
    check(thirteen, 4);
}

/// The paper's sweep: trained as 1-8-2, best generation at 2 (7B) and 4 (13B). Smaller groups have
/// less room for the cache and read more weights; larger ones send more.
#[test]
fn the_papers_sweep_of_generation_groups_has_its_optimum_inside() {
    let trained = Degrees {
        data: 2,
        tensor: 8,
        pipeline: 1,
    };
    let check = |model: fn(&str) -> Model, best: u32| {
        for hop in [6e-6, 8e-6, 16e-6] {
            let cost = Analytic {
                hop_seconds: hop,
                ..Analytic::default()
            };
            let (workload, pool) = (ppo(model), pool(16));
            let (actor, task) = (&workload.models[0], &workload.stages[0].tasks[0]);
            let resident = cost.resident_bytes(actor, Role::Trained, trained)
                + cost.resident_bytes(actor, Role::Frozen, trained);
            let free = cost.usable_bytes(&pool.device) - resident;
            let seconds = |tensor| {
                let parallel = Degrees {
                    data: 16 / tensor,
                    tensor,
                    pipeline: 1,
                };
                let run = Run {
                    model: actor,
                    task,
                    pool: &pool,
                    parallel,
                };
                cost.generation(&run, trained, free).seconds
            };
            let least = [1, 2, 4, 8]
                .into_iter()
                .min_by(|&a, &b| seconds(a).total_cmp(&seconds(b)));
            assert_eq!(least, Some(best), "{hop} s a hop");
        }
    };
    check(seven, 2);
    check(thirteen, 4);
}

#[test]
fn generation_goes_to_bandwidth_and_training_to_arithmetic() {
    let wide = device(100e12, 80_000_000_000, 4.0e12);
    let quick = device(600e12, 80_000_000_000, 1.0e12);
    let workload = Workload::new([seven("sampler"), seven("trainee")])
        .stage("generate", [Task::generate("sampler", batch())])
        .stage("train", [Task::train("trainee", batch(), 8)]);
    for names in [["x", "y"], ["y", "x"]] {
        let pools = [
            Pool::new(names[0], wide.clone(), 16),
            Pool::new(names[1], quick.clone(), 16),
        ];
        let mapping = mapped(&workload, &pools);
        assert_eq!(mapping.set_of("sampler").unwrap().pool, names[0]);
        assert_eq!(mapping.set_of("trainee").unwrap().pool, names[1]);
    }
}

#[test]
fn a_set_that_waits_anyway_takes_no_more_devices_than_it_needs() {
    let tiny = Model::new("tiny", 10_000_000, 2, 256);
    let workload = Workload::new([seven("actor"), tiny])
        .stage("train", [Task::train("actor", batch(), 8)])
        .stage("score", [Task::forward("tiny", batch())]);
    let slow = Pool::new("slow", device(1e12, 1 << 34, 1e11), 8);
    let other = mapped(&workload, &[pool(16), slow]);
    assert_eq!(other.sets.len(), 1, "{other}");

    let together = Workload::new(workload.models).stage(
        "train",
        [
            Task::train("actor", batch(), 8),
            Task::forward("tiny", batch()),
        ],
    );
    let slow = Pool::new("slow", device(50e12, 1 << 34, 1e11), 8);
    let mapping = mapped(&together, &[pool(16), slow]);
    let set = mapping.set_of("tiny").unwrap();
    assert_eq!((set.pool.as_str(), set.devices), ("slow", 1), "{mapping}");
}

#[test]
fn large_searches_ask_few_prices() {
    let two = [pool(64), Pool::new("b", a100(), 64)];
    for pools in [&[pool(128)][..], &two] {
        let Searched { priced, .. } = mapped(&ppo(seven), pools).searched;
        assert!(priced < 100_000, "{priced}");
    }
}

#[test]
fn a_mapping_is_shown_as_a_table() {
    let shown = mapped(&ppo(seven), &[pool(128)]).to_string();
    let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
    let expect = "
devices    model         p-t-d generate       GB  peak GB   generate    prepare      train
a 0..64    actor         8-8-1    8-2-4      2.0     19.8      13.39                 18.16
           reference    1-1-64              14.0     14.0                  3.68
           reward       1-1-64              14.0     14.0                  3.68
a 64..128  critic        8-8-1               2.0      2.0                  4.72      18.16
38.9 s     iteration                                           13.39       7.35      18.16";
    assert_eq!(lines.join("\n"), expect.trim_start());
}

#[test]
fn a_mapping_survives_json() {
    let mapping = mapped(&ppo(seven), &[pool(16)]);
    let text = serde_json::to_string(&mapping).unwrap();
    let back: Mapping = serde_json::from_str(&text).unwrap();
    check_valid(&back, &ppo(seven), &[pool(16)]);
    assert_eq!(back.to_string(), mapping.to_string());
    let workload = serde_json::to_string(&ppo(seven)).unwrap();
    assert_eq!(
        serde_json::from_str::<Workload>(&workload).unwrap(),
        ppo(seven)
    );
}

/// Prices without any sense in them, but for what is promised of a cost model.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&self, of: impl Hash, sides: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.0, of).hash(&mut hasher);
        hasher.finish() % sides
    }

    fn seconds(&self, run: &Run<'_>, of: impl Hash) -> f64 {
        let Run { model, pool, .. } = run;
        let task = (format!("{:?}", run.task), &model.name, &pool.name);
        self.roll((task, run.parallel, of), 64) as f64 / 4.0
    }
}

impl CostModel for Dice {
    fn usable_bytes(&self, device: &DeviceModel) -> u64 {
        device.memory_bytes
    }

    fn resident_bytes(&self, model: &Model, role: Role, parallel: Degrees) -> u64 {
        1 + self.roll(
            (&model.name, role == Role::Trained, parallel),
            40_000_000_000,
        )
    }

    fn seconds(&self, run: &Run<'_>) -> f64 {
        self.seconds(run, ())
    }

    fn generation_bytes(&self, run: &Run<'_>, resident: Degrees) -> u64 {
        1 + self.roll((&run.model.name, run.parallel, resident), 20_000_000_000)
    }

    fn generation(&self, run: &Run<'_>, resident: Degrees, free_bytes: u64) -> Generation {
        let waves = 1 + 200_000_000_000 / free_bytes;
        Generation {
            seconds: self.seconds(run, resident) + waves as f64,
            waves,
            bytes: self.generation_bytes(run, resident),
        }
    }
}

prop_compose! {
    fn some_model(name: String)(
        parameters in 1u64..16,
        layers in 1u32..3,
        hidden in prop::sample::select(vec![512u32, 4096]),
    ) -> Model {
        Model::new(name.clone(), parameters * 1_000_000_000, layers, hidden)
            .kv_bytes_per_token(u64::from(layers) * 200_000)
    }
}

prop_compose! {
    fn some_task(name: String)(
        what in 0..3,
        sequences in 1u64..200,
        updates in 1u32..4,
    ) -> Task {
        let batch = Batch::new(sequences, 512, 512);
        match what {
            0 => Task::train(name.clone(), batch, updates),
            1 => Task::forward(name.clone(), batch),
            _ => Task::generate(name.clone(), batch),
        }
    }
}

/// Each model with one or two tasks in stages drawn at random.
fn some_workload(models: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Workload> {
    let one = |at: usize| {
        let name = format!("m{at}");
        let tasks = prop::collection::vec((0usize..3, some_task(name.clone())), 1..=2);
        (some_model(name), tasks)
    };
    models
        .prop_flat_map(move |count| (0..count).map(one).collect::<Vec<_>>())
        .prop_map(|drawn| {
            let models = drawn.iter().map(|(model, _)| model.clone());
            (0..3).fold(Workload::new(models), |workload, stage| {
                let tasks = drawn.iter().flat_map(|(_, tasks)| tasks);
                let own = tasks.filter(|(at, _)| *at == stage);
                workload.stage(format!("s{stage}"), own.map(|(_, task)| task.clone()))
            })
        })
}

prop_compose! {
    fn some_pool(name: &'static str, devices: u32)(
        devices in 1..=devices,
        node in prop::sample::select(vec![1u32, 2, 3, 4, 8]),
        flops in 1u32..6,
        memory in 2u64..10,
        bandwidth in 1u32..5,
    ) -> Pool {
        let device = device(f64::from(flops) * 100e12,
            memory * 20_000_000_000,
            f64::from(bandwidth) * 1e12,
        );
        Pool::new(name, device, devices).nodes_of(node)
    }
}

/// One or two pools, of at most so many devices each.
fn some_pools(devices: u32) -> impl Strategy<Value = Vec<Pool>> {
    let two = (some_pool("a", devices), some_pool("b", devices));
    (two, any::<bool>()).prop_map(|((a, b), both)| if both { vec![a, b] } else { vec![a] })
}

#[track_caller]
fn check_against_brute_force(workload: &Workload, pools: &[Pool], cost: &dyn CostModel) {
    let least = brute::least_seconds(workload, pools, cost);
    match (map(workload, pools, cost), least) {
        (Ok(mapping), Some(least)) => {
            check_valid(&mapping, workload, pools);
            assert_close(mapping.seconds, least);
        }
        (Err(MappingError::NoFit { .. } | MappingError::NoRoomTogether { .. }), None) => {}
        (found, least) => panic!("{found:?}, by brute force {least:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_optimum_is_that_of_brute_force(
        workload in some_workload(1..=3),
        pools in some_pools(4),
        seed in any::<u64>(),
    ) {
        check_against_brute_force(&workload, &pools, &Analytic::default());
        check_against_brute_force(&workload, &pools, &Dice(seed));
    }

    #[test]
    fn the_optimum_is_that_of_brute_force_on_one_larger_pool(
        workload in some_workload(1..=3),
        pool in some_pool("a", 12),
        seed in any::<u64>(),
    ) {
        let pools = [pool];
        check_against_brute_force(&workload, &pools, &Analytic::default());
        check_against_brute_force(&workload, &pools, &Dice(seed));
    }

    #[test]
    fn the_optimum_is_that_of_brute_force_with_four_models(
        workload in some_workload(4..=4),
        pools in some_pools(2),
        seed in any::<u64>(),
    ) {
        check_against_brute_force(&workload, &pools, &Analytic::default());
        check_against_brute_force(&workload, &pools, &Dice(seed));
    }
}

proptest! {
    #[test]
    fn the_memo_changes_nothing_but_the_count(
        workload in some_workload(1..=4),
        pools in some_pools(12),
        seed in any::<u64>(),
    ) {
        for cost in [&Analytic::default() as &dyn CostModel, &Dice(seed)] {
            let kept = map_with(&workload, &pools, cost, Memo::Kept);
            let forgotten = map_with(&workload, &pools, cost, Memo::Forgotten);
            match (kept, forgotten) {
                (Ok(kept), Ok(mut forgotten)) => {
                    assert!(kept.searched.priced <= forgotten.searched.priced);
                    assert_eq!(forgotten.searched.reused, 0);
                    forgotten.searched = kept.searched;
                    assert_eq!(kept, forgotten);
                }
                (kept, forgotten) => assert_eq!(kept, forgotten),
            }
        }
    }

    #[test]
    fn the_formulas_keep_what_a_cost_model_promises(
        model in some_model("m".to_owned()),
        pool in some_pool("a", 12),
        sequences in 1u64..200,
        extra in prop::array::uniform2(0u64..100_000_000_000),
    ) {
        let cost = Analytic::default();
        let task = Task::generate("m", Batch::new(sequences, 512, 512));
        let [some, more] = [extra[0].min(extra[1]), extra[0].max(extra[1])];
        for devices in pool.allotments() {
            for resident in pool.ways(devices, model.layers) {
                for parallel in resident.while_generating() {
                    let run = Run { model: &model, task: &task, pool: &pool, parallel };
                    let least = cost.generation_bytes(&run, resident);
                    let within = |extra| cost.generation(&run, resident, least + extra);
                    prop_assert!(within(more).seconds <= within(some).seconds);
                    for extra in [some, more] {
                        let generation = within(extra);
                        prop_assert!(generation.seconds.is_finite() && generation.waves > 0);
                        prop_assert!(generation.bytes <= least + extra);
                    }
                }
            }
        }
    }

    #[test]
    fn more_devices_are_never_slower(
        workload in some_workload(1..=4),
        pools in some_pools(12),
        more in 1u32..6,
        seed in any::<u64>(),
    ) {
        let mut larger = pools.clone();
        larger[0].devices += more;
        for cost in [&Analytic::default() as &dyn CostModel, &Dice(seed)] {
            if let Ok(before) = map(&workload, &pools, cost) {
                let after = map(&workload, &larger, cost).unwrap();
                prop_assert!(after.seconds <= before.seconds);
            }
        }
    }

    #[test]
    fn the_order_of_models_and_pools_does_not_matter(
        workload in some_workload(1..=4),
        pools in some_pools(12),
        turn in 0usize..4,
        seed in any::<u64>(),
    ) {
        let (mut other, mut turned) = (workload.clone(), pools.clone());
        let count = other.models.len();
        other.models.rotate_left(turn % count);
        turned.reverse();
        for cost in [&Analytic::default() as &dyn CostModel, &Dice(seed)] {
            assert_eq!(map(&workload, &pools, cost), map(&other, &turned, cost));
        }
    }

    #[test]
    fn names_do_not_matter(workload in some_workload(1..=4), pools in some_pools(12)) {
        // `m0` becomes `m9`, so the models sort the other way round.
        let turn = |name: &mut String| {
            let digit: u32 = name[1..].parse().unwrap();
            *name = format!("m{}", 9 - digit);
        };
        let (mut other, mut renamed) = (workload.clone(), pools.clone());
        other.models.iter_mut().for_each(|model| turn(&mut model.name));
        let tasks = other.stages.iter_mut().flat_map(|stage| &mut stage.tasks);
        tasks.for_each(|task| turn(&mut task.model));
        for (pool, name) in renamed.iter_mut().zip(["z", "y"]) {
            pool.name = name.to_owned();
        }
        let cost = Analytic::default();
        match (map(&workload, &pools, &cost), map(&other, &renamed, &cost)) {
            (Ok(a), Ok(b)) => assert_close(a.seconds, b.seconds),
            (a, b) => assert_eq!(a.is_err(), b.is_err()),
        }
    }
}

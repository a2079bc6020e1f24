//! Where samples go.

use odeon_mesh::{CP, DP, Mesh, PP, TP};
use proptest::prelude::*;

use super::world::*;
use crate::plan::iteration::{Encoding, connections, iteration};
use crate::plan::*;
use crate::sample::SampleMeta;

fn drawn(world: &World, samples: usize) -> Vec<SampleMeta> {
    let cells = world.shapes()[0].cells;
    let cell = |at: u32| {
        let name = CellName {
            source: crate::sample::SourceNumber(0),
            epoch: at / cells,
            cell: at % cells,
        };
        world.cell(name).samples
    };
    (0..).flat_map(cell).take(samples).collect()
}

proptest! {
    #[test]
    fn micro_batches_are_as_many_in_all_buckets_and_within_the_cap(
        world in worlds(), mesh in trees(), method in methods(), samples in 0usize..120,
        spec in (1u32..700, 1u32..6, 1u32..5), group in prop::option::of(1u32..5),
    ) {
        let samples = drawn(&world, samples);
        let microbatch = MicrobatchSpec { tokens: spec.0, at_least: spec.1, multiple_of: spec.2 };
        let graph = Graph::mix(&mesh, samples.clone())
            .distribute(Axis::Context, group)
            .cost(|sample| u64::from(sample.tokens).pow(2))
            .balance(method, microbatch);
        for edge in graph.edges() {
            prop_assert_ne!(edge.from, edge.to);
        }
        let lineage = samples.first().map(|sample| graph.lineage(sample.id).unwrap());
        let plan = graph.encode(EncoderSpec::default(), Quadratic { linear: 1.0, square: 0.0 }).compile(0);
        prop_assert_eq!(plan.buckets.len() as u32, Axis::Context.buckets(&mesh));
        let count = plan.microbatches();
        prop_assert!(count >= spec.1 as usize && count.is_multiple_of(spec.2 as usize));
        let tokens = |id| samples.iter().find(|sample| sample.id == id).unwrap().tokens;
        for bucket in &plan.buckets {
            prop_assert_eq!(bucket.microbatches.len(), count);
            for batch in &bucket.microbatches {
                prop_assert!(batch.tokens <= spec.0 || batch.samples.len() == 1);
                prop_assert_eq!(batch.tokens, batch.samples.iter().map(|id| tokens(*id)).sum::<u32>());
                prop_assert_eq!(batch.cost, batch.samples.iter().map(|id| u64::from(tokens(*id)).pow(2)).sum::<u64>());
            }
        }
        let mut set: Vec<_> = samples.iter().map(|sample| sample.id).collect();
        set.sort_unstable();
        prop_assert_eq!(plan.sample_set(), set);
        if let Some(lineage) = lineage {
            let bucket = &plan.buckets[lineage.bucket as usize];
            let batch = &bucket.microbatches[lineage.microbatch as usize];
            prop_assert_eq!(batch.samples[lineage.slot as usize], samples[0].id);
            prop_assert_eq!(lineage.ranks.len() as u32, (mesh.len() as u32) / Axis::Context.buckets(&mesh));
        }
        // Every picture is encoded once, and its features go where its sample is.
        prop_assert_eq!(plan.encoder.len() as u32, mesh.len() as u32);
        let mut encoded = 0;
        for picture in plan.encoder.iter().flat_map(|share| &share.pictures) {
            let bucket = &plan.buckets[picture.bucket as usize];
            prop_assert!(bucket.microbatches[picture.microbatch as usize].samples.contains(&picture.sample));
            encoded += 1;
        }
        prop_assert_eq!(encoded, samples.iter().map(|sample| sample.patches.len()).sum::<usize>());
        let bytes = odeon::codec::encode(&plan).unwrap();
        prop_assert_eq!(odeon::codec::decode::<StepPlan>(&bytes).unwrap(), plan);
    }

    #[test]
    fn every_rank_comes_by_its_samples_once(mesh in trees(), along in prop::sample::subsequence(
        vec![PP, CP, TP], 0..=3,
    )) {
        let fetch = FetchPlan {
            mesh: mesh.clone(),
            axis: Axis::Data,
            broadcast_at: along.iter().map(|dim| (*dim).to_owned()).collect(),
            slicing: Slicing::Zigzag,
        };
        let mut served = vec![0; mesh.len()];
        for one in fetch.fetches() {
            served[one.rank as usize] += 1;
            for rank in one.feeds {
                served[rank as usize] += 1;
                prop_assert_eq!(fetch.of(rank), Feed::From(one.rank));
                prop_assert_eq!(Axis::Data.bucket(&mesh, rank), one.bucket);
            }
        }
        prop_assert!(served.iter().all(|times| *times == 1));
        let fed: usize = along.iter().map(|dimension| mesh.size(dimension)).product();
        prop_assert_eq!(fetch.fetches().count(), mesh.len() / fed);
    }

    #[test]
    fn slices_cover_a_sequence_once(tokens in 0u32..5000, of in 1u32..9) {
        for slicing in [Slicing::Contiguous, Slicing::Zigzag] {
            let mut seen = vec![0; tokens as usize];
            for part in 0..of {
                for range in slicing.ranges(tokens, Slice { part, of }) {
                    for token in range {
                        seen[token as usize] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
        }
    }
}

#[test]
fn zigzag_gives_all_parts_the_same_work() {
    let work = |slicing: Slicing, part| -> u64 {
        let ranges = slicing.ranges(8192, Slice { part, of: 4 });
        ranges
            .into_iter()
            .flatten()
            .map(|at| u64::from(at) + 1)
            .sum()
    };
    let zigzag: Vec<u64> = (0..4).map(|part| work(Slicing::Zigzag, part)).collect();
    assert!(zigzag.iter().all(|work| *work == zigzag[0]));
    assert!(work(Slicing::Contiguous, 3) > 6 * work(Slicing::Contiguous, 0));
}

#[test]
fn a_tree_answers_for_its_ranks() {
    let mesh = Mesh::new([(PP, 2), (DP, 3), (CP, 2), (TP, 4)]).unwrap();
    assert_eq!((mesh.len() as u32), 48);
    // Pipeline 1, data 2, context 0, tensor 3.
    let rank = 24 + 2 * 8 + 3;
    let places = [PP, DP, CP, TP].map(|dimension| mesh.coordinate(rank as usize, dimension) as u32);
    assert_eq!(places, [1, 2, 0, 3]);
    assert_eq!(Axis::Data.bucket(&mesh, rank), 2);
    assert_eq!(Axis::Context.bucket(&mesh, rank), 4);
    assert_eq!(Axis::Data.slice(&mesh, rank), Slice { part: 0, of: 2 });
    assert_eq!(Axis::Context.slice(&mesh, rank), Slice::WHOLE);
    let fetch = FetchPlan {
        mesh,
        axis: Axis::Data,
        broadcast_at: vec![TP.to_owned()],
        slicing: Slicing::Zigzag,
    };
    assert_eq!(fetch.of(rank), Feed::From(rank - 3));
}

#[test]
fn balancing_shortens_an_iteration_and_changes_no_sum() {
    let world = World {
        seed: 9,
        cells: vec![50],
        samples: 40,
        length: 4000,
    };
    let mesh = Mesh::new([(PP, 4), (DP, 8)]).unwrap();
    let picture = Quadratic {
        linear: 30.0,
        square: 0.1,
    };
    let text = Quadratic {
        linear: 100.0,
        square: 1.0,
    };
    let plan = |method| {
        Graph::mix(&mesh, drawn(&world, 800))
            .cost(|sample| text.of(sample.tokens))
            .balance(
                method,
                MicrobatchSpec {
                    tokens: 8192,
                    ..MicrobatchSpec::default()
                },
            )
            .encode(
                EncoderSpec {
                    method,
                    group: None,
                },
                picture,
            )
            .compile(0)
    };
    let plans = [Method::None, Method::Greedy, Method::KarmarkarKarp].map(plan);
    let times = plans
        .each_ref()
        .map(|plan| iteration(plan, picture, Encoding::Shared));
    assert!(times[1].time < times[0].time && times[2].time < times[0].time);
    for (plan, time) in plans.iter().zip(times) {
        assert!(time.time >= time.ideal);
        assert!((time.ideal - times[0].ideal).abs() < 1e-6 * time.ideal);
        assert_eq!(
            (plan.tokens, plan.predicted),
            (plans[0].tokens, plans[0].predicted)
        );
    }
}

#[test]
fn constructors_bound_connections() {
    let mesh = Mesh::new([(DP, 1024), (TP, 8)]).unwrap();
    let found = connections(&mesh, 306, 64);
    assert_eq!(found.direct, 306 * 8192);
    assert_eq!(found.constructed, 306 * 128 + 8192);
    assert_eq!(found.broadcast, 306 * 128 + 1024);
}

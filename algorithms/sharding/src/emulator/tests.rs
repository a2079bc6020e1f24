//! Emulated collectives against real ranks in threads, to the bit.

use std::thread;

use odeon_collective::queue::{self, Queues};
use odeon_collective::{Algorithm, Collective, CollectiveError, Communicator, Reduce, Topology};
use proptest::collection::vec;
use proptest::prelude::*;

use super::Emulator;
use crate::tests::any::{choices, meshes, shapes, sharding};
use crate::tests::gang::{carried_out_by, reachable};
use crate::{Placement, Redistribution};

/// Numbers of all magnitudes, so that their order shows in the sum.
fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let number =
        (-1.0f32..1.0, -12i32..12).prop_map(|(mantissa, power)| mantissa * 2f32.powi(power));
    vec(number, len)
}

/// A topology of 2 to 8 ranks on 1 to 3 nodes, with an algorithm and a reduction.
fn gangs() -> impl Strategy<Value = (Emulator, Reduce)> {
    let algorithm = prop::sample::select(Algorithm::ALL.to_vec());
    let reduce = prop::sample::select(vec![Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min]);
    (vec(0usize..3, 2..=8), algorithm, reduce).prop_map(|(nodes, algorithm, reduce)| {
        (Emulator::new(Topology::new(nodes), algorithm), reduce)
    })
}

/// A gang with an uneven count for each rank, the reduction, and numbers for any operation.
fn cases() -> impl Strategy<Value = (Emulator, Reduce, Vec<Vec<usize>>, Vec<Vec<f32>>)> {
    gangs().prop_flat_map(|(emulator, reduce)| {
        let world = emulator.topology.world();
        let counts = vec(vec(0usize..8, world), world);
        (
            Just(emulator),
            Just(reduce),
            counts,
            vec(numbers(8 * world), world),
        )
    })
}

/// The same on each rank of a real gang.
fn real(
    emulator: &Emulator,
    act: impl Fn(usize, &mut Communicator<Queues>) -> Result<Vec<f32>, CollectiveError> + Sync,
) -> Vec<Vec<f32>> {
    let act = &act;
    thread::scope(|scope| {
        let threads: Vec<_> = queue::gang(&emulator.topology, 1)
            .into_iter()
            .enumerate()
            .map(|(rank, transport)| {
                let mut communicator =
                    Communicator::new(transport).with_algorithm(emulator.algorithm);
                scope.spawn(move || act(rank, &mut communicator))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    })
}

fn bits(all: &[Vec<f32>]) -> Vec<Vec<u32>> {
    all.iter()
        .map(|one| one.iter().map(|it| it.to_bits()).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_emulated_all_reduce_has_the_bits_of_real_ranks(
        (emulator, reduce, _, numbers) in cases(), len in 0usize..64,
    ) {
        let data: Vec<Vec<f32>> = numbers.iter().map(|all| all[..len.min(all.len())].to_vec()).collect();
        let found = real(&emulator, |rank, communicator| {
            let mut data = data[rank].clone();
            communicator.all_reduce(&mut data, reduce).map(|()| data)
        });
        prop_assert_eq!(bits(&emulator.all_reduce(&data, reduce)), bits(&found));
    }

    #[test]
    fn an_emulated_reduce_scatter_has_the_bits_of_real_ranks((emulator, reduce, counts, numbers) in cases()) {
        let counts = &counts[0];
        let total = counts.iter().sum();
        let inputs: Vec<Vec<f32>> = numbers.iter().map(|all| all[..total].to_vec()).collect();
        let found = real(&emulator, |rank, communicator| {
            let mut own = vec![0.0; counts[rank]];
            communicator.reduce_scatter_v(&inputs[rank], counts, &mut own, reduce).map(|()| own)
        });
        prop_assert_eq!(bits(&emulator.reduce_scatter(&inputs, counts, reduce)), bits(&found));
    }

    #[test]
    fn emulated_gathers_and_exchanges_are_those_of_real_ranks((emulator, _, counts, numbers) in cases()) {
        let world = counts.len();
        let inputs: Vec<Vec<f32>> = numbers.iter().zip(&counts[0]).map(|(all, count)| all[..*count].to_vec()).collect();
        let found = real(&emulator, |rank, communicator| {
            let mut all = vec![0.0; counts[0].iter().sum()];
            communicator.all_gather_v(&inputs[rank], &counts[0], &mut all).map(|()| all)
        });
        prop_assert_eq!(bits(&emulator.all_gather(&inputs)), bits(&found));
        let rows = numbers.iter().zip(&counts);
        let inputs: Vec<Vec<f32>> = rows.map(|(all, row)| all[..row.iter().sum()].to_vec()).collect();
        let found = real(&emulator, |rank, communicator| {
            let from: Vec<usize> = (0..world).map(|other| counts[other][rank]).collect();
            let mut all = vec![0.0; from.iter().sum()];
            communicator.all_to_all_v(&inputs[rank], &counts[rank], &mut all, &from).map(|()| all)
        });
        prop_assert_eq!(bits(&emulator.all_to_all(&inputs, &counts)), bits(&found));
    }

    #[test]
    fn an_emulated_redistribution_has_the_bits_of_real_ranks(
        mesh in meshes(), shape in shapes(), before in choices(), after in choices(),
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()), pool in numbers(4096),
    ) {
        let from = sharding(&mesh, &shape, &before, Reduce::Sum);
        let to = reachable(&from, &sharding(&mesh, &shape, &after, Reduce::Sum));
        let plan = Redistribution::new(&from, &to).unwrap();
        let addends = from.placements().iter().any(|it| matches!(it, Placement::Partial(_)));
        let locals: Vec<Vec<f32>> = (0..mesh.len()).map(|rank| {
            // Copies have the same numbers.
            let first = from.copies(rank).unwrap()[0];
            let index = from.local(rank).unwrap();
            let of = |at| pool[(index.global(at).unwrap() + usize::from(addends) * first * 37) % pool.len()];
            (0..index.len()).map(of).collect()
        }).collect();
        let found = carried_out_by(&plan, &locals, Some(algorithm)).unwrap();
        let emulated = plan.emulated(&locals, |group| {
            Emulator::new(Topology::one_node(group.len()), algorithm)
        });
        prop_assert_eq!(bits(&emulated.unwrap()), bits(&found));
    }
}

/// Else there would be nothing to repeat.
#[test]
fn the_order_of_a_sum_shows_in_its_bits() {
    let data = [1e8f32, 1.0, -1e8, 1.0].map(|first| vec![first; 4]);
    let by = |algorithm| {
        Emulator::new(Topology::one_node(4), algorithm).all_reduce(&data, Reduce::Sum)[0].clone()
    };
    // From rank 0 on; two pairs; around the ring, for each quarter from another rank on.
    assert_eq!(by(Algorithm::Direct), [1.0; 4]);
    assert_eq!(by(Algorithm::Tree), [0.0; 4]);
    assert_eq!(by(Algorithm::Ring), [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn a_nan_is_seen_by_all() {
    let data = [vec![1.0, f32::NAN], vec![2.0, 0.0]];
    for algorithm in Algorithm::ALL {
        let emulator = Emulator::new(Topology::one_node(2), algorithm);
        for reduce in [Reduce::Max, Reduce::Min] {
            let all = emulator.all_reduce(&data, reduce);
            assert!(all.iter().all(|it| it[1].is_nan() && !it[0].is_nan()));
        }
    }
}

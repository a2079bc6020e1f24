//! Real ranks, each a thread, with communicators along dimensions of a mesh.

use std::collections::BTreeMap;
use std::thread;

use odeon_collective::queue::{self, Queues};
use odeon_collective::{Algorithm, Communicator, Topology};
use odeon_mesh::Mesh;

use crate::{Placement, Redistribution, Sharding, ShardingError};

pub(crate) type Communicators = BTreeMap<Vec<String>, Communicator<Queues>>;

/// For each rank, a communicator along each of these sets of dimensions.
pub(crate) fn communicators(
    mesh: &Mesh,
    along: &[Vec<String>],
    algorithm: Option<Algorithm>,
) -> Vec<Communicators> {
    let mut all: Vec<Communicators> = (0..mesh.len()).map(|_| BTreeMap::new()).collect();
    for dims in along {
        let names: Vec<&str> = dims.iter().map(|dim| &**dim).collect();
        for group in mesh.groups(&names) {
            let transports = queue::gang(&Topology::one_node(group.len()), 1);
            for (rank, transport) in group.iter().zip(transports) {
                let communicator = Communicator::new(transport);
                let communicator = match algorithm {
                    Some(algorithm) => communicator.with_algorithm(algorithm),
                    None => communicator,
                };
                all[*rank].insert(dims.clone(), communicator);
            }
        }
    }
    all
}

/// Does something on each rank, in a thread of its own.
pub(crate) fn on_all<R: Send>(
    communicators: Vec<Communicators>,
    act: impl Fn(usize, &mut Communicators) -> R + Sync,
) -> Vec<R> {
    let act = &act;
    thread::scope(|scope| {
        let threads: Vec<_> = communicators
            .into_iter()
            .enumerate()
            .map(|(rank, mut communicators)| scope.spawn(move || act(rank, &mut communicators)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Carries a plan out on all ranks: their new local parts.
pub(crate) fn carried_out(
    plan: &Redistribution,
    locals: &[Vec<f32>],
) -> Result<Vec<Vec<f32>>, ShardingError> {
    carried_out_by(plan, locals, None)
}

/// [`carried_out`] with this algorithm, where a collective knows it.
pub(crate) fn carried_out_by(
    plan: &Redistribution,
    locals: &[Vec<f32>],
    algorithm: Option<Algorithm>,
) -> Result<Vec<Vec<f32>>, ShardingError> {
    let along: Vec<Vec<String>> = plan.steps().iter().map(|step| step.dims.clone()).collect();
    let communicators = communicators(plan.from().mesh(), &along, algorithm);
    let done = on_all(communicators, |rank, communicators| {
        plan.route(rank)?.carry_out(&locals[rank], communicators)
    });
    done.into_iter().collect()
}

/// The second sharding with addends only where the first has them.
pub(crate) fn reachable(from: &Sharding, to: &Sharding) -> Sharding {
    let pairs = from.placements().iter().zip(to.placements());
    let placements: Vec<Placement> = pairs
        .map(|(from, to)| match to {
            Placement::Partial(_) if from != to => Placement::Replicate,
            _ => to.clone(),
        })
        .collect();
    to.placed(placements).unwrap()
}

/// Local parts of a tensor of small integers, so that sums of them are exact. Ranks that hold copies
/// have the same, those that hold addends each their own.
pub(crate) fn numbered(sharding: &Sharding, rank: usize, elements: &[usize]) -> Vec<f32> {
    let copies = sharding.copies(rank).unwrap();
    let dims = sharding.mesh().dims().iter().zip(sharding.placements());
    // The place among addends: the coordinates along their dimensions.
    let addend = dims
        .filter(|(_, placement)| matches!(placement, Placement::Partial(_)))
        .fold(0, |place, (dim, _)| {
            place * dim.size + sharding.mesh().coordinate(copies[0], &dim.name)
        });
    let value = |element: &usize| ((element * 31 + addend * 17) % 1009) as f32;
    elements.iter().map(value).collect()
}

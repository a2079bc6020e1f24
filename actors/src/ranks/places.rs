//! Places of ranks: near those that they talk to.

use odeon::group::{GroupSpawnError, SpawnGroup};
use odeon::{Actor, Failure, FailureKind, Needs, SpawnError};
use odeon_algorithms::train::Sharing;
use odeon_mesh::{CP, DP, EP, FSDP, Mesh, PP, TP};
use odeon_placement::{Demand, Talk, TalkOrder};

/// The ranks of a model that talk to each other. Matrices that are shared are added up in each layer, rows of experts
/// and of other ranks are exchanged there, rows go from stage to stage once a pass, and gradients are added up once a
/// step: each is worth four times the next, shards twice what copies are.
#[must_use]
pub fn talks(sharing: Sharing) -> Vec<Talk> {
    let Ok(mesh) = sharing.mesh() else {
        return vec![];
    };
    let stages = match sharing.chunks {
        1 => TalkOrder::Line,
        _ => TalkOrder::Ring,
    };
    let along = [
        (TP, TalkOrder::All, 64),
        (CP, TalkOrder::All, 16),
        (EP, TalkOrder::All, 16),
        (PP, stages, 4),
        (FSDP, TalkOrder::Ring, 2),
        (DP, TalkOrder::Ring, 1),
    ];
    let along = along.into_iter();
    along
        .flat_map(|(dim, order, weight)| Talk::along(&mesh, dim, order, weight))
        .collect()
}

/// The demand of all ranks of a model, as they are spawned.
#[must_use]
pub fn demand(needs: &Needs, job: &str, holder: &str, sharing: Sharing) -> Demand {
    let demand = needs.demand(job, holder).isolated();
    let demand = demand.gang(sharing.ranks() as u32);
    demand.unit(sharing.tensor as u32).talks(talks(sharing))
}

/// A group of ranks of this mesh that lie near those they talk to, tensor groups on one node.
pub(crate) fn near<A: Actor>(
    group: SpawnGroup<A>,
    sharing: Sharing,
    talks: Vec<Talk>,
) -> SpawnGroup<A> {
    let group = group.talks(talks);
    match sharing.tensor {
        1 => group,
        _ => group.together(TP),
    }
}

/// The failure of ranks that did not start.
pub(crate) fn refused(error: &GroupSpawnError) -> Failure {
    let failure = Failure::error(error);
    match &error.error {
        SpawnError::NotPlaced(_) => Failure::new(FailureKind::NotPlaced, failure.message),
        // Another life would end the same way.
        SpawnError::Failed(why) if why.kind == FailureKind::Fatal => failure.fatal(),
        _ => failure,
    }
}

/// A mesh of units of tensor ranks: some of those of a model.
pub(crate) fn units(count: usize, sharing: Sharing) -> Result<Mesh, Failure> {
    Mesh::new([("unit", count), (TP, sharing.tensor)]).map_err(Failure::error)
}

#[cfg(test)]
mod tests {
    use odeon_placement::{Node, Resources, TalkEnd, View, solve};

    use super::*;

    fn sharing() -> Sharing {
        Sharing {
            copies: 2,
            stages: 2,
            tensor: 2,
            ..Sharing::ALONE
        }
    }

    #[test]
    fn ranks_talk_most_along_the_dimensions_that_exchange_most() {
        let weights = |a: u32, b: u32| -> u32 {
            let talks = talks(sharing());
            let ends = |talk: &&Talk| talk.bundle == a && talk.with == TalkEnd::Bundle(b);
            talks.iter().filter(ends).map(|talk| talk.weight).sum()
        };
        // {dp: 2, pp: 2, tp: 2}.
        assert_eq!([weights(0, 1), weights(0, 2), weights(0, 4)], [64, 4, 1]);
        assert_eq!(weights(0, 3), 0);
        assert_eq!(talks(Sharing::ALONE), []);
    }

    /// SEMANTICS 155.
    #[test]
    fn a_copy_of_stages_goes_to_the_node_that_has_room_for_it() {
        let node = |name: &str, cpus: u64| Node::new(name, Resources::new().cpu_milli(1000 * cpus));
        // Each pair by itself would go to where least is left over, first to a.
        let view = View::new([node("a", 2), node("b", 4), node("c", 2)]);
        let demand = demand(&Needs::new().cpus(1.0), "job", "rank", sharing());
        let plan = solve(&view, &[demand]).unwrap();
        let nodes: Vec<&str> = plan.leases.iter().map(|lease| &*lease.node).collect();
        let whole = ["b", "b", "b", "b"];
        assert!(nodes[..4] == whole || nodes[4..] == whole, "{nodes:?}");
        assert!(nodes.chunks(2).all(|unit| unit[0] == unit[1]), "{nodes:?}");
    }
}

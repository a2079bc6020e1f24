//! Places of ranks: near those that they talk to, and waited for where they had some before.

use std::time::Duration;

use odeon::group::{GroupSpawnError, SpawnGroup};
use odeon::{Actor, Clock, Failure, FailureKind, Group, Needs, SpawnError, Timestamp};
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

/// Ranks in places like those that others had and lost: it is tried until there is room for all, and told why there is
/// none. Nobody's restarts are counted meanwhile.
///
/// # Errors
/// They have found room and have not started.
pub(crate) async fn wait_for<A, F>(
    needs: &Needs,
    mut spawn: impl FnMut(Needs) -> F,
    mut tell: impl FnMut(&str),
) -> Result<Group<A>, GroupSpawnError>
where
    F: Future<Output = Result<Group<A>, GroupSpawnError>>,
{
    let mut told: Option<(Timestamp, String)> = None;
    // Who asks again stands behind others: at first it is to be known soon that there is no room.
    let mut needs_now = needs.clone().wait_for_room(FIRST_WORD);
    loop {
        let error = match spawn(needs_now).await {
            Err(error) if lacks_room(&error.error) => error,
            spawned => return spawned,
        };
        let (now, why) = (Clock::now(), error.error.to_string());
        let is_news = told.as_ref().is_none_or(|(at, known)| {
            *known != why && now.since(*at) >= FIRST_WORD || now.since(*at) >= NEWS
        });
        if is_news {
            tell(&why);
            told = Some((now, why));
        }
        Clock::sleep(PAUSE).await;
        needs_now = needs.clone();
    }
}

/// Returns true where others have what it takes, or a node that had it is gone.
fn lacks_room(error: &SpawnError) -> bool {
    match error {
        SpawnError::NotPlaced(_) => true,
        SpawnError::Failed(failure) => {
            let kind = failure.root_cause().kind;
            matches!(kind, FailureKind::NotPlaced | FailureKind::NodeLost)
        }
        _ => false,
    }
}

/// The failure of ranks that did not start.
pub(crate) fn refused(error: &GroupSpawnError) -> Failure {
    let failure = Failure::error(error);
    match &error.error {
        // Another life would end the same way.
        SpawnError::Failed(why) if why.kind == FailureKind::Fatal => failure.fatal(),
        _ => failure,
    }
}

/// A mesh of units of tensor ranks: some of those of a model.
pub(crate) fn units(count: usize, sharing: Sharing) -> Result<Mesh, Failure> {
    Mesh::new([("unit", count), (TP, sharing.tensor)]).map_err(Failure::error)
}

/// The time after which those who look on hear that ranks wait.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// The time after which they hear it again.
const NEWS: Duration = Duration::from_secs(60);
/// From one try to the next.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::future::ready;

    use odeon_placement::{Node, Resources, TalkEnd, View, solve};

    use super::*;
    use crate::pretrain::rank::PretrainRank;

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

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_says_why_soon_and_not_each_time() {
        let rank = odeon_mesh::mesh! { dp: 1 }.rank(0).unwrap();
        let mut tries = 0;
        let mut told = vec![];
        let spawn = |_: Needs| {
            tries += 1;
            let error = match tries {
                ..4 => SpawnError::NotPlaced("no place".to_owned()),
                _ => SpawnError::Failed(Failure::error("it is ill")),
            };
            ready(Err::<Group<PretrainRank>, _>(GroupSpawnError {
                rank: rank.clone(),
                error,
            }))
        };
        let ended = wait_for(&Needs::new(), spawn, |why| told.push(why.to_owned())).await;
        assert!(ended.unwrap_err().to_string().contains("it is ill"));
        assert_eq!((tries, told.len()), (4, 1), "{told:?}");
        assert!(told[0].contains("no place"), "{told:?}");
    }
}

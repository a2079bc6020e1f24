//! Plans over random clusters, against explicit requests and against the best there is.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

mod moves;
mod optimum;

const LIMITS: RepackLimits = RepackLimits::new(8);

/// A candidate under [`LIMITS`].
fn candidate(id: ReplicaId, kv_used: u64, running: u32) -> Replica {
    Replica {
        id,
        version: 3,
        kv_used,
        kv_before: Some(kv_used + 1),
        kv_capacity: 100,
        running,
        waiting: 0,
        phase: Phase::Serving,
    }
}

fn snapshot(replicas: impl IntoIterator<Item = Replica>) -> Snapshot {
    Snapshot::new(replicas.into_iter().collect()).unwrap()
}

fn pairs(plan: &Plan) -> Vec<(ReplicaId, ReplicaId)> {
    let pair = |planned: &Move| (planned.source, planned.destination);
    plan.moves.iter().map(pair).collect()
}

#[test]
fn the_emptiest_goes_to_the_fullest_that_has_room() {
    let cluster = snapshot([
        candidate(1, 10, 1),
        candidate(2, 40, 2),
        candidate(3, 60, 3),
        candidate(4, 95, 3),
    ]);
    // 10 goes to 60 and not to 95, which is too full; then 40 has nowhere to go.
    assert_eq!(pairs(&plan(&cluster, &LIMITS)), [(1, 3)]);
    let move_of = plan(&cluster, &LIMITS).moves[0];
    assert_eq!(
        (move_of.requests, move_of.kv_bytes, move_of.version),
        (1, 10, 3)
    );
}

#[test]
fn one_destination_takes_in_several_and_there_are_no_chains() {
    let cluster = snapshot((1..=4).map(|id| candidate(id, 10, 1)));
    // All are equal: the lowest other id takes in, and stays.
    assert_eq!(pairs(&plan(&cluster, &LIMITS)), [(1, 2), (3, 2), (4, 2)]);
}

#[test]
fn requests_bind_as_bytes_do() {
    let cluster = snapshot((1..=4).map(|id| candidate(id, 1, 4)));
    assert_eq!(pairs(&plan(&cluster, &LIMITS)), [(1, 2), (3, 4)]);
    let none = RepackLimits::new(7);
    assert!(plan(&cluster, &none).moves.is_empty());
}

#[test]
fn room_for_growth_is_left_when_it_is_asked_for() {
    let cluster = snapshot([candidate(1, 40, 2), candidate(2, 50, 2)]);
    let with = |growth_bytes| RepackLimits {
        growth_bytes,
        ..LIMITS
    };
    assert_eq!(plan(&cluster, &with(2)).moves.len(), 1, "98 of 100 bytes");
    assert_eq!(plan(&cluster, &with(3)).moves.len(), 0, "102 of 100 bytes");
    assert_eq!(
        plan(&cluster, &with(u64::MAX)).moves.len(),
        0,
        "and nothing overflows"
    );
}

#[test]
fn only_what_runs_dry_takes_part() {
    let good = candidate(1, 10, 1);
    assert!(good.is_candidate(&LIMITS));
    for other in [
        Replica {
            kv_before: Some(10),
            ..good
        },
        Replica {
            kv_before: None,
            ..good
        },
        Replica {
            kv_capacity: 10,
            ..good
        },
        Replica { waiting: 1, ..good },
        Replica { running: 8, ..good },
        Replica { running: 0, ..good },
        Replica {
            phase: Phase::Pulling,
            ..good
        },
        Replica {
            phase: Phase::Draining,
            ..good
        },
        Replica {
            phase: Phase::Gone,
            ..good
        },
    ] {
        assert!(!other.is_candidate(&LIMITS), "{other:?}");
    }
}

#[test]
fn a_replica_is_looked_at_once() {
    let twice = vec![candidate(7, 1, 1), candidate(2, 1, 1), candidate(7, 2, 1)];
    assert_eq!(Snapshot::new(twice), Err(Twice(7)));
}

/// A request of a test: a name, its bytes, and the replica that began it.
type Request = (u64, u64);

/// A replica with its requests, where each has bytes of its own.
fn any_replica(capacities: std::ops::Range<u64>) -> impl Strategy<Value = (Replica, Vec<u64>)> {
    let phase = prop_oneof![
        12 => Just(Phase::Serving),
        1 => Just(Phase::Pulling),
        1 => Just(Phase::Draining),
        1 => Just(Phase::Gone),
    ];
    let waiting = prop_oneof![6 => Just(0_u32), 1 => 1..3_u32];
    let before = prop_oneof![1 => Just(None), 8 => (0..120_u64).prop_map(Some)];
    let requests = prop::collection::vec(0..30_u64, 0..9);
    (0..3_u64, before, capacities, requests, waiting, phase).prop_map(
        |(version, kv_before, kv_capacity, requests, waiting, phase)| {
            let replica = Replica {
                id: 0,
                version,
                kv_used: requests.iter().sum(),
                kv_before,
                kv_capacity,
                running: requests.len() as u32,
                waiting,
                phase,
            };
            (replica, requests)
        },
    )
}

type World = BTreeMap<ReplicaId, (Replica, Vec<Request>)>;

fn any_world(capacities: std::ops::Range<u64>) -> impl Strategy<Value = World> {
    prop::collection::vec(any_replica(capacities), 0..24).prop_map(|replicas| {
        let mut names = 0_u64..;
        let named = |(id, (replica, bytes)): (u64, (Replica, Vec<u64>))| {
            let requests = names.by_ref().zip(bytes).collect();
            // Ids are in no order that bytes or versions have.
            let id = id * 7 % 31;
            (id, (Replica { id, ..replica }, requests))
        };
        (0_u64..).zip(replicas).map(named).collect()
    })
}

fn any_limits() -> impl Strategy<Value = RepackLimits> {
    let growth = prop_oneof![2 => Just(0_u64), 1 => 1..6_u64];
    (1..14_u32, growth).prop_map(|(batch_max, growth_bytes)| RepackLimits {
        batch_max,
        growth_bytes,
    })
}

fn look(world: &World) -> Snapshot {
    snapshot(world.values().map(|(replica, _)| *replica))
}

fn candidates(world: &World, limits: &RepackLimits) -> BTreeSet<ReplicaId> {
    let some = world
        .values()
        .filter(|(replica, _)| replica.is_candidate(limits));
    some.map(|(replica, _)| replica.id).collect()
}

/// Requests and KV bytes of each replica once the plan is carried out.
fn carried_out(world: &World, plan: &Plan) -> BTreeMap<ReplicaId, Vec<Request>> {
    let requests = |(id, (_, requests)): (&u64, &(Replica, Vec<Request>))| (*id, requests.clone());
    let mut held: BTreeMap<_, _> = world.iter().map(requests).collect();
    for Move {
        source,
        destination,
        ..
    } in &plan.moves
    {
        let taken = std::mem::take(held.get_mut(source).unwrap());
        held.get_mut(destination).unwrap().extend(taken);
    }
    held
}

/// Returns true when the requests of `source` could be put to those of `destination`.
fn fits(
    world: &World,
    held: &BTreeMap<ReplicaId, Vec<Request>>,
    limits: &RepackLimits,
    source: ReplicaId,
    destination: ReplicaId,
) -> bool {
    let all = || held[&source].iter().chain(&held[&destination]);
    let bytes: u64 = all().map(|(_, bytes)| bytes + limits.growth_bytes).sum();
    bytes <= world[&destination].0.kv_capacity && all().count() <= limits.batch_max as usize
}

proptest! {
    #[test]
    fn no_request_is_lost_or_doubled_and_no_limit_is_passed(
        world in any_world(20..120),
        limits in any_limits(),
    ) {
        let plan = plan(&look(&world), &limits);
        let held = carried_out(&world, &plan);
        let mut before: Vec<_> = world.values().flat_map(|(_, requests)| requests).collect();
        let mut after: Vec<_> = held.values().flatten().collect();
        before.sort_unstable();
        after.sort_unstable();
        prop_assert_eq!(before, after);
        for planned in &plan.moves {
            prop_assert!(held[&planned.source].is_empty(), "{} is not empty", planned.source);
            let moved = &world[&planned.source].1;
            prop_assert_eq!(planned.requests as usize, moved.len());
            prop_assert_eq!(planned.kv_bytes, moved.iter().map(|(_, bytes)| bytes).sum::<u64>());
            let there = &held[&planned.destination];
            prop_assert!(there.len() <= limits.batch_max as usize);
            let bytes: u64 = there.iter().map(|(_, bytes)| bytes + limits.growth_bytes).sum();
            prop_assert!(bytes <= world[&planned.destination].0.kv_capacity);
        }
    }

    #[test]
    fn only_candidates_of_one_version_take_part_and_each_in_one_role(
        world in any_world(20..120),
        limits in any_limits(),
    ) {
        let plan = plan(&look(&world), &limits);
        let candidates = candidates(&world, &limits);
        let sources: BTreeSet<_> = plan.emptied().collect();
        prop_assert_eq!(sources.len(), plan.moves.len(), "a source is emptied once");
        for planned in &plan.moves {
            let Move { source, destination, version, .. } = *planned;
            prop_assert!(candidates.contains(&source) && candidates.contains(&destination));
            prop_assert!(!sources.contains(&destination), "{} is both", destination);
            prop_assert_eq!(world[&source].0.version, version);
            prop_assert_eq!(world[&destination].0.version, version);
        }
        for version in 0..3 {
            let of = candidates.iter().filter(|id| world[id].0.version == version).count();
            let emptied = plan.moves.iter().filter(|planned| planned.version == version).count();
            prop_assert!(emptied <= of.saturating_sub(1), "one of a version remains");
        }
    }

    /// With whatever capacities, of those that have taken nothing in.
    #[test]
    fn nobody_that_remains_untouched_could_have_been_moved(
        world in any_world(20..120),
        limits in any_limits(),
    ) {
        let plan = plan(&look(&world), &limits);
        let held = carried_out(&world, &plan);
        let absorbed: BTreeSet<_> = plan.moves.iter().map(|planned| planned.destination).collect();
        let mut remaining = candidates(&world, &limits);
        remaining.retain(|id| !held[id].is_empty());
        for source in remaining.difference(&absorbed) {
            for destination in remaining.iter().filter(|id| *id != source) {
                let same = world[source].0.version == world[destination].0.version;
                prop_assert!(
                    !same || !fits(&world, &held, &limits, *source, *destination),
                    "{} fits to {}", source, destination
                );
            }
        }
    }

    /// With equal capacities, of all that remain, with what they have taken in.
    #[test]
    fn no_two_that_remain_could_be_put_together_when_capacities_are_equal(
        world in any_world(100..101),
        limits in any_limits(),
    ) {
        let plan = plan(&look(&world), &limits);
        let held = carried_out(&world, &plan);
        let mut remaining = candidates(&world, &limits);
        remaining.retain(|id| !held[id].is_empty());
        for source in &remaining {
            for destination in remaining.iter().filter(|id| *id != source) {
                let same = world[source].0.version == world[destination].0.version;
                prop_assert!(
                    !same || !fits(&world, &held, &limits, *source, *destination),
                    "{} fits to {}", source, destination
                );
            }
        }
    }

    #[test]
    fn the_order_of_a_look_does_not_matter(
        world in any_world(20..120),
        limits in any_limits(),
    ) {
        let forwards = look(&world);
        let backwards = snapshot(world.values().rev().map(|(replica, _)| *replica));
        prop_assert_eq!(plan(&forwards, &limits), plan(&backwards, &limits));
    }

    /// Each planned move is still allowed when its turn comes, with the ones before under way.
    #[test]
    fn a_plan_can_be_carried_out_when_nothing_has_changed(
        world in any_world(20..120),
        limits in any_limits(),
    ) {
        let now = look(&world);
        let plan = plan(&now, &limits);
        for (at, planned) in plan.moves.iter().enumerate() {
            prop_assert_eq!(can_fit(planned, &now, &plan.moves[..at], &limits), Ok(()));
        }
    }
}

//! The order of a chain under random changes, and elections.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn order(chain: &Chain) -> Vec<RelayId> {
    chain.relays().collect()
}

fn told(rewiring: &Rewiring) -> BTreeSet<Peer> {
    rewiring.places.iter().map(|(peer, _)| *peer).collect()
}

#[test]
fn a_relay_that_is_lost_makes_its_neighbours_each_others() {
    let mut chain = chain_of(1..5);
    assert_eq!((order(&chain), chain.master()), (vec![1, 2, 3, 4], Some(1)));
    let rewiring = chain.splice_out(2).unwrap();
    assert_eq!(told(&rewiring), [1, 3].map(Peer::Relay).into());
    let edge = |peer| Some(Edge { peer, term: 5 });
    let first = chain.place(Peer::Relay(1)).unwrap();
    assert_eq!(first.downstream, edge(Peer::Relay(3)));
    assert_eq!(
        chain.place(Peer::Relay(3)).unwrap().upstream,
        edge(Peer::Relay(1))
    );
    assert_eq!(chain.splice_out(2), Err(ChainError::Unknown(2)));
    let rewiring = chain.join_after(2, 1).unwrap();
    assert_eq!(told(&rewiring), [1, 2, 3].map(Peer::Relay).into());
    assert_eq!(order(&chain), [1, 2, 3, 4]);
    assert_eq!(chain.join(3), Err(ChainError::Known(3)));
}

#[test]
fn a_new_life_of_the_trainer_is_a_neighbour_anew() {
    let mut chain = chain_of(1..4);
    let before = chain.place(Peer::Relay(1)).unwrap();
    let rewiring = chain.renew_trainer();
    assert_eq!(told(&rewiring), [Peer::Trainer, Peer::Relay(1)].into());
    assert_eq!((order(&chain), chain.master()), (vec![1, 2, 3], Some(1)));
    let after = chain.place(Peer::Relay(1)).unwrap();
    assert_ne!(
        after.upstream, before.upstream,
        "it says anew what it wants"
    );
    assert_eq!(after.downstream, before.downstream);
    let alone = Chain::new(0).renew_trainer();
    assert_eq!(told(&alone), [Peer::Trainer].into());
}

#[test]
fn a_lost_master_leaves_the_others_in_order_until_one_is_elected() {
    let mut chain = chain_of(1..5);
    let rewiring = chain.splice_out(1).unwrap();
    assert_eq!(told(&rewiring), [Peer::Trainer, Peer::Relay(2)].into());
    assert_eq!((order(&chain), chain.master()), (vec![2, 3, 4], None));
    assert_eq!(chain.elect(&[]), Err(ElectionError::NobodyAnswered));
    let lost = holding(1, Some(9), None);
    assert_eq!(chain.elect(&[lost]), Err(ElectionError::NobodyAnswered));
    let rewiring = chain.elect(&[lost, holding(3, Some(4), None)]).unwrap();
    assert_eq!((order(&chain), chain.master()), (vec![3, 2, 4], Some(3)));
    assert_eq!(rewiring.places.len(), 4);
    assert_eq!(chain.elect(&[lost]), Err(ElectionError::HasMaster(3)));
    let next = Chain::new(chain.term()).join(7).unwrap();
    assert!(
        next.term > rewiring.term,
        "orders of the chain before are older"
    );
}

#[test]
fn the_newest_version_then_the_most_chunks_then_the_lowest_id_is_elected() {
    let check = |holdings: &[Holding], expect| {
        let mut chain = chain_of(0..6);
        let _ = chain.splice_out(0).unwrap();
        let _ = chain.elect(holdings).unwrap();
        assert_eq!(chain.master(), Some(expect));
    };
    let none = |relay| holding(relay, None, None);
    check(&[none(4), none(2), none(3)], 2);
    check(&[none(1), holding(4, Some(0), None)], 4);
    let many_of_old = holding(1, Some(3), Some((4, 90)));
    let few_of_new = holding(5, Some(3), Some((5, 1)));
    check(&[many_of_old, few_of_new], 5);
    check(&[many_of_old, holding(5, Some(4), None)], 5);
    check(&[few_of_new, holding(2, Some(3), Some((5, 1)))], 2);
    // Nobody has a chunk of the newest: what there is of an older one does not count.
    check(&[many_of_old, holding(2, Some(3), Some((5, 0)))], 1);
}

/// Neighbours know each other by the same term, and the ends have none.
fn is_sound(chain: &Chain, model: &[RelayId]) {
    assert_eq!(order(chain), model);
    assert_eq!(
        (chain.len(), chain.is_empty()),
        (model.len(), model.is_empty())
    );
    let place = |relay: RelayId| chain.place(Peer::Relay(relay)).unwrap();
    for pair in model.windows(2) {
        let (down, up) = (
            place(pair[0]).downstream.unwrap(),
            place(pair[1]).upstream.unwrap(),
        );
        assert_eq!(
            (down.peer, up.peer),
            (Peer::Relay(pair[1]), Peer::Relay(pair[0]))
        );
        assert_eq!(down.term, up.term);
    }
    if let (Some(first), Some(last)) = (model.first(), model.last()) {
        assert_eq!(place(*last).downstream, None);
        let trainer = chain.place(Peer::Trainer).unwrap();
        match chain.master() {
            Some(master) => {
                assert_eq!(master, *first);
                let up = place(master).upstream.unwrap();
                assert_eq!(
                    (up.peer, Some(up.term)),
                    (Peer::Trainer, trainer.downstream.map(|e| e.term))
                );
            }
            None => assert_eq!((place(*first).upstream, trainer.downstream), (None, None)),
        }
    }
}

fn neighbours(chain: &Chain) -> BTreeMap<Peer, (Option<Edge>, Option<Edge>)> {
    let peers = chain.relays().map(Peer::Relay).chain([Peer::Trainer]);
    let known = |peer| {
        let place = chain.place(peer)?;
        Some((peer, (place.upstream, place.downstream)))
    };
    peers.filter_map(known).collect()
}

proptest! {
    /// Whatever happens the order is that of a list, whoever has another neighbour is told and
    /// nobody else, and members that are told late or out of turn come to the same end.
    #[test]
    fn a_chain_is_as_a_list_and_its_members_know_their_places(
        changes in prop::collection::vec((0..6_u8, 0..12_u64, 0..12_u64), 0..80),
        shuffle in any::<u64>(),
    ) {
        let mut chain = Chain::new(0);
        let mut model: Vec<RelayId> = vec![];
        let mut orders: Vec<(Peer, Place)> = vec![];
        for (change, relay, other) in changes {
            let (before, term) = (neighbours(&chain), chain.term());
            let at = model.iter().position(|known| *known == relay);
            let rewiring = match change {
                0 | 1 => chain.join(relay).ok().inspect(|_| model.push(relay)),
                2 => chain.join_after(relay, other).ok().inspect(|_| {
                    let after = model.iter().position(|known| *known == other).unwrap();
                    model.insert(after + 1, relay);
                }),
                3 | 4 => chain.splice_out(relay).ok().inspect(|_| {
                    model.remove(at.unwrap());
                }),
                _ => chain.elect(&[holding(relay, Some(other), None)]).ok().inspect(|_| {
                    let master = model.remove(at.unwrap());
                    model.insert(0, master);
                }),
            };
            is_sound(&chain, &model);
            let Some(rewiring) = rewiring else {
                prop_assert_eq!((before, term), (neighbours(&chain), chain.term()));
                continue;
            };
            prop_assert_eq!(rewiring.term, chain.term());
            prop_assert!(rewiring.term > term && rewiring.places.len() <= 5);
            let after = neighbours(&chain);
            let changed: BTreeSet<_> = after
                .iter()
                .filter(|(peer, now)| before.get(peer) != Some(now))
                .map(|(peer, _)| *peer)
                .collect();
            prop_assert_eq!(&told(&rewiring), &changed);
            for (peer, place) in &rewiring.places {
                prop_assert_eq!(Some(*place), chain.place(*peer));
            }
            orders.extend(rewiring.places);
        }
        let mut dice = world::Dice::new(shuffle);
        for at in (1..orders.len()).rev() {
            orders.swap(at, dice.below(at as u64 + 1) as usize);
        }
        let mut members: BTreeMap<Peer, Member> = BTreeMap::new();
        for (peer, place) in orders {
            let _ = members.entry(peer).or_default().ordered(place);
        }
        for peer in chain.relays().map(Peer::Relay) {
            prop_assert_eq!(Some(members[&peer].place()), chain.place(peer));
        }
    }

    /// By the words of the rule: one condition after the other.
    #[test]
    fn an_election_follows_its_rule(
        holdings in prop::collection::btree_map(
            1..9_u64,
            (prop::option::of(0..3_u64), prop::option::of((3..6_u64, 0..4_u32))),
            1..8,
        ),
    ) {
        let mut chain = chain_of(0..9);
        let _ = chain.splice_out(0).unwrap();
        let all: Vec<_> = holdings
            .iter()
            .map(|(relay, (complete, incoming))| holding(*relay, *complete, *incoming))
            .collect();
        let _ = chain.elect(&all).unwrap();
        let mut left = all;
        let complete = left.iter().map(|held| held.complete).max().unwrap();
        left.retain(|held| held.complete == complete);
        let newest = left.iter().filter_map(|held| held.incoming).map(|coming| coming.0).max();
        let chunks = |held: &Holding| {
            held.incoming.filter(|coming| Some(coming.0) == newest).map_or(0, |coming| coming.1)
        };
        let most = left.iter().map(chunks).max().unwrap();
        left.retain(|held| chunks(held) == most);
        prop_assert_eq!(chain.master(), left.iter().map(|held| held.relay).min());
    }
}

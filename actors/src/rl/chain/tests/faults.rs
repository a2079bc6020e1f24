//! Members that are lost and come back, links that lose and damage: in the end everybody has the
//! newest version, and nobody was sent twice what it had.

use super::super::delta::Word;
use super::super::*;
use super::world::{Links, World};
use crate::trajectory::Version;

const SEEDS: u64 = 1_000;

/// Draws faults and changes for members in a world, one at a time.
struct Fate {
    world: World,
    next_relay: RelayId,
    /// Lost, and that is not noticed yet.
    unnoticed: Vec<RelayId>,
    /// Lost, with the version that outlives its process.
    lost: Vec<(RelayId, Option<Version>)>,
    /// Taken for lost, though they are not.
    shunned: Vec<RelayId>,
}

impl Fate {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed, calm(), Forms::Full);
        let links = Links {
            startup: 5,
            per_byte: 1,
            jitter: 1 + world.dice.below(30),
            lost: world.dice.below(60),
            damaged: world.dice.below(60),
            patience: Some(300 + world.dice.below(300)),
        };
        let forms = match world.dice.below(2) {
            0 => Forms::Full,
            _ => Forms::Changes(Word::Two),
        };
        let mut world = World::new(seed, links, forms);
        let relays = 1 + world.dice.below(7);
        for relay in 0..relays {
            world.begin(Peer::Relay(relay), None);
            let rewiring = world.chain.join(relay).unwrap();
            world.tell(rewiring);
        }
        Self {
            world,
            next_relay: relays,
            unnoticed: vec![],
            lost: vec![],
            shunned: vec![],
        }
    }

    fn relays(&self) -> Vec<RelayId> {
        let relay = |peer: &Peer| match peer {
            Peer::Relay(relay) => Some(*relay),
            Peer::Trainer => None,
        };
        self.world.nodes.keys().filter_map(relay).collect()
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let at = self.world.dice.below(of.len().max(1) as u64);
        of.get(at as usize).copied()
    }

    /// A few changed words, or all of them, or another length.
    fn publish(&mut self) {
        let world = &mut self.world;
        let (version, mut bytes) = match world.versions.last_key_value() {
            Some((version, (_, bytes))) => (version + 1, bytes.clone()),
            None => (0, vec![7; 90]),
        };
        match world.dice.below(8) {
            0 => bytes = vec![version as u8; 40 + world.dice.below(120) as usize],
            1 => bytes
                .iter_mut()
                .for_each(|byte| *byte = byte.wrapping_add(1)),
            _ => {
                for _ in 0..world.dice.below(6) {
                    let at = world.dice.below(bytes.len() as u64) as usize;
                    bytes[at] = world.dice.below(256) as u8;
                }
            }
        }
        let manifest = Manifest::of(version, &bytes, 8).unwrap();
        world.publish(manifest, bytes);
    }

    fn lose(&mut self) {
        let relays = self.relays();
        // Half of the time the master.
        let master = self
            .world
            .chain
            .master()
            .filter(|master| relays.contains(master));
        let Some(relay) = (match self.world.dice.below(2) {
            0 => master,
            _ => self.one_of(&relays),
        }) else {
            return;
        };
        let node = self.world.nodes.remove(&Peer::Relay(relay)).unwrap();
        let kept = node.member.inbox().latest();
        let kept = kept.filter(|_| self.world.dice.happens(300));
        self.shunned.retain(|shunned| *shunned != relay);
        self.lost.push((relay, kept));
        self.unnoticed.push(relay);
    }

    fn notice(&mut self) {
        for relay in std::mem::take(&mut self.unnoticed) {
            if let Ok(rewiring) = self.world.chain.splice_out(relay) {
                self.world.tell(rewiring);
            }
        }
        self.world.elect();
    }

    /// Takes one for lost that is not: it is told nothing.
    fn shun(&mut self) {
        let members: Vec<_> = self.world.chain.relays().collect();
        if let Some(relay) = self.one_of(&members)
            && self.world.nodes.contains_key(&Peer::Relay(relay))
        {
            let rewiring = self.world.chain.splice_out(relay).unwrap();
            self.world.tell(rewiring);
            self.shunned.push(relay);
            self.world.elect();
        }
    }

    fn join(&mut self, relay: RelayId) {
        let members: Vec<_> = self.world.chain.relays().collect();
        let behind = self.one_of(&members);
        let rewiring = match behind.filter(|_| self.world.dice.happens(500)) {
            Some(behind) => self.world.chain.join_after(relay, behind),
            None => self.world.chain.join(relay),
        };
        self.world.tell(rewiring.unwrap());
    }

    fn come_back(&mut self) {
        if let Some(relay) = self.shunned.pop() {
            return self.join(relay);
        }
        let (relay, kept) = match self.lost.pop() {
            Some((relay, kept)) => (relay, kept),
            None if self.next_relay < 9 => (self.next_relay, None),
            None => return,
        };
        self.next_relay = self.next_relay.max(relay + 1);
        self.notice();
        self.world.begin(Peer::Relay(relay), kept);
        self.join(relay);
    }

    fn restart_trainer(&mut self) {
        let newest = self.world.versions.keys().next_back().copied();
        self.world.begin(Peer::Trainer, newest);
        if let Some(place) = self.world.chain.place(Peer::Trainer) {
            let term = place.term;
            let places = vec![(Peer::Trainer, place)];
            self.world.tell(Rewiring { term, places });
        }
    }

    fn happen(&mut self) {
        match self.world.dice.below(12) {
            0..=3 => self.publish(),
            4..=5 => self.lose(),
            6..=7 => self.notice(),
            8..=9 => self.come_back(),
            10 => self.shun(),
            _ => self.restart_trainer(),
        }
    }
}

const fn calm() -> Links {
    Links {
        startup: 5,
        per_byte: 1,
        jitter: 0,
        lost: 0,
        damaged: 0,
        patience: None,
    }
}

/// The versions that were complete somewhere, the chunks sent as changes, and those taken.
fn live(seed: u64) -> (u64, u64) {
    let mut fate = Fate::new(seed);
    fate.publish();
    for _ in 0..10 + fate.world.dice.below(40) {
        let pause = fate.world.dice.below(400);
        fate.world.pass(fate.world.now + pause);
        fate.happen();
    }
    // From now on nothing more goes wrong.
    fate.world.links = Links {
        jitter: 10,
        patience: fate.world.links.patience,
        ..calm()
    };
    fate.notice();
    while !fate.shunned.is_empty() || fate.relays().is_empty() {
        fate.come_back();
    }
    fate.publish();
    fate.world.pass(fate.world.now + 100_000);
    let newest = fate.world.versions.keys().next_back().copied();
    assert_eq!(fate.world.chain.len(), fate.relays().len(), "seed {seed}");
    let mut taken = 0;
    for relay in fate.relays() {
        let node = &fate.world.nodes[&Peer::Relay(relay)];
        let latest = node.member.inbox().latest();
        assert_eq!(latest, newest, "seed {seed}: relay {relay} is left behind");
        taken += node.taken;
    }
    (taken, fate.world.deltas)
}

#[test]
fn everybody_has_the_newest_version_when_things_have_settled() {
    let (mut taken, mut deltas) = (0, 0);
    for seed in 0..SEEDS {
        let of_seed = live(seed);
        taken += of_seed.0;
        deltas += of_seed.1;
    }
    assert!(
        taken > 10_000 && deltas > 10_000,
        "too little has happened: {taken}, {deltas}"
    );
}

/// A chain of six in the middle of a broadcast.
fn in_the_middle() -> World {
    let mut world = World::new(0, calm(), Forms::Full);
    for relay in 0..6 {
        world.begin(Peer::Relay(relay), None);
        let rewiring = world.chain.join(relay).unwrap();
        world.tell(rewiring);
    }
    while world.step() {}
    let bytes: Vec<u8> = (0..320_u32).map(|at| (at * 7) as u8).collect();
    world.publish(Manifest::of(1, &bytes, 8).unwrap(), bytes);
    // A chunk takes 13.
    world.pass(20 * 13 - 5);
    world
}

/// Chunks that each relay was sent beyond the forty that there are, when all have them.
fn sent_beyond(mut world: World) -> Vec<u64> {
    while world.step() {}
    let relays: Vec<_> = world.chain.relays().collect();
    let beyond = |relay: &RelayId| {
        let node = &world.nodes[&Peer::Relay(*relay)];
        assert_eq!(
            (node.member.inbox().latest(), node.taken),
            (Some(1), 40),
            "{relay}"
        );
        node.sent - 40
    };
    relays.iter().map(beyond).collect()
}

#[test]
fn a_lost_relay_costs_the_one_behind_it_what_was_on_the_way() {
    let mut world = in_the_middle();
    world.nodes.remove(&Peer::Relay(2));
    let rewiring = world.chain.splice_out(2).unwrap();
    world.tell(rewiring);
    assert_eq!(
        sent_beyond(world),
        [0, 0, 1, 0, 0],
        "one chunk was on the way to relay 3"
    );
}

#[test]
fn a_lost_master_costs_the_next_what_was_on_the_way() {
    let mut world = in_the_middle();
    world.nodes.remove(&Peer::Relay(0));
    let rewiring = world.chain.splice_out(0).unwrap();
    world.tell(rewiring);
    world.elect();
    assert_eq!(world.chain.master(), Some(1), "it has the most chunks");
    assert_eq!(sent_beyond(world), [1, 0, 0, 0, 0]);
}

#[test]
fn versions_arrive_even_when_the_trainer_is_quicker_than_the_links() {
    let mut world = in_the_middle();
    for version in 2..42 {
        // A broadcast takes some 600.
        world.pass(world.now + 100);
        let bytes = vec![version as u8; 320];
        world.publish(Manifest::of(version, &bytes, 8).unwrap(), bytes);
    }
    for relay in 0..6 {
        let seen = world.nodes[&Peer::Relay(relay)].complete_at.len();
        assert!(seen >= 5, "{seen} versions at {relay}");
    }
    while world.step() {}
    for relay in 0..6 {
        let node = &world.nodes[&Peer::Relay(relay)];
        assert_eq!(node.member.inbox().latest(), Some(41));
    }
}

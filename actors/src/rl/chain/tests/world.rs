//! A trainer and relays in virtual time, with whoever watches over them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::delta::{self, Delta, Word};
use super::super::*;
use crate::trajectory::Version;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// True in `part` of 1000 cases.
    pub(super) fn happens(&mut self, part: u64) -> bool {
        self.below(1000) < part
    }
}

/// Delays and faults of links. Times are in one unit, whichever.
#[derive(Clone, Copy)]
pub(super) struct Links {
    /// A chunk takes this, and
    pub(super) startup: u64,
    /// this for each byte. What a chunk is told by takes no time.
    pub(super) per_byte: u64,
    /// Each message is late by less than this.
    pub(super) jitter: u64,
    /// Of 1000 messages so many are lost.
    pub(super) lost: u64,
    /// Of 1000 chunks so many are damaged.
    pub(super) damaged: u64,
    /// A member that has taken nothing in for this long asks again.
    pub(super) patience: Option<u64>,
}

/// A message, to one life of a member: connections do not outlive a process.
enum Event {
    Order(Place),
    Request(Peer, Request),
    Parcel(LinkKey, Parcel, Payload),
    Free,
    Patience,
}

enum Payload {
    None,
    Bytes(Vec<u8>),
    Delta(Delta),
}

pub(super) struct Node {
    pub(super) member: Member,
    pub(super) bytes: BTreeMap<Version, Vec<u8>>,
    life: u64,
    /// Set when a chunk is on the link behind it.
    busy: bool,
    /// Set when a chunk was taken in since the last look.
    fed: bool,
    best: Option<Version>,
    /// When each version was complete.
    pub(super) complete_at: BTreeMap<Version, u64>,
    /// Chunks that it was sent, and those that it has taken.
    pub(super) sent: u64,
    pub(super) taken: u64,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) now: u64,
    pub(super) dice: Dice,
    pub(super) links: Links,
    pub(super) chain: Chain,
    pub(super) nodes: BTreeMap<Peer, Node>,
    pub(super) versions: BTreeMap<Version, (Manifest, Vec<u8>)>,
    /// Chunks that travelled as what has changed.
    pub(super) deltas: u64,
    forms: Forms,
    events: BTreeMap<(u64, u64), (Peer, u64, Event)>,
    count: u64,
    lives: u64,
}

impl World {
    pub(super) fn new(seed: u64, links: Links, forms: Forms) -> Self {
        let mut world = Self {
            seed,
            now: 0,
            dice: Dice::new(seed),
            links,
            chain: Chain::new(0),
            nodes: BTreeMap::new(),
            versions: BTreeMap::new(),
            deltas: 0,
            forms,
            events: BTreeMap::new(),
            count: 0,
            lives: 0,
        };
        world.begin(Peer::Trainer, None);
        world
    }

    /// A new life of a member, with this version from the life before.
    pub(super) fn begin(&mut self, peer: Peer, kept: Option<Version>) {
        self.lives += 1;
        let mut node = Node {
            member: Member::new(self.forms),
            bytes: BTreeMap::new(),
            life: self.lives,
            busy: false,
            fed: false,
            best: kept,
            complete_at: BTreeMap::new(),
            sent: 0,
            taken: 0,
        };
        if let Some(version) = kept {
            let (manifest, bytes) = self.versions[&version].clone();
            node.member.put(manifest).unwrap();
            node.bytes.insert(version, bytes);
        }
        self.nodes.insert(peer, node);
        if let Some(patience) = self.links.patience {
            self.later(patience, peer, Event::Patience);
        }
    }

    /// The trainer has made a version.
    pub(super) fn publish(&mut self, manifest: Manifest, bytes: Vec<u8>) {
        let version = manifest.version();
        self.versions
            .insert(version, (manifest.clone(), bytes.clone()));
        let trainer = self.nodes.get_mut(&Peer::Trainer).unwrap();
        trainer.member.put(manifest).unwrap();
        trainer.bytes.insert(version, bytes);
        self.prune(Peer::Trainer);
        self.pump(Peer::Trainer);
    }

    /// Tells the members of a change.
    pub(super) fn tell(&mut self, rewiring: Rewiring) {
        for (peer, place) in rewiring.places {
            let late = self.late();
            self.later(late, peer, Event::Order(place));
        }
    }

    /// Elects a master when there is none and somebody answers.
    pub(super) fn elect(&mut self) {
        let answers = |relay| {
            Some(
                self.nodes
                    .get(&Peer::Relay(relay))?
                    .member
                    .inbox()
                    .holding(relay),
            )
        };
        let holdings: Vec<_> = self.chain.relays().filter_map(answers).collect();
        if let Ok(rewiring) = self.chain.elect(&holdings) {
            self.tell(rewiring);
        }
    }

    /// Lets time pass up to the next event, and past it. Returns true if there was one.
    pub(super) fn step(&mut self) -> bool {
        let Some(((now, _), (peer, life, event))) = self.events.pop_first() else {
            return false;
        };
        self.now = now;
        if self.nodes.get(&peer).is_some_and(|node| node.life == life) {
            self.happen(peer, event);
            self.check(peer);
        }
        true
    }

    /// Lets all events up to a moment happen.
    pub(super) fn pass(&mut self, until: u64) {
        while self
            .events
            .first_key_value()
            .is_some_and(|((at, _), _)| *at <= until)
        {
            self.step();
        }
        self.now = until;
    }

    fn late(&mut self) -> u64 {
        match self.links.jitter {
            0 => 0,
            jitter => self.dice.below(jitter),
        }
    }

    fn later(&mut self, after: u64, peer: Peer, event: Event) {
        if let Some(node) = self.nodes.get(&peer) {
            self.count += 1;
            self.events
                .insert((self.now + after, self.count), (peer, node.life, event));
        }
    }

    fn node(&mut self, peer: Peer) -> &mut Node {
        self.nodes.get_mut(&peer).unwrap()
    }

    fn happen(&mut self, peer: Peer, event: Event) {
        match event {
            Event::Order(place) => {
                let request = self.node(peer).member.ordered(place).unwrap_or_default();
                self.ask(peer, request);
            }
            Event::Request(from, request) => {
                self.node(peer).member.asked(from, request);
                self.prune(peer);
            }
            Event::Parcel(key, Parcel::Begin(manifest), _) => self.offered(peer, key, manifest),
            Event::Parcel(
                key,
                Parcel::Chunk {
                    version,
                    chunk,
                    form,
                },
                payload,
            ) => {
                self.received(peer, key, (version, chunk), form, payload);
            }
            Event::Free => self.node(peer).busy = false,
            Event::Patience => {
                let node = self.node(peer);
                let request = match std::mem::take(&mut node.fed) {
                    true => None,
                    false => node.member.stalled(),
                };
                self.ask(peer, request);
                let patience = self.links.patience.unwrap_or(1);
                self.later(patience, peer, Event::Patience);
            }
        }
        self.pump(peer);
    }

    fn ask(&mut self, from: Peer, request: Option<Request>) {
        let upstream = self.node(from).member.place().upstream;
        if let (Some(request), Some(upstream)) = (request, upstream)
            && !self.dice.happens(self.links.lost)
        {
            let late = self.late();
            self.later(late, upstream.peer, Event::Request(from, request));
        }
    }

    fn offered(&mut self, peer: Peer, key: LinkKey, manifest: Manifest) {
        let (version, bytes) = (manifest.version(), manifest.bytes());
        let node = self.node(peer);
        match node.member.offered(key, manifest) {
            Offered::Begun(begun) => {
                if let Begun::Superseded(given_up) = begun {
                    node.bytes.remove(&given_up);
                }
                if begun != Begun::Resumed {
                    node.bytes.insert(version, vec![0; bytes as usize]);
                }
            }
            Offered::Refused(_, got) => self.ask(peer, Some(got)),
            Offered::Ignored => {}
        }
    }

    fn received(
        &mut self,
        peer: Peer,
        key: LinkKey,
        (version, chunk): (Version, u32),
        form: Form,
        payload: Payload,
    ) {
        let (seed, now) = (self.seed, self.now);
        let node = self.nodes.get_mut(&peer).unwrap();
        let whole = match (payload, form) {
            (Payload::Bytes(bytes), _) => Ok(bytes),
            (Payload::Delta(delta), Form::Since(base)) => {
                let range = node
                    .member
                    .inbox()
                    .manifest(base)
                    .and_then(|known| known.range(chunk));
                let range = range.map(|range| range.start as usize..range.end as usize);
                match (node.bytes.get(&base), range) {
                    (Some(base), Some(range)) => delta.apply(&base[range]).map_err(|_| ()),
                    _ => Err(()),
                }
            }
            _ => Err(()),
        };
        let Ok(bytes) = whole else {
            let request = node.member.unreadable(key, version, chunk);
            return self.ask(peer, request);
        };
        let received = node
            .member
            .received(key, version, chunk, Arrived::of(&bytes));
        if matches!(received, Received::More | Received::Complete { .. }) {
            node.fed = true;
            node.taken += 1;
            let range = node
                .member
                .inbox()
                .manifest(version)
                .unwrap()
                .range(chunk)
                .unwrap();
            let place = node.bytes.get_mut(&version).unwrap();
            place[range.start as usize..range.end as usize].copy_from_slice(&bytes);
        }
        match received {
            Received::More => {}
            Received::Complete { version, got } => {
                node.complete_at.insert(version, now);
                assert_eq!(
                    node.bytes[&version], self.versions[&version].1,
                    "seed {seed}"
                );
                self.ask(peer, Some(got));
                self.prune(peer);
            }
            Received::Again(again) => self.ask(peer, Some(again)),
            Received::Ignored(refusal) => assert!(
                !matches!(refusal, Refusal::Duplicate(_)),
                "seed {seed}: {peer:?} was sent a chunk that it has"
            ),
        }
    }

    fn prune(&mut self, peer: Peer) {
        let node = self.node(peer);
        for version in node.member.prune() {
            node.bytes.remove(&version);
        }
    }

    /// Sends what can be sent now: one chunk at a time.
    fn pump(&mut self, peer: Peer) {
        while !self.node(peer).busy
            && let Some((to, key, parcel)) = self.node(peer).member.next_parcel()
        {
            let (payload, takes) = self.payload(peer, &parcel);
            if let Parcel::Chunk { .. } = parcel {
                self.node(peer).busy = true;
                self.later(takes, peer, Event::Free);
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.sent += 1;
                }
            }
            if !self.dice.happens(self.links.lost) {
                let late = takes + self.late();
                self.later(late, to, Event::Parcel(key, parcel, payload));
            }
        }
    }

    /// The bytes of a chunk, perhaps damaged, and what they take.
    fn payload(&mut self, peer: Peer, parcel: &Parcel) -> (Payload, u64) {
        let Parcel::Chunk {
            version,
            chunk,
            form,
        } = *parcel
        else {
            return (Payload::None, 0);
        };
        let node = &self.nodes[&peer];
        let range = node
            .member
            .inbox()
            .manifest(version)
            .unwrap()
            .range(chunk)
            .unwrap();
        let range = range.start as usize..range.end as usize;
        let mut bytes = node.bytes[&version][range.clone()].to_vec();
        let delta = match form {
            Form::Full => None,
            Form::Since(base) => delta::encode(&node.bytes[&base][range], &bytes, Word::Two),
        };
        let damaged = self.dice.happens(self.links.damaged);
        let at = self.dice.below(bytes.len() as u64) as usize;
        let Some(mut delta) = delta else {
            bytes[at] ^= u8::from(damaged);
            let takes = self.links.startup + self.links.per_byte * bytes.len() as u64;
            return (Payload::Bytes(bytes), takes);
        };
        self.deltas += 1;
        if let (true, Delta::Words(runs)) = (damaged, &mut delta) {
            let at = at % runs.len();
            runs[at] ^= 1;
        }
        let takes = self.links.startup + self.links.per_byte * delta.bytes().len() as u64;
        (Payload::Delta(delta), takes)
    }

    /// Checks the invariants of a member.
    fn check(&mut self, peer: Peer) {
        let seed = self.seed;
        let node = self.nodes.get_mut(&peer).unwrap();
        let inbox = node.member.inbox();
        let latest = inbox.latest();
        assert!(
            latest >= node.best,
            "seed {seed}: {peer:?} went back to {latest:?}"
        );
        node.best = latest;
        let there: BTreeSet<_> = node.bytes.keys().copied().collect();
        let known = |version: &Version| inbox.manifest(*version).is_some();
        assert!(
            there.iter().all(known),
            "seed {seed}: {peer:?} keeps what nobody needs"
        );
        // The newest, what is being sent and by what it is told, and what comes in.
        assert!(there.len() <= 4, "seed {seed}: {peer:?} keeps {there:?}");
        if let Some(latest) = latest {
            assert_eq!(
                node.bytes[&latest], self.versions[&latest].1,
                "seed {seed}: {peer:?}"
            );
        }
    }
}

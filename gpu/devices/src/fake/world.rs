//! All fake devices under one virtual clock.

use odeon_topology::{DeviceModel, Level, Topology};
use std::collections::BTreeMap;
use std::time::Duration;

use super::card::Card;
use super::{Spec, Strike, When};
use crate::driver::Side;

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) topology: Topology,
    pub(super) cards: Vec<Card>,
    /// Indices of the cards of each node, in the order of its devices.
    nodes: BTreeMap<String, Vec<usize>>,
    by_name: BTreeMap<String, usize>,
    /// Events to come. The number keeps the order of what happens at one time.
    agenda: BTreeMap<(Duration, u64), (usize, Event)>,
    next: u64,
}

#[derive(Debug)]
enum Event {
    Strike(Strike),
    /// The memory of this process is free.
    Bury(u32),
}

impl World {
    /// Of a specification that was checked.
    pub(super) fn new(spec: Spec, topology: Topology) -> Self {
        let mut world = Self {
            now: Duration::ZERO,
            topology,
            cards: vec![],
            nodes: BTreeMap::new(),
            by_name: BTreeMap::new(),
            agenda: BTreeMap::new(),
            next: 0,
        };
        for element in world.topology.elements() {
            match element.level {
                Level::Node => {
                    world.nodes.entry(element.name.clone()).or_default();
                }
                Level::Device => {
                    let node = world.topology.around(&element.name, Level::Node);
                    let model_name = element.model.clone().unwrap_or_default();
                    let model = spec.cluster.devices.get(&model_name);
                    let (Some(node), Some(model)) = (node, model) else {
                        continue;
                    };
                    let on_node = world.nodes.entry(node.name.clone()).or_default();
                    let card = Card::new(
                        &element.name,
                        on_node.len() as u32,
                        &model_name,
                        model.clone(),
                    );
                    on_node.push(world.cards.len());
                    world.by_name.insert(card.name.clone(), world.cards.len());
                    world.cards.push(card);
                }
                _ => {}
            }
        }
        for fault in spec.faults {
            let Some(&card) = world.by_name.get(&fault.device) else {
                continue;
            };
            match fault.at {
                When::Ms(ms) => {
                    world.later(Duration::from_millis(ms), card, Event::Strike(fault.what));
                }
                When::Operation(number) => world.cards[card].script(number, fault.what),
            }
        }
        world.advance(Duration::ZERO);
        world
    }

    pub(super) fn cards_of(&self, node: &str) -> Option<Vec<usize>> {
        self.nodes.get(node).cloned()
    }

    /// A number that was not given before.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn advance(&mut self, by: Duration) {
        let until = self.now.saturating_add(by);
        while let Some(entry) = self.agenda.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((at, _), (card, event)) = entry.remove_entry();
            self.now = self.now.max(at);
            let now = self.now;
            let card = &mut self.cards[card];
            match event {
                Event::Strike(what) => card.strike(now, what),
                Event::Bury(process) => card.bury(process),
            }
        }
        self.now = until;
    }

    pub(super) fn strike(&mut self, device: &str, what: Strike) -> bool {
        let now = self.now;
        self.by_name
            .get(device)
            .map(|card| self.cards[*card].strike(now, what))
            .is_some()
    }

    pub(super) fn repair(&mut self, device: &str) -> bool {
        self.by_name
            .get(device)
            .map(|card| self.cards[*card].repair())
            .is_some()
    }

    /// A process on this card dies. Its memory is free when the model says.
    pub(super) fn kill(&mut self, card: usize, process: u32) {
        if self.cards[card].kill(process) {
            let at = self
                .now
                .saturating_add(Duration::from_millis(self.cards[card].model.release_ms));
            self.later(at, card, Event::Bury(process));
            self.advance(Duration::ZERO);
        }
    }

    /// The time that a copy should take, without what is before it and without scripted slowness.
    pub(super) fn predict(&self, from: (usize, Side), to: (usize, Side), bytes: u64) -> Duration {
        let latency = Duration::from_nanos(self.cards[from.0].model.latency_ns);
        latency.saturating_add(transfer(bytes, self.bytes_per_second(from, to)))
    }

    fn bytes_per_second(&self, from: (usize, Side), to: (usize, Side)) -> u64 {
        let (a, b) = (&self.cards[from.0], &self.cards[to.0]);
        let slower = |rate: fn(&DeviceModel) -> f64| rate(&a.model).min(rate(&b.model)) as u64;
        let pcie = slower(|model| model.pcie_bytes_per_second);
        if (from.1, to.1) != (Side::Device, Side::Device) {
            return pcie
                .min(self.narrowest(&a.name, Level::Node))
                .min(self.narrowest(&b.name, Level::Node));
        }
        if from.0 == to.0 {
            return slower(|model| model.memory_bytes_per_second);
        }
        let domain = |name: &str| self.topology.get(name).and_then(|it| it.nvlink.as_ref());
        if domain(&a.name).is_some_and(|of| domain(&b.name) == Some(of)) {
            return slower(|model| model.nvlink_bytes_per_second);
        }
        let meeting = self
            .topology
            .common(&a.name, &b.name)
            .map_or(Level::Cluster, |common| common.level);
        pcie.min(self.narrowest(&a.name, meeting))
            .min(self.narrowest(&b.name, meeting))
    }

    /// The narrowest link on the way from a device up to a level.
    fn narrowest(&self, name: &str, level: Level) -> u64 {
        self.topology
            .upwards(name)
            .take_while(|element| element.level > level)
            .filter_map(|element| element.bytes_per_second)
            .min()
            .unwrap_or(u64::MAX)
    }

    fn later(&mut self, at: Duration, card: usize, event: Event) {
        let number = self.number();
        self.agenda.insert((at, number), (card, event));
    }
}

fn transfer(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    let second = 1_000_000_000;
    let seconds = u64::try_from(nanos / second).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanos % second) as u32)
}

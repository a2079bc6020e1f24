//! A model of many processes that tell each other of ways, in any order in which links may deliver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;

/// A process that comes and goes; the others are its number and above.
const GUEST: u64 = 1;
const FIRST: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum News {
    Up { process: u64, hops: u8 },
    Down { process: u64 },
    Ended { process: u64 },
}

/// The time in which longer ways are not believed.
const SETTLING: Duration = Duration::from_secs(10);

struct Node {
    ways: Ways,
    links: BTreeSet<u64>,
}

/// Processes that are linked, and what is under way between them.
struct Model {
    nodes: BTreeMap<u64, Node>,
    under_way: BTreeMap<(u64, u64), VecDeque<News>>,
    now: Timestamp,
    /// The time that passes while one of the news is delivered.
    late: Duration,
    /// The news that were delivered.
    delivered: usize,
    random: StdRng,
}

impl Model {
    /// Processes that are all linked with each other.
    fn mesh(nodes: u64, seed: u64) -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            under_way: BTreeMap::new(),
            now: Timestamp::BEGIN,
            late: Duration::ZERO,
            delivered: 0,
            random: StdRng::seed_from_u64(seed),
        };
        let all: Vec<u64> = (FIRST..FIRST + nodes).collect();
        for node in &all {
            let (ways, links) = (Ways::new(SETTLING), BTreeSet::new());
            model.nodes.insert(*node, Node { ways, links });
        }
        for a in &all {
            for b in all.iter().filter(|b| *b > a) {
                model.link(*a, *b);
            }
        }
        model.settle();
        model.delivered = 0;
        model
    }

    fn links(&self, node: u64) -> BTreeSet<u64> {
        self.nodes[&node].links.clone()
    }

    fn tell(&mut self, from: u64, to: u64, news: News) {
        if self.nodes.contains_key(&to) {
            self.under_way
                .entry((from, to))
                .or_default()
                .push_back(news);
        }
    }

    fn tell_all(&mut self, from: u64, news: News, except: u64) {
        for to in self.links(from) {
            if to != except {
                self.tell(from, to, news);
            }
        }
    }

    /// Links two processes, or a process with the guest.
    fn link(&mut self, a: u64, b: u64) {
        for (me, other) in [(a, b), (b, a)] {
            let Some(node) = self.nodes.get_mut(&me) else {
                continue;
            };
            node.links.insert(other);
            node.ways.forget(ProcessId(other));
            let near = node.links.iter().map(|peer| (*peer, 1));
            let far = node.ways.all().into_iter();
            let far = far.filter(|(_, way)| way.through.0 != other);
            let far = far.map(|(process, way)| (process.0, way.hops + 1));
            let carried: Vec<_> = near.chain(far).filter(|row| row.0 != other).collect();
            for (process, hops) in carried {
                self.tell(me, other, News::Up { process, hops });
            }
            let up = News::Up {
                process: other,
                hops: 1,
            };
            self.tell_all(me, up, other);
        }
    }

    /// A link ends, which each side notes by itself.
    fn unlink(&mut self, me: u64, other: u64) {
        self.under_way.remove(&(other, me));
        let node = self.nodes.get_mut(&me).unwrap();
        if !node.links.remove(&other) {
            return;
        }
        let behind = node.ways.behind(ProcessId(other));
        for process in [ProcessId(other)].into_iter().chain(behind) {
            self.lose(me, process.0, other);
        }
    }

    fn lose(&mut self, me: u64, process: u64, heard_from: u64) {
        let ways = &self.nodes[&me].ways;
        ways.lose(ProcessId(process), self.now);
        let news = match ways.has_ended(ProcessId(process)) {
            true => News::Ended { process },
            false => News::Down { process },
        };
        self.tell_all(me, news, heard_from);
    }

    fn learn(&mut self, me: u64, process: u64, way: Way) {
        let node = &self.nodes[&me];
        let known = process == me || node.links.contains(&process) || way.hops > HOPS_MAX;
        let through = way.through.0;
        if known || !node.links.contains(&through) {
            return;
        }
        if let Learnt::News { before } = node.ways.learn(ProcessId(process), way, self.now) {
            if before.is_some_and(|before| before.0 != through) {
                self.tell(me, through, News::Down { process });
            }
            let hops = way.hops + 1;
            self.tell_all(me, News::Up { process, hops }, through);
        }
    }

    /// Delivers the next news of some link. Returns false if there are none.
    fn deliver(&mut self) -> bool {
        self.under_way.retain(|_, news| !news.is_empty());
        let links: Vec<_> = self.under_way.keys().copied().collect();
        let Some(&(from, to)) = links.choose(&mut self.random) else {
            return false;
        };
        let news = self.under_way.get_mut(&(from, to)).unwrap();
        self.delivered += 1;
        self.now = self.now.after(self.late);
        match news.pop_front().unwrap() {
            News::Up { process, hops } => {
                let through = ProcessId(from);
                self.learn(to, process, Way { hops, through });
            }
            News::Down { process } => {
                let ways = &self.nodes[&to].ways;
                ways.take_back(ProcessId(process), ProcessId(from));
                let way = ways.to(ProcessId(process));
                if way.is_some_and(|way| way.through.0 == from) {
                    self.lose(to, process, from);
                }
            }
            News::Ended { process } => {
                let ways = &self.nodes[&to].ways;
                let is_news = ways.end(ProcessId(process));
                let is_over = match ways.to(ProcessId(process)) {
                    Some(way) => way.through.0 == from,
                    None => is_news,
                };
                if is_over {
                    self.lose(to, process, from);
                }
            }
        }
        true
    }

    /// Delivers all news, and lets the time pass until nothing waits for it.
    fn settle(&mut self) {
        loop {
            while self.deliver() {}
            self.now = self.now.after(SETTLING);
            let mut waits = false;
            for me in self.nodes.keys().copied().collect::<Vec<_>>() {
                let (ways, next) = self.nodes[&me].ways.settled(self.now);
                waits |= !ways.is_empty() || next.is_some();
                for (process, way) in ways {
                    self.learn(me, process.0, way);
                }
            }
            if !waits {
                return;
            }
        }
    }

    /// Checks that each way that is known leads to its process.
    fn leads_where_it_says(&self, seed: u64) {
        for (me, node) in &self.nodes {
            for (process, _) in node.ways.all() {
                let mut at = *me;
                for _ in 0..self.nodes.len() {
                    let here = &self.nodes[&at];
                    if here.links.contains(&process.0) {
                        at = process.0;
                        break;
                    }
                    let way = here.ways.to(process);
                    let way = way
                        .unwrap_or_else(|| panic!("seed {seed}: {at} knows no way to {process}"));
                    at = way.through.0;
                }
                assert_eq!(at, process.0, "seed {seed}: from {me}");
            }
        }
    }
}

/// SEMANTICS 213.
#[test]
fn a_process_that_ends_at_once_is_forgotten_by_all_after_few_news() {
    for seed in 0..200 {
        let nodes = 4 + seed % 9;
        let mut model = Model::mesh(nodes, seed);
        // Its end is known, however late that is heard, or the way to it alone is lost.
        let ended = seed % 3 > 0;
        let late = if ended {
            [0, 5, 50, 500]
        } else {
            [0, 1, 5, 10]
        };
        model.late = Duration::from_millis(late[(seed % 4) as usize]);
        model.link(FIRST, GUEST);
        for _ in 0..model.random.random_range(0..nodes * nodes) {
            model.deliver();
        }
        if ended {
            model.nodes[&FIRST].ways.end(ProcessId(GUEST));
        }
        model.unlink(FIRST, GUEST);
        model.settle();
        for (me, node) in &model.nodes {
            assert_eq!(node.ways.to(ProcessId(GUEST)), None, "seed {seed}: {me}");
        }
        // Each tells all others that it is there and that it is not, and perhaps of a way that was as short.
        let most = 4 * (nodes * nodes) as usize;
        assert!(
            model.delivered <= most,
            "seed {seed}: {} of {most}",
            model.delivered
        );
    }
}

/// SEMANTICS 213.
#[test]
fn ways_lead_where_they_say_whatever_links_end_and_come_back() {
    for seed in 0..300 {
        let nodes = 3 + seed % 6;
        let mut model = Model::mesh(nodes, seed);
        model.link(FIRST, GUEST);
        let any = |model: &mut Model| FIRST + model.random.random_range(0..nodes);
        let mut changes = 0;
        for _ in 0..40 {
            for _ in 0..model.random.random_range(0..20) {
                model.deliver();
            }
            if model.random.random_bool(0.1) {
                model.now = model.now.after(SETTLING / 3);
            }
            let (a, b) = (any(&mut model), any(&mut model));
            if a == b {
                continue;
            }
            changes += 1;
            if model.links(a).contains(&b) && model.links(b).contains(&a) {
                model.unlink(a, b);
                // The other side hears of it some time later.
                for _ in 0..model.random.random_range(0..10) {
                    model.deliver();
                }
                model.unlink(b, a);
            } else {
                model.link(a, b);
            }
        }
        model.settle();
        model.leads_where_it_says(seed);
        let most = changes * nodes.pow(3) as usize;
        assert!(
            model.delivered <= most,
            "seed {seed}: {} of {most}",
            model.delivered
        );
    }
}

/// SEMANTICS 213.
#[test]
fn a_lost_way_is_replaced_at_once_by_one_as_short_and_later_by_a_longer_one() {
    let (ways, process) = (Ways::new(SETTLING), ProcessId(GUEST));
    let way = |through, hops| Way {
        hops,
        through: ProcessId(through),
    };
    let now = Timestamp::BEGIN;
    let news = |before: Option<u64>| Learnt::News {
        before: before.map(ProcessId),
    };
    assert_eq!(ways.learn(process, way(2, 2), now), news(None));
    assert_eq!(ways.learn(process, way(3, 2), now), Learnt::Nothing);
    assert_eq!(ways.learn(process, way(3, 1), now), news(Some(2)));
    ways.lose(process, now);
    assert_eq!(ways.learn(process, way(4, 1), now), news(None));
    ways.lose(process, now);
    for (through, ask) in [(5, true), (6, false), (7, false)] {
        let later = Learnt::Later { ask };
        assert_eq!(ways.learn(process, way(through, 2), now), later);
    }
    assert_eq!(ways.to(process), None);
    ways.take_back(process, ProcessId(5));
    assert_eq!(ways.behind(ProcessId(6)), vec![]);
    let until = now.after(SETTLING);
    assert_eq!(ways.settled(now), (vec![], Some(until)));
    let settled = (vec![(process, way(7, 2))], None);
    assert_eq!(ways.settled(until), settled);
    assert_eq!(ways.learn(process, way(7, 2), until), news(None));
    assert!(ways.end(process));
    ways.lose(process, until);
    assert_eq!(ways.learn(process, way(7, 1), until), Learnt::Nothing);
}

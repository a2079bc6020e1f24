//! A model of many processes: whatever they know, a call ends, and where rows and ways are right it
//! arrives.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A process of the model.
#[derive(Clone, Debug, Default)]
struct Process {
    hosts: BTreeSet<ActorId>,
    rows: BTreeMap<ActorId, RowSite>,
    links: BTreeSet<u64>,
    /// Processes that are not neighbours, and the neighbour that leads there.
    routes: BTreeMap<u64, u64>,
    /// Of a worker: its node, which it asks about what it does not know.
    uplink: Option<u64>,
}

struct Seen<'a> {
    me: u64,
    process: &'a Process,
}

impl View for Seen<'_> {
    type Cell = ActorId;
    type Link = ProcessId;

    fn hosted(&self, actor: ActorId) -> Option<ActorId> {
        self.process.hosts.contains(&actor).then_some(actor)
    }

    fn site(&self, actor: ActorId) -> Option<RowSite> {
        let row = self.process.rows.get(&actor).copied();
        (actor.home.0 == self.me).then(|| row.unwrap_or(RowSite::Gone))
    }

    fn peer(link: &ProcessId) -> ProcessId {
        *link
    }

    fn towards(&self, process: ProcessId) -> Option<ProcessId> {
        if self.process.links.contains(&process.0) {
            return Some(process);
        }
        let hop = self.process.routes.get(&process.0).copied();
        hop.or(self.process.uplink).map(ProcessId)
    }

    fn knows(&self, process: ProcessId) -> bool {
        self.process.links.contains(&process.0) || self.process.routes.contains_key(&process.0)
    }
}

const NODES: u64 = 3;
const WORKERS: u64 = 2;
/// More hops than any way that makes sense.
const HOPS_MAX: usize = 12;

fn worker(node: u64, n: u64) -> u64 {
    100 * node + n
}

/// Nodes that are all linked, each with workers, and every way known.
fn network() -> BTreeMap<u64, Process> {
    let mut all = BTreeMap::new();
    for node in 1..=NODES {
        let mut process = Process::default();
        for other in (1..=NODES).filter(|other| *other != node) {
            process.links.insert(other);
            for n in 1..=WORKERS {
                process.routes.insert(worker(other, n), other);
            }
        }
        for n in 1..=WORKERS {
            process.links.insert(worker(node, n));
            let below = Process {
                links: [node].into(),
                uplink: Some(node),
                ..Process::default()
            };
            all.insert(worker(node, n), below);
        }
        all.insert(node, process);
    }
    all
}

fn processes() -> Vec<u64> {
    network().into_keys().collect()
}

fn an_actor(home: u64) -> ActorId {
    ActorId {
        home: ProcessId(home),
        serial: 1,
    }
}

/// Follows a call until it ends, and gives the process where it does.
fn follow(
    all: &BTreeMap<u64, Process>,
    from: u64,
    to: ActorId,
) -> Option<(u64, Next<ActorId, ProcessId>)> {
    let (mut me, mut came, mut at) = (from, None, ProcessId(0));
    for _ in 0..HOPS_MAX {
        let process = &all[&me];
        let leg = Leg {
            to,
            at,
            from: ProcessId(from),
            came,
        };
        match next(ProcessId(me), leg, &Seen { me, process }) {
            Next::Link { link, at: next_at } => {
                (came, at) = (Some(ProcessId(me)), next_at);
                me = link.0;
            }
            end => return Some((me, end)),
        }
    }
    None
}

/// One thing that a process knows wrongly.
#[derive(Clone, Debug)]
enum Wrong {
    /// Its row names another process.
    Row(RowSite),
    /// A process does not know another.
    NoRoute { at: usize, to: usize },
    /// A link is gone on one side.
    NoLink { at: usize, to: usize },
    /// The actor is not where the row says.
    NotThere,
}

fn a_wrong() -> impl Strategy<Value = Wrong> {
    let two = || (any::<usize>(), any::<usize>());
    prop_oneof![
        any::<usize>().prop_map(|n| {
            let all = processes();
            Wrong::Row(RowSite::At(ProcessId(all[n % all.len()])))
        }),
        Just(Wrong::Row(RowSite::Nowhere)),
        Just(Wrong::Row(RowSite::Gone)),
        two().prop_map(|(at, to)| Wrong::NoRoute { at, to }),
        two().prop_map(|(at, to)| Wrong::NoLink { at, to }),
        Just(Wrong::NotThere),
    ]
}

/// The network with an actor whose home is one process and whose host another.
fn with_actor(home: u64, host: u64) -> (BTreeMap<u64, Process>, ActorId) {
    let mut all = network();
    let actor = an_actor(home);
    if let Some(process) = all.get_mut(&host) {
        process.hosts.insert(actor);
    }
    let site = match home == host {
        true => RowSite::Gone,
        false => RowSite::At(ProcessId(host)),
    };
    if let Some(process) = all.get_mut(&home) {
        process.rows.insert(actor, site);
    }
    (all, actor)
}

/// SEMANTICS 1.
#[test]
fn a_call_from_anywhere_arrives_at_the_host_by_way_of_the_home() {
    for home in processes() {
        for host in processes() {
            let (all, actor) = with_actor(home, host);
            for from in processes() {
                let end = follow(&all, from, actor);
                assert_eq!(end, Some((host, Next::Here(actor))), "{from} {home} {host}");
            }
        }
    }
}

/// SEMANTICS 14.
#[test]
fn a_call_for_an_actor_that_has_ended_at_its_host_is_told_so_there() {
    let (home, host) = (1, worker(2, 1));
    let (mut all, actor) = with_actor(home, host);
    all.get_mut(&host).unwrap().hosts.clear();
    // Also from the host itself, to which its home sends the call back.
    for from in processes() {
        assert_eq!(follow(&all, from, actor), Some((host, Next::Dead)));
    }
}

#[test]
fn a_call_waits_at_home_while_its_actor_is_placed_or_the_way_to_it_is_lost() {
    let (home, host) = (1, worker(2, 1));
    let (mut all, actor) = with_actor(home, host);
    let node = all.get_mut(&home).unwrap();
    node.rows.insert(actor, RowSite::Nowhere);
    assert_eq!(follow(&all, 3, actor), Some((home, Next::Hold(None))));
    let node = all.get_mut(&home).unwrap();
    node.rows.insert(actor, RowSite::At(ProcessId(host)));
    node.routes.remove(&host);
    let lost = Next::Hold(Some(ProcessId(host)));
    assert_eq!(follow(&all, 3, actor), Some((home, lost)));
}

/// SEMANTICS 7. The host is lost where the home was reached and has named one; else the home is not reached.
#[test]
fn a_call_that_nothing_leads_on_says_whether_its_home_was_reached() {
    let process = Process::default();
    let alone = Seen {
        me: 3,
        process: &process,
    };
    let (home, host) = (1, worker(2, 1));
    for (at, came, end) in [
        (0, None, Next::Unreachable),
        (host, None, Next::Unreachable),
        (0, Some(2), Next::Unreachable),
        (home, Some(2), Next::Unreachable),
        (host, Some(2), Next::HostGone),
    ] {
        let leg = Leg {
            to: an_actor(home),
            at: ProcessId(at),
            from: ProcessId(2),
            came: came.map(ProcessId),
        };
        assert_eq!(next(ProcessId(3), leg, &alone), end, "{at} {came:?}");
    }
}

proptest! {
    /// SEMANTICS 1.
    #[test]
    fn a_call_ends_whatever_is_wrong(
        home in any::<prop::sample::Index>(),
        host in any::<prop::sample::Index>(),
        from in any::<prop::sample::Index>(),
        wrongs in prop::collection::vec(a_wrong(), 1..5),
    ) {
        let names = processes();
        let (home, host, from) = (*home.get(&names), *host.get(&names), *from.get(&names));
        let (mut all, actor) = with_actor(home, host);
        for wrong in &wrongs {
            let name = |n: usize| names[n % names.len()];
            match wrong {
                // No row says that its actor is in another process which is its own.
                Wrong::Row(RowSite::At(process)) if process.0 == home => {}
                Wrong::Row(site) => drop(all.get_mut(&home).unwrap().rows.insert(actor, *site)),
                Wrong::NoRoute { at, to } => {
                    all.get_mut(&name(*at)).unwrap().routes.remove(&name(*to));
                }
                Wrong::NoLink { at, to } => {
                    all.get_mut(&name(*at)).unwrap().links.remove(&name(*to));
                }
                Wrong::NotThere => drop(all.get_mut(&host).unwrap().hosts.remove(&actor)),
            }
        }
        let end = follow(&all, from, actor);
        prop_assert!(end.is_some(), "it goes in a circle: {:?}", wrongs);
        if let Some((_, Next::Here(found))) = end {
            prop_assert_eq!(found, actor);
        }
    }
}

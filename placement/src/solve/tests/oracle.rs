//! The solver against the definitions: every plan is checked, and every refusal against all
//! placements there are.

use proptest::prelude::*;

use super::*;
use crate::device::Health;
use crate::{DeviceAsk, DeviceGrant, Share};

fn any_device() -> impl Strategy<Value = Device> {
    let switch = prop_oneof![Just(None), Just(Some(0)), Just(Some(1))];
    let nvlink = prop_oneof![Just(None), Just(Some("x")), Just(Some("y"))];
    (1..3u64, 0..2u32, switch, nvlink, 0..9u8, any::<bool>()).prop_map(
        |(memory, numa, switch, nvlink, health, small)| Device {
            switch,
            nvlink: nvlink.map(Into::into),
            health: match health {
                0 => Health::Quarantined("x".into()),
                _ => Health::Good,
            },
            ..Device::new(0, if small { "S" } else { "L" }, memory * 10).numa(numa)
        },
    )
}

fn any_resources(max: u64) -> impl Strategy<Value = Resources> {
    (0..=max, 0..=max)
        .prop_map(|(cpu, custom)| Resources::new().cpu_milli(cpu).custom_milli("x", custom))
}

/// A node with what others hold on it, given as demands of its own.
fn any_node() -> impl Strategy<Value = (Node, Vec<Demand>)> {
    let isolation = prop_oneof![Just(Isolation::Shared), Just(Isolation::Process)];
    let held = (0..3u8, any_resources(1), 0..4u8);
    (
        any_resources(4),
        prop_oneof![6 => Just(Liveness::Up), 1 => Just(Liveness::Draining)],
        prop::collection::vec(any_device(), 0..4),
        prop::collection::vec(held, 0..3),
        prop::collection::vec((prop_oneof![Just("job"), Just("other")], isolation), 0..2),
        (0..3u32, 0..2u8, 0..2u8),
    )
        .prop_map(
            |(capacity, liveness, devices, held, workers, (limit, zone, rack))| {
                let mut node = Node::new("", capacity)
                    .liveness(liveness)
                    .worker_limit(limit)
                    .at(format!("z{zone}"), format!("r{rack}"))
                    .label("zone", zone.to_string());
                for (index, device) in (0..).zip(devices) {
                    node = node.device(Device {
                        index,
                        card: index,
                        ..device
                    });
                }
                for (id, (job, isolation)) in (0..).zip(workers) {
                    node = node.worker(id, job, isolation);
                }
                let held = held.into_iter().map(|(holder, resources, devices)| {
                    let demand = Demand::new("other", format!("h{holder}"), resources);
                    match devices {
                        0 => demand.gpus(1),
                        1 => demand.gpu_milli(400),
                        2 => demand.device_memory(5),
                        _ => demand,
                    }
                });
                (node, held.collect())
            },
        )
}

fn any_view() -> impl Strategy<Value = View> {
    prop::collection::vec(any_node(), 0..4).prop_map(|nodes| {
        let named = nodes.iter().enumerate().map(|(i, (node, _))| {
            let name = format!("n{i}");
            let mut node = node.clone();
            node.name = name;
            node
        });
        let mut view = View::new(named);
        for (i, (_, held)) in nodes.iter().enumerate() {
            for demand in held {
                if let Ok(plan) = place(&view, &demand.clone().on_node(format!("n{i}"))) {
                    view.grant(&plan);
                }
            }
        }
        view
    })
}

fn any_level(deepest: usize) -> impl Strategy<Value = Level> {
    (0..=deepest).prop_map(|i| Level::ALL[i])
}

fn any_ask() -> impl Strategy<Value = DeviceAsk> {
    let share = prop_oneof![
        (1..3u32).prop_map(Share::Whole),
        prop_oneof![Just(0), Just(300), Just(500), Just(700)].prop_map(Share::Part),
    ];
    let memory = prop::option::of(1..15u64);
    let models = prop_oneof![3 => Just(vec![]), 1 => Just(vec!["L".to_owned()])];
    let within = prop::option::weighted(0.3, any_level(7));
    (share, memory, models, within).prop_map(|(share, memory, models, within)| DeviceAsk {
        memory: if share == Share::Part(0) {
            memory.or(Some(3))
        } else {
            memory
        },
        share,
        models,
        within,
    })
}

fn any_demand() -> impl Strategy<Value = Demand> {
    let affinity = (0..4u8, any_level(7), 0..6u8).prop_map(|(n, level, kind)| match kind {
        0 => Affinity::Node(format!("n{n}")),
        1 => Affinity::NotNode(format!("n{n}")),
        2 => Affinity::Label("zone".into(), (n % 2).to_string()),
        3 => Affinity::Near(format!("h{}", n % 3), level),
        4 => Affinity::Accelerated,
        _ => Affinity::Apart(format!("h{}", n % 3), level),
    });
    let arrange = prop_oneof![
        3 => Just(Arrange::Pack),
        3 => Just(Arrange::Spread),
        1 => Just(Arrange::StrictPack),
        1 => Just(Arrange::StrictSpread)
    ];
    (
        any_resources(2),
        prop::option::weighted(0.7, any_ask()),
        1..4u32,
        any::<bool>(),
        prop::collection::vec(affinity, 0..2),
        arrange,
        prop::option::weighted(0.4, any_level(7)),
    )
        .prop_map(
            |(bundle, devices, gang, isolated, affinity, arrange, within)| {
                let demand = demand(bundle).gang(gang).arrange(arrange);
                let demand = if isolated { demand.isolated() } else { demand };
                Demand {
                    affinity,
                    devices,
                    within,
                    ..demand
                }
            },
        )
        .prop_filter("what can be meant", |demand| demand.check().is_ok())
}

/// A bundle's place: a node, and devices of it by position.
type At = (usize, Vec<usize>);

/// The group of a level, told in words of its own.
fn group(view: &View, level: Level, node: usize, device: Option<usize>) -> String {
    let n = view.nodes().nth(node).unwrap();
    let alone = |i: usize| format!("{node}/alone/{}", n.devices[i].card);
    match (level, device) {
        (Level::Cluster, _) => String::new(),
        (Level::Zone, _) => format!("{:?}", n.zone),
        (Level::Rack, _) => format!("{:?}/{:?}", n.zone, n.rack),
        (Level::Node, _) | (_, None) => format!("{node}"),
        (Level::Numa, Some(i)) => format!("{node}/{}", n.devices[i].numa),
        (Level::Switch, Some(i)) => match n.devices[i].switch {
            Some(switch) => format!("{node}/{switch}"),
            None => alone(i),
        },
        (Level::Nvlink, Some(i)) => n.devices[i].nvlink.clone().unwrap_or_else(|| alone(i)),
        (Level::Device, Some(i)) => format!("{node}/{}", n.devices[i].card),
    }
}

fn groups_of(view: &View, level: Level, (node, devices): &At) -> Vec<String> {
    if devices.is_empty() {
        return vec![group(view, level, *node, None)];
    }
    devices
        .iter()
        .map(|&i| group(view, level, *node, Some(i)))
        .collect()
}

/// Where a holder is, one entry a lease.
fn leases_of(view: &View, holder: &str) -> Vec<At> {
    let mut places = Vec::new();
    for (at, node) in view.nodes().enumerate() {
        for lease in node.leases().filter(|lease| lease.holder == holder) {
            let position = |grant: &DeviceGrant| {
                node.devices
                    .iter()
                    .position(|d| d.index == grant.index)
                    .unwrap()
            };
            places.push((at, lease.devices.iter().map(position).collect()));
        }
    }
    places
}

/// Returns true when these bundles may lie so, told from the definitions alone.
fn is_valid(view: &View, demand: &Demand, places: &[At]) -> bool {
    let nodes: Vec<&Node> = view.nodes().collect();
    let all_equal = |groups: Vec<String>| groups.windows(2).all(|pair| pair[0] == pair[1]);
    let together = |level: Level, places: &[At]| {
        all_equal(
            places
                .iter()
                .flat_map(|at| groups_of(view, level, at))
                .collect(),
        )
    };
    let count = |at| places.iter().filter(|(node, _)| *node == at).count();
    let arranged = match demand.arrange {
        Arrange::StrictPack => together(Level::Node, places),
        Arrange::StrictSpread => (0..nodes.len()).all(|at| count(at) <= 1),
        Arrange::Pack | Arrange::Spread => true,
    };
    let within = demand.within.is_none_or(|level| together(level, places));
    arranged
        && within
        && places.iter().all(|place| suits(view, demand, place))
        && nodes.iter().enumerate().all(|(at, node)| {
            let here: Vec<&At> = places.iter().filter(|(n, _)| *n == at).collect();
            here.is_empty() || has_room(node, demand, &here)
        })
}

fn suits(view: &View, demand: &Demand, place: &At) -> bool {
    let node = view.nodes().nth(place.0).unwrap();
    let near = |holder: &str, level: Level| {
        let theirs: Vec<String> = leases_of(view, holder)
            .iter()
            .filter(|(_, devices)| level <= Level::Node || !devices.is_empty())
            .flat_map(|at| groups_of(view, level, at))
            .collect();
        let mine = groups_of(view, level, place);
        (
            mine.iter().all(|group| theirs.contains(group)),
            mine.iter().any(|group| theirs.contains(group)),
        )
    };
    let affine = demand.affinity.iter().all(|affinity| match affinity {
        Affinity::Node(name) => node.name == *name,
        Affinity::NotNode(name) => node.name != *name,
        Affinity::Label(key, value) => node.labels.get(key) == Some(value),
        Affinity::Accelerated => !node.devices.is_empty(),
        Affinity::Near(holder, level) => near(holder, *level).0,
        Affinity::Apart(holder, level) => !near(holder, *level).1,
    });
    let bundle = demand.devices.as_ref().and_then(|ask| ask.within);
    let bundle = bundle.is_none_or(|level| {
        groups_of(view, level, place)
            .windows(2)
            .all(|pair| pair[0] == pair[1])
    });
    affine && bundle && node.liveness == Liveness::Up
}

fn has_room(node: &Node, demand: &Demand, here: &[&At]) -> bool {
    let resources = demand.bundle.iter().all(|(resource, asked)| {
        let held: u64 = node
            .leases()
            .map(|lease| lease.resources.get(&resource))
            .sum();
        held + asked * here.len() as u64 <= node.capacity.get(&resource)
    });
    let Some(ask) = &demand.devices else {
        // Processes with devices do not count.
        let light: Vec<_> = node
            .workers
            .iter()
            .filter(|w| w.devices.is_empty())
            .collect();
        let shared = |job: &str, isolation| job == demand.job && isolation == Isolation::Shared;
        let joins = light
            .iter()
            .any(|worker| shared(&worker.job, worker.isolation));
        let started = match demand.isolation {
            Isolation::Process => here.len(),
            Isolation::Shared => usize::from(!joins),
        };
        let limit = node.worker_limit as usize;
        return resources && (started == 0 || light.len() + started <= limit);
    };
    resources
        && node.devices.iter().enumerate().all(|(i, device)| {
            let mine = here
                .iter()
                .filter(|(_, devices)| devices.contains(&i))
                .count() as u64;
            let grants = node.leases().flat_map(|lease| &lease.devices);
            let theirs: Vec<_> = grants.filter(|grant| grant.index == device.index).collect();
            let usable = device.health == Health::Good
                && (ask.models.is_empty() || ask.models.contains(&device.model))
                && device.memory >= ask.memory.unwrap_or(0);
            mine == 0
                || usable
                    && match ask.share {
                        Share::Whole(_) | Share::Slice(_) => mine == 1 && theirs.is_empty(),
                        Share::Part(milli) => {
                            let part = device.memory * u64::from(milli) / 1000;
                            let memory = ask.memory.unwrap_or(part);
                            let time: u64 = theirs.iter().map(|g| u64::from(g.milli)).sum();
                            let used: u64 = theirs.iter().map(|g| g.memory).sum();
                            theirs.iter().all(|grant| grant.milli < 1000)
                                && time + mine * u64::from(milli) <= 1000
                                && used + mine * memory <= device.memory
                        }
                    }
        })
}

/// All places of one bundle.
fn options(view: &View, demand: &Demand) -> Vec<At> {
    let mut options = Vec::new();
    for (at, node) in view.nodes().enumerate() {
        let size = demand.devices.as_ref().map_or(0, DeviceAsk::count);
        for mask in 0..1u32 << node.devices.len() {
            if mask.count_ones() == size {
                let devices = (0..node.devices.len()).filter(|i| mask >> i & 1 == 1);
                options.push((at, devices.collect()));
            }
        }
    }
    options
}

/// Tries every assignment of bundles to places.
fn brute_force(view: &View, demand: &Demand, options: &[At], places: &mut Vec<At>) -> bool {
    if !places.is_empty() && !is_valid(view, demand, places) {
        return false;
    }
    if places.len() == demand.gang as usize {
        return true;
    }
    options.iter().enumerate().any(|(first, option)| {
        places.push(option.clone());
        // Bundles are equal, so their places may be taken in order.
        let found = brute_force(view, demand, &options[first..], places);
        places.pop();
        found
    })
}

fn places(view: &View, plan: &Plan) -> Vec<At> {
    let place = |lease: &Lease| {
        let at = view
            .nodes()
            .position(|node| node.name == lease.node)
            .unwrap();
        let node = view.nodes().nth(at).unwrap();
        let position = |grant: &DeviceGrant| {
            node.devices
                .iter()
                .position(|d| d.index == grant.index)
                .unwrap()
        };
        (at, lease.devices.iter().map(position).collect())
    };
    plan.leases.iter().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// SEMANTICS 40, 42, 43. All or nothing, within capacity, limits and wishes; refused only when nothing is possible.
    #[test]
    fn plans_are_valid_and_refusals_are_right(view in any_view(), demand in any_demand()) {
        match place(&view, &demand) {
            Ok(plan) => {
                prop_assert_eq!(plan.leases.len(), demand.gang as usize);
                prop_assert!(is_valid(&view, &demand, &places(&view, &plan)), "{plan:?}");
                // Ranks follow the order of nodes and of devices.
                let order = places(&view, &plan);
                prop_assert!(order.is_sorted(), "{order:?}");
                // Granting and releasing lead back to the same picture, workers apart.
                let mut after = view.with(&plan);
                prop_assert_eq!(after.release("me").len(), plan.leases.len());
                for (node, before) in after.nodes().zip(view.nodes()) {
                    prop_assert_eq!(node.free(), before.free());
                    prop_assert_eq!(node.free_devices(), before.free_devices());
                }
                // The plan uses up what it took.
                let mut full = view.clone();
                for _ in 0..60 {
                    let Ok(next) = place(&full, &demand) else { break };
                    prop_assert!(is_valid(&full, &demand, &places(&full, &next)));
                    full.grant(&next);
                }
            }
            Err(refusal) => {
                let options = options(&view, &demand);
                prop_assert!(!brute_force(&view, &demand, &options, &mut vec![]), "{refusal}");
                prop_assert_eq!(refusal.nodes().len(), view.nodes().len());
                let Cause::Room { would_fit, hopeless, .. } = *refusal.cause else { panic!() };
                prop_assert!(would_fit < demand.gang);
                prop_assert!(place(&view, &demand.clone().gang(would_fit)).is_ok(), "{refusal}");
                if hopeless {
                    let idle = View::new(view.nodes().map(|node| {
                        let mut idle = Node::new(&node.name, node.capacity.clone());
                        (idle.zone, idle.rack) = (node.zone.clone(), node.rack.clone());
                        (idle.devices, idle.labels) = (node.devices.clone(), node.labels.clone());
                        idle.liveness(node.liveness).worker_limit(node.worker_limit)
                    }));
                    let mut settled = demand.clone();
                    settled.affinity.retain(|affinity| !affinity.is_about_others());
                    prop_assert!(place(&idle, &settled).is_err());
                }
            }
        }
    }

    /// SEMANTICS 41.
    #[test]
    fn the_order_of_nodes_does_not_matter(
        view in any_view(), demand in any_demand(), other in any_demand(),
    ) {
        let mut nodes: Vec<Node> = view.nodes().cloned().collect();
        nodes.reverse();
        let reversed = View::new(nodes);
        prop_assert_eq!(place(&view, &demand), place(&reversed, &demand));
        let both = [demand, Demand { holder: "other".into(), ..other }];
        prop_assert_eq!(solve(&view, &both), solve(&reversed, &both));
    }

    /// SEMANTICS 42. More capacity never makes a possible demand impossible.
    #[test]
    fn a_larger_cluster_takes_whatever_a_smaller_one_takes(
        view in any_view(),
        demand in any_demand(),
        (more, _) in any_node(),
        device in any_device(),
        larger in any_resources(3),
        at in 0..4usize,
    ) {
        if place(&view, &demand).is_ok() {
            let mut with_node = view.clone();
            let mut more = more;
            more.name = "n9".into();
            with_node.put(more);
            prop_assert!(place(&with_node, &demand).is_ok());
            let mut with_more = view.clone();
            with_more.update(&format!("n{at}"), |node| {
                node.capacity.add(&larger);
                node.devices.push(Device { index: 9, card: 9, ..device });
                node.worker_limit += 1;
            });
            prop_assert!(place(&with_more, &demand).is_ok());
        }
    }

    /// A view that is written and read again is the same picture.
    #[test]
    fn a_view_survives_being_written(view in any_view()) {
        let json = serde_json::to_string(&view).unwrap();
        prop_assert_eq!(serde_json::from_str::<View>(&json).unwrap(), view);
    }

    /// SEMANTICS 40. Packing uses the fewest nodes possible, spreading leaves the counts as even as rooms allow.
    #[test]
    fn arrangements_keep_their_promise(view in any_view(), demand in any_demand()) {
        let counts = |plan: &Plan| {
            let mut counts = vec![0u32; view.nodes().len()];
            places(&view, plan).iter().for_each(|(at, _)| counts[*at] += 1);
            counts
        };
        let demand = Demand { within: None, ..demand };
        let packed = demand.clone().arrange(Arrange::Pack);
        let room = |at| {
            let rules = Rules::new(&view, &packed);
            rules.suits(at).map_or(0, |mask| rules.count(at, mask))
        };
        let mut rooms: Vec<u32> = (0..view.nodes().len()).map(room).collect();
        if let Ok(plan) = place(&view, &demand.clone().arrange(Arrange::Spread)) {
            let counts = counts(&plan);
            let most = counts.iter().max().copied().unwrap_or(0);
            for (count, room) in counts.iter().zip(&rooms) {
                prop_assert!(count == room || count + 1 >= most, "{counts:?}");
            }
        }
        if let Ok(plan) = place(&view, &packed) {
            let used = counts(&plan).iter().filter(|&&count| count > 0).count();
            rooms.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            prop_assert!(used == 1 || rooms[..used - 1].iter().sum::<u32>() < demand.gang);
        }
    }
}

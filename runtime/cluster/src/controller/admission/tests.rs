//! Jobs that ask: nothing is given twice, gangs are whole, the order holds, and nobody starves.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use std::time::Duration;

use odeon_artifacts::Digest;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::controller::plan::{Order, Rules, plan, waits};
use crate::fact::{Command, Fact, NamespaceQuota, NodeSpec, Refusal as Refused, Writer, Written};
use crate::job::{Event, JobSpec, Outcome};
use crate::resources::{Allotment, JobResources};
use crate::tables::NodeState;

mod packing;

const GIB: u64 = 1 << 30;

/// Tables that are written to, at a time of the test's own.
#[derive(Clone, Debug, Default)]
struct World {
    tables: Tables,
    last: u64,
    now: u64,
}

impl World {
    fn say(&mut self, writer: Writer, fact: Fact) -> Result<Written, Refused> {
        self.last += 1;
        let (id, at) = (self.last, Unix(self.now));
        self.tables.apply(Command {
            id,
            at,
            writer,
            fact,
        })
    }

    fn up(&mut self, name: &str, boot: u64, cpus: u32, memory: u64, devices: u32) {
        let device = |index| odeon_placement::Device::new(index, "H200", 80 * GIB);
        let follows = self.tables.nodes.get(name).map(|row| row.spec.boot);
        let spec = NodeSpec {
            name: name.to_owned(),
            boot,
            address: String::new(),
            release: String::new(),
            cpus,
            memory: memory * GIB,
            devices: vec!["H200".to_owned(); devices as usize],
            votes: false,
            api: None,
            follows,
            certificate: None,
            upgrades: 0,
            inventory: (0..devices).map(device).collect(),
            unlimited: None,
            low_disk: None,
        };
        let said = self.say(Writer::Node(name.to_owned()), Fact::NodeUp(spec));
        said.unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    fn submit(&mut self, asked: JobResources, priority: i32, limit: Option<u64>) -> JobId {
        let spec = JobSpec {
            name: "test".to_owned(),
            namespace: "s".to_owned(),
            bundle: Digest::of(b"files"),
            args: vec![],
            env: BTreeMap::new(),
            priority,
            retries: 1000,
            node: None,
            hosts: None,
            resources: asked,
            time_limit_s: limit,
            after: vec![],
            array: None,
            links: BTreeMap::new(),
            grace_s: None,
            idle_limit_s: None,
            environment: None,
        };
        let by = "ann".to_owned();
        match self.say(Writer::Leader, Fact::JobSubmitted { spec, by }) {
            Ok(Written::Job(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    /// Looks once, and writes what is ordered. The jobs that begin run at once. Those.
    fn look(&mut self) -> Vec<JobId> {
        let orders = plan(
            &self.tables,
            &BTreeMap::new(),
            &Rules::default(),
            Unix(self.now),
        );
        let mut begun = vec![];
        for order in orders {
            let (job, event) = match order {
                Order::Assign {
                    job,
                    node,
                    boot,
                    reserved,
                } => {
                    begun.push(job);
                    let event = Event::Assigned {
                        node,
                        boot,
                        reserved,
                    };
                    (job, event)
                }
                Order::Extend { job, attempt, more } => (job, Event::Extended { attempt, more }),
                Order::Hold { job, why } => (job, Event::Held { why }),
                Order::Turn { job, to } => (job, Event::TurnDue { to }),
                Order::Lose { .. } | Order::Start { .. } | Order::Stop { .. } => continue,
            };
            let said = self.say(Writer::Leader, Fact::Job { job, event });
            said.unwrap_or_else(|refusal| panic!("{job}: {refusal}"));
        }
        for job in &begun {
            self.told(*job, |attempt| Event::Started { attempt, pid: 1 });
        }
        self.check();
        begun
    }

    fn told(&mut self, job: JobId, event: impl Fn(u32) -> Event) {
        let attempt = self.tables.jobs[&job].attempt().expect("it runs").clone();
        let event = event(attempt.number);
        let said = self.say(Writer::Node(attempt.node), Fact::Job { job, event });
        said.unwrap_or_else(|refusal| panic!("{job}: {refusal}"));
    }

    /// Gives a job these parts of nodes, and has it run.
    fn assign(&mut self, job: JobId, reserved: Vec<Reservation>) {
        let event = Event::Assigned {
            node: reserved[0].node.clone(),
            boot: reserved[0].boot,
            reserved,
        };
        let said = self.say(Writer::Leader, Fact::Job { job, event });
        said.unwrap_or_else(|refusal| panic!("{job}: {refusal}"));
        self.told(job, |attempt| Event::Started { attempt, pid: 1 });
    }

    fn end(&mut self, job: JobId) {
        let outcome = Outcome::Succeeded;
        self.told(job, |attempt| Event::Over {
            attempt,
            outcome: outcome.clone(),
        });
    }

    fn lose(&mut self, node: &str) {
        let (boot, why) = (self.tables.nodes[node].spec.boot, "it is silent".to_owned());
        let node = node.to_owned();
        let fact = Fact::NodeLost { node, boot, why };
        self.say(Writer::Leader, fact).expect("it can be");
    }

    /// Nothing is held twice, and whoever runs has all that it asked for.
    fn check(&self) {
        let mut held: BTreeMap<(&str, u64), (Allotment, BTreeSet<u32>)> = BTreeMap::new();
        for job in self.tables.living_jobs() {
            let Some(attempt) = job.attempt() else {
                continue;
            };
            let asked = job.spec.resources;
            let ranks = attempt
                .reserved
                .iter()
                .filter(|it| it.rank.is_some())
                .count();
            let drivers = attempt.reserved.len() - ranks;
            let may = asked.ranks as usize..=asked.most() as usize;
            assert!(may.contains(&ranks), "{} has {ranks} ranks", job.id);
            assert_eq!(drivers, usize::from(!asked.is_empty()));
            for it in &attempt.reserved {
                let wanted = match it.rank {
                    None => asked.driver,
                    Some(_) => asked.rank,
                };
                assert_eq!(it.allotment, wanted);
                assert_eq!(it.devices.len(), wanted.devices as usize);
                let (sum, devices) = held.entry((&it.node, it.boot)).or_default();
                *sum = sum.plus(it.allotment);
                for device in &it.devices {
                    assert!(devices.insert(*device), "{} on {} twice", device, it.node);
                }
            }
        }
        for ((node, boot), (sum, devices)) in held {
            let row = &self.tables.nodes[node];
            if row.state != NodeState::Up || row.spec.boot != boot {
                continue;
            }
            assert!(
                sum.cpu_milli <= u64::from(row.spec.cpus) * 1000,
                "{node}: {sum}"
            );
            assert!(sum.memory_bytes <= row.spec.memory, "{node}: {sum}");
            let known = |index: &u32| row.spec.inventory.iter().any(|it| it.index == *index);
            assert!(devices.iter().all(known), "{node}: {devices:?}");
        }
    }

    fn runs(&self, job: JobId) -> bool {
        self.tables.jobs[&job].attempt().is_some()
    }

    fn why(&self, job: JobId) -> String {
        let waits = waits(&self.tables, &Rules::default(), Unix(self.now));
        waits
            .get(&job)
            .cloned()
            .unwrap_or_else(|| panic!("{job} does not wait"))
    }

    /// The job that is promised places now, and by when.
    fn promised(&self) -> Option<(JobId, Unix)> {
        let mut room = Room::of(&self.tables, &BTreeSet::new(), Unix(self.now));
        let waits = |job: &&Job| job.attempt().is_none();
        let mut jobs: Vec<&Job> = self.tables.living_jobs().filter(waits).collect();
        jobs.sort_by_key(|job| (Reverse(job.spec.priority), job.id));
        for job in jobs {
            room.place(job, &[]);
            if let Some(first) = &room.first {
                return Some((first.job, first.at));
            }
        }
        None
    }
}

fn cpus(cores: u64) -> JobResources {
    JobResources::of_driver(Allotment {
        cpu_milli: cores * 1000,
        ..Allotment::default()
    })
}

fn gpus(ranks: u32, each: u32) -> JobResources {
    let rank = Allotment {
        devices: each,
        ..Allotment::default()
    };
    JobResources::of_ranks(ranks, rank)
}

/// SEMANTICS 115.
#[test]
fn two_jobs_that_do_not_fit_together_queue_by_priority() {
    let mut world = World::default();
    for name in ["a", "b"] {
        world.up(name, 1, 4, 16, 4);
    }
    // Each wants more than half of what two nodes have: half of each would be a deadlock.
    let low = world.submit(gpus(3, 2), 0, None);
    let high = world.submit(gpus(3, 2), 5, None);
    assert_eq!(world.look(), [high]);
    assert_eq!(world.look(), []);
    let why = world.why(low);
    assert!(
        why.contains("the ranks of j1 (3 x 2 gpu, 1 would fit)"),
        "{why}"
    );
    assert!(
        why.contains("(j2 holds 4)") && why.contains("held since: j2 1970-01-01"),
        "{why}"
    );
    let State::Waiting { why, .. } = &world.tables.jobs[&low].state else {
        panic!("it waits");
    };
    let kept = "it waits for room: it asks for 3 x (2 gpu); `odeon why j1` says what is in the way";
    assert_eq!(why, kept);
    world.end(high);
    assert_eq!(world.look(), [low]);
}

#[test]
fn a_job_that_asks_for_nothing_is_held_up_by_nobody() {
    let mut world = World::default();
    world.up("a", 1, 4, 16, 0);
    let all = world.submit(cpus(4), 9, None);
    let next = world.submit(cpus(4), 9, None);
    let plain = world.submit(JobResources::default(), 0, None);
    assert_eq!(world.look(), [all, plain]);
    assert!(!world.runs(next));
}

#[test]
fn who_could_never_run_here_waits_for_nodes_and_holds_up_nobody() {
    let mut world = World::default();
    world.up("a", 1, 4, 16, 0);
    let large = world.submit(cpus(8), 9, None);
    let small = world.submit(cpus(4), 0, None);
    assert_eq!(world.look(), [small]);
    let why = world.why(large);
    assert!(why.contains("a has only 4 cpu in all, 8 needed"), "{why}");
    assert!(why.contains("would not fit on idle nodes either"), "{why}");
    world.up("b", 1, 8, 16, 0);
    assert_eq!(world.look(), [large]);
}

/// SEMANTICS 115.
#[test]
fn who_is_first_is_not_delayed_by_who_goes_ahead() {
    let mut world = World::default();
    for name in ["a", "b"] {
        world.up(name, 1, 4, 16, 0);
    }
    let long = world.submit(cpus(3), 0, Some(1000));
    assert_eq!(world.look(), [long]);
    let both = JobResources::of_ranks(2, cpus(4).driver);
    let large = world.submit(both, 0, Some(100));
    // It needs what the first will need, for longer than that waits.
    let slow = world.submit(cpus(1), 0, Some(5000));
    let endless = world.submit(cpus(1), 0, None);
    let quick = world.submit(cpus(1), 0, Some(900));
    assert_eq!(world.look(), [quick]);
    let why = world.why(large);
    assert!(
        why.contains("it comes next, by 1970-01-01 00:16:50 at the latest"),
        "{why}"
    );
    for late in [slow, endless] {
        let why = world.why(late);
        assert!(why.ends_with("j2 comes before it"), "{why}");
    }
    world.now = 900_000;
    world.end(quick);
    assert_eq!(world.look(), []);
    world.end(long);
    assert_eq!(world.look(), [large]);
    world.now = 1_000_000;
    world.end(large);
    assert_eq!(world.look(), [slow, endless]);
}

#[test]
fn what_the_first_does_not_need_is_for_others() {
    let mut world = World::default();
    world.up("a", 1, 8, 16, 2);
    let holder = world.submit(gpus(1, 1), 0, None);
    assert_eq!(world.look(), [holder]);
    let first = world.submit(gpus(1, 2), 0, None);
    let endless = world.submit(cpus(8), 0, None);
    let device = world.submit(gpus(1, 1), 0, None);
    assert_eq!(world.look(), [endless]);
    let why = world.why(device);
    assert!(why.contains("j2, which comes before it, holds 1"), "{why}");
    world.end(holder);
    assert_eq!(world.look(), [first]);
    world.end(first);
    assert_eq!(world.look(), [device]);
}

#[test]
fn a_namespace_that_holds_all_it_may_holds_up_nobody_else() {
    let mut world = World::default();
    world.up("a", 1, 8, 16, 0);
    let quota = NamespaceQuota {
        cpu_milli: Some(2000),
        ..NamespaceQuota::default()
    };
    let set = |name: &str, quota| Fact::NamespaceSet {
        name: name.to_owned(),
        quota,
        by: "ann".to_owned(),
    };
    world.say(Writer::Leader, set("s", Some(quota))).unwrap();
    let within = world.submit(cpus(2), 0, None);
    let beyond = world.submit(cpus(1), 0, None);
    assert_eq!(world.look(), [within]);
    let why = world.why(beyond);
    assert!(
        why.contains("the jobs of s together may hold 2 cpu, holds 2"),
        "{why}"
    );
    world.say(Writer::Leader, set("s", None)).unwrap();
    assert_eq!(world.look(), [beyond]);
}

/// SEMANTICS 115.
#[test]
fn the_dead_hold_nothing() {
    let mut world = World::default();
    for name in ["a", "b"] {
        world.up(name, 1, 4, 16, 2);
    }
    // Its driver is on one node, and a rank on each.
    let gang = world.submit(gpus(2, 2), 0, None);
    assert_eq!(world.look(), [gang]);
    let driver = world.tables.jobs[&gang].attempt().unwrap().node.clone();
    let other = if driver == "a" { "b" } else { "a" };
    // The node of a rank alone: the job goes on, and what it had there is gone with that life.
    world.lose(other);
    assert!(world.runs(gang));
    let next = world.submit(gpus(1, 2), 0, None);
    assert_eq!(world.look(), []);
    // Back with what it had, the job that goes on has its part again, and nobody else.
    world.up(other, 2, 4, 16, 2);
    assert_eq!(world.look(), []);
    // Back as another machine, nothing of it is the job's.
    world.lose(other);
    world.up(other, 3, 8, 16, 2);
    assert_eq!(world.look(), [next]);
    // The node of its driver: the try is over, and another waits for all that it asks for.
    world.lose(&driver);
    assert!(!world.runs(gang));
    assert_eq!(world.look(), []);
    world.end(next);
    world.up(&driver, 2, 4, 16, 2);
    assert_eq!(world.look(), [gang]);
}

/// SEMANTICS 115. The tables refuse what a leader with an old look would give away twice.
#[test]
fn the_catalog_is_never_over_capacity() {
    let mut world = World::default();
    world.up("a", 1, 4, 16, 2);
    let first = world.submit(cpus(3), 0, None);
    let second = world.submit(cpus(2), 0, None);
    let old = world.clone();
    assert_eq!(world.look(), [first]);
    let give = |job, boot, cores, rank| {
        let reserved = Reservation {
            node: "a".to_owned(),
            boot,
            rank,
            allotment: cpus(cores).driver,
            devices: vec![],
        };
        let event = Event::Assigned {
            node: "a".to_owned(),
            boot: 1,
            reserved: vec![reserved],
        };
        Fact::Job { job, event }
    };
    for (fact, why) in [
        (give(second, 1, 2, None), "`a` has no room for 2 cpu of j2"),
        (give(second, 2, 2, None), "`a` is not up any more"),
        (give(second, 1, 1, None), "was to be given something else"),
        (
            give(second, 1, 2, Some(0)),
            "was to be given something else",
        ),
    ] {
        let refused = world.say(Writer::Leader, fact).unwrap_err();
        assert!(refused.why.contains(why), "{refused}");
    }
    let mut old = old;
    old.say(Writer::Leader, give(second, 1, 2, None)).unwrap();
}

/// SEMANTICS 127.
#[test]
fn an_elastic_gang_has_the_ranks_that_there_is_room_for() {
    let mut world = World::default();
    world.up("a", 1, 4, 8, 2);
    let job = world.submit(gpus(3, 1).up_to(5), 0, None);
    let ranks = |world: &World| {
        let job = &world.tables.jobs[&job];
        let on = |node: &str| {
            job.attempt()
                .unwrap()
                .reserved
                .iter()
                .any(|it| it.node == node)
        };
        (world.tables.living_ranks(job).len(), on("b"))
    };
    assert_eq!(world.look(), [], "two is less than the least");
    world.up("b", 2, 4, 8, 2);
    assert_eq!(world.look(), [job]);
    assert_eq!(ranks(&world), (4, true));
    // What is lost is lost, and the rest runs with less than the least: what comes is for it first.
    let driver = world.tables.jobs[&job].attempt().unwrap().node.clone();
    let other = if driver == "a" { "b" } else { "a" };
    world.lose(other);
    assert_eq!((world.look(), ranks(&world).0), (vec![], 2));
    let late = world.submit(gpus(2, 1), 9, None);
    world.up("c", 3, 4, 8, 2);
    assert_eq!((world.look(), ranks(&world).0), (vec![], 4));
    assert!(!world.runs(late));
    // The one more that it may have waits for who came before.
    world.up("d", 4, 4, 8, 2);
    assert_eq!((world.look(), ranks(&world).0), (vec![late], 4));
    // A node that is back with what it had gives nothing back that was given elsewhere.
    world.up(other, 5, 4, 8, 2);
    assert_eq!((world.look(), ranks(&world).0), (vec![], 5));
    assert_eq!((world.look(), ranks(&world).0), (vec![], 5));
}

/// The needs of each process of a drawn job: cores, memory, devices.
fn shares() -> impl Strategy<Value = Allotment> {
    (0u64..9, 0u64..20, 0u32..4).prop_map(|(halves, memory, devices)| Allotment {
        cpu_milli: 1 + halves * 500,
        memory_bytes: memory * GIB,
        devices,
        device_memory_bytes: if devices > 1 { 40 * GIB } else { 0 },
    })
}

/// A job that is drawn: its request, its priority, and its time limit, if it has one.
fn drawn() -> impl Strategy<Value = (JobResources, i32, Option<u64>)> {
    let gang = (1u32..5, 0u32..4, shares());
    let asked = (shares(), prop::option::weighted(0.4, gang));
    let asked = asked.prop_map(|(driver, gang)| match gang {
        None => JobResources::of_driver(driver),
        Some((ranks, more, rank)) => JobResources::of_ranks(ranks, rank).up_to(ranks + more),
    });
    (asked, 0i32..3, prop::option::weighted(0.7, 20u64..500))
}

proptest! {
    /// SEMANTICS 115. Those that run are drawn with the rest: the first look begins some, and time passes.
    #[test]
    fn nobody_goes_ahead_to_the_cost_of_the_first(
        nodes in vec((2u32..9, 8u64..40, 0u32..5), 1..4),
        before in vec(drawn(), 0..8),
        after in vec(drawn(), 1..10),
        passed in 0u64..300,
    ) {
        let mut world = World::default();
        for (n, (cpus, memory, devices)) in nodes.into_iter().enumerate() {
            world.up(&format!("n{n}"), 1, cpus, memory, devices);
        }
        for (asked, priority, limit) in before {
            world.submit(asked, priority, limit);
        }
        world.look();
        world.now += passed * 1000;
        for (asked, priority, limit) in after {
            world.submit(asked, priority, limit);
        }
        let Some((first, at)) = world.promised() else {
            return Ok(());
        };
        let rank = |world: &World, id: JobId| (Reverse(world.tables.jobs[&id].spec.priority), id);
        let begun = world.look();
        prop_assert!(!begun.contains(&first));
        let (again, later) = world.promised().expect("it still waits");
        prop_assert_eq!(again, first);
        prop_assert!(later <= at, "{first} was to have its place by {at}, now by {later}");
        for job in begun {
            let ahead = rank(&world, job) > rank(&world, first);
            let limit = world.tables.jobs[&job].spec.time_limit_s;
            // Without a limit it takes nothing that the first needs; that is what the times say.
            prop_assert!(!ahead || limit.is_some() || later <= at);
        }
        // A second look finds nothing that the first has missed.
        prop_assert_eq!(world.look(), []);
    }
}

/// SEMANTICS 115, 116.
#[test]
fn a_try_whose_files_are_on_their_way_ends_no_later_for_that() {
    let mut world = World::default();
    world.up("a", 1, 2, 4, 0);
    let job = world.submit(cpus(2), 0, Some(60));
    world.now = 5_000;
    let reserved = Reservation {
        node: "a".to_owned(),
        boot: 1,
        rank: None,
        allotment: cpus(2).driver,
        devices: vec![],
    };
    let event = Event::Assigned {
        node: "a".to_owned(),
        boot: 1,
        reserved: vec![reserved],
    };
    world.say(Writer::Leader, Fact::Job { job, event }).unwrap();
    let at_the_latest = Unix(5_000).after(Duration::from_secs(60 + 10));
    let ends = |world: &World, now| end_of(&world.tables.jobs[&job], Unix(now));
    for now in [5_000, 20_000, 50_000] {
        assert_eq!(ends(&world, now), at_the_latest, "its files come");
    }
    world.now = 50_000;
    world.told(job, |attempt| Event::Started { attempt, pid: 1 });
    assert_eq!(ends(&world, 60_000), at_the_latest, "it runs");
}

//! Tests of the leader's orders, whatever the tables are.

use odeon_artifacts::Digest;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::fact::{Command, Fact, NamespaceQuota, NodeSpec, Writer, Written};
use crate::job::version::Program;
use crate::job::{Event, JobSpec, Outcome};
use crate::resources::{Allotment, JobResources};
use crate::unix::Unix;

/// Tables that are written to in order.
#[derive(Clone, Debug, Default)]
struct Writes {
    tables: Tables,
    last: u64,
}

impl Writes {
    fn by(&mut self, writer: Writer, fact: Fact) -> Written {
        self.last += 1;
        let (id, at) = (self.last, Unix(self.last));
        let command = Command {
            id,
            at,
            writer,
            fact,
        };
        let text = format!("{command:?}");
        let written = self.tables.apply(command);
        written.unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
    }

    fn up(&mut self, name: &str) {
        let spec = NodeSpec {
            name: name.to_owned(),
            boot: 1,
            address: String::new(),
            release: String::new(),
            cpus: 1,
            memory: 1,
            devices: vec![],
            votes: false,
            api: None,
            follows: None,
            certificate: None,
            upgrades: 0,
            inventory: vec![],
            unlimited: None,
            low_disk: None,
        };
        self.by(Writer::Node(name.to_owned()), Fact::NodeUp(spec));
    }

    fn drain(&mut self, node: &str, drained: bool) {
        let (node, by) = (node.to_owned(), "ann".to_owned());
        self.by(Writer::Leader, Fact::NodeDrained { node, drained, by });
    }

    fn lose(&mut self, node: &str) {
        let (node, why) = (node.to_owned(), "it is silent".to_owned());
        let boot = 1;
        self.by(Writer::Leader, Fact::NodeLost { node, boot, why });
    }

    fn bound(&mut self, namespace: &str, running_max: u32) {
        let fact = Fact::NamespaceSet {
            name: namespace.to_owned(),
            quota: Some(NamespaceQuota::running(running_max)),
            by: "ann".to_owned(),
        };
        self.by(Writer::Leader, fact);
    }

    fn spec(namespace: &str, node: Option<&str>, priority: i32) -> JobSpec {
        JobSpec {
            name: "test".to_owned(),
            namespace: namespace.to_owned(),
            bundle: Digest::of(b"files"),
            args: vec![],
            env: BTreeMap::new(),
            priority,
            retries: 1,
            node: node.map(str::to_owned),
            hosts: None,
            resources: JobResources::default(),
            time_limit_s: None,
            after: vec![],
            array: None,
            links: BTreeMap::new(),
            grace_s: None,
            idle_limit_s: None,
            environment: None,
        }
    }

    fn submitted(&mut self, spec: JobSpec) -> Written {
        let by = "ann".to_owned();
        self.by(Writer::Leader, Fact::JobSubmitted { spec, by })
    }

    fn submit(&mut self, namespace: &str, node: Option<&str>, priority: i32) -> JobId {
        let spec = Self::spec(namespace, node, priority);
        match self.submitted(spec) {
            Written::Job(id) => id,
            Written::Done => panic!("a job has a number"),
        }
    }

    fn event(&mut self, job: JobId, event: Event) {
        let attempt = self.tables.jobs[&job].attempt();
        let writer = match (&event, attempt) {
            (Event::Started { .. } | Event::Over { .. }, Some(attempt)) => {
                Writer::Node(attempt.node.clone())
            }
            _ => Writer::Leader,
        };
        self.by(writer, Fact::Job { job, event });
    }

    fn assign(&mut self, job: JobId, node: &str) {
        let (node, boot) = (node.to_owned(), 1);
        self.event(
            job,
            Event::Assigned {
                node,
                boot,
                reserved: vec![],
            },
        );
    }

    fn stop(&mut self, job: JobId) {
        let (by, in_order) = ("ann".to_owned(), true);
        self.event(job, Event::Stop { by, in_order });
    }

    /// Writes the facts that were ordered. Returns true if there were any.
    fn carry_out(&mut self, orders: &[Order]) -> bool {
        let mut any = false;
        for order in orders {
            any |= !matches!(order, Order::Start { .. } | Order::Stop { .. });
            match order.clone() {
                Order::Lose { node, .. } => self.lose(&node),
                Order::Assign {
                    job,
                    node,
                    boot,
                    reserved,
                } => {
                    self.event(
                        job,
                        Event::Assigned {
                            node,
                            boot,
                            reserved,
                        },
                    );
                }
                Order::Extend { job, attempt, more } => {
                    self.event(job, Event::Extended { attempt, more });
                }
                Order::Hold { job, why } => self.event(job, Event::Held { why }),
                Order::Turn { job, to } => self.event(job, Event::TurnDue { to }),
                Order::Start { .. } | Order::Stop { .. } => {}
            }
        }
        any
    }
}

fn rules() -> Rules {
    Rules {
        drivers_max: 2,
        ..Rules::default()
    }
}

type Silent = BTreeMap<String, Duration>;

/// A cluster in which much has happened.
fn clusters() -> impl Strategy<Value = (Writes, Silent)> {
    // Its state, whether it is drained, how long it has been silent.
    let node = (0u8..8, prop::bool::weighted(0.2), 0u64..40);
    let quota = prop::option::weighted(0.5, 0u32..4);
    // Namespace, node, priority, and how far it has come.
    let job = (
        0usize..2,
        prop::option::weighted(0.3, 0usize..5),
        -1i32..2,
        0u8..8,
    );
    (vec(node, 1..5), vec(quota, 2), vec(job, 0..14)).prop_map(|(nodes, quotas, jobs)| {
        let mut writes = Writes::default();
        let name = |n: usize| format!("n{n}");
        for n in 0..nodes.len() {
            writes.up(&name(n));
        }
        for (n, (namespace, node, priority, progress)) in jobs.into_iter().enumerate() {
            let wanted = node.map(name);
            let job = writes.submit(&format!("s{namespace}"), wanted.as_deref(), priority);
            let here = node
                .filter(|node| *node < nodes.len())
                .unwrap_or(n % nodes.len());
            let may = node.is_none_or(|node| node < nodes.len());
            if progress >= 4 && may {
                writes.assign(job, &name(here));
                match progress {
                    5 => writes.stop(job),
                    6 => writes.event(job, Event::Started { attempt: 1, pid: 1 }),
                    7 => {
                        let outcome = Outcome::Succeeded;
                        writes.event(
                            job,
                            Event::Over {
                                attempt: 1,
                                outcome,
                            },
                        );
                    }
                    _ => {}
                }
            }
        }
        let mut silent = Silent::new();
        for (n, (state, drained, seconds)) in nodes.into_iter().enumerate() {
            if drained {
                writes.drain(&name(n), true);
            }
            match state {
                0 => writes.lose(&name(n)),
                1 | 2 => drop(silent.insert(name(n), Duration::from_secs(seconds))),
                3 => drop(silent.insert(name(n), Duration::from_millis(seconds * 50))),
                _ => {}
            }
        }
        for (n, quota) in quotas.into_iter().enumerate() {
            if let Some(running_max) = quota {
                writes.bound(&format!("s{n}"), running_max);
            }
        }
        (writes, silent)
    })
}

/// Returns true where nothing is in the way of a job on a node, as the test sees it.
fn may_go(tables: &Tables, silent: &Silent, rules: &Rules, job: &Job, node: &NodeRow) -> bool {
    let name = &node.spec.name;
    let here = |it: &&Job| it.attempt().is_some_and(|attempt| attempt.node == *name);
    let peers = |it: &&Job| it.attempt().is_some() && it.spec.namespace == job.spec.namespace;
    let quota = tables.namespaces.get(&job.spec.namespace);
    let quota = quota.and_then(|quota| quota.running_max);
    let quota = quota.map_or(usize::MAX, |most| most as usize);
    node.state == NodeState::Up
        && !node.drained
        && silent
            .get(name)
            .is_none_or(|silent| *silent <= rules.doubted_after)
        && job.spec.node.as_ref().is_none_or(|wanted| wanted == name)
        && tables.jobs.values().filter(here).count() < rules.drivers_max
        && tables.jobs.values().filter(peers).count() < quota
}

proptest! {
    #[test]
    fn who_gets_a_node_may_have_it_and_who_waits_could_not((writes, silent) in clusters()) {
        let rules = rules();
        let orders = plan(&writes.tables, &silent, &rules, Unix::now());
        let mut after = writes.clone();
        let mut assigned = BTreeSet::new();
        for order in &orders {
            if let Order::Assign { job, node, boot, .. } = order {
                let row = &after.tables.nodes[node];
                prop_assert_eq!(*boot, row.spec.boot);
                let it = &after.tables.jobs[job];
                prop_assert!(may_go(&after.tables, &silent, &rules, it, row), "{order:?}");
                prop_assert!(assigned.insert(*job), "it gets two nodes");
                after.assign(*job, node);
            }
        }
        let held: BTreeMap<JobId, &String> = orders
            .iter()
            .filter_map(|order| match order {
                Order::Hold { job, why } => Some((*job, why)),
                _ => None,
            })
            .collect();
        for job in writes.tables.living_jobs() {
            let State::Waiting { why: known, .. } = &job.state else {
                prop_assert!(!assigned.contains(&job.id) && !held.contains_key(&job.id));
                continue;
            };
            let could = after.tables.nodes.values().any(|row| {
                may_go(&after.tables, &silent, &rules, job, row)
            });
            if assigned.contains(&job.id) {
                prop_assert!(!held.contains_key(&job.id));
                continue;
            }
            prop_assert!(!could, "{job:?} could have a node");
            let why = held.get(&job.id).copied().unwrap_or(known);
            prop_assert!(!why.is_empty() && why != "it was just submitted", "{job:?}");
            // Nobody who comes later takes what it waits for.
            let alike = |other: &&Job| {
                let spec = &other.spec;
                (&spec.namespace, &spec.node) == (&job.spec.namespace, &job.spec.node)
            };
            let rank = |job: &Job| (std::cmp::Reverse(job.spec.priority), job.id);
            for other in writes.tables.living_jobs().filter(alike) {
                prop_assert!(!assigned.contains(&other.id) || rank(other) < rank(job));
            }
        }
    }

    #[test]
    fn nodes_and_tries_get_the_orders_that_they_need((writes, silent) in clusters()) {
        let (tables, rules) = (&writes.tables, rules());
        let orders = plan(tables, &silent, &rules, Unix::now());
        let has = |wanted: &Order| orders.contains(wanted);
        let mut expected = 0;
        for row in tables.nodes.values() {
            let (node, boot) = (row.spec.name.clone(), row.spec.boot);
            let silent = silent.get(&node).copied().unwrap_or_default();
            if row.state == NodeState::Up && silent > rules.lost_after {
                let lose = Order::Lose { node, boot, silent };
                prop_assert!(has(&lose), "{lose:?}");
                expected += 1;
            }
        }
        for row in tables.jobs.values() {
            let job = row.id;
            let order = match &row.state {
                State::Staging { attempt } => {
                    let (attempt, node) = (attempt.number, attempt.node.clone());
                    Order::Start { job, attempt, node }
                }
                State::Stopping { attempt, in_order, .. } => {
                    let (attempt, node) = (attempt.number, attempt.node.clone());
                    let in_order = *in_order;
                    Order::Stop { job, attempt, node, in_order }
                }
                _ => continue,
            };
            prop_assert!(has(&order), "{order:?}");
            expected += 1;
        }
        let facts = |order: &&Order| matches!(order, Order::Assign { .. } | Order::Hold { .. });
        prop_assert_eq!(orders.len(), expected + orders.iter().filter(facts).count());
    }

    #[test]
    fn what_is_ordered_is_done_at_some_time((mut writes, silent) in clusters()) {
        let mut rounds = 0;
        while writes.carry_out(&plan(&writes.tables, &silent, &rules(), Unix::now())) {
            rounds += 1;
            // Nodes are lost, then their jobs go elsewhere, then the rest knows what it waits for.
            prop_assert!(rounds <= 3, "{:?}", plan(&writes.tables, &silent, &rules(), Unix::now()));
        }
    }
}

fn reason(writes: &Writes, silent: &Silent, job: JobId) -> String {
    let orders = plan(&writes.tables, silent, &rules(), Unix::now());
    let held = orders.into_iter().find_map(|order| match order {
        Order::Hold { job: it, why } if it == job => Some(why),
        _ => None,
    });
    held.unwrap_or_else(|| panic!("{job} is not held"))
}

#[test]
fn who_waits_is_told_what_for() {
    let nobody = Silent::new();
    let mut writes = Writes::default();
    let any = writes.submit("s", None, 0);
    assert_eq!(
        reason(&writes, &nobody, any),
        "no node is up that may get jobs"
    );
    let bound = writes.submit("s", Some("n9"), 0);
    writes.up("n0");
    let why = reason(&writes, &nobody, bound);
    assert!(
        why.contains("`n9`, which is not known; known are `n0`"),
        "{why}"
    );
    let bound = writes.submit("s", Some("n1"), 0);
    writes.up("n1");
    writes.drain("n1", true);
    assert!(reason(&writes, &nobody, bound).ends_with("`n1`, which is drained"));
    writes.drain("n1", false);
    let silent = Silent::from([("n1".to_owned(), Duration::from_secs(5))]);
    assert!(reason(&writes, &silent, bound).ends_with("`n1`, which is silent"));
    writes.lose("n1");
    assert!(reason(&writes, &nobody, bound).ends_with("`n1`, which is lost"));
    writes.bound("s", 0);
    let why = reason(&writes, &nobody, any);
    assert_eq!(why, "namespace `s` runs 0 jobs, as many as it may");
}

#[test]
fn each_node_says_what_it_offers_to_a_job_and_why_it_does_not_take_it() {
    let mut writes = Writes::default();
    for node in ["a", "b", "c", "d", "e"] {
        writes.up(node);
    }
    writes.drain("b", true);
    writes.lose("c");
    let (node, boot) = ("d".to_owned(), 1);
    writes.by(Writer::Node("d".to_owned()), Fact::NodeLeft { node, boot });
    for _ in 0..2 {
        let job = writes.submit("s", None, 0);
        writes.assign(job, "e");
    }
    let any = writes.submit("s", None, 0);
    let bound = writes.submit("s", Some("a"), 0);
    let told = |job: JobId| {
        let offers = offers(&writes.tables, &writes.tables.jobs[&job], &rules());
        let told = offers.into_iter().map(|it| {
            assert_eq!((it.most, it.room), (2, None));
            (it.node, it.free, it.why.unwrap_or_default())
        });
        told.collect::<Vec<_>>()
    };
    let row = |node: &str, free, why: &str| (node.to_owned(), free, why.to_owned());
    let (drained, lost) = ("it is drained", "it is lost: it is silent");
    let full = row("e", 0, "it runs as many drivers as it may");
    let others = |e| [row("a", 2, ""), row("b", 2, drained), row("c", 2, lost), e];
    assert_eq!(told(any), others(full));
    let elsewhere = row("e", 0, "the job must run on `a`");
    assert_eq!(told(bound), others(elsewhere));
}

/// A job that asks for so many cores.
fn asks(cores: u64) -> JobSpec {
    JobSpec {
        resources: JobResources {
            driver: Allotment {
                cpu_milli: 1000 * cores,
                ..Allotment::default()
            },
            ..JobResources::default()
        },
        ..Writes::spec("s", None, 0)
    }
}

#[test]
fn who_asks_for_a_part_of_a_node_is_told_what_is_free_of_it_and_waits_for_that() {
    let mut writes = Writes::default();
    writes.up("a");
    let mut submit = |cores| match writes.submitted(asks(cores)) {
        Written::Job(id) => id,
        Written::Done => panic!("a job has a number"),
    };
    let (one, two) = (submit(1), submit(2));
    let silent = Silent::new();
    let orders = plan(&writes.tables, &silent, &rules(), Unix::now());
    let begun = orders.iter().find_map(|order| match order {
        Order::Assign { job, reserved, .. } if *job == one => Some(reserved.len()),
        _ => None,
    });
    assert_eq!(begun, Some(1), "{orders:?}");
    let free = |writes: &Writes| {
        let offers = offers(&writes.tables, &writes.tables.jobs[&two], &rules());
        offers[0].room.clone().unwrap()
    };
    assert_eq!(free(&writes), "1 of 1 cpu, 1 bytes of 1 bytes");
    let waiting = waits(&writes.tables, &rules(), Unix::now());
    assert!(waiting.keys().eq([&two]), "{waiting:?}");
    assert!(!waiting[&two].is_empty());
    writes.carry_out(&orders);
    assert_eq!(free(&writes), "0 of 1 cpu, 1 bytes of 1 bytes");
}

#[test]
fn a_full_node_gets_no_more_until_one_ends() {
    let mut writes = Writes::default();
    writes.up("n0");
    let jobs: Vec<JobId> = (0..3).map(|_| writes.submit("s", None, 0)).collect();
    let nobody = Silent::new();
    let why = reason(&writes, &nobody, jobs[2]);
    assert!(why.contains("runs 2 drivers, as many as it may"), "{why}");
    writes.assign(jobs[0], "n0");
    writes.assign(jobs[1], "n0");
    let (attempt, outcome) = (1, Outcome::Succeeded);
    writes.event(jobs[0], Event::Over { attempt, outcome });
    let orders = plan(&writes.tables, &nobody, &rules(), Unix::now());
    let (job, node, boot) = (jobs[2], "n0".to_owned(), 1);
    assert!(
        orders.contains(&Order::Assign {
            job,
            node,
            boot,
            reserved: vec![]
        }),
        "{orders:?}"
    );
}

#[test]
fn the_dearest_comes_first_and_then_who_was_first() {
    let mut writes = Writes::default();
    writes.up("n0");
    let jobs = [(0, 3), (5, 1), (0, 4), (5, 2)].map(|(priority, rank)| {
        let job = writes.submit("s", None, priority);
        (rank, job)
    });
    let orders = plan(&writes.tables, &Silent::new(), &rules(), Unix::now());
    let assigned: Vec<JobId> = orders
        .iter()
        .filter_map(|order| match order {
            Order::Assign { job, .. } => Some(*job),
            _ => None,
        })
        .collect();
    let mut expected = jobs;
    expected.sort_unstable();
    let expected: Vec<JobId> = expected.iter().map(|(_, job)| *job).collect();
    assert_eq!(assigned, expected[..rules().drivers_max]);
}

/// SEMANTICS 54.
#[test]
fn a_job_that_fails_again_and_again_is_begun_anew_with_growing_pauses() {
    let mut writes = Writes::default();
    writes.up("a");
    let id = writes.submit("default", None, 0);
    let due = |writes: &Writes, now: u64| {
        let orders = plan(&writes.tables, &Silent::new(), &rules(), Unix(now));
        orders
            .iter()
            .any(|order| matches!(order, Order::Assign { job, .. } if *job == id))
    };
    let pause = |writes: &Writes| match writes.tables.jobs[&id].state {
        State::Waiting { not_before, .. } => not_before,
        ref state => panic!("{state:?}"),
    };
    assert!(due(&writes, 1));
    let not_before = Unix(1_000_000);
    if let Some(job) = writes.tables.jobs.get_mut(&id) {
        job.state = State::Waiting {
            why: "it failed".to_owned(),
            not_before: Some(not_before),
            since: None,
        };
    }
    assert_eq!(pause(&writes), Some(not_before));
    assert!(!due(&writes, 999_999));
    assert!(due(&writes, 1_000_000));
    // Told by a clock that goes an hour before: nobody waits for that.
    assert!(due(&writes, 900_000));
}

/// SEMANTICS 120.
#[test]
fn an_array_is_begun_up_to_its_limit_and_holds_up_nobody() {
    let mut writes = Writes::default();
    writes.up("a");
    let mut spec = Writes::spec("default", None, 0);
    spec.array = Some("0-5%2".parse().unwrap());
    let Written::Job(first) = writes.submitted(spec) else {
        panic!("a job has a number");
    };
    let other = writes.submit("default", None, 0);
    let rules = Rules::default();
    let orders = |writes: &Writes| plan(&writes.tables, &BTreeMap::new(), &rules, Unix(1000));
    let mut done = 0;
    while writes.tables.living_jobs().next().is_some() {
        let due = orders(&writes);
        writes.carry_out(&due);
        let runs = |job: &&Job| job.array.is_some() && job.attempt().is_some();
        let running: Vec<JobId> = writes
            .tables
            .living_jobs()
            .filter(runs)
            .map(|it| it.id)
            .collect();
        assert!(running.len() <= 2, "{running:?}");
        assert!(writes.tables.jobs[&other].attempt().is_some() || done > 0);
        let why = waits(&writes.tables, &rules, Unix(1000));
        if let Some(why) = why.values().next() {
            assert!(why.contains("as many as may at once"), "{why}");
        }
        let next = running.first().copied().unwrap_or(other);
        writes.event(
            next,
            Event::Over {
                attempt: 1,
                outcome: Outcome::Succeeded,
            },
        );
        done += 1;
    }
    assert_eq!((done, first), (7, JobId(1)));
}

/// SEMANTICS 218.
#[test]
fn a_version_that_has_waited_for_long_enough_is_made_by_whoever_leads() {
    let mut writes = Writes::default();
    writes.up("a");
    let job = writes.submit("s", None, 0);
    writes.assign(job, "a");
    let program = Program {
        args: vec!["--lr".to_owned()],
        ..Program::of(&Writes::spec("s", None, 0))
    };
    let (by, why) = ("ann".to_owned(), String::new());
    let wait_s = Some(60);
    let update = Event::Update {
        program,
        by,
        why,
        wait_s,
    };
    writes.event(job, update);
    let asked = writes.tables.now;
    let turns = |writes: &Writes, at: Unix| {
        let orders = plan(&writes.tables, &Silent::new(), &rules(), at).into_iter();
        orders
            .filter(|order| matches!(order, Order::Turn { .. }))
            .collect::<Vec<_>>()
    };
    let due = asked.after(Duration::from_secs(60));
    assert_eq!(turns(&writes, Unix(due.0 - 1)), []);
    let turn = Order::Turn { job, to: 2 };
    let [due_now] = &turns(&writes, due)[..] else {
        panic!("{:?}", turns(&writes, due));
    };
    assert_eq!(due_now, &turn);
    assert!(writes.carry_out(&[turn]));
    assert_eq!(turns(&writes, due), []);
    // Its node is told to end the try in order, and nobody else gets its place.
    let orders = plan(&writes.tables, &Silent::new(), &rules(), due);
    let stop = Order::Stop {
        job,
        attempt: 1,
        node: "a".to_owned(),
        in_order: true,
    };
    assert!(orders.contains(&stop), "{orders:?}");
}

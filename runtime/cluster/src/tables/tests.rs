//! Commands in any order, by any writer, twice; and what the tables look like on a disk.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::fact::ArrayAct;
use crate::job::JobSpec;
use crate::job::array::After;
use crate::job::version::Program;
use crate::resources::{Allotment, JobResources, Reservation};
use crate::startup::StartStage;

fn spec(name: &str) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        bundle: Digest::of(name.as_bytes()),
        args: vec![],
        env: BTreeMap::new(),
        priority: 0,
        retries: 1,
        node: None,
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

fn node(name: &str, boot: u64) -> NodeSpec {
    NodeSpec {
        name: name.to_owned(),
        boot,
        address: "10.0.0.1:7000".to_owned(),
        release: "0.1.0".to_owned(),
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
    }
}

/// The tables without what every command changes.
fn content(tables: &Tables) -> Tables {
    let mut content = tables.clone();
    (content.version, content.now) = (0, Unix(0));
    content.recent.clear();
    content
}

/// Tables and the next command's number and moment.
#[derive(Default)]
struct Writes {
    tables: Tables,
    last: u64,
}

impl Writes {
    fn by(&mut self, writer: Writer, fact: Fact) -> Result<Written, Refusal> {
        self.last += 1;
        self.tables.apply(Command {
            id: self.last,
            at: Unix(self.last),
            writer,
            fact,
        })
    }

    fn leader(&mut self, fact: Fact) -> Result<Written, Refusal> {
        self.by(Writer::Leader, fact)
    }

    fn up(&mut self, name: &str, boot: u64) -> Result<Written, Refusal> {
        let row = self.tables.nodes.get(name);
        self.up_after(name, boot, row.map(|row| row.spec.boot))
    }

    fn up_after(
        &mut self,
        name: &str,
        boot: u64,
        follows: Option<u64>,
    ) -> Result<Written, Refusal> {
        let mut spec = node(name, boot);
        spec.follows = follows;
        self.by(Writer::Node(name.to_owned()), Fact::NodeUp(spec))
    }

    fn left(&mut self, name: &str, boot: u64) -> Result<Written, Refusal> {
        let node = name.to_owned();
        self.by(Writer::Node(name.to_owned()), Fact::NodeLeft { node, boot })
    }

    fn lost(&mut self, name: &str, boot: u64) -> Result<Written, Refusal> {
        let (node, why) = (name.to_owned(), "it is silent".to_owned());
        self.leader(Fact::NodeLost { node, boot, why })
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        let by = "ann".to_owned();
        match self.leader(Fact::JobSubmitted { spec, by }) {
            Ok(Written::Job(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    fn assign(&mut self, job: JobId, node: &str, boot: u64) -> Result<Written, Refusal> {
        let node = node.to_owned();
        let event = Event::Assigned {
            node,
            boot,
            reserved: vec![],
        };
        self.leader(Fact::Job { job, event })
    }

    fn stop(&mut self, job: JobId) -> Result<Written, Refusal> {
        let by = "ann".to_owned();
        let event = Event::Stop { by, in_order: true };
        self.leader(Fact::Job { job, event })
    }

    fn over(&mut self, job: JobId, attempt: u32, node: &str) -> Result<Written, Refusal> {
        let outcome = Outcome::Succeeded;
        let event = Event::Over { attempt, outcome };
        self.by(Writer::Node(node.to_owned()), Fact::Job { job, event })
    }

    fn word(&self, job: JobId) -> &'static str {
        self.tables.jobs[&job].word()
    }
}

fn kind(outcome: Result<Written, Refusal>) -> Result<Written, RefusalKind> {
    outcome.map_err(|refusal| refusal.kind)
}

const CONFLICT: Result<Written, RefusalKind> = Err(RefusalKind::Conflict);
const DONE: Result<Written, RefusalKind> = Ok(Written::Done);

// ---- commands ----

/// Facts about few things, so that they meet.
fn facts() -> impl Strategy<Value = (Writer, Fact)> {
    let name = || prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let job = || (1u64..6).prop_map(JobId);
    let boot = || 1u64..4;
    let by = || "ann".to_owned();
    let event = prop_oneof![
        3 => (name(), boot()).prop_map(|(node, boot)| Event::Assigned { node, boot, reserved: vec![] }),
        1 => (1u32..4).prop_map(|attempt| Event::Started { attempt, pid: 1 }),
        2 => (1u32..4, any::<bool>()).prop_map(|(attempt, well)| Event::Over {
            attempt,
            outcome: match well {
                true => Outcome::Succeeded,
                false => Outcome::Failed { code: Some(1), why: "so".to_owned() },
            },
        }),
        1 => any::<bool>().prop_map(move |in_order| Event::Stop { by: by(), in_order }),
        1 => Just(Event::Retry { by: by() }),
        1 => Just(Event::Held { why: "no room".to_owned() }),
        2 => (0u8..9, any::<bool>()).prop_map(move |(n, waits)| Event::Update {
            program: Program {
                bundle: Digest::of(&[n]),
                args: vec![],
                env: BTreeMap::new(),
                links: BTreeMap::new(),
                environment: None,
            },
            by: by(),
            why: String::new(),
            wait_s: waits.then_some(60),
        }),
        1 => prop::option::of(1u32..9).prop_map(move |to| Event::RollBack { to, by: by(), why: String::new() }),
        1 => (1u32..9).prop_map(|to| Event::TurnDue { to }),
        1 => (1u32..4).prop_map(|attempt| Event::AtWork { attempt }),
        1 => (1u32..4, 1u64..9).prop_map(|(attempt, lines)| Event::Unkept { attempt, lines }),
        1 => (1u32..4, name(), 0u64..9).prop_map(|(attempt, node, ms)| Event::Prepared {
            attempt,
            node,
            times: [(StartStage::Files, ms)].into(),
            note: (ms == 0).then(|| "said".to_owned()),
        }),
    ];
    let fact = prop_oneof![
        6 => (name(), boot(), prop::option::of(boot())).prop_map(|(name, boot, follows)| {
            Fact::NodeUp(NodeSpec { follows, ..node(&name, boot) })
        }),
        1 => (name(), boot()).prop_map(|(node, boot)| Fact::NodeLeft { node, boot }),
        2 => (name(), boot()).prop_map(|(node, boot)| {
            let why = "it is silent".to_owned();
            Fact::NodeLost { node, boot, why }
        }),
        1 => (name(), any::<bool>())
            .prop_map(move |(node, drained)| Fact::NodeDrained { node, drained, by: by() }),
        1 => name().prop_map(move |node| {
            Fact::NodeRefused { node, why: "so".to_owned(), by: by() }
        }),
        1 => (name(), any::<bool>()).prop_map(move |(node, passed)| {
            Fact::NodeLetBack { node, why: String::new(), by: by(), passed, of: None }
        }),
        1 => name().prop_map(|node| Fact::NodeForgotten { node }),
        1 => (name(), 0u32..2, 0u64..200).prop_map(move |(id, uses, until)| {
            let until = Unix(until);
            Fact::TokenMade { id, uses, until, by: by() }
        }),
        1 => (name(), name()).prop_map(|(id, node)| Fact::TokenUsed { id, node }),
        1 => (name(), name()).prop_map(move |(id, name)| {
            let role = KeyRole::View;
            Fact::KeyMade { id, name, role, by: by() }
        }),
        1 => name().prop_map(move |name| Fact::KeyRevoked { name, by: by() }),
        1 => prop::option::of(0u32..3).prop_map(move |max| Fact::NamespaceSet {
            name: "default".to_owned(),
            quota: max.map(NamespaceQuota::running),
            by: by(),
        }),
        2 => name().prop_map(move |name| Fact::JobSubmitted { spec: spec(&name), by: by() }),
        2 => (name(), job(), prop::option::of(job()), any::<bool>()).prop_map(move |(name, first, last, array)| {
            let mut spec = spec(&name);
            let last = last.unwrap_or(first);
            spec.after = vec![After { first, last, array: None }];
            spec.array = array.then(|| "0-1%1".parse().expect("it is one"));
            Fact::JobSubmitted { spec, by: by() }
        }),
        1 => (job(), prop::sample::select(vec![ArrayAct::Cancel, ArrayAct::Stop, ArrayAct::Kill, ArrayAct::Retry]))
            .prop_map(move |(first, act)| Fact::Array { first, act, by: by() }),
        2 => (name(), boot(), 0u8..3, prop::option::of(0u8..3)).prop_map(|(node, boot, key, lost)| {
            Fact::EnvironmentClaimed {
                key: Digest::of(&[key]),
                node,
                boot,
                claim: boot,
                lost: lost.map(|it| Digest::of(&[it])),
            }
        }),
        2 => (name(), boot(), 0u8..3, prop::option::of(0u8..3), any::<bool>()).prop_map(|(node, claim, key, bundle, fails)| {
            Fact::EnvironmentSettled {
                why: fails.then(|| "exit status: 1".to_owned()),
                key: Digest::of(&[key]),
                node,
                claim,
                bundle: bundle.map(|it| Digest::of(&[it])),
            }
        }),
        12 => (job(), event).prop_map(|(job, event)| Fact::Job { job, event }),
    ];
    // The right writer most of the time.
    let twist = prop::option::weighted(0.1, name());
    let node = name();
    (fact, twist, node).prop_map(|(fact, twist, node)| {
        let writer = match (&fact, twist) {
            (_, Some(any)) => Writer::Node(any),
            (Fact::NodeUp(spec), _) => Writer::Node(spec.name.clone()),
            (
                Fact::NodeLeft { node, .. }
                | Fact::EnvironmentClaimed { node, .. }
                | Fact::EnvironmentSettled { node, .. },
                _,
            ) => Writer::Node(node.clone()),
            (Fact::Job { event, .. }, _) if is_about_a_try(event) => Writer::Node(node),
            _ => Writer::Leader,
        };
        (writer, fact)
    })
}

fn is_about_a_try(event: &Event) -> bool {
    matches!(
        event,
        Event::Prepared { .. }
            | Event::Started { .. }
            | Event::Over { .. }
            | Event::AtWork { .. }
            | Event::Unkept { .. }
    )
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    vec((facts(), 0u64..200), 1..120).prop_map(|facts| {
        let facts = facts.into_iter().enumerate();
        let command = |(n, ((writer, fact), at))| Command {
            id: n as u64,
            at: Unix(at),
            writer,
            fact,
        };
        facts.map(command).collect()
    })
}

proptest! {
    #[test]
    fn the_same_commands_make_the_same_tables_however_often_they_come(
        commands in commands(),
        again in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40),
    ) {
        let mut tables = Tables::default();
        let answers: Vec<_> = commands.iter().map(|command| tables.apply(command.clone())).collect();
        // Some come again, at any time after they came first.
        let mut often: Vec<usize> = (0..commands.len()).collect();
        for (first, later) in again {
            let first = first.index(often.len());
            let later = first + 1 + later.index(often.len() - first);
            often.insert(later, often[first]);
        }
        let mut others = Tables::default();
        for which in often {
            let before = others.clone();
            let is_new = !before.recent.iter().any(|(id, _)| *id == which as u64);
            let answer = others.apply(commands[which].clone());
            prop_assert_eq!(&answer, &answers[which]);
            prop_assert_eq!(others.version, before.version + 1);
            prop_assert!(others.now >= before.now);
            if !is_new {
                prop_assert_eq!(others.now, before.now);
                prop_assert_eq!(&others.recent, &before.recent);
            }
            if !is_new || answer.is_err() {
                prop_assert_eq!(content(&others), content(&before));
            }
            check(&others, &before)?;
        }
        others.version = tables.version;
        prop_assert_eq!(others, tables);
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written(commands in commands(), cut in any::<prop::sample::Index>()) {
        let mut tables = Tables::default();
        let cut = cut.index(commands.len());
        for command in &commands[..cut] {
            let _ = tables.apply(command.clone());
        }
        let text = serde_json::to_string(&tables).unwrap();
        let mut read: Tables = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&read, &tables);
        for command in &commands[cut..] {
            let text = serde_json::to_string(command).unwrap();
            let command: Command = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read.apply(command.clone()), tables.apply(command));
        }
        prop_assert_eq!(read, tables);
    }
}

/// Checks the invariants that hold after every command.
fn check(tables: &Tables, before: &Tables) -> Result<(), TestCaseError> {
    for job in tables.jobs.values() {
        prop_assert!(job.id.0 <= tables.last_job);
        if let Some(attempt) = job.attempt() {
            let row = tables.nodes.get(&attempt.node);
            let here =
                row.filter(|row| row.state == NodeState::Up && row.spec.boot == attempt.boot);
            prop_assert!(
                here.is_some(),
                "{} has a try in a life that is over",
                job.id
            );
        }
        // What is over is over in all later tables.
        for attempt in 1..4 {
            let was = before.is_over(job.id, attempt);
            prop_assert!(!was || tables.is_over(job.id, attempt));
        }
    }
    let later = tables.living_jobs().filter(|job| !job.awaits.is_empty());
    prop_assert!(later.map(|job| job.id).eq(tables.later.iter().copied()));
    for job in tables.living_jobs().filter(|job| !job.awaits.is_empty()) {
        prop_assert_eq!(job.word(), "waiting");
        for after in &job.awaits {
            let mut failed = tables.jobs.range(after.jobs());
            let failed =
                failed.find(|(_, it)| it.outcome().is_some_and(|it| *it != Outcome::Succeeded));
            prop_assert!(failed.is_none(), "{} waits for {after} for ever", job.id);
            let mut awaited = tables.jobs.range(after.jobs());
            prop_assert!(
                awaited.any(|(_, it)| !it.is_over()),
                "{} waits for what is over",
                job.id
            );
        }
    }
    for array in tables.jobs.values().filter_map(|job| job.array.as_ref()) {
        let jobs = tables.jobs.range(array.jobs());
        let running = jobs.filter(|(_, job)| job.attempt().is_some()).count();
        prop_assert!(array.at_once.is_none_or(|most| running <= most as usize));
    }
    let mut numbers: Vec<u64> = tables.nodes.values().map(|row| row.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    prop_assert_eq!(numbers.len(), tables.nodes.len());
    prop_assert!(numbers.last().is_none_or(|last| *last <= tables.last_node));
    for (name, row) in &tables.nodes {
        prop_assert_eq!(name, &row.spec.name);
    }
    Ok(())
}

#[test]
fn the_time_of_the_catalog_never_goes_back() {
    let mut tables = Tables::default();
    for (id, at, now) in [(1, 5, 5), (2, 3, 5), (3, 9, 9), (3, 99, 9)] {
        let command = Command {
            id,
            at: Unix(at),
            writer: Writer::Leader,
            fact: Fact::NodeForgotten {
                node: "a".to_owned(),
            },
        };
        assert_eq!(kind(tables.apply(command)), Err(RefusalKind::Unknown));
        assert_eq!(tables.now, Unix(now));
    }
}

// ---- writers ----

/// SEMANTICS 59.
#[test]
fn each_row_has_one_writer() {
    let mut tables = Tables::default();
    for command in golden_commands() {
        let others = ["head", "b", "c", "x"].map(|name| Writer::Node(name.to_owned()));
        for writer in others.into_iter().chain([Writer::Leader]) {
            if writer == command.writer {
                continue;
            }
            let mut wrong = command.clone();
            (wrong.id, wrong.writer) = (command.id + 1000, writer);
            let before = tables.clone();
            let refused = tables.apply(wrong.clone()).map_err(|refusal| refusal.kind);
            // The last command has a wrong writer itself, and one that is right among the others.
            if command.id != STRANGER {
                assert_eq!(refused, Err(RefusalKind::NotYours), "{wrong:?}");
                assert_eq!(content(&tables), content(&before));
            }
            tables = before;
        }
        let taken = tables.apply(command.clone());
        assert_eq!(
            taken.is_ok(),
            command.id != STRANGER,
            "{command:?}: {taken:?}"
        );
    }
}

#[test]
fn nobody_says_anything_of_a_try_that_is_over() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    let job = writes.submit(spec("x"));
    assert_eq!(kind(writes.over(job, 1, "a")), CONFLICT);
    writes.assign(job, "a", 1).unwrap();
    assert_eq!(kind(writes.over(job, 1, "a")), DONE);
    assert_eq!(kind(writes.over(job, 1, "a")), CONFLICT);
    assert_eq!(
        kind(writes.over(JobId(9), 1, "a")),
        Err(RefusalKind::Unknown)
    );
}

// ---- nodes ----

#[test]
fn a_node_goes_and_comes_and_its_lives_are_told_apart() {
    let mut writes = Writes::default();
    assert_eq!(kind(writes.lost("a", 1)), Err(RefusalKind::Unknown));
    assert_eq!(kind(writes.up("a", 1)), DONE);
    assert_eq!(kind(writes.up("a", 1)), DONE);
    assert_eq!(kind(writes.lost("a", 2)), CONFLICT);
    assert_eq!(kind(writes.lost("a", 1)), DONE);
    assert_eq!(kind(writes.lost("a", 1)), CONFLICT);
    // It was silent only.
    assert_eq!(kind(writes.up("a", 1)), DONE);
    assert_eq!(writes.tables.nodes["a"].state, NodeState::Up);
    // It starts anew; what its life before has said comes later.
    assert_eq!(kind(writes.up("a", 2)), DONE);
    let late = [
        writes.up_after("a", 1, None),
        writes.left("a", 1),
        writes.lost("a", 1),
    ];
    assert_eq!(late.map(kind), [CONFLICT; 3]);
    assert_eq!(writes.tables.nodes["a"].spec.boot, 2);
    assert_eq!(writes.tables.nodes["a"].state, NodeState::Up);
    assert_eq!(writes.tables.nodes["a"].number, 1);
}

/// A node is started twice in a row, and the catalog hears of the second life first.
#[test]
fn a_life_that_is_heard_of_late_does_not_replace_the_one_after_it() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    assert_eq!(kind(writes.up_after("a", 3, Some(1))), DONE);
    assert_eq!(kind(writes.up_after("a", 2, Some(1))), CONFLICT);
    assert_eq!(writes.tables.nodes["a"].spec.boot, 3);
    // In order, the second learns of the first and follows it.
    assert_eq!(kind(writes.up_after("a", 4, Some(3))), DONE);
    assert_eq!(kind(writes.up_after("a", 5, Some(3))), CONFLICT);
    assert_eq!(kind(writes.up_after("a", 5, Some(4))), DONE);
}

#[test]
fn a_life_that_has_left_does_not_come_back() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    writes.lost("a", 1).unwrap();
    // It leaves while it is taken for lost, and what it has said before comes after.
    assert_eq!(kind(writes.left("a", 1)), DONE);
    assert_eq!(kind(writes.up("a", 1)), CONFLICT);
    assert_eq!(writes.tables.nodes["a"].state, NodeState::Left);
    assert_eq!(kind(writes.up("a", 2)), DONE);
}

#[test]
fn the_number_of_a_node_that_was_forgotten_is_not_given_again() {
    let mut writes = Writes::default();
    for name in ["a", "b"] {
        writes.up(name, 1).unwrap();
    }
    let forget = |node: &str| Fact::NodeForgotten {
        node: node.to_owned(),
    };
    assert_eq!(kind(writes.leader(forget("b"))), CONFLICT);
    writes.left("b", 1).unwrap();
    assert_eq!(kind(writes.leader(forget("b"))), DONE);
    writes.up("c", 1).unwrap();
    assert_eq!(writes.tables.nodes["c"].number, 3);
}

#[test]
fn a_node_that_was_forgotten_comes_back_with_another_certificate_alone() {
    let mut writes = Writes::default();
    let up = |boot, certificate: &str| {
        Fact::NodeUp(NodeSpec {
            certificate: Some(certificate.to_owned()),
            ..node("a", boot)
        })
    };
    let own = || Writer::Node("a".to_owned());
    assert_eq!(kind(writes.by(own(), up(1, "old"))), DONE);
    writes.left("a", 1).unwrap();
    let node = "a".to_owned();
    assert_eq!(kind(writes.leader(Fact::NodeForgotten { node })), DONE);
    assert_eq!(kind(writes.by(own(), up(2, "old"))), CONFLICT);
    assert_eq!(kind(writes.by(own(), up(3, "new"))), DONE);
}

#[test]
fn tries_end_with_the_life_of_their_node() {
    type End = fn(&mut Writes) -> Result<Written, Refusal>;
    let ends: [(End, bool); 4] = [
        (|it| it.lost("a", 1), true),
        (|it| it.left("a", 1), true),
        (|it| it.up("a", 2), true),
        (|it| it.up("a", 1), false),
    ];
    for (end, ends) in ends {
        let mut writes = Writes::default();
        writes.up("a", 1).unwrap();
        writes.up("b", 1).unwrap();
        let (first, last) = (writes.submit(spec("x")), writes.submit(spec("y")));
        let (other, stopped) = (writes.submit(spec("z")), writes.submit(spec("s")));
        let mut without = spec("w");
        without.retries = 0;
        let without = writes.submit(without);
        for job in [first, last, stopped, without] {
            writes.assign(job, "a", 1).unwrap();
        }
        writes.assign(other, "b", 1).unwrap();
        writes.stop(stopped).unwrap();
        end(&mut writes).unwrap();
        let words = [first, last, stopped, without].map(|job| writes.word(job));
        match ends {
            true => assert_eq!(words, ["waiting", "waiting", "stopped", "lost"]),
            false => assert_eq!(words, ["staging", "staging", "stopping", "staging"]),
        }
        assert_eq!(writes.word(other), "staging");
        assert_eq!(writes.tables.is_over(first, 1), ends);
        assert!(!writes.tables.is_over(first, 2));
    }
}

/// SEMANTICS 186.
#[test]
fn a_refused_node_gets_no_job_until_it_is_let_back() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    let job = writes.submit(spec("x"));
    let refuse = |by: &str, why: &str| Fact::NodeRefused {
        node: "a".to_owned(),
        why: why.to_owned(),
        by: by.to_owned(),
    };
    let let_back = |passed| Fact::NodeLetBack {
        node: "a".to_owned(),
        why: "it is sound".to_owned(),
        by: "ann".to_owned(),
        passed,
        of: None,
    };
    let no_reason = writes.leader(refuse("ann", " ")).unwrap_err();
    assert_eq!(no_reason.kind, RefusalKind::Invalid);
    let sound = writes.leader(let_back(false)).unwrap_err();
    assert!(sound.why.contains("is not refused"), "{sound}");
    writes.leader(refuse("j7", "it flips bits")).unwrap();
    writes.leader(refuse("ann", "its fan is loud")).unwrap();
    // Neither a new life of it nor its loss changes that.
    writes.up("a", 2).unwrap();
    let refusal = writes.assign(job, "a", 2).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Conflict);
    assert!(refusal.why.contains("its fan is loud"), "{refusal}");
    writes.leader(let_back(true)).unwrap();
    assert_eq!(kind(writes.assign(job, "a", 2)), DONE);
    let row = &writes.tables.nodes["a"];
    assert_eq!((row.refusals, row.over_refusals), (1, 1));
    let told: Vec<_> = writes
        .tables
        .news
        .iter()
        .map(|it| it.what.as_str())
        .collect();
    for said in [
        "refused by j7: it flips bits",
        "refused by ann: its fan is loud",
        "let back by ann: it is sound",
    ] {
        assert!(told.contains(&said), "{told:?}");
    }
}

/// SEMANTICS 188.
#[test]
fn a_check_says_nothing_of_a_refusal_that_came_while_it_went_on() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    let refuse = |by: &str, why: &str| Fact::NodeRefused {
        node: "a".to_owned(),
        why: why.to_owned(),
        by: by.to_owned(),
    };
    let passed = |of| Fact::NodeLetBack {
        node: "a".to_owned(),
        why: "checks found nothing".to_owned(),
        by: "a check".to_owned(),
        passed: true,
        of: Some(of),
    };
    let failed = |of| Fact::NodeChecked {
        node: "a".to_owned(),
        found: "bits differ".to_owned(),
        by: "a check".to_owned(),
        of: Some(of),
    };
    let number = |writes: &Writes| writes.tables.nodes["a"].refused.as_ref().unwrap().number;
    writes.leader(refuse("job j7", "it is slow")).unwrap();
    let first = number(&writes);
    writes
        .leader(refuse("ann", "smoke in\n\u{1b}the rack\n"))
        .unwrap();
    for fact in [passed(first), failed(first)] {
        let late = writes.leader(fact).unwrap_err();
        assert_eq!(late.kind, RefusalKind::Conflict);
        assert!(late.why.contains("smoke in the rack"), "{late}");
    }
    // What a job says of a node that is refused changes nothing.
    let of_job = writes.leader(refuse("job j8", "it hangs")).unwrap_err();
    assert!(of_job.why.contains("refused already, by ann"), "{of_job}");
    let second = number(&writes);
    writes.leader(failed(second)).unwrap();
    writes.leader(passed(second)).unwrap();
    assert_eq!(writes.tables.nodes["a"].refused, None);
    let late = writes.leader(passed(second)).unwrap_err();
    assert!(late.why.contains("let back meanwhile"), "{late}");
}

#[test]
fn a_job_gets_a_node_only_if_it_still_may() {
    let mut writes = Writes::default();
    for name in ["a", "b"] {
        writes.up(name, 1).unwrap();
    }
    let mut bound = spec("x");
    bound.node = Some("a".to_owned());
    let (job, other) = (writes.submit(bound), writes.submit(spec("y")));
    let refused = |outcome: Result<Written, Refusal>, words: &str| {
        let refusal = outcome.expect_err(words);
        assert_eq!(refusal.kind, RefusalKind::Conflict);
        assert!(refusal.why.contains(words), "{refusal}");
    };
    refused(writes.assign(job, "a", 2), "not up any more");
    refused(writes.assign(job, "c", 1), "not up any more");
    refused(writes.assign(job, "b", 1), "must run on node `a`");
    let drain = |drained| Fact::NodeDrained {
        node: "a".to_owned(),
        drained,
        by: "ann".to_owned(),
    };
    writes.leader(drain(true)).unwrap();
    refused(writes.assign(job, "a", 1), "drained");
    // Neither a lost link nor a new life takes that away.
    writes.up("a", 2).unwrap();
    refused(writes.assign(job, "a", 2), "drained");
    writes.leader(drain(false)).unwrap();
    let quota = Fact::NamespaceSet {
        name: "default".to_owned(),
        quota: Some(NamespaceQuota::running(1)),
        by: "ann".to_owned(),
    };
    writes.leader(quota).unwrap();
    writes.assign(job, "a", 2).unwrap();
    refused(writes.assign(other, "b", 1), "as many as it may");
    writes.over(job, 1, "a").unwrap();
    assert_eq!(kind(writes.assign(other, "b", 1)), DONE);
}

// ---- tokens and keys ----

fn made(id: &str, uses: u32, until: u64) -> Fact {
    Fact::TokenMade {
        id: id.to_owned(),
        uses,
        until: Unix(until),
        by: "ann".to_owned(),
    }
}

#[test]
fn a_token_admits_so_many_nodes_for_so_long_under_new_names() {
    let mut writes = Writes::default();
    let used = |id: &str, node: &str| {
        let (id, node) = (id.to_owned(), node.to_owned());
        Fact::TokenUsed { id, node }
    };
    let refused = |outcome: Result<Written, Refusal>, expected, words: &str| {
        let refusal = outcome.expect_err(words);
        assert_eq!(refusal.kind, expected);
        assert!(refusal.why.contains(words), "{refusal}");
    };
    let (unknown, conflict) = (RefusalKind::Unknown, RefusalKind::Conflict);
    writes.leader(made("t", 2, 100)).unwrap();
    refused(writes.leader(used("u", "a")), unknown, "no such join token");
    writes.leader(used("t", "a")).unwrap();
    writes.up("a", 1).unwrap();
    refused(
        writes.leader(used("t", "a")),
        conflict,
        "there is a node `a`",
    );
    // A name is free again when its node is gone.
    writes.left("a", 1).unwrap();
    writes.leader(used("t", "a")).unwrap();
    refused(writes.leader(used("t", "b")), conflict, "used up, by a, a");
    writes.leader(made("v", 9, 100)).unwrap();
    writes.last = 99;
    refused(writes.leader(used("v", "b")), conflict, "has expired");
    // Those that are good for nothing make room.
    writes.leader(made("w", 1, 1000)).unwrap();
    let kept: Vec<_> = writes.tables.tokens.keys().collect();
    assert_eq!(kept, ["w"]);
}

#[test]
fn tokens_that_admit_nobody_any_more_go_when_another_is_made() {
    let mut writes = Writes::default();
    writes.leader(made("good", 2, 100)).unwrap();
    writes.leader(made("used", 1, 100)).unwrap();
    let (id, node) = ("used".to_owned(), "a".to_owned());
    writes.leader(Fact::TokenUsed { id, node }).unwrap();
    writes.leader(made("short", 1, 5)).unwrap();
    assert!(writes.tables.tokens.keys().eq(["good", "short"]));
    // The moment in which it expires.
    writes.leader(made("new", 1, 100)).unwrap();
    assert_eq!(writes.tables.now, Unix(5));
    assert!(writes.tables.tokens.keys().eq(["good", "new"]));
}

#[test]
fn the_key_of_a_folder_goes_with_its_node_and_no_other_does() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    writes.left("a", 1).unwrap();
    for name in ["owner@a", "owner@b", "ci"] {
        let made = Fact::KeyMade {
            id: format!("id of {name}"),
            name: name.to_owned(),
            role: KeyRole::Submit,
            by: "ann".to_owned(),
        };
        writes.leader(made).unwrap();
    }
    let node = "a".to_owned();
    writes.leader(Fact::NodeForgotten { node }).unwrap();
    let kept = writes.tables.keys.values().map(|key| &*key.name);
    assert_eq!(kept.collect::<Vec<_>>(), ["ci", "owner@b"]);
}

/// SEMANTICS 122.
#[test]
fn a_low_disk_is_news_once_until_it_is_another_or_has_room() {
    let mut writes = Writes::default();
    let mut told = |low: Option<&str>| {
        let spec = NodeSpec {
            low_disk: low.map(str::to_owned),
            ..node("a", 1)
        };
        let before = writes.tables.news.len();
        let fact = Fact::NodeUp(spec);
        writes.by(Writer::Node("a".to_owned()), fact).unwrap();
        let news = writes.tables.news.iter().skip(before);
        news.map(|it| it.what.clone()).collect::<Vec<_>>()
    };
    assert_eq!(told(Some("1 GiB left")), ["is up", "1 GiB left"]);
    assert_eq!(told(Some("1 GiB left")), [""; 0]);
    assert_eq!(told(Some("none left")), ["none left"]);
    assert_eq!(told(None), ["has room on its disk again"]);
    assert_eq!(told(None), [""; 0]);
}

#[test]
fn a_key_has_a_name_of_its_own_until_it_is_revoked() {
    let mut writes = Writes::default();
    let made = |id: &str| Fact::KeyMade {
        id: id.to_owned(),
        name: "ci".to_owned(),
        role: KeyRole::Submit,
        by: "ann".to_owned(),
    };
    let revoked = || Fact::KeyRevoked {
        name: "ci".to_owned(),
        by: "ann".to_owned(),
    };
    assert_eq!(kind(writes.leader(revoked())), Err(RefusalKind::Unknown));
    assert_eq!(kind(writes.leader(made("k"))), DONE);
    assert_eq!(kind(writes.leader(made("l"))), CONFLICT);
    assert_eq!(kind(writes.leader(revoked())), DONE);
    assert!(writes.tables.keys.is_empty());
    assert_eq!(kind(writes.leader(made("l"))), DONE);
}

#[test]
fn an_even_number_of_voters_is_refused_and_says_why() {
    let mut writes = Writes::default();
    let mut set = |count| {
        let by = "ann".to_owned();
        let written = writes.leader(Fact::VotersSet { count, by });
        (kind(written), writes.tables.voters_wanted)
    };
    assert_eq!(set(3), (DONE, 3));
    for count in [0, 2, 4, 11] {
        assert_eq!(set(count), (Err(RefusalKind::Invalid), 3), "{count}");
    }
    assert_eq!(set(9), (DONE, 9));
}

// ---- bounds ----

#[test]
fn history_is_bounded_and_who_ended_last_is_remembered_longest() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    let long = writes.submit(spec("long"));
    writes.assign(long, "a", 1).unwrap();
    for _ in 0..ENDED_MAX + 10 {
        let job = writes.submit(spec("short"));
        writes.stop(job).unwrap();
    }
    let ended = |tables: &Tables| tables.ended_jobs().count();
    assert_eq!(ended(&writes.tables), ENDED_MAX);
    let first = writes.tables.jobs.keys().nth(1).copied();
    assert_eq!(first, Some(JobId(12)));
    // The oldest job has just ended, so that people want to know how.
    writes.over(long, 1, "a").unwrap();
    assert_eq!(ended(&writes.tables), ENDED_MAX);
    assert_eq!(writes.word(long), "succeeded");
    assert_eq!(writes.tables.bundles().count(), BUNDLES_KEPT);
    assert!(writes.tables.bundles().any(|it| it == spec("long").bundle));
    // What is forgotten was over.
    assert!(writes.tables.is_over(JobId(2), 1));
    assert!(!writes.tables.is_over(JobId(99_999), 1));
    assert_eq!(writes.tables.news.len(), NEWS_MAX);
    assert_eq!(writes.tables.recent.len(), RECENT_MAX);
}

// ---- the disk ----

/// A command of the golden file that is refused: it is about a try on another node.
const STRANGER: u64 = 32;

fn golden_commands() -> Vec<Command> {
    serde_json::from_str(include_str!("golden/commands.json")).unwrap()
}

/// All kinds of facts, so that a new one is missed.
fn fact_kind(fact: &Fact) -> usize {
    match fact {
        Fact::NodeUp(_) => 0,
        Fact::NodeLeft { .. } => 1,
        Fact::NodeLost { .. } => 2,
        Fact::NodeDrained { .. } => 3,
        Fact::NodeForgotten { .. } => 4,
        Fact::TokenMade { .. } => 5,
        Fact::TokenUsed { .. } => 6,
        Fact::KeyMade { .. } => 7,
        Fact::KeyRevoked { .. } => 8,
        Fact::NamespaceSet { .. } => 9,
        Fact::JobSubmitted { .. } => 10,
        Fact::Job { event, .. } => match event {
            Event::Held { .. } => 11,
            Event::Assigned { .. } => 12,
            Event::Started { .. } => 13,
            Event::Over { .. } => 14,
            Event::Stop { .. } => 15,
            Event::Retry { .. } => 16,
            Event::Unkept { .. } => 18,
            Event::Extended { .. } => 20,
            Event::Prepared { .. } => 21,
            Event::Update { .. } => 27,
            Event::RollBack { .. } => 28,
            Event::TurnDue { .. } => 29,
            Event::AtWork { .. } => 30,
        },
        Fact::VotersSet { .. } => 17,
        Fact::Array { .. } => 19,
        Fact::NodeRefused { .. } => 22,
        Fact::NodeChecked { .. } => 23,
        Fact::NodeLetBack { .. } => 24,
        Fact::EnvironmentClaimed { .. } => 25,
        Fact::EnvironmentSettled { .. } => 26,
    }
}

const FACT_KINDS: usize = 31;

/// SEMANTICS 59.
#[test]
fn commands_are_on_the_disk_as_they_were() {
    let commands = golden_commands();
    let lines = include_str!("golden/commands.json").lines();
    let lines = lines.filter(|line| line.starts_with('{'));
    for (command, line) in commands.iter().zip(lines) {
        let text = serde_json::to_string(command).unwrap();
        assert_eq!(text, line.trim_end_matches(','));
    }
    let mut kinds: Vec<usize> = commands.iter().map(|it| fact_kind(&it.fact)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, (0..FACT_KINDS).collect::<Vec<_>>());
}

/// SEMANTICS 57.
#[test]
fn what_a_try_had_on_a_lost_node_is_its_own_again_when_the_node_is_back() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    writes.up("b", 2).unwrap();
    let one = Allotment {
        cpu_milli: 1000,
        ..Allotment::default()
    };
    let mut gang = spec("gang");
    gang.resources = JobResources {
        driver: one,
        ranks: 1,
        rank: one,
        ..JobResources::default()
    };
    let job = writes.submit(gang);
    let part = |node: &str, boot, rank| Reservation {
        node: node.to_owned(),
        boot,
        rank,
        allotment: one,
        devices: vec![],
    };
    let event = Event::Assigned {
        node: "a".to_owned(),
        boot: 1,
        reserved: vec![part("a", 1, None), part("b", 2, Some(0))],
    };
    writes.leader(Fact::Job { job, event }).unwrap();
    let has = |writes: &Writes| writes.tables.reserved().len();
    assert_eq!(has(&writes), 2);
    writes.lost("b", 2).unwrap();
    assert_eq!(has(&writes), 1);
    writes.up("b", 3).unwrap();
    assert_eq!(has(&writes), 2);
    // One that comes with less has nothing of it.
    writes.lost("b", 3).unwrap();
    let mut less = node("b", 4);
    (less.follows, less.cpus) = (Some(3), less.cpus - 1);
    let up = Fact::NodeUp(less);
    writes.by(Writer::Node("b".to_owned()), up).unwrap();
    assert_eq!(has(&writes), 1);
}

/// SEMANTICS 191.
#[test]
fn an_environment_that_failed_is_installed_by_whoever_comes_next() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    writes.up("b", 2).unwrap();
    let key = Digest::of(b"1");
    let claimed = |node: &str, boot, claim| Fact::EnvironmentClaimed {
        key,
        node: node.to_owned(),
        boot,
        claim,
        lost: None,
    };
    let settled = |node: &str, claim, why: Option<&str>| Fact::EnvironmentSettled {
        key,
        node: node.to_owned(),
        claim,
        bundle: None,
        why: why.map(str::to_owned),
    };
    let by = |node: &str| Writer::Node(node.to_owned());
    writes.by(by("a"), claimed("a", 1, 7)).unwrap();
    let refused = writes.by(by("b"), claimed("b", 2, 8));
    assert_eq!(refused.unwrap_err().kind, RefusalKind::Conflict);
    let why = Some("no such package");
    writes.by(by("a"), settled("a", 7, why)).unwrap();
    let state = |writes: &Writes| writes.tables.environments[&key].state.clone();
    let failed = EnvironmentState::Failed {
        node: "a".to_owned(),
        claim: 7,
        why: "no such package".to_owned(),
    };
    assert_eq!(state(&writes), failed);
    assert_eq!(writes.tables.snapshots().count(), 0);
    // Said once more it changes nothing.
    assert!(writes.by(by("a"), settled("a", 7, None)).is_err());
    writes.by(by("b"), claimed("b", 2, 8)).unwrap();
    writes.by(by("b"), settled("b", 8, None)).unwrap();
    assert!(writes.tables.environments.is_empty());
}

/// Where the format changes, older snapshots are still to be read: give a new field a default. Then
/// `ODEON_GOLDEN=write` writes the file anew.
#[test]
fn a_snapshot_is_on_the_disk_as_it_was() {
    let mut tables = Tables::default();
    for command in golden_commands() {
        let _ = tables.apply(command);
    }
    let text = serde_json::to_string_pretty(&tables).unwrap() + "\n";
    if std::env::var("ODEON_GOLDEN").is_ok_and(|what| what == "write") {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/tables/golden/snapshot.json"
        );
        std::fs::write(path, &text).unwrap();
        return;
    }
    let golden = include_str!("golden/snapshot.json");
    assert_eq!(text, golden);
    assert_eq!(serde_json::from_str::<Tables>(golden).unwrap(), tables);
    // Of before jobs asked for anything.
    let before = golden.replace(",\n        \"since\": 1772366425000", "");
    assert_ne!(before, golden);
    let before: Tables = serde_json::from_str(&before).unwrap();
    assert!(matches!(
        before.jobs[&JobId(2)].state,
        State::Waiting { since: None, .. }
    ));
}

/// SEMANTICS 59.
#[test]
fn a_snapshot_of_an_older_release_is_read() {
    let tables: Tables = serde_json::from_str(include_str!("golden/older.json")).unwrap();
    let row = &tables.nodes["head"];
    assert!(!row.drained && row.spec.follows.is_none() && row.spec.devices.is_empty());
    let job = &tables.jobs[&JobId(17)];
    assert_eq!(job.spec.namespace, "default");
    assert_eq!((job.tries, job.tries_before), (1, 0));
    assert_eq!(tables.news, []);
    // It goes on from there.
    let mut writes = Writes { tables, last: 0 };
    writes.lost("head", 11).unwrap();
    assert_eq!(writes.word(JobId(17)), "waiting");
    writes.up("b", 1).unwrap();
    assert_eq!(writes.tables.nodes["b"].number, 5);
    assert_eq!(writes.submit(spec("x")), JobId(18));
}

/// SEMANTICS 63.
#[test]
fn a_name_of_a_detached_actor_is_one_living_jobs_alone() {
    let mut tables = Tables::default();
    let mut last = 0;
    let mut say = |fact: Fact| {
        last += 1;
        tables.apply(Command {
            id: last,
            at: Unix(last),
            writer: Writer::Leader,
            fact,
        })
    };
    let mut host = |namespace: &str, name: &str| {
        let hosts = Some(crate::job::Hosted {
            name: name.to_owned(),
            actor: "job.Board".to_owned(),
            kept: true,
            order: String::new(),
        });
        let spec = JobSpec {
            namespace: namespace.to_owned(),
            hosts,
            ..spec(name)
        };
        say(Fact::JobSubmitted {
            spec,
            by: "ann".to_owned(),
        })
    };
    assert_eq!(host("lab", "board"), Ok(Written::Job(JobId(1))));
    let refused = host("lab", "board").unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Conflict);
    assert_eq!(
        refused.why,
        "namespace `lab` has a detached actor `board` already: job j1"
    );
    assert_eq!(host("lab", "board-2"), Ok(Written::Job(JobId(2))));
    assert_eq!(host("shop", "board"), Ok(Written::Job(JobId(3))));
    let by = || "ann".to_owned();
    let stop = Event::Stop {
        by: by(),
        in_order: true,
    };
    assert_eq!(
        say(Fact::Job {
            job: JobId(1),
            event: stop
        }),
        Ok(Written::Done)
    );
    let again = || Fact::Job {
        job: JobId(1),
        event: Event::Retry { by: by() },
    };
    // It may have its name again when nobody else has it meanwhile.
    assert_eq!(say(again()), Ok(Written::Done));
    assert_eq!(
        say(Fact::Job {
            job: JobId(1),
            event: Event::Stop {
                by: by(),
                in_order: true
            }
        }),
        Ok(Written::Done)
    );
    let spec = JobSpec {
        namespace: "lab".to_owned(),
        hosts: tables.jobs[&JobId(1)].spec.hosts.clone(),
        ..spec("board")
    };
    let command = |id, fact| Command {
        id,
        at: Unix(id),
        writer: Writer::Leader,
        fact,
    };
    assert_eq!(
        tables.apply(command(100, Fact::JobSubmitted { spec, by: by() })),
        Ok(Written::Job(JobId(4)))
    );
    let refused = tables.apply(command(101, again())).unwrap_err();
    assert_eq!(
        refused.why,
        "namespace `lab` has a detached actor `board` already: job j4"
    );
}

// ---- arrays, and jobs after others ----

impl Writes {
    fn after(&mut self, jobs: &[JobId]) -> JobId {
        let mut after = spec("later");
        after.after = jobs.iter().copied().map(After::job).collect();
        self.submit(after)
    }

    fn ends(&mut self, job: JobId, outcome: Outcome) {
        self.assign(job, "a", 1).unwrap();
        let attempt = self.tables.jobs[&job].tries;
        let event = Event::Over { attempt, outcome };
        self.by(Writer::Node("a".to_owned()), Fact::Job { job, event })
            .unwrap();
    }

    fn why(&self, job: JobId) -> String {
        match &self.tables.jobs[&job].state {
            State::Waiting { why, .. } => why.clone(),
            State::Ended { outcome, .. } => outcome.to_string(),
            other => panic!("{other:?}"),
        }
    }

    fn array(&mut self, name: &str, indices: &str) -> JobId {
        let mut array = spec(name);
        array.retries = 0;
        array.array = Some(indices.parse().unwrap());
        self.submit(array)
    }

    fn act(&mut self, first: JobId, act: ArrayAct) -> Result<Written, Refusal> {
        let by = "ann".to_owned();
        self.leader(Fact::Array { first, act, by })
    }
}

/// A failure after which no try follows.
fn refused() -> Outcome {
    Outcome::Refused {
        why: "no such program".to_owned(),
    }
}

/// SEMANTICS 119.
#[test]
fn a_job_begins_when_all_that_it_comes_after_have_succeeded() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    let (one, two) = (writes.submit(spec("one")), writes.submit(spec("two")));
    let later = writes.after(&[one, two]);
    assert_eq!(
        writes.why(later),
        "it begins after j1 and j2 have succeeded"
    );
    assert_eq!(kind(writes.assign(later, "a", 1)), CONFLICT);
    writes.ends(two, Outcome::Succeeded);
    assert_eq!(writes.why(later), "it begins after j1 has succeeded");
    assert_eq!(kind(writes.assign(later, "a", 1)), CONFLICT);
    writes.ends(one, Outcome::Succeeded);
    assert_eq!(kind(writes.assign(later, "a", 1)), DONE);
    // What has succeeded already holds up nobody.
    let free = writes.after(&[one]);
    assert_eq!(kind(writes.assign(free, "a", 1)), DONE);
}

/// SEMANTICS 119.
#[test]
fn whoever_comes_after_a_job_that_fails_is_over_at_once_with_the_reason() {
    for outcome in ["refused", "cancelled", "lost"] {
        let mut writes = Writes::default();
        writes.up("a", 1).unwrap();
        let mut first = spec("first");
        first.retries = 0;
        let first = writes.submit(first);
        let next = writes.after(&[first]);
        let last = writes.after(&[next]);
        let other = writes.submit(spec("other"));
        let cause = match outcome {
            "refused" => {
                writes.ends(first, refused());
                "j1 was refused: no such program"
            }
            "cancelled" => {
                writes.stop(first).unwrap();
                "j1 was cancelled by ann"
            }
            _ => {
                writes.assign(first, "a", 1).unwrap();
                writes.lost("a", 1).unwrap();
                "j1 was lost with node `a`: is lost: it is silent"
            }
        };
        assert_eq!(writes.word(next), "cancelled");
        assert_eq!(
            writes.why(next),
            format!("cancelled: it comes after j1, and {cause}")
        );
        assert_eq!(
            writes.why(last),
            format!("cancelled: it comes after {next}, and {cause}")
        );
        assert_eq!(writes.word(other), "waiting");
        // One that comes now is not taken, and nor is one after a job that there is not.
        let mut late = spec("late");
        late.after = vec![After::job(first)];
        let by = "ann".to_owned();
        let refused = writes.leader(Fact::JobSubmitted {
            spec: late.clone(),
            by: by.clone(),
        });
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Conflict);
        assert!(refused.why.contains(cause), "{refused}");
        late.after = vec![After::job(JobId(99))];
        let refused = writes.leader(Fact::JobSubmitted { spec: late, by });
        assert!(refused.unwrap_err().why.contains("there is no job j99"));
        // Run again, it waits for the other again.
        let by = || "ann".to_owned();
        let retry = |job| Fact::Job {
            job,
            event: Event::Retry { by: by() },
        };
        assert_eq!(kind(writes.leader(retry(next))), CONFLICT);
        writes.leader(retry(first)).unwrap();
        writes.leader(retry(next)).unwrap();
        assert_eq!(writes.why(next), "it begins after j1 has succeeded");
        writes.up("a", 1).ok();
    }
}

/// SEMANTICS 119. As deep as people can make it, without a stack that grows with it.
#[test]
fn a_long_chain_falls_at_once() {
    let mut writes = Writes::default();
    let first = writes.submit(spec("first"));
    let mut last = first;
    for _ in 0..5000 {
        last = writes.after(&[last]);
    }
    writes.stop(first).unwrap();
    assert_eq!(writes.tables.living_jobs().count(), 0);
    assert!(writes.why(last).ends_with("and j1 was cancelled by ann"));
}

/// SEMANTICS 120.
#[test]
fn an_array_is_a_job_for_each_index_with_so_many_at_once() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    let first = writes.array("sweep", "0-8:4%2");
    let all: Vec<&Job> = writes.tables.jobs_named("sweep");
    let names: Vec<&str> = all.iter().map(|job| &*job.spec.name).collect();
    assert_eq!(names, ["sweep-0", "sweep-4", "sweep-8"]);
    let index = |job: &Job| job.spec.env["ODEON_ARRAY_INDEX"].clone();
    let indices: Vec<String> = all.iter().map(|job| index(job)).collect();
    assert_eq!(indices, ["0", "4", "8"]);
    assert_eq!(all[0].spec.env["ODEON_ARRAY_COUNT"], "3");
    let ids: Vec<JobId> = all.iter().map(|job| job.id).collect();
    assert_eq!(writes.tables.jobs_named("sweep-4")[0].id, ids[1]);
    // No third while two have a node, whoever leads.
    writes.assign(ids[0], "a", 1).unwrap();
    writes.assign(ids[2], "a", 1).unwrap();
    let refused = writes.assign(ids[1], "a", 1).unwrap_err();
    assert!(
        refused.why.contains("`sweep` has 2 jobs that run"),
        "{refused}"
    );
    // A job after all of it, and one after one of it.
    let mut after = spec("sum");
    let task = writes.tables.jobs[&first].array.clone().unwrap();
    after.after = vec![After::array(&task)];
    let sum = writes.submit(after);
    assert!(writes.why(sum).contains("all of `sweep` (j1 to j3) have"));
    writes.over(ids[0], 1, "a").unwrap();
    writes.over(ids[2], 1, "a").unwrap();
    assert_eq!(kind(writes.assign(sum, "a", 1)), CONFLICT);
    writes.assign(ids[1], "a", 1).unwrap();
    writes.over(ids[1], 1, "a").unwrap();
    assert_eq!(kind(writes.assign(sum, "a", 1)), DONE);
}

/// SEMANTICS 120.
#[test]
fn an_array_is_ended_and_run_again_as_one() {
    let mut writes = Writes::default();
    writes.up("a", 1).unwrap();
    let first = writes.array("sweep", "0-3");
    let job = |n: u64| JobId(first.0 + n);
    writes.ends(job(0), Outcome::Succeeded);
    writes.assign(job(1), "a", 1).unwrap();
    let words = |writes: &Writes| (0..4).map(|n| writes.word(job(n))).collect::<Vec<_>>();
    writes.act(job(2), ArrayAct::Cancel).unwrap();
    assert_eq!(
        words(&writes),
        ["succeeded", "staging", "cancelled", "cancelled"]
    );
    let none = writes.act(first, ArrayAct::Cancel).unwrap_err();
    assert!(
        none.why.contains("none of the 4 jobs of `sweep` waits"),
        "{none}"
    );
    writes.act(first, ArrayAct::Kill).unwrap();
    assert_eq!(writes.word(job(1)), "stopping");
    writes.act(first, ArrayAct::Retry).unwrap();
    assert_eq!(
        words(&writes),
        ["succeeded", "stopping", "waiting", "waiting"]
    );
    // By the number of a job that is of none.
    let other = writes.submit(spec("other"));
    let refused = writes.act(other, ArrayAct::Stop).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Unknown);
    // A name stands for what came last.
    let later = writes.array("sweep", "7");
    assert_eq!(writes.tables.jobs_named("sweep")[0].id, later);
}

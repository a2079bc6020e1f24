//! Tests of who votes, whatever happens to the nodes.

use proptest::collection::vec;
use proptest::prelude::*;

use How::{Away, Drained, Forgetful, Gone, Silent, Up};

use super::*;
use crate::fact::NodeSpec;

const NOW: Unix = Unix(1_000_000_000);

/// A node as a case draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Up,
    Silent,
    Drained,
    /// Gone so recently that it may be back.
    Away,
    Gone,
    /// Up, without a disk for the log.
    Forgetful,
}

fn row(number: u64, how: How, votes: bool) -> NodeRow {
    let (state, since) = match how {
        Up | Silent | Drained | Forgetful => (NodeState::Up, Unix(0)),
        Away => (NodeState::Left, NOW),
        Gone => (NodeState::Left, Unix(0)),
    };
    NodeRow {
        number,
        spec: NodeSpec {
            name: format!("n{number}"),
            boot: number,
            address: String::new(),
            release: String::new(),
            cpus: 1,
            memory: 0,
            devices: vec![],
            votes: votes && how != Forgetful,
            api: None,
            follows: None,
            certificate: None,
            upgrades: 0,
            inventory: vec![],
            unlimited: None,
            low_disk: None,
        },
        state,
        since,
        drained: how == Drained,
        refused: None,
        refusals: 0,
        over_refusals: 0,
        let_back: None,
        version: 0,
    }
}

/// A cluster whose changes are carried out at once.
#[derive(Clone, Debug)]
struct Scene {
    tables: Tables,
    standing: Standing,
    silent: BTreeMap<String, Duration>,
    changes: Vec<Change>,
}

impl Scene {
    /// Of these nodes, from number 1 on, the ones named vote; the first of those leads.
    fn new(wanted: u32, nodes: &[How], voters: &[u64]) -> Self {
        let mut tables = Tables::default();
        tables.voters_wanted = wanted;
        let mut silent = BTreeMap::new();
        for (at, how) in nodes.iter().enumerate() {
            let number = at as u64 + 1;
            let row = row(number, *how, voters.contains(&number));
            let time = if *how == Silent { 5 } else { 0 };
            silent.insert(row.spec.name.clone(), Duration::from_secs(time));
            tables.nodes.insert(row.spec.name.clone(), row);
        }
        let named = voters.iter().map(|it| (*it, format!("n{it}"))).collect();
        let standing = Standing {
            leader: voters[0],
            voters: named,
            learners: BTreeMap::new(),
        };
        Self {
            tables,
            standing,
            silent,
            changes: vec![],
        }
    }

    fn next(&self) -> Option<Change> {
        let rules = Rules::default();
        next(&self.tables, &self.standing, &self.silent, &rules, NOW)
    }

    fn votes(&mut self, node: &str, votes: bool) {
        self.tables.nodes.get_mut(node).unwrap().spec.votes = votes;
    }

    fn carry_out(&mut self, change: Change) {
        match &change {
            Change::Enlist { node, number } => {
                self.votes(node, true);
                self.standing.learners.insert(*number, node.clone());
            }
            Change::Elect { voters } => {
                let mut known = self.standing.voters.clone();
                known.append(&mut self.standing.learners);
                known.retain(|number, _| voters.contains(number));
                assert_eq!(known.len(), voters.len(), "{change:?} of strangers");
                self.standing.voters = known;
            }
            Change::Strike { number } => drop(self.standing.learners.remove(number)),
            Change::Dismiss { node } => self.votes(node, false),
        }
        self.changes.push(change);
    }

    /// Carries out changes until none is due. The voters then.
    fn settle(&mut self) -> Vec<u64> {
        while let Some(change) = self.next() {
            self.carry_out(change);
            assert!(self.changes.len() < 100, "no end: {:#?}", self.changes);
        }
        self.standing.voters.keys().copied().collect()
    }
}

#[test]
fn a_cluster_grows_to_as_many_voters_as_it_wants_when_it_has_the_nodes() {
    let settled =
        |wanted, nodes: &[How], voters: &[u64]| Scene::new(wanted, nodes, voters).settle();
    assert_eq!(settled(1, &[Up, Up, Up], &[1]), [1]);
    assert_eq!(settled(3, &[Up], &[1]), [1]);
    assert_eq!(settled(3, &[Up, Up], &[1]), [1], "two are worse than one");
    assert_eq!(settled(3, &[Up, Up, Up, Up], &[1]), [1, 2, 3]);
    assert_eq!(settled(3, &[Up, Silent, Drained, Up, Up], &[1]), [1, 4, 5]);
    assert_eq!(settled(5, &[Up, Up, Up, Up], &[1, 2, 3]), [1, 2, 3]);
    assert_eq!(
        settled(1, &[Up, Up, Up], &[2, 1, 3]),
        [2],
        "the leader stays"
    );
}

/// SEMANTICS 60.
#[test]
fn a_seat_is_kept_for_a_while_and_taken_by_who_can() {
    let settled = |nodes: &[How], voters: &[u64]| Scene::new(3, nodes, voters).settle();
    assert_eq!(settled(&[Up, Up, Away, Up], &[1, 2, 3]), [1, 2, 3]);
    assert_eq!(settled(&[Up, Up, Gone, Up], &[1, 2, 3]), [1, 2, 4]);
    assert_eq!(settled(&[Up, Up, Gone], &[1, 2, 3]), [1, 2, 3]);
    assert_eq!(settled(&[Up, Up, Drained, Up], &[1, 2, 3]), [1, 2, 4]);
    assert_eq!(settled(&[Up, Up, Gone, Up], &[2, 1, 3]), [1, 2, 4]);
}

/// SEMANTICS 60.
#[test]
fn a_voter_that_is_gone_loses_its_seat_after_five_minutes() {
    for (seconds, expected) in [(299, [1, 2, 3]), (300, [1, 2, 4])] {
        let mut scene = Scene::new(3, &[Up, Up, Gone, Up], &[1, 2, 3]);
        let gone = scene.tables.nodes.get_mut("n3").unwrap();
        gone.since = Unix(NOW.0 - 1000 * seconds);
        assert_eq!(scene.settle(), expected, "{seconds} s");
    }
}

#[test]
fn of_too_many_voters_those_who_are_here_stay() {
    let nodes = [Up, Up, Away, Away, Up, Up, Up];
    let settled = Scene::new(3, &nodes, &[1, 3, 4, 5, 7]).settle();
    assert_eq!(settled, [1, 5, 7]);
    let nodes = [Up, Away, Away, Drained, Drained];
    let settled = Scene::new(3, &nodes, &[1, 2, 3, 4, 5]).settle();
    assert_eq!(
        settled,
        [1, 2, 3, 4, 5],
        "without those who are drained none could write"
    );
}

/// SEMANTICS 60.
#[test]
fn who_has_forgotten_the_log_loses_its_seat_before_it_gets_another() {
    let mut scene = Scene::new(3, &[Up, Up, Forgetful], &[1, 2, 3]);
    let first = scene.next();
    let voters = [1, 2].into_iter().collect();
    assert_eq!(first, Some(Change::Elect { voters }));
    assert_eq!(scene.settle(), [1, 2, 3]);
}

#[test]
fn who_has_no_seat_is_told_so() {
    let mut scene = Scene::new(1, &[Up, Up, Up], &[1, 2, 3]);
    scene.settle();
    assert!(
        scene
            .tables
            .nodes
            .values()
            .all(|row| row.spec.votes == (row.number == 1))
    );
    let told = |node: &str| Change::Dismiss {
        node: node.to_owned(),
    };
    assert_eq!(scene.changes[1..], [told("n2"), told("n3")]);
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![4 => Just(Up), 1 => Just(Silent), 1 => Just(Drained), 1 => Just(Away), 1 => Just(Gone), 1 => Just(Forgetful)]
}

proptest! {
    /// Whatever the nodes are like: changes come to an end; the leader keeps its seat unless it is to
    /// be drained; no seat goes to a node that may not have it; a cluster that could write can write
    /// after each change.
    #[test]
    fn changes_end_and_never_cost_the_majority(
        wanted in prop_oneof![Just(1_u32), Just(3), Just(5)],
        nodes in vec(how(), 1..8),
        seats in vec(any::<bool>(), 8),
    ) {
        let mut nodes = nodes;
        nodes[0] = Up;
        let numbers = 1..=nodes.len() as u64;
        let voters: Vec<u64> = numbers.filter(|it| *it == 1 || seats[*it as usize - 1]).collect();
        let mut scene = Scene::new(wanted, &nodes, &voters);
        let answers = |number: &u64, nodes: &[How]| {
            matches!(nodes[*number as usize - 1], Up | Silent | Drained)
        };
        let alive = |scene: &Scene, nodes: &[How]| {
            let voters = &scene.standing.voters;
            voters.keys().filter(|it| answers(it, nodes)).count() * 2 > voters.len()
        };
        prop_assume!(alive(&scene, &nodes));
        let before = scene.standing.voters.clone();
        while let Some(change) = scene.next() {
            if let Change::Enlist { number, .. } = &change {
                // From now on it knows the log.
                let how = &mut nodes[*number as usize - 1];
                prop_assert!(matches!(how, Up | Forgetful), "{change:?} of {how:?}");
                *how = Up;
            }
            scene.carry_out(change);
            prop_assert!(scene.changes.len() < 100, "no end: {:#?}", scene.changes);
            prop_assert!(alive(&scene, &nodes), "{:#?}", scene.changes);
            prop_assert!(scene.standing.voters.contains_key(&1));
        }
        let seated = scene.standing.voters.keys();
        let fresh = seated.filter(|it| !before.contains_key(it));
        prop_assert!(fresh.clone().all(|it| nodes[*it as usize - 1] == Up));
        prop_assert!(scene.standing.voters.len() <= before.len().max(wanted as usize));
        prop_assert!(scene.standing.learners.is_empty());
    }
}

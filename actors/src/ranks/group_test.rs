//! The group test of nodes (dual-phase replay of ByteRobust, arXiv 2509.16293): nodes make the same few training steps in
//! groups, of which each is a small run of its own over the links between its nodes. Who is in failing groups of both
//! rounds is to blame; see [`odeon_diagnosis::group_test`].
//!
//! Each round begins a process on each node, so that none goes on with what the round before has left. Whatever hangs is
//! given up at the limit, and its process ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::time::Duration;

use futures::future::join_all;
use odeon::{AskError, Clock, Group, Ref, Restart, System, mesh};
use odeon_diagnosis::group_test::{
    GroupTest, JudgedReplays, ReplayEnd, ReplayRound, ReplayedGroup,
};

use super::replay::{
    ReplayRank, ReplaySteps, ReplayTrouble, ShowProcessor, TEXTS, processor, replay_alone,
};

/// The time that a process may take to begin, and then a group for its replay, unless it is said otherwise.
pub const LIMIT: Duration = Duration::from_secs(30);
/// The time that a rank may take to stop before its process is ended.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A group test that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTested {
    /// The nodes that were tested, in their order.
    pub nodes: Vec<String>,
    /// Nodes that were not, and why.
    pub left_out: Vec<(String, String)>,
    /// The groups of both rounds.
    pub groups: Vec<TestedGroup>,
    /// Nodes that are suspected: one alone is the culprit.
    pub suspects: Vec<String>,
    /// The time that it has taken.
    pub took: Duration,
}

/// A group of nodes in a group test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestedGroup {
    /// The number of its round, from 1.
    pub round: u32,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Why it has failed, in words.
    pub fault: Option<String>,
}

/// A group test that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a group test takes {} nodes of one kind of processor, and there are {}{}",
    GroupTest::MACHINES_MIN, nodes.len(), in_brackets(nodes, left_out))]
pub struct TooFewNodes {
    /// Nodes that could be tested.
    pub nodes: Vec<String>,
    /// Nodes that could not, and why.
    pub left_out: Vec<(String, String)>,
}

fn in_brackets(nodes: &[String], left_out: &[(String, String)]) -> String {
    let mut told = match nodes {
        [] => vec![],
        nodes => vec![nodes.join(", ")],
    };
    told.extend(left_out.iter().map(|(node, why)| format!("{node}: {why}")));
    match told.as_slice() {
        [] => String::new(),
        told => format!(" ({})", told.join("; ")),
    }
}

impl GroupTested {
    /// The one node that is to blame.
    #[must_use]
    pub fn culprit(&self) -> Option<&str> {
        match self.suspects.as_slice() {
            [culprit] => Some(culprit),
            _ => None,
        }
    }

    /// Why the groups of a node have failed, in words; nothing where none has.
    #[must_use]
    pub fn evidence(&self, node: &str) -> String {
        let failed = self.groups.iter().filter_map(|it| {
            let fault = it.fault.as_ref()?;
            let is_of = it.nodes.iter().any(|name| name == node);
            is_of.then(|| format!("round {} on {}: {fault}", it.round, it.nodes.join(" and ")))
        });
        failed.collect::<Vec<_>>().join("; ")
    }
}

/// Who is to blame, with the evidence: `node d is to blame: round 1 on c and d: ..`.
impl Display for GroupTested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.groups.iter().filter(|it| it.fault.is_some()).count();
        let of = format!(
            "{failed} of {} groups of {} nodes",
            self.groups.len(),
            self.nodes.len()
        );
        match self.suspects.as_slice() {
            [] if failed == 0 => write!(f, "no group of {} nodes has failed", self.nodes.len()),
            [] => write!(
                f,
                "{of} have failed, and none in one of the rounds: the fault does not show each time"
            ),
            [node] => write!(f, "node {node} is to blame: {}", self.evidence(node)),
            several => write!(
                f,
                "{of} have failed: one of the nodes {} is to blame, or several",
                several.join(", ")
            ),
        }
    }
}

/// Makes the group test of these nodes, from this one. `limit` is the time that a process may take to begin, and then a
/// group for its replay: a test takes four times that at most. It goes on to its end also where nobody waits for it.
///
/// # Errors
/// There are too few nodes of one kind.
pub async fn test_nodes(
    system: &System,
    nodes: &[String],
    limit: Duration,
) -> Result<GroupTested, TooFewNodes> {
    let all: BTreeSet<String> = nodes.iter().cloned().collect();
    let nodes: Vec<String> = all.into_iter().collect();
    if GroupTest::among(nodes.len() as u32, TEXTS as u32).is_none() {
        let left_out = vec![];
        return Err(TooFewNodes { nodes, left_out });
    }
    let system = system.clone();
    let testing = tokio::spawn(async move { Tester { system, limit }.test(nodes).await });
    match testing.await {
        Ok(tested) => tested,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Whoever has nodes tested.
struct Tester {
    system: System,
    limit: Duration,
}

/// A node's process for a round: its rank with the kind of its processor, or how it has not begun.
struct Begun {
    rank: Option<Ref<ReplayRank>>,
    processor: Result<String, ReplayEnd>,
}

impl Tester {
    async fn test(&self, nodes: Vec<String>) -> Result<GroupTested, TooFewNodes> {
        let began = Clock::now();
        let alone = tokio::task::spawn_blocking(replay_alone);
        let mut begun = self.begin(&nodes).await;
        let (mut nodes, left_out, of_kind) = Self::chosen(nodes, &begun);
        let test = GroupTest::among(nodes.len() as u32, TEXTS as u32);
        let Some(test) = test else {
            self.end(begun.values()).await;
            return Err(TooFewNodes { nodes, left_out });
        };
        nodes.sort_unstable();
        let mut groups = vec![];
        for round in ReplayRound::ALL {
            if round == ReplayRound::Strided {
                begun = self.begin(&nodes).await;
            }
            let of_round =
                (0..test.groups()).map(|group| self.replayed((test, round, group), &nodes, &begun));
            groups.extend(join_all(of_round).await);
            self.end(begun.values()).await;
        }
        // One that has panicked or come to nothing is no reference.
        let alone = alone.await.ok().and_then(Result::ok);
        let alone = alone.filter(|_| of_kind.as_ref() == Some(&processor()));
        let JudgedReplays { verdict, faults } = test.judge(&nodes, &groups, alone.as_deref());
        let named = |machines: &[u32]| {
            let names = machines.iter().map(|it| nodes[*it as usize].clone());
            names.collect::<Vec<_>>()
        };
        let groups = groups.iter().zip(faults).map(|(it, fault)| TestedGroup {
            round: it.round.number(),
            nodes: named(&test.members(it.round, it.group)),
            fault,
        });
        Ok(GroupTested {
            groups: groups.collect(),
            suspects: named(verdict.suspects()),
            took: Clock::now().since(began),
            nodes,
            left_out,
        })
    }

    /// Begins a process on each node, all at once.
    async fn begin(&self, nodes: &[String]) -> BTreeMap<String, Begun> {
        let begun = nodes.iter().map(async |node| {
            let spawn = self.system.spawn::<ReplayRank>(());
            // What ends is no failure of whoever tests.
            let rank = spawn
                .restart(Restart::Temporary)
                .on_node(node.clone())
                .start();
            let rank = match rank {
                Ok(rank) => rank,
                Err(error) => {
                    let processor = Err(ReplayEnd::Failed(error.to_string()));
                    return (
                        node.clone(),
                        Begun {
                            rank: None,
                            processor,
                        },
                    );
                }
            };
            let asked = rank.ask(ShowProcessor).timeout(self.limit).await;
            let begun = Begun {
                rank: Some(rank),
                processor: asked.map_err(|error| end_of(&error)),
            };
            (node.clone(), begun)
        });
        join_all(begun).await.into_iter().collect()
    }

    /// The nodes that are tested, those that are not with the reason, and the kind of processor of the first. Nodes that
    /// have not begun are tested: their groups fail.
    fn chosen(
        nodes: Vec<String>,
        begun: &BTreeMap<String, Begun>,
    ) -> (Vec<String>, Vec<(String, String)>, Option<String>) {
        let kinds = begun.values().filter_map(|it| it.processor.as_ref().ok());
        let mut counts: BTreeMap<&String, u32> = BTreeMap::new();
        for kind in kinds {
            *counts.entry(kind).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(_, count)| **count);
        let most = most.map(|(kind, _)| (*kind).clone());
        let is_other = |node: &String| {
            let kind = begun.get(node).and_then(|it| it.processor.as_ref().ok());
            kind.is_some() && kind != most.as_ref()
        };
        let (others, tested): (Vec<_>, Vec<_>) = nodes.into_iter().partition(is_other);
        let why = "its processor is of another kind, so its bits may differ";
        let left_out = others.into_iter().map(|node| (node, why.to_owned()));
        (tested, left_out.collect(), most)
    }

    /// Has a group replay the steps.
    async fn replayed(
        &self,
        (test, round, group): (GroupTest, ReplayRound, u32),
        nodes: &[String],
        begun: &BTreeMap<String, Begun>,
    ) -> ReplayedGroup {
        let machines = test.members(round, group);
        let of = |machine: &u32| &begun[&nodes[*machine as usize]];
        let away = machines.iter().filter_map(|machine| {
            let end = of(machine).processor.as_ref().err()?;
            Some((*machine, end.clone()))
        });
        let mut replayed = ReplayedGroup {
            round,
            group,
            ends: away.collect(),
            apart: None,
        };
        if replayed.ends.is_empty() {
            let ranks = machines.iter().filter_map(|machine| of(machine).rank);
            match self.together(ranks.collect()).await {
                Ok(ends) => replayed.ends = machines.into_iter().zip(ends).collect(),
                Err(why) => replayed.apart = Some(why),
            }
        }
        replayed
    }

    /// Has ranks make the steps together, and answers how each has ended, or why they could not be brought together.
    async fn together(&self, ranks: Vec<Ref<ReplayRank>>) -> Result<Vec<ReplayEnd>, String> {
        let until = Clock::now().after(self.limit);
        let group = Group::new(mesh! { dp: ranks.len() }, ranks.clone());
        let group = group.map_err(|error| error.to_string())?;
        let formed = Clock::timeout(self.limit, group.form()).await;
        let formed = formed.ok_or_else(|| {
            let seconds = self.limit.as_secs();
            format!("its nodes have not come together within {seconds} s")
        })?;
        let formed = formed.map_err(|error| error.to_string())?;
        let left = until.left(Clock::now());
        // Ranks are to say whom they wait for before they are given up themselves.
        let patience_ms = (left / 2).as_millis() as u64;
        let asked = ranks.iter().zip(formed.seats()).map(async |(rank, seat)| {
            let asked = rank.ask(ReplaySteps { seat, patience_ms });
            match asked.timeout(left).await {
                Ok(Ok(bits)) => ReplayEnd::Bits(bits),
                Ok(Err(ReplayTrouble::NotFinite)) => ReplayEnd::NotFinite,
                Ok(Err(ReplayTrouble::Failed(why))) => ReplayEnd::Failed(why),
                Err(error) => end_of(&error),
            }
        });
        Ok(join_all(asked).await)
    }

    /// Ends the processes of a round.
    async fn end(&self, begun: impl Iterator<Item = &Begun>) {
        let ended = begun.filter_map(|it| it.rank).map(async |rank| {
            let stopped = rank.stop().timeout(STOP_PATIENCE).await;
            if stopped.is_err() {
                let why = "it has not stopped at the end of a group test";
                self.system.admin().end_process_of(rank.id(), why);
            }
        });
        join_all(ended).await;
    }
}

/// How the part of a rank has ended that has not answered.
fn end_of(error: &AskError) -> ReplayEnd {
    match error {
        AskError::Timeout { .. } | AskError::Full { .. } => ReplayEnd::Silent,
        error => ReplayEnd::Failed(error.to_string()),
    }
}

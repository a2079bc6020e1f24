//! The ladder: what is done about a rank that holds up or breaks its job, one rung after the other (ByteRobust,
//! arXiv 2509.16293).
//!
//! ```text
//!  tell  ->  end its process, which is made again in its place  ->  avoid its node, too  ->  test the nodes in groups
//!        ->  go back to the version before  ->  stop for a person
//! ```
//!
//! A rung is taken only when a fault of the same rank comes again, after the rung before it and within
//! [`LadderPolicy::window`]. While an action is under way nothing else is done: a job whose ranks begin again is to be
//! judged when they have. Each time that ranks begin again counts, also where none of them is to blame.
//!
//! The group test is an action as others are, and what it has come to is told by [`Ladder::tested`]: a node that is to blame
//! is avoided, and the ranks begin again once more. It is made where the job would stop for a person, and where losses are no
//! numbers and nobody knows by whose fault.
//!
//! A person may forbid actions, order one, and take them back: see [`Ladder::forbid`], [`Ladder::force`] and
//! [`Ladder::undo`].

mod orders;
mod test;
mod version;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Display};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::orders::Undoable;
use crate::{Action, Finding, FindingCause, Observation};

pub use self::orders::{Forbidden, OrderError, Ordered, OrderedAction, OrderedBy};
pub use self::test::TestedNodes;
pub use self::version::YoungVersion;

/// The kind of thing that is wrong with a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankFault {
    /// It does not go on while others wait for it.
    Still,
    /// It is slow, and others wait for it.
    Slow,
    /// Its loss is not a number, or infinite.
    NotFinite,
    /// Its process has ended by itself.
    Crashed,
}

/// A rank of a job, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacedRank {
    /// Its number.
    pub rank: u32,
    /// Its node.
    pub node: String,
}

/// A fault of ranks, with the evidence in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCause {
    /// The kind of fault.
    pub fault: RankFault,
    /// The evidence, as it stands behind the names of the ranks: `3 of 4 ranks wait for it: its process is stopped`.
    pub what: String,
}

impl Display for RankCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl FindingCause for RankCause {
    /// The first rung, unless a [`LadderPolicy`] says otherwise. A rank that is slow may catch up, and one whose loss is
    /// no number comes to the same from the same checkpoint, so that people decide.
    fn action(&self) -> Action {
        match self.fault {
            RankFault::Still | RankFault::Crashed => Action::EndProcess,
            RankFault::Slow | RankFault::NotFinite => Action::Tell,
        }
    }
}

/// The ranks of one job, as whoever supervises them hears of their faults.
#[derive(Clone, Copy, Debug)]
pub struct JobRanks;

impl Observation for JobRanks {
    type Subject = PlacedRank;
    /// Time since any moment that stays.
    type Moment = Duration;
    type Cause = RankCause;
}

/// A fault of ranks of a job.
pub type RankFinding = Finding<JobRanks>;

/// Settings of a ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LadderPolicy {
    /// Faults that something is done about; others are told. A crash has ended the process already, and counts in any
    /// case.
    pub acts: BTreeSet<RankFault>,
    /// The time for which a rank stands still, or is slow, before something is done.
    pub patience: Duration,
    /// Restarts in place of a rank before its node is avoided.
    pub in_place: u32,
    /// Restarts of the job in all before it stops for a person.
    pub restarts: u32,
    /// The time after which a restart is forgotten.
    pub window: Duration,
    /// Nodes that are never avoided, as a person says.
    #[serde(default)]
    pub trusted: BTreeSet<String>,
    /// The version of the program, where there is one before it to which the job can go back.
    #[serde(default)]
    pub version: Option<YoungVersion>,
}

impl Default for LadderPolicy {
    fn default() -> Self {
        Self {
            acts: BTreeSet::from([RankFault::Still, RankFault::Crashed]),
            patience: Duration::from_secs(60),
            in_place: 1,
            restarts: 10,
            window: Duration::from_hours(1),
            trusted: BTreeSet::new(),
            version: None,
        }
    }
}

/// The surroundings of ranks, as whoever supervises them sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Set where there is a node that the ranks of a finding could be placed on beside their own.
    pub elsewhere: bool,
    /// Nodes that all ranks are on, where these can be tested: ranks that cannot leave a node are helped by no test.
    pub nodes: Option<u32>,
}

/// The next rung for a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The action to take: [`Action::Tell`], [`Action::EndProcess`], [`Action::EvictNode`], [`Action::GroupTest`],
    /// [`Action::RollBack`] or [`Action::StopForPerson`].
    pub action: Action,
    /// Nodes that are avoided from now on.
    pub evicted: Vec<String>,
    /// Nodes that were avoided and look innocent: the fault has come again elsewhere.
    pub innocent: Vec<String>,
    /// The finding, the action and its reason, in words.
    pub why: String,
}

/// A restart that was ordered.
#[derive(Clone, Debug)]
struct Restarted {
    at: Duration,
    fault: RankFault,
    who: Vec<PlacedRank>,
    /// Nodes that have been avoided since.
    evicted: Vec<String>,
    /// Set where it is of the budget: the one more try behind a group test is not.
    counts: bool,
}

/// The rungs that were taken for the ranks of a job.
#[derive(Clone, Debug)]
pub struct Ladder {
    policy: LadderPolicy,
    restarts: VecDeque<Restarted>,
    /// Set from an action until the ranks go on.
    under_way: bool,
    stopped: bool,
    /// Since when what was told lasts, by rank and fault.
    told: BTreeMap<(u32, RankFault), Duration>,
    avoided: BTreeSet<String>,
    /// Nodes that were avoided and let back, since there was no room elsewhere: they are not left again.
    needed: BTreeSet<String>,
    /// When a group test was made last by itself, and what it has said.
    tested: Option<(Duration, String)>,
    /// Actions that are not taken, as a person says.
    forbidden: Vec<Forbidden>,
    /// What a person can take back, the last behind.
    undoable: Vec<Undoable>,
    /// Times that a node was avoided, and that one was found innocent.
    evictions: u32,
    over_evictions: u32,
}

impl Ladder {
    /// One on which nothing was tried.
    #[must_use]
    pub const fn new(policy: LadderPolicy) -> Self {
        Self {
            policy,
            restarts: VecDeque::new(),
            under_way: false,
            stopped: false,
            told: BTreeMap::new(),
            avoided: BTreeSet::new(),
            needed: BTreeSet::new(),
            tested: None,
            forbidden: Vec::new(),
            undoable: Vec::new(),
            evictions: 0,
            over_evictions: 0,
        }
    }

    /// Nodes that the ranks are not placed on.
    #[must_use]
    pub const fn avoided(&self) -> &BTreeSet<String> {
        &self.avoided
    }

    /// Has nodes avoided that were avoided before, but for those that are trusted.
    pub fn avoid(&mut self, nodes: &BTreeSet<String>) {
        let nodes = nodes.difference(&self.policy.trusted);
        let nodes: Vec<String> = nodes.cloned().collect();
        self.avoided.extend(nodes.iter().cloned());
        self.undoable.push(Undoable::Left(nodes));
    }

    /// Has nodes used again that ranks cannot do without: there is no room elsewhere. Those that were avoided last go
    /// first, and those that are let back are not avoided again. Answers nothing where none is avoided, and where a
    /// person forbids it.
    pub fn let_back(&mut self) -> Vec<String> {
        if self.forbids(OrderedAction::ReturnNode).is_some() {
            return vec![];
        }
        let mut orders = self.restarts.iter().rev();
        let last = orders.find_map(|it| {
            let avoided = it
                .evicted
                .iter()
                .filter(|node| self.avoided.contains(*node));
            let avoided: Vec<String> = avoided.cloned().collect();
            (!avoided.is_empty()).then_some(avoided)
        });
        let back = last.unwrap_or_else(|| self.avoided.iter().cloned().collect());
        self.avoided.retain(|node| !back.contains(node));
        self.needed.extend(back.iter().cloned());
        back
    }

    /// Counts of nodes that were avoided, and of those that were found innocent.
    #[must_use]
    pub const fn evictions(&self) -> (u32, u32) {
        (self.evictions, self.over_evictions)
    }

    /// Restarts within the window that count, and the most that there may be.
    #[must_use]
    pub fn budget(&self, now: Duration) -> (u32, u32) {
        let window = self.policy.window;
        let recent = |it: &&Restarted| it.counts && now.saturating_sub(it.at) <= window;
        let count = self.restarts.iter().filter(recent).count();
        (count as u32, self.policy.restarts)
    }

    /// The ranks go on, so that what is found from now on is judged anew.
    pub const fn went_on(&mut self) {
        self.under_way = false;
    }

    /// Judges a finding. One of no rank is of ranks that begin again for no fault of theirs.
    /// Answers nothing where it is too soon, where it was told before, while an action is under way, and once the job
    /// has stopped for a person. Where a person forbids what would be done, less is done, and told why.
    pub fn climb(
        &mut self,
        found: &RankFinding,
        around: Surroundings,
        now: Duration,
    ) -> Option<Rung> {
        if self.under_way || self.stopped {
            return None;
        }
        let fault = found.cause.fault;
        let lasts = now.saturating_sub(found.since);
        let waits = matches!(fault, RankFault::Still | RankFault::Slow);
        if waits && lasts < self.policy.patience {
            return None;
        }
        // Ranks begin again after a crash whatever the policy says.
        if fault != RankFault::Crashed {
            let forbidden = self.forbids(OrderedAction::EndProcess);
            let forbidden = forbidden.map(ToString::to_string);
            if !self.policy.acts.contains(&fault) || forbidden.is_some() {
                return self.told(found, forbidden);
            }
        }
        self.forget_old(now);
        let innocent = self.innocent(found);
        self.over_evictions += innocent.len() as u32;
        let mut rung = match self.why_to_test(found, !innocent.is_empty()) {
            _ if !found.who.is_empty() && self.is_never_at_work() => self.back(found, None),
            None => self.taken(found, around, now, None),
            Some(why) => match self.why_no_test(around, now) {
                None => self.test(found, &why),
                untested => self.taken(found, around, now, untested.as_deref()),
            },
        };
        for node in &innocent {
            rung.why +=
                &format!("; node {node} looks innocent, since the same came again elsewhere");
        }
        rung.innocent = innocent;
        Some(rung)
    }

    /// Restarts within the window that are of the budget.
    fn counted(&self) -> u32 {
        self.restarts.iter().filter(|it| it.counts).count() as u32
    }

    /// The rung of a finding about which something is done, where no group test is made; `untested` says why none is.
    fn taken(
        &mut self,
        found: &RankFinding,
        around: Surroundings,
        now: Duration,
        untested: Option<&str>,
    ) -> Rung {
        let window = in_words(self.policy.window);
        let (nth, most) = (self.counted() + 1, self.policy.restarts);
        let (action, evicted, mut does) = if nth > most {
            let why = format!("since its ranks have begun again {most} times within {window}");
            let (action, does) = self.given_up(found, now, &why);
            (action, vec![], does)
        } else {
            let counted = format!("restart {nth} of {most} within {window}");
            let (evicted, does) = self.made_again(found, around.elsewhere, &counted);
            self.leave(&evicted);
            self.restart(found, evicted.clone(), now, true);
            let action = match evicted.is_empty() {
                true => Action::EndProcess,
                false => Action::EvictNode,
            };
            (action, evicted, does)
        };
        if let Some(why) = untested {
            does += &format!("; {why}");
        }
        Rung {
            action,
            evicted,
            innocent: vec![],
            why: format!("{}: {}; {does}", named(&found.who), found.cause),
        }
    }

    /// Nodes that are left when ranks are made again, and what is done in words.
    fn made_again(
        &self,
        found: &RankFinding,
        elsewhere: bool,
        counted: &str,
    ) -> (Vec<String>, String) {
        let again = self.again(found);
        if found.who.is_empty() {
            return (vec![], format!("all begin again ({counted})"));
        }
        if again.is_empty() {
            return (vec![], format!("it is made again in its place ({counted})"));
        }
        if let Some(stays) = self.why_it_stays(elsewhere) {
            let does = format!("it is made again in its place, {stays} ({counted})");
            return (vec![], does);
        }
        let nodes = match again.as_slice() {
            [node] => format!("node {node} is"),
            several => format!("nodes {} are", several.join(" and ")),
        };
        let does = format!(
            "it is made again elsewhere, and {nodes} avoided from now on, since it was made again there before \
             ({counted})"
        );
        (again, does)
    }

    /// Notes that ranks begin again.
    fn restart(&mut self, found: &RankFinding, evicted: Vec<String>, now: Duration, counts: bool) {
        self.restarts.push_back(Restarted {
            at: now,
            fault: found.cause.fault,
            who: found.who.clone(),
            evicted,
            counts,
        });
        self.under_way = true;
    }

    /// Why a node is not left, where there is another one or not.
    fn why_it_stays(&self, elsewhere: bool) -> Option<String> {
        match self.forbids(OrderedAction::EvictNode) {
            _ if !elsewhere => Some("since there is no room elsewhere".to_owned()),
            Some(forbidden) => Some(format!("its node is not left: {forbidden}")),
            None => None,
        }
    }

    /// Forgets restarts from before the window.
    fn forget_old(&mut self, now: Duration) {
        let window = self.policy.window;
        let is_old = |it: &Restarted| now.saturating_sub(it.at) > window;
        while self.restarts.front().is_some_and(is_old) {
            self.restarts.pop_front();
        }
    }

    /// The rung of what people only hear of, once for each time that it begins; `forbidden` says who wants that.
    fn told(&mut self, found: &RankFinding, forbidden: Option<String>) -> Option<Rung> {
        let fault = found.cause.fault;
        let before = |it: &PlacedRank| self.told.get(&(it.rank, fault));
        let is_new = |it: &PlacedRank| before(it).is_none_or(|since| *since < found.since);
        if !found.who.iter().any(is_new) {
            return None;
        }
        for it in &found.who {
            self.told.insert((it.rank, fault), found.since);
        }
        Some(Rung {
            action: Action::Tell,
            evicted: vec![],
            innocent: vec![],
            why: match forbidden {
                None => format!("{}: {}; nothing is done", named(&found.who), found.cause),
                Some(forbidden) => format!(
                    "{}: {}; nothing is done: {forbidden}",
                    named(&found.who),
                    found.cause
                ),
            },
        })
    }

    /// Nodes of the finding on which its rank was made again as often as it may be.
    fn again(&self, found: &RankFinding) -> Vec<String> {
        let tries = |place: &PlacedRank| {
            let there = self.restarts.iter().filter(|it| it.who.contains(place));
            there.count()
        };
        let stays =
            |node: &String| self.policy.trusted.contains(node) || self.needed.contains(node);
        let worn = found
            .who
            .iter()
            .filter(|it| tries(it) >= self.policy.in_place as usize)
            .filter(|it| !stays(&it.node));
        let nodes: BTreeSet<String> = worn.map(|it| it.node.clone()).collect();
        nodes.into_iter().collect()
    }

    /// Nodes that were avoided for the same fault of the same rank, which has come again elsewhere. Each counts once.
    fn innocent(&mut self, found: &RankFinding) -> Vec<String> {
        let mut innocent = vec![];
        for before in &mut self.restarts {
            let same = |it: &PlacedRank| found.who.iter().any(|now| now.rank == it.rank);
            if before.fault != found.cause.fault || !before.who.iter().any(same) {
                continue;
            }
            let is_elsewhere = |node: &String| found.who.iter().all(|it| it.node != *node);
            innocent.extend(before.evicted.extract_if(.., |node| is_elsewhere(node)));
        }
        innocent
    }
}

/// Ranks for people.
fn named(who: &[PlacedRank]) -> String {
    if who.is_empty() {
        return "no rank is to blame".to_owned();
    }
    let names = who
        .iter()
        .map(|it| format!("rank {} on node {}", it.rank, it.node));
    names.collect::<Vec<_>>().join(" and ")
}

/// A window for people.
fn in_words(time: Duration) -> String {
    match time.as_secs() {
        s if s < 120 || !s.is_multiple_of(60) => format!("{s} s"),
        s => format!("{} min", s / 60),
    }
}

#[cfg(test)]
mod tests;

//! Recovery of ranks from faults: looks at how far their collectives get, and what is done about the one that holds up
//! the others.
//!
//! Whoever supervises the ranks of a model has one [`Recovery`] for as long as it does. It judges looks by the same
//! detector as observers do ([`FlowWatch`]), asks the [`Ladder`] what to do, and does it. The ranks begin again as after
//! any crash, since the end of a process is one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use odeon::telemetry::{self, Gauge};
use odeon::{Actor, ActorId, Admin, Clock, Failure, Group, ProcessId, RankWatch, Ref};
use odeon_diagnosis::flows::{
    FlowCause, FlowFault, FlowMember, FlowRanks, FlowWatch, RankLook, TriggerKind,
};
use odeon_diagnosis::ladder::{
    Forbidden, OrderedAction, PlacedRank, RankCause, RankFault, RankFinding, Rung, Surroundings,
    TestedNodes,
};
use odeon_diagnosis::run::RunEvent;
use odeon_diagnosis::{Action, Detector, Finding};

use super::board::{Acted, AvoidedFor, BoardState, Forced, RecoveryBoard, now};

/// A fault that ranks show in their work, as whoever asks them hears it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FaultAtWork {
    /// Those who are to blame.
    pub(crate) ranks: Vec<u32>,
    /// The fault.
    pub(crate) cause: RankCause,
}

impl FaultAtWork {
    /// The loss of these ranks; of none where others have failed.
    pub(crate) fn of_lost(ranks: impl Iterator<Item = usize>, why: &Failure) -> Self {
        Self {
            ranks: ranks.map(|rank| rank as u32).collect(),
            cause: RankCause {
                fault: RankFault::Crashed,
                what: why.message.clone(),
            },
        }
    }

    /// Of losses that are no numbers.
    pub(crate) fn of_losses(found: &Finding<RunEvent>) -> Self {
        Self {
            ranks: found.who.clone(),
            cause: RankCause {
                fault: RankFault::NotFinite,
                what: found.cause.to_string(),
            },
        }
    }
}

/// Looks at the ranks of one life, and what they come to.
struct Looks {
    watch: RankWatch,
    flows: FlowRanks<ProcessId>,
    detector: FlowWatch,
    ranks: BTreeMap<FlowMember, u32>,
    patience: Duration,
}

impl Looks {
    fn new<A>(admin: &Admin, group: &Group<A>, patience: Duration) -> Self {
        let ranks = (0..).zip(group.members());
        Self {
            watch: admin.watch_ranks(),
            flows: FlowRanks::default(),
            detector: FlowWatch::still_first(patience),
            ranks: ranks.map(|(rank, it)| (member(it.id()), rank)).collect(),
            patience,
        }
    }

    /// Takes in what a process shows. Of one that others work in, too, these ranks alone.
    fn note(&mut self, process: ProcessId, ranks: Vec<RankLook>) {
        let own = ranks
            .into_iter()
            .filter(|it| self.ranks.contains_key(&it.member));
        self.flows.note(process, own.collect(), now());
    }

    /// The ranks that others wait for, with the fault and since when.
    fn judge(&mut self) -> Vec<(Vec<u32>, RankCause, Duration)> {
        let found = self.detector.observe(&self.flows.job(), now()).into_iter();
        let found = found.filter_map(|found| {
            let lasts = now().saturating_sub(found.since);
            let cause = fault_of(&found.cause, lasts, self.patience)?;
            let who = found
                .who
                .iter()
                .filter_map(|it| self.ranks.get(it).copied());
            Some((who.collect(), cause, found.since))
        });
        found.collect()
    }
}

/// What was done about the ranks of a model, over all of their lives.
#[derive(Debug)]
pub(crate) struct Recovery {
    board: RecoveryBoard,
    patience: Duration,
    /// Set where a process was ended here, so that the loss that follows is no crash.
    ended_here: bool,
    /// Set where it was told that ranks wait for room since a person wants it so.
    told_waiting: bool,
}

/// The longest pause between two looks, and from one judgement to the next in looks.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const LOOKS: u32 = 2;
/// Time that a node may take to show its ranks.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

impl Recovery {
    /// One that has done nothing. `patience` is the policy's of the board.
    pub(crate) const fn new(board: RecoveryBoard, patience: Duration) -> Self {
        Self {
            board,
            patience,
            ended_here: false,
            told_waiting: false,
        }
    }

    /// Has nodes avoided that were avoided before, but for those that are trusted, and actions forbidden that were.
    pub(crate) fn go_on_after(&mut self, nodes: &BTreeSet<String>, forbidden: &[Forbidden]) {
        self.board.with(|state| {
            state.ladder.avoid(nodes);
            for order in forbidden {
                state.ladder.forbid(order.clone());
            }
        });
        let avoided = self.avoided();
        for node in nodes {
            match avoided.contains(node) {
                true => {
                    let earlier = (AvoidedFor::Earlier, "since an earlier try");
                    record_avoided(&self.board, node, Some(earlier), "");
                }
                false => record_avoided(&self.board, node, None, "the recipe trusts it"),
            }
        }
        for order in forbidden {
            record_forbidden(&self.board, order.action, true, &order.to_string());
        }
    }

    /// There is no room for ranks on other nodes than those that are avoided, for this reason: some of these are used
    /// again. Answers nothing where none is avoided, and where a person forbids it and that was told.
    pub(crate) fn let_back(&mut self, why: &str) -> Option<Acted> {
        if let Some(forbidden) = self.board.forbids(OrderedAction::ReturnNode) {
            let is_new = !std::mem::replace(&mut self.told_waiting, true);
            let why = format!(
                "no node that is avoided is used again: {forbidden}; ranks wait for room: {why}"
            );
            return is_new.then(|| self.noted(Acted::told(vec![], why)));
        }
        let returned = self.board.with(|state| state.ladder.let_back());
        let nodes = match returned.as_slice() {
            [] => return None,
            [node] => format!("node {node} is"),
            several => format!("nodes {} are", several.join(" and ")),
        };
        let why = format!("{nodes} used again, since there is no room elsewhere: {why}");
        for node in &returned {
            record_avoided(&self.board, node, None, &why);
        }
        Some(self.noted(Acted {
            action: Action::ReturnNode.word(),
            returned,
            why,
            ..Acted::default()
        }))
    }

    /// Has something noted that is told.
    fn noted(&self, acted: Acted) -> Acted {
        tracing::warn!("{}", acted.why);
        self.board.note(&acted);
        acted
    }

    /// No rank begins again: nothing is under way, and no node is avoided any more.
    pub(crate) fn over(&mut self) {
        self.record_end("");
        for node in self.avoided() {
            record_avoided(&self.board, &node, None, "the run is over");
        }
        for order in self.board.with(|state| state.ladder.forbidden().to_vec()) {
            record_forbidden(&self.board, order.action, false, "the run is over");
        }
    }

    /// Nodes that ranks are not to be placed on.
    pub(crate) fn avoided(&self) -> BTreeSet<String> {
        self.board.avoided()
    }

    /// Ranks have their places, where they are to begin.
    pub(crate) async fn seated<A>(&mut self, group: &Group<A>) {
        let ranks = group.members().len() as u32;
        self.board.with(|state| {
            state.nodes.clear();
            state.ranks = ranks;
        });
        let mut looks = Looks::new(self.board.admin(), group, self.patience);
        self.look(&mut looks, group).await;
    }

    /// Looks at ranks that have begun while something goes on with them, and answers how that ends. `excused` says of a
    /// rank that it waits for something that is no rank's, for which it is not to blame.
    ///
    /// # Errors
    /// Those of what goes on, and that a person has to look at a rank.
    pub(crate) async fn beside<A, T>(
        &mut self,
        group: &Group<A>,
        excused: impl Fn(u32) -> BoxFuture<'static, bool> + Sync,
        mut tell: impl FnMut(Acted),
        going: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.began(&mut tell);
        let mut looks = Looks::new(self.board.admin(), group, self.patience);
        // Before anything else: each process is asked for the name of its log while it surely answers.
        self.look(&mut looks, group).await;
        let _at_work = AtWork::begin(&self.board, group.members().len() as u32);
        let mut going = std::pin::pin!(going);
        tokio::select! {
            biased;
            ended = &mut going => ended,
            stopped = self.look_on(looks, group, &excused, &mut tell) => Err(stopped),
        }
    }

    /// Has it noted that a standby has taken the number of a rank, with the node that this is on since.
    pub(crate) fn taken(&self, it: &PlacedRank, standby: u32) -> Acted {
        let PlacedRank { rank, node } = it;
        let why = format!("rank {rank} is taken by standby {standby} on node {node}");
        // It is done when it is told.
        for lasts in [LEAST, Duration::ZERO] {
            let taken = rank_gauge(self.board.role(), it, lasts, &why);
            taken.with("standby", u64::from(standby)).record();
        }
        self.noted(Acted {
            action: "take_standby",
            ranks: vec![*rank],
            why,
            ..Acted::default()
        })
    }

    /// Has it noted that nothing is under way any more, for this reason.
    fn record_end(&self, with: &str) {
        let (ranks, lost, done) = self.board.with(|state| state.end(with));
        for it in ranks {
            record(&self.board, &it, Duration::ZERO, &done);
        }
        if lost {
            record_lost(&self.board, Duration::ZERO, &done);
        }
    }

    /// All ranks are there again. An order that nobody has carried out meanwhile was for a life that is over.
    fn began(&mut self, tell: &mut impl FnMut(Acted)) {
        self.record_end("; all ranks go on");
        self.ended_here = false;
        self.told_waiting = false;
        self.board.with(|state| state.ladder.went_on());
        for Forced { rank, rung, .. } in self.board.take_forced() {
            let why = format!(
                "{}; but the ranks have begun again meanwhile, so nothing is done",
                rung.why
            );
            let ranks = rank.into_iter().map(|it| it.rank).collect();
            tell(self.noted(Acted::told(ranks, why)));
        }
    }

    /// Looks at ranks until a person has to.
    async fn look_on<A>(
        &mut self,
        mut looks: Looks,
        group: &Group<A>,
        excused: &(impl Fn(u32) -> BoxFuture<'static, bool> + Sync),
        tell: &mut impl FnMut(Acted),
    ) -> Failure {
        let pause = PAUSE_MAX.min(self.patience / 8);
        let mut told = now();
        loop {
            if now() >= told + TELL_EVERY {
                told = now();
                record_standing(&self.board);
            }
            for _ in 0..LOOKS {
                let forced = Clock::timeout(pause, self.board.forced()).await.is_some();
                for it in self.board.take_forced() {
                    if let Some(stopped) = self.carry_out(it, group, tell).await {
                        return stopped;
                    }
                }
                if !forced {
                    self.look(&mut looks, group).await;
                }
            }
            for (ranks, cause, since) in looks.judge() {
                let mut who = vec![];
                for it in ranks.into_iter().filter_map(|rank| self.placed(rank)) {
                    if !excused(it.rank).await {
                        who.push(it);
                    }
                }
                if who.is_empty() {
                    continue;
                }
                let found = RankFinding { who, cause, since };
                if let Some(stopped) = self.act(&found, group, tell).await {
                    return stopped;
                }
            }
        }
    }

    /// Looks at all ranks once.
    async fn look<A>(&mut self, looks: &mut Looks, group: &Group<A>) {
        let processes = self.processes(group);
        let wanted = processes.keys().copied().collect();
        for seen in looks.watch.look(&wanted, LOOK_PATIENCE).await {
            for (process, ranks) in seen.ranks {
                if let Some(rank) = processes.get(&process) {
                    let node = seen.node.clone();
                    self.board.with(|state| state.nodes.insert(*rank, node));
                }
                looks.note(process, ranks);
            }
        }
    }

    /// The processes of ranks.
    fn processes<A>(&self, group: &Group<A>) -> BTreeMap<ProcessId, u32> {
        let members = (0..).zip(group.members());
        let known =
            members.filter_map(|(rank, it)| Some((self.board.admin().process_of(*it)?, rank)));
        known.collect()
    }

    fn placed(&self, rank: u32) -> Option<PlacedRank> {
        let node = self.board.with(|state| state.nodes.get(&rank).cloned())?;
        Some(PlacedRank { rank, node })
    }

    /// Does what the ladder says about a finding. Answers why all is to stop, where it is.
    async fn act<A>(
        &mut self,
        found: &RankFinding,
        group: &Group<A>,
        tell: &mut impl FnMut(Acted),
    ) -> Option<Failure> {
        let rung = self.climb(found, tell).await?;
        if rung.action == Action::Tell {
            return None;
        }
        // Also where all stop for a person: one that is stopped could not be asked to end.
        self.end(&self.leaving(&found.who, &rung), group, &rung.why, tell);
        is_last(&rung).then(|| Failure::error(rung.why).fatal())
    }

    /// Those of a rung, with all ranks on the nodes that are avoided from now on.
    fn leaving(&self, who: &[PlacedRank], rung: &Rung) -> Vec<PlacedRank> {
        let there = rung.evicted.iter().flat_map(|node| self.on_node(node));
        let all: BTreeSet<PlacedRank> = who.iter().cloned().chain(there).collect();
        all.into_iter().collect()
    }

    fn on_node(&self, node: &str) -> Vec<PlacedRank> {
        let all = self.board.with(|state| state.nodes.clone());
        let there = all.into_iter().filter(|(_, it)| it == node);
        there
            .map(|(rank, node)| PlacedRank { rank, node })
            .collect()
    }

    /// Has the nodes of all ranks tested. Answers also where those could be that are to leave: the ranks on the node that is
    /// to blame, or these.
    async fn test(&self, who: &[PlacedRank]) -> (TestedNodes, Surroundings) {
        let test = self.board.test_nodes().await;
        let leaving = match &test.culprit {
            Some(node) => self.on_node(node),
            None => who.to_vec(),
        };
        let around = self.board.around(&leaving).await;
        (test, around)
    }

    /// Ends the processes of ranks. Where none can be ended the action is over, which is told, and false is answered.
    fn end<A>(
        &mut self,
        who: &[PlacedRank],
        group: &Group<A>,
        why: &str,
        tell: &mut impl FnMut(Acted),
    ) -> bool {
        let admin = self.board.admin();
        let members = who
            .iter()
            .filter_map(|it| group.members().get(it.rank as usize));
        let ended = members.map(|it| admin.end_process_of(it.id(), why));
        if ended.fold(false, |any, ended| any | ended) {
            self.ended_here = true;
            return true;
        }
        let why = format!("{why}; but it is in no process that can be ended, so nothing is done");
        self.record_end("; but no process could be ended");
        self.board.with(|state| state.ladder.went_on());
        let ranks = who.iter().map(|it| it.rank).collect();
        tell(self.noted(Acted::told(ranks, why)));
        false
    }

    /// Does what a person has ordered. Answers why all is to stop, where it is.
    async fn carry_out<A>(
        &mut self,
        forced: Forced,
        group: &Group<A>,
        tell: &mut impl FnMut(Acted),
    ) -> Option<Failure> {
        let (who, rung) = self.forced(forced, tell).await;
        if is_last(&rung) {
            return Some(Failure::error(rung.why).fatal());
        }
        if rung.action != Action::Tell {
            // Before: whoever counts losses may see the end at once.
            self.board.with(|state| state.ended_for_person = true);
            if !self.end(&self.leaving(&who, &rung), group, &rung.why, tell) {
                self.board.with(|state| state.ended_for_person = false);
            }
        }
        None
    }

    /// Begins what a person has ordered, once a group test is made where it is one. Answers whom it is about.
    async fn forced(
        &mut self,
        forced: Forced,
        tell: &mut impl FnMut(Acted),
    ) -> (Vec<PlacedRank>, Rung) {
        let Forced { rank, rung, by } = forced;
        let who: Vec<PlacedRank> = rank.into_iter().collect();
        self.begin(&rung, &who, Some(by.name.clone()), LEAST, tell);
        if rung.action != Action::GroupTest {
            return (who, rung);
        }
        let (test, around) = self.test(&who).await;
        let tested = |state: &mut BoardState| state.ladder.tested_by_order(&by, &test, around);
        let rung = self.board.with(tested);
        if rung.action == Action::Tell {
            // Nothing of it goes on.
            self.record_end(&format!("; {}", rung.why));
            tell(self.noted(Acted::told(vec![], rung.why.clone())));
        } else {
            self.begin(&rung, &who, Some(by.name), LEAST, tell);
        }
        (who, rung)
    }

    /// Asks the ladder, and has it told what that says. A group test is made before this answers.
    async fn climb(&mut self, found: &RankFinding, tell: &mut impl FnMut(Acted)) -> Option<Rung> {
        let around = self.board.around(&found.who).await;
        let climb = |state: &mut BoardState| state.ladder.climb(found, around, now());
        let mut rung = self.board.with(climb)?;
        let lasts = now().saturating_sub(found.since).max(LEAST);
        if rung.action == Action::GroupTest {
            self.begin(&rung, &found.who, None, lasts, tell);
            let (test, around) = self.test(&found.who).await;
            let tested = |state: &mut BoardState| state.ladder.tested(found, &test, around, now());
            rung = self.board.with(tested);
        }
        if rung.action != Action::Tell {
            self.begin(&rung, &found.who, None, lasts, tell);
        } else if found.cause.fault != RankFault::NotFinite {
            // Of losses people hear in any case.
            let ranks = found.who.iter().map(|it| it.rank).collect();
            tell(self.noted(Acted::told(ranks, rung.why.clone())));
        }
        Some(rung)
    }

    /// Has it noted and told that an action begins.
    fn begin(
        &mut self,
        rung: &Rung,
        who: &[PlacedRank],
        by: Option<String>,
        lasts: Duration,
        tell: &mut impl FnMut(Acted),
    ) {
        for it in who {
            record(&self.board, it, lasts, &rung.why);
        }
        if who.is_empty() {
            record_lost(&self.board, lasts, &rung.why);
        }
        self.board.with(|state| state.begin(who, &rung.why));
        // One that a person has had used again since it was ordered is not left any more.
        let avoided = self.avoided();
        let evicted = rung.evicted.iter().filter(|it| avoided.contains(*it));
        let evicted: Vec<String> = evicted.cloned().collect();
        let kind = match by {
            Some(_) => AvoidedFor::Person,
            None => AvoidedFor::Fault,
        };
        for node in &evicted {
            record_avoided(&self.board, node, Some((kind, &rung.why)), "");
        }
        record_over_evictions(&self.board);
        tell(self.noted(Acted {
            action: rung.action.word(),
            ranks: who.iter().map(|it| it.rank).collect(),
            avoided: evicted,
            by,
            why: rung.why.clone(),
            ..Acted::default()
        }));
    }

    /// A life of ranks is over, and these are left; it ended since some have shown a fault, or since others were lost, also
    /// before all had begun. Those that are to blame go, and so do all on nodes that are avoided.
    ///
    /// # Errors
    /// A person has to look at it.
    pub(crate) async fn leave<A: Actor>(
        &mut self,
        left: &mut BTreeMap<usize, Ref<A>>,
        fault: FaultAtWork,
        mut tell: impl FnMut(Acted),
    ) -> Result<(), Failure> {
        // What a person has ordered at the last moment happens now: all begin again.
        for it in self.board.take_forced() {
            let (_, rung) = self.forced(it, &mut tell).await;
            if is_last(&rung) {
                stop_all(left.values()).await;
                return Err(Failure::error(rung.why).fatal());
            }
        }
        // What was ended here is no crash.
        if !std::mem::take(&mut self.ended_here) {
            // What was under way has ended in this loss.
            self.board.with(|state| state.ladder.went_on());
            let there = self.board.admin().nodes().await;
            let is_there = |it: &PlacedRank| there.iter().any(|view| view.node.name == it.node);
            let who = fault.ranks.iter().filter_map(|rank| self.placed(*rank));
            let found = RankFinding {
                // With a node that is gone its ranks are lost for no fault of theirs.
                who: who.filter(is_there).collect(),
                cause: fault.cause,
                since: now(),
            };
            let rung = self.climb(&found, &mut tell).await;
            if let Some(rung) = rung
                && is_last(&rung)
            {
                stop_all(left.values()).await;
                return Err(Failure::error(rung.why).fatal());
            }
        }
        let avoided = self.avoided();
        let leaves = |rank: &usize| {
            let place = self.placed(*rank as u32);
            place.is_some_and(|it| {
                self.board.with(|state| state.is_under_way(&it)) || avoided.contains(&it.node)
            })
        };
        let leaving = left.extract_if(.., |rank, _| leaves(rank));
        let leaving: Vec<_> = leaving.map(|(_, member)| member).collect();
        stop_all(leaving.iter()).await;
        Ok(())
    }
}

/// Returns true for a rung behind which no rank begins again.
fn is_last(rung: &Rung) -> bool {
    matches!(rung.action, Action::RollBack | Action::StopForPerson)
}

async fn stop_all<'a, A: Actor>(ranks: impl Iterator<Item = &'a Ref<A>>) {
    for ended in join_all(ranks.map(Ref::stop)).await {
        if let Err(error) = ended {
            tracing::debug!(%error, "a rank was gone already");
        }
    }
}

/// Numbers of observers are of more than nothing while something goes on.
const LEAST: Duration = Duration::from_millis(1);

/// Ranks are at work, and what a person forces is done, as long as this is there.
struct AtWork(RecoveryBoard);

impl AtWork {
    fn begin(board: &RecoveryBoard, ranks: u32) -> Self {
        board.with(|state| (state.at_work, state.ranks) = (true, ranks));
        Self(board.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.with(|state| state.at_work = false);
    }
}

/// Has it noted for how long a rank of a role has been faulty about which something is done; zero when all go on.
pub(crate) fn record_rank(role: &str, it: &PlacedRank, lasts: Duration, what: &str) {
    rank_gauge(role, it, lasts, what).record();
}

fn rank_gauge(role: &str, it: &PlacedRank, lasts: Duration, what: &str) -> Gauge {
    let number = telemetry::gauge("recovery.rank_s", lasts.as_secs_f64());
    of_role(number, role)
        .with("rank", u64::from(it.rank))
        .with("node", it.node.clone())
        .with("what", what.to_owned())
}

/// Has it noted how many standbys could not be begun, and why; none when all are there.
pub(crate) fn record_missing(count: u32, what: &str) {
    telemetry::gauge("recovery.standbys_missing", f64::from(count))
        .with("what", what.to_owned())
        .record();
}

fn record(board: &RecoveryBoard, it: &PlacedRank, lasts: Duration, what: &str) {
    record_rank(board.role(), it, lasts, what);
}

/// The same of ranks that begin again for which none is to blame.
fn record_lost(board: &RecoveryBoard, lasts: Duration, what: &str) {
    let number = telemetry::gauge("recovery.rank_s", lasts.as_secs_f64());
    of_role(number, board.role())
        .with("what", what.to_owned())
        .record();
}

/// Names the role whose ranks a number is of, where a run has several.
fn of_role(number: Gauge, role: &str) -> Gauge {
    match role {
        "" => number,
        role => number.with("role", role.to_owned()),
    }
}

/// Has it noted that ranks are not placed on a node, for which reason, or may be again, since `what`.
fn record_avoided(
    board: &RecoveryBoard,
    node: &str,
    avoided: Option<(AvoidedFor, &str)>,
    what: &str,
) {
    let (value, what) = match avoided {
        Some((kind, why)) => (f64::from(kind as u8), why),
        None => (0.0, what),
    };
    board.with(|state| match avoided {
        Some((kind, why)) => {
            let reason = (kind, why.to_owned());
            drop(state.avoided_for.insert(node.to_owned(), reason));
        }
        None => drop(state.avoided_for.remove(node)),
    });
    of_role(
        telemetry::gauge("recovery.node_avoided", value),
        board.role(),
    )
    .with("node", node.to_owned())
    .with("what", what.to_owned())
    .record();
}

/// Has it noted that an action is not taken by itself, or may be again.
fn record_forbidden(board: &RecoveryBoard, action: OrderedAction, forbidden: bool, what: &str) {
    let number = telemetry::gauge("recovery.forbidden", f64::from(u8::from(forbidden)));
    of_role(number, board.role())
        .with("action", action.to_string())
        .with("what", what.to_owned())
        .record();
}

/// What stays is told again after so long, to those who have begun to look since.
const TELL_EVERY: Duration = Duration::from_secs(20);

/// Has it noted again what is avoided and forbidden.
fn record_standing(board: &RecoveryBoard) {
    let (avoided, forbidden) = board.with(|state| {
        let forbidden = state.ladder.forbidden().to_vec();
        (state.avoided_for.clone(), forbidden)
    });
    for (node, (kind, why)) in &avoided {
        record_avoided(board, node, Some((*kind, why)), "");
    }
    for order in forbidden {
        record_forbidden(board, order.action, true, &order.to_string());
    }
}

/// Has it noted how many nodes were left for nothing.
fn record_over_evictions(board: &RecoveryBoard) {
    let (_, innocent) = board.with(|state| state.ladder.evictions());
    telemetry::gauge("recovery.over_evictions", f64::from(innocent)).record();
}

/// Has it noted what a person has ordered, where that changes what is done.
pub(crate) fn record_order(board: &RecoveryBoard, acted: &Acted) {
    if let Some(order) = &acted.forbids {
        record_forbidden(board, order.action, true, &order.to_string());
    }
    if let Some(action) = acted.allows {
        record_forbidden(board, action, false, &acted.why);
    }
    for node in &acted.returned {
        record_avoided(board, node, None, &acted.why);
    }
    if !acted.returned.is_empty() {
        record_over_evictions(board);
    }
}

/// The fault of a rank that others wait for, where there is anything to do about it. A rank that computes for long, or
/// sends much, looks like one that hangs: it counts as one after many times the patience. Calls that differ fail by
/// themselves.
fn fault_of(cause: &FlowCause, lasts: Duration, patience: Duration) -> Option<RankCause> {
    let fault = match (cause.effect, cause.fault) {
        (_, FlowFault::Mismatch | FlowFault::Absent) => return None,
        (TriggerKind::Slow, _) => RankFault::Slow,
        (_, FlowFault::Stopped | FlowFault::Skipped | FlowFault::Order) => RankFault::Still,
        _ if lasts >= patience * AT_WORK => RankFault::Still,
        _ => return None,
    };
    Some(RankCause {
        fault,
        what: cause.to_string(),
    })
}

/// Times the patience after which a rank that may be at work counts as one that stands still: ten minutes, as others wait
/// for collectives, where a minute is the patience.
const AT_WORK: u32 = 10;

const fn member(id: ActorId) -> FlowMember {
    FlowMember {
        home: id.home.0,
        serial: id.serial,
    }
}

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
    Ladder, LadderPolicy, PlacedRank, RankCause, RankFault, RankFinding, Rung,
};
use odeon_diagnosis::run::RunEvent;
use odeon_diagnosis::{Action, Detector, Finding};

/// Something that was done about ranks, or told of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Acted {
    /// The rung that was taken.
    pub(crate) action: Action,
    /// The ranks that are to blame.
    pub(crate) ranks: Vec<u32>,
    /// Their nodes, where these are avoided from now on.
    pub(crate) avoided: Vec<String>,
    /// Nodes that were avoided and are used again.
    pub(crate) returned: Vec<String>,
    /// The finding, the action and the reason, in words.
    pub(crate) why: String,
}

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
    admin: Admin,
    ladder: Ladder,
    patience: Duration,
    /// Set where ranks reserve something, and so may be on other nodes.
    moves: bool,
    /// The node of each rank of the present life, as far as it was seen.
    nodes: BTreeMap<u32, String>,
    /// The nodes that there are, and when they were asked for: a rank is slow for hours.
    all_nodes: Option<(Duration, Vec<String>)>,
    /// The faulty ranks of the actions under way.
    under_way: BTreeSet<PlacedRank>,
    /// Set where ranks begin again for which none is to blame.
    lost: bool,
    /// Set where a process was ended here, so that the loss that follows is no crash.
    ended_here: bool,
    /// The last action with its reason, in words.
    done: String,
}

/// The longest pause between two looks, and from one judgement to the next in looks.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const LOOKS: u32 = 2;
/// Time for which the nodes that there are count as known.
const NODES_FOR: Duration = Duration::from_secs(10);
/// Time that a node may take to show its ranks.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

impl Recovery {
    /// One that has done nothing. Ranks that reserve something move to other nodes where there is a reason.
    pub(crate) const fn new(admin: Admin, policy: LadderPolicy, moves: bool) -> Self {
        Self {
            admin,
            patience: policy.patience,
            ladder: Ladder::new(policy),
            moves,
            nodes: BTreeMap::new(),
            all_nodes: None,
            under_way: BTreeSet::new(),
            lost: false,
            ended_here: false,
            done: String::new(),
        }
    }

    /// Has nodes avoided that were avoided before, but for those that are trusted.
    pub(crate) fn avoid(&mut self, nodes: &BTreeSet<String>) {
        self.ladder.avoid(nodes);
        for node in nodes {
            match self.avoided().contains(node) {
                true => avoided_gauge(node, true, "since an earlier try")
                    .with("earlier", 1)
                    .record(),
                false => record_avoided(node, false, "the recipe trusts it"),
            }
        }
    }

    /// There is no room for ranks on other nodes than those that are avoided, for this reason: some of these are used
    /// again. Answers nothing where none is avoided.
    pub(crate) fn let_back(&mut self, why: &str) -> Option<Acted> {
        let returned = self.ladder.let_back();
        let nodes = match returned.as_slice() {
            [] => return None,
            [node] => format!("node {node} is"),
            several => format!("nodes {} are", several.join(" and ")),
        };
        let why = format!("{nodes} used again, since there is no room elsewhere: {why}");
        tracing::warn!("{why}");
        for node in &returned {
            record_avoided(node, false, &why);
        }
        Some(Acted {
            action: Action::ReturnNode,
            ranks: vec![],
            avoided: vec![],
            returned,
            why,
        })
    }

    /// No rank begins again: nothing is under way, and no node is avoided any more.
    pub(crate) fn over(&mut self) {
        self.record_end();
        for node in self.avoided() {
            record_avoided(node, false, "the run is over");
        }
    }

    /// Nodes that ranks are not to be placed on.
    pub(crate) const fn avoided(&self) -> &BTreeSet<String> {
        self.ladder.avoided()
    }

    /// Ranks have their places, where they are to begin.
    pub(crate) async fn seated<A>(&mut self, group: &Group<A>) {
        self.nodes.clear();
        let mut looks = Looks::new(&self.admin, group, self.patience);
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
        self.began();
        let mut looks = Looks::new(&self.admin, group, self.patience);
        // Before anything else: each process is asked for the name of its log while it surely answers.
        self.look(&mut looks, group).await;
        let mut going = std::pin::pin!(going);
        tokio::select! {
            biased;
            ended = &mut going => ended,
            stopped = self.look_on(looks, group, &excused, &mut tell) => Err(stopped),
        }
    }

    /// Has it noted that nothing is under way any more.
    fn record_end(&mut self) {
        for it in std::mem::take(&mut self.under_way) {
            record(&it, Duration::ZERO, &self.done);
        }
        if std::mem::take(&mut self.lost) {
            record_lost(Duration::ZERO, &self.done);
        }
    }

    /// All ranks are there again.
    fn began(&mut self) {
        if self.lost || !self.under_way.is_empty() {
            self.done += "; all ranks go on";
            self.record_end();
        }
        self.ended_here = false;
        self.ladder.went_on();
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
        loop {
            for _ in 0..LOOKS {
                Clock::sleep(pause).await;
                self.look(&mut looks, group).await;
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
                    self.nodes.insert(*rank, seen.node.clone());
                }
                looks.note(process, ranks);
            }
        }
    }

    /// The processes of ranks.
    fn processes<A>(&self, group: &Group<A>) -> BTreeMap<ProcessId, u32> {
        let members = (0..).zip(group.members());
        let known = members.filter_map(|(rank, it)| Some((self.admin.process_of(*it)?, rank)));
        known.collect()
    }

    fn placed(&self, rank: u32) -> Option<PlacedRank> {
        let node = self.nodes.get(&rank)?.clone();
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
        self.ended_here = true;
        // Also where all stop for a person: one that is stopped could not be asked to end.
        for it in &found.who {
            let member = group.members().get(it.rank as usize);
            let ended = member.is_some_and(|it| self.admin.end_process_of(it.id(), &rung.why));
            if !ended {
                tracing::warn!(rank = it.rank, "it is in no process that can be ended");
            }
        }
        let stops = rung.action == Action::StopForPerson;
        stops.then(|| Failure::error(rung.why).fatal())
    }

    /// Asks the ladder, and has it told what that says.
    async fn climb(&mut self, found: &RankFinding, tell: &mut impl FnMut(Acted)) -> Option<Rung> {
        let elsewhere = self.is_elsewhere(&found.who).await;
        let rung = self.ladder.climb(found, elsewhere, now())?;
        tracing::warn!("{}", rung.why);
        if rung.action != Action::Tell {
            let lasts = now().saturating_sub(found.since).max(LEAST);
            for it in &found.who {
                record(it, lasts, &rung.why);
            }
            if found.who.is_empty() {
                record_lost(lasts, &rung.why);
                self.lost = true;
            }
            self.under_way.extend(found.who.iter().cloned());
            self.done.clone_from(&rung.why);
        }
        let (_, innocent) = self.ladder.evictions();
        for node in &rung.evicted {
            record_avoided(node, true, &rung.why);
        }
        telemetry::gauge("recovery.over_evictions", f64::from(innocent)).record();
        // Of losses people hear in any case.
        if rung.action != Action::Tell || found.cause.fault != RankFault::NotFinite {
            tell(Acted {
                action: rung.action,
                ranks: found.who.iter().map(|it| it.rank).collect(),
                avoided: rung.evicted.clone(),
                returned: vec![],
                why: rung.why.clone(),
            });
        }
        Some(rung)
    }

    /// Returns true where there is a node for these ranks beside their own.
    async fn is_elsewhere(&mut self, who: &[PlacedRank]) -> bool {
        if !self.moves {
            return false;
        }
        if self
            .all_nodes
            .as_ref()
            .is_none_or(|(at, _)| now() >= *at + NODES_FOR)
        {
            let views = self.admin.nodes().await.into_iter();
            self.all_nodes = Some((now(), views.map(|view| view.node.name).collect()));
        }
        let all = self.all_nodes.iter().flat_map(|(_, names)| names);
        let mut others = all.filter(|name| !self.avoided().contains(*name));
        others.any(|name| who.iter().all(|it| it.node != *name))
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
        // What was ended here is no crash.
        if !std::mem::take(&mut self.ended_here) {
            // What was under way has ended in this loss.
            self.ladder.went_on();
            let there = self.admin.nodes().await;
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
                && rung.action == Action::StopForPerson
            {
                stop_all(left.values()).await;
                return Err(Failure::error(rung.why).fatal());
            }
        }
        let leaves = |rank: &usize| {
            let place = self.placed(*rank as u32);
            place
                .is_some_and(|it| self.under_way.contains(&it) || self.avoided().contains(&it.node))
        };
        let leaving = left.extract_if(.., |rank, _| leaves(rank));
        let leaving: Vec<_> = leaving.map(|(_, member)| member).collect();
        stop_all(leaving.iter()).await;
        Ok(())
    }
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

/// Has it noted for how long a rank has been faulty about which something is done; zero when all go on.
pub(crate) fn record(it: &PlacedRank, lasts: Duration, what: &str) {
    telemetry::gauge("recovery.rank_s", lasts.as_secs_f64())
        .with("rank", u64::from(it.rank))
        .with("node", it.node.clone())
        .with("what", what.to_owned())
        .record();
}

/// The same of ranks that begin again for which none is to blame.
fn record_lost(lasts: Duration, what: &str) {
    telemetry::gauge("recovery.rank_s", lasts.as_secs_f64())
        .with("what", what.to_owned())
        .record();
}

/// Has it noted that ranks are not placed on a node, or may be again.
fn record_avoided(node: &str, avoided: bool, what: &str) {
    avoided_gauge(node, avoided, what).record();
}

fn avoided_gauge(node: &str, avoided: bool, what: &str) -> Gauge {
    telemetry::gauge("recovery.node_avoided", f64::from(u8::from(avoided)))
        .with("node", node.to_owned())
        .with("what", what.to_owned())
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

/// The time since the clock began.
fn now() -> Duration {
    Duration::from_nanos(Clock::now().0)
}

//! One life of a gang: its ranks from the first to the last, and the one that failed first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use odeon::{
    ActorId, AskError, Clock, Context, Failure, FailureKind, Group, ProgramEnd, Reason, Timestamp,
};
use odeon_diagnosis::ladder::PlacedRank;
use parking_lot::Mutex;

use super::progress::{Patience, ProgressWatch};
use super::room::{self, Goal};
use super::{Gang, GangSpec, RankInTrouble};
use crate::exec::blame::{self, Fallen};
use crate::exec::rank::Rendezvous;
use crate::exec::{AwaitEnding, Ending, Exec, Halt, Launch, Place, ReservePort, Whereabouts};

/// All ranks from the moment in which they have their places.
#[derive(Debug)]
pub(super) struct Life {
    members: Group<Exec>,
    done: BTreeSet<usize>,
    /// Set when the ends of ranks are no news any more.
    over: Arc<AtomicBool>,
    /// Where each rank is, for people.
    nodes: Vec<String>,
    seen: Arc<Mutex<Seen>>,
    grace: Duration,
}

/// What is known of ranks that end.
#[derive(Debug, Default)]
struct Seen {
    endings: BTreeMap<usize, Ending>,
    downs: BTreeMap<usize, Reason>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

impl Life {
    /// Places the ranks and launches their programs. Where a node is lost meanwhile, the ranks of an
    /// elastic gang are placed again.
    pub(super) async fn begin(
        spec: &GangSpec,
        goal: Goal,
        cx: &Context<Gang>,
    ) -> Result<Self, Failure> {
        loop {
            let members = room::place(spec, goal, cx).await?;
            match Self::launch(spec, members, cx).await {
                Err(failure) if spec.is_elastic() && is_loss(&failure) => {
                    tracing::warn!(
                        "a node was lost while ranks began, so they begin again: {failure}"
                    );
                }
                begun => return begun,
            }
        }
    }

    async fn launch(
        spec: &GangSpec,
        members: Group<Exec>,
        cx: &Context<Gang>,
    ) -> Result<Self, Failure> {
        let places = places(&members).await.map_err(Failure::error)?;
        let first = members
            .member(0)
            .ok_or_else(|| Failure::error("a gang has one rank at least").fatal())?;
        let port = first.ask(ReservePort).await.map_err(Failure::error)?;
        let meeting = Rendezvous {
            run_id: spec.run_id.clone(),
            restarts: cx.incarnation().saturating_sub(1),
            restarts_max: spec.restarts_max,
            port: port.map_err(Failure::error)?,
            devices: spec.needs.demand("", "").devices.is_some(),
            places,
        };
        let nodes = meeting.places.iter().map(|place| place.node.clone());
        let mut life = Self {
            nodes: nodes.collect(),
            members,
            done: BTreeSet::new(),
            over: Arc::default(),
            seen: Arc::default(),
            grace: spec.grace,
        };
        life.watch(cx);
        let members = life.members.members().iter();
        let launches = members.zip(meeting.variables());
        let launches = launches.map(|(member, env)| member.ask(Launch { env }).into_future());
        let launched = join_all(launches).await.into_iter();
        let launched = launched.map(|launched| launched.map_err(Failure::error).flatten());
        let failed = launched
            .enumerate()
            .find_map(|(rank, launched)| Some((rank, launched.err()?)));
        life.watch_endings(cx);
        match failed {
            None => Ok(life),
            Some((rank, failure)) => {
                let failed = life.failed(Fallen {
                    rank,
                    at_us: None,
                    failure,
                });
                life.halt().await;
                Err(failed)
            }
        }
    }

    /// Number of its ranks.
    pub(super) fn ranks(&self) -> usize {
        self.members.members().len()
    }

    /// The rank that an actor is.
    pub(super) fn rank_of(&self, id: ActorId) -> Option<usize> {
        let ranks = self.members.members();
        ranks.iter().position(|member| member.id() == id)
    }

    /// A rank has ended. Returns true when it was the last.
    pub(super) fn ended(&mut self, rank: usize) -> bool {
        self.done.insert(rank);
        self.done.len() == self.ranks()
    }

    /// Returns true while no rank has ended and none is to.
    pub(super) fn is_whole(&self) -> bool {
        self.done.is_empty() && !self.over.load(Ordering::Acquire)
    }

    /// Returns true once the ends of its ranks are no news any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Has ranks told that hold up the others.
    pub(super) fn watch_progress(&self, patience: Patience, cx: &Context<Gang>) {
        let (over, me) = (self.over(), cx.me());
        let mut watch = ProgressWatch::new(self.members.clone(), self.nodes.clone(), patience);
        cx.spawn_task(async move {
            loop {
                watch.pause().await;
                if over.load(Ordering::Acquire) {
                    return;
                }
                for it in watch.look().await {
                    let told = RankInTrouble {
                        rank: it.rank as u32,
                        pid: it.pid,
                        what: it.what,
                        hangs: it.hangs,
                    };
                    // A gang that is gone needs no notice.
                    let _ = me.tell(told).await;
                }
            }
        });
    }

    /// A rank and its node.
    pub(super) fn placed(&self, rank: usize) -> PlacedRank {
        PlacedRank {
            rank: rank as u32,
            node: self.nodes[rank].clone(),
        }
    }

    /// A rank for people, as the one that something is said of.
    pub(super) fn title(&self, rank: usize, pid: u32) -> String {
        let (ranks, node) = (self.ranks(), &self.nodes[rank]);
        format!("rank {rank} of {ranks}, on node {node} (pid {pid}),")
    }

    /// The flag that is set when the ends of its ranks are no news any more.
    pub(super) fn over(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.over)
    }

    /// The nodes that were lost with ranks, by their names.
    pub(super) fn lost_nodes(&self, silent: &[usize]) -> BTreeSet<&str> {
        let seen = self.seen.lock();
        let lost = seen.downs.iter().filter_map(|(rank, reason)| match reason {
            Reason::Failed(failure) if is_loss(failure) => Some(rank),
            _ => None,
        });
        let ranks = silent.iter().chain(lost);
        ranks.map(|rank| self.nodes[*rank].as_str()).collect()
    }

    /// The failure of a rank as that of all, with what else is known of it.
    pub(super) fn failed(&self, fallen: Fallen) -> Failure {
        let before = self.left_before(&fallen);
        let Fallen { rank, failure, .. } = fallen;
        let kind = match failure.kind {
            kind @ (FailureKind::Program(_) | FailureKind::Fatal) => kind,
            _ => FailureKind::Error,
        };
        let (ranks, node) = (self.ranks(), &self.nodes[rank]);
        let before = before.map_or_else(String::new, |it| format!(", and {it}"));
        let what = format!("rank {rank} of {ranks}, on node {node}, failed first{before}");
        Failure::new(kind, what).because(failure)
    }

    /// The failure of all, where ranks are out of reach: they may have been the first.
    pub(super) fn with_silent(&self, failed: Failure, silent: &[usize]) -> Failure {
        let nodes: BTreeSet<&str> = silent.iter().map(|it| self.nodes[*it].as_str()).collect();
        if nodes.is_empty() {
            return failed;
        }
        let nodes: Vec<_> = nodes.into_iter().map(|node| format!("`{node}`")).collect();
        let ranks: Vec<_> = silent.iter().map(ToString::to_string).collect();
        let what = format!(
            "node {} does not answer any more, where rank {} ran",
            nodes.join(", "),
            ranks.join(", ")
        );
        Failure::new(failed.kind, what).because(failed)
    }

    /// The rank that failed first, of those that end at this time: this one was heard of first.
    pub(super) async fn first_fallen(&self, rank: usize, failure: Failure) -> Fallen {
        let ranks = self.ranks();
        let heard = |at_us| Fallen {
            rank,
            at_us,
            failure: failure.clone(),
        };
        if ranks == 1 {
            return heard(None);
        }
        Clock::sleep(SETTLE).await;
        let (settled, peers) = (
            Clock::now().after(SETTLE_MAX),
            Clock::now().after(PEER_PATIENCE),
        );
        let is_late = |until: Timestamp| until.left(Clock::now()).is_zero();
        loop {
            while self.seen.lock().is_unsettled() && !is_late(settled) {
                Clock::sleep(LOOK).await;
            }
            let first = self.fallen(heard(None));
            // Another rank is to blame, which takes longer to end.
            let all_are_over = self.seen.lock().downs.len() >= ranks;
            if !first.lost_its_peer() || all_are_over || is_late(peers) {
                return first;
            }
            Clock::sleep(LOOK).await;
        }
    }

    /// The rank that failed first, of those that are known to have failed and this one.
    fn fallen(&self, heard: Fallen) -> Fallen {
        let rank = heard.rank;
        let seen = self.seen.lock();
        let at_us = |rank: usize| seen.endings.get(&rank).map(|ending| ending.at_us);
        let others = seen
            .downs
            .iter()
            .filter_map(|(other, reason)| match reason {
                _ if *other == rank => None,
                Reason::Stopped => None,
                Reason::Failed(failure) => Some((*other, failure.clone())),
                reason => Some((*other, Failure::error(reason))),
            });
        let others = others.map(|(rank, failure)| Fallen {
            rank,
            at_us: at_us(rank),
            failure,
        });
        let heard = Fallen {
            at_us: at_us(rank),
            ..heard
        };
        let fallen = others.chain([heard.clone()]).collect();
        blame::first(fallen).unwrap_or(heard)
    }

    /// The ranks that had ended with success before one failed for the loss of a peer, in words; none otherwise.
    fn left_before(&self, failed: &Fallen) -> Option<String> {
        let seen = self.seen.lock();
        let at = seen.endings.get(&failed.rank)?.at_us;
        let is_before = |it: &Ending| it.end == ProgramEnd::Code(0) && it.at_us <= at;
        let left = seen.endings.iter().filter(|(_, it)| is_before(it));
        let left: Vec<_> = left.map(|(rank, _)| rank.to_string()).collect();
        let found = failed.lost_its_peer() && !left.is_empty();
        found.then(|| format!("rank {} had ended with success before", left.join(", ")))
    }

    /// The ranks that should be there and do not answer.
    pub(super) async fn silent(&self) -> Vec<usize> {
        let gone: BTreeSet<usize> = {
            let seen = self.seen.lock();
            seen.downs
                .keys()
                .chain(seen.endings.keys())
                .copied()
                .collect()
        };
        let members = self.members.members().iter().enumerate();
        let asked = members.filter(|(rank, _)| !gone.contains(rank));
        let asked = asked.map(|(rank, member)| async move {
            let answer = member.ask(Whereabouts).timeout(ANSWER_PATIENCE).await;
            answer.is_err().then_some(rank)
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Has it noted when the program of each rank ends.
    fn watch_endings(&self, cx: &Context<Gang>) {
        for (rank, member) in self.members.members().iter().enumerate() {
            let asked = member.ask(AwaitEnding).timeout(FOREVER).into_future();
            let seen = Arc::clone(&self.seen);
            cx.spawn_task(async move {
                if let Ok(Some(ending)) = asked.await {
                    seen.lock().endings.insert(rank, ending);
                }
            });
        }
    }

    /// Has the end of each rank told to this actor.
    fn watch(&self, cx: &Context<Gang>) {
        for (rank, member) in self.members.members().iter().enumerate() {
            let (down, over, me) = (member.down(), Arc::clone(&self.over), cx.me());
            let seen = Arc::clone(&self.seen);
            cx.spawn_task(async move {
                let down = down.await;
                seen.lock().downs.insert(rank, down.reason.clone());
                if !over.load(Ordering::Acquire) {
                    // A gang that is gone needs no notice.
                    let _ = me.tell(down).await;
                }
            });
        }
    }

    /// Ends all ranks that may still run, at the same time.
    pub(super) async fn halt(&mut self) {
        self.over.store(true, Ordering::Release);
        let grace = self.grace;
        let ranks = self.members.members().iter().enumerate();
        let running = ranks.filter(|(rank, _)| !self.done.contains(rank));
        let halts = running.map(|(_, member)| {
            let halt = member.ask(Halt { grace });
            halt.timeout(grace + HALT_SLACK).into_future()
        });
        // One that is out of reach is ended by its node, with its worker.
        let _ = join_all(halts).await;
    }
}

impl Seen {
    /// Returns true while a program has failed whose last words are not known yet.
    fn is_unsettled(&self) -> bool {
        let failed = self
            .endings
            .iter()
            .filter(|(_, it)| it.end != ProgramEnd::Code(0));
        failed
            .into_iter()
            .any(|(rank, _)| !self.downs.contains_key(rank))
    }
}

/// Returns true where a failure is that a node is gone.
fn is_loss(failure: &Failure) -> bool {
    failure.root_cause().kind == FailureKind::NodeLost
}

/// Where each rank is.
async fn places(members: &Group<Exec>) -> Result<Vec<Place>, AskError> {
    let asks = members.members().iter();
    let asks = asks.map(|member| member.ask(Whereabouts).into_future());
    join_all(asks).await.into_iter().collect()
}

/// Time that ranks which end after another may take to be heard of, and at most with their last words.
const SETTLE: Duration = Duration::from_millis(300);
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// Time that the rank to blame may take to be heard of, where all that were heard of have only lost a peer.
const PEER_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two looks whether they are.
const LOOK: Duration = Duration::from_millis(20);
/// Time that a rank may take to say that it is there.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// Longer than any program runs.
const FOREVER: Duration = Duration::from_secs(10 * 366 * 86_400);
/// Time beyond its grace that a rank may take to say that it has ended.
const HALT_SLACK: Duration = Duration::from_secs(5);

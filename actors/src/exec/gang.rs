//! One program on many ranks: all begin together, and none goes on without the others.
//!
//! A gang supervises nothing: when a rank fails, it ends the others and fails itself. So its own
//! supervisor begins all of it again, placed anew, as often as its budget allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use odeon::{
    AskError, Clock, Context, Down, Failure, FailureKind, Group, Needs, ProgramEnd, Reason,
    Restart, SpawnError, Timestamp, mesh,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::blame::{self, Fallen};
use super::rank::{DEFAULTS, Rendezvous};
use super::{AwaitEnding, Ending, Exec, ExecSpec, Halt, Launch, Place, ReservePort, Whereabouts};

/// Settings that a gang is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use]
pub struct GangSpec {
    program: ExecSpec,
    ranks: u32,
    needs: Needs,
    run_id: String,
    restarts_max: u32,
    grace: Duration,
}

impl GangSpec {
    /// So many ranks of a program, each in a worker process of its own.
    pub fn new(program: ExecSpec, ranks: u32) -> Self {
        Self {
            program,
            ranks,
            needs: Needs::new(),
            run_id: "odeon".to_owned(),
            restarts_max: 0,
            grace: Duration::from_secs(5),
        }
    }

    /// Sets the resources that each rank reserves on its node; none unless told otherwise, and then
    /// all ranks are on the node of the gang. Ranks know their nodes by `ODEON_NODE` and
    /// `ODEON_NODE_ADDRESS`, which daemons set; a program that links nodes of its own sets both for
    /// their workers.
    pub fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// Sets the name by which ranks know this gang.
    pub fn run_id(mut self, id: impl Into<String>) -> Self {
        self.run_id = id.into();
        self
    }

    /// Sets the number of restarts that ranks are told they may have. Who starts them again is the
    /// supervisor of the gang, with the budget that it has.
    pub const fn restarts_max(mut self, restarts: u32) -> Self {
        self.restarts_max = restarts;
        self
    }

    /// Sets the longest time that a rank may take to end after SIGTERM; five seconds, unless told
    /// otherwise.
    pub const fn stop_within(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}

/// A program on many ranks, each of which knows the others by the variables of `torchrun`. It ends
/// in order when all ranks have ended with success. When one fails, the others are ended, and it
/// fails with what happened to that rank.
#[derive(Debug)]
pub struct Gang {
    spec: GangSpec,
    members: Group<Exec>,
    done: BTreeSet<usize>,
    /// Set when the ends of ranks are no news any more.
    over: Arc<AtomicBool>,
    /// Where each rank is, for people.
    nodes: Vec<String>,
    seen: Arc<Mutex<Seen>>,
}

/// What is known of ranks that end.
#[derive(Debug, Default)]
struct Seen {
    endings: BTreeMap<usize, Ending>,
    downs: BTreeMap<usize, Reason>,
}

#[odeon::actor(name = "exec.Gang")]
impl Gang {
    async fn start(spec: GangSpec, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let restarts = cx.incarnation().saturating_sub(1);
        let ranks = spec.ranks as usize;
        let program = |rank: usize| {
            let program = DEFAULTS
                .iter()
                .fold(spec.program.clone(), |spec, (name, value)| {
                    spec.default_env(*name, *value)
                });
            match ranks {
                1 => program.held(),
                _ => program.held().prefix(format!("[rank {rank}] ")),
            }
        };
        let mut told: Option<Timestamp> = None;
        let members = loop {
            let spawned = cx
                .spawn_group::<Exec>(mesh! { rank: ranks }, |rank| program(rank.index()))
                .needs(|_| spec.needs.clone())
                .isolated()
                .restart(Restart::Temporary)
                .await;
            match spawned {
                Ok(members) => break members,
                // There was room for it before, and will be again.
                Err(error) if restarts > 0 && lacks_a_place(&error.error) => {
                    let now = Clock::now();
                    if told.is_none_or(|told| now.since(told) >= PLACE_NEWS) {
                        let why = error.error;
                        tracing::warn!("the {ranks} ranks wait for their places: {why}");
                        told = Some(now);
                    }
                    Clock::sleep(PLACE_PAUSE).await;
                }
                Err(error) => return Err(Failure::error(error)),
            }
        };
        let places = places(&members).await.map_err(Failure::error)?;
        let first = members
            .member(0)
            .ok_or_else(|| Failure::error("a gang has one rank at least").fatal())?;
        let port = first.ask(ReservePort).await.map_err(Failure::error)?;
        let meeting = Rendezvous {
            run_id: spec.run_id.clone(),
            restarts,
            restarts_max: spec.restarts_max,
            port: port.map_err(Failure::error)?,
            devices: spec.needs.demand("", "").devices.is_some(),
            places,
        };
        let nodes = meeting.places.iter().map(|place| place.node.clone());
        let mut gang = Self {
            nodes: nodes.collect(),
            members,
            done: BTreeSet::new(),
            over: Arc::default(),
            seen: Arc::default(),
            spec,
        };
        gang.watch(cx);
        let members = gang.members.members().iter();
        let launches = members.zip(meeting.variables());
        let launches = launches.map(|(member, env)| member.ask(Launch { env }).into_future());
        let launched = join_all(launches).await.into_iter();
        let launched = launched.map(|launched| launched.map_err(Failure::error).flatten());
        let failed = launched
            .enumerate()
            .find_map(|(rank, launched)| Some((rank, launched.err()?)));
        gang.watch_endings(cx);
        match failed {
            None => Ok(gang),
            Some((rank, failure)) => {
                let failed = gang.failed(rank, failure);
                gang.halt().await;
                Err(failed)
            }
        }
    }

    /// Ends all ranks at once, each in its grace, and then the gang.
    #[handler]
    pub async fn disband(&mut self, cx: &mut Context<Self>) {
        self.halt().await;
        cx.stop();
    }

    #[handler(message = Down)]
    async fn down(&mut self, down: Down, cx: &mut Context<Self>) {
        let ranks = self.members.members();
        let Some(rank) = ranks.iter().position(|member| member.id() == down.id) else {
            return;
        };
        let failure = match down.reason {
            Reason::Stopped => {
                self.done.insert(rank);
                if self.done.len() == self.members.members().len() {
                    cx.stop();
                }
                return;
            }
            Reason::Failed(failure) => failure,
            reason => Failure::error(reason),
        };
        self.done.insert(rank);
        let Fallen { rank, failure, .. } = self.first_fallen(rank, failure).await;
        let silent = self.silent().await;
        // What the others do from here on follows from this.
        let failed = self.failed(rank, failure);
        let failed = self.with_silent(failed, &silent);
        let (nth, most) = (cx.incarnation(), self.spec.restarts_max);
        if nth <= most {
            let ranks = self.members.members().len();
            tracing::warn!(
                "rank {rank} of {ranks} failed, so all begin again: restart {nth} of {most}"
            );
        }
        self.halt().await;
        cx.fail(failed);
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

impl Gang {
    /// The failure of a rank as that of all.
    fn failed(&self, rank: usize, failure: Failure) -> Failure {
        let kind = match failure.kind {
            kind @ (FailureKind::Program(_) | FailureKind::Fatal) => kind,
            _ => FailureKind::Error,
        };
        let (ranks, node) = (self.members.members().len(), &self.nodes[rank]);
        let what = format!("rank {rank} of {ranks}, on node {node}, failed first");
        Failure::new(kind, what).because(failure)
    }

    /// The failure of all, where ranks are out of reach: they may have been the first.
    fn with_silent(&self, failed: Failure, silent: &[usize]) -> Failure {
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
    async fn first_fallen(&self, rank: usize, failure: Failure) -> Fallen {
        let ranks = self.members.members().len();
        let heard = |at_us| Fallen {
            rank,
            at_us,
            failure: failure.clone(),
        };
        if ranks == 1 {
            return heard(None);
        }
        Clock::sleep(SETTLE).await;
        let patience = Clock::now().after(SETTLE_MAX);
        while self.seen.lock().is_unsettled() && !patience.left(Clock::now()).is_zero() {
            Clock::sleep(LOOK).await;
        }
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
        let fallen = others.chain([heard(at_us(rank))]).collect();
        blame::first(fallen).unwrap_or_else(|| heard(None))
    }

    /// The ranks that should be there and do not answer.
    async fn silent(&self) -> Vec<usize> {
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
    fn watch_endings(&self, cx: &Context<Self>) {
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
    fn watch(&self, cx: &Context<Self>) {
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
    async fn halt(&mut self) {
        self.over.store(true, Ordering::Release);
        let grace = self.spec.grace;
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

/// Returns true where a group may have its places a while later.
fn lacks_a_place(error: &SpawnError) -> bool {
    match error {
        SpawnError::NotPlaced(_) => true,
        SpawnError::Failed(failure) => {
            let root = failure.root_cause();
            let lost = FailureKind::ProcessLost;
            [FailureKind::NotPlaced, FailureKind::NodeLost, lost].contains(&root.kind)
        }
        _ => false,
    }
}

/// Where each rank is.
async fn places(members: &Group<Exec>) -> Result<Vec<Place>, AskError> {
    let asks = members.members().iter();
    let asks = asks.map(|member| member.ask(Whereabouts).into_future());
    join_all(asks).await.into_iter().collect()
}

/// The pause before ranks that found no place are placed again.
const PLACE_PAUSE: Duration = Duration::from_secs(1);
/// The time after which it is told again that they wait.
const PLACE_NEWS: Duration = Duration::from_secs(60);
/// Time that ranks which end after another may take to be heard of, and at most with their last words.
const SETTLE: Duration = Duration::from_millis(300);
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// The pause between two looks whether they are.
const LOOK: Duration = Duration::from_millis(20);
/// Time that a rank may take to say that it is there.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// Longer than any program runs.
const FOREVER: Duration = Duration::from_secs(10 * 366 * 86_400);
/// Time beyond its grace that a rank may take to say that it has ended.
const HALT_SLACK: Duration = Duration::from_secs(5);

//! One program on many ranks: all begin together, and none goes on without the others.
//!
//! A gang supervises nothing: when a rank fails, it ends the others and fails itself. So its own
//! supervisor begins all of it again, placed anew, as often as its budget allows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use odeon::{AskError, Context, Down, Failure, FailureKind, Group, Needs, Reason, Restart, mesh};
use serde::{Deserialize, Serialize};

use super::rank::{DEFAULTS, Rendezvous};
use super::{Exec, ExecSpec, Halt, Launch, Place, ReservePort, Whereabouts};

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
        let members = cx
            .spawn_group::<Exec>(mesh! { rank: ranks }, |rank| program(rank.index()))
            .needs(|_| spec.needs.clone())
            .isolated()
            .restart(Restart::Temporary)
            .await
            .map_err(Failure::error)?;
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
        // What the others do from here on follows from this.
        self.done.insert(rank);
        let failed = self.failed(rank, failure);
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

    /// Has the end of each rank told to this actor.
    fn watch(&self, cx: &Context<Self>) {
        for member in self.members.members() {
            let (down, over, me) = (member.down(), Arc::clone(&self.over), cx.me());
            cx.spawn_task(async move {
                let down = down.await;
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

/// Where each rank is.
async fn places(members: &Group<Exec>) -> Result<Vec<Place>, AskError> {
    let asks = members.members().iter();
    let asks = asks.map(|member| member.ask(Whereabouts).into_future());
    join_all(asks).await.into_iter().collect()
}

/// Time beyond its grace that a rank may take to say that it has ended.
const HALT_SLACK: Duration = Duration::from_secs(5);

//! The packer: has rollouts that are about to run dry hand the rest of their work to others of the
//! same weights, so that they take newer ones and begin anew. What is packed where is
//! [planned](super::repack) purely.
//!
//! A rollout that is emptied hands its work in to the sample store, with what there is of each reply,
//! and the rollout that is to take it in is woken. So at every moment the store knows whose a reply
//! is: whoever is lost on the way, the packer too, nothing of it is lost or made twice.

use std::time::Duration;

use futures::future::join_all;
use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry;
use odeon::{Clock, Context, Failure, Ref, Timestamp, actor, message};

use super::relay::{Fresh, Subscribe};
use super::relays::{Draw, Relays, Seek};
use super::repack::{
    KvTrend, Move, Phase, Plan, RepackLimits, Replica, ReplicaId, Snapshot, Trigger, can_fit, plan,
};
use super::rollout::{HandIn, Load, Look, Rollout, Wake};

/// Settings that a [`Packer`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct PackerArgs {
    /// Rollouts that are packed together.
    pub rollouts: Vec<Ref<Rollout>>,
    /// The actor that names the relay to hear of newer weights from.
    pub relays: Ref<Relays>,
    /// The most that a rollout may hold.
    pub limits: RepackLimits,
    /// Time between two looks; there is another right after each update of the weights.
    pub period: Duration,
}

/// Look whether there is something to pack. A packer tells itself.
#[message(name = "packer.Turn")]
#[derive(Debug)]
pub struct Turn;

/// Count the moves that the packer has made since it started.
#[message(reply = PackerCounts, name = "packer.Count")]
#[derive(Debug)]
pub struct CountPacked;

/// See [`CountPacked`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct PackerCounts {
    /// Rollouts that were emptied.
    pub emptied: u64,
    /// Replies that others went on with.
    pub moved: u64,
    /// Moves that did not fit any more when their turn came.
    pub left_out: u64,
}

/// The longest time that a rollout may take to answer a look. One that is in the middle of a long
/// step is looked at the next time.
const PATIENCE: Duration = Duration::from_secs(10);

/// The actor that moves replies between rollouts, so that some can take newer weights.
#[derive(Debug)]
pub struct Packer {
    args: PackerArgs,
    begun: Timestamp,
    trigger: Trigger,
    trend: KvTrend,
    counts: PackerCounts,
}

#[actor(name = "rl.Packer")]
impl Packer {
    async fn start(args: PackerArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let seek = Seek(cx.me().narrow());
        args.relays.tell(seek).await.map_err(Failure::error)?;
        cx.after(args.period, Turn);
        Ok(Self {
            begun: Clock::now(),
            trigger: Trigger::new(args.period, Duration::ZERO),
            trend: KvTrend::new(args.period / 2),
            counts: PackerCounts::default(),
            args,
        })
    }

    /// Those that are emptied now gain most.
    #[handler(message = Fresh)]
    async fn fresh(&mut self, fresh: Fresh) {
        self.trigger.updated(fresh.0.version());
        self.pack_if_due().await;
    }

    #[handler(message = Draw)]
    async fn draw(&mut self, draw: Draw, cx: &mut Context<Self>) {
        let subscribe = Subscribe(cx.me().narrow());
        if let Err(error) = draw.0.tell(subscribe).await {
            tracing::warn!(%error, "the relay is gone again; waiting to be shown one");
        }
    }

    #[handler(message = Turn)]
    async fn turn(&mut self, _turn: Turn, cx: &mut Context<Self>) {
        self.pack_if_due().await;
        let now = Clock::now().since(self.begun);
        cx.after(self.trigger.next_at().saturating_sub(now), Turn);
    }

    #[handler(message = CountPacked)]
    fn count(&mut self, _count: CountPacked) -> PackerCounts {
        self.counts
    }
}

impl Packer {
    async fn pack_if_due(&mut self) {
        let now = Clock::now().since(self.begun);
        if self.trigger.due(now).is_none() {
            return;
        }
        let Some(snapshot) = self.look(now).await else {
            return;
        };
        let planned = plan(&snapshot, &self.args.limits);
        self.make(planned, now).await;
    }

    /// Looks at the moves again, since what was planned from is some time ago, and makes those that
    /// still fit, all at the same time: no two of them touch the same source.
    async fn make(&mut self, planned: Plan, now: Duration) {
        if planned.moves.is_empty() {
            return;
        }
        let Some(snapshot) = self.look(now).await else {
            return;
        };
        let mut fitting: Vec<Move> = vec![];
        for next in planned.moves {
            match can_fit(&next, &snapshot, &fitting, &self.args.limits) {
                Ok(()) => fitting.push(next),
                Err(why) => {
                    tracing::debug!(source = next.source, %why, "not packed");
                    self.counts.left_out += 1;
                }
            }
        }
        let moves = fitting.iter().map(|it| self.hand_over(*it));
        for (made, moved) in fitting.iter().zip(join_all(moves).await) {
            if let Some(moved) = moved {
                self.trend.forget(made.source);
                self.counts.emptied += 1;
                self.counts.moved += u64::from(moved);
                telemetry::gauge("rl.repack.moved", f64::from(moved)).record();
            }
        }
    }

    /// Has a rollout hand in what it has, and another ask for it. Returns the number of replies
    /// that were handed in; `None` if that failed.
    async fn hand_over(&self, planned: Move) -> Option<u32> {
        let (source, destination) = (
            self.rollout(planned.source),
            self.rollout(planned.destination),
        );
        let hand_in = source.ask(HandIn(planned.version)).timeout(PATIENCE);
        let moved = match hand_in.await {
            Ok(Ok(moved)) => Some(moved),
            // It was handed in or was not; the store knows.
            Ok(Err(failure)) => {
                tracing::warn!(%failure, "a rollout could not hand in");
                None
            }
            Err(error) => {
                tracing::warn!(%error, "a rollout did not hand in");
                None
            }
        };
        // One that is gone asks for orders when it comes back.
        let _ = destination.tell(Wake).await;
        moved
    }

    fn rollout(&self, id: ReplicaId) -> Ref<Rollout> {
        self.args.rollouts[id as usize]
    }

    /// All rollouts at one moment; `None` never comes of rollouts that are told apart.
    async fn look(&mut self, now: Duration) -> Option<Snapshot> {
        let looks = self.args.rollouts.iter().map(async |rollout| {
            let look = rollout.ask(Look).timeout(PATIENCE);
            look.await.ok()
        });
        let loads = join_all(looks).await;
        let numbered = (0..).zip(loads);
        let replicas = numbered.filter_map(|(id, load)| self.replica(id, load?, now));
        Snapshot::new(replicas.collect()).ok()
    }

    /// A rollout as the plan sees it: one that still begins replies gains nothing from being emptied.
    fn replica(&mut self, id: ReplicaId, load: Load, now: Duration) -> Option<Replica> {
        let version = load.version?;
        let kv_before = self.trend.look(id, version, load.cache.used, now);
        // What waits for a tool has no slot, and so no keys and values: a rollout that waits with all of
        // its replies does not grow.
        let waits = load.calling > 0 && load.calling == load.running;
        let kv_before = match waits {
            true => kv_before.map(|before| before.max(load.cache.used + 1)),
            false => kv_before,
        };
        load.draining.then_some(Replica {
            id,
            version,
            kv_used: load.cache.used,
            kv_before,
            kv_capacity: load.cache.capacity,
            running: load.running,
            waiting: load.waiting,
            phase: Phase::Serving,
        })
    }
}

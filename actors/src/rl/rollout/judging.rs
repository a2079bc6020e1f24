//! Replies that have ended and are being judged, each for itself, while others are generated.
//!
//! A reply is held here until its reward is there: whoever judges may be lost and is asked again. It
//! is the rollout's to the store's mind up to then, so with a lost rollout it is made anew.

use std::collections::HashMap;
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Actor, AskError, Context, Failure, Handler, Incarnation, Message, Ref, message};

use super::Rollout;
use crate::rl::cost::{Cost, Weigh};
use crate::rl::reward::{Judge, Reward};
use crate::rl::reward_model::{Rate, RewardModel};
use crate::trajectory::{SampleId, Trajectory, Version};

/// A reply has its reward, or cannot have one. A rollout is told so by itself.
#[message(name = "rollout.Judged")]
#[derive(Debug)]
pub struct Judged {
    /// Which.
    pub id: SampleId,
    /// With reward and cost.
    pub outcome: Result<Trajectory, Failure>,
}

/// Actors that judge replies.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Judges {
    /// The actor that says how good a reply is.
    pub reward: Ref<Reward>,
    /// The actor that has learnt to say it, where that counts as well.
    pub model: Option<Ref<RewardModel>>,
    /// The actor that says what it costs, where that counts.
    pub cost: Option<Ref<Cost>>,
}

/// The version of the weights that made the last token of a reply, and the life of the trainer that
/// made those of its first.
type Weights = (Version, Incarnation);

/// Replies that are being judged, and those that have been.
#[derive(Debug)]
pub(super) struct Judging {
    judges: Judges,
    under_way: HashMap<SampleId, Weights>,
    /// Those that the store has not got yet.
    pub(super) judged: Vec<Trajectory>,
}

impl Judging {
    pub(super) fn new(judges: Judges) -> Self {
        Self {
            judges,
            under_way: HashMap::new(),
            judged: vec![],
        }
    }

    /// Replies that have no reward yet.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Replies that the store has not got, and what made them.
    pub(super) fn all(&self) -> impl Iterator<Item = (SampleId, Weights)> {
        let judged = self.judged.iter().map(|it| (it.id, weights_of(it)));
        let under_way = self.under_way.iter().map(|(id, weights)| (*id, *weights));
        under_way.chain(judged)
    }

    /// Has a reply judged; the rollout hears of it.
    pub(super) fn begin(&mut self, trajectory: Trajectory, cx: &Context<Rollout>) {
        let (id, judges, me) = (trajectory.id, self.judges, cx.me());
        self.under_way.insert(id, weights_of(&trajectory));
        cx.spawn_task(async move {
            let outcome = judges.judge(trajectory).await;
            // The replies of a rollout that is gone are made anew.
            let _ = me.tell(Judged { id, outcome }).await;
        });
    }

    /// A reward has come. One for a life before in the same process is for nobody: its replies are
    /// made anew.
    pub(super) fn end(&mut self, judged: Judged) -> Result<(), Failure> {
        if self.under_way.remove(&judged.id).is_some() {
            self.judged.push(judged.outcome?);
        }
        Ok(())
    }
}

const fn weights_of(trajectory: &Trajectory) -> Weights {
    (trajectory.version, trajectory.life)
}

impl Judges {
    async fn judge(self, trajectory: Trajectory) -> Result<Trajectory, Failure> {
        let mut judged = insist(self.reward, || Judge(trajectory.clone())).await??;
        if let Some(model) = self.model {
            judged = rated(model, judged).await?;
        }
        match self.cost {
            Some(cost) => insist(cost, || Weigh(judged.clone())).await,
            None => Ok(judged),
        }
    }
}

/// Has a reply rated, by another life where one ends before.
async fn rated(model: Ref<RewardModel>, reply: Trajectory) -> Result<Trajectory, Failure> {
    for _ in 0..=LOSSES_MAX {
        if let Some(rated) = insist(model, || Rate(reply.clone())).await?? {
            return Ok(rated);
        }
    }
    Err(Failure::error(
        "each life of the reward model ended while it rated a reply",
    ))
}

/// Asks until whoever is asked is there.
pub(super) async fn insist<A, M>(
    actor: Ref<A>,
    message: impl Fn() -> M,
) -> Result<M::Reply, Failure>
where
    A: Actor + Handler<M>,
    M: Message,
{
    let mut losses = 0;
    loop {
        match actor.ask(message()).timeout(JUDGED_WITHIN).await {
            Err(error @ (AskError::Died(_) | AskError::LinkLost { .. })) if losses < LOSSES_MAX => {
                losses += 1;
                tracing::info!(message = M::NAME, %error, "asking again");
            }
            answer => return answer.map_err(Failure::error),
        }
    }
}

/// The most replies that a rollout holds for each of its slots, those included that it works on. One
/// that waits for so many rewards begins no more.
pub(super) const HELD_PER_SLOT: usize = 4;

/// The longest time for a reward, or for the answer of a tool: programs have time limits of their
/// own and wait for each other, so that only an actor that is lost does not answer, and then asks
/// end by themselves.
const JUDGED_WITHIN: Duration = Duration::from_hours(6);

/// Lives of whoever is asked that may end over one reply, before the rollout fails.
const LOSSES_MAX: u32 = 10;

//! The reward model: says how good replies are by what it has learnt, where the task's checker is not
//! all that counts. The reward actor has judged them before, so that both are known of every reply.
//!
//! It learns when the first reply comes, since the supervised steps before belong to the policy that it
//! learns from, and keeps what it has learnt on disk: another life of it, and of the run, reads that.
//! Replies that come while others are rated are rated together next; what one earns does not depend
//! on that.

use std::path::Path;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Context, Down, Failure, Later, Recipient, Ref, actor, message};
use odeon_algorithms::objective::Blend;
use tokio::sync::oneshot;

use super::ranks::rank::ModelRank;
use super::ranks::{RankedPairs, RanksPlan};
use super::report::{Report, told};
use crate::engine::{EngineSpec, RewardEngine, RewardModelSpec, in_place};
use crate::trajectory::Trajectory;

/// Settings that a [`RewardModel`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RewardModelArgs {
    /// The engine that computes.
    pub engine: EngineSpec,
    /// The ranks that share the model, where there are several.
    pub ranks: Option<RanksPlan>,
    /// The reward that it learns, and its part.
    pub learned: LearnedReward,
    /// The actor that hears the results of the learning.
    pub reports: Recipient<Report>,
}

/// A reward that is learnt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct LearnedReward {
    /// Settings of the model: the question that it answers, and its training.
    pub model: RewardModelSpec,
    /// Its part of the reward; the rest is the checker's.
    pub blend: Blend,
}

/// Replaces `reward`, in which the checker's is, by what the reply earns; `None` where the life that was to rate it ended
/// before: its next one can be asked. The failure is never that of the reply.
#[message(reply = Result<Option<Trajectory>, Failure>, name = "reward_model.Rate")]
#[derive(Debug)]
pub struct Rate(pub Trajectory);

/// Rate what waits. A reward model tells itself.
#[message(name = "reward_model.Turn")]
#[derive(Debug)]
pub struct Turn;

/// The actor that rates replies by a learnt model, many at a time.
pub struct RewardModel {
    engine: Box<dyn RewardEngine>,
    /// Those that share the model, where there are several.
    ranks: Vec<Ref<ModelRank>>,
    args: RewardModelArgs,
    /// Set when it has learnt in this life.
    learnt: bool,
    /// Replies, and who waits for them.
    waiting: Vec<(Trajectory, oneshot::Sender<Result<Trajectory, Failure>>)>,
    /// Set when a [`Turn`] is in the mailbox.
    turning: bool,
}

impl std::fmt::Debug for RewardModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RewardModel")
            .field("learnt", &self.learnt)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.RewardModel")]
impl RewardModel {
    async fn start(mut args: RewardModelArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.engine = args.engine.within("reward-model", cx.devices());
        let (model, mut ranks) = (&args.learned.model, vec![]);
        let engine = match &args.ranks {
            None => args.engine.reward_model(model)?,
            Some(plan) => {
                let folder = model.folder.parent().unwrap_or_else(|| Path::new("."));
                let ranked = RankedPairs::start((plan, &args.engine), model, folder, cx).await?;
                ranks = ranked.members();
                Box::new(ranked.engine(model))
            }
        };
        ranks.iter().for_each(|rank| cx.watch(*rank));
        Ok(Self {
            engine,
            ranks,
            args,
            learnt: false,
            waiting: vec![],
            turning: false,
        })
    }

    /// A rank is lost.
    #[handler(message = Down)]
    fn down(&mut self, down: Down, cx: &mut Context<Self>) {
        if self.ranks.iter().any(|rank| rank.id() == down.id) {
            cx.fail(Failure::error(format!(
                "a rank of the reward model is lost: {down}"
            )));
        }
    }

    #[handler(message = Rate)]
    fn rate(
        &mut self,
        rate: Rate,
        cx: &mut Context<Self>,
    ) -> Later<Result<Option<Trajectory>, Failure>> {
        let (answer, rated) = oneshot::channel();
        self.waiting.push((rate.0, answer));
        // Where the mailbox is full, the next reply in it tries this again.
        self.turning = self.turning || cx.me().tell(Turn).now().is_ok();
        Later::new(async move { rated.await.ok().transpose() })
    }

    #[handler(message = Turn)]
    async fn turn(&mut self, _turn: Turn, cx: &mut Context<Self>) {
        self.turning = false;
        let (mut replies, who): (Vec<_>, Vec<_>) = self.waiting.drain(..).unzip();
        match self.rated(&mut replies).await {
            Ok(()) => {
                for (reply, who) in replies.into_iter().zip(who) {
                    // Whoever is gone asks anew, or has its replies made anew.
                    let _ = who.send(Ok(reply));
                }
            }
            // Its ranks have left each other then: the next life has others.
            Err(failure) if !self.ranks.is_empty() => cx.fail(failure),
            Err(failure) => {
                for who in who {
                    // As above.
                    let _ = who.send(Err(failure.clone()));
                }
            }
        }
    }

    async fn rated(&mut self, replies: &mut [Trajectory]) -> Result<(), Failure> {
        if !self.learnt {
            // Another life would find the same files, and learn the same.
            let learnt = in_place(|| self.engine.prepare()).map_err(Failure::fatal)?;
            self.learnt = true;
            told("rl.pairs_ordered", 0, learnt.accuracy(), "");
            if let Err(error) = self.args.reports.tell(Report::RewardModel(learnt)).await {
                tracing::warn!(%error, "nobody hears what the reward model has learnt");
            }
        }
        let rates = in_place(|| self.engine.rate(replies))?;
        for (reply, rate) in replies.iter_mut().zip(rates) {
            reply.reward = self.args.learned.blend.of(reply.reward, rate);
        }
        Ok(())
    }
}

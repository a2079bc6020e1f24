//! The critic: learns how much reward to expect from each token on.
//!
//! Trainer and critic repeat lost steps together, from their common checkpoint and with the same
//! batches. A critic that came back has forgotten steps: the trainer fails by its refusal and goes
//! back. A trainer that went back asks for the values of a step that the critic has learnt, and the
//! critic goes back as well.
//!
//! The critic saves before the trainer does, and either may be lost between the two. So its checkpoint
//! before the newest stays, and it goes back to the one of the step that the trainer went back to.

use std::path::PathBuf;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Context, Down, Failure, Ref, actor, message};

use super::ranks::rank::{ModelRank, RankedRole};
use super::ranks::{RankedScores, RanksPlan};
use crate::engine::{EngineSpec, ScoreEngine, in_place, unsaved};
use crate::packed::{Packed, PackedBatch};
use crate::trajectory::Version;

/// Settings that a [`Critic`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct CriticArgs {
    /// The engine that computes.
    pub engine: EngineSpec,
    /// The ranks that share the model, where there are several.
    pub ranks: Option<RanksPlan>,
    /// Its name, which those of its ranks begin with.
    pub name: String,
    /// Where it is saved.
    pub checkpoint: PathBuf,
}

/// A value for each response token.
#[message(reply = Result<Packed<Vec<f32>>, Failure>, name = "critic.Values")]
#[derive(Debug)]
pub struct Values(pub PackedBatch);

/// Learn these returns, one for each response token. Answers the loss.
#[message(reply = Result<f64, Failure>, name = "critic.Learn")]
#[derive(Debug)]
pub struct Learn {
    /// The batch of replies.
    pub batch: PackedBatch,
    /// Returns of the replies, token by token.
    pub returns: Packed<Vec<f32>>,
}

/// Save all that is needed to go on after this step.
#[message(reply = Result<(), Failure>, name = "critic.Save")]
#[derive(Debug)]
pub struct SaveCritic(pub Version);

/// The actor that estimates the value of each token, and learns from the rewards that came.
pub struct Critic {
    args: CriticArgs,
    /// Those that share the model, where there are several.
    ranks: Vec<Ref<ModelRank>>,
    /// Made again for the next step when it went back to before its first checkpoint.
    engine: Option<Box<dyn ScoreEngine>>,
    /// The last step that it has learnt.
    learnt: Version,
    /// With this loss, when it has learnt that in this life.
    loss: Option<f64>,
    /// The step of its newest checkpoint.
    saved: Option<Version>,
}

impl std::fmt::Debug for Critic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Critic")
            .field("checkpoint", &self.args.checkpoint)
            .field("learnt", &self.learnt)
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.Critic")]
impl Critic {
    async fn start(mut args: CriticArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.engine = args.engine.within("critic", cx.devices());
        let mut ranks = vec![];
        let mut engine: Box<dyn ScoreEngine> = match &args.ranks {
            Some(plan) => {
                let role = (RankedRole::Critic, args.name.as_str());
                let checkpoint = &args.checkpoint;
                let ranked = RankedScores::start((plan, &args.engine), role, checkpoint, cx);
                let ranked = ranked.await?;
                ranks = ranked.members();
                Box::new(ranked)
            }
            None => in_place(|| args.engine.critic()).map_err(unrestored)?,
        };
        ranks.iter().for_each(|rank| cx.watch(*rank));
        let saved = in_place(|| engine.restore(&args.checkpoint, None));
        let saved = saved.map_err(|failure| match &args.ranks {
            // A rank may have been lost meanwhile.
            Some(_) => failure,
            None => unrestored(failure),
        })?;
        Ok(Self {
            ranks,
            args,
            engine: Some(engine),
            learnt: saved.unwrap_or(0),
            loss: None,
            saved,
        })
    }

    #[handler(message = Values)]
    async fn values(
        &mut self,
        values: Values,
        cx: &mut Context<Self>,
    ) -> Result<Packed<Vec<f32>>, Failure> {
        self.be_at(values.0.step.saturating_sub(1))?;
        let batch = values.0.unpack().await?;
        let values = in_place(|| self.engine()?.score(&batch));
        let values = self.unless_ranks_failed(values, cx)?;
        Packed::pack(&cx.blobs(), &values)
    }

    #[handler(message = Learn)]
    async fn learn(&mut self, learn: Learn, cx: &mut Context<Self>) -> Result<f64, Failure> {
        let step = learn.batch.step;
        if let Some(loss) = self.loss.filter(|_| step == self.learnt) {
            tracing::info!(step, "this step is learnt already");
            return Ok(loss);
        }
        self.be_at(step.saturating_sub(1))?;
        let (batch, returns) = (learn.batch.unpack().await?, learn.returns.unpack().await?);
        let loss = in_place(|| self.engine()?.learn(&batch, &returns));
        let loss = self.unless_ranks_failed(loss, cx)?;
        self.learnt = step;
        self.loss = Some(loss);
        Ok(loss)
    }

    /// A rank is lost.
    #[handler(message = Down)]
    fn down(&mut self, down: Down, cx: &mut Context<Self>) {
        if self.ranks.iter().any(|rank| rank.id() == down.id) {
            cx.fail(Failure::error(format!(
                "a rank of the critic is lost: {down}"
            )));
        }
    }

    #[handler(message = SaveCritic)]
    fn save(&mut self, save: SaveCritic, cx: &mut Context<Self>) -> Result<(), Failure> {
        self.be_at(save.0)?;
        if self.saved == Some(save.0) {
            return Ok(());
        }
        let checkpoint = self.args.checkpoint.clone();
        let saved = in_place(|| self.engine()?.save(&checkpoint, save.0));
        // What a rank cannot save is fatal already, and the loss of one is not.
        let saved = saved.map_err(|failure| match self.ranks.is_empty() {
            true => unsaved(failure),
            false => failure,
        });
        self.unless_ranks_failed(saved, cx)?;
        self.saved = Some(save.0);
        Ok(())
    }
}

impl Critic {
    /// Has learnt all steps up to this one and no more, or says why it cannot.
    fn be_at(&mut self, step: Version) -> Result<(), Failure> {
        if step < self.learnt {
            tracing::info!(step, "going back with the trainer");
            self.go_back(step)?;
        }
        if step == self.learnt {
            return Ok(());
        }
        Err(Failure::error(format!(
            "the critic came back with what it knew at step {} ({}), so step {} must wait: the \
             trainer goes back to their checkpoint",
            self.learnt,
            self.args.checkpoint.display(),
            step + 1
        )))
    }

    /// Forgets what it has learnt since its newest checkpoint at or before this step.
    fn go_back(&mut self, step: Version) -> Result<(), Failure> {
        let checkpoint = self.args.checkpoint.clone();
        self.loss = None;
        let saved = in_place(|| self.engine()?.restore(&checkpoint, Some(step)));
        // A rank may have been lost meanwhile.
        self.saved = saved.map_err(|failure| match self.ranks.is_empty() {
            true => unrestored(failure),
            false => failure,
        })?;
        self.learnt = self.saved.unwrap_or(0);
        // Ranks have forgotten all by themselves.
        if self.saved.is_none() && self.ranks.is_empty() {
            self.engine = None;
        }
        Ok(())
    }

    /// Ends with its ranks where these have failed: they have left each other.
    fn unless_ranks_failed<T>(
        &self,
        done: Result<T, Failure>,
        cx: &mut Context<Self>,
    ) -> Result<T, Failure> {
        if let Err(failure) = &done
            && !self.ranks.is_empty()
        {
            cx.fail(failure.clone());
        }
        done
    }

    fn engine(&mut self) -> Result<&mut dyn ScoreEngine, Failure> {
        let engine = match &mut self.engine {
            Some(engine) => engine,
            none => none.insert(self.args.engine.critic().map_err(Failure::fatal)?),
        };
        Ok(engine.as_mut())
    }
}

/// Another life would find the same files.
fn unrestored(failure: Failure) -> Failure {
    Failure::error("the critic cannot go on from its checkpoint")
        .because(failure)
        .fatal()
}

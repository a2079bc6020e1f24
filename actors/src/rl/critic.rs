//! The critic: learns how much reward to expect from each token on.
//!
//! Trainer and critic repeat lost steps together, from their common checkpoint and with the same
//! batches. A critic that came back has forgotten steps: the trainer fails by its refusal and goes
//! back. A trainer that went back asks for the values of a step that the critic has learnt, and the
//! critic goes back as well.

use std::path::PathBuf;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Context, Failure, actor, message};

use crate::engine::{EngineSpec, ScoreEngine};
use crate::packed::{Packed, PackedBatch};
use crate::trajectory::Version;

/// What a [`Critic`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct CriticArgs {
    /// What computes.
    pub engine: EngineSpec,
    /// Where it is saved.
    pub checkpoint: PathBuf,
}

/// A value for each response token.
#[message(reply = Result<Packed<Vec<f32>>, Failure>, name = "critic.Values")]
#[derive(Debug)]
pub struct Values(pub PackedBatch);

/// Learn these returns, one for each response token. Answers the loss; `None` for a step that it has
/// learnt already, as after a checkpoint that the critic has written and the trainer has not.
#[message(reply = Result<Option<f64>, Failure>, name = "critic.Learn")]
#[derive(Debug)]
pub struct Learn {
    /// What was done.
    pub batch: PackedBatch,
    /// What it was worth.
    pub returns: Packed<Vec<f32>>,
}

/// Save all that is needed to go on.
#[message(reply = Result<(), Failure>, name = "critic.Save")]
#[derive(Debug)]
pub struct SaveCritic;

/// See the module.
pub struct Critic {
    args: CriticArgs,
    engine: Box<dyn ScoreEngine>,
    /// The last step that it has learnt.
    learnt: Version,
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
    async fn start(args: CriticArgs) -> Result<Self, Failure> {
        let (engine, learnt) = tokio::task::block_in_place(|| {
            let mut engine = args.engine.critic()?;
            let learnt = engine.restore(&args.checkpoint)?;
            Ok((engine, learnt.unwrap_or(0)))
        })
        .map_err(Failure::fatal)?;
        Ok(Self {
            args,
            engine,
            learnt,
        })
    }

    #[handler(message = Values)]
    async fn values(
        &mut self,
        values: Values,
        cx: &mut Context<Self>,
    ) -> Result<Packed<Vec<f32>>, Failure> {
        let step = values.0.step;
        if step <= self.learnt {
            tracing::info!(step, "going back with the trainer");
            self.go_back().await?;
        }
        self.follows(step)?;
        let batch = values.0.unpack().await?;
        let values = tokio::task::block_in_place(|| self.engine.score(&batch))?;
        Packed::pack(&cx.blobs(), &values)
    }

    #[handler(message = Learn)]
    async fn learn(&mut self, learn: Learn) -> Result<Option<f64>, Failure> {
        let step = learn.batch.step;
        self.follows(step)?;
        if step <= self.learnt {
            tracing::info!(step, "this step is learnt already");
            return Ok(None);
        }
        let (batch, returns) = (learn.batch.unpack().await?, learn.returns.unpack().await?);
        let loss = tokio::task::block_in_place(|| self.engine.learn(&batch, &returns))?;
        self.learnt = step;
        Ok(Some(loss))
    }

    #[handler(message = SaveCritic)]
    fn save(&mut self, _save: SaveCritic) -> Result<(), Failure> {
        tokio::task::block_in_place(|| self.engine.save(&self.args.checkpoint, self.learnt))
    }
}

impl Critic {
    /// Forgets what it has learnt since its checkpoint.
    async fn go_back(&mut self) -> Result<(), Failure> {
        match tokio::task::block_in_place(|| self.engine.restore(&self.args.checkpoint))? {
            Some(learnt) => self.learnt = learnt,
            None => *self = Self::start(self.args.clone()).await?,
        }
        Ok(())
    }

    /// Whether it has learnt all steps before this one.
    fn follows(&self, step: Version) -> Result<(), Failure> {
        if step <= self.learnt + 1 {
            return Ok(());
        }
        Err(Failure::error(format!(
            "the critic came back with what it knew at step {} ({}), so step {step} must wait: the \
             trainer goes back to their checkpoint",
            self.learnt,
            self.args.checkpoint.display()
        )))
    }
}

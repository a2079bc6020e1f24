//! The critic: learns how much reward to expect from each token on.
//!
//! A critic that comes back from its checkpoint has forgotten what it had learnt since. It does not
//! go on with that gap: the trainer fails by its refusal, goes back to their common checkpoint, and
//! both repeat the same batches.

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
/// learnt already, since a trainer that went back to its checkpoint repeats steps.
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
    engine: Box<dyn ScoreEngine>,
    checkpoint: PathBuf,
    /// The last step that it has learnt.
    learnt: Version,
}

impl std::fmt::Debug for Critic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Critic")
            .field("checkpoint", &self.checkpoint)
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
            Ok((engine, learnt))
        })
        .map_err(Failure::fatal)?;
        Ok(Self {
            engine,
            checkpoint: args.checkpoint,
            learnt: learnt.unwrap_or(0),
        })
    }

    #[handler(message = Values)]
    async fn values(
        &mut self,
        values: Values,
        cx: &mut Context<Self>,
    ) -> Result<Packed<Vec<f32>>, Failure> {
        self.follows(values.0.step)?;
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
        tokio::task::block_in_place(|| self.engine.save(&self.checkpoint, self.learnt))
    }
}

impl Critic {
    /// Whether it has learnt all steps before this one.
    fn follows(&self, step: Version) -> Result<(), Failure> {
        if step <= self.learnt + 1 {
            return Ok(());
        }
        Err(Failure::error(format!(
            "the critic came back with what it knew at step {}, so step {step} must wait: the \
             trainer goes back to their checkpoint",
            self.learnt
        )))
    }
}

//! The critic: learns how much reward to expect from each token on.

use std::path::PathBuf;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Failure, actor, message};

use crate::engine::{EngineSpec, ScoreEngine};
use crate::trajectory::Batch;

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
#[message(reply = Result<Vec<Vec<f32>>, Failure>, name = "critic.Values")]
#[derive(Debug)]
pub struct Values(pub Batch);

/// Learn these returns, one for each response token; answers the loss.
#[message(reply = Result<f64, Failure>, name = "critic.Learn")]
#[derive(Debug)]
pub struct Learn {
    /// What was done.
    pub batch: Batch,
    /// What it was worth.
    pub returns: Vec<Vec<f32>>,
}

/// Save all that is needed to go on.
#[message(reply = Result<(), Failure>, name = "critic.Save")]
#[derive(Debug)]
pub struct SaveCritic;

/// See the module.
pub struct Critic {
    engine: Box<dyn ScoreEngine>,
    checkpoint: PathBuf,
}

impl std::fmt::Debug for Critic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Critic")
            .field("checkpoint", &self.checkpoint)
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.Critic")]
impl Critic {
    async fn start(args: CriticArgs) -> Result<Self, Failure> {
        let engine = tokio::task::block_in_place(|| {
            let mut engine = args.engine.critic()?;
            engine.restore(&args.checkpoint)?;
            Ok::<_, Failure>(engine)
        })?;
        Ok(Self {
            engine,
            checkpoint: args.checkpoint,
        })
    }

    #[handler(message = Values)]
    fn values(&mut self, values: Values) -> Result<Vec<Vec<f32>>, Failure> {
        tokio::task::block_in_place(|| self.engine.score(&values.0))
    }

    #[handler(message = Learn)]
    fn learn(&mut self, learn: Learn) -> Result<f64, Failure> {
        tokio::task::block_in_place(|| self.engine.learn(&learn.batch, &learn.returns))
    }

    #[handler(message = SaveCritic)]
    fn save(&mut self, _save: SaveCritic) -> Result<(), Failure> {
        tokio::task::block_in_place(|| self.engine.save(&self.checkpoint))
    }
}

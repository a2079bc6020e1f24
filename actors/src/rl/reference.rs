//! The reference: the policy as it was before the reinforcement. It never learns.

use odeon::serde::{Deserialize, Serialize};
use odeon::{Context, Failure, actor, message};

use crate::engine::{EngineSpec, ScoreEngine, in_place};
use crate::packed::{Packed, PackedBatch};

/// Settings that a [`Reference`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ReferenceArgs {
    /// The engine that computes, with the weights to keep.
    pub engine: EngineSpec,
}

/// The log-probability of each response token, in nats.
#[message(reply = Result<Packed<Vec<f32>>, Failure>, name = "reference.LogProbs")]
#[derive(Debug)]
pub struct LogProbs(pub PackedBatch);

/// The actor that says how likely replies were to the policy before the reinforcement.
pub struct Reference {
    spec: EngineSpec,
    /// Made for the first batch: the supervised steps before it belong to the reference too.
    engine: Option<Box<dyn ScoreEngine>>,
}

impl std::fmt::Debug for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reference").finish_non_exhaustive()
    }
}

#[actor(name = "rl.Reference")]
impl Reference {
    async fn start(args: ReferenceArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self {
            spec: args.engine.within("reference", cx.devices()),
            engine: None,
        })
    }

    #[handler(message = LogProbs)]
    async fn log_probs(
        &mut self,
        ask: LogProbs,
        cx: &mut Context<Self>,
    ) -> Result<Packed<Vec<f32>>, Failure> {
        let batch = ask.0.unpack().await?;
        let scores = in_place(|| {
            let engine = match &mut self.engine {
                Some(engine) => engine,
                none => none.insert(self.spec.reference().map_err(Failure::fatal)?),
            };
            engine.score(&batch)
        })?;
        Packed::pack(&cx.blobs(), &scores)
    }
}

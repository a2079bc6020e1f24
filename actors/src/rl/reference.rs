//! The reference: the policy as it was before the reinforcement. It never learns.

use std::path::PathBuf;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Context, Down, Failure, Ref, actor, message};

use super::ranks::rank::{ModelRank, RankedRole};
use super::ranks::{RankedScores, RanksPlan};
use crate::engine::{EngineSpec, ScoreEngine, in_place};
use crate::packed::{Packed, PackedBatch};

/// Settings that a [`Reference`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ReferenceArgs {
    /// The engine that computes, with the weights to keep.
    pub engine: EngineSpec,
    /// The ranks that share the model, where there are several.
    pub ranks: Option<RanksPlan>,
    /// A folder of the run, which its ranks see.
    pub folder: PathBuf,
}

/// The log-probability of each response token, in nats.
#[message(reply = Result<Packed<Vec<f32>>, Failure>, name = "reference.LogProbs")]
#[derive(Debug)]
pub struct LogProbs(pub PackedBatch);

/// The actor that says how likely replies were to the policy before the reinforcement.
pub struct Reference {
    spec: EngineSpec,
    /// Those that share the model, where there are several.
    ranks: Vec<Ref<ModelRank>>,
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
        let spec = args.engine.within("reference", cx.devices());
        let (mut ranks, mut engine) = (vec![], None);
        if let Some(plan) = &args.ranks {
            let role = (RankedRole::Reference, "reference");
            let ranked = RankedScores::start((plan, &spec), role, &args.folder, cx).await?;
            ranks = ranked.members();
            engine = Some(Box::new(ranked) as Box<dyn ScoreEngine>);
        }
        ranks.iter().for_each(|rank| cx.watch(*rank));
        Ok(Self {
            spec,
            ranks,
            engine,
        })
    }

    /// A rank is lost.
    #[handler(message = Down)]
    fn down(&mut self, down: Down, cx: &mut Context<Self>) {
        if self.ranks.iter().any(|rank| rank.id() == down.id) {
            cx.fail(Failure::error(format!(
                "a rank of the reference is lost: {down}"
            )));
        }
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
        });
        // Its ranks have left each other then.
        if let Err(failure) = &scores
            && !self.ranks.is_empty()
        {
            cx.fail(failure.clone());
        }
        let scores = scores?;
        Packed::pack(&cx.blobs(), &scores)
    }
}

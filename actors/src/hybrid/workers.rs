//! The workers: one actor for each rank of a model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use odeon::group::Communicator;
use odeon::serde::{Deserialize, Serialize};
use odeon::{Blobs, Context, Failure, actor};
use odeon_algorithms::objective::{Baseline, Lagrangian, Overlong};
use odeon_algorithms::task::{Split, Task, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;

use super::calls::{
    Estimate, Estimated, Evaluate, Generate, Join, Judge, Learn, LogProbs, PerToken, Prepare,
    Restore, Save, Update, Updated, Values, Verdict, WarmUp,
};
use super::estimator::{self, Columns, Rule};
use super::rows::Rows;
use crate::engine::compute::{self, ComputeSpec};
use crate::engine::{
    EvalStats, Learnt, Progress, RewardEngine, RolloutEngine, RunState, ScoreEngine, Signals,
    StepStats, TrainEngine, in_place,
};
use crate::rl::cost::Harm;
use crate::rl::referee::{ProgramSpec, Referee};
use crate::rl::reward_model::LearnedReward;
use crate::trajectory::{Batch, Observed, Order, Trajectory, Used};

/// Settings that a rank of a model is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct WorkerArgs {
    /// Settings of the engine that computes.
    pub spec: ComputeSpec,
    /// Where the model is saved.
    pub checkpoint: PathBuf,
}

/// A batch of these rows, without what only some need.
fn batch_of(trajectories: Vec<Trajectory>) -> Batch {
    Batch {
        trajectories,
        ..Batch::default()
    }
}

/// The seat of this rank.
pub(super) fn sit<A: odeon::Actor>(join: &Join, cx: &Context<A>) -> Result<Communicator, Failure> {
    let seat = join
        .seats
        .first()
        .ok_or_else(|| Failure::error("no seat came"))?;
    seat.take(cx).map_err(Failure::error)
}

/// A rank of the policy: it generates and trains with the same weights.
pub struct PolicyWorker {
    args: WorkerArgs,
    task: Box<dyn Task>,
    trainer: compute::Trainer,
    /// Made for the first replies.
    rollout: Option<compute::Rollout>,
    /// Set when the rollout has the trainer's weights.
    fresh: bool,
    version: u64,
    blobs: Blobs,
}

impl std::fmt::Debug for PolicyWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyWorker")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

#[actor(name = "hybrid.Policy")]
impl PolicyWorker {
    async fn start(mut args: WorkerArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.spec.keep_within("policy", cx.devices());
        let trainer = in_place(|| compute::Trainer::new(&args.spec)).map_err(Failure::fatal)?;
        Ok(Self {
            task: args.spec.task()?,
            args,
            trainer,
            rollout: None,
            fresh: false,
            version: 0,
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Join)]
    fn join(&mut self, join: Join, cx: &mut Context<Self>) -> Result<(), Failure> {
        self.trainer.join(sit(&join, cx)?);
        Ok(())
    }

    #[handler(message = WarmUp)]
    fn warm_up(&mut self, warm_up: WarmUp) -> Result<StepStats, Failure> {
        self.fresh = false;
        in_place(|| {
            let mut last = StepStats::default();
            for step in warm_up.first..=warm_up.last {
                last = self.trainer.warm_up(step)?;
            }
            Ok(last)
        })
    }

    #[handler(message = Generate)]
    fn generate(&mut self, generate: Generate) -> Result<Rows<Trajectory>, Failure> {
        let replies = in_place(|| self.replies(&generate))?;
        Rows::pack(&self.blobs, &replies)
    }

    #[handler(message = Update)]
    async fn update(&mut self, update: Update) -> Result<Updated, Failure> {
        let replies = estimator::judged(update.replies.fetch().await?, &update.verdicts)?;
        let signals = Signals {
            reference: update.reference.fetch().await?,
            advantages: update.advantages.fetch().await?,
        };
        let batch = Batch {
            step: update.step,
            ..batch_of(replies)
        };
        let stats = in_place(|| self.trainer.train(&batch, &signals))?;
        self.fresh = false;
        self.version = update.step;
        let lengths = batch.trajectories.iter().map(|it| it.response.len() as u64);
        Ok(Updated {
            stats,
            response_tokens: lengths.sum(),
        })
    }

    #[handler(message = Evaluate)]
    fn evaluate(&mut self, evaluate: Evaluate) -> Result<EvalStats, Failure> {
        let problems = usize::try_from(evaluate.0).map_err(Failure::error)?;
        in_place(|| self.trainer.evaluate(problems))
    }

    #[handler(message = Save)]
    fn save(&mut self, save: Save) -> Result<(), Failure> {
        let Save { progress, run } = save;
        in_place(|| self.trainer.save(&self.args.checkpoint, &progress, &run))
    }

    #[handler(message = Restore)]
    fn restore(&mut self, _restore: Restore) -> Result<Option<(Progress, RunState)>, Failure> {
        let restored = in_place(|| self.trainer.restore(&self.args.checkpoint))?;
        self.fresh = false;
        self.version = restored
            .as_ref()
            .map_or(0, |(progress, _)| progress.version);
        Ok(restored)
    }

    fn replies(&mut self, generate: &Generate) -> Result<Vec<Trajectory>, Failure> {
        let rollout = match &mut self.rollout {
            Some(rollout) => rollout,
            none => none.insert(compute::Rollout::new(&self.args.spec)?),
        };
        if !self.fresh {
            let mut weights = vec![0; self.trainer.weight_bytes()];
            self.trainer.write_weights(&mut weights)?;
            rollout.load(&weights)?;
            self.fresh = true;
        }
        let (style, seed) = (self.task.style(), self.args.spec.seed);
        let mut waiting = generate.0.iter();
        let mut made: Vec<Trajectory> = vec![];
        let mut slot_of = HashMap::new();
        let mut ended = 0;
        while ended < generate.0.len() {
            while rollout.free_slots() > 0
                && let Some(wanted) = waiting.next()
            {
                let problem = self.task.problem(seed, Split::Train, wanted.id.group);
                let order = Order {
                    id: wanted.id,
                    prompt: self.args.spec.prompt(style, &problem.prompt)?,
                    problem: wanted.id.group,
                    decode: wanted.decode,
                    partial: None,
                };
                rollout.admit(&order)?;
                slot_of.insert(wanted.id, made.len());
                made.push(begun(order, self.version));
            }
            for response in rollout.step()? {
                let at = slot_of.get(&response.id);
                let reply = at.and_then(|at| made.get_mut(*at));
                let reply = reply.ok_or_else(|| Failure::error("a reply that nobody wanted"))?;
                reply.response = response.tokens;
                reply.log_probs = response.log_probs;
                ended += 1;
            }
        }
        Ok(made)
    }
}

/// A reply of which there is nothing yet.
fn begun(order: Order, version: u64) -> Trajectory {
    Trajectory {
        id: order.id,
        version,
        last_version: version,
        life: 1,
        last_life: 1,
        prompt: order.prompt,
        response: vec![],
        log_probs: vec![],
        observed: Observed::default(),
        waited: Duration::ZERO,
        problem: order.problem,
        reward: 0.0,
        correct: false,
        cost: 0.0,
    }
}

/// A rank of a critic.
pub struct CriticWorker {
    args: WorkerArgs,
    engine: compute::Critic,
    blobs: Blobs,
}

impl std::fmt::Debug for CriticWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CriticWorker").finish_non_exhaustive()
    }
}

#[actor(name = "hybrid.Critic")]
impl CriticWorker {
    async fn start(mut args: WorkerArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.spec.keep_within("critic", cx.devices());
        Ok(Self {
            engine: compute::Critic::new(&args.spec),
            args,
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Join)]
    fn join(&mut self, join: Join, cx: &mut Context<Self>) -> Result<(), Failure> {
        self.engine.join(sit(&join, cx)?);
        Ok(())
    }

    #[handler(message = Values)]
    async fn values(&mut self, values: Values) -> Result<PerToken, Failure> {
        let batch = batch_of(values.0.fetch().await?);
        Rows::pack(&self.blobs, &in_place(|| self.engine.score(&batch))?)
    }

    #[handler(message = Learn)]
    async fn learn(&mut self, learn: Learn) -> Result<f64, Failure> {
        let batch = batch_of(learn.replies.fetch().await?);
        let returns = learn.returns.fetch().await?;
        in_place(|| self.engine.learn(&batch, &returns))
    }

    #[handler(message = Save)]
    fn save(&mut self, save: Save) -> Result<(), Failure> {
        let learnt = save.progress.version;
        in_place(|| self.engine.save(&self.args.checkpoint, learnt))
    }

    #[handler(message = Restore)]
    fn restore(&mut self, restore: Restore) -> Result<Option<(Progress, RunState)>, Failure> {
        let at_most = restore.0.map(|progress| progress.version);
        let restored = in_place(|| self.engine.restore(&self.args.checkpoint, at_most))?;
        let progress = |version| Progress { warmup: 0, version };
        Ok(restored.map(|version| (progress(version), RunState::default())))
    }
}

/// A rank of the reference: the policy as it was before the reinforcement.
pub struct ReferenceWorker {
    args: WorkerArgs,
    /// Made for the first question: the policy is saved after its supervised steps.
    engine: Option<compute::Reference>,
    blobs: Blobs,
}

impl std::fmt::Debug for ReferenceWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReferenceWorker").finish_non_exhaustive()
    }
}

#[actor(name = "hybrid.Reference")]
impl ReferenceWorker {
    async fn start(mut args: WorkerArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.spec.keep_within("reference", cx.devices());
        Ok(Self {
            args,
            engine: None,
            blobs: cx.blobs(),
        })
    }

    #[handler(message = LogProbs)]
    async fn log_probs(&mut self, log_probs: LogProbs) -> Result<PerToken, Failure> {
        let batch = batch_of(log_probs.0.fetch().await?);
        let rated = in_place(|| {
            let engine = match &mut self.engine {
                Some(engine) => engine,
                none => none.insert(compute::Reference::new(&self.args.spec)?),
            };
            engine.score(&batch)
        })?;
        Rows::pack(&self.blobs, &rated)
    }
}

/// Settings that a rank of the judges is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct JudgeArgs {
    /// The task whose answers it knows.
    pub task: TaskSpec,
    /// Settings for running programs in replies, where the task has some.
    pub programs: ProgramSpec,
    /// The run's seed, from which the problems follow.
    pub seed: u64,
    /// The tokenizer that turns tokens into text.
    pub tokenizer: Tokenizer,
    /// The measure of harm, where that counts.
    pub harm: Option<Harm>,
    /// A reward that is learnt, and what computes it, where the checker's is not all that counts.
    pub learned: Option<(LearnedReward, Box<ComputeSpec>)>,
}

/// A rank of the judges: reward by the task's referee, by what was learnt where that counts, and cost.
#[derive(Debug)]
pub struct RewardWorker {
    args: JudgeArgs,
    referee: Referee,
    /// Once it has learnt, or has read what another has.
    model: Option<compute::RewardModel>,
}

#[actor(name = "hybrid.Reward")]
impl RewardWorker {
    async fn start(mut args: JudgeArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        if let Some((_, spec)) = &mut args.learned {
            spec.keep_within("reward", cx.devices());
        }
        let referee = Referee::open(&args.task, &args.programs).await;
        Ok(Self {
            referee: referee.map_err(|error| Failure::error(error).fatal())?,
            args,
            model: None,
        })
    }

    #[handler(message = Prepare)]
    fn prepare(&mut self, _prepare: Prepare) -> Result<Learnt, Failure> {
        let learned = self.args.learned.as_ref();
        let (learned, spec) =
            learned.ok_or_else(|| Failure::error("no reward is learnt").fatal())?;
        let mut model = compute::RewardModel::new(spec, &learned.model);
        let learnt = in_place(|| model.prepare())?;
        self.model = Some(model);
        Ok(learnt)
    }

    #[handler(message = Judge)]
    async fn judge(&mut self, judge: Judge) -> Result<Vec<Verdict>, Failure> {
        let replies = judge.0.fetch().await?;
        let text = |reply: &Trajectory| {
            let problem = self
                .referee
                .task()
                .problem(self.args.seed, Split::Train, reply.problem);
            // Tokens outside the vocabulary are no answer.
            let text = self.args.tokenizer.decode_reply(&reply.response);
            (problem, text.unwrap_or_default())
        };
        let texts: Vec<_> = replies.iter().map(text).collect();
        let judged = self
            .referee
            .judge_all(&texts)
            .await
            .map_err(Failure::error)?;
        let all = judged.iter().zip(&texts).zip(&replies);
        let mut verdicts: Vec<Verdict> = all
            .map(|((verdict, (_, text)), reply)| Verdict {
                reward: verdict.reward as f32,
                correct: verdict.correct,
                cost: self.cost(reply.response.len(), text),
            })
            .collect();
        if let Some((LearnedReward { blend, .. }, _)) = self.args.learned {
            if self.model.is_none() {
                self.prepare(Prepare)?;
            }
            let model = self.model.as_mut();
            let model = model.ok_or_else(|| Failure::error("no reward was learnt"))?;
            let rates = in_place(|| model.rate(&replies))?;
            for (verdict, rate) in verdicts.iter_mut().zip(rates) {
                verdict.reward = blend.of(verdict.reward, rate);
            }
        }
        Ok(verdicts)
    }

    fn cost(&self, tokens: usize, text: &str) -> f32 {
        let harm = self.args.harm.as_ref();
        harm.map_or(0.0, |harm| harm.of(tokens, text))
    }
}

/// Settings that the estimator is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct EstimatorArgs {
    /// The baseline that rewards are compared with.
    pub baseline: Baseline,
    /// The cost of long replies.
    pub overlong: Option<Overlong>,
    /// The first price of cost, where it has one, and its rule of change.
    pub price: Option<Lagrangian>,
}

/// Computes advantages: what needs the rows of a whole batch, and no model.
#[derive(Debug)]
pub struct Estimator {
    rule: Rule,
    price: Option<Lagrangian>,
    blobs: Blobs,
}

#[actor(name = "hybrid.Estimator")]
impl Estimator {
    async fn start(args: EstimatorArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self {
            rule: Rule {
                baseline: args.baseline,
                overlong: args.overlong,
            },
            price: args.price,
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Estimate)]
    async fn estimate(&mut self, estimate: Estimate) -> Result<Estimated, Failure> {
        let trajectories = estimator::judged(estimate.replies.fetch().await?, &estimate.verdicts)?;
        let greedy = match &estimate.greedy {
            Some((replies, verdicts)) => estimator::greedy(&replies.fetch().await?, verdicts),
            None => vec![],
        };
        let priced = match (&estimate.priced, self.price) {
            (Some((values, multiplier)), Some(price)) => {
                let price = Lagrangian {
                    multiplier: *multiplier,
                    ..price
                };
                Some((values.fetch().await?, price))
            }
            _ => None,
        };
        let columns = Columns {
            batch: Batch {
                group_size: estimate.group_size,
                greedy,
                used: Used::default(),
                ..batch_of(trajectories)
            },
            reference: estimate.reference.fetch().await?,
            values: estimate.values.fetch().await?,
            priced,
        };
        in_place(|| {
            let worth = self.rule.estimate(&columns)?;
            Ok(Estimated {
                summary: estimator::summary(&columns.batch, &worth.advantages),
                advantages: Rows::pack(&self.blobs, &worth.advantages)?,
                returns: Rows::pack(&self.blobs, &worth.returns)?,
                cost_returns: Rows::pack(&self.blobs, &worth.cost_returns)?,
            })
        })
    }
}

//! The workers: one actor for each rank of a model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use odeon::group::Communicator;
use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Blobs, Clock, Context, Failure, Timestamp, actor, telemetry};
use odeon_algorithms::objective::{Baseline, Lagrangian, Overlong};
use odeon_algorithms::task::{Split, Task, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;

use super::calls::{
    Compose, Dealing, Estimate, Estimated, Evaluate, Generate, Join, Judge, Learn, Lend, LogProbs,
    PerToken, Prepare, Publish, RateRows, Restore, Save, Saved, Update, Values, Verdict, Wanted,
    WarmUp,
};
use super::estimator::{self, Columns, Rule};
use super::rows::Rows;
use super::weights::{Assembly, Published};
use crate::engine::compute::{self, ComputeSpec, HeldModel, RankPlace, parcels};
use crate::engine::{
    EvalStats, Learnt, Progress, RewardEngine, RolloutEngine, RunState, ScoreEngine, Signals,
    TrainEngine, in_place,
};
use crate::ranks::gangs::Gangs;
use crate::ranks::meeting::{Begin, Greet, Greeted, Meeting};
use crate::ranks::metrics::{RankMetrics, StepSeconds};
use crate::ranks::trained::RankTrained;
use crate::rl::cost::Harm;
use crate::rl::ranks::RankedPairs;
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
    /// The place of the rank among those that share the model; [`RankPlace::ALONE`] of one that has all of it.
    pub place: RankPlace,
}

impl WorkerArgs {
    fn meeting(&self) -> Meeting {
        Meeting::new(self.place, self.checkpoint.clone())
    }
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
    meeting: Meeting,
    /// Set where ranks share the policy.
    assembly: Option<Assembly>,
    /// Made for the first replies.
    rollout: Option<compute::Rollout>,
    /// Set when the rollout has the trainer's weights.
    fresh: bool,
    version: u64,
    blobs: Blobs,
    /// Of a rank that shares the policy with others.
    metrics: Option<RankMetrics>,
    /// When it was done with the step before.
    free_since: Timestamp,
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
        let RankPlace { sharing, rank } = args.place;
        let told = (sharing.ranks() > 1)
            .then(|| RankMetrics::new(rank as u32, sharing, cx.incarnation()))
            .transpose()?;
        let made = in_place(|| compute::Trainer::of_rank(&args.spec, args.place));
        let trainer = made.map_err(Failure::fatal)?;
        let model = trainer.optimizer().model();
        let whole = model.part().map(odeon_algorithms::model::ModelPart::whole);
        let config = whole.unwrap_or_else(|| model.config());
        let of_model =
            |told: RankMetrics| told.of_model(config, &args.spec.policy_train(), sharing);
        let metrics = told.map(of_model).transpose()?;
        Ok(Self {
            task: args.spec.task()?,
            meeting: args.meeting(),
            args,
            trainer,
            assembly: None,
            rollout: None,
            fresh: false,
            version: 0,
            blobs: cx.blobs(),
            metrics,
            free_since: Clock::now(),
        })
    }

    #[handler(message = Join)]
    fn join(&mut self, join: Join, cx: &mut Context<Self>) -> Result<(), Failure> {
        self.trainer.join(sit(&join, cx)?);
        Ok(())
    }

    #[handler(message = Greet)]
    async fn greet(&mut self, _greet: Greet, cx: &mut Context<Self>) -> Result<Greeted, Failure> {
        let held = in_place(|| parcels::held(self.trainer.optimizer()));
        self.meeting.greet(held, cx).await
    }

    #[handler(message = Begin)]
    async fn begin(&mut self, begin: Begin, cx: &mut Context<Self>) -> Result<(), Failure> {
        let (gangs, savers) = self.meeting.begin(begin, cx).await?;
        self.trainer.meet(gangs, savers);
        Ok(())
    }

    #[handler(message = Compose)]
    async fn compose(&mut self, compose: Compose) -> Result<(), Failure> {
        let held = compose.0.unpack().await?;
        let stored = self.args.spec.weights;
        self.assembly = Some(in_place(|| Assembly::of(&held, self.args.place, stored))?);
        Ok(())
    }

    #[handler(message = WarmUp)]
    fn warm_up(&mut self, warm_up: WarmUp) -> Result<RankTrained, Failure> {
        self.fresh = false;
        let stats = in_place(|| {
            let mut last = None;
            for step in warm_up.first..=warm_up.last {
                let begun = Clock::now();
                last = Some(self.trainer.warm_up(step)?);
                self.tell(begun, step);
            }
            last.ok_or_else(|| Failure::error("there is no step to make"))
        });
        let stats = self.unless_failed(stats)?;
        Ok(RankTrained {
            learnt: stats.tokens,
            stats,
            tells: self.args.place.tells(),
        })
    }

    #[handler(message = Publish)]
    fn publish(&mut self, _publish: Publish) -> Result<Blob, Failure> {
        let optimizer = self.trainer.optimizer();
        self.assembly()?.publish(optimizer, &self.blobs)
    }

    #[handler(message = Generate)]
    async fn generate(&mut self, generate: Generate) -> Result<Rows<Trajectory>, Failure> {
        if !self.fresh {
            let weights = match self.assembly {
                Some(_) => self.assembled(&generate.weights).await?,
                None => in_place(|| self.own_weights())?,
            };
            in_place(|| self.rollout()?.load(&weights))?;
            self.fresh = true;
        }
        let replies = in_place(|| self.replies(&generate.wanted))?;
        Rows::pack(&self.blobs, &replies)
    }

    #[handler(message = Update)]
    async fn update(&mut self, update: Update) -> Result<RankTrained, Failure> {
        let read = async {
            let replies = estimator::judged(update.replies.fetch().await?, &update.verdicts)?;
            let signals = Signals {
                reference: update.reference.fetch().await?,
                advantages: update.advantages.fetch().await?,
            };
            Ok((replies, signals))
        };
        let trained = match read.await {
            Ok((replies, signals)) => {
                let batch = Batch {
                    step: update.step,
                    ..batch_of(replies)
                };
                let begun = Clock::now();
                let trained = in_place(|| self.trainer.train_part(&batch, &signals));
                self.tell(begun, self.args.spec.warmup_steps + update.step);
                let lengths = batch.trajectories.iter().map(|it| it.response.len() as u64);
                trained.map(|(stats, learnt)| RankTrained {
                    stats,
                    learnt: match update.dealing {
                        Dealing::Rows => lengths.sum(),
                        Dealing::Whole => learnt,
                    },
                    tells: self.args.place.tells(),
                })
            }
            Err(failure) => Err(failure),
        };
        self.fresh = false;
        self.version = update.step;
        self.unless_failed(trained)
    }

    #[handler(message = Evaluate)]
    async fn evaluate(&mut self, evaluate: Evaluate) -> Result<EvalStats, Failure> {
        let problems = usize::try_from(evaluate.problems).map_err(Failure::error)?;
        if self.assembly.is_none() {
            return in_place(|| self.trainer.evaluate(problems));
        }
        let weights = self.assembled(&evaluate.weights).await?;
        in_place(|| self.trainer.examine(&weights, problems))
    }

    #[handler(message = Save)]
    fn save(&mut self, save: Save) -> Result<(), Failure> {
        let Save { progress, run, .. } = save;
        let saved = in_place(|| self.trainer.save(&self.args.checkpoint, &progress, &run));
        self.unless_failed(saved)
    }

    #[handler(message = Restore)]
    fn restore(&mut self, restore: Restore) -> Result<Option<(Progress, RunState)>, Failure> {
        let folder = self.args.checkpoint.clone();
        let restored = in_place(|| match restore.0 {
            Saved::Newest(_) => self.trainer.restore(&folder),
            Saved::Step(step) => step
                .map(|step| self.trainer.restore_step(&folder, step))
                .transpose(),
        });
        let restored = self.unless_failed(restored)?;
        self.fresh = false;
        self.version = restored
            .as_ref()
            .map_or(0, |(progress, _)| progress.version);
        Ok(restored)
    }

    /// Tells the seconds of a step, counted from 1, whose batch was there at this time. What it waited for is that batch,
    /// which it may have helped to make.
    fn tell(&mut self, begun: Timestamp, step: u64) {
        let Some(metrics) = &mut self.metrics else {
            return;
        };
        let seconds = StepSeconds {
            wait: begun.since(self.free_since).as_secs_f64(),
            ..self.trainer.take_seconds()
        };
        let activations = self.trainer.optimizer().held_activations().device;
        metrics.tell(step.saturating_sub(1), seconds, activations);
        self.free_since = Clock::now();
    }

    fn assembly(&self) -> Result<&Assembly, Failure> {
        let assembly = self.assembly.as_ref();
        assembly
            .ok_or_else(|| Failure::error("this rank has the whole policy, and no parcel of it"))
    }

    /// The weights of all ranks of its copy.
    async fn assembled(&self, published: &Published) -> Result<Vec<u8>, Failure> {
        let assembled = self.assembly()?.gather(published).await?;
        let received = telemetry::gauge(RECEIVED, assembled.received as f64);
        received.with("rank", self.args.place.rank as u64).record();
        Ok(assembled.weights)
    }

    fn own_weights(&mut self) -> Result<Vec<u8>, Failure> {
        let mut weights = vec![0; self.trainer.weight_bytes()];
        self.trainer.write_weights(&mut weights)?;
        Ok(weights)
    }

    fn rollout(&mut self) -> Result<&mut compute::Rollout, Failure> {
        Ok(match &mut self.rollout {
            Some(rollout) => rollout,
            none => none.insert(compute::Rollout::new(&self.args.spec)?),
        })
    }

    /// Leaves the others where this rank does not compute with them: they would wait for it.
    fn unless_failed<T>(&mut self, done: Result<T, Failure>) -> Result<T, Failure> {
        if done.is_err() {
            self.trainer.leave();
        }
        done
    }

    fn replies(&mut self, wanted: &[Wanted]) -> Result<Vec<Trajectory>, Failure> {
        self.rollout()?;
        let rollout = self.rollout.as_mut();
        let rollout = rollout.ok_or_else(|| Failure::error("there is nothing to generate with"))?;
        let (style, seed) = (self.task.style(), self.args.spec.seed);
        let mut waiting = wanted.iter();
        let mut made: Vec<Trajectory> = vec![];
        let mut slot_of = HashMap::new();
        let mut ended = 0;
        while ended < wanted.len() {
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

/// The gauge of the bytes of weights that a rank which shares the policy had from others, to generate.
const RECEIVED: &str = "hybrid.weights_received_bytes";

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
    meeting: Meeting,
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
            meeting: args.meeting(),
            args,
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Join)]
    fn join(&mut self, join: Join, cx: &mut Context<Self>) -> Result<(), Failure> {
        self.engine.join(sit(&join, cx)?);
        Ok(())
    }

    #[handler(message = Greet)]
    async fn greet(&mut self, _greet: Greet, cx: &mut Context<Self>) -> Result<Greeted, Failure> {
        self.meeting.greet(HeldModel::default(), cx).await
    }

    #[handler(message = Begin)]
    async fn begin(&mut self, begin: Begin, cx: &mut Context<Self>) -> Result<(), Failure> {
        let met = self.meeting.begin(begin, cx).await?;
        self.engine = compute::Critic::of_rank(&self.args.spec, self.args.place, met);
        Ok(())
    }

    #[handler(message = Values)]
    async fn values(&mut self, values: Values) -> Result<PerToken, Failure> {
        let read = values.replies.fetch().await.map(batch_of);
        let rated = read.and_then(|batch| in_place(|| self.engine.score(&batch)));
        let rated = self.unless_failed(rated)?;
        told(self.args.place, &self.blobs, &rated)
    }

    #[handler(message = Learn)]
    async fn learn(&mut self, learn: Learn) -> Result<f64, Failure> {
        let read = async {
            let batch = batch_of(learn.replies.fetch().await?);
            Ok((batch, learn.returns.fetch().await?))
        };
        let read = read.await;
        let learnt =
            read.and_then(|(batch, returns)| in_place(|| self.engine.learn(&batch, &returns)));
        self.unless_failed(learnt)
    }

    #[handler(message = Save)]
    fn save(&mut self, save: Save) -> Result<(), Failure> {
        let learnt = save.progress.version;
        let saved = in_place(|| self.engine.save(&self.args.checkpoint, learnt));
        self.unless_failed(saved)
    }

    #[handler(message = Restore)]
    fn restore(&mut self, restore: Restore) -> Result<Option<(Progress, RunState)>, Failure> {
        let folder = self.args.checkpoint.clone();
        let restored = in_place(|| match restore.0 {
            Saved::Newest(at_most) => {
                let at_most = at_most.map(|progress| progress.version);
                self.engine.restore(&folder, at_most)
            }
            Saved::Step(Some(step)) => self.engine.restore_step(&folder, step).map(Some),
            Saved::Step(None) => {
                self.engine.forget();
                Ok(None)
            }
        });
        let restored = self.unless_failed(restored)?;
        let progress = |version| Progress { warmup: 0, version };
        Ok(restored.map(|version| (progress(version), RunState::default())))
    }

    /// Leaves the others where this rank does not compute with them: they would wait for it.
    fn unless_failed<T>(&mut self, done: Result<T, Failure>) -> Result<T, Failure> {
        if done.is_err() {
            self.engine.leave();
        }
        done
    }
}

/// The rows that a rank tells: of ranks that computed the same replies one tells them for all.
fn told(place: RankPlace, blobs: &Blobs, rows: &[Vec<f32>]) -> Result<PerToken, Failure> {
    match place.tells() {
        true => Rows::pack(blobs, rows),
        false => Ok(Rows::default()),
    }
}

/// A rank of the reference: the policy as it was before the reinforcement.
pub struct ReferenceWorker {
    args: WorkerArgs,
    /// Made for the first question: the policy is saved after its supervised steps.
    engine: Option<compute::Reference>,
    meeting: Meeting,
    /// Until the engine is made.
    gangs: Gangs,
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
            meeting: args.meeting(),
            args,
            engine: None,
            gangs: Gangs::default(),
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Greet)]
    async fn greet(&mut self, _greet: Greet, cx: &mut Context<Self>) -> Result<Greeted, Failure> {
        self.meeting.greet(HeldModel::default(), cx).await
    }

    #[handler(message = Begin)]
    async fn begin(&mut self, begin: Begin, cx: &mut Context<Self>) -> Result<(), Failure> {
        self.gangs = self.meeting.begin(begin, cx).await?.0;
        Ok(())
    }

    #[handler(message = LogProbs)]
    async fn log_probs(&mut self, log_probs: LogProbs) -> Result<PerToken, Failure> {
        let read = log_probs.replies.fetch().await.map(batch_of);
        let rated = read.and_then(|batch| in_place(|| self.engine()?.score(&batch)));
        if rated.is_err() {
            // They would wait for this rank.
            self.engine.iter_mut().for_each(compute::Reference::leave);
            self.gangs.leave();
        }
        told(self.args.place, &self.blobs, &rated?)
    }

    fn engine(&mut self) -> Result<&mut compute::Reference, Failure> {
        Ok(match &mut self.engine {
            Some(engine) => engine,
            none => {
                let gangs = std::mem::take(&mut self.gangs);
                let WorkerArgs { spec, place, .. } = &self.args;
                none.insert(compute::Reference::of_rank(spec, *place, gangs)?)
            }
        })
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
///
/// Where ranks share the model of what was learnt, the first of these asks them, and tells what they say apart.
#[derive(Debug)]
pub struct RewardWorker {
    args: JudgeArgs,
    referee: Referee,
    model: JudgeModel,
    blobs: Blobs,
}

/// A judge's way to what was learnt.
#[derive(Debug)]
enum JudgeModel {
    /// None yet, or none at all.
    None,
    /// It has learnt, or has read what another has.
    Own(Box<compute::RewardModel>),
    /// Ranks that share it, which the first of the judges asks.
    Lent(Box<compute::RewardModel>),
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
            model: JudgeModel::None,
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Lend)]
    fn lend(&mut self, lend: Lend) -> Result<(), Failure> {
        let (learned, spec) = self.learned()?;
        let pairs = RankedPairs::over(lend.0, spec.clone(), self.blobs.clone());
        let model = pairs.engine(&learned.model);
        self.model = JudgeModel::Lent(Box::new(model));
        Ok(())
    }

    #[handler(message = Prepare)]
    fn prepare(&mut self, _prepare: Prepare) -> Result<Learnt, Failure> {
        if let JudgeModel::Lent(model) = &mut self.model {
            return in_place(|| model.prepare());
        }
        let (learned, spec) = self.learned()?;
        let mut model = compute::RewardModel::new(spec, &learned.model);
        let learnt = in_place(|| model.prepare())?;
        self.model = JudgeModel::Own(Box::new(model));
        Ok(learnt)
    }

    #[handler(message = RateRows)]
    async fn rate(&mut self, rate: RateRows) -> Result<Vec<f32>, Failure> {
        let JudgeModel::Lent(model) = &mut self.model else {
            return Err(Failure::error("no ranks share what was learnt"));
        };
        let replies = rate.0.fetch().await?;
        in_place(|| model.rate(&replies))
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
        let blend = self.args.learned.as_ref().map(|(learned, _)| learned.blend);
        if let Some(blend) = blend.filter(|_| !matches!(self.model, JudgeModel::Lent(_))) {
            if matches!(self.model, JudgeModel::None) {
                self.prepare(Prepare)?;
            }
            let JudgeModel::Own(model) = &mut self.model else {
                return Err(Failure::error("no reward was learnt"));
            };
            let rates = in_place(|| model.rate(&replies))?;
            for (verdict, rate) in verdicts.iter_mut().zip(rates) {
                verdict.reward = blend.of(verdict.reward, rate);
            }
        }
        Ok(verdicts)
    }

    fn learned(&self) -> Result<(&LearnedReward, &ComputeSpec), Failure> {
        let learned = self.args.learned.as_ref();
        let (learned, spec) =
            learned.ok_or_else(|| Failure::error("no reward is learnt").fatal())?;
        Ok((learned, spec))
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

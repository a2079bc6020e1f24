//! A rank of a model that learns or rates: it has its part of the model, and of each batch its run.

use std::path::PathBuf;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Blobs, Clock, Context, Failure, Timestamp, actor, message};
use odeon_algorithms::weights::StoredType;

use crate::engine::compute::parcels::{parcel_bytes, write_parcel};
use crate::engine::compute::{self, ComputeSpec, HeldModel, RankPlace, TensorBox, parcels};
use crate::engine::{
    EvalStats, Progress, RewardModelSpec, RunState, ScoreEngine, Signals, TrainEngine, in_place,
    unsaved,
};
use crate::packed::{Packed, PackedBatch};
use crate::ranks::gangs::Gangs;
use crate::ranks::meeting::{Begin, Greet, Greeted, Meeting};
use crate::ranks::metrics::{RankMetrics, StepSeconds};
use crate::ranks::trained::RankTrained;

/// Settings that a rank is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ModelRankArgs {
    /// The role whose model it has a part of.
    pub role: RankedRole,
    /// Its name, for people who look on.
    pub name: String,
    /// Settings of the engine that computes.
    pub spec: ComputeSpec,
    /// Its place among those that share the model.
    pub place: RankPlace,
    /// Where checkpoints are.
    pub checkpoint: PathBuf,
    /// Settings of a reward model.
    pub reward: Option<RewardModelSpec>,
}

/// A role whose model several ranks can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum RankedRole {
    /// The policy in training.
    Policy,
    /// Values, which are learnt.
    Critic,
    /// Log-probabilities of the policy before the reinforcement.
    Reference,
    /// The worth of replies, which is learnt before the reinforcement.
    Reward,
}

/// Send these boxes when weights are published, in the order in which they lie in your parcel.
#[message(name = "rank.Parcel")]
#[derive(Clone, Debug)]
pub struct RankParcel(pub Vec<TensorBox>);

/// Load the checkpoint of this step, or forget what you have learnt where there is none. Answers where the role is then.
#[message(reply = Result<Option<(Progress, Option<RunState>)>, Failure>, name = "rank.Restore")]
#[derive(Clone, Copy, Debug)]
pub struct RankRestore(pub Option<u64>);

/// Save your part.
#[message(reply = Result<(), Failure>, name = "rank.Save")]
#[derive(Clone, Debug)]
pub struct RankSave {
    /// Steps that are done.
    pub progress: Progress,
    /// State of the run, of a policy.
    pub run: Option<RunState>,
}

/// Make a supervised step, counted from 1.
#[message(reply = Result<RankTrained, Failure>, name = "rank.WarmUp")]
#[derive(Clone, Copy, Debug)]
pub struct WarmUp(pub u64);

/// Learn from a batch.
#[message(reply = Result<RankTrained, Failure>, name = "rank.Train")]
#[derive(Clone, Debug)]
pub struct Train {
    /// All of it.
    pub batch: PackedBatch,
    /// Log-probabilities of its response tokens under the reference; no rows without one.
    pub reference: Packed<Vec<f32>>,
    /// Advantages of its response tokens.
    pub advantages: Packed<Vec<f32>>,
}

/// Rate the response tokens of a batch: one number each. A rank answers those of its run, if it tells for it.
#[message(reply = Result<Option<Packed<Vec<f32>>>, Failure>, name = "rank.Rate")]
#[derive(Clone, Debug)]
pub struct RankRate(pub PackedBatch);

/// Learn these returns, one for each response token. Answers the loss.
#[message(reply = Result<f64, Failure>, name = "rank.Learn")]
#[derive(Clone, Debug)]
pub struct RankLearn {
    /// All replies.
    pub batch: PackedBatch,
    /// Returns of all replies, token by token.
    pub returns: Packed<Vec<f32>>,
}

/// Write your parcel of the weights.
#[message(reply = Result<Blob, Failure>, name = "rank.Publish")]
#[derive(Clone, Copy, Debug)]
pub struct Publish;

/// Answer held-out problems greedily with these weights, which are all of the policy.
#[message(reply = Result<EvalStats, Failure>, name = "rank.Examine")]
#[derive(Clone, Debug)]
pub struct Examine {
    /// As rollouts load them.
    pub weights: Blob,
    /// Number of problems.
    pub problems: u64,
}

/// Measure how many floating point operations per second a large product reaches now.
#[message(reply = Result<f64, Failure>, name = "rank.Reach")]
#[derive(Clone, Copy, Debug)]
pub struct Reach;

/// Rate with your part of the model in this folder from now on.
#[message(reply = Result<(), Failure>, name = "rank.Read")]
#[derive(Clone, Debug)]
pub struct RankRead(pub PathBuf);

/// Say what you have of a reward model.
#[message(reply = Result<HeldModel, Failure>, name = "rank.Held")]
#[derive(Clone, Copy, Debug)]
pub struct RankHeld;

/// Write these boxes of a reward model, in 32 bits.
#[message(reply = Result<Blob, Failure>, name = "rank.Tell")]
#[derive(Clone, Debug)]
pub struct RankTell(pub Vec<TensorBox>);

/// What a rank computes with.
enum RankEngine {
    Policy(Box<compute::Trainer>),
    /// There from [`Begin`] on.
    Critic(Option<Box<compute::Critic>>),
    /// Made for the first batch: the supervised steps before it belong to the reference too.
    Reference(Option<Box<compute::Reference>>),
    /// There from [`Begin`] on.
    Reward(Option<Box<compute::PairPart>>),
}

/// The actor that has one rank's part of a model.
pub struct ModelRank {
    args: ModelRankArgs,
    engine: RankEngine,
    meeting: Meeting,
    /// Those of a reference until that is made.
    gangs: Option<Gangs>,
    parcel: Vec<TensorBox>,
    blobs: Blobs,
    /// Of a rank of the policy, which makes the steps of the run.
    metrics: Option<RankMetrics>,
    /// When it was done with the step before.
    free_since: Timestamp,
}

impl std::fmt::Debug for ModelRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelRank")
            .field("name", &self.args.name)
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.Rank")]
impl ModelRank {
    async fn start(mut args: ModelRankArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.spec.keep_within(&args.name, cx.devices());
        // For people who look on. Nobody needs it to be found.
        if let Err(error) = cx.register(&args.name).await {
            tracing::warn!(name = args.name, %error, "a rank has no name");
        }
        let mut metrics = None;
        let engine = match args.role {
            RankedRole::Policy => {
                let RankPlace { sharing, rank } = args.place;
                let told = RankMetrics::new(rank as u32, sharing, cx.incarnation())?;
                let trainer = in_place(|| compute::Trainer::of_rank(&args.spec, args.place));
                let trainer = trainer.map_err(Failure::fatal)?;
                let model = trainer.optimizer().model();
                let whole = model.part().map(odeon_algorithms::model::ModelPart::whole);
                let config = whole.unwrap_or_else(|| model.config());
                metrics = Some(told.of_model(config, &args.spec.policy_train(), sharing)?);
                RankEngine::Policy(Box::new(trainer))
            }
            RankedRole::Critic => RankEngine::Critic(None),
            RankedRole::Reference => RankEngine::Reference(None),
            RankedRole::Reward => RankEngine::Reward(None),
        };
        Ok(Self {
            meeting: Meeting::new(args.place, args.checkpoint.clone()),
            args,
            engine,
            gangs: None,
            parcel: vec![],
            blobs: cx.blobs(),
            metrics,
            free_since: Clock::now(),
        })
    }

    #[handler(message = Greet)]
    async fn greet(&mut self, _greet: Greet, cx: &mut Context<Self>) -> Result<Greeted, Failure> {
        let held = match &self.engine {
            RankEngine::Policy(trainer) => in_place(|| parcels::held(trainer.optimizer())),
            _ => HeldModel::default(),
        };
        self.meeting.greet(held, cx).await
    }

    #[handler(message = Begin)]
    async fn begin(&mut self, begin: Begin, cx: &mut Context<Self>) -> Result<(), Failure> {
        let (gangs, savers) = self.meeting.begin(begin, cx).await?;
        let ModelRankArgs { spec, place, .. } = &self.args;
        match &mut self.engine {
            RankEngine::Policy(trainer) => trainer.meet(gangs, savers),
            RankEngine::Critic(critic) => {
                let made = compute::Critic::of_rank(spec, *place, (gangs, savers));
                *critic = Some(Box::new(made));
            }
            RankEngine::Reference(_) => self.gangs = Some(gangs),
            RankEngine::Reward(reward) => {
                let plan = self.args.reward.as_ref();
                let plan = plan.ok_or_else(|| nothing_to("learn").fatal())?;
                let made = compute::PairPart::of_rank((spec, plan), *place, gangs);
                *reward = Some(Box::new(made));
            }
        }
        Ok(())
    }

    #[handler(message = RankParcel)]
    fn parcel(&mut self, parcel: RankParcel) {
        self.parcel = parcel.0;
    }

    #[handler(message = RankRestore)]
    fn restore(
        &mut self,
        restore: RankRestore,
    ) -> Result<Option<(Progress, Option<RunState>)>, Failure> {
        let folder = self.args.checkpoint.clone();
        let restored = in_place(|| match (&mut self.engine, restore.0) {
            // It has not learnt anything yet: all ranks begin together.
            (RankEngine::Policy(_), None) => Ok(None),
            (RankEngine::Policy(trainer), Some(step)) => {
                let (progress, run) = trainer.restore_step(&folder, step)?;
                Ok(Some((progress, Some(run))))
            }
            (RankEngine::Critic(Some(critic)), None) => {
                critic.forget();
                Ok(None)
            }
            (RankEngine::Critic(Some(critic)), Some(step)) => {
                let version = critic.restore_step(&folder, step)?;
                Ok(Some((Progress { warmup: 0, version }, None)))
            }
            _ => Err(nothing_to("load")),
        });
        self.unless_failed(restored)
    }

    #[handler(message = RankSave)]
    fn save(&mut self, save: RankSave) -> Result<(), Failure> {
        let folder = self.args.checkpoint.clone();
        let saved = in_place(|| match (&mut self.engine, &save.run) {
            (RankEngine::Policy(trainer), Some(run)) => trainer.save(&folder, &save.progress, run),
            (RankEngine::Critic(Some(critic)), _) => critic.save(&folder, save.progress.version),
            _ => Err(nothing_to("save")),
        });
        self.unless_failed(saved.map_err(unsaved))
    }

    #[handler(message = WarmUp)]
    fn warm_up(&mut self, warm_up: WarmUp) -> Result<RankTrained, Failure> {
        let tells = self.args.place.tells();
        let begun = Clock::now();
        let trained = in_place(|| {
            let stats = self.policy()?.warm_up(warm_up.0)?;
            let learnt = stats.tokens;
            Ok(RankTrained {
                stats,
                learnt,
                tells,
            })
        });
        self.tell(begun, warm_up.0);
        self.unless_failed(trained)
    }

    #[handler(message = Train)]
    async fn train(&mut self, train: Train) -> Result<RankTrained, Failure> {
        let signals = async {
            Ok::<_, Failure>(Signals {
                reference: train.reference.unpack().await?,
                advantages: train.advantages.unpack().await?,
            })
        };
        let read = async { Ok((train.batch.unpack().await?, signals.await?)) };
        let tells = self.args.place.tells();
        let trained = match read.await {
            Ok((batch, signals)) => {
                let begun = Clock::now();
                let trained = in_place(|| {
                    let (stats, learnt) = self.policy()?.train_part(&batch, &signals)?;
                    Ok(RankTrained {
                        stats,
                        learnt,
                        tells,
                    })
                });
                self.tell(begun, self.args.spec.warmup_steps + batch.step);
                trained
            }
            Err(failure) => Err(failure),
        };
        self.unless_failed(trained)
    }

    #[handler(message = RankRate)]
    async fn rate(&mut self, rate: RankRate) -> Result<Option<Packed<Vec<f32>>>, Failure> {
        let scores = match rate.0.unpack().await {
            Ok(batch) => in_place(|| self.scorer()?.score(&batch)),
            Err(failure) => Err(failure),
        };
        let scores = self.unless_failed(scores)?;
        let tells = self.args.place.tells();
        let told = tells.then(|| Packed::pack(&self.blobs, &scores));
        told.transpose()
    }

    #[handler(message = RankLearn)]
    async fn learn(&mut self, learn: RankLearn) -> Result<f64, Failure> {
        let read = async { Ok((learn.batch.unpack().await?, learn.returns.unpack().await?)) };
        let learnt = match read.await {
            Ok((batch, returns)) => in_place(|| self.scorer()?.learn(&batch, &returns)),
            Err(failure) => Err(failure),
        };
        self.unless_failed(learnt)
    }

    #[handler(message = Publish)]
    fn publish(&mut self, _publish: Publish) -> Result<Blob, Failure> {
        let stored = self.args.spec.weights;
        let bytes = parcel_bytes(&self.parcel, stored);
        let mut writer = self.blobs.writer(bytes).map_err(Failure::error)?;
        let RankEngine::Policy(trainer) = &self.engine else {
            return Err(nothing_to("publish"));
        };
        in_place(|| write_parcel(trainer.optimizer(), &self.parcel, stored, &mut writer))?;
        Ok(writer.seal())
    }

    #[handler(message = RankRead)]
    fn read(&mut self, read: RankRead) -> Result<(), Failure> {
        let done = in_place(|| self.reward()?.read(&read.0));
        self.unless_failed(done)
    }

    #[handler(message = RankHeld)]
    fn held(&mut self, _held: RankHeld) -> Result<HeldModel, Failure> {
        in_place(|| Ok(parcels::held(self.reward()?.optimizer()?)))
    }

    #[handler(message = RankTell)]
    fn tell_boxes(&mut self, tell: RankTell) -> Result<Blob, Failure> {
        let (boxes, stored) = (tell.0, StoredType::F32);
        let bytes = parcel_bytes(&boxes, stored);
        let mut writer = self.blobs.writer(bytes).map_err(Failure::error)?;
        let reward = self.reward()?;
        in_place(|| write_parcel(reward.optimizer()?, &boxes, stored, &mut writer))?;
        Ok(writer.seal())
    }

    #[handler(message = Examine)]
    async fn examine(&mut self, examine: Examine) -> Result<EvalStats, Failure> {
        let weights = examine.weights.open().await.map_err(Failure::error)?;
        let problems = usize::try_from(examine.problems).map_err(Failure::error)?;
        in_place(|| self.policy()?.examine(&weights, problems))
    }

    #[handler(message = Reach)]
    fn reach(&mut self, _reach: Reach) -> Result<f64, Failure> {
        let reachable = in_place(|| self.policy().map(|policy| policy.reachable_flops()))?;
        Ok(reachable.unwrap_or_default())
    }
}

impl ModelRank {
    /// Tells the seconds of a step of the policy, counted from 1, whose batch was there at this time.
    fn tell(&mut self, begun: Timestamp, step: u64) {
        let (RankEngine::Policy(trainer), Some(metrics)) = (&mut self.engine, &mut self.metrics)
        else {
            return;
        };
        let seconds = StepSeconds {
            wait: begun.since(self.free_since).as_secs_f64(),
            ..trainer.take_seconds()
        };
        let activations = trainer.optimizer().held_activations().device;
        metrics.tell(step.saturating_sub(1), seconds, activations);
        self.free_since = Clock::now();
    }

    fn policy(&mut self) -> Result<&mut compute::Trainer, Failure> {
        match &mut self.engine {
            RankEngine::Policy(trainer) => Ok(trainer),
            _ => Err(nothing_to("train")),
        }
    }

    fn scorer(&mut self) -> Result<&mut dyn ScoreEngine, Failure> {
        let ModelRankArgs { spec, place, .. } = &self.args;
        match &mut self.engine {
            RankEngine::Critic(Some(critic)) => Ok(critic.as_mut()),
            RankEngine::Reference(reference) => {
                let reference = match reference {
                    Some(reference) => reference,
                    none => {
                        let gangs = self.gangs.take().unwrap_or_default();
                        let made = compute::Reference::of_rank(spec, *place, gangs);
                        none.insert(Box::new(made.map_err(Failure::fatal)?))
                    }
                };
                Ok(reference.as_mut())
            }
            RankEngine::Reward(Some(reward)) => Ok(reward.as_mut()),
            _ => Err(nothing_to("rate")),
        }
    }

    fn reward(&mut self) -> Result<&mut compute::PairPart, Failure> {
        match &mut self.engine {
            RankEngine::Reward(Some(reward)) => Ok(reward),
            _ => Err(nothing_to("read")),
        }
    }

    /// Leaves the others where this rank does not compute with them: they would wait for it.
    fn unless_failed<T>(&mut self, done: Result<T, Failure>) -> Result<T, Failure> {
        if done.is_err() {
            match &mut self.engine {
                RankEngine::Policy(trainer) => trainer.leave(),
                RankEngine::Critic(critic) => critic.iter_mut().for_each(|it| it.leave()),
                RankEngine::Reference(reference) => {
                    reference.iter_mut().for_each(|it| it.leave());
                    self.gangs.iter_mut().for_each(Gangs::leave);
                }
                RankEngine::Reward(reward) => reward.iter_mut().for_each(|it| it.leave()),
            }
        }
        done
    }
}

fn nothing_to(act: &str) -> Failure {
    Failure::error(format!("a rank of this role has nothing to {act}"))
}

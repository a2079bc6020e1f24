//! The trainer: the policy actor. It takes a batch when one is complete, trains, publishes and goes
//! on; it waits for no rollout.
//!
//! It drives itself: each turn ends with a message to itself or with a wait for the store's word. A
//! trainer that died continues from its last checkpoint, and the store gives it the same batches
//! again, so nothing is lost or counted twice.
//!
//! A store that is lost has forgotten where the trainer is: the next life of it is told, with the
//! prompts that were used, and asked again for the batch that the trainer waits for.
//!
//! A trainer that is asked to halt saves first, so that a run that is stopped in order loses nothing.

use std::path::PathBuf;

use odeon::serde::{Deserialize, Serialize};
use odeon::{
    AskError, Blobs, Context, Down, Failure, Handler, Incarnation, Message, Recipient, Ref,
    Restart, Timestamp, actor, message,
};
use odeon_algorithms::objective::{Baseline, Gae, Lagrangian, Overlong, whiten};

use super::advantages;
use super::critic::{Critic, Learn, SaveCritic, Values};
use super::ranks::rank::ModelRank;
use super::ranks::{RankedTrainer, RanksPlan};
use super::reference::{LogProbs, Reference};
use super::relay::Edition;
use super::report::{PATIENCE, Reachable, Report, Stages, StepReport, told};
use super::source::{Put, Source, SourceArgs};
use super::store::lives::{Lives, follow};
use super::store::{Durable, Ready, Resume, SampleStore, Take, Taken, Trained};
use crate::engine::{
    EngineSpec, Progress, RunState, Signals, StepStats, TrainEngine, in_place, rest, unsaved,
};
use crate::packed::{Packed, PackedBatch};
use crate::trajectory::{Batch, Used};

/// Settings that a [`Trainer`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct TrainerArgs {
    /// The engine that trains.
    pub engine: EngineSpec,
    /// The ranks that share the model, where there are several.
    pub ranks: Option<RanksPlan>,
    /// Where batches come from.
    pub store: Ref<SampleStore>,
    /// Settings of the actor that hands weights on.
    pub source: SourceArgs,
    /// Expects reward, token by token.
    pub critic: Option<Ref<Critic>>,
    /// Expects cost, where there is a price on it.
    pub cost_critic: Option<Ref<Critic>>,
    /// Rates tokens under the policy before the reinforcement, for a divergence penalty.
    pub reference: Option<Ref<Reference>>,
    /// The actor that hears the reports.
    pub reports: Recipient<Report>,
    /// Steps, checkpoints and evaluations.
    pub plan: TrainPlan,
}

/// The course of a training: its steps, checkpoints and evaluations.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct TrainPlan {
    /// Supervised steps before the reinforcement.
    pub warmup: u64,
    /// Steps of the reinforcement, with those of the critic alone.
    pub steps: u64,
    /// Of these, the first ones, in which the critic learns and the policy does not.
    pub value_steps: u64,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// Where checkpoints go.
    pub checkpoint: PathBuf,
    /// Steps between two versions of the weights that rollouts are given. With more than one, steps
    /// are parts of what these weights make, and each is trained as soon as it is there. No more than
    /// the staleness that a trajectory may have, and one.
    pub publish_every: u64,
    /// Held-out problems of an evaluation.
    pub eval_problems: usize,
    /// Steps between evaluations; 0 only before and after the reinforcement.
    pub eval_every: u64,
    /// The baseline that rewards are compared with; a critic, if there is one.
    pub baseline: Baseline,
    /// The cost of long replies.
    pub overlong: Option<Overlong>,
    /// The first price of harm, and its rule of change.
    pub price: Option<Lagrangian>,
}

/// Go on.
#[message(name = "trainer.Turn")]
#[derive(Debug)]
pub struct Turn;

/// Save where you are and do no more: the run is stopped in order. Answers where that is.
#[message(reply = Result<Progress, Failure>, name = "trainer.Halt")]
#[derive(Debug)]
pub struct Halt;

/// Supervised steps between two looks into the mailbox.
const WARMUP_STEPS_PER_TURN: u64 = 10;

/// The most checkpoints among the supervised steps, which may be many and quick.
const WARMUP_CHECKPOINTS_MAX: u64 = 20;

/// Losses of a critic or reference during one question, after which it is the trainer that fails.
const LOSSES_MAX: u32 = 3;

/// The actor that trains the policy, publishes its weights and saves its checkpoints.
pub struct Trainer {
    engine: Box<dyn TrainEngine>,
    /// Those that share the model, where there are several.
    ranks: Vec<Ref<ModelRank>>,
    args: TrainerArgs,
    progress: Progress,
    /// State of the run that goes into a checkpoint beside the engine's.
    run: RunState,
    /// Where its newest checkpoint is.
    saved: Option<Progress>,
    /// Set when it was asked to do no more.
    halted: bool,
    evaluated: Option<u64>,
    /// Its end of the chain of relays.
    source: Ref<Source>,
    /// Set when this life has published.
    published: bool,
    incarnation: Incarnation,
    /// The step after which this life began.
    began_at: u64,
    /// The life of the store that knows where it is.
    store: Incarnation,
    /// Set when the store will say when there is a batch.
    awaits: bool,
    /// Set when a [`Turn`] is in the mailbox.
    turning: bool,
    /// When it was done with the step before, in this life.
    free_since: Option<Timestamp>,
    reachable: Reachable,
    blobs: Blobs,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.Trainer")]
impl Trainer {
    async fn start(mut args: TrainerArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.engine = args.engine.within("trainer", cx.devices());
        let checkpoint = &args.plan.checkpoint;
        let mut ranks = vec![];
        let mut engine: Box<dyn TrainEngine> = match &args.ranks {
            Some(plan) => {
                let incarnation = cx.incarnation();
                let waiting = |why: &str| {
                    let why = why.to_owned();
                    let waiting = Report::Waiting { incarnation, why };
                    let reports = args.reports;
                    tokio::spawn(async move { report_to(reports, waiting).await });
                };
                let engine = (plan, &args.engine);
                let ranked = RankedTrainer::start(engine, checkpoint, waiting, cx).await?;
                ranks = ranked.members();
                Box::new(ranked)
            }
            None => in_place(|| args.engine.trainer()).map_err(Failure::fatal)?,
        };
        ranks.iter().for_each(|rank| cx.watch(*rank));
        let restored = in_place(|| engine.restore(checkpoint));
        let restored = restored.map_err(|failure| match &args.ranks {
            // A rank may have been lost meanwhile.
            Some(_) => failure,
            None => failure.fatal(),
        })?;
        // Where it is lost the weights are, which only another life brings back.
        let source = cx.spawn::<Source>(args.source.clone());
        let source = source.restart(Restart::Temporary).await;
        let source = source.map_err(Failure::error)?;
        cx.watch(source);
        let fresh = restored.is_none();
        let (progress, run) = restored.unwrap_or_else(|| (Progress::default(), args.plan.begin()));
        let blobs = cx.blobs();
        let mut trainer = Self {
            engine,
            ranks,
            args,
            progress,
            run,
            saved: (!fresh).then_some(progress),
            halted: false,
            evaluated: None,
            source,
            published: false,
            incarnation: cx.incarnation(),
            began_at: progress.version,
            store: 0,
            awaits: false,
            turning: false,
            free_since: None,
            reachable: Reachable::default(),
            blobs,
        };
        trainer.say_where_it_is().await?;
        follow(trainer.args.store, cx);
        // A life that begins anew is news as well.
        if !fresh || cx.incarnation() > 1 {
            let resumed = Report::Resumed {
                incarnation: cx.incarnation(),
                progress,
            };
            trainer.report(resumed).await;
        }
        // The mailbox of a new life is served after `start`: this begins the work.
        trainer.turn_later(cx);
        Ok(trainer)
    }

    #[handler(message = Turn)]
    async fn turn(&mut self, _turn: Turn, cx: &mut Context<Self>) {
        self.turning = false;
        match self.advance(cx.me()).await {
            Ok(true) => self.turn_later(cx),
            Ok(false) => {}
            Err(failure) => cx.fail(failure),
        }
    }

    /// The store has the batch that this trainer asked for.
    #[handler(message = Ready)]
    fn ready(&mut self, ready: Ready, cx: &mut Context<Self>) {
        if self.awaits && ready.0 == self.progress.version + 1 {
            self.turn_later(cx);
        }
    }

    /// A life of the store that knows nothing of this trainer would let it wait for ever.
    #[handler(message = Lives)]
    async fn store_lives(&mut self, lives: Lives, cx: &mut Context<Self>) {
        if lives.0 == self.store {
            return;
        }
        match self.say_where_it_is().await {
            Ok(()) if self.awaits => self.turn_later(cx),
            Ok(()) => {}
            Err(failure) => cx.fail(failure),
        }
    }

    #[handler(message = Halt)]
    async fn halt(&mut self, _halt: Halt) -> Result<Progress, Failure> {
        self.halted = true;
        if self.saved != Some(self.progress) {
            self.save().await?;
        }
        self.report(Report::Halted(self.progress)).await;
        Ok(self.progress)
    }

    /// Its end of the chain is lost, or a rank.
    #[handler(message = Down)]
    fn down(&mut self, down: Down, cx: &mut Context<Self>) {
        if self.ranks.iter().any(|rank| rank.id() == down.id) {
            cx.fail(Failure::error(format!(
                "a rank of the policy is lost: {down}"
            )));
        }
        // Word of the end of an earlier life's may come to this one.
        if down.id == self.source.id() {
            cx.fail(Failure::error(format!(
                "nobody hands the weights on: {down}"
            )));
        }
    }

    /// Takes one turn. Returns true if another can follow at once.
    async fn advance(&mut self, me: Ref<Self>) -> Result<bool, Failure> {
        if self.halted {
            return Ok(false);
        }
        if self.progress.warmup < self.args.plan.warmup {
            self.warm_up().await?;
            return Ok(true);
        }
        let version = self.progress.version;
        if !self.published {
            self.evaluate_if_due().await?;
            self.publish().await?;
        }
        if version >= self.args.plan.steps {
            self.report(Report::Finished(self.progress)).await;
            return Ok(false);
        }
        let take = || Take {
            step: version + 1,
            consumer: me.narrow(),
        };
        loop {
            let taken = insist(self.args.store, take).await??;
            self.awaits = matches!(taken, Taken::Later);
            match taken {
                Taken::Batch(packed) => {
                    self.train(&packed).await?;
                    return Ok(true);
                }
                Taken::Later => return Ok(false),
                Taken::NoBook => self.say_where_it_is().await?,
            }
        }
    }

    /// Tells the store after which step it goes on, and which prompts were used.
    async fn say_where_it_is(&mut self) -> Result<(), Failure> {
        let resume = Resume {
            life: self.incarnation,
            began_at: self.began_at,
            version: self.progress.version,
            used: self.run.used.clone(),
        };
        self.store = insist(self.args.store, || resume.clone()).await?;
        Ok(())
    }

    fn turn_later(&mut self, cx: &mut Context<Self>) {
        if self.turning {
            return;
        }
        // Its own mailbox has room: it only ever holds one turn.
        match cx.me().tell(Turn).now() {
            Ok(()) => self.turning = true,
            Err(error) => cx.fail(Failure::error(format!("cannot go on: {error}"))),
        }
    }

    async fn warm_up(&mut self) -> Result<(), Failure> {
        let safe = self.args.plan.next_warmup_checkpoint(self.progress.warmup);
        let until = (self.progress.warmup + WARMUP_STEPS_PER_TURN).min(safe);
        let mut last = None;
        while self.progress.warmup < until {
            let step = self.progress.warmup + 1;
            last = Some(in_place(|| self.engine.warm_up(step))?);
            self.progress.warmup = step;
        }
        if let Some(stats) = last {
            told("rl.supervised_loss", until, stats.loss, "nats");
            self.report(Report::Warmup { step: until, stats }).await;
        }
        if until == safe {
            self.save().await?;
        }
        Ok(())
    }

    async fn train(&mut self, packed: &PackedBatch) -> Result<(), Failure> {
        let begun = odeon::Clock::now();
        let mut stages = Stages::new(self.free_since, begun);
        let batch = packed.unpack().await?;
        let (signals, critic_loss) = self.signals(packed, &batch).await?;
        stages.end("signals");
        let stats = if self.progress.version < self.args.plan.value_steps {
            StepStats::default()
        } else {
            let stats = in_place(|| self.engine.train(&batch, &signals))?;
            rest(self.engine.takes()).await;
            stats
        };
        stages.end("update");
        self.progress.version += 1;
        self.run.used = batch.used.clone();
        self.move_price(&batch)?;
        let version = self.progress.version;
        if self.args.plan.publishes(version) {
            self.publish().await?;
        }
        let publish_seconds = stages.end("publish");
        // Between two steps, so that it is in the time of none.
        in_place(|| self.reachable.look(|| self.engine.reachable_flops()));
        stages.tell(version, &batch, stats.flops, &mut self.reachable);
        self.free_since = Some(odeon::Clock::now());
        self.args
            .store
            .tell(Trained {
                life: self.incarnation,
                version,
            })
            .await
            .map_err(Failure::error)?;
        let step = StepReport {
            publish_seconds,
            ..StepReport::new(version, &batch, stats, critic_loss, begun)
        };
        step.tell(&batch, self.args.plan.steps);
        self.report(Report::Step(step)).await;
        if version.is_multiple_of(self.args.plan.checkpoint_every)
            || version == self.args.plan.steps
        {
            self.save().await?;
        }
        self.evaluate_if_due().await
    }

    /// Signals of other actors on a batch: advantages, and the reference's log-probabilities.
    async fn signals(
        &self,
        packed: &PackedBatch,
        batch: &Batch,
    ) -> Result<(Signals, Option<f64>), Failure> {
        let reference = async {
            match self.args.reference {
                Some(reference) => scores(reference, || LogProbs(packed.clone())).await,
                None => Ok(vec![]),
            }
        };
        let plan = &self.args.plan;
        let rewards = advantages::rewards(batch, plan.overlong);
        let (Baseline::Critic(gae), Some(critic)) = (plan.baseline, self.args.critic) else {
            let reference = reference.await?;
            let greedy = advantages::greedy_rewards(batch, plan.overlong);
            let advantages =
                advantages::without_critic(plan.baseline, batch, &rewards, &greedy, &reference)?;
            let signals = Signals {
                reference,
                advantages,
            };
            return Ok((signals, None));
        };
        let costs: Vec<f32> = batch.trajectories.iter().map(|it| it.cost).collect();
        let priced = async {
            match (self.price(), self.args.cost_critic) {
                (Some(price), Some(critic)) => {
                    let (advantages, _) = self.learn(critic, packed, gae, &costs).await?;
                    Ok(Some((price, advantages)))
                }
                _ => Ok(None),
            }
        };
        let (reference, (reward, loss), priced) =
            tokio::try_join!(reference, self.learn(critic, packed, gae, &rewards), priced)?;
        let mut advantages = match priced {
            Some((price, cost)) => advantages::priced(price, &reward, &cost)?,
            None => reward,
        };
        whiten(&mut advantages);
        let signals = Signals {
            reference,
            advantages,
        };
        Ok((signals, Some(loss)))
    }

    /// Advantages over what a critic expected of these replies, of which it then learns; and its loss.
    async fn learn(
        &self,
        critic: Ref<Critic>,
        packed: &PackedBatch,
        gae: Gae,
        rewards: &[f32],
    ) -> Result<(Vec<Vec<f32>>, f64), Failure> {
        let values = scores(critic, || Values(packed.clone())).await?;
        let (advantages, returns) = advantages::with_critic(gae, rewards, &values)?;
        let returns = Packed::pack(&self.blobs, &returns)?;
        let learn = || Learn {
            batch: packed.clone(),
            returns: returns.clone(),
        };
        let loss = insist(critic, learn).await??;
        Ok((advantages, loss))
    }

    /// The present price of harm.
    fn price(&self) -> Option<Lagrangian> {
        let begun = self.args.plan.price?;
        Some(Lagrangian {
            multiplier: self.run.price.unwrap_or(begun.multiplier),
            ..begun
        })
    }

    /// The price goes up while a batch costs more than it may, and down while it costs less.
    fn move_price(&mut self, batch: &Batch) -> Result<(), Failure> {
        if let Some(mut price) = self.price() {
            let all = batch.trajectories.iter().map(|it| it.cost);
            let mean = all.sum::<f32>() / batch.trajectories.len().max(1) as f32;
            price.update(mean).map_err(Failure::error)?;
            let version = self.progress.version;
            told("rl.cost", version, f64::from(mean), "");
            told("rl.price", version, f64::from(price.multiplier), "");
            self.run.price = Some(price.multiplier);
        }
        Ok(())
    }

    /// Puts the weights where they are handed on, and does not wait for anybody.
    async fn publish(&mut self) -> Result<(), Failure> {
        let mut writer = self
            .blobs
            .writer(self.engine.weight_bytes())
            .map_err(Failure::error)?;
        in_place(|| self.engine.write_weights(&mut writer))?;
        rest(self.engine.takes()).await;
        let put = Put {
            edition: Edition::new(self.incarnation, self.progress.version),
            blob: writer.seal(),
        };
        self.source.tell(put).await.map_err(Failure::error)?;
        self.published = true;
        Ok(())
    }

    async fn save(&mut self) -> Result<(), Failure> {
        let (folder, progress) = (self.args.plan.checkpoint.clone(), self.progress);
        // The critics first: they can go back to their checkpoint before, and cannot make up for steps.
        for critic in [self.args.critic, self.args.cost_critic]
            .into_iter()
            .flatten()
        {
            insist(critic, || SaveCritic(progress.version)).await??;
        }
        let saved = in_place(|| self.engine.save(&folder, &progress, &self.run));
        // What a rank cannot save is fatal already, and the loss of one is not.
        saved.map_err(|failure| match self.ranks.is_empty() {
            true => unsaved(failure),
            false => failure,
        })?;
        self.saved = Some(progress);
        self.args
            .store
            .tell(Durable {
                life: self.incarnation,
                version: progress.version,
            })
            .await
            .map_err(Failure::error)?;
        self.report(Report::Saved(progress)).await;
        Ok(())
    }

    async fn evaluate_if_due(&mut self) -> Result<(), Failure> {
        let version = self.progress.version;
        let every = self.args.plan.eval_every;
        let due = version == 0
            || version == self.args.plan.steps
            || (every > 0 && version.is_multiple_of(every));
        if !due || self.evaluated == Some(version) {
            return Ok(());
        }
        let problems = self.args.plan.eval_problems;
        let stats = in_place(|| self.engine.evaluate(problems))?;
        self.evaluated = Some(version);
        told("rl.held_out_accuracy", version, stats.accuracy(), "");
        self.report(Report::Evaluated { version, stats }).await;
        Ok(())
    }

    async fn report(&self, report: Report) {
        report_to(self.args.reports, report).await;
    }
}

/// Tells a report. A run goes on when nobody listens.
async fn report_to(reports: Recipient<Report>, report: Report) {
    if let Err(error) = reports.tell(report).await {
        tracing::warn!(%error, "nobody hears the reports");
    }
}

impl TrainPlan {
    /// The state that a run begins with.
    fn begin(&self) -> RunState {
        RunState {
            used: Used::default(),
            price: self.price.map(|price| price.multiplier),
        }
    }

    /// Returns true when rollouts are given the weights after this step.
    const fn publishes(&self, version: u64) -> bool {
        version.is_multiple_of(self.publish_every) || version == self.steps
    }

    /// The next supervised step with a checkpoint after `done` of them: a multiple of
    /// `checkpoint_every`, or of what makes [`WARMUP_CHECKPOINTS_MAX`] of them, and the last.
    pub(crate) fn next_warmup_checkpoint(&self, done: u64) -> u64 {
        let few = self.warmup.div_ceil(WARMUP_CHECKPOINTS_MAX);
        let every = self.checkpoint_every.max(few);
        ((done / every + 1) * every).min(self.warmup)
    }
}

/// Asks an actor that may be lost on the way and comes back. What is asked must be harmless when it
/// is done twice.
pub(super) async fn insist<A, M>(
    actor: Ref<A>,
    message: impl Fn() -> M,
) -> Result<M::Reply, Failure>
where
    A: Handler<M>,
    M: Message,
{
    let mut losses = 0;
    loop {
        match actor.ask(message()).timeout(PATIENCE).await {
            Ok(reply) => return Ok(reply),
            Err(error @ (AskError::Died(_) | AskError::LinkLost { .. })) if losses < LOSSES_MAX => {
                losses += 1;
                tracing::warn!(message = M::NAME, %error, "asking again");
            }
            Err(error) => return Err(Failure::error(error)),
        }
    }
}

/// Asks for a number for each token. They lie in the memory of who is asked, which may be lost before
/// they are read.
async fn scores<A, M>(actor: Ref<A>, message: impl Fn() -> M) -> Result<Vec<Vec<f32>>, Failure>
where
    A: Handler<M>,
    M: Message<Reply = Result<Packed<Vec<f32>>, Failure>>,
{
    let mut losses = 0;
    loop {
        match insist(actor, &message).await??.unpack().await {
            Err(failure) if losses < LOSSES_MAX => {
                losses += 1;
                tracing::warn!(message = M::NAME, %failure, "asking again");
            }
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 35.
    #[test]
    fn checkpoints_among_the_supervised_steps_are_few_and_the_last_step_has_one() {
        for (warmup, checkpoint_every, few) in [
            (20_000, 1, 20),
            (15, 1, 15),
            (80, 10, 8),
            (85, 10, 9),
            (1, 50, 1),
        ] {
            let plan = TrainPlan {
                warmup,
                steps: 1,
                value_steps: 0,
                checkpoint_every,
                checkpoint: PathBuf::new(),
                publish_every: 1,
                eval_problems: 1,
                eval_every: 0,
                baseline: Baseline::LeaveOneOut,
                overlong: None,
                price: None,
            };
            let next = |done: &u64| {
                let next = plan.next_warmup_checkpoint(*done);
                (next > *done).then_some(next)
            };
            let all: Vec<u64> = std::iter::successors(Some(0), next).skip(1).collect();
            assert_eq!(all.last(), Some(&warmup));
            assert_eq!(all.len(), few, "{all:?}");
            // From wherever a run was stopped, the next one is one of these.
            for done in 0..warmup {
                assert!(all.contains(&plan.next_warmup_checkpoint(done)));
            }
        }
    }
}

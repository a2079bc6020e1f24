//! A rank of a pretraining run: it fetches its part of each step, adds up gradients with the others,
//! and updates weights that all of them have, or its part of them, which it gives to the others then.
//!
//! A standby is a rank that has no number yet: its process runs, and it has the model as some rank has it.

mod results;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use odeon::serde::{Deserialize, Serialize};
use odeon::{ActorTask, Blob, Blobs, Clock, Context, Failure, Later, Ref, Shape, actor, message};
use odeon_algorithms::model::GradientFault;
use odeon_algorithms::model::{Dropout, ModelConfig};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{GradientGuard, Sharing, TrainConfig};
use odeon_algorithms::weights::ModelFields;
use odeon_checkpoint::{
    Checkpointer, Keep, Load, LoadError, Loaded, Local, Options, Peers as Copies, Retention, Saving,
};
use odeon_data::client::{self, DataClient, Next, Serve, Supply};
use odeon_data::constructor::{DataConstructor, Delivery};
use odeon_data::pack::Packed;
use odeon_gpu::{Device, Precision};
use tokio::sync::oneshot;

use super::checkpoint;
use super::meshes::of_ranks;
use super::work::{Texts, Work};
use crate::engine::compute::models::Optimizer;
use crate::engine::compute::state::{self, ACTOR, Trainee};
use crate::engine::compute::step::{Learning, step};
use crate::engine::compute::{ComputePlace, ModelSource, RankPlace, share_of};
use crate::engine::in_place;
use crate::ranks::asking::PATIENCE;
use crate::ranks::courier::{Courier, Meet};
use crate::ranks::gangs::Gangs;
use crate::ranks::metrics::{RankMetrics, StepSeconds};
use crate::ranks::{Mail, Mark, RankSeats};

pub use results::{FirstTry, OwnGradient, SourcePart, Trained};

/// Settings that a rank is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RankArgs {
    /// Which, from 0; of a standby the rank whose part it has until it takes a number.
    pub rank: u32,
    /// Its number among standbys, where it is one.
    pub standby: Option<u32>,
    /// The way in which the ranks train the model together.
    pub sharing: Sharing,
    /// The first weights.
    pub source: ModelSource,
    /// The seed of new weights, and of dropout.
    pub seed: u64,
    /// The device that computes.
    pub device: Device,
    /// Compute threads, on the processor.
    pub threads: usize,
    /// Set for sums of forward passes in one order, on the processor.
    pub deterministic: bool,
    /// To what factors of products are rounded, those of attention among them.
    pub products: Precision,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// The tokenizer of the text, which goes into checkpoints.
    pub tokenizer: Tokenizer,
    /// The optimiser.
    pub train: TrainConfig,
    /// Share of numbers that are dropped in passes that learn.
    pub dropout: f32,
    /// Faults that ranks commit on purpose.
    pub drills: Vec<Drill>,
    /// Where checkpoints are.
    pub checkpoint: PathBuf,
    /// Number of checkpoints that are kept.
    pub keep: usize,
}

impl RankArgs {
    const fn place(&self) -> RankPlace {
        RankPlace {
            sharing: self.sharing,
            rank: self.rank as usize,
        }
    }

    /// Its name in sentences.
    fn spoken(&self) -> String {
        self.name().replace('-', " ")
    }

    /// Its name among the actors of the run.
    pub(super) fn name(&self) -> String {
        match self.standby {
            Some(standby) => format!("standby-{standby}"),
            None => format!("rank-{}", self.rank),
        }
    }
}

/// A fault that a rank commits on purpose, to try what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde", deny_unknown_fields)]
pub struct Drill {
    /// The step, from 1.
    pub step: u64,
    /// The rank.
    pub rank: u32,
    /// The fault.
    pub fault: GradientFault,
}

fn checkpointed(
    step: u64,
    keep: Keep,
    local: Local,
    blobs: Vec<(String, Bytes)>,
) -> odeon_checkpoint::Save {
    odeon_checkpoint::Save {
        step,
        keep,
        local,
        blobs,
        ..odeon_checkpoint::Save::default()
    }
}

/// Stand by: you see the checkpoints of the run, by a file that the driver has put beside them.
#[message(reply = Result<(), Failure>, name = "pretrain.StandBy")]
#[derive(Clone, Debug)]
pub struct StandBy {
    /// The name of the file.
    pub mark: String,
}

/// Be no standby any more, but this rank.
#[message(reply = Result<(), Failure>, name = "pretrain.TakeRank")]
#[derive(Clone, Copy, Debug)]
pub struct TakeRank {
    /// Which, from 0.
    pub rank: u32,
    /// Number of all ranks.
    pub ranks: u32,
}

/// Take your seats: from now on the ranks train together.
#[message(reply = Result<Joined, Failure>, name = "pretrain.Join")]
#[derive(Clone, Debug, Default)]
pub struct Join(pub RankSeats);

/// Actors beside a rank, in its process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Joined {
    /// Where others leave letters.
    pub courier: Ref<Courier>,
    /// The client that brings it its batches.
    pub client: Ref<DataClient>,
}

/// Have batches from here, and load the newest checkpoint: out of the memory of ranks, or else out of
/// the storage. Where there is none the ranks are as they were at first.
#[message(reply = Result<Restored, Failure>, name = "pretrain.Restore")]
#[derive(Clone, Debug)]
pub struct Restore {
    /// Which life of the ranks begins.
    pub life: u32,
    /// Of all ranks, in their order.
    pub joined: Vec<Joined>,
    /// From where they have their batches.
    pub supply: Supply,
    /// The name of a file that the driver has put beside the checkpoints.
    pub mark: String,
}

/// See [`Restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Restored {
    /// Steps that are done.
    pub steps: u64,
    /// Where they were kept.
    pub from: Origin,
}

/// Where ranks go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde", rename_all = "snake_case")]
pub enum Origin {
    /// There was nothing yet.
    Start,
    /// The memory of ranks that are left.
    Memory,
    /// The storage.
    Storage,
}

/// Are you there? Answered when what the rank does is over.
#[message(name = "pretrain.Present")]
#[derive(Clone, Debug)]
pub struct Present;

/// Take a snapshot, which becomes a checkpoint while the ranks go on.
#[message(reply = Result<(), Failure>, name = "pretrain.Save")]
#[derive(Clone, Debug)]
pub struct Save {
    /// Steps that are done.
    pub steps: u64,
    /// The planner's state before the next step, as JSON: it names all files of the data.
    pub data: Blob,
    /// Set when it goes to the storage, and not to the memory of ranks alone.
    pub durable: bool,
}

/// Wait for the checkpoint that is under way.
#[message(reply = Result<Settled, Failure>, name = "pretrain.Settle")]
#[derive(Clone, Debug)]
pub struct Settle;

/// See [`Settle`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Settled {
    /// Bytes that this rank wrote.
    pub bytes: u64,
    /// Seconds that it spent in each stage.
    pub stages: Vec<(String, f64)>,
}

/// Train on a step.
#[message(reply = Result<Trained, Failure>, name = "pretrain.Train")]
#[derive(Clone, Copy, Debug)]
pub struct Train {
    /// Which, from 0.
    pub step: u64,
    /// Set where its passes are recorded as spans, of ranks with some of the layers.
    pub spans: bool,
    /// The largest norm of the gradient that is nothing unusual; `None` where none is known.
    pub norm_max: Option<f32>,
    /// Set where a larger one is taken all the same when it was computed twice.
    pub takes_spikes: bool,
    /// Set where ranks commit the faults of their drills: a step that is made again has none.
    pub drills: bool,
}

/// Rate a step without learning from it.
#[message(reply = Result<Trained, Failure>, name = "pretrain.Rate")]
#[derive(Clone, Debug)]
pub struct Rate {
    /// Which, from 0.
    pub step: u64,
    /// The constructor that has it, for a single rank.
    pub constructor: Ref<DataConstructor>,
}

/// Work that is fetched while another step is computed.
struct Coming {
    step: u64,
    work: oneshot::Receiver<Result<Work, Failure>>,
    task: ActorTask,
}

/// The actor that computes its part of each step, and updates its copy of the weights.
pub struct PretrainRank {
    args: RankArgs,
    place: ComputePlace,
    /// There but for the time in which a standby gives up one part for another.
    optimizer: Option<Arc<Trainee>>,
    /// What the files of the model say of it.
    fields: ModelFields,
    gangs: Gangs,
    /// There when the ranks know each other.
    checkpoints: Option<Checkpointer>,
    saving: Option<Saving>,
    /// Checkpoints that it keeps for itself and for its neighbour, over lives of the ranks.
    copies: Arc<Copies>,
    courier: Ref<Courier>,
    client: Ref<DataClient>,
    /// The constructor with the pictures that it encodes; there when it has restored.
    pictures_from: Option<Ref<DataConstructor>>,
    blobs: Blobs,
    /// The batch of the next step, which comes while this one is computed.
    coming: Option<Coming>,
    /// There when it has a number.
    metrics: Option<RankMetrics>,
}

impl std::fmt::Debug for PretrainRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PretrainRank")
            .field("rank", &self.args.rank)
            .finish_non_exhaustive()
    }
}

#[actor(name = "pretrain.Rank")]
impl PretrainRank {
    async fn start(args: RankArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let place = ComputePlace {
            device: args.device,
            threads: args.threads,
            deterministic: args.deterministic,
            products: args.products,
            share: share_of(&args.name(), cx.devices()),
        };
        let metrics = match args.standby {
            None => Some(RankMetrics::new(args.rank, args.sharing, cx.incarnation())?),
            Some(_) => None,
        };
        let optimizer = in_place(|| first(&args, &place))?;
        let config = whole(&optimizer);
        let fields = args.source.fields(config, args.context);
        let fields = fields.map_err(Failure::fatal)?;
        let of_model = |it: RankMetrics| it.of_model(config, &args.train, args.sharing);
        let metrics = metrics.map(of_model).transpose()?;
        Ok(Self {
            fields,
            optimizer: Some(Arc::new(Trainee(Mutex::new(optimizer)))),
            place,
            copies: Copies::new(1),
            args,
            gangs: Gangs::default(),
            checkpoints: None,
            saving: None,
            courier: cx.spawn::<Courier>(()).await.map_err(Failure::error)?,
            client: cx.spawn::<DataClient>(()).await.map_err(Failure::error)?,
            pictures_from: None,
            blobs: cx.blobs(),
            coming: None,
            metrics,
        })
    }

    #[handler(message = StandBy)]
    fn stand_by(&mut self, by: StandBy) -> Result<(), Failure> {
        Mark::check(&self.args.checkpoint, &by.mark, &self.args.spoken())
    }

    #[handler(message = TakeRank)]
    fn take(&mut self, take: TakeRank) -> Result<(), Failure> {
        let args = &mut self.args;
        if args.standby.take().is_none() {
            return Err(Failure::error(format!("it is rank {}", args.rank)));
        }
        let had = args.place();
        args.rank = take.rank;
        args.sharing = of_ranks(args.sharing, take.ranks);
        // It may have passed the first stage long ago.
        let metrics = RankMetrics::new(args.rank, args.sharing, TAKEN)?;
        if !args
            .place()
            .has_state_of(&had, args.train.optimizer.rows_together())
        {
            // The device may have no room for both.
            self.optimizer = None;
            let own = in_place(|| first(args, &self.place))?;
            self.optimizer = Some(Arc::new(Trainee(Mutex::new(own))));
        }
        let optimizer = held(&self.optimizer)?.lock();
        let metrics = metrics.of_model(whole(&optimizer), &args.train, args.sharing)?;
        self.metrics = Some(metrics);
        Ok(())
    }

    #[handler(message = Join)]
    fn join(&mut self, join: Join, cx: &mut Context<Self>) -> Result<Joined, Failure> {
        let schedule = self.args.sharing.schedule;
        self.gangs = Gangs::take(join.0, schedule, cx)?;
        Ok(Joined {
            courier: self.courier,
            client: self.client,
        })
    }

    #[handler(message = Restore)]
    async fn restore(&mut self, restore: Restore) -> Result<Restored, Failure> {
        let place = &self.args.checkpoint;
        Mark::check(place, &restore.mark, &self.args.spoken())?;
        let storage = checkpoint::storage(place)?;
        let is_stored = checkpoint::newest(&storage, self.args.train.optimizer)
            .await?
            .is_some();
        let Restore {
            life,
            joined,
            supply,
            ..
        } = restore;
        let fetch = &supply.fetch;
        let bucket = fetch.axis.bucket(&fetch.mesh, self.args.rank);
        self.pictures_from = Some(supply.constructor_of(bucket)?);
        let serve = Serve {
            rank: self.args.rank,
            supply,
            clients: joined.iter().map(|it| it.client).collect(),
        };
        self.client.ask(serve).await.map_err(Failure::error)??;
        let couriers: Vec<_> = joined.iter().map(|it| it.courier).collect();
        let meet = Meet {
            life,
            couriers: couriers.clone(),
        };
        self.courier.ask(meet).await.map_err(Failure::error)?;
        // One of a life before ends now, well or not: its letters are thrown away.
        if let Some(saving) = self.saving.take()
            && let Err(error) = saving.wait().await
        {
            tracing::debug!(%error, "a checkpoint was not finished");
        }
        let mail = Mail {
            rank: self.args.rank,
            life,
            couriers,
            blobs: self.blobs.clone(),
        };
        let options = Options {
            retention: Retention {
                newest: self.args.keep,
                ..Retention::default()
            },
            ..Options::default()
        };
        let checkpoints = Checkpointer::new(storage, Arc::new(mail), options);
        let mut checkpoints = checkpoints.with_peers(Arc::clone(&self.copies));
        let restored = self.load(life, &mut checkpoints, is_stored).await?;
        self.checkpoints = Some(checkpoints);
        if let Some(metrics) = &mut self.metrics {
            metrics.restored();
        }
        Ok(restored)
    }

    #[handler(message = Present)]
    fn present(&mut self, _present: Present) {
        // Nothing of the life that is over is waited for any more.
        self.gangs.leave();
        self.gangs = Gangs::default();
        if let Some(coming) = self.coming.take() {
            coming.task.cancel();
        }
    }

    #[handler(message = Save)]
    async fn save(&mut self, save: Save) -> Result<(), Failure> {
        let checkpoints = self.checkpoints.as_mut();
        let checkpoints = checkpoints.ok_or_else(|| Failure::error("it was not restored"))?;
        let mut blobs = vec![];
        // Those are of all ranks: one says them for all.
        if self.args.rank == 0 {
            let data = save.data.open().await.map_err(Failure::error)?;
            blobs.push((checkpoint::DATA.to_owned(), Bytes::copy_from_slice(&data)));
        }
        let local = {
            let optimizer = held(&self.optimizer)?.lock();
            if self.args.rank == 0 {
                blobs.extend(state::owner_blobs(&optimizer)?);
                let tokenizer = Some(&self.args.tokenizer);
                blobs.extend(state::companions(&self.fields, tokenizer));
            }
            state::local(ACTOR, &optimizer)?
        };
        let keep = match save.durable {
            true => Keep::Stored,
            false => Keep::InMemory,
        };
        let save = checkpointed(save.steps, keep, local, blobs);
        let saving = checkpoints.save(save, &**held(&self.optimizer)?).await;
        self.saving = Some(saving.map_err(Failure::error)?);
        Ok(())
    }

    #[handler(message = Settle)]
    fn settle(&mut self, _settle: Settle) -> Later<Result<Settled, Failure>> {
        let saving = self.saving.clone();
        Later::new(async move {
            let Some(saving) = saving else {
                return Ok(Settled::default());
            };
            let saved = saving.wait().await.map_err(Failure::error)?;
            let stages = saved.stages.iter();
            let stages = stages.map(|time| (time.stage.to_string(), time.seconds));
            Ok(Settled {
                bytes: saved.bytes,
                stages: stages.collect(),
            })
        })
    }

    #[handler(message = Train)]
    async fn train(&mut self, train: Train, cx: &mut Context<Self>) -> Result<Trained, Failure> {
        let trained = self.trained(train, cx).await;
        if let Ok(trained) = &trained {
            let seconds = StepSeconds {
                compute: trained.compute_seconds,
                exchange: trained.reduce_seconds,
                wait: trained.wait_seconds,
            };
            let activations = held(&self.optimizer)?.lock().held_activations().device;
            if let Some(metrics) = &mut self.metrics {
                metrics.tell(train.step, seconds, activations);
            }
        }
        self.unless_failed(trained)
    }

    #[handler(message = Rate)]
    async fn rate(&mut self, rate: Rate) -> Result<Trained, Failure> {
        let rated = self.rated(rate).await;
        self.unless_failed(rated)
    }
}

/// The optimiser of a rank.
fn held(of: &Option<Arc<Trainee>>) -> Result<&Arc<Trainee>, Failure> {
    of.as_ref()
        .ok_or_else(|| Failure::error("it has no part of the model"))
}

/// The model of which a rank has a part.
fn whole(optimizer: &Optimizer) -> &ModelConfig {
    let model = optimizer.model();
    model
        .part()
        .map_or_else(|| model.config(), |part| part.whole())
}

/// The life that a rank begins which was a standby.
const TAKEN: u32 = 2;

/// The optimiser as it is at first.
fn first(args: &RankArgs, place: &ComputePlace) -> Result<Optimizer, Failure> {
    let of_rank = args.place();
    let keeps = (&of_rank, args.train.optimizer.rows_together());
    let part = place.part((&args.source, args.seed), false, keeps);
    let part = part.map_err(Failure::fatal)?;
    Ok(of_rank.optimizer(part, args.train.clone()))
}

impl PretrainRank {
    async fn trained(&mut self, train: Train, cx: &Context<Self>) -> Result<Trained, Failure> {
        let step = train.step;
        // Ranks with parts of the same rows and matrices make the same passes, of which one tells.
        let of_stage = self.args.sharing.of_stage();
        let is_first = (self.args.rank as usize).is_multiple_of(of_stage);
        self.gangs.passes.stages.recorded = Some(step).filter(|_| train.spans && is_first);
        let begun = Clock::now();
        let work = self.work(step).await?;
        let wait_seconds = Clock::now().since(begun).as_secs_f64();
        // It comes while this one is computed.
        self.order(step + 1, cx);
        let is_own = |it: &&Drill| it.rank == self.args.rank && it.step == step + 1;
        let drill = self
            .args
            .drills
            .iter()
            .find(is_own)
            .filter(|_| train.drills);
        let mut guard = GradientGuard {
            norm_max: train.norm_max,
            known: None,
            drill: drill.map(|drill| drill.fault),
        };
        let done = in_place(|| self.step(&work, step, Some(guard)))?;
        // All ranks have the same norm, to the bit: they do the same now.
        if done.is_taken {
            return Ok(Trained {
                wait_seconds,
                ..done
            });
        }
        guard = GradientGuard {
            known: Some(done.grad_norm as f32).filter(|_| train.takes_spikes),
            drill: None,
            ..guard
        };
        let again = in_place(|| self.step(&work, step, Some(guard)))?;
        Ok(Trained {
            wait_seconds,
            compute_seconds: done.compute_seconds + again.compute_seconds,
            reduce_seconds: done.reduce_seconds + again.reduce_seconds,
            flops: done.flops + again.flops,
            first_try: Some(FirstTry {
                grad_norm: done.grad_norm,
                gradient: done.gradient,
            }),
            ..again
        })
    }

    async fn rated(&mut self, rate: Rate) -> Result<Trained, Failure> {
        let Rate { step, constructor } = rate;
        let (delivery, batches) = client::fetch(constructor, step, 0).await?;
        let work = Work {
            delivery,
            batches,
            pictures: vec![],
        };
        in_place(|| self.step(&work, step, None))
    }

    /// Leaves the others where this rank does not compute with them: they would wait for it.
    fn unless_failed(&mut self, done: Result<Trained, Failure>) -> Result<Trained, Failure> {
        if done.is_err() {
            self.gangs.leave();
        }
        done
    }

    /// Loads what there is, as all others do.
    async fn load(
        &self,
        life: u32,
        checkpoints: &mut Checkpointer,
        is_stored: bool,
    ) -> Result<Restored, Failure> {
        let trainee = held(&self.optimizer)?;
        let local = {
            let mut optimizer = trainee.lock();
            // What a step that was not finished has left goes.
            let config = optimizer.config().clone();
            optimizer.restart(config);
            state::local(ACTOR, &optimizer)?
        };
        let load = || Load {
            local: local.clone(),
            ..Load::default()
        };
        let stepped = |loaded: Result<Loaded, LoadError>| loaded.map(|loaded| loaded.entry.step);
        let (steps, from) = match stepped(checkpoints.recover(load(), trainee).await) {
            Ok(steps) => (steps, Origin::Memory),
            Err(error) if is_stored => {
                tracing::debug!(%error, "no checkpoint in memory");
                let stored = stepped(checkpoints.load(load(), trainee).await);
                (stored.map_err(Failure::error)?, Origin::Storage)
            }
            Err(_) => (0, Origin::Start),
        };
        if from != Origin::Start {
            trainee.lock().resume_at(steps);
        } else if life > 1 {
            *trainee.lock() = in_place(|| first(&self.args, &self.place))?;
        }
        Ok(Restored { steps, from })
    }

    fn order(&mut self, step: u64, cx: &Context<Self>) {
        let (next, (fetched, work)) = (self.next(step), oneshot::channel());
        let task = cx.spawn_task(async move {
            // Another step may be wanted by now.
            let _ = fetched.send(next.await);
        });
        self.coming = Some(Coming { step, work, task });
    }

    async fn work(&mut self, step: u64) -> Result<Work, Failure> {
        match self.coming.take() {
            Some(coming) if coming.step == step => match coming.work.await {
                Ok(Ok(work)) => Ok(work),
                // There was none yet, or no more.
                _ => self.next(step).await,
            },
            _ => self.next(step).await,
        }
    }

    /// Fetches its batches and pictures of a step.
    fn next(&self, step: u64) -> impl Future<Output = Result<Work, Failure>> + Send + use<> {
        let (client, rank) = (self.client, self.args.rank);
        let pictures_from = self.pictures_from;
        async move {
            let (delivery, batches) = next(client, rank, step).await?;
            let pictures = match pictures_from {
                Some(from) if !delivery.encoder.is_empty() => {
                    client::fetch_pictures(from, step, rank).await?
                }
                _ => vec![],
            };
            Ok(Work {
                delivery,
                batches,
                pictures,
            })
        }
    }

    /// One update of the weights, where its gradient is taken; or none where there is no guard: it only rates.
    fn step(
        &mut self,
        work: &Work,
        number: u64,
        guard: Option<GradientGuard>,
    ) -> Result<Trained, Failure> {
        let args = &self.args;
        let dropout = Dropout::of_step(args.dropout, args.seed, number);
        let how = (args.sharing, dropout);
        let learning = guard.map_or(Learning::No, |_| Learning::Yes);
        let mut optimizer = held(&self.optimizer)?.lock();
        optimizer.guard(guard);
        let vision = optimizer.model().config().vision.as_ref();
        let mut texts = Texts::of(work, vision, args.rank, how)?;
        let gangs = self.gangs.of_step(learning == Learning::Yes);
        let stepped = step(&mut optimizer, &mut texts, gangs, learning)?;
        let outcome = stepped.outcome;
        Ok(Trained {
            loss: outcome.loss,
            next_token_loss: outcome.next_token_loss,
            grad_norm: outcome.update.map_or(0.0, |it| f64::from(it.grad_norm)),
            is_taken: outcome.update.is_none_or(|it| it.applied),
            gradient: outcome.gradient.unwrap_or_default().into(),
            lr: outcome.update.map_or(0.0, |it| f64::from(it.lr)),
            flops: outcome.flops,
            compute_seconds: stepped.compute_seconds,
            reduce_seconds: stepped.reduce_seconds,
            gather_copies: outcome.copies.gathers as u64,
            sum_copies: outcome.copies.sums as u64,
            moving: stepped.moves.moving,
            moving_waits: stepped.moves.waited,
            ..texts.told()
        })
    }
}

/// Fetches a rank's batches of a step.
async fn next(
    client: Ref<DataClient>,
    rank: u32,
    step: u64,
) -> Result<(Delivery, Vec<Packed>), Failure> {
    let mut again = false;
    loop {
        let next = Next { step, rank, again };
        let delivery = client.ask(next).timeout(PATIENCE).await;
        let delivery = delivery.map_err(Failure::error)??;
        match delivery.open().await {
            Ok(batches) => return Ok((delivery, batches)),
            // It may be gone with its constructor.
            Err(_) if !again => again = true,
            Err(failure) => return Err(failure),
        }
    }
}

#[cfg(test)]
mod tests;

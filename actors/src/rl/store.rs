//! The sample store: prompt pool and experience buffer of a run, around a [`Ledger`].
//!
//! A rollout exchanges finished trajectories for new orders in one ask, and tells how far it is with
//! the others, so that their begins are here when it dies: the pool of partial replies. When there is
//! nothing to order, the store wakes it later; when a batch is not complete, the store tells the trainer once
//! it is. So nobody polls.

use std::collections::{BTreeMap, HashMap, HashSet};

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry;
use odeon::{ActorId, Context, Down, Failure, Incarnation, Reason, Recipient, actor, message};
use odeon_algorithms::task::{PromptStyle, Split, Task, TaskSpec};
use odeon_algorithms::tokenizer::{Message as ChatTurn, Tokenizer, TokenizerError};

pub use super::ledger::Counts;
use super::ledger::{Admission, Asker, Ledger, LedgerConfig};
use super::rollout::{MESSAGE_TOKENS_MAX, Rollout, Wake};
use crate::packed::PackedBatch;
use crate::trajectory::{Order, Partial, SampleId, Trajectory, Used, Version};

/// What a [`SampleStore`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct StoreArgs {
    /// Where the prompts come from.
    pub task: TaskSpec,
    /// The run's seed.
    pub seed: u64,
    /// How prompts become tokens.
    pub tokenizer: Tokenizer,
    /// What makes a batch.
    pub ledger: LedgerConfig,
}

/// A rollout hands in what it has finished and asks for as many orders as it has room for.
#[message(reply = Vec<Order>, name = "store.Exchange")]
#[derive(Debug)]
pub struct Exchange {
    /// Who.
    pub rollout: odeon::Ref<Rollout>,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The weights with which it begins replies; `None` while it only goes on with others' begins.
    pub begins_with: Option<Version>,
    /// The weights that it has.
    pub holds: Vec<Version>,
    /// What it has finished.
    pub finished: Vec<Trajectory>,
    /// How far it has come with others since it last said so.
    pub came_on: Vec<CameOn>,
    /// What others are to go on with.
    pub handed_in: Vec<SampleId>,
    /// Its free slots.
    pub room: usize,
}

/// How far a rollout has come with a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct CameOn {
    /// Which.
    pub id: SampleId,
    /// The number of its first new token, from 0.
    pub from: usize,
    /// The new tokens.
    pub more: Partial,
}

/// The batch of a step; `None` when it is not complete, then [`Ready`] will be told.
#[message(reply = Result<Option<PackedBatch>, Failure>, name = "store.Take")]
#[derive(Debug)]
pub struct Take {
    /// The step, from 1.
    pub step: u64,
    /// Whom to tell.
    pub consumer: Recipient<Ready>,
}

/// The batch of this step is complete.
#[message(name = "store.Ready")]
#[derive(Debug)]
pub struct Ready(pub u64);

/// The trainer has finished a step.
#[message(name = "store.Trained")]
#[derive(Debug)]
pub struct Trained(pub Version);

/// The trainer goes on after this step, when these prompts were used.
#[message(reply = (), name = "store.Resume")]
#[derive(Debug)]
pub struct Resume {
    /// The last step.
    pub version: Version,
    /// By the batches up to it.
    pub used: Used,
}

/// The weights after this step are safe on disk.
#[message(name = "store.Durable")]
#[derive(Debug)]
pub struct Durable(pub Version);

/// What the store has counted so far.
#[message(reply = Counts, name = "store.Count")]
#[derive(Debug)]
pub struct Count;

/// See the module.
pub struct SampleStore {
    task: Box<dyn Task>,
    seed: u64,
    tokenizer: Tokenizer,
    ledger: Ledger,
    /// Rollouts that wait for orders, by their keys: who is woken first begins first, in every run.
    idle: BTreeMap<u64, odeon::Ref<Rollout>>,
    watched: HashSet<ActorId>,
    /// The weights that rollouts have.
    holds: HashMap<ActorId, Vec<Version>>,
    /// How many have them.
    held: BTreeMap<Version, usize>,
    /// The last life of each rollout that is known to be over.
    over: HashMap<ActorId, Incarnation>,
    consumer: Option<(u64, Recipient<Ready>)>,
}

impl std::fmt::Debug for SampleStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleStore")
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.SampleStore")]
impl SampleStore {
    async fn start(args: StoreArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        if cx.incarnation() > 1 {
            // Rollouts and trainer would wait for what an empty book does not know of.
            let what = "the sample store was lost, and with it the trajectories of this run";
            return Err(Failure::error(what).fatal());
        }
        Ok(Self {
            task: args.task.build().map_err(Failure::error)?,
            seed: args.seed,
            tokenizer: args.tokenizer,
            ledger: Ledger::new(args.ledger),
            idle: BTreeMap::new(),
            watched: HashSet::new(),
            holds: HashMap::new(),
            held: BTreeMap::new(),
            over: HashMap::new(),
            consumer: None,
        })
    }

    #[handler(message = Exchange)]
    async fn exchange(&mut self, exchange: Exchange, cx: &mut Context<Self>) -> Vec<Order> {
        let rollout = exchange.rollout;
        // What a life asked for before its end may be read after the notice of that.
        let over = self.over.get(&rollout.id()).copied().unwrap_or(0);
        let alive = exchange.incarnation > over;
        if alive && self.watched.insert(rollout.id()) {
            cx.watch(rollout);
        }
        let who = key(rollout.id());
        let (open, uniform) = (self.ledger.open(), self.ledger.counts().uniform);
        for CameOn { id, from, more } in exchange.came_on {
            self.ledger.came_on(who, id, from, &more);
        }
        self.ledger.hand_in(who, &exchange.handed_in);
        for trajectory in exchange.finished {
            let id = trajectory.id;
            if self.ledger.report(trajectory) == Admission::Duplicate {
                tracing::info!(?id, "a trajectory came twice and is counted once");
            }
        }
        self.tell_those_who_look_on();
        self.tell_consumer().await;
        if self.ledger.counts().uniform > uniform || self.ledger.open() > open {
            // Groups were left out, so there is room for others; or something is to be made again or
            // gone on with.
            self.wake_idle().await;
        }
        if !alive {
            return vec![];
        }
        let holds = &exchange.holds;
        if self.holds.get(&rollout.id()) != Some(holds) {
            self.forget_holds(rollout.id());
            for version in holds {
                *self.held.entry(*version).or_default() += 1;
            }
            self.holds.insert(rollout.id(), holds.clone());
        }
        let asker = Asker {
            rollout: who,
            begins_with: exchange.begins_with,
            holds,
            held: &self.held,
            tokens_max: MESSAGE_TOKENS_MAX,
        };
        let samples = self.ledger.order(asker, exchange.room);
        if samples.is_empty() && exchange.room > 0 {
            self.idle.insert(who, rollout);
        }
        samples
            .into_iter()
            .filter_map(|id| self.write_order(id))
            .collect()
    }

    fn write_order(&self, id: SampleId) -> Option<Order> {
        let problem = self.task.problem(self.seed, Split::Train, id.group);
        match encode_prompt(&self.tokenizer, self.task.style(), &problem.prompt) {
            Ok(prompt) => Some(Order {
                id,
                prompt,
                problem: id.group,
                decode: self.ledger.config().decode(id.sample),
                partial: self.ledger.partial(id).cloned(),
            }),
            Err(error) => {
                tracing::error!(%error, prompt = problem.prompt, "a prompt cannot be encoded");
                None
            }
        }
    }

    #[handler(message = Take)]
    async fn take(
        &mut self,
        take: Take,
        cx: &mut Context<Self>,
    ) -> Result<Option<PackedBatch>, Failure> {
        let batch = self.ledger.take(take.step);
        if batch.is_none() {
            self.consumer = Some((take.step, take.consumer));
        }
        // Groups have left the buffer, or were too old: there may be room for new orders.
        self.wake_idle().await;
        batch
            .map(|batch| PackedBatch::pack(&cx.blobs(), &batch))
            .transpose()
    }

    #[handler(message = Trained)]
    async fn trained(&mut self, trained: Trained) {
        self.ledger.trained(trained.0);
        self.wake_idle().await;
    }

    #[handler(message = Resume)]
    async fn resume(&mut self, resume: Resume) {
        self.ledger.resume(resume.version, resume.used);
        self.wake_idle().await;
    }

    #[handler(message = Durable)]
    fn durable(&mut self, durable: Durable) {
        self.ledger.durable(durable.0);
    }

    #[handler(message = Count)]
    fn count(&mut self, _count: Count) -> Counts {
        self.ledger.counts()
    }

    /// A rollout is gone: others make its trajectories.
    #[handler(message = Down)]
    async fn down(&mut self, down: Down) {
        self.watched.remove(&down.id);
        self.over.insert(down.id, down.incarnation);
        self.idle.remove(&key(down.id));
        self.forget_holds(down.id);
        let lost = self.ledger.rollout_lost(key(down.id));
        if lost > 0 && matches!(down.reason, Reason::Failed(_)) {
            tracing::warn!(rollout = %down.id, lost, why = %down.reason, "its trajectories are ordered again");
        }
        self.wake_idle().await;
    }

    /// A rollout has other weights than it had, or is gone.
    fn forget_holds(&mut self, rollout: ActorId) {
        for version in self.holds.remove(&rollout).unwrap_or_default() {
            if let Some(count) = self.held.get_mut(&version) {
                *count -= 1;
                if *count == 0 {
                    self.held.remove(&version);
                }
            }
        }
    }

    fn tell_those_who_look_on(&self) {
        let fill = self.ledger.fill();
        let told = |name, value: usize| telemetry::gauge(name, value as f64).record();
        told("rl.store.rows", fill.rows);
        told("rl.store.most", fill.most);
        told("rl.store.waiting", fill.complete);
        told("rl.store.in_use", fill.working);
    }

    async fn wake_idle(&mut self) {
        for rollout in std::mem::take(&mut self.idle).into_values() {
            // One that is gone is noticed by the watch.
            let _ = rollout.tell(Wake).await;
        }
    }

    async fn tell_consumer(&mut self) {
        if let Some((step, consumer)) = self.consumer.take() {
            if self.ledger.take(step).is_some() {
                // A trainer that is gone asks again when it comes back.
                let _ = consumer.tell(Ready(step)).await;
            } else {
                self.consumer = Some((step, consumer));
            }
        }
    }
}

const fn key(id: ActorId) -> u64 {
    id.serial
}

/// The tokens that a model sees for a prompt.
///
/// # Errors
/// The tokenizer cannot write it.
pub fn encode_prompt(
    tokenizer: &Tokenizer,
    style: PromptStyle,
    prompt: &str,
) -> Result<Vec<u32>, TokenizerError> {
    match style {
        PromptStyle::Plain => {
            let mut tokens: Vec<u32> = tokenizer.bos().into_iter().collect();
            tokens.extend(tokenizer.encode(prompt)?);
            Ok(tokens)
        }
        PromptStyle::Chat => tokenizer.encode_chat(&[ChatTurn::user(prompt)]),
    }
}

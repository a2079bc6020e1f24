//! The sample store: prompt pool and experience buffer of a run, around a [`Ledger`].
//!
//! A rollout exchanges finished trajectories for new orders in one ask, and tells how far it is with
//! the others, so that their begins are here when it dies: the pool of partial replies. When there is
//! nothing to order, the store wakes it later; when a batch is not complete, the store tells the trainer once
//! it is. So nobody polls.
//!
//! A store may be lost at any moment. What it deals in is a *book*: a new life begins with none, and
//! opens one when the trainer has said where it is. Rollouts that deal with another book are refused
//! and say first what they work on, so that begun replies go on and what was finished and only in
//! the lost book is made anew. A trainer that comes back from a checkpoint, while the batches that
//! it had since then are lost, begins another book as well: weights that it made in a former life
//! and lost are nobody's then. Whoever depends on the store hears of each of its lives (see
//! `store/lives`).

pub(super) mod lives;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry;
use odeon::{ActorId, Context, Down, Failure, Incarnation, Reason, Recipient, Ref, actor, message};
use odeon_algorithms::task::{Split, Task, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;

pub use super::ledger::Counts;
use super::ledger::{Admission, Asker, Ledger, LedgerConfig};
use super::prompt::encode_prompt;
use super::relay::Edition;
use super::rollout::{MESSAGE_TOKENS_MAX, Rollout, Wake};
use crate::packed::PackedBatch;
use crate::trajectory::{Order, Partial, SampleId, Trajectory, Used, Version};

/// Settings that a [`SampleStore`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct StoreArgs {
    /// Where the prompts come from.
    pub task: TaskSpec,
    /// The run's seed.
    pub seed: u64,
    /// The tokenizer that turns prompts into tokens.
    pub tokenizer: Tokenizer,
    /// The rules by which batches are made.
    pub ledger: LedgerConfig,
}

/// Which book a store deals in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Book {
    /// In which life of the store.
    pub life: Incarnation,
    /// The how manieth of that life, from 1.
    pub number: u32,
}

/// A rollout hands in what it has finished and asks for as many orders as it has room for.
#[message(reply = Exchanged, name = "store.Exchange")]
#[derive(Debug)]
pub struct Exchange {
    /// The rollout.
    pub rollout: Ref<Rollout>,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The book that knows what it works on.
    pub book: Option<Book>,
    /// The weights with which it begins replies; `None` while it only goes on with others' begins.
    pub begins_with: Option<Edition>,
    /// The weights that it has.
    pub holds: Vec<Edition>,
    /// Trajectories that it has finished.
    pub finished: Vec<Trajectory>,
    /// Its progress with others since it last told.
    pub came_on: Vec<CameOn>,
    /// Replies that others are to go on with.
    pub handed_in: Vec<SampleId>,
    /// Its free slots.
    pub room: usize,
}

/// The answer to an [`Exchange`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub enum Exchanged {
    /// All was taken; these are orders.
    Orders(Vec<Order>),
    /// Nothing was taken: the store deals in this book, and has to be told first what the rollout
    /// works on. With `None` it will wake the rollout when there is one.
    OtherBook(Option<Book>),
}

/// A rollout says what it works on, waits with or has judged, to a store with another book than the
/// one that gave it the orders. In several messages, if that is much.
#[message(reply = (), name = "store.Claim")]
#[derive(Clone, Debug)]
pub struct Claim {
    /// The rollout.
    pub rollout: Ref<Rollout>,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// To which book.
    pub book: Book,
    /// The replies, each from its first token on.
    pub works_on: Vec<CameOn>,
}

/// Progress of a rollout with a reply.
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

/// The batch of a step.
#[message(reply = Result<Taken, Failure>, name = "store.Take")]
#[derive(Debug)]
pub struct Take {
    /// The step, from 1.
    pub step: u64,
    /// Whom to tell.
    pub consumer: Recipient<Ready>,
}

/// The answer to [`Take`]: the batch, if it is complete.
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub enum Taken {
    /// All of it.
    Batch(PackedBatch),
    /// It is not complete; [`Ready`] will be told.
    Later,
    /// This life of the store does not know where the trainer is: see [`Resume`].
    NoBook,
}

/// The batch of this step is complete.
#[message(name = "store.Ready")]
#[derive(Debug)]
pub struct Ready(pub u64);

/// The trainer has finished a step.
#[message(name = "store.Trained")]
#[derive(Debug)]
pub struct Trained {
    /// Which life of it.
    pub life: Incarnation,
    /// The step.
    pub version: Version,
}

/// The trainer goes on after this step, when these prompts were used. Each of its lives says so when
/// it begins, and to each life of the store, which answers which one it is.
#[message(reply = Incarnation, name = "store.Resume")]
#[derive(Clone, Debug)]
pub struct Resume {
    /// Which life of the trainer.
    pub life: Incarnation,
    /// The step after which this life began: weights that another one made up to there are those
    /// that its own come from.
    pub began_at: Version,
    /// The last step.
    pub version: Version,
    /// By the batches up to it.
    pub used: Used,
}

/// The weights after this step are safe on disk.
#[message(name = "store.Durable")]
#[derive(Debug)]
pub struct Durable {
    /// Which life of the trainer.
    pub life: Incarnation,
    /// The step.
    pub version: Version,
}

/// All rollouts have had the time to say what they work on. A store tells itself.
#[message(name = "store.Settle")]
#[derive(Debug)]
pub struct Settle(pub Book);

/// The time for which a book that follows a lost one gives no orders: whoever is in the middle of a
/// burst of tokens is heard before others are given what it works on.
const CLAIMED_WITHIN: Duration = Duration::from_millis(500);

/// Count the trajectories and orders of the store so far, in its present life.
#[message(reply = Counts, name = "store.Count")]
#[derive(Debug)]
pub struct Count;

/// A book that is open.
#[derive(Clone, Copy, Debug)]
struct Open {
    book: Book,
    /// The life of the trainer that it was opened for.
    trainer: Incarnation,
    /// Where that began.
    began_at: Version,
    /// Set when orders are given.
    settled: bool,
}

impl Open {
    /// Returns true when the trainer's weights come from these, or are these.
    const fn knows(&self, life: Incarnation, version: Version) -> bool {
        life >= self.trainer || version <= self.began_at
    }
}

/// The actor that gives orders to rollouts and complete batches to the trainer.
pub struct SampleStore {
    task: Box<dyn Task>,
    seed: u64,
    tokenizer: Tokenizer,
    ledger: Ledger,
    /// The book that the ledger is; `None` before the trainer has said where it is.
    open: Option<Open>,
    /// The last life of the trainer that was heard of.
    trainer: Incarnation,
    /// Rollouts that wait for orders, by their keys: who is woken first begins first, in every run.
    idle: BTreeMap<u64, Ref<Rollout>>,
    /// The last life of each rollout that was heard of, and is watched.
    watched: HashMap<ActorId, (Ref<Rollout>, Incarnation)>,
    /// The weights that rollouts have.
    holds: HashMap<ActorId, Vec<Version>>,
    /// Number of rollouts that have each version.
    held: BTreeMap<Version, usize>,
    /// The last life of each rollout that is known to be over.
    over: HashMap<ActorId, Incarnation>,
    consumer: Option<(u64, Recipient<Ready>)>,
}

impl std::fmt::Debug for SampleStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleStore")
            .field("open", &self.open)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.SampleStore")]
impl SampleStore {
    async fn start(args: StoreArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        if cx.incarnation() > 1 {
            tracing::warn!(
                life = cx.incarnation(),
                "the sample store was lost; trainer and rollouts say where they are"
            );
        }
        Ok(Self {
            task: args.task.build().map_err(Failure::error)?,
            seed: args.seed,
            tokenizer: args.tokenizer,
            ledger: Ledger::new(args.ledger),
            open: None,
            trainer: 0,
            idle: BTreeMap::new(),
            watched: HashMap::new(),
            holds: HashMap::new(),
            held: BTreeMap::new(),
            over: HashMap::new(),
            consumer: None,
        })
    }

    #[handler(message = Exchange)]
    async fn exchange(&mut self, exchange: Exchange, cx: &mut Context<Self>) -> Exchanged {
        let rollout = exchange.rollout;
        let alive = self.meet(rollout, exchange.incarnation, cx).await;
        let who = key(rollout.id());
        let Some(open) = self.open else {
            if alive {
                self.idle.insert(who, rollout);
            }
            return Exchanged::OtherBook(None);
        };
        if exchange.book != Some(open.book) {
            return Exchanged::OtherBook(Some(open.book));
        }
        let (before, uniform) = (self.ledger.open(), self.ledger.counts().uniform);
        for CameOn { id, from, more } in exchange.came_on {
            if open.knows(more.life, more.version) {
                self.ledger.came_on(who, id, from, &more);
            }
        }
        self.ledger.hand_in(who, &exchange.handed_in);
        for trajectory in exchange.finished {
            let id = trajectory.id;
            let first = open.knows(trajectory.life, trajectory.version);
            if !first || !open.knows(trajectory.last_life, trajectory.last_version) {
                tracing::debug!(?id, "made with weights that the trainer has lost");
                self.ledger.refuse(who, id);
            } else if self.ledger.report(trajectory) == Admission::Duplicate {
                tracing::info!(?id, "a trajectory came twice and is counted once");
            }
        }
        self.tell_those_who_look_on();
        self.tell_consumer().await;
        if self.ledger.counts().uniform > uniform || self.ledger.open() > before {
            // Groups were left out, so there is room for others; or something is to be made again or
            // gone on with.
            self.wake_idle().await;
        }
        if !alive {
            return Exchanged::Orders(vec![]);
        }
        let known = |edition: &Edition| open.knows(edition.life(), edition.version());
        let holds = exchange.holds.into_iter().filter(known);
        let holds: Vec<Version> = holds.map(Edition::version).collect();
        if self.holds.get(&rollout.id()) != Some(&holds) {
            self.forget_holds(rollout.id());
            for version in &holds {
                *self.held.entry(*version).or_default() += 1;
            }
            self.holds.insert(rollout.id(), holds.clone());
        }
        let asker = Asker {
            rollout: who,
            begins_with: exchange.begins_with.filter(known).map(Edition::version),
            holds: &holds,
            held: &self.held,
            tokens_max: MESSAGE_TOKENS_MAX,
        };
        let samples = match open.settled {
            true => self.ledger.order(asker, exchange.room),
            false => vec![],
        };
        if samples.is_empty() && exchange.room > 0 {
            self.idle.insert(who, rollout);
        }
        let orders = samples.into_iter().filter_map(|id| self.write_order(id));
        Exchanged::Orders(orders.collect())
    }

    #[handler(message = Claim)]
    async fn claim(&mut self, claim: Claim, cx: &mut Context<Self>) {
        let alive = self.meet(claim.rollout, claim.incarnation, cx).await;
        let Some(open) = self.open.filter(|open| alive && open.book == claim.book) else {
            // What it says next shows that.
            return;
        };
        let who = key(claim.rollout.id());
        let before = self.ledger.open();
        for CameOn { id, more, .. } in claim.works_on {
            if open.knows(more.life, more.version) {
                self.ledger.adopt(who, id, more);
            }
        }
        if open.settled && self.ledger.open() > before {
            self.wake_idle().await;
        }
    }

    #[handler(message = Settle)]
    async fn settle(&mut self, settle: Settle) {
        let Some(open) = self.open.as_mut().filter(|open| open.book == settle.0) else {
            return;
        };
        open.settled = true;
        let lost = self.ledger.settle();
        let adopted = self.ledger.counts().adopted;
        tracing::warn!(
            lost,
            adopted,
            "samples of the book that was lost are made anew, and those that rollouts had go on"
        );
        self.wake_idle().await;
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
    async fn take(&mut self, take: Take, cx: &mut Context<Self>) -> Result<Taken, Failure> {
        if self.open.is_none() {
            return Ok(Taken::NoBook);
        }
        let batch = self.ledger.take(take.step);
        if batch.is_none() && take.step == self.ledger.next_step() {
            self.consumer = Some((take.step, take.consumer));
        }
        // Groups have left the buffer, or were too old: there may be room for new orders.
        self.wake_idle().await;
        match batch {
            Some(batch) => PackedBatch::pack(&cx.blobs(), &batch).map(Taken::Batch),
            None => Ok(Taken::Later),
        }
    }

    #[handler(message = Trained)]
    async fn trained(&mut self, trained: Trained) {
        // One of a life before would tell of steps that the trainer may have lost since.
        if trained.life == self.trainer {
            self.ledger.trained(trained.version);
            self.wake_idle().await;
        }
    }

    #[handler(message = Resume)]
    async fn resume(&mut self, resume: Resume, cx: &mut Context<Self>) -> Incarnation {
        if resume.life < self.trainer {
            return cx.incarnation();
        }
        self.trainer = resume.life;
        if self.open.is_none() || !self.ledger.repeats_from(resume.version) {
            self.begin_book(resume, cx);
            // All of them have to say what they work on.
            let all = self
                .watched
                .values()
                .map(|(rollout, _)| (key(rollout.id()), *rollout));
            self.idle.extend(all);
        }
        self.wake_idle().await;
        cx.incarnation()
    }

    #[handler(message = Durable)]
    fn durable(&mut self, durable: Durable) {
        if durable.life == self.trainer {
            self.ledger.durable(durable.version);
        }
    }

    #[handler(message = lives::Live)]
    fn live(&mut self, _live: lives::Live, cx: &mut Context<Self>) -> Incarnation {
        cx.incarnation()
    }

    #[handler(message = Count)]
    fn count(&mut self, _count: Count) -> Counts {
        self.ledger.counts()
    }

    /// A rollout is gone: others make its trajectories.
    #[handler(message = Down)]
    async fn down(&mut self, down: Down) {
        let over = self.over.get(&down.id).copied().unwrap_or(0);
        if down.incarnation > 0 && down.incarnation <= over {
            // The next life was there before this word of the one before it.
            return;
        }
        let last = self.watched.remove(&down.id).map_or(0, |(_, last)| last);
        self.over.insert(down.id, down.incarnation.max(last));
        let lost = self.lose(down.id);
        if lost > 0 && matches!(down.reason, Reason::Failed(_)) {
            tracing::warn!(rollout = %down.id, lost, why = %down.reason, "its trajectories are ordered again");
        }
        self.wake_idle().await;
    }

    /// Returns true when this life of a rollout is not known to be over. Those before it are.
    async fn meet(
        &mut self,
        rollout: Ref<Rollout>,
        incarnation: Incarnation,
        cx: &Context<Self>,
    ) -> bool {
        let id = rollout.id();
        let over = self.over.get(&id).copied().unwrap_or(0);
        let watched = self.watched.get(&id).map_or(0, |(_, last)| *last);
        // What a life asked for before its end may be read after the notice of that.
        if incarnation <= over || incarnation < watched {
            return false;
        }
        if incarnation > watched {
            if watched > 0 {
                self.over.insert(id, incarnation - 1);
                if self.lose(id) > 0 {
                    self.wake_idle().await;
                }
            }
            cx.watch(rollout);
            self.watched.insert(id, (rollout, incarnation));
        }
        true
    }

    /// Opens what others deal with from now on.
    fn begin_book(&mut self, resume: Resume, cx: &Context<Self>) {
        let before = self.open.map_or(0, |open| open.book.number);
        let book = Book {
            life: cx.incarnation(),
            number: before + 1,
        };
        let follows = before > 0 || cx.incarnation() > 1;
        self.ledger.begin_anew(resume.version, resume.used);
        self.holds.clear();
        self.held.clear();
        self.consumer = None;
        self.open = Some(Open {
            book,
            trainer: resume.life,
            began_at: resume.began_at,
            settled: !follows,
        });
        if follows {
            cx.after(CLAIMED_WITHIN, Settle(book));
        }
    }

    /// A rollout's orders are open again. Returns how many.
    fn lose(&mut self, rollout: ActorId) -> usize {
        self.idle.remove(&key(rollout));
        self.forget_holds(rollout);
        self.ledger.rollout_lost(key(rollout))
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

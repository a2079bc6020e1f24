//! The rollout actor: generates trajectories without a barrier.
//!
//! It exchanges finished trajectories for orders and works on as many at once as its engine has
//! slots. A reward begins when its trajectory ends, and others are generated meanwhile. When the
//! relay has newer weights it takes the whole new version, in one of three ways; see [`Swap`]. All but
//! one keep every trajectory to one version of the weights.
//!
//! A reply that calls a tool gives its slot to others until it has its answer. The weights that it was
//! begun with stay for it.
//!
//! Every so often it tells the store how far it is, so that when it is lost another rollout with the
//! same weights goes on where it was. It also hands in what it has when it is asked to; see
//! [`Packer`](super::packer::Packer).
//!
//! A store that is lost has forgotten what this rollout works on: the next life of it is told, and
//! meanwhile the work goes on.

mod calling;
mod judging;
mod store_exchange;
mod swapping;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry::{self, OpenSpan};
use odeon::{Clock, Context, Failure, Incarnation, Ref, Timestamp, actor, message};
use odeon_algorithms::environment::Next;

use self::calling::Calling;
pub use self::calling::{Answered, Tooling};
use self::judging::{HELD_PER_SLOT, Judging};
pub use self::judging::{Judged, Judges};
pub use self::swapping::Swap;
use super::relay::{Edition, Fresh, Relay, Subscribe};
use super::relays::{Draw, Relays, Seek};
use super::store::lives::{Lives, follow};
use super::store::{Book, SampleStore};
use super::tools::Call;
use crate::engine::{CacheUse, EngineSpec, Response, RolloutEngine, in_place, rest};
use crate::trajectory::{Order, Partial, SampleId, Trajectory, Version};

/// Settings that a [`Rollout`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RolloutArgs {
    /// The engine that generates.
    pub engine: EngineSpec,
    /// Where orders come from.
    pub store: Ref<SampleStore>,
    /// The actor that names the relay to draw weights from.
    pub relays: Ref<Relays>,
    /// The actors that judge.
    pub judges: Judges,
    /// The tool that replies can call, if there is one.
    pub tooling: Option<Tooling>,
    /// The way in which it changes to other weights.
    pub swap: Swap,
    /// Time between two reports of its progress: what is made anew at most when it is lost.
    pub tell_every: Duration,
}

/// There may be orders.
#[message(name = "rollout.Wake")]
#[derive(Debug)]
pub struct Wake;

/// Generate a while. A rollout tells itself.
#[message(name = "rollout.Pump")]
#[derive(Debug)]
pub struct Pump;

/// Look at the rollout's load: its weights, its cache, and its replies by state.
#[message(reply = Load, name = "rollout.Look")]
#[derive(Debug)]
pub struct Look;

/// See [`Look`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Load {
    /// The weights it has now.
    pub version: Option<Version>,
    /// Keys and values.
    pub cache: CacheUse,
    /// Trajectories under way, those included that wait for a tool.
    pub running: u32,
    /// Of these, those that wait for a tool.
    pub calling: u32,
    /// Orders that wait for a slot.
    pub waiting: u32,
    /// Trajectories that have ended and have no reward yet.
    pub judging: u32,
    /// Set when it begins no more, since there are newer weights.
    pub draining: bool,
}

/// Hand in everything that is under way with these weights, for others to go on with. Answers how
/// many that were; none with other weights.
#[message(reply = Result<u32, Failure>, name = "rollout.HandIn")]
#[derive(Debug)]
pub struct HandIn(pub Version);

/// Count the tokens and the time of the rollout since it started.
#[message(reply = RolloutCounts, name = "rollout.Count")]
#[derive(Debug)]
pub struct CountTokens;

/// See [`CountTokens`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct RolloutCounts {
    /// Response tokens generated.
    pub tokens: u64,
    /// Trajectories finished.
    pub trajectories: u64,
    /// The weights it has now.
    pub version: Option<Version>,
    /// Time in which it generated.
    pub busy: Duration,
    /// That time, each moment by the part of the room for keys and values that was in use.
    pub filled: Duration,
    /// Times that it took other weights in.
    pub pulls: u64,
    /// Time that it stood still for them.
    pub pulling: Duration,
}

/// Tokens of trajectories in one message, about: some 12 bytes each, far below the largest message.
pub(super) const MESSAGE_TOKENS_MAX: usize = 64 << 10;

/// A trajectory that is being made, with the weights of one version.
struct UnderWay {
    /// With all that there is of it but what the engine is at.
    order: Order,
    version: Version,
    /// The life of the trainer that made them.
    life: Incarnation,
    /// Tokens that the store knows of.
    told: usize,
    /// Time that it has waited for its tool.
    waited: Duration,
    /// For people to see.
    span: OpenSpan,
}

impl UnderWay {
    /// Tokens that are there, those aside that the engine is at.
    fn begun(&self) -> usize {
        let partial = self.order.partial.as_ref();
        partial.map_or(0, |partial| partial.tokens.len())
    }

    /// Takes in what the engine has made of it.
    fn take_in(&mut self, response: Response) {
        let begun = || Partial {
            version: self.version,
            life: self.life,
            ..Partial::default()
        };
        let partial = self.order.partial.get_or_insert_with(begun);
        partial.tokens.extend(response.tokens);
        partial.log_probs.extend(response.log_probs);
    }
}

/// The actor that generates replies with an engine of its own.
pub struct Rollout {
    engine: Box<dyn RolloutEngine>,
    args: RolloutArgs,
    /// Where weights come from, once it was told.
    relay: Option<Ref<Relay>>,
    /// The weights in the engine.
    version: Option<Version>,
    edition: Option<Edition>,
    /// The newest weights that a relay has told of.
    announced: Option<Edition>,
    waiting: VecDeque<Order>,
    under_way: HashMap<SampleId, UnderWay>,
    calling: Calling,
    judging: Judging,
    /// The store's book that knows of all that.
    book: Option<Book>,
    /// Set when the store has no book open: it wakes this rollout when there is one.
    shut: bool,
    /// Set when the store waits for word of this rollout.
    called: bool,
    /// When it last said how far it is.
    told: Timestamp,
    /// Set when it has asked for orders in vain: the store wakes it when there are some.
    in_vain: bool,
    /// Set when a [`Pump`] is in the mailbox.
    pumping: bool,
    counts: RolloutCounts,
}

impl std::fmt::Debug for Rollout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rollout")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.Rollout")]
impl Rollout {
    async fn start(mut args: RolloutArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        args.engine = args.engine.within("rollout", cx.devices());
        let engine = in_place(|| args.engine.rollout()).map_err(Failure::fatal)?;
        let seek = Seek(cx.me().narrow());
        args.relays.tell(seek).await.map_err(Failure::error)?;
        follow(args.store, cx);
        Ok(Self {
            engine,
            calling: Calling::new(args.tooling.take()),
            judging: Judging::new(args.judges),
            args,
            relay: None,
            version: None,
            edition: None,
            announced: None,
            waiting: VecDeque::new(),
            under_way: HashMap::new(),
            book: None,
            shut: false,
            called: false,
            told: Clock::now(),
            in_vain: false,
            pumping: false,
            counts: RolloutCounts::default(),
        })
    }

    #[handler(message = Fresh)]
    async fn fresh(&mut self, fresh: Fresh, cx: &mut Context<Self>) {
        // Another relay may be behind this one.
        self.announced = self.announced.max(Some(fresh.0));
        self.pump_later(cx).await;
    }

    #[handler(message = Wake)]
    async fn wake(&mut self, _wake: Wake, cx: &mut Context<Self>) {
        self.exchange_soon(cx).await;
    }

    /// Another life of the store wakes nobody whom it does not know.
    #[handler(message = Lives)]
    async fn store_lives(&mut self, lives: Lives, cx: &mut Context<Self>) {
        let known = self.book.map(|book| book.life);
        if self.shut || known.is_some_and(|life| life != lives.0) {
            self.exchange_soon(cx).await;
        }
    }

    /// A relay is there for it: its own, in its present life, or another while that is away.
    #[handler(message = Draw)]
    async fn draw(&mut self, draw: Draw, cx: &mut Context<Self>) {
        let Draw(relay) = draw;
        self.relay = Some(relay);
        let subscribe = Subscribe(cx.me().narrow());
        if let Err(error) = relay.tell(subscribe).await {
            tracing::warn!(%error, "the relay is gone again; waiting to be shown one");
        }
    }

    #[handler(message = CountTokens)]
    fn count(&mut self, _count: CountTokens) -> RolloutCounts {
        RolloutCounts {
            version: self.version,
            ..self.counts
        }
    }

    #[handler(message = Look)]
    fn look(&mut self, _look: Look) -> Load {
        Load {
            version: self.version,
            cache: self.engine.cache(),
            running: (self.engine.active() + self.calling.held()) as u32,
            calling: self.calling.under_way() as u32,
            waiting: self.waiting.len() as u32,
            judging: self.judging.under_way() as u32,
            draining: self.is_draining(),
        }
    }

    #[handler(message = HandIn)]
    async fn hand_in(&mut self, hand_in: HandIn, cx: &mut Context<Self>) -> Result<u32, Failure> {
        // Nobody would take it in now.
        if self.version != Some(hand_in.0) || self.shut {
            return Ok(0);
        }
        let came_on = self.came_on();
        let mut handed_in: Vec<SampleId> = self.waiting.drain(..).map(|order| order.id).collect();
        for (id, under_way) in self.under_way.drain() {
            under_way.span.with("end", "handed in").end();
            handed_in.push(id);
        }
        handed_in.sort_unstable();
        self.engine.withdraw();
        self.calling.forget();
        let count = handed_in.len() as u32;
        if let Err(failure) = self.exchange(cx, 0, came_on, handed_in).await {
            // The store may still take these for its own: it gives them out again when it is over.
            cx.fail(failure.clone());
            return Err(failure);
        }
        self.pump_later(cx).await;
        Ok(count)
    }

    /// A reward has come. What is judged by then goes to the store together.
    #[handler(message = Judged)]
    async fn judged(&mut self, judged: Judged, cx: &mut Context<Self>) {
        match self.judging.end(judged) {
            Ok(()) => self.pump_later(cx).await,
            Err(failure) => cx.fail(failure),
        }
    }

    /// A tool has answered: the reply goes on when there is a slot.
    #[handler(message = Answered)]
    async fn answered(&mut self, answered: Answered, cx: &mut Context<Self>) {
        match self.calling.end(answered) {
            Ok(Some((id, answer, waited))) => self.observe(id, &answer, waited, cx),
            Ok(None) => return,
            Err(failure) => return cx.fail(failure),
        }
        self.pump_later(cx).await;
    }

    #[handler(message = Pump)]
    async fn pump(&mut self, _pump: Pump, cx: &mut Context<Self>) {
        self.pumping = false;
        if let Err(failure) = self.work(cx).await {
            return cx.fail(failure);
        }
        // All may have ended at once, with their rewards still to come: that frees slots.
        let begins = !self.waiting.is_empty() || !self.calling.answered.is_empty();
        let works = self.engine.active() > 0 || begins;
        // What has ended may have kept it from weights that are there.
        let pulls = self.has_newer() && self.may_pull();
        if works || pulls || self.has_to_tell() || self.is_still_to_tell() {
            self.pump_later(cx).await;
        }
    }

    /// Asks the store again, since the obstacle to that is over.
    async fn exchange_soon(&mut self, cx: &Context<Self>) {
        (self.in_vain, self.shut, self.called) = (false, false, true);
        self.pump_later(cx).await;
    }

    /// Returns true when there is something to exchange with the store, beside its progress.
    fn has_to_tell(&self) -> bool {
        let asks = self.room() > 0 && !self.in_vain;
        let has = asks || self.called || !self.judging.judged.is_empty();
        has && self.version.is_some() && !self.shut
    }

    async fn pump_later(&mut self, cx: &Context<Self>) {
        if !self.pumping && cx.me().tell(Pump).await.is_ok() {
            self.pumping = true;
        }
    }

    /// One turn: weights, orders, tokens, results.
    async fn work(&mut self, cx: &Context<Self>) -> Result<(), Failure> {
        if self.has_newer() && self.may_pull() {
            self.pull().await?;
        }
        let Some(edition) = self.edition else {
            return Ok(());
        };
        let silent = Clock::now().since(self.told) >= self.args.tell_every
            || (self.engine.active() == 0 && self.is_still_to_tell());
        let silent = silent && !self.shut;
        if silent || self.has_to_tell() {
            let room = self.room();
            let came_on = if silent { self.came_on() } else { vec![] };
            self.exchange(cx, room, came_on, vec![]).await?;
        }
        // What was begun before comes first.
        while self.engine.free_slots() > 0
            && let Some(id) = self.calling.answered.pop_front()
        {
            if let Some(under_way) = self.under_way.get(&id) {
                self.engine.resume(&under_way.order)?;
            }
        }
        while self.engine.free_slots() > 0
            && let Some(order) = self.waiting.pop_front()
        {
            self.admit(order, edition, cx)?;
        }
        if self.engine.active() > 0 {
            let begun = Clock::now();
            let responses = in_place(|| generate(self.engine.as_mut()))?;
            let cache = self.engine.cache();
            rest(self.engine.takes()).await;
            let took = Clock::now()
                .since(begun)
                .saturating_sub(self.engine.waited());
            self.counts.busy += took;
            self.counts.filled += took.mul_f64(cache.used as f64 / cache.capacity.max(1) as f64);
            self.collect(responses, cx)?;
        }
        Ok(())
    }

    /// Begins a reply, or goes on with one that somebody else has begun: where that was about to hear
    /// its tool, it asks for the answer.
    fn admit(&mut self, order: Order, edition: Edition, cx: &Context<Self>) -> Result<(), Failure> {
        let (id, version) = (order.id, edition.version());
        let next = order
            .partial
            .as_ref()
            .map(|partial| self.calling.next(partial));
        let span = telemetry::span("trajectory")
            .with("version", version)
            .with("group", id.group)
            .with("sample", id.sample);
        let begun = UnderWay {
            told: order.partial.as_ref().map_or(0, |it| it.tokens.len()),
            order,
            version,
            life: edition.life(),
            waited: Duration::ZERO,
            span,
        };
        match next {
            None | Some(Next::GoesOn) => self.engine.admit(&begun.order)?,
            Some(Next::Call(_) | Next::Ended) => self.engine.pause(id),
        }
        self.under_way.insert(id, begun);
        match next {
            Some(Next::Call(input)) => self.call(id, input, cx),
            Some(Next::Ended) => self.end(id, cx),
            None | Some(Next::GoesOn) => {}
        }
        Ok(())
    }

    /// A reply calls its tool.
    fn call(&mut self, id: SampleId, input: String, cx: &Context<Self>) {
        if let Some(under_way) = self.under_way.get(&id) {
            let partial = under_way.order.partial.as_ref();
            let turn = partial.map_or(0, |partial| partial.observed.turns());
            self.calling.begin(Call { id, turn, input }, cx);
        }
    }

    /// A reply has the answer of its tool.
    fn observe(&mut self, id: SampleId, answer: &str, waited: Duration, cx: &Context<Self>) {
        let Some(under_way) = self.under_way.get_mut(&id) else {
            return;
        };
        under_way.waited += waited;
        let Some(partial) = &mut under_way.order.partial else {
            return;
        };
        if !self.calling.observe(id, partial, answer) {
            self.end(id, cx);
        }
    }

    /// Orders that it can take: as there are slots, and no more than may wait for rewards later.
    fn room(&self) -> usize {
        let (free, active) = (self.engine.free_slots(), self.engine.active());
        let working = active + self.waiting.len() + self.calling.held();
        let held = working + self.judging.under_way();
        let most = HELD_PER_SLOT * (free + active);
        free.saturating_sub(self.waiting.len() + self.calling.answered.len())
            .min(most.saturating_sub(held))
    }

    /// Has what is finished judged, and what is called answered.
    fn collect(&mut self, responses: Vec<Response>, cx: &Context<Self>) -> Result<(), Failure> {
        for response in responses {
            let (id, paused) = (response.id, response.paused);
            let Some(under_way) = self.under_way.get_mut(&id) else {
                continue;
            };
            self.counts.tokens += response.tokens.len() as u64;
            under_way.take_in(response);
            let partial = under_way.order.partial.as_ref();
            match partial.filter(|_| paused).map(|it| self.calling.next(it)) {
                Some(Next::Call(input)) => self.call(id, input, cx),
                // It was no call.
                Some(Next::GoesOn) => self.engine.resume(&under_way.order)?,
                Some(Next::Ended) | None => self.end(id, cx),
            }
        }
        Ok(())
    }

    /// A reply is made: has it judged.
    fn end(&mut self, id: SampleId, cx: &Context<Self>) {
        self.engine.leave(id);
        let Some(under_way) = self.under_way.remove(&id) else {
            return;
        };
        let UnderWay {
            order,
            version,
            life,
            waited,
            span,
            ..
        } = under_way;
        let made = order.partial.unwrap_or_default();
        span.with("tokens", made.tokens.len()).end();
        self.counts.trajectories += 1;
        let trajectory = Trajectory {
            id,
            version,
            last_version: match self.args.swap {
                Swap::Interrupt => self.version.unwrap_or(version),
                Swap::Overlap | Swap::Drain => version,
            },
            life,
            last_life: match self.args.swap {
                Swap::Interrupt => self.edition.map_or(life, Edition::life),
                Swap::Overlap | Swap::Drain => life,
            },
            prompt: order.prompt,
            response: made.tokens,
            log_probs: made.log_probs,
            observed: made.observed,
            waited,
            problem: order.problem,
            reward: 0.0,
            correct: false,
            cost: 0.0,
        };
        self.judging.begin(trajectory, cx);
    }
}

/// A few steps of all active responses; ends early when none is left.
fn generate(engine: &mut dyn RolloutEngine) -> Result<Vec<Response>, Failure> {
    let mut finished = vec![];
    for _ in 0..engine.burst() {
        finished.extend(engine.step()?);
        if engine.active() == 0 {
            break;
        }
    }
    Ok(finished)
}

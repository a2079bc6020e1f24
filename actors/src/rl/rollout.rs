//! The rollout actor: generates trajectories without a barrier.
//!
//! It exchanges finished trajectories for orders and works on as many at once as its engine has
//! slots. When the relay has newer weights it takes the whole new version for what it begins from
//! then on, and what is under way comes to its end with the weights that it began with: every
//! trajectory comes from one version.

use std::collections::{HashMap, VecDeque};

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry::{self, OpenSpan};
use odeon::{Context, Down, Failure, Ref, actor, message};

use super::cost::{Cost, Weigh};
use super::relay::{Fresh, Latest, Relay, Subscribe};
use super::reward::{Judge, Reward};
use super::store::{Exchange, SampleStore};
use crate::engine::{EngineSpec, Response, RolloutEngine};
use crate::trajectory::{Order, SampleId, Trajectory, Version};

/// What a [`Rollout`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RolloutArgs {
    /// What generates.
    pub engine: EngineSpec,
    /// Where orders come from.
    pub store: Ref<SampleStore>,
    /// Where weights come from.
    pub relay: Ref<Relay>,
    /// Who judges.
    pub reward: Ref<Reward>,
    /// Who says what a reply costs, where that counts.
    pub cost: Option<Ref<Cost>>,
}

/// There may be orders.
#[message(name = "rollout.Wake")]
#[derive(Debug)]
pub struct Wake;

/// Generate a while. A rollout tells itself.
#[message(name = "rollout.Pump")]
#[derive(Debug)]
pub struct Pump;

/// What a rollout has done since it started.
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
}

/// Tokens generated for each active response between two looks into the mailbox. Few enough that
/// news is heard soon, many enough that looking costs nothing.
const STEPS_PER_PUMP: usize = 8;

/// Tokens of trajectories in one message, about: some 12 bytes each, far below the largest message.
const MESSAGE_TOKENS_MAX: usize = 64 << 10;

/// Orders in one message. A prompt of a thousand tokens has 4 KiB.
const ORDERS_MAX: usize = 256;

/// A trajectory that is being made, with the weights of one version.
struct UnderWay {
    order: Order,
    version: Version,
    /// For people to see.
    span: OpenSpan,
}

/// See the module.
pub struct Rollout {
    engine: Box<dyn RolloutEngine>,
    args: RolloutArgs,
    /// The weights in the engine.
    version: Option<Version>,
    /// The newest weights that the relay has told of.
    announced: Option<Version>,
    waiting: VecDeque<Order>,
    under_way: HashMap<SampleId, UnderWay>,
    finished: Vec<Trajectory>,
    /// Whether a [`Pump`] is in the mailbox.
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
        let engine =
            tokio::task::block_in_place(|| args.engine.rollout()).map_err(Failure::fatal)?;
        let me = cx.me();
        args.relay
            .ask(Subscribe(me.narrow()))
            .await
            .map_err(Failure::error)?;
        cx.watch(args.relay);
        Ok(Self {
            engine,
            args,
            version: None,
            announced: None,
            waiting: VecDeque::new(),
            under_way: HashMap::new(),
            finished: vec![],
            pumping: false,
            counts: RolloutCounts::default(),
        })
    }

    #[handler(message = Fresh)]
    async fn fresh(&mut self, fresh: Fresh, cx: &mut Context<Self>) {
        // A trainer that went back to its checkpoint may announce an older version: it is the one
        // that counts.
        self.announced = Some(fresh.0);
        self.pump_later(cx).await;
    }

    #[handler(message = Wake)]
    async fn wake(&mut self, _wake: Wake, cx: &mut Context<Self>) {
        self.pump_later(cx).await;
    }

    /// The relay has ended a life; subscribe to its next.
    #[handler(message = Down)]
    async fn down(&mut self, _down: Down, cx: &mut Context<Self>) {
        tracing::warn!("the relay is gone; waiting for its next life");
        // The ask queues behind the restart of the relay.
        match self.args.relay.ask(Subscribe(cx.me().narrow())).await {
            Ok(()) => cx.watch(self.args.relay),
            Err(error) => cx.fail(Failure::error(format!(
                "the relay did not come back: {error}"
            ))),
        }
    }

    #[handler(message = CountTokens)]
    fn count(&mut self, _count: CountTokens) -> RolloutCounts {
        RolloutCounts {
            version: self.version,
            ..self.counts
        }
    }

    #[handler(message = Pump)]
    async fn pump(&mut self, _pump: Pump, cx: &mut Context<Self>) {
        self.pumping = false;
        if let Err(failure) = self.work(cx).await {
            return cx.fail(failure);
        }
        if self.engine.active() > 0 || !self.waiting.is_empty() || !self.finished.is_empty() {
            self.pump_later(cx).await;
        }
    }

    async fn pump_later(&mut self, cx: &mut Context<Self>) {
        if !self.pumping && cx.me().tell(Pump).await.is_ok() {
            self.pumping = true;
        }
    }

    /// One turn: weights, orders, tokens, results.
    async fn work(&mut self, cx: &Context<Self>) -> Result<(), Failure> {
        let newer = self.announced.is_some() && self.announced != self.version;
        if newer && self.engine.can_load() {
            self.pull().await?;
        }
        let Some(version) = self.version else {
            return Ok(());
        };
        let room = self.engine.free_slots().saturating_sub(self.waiting.len());
        if !self.finished.is_empty() || room > 0 {
            self.exchange(cx, version, room).await?;
        }
        while self.engine.free_slots() > 0
            && let Some(order) = self.waiting.pop_front()
        {
            self.engine.admit(&order)?;
            let span = telemetry::span("trajectory")
                .with("version", version)
                .with("group", order.id.group)
                .with("sample", order.id.sample);
            let begun = UnderWay {
                order,
                version,
                span,
            };
            self.under_way.insert(begun.order.id, begun);
        }
        if self.engine.active() > 0 {
            let responses = tokio::task::block_in_place(|| generate(self.engine.as_mut()))?;
            self.collect(responses);
        }
        Ok(())
    }

    /// Swaps to the newest complete weights. When they cannot be had now, the old ones stay.
    async fn pull(&mut self) -> Result<(), Failure> {
        let Ok(Some(weights)) = self.args.relay.ask(Latest).await else {
            // The relay tells again when it has some.
            self.announced = self.version;
            return Ok(());
        };
        let view = match weights.blob.open().await {
            Ok(view) => view,
            Err(error) => {
                tracing::warn!(%error, "the weights are gone again; the relay will tell of others");
                self.announced = self.version;
                return Ok(());
            }
        };
        tokio::task::block_in_place(|| self.engine.load(&view))?;
        self.version = Some(weights.version);
        self.announced = self.version;
        telemetry::gauge("weights.version", weights.version as f64).record();
        Ok(())
    }

    /// Hands in what is finished, in as many messages as it takes, and gets orders with the last.
    async fn exchange(
        &mut self,
        cx: &Context<Self>,
        version: Version,
        room: usize,
    ) -> Result<(), Failure> {
        loop {
            let part = message_of(&mut self.finished);
            let last = self.finished.is_empty();
            let finished = if part.is_empty() {
                part
            } else {
                self.judged(part).await?
            };
            let exchange = Exchange {
                rollout: cx.me(),
                incarnation: cx.incarnation(),
                version,
                finished,
                room: if last { room.min(ORDERS_MAX) } else { 0 },
            };
            let orders = self
                .args
                .store
                .ask(exchange)
                .await
                .map_err(Failure::error)?;
            self.waiting.extend(orders);
            if last {
                return Ok(());
            }
        }
    }

    /// With reward and cost.
    async fn judged(&self, finished: Vec<Trajectory>) -> Result<Vec<Trajectory>, Failure> {
        let judge = Judge(finished);
        let judged = self.args.reward.ask(judge).await.map_err(Failure::error)?;
        match self.args.cost {
            Some(cost) => cost.ask(Weigh(judged)).await.map_err(Failure::error),
            None => Ok(judged),
        }
    }

    fn collect(&mut self, responses: Vec<Response>) {
        for Response {
            id,
            tokens,
            log_probs,
        } in responses
        {
            let Some(UnderWay {
                order,
                version,
                span,
            }) = self.under_way.remove(&id)
            else {
                continue;
            };
            span.with("tokens", tokens.len()).end();
            self.counts.tokens += tokens.len() as u64;
            self.counts.trajectories += 1;
            self.finished.push(Trajectory {
                id,
                version,
                prompt: order.prompt,
                response: tokens,
                log_probs,
                problem: order.problem,
                reward: 0.0,
                correct: false,
                cost: 0.0,
            });
        }
    }
}

/// Takes as many trajectories as fit into one message: at least one, if there is one.
fn message_of(finished: &mut Vec<Trajectory>) -> Vec<Trajectory> {
    let mut tokens = 0;
    let fits = finished.iter().take_while(|trajectory| {
        let fits = tokens < MESSAGE_TOKENS_MAX;
        tokens += trajectory.prompt.len() + trajectory.response.len();
        fits
    });
    let count = fits.count();
    finished.drain(..count).collect()
}

/// A few steps of all active responses; ends early when none is left.
fn generate(engine: &mut dyn RolloutEngine) -> Result<Vec<Response>, Failure> {
    let mut finished = vec![];
    for _ in 0..STEPS_PER_PUMP {
        finished.extend(engine.step()?);
        if engine.active() == 0 {
            break;
        }
    }
    Ok(finished)
}

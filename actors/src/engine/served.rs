//! Generation by a server of somebody else: vLLM or SGLang, over HTTP.
//!
//! Each response is one streamed request with token ids for a prompt, so that its tokens arrive as
//! they are made, each with its log-probability. Weights are written as safetensors into a folder
//! that the server reads too, and then it is told to read them; [`Dialect`] has the calls.
//!
//! A server belongs to one rollout: it is given weights and ended replies as that rollout wants it.
//!
//! - It has one set of weights, so new ones are taken when nothing is under way, or by
//!   [interruption](RolloutEngine::interrupt): then all requests are ended, and after the change what
//!   there is of each reply is the begin of a new request's prompt.
//! - A reply that is lost goes on the same way. When the connection broke, the server may have been
//!   started anew with weights of its own, so it is given the right ones first. One that was started
//!   anew while nothing was under way is known by the begin of its process, which vLLM tells with its
//!   metrics, or by the name of its weights, which SGLang tells with each event.
//! - Draws follow from the seed as far as the server's do; those of a reply that was lost on the way
//!   go on otherwise than if it had not been.
//!
//! Training compares log-probabilities with its own, at the sampling temperature, or at 1 and over all
//! tokens where `top_p` cuts the distribution. vLLM says the first with
//! `--logprobs-mode processed_logprobs` and the second without; SGLang the first, and the second with
//! `SGLANG_RETURN_ORIGINAL_LOGPROB=1`. At temperature 1 with `top_p` 1 they are the same.

mod client;
pub mod dialect;
mod error;
pub mod events;
mod folder;
pub mod retry;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};
use odeon_algorithms::model::ModelConfig;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use super::compute::ComputeSpec;
use super::{CacheUse, Response, RolloutEngine};
use crate::trajectory::{Decode, Order, SampleId};
use client::{Attempt, Client, Instance, News};
use dialect::Ask;
use folder::Weights;
use retry::Remedy;

pub use dialect::Dialect;
pub use error::{DecodeError, ServedError};
pub use retry::Patience;

/// Settings that a [`Served`] engine is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ServedSpec {
    /// The protocol that the servers speak.
    pub dialect: Dialect,
    /// Where they are, one for each rollout: `http://host:port`.
    pub urls: Vec<String>,
    /// The environment variable with the key that they want, if they want one.
    pub api_key_env: Option<String>,
    /// A folder under the same path here and there, in which weights are handed over.
    pub weights_dir: PathBuf,
    /// Timeouts and retries towards them.
    pub patience: Patience,
    /// Model, sampling and slots.
    pub compute: ComputeSpec,
}

impl ServedSpec {
    /// Keeps one of the servers.
    pub(super) fn take_server(&mut self, index: usize) {
        if !self.urls.is_empty() {
            let own = index % self.urls.len();
            self.urls = vec![self.urls.swap_remove(own)];
        }
    }

    fn key(&self) -> Result<Option<String>, ServedError> {
        let Some(name) = &self.api_key_env else {
            return Ok(None);
        };
        match std::env::var(name) {
            Ok(key) if !key.is_empty() => Ok(Some(key)),
            _ => Err(ServedError::Settings(format!(
                "the key for the server is to be in the environment variable {name}, which is not set \
                 where the rollout runs"
            ))),
        }
    }
}

/// A reply under way.
#[derive(Debug)]
struct Reply {
    order: Order,
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    attempt: u64,
    /// In a row, without a token in between.
    losses: u32,
    task: Option<AbortHandle>,
}

impl Reply {
    fn drop_last(&mut self) {
        self.tokens.pop();
        self.log_probs.pop();
    }
}

/// State of the server's weights, as far as it is known.
#[derive(Debug)]
enum Server {
    /// They are its own.
    Unset,
    /// They are the newest.
    Has(Instance),
    /// It is being given the newest again, for the so-manieth time.
    Restoring(u64, AbortHandle),
}

/// A rollout's engine that has a server of somebody else generate.
#[derive(Debug)]
pub struct Served {
    spec: ServedSpec,
    config: ModelConfig,
    client: Client,
    /// The server's name for its model.
    model: String,
    weights: Weights,
    server: Server,
    under_way: BTreeMap<SampleId, Reply>,
    /// Attempts and restorations so far.
    numbers: u64,
    out: Sender<News>,
    news: Mutex<Receiver<News>>,
    /// The part of its room that the server last told to be in use, as bits; not a number when it
    /// tells none.
    filled: Arc<AtomicU64>,
    /// Until the end.
    runtime: Option<Runtime>,
}

impl Served {
    /// A rollout whose weights are still to come. Waits for the server to be there.
    ///
    /// # Errors
    /// [`ServedError`]: the server is not there for too long, or serves something else.
    pub fn new(spec: &ServedSpec) -> Result<Self, ServedError> {
        let settings = |why: String| ServedError::Settings(why);
        let url = spec.urls.first();
        let url =
            url.ok_or_else(|| settings("a rollout has no server: expected urls".to_owned()))?;
        let architecture = spec.compute.architecture();
        let config = architecture.map_err(|failure| settings(failure.to_string()))?;
        let client = Client::new(spec.dialect, url, spec.key()?, spec.patience)?;
        let weights = Weights::new(&spec.weights_dir, url, &config, spec.compute.context)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("served")
            .enable_all()
            .build()
            .map_err(|error| settings(format!("no thread for the server's replies: {error}")))?;
        let filled = Arc::new(AtomicU64::new(f64::NAN.to_bits()));
        let (out, news) = mpsc::channel();
        let mut this = Self {
            spec: spec.clone(),
            config,
            client,
            model: String::new(),
            weights,
            server: Server::Unset,
            under_way: BTreeMap::new(),
            numbers: 0,
            out,
            news: Mutex::new(news),
            filled,
            runtime: Some(runtime),
        };
        let (model, context) = this.wait(this.client.clone().find_model())?;
        let wanted = this.spec.compute.context;
        if let Some(most) = context.filter(|most| *most < wanted) {
            return Err(settings(format!(
                "{url} takes sequences of {most} tokens at most, and the run has context = {wanted}: \
                 start it with a longer one, or make that smaller"
            )));
        }
        this.model = model;
        this.spawn(watch(this.client.clone(), Arc::clone(&this.filled)));
        Ok(this)
    }

    /// Has the server's thread do something.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let runtime = self.runtime.as_ref().expect("it is there until the end");
        runtime.spawn(work).abort_handle()
    }

    /// The same, and waits for it: whatever it is has its own bounds.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ServedError>> + Send + 'static,
    ) -> Result<T, ServedError> {
        let (done, wait) = mpsc::channel();
        self.spawn(async move {
            // Who waits is there.
            let _ = done.send(work.await);
        });
        let url = self.client.url.clone();
        let lost = |_| ServedError::BrokenOff {
            url,
            why: "what speaks to it has panicked".to_owned(),
        };
        wait.recv().map_err(lost).flatten()
    }

    /// Gives the server other weights; nothing is asked of it meanwhile.
    fn give(&mut self, bytes: &[u8]) -> Result<(), ServedError> {
        if let Server::Restoring(_, task) = &self.server {
            task.abort();
        }
        self.server = Server::Unset;
        let (folder, version) = self.weights.write(bytes)?;
        let given = self.client.clone().insist(folder, version);
        self.server = Server::Has(self.wait(given)?);
        self.weights.forget_older();
        Ok(())
    }

    /// Gives it the newest again, while others wait for their news.
    fn restore(&mut self) {
        self.end_requests();
        let Some((folder, version)) = self.weights.newest() else {
            return;
        };
        self.numbers += 1;
        let (number, client, out) = (self.numbers, self.client.clone(), self.out.clone());
        let task = self.spawn(async move {
            let restored = client.insist(folder, version).await;
            // Nobody listens any more: then nobody needs it.
            let _ = out.send(News::Updated(number, restored));
        });
        self.server = Server::Restoring(number, task);
    }

    /// Ends all requests; what there is of the replies stays, and what still comes of them is old
    /// news.
    fn end_requests(&mut self) {
        for reply in self.under_way.values_mut() {
            self.numbers += 1;
            reply.attempt = self.numbers;
            if let Some(task) = reply.task.take() {
                task.abort();
            }
        }
    }

    fn ask_all(&mut self) {
        let all: Vec<SampleId> = self.under_way.keys().copied().collect();
        for id in all {
            self.ask(id, Duration::ZERO);
        }
    }

    /// Asks for the rest of a reply, if the server has its weights; else that is done when it has.
    fn ask(&mut self, id: SampleId, after: Duration) {
        let (Server::Has(instance), Some(reply)) = (&self.server, self.under_way.get_mut(&id))
        else {
            return;
        };
        self.numbers += 1;
        reply.attempt = self.numbers;
        let number = self.numbers;
        let attempt = Attempt { id, number };
        let ask = ask_of(&self.spec.compute, reply);
        if is_whole(&ask, reply) {
            // It was whole when its connection broke, or when it came.
            let _ = self.out.send(News::Ended(attempt));
            return;
        }
        let (client, model) = (self.client.clone(), self.model.clone());
        let (instance, out) = (instance.clone(), self.out.clone());
        let task = self.spawn(client.reply(attempt, model, ask, instance, after, out));
        if let Some(reply) = self.under_way.get_mut(&id) {
            reply.task = Some(task);
        }
    }

    /// The reply that an attempt is the newest of.
    fn of(&mut self, attempt: Attempt) -> Option<&mut Reply> {
        let reply = self.under_way.get_mut(&attempt.id)?;
        (reply.attempt == attempt.number).then_some(reply)
    }

    fn take(&mut self, news: News, finished: &mut Vec<Response>) -> Result<(), ServedError> {
        match news {
            News::Made(attempt, tokens) => {
                if let Some(reply) = self.of(attempt) {
                    reply.losses = 0;
                    for (token, log_prob) in tokens {
                        reply.tokens.push(token);
                        reply.log_probs.push(log_prob);
                    }
                }
            }
            News::Ended(attempt) => {
                if self.of(attempt).is_some()
                    && let Some(reply) = self.under_way.remove(&attempt.id)
                {
                    finished.push(Response {
                        id: attempt.id,
                        tokens: reply.tokens,
                        log_probs: reply.log_probs,
                        paused: false,
                    });
                }
            }
            News::Lost(attempt, lost) => {
                let patience = self.spec.patience;
                let Some(reply) = self.of(attempt) else {
                    return Ok(());
                };
                reply.losses += 1;
                reply.task = None;
                let (losses, tokens) = (reply.losses, reply.tokens.len());
                tracing::warn!(error = %lost, losses, tokens, "a reply was lost on its way");
                match patience.remedy(&lost, losses) {
                    Remedy::Again { after } => self.ask(attempt.id, after),
                    Remedy::Restore => self.restore(),
                    Remedy::GiveUp => return Err(lost),
                }
            }
            News::Updated(number, restored) => {
                if matches!(self.server, Server::Restoring(awaited, _) if awaited == number) {
                    self.server = Server::Unset;
                    self.server = Server::Has(restored?);
                    self.ask_all();
                }
            }
        }
        Ok(())
    }

    /// Takes the news that have come by now; waits for the first so long.
    fn heard(&mut self, wait: Duration) -> Vec<News> {
        let news = self.news.get_mut().unwrap_or_else(PoisonError::into_inner);
        let first = news.recv_timeout(wait).ok();
        first.into_iter().chain(news.try_iter()).collect()
    }
}

impl RolloutEngine for Served {
    fn can_load(&self) -> bool {
        self.under_way.is_empty()
    }

    fn load(&mut self, weights: &[u8]) -> Result<(), Failure> {
        self.give(weights).map_err(Failure::error)
    }

    fn free_slots(&self) -> usize {
        self.spec.compute.slots.saturating_sub(self.under_way.len())
    }

    fn active(&self) -> usize {
        self.under_way.len()
    }

    fn admit(&mut self, order: &Order) -> Result<(), Failure> {
        let (id, context) = (order.id, self.spec.compute.context);
        if order.prompt.is_empty() || order.prompt.len() >= context {
            return Err(Failure::error(format!(
                "a prompt of {} tokens does not fit into a context of {context} with a reply",
                order.prompt.len()
            )));
        }
        let reply = Reply {
            order: order.clone(),
            tokens: vec![],
            log_probs: vec![],
            attempt: 0,
            losses: 0,
            task: None,
        };
        self.under_way.insert(id, reply);
        self.ask(id, Duration::ZERO);
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Response>, Failure> {
        let mut finished = vec![];
        for news in self.heard(STEP_WAIT) {
            self.take(news, &mut finished).map_err(Failure::error)?;
        }
        Ok(finished)
    }

    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure> {
        // What was made with the weights before counts. Of a reply that they have just ended the last
        // token is made anew: whoever ends from now on is said to have been ended by the new ones.
        for news in self.heard(Duration::ZERO) {
            match news {
                News::Made(..) => self.take(news, &mut vec![]).map_err(Failure::error)?,
                News::Ended(attempt) => {
                    if let Some(reply) = self.of(attempt) {
                        reply.drop_last();
                    }
                }
                News::Lost(..) | News::Updated(..) => {}
            }
        }
        let spec = &self.spec.compute;
        for reply in self.under_way.values_mut() {
            if is_whole(&ask_of(spec, reply), reply) {
                reply.drop_last();
            }
        }
        self.end_requests();
        self.give(weights).map_err(Failure::error)?;
        self.ask_all();
        Ok(())
    }

    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response> {
        let all = self.under_way.iter();
        let from_there_on = |(id, reply): (&SampleId, &Reply)| {
            let from = from(*id).min(reply.tokens.len());
            Response {
                id: *id,
                tokens: reply.tokens[from..].to_vec(),
                log_probs: reply.log_probs[from..].to_vec(),
                paused: false,
            }
        };
        all.map(from_there_on).collect()
    }

    fn withdraw(&mut self) {
        self.end_requests();
        self.under_way.clear();
    }

    fn cache(&self) -> CacheUse {
        let config = &self.config;
        let token = (2 * config.layers * config.kv_heads * config.head_dim * 4) as u64;
        let capacity = (self.spec.compute.slots * self.spec.compute.context) as u64 * token;
        let told = f64::from_bits(self.filled.load(Ordering::Relaxed));
        let used = if told.is_nan() {
            let tokens =
                |it: &Reply| it.order.prompt.len() + begun(&it.order).len() + it.tokens.len();
            self.under_way.values().map(tokens).sum::<usize>() as u64 * token
        } else {
            (told.clamp(0.0, 1.0) * capacity as f64) as u64
        };
        CacheUse { used, capacity }
    }

    /// A step waits for what arrives, however much that is.
    fn burst(&self) -> usize {
        1
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Connections close, by which the server knows that nobody wants the replies.
            runtime.shutdown_background();
        }
    }
}

/// Tokens that a reply had when it was ordered.
fn begun(order: &Order) -> &[u32] {
    order.partial.as_ref().map_or(&[], |it| &it.tokens)
}

/// The rest of a reply.
fn ask_of(spec: &ComputeSpec, reply: &Reply) -> Ask {
    let (order, begun) = (&reply.order, begun(&reply.order));
    let prompt = [&order.prompt, begun, &reply.tokens].concat();
    let have = begun.len() + reply.tokens.len();
    let room = spec.context.saturating_sub(prompt.len());
    // A server draws from the begin of its numbers again, which must not be those of the tokens
    // before; without any they are those of the rollouts that compute.
    let further = (have as u64).wrapping_mul(0xd134_2543_de82_ef95);
    Ask {
        tokens_max: spec.sampling.response_max.saturating_sub(have).min(room),
        temperature: match order.decode {
            Decode::Sampled => spec.sampling.temperature,
            Decode::Greedy => 0.0,
        },
        top_p: spec.sampling.top_p,
        seed: spec.seed_of(order.id) ^ further,
        ends: spec.tokenizer.ends().to_vec(),
        prompt,
    }
}

/// Returns true when nothing is left to ask for.
fn is_whole(ask: &Ask, reply: &Reply) -> bool {
    ask.tokens_max == 0
        || reply
            .tokens
            .last()
            .is_some_and(|last| ask.ends.contains(last))
}

/// Looks from time to time how much of its room the server uses.
async fn watch(client: Client, filled: Arc<AtomicU64>) {
    loop {
        let told = client.metrics().await.ok().and_then(|it| it.cache);
        filled.store(told.unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
        tokio::time::sleep(WATCH_PERIOD).await;
    }
}

/// The longest that a step waits for news: the actor looks into its mailbox that often.
const STEP_WAIT: Duration = Duration::from_millis(50);

/// Between two looks at the server's room.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

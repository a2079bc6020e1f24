//! Generation with continuous batching.

use std::collections::HashSet;

use odeon::Failure;
use odeon_algorithms::environment::{Environment, Next};
use odeon_algorithms::generate::{Finish, GeneratorConfig, Request, Sampled, Sampling as Draws};
use odeon_algorithms::model::ModelConfig;
use odeon_gpu::Any;

use super::{ComputeSpec, Generator, ModelSource, Sampling, read_fields};
use crate::engine::{CacheUse, Response, RolloutEngine};
use crate::trajectory::{Decode, Order, SampleId};

impl ComputeSpec {
    /// The architecture, without the weights.
    pub(in crate::engine) fn architecture(&self) -> Result<ModelConfig, Failure> {
        match &self.source {
            ModelSource::Fresh(config) => Ok(ModelConfig::clone(config)),
            ModelSource::Load(path) => Ok(read_fields(path)?.model_config()),
        }
    }

    /// The environment that replies act in, where there is one.
    pub(crate) fn environment(&self) -> Option<Environment> {
        let environment = self.environment?;
        Some(Environment::new(environment, self.tokenizer.clone()))
    }

    /// The seed for all draws of a sample.
    pub(in crate::engine) const fn seed_of(&self, id: SampleId) -> u64 {
        self.seed ^ number(id).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn generator(&self) -> Result<Generator, Failure> {
        let options = GeneratorConfig {
            slots: self.slots,
            max_tokens: self.context,
            ..GeneratorConfig::default()
        };
        Generator::new(self.backend()?, self.architecture()?, options).map_err(Failure::error)
    }
}

/// The log-probabilities that the trainer compares with: those of the distribution that was drawn
/// from, unless nucleus sampling cut it, which training cannot repeat.
const fn trains_at_temperature(sampling: Sampling) -> bool {
    sampling.top_p >= 1.0
}

/// The temperature at which policies are rated in training.
pub(super) const fn training_temperature(sampling: Sampling) -> f32 {
    if trains_at_temperature(sampling) {
        sampling.temperature
    } else {
        1.0
    }
}

/// A rollout's engine. While responses of the weights before are under way it holds two sets of
/// weights, each with its cache, and never more. The samples of a group have the keys and values of
/// their prompt in common, which is computed once.
#[derive(Debug)]
pub struct Rollout {
    spec: ComputeSpec,
    /// With the newest weights: what is admitted goes here.
    newest: Weighted,
    /// With the weights before; made when it is needed first.
    before: Option<Weighted>,
    /// Tokens at which a response stops.
    stops: Vec<u32>,
}

/// One set of weights, and what it is in use for.
#[derive(Debug)]
struct Weighted {
    generator: Generator,
    /// Responses that go on with these weights when they are resumed. What was computed of them is
    /// found in the cache then, unless its room was needed.
    paused: HashSet<u64>,
}

impl Weighted {
    fn new(spec: &ComputeSpec) -> Result<Self, Failure> {
        Ok(Self {
            generator: spec.generator()?,
            paused: HashSet::new(),
        })
    }

    fn is_idle(&self) -> bool {
        self.generator.is_idle() && self.paused.is_empty()
    }
}

impl Rollout {
    /// A rollout whose weights are still to come.
    ///
    /// # Errors
    /// The model's description is wrong.
    pub fn new(spec: &ComputeSpec) -> Result<Self, Failure> {
        let environment = spec.environment();
        let closing = environment.iter().flat_map(Environment::closing);
        Ok(Self {
            newest: Weighted::new(spec)?,
            before: None,
            stops: spec
                .tokenizer
                .ends()
                .iter()
                .chain(closing)
                .copied()
                .collect(),
            spec: spec.clone(),
        })
    }

    fn all(&self) -> impl Iterator<Item = &Weighted> {
        std::iter::once(&self.newest).chain(&self.before)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Weighted> {
        std::iter::once(&mut self.newest).chain(&mut self.before)
    }

    fn generators(&self) -> impl Iterator<Item = &Generator> {
        self.all().map(|it| &it.generator)
    }

    /// The request for the tokens behind all that there is of a reply.
    fn request(&self, order: &Order) -> Request {
        let sampling = self.spec.sampling;
        let begun: &[u32] = order.partial.as_ref().map_or(&[], |it| &it.tokens);
        Request {
            id: number(order.id),
            prompt: [order.prompt.as_slice(), begun].concat(),
            max_new_tokens: sampling.response_max.saturating_sub(begun.len()),
            sampling: Draws {
                temperature: match order.decode {
                    Decode::Sampled => sampling.temperature,
                    Decode::Greedy => 0.0,
                },
                top_p: sampling.top_p,
                stop: self.stops.clone(),
            },
            seed: self.spec.seed_of(order.id),
            resumed: begun.len(),
        }
    }
}

impl RolloutEngine for Rollout {
    fn can_load(&self) -> bool {
        self.before.as_ref().is_none_or(Weighted::is_idle)
    }

    fn load(&mut self, weights: &[u8]) -> Result<(), Failure> {
        if !self.newest.is_idle() {
            let before = match &mut self.before {
                Some(before) => before,
                none => none.insert(Weighted::new(&self.spec)?),
            };
            std::mem::swap(&mut self.newest, before);
        }
        let load = self.newest.generator.load_bytes(weights, self.spec.weights);
        load.map_err(Failure::error)
    }

    fn free_slots(&self) -> usize {
        self.spec.slots.saturating_sub(self.active())
    }

    fn active(&self) -> usize {
        self.generators().map(|g| g.active() + g.queued()).sum()
    }

    fn admit(&mut self, order: &Order) -> Result<(), Failure> {
        let request = self.request(order);
        let submitted = self.newest.generator.submit(request);
        submitted.map_err(Failure::error)
    }

    fn resume(&mut self, order: &Order) -> Result<(), Failure> {
        let (id, request) = (number(order.id), self.request(order));
        let mut all = self.all_mut();
        let with = all.find_map(|it| it.paused.remove(&id).then_some(it));
        let with = with.ok_or_else(|| Failure::error("a reply goes on that has not paused"))?;
        with.generator.submit(request).map_err(Failure::error)
    }

    fn pause(&mut self, id: SampleId) {
        self.newest.paused.insert(number(id));
    }

    fn leave(&mut self, id: SampleId) {
        for with in self.all_mut() {
            with.paused.remove(&number(id));
        }
    }

    fn step(&mut self) -> Result<Vec<Response>, Failure> {
        let (sampling, tokenizer) = (self.spec.sampling, self.spec.tokenizer.clone());
        let mut ended = vec![];
        for with in self.all_mut() {
            for sampled in with.generator.step() {
                let stopped = sampled.finish == Finish::Stop;
                let last = sampled.tokens.last();
                let paused = stopped && !last.is_some_and(|last| tokenizer.is_end(*last));
                if paused {
                    with.paused.insert(sampled.id);
                }
                ended.push(Response {
                    paused,
                    ..response(&sampled, sampling, 0)
                });
            }
        }
        Ok(ended)
    }

    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure> {
        let newest = &mut self.newest.generator;
        let load = newest.load_bytes(weights, self.spec.weights);
        load.map_err(Failure::error)?;
        newest.forget_caches();
        Ok(())
    }

    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response> {
        let all = self.generators().flat_map(Generator::running);
        let sampling = self.spec.sampling;
        all.map(|it| response(it, sampling, from(sample(it.id))))
            .collect()
    }

    fn withdraw(&mut self) {
        for with in self.all_mut() {
            with.generator.evict();
            with.generator.take_queued();
            with.paused.clear();
        }
    }

    fn cache(&self) -> CacheUse {
        let newest = &self.newest.generator;
        let block = newest.block_bytes();
        let held: usize = self.generators().map(|it| it.cache().held).sum();
        CacheUse {
            used: held as u64 * block,
            // Both have blocks for all slots, which they share.
            capacity: newest.cache().blocks as u64 * block,
        }
    }
}

const fn number(id: SampleId) -> u64 {
    (id.group << SAMPLE_BITS) | id.sample as u64
}

const fn sample(number: u64) -> SampleId {
    SampleId {
        group: number >> SAMPLE_BITS,
        sample: (number & ((1 << SAMPLE_BITS) - 1)) as u32,
    }
}

/// A sequence from its `from`th token on.
fn response(sampled: &Sampled, sampling: Sampling, from: usize) -> Response {
    let log_probs = if trains_at_temperature(sampling) {
        &sampled.sampling_logprobs
    } else {
        &sampled.logprobs
    };
    let from = from.min(sampled.tokens.len());
    Response {
        id: sample(sampled.id),
        tokens: sampled.tokens[from..].to_vec(),
        log_probs: log_probs[from..].to_vec(),
        paused: false,
    }
}

/// Answers many prompts and waits for all.
#[derive(Debug)]
pub struct Sampler {
    generator: Generator,
    sampling: Sampling,
    /// Tokens that end an answer.
    ends: Vec<u32>,
    seed: u64,
    asked: u64,
    /// The environment that answers may call.
    environment: Option<Environment>,
}

/// Runs calls of several answers and gives the tool's outputs, in their order.
pub type RunCalls<'a> = &'a mut dyn FnMut(Vec<String>) -> Result<Vec<String>, Failure>;

impl Sampler {
    /// Takes the likeliest token each time.
    ///
    /// # Errors
    /// The model's description is wrong.
    pub fn greedy(spec: &ComputeSpec) -> Result<Self, Failure> {
        let sampling = Sampling {
            temperature: 0.0,
            top_p: 1.0,
            ..spec.sampling
        };
        Self::new(spec, sampling)
    }

    /// Draws as told.
    ///
    /// # Errors
    /// The model's description is wrong.
    pub fn new(spec: &ComputeSpec, sampling: Sampling) -> Result<Self, Failure> {
        Ok(Self {
            generator: spec.generator()?,
            sampling,
            ends: spec.tokenizer.ends().to_vec(),
            seed: 0,
            asked: 0,
            environment: spec.environment(),
        })
    }

    /// A sampler of a model that is described by hand.
    ///
    /// # Errors
    /// The architecture contradicts itself.
    pub fn of(
        config: ModelConfig,
        backend: Any,
        sampling: Sampling,
        ends: Vec<u32>,
        slots: usize,
        context: usize,
    ) -> Result<Self, Failure> {
        let options = GeneratorConfig {
            slots,
            max_tokens: context,
            ..GeneratorConfig::default()
        };
        let generator = Generator::new(backend, config, options).map_err(Failure::error)?;
        Ok(Self {
            generator,
            sampling,
            ends,
            seed: 0,
            asked: 0,
            environment: None,
        })
    }

    /// Answers may call a tool from now on; see [`Sampler::answer_calling`].
    #[must_use]
    pub fn within(mut self, environment: Option<Environment>) -> Self {
        self.environment = environment;
        self
    }

    /// Draws from this seed on; each prompt has draws of its own.
    #[must_use]
    pub const fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Takes weights in the order of the model's layout.
    ///
    /// # Errors
    /// They are of another model.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), Failure> {
        self.generator.load_flat(flat).map_err(Failure::error)
    }

    /// The responses, in the order of the prompts, without the token that ended them.
    ///
    /// # Errors
    /// A prompt does not fit.
    pub fn answer(&mut self, prompts: &[Vec<u32>]) -> Result<Vec<Vec<u32>>, Failure> {
        self.answer_telling(prompts, |_| {})
    }

    /// The same, and tells after each step how many prompts are answered.
    ///
    /// # Errors
    /// A prompt does not fit.
    pub fn answer_telling(
        &mut self,
        prompts: &[Vec<u32>],
        tell: impl FnMut(u64),
    ) -> Result<Vec<Vec<u32>>, Failure> {
        let mut none = |_: Vec<String>| Err(Failure::error("there is no tool to call"));
        self.answer_calling(prompts, &mut none, tell)
    }

    /// The same where answers may call a tool: calls that all answers have come to are made together.
    ///
    /// # Errors
    /// A prompt does not fit, or the tool is lost.
    pub fn answer_calling(
        &mut self,
        prompts: &[Vec<u32>],
        calls: RunCalls<'_>,
        mut tell: impl FnMut(u64),
    ) -> Result<Vec<Vec<u32>>, Failure> {
        for (id, prompt) in (0u64..).zip(prompts) {
            self.submit(id, prompt, &[])?;
        }
        let mut answers: Vec<Answer> = vec![Answer::default(); prompts.len()];
        let mut answered = 0;
        loop {
            let mut calling = vec![];
            while !self.generator.is_idle() {
                for Sampled { id, tokens, .. } in self.generator.step() {
                    let answer = &mut answers[id as usize];
                    answer.tokens.extend(tokens);
                    match self.next(answer) {
                        Some(Next::Call(input)) => calling.push((id, input)),
                        Some(Next::GoesOn) => {
                            self.submit(id, &prompts[id as usize], &answer.tokens)?;
                        }
                        Some(Next::Ended) | None => answered += 1,
                    }
                }
                tell(answered);
            }
            if calling.is_empty() {
                break;
            }
            let (ids, inputs): (Vec<u64>, Vec<String>) = calling.into_iter().unzip();
            for (id, output) in ids.into_iter().zip(calls(inputs)?) {
                let answer = &mut answers[id as usize];
                if self.observe(answer, &output) {
                    self.submit(id, &prompts[id as usize], &answer.tokens)?;
                } else {
                    answered += 1;
                }
            }
        }
        let without_stop = |mut answer: Answer| {
            answer.tokens.pop_if(|last| self.ends.contains(last));
            answer.tokens
        };
        Ok(answers.into_iter().map(without_stop).collect())
    }

    /// The next thing to do for an answer that has stopped; `None` where it has ended.
    fn next(&self, answer: &Answer) -> Option<Next> {
        let environment = self.environment.as_ref()?;
        let last = answer.tokens.last()?;
        let room = answer.tokens.len() < self.sampling.response_max;
        let closes = environment.closing().contains(last) && room;
        closes.then(|| environment.next(&answer.tokens[answer.observed..], answer.turns))
    }

    /// Writes what a tool has answered into an answer, where there is room for that and more.
    fn observe(&self, answer: &mut Answer, output: &str) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        let observation = environment.observation(output);
        let fits = answer.tokens.len() + observation.len() < self.sampling.response_max;
        if fits {
            answer.tokens.extend(observation);
            answer.observed = answer.tokens.len();
            answer.turns += 1;
        }
        fits
    }

    /// The response to one prompt, without the token that ended it; shows what there is of it after
    /// each step.
    ///
    /// # Errors
    /// The prompt does not fit.
    pub fn answer_showing(
        &mut self,
        prompt: &[u32],
        mut show: impl FnMut(&[u32]),
    ) -> Result<Vec<u32>, Failure> {
        self.submit(0, prompt, &[])?;
        loop {
            if let Some(mut sampled) = self.generator.step().pop() {
                sampled.tokens.pop_if(|last| self.ends.contains(last));
                return Ok(sampled.tokens);
            }
            if let Some(tokens) = self.generator.sampled(0) {
                show(tokens);
            }
        }
    }

    /// Has an answer made, or gone on with behind what there is of it.
    fn submit(&mut self, id: u64, prompt: &[u32], begun: &[u32]) -> Result<(), Failure> {
        let environment = self.environment.iter();
        let closing = environment.flat_map(Environment::closing).copied();
        let request = Request {
            id,
            prompt: [prompt, begun].concat(),
            max_new_tokens: self.sampling.response_max.saturating_sub(begun.len()),
            sampling: Draws {
                temperature: self.sampling.temperature,
                top_p: self.sampling.top_p,
                stop: self.ends.iter().copied().chain(closing).collect(),
            },
            seed: self.seed ^ self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            resumed: begun.len(),
        };
        self.generator.submit(request).map_err(Failure::error)?;
        self.asked += 1;
        Ok(())
    }
}

/// The tokens of an answer so far.
#[derive(Clone, Debug, Default)]
struct Answer {
    tokens: Vec<u32>,
    /// The first token behind what a tool wrote last.
    observed: usize,
    turns: usize,
}

/// A request's number holds group and sample; groups are far below 2^44.
const SAMPLE_BITS: u32 = 20;

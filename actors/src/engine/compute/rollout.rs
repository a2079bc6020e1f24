//! Generation with continuous batching.

use odeon::Failure;
use odeon_algorithms::generate::{GeneratorConfig, Request, Sampled, Sampling as Draws};
use odeon_algorithms::model::ModelConfig;
use odeon_gpu::Any;

use super::{ComputeSpec, Generator, ModelSource, Sampling, read_fields};
use crate::engine::{CacheUse, Response, RolloutEngine};
use crate::trajectory::{Decode, Order, SampleId};

impl ComputeSpec {
    /// The architecture, without the weights.
    pub(in crate::engine) fn architecture(&self) -> Result<ModelConfig, Failure> {
        match &self.source {
            ModelSource::Fresh(config) => Ok(config.clone()),
            ModelSource::Load(path) => read_fields(path)?.model_config().map_err(Failure::error),
        }
    }

    /// What the draws of a sample follow from.
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
    newest: Generator,
    /// With the weights before; made when it is needed first.
    before: Option<Generator>,
}

impl Rollout {
    /// A rollout whose weights are still to come.
    ///
    /// # Errors
    /// The model's description is wrong.
    pub fn new(spec: &ComputeSpec) -> Result<Self, Failure> {
        Ok(Self {
            newest: spec.generator()?,
            before: None,
            spec: spec.clone(),
        })
    }

    fn generators(&self) -> impl Iterator<Item = &Generator> {
        std::iter::once(&self.newest).chain(&self.before)
    }
}

impl RolloutEngine for Rollout {
    fn can_load(&self) -> bool {
        self.before.as_ref().is_none_or(Generator::is_idle)
    }

    fn load(&mut self, weights: &[u8]) -> Result<(), Failure> {
        if !self.newest.is_idle() {
            let before = match &mut self.before {
                Some(before) => before,
                none => none.insert(self.spec.generator()?),
            };
            std::mem::swap(&mut self.newest, before);
        }
        let load = self.newest.load_bytes(weights, self.spec.weights);
        load.map_err(Failure::error)
    }

    fn free_slots(&self) -> usize {
        self.spec.slots.saturating_sub(self.active())
    }

    fn active(&self) -> usize {
        self.generators().map(|g| g.active() + g.queued()).sum()
    }

    fn admit(&mut self, order: &Order) -> Result<(), Failure> {
        let id = number(order.id);
        let sampling = self.spec.sampling;
        let begun: &[u32] = order.partial.as_ref().map_or(&[], |it| &it.tokens);
        let request = Request {
            id,
            prompt: [order.prompt.as_slice(), begun].concat(),
            max_new_tokens: sampling.response_max.saturating_sub(begun.len()),
            sampling: Draws {
                temperature: match order.decode {
                    Decode::Sampled => sampling.temperature,
                    Decode::Greedy => 0.0,
                },
                top_p: sampling.top_p,
                stop: vec![self.spec.tokenizer.eos()],
            },
            seed: self.spec.seed_of(order.id),
            resumed: begun.len(),
        };
        self.newest.submit(request).map_err(Failure::error)
    }

    fn step(&mut self) -> Result<Vec<Response>, Failure> {
        let mut finished = self.newest.step();
        if let Some(before) = &mut self.before {
            finished.append(&mut before.step());
        }
        let sampling = self.spec.sampling;
        Ok(finished
            .iter()
            .map(|it| response(it, sampling, 0))
            .collect())
    }

    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure> {
        let load = self.newest.load_bytes(weights, self.spec.weights);
        load.map_err(Failure::error)?;
        self.newest.forget_caches();
        Ok(())
    }

    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response> {
        let all = self.generators().flat_map(Generator::running);
        let sampling = self.spec.sampling;
        all.map(|it| response(it, sampling, from(sample(it.id))))
            .collect()
    }

    fn withdraw(&mut self) {
        for generator in std::iter::once(&mut self.newest).chain(&mut self.before) {
            generator.evict();
            generator.take_queued();
        }
    }

    fn cache(&self) -> CacheUse {
        let block = self.newest.block_bytes();
        let held: usize = self.generators().map(|it| it.cache().held).sum();
        CacheUse {
            used: held as u64 * block,
            // Both have blocks for all slots, which they share.
            capacity: self.newest.cache().blocks as u64 * block,
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
    }
}

/// Answers many prompts and waits for all.
#[derive(Debug)]
pub struct Sampler {
    generator: Generator,
    sampling: Sampling,
    stop: u32,
    seed: u64,
    asked: u64,
}

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
            stop: spec.tokenizer.eos(),
            seed: 0,
            asked: 0,
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
        stop: u32,
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
            stop,
            seed: 0,
            asked: 0,
        })
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
        mut tell: impl FnMut(u64),
    ) -> Result<Vec<Vec<u32>>, Failure> {
        for (id, prompt) in (0u64..).zip(prompts) {
            self.submit(id, prompt)?;
        }
        let mut answers = vec![vec![]; prompts.len()];
        let mut answered = 0;
        while !self.generator.is_idle() {
            for (id, tokens) in self.step() {
                answers[id as usize] = tokens;
                answered += 1;
            }
            tell(answered);
        }
        Ok(answers)
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
        self.submit(0, prompt)?;
        loop {
            if let Some((_, tokens)) = self.step().pop() {
                return Ok(tokens);
            }
            if let Some(tokens) = self.generator.sampled(0) {
                show(tokens);
            }
        }
    }

    fn submit(&mut self, id: u64, prompt: &[u32]) -> Result<(), Failure> {
        let request = Request {
            id,
            prompt: prompt.to_vec(),
            max_new_tokens: self.sampling.response_max,
            sampling: Draws {
                temperature: self.sampling.temperature,
                top_p: self.sampling.top_p,
                stop: vec![self.stop],
            },
            seed: self.seed ^ self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            resumed: 0,
        };
        self.generator.submit(request).map_err(Failure::error)?;
        self.asked += 1;
        Ok(())
    }

    /// The requests that end with the next tokens, and their responses without the token that ends
    /// one.
    fn step(&mut self) -> Vec<(u64, Vec<u32>)> {
        let mut ended = self.generator.step();
        for sampled in &mut ended {
            if sampled.tokens.last() == Some(&self.stop) {
                sampled.tokens.pop();
            }
        }
        ended
            .into_iter()
            .map(|sampled| (sampled.id, sampled.tokens))
            .collect()
    }
}

/// A request's number holds group and sample; groups are far below 2^44.
const SAMPLE_BITS: u32 = 20;

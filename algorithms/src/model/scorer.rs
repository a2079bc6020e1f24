//! Forward passes without gradients: reference log-probabilities and critic values.

use odeon_gpu::{Arena, Backend, Cpu, Plan, Tape};

use super::lora::Adapters;
use super::network::{self, Outputs, Wanted};
use super::{Batch, Model};

/// What a model says of each response token of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScores {
    /// Log-probability of the token.
    pub logprobs: Vec<f32>,
    /// Entropy of the distribution it was drawn from, in nats.
    pub entropies: Vec<f32>,
    /// Value of the state before the token; empty without a value head.
    pub values: Vec<f32>,
}

/// A model and the memory of its forward passes.
///
/// ```
/// use odeon_algorithms::model::{Batch, Model, ModelConfig, Scorer, Sequence};
/// use odeon_gpu::Cpu;
///
/// let model = Model::init(Cpu::new(1), ModelConfig::default(), 7)?;
/// let mut reference = Scorer::new(model);
/// let batch = Batch::pack(&[Sequence { tokens: &[1, 2, 3, 4], prompt: 2 }])?;
/// let scores = reference.logprobs(&batch);
/// assert_eq!(scores.logprobs.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Scorer<B: Backend = Cpu> {
    model: Model<B>,
    arena: Arena<B>,
}

impl<B: Backend> Scorer<B> {
    /// Takes the model.
    #[must_use]
    pub fn new(model: Model<B>) -> Self {
        Self {
            model,
            arena: Arena::default(),
        }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// The model, to load weights into.
    #[must_use]
    pub fn model_mut(&mut self) -> &mut Model<B> {
        &mut self.model
    }

    /// Gives the model back.
    #[must_use]
    pub fn into_model(self) -> Model<B> {
        self.model
    }

    /// Bytes of activations held; the largest batch so far decides.
    #[must_use]
    pub fn activation_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Log-probabilities and entropies of the response tokens.
    #[must_use]
    pub fn logprobs(&mut self, batch: &Batch) -> TokenScores {
        self.score(
            batch,
            Wanted {
                logprobs: true,
                values: false,
            },
        )
    }

    /// Values of the states before the response tokens; empty if the model has no value head.
    #[must_use]
    pub fn values(&mut self, batch: &Batch) -> Vec<f32> {
        self.score(
            batch,
            Wanted {
                logprobs: false,
                values: true,
            },
        )
        .values
    }

    fn score(&mut self, batch: &Batch, wanted: Wanted) -> TokenScores {
        if batch.predicted() == 0 {
            return TokenScores::default();
        }
        let (model, arena) = (&self.model, &mut self.arena);
        let mut tape = Tape::new();
        let outputs = model.record(&mut tape, batch, wanted);
        let plan = tape.plan_inference(&outputs.vars());
        arena.prepare(&model.backend, &plan);
        model.backend.scope(|| {
            tape.forward(&model.backend, arena, &plan, &model.param_sets());
            outputs.read(&model.backend, &tape, arena, &plan)
        })
    }
}

impl Outputs {
    pub(crate) fn vars(&self) -> Vec<odeon_gpu::Var> {
        let vocab = self.vocab.into_iter().flat_map(|v| [v.logprob, v.entropy]);
        vocab.chain(self.values).collect()
    }

    pub(crate) fn read<B: Backend>(
        &self,
        backend: &B,
        tape: &Tape<B>,
        arena: &Arena<B>,
        plan: &Plan,
    ) -> TokenScores {
        let read = |v| tape.read(backend, arena, plan, v);
        TokenScores {
            logprobs: self.vocab.map(|v| read(v.logprob)).unwrap_or_default(),
            entropies: self.vocab.map(|v| read(v.entropy)).unwrap_or_default(),
            values: self.values.map(read).unwrap_or_default(),
        }
    }
}

impl<B: Backend> Model<B> {
    pub(crate) fn record(&self, tape: &mut Tape<B>, batch: &Batch, wanted: Wanted) -> Outputs {
        let adapters = self.adapters.as_ref();
        network::record(tape, &self.config, &self.places, adapters, batch, wanted)
    }

    /// The parameter sets a recording reads.
    pub(crate) fn param_sets(&self) -> Vec<&B::Buffer> {
        std::iter::once(&self.params)
            .chain(self.adapters.as_ref().map(Adapters::params))
            .collect()
    }

    /// The model's own weights, adapters left out.
    pub(crate) fn params(&self) -> &B::Buffer {
        &self.params
    }

    pub(crate) fn adapters(&self) -> Option<&Adapters<B>> {
        self.adapters.as_ref()
    }

    pub(crate) fn adapters_mut(&mut self) -> Option<&mut Adapters<B>> {
        self.adapters.as_mut()
    }

    /// The layout and the buffer of the set that is trained.
    pub(crate) fn trained(&mut self) -> (&odeon_gpu::Layout, &mut B::Buffer) {
        match &mut self.adapters {
            None => (&self.layout, &mut self.params),
            Some(adapters) => adapters.layout_and_params_mut(),
        }
    }

    /// Which parameter sets are trained.
    pub(crate) fn trainable_sets(&self) -> Vec<bool> {
        if self.adapters.is_some() {
            vec![false, true]
        } else {
            vec![true]
        }
    }
}

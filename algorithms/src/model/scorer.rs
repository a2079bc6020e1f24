//! Forward passes without gradients: reference log-probabilities and critic values.

use odeon_gpu::{Arena, Backend, Cpu, Plan, Tape};

use super::lora::Adapters;
use super::network;
use super::outputs::{Outputs, Seen, StageVars, Wanted};
use super::recompute::Recompute;
use super::shard::ShardCopies;
use super::sharded::{Gathered, over_sets};
use super::stage::Stage;
use super::vision::{self, Encoded, Pictures};
use super::{Batch, Model};

/// The scores that a model gives each response token of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScores {
    /// Log-probability of the token.
    pub logprobs: Vec<f32>,
    /// Entropy of the distribution it was drawn from, in nats.
    pub entropies: Vec<f32>,
    /// Value of the state before the token; empty without a value head.
    pub values: Vec<f32>,
}

/// The scores of a batch that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoresRead {
    /// All that the model gives.
    #[default]
    All,
    /// Values.
    Values,
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
    /// What is gathered of shards.
    gathered: Gathered<B>,
}

impl<B: Backend> Scorer<B> {
    /// Takes the model.
    #[must_use]
    pub fn new(model: Model<B>) -> Self {
        Self {
            model,
            arena: Arena::default(),
            gathered: Gathered::default(),
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
        self.gathered.forget();
        &mut self.model
    }

    /// The copies around collectives of shards since this was asked last.
    pub(crate) fn take_copies(&mut self) -> ShardCopies {
        self.gathered.take_copies()
    }

    /// The model, and what is gathered of shards.
    pub(crate) fn gathering(&mut self) -> (&Model<B>, &mut Gathered<B>) {
        (&self.model, &mut self.gathered)
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
        self.logprobs_seeing(batch, &[])
    }

    /// The same of a batch that sees pictures ([`Batch::seeing`]), by their features from
    /// [`encode`](Self::encode).
    #[must_use]
    pub fn logprobs_seeing(&mut self, batch: &Batch, features: &[f32]) -> TokenScores {
        let wanted = Wanted {
            logprobs: true,
            values: false,
            next_token: false,
            recompute: Recompute::Nothing,
            offload: false,
        };
        self.score(batch, features, wanted)
    }

    /// Scores of a batch that sees pictures: values where the model has a value head, and the others unless values
    /// are all that is `read`.
    #[must_use]
    pub(crate) fn scores(
        &mut self,
        batch: &Batch,
        features: &[f32],
        read: ScoresRead,
    ) -> TokenScores {
        let wanted = Wanted {
            logprobs: read == ScoresRead::All,
            values: self.model.config().value_head,
            recompute: Recompute::Nothing,
            offload: false,
            next_token: false,
        };
        self.score(batch, features, wanted)
    }

    /// The features of pictures, one row a visual token.
    ///
    /// # Panics
    /// If the model has no vision encoder, or patches are of another size.
    #[must_use]
    pub fn encode(&mut self, pictures: &Pictures) -> Vec<f32> {
        if pictures.patches() == 0 {
            return vec![];
        }
        let Self {
            model,
            arena,
            gathered,
        } = self;
        let mut tape = Tape::new();
        let encoded = model.record_encoder(&mut tape, pictures);
        let plan = tape.plan_inference(&[encoded.features]);
        arena.prepare(&model.backend, &plan);
        let model = &*model;
        let params = gathered.read(model, &model.param_sets());
        model.backend.scope(|| {
            encoded.write(&model.backend, &tape, arena, &plan, pictures);
            tape.forward(&model.backend, arena, &plan, &params);
            tape.read(&model.backend, arena, &plan, encoded.features)
        })
    }

    /// Values of the states before the response tokens; empty if the model has no value head.
    #[must_use]
    pub fn values(&mut self, batch: &Batch) -> Vec<f32> {
        let wanted = Wanted {
            logprobs: false,
            values: true,
            next_token: false,
            recompute: Recompute::Nothing,
            offload: false,
        };
        self.score(batch, &[], wanted).values
    }

    fn score(&mut self, batch: &Batch, features: &[f32], wanted: Wanted) -> TokenScores {
        let batch = &batch.without_dropout();
        let nothing = batch.predicted() == 0;
        if nothing && !self.model.is_waited_for() {
            return TokenScores::default();
        }
        if nothing {
            self.score(&batch.standing_in(), features, wanted);
            return TokenScores::default();
        }
        let Self {
            model,
            arena,
            gathered,
        } = self;
        let mut tape = Tape::new();
        let table = model.feature_table(features);
        let mut params = model.param_sets();
        params.extend(&table);
        let seen = table.as_ref().map(|_| model.seen(features));
        let outputs = model.record(&mut tape, batch, seen, wanted);
        let plan = tape.plan_inference(&outputs.vars());
        arena.prepare(&model.backend, &plan);
        let model = &*model;
        over_sets((model, gathered), &params, None, |params| {
            model.backend.scope(|| {
                tape.forward_over(&model.backend, arena, &plan, params);
                outputs.read(&model.backend, &tape, arena, &plan)
            })
        })
    }
}

impl Outputs {
    pub(crate) fn vars(&self) -> Vec<odeon_gpu::Var> {
        let vocab = self.vocab.into_iter().chain(self.next_token);
        let vocab = vocab.flat_map(|v| [v.logprob, v.entropy]);
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
    pub(crate) fn record(
        &self,
        tape: &mut Tape<B>,
        batch: &Batch,
        seen: Option<Seen>,
        wanted: Wanted,
    ) -> Outputs {
        network::record(tape, self, batch, seen, wanted)
    }

    /// Records the part of a pass that a stage has.
    pub(crate) fn record_stage(
        &self,
        tape: &mut Tape<B>,
        batch: &Batch,
        stage: &Stage,
        wanted: Wanted,
    ) -> StageVars {
        network::record_stage(tape, self, batch, None, (stage, wanted))
    }

    /// # Panics
    /// If the model has no vision encoder, or patches are of another size.
    pub(crate) fn record_encoder(&self, tape: &mut Tape<B>, pictures: &Pictures) -> Encoded {
        let vision = self.config.vision.as_ref().zip(self.places.vision.as_ref());
        let (config, places) = vision.expect("a model that reads pictures");
        vision::record(tape, config, places, self.config.norm_eps, pictures)
    }

    /// A row of zeros, then the features, where there are any.
    pub(crate) fn feature_table(&self, features: &[f32]) -> Option<B::Buffer> {
        let vision = self
            .config
            .vision
            .as_ref()
            .filter(|_| !features.is_empty())?;
        let mut table = vec![0.0; vision.dim];
        table.extend_from_slice(features);
        Some(self.backend.buffer(&table))
    }

    /// The set of such a table, which follows the model's own.
    pub(crate) fn seen(&self, features: &[f32]) -> Seen {
        let dim = self.config.vision.as_ref().map_or(1, |vision| vision.dim);
        Seen {
            set: self.param_sets().len(),
            rows: features.len() / dim + 1,
        }
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

    /// The layout and the buffer of what is trained here.
    pub(crate) fn trained(&mut self) -> (&odeon_gpu::Layout, &mut B::Buffer) {
        match (&mut self.adapters, &self.shard) {
            (None, None) => (&self.layout, &mut self.params),
            (None, Some(shard)) => (shard.layout(), &mut self.params),
            (Some(adapters), _) => adapters.layout_and_params_mut(),
        }
    }

    /// Which parameter sets are trained.
    pub(crate) fn trainable_sets(&self) -> Vec<bool> {
        match (&self.adapters, &self.shard) {
            (Some(_), _) => vec![false, true],
            (None, Some(shard)) => vec![true; shard.sets()],
            (None, None) => vec![true],
        }
    }
}

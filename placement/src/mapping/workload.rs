//! The workload to map: models, and what one iteration does with them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::error::MappingError;

/// The models of a run and the stages of one iteration.
///
/// How a model is used follows from its tasks: it is trained if a task trains it, and generates if
/// a task does so with it. So the two can't contradict each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The models, in any order.
    pub models: Vec<Model>,
    /// The stages of one iteration, one after the other.
    pub stages: Vec<Stage>,
}

/// A transformer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Unique among the models.
    pub name: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Number of layers; the most stages a pipeline of it can have.
    pub layers: u32,
    /// Width of the residual stream, elements.
    pub hidden: u32,
    /// Keys and values of one token in all layers, bytes.
    pub kv_bytes_per_token: u64,
}

/// The work between two barriers of an iteration: sets of models at the same time, the models of
/// one set one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Unique among the stages.
    pub name: String,
    /// The tasks of the stage. A model may have several.
    pub tasks: Vec<Task>,
}

/// The work of one model in one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The model's name.
    pub model: String,
    /// The kind of work.
    pub work: Work,
    /// With how much.
    pub batch: Batch,
}

/// A kind of work that a model does with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Work {
    /// Passes once over the sequences, forward and back.
    Train {
        /// Optimizer steps that the batch is divided into.
        updates: u32,
    },
    /// Passes once over the sequences, forward.
    Forward,
    /// Writes the responses to the prompts.
    Generate,
}

/// The sequences of one iteration over all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Number of sequences.
    pub sequences: u64,
    /// Tokens of each prompt.
    pub prompt_tokens: u64,
    /// Tokens of each response.
    pub response_tokens: u64,
}

/// The role of a model, by which its parameters change or stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It has gradients and an optimizer.
    Trained,
    /// It has parameters only.
    Frozen,
}

impl Workload {
    /// These models, and no stages yet.
    pub fn new(models: impl IntoIterator<Item = Model>) -> Self {
        Self {
            models: models.into_iter().collect(),
            stages: Vec::new(),
        }
    }

    /// Adds a stage after the others.
    #[must_use]
    pub fn stage(mut self, name: impl Into<String>, tasks: impl IntoIterator<Item = Task>) -> Self {
        self.stages.push(Stage {
            name: name.into(),
            tasks: tasks.into_iter().collect(),
        });
        self
    }

    pub(super) fn check(&self) -> Result<(), MappingError> {
        if self.models.is_empty() {
            return Err(MappingError::NoModels);
        }
        if self.models.len() > MODELS_MAX {
            return Err(MappingError::TooManyModels {
                count: self.models.len(),
                limit: MODELS_MAX,
            });
        }
        unique("model", self.models.iter().map(|model| &model.name))?;
        unique("stage", self.stages.iter().map(|stage| &stage.name))?;
        self.models.iter().try_for_each(Model::check)?;
        for stage in &self.stages {
            for task in &stage.tasks {
                task.check(&stage.name, &self.models)?;
            }
        }
        let tasks = || self.stages.iter().flat_map(|stage| &stage.tasks);
        match self
            .models
            .iter()
            .find(|model| tasks().all(|task| task.model != model.name))
        {
            None => Ok(()),
            Some(model) => Err(MappingError::UnusedModel {
                model: model.name.clone(),
            }),
        }
    }
}

impl Model {
    /// A model with as many heads for keys and values as for queries, in bf16: its cache takes
    /// `4 * layers * hidden` bytes a token.
    pub fn new(name: impl Into<String>, parameters: u64, layers: u32, hidden: u32) -> Self {
        Self {
            name: name.into(),
            parameters,
            layers,
            hidden,
            kv_bytes_per_token: 4 * u64::from(layers) * u64::from(hidden),
        }
    }

    /// Sets the bytes of keys and values of one token in all layers, for grouped queries.
    #[must_use]
    pub fn kv_bytes_per_token(mut self, bytes: u64) -> Self {
        self.kv_bytes_per_token = bytes;
        self
    }

    fn check(&self) -> Result<(), MappingError> {
        let counts = [
            ("parameters", self.parameters),
            ("layers", u64::from(self.layers)),
            ("hidden", u64::from(self.hidden)),
            ("kv_bytes_per_token", self.kv_bytes_per_token),
        ];
        match counts.into_iter().find(|&(_, value)| value == 0) {
            None => Ok(()),
            Some((field, _)) => Err(MappingError::Zero {
                of: format!("model {}", self.name),
                field,
            }),
        }
    }
}

impl Task {
    /// Trains `model` on the batch in `updates` optimizer steps.
    pub fn train(model: impl Into<String>, batch: Batch, updates: u32) -> Self {
        Self::new(model, Work::Train { updates }, batch)
    }

    /// Scores the batch with `model`.
    pub fn forward(model: impl Into<String>, batch: Batch) -> Self {
        Self::new(model, Work::Forward, batch)
    }

    /// Generates the batch's responses with `model`.
    pub fn generate(model: impl Into<String>, batch: Batch) -> Self {
        Self::new(model, Work::Generate, batch)
    }

    fn new(model: impl Into<String>, work: Work, batch: Batch) -> Self {
        Self {
            model: model.into(),
            work,
            batch,
        }
    }

    fn check(&self, stage: &str, models: &[Model]) -> Result<(), MappingError> {
        if models.iter().all(|model| model.name != self.model) {
            return Err(MappingError::UnknownModel {
                stage: stage.to_owned(),
                model: self.model.clone(),
                known: models.iter().map(|model| model.name.clone()).collect(),
            });
        }
        let Batch {
            sequences,
            response_tokens,
            ..
        } = self.batch;
        let field = match self.work {
            Work::Train { updates: 0 } => "updates",
            _ if sequences == 0 => "sequences",
            Work::Generate if response_tokens == 0 => "response_tokens",
            _ if self.batch.tokens() == 0 => "prompt_tokens and response_tokens",
            _ => return Ok(()),
        };
        Err(MappingError::Zero {
            of: format!("the task of {} in stage {stage}", self.model),
            field,
        })
    }
}

impl Batch {
    /// This many sequences, each with these tokens of prompt and response.
    #[must_use]
    pub fn new(sequences: u64, prompt_tokens: u64, response_tokens: u64) -> Self {
        Self {
            sequences,
            prompt_tokens,
            response_tokens,
        }
    }

    /// Tokens of all sequences, prompts and responses.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.sequences
            .saturating_mul(self.prompt_tokens.saturating_add(self.response_tokens))
    }
}

/// Refuses the second of two equal names.
pub(super) fn unique<'n>(
    what: &'static str,
    names: impl Iterator<Item = &'n String>,
) -> Result<(), MappingError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(MappingError::Duplicate {
                what,
                name: name.clone(),
            });
        }
    }
    Ok(())
}

/// Most models: their set partitions grow faster than exponentially (15 for 4, 4,140 for 8).
const MODELS_MAX: usize = 8;

//! A language model in training with an encoder: the encoder's layers among its own, or in its bubbles.

use odeon_replay::{
    BubblePlanner, EncoderPlan, EncoderWork, LanguageStep, PipelineCosts, StageCosts, StageKernels,
};

use super::layer::Layer;
use super::step::{GRADIENT_BYTES, PARAMETER_BYTES};
use super::{TrainedModel, Training, TrainingPlan, TrainingPlanError};

/// Training of a language model with an encoder that feeds it. Both are trained.
#[derive(Clone, Debug)]
pub struct MultimodalTraining {
    /// The language model with its plan, on its machines.
    pub language: Training,
    /// The encoder.
    pub encoder: TrainedModel,
    /// Tokens of the encoder that belong to one sequence. Those of one sequence attend to each other.
    pub encoder_tokens: u64,
}

impl MultimodalTraining {
    /// The language model's step, kernel by kernel. Replicas gather and scatter beside passes where the system overlaps
    /// that, and before and behind all passes where it does not.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn language_step(&self) -> Result<LanguageStep, TrainingPlanError> {
        let Training { model, plan, .. } = &self.language;
        plan.check(&self.language.machine, model)?;
        let schedule = self.language.schedule()?;
        let (layer, slowest) = (self.language.layer(), self.language.slowest());
        let layers = model.size.layers as usize / schedule.stages();
        let stage = repeated(&layer.kernels(slowest), layers);
        let mut stages = vec![stage; schedule.stages()];
        if let Some(last) = stages.last_mut() {
            let head = layer.head();
            let kernel = |seconds: f64| odeon_replay::StageKernel::compute(slowest * seconds);
            last.forward.push(kernel(head.forward_s));
            last.backward.insert(0, kernel(head.backward_s));
        }
        let (gather_s, scatter_s) = self.language.collectives();
        let chunks = f64::from(plan.chunks);
        let (beside, apart) = match self.language.techniques.data_overlap {
            true => (1.0 / chunks, 0.0),
            false => (0.0, 1.0),
        };
        Ok(LanguageStep {
            schedule,
            stages,
            transfer_s: self.language.message(),
            gather_s: beside * gather_s,
            scatter_s: beside * scatter_s,
            before_s: apart * gather_s,
            behind_s: apart * scatter_s,
        })
    }

    /// The encoder's kernels and states, cut by a plan.
    ///
    /// # Errors
    /// A plan by which the encoder's layers or heads cannot be divided: see [`TrainingPlanError`].
    pub fn encoder_work(&self, plan: EncoderPlan) -> Result<EncoderWork, TrainingPlanError> {
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (stages, tensor) = (small(plan.stages), small(plan.tensor));
        let own = TrainingPlan {
            cards: stages.saturating_mul(tensor),
            tensor,
            pipeline: stages,
            chunks: 1,
            batch: self.language.plan.micro_batch,
            sequence: self.encoder_tokens,
            ..self.language.plan
        };
        let machine = &self.language.machine;
        own.check(machine, &self.encoder)?;
        let layer = Layer {
            machine,
            model: &self.encoder,
            plan: &own,
            techniques: &self.language.techniques,
            masked: false,
        };
        let layers = self.encoder.size.layers as usize / plan.stages;
        let stage = repeated(&layer.kernels(self.language.slowest()), layers);
        let bytes = 2.0 * layer.rows() * self.encoder.size.hidden as f64 / f64::from(tensor);
        let states = (PARAMETER_BYTES + GRADIENT_BYTES) * self.encoder.parameters() as f64;
        Ok(EncoderWork {
            plan,
            stages: vec![stage; plan.stages],
            transfer_s: machine.between.seconds(bytes),
            bytes: (states / f64::from(own.cards)) as u64,
        })
    }

    /// The encoder's work by all plans on the cards of a pipeline of the language model by which it can be divided.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn encoder_works(&self) -> Result<Vec<EncoderWork>, TrainingPlanError> {
        let plan = &self.language.plan;
        let mut works = vec![];
        for plan in EncoderPlan::all(plan.pipeline as usize, plan.tensor as usize)? {
            match self.encoder_work(plan) {
                Ok(work) => works.push(work),
                Err(TrainingPlanError::Uneven { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(works)
    }

    /// The search for a plan of the encoder, where each card may hold so many bytes more than one on which the encoder's
    /// states are divided as the language model's.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn planner(
        &self,
        overhead_bytes: u64,
        compositions_max: usize,
    ) -> Result<BubblePlanner, TrainingPlanError> {
        let plan = &self.language.plan;
        let schedule = self.language.schedule()?;
        let language_bytes = self.language.memory(&schedule) as u64;
        let ranks = plan.tensor as f64 * f64::from(plan.pipeline);
        let states = (PARAMETER_BYTES + GRADIENT_BYTES) * self.encoder.parameters() as f64;
        let least = language_bytes + (states / ranks) as u64;
        let there = self.language.machine.card.device.memory_bytes;
        Ok(BubblePlanner {
            tensor: plan.tensor as usize,
            card_bytes: there.min(least + overhead_bytes),
            language_bytes,
            compositions_max,
        })
    }

    /// Seconds of a step with the layers of both models spread evenly over all stages, as if they were one model:
    /// Megatron-LM balanced, the baseline of Optimus.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn spread_s(&self) -> Result<f64, TrainingPlanError> {
        let step = self.language_step()?;
        let plan = &self.language.plan;
        let encoder = self.encoder_work(EncoderPlan {
            stages: plan.pipeline as usize,
            tensor: plan.tensor as usize,
        })?;
        let sum = |kernels: &[odeon_replay::StageKernel]| {
            kernels.iter().map(|it| it.seconds).sum::<f64>()
        };
        let (mut forward_s, mut backward_s) = (0.0, 0.0);
        for stage in step.stages.iter().chain(&encoder.stages) {
            forward_s += sum(&stage.forward);
            backward_s += sum(&stage.backward);
        }
        let stages = step.schedule.stages() as f64;
        let ranks = f64::from(plan.tensor) * f64::from(plan.pipeline);
        let own = self.language.own_parameters() + self.encoder.parameters() as f64 / ranks;
        let (gather_s, scatter_s) = self.language.collectives_of(own);
        let chunks = f64::from(plan.chunks);
        let beside = match self.language.techniques.data_overlap {
            true => 1.0 / chunks,
            false => 0.0,
        };
        let costs = PipelineCosts {
            stages: vec![
                StageCosts::new(forward_s / stages, backward_s / stages, 0.0);
                step.schedule.stages()
            ],
            transfer_s: step.transfer_s,
            gather_s: beside * gather_s,
            scatter_s: beside * scatter_s,
        };
        let passes_s = step.schedule.summary(&costs)?.makespan_s;
        let apart_s = if beside > 0.0 {
            0.0
        } else {
            gather_s + scatter_s
        };
        Ok(passes_s + apart_s + self.rest_s())
    }

    /// Seconds of the optimiser, and of the host, which a step has beside its passes.
    #[must_use]
    pub fn rest_s(&self) -> f64 {
        let own = self.language.own_parameters() / f64::from(self.language.sharers());
        self.language.layer().optimizer(own) + self.language.host_s
    }
}

/// So many layers of these kernels.
fn repeated(layer: &StageKernels, layers: usize) -> StageKernels {
    StageKernels {
        forward: layer.forward.repeat(layers),
        backward: layer.backward.repeat(layers),
    }
}

//! Steps of a language model with an encoder whose work changes with the share of pictures, in four designs.

use odeon_replay::{
    BubbleSchedule, EncoderPlan, EncoderWork, ExecutedKernel, LanguageStep, SharedEncoder,
    StageKernels,
};

use super::{MultimodalTraining, TrainingPlanError};

/// Where the encoder's passes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EncoderDesign {
    /// In the first stage of the language model, as layers in front of its own.
    FirstStage,
    /// On cards of their own, as many as are best for the planned share.
    Apart,
    /// In bubbles of the language model, in the order that was planned for the planned share.
    Bubbles,
    /// In all stages alike, as many as a step has (MegaScale-Omni, arXiv 2605.08962).
    OnDemand,
}

impl EncoderDesign {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::FirstStage, Self::Apart, Self::Bubbles, Self::OnDemand];
}

/// Training whose mix of text and pictures changes, on two replicas of the language model or more.
///
/// Sequences are packed to one length, so that the language model has as much to do whatever they hold. A picture is
/// `picture_tokens` tokens of the encoder, which attend to each other, and `picture_tokens / pooled` of the language model.
/// Pictures are spread evenly over what encodes them.
#[derive(Clone, Debug)]
pub struct MixedTraining {
    /// Both models on their machines; `encoder_tokens` are those of a picture.
    pub training: MultimodalTraining,
    /// Tokens of the encoder for one of the language model.
    pub pooled: u64,
    /// The share of the language model's tokens that are of pictures for which designs are planned that are planned once.
    pub planned: f64,
    /// Bytes by which a card may hold more than with the encoder divided as the language model is.
    pub overhead_bytes: u64,
}

/// The designs that were planned once.
#[derive(Clone, Debug)]
pub struct PlannedMix {
    step: LanguageStep,
    /// Replicas of the language model whose cards the encoder has.
    replicas_apart: u32,
    bubbles: BubbleSchedule,
    /// The encoder by the plan of that schedule, for the planned share.
    in_bubbles: EncoderWork,
}

impl MixedTraining {
    /// Plans what is planned once, for the planned share.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    ///
    /// # Panics
    /// If there is one replica, which has no cards to give away, or the planned share is not above 0.
    pub fn plan(&self) -> Result<PlannedMix, TrainingPlanError> {
        let training = &self.training;
        let replicas = training.language.plan.replicas();
        assert!(
            replicas > 1 && self.planned > 0.0,
            "two replicas, and a share"
        );
        let step = training.language_step()?;
        let mut works = training.encoder_works()?;
        for work in &mut works {
            let times = self.pictures(self.planned);
            for stage in &mut work.stages {
                *stage = stage.scaled(times);
            }
        }
        let planner = training.planner(self.overhead_bytes, COMPOSITIONS_MAX)?;
        let timeline = step.deferred_timeline()?;
        let (bubbles, _) = planner.plan(&timeline, &works)?;
        let in_bubbles = works.into_iter().find(|it| it.plan == bubbles.plan);
        let in_bubbles = in_bubbles.expect("a plan of those that were given");
        let mut best = (f64::INFINITY, 1);
        for replicas in 1..replicas {
            let seconds = self.apart_s(replicas, self.planned)?;
            if seconds < best.0 {
                best = (seconds, replicas);
            }
        }
        Ok(PlannedMix {
            step,
            replicas_apart: best.1,
            bubbles,
            in_bubbles,
        })
    }

    /// Seconds of a step of a design with this share of pictures.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn step_s(
        &self,
        planned: &PlannedMix,
        design: EncoderDesign,
        share: f64,
    ) -> Result<f64, TrainingPlanError> {
        let tensor = self.training.language.plan.tensor as usize;
        let passes_s = match design {
            EncoderDesign::FirstStage => {
                let plan = EncoderPlan { stages: 1, tensor };
                let encoder = self.kernels(plan, share)?;
                planned.step.with_encoder_first(&encoder).timeline()?.step_s
            }
            EncoderDesign::Apart => self.apart_s(planned.replicas_apart, share)?,
            EncoderDesign::Bubbles => {
                let times = share / self.planned;
                let mut seconds = |kernel: &ExecutedKernel, planned_s: f64| match kernel {
                    ExecutedKernel::Encoder(_) => times * planned_s,
                    _ => planned_s,
                };
                let (bubbles, work) = (&planned.bubbles, &planned.in_bubbles);
                let graph = bubbles.graph(&planned.step, tensor, work, &mut seconds)?;
                graph.replay()?.makespan_s()
            }
            EncoderDesign::OnDemand => {
                let encoder = self.shared(share)?;
                let step = planned.step.with_encoder_everywhere(&encoder);
                step.timeline()?.step_s
            }
        };
        Ok(passes_s + self.training.rest_s())
    }

    /// Seconds of a step in which the language model is as quick as alone, and the encoder's work spread over all cards
    /// without any wait.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn ideal_s(&self, planned: &PlannedMix, share: f64) -> Result<f64, TrainingPlanError> {
        let encoder_s = planned.step.encoder_s(&self.shared(share)?);
        Ok(planned.step.timeline()?.step_s + encoder_s + self.training.rest_s())
    }

    /// Pictures of a sequence.
    fn pictures(&self, share: f64) -> f64 {
        let tokens = share * self.training.language.plan.sequence as f64 * self.pooled as f64;
        tokens / self.training.encoder_tokens as f64
    }

    /// The encoder's kernels for a micro-batch, cut by a plan of one stage.
    fn kernels(&self, plan: EncoderPlan, share: f64) -> Result<StageKernels, TrainingPlanError> {
        let work = self.training.encoder_work(plan)?;
        Ok(work.stages[0].scaled(self.pictures(share)))
    }

    /// The encoder as all cards share it: each has whole pictures, as many as any other.
    fn shared(&self, share: f64) -> Result<SharedEncoder, TrainingPlanError> {
        let plan = &self.training.language.plan;
        let whole = EncoderPlan {
            stages: 1,
            tensor: 1,
        };
        let kernels = self.kernels(whole, share)?;
        let rows = share * (plan.micro_batch * plan.sequence) as f64;
        let width = self.training.language.model.size.hidden as f64;
        let bytes = 2.0 * rows * width / f64::from(plan.tensor);
        let between = &self.training.language.machine.between;
        let exchange_s = if rows > 0.0 {
            between.seconds(bytes)
        } else {
            0.0
        };
        Ok(SharedEncoder::of(
            &kernels,
            plan.tensor as usize,
            exchange_s,
        ))
    }

    /// Seconds of a step's passes in which the cards of so many replicas encode for the others, all at the same time: the
    /// longer of both, with one micro-batch before and behind that nothing runs beside.
    fn apart_s(&self, replicas: u32, share: f64) -> Result<f64, TrainingPlanError> {
        let mut training = self.training.clone();
        let plan = &mut training.language.plan;
        let all = plan.batch / plan.micro_batch;
        let left = plan.replicas() - replicas;
        let cards = plan.cards / plan.replicas();
        plan.cards = left * cards;
        let micro_batches = all.div_ceil(u64::from(left));
        plan.batch = micro_batches * u64::from(left) * plan.micro_batch;
        let language_s = training.language_step()?.timeline()?.step_s;
        let encoder = self.shared(share)?;
        let tensor = f64::from(self.training.language.plan.tensor);
        let one_s = (encoder.forward_s + encoder.backward_s) * tensor;
        let encoding_s = one_s * all as f64 / f64::from(replicas * cards);
        let first_s = one_s / f64::from(replicas * cards) + 2.0 * encoder.exchange_s;
        Ok(language_s.max(encoding_s) + first_s)
    }
}

/// Compositions of micro-batches that each plan is scheduled with.
const COMPOSITIONS_MAX: usize = 64;

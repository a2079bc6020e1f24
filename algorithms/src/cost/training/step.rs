//! A step of training: its stages priced, their schedule replayed, and what the time went into.

use odeon_replay::{PipelineCosts, PipelineSchedule, StageCosts};
use serde::Serialize;

use super::super::utilisation;
use super::layer::{Layer, LayerTime};
use super::{Machine, Shared, Techniques, TrainedModel, TrainingPlan, TrainingPlanError, sharded};

/// Training as it is simulated: a model, the machines, the plan and the system.
#[derive(Clone, Debug)]
pub struct Training {
    /// The machines.
    pub machine: Machine,
    /// The model.
    pub model: TrainedModel,
    /// The plan.
    pub plan: TrainingPlan,
    /// The ways in which the system spares time.
    pub techniques: Techniques,
    /// Seconds of a step in which no card computes: data, the host, checks of gradients. See
    /// [`HostSeconds`](super::HostSeconds).
    pub host_s: f64,
}

/// A simulated step. The parts add up to all of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// All seconds.
    pub seconds: f64,
    /// Share of the cards' arithmetic, by the operations of
    /// [`TrainedModel::flops_per_token`].
    pub utilisation: f64,
    /// Tokens of a second, on all cards.
    pub tokens_per_second: f64,
    /// The parts.
    pub parts: StepParts,
    /// Gigabytes of states and activations on a card, about.
    pub memory_gb: f64,
}

/// Seconds of a step, by what they went into, on the rank that computes longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepParts {
    /// Kernels, as on machines that are all alike.
    pub compute_s: f64,
    /// The part that the slowest machine adds to them.
    pub straggler_s: f64,
    /// Collectives of tensor groups that nothing hides.
    pub tensor_s: f64,
    /// Messages between stages that nothing hides.
    pub pipeline_s: f64,
    /// Stages that wait for the first passes, and behind the last ones.
    pub bubble_s: f64,
    /// Gathering of parameters and scattering of gradients that nothing hides, with their copies.
    pub data_s: f64,
    /// The optimiser, and the host.
    pub rest_s: f64,
}

impl StepParts {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.compute_s
            + self.straggler_s
            + self.tensor_s
            + self.pipeline_s
            + self.bubble_s
            + self.data_s
            + self.rest_s
    }
}

impl Training {
    /// Simulates one step.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn step(&self) -> Result<StepTime, TrainingPlanError> {
        let Self {
            machine,
            model,
            plan,
            ..
        } = self;
        plan.check(machine, model)?;
        if !(self.host_s.is_finite() && self.host_s >= 0.0) {
            let of = "the step".to_owned();
            let (field, value) = ("host_s", self.host_s);
            return Err(super::super::CostError::NotPositive { of, field, value }.into());
        }
        let schedule = self.schedule()?;
        let memory_gb = self.memory(&schedule) / 1e9;
        let there = machine.card.device.memory_bytes as f64 / 1e9;
        if memory_gb > there {
            return Err(TrainingPlanError::Memory {
                model: model.size.name.clone(),
                card: machine.card.name.clone(),
                needed: memory_gb,
                there,
            });
        }
        let parts = match plan.shared {
            Shared::All => sharded::parts(self)?,
            Shared::Nothing | Shared::Optimizer => self.pipelined(&schedule)?,
        };
        let seconds = parts.sum();
        let tokens = (plan.batch * plan.sequence) as f64;
        let flops = tokens * model.flops_per_token(plan.sequence, self.techniques.window);
        let peak = f64::from(plan.cards) * machine.card.device.flops;
        Ok(StepTime {
            seconds,
            utilisation: utilisation(flops, seconds, peak),
            tokens_per_second: tokens / seconds,
            parts,
            memory_gb,
        })
    }

    pub(super) fn layer(&self) -> Layer<'_> {
        let Self {
            machine,
            model,
            plan,
            techniques,
            ..
        } = self;
        Layer {
            machine,
            model,
            plan,
            techniques,
            masked: true,
        }
    }

    /// The expected time of the slowest machine, relative to the others.
    pub(super) fn slowest(&self) -> f64 {
        let machines = self.plan.machines(&self.machine);
        self.machine.stragglers.slowest(machines)
    }

    pub(super) fn schedule(&self) -> Result<PipelineSchedule, TrainingPlanError> {
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let micro_batches = count(self.plan.micro_batches());
        let (stages, chunks) = (self.plan.pipeline as usize, self.plan.chunks as usize);
        Ok(PipelineSchedule::interleaved(
            stages,
            micro_batches,
            chunks,
        )?)
    }

    /// Replays the schedule three times: as it is without messages and collectives, with messages, and with both. What
    /// each adds is exposed.
    fn pipelined(&self, schedule: &PipelineSchedule) -> Result<StepParts, TrainingPlanError> {
        let layer = self.layer();
        let (one, head) = (layer.time(), layer.head());
        let bare = self.costs(one, head, 0.0);
        let without = schedule.summary(&bare)?;
        let message_s = self.message();
        // A stage that does not overlap sends and receives beside each pass, and computes neither meanwhile.
        let with = match self.techniques.pipeline_overlap {
            true => PipelineCosts {
                transfer_s: message_s,
                ..bare.clone()
            },
            false => self.costs(one, head, 2.0 * message_s),
        };
        let messages = schedule.summary(&with)?;
        let (gather_s, scatter_s) = self.collectives();
        let optimizer_s = layer.optimizer(self.own_parameters() / f64::from(self.sharers()));
        let chunks = f64::from(self.plan.chunks);
        let data_s = match self.techniques.data_overlap {
            true => {
                let sharing = PipelineCosts {
                    gather_s: gather_s / chunks,
                    scatter_s: scatter_s / chunks,
                    ..with
                };
                let all = schedule.summary(&sharing)?.makespan_s;
                // The first chunk is gathered while the step's data is.
                (all - messages.makespan_s - self.host_s.min(gather_s / chunks)).max(0.0)
            }
            false => gather_s + scatter_s,
        };
        let busiest = without.ranks.iter().map(|it| it.busy_s);
        let busy_s = busiest.fold(0.0, f64::max);
        let layers = (self.model.size.layers / u64::from(self.plan.pipeline)) as f64;
        let micro_batches = self.plan.micro_batches() as f64;
        let tensor_s = layers * micro_batches * (one.forward_tensor_s + one.backward_tensor_s);
        let compute_s = busy_s - tensor_s;
        Ok(StepParts {
            compute_s: compute_s / self.slowest(),
            straggler_s: compute_s - compute_s / self.slowest(),
            tensor_s,
            pipeline_s: messages.makespan_s - without.makespan_s,
            bubble_s: without.makespan_s - busy_s,
            data_s,
            rest_s: optimizer_s + self.host_s,
        })
    }

    /// The costs of all stages: their layers, the head in the last one, and so much more beside each pass.
    fn costs(&self, layer: LayerTime, head: LayerTime, beside_s: f64) -> PipelineCosts {
        let stages = (self.plan.pipeline * self.plan.chunks) as usize;
        let layers = self.model.size.layers as f64 / stages as f64;
        let slowest = self.slowest();
        let beside_s = if self.plan.pipeline > 1 {
            beside_s
        } else {
            0.0
        };
        let of = |kernels: f64, tensor: f64| slowest * kernels + tensor;
        let stage = |stage: usize| {
            let ends = if stage + 1 == stages { 1.0 } else { 0.0 };
            let forward_s = layers * of(layer.forward_s, layer.forward_tensor_s);
            let backward_s = layers * of(layer.backward_s, layer.backward_tensor_s);
            // The two gradients are one pass.
            StageCosts::new(
                forward_s + ends * slowest * head.forward_s + beside_s,
                backward_s + ends * slowest * head.backward_s + beside_s,
                0.0,
            )
        };
        PipelineCosts {
            stages: (0..stages).map(stage).collect(),
            ..PipelineCosts::default()
        }
    }

    /// Seconds of a message between stages: each card of a tensor group sends its part of the rows.
    pub(super) fn message(&self) -> f64 {
        if self.plan.pipeline < 2 {
            return 0.0;
        }
        let rows = self.layer().rows();
        let bytes = 2.0 * rows * self.model.size.hidden as f64 / f64::from(self.plan.tensor);
        let inside = self.plan.cards <= self.machine.cards();
        let link = if inside {
            &self.machine.inside
        } else {
            &self.machine.between
        };
        link.seconds(bytes)
    }

    /// Parameters that one card has of a replica.
    pub(super) fn own_parameters(&self) -> f64 {
        let ranks = f64::from(self.plan.tensor) * f64::from(self.plan.pipeline);
        self.model.parameters() as f64 / ranks
    }

    /// Replicas that share the optimiser.
    pub(super) fn sharers(&self) -> u32 {
        match self.plan.shared {
            Shared::Nothing => 1,
            Shared::Optimizer | Shared::All => self.plan.replicas(),
        }
    }

    /// Seconds of gathering the parameters, and of reducing and scattering the gradients, of one card. Replicas that
    /// share nothing reduce and gather gradients instead.
    pub(super) fn collectives(&self) -> (f64, f64) {
        self.collectives_of(self.own_parameters())
    }

    /// The same of so many parameters on one card.
    pub(super) fn collectives_of(&self, own: f64) -> (f64, f64) {
        let replicas = self.plan.replicas();
        // Replicas of one stage are neighbours, and stages lie farther apart, as Megatron orders ranks.
        let beside = (self.machine.cards() / self.plan.tensor).clamp(1, replicas);
        let gathered = match self.plan.shared {
            Shared::Nothing => GRADIENT_BYTES,
            Shared::Optimizer | Shared::All => PARAMETER_BYTES,
        };
        let seconds = |bytes: f64| self.machine.gather(replicas, beside, own * bytes);
        (seconds(gathered), seconds(GRADIENT_BYTES))
    }

    /// Bytes on the first card: parameters, gradients, states of the optimiser, and activations in flight.
    pub(super) fn memory(&self, schedule: &PipelineSchedule) -> f64 {
        let sharers = f64::from(self.sharers());
        let own = self.own_parameters();
        let kept = match self.plan.shared {
            Shared::All => (PARAMETER_BYTES + GRADIENT_BYTES + STATE_BYTES) / sharers,
            _ => PARAMETER_BYTES + GRADIENT_BYTES + STATE_BYTES / sharers,
        };
        let whole = self.model.activation_bytes();
        let input = 2.0 * self.model.size.hidden as f64;
        let each = match self.plan.recomputed {
            super::Recomputed::Nothing => whole,
            super::Recomputed::Half => f64::midpoint(whole, input),
            super::Recomputed::Layers => input,
        };
        let stages = f64::from(self.plan.pipeline) * f64::from(self.plan.chunks);
        let layers = self.model.size.layers as f64 / stages;
        let in_flight = schedule.in_flight_max();
        let in_flight = in_flight.first().copied().unwrap_or_default() as f64;
        let rows = self.layer().rows() / f64::from(self.plan.tensor);
        own * kept + in_flight * layers * rows * each
    }
}

/// A parameter in bf16.
pub(super) const PARAMETER_BYTES: f64 = 2.0;

/// A gradient in f32.
pub(super) const GRADIENT_BYTES: f64 = 4.0;

/// A master copy and two moments.
const STATE_BYTES: f64 = 12.0;

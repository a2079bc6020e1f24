//! A step in which replicas share all states: parameters are gathered layer by layer.

use odeon_replay::{EventGraph, GraphOperation, Lane, LaneStream};

use super::step::{GRADIENT_BYTES, PARAMETER_BYTES};
use super::{StepParts, Training, TrainingPlanError};

/// Seconds of a layer's parameters and gradients on their way, where all states are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerMessages {
    /// Gathering its parameters.
    pub gather_s: f64,
    /// Scattering its gradients.
    pub scatter_s: f64,
    /// Copying parameters out of what was gathered; 0 with a planned buffer.
    pub copy_out_s: f64,
    /// Copying gradients into what is scattered; 0 with a planned buffer.
    pub copy_in_s: f64,
}

/// One layer in the graph, or the embedding and the head, which are gathered together.
#[derive(Clone, Copy, Debug)]
struct Unit {
    forward_s: f64,
    backward_s: f64,
    messages: LayerMessages,
}

impl Training {
    /// Seconds of a layer's parameters and gradients on their way, where all states are shared.
    ///
    /// # Errors
    /// See [`TrainingPlanError`].
    pub fn layer_messages(&self) -> Result<LayerMessages, TrainingPlanError> {
        self.plan.check(&self.machine, &self.model)?;
        Ok(units(self).0.messages)
    }
}

/// The parts of a step. All ranks do the same, so one is replayed: what computes on one lane, collectives on the other.
/// Two layers at most are gathered at a time.
pub(super) fn parts(training: &Training) -> Result<StepParts, TrainingPlanError> {
    let (layer, head) = units(training);
    let layers = usize::try_from(training.model.size.layers).unwrap_or(usize::MAX);
    let mut graph = StepGraph::default();
    for _ in 0..training.plan.micro_batches() {
        graph.pass(&layer, &head, layers)?;
    }
    let replay = graph.graph.replay()?;
    let micro_batches = training.plan.micro_batches() as f64;
    let times = training.layer();
    let (one, end) = (times.time(), times.head());
    let layers = layers as f64;
    let kernels = one.forward_s + one.backward_s;
    let kernels = micro_batches * (layers * kernels + end.forward_s + end.backward_s);
    let tensor_s = micro_batches * layers * (one.forward_tensor_s + one.backward_tensor_s);
    let compute_s = training.slowest() * kernels;
    let own = training.own_parameters() / f64::from(training.plan.replicas());
    Ok(StepParts {
        compute_s: kernels,
        straggler_s: compute_s - kernels,
        tensor_s,
        data_s: (replay.makespan_s() - compute_s - tensor_s).max(0.0),
        rest_s: times.optimizer(own) + training.host_s,
        ..StepParts::default()
    })
}

/// A layer, and the embedding with the head.
fn units(training: &Training) -> (Unit, Unit) {
    let layer = training.layer();
    let (one, end) = (layer.time(), layer.head());
    let (gather_s, scatter_s) = training.collectives();
    let model = &training.model;
    let all = model.parameters() as f64;
    let of_layer = model.layer_weights() as f64 / all;
    let ends = 1.0 - of_layer * model.size.layers as f64;
    let slowest = training.slowest();
    let unit = |forward_s: f64, backward_s: f64, part: f64| {
        let bytes = part * training.own_parameters();
        let copied = !training.techniques.planned_buffer && training.plan.replicas() > 1;
        let copy = |each: f64| {
            if copied {
                layer.copy(each * bytes)
            } else {
                0.0
            }
        };
        Unit {
            forward_s,
            backward_s,
            messages: LayerMessages {
                gather_s: part * gather_s,
                scatter_s: part * scatter_s,
                copy_out_s: copy(PARAMETER_BYTES),
                copy_in_s: copy(GRADIENT_BYTES),
            },
        }
    };
    let forward_s = slowest * one.forward_s + one.forward_tensor_s;
    let backward_s = slowest * one.backward_s + one.backward_tensor_s;
    (
        unit(forward_s, backward_s, of_layer),
        unit(slowest * end.forward_s, slowest * end.backward_s, ends),
    )
}

/// The graph of one rank.
#[derive(Debug, Default)]
struct StepGraph {
    graph: EventGraph<&'static str>,
    /// Passes in order, so that what is gathered waits until there is room.
    passes: Vec<usize>,
}

impl StepGraph {
    /// One micro-batch forward and back. The embedding and the head stay gathered between.
    fn pass(&mut self, layer: &Unit, head: &Unit, layers: usize) -> Result<(), TrainingPlanError> {
        let gathered = self.gathered(head)?;
        for _ in 0..layers {
            let over = self.gathered(layer)?;
            self.compute("forward", layer.forward_s, Some(over))?;
        }
        self.compute("head", head.forward_s + head.backward_s, Some(gathered))?;
        // The gradients of a layer are scattered behind what is gathered for the next one.
        let mut over = self.gathered(layer)?;
        for left in (0..layers).rev() {
            let backward = self.compute("backward", layer.backward_s, Some(over))?;
            if left > 0 {
                over = self.gathered(layer)?;
            }
            self.scattered(layer, backward)?;
        }
        let last = self.passes.last().copied().unwrap_or_default();
        self.scattered(head, last)
    }

    /// Gathers a unit as soon as the pass before the last is over, and copies it.
    fn gathered(&mut self, unit: &Unit) -> Result<usize, TrainingPlanError> {
        let gather = self.add("gather", COLLECTIVE, unit.messages.gather_s)?;
        if let Some(before) = self.passes.len().checked_sub(2) {
            self.graph.wait(gather, self.passes[before])?;
        }
        if unit.messages.copy_out_s == 0.0 {
            return Ok(gather);
        }
        let copy = self.add("copy out", Lane::compute(0), unit.messages.copy_out_s)?;
        self.graph.wait(copy, gather)?;
        Ok(copy)
    }

    fn scattered(&mut self, unit: &Unit, backward: usize) -> Result<(), TrainingPlanError> {
        let mut over = backward;
        if unit.messages.copy_in_s > 0.0 {
            over = self.add("copy in", Lane::compute(0), unit.messages.copy_in_s)?;
            self.graph.wait(over, backward)?;
        }
        let scatter = self.add("scatter", COLLECTIVE, unit.messages.scatter_s)?;
        Ok(self.graph.wait(scatter, over)?)
    }

    fn compute(
        &mut self,
        name: &'static str,
        seconds: f64,
        over: Option<usize>,
    ) -> Result<usize, TrainingPlanError> {
        let pass = self.add(name, Lane::compute(0), seconds)?;
        if let Some(over) = over {
            self.graph.wait(pass, over)?;
        }
        self.passes.push(pass);
        Ok(pass)
    }

    fn add(
        &mut self,
        name: &'static str,
        lane: Lane,
        seconds: f64,
    ) -> Result<usize, TrainingPlanError> {
        Ok(self.graph.add(GraphOperation::new(name, lane, seconds))?)
    }
}

const COLLECTIVE: Lane = Lane {
    rank: 0,
    stream: LaneStream::Collective,
};

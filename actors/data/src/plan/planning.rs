//! The state machine that draws steps and places them.

use odeon_mesh::{Mesh, MeshError};
use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

use crate::sample::{SampleId, SampleMeta, SourceNumber};

use super::cell::{CellError, CellMeta, CellName, SourceShape};
use super::draw::{Lengths, Look, Reader, Seen};
use super::graph::Graph;
use super::mixture;
use super::schedule::Schedule;
use super::spec::{AtEnd, Budget, PlanError, PlanSpec, Unit};
use super::state::{PlanState, SourceState};
use super::step::StepPlan;

/// Number of borders between steps that are remembered for [`Planning::passed`]. A step that is
/// further back is answered with nothing, which releases nothing.
const BORDERS_MAX: usize = 256;

/// Plans steps one after the other.
#[derive(Clone, Debug)]
pub struct Planning {
    spec: PlanSpec,
    mesh: Mesh,
    weights: Vec<Schedule>,
    readers: Vec<Reader>,
    owed: Vec<i64>,
    contexts: Vec<i64>,
    step: u64,
    /// The step that is being drawn, which may wait for a cell in between.
    drawing: Option<Drawing>,
    /// The state before the step that is planned next.
    border: PlanState,
    /// Borders of steps, the last of them the next: each with what is needed from its begin on.
    borders: VecDeque<(u64, Vec<Passed>)>,
}

/// A step on its way.
#[derive(Clone, Debug)]
struct Drawing {
    samples: Vec<SampleMeta>,
    tokens: u64,
    lengths: Lengths,
    context: Option<usize>,
    shares: Vec<i64>,
}

/// The part of a source that is not needed any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Cells of this source before this one are not needed, but for `kept`.
    pub below: CellName,
    /// Samples of such cells that still wait for a step that wants their length, in their order. No
    /// more than [`PlanSpec::waiting`].
    pub kept: Vec<SampleId>,
}

/// The result of hearing a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It was taken in.
    New,
    /// It was heard before, and nothing has changed.
    Known,
    /// It is behind, or of a pass that will not be: no step needs it, and nothing has changed.
    Passed,
    /// It is further ahead than cells are kept, and was not: it will be wanted later.
    Far,
}

/// Why there is no plan yet.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Waiting {
    /// This cell was not heard. [`Planning::hear`] it and ask again; what was drawn so far is kept.
    #[error("the plan waits for {0:?}")]
    Cell(CellName),
    /// A source has gone through a whole pass without a sample, so asking on would never end. Take
    /// it from the mixture.
    #[error("source {0:?} has no samples at all")]
    Barren(SourceNumber),
    /// All steps were planned.
    #[error("the sources ended after {steps} steps")]
    Ended {
        /// Number of steps that there were.
        steps: u64,
    },
}

impl Planning {
    /// Plans from the first step on. A source's number is its place in `sources`.
    ///
    /// # Errors
    /// A spec that cannot be followed, or that names other sources.
    pub fn new(spec: PlanSpec, sources: &[SourceShape], mesh: Mesh) -> Result<Self, PlanError> {
        let state = PlanState {
            step: 0,
            sources: sources.iter().map(SourceState::first).collect(),
            contexts: vec![0; spec.contexts.len()],
            files: BTreeMap::new(),
            earlier: BTreeMap::new(),
        };
        Self::at(spec, sources, mesh, state)
    }

    /// Goes on from a state. With the spec and the sources that it was made with, the plans are the
    /// same to the bit, and with another mesh the sample sets. Sources that have come since begin
    /// at their first sample.
    ///
    /// # Errors
    /// As [`Planning::new`], and a state of other sources.
    pub fn at(
        spec: PlanSpec,
        sources: &[SourceShape],
        mesh: Mesh,
        mut state: PlanState,
    ) -> Result<Self, PlanError> {
        spec.check()?;
        // Ranks are told as 32 bits.
        u32::try_from(mesh.len()).map_err(|_| MeshError::TooLarge)?;
        let mut readers = Vec::with_capacity(sources.len());
        let mut weights = Vec::with_capacity(sources.len());
        for (number, shape) in sources.iter().enumerate() {
            let Some(mixed) = spec.mixture.sources.get(&shape.name) else {
                let name = shape.name.clone();
                return Err(PlanError::Source { name });
            };
            let number = u16::try_from(number).ok().filter(|_| shape.cells > 0);
            let Some(number) = number else {
                let name = shape.name.clone();
                return Err(PlanError::Shape { name });
            };
            if state.sources.len() <= usize::from(number) {
                state.sources.push(SourceState::first(shape));
            }
            let own = &state.sources[usize::from(number)];
            own.check(shape, SourceNumber(number))?;
            weights.push(mixed.weight.clone());
            readers.push(Reader::at(
                SourceNumber(number),
                shape.cells,
                mixed.epochs,
                spec.waiting as usize,
                own.clone(),
            ));
        }
        let named = |name: &&String| sources.iter().any(|shape| shape.name == **name);
        if let Some(name) = spec.mixture.sources.keys().find(|name| !named(name)) {
            return Err(PlanError::Source { name: name.clone() });
        }
        if state.sources.len() > sources.len() || sources.len() > spec.mixture.sources.len() {
            return Err(PlanError::State("it is of other sources".to_owned()));
        }
        // Other contexts owe each other nothing yet.
        if state.contexts.len() != spec.contexts.len() {
            state.contexts = vec![0; spec.contexts.len()];
        }
        let mut planning = Self {
            owed: state.sources.iter().map(|source| source.owed).collect(),
            contexts: state.contexts.clone(),
            step: state.step,
            spec,
            mesh,
            weights,
            readers,
            drawing: None,
            border: state,
            borders: VecDeque::new(),
        };
        planning.remember();
        Ok(planning)
    }

    /// The step that is planned next.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The spec by which steps are planned.
    #[must_use]
    pub fn spec(&self) -> &PlanSpec {
        &self.spec
    }

    /// The ranks that it is planned for.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Plans for other ranks from the next step on. Sample sets stay as they would have been.
    pub fn place_on(&mut self, mesh: Mesh) {
        self.mesh = mesh;
    }

    /// The cells that are needed next and were not heard, those needed first in front. Without them
    /// [`Planning::plan`] gets no further than [`super::Ahead`] says.
    #[must_use]
    pub fn wants(&self) -> Vec<CellName> {
        if self.has_stopped() {
            return vec![];
        }
        let ahead = u64::from(self.spec.ahead.steps);
        let now = self.shares(self.step);
        let then = self.shares(self.step + ahead);
        let until = self.step + ahead + 1;
        let mut wanted = vec![];
        for (at, reader) in self.readers.iter().enumerate() {
            let comes = self.weights[at].largest(self.step, until) > 0.0;
            let share = now[at].max(then[at]);
            if reader.is_ended() || !(comes || share > 0) {
                continue;
            }
            let need = self.cells_needed(share, ahead, reader.seen);
            let window = (need + 1).min(u64::from(self.spec.ahead.cells));
            for (nth, cell) in reader.upcoming().take(window as usize).enumerate() {
                if !reader.knows(cell) {
                    wanted.push((nth as u64 * 1_000_000 / need, cell));
                }
            }
        }
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, cell)| cell).collect()
    }

    /// Takes in what a cell has.
    ///
    /// # Errors
    /// A cell that cannot be what it says; nothing of it is taken.
    pub fn hear(&mut self, cell: CellMeta) -> Result<Heard, CellError> {
        let name = cell.name();
        let reader = self.readers.get_mut(usize::from(name.source.0));
        let reader = reader.filter(|reader| reader.has_cell(name.cell));
        let Some(reader) = reader else {
            return Err(CellError::Unknown { cell: name });
        };
        cell.check()?;
        let most = u64::from(self.spec.ahead.cells);
        Ok(match reader.ahead(name) {
            None => Heard::Passed,
            Some(ahead) if ahead >= most => Heard::Far,
            Some(_) if reader.knows(name) => Heard::Known,
            Some(_) => {
                reader.hear(cell);
                Heard::New
            }
        })
    }

    /// The plan of the next step.
    ///
    /// # Errors
    /// Why there is none yet. What was drawn is kept, and the same plan comes out however often it
    /// had to wait.
    pub fn plan(&mut self) -> Result<StepPlan, Waiting> {
        self.draw()?;
        let Some(drawn) = self.drawing.take() else {
            return Err(Waiting::Ended { steps: self.step });
        };
        let plan = self.compile(drawn);
        for reader in &mut self.readers {
            reader.end();
        }
        self.step += 1;
        let owed = self.readers.iter().zip(&self.owed);
        self.border = PlanState {
            step: self.step,
            sources: owed.map(|(reader, owed)| reader.state(*owed)).collect(),
            contexts: self.contexts.clone(),
            files: BTreeMap::new(),
            earlier: BTreeMap::new(),
        };
        self.remember();
        Ok(plan)
    }

    /// The state of planning: where [`Planning::at`] goes on with the next step. What was drawn of
    /// a step that waits is no part of it, and will be drawn anew.
    #[must_use]
    pub fn state(&self) -> PlanState {
        self.border.clone()
    }

    /// The parts that no step from `step` on needs, for each source; nothing where `step` is
    /// further back than is remembered. Steps before it are forgotten.
    pub fn passed(&mut self, step: u64) -> Vec<Passed> {
        while self.borders.len() > 1 && self.borders[0].0 < step {
            self.borders.pop_front();
        }
        match self.borders.front() {
            Some((at, passed)) if *at <= step => passed.clone(),
            _ => vec![],
        }
    }

    /// The most samples that the mixture will want of each source in any step from the next on,
    /// within `lead` steps. It is a forecast: of samples that were not heard the mean length of
    /// those that were is taken.
    #[must_use]
    pub fn coming(&self, lead: u32) -> Vec<f64> {
        let until = self.step + u64::from(lead);
        let mut steps: Vec<u64> = self.weights.iter().flat_map(Schedule::changes).collect();
        steps.retain(|step| (self.step..until).contains(step));
        steps.extend([self.step, until]);
        steps.sort_unstable();
        steps.dedup();
        let mut most = vec![0f64; self.readers.len()];
        let lengths: Vec<f64> = self.readers.iter().map(|r| r.seen.mean_tokens()).collect();
        for step in steps {
            let shares = self.shares(step);
            let part = |at: usize| shares[at] as f64 / mixture::WHOLE as f64;
            // Samples that each unit of the mixture is, and how much of the budget that takes.
            let each = |at: usize| match self.spec.mixture.by {
                Unit::Tokens => part(at) / lengths[at],
                Unit::Samples => part(at),
            };
            let taken = |at: usize| match self.spec.step {
                Budget::Tokens(_) => each(at) * lengths[at],
                Budget::Samples(_) => each(at),
            };
            let budget = match self.spec.step {
                Budget::Tokens(tokens) => tokens as f64,
                Budget::Samples(samples) => f64::from(samples),
            };
            let sum: f64 = (0..most.len()).map(taken).sum();
            for (at, most) in most.iter_mut().enumerate() {
                *most = most.max(budget * each(at) / sum.max(f64::MIN_POSITIVE));
            }
        }
        most
    }

    /// For each source the cell that is drawn from next.
    pub fn cursors(&self) -> impl Iterator<Item = CellName> + '_ {
        self.readers.iter().map(Reader::cursor)
    }

    fn remember(&mut self) {
        let passed = self.readers.iter().map(|reader| Passed {
            below: reader.cursor(),
            kept: reader.kept(),
        });
        self.borders.push_back((self.step, passed.collect()));
        if self.borders.len() > BORDERS_MAX {
            self.borders.pop_front();
        }
    }

    /// The shares of sources that have not ended. Where none of them has a weight at the step, they
    /// share alike.
    fn shares(&self, step: u64) -> Vec<i64> {
        let live = |at: usize| !self.readers[at].is_ended();
        let weight = |at: usize| {
            if live(at) {
                self.weights[at].at(step)
            } else {
                0.0
            }
        };
        let mut weights: Vec<f64> = (0..self.readers.len()).map(weight).collect();
        if weights.iter().all(|weight| *weight == 0.0) {
            let alike = |at: usize| if live(at) { 1.0 } else { 0.0 };
            weights = (0..self.readers.len()).map(alike).collect();
        }
        mixture::shares(&weights)
    }

    /// About how many cells of a source so many steps need.
    fn cells_needed(&self, share: i64, steps: u64, seen: Seen) -> u64 {
        let (budget, held) = match self.spec.step {
            Budget::Tokens(tokens) => (tokens, seen.tokens),
            Budget::Samples(samples) => (u64::from(samples), seen.samples),
        };
        if held == 0 {
            return 1;
        }
        let part = share as f64 / mixture::WHOLE as f64;
        let units = budget as f64 * steps as f64 * part;
        ((units * seen.cells as f64 / held as f64).ceil() as u64).max(1)
    }

    /// Draws until the step has its budget. Nothing is left in `drawing` when there is no step.
    fn draw(&mut self) -> Result<(), Waiting> {
        if self.has_stopped() {
            return Err(Waiting::Ended { steps: self.step });
        }
        if self.drawing.is_none() {
            self.begin();
        }
        let Some(mut drawing) = self.drawing.take() else {
            return Ok(());
        };
        let drawn = self.draw_into(&mut drawing);
        if drawn.is_err() || !drawing.samples.is_empty() {
            self.drawing = Some(drawing);
        }
        drawn
    }

    fn draw_into(&mut self, drawing: &mut Drawing) -> Result<(), Waiting> {
        loop {
            let full = match self.spec.step {
                Budget::Tokens(most) => drawing.tokens >= most && !drawing.samples.is_empty(),
                Budget::Samples(most) => drawing.samples.len() >= most as usize,
            };
            let stopped = self.has_stopped() && !drawing.samples.is_empty();
            if full || stopped {
                return Ok(());
            }
            let next = match self.spec.mixture.by {
                Unit::Tokens => mixture::next_owed(&self.owed, &drawing.shares),
                Unit::Samples => mixture::next_of_equals(&self.owed, &drawing.shares),
            };
            let Some(giver) = next else {
                return Ok(());
            };
            let (tokens, from) = match self.readers[giver].look(drawing.lengths) {
                Look::Sample { tokens, from } => (tokens, from),
                Look::Unheard(cell) => return Err(Waiting::Cell(cell)),
                Look::Barren => return Err(Waiting::Barren(SourceNumber(giver as u16))),
                Look::Ended => {
                    drawing.shares = self.shares(self.step);
                    if self.spec.mixture.at_end == AtEnd::Stop {
                        return Ok(());
                    }
                    continue;
                }
            };
            if let Budget::Tokens(most) = self.spec.step
                && !drawing.samples.is_empty()
                && drawing.tokens + u64::from(tokens) > most
            {
                return Ok(());
            }
            let Some(sample) = self.readers[giver].take(from) else {
                return Ok(());
            };
            let units = match self.spec.mixture.by {
                // What has no tokens is paid for all the same, or it would be drawn for ever.
                Unit::Tokens => tokens.max(1),
                Unit::Samples => 1,
            };
            mixture::pay(&mut self.owed, &drawing.shares, giver, units);
            drawing.tokens += u64::from(tokens);
            drawing.samples.push(sample);
            if self.readers[giver].is_ended() {
                drawing.shares = self.shares(self.step);
            }
        }
    }

    /// Returns true where the run is over since a source is.
    fn has_stopped(&self) -> bool {
        let stops = self.spec.mixture.at_end == AtEnd::Stop;
        stops && self.readers.iter().any(Reader::is_ended)
    }

    fn begin(&mut self) {
        let bound = self.spec.curriculum.as_ref();
        let bound = bound.map_or(u32::MAX, |c| c.tokens.at(self.step) as u32);
        let context = self.choose_context(bound);
        let mut lengths = context.map_or(Lengths::ANY, |at| self.lengths_of(at));
        lengths.most = lengths.most.min(bound);
        for reader in &mut self.readers {
            reader.begin(lengths);
        }
        self.drawing = Some(Drawing {
            samples: vec![],
            tokens: 0,
            lengths,
            context,
            shares: self.shares(self.step),
        });
    }

    /// The lengths that belong to a context.
    fn lengths_of(&self, context: usize) -> Lengths {
        let contexts = &self.spec.contexts;
        let below = context.checked_sub(1).map(|at| contexts[at].tokens);
        let last = context + 1 == contexts.len();
        Lengths {
            above: below.unwrap_or(0),
            most: if last {
                u32::MAX
            } else {
                contexts[context].tokens
            },
        }
    }

    /// The context of the step: that of the samples of which no more may wait, else the one that is
    /// owed most of those that the bound leaves.
    fn choose_context(&mut self, bound: u32) -> Option<usize> {
        let all = 0..self.spec.contexts.len();
        let open = |at: usize| at == 0 || self.lengths_of(at).above < bound;
        let share = |at: usize| {
            if open(at) {
                self.spec.contexts[at].share
            } else {
                0.0
            }
        };
        let shares = mixture::shares(&all.clone().map(share).collect::<Vec<_>>());
        let full = self.readers.iter().find(|reader| reader.is_full());
        let pressed = full.and_then(|reader| {
            let oldest = reader.waiting().front()?;
            all.clone()
                .find(|at| self.lengths_of(*at).has(oldest.tokens))
        });
        let pressed = pressed.filter(|at| open(*at));
        let chosen = pressed.or_else(|| mixture::next_of_equals(&self.contexts, &shares))?;
        mixture::pay(&mut self.contexts, &shares, chosen, 1);
        Some(chosen)
    }

    fn compile(&self, drawn: Drawing) -> StepPlan {
        let spec = &self.spec;
        let mut microbatch = spec.microbatch;
        if let Some(context) = drawn.context {
            microbatch.tokens = spec.contexts[context].tokens;
        }
        let most = drawn.lengths.most;
        let mut graph = Graph::mix(&self.mesh, drawn.samples)
            .distribute(spec.distribute.axis, spec.distribute.group)
            .slicing(spec.slicing);
        graph = match spec.encoder {
            Some(encoder) => graph
                .cost(|sample| spec.cost.backbone(sample))
                .balance(spec.balance, microbatch)
                .encode(encoder, spec.cost.picture),
            None => graph
                .cost(|sample| spec.cost.backbone(sample) + spec.cost.encoder(sample))
                .balance(spec.balance, microbatch),
        };
        for dimension in &spec.broadcast_at {
            graph = graph.broadcast_at(dimension);
        }
        let mut plan = graph.compile(self.step);
        plan.epochs = self.readers.iter().map(|r| r.cursor().epoch).collect();
        plan.length_max = (most < u32::MAX).then_some(most);
        plan
    }
}

impl SourceState {
    /// Before its first sample.
    #[must_use]
    pub fn first(shape: &SourceShape) -> Self {
        Self {
            name: shape.name.clone(),
            epoch: 0,
            cell: 0,
            nth: 0,
            any: false,
            owed: 0,
            waiting: vec![],
        }
    }

    /// Returns true where a pass has ended, and nothing was read of the next.
    pub(crate) fn is_between_passes(&self) -> bool {
        self.epoch > 0 && self.cell == 0 && self.nth == 0
    }

    fn check(&self, shape: &SourceShape, number: SourceNumber) -> Result<(), PlanError> {
        let wrong = if self.name != shape.name {
            format!("it has `{}` where `{}` is now", self.name, shape.name)
        } else if self.cell >= shape.cells {
            format!("`{}` has only {} cells", shape.name, shape.cells)
        } else if self.waiting.iter().any(|sample| sample.id.source != number) {
            format!("samples of another source wait in `{}`", shape.name)
        } else {
            return Ok(());
        };
        Err(PlanError::State(wrong))
    }
}

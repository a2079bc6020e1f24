//! Schedules that fill bubbles by weight gradients (Qi et al., Zero Bubble Pipeline Parallelism,
//! arXiv 2401.10241).

use super::builders::not_empty;
use super::{Pass, PassKind, PipelineCosts, PipelineSchedule, ScheduleError, StageCosts};

impl PipelineSchedule {
    /// ZB-H1: the order of 1F1B with the gradients apart, and weight gradients so late that each rank has
    /// `min(p, m)` activations in flight, the most that a rank has under 1F1B.
    ///
    /// With equal costs `F`, `B` and `W` of forward pass, input gradient and weight gradient and `m >= p` the
    /// makespan is `m (F + B + W) + (p - 1) max(F, F + B - W)`, where 1F1B has `(p - 1) (F + B + W)` (the paper's
    /// formulas for `W <= B`). For `W >= B` no schedule is faster, as the last rank begins after `(p - 1) F`.
    ///
    /// # Errors
    /// [`ScheduleError::Empty`].
    pub fn zero_bubble_h1(stages: usize, micro_batches: usize) -> Result<Self, ScheduleError> {
        not_empty(stages, micro_batches, 1)?;
        let pattern = Pattern {
            in_flight_max: stages,
            ahead: 1,
            is_prompt: false,
        };
        Ok(pattern.schedule(stages, micro_batches))
    }

    /// The fastest of several schedules with the gradients apart that has at most so many activations in flight
    /// on each rank, each held until its weight gradient is over. Ranks have one stage each.
    ///
    /// Tried are orders by pattern (those of ZB-H1 and ZB-H2 and 1F1B, under the bound), and greedy ones: a rank
    /// takes what can begin first of the next forward pass and the next input gradient, and a weight gradient
    /// where it would wait for longer than a part of that, or is at the bound. It is not the optimum; with a
    /// bound of `p` or more it is never slower than 1F1B and ZB-H1.
    ///
    /// # Errors
    /// [`ScheduleError::Empty`], [`ScheduleError::NoRoom`], and those of [`graph`](Self::graph).
    pub fn zero_bubble(
        costs: &PipelineCosts,
        micro_batches: usize,
        in_flight_max: usize,
    ) -> Result<Self, ScheduleError> {
        let stages = costs.stages.len();
        not_empty(stages, micro_batches, 1)?;
        costs.check(stages)?;
        if in_flight_max == 0 {
            return Err(ScheduleError::NoRoom);
        }
        let pattern = |in_flight_max, ahead, is_prompt| Pattern {
            in_flight_max,
            ahead,
            is_prompt,
        };
        let patterns = [
            pattern(stages.min(in_flight_max), 1, false),
            pattern(in_flight_max, 1, false),
            pattern(in_flight_max, 2, false),
            pattern(in_flight_max, 1, true),
        ];
        let patterns = patterns.map(|pattern| pattern.schedule(stages, micro_batches));
        let rules = WAITS.into_iter().flat_map(|wait| {
            [false, true].map(|prefers_forward| Rule {
                in_flight_max,
                wait,
                prefers_forward,
            })
        });
        let greedy = rules.map(|rule| Greedy::new(costs, micro_batches, rule).run());
        let mut best: Option<(f64, Self)> = None;
        for schedule in patterns.into_iter().chain(greedy) {
            let makespan_s = schedule.graph(costs)?.replay()?.makespan_s();
            if best.as_ref().is_none_or(|(best_s, _)| makespan_s < *best_s) {
                best = Some((makespan_s, schedule));
            }
        }
        best.map(|(_, schedule)| schedule)
            .ok_or(ScheduleError::NoRoom)
    }
}

/// The parts of a weight gradient for which a greedy rank has to wait otherwise before it begins one.
const WAITS: [f64; 4] = [0.0, 0.25, 0.5, 1.0];

/// An order by turns of forward passes and input gradients, and of weight gradients behind these.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    in_flight_max: usize,
    /// The forward passes of warm-up for each rank behind, as far as they fit under the bound.
    ahead: usize,
    /// Weight gradients follow at once. Otherwise they are as late as the bound lets them.
    is_prompt: bool,
}

impl Pattern {
    fn schedule(self, stages: usize, micro_batches: usize) -> PipelineSchedule {
        let ranks = (0..stages).map(|rank| self.passes(stages - 1 - rank, micro_batches));
        PipelineSchedule::from_passes(micro_batches, 1, ranks.collect())
    }

    /// The passes of a rank with so many behind it.
    fn passes(self, behind: usize, micro_batches: usize) -> Vec<Pass> {
        let most = self.in_flight_max - 1;
        let warm_up = (self.ahead * behind).min(most);
        // The input gradients that are ahead of their weight gradients.
        let late = if self.is_prompt { 0 } else { most - warm_up };
        let warm_up = warm_up.min(micro_batches);
        let mut passes: Vec<Pass> = vec![];
        let mut add = |kind, it| passes.push(Pass::new(kind, it, 0));
        (0..warm_up).for_each(|it| add(PassKind::Forward, it));
        for it in 0..micro_batches {
            if warm_up + it < micro_batches {
                add(PassKind::Forward, warm_up + it);
            }
            add(PassKind::BackwardInput, it);
            if it >= late {
                add(PassKind::BackwardWeight, it - late);
            }
        }
        let left = micro_batches.saturating_sub(late)..micro_batches;
        left.for_each(|it| add(PassKind::BackwardWeight, it));
        passes
    }
}

/// The rule by which ranks of a greedy schedule choose.
#[derive(Clone, Copy, Debug)]
struct Rule {
    in_flight_max: usize,
    /// The part of a weight gradient that a rank must wait otherwise before it begins one.
    wait: f64,
    /// Of a forward pass and an input gradient that could begin at once, the rank takes this.
    prefers_forward: bool,
}

/// One rank of a greedy schedule.
#[derive(Clone, Debug, Default)]
struct GreedyRank {
    passes: Vec<Pass>,
    free_s: f64,
    /// The ends of its forward passes, and of its input gradients, by micro-batch.
    forwards_s: Vec<f64>,
    inputs_s: Vec<f64>,
    /// The number of weight gradients.
    weights: usize,
}

/// A pass that a rank can do next, with its begin in seconds.
type Candidate = (f64, PassKind);

/// Ranks that choose their next passes in the order of time.
struct Greedy<'a> {
    costs: &'a PipelineCosts,
    micro_batches: usize,
    rule: Rule,
    ranks: Vec<GreedyRank>,
}

impl<'a> Greedy<'a> {
    fn new(costs: &'a PipelineCosts, micro_batches: usize, rule: Rule) -> Self {
        Self {
            costs,
            micro_batches,
            rule,
            ranks: vec![GreedyRank::default(); costs.stages.len()],
        }
    }

    /// Lets the rank that can decide first choose its next pass, until none is left. There is one: of the oldest
    /// micro-batch that is not through, either the next pass can begin, or its rank is at the bound and has a
    /// weight gradient to do.
    fn run(mut self) -> PipelineSchedule {
        loop {
            let ranks = 0..self.ranks.len();
            let next = ranks.filter_map(|rank| Some((rank, self.next(rank)?)));
            let first = next.min_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
            let Some((rank, (_, (begin_s, kind)))) = first else {
                break;
            };
            self.take(rank, begin_s, kind);
        }
        let ranks = self.ranks.into_iter().map(|rank| rank.passes).collect();
        PipelineSchedule::from_passes(self.micro_batches, 1, ranks)
    }

    /// The next pass of a rank, behind the instant at which that is decided.
    fn next(&self, rank: usize) -> Option<(f64, Candidate)> {
        let (arrived, own) = (self.arrived(rank), &self.ranks[rank]);
        let weight =
            (own.weights < own.inputs_s.len()).then_some((own.free_s, PassKind::BackwardWeight));
        match (arrived, weight) {
            (Some(arrived), Some(weight)) => {
                let idle_s = arrived.0 - own.free_s;
                let enough_s = self.rule.wait * self.stage(rank).weight_gradient_s;
                let waits = idle_s > 0.0 && idle_s >= enough_s;
                Some((own.free_s, if waits { weight } else { arrived }))
            }
            (Some(arrived), None) => Some((arrived.0, arrived)),
            (None, weight) => weight.map(|weight| (own.free_s, weight)),
        }
    }

    /// The forward pass or input gradient that a rank can begin first.
    fn arrived(&self, rank: usize) -> Option<Candidate> {
        let own = &self.ranks[rank];
        let (forwards, inputs) = (own.forwards_s.len(), own.inputs_s.len());
        let sent = |end_s: &f64| end_s + self.costs.transfer_s;
        let fits =
            forwards < self.micro_batches && forwards - own.weights < self.rule.in_flight_max;
        let forward_s = match rank.checked_sub(1) {
            _ if !fits => None,
            None => Some(0.0),
            Some(before) => self.ranks[before].forwards_s.get(forwards).map(sent),
        };
        let input_s = match self.ranks.get(rank + 1) {
            _ if inputs == forwards => None,
            None => Some(own.forwards_s[inputs]),
            Some(behind) => behind.inputs_s.get(inputs).map(sent),
        };
        let forward = forward_s.map(|it| (it.max(own.free_s), PassKind::Forward));
        let input = input_s.map(|it| (it.max(own.free_s), PassKind::BackwardInput));
        match (forward, input) {
            (Some(forward), Some(input)) => {
                let is_first =
                    forward.0 < input.0 || (forward.0 == input.0 && self.rule.prefers_forward);
                Some(if is_first { forward } else { input })
            }
            (forward, input) => forward.or(input),
        }
    }

    fn take(&mut self, rank: usize, begin_s: f64, kind: PassKind) {
        let end_s = begin_s + self.stage(rank).seconds(kind);
        let own = &mut self.ranks[rank];
        let micro_batch = match kind {
            PassKind::Forward => own.forwards_s.len(),
            PassKind::BackwardInput => own.inputs_s.len(),
            PassKind::Backward | PassKind::BackwardWeight => own.weights,
        };
        match kind {
            PassKind::Forward => own.forwards_s.push(end_s),
            PassKind::BackwardInput => own.inputs_s.push(end_s),
            PassKind::Backward | PassKind::BackwardWeight => own.weights += 1,
        }
        own.passes.push(Pass::new(kind, micro_batch, 0));
        own.free_s = end_s;
    }

    fn stage(&self, rank: usize) -> &StageCosts {
        &self.costs.stages[rank]
    }
}

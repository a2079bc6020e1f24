//! The look of a run: bars on a terminal, a line now and then elsewhere, a table at the end.

use std::collections::VecDeque;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use odeon::{Clock, Timestamp};
use odeon_actors::engine::{EvalStats, Progress, RewardKind};
use odeon_actors::recipe::Recipe;
use odeon_actors::rl::report::{Report, StepReport};
use odeon_actors::rl::store::Counts;

use super::line;
use crate::print::{self, Unshown};

/// Steps whose mean a line shows.
const WINDOW: usize = 10;

/// The bar takes what room the words leave.
const BAR: &str = "{msg} {wide_bar}";

/// Supervised steps or those of the reinforcement.
struct Phase {
    name: &'static str,
    of: u64,
    /// Where this process began with it or went back to, and when: what was done before must not
    /// count into its speed.
    from: u64,
    begun: Timestamp,
    /// Where it is, and what else its last line told.
    at: u64,
    parts: Vec<String>,
}

/// A run as it is shown: its bar, its lines, and the numbers of its table.
pub(super) struct Display {
    terminal: bool,
    warmup_steps: u64,
    steps: u64,
    phase: Option<Phase>,
    bar: Option<ProgressBar>,
    begun: Timestamp,
    reinforcing: Option<Timestamp>,
    told: Steps,
    /// The first of the run and the last.
    evaluations: Option<(EvalStats, EvalStats)>,
    /// Where this process went on with a run that was begun before.
    since: Option<Progress>,
    resumed: u32,
}

/// Summary of the steps, which may be many, for the lines and the table.
#[derive(Debug, Default)]
struct Steps {
    count: u64,
    /// The rewards of the first.
    first: Vec<f64>,
    last: VecDeque<StepReport>,
    staleness_max: u64,
    /// See [`StepStats::sampling_gap`](odeon_actors::engine::StepStats::sampling_gap).
    sampling_gap: Option<f64>,
    /// Without those of the first step: they were made before its report.
    tokens_behind_first: u64,
}

impl Steps {
    fn add(&mut self, step: &StepReport) {
        if self.count > 0 {
            self.tokens_behind_first += step.response_tokens;
        }
        self.count += 1;
        self.staleness_max = self.staleness_max.max(step.staleness_max);
        let gaps = [self.sampling_gap, step.stats.sampling_gap];
        self.sampling_gap = gaps.into_iter().flatten().reduce(f64::max);
        if self.first.len() < WINDOW {
            self.first.push(step.reward);
        }
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(step.clone());
    }
}

fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = numbers.len().max(1) as f64;
    numbers.sum::<f64>() / count
}

impl Display {
    /// For a run that has told so much before.
    pub(super) fn new(recipe: &Recipe, told: &[Report]) -> Self {
        let evaluation = |report: &Report| match report {
            Report::Evaluated { stats, .. } => Some(*stats),
            _ => None,
        };
        let first = told.iter().find_map(evaluation);
        let last = told.iter().rev().find_map(evaluation);
        Self {
            terminal: std::io::stderr().is_terminal(),
            warmup_steps: recipe.warmup.steps,
            steps: recipe.rl.steps_in_all(),
            phase: None,
            bar: None,
            begun: Clock::now(),
            reinforcing: None,
            told: Steps::default(),
            evaluations: first.zip(last),
            since: None,
            resumed: 0,
        }
    }

    pub(super) fn show(&mut self, report: &Report) {
        match report {
            Report::Warmup { step, stats } => {
                let parts = vec![format!("loss {:.3}", stats.loss)];
                self.advance("supervised", *step, self.warmup_steps, parts);
            }
            Report::Step(step) => {
                self.reinforcing.get_or_insert_with(Clock::now);
                self.told.add(step);
                let parts = self.step_parts();
                self.advance("reinforced", step.version, self.steps, parts);
            }
            Report::Evaluated { version, stats } => {
                let first = self.evaluations.map_or(*stats, |(first, _)| first);
                self.evaluations = Some((first, *stats));
                print::say(format!(
                    "step {version}: {} of {} held-out problems right ({:.1} %)",
                    stats.correct,
                    stats.problems,
                    100.0 * stats.accuracy()
                ));
            }
            Report::RewardModel(learnt) => {
                let kind = match learnt.kind {
                    RewardKind::Scalar => "scalar",
                    RewardKind::Pairwise => "pairwise",
                };
                print::say(format!(
                    "a {kind} reward model has learnt in {} steps: of {} held-out pairs it orders {} as \
                     the checker does ({:.1} %)",
                    learnt.steps,
                    learnt.pairs,
                    learnt.ordered,
                    100.0 * learnt.accuracy()
                ));
            }
            Report::Finding { version, why, .. } => print::say(format!("step {version}: {why}")),
            Report::Resumed {
                incarnation,
                progress,
            } => {
                if *incarnation == 1 {
                    self.since = Some(*progress);
                } else {
                    self.resumed += 1;
                }
                let place = if *progress == Progress::default() {
                    "begins anew".to_owned()
                } else {
                    format!(
                        "goes on from its checkpoint: supervised step {}, step {}",
                        progress.warmup, progress.version
                    )
                };
                print::say(format!("the trainer {place} (life {incarnation})"));
            }
            Report::Waiting { why, .. } => print::say(format!("lost ranks wait for room: {why}")),
            Report::Saved(_) | Report::Finished(_) | Report::Halted(_) => {}
        }
    }

    fn advance(&mut self, name: &'static str, at: u64, of: u64, mut parts: Vec<String>) {
        if self.phase.as_ref().is_some_and(|phase| phase.name != name) {
            self.end();
        }
        let now = Clock::now();
        let (from, begun) = match &self.phase {
            Some(phase) if phase.at < at => (phase.from, phase.begun),
            _ => (at, now),
        };
        parts.insert(0, format!("{name} {at}/{of}"));
        parts.extend(line::left(
            at - from,
            of.saturating_sub(at),
            now.since(begun),
        ));
        let phase = self.phase.insert(Phase {
            name,
            of,
            from,
            begun,
            at,
            parts,
        });
        if !self.terminal {
            if at == of || at.is_multiple_of((of / 20).max(1)) {
                print::say(phase.parts.join("  "));
            }
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = print::BARS.add(ProgressBar::new(phase.of));
            if let Ok(style) = ProgressStyle::with_template(BAR) {
                bar.set_style(style);
            }
            bar
        });
        let text = line::fit(&phase.parts, print::columns());
        bar.set_position(at);
        bar.set_message(text);
    }

    /// Means over the last steps, what matters most first.
    fn step_parts(&self) -> Vec<String> {
        let last = &self.told.last;
        let mean = |of: fn(&StepReport) -> f64| mean(last.iter().map(of));
        let mut parts = vec![
            format!("reward {:.3}", mean(|step| step.reward)),
            format!("right {:.0} %", 100.0 * mean(|step| step.accuracy)),
            format!("stale {:.1}", mean(|step| step.staleness_mean)),
        ];
        parts.extend(
            self.tokens_per_second()
                .map(|speed| format!("{speed:.0} tok/s")),
        );
        parts
    }

    /// `None` until there are two reports to measure between.
    fn tokens_per_second(&self) -> Option<f64> {
        let begun = self.reinforcing.filter(|_| self.told.count > 1)?;
        let tokens = self.told.tokens_behind_first;
        Some(tokens as f64 / Clock::now().since(begun).as_secs_f64().max(1e-3))
    }

    /// Leaves a line in place of the bar, with where it has come to.
    pub(super) fn end(&mut self) {
        let phase = self.phase.take();
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
            print::say(phase.map_or_else(String::new, |phase| phase.parts.join("  ")));
        }
    }

    pub(super) fn table(&self, counts: Counts) -> Result<(), Unshown> {
        let percent = |accuracy: f64| format!("{:.1} %", 100.0 * accuracy);
        let since = match self.since {
            None => String::new(),
            Some(Progress { warmup, version: 0 }) => format!(", since supervised step {warmup}"),
            Some(Progress { version, .. }) => format!(", since step {version}"),
        };
        let mut rows = vec![];
        if let Some((first, last)) = self.evaluations {
            rows.push(vec![
                "held-out right, before".to_owned(),
                percent(first.accuracy()),
            ]);
            rows.push(vec![
                "held-out right, after".to_owned(),
                percent(last.accuracy()),
            ]);
        }
        let told = &self.told;
        let steps = match told.last.len() {
            1 => "step".to_owned(),
            shown => format!("{shown} steps"),
        };
        if told.count > 0 {
            rows.push(vec![
                format!("reward, first {steps}{since}"),
                format!("{:.3}", mean(told.first.iter().copied())),
            ]);
            rows.push(vec![
                format!("reward, last {steps}"),
                format!("{:.3}", mean(told.last.iter().map(|step| step.reward))),
            ]);
            rows.push(vec![
                format!("largest staleness, steps{since}"),
                told.staleness_max.to_string(),
            ]);
        }
        if let Some(gap) = told.sampling_gap {
            rows.push(vec![
                format!("training from sampling, nats{since}"),
                match gap {
                    0.0 => "0, to the bit".to_owned(),
                    gap => format!("at most {gap:.0e}"),
                },
            ]);
        }
        if let Some(speed) = self.tokens_per_second() {
            rows.push(vec![
                format!("response tokens/s{since}"),
                format!("{speed:.0}"),
            ]);
        }
        rows.push(vec![
            format!("trajectories{since}"),
            counts.accepted.to_string(),
        ]);
        if counts.uniform > 0 {
            rows.push(vec![
                format!("left out, of equal rewards{since}"),
                counts.uniform.to_string(),
            ]);
        }
        rows.push(vec![
            format!("ordered again after a loss{since}"),
            counts.reordered.to_string(),
        ]);
        if counts.lost > 0 {
            rows.push(vec![
                format!("made anew after the loss of the store{since}"),
                counts.lost.to_string(),
            ]);
        }
        if counts.handed_in > 0 {
            rows.push(vec![
                format!("handed in to be packed{since}"),
                counts.handed_in.to_string(),
            ]);
        }
        rows.push(vec![
            format!("refused as duplicates{since}"),
            counts.duplicates.to_string(),
        ]);
        rows.push(vec![
            format!("trainer lives lost{since}"),
            self.resumed.to_string(),
        ]);
        let seconds = Clock::now().since(self.begun).as_secs_f64();
        rows.push(vec![format!("seconds{since}"), format!("{seconds:.0}")]);
        print::table(&["", "value"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use odeon_actors::engine::StepStats;

    use super::*;

    #[test]
    fn a_long_run_keeps_its_first_and_last_steps_and_sums_of_the_rest() {
        let mut told = Steps::default();
        for version in 1..=1000 {
            told.add(&StepReport {
                version,
                batch_checksum: 0,
                uniform_groups: 0,
                reward: version as f64,
                accuracy: 0.0,
                staleness_mean: 0.0,
                staleness_max: version % 7,
                staleness: vec![],
                response_mean: 1.0,
                response_tokens: version,
                turns_mean: 0.0,
                tool_wait_mean: 0.0,
                stats: StepStats::default(),
                cost: 0.0,
                critic_loss: None,
                seconds: 1.0,
                publish_seconds: 0.0,
            });
        }
        assert_eq!((told.first.len(), told.last.len()), (WINDOW, WINDOW));
        assert_eq!(mean(told.first.iter().copied()), 5.5);
        assert_eq!(mean(told.last.iter().map(|step| step.reward)), 995.5);
        assert_eq!(told.staleness_max, 6);
        assert_eq!(told.tokens_behind_first, 1000 * 1001 / 2 - 1);
    }
}

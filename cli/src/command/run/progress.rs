//! The look of a run: bars on a terminal, a line now and then elsewhere, a table at the end.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use odeon::{Clock, Timestamp};
use odeon_actors::engine::EvalStats;
use odeon_actors::recipe::Recipe;
use odeon_actors::rl::report::{Report, StepReport};
use odeon_actors::rl::store::Counts;

use crate::print;

/// Steps whose mean a line shows.
const WINDOW: usize = 10;

/// See the module.
pub(super) struct Display {
    terminal: bool,
    warmup_steps: u64,
    steps: u64,
    bar: Option<ProgressBar>,
    begun: Timestamp,
    reinforcing: Option<Timestamp>,
    reports: Vec<StepReport>,
    evaluations: Vec<(u64, EvalStats)>,
    resumed: u32,
}

impl Display {
    pub(super) fn new(recipe: &Recipe) -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            warmup_steps: recipe.warmup.steps,
            steps: recipe.rl.steps,
            bar: None,
            begun: Clock::now(),
            reinforcing: None,
            reports: vec![],
            evaluations: vec![],
            resumed: 0,
        }
    }

    pub(super) fn show(&mut self, report: &Report) {
        match report {
            Report::Warmup { step, stats } => {
                let text = format!("loss {:.3}", stats.loss);
                self.advance("supervised", *step, self.warmup_steps, &text);
            }
            Report::Step(step) => {
                self.reinforcing.get_or_insert_with(Clock::now);
                self.reports.push(step.clone());
                let text = self.step_text();
                self.advance("reinforced", step.version, self.steps, &text);
            }
            Report::Evaluated { version, stats } => {
                self.evaluations.push((*version, *stats));
                self.note(&format!(
                    "step {version}: {} of {} held-out problems right ({:.1} %)",
                    stats.correct,
                    stats.problems,
                    100.0 * stats.accuracy()
                ));
            }
            Report::Resumed {
                incarnation,
                progress,
            } => {
                self.resumed += u32::from(*incarnation > 1);
                self.note(&format!(
                    "the trainer goes on from its checkpoint: supervised step {}, step {} (life {incarnation})",
                    progress.warmup, progress.version
                ));
            }
            Report::Saved(_) | Report::Finished(_) => {}
        }
    }

    fn advance(&mut self, name: &str, at: u64, of: u64, text: &str) {
        if !self.terminal {
            if at == of || at.is_multiple_of((of / 20).max(1)) {
                print::say(format!("{name} {at}/{of}  {text}"));
            }
            return;
        }
        let bar = match &self.bar {
            Some(bar) if bar.prefix() == name => bar,
            _ => {
                if let Some(old) = &self.bar {
                    old.finish();
                }
                let bar = ProgressBar::new(of).with_prefix(name.to_owned());
                let style = "{prefix:10} {bar:24} {pos}/{len}  {msg}  {eta} left";
                if let Ok(style) = ProgressStyle::with_template(style) {
                    bar.set_style(style);
                }
                self.bar.insert(bar)
            }
        };
        bar.set_position(at);
        bar.set_message(text.to_owned());
    }

    /// Means over the last steps.
    fn step_text(&self) -> String {
        let last = &self.reports[self.reports.len().saturating_sub(WINDOW)..];
        let count = last.len().max(1) as f64;
        let mean = |of: fn(&StepReport) -> f64| last.iter().map(of).sum::<f64>() / count;
        format!(
            "reward {:.3}  right {:.1} %  stale {:.2}  {:.0} tokens/s",
            mean(|step| step.reward),
            100.0 * mean(|step| step.accuracy),
            mean(|step| step.staleness_mean),
            self.tokens_per_second()
        )
    }

    fn tokens_per_second(&self) -> f64 {
        let Some(begun) = self.reinforcing else {
            return 0.0;
        };
        // The first step's tokens were made before its report.
        let tokens: u64 = self
            .reports
            .iter()
            .skip(1)
            .map(|step| step.response_tokens)
            .sum();
        tokens as f64 / Clock::now().since(begun).as_secs_f64().max(1e-3)
    }

    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) if self.terminal => bar.println(text),
            _ => print::say(text),
        }
    }

    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }

    pub(super) fn table(&self, counts: Counts) {
        let percent = |accuracy: f64| format!("{:.1} %", 100.0 * accuracy);
        let mut rows = vec![];
        if let (Some((_, first)), Some((_, last))) =
            (self.evaluations.first(), self.evaluations.last())
        {
            rows.push(vec![
                "held-out right, before".to_owned(),
                percent(first.accuracy()),
            ]);
            rows.push(vec![
                "held-out right, after".to_owned(),
                percent(last.accuracy()),
            ]);
        }
        let window = |reports: &[StepReport]| {
            let sum: f64 = reports.iter().map(|step| step.reward).sum();
            format!("{:.3}", sum / reports.len().max(1) as f64)
        };
        let count = self.reports.len();
        let stale = self
            .reports
            .iter()
            .map(|step| step.staleness_max)
            .max()
            .unwrap_or(0);
        rows.push(vec![
            "reward, first steps".to_owned(),
            window(&self.reports[..count.min(WINDOW)]),
        ]);
        rows.push(vec![
            "reward, last steps".to_owned(),
            window(&self.reports[count.saturating_sub(WINDOW)..]),
        ]);
        rows.push(vec![
            "response tokens/s".to_owned(),
            format!("{:.0}", self.tokens_per_second()),
        ]);
        rows.push(vec![
            "largest staleness, steps".to_owned(),
            stale.to_string(),
        ]);
        rows.push(vec!["trajectories".to_owned(), counts.accepted.to_string()]);
        rows.push(vec![
            "ordered again after a loss".to_owned(),
            counts.reordered.to_string(),
        ]);
        rows.push(vec![
            "refused as duplicates".to_owned(),
            counts.duplicates.to_string(),
        ]);
        rows.push(vec![
            "trainer lives lost".to_owned(),
            self.resumed.to_string(),
        ]);
        let seconds = Clock::now().since(self.begun).as_secs_f64();
        rows.push(vec!["seconds".to_owned(), format!("{seconds:.0}")]);
        print::table(&["", "value"], &rows);
    }
}

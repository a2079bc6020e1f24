//! Costs of failures to a job, and gains of another checkpoint interval. Pure.
//!
//! With `N` steps of `T_iter` between checkpoints, one failure in each interval and at any moment of
//! it, ByteCheckpoint (arXiv 2407.20143) has
//!
//! ```text
//! T_wasted = (N T_iter + T_save) / 2 + T_load        ETTR = N T_iter / (N T_iter + T_wasted)
//! ```
//!
//! where `T_save` is until a checkpoint is complete, since a failure before that goes back to the
//! one before. [`Job::simulated`] draws failures at any rate, and knows what the formula leaves out:
//! the stall of each save, several failures in an interval or none, failures while loading. Where
//! training goes on while a checkpoint is completed, a failure loses `N T_iter / 2 + T_save` on
//! average and not half of `T_save`: the simulation shows so, and the formula is lower by that.

use serde::{Deserialize, Serialize};

/// A job that saves and fails. All times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// One step, `T_iter`.
    pub step: f64,
    /// Steps between two checkpoints, `N`.
    pub interval: u64,
    /// Time for which a save keeps training waiting.
    pub stall: f64,
    /// Time from the snapshot of a checkpoint until it is complete, `T_save`.
    pub save: f64,
    /// Time from a failure to the first step after it, `T_load`: until it is noticed, ranks are
    /// there again, and have loaded.
    pub load: f64,
}

/// Time, steps and failures of a job that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// All the time that passed.
    pub seconds: f64,
    /// Steps that count.
    pub steps: u64,
    /// Steps that were made again.
    pub repeated: u64,
    /// Failures.
    pub failures: u64,
    /// Effective training time, as a part of all.
    pub ettr: f64,
}

impl Job {
    /// Time that a failure costs on average, `T_wasted`.
    #[must_use]
    pub fn wasted(&self) -> f64 {
        f64::midpoint(self.interval as f64 * self.step, self.save) + self.load
    }

    /// Effective training time as a part of all, with one failure in each interval.
    #[must_use]
    pub fn ettr(&self) -> f64 {
        let useful = self.interval as f64 * self.step;
        useful / (useful + self.wasted())
    }

    /// The interval that is best when a failure comes every `between_failures` seconds, in steps:
    /// `sqrt(2 stall between_failures)` seconds (Young 1974, doi:10.1145/361147.361115), at least
    /// until a save has passed.
    #[must_use]
    pub fn best_interval(&self, between_failures: f64) -> u64 {
        let seconds = (2.0 * self.stall * between_failures).sqrt().max(self.save);
        ((seconds / self.step).round() as u64).max(1)
    }

    /// Runs the job until `steps` steps count, with failures that come at any moment, one every
    /// `between_failures` seconds on average. The same seed gives the same outcome.
    #[must_use]
    pub fn simulated(&self, steps: u64, between_failures: f64, seed: u64) -> Outcome {
        let mut chance = Chance(seed);
        let mut outcome = Outcome::default();
        let mut next_failure = chance.wait(between_failures);
        // The step up to which a complete checkpoint goes, and the one that is on its way: up to
        // where, and when it is complete.
        let (mut safe, mut pending): (u64, Option<(u64, f64)>) = (0, None);
        let mut furthest = 0;
        let (mut now, mut at) = (0.0, 0_u64);
        while at < steps {
            let saves = (at + 1).is_multiple_of(self.interval.max(1));
            // A save waits for the one before.
            let wait = match pending {
                Some((_, complete)) if saves => (complete - now - self.step).max(0.0),
                _ => 0.0,
            };
            let end = now + self.step + if saves { self.stall + wait } else { 0.0 };
            if let Some((step, _)) =
                pending.take_if(|(_, complete)| *complete <= end.min(next_failure))
            {
                safe = step;
            }
            if next_failure < end {
                outcome.failures += 1;
                at = safe;
                pending = None;
                // A failure while it loads has it begin to load again.
                let mut back = next_failure + self.load;
                next_failure += chance.wait(between_failures);
                while next_failure < back {
                    outcome.failures += 1;
                    back = next_failure + self.load;
                    next_failure += chance.wait(between_failures);
                }
                now = back;
                continue;
            }
            now = end;
            at += 1;
            if at <= furthest {
                outcome.repeated += 1;
            }
            furthest = furthest.max(at);
            if saves {
                pending = Some((at, now + self.save));
            }
        }
        outcome.seconds = now;
        outcome.steps = steps;
        outcome.ettr = steps as f64 * self.step / now;
        outcome
    }
}

/// Numbers that follow from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Until something that comes every `mean` seconds.
    fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.next()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job = Job {
        step: 10.0,
        interval: 100,
        stall: 0.5,
        save: 60.0,
        load: 120.0,
    };

    #[test]
    fn the_formula_is_the_paper_s() {
        assert_eq!(JOB.wasted(), (1000.0 + 60.0) / 2.0 + 120.0);
        assert_eq!(JOB.ettr(), 1000.0 / 1650.0);
    }

    #[test]
    fn failures_cost_what_the_formula_says() {
        // Rare failures, so that there is one in an interval at most, as the formula has it.
        let between = 50_000.0;
        let runs: Vec<Outcome> = (0..20)
            .map(|seed| JOB.simulated(100_000, between, seed))
            .collect();
        let (mut wasted, mut failures) = (0.0, 0.0);
        for run in &runs {
            let undisturbed = 100_000.0 * JOB.step + 1000.0 * JOB.stall;
            wasted += run.seconds - undisturbed;
            failures += run.failures as f64;
        }
        let each = wasted / failures;
        let exact = JOB.wasted() + JOB.save / 2.0;
        assert!(
            (each / exact - 1.0).abs() < 0.03,
            "{each} s, and {exact} s exactly"
        );
        assert!(
            (each / JOB.wasted() - 1.0).abs() < 0.08,
            "{each} s, and {} s by the paper",
            JOB.wasted()
        );
        assert_eq!(
            JOB.simulated(1000, between, 1),
            JOB.simulated(1000, between, 1)
        );
    }

    #[test]
    fn no_failure_costs_nothing_but_stalls() {
        let run = JOB.simulated(1000, f64::INFINITY, 0);
        assert_eq!((run.failures, run.repeated), (0, 0));
        assert!((run.seconds - (10_000.0 + 10.0 * 0.5)).abs() < 1e-6);
    }

    #[test]
    fn the_best_interval_is_better_than_others() {
        let between = 20_000.0;
        let ettr = |interval: u64| {
            let job = Job { interval, ..JOB };
            let runs = (0..30).map(|seed| job.simulated(50_000, between, seed).ettr);
            runs.sum::<f64>() / 30.0
        };
        let best = JOB.best_interval(between);
        assert!(ettr(best) > ettr(best * 20) && ettr(best) > ettr(1).min(ettr(best) - 1e-9));
    }
}

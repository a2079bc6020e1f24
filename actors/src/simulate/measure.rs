//! Measurements of a simulated run.

use std::time::Duration;

use futures::future::join_all;
use odeon::{Clock, Failure, System, Timestamp};

use super::scenario::{FailureSection, Scenario};
use super::{Lost, Moment};
use crate::rl::packer::{CountPacked, PackerCounts};
use crate::rl::report::{Report, StepReport};
use crate::rl::rollout::{CountTokens, RolloutCounts};
use crate::rl::run::Run;
use crate::rl::store::{Count, Counts};

/// Numbers that were measured after the first steps.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) tokens: f64,
    pub(super) steps: u64,
    pub(super) staleness: Staleness,
    pub(super) inherent_mean: f64,
    pub(super) inherent_max: u64,
    pub(super) training: f64,
    pub(super) publishing: f64,
    /// Sums over all rollouts.
    pub(super) rolled: RolloutCounts,
    pub(super) packed: PackerCounts,
    pub(super) wasted: u64,
    pub(super) lost: Option<Lost>,
    pub(super) timeline: Vec<Moment>,
}

/// Number of replies of each staleness, from 0 steps on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Staleness(pub(super) Vec<u64>);

impl Staleness {
    /// Adds a batch, the `batch`-th from 0 of those of which each step has `batches`. Rollouts only know
    /// of weights after whole steps.
    fn add(&mut self, of_batch: &[u64], batch: u64, batches: u64) {
        for (age, count) in of_batch.iter().enumerate().filter(|(_, count)| **count > 0) {
            let made = batch.saturating_sub(age as u64) / batches;
            let steps = (batch / batches - made) as usize;
            if self.0.len() <= steps {
                self.0.resize(steps + 1, 0);
            }
            self.0[steps] += count;
        }
    }

    pub(super) fn mean(&self) -> f64 {
        let sum: u64 = (0..).zip(&self.0).map(|(steps, count)| steps * count).sum();
        sum as f64 / self.0.iter().sum::<u64>().max(1) as f64
    }

    pub(super) const fn most(&self) -> u64 {
        (self.0.len() as u64).saturating_sub(1)
    }
}

impl Scenario {
    /// Follows a run to its end, in which so many batches make a step.
    pub(super) async fn measure(
        &self,
        system: &System,
        mut run: Run,
        batches: u64,
    ) -> Result<Measured, Failure> {
        let skip = self.simulation.skip * batches;
        let lost = || Failure::error("the run has lost its monitor");
        loop {
            match run.reports.recv().await.ok_or_else(lost)? {
                Report::Step(step) if step.version == skip => break,
                Report::Finished(_) => return Err(Failure::error("iterations are more than skip")),
                _ => {}
            }
        }
        let mut measured = Measured::default();
        let begun = Clock::now();
        let before = run.store.ask(Count).await.map_err(Failure::error)?;
        let mut watch = Watch::new(&run, begun, self.quantum()).await;
        let mut victims = self.failure.map(Victims::Alive);
        let mut next = begun.after(LOOK_EVERY);
        let mut heard = begun;
        loop {
            let report = tokio::select! {
                biased;
                report = run.reports.recv() => Some(report.ok_or_else(lost)?),
                () = Clock::sleep(next.left(Clock::now())) => None,
            };
            match report {
                Some(Report::Step(step)) => {
                    heard = Clock::now();
                    watch.version = step.version / batches;
                    measured.add(&step, self.quantum(), batches);
                    if let Some(Victims::Alive(failure)) = victims
                        && failure.after_step * batches == step.version
                    {
                        victims = Some(kill(system, &run, failure));
                    }
                }
                Some(Report::Finished(_)) => break,
                Some(_) => {}
                None if Clock::now().since(heard) > SILENCE_MAX => {
                    return Err(Failure::error(format!(
                        "no step was made in {} hours: the run has ended, or waits for ever",
                        SILENCE_MAX.as_secs() / 3600
                    )));
                }
                None => {
                    watch.look(&run).await;
                    next = Clock::now().after(LOOK_EVERY);
                    if let Some(Victims::Killed { at, count, back }) = &mut victims
                        && back.is_none()
                        && watch.generates_again(*count, *at)
                    {
                        *back = Some(Clock::now());
                    }
                }
            }
        }
        watch.look(&run).await;
        let seconds = Clock::now().since(begun).as_secs_f64();
        measured.steps /= batches;
        measured.seconds = seconds;
        measured.rolled = watch.sum;
        measured.timeline = watch.timeline;
        if let Some(packer) = run.packer {
            let counted = packer.ask(CountPacked).timeout(LOOKS).await;
            measured.packed = counted.map_err(Failure::error)?;
        }
        let counts = run.store.ask(Count).await.map_err(Failure::error)?;
        measured.count(&before, &counts, batches);
        if let Some(Victims::Killed { at, back, .. }) = victims {
            let back = back.ok_or_else(|| Failure::error(NOT_BACK))?;
            let (at, took) = (at.since(begun), back.since(at));
            let reordered = counts.reordered - before.reordered;
            measured.lost = Some(lost_machine(&measured.timeline, at, took, reordered));
        }
        Ok(measured)
    }

    fn quantum(&self) -> f64 {
        f64::from(self.simulation.quantum)
    }
}

impl Measured {
    fn add(&mut self, step: &StepReport, quantum: f64, batches: u64) {
        self.tokens += step.response_tokens as f64 * quantum;
        self.steps += 1;
        self.staleness
            .add(&step.staleness, step.version - 1, batches);
        self.training += step.seconds;
        self.publishing += step.publish_seconds;
    }

    fn count(&mut self, before: &Counts, after: &Counts, batches: u64) {
        let came = after.accepted - before.accepted;
        let steps = after.inherent_staleness - before.inherent_staleness;
        self.inherent_mean = steps as f64 / batches as f64 / came.max(1) as f64;
        self.inherent_max = after.inherent_staleness_max / batches;
        self.wasted = after.stale + after.duplicates;
    }
}

/// The rollouts that are killed.
enum Victims {
    /// Not yet.
    Alive(FailureSection),
    /// The first so many, at this moment; when all of them were back.
    Killed {
        at: Timestamp,
        count: usize,
        back: Option<Timestamp>,
    },
}

/// Kills the processes of the first rollouts.
fn kill(system: &System, run: &Run, failure: FailureSection) -> Victims {
    for rollout in run.rollouts.iter().take(failure.rollouts) {
        let process = system.admin().process_of(*rollout);
        if !process.is_some_and(|process| system.admin().kill_worker(process)) {
            tracing::warn!(rollout = %rollout.id(), "there is no process to kill");
        }
    }
    Victims::Killed {
        at: Clock::now(),
        count: failure.rollouts,
        back: None,
    }
}

/// Looks at what rollouts have done, now and then.
struct Watch {
    begun: Timestamp,
    at: Timestamp,
    quantum: f64,
    /// The last counts of each, and when it began to generate in this life.
    last: Vec<(RolloutCounts, Option<Timestamp>)>,
    /// Sums over all of them since the first look.
    sum: RolloutCounts,
    timeline: Vec<Moment>,
    /// Steps that are trained.
    version: u64,
}

impl Watch {
    async fn new(run: &Run, begun: Timestamp, quantum: f64) -> Self {
        let last = counts(run).await.into_iter();
        Self {
            begun,
            at: Clock::now(),
            quantum,
            last: last.map(|it| (it.unwrap_or_default(), None)).collect(),
            sum: RolloutCounts::default(),
            timeline: vec![],
            version: 0,
        }
    }

    /// Whoever generates answers a moment later, and whoever is lost does not.
    async fn look(&mut self, run: &Run) {
        let all = counts(run).await;
        let now = Clock::now();
        let mut more = RolloutCounts::default();
        for ((last, since), counts) in self.last.iter_mut().zip(all) {
            let Some(counts) = counts else {
                continue;
            };
            if counts.busy < last.busy {
                // Another life counts from the beginning.
                *last = RolloutCounts::default();
                *since = None;
            }
            if counts.busy > Duration::ZERO && since.is_none() {
                *since = Some(now);
            }
            more.tokens += counts.tokens - last.tokens;
            more.busy += counts.busy.saturating_sub(last.busy);
            more.filled += counts.filled.saturating_sub(last.filled);
            more.pulls += counts.pulls - last.pulls;
            more.pulling += counts.pulling.saturating_sub(last.pulling);
            *last = counts;
        }
        let took = now.since(self.at).as_secs_f64().max(f64::MIN_POSITIVE);
        let busy = more.busy.as_secs_f64();
        self.timeline.push(Moment {
            at_s: now.since(self.begun).as_secs_f64(),
            tokens_per_s: more.tokens as f64 * self.quantum / took,
            busy: busy / took / self.last.len().max(1) as f64,
            cache_filled: more.filled.as_secs_f64() / busy.max(f64::MIN_POSITIVE),
            version: self.version,
        });
        self.at = now;
        self.sum.tokens += more.tokens;
        self.sum.busy += more.busy;
        self.sum.filled += more.filled;
        self.sum.pulls += more.pulls;
        self.sum.pulling += more.pulling;
    }

    /// Returns true when the first rollouts generate in a life that began after this moment.
    fn generates_again(&self, first: usize, after: Timestamp) -> bool {
        let mut all = self.last.iter().take(first);
        all.all(|(_, since)| since.is_some_and(|since| since > after))
    }
}

/// The counts of each rollout; `None` for those that are lost.
async fn counts(run: &Run) -> Vec<Option<RolloutCounts>> {
    let all = run.rollouts.iter().map(async |rollout| {
        let asked = rollout.ask(CountTokens).timeout(PATIENCE);
        asked.await.ok()
    });
    join_all(all).await
}

/// Effects of the loss of a machine at a moment, whose rollouts were back after a while.
fn lost_machine(timeline: &[Moment], at: Duration, took: Duration, reordered: u64) -> Lost {
    let (at_s, recovered_s) = (at.as_secs_f64(), took.as_secs_f64());
    let span = |from: f64, to: f64| {
        let within = timeline
            .iter()
            .filter(move |it| it.at_s > from && it.at_s <= to);
        within.map(|it| (it.tokens_per_s, it.version))
    };
    let rate = |from: f64, to: f64| {
        let (sum, count) =
            span(from, to).fold((0.0, 0), |(sum, count), (rate, _)| (sum + rate, count + 1));
        sum / f64::from(count.max(1))
    };
    let versions: Vec<u64> = span(at_s, at_s + recovered_s).map(|it| it.1).collect();
    let steps = match (versions.first(), versions.last()) {
        (Some(first), Some(last)) => last - first,
        _ => 0,
    };
    Lost {
        at_s,
        recovered_s,
        before: rate(at_s - recovered_s, at_s),
        during: rate(at_s, at_s + recovered_s),
        after: rate(at_s + recovered_s, at_s + 2.0 * recovered_s),
        steps,
        reordered,
    }
}

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Without a step for so long, a run makes no more: one on few cards takes some minutes for one.
const SILENCE_MAX: Duration = Duration::from_hours(12);

/// Time that a rollout may take to answer: it may be computing long replies anew that others began.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time that the packer may take to answer: it waits for rollouts that are in the middle of a step,
/// in each of the looks that are queued.
const LOOKS: Duration = Duration::from_secs(600);

const NOT_BACK: &str = "the rollouts of the lost machine were not back at the end: expected more \
                        iterations, or less replaced_seconds";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_is_counted_in_whole_steps_where_a_step_has_several_batches() {
        let mut whole = Staleness::default();
        whole.add(&[3, 0, 2], 9, 1);
        assert_eq!((whole.0.clone(), whole.most()), (vec![3, 0, 2], 2));
        assert!((whole.mean() - 0.8).abs() < 1e-12);
        let mut parts = Staleness::default();
        // The last of four batches of the third step (from 0), with weights of that step (3 batches
        // ago) and of the one before (7 ago); and the first of the fourth with weights of the third.
        parts.add(&[0, 0, 0, 5, 0, 0, 0, 1], 11, 4);
        parts.add(&[0, 0, 0, 0, 2], 12, 4);
        assert_eq!(parts.0, [5, 3]);
    }
}

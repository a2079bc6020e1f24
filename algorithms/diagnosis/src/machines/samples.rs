//! Metrics of machines, sampled at one interval.

use std::time::Duration;

use thiserror::Error;

use super::Differs;
use crate::Observation;

/// Metrics of machines over some minutes: of each metric, moment and machine a number.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSamples {
    metrics: Vec<String>,
    machines: usize,
    moments: usize,
    every: Duration,
    /// By metric.
    margins: Vec<Margin>,
    /// Of shape `[metrics, moments, machines]`.
    values: Vec<f32>,
}

/// The difference from the median of all machines that matters in a metric: no fault is where it is less, however alike
/// the machines are. By default none is too small.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Margin {
    /// In the unit of the metric.
    pub absolute: f32,
    /// As a part of the median.
    pub relative: f32,
}

impl Margin {
    /// The difference that matters beside a median.
    pub(super) const fn beside(self, median: f32) -> f32 {
        self.absolute.max(self.relative * median.abs())
    }
}

/// Samples that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SamplesError {
    /// The numbers are not as many as the shape says.
    #[error(
        "{metrics} metrics of {machines} machines at {moments} moments are {expected} numbers, and {found} were given"
    )]
    Shape {
        /// Metrics.
        metrics: usize,
        /// Machines.
        machines: usize,
        /// Moments.
        moments: usize,
        /// The product of these.
        expected: usize,
        /// The numbers given.
        found: usize,
    },
    /// Moments have no distance.
    #[error("samples that are taken every 0 s: give an interval")]
    NoInterval,
}

impl MachineSamples {
    /// Takes numbers in the order `[metrics][moments][machines]`, of which one that was not measured is `NaN`: it
    /// counts as the last that was.
    ///
    /// # Errors
    /// [`SamplesError::Shape`] and [`SamplesError::NoInterval`].
    pub fn new(
        metrics: Vec<String>,
        machines: usize,
        every: Duration,
        mut values: Vec<f32>,
    ) -> Result<Self, SamplesError> {
        if every.is_zero() {
            return Err(SamplesError::NoInterval);
        }
        let row = metrics.len() * machines;
        let moments = values.len().checked_div(row).unwrap_or(0);
        let expected = row * moments;
        if expected != values.len() {
            return Err(SamplesError::Shape {
                metrics: metrics.len(),
                machines,
                moments,
                expected,
                found: values.len(),
            });
        }
        for of_metric in values.chunks_exact_mut((moments * machines).max(1)) {
            fill(of_metric, machines);
        }
        Ok(Self {
            margins: vec![Margin::default(); metrics.len()],
            metrics,
            machines,
            moments,
            every,
            values,
        })
    }

    /// The same of metrics in which smaller differences than these do not matter, in their order; those behind the last
    /// keep theirs.
    #[must_use]
    pub fn with_margins(mut self, margins: &[Margin]) -> Self {
        for (known, margin) in self.margins.iter_mut().zip(margins) {
            *known = *margin;
        }
        self
    }

    /// The difference that matters in a metric.
    pub(super) fn margin(&self, metric: usize) -> Margin {
        self.margins[metric]
    }

    /// The names of the metrics.
    #[must_use]
    pub fn metrics(&self) -> &[String] {
        &self.metrics
    }

    /// Machines.
    #[must_use]
    pub const fn machines(&self) -> usize {
        self.machines
    }

    /// Moments.
    #[must_use]
    pub const fn moments(&self) -> usize {
        self.moments
    }

    /// The time from one moment to the next.
    #[must_use]
    pub const fn every(&self) -> Duration {
        self.every
    }

    /// The numbers of a metric, of shape `[moments, machines]`.
    pub(super) fn of(&self, metric: usize) -> &[f32] {
        let len = self.moments * self.machines;
        &self.values[metric * len..][..len]
    }
}

impl Observation for MachineSamples {
    /// The place of a machine.
    type Subject = usize;
    /// The time since the first moment.
    type Moment = Duration;
    type Cause = Differs;
}

/// Replaces what was not measured by the last that was, or the first, of the same machine; 0 where nothing was.
fn fill(values: &mut [f32], machines: usize) {
    for machine in 0..machines {
        let column = || values.iter().skip(machine).step_by(machines);
        if column().all(|it| !it.is_nan()) {
            continue;
        }
        let mut last = column().find(|it| !it.is_nan()).map_or(0.0, |it| *it);
        for value in values.iter_mut().skip(machine).step_by(machines) {
            match value.is_nan() {
                true => *value = last,
                false => last = *value,
            }
        }
    }
}

//! Machines of one job that differ from the others, by their metrics.
//!
//! Machines that train one model together do nearly the same thing in each second, so the odd one out is faulty, even
//! where no threshold says so (Minder, arXiv 2411.01791). [`OddMachine`] compares machines by medians over them, one
//! metric after the other, and names one that differs for minutes. [`LaunchDrift`] finds that all of them wait longer and
//! longer for the last one.

mod drift;
mod odd;
mod samples;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

pub use drift::{Drifts, LaunchDrift, StepSeconds};
pub use odd::{Differs, OddMachine, PRIORITY};
pub use samples::{MachineSamples, Margin, SamplesError};

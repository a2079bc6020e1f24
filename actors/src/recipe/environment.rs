//! `[environment]`: what replies can call.

use std::time::Duration;

use odeon_algorithms::environment::{EnvironmentConfig, Latency, Tool};
use serde::{Deserialize, Serialize};

use crate::rl::run::Acting;

/// `[environment]`: for replies of several turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentSection {
    /// The tool.
    pub tool: Tool,
    /// Calls that a reply may make.
    #[serde(default = "default_turns")]
    pub turns_max: usize,
    /// The longest answer, in tokens.
    #[serde(default = "default_observation")]
    pub observation_max: usize,
    /// The longest that a call may take, in seconds.
    #[serde(default = "default_call")]
    pub call_seconds: f64,
    /// Time that is added to each call, in milliseconds: the median.
    #[serde(default)]
    pub latency_ms: f64,
    /// The standard deviation of its logarithm.
    #[serde(default)]
    pub latency_sigma: f64,
    /// The most.
    #[serde(default = "default_latency_max")]
    pub latency_max_ms: f64,
}

impl EnvironmentSection {
    /// The same, as those need it who generate.
    #[must_use]
    pub fn config(&self) -> EnvironmentConfig {
        EnvironmentConfig {
            tool: self.tool,
            turns_max: self.turns_max,
            observation_max: self.observation_max,
            call_max: Duration::from_secs_f64(self.call_seconds),
        }
    }

    /// The same for a run with replies of up to so many tokens.
    pub(super) fn acting(&self, response_max: usize) -> Acting {
        Acting {
            environment: self.config(),
            latency: Latency {
                median_ms: self.latency_ms,
                sigma: self.latency_sigma,
                max_ms: self.latency_max_ms,
            },
            response_max,
        }
    }
}

const fn default_turns() -> usize {
    8
}
const fn default_observation() -> usize {
    64
}
const fn default_call() -> f64 {
    10.0
}
const fn default_latency_max() -> f64 {
    60_000.0
}

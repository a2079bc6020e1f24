//! Stages of a start that ranks and programs pass, as they record them for people who look on.
//!
//! | name | labels | value |
//! | --- | --- | --- |
//! | `start.stage_s` | `stage`: `process`, `checkpoint` or `first_step`; `rank` of a rank | seconds from the end of the stage before it |

use std::fs;
use std::time::Duration;

use odeon::{Clock, Timestamp, telemetry};

/// The name under which a stage is recorded.
const STAGE: &str = "start.stage_s";

/// A program is ready, after so long.
pub(crate) fn program_ready(took: Duration) {
    let seconds = telemetry::gauge(STAGE, took.as_secs_f64());
    seconds.with("stage", "process").record();
}

/// The start of a rank, up to its first step.
#[derive(Debug)]
pub(crate) struct RankStart {
    rank: u32,
    passed: Passed,
}

/// The last stage that a rank has passed, and when.
#[derive(Clone, Copy, Debug)]
enum Passed {
    Process(Timestamp),
    Checkpoint(Timestamp),
    FirstStep,
}

impl RankStart {
    /// A rank whose actor has just begun. In a later life its process may be older than that, and says nothing.
    pub(crate) fn begun(rank: u32, life: u32) -> Self {
        let start = Self {
            rank,
            passed: Passed::Process(Clock::now()),
        };
        if life == 1
            && let Some(age) = process_age()
        {
            start.tell("process", age);
        }
        start
    }

    /// It has loaded a checkpoint, or there was none.
    pub(crate) fn restored(&mut self) {
        if let Passed::Process(since) = self.passed {
            let now = Clock::now();
            self.tell("checkpoint", now.since(since));
            self.passed = Passed::Checkpoint(now);
        }
    }

    /// It has done a step.
    pub(crate) fn stepped(&mut self) {
        if let Passed::Process(since) | Passed::Checkpoint(since) = self.passed {
            self.tell("first_step", Clock::now().since(since));
            self.passed = Passed::FirstStep;
        }
    }

    fn tell(&self, stage: &'static str, took: Duration) {
        let seconds = telemetry::gauge(STAGE, took.as_secs_f64()).with("rank", self.rank);
        seconds.with("stage", stage).record();
    }
}

/// The time for which this process has run, to a hundredth of a second.
fn process_age() -> Option<Duration> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    age_of(&fs::read_to_string("/proc/self/stat").ok()?, &uptime)
}

/// The age of a process by its `stat` and the machine's `uptime`, as proc(5) has them: its start in ticks after that of
/// the machine is the 22nd field, and the name before it may have blanks.
fn age_of(stat: &str, uptime: &str) -> Option<Duration> {
    let behind_name = stat.rsplit_once(')')?.1;
    let ticks: f64 = behind_name.split_whitespace().nth(19)?.parse().ok()?;
    let up: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(up - ticks / TICKS_PER_S).ok()
}

/// Ticks of a second in what the kernel tells programs, on every architecture that Odeon runs on.
const TICKS_PER_S: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_process_is_from_its_start_to_now() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 1500 1 1";
        let age = age_of(stat, "17.25 9.00\n");
        assert_eq!(age, Some(Duration::from_millis(2250)));
        assert_eq!(age_of(stat, "1.0 1.0"), None);
        assert_eq!(age_of("", ""), None);
        assert!(process_age().is_some());
    }
}

//! The start-up of a try: how long each stage took on each node, and over all of them. Pure.
//!
//! Ranks begin together, so a stage of a job is over when its slowest node is through (Bootseer,
//! arXiv 2507.12619): the time of a job is the sum over stages of the maximum over nodes. How far that maximum is
//! from the median says what is lost to stragglers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A stage of a start, in the order in which a node passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStage {
    /// Until it was given its nodes.
    Queued,
    /// Until the node of its driver began with it.
    Placed,
    /// Until its files were there, or mounted.
    Files,
    /// Until its environment was there.
    Environment,
    /// Until its process ran, or its program was ready.
    Process,
    /// Until a checkpoint was loaded, or it was known that there is none.
    Checkpoint,
    /// Until the first step was done.
    FirstStep,
}

impl StartStage {
    /// All of them, in their order.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Placed,
        Self::Files,
        Self::Environment,
        Self::Process,
        Self::Checkpoint,
        Self::FirstStep,
    ];

    /// Its name in the API and in what programs record.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Placed => "placed",
            Self::Files => "files",
            Self::Environment => "environment",
            Self::Process => "process",
            Self::Checkpoint => "checkpoint",
            Self::FirstStep => "first_step",
        }
    }

    /// The stage of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

impl fmt::Display for StartStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstStep => "first step",
            other => other.name(),
        })
    }
}

/// Milliseconds of stages on one node, by that node's clock.
pub type StageTimes = BTreeMap<StartStage, u64>;

/// The start-up of a try.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Startup {
    /// Which try.
    pub attempt: u32,
    /// By node, the milliseconds of each stage that it has passed.
    pub nodes: BTreeMap<String, StageTimes>,
}

/// A stage over all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSummary {
    /// Which.
    pub stage: StartStage,
    /// Milliseconds on the slowest node: those of the job.
    pub slowest_ms: u64,
    /// That node; the first by name of several.
    pub slowest: String,
    /// The median over nodes, in milliseconds; of an even number the lower one of the two in the middle.
    pub median_ms: u64,
    /// Number of nodes that have passed it.
    pub nodes: usize,
}

impl StageSummary {
    /// The slowest node relative to the median: near 1 where nobody is late. `None` where the median is under a
    /// millisecond.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.median_ms > 0).then(|| self.slowest_ms as f64 / self.median_ms as f64)
    }
}

impl Startup {
    /// One of which nothing is known yet.
    #[must_use]
    pub const fn new(attempt: u32) -> Self {
        Self {
            attempt,
            nodes: BTreeMap::new(),
        }
    }

    /// Returns true while nothing is known of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Takes in what a node has passed. Of a stage that is told again, as several ranks of a node do, the longest
    /// counts.
    pub fn tell(&mut self, node: &str, times: impl IntoIterator<Item = (StartStage, u64)>) {
        let known = self.nodes.entry(node.to_owned()).or_default();
        for (stage, ms) in times {
            let longest = known.entry(stage).or_default();
            *longest = ms.max(*longest);
        }
    }

    /// The stages that some node has passed, in their order.
    #[must_use]
    pub fn stages(&self) -> Vec<StageSummary> {
        let summary = |stage: StartStage| {
            let times = self.nodes.iter();
            let times = times.filter_map(|(node, times)| Some((*times.get(&stage)?, node)));
            let mut times: Vec<_> = times.collect();
            times.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(a.1)));
            let (slowest_ms, slowest) = *times.last()?;
            Some(StageSummary {
                stage,
                slowest_ms,
                slowest: slowest.clone(),
                median_ms: times[(times.len() - 1) / 2].0,
                nodes: times.len(),
            })
        };
        StartStage::ALL.into_iter().filter_map(summary).collect()
    }

    /// Milliseconds from submission to the last stage that is known: stages are as long as on their slowest node.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        self.stages().iter().map(|it| it.slowest_ms).sum()
    }
}

impl fmt::Display for Startup {
    /// As `it took 4.1 s: queued 0.2 s; files 3.0 s (slowest b, median 1.5 s, 2.0 x)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
        write!(f, "it took {}", seconds(self.total_ms()))?;
        for (n, it) in self.stages().iter().enumerate() {
            f.write_str(if n == 0 { ": " } else { "; " })?;
            write!(f, "{} {}", it.stage, seconds(it.slowest_ms))?;
            if it.nodes > 1 {
                write!(
                    f,
                    " (slowest {}, median {}",
                    it.slowest,
                    seconds(it.median_ms)
                )?;
                if let Some(ratio) = it.ratio() {
                    write!(f, ", {ratio:.1} x")?;
                }
                f.write_str(")")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 189.
    #[test]
    fn a_stage_of_a_job_is_as_long_as_on_its_slowest_node() {
        let mut startup = Startup::new(2);
        assert!(startup.is_empty() && startup.stages().is_empty());
        startup.tell("a", [(StartStage::Queued, 500), (StartStage::Files, 1000)]);
        startup.tell("b", [(StartStage::Files, 1500)]);
        startup.tell("c", [(StartStage::Files, 3000), (StartStage::Process, 0)]);
        // Another rank of the same node.
        startup.tell("c", [(StartStage::Files, 20)]);
        let [queued, files, process] = &startup.stages()[..] else {
            panic!("{startup:?}");
        };
        assert_eq!((queued.slowest_ms, queued.nodes), (500, 1));
        assert_eq!((files.slowest_ms, files.median_ms), (3000, 1500));
        assert_eq!((files.slowest.as_str(), files.ratio()), ("c", Some(2.0)));
        assert_eq!(process.ratio(), None);
        assert_eq!(startup.total_ms(), 3500);
        assert_eq!(
            startup.to_string(),
            "it took 3.5 s: queued 0.5 s; files 3.0 s (slowest c, median 1.5 s, 2.0 x); process 0.0 s"
        );
        let text = serde_json::to_string(&startup).unwrap();
        assert_eq!(serde_json::from_str::<Startup>(&text).unwrap(), startup);
        assert!(StartStage::ALL.is_sorted());
        assert!(
            StartStage::ALL
                .iter()
                .all(|it| StartStage::named(it.name()) == Some(*it))
        );
    }
}

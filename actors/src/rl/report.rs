//! Reports of a run: the trainer tells them, and an actor in the driver passes them on.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry;
use odeon::{Clock, Failure, Timestamp, actor, message};
use odeon_diagnosis::Detector;
use odeon_diagnosis::run::{RlStep, RunEvent, Watch};
use tokio::sync::mpsc;

use crate::engine::{EvalStats, Learnt, Progress, StepStats};
use crate::going_on::GoingOn;
use crate::trajectory::{Batch, Trajectory, Version};

/// News of a run.
#[message(name = "run.Report")]
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Supervised steps were done.
    Warmup {
        /// Number of them in all.
        step: u64,
        /// The last of them.
        stats: StepStats,
    },
    /// An optimiser step was done.
    Step(StepReport),
    /// Held-out problems were answered.
    Evaluated {
        /// By these weights.
        version: Version,
        /// The result.
        stats: EvalStats,
    },
    /// A reward model has learnt, or has been read.
    RewardModel(Learnt),
    /// A detector has found something. Nothing is done about it.
    #[serde(alias = "Sign")]
    Finding {
        /// The step that shows it.
        version: Version,
        /// The rule that found it: see [`odeon_diagnosis::run`].
        #[serde(alias = "sign")]
        rule: String,
        /// The finding, in words.
        why: String,
        /// The numbers that it stands on, by name.
        #[serde(default)]
        evidence: Vec<(String, f64)>,
    },
    /// A checkpoint is safe.
    Saved(Progress),
    /// The trainer has come back from a checkpoint.
    Resumed {
        /// Which life of it.
        incarnation: u32,
        /// Where it goes on.
        progress: Progress,
    },
    /// Ranks of the policy that were lost wait for room. Told after a few seconds, when the reason changes, and each
    /// minute.
    Waiting {
        /// Which life of the trainer makes them.
        incarnation: u32,
        /// The reason why no node has room.
        why: String,
    },
    /// All steps are done.
    Finished(Progress),
    /// The run was stopped in order, and can go on from here.
    Halted(Progress),
}

/// One optimiser step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct StepReport {
    /// The version that it made.
    pub version: Version,
    /// CRC-32 of the ids and versions of the batch's trajectories: a step that is repeated after a
    /// loss has the same.
    pub batch_checksum: u32,
    /// Groups left out for it, since their rewards were all equal.
    #[serde(default)]
    pub uniform_groups: u64,
    /// Mean reward of the batch.
    pub reward: f64,
    /// Part of the batch that was right.
    pub accuracy: f64,
    /// Mean staleness of its trajectories, in steps.
    pub staleness_mean: f64,
    /// The largest.
    pub staleness_max: u64,
    /// Number of its trajectories of each staleness, from 0 steps on.
    #[serde(default)]
    pub staleness: Vec<u64>,
    /// Mean response length, in tokens.
    pub response_mean: f64,
    /// Response tokens of the batch.
    pub response_tokens: u64,
    /// Mean number of answers of a tool in a response.
    #[serde(default)]
    pub turns_mean: f64,
    /// Mean time that a response waited for its tool, in seconds.
    #[serde(default)]
    pub tool_wait_mean: f64,
    /// Results of the optimiser step.
    pub stats: StepStats,
    /// Mean cost of the batch, where it counts.
    #[serde(default)]
    pub cost: f64,
    /// The critic's loss, when there is one.
    pub critic_loss: Option<f64>,
    /// Seconds from the batch to the published weights.
    pub seconds: f64,
    /// Those of them in which the weights were handed over.
    #[serde(default)]
    pub publish_seconds: f64,
}

/// A number of a run at a step, for people who look on.
pub(super) fn told(name: &'static str, step: u64, value: f64, unit: &'static str) {
    let number = telemetry::gauge(name, value);
    number.with("step", step).with("unit", unit).record();
}

/// The rate that the device of a trainer reaches: the most that was seen of it. A single look may
/// fall into a moment in which others hold the device, and show too little.
#[derive(Debug, Default)]
pub(super) struct Reachable {
    /// Floating point operations per second; `None` where nothing is computed.
    most: Option<f64>,
    looks: u32,
}

impl Reachable {
    /// Steps after which somebody looks once more.
    const LOOKS: u32 = 16;

    /// Looks once more, unless it was often enough.
    pub(super) fn look(&mut self, trial: impl FnOnce() -> Option<f64>) {
        if self.looks < Self::LOOKS {
            self.looks += 1;
            let seen = trial();
            self.most = seen.map(|seen| self.most.map_or(seen, |most| most.max(seen)));
        }
    }

    /// The part of it that so many a second are. More than it is are what it is.
    fn part(&mut self, flops: f64) -> Option<f64> {
        let most = self.most.as_mut()?;
        *most = most.max(flops);
        Some(flops / *most)
    }
}

/// Where the time of a step goes, for people who look on.
#[derive(Debug)]
pub(super) struct Stages {
    begun: Timestamp,
    at: Timestamp,
    seconds: Vec<(&'static str, f64)>,
}

impl Stages {
    /// A step that begins now, of a trainer that has waited for its batch since `free`.
    pub(super) fn new(free: Option<Timestamp>, now: Timestamp) -> Self {
        let mut stages = Self {
            begun: free.unwrap_or(now),
            at: free.unwrap_or(now),
            seconds: vec![],
        };
        stages.end_at("wait", now);
        stages
    }

    /// A stage is over, and the next begins. Returns the seconds that it took.
    pub(super) fn end(&mut self, stage: &'static str) -> f64 {
        self.end_at(stage, Clock::now())
    }

    fn end_at(&mut self, stage: &'static str, now: Timestamp) -> f64 {
        let seconds = now.since(self.at).as_secs_f64();
        self.seconds.push((stage, seconds));
        self.at = now;
        seconds
    }

    /// The step is over, for which the model had to do so many floating point operations.
    pub(super) fn tell(self, step: u64, batch: &Batch, flops: f64, reachable: &mut Reachable) {
        for (stage, seconds) in self.seconds {
            let number = telemetry::gauge("train.stage_s", seconds).with("rank", 0);
            number.with("stage", stage).with("step", step).record();
        }
        let took = self.at.since(self.begun).as_secs_f64();
        if took > 0.0 {
            let tokens = batch.trajectories.iter().map(|it| it.response.len());
            let rate = tokens.sum::<usize>() as f64 / took;
            told("rl.tokens_per_s", step, rate, "tokens/s");
            if let Some(part) = reachable.part(flops / took) {
                told("train.mfu", step, part, "");
            }
        }
    }
}

impl StepReport {
    /// Events for the detectors.
    fn events(&self) -> [RunEvent; 2] {
        // In a step of the critic alone the policy does nothing.
        let learns = self.stats.tokens > 0;
        let step = RlStep {
            reward: self.reward,
            right: self.accuracy,
            length: self.response_mean,
            entropy: learns.then_some(self.stats.entropy),
        };
        // What trains is one, whatever it is spread over.
        let losses = vec![learns.then_some(self.stats.loss)];
        [RunEvent::Step(step), RunEvent::Losses(losses)]
    }

    /// Tells those who look on.
    pub(super) fn tell(&self, batch: &Batch, steps: u64) {
        let told = |name, value, unit| told(name, self.version, value, unit);
        told("rl.reward", self.reward, "");
        told("rl.uniform_groups", self.uniform_groups as f64, "groups");
        told("rl.accuracy", self.accuracy, "");
        // In a step of the critic alone the policy does nothing.
        if self.stats.tokens > 0 {
            told("rl.loss", self.stats.loss, "");
            told("rl.grad_norm", self.stats.grad_norm, "");
            told("rl.entropy", self.stats.entropy, "nats");
            told("rl.kl", self.stats.approximate_kl, "nats");
            told("rl.importance", self.stats.importance_mean, "");
            if let Some(gap) = self.stats.sampling_gap {
                told("rl.sampling_gap", gap, "nats");
            }
        }
        if let Some(loss) = self.critic_loss {
            told("rl.critic_loss", loss, "");
        }
        told("rl.response", self.response_mean, "tokens");
        if self.turns_mean > 0.0 {
            told("rl.turns", self.turns_mean, "turns");
            told("rl.tool_wait", self.tool_wait_mean, "s");
        }
        told("rl.step", self.seconds, "s");
        told("rl.progress.done", self.version as f64, "steps");
        told("rl.progress.of", steps as f64, "steps");
        for trajectory in &batch.trajectories {
            let stale = (self.version - 1).saturating_sub(trajectory.version);
            told("rl.staleness", stale as f64, "versions");
        }
    }

    pub(super) fn new(
        version: Version,
        batch: &Batch,
        stats: StepStats,
        critic_loss: Option<f64>,
        begun: Timestamp,
    ) -> Self {
        let count = batch.trajectories.len().max(1) as f64;
        let staleness = |made: Version| (version - 1).saturating_sub(made);
        let all = &batch.trajectories;
        let mut checksum = crc32fast::Hasher::new();
        for Trajectory { id, version, .. } in all {
            for number in [id.group, u64::from(id.sample), *version] {
                checksum.update(&number.to_le_bytes());
            }
        }
        let response_tokens = all.iter().map(|t| t.response.len() as u64).sum();
        let oldest = all.iter().map(|t| staleness(t.version)).max();
        let mut by_staleness = vec![0; oldest.map_or(0, |most| most as usize + 1)];
        for trajectory in all {
            by_staleness[staleness(trajectory.version) as usize] += 1;
        }
        Self {
            version,
            batch_checksum: checksum.finalize(),
            uniform_groups: batch.uniform,
            reward: all.iter().map(|t| f64::from(t.reward)).sum::<f64>() / count,
            accuracy: all.iter().filter(|t| t.correct).count() as f64 / count,
            staleness_mean: all.iter().map(|t| staleness(t.version)).sum::<u64>() as f64 / count,
            staleness_max: oldest.unwrap_or(0),
            staleness: by_staleness,
            response_mean: response_tokens as f64 / count,
            response_tokens,
            turns_mean: all.iter().map(|t| t.observed.turns() as f64).sum::<f64>() / count,
            tool_wait_mean: all.iter().map(|t| t.waited.as_secs_f64()).sum::<f64>() / count,
            stats,
            cost: all.iter().map(|t| f64::from(t.cost)).sum::<f64>() / count,
            critic_loss,
            seconds: Clock::now().since(begun).as_secs_f64(),
            publish_seconds: 0.0,
        }
    }
}

/// A watch over a run of so many steps that has seen what the run told before.
#[must_use]
pub fn watch(steps: u64, before: &[Report]) -> Watch {
    let mut watch = Watch::new(steps);
    for report in before {
        // These were told when they began.
        let _ = findings(&mut watch, report);
    }
    watch
}

/// The step of a report that is judged.
pub(crate) const fn version_of(report: &Report) -> Option<u64> {
    match report {
        Report::Step(step) => Some(step.version),
        Report::Evaluated { version, .. } => Some(*version),
        _ => None,
    }
}

/// Findings that begin with a report, and are to be told after it.
pub(crate) fn findings(watch: &mut Watch, report: &Report) -> Vec<Report> {
    let (version, events) = match report {
        Report::Step(step) => (step.version, step.events().to_vec()),
        Report::Evaluated { version, stats } => {
            let evaluated = RunEvent::Evaluated {
                correct: stats.correct,
                problems: stats.problems,
            };
            (*version, vec![evaluated])
        }
        _ => return vec![],
    };
    let found = events.iter().flat_map(|it| watch.observe(it, version));
    let told = found.map(|found| Report::Finding {
        version,
        rule: found.cause.rule.to_owned(),
        why: found.cause.sentence,
        evidence: found.cause.evidence,
    });
    told.collect()
}

/// The listener, and the watch that adds findings to the reports.
#[derive(Debug)]
struct Desk {
    listener: mpsc::UnboundedSender<Report>,
    watch: Watch,
    going_on: GoingOn,
    /// Findings that were told of.
    findings: u64,
}

/// Listeners in this process, by the number that a [`Monitor`] is made from. A channel cannot be an
/// actor's argument, since arguments travel.
static DESKS: LazyLock<Mutex<HashMap<u64, Desk>>> = LazyLock::new(Mutex::default);

/// Opens a desk that a [`Monitor`] with this number reports to. The number of reports of a run is
/// bounded by its steps.
#[must_use]
pub fn open_desk(number: u64, watch: Watch) -> mpsc::UnboundedReceiver<Report> {
    let (listener, receiver) = mpsc::unbounded_channel();
    let desk = Desk {
        listener,
        watch,
        going_on: GoingOn::default(),
        findings: 0,
    };
    DESKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(number, desk);
    receiver
}

/// Passes reports on to the driver's desk, and what detectors find in them. Lives in the driver.
#[derive(Debug)]
pub struct Monitor {
    desk: u64,
}

#[actor(name = "run.Monitor")]
impl Monitor {
    async fn start(desk: u64) -> Result<Self, Failure> {
        Ok(Self { desk })
    }

    #[handler(message = Report)]
    fn report(&mut self, report: Report) {
        let mut desks = DESKS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(desk) = desks.get_mut(&self.desk) {
            let found = findings(&mut desk.watch, &report);
            if let Some(version) = version_of(&report) {
                desk.going_on.record(&desk.watch, version);
            }
            if let Some(Report::Finding { version, .. }) = found.last() {
                desk.findings += found.len() as u64;
                told("rl.findings", *version, desk.findings as f64, "");
            }
            for report in std::iter::once(report).chain(found) {
                // A driver that listens no more has ended the run.
                let _ = desk.listener.send(report);
            }
        }
    }
}

/// The longest time for asks between the actors of a run: a training step on a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value;

    use super::*;

    #[test]
    fn what_a_device_reaches_is_the_most_that_was_seen_of_it() {
        let mut reachable = Reachable::default();
        assert_eq!(reachable.part(1.0), None, "nobody has looked");
        let mut looks = [2.0, 8.0, 4.0].into_iter();
        for _ in 0..3 {
            reachable.look(|| looks.next());
        }
        assert_eq!(reachable.part(4.0), Some(0.5));
        assert_eq!(
            reachable.part(16.0),
            Some(1.0),
            "no step does more than can be done"
        );
        assert_eq!(reachable.part(4.0), Some(0.25));
        let mut asked = 0;
        for _ in 0..100 {
            reachable.look(|| {
                asked += 1;
                Some(1.0)
            });
        }
        assert_eq!(asked, Reachable::LOOKS - 3);
    }

    /// One report of each kind; a new kind must be told here, and so in the document.
    fn all() -> Vec<Report> {
        let progress = Progress::default();
        let batch = Batch {
            step: 1,
            trajectories: vec![],
            group_size: 1,
            ..Batch::default()
        };
        let stats = StepStats::default();
        let step = StepReport::new(1, &batch, stats.clone(), Some(0.0), Clock::now());
        let mut next = Some(Report::Warmup { step: 1, stats });
        let mut all = vec![];
        while let Some(report) = next {
            next = match &report {
                Report::Warmup { .. } => Some(Report::Step(step.clone())),
                Report::Step(_) => Some(Report::Evaluated {
                    version: 0,
                    stats: EvalStats::default(),
                }),
                Report::Evaluated { .. } => Some(Report::RewardModel(Learnt::default())),
                Report::RewardModel(_) => Some(Report::Finding {
                    version: 1,
                    rule: String::new(),
                    why: String::new(),
                    evidence: vec![],
                }),
                Report::Finding { .. } => Some(Report::Saved(progress)),
                Report::Saved(_) => Some(Report::Resumed {
                    incarnation: 1,
                    progress,
                }),
                Report::Resumed { .. } => Some(Report::Waiting {
                    incarnation: 2,
                    why: "no room".to_owned(),
                }),
                Report::Waiting { .. } => Some(Report::Finished(progress)),
                Report::Finished(_) => Some(Report::Halted(progress)),
                Report::Halted(_) => None,
            };
            all.push(report);
        }
        all
    }

    /// SEMANTICS 92.
    #[test]
    fn a_run_that_goes_on_knows_the_findings_that_it_told_before() {
        const STEPS: u64 = 400;
        let Some(Report::Step(first)) = all().into_iter().find(|it| matches!(it, Report::Step(_)))
        else {
            panic!("there are steps");
        };
        // Replies become short in the middle, and stay so.
        let step = |version: u64| {
            Report::Step(StepReport {
                version,
                reward: 0.4,
                accuracy: 0.4,
                response_mean: if version < STEPS / 2 { 100.0 } else { 20.0 },
                ..first.clone()
            })
        };
        let mut plain = Watch::new(STEPS);
        let mut told = vec![];
        for version in 1..=STEPS {
            let report = step(version);
            let found = findings(&mut plain, &report);
            told.push(report);
            told.extend(found);
        }
        let found = told
            .iter()
            .position(|it| matches!(it, Report::Finding { .. }));
        let found = found.expect("it is told once");
        // A run that is stopped at any later step, or just then, tells nothing more.
        for stop in [found + 1, found + 20, told.len() - 20] {
            let mut goes_on = watch(STEPS, &told[..stop]);
            for report in &told[stop..] {
                let again = findings(&mut goes_on, report);
                assert!(again.is_empty(), "{again:?}");
            }
            assert_eq!(format!("{goes_on:?}"), format!("{plain:?}"));
        }
    }

    #[test]
    fn reports_that_call_a_finding_a_sign_are_read() {
        let told = r#"{"Sign": {"version": 7, "sign": "hockey_stick", "why": "it fell"}}"#;
        let read: Report = serde_json::from_str(told).unwrap();
        let expected = Report::Finding {
            version: 7,
            rule: "hockey_stick".to_owned(),
            why: "it fell".to_owned(),
            evidence: vec![],
        };
        assert_eq!(read, expected);
    }

    fn fields(value: &Value, before: &str, into: &mut BTreeSet<String>) {
        for (name, value) in value.as_object().expect("a report has fields") {
            let name = format!("{before}{name}");
            if value.is_object() {
                fields(value, &format!("{name}."), into);
            } else {
                into.insert(name);
            }
        }
    }

    #[test]
    fn the_document_tells_every_report_with_its_fields() {
        let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut kind = String::new();
        for line in include_str!("../../../docs/metrics.md").lines() {
            let word = |text: &str| text.split('`').next().unwrap().to_owned();
            if let Some(rest) = line.strip_prefix("## `") {
                kind = word(rest);
            } else if let Some(rest) = line.strip_prefix("| `") {
                let fields = told.entry(kind.clone()).or_default();
                assert!(fields.insert(word(rest)), "{kind}: twice: {line}");
            }
        }
        let mut known = BTreeMap::new();
        for report in all() {
            let value = serde_json::to_value(&report).unwrap();
            let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
            let mut names = BTreeSet::new();
            fields(value, "", &mut names);
            known.insert(kind.clone(), names);
        }
        assert_eq!(told, known);
    }
}

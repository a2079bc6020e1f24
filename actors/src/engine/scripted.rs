//! Engines that follow a script: fixed costs in time, weights that are a counter. They show how the
//! graph behaves (order, staleness, recovery) without a model in the way.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};

use super::{
    CacheUse, EvalStats, Learnt, Progress, Response, RewardEngine, RolloutEngine, RunState,
    ScoreEngine, Signals, StepStats, TrainEngine,
};
use crate::trajectory::{Batch, Order, SampleId, Trajectory, Version};

/// Settings of the scripted engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Script {
    /// Time that a training step takes.
    pub train: Duration,
    /// Time that a token of all active responses together takes.
    pub token: Duration,
    /// The shortest response; a sample's number is added to it.
    pub response: usize,
    /// Responses at once.
    pub slots: usize,
    /// After this version a trainer stands still for good, unless it has been restored.
    pub stuck_after: Option<Version>,
    /// The token at which a response pauses, if there is one.
    pub pauses_at: Option<u32>,
    /// Where a trainer waits for word.
    pub hold: Option<Hold>,
    /// Tokens of the samples of a group, in turn; where nothing is written, each token is the
    /// number of the weights and `response` the length.
    pub replies: Vec<Vec<u32>>,
    /// Where a trainer writes down what it does, an [`Entry`] a line.
    pub journal: Option<PathBuf>,
}

/// Where a trainer waits: before a run is at its end, until a test has done what it wants to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Hold {
    /// In the step after this version and in all that follow.
    pub after: Version,
    /// Until there is such a file.
    pub until: PathBuf,
}

/// A line in the journal of a scripted trainer, all of whose lives write into the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum Entry {
    /// A life goes on after this step.
    From(Version),
    /// It trains on this batch.
    Trains(Batch),
    /// It publishes weights.
    Publishes(Version),
}

impl Script {
    /// The tokens of a sample, where they are written.
    fn reply(&self, id: SampleId) -> Option<&Vec<u32>> {
        let nth = (id.sample as usize).checked_rem(self.replies.len())?;
        self.replies.get(nth)
    }

    /// Each entry is one write, so that a process that is killed leaves no part of one.
    fn note(&self, entry: impl FnOnce() -> Entry) -> Result<(), Failure> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        let mut line = serde_json::to_vec(&entry()).map_err(Failure::error)?;
        line.push(b'\n');
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(journal);
        file.and_then(|mut file| file.write_all(&line))
            .map_err(Failure::error)
    }
}

/// Trains nothing; its weights are the number of steps.
#[derive(Debug)]
pub struct ScriptedTrainer {
    script: Script,
    steps: u64,
    restored: bool,
}

impl ScriptedTrainer {
    /// A trainer before its first step.
    #[must_use]
    pub fn new(script: &Script) -> Self {
        Self {
            script: script.clone(),
            steps: 0,
            restored: false,
        }
    }
}

impl ScriptedTrainer {
    fn is_held(&self) -> bool {
        let hold = self.script.hold.as_ref();
        hold.is_some_and(|hold| self.steps >= hold.after && !hold.until.exists())
    }
}

/// Spends the time that a script says; engines run on threads that may block.
fn spend(time: Duration) {
    let (_keep, wait) = std::sync::mpsc::channel::<()>();
    // Nobody sends: this waits for the time-out, which is the point.
    let _ = wait.recv_timeout(time);
}

impl TrainEngine for ScriptedTrainer {
    fn warm_up(&mut self, _step: u64) -> Result<StepStats, Failure> {
        spend(self.script.train);
        Ok(StepStats::default())
    }

    fn train(&mut self, batch: &Batch, _signals: &Signals) -> Result<StepStats, Failure> {
        self.script.note(|| Entry::Trains(batch.clone()))?;
        spend(self.script.train);
        while !self.restored && self.script.stuck_after == Some(self.steps) {
            spend(Duration::from_secs(1));
        }
        while self.is_held() {
            spend(Duration::from_millis(1));
        }
        self.steps += 1;
        let tokens = batch
            .trajectories
            .iter()
            .map(|t| t.response.len() as u64)
            .sum();
        Ok(StepStats {
            tokens,
            ..StepStats::default()
        })
    }

    fn evaluate(&mut self, problems: usize) -> Result<EvalStats, Failure> {
        let correct = self.steps.min(problems as u64);
        Ok(EvalStats {
            problems: problems as u64,
            correct,
        })
    }

    fn reachable_flops(&self) -> Option<f64> {
        None
    }

    fn weight_bytes(&self) -> usize {
        8
    }

    fn write_weights(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        self.script.note(|| Entry::Publishes(self.steps))?;
        out.copy_from_slice(&self.steps.to_le_bytes());
        Ok(())
    }

    fn save(&mut self, folder: &Path, progress: &Progress, run: &RunState) -> Result<(), Failure> {
        std::fs::create_dir_all(folder).map_err(Failure::error)?;
        let saved = serde_json::to_vec(&(progress, run)).map_err(Failure::error)?;
        let fresh = folder.join("progress.new");
        std::fs::write(&fresh, saved).map_err(Failure::error)?;
        std::fs::rename(fresh, folder.join("progress")).map_err(Failure::error)
    }

    fn restore(&mut self, folder: &Path) -> Result<Option<(Progress, RunState)>, Failure> {
        let Ok(saved) = std::fs::read(folder.join("progress")) else {
            self.script.note(|| Entry::From(0))?;
            return Ok(None);
        };
        let (progress, run): (Progress, RunState) = serde_json::from_slice(&saved)
            .map_err(|error| Failure::error(format!("{}: {error}", folder.display())))?;
        self.steps = progress.version;
        self.restored = true;
        self.script.note(|| Entry::From(self.steps))?;
        Ok(Some((progress, run)))
    }
}

/// Generates the number of its weights, as often as the script says.
#[derive(Debug)]
pub struct ScriptedRollout {
    script: Script,
    weights: u64,
    active: Vec<Reply>,
    /// Those that have paused, and their weights.
    paused: HashMap<SampleId, u64>,
}

#[derive(Debug)]
struct Reply {
    id: SampleId,
    /// Number of tokens that it had when it was admitted.
    begun: usize,
    tokens: Vec<u32>,
    /// In all.
    length: usize,
    weights: u64,
}

impl Reply {
    fn from(&self, from: usize) -> Response {
        let tokens = self.tokens[from.min(self.tokens.len())..].to_vec();
        Response {
            id: self.id,
            log_probs: vec![0.0; tokens.len()],
            tokens,
            paused: false,
        }
    }
}

impl ScriptedRollout {
    /// A rollout without weights.
    #[must_use]
    pub fn new(script: &Script) -> Self {
        Self {
            script: script.clone(),
            weights: 0,
            active: vec![],
            paused: HashMap::new(),
        }
    }

    fn begin(&mut self, order: &Order, weights: u64) {
        self.active.push(Reply {
            id: order.id,
            begun: order.partial.as_ref().map_or(0, |it| it.tokens.len()),
            tokens: vec![],
            length: match self.script.reply(order.id) {
                Some(said) => said.len(),
                None => self.script.response + order.id.sample as usize,
            },
            weights,
        });
    }
}

impl RolloutEngine for ScriptedRollout {
    fn can_load(&self) -> bool {
        let active = self.active.iter().map(|reply| reply.weights);
        let mut all = active.chain(self.paused.values().copied());
        all.all(|weights| weights == self.weights)
    }

    fn load(&mut self, weights: &[u8]) -> Result<(), Failure> {
        let bytes = weights.try_into().map_err(Failure::error)?;
        self.weights = u64::from_le_bytes(bytes);
        Ok(())
    }

    fn free_slots(&self) -> usize {
        self.script.slots - self.active.len()
    }

    fn active(&self) -> usize {
        self.active.len()
    }

    fn admit(&mut self, order: &Order) -> Result<(), Failure> {
        self.begin(order, self.weights);
        Ok(())
    }

    fn resume(&mut self, order: &Order) -> Result<(), Failure> {
        let weights = self.paused.remove(&order.id);
        let never = || Failure::error("a reply goes on that has not paused");
        self.begin(order, weights.ok_or_else(never)?);
        Ok(())
    }

    fn pause(&mut self, id: SampleId) {
        self.paused.insert(id, self.weights);
    }

    fn leave(&mut self, id: SampleId) {
        self.paused.remove(&id);
    }

    fn step(&mut self) -> Result<Vec<Response>, Failure> {
        spend(self.script.token);
        for reply in &mut self.active {
            let at = reply.begun + reply.tokens.len();
            let said = self.script.reply(reply.id).and_then(|said| said.get(at));
            let token = said.copied().unwrap_or(reply.weights as u32);
            reply.tokens.push(token);
        }
        let pauses_at = self.script.pauses_at;
        let pauses =
            |reply: &Reply| pauses_at.is_some() && reply.tokens.last() == pauses_at.as_ref();
        let ends =
            |reply: &mut Reply| pauses(reply) || reply.begun + reply.tokens.len() >= reply.length;
        let ended: Vec<Reply> = self.active.extract_if(.., ends).collect();
        let mut responses = vec![];
        for reply in ended {
            let paused = pauses(&reply);
            if paused {
                self.paused.insert(reply.id, reply.weights);
            }
            responses.push(Response {
                paused,
                ..reply.from(0)
            });
        }
        Ok(responses)
    }

    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure> {
        self.load(weights)?;
        for reply in &mut self.active {
            reply.weights = self.weights;
        }
        for weights in self.paused.values_mut() {
            *weights = self.weights;
        }
        Ok(())
    }

    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response> {
        let all = self.active.iter();
        all.map(|reply| reply.from(from(reply.id))).collect()
    }

    fn withdraw(&mut self) {
        self.active.clear();
        self.paused.clear();
    }

    fn cache(&self) -> CacheUse {
        let used = self.active.iter().map(|it| it.begun + it.tokens.len());
        CacheUse {
            used: used.sum::<usize>() as u64,
            capacity: self.script.slots as u64 * CONTEXT,
        }
    }
}

/// Tokens that a scripted rollout has room for in each slot.
const CONTEXT: u64 = 1024;

/// Scores everything with the number of steps that it has learnt, which is its loss as well.
#[derive(Debug, Default)]
pub struct ScriptedScores {
    learnt: Version,
}

/// The steps after which a critic was saved, newest first.
fn saved(folder: &Path) -> Result<Vec<Version>, Failure> {
    let Ok(text) = std::fs::read_to_string(folder.join("learnt")) else {
        return Ok(vec![]);
    };
    let numbers = text.split_whitespace().map(str::parse);
    numbers.collect::<Result<_, _>>().map_err(Failure::error)
}

fn write_saved(folder: &Path, saved: &[Version]) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(Failure::error)?;
    let words: Vec<String> = saved.iter().map(Version::to_string).collect();
    let fresh = folder.join("learnt.new");
    std::fs::write(&fresh, words.join(" ")).map_err(Failure::error)?;
    std::fs::rename(fresh, folder.join("learnt")).map_err(Failure::error)
}

impl ScoreEngine for ScriptedScores {
    fn score(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        Ok(batch
            .trajectories
            .iter()
            .map(|t| vec![self.learnt as f32; t.sampled()])
            .collect())
    }

    fn learn(&mut self, _batch: &Batch, _returns: &[Vec<f32>]) -> Result<f64, Failure> {
        self.learnt += 1;
        Ok(self.learnt as f64)
    }

    fn save(&mut self, folder: &Path, learnt: Version) -> Result<(), Failure> {
        let before = saved(folder)?.into_iter().take(1);
        let both: Vec<Version> = [learnt].into_iter().chain(before).collect();
        write_saved(folder, &both)
    }

    fn restore(
        &mut self,
        folder: &Path,
        at_most: Option<Version>,
    ) -> Result<Option<Version>, Failure> {
        let mut saved = saved(folder)?;
        if let Some(at_most) = at_most {
            saved.retain(|learnt| *learnt <= at_most);
            write_saved(folder, &saved)?;
        }
        let newest = saved.first().copied();
        self.learnt = newest.unwrap_or(self.learnt);
        Ok(newest)
    }
}

/// Rewards that follow from the tokens of a reply alone.
#[derive(Debug, Default)]
pub struct ScriptedRewards;

impl RewardEngine for ScriptedRewards {
    fn prepare(&mut self) -> Result<Learnt, Failure> {
        Ok(Learnt::default())
    }

    fn rate(&mut self, replies: &[Trajectory]) -> Result<Vec<f32>, Failure> {
        let rate = |reply: &Trajectory| {
            let sum: u64 = reply.response.iter().copied().map(u64::from).sum();
            (sum % 16) as f32 / 16.0
        };
        Ok(replies.iter().map(rate).collect())
    }
}

//! A reward model: the policy's architecture with a value head, which has learnt from pairs of replies
//! to one prompt of which the task's checker calls one right and the other not.
//!
//! ```text
//! scalar     prompt reply <end>                  one number, and the better reply has the larger
//! pairwise   prompt reply <end> other <end>      one number: how much better the first is
//! ```
//!
//! The number is read at the last token. Both learn that the first of a pair has more of it than the
//! second; of the pairwise kind these are the two orders of the replies, so that what one is better by
//! is what the other is worse by, to the bit.

mod pairs;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::path::Path;
use std::time::Duration;

use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};
use odeon_algorithms::objective::{preference, probability};
use odeon_algorithms::task::{Problem, Split};

use super::rollout::Sampler;
use super::{ComputeSpec, model_folder, read_fields};
use crate::engine::{Learnt, RewardEngine, RewardKind, RewardModelSpec};
use crate::rl::referee::{Referee, wait};
use crate::trajectory::{Batch, Observed, SampleId, Trajectory};

pub(crate) use pairs::{PairModel, PairPart, write_whole};

/// A reward model that first learns from pairs of replies, and then rates replies.
pub struct RewardModel {
    spec: ComputeSpec,
    plan: RewardModelSpec,
    model: Box<dyn PairModel>,
    /// Once it has learnt.
    ready: Option<Ready>,
}

impl std::fmt::Debug for RewardModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RewardModel")
            .field("plan", &self.plan)
            .field("ready", &self.ready.is_some())
            .finish_non_exhaustive()
    }
}

/// A reward model that is ready to rate.
struct Ready {
    card: Card,
    /// With whom replies are compared, where they are.
    anchors: Option<Anchors>,
}

/// Results of the training, saved beside the weights.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
struct Card {
    #[serde(flatten)]
    learnt: Learnt,
    /// The mean score of both replies of held-out pairs: that of a reply that earns a half.
    centre: f64,
}

/// Two replies to a prompt, without the token that ends them.
struct Pair {
    prompt: Vec<u32>,
    better: Vec<u32>,
    worse: Vec<u32>,
}

impl RewardModel {
    /// One that has learnt nothing yet.
    #[must_use]
    pub fn new(spec: &ComputeSpec, plan: &RewardModelSpec) -> Self {
        Self::over(spec, plan, Box::new(PairPart::alone(spec, plan)))
    }

    /// The same with a model that others compute. Pairs, and replies to compare with, are made here.
    pub(crate) fn over(
        spec: &ComputeSpec,
        plan: &RewardModelSpec,
        model: Box<dyn PairModel>,
    ) -> Self {
        Self {
            spec: spec.clone(),
            plan: plan.clone(),
            model,
            ready: None,
        }
    }

    fn row(&self, prompt: &[u32], replies: &[&[u32]]) -> Trajectory {
        let end = self.spec.tokenizer.eos();
        let mut tokens = prompt.to_vec();
        for reply in replies {
            tokens.extend_from_slice(reply);
            tokens.push(end);
        }
        // What would be next: the number is read where it is predicted from.
        asked(tokens, end)
    }

    /// The two rows of a comparison, of which the first has more where `reply` is better.
    fn rows(&self, prompt: &[u32], reply: &[u32], other: &[u32]) -> [Trajectory; 2] {
        match self.plan.kind {
            RewardKind::Scalar => [reply, other].map(|it| self.row(prompt, &[it])),
            RewardKind::Pairwise => {
                [[reply, other], [other, reply]].map(|both| self.row(prompt, &both))
            }
        }
    }

    fn rows_of(&self, pairs: &[Pair]) -> Batch {
        let rows = |pair: &Pair| self.rows(&pair.prompt, &pair.better, &pair.worse);
        batch(pairs.iter().flat_map(rows).collect())
    }

    /// Learns from replies of the policy as it is before the reinforcement. Answers the mean loss of the last steps.
    fn learn(&mut self, pairs: &mut Pairs) -> Result<f64, Failure> {
        let (steps, batch) = (self.plan.steps, self.plan.batch);
        let mut losses = VecDeque::new();
        for _ in 0..steps {
            let rows = self.rows_of(&pairs.draw(Split::Train, batch)?);
            let loss = self.model.learn(&rows)?;
            if losses.len() == LOSSES {
                losses.pop_front();
            }
            losses.push_back(loss);
        }
        Ok(losses.iter().sum::<f64>() / losses.len().max(1) as f64)
    }

    /// Measures it on pairs that it has not learnt from.
    fn measure(&mut self, learnt: Learnt, pairs: &[Pair]) -> Result<Card, Failure> {
        let rows = self.rows_of(pairs);
        let scores = self.model.scores(&rows)?;
        let (better, worse) = unzipped(&scores);
        let value = preference(&better, &worse, pairs.len()).map_err(Failure::error)?;
        let sum: f64 = scores.iter().copied().map(f64::from).sum();
        Ok(Card {
            learnt: Learnt {
                kind: self.plan.kind,
                pairs: pairs.len() as u64,
                ordered: value.ordered as u64,
                ..learnt
            },
            centre: sum / scores.len().max(1) as f64,
        })
    }

    /// Learns, or takes what somebody else has learnt, and saves that: under its name only when it is whole, so that a
    /// crash leaves nothing that is taken for it.
    fn make(&mut self) -> Result<Card, Failure> {
        let (folder, fresh) = (
            self.plan.folder.clone(),
            self.plan.folder.with_extension("new"),
        );
        let failed = |error| Failure::error(format!("writing {}: {error}", fresh.display()));
        let mut pairs = Pairs::new(&self.spec)?;
        if fresh.exists() {
            fs::remove_dir_all(&fresh).map_err(failed)?;
        }
        let learnt = match self.plan.load.clone() {
            Some(path) => {
                let card = self.checked(&path)?;
                copied(&path, &fresh).map_err(failed)?;
                card.learnt
            }
            None => {
                let loss = self.learn(&mut pairs)?;
                self.model.write(&fresh)?;
                let steps = self.plan.steps;
                Learnt {
                    steps,
                    loss,
                    ..Learnt::default()
                }
            }
        };
        self.model.read(&fresh)?;
        let held_out = pairs.draw(Split::HeldOut, HELD_OUT_PAIRS)?;
        let card = self.measure(learnt, &held_out)?;
        let text = serde_json::to_vec(&card).map_err(Failure::error)?;
        fs::write(fresh.join(CARD), text).map_err(failed)?;
        model_folder::sync(&fresh)?;
        fs::rename(&fresh, &folder).map_err(failed)?;
        Ok(card)
    }

    fn checked(&self, folder: &Path) -> Result<Card, Failure> {
        checked(folder, self.plan.kind, self.spec.tokenizer.vocabulary())
    }

    /// A reply without the token that ended it.
    fn bare<'a>(&self, reply: &'a Trajectory) -> &'a [u32] {
        match reply.response.split_last() {
            Some((last, rest)) if self.spec.tokenizer.is_end(*last) => rest,
            _ => &reply.response,
        }
    }
}

impl RewardEngine for RewardModel {
    fn prepare(&mut self) -> Result<Learnt, Failure> {
        let folder = self.plan.folder.clone();
        let card = if folder.exists() {
            let card = self.checked(&folder)?;
            self.model.read(&folder)?;
            card
        } else {
            self.make()?
        };
        let anchors = match self.plan.kind {
            RewardKind::Scalar => None,
            RewardKind::Pairwise => Some(Anchors::new(&self.spec)?),
        };
        self.ready = Some(Ready { card, anchors });
        Ok(card.learnt)
    }

    fn rate(&mut self, replies: &[Trajectory]) -> Result<Vec<f32>, Failure> {
        let Some(mut ready) = self.ready.take() else {
            return Err(Failure::error("the reward model has not learnt yet"));
        };
        let rated = self.rate_with(&mut ready, replies);
        self.ready = Some(ready);
        rated
    }
}

impl RewardModel {
    fn rate_with(
        &mut self,
        ready: &mut Ready,
        replies: &[Trajectory],
    ) -> Result<Vec<f32>, Failure> {
        let leads: Vec<f64> = match &mut ready.anchors {
            None => {
                let rows = replies
                    .iter()
                    .map(|it| self.row(&it.prompt, &[self.bare(it)]));
                let scores = self.model.scores(&batch(rows.collect()))?;
                let lead = |score| f64::from(score) - ready.card.centre;
                scores.into_iter().map(lead).collect()
            }
            Some(anchors) => {
                let others = anchors.of(replies)?;
                let pairs = replies.iter().zip(&others);
                let rows = |(it, other): (&Trajectory, &Vec<u32>)| {
                    self.rows(&it.prompt, self.bare(it), other)
                };
                let rows = batch(pairs.flat_map(rows).collect());
                let scores = self.model.scores(&rows)?;
                let lead = |both: &[f32]| f64::from(both[0]) - f64::from(both[1]);
                scores.chunks(2).map(lead).collect()
            }
        };
        match leads.iter().position(|lead| !lead.is_finite()) {
            Some(at) => Err(Failure::error(format!(
                "the reward model says {} of a reply, which is no number: it has not learnt, so make \
                 [reward] lr smaller",
                leads[at]
            ))),
            None => Ok(leads
                .into_iter()
                .map(|lead| probability(lead) as f32)
                .collect()),
        }
    }
}

/// A row whose number is read at its last token, where `next` is predicted from.
fn asked(tokens: Vec<u32>, next: u32) -> Trajectory {
    Trajectory {
        id: SampleId {
            group: 0,
            sample: 0,
        },
        version: 0,
        last_version: 0,
        life: 0,
        last_life: 0,
        prompt: tokens,
        response: vec![next],
        log_probs: vec![],
        observed: Observed::default(),
        waited: Duration::ZERO,
        problem: 0,
        reward: 0.0,
        correct: false,
        cost: 0.0,
    }
}

fn batch(trajectories: Vec<Trajectory>) -> Batch {
    Batch {
        trajectories,
        ..Batch::default()
    }
}

/// The files of a folder in another, but for the results of the training.
fn copied(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.path().is_file() && entry.file_name() != CARD {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The scores of better replies, and those of worse ones.
fn unzipped(scores: &[f32]) -> (Vec<f32>, Vec<f32>) {
    scores.chunks(2).map(|both| (both[0], both[1])).unzip()
}

/// Checks that a folder has a reward model of this kind for tokens of a policy with this
/// vocabulary.
///
/// # Errors
/// It has not, with what it has.
pub fn check_reward_model(
    folder: &Path,
    kind: RewardKind,
    vocabulary: usize,
) -> Result<(), Failure> {
    checked(folder, kind, vocabulary).map(|_| ())
}

fn checked(folder: &Path, kind: RewardKind, vocabulary: usize) -> Result<Card, Failure> {
    let (path, wrong) = (folder.join(CARD), |what: String| {
        Failure::error(format!("{}: {what}", folder.display()))
    });
    let text = fs::read(&path)
        .map_err(|error| wrong(format!("there is no reward model: {CARD}: {error}")))?;
    let card: Card =
        serde_json::from_slice(&text).map_err(|error| wrong(format!("{CARD}: {error}")))?;
    if card.learnt.kind != kind {
        return Err(wrong(format!(
            "the reward model is {}, and kind is {}",
            spoken(card.learnt.kind),
            spoken(kind)
        )));
    }
    let fields = read_fields(folder)?;
    if fields.vocabulary != vocabulary || !fields.value_head {
        return Err(wrong(format!(
            "the reward model has a vocabulary of {} and {} value head: expected {vocabulary}, as the \
             policy has, and one",
            fields.vocabulary,
            if fields.value_head { "a" } else { "no" }
        )));
    }
    Ok(card)
}

const fn spoken(kind: RewardKind) -> &'static str {
    match kind {
        RewardKind::Scalar => "scalar",
        RewardKind::Pairwise => "pairwise",
    }
}

/// The policy as it was before the reinforcement, with its weights.
fn sampler(spec: &ComputeSpec, greedy: bool) -> Result<Sampler, Failure> {
    let model = spec.model(&spec.before(), false)?;
    let mut sampler = if greedy {
        Sampler::greedy(spec)?
    } else {
        Sampler::new(spec, spec.sampling)?.seeded(spec.seed)
    };
    sampler.load(&model.merged())?;
    Ok(sampler)
}

/// For each prompt the likeliest reply of the policy before the reinforcement: one for all replies to
/// it, whenever they come.
struct Anchors {
    sampler: Sampler,
    known: HashMap<Vec<u32>, Vec<u32>>,
    /// Prompts, the oldest first.
    order: VecDeque<Vec<u32>>,
}

impl Anchors {
    fn new(spec: &ComputeSpec) -> Result<Self, Failure> {
        Ok(Self {
            sampler: sampler(spec, true)?,
            known: HashMap::new(),
            order: VecDeque::new(),
        })
    }

    fn of(&mut self, replies: &[Trajectory]) -> Result<Vec<Vec<u32>>, Failure> {
        let mut seen = HashSet::new();
        let prompts = replies.iter().map(|reply| &reply.prompt);
        let new: Vec<Vec<u32>> = prompts
            .filter(|prompt| !self.known.contains_key(*prompt) && seen.insert(*prompt))
            .cloned()
            .collect();
        let answers = self.sampler.answer(&new)?;
        for (prompt, answer) in new.into_iter().zip(answers) {
            self.order.push_back(prompt.clone());
            self.known.insert(prompt, answer);
        }
        let known = |reply: &Trajectory| {
            let answer = self.known.get(&reply.prompt);
            answer.cloned().unwrap_or_default()
        };
        let all = replies.iter().map(known).collect();
        while self.order.len() > ANCHORS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        Ok(all)
    }
}

/// Where pairs come from: for each problem a right reply and a wrong one.
///
/// The wrong one is a sample of the policy that the checker calls wrong; for every fourth problem, and
/// where there is none, the worked solution of another problem. The right one is by turns the worked
/// solution and a sample that is right, where there is one.
struct Pairs {
    spec: ComputeSpec,
    referee: Referee,
    sampler: Sampler,
    /// Problems that were used of the training split.
    used: u64,
}

impl Pairs {
    fn new(spec: &ComputeSpec) -> Result<Self, Failure> {
        let opened = async {
            let opened = Referee::open(&spec.task, &spec.programs).await;
            opened.map_err(Failure::error)
        };
        Ok(Self {
            spec: spec.clone(),
            referee: wait(opened)?,
            sampler: sampler(spec, false)?,
            used: 0,
        })
    }

    /// Pairs of so many problems; none of a problem to which no wrong reply is known.
    fn draw(&mut self, split: Split, problems: usize) -> Result<Vec<Pair>, Failure> {
        let problems = self.problems(split, problems);
        let style = self.referee.task().style();
        let prompts = problems
            .iter()
            .map(|problem| self.spec.prompt(style, &problem.prompt))
            .collect::<Result<Vec<_>, _>>()?;
        let asked = |prompt: &Vec<u32>| std::iter::repeat_n(prompt.clone(), SAMPLES);
        let asked: Vec<Vec<u32>> = prompts.iter().flat_map(asked).collect();
        let sampled = self.sampler.answer(&asked)?;
        let mut texts = vec![];
        for (index, problem) in problems.iter().enumerate() {
            let samples = &sampled[index * SAMPLES..(index + 1) * SAMPLES];
            for tokens in samples {
                // Tokens outside the vocabulary are no answer.
                let text = self.spec.tokenizer.decode_reply(tokens).unwrap_or_default();
                texts.push((problem.clone(), text));
            }
            let other = &problems[(index + 1) % problems.len()];
            texts.push((problem.clone(), other.solution.clone()));
        }
        let judging = async { self.referee.judge_all(&texts).await.map_err(Failure::error) };
        let right: Vec<bool> = wait(judging)?.iter().map(|it| it.correct).collect();
        let mut pairs = vec![];
        for (index, prompt) in prompts.into_iter().enumerate() {
            let samples = &sampled[index * SAMPLES..(index + 1) * SAMPLES];
            let right = &right[index * (SAMPLES + 1)..(index + 1) * (SAMPLES + 1)];
            let first = |is: bool| {
                let nth = right[..SAMPLES].iter().position(|right| *right == is)?;
                Some(samples[nth].clone())
            };
            let solution = |of: usize| {
                let tokens = self.spec.tokenizer.encode(&problems[of].solution);
                tokens.map_err(Failure::error)
            };
            let other = match right[SAMPLES] {
                true => None,
                false => Some(solution((index + 1) % problems.len())?),
            };
            let wrong = first(false);
            let worse = match index % 4 {
                3 => other.or(wrong),
                _ => wrong.or(other),
            };
            let better = match first(true) {
                Some(sample) if index % 2 == 1 => sample,
                _ => solution(index)?,
            };
            if let Some(worse) = worse {
                pairs.push(Pair {
                    prompt,
                    better,
                    worse,
                });
            }
        }
        if pairs.is_empty() {
            return Err(Failure::error(format!(
                "a reward model has nothing to learn from: to {} problems the policy gives no wrong \
                 reply, so choose [reward] by = \"checker\", or fewer supervised steps",
                problems.len()
            )));
        }
        Ok(pairs)
    }

    fn problems(&mut self, split: Split, problems: usize) -> Vec<Problem> {
        let task = self.referee.task();
        // Other problems than those of the supervised steps and of the run, where there are enough.
        let seed = self.spec.seed ^ SEED;
        match split {
            Split::Train => {
                let first = self.used;
                self.used += problems as u64;
                let all = first..self.used;
                all.map(|index| task.problem(seed, split, index)).collect()
            }
            Split::HeldOut => {
                let most = task.problem_count(split).unwrap_or(u64::MAX);
                let all = 0..most.min(problems as u64);
                all.map(|index| task.problem(seed, split, index)).collect()
            }
        }
    }
}

const CARD: &str = "reward.json";

/// Replies that are sampled to each problem.
const SAMPLES: usize = 4;

/// Pairs that say how much was learnt.
const HELD_OUT_PAIRS: usize = 256;

/// Steps whose mean loss is told.
const LOSSES: usize = 10;

/// Prompts whose likeliest reply is kept: far more than are under way at a time.
const ANCHORS_MAX: usize = 4096;

/// Sets the problems of pairs apart.
const SEED: u64 = 0x7061_6972_7300;

#[cfg(test)]
mod tests;

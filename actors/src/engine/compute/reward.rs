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

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::ops::Range;
use std::path::Path;

use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};
use odeon_algorithms::model::{self, TokenScores};
use odeon_algorithms::objective::{preference, probability};
use odeon_algorithms::task::{Problem, Split};
use odeon_algorithms::train::{Schedule, StepWork, TokenGradients, TrainConfig};
use odeon_algorithms::weights::ModelFields;
use odeon_gpu::Device;

use super::rollout::Sampler;
use super::rows::{Row, Rows, micro_batches, pack};
use super::step::{Learning, StepGangs, step};
use super::{
    ComputePlace, ComputeSpec, Model, Optimizer, Scorer, model_folder, read_fields, read_model,
};
use crate::engine::{Learnt, RewardEngine, RewardKind, RewardModelSpec};
use crate::rl::referee::{Referee, wait};
use crate::trajectory::Trajectory;

/// A reward model that first learns from pairs of replies, and then rates replies.
pub struct RewardModel {
    spec: ComputeSpec,
    plan: RewardModelSpec,
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
    scorer: Scorer,
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
        Self {
            spec: spec.clone(),
            plan: plan.clone(),
            ready: None,
        }
    }

    fn row(&self, prompt: &[u32], replies: &[&[u32]]) -> Row {
        let end = self.spec.tokenizer.eos();
        let mut tokens = prompt.to_vec();
        for reply in replies {
            tokens.extend_from_slice(reply);
            tokens.push(end);
        }
        let prompt = tokens.len();
        // What would be next: the number is read where it is predicted from.
        tokens.push(end);
        Row {
            tokens,
            prompt,
            ..Row::default()
        }
    }

    /// The two rows of a comparison, of which the first has more where `reply` is better.
    fn rows(&self, prompt: &[u32], reply: &[u32], other: &[u32]) -> [Row; 2] {
        match self.plan.kind {
            RewardKind::Scalar => [reply, other].map(|it| self.row(prompt, &[it])),
            RewardKind::Pairwise => {
                [[reply, other], [other, reply]].map(|both| self.row(prompt, &both))
            }
        }
    }

    fn rows_of(&self, pairs: &[Pair]) -> Vec<Row> {
        let rows = |pair: &Pair| self.rows(&pair.prompt, &pair.better, &pair.worse);
        pairs.iter().flat_map(rows).collect()
    }

    /// Learns from replies of the policy as it is before the reinforcement.
    fn learn(&self, pairs: &mut Pairs<'_>) -> Result<(Model, f64), Failure> {
        let (steps, batch) = (self.plan.steps, self.plan.batch);
        let config = TrainConfig {
            lr: self.plan.lr,
            warmup: (steps / 20).min(100),
            schedule: Schedule::Cosine { steps, floor: 0.1 },
            weight_decay: 0.0,
            ..TrainConfig::default()
        };
        let model = self.spec.model(&self.spec.before(), true)?;
        let mut optimizer = Optimizer::new(model, config);
        let mut losses = VecDeque::new();
        for _ in 0..steps {
            let rows = self.rows_of(&pairs.draw(Split::Train, batch)?);
            let mut work = PreferenceWork::of(rows);
            let loss = step(
                &mut optimizer,
                &mut work,
                StepGangs::default(),
                Learning::Yes,
            )?
            .outcome
            .loss;
            if losses.len() == LOSSES {
                losses.pop_front();
            }
            losses.push_back(loss);
        }
        let loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        Ok((optimizer.into_model(), loss))
    }

    /// Measures a model on pairs that it has not learnt from.
    fn measure(
        &self,
        scorer: &mut Scorer,
        learnt: Learnt,
        pairs: &[Pair],
    ) -> Result<Card, Failure> {
        let scores = scores(scorer, self.rows_of(pairs))?;
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

    /// Learns, or takes what somebody else has learnt, and saves that.
    fn make(&self) -> Result<(Scorer, Card), Failure> {
        let mut pairs = Pairs::new(&self.spec)?;
        let (model, learnt) = match &self.plan.load {
            Some(path) => {
                let (model, card) = self.read(path)?;
                (model, card.learnt)
            }
            None => {
                let (model, loss) = self.learn(&mut pairs)?;
                let steps = self.plan.steps;
                let learnt = Learnt {
                    steps,
                    loss,
                    ..Learnt::default()
                };
                (model, learnt)
            }
        };
        let mut scorer = self.rater(model)?;
        let held_out = pairs.draw(Split::HeldOut, HELD_OUT_PAIRS)?;
        let card = self.measure(&mut scorer, learnt, &held_out)?;
        self.save(scorer.model(), &card)?;
        Ok((scorer, card))
    }

    /// The model as it rates. A processor adds up in one order then: else that hangs on the number of rows, and
    /// what a reply earns would on those that are rated with it.
    fn rater(&self, model: Model) -> Result<Scorer, Failure> {
        if self.spec.device != Device::Cpu {
            return Ok(Scorer::new(model));
        }
        let place = ComputePlace {
            deterministic: true,
            ..self.spec.place()
        };
        let rater = Model::zeros(place.backend()?, model.config().clone());
        let mut rater = rater.map_err(Failure::error)?;
        let loaded = rater.load_flat(&model.merged());
        loaded.map_err(Failure::error)?;
        Ok(Scorer::new(rater))
    }

    fn read(&self, folder: &Path) -> Result<(Model, Card), Failure> {
        let vocabulary = self.spec.tokenizer.vocabulary();
        let card = checked(folder, self.plan.kind, vocabulary)?;
        let model = read_model(folder)?.into_model(self.spec.backend()?);
        Ok((model.map_err(Failure::error)?, card))
    }

    /// Under its name only when it is whole: a crash leaves nothing that is taken for it.
    fn save(&self, model: &Model, card: &Card) -> Result<(), Failure> {
        let (folder, fresh) = (&self.plan.folder, self.plan.folder.with_extension("new"));
        let failed = |error| Failure::error(format!("writing {}: {error}", fresh.display()));
        if fresh.exists() {
            fs::remove_dir_all(&fresh).map_err(failed)?;
        }
        let tokenizer = Some(&self.spec.tokenizer);
        let fields = ModelFields::of(model.config(), self.spec.context);
        model_folder::write(&fresh, model, fields, tokenizer)?;
        let text = serde_json::to_vec(card).map_err(Failure::error)?;
        fs::write(fresh.join(CARD), text).map_err(failed)?;
        model_folder::sync(&fresh)?;
        fs::rename(&fresh, folder).map_err(failed)
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
        let (scorer, card) = if self.plan.folder.exists() {
            let (model, card) = self.read(&self.plan.folder)?;
            (self.rater(model)?, card)
        } else {
            self.make()?
        };
        let anchors = match self.plan.kind {
            RewardKind::Scalar => None,
            RewardKind::Pairwise => Some(Anchors::new(&self.spec)?),
        };
        self.ready = Some(Ready {
            scorer,
            card,
            anchors,
        });
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
    fn rate_with(&self, ready: &mut Ready, replies: &[Trajectory]) -> Result<Vec<f32>, Failure> {
        let leads: Vec<f64> = match &mut ready.anchors {
            None => {
                let rows = replies
                    .iter()
                    .map(|it| self.row(&it.prompt, &[self.bare(it)]));
                let scores = scores(&mut ready.scorer, rows.collect())?;
                let lead = |score| f64::from(score) - ready.card.centre;
                scores.into_iter().map(lead).collect()
            }
            Some(anchors) => {
                let others = anchors.of(replies)?;
                let pairs = replies.iter().zip(&others);
                let rows = |(it, other): (&Trajectory, &Vec<u32>)| {
                    self.rows(&it.prompt, self.bare(it), other)
                };
                let rows: Vec<Row> = pairs.flat_map(rows).collect();
                let scores = scores(&mut ready.scorer, rows)?;
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

/// Pairs of rows, of which the first is better.
struct PreferenceWork {
    rows: Vec<Row>,
    /// Where pairs are cut into micro-batches.
    cuts: Vec<Range<usize>>,
}

impl PreferenceWork {
    fn of(rows: Vec<Row>) -> Self {
        let tokens = |pair: usize, _| {
            let both = &rows[2 * pair..2 * pair + 2];
            both.iter().map(|row| row.tokens.len()).sum()
        };
        Self {
            cuts: micro_batches(rows.len() / 2, tokens),
            rows,
        }
    }
}

impl StepWork for PreferenceWork {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.cuts.len()
    }

    fn batch(&mut self, micro: usize) -> Result<model::Batch, Failure> {
        let pairs = &self.cuts[micro];
        pack(&self.rows[2 * pairs.start..2 * pairs.end], false)
    }

    fn evaluate(
        &mut self,
        _micro: usize,
        _counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        let (better, worse) = unzipped(&scores.values);
        let value = preference(&better, &worse, self.rows.len() / 2).map_err(Failure::error)?;
        let both = gradients.values.chunks_mut(2);
        for (both, d) in both.zip(&value.d_better) {
            both.copy_from_slice(&[*d, -d]);
        }
        Ok(value.loss)
    }
}

/// One number for each row.
fn scores(scorer: &mut Scorer, rows: Vec<Row>) -> Result<Vec<f32>, Failure> {
    let rows = Rows::of(rows, scorer.model());
    let mut scores = vec![];
    for micro in 0..rows.micro_batches() {
        scores.extend(scorer.values(&rows.pack(micro)?));
    }
    Ok(scores)
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
struct Pairs<'a> {
    spec: &'a ComputeSpec,
    referee: Referee,
    sampler: Sampler,
    /// Problems that were used of the training split.
    used: u64,
}

impl<'a> Pairs<'a> {
    fn new(spec: &'a ComputeSpec) -> Result<Self, Failure> {
        let opened = async {
            let opened = Referee::open(&spec.task, &spec.programs).await;
            opened.map_err(Failure::error)
        };
        Ok(Self {
            spec,
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

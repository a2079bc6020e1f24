//! A rollout that is thought: how many replies it works on decides how long their tokens take.
//!
//! It moves on in stretches in which nothing happens: up to the end of a reply or of a turn, until an
//! environment is done or the cache is full, and no longer than [`LOOK_S`], so that news is heard.

use std::collections::VecDeque;
use std::time::Duration;

use odeon::{Clock, Failure};
use odeon_algorithms::cost::{Replica, Sequences};
use odeon_algorithms::workload::{SampleKey, Workload};

use super::cache::{Cache, Part};
use super::{Modelled, ModelledError, Thought, Weights};
use crate::engine::{CacheUse, Response, RolloutEngine};
use crate::trajectory::{Order, SampleId};

/// A reply under way.
#[derive(Debug)]
struct Reply {
    id: SampleId,
    weights: u64,
    prompt: u64,
    /// Tokens here that were there when it was admitted, and those made since.
    begun: usize,
    made: usize,
    /// After so many tokens the environment works for so many seconds.
    turns: VecDeque<(usize, f64)>,
    length: usize,
    /// When the environment is done.
    goes_on: f64,
    place: Place,
}

/// Where the keys and values of a reply are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the cache.
    Cached,
    /// Nowhere: there was no room for all. They are computed anew when there is.
    Evicted,
}

impl Reply {
    fn tokens(&self) -> usize {
        self.begun + self.made
    }

    /// Tokens here until it ends or the environment has its turn.
    fn ahead(&self) -> usize {
        let until = self.turns.front().map_or(self.length, |(at, _)| *at);
        until.min(self.length).saturating_sub(self.tokens()).max(1)
    }

    fn part(&self, quantum: u64) -> Part {
        Part {
            id: self.id,
            weights: self.weights,
            prompt: self.prompt,
            own: self.tokens() as u64 * quantum,
        }
    }

    fn response(&self, from: usize) -> Response {
        let tokens = self.made.saturating_sub(from);
        Response {
            id: self.id,
            tokens: vec![0; tokens],
            log_probs: vec![0.0; tokens],
            paused: false,
        }
    }
}

/// Generates as many tokens as the distribution says, in the time that the model says.
#[derive(Debug)]
pub struct ModelledRollout {
    model: Modelled,
    replica: Replica,
    workload: Workload,
    /// Sets of weights that were taken in.
    weights: u64,
    /// In the order in which they were admitted.
    active: Vec<Reply>,
    cache: Cache,
    /// Sequences that get keys and values with the next step.
    prefill: Sequences,
    thought: Thought,
    waited: f64,
}

impl ModelledRollout {
    /// A rollout without weights.
    ///
    /// # Errors
    /// See [`ModelledError`].
    pub fn new(model: &Modelled) -> Result<Self, ModelledError> {
        Ok(Self {
            replica: Replica::new(&model.card, &model.model, model.rollout_gpus)?,
            workload: Workload::new(model.workload)?,
            weights: 0,
            active: vec![],
            cache: Cache::new(model.prefixes),
            prefill: Sequences::default(),
            thought: Thought::default(),
            waited: 0.0,
            model: model.clone(),
        })
    }

    fn quantum(&self) -> u64 {
        u64::from(self.model.quantum.max(1))
    }

    /// Tokens whose keys and values fit. A second set of weights takes its room from them.
    fn capacity(&self) -> u64 {
        let model = &self.model.model;
        let older = self.active.iter().any(|it| it.weights != self.weights);
        let weights = if older { model.weight_bytes() } else { 0 };
        let bytes = self.replica.kv_capacity_bytes().saturating_sub(weights);
        bytes / model.kv_bytes_per_token()
    }

    /// Tokens up to which replies are taken in. What is under way grows: a tenth is left for that.
    fn comfortable(&self) -> u64 {
        self.capacity() / 10 * 9
    }

    /// Takes a reply's tokens in, those of its prompt only where they are not there yet.
    fn enter(&mut self, part: Part) {
        let there = self.cache.enter(part);
        // The last token of a prompt is computed in any case, for the first of the reply.
        let before = there.min((part.prompt + part.own).saturating_sub(1));
        self.prefill = self.prefill.and(before, part.prompt + part.own - before);
    }

    /// Those without keys and values get them where there is room, the first first.
    fn bring_back(&mut self) {
        let (quantum, most) = (self.quantum(), self.comfortable());
        for at in 0..self.active.len() {
            if self.active[at].place == Place::Cached {
                continue;
            }
            let part = self.active[at].part(quantum);
            let alone = self.cache.tokens() == 0;
            if !alone && self.cache.tokens() + self.cache.needs(part) > most {
                return;
            }
            self.active[at].place = Place::Cached;
            self.enter(part);
        }
    }

    /// Those that came last give up their room until the others have enough; one always stays.
    fn make_room(&mut self) {
        let (quantum, capacity) = (self.quantum(), self.capacity());
        let mut at = self.active.len();
        while self.cache.tokens() > capacity && at > 1 {
            at -= 1;
            let reply = &mut self.active[at];
            if reply.place == Place::Cached {
                reply.place = Place::Evicted;
                self.cache.leave(reply.part(quantum));
            }
        }
    }

    /// Those that can make tokens now.
    fn going_on(&self) -> impl Iterator<Item = &Reply> {
        let now = self.thought.at;
        let all = self.active.iter();
        all.filter(move |it| it.place == Place::Cached && it.goes_on <= now)
    }

    /// Number of replies that go on with the newest weights or with those before, and of their
    /// tokens.
    fn load_of(&self, newest: bool) -> (u64, u64) {
        let of = |it: &&Reply| (it.weights == self.weights) == newest;
        let quantum = self.quantum();
        self.going_on()
            .filter(of)
            .fold((0, 0), |(replies, tokens), it| {
                let part = it.part(quantum);
                (replies + 1, tokens + part.prompt + part.own)
            })
    }

    /// Seconds of so many tokens here of all that go on. Each of two sets of weights is read in a step
    /// of its own.
    fn decode_s(&self, loads: [(u64, u64); 2], stretch: u64) -> f64 {
        let steps = stretch * self.quantum();
        let takes = |(replies, tokens): (u64, u64)| {
            let middle = tokens + replies * steps / 2;
            self.replica.decode_step(replies, middle).as_secs_f64()
        };
        steps as f64 * loads.map(takes).iter().sum::<f64>()
    }

    /// Seconds until the first environment is done, or until it is time to look.
    fn until_environment(&self) -> f64 {
        let now = self.thought.at;
        let all = self.active.iter().map(|it| it.goes_on);
        let later = all.filter(|at| *at > now);
        later.fold(LOOK_S, |until, at| until.min(at - now))
    }

    /// For how many tokens here nothing happens, when one of each reply takes so many seconds.
    fn stretch(&self, one: f64) -> u64 {
        let ahead = self.going_on().map(|it| it.ahead() as u64).min();
        let (ahead, replies) = (ahead.unwrap_or(1), self.going_on().count() as u64);
        let until = self.until_environment();
        let room = self.capacity().saturating_sub(self.cache.tokens());
        let room = room / (replies.max(1) * self.quantum());
        ahead.min((until / one) as u64).min(room).max(1)
    }
}

impl RolloutEngine for ModelledRollout {
    fn can_load(&self) -> bool {
        let mut all = self.active.iter();
        all.all(|reply| reply.weights == self.weights)
    }

    fn load(&mut self, weights: &[u8]) -> Result<(), Failure> {
        if self.weights == 0 {
            self.thought.pass(self.model.starts.as_secs_f64());
        }
        let there = Weights::read(weights)?.there;
        self.thought.pass(there.left(Clock::now()).as_secs_f64());
        self.thought.pass(self.model.load_s(&self.replica));
        self.weights += 1;
        Ok(())
    }

    fn free_slots(&self) -> usize {
        let evicted = self.active.iter().any(|it| it.place == Place::Evicted);
        if evicted || self.cache.tokens() > self.comfortable() {
            return 0;
        }
        self.model.slots.saturating_sub(self.active.len())
    }

    fn active(&self) -> usize {
        self.active.len()
    }

    fn admit(&mut self, order: &Order) -> Result<(), Failure> {
        let quantum = self.quantum();
        // The same whichever weights begin it, so that all modes have the same work.
        let episode = self.workload.episode(SampleKey {
            group: order.id.group,
            sample: order.id.sample,
            version: 0,
        });
        let begun = order.partial.as_ref().map_or(0, |it| it.tokens.len());
        let (mut length, mut turns) = (0, VecDeque::new());
        for turn in &episode.turns {
            length += turn.tokens.div_ceil(quantum) as usize;
            if length > begun && !turn.environment.is_zero() {
                turns.push_back((length, turn.environment.as_secs_f64()));
            }
        }
        let reply = Reply {
            id: order.id,
            weights: self.weights,
            prompt: episode.prompt_tokens,
            begun,
            made: 0,
            turns,
            length: length.max(begun + 1),
            goes_on: 0.0,
            place: Place::Cached,
        };
        self.enter(reply.part(quantum));
        self.active.push(reply);
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Response>, Failure> {
        self.bring_back();
        let prefill = self.replica.prefill(std::mem::take(&mut self.prefill));
        self.thought.pass(prefill.as_secs_f64());
        let loads = [self.load_of(true), self.load_of(false)];
        if loads == [(0, 0); 2] {
            let takes = self.until_environment();
            self.thought.pass(takes);
            self.waited += takes;
            return Ok(vec![]);
        }
        let stretch = self.stretch(self.decode_s(loads, 1));
        let (now, quantum) = (self.thought.at, self.quantum());
        self.thought.pass(self.decode_s(loads, stretch));
        let after = self.thought.at;
        let goes_on = |it: &&mut Reply| it.place == Place::Cached && it.goes_on <= now;
        for reply in self.active.iter_mut().filter(goes_on) {
            reply.made += stretch as usize;
            self.cache.grow(stretch * quantum);
            let tokens = reply.tokens();
            if let Some((_, takes)) = reply.turns.pop_front_if(|(at, _)| tokens >= *at) {
                reply.goes_on = after + takes;
            }
        }
        let ended = self
            .active
            .extract_if(.., |reply| reply.tokens() >= reply.length);
        let ended: Vec<Reply> = ended.collect();
        for reply in &ended {
            self.cache.leave(reply.part(quantum));
        }
        self.make_room();
        Ok(ended.iter().map(|reply| reply.response(0)).collect())
    }

    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure> {
        self.load(weights)?;
        let quantum = self.quantum();
        self.cache.clear();
        self.prefill = Sequences::default();
        for at in 0..self.active.len() {
            let reply = &mut self.active[at];
            reply.weights = self.weights;
            if reply.place == Place::Cached {
                let part = reply.part(quantum);
                self.enter(part);
            }
        }
        Ok(())
    }

    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response> {
        let all = self.active.iter();
        all.map(|reply| reply.response(from(reply.id))).collect()
    }

    fn withdraw(&mut self) {
        self.active.clear();
        self.cache.clear();
        self.prefill = Sequences::default();
    }

    fn cache(&self) -> CacheUse {
        let token = self.model.model.kv_bytes_per_token();
        CacheUse {
            used: self.cache.tokens() * token,
            capacity: self.capacity() * token,
        }
    }

    fn burst(&self) -> usize {
        1
    }

    fn takes(&mut self) -> Duration {
        self.thought.take()
    }

    fn waited(&mut self) -> Duration {
        Duration::from_secs_f64(std::mem::take(&mut self.waited))
    }
}

/// The longest stretch, in seconds: how late a rollout hears of news. With hundreds of replies a token
/// here takes nearly as long.
const LOOK_S: f64 = 0.5;

//! Branch and bound over set partitions and allocations.

use std::{collections::BTreeMap, rc::Rc};

use super::{
    answer::{Mapping, Placed, Searched, Set},
    degrees::Degrees,
    error::MappingError,
    pricing::{Members, Offer, Pricing, members},
    room::{no_fit, no_room_together},
};

/// The state of one search. It decides set by set: which models join the first that has none,
/// where, and how; and turns back where the best end of a branch is no better than the best
/// mapping so far.
pub(super) struct Search<'a> {
    pricing: Pricing<'a>,
    /// For each model and pool: by number of devices, the least seconds of each stage with at most
    /// so many, alone. Company never makes a model faster.
    alone: Vec<Vec<BTreeMap<u32, Vec<f64>>>>,
    best: Option<Best>,
    compared: u64,
    cut: u64,
}

/// A set with its devices and one of its offers.
#[derive(Clone)]
struct Candidate {
    pool: usize,
    devices: u32,
    offers: Rc<[Offer]>,
    at: usize,
}

/// A place for a set, not priced yet: the sum of what its models would take alone.
struct Hope {
    pool: usize,
    devices: u32,
    least: Vec<f64>,
}

struct Best {
    rank: Rank,
    sets: Vec<Candidate>,
}

/// The key by which two mappings are compared: seconds, then devices in use, then sets.
#[derive(Clone, Copy)]
struct Rank {
    seconds: f64,
    devices: u32,
    sets: usize,
}

/// Where the search is: models without a set, devices left by pool, and what is decided.
struct Branch {
    rest: Members,
    left: Vec<u32>,
    /// The slowest set's seconds by stage.
    stages: Vec<f64>,
    sets: Vec<Candidate>,
}

impl<'a> Search<'a> {
    pub(super) fn new(pricing: Pricing<'a>) -> Self {
        Self {
            pricing,
            alone: Vec::new(),
            best: None,
            compared: 0,
            cut: 0,
        }
    }

    pub(super) fn run(mut self) -> Result<Mapping, MappingError> {
        for model in 0..self.pricing.models.len() {
            let alone = self.alone(model)?;
            if alone.iter().all(BTreeMap::is_empty) {
                return Err(no_fit(&mut self.pricing, model)?);
            }
            self.alone.push(alone);
        }
        let mut branch = Branch {
            rest: ((1u64 << self.pricing.models.len()) - 1) as Members,
            left: self.pricing.pools.iter().map(|pool| pool.devices).collect(),
            stages: vec![0.0; self.pricing.stages.len()],
            sets: Vec::new(),
        };
        self.descend(&mut branch)?;
        match self.best.take() {
            Some(best) => self.mapping(&best),
            None => Err(no_room_together(&mut self.pricing)?),
        }
    }

    fn descend(&mut self, branch: &mut Branch) -> Result<(), MappingError> {
        if branch.rest == 0 {
            self.compare(branch);
            return Ok(());
        }
        let first = branch.rest & branch.rest.wrapping_neg();
        let others = branch.rest & !first;
        // All subsets of the others, the whole first.
        let mut company = others;
        loop {
            self.place(branch, first | company)?;
            if company == 0 {
                return Ok(());
            }
            company = (company - 1) & others;
        }
    }

    /// Tries all places for one more set, the most promising first.
    fn place(&mut self, branch: &mut Branch, set: Members) -> Result<(), MappingError> {
        let rest = branch.rest & !set;
        for Hope {
            pool,
            devices,
            least,
        } in self.hopes(set, &branch.left)
        {
            branch.left[pool] -= devices;
            let stages = slowest(&branch.stages, &least);
            if self.may_improve(branch, rest, &stages, devices) {
                let offers = self.pricing.offers(set, pool, devices)?;
                for at in 0..offers.len() {
                    let offers = Rc::clone(&offers);
                    let candidate = Candidate {
                        pool,
                        devices,
                        offers,
                        at,
                    };
                    self.choose(branch, rest, candidate)?;
                }
            } else {
                self.cut += 1;
            }
            branch.left[pool] += devices;
        }
        Ok(())
    }

    /// Goes on with this set decided, if that can be of use.
    fn choose(
        &mut self,
        branch: &mut Branch,
        rest: Members,
        candidate: Candidate,
    ) -> Result<(), MappingError> {
        let stages = slowest(&branch.stages, &candidate.offer().seconds);
        if !self.may_improve(branch, rest, &stages, candidate.devices) {
            self.cut += 1;
            return Ok(());
        }
        let before = (branch.rest, std::mem::replace(&mut branch.stages, stages));
        branch.rest = rest;
        branch.sets.push(candidate);
        self.descend(branch)?;
        branch.sets.pop();
        (branch.rest, branch.stages) = before;
        Ok(())
    }

    /// The places where all of a set's models fit one at a time, with what it takes at the least.
    fn hopes(&self, set: Members, left: &[u32]) -> Vec<Hope> {
        let mut found = Vec::new();
        for (pool, devices) in self.pricing.places() {
            let mut least = vec![0.0; self.pricing.stages.len()];
            let fits = members(set).all(|model| {
                let alone = self.alone[model][pool].range(..=devices).next_back();
                for (sum, more) in least.iter_mut().zip(alone.into_iter().flat_map(|(_, s)| s)) {
                    *sum += more * BELOW_ROUNDING;
                }
                alone.is_some()
            });
            if fits && devices <= left[pool] {
                found.push(Hope {
                    pool,
                    devices,
                    least,
                });
            }
        }
        let sum = |hope: &Hope| hope.least.iter().sum::<f64>();
        found.sort_by(|a, b| sum(a).total_cmp(&sum(b)).then(a.devices.cmp(&b.devices)));
        found
    }

    /// Returns true when the rest, each alone on all that is left, could still make it better.
    fn may_improve(&self, branch: &Branch, rest: Members, stages: &[f64], devices: u32) -> bool {
        let mut bound = stages.to_vec();
        for model in members(rest) {
            let Some(least) = self.least(model, &branch.left) else {
                return false;
            };
            bound = slowest(&bound, &least);
        }
        let more = u32::from(rest != 0);
        let rank = Rank {
            seconds: bound.iter().sum(),
            devices: branch.devices() + devices + more,
            sets: branch.sets.len() + 1 + more as usize,
        };
        self.best.as_ref().is_none_or(|best| rank.beats(&best.rank))
    }

    /// Least seconds of each stage for the model on at most what is left; none where it fits
    /// nowhere.
    fn least(&self, model: usize, left: &[u32]) -> Option<Vec<f64>> {
        let pools = self.alone[model].iter().zip(left);
        let seconds = pools.filter_map(|(by_devices, &left)| {
            let (_, seconds) = by_devices.range(..=left).next_back()?;
            Some(seconds.clone())
        });
        seconds.reduce(|a, b| fastest(&a, &b))
    }

    fn compare(&mut self, branch: &Branch) {
        self.compared += 1;
        let rank = Rank {
            seconds: branch.stages.iter().sum(),
            devices: branch.devices(),
            sets: branch.sets.len(),
        };
        if self.best.as_ref().is_none_or(|best| rank.beats(&best.rank)) {
            self.best = Some(Best {
                rank,
                sets: branch.sets.clone(),
            });
        }
    }

    fn alone(&mut self, model: usize) -> Result<Vec<BTreeMap<u32, Vec<f64>>>, MappingError> {
        let mut pools = vec![BTreeMap::new(); self.pricing.pools.len()];
        let mut least: Vec<Option<Vec<f64>>> = vec![None; pools.len()];
        for (pool, devices) in self.pricing.places() {
            for offer in self.pricing.offers(1 << model, pool, devices)?.iter() {
                let seconds = match &least[pool] {
                    Some(least) => fastest(least, &offer.seconds),
                    None => offer.seconds.clone(),
                };
                pools[pool].insert(devices, seconds.clone());
                least[pool] = Some(seconds);
            }
        }
        Ok(pools)
    }

    fn mapping(&mut self, best: &Best) -> Result<Mapping, MappingError> {
        let firsts = self.side_by_side(&best.sets);
        let mut sets = Vec::new();
        for (candidate, first_device) in best.sets.iter().zip(firsts) {
            sets.push(self.set(candidate, first_device)?);
        }
        let slowest_set = best
            .sets
            .iter()
            .fold(vec![0.0; self.pricing.stages.len()], |stages, candidate| {
                slowest(&stages, &candidate.offer().seconds)
            });
        let names = self.pricing.stages.iter().map(|&name| name.to_owned());
        Ok(Mapping {
            seconds: best.rank.seconds,
            stages: names.zip(slowest_set).collect(),
            sets,
            searched: Searched {
                compared: self.compared,
                cut: self.cut,
                priced: self.pricing.priced,
                reused: self.pricing.reused,
            },
        })
    }

    /// The first device of each set: the largest first in each pool.
    fn side_by_side(&self, sets: &[Candidate]) -> Vec<u32> {
        let mut order: Vec<usize> = (0..sets.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(sets[at].devices));
        let mut next = vec![0; self.pricing.pools.len()];
        let mut firsts = vec![0; sets.len()];
        for at in order {
            firsts[at] = next[sets[at].pool];
            next[sets[at].pool] += sets[at].devices;
        }
        firsts
    }

    fn set(&mut self, candidate: &Candidate, first_device: u32) -> Result<Set, MappingError> {
        let (pool, offer) = (self.pricing.pools[candidate.pool], candidate.offer());
        let usable_bytes = self.pricing.cost.usable_bytes(&pool.device);
        let mut models = Vec::new();
        for choice in &offer.choices {
            let (mut waves, mut generation_bytes) = (0, 0);
            if let Some(parallel) = choice.generation {
                let both = [choice.parallel, parallel];
                let free = usable_bytes - offer.bytes;
                for (_, generation) in
                    self.pricing
                        .generate(choice.model, candidate.pool, both, free)?
                {
                    waves = waves.max(generation.waves);
                    generation_bytes = generation_bytes.max(generation.bytes);
                }
            }
            let load = &self.pricing.models[choice.model];
            models.push(Placed {
                model: load.model.name.clone(),
                role: load.role,
                mesh: choice.parallel.mesh(),
                generation: choice.generation.map(Degrees::mesh),
                waves,
                resident_bytes: choice.bytes,
                generation_bytes,
                seconds: choice.seconds.clone(),
            });
        }
        models.sort_by(|a, b| a.model.cmp(&b.model));
        Ok(Set {
            pool: pool.name.clone(),
            devices: candidate.devices,
            first_device,
            usable_bytes,
            models,
        })
    }
}

impl Candidate {
    fn offer(&self) -> &Offer {
        &self.offers[self.at]
    }
}

impl Branch {
    fn devices(&self) -> u32 {
        self.sets.iter().map(|candidate| candidate.devices).sum()
    }
}

impl Rank {
    fn beats(&self, other: &Self) -> bool {
        let seconds = self.seconds.total_cmp(&other.seconds);
        let rest = (self.devices, self.sets).cmp(&(other.devices, other.sets));
        seconds.then(rest).is_lt()
    }
}

fn slowest(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a.max(*b)).collect()
}

fn fastest(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a.min(*b)).collect()
}

/// Keeps a bound below the sum that it bounds when both are rounded in different orders.
const BELOW_ROUNDING: f64 = 1.0 - 1e-12;

//! Prices of each set of models on each number of devices: the part of the search that asks the
//! cost model, and its memo.

use std::{cmp::Ordering, collections::BTreeMap, rc::Rc};

use super::{
    cost::{CostModel, Generation, Run},
    degrees::Degrees,
    error::MappingError,
    pool::Pool,
    workload::{Model, Role, Task, Work, Workload},
};

/// Models by their number, one bit each.
pub(super) type Members = u32;

/// The memo's policy. Answers are always kept, but where a test shows that it makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memo {
    Kept,
    #[cfg(test)]
    Forgotten,
}

/// Prices sets of models; models and pools are numbered by name, so that the order in which they
/// were listed has no influence.
pub(super) struct Pricing<'a> {
    pub(super) cost: &'a dyn CostModel,
    pub(super) models: Vec<Load<'a>>,
    pub(super) pools: Vec<&'a Pool>,
    pub(super) stages: Vec<&'a str>,
    pub(super) priced: u64,
    pub(super) reused: u64,
    memo: Memo,
    homes: BTreeMap<(usize, usize, u32), Rc<[Home]>>,
    offers: BTreeMap<(Members, usize, u32), Rc<[Offer]>>,
}

/// A model and all that it does in an iteration, with the stage of each task.
pub(super) struct Load<'a> {
    pub(super) model: &'a Model,
    pub(super) role: Role,
    passes: Vec<(usize, &'a Task)>,
    generates: Vec<(usize, &'a Task)>,
}

/// One way for a model to live on devices.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) parallel: Degrees,
    pub(super) bytes: u64,
    /// By stage; without generation, which depends on the neighbours' memory.
    seconds: Vec<f64>,
    /// Ways to generate, each with the least free bytes.
    generations: Vec<(Degrees, u64)>,
}

/// One way for a set of models to share devices. No other is at least as fast in all stages.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// By stage.
    pub(super) seconds: Vec<f64>,
    /// Resident bytes of each device, all models together.
    pub(super) bytes: u64,
    pub(super) choices: Vec<Choice>,
}

/// The choice of an offer for one model.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) model: usize,
    /// Which of the model's homes.
    home: usize,
    /// Resident bytes of each device.
    pub(super) bytes: u64,
    pub(super) parallel: Degrees,
    pub(super) generation: Option<Degrees>,
    pub(super) seconds: Vec<f64>,
}

impl<'a> Pricing<'a> {
    pub(super) fn new(
        workload: &'a Workload,
        pools: &'a [Pool],
        cost: &'a dyn CostModel,
        memo: Memo,
    ) -> Self {
        let mut models: Vec<Load<'a>> = workload
            .models
            .iter()
            .map(|model| Load::of(model, workload))
            .collect();
        models.sort_by_key(|load| &load.model.name);
        let mut pools: Vec<&Pool> = pools.iter().collect();
        pools.sort_by_key(|pool| &pool.name);
        Self {
            cost,
            models,
            pools,
            stages: workload.stages.iter().map(|s| s.name.as_str()).collect(),
            priced: 0,
            reused: 0,
            memo,
            homes: BTreeMap::new(),
            offers: BTreeMap::new(),
        }
    }

    /// All pools, each with all numbers of devices that a set may get there.
    pub(super) fn places(&self) -> Vec<(usize, u32)> {
        let pools = self.pools.iter().enumerate();
        pools
            .flat_map(|(at, pool)| pool.allotments().into_iter().map(move |count| (at, count)))
            .collect()
    }

    /// All that the set can do best on these devices; nothing if it does not fit.
    pub(super) fn offers(
        &mut self,
        set: Members,
        pool: usize,
        devices: u32,
    ) -> Result<Rc<[Offer]>, MappingError> {
        let key = (set, pool, devices);
        if let Some(offers) = self.offers.get(&key) {
            self.reused += 1;
            return Ok(Rc::clone(offers));
        }
        let offers: Rc<[Offer]> = self.price_set(set, pool, devices)?.into();
        if self.memo == Memo::Kept {
            self.offers.insert(key, Rc::clone(&offers));
        }
        Ok(offers)
    }

    /// All ways for one model to live on these devices, whether they fit or not.
    pub(super) fn homes(
        &mut self,
        model: usize,
        pool: usize,
        devices: u32,
    ) -> Result<Rc<[Home]>, MappingError> {
        let key = (model, pool, devices);
        if let Some(homes) = self.homes.get(&key) {
            self.reused += 1;
            return Ok(Rc::clone(homes));
        }
        let homes: Rc<[Home]> = self.price_model(model, pool, devices)?.into();
        if self.memo == Memo::Kept {
            self.homes.insert(key, Rc::clone(&homes));
        }
        Ok(homes)
    }

    /// The price of generating for the model per stage, with so much free memory on each device.
    pub(super) fn generate(
        &mut self,
        model: usize,
        pool: usize,
        [resident, parallel]: [Degrees; 2],
        free_bytes: u64,
    ) -> Result<Vec<(usize, Generation)>, MappingError> {
        let (cost, pool, load) = (self.cost, self.pools[pool], &self.models[model]);
        self.priced += load.generates.len() as u64;
        let price = |&(stage, task): &(usize, &Task)| {
            let run = load.run(task, pool, parallel);
            let generation = cost.generation(&run, resident, free_bytes);
            check_price(generation.seconds, &run, self.stages[stage])?;
            Ok((stage, generation))
        };
        load.generates.iter().map(price).collect()
    }

    fn price_model(
        &mut self,
        model: usize,
        pool: usize,
        devices: u32,
    ) -> Result<Vec<Home>, MappingError> {
        let (cost, pool, load) = (self.cost, self.pools[pool], &self.models[model]);
        let ways = pool.ways(devices, load.model.layers);
        self.priced += (ways.len() * load.passes.len()) as u64;
        let home = |parallel: Degrees| {
            let mut seconds = vec![0.0; self.stages.len()];
            for &(stage, task) in &load.passes {
                let run = load.run(task, pool, parallel);
                let price = cost.seconds(&run);
                check_price(price, &run, self.stages[stage])?;
                seconds[stage] += price;
            }
            let least = |way: Degrees| {
                let runs = load
                    .generates
                    .iter()
                    .map(|&(_, task)| load.run(task, pool, way));
                runs.map(|run| cost.generation_bytes(&run, parallel)).max()
            };
            Ok(Home {
                parallel,
                bytes: cost.resident_bytes(load.model, load.role, parallel),
                seconds,
                generations: parallel
                    .while_generating()
                    .into_iter()
                    .filter_map(|way| Some((way, least(way)?)))
                    .collect(),
            })
        };
        ways.into_iter().map(home).collect()
    }

    fn price_set(
        &mut self,
        set: Members,
        pool: usize,
        devices: u32,
    ) -> Result<Vec<Offer>, MappingError> {
        let usable = self.cost.usable_bytes(&self.pools[pool].device);
        let mut offers = vec![Offer {
            seconds: vec![0.0; self.stages.len()],
            bytes: 0,
            choices: Vec::new(),
        }];
        // Those that generate come last: what they hold and how they are spread has a bearing on
        // generation, so their offers can't be compared before that is priced.
        let (generators, others): (Vec<usize>, Vec<usize>) =
            members(set).partition(|&model| self.models[model].generates());
        for &model in &others {
            offers = best(join(
                &offers,
                model,
                &self.homes(model, pool, devices)?,
                usable,
            ));
        }
        for &model in &generators {
            offers = join(&offers, model, &self.homes(model, pool, devices)?, usable);
        }
        for (at, &model) in (others.len()..).zip(&generators) {
            let homes = self.homes(model, pool, devices)?;
            let mut next = Vec::new();
            for offer in &offers {
                next.append(&mut self.with_generation(offer, at, pool, &homes)?);
            }
            offers = next;
        }
        Ok(best_in_time(offers))
    }

    /// The offer with the best ways in which the model of one choice can generate in the memory
    /// that all leave.
    fn with_generation(
        &mut self,
        offer: &Offer,
        at: usize,
        pool: usize,
        homes: &[Home],
    ) -> Result<Vec<Offer>, MappingError> {
        let free = self.cost.usable_bytes(&self.pools[pool].device) - offer.bytes;
        let Choice { model, home, .. } = offer.choices[at];
        let Home {
            parallel: resident,
            generations,
            ..
        } = &homes[home];
        let mut ways = Vec::new();
        for &(parallel, _) in generations.iter().filter(|&&(_, least)| least <= free) {
            let mut way = offer.clone();
            way.choices[at].generation = Some(parallel);
            for (stage, generation) in self.generate(model, pool, [*resident, parallel], free)? {
                way.seconds[stage] += generation.seconds;
                way.choices[at].seconds[stage] += generation.seconds;
            }
            ways.push(way);
        }
        Ok(best_in_time(ways))
    }
}

impl<'a> Load<'a> {
    fn of(model: &'a Model, workload: &'a Workload) -> Self {
        let stages = workload.stages.iter().enumerate();
        let tasks = stages.flat_map(|(at, stage)| stage.tasks.iter().map(move |task| (at, task)));
        let own = tasks.filter(|(_, task)| task.model == model.name);
        let (generates, passes): (Vec<_>, Vec<_>) =
            own.partition(|(_, task)| task.work == Work::Generate);
        let trains = |(_, task): &(usize, &Task)| matches!(task.work, Work::Train { .. });
        Self {
            model,
            role: match passes.iter().any(trains) {
                true => Role::Trained,
                false => Role::Frozen,
            },
            passes,
            generates,
        }
    }

    pub(super) fn generates(&self) -> bool {
        !self.generates.is_empty()
    }

    fn run<'r>(&'r self, task: &'r Task, pool: &'r Pool, parallel: Degrees) -> Run<'r> {
        Run {
            model: self.model,
            task,
            pool,
            parallel,
        }
    }
}

impl Home {
    /// Least bytes of each device with which the model can do all its work.
    pub(super) fn least_bytes(&self) -> u64 {
        let generation = self.generations.iter().map(|&(_, least)| least).min();
        self.bytes.saturating_add(generation.unwrap_or(0))
    }
}

/// The models of a set, in order.
pub(super) fn members(set: Members) -> impl Iterator<Item = usize> {
    (0..Members::BITS as usize).filter(move |&model| set & (1 << model) != 0)
}

/// Each offer with each home of one more model, where both fit.
fn join(offers: &[Offer], model: usize, homes: &[Home], usable: u64) -> Vec<Offer> {
    let mut found = Vec::new();
    for offer in offers {
        for (at, home) in homes.iter().enumerate() {
            let bytes = offer.bytes.saturating_add(home.bytes);
            if bytes > usable {
                continue;
            }
            let mut offer = offer.clone();
            offer.bytes = bytes;
            offer.choices.push(Choice {
                model,
                home: at,
                bytes: home.bytes,
                parallel: home.parallel,
                generation: None,
                seconds: home.seconds.clone(),
            });
            for (sum, more) in offer.seconds.iter_mut().zip(&home.seconds) {
                *sum += more;
            }
            found.push(offer);
        }
    }
    found
}

/// Without offers that another one equals or betters in every stage and in memory.
fn best(offers: Vec<Offer>) -> Vec<Offer> {
    without_worse(offers, |a, b| a.bytes <= b.bytes && no_slower(a, b))
}

/// Without offers that another one equals or betters in every stage.
fn best_in_time(offers: Vec<Offer>) -> Vec<Offer> {
    without_worse(offers, no_slower)
}

/// Sorted by their sum, an offer can only be beaten by one before it. Of equals the one with less
/// memory stays, then the one with fewer shards, which was found first.
fn without_worse(mut offers: Vec<Offer>, beats: impl Fn(&Offer, &Offer) -> bool) -> Vec<Offer> {
    offers.sort_by(|a, b| by_sum(a, b).then(a.bytes.cmp(&b.bytes)));
    let mut kept: Vec<Offer> = Vec::new();
    for offer in offers {
        if !kept.iter().any(|other| beats(other, &offer)) {
            kept.push(offer);
        }
    }
    kept
}

fn by_sum(a: &Offer, b: &Offer) -> Ordering {
    let sum = |offer: &Offer| offer.seconds.iter().sum::<f64>();
    sum(a).total_cmp(&sum(b))
}

fn no_slower(a: &Offer, b: &Offer) -> bool {
    a.seconds.iter().zip(&b.seconds).all(|(a, b)| a <= b)
}

fn check_price(value: f64, run: &Run<'_>, stage: &str) -> Result<(), MappingError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(MappingError::Price {
        model: run.model.name.clone(),
        stage: stage.to_owned(),
        parallel: run.parallel,
        pool: run.pool.name.clone(),
        value,
    })
}

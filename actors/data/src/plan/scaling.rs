//! When a source gets more loaders or fewer, which loaders these are, and which cells each has.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::sample::SourceNumber;

use super::cell::CellName;
use super::partition::LoaderCaps;

/// When loaders are added and taken away. The defaults are this project's; the thresholds of
/// OVERLORD (arXiv 2504.09844) are not published.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields, default)]
pub struct ScalingSpec {
    /// Over so many steps what was drawn is averaged, with weights that fall off exponentially.
    pub mean_steps: u32,
    /// Steps from one look at the averages to the next.
    pub window_steps: u32,
    /// More loaders above this share of what there is,
    pub up_above: f64,
    /// after so many looks.
    pub up_windows: u32,
    /// Fewer below this share,
    pub down_below: f64,
    /// after so many looks.
    pub down_windows: u32,
    /// The share that is aimed at. At least half of `up_above`, and from there no change leads
    /// straight to another.
    pub aim: f64,
    /// Number of steps that a loader takes until it has samples: what the mixture will want within
    /// them is acted on at once.
    pub lead_steps: u32,
    /// The most loaders of a source.
    pub shards_max: u32,
}

impl Default for ScalingSpec {
    fn default() -> Self {
        Self {
            mean_steps: 50,
            window_steps: 10,
            up_above: 0.8,
            up_windows: 3,
            down_below: 0.4,
            down_windows: 10,
            aim: 0.6,
            lead_steps: 50,
            shards_max: 64,
        }
    }
}

/// A source whose loaders change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Reshard {
    /// The source.
    pub source: SourceNumber,
    /// Number of loaders that it has from then on.
    pub shards: u32,
}

/// The scaling of all sources: told what each step drew and what the mixture will want.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
pub struct Scaling {
    spec: ScalingSpec,
    sources: Vec<Scaled>,
    steps: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
struct Scaled {
    /// Samples in a step that one loader gives; nothing is changed before that is known.
    capacity: Option<f64>,
    shards: u32,
    mean: Option<f64>,
    high: u32,
    low: u32,
}

impl Scaling {
    /// Of sources that begin with so many loaders, each of which gives so many samples in the time
    /// of a step, where that is known.
    #[must_use]
    pub fn new(spec: ScalingSpec, sources: &[(u32, Option<f64>)]) -> Self {
        let scaled = |(shards, capacity): &(u32, Option<f64>)| Scaled {
            capacity: *capacity,
            shards: (*shards).max(1),
            mean: None,
            high: 0,
            low: 0,
        };
        Self {
            spec,
            sources: sources.iter().map(scaled).collect(),
            steps: 0,
        }
    }

    /// Takes in the samples that a loader gives of each source in the time of a step, where that
    /// was measured.
    pub fn measure(&mut self, capacities: &[Option<f64>]) {
        for (source, capacity) in self.sources.iter_mut().zip(capacities) {
            source.capacity = capacity.or(source.capacity);
        }
    }

    /// Number of loaders of each source.
    #[must_use]
    pub fn shards(&self) -> Vec<u32> {
        self.sources.iter().map(|source| source.shards).collect()
    }

    /// After a step: `drawn` samples of each source were in it, and the mixture wants `coming` at
    /// most in any step of the lead (see [`super::Planning::coming`]).
    pub fn step(&mut self, drawn: &[u32], coming: &[f64]) -> Vec<Reshard> {
        self.steps += 1;
        let window = u64::from(self.spec.window_steps.max(1));
        let look = self.steps.is_multiple_of(window);
        let mut changes = vec![];
        for (at, source) in self.sources.iter_mut().enumerate() {
            let drawn = drawn.get(at).copied().map_or(0.0, f64::from);
            let coming = coming.get(at).copied().unwrap_or(0.0);
            if source.step(&self.spec, drawn, coming, look) {
                changes.push(Reshard {
                    source: SourceNumber(at as u16),
                    shards: source.shards,
                });
            }
        }
        changes
    }
}

impl Scaled {
    /// Takes in a step. Returns true where the number of loaders has changed.
    fn step(&mut self, spec: &ScalingSpec, drawn: f64, coming: f64, look: bool) -> bool {
        let alpha = 2.0 / (f64::from(spec.mean_steps) + 1.0);
        let mean = self
            .mean
            .map_or(drawn, |mean| mean + alpha * (drawn - mean));
        self.mean = Some(mean);
        let Some(capacity) = self.capacity else {
            return false;
        };
        let capacity = capacity.max(1e-9);
        let (seen, known) = (mean / capacity, coming / capacity);
        let demand = seen.max(known);
        let has = f64::from(self.shards);
        if look {
            let is_high = seen > spec.up_above * has;
            let is_low = demand < spec.down_below * has;
            self.high = if is_high { self.high + 1 } else { 0 };
            self.low = if is_low { self.low + 1 } else { 0 };
        }
        // What is known to come needs no second look.
        let up = known > spec.up_above * has || self.high >= spec.up_windows;
        let down = self.low >= spec.down_windows;
        let aimed = (demand / spec.aim)
            .ceil()
            .clamp(1.0, f64::from(spec.shards_max)) as u32;
        let changes = (up && aimed > self.shards) || (down && aimed < self.shards);
        if changes {
            (self.shards, self.high, self.low) = (aimed, 0, 0);
        }
        changes
    }
}

/// Which loader of a source has which cell.
///
/// The cells of a pass go around the loaders, from a stated cell on around others. The order of a
/// source does not depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Dealing {
    /// From which epoch and cell on they go around which loaders, in ascending order.
    from: Vec<(u32, u32, Vec<u32>)>,
}

impl Dealing {
    /// All cells around these loaders, of which there is at least one.
    #[must_use]
    pub fn around(loaders: Vec<u32>) -> Self {
        Self {
            from: vec![(0, 0, loaders)],
        }
    }

    /// From this cell on around these loaders. What was said of later cells is void.
    pub fn redeal(&mut self, from: CellName, loaders: Vec<u32>) {
        self.from
            .retain(|(epoch, cell, _)| (*epoch, *cell) < (from.epoch, from.cell));
        if self.from.last().is_none_or(|(.., last)| *last != loaders) {
            self.from.push((from.epoch, from.cell, loaders));
        }
    }

    /// The loader that has the cell.
    #[must_use]
    pub fn loader(&self, cell: CellName) -> u32 {
        let before = |from: &(u32, u32, Vec<u32>)| (from.0, from.1) <= (cell.epoch, cell.cell);
        let at = self.from.partition_point(before).saturating_sub(1);
        let loaders = &self.from[at].2;
        loaders[cell.cell as usize % loaders.len()]
    }

    /// All loaders that have any cell from this one on: the others may end.
    #[must_use]
    pub fn loaders_from(&self, cell: CellName) -> BTreeSet<u32> {
        let before = |from: &(u32, u32, Vec<u32>)| (from.0, from.1) <= (cell.epoch, cell.cell);
        let at = self.from.partition_point(before).saturating_sub(1);
        let all = self.from[at..].iter().flat_map(|(.., loaders)| loaders);
        all.copied().collect()
    }

    /// Forgets how cells before this one were dealt.
    pub fn forget(&mut self, below: CellName) {
        let before = |from: &(u32, u32, Vec<u32>)| (from.0, from.1) <= (below.epoch, below.cell);
        let at = self.from.partition_point(before);
        self.from.drain(..at.saturating_sub(1));
    }
}

/// The loaders of each source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Roster {
    /// By source, in the order in which cells go around them.
    sources: Vec<Vec<u32>>,
}

impl Roster {
    /// These loaders of each source.
    #[must_use]
    pub fn new(sources: Vec<Vec<u32>>) -> Self {
        Self { sources }
    }

    /// The loaders of each source.
    #[must_use]
    pub fn sources(&self) -> &[Vec<u32>] {
        &self.sources
    }

    /// All loaders that have a source.
    #[must_use]
    pub fn loaders(&self) -> BTreeSet<u32> {
        self.sources.iter().flatten().copied().collect()
    }

    /// The threads that a loader keeps busy, where each source keeps so many busy in all.
    #[must_use]
    pub fn load(&self, loader: u32, busy: &[f64]) -> f64 {
        let own = self.sources.iter().zip(busy);
        own.filter(|(loaders, _)| loaders.contains(&loader))
            .map(|(loaders, busy)| busy / loaders.len() as f64)
            .sum()
    }

    /// Gives a source another number of loaders, at least one. It keeps those that it has as far as
    /// they are wanted, those with other sources first, since the others can end. Where it needs
    /// more, those with room come first, the least busy in front.
    pub fn reshard(&mut self, source: usize, shards: u32, busy: &[f64], caps: &LoaderCaps) {
        let shards = shards.max(1) as usize;
        while self.sources[source].len() > shards {
            let alone = |loader: u32| {
                let mut others = self.sources.iter().enumerate();
                !others.any(|(at, loaders)| at != source && loaders.contains(&loader))
            };
            let own = &self.sources[source];
            let last_alone = own.iter().rposition(|loader| alone(*loader));
            let at = last_alone.unwrap_or(own.len() - 1);
            self.sources[source].remove(at);
        }
        while self.sources[source].len() < shards {
            let share = busy.get(source).copied().unwrap_or(0.0) / shards as f64;
            let loader = self.with_room(share, busy, caps, &self.sources[source]);
            self.sources[source].push(loader);
        }
    }

    /// Has loaders that are busier than they may be give sources away, until none of them is that
    /// can: one that has a single source is helped by more loaders of it alone.
    pub fn relieve(&mut self, busy: &[f64], caps: &LoaderCaps) {
        let most = f64::from(caps.threads);
        for loader in self.loaders() {
            while self.load(loader, busy) > most {
                let share = |at: usize| {
                    busy.get(at).copied().unwrap_or(0.0) / self.sources[at].len() as f64
                };
                let own: Vec<usize> = (0..self.sources.len())
                    .filter(|at| self.sources[*at].contains(&loader))
                    .collect();
                let lightest = own
                    .iter()
                    .copied()
                    .min_by(|a, b| share(*a).total_cmp(&share(*b)));
                let Some(source) = lightest.filter(|_| own.len() > 1) else {
                    break;
                };
                let to = self.with_room(share(source), busy, caps, &self.sources[source]);
                for other in &mut self.sources[source] {
                    if *other == loader {
                        *other = to;
                    }
                }
            }
        }
    }

    /// The least busy loader that has room for so many threads and is none of these; another where
    /// there is none.
    fn with_room(&self, share: f64, busy: &[f64], caps: &LoaderCaps, but: &[u32]) -> u32 {
        let all = self.loaders();
        let room = f64::from(caps.threads) * caps.fill;
        let loads = all
            .iter()
            .filter(|loader| !but.contains(loader))
            .map(|loader| (self.load(*loader, busy), *loader))
            .filter(|(load, _)| load + share <= room);
        let least = loads.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let unused = || (0..).find(|loader| !all.contains(loader)).unwrap_or(0);
        least.map_or_else(unused, |(_, loader)| loader)
    }
}

/// The sight of a data plane at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Samples of each source in each step that was planned since the last look.
    pub drawn: Vec<Vec<u32>>,
    /// The most samples that any step of the lead will want of each source.
    pub coming: Vec<f64>,
    /// Seconds of a thread that a sample of each source takes, where that was measured.
    pub work_seconds: Vec<Option<f64>>,
    /// Seconds that a step takes, where that was measured.
    pub step_seconds: Option<f64>,
}

/// Decides which loaders each source has while a run goes on.
#[derive(Clone, Debug)]
pub struct Scaler {
    spec: ScalingSpec,
    caps: LoaderCaps,
    scaling: Scaling,
    roster: Roster,
    work_seconds: Vec<Option<f64>>,
    step_seconds: f64,
}

impl Scaler {
    /// Begins with these loaders. A step takes so long until it is measured.
    #[must_use]
    pub fn new(spec: ScalingSpec, caps: LoaderCaps, roster: Roster, step_seconds: f64) -> Self {
        let sources = roster.sources().iter();
        let sources: Vec<_> = sources.map(|it| (it.len() as u32, None)).collect();
        Self {
            scaling: Scaling::new(spec, &sources),
            work_seconds: vec![None; sources.len()],
            spec,
            caps,
            roster,
            step_seconds,
        }
    }

    /// The steps within which what is coming is acted on.
    #[must_use]
    pub const fn lead_steps(&self) -> u32 {
        self.spec.lead_steps
    }

    /// The loaders of each source.
    #[must_use]
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The sources whose loaders change, after what is seen.
    pub fn look(&mut self, look: &Look) -> Vec<SourceNumber> {
        self.step_seconds = look.step_seconds.unwrap_or(self.step_seconds);
        for (known, seen) in self.work_seconds.iter_mut().zip(&look.work_seconds) {
            *known = seen.or(*known);
        }
        let gives = |work: &Option<f64>| {
            let threads = f64::from(self.caps.threads);
            work.map(|work| threads * self.step_seconds / work.max(1e-9))
        };
        let capacities: Vec<_> = self.work_seconds.iter().map(gives).collect();
        self.scaling.measure(&capacities);
        let before = self.roster.clone();
        let mut wanted = vec![];
        for drawn in &look.drawn {
            wanted.extend(self.scaling.step(drawn, &look.coming));
        }
        let busy = self.busy(look);
        for Reshard { source, shards } in wanted {
            let source = usize::from(source.0);
            self.roster.reshard(source, shards, &busy, &self.caps);
        }
        if !look.drawn.is_empty() {
            self.roster.relieve(&busy, &self.caps);
        }
        let sources = before.sources().iter().zip(self.roster.sources());
        let changed = sources.enumerate().filter(|(_, (old, new))| old != new);
        changed.map(|(at, _)| SourceNumber(at as u16)).collect()
    }

    /// Threads that each source keeps busy: with what was drawn, or will be where that is more.
    fn busy(&self, look: &Look) -> Vec<f64> {
        let steps = look.drawn.len().max(1) as f64;
        let sources = self.work_seconds.iter().enumerate();
        let busy = sources.map(|(at, work)| {
            let drawn = look
                .drawn
                .iter()
                .filter_map(|step| step.get(at))
                .sum::<u32>();
            let coming = look.coming.get(at).copied().unwrap_or(0.0);
            let samples = (f64::from(drawn) / steps).max(coming);
            samples * work.unwrap_or(0.0) / self.step_seconds.max(1e-9)
        });
        busy.collect()
    }
}

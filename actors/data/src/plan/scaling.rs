//! When a source gets more loaders or fewer, and which cells each has.

use serde::{Deserialize, Serialize};

use crate::sample::SourceNumber;

use super::cell::CellName;

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
    /// How many steps a loader takes until it has samples: what the mixture will want within them
    /// is acted on at once.
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
    /// How many loaders it has from then on.
    pub shards: u32,
    /// From this cell on cells are dealt to them. Those before stay with whom they were dealt to.
    pub from: CellName,
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
    /// Samples in a step that one loader gives.
    capacity: f64,
    shards: u32,
    mean: Option<f64>,
    high: u32,
    low: u32,
}

impl Scaling {
    /// Of sources that begin with so many loaders, each of which gives so many samples in the time
    /// of a step.
    #[must_use]
    pub fn new(spec: ScalingSpec, sources: &[(u32, f64)]) -> Self {
        let scaled = |(shards, capacity): &(u32, f64)| Scaled {
            capacity: capacity.max(1e-9),
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

    /// How many loaders each source has.
    #[must_use]
    pub fn shards(&self) -> Vec<u32> {
        self.sources.iter().map(|source| source.shards).collect()
    }

    /// After a step: `drawn` samples of each source were in it, the mixture wants `coming` at most
    /// in any step of the lead (see [`super::Planning::coming`]), and from the cells `from` on
    /// nothing was asked for (see [`super::Planning::frontier`]).
    pub fn step(&mut self, drawn: &[u32], coming: &[f64], from: &[CellName]) -> Vec<Reshard> {
        self.steps += 1;
        let window = u64::from(self.spec.window_steps.max(1));
        let look = self.steps.is_multiple_of(window);
        let mut changes = vec![];
        for (at, source) in self.sources.iter_mut().enumerate() {
            let drawn = drawn.get(at).copied().map_or(0.0, f64::from);
            let Some(from) = from.get(at) else { continue };
            let coming = coming.get(at).copied().unwrap_or(0.0);
            if source.step(&self.spec, drawn, coming, look) {
                changes.push(Reshard {
                    source: from.source,
                    shards: source.shards,
                    from: *from,
                });
            }
        }
        changes
    }
}

impl Scaled {
    /// Whether the number of loaders has changed.
    fn step(&mut self, spec: &ScalingSpec, drawn: f64, coming: f64, look: bool) -> bool {
        let alpha = 2.0 / (f64::from(spec.mean_steps) + 1.0);
        let mean = self
            .mean
            .map_or(drawn, |mean| mean + alpha * (drawn - mean));
        self.mean = Some(mean);
        let (seen, known) = (mean / self.capacity, coming / self.capacity);
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
/// Cells are dealt by `cell % shards`, from a stated cell on by another number of shards. The order
/// of a source does not depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Dealing {
    /// From which epoch and cell on there are so many shards, in ascending order.
    from: Vec<(u32, u32, u32)>,
}

impl Dealing {
    /// All cells over so many shards, at least one.
    #[must_use]
    pub fn over(shards: u32) -> Self {
        Self {
            from: vec![(0, 0, shards.max(1))],
        }
    }

    /// From this cell on over so many shards. What was said of later cells is void.
    pub fn reshard(&mut self, from: CellName, shards: u32) {
        self.from
            .retain(|(epoch, cell, _)| (*epoch, *cell) < (from.epoch, from.cell));
        self.from.push((from.epoch, from.cell, shards.max(1)));
    }

    /// The shard that has the cell.
    #[must_use]
    pub fn shard(&self, cell: CellName) -> u32 {
        let before = |from: &(u32, u32, u32)| (from.0, from.1) <= (cell.epoch, cell.cell);
        let at = self.from.partition_point(before);
        let shards = at.checked_sub(1).map_or(1, |at| self.from[at].2);
        cell.cell % shards
    }

    /// The most shards that any cell from this one on is dealt over: loaders of higher numbers may
    /// end.
    #[must_use]
    pub fn shards_from(&self, cell: CellName) -> u32 {
        let after = |from: &&(u32, u32, u32)| (from.0, from.1) > (cell.epoch, cell.cell);
        let later = self.from.iter().filter(after).map(|from| from.2).max();
        let before = self.from.iter().rev().find(|from| !after(from));
        before.map_or(1, |from| from.2).max(later.unwrap_or(1))
    }

    /// Forgets how cells before this one were dealt.
    pub fn forget(&mut self, below: CellName) {
        let before = |from: &(u32, u32, u32)| (from.0, from.1) <= (below.epoch, below.cell);
        let at = self.from.partition_point(before);
        self.from.drain(..at.saturating_sub(1));
    }
}

//! Shards of a model's parameters, of which each rank keeps one (fully sharded data parallelism: ZeRO, arXiv
//! [1910.02054](https://arxiv.org/abs/1910.02054), stages 2 and 3).
//!
//! The tensors of a layer that the same ranks have make up a set. It lies in one [buffer](GroupBuffer), of which each
//! of these ranks keeps an equal shard; tensors are cut between rows. A [pass](super::sharded::ShardPass) gathers the sets of a layer
//! before its operations, and adds up their gradients over the ranks behind them:
//!
//! ```text
//!  kept                  forward                         backward
//!  rank 0 |e|0|1|h|      e -> 0 -> 1 -> h                h -> 1 -> 0 -> e
//!  rank 1 |e|0|1|h|      gathered one after the other    gathered again; gradients go back to their shards
//! ```
//!
//! What every rank has whole is kept by all of them, parts of matrices by those that have the same part, and experts by
//! those that have the same ones. So one reduction adds up all addends of a gradient, along whatever dimensions of the
//! mesh these are.

use std::iter::Sum;
use std::ops::{Add, Range};
use std::time::Duration;

use odeon_gpu::{Layout, Param, STATES_ALIGN};
use odeon_sharding::group_buffer::{GroupBuffer, GroupTensor};

use super::rank::{PartRanges, RankOf};

/// The place of a rank among those that keep shards of the same tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardPlace {
    /// Among those that keep what every rank has, where matrices are shared: all.
    pub everywhere: RankOf,
    /// Among those that keep the same part of each matrix.
    pub data: RankOf,
    /// Among those that keep the same experts, where these are shared.
    pub experts: RankOf,
}

impl ShardPlace {
    /// The place of a rank among so many that have all tensors in common.
    #[must_use]
    pub const fn of(rank: RankOf) -> Self {
        Self {
            everywhere: RankOf::ALONE,
            data: rank,
            experts: RankOf::ALONE,
        }
    }

    /// Its place among those of a kind.
    const fn among(&self, kind: SetKind) -> RankOf {
        match kind {
            SetKind::Everywhere => self.everywhere,
            SetKind::Data => self.data,
            SetKind::Experts => self.experts,
        }
    }
}

/// Bytes of shards that were copied before and behind the collectives which move them; what these write themselves is
/// not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCopies {
    /// Around gathers of parameters.
    pub gathers: usize,
    /// Around sums of gradients.
    pub sums: usize,
}

/// The time in which shards were gathered and added up, beside passes or while these waited, and how much of it that was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardTime {
    /// From the begin of each gather and sum to its end: the wait for ranks that are late is in it.
    pub moving: Duration,
    /// For which passes waited for one.
    pub waited: Duration,
}

impl ShardTime {
    /// The share of the time of gathers and sums in which passes went on; 0 where there were none.
    #[must_use]
    pub fn hidden_share(self) -> f64 {
        match self.moving.is_zero() {
            true => 0.0,
            // A pass hears a little later that a move has ended.
            false => (1.0 - self.waited.as_secs_f64() / self.moving.as_secs_f64()).max(0.0),
        }
    }
}

impl Add for ShardTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            moving: self.moving + other.moving,
            waited: self.waited + other.waited,
        }
    }
}

impl Sum for ShardTime {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// Tensors by the ranks that have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetKind {
    /// All have them.
    Everywhere,
    /// Those with the same part of each matrix.
    Data,
    /// Those with the same experts.
    Experts,
}

impl SetKind {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Everywhere, Self::Data, Self::Experts];

    /// Those of this kind among the flat parameters.
    fn of(self, ranges: &PartRanges) -> &[Range<usize>] {
        match self {
            Self::Everywhere => &ranges.everywhere,
            Self::Data => &ranges.data,
            Self::Experts => &ranges.experts,
        }
    }
}

/// The shard of a model, or of a part of one, that a rank keeps.
#[derive(Clone, Debug)]
pub struct ModelShard {
    place: ShardPlace,
    pub(super) sets: Vec<ShardSet>,
    /// In the order of the flat parameters.
    runs: Vec<Run>,
    layout: Layout,
    /// The flat parameters of each tensor that this rank keeps.
    held: Vec<Range<usize>>,
}

/// Tensors of a unit that the same ranks have, in one buffer.
#[derive(Clone, Debug)]
pub(super) struct ShardSet {
    pub(super) kind: SetKind,
    /// The layer, or what is before or behind all of them.
    pub(super) unit: usize,
    pub(super) buffer: GroupBuffer,
    /// Where this rank's shard of it begins, among all that it keeps.
    pub(super) at: usize,
}

/// Neighbours among the flat parameters which stay neighbours in a set's buffer.
#[derive(Clone, Debug)]
struct Run {
    flat: Range<usize>,
    set: usize,
    /// Where it begins in the buffer.
    at: usize,
}

/// A run before it has a place.
struct Piece {
    kind: SetKind,
    unit: usize,
    flat: Range<usize>,
    /// Length of a row: that of a matrix, or one number.
    row: usize,
    /// The rows of each tensor, in their order.
    rows: Vec<usize>,
    name: String,
}

impl Piece {
    /// The rows of the shortest blocks between which no tensor of it is cut but between blocks of so many of its own.
    fn block(&self, rows: usize) -> usize {
        let all: usize = self.rows.iter().sum();
        let is_between = |at: usize| {
            let mut begin = 0;
            let of = self.rows.iter().find(|own| {
                begin += **own;
                at < begin
            });
            of.is_none_or(|own| (at - (begin - own)).is_multiple_of(rows))
        };
        let fits = |block: &usize| (*block..all).step_by(*block).all(is_between);
        (1..all).find(fits).unwrap_or(all)
    }
}

/// The unit of a tensor: the embeddings, a layer, or what is behind all layers.
fn unit_of(name: &str, layers: usize) -> usize {
    let of_layer = name.strip_prefix("model.layers.");
    let number = of_layer.and_then(|rest| rest.split_once('.'));
    match number.and_then(|(number, _)| number.parse::<usize>().ok()) {
        Some(layer) => 1 + layer,
        None if name.starts_with("model.embed") => 0,
        None => 1 + layers,
    }
}

/// Tensors as runs: neighbours of one kind and unit whose rows are as long.
fn pieces(layout: &Layout, ranges: &PartRanges, layers: usize) -> Vec<Piece> {
    let kind_of = |range: &Range<usize>| {
        let has = |kind: &SetKind| {
            let mut own = kind.of(ranges).iter();
            own.any(|it| it.start <= range.start && range.end <= it.end)
        };
        let found = SetKind::ALL.into_iter().find(has);
        found.expect("every tensor is of some kind")
    };
    let mut pieces: Vec<Piece> = vec![];
    let there = layout.entries().iter().filter(|it| !it.range.is_empty());
    for entry in there {
        let (kind, unit) = (kind_of(&entry.range), unit_of(&entry.name, layers));
        let row = entry.shape.get(1).copied().unwrap_or(1);
        match pieces.last_mut() {
            Some(last)
                if (last.kind, last.unit, last.row) == (kind, unit, row)
                    && unit > 0
                    && last.flat.end == entry.range.start =>
            {
                last.flat.end = entry.range.end;
                last.rows.push(entry.range.len() / row);
            }
            _ => pieces.push(Piece {
                kind,
                unit,
                flat: entry.range.clone(),
                row,
                rows: vec![entry.range.len() / row],
                name: entry.name.clone(),
            }),
        }
    }
    pieces
}

impl ModelShard {
    /// That of a rank, of parameters that lie like this. Tensors are cut between blocks of so many rows.
    pub(crate) fn new(
        layout: &Layout,
        ranges: &PartRanges,
        layers: usize,
        (place, rows): (ShardPlace, usize),
    ) -> Self {
        let pieces = pieces(layout, ranges, layers);
        let mut shard = Self {
            place,
            sets: vec![],
            runs: vec![],
            layout: Layout::new(),
            held: vec![],
        };
        for unit in 0..layers + 2 {
            for kind in SetKind::ALL {
                let own = pieces
                    .iter()
                    .filter(|it| (it.unit, it.kind) == (unit, kind));
                // The first and the last rank of a pipeline cut an embedding that both have in the same way: learned
                // positions and what makes rows wider, which the first has alone, are a set of their own.
                let (positions, own): (Vec<_>, Vec<_>) =
                    own.partition(|it| it.unit == 0 && !it.name.starts_with("model.embed_tokens"));
                shard.add_set(kind, unit, &own, rows);
                shard.add_set(kind, unit, &positions, rows);
            }
        }
        shard.runs.sort_by_key(|run| run.flat.start);
        let entries = layout.entries().iter();
        shard.held = entries.map(|entry| shard.held_of(&entry.range)).collect();
        shard
    }

    /// Plans the buffer of some tensors, and notes what this rank keeps of each.
    fn add_set(&mut self, kind: SetKind, unit: usize, pieces: &[&Piece], rows_of_block: usize) {
        if pieces.is_empty() {
            return;
        }
        let tensor = |piece: &&Piece| {
            let (name, rows) = (&piece.name, piece.flat.len() / piece.row);
            GroupTensor::rows(name, rows, piece.row, piece.block(rows_of_block))
        };
        let rank = self.place.among(kind);
        let tensors = pieces.iter().map(tensor).collect();
        let buffer = GroupBuffer::plan(tensors, rank.ranks, STATES_ALIGN)
            .expect("tensors of a model that is in memory have a buffer");
        let (set, at) = (self.sets.len(), self.layout.len());
        let mut filled = 0;
        for held in buffer.held(rank.rank) {
            let row = pieces[held.tensor].row;
            self.pad(at + filled, at + held.at.start);
            let name = format!("{}.{set}", pieces[held.tensor].name);
            match row {
                1 => self.layout.push(name, &[held.at.len()]),
                row => self.layout.push(name, &[held.at.len() / row, row]),
            };
            filled = held.at.end;
        }
        self.pad(at + filled, at + buffer.shard_len());
        for (number, piece) in pieces.iter().enumerate() {
            let interval = buffer.interval(number).expect("a tensor of the group");
            self.runs.push(Run {
                flat: piece.flat.clone(),
                set,
                at: interval.start,
            });
        }
        self.sets.push(ShardSet {
            kind,
            unit,
            buffer,
            at,
        });
    }

    /// Elements that belong to no tensor.
    fn pad(&mut self, from: usize, to: usize) {
        if from < to {
            self.layout.push(format!("padding.{from}"), &[to - from]);
        }
    }

    fn run_of(&self, at: usize) -> &Run {
        let behind = self.runs.partition_point(|run| run.flat.start <= at);
        &self.runs[behind - 1]
    }

    /// The part of a tensor at this place among the flat parameters that this rank keeps, perhaps none.
    fn held_of(&self, tensor: &Range<usize>) -> Range<usize> {
        if tensor.is_empty() {
            return tensor.clone();
        }
        let kind = self.sets[self.run_of(tensor.start).set].kind;
        self.held_by(tensor, self.place.among(kind).rank)
    }

    /// The same of another rank of those that keep the tensor.
    fn held_by(&self, tensor: &Range<usize>, rank: usize) -> Range<usize> {
        let run = self.run_of(tensor.start);
        let len = self.sets[run.set].buffer.shard_len();
        let first = rank * len;
        // Shards as places among the flat parameters.
        let flat = |at: usize| (at + run.flat.start).saturating_sub(run.at);
        let own = flat(first)..flat(first + len);
        let start = own.start.clamp(tensor.start, tensor.end);
        start..own.end.clamp(start, tensor.end)
    }

    /// The flat parameters of a tensor, by its number in the layout, that this rank keeps: whole rows, one behind the
    /// other. None where it begins where it ends.
    #[must_use]
    pub fn held(&self, tensor: usize) -> Range<usize> {
        self.held[tensor].clone()
    }

    /// The ranks that keep a tensor at this place among the flat parameters, which of them this is, and what each of
    /// them keeps of it; `None` where it is empty.
    pub(crate) fn keepers(
        &self,
        tensor: &Range<usize>,
    ) -> Option<(SetKind, usize, Vec<Range<usize>>)> {
        if tensor.is_empty() {
            return None;
        }
        let kind = self.sets[self.run_of(tensor.start).set].kind;
        let RankOf { rank, ranks } = self.place.among(kind);
        let parts = (0..ranks).map(|rank| self.held_by(tensor, rank));
        Some((kind, rank, parts.collect()))
    }

    /// Where a flat parameter that this rank keeps lies among those.
    pub(crate) fn kept_at(&self, flat: usize) -> usize {
        let run = self.run_of(flat);
        let set = &self.sets[run.set];
        let in_buffer = run.at + flat - run.flat.start;
        let first = self.place.among(set.kind).rank * set.buffer.shard_len();
        set.at + in_buffer - first
    }

    /// Names, shapes and places of what this rank keeps, with what is padding.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The elements of all that it keeps which belong to no tensor, and those of the buffers of all ranks.
    #[must_use]
    pub fn padding(&self) -> usize {
        self.sets.iter().map(|set| set.buffer.padding()).sum()
    }

    /// The elements of the longest unit when it is gathered.
    #[must_use]
    pub fn longest_unit(&self) -> usize {
        self.longest(GroupBuffer::buffer_len)
    }

    /// Units, each of which is gathered at once.
    #[must_use]
    pub fn units(&self) -> usize {
        self.sets.iter().map(|set| set.unit + 1).max().unwrap_or(0)
    }

    /// The elements that this rank keeps of the unit of which it keeps most.
    #[must_use]
    pub fn longest_own(&self) -> usize {
        self.longest(GroupBuffer::shard_len)
    }

    /// The most that a unit has in its buffers.
    fn longest(&self, len: impl Fn(&GroupBuffer) -> usize) -> usize {
        let units = self.sets.iter().map(|set| set.unit);
        let of = |unit| {
            let own = self.sets.iter().filter(|set| set.unit == unit);
            own.map(|set| len(&set.buffer)).sum::<usize>()
        };
        units.map(of).max().unwrap_or_default()
    }

    /// The elements of all units when they are gathered.
    #[must_use]
    pub fn gathered(&self) -> usize {
        self.sets.iter().map(|set| set.buffer.buffer_len()).sum()
    }

    /// Its place.
    #[must_use]
    pub fn place(&self) -> ShardPlace {
        self.place
    }

    /// The sets of layers: where a backward pass is divided, their gradients come later.
    pub(crate) fn of_layers(&self, layers: usize) -> Vec<bool> {
        let units = self.sets.iter().map(|set| set.unit);
        units.map(|unit| (1..=layers).contains(&unit)).collect()
    }

    /// Number of sets.
    pub(crate) fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Flat parameters as those of a set's buffer.
    ///
    /// # Panics
    /// If they are not all of one run.
    pub(crate) fn param(&self, range: &Range<usize>) -> Param {
        let run = self.run_of(range.start);
        assert!(range.end <= run.flat.end, "tensors that one product reads");
        let begin = run.at + range.start - run.flat.start;
        Param::new(run.set, begin..begin + range.len())
    }

    /// Names of the tensors of a set, and their places in its buffer.
    pub(super) fn tensors_of<'a>(
        &'a self,
        set: usize,
        layout: &'a Layout,
    ) -> impl Iterator<Item = (&'a str, Range<usize>)> + Clone {
        let there = layout.entries().iter().filter(|it| !it.range.is_empty());
        there.filter_map(move |entry| {
            let run = self.run_of(entry.range.start);
            let begin = run.at + entry.range.start - run.flat.start;
            (run.set == set).then(|| (entry.name.as_str(), begin..begin + entry.range.len()))
        })
    }

    /// Puts what a rank keeps of flat parameters in its order.
    pub(super) fn cut(&self, flat: &[f32]) -> Vec<f32> {
        let mut kept = vec![0.0; self.layout.len()];
        for held in self.held.iter().filter(|held| !held.is_empty()) {
            let at = self.kept_at(held.start);
            kept[at..at + held.len()].copy_from_slice(&flat[held.clone()]);
        }
        kept
    }
}

#[cfg(test)]
mod tests;

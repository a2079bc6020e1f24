//! Random numbers of one device, bit for bit, on any mesh.
//!
//! Element `j` of the whole tensor is made of word `j mod 4` of `philox(seed, offset + j div 4)`, and a
//! draw of `N` elements moves the offset on by `ceil(N / 4)` on every rank, also on one that holds
//! nothing (arXiv 2509.07003, without the threads of a card, which that repeats). A number depends on its
//! word alone, never on its neighbours, so that no cut can part what belongs together.

use std::ops::Range;

use odeon_simd::philox;
use serde::{Deserialize, Serialize};

use crate::index::IndexRun;
use crate::normal::quantile;
use crate::{Placement, Sharding, ShardingError};

/// The state of a generator, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomStream {
    /// The key of all draws.
    pub seed: u64,
    /// The counter of the next draw. It begins anew behind 2^64 - 1.
    pub offset: u64,
}

/// The part of a tensor that one rank draws. Made once for each tensor, used in every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    tensor: String,
    runs: Vec<IndexRun>,
    /// Elements of the local part.
    len: usize,
    /// Counters that the whole tensor takes.
    counters: u64,
}

impl Drawing {
    /// The part of a rank. Ranks that hold copies draw the same numbers.
    ///
    /// # Errors
    /// [`ShardingError::DrawnAddends`] of a tensor that is partial: a random operation leaves it as
    /// [`Sharding::drawn`]. [`ShardingError::Mesh`]: there is no such rank.
    pub fn new(sharding: &Sharding, rank: usize) -> Result<Self, ShardingError> {
        let dims = sharding.mesh().dims().iter().zip(sharding.placements());
        for (dim, placement) in dims {
            if matches!(placement, Placement::Partial(_)) {
                return Err(ShardingError::DrawnAddends {
                    tensor: sharding.name().to_owned(),
                    placement: Box::new(placement.clone()),
                    along: dim.name.clone(),
                });
            }
        }
        let index = sharding.local(rank)?;
        Ok(Self {
            tensor: sharding.name().to_owned(),
            runs: index.runs().collect(),
            len: index.len(),
            counters: index.global_len().div_ceil(4) as u64,
        })
    }

    fn check(&self, has: usize) -> Result<(), ShardingError> {
        if has == self.len {
            return Ok(());
        }
        Err(ShardingError::Length {
            tensor: self.tensor.clone(),
            has,
            needs: self.len,
        })
    }

    /// Puts the word of each element to its local index. The generator is asked once for the four
    /// elements of a counter, as far as they are next to each other here.
    fn each_word(
        &self,
        mut generator: impl FnMut(usize) -> [u32; 4],
        mut put: impl FnMut(usize, u32),
    ) {
        let mut last: Option<(usize, [u32; 4])> = None;
        for run in &self.runs {
            let end = run.global + run.len;
            let (mut at, mut local) = (run.global, run.local);
            while at < end {
                let counter = at / 4;
                let words = match last {
                    Some((known, words)) if known == counter => words,
                    _ => generator(counter),
                };
                last = Some((counter, words));
                let count = (4 - at % 4).min(end - at);
                for word in &words[at % 4..at % 4 + count] {
                    put(local, *word);
                    local += 1;
                }
                at += count;
            }
        }
    }
}

impl RandomStream {
    /// The beginning of the numbers of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, offset: 0 }
    }

    /// Fills `out`, the local part, with numbers of `range`, all equally likely: the upper 24 bits of a
    /// word over 2^24, scaled in f64 and rounded to an f32 below the end of the range.
    ///
    /// # Errors
    /// [`ShardingError::Length`]; nothing was drawn.
    pub fn uniform(
        &mut self,
        drawing: &Drawing,
        range: Range<f32>,
        out: &mut [f32],
    ) -> Result<(), ShardingError> {
        let (low, high) = (f64::from(range.start), f64::from(range.end));
        let below = range.end.next_down();
        self.fill(drawing, out, |word| {
            let share = f64::from(word >> 8) / f64::from(1 << 24);
            let value = (low + (high - low) * share) as f32;
            value.min(below).max(range.start)
        })
    }

    /// Fills `out`, the local part, with numbers of a normal distribution: the quantile of
    /// `(word + 0.5) / 2^32` by Wichura's AS 241, in f64 and without functions of the system, so that
    /// all machines have the same bits. None lies further than 6.4 standard deviations from the mean.
    ///
    /// # Errors
    /// [`ShardingError::Length`]; nothing was drawn.
    pub fn normal(
        &mut self,
        drawing: &Drawing,
        mean: f32,
        deviation: f32,
        out: &mut [f32],
    ) -> Result<(), ShardingError> {
        let (mean, deviation) = (f64::from(mean), f64::from(deviation));
        self.fill(drawing, out, |word| {
            (mean + deviation * quantile(word)) as f32
        })
    }

    /// Fills `out`, the local part, with a mask of dropout: true for an element that is kept, which each
    /// is with this probability, in steps of 2^-32.
    ///
    /// # Errors
    /// [`ShardingError::Length`]; nothing was drawn.
    pub fn keep(
        &mut self,
        drawing: &Drawing,
        probability: f64,
        out: &mut [bool],
    ) -> Result<(), ShardingError> {
        let kept = (probability.clamp(0.0, 1.0) * 2f64.powi(32)).round() as u64;
        self.fill(drawing, out, |word| u64::from(word) < kept)
    }

    fn fill<T>(
        &mut self,
        drawing: &Drawing,
        out: &mut [T],
        made_of: impl Fn(u32) -> T,
    ) -> Result<(), ShardingError> {
        drawing.check(out.len())?;
        let (seed, offset) = (self.seed, self.offset);
        let generator = |counter| philox(seed, offset.wrapping_add(counter as u64).into());
        drawing.each_word(generator, |local, word| out[local] = made_of(word));
        self.offset = offset.wrapping_add(drawing.counters);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

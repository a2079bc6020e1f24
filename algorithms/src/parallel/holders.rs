//! Holders of each box, and filling a buffer from those who have it.

use std::collections::BTreeMap;

use super::{
    region::Region,
    shard::{Shard, Shards},
    transfer::{Origin, Transfer},
};

/// For each tensor the different boxes in order of their offsets, each with all that have it.
#[derive(Debug)]
pub(super) struct Holders {
    tensors: Vec<BTreeMap<Region, Vec<Holder>>>,
}

/// A rank that has a box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    /// The rank.
    pub(super) rank: usize,
    /// Where the box begins in its buffer.
    start_bytes: usize,
}

/// A part of a buffer that nobody can fill.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) tensor: usize,
    pub(super) region: Region,
}

impl Holders {
    /// Nobody has anything of a model with so many tensors.
    pub(super) fn new(tensors: usize) -> Self {
        Self {
            tensors: vec![BTreeMap::new(); tensors],
        }
    }

    /// A rank has these.
    pub(super) fn add(&mut self, rank: usize, shards: &Shards) {
        for shard in shards.as_slice() {
            let boxes = &mut self.tensors[shard.tensor];
            let holder = Holder {
                rank,
                start_bytes: shard.start_bytes,
            };
            match boxes.get_mut(&shard.region) {
                Some(holders) => holders.push(holder),
                None => {
                    boxes.insert(shard.region.clone(), vec![holder]);
                }
            }
        }
    }

    /// Fills each byte of `target` once: from `own` what is there, the rest from others. Where
    /// boxes of others overlap, the one with the lesser offsets comes first. `pick` chooses among
    /// those who have a box, and is told how many bytes are wanted.
    pub(super) fn fill(
        &self,
        own: &Shards,
        target: &Shards,
        mut pick: impl FnMut(&[Holder], usize) -> Option<Holder>,
    ) -> Result<Vec<Transfer>, Gap> {
        let mut transfers = vec![];
        for shard in target.as_slice() {
            let tensor = shard.tensor;
            let mut open = vec![shard.region.clone()];
            let mut gap = None;
            let mut push = |from, holding: &Shard, part: &Region| {
                transfers.push(Transfer {
                    tensor,
                    from,
                    source: holding.inside(part),
                    target: shard.inside(part),
                });
            };
            for holding in own.of(tensor) {
                take(&mut open, &holding.region, |part| {
                    push(Origin::Own, holding, part);
                });
            }
            for (region, holders) in &self.tensors[tensor] {
                if open.is_empty() {
                    break;
                }
                take(&mut open, region, |part| {
                    let bytes = part.elements() * shard.element_bytes;
                    let Some(holder) = pick(holders, bytes) else {
                        gap = Some(part.clone());
                        return;
                    };
                    let holding = Shard {
                        tensor,
                        region: region.clone(),
                        start_bytes: holder.start_bytes,
                        element_bytes: shard.element_bytes,
                    };
                    push(Origin::Rank(holder.rank), &holding, part);
                });
            }
            if let Some(region) = gap.or_else(|| open.pop()) {
                return Err(Gap { tensor, region });
            }
        }
        Ok(transfers)
    }
}

/// Takes from the boxes that are `open` all that `region` has of them.
fn take(open: &mut Vec<Region>, region: &Region, mut part: impl FnMut(&Region)) {
    let mut at = 0;
    while let Some(piece) = open.get(at) {
        match piece.intersection(region) {
            None => at += 1,
            Some(common) => {
                let rest = piece.without(&common);
                open.swap_remove(at);
                open.extend(rest);
                part(&common);
            }
        }
    }
}

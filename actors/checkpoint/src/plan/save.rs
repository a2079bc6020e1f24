//! Plan of a save: the rank that writes each box, where several ranks have it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use odeon_algorithms::parallel::{Region, Span};
use serde::{Deserialize, Serialize};

use super::census::Census;
use crate::local::{Local, LocalTensor, TensorName};

/// The boxes that each rank writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavePlan {
    /// By rank, in order.
    pub(crate) ranks: Vec<Vec<Item>>,
    /// Tensors that have no elements, so that nobody writes anything of them.
    pub(crate) empty: Vec<(TensorName, LocalTensor)>,
}

/// A box that a rank writes: a slice of a box that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Of which of the rank's tensors, by its number.
    pub tensor: usize,
    /// Which box of what it has of it.
    pub part: usize,
    /// Which slice of the box.
    pub slice: usize,
    /// Of how many.
    pub of: usize,
}

/// A box that a rank writes, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The tensor.
    pub name: TensorName,
    /// Of which of the rank's tensors, by its number.
    pub tensor: usize,
    /// Which box of the whole tensor.
    pub region: Region,
    /// At which byte of what the rank has of the tensor it begins.
    pub start: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// Why what ranks have is no state of a job. Nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PlanError {
    /// Two ranks mean different tensors by one name.
    #[error(
        "tensor `{name}`: rank {rank} has {found}, where rank {first} has {expected}; they cannot \
         be of one tensor"
    )]
    Disagree {
        /// The tensor.
        name: String,
        /// The rank that disagrees.
        rank: usize,
        /// Type and shape that it has.
        found: String,
        /// The rank that has named another type or shape before.
        first: usize,
        /// Type and shape that this one has.
        expected: String,
    },
    /// No rank has some part of a tensor.
    #[error("tensor `{name}`: no rank has {region}, so it would not be whole")]
    Gap {
        /// The tensor.
        name: String,
        /// The part.
        region: String,
    },
    /// A rank has said something impossible.
    #[error("rank {rank}: {detail}")]
    Impossible {
        /// The rank.
        rank: usize,
        /// The reason, in words.
        detail: String,
    },
}

/// A box, and who has it.
struct Holding<'a> {
    region: Region,
    bytes: usize,
    /// The kinds of ranks that have it, each with where it is in what these have.
    by: Vec<(usize, Held<'a>)>,
}

/// Which box of which tensor of a part of a census.
#[derive(Clone, Copy)]
struct Held<'a> {
    index: usize,
    box_index: usize,
    tensor: &'a LocalTensor,
}

/// Plans who writes what: each byte once. A box that one rank has is written by that rank. One
/// that several have is cut into slices of `slice_bytes` at most, and each goes, the largest first,
/// to the one that has the least to write, of several the lesser: worst fit, as in ByteCheckpoint
/// (arXiv 2407.20143), which does not cut. Boxes that overlap without being equal are all written.
///
/// # Errors
/// [`PlanError`] names the tensor at fault.
pub fn plan(census: &Census, slice_bytes: usize) -> Result<SavePlan, PlanError> {
    let members = members(census);
    check(census, &members)?;
    let (holdings, empty) = holdings(census, &members)?;
    let offsets = offsets(census);

    let place = |rank: usize, part: usize| census.ranks[rank].1.iter().position(|at| *at == part);
    let mut plan: Vec<Vec<Item>> = vec![vec![]; census.ranks.len()];
    let mut load = vec![0_usize; census.ranks.len()];
    // The slices that more than one rank has.
    let mut shared: Vec<(usize, usize, usize, usize)> = vec![];
    for (at, holding) in holdings.iter().enumerate() {
        let mut ranks = holding.by.iter().flat_map(|(part, _)| &members[*part]);
        let only = (ranks.next(), ranks.next());
        if let (Some(&rank), None) = only {
            let (part, held) = holding.by[0];
            let place = place(rank, part).expect("a member has the part");
            plan[rank].push(held.item(offsets[rank][place], 0, 1));
            load[rank] += holding.bytes;
            continue;
        }
        let rows = rows(&holding.region).map_or(1, |(_, span)| span.length);
        let of = holding.bytes.div_ceil(slice_bytes.max(1)).clamp(1, rows);
        for slice in 0..of {
            let bytes = slice_of(&holding.region, slice, of).elements();
            let bytes = bytes * holding.by[0].1.tensor.element_bytes();
            shared.push((bytes, at, slice, of));
        }
    }
    shared.sort_unstable_by_key(|(bytes, at, slice, _)| (Reverse(*bytes), *at, *slice));

    // For each kind of rank, those with the least to write first.
    let mut queues: Vec<BTreeSet<(usize, usize)>> = members
        .iter()
        .map(|ranks| ranks.iter().map(|rank| (load[*rank], *rank)).collect())
        .collect();
    for (bytes, at, slice, of) in shared {
        let least = holdings[at].by.iter().filter_map(|(part, held)| {
            let (load, rank) = queues[*part].first()?;
            Some((*load, *rank, *part, *held))
        });
        let (_, rank, part, held) = least
            .min_by_key(|(load, rank, ..)| (*load, *rank))
            .expect("somebody has it");
        let place = place(rank, part).expect("a member has the part");
        plan[rank].push(held.item(offsets[rank][place], slice, of));
        for part in &census.ranks[rank].1 {
            queues[*part].remove(&(load[rank], rank));
            queues[*part].insert((load[rank] + bytes, rank));
        }
        load[rank] += bytes;
    }
    for items in &mut plan {
        items.sort_unstable();
    }
    Ok(SavePlan { ranks: plan, empty })
}

impl SavePlan {
    /// Boxes that a rank writes; none for a rank that is not there.
    #[must_use]
    pub fn of(&self, rank: usize) -> &[Item] {
        self.ranks.get(rank).map_or(&[], Vec::as_slice)
    }
}

impl Item {
    /// Where the bytes are that are written, as the rank has them; `None` when it has no such box.
    #[must_use]
    pub fn write(&self, local: &Local) -> Option<Write> {
        let (role, state, tensor) = local.tensors().nth(self.tensor)?;
        self.found(role, state, tensor)
    }

    /// All of them, in order.
    pub(crate) fn writes(items: &[Self], local: &Local) -> Option<Vec<Write>> {
        let tensors: Vec<_> = local.tensors().collect();
        let found = |item: &Self| {
            let (role, state, tensor) = tensors.get(item.tensor)?;
            item.found(role, state, tensor)
        };
        items.iter().map(found).collect()
    }

    fn found(&self, role: &str, state: &str, tensor: &LocalTensor) -> Option<Write> {
        let (region, start) = tensor.boxes().into_iter().nth(self.part)?;
        if self.slice >= self.of || (self.of > 1 && rows(&region).is_none()) {
            return None;
        }
        let slice = slice_of(&region, self.slice, self.of);
        let bytes = |region: &Region| region.elements() * tensor.element_bytes();
        let before = rows(&region)
            .zip(rows_of(&slice, &region))
            .map_or(0, |(outer, inner)| {
                (inner.offset - outer.1.offset) * (bytes(&region) / outer.1.length)
            });
        Some(Write {
            name: TensorName {
                role: role.into(),
                state: state.into(),
                tensor: tensor.name.clone(),
            },
            tensor: self.tensor,
            start: start + before,
            bytes: bytes(&slice),
            region: slice,
        })
    }
}

impl Held<'_> {
    const fn item(&self, offset: usize, slice: usize, of: usize) -> Item {
        Item {
            tensor: offset + self.index,
            part: self.box_index,
            slice,
            of,
        }
    }
}

/// The ranks that have each part, by their places in the census.
pub(crate) fn members(census: &Census) -> Vec<Vec<usize>> {
    let mut members = vec![vec![]; census.parts.len()];
    for (at, (_, parts)) in census.ranks.iter().enumerate() {
        for part in parts {
            members[*part].push(at);
        }
    }
    members
}

/// The number of the first tensor of each part of each rank.
pub(crate) fn offsets(census: &Census) -> Vec<Vec<usize>> {
    let of_rank = |(_, parts): &(usize, Vec<usize>)| {
        let mut next = 0;
        let start = |part: &usize| {
            let at = next;
            next += census.parts[*part].tensors.len();
            at
        };
        parts.iter().map(start).collect()
    };
    census.ranks.iter().map(of_rank).collect()
}

pub(crate) fn check(census: &Census, members: &[Vec<usize>]) -> Result<(), PlanError> {
    for (at, (rank, parts)) in census.ranks.iter().enumerate() {
        let impossible = |detail: &str| PlanError::Impossible {
            rank: *rank,
            detail: detail.into(),
        };
        if at != *rank {
            return Err(impossible("the ranks are not all there, each once"));
        }
        let mut sorted = parts.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != parts.len() {
            return Err(impossible("it has the same boxes of a state twice"));
        }
    }
    for (part, ranks) in census.parts.iter().zip(members) {
        for tensor in &part.tensors {
            tensor.check().map_err(|error| PlanError::Impossible {
                rank: ranks.first().copied().unwrap_or_default(),
                detail: error.to_string(),
            })?;
        }
    }
    Ok(())
}

type Empty = Vec<(TensorName, LocalTensor)>;

/// All different boxes in the order of their names and offsets, and the tensors without any.
fn holdings<'a>(
    census: &'a Census,
    members: &[Vec<usize>],
) -> Result<(Vec<Holding<'a>>, Empty), PlanError> {
    /// One tensor: who spoke of it first, and its boxes.
    struct Seen<'a> {
        by: usize,
        tensor: &'a LocalTensor,
        boxes: HashMap<Region, Vec<(usize, Held<'a>)>>,
    }
    let mut seen: HashMap<(&str, &str, &str), Seen<'a>> = HashMap::new();
    for (at, part) in census.parts.iter().enumerate() {
        let Some(rank) = members[at].first().copied() else {
            continue;
        };
        for (index, tensor) in part.tensors.iter().enumerate() {
            let name = (
                part.role.as_str(),
                part.state.as_str(),
                tensor.name.as_str(),
            );
            let entry = seen.entry(name).or_insert_with(|| Seen {
                by: rank,
                tensor,
                boxes: HashMap::new(),
            });
            let known = entry.tensor;
            if (known.dtype, &known.shape) != (tensor.dtype, &tensor.shape) {
                let said = |tensor: &LocalTensor| format!("{:?} {:?}", tensor.dtype, tensor.shape);
                return Err(PlanError::Disagree {
                    name: format!("{}/{}/{}", name.0, name.1, name.2),
                    rank,
                    found: said(tensor),
                    first: entry.by,
                    expected: said(known),
                });
            }
            for (box_index, (region, _)) in tensor.boxes().into_iter().enumerate() {
                let held = Held {
                    index,
                    box_index,
                    tensor,
                };
                let by = entry.boxes.entry(region).or_default();
                // One that has a box twice writes the first.
                if by.last().is_none_or(|(part, _)| *part != at) {
                    by.push((at, held));
                }
            }
        }
    }
    let mut seen: Vec<_> = seen.into_iter().collect();
    seen.sort_unstable_by_key(|(name, _)| *name);
    let (mut holdings, mut empty) = (vec![], vec![]);
    for ((role, state, tensor), entry) in seen {
        let name = TensorName {
            role: role.into(),
            state: state.into(),
            tensor: tensor.into(),
        };
        let mut boxes: Vec<_> = entry.boxes.into_iter().collect();
        boxes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let regions = boxes.iter().map(|(region, _)| region);
        if let Some(gap) = gap(&entry.tensor.shape, regions) {
            return Err(PlanError::Gap {
                name: name.to_string(),
                region: gap.to_string(),
            });
        }
        if boxes.is_empty() {
            empty.push((name, entry.tensor.clone()));
        }
        let element_bytes = entry.tensor.element_bytes();
        holdings.extend(boxes.into_iter().map(|(region, by)| Holding {
            bytes: region.elements() * element_bytes,
            region,
            by,
        }));
    }
    Ok((holdings, empty))
}

/// A part of a tensor that is in none of the boxes.
pub(crate) fn gap<'a>(shape: &[usize], boxes: impl Iterator<Item = &'a Region>) -> Option<Region> {
    let mut open = vec![Region::whole(shape)];
    open.retain(|region| region.elements() > 0);
    for region in boxes {
        take(&mut open, region, |_| ());
        if open.is_empty() {
            break;
        }
    }
    open.into_iter().min()
}

/// Takes from the boxes that are `open` all that `region` has of them.
pub(crate) fn take(open: &mut Vec<Region>, region: &Region, mut part: impl FnMut(Region)) {
    let mut at = 0;
    while let Some(piece) = open.get(at) {
        match piece.intersection(region) {
            None => at += 1,
            Some(common) => {
                let rest = piece.without(&common);
                open.swap_remove(at);
                open.extend(rest);
                part(common);
            }
        }
    }
}

/// The outermost dimension in which a box has more than one index: a cut across it leaves slices
/// whose bytes lie one after the other.
fn rows(region: &Region) -> Option<(usize, Span)> {
    let spans = region.spans().iter().copied().enumerate();
    spans.into_iter().find(|(_, span)| span.length > 1)
}

/// The same dimension of a slice of the box.
fn rows_of(slice: &Region, region: &Region) -> Option<Span> {
    rows(region).map(|(dim, _)| slice.spans()[dim])
}

fn slice_of(region: &Region, slice: usize, of: usize) -> Region {
    let Some((dim, span)) = rows(region) else {
        return region.clone();
    };
    let bound = |slice: usize| {
        let rows = slice as u128 * span.length as u128 / of as u128;
        span.offset + rows as usize
    };
    let mut spans = region.spans().to_vec();
    spans[dim] = Span::from(bound(slice)..bound(slice + 1));
    Region::new(spans)
}

#[cfg(test)]
mod tests;

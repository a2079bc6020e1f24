//! Plan of a load: the rank that reads each block, and the ranks that its parts belong to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use odeon_algorithms::parallel::{Region, Window};
use serde::{Deserialize, Serialize};

use super::census::Census;
use super::save::{check, members, offsets, take};
use crate::local::{LocalTensor, TensorName};
use crate::manifest::{Manifest, Piece, Tensor};

/// Reads and messages of all ranks in a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadPlan {
    /// By rank, in order.
    pub(crate) ranks: Vec<RankLoad>,
}

/// Reads and messages of one rank in a load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLoad {
    /// Reads of this rank, in the order of the files.
    pub reads: Vec<Read>,
    /// Ranks that send something to this one, each with its number of messages.
    pub senders: Vec<(usize, usize)>,
}

/// Blocks of a file that lie one behind the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// The file, by its place in the manifest's list.
    pub file: usize,
    /// At which byte of it they begin.
    pub start: u64,
    /// The blocks.
    pub blocks: Vec<Block>,
}

/// A block, which is checked whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Length in bytes.
    pub bytes: usize,
    /// CRC-32 that the bytes must have.
    pub crc: u32,
    /// To whom what of it belongs.
    pub wanted: Vec<Delivery>,
}

/// The part of a block that belongs to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The rank; the one that reads may be among them.
    pub rank: usize,
    /// The copies.
    pub copies: Vec<Copied>,
}

/// A box of a block, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Which of the receiver's tensors, by its number.
    pub tensor: usize,
    /// Where the box lies in the block.
    pub from: Window,
    /// Where it belongs in what the receiver has of the tensor.
    pub to: Window,
}

/// Why a checkpoint cannot give ranks what they want. Nothing has happened; another checkpoint, or
/// wanting something else, may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LoadPlanError {
    /// There is no such tensor.
    #[error("tensor `{name}`, which rank {rank} wants, is not in the checkpoint{near}")]
    NoTensor {
        /// The tensor.
        name: String,
        /// The rank that wants it.
        rank: usize,
        /// The names nearest to it that the checkpoint has, in words.
        near: String,
    },
    /// The tensor is another.
    #[error("tensor `{name}` is {found} in the checkpoint, and rank {rank} wants {wanted}")]
    Other {
        /// The tensor.
        name: String,
        /// The rank that wants it.
        rank: usize,
        /// Type and shape that the rank wants.
        wanted: String,
        /// Type and shape in the checkpoint.
        found: String,
    },
    /// The checkpoint does not have all of it.
    #[error("tensor `{name}` is not whole: {region}, which rank {rank} wants, is in no file")]
    Gap {
        /// The tensor.
        name: String,
        /// The rank that wants it.
        rank: usize,
        /// The region that is missing.
        region: String,
    },
    /// No rank can read a file.
    #[error("no rank has {file} in its memory")]
    Nowhere {
        /// The file.
        file: String,
    },
    /// A rank has said something impossible.
    #[error("{0}")]
    Impossible(String),
}

/// A box that some ranks want, and what one piece has of it.
struct Need {
    /// The kind of ranks, by the census.
    part: usize,
    /// Which of its tensors.
    index: usize,
    /// The box.
    region: Region,
    /// At which byte of what they have of the tensor it begins.
    start: usize,
    /// The intersection with the piece.
    common: Region,
}

/// The ranks that may read a file.
#[derive(Clone, Copy, Debug)]
pub enum Readers<'a> {
    /// Whoever wants something of it.
    Any,
    /// Those who have it in their memory, by its place in the manifest's list.
    These(&'a [Vec<usize>]),
}

/// Plans who reads what: each byte that somebody wants is read by one rank of those that want it,
/// and with it its whole block, so that it can be checked. What several want goes to the one that
/// has the least to read, in pieces of `read_bytes` or a block.
///
/// # Errors
/// [`LoadPlanError`] names the tensor at fault.
pub fn plan(
    manifest: &Manifest,
    wanted: &Census,
    read_bytes: usize,
    readers: Readers<'_>,
) -> Result<LoadPlan, LoadPlanError> {
    let members = members(wanted);
    check(wanted, &members).map_err(|error| LoadPlanError::Impossible(error.to_string()))?;
    let needs = needs(manifest, wanted, &members)?;
    // In the order in which they lie.
    let mut pieces: Vec<(&Piece, &Tensor, Vec<Need>)> = needs.into_values().collect();
    pieces.sort_unstable_by_key(|(piece, ..)| (piece.file, piece.start));

    let mut stretches: Vec<Stretch> = vec![];
    for (piece, tensor, needs) in &pieces {
        let element_bytes = tensor.element_bytes();
        for (range, crc) in piece.blocks(element_bytes, manifest.block_bytes) {
            let elements = range.start / element_bytes..range.end / element_bytes;
            let boxes = Region::of_flat(elements, &piece.region.lengths());
            let copies = copies(&boxes, piece, needs, element_bytes);
            if copies.is_empty() {
                continue;
            }
            let mut parts: Vec<usize> = copies.iter().map(|(part, ..)| *part).collect();
            parts.sort_unstable();
            parts.dedup();
            let block = (range.len(), crc, copies);
            let start = piece.start + range.start as u64;
            match stretches.last_mut() {
                Some(last) if last.takes(piece.file, start, &parts, range.len(), read_bytes) => {
                    last.bytes += range.len();
                    last.blocks.push(block);
                }
                _ => stretches.push(Stretch {
                    file: piece.file,
                    start,
                    bytes: range.len(),
                    parts,
                    blocks: vec![block],
                }),
            }
        }
    }
    assign(manifest, wanted, &members, stretches, readers)
}

/// Blocks that are read at once.
struct Stretch {
    file: usize,
    start: u64,
    bytes: usize,
    /// Kinds of ranks that want something of each of the blocks.
    parts: Vec<usize>,
    blocks: Vec<(usize, u32, Vec<PartCopy>)>,
}

/// For a kind of ranks, of one of its tensors, from where to where.
type PartCopy = (usize, usize, Window, Window);

impl Stretch {
    fn takes(&self, file: usize, start: u64, parts: &[usize], bytes: usize, most: usize) -> bool {
        self.file == file
            && self.start + self.bytes as u64 == start
            && self.bytes + bytes <= most
            && self.parts == parts
    }
}

/// By piece, where that is: two are never equal.
type Needs<'a> = HashMap<*const Piece, (&'a Piece, &'a Tensor, Vec<Need>)>;

fn needs<'a>(
    manifest: &'a Manifest,
    wanted: &Census,
    members: &[Vec<usize>],
) -> Result<Needs<'a>, LoadPlanError> {
    let mut needs = Needs::new();
    for (at, part) in wanted.parts.iter().enumerate() {
        let Some(&rank) = members[at].first() else {
            continue;
        };
        for (index, local) in part.tensors.iter().enumerate() {
            let name = || {
                let name = TensorName {
                    role: part.role.clone(),
                    state: part.state.clone(),
                    tensor: local.name.clone(),
                };
                name.to_string()
            };
            let tensor =
                found(manifest, &part.role, &part.state, local).map_err(|what| match what {
                    Ok(found) => LoadPlanError::Other {
                        name: name(),
                        rank,
                        wanted: format!("{:?} {:?}", local.dtype, local.shape),
                        found,
                    },
                    Err(near) => LoadPlanError::NoTensor {
                        name: name(),
                        rank,
                        near,
                    },
                })?;
            for (region, start) in local.boxes() {
                let mut open = vec![region.clone()];
                for piece in &tensor.pieces {
                    take(&mut open, &piece.region, |common| {
                        let entry = needs
                            .entry(piece)
                            .or_insert_with(|| (piece, tensor, vec![]));
                        entry.2.push(Need {
                            part: at,
                            index,
                            region: region.clone(),
                            start,
                            common,
                        });
                    });
                    if open.is_empty() {
                        break;
                    }
                }
                if let Some(open) = open.iter().min() {
                    return Err(LoadPlanError::Gap {
                        name: name(),
                        rank,
                        region: open.to_string(),
                    });
                }
            }
        }
    }
    Ok(needs)
}

/// The tensor of the checkpoint, or what there is in its place, or near it.
fn found<'a>(
    manifest: &'a Manifest,
    role: &str,
    state: &str,
    local: &LocalTensor,
) -> Result<&'a Tensor, Result<String, String>> {
    let list = |names: Vec<&String>| {
        let some: Vec<&str> = names.iter().take(4).map(|name| name.as_str()).collect();
        format!(
            "{}{}",
            some.join(", "),
            if names.len() > 4 { ", ..." } else { "" }
        )
    };
    let Some(states) = manifest.roles.get(role) else {
        let roles = list(manifest.roles.keys().collect());
        return Err(Err(format!(", which has roles: {roles}")));
    };
    let Some(tensors) = states.get(state) else {
        let states = list(states.keys().collect());
        return Err(Err(format!(", where `{role}` has states: {states}")));
    };
    let Some(tensor) = tensors.get(&local.name) else {
        let count = tensors.len();
        return Err(Err(format!(", where `{role}/{state}` has {count} others")));
    };
    if (tensor.dtype, &tensor.shape) == (local.dtype, &local.shape) {
        Ok(tensor)
    } else {
        Err(Ok(format!("{:?} {:?}", tensor.dtype, tensor.shape)))
    }
}

/// Copies from a block to each rank that needs a part of it. `boxes` are those of the block,
/// relative to the piece.
fn copies(boxes: &[Region], piece: &Piece, needs: &[Need], element_bytes: usize) -> Vec<PartCopy> {
    let mut copies = vec![];
    let mut at = 0;
    for region in boxes {
        let whole = region.moved_by(&piece.region);
        for need in needs {
            let Some(common) = whole.intersection(&need.common) else {
                continue;
            };
            let window = |start: usize, array: &Region| {
                let part = common.relative_to(array);
                Window::new(start, element_bytes, array.lengths(), part)
                    .expect("what both have is in each")
            };
            copies.push((
                need.part,
                need.index,
                window(at, &whole),
                window(need.start, &need.region),
            ));
        }
        at += region.elements() * element_bytes;
    }
    copies
}

fn assign(
    manifest: &Manifest,
    wanted: &Census,
    members: &[Vec<usize>],
    stretches: Vec<Stretch>,
    readers: Readers<'_>,
) -> Result<LoadPlan, LoadPlanError> {
    let offsets = offsets(wanted);
    let ranks = wanted.ranks.len();
    let mut load = vec![0_usize; ranks];
    let mut queues: Vec<BTreeSet<(usize, usize)>> = members
        .iter()
        .map(|ranks| ranks.iter().map(|rank| (0, *rank)).collect())
        .collect();
    let mut plan = vec![RankLoad::default(); ranks];
    let mut messages: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new(); ranks];
    for stretch in stretches {
        let reader = match readers {
            Readers::Any => {
                let least = stretch
                    .parts
                    .iter()
                    .filter_map(|part| queues[*part].first());
                least.min().map(|(_, rank)| *rank)
            }
            Readers::These(holders) => {
                let holders = holders.get(stretch.file).into_iter().flatten();
                let holders = holders.filter(|rank| **rank < ranks);
                holders.copied().min_by_key(|rank| (load[*rank], *rank))
            }
        };
        let reader = reader.ok_or_else(|| LoadPlanError::Nowhere {
            file: manifest.files[stretch.file].name.clone(),
        })?;
        for part in &wanted.ranks[reader].1 {
            queues[*part].remove(&(load[reader], reader));
            queues[*part].insert((load[reader] + stretch.bytes, reader));
        }
        load[reader] += stretch.bytes;

        let blocks = stretch.blocks.into_iter().map(|(bytes, crc, copies)| {
            let mut wanted_by: BTreeMap<usize, Vec<Copied>> = BTreeMap::new();
            for (part, index, from, to) in copies {
                for &rank in &members[part] {
                    let place = wanted.ranks[rank].1.iter().position(|at| *at == part);
                    let place = place.expect("a member has the part");
                    wanted_by.entry(rank).or_default().push(Copied {
                        tensor: offsets[rank][place] + index,
                        from: from.clone(),
                        to: to.clone(),
                    });
                }
            }
            for &rank in wanted_by.keys().filter(|rank| **rank != reader) {
                *messages[rank].entry(reader).or_default() += 1;
            }
            let wanted = wanted_by.into_iter();
            Block {
                bytes,
                crc,
                wanted: wanted
                    .map(|(rank, copies)| Delivery { rank, copies })
                    .collect(),
            }
        });
        plan[reader].reads.push(Read {
            file: stretch.file,
            start: stretch.start,
            blocks: blocks.collect(),
        });
    }
    for (rank, senders) in plan.iter_mut().zip(messages) {
        rank.senders = senders.into_iter().collect();
    }
    Ok(LoadPlan { ranks: plan })
}

impl LoadPlan {
    /// Reads and messages of a rank.
    #[must_use]
    pub fn of(&self, rank: usize) -> Option<&RankLoad> {
        self.ranks.get(rank)
    }

    /// Bytes that each rank reads.
    #[must_use]
    pub fn read_bytes(&self) -> Vec<usize> {
        self.ranks.iter().map(RankLoad::read_bytes).collect()
    }
}

impl RankLoad {
    /// Bytes that it reads.
    #[must_use]
    pub fn read_bytes(&self) -> usize {
        self.reads.iter().map(Read::bytes).sum()
    }
}

impl Read {
    /// Bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    /// Ranks that get something of it.
    pub(crate) fn receivers(&self) -> impl Iterator<Item = usize> {
        let wanted = self.blocks.iter().flat_map(|block| &block.wanted);
        wanted.map(|delivery| delivery.rank)
    }
}

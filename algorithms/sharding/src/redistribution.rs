//! The steps that turn one sharding of a tensor into another, as data. Pure.

use std::collections::BTreeSet;
use std::fmt;

use odeon_collective::{ElementType, Reduce};

use crate::search::{self, Edge};
use crate::{Placement, Sharding, ShardingError};

/// The steps from one sharding to another, with what each rank sends: those that send the least.
///
/// Every rank makes the same plan. [`Self::route`] has what one of them does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redistribution {
    from: Sharding,
    to: Sharding,
    steps: Vec<RedistributionStep>,
}

/// One step of all ranks: each group along some dimensions of the mesh does it by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedistributionStep {
    /// The dimensions of the mesh along which ranks move data; several are one flat group.
    pub dims: Vec<String>,
    /// The act of each group.
    pub movement: Movement,
    /// The tensor before.
    pub from: Sharding,
    /// The tensor after.
    pub to: Sharding,
    /// The traffic out of each rank of the mesh.
    pub sent: Vec<Traffic>,
}

/// An act of a group of ranks. Parts of ranks may differ in length, and be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// Each rank keeps some of what it has. Nothing is sent.
    Slice,
    /// All ranks get what all have.
    AllGather,
    /// Addends of all ranks are reduced, and all get the result.
    AllReduce(Reduce),
    /// Addends of all ranks are reduced, and each rank gets its part.
    ReduceScatter(Reduce),
    /// Each rank sends every other what that lacks.
    AllToAll,
}

/// Elements that leave a rank in one step, by the schedule that sends the least: around a ring, or
/// directly to their receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Elements as they are.
    pub elements: usize,
    /// Partial sums of elements, each an f32.
    pub sums: usize,
}

impl Traffic {
    /// In bytes, for elements of this type.
    #[must_use]
    pub const fn bytes(self, element: ElementType) -> usize {
        self.elements * element.bytes() + self.sums * ElementType::F32.bytes()
    }
}

impl Redistribution {
    /// The cheapest steps: those whose busiest ranks send the least in sum, and of these the fewest.
    /// Intermediate placements are those of either side, [`Placement::Replicate`], or equal shares by
    /// [`Placement::Ragged`].
    ///
    /// # Errors
    /// [`ShardingError::Different`] for two tensors; [`ShardingError::NoMeaning`] where addends would
    /// have to be made of elements, or of addends that are reduced in another way;
    /// [`ShardingError::NoWay`] where the groups of the mesh cannot give each other what they need.
    pub fn new(from: &Sharding, to: &Sharding) -> Result<Self, ShardingError> {
        check(from, to)?;
        let Some(way) = search::cheapest(from, to) else {
            return Err(ShardingError::NoWay {
                from: Box::new(from.clone()),
                to: Box::new(to.clone()),
            });
        };
        let steps = way.into_iter().filter_map(step);
        Ok(Self {
            from: from.clone(),
            to: to.clone(),
            steps: steps.collect(),
        })
    }

    /// The tensor before.
    #[must_use]
    pub const fn from(&self) -> &Sharding {
        &self.from
    }

    /// The tensor after.
    #[must_use]
    pub const fn to(&self) -> &Sharding {
        &self.to
    }

    /// The steps in their order; none when every rank has already what it needs.
    #[must_use]
    pub fn steps(&self) -> &[RedistributionStep] {
        &self.steps
    }

    /// Bytes that leave a rank in all steps, by the schedules of [`Traffic`]; 0 for a rank that is not
    /// there.
    #[must_use]
    pub fn bytes(&self, rank: usize, element: ElementType) -> usize {
        let sent = self.steps.iter().filter_map(|step| step.sent.get(rank));
        sent.map(|traffic| traffic.bytes(element)).sum()
    }
}

/// A transition of the search, unless it only calls by another name what ranks have.
fn step(edge: Edge) -> Option<RedistributionStep> {
    let mesh = edge.from.mesh();
    let dims: BTreeSet<usize> = edge.dims.into_iter().collect();
    Some(RedistributionStep {
        dims: dims
            .iter()
            .map(|dim| mesh.dims()[*dim].name.clone())
            .collect(),
        movement: edge.movement?,
        from: edge.from,
        to: edge.to,
        sent: edge.sent,
    })
}

fn check(from: &Sharding, to: &Sharding) -> Result<(), ShardingError> {
    let differs = [
        (from.name() != to.name(), "name"),
        (from.mesh() != to.mesh(), "mesh"),
        (from.shape() != to.shape(), "shape"),
    ];
    if let Some((_, what)) = differs.into_iter().find(|(differs, _)| *differs) {
        return Err(ShardingError::Different {
            tensor: from.name().to_owned(),
            other: to.name().to_owned(),
            what,
        });
    }
    let dims = from.mesh().dims().iter();
    for (dim, (before, after)) in dims.zip(from.placements().iter().zip(to.placements())) {
        if !matches!(after, Placement::Partial(_)) || before == after {
            continue;
        }
        let why = if matches!(before, Placement::Partial(_)) {
            "addends are reduced in one way: go to Replicate first"
        } else {
            "addends come of computing alone: leave it as it is"
        };
        return Err(ShardingError::NoMeaning {
            tensor: from.name().to_owned(),
            along: dim.name.clone(),
            from: Box::new(before.clone()),
            to: Box::new(after.clone()),
            why,
        });
    }
    Ok(())
}

impl fmt::Display for Movement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slice => f.write_str("slice"),
            Self::AllGather => f.write_str("all-gather"),
            Self::AllReduce(reduce) => write!(f, "all-reduce ({reduce})"),
            Self::ReduceScatter(reduce) => write!(f, "reduce-scatter ({reduce})"),
            Self::AllToAll => f.write_str("all-to-all"),
        }
    }
}

/// As `all-gather along fsdp, tp`.
impl fmt::Display for RedistributionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} along {}", self.movement, self.dims.join(", "))
    }
}

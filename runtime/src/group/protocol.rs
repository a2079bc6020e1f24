//! Protocols of calls of a worker group: the dispatch of a call to the ranks, and the ranks whose
//! answers come back. Pure.

use serde::{Deserialize, Serialize};

use super::call::{Collect, Dispatch};
use super::misfit::Misfit;
use crate::base::shape::{self, Shape};
use odeon_mesh::at;

/// The transfer protocols of HybridFlow (arXiv 2409.19256, table 1), and those that came after it.
/// Each is a [`Dispatch`] and a [`Collect`]; any other two are a protocol as well.
///
/// | protocol | there | dispatch | collect |
/// | --- | --- | --- | --- |
/// | [`RankZero`](Self::RankZero) | `RANK_ZERO` | rank 0 | rank 0 |
/// | [`OneToAll`](Self::OneToAll) | `ONE_TO_ALL` | the same to all | all |
/// | [`AllToAll`](Self::AllToAll) | `ALL_TO_ALL` | a part to each rank, made by the caller | all |
/// | [`Data`](Self::Data) | `DP_PROTO` | rows cut over all ranks | all |
/// | [`ThreeD`](Self::ThreeD) | `3D_PROTO` | rows cut along `dp` | `pp` last, `tp` 0: one for each `dp` |
/// | [`MicroData`](Self::MicroData) | `3D_ALL_MICRO_DP` | rows cut along `micro` | the first rank of each `micro` |
/// | [`PipelineOnly`](Self::PipelineOnly) | `3D_PP_ONLY` | the same to all | the first rank of each `pp` |
/// | [`Mesh`](Self::Mesh) | n-d mesh | rows cut as the ranks say that they share them | who of them says so |
/// | [`Pair`](Self::Pair) | user-defined | any | any |
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Protocol {
    /// For rank 0 alone.
    RankZero,
    /// All ranks do the same.
    OneToAll,
    /// Each rank does something else.
    AllToAll,
    /// Each rank has rows of its own.
    Data,
    /// Ranks along `dp` have rows of their own; those of one replica have the same. The mesh has the
    /// dimensions `pp`, `dp` and `tp`.
    ThreeD,
    /// Ranks along `micro` have rows of their own.
    MicroData,
    /// One answer of each pipeline stage. The mesh has a dimension `pp`.
    PipelineOnly,
    /// As the workers say of their places in a mesh of this name: a worker may be in several, one to
    /// train and one to generate.
    Mesh(String),
    /// Anything else.
    Pair(Dispatch, Collect),
}

/// A worker's place in a mesh that the workers know, and the group does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshPlace {
    /// Which part of the rows it works on, from 0.
    pub part: usize,
    /// True if its answer counts: that of one rank for each part.
    pub collected: bool,
}

impl Shape for MeshPlace {
    const SHAPE: u64 = shape::name("odeon.MeshPlace");
}

impl Protocol {
    /// The dispatch and the collection that it is made of; `None` where the workers have to be
    /// asked.
    pub(super) fn pair(&self) -> Option<(Dispatch, Collect)> {
        Some(match self {
            Self::RankZero => (Dispatch::One(0), Collect::One(0)),
            Self::OneToAll => (Dispatch::All, Collect::All),
            Self::AllToAll | Self::Data => (Dispatch::PerRank, Collect::All),
            Self::ThreeD => {
                let last = at!(pp = -1, tp = 0);
                (Dispatch::Split("dp".to_owned()), Collect::At(last))
            }
            Self::MicroData => {
                let micro = || "micro".to_owned();
                (Dispatch::Split(micro()), Collect::FirstOf(micro()))
            }
            Self::PipelineOnly => (Dispatch::All, Collect::FirstOf("pp".to_owned())),
            Self::Mesh(_) => return None,
            Self::Pair(dispatch, collect) => (dispatch.clone(), collect.clone()),
        })
    }
}

/// The protocol of a mesh that the workers know; who is collected is in the order of the parts.
///
/// # Errors
/// [`Misfit::Uncollected`] for a part that nobody answers for, or several ranks do.
pub(super) fn of_places(places: &[MeshPlace]) -> Result<(Dispatch, Collect), Misfit> {
    let parts = places.iter().map(|place| place.part + 1).max().unwrap_or(0);
    for part in 0..parts {
        let answer = |place: &&MeshPlace| place.part == part && place.collected;
        let answers = places.iter().filter(answer).count();
        if answers != 1 {
            return Err(Misfit::Uncollected { part, answers });
        }
    }
    let mut collected: Vec<usize> = (0..places.len())
        .filter(|rank| places[*rank].collected)
        .collect();
    collected.sort_by_key(|rank| places[*rank].part);
    let parts = places.iter().map(|place| Some(place.part)).collect();
    Ok((Dispatch::Parts(parts), Collect::Ranks(collected)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(all: &[(usize, bool)]) -> Vec<MeshPlace> {
        let place = |&(part, collected)| MeshPlace { part, collected };
        all.iter().map(place).collect()
    }

    #[test]
    fn a_mesh_of_the_workers_is_a_protocol() {
        // Two tensor ranks generate together; the last of each two answers.
        let all = places(&[(0, false), (0, true), (1, false), (1, true)]);
        let (dispatch, collect) = of_places(&all).unwrap();
        assert_eq!(dispatch, Dispatch::Parts([0, 0, 1, 1].map(Some).to_vec()));
        assert_eq!(collect, Collect::Ranks(vec![1, 3]));
        // Rows come back in their order, whoever has them.
        let (_, collect) = of_places(&places(&[(1, true), (0, true)])).unwrap();
        assert_eq!(collect, Collect::Ranks(vec![1, 0]));
    }

    #[test]
    fn a_mesh_in_which_rows_would_be_lost_or_come_twice_is_refused() {
        let uncollected = |part, answers| Err(Misfit::Uncollected { part, answers });
        assert_eq!(
            of_places(&places(&[(0, true), (1, false)])),
            uncollected(1, 0)
        );
        assert_eq!(
            of_places(&places(&[(0, true), (0, true)])),
            uncollected(0, 2)
        );
        assert_eq!(
            of_places(&places(&[(0, true), (2, true)])),
            uncollected(1, 0)
        );
    }
}

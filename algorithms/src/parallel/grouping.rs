//! Groups of the same ranks while they generate.

use odeon_mesh::{DP, Mesh, PP, TP};
use serde::{Deserialize, Serialize};
use std::fmt;

use super::layout::{LayoutError, complete};

/// Which ranks of a training replica make up one generation replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// Consecutive ranks, numbered as in training (HybridFlow-V): `p_g * t_g` has to divide
    /// `p * t`. What a rank trains is in general no part of what it generates with.
    Usual,
    /// Tensor groups by steps of `t / t_g`, pipelines by steps of `p / p_g` stages (HybridFlow):
    /// `t_g` has to divide `t`, and `p_g` has to divide `p`. What a rank trains is always part of
    /// what it generates with, and the rest is with the neighbours that share its micro-data group.
    Strided,
}

/// The groups of a mesh of training in generation. Each replica of training becomes
/// `d_g = p * t / (p_g * t_g)` replicas that generate (HybridFlow, arXiv 2409.19256).
///
/// Ranks keep their numbers; the mesh while they generate is that of training, cut in another way:
///
/// | | training | generation |
/// | --- | --- | --- |
/// | usual | `{dp, pp, tp}` | `{dp, micro, pp: p_g, tp: t_g}` |
/// | strided | `{dp, pp, tp}` | `{dp, pp: p_g, micro_pp, tp: t_g, micro_tp}` |
///
/// Ranks that differ along the micro dimensions alone are a micro-data group. Under strided grouping
/// it is `t / t_g` consecutive tensor ranks of `p / p_g` consecutive stages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    training: Mesh,
    generation: Mesh,
    grouping: Grouping,
}

const MICRO: &str = "micro";
const MICRO_PP: &str = "micro_pp";
const MICRO_TP: &str = "micro_tp";

impl Groups {
    /// The groups of a mesh of training, whose dimensions are `dp`, `pp` and `tp`, for generation
    /// replicas that are a mesh of `pp` and `tp`. Each of the dimensions may be left out.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(
        training: &Mesh,
        generation: &Mesh,
        grouping: Grouping,
    ) -> Result<Self, LayoutError> {
        let (training, replica) = (complete(training)?, complete(generation)?);
        if replica.size(DP) > 1 {
            let mesh = generation.clone();
            return Err(LayoutError::Dimensions { mesh });
        }
        let divided = |what, generation: usize, whole: usize| match whole.checked_rem(generation) {
            Some(0) => Ok(whole / generation),
            _ => Err(LayoutError::NotDivided {
                what,
                generation,
                training: whole,
                mesh: training.clone(),
            }),
        };
        let (stages, ranks) = (replica.size(PP), replica.size(TP));
        let generation = match grouping {
            Grouping::Usual => {
                let whole = training.size(PP) * training.size(TP);
                let micro = divided("model", replica.len(), whole)?;
                let flat = training.flatten(&[PP, TP], MICRO)?;
                flat.split(MICRO, &[(MICRO, micro), (PP, stages), (TP, ranks)])?
            }
            Grouping::Strided => {
                let micro_tp = divided("tensor", ranks, training.size(TP))?;
                let micro_pp = divided("pipeline", stages, training.size(PP))?;
                let split = training.split(PP, &[(PP, stages), (MICRO_PP, micro_pp)])?;
                split.split(TP, &[(TP, ranks), (MICRO_TP, micro_tp)])?
            }
        };
        Ok(Self {
            training,
            generation,
            grouping,
        })
    }

    /// The mesh of training.
    #[must_use]
    pub const fn training(&self) -> &Mesh {
        &self.training
    }

    /// The mesh of the same ranks while they generate.
    #[must_use]
    pub const fn generation(&self) -> &Mesh {
        &self.generation
    }

    /// Which ranks belong together.
    #[must_use]
    pub const fn grouping(&self) -> Grouping {
        self.grouping
    }

    /// Generation replicas of one training replica, `d_g`.
    #[must_use]
    pub fn micro_data(&self) -> usize {
        let micro = self.micro().iter();
        micro.map(|dim| self.generation.size(dim)).product()
    }

    /// The number of the generation replica that a rank is part of, from 0 to `d * d_g`: which part
    /// of the prompts is its.
    ///
    /// # Errors
    /// [`LayoutError::Mesh`] when there is no such rank.
    pub fn replica(&self, rank: usize) -> Result<usize, LayoutError> {
        // There is such a rank where it has a group.
        self.generation.group(rank, &[])?;
        let dims = [DP].into_iter().chain(self.micro().iter().copied());
        Ok(dims.fold(0, |number, dim| {
            number * self.generation.size(dim) + self.generation.coordinate(rank, dim)
        }))
    }

    /// The ranks that share each layer with this one, itself among them, in order of their part.
    ///
    /// # Errors
    /// [`LayoutError::Mesh`] when there is no such rank.
    pub fn tensor_group(&self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        Ok(self.generation.group(rank, &[TP])?)
    }

    /// The ranks with the same part of the other stages, itself among them, in order of the stages.
    ///
    /// # Errors
    /// [`LayoutError::Mesh`] when there is no such rank.
    pub fn pipeline_group(&self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        Ok(self.generation.group(rank, &[PP])?)
    }

    /// The ranks of this one's training replica that generate with the same shard, itself among
    /// them, in order.
    ///
    /// # Errors
    /// [`LayoutError::Mesh`] when there is no such rank.
    pub fn micro_data_group(&self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        Ok(self.generation.group(rank, self.micro())?)
    }

    const fn micro(&self) -> &'static [&'static str] {
        match self.grouping {
            Grouping::Usual => &[MICRO],
            Grouping::Strided => &[MICRO_PP, MICRO_TP],
        }
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.training, self.generation)
    }
}

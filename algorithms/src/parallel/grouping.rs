//! Groups of the same ranks while they generate.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::layout::{Coordinates, Layout, LayoutError};

/// The layout of a model while it generates; smaller groups than in training, and more of them.
///
/// Shown as `pipeline-tensor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Generation {
    /// Stages, `p_g`.
    pub pipeline: usize,
    /// Ranks of a stage, `t_g`.
    pub tensor: usize,
}

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

/// The groups of a training layout in generation. Each replica of training becomes
/// `d_g = p * t / (p_g * t_g)` replicas that generate (HybridFlow, arXiv
/// 2409.19256).
///
/// With `m_t = t / t_g` and `m_p = p / p_g`, a rank of stage `s` and tensor rank `k`, the `l`-th of
/// its replica (`l = s * t + k`), stands at
///
/// | | stage | tensor rank | micro-data rank |
/// | --- | --- | --- | --- |
/// | usual | `l / t_g % p_g` | `l % t_g` | `l / (t_g * p_g)` |
/// | strided | `s / m_p` | `k / m_t` | `s % m_p * m_t + k % m_t` |
///
/// Ranks that differ in the micro-data rank alone are a micro-data group. Under strided grouping it
/// is `m_t` consecutive tensor ranks of `m_p` consecutive stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    training: Layout,
    generation: Generation,
    grouping: Grouping,
}

/// Where a rank stands while it generates; each number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GenerationCoordinates {
    /// Which replica of training.
    pub data: usize,
    /// Which of the generation replicas that it becomes.
    pub micro_data: usize,
    /// Which stage of that one.
    pub pipeline: usize,
    /// Which rank of the stage.
    pub tensor: usize,
}

impl Groups {
    /// The groups of a training layout.
    ///
    /// # Errors
    /// [`LayoutError::Zero`] or [`LayoutError::NotDivided`].
    pub fn new(
        training: Layout,
        generation: Generation,
        grouping: Grouping,
    ) -> Result<Self, LayoutError> {
        let Generation { pipeline, tensor } = generation;
        for (what, size) in [("pipeline", pipeline), ("tensor", tensor)] {
            if size == 0 {
                return Err(LayoutError::Zero(what));
            }
        }
        let compared = match grouping {
            Grouping::Usual => vec![(
                "model",
                generation.replica_ranks(),
                training.replica_ranks(),
            )],
            Grouping::Strided => vec![
                ("tensor", tensor, training.tensor()),
                ("pipeline", pipeline, training.pipeline()),
            ],
        };
        for (what, generation, whole) in compared {
            if !whole.is_multiple_of(generation) {
                return Err(LayoutError::NotDivided {
                    what,
                    generation,
                    training: whole,
                    layout: training,
                });
            }
        }
        Ok(Self {
            training,
            generation,
            grouping,
        })
    }

    /// The layout of training.
    #[must_use]
    pub const fn training(&self) -> Layout {
        self.training
    }

    /// The layout of generation.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Which ranks belong together.
    #[must_use]
    pub const fn grouping(&self) -> Grouping {
        self.grouping
    }

    /// Generation replicas of one training replica, `d_g`.
    #[must_use]
    pub fn micro_data(&self) -> usize {
        self.training.replica_ranks() / self.generation.replica_ranks()
    }

    /// Where a rank stands.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn coordinates(&self, rank: usize) -> Result<GenerationCoordinates, LayoutError> {
        let at = self.training.coordinates(rank)?;
        let Generation { pipeline, tensor } = self.generation;
        Ok(match self.grouping {
            Grouping::Usual => {
                let local = at.pipeline * self.training.tensor() + at.tensor;
                GenerationCoordinates {
                    data: at.data,
                    micro_data: local / self.generation.replica_ranks(),
                    pipeline: local / tensor % pipeline,
                    tensor: local % tensor,
                }
            }
            Grouping::Strided => {
                let (stages, ranks) = self.strides();
                GenerationCoordinates {
                    data: at.data,
                    micro_data: at.pipeline % stages * ranks + at.tensor % ranks,
                    pipeline: at.pipeline / stages,
                    tensor: at.tensor / ranks,
                }
            }
        })
    }

    /// The rank at these coordinates.
    ///
    /// # Panics
    /// When a coordinate is outside of the layout.
    #[must_use]
    pub fn rank(&self, at: GenerationCoordinates) -> usize {
        let Generation { pipeline, tensor } = self.generation;
        let inside = at.micro_data < self.micro_data() && at.pipeline < pipeline;
        assert!(inside && at.tensor < tensor, "{at:?} is outside of {self}");
        let (stage, rank) = match self.grouping {
            Grouping::Usual => {
                let local = (at.micro_data * pipeline + at.pipeline) * tensor + at.tensor;
                (
                    local / self.training.tensor(),
                    local % self.training.tensor(),
                )
            }
            Grouping::Strided => {
                let (stages, ranks) = self.strides();
                (
                    at.pipeline * stages + at.micro_data / ranks,
                    at.tensor * ranks + at.micro_data % ranks,
                )
            }
        };
        self.training.rank(Coordinates {
            data: at.data,
            pipeline: stage,
            tensor: rank,
        })
    }

    /// The number of the generation replica that a rank is part of, from 0 to `d * d_g`: which part
    /// of the prompts is its.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn replica(&self, rank: usize) -> Result<usize, LayoutError> {
        let at = self.coordinates(rank)?;
        Ok(at.data * self.micro_data() + at.micro_data)
    }

    /// The ranks that share each layer with this one, itself among them, in order of their part.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn tensor_group(&self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let at = self.coordinates(rank)?;
        let peers = 0..self.generation.tensor;
        Ok(peers
            .map(|tensor| self.rank(GenerationCoordinates { tensor, ..at }))
            .collect())
    }

    /// The ranks with the same part of the other stages, itself among them, in order of the stages.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn pipeline_group(&self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let at = self.coordinates(rank)?;
        let peers = 0..self.generation.pipeline;
        Ok(peers
            .map(|pipeline| self.rank(GenerationCoordinates { pipeline, ..at }))
            .collect())
    }

    /// The ranks of this one's training replica that generate with the same shard, itself among
    /// them, in order.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn micro_data_group(&self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let at = self.coordinates(rank)?;
        let peers = 0..self.micro_data();
        Ok(peers
            .map(|micro_data| self.rank(GenerationCoordinates { micro_data, ..at }))
            .collect())
    }

    /// `m_p` and `m_t`: stages, and tensor ranks, of training to one of generation.
    fn strides(&self) -> (usize, usize) {
        (
            self.training.pipeline() / self.generation.pipeline,
            self.training.tensor() / self.generation.tensor,
        )
    }
}

impl Generation {
    /// Ranks of a generation replica, `p_g * t_g`.
    #[must_use]
    pub const fn replica_ranks(self) -> usize {
        self.pipeline.saturating_mul(self.tensor)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}-{}", self.pipeline, self.tensor);
        f.pad(&text)
    }
}

/// As in HybridFlow's figures: `1-4-2 -> 1-2-2-2`.
impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (training, generation) = (self.training, self.generation);
        let (micro_data, data) = (self.micro_data(), training.data());
        let text = format!("{training} -> {generation}-{micro_data}-{data}");
        f.pad(&text)
    }
}

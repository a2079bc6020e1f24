//! The weights of a policy that ranks share, brought together on each of them to generate with.
//!
//! ```text
//!  ranks of a copy of the model ── each its parcel, in a blob ──> each of these ranks: all of it
//! ```
//!
//! A copy is the fewest neighbouring ranks that have the whole model between them. Each number of it comes from one of
//! these ([`Parcels`]), and they exchange with each other alone. So of a model of `M` bytes, as rollouts are given it, a
//! rank receives `M` less its own parcel, and the `G` ranks of a copy receive `(G - 1) M`: where every number is on one
//! rank that is `(G - 1) / G M` for each, as much as HybridFlow's engine moves to generate with whole models (arXiv
//! 2409.19256, table 2: `(tp - t_g p_g) / (t_g p_g tp) M` with `t_g p_g = 1`).

use futures::future::try_join_all;
use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Blobs, Failure, Shape};
use odeon_algorithms::train::Sharing;
use odeon_algorithms::weights::StoredType;

use crate::engine::compute::models::Optimizer;
use crate::engine::compute::parcels::{Parcels, parcel_bytes, write_parcel};
use crate::engine::compute::{HeldModel, RankPlace};
use crate::engine::in_place;

/// The weights of a policy as its ranks have published them: the parcels of each copy's ranks. Nothing where every rank
/// has the whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Published {
    copies: Vec<Vec<Blob>>,
}

impl Published {
    /// The parcels of all ranks that share a policy like this.
    pub(super) fn new(parcels: &[Blob], sharing: Sharing) -> Self {
        let copies = parcels.chunks(ranks_of_copy(sharing));
        Self {
            copies: copies.map(<[Blob]>::to_vec).collect(),
        }
    }

    /// For each of so many ranks the parcels of its copy.
    pub(super) fn deal(&self, ranks: usize) -> impl Iterator<Item = Self> {
        let copies = &self.copies;
        (0..ranks).map(move |rank| Self {
            copies: copies
                .get(rank * copies.len() / ranks)
                .cloned()
                .into_iter()
                .collect(),
        })
    }
}

/// Ranks that have the whole model between them.
pub(super) const fn ranks_of_copy(sharing: Sharing) -> usize {
    sharing.copies_of_shards() * sharing.of_copy()
}

/// What a rank knows of how the weights of its copy come together.
#[derive(Debug)]
pub(super) struct Assembly {
    parcels: Parcels,
    /// Its number among the ranks of the copy.
    own: usize,
    stored: StoredType,
}

/// Weights that have come together.
#[derive(Debug)]
pub(super) struct Assembled {
    /// All of them, as rollouts load them.
    pub(super) weights: Vec<u8>,
    /// Bytes that came from other ranks.
    pub(super) received: u64,
}

impl Assembly {
    /// That of a rank, by what the ranks of its copy have, for weights that are given in numbers of a type.
    ///
    /// # Errors
    /// They have other models, or nobody has some box.
    pub(super) fn of(
        held: &[HeldModel],
        place: RankPlace,
        stored: StoredType,
    ) -> Result<Self, Failure> {
        Ok(Self {
            parcels: Parcels::of(held, stored)?,
            own: place.rank % ranks_of_copy(place.sharing),
            stored,
        })
    }

    /// Writes the rank's parcel.
    ///
    /// # Errors
    /// There is no room for it.
    pub(super) fn publish(&self, optimizer: &Optimizer, blobs: &Blobs) -> Result<Blob, Failure> {
        let boxes = &self.parcels.boxes[self.own];
        let writer = blobs.writer(parcel_bytes(boxes, self.stored));
        let mut writer = writer.map_err(Failure::error)?;
        in_place(|| write_parcel(optimizer, boxes, self.stored, &mut writer))?;
        Ok(writer.seal())
    }

    /// Brings the weights together out of what the ranks of the copy have published.
    ///
    /// # Errors
    /// Somebody has published nothing, or something else than was planned, or is lost.
    pub(super) async fn gather(&self, published: &Published) -> Result<Assembled, Failure> {
        let all = published.copies.first();
        let all = all.filter(|all| all.len() == self.parcels.boxes.len());
        let all =
            all.ok_or_else(|| Failure::error("the weights of the policy were not published"))?;
        let views = try_join_all(all.iter().map(Blob::open)).await;
        let views = views.map_err(Failure::error)?;
        in_place(|| {
            let mut weights = vec![0; self.parcels.bytes];
            for (rank, parcel) in views.iter().enumerate() {
                self.parcels.put(rank, parcel, &mut weights)?;
            }
            let others = views
                .iter()
                .enumerate()
                .filter(|(rank, _)| *rank != self.own);
            Ok(Assembled {
                weights,
                received: others.map(|(_, parcel)| parcel.len() as u64).sum(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use odeon::System;
    use odeon_algorithms::model::{LayerBlock, ModelConfig, Moe};
    use odeon_algorithms::train::{TrainConfig, ZeroStage};

    use super::*;
    use crate::engine::compute::parcels::held;
    use crate::engine::compute::{ComputePlace, ModelSource};

    /// SEMANTICS 197. Each rank has the whole from those of its copy, and the ranks of a copy of `G` receive the model
    /// `G - 1` times.
    #[tokio::test(flavor = "multi_thread")]
    async fn ranks_of_a_copy_receive_the_model_from_each_other_as_often_as_there_are_others() {
        let of = Sharing::ALONE;
        let two_copies = Sharing { copies: 2, ..of };
        let plans = [
            (2, Sharing { tensor: 2, ..of }),
            (
                4,
                Sharing {
                    stages: 2,
                    tensor: 2,
                    ..two_copies
                },
            ),
            (
                2,
                Sharing {
                    copies: 4,
                    zero: ZeroStage::Parameters,
                    shards: Some(2),
                    ..of
                },
            ),
            (
                2,
                Sharing {
                    experts: 2,
                    ..two_copies
                },
            ),
            (1, two_copies),
        ];
        let config = |experts| ModelConfig {
            vocab: 33,
            dim: 16,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            ffn: 24,
            block: match experts {
                1 => ModelConfig::default().block,
                _ => LayerBlock::Moe(Moe {
                    experts: 4,
                    experts_per_token: 2,
                }),
            },
            ..ModelConfig::default()
        };
        let system = System::builder().start().await.unwrap();
        let blobs = system.blobs();
        for (of_copy, sharing) in plans {
            let source = ModelSource::Fresh(Box::new(config(sharing.experts)));
            let part = |place: &RankPlace| {
                let part = ComputePlace::PROCESSOR.part((&source, 3), false, (place, 1));
                part.unwrap()
            };
            let flat = part(&RankPlace::ALONE).to_flat();
            let mut expected = vec![0; flat.len() * StoredType::Bf16.bytes()];
            StoredType::Bf16.write(&flat, &mut expected);
            let places: Vec<_> = (0..sharing.ranks())
                .map(|rank| RankPlace { sharing, rank })
                .collect();
            let ranks: Vec<Optimizer> = places
                .iter()
                .map(|it| it.optimizer(part(it), TrainConfig::default()))
                .collect();
            let have: Vec<HeldModel> = ranks.iter().map(held).collect();
            assert_eq!(ranks_of_copy(sharing), of_copy, "{sharing:?}");
            let assemblies = places.iter().map(|place| {
                let first = place.rank / of_copy * of_copy;
                Assembly::of(&have[first..first + of_copy], *place, StoredType::Bf16).unwrap()
            });
            let assemblies: Vec<_> = assemblies.collect();
            let sent = assemblies.iter().zip(&ranks);
            let sent: Vec<Blob> = sent
                .map(|(it, own)| it.publish(own, &blobs).unwrap())
                .collect();
            let published = Published::new(&sent, sharing);
            let mut received = vec![0; sharing.ranks() / of_copy];
            for (rank, (assembly, own)) in assemblies
                .iter()
                .zip(published.deal(ranks.len()))
                .enumerate()
            {
                let assembled = assembly.gather(&own).await.unwrap();
                assert!(assembled.weights == expected, "{sharing:?}: rank {rank}");
                assert_eq!(assembled.received, expected.len() as u64 - sent[rank].len());
                received[rank / of_copy] += assembled.received as usize;
            }
            let all = (of_copy - 1) * expected.len();
            assert_eq!(received, vec![all; received.len()], "{sharing:?}");
            assert!(assemblies[0].gather(&Published::default()).await.is_err());
        }
        system.shutdown().await;
    }
}

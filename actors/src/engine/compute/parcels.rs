//! The weights of a model that ranks share, brought together for those who generate with it: each number comes from one
//! rank that has it.
//!
//! Ranks say once which boxes of which tensors they have. A plan ([`between`], the one of resharding) says for each
//! what it sends, and where that belongs in the whole; of ranks that have the same box the one that sends the fewest
//! bytes so far sends it. Each time that weights are published a rank writes its parcel, and all together are the
//! model once: as many bytes as it has.

use odeon::serde::{Deserialize, Serialize};
use odeon::{Failure, Shape};
use odeon_algorithms::parallel::{
    Cut, Home, ModelSpec, Origin, Region, Shards, Span, TensorSpec, Window, between, copy_box,
};
use odeon_algorithms::train::StatePart;
use odeon_algorithms::weights::StoredType;

use super::models::Optimizer;
use super::state::{self, HeldTensor};

/// A box of a tensor: the first index and the number of indices along each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct TensorBox {
    /// The tensor, by its number among all of the model.
    pub tensor: u32,
    /// First indices.
    pub offsets: Vec<u64>,
    /// Numbers of indices.
    pub lengths: Vec<u64>,
}

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// Its extents, outermost first.
    pub shape: Vec<u64>,
}

/// All that a rank has of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct HeldModel {
    /// All tensors of the model, in their order: the same on all ranks.
    pub tensors: Vec<NamedTensor>,
    /// The boxes that it has of them.
    pub boxes: Vec<TensorBox>,
}

impl TensorBox {
    fn of(tensor: usize, region: &Region) -> Self {
        let spans = region.spans();
        Self {
            tensor: tensor as u32,
            offsets: spans.iter().map(|span| span.offset as u64).collect(),
            lengths: spans.iter().map(|span| span.length as u64).collect(),
        }
    }

    fn region(&self) -> Region {
        let spans = self.offsets.iter().zip(&self.lengths);
        let spans = spans.map(|(offset, length)| Span {
            offset: *offset as usize,
            length: *length as usize,
        });
        Region::new(spans.collect())
    }
}

/// The tensors and boxes of an optimiser's model, with its adapters merged.
pub(crate) fn held(optimizer: &Optimizer) -> HeldModel {
    let mut held = HeldModel::default();
    for (number, tensor) in state::weights(optimizer).into_iter().enumerate() {
        let HeldTensor {
            name,
            shape,
            region,
        } = tensor;
        held.tensors.push(NamedTensor {
            name,
            shape: shape.iter().map(|extent| *extent as u64).collect(),
        });
        held.boxes
            .extend(region.map(|region| TensorBox::of(number, &region)));
    }
    held
}

/// The parcels of all ranks, and where their bytes belong.
#[derive(Clone, Debug)]
pub(crate) struct Parcels {
    /// For each rank its boxes, in the order in which they lie in its parcel.
    pub(crate) boxes: Vec<Vec<TensorBox>>,
    /// Where these are in a parcel, and where in the model.
    places: Vec<Vec<(Window, Window)>>,
    /// Bytes of the model.
    pub(crate) bytes: usize,
}

impl Parcels {
    /// A plan for ranks that have these, in numbers of a type.
    ///
    /// # Errors
    /// They have other models, or nobody has some box.
    pub(crate) fn of(ranks: &[HeldModel], stored: StoredType) -> Result<Self, Failure> {
        let first = ranks.first();
        let first = first.ok_or_else(|| Failure::error("there are no ranks"))?;
        if ranks.iter().any(|rank| rank.tensors != first.tensors) {
            return Err(Failure::error("ranks have parts of different models"));
        }
        let tensors = first.tensors.iter().map(|tensor| TensorSpec {
            name: tensor.name.clone(),
            shape: tensor.shape.iter().map(|extent| *extent as usize).collect(),
            element_bytes: stored.bytes(),
            cut: Cut::Whole,
            home: Home::First,
        });
        let model = ModelSpec::new(1, tensors.collect()).map_err(Failure::error)?;
        let own = ranks.iter().map(|rank| {
            let boxes = rank.boxes.iter();
            model.place(boxes.map(|it| (it.tensor as usize, it.region())).collect())
        });
        let own: Result<Vec<Shards>, _> = own.collect();
        let own = own.map_err(Failure::error)?;
        // Who has the model in the end is none of the ranks.
        let mut targets = vec![Shards::default(); ranks.len()];
        targets.push(model.whole());
        let transfers = between(&model, &own, &targets).map_err(Failure::error)?;
        let mut parcels = Self {
            boxes: vec![vec![]; ranks.len()],
            places: vec![vec![]; ranks.len()],
            bytes: model.bytes(),
        };
        let mut ends = vec![0; ranks.len()];
        for transfer in transfers.of(ranks.len()) {
            let Origin::Rank(rank) = transfer.from else {
                return Err(Failure::error("who has nothing sends nothing"));
            };
            let region = transfer.target.region();
            let lengths = region.lengths();
            let whole = Region::whole(&lengths);
            let source = Window::new(ends[rank], stored.bytes(), lengths, whole);
            let source = source.map_err(Failure::error)?;
            ends[rank] = source.end_bytes();
            parcels.boxes[rank].push(TensorBox::of(transfer.tensor, region));
            parcels.places[rank].push((source, transfer.target.clone()));
        }
        Ok(parcels)
    }

    /// Puts the parcel of a rank into the model.
    ///
    /// # Errors
    /// It is not the one that was planned.
    pub(crate) fn put(&self, rank: usize, parcel: &[u8], model: &mut [u8]) -> Result<(), Failure> {
        for (source, target) in &self.places[rank] {
            copy_box(parcel, source, model, target).map_err(Failure::error)?;
        }
        Ok(())
    }
}

/// Bytes of a parcel of these boxes.
pub(crate) fn parcel_bytes(boxes: &[TensorBox], stored: StoredType) -> usize {
    let numbers = boxes.iter().map(|it| it.region().elements());
    numbers.sum::<usize>() * stored.bytes()
}

/// Writes the parcel of a rank, whose boxes are in those that it has.
///
/// # Errors
/// The rank has no such box.
pub(crate) fn write_parcel(
    optimizer: &Optimizer,
    boxes: &[TensorBox],
    stored: StoredType,
    out: &mut [u8],
) -> Result<(), Failure> {
    let tensors = state::weights(optimizer);
    let merged = optimizer.model().has_adapters();
    let merged = merged.then(|| optimizer.model().merged());
    let mut at = 0;
    // Boxes of one tensor follow each other.
    let (mut of, mut numbers) = (None, vec![]);
    for part in boxes {
        let tensor = part.tensor as usize;
        let lacks = || Failure::error(format!("this rank has no box of tensor {tensor}"));
        let own = tensors.get(tensor).and_then(|it| it.region.as_ref());
        let own = own.ok_or_else(lacks)?;
        if of != Some(tensor) {
            of = Some(tensor);
            numbers = match &merged {
                Some(all) => {
                    let range = &optimizer.model().layout().entries()[tensor].range;
                    all[range.clone()].to_vec()
                }
                None => {
                    let mut numbers = vec![0.0; own.elements()];
                    let from = optimizer.held(StatePart::Parameters, tensor).start;
                    optimizer.read_part(StatePart::Parameters, from, &mut numbers);
                    numbers
                }
            };
        }
        // Counted in numbers.
        let within = part.region().relative_to(own);
        let window = Window::new(0, 1, own.lengths(), within).map_err(Failure::error)?;
        for run in window.ranges() {
            let end = at + run.len() * stored.bytes();
            let room = out.get_mut(at..end);
            let room = room.ok_or_else(|| Failure::error("the room for a parcel is too small"))?;
            stored.write(&numbers[run], room);
            at = end;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use odeon_algorithms::model::{LayerBlock, ModelConfig, Moe};
    use odeon_algorithms::train::{Sharing, TrainConfig, ZeroStage};

    use super::*;
    use crate::engine::compute::{ComputePlace, ModelSource, RankPlace};

    fn config(experts: bool) -> ModelConfig {
        let mut config = ModelConfig {
            vocab: 33,
            dim: 16,
            layers: 4,
            heads: 4,
            kv_heads: 2,
            ffn: 24,
            ..ModelConfig::default()
        };
        if experts {
            config.block = LayerBlock::Moe(Moe {
                experts: 4,
                experts_per_token: 2,
            });
        }
        config
    }

    /// Every plan of ranks gives the whole model once, each number as the model has it, and copies of the model
    /// share the work.
    #[test]
    fn parcels_of_any_plan_are_the_model() {
        let plans = [
            Sharing {
                copies: 4,
                ..Sharing::ALONE
            },
            Sharing {
                copies: 2,
                tensor: 2,
                ..Sharing::ALONE
            },
            Sharing {
                stages: 2,
                tensor: 2,
                ..Sharing::ALONE
            },
            Sharing {
                copies: 2,
                stages: 2,
                chunks: 2,
                ..Sharing::ALONE
            },
            Sharing {
                copies: 3,
                zero: ZeroStage::Parameters,
                ..Sharing::ALONE
            },
            Sharing {
                copies: 4,
                zero: ZeroStage::Gradients,
                shards: Some(2),
                ..Sharing::ALONE
            },
            Sharing {
                copies: 2,
                tensor: 2,
                zero: ZeroStage::Parameters,
                ..Sharing::ALONE
            },
            Sharing {
                copies: 2,
                context: 2,
                ..Sharing::ALONE
            },
            Sharing {
                copies: 2,
                zero: ZeroStage::Optimizer,
                ..Sharing::ALONE
            },
        ];
        let of_experts = [
            Sharing {
                experts: 2,
                ..Sharing::ALONE
            },
            Sharing {
                copies: 2,
                experts: 2,
                zero: ZeroStage::Parameters,
                ..Sharing::ALONE
            },
        ];
        for (stored, experts) in [
            (StoredType::F32, false),
            (StoredType::Bf16, false),
            (StoredType::F32, true),
        ] {
            let config = config(experts);
            let plans = match experts {
                true => &of_experts[..],
                false => &plans[..],
            };
            let source = ModelSource::Fresh(Box::new(config.clone()));
            let part = |place: &RankPlace| {
                let part = ComputePlace::PROCESSOR.part((&source, 3), false, (place, 1));
                part.expect("a part")
            };
            let flat = part(&RankPlace::ALONE).to_flat();
            let mut expected = vec![0; flat.len() * stored.bytes()];
            stored.write(&flat, &mut expected);
            for &sharing in plans {
                let ranks: Vec<Optimizer> = (0..sharing.ranks())
                    .map(|rank| RankPlace { sharing, rank })
                    .map(|it| it.optimizer(part(&it), TrainConfig::default()))
                    .collect();
                let have: Vec<HeldModel> = ranks.iter().map(held).collect();
                let parcels = Parcels::of(&have, stored).expect("a plan");
                assert_eq!(parcels.bytes, expected.len());
                let (mut whole, mut sent) = (vec![0xff; parcels.bytes], 0);
                let mut most = 0;
                for (rank, optimizer) in ranks.iter().enumerate() {
                    let boxes = &parcels.boxes[rank];
                    let mut parcel = vec![0; parcel_bytes(boxes, stored)];
                    write_parcel(optimizer, boxes, stored, &mut parcel).expect("a parcel");
                    parcels.put(rank, &parcel, &mut whole).expect("the same");
                    sent += parcel.len();
                    most = most.max(parcel.len());
                }
                assert_eq!(sent, expected.len(), "{sharing:?}");
                assert!(whole == expected, "{sharing:?}");
                // No tensor is more than an eighth of this model.
                assert!(
                    most <= sent / sharing.ranks() + sent / 8,
                    "{sharing:?}: {most} of {sent}"
                );
            }
        }
    }
}

//! Tests of layouts and resharding, with what they compare with: everything element by element.

use odeon_mesh::{DP, Mesh, PP, TP, mesh};
use proptest::{prelude::*, sample::select};

use super::*;

mod boxes;
mod cuts;
mod groups;
mod placements;
mod plans;
mod volumes;

/// A training and a generation layout of at most 64 ranks.
#[derive(Clone, Debug)]
struct Layouts {
    training: Mesh,
    /// May be grouped either way.
    generation: Mesh,
    /// May be grouped in the usual way.
    usual: Mesh,
}

impl Layouts {
    fn of(&self, grouping: Grouping) -> &Mesh {
        match grouping {
            Grouping::Usual => &self.usual,
            Grouping::Strided => &self.generation,
        }
    }
}

fn layout(pipeline: usize, tensor: usize, data: usize) -> Mesh {
    mesh! { dp: data, pp: pipeline, tp: tensor }
}

fn generation(pipeline: usize, tensor: usize) -> Mesh {
    mesh! { pp: pipeline, tp: tensor }
}

/// Ranks of one replica.
fn replica_ranks(mesh: &Mesh) -> usize {
    mesh.size(PP) * mesh.size(TP)
}

fn divisors(number: usize) -> Vec<usize> {
    (1..=number).filter(|n| number.is_multiple_of(*n)).collect()
}

fn trainings() -> impl Strategy<Value = Mesh> {
    let shards = (
        select(vec![1, 2, 3, 4, 6, 8]),
        select(vec![1, 2, 3, 4, 6, 8, 16]),
    );
    let fitting = shards.prop_filter("at most 64 ranks", |(p, t)| p * t <= 64);
    fitting.prop_flat_map(|(p, t)| (1..=64 / (p * t)).prop_map(move |d| layout(p, t, d)))
}

fn layouts() -> impl Strategy<Value = Layouts> {
    trainings().prop_flat_map(|training| {
        let (p, t) = (divisors(training.size(PP)), divisors(training.size(TP)));
        let both = (select(p), select(t)).prop_map(|(p, t)| generation(p, t));
        (both, usual(&training)).prop_map(move |(generation, usual)| Layouts {
            training: training.clone(),
            generation,
            usual,
        })
    })
}

/// Any that divides a replica, of few stages.
fn usual(training: &Mesh) -> impl Strategy<Value = Mesh> + use<> {
    let ranks = select(divisors(replica_ranks(training)));
    ranks.prop_flat_map(|ranks| {
        let mut stages = divisors(ranks);
        stages.retain(|&stages| stages <= 8);
        select(stages).prop_map(move |stages| generation(stages, ranks / stages))
    })
}

fn groupings() -> impl Strategy<Value = Grouping> {
    select(vec![Grouping::Usual, Grouping::Strided])
}

/// Layouts with a small model that can be cut for them: uneven parts, shared heads, tied ends,
/// whole tensors, one to three dimensions, one to four bytes an element.
fn worlds() -> impl Strategy<Value = (Layouts, ModelSpec)> {
    layouts().prop_flat_map(|layouts| {
        let most = |dim| layouts.training.size(dim).max(layouts.usual.size(dim));
        let model = models(most(PP), most(TP));
        (Just(layouts), model)
    })
}

/// A model that at least so many stages and tensor ranks can share.
fn models(stages: usize, ranks: usize) -> impl Strategy<Value = ModelSpec> {
    let layer = prop::collection::vec(tensors(ranks), 1..4);
    let ends = prop::collection::vec(
        (
            tensors(ranks),
            select(vec![Home::First, Home::Last, Home::Ends]),
        ),
        0..3,
    );
    (stages..stages + 3, layer, ends).prop_map(|(layers, layer, ends)| {
        let mut all = vec![];
        for index in 0..layers {
            for (at, tensor) in layer.iter().enumerate() {
                all.push(TensorSpec {
                    name: format!("layer.{index}.{at}"),
                    home: Home::Layer(index),
                    ..tensor.clone()
                });
            }
        }
        for (at, (tensor, home)) in ends.into_iter().enumerate() {
            let name = format!("end.{at}");
            all.push(TensorSpec {
                name,
                home,
                ..tensor
            });
        }
        ModelSpec::new(layers, all).unwrap()
    })
}

fn tensors(ranks: usize) -> impl Strategy<Value = TensorSpec> {
    let kind = prop_oneof![Just("whole"), Just("split"), Just("cover")];
    let shape = prop::collection::vec(1..4_usize, 1..4);
    let bytes = select(vec![1, 2, 4]);
    (kind, shape, bytes, 0..3_usize, 1..3_usize, 0..4_usize).prop_map(
        move |(kind, mut shape, element_bytes, dim, unit, more)| {
            let dim = dim % shape.len();
            let cut = match kind {
                "whole" => Cut::Whole,
                "split" => {
                    shape[dim] = unit * (ranks + more);
                    Cut::Split { dim, unit }
                }
                _ => {
                    shape[dim] = unit * (more + 1);
                    Cut::Cover { dim, unit }
                }
            };
            TensorSpec {
                name: String::new(),
                shape,
                element_bytes,
                cut,
                home: Home::First,
            }
        },
    )
}

/// The indices of a box one by one, row by row.
fn indices(region: &Region) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for span in region.spans() {
        let longer = all.iter().flat_map(|index: &Vec<usize>| {
            (span.offset..span.end()).map(|at| [index.as_slice(), &[at]].concat())
        });
        all = longer.collect();
    }
    all
}

/// The place of an index in an array of `shape`, row by row.
fn place(index: &[usize], shape: &[usize]) -> usize {
    index
        .iter()
        .zip(shape)
        .fold(0, |sum, (at, extent)| sum * extent + at)
}

/// The buffer of a rank that has these shards of a model whose every byte is of its own.
fn numbered(model: &ModelSpec, shards: &Shards) -> Vec<u8> {
    let mut buffer = vec![];
    for shard in shards.as_slice() {
        assert_eq!(shard.start_bytes, buffer.len(), "boxes follow each other");
        let shape = &model.tensors()[shard.tensor].shape;
        for index in indices(&shard.region) {
            let element = place(&index, shape);
            buffer.extend((0..shard.element_bytes).map(|byte| number(shard.tensor, element, byte)));
        }
    }
    buffer
}

/// As good as random (splitmix64).
fn number(tensor: usize, element: usize, byte: usize) -> u8 {
    let mut mixed = ((tensor << 40) + (element << 3) + byte) as u64;
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
    }
    (mixed >> 56) as u8
}

/// All elements of all boxes.
fn elements(model: &ModelSpec, shards: &Shards) -> Vec<(usize, usize)> {
    let of_shard = |shard: &Shard| {
        let shape = model.tensors()[shard.tensor].shape.clone();
        let tensor = shard.tensor;
        indices(&shard.region)
            .into_iter()
            .map(move |index| (tensor, place(&index, &shape)))
    };
    shards.as_slice().iter().flat_map(of_shard).collect()
}

/// Carries out what a rank copies, and checks what holds of all copies: each byte of the target is
/// filled once, with the box that belongs there, from a rank that has it.
fn carry_out(
    transfers: &[Transfer],
    rank: usize,
    sources: &[Shards],
    buffers: &[Vec<u8>],
    target: &Shards,
) -> Vec<u8> {
    let mut filled = vec![0; target.bytes()];
    let mut times = vec![0; target.bytes()];
    for transfer in transfers {
        let sender = transfer.sender(rank);
        assert_eq!(
            transfer.from == Origin::Own,
            sender == rank,
            "nothing is sent to oneself"
        );
        let from = whole_box(&sources[sender], transfer.tensor, &transfer.source);
        let to = whole_box(target, transfer.tensor, &transfer.target);
        assert_eq!(from, to, "another box");
        for range in transfer.target.ranges() {
            times[range].iter_mut().for_each(|times| *times += 1);
        }
        transfer.apply(&buffers[sender], &mut filled).unwrap();
    }
    assert!(
        times.iter().all(|times| *times == 1),
        "a byte is filled once"
    );
    filled
}

/// The box of a window into a rank's buffer, relative to the tensor.
fn whole_box(shards: &Shards, tensor: usize, window: &Window) -> Region {
    let at = |shard: &&Shard| shard.start_bytes == window.start_bytes();
    let shard = shards
        .of(tensor)
        .iter()
        .find(at)
        .expect("a box begins there");
    assert_eq!(window.shape(), shard.region.lengths());
    assert_eq!(window.element_bytes(), shard.element_bytes);
    let pairs = window.region().spans().iter().zip(shard.region.spans());
    Region::new(
        pairs
            .map(|(span, outer)| Span {
                offset: outer.offset + span.offset,
                length: span.length,
            })
            .collect(),
    )
}

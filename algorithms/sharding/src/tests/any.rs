//! Any sharding; and the elements of a rank as they are found by slicing a whole tensor, with no
//! arithmetic of the crate.

use odeon_collective::Reduce;
use odeon_mesh::Mesh;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::{Placement, Sharding};

pub(crate) const NAMES: [&str; 3] = ["dp", "fsdp", "tp"];

/// Meshes of 2 to 8 ranks in 1 to 3 dimensions.
pub(crate) fn meshes() -> impl Strategy<Value = Mesh> {
    let one = (2usize..=8).prop_map(|size| vec![size]);
    let two =
        (1usize..=4, 2usize..=4).prop_map(|(a, b)| if a * b > 8 { vec![2, b] } else { vec![a, b] });
    let three = (1usize..=2, 1usize..=2, 2usize..=3).prop_map(|(a, b, c)| match a * b * c {
        12 => vec![a, b, 2],
        _ => vec![a, b, c],
    });
    prop_oneof![1 => one, 2 => two, 2 => three]
        .prop_shuffle()
        .prop_map(|sizes| Mesh::new(NAMES.into_iter().zip(sizes)).unwrap())
}

/// Shapes of 1 to 5 dimensions; some are empty.
pub(crate) fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        30 => vec(1usize..=6, 1..=3),
        10 => vec(1usize..=4, 4..=5),
        1 => vec(0usize..=3, 1..=3),
        5 => vec(Just(12usize), 1..=2),
    ]
}

/// Choices that become a placement once the mesh and shape are known.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    kind: u8,
    picks: Vec<Index>,
}

pub(crate) fn choices() -> impl Strategy<Value = Vec<Choice>> {
    let choice =
        (0u8..14, vec(any::<Index>(), 12)).prop_map(|(kind, picks)| Choice { kind, picks });
    vec(choice, 3)
}

/// The sharding of these choices. What cannot be becomes `Replicate`; addends are reduced with `reduce`.
pub(crate) fn sharding(
    mesh: &Mesh,
    shape: &[usize],
    choices: &[Choice],
    reduce: Reduce,
) -> Sharding {
    let whole = vec![Placement::Replicate; mesh.dims().len()];
    let mut made = Sharding::new("w", mesh.clone(), shape, whole).unwrap();
    // Ragged ones last, when what they cut is known.
    let ragged = |choice: &Choice| choice.kind >= 9;
    for pass in [false, true] {
        for (along, choice) in choices.iter().take(mesh.dims().len()).enumerate() {
            if ragged(choice) != pass {
                continue;
            }
            let mut placements = made.placements().to_vec();
            placements[along] = placement(&made, along, choice, reduce);
            if let Ok(placed) = made.placed(placements) {
                made = placed;
            }
        }
    }
    made
}

fn placement(so_far: &Sharding, along: usize, choice: &Choice, reduce: Reduce) -> Placement {
    let dim = choice.picks[0].index(so_far.shape().len());
    match choice.kind {
        0..=1 => Placement::Replicate,
        2..=4 => Placement::Shard(dim),
        5..=6 => Placement::Partial(reduce),
        7..=8 => {
            let extent = so_far.shape()[dim];
            let divisors: Vec<usize> = (1..=extent.max(1))
                .filter(|it| extent.is_multiple_of(*it))
                .collect();
            let parts = divisors[choice.picks[1].index(divisors.len())];
            Placement::Interleaved { dim, parts }
        }
        _ if so_far
            .placements()
            .iter()
            .any(|it| matches!(it, Placement::Ragged { .. })) =>
        {
            Placement::Replicate
        }
        _ => ragged(so_far, along, choice),
    }
}

/// Units whose sum divides the rows of every rank: of any shares, or all for one rank.
fn ragged(so_far: &Sharding, along: usize, choice: &Choice) -> Placement {
    let dims = 1 + choice.picks[0].index(so_far.shape().len());
    let ranks = so_far.mesh().dims()[along].size;
    let rows = so_far.mesh().ranks().map(|rank| {
        let (shape, _) = sliced(so_far, rank.index());
        shape[..dims].iter().product::<usize>()
    });
    let common = rows.fold(0, gcd);
    let divisors: Vec<usize> = (1..=common.max(1))
        .filter(|it| common.is_multiple_of(*it))
        .collect();
    let total = match choice.kind {
        9 => 1,
        10..=11 => *divisors.last().unwrap(),
        _ => divisors[choice.picks[1].index(divisors.len())],
    };
    let mut units = vec![0; ranks];
    for nth in 0..total {
        units[choice.picks[2 + nth % 10].index(ranks * (1 + nth)) % ranks] += 1;
    }
    Placement::Ragged { dims, units }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A tensor in which each element is its global index, cut for a rank step by step.
pub(crate) fn sliced(sharding: &Sharding, rank: usize) -> (Vec<usize>, Vec<usize>) {
    let shape = sharding.shape().to_vec();
    let mut tensor: (Vec<usize>, Vec<usize>) = (shape, (0..sharding.elements()).collect());
    let dims = sharding.mesh().dims().iter().zip(sharding.placements());
    let coordinates = sharding.mesh().rank(rank).unwrap().coordinates();
    for ((along, placement), at) in dims.clone().zip(&coordinates) {
        match placement {
            Placement::Shard(dim) => tensor = chunk(&tensor, *dim, *at, along.size),
            Placement::Interleaved { dim, parts } => {
                let part = tensor.0[*dim] / parts;
                let chunks: Vec<_> = (0..*parts)
                    .map(|nth| {
                        let part = rows(&tensor, *dim, nth * part, (nth + 1) * part);
                        chunk(&part, *dim, *at, along.size)
                    })
                    .collect();
                tensor = joined(&chunks, *dim);
            }
            _ => {}
        }
    }
    for ((_, placement), at) in dims.zip(&coordinates) {
        if let Placement::Ragged { dims, units } = placement {
            let (shape, elements) = &tensor;
            let count: usize = shape[..*dims].iter().product();
            let mut flat = vec![count];
            flat.extend(&shape[*dims..]);
            let each = count / units.iter().sum::<usize>();
            let start: usize = units[..*at].iter().sum();
            let end = start + units[*at];
            tensor = rows(&(flat, elements.clone()), 0, start * each, end * each);
        }
    }
    tensor
}

type Dense = (Vec<usize>, Vec<usize>);

/// As `torch.chunk` gives it, with empty ones behind the last.
fn chunk(tensor: &Dense, dim: usize, at: usize, ranks: usize) -> Dense {
    let extent = tensor.0[dim];
    let size = extent.div_ceil(ranks);
    let start = (size * at).min(extent);
    rows(tensor, dim, start, (start + size).min(extent))
}

fn rows((shape, elements): &Dense, dim: usize, start: usize, end: usize) -> Dense {
    let inner: usize = shape[dim + 1..].iter().product();
    let kept = elements.iter().enumerate().filter(|(at, _)| {
        let index = at / inner.max(1) % shape[dim];
        (start..end).contains(&index)
    });
    let kept = kept.map(|(_, element)| *element).collect();
    let mut cut = shape.clone();
    cut[dim] = end - start;
    (cut, kept)
}

fn joined(parts: &[Dense], dim: usize) -> Dense {
    let mut shape = parts[0].0.clone();
    shape[dim] = parts.iter().map(|(shape, _)| shape[dim]).sum();
    // Their elements are numbered in the order of the tensor.
    let mut elements: Vec<usize> = parts
        .iter()
        .flat_map(|(_, elements)| elements.clone())
        .collect();
    elements.sort_unstable();
    (shape, elements)
}

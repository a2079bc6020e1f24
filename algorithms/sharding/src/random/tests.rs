//! Draws on meshes against draws on one device, to the bit.

use std::cell::Cell;

use odeon_collective::Reduce;
use odeon_mesh::{Mesh, mesh};
use odeon_simd::philox;
use proptest::prelude::*;

use super::{Drawing, RandomStream};
use crate::tests::any::{choices, meshes, shapes, sharding, sliced};
use crate::{Placement, Sharding};

/// A draw of a tensor, as bits.
type Draw = fn(&mut RandomStream, &Drawing, usize) -> Vec<u32>;

fn uniform(stream: &mut RandomStream, drawing: &Drawing, len: usize) -> Vec<u32> {
    let mut out = vec![f32::NAN; len];
    stream.uniform(drawing, -1.5..2.5, &mut out).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}

fn normal(stream: &mut RandomStream, drawing: &Drawing, len: usize) -> Vec<u32> {
    let mut out = vec![f32::NAN; len];
    stream.normal(drawing, 0.5, 0.02, &mut out).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}

fn keep(stream: &mut RandomStream, drawing: &Drawing, len: usize) -> Vec<u32> {
    let mut out = vec![false; len];
    stream.keep(drawing, 0.9, &mut out).unwrap();
    out.into_iter().map(u32::from).collect()
}

const START: RandomStream = RandomStream {
    seed: 17,
    offset: 3,
};

fn on_one_device(shape: &[usize], draw: Draw) -> (Vec<u32>, RandomStream) {
    let alone = Sharding::new("w", mesh! {}, shape, []).unwrap();
    let mut stream = START;
    let drawing = Drawing::new(&alone, 0).unwrap();
    let drawn = draw(&mut stream, &drawing, alone.elements());
    (drawn, stream)
}

/// Draws on every rank, and compares with the slice of what one device draws.
fn compare(sharding: &Sharding, (whole, after): &(Vec<u32>, RandomStream), draw: Draw) {
    for rank in 0..sharding.mesh().len() {
        let elements = sliced(sharding, rank).1;
        let mut stream = START;
        let drawing = Drawing::new(sharding, rank).unwrap();
        let drawn = draw(&mut stream, &drawing, elements.len());
        let expected: Vec<u32> = elements.iter().map(|element| whole[*element]).collect();
        assert!(drawn == expected, "rank {rank} of {sharding}");
        assert_eq!(stream, *after, "rank {rank} of {sharding}");
    }
}

/// All placements but addends along a dimension of so many ranks: each dimension by itself, in all
/// equal parts; rows, elements and everything ragged.
fn placements(shape: &[usize], ranks: usize) -> Vec<Placement> {
    let mut all = vec![Placement::Replicate];
    for (dim, extent) in shape.iter().enumerate() {
        all.push(Placement::Shard(dim));
        let parts = (2..=*extent).filter(|parts| extent % parts == 0);
        all.extend(parts.map(|parts| Placement::Interleaved { dim, parts }));
    }
    for dims in 1..=shape.len() {
        let rows: usize = shape[..dims].iter().product();
        let mut one_hot = vec![0; ranks];
        one_hot[ranks / 2] = 1;
        let mut uneven = vec![0; ranks];
        uneven[0] = rows / 3;
        uneven[ranks - 1] += rows - rows / 3;
        all.extend([one_hot, uneven].map(|units| Placement::Ragged { dims, units }));
    }
    all
}

/// All shardings of a shape on a mesh, as far as they can be.
fn shardings(mesh: &Mesh, shape: &[usize]) -> Vec<Sharding> {
    let mut tuples: Vec<Vec<Placement>> = vec![vec![]];
    for dim in mesh.dims() {
        let along = placements(shape, dim.size);
        let longer = |tuple: &Vec<Placement>| {
            let tuple = tuple.clone();
            along
                .iter()
                .map(move |placement| [&tuple[..], std::slice::from_ref(placement)].concat())
                .collect::<Vec<_>>()
        };
        tuples = tuples.iter().flat_map(longer).collect();
    }
    tuples
        .into_iter()
        .filter_map(|tuple| Sharding::new("w", mesh.clone(), shape, tuple).ok())
        .collect()
}

fn meshes_of_all() -> [Mesh; 5] {
    [
        mesh! { tp: 2 },
        mesh! { tp: 3 },
        mesh! { tp: 8 },
        mesh! { fsdp: 2, tp: 2 },
        mesh! { fsdp: 4, tp: 2 },
    ]
}

/// Compares all shardings of a shape on these meshes, and gives their number.
fn compare_all(shape: &[usize], meshes: &[Mesh], draws: &[Draw]) -> usize {
    let wholes: Vec<_> = draws
        .iter()
        .map(|draw| (on_one_device(shape, *draw), *draw))
        .collect();
    let all: Vec<Sharding> = meshes
        .iter()
        .flat_map(|mesh| shardings(mesh, shape))
        .collect();
    for sharding in &all {
        for (whole, draw) in &wholes {
            compare(sharding, whole, *draw);
        }
    }
    all.len()
}

#[test]
fn numbers_are_those_of_one_device_for_all_placements() {
    let draws: [Draw; 2] = [uniform, normal];
    let compared: Vec<usize> = [&[8, 4][..], &[4, 4, 4], &[8, 8, 4, 4]]
        .map(|shape| compare_all(shape, &meshes_of_all(), &draws))
        .into();
    assert!(compared.iter().all(|count| *count > 100), "{compared:?}");
}

#[test]
fn numbers_of_five_dimensions_are_those_of_one_device_for_all_placements() {
    let meshes = [mesh! { tp: 4 }, mesh! { fsdp: 2, tp: 2 }];
    assert!(compare_all(&[5, 6, 7, 8, 9], &meshes, &[uniform]) > 500);
}

#[test]
fn masks_are_those_of_one_device_for_all_placements() {
    let compared: Vec<usize> = [&[9, 7][..], &[4, 16, 16], &[7, 5, 16]]
        .map(|shape| compare_all(shape, &meshes_of_all(), &[keep]))
        .into();
    assert!(compared.iter().all(|count| *count > 100), "{compared:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn numbers_are_those_of_one_device_on_any_mesh(
        mesh in meshes(), shape in shapes(), choices in choices(),
    ) {
        let sharding = sharding(&mesh, &shape, &choices, Reduce::Sum).drawn();
        for draw in [uniform as Draw, normal, keep] {
            compare(&sharding, &on_one_device(&shape, draw), draw);
        }
    }
}

/// Counters 3, 4 and 5 under key 17, worked out by another program.
#[test]
fn known_streams_give_known_numbers() {
    let sharding = Sharding::new("w", mesh! {}, [10], []).unwrap();
    let drawing = Drawing::new(&sharding, 0).unwrap();
    let mut numbers = [0.0; 10];
    let mut stream = START;
    stream.uniform(&drawing, 0.0..1.0, &mut numbers).unwrap();
    assert_eq!(
        numbers,
        [
            0.325_920_4,
            0.087_992_73,
            0.888_900_64,
            0.551_365_3,
            0.622_215_5,
            0.292_367_04,
            0.240_395_78,
            0.806_174_1,
            0.602_398_8,
            0.502_993_5
        ]
    );
    assert_eq!(stream.offset, 6);
    START
        .clone()
        .normal(&drawing, 0.0, 1.0, &mut numbers)
        .unwrap();
    assert_eq!(
        numbers,
        [
            -0.451_206_36,
            -1.353_219_5,
            1.220_702_6,
            0.129_111_63,
            0.311_304_8,
            -0.546_482_7,
            -0.705_029_85,
            0.863_883_73,
            0.259_561_18,
            0.007_503_741_4
        ]
    );
    let mut kept = [false; 10];
    START.clone().keep(&drawing, 0.75, &mut kept).unwrap();
    assert_eq!(
        kept,
        [true, true, false, true, true, true, true, false, true, true]
    );
}

#[test]
fn draws_have_the_moments_that_they_name() {
    let sharding = Sharding::new("w", mesh! {}, [100_000], []).unwrap();
    let drawing = Drawing::new(&sharding, 0).unwrap();
    let mut stream = RandomStream::new(1);
    let moments = |numbers: &[f32]| {
        let count = numbers.len() as f64;
        let mean = numbers.iter().map(|it| f64::from(*it)).sum::<f64>() / count;
        let square = numbers
            .iter()
            .map(|it| (f64::from(*it) - mean).powi(2))
            .sum::<f64>()
            / count;
        (mean, square.sqrt())
    };
    let mut numbers = vec![0.0; 100_000];
    stream.uniform(&drawing, 1.0..3.0, &mut numbers).unwrap();
    let (mean, deviation) = moments(&numbers);
    assert!((mean - 2.0).abs() < 0.01 && (deviation - 1.0 / 3f64.sqrt()).abs() < 0.01);
    assert!(numbers.iter().all(|it| (1.0..3.0).contains(it)));
    stream.normal(&drawing, 5.0, 2.0, &mut numbers).unwrap();
    let (mean, deviation) = moments(&numbers);
    assert!((mean - 5.0).abs() < 0.03 && (deviation - 2.0).abs() < 0.02);
    for (probability, range) in [
        (0.0, 0..=0),
        (0.9, 89_500..=90_500),
        (1.0, 100_000..=100_000),
    ] {
        let mut kept = vec![false; 100_000];
        stream.keep(&drawing, probability, &mut kept).unwrap();
        assert!(range.contains(&kept.iter().filter(|kept| **kept).count()));
    }
}

/// The largest word of all does not round to the end of the range.
#[test]
fn the_end_of_a_range_is_never_drawn() {
    let sharding = Sharding::new("w", mesh! {}, [400_000], []).unwrap();
    let drawing = Drawing::new(&sharding, 0).unwrap();
    let mut numbers = vec![0.0; 400_000];
    let range = 16_777_215.0..16_777_216.0;
    RandomStream::new(0)
        .uniform(&drawing, range.clone(), &mut numbers)
        .unwrap();
    assert!(numbers.iter().all(|it| range.contains(it)));
}

/// Seeds by rank are fine by themselves, but no rank has the numbers of one device, and another mesh
/// gives other tensors.
#[test]
fn seeds_by_rank_give_other_numbers_than_one_device() {
    let mesh = mesh! { tp: 4 };
    let sharding = Sharding::new("w", mesh, [64, 16], [Placement::Shard(0)]).unwrap();
    let (whole, _) = on_one_device(&[64, 16], normal);
    let mut same = 0;
    for rank in 0..4 {
        let local = sharding.local(rank).unwrap();
        let alone = Sharding::new("w", mesh! {}, local.shape(), []).unwrap();
        let mut stream = RandomStream {
            seed: START.seed + rank as u64,
            ..START
        };
        let drawn = normal(&mut stream, &Drawing::new(&alone, 0).unwrap(), local.len());
        same += (0..local.len())
            .filter(|at| drawn[*at] == whole[local.global(*at).unwrap()])
            .count();
    }
    // Those of rank 0, whose seed is that of the device; of 768 others, hardly one by chance.
    assert!((256..260).contains(&same), "{same} of 1024");
}

/// A card's kernel, made for one element, begins a generator for each; a run takes four numbers a call.
#[test]
fn a_call_of_the_generator_makes_four_numbers() {
    let calls = |placement: Placement| {
        let sharding = Sharding::new("w", mesh! { tp: 4 }, [256, 256], [placement]).unwrap();
        let drawing = Drawing::new(&sharding, 1).unwrap();
        let (called, put) = (Cell::new(0), Cell::new(0));
        let generator = |counter| {
            called.set(called.get() + 1);
            philox(0, counter as u128)
        };
        drawing.each_word(generator, |_, _| put.set(put.get() + 1));
        assert_eq!(put.get(), 16_384);
        called.get()
    };
    assert_eq!(calls(Placement::Shard(0)), 4096);
    assert_eq!(calls(Placement::Shard(1)), 4096);
    // Parts of 16, of which each rank has 4.
    assert_eq!(calls(Placement::Interleaved { dim: 1, parts: 16 }), 4096);
    // Parts of 8, of which each has 2: half of each call is another rank's.
    assert_eq!(calls(Placement::Interleaved { dim: 1, parts: 32 }), 8192);
}

#[test]
fn addends_are_not_drawn() {
    let placements = [Placement::Partial(Reduce::Sum), Placement::Shard(0)];
    let sharding = Sharding::new("w", mesh! { dp: 2, tp: 2 }, [4], placements).unwrap();
    assert_eq!(
        Drawing::new(&sharding, 0).unwrap_err().to_string(),
        "tensor `w` is Partial(sum) along `dp`, and numbers drawn for addends would be reduced to others: draw with \
         `Sharding::drawn`, which is Replicate there"
    );
    let drawn = sharding.drawn();
    assert_eq!(
        drawn.placements(),
        [Placement::Replicate, Placement::Shard(0)]
    );
    compare(&drawn, &on_one_device(&[4], normal), normal);
}

#[test]
fn a_buffer_of_another_length_draws_nothing() {
    let sharding = Sharding::new("w", mesh! { tp: 2 }, [4], [Placement::Shard(0)]).unwrap();
    let drawing = Drawing::new(&sharding, 0).unwrap();
    let mut stream = START;
    let refused = stream
        .normal(&drawing, 0.0, 1.0, &mut [0.0; 4])
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "tensor `w` has 2 elements here, but the buffer has 4: give the whole local part"
    );
    assert_eq!(stream, START);
}

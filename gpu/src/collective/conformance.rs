//! What every transport must make true: each operation gives what plain arithmetic gives, and the
//! same bits on all ranks.

use std::fmt::Debug;

use half::bf16;

use super::schedule::parts;
use super::{Collective, Communicator, Element, Reduce, Transport};

/// Runs every operation at many lengths on this rank, while all other ranks of the gang do the same.
///
/// # Panics
/// At the first result that is wrong.
pub fn check<X: Transport>(comm: &mut Communicator<X>) {
    for len in [0, 1, 2, 7, 100, 1025, 40_000] {
        check_at::<f32, X>(comm, len);
        check_at::<bf16, X>(comm, len);
    }
}

/// Runs every operation at one length, in elements.
///
/// # Panics
/// At the first result that is wrong.
pub fn check_at<T: Sample, X: Transport>(comm: &mut Communicator<X>, len: usize) {
    let (rank, world) = (comm.membership().rank, comm.membership().world());
    let what = format!("{len} {} of rank {rank} of {world}", T::TYPE);
    comm.barrier().expect("barrier");

    for reduce in [Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min] {
        let mut data = vector::<T>(rank, len);
        comm.all_reduce(&mut data, reduce).expect("all-reduce");
        expect_near(
            &data,
            &reduced(reduce, world, 0..len),
            &format!("all-reduce {reduce}, {what}"),
        );
        same_bits(comm, &data, &what);
    }
    for root in [0, world - 1] {
        let mut data = vector::<T>(rank, len);
        comm.broadcast(&mut data, root).expect("broadcast");
        assert_eq!(
            data,
            vector::<T>(root, len),
            "broadcast from {root}, {what}"
        );
    }

    let mut gathered = vec![T::default(); len * world];
    comm.all_gather(&vector::<T>(rank, len), &mut gathered)
        .expect("all-gather");
    let whole: Vec<T> = (0..world).flat_map(|rank| vector::<T>(rank, len)).collect();
    assert_eq!(gathered, whole, "all-gather, {what}");

    // Parts that differ in length, one of them empty.
    let counts: Vec<usize> = (0..world).map(|rank| len * (rank % 3) / 2).collect();
    let total: usize = counts.iter().sum();
    let mut gathered = vec![T::default(); total];
    comm.all_gather_v(&vector::<T>(rank, counts[rank]), &counts, &mut gathered)
        .expect("all-gather-v");
    let whole: Vec<T> = (0..world)
        .flat_map(|rank| vector::<T>(rank, counts[rank]))
        .collect();
    assert_eq!(gathered, whole, "all-gather of uneven parts, {what}");

    for reduce in [Reduce::Mean, Reduce::Max] {
        let mut mine = vec![T::default(); len];
        comm.reduce_scatter(&vector::<T>(rank, len * world), &mut mine, reduce)
            .expect("reduce-scatter");
        let part = rank * len..(rank + 1) * len;
        expect_near(
            &mine,
            &reduced(reduce, world, part),
            &format!("reduce-scatter {reduce}, {what}"),
        );
        let mut mine = vec![T::default(); counts[rank]];
        comm.reduce_scatter_v(&vector::<T>(rank, total), &counts, &mut mine, reduce)
            .expect("reduce-scatter-v");
        let part = parts(&counts)[rank].clone();
        expect_near(
            &mine,
            &reduced(reduce, world, part),
            &format!("uneven reduce-scatter {reduce}, {what}"),
        );
    }

    let piece = |from: usize, to: usize, len: usize| vector::<T>(from * world + to, len);
    let input: Vec<T> = (0..world).flat_map(|to| piece(rank, to, len)).collect();
    let mut output = vec![T::default(); len * world];
    comm.all_to_all(&input, &mut output).expect("all-to-all");
    let expect: Vec<T> = (0..world).flat_map(|from| piece(from, rank, len)).collect();
    assert_eq!(output, expect, "all-to-all, {what}");

    let size = |from: usize, to: usize| len * ((from + 2 * to) % 4) / 2;
    let to: Vec<usize> = (0..world).map(|to| size(rank, to)).collect();
    let from: Vec<usize> = (0..world).map(|from| size(from, rank)).collect();
    let input: Vec<T> = (0..world)
        .flat_map(|to| piece(rank, to, size(rank, to)))
        .collect();
    let mut output = vec![T::default(); from.iter().sum()];
    comm.all_to_all_v(&input, &to, &mut output, &from)
        .expect("all-to-all-v");
    let expect: Vec<T> = (0..world)
        .flat_map(|from| piece(from, rank, size(from, rank)))
        .collect();
    assert_eq!(output, expect, "uneven all-to-all, {what}");

    check_pairs::<T, X>(comm, len);
}

/// Each rank gives to the next one, even ranks first.
fn check_pairs<T: Sample, X: Transport>(comm: &mut Communicator<X>, len: usize) {
    let (rank, world) = (comm.membership().rank, comm.membership().world());
    if world < 2 {
        return;
    }
    let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
    let mut got = vec![T::default(); len];
    for turn in 0..2 {
        if rank % 2 == turn {
            comm.send(&vector::<T>(rank, len), next).expect("send");
        } else {
            comm.receive(&mut got, before).expect("receive");
        }
    }
    assert_eq!(
        got,
        vector::<T>(before, len),
        "{len} from rank {before} to {rank}"
    );
}

fn same_bits<T: Sample, X: Transport>(comm: &mut Communicator<X>, data: &[T], what: &str) {
    // As numbers that f32 holds exactly.
    let hash = bytemuck::cast_slice::<T, u8>(data)
        .iter()
        .fold(0u32, |hash, byte| {
            hash.wrapping_mul(16_777_619) ^ u32::from(*byte)
        });
    let hash = (hash ^ (hash >> 16)) & 0xffff;
    let mut all = vec![0.0f32; comm.membership().world()];
    comm.all_gather(&[hash as f32], &mut all)
        .expect("all-gather");
    assert!(
        all.iter().all(|other| *other == hash as f32),
        "bits differ between ranks: {what}"
    );
}

/// Elements as checks make them.
pub trait Sample: Element {
    /// The nearest element.
    fn of(value: f32) -> Self;
    /// Its value.
    fn value(self) -> f32;
    /// The relative error of one rounding.
    const EPSILON: f64;
}

impl Sample for f32 {
    fn of(value: f32) -> Self {
        value
    }
    fn value(self) -> f32 {
        self
    }
    const EPSILON: f64 = 1.0 / (1 << 23) as f64;
}

impl Sample for bf16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
    const EPSILON: f64 = 1.0 / 256.0;
}

/// A number of a rank that bf16 holds exactly, so that only sums are rounded.
fn value(rank: usize, i: usize) -> f32 {
    let mixed = (rank * 7919 + i + 1).wrapping_mul(2_654_435_761) >> 7;
    ((mixed % 255) as f32 - 127.0) / 8.0
}

fn vector<T: Sample>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| T::of(value(rank, i))).collect()
}

fn reduced(reduce: Reduce, world: usize, range: std::ops::Range<usize>) -> Vec<f64> {
    let one = |i: usize| {
        let values = (0..world).map(|rank| f64::from(value(rank, i)));
        match reduce {
            Reduce::Sum => values.sum(),
            Reduce::Mean => values.sum::<f64>() / world as f64,
            Reduce::Max => values.fold(f64::NEG_INFINITY, f64::max),
            Reduce::Min => values.fold(f64::INFINITY, f64::min),
        }
    };
    range.map(one).collect()
}

fn expect_near<T: Sample + Debug>(got: &[T], expect: &[f64], what: &str) {
    assert_eq!(got.len(), expect.len(), "{what}");
    for (i, (got, expect)) in got.iter().zip(expect).enumerate() {
        let error = (f64::from(got.value()) - expect).abs();
        // Sums are exact in f32, and the result is rounded once.
        assert!(
            error <= expect.abs() * T::EPSILON,
            "{what}: {got:?} for {expect} at {i}"
        );
    }
}

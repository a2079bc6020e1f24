//! Conformance suites for every transport and every back-end: each operation gives what plain
//! arithmetic gives, and the same bits on all ranks.

use std::fmt::Debug;

use half::bf16;

use super::schedule::parts;
use super::{Collective, Communicator, Element, Reduce, Transport};

/// Puts numbers where a back-end works, and takes them from there, for the checks.
pub trait Bench<L: Collective> {
    /// Owns memory that the back-end works on.
    type Held<T: Element>;

    /// True when sums are rounded after each addition, and not once.
    const ROUNDS_EACH: bool;

    /// Memory with these numbers.
    fn put<T: Element>(&self, values: &[T]) -> Self::Held<T>;

    /// The numbers in it.
    fn get<T: Element>(&self, held: &Self::Held<T>) -> Vec<T>;

    /// As an input.
    fn input<'a, T: Element>(&self, held: &'a Self::Held<T>) -> &'a L::Buffer<T>;

    /// As an output.
    fn output<'a, T: Element>(&self, held: &'a mut Self::Held<T>) -> &'a mut L::Buffer<T>;
}

/// [`Bench`] of communicators in main memory.
#[derive(Clone, Copy, Debug)]
pub struct MainMemory;

impl<X: Transport> Bench<Communicator<X>> for MainMemory {
    type Held<T: Element> = Vec<T>;

    const ROUNDS_EACH: bool = false;

    fn put<T: Element>(&self, values: &[T]) -> Vec<T> {
        values.to_vec()
    }

    fn get<T: Element>(&self, held: &Vec<T>) -> Vec<T> {
        held.clone()
    }

    fn input<'a, T: Element>(&self, held: &'a Vec<T>) -> &'a [T] {
        held
    }

    fn output<'a, T: Element>(&self, held: &'a mut Vec<T>) -> &'a mut [T] {
        held
    }
}

/// Runs every operation at many lengths on this rank, while all other ranks of the gang do the same.
///
/// # Panics
/// At the first result that is wrong.
pub fn check<X: Transport>(comm: &mut Communicator<X>) {
    check_on(comm, &MainMemory);
}

/// Runs every operation at one length, in elements.
///
/// # Panics
/// At the first result that is wrong.
pub fn check_at<T: CheckedElement, X: Transport>(comm: &mut Communicator<X>, len: usize) {
    check_on_at::<T, _, _>(comm, &MainMemory, len);
}

/// [`check`] of any back-end.
///
/// # Panics
/// At the first result that is wrong.
pub fn check_on<L: Collective, B: Bench<L>>(comm: &mut L, bench: &B) {
    for len in [0, 1, 2, 7, 100, 1025, 40_000] {
        check_on_at::<f32, L, B>(comm, bench, len);
        check_on_at::<bf16, L, B>(comm, bench, len);
    }
}

/// [`check_at`] of any back-end.
///
/// # Panics
/// At the first result that is wrong.
pub fn check_on_at<T: CheckedElement, L: Collective, B: Bench<L>>(
    comm: &mut L,
    bench: &B,
    len: usize,
) {
    let (rank, world) = (comm.membership().rank, comm.membership().world());
    let what = format!("{len} {} of rank {rank} of {world}", T::TYPE);
    comm.barrier().expect("barrier");

    let zeros = |len: usize| bench.put(&vec![T::default(); len]);

    for reduce in [Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min] {
        let mut data = bench.put(&vector::<T>(rank, len));
        comm.all_reduce(bench.output(&mut data), reduce)
            .expect("all-reduce");
        let data = bench.get(&data);
        let expect = Reduced::new(reduce, world, 0..len, B::ROUNDS_EACH);
        expect.check(&data, &format!("all-reduce {reduce}, {what}"));
        same_bits(comm, bench, &data, &what);
    }
    for root in [0, world - 1] {
        let mut data = bench.put(&vector::<T>(rank, len));
        comm.broadcast(bench.output(&mut data), root)
            .expect("broadcast");
        let expect = vector::<T>(root, len);
        assert_eq!(bench.get(&data), expect, "broadcast from {root}, {what}");
    }

    let mine = bench.put(&vector::<T>(rank, len));
    let mut gathered = zeros(len * world);
    comm.all_gather(bench.input(&mine), bench.output(&mut gathered))
        .expect("all-gather");
    let whole: Vec<T> = (0..world).flat_map(|rank| vector::<T>(rank, len)).collect();
    assert_eq!(bench.get(&gathered), whole, "all-gather, {what}");

    // Parts that differ in length, one of them empty.
    let counts: Vec<usize> = (0..world).map(|rank| len * (rank % 3) / 2).collect();
    let total: usize = counts.iter().sum();
    let mine = bench.put(&vector::<T>(rank, counts[rank]));
    let mut gathered = zeros(total);
    comm.all_gather_v(bench.input(&mine), &counts, bench.output(&mut gathered))
        .expect("all-gather-v");
    let whole: Vec<T> = (0..world)
        .flat_map(|rank| vector::<T>(rank, counts[rank]))
        .collect();
    assert_eq!(bench.get(&gathered), whole, "uneven all-gather, {what}");

    for reduce in [Reduce::Mean, Reduce::Max] {
        let input = bench.put(&vector::<T>(rank, len * world));
        let mut mine = zeros(len);
        comm.reduce_scatter(bench.input(&input), bench.output(&mut mine), reduce)
            .expect("reduce-scatter");
        let part = rank * len..(rank + 1) * len;
        let expect = Reduced::new(reduce, world, part, B::ROUNDS_EACH);
        expect.check(
            &bench.get(&mine),
            &format!("reduce-scatter {reduce}, {what}"),
        );

        let input = bench.put(&vector::<T>(rank, total));
        let mut mine = zeros(counts[rank]);
        comm.reduce_scatter_v(
            bench.input(&input),
            &counts,
            bench.output(&mut mine),
            reduce,
        )
        .expect("reduce-scatter-v");
        let part = parts(&counts)[rank].clone();
        let expect = Reduced::new(reduce, world, part, B::ROUNDS_EACH);
        let got = bench.get(&mine);
        expect.check(&got, &format!("uneven reduce-scatter {reduce}, {what}"));
    }

    check_exchanges::<T, L, B>(comm, bench, len, &what);
    check_pairs::<T, L, B>(comm, bench, len);
}

/// Every rank gives to every other one, in equal parts and in others.
fn check_exchanges<T: CheckedElement, L: Collective, B: Bench<L>>(
    comm: &mut L,
    bench: &B,
    len: usize,
    what: &str,
) {
    let (rank, world) = (comm.membership().rank, comm.membership().world());
    let piece = |from: usize, to: usize, len: usize| vector::<T>(from * world + to, len);
    let input: Vec<T> = (0..world).flat_map(|to| piece(rank, to, len)).collect();
    let input = bench.put(&input);
    let mut output = bench.put(&vec![T::default(); len * world]);
    comm.all_to_all(bench.input(&input), bench.output(&mut output))
        .expect("all-to-all");
    let expect: Vec<T> = (0..world).flat_map(|from| piece(from, rank, len)).collect();
    assert_eq!(bench.get(&output), expect, "all-to-all, {what}");

    let size = |from: usize, to: usize| len * ((from + 2 * to) % 4) / 2;
    let to: Vec<usize> = (0..world).map(|to| size(rank, to)).collect();
    let from: Vec<usize> = (0..world).map(|from| size(from, rank)).collect();
    let input: Vec<T> = (0..world)
        .flat_map(|to| piece(rank, to, size(rank, to)))
        .collect();
    let input = bench.put(&input);
    let mut output = bench.put(&vec![T::default(); from.iter().sum()]);
    comm.all_to_all_v(bench.input(&input), &to, bench.output(&mut output), &from)
        .expect("all-to-all-v");
    let expect: Vec<T> = (0..world)
        .flat_map(|from| piece(from, rank, size(from, rank)))
        .collect();
    assert_eq!(bench.get(&output), expect, "uneven all-to-all, {what}");
}

/// Each rank gives to the next one, even ranks first.
fn check_pairs<T: CheckedElement, L: Collective, B: Bench<L>>(comm: &mut L, bench: &B, len: usize) {
    let (rank, world) = (comm.membership().rank, comm.membership().world());
    if world < 2 {
        return;
    }
    let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
    let given = bench.put(&vector::<T>(rank, len));
    let mut got = bench.put(&vec![T::default(); len]);
    for turn in 0..2 {
        if rank % 2 == turn {
            comm.send(bench.input(&given), next).expect("send");
        } else {
            comm.receive(bench.output(&mut got), before)
                .expect("receive");
        }
    }
    let (got, expect) = (bench.get(&got), vector::<T>(before, len));
    assert_eq!(got, expect, "{len} from rank {before} to {rank}");
}

fn same_bits<T: CheckedElement, L: Collective, B: Bench<L>>(
    comm: &mut L,
    bench: &B,
    data: &[T],
    what: &str,
) {
    // As numbers that f32 holds exactly.
    let hash = bytemuck::cast_slice::<T, u8>(data)
        .iter()
        .fold(0u32, |hash, byte| {
            hash.wrapping_mul(16_777_619) ^ u32::from(*byte)
        });
    let hash = (hash ^ (hash >> 16)) & 0xffff;
    let mine = bench.put(&[hash as f32]);
    let mut all = bench.put(&vec![0.0f32; comm.membership().world()]);
    comm.all_gather(bench.input(&mine), bench.output(&mut all))
        .expect("all-gather");
    assert!(
        bench.get(&all).iter().all(|other| *other == hash as f32),
        "bits differ between ranks: {what}"
    );
}

/// Elements as checks make them.
pub trait CheckedElement: Element {
    /// The nearest element.
    fn of(value: f32) -> Self;
    /// Its value.
    fn value(self) -> f32;
    /// The relative error of one rounding.
    const EPSILON: f64;
}

impl CheckedElement for f32 {
    fn of(value: f32) -> Self {
        value
    }
    fn value(self) -> f32 {
        self
    }
    const EPSILON: f64 = 1.0 / (1 << 23) as f64;
}

impl CheckedElement for bf16 {
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

fn vector<T: CheckedElement>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| T::of(value(rank, i))).collect()
}

/// The expected result of a reduction.
struct Reduced {
    /// Each number, and how many times an epsilon's part of what it may be off.
    values: Vec<(f64, f64)>,
}

impl Reduced {
    fn new(reduce: Reduce, world: usize, range: std::ops::Range<usize>, rounds_each: bool) -> Self {
        let one = |i: usize| {
            let values = (0..world).map(|rank| f64::from(value(rank, i)));
            let scale = if reduce == Reduce::Mean {
                1.0 / world as f64
            } else {
                1.0
            };
            let exact = match reduce {
                Reduce::Sum | Reduce::Mean => values.clone().sum::<f64>() * scale,
                Reduce::Max => values.clone().fold(f64::NEG_INFINITY, f64::max),
                Reduce::Min => values.clone().fold(f64::INFINITY, f64::min),
            };
            // Sums are exact in f32, and the result is rounded once. Else each summand may be
            // rounded, and each partial sum, which is no larger than all summands.
            let off = match reduce {
                Reduce::Sum | Reduce::Mean if rounds_each => {
                    (world as f64 + 1.0) * scale * values.map(f64::abs).sum::<f64>()
                }
                _ => exact.abs(),
            };
            (exact, off)
        };
        Self {
            values: range.map(one).collect(),
        }
    }

    fn check<T: CheckedElement + Debug>(&self, got: &[T], what: &str) {
        assert_eq!(got.len(), self.values.len(), "{what}");
        for (i, (got, (expect, off))) in got.iter().zip(&self.values).enumerate() {
            let error = (f64::from(got.value()) - expect).abs();
            assert!(
                error <= off * T::EPSILON,
                "{what}: {got:?} for {expect} at {i}"
            );
        }
    }
}

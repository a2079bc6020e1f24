//! Tests of products in bf16, against sums in f64 of rounded factors.

use half::bf16;
use odeon_skip::{Need, skip};
use proptest::prelude::*;

use super::*;
use crate::backend::{Backend, Precision};
use crate::cpu::{Cpu, CpuError, CpuOptions};

/// The back-end with so many threads, or nothing where the processor cannot.
fn cpu(threads: usize, deterministic: bool) -> Option<Cpu> {
    let options = CpuOptions {
        threads,
        deterministic,
        products: Precision::Bf16,
    };
    match Cpu::open(&options) {
        Ok(cpu) => Some(cpu),
        Err(error @ CpuError::NoBf16) => {
            skip(Need::Bf16, error);
            None
        }
    }
}

fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(next).collect()
}

/// Factors of a layout: along rows, along columns, or with room between all elements.
#[derive(Clone, Copy, Debug)]
enum Order {
    Rows,
    Columns,
    Apart,
}

impl Order {
    fn steps(self, rows: usize, cols: usize) -> Strides {
        match self {
            Self::Rows => Strides::rows(cols + 3),
            Self::Columns => Strides::transposed(rows + 1),
            Self::Apart => Strides {
                row: 3 * cols + 2,
                col: 3,
                batch: 0,
            },
        }
        .batched(3 * (rows + 3) * (cols + 3))
    }
}

/// Every element is as near to the sum in f64 of the rounded factors as sums in f32 allow.
fn check(cpu: &Cpu, call: MatMul, seed: u64) {
    let [a, b, before] = [
        (call.a.extent(call.batch, call.m, call.k), seed),
        (call.b.extent(call.batch, call.k, call.n), seed + 1),
        (call.c.extent(call.batch, call.m, call.n), seed + 2),
    ]
    .map(|(len, seed)| noise(len, seed));
    let mut c = before.clone();
    cpu.matmul(call, &a, &b, &mut c);
    let rounded = |x: f32| bf16::from_f32(x).to_f64();
    let mut is_written = vec![false; c.len()];
    for batch in 0..call.batch {
        for i in 0..call.m {
            for j in 0..call.n {
                let (mut sum, mut size) = (0.0, 0.0);
                for k in 0..call.k {
                    let left = batch * call.a.batch + i * call.a.row + k * call.a.col;
                    let right = batch * call.b.batch + k * call.b.row + j * call.b.col;
                    let term = rounded(a[left]) * rounded(b[right]);
                    sum += term;
                    size += term.abs();
                }
                let at = batch * call.c.batch + i * call.c.row + j * call.c.col;
                is_written[at] = true;
                let scale = f64::from(call.scale);
                let old = match call.store {
                    Store::Add => f64::from(before[at]),
                    Store::Set => 0.0,
                };
                let want = scale * sum + old;
                // Products of two bf16 are exact, and each of the `k` additions errs by half a unit at most;
                // so do the factor and the addition to what was there, once a stretch.
                let steps = call.k + 3 * stretches(call.k).count();
                let unit = f64::from(f32::EPSILON) / 2.0;
                let bound = 1.001 * steps as f64 * unit * (scale.abs() * size + old.abs());
                let error = (f64::from(c[at]) - want).abs();
                assert!(
                    error <= bound,
                    "{call:?} [{i}, {j}]: {error:e} beyond {bound:e}"
                );
            }
        }
    }
    let others = c.iter().zip(&before).zip(&is_written);
    let is_kept = others
        .filter(|(_, written)| !**written)
        .all(|((c, old), _)| c == old);
    assert!(is_kept, "nothing else is written");
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Rows), Just(Order::Columns), Just(Order::Apart)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn sums_are_those_of_rounded_factors(
        (m, n, k, batch) in (1..70usize, 1..80usize, 1..100usize, 1..3usize),
        (a, b, c) in (order(), order(), order()),
        scale in prop_oneof![Just(1.0f32), -2.0..2.0f32],
        is_added: bool,
        threads in 1..4usize,
        seed: u32,
    ) {
        let Some(cpu) = cpu(threads, false) else { return Ok(()) };
        let call = MatMul {
            batch,
            a: a.steps(m, k),
            b: b.steps(k, n),
            c: c.steps(m, n),
            scale,
            store: if is_added { Store::Add } else { Store::Set },
            ..MatMul::linear(m, n, k)
        };
        check(&cpu, call, u64::from(seed));
    }

    #[test]
    fn panels_have_every_number_rounded_at_its_place(
        (lines, depth) in (1..150usize, 1..150usize),
        width in prop_oneof![1..=ROWS, Just(COLS)],
        order in order(),
        seed: u64,
    ) {
        if cpu(1, false).is_none() {
            return Ok(());
        }
        let steps = order.steps(lines, depth);
        let data = of_any_kind(steps.extent(1, lines, depth), seed);
        let [pairs, count] = [depth.div_ceil(2), lines.div_ceil(width)];
        let mut panels = vec![0x0bad_cafe; count * width * pairs];
        pack_lines(Factor::left(&data, steps), [lines, depth], width, &mut panels);
        for (at, both) in panels.into_iter().enumerate() {
            let (panel, pair, line) = (at / (width * pairs), at / width % pairs, at % width);
            let line = panel * width + line;
            for (half, nth) in [(both & 0xffff, 2 * pair), (both >> 16, 2 * pair + 1)] {
                let there = line < lines && nth < depth;
                let number = there.then(|| data[line * steps.row + nth * steps.col]);
                let want = number.map_or(0, to_nearest);
                prop_assert_eq!(half, u32::from(want), "{:?} [{}, {}]", number, line, nth);
            }
        }
    }
}

/// Numbers of which half are at borders: of two bf16, of what is normal, of infinity; or none at all.
fn of_any_kind(len: usize, seed: u64) -> Vec<f32> {
    const BORDERS: [u32; 12] = [
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_7fff,
        0x3f80_8001,
        0x7f7f_8000,
        0x7f80_0000,
        0x7f80_0001,
        0x7fff_ffff,
        0x007f_ffff,
        0x0080_0000,
        0x0000_0001,
        0x0000_0000,
    ];
    let mut state = seed;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let drawn = (state >> 32) as u32;
        let border = BORDERS[(state >> 20) as usize % BORDERS.len()];
        f32::from_bits(match drawn & 1 {
            0 => drawn,
            _ => border | (drawn & 0x8000_0000),
        })
    };
    (0..len).map(next).collect()
}

/// The bf16 of a number: the nearest, of two as near the even one; zero for one that is not normal, and none for none.
fn to_nearest(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    match bits & 0x7fff_ffff {
        0..0x0080_0000 => sign,
        magnitude @ 0x7f80_0001.. => sign | (magnitude >> 16) as u16 | 0x40,
        magnitude => {
            let (upper, lower) = ((magnitude >> 16) as u16, magnitude & 0xffff);
            let is_up = lower > 0x8000 || (lower == 0x8000 && upper & 1 == 1);
            sign | (upper + u16::from(is_up))
        }
    }
}

/// Sizes at, before and behind tiles, groups and stretches, in the three layouts of a layer.
#[test]
fn sums_hold_at_the_borders_of_tiles_and_stretches() {
    let Some(cpu) = cpu(2, false) else { return };
    for (m, n, k) in [
        (ROWS * GROUP_PANELS + 1, COLS + 1, 33),
        (ROWS, COLS, DEPTH),
        (ROWS + 1, COLS - 1, DEPTH + 1),
        (1, 2 * COLS + 5, 2 * DEPTH + 3),
        (3, 1, 3 * DEPTH - 1),
        (250, 65, 2),
        (40, 40, 1),
    ] {
        let calls = [
            MatMul::linear(m, n, k),
            MatMul::linear_dx(m, k, n),
            MatMul::linear_dw(k, m, n),
        ];
        for (seed, call) in calls.into_iter().enumerate() {
            check(&cpu, call.scaled(0.5), seed as u64);
            check(&cpu, call.scaled(0.5).stored(Store::Add), 9 + seed as u64);
        }
    }
}

#[test]
fn sums_over_nothing_are_zero_or_what_was_there() {
    let Some(cpu) = cpu(1, false) else { return };
    let call = MatMul::linear(2, 3, 0);
    let mut c = [7.0; 6];
    cpu.matmul(call.stored(Store::Add), &[], &[], &mut c);
    assert_eq!(c, [7.0; 6]);
    cpu.matmul(call, &[], &[], &mut c);
    assert_eq!(c, [0.0; 6]);
}

/// Halves between two bf16 go to the even one; what is no number stays so.
#[test]
fn factors_are_rounded_to_the_nearest_and_to_even() {
    let Some(cpu) = cpu(1, false) else { return };
    let ulp = 1.0 / 128.0;
    for (x, want) in [
        (1.0 + 0.5 * ulp, 1.0),
        (1.0 + 1.5 * ulp, 1.0 + 2.0 * ulp),
        (1.0 + 0.51 * ulp, 1.0 + ulp),
        (-1.0 - 0.5 * ulp, -1.0),
        (f32::INFINITY, f32::INFINITY),
    ] {
        for call in [MatMul::linear(1, 1, 1), MatMul::linear_dw(1, 1, 1)] {
            let mut c = [0.0];
            cpu.matmul(call, &[x], &[1.0], &mut c);
            assert_eq!(c, [want], "{x}");
        }
    }
    let mut c = [0.0];
    cpu.matmul(MatMul::linear(1, 1, 1), &[f32::NAN], &[1.0], &mut c);
    assert!(c[0].is_nan());
}

/// A row has the same bits alone, among others, from a packed weight, and on any number of threads.
#[test]
fn rows_have_the_same_bits_whatever_is_beside_them() {
    let (rows, outputs, inputs) = (61, 130, 2 * DEPTH + 50);
    let (x, w) = (noise(rows * inputs, 1), noise(outputs * inputs, 2));
    let mut all: Vec<Vec<f32>> = vec![];
    for (threads, deterministic) in [(1, false), (2, false), (3, true)] {
        let Some(cpu) = cpu(threads, deterministic) else {
            return;
        };
        let packed = cpu.pack(outputs, inputs, &w);
        for each in [1, 7, rows] {
            for is_packed in [false, true] {
                let mut y = vec![0.0; rows * outputs];
                let parts = x.chunks(each * inputs).zip(y.chunks_mut(each * outputs));
                for (x, y) in parts {
                    let call = MatMul::linear(x.len() / inputs, outputs, inputs);
                    match is_packed {
                        true => cpu.packed_linear(x, &packed, y, Store::Set),
                        false => cpu.matmul(call, x, &w, y),
                    }
                }
                all.push(y);
            }
        }
    }
    assert!(all.iter().all(|y| *y == all[0]));
}

#[test]
fn stretches_are_equal_and_whole() {
    for depth in (0..5 * DEPTH).step_by(7) {
        let all: Vec<_> = stretches(depth).collect();
        assert_eq!(all[0].start, 0);
        assert!(all.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!(all[all.len() - 1].end, depth.div_ceil(2), "{depth}");
        assert!(all.iter().all(|one| 2 * one.len() <= DEPTH));
        assert!(
            depth == 0 || all.iter().all(|one| !one.is_empty()),
            "{depth}"
        );
    }
}

//! Dropout: which numbers are kept, to the bit, and its gradient.

use std::sync::Arc;

use odeon_simd::philox;

use super::checks::{view, view_mut};
use super::{FORWARD, Noise, backward, close, dot, gradient_close, wide};
use crate::backend::{Backend, Store};
use crate::dropout::{DropoutMask, DropoutRow};
use crate::tape::{Arena, Param, Tape};

/// Rows of sequences that begin at any position.
fn places(rows: usize) -> Arc<[DropoutRow]> {
    let place = |row: u64| DropoutRow {
        stream: (row / 7).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        position: (row % 7 + 1000 * (row / 7)) as u32,
    };
    (0..rows as u64).map(place).collect()
}

/// The numbers that a mask keeps of rows of so many columns, by the words of their places.
fn kept(mask: &DropoutMask, cols: usize) -> Vec<bool> {
    let least = f64::from(mask.probability) * 2f64.powi(32);
    let of_row = |row: &DropoutRow| {
        let (stream, position) = (u128::from(row.stream), u128::from(row.position));
        let columns = (0..cols).map(move |column| {
            let first = u128::from(mask.site) << 16 | (column / 4) as u128;
            let words = philox(mask.key, stream << 64 | position << 32 | first);
            f64::from(words[column % 4]) >= least.floor()
        });
        columns.collect::<Vec<_>>()
    };
    mask.rows.iter().flat_map(of_row).collect()
}

/// The numbers that are kept are those of their places, to the bit, and the share that is asked for; they are scaled so
/// that the mean stays.
pub fn dropout<B: Backend>(b: &B) {
    let mut noise = Noise(27);
    for (rows, cols, probability) in [
        (1, 1, 0.5),
        (3, 5, 0.0),
        (40, 64, 0.9),
        (300, 70, 0.1),
        (5, 1030, 0.25),
    ] {
        let mask = DropoutMask {
            rows: places(rows),
            key: 0xfeed_0123_4567_89ab,
            site: 7,
            probability,
        };
        let (x, before) = (noise.vec(rows * cols), noise.vec(rows * cols));
        let (kept, scale) = (kept(&mask, cols), 1.0 / (1.0 - f64::from(probability)));
        let numbers = x.iter().zip(&kept).map(|(x, kept)| match kept {
            true => scale as f32 * x,
            false => 0.0,
        });
        let numbers: Vec<f32> = numbers.collect();
        let dev = b.buffer(&x);
        let mut y = b.buffer(&before);
        let stored = (view_mut::<B>(&mut y), Store::Set);
        b.dropout(&mask, view::<B>(&dev), stored);
        let got = b.to_vec(&y);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        assert!(
            got.iter().zip(&numbers).all(same),
            "dropout of {rows} x {cols}"
        );
        let mut y = b.buffer(&before);
        let added = (view_mut::<B>(&mut y), Store::Add);
        b.dropout(&mask, view::<B>(&dev), added);
        let sums: Vec<f64> = wide(&before)
            .iter()
            .zip(wide(&numbers))
            .map(|(a, b)| a + b)
            .collect();
        close("dropout, added", FORWARD, &b.to_vec(&y), &sums);
        // Five deviations of a binomial distribution.
        let (count, share) = ((rows * cols) as f64, f64::from(probability));
        let dropped = kept.iter().filter(|kept| !**kept).count() as f64;
        let deviation = (count * share * (1.0 - share)).sqrt();
        assert!(
            (dropped - count * share).abs() <= 5.0 * deviation,
            "{dropped} of {count}"
        );
    }
    recorded(b);
}

/// The same by a tape: behind a product, alone and onto a residual that something else reads, too.
fn recorded<B: Backend>(b: &B) {
    let mut noise = Noise(28);
    let (rows, cols) = (9, 12);
    let weights = noise.vec(2 * cols * cols);
    let (x, dy) = (noise.vec(rows * cols), noise.vec(rows * cols));
    let mask = |site| DropoutMask {
        rows: places(rows),
        key: 3,
        site,
        probability: 0.4,
    };
    let mut tape = Tape::<B>::new();
    let input = tape.input(rows, cols);
    let half = cols * cols;
    let h = tape.linear(input, Param::new(0, 0..half), cols);
    let h = tape.dropout(h, None, mask(0));
    let added = tape.linear(h, Param::new(0, half..2 * half), cols);
    let out = tape.dropout(added, Some(h), mask(1));
    let plan = tape.plan_training(&[true], &[out]);
    let mut arena = Arena::default();
    arena.prepare(b, &plan);
    tape.write(b, &mut arena, &plan, input, &x);
    let held = b.buffer(&weights);
    tape.forward(b, &mut arena, &plan, &[&held]);
    tape.seed(b, &mut arena, &plan, out, &dy);
    let mut gradients = [Some(b.alloc(weights.len()))];
    tape.backward(b, &mut arena, &plan, &[&held], &mut gradients);
    let gradient = gradients[0].take().expect("a trained set has gradients");
    let (first, second) = (kept(&mask(0), cols), kept(&mask(1), cols));
    let kept_of = |numbers: Vec<f64>, kept: &[bool]| -> Vec<f64> {
        let pairs = numbers.into_iter().zip(kept);
        pairs
            .map(|(x, kept)| if *kept { x / 0.6 } else { 0.0 })
            .collect()
    };
    let product = |x: &[f64], w: &[f64]| -> Vec<f64> {
        let row = |x: &[f64]| -> Vec<f64> {
            let outputs = w.chunks_exact(cols);
            let sums = outputs.map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum());
            sums.collect()
        };
        x.chunks_exact(cols).flat_map(row).collect()
    };
    gradient_close(
        "dropout by tape",
        backward(b, 3),
        &b.to_vec(&gradient),
        &weights,
        |w| {
            let h = kept_of(product(&wide(&x), &w[..half]), &first);
            let added = kept_of(product(&h, &w[half..]), &second);
            let sums: Vec<f64> = h.iter().zip(&added).map(|(h, a)| h + a).collect();
            dot(&sums, &dy)
        },
    );
}

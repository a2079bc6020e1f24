//! Dropout.

use odeon_simd::{philox_lanes, simd};

use super::pool::Pool;
use crate::backend::Store;
use crate::dropout::{COLUMNS, DropoutMask, DropoutRow};

/// Counters that are drawn at once.
const LANES: usize = 16;

pub(super) fn dropout(pool: &Pool, mask: &DropoutMask, x: &[f32], (y, store): (&mut [f32], Store)) {
    assert_eq!(x.len(), y.len(), "operands of one length");
    let cols = mask.cols(x.len());
    if cols == 0 {
        return;
    }
    pool.row_blocks(y, cols, |first, block| {
        let x = &x[first * cols..][..block.len()];
        drop_rows(mask, &mask.rows[first..], cols, x, block, store);
    });
}

simd! {
    fn drop_rows(
        mask: &DropoutMask,
        rows: &[DropoutRow],
        cols: usize,
        x: &[f32],
        y: &mut [f32],
        store: Store,
    ) {
        let (threshold, scale) = (mask.threshold(), mask.scale());
        let pairs = x.chunks_exact(cols).zip(y.chunks_exact_mut(cols));
        for (row, (x, y)) in rows.iter().zip(pairs) {
            let place = [row.position, row.stream as u32, (row.stream >> 32) as u32];
            let blocks = x.chunks(LANES * COLUMNS).zip(y.chunks_mut(LANES * COLUMNS));
            for (first, (x, y)) in (mask.first()..).step_by(LANES).zip(blocks) {
                let mut counters = [[0; LANES], [place[0]; LANES], [place[1]; LANES], [place[2]; LANES]];
                for (counter, lane) in counters[0].iter_mut().zip(0..) {
                    *counter = first + lane;
                }
                let words = philox_lanes(mask.key, counters);
                let mut kept = [[false; COLUMNS]; LANES];
                for (lane, kept) in kept.iter_mut().enumerate() {
                    for (word, kept) in kept.iter_mut().enumerate() {
                        *kept = words[word][lane] >= threshold;
                    }
                }
                let numbers = x.iter().zip(kept.as_flattened());
                let numbers = numbers.map(|(x, kept)| if *kept { scale * x } else { 0.0 });
                match store {
                    Store::Set => y.iter_mut().zip(numbers).for_each(|(y, number)| *y = number),
                    Store::Add => y.iter_mut().zip(numbers).for_each(|(y, number)| *y += number),
                }
            }
        }
    }
}

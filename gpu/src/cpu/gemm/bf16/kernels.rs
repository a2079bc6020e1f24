//! Products of pairs with explicit registers, and the rounding of factors into panels of pairs.
//!
//! A panel holds two elements of the inner dimension side by side in 32 bits, `[pair, line]`: what `vdpbf16ps`
//! multiplies and adds to one sum of f32.

use std::arch::x86_64::{
    __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_epi32, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};

use super::{COLS, Factor, Finish, ROWS, TOGETHER};
use crate::cpu::pool::Shared;

/// Lanes of a register.
const LANES: usize = 16;
/// Elements of a line that are asked for before they are read, and rows of elements.
const AHEAD: usize = 128;
const ROWS_AHEAD: usize = 32;

/// Part of a destination: rows of at most [`COLS`] elements.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Tile {
    pub(in crate::cpu) c: Shared,
    /// Its first element.
    pub(in crate::cpu) at: usize,
    /// Elements from a row to the next.
    pub(in crate::cpu) row: usize,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) cols: usize,
}

/// Writes `a b` into a tile: `a` is a panel of `height` lines, of which the tile has the first, and `b` one of
/// [`COLS`].
///
/// # Safety
/// The processor has AVX-512 with BF16. No other task has elements of the tile.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,fma")]
pub(super) unsafe fn product(tile: Tile, height: usize, a: &[u32], b: &[u32], finish: Finish) {
    let pairs = b.len() / COLS;
    assert!(
        tile.rows <= height && a.len() >= pairs * height,
        "a panel of all lines"
    );
    /// As many rows as registers are for.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,fma")]
    #[inline]
    fn rows<const R: usize>(tile: Tile, height: usize, a: &[u32], b: &[u32], finish: Finish) {
        let mut acc = [[_mm512_setzero_ps(); 2]; R];
        let pairs = b.len() / COLS;
        assert!(
            R <= height && a.len() >= pairs * height,
            "as the caller has it"
        );
        // What the tile is written to comes from memory meanwhile.
        for r in 0..if pairs < 64 { 0 } else { R } {
            // SAFETY: as below, and nothing is read or written yet.
            let row = unsafe { tile.c.slice(tile.at + r * tile.row, tile.cols) };
            for at in [0, tile.cols / 2, tile.cols - 1] {
                prefetch(row.as_ptr().wrapping_add(at));
            }
        }
        for pair in 0..pairs {
            // SAFETY: `pair` is below the number of pairs of `b`, each of two registers.
            let b = unsafe {
                let at = b.as_ptr().add(pair * COLS);
                [
                    as_bf16(_mm512_loadu_si512(at.cast())),
                    as_bf16(_mm512_loadu_si512(at.add(LANES).cast())),
                ]
            };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: `r < R <= height`, and the assertion bounds the pair's lines.
                let a = unsafe { *a.get_unchecked(pair * height + r) };
                let a = as_bf16(_mm512_set1_epi32(a as i32));
                *acc = [
                    _mm512_dpbf16_ps(acc[0], b[0], a),
                    _mm512_dpbf16_ps(acc[1], b[1], a),
                ];
            }
        }
        let (inner, outer) = (_mm512_set1_ps(finish.inner), _mm512_set1_ps(finish.outer));
        for (r, acc) in acc.into_iter().enumerate() {
            // SAFETY: no other task has elements of the tile, and no two of its rows share any.
            let row = unsafe { tile.c.slice(tile.at + r * tile.row, tile.cols) };
            for (acc, part) in acc.into_iter().zip(row.chunks_mut(LANES)) {
                let mask = first(part.len());
                let sum = if finish.adds {
                    // SAFETY: the mask has the elements of `part` alone.
                    let old = unsafe { _mm512_maskz_loadu_ps(mask, part.as_ptr()) };
                    _mm512_fmadd_ps(acc, inner, old)
                } else {
                    _mm512_mul_ps(acc, inner)
                };
                let sum = _mm512_mul_ps(sum, outer);
                // SAFETY: as above.
                unsafe { _mm512_mask_storeu_ps(part.as_mut_ptr(), mask, sum) };
            }
        }
    }
    match tile.rows {
        1 => rows::<1>(tile, height, a, b, finish),
        2 => rows::<2>(tile, height, a, b, finish),
        3 => rows::<3>(tile, height, a, b, finish),
        4 => rows::<4>(tile, height, a, b, finish),
        5 => rows::<5>(tile, height, a, b, finish),
        6 => rows::<6>(tile, height, a, b, finish),
        7 => rows::<7>(tile, height, a, b, finish),
        8 => rows::<8>(tile, height, a, b, finish),
        9 => rows::<9>(tile, height, a, b, finish),
        10 => rows::<10>(tile, height, a, b, finish),
        11 => rows::<11>(tile, height, a, b, finish),
        12 => rows::<12>(tile, height, a, b, finish),
        13 => rows::<13>(tile, height, a, b, finish),
        ROWS => rows::<ROWS>(tile, height, a, b, finish),
        n => unreachable!("a tile of {n} rows"),
    }
}

/// Rounds `depth` elements of some lines of a factor into panels of `width` lines. Lines and elements beyond are zero.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")]
pub(super) unsafe fn pack(
    from: Factor<'_>,
    [lines, depth]: [usize; 2],
    width: usize,
    panels: &mut [u32],
) {
    let len = depth.div_ceil(2) * width;
    assert!(
        from.extent(lines, depth) <= from.data.len() && panels.len() >= lines.div_ceil(width) * len,
        "a factor in its view, and room for its panels"
    );
    assert!(
        width <= LANES || width.is_multiple_of(LANES),
        "no register of a panel's line is written behind the next one"
    );
    if len == 0 {
        return;
    }
    if from.depth != 1 && from.line == 1 {
        // As many at a time as lie in some cache lines of a row.
        let each = (TOGETHER / width).max(1);
        for (part, panels) in panels.chunks_mut(each * len).enumerate() {
            let first = (part * each * width).min(lines);
            pack_paired(from.from(first, 0), [lines - first, depth], width, panels);
        }
        return;
    }
    for (panel, words) in panels.chunks_exact_mut(len).enumerate() {
        for group in (0..width).step_by(LANES) {
            let first = (panel * width + group).min(lines);
            let kept = (width - group).min(LANES);
            let shape = [(lines - first).min(kept), depth];
            let (from, words) = (from.from(first, 0), &mut words[group..]);
            match from.depth {
                1 => pack_turned(from, shape, [width, kept], words),
                _ => pack_scattered(from, shape, [width, kept], words),
            }
        }
    }
}

/// Lines whose elements lie side by side: sixteen lines of sixteen pairs are transposed at a time.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")]
#[inline]
fn pack_turned(
    from: Factor<'_>,
    [lines, depth]: [usize; 2],
    [width, kept]: [usize; 2],
    panel: &mut [u32],
) {
    let mut block = [_mm512_setzero_si512(); LANES];
    for start in (0..depth).step_by(2 * LANES) {
        let count = (depth - start).min(2 * LANES);
        let masks = [first(count.min(LANES)), first(count.saturating_sub(LANES))];
        // Behind the end of these lines come the next ones.
        let ahead = start + AHEAD;
        let ahead = ahead / depth * kept * from.line + ahead % depth;
        for (line, block) in block[..lines].iter_mut().enumerate() {
            let at = from.data.as_ptr().wrapping_add(line * from.line);
            prefetch(at.wrapping_add(ahead));
            prefetch(at.wrapping_add(ahead + LANES));
            let at = at.wrapping_add(start);
            // SAFETY: the masks have the elements before `depth` alone, which `pack` bounds.
            *block = unsafe {
                as_bits(_mm512_cvtne2ps_pbh(
                    _mm512_maskz_loadu_ps(masks[1], at.wrapping_add(LANES)),
                    _mm512_maskz_loadu_ps(masks[0], at),
                ))
            };
        }
        let pairs = transposed(block);
        for (nth, pair) in pairs.into_iter().enumerate().take(count.div_ceil(2)) {
            store(pair, kept, &mut panel[(start / 2 + nth) * width..]);
        }
    }
}

/// Lines that lie side by side: two rows of elements are put into pairs.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")]
#[inline]
fn pack_paired(from: Factor<'_>, [lines, depth]: [usize; 2], width: usize, panels: &mut [u32]) {
    /// Elements of the first row in turn with those of the second.
    static TURNS: [u16; 2 * LANES] = {
        let mut turns = [0; 2 * LANES];
        let mut i = 0;
        while i < 2 * LANES {
            turns[i] = (i / 2 + i % 2 * LANES) as u16;
            i += 1;
        }
        turns
    };
    // SAFETY: as many bytes as a register has.
    let turns = unsafe { _mm512_loadu_si512(TURNS.as_ptr().cast()) };
    let len = depth.div_ceil(2) * width;
    for pair in 0..depth.div_ceil(2) {
        for (panel, words) in panels.chunks_exact_mut(len).enumerate() {
            let words = &mut words[pair * width..];
            for group in 0..width.div_ceil(LANES) {
                let line = (panel * width + group * LANES).min(lines);
                let kept = (width - group * LANES).min(LANES);
                let there = first((lines - line).min(kept));
                let rows = [2 * pair, 2 * pair + 1].map(|row| {
                    let mask = if row < depth { there } else { 0 };
                    let at = from.data.as_ptr().wrapping_add(row * from.depth + line);
                    prefetch(at.wrapping_add(ROWS_AHEAD * from.depth));
                    // SAFETY: the mask has the lines that are there alone, which `pack` bounds.
                    unsafe { _mm512_maskz_loadu_ps(mask, at) }
                });
                let both = as_bits(_mm512_cvtne2ps_pbh(rows[1], rows[0]));
                let pairs = _mm512_permutexvar_epi16(turns, both);
                store(pairs, kept, &mut words[group * LANES..]);
            }
        }
    }
}

/// Elements that lie apart both ways.
fn pack_scattered(
    from: Factor<'_>,
    [lines, depth]: [usize; 2],
    [width, kept]: [usize; 2],
    panel: &mut [u32],
) {
    for (pair, place) in (0..depth.div_ceil(2)).zip(panel.chunks_mut(width)) {
        for (line, place) in place[..kept].iter_mut().enumerate() {
            let [low, high] = [2 * pair, 2 * pair + 1].map(|at| {
                let there = line < lines && at < depth;
                let element = there.then(|| from.data[line * from.line + at * from.depth]);
                // As the instruction has it, one that is not normal is zero.
                let element = element.map(|it| match it.is_subnormal() {
                    true => 0f32.copysign(it),
                    false => it,
                });
                u32::from(half::bf16::from_f32(element.unwrap_or(0.0)).to_bits())
            });
            *place = low | high << 16;
        }
    }
}

/// The first lanes.
const fn first(lanes: usize) -> u16 {
    ((1u32 << lanes) - 1) as u16
}

/// Asks for the cache line of an address that need not exist.
#[inline]
fn prefetch<T>(at: *const T) {
    // SAFETY: a prefetch is no access.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

/// Writes the first lanes, and behind them any others that there is room for: the next pair is written there later.
#[target_feature(enable = "avx512f")]
#[inline]
fn store(pairs: __m512i, kept: usize, place: &mut [u32]) {
    match place.first_chunk_mut::<LANES>() {
        // SAFETY: the place has all lanes.
        Some(all) => unsafe { _mm512_storeu_si512(all.as_mut_ptr().cast(), pairs) },
        None => {
            let place = &mut place[..kept];
            // SAFETY: the mask has the elements of `place` alone.
            unsafe {
                _mm512_mask_storeu_epi32(place.as_mut_ptr().cast(), first(place.len()), pairs);
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn as_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of any content.
    unsafe { std::mem::transmute(bits) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn as_bits(pairs: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes of any content.
    unsafe { std::mem::transmute(pairs) }
}

/// Sixteen rows of sixteen pairs, transposed.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut two = rows;
    for i in 0..8 {
        two[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        two[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut four = two;
    for i in 0..4 {
        for j in 0..2 {
            four[4 * i + 2 * j] = _mm512_unpacklo_epi64(two[4 * i + j], two[4 * i + j + 2]);
            four[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(two[4 * i + j], two[4 * i + j + 2]);
        }
    }
    // Register `4 i + j` now has, in quarter `q`, column `4 q + j` of rows `4 i` to `4 i + 3`.
    let mut out = rows;
    for j in 0..4 {
        let [a, b, c, d] = [four[j], four[4 + j], four[8 + j], four[12 + j]];
        let (ab, cd) = (
            _mm512_shuffle_i32x4::<0x88>(a, b),
            _mm512_shuffle_i32x4::<0x88>(c, d),
        );
        out[j] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        out[8 + j] = _mm512_shuffle_i32x4::<0xdd>(ab, cd);
        let (ab, cd) = (
            _mm512_shuffle_i32x4::<0xdd>(a, b),
            _mm512_shuffle_i32x4::<0xdd>(c, d),
        );
        out[4 + j] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(ab, cd);
    }
    out
}

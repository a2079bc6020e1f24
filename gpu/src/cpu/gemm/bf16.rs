//! Matrix products of factors that are rounded to bf16, to the nearest and of two as near to the even one, with
//! sums in f32.
//!
//! Both factors are rounded into panels: the right one first, by all threads and for all of them; then tasks take
//! rows of the left one, some at a time, and multiply these by every panel of the right.
//! A sum goes over the inner dimension in order, in stretches of equal length that follow from its length alone.
//! So an element has the same bits whatever rows and columns there are beside it, and on any number of threads.
//! Numbers below 2^-126 in magnitude count as zero, as the instruction has it.

#[cfg(target_arch = "x86_64")]
mod kernels;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::backend::{MatMul, Store, Strides};
use crate::cpu::pool::{Pool, Shared};
use crate::cpu::update;

/// Rows of a tile at most: with [`COLS`] columns, 28 registers of sums.
pub(in crate::cpu) const ROWS: usize = 14;
/// Columns of a tile, two registers.
pub(in crate::cpu) const COLS: usize = 32;
/// Inner elements of a stretch at most. Panels of the right factor come from the second cache then; shorter ones
/// would stay in the first, but sums would be read and written more often.
const DEPTH: usize = 4096;
/// Pairs of the left factor that a task rounds at a time: they stay in the second cache.
const GROUP: usize = 96 << 10;
/// Row panels of a task at most, so that there are tasks enough.
const GROUP_PANELS: usize = 12;
/// Neighbours of a row that are rounded together.
const TOGETHER: usize = 128;
/// Elements of the right factor that are rounded at a time.
const RIGHT: usize = 4 << 20;
/// Inner elements of the panels that the bare kernel multiplies: they stay in the first cache.
const BARE: usize = 384;
/// Multiplications below which a product is not worth the threads.
const SMALL: usize = 1 << 18;

/// True where the processor multiplies pairs of bf16.
#[must_use]
pub(in crate::cpu) fn is_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    let there = odeon_simd::isa() == odeon_simd::Isa::V4 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let there = false;
    there
}

/// A factor as lines along the inner dimension: rows of the left one, columns of the right one.
#[derive(Clone, Copy)]
struct Factor<'a> {
    data: &'a [f32],
    /// From a line to the next.
    line: usize,
    /// From an element of a line to the next.
    depth: usize,
}

impl<'a> Factor<'a> {
    fn left(data: &'a [f32], steps: Strides) -> Self {
        Self {
            data,
            line: steps.row,
            depth: steps.col,
        }
    }

    fn right(data: &'a [f32], steps: Strides) -> Self {
        Self {
            data,
            line: steps.col,
            depth: steps.row,
        }
    }

    /// From this line and element on.
    fn from(self, line: usize, depth: usize) -> Self {
        let at = line * self.line + depth * self.depth;
        let data = self.data.get(at..).unwrap_or_default();
        Self { data, ..self }
    }

    /// Elements up to the last of so many lines.
    fn extent(self, lines: usize, depth: usize) -> usize {
        match lines * depth {
            0 => 0,
            _ => (lines - 1) * self.line + (depth - 1) * self.depth + 1,
        }
    }
}

/// What becomes of a sum: `(inner * sum + old) * outer`, or without the old one.
#[derive(Clone, Copy)]
struct Finish {
    inner: f32,
    adds: bool,
    outer: f32,
}

impl Finish {
    /// Of a sum that is whole.
    fn whole(call: &MatMul) -> Self {
        Self {
            inner: call.scale,
            adds: call.store == Store::Add,
            outer: 1.0,
        }
    }

    /// Of a stretch of a sum, which is put together where it is written; the last takes a factor.
    fn stretch(is_first: bool, factor: Option<f32>) -> Self {
        Self {
            inner: 1.0,
            adds: !is_first,
            outer: factor.unwrap_or(1.0),
        }
    }
}

/// The stretches of an inner dimension, in pairs: equally long, but for the last.
fn stretches(depth: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let pairs = depth.div_ceil(2);
    let count = (2 * pairs).div_ceil(DEPTH).max(1);
    let each = pairs.div_ceil(count);
    (0..count).map(move |i| i * each..pairs.min((i + 1) * each))
}

/// Words of memory for the panels of a right factor.
pub(in crate::cpu) fn panels_len(cols: usize, depth: usize) -> usize {
    cols.next_multiple_of(COLS) * depth.div_ceil(2)
}

/// Rounds the right factor `[depth, cols]` into panels.
pub(in crate::cpu) fn pack(
    pool: Option<&Pool>,
    [cols, depth]: [usize; 2],
    (data, steps): (&[f32], Strides),
    panels: &mut [f32],
) {
    let factor = Factor::right(data, steps);
    let len = COLS * depth.div_ceil(2);
    let panels: &mut [u32] = bytemuck::cast_slice_mut(&mut panels[..panels_len(cols, depth)]);
    match pool {
        Some(pool) if len > 0 => {
            let each = cols.div_ceil(COLS).div_ceil(2 * pool.threads());
            pool.blocks(panels, each * len, |block, panels| {
                let first = block * each * COLS;
                let lines = (each * COLS).min(cols - first);
                pack_lines(factor.from(first, 0), [lines, depth], COLS, panels);
            });
        }
        _ => pack_lines(factor, [cols, depth], COLS, panels),
    }
}

/// A product on the calling thread, or with all threads of the pool. Its operands lie in their views.
pub(super) fn product(
    pool: &Pool,
    is_wide: bool,
    call: MatMul,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
) {
    let MatMul { m, n, k, .. } = call;
    let wide = (is_wide && pool.threads() > 1 && m * n * k >= SMALL).then_some(pool);
    let c = Shared::new(c);
    let each = (RIGHT / k.max(1)).next_multiple_of(COLS).min(n);
    for from in (0..n).step_by(each) {
        let cols = each.min(n - from);
        let right = (&b[(from * call.b.col).min(b.len())..], call.b);
        pool.scratch(panels_len(cols, k), |panels| {
            pack(wide, [cols, k], right, panels);
            let call = MatMul { n: cols, ..call };
            multiply(pool, wide, call, a, panels, (c, from * call.c.col));
        });
    }
}

/// The product of contiguous rows with a right factor in panels, into contiguous rows, with all threads.
pub(in crate::cpu) fn linear(pool: &Pool, call: MatMul, x: &[f32], panels: &[f32], y: &mut [f32]) {
    let wide = (pool.threads() > 1).then_some(pool);
    multiply(pool, wide, call, x, panels, (Shared::new(y), 0));
}

/// Multiplies panels of one tile so many times on each thread; the operations of that.
pub(in crate::cpu) fn bare(pool: &Pool, times: usize) -> usize {
    pool.for_each(pool.threads(), |_| {
        // Zeros would be as quick, ones stay finite.
        let [a, b] = [ROWS, COLS].map(|lines| vec![0x3f80_3f80; lines * BARE / 2]);
        let mut tile = [0.0; ROWS * COLS];
        for _ in 0..times {
            let own = (Shared::new(&mut tile), 0, COLS);
            let finish = Finish::stretch(true, None);
            write_tile(own, [ROWS, COLS], ROWS, (&a, &b), finish);
        }
        std::hint::black_box(&tile);
    });
    2 * ROWS * COLS * BARE * times * pool.threads()
}

/// Rounds the left factor of a product on the calling thread, some panels at a time as tasks do; its elements.
pub(in crate::cpu) fn bare_rounding(pool: &Pool, call: &MatMul, a: &[f32]) -> usize {
    let LeftPanels { height, group, .. } = LeftPanels::of(call);
    let (left, each) = (Factor::left(a, call.a), group * height);
    for stretch in stretches(call.k) {
        let (first, end) = (2 * stretch.start, (2 * stretch.end).min(call.k));
        pool.scratch(each * stretch.len(), |panels| {
            let panels: &mut [u32] = bytemuck::cast_slice_mut(panels);
            for from in (0..call.m).step_by(each.max(1)) {
                let lines = each.min(call.m - from);
                pack_lines(left.from(from, first), [lines, end - first], height, panels);
            }
            std::hint::black_box(panels);
        });
    }
    call.m * call.k
}

/// The product with a right factor in panels, written from one element of the destination on.
fn multiply(
    pool: &Pool,
    wide: Option<&Pool>,
    call: MatMul,
    a: &[f32],
    panels: &[f32],
    (c, at): (Shared, usize),
) {
    let cols = call.n.div_ceil(COLS);
    let LeftPanels {
        rows,
        height,
        group,
    } = LeftPanels::of(&call);
    let threads = wide.map_or(1, Pool::threads);
    // Tasks with few rows each would round those of the right factor's panels in turn.
    let (row_tasks, col_tasks) = match rows.div_ceil(group) {
        tasks if threads == 1 || rows >= 8 * threads => (tasks.next_multiple_of(threads), 1),
        tasks => (tasks, (4 * threads).div_ceil(tasks).min(cols)),
    };
    let one = |task: usize| {
        let (row, col) = (task / col_tasks, task % col_tasks);
        let part = Part {
            rows: row * rows / row_tasks..(row + 1) * rows / row_tasks,
            cols: col * cols / col_tasks..(col + 1) * cols / col_tasks,
            height,
        };
        multiply_part(pool, call, &part, a, panels, (c, at));
    };
    match wide {
        Some(pool) => pool.for_each(row_tasks * col_tasks, one),
        None => (0..row_tasks * col_tasks).for_each(one),
    }
}

/// Panels of equal height that a left factor is cut into.
struct LeftPanels {
    rows: usize,
    /// Lines of each.
    height: usize,
    /// As many as a task rounds at a time.
    group: usize,
}

impl LeftPanels {
    fn of(call: &MatMul) -> Self {
        let rows = call.m.div_ceil(ROWS);
        let height = call.m.div_ceil(rows.max(1));
        let longest = stretches(call.k).next().map_or(0, |first| first.len());
        // Of lines that lie side by side as many as have some cache lines of each row: fewer at a time take longer to
        // round than panels take that do not stay in the second cache.
        let least = match call.a.row == 1 && call.a.col != 1 {
            true => (TOGETHER / height.max(1)).clamp(1, GROUP_PANELS),
            false => 1,
        };
        Self {
            rows,
            height,
            group: (GROUP / (height * longest).max(1)).clamp(least, GROUP_PANELS),
        }
    }
}

/// Panels of both factors that one task multiplies.
struct Part {
    rows: Range<usize>,
    cols: Range<usize>,
    /// Lines of a panel of the left factor.
    height: usize,
}

fn multiply_part(
    pool: &Pool,
    call: MatMul,
    part: &Part,
    a: &[f32],
    panels: &[f32],
    (c, at): (Shared, usize),
) {
    let MatMul { m, n, k, .. } = call;
    let (pairs, height) = (k.div_ceil(2), part.height);
    let (left, first) = (Factor::left(a, call.a), part.rows.start * height);
    let panels: &[u32] = bytemuck::cast_slice(panels);
    let longest = stretches(k).next().map_or(0, |first| first.len());
    let left_len = part.rows.len() * height * longest;
    // Sums of several stretches that are added to what is there are put together apart from it.
    let is_whole = longest == pairs;
    let is_apart = !is_whole && call.store == Store::Add;
    let tile_len = height * COLS;
    let sums_len = match is_apart {
        true => part.rows.len() * part.cols.len() * tile_len,
        false => 0,
    };
    pool.scratch(left_len + sums_len, |scratch| {
        let (left_panels, sums) = scratch.split_at_mut(left_len);
        let left_panels: &mut [u32] = bytemuck::cast_slice_mut(left_panels);
        for stretch in stretches(k) {
            let (is_first, is_last) = (stretch.start == 0, stretch.end == pairs);
            let finish = match is_whole {
                true => Finish::whole(&call),
                false => {
                    let factor = (is_last && !is_apart).then_some(call.scale);
                    Finish::stretch(is_first, factor)
                }
            };
            let depth = (2 * stretch.end).min(k) - 2 * stretch.start;
            let len = height * stretch.len();
            let lines = (part.rows.end * height).min(m) - first;
            let from = left.from(first, 2 * stretch.start);
            let count = part.rows.len();
            pack_lines(
                from,
                [lines, depth],
                height,
                &mut left_panels[..count * len],
            );
            let mut tiles = sums.chunks_exact_mut(tile_len);
            for col in part.cols.clone() {
                let b = &panels[col * pairs * COLS..][..pairs * COLS];
                let b = &b[stretch.start * COLS..stretch.end * COLS];
                for (i, row) in part.rows.clone().enumerate() {
                    let place = Place {
                        c,
                        at: at + row * height * call.c.row + col * COLS * call.c.col,
                        steps: call.c,
                        rows: height.min(m - row * height),
                        cols: COLS.min(n - col * COLS),
                    };
                    let a = &left_panels[i * len..][..len];
                    let Some(tile) = tiles.next() else {
                        place.write(height, a, b, finish);
                        continue;
                    };
                    let size = [place.rows, COLS];
                    write_tile((Shared::new(tile), 0, COLS), size, height, (a, b), finish);
                    if is_last {
                        place.add(call.scale, tile);
                    }
                }
            }
        }
    });
}

/// A tile of a destination with steps of any kind. Its elements belong to one task.
struct Place {
    c: Shared,
    at: usize,
    steps: Strides,
    rows: usize,
    cols: usize,
}

impl Place {
    fn is_by_rows(&self) -> bool {
        self.steps.col == 1 || self.cols == 1
    }

    /// Writes the product of two panels.
    fn write(&self, height: usize, a: &[u32], b: &[u32], finish: Finish) {
        if self.is_by_rows() {
            let size = [self.rows, self.cols];
            write_tile(
                (self.c, self.at, self.steps.row),
                size,
                height,
                (a, b),
                finish,
            );
            return;
        }
        let mut tile = [0.0; ROWS * COLS];
        self.each(|at, element| tile[at] = *element);
        let own = (Shared::new(&mut tile), 0, COLS);
        write_tile(own, [self.rows, COLS], height, (a, b), finish);
        self.each(|at, element| *element = tile[at]);
    }

    /// Adds so much of a tile of [`COLS`] columns.
    fn add(&self, scale: f32, tile: &[f32]) {
        if !self.is_by_rows() {
            self.each(|at, element| *element = scale.mul_add(tile[at], *element));
            return;
        }
        for (r, tile) in tile.chunks_exact(COLS).take(self.rows).enumerate() {
            let at = self.at + r * self.steps.row;
            // SAFETY: the elements belong to this task.
            let row = unsafe { self.c.slice(at, self.cols) };
            update::axpy(scale, &tile[..self.cols], row);
        }
    }

    /// Every element with its number in a tile of [`COLS`] columns.
    fn each(&self, mut work: impl FnMut(usize, &mut f32)) {
        for (row, col) in (0..self.rows).flat_map(|r| (0..self.cols).map(move |j| (r, j))) {
            let at = self.at + row * self.steps.row + col * self.steps.col;
            // SAFETY: the elements belong to this task.
            work(row * COLS + col, unsafe { &mut self.c.slice(at, 1)[0] });
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn pack_lines(from: Factor<'_>, shape: [usize; 2], width: usize, panel: &mut [u32]) {
    // SAFETY: products are in bf16 on processors alone that have the instructions.
    unsafe { kernels::pack(from, shape, width, panel) };
}

/// Writes rows of contiguous elements, as [`kernels::product`] does.
#[cfg(target_arch = "x86_64")]
fn write_tile(
    (c, at, row): (Shared, usize, usize),
    [rows, cols]: [usize; 2],
    height: usize,
    (a, b): (&[u32], &[u32]),
    finish: Finish,
) {
    let tile = kernels::Tile {
        c,
        at,
        row,
        rows,
        cols,
    };
    // SAFETY: as above, and the elements of a tile belong to its task.
    unsafe { kernels::product(tile, height, a, b, finish) };
}

#[cfg(not(target_arch = "x86_64"))]
fn pack_lines(_: Factor<'_>, _: [usize; 2], _: usize, _: &mut [u32]) {
    unreachable!("no such processor has bf16 products");
}

#[cfg(not(target_arch = "x86_64"))]
fn write_tile(_: (Shared, usize, usize), _: [usize; 2], _: usize, _: (&[u32], &[u32]), _: Finish) {
    unreachable!("no such processor has bf16 products");
}

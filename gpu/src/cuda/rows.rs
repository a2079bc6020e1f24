//! Flat and row-wise operations: what each kernel is given.

use crate::backend::{ABSENT_ROW, HeadNormShape, RopeShape, RopeStyle, RouteShape, Store};
use crate::cuda::buffer::{CudaView, CudaViewMut};
use crate::cuda::card::{Arg, Card};
use crate::cuda::handle::Cuda;
use crate::cuda::kernel::Kernel;
use crate::cuda::queue::{as_bytes, chunks};
use crate::dropout::{COLUMNS, DropoutMask};

/// Columns of a block in operations on rows.
const BLOCK_COLS: usize = 1024;
/// Blocks of a reduction at most.
const PARTS_MAX: u64 = 1024;

/// One block a row and 1024 columns.
fn row_grid(rows: usize, cols: usize) -> [u64; 3] {
    [rows as u64, cols.div_ceil(BLOCK_COLS) as u64, 1]
}

/// Threads for a row that one block walks along.
fn row_threads(cols: usize) -> u32 {
    (cols.div_ceil(4).next_multiple_of(32) as u32).clamp(32, 512)
}

impl<C: Card> Cuda<C> {
    pub(super) fn fill_with(&self, dst: &CudaViewMut<'_, C>, value: f32) {
        let count = dst.len() as u64;
        let args = vec![dst.into(), value.into(), Arg::U64(count)];
        self.begun().launch(Kernel::fill, chunks(count), 256, args);
    }

    pub(super) fn scale_by(&self, scale: f32, dst: &CudaViewMut<'_, C>) {
        let count = dst.len() as u64;
        let args = vec![scale.into(), dst.into(), Arg::U64(count)];
        self.begun().launch(Kernel::scale, chunks(count), 256, args);
    }

    pub(super) fn add_scaled(&self, scale: f32, src: CudaView<'_, C>, dst: &CudaViewMut<'_, C>) {
        assert_eq!(src.len(), dst.len(), "as many elements on both sides");
        let count = dst.len() as u64;
        let args = vec![scale.into(), src.into(), dst.into(), Arg::U64(count)];
        self.begun().launch(Kernel::axpy, chunks(count), 256, args);
    }

    pub(super) fn narrowed(&self, src: CudaView<'_, C>, dst: &CudaViewMut<'_, C>) {
        assert_eq!(src.len(), 2 * dst.len(), "two numbers in each");
        let count = dst.len() as u64;
        let args = vec![src.into(), dst.into(), Arg::U64(count)];
        self.begun()
            .launch(Kernel::narrow, chunks(count), 256, args);
    }

    pub(super) fn widened(&self, src: CudaView<'_, C>, dst: &CudaViewMut<'_, C>) {
        assert_eq!(2 * src.len(), dst.len(), "two numbers in each");
        let count = src.len() as u64;
        let args = vec![src.into(), dst.into(), Arg::U64(count)];
        self.begun().launch(Kernel::widen, chunks(count), 256, args);
    }

    pub(super) fn bias_added(&self, bias: CudaView<'_, C>, rows: &CudaViewMut<'_, C>) {
        let cols = bias.len();
        let args = vec![bias.into(), rows.into(), Arg::U32(cols as u32)];
        let grid = row_grid(rows.len() / cols, cols);
        self.begun().launch(Kernel::add_bias, grid, 256, args);
    }

    /// `dst[cols] += sums over rows`, of what the kernel makes of them. The kernel takes the
    /// arguments, then the rows, the columns and where its parts go.
    fn columns(
        &self,
        kernel: Kernel,
        mut args: Vec<Arg>,
        rows: usize,
        cols: usize,
        dst: &CudaViewMut<'_, C>,
    ) {
        let groups = (rows.div_ceil(8 * 16) as u64).clamp(1, 128);
        let mut queue = self.begun();
        let parts = queue.scratch(4 * groups * cols as u64);
        let (count, cols_arg) = (Arg::U32(rows as u32), Arg::U32(cols as u32));
        args.extend([count, cols_arg, Arg::Pointer(parts)]);
        let grid = [cols.div_ceil(32) as u64, groups, 1];
        queue.launch(kernel, grid, 256, args);
        let args = vec![
            Arg::Pointer(parts),
            Arg::U32(groups as u32),
            cols_arg,
            dst.into(),
        ];
        let grid = [cols.div_ceil(128) as u64, 1, 1];
        queue.launch(Kernel::add_parts, grid, 128, args);
    }

    pub(super) fn row_sums(&self, rows: CudaView<'_, C>, dst: &CudaViewMut<'_, C>) {
        let cols = dst.len();
        if cols == 0 {
            return;
        }
        let count = rows.len() / cols;
        self.columns(Kernel::column_sums, vec![rows.into()], count, cols, dst);
    }

    pub(super) fn squares(&self, src: CudaView<'_, C>) -> f64 {
        let count = src.len() as u64;
        let parts_count = count.div_ceil(4096).clamp(1, PARTS_MAX);
        let mut queue = self.begun();
        let sum = queue.scratch(8 + 8 * parts_count);
        let parts = Arg::Pointer(sum + 8);
        let args = vec![src.into(), Arg::U64(count), parts];
        queue.launch(Kernel::square_parts, [parts_count, 1, 1], 256, args);
        let args = vec![parts, Arg::U32(parts_count as u32), Arg::Pointer(sum)];
        queue.launch(Kernel::add_squares, [1, 1, 1], 256, args);
        let mut bytes = [0; 8];
        queue.download(sum, &mut bytes);
        f64::from_le_bytes(bytes)
    }

    pub(super) fn norm(
        &self,
        eps: f32,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        y: &CudaViewMut<'_, C>,
        inv_rms: &CudaViewMut<'_, C>,
    ) {
        let (rows, cols) = (inv_rms.len(), weight.len());
        assert!(
            x.len() == rows * cols && y.len() == x.len(),
            "rows of one width"
        );
        let args = vec![
            eps.into(),
            x.into(),
            weight.into(),
            y.into(),
            inv_rms.into(),
            Arg::U32(cols as u32),
        ];
        let grid = [rows as u64, 1, 1];
        self.begun()
            .launch(Kernel::rms_norm, grid, row_threads(cols), args);
    }

    pub(super) fn norm_backward(
        &self,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        inv_rms: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: &(CudaViewMut<'_, C>, Store),
        dweight: Option<&CudaViewMut<'_, C>>,
    ) {
        let kernels = [Kernel::rms_norm_dx, Kernel::rms_norm_dweight];
        self.rows_backward(
            kernels,
            inv_rms.len(),
            [x, weight, inv_rms, dy],
            dx,
            dweight,
        );
    }

    /// The way back through a norm of rows: the kernels of `dx` and of `dweight`, the number of rows,
    /// and `x`, the weight, what the way forth kept of each row, and `dy`.
    fn rows_backward(
        &self,
        [kernel, of_weight]: [Kernel; 2],
        rows: usize,
        [x, weight, kept, dy]: [CudaView<'_, C>; 4],
        (dx, store): &(CudaViewMut<'_, C>, Store),
        dweight: Option<&CudaViewMut<'_, C>>,
    ) {
        let cols = weight.len();
        assert!(
            x.len() == rows * cols && dy.len() == x.len() && dx.len() == x.len(),
            "rows of one width"
        );
        // First, since the other may overwrite what it reads.
        if let Some(dweight) = dweight {
            let args = vec![x.into(), kept.into(), dy.into()];
            self.columns(of_weight, args, rows, cols, dweight);
        }
        let args = vec![
            x.into(),
            weight.into(),
            kept.into(),
            dy.into(),
            dx.into(),
            Arg::U32(cols as u32),
            (*store == Store::Add).into(),
        ];
        let grid = [rows as u64, 1, 1];
        self.begun().launch(kernel, grid, row_threads(cols), args);
    }

    pub(super) fn centred(
        &self,
        eps: f32,
        x: CudaView<'_, C>,
        [weight, bias]: [CudaView<'_, C>; 2],
        y: &CudaViewMut<'_, C>,
        moments: &CudaViewMut<'_, C>,
    ) {
        let (rows, cols) = (moments.len() / 2, weight.len());
        assert!(
            bias.len() == cols && x.len() == rows * cols && y.len() == x.len(),
            "rows of one width"
        );
        let args = vec![
            eps.into(),
            x.into(),
            weight.into(),
            bias.into(),
            y.into(),
            moments.into(),
            Arg::U32(cols as u32),
        ];
        let grid = [rows as u64, 1, 1];
        self.begun()
            .launch(Kernel::layer_norm, grid, row_threads(cols), args);
    }

    pub(super) fn centred_backward(
        &self,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        moments: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: &(CudaViewMut<'_, C>, Store),
        dweight: Option<&CudaViewMut<'_, C>>,
    ) {
        let kernels = [Kernel::layer_norm_dx, Kernel::layer_norm_dweight];
        self.rows_backward(
            kernels,
            moments.len() / 2,
            [x, weight, moments, dy],
            dx,
            dweight,
        );
    }

    pub(super) fn norm_heads(
        &self,
        shape: HeadNormShape,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        y: &CudaViewMut<'_, C>,
        inv_rms: &CudaViewMut<'_, C>,
    ) {
        assert_eq!(x.len(), y.len(), "as many rows");
        shape.check(weight.len(), x.len(), inv_rms.len());
        let args = vec![
            shape.eps.into(),
            x.into(),
            weight.into(),
            y.into(),
            inv_rms.into(),
        ];
        self.over_heads(Kernel::head_norm, shape, x.len(), args);
    }

    pub(super) fn norm_heads_backward(
        &self,
        shape: HeadNormShape,
        (x, inv_rms): (CudaView<'_, C>, CudaView<'_, C>),
        weight: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: &CudaViewMut<'_, C>,
        dweight: Option<&CudaViewMut<'_, C>>,
    ) {
        assert!(x.len() == dx.len() && x.len() == dy.len(), "as many rows");
        shape.check(weight.len(), x.len(), inv_rms.len());
        let attention = shape.attention;
        if let Some(dweight) = dweight {
            let mut args = vec![x.into(), inv_rms.into(), dy.into()];
            let places = [attention.heads, attention.kv_heads];
            args.extend(places.map(|heads| Arg::U32(heads as u32)));
            let rows = x.len() / attention.qkv_cols();
            let cols = weight.len();
            self.columns(Kernel::head_norm_dweight, args, rows, cols, dweight);
        }
        let args = vec![
            x.into(),
            weight.into(),
            inv_rms.into(),
            dy.into(),
            dx.into(),
        ];
        self.over_heads(Kernel::head_norm_dx, shape, x.len(), args);
    }

    /// Runs a kernel with one block for each head of each row, values among them.
    fn over_heads(
        &self,
        kernel: Kernel,
        shape: HeadNormShape,
        elements: usize,
        mut args: Vec<Arg>,
    ) {
        let attention = shape.attention;
        let dim = attention.head_dim;
        let places = [attention.heads, attention.kv_heads, dim];
        args.extend(places.map(|number| Arg::U32(number as u32)));
        let grid = [(elements / dim) as u64, 1, 1];
        self.begun().launch(kernel, grid, row_threads(dim), args);
    }

    pub(super) fn turn(
        &self,
        shape: &RopeShape,
        positions: &[u32],
        direction: f32,
        rows: &CudaViewMut<'_, C>,
    ) {
        shape.check(positions.len(), rows.len());
        let RopeShape {
            heads,
            head_dim,
            row_stride,
            ref frequencies,
            magnitude,
            style,
        } = *shape;
        let frequencies: Vec<u32> = frequencies.iter().map(|it| it.to_bits()).collect();
        let mut queue = self.queue();
        let [positions_at, frequencies_at] =
            queue.begin([as_bytes(positions).as_slice(), &as_bytes(&frequencies)]);
        let args = vec![
            rows.into(),
            Arg::Pointer(positions_at),
            Arg::Pointer(frequencies_at),
            Arg::U32(heads as u32),
            Arg::U32(head_dim as u32),
            Arg::U32(row_stride as u32),
            (style == RopeStyle::Interleaved).into(),
            direction.into(),
            magnitude.into(),
        ];
        let (grid, shared) = ([positions.len() as u64, 1, 1], 4 * head_dim as u64);
        queue.launch_shared(Kernel::rope, grid, 128, shared, args);
    }

    pub(super) fn gated(&self, cols: usize, x: CudaView<'_, C>, y: &CudaViewMut<'_, C>) {
        assert_eq!(x.len(), 2 * y.len(), "rows of gates and values");
        let args = vec![x.into(), y.into(), Arg::U32(cols as u32)];
        let grid = row_grid(y.len() / cols, cols);
        self.begun().launch(Kernel::swiglu, grid, 256, args);
    }

    pub(super) fn gated_backward(
        &self,
        cols: usize,
        x: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: &CudaViewMut<'_, C>,
    ) {
        assert!(
            x.len() == 2 * dy.len() && dx.len() == x.len(),
            "rows of gates and values"
        );
        let args = vec![x.into(), dy.into(), dx.into(), Arg::U32(cols as u32)];
        let grid = row_grid(dy.len() / cols, cols);
        self.begun()
            .launch(Kernel::swiglu_backward, grid, 256, args);
    }

    pub(super) fn gelus(&self, x: CudaView<'_, C>, y: &CudaViewMut<'_, C>) {
        assert_eq!(x.len(), y.len(), "as many elements on both sides");
        let count = y.len() as u64;
        let args = vec![x.into(), y.into(), Arg::U64(count)];
        self.begun().launch(Kernel::gelu, chunks(count), 256, args);
    }

    pub(super) fn gelus_backward(
        &self,
        x: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: &CudaViewMut<'_, C>,
    ) {
        assert!(
            x.len() == dy.len() && dx.len() == x.len(),
            "as many elements on all sides"
        );
        let count = dx.len() as u64;
        let args = vec![x.into(), dy.into(), dx.into(), Arg::U64(count)];
        self.begun()
            .launch(Kernel::gelu_backward, chunks(count), 256, args);
    }

    pub(super) fn dropped(
        &self,
        mask: &DropoutMask,
        x: CudaView<'_, C>,
        (y, store): &(CudaViewMut<'_, C>, Store),
    ) {
        assert_eq!(x.len(), y.len(), "as many elements on both sides");
        let cols = mask.cols(x.len());
        if cols == 0 {
            return;
        }
        let rows = mask.rows.iter();
        let places = rows.flat_map(|row| {
            let halves = [row.stream as u32, (row.stream >> 32) as u32];
            [row.position, halves[0], halves[1]]
        });
        let counters = (mask.rows.len() * cols.div_ceil(COLUMNS)) as u64;
        let mut queue = self.queue();
        let [places_at] = queue.begin([as_bytes(&places.collect::<Vec<u32>>()).as_slice()]);
        let args = vec![
            Arg::Pointer(places_at),
            x.into(),
            y.into(),
            Arg::U64(counters),
            Arg::U32(cols as u32),
            Arg::U32(mask.first()),
            Arg::U32(mask.key as u32),
            Arg::U32((mask.key >> 32) as u32),
            Arg::U32(mask.threshold()),
            mask.scale().into(),
            (*store == Store::Add).into(),
        ];
        queue.launch(Kernel::dropout, chunks(counters), 256, args);
    }

    pub(super) fn gathered(
        &self,
        cols: usize,
        rows: &[u32],
        table: CudaView<'_, C>,
        dst: &CudaViewMut<'_, C>,
    ) {
        assert_eq!(dst.len(), rows.len() * cols, "one row an index");
        check_rows(&there(rows), table.len() / cols.max(1));
        let mut queue = self.queue();
        let [rows_at] = queue.begin([as_bytes(rows).as_slice()]);
        let args = vec![
            Arg::Pointer(rows_at),
            table.into(),
            dst.into(),
            Arg::U32(cols as u32),
        ];
        queue.launch(Kernel::gather, row_grid(rows.len(), cols), 256, args);
    }

    /// `table[rows[i]] += weights[i] * src[i]`, or without weights.
    pub(super) fn scattered(
        &self,
        cols: usize,
        rows: &[u32],
        weights: Option<CudaView<'_, C>>,
        src: CudaView<'_, C>,
        table: &CudaViewMut<'_, C>,
    ) {
        assert_eq!(src.len(), rows.len() * cols, "one row an index");
        check_rows(&there(rows), table.len() / cols.max(1));
        let Sources {
            targets,
            starts,
            sources,
        } = Sources::of(rows);
        let mut queue = self.queue();
        let [targets_at, starts_at, sources_at] = queue.begin([
            as_bytes(&targets).as_slice(),
            &as_bytes(&starts),
            &as_bytes(&sources),
        ]);
        let args = vec![
            Arg::Pointer(targets_at),
            Arg::Pointer(starts_at),
            Arg::Pointer(sources_at),
            weights.map_or(Arg::Pointer(0), Arg::from),
            src.into(),
            table.into(),
            Arg::U32(cols as u32),
        ];
        queue.launch(Kernel::scatter, row_grid(targets.len(), cols), 256, args);
    }

    pub(super) fn combined_backward(
        &self,
        cols: usize,
        rows: &[u32],
        [weights, src, dout]: [CudaView<'_, C>; 3],
        dsrc: Option<&(CudaViewMut<'_, C>, Store)>,
        dweights: Option<&(CudaViewMut<'_, C>, Store)>,
    ) {
        check_rows(rows, dout.len() / cols.max(1));
        let mut queue = self.queue();
        let [rows_at] = queue.begin([as_bytes(rows).as_slice()]);
        let rows_at = Arg::Pointer(rows_at);
        let cols_arg = Arg::U32(cols as u32);
        if let Some((dsrc, store)) = dsrc {
            assert_eq!(dsrc.len(), rows.len() * cols, "one row an index");
            let add = (*store == Store::Add).into();
            let args = vec![
                rows_at,
                weights.into(),
                dout.into(),
                dsrc.into(),
                cols_arg,
                add,
            ];
            queue.launch(Kernel::combine_dsrc, row_grid(rows.len(), cols), 256, args);
        }
        if let Some((dweights, store)) = dweights {
            assert_eq!(dweights.len(), rows.len(), "one weight an index");
            let add = (*store == Store::Add).into();
            let args = vec![
                rows_at,
                src.into(),
                dout.into(),
                dweights.into(),
                cols_arg,
                add,
            ];
            let grid = [rows.len() as u64, 1, 1];
            queue.launch(Kernel::combine_dweights, grid, row_threads(cols), args);
        }
    }

    pub(super) fn routed(
        &self,
        RouteShape { experts, top }: RouteShape,
        x: CudaView<'_, C>,
        chosen: &mut [u32],
        weights: &CudaViewMut<'_, C>,
    ) {
        assert!(1 <= top && top <= experts, "some of the experts");
        let rows = chosen.len() / top;
        assert!(
            x.len() == rows * experts && weights.len() == rows * top,
            "one row of choices a row"
        );
        if rows == 0 {
            return;
        }
        let mut bytes = vec![0; 4 * chosen.len()];
        let mut queue = self.begun();
        let chosen_at = queue.scratch(bytes.len() as u64);
        let args = vec![
            x.into(),
            Arg::Pointer(chosen_at),
            weights.into(),
            Arg::U32(rows as u32),
            Arg::U32(experts as u32),
            Arg::U32(top as u32),
        ];
        queue.launch(Kernel::route, [rows.div_ceil(128) as u64, 1, 1], 128, args);
        queue.download(chosen_at, &mut bytes);
        for (chosen, bytes) in chosen.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *chosen = u32::from_le_bytes(*bytes);
        }
    }

    pub(super) fn routed_backward(
        &self,
        RouteShape { experts, top }: RouteShape,
        chosen: &[u32],
        [weights, dweights]: [CudaView<'_, C>; 2],
        (dx, store): &(CudaViewMut<'_, C>, Store),
    ) {
        assert!(
            weights.len() == chosen.len()
                && dweights.len() == chosen.len()
                && dx.len() * top == chosen.len() * experts,
            "one row of choices a row"
        );
        let count = dx.len() as u64;
        let mut queue = self.queue();
        let [chosen_at] = queue.begin([as_bytes(chosen).as_slice()]);
        let args = vec![
            Arg::Pointer(chosen_at),
            weights.into(),
            dweights.into(),
            dx.into(),
            Arg::U64(count),
            Arg::U32(experts as u32),
            Arg::U32(top as u32),
            (*store == Store::Add).into(),
        ];
        queue.launch(Kernel::route_backward, chunks(count), 256, args);
    }

    pub(super) fn probabilities(
        &self,
        scales: &[f32],
        x: CudaView<'_, C>,
        probs: &CudaViewMut<'_, C>,
        logsumexp: &CudaViewMut<'_, C>,
    ) {
        let cols = x.len() / scales.len().max(1);
        assert!(
            x.len() == cols * scales.len() && x.len() == probs.len(),
            "one scale a row"
        );
        assert_eq!(logsumexp.len(), scales.len(), "one sum a row");
        let bits: Vec<u32> = scales.iter().map(|scale| scale.to_bits()).collect();
        let mut queue = self.queue();
        let [scales_at] = queue.begin([as_bytes(&bits).as_slice()]);
        let args = vec![
            Arg::Pointer(scales_at),
            x.into(),
            probs.into(),
            logsumexp.into(),
            Arg::U32(cols as u32),
        ];
        let grid = [scales.len() as u64, 1, 1];
        queue.launch(Kernel::softmax, grid, row_threads(cols).max(128), args);
    }
}

/// # Panics
/// If a row does not exist: a kernel would read or write what belongs to others.
#[track_caller]
pub(super) fn check_rows(rows: &[u32], count: usize) {
    let outside = rows.iter().find(|row| **row as usize >= count);
    assert!(outside.is_none(), "row {outside:?} of {count}");
}

/// Rows without those that are absent.
fn there(rows: &[u32]) -> Vec<u32> {
    let there = rows.iter().copied();
    there.filter(|row| *row != ABSENT_ROW).collect()
}

/// For each row that is written, in order: the numbers of what is added to it, in theirs.
#[derive(Debug, PartialEq, Eq)]
struct Sources {
    targets: Vec<u32>,
    /// One more than there are targets.
    starts: Vec<u32>,
    sources: Vec<u32>,
}

impl Sources {
    fn of(rows: &[u32]) -> Self {
        let there = (0..rows.len() as u32).filter(|source| rows[*source as usize] != ABSENT_ROW);
        let mut sources: Vec<u32> = there.collect();
        sources.sort_by_key(|source| rows[*source as usize]); // stable
        let (mut targets, mut starts) = (Vec::new(), Vec::new());
        for (i, source) in sources.iter().enumerate() {
            let target = rows[*source as usize];
            if targets.last() != Some(&target) {
                targets.push(target);
                starts.push(i as u32);
            }
        }
        starts.push(sources.len() as u32);
        Self {
            targets,
            starts,
            sources,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_scattered_is_grouped_by_target_in_order() {
        let grouped = Sources::of(&[4, 0, 4, 2, 4]);
        assert_eq!(grouped.targets, [0, 2, 4]);
        assert_eq!(grouped.starts, [0, 1, 2, 5]);
        assert_eq!(grouped.sources, [1, 3, 0, 2, 4]);
        assert_eq!(Sources::of(&[]).starts, [0]);
        let absent = Sources::of(&[ABSENT_ROW, 3, ABSENT_ROW]);
        assert_eq!((absent.targets, absent.starts), (vec![3], vec![0, 1]));
        assert_eq!(absent.sources, [1]);
    }
}

//! Matrix products: operands brought into a form that the card's library takes.

use crate::backend::{Addends, MatMul, Precision, Store, Strides};
use crate::cuda::buffer::{CudaBuffer, CudaView, CudaViewMut};
use crate::cuda::card::{Addend, Arg, Card, Format, Gemm, Operand};
use crate::cuda::handle::Cuda;
use crate::cuda::kernel::Kernel;
use crate::cuda::queue::Queue;
use crate::cuda::queue::eights;

/// A matrix of `rows x cols` elements, several if there is a batch.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    rows: usize,
    cols: usize,
    steps: Strides,
}

impl Shape {
    /// Elements of a line and lines, with lines along memory where that is possible; and whether
    /// lines are columns.
    fn lines(self) -> (usize, usize, bool) {
        let turned = self.steps.col != 1 && self.steps.row == 1;
        if turned {
            (self.rows, self.cols, true)
        } else {
            (self.cols, self.rows, false)
        }
    }

    /// The operand where it lies, if a library can take it there.
    fn as_it_is(self, address: u64, format: Format) -> Option<Operand> {
        let (length, lines, turned) = self.lines();
        let (along, across) = if turned {
            (self.steps.row, self.steps.col)
        } else {
            (self.steps.col, self.steps.row)
        };
        let ld = if lines == 1 { length } else { across };
        ((along == 1 || length == 1) && ld >= length).then_some(Operand {
            address,
            format,
            ld: ld as u64,
            turned,
            batch: if self.batch > 1 {
                self.steps.batch as u64
            } else {
                0
            },
        })
    }

    /// Bytes of scratch memory that a copy of it takes.
    fn copy_bytes(self, format: Format) -> u64 {
        let (length, lines, _) = self.lines();
        let ld = copy_ld(length, format);
        (self.batch * lines * ld) as u64 * format.bytes()
    }
}

/// Rows of bf16 copies begin at multiples of 16 bytes.
fn copy_ld(length: usize, format: Format) -> usize {
    match format {
        Format::F32 => length,
        Format::Bf16 => length.next_multiple_of(8),
    }
}

impl<C: Card> Cuda<C> {
    pub(super) fn product(
        &self,
        call: MatMul,
        a: CudaView<'_, C>,
        b: CudaView<'_, C>,
        c: &CudaViewMut<'_, C>,
    ) {
        let addend = match call.store {
            Store::Set => Addend::Zero,
            Store::Add => Addend::Destination,
        };
        let extent = call.c.extent(call.batch, call.m, call.n);
        assert!(
            c.len() >= extent,
            "{extent} results in {} elements",
            c.len()
        );
        self.product_into(call, a, b, c.address(), addend, None);
    }

    pub(super) fn product_with(
        &self,
        call: MatMul,
        x: CudaView<'_, C>,
        w: CudaView<'_, C>,
        add: Addends<CudaView<'_, C>>,
        y: &mut CudaBuffer<C>,
    ) {
        let len = call.m * call.n;
        let y = y.view_mut(0..len);
        if let Some(bias) = add.bias {
            assert_eq!(bias.len(), call.n, "one bias a column");
        }
        let addend = match add.residual {
            Some(residual) => {
                assert_eq!(residual.len(), len, "a residual shaped as the output");
                Addend::Residual(residual.address())
            }
            None => Addend::Zero,
        };
        let call = MatMul {
            c: Strides::rows(call.n),
            ..call
        };
        let bias = add.bias.map(|bias| bias.address());
        self.product_into(call, x, w, y.address(), addend, bias);
    }

    /// # Panics
    /// If the results do not lie along memory in one direction.
    fn product_into(
        &self,
        call: MatMul,
        a: CudaView<'_, C>,
        b: CudaView<'_, C>,
        c: u64,
        addend: Addend,
        bias: Option<u64>,
    ) {
        let MatMul { batch, m, n, k, .. } = call;
        if batch * m * n == 0 {
            return;
        }
        assert!(k > 0, "a product over nothing");
        let shape = |rows, cols, steps| Shape {
            batch,
            rows,
            cols,
            steps,
        };
        let (a_shape, b_shape) = (shape(m, k, call.a), shape(k, n, call.b));
        for (view, shape) in [(a, a_shape), (b, b_shape)] {
            let extent = shape.steps.extent(batch, shape.rows, shape.cols);
            assert!(view.len() >= extent, "{extent} operands in {}", view.len());
        }
        let mut queue = self.queue();
        queue.begin([]);
        let [a, b] = self.operands(&mut queue, [(a, a_shape), (b, b_shape)], 0);
        let gemm = Gemm {
            batch: batch as u64,
            m: m as u64,
            n: n as u64,
            k: k as u64,
            a,
            b,
            c,
            ldc: if m == 1 { n } else { call.c.row } as u64,
            c_batch: if batch > 1 { call.c.batch as u64 } else { 0 },
            scale: call.scale.to_bits(),
            addend,
            bias,
        };
        if call.c.col == 1 || n == 1 {
            queue.gemm(gemm);
        } else {
            assert!(
                (call.c.row == 1 || m == 1) && bias.is_none(),
                "results along memory in one direction"
            );
            // Its transpose is the product of the transposes.
            queue.gemm(Gemm {
                m: gemm.n,
                n: gemm.m,
                a: turned(b),
                b: turned(a),
                ldc: if n == 1 { m } else { call.c.col } as u64,
                ..gemm
            });
        }
    }

    /// Both operands in one format; copies take scratch memory from `reserved` bytes on.
    fn operands(
        &self,
        queue: &mut Queue<C>,
        operands: [(CudaView<'_, C>, Shape); 2],
        reserved: u64,
    ) -> [Operand; 2] {
        let format = match self.precision {
            Precision::F32 => Format::F32,
            Precision::Bf16 => Format::Bf16,
        };
        let there = operands.map(|(view, shape)| self.operand_in_place(queue, view, shape));
        let bytes = [0, 1].map(|i| match there[i] {
            Some(_) => 0,
            None => operands[i].1.copy_bytes(format).next_multiple_of(256),
        });
        let scratch = match reserved + bytes[0] + bytes[1] {
            0 => 0,
            bytes => queue.scratch(bytes),
        };
        let places = [scratch + reserved, scratch + reserved + bytes[0]];
        [0, 1].map(|i| {
            let (view, shape) = operands[i];
            there[i].unwrap_or_else(|| copied(queue, view.address(), shape, format, places[i]))
        })
    }

    /// The operand without a copy of its own, if that can be.
    fn operand_in_place(
        &self,
        queue: &mut Queue<C>,
        view: CudaView<'_, C>,
        shape: Shape,
    ) -> Option<Operand> {
        match self.precision {
            Precision::F32 => shape.as_it_is(view.address(), Format::F32),
            Precision::Bf16 => {
                let held = view.rounded()?;
                let range = view.range();
                let address = held.address + 2 * range.start as u64;
                let operand = shape.as_it_is(address, Format::Bf16)?;
                let mut fresh = held.fresh.lock();
                if !fresh.contains(&range) {
                    let count = range.len() as u64;
                    let args = vec![view.into(), Arg::Pointer(address), Arg::U64(count)];
                    queue.launch(Kernel::round_flat, eights(count), 256, args);
                    fresh.insert(range);
                }
                Some(operand)
            }
        }
    }

    /// A row-major matrix of `cols` columns as an operand, and the bytes of scratch memory from
    /// `reserved` on that it took. `b` is used as `[cols, rows]` when turned by the caller.
    pub(super) fn row_operand(
        &self,
        queue: &mut Queue<C>,
        view: CudaView<'_, C>,
        cols: usize,
        scratch: u64,
    ) -> Operand {
        let shape = row_shape(view.len() / cols.max(1), cols);
        let format = self.format();
        self.operand_in_place(queue, view, shape)
            .unwrap_or_else(|| copied(queue, view.address(), shape, format, scratch))
    }

    /// Bytes of scratch memory that [`row_operand`](Self::row_operand) may take.
    pub(super) fn row_operand_bytes(&self, rows: usize, cols: usize) -> u64 {
        row_shape(rows, cols)
            .copy_bytes(self.format())
            .next_multiple_of(256)
    }

    /// In what operands of products lie.
    pub(super) fn format(&self) -> Format {
        match self.precision {
            Precision::F32 => Format::F32,
            Precision::Bf16 => Format::Bf16,
        }
    }
}

fn row_shape(rows: usize, cols: usize) -> Shape {
    Shape {
        batch: 1,
        rows,
        cols,
        steps: Strides::rows(cols),
    }
}

/// The transpose.
pub(super) fn turned(operand: Operand) -> Operand {
    Operand {
        turned: !operand.turned,
        ..operand
    }
}

/// Copies, with lines along memory.
fn copied<C: Card>(
    queue: &mut Queue<C>,
    from: u64,
    shape: Shape,
    format: Format,
    to: u64,
) -> Operand {
    let (length, lines, turned) = shape.lines();
    let (along, across) = if turned {
        (shape.steps.row, shape.steps.col)
    } else {
        (shape.steps.col, shape.steps.row)
    };
    let ld = copy_ld(length, format);
    let batch = lines * ld;
    let batch_step = if shape.batch > 1 {
        shape.steps.batch
    } else {
        0
    };
    let extent = shape.steps.extent(shape.batch, shape.rows, shape.cols) as u64;
    let places = [from..from + 4 * extent, to..to + shape.copy_bytes(format)];
    let made = Operand {
        address: to,
        format,
        ld: ld as u64,
        turned,
        batch: if shape.batch > 1 { batch as u64 } else { 0 },
    };
    let together = shape.batch == 1 || batch_step == batch;
    if format == Format::Bf16 && along == 1 && across == ld && ld == length && together {
        let args = vec![Arg::Pointer(from), Arg::Pointer(to), Arg::U64(extent)];
        queue.copy_operand(Kernel::round_flat, eights(extent), args, places);
        return made;
    }
    let mut args = vec![
        Arg::Pointer(from),
        Arg::U64(across as u64),
        Arg::U64(along as u64),
        Arg::U64(batch_step as u64),
        Arg::U32(length as u32),
        Arg::Pointer(to),
    ];
    let kernel = match format {
        Format::F32 => Kernel::gather_rows,
        Format::Bf16 => {
            args.push(Arg::U32(ld as u32));
            Kernel::round_rows
        }
    };
    args.push(Arg::U64(batch as u64));
    let grid = [lines as u64, ld.div_ceil(1024) as u64, shape.batch as u64];
    queue.copy_operand(kernel, grid, args, places);
    made
}

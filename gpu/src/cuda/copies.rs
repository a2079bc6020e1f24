//! Copies of operands in scratch memory that still hold what they were made from, so that the next product
//! need not make them again: a gradient is an operand of two products in turn. Pure.

use std::ops::Range;

use crate::cuda::card::{Gemm, Launch};

/// The copies that are good at the moment.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<Copy>);

#[derive(Debug)]
struct Copy {
    /// The command that made it.
    made_by: Launch,
    from: Range<u64>,
    to: Range<u64>,
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Copies {
    /// A command is to copy what lies at `from` to `to`. Returns false when it would change nothing.
    pub(super) fn is_needed(&mut self, launch: &Launch, from: Range<u64>, to: Range<u64>) -> bool {
        if self.0.iter().any(|copy| copy.made_by == *launch) {
            return false;
        }
        self.written(&to);
        self.0.push(Copy {
            made_by: launch.clone(),
            from,
            to,
        });
        true
    }

    /// A product writes its results.
    pub(super) fn product(&mut self, gemm: &Gemm) {
        let lines = gemm.c_batch * (gemm.batch - 1) + gemm.ldc * (gemm.m - 1) + gemm.n;
        self.written(&(gemm.c..gemm.c + 4 * lines));
    }

    /// Something else may be written anywhere.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    fn written(&mut self, place: &Range<u64>) {
        self.0
            .retain(|copy| !meet(&copy.from, place) && !meet(&copy.to, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::card::{Addend, Arg, Format, Operand};
    use crate::cuda::kernel::Kernel;

    fn rounding(from: u64, to: u64) -> (Launch, Range<u64>, Range<u64>) {
        let launch = Launch {
            kernel: Kernel::round_rows.into(),
            grid: [1, 1, 1],
            block: 256,
            shared: 0,
            args: vec![Arg::Pointer(from), Arg::Pointer(to)],
        };
        (launch, from..from + 400, to..to + 200)
    }

    fn writing(c: u64) -> Gemm {
        let operand = Operand {
            address: 0,
            format: Format::Bf16,
            ld: 10,
            turned: false,
            batch: 0,
        };
        Gemm {
            batch: 1,
            m: 5,
            n: 10,
            k: 1,
            a: operand,
            b: operand,
            c,
            ldc: 10,
            c_batch: 0,
            scale: 1.0f32.to_bits(),
            addend: Addend::Zero,
            bias: None,
        }
    }

    #[test]
    fn a_copy_is_good_until_its_source_or_its_place_is_written() {
        let mut copies = Copies::default();
        let needed = |copies: &mut Copies, (launch, from, to)| copies.is_needed(&launch, from, to);
        let (dy, x) = (rounding(1000, 9000), rounding(5000, 9200));
        assert!(needed(&mut copies, dy.clone()) && needed(&mut copies, x.clone()));
        copies.product(&writing(1400));
        assert!(!needed(&mut copies, dy.clone()), "written beside it");
        copies.product(&writing(5399));
        assert!(needed(&mut copies, x.clone()), "its last byte was written");
        assert!(!needed(&mut copies, dy.clone()));
        assert!(needed(&mut copies, rounding(7000, 9100)), "over the first");
        assert!(needed(&mut copies, dy.clone()));
        copies.forget();
        assert!(needed(&mut copies, dy));
    }
}

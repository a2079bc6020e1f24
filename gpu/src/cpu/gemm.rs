//! Matrix products: a checked door to the kernels of the `gemm` crates.

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

use super::pool::Pool;
use crate::backend::{MatMul, Store, Strides};

pub(super) fn matmul(pool: &Pool, call: MatMul, a: &[f32], b: &[f32], c: &mut [f32]) {
    let MatMul { batch, m, n, k, .. } = call;
    if batch * m * n == 0 {
        return;
    }
    assert!(
        call.c.extent(batch, m, n) <= c.len(),
        "product outside its destination"
    );
    if batch == 1 {
        pool.install(|| product(pool.parallelism(), call, a, b, c));
        return;
    }
    assert!(
        call.c.batch >= Strides { batch: 0, ..call.c }.extent(1, m, n),
        "products overlap"
    );
    let single = MatMul { batch: 1, ..call };
    let [a_step, b_step] = [call.a.batch, call.b.batch];
    assert!(
        call.a.extent(batch, m, k) <= a.len(),
        "left factor outside its view"
    );
    assert!(
        call.b.extent(batch, k, n) <= b.len(),
        "right factor outside its view"
    );
    pool.blocks(c, call.c.batch, |i, c| {
        if i < batch {
            product(
                Parallelism::None,
                single,
                &a[i * a_step..],
                &b[i * b_step..],
                c,
            );
        }
    });
}

/// One product on the current thread or the current pool.
pub(super) fn product(parallelism: Parallelism, call: MatMul, a: &[f32], b: &[f32], c: &mut [f32]) {
    let MatMul { m, n, k, .. } = call;
    if m * n == 0 {
        return;
    }
    assert!(
        call.a.extent(1, m, k) <= a.len(),
        "left factor outside its view"
    );
    assert!(
        call.b.extent(1, k, n) <= b.len(),
        "right factor outside its view"
    );
    assert!(
        call.c.extent(1, m, n) <= c.len(),
        "product outside its destination"
    );
    // The kernels write columns of neighbours. Where those of the destination are its rows, the product of
    // the transposed factors is the transposed product.
    let (a, b) = ((a.as_ptr(), call.a), (b.as_ptr(), call.b));
    let (m, n, left, right, c_strides) = if call.c.col < call.c.row {
        let [left, right] = [b, a].map(|(data, strides)| (data, transposed(strides)));
        (n, m, left, right, transposed(call.c))
    } else {
        (m, n, a, b, call.c)
    };
    // The kernel computes `alpha * dst + beta * lhs * rhs`.
    // SAFETY: the three assertions bound every access, and `c` is borrowed exclusively.
    unsafe {
        get_gemm_fn()(
            m,
            n,
            k,
            c.as_mut_ptr(),
            c_strides.col as isize,
            c_strides.row as isize,
            call.store == Store::Add,
            left.0,
            left.1.col as isize,
            left.1.row as isize,
            right.0,
            right.1.col as isize,
            right.1.row as isize,
            1.0,
            call.scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The strides of the same elements with rows for columns.
const fn transposed(of: Strides) -> Strides {
    Strides {
        row: of.col,
        col: of.row,
        ..of
    }
}

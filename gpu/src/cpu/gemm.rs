//! Matrix products: a checked door to the `gemm` crate.

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
                gemm::Parallelism::None,
                single,
                &a[i * a_step..],
                &b[i * b_step..],
                c,
            );
        }
    });
}

/// One product on the current thread or the current pool.
pub(super) fn product(
    parallelism: gemm::Parallelism,
    call: MatMul,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
) {
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
    // The crate computes `alpha * dst + beta * lhs * rhs`.
    // SAFETY: the three assertions bound every access, and `c` is borrowed exclusively.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            call.c.col as isize,
            call.c.row as isize,
            call.store == Store::Add,
            a.as_ptr(),
            call.a.col as isize,
            call.a.row as isize,
            b.as_ptr(),
            call.b.col as isize,
            call.b.row as isize,
            1.0f32,
            call.scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

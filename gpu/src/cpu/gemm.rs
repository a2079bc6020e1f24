//! Matrix products: a checked door to the kernels of the `gemm` crates, and to those of bf16.

pub(super) mod bf16;

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

use super::pool::Pool;
use crate::backend::{MatMul, Precision, Store, Strides};

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
        wide_product(pool, call, a, b, c);
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
            product(pool, single, &a[i * a_step..], &b[i * b_step..], c);
        }
    });
}

/// One product with all threads of the pool.
pub(super) fn wide_product(pool: &Pool, call: MatMul, a: &[f32], b: &[f32], c: &mut [f32]) {
    pool.install(|| checked(pool, true, call, a, b, c));
}

/// One product on the calling thread.
pub(super) fn product(pool: &Pool, call: MatMul, a: &[f32], b: &[f32], c: &mut [f32]) {
    checked(pool, false, call, a, b, c);
}

fn checked(pool: &Pool, is_wide: bool, call: MatMul, a: &[f32], b: &[f32], c: &mut [f32]) {
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
    // The kernels write lines of neighbours, those of `gemm` along columns and those of bf16 along rows. Where those of
    // the destination are the other ones, the product of the transposed factors is the transposed product.
    let turned = MatMul {
        m: n,
        n: m,
        a: transposed(call.b),
        b: transposed(call.a),
        c: transposed(call.c),
        ..call
    };
    let is_by_rows = call.c.col < call.c.row;
    match pool.precision() {
        Precision::Bf16 if is_by_rows => bf16::product(pool, is_wide, call, a, b, c),
        Precision::Bf16 => bf16::product(pool, is_wide, turned, b, a, c),
        Precision::F32 => {
            let parallelism = match is_wide {
                true => pool.parallelism(),
                false => Parallelism::None,
            };
            if is_by_rows {
                f32_product(parallelism, turned, b, a, c);
            } else {
                f32_product(parallelism, call, a, b, c);
            }
        }
    }
}

/// A product whose operands lie in their views.
fn f32_product(parallelism: Parallelism, call: MatMul, a: &[f32], b: &[f32], c: &mut [f32]) {
    let [a_end, b_end, c_end] = [
        call.a.extent(1, call.m, call.k),
        call.b.extent(1, call.k, call.n),
        call.c.extent(1, call.m, call.n),
    ];
    assert!(
        a_end <= a.len() && b_end <= b.len() && c_end <= c.len(),
        "operands in their views"
    );
    // The kernel computes `alpha * dst + beta * lhs * rhs`.
    // SAFETY: the assertion bounds every access, and `c` is borrowed exclusively.
    unsafe {
        get_gemm_fn()(
            call.m,
            call.n,
            call.k,
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

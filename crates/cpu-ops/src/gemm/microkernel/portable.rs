//! The path without SIMD instructions of our own: blocks of B are widened to f32 and multiplied by the
//! `matrixmultiply` crate.
#![allow(unsafe_code)]

use super::super::output::Block;

/// `c = alpha * a * b + beta * c`, with strides of rows and columns for `a`. `a` is `m` x `k`, `b` is `k` x
/// `n` with its own strides, where `c` is `m` x `n`.
pub(in crate::gemm) fn block_product(
    k: usize,
    alpha: f32,
    (a, a_row, a_col): (&[f32], usize, usize),
    (b, b_row, b_col): (&[f32], usize, usize),
    beta: f32,
    mut c: Block<'_>,
) {
    let (m, n) = (c.rows(), c.cols());
    if m == 0 || n == 0 {
        return;
    }
    assert!(k > 0);
    assert!(a.len() > (m - 1) * a_row + (k - 1) * a_col);
    assert!(b.len() > (k - 1) * b_row + (n - 1) * b_col);
    let [a_row, a_col, b_row, b_col, c_row, c_col] =
        [a_row, a_col, b_row, b_col, c.row_stride(), c.col_stride()]
            .map(|stride| isize::try_from(stride).expect("a stride within a slice fits isize"));
    let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.origin());
    // SAFETY: the extents of a and b are asserted above; c points to an m x n block that is ours alone,
    // and neither a nor b can overlap it, being shared borrows.
    unsafe {
        matrixmultiply::sgemm(m, k, n, alpha, a, a_row, a_col, b, b_row, b_col, beta, c, c_row, c_col);
    }
}

/// The sum of products of two slices of one length, in eight interleaved parts.
pub(in crate::gemm) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut lane = [0f32; 8];
    for (x, y) in x.chunks(8).zip(y.chunks(8)) {
        for (sum, (a, b)) in lane.iter_mut().zip(x.iter().zip(y)) {
            *sum += a * b;
        }
    }
    super::sum_lanes(lane)
}

//! Products of a few rows with a transposed B, `y = x Wᵀ`: what generation does for every token. Each element
//! is a sum along a contiguous row of W, so W is read once, in order, and nothing is packed; the speed is
//! that of memory.

use std::cell::RefCell;

use super::blocks::DOT_ROWS;
use super::microkernel;
use super::output::Block;
use super::pack::{Aligned, widen_run};
use super::{Op, Operand};
use crate::MatRef;
use crate::simd::Simd;

thread_local! {
    /// One row of W widened to f32.
    static ROW: RefCell<Aligned> = RefCell::default();
}

/// Whether this path serves a product of `rows` rows. It depends on shapes and `op` alone, so that W gives the
/// same result in every storage type that holds the same values.
pub(super) fn serves(rows: usize, b_op: Op) -> bool {
    rows <= DOT_ROWS && b_op == Op::Transpose
}

/// `c = alpha * x wᵀ + beta * c` for the rows of `w` from `first` on; `x` is [few, inner].
pub(super) fn run(
    simd: Simd,
    alpha: f32,
    x: MatRef<'_>,
    w: &Operand<'_>,
    first: usize,
    beta: f32,
    mut c: Block<'_>,
) {
    let depth = x.cols();
    ROW.with(|buffer| {
        let mut buffer = buffer.borrow_mut();
        for col in 0..c.cols() {
            let row = match w {
                Operand::F32(w) => w.row(first + col),
                _ => {
                    let wide = buffer.take(depth);
                    widen_run(w, first + col, 0, wide);
                    &*wide
                }
            };
            for i in 0..x.rows() {
                c.update(i, col, microkernel::dot(simd, x.row(i), row), alpha, beta);
            }
        }
    });
}

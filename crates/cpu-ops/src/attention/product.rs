//! Products of small tiles: `C = A B` or `C += A B`, for a group of rows at a time.
//!
//! ```text
//! C [m, n]  m a multiple of 8, n of 16       row-major, rows apart by the stride
//! A [m, k]  element (i, p) at i·row + p·col  so that a transposed tile is only another pair of steps
//! B [k, n]  row-major, rows apart by the stride
//! ```
//! Sums run over p from the first to the last for every element, whatever the tile's shape.

use super::mask::GROUP;
use crate::simd::Simd;

/// The left operand.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) data: &'a [f32],
    /// From one row to the next.
    pub(super) row: usize,
    /// From one column to the next.
    pub(super) col: usize,
}

/// The right operand.
#[derive(Clone, Copy)]
pub(super) struct Right<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

/// The result.
pub(super) struct Out<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) stride: usize,
    /// Whether the product is added to what is there; if not, it is not read.
    pub(super) add: bool,
}

/// Rows, columns and inner length of a product.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Columns are multiples of this.
pub(super) const LANES: usize = 16;

/// Computes the product.
///
/// # Panics
/// The size is empty or not in whole groups and vectors, or an operand is too short for it.
pub(super) fn product(simd: Simd, size: Size, a: Left<'_>, b: Right<'_>, c: Out<'_>) {
    let Size { m, n, k } = size;
    assert!(m > 0 && m.is_multiple_of(GROUP) && n > 0 && n.is_multiple_of(LANES) && k > 0, "{m} x {n} x {k}");
    assert!((m - 1) * a.row + (k - 1) * a.col < a.data.len(), "left operand is too short");
    assert!((k - 1) * b.stride + n <= b.data.len(), "right operand is too short");
    assert!((m - 1) * c.stride + n <= c.data.len() && (m == 1 || n <= c.stride), "result is too short");
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(proof) => super::avx512::product(proof, size, a, b, c),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2(proof) => super::avx2::product(proof, size, a, b, c),
        _ => portable(size, a, b, c),
    }
}

fn portable(size: Size, a: Left<'_>, b: Right<'_>, c: Out<'_>) {
    for (i, c_row) in c.data.chunks_mut(c.stride).enumerate().take(size.m) {
        for (at, out) in c_row[..size.n].as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sums = if c.add { *out } else { [0.0; LANES] };
            for p in 0..size.k {
                let x = a.data[i * a.row + p * a.col];
                let values = &b.data[p * b.stride + at * LANES..][..LANES];
                for (sum, y) in sums.iter_mut().zip(values) {
                    *sum += x * y;
                }
            }
            *out = sums;
        }
    }
}

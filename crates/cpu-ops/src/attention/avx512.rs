//! The tile product with AVX-512: 8 rows by 32 columns of sums in 16 registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::product::{LANES, Left, Out, Right, Size};
use crate::simd::Avx512;

/// Rows of sums.
const MR: usize = 8;

/// As [`super::product::product`], which has checked the lengths.
pub(super) fn product(_: Avx512, size: Size, a: Left<'_>, b: Right<'_>, c: Out<'_>) {
    let mut j = 0;
    while j < size.n {
        let vectors = if size.n - j >= 2 * LANES { 2 } else { 1 };
        for i in (0..size.m).step_by(MR) {
            // SAFETY: the proof exists only where the CPU has AVX-512 F. `product` asserts that the largest
            // element of each operand that a tile of `m x n x k` touches lies in its slice, that m is a
            // multiple of 8 and n of 16, so rows i..i + 8 and columns j..j + 16 * vectors are inside.
            unsafe {
                let a_at = a.data.as_ptr().add(i * a.row);
                let b_at = b.data.as_ptr().add(j);
                let c_at = c.data.as_mut_ptr().add(i * c.stride + j);
                if vectors == 2 {
                    kernel::<2>(size.k, (a_at, a.row, a.col), (b_at, b.stride), (c_at, c.stride), c.add);
                } else {
                    kernel::<1>(size.k, (a_at, a.row, a.col), (b_at, b.stride), (c_at, c.stride), c.add);
                }
            }
        }
        j += vectors * LANES;
    }
}

/// Eight rows by `V` vectors.
///
/// # Safety
/// - The CPU has AVX-512 F.
/// - `a` is readable at `i * row + p * col`, `b` at `p * stride + j` and `c` is readable and writable at
///   `i * stride + j` for all i < 8, p < k, j < 16 V.
#[target_feature(enable = "avx512f")]
unsafe fn kernel<const V: usize>(
    k: usize,
    (a, a_row, a_col): (*const f32, usize, usize),
    (b, b_stride): (*const f32, usize),
    (c, c_stride): (*mut f32, usize),
    add: bool,
) {
    let mut sums = [[_mm512_setzero_ps(); V]; MR];
    if add {
        for (i, row) in sums.iter_mut().enumerate() {
            for (v, sum) in row.iter_mut().enumerate() {
                // SAFETY: i < 8 and v < V; the caller upholds that c is readable there.
                *sum = unsafe { _mm512_loadu_ps(c.add(i * c_stride + v * LANES)) };
            }
        }
    }
    for p in 0..k {
        let mut right = [_mm512_setzero_ps(); V];
        for (v, value) in right.iter_mut().enumerate() {
            // SAFETY: p < k and v < V; the caller upholds that b is readable there.
            *value = unsafe { _mm512_loadu_ps(b.add(p * b_stride + v * LANES)) };
        }
        for (i, row) in sums.iter_mut().enumerate() {
            // SAFETY: i < 8 and p < k; the caller upholds that a is readable there.
            let left = _mm512_set1_ps(unsafe { *a.add(i * a_row + p * a_col) });
            for (sum, value) in row.iter_mut().zip(right) {
                *sum = _mm512_fmadd_ps(left, value, *sum);
            }
        }
    }
    for (i, row) in sums.iter().enumerate() {
        for (v, sum) in row.iter().enumerate() {
            // SAFETY: i < 8 and v < V; the caller upholds that c is writable there.
            unsafe { _mm512_storeu_ps(c.add(i * c_stride + v * LANES), *sum) };
        }
    }
}

//! The tile product with AVX2: 4 rows by 16 columns of sums in 8 registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::product::{Left, Out, Right, Size};
use crate::simd::Avx2;

/// Elements of a vector.
const LANES: usize = 8;
/// Vectors of a row of sums.
const VECTORS: usize = 2;
/// Rows of sums.
const MR: usize = 4;

/// As [`super::product::product`], which has checked the lengths.
pub(super) fn product(_: Avx2, size: Size, a: Left<'_>, b: Right<'_>, c: Out<'_>) {
    for j in (0..size.n).step_by(VECTORS * LANES) {
        for i in (0..size.m).step_by(MR) {
            // SAFETY: the proof exists only where the CPU has AVX2 and FMA. `product` asserts that the largest
            // element of each operand that a tile of `m x n x k` touches lies in its slice, that m is a
            // multiple of 8 and n of 16, so rows i..i + 4 and columns j..j + 16 are inside.
            unsafe {
                let a_at = a.data.as_ptr().add(i * a.row);
                let b_at = b.data.as_ptr().add(j);
                let c_at = c.data.as_mut_ptr().add(i * c.stride + j);
                kernel(size.k, (a_at, a.row, a.col), (b_at, b.stride), (c_at, c.stride), c.add);
            }
        }
    }
}

/// Four rows by two vectors.
///
/// # Safety
/// - The CPU has AVX2 and FMA.
/// - `a` is readable at `i * row + p * col`, `b` at `p * stride + j` and `c` is readable and writable at
///   `i * stride + j` for all i < 4, p < k, j < 16.
#[target_feature(enable = "avx2,fma")]
unsafe fn kernel(
    k: usize,
    (a, a_row, a_col): (*const f32, usize, usize),
    (b, b_stride): (*const f32, usize),
    (c, c_stride): (*mut f32, usize),
    add: bool,
) {
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; MR];
    if add {
        for (i, row) in sums.iter_mut().enumerate() {
            for (v, sum) in row.iter_mut().enumerate() {
                // SAFETY: i < 4 and v < 2; the caller upholds that c is readable there.
                *sum = unsafe { _mm256_loadu_ps(c.add(i * c_stride + v * LANES)) };
            }
        }
    }
    for p in 0..k {
        let mut right = [_mm256_setzero_ps(); VECTORS];
        for (v, value) in right.iter_mut().enumerate() {
            // SAFETY: p < k and v < 2; the caller upholds that b is readable there.
            *value = unsafe { _mm256_loadu_ps(b.add(p * b_stride + v * LANES)) };
        }
        for (i, row) in sums.iter_mut().enumerate() {
            // SAFETY: i < 4 and p < k; the caller upholds that a is readable there.
            let left = _mm256_set1_ps(unsafe { *a.add(i * a_row + p * a_col) });
            for (sum, value) in row.iter_mut().zip(right) {
                *sum = _mm256_fmadd_ps(left, value, *sum);
            }
        }
    }
    for (i, row) in sums.iter().enumerate() {
        for (v, sum) in row.iter().enumerate() {
            // SAFETY: i < 4 and v < 2; the caller upholds that c is writable there.
            unsafe { _mm256_storeu_ps(c.add(i * c_stride + v * LANES), *sum) };
        }
    }
}

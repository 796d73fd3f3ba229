//! Microkernel for CPUs with AVX2 and FMA: tiles of up to 6 x 16, that is 12 of the 16 registers for sums,
//! two for a row of B and one for the broadcast element of A.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "rows and vectors of a tile index several arrays and pointers alike"
)]

use std::arch::x86_64::*;

use super::tiles::{AHEAD, match_rows, store_edge, tiles};
use super::{Microkernel, MultiplyAdds, Tile, check_tile, check_transpose};
use crate::gemm::ahead::LINES;
use crate::gemm::blocks::A_STRIDE;
use crate::simd::Avx2;

const LANES: usize = 8;
const MR: usize = 6;
const NR: usize = 16;

tiles! {
    "avx2,fma", rows: [1 2 3 4 5 6], vectors: [1 2],
    zero: _mm256_setzero_ps, set: _mm256_set1_ps, load: _mm256_loadu_ps, store: _mm256_storeu_ps,
    mul: _mm256_mul_ps, fmadd: _mm256_fmadd_ps
}

impl Microkernel for Avx2 {
    const MR: usize = MR;
    const NR: usize = NR;
    const LANES: usize = LANES;

    fn tile(self, work: Tile<'_>) {
        check_tile::<Self>(&work);
        // SAFETY: `self` proves the instructions; `check_tile` has established the extents.
        unsafe { tile(work) }
    }

    fn transpose(self, src: (&[f32], usize), dst: (&mut [f32], usize), rows: usize, cols: usize) {
        check_transpose((src.0.len(), src.1), (dst.0.len(), dst.1), rows, cols);
        // SAFETY: `self` proves the instructions; `check_transpose` the extents.
        unsafe { transpose(src.0.as_ptr(), src.1, dst.0.as_mut_ptr(), dst.1, rows, cols) }
    }

    fn dot(self, x: &[f32], y: &[f32]) -> f32 {
        assert_eq!(x.len(), y.len());
        // SAFETY: `self` proves the instructions.
        unsafe { dot(x, y) }
    }
}

impl MultiplyAdds for Avx2 {
    fn multiply_adds(self, rounds: usize) -> usize {
        // SAFETY: `self` proves the instructions.
        unsafe { multiply_adds(rounds) }
    }
}

#[target_feature(enable = "avx2,fma")]
fn multiply_adds(rounds: usize) -> usize {
    const CHAINS: usize = 12;
    let factor = _mm256_set1_ps(std::hint::black_box(0.999));
    let mut sums = [factor; CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, factor);
        }
    }
    std::hint::black_box(sums);
    2 * CHAINS * LANES * rounds
}

/// # Safety
/// - the CPU has AVX2;
/// - the extents satisfy `check_transpose`.
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(
    src: *const f32,
    src_stride: usize,
    dst: *mut f32,
    dst_stride: usize,
    rows: usize,
    cols: usize,
) {
    let (whole_rows, whole_cols) = (rows / LANES * LANES, cols / LANES * LANES);
    for row in (0..whole_rows).step_by(LANES) {
        for col in (0..whole_cols).step_by(LANES) {
            let mut block = [_mm256_setzero_ps(); LANES];
            for (r, line) in block.iter_mut().enumerate() {
                // SAFETY: eight elements of row + r < rows, columns below whole_cols.
                *line = unsafe { _mm256_loadu_ps(src.add((row + r) * src_stride + col)) };
            }
            transpose_block(&mut block);
            for (c, line) in block.iter().enumerate() {
                // SAFETY: eight elements of column col + c < cols, rows below whole_rows.
                unsafe { _mm256_storeu_ps(dst.add((col + c) * dst_stride + row), *line) };
            }
        }
    }
    for row in 0..rows {
        for col in (if row < whole_rows { whole_cols } else { 0 })..cols {
            // SAFETY: row < rows and col < cols.
            unsafe { *dst.add(col * dst_stride + row) = *src.add(row * src_stride + col) };
        }
    }
}

/// Transposes 8 x 8 in registers.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn transpose_block(m: &mut [__m256; LANES]) {
    let mut t = *m;
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_ps(m[2 * i], m[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(m[2 * i], m[2 * i + 1]);
    }
    for i in 0..2 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|j| t[4 * i + j]);
        m[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
        m[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
        m[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
        m[4 * i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
    }
    // Half h of m[4 * i + j] now holds column 4 * h + j of rows 4 * i .. 4 * i + 4.
    for j in 0..4 {
        let (low, high) = (m[j], m[4 + j]);
        m[j] = _mm256_permute2f128_ps::<0x20>(low, high);
        m[4 + j] = _mm256_permute2f128_ps::<0x31>(low, high);
    }
}

/// # Safety
/// - the CPU has AVX2 and FMA;
/// - `y` is as long as `x`.
#[target_feature(enable = "avx2,fma")]
unsafe fn dot(x: &[f32], y: &[f32]) -> f32 {
    const SUMS: usize = 4;
    let mut sums = [_mm256_setzero_ps(); SUMS];
    let (len, xp, yp) = (x.len(), x.as_ptr(), y.as_ptr());
    let whole = len / (SUMS * LANES) * (SUMS * LANES);
    for i in (0..whole).step_by(SUMS * LANES) {
        for (s, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i + 32 <= len.
            let (a, b) =
                unsafe { (_mm256_loadu_ps(xp.add(i + s * LANES)), _mm256_loadu_ps(yp.add(i + s * LANES))) };
            *sum = _mm256_fmadd_ps(a, b, *sum);
        }
    }
    let pairs = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
    let mut lane = [0f32; LANES];
    // SAFETY: eight elements.
    unsafe { _mm256_storeu_ps(lane.as_mut_ptr(), pairs) };
    let rest = x[whole..].iter().zip(&y[whole..]).fold(0f32, |sum, (a, b)| a.mul_add(*b, sum));
    super::sum_lanes(lane) + rest
}

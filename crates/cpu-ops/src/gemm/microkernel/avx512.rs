//! Microkernel for CPUs with AVX-512: tiles of up to 9 x 48, that is 27 of the 32 registers for sums, three for a
//! row of B and one for the broadcast element of A. An iteration issues 12 loads for 27 multiply-adds: few enough
//! that half a core's front end, which is what a busy sibling thread leaves, still feeds both multipliers.
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
use crate::simd::Avx512;

const LANES: usize = 16;
const MR: usize = 9;
const NR: usize = 48;

/// Lanes `0..count` of a vector.
fn lanes(count: usize) -> __mmask16 {
    if count >= LANES { !0 } else { (1 << count) - 1 }
}

tiles! {
    "avx512f,avx2,fma", rows: [1 2 3 4 5 6 7 8 9], vectors: [1 2 3],
    zero: _mm512_setzero_ps, set: _mm512_set1_ps, load: _mm512_loadu_ps, store: _mm512_storeu_ps,
    mul: _mm512_mul_ps, fmadd: _mm512_fmadd_ps
}

impl Microkernel for Avx512 {
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
        // SAFETY: `self` proves the instructions; the lengths are equal.
        unsafe { dot(x, y) }
    }
}

impl MultiplyAdds for Avx512 {
    fn multiply_adds(self, rounds: usize) -> usize {
        // SAFETY: `self` proves the instructions.
        unsafe { multiply_adds(rounds) }
    }
}

#[target_feature(enable = "avx512f,avx2,fma")]
fn multiply_adds(rounds: usize) -> usize {
    const CHAINS: usize = 24;
    let factor = _mm512_set1_ps(std::hint::black_box(0.999));
    let mut sums = [factor; CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    std::hint::black_box(sums);
    2 * CHAINS * LANES * rounds
}

/// # Safety
/// - the CPU has AVX-512F;
/// - the extents satisfy `check_transpose`.
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn transpose(
    src: *const f32,
    src_stride: usize,
    dst: *mut f32,
    dst_stride: usize,
    rows: usize,
    cols: usize,
) {
    for row in (0..rows).step_by(LANES) {
        let height = LANES.min(rows - row);
        let row_mask = lanes(height);
        for col in (0..cols).step_by(LANES) {
            let width = LANES.min(cols - col);
            let col_mask = lanes(width);
            let mut block = [_mm512_setzero_ps(); LANES];
            for (r, line) in block.iter_mut().enumerate().take(height) {
                // SAFETY: row + r < rows; the mask keeps to columns below cols.
                *line = unsafe { _mm512_maskz_loadu_ps(col_mask, src.add((row + r) * src_stride + col)) };
            }
            transpose_block(&mut block);
            for (c, line) in block.iter().enumerate().take(width) {
                // SAFETY: col + c < cols; the mask keeps to rows below rows.
                unsafe { _mm512_mask_storeu_ps(dst.add((col + c) * dst_stride + row), row_mask, *line) };
            }
        }
    }
}

/// Transposes 16 x 16 in registers: pairs of rows, pairs of pairs, then quarters of vectors twice.
#[target_feature(enable = "avx512f,avx2,fma")]
#[inline]
fn transpose_block(m: &mut [__m512; LANES]) {
    let mut t = *m;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_ps(m[2 * i], m[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(m[2 * i], m[2 * i + 1]);
    }
    let pd = |x: __m512| _mm512_castps_pd(x);
    for i in 0..4 {
        let (a, b, c, d) = (pd(t[4 * i]), pd(t[4 * i + 1]), pd(t[4 * i + 2]), pd(t[4 * i + 3]));
        m[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        m[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        m[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        m[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    // Quarter q of m[4 * i + j] now holds column 4 * q + j of rows 4 * i .. 4 * i + 4.
    for j in 0..4 {
        t[j] = _mm512_shuffle_f32x4::<0x88>(m[j], m[4 + j]);
        t[4 + j] = _mm512_shuffle_f32x4::<0xdd>(m[j], m[4 + j]);
        t[8 + j] = _mm512_shuffle_f32x4::<0x88>(m[8 + j], m[12 + j]);
        t[12 + j] = _mm512_shuffle_f32x4::<0xdd>(m[8 + j], m[12 + j]);
    }
    for j in 0..4 {
        m[j] = _mm512_shuffle_f32x4::<0x88>(t[j], t[8 + j]);
        m[8 + j] = _mm512_shuffle_f32x4::<0xdd>(t[j], t[8 + j]);
        m[4 + j] = _mm512_shuffle_f32x4::<0x88>(t[4 + j], t[12 + j]);
        m[12 + j] = _mm512_shuffle_f32x4::<0xdd>(t[4 + j], t[12 + j]);
    }
}

/// # Safety
/// - the CPU has AVX-512F;
/// - `y` is as long as `x`.
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn dot(x: &[f32], y: &[f32]) -> f32 {
    const SUMS: usize = 4;
    let mut sums = [_mm512_setzero_ps(); SUMS];
    let (len, x, y) = (x.len(), x.as_ptr(), y.as_ptr());
    let whole = len / (SUMS * LANES) * (SUMS * LANES);
    for i in (0..whole).step_by(SUMS * LANES) {
        for (s, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i + 64 <= len.
            let (a, b) =
                unsafe { (_mm512_loadu_ps(x.add(i + s * LANES)), _mm512_loadu_ps(y.add(i + s * LANES))) };
            *sum = _mm512_fmadd_ps(a, b, *sum);
        }
    }
    for (s, i) in (whole..len).step_by(LANES).enumerate() {
        let mask = lanes(len - i);
        // SAFETY: the mask keeps to elements below len.
        let (a, b) =
            unsafe { (_mm512_maskz_loadu_ps(mask, x.add(i)), _mm512_maskz_loadu_ps(mask, y.add(i))) };
        sums[s] = _mm512_fmadd_ps(a, b, sums[s]);
    }
    let pairs = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    let mut lane = [0f32; LANES];
    // SAFETY: 16 elements.
    unsafe { _mm512_storeu_ps(lane.as_mut_ptr(), pairs) };
    super::sum_lanes(lane)
}

//! Microkernel for CPUs with AVX-512: tiles of up to 14 x 32, that is 28 of the 32 registers for sums, two
//! for a row of B and one for the broadcast element of A. A row of B serves 14 rows of A, so an iteration
//! loads 16 times for 28 multiply-adds, which two load ports sustain.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "rows and vectors of a tile index several arrays and pointers alike"
)]

use std::arch::x86_64::*;

use super::{Microkernel, MultiplyAdds, Tile, check_tile, check_transpose};
use crate::gemm::blocks::A_STRIDE;
use crate::gemm::output::combine;
use crate::simd::Avx512;

/// Rows of B that are asked for before their use.
const AHEAD: usize = 8;
const LANES: usize = 16;
const MR: usize = 14;
const NR: usize = 32;

/// Lanes `0..count` of a vector.
fn lanes(count: usize) -> __mmask16 {
    if count >= LANES { !0 } else { (1 << count) - 1 }
}

macro_rules! match_rows {
    ($tile:ident, $vectors:literal, [$($rows:literal)*]) => {
        match $tile.c.rows() {
            $($rows => tile_of::<$rows, $vectors>($tile),)*
            rows => unreachable!("check_tile allows no {rows} rows"),
        }
    };
}
impl Microkernel for Avx512 {
    const MR: usize = MR;
    const NR: usize = NR;
    const LANES: usize = LANES;

    fn tile(self, tile: Tile<'_>) {
        check_tile::<Self>(&tile);
        // SAFETY: `self` proves the instructions; `check_tile` has established the extents that
        // `tile_of` asks for.
        unsafe {
            if tile.c.cols() > LANES {
                match_rows!(tile, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
            } else {
                match_rows!(tile, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
            }
        }
    }

    fn transpose(self, src: (&[f32], usize), dst: (&mut [f32], usize), rows: usize, cols: usize) {
        check_transpose((src.0.len(), src.1), (dst.0.len(), dst.1), rows, cols);
        // SAFETY: `self` proves the instructions; `check_transpose` the extents.
        unsafe { transpose(src.0.as_ptr(), src.1, dst.0.as_mut_ptr(), dst.1, rows, cols) }
    }

    fn prefetch(self, values: &[f32]) {
        for line in values.chunks(16) {
            // SAFETY: `self` proves the instructions; a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
        }
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
/// - `tile` satisfies `check_tile`, has `ROWS` rows and at most `VECTORS * 16` columns, more than
///   `VECTORS * 16 - 16`.
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn tile_of<const ROWS: usize, const VECTORS: usize>(mut tile: Tile<'_>) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    let (mut a, mut b) = (tile.a.as_ptr(), tile.b.as_ptr());
    let b_stride = tile.b_stride;
    for r in 0..ROWS {
        // A hint, with no access: C is needed after `depth` iterations.
        _mm_prefetch::<_MM_HINT_T0>(tile.c.origin().wrapping_add(r * tile.c.row_stride()).cast());
        _mm_prefetch::<_MM_HINT_T0>(tile.c.origin().wrapping_add(r * tile.c.row_stride() + LANES).cast());
    }
    for _ in 0..tile.depth {
        let mut row_of_b = [_mm512_setzero_ps(); VECTORS];
        for v in 0..VECTORS {
            // SAFETY: row p of b is readable for whole vectors up to its columns (`check_tile`).
            row_of_b[v] = unsafe { _mm512_loadu_ps(b.add(v * LANES)) };
            // A hint, with no access, so it may point beyond the end.
            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * b_stride + v * LANES).cast());
        }
        for r in 0..ROWS {
            // SAFETY: element (r, p) of packed A, r < ROWS, p < depth (`check_tile`).
            let x = _mm512_set1_ps(unsafe { *a.add(r * A_STRIDE) });
            for v in 0..VECTORS {
                sums[r][v] = _mm512_fmadd_ps(x, row_of_b[v], sums[r][v]);
            }
        }
        a = a.wrapping_add(1);
        b = b.wrapping_add(b_stride);
    }
    let (alpha, beta, cols) = (tile.alpha, tile.beta, tile.c.cols());
    let (row_stride, col_stride) = (tile.c.row_stride(), tile.c.col_stride());
    let c = tile.c.origin();
    if col_stride == 1 {
        let (alpha_v, beta_v) = (_mm512_set1_ps(alpha), _mm512_set1_ps(beta));
        for r in 0..ROWS {
            for v in 0..VECTORS {
                let mask = lanes(cols - v * LANES);
                // SAFETY: columns below `cols` of row r of the block, which is ours alone; the mask keeps
                // the others from being touched.
                unsafe {
                    let at = c.add(r * row_stride + v * LANES);
                    let value = if beta == 0.0 {
                        _mm512_mul_ps(alpha_v, sums[r][v])
                    } else {
                        let old = _mm512_maskz_loadu_ps(mask, at);
                        _mm512_fmadd_ps(sums[r][v], alpha_v, _mm512_mul_ps(beta_v, old))
                    };
                    _mm512_mask_storeu_ps(at, mask, value);
                }
            }
        }
    } else {
        let mut row = [0f32; NR];
        for r in 0..ROWS {
            for v in 0..VECTORS {
                // SAFETY: VECTORS * 16 <= NR elements.
                unsafe { _mm512_storeu_ps(row.as_mut_ptr().add(v * LANES), sums[r][v]) };
            }
            for (col, &sum) in row[..cols].iter().enumerate() {
                // SAFETY: element (r, col) of the block, which is ours alone.
                let at = unsafe { &mut *c.add(r * row_stride + col * col_stride) };
                *at = combine(sum, alpha, beta, at);
            }
        }
    }
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

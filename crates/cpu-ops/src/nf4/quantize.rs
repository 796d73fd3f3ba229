//! f32 to NF4.
//!
//! ```text
//! 1. for each chunk of elements (whole blocks; one task)      chunks are disjoint in codes and scales
//! 2.   for each block
//! 3.     absmax = max |x|, as integers: the order of magnitudes is the order of bits, and NaN and infinity
//!        come out on top, so that one maximum also finds what must be refused
//! 4.     for each element: index = number of borders strictly below x * (1 / absmax)
//! 5.     two indices to a byte
//! ```

use super::code_book::{MIDPOINTS, ZERO_INDEX};
use crate::simd::{Simd, multiversion};
use crate::{Error, MatRef, Result, Threads};

/// Elements of a task: a multiple of every block size, large enough to hide the cost of handing it out.
const CHUNK: usize = 1 << 16;

/// A smaller scale would have an infinite reciprocal.
const SMALLEST_SCALE: f32 = 1e-38;

/// The bits of infinity; those of a magnitude that is not finite are not below.
pub(super) const NOT_FINITE: u32 = 0x7f80_0000;

/// All bits but the sign.
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;

/// Codes and scales of all elements of `values`. The block size has been checked.
pub(super) fn quantize(
    threads: &Threads,
    values: MatRef<'_>,
    block_size: usize,
) -> Result<(Vec<u8>, Vec<f32>)> {
    let elements = values.rows() * values.cols();
    let mut codes = vec![0; elements.div_ceil(2)];
    let mut scales = vec![0.0; elements.div_ceil(block_size)];
    let tasks = elements.div_ceil(CHUNK);
    let mut refused = vec![None; tasks];
    let parts = codes.chunks_mut(CHUNK / 2).zip(scales.chunks_mut(CHUNK / block_size)).zip(&mut refused);
    let simd = Simd::detect();
    threads.run_on(parts.collect(), |task, ((codes, scales), refused)| {
        let start = task * CHUNK;
        let count = CHUNK.min(elements - start);
        let gathered;
        let run = if values.stride() == values.cols() || values.rows() == 1 {
            &values.data()[start..start + count]
        } else {
            gathered = gather_run(values, start, count);
            &gathered
        };
        if !quantize_run(simd, run, block_size, codes, scales) {
            let bad = run.iter().position(|x| !x.is_finite()).map(|i| (start + i, run[i]));
            *refused = Some(bad.expect("a maximum that is not finite comes from such an element"));
        }
    });
    match refused.into_iter().flatten().next() {
        Some((index, value)) => Err(Error::NotFinite { operation: "Nf4Matrix::quantize", index, value }),
        None => Ok((codes, scales)),
    }
}

/// `count` elements of a matrix with gaps, in row-major order from `start` on.
fn gather_run(values: MatRef<'_>, start: usize, count: usize) -> Vec<f32> {
    let mut run = Vec::with_capacity(count);
    let (mut row, mut col) = (start / values.cols(), start % values.cols());
    while run.len() < count {
        let part = &values.row(row)[col..];
        run.extend_from_slice(&part[..part.len().min(count - run.len())]);
        (row, col) = (row + 1, 0);
    }
    run
}

/// One task: whole blocks, and a partial one at the end where the matrix ends. False if an element is not
/// finite; then the outputs are meaningless.
pub(super) fn quantize_run(
    simd: Simd,
    run: &[f32],
    block_size: usize,
    codes: &mut [u8],
    scales: &mut [f32],
) -> bool {
    let whole = run.len() / block_size;
    let (full, rest) = run.split_at(whole * block_size);
    let (full_codes, rest_codes) = codes.split_at_mut(full.len() / 2);
    let (full_scales, rest_scales) = scales.split_at_mut(whole);
    let finite = match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(proof) => {
            super::avx512::quantize_blocks(proof, full, block_size, full_codes, full_scales)
        }
        _ => quantize_blocks(simd, full, block_size, full_codes, full_scales),
    };
    finite && (rest.is_empty() || quantize_last(rest, rest_codes, &mut rest_scales[0]))
}

/// The factor that takes a full block to [-1, 1].
#[inline(always)]
pub(super) fn reciprocal(absmax: f32) -> f32 {
    1.0 / absmax.max(SMALLEST_SCALE)
}

multiversion! {
    /// Whole blocks, as any CPU can: 15 comparisons an element, which compilers vectorise.
    fn quantize_blocks(full: &[f32], block_size: usize, codes: &mut [u8], scales: &mut [f32]) -> bool
        = quantize_blocks_body;
}

#[inline(always)]
fn quantize_blocks_body(full: &[f32], block_size: usize, codes: &mut [u8], scales: &mut [f32]) -> bool {
    let blocks = full.chunks_exact(block_size).zip(codes.chunks_exact_mut(block_size / 2));
    for ((block, codes), scale) in blocks.zip(scales) {
        let bits = block.iter().fold(0, |max, x| (x.to_bits() & MAGNITUDE).max(max));
        if bits >= NOT_FINITE {
            return false;
        }
        *scale = f32::from_bits(bits);
        let factor = reciprocal(*scale);
        for (values, codes) in block.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<16>().0) {
            let mut indices = [0u32; 32];
            for border in MIDPOINTS {
                for (index, x) in indices.iter_mut().zip(values) {
                    *index += u32::from(x * factor > border);
                }
            }
            for (code, pair) in codes.iter_mut().zip(indices.as_chunks::<2>().0) {
                *code = (pair[0] << 4 | pair[1]) as u8;
            }
        }
    }
    true
}

/// The partial block at the end, which is divided by its scale.
fn quantize_last(rest: &[f32], codes: &mut [u8], scale: &mut f32) -> bool {
    let bits = rest.iter().fold(0, |max, x| (x.to_bits() & MAGNITUDE).max(max));
    if bits >= NOT_FINITE {
        return false;
    }
    *scale = f32::from_bits(bits).max(SMALLEST_SCALE);
    let index = |x: &f32| MIDPOINTS.iter().filter(|&&border| x / *scale > border).count() as u8;
    for (code, pair) in codes.iter_mut().zip(rest.chunks(2)) {
        *code = index(&pair[0]) << 4 | pair.get(1).map_or(ZERO_INDEX, index);
    }
    true
}

//! Double quantisation: the scales of NF4 blocks in 8 bits.
//!
//! The scales' distances from their mean are quantised in blocks of 256 to the nearest value of the signed
//! dynamic map, a tie to the lower one. Restoring can make a small scale slightly negative; the values of such
//! a block are then as wrong as the scale, not more.

use super::SCALES_PER_BLOCK;
use super::code_book::{DYNAMIC_MAP, DYNAMIC_MIDPOINTS};
use crate::simd::{Simd, multiversion};
use crate::{Error, Result, Threads};

/// Scales in 8 bits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DoubleScales {
    pub(super) codes: Vec<u8>,
    pub(super) block_absmax: Vec<f32>,
    pub(super) offset: f32,
}

/// Blocks of scales in a task.
const BLOCKS_PER_TASK: usize = 16;

/// The mean of all scales, summed in f64 from the first to the last; 0 for none.
pub(super) fn mean(absmax: &[f32]) -> f32 {
    let sum: f64 = absmax.iter().map(|&x| f64::from(x)).sum();
    if absmax.is_empty() { 0.0 } else { (sum / absmax.len() as f64) as f32 }
}

/// Quantises finite scales around `offset`.
///
/// # Errors
/// A scale would be restored as infinite, which takes one next to the largest f32.
pub(super) fn quantize_scales(threads: &Threads, absmax: &[f32], offset: f32) -> Result<DoubleScales> {
    let mut codes = vec![0; absmax.len()];
    let mut block_absmax = vec![0.0; absmax.len().div_ceil(SCALES_PER_BLOCK)];
    let chunk = SCALES_PER_BLOCK * BLOCKS_PER_TASK;
    let simd = Simd::detect();
    let mut refused = vec![None; absmax.len().div_ceil(chunk)];
    let parts = codes.chunks_mut(chunk).zip(block_absmax.chunks_mut(BLOCKS_PER_TASK)).zip(&mut refused);
    threads.run_on(parts.collect(), |task, ((codes, block_absmax), refused)| {
        let scales = absmax[task * chunk..][..codes.len()].chunks(SCALES_PER_BLOCK);
        let blocks = codes.chunks_mut(SCALES_PER_BLOCK).zip(block_absmax);
        for (scales, (codes, block_absmax)) in scales.zip(blocks) {
            *block_absmax = quantize_block(simd, scales, offset, codes);
            let restored = |code: u8| DYNAMIC_MAP[code as usize] * *block_absmax + offset;
            let bad = codes.iter().position(|&code| !restored(code).is_finite());
            *refused = refused.or(bad.map(|i| scales[i]));
        }
    });
    match refused.into_iter().flatten().next() {
        Some(scale) => Err(Error::Unsupported {
            operation: "Nf4Matrix::quantize",
            parameter: "block maximum",
            value: scale.to_string(),
            supported: "in 8 bits it would be restored as infinite; quantise without double quantisation",
        }),
        None => Ok(DoubleScales { codes, block_absmax, offset }),
    }
}

multiversion! {
    /// Codes of up to 256 scales; returns their largest distance from `offset`.
    fn quantize_block(scales: &[f32], offset: f32, codes: &mut [u8]) -> f32 = quantize_block_body;
}

#[inline(always)]
fn quantize_block_body(scales: &[f32], offset: f32, codes: &mut [u8]) -> f32 {
    let max = scales.iter().fold(0.0f32, |max, &x| max.max((x - offset).abs()));
    if max == 0.0 {
        codes.fill(0);
        return max;
    }
    // Below 2.9e-39 the reciprocal overflows; there the quotient is used, which is what it stands for.
    let reciprocal = 1.0 / max;
    let (multiply, divide) = if reciprocal.is_finite() { (reciprocal, 1.0) } else { (1.0, max) };
    for (code, &x) in codes.iter_mut().zip(scales) {
        *code = nearest((x - offset) * multiply / divide);
    }
    max
}

/// [`DYNAMIC_MIDPOINTS`], and one that nothing is above: 256 entries, so that eight bits are always inside.
const BORDERS: [f32; 256] = {
    let mut borders = [f32::INFINITY; 256];
    let mut i = 0;
    while i < 255 {
        borders[i] = DYNAMIC_MIDPOINTS[i];
        i += 1;
    }
    borders
};

/// Number of borders strictly below `s`: eight halvings without branches.
#[inline(always)]
fn nearest(s: f32) -> u8 {
    let mut below = 0u32;
    let mut step = 128;
    while step > 0 {
        let border = BORDERS[(below + step - 1) as usize & 255];
        below += if border < s { step } else { 0 };
        step /= 2;
    }
    below as u8
}

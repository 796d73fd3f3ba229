//! NF4, element by element. The format is defined by f32 operations, so this oracle is in f32 and its results
//! are to be met bit for bit.

use crate::nf4::{CODE, DYNAMIC_MAP, MIDPOINTS};

/// The indices (one each) and the scales of finite `values` in blocks of `block_size`.
pub fn quantize(values: &[f32], block_size: usize) -> (Vec<u8>, Vec<f32>) {
    let mut indices = Vec::new();
    let mut scales = Vec::new();
    for block in values.chunks(block_size) {
        let absmax = block.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let at_least = absmax.max(1e-38);
        let partial = block.len() < block_size;
        scales.push(if partial { at_least } else { absmax });
        for x in block {
            let s = if partial { x / at_least } else { x * (1.0 / at_least) };
            let s = s.clamp(-1.0, 1.0);
            indices.push(MIDPOINTS.iter().filter(|&&border| border < s).count() as u8);
        }
    }
    (indices, scales)
}

/// Two indices a byte, the first in the high half, an odd last one followed by 7.
pub fn pack(indices: &[u8]) -> Vec<u8> {
    indices.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&7)).collect()
}

/// The values that indices and scales stand for.
pub fn dequantize(indices: &[u8], scales: &[f32], block_size: usize) -> Vec<f32> {
    indices.iter().enumerate().map(|(i, &index)| CODE[index as usize] * scales[i / block_size]).collect()
}

/// Codes and block maxima of double-quantised scales: of all 256 map values the nearest, by their midpoints.
pub fn quantize_scales(scales: &[f32], offset: f32) -> (Vec<u8>, Vec<f32>) {
    let mut codes = Vec::new();
    let mut maxima = Vec::new();
    for block in scales.chunks(256) {
        let max = block.iter().fold(0.0f32, |max, x| max.max((x - offset).abs()));
        maxima.push(max);
        for x in block {
            let s = (x - offset) * (1.0 / max);
            let below = DYNAMIC_MAP.windows(2).filter(|pair| (pair[0] + pair[1]) * 0.5 < s).count();
            codes.push(if max == 0.0 { 0 } else { below as u8 });
        }
    }
    (codes, maxima)
}

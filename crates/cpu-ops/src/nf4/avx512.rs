//! NF4 with AVX-512: a table of 16 floats fits one register, so a lookup of 16 elements is one permutation.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Nf4;
use super::code_book::{CODE, MIDPOINTS};
use super::dequantize::{HalfType, expand_block};
use super::quantize::{MAGNITUDE, NOT_FINITE, reciprocal};
use crate::simd::Avx512;

/// [-1, 1] cut into 32 cells of which none holds two borders: an index is the number of borders in the cells
/// before, and one more above the cell's own border.
struct Cells {
    before: [i32; 32],
    border: [f32; 32],
}

const CELLS: Cells = {
    let mut cells = Cells { before: [0; 32], border: [f32::INFINITY; 32] };
    let mut i = 0;
    while i < MIDPOINTS.len() {
        let cell = (MIDPOINTS[i] * 16.0 + 16.0) as usize;
        assert!(cells.border[cell] == f32::INFINITY);
        cells.border[cell] = MIDPOINTS[i];
        let mut later = cell + 1;
        while later < 32 {
            cells.before[later] += 1;
            later += 1;
        }
        i += 1;
    }
    cells
};

/// Quantises whole blocks; false if an element is not finite.
pub(super) fn quantize_blocks(
    _: Avx512,
    full: &[f32],
    block_size: usize,
    codes: &mut [u8],
    scales: &mut [f32],
) -> bool {
    // SAFETY: the proof passed in exists only where the CPU has every feature the function is compiled for.
    unsafe { quantize_blocks_avx512(full, block_size, codes, scales) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn quantize_blocks_avx512(full: &[f32], block_size: usize, codes: &mut [u8], scales: &mut [f32]) -> bool {
    let cells = CELLS;
    let (before, border) = (&cells.before.as_chunks::<16>().0, &cells.border.as_chunks::<16>().0);
    let before = [load_i32(&before[0]), load_i32(&before[1])];
    let border = [load(&border[0]), load(&border[1])];
    let sixteen = _mm512_set1_ps(16.0);
    let (last_cell, one) = (_mm512_set1_epi32(31), _mm512_set1_epi32(1));
    let magnitude = _mm512_set1_epi32(MAGNITUDE as i32);

    let blocks = full.chunks_exact(block_size).zip(codes.chunks_exact_mut(block_size / 2));
    for ((block, codes), scale) in blocks.zip(scales) {
        let (block, codes) = (block.as_chunks::<16>().0, codes.as_chunks_mut::<8>().0);
        let mut max = _mm512_setzero_si512();
        for values in block {
            max = _mm512_max_epu32(max, _mm512_and_si512(_mm512_castps_si512(load(values)), magnitude));
        }
        let bits = _mm512_reduce_max_epu32(max);
        if bits >= NOT_FINITE {
            return false;
        }
        *scale = f32::from_bits(bits);
        let factor = _mm512_set1_ps(reciprocal(*scale));
        for (values, codes) in block.iter().zip(codes) {
            let s = _mm512_mul_ps(load(values), factor);
            // The cell: rounding can move a value next to a cell's edge across it, which changes nothing
            // since no border lies there (each is at least 0.027 cells away from an edge).
            let cell = _mm512_cvttps_epi32(_mm512_fmadd_ps(s, sixteen, sixteen));
            let cell = _mm512_min_epi32(cell, last_cell);
            let below = _mm512_permutex2var_epi32(before[0], cell, before[1]);
            let own = _mm512_permutex2var_ps(border[0], cell, border[1]);
            let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(s, own);
            let index = _mm512_mask_add_epi32(below, above, below, one);
            // Two indices stand in the halves of a 64-bit lane, the first in the low one.
            let packed = _mm512_or_si512(_mm512_slli_epi64::<4>(index), _mm512_srli_epi64::<32>(index));
            *codes = _mm_cvtsi128_si64(_mm512_cvtepi64_epi8(packed)).to_le_bytes();
        }
    }
    true
}

/// Expands any run to f32.
pub(super) fn expand_run(_: Avx512, nf4: &Nf4<'_>, start: usize, out: &mut [f32]) {
    // SAFETY: the proof passed in exists only where the CPU has every feature the function is compiled for.
    unsafe { expand_run_avx512(nf4, start, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn expand_run_avx512(nf4: &Nf4<'_>, start: usize, out: &mut [f32]) {
    let code = load(&CODE);
    nf4.for_each_block(start, out, |scale, at, out| {
        let table = _mm512_mul_ps(code, _mm512_set1_ps(scale));
        let whole = if at.is_multiple_of(2) { out.len() / 16 * 16 } else { 0 };
        let (groups, rest) = out.split_at_mut(whole);
        let codes = nf4.codes[at / 2..].as_chunks::<8>().0;
        for (group, codes) in groups.as_chunks_mut::<16>().0.iter_mut().zip(codes) {
            let byte = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(i64::from_le_bytes(*codes)));
            // The low half of each lane gets its byte's high index, the high half its low one; the
            // permutation reads four bits of each and ignores the rest.
            let index = _mm512_or_si512(_mm512_srli_epi64::<4>(byte), _mm512_slli_epi64::<32>(byte));
            store(group, _mm512_permutexvar_ps(index, table));
        }
        if !rest.is_empty() {
            let table = CODE.map(|code| code * scale);
            expand_block(nf4.codes, &table, at + whole, rest);
        }
    });
}

/// Expands any run to 16-bit values; returns how many became infinite.
pub(super) fn expand_halves(_: Avx512, nf4: &Nf4<'_>, start: usize, out: &mut [u16], to: HalfType) -> usize {
    // SAFETY: the proof passed in exists only where the CPU has every feature the function is compiled for.
    unsafe { expand_halves_avx512(nf4, start, out, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn expand_halves_avx512(nf4: &Nf4<'_>, start: usize, out: &mut [u16], to: HalfType) -> usize {
    let code = load(&CODE);
    let mut overflows = 0;
    nf4.for_each_block(start, out, |scale, at, out| {
        let products = _mm512_mul_ps(code, _mm512_set1_ps(scale));
        let table = match to {
            HalfType::F16 => _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(products),
            HalfType::Bf16 => narrow_bf16(products),
        };
        // The permutation reads five bits of an index: the table stands twice, so that the fifth does not
        // matter.
        let values = _mm512_broadcast_i64x4(table);
        let whole = if at.is_multiple_of(2) { out.len() / 32 * 32 } else { 0 };
        let (groups, rest) = out.split_at_mut(whole);
        let codes = nf4.codes[at / 2..].as_chunks::<16>().0;
        for (group, codes) in groups.as_chunks_mut::<32>().0.iter_mut().zip(codes) {
            // SAFETY: an array of 16 u8 is 16 readable bytes, and the load needs no alignment.
            let byte = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(codes.as_ptr().cast()) });
            let index = _mm512_or_si512(_mm512_srli_epi32::<4>(byte), _mm512_slli_epi32::<16>(byte));
            let found = _mm512_permutexvar_epi16(index, values);
            // SAFETY: an array of 32 u16 is 64 writable bytes, and the store needs no alignment.
            unsafe { _mm512_storeu_si512(group.as_mut_ptr().cast(), found) };
        }
        if !rest.is_empty() {
            let mut table_values = [0; 16];
            // SAFETY: an array of 16 u16 is 32 writable bytes, and the store needs no alignment.
            unsafe { _mm256_storeu_si256(table_values.as_mut_ptr().cast(), table) };
            expand_block(nf4.codes, &table_values, at + whole, rest);
        }
        let magnitude = _mm256_and_si256(table, _mm256_set1_epi16(0x7fff));
        if _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(to.infinity() as i16)) != 0 {
            overflows += out.iter().filter(|&&bits| to.is_infinite(bits)).count();
        }
    });
    overflows
}

/// Rounds to the nearest bf16, ties to even; NaN stays NaN. (The CPU's own conversion flushes subnormals.)
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn narrow_bf16(values: __m512) -> __m256i {
    let bits = _mm512_castps_si512(values);
    let upper = _mm512_srli_epi32::<16>(bits);
    let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
    let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x0040));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(values: &[f32; 16]) -> __m512 {
    // SAFETY: an array of 16 f32 is 64 readable bytes, and the load needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_i32(values: &[i32; 16]) -> __m512i {
    // SAFETY: an array of 16 i32 is 64 readable bytes, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(out: &mut [f32; 16], values: __m512) {
    // SAFETY: an array of 16 f32 is 64 writable bytes, and the store needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) }
}

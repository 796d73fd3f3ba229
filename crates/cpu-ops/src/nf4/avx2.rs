//! NF4 expansion with AVX2: the table of 16 floats fits two registers, and a lookup of 8 elements is two
//! permutations and a choice. Quantising has no file of its own here: comparing with all borders vectorises
//! as it stands in `quantize.rs`.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Nf4;
use super::code_book::CODE;
use super::dequantize::expand_block;
use crate::simd::Avx2;

/// Expands any run to f32.
pub(super) fn expand_run(_: Avx2, nf4: &Nf4<'_>, start: usize, out: &mut [f32]) {
    // SAFETY: the proof passed in exists only where the CPU has every feature the function is compiled for.
    unsafe { expand_run_avx2(nf4, start, out) }
}

#[target_feature(enable = "avx2")]
fn expand_run_avx2(nf4: &Nf4<'_>, start: usize, out: &mut [f32]) {
    // Where the index of element i starts in the four bytes of eight elements.
    let shifts = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    nf4.for_each_block(start, out, |scale, at, out| {
        let table = CODE.map(|code| code * scale);
        let whole = if at.is_multiple_of(2) { out.len() / 8 * 8 } else { 0 };
        let (groups, rest) = out.split_at_mut(whole);
        // SAFETY: the table is 16 readable f32, and the loads need no alignment.
        let low = unsafe { _mm256_loadu_ps(table.as_ptr()) };
        // SAFETY: as above; the second eight of 16.
        let high = unsafe { _mm256_loadu_ps(table[8..].as_ptr()) };
        let codes = nf4.codes[at / 2..].as_chunks::<4>().0;
        for (group, codes) in groups.as_chunks_mut::<8>().0.iter_mut().zip(codes) {
            let index = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(*codes)), shifts);
            // The permutations read three bits of an index; the fourth, moved to the sign, chooses.
            let chooser = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
            let found = _mm256_blendv_ps(
                _mm256_permutevar8x32_ps(low, index),
                _mm256_permutevar8x32_ps(high, index),
                chooser,
            );
            // SAFETY: an array of eight f32 is 32 writable bytes, and the store needs no alignment.
            unsafe { _mm256_storeu_ps(group.as_mut_ptr(), found) };
        }
        if !rest.is_empty() {
            expand_block(nf4.codes, &table, at + whole, rest);
        }
    });
}

/// Expands a run within one block to 16-bit values.
pub(super) fn expand_halves(_: Avx2, codes: &[u8], table: &[u16; 16], at: usize, out: &mut [u16]) {
    // SAFETY: the proof passed in exists only where the CPU has every feature the function is compiled for.
    unsafe { expand_halves_avx2(codes, table, at, out) }
}

#[target_feature(enable = "avx2")]
fn expand_halves_avx2(codes: &[u8], table: &[u16; 16], at: usize, out: &mut [u16]) {
    let whole = if at.is_multiple_of(2) { out.len() / 32 * 32 } else { 0 };
    let (groups, rest) = out.split_at_mut(whole);
    // A shuffle looks bytes up in a table of 16, so the values' low and high bytes are looked up apart.
    let (low, high) = (table.map(|value| value as u8), table.map(|value| (value >> 8) as u8));
    // SAFETY: the arrays are 16 readable bytes each, and the loads need no alignment.
    let (low, high) =
        unsafe { (_mm_loadu_si128(low.as_ptr().cast()), _mm_loadu_si128(high.as_ptr().cast())) };
    let four_bits = _mm_set1_epi8(15);
    for (group, codes) in groups.as_chunks_mut::<32>().0.iter_mut().zip(codes[at / 2..].as_chunks::<16>().0) {
        // SAFETY: an array of 16 u8 is 16 readable bytes, and the load needs no alignment.
        let bytes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
        let first = _mm_and_si128(_mm_srli_epi16::<4>(bytes), four_bits);
        let second = _mm_and_si128(bytes, four_bits);
        for (half, index) in
            [_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second)].into_iter().enumerate()
        {
            let (low, high) = (_mm_shuffle_epi8(low, index), _mm_shuffle_epi8(high, index));
            let found = [_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)];
            for (part, values) in group[16 * half..].as_chunks_mut::<8>().0.iter_mut().zip(found) {
                // SAFETY: an array of eight u16 is 16 writable bytes, and the store needs no alignment.
                unsafe { _mm_storeu_si128(part.as_mut_ptr().cast(), values) };
            }
        }
    }
    if !rest.is_empty() {
        expand_block(codes, table, at + whole, rest);
    }
}

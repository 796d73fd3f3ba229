//! f16 by the CPU's own conversions, eight at a time. They round as the control word says in other programs;
//! here the rounding is part of the instruction.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::simd::Avx2;

/// Rounds to nearest even.
pub(super) fn narrow(_: Avx2, src: &[f32], dst: &mut [u16]) {
    // SAFETY: an `Avx2` exists only where the CPU has AVX2 and F16C, which the function is compiled for.
    unsafe { narrow_f16c(src, dst) }
}

#[target_feature(enable = "avx2,f16c")]
fn narrow_f16c(src: &[f32], dst: &mut [u16]) {
    let (src, src_rest) = src.as_chunks::<8>();
    let (dst, dst_rest) = dst.as_chunks_mut::<8>();
    for (x, y) in src.iter().zip(dst) {
        narrow_eight(x, y);
    }
    let (mut x, mut y) = ([0.0; 8], [0; 8]);
    x[..src_rest.len()].copy_from_slice(src_rest);
    narrow_eight(&x, &mut y);
    dst_rest.copy_from_slice(&y[..dst_rest.len()]);
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow_eight(x: &[f32; 8], y: &mut [u16; 8]) {
    // SAFETY: eight f32 are 32 readable bytes, and the load needs no alignment.
    let wide = unsafe { _mm256_loadu_ps(x.as_ptr()) };
    let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
    // SAFETY: eight u16 are 16 writable bytes, and the store needs no alignment.
    unsafe { _mm_storeu_si128(y.as_mut_ptr().cast(), narrow) };
}

/// Widens exactly.
pub(super) fn widen(_: Avx2, src: &[u16], dst: &mut [f32]) {
    // SAFETY: an `Avx2` exists only where the CPU has AVX2 and F16C, which the function is compiled for.
    unsafe { widen_f16c(src, dst) }
}

#[target_feature(enable = "avx2,f16c")]
fn widen_f16c(src: &[u16], dst: &mut [f32]) {
    let (src, src_rest) = src.as_chunks::<8>();
    let (dst, dst_rest) = dst.as_chunks_mut::<8>();
    for (x, y) in src.iter().zip(dst) {
        widen_eight(x, y);
    }
    let (mut x, mut y) = ([0; 8], [0.0; 8]);
    x[..src_rest.len()].copy_from_slice(src_rest);
    widen_eight(&x, &mut y);
    dst_rest.copy_from_slice(&y[..dst_rest.len()]);
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_eight(x: &[u16; 8], y: &mut [f32; 8]) {
    // SAFETY: eight u16 are 16 readable bytes, and the load needs no alignment.
    let narrow = unsafe { _mm_loadu_si128(x.as_ptr().cast()) };
    // SAFETY: eight f32 are 32 writable bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_ps(y.as_mut_ptr(), _mm256_cvtph_ps(narrow)) };
}

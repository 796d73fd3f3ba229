//! Conversions between f32 and the types that weights are stored in. Rounding is to the nearest, ties to even;
//! subnormals are kept; a NaN stays a NaN of the same sign, whatever its payload. Narrowing counts how many
//! finite values became infinite, so that a caller can refuse instead of storing them.
//!
//! The functions run on the caller's thread: they are bound by memory, and callers have slices to hand out.

#[cfg(target_arch = "x86_64")]
mod f16c;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::simd::{Simd, multiversion};

/// The smallest magnitude that rounds to an infinite f16: 65520, half-way between the largest and 65536.
const F16_OVERFLOWS: u32 = 0x477f_f000;
/// The smallest magnitude that rounds to an infinite bf16.
const BF16_OVERFLOWS: u32 = 0x7f7f_8000;
const INFINITY: u32 = 0x7f80_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Elements between two additions of the counts; small enough to stay in the first cache.
const BLOCK: usize = 1 << 11;

/// Rounds f32 to f16; returns how many finite values became infinite (those of magnitude 65520 and more).
///
/// ```
/// use cpu_ops::cast;
/// use half::f16;
///
/// let mut halves = [f16::ZERO; 3];
/// assert_eq!(cast::f32_to_f16(&[1.0, 65519.0, 70000.0], &mut halves), 1);
/// assert_eq!(halves[..2], [f16::ONE, f16::MAX]);
/// ```
///
/// # Panics
/// The slices differ in length.
pub fn f32_to_f16(src: &[f32], dst: &mut [f16]) -> usize {
    assert_eq!(src.len(), dst.len(), "f32_to_f16: lengths of source and destination");
    narrow_f16(Simd::detect(), src, dst.reinterpret_cast_mut())
}

/// Rounds f32 to bf16; returns how many finite values became infinite (only those within half a unit of the
/// largest f32).
///
/// # Panics
/// The slices differ in length.
pub fn f32_to_bf16(src: &[f32], dst: &mut [bf16]) -> usize {
    assert_eq!(src.len(), dst.len(), "f32_to_bf16: lengths of source and destination");
    narrow_bf16(Simd::detect(), src, dst.reinterpret_cast_mut())
}

/// Widens f16 to f32, exactly.
///
/// # Panics
/// The slices differ in length.
pub fn f16_to_f32(src: &[f16], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len(), "f16_to_f32: lengths of source and destination");
    widen_f16(Simd::detect(), src.reinterpret_cast(), dst);
}

/// Widens bf16 to f32, exactly.
///
/// # Panics
/// The slices differ in length.
pub fn bf16_to_f32(src: &[bf16], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len(), "bf16_to_f32: lengths of source and destination");
    widen_bf16(Simd::detect(), src.reinterpret_cast(), dst);
}

/// Rounds f64 to f32; returns how many finite values became infinite.
///
/// # Panics
/// The slices differ in length.
pub fn f64_to_f32(src: &[f64], dst: &mut [f32]) -> usize {
    assert_eq!(src.len(), dst.len(), "f64_to_f32: lengths of source and destination");
    let mut overflows = 0;
    for (y, &x) in dst.iter_mut().zip(src) {
        // The language defines this conversion: nearest, ties to even, NaN to NaN.
        *y = x as f32;
        overflows += usize::from(y.is_infinite() && x.is_finite());
    }
    overflows
}

/// Rounds to the bits of f16; returns how many finite values became infinite.
pub(crate) fn narrow_f16(simd: Simd, src: &[f32], dst: &mut [u16]) -> usize {
    let mut overflows = 0;
    for (src, dst) in src.chunks(BLOCK).zip(dst.chunks_mut(BLOCK)) {
        match simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512(proof) => f16c::narrow(proof.into(), src, dst),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2(proof) => f16c::narrow(proof, src, dst),
            _ => src.iter().zip(dst).for_each(|(&x, y)| *y = f16_bits(x)),
        }
        overflows += count_range(simd, src, F16_OVERFLOWS);
    }
    overflows
}

/// One value to f16 by integer arithmetic.
#[inline(always)]
fn f16_bits(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = x.to_bits() & MAGNITUDE;
    if magnitude > INFINITY {
        return sign | 0x7e00 | (magnitude >> 13) as u16 & 0x01ff;
    }
    if magnitude >= F16_OVERFLOWS {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14: adding 0.5 puts the unit of an f16 subnormal, 2^-24, in the last place of the sum, and
        // the addition rounds to the nearest even.
        let sum = f32::from_bits(magnitude) + 0.5;
        return sign | (sum.to_bits() - 0.5f32.to_bits()) as u16;
    }
    // The exponent's bias goes from 127 to 15, 13 bits of the significand are rounded away.
    let odd = magnitude >> 13 & 1;
    sign | ((magnitude - (112 << 23) + 0x0fff + odd) >> 13) as u16
}

fn widen_f16(simd: Simd, src: &[u16], dst: &mut [f32]) {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(proof) => f16c::widen(proof.into(), src, dst),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2(proof) => f16c::widen(proof, src, dst),
        _ => src.iter().zip(dst).for_each(|(&x, y)| *y = f32_of_f16(x)),
    }
}

/// One f16 to f32 by integer arithmetic.
#[inline(always)]
fn f32_of_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let wide = match magnitude {
        // A subnormal is an integer times 2^-24.
        0..0x0400 => (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        0x0400..0x7c00 => (magnitude << 13) + (112 << 23),
        0x7c00 => INFINITY,
        _ => INFINITY | 0x0040_0000 | magnitude << 13,
    };
    f32::from_bits(sign | wide)
}

multiversion! {
    /// How many magnitudes are at least `from` and finite.
    fn count_range(values: &[f32], from: u32) -> usize = count_range_body;
}

#[inline(always)]
fn count_range_body(values: &[f32], from: u32) -> usize {
    let inside = |x: &f32| u32::from((x.to_bits() & MAGNITUDE).wrapping_sub(from) < INFINITY - from);
    values.iter().map(inside).sum::<u32>() as usize
}

/// Rounds to the bits of bf16; returns how many finite values became infinite.
pub(crate) fn narrow_bf16(simd: Simd, src: &[f32], dst: &mut [u16]) -> usize {
    let mut overflows = 0;
    for (src, dst) in src.chunks(BLOCK).zip(dst.chunks_mut(BLOCK)) {
        narrow_bf16_block(simd, src, dst);
        overflows += count_range(simd, src, BF16_OVERFLOWS);
    }
    overflows
}

multiversion! {
    fn narrow_bf16_block(src: &[f32], dst: &mut [u16]) = narrow_bf16_body;
}

#[inline(always)]
fn narrow_bf16_body(src: &[f32], dst: &mut [u16]) {
    for (y, x) in dst.iter_mut().zip(src) {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x0040;
        *y = if bits & MAGNITUDE > INFINITY { quiet } else { rounded } as u16;
    }
}

multiversion! {
    fn widen_bf16(src: &[u16], dst: &mut [f32]) = widen_bf16_body;
}

#[inline(always)]
fn widen_bf16_body(src: &[u16], dst: &mut [f32]) {
    for (y, &x) in dst.iter_mut().zip(src) {
        *y = f32::from_bits(u32::from(x) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both narrowing casts of `values` on every path against the `half` crate's own software conversion.
    fn check_narrow(values: &[f32]) {
        for simd in Simd::all() {
            let mut halves = vec![0u16; values.len()];
            let overflows = narrow_f16(simd, values, &mut halves);
            let mut expected_overflows = 0;
            for (&x, &found) in values.iter().zip(&halves) {
                let (found, expected) = (f16::from_bits(found), f16::from_f32_const(x));
                let same = if x.is_nan() {
                    found.is_nan() && found.is_sign_negative() == x.is_sign_negative()
                } else {
                    found.to_bits() == expected.to_bits()
                };
                assert!(same, "{simd:?}: {:#010x} to f16: {:#06x}", x.to_bits(), found.to_bits());
                expected_overflows += usize::from(x.is_finite() && expected.is_infinite());
            }
            assert_eq!(overflows, expected_overflows);
            let overflows = narrow_bf16(simd, values, &mut halves);
            let mut expected_overflows = 0;
            for (&x, &found) in values.iter().zip(&halves) {
                let (found, expected) = (bf16::from_bits(found), bf16::from_f32_const(x));
                let same = if x.is_nan() {
                    found.is_nan() && found.is_sign_negative() == x.is_sign_negative()
                } else {
                    found.to_bits() == expected.to_bits()
                };
                assert!(same, "{simd:?}: {:#010x} to bf16: {:#06x}", x.to_bits(), found.to_bits());
                expected_overflows += usize::from(x.is_finite() && expected.is_infinite());
            }
            assert_eq!(overflows, expected_overflows);
        }
    }

    #[test]
    fn narrowing_equals_the_definition_on_sampled_patterns() {
        // An odd step: about 2^20 patterns that reach every exponent and end in every bit.
        let values: Vec<f32> = (0..=u32::MAX).step_by(4093).map(f32::from_bits).collect();
        check_narrow(&values);
    }

    #[test]
    fn narrowing_equals_the_definition_next_to_every_border() {
        let mut values = Vec::new();
        for bits in 0..=u16::MAX {
            // Every value of either narrow type, the points half-way to the next, and their neighbours.
            for value in [f16::from_bits(bits).to_f32_const(), bf16::from_bits(bits).to_f32_const()] {
                for offset in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, u32::MAX] {
                    values.push(f32::from_bits(value.to_bits().wrapping_add(offset)));
                }
            }
        }
        for step in 0..1 << 12 {
            // f16 subnormals and their halves, quarters and eighths.
            values.extend([step as f32 * 2f32.powi(-26), -(step as f32) * 2f32.powi(-27)]);
        }
        check_narrow(&values);
    }

    #[test]
    fn widening_is_exact_for_every_pattern() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        for simd in Simd::all() {
            let mut wide = vec![0.0f32; bits.len()];
            widen_f16(simd, &bits, &mut wide);
            for (&b, &x) in bits.iter().zip(&wide) {
                let expected = f16::from_bits(b).to_f32_const();
                let same = if expected.is_nan() { x.is_nan() } else { x.to_bits() == expected.to_bits() };
                assert!(same, "{simd:?}: f16 {b:#06x}: {:#010x}", x.to_bits());
                assert_eq!(x.is_sign_negative(), b >= 0x8000);
            }
            widen_bf16(simd, &bits, &mut wide);
            for (&b, &x) in bits.iter().zip(&wide) {
                let expected = bf16::from_bits(b).to_f32_const();
                let same = if expected.is_nan() { x.is_nan() } else { x.to_bits() == expected.to_bits() };
                assert!(same, "{simd:?}: bf16 {b:#06x}: {:#010x}", x.to_bits());
            }
        }
    }

    #[test]
    fn any_length_and_its_remainder() {
        for length in (0..40).chain([2047, 2048, 2049, 5000]) {
            let values: Vec<f32> = (0..length).map(|i| 60000.0 + i as f32 * 300.0).collect();
            check_narrow(&values);
            let mut halves = vec![f16::ZERO; length];
            f32_to_f16(&values.iter().map(|x| x / 1e6).collect::<Vec<_>>(), &mut halves);
            let mut wide = vec![f32::NAN; length];
            f16_to_f32(&halves, &mut wide);
            assert!(wide.iter().zip(&values).all(|(y, x)| (y - x / 1e6).abs() <= x / 1e6 / 2048.0));
        }
    }

    #[test]
    #[should_panic(expected = "lengths of source and destination")]
    fn different_lengths_panic() {
        f32_to_bf16(&[1.0], &mut []);
    }

    fn f16_of(bits: u32) -> u16 {
        let mut out = [f16::ZERO];
        f32_to_f16(&[f32::from_bits(bits)], &mut out);
        out[0].to_bits()
    }

    /// B15: subnormals are kept and NaN payloads do not turn into infinity.
    #[test]
    fn subnormals_survive_and_nan_stays_nan() {
        for (bits, expected) in
            [(0x3380_0000, 0x0001), (0x3800_0000, 0x0200), (0x387f_c000, 0x03ff), (0x7f80_0000, 0x7c00)]
        {
            assert_eq!(f16_of(bits), expected, "{bits:#x}");
        }
        for bits in [0x7f80_0001u32, 0x7fc0_0000, 0xff80_0001] {
            let found = f16_of(bits);
            assert!(found & 0x7fff > 0x7c00 && u32::from(found) >> 15 == bits >> 31, "{bits:#x}: {found:#x}");
        }
        let every_nan: Vec<f32> = (0x7f80_0001..=0x7fff_ffffu32).step_by(511).map(f32::from_bits).collect();
        check_narrow(&every_nan);
    }

    /// B17: rounded, not cut off.
    #[test]
    fn ties_go_to_even() {
        for (bits, expected) in [
            (0x3f80_1000, 0x3c00),
            (0x3f80_1001, 0x3c01),
            (0x3f80_3000, 0x3c02),
            (0x477f_efff, 0x7bff),
            (0x477f_f000, 0x7c00),
            (0x387f_efff, 0x0400),
        ] {
            assert_eq!(f16_of(bits), expected, "{bits:#x}");
        }
    }

    /// B18: an f64 NaN with a payload in the low word only.
    #[test]
    fn wide_nan_with_a_low_payload_stays_nan() {
        let wide = [f64::from_bits(0x7ff0_0000_0000_0001), f64::from_bits(0xfff8_0000_0000_0000), 1e300, 0.5];
        let mut narrow = [0.0f32; 4];
        assert_eq!(f64_to_f32(&wide, &mut narrow), 1);
        assert!(narrow[0].is_nan() && narrow[1].is_nan() && narrow[1].is_sign_negative());
        assert_eq!(narrow[2..], [f32::INFINITY, 0.5]);
        let mut halves = [f16::ZERO; 4];
        f32_to_f16(&narrow, &mut halves);
        assert!(halves[0].is_nan() && halves[1].is_nan());
    }

    /// B20: what a bf16 checkpoint holds and f16 cannot is counted.
    #[test]
    fn values_outside_of_f16_are_counted() {
        let checkpoint = [70000.0f32, -1e9, 1e-30].map(bf16::from_f32);
        let mut wide = [0.0f32; 3];
        bf16_to_f32(&checkpoint, &mut wide);
        let mut halves = [f16::ZERO; 3];
        assert_eq!(f32_to_f16(&wide, &mut halves), 2);
        assert_eq!(halves[2], f16::ZERO);
        let mut back = [bf16::ZERO; 3];
        assert_eq!(f32_to_bf16(&wide, &mut back), 0);
        assert_eq!(back, checkpoint);
        assert_eq!(f32_to_f16(&[f32::INFINITY, f32::NAN, 65519.9], &mut halves), 0);
    }
}

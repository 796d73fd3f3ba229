//! Exact scalar floating-point building blocks: rounding a binary64 into a narrower format in any
//! direction, and sums that carry a sticky bit so that one rounding follows, never two.
//!
//! All values of f16, bf16 and f32 are values of f64, and so are products of two of them. A sum may
//! not be; [`add_odd`] then rounds it to odd, which keeps every later rounding to a format of at most
//! 51 bits correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
//! algorithms using rounding to odd").

use crate::ptx::code::{HalfFormat, Round};

/// A binary floating-point format of up to 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of the significand that are stored.
    pub fraction: u32,
    /// Bits of the exponent.
    pub exponent: u32,
    /// What the hardware writes for a NaN.
    pub nan: u32,
}

/// IEEE binary16.
pub const F16: Format = Format { fraction: 10, exponent: 5, nan: 0x7fff };
/// bfloat16.
pub const BF16: Format = Format { fraction: 7, exponent: 8, nan: 0x7fff };
/// IEEE binary32.
pub const F32: Format = Format { fraction: 23, exponent: 8, nan: 0x7fff_ffff };

/// NaN of binary32 arithmetic.
pub const NAN32: u32 = 0x7fff_ffff;
/// NaN of binary64 arithmetic.
pub const NAN64: u64 = 0x7fff_ffff_ffff_ffff;

impl Format {
    /// The format of a 16-bit type.
    pub fn half(format: HalfFormat) -> Self {
        match format {
            HalfFormat::F16 => F16,
            HalfFormat::Bf16 => BF16,
        }
    }
}

/// The bits of `x` rounded to `format`.
pub fn narrow(x: f64, format: Format, round: Round) -> u32 {
    let bits = x.to_bits();
    let negative = bits >> 63 != 0;
    let sign = u32::from(negative) << (format.fraction + format.exponent);
    let infinity = ((1u32 << format.exponent) - 1) << format.fraction;
    if x.is_nan() {
        return format.nan;
    }
    if x.is_infinite() {
        return sign | infinity;
    }
    if x == 0.0 {
        return sign;
    }
    let biased = (bits >> 52 & 0x7ff) as i32;
    let stored = bits & ((1 << 52) - 1);
    // |x| = significand * 2^scale.
    let (significand, scale) = if biased == 0 { (stored, -1074) } else { (stored | 1 << 52, biased - 1075) };
    let top = scale + 63 - significand.leading_zeros() as i32;
    let bias = (1i32 << (format.exponent - 1)) - 1;
    let lowest = 1 - bias;
    let unit = top.max(lowest) - format.fraction as i32;
    let shift = unit - scale;
    let (kept, rest, half) = if shift <= 0 {
        (significand << -shift, 0, 1)
    } else if shift > 62 {
        // Less than half a unit, but not nothing.
        (0, 1, 2)
    } else {
        (significand >> shift, significand & ((1 << shift) - 1), 1u64 << (shift - 1))
    };
    let up = match round {
        Round::Near => rest > half || (rest == half && rest != 0 && kept & 1 == 1),
        Round::Zero => false,
        Round::Down => negative && rest != 0,
        Round::Up => !negative && rest != 0,
    };
    let kept = kept + u64::from(up);
    let normal = top >= lowest;
    let magnitude = if normal {
        // A carry out of the significand raises the exponent by itself.
        (((top + bias) as u64) << format.fraction) + (kept - (1 << format.fraction))
    } else {
        kept
    };
    if magnitude >= u64::from(infinity) {
        let largest = infinity - 1;
        return sign
            | match round {
                Round::Near => infinity,
                Round::Zero => largest,
                Round::Down => {
                    if negative {
                        infinity
                    } else {
                        largest
                    }
                }
                Round::Up => {
                    if negative {
                        largest
                    } else {
                        infinity
                    }
                }
            };
    }
    sign | magnitude as u32
}

/// The value of 16 bits.
pub fn widen(bits: u32, format: HalfFormat) -> f64 {
    f64::from(match format {
        HalfFormat::F16 => half::f16::from_bits(bits as u16).to_f32(),
        HalfFormat::Bf16 => f32::from_bits(bits << 16),
    })
}

/// a + b, rounded to odd where it is not exact.
pub fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() || sum == 0.0 {
        return sum;
    }
    // Knuth's two-sum: the error of the sum, exactly.
    let bb = sum - a;
    let error = (a - (sum - bb)) + (b - bb);
    to_odd(sum, error)
}

/// a * b + c of f32 (or narrower) values, rounded to odd where it is not exact.
pub fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}

/// `value`, made odd when the exact result differs from it by `error` and its last bit is even.
fn to_odd(value: f64, error: f64) -> f64 {
    if error == 0.0 || value.to_bits() & 1 == 1 {
        return value;
    }
    // Toward the error: up in magnitude where the signs agree, down where they differ.
    let bits = value.to_bits();
    f64::from_bits(if (error > 0.0) == (value > 0.0) { bits + 1 } else { bits - 1 })
}

/// An integer as f64, rounded to odd (exact below 2^53).
pub fn int_odd(value: i128) -> f64 {
    let nearest = value as f64;
    let error = value - nearest as i128;
    to_odd(nearest, error as f64)
}

/// Zero with x's sign where x is subnormal.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    if x.to_bits() & 0x7f80_0000 == 0 { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// Clamped to [0, 1]; NaN gives +0.
#[inline(always)]
pub fn saturate(x: f32) -> f32 {
    // The comparison is false for NaN and for -0, which become +0.
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// The bits of a binary32 result, with the hardware's NaN.
///
/// The test is on integers: the compiler may take any NaN for any other, and drops a replacement of one
/// NaN by another where it sees floats.
#[inline(always)]
pub fn canonical(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { bits }
}

/// The same for binary64.
#[inline(always)]
pub fn canonical64(x: f64) -> u64 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff_ffff_ffff > 0x7ff0_0000_0000_0000 { NAN64 } else { bits }
}

/// `value` rounded to an integral value.
pub fn integral(value: f64, round: Round) -> f64 {
    match round {
        Round::Near => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

/// f32 to f16 bits, to nearest even; branch-free, so that a loop over lanes becomes vector code.
#[inline(always)]
pub fn f32_to_f16(bits: u32) -> u32 {
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: rebias the exponent and round by adding half less one, plus the last bit.
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
    // Subnormal results: adding 0.5 aligns the value's last bit with 2^-24; the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    // 65520 is halfway to 2^16: it and what is above become infinity.
    let mut out = if magnitude < 0x3880_0000 { subnormal } else { normal };
    out = if magnitude >= 0x477f_f000 { 0x7c00 } else { out };
    if magnitude > 0x7f80_0000 { 0x7fff } else { out & 0xffff | sign }
}

/// f32 to bf16 bits, to nearest even.
#[inline(always)]
pub fn f32_to_bf16(bits: u32) -> u32 {
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff } else { rounded }
}

/// f16 bits to f32 bits; branch-free.
#[inline(always)]
pub fn f16_to_f32(bits: u32) -> u32 {
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    let shifted = magnitude << 13;
    let normal = shifted + (112 << 23);
    // Subnormal: magnitude * 2^-24, exactly.
    let subnormal = (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits();
    let special = shifted | 0x7f80_0000;
    let value = if magnitude < 0x400 { subnormal } else { normal };
    let value = if magnitude >= 0x7c00 { special } else { value };
    sign | value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_casts_agree_with_the_exact_ones() {
        // Every 2^9-th pattern, and both neighbours of every one whose low bits decide a tie.
        let mut checked = 0u64;
        for high in 0..=0xffff_ffffu32 >> 9 {
            for bits in
                [high << 9, (high << 9) | 0x1000, ((high << 9) | 0x1000).wrapping_sub(1), (high << 9) + 1]
            {
                let x = f64::from(f32::from_bits(bits));
                assert_eq!(f32_to_f16(bits), narrow(x, F16, Round::Near), "{bits:08x}");
                assert_eq!(f32_to_bf16(bits), narrow(x, BF16, Round::Near), "{bits:08x}");
                checked += 1;
            }
        }
        assert!(checked > 1 << 24);
        for bits in 0..=0xffffu32 {
            let exact = half::f16::from_bits(bits as u16).to_f32();
            let ours = f32::from_bits(f16_to_f32(bits));
            assert!(ours.to_bits() == exact.to_bits() || (ours.is_nan() && exact.is_nan()), "{bits:04x}");
        }
    }

    #[test]
    fn narrow_to_f32_is_the_cast_of_the_language() {
        for i in 0..200_000u64 {
            let bits = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i << 17;
            let x = f64::from_bits(bits);
            let near = narrow(x, F32, Round::Near);
            assert!(x.is_nan() || near == (x as f32).to_bits(), "{bits:016x}");
        }
        let x = 1.0 + 2f64.powi(-30);
        assert_eq!(narrow(x, F32, Round::Up), 1f32.to_bits() + 1);
        assert_eq!(narrow(x, F32, Round::Down), 1f32.to_bits());
        assert_eq!(narrow(-x, F32, Round::Down), (-1f32).to_bits() + 1);
        assert_eq!(narrow(1e300, F32, Round::Zero), f32::MAX.to_bits());
        assert_eq!(narrow(1e-300, F32, Round::Up), 1);
        assert_eq!(narrow(f64::from_bits(1), F16, Round::Up), 1);
    }

    #[test]
    fn odd_rounding_breaks_the_tie_that_double_rounding_gets_wrong() {
        // 1 + 2^-8 is halfway between two bf16 numbers; 2^-70 more must round up.
        let exact = add_odd(1.0 + 2f64.powi(-8), 2f64.powi(-70));
        assert_eq!(narrow(exact, BF16, Round::Near), 0x3f81);
        assert_eq!(narrow(1.0 + 2f64.powi(-8), BF16, Round::Near), 0x3f80);
        assert_eq!(int_odd((1 << 60) + 1).to_bits() & 1, 1);
    }
}

//! The exponential in f32. One body of plain multiplications and additions, compiled for each
//! instruction set: every path and every position in a slice gives the same bits.
//!
//! ```text
//! n = round(x / ln 2),  r = x - n ln 2 in two parts (the first has few bits: n times it is exact)
//! e^r = 1 + (r + r² p(r)),  p of degree 4: fitted to the smallest largest error on |r| <= ln 2 / 2
//! e^x = e^r · 2^(n/2) · 2^(n - n/2)       two factors, so that subnormal results are rounded and not lost
//! ```

/// e^x rounded to f32 is 0 below.
const LOWEST: f32 = -104.0;
/// e^x is above the largest f32 from here on.
const HIGHEST: f32 = 89.0;
/// Adding 1.5 · 2^23 leaves an integer in the low bits.
const ROUNDER: f32 = 12_582_912.0;
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// e^x with an error below 1.1 units in the last place (measured; see the test), infinity above 88.7, 0 below
/// -103.97, NaN for NaN. To be called in loops of a `multiversion` body, which vectorise: there is no branch.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons that a NaN passes through, unlike `f32::clamp`'s order of operands on some targets.
    let x = if x < LOWEST { LOWEST } else { x };
    let x = if x > HIGHEST { HIGHEST } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let p = 0.001_395_060_2;
    let p = p * r + 0.008_368_953;
    let p = p * r + 0.041_666_206;
    let p = p * r + 0.166_665_18;
    let p = p * r + 0.5;
    let y = (p * (r * r) + r) + 1.0;
    let n = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Simd, multiversion};

    multiversion! {
        fn exp_slice(values: &mut [f32]) = exp_slice_body;
    }

    #[inline(always)]
    fn exp_slice_body(values: &mut [f32]) {
        for x in values {
            *x = exp(*x);
        }
    }

    /// Error in units in the last place of the f32 nearest to the true value.
    fn ulps(x: f32, y: f32) -> f64 {
        let exact = f64::from(x).exp();
        let nearest = exact as f32;
        if !nearest.is_finite() || !y.is_finite() {
            return if nearest == y { 0.0 } else { f64::INFINITY };
        }
        let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        (f64::from(y) - exact).abs() / ulp
    }

    #[test]
    fn error_is_below_two_units_and_every_path_agrees() {
        // Every 1,001st pattern that is not NaN: all magnitudes, both signs, subnormal results included.
        let inputs: Vec<f32> =
            (0..=u32::MAX).step_by(1001).map(f32::from_bits).filter(|x| !x.is_nan()).collect();
        let mut expected = inputs.clone();
        exp_slice(Simd::Portable, &mut expected);
        let mut worst = 0.0;
        for (&x, &y) in inputs.iter().zip(&expected) {
            let error = ulps(x, y);
            assert!(error <= 2.0, "{x:e}: {y:e}, {error} units");
            worst = f64::max(worst, error);
        }
        assert!(worst > 0.5, "the test sees no rounding at all: {worst}");
        for simd in Simd::all() {
            // An odd length and another alignment, so that vectors and remainders fall elsewhere.
            let mut found = inputs[3..].to_vec();
            exp_slice(simd, &mut found);
            assert!(found.iter().zip(&expected[3..]).all(|(a, b)| a.to_bits() == b.to_bits()), "{simd:?}");
        }
    }

    #[test]
    fn special_values() {
        let mut values = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 88.8, -104.1, 1e38, -1e38, f32::NAN];
        exp_slice(Simd::detect(), &mut values);
        assert_eq!(values[..8], [1.0, 1.0, f32::INFINITY, 0.0, f32::INFINITY, 0.0, f32::INFINITY, 0.0]);
        assert!(values[8].is_nan());
        let mut values = [88.72, -103.9, -87.5];
        exp_slice(Simd::detect(), &mut values);
        assert!(values[0].is_finite() && values[1] > 0.0 && values[2] > 0.0 && values[2] < f32::MIN_POSITIVE);
    }
}

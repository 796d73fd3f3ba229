//! Passes over a row of logits, compiled for each instruction set; all of them give the same bits.

use crate::exp::exp;
use crate::simd::multiversion;

/// Partial sums of a row: as many as the widest vector has lanes.
const LANES: usize = 16;

multiversion! {
    /// The largest element that is a number; negative infinity if there is none.
    pub(super) fn max(row: &[f32]) -> f32 = max_body;
}
multiversion! {
    /// Replaces each element by e^(element - shift) and returns their sum, in a fixed order.
    pub(super) fn exp_sum(row: &mut [f32], shift: f32) -> f32 = exp_sum_body;
}
multiversion! {
    /// Multiplies each element.
    pub(super) fn scale(row: &mut [f32], factor: f32) = scale_body;
}

#[inline(always)]
fn max_body(row: &[f32]) -> f32 {
    let mut max = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (max, &x) in max.iter_mut().zip(chunk) {
            *max = if x > *max { x } else { *max };
        }
    }
    max.into_iter()
        .chain(rest.iter().copied())
        .fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
}

#[inline(always)]
fn exp_sum_body(row: &mut [f32], shift: f32) -> f32 {
    let mut sum = [0f32; LANES];
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (sum, x) in sum.iter_mut().zip(chunk) {
            *x = exp(*x - shift);
            *sum += *x;
        }
    }
    for (sum, x) in sum.iter_mut().zip(rest) {
        *x = exp(*x - shift);
        *sum += *x;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            sum[i] += sum[i + half];
        }
        half /= 2;
    }
    sum[0]
}

#[inline(always)]
fn scale_body(row: &mut [f32], factor: f32) {
    row.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Simd;

    #[test]
    fn rows_give_the_same_bits_on_every_instruction_set() {
        for len in [0, 1, 15, 16, 17, 100, 384] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37) % 101) as f32 * -0.37 - 3.0).collect();
            let mut expected: Option<(u32, Vec<f32>)> = None;
            for simd in Simd::all() {
                let top = max(simd, &row);
                assert_eq!(top, row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                let mut out = row.clone();
                let sum = exp_sum(simd, &mut out, if len == 0 { 0.0 } else { top });
                let exact: f64 = row.iter().map(|&x| f64::from(x - top).exp()).sum();
                // Each term within 2 ulp, and at most len additions of half an ulp each.
                assert!((f64::from(sum) - exact).abs() <= (len + 4) as f64 * 2f64.powi(-23) * exact);
                let expected = expected.get_or_insert((sum.to_bits(), out.clone()));
                assert_eq!((sum.to_bits(), &out), (expected.0, &expected.1));
            }
        }
    }

    #[test]
    fn max_passes_over_nan_and_the_sum_keeps_it() {
        for simd in Simd::all() {
            let mut row = vec![1.0; 40];
            row[17] = f32::NAN;
            assert_eq!(max(simd, &row), 1.0);
            assert!(exp_sum(simd, &mut row, 1.0).is_nan());
            assert_eq!(max(simd, &[f32::NAN; 20]), f32::NEG_INFINITY);
        }
    }
}

//! The optimiser step: AdamW (Loshchilov and Hutter, 2019) and the sum of squares that clipping needs.
//!
//! ```text
//! g = grad_scale · gradient
//! p = p (1 - lr·wd)                        decay apart from the gradient
//! m = β1 m + (1 - β1) g                    v = β2 v + (1 - β2) g²
//! p = p - lr / (1 - β1^t) · m / (√v / √(1 - β2^t) + eps)
//! ```
//! The settings are f64, and so is everything that depends on them and the update's number alone: it is rounded to
//! f32 once, where it meets an element. 1 - 0.999 taken in f32 would be wrong by 1e-5 of itself.

use crate::row_tasks::expect;
use crate::simd::{Simd, multiversion};
use crate::{Error, Result, Threads};

/// The settings of AdamW, as precise as they were written: no rounding to f32 yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this update.
    pub lr: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Share of a parameter that is taken away in each update, times `lr`.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// A task's part of parameters and gradients, and of the two moments.
type Piece<'a> = ((&'a mut [f32], &'a [f32]), (&'a mut [f32], &'a mut [f32]));

/// Elements of a task.
const CHUNK: usize = 1 << 14;

/// One update of `parameters` and of the moments `m` and `v`; `update` counts from 1, and every gradient is
/// multiplied by `grad_scale` (the coefficient of clipping) first.
///
/// ```
/// use cpu_ops::{Threads, optimiser};
///
/// let rule = optimiser::AdamW { lr: 0.1, ..Default::default() };
/// let (mut p, mut m, mut v) = ([1.0], [0.0], [0.0]);
/// optimiser::adamw(&Threads::new(1)?, &rule, 1, 1.0, &mut p, &[0.3], &mut m, &mut v)?;
/// assert!((p[0] - 0.9f32).abs() < 1e-6); // the first step is the learning rate, whatever the gradient
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// The four slices differ in length, or `update` is 0; nothing has been changed then. Gradients that are not
/// finite are the caller's to find first: [`sum_of_squares`] shows them.
#[allow(clippy::too_many_arguments)] // the four slices are the operands, and a struct would only rename them
pub fn adamw(
    threads: &Threads,
    rule: &AdamW,
    update: u64,
    grad_scale: f32,
    parameters: &mut [f32],
    gradients: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) -> Result<()> {
    const NAME: &str = "adamw";
    expect(NAME, "length of the gradients", parameters.len(), gradients.len())?;
    expect(NAME, "length of m", parameters.len(), m.len())?;
    expect(NAME, "length of v", parameters.len(), v.len())?;
    if update == 0 {
        return Err(Error::Unsupported {
            operation: NAME,
            parameter: "update",
            value: "0".into(),
            supported: "updates count from 1",
        });
    }
    let factors = Factors::new(rule, update, grad_scale);
    let simd = Simd::detect();
    let parts = parameters.chunks_mut(CHUNK).zip(gradients.chunks(CHUNK));
    let parts = parts.zip(m.chunks_mut(CHUNK).zip(v.chunks_mut(CHUNK))).collect();
    threads.run_on(parts, |_, ((p, g), (m, v)): Piece<'_>| {
        update_slice(simd, factors, p, g, m, v);
    });
    Ok(())
}

/// What an update multiplies with, rounded to f32.
#[derive(Debug, Clone, Copy)]
struct Factors {
    grad_scale: f32,
    decay: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    root_of_correction2: f32,
    eps: f32,
    step: f32,
}

impl Factors {
    fn new(rule: &AdamW, update: u64, grad_scale: f32) -> Self {
        let AdamW { lr, beta1, beta2, eps, weight_decay } = *rule;
        let correction1 = 1.0 - beta1.powf(update as f64);
        let correction2 = 1.0 - beta2.powf(update as f64);
        Self {
            grad_scale,
            decay: (1.0 - lr * weight_decay) as f32,
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            root_of_correction2: correction2.sqrt() as f32,
            eps: eps as f32,
            step: (lr / correction1) as f32,
        }
    }
}

multiversion! {
    fn update_slice(f: Factors, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) = update_slice_body;
}

#[inline(always)]
fn update_slice_body(f: Factors, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        let g = g * f.grad_scale;
        *m = f.beta1 * *m + f.one_minus_beta1 * g;
        *v = f.beta2 * *v + f.one_minus_beta2 * g * g;
        let root = v.sqrt() / f.root_of_correction2 + f.eps;
        *p = *p * f.decay - f.step * (*m / root);
    }
}

/// Σ x², each value widened to f64 before it is squared, in a fixed order. Not finite exactly if a value is
/// not: 2^63 squares of the largest f32 would not overflow.
///
/// ```
/// assert_eq!(cpu_ops::optimiser::sum_of_squares(&[3.0, 4.0]), 25.0);
/// ```
pub fn sum_of_squares(values: &[f32]) -> f64 {
    squares_slice(Simd::detect(), values)
}

multiversion! {
    fn squares_slice(values: &[f32]) -> f64 = squares_slice_body;
}

#[inline(always)]
fn squares_slice_body(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 16];
    let (groups, rest) = values.as_chunks::<16>();
    for group in groups {
        for (lane, &x) in lanes.iter_mut().zip(group) {
            *lane += f64::from(x) * f64::from(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(x) * f64::from(x);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference::{self, UNIT_ROUNDOFF};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn an_update_equals_the_oracle(
            values in prop::collection::vec((-2.0f32..2.0, -1.0f32..1.0, -0.1f32..0.1, 0.0f32..0.1), 0..60),
            update in prop::sample::select(vec![1u64, 2, 10, 100_000]),
            weight_decay in prop::sample::select(vec![0.0, 0.1]),
            grad_scale in prop::sample::select(vec![1.0f32, 0.25]),
        ) {
            let rule = AdamW { lr: 2e-2, weight_decay, ..Default::default() };
            let column = |f: fn(&(f32, f32, f32, f32)) -> f32| values.iter().map(f).collect::<Vec<_>>();
            let (p, g, m, v) = (column(|x| x.0), column(|x| x.1), column(|x| x.2), column(|x| x.3));
            let widen = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let (mut p64, mut m64, mut v64) = (widen(&p), widen(&m), widen(&v));
            let settings = reference::optimiser::AdamW {
                lr: 2e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay,
            };
            let g64: Vec<f64> = widen(&g).iter().map(|g| g * f64::from(grad_scale)).collect();
            reference::optimiser::adamw(&settings, update, &mut p64, &g64, &mut m64, &mut v64);
            let mut results = Vec::new();
            for simd in Simd::all() {
                let (mut p, mut m, mut v) = (p.clone(), m.clone(), v.clone());
                update_slice(simd, Factors::new(&rule, update, grad_scale), &mut p, &g, &mut m, &mut v);
                results.push((p, m, v));
            }
            let (mut p1, mut m1, mut v1) = (p.clone(), m.clone(), v.clone());
            adamw(&Threads::new(2).unwrap(), &rule, update, grad_scale, &mut p1, &g, &mut m1, &mut v1).unwrap();
            results.push((p1, m1, v1));
            let tiny = f64::from(f32::MIN_POSITIVE);
            for (p1, m1, v1) in &results {
                prop_assert_eq!((p1, m1, v1), (&results[0].0, &results[0].1, &results[0].2));
                for i in 0..p.len() {
                    let u = UNIT_ROUNDOFF;
                    // Factor, product and scaled gradient round once each, then the sum.
                    let m_size = f64::from(m[i]).abs() + g64[i].abs();
                    prop_assert!((f64::from(m1[i]) - m64[i]).abs() <= 5.0 * u * m_size + tiny);
                    let v_size = v64[i];
                    prop_assert!((f64::from(v1[i]) - v64[i]).abs() <= 6.0 * u * v_size + tiny);
                    // The step inherits m's error (relative to its terms) and half of v's, and has five more
                    // roundings; the parameter has two of its own.
                    let correction1 = 1.0 - 0.9f64.powf(update as f64);
                    let correction2 = 1.0 - 0.999f64.powf(update as f64);
                    let largest = 2e-2 / correction1 * m_size / ((v64[i] / correction2).sqrt() + 1e-8);
                    let tolerance = 14.0 * u * largest + 3.0 * u * f64::from(p[i]).abs() + tiny;
                    prop_assert!((f64::from(p1[i]) - p64[i]).abs() <= tolerance, "{} {}", p1[i], p64[i]);
                }
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bytes() {
        let n = 100_003;
        let g: Vec<f32> = (0..n).map(|i| ((i * 37 % 1009) as f32 - 504.0) * 1e-3).collect();
        let run = |count| {
            let threads = Threads::new(count).unwrap();
            let (mut p, mut m, mut v) = (g.clone(), vec![0.0; n], vec![0.0; n]);
            for update in 1..=3 {
                adamw(&threads, &AdamW::default(), update, 0.5, &mut p, &g, &mut m, &mut v).unwrap();
            }
            (p, m, v)
        };
        let one = run(1);
        for count in 2..=4 {
            assert!(run(count) == one);
        }
    }

    #[test]
    fn settings_are_rounded_only_after_what_depends_on_them() {
        let factors = Factors::new(&AdamW::default(), 1, 1.0);
        // The first update corrects exactly what it took: √v / √(1 - β2) is |g|.
        assert_eq!(factors.one_minus_beta2, 0.001);
        assert!((factors.root_of_correction2 * factors.root_of_correction2 / 0.001 - 1.0).abs() < 3e-7);
    }

    #[test]
    fn lengths_that_disagree_and_update_zero_are_refused() {
        let threads = Threads::new(1).unwrap();
        let rule = AdamW::default();
        let (mut a, mut b, mut c) = ([1.0f32; 3], [0.0f32; 3], [0.0f32; 3]);
        assert!(adamw(&threads, &rule, 1, 1.0, &mut a, &[1.0; 2], &mut b, &mut c).is_err());
        assert!(adamw(&threads, &rule, 1, 1.0, &mut a, &[1.0; 3], &mut b[1..], &mut c).is_err());
        assert!(adamw(&threads, &rule, 1, 1.0, &mut a, &[1.0; 3], &mut b, &mut c[1..]).is_err());
        assert!(adamw(&threads, &rule, 0, 1.0, &mut a, &[1.0; 3], &mut b, &mut c).is_err());
        assert_eq!((a, b, c), ([1.0; 3], [0.0; 3], [0.0; 3]));
    }

    /// B99: the sum of squares of 1e30 does not overflow, and shows what is not finite.
    #[test]
    fn norm_of_huge_gradients_is_finite_and_that_of_nan_is_not() {
        for count in [1, 15, 16, 17, 1000] {
            let sum = sum_of_squares(&vec![1e30; count]);
            let expected = count as f64 * f64::from(1e30f32).powi(2);
            // Each addition rounds once: count · 2^-53.
            assert!((sum - expected).abs() <= count as f64 * f64::EPSILON * expected);
            let coefficient = 1.0 / (sum.sqrt() + 1e-6);
            let clipped: Vec<f32> = vec![1e30 * coefficient as f32; count];
            assert!((sum_of_squares(&clipped).sqrt() - 1.0).abs() <= 1e-6);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, count / 2, count - 1] {
                    let mut values = vec![1.0; count];
                    values[at] = bad;
                    assert!(!sum_of_squares(&values).is_finite());
                }
            }
        }
        assert_eq!(sum_of_squares(&[]), 0.0);
        let values: Vec<f32> = (0..1003).map(|i| i as f32 * 0.37 - 100.0).collect();
        for simd in Simd::all() {
            assert_eq!(squares_slice(simd, &values).to_bits(), sum_of_squares(&values).to_bits());
        }
    }
}

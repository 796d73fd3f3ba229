//! RMSNorm (Zhang and Sennrich, 2019): every row is divided by its root mean square and weighted by column.
//!
//! ```text
//! r = 1 / sqrt(mean(x²) + eps)                 y_i = x_i r w_i
//! dx_i = beta dx_i + r w_i dy_i - x_i (r³ / n) Σ_j w_j dy_j x_j
//! ```
//! Sums are in f64 over 16 partial sums in a fixed order: large values do not overflow, and the result depends
//! neither on threads nor on instructions. The weight is frozen, so it has no gradient here. A norm per head is
//! the same operation on the view `[tokens * heads, head_dim]`.

use crate::row_tasks::{expect, row_chunks, rows_per_task, task_rows};
use crate::simd::{Simd, multiversion};
use crate::{MatMut, MatRef, Result, Threads};

/// `y = x / rms(x) * weight` for every row of `x`.
///
/// ```
/// use cpu_ops::{MatMut, MatRef, Threads, norm};
///
/// let (x, weight, mut y) = ([3.0, -3.0], [1.0, 2.0], [0.0; 2]);
/// let threads = Threads::new(1)?;
/// norm::rms_norm(&threads, MatRef::new(&x, 1, 2)?, &weight, 0.0, MatMut::new(&mut y, 1, 2)?)?;
/// assert_eq!(y, [1.0, -2.0]);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// `weight` or `y` does not have the shape that `x` asks for.
pub fn rms_norm(threads: &Threads, x: MatRef<'_>, weight: &[f32], eps: f32, y: MatMut<'_>) -> Result<()> {
    const NAME: &str = "rms_norm";
    expect(NAME, "length of the weight", x.cols(), weight.len())?;
    expect(NAME, "rows of y", x.rows(), y.rows())?;
    expect(NAME, "columns of y", x.cols(), y.cols())?;
    if x.rows() == 0 || x.cols() == 0 {
        return Ok(());
    }
    let simd = Simd::detect();
    let rows = rows_per_task(x.cols());
    threads.run_on(row_chunks(y, rows), |task, mut y| {
        let x = task_rows(x, task, rows);
        for row in 0..x.rows() {
            norm_row(simd, x.row(row), weight, eps, y.row_mut(row));
        }
    });
    Ok(())
}

/// The gradient of [`rms_norm`] with regard to `x`: `dx = beta * dx + ...`; with `beta` 0 the old `dx` is not
/// read.
///
/// # Errors
/// `weight`, `dy` or `dx` does not have the shape that `x` asks for.
pub fn rms_norm_dx(
    threads: &Threads,
    x: MatRef<'_>,
    weight: &[f32],
    eps: f32,
    dy: MatRef<'_>,
    beta: f32,
    dx: MatMut<'_>,
) -> Result<()> {
    const NAME: &str = "rms_norm_dx";
    expect(NAME, "length of the weight", x.cols(), weight.len())?;
    expect(NAME, "rows of dy", x.rows(), dy.rows())?;
    expect(NAME, "columns of dy", x.cols(), dy.cols())?;
    expect(NAME, "rows of dx", x.rows(), dx.rows())?;
    expect(NAME, "columns of dx", x.cols(), dx.cols())?;
    if x.rows() == 0 || x.cols() == 0 {
        return Ok(());
    }
    let simd = Simd::detect();
    let rows = rows_per_task(x.cols());
    threads.run_on(row_chunks(dx, rows), |task, mut dx| {
        let (x, dy) = (task_rows(x, task, rows), task_rows(dy, task, rows));
        for row in 0..x.rows() {
            norm_dx_row(simd, x.row(row), weight, eps, dy.row(row), beta, dx.row_mut(row));
        }
    });
    Ok(())
}

multiversion! {
    fn norm_row(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) = norm_row_body;
}

multiversion! {
    fn norm_dx_row(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], beta: f32, dx: &mut [f32])
        = norm_dx_row_body;
}

#[inline(always)]
fn norm_row_body(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let r = reciprocal_rms(x, eps) as f32;
    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
        *y = x * r * w;
    }
}

#[inline(always)]
fn norm_dx_row_body(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], beta: f32, dx: &mut [f32]) {
    let r = reciprocal_rms(x, eps);
    let projection = sum_of(x.len(), |i| f64::from(weight[i]) * f64::from(dy[i]) * f64::from(x[i]));
    let along = (r * r * r * (projection / x.len() as f64)) as f32;
    let r = r as f32;
    let inputs = x.iter().zip(weight).zip(dy);
    if beta == 0.0 {
        for (dx, ((x, w), dy)) in dx.iter_mut().zip(inputs) {
            *dx = r * (w * dy) - x * along;
        }
    } else {
        for (dx, ((x, w), dy)) in dx.iter_mut().zip(inputs) {
            *dx = beta * *dx + (r * (w * dy) - x * along);
        }
    }
}

#[inline(always)]
fn reciprocal_rms(x: &[f32], eps: f32) -> f64 {
    let squares = sum_of(x.len(), |i| f64::from(x[i]) * f64::from(x[i]));
    1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()
}

/// Σ term(i) over 16 partial sums, which are then added in order.
#[inline(always)]
fn sum_of(count: usize, term: impl Fn(usize) -> f64) -> f64 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    let whole = count / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    for i in whole..count {
        lanes[i - whole] += term(i);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference::{self, UNIT_ROUNDOFF};

    fn widen(values: &[f32]) -> Vec<f64> {
        values.iter().map(|&x| x.into()).collect()
    }

    /// Both directions against the oracle, with the bound that the roundings allow.
    fn check(rows: usize, cols: usize, x: &[f32], weight: &[f32], dy: &[f32], beta: f32) {
        let eps = 1e-5;
        let (x64, w64, dy64) = (widen(x), widen(weight), widen(dy));
        let expected = reference::norm::rms_norm(&x64, cols, &w64, eps.into());
        let (d_expected, parts) = reference::norm::rms_norm_dx(&x64, cols, &w64, eps.into(), &dy64);
        let old: Vec<f32> = x.iter().rev().copied().collect();
        let mut results = Vec::new();
        for simd in Simd::all() {
            let mut y = vec![f32::NAN; rows * cols];
            let mut dx = if beta == 0.0 { vec![f32::NAN; rows * cols] } else { old.clone() };
            for row in 0..rows {
                let at = row * cols..(row + 1) * cols;
                norm_row(simd, &x[at.clone()], weight, eps, &mut y[at.clone()]);
                norm_dx_row(simd, &x[at.clone()], weight, eps, &dy[at.clone()], beta, &mut dx[at]);
            }
            results.push((y, dx));
        }
        for count in 1..=4 {
            let threads = Threads::new(count).unwrap();
            let mut y = vec![f32::NAN; rows * cols];
            let mut dx = if beta == 0.0 { vec![f32::NAN; rows * cols] } else { old.clone() };
            let x = MatRef::new(x, rows, cols).unwrap();
            let dy = MatRef::new(dy, rows, cols).unwrap();
            rms_norm(&threads, x, weight, eps, MatMut::new(&mut y, rows, cols).unwrap()).unwrap();
            let out = MatMut::new(&mut dx, rows, cols).unwrap();
            rms_norm_dx(&threads, x, weight, eps, dy, beta, out).unwrap();
            results.push((y, dx));
        }
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (y, dx) in &results {
            assert_eq!(bits(y), bits(&results[0].0));
            assert_eq!(bits(dx), bits(&results[0].1));
            for i in 0..rows * cols {
                // Three roundings: of r, and of two products. One more for the f64 sums and higher orders.
                let tolerance = 4.0 * UNIT_ROUNDOFF * expected[i].abs() + f64::from(f32::MIN_POSITIVE);
                assert!(
                    (f64::from(y[i]) - expected[i]).abs() <= tolerance,
                    "y[{i}]: {} {}",
                    y[i],
                    expected[i]
                );
                // Each term has at most three, and the two sums round once more each.
                let start = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(old[i]) };
                let exact = start + d_expected[i];
                let size = parts[i] + start.abs();
                let tolerance = 6.0 * UNIT_ROUNDOFF * size + f64::from(f32::MIN_POSITIVE);
                assert!((f64::from(dx[i]) - exact).abs() <= tolerance, "dx[{i}]: {} {exact}", dx[i]);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn both_directions_equal_the_oracle(
            (rows, cols, x, weight, dy) in (0usize..5, prop::sample::select(vec![1usize, 2, 15, 16, 17, 63, 64, 100]))
                .prop_flat_map(|(rows, cols)| {
                    let values = |n| prop::collection::vec(-3.0f32..3.0, n);
                    (Just(rows), Just(cols), values(rows * cols), values(cols), values(rows * cols))
                }),
            beta in prop::sample::select(vec![0.0f32, 1.0, 0.5]),
        ) {
            check(rows, cols, &x, &weight, &dy, beta);
        }
    }

    #[test]
    fn many_rows_are_split_into_tasks() {
        let (rows, cols) = (100, 1000);
        let x: Vec<f32> = (0..rows * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.1).collect();
        let dy: Vec<f32> = (0..rows * cols).map(|i| ((i * 53 % 97) as f32 - 48.0) * 0.01).collect();
        let weight: Vec<f32> = (0..cols).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
        check(rows, cols, &x, &weight, &dy, 1.0);
    }

    /// B20: a norm weight of 300 on values of 400 is far outside of what f16 could compute.
    #[test]
    fn large_weights_on_large_values_stay_exact() {
        let (x, mut y) = ([400.0f32; 64], [0.0f32; 64]);
        let threads = Threads::new(1).unwrap();
        let out = MatMut::new(&mut y, 1, 64).unwrap();
        rms_norm(&threads, MatRef::new(&x, 1, 64).unwrap(), &[300.0; 64], 0.0, out).unwrap();
        assert_eq!(y, [300.0; 64]);
    }

    /// The kind of B99: squares that overflow f32 are summed in f64.
    #[test]
    fn values_whose_squares_overflow_are_normalised() {
        let (x, mut y) = ([1e30f32; 8], [0.0f32; 8]);
        let threads = Threads::new(1).unwrap();
        let out = MatMut::new(&mut y, 1, 8).unwrap();
        rms_norm(&threads, MatRef::new(&x, 1, 8).unwrap(), &[1.0; 8], 1e-6, out).unwrap();
        assert!(y.iter().all(|y| (y - 1.0).abs() <= 4.0 * f32::EPSILON), "{y:?}");
    }

    #[test]
    fn gaps_between_rows_are_left_alone() {
        let x = [1.0f32, 2.0, 9.0, 3.0, 4.0, 9.0];
        let mut y = [7.0f32; 6];
        let threads = Threads::new(2).unwrap();
        let out = MatMut::with_stride(&mut y, 2, 2, 3).unwrap();
        rms_norm(&threads, MatRef::with_stride(&x, 2, 2, 3).unwrap(), &[1.0; 2], 0.0, out).unwrap();
        assert_eq!((y[2], y[5]), (7.0, 7.0));
        assert!((y[0] - 1.0 / 2.5f32.sqrt()).abs() <= 1e-6);
    }

    #[test]
    fn shapes_that_disagree_are_refused() {
        let threads = Threads::new(1).unwrap();
        let x = [0.0f32; 6];
        let x = MatRef::new(&x, 2, 3).unwrap();
        let mut y = [0.0f32; 6];
        assert!(rms_norm(&threads, x, &[1.0; 2], 0.0, MatMut::new(&mut y, 2, 3).unwrap()).is_err());
        assert!(rms_norm(&threads, x, &[1.0; 3], 0.0, MatMut::new(&mut y, 3, 2).unwrap()).is_err());
        let dy = x.cols_range(0, 2);
        assert!(
            rms_norm_dx(&threads, x, &[1.0; 3], 0.0, dy, 0.0, MatMut::new(&mut y, 2, 3).unwrap()).is_err()
        );
    }
}

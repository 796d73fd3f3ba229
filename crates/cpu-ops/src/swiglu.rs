//! SwiGLU (Shazeer, 2020): `y = silu(gate) * up` with `silu(g) = g σ(g)`, `σ(g) = 1 / (1 + e^-g)`.
//!
//! ```text
//! dgate = dy up σ (1 + g (1 - σ))         dup = dy g σ
//! ```

use crate::exp::exp;
use crate::row_tasks::{expect, row_chunks, rows_per_task, task_rows};
use crate::simd::{Simd, multiversion};
use crate::{MatMut, MatRef, Result, Threads};

/// `y = silu(gate) * up`, element by element.
///
/// ```
/// use cpu_ops::{MatMut, MatRef, Threads, swiglu};
///
/// let mut y = [0.0; 2];
/// let (gate, up) = ([0.0, 20.0], [3.0, 0.5]);
/// let (gate, up) = (MatRef::new(&gate, 1, 2)?, MatRef::new(&up, 1, 2)?);
/// swiglu::forward(&Threads::new(1)?, gate, up, MatMut::new(&mut y, 1, 2)?)?;
/// assert!(y[0] == 0.0 && (y[1] - 10.0).abs() < 1e-5);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// The three matrices have different shapes.
pub fn forward(threads: &Threads, gate: MatRef<'_>, up: MatRef<'_>, y: MatMut<'_>) -> Result<()> {
    const NAME: &str = "swiglu::forward";
    same_shape(NAME, gate, "rows of up", "columns of up", (up.rows(), up.cols()))?;
    same_shape(NAME, gate, "rows of y", "columns of y", (y.rows(), y.cols()))?;
    if gate.rows() == 0 || gate.cols() == 0 {
        return Ok(());
    }
    let simd = Simd::detect();
    let rows = rows_per_task(gate.cols());
    threads.run_on(row_chunks(y, rows), |task, mut y| {
        let (gate, up) = (task_rows(gate, task, rows), task_rows(up, task, rows));
        for row in 0..gate.rows() {
            forward_row(simd, gate.row(row), up.row(row), y.row_mut(row));
        }
    });
    Ok(())
}

/// The gradients of [`forward`] with regard to `gate` and `up`.
///
/// # Errors
/// The five matrices have different shapes.
pub fn backward(
    threads: &Threads,
    gate: MatRef<'_>,
    up: MatRef<'_>,
    dy: MatRef<'_>,
    dgate: MatMut<'_>,
    dup: MatMut<'_>,
) -> Result<()> {
    const NAME: &str = "swiglu::backward";
    same_shape(NAME, gate, "rows of up", "columns of up", (up.rows(), up.cols()))?;
    same_shape(NAME, gate, "rows of dy", "columns of dy", (dy.rows(), dy.cols()))?;
    same_shape(NAME, gate, "rows of dgate", "columns of dgate", (dgate.rows(), dgate.cols()))?;
    same_shape(NAME, gate, "rows of dup", "columns of dup", (dup.rows(), dup.cols()))?;
    if gate.rows() == 0 || gate.cols() == 0 {
        return Ok(());
    }
    let simd = Simd::detect();
    let rows = rows_per_task(gate.cols());
    let parts = row_chunks(dgate, rows).into_iter().zip(row_chunks(dup, rows)).collect();
    threads.run_on(parts, |task, (mut dgate, mut dup): (MatMut<'_>, MatMut<'_>)| {
        let (gate, up) = (task_rows(gate, task, rows), task_rows(up, task, rows));
        let dy = task_rows(dy, task, rows);
        for row in 0..gate.rows() {
            let out = (dgate.row_mut(row), dup.row_mut(row));
            backward_row(simd, gate.row(row), up.row(row), dy.row(row), out.0, out.1);
        }
    });
    Ok(())
}

fn same_shape(
    operation: &'static str,
    gate: MatRef<'_>,
    rows: &'static str,
    cols: &'static str,
    found: (usize, usize),
) -> Result<()> {
    expect(operation, rows, gate.rows(), found.0)?;
    expect(operation, cols, gate.cols(), found.1)
}

multiversion! {
    fn forward_row(gate: &[f32], up: &[f32], y: &mut [f32]) = forward_row_body;
}

multiversion! {
    fn backward_row(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32])
        = backward_row_body;
}

#[inline(always)]
fn forward_row_body(gate: &[f32], up: &[f32], y: &mut [f32]) {
    for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
        *y = g * sigmoid(*g) * u;
    }
}

#[inline(always)]
fn backward_row_body(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    let inputs = gate.iter().zip(up).zip(dy);
    for ((dgate, dup), ((g, u), dy)) in dgate.iter_mut().zip(dup).zip(inputs) {
        // 1 - σ(g) loses all digits for large g; σ(-g) has them.
        let (s, rest) = (sigmoid(*g), sigmoid(-*g));
        *dup = dy * (g * s);
        *dgate = dy * u * (s * (1.0 + g * rest));
    }
}

/// Exact to a few units in the last place where e^-g is finite, that is from -88.7 on; 0 below.
#[inline(always)]
fn sigmoid(g: f32) -> f32 {
    1.0 / (1.0 + exp(-g))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference::{self, UNIT_ROUNDOFF};

    fn check(rows: usize, cols: usize, gate: &[f32], up: &[f32], dy: &[f32]) {
        let widen = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (g64, u64, dy64) = (widen(gate), widen(up), widen(dy));
        let expected = reference::swiglu::forward(&g64, &u64);
        let (d_gate, d_up) = reference::swiglu::backward(&g64, &u64, &dy64);
        let mut results = Vec::new();
        for count in 1..=4 {
            let threads = Threads::new(count).unwrap();
            let mut out = vec![vec![f32::NAN; rows * cols]; 3];
            let [y, dgate, dup] = &mut out[..] else { unreachable!() };
            let view = |data| MatRef::new(data, rows, cols).unwrap();
            forward(&threads, view(gate), view(up), MatMut::new(y, rows, cols).unwrap()).unwrap();
            let dgate = MatMut::new(dgate, rows, cols).unwrap();
            let dup = MatMut::new(dup, rows, cols).unwrap();
            backward(&threads, view(gate), view(up), view(dy), dgate, dup).unwrap();
            results.push(out);
        }
        for simd in Simd::all() {
            let mut out = vec![vec![f32::NAN; rows * cols]; 3];
            let [y, dgate, dup] = &mut out[..] else { unreachable!() };
            forward_row(simd, gate, up, y);
            backward_row(simd, gate, up, dy, dgate, dup);
            results.push(out);
        }
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for out in &results {
            for (found, (expected, name)) in
                out.iter().zip([(&expected, "y"), (&d_gate, "dgate"), (&d_up, "dup")])
            {
                for i in 0..rows * cols {
                    // The exponential is good to 2 u (a unit in the last place is up to 2 u), σ adds two
                    // roundings: 4 u. Then at most three factors with a rounding each; in dgate the bracket's
                    // second term carries 6 u against a first term of 1, and cancels it near g = -1.28, so its
                    // error is measured by the terms' magnitudes.
                    let bracket = 1.0 + g64[i].abs() / (1.0 + g64[i].exp());
                    let s = 1.0 / (1.0 + (-g64[i]).exp());
                    let size = match name {
                        "dgate" => (dy64[i] * u64[i]).abs() * s * bracket,
                        _ => expected[i].abs(),
                    };
                    let tolerance = 16.0 * UNIT_ROUNDOFF * size + 2.0 * f64::from(f32::MIN_POSITIVE);
                    let difference = (f64::from(found[i]) - expected[i]).abs();
                    assert!(
                        difference <= tolerance,
                        "{name}[{i}] g={}: {} {}",
                        gate[i],
                        found[i],
                        expected[i]
                    );
                }
            }
            for (found, first) in out.iter().zip(&results[0]) {
                assert_eq!(bits(found), bits(first));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn both_directions_equal_the_oracle(
            (rows, cols, gate, up, dy) in (0usize..4, 1usize..70).prop_flat_map(|(rows, cols)| {
                let n = rows * cols;
                let values = move || prop::collection::vec(-3.0f32..3.0, n);
                (Just(rows), Just(cols), prop::collection::vec(-30.0f32..30.0, n), values(), values())
            }),
        ) {
            check(rows, cols, &gate, &up, &dy);
        }
    }

    #[test]
    fn many_rows_are_split_into_tasks() {
        let gate: Vec<f32> = (0..40 * 1000).map(|i| ((i * 37 % 1001) as f32 - 500.0) * 0.02).collect();
        let up: Vec<f32> = gate.iter().rev().copied().collect();
        let dy: Vec<f32> = gate.iter().map(|x| x * 0.3 - 0.1).collect();
        check(40, 1000, &gate, &up, &dy);
    }

    #[test]
    fn large_gates_neither_overflow_nor_turn_into_nan() {
        let gate = [80.0f32, -80.0, 88.0, -87.9, 1e4, -1e4, 3e38, -3e38, 0.0, -0.0];
        let (up, dy) = ([1.0f32; 10], [1.0f32; 10]);
        let (mut y, mut dgate, mut dup) = ([0.0; 10], [0.0; 10], [0.0; 10]);
        let simd = Simd::detect();
        forward_row(simd, &gate, &up, &mut y);
        backward_row(simd, &gate, &up, &dy, &mut dgate, &mut dup);
        for i in 0..10 {
            assert_eq!(y[i], dup[i]);
            let limit = if gate[i] > 70.0 { gate[i] } else { 0.0 };
            assert!((y[i] - limit).abs() <= 1e-30, "silu({}) = {}", gate[i], y[i]);
            let slope = if gate[i] > 70.0 {
                1.0
            } else if gate[i] == 0.0 {
                0.5
            } else {
                0.0
            };
            assert!((dgate[i] - slope).abs() <= 1e-6, "slope at {} = {}", gate[i], dgate[i]);
        }
    }

    #[test]
    fn shapes_that_disagree_are_refused() {
        let threads = Threads::new(1).unwrap();
        let data = [0.0f32; 6];
        let a = MatRef::new(&data, 2, 3).unwrap();
        let b = MatRef::new(&data, 3, 2).unwrap();
        let (mut x, mut y) = ([0.0f32; 6], [0.0f32; 6]);
        assert!(forward(&threads, a, b, MatMut::new(&mut x, 2, 3).unwrap()).is_err());
        assert!(forward(&threads, a, a, MatMut::new(&mut x, 3, 2).unwrap()).is_err());
        let (dgate, dup) = (MatMut::new(&mut x, 2, 3).unwrap(), MatMut::new(&mut y, 3, 2).unwrap());
        assert!(backward(&threads, a, a, a, dgate, dup).is_err());
    }
}

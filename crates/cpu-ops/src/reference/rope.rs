//! Rotary position embedding in f64, from the angle as the model defines it: rounded to f32.

/// Turns every head of every row: element i of a head with element i + half, by `position * inv_freq[i]`, and
/// multiplies by `factor`. `inverse` gives the transpose.
pub fn rotate(
    x: &[f64],
    heads: usize,
    inv_freq: &[f32],
    factor: f64,
    positions: &[u32],
    inverse: bool,
) -> Vec<f64> {
    let half = inv_freq.len();
    let mut y = x.to_vec();
    for (row, &position) in positions.iter().enumerate() {
        for head in 0..heads {
            let start = (row * heads + head) * 2 * half;
            for (i, frequency) in inv_freq.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                let angle = if inverse { -angle } else { angle };
                let (a, b) = (x[start + i], x[start + i + half]);
                y[start + i] = factor * (a * angle.cos() - b * angle.sin());
                y[start + i + half] = factor * (b * angle.cos() + a * angle.sin());
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite_differences::assert_gradient;

    #[test]
    fn inverse_is_the_gradient_of_forward() {
        let x: Vec<f64> = (0..16).map(|i| (f64::from(i) * 0.7).sin()).collect();
        let dy: Vec<f64> = (0..16).map(|i| (f64::from(i) * 1.3).cos()).collect();
        let (inv_freq, positions) = ([1.0, 0.1], [3, 11]);
        let loss = |x: &[f64]| -> f64 {
            rotate(x, 2, &inv_freq, 1.2, &positions, false).iter().zip(&dy).map(|(y, dy)| y * dy).sum()
        };
        assert_gradient(loss, &x, &rotate(&dy, 2, &inv_freq, 1.2, &positions, true));
    }
}

//! RMSNorm in f64.

/// `y = x / sqrt(mean(x²) + eps) * weight` for each row of `cols` elements.
pub fn rms_norm(x: &[f64], cols: usize, weight: &[f64], eps: f64) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(cols) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / cols as f64;
        let rms = (mean + eps).sqrt();
        y.extend(row.iter().zip(weight).map(|(x, w)| x / rms * w));
    }
    y
}

/// The gradient with regard to `x`, and for each element the sum of the magnitudes of its two terms, which
/// error bounds need.
pub fn rms_norm_dx(x: &[f64], cols: usize, weight: &[f64], eps: f64, dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut dx, mut sizes) = (Vec::new(), Vec::new());
    for (x, dy) in x.chunks(cols).zip(dy.chunks(cols)) {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
        let r = 1.0 / (mean + eps).sqrt();
        let projection: f64 = (0..cols).map(|j| weight[j] * dy[j] * x[j]).sum();
        for i in 0..cols {
            let direct = r * weight[i] * dy[i];
            let along = x[i] * r.powi(3) / cols as f64 * projection;
            dx.push(direct - along);
            sizes.push(direct.abs() + along.abs());
        }
    }
    (dx, sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite_differences::assert_gradient;

    #[test]
    fn gradient_equals_finite_differences() {
        let x = [0.3, -1.2, 0.7, 2.0, -0.4, 0.1, 1.5, -0.9];
        let (weight, dy) = ([0.5, 1.5, -1.0, 2.0], [0.2, -0.7, 1.1, 0.4, -0.3, 0.8, 0.6, -1.0]);
        let loss =
            |x: &[f64]| -> f64 { rms_norm(x, 4, &weight, 1e-3).iter().zip(dy).map(|(y, dy)| y * dy).sum() };
        assert_gradient(loss, &x, &rms_norm_dx(&x, 4, &weight, 1e-3, &dy).0);
    }
}

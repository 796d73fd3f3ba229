//! SwiGLU in f64.

fn sigmoid(g: f64) -> f64 {
    1.0 / (1.0 + (-g).exp())
}

/// `gate * σ(gate) * up`.
pub fn forward(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u).collect()
}

/// Gradients with regard to gate and up.
pub fn backward(gate: &[f64], up: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let slope = |g: f64| sigmoid(g) + g * sigmoid(g) * sigmoid(-g);
    let dgate = (0..gate.len()).map(|i| dy[i] * up[i] * slope(gate[i])).collect();
    let dup = (0..gate.len()).map(|i| dy[i] * gate[i] * sigmoid(gate[i])).collect();
    (dgate, dup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite_differences::assert_gradient;

    #[test]
    fn gradients_equal_finite_differences() {
        let (gate, up, dy) =
            ([0.3, -1.2, 2.5, -4.0, 0.0], [1.0, -0.5, 0.7, 2.0, -1.5], [0.2, 1.0, -0.6, 0.9, 1.1]);
        let loss = |g: &[f64], u: &[f64]| -> f64 { forward(g, u).iter().zip(dy).map(|(y, d)| y * d).sum() };
        let (dgate, dup) = backward(&gate, &up, &dy);
        assert_gradient(|g| loss(g, &up), &gate, &dgate);
        assert_gradient(|u| loss(&gate, u), &up, &dup);
    }
}

//! AdamW in f64.

/// The settings, in f64.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the fields of `crate::optimiser::AdamW`
pub struct AdamW {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
}

/// One update, numbered from 1.
pub fn adamw(rule: &AdamW, update: u64, p: &mut [f64], g: &[f64], m: &mut [f64], v: &mut [f64]) {
    let t = update as f64;
    for i in 0..p.len() {
        p[i] -= rule.lr * rule.weight_decay * p[i];
        m[i] = rule.beta1 * m[i] + (1.0 - rule.beta1) * g[i];
        v[i] = rule.beta2 * v[i] + (1.0 - rule.beta2) * g[i] * g[i];
        let mean = m[i] / (1.0 - rule.beta1.powf(t));
        let square = v[i] / (1.0 - rule.beta2.powf(t));
        p[i] -= rule.lr * mean / (square.sqrt() + rule.eps);
    }
}

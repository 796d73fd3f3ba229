//! Oracle of [`crate::lm_head`]: all logits of a row in f64, and the definition of the loss.

/// Loss of one row and its gradient with respect to the row of hidden: `hidden` has as many elements as a row
/// of `embedding`, which is [vocab, hidden] row-major; `target` is below vocab.
pub fn cross_entropy(hidden: &[f64], embedding: &[f64], target: usize) -> (f64, Vec<f64>) {
    let width = hidden.len();
    let dot = |row: &[f64]| row.iter().zip(hidden).map(|(e, h)| e * h).sum::<f64>();
    let logits: Vec<f64> = embedding.chunks(width).map(dot).collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    let loss = sum.ln() - (logits[target] - max);
    let mut gradient = vec![0.0; width];
    for (v, (row, logit)) in embedding.chunks(width).zip(&logits).enumerate() {
        let probability = (logit - max).exp() / sum - if v == target { 1.0 } else { 0.0 };
        gradient.iter_mut().zip(row).for_each(|(g, e)| *g += probability * e);
    }
    (loss, gradient)
}

//! Causal attention with grouped heads in f64, one query at a time.

/// `heads` query heads share `kv_heads` key and value heads; scores are multiplied by `scale`. The counterpart of
/// [`crate::attention::AttentionShape`], in f64.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Shape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f64,
}

impl Shape {
    fn query<'a>(&self, q: &'a [f64], row: usize, head: usize) -> &'a [f64] {
        &q[(row * self.heads + head) * self.head_dim..][..self.head_dim]
    }

    fn key<'a>(&self, k: &'a [f64], row: usize, head: usize) -> &'a [f64] {
        let kv_head = head / (self.heads / self.kv_heads);
        &k[(row * self.kv_heads + kv_head) * self.head_dim..][..self.head_dim]
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The weights of the keys `starts[query] ..= keys - queries + query` for one query and head, and the logarithm
/// of the sum that they were divided by.
fn weights(
    shape: &Shape,
    starts: &[u32],
    q: &[f64],
    k: &[f64],
    query: usize,
    head: usize,
) -> (Vec<f64>, f64) {
    let keys = k.len() / (shape.kv_heads * shape.head_dim);
    let last = keys - starts.len() + query;
    let scores: Vec<f64> = (starts[query] as usize..=last)
        .map(|key| shape.scale * dot(shape.query(q, query, head), shape.key(k, key, head)))
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    (scores.iter().map(|s| (s - max).exp() / sum).collect(), max + sum.ln())
}

/// Output `[queries, heads * head_dim]` and log-sum-exp `[heads, queries]`.
pub fn forward(shape: &Shape, starts: &[u32], q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let queries = starts.len();
    let mut out = vec![0.0; q.len()];
    let mut log_sum_exp = vec![0.0; shape.heads * queries];
    for query in 0..queries {
        for head in 0..shape.heads {
            let (weights, lse) = weights(shape, starts, q, k, query, head);
            log_sum_exp[head * queries + query] = lse;
            let at = (query * shape.heads + head) * shape.head_dim;
            for (i, weight) in weights.iter().enumerate() {
                let value = shape.key(v, starts[query] as usize + i, head);
                for (d, x) in value.iter().enumerate() {
                    out[at + d] += weight * x;
                }
            }
        }
    }
    (out, log_sum_exp)
}

/// The gradients with regard to q, k and v.
pub fn backward(
    shape: &Shape,
    starts: &[u32],
    q: &[f64],
    k: &[f64],
    v: &[f64],
    d_out: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    let group = shape.heads / shape.kv_heads;
    for (query, &start) in starts.iter().enumerate() {
        for head in 0..shape.heads {
            let (weights, _) = weights(shape, starts, q, k, query, head);
            let d_out = shape.query(d_out, query, head);
            let d_weights: Vec<f64> =
                (0..weights.len()).map(|i| dot(d_out, shape.key(v, start as usize + i, head))).collect();
            let mean = dot(&weights, &d_weights);
            let at = (query * shape.heads + head) * shape.head_dim;
            for (i, weight) in weights.iter().enumerate() {
                let d_score = weight * (d_weights[i] - mean) * shape.scale;
                let key = start as usize + i;
                let key_at = (key * shape.kv_heads + head / group) * shape.head_dim;
                for d in 0..shape.head_dim {
                    dq[at + d] += d_score * k[key_at + d];
                    dk[key_at + d] += d_score * q[at + d];
                    dv[key_at + d] += weight * d_out[d];
                }
            }
        }
    }
    (dq, dk, dv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite_differences::assert_gradient;

    #[test]
    fn gradients_equal_finite_differences() {
        let shape = Shape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.6 };
        let starts = [0, 0, 1, 3, 3];
        let wave = |n: usize, f: f64| -> Vec<f64> { (0..n).map(|i| (i as f64 * f + 0.3).sin()).collect() };
        let (q, k, v) = (wave(60, 0.7), wave(30, 1.1), wave(30, 1.7));
        let d_out = wave(60, 2.3);
        let loss = |q: &[f64], k: &[f64], v: &[f64]| dot(&forward(&shape, &starts, q, k, v).0, &d_out);
        let (dq, dk, dv) = backward(&shape, &starts, &q, &k, &v, &d_out);
        assert_gradient(|q| loss(q, &k, &v), &q, &dq);
        assert_gradient(|k| loss(&q, k, &v), &k, &dk);
        assert_gradient(|v| loss(&q, &k, v), &v, &dv);
    }
}

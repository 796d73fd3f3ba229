//! Attention of a few queries, as in generation with a cache: keys and values are read once where they lie,
//! since copying them into tiles would cost more than using them.

use super::AttentionShape;
use super::mask::Mask;
use crate::exp::exp;
use crate::row_tasks::row_chunks;
use crate::simd::{LANES, Simd, fold_lanes, multiversion};
use crate::{MatMut, MatRef, Threads};

/// Fewer queries than these take this way.
pub(super) const FEW: usize = 4;

/// As [`forward`](super::forward()), whose operands have been checked. One task for each query and head.
pub(super) fn forward(
    simd: Simd,
    threads: &Threads,
    shape: &AttentionShape,
    mask: Mask<'_>,
    (q, k, v): (MatRef<'_>, MatRef<'_>, MatRef<'_>),
    out: MatMut<'_>,
    log_sum_exp: &mut [f32],
) {
    let (queries, head_dim) = (q.rows(), shape.head_dim);
    let mut sums = vec![0.0; queries * shape.heads];
    let rows = row_chunks(out, 1).into_iter();
    let heads = rows.flat_map(|row| row.into_data()[..shape.heads * head_dim].chunks_exact_mut(head_dim));
    threads.run_on(heads.zip(&mut sums).collect(), |task, (out, sum): (&mut [f32], &mut f32)| {
        let (query, head) = (task / shape.heads, task % shape.heads);
        let q = &q.row(query)[head * head_dim..][..head_dim];
        let visible = mask.keys_of(query..query + 1);
        let (k, v) = (k.rows_range(visible.start, visible.len()), v.rows_range(visible.start, visible.len()));
        let column = head / shape.group() * head_dim;
        let mut weights = vec![0.0; visible.len()];
        *sum = attend(simd, q, shape.scale, k, v, column, &mut weights, out);
    });
    for (task, sum) in sums.into_iter().enumerate() {
        log_sum_exp[task % shape.heads * queries + task / shape.heads] = sum;
    }
}

multiversion! {
    /// One query and head over all rows of `k` and `v`, from `column` on; returns the log-sum-exp.
    fn attend(
        q: &[f32],
        scale: f32,
        k: MatRef<'_>,
        v: MatRef<'_>,
        column: usize,
        weights: &mut [f32],
        out: &mut [f32],
    ) -> f32 = attend_body;
}

#[inline(always)]
fn attend_body(
    q: &[f32],
    scale: f32,
    k: MatRef<'_>,
    v: MatRef<'_>,
    column: usize,
    weights: &mut [f32],
    out: &mut [f32],
) -> f32 {
    let mut max = f32::NEG_INFINITY;
    for (row, score) in weights.iter_mut().enumerate() {
        *score = dot(q, &k.row(row)[column..][..q.len()]) * scale;
        max = max.max(*score);
    }
    for weight in weights.iter_mut() {
        *weight = exp(*weight - max);
    }
    let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    out.fill(0.0);
    for (row, weight) in weights.iter().enumerate() {
        for (out, v) in out.iter_mut().zip(&v.row(row)[column..]) {
            *out += weight * v;
        }
    }
    let total = sum as f32;
    out.iter_mut().for_each(|out| *out /= total);
    (f64::from(max) + sum.ln()) as f32
}

/// Σ a b over partial sums, one for each lane.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += a * b;
    }
    fold_lanes(lanes, |a, b| a + b)
}

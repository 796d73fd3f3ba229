//! Attention forward.
//!
//! ```text
//! 1. for each tile of 64 queries (one task, it owns its rows of `out`)
//! 2.   for each query head
//! 3.     for each tile of 64 keys that one of the queries sees
//! 4.       for each group of 8 queries, and only the columns that they see
//! 5.         S = Q Kᵀ
//! 6.         per row: m' = max(m, scale·S), P = e^(scale·S - m'), l = l·e^(m - m') + ΣP, O scaled likewise
//! 7.         O += P V
//! 8.     out = O / l, log-sum-exp = m + ln l
//! ```

use super::mask::{COLS, GROUP, Mask, ROWS, Seen};
use super::pack::Packed;
use super::product::{Left, Out, Right, Size, product};
use super::{AttentionShape, few};
use crate::exp::exp;
use crate::row_tasks::{expect, row_chunks};
use crate::simd::{LANES, Simd, fold_lanes, multiversion};
use crate::{MatMut, MatRef, Result, Threads};

/// `out = softmax(scale · q kᵀ) v` for every head, over the keys that each query sees.
///
/// Shapes: `q` and `out` `[queries, heads * head_dim]`, `k` and `v` `[keys, kv_heads * head_dim]` with at least as
/// many keys as queries, `starts` one for each query, ascending, `log_sum_exp` `[heads, queries]`: the logarithm
/// of the sum of a row's exponentials, which [`backward`](super::backward()) needs.
///
/// ```
/// use cpu_ops::attention::{self, AttentionShape};
/// use cpu_ops::{MatMut, MatRef, Threads};
///
/// // Two tokens of one head of size 1; equal scores, so the second sees the mean of both values.
/// let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0 };
/// let (q, k, v) = ([0.0, 0.0], [1.0, 1.0], [2.0, 4.0]);
/// let (mut out, mut log_sum_exp) = ([0.0; 2], [0.0; 2]);
/// attention::forward(
///     &Threads::new(1)?, shape, &[0, 0],
///     MatRef::new(&q, 2, 1)?, MatRef::new(&k, 2, 1)?, MatRef::new(&v, 2, 1)?,
///     MatMut::new(&mut out, 2, 1)?, &mut log_sum_exp,
/// )?;
/// assert_eq!(out, [2.0, 3.0]);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// Shapes that disagree; a head count that is not a multiple of the key heads'; starts that do not ascend or lie
/// behind their own query.
#[allow(clippy::too_many_arguments)] // the operands of the formula; a struct would only rename them
pub fn forward(
    threads: &Threads,
    shape: AttentionShape,
    starts: &[u32],
    q: MatRef<'_>,
    k: MatRef<'_>,
    v: MatRef<'_>,
    out: MatMut<'_>,
    log_sum_exp: &mut [f32],
) -> Result<()> {
    forward_with(Simd::detect(), threads, shape, starts, (q, k, v), out, log_sum_exp)
}

/// [`forward`] on a chosen path.
pub(super) fn forward_with(
    simd: Simd,
    threads: &Threads,
    shape: AttentionShape,
    starts: &[u32],
    (q, k, v): (MatRef<'_>, MatRef<'_>, MatRef<'_>),
    out: MatMut<'_>,
    log_sum_exp: &mut [f32],
) -> Result<()> {
    const NAME: &str = "attention::forward";
    shape.check(NAME, starts, q, k, v)?;
    expect(NAME, "rows of out", q.rows(), out.rows())?;
    expect(NAME, "columns of out", q.cols(), out.cols())?;
    expect(NAME, "length of log_sum_exp", shape.heads * q.rows(), log_sum_exp.len())?;
    let queries = q.rows();
    if queries == 0 || shape.heads == 0 {
        return Ok(());
    }
    let mask = Mask { starts, earlier: k.rows() - queries };
    if queries < few::FEW {
        few::forward(simd, threads, &shape, mask, (q, k, v), out, log_sum_exp);
        return Ok(());
    }
    let keys = Packed::transposed(threads, &shape, k);
    let values = Packed::rows(threads, &shape, v);

    // Later tiles see more keys: they go first, so that no thread is left with a large one at the end.
    let mut sums = vec![0.0; shape.heads * queries];
    let mut parts = Vec::new();
    let mut rest = &mut sums[..];
    for (tile, out) in row_chunks(out, ROWS).into_iter().enumerate() {
        let (own, others) = rest.split_at_mut(shape.heads * out.rows());
        parts.push((tile, out, own));
        rest = others;
    }
    parts.reverse();
    threads.run_on(parts, |_, (tile, mut out, sums)| {
        let mut work = Workspace::new(&shape);
        let first = tile * ROWS;
        let rows = out.rows();
        for (head, sums) in sums.chunks_exact_mut(rows).enumerate() {
            work.head(simd, &shape, mask, q, first..first + rows, head, &keys, &values);
            work.finish(&shape, head, &mut out, sums);
        }
    });
    for (tile, sums) in sums.chunks(shape.heads * ROWS).enumerate() {
        let rows = sums.len() / shape.heads;
        for (head, sums) in sums.chunks_exact(rows).enumerate() {
            log_sum_exp[head * queries + tile * ROWS..][..rows].copy_from_slice(sums);
        }
    }
    Ok(())
}

/// What a task keeps of one head and one tile of queries.
struct Workspace {
    width: usize,
    /// `[ROWS, width]`, zero beyond the queries and beyond `head_dim`.
    q: Vec<f32>,
    /// `[GROUP, COLS]`: scores, then weights.
    s: Vec<f32>,
    /// `[ROWS, width]`, not yet divided by the sum.
    o: Vec<f32>,
    max: [f32; ROWS],
    sum: [f32; ROWS],
}

impl Workspace {
    fn new(shape: &AttentionShape) -> Self {
        let width = shape.width();
        Self {
            width,
            q: vec![0.0; ROWS * width],
            s: vec![0.0; GROUP * COLS],
            o: vec![0.0; ROWS * width],
            max: [0.0; ROWS],
            sum: [0.0; ROWS],
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn head(
        &mut self,
        simd: Simd,
        shape: &AttentionShape,
        mask: Mask<'_>,
        q: MatRef<'_>,
        queries: std::ops::Range<usize>,
        head: usize,
        keys: &Packed,
        values: &Packed,
    ) {
        let (width, head_dim) = (self.width, shape.head_dim);
        for (row, out) in queries.clone().zip(self.q.chunks_exact_mut(width)) {
            out[..head_dim].copy_from_slice(&q.row(row)[head * head_dim..][..head_dim]);
        }
        self.o.fill(0.0);
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);

        let visible = mask.keys_of(queries.clone());
        for tile in visible.start / COLS..visible.end.div_ceil(COLS) {
            let kv_head = head / shape.group();
            let (keys, values) = (keys.tile(kv_head, tile), values.tile(kv_head, tile));
            for first in (0..queries.len()).step_by(GROUP) {
                let seen = mask.seen(queries.start + first, queries.end, tile * COLS);
                if seen.is_empty() {
                    continue;
                }
                let columns = seen.vectors();
                product(
                    simd,
                    Size { m: GROUP, n: columns.len(), k: head_dim },
                    Left { data: &self.q[first * width..], row: width, col: 1 },
                    Right { data: &keys[columns.start..], stride: COLS },
                    Out { data: &mut self.s[columns.start..], stride: COLS, add: false },
                );
                let rows = first..first + GROUP;
                let o = &mut self.o[first * width..(first + GROUP) * width];
                let (max, sum) = (&mut self.max[rows.clone()], &mut self.sum[rows]);
                softmax(simd, &mut self.s, seen, shape.scale, max, sum, o);
                product(
                    simd,
                    Size { m: GROUP, n: width, k: seen.to - seen.from },
                    Left { data: &self.s[seen.from..], row: COLS, col: 1 },
                    Right { data: &values[seen.from * width..], stride: width },
                    Out { data: o, stride: width, add: true },
                );
            }
        }
    }

    fn finish(&self, shape: &AttentionShape, head: usize, out: &mut MatMut<'_>, log_sum_exp: &mut [f32]) {
        for (row, log_sum_exp) in log_sum_exp.iter_mut().enumerate() {
            let sum = self.sum[row];
            let out = &mut out.row_mut(row)[head * shape.head_dim..][..shape.head_dim];
            for (y, o) in out.iter_mut().zip(&self.o[row * self.width..]) {
                *y = o / sum;
            }
            *log_sum_exp = (f64::from(self.max[row]) + f64::from(sum).ln()) as f32;
        }
    }
}

multiversion! {
    /// Step 6 for a group of rows: scores become weights, zero where a row does not see a column.
    fn softmax(s: &mut [f32], seen: Seen, scale: f32, max: &mut [f32], sum: &mut [f32], o: &mut [f32])
        = softmax_body;
}

#[inline(always)]
fn softmax_body(s: &mut [f32], seen: Seen, scale: f32, max: &mut [f32], sum: &mut [f32], o: &mut [f32]) {
    let columns = seen.vectors();
    let width = o.len() / GROUP;
    for (i, row) in s.chunks_exact_mut(COLS).enumerate() {
        let (from, to) = seen.rows[i];
        let row = &mut row[columns.clone()];
        if from >= to {
            row.fill(0.0);
            continue;
        }
        // Loops over one slice with one thing to do each are what compilers vectorise.
        for (at, x) in row.iter_mut().enumerate() {
            let column = (columns.start + at) as u32;
            *x = if column >= from && column < to { *x * scale } else { f32::NEG_INFINITY };
        }
        let mut largest = [f32::NEG_INFINITY; LANES];
        for group in row.as_chunks::<LANES>().0 {
            for (largest, &x) in largest.iter_mut().zip(group) {
                *largest = if x > *largest { x } else { *largest };
            }
        }
        let new_max = max[i].max(fold_lanes(largest, f32::max));
        for (at, x) in row.iter_mut().enumerate() {
            let column = (columns.start + at) as u32;
            let inside = column >= from && column < to;
            // Not the exponential of minus infinity: results that underflow cost a hundred cycles each.
            let weight = exp(if inside { *x - new_max } else { 0.0 });
            *x = if inside { weight } else { 0.0 };
        }
        let mut sums = [0.0; LANES];
        for group in row.as_chunks::<LANES>().0 {
            for (sum, x) in sums.iter_mut().zip(group) {
                *sum += x;
            }
        }
        let factor = if max[i] == f32::NEG_INFINITY { 0.0 } else { exp(max[i] - new_max) };
        sum[i] = sum[i] * factor + fold_lanes(sums, |a, b| a + b);
        max[i] = new_max;
        if factor != 1.0 {
            o[i * width..(i + 1) * width].iter_mut().for_each(|o| *o *= factor);
        }
    }
}

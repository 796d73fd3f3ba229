//! Attention backward: the weights are computed again from the saved log-sum-exp, tile by tile.
//!
//! ```text
//! 1. for each query head (one task, with partial gradients of its own)
//! 2.   for each tile of 64 queries:  D = rowsum(dO ∘ O), dQ = 0
//! 3.     for each tile of 64 keys that one of the queries sees
//! 4.       for each group of 8 queries, and only the columns that they see
//! 5.         P = e^(scale · Q Kᵀ - log-sum-exp),  dP = dO Vᵀ,  dS = scale · P ∘ (dP - D)
//! 6.         dQ += dS K
//! 7.       for each group of 8 keys, and only the queries that see them
//! 8.         dV += Pᵀ dO,  dK += dSᵀ Q
//! 9. for each row: dq from its head; dk and dv summed over the heads of a group, in their order
//! ```
//! The partial gradients take `3 * tokens * heads * head_dim` floats.

use std::ops::Range;

use super::mask::{COLS, GROUP, Mask, ROWS, Seen};
use super::pack::Packed;
use super::product::{Left, Out, Right, Size, product};
use super::{AttentionShape, few};
use crate::exp::exp;
use crate::row_tasks::{expect, row_chunks, rows_per_task};
use crate::simd::{Simd, multiversion};
use crate::{MatMut, MatRef, Result, Threads};

/// Where [`backward`] writes, each of the shape of its operand; old contents are not read.
#[derive(Debug)]
pub struct AttentionGrads<'a> {
    /// `[tokens, heads * head_dim]`.
    pub dq: MatMut<'a>,
    /// `[tokens, kv_heads * head_dim]`.
    pub dk: MatMut<'a>,
    /// `[tokens, kv_heads * head_dim]`.
    pub dv: MatMut<'a>,
}

/// The gradients of [`forward`](super::forward()) with as many queries as keys, from its operands, its `out` and
/// its `log_sum_exp`.
///
/// # Errors
/// As [`forward`](super::forward()); and queries and keys that differ in number.
#[allow(clippy::too_many_arguments)] // the operands of the formula; a struct would only rename them
pub fn backward(
    threads: &Threads,
    shape: AttentionShape,
    starts: &[u32],
    q: MatRef<'_>,
    k: MatRef<'_>,
    v: MatRef<'_>,
    out: MatRef<'_>,
    log_sum_exp: &[f32],
    d_out: MatRef<'_>,
    grads: AttentionGrads<'_>,
) -> Result<()> {
    let saved = Saved { q, out, d_out, log_sum_exp };
    backward_with(Simd::detect(), threads, shape, starts, saved, (k, v), grads)
}

/// The operands with one row for each query.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) q: MatRef<'a>,
    pub(super) out: MatRef<'a>,
    pub(super) d_out: MatRef<'a>,
    pub(super) log_sum_exp: &'a [f32],
}

/// [`backward`] on a chosen path.
pub(super) fn backward_with(
    simd: Simd,
    threads: &Threads,
    shape: AttentionShape,
    starts: &[u32],
    saved: Saved<'_>,
    (k, v): (MatRef<'_>, MatRef<'_>),
    grads: AttentionGrads<'_>,
) -> Result<()> {
    const NAME: &str = "attention::backward";
    let q = saved.q;
    shape.check(NAME, starts, q, k, v)?;
    expect(NAME, "rows of k", q.rows(), k.rows())?;
    expect(NAME, "rows of out", q.rows(), saved.out.rows())?;
    expect(NAME, "columns of out", q.cols(), saved.out.cols())?;
    expect(NAME, "rows of d_out", q.rows(), saved.d_out.rows())?;
    expect(NAME, "columns of d_out", q.cols(), saved.d_out.cols())?;
    expect(NAME, "length of log_sum_exp", shape.heads * q.rows(), saved.log_sum_exp.len())?;
    for (rows, cols, grad, operand) in [
        ("rows of dq", "columns of dq", &grads.dq, q),
        ("rows of dk", "columns of dk", &grads.dk, k),
        ("rows of dv", "columns of dv", &grads.dv, v),
    ] {
        expect(NAME, rows, operand.rows(), grad.rows())?;
        expect(NAME, cols, operand.cols(), grad.cols())?;
    }
    let tokens = q.rows();
    if tokens == 0 || shape.heads == 0 {
        return Ok(());
    }
    let mask = Mask { starts, earlier: 0 };
    let keys = Keys {
        transposed: Packed::transposed(threads, &shape, k),
        rows: Packed::rows(threads, &shape, k),
        values_transposed: Packed::transposed(threads, &shape, v),
    };
    let length = tokens.next_multiple_of(ROWS) * shape.width();
    let mut partials = vec![0.0; 3 * shape.heads * length];
    threads.run_on(partials.chunks_exact_mut(3 * length).collect(), |head, partial| {
        let (dq, rest) = partial.split_at_mut(length);
        let (dk, dv) = rest.split_at_mut(length);
        let mut work = Workspace::new(&shape);
        for first in (0..tokens).step_by(ROWS) {
            let queries = first..tokens.min(first + ROWS);
            let dq = &mut dq[first * shape.width()..][..ROWS * shape.width()];
            work.tile(simd, &shape, mask, saved, queries, head, &keys, Partials { dq, dk, dv });
        }
    });
    collect(threads, &shape, &partials, length, grads);
    Ok(())
}

/// Keys and values as the products read them.
struct Keys {
    transposed: Packed,
    rows: Packed,
    values_transposed: Packed,
}

/// A head's share of the gradients: `dq` of the tile, `dk` and `dv` of all tokens, rows of `width`.
struct Partials<'a> {
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

/// Step 9.
fn collect(
    threads: &Threads,
    shape: &AttentionShape,
    partials: &[f32],
    length: usize,
    grads: AttentionGrads<'_>,
) {
    let (width, head_dim, group) = (shape.width(), shape.head_dim, shape.group());
    let rows = rows_per_task(grads.dq.cols());
    let parts = row_chunks(grads.dq, rows).into_iter();
    let parts = parts.zip(row_chunks(grads.dk, rows)).zip(row_chunks(grads.dv, rows));
    threads.run_on(parts.collect(), |task, ((mut dq, mut dk), mut dv)| {
        let part = |head: usize, which: usize, row: usize| {
            &partials[(3 * head + which) * length + (task * rows + row) * width..][..head_dim]
        };
        for row in 0..dq.rows() {
            for (head, dq) in dq.row_mut(row).chunks_exact_mut(head_dim).enumerate() {
                dq.copy_from_slice(part(head, 0, row));
            }
            for (which, out) in [(1, dk.row_mut(row)), (2, dv.row_mut(row))] {
                for (kv_head, out) in out.chunks_exact_mut(head_dim).enumerate() {
                    out.copy_from_slice(part(kv_head * group, which, row));
                    for head in kv_head * group + 1..(kv_head + 1) * group {
                        out.iter_mut().zip(part(head, which, row)).for_each(|(sum, x)| *sum += x);
                    }
                }
            }
        }
    });
}

/// What a task keeps of one head and one tile of queries.
struct Workspace {
    width: usize,
    /// `[ROWS, width]`, zero beyond the queries and beyond `head_dim`.
    q: Vec<f32>,
    /// `[ROWS, width]`, likewise.
    d_out: Vec<f32>,
    /// `[ROWS, COLS]`: scores, then weights.
    p: Vec<f32>,
    /// `[ROWS, COLS]`: gradients of the weights, then of the scores.
    ds: Vec<f32>,
    /// D of step 2.
    d: [f32; ROWS],
    log_sum_exp: [f32; ROWS],
}

impl Workspace {
    fn new(shape: &AttentionShape) -> Self {
        let width = shape.width();
        Self {
            width,
            q: vec![0.0; ROWS * width],
            d_out: vec![0.0; ROWS * width],
            p: vec![0.0; ROWS * COLS],
            ds: vec![0.0; ROWS * COLS],
            d: [0.0; ROWS],
            log_sum_exp: [0.0; ROWS],
        }
    }

    fn load(
        &mut self,
        simd: Simd,
        shape: &AttentionShape,
        saved: Saved<'_>,
        queries: Range<usize>,
        head: usize,
    ) {
        let columns = head * shape.head_dim..(head + 1) * shape.head_dim;
        // The rows beyond the last query must be zero: they take part in sums over queries.
        self.q.fill(0.0);
        self.d_out.fill(0.0);
        for (i, row) in queries.enumerate() {
            let d_out = &saved.d_out.row(row)[columns.clone()];
            self.q[i * self.width..][..shape.head_dim].copy_from_slice(&saved.q.row(row)[columns.clone()]);
            self.d_out[i * self.width..][..shape.head_dim].copy_from_slice(d_out);
            self.d[i] = dot(simd, d_out, &saved.out.row(row)[columns.clone()]);
            self.log_sum_exp[i] = saved.log_sum_exp[head * saved.q.rows() + row];
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn tile(
        &mut self,
        simd: Simd,
        shape: &AttentionShape,
        mask: Mask<'_>,
        saved: Saved<'_>,
        queries: Range<usize>,
        head: usize,
        keys: &Keys,
        partials: Partials<'_>,
    ) {
        let width = self.width;
        self.load(simd, shape, saved, queries.clone(), head);
        let visible = mask.keys_of(queries.clone());
        for tile in visible.start / COLS..visible.end.div_ceil(COLS) {
            let mut seen = [Seen::default(); ROWS / GROUP];
            for (group, seen) in seen.iter_mut().enumerate() {
                let first = group * GROUP;
                *seen = mask.seen(queries.start + first, queries.end, tile * COLS);
                if !seen.is_empty() {
                    let dq = &mut partials.dq[first * width..(first + GROUP) * width];
                    self.queries(simd, shape, *seen, first, keys, (head / shape.group(), tile), dq);
                }
            }
            for first in (0..COLS).step_by(GROUP) {
                // The groups of queries that see one of these keys stand together, since starts ascend.
                let sees = |seen: &Seen| seen.from < first + GROUP && first < seen.to;
                let Some(from) = seen.iter().position(sees) else { continue };
                let to = seen.iter().rposition(sees).expect("there is one") + 1;
                let at = (tile * COLS + first) * width;
                let sum = |weights: &[f32], rows: &[f32], out: &mut [f32]| {
                    product(
                        simd,
                        Size { m: GROUP, n: width, k: (to - from) * GROUP },
                        Left { data: &weights[from * GROUP * COLS + first..], row: 1, col: COLS },
                        Right { data: &rows[from * GROUP * width..], stride: width },
                        Out { data: &mut out[at..], stride: width, add: true },
                    );
                };
                sum(&self.p, &self.d_out, partials.dv);
                sum(&self.ds, &self.q, partials.dk);
            }
        }
    }

    /// Steps 5 and 6 for the group of queries from `first` on.
    #[allow(clippy::too_many_arguments)]
    fn queries(
        &mut self,
        simd: Simd,
        shape: &AttentionShape,
        seen: Seen,
        first: usize,
        keys: &Keys,
        (kv_head, tile): (usize, usize),
        dq: &mut [f32],
    ) {
        let width = self.width;
        let columns = seen.vectors();
        let scores = |left: &[f32], right: &Packed, out: &mut [f32]| {
            product(
                simd,
                Size { m: GROUP, n: columns.len(), k: shape.head_dim },
                Left { data: &left[first * width..], row: width, col: 1 },
                Right { data: &right.tile(kv_head, tile)[columns.start..], stride: COLS },
                Out { data: &mut out[first * COLS + columns.start..], stride: COLS, add: false },
            );
        };
        scores(&self.q, &keys.transposed, &mut self.p);
        scores(&self.d_out, &keys.values_transposed, &mut self.ds);
        let group = first * COLS..(first + GROUP) * COLS;
        let rows = first..first + GROUP;
        let (p, ds) = (&mut self.p[group.clone()], &mut self.ds[group]);
        score_gradients(simd, p, ds, seen, shape.scale, &self.log_sum_exp[rows.clone()], &self.d[rows]);
        product(
            simd,
            Size { m: GROUP, n: width, k: seen.to - seen.from },
            Left { data: &ds[seen.from..], row: COLS, col: 1 },
            Right { data: &keys.rows.tile(kv_head, tile)[seen.from * width..], stride: width },
            Out { data: dq, stride: width, add: true },
        );
    }
}

multiversion! {
    /// The element-wise part of step 5, zero where a row does not see a column.
    fn score_gradients(p: &mut [f32], ds: &mut [f32], seen: Seen, scale: f32, log_sum_exp: &[f32], d: &[f32])
        = score_gradients_body;
}

#[inline(always)]
fn score_gradients_body(
    p: &mut [f32],
    ds: &mut [f32],
    seen: Seen,
    scale: f32,
    log_sum_exp: &[f32],
    d: &[f32],
) {
    let columns = seen.vectors();
    let rows = p.chunks_exact_mut(COLS).zip(ds.chunks_exact_mut(COLS));
    for (i, (p, ds)) in rows.enumerate() {
        let (from, to) = seen.rows[i];
        let (p, ds) = (&mut p[columns.clone()], &mut ds[columns.clone()]);
        let (log_sum_exp, d) = (log_sum_exp[i], d[i]);
        for (at, (p, ds)) in p.iter_mut().zip(ds).enumerate() {
            let column = (columns.start + at) as u32;
            let inside = column >= from && column < to;
            let weight = exp(if inside { *p * scale - log_sum_exp } else { 0.0 });
            *p = if inside { weight } else { 0.0 };
            *ds = if inside { weight * (*ds - d) * scale } else { 0.0 };
        }
    }
}

multiversion! {
    fn dot(a: &[f32], b: &[f32]) -> f32 = few::dot;
}

//! Packing: copies blocks of A and B into the order in which the microkernels read them, widening f16, bf16
//! and NF4 to f32 on the way. A 4-bit weight is f32 only here, at most NC x KC elements of it at a time.

use std::cell::RefCell;
use std::ops::Range;

use super::blocks::{A_STRIDE, KC, MC, NC};
use super::microkernel::Microkernel;
use super::{Op, Operand};
use crate::{MatRef, cast};

/// A cache line of f32: buffers made of these are aligned for whole-vector accesses.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A buffer that grows to what was asked for once and is kept.
#[derive(Default)]
pub(crate) struct Aligned(Vec<Line>);

impl Aligned {
    /// At least `len` elements, with whatever values they had.
    pub(crate) fn take(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.is_empty() {
            // Zeroed pages as they come from the system, which nothing has touched yet.
            self.0 = bytemuck::zeroed_vec(lines);
        } else if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; 16]));
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }
}

/// The packing buffers of one thread: about 1.3 MiB once all of them were needed.
#[derive(Default)]
pub(super) struct Buffers {
    /// MC rows of A, A_STRIDE apart.
    pub(super) a: Aligned,
    /// NC columns of B in slivers.
    pub(super) b: Aligned,
    /// Runs of B as they come from their storage, before they are transposed or dealt out to slivers.
    pub(super) run: Aligned,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Lends this thread's buffers to `work`, which must not ask for them again.
pub(super) fn with_buffers<R>(work: impl FnOnce(&mut Buffers) -> R) -> R {
    BUFFERS.with(|buffers| work(&mut buffers.borrow_mut()))
}

/// Writes the f32 values of a run of `out.len()` elements from (row, col) of the stored matrix on.
pub(crate) fn widen_run(operand: &Operand<'_>, row: usize, col: usize, out: &mut [f32]) {
    let end = col + out.len();
    match operand {
        Operand::F32(m) => out.copy_from_slice(&m.row(row)[col..end]),
        Operand::F16(m) => cast::f16_to_f32(&m.row(row)[col..end], out),
        Operand::Bf16(m) => cast::bf16_to_f32(&m.row(row)[col..end], out),
        Operand::Nf4(m) => {
            assert!(row < m.rows() && end <= m.cols());
            m.expand_run(row * m.cols() + col, out);
        }
    }
}

/// Rows `rows` and inner elements `inner` of op(A), as rows A_STRIDE apart. `row_map` renames the rows of A.
pub(super) fn pack_a<K: Microkernel>(
    kernel: K,
    (a, op, row_map): (MatRef<'_>, Op, Option<&[usize]>),
    rows: Range<usize>,
    inner: Range<usize>,
    out: &mut [f32],
) {
    debug_assert!(rows.len() <= MC && inner.len() <= KC);
    match op {
        Op::None => {
            for (packed, row) in out.chunks_mut(A_STRIDE).zip(rows) {
                let row = row_map.map_or(row, |map| map[row]);
                packed[..inner.len()].copy_from_slice(&a.row(row)[inner.clone()]);
            }
        }
        Op::Transpose => {
            let part = a.rows_range(inner.start, inner.len()).cols_range(rows.start, rows.len());
            kernel.transpose((part.data(), part.stride()), (out, A_STRIDE), inner.len(), rows.len());
        }
    }
}

/// Columns `cols` and inner elements `inner` of a stored [columns of op(B), inner] matrix as one sliver:
/// `inner.len()` rows of `width` elements; columns past the last are 0.
pub(super) fn pack_b_transposed<K: Microkernel>(
    kernel: K,
    b: &Operand<'_>,
    cols: Range<usize>,
    inner: Range<usize>,
    run: &mut Aligned,
    (out, width): (&mut [f32], usize),
) {
    let (count, depth) = (cols.len(), inner.len());
    if count < width {
        out[..depth * width].chunks_exact_mut(width).for_each(|row| row[count..].fill(0.0));
    }
    if let Operand::F32(m) = b {
        let part = m.rows_range(cols.start, count).cols_range(inner.start, depth);
        kernel.transpose((part.data(), part.stride()), (out, width), count, depth);
        return;
    }
    // A vector's worth of rows at a time: what was widened is then still in the L1 cache.
    let run = run.take(K::LANES * A_STRIDE);
    for first in (0..count).step_by(K::LANES) {
        let height = K::LANES.min(count - first);
        for (r, run) in run.chunks_mut(A_STRIDE).take(height).enumerate() {
            widen_run(b, cols.start + first + r, inner.start, &mut run[..depth]);
        }
        kernel.transpose((run, A_STRIDE), (&mut out[first..], width), height, depth);
    }
}

/// Columns `cols` and inner elements `inner` of a stored [inner, columns] matrix as slivers of `width`
/// columns, one after another; columns past the last are 0.
pub(super) fn pack_b_plain(
    b: &Operand<'_>,
    cols: Range<usize>,
    inner: Range<usize>,
    run: &mut Aligned,
    (out, width): (&mut [f32], usize),
) {
    debug_assert!(cols.len() <= NC && inner.len() <= KC);
    let (count, depth) = (cols.len(), inner.len());
    let mut deal = |p: usize, row: &[f32]| match width {
        16 => deal::<16>(row, p, depth, out),
        48 => deal::<48>(row, p, depth, out),
        _ => unreachable!("no microkernel has slivers of {width} columns"),
    };
    if let Operand::F32(m) = b {
        inner.enumerate().for_each(|(p, row)| deal(p, &m.row(row)[cols.clone()]));
        return;
    }
    let run = run.take(count);
    for (p, row) in inner.enumerate() {
        widen_run(b, row, cols.start, run);
        deal(p, run);
    }
}

/// Deals a row of B out to its slivers, as their row `p`; the last one is filled up with zeros.
#[inline(always)]
fn deal<const WIDTH: usize>(row: &[f32], p: usize, depth: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut::<WIDTH>().0;
    let (whole, rest) = row.as_chunks::<WIDTH>();
    for (s, piece) in whole.iter().enumerate() {
        out[s * depth + p] = *piece;
    }
    if !rest.is_empty() {
        let last = &mut out[whole.len() * depth + p];
        *last = [0.0; WIDTH];
        last[..rest.len()].copy_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_keep_growing() {
        let mut buffer = Aligned::default();
        for len in [0, 1, 17, 1000] {
            let slice = buffer.take(len);
            assert_eq!(slice.len(), len);
            assert_eq!(slice.as_ptr() as usize % 64, 0);
        }
    }
}

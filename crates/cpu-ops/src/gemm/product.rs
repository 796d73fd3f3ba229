//! The blocked product of one task: a rectangle of C, all of the inner dimension.
//!
//! ```text
//! 5  for jc in columns, NC at a time
//! 4    for pc in the inner dimension, KC at a time            (in order: it is the order of the sums)
//! 3      for ic in rows, MC at a time:                        pack A[ic, pc], MC x KC, for the L2 cache
//! 2        for jr in jc, a sliver of NR columns at a time:    at the first ic, pack B[pc, jr]
//! 1          for ir in ic, MR rows at a time:                 microkernel: C[ir, jr] += A[ir, pc] B[pc, jr]
//! ```
//!
//! A sliver of B is packed when it is first needed, so with up to MC rows (a usual batch) it is used while it
//! is still in a cache near by. A plain f32 B is packed by the microkernel itself: its first tile reads B where it
//! lies and leaves a copy for the others, so that packing costs neither a pass nor a place in the L2 cache.

use std::ops::Range;

use super::ahead::Ahead;
use super::blocks::{A_STRIDE, KC, MC, NC, cuts, inner_blocks};
use super::microkernel::{Microkernel, Tile, portable};
use super::output::Block;
use super::pack::{self, Aligned, Buffers};
use super::{Op, Operand};
use crate::MatRef;
use crate::simd::Simd;

/// Operands of a product whose sizes have been checked against each other and against C.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) simd: Simd,
    pub(crate) alpha: f32,
    pub(crate) a: MatRef<'a>,
    pub(crate) a_op: Op,
    /// Row i of the product is row `row_map[i]` of A; only with `a_op` none.
    pub(crate) row_map: Option<&'a [usize]>,
    pub(crate) b: Operand<'a>,
    pub(crate) b_op: Op,
    /// Where the inner dimension begins in A and B: elsewhere than at 0 where a deep one is cut.
    pub(crate) first: usize,
    /// Length of the inner dimension.
    pub(crate) depth: usize,
    pub(crate) beta: f32,
}

impl Job<'_> {
    /// Computes the rectangle `c`, which starts at (row, col) of the product, on this thread.
    pub(crate) fn run(&self, (row, col): (usize, usize), mut c: Block<'_>) {
        if c.rows() == 0 || c.cols() == 0 {
            return;
        }
        if self.depth == 0 {
            return c.scale(self.beta);
        }
        pack::with_buffers(|buffers| match self.simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512(kernel) => self.blocked(kernel, (row, col), c, buffers),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2(kernel) => self.blocked(kernel, (row, col), c, buffers),
            _ => self.portable((row, col), c, buffers),
        });
    }

    fn blocked<K: Microkernel>(
        &self,
        kernel: K,
        (row, col): (usize, usize),
        mut c: Block<'_>,
        buffers: &mut Buffers,
    ) {
        let (rows, cols) = (c.rows(), c.cols());
        let Buffers { a: a_buffer, b: b_buffer, run } = buffers;
        let plain = match (self.b, self.b_op) {
            (Operand::F32(b), Op::None) => Some(b),
            _ => None,
        };
        for jc in cuts(cols, K::NR, cols.div_ceil(NC)) {
            let mut blocks = inner_blocks(self.depth).peekable();
            while let Some((pc, depth)) = blocks.next() {
                let inner = self.first + pc..self.first + pc + depth;
                let beta = if pc == 0 { self.beta } else { 1.0 };
                for ic in (0..rows).step_by(MC) {
                    let ic = ic..rows.min(ic + MC);
                    let a = a_buffer.take(ic.len() * A_STRIDE);
                    let a_rows = row + ic.start..row + ic.end;
                    pack::pack_a(kernel, (self.a, self.a_op, self.row_map), a_rows, inner.clone(), a);
                    let (panel_count, sliver_count) = (ic.len().div_ceil(K::MR), jc.len().div_ceil(K::NR));
                    // What comes after this block of A: its next rows, or the first ones of the next block.
                    let (next_rows, next_inner) = if ic.end < rows {
                        (ic.end..rows.min(ic.end + MC), Some(inner.clone()))
                    } else {
                        let next = blocks.peek().map(|&(pc, depth)| self.first + pc..self.first + pc + depth);
                        (0..rows.min(MC), next)
                    };
                    let next_rows = row + next_rows.start..row + next_rows.end;
                    let mut ahead_a = match &next_inner {
                        Some(inner) if self.a_op == Op::None && self.row_map.is_none() => {
                            Ahead::new(self.a, next_rows, inner.clone(), panel_count * sliver_count)
                        }
                        _ => Ahead::NONE,
                    };
                    for jr in jc.clone().step_by(K::NR) {
                        let jr = jr..jc.end.min(jr + K::NR);
                        let sliver = Sliver {
                            cols: col + jr.start..col + jr.end,
                            inner: inner.clone(),
                            index: (jr.start - jc.start) / K::NR,
                            fresh: ic.start == 0,
                            alone: plain.is_some(),
                        };
                        let as_it_lies = plain
                            .filter(|_| jr.len() == K::NR)
                            .map(|b| b.rows_range(inner.start, depth).cols_range(sliver.cols.start, K::NR));
                        // What comes after this sliver: its neighbour, or the first one of the next block.
                        let (next_inner, next) = if jr.end < jc.end {
                            (Some(&inner), jr.end..jc.end.min(jr.end + K::NR))
                        } else {
                            (next_inner.as_ref(), jc.start..jc.end.min(jc.start + K::NR))
                        };
                        let mut ahead_b = match (plain, next_inner) {
                            (Some(b), Some(inner)) => {
                                let cols = col + next.start..col + next.end;
                                Ahead::new(b, inner.clone(), cols, panel_count)
                            }
                            _ => Ahead::NONE,
                        };
                        if as_it_lies.is_none() {
                            self.pack_sliver::<K>(
                                kernel,
                                &sliver,
                                col + jc.start..col + jc.end,
                                b_buffer,
                                run,
                            );
                        }
                        let at = if plain.is_some() { 0 } else { sliver.index * depth * K::NR };
                        let packed = &mut b_buffer.take(at + depth * K::NR)[at..];
                        for (panel, ir) in panels(ic.clone(), K::MR).enumerate() {
                            let (b, b_stride, copy) = match as_it_lies {
                                Some(b) if panel == 0 => (b.data(), b.stride(), Some(&mut *packed)),
                                _ => (&*packed, K::NR, None),
                            };
                            kernel.tile(Tile {
                                a: &a[(ir.start - ic.start) * A_STRIDE..],
                                b,
                                b_stride,
                                copy,
                                depth,
                                alpha: self.alpha,
                                beta,
                                c: c.part(ir, jr.clone()),
                                ahead: [ahead_b.next_tile(), ahead_a.next_tile()],
                            });
                        }
                    }
                }
            }
        }
    }

    /// Packs a sliver if this is its first use. A transposed B is packed sliver by sliver; a plain one all of the
    /// chunk `of_chunk` at the first, because its rows run across slivers; a plain f32 one here only where it is
    /// narrower than a sliver.
    fn pack_sliver<K: Microkernel>(
        &self,
        kernel: K,
        sliver: &Sliver,
        of_chunk: Range<usize>,
        buffer: &mut Aligned,
        run: &mut Aligned,
    ) {
        let length = sliver.inner.len() * K::NR;
        let (cols, inner) = (sliver.cols.clone(), sliver.inner.clone());
        if sliver.alone {
            return pack::pack_b_plain(&self.b, cols, inner, run, (buffer.take(length), K::NR));
        }
        if !sliver.fresh {
            return;
        }
        match self.b_op {
            Op::Transpose => {
                let at = sliver.index * length;
                let out = (&mut buffer.take(at + length)[at..], K::NR);
                pack::pack_b_transposed(kernel, &self.b, cols, inner, run, out);
            }
            Op::None if sliver.index == 0 => {
                let packed = buffer.take(of_chunk.len().div_ceil(K::NR) * length);
                pack::pack_b_plain(&self.b, of_chunk, inner, run, (packed, K::NR));
            }
            Op::None => {}
        }
    }

    /// The same product through `matrixmultiply`: blocks of B are widened where they are not f32 already.
    fn portable(&self, (row, col): (usize, usize), mut c: Block<'_>, buffers: &mut Buffers) {
        let (rows, cols) = (c.rows(), c.cols());
        for jc in cuts(cols, 8, cols.div_ceil(NC)) {
            let b_cols = col + jc.start..col + jc.end;
            for (pc, depth) in inner_blocks(self.depth) {
                let beta = if pc == 0 { self.beta } else { 1.0 };
                let pc = self.first + pc;
                let stored = match self.b_op {
                    Op::None => (pc..pc + depth, b_cols.clone()),
                    Op::Transpose => (b_cols.clone(), pc..pc + depth),
                };
                let (b, stride) = match self.b {
                    Operand::F32(b) => {
                        let part = b
                            .rows_range(stored.0.start, stored.0.len())
                            .cols_range(stored.1.start, stored.1.len());
                        (part.data(), part.stride())
                    }
                    _ => {
                        let width = stored.1.len();
                        let wide = buffers.b.take(stored.0.len() * width);
                        for (out, r) in wide.chunks_exact_mut(width).zip(stored.0.clone()) {
                            pack::widen_run(&self.b, r, stored.1.start, out);
                        }
                        (&*wide, width)
                    }
                };
                let b = match self.b_op {
                    Op::None => (b, stride, 1),
                    Op::Transpose => (b, 1, stride),
                };
                for ic in (0..rows).step_by(MC) {
                    let ic = ic..rows.min(ic + MC);
                    let a = match (self.a_op, self.row_map) {
                        (Op::None, None) => {
                            let part = self.a.rows_range(row + ic.start, ic.len()).cols_range(pc, depth);
                            (part.data(), part.stride(), 1)
                        }
                        (Op::None, Some(map)) => {
                            let packed = buffers.a.take(ic.len() * KC);
                            for (out, r) in packed.chunks_exact_mut(KC).zip(row + ic.start..row + ic.end) {
                                out[..depth].copy_from_slice(&self.a.row(map[r])[pc..pc + depth]);
                            }
                            (&*packed, KC, 1)
                        }
                        (Op::Transpose, _) => {
                            let part = self.a.rows_range(pc, depth).cols_range(row + ic.start, ic.len());
                            (part.data(), 1, part.stride())
                        }
                    };
                    let part = c.part(ic, jc.clone());
                    portable::block_product(depth, self.alpha, a, b, beta, part);
                }
            }
        }
    }
}

/// A sliver of B, in coordinates of the whole product.
struct Sliver {
    cols: Range<usize>,
    inner: Range<usize>,
    /// Its place within its chunk of NC columns.
    index: usize,
    /// Whether it must be packed.
    fresh: bool,
    /// Whether it is the only packed one: the edge of a B that the tiles pack.
    alone: bool,
}

/// Cuts `rows` into panels of at most `mr` rows whose heights differ by one at most.
fn panels(rows: Range<usize>, mr: usize) -> impl Iterator<Item = Range<usize>> {
    let count = rows.len().div_ceil(mr);
    let border = move |i: usize| rows.start + i * (rows.end - rows.start) / count;
    (0..count).map(move |i| border(i)..border(i + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_even_and_cover_the_rows() {
        for len in 0..100 {
            let all: Vec<_> = panels(7..7 + len, 14).collect();
            assert_eq!(all.iter().map(ExactSizeIterator::len).sum::<usize>(), len);
            assert!(all.iter().all(|p| (1..=14).contains(&p.len())));
            assert!(all.windows(2).all(|w| w[0].end == w[1].start));
        }
    }
}

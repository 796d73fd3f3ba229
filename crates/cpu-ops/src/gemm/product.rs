//! The blocked product of one task: a rectangle of C, all of the inner dimension.
//!
//! ```text
//! 5  for jc in columns, NC at a time
//! 4    for pc in the inner dimension, KC at a time            (in order: it is the order of the sums)
//! 3      for ic in rows, MC at a time:                        pack A[ic, pc], MC x KC, for the L2 cache
//! 2        for jr in jc, a sliver of NR columns at a time:    at the first ic, pack B[pc, jr], for the L1 cache
//! 1          for ir in ic, MR rows at a time:                 microkernel: C[ir, jr] += A[ir, pc] B[pc, jr]
//! ```
//!
//! A sliver of B is packed when it is first needed, so with up to MC rows (a usual batch) it is used while it
//! is still in the L1 cache. With few rows, packing a plain f32 B would cost as much as the product; then the
//! microkernel reads B where it lies.

use std::ops::Range;

use super::blocks::{A_STRIDE, KC, MC, NC, cuts, inner_blocks};
use super::microkernel::{Microkernel, Tile, portable};
use super::output::Block;
use super::pack::{self, Aligned, Buffers};
use super::{Op, Operand};
use crate::MatRef;
use crate::simd::Simd;

/// Rows of C up to which a plain f32 B is read in place.
const IN_PLACE_ROWS: usize = 64;

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
        let in_place = match (self.b, self.b_op) {
            (Operand::F32(b), Op::None) if rows <= IN_PLACE_ROWS => Some(b),
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
                    let tiles = ic.len().div_ceil(K::MR) * jc.len().div_ceil(K::NR);
                    let mut ahead = match blocks.peek() {
                        Some(&(pc, depth)) if ic.end == rows => {
                            let inner = self.first + pc..self.first + pc + depth;
                            let b_cols = if in_place.is_some() { 0..0 } else { col + jc.start..col + jc.end };
                            Ahead::new(self, row..row + rows.min(MC), inner, b_cols, tiles)
                        }
                        _ => Ahead::default(),
                    };
                    for jr in jc.clone().step_by(K::NR) {
                        let jr = jr..jc.end.min(jr + K::NR);
                        let sliver = Sliver {
                            cols: col + jr.start..col + jr.end,
                            inner: inner.clone(),
                            index: (jr.start - jc.start) / K::NR,
                            fresh: ic.start == 0,
                            alone: in_place.is_some(),
                        };
                        let of_chunk = col + jc.start..col + jc.end;
                        let (b, b_stride) = match in_place {
                            Some(b) if jr.len() % K::LANES == 0 => {
                                let part =
                                    b.rows_range(inner.start, depth).cols_range(sliver.cols.start, jr.len());
                                (part.data(), part.stride())
                            }
                            _ => (self.sliver::<K>(kernel, &sliver, of_chunk, b_buffer, run), K::NR),
                        };
                        for ir in panels(ic.clone(), K::MR) {
                            ahead.fetch(kernel);
                            kernel.tile(Tile {
                                a: &a[(ir.start - ic.start) * A_STRIDE..],
                                b,
                                b_stride,
                                depth,
                                alpha: self.alpha,
                                beta,
                                c: c.part(ir, jr.clone()),
                            });
                        }
                    }
                }
            }
        }
    }

    /// The packed sliver, packing it if this is its first use. A transposed B is packed sliver by sliver; a
    /// plain one all of the chunk `of_chunk` at the first, because its rows run across slivers.
    fn sliver<'b, K: Microkernel>(
        &self,
        kernel: K,
        sliver: &Sliver,
        of_chunk: Range<usize>,
        buffer: &'b mut Aligned,
        run: &mut Aligned,
    ) -> &'b [f32] {
        let depth = sliver.inner.len();
        let slivers = of_chunk.len().div_ceil(K::NR);
        let length = depth * K::NR;
        let packed = buffer.take(slivers * length);
        let source = &self.b;
        let at = sliver.index * length;
        if sliver.fresh {
            let (cols, inner) = (sliver.cols.clone(), sliver.inner.clone());
            match self.b_op {
                Op::Transpose => {
                    let out = (&mut packed[at..][..length], K::NR);
                    pack::pack_b_transposed(kernel, source, cols, inner, run, out);
                }
                Op::None if sliver.alone => {
                    pack::pack_b_plain(source, cols, inner, run, (&mut packed[at..][..length], K::NR));
                }
                Op::None if sliver.index == 0 => {
                    pack::pack_b_plain(source, of_chunk, inner, run, (&mut *packed, K::NR));
                }
                Op::None => {}
            }
        }
        &packed[at..][..length]
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
    /// Whether it is the only packed one: the edge of a B that is read in place.
    alone: bool,
}

/// Parts of A and B that the next block of the inner dimension needs, brought towards the caches a few rows at
/// a time while the tiles of this block are computed.
#[derive(Default)]
struct Ahead<'a> {
    parts: [Option<MatRef<'a>>; 2],
    tiles: usize,
    tile: usize,
}

impl<'a> Ahead<'a> {
    fn new(
        job: &Job<'a>,
        a_rows: Range<usize>,
        inner: Range<usize>,
        b_cols: Range<usize>,
        tiles: usize,
    ) -> Self {
        let a = (job.a_op == Op::None && job.row_map.is_none())
            .then(|| job.a.rows_range(a_rows.start, a_rows.len()).cols_range(inner.start, inner.len()));
        let b = match (job.b, job.b_op) {
            (Operand::F32(b), Op::None) if !b_cols.is_empty() => {
                Some(b.rows_range(inner.start, inner.len()).cols_range(b_cols.start, b_cols.len()))
            }
            _ => None,
        };
        Self { parts: [a, b], tiles, tile: 0 }
    }

    /// Called before each tile.
    fn fetch<K: Microkernel>(&mut self, kernel: K) {
        if self.tiles == 0 {
            return;
        }
        for part in self.parts.iter().flatten() {
            let until = |tile: usize| part.rows() * tile / self.tiles;
            (until(self.tile)..until(self.tile + 1)).for_each(|row| kernel.prefetch(part.row(row)));
        }
        self.tile += 1;
    }
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

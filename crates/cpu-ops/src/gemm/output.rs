//! A rectangle of the output that one task owns. `MatMut` can be split between rows only; tasks also need
//! columns, and a product computed as its transpose needs a view with the strides exchanged.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use crate::MatMut;

/// Exclusive access to the elements (row, col) of a rectangle, `row * row_stride + col * col_stride` from
/// its origin. No two live blocks share an element: the constructor takes a `MatMut`, and the methods give
/// out disjoint parts or borrow the whole.
pub(crate) struct Block<'a> {
    origin: *mut f32,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    owner: PhantomData<&'a mut f32>,
}

// SAFETY: a block is exclusive access to its elements, as `&mut [f32]` is (invariant above), and f32 is Send.
unsafe impl Send for Block<'_> {}

impl<'a> Block<'a> {
    /// All of `matrix`.
    pub(crate) fn new(mut matrix: MatMut<'a>) -> Self {
        let (rows, cols, row_stride) = (matrix.rows(), matrix.cols(), matrix.stride());
        Self {
            origin: matrix.data_mut().as_mut_ptr(),
            rows,
            cols,
            row_stride,
            col_stride: 1,
            owner: PhantomData,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }
    /// Elements from one column to the next: 1, unless this is a transposed view.
    pub(crate) fn col_stride(&self) -> usize {
        self.col_stride
    }
    /// Element (0, 0). Valid for reads and writes of the block's elements, and of nothing else.
    pub(crate) fn origin(&mut self) -> *mut f32 {
        self.origin
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self {
            origin: self.origin,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            owner: PhantomData,
        }
    }

    /// The part `rows` x `cols`, borrowed.
    pub(crate) fn part(&mut self, rows: Range<usize>, cols: Range<usize>) -> Block<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        let offset = if rows.is_empty() || cols.is_empty() {
            0
        } else {
            rows.start * self.row_stride + cols.start * self.col_stride
        };
        // SAFETY: offset is that of an element of this block (or 0), so it stays within the allocation that
        // `new` took the origin from.
        let origin = unsafe { self.origin.add(offset) };
        Block {
            origin,
            rows: rows.len(),
            cols: cols.len(),
            row_stride: self.row_stride,
            col_stride: self.col_stride,
            owner: PhantomData,
        }
    }

    /// All parts of a grid, row by row. The ranges of each dimension must not overlap.
    pub(crate) fn split(mut self, rows: &[Range<usize>], cols: &[Range<usize>]) -> Vec<Block<'a>> {
        assert!(rows.windows(2).all(|w| w[0].end <= w[1].start), "row ranges overlap");
        assert!(cols.windows(2).all(|w| w[0].end <= w[1].start), "column ranges overlap");
        let mut parts = Vec::with_capacity(rows.len() * cols.len());
        for r in rows {
            for c in cols {
                let Block { origin, rows, cols, row_stride, col_stride, .. } =
                    self.part(r.clone(), c.clone());
                // No longer borrowed from `self`: the ranges do not overlap (asserted), and `self` is consumed.
                parts.push(Block { origin, rows, cols, row_stride, col_stride, owner: PhantomData });
            }
        }
        parts
    }

    /// Element (row, col) becomes `alpha * sum + beta * old`; the old value is not read where beta is 0.
    pub(crate) fn update(&mut self, row: usize, col: usize, sum: f32, alpha: f32, beta: f32) {
        assert!(row < self.rows && col < self.cols);
        // SAFETY: (row, col) lies within the block (asserted), whose elements are ours alone.
        let c = unsafe { &mut *self.origin.add(row * self.row_stride + col * self.col_stride) };
        *c = combine(sum, alpha, beta, c);
    }

    /// One row, where columns are adjacent.
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows && self.col_stride == 1);
        if self.cols == 0 {
            return &mut [];
        }
        // SAFETY: the elements of row `row`, which are adjacent (asserted) and ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.origin.add(row * self.row_stride), self.cols) }
    }

    /// Multiplies every element by `beta`; 0 overwrites.
    pub(crate) fn scale(&mut self, beta: f32) {
        for row in 0..self.rows {
            for col in 0..self.cols {
                // SAFETY: as in `update`.
                let c = unsafe { &mut *self.origin.add(row * self.row_stride + col * self.col_stride) };
                *c = if beta == 0.0 { 0.0 } else { beta * *c };
            }
        }
    }
}

/// The one formula by which every path of the product joins a sum to an old value.
#[inline(always)]
pub(crate) fn combine(sum: f32, alpha: f32, beta: f32, old: &f32) -> f32 {
    if beta == 0.0 { alpha * sum } else { sum.mul_add(alpha, beta * *old) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_of_parts_covers_the_matrix_and_a_transposed_view_exchanges_indices() {
        let mut data = vec![0f32; 3 * 5];
        let block = Block::new(MatMut::with_stride(&mut data, 3, 4, 5).unwrap());
        for (i, mut part) in block.split(&[0..1, 1..3], &[0..3, 3..4]).into_iter().enumerate() {
            for row in 0..part.rows() {
                for col in 0..part.cols() {
                    part.update(row, col, 1.0 + i as f32, 1.0, 1.0);
                }
            }
        }
        assert_eq!(data, [1., 1., 1., 2., 0., 3., 3., 3., 4., 0., 3., 3., 3., 4., 0.]);
        let mut view = Block::new(MatMut::with_stride(&mut data, 3, 4, 5).unwrap()).transposed();
        view.part(3..4, 0..1).update(0, 0, 9.0, 1.0, 0.0);
        assert_eq!(data[3], 9.0);
    }
}

//! Matrix views: rows, columns and the distance between rows over a borrowed slice. They own nothing and
//! allocate nothing; element types are `f32` unless said otherwise.

use crate::{Error, Result};

/// A read-only row-major matrix: element (row, col) is `data[row * stride + col]`.
#[derive(Debug)]
pub struct MatRef<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A writable row-major matrix; see [`MatRef`].
#[derive(Debug)]
pub struct MatMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<T> Clone for MatRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for MatRef<'_, T> {}

/// Elements that a matrix of this layout spans, or why the layout is impossible.
fn span(operation: &'static str, rows: usize, cols: usize, stride: usize) -> Result<usize> {
    if stride < cols && rows > 1 {
        return Err(Error::Layout {
            operation,
            what: format!("stride {stride} is shorter than a row of {cols}"),
        });
    }
    if rows == 0 || cols == 0 {
        return Ok(0);
    }
    (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(cols)).ok_or_else(|| Error::Layout {
        operation,
        what: format!("{rows} x {cols} with stride {stride} overflows"),
    })
}

fn check(operation: &'static str, found: usize, rows: usize, cols: usize, stride: usize) -> Result<()> {
    let expected = span(operation, rows, cols, stride)?;
    if found < expected {
        return Err(Error::SliceLength { operation, operand: "data", rows, cols, stride, expected, found });
    }
    Ok(())
}

impl<'a, T> MatRef<'a, T> {
    /// A matrix without gaps between its rows.
    ///
    /// # Errors
    /// `data` holds fewer than `rows * cols` elements, or that product overflows.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Result<Self> {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A matrix whose rows are `stride` elements apart.
    ///
    /// # Errors
    /// `stride < cols`, `data` is too short, or the span overflows.
    pub fn with_stride(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Result<Self> {
        check("MatRef", data.len(), rows, cols, stride)?;
        Ok(Self { data, rows, cols, stride })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from the start of one row to the start of the next.
    pub fn stride(&self) -> usize {
        self.stride
    }
    /// The slice under the view, from element (0, 0) on.
    pub fn data(&self) -> &'a [T] {
        self.data
    }
    /// One row.
    ///
    /// # Panics
    /// `row` is not below [`rows`](Self::rows).
    pub fn row(&self, row: usize) -> &'a [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if self.cols == 0 { &[] } else { &self.data[row * self.stride..][..self.cols] }
    }
    /// The rows `start..start + rows`.
    ///
    /// # Panics
    /// The range does not lie within the matrix.
    pub fn rows_range(&self, start: usize, rows: usize) -> Self {
        assert!(start + rows <= self.rows, "rows {start}..{} of {}", start + rows, self.rows);
        let data = if rows == 0 || self.cols == 0 { &[] } else { &self.data[start * self.stride..] };
        Self { data, rows, cols: self.cols, stride: self.stride }
    }
    /// The columns `start..start + cols` of every row.
    ///
    /// # Panics
    /// The range does not lie within the matrix.
    pub fn cols_range(&self, start: usize, cols: usize) -> Self {
        assert!(start + cols <= self.cols, "columns {start}..{} of {}", start + cols, self.cols);
        let data = if self.rows == 0 || cols == 0 { &[] } else { &self.data[start..] };
        Self { data, rows: self.rows, cols, stride: self.stride }
    }
}

impl<'a, T> MatMut<'a, T> {
    /// A matrix without gaps between its rows.
    ///
    /// # Errors
    /// As [`MatRef::new`].
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Result<Self> {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A matrix whose rows are `stride` elements apart.
    ///
    /// # Errors
    /// As [`MatRef::with_stride`].
    pub fn with_stride(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Result<Self> {
        check("MatMut", data.len(), rows, cols, stride)?;
        Ok(Self { data, rows, cols, stride })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from the start of one row to the start of the next.
    pub fn stride(&self) -> usize {
        self.stride
    }
    /// The same matrix, read-only.
    pub fn as_ref(&self) -> MatRef<'_, T> {
        MatRef { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }
    /// The same matrix, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }
    /// The slice under the view, from element (0, 0) on.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.data
    }
    /// The slice under the view, for as long as the view itself lives.
    pub fn into_data(self) -> &'a mut [T] {
        self.data
    }
    /// One row.
    ///
    /// # Panics
    /// `row` is not below [`rows`](Self::rows).
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if self.cols == 0 { &mut [] } else { &mut self.data[row * self.stride..][..self.cols] }
    }
    /// Splits before row `at` into two matrices that can be written at the same time.
    ///
    /// # Panics
    /// `at` is above [`rows`](Self::rows).
    pub fn split_rows(self, at: usize) -> (MatMut<'a, T>, MatMut<'a, T>) {
        assert!(at <= self.rows, "split at {at} of {}", self.rows);
        let (rows, cols, stride) = (self.rows, self.cols, self.stride);
        let cut = (at * stride).min(self.data.len());
        let (top, bottom) = self.data.split_at_mut(cut);
        (MatMut { data: top, rows: at, cols, stride }, MatMut { data: bottom, rows: rows - at, cols, stride })
    }
    /// The columns `start..start + cols` of every row.
    ///
    /// # Panics
    /// The range does not lie within the matrix.
    pub fn cols_range(self, start: usize, cols: usize) -> MatMut<'a, T> {
        assert!(start + cols <= self.cols, "columns {start}..{} of {}", start + cols, self.cols);
        let data = if self.rows == 0 || cols == 0 { &mut [][..] } else { &mut self.data[start..] };
        MatMut { data, rows: self.rows, cols, stride: self.stride }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        let data = [0f32; 12];
        assert!(MatRef::new(&data, 3, 4).is_ok());
        assert!(MatRef::new(&data, 3, 5).is_err());
        assert!(MatRef::with_stride(&data, 3, 4, 3).is_err());
        assert!(MatRef::with_stride(&data, 2, 4, 8).is_ok());
        assert!(MatRef::<f32>::new(&[], usize::MAX, 2).is_err());
        assert!(MatRef::<f32>::new(&[], 1 << 33, 1 << 33).is_err());
        assert!(MatRef::<f32>::new(&[], 0, 7).is_ok());
    }

    #[test]
    fn ranges_and_splits_keep_the_stride() {
        let mut data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let m = MatRef::with_stride(&data, 3, 3, 4).unwrap();
        assert_eq!(m.rows_range(1, 2).cols_range(1, 2).row(1), &[9.0, 10.0]);
        let (mut top, mut bottom) = MatMut::with_stride(&mut data, 3, 3, 4).unwrap().split_rows(1);
        assert_eq!((top.rows(), bottom.rows()), (1, 2));
        assert_eq!(top.row_mut(0)[2], 2.0);
        assert_eq!(bottom.row_mut(1)[0], 8.0);
    }
}

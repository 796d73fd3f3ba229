//! Handing the rows of an output to threads: chunks of whole rows whose size depends on the shape only.

use crate::{Error, MatMut, MatRef, Result};

/// Elements that make a task worth handing out.
const ELEMENTS: usize = 1 << 14;

/// Rows of a task for rows of `cols` elements.
pub(crate) fn rows_per_task(cols: usize) -> usize {
    (ELEMENTS / cols.max(1)).max(1)
}

/// The matrix cut into chunks of `rows` rows, the last one shorter.
pub(crate) fn row_chunks<T>(matrix: MatMut<'_, T>, rows: usize) -> Vec<MatMut<'_, T>> {
    let mut chunks = Vec::with_capacity(matrix.rows().div_ceil(rows));
    let mut rest = matrix;
    while rest.rows() > rows {
        let (chunk, below) = rest.split_rows(rows);
        chunks.push(chunk);
        rest = below;
    }
    chunks.push(rest);
    chunks
}

/// The rows of `matrix` that belong to task `task` of `rows` rows each.
pub(crate) fn task_rows<'a, T>(matrix: MatRef<'a, T>, task: usize, rows: usize) -> MatRef<'a, T> {
    let start = task * rows;
    matrix.rows_range(start, rows.min(matrix.rows() - start))
}

/// An error unless the sizes agree.
pub(crate) fn expect(
    operation: &'static str,
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape { operation, what, expected, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_row_once() {
        for (rows, per_task) in [(0, 3), (1, 3), (3, 3), (4, 3), (9, 3)] {
            let mut data = vec![0.0f32; rows * 5];
            let source = data.clone();
            let source = MatRef::with_stride(&source, rows, 4, 5).unwrap();
            let matrix = MatMut::with_stride(&mut data, rows, 4, 5).unwrap();
            for (task, mut chunk) in row_chunks(matrix, per_task).into_iter().enumerate() {
                if rows > 0 {
                    assert_eq!(task_rows(source, task, per_task).rows(), chunk.rows());
                }
                (0..chunk.rows()).for_each(|row| chunk.row_mut(row).iter_mut().for_each(|x| *x += 1.0));
            }
            let sum: f32 = data.iter().sum();
            assert_eq!(sum, rows as f32 * 4.0);
        }
    }
}

//! Parts of A and B that will be needed next, brought towards the caches by the microkernels while they compute.
//!
//! A core keeps only about a dozen cache lines on their way from memory at a time, and stalls when it asks for
//! more. So the lines are dealt out evenly: to the tiles before the part is needed, and by each tile to its loop.

use std::ops::Range;

use crate::MatRef;

/// Cache lines of a piece, and the elements between the starts of two: enough for a row of a sliver of B that does
/// not start on a line.
pub(super) const LINES: usize = 4;
const PIECE: usize = LINES * 16;

/// Pieces of rows at one distance. A hint: nothing reads through it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) start: *const f32,
    /// Elements from one piece to the next.
    pub(super) stride: usize,
    pub(super) count: usize,
}

impl Run {
    const NONE: Self = Self { start: std::ptr::null(), stride: 0, count: 0 };
}

/// A part of a matrix that is dealt out to tiles, in columns of pieces.
pub(super) struct Ahead {
    origin: *const f32,
    stride: usize,
    rows: usize,
    pieces: usize,
    passed: usize,
    tiles: usize,
    tile: usize,
}

impl Ahead {
    /// Nothing.
    pub(super) const NONE: Self =
        Self { origin: std::ptr::null(), stride: 0, rows: 0, pieces: 0, passed: 0, tiles: 0, tile: 0 };

    /// The `rows` x `cols` of `matrix`, to be dealt out to `tiles` tiles.
    pub(super) fn new(matrix: MatRef<'_>, rows: Range<usize>, cols: Range<usize>, tiles: usize) -> Self {
        let part = matrix.rows_range(rows.start, rows.len()).cols_range(cols.start, cols.len());
        let pieces = part.rows() * part.cols().div_ceil(PIECE);
        let (origin, stride) = (part.data().as_ptr(), part.stride());
        Self { origin, stride, rows: part.rows(), pieces, passed: 0, tiles, tile: 0 }
    }

    /// The share of the next tile.
    pub(super) fn next_tile(&mut self) -> Run {
        self.tile += 1;
        if self.tile > self.tiles || self.passed == self.pieces {
            return Run::NONE;
        }
        let (col, row) = (self.passed / self.rows, self.passed % self.rows);
        let due = self.pieces * self.tile / self.tiles - self.passed;
        // Not beyond a column: what is left over is the next tile's.
        let count = due.min(self.rows - row);
        self.passed += count;
        Run { start: self.origin.wrapping_add(row * self.stride + col * PIECE), stride: self.stride, count }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_of_a_part_is_asked_for_over_its_tiles() {
        let data = vec![0f32; 40 * 100];
        let matrix = MatRef::with_stride(&data, 40, 90, 100).unwrap();
        let line_of = |p: *const f32| p as usize / 64;
        let part = matrix.rows_range(3, 30).cols_range(7, 48);
        for tiles in [2, 7, 200] {
            let mut ahead = Ahead::new(matrix, 3..33, 7..55, tiles);
            let mut found = BTreeSet::new();
            for _ in 0..tiles {
                let run = ahead.next_tile();
                assert!(run.count <= 30, "one column at most");
                for piece in 0..run.count {
                    let at = run.start.wrapping_add(piece * run.stride);
                    found.extend((0..LINES).map(|line| line_of(at.wrapping_add(line * 16))));
                }
            }
            assert!((0..30).flat_map(|r| part.row(r)).all(|x| found.contains(&line_of(x))), "{tiles}");
            assert_eq!(ahead.next_tile().count, 0);
        }
        let mut none = Ahead::NONE;
        assert_eq!(none.next_tile().count, 0);
    }
}

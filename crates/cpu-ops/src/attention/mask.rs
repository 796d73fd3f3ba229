//! Which keys a query sees, as ranges: of a query, and of a tile.

use std::ops::Range;

/// Queries of a tile.
pub(super) const ROWS: usize = 64;
/// Keys of a tile.
pub(super) const COLS: usize = 64;
/// Queries, or keys, that a product takes at a time. Tiles hold whole groups.
pub(super) const GROUP: usize = 8;
/// Granularity of column ranges: a vector of the widest instructions.
const LANES: usize = 16;

/// The mask of a call.
#[derive(Clone, Copy)]
pub(super) struct Mask<'a> {
    pub(super) starts: &'a [u32],
    /// Keys before the first query.
    pub(super) earlier: usize,
}

/// What one group of queries sees of one tile of keys; columns count from the tile's first key.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    /// For each query its columns `from..to`; empty for rows beyond the last query.
    pub(super) rows: [(u32, u32); GROUP],
    /// The columns that any of the group sees.
    pub(super) from: usize,
    /// End of them.
    pub(super) to: usize,
}

impl Seen {
    pub(super) fn is_empty(&self) -> bool {
        self.from >= self.to
    }

    /// The columns rounded outwards to whole vectors.
    pub(super) fn vectors(&self) -> Range<usize> {
        self.from / LANES * LANES..self.to.next_multiple_of(LANES)
    }
}

impl Mask<'_> {
    /// All keys that the queries of a range see.
    pub(super) fn keys_of(&self, queries: Range<usize>) -> Range<usize> {
        self.starts[queries.start] as usize..self.earlier + queries.end
    }

    /// What the group of queries from `first` on, of which those below `end` exist, sees of the tile of keys from
    /// `tile_start` on.
    pub(super) fn seen(&self, first: usize, end: usize, tile_start: usize) -> Seen {
        let mut seen = Seen { rows: [(0, 0); GROUP], from: COLS, to: 0 };
        for (row, query) in (first..end.min(first + GROUP)).enumerate() {
            let from = (self.starts[query] as usize).saturating_sub(tile_start);
            let to = (self.earlier + query + 1).saturating_sub(tile_start).min(COLS);
            if from < to {
                seen.rows[row] = (from as u32, to as u32);
                seen.from = seen.from.min(from);
                seen.to = seen.to.max(to);
            }
        }
        seen
    }
}

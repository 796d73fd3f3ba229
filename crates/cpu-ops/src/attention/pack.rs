//! Keys and values copied into the layouts that tile products read: once for a call, and used by every query
//! tile and every query head of a group.

use super::AttentionShape;
use super::mask::COLS;
use crate::simd::{Simd, multiversion};
use crate::{MatRef, Threads};

/// One matrix of all key heads, in tiles of [`COLS`] tokens; what lies beyond the last token or beyond
/// `head_dim` is zero.
pub(super) struct Packed {
    data: Vec<f32>,
    tiles: usize,
    tile_len: usize,
}

impl Packed {
    /// Tiles as `[COLS, width]`, a token's elements together.
    pub(super) fn rows(threads: &Threads, shape: &AttentionShape, source: MatRef<'_>) -> Self {
        let width = shape.width();
        Self::new(threads, shape, source, COLS * width, |_, source, column, tile| {
            for (row, out) in tile.chunks_exact_mut(width).enumerate().take(source.rows()) {
                out[..shape.head_dim].copy_from_slice(&source.row(row)[column..][..shape.head_dim]);
            }
        })
    }

    /// Tiles as `[head_dim, COLS]`, an element of all tokens together.
    pub(super) fn transposed(threads: &Threads, shape: &AttentionShape, source: MatRef<'_>) -> Self {
        Self::new(threads, shape, source, shape.head_dim * COLS, |simd, source, column, tile| {
            transpose(simd, source, column, tile);
        })
    }

    fn new(
        threads: &Threads,
        shape: &AttentionShape,
        source: MatRef<'_>,
        tile_len: usize,
        fill: impl Fn(Simd, MatRef<'_>, usize, &mut [f32]) + Sync,
    ) -> Self {
        let tiles = source.rows().div_ceil(COLS);
        let mut data = vec![0.0; shape.kv_heads * tiles * tile_len];
        let simd = Simd::detect();
        threads.run_on(data.chunks_exact_mut(tile_len).collect(), |index, tile| {
            let (head, start) = (index / tiles, index % tiles * COLS);
            let rows = source.rows_range(start, COLS.min(source.rows() - start));
            fill(simd, rows, head * shape.head_dim, tile);
        });
        Self { data, tiles, tile_len }
    }

    /// The tile of one key head that starts at token `tile * COLS`.
    pub(super) fn tile(&self, kv_head: usize, tile: usize) -> &[f32] {
        &self.data[(kv_head * self.tiles + tile) * self.tile_len..][..self.tile_len]
    }
}

multiversion! {
    fn transpose(source: MatRef<'_>, column: usize, tile: &mut [f32]) = transpose_body;
}

/// Sixteen tokens at a time: their rows stay in the first cache while each line of the tile is written.
#[inline(always)]
fn transpose_body(source: MatRef<'_>, column: usize, tile: &mut [f32]) {
    const TOKENS: usize = 16;
    let head_dim = tile.len() / COLS;
    for first in (0..source.rows()).step_by(TOKENS) {
        let count = TOKENS.min(source.rows() - first);
        let mut rows = [&[][..]; TOKENS];
        for (i, row) in rows.iter_mut().enumerate() {
            // Rows beyond the last repeat it here; they are not copied out below.
            *row = &source.row(first + i.min(count - 1))[column..][..head_dim];
        }
        for (d, line) in tile.chunks_exact_mut(COLS).enumerate() {
            let mut values = [0.0; TOKENS];
            for (value, row) in values.iter_mut().zip(rows) {
                *value = row[d];
            }
            line[first..first + count].copy_from_slice(&values[..count]);
        }
    }
}

//! Block sizes, and how an output is cut into tasks. Letters as in the literature on blocked products:
//! C is M x N, the inner dimension is K; KC, MC and NC are the block lengths along them.
//!
//! Whatever touches the order of a sum (KC, and the parts of a deep product) depends on the sizes alone. Whatever
//! depends on the number of threads only decides who computes which elements of C. That is why a result has the
//! same bytes on any number of threads.

use std::ops::Range;

/// Longest block of the inner dimension: C is read and written once per KC products. A panel of A (9 x KC, 14 KiB)
/// and what is in use of a sliver of B (KC x 48, 72 KiB, asked for a few rows ahead) pass through the first-level
/// cache. Blocks of 192, 256, 512 and 640 were measured to be slower or the same.
pub(crate) const KC: usize = 384;

/// Elements from one row of packed A to the next: KC and a cache line, so that rows do not fall into the
/// same cache sets. A constant, so that a microkernel addresses its rows by displacement.
pub(super) const A_STRIDE: usize = KC + 16;

/// Rows of A packed at a time: 256 x 400 x 4 bytes = 400 KiB of a second-level cache.
pub(crate) const MC: usize = 256;

/// Most columns of B packed at a time: 384 x 768 x 4 bytes = 1.1 MiB.
pub(super) const NC: usize = 768;

/// Products with at most this many rows against a transposed B are sums along contiguous rows of B, so B
/// is read once and packed never (generation has one row).
pub(super) const DOT_ROWS: usize = 4;

/// A product at least this deep whose C is small is cut along the inner dimension.
const DEEP: usize = 16 * KC;
const DEEP_OUTPUT: usize = 1 << 19;
/// Tasks that it is cut into: the more, the better a thread that is held up can be helped.
const DEEP_TASKS: usize = 16;
/// Elements of all copies of C, one for each part of the inner dimension: 16 MiB.
const DEEP_COPIES: usize = 1 << 22;

/// Multiply-adds under which a second thread costs more than it saves (about 10 microseconds).
const SERIAL_WORK: usize = 1 << 18;

/// The blocks of the inner dimension, in order: `(start, length)`. They depend on `k` alone; lengths are
/// multiples of 16 except for the last.
pub(super) fn inner_blocks(k: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = k.div_ceil(KC).max(1);
    let length = k.div_ceil(count).next_multiple_of(16);
    (0..k).step_by(length.max(1)).map(move |start| (start, length.min(k - start)))
}

/// The parts that the inner dimension of a product is cut into: one, or for a deep product with a small output
/// several whose sums are added in order, so that no part of A or B is packed by two tasks.
pub(super) fn deep_parts(k: usize, (rows, cols): (usize, usize)) -> Vec<Range<usize>> {
    let outputs = rows.saturating_mul(cols);
    if k < DEEP || outputs == 0 || outputs > DEEP_OUTPUT {
        return cuts(k, KC, 1);
    }
    cuts(k, KC, (DEEP_TASKS / rows.div_ceil(MC)).min(DEEP_COPIES / outputs).max(2))
}

/// Cuts `0..extent` into `parts` ranges of nearly equal length whose borders are multiples of `unit`.
pub(crate) fn cuts(extent: usize, unit: usize, parts: usize) -> Vec<Range<usize>> {
    let units = extent.div_ceil(unit);
    let parts = parts.clamp(1, units.max(1));
    let border = |i: usize| (units / parts * i + (units % parts) * i / parts) * unit;
    (0..parts).map(|i| border(i).min(extent)..border(i + 1).min(extent)).collect()
}

/// What cutting an output costs: each part along one dimension packs the other operand again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Relative cost of packing an element of A.
    pub(super) pack_a: usize,
    /// Relative cost of packing an element of B.
    pub(super) pack_b: usize,
}

/// Parts along M and along N for `threads` threads and tiles of `mr` x `nr`.
pub(super) fn grid(
    (m, n, k): (usize, usize, usize),
    (mr, nr): (usize, usize),
    threads: usize,
    cost: Cost,
) -> (usize, usize) {
    let work = m.saturating_mul(n).saturating_mul(k);
    if threads == 1 || work < SERIAL_WORK {
        return (1, 1);
    }
    // Two parts a thread where there is enough to do, so that a thread that was held up can be helped.
    let parts = if work >= SERIAL_WORK * 64 { threads * 2 } else { threads };
    let (panels, slivers) = (m.div_ceil(mr), n.div_ceil(nr));
    let prefer_rows = n.saturating_mul(cost.pack_b) < m.saturating_mul(cost.pack_a);
    if prefer_rows {
        let rows = parts.min(panels);
        (rows, parts.div_ceil(rows).min(slivers))
    } else {
        let cols = parts.min(slivers);
        (parts.div_ceil(cols).min(panels), cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_blocks_cover_k_once_in_order() {
        for k in [0, 1, 15, 16, 17, 383, 384, 385, 576, 1000, 1536, 49152, 49153] {
            let mut next = 0;
            for (start, length) in inner_blocks(k) {
                assert_eq!(start, next);
                assert!(length > 0 && length <= KC);
                next += length;
            }
            assert_eq!(next, k);
        }
    }

    #[test]
    fn cuts_cover_the_extent_on_unit_borders() {
        for extent in [0, 1, 31, 32, 33, 576, 1 << 34] {
            for parts in 1..=9 {
                let ranges = cuts(extent, 32, parts);
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges.last().unwrap().end, extent);
                assert!(ranges.windows(2).all(|w| w[0].end == w[1].start && w[1].start % 32 == 0));
                assert!(extent == 0 || ranges.iter().all(|r| !r.is_empty()));
            }
        }
    }
}

//! Causal attention with grouped heads over the tokens of several samples that stand one after another, in
//! tiles with a running softmax (Dao et al., "FlashAttention", 2022): no matrix of tokens x tokens exists.
//!
//! Query `i` sees the keys `starts[i] ..= keys - queries + i`. With `starts[i]` the first token of its sample the
//! mask is block-diagonal; with `max(that, i + 1 - window)` it is a sliding window of `window` tokens, the query
//! itself included; fewer queries than keys is decoding with a cache.
//!
//! Scores that are masked are no part of any sum: changing one sample leaves the bits of all others alone (as
//! long as its values are finite: a weight of zero times infinity is NaN). Work is split over query tiles
//! (forward) and heads (backward), sums have a fixed order, so the number of threads changes nothing. The
//! instructions do: the products are fused multiply-adds where the CPU has them.

mod backward;
mod few;
mod forward;
mod mask;
mod pack;
mod product;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

pub use backward::{AttentionGrads, backward};
pub use forward::forward;

use crate::row_tasks::expect;
use crate::{Error, MatRef, Result};

/// The heads of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads that stand together.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// What scores are multiplied by, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
}

impl AttentionShape {
    /// Checks the shape itself and its operands against it.
    fn check(
        &self,
        operation: &'static str,
        starts: &[u32],
        q: MatRef<'_>,
        k: MatRef<'_>,
        v: MatRef<'_>,
    ) -> Result<()> {
        if self.kv_heads == 0 || self.head_dim == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::Unsupported {
                operation,
                parameter: "heads, kv_heads, head_dim",
                value: format!("{}, {}, {}", self.heads, self.kv_heads, self.head_dim),
                supported: "none may be 0, and each key head serves the same number of query heads",
            });
        }
        let columns = |heads: usize| heads.saturating_mul(self.head_dim);
        expect(operation, "columns of q", columns(self.heads), q.cols())?;
        expect(operation, "columns of k", columns(self.kv_heads), k.cols())?;
        expect(operation, "columns of v", columns(self.kv_heads), v.cols())?;
        expect(operation, "rows of v", k.rows(), v.rows())?;
        expect(operation, "number of starts", q.rows(), starts.len())?;
        if k.rows() < q.rows() {
            return Err(Error::Shape { operation, what: "rows of k", expected: q.rows(), found: k.rows() });
        }
        let earlier = k.rows() - q.rows();
        for (row, &start) in starts.iter().enumerate() {
            let limit = earlier + row + 1;
            if start as usize >= limit {
                let index = start.into();
                return Err(Error::Index { operation, what: "start", index, row, limit });
            }
            if row > 0 && starts[row - 1] > start {
                let what = format!("starts must ascend, {start} at row {row} follows {}", starts[row - 1]);
                return Err(Error::Layout { operation, what });
            }
        }
        Ok(())
    }

    /// Query heads of a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// `head_dim` rounded up to whole vectors: the row length of tiles.
    fn width(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }
}

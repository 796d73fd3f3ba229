//! Microkernels: the innermost loops, one file for each instruction set.
//!
//! Holding the proof of an instruction set ([`crate::simd`]) is what lets one call its microkernel: the trait is
//! implemented for the proofs. To add one: a file here, and its line in each `match` on [`Simd`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod portable;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::ahead::Run;
use super::output::Block;
use crate::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// One tile of the product: `c = alpha * a * b + beta * c`.
pub(super) struct Tile<'t> {
    /// `c.rows()` rows of `depth` elements, [`A_STRIDE`](super::blocks::A_STRIDE) apart; at most MR rows.
    pub(super) a: &'t [f32],
    /// `depth` rows of b, `b_stride` apart.
    pub(super) b: &'t [f32],
    pub(super) b_stride: usize,
    /// Where the rows of b are copied to on the way, `NR` apart; only for tiles of NR columns.
    pub(super) copy: Option<&'t mut [f32]>,
    /// Length of the sums.
    pub(super) depth: usize,
    pub(super) alpha: f32,
    pub(super) beta: f32,
    /// Where the tile goes; at most NR columns.
    pub(super) c: Block<'t>,
    /// What is asked for meanwhile.
    pub(super) ahead: [Run; 2],
}

/// What the blocked loops need from an instruction set. Every element of a tile is one chain of fused
/// multiply-adds in the order of `depth`, whatever the tile's size.
pub(super) trait Microkernel: Copy + Send + Sync + 'static {
    /// Most rows of a tile.
    const MR: usize;
    /// Most columns of a tile, and the width of a packed sliver of B.
    const NR: usize;
    /// Elements of a vector; rows of `b` are readable in whole vectors.
    const LANES: usize;

    /// Computes one tile. Rows of `b` must be readable up to the next multiple of `LANES` columns.
    fn tile(self, tile: Tile<'_>);

    /// `dst[col * dst_stride + row] = src[row * src_stride + col]` for `rows` x `cols` elements.
    fn transpose(self, src: (&[f32], usize), dst: (&mut [f32], usize), rows: usize, cols: usize);

    /// The sum of products of two slices of one length; its order depends on the length alone.
    fn dot(self, x: &[f32], y: &[f32]) -> f32;
}

/// The loop by which [`crate::ceiling`] measures what a microkernel could reach.
pub(crate) trait MultiplyAdds {
    /// Runs `rounds` times as many independent multiply-adds as hide their latency, on registers only; returns
    /// the number of floating-point operations.
    fn multiply_adds(self, rounds: usize) -> usize;
}

/// Rows and columns of a tile with these instructions.
pub(super) fn tile_size(simd: Simd) -> (usize, usize) {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(_) => (Avx512::MR, Avx512::NR),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2(_) => (Avx2::MR, Avx2::NR),
        _ => (8, 8),
    }
}

/// The sum of products of two slices of one length; its order depends on the length alone.
pub(super) fn dot(simd: Simd, x: &[f32], y: &[f32]) -> f32 {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(kernel) => kernel.dot(x, y),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2(kernel) => kernel.dot(x, y),
        _ => portable::dot(x, y),
    }
}

/// Checks what [`Microkernel::tile`] is promised; the microkernels' unsafe code relies on it.
fn check_tile<K: Microkernel>(tile: &Tile<'_>) {
    let (rows, cols) = (tile.c.rows(), tile.c.cols());
    assert!(rows <= K::MR && cols <= K::NR && rows > 0 && cols > 0, "tile of {rows} x {cols}");
    if tile.depth > 0 {
        let a_span = (rows - 1) * super::blocks::A_STRIDE + tile.depth;
        assert!(tile.a.len() >= a_span, "packed A of {} for {a_span}", tile.a.len());
        let b_span = (tile.depth - 1) * tile.b_stride + cols.next_multiple_of(K::LANES);
        assert!(tile.b.len() >= b_span, "B of {} for {b_span}", tile.b.len());
    }
    if let Some(copy) = &tile.copy {
        assert!(cols == K::NR && copy.len() >= tile.depth * K::NR, "copy of {} columns", cols);
    }
}

/// Checks what [`Microkernel::transpose`] is promised.
fn check_transpose(src: (usize, usize), dst: (usize, usize), rows: usize, cols: usize) {
    assert!(rows > 0 && cols > 0);
    assert!(src.1 >= cols || rows == 1);
    assert!(dst.1 >= rows || cols == 1);
    assert!(src.0 >= (rows - 1) * src.1 + cols, "source of {} for {rows} x {cols}", src.0);
    assert!(dst.0 >= (cols - 1) * dst.1 + rows, "destination of {} for {cols} x {rows}", dst.0);
}

/// The sum of one vector's lanes, by halves.
fn sum_lanes<const N: usize>(mut lane: [f32; N]) -> f32 {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            lane[i] += lane[i + half];
        }
        half /= 2;
    }
    lane[0]
}

//! Matrix products `C = alpha op(A) op(B) + beta C` with A and C in f32 and B in f32, f16, bf16 or NF4.
//!
//! This file holds the interface and the plan (checks, which path, which task computes which rectangle of C).
//! `product` has the blocked loops, `pack` the copying into their order, `microkernel` the innermost loops
//! for each instruction set, `ahead` what they ask the memory for meanwhile, `dot` the path for a few rows, `blocks` the sizes, `output` the rectangles of C.

mod ahead;
pub(crate) mod blocks;
mod dot;
mod microkernel;
pub(crate) mod output;
pub(crate) mod pack;
pub(crate) mod product;
#[cfg(test)]
mod tests;

use std::ops::Range;

use half::{bf16, f16};

use crate::nf4::Nf4;
use crate::simd::Simd;
use crate::{Error, MatMut, MatRef, Result, Threads};
use blocks::{Cost, MC};
#[cfg(target_arch = "x86_64")]
pub(crate) use microkernel::MultiplyAdds;
use output::Block;
use pack::Aligned;
use product::Job;

/// Whether a factor stands as it is stored, or transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// As stored.
    None,
    /// Rows and columns exchanged.
    Transpose,
}

/// A matrix in one of the types that the right side of a product can have.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Operand<'a> {
    /// 32-bit floats.
    F32(MatRef<'a, f32>),
    /// IEEE half precision.
    F16(MatRef<'a, f16>),
    /// bfloat16.
    Bf16(MatRef<'a, bf16>),
    /// Four bits an element, without a stride.
    Nf4(Nf4<'a>),
}

impl Operand<'_> {
    /// Number of rows as stored.
    pub fn rows(&self) -> usize {
        match self {
            Self::F32(m) => m.rows(),
            Self::F16(m) => m.rows(),
            Self::Bf16(m) => m.rows(),
            Self::Nf4(m) => m.rows(),
        }
    }

    /// Number of columns as stored.
    pub fn cols(&self) -> usize {
        match self {
            Self::F32(m) => m.cols(),
            Self::F16(m) => m.cols(),
            Self::Bf16(m) => m.cols(),
            Self::Nf4(m) => m.cols(),
        }
    }
}

/// A matrix as it takes part in a product: `matrix.into()` as stored, [`Factor::t`] transposed.
#[derive(Debug, Clone, Copy)]
pub struct Factor<M> {
    /// The matrix as stored.
    pub matrix: M,
    /// How it takes part.
    pub op: Op,
}

impl<M> Factor<M> {
    /// `matrix` transposed.
    pub fn t(matrix: M) -> Self {
        Self { matrix, op: Op::Transpose }
    }
}

impl<'a> From<MatRef<'a>> for Factor<MatRef<'a>> {
    fn from(matrix: MatRef<'a>) -> Self {
        Self { matrix, op: Op::None }
    }
}
impl<'a> From<Operand<'a>> for Factor<Operand<'a>> {
    fn from(matrix: Operand<'a>) -> Self {
        Self { matrix, op: Op::None }
    }
}

/// The conversions of one storage type of B.
macro_rules! operand {
    ($variant:ident, $matrix:ty) => {
        impl<'a> From<$matrix> for Operand<'a> {
            fn from(matrix: $matrix) -> Self {
                Self::$variant(matrix)
            }
        }
        impl<'a> From<$matrix> for Factor<Operand<'a>> {
            fn from(matrix: $matrix) -> Self {
                Self { matrix: matrix.into(), op: Op::None }
            }
        }
        impl<'a> From<Factor<$matrix>> for Factor<Operand<'a>> {
            fn from(factor: Factor<$matrix>) -> Self {
                Self { matrix: factor.matrix.into(), op: factor.op }
            }
        }
    };
}
operand!(F32, MatRef<'a, f32>);
operand!(F16, MatRef<'a, f16>);
operand!(Bf16, MatRef<'a, bf16>);
operand!(Nf4, Nf4<'a>);

/// Rows and columns of a factor with its operation applied.
fn applied(rows: usize, cols: usize, op: Op) -> (usize, usize) {
    match op {
        Op::None => (rows, cols),
        Op::Transpose => (cols, rows),
    }
}

/// `C = alpha op(A) op(B) + beta C`, where op(A) is [rows, inner], op(B) is [inner, cols] and C is
/// [rows, cols].
///
/// - `beta = 0` overwrites C without reading it. No other value is a shortcut: `alpha = 0` multiplies the
///   sums by 0, so a NaN or an infinity in A or B still reaches C.
/// - The bytes of C do not depend on the number of threads, nor on the storage type of B among those that hold
///   the same values.
/// - Each element is a chain of fused multiply-adds along the inner dimension, cut into blocks: its error is
///   at most `inner * 2^-24 * sum |a b|`, plus the roundings of alpha and beta. The portable path differs in
///   the order of the chain.
///
/// The linear layer of a transformer with its weight stored `[out, in]`:
/// ```
/// use cpu_ops::{MatMut, MatRef, Threads, gemm::{Factor, gemm}};
/// let threads = Threads::new(2)?;
/// let x = MatRef::new(&[1.0, 2.0, 3.0, 4.0], 2, 2)?;          // [tokens, in]
/// let w = MatRef::new(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 3, 2)?; // [out, in]
/// let mut y = [f32::NAN; 6];
/// gemm(&threads, 1.0, x, Factor::t(w), 0.0, MatMut::new(&mut y, 2, 3)?)?;
/// assert_eq!(y, [1.0, 2.0, 3.0, 3.0, 4.0, 7.0]);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// The sizes of A, B and C do not fit each other.
pub fn gemm<'a, 'b>(
    threads: &Threads,
    alpha: f32,
    a: impl Into<Factor<MatRef<'a>>>,
    b: impl Into<Factor<Operand<'b>>>,
    beta: f32,
    c: MatMut<'_>,
) -> Result<()> {
    gemm_on(Simd::detect(), threads, alpha, a.into(), b.into(), beta, c)
}

/// [`gemm`] with given instructions.
fn gemm_on(
    simd: Simd,
    threads: &Threads,
    alpha: f32,
    a: Factor<MatRef<'_>>,
    b: Factor<Operand<'_>>,
    beta: f32,
    c: MatMut<'_>,
) -> Result<()> {
    let (rows, depth) = applied(a.matrix.rows(), a.matrix.cols(), a.op);
    let (b_rows, cols) = applied(b.matrix.rows(), b.matrix.cols(), b.op);
    for (what, expected, found) in [
        ("inner dimension of B", depth, b_rows),
        ("rows of C", rows, c.rows()),
        ("columns of C", cols, c.cols()),
    ] {
        if expected != found {
            return Err(Error::Shape { operation: "gemm", what, expected, found });
        }
    }
    let job = Job {
        simd,
        alpha,
        a: a.matrix,
        a_op: a.op,
        row_map: None,
        first: 0,
        b: b.matrix,
        b_op: b.op,
        depth,
        beta,
    };
    run(threads, &job, Block::new(c));
    Ok(())
}

/// Computes a job whose sizes are checked: chooses the path and hands rectangles of C to the threads.
pub(crate) fn run(threads: &Threads, job: &Job<'_>, c: Block<'_>) {
    let (rows, cols) = (c.rows(), c.cols());
    if rows == 0 || cols == 0 {
        return;
    }
    if dot::serves(rows, job.b_op) && job.depth > 0 && job.row_map.is_none() {
        return run_dot(threads, job, c);
    }
    // A transposed A with a narrow B (LoRA's weight gradients): of the two matrices it is the narrow one that
    // should be transposed, so compute Cᵀ = op(B)ᵀ op(A)ᵀ, with A in the place that is read as it lies.
    if let (Operand::F32(b), Op::Transpose) = (job.b, job.a_op)
        && cols < rows
    {
        let (a_op, b_op) = (flip(job.b_op), Op::None);
        let flipped = Job { a: b, a_op, b: Operand::F32(job.a), b_op, ..*job };
        return run_blocked(threads, &flipped, c.transposed());
    }
    run_blocked(threads, job, c);
}

fn flip(op: Op) -> Op {
    match op {
        Op::None => Op::Transpose,
        Op::Transpose => Op::None,
    }
}

fn run_blocked(threads: &Threads, job: &Job<'_>, c: Block<'_>) {
    let (rows, cols) = (c.rows(), c.cols());
    let parts = blocks::deep_parts(job.depth, (rows, cols));
    if parts.len() > 1 {
        return run_deep(threads, job, &parts, c);
    }
    // Copying runs costs about a quarter of transposing or widening them.
    let cost = Cost {
        pack_a: if job.a_op == Op::None { 1 } else { 4 },
        pack_b: if job.b_op == Op::None && matches!(job.b, Operand::F32(_)) { 1 } else { 4 },
    };
    let tile = microkernel::tile_size(job.simd);
    let (row_parts, col_parts) = blocks::grid((rows, cols, job.depth), tile, threads.count(), cost);
    if row_parts * col_parts == 1 {
        return job.run((0, 0), c);
    }
    let row_cuts = blocks::cuts(rows, tile.0, row_parts);
    let col_cuts = blocks::cuts(cols, tile.1, col_parts);
    let parts = c.split(&row_cuts, &col_cuts);
    threads.run_on(parts, |index, part| {
        let at = (row_cuts[index / col_cuts.len()].start, col_cuts[index % col_cuts.len()].start);
        job.run(at, part);
    });
}

/// A product whose inner dimension is cut: each task computes some rows of C over one part, and the parts are added
/// in their order.
fn run_deep(threads: &Threads, job: &Job<'_>, inner: &[Range<usize>], c: Block<'_>) {
    let (rows, cols) = (c.rows(), c.cols());
    let size = rows * cols;
    let mut sums = Aligned::default();
    let sums = sums.take(inner.len() * size);
    let row_blocks = blocks::cuts(rows, 1, rows.div_ceil(MC));
    let mut tasks = Vec::with_capacity(inner.len() * row_blocks.len());
    let mut left = &mut *sums;
    for part in inner {
        for block in &row_blocks {
            let sums;
            (sums, left) = left.split_at_mut(block.len() * cols);
            tasks.push((part, block, sums));
        }
    }
    threads.run_on(tasks, |_, (part, block, sums)| {
        let part = Job { first: job.first + part.start, depth: part.len(), alpha: 1.0, beta: 0.0, ..*job };
        let sums = MatMut::new(sums, block.len(), cols).expect("split with this length");
        part.run((block.start, 0), Block::new(sums));
    });
    let row_cuts = blocks::cuts(rows, 1, rows.div_ceil(16));
    let parts = c.split(&row_cuts, std::slice::from_ref(&(0..cols)));
    threads.run_on(parts, |index, mut c| {
        for row in 0..c.rows() {
            for col in 0..cols {
                let at = (row_cuts[index].start + row) * cols + col;
                let sum = sums[at..].iter().step_by(size).fold(0.0, |sum, part| sum + part);
                c.update(row, col, sum, job.alpha, job.beta);
            }
        }
    });
}

fn run_dot(threads: &Threads, job: &Job<'_>, c: Block<'_>) {
    let (rows, cols) = (c.rows(), c.cols());
    let gathered: Vec<f32>;
    let x = match job.a_op {
        Op::None => job.a,
        Op::Transpose => {
            gathered = (0..rows).flat_map(|row| (0..job.depth).map(move |p| job.a.row(p)[row])).collect();
            MatRef::new(&gathered, rows, job.depth).expect("collected to this size")
        }
    };
    let (_, parts) =
        blocks::grid((1, cols, job.depth), (1, 16), threads.count(), Cost { pack_a: 1, pack_b: 1 });
    let cuts = blocks::cuts(cols, 16, parts);
    let blocks = c.split(std::slice::from_ref(&(0..rows)), &cuts);
    threads.run_on(blocks, |index, part| {
        dot::run(job.simd, job.alpha, x, &job.b, cuts[index].start, job.beta, part);
    });
}

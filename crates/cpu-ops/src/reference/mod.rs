//! Naive oracles: each operation written down once more, slowly and obviously, in f64 where rounding matters.
//! Tests of this crate and of those above compare with them; nothing else should call them. Matrices are slices
//! in row-major order without gaps.

pub mod attention;
pub mod gemm;
pub mod lm_head;
pub mod nf4;
pub mod norm;
pub mod optimiser;
pub mod rope;
pub mod swiglu;

#[cfg(test)]
pub(crate) mod finite_differences;

/// Largest relative error of one rounding to f32.
pub const UNIT_ROUNDOFF: f64 = f64::EPSILON * (1u64 << 28) as f64;

//! Arithmetic on slices and matrix views for transformer fine-tuning on the CPU: blocked products whose
//! right side may be f32, f16, bf16 or NF4, the operations of a transformer block forward and backward, the
//! one-pass lm_head with its loss, and the optimiser step.
//!
//! This crate knows nothing of models, files, training loops or CUDA.
//!
//! Results do not depend on the number of threads: work is split over outputs, and every reduction has a
//! fixed order.
#![deny(unsafe_code)]

pub mod attention;
pub mod cast;
pub mod ceiling;
pub mod embedding;
mod error;
mod exp;
pub mod gemm;
pub mod gguf;
pub mod lm_head;
mod matrix;
pub mod nf4;
pub mod norm;
pub mod optimiser;
pub mod reference;
pub mod rope;
mod row_tasks;
mod simd;
pub mod swiglu;
mod threads;

pub use error::Error;
pub use matrix::{MatMut, MatRef};
pub use threads::Threads;

/// What every fallible function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

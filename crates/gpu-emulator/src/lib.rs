//! A CUDA driver in software, for tests on machines without a GPU.
//!
//! The crate is two things. Its shared library is what a program opens in place of `libcuda`; its Rust
//! side installs that library in a test process:
//!
//! ```no_run
//! let emulator = gpu_emulator::install()?;
//! emulator.set("GPU_EMULATOR_RACECHECK", "on")?;
//! // … the program's own CUDA code …
//! assert_eq!(emulator.reports(), Vec::<String>::new());
//! # Ok::<(), gpu_emulator::InstallError>(())
//! ```
//!
//! What runs: [`ptx`] reads a module and decodes it, [`exec`] executes it a warp at a time over
//! [`memory`], [`driver`] is the CUDA driver API around that, and [`cublas`] the products. The README
//! says what is covered and what is refused.

// Bit fields read best as the PTX manual writes them (`a * b >> 32`), lanes are counted by number because several
// arrays share the index, and the rest are forms that follow the specification's own conditions.
#![allow(
    clippy::empty_line_after_doc_comments,
    clippy::manual_checked_ops,
    clippy::manual_is_multiple_of,
    clippy::needless_range_loop,
    clippy::nonminimal_bool,
    clippy::precedence
)]

pub mod config;
pub mod cublas;
pub mod driver;
pub mod exec;
mod install;
pub mod memory;
pub mod ptx;

pub use install::{Emulator, InstallError, install};

//! Benchmarks: definitions as data, and one harness.
//!
//! `definitions` says what is measured: a name, the work of one run in units that a user knows, the operation
//! itself, the check of its result, and what to compare it with. `harness` measures; `peer` talks to a Python
//! process that runs the same operation with another library. Nothing else measures anything.
//!
//! `cargo bench -p benches -- --test` runs each definition once, small, as a test.
#![forbid(unsafe_code)]

pub mod definitions;
mod harness;
mod peer;

pub use harness::{Bench, Definition, Unit, main};
pub use peer::Peer;

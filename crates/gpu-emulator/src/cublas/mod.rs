//! cuBLAS on the emulated device: handles, workspaces, and the products.
//!
//! The functions are exported under `emu_` names, which the library `gpu-emulator-cublas` forwards to
//! (two libraries because programs open two). Products are stream work like any other: they run when the
//! stream drains, are captured, and touch device memory with its checks.

pub mod api;
mod product;

pub use product::{Element, Operation, Product};

use crate::driver::state::Handle;

/// `CUBLAS_STATUS_NOT_INITIALIZED`
pub const NOT_INITIALIZED: i32 = 1;
/// `CUBLAS_STATUS_ALLOC_FAILED`
pub const ALLOC_FAILED: i32 = 3;
/// `CUBLAS_STATUS_INVALID_VALUE`
pub const INVALID_VALUE: i32 = 7;
/// `CUBLAS_STATUS_EXECUTION_FAILED`
pub const EXECUTION_FAILED: i32 = 13;
/// `CUBLAS_STATUS_NOT_SUPPORTED`
pub const NOT_SUPPORTED: i32 = 15;

/// What `cublasGetVersion` says: 12.4.5.
pub const VERSION: i32 = 120_405;

/// A cuBLAS handle.
#[derive(Clone, Debug)]
pub struct Blas {
    /// The context it was made in.
    pub context: Handle,
    /// The stream that its work goes to.
    pub stream: Handle,
    /// The workspace that the program bound: address and bytes. `cublasSetStream` forgets it.
    pub workspace: Option<(u64, u64)>,
    /// Whether alpha, beta and scalar results lie on the device.
    pub device_pointers: bool,
    /// `cublasMath_t`
    pub math_mode: i32,
    /// `cublasAtomicsMode_t`
    pub atomics_mode: i32,
}

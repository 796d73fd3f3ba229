//! Runs kernels: a warp at a time, each instruction over 32 lanes with an active mask.
//!
//! ```text
//! 1. for each block of the grid (in order, or shuffled by a seed)
//! 2.   until all its warps have ended
//! 3.     for each warp that is not at a barrier (in order, or shuffled)
//! 4.       run it to its next barrier, its end, or the end of its turn
//! ```
//!
//! Loop 1 is serial, so that a launch has one result; blocks of one launch that wait for each other
//! never end, and the watchdog says so.

mod access;
mod block;
mod collective;
pub mod lanes;
mod mma;
pub mod numeric;
pub mod registers;
mod warp;

pub use block::{Launch, run};

use lanes::Lanes;

/// How kernels run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Loads of memory that nothing has written are errors.
    pub uninitialised: bool,
    /// Accesses that nothing orders are errors.
    pub race: bool,
    /// Warp instructions after which a launch is stopped.
    pub watchdog: u64,
    /// Shuffles blocks and warps.
    pub seed: Option<u64>,
    /// The lane loops.
    pub lanes: Lanes,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            uninitialised: true,
            race: false,
            watchdog: 20_000_000_000,
            seed: None,
            lanes: Lanes::detect(),
        }
    }
}

/// What was executed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Instructions times active lanes.
    pub lanes: u64,
    /// Instructions of warps.
    pub warps: u64,
    /// Launches.
    pub launches: u64,
}

/// Why a kernel was stopped: the code that the driver returns from then on, and the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `CUresult`.
    pub code: i32,
    /// Kernel, line, thread and what happened.
    pub message: String,
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS`
pub const ILLEGAL_ADDRESS: i32 = 700;
/// `CUDA_ERROR_LAUNCH_TIMEOUT`
pub const LAUNCH_TIMEOUT: i32 = 702;
/// `CUDA_ERROR_ILLEGAL_INSTRUCTION`
pub const ILLEGAL_INSTRUCTION: i32 = 715;
/// `CUDA_ERROR_MISALIGNED_ADDRESS`
pub const MISALIGNED_ADDRESS: i32 = 716;
/// `CUDA_ERROR_LAUNCH_FAILED`: a trap, and what only the emulator finds (races, unwritten memory).
pub const LAUNCH_FAILED: i32 = 719;

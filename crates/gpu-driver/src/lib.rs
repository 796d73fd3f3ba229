//! CUDA from Rust, over cudarc: devices, streams, buffers, pinned memory, typed launches, cuBLAS and captured graphs,
//! with a typed error for every failure and no raw pointer in the interface.
//!
//! ```no_run
//! # fn main() -> Result<(), gpu_driver::DriverError> {
//! use gpu_driver::{Capture, Gpu, arguments};
//!
//! let gpu = Gpu::open(0)?;
//! println!("{}", gpu.device());
//! let accumulate = gpu.load(&kernels_ptx::ACCUMULATE)?; // y = y + factor x
//! let stream = gpu.stream()?;
//!
//! // Run it.
//! let x = stream.buffer(&[1.0f32, 2.0, 3.0])?;
//! let mut y = stream.buffer(&[10.0f32; 3])?;
//! accumulate.launch(&stream, &[3], &arguments![&x, &mut y, 3u64, 0.5f32])?;
//! assert_eq!(stream.read(&y)?, [10.5, 11.0, 11.5]);
//!
//! // Capture it, twice in a row, and replay that ten times.
//! let capture = Capture::begin(&stream, &[])?;
//! accumulate.launch(&stream, &[3], &arguments![&x, &mut y, 3u64, 0.5f32])?;
//! accumulate.launch(&stream, &[3], &arguments![&x, &mut y, 3u64, 0.5f32])?;
//! let graph = capture.end()?.instantiate()?;
//! for _ in 0..10 {
//!     graph.launch(&stream)?;
//! }
//! assert_eq!(stream.read(&y)?, [20.5, 31.0, 41.5]);
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! - **Building needs no CUDA**, and a machine without a driver gets [`DriverError::NoLibrary`]: the library and each
//!   function are looked for before they are called, which is where cudarc would panic.
//! - **Arguments are checked** against the kernel's signature before a launch: number, types, what may be written,
//!   and the lengths of buffers as far as the signature states them.
//! - **Nothing is freed while it is used.** A buffer, module or workspace that goes waits for the streams that used
//!   it; a graph keeps what it was captured with; a copy of pinned memory owns both ends until it is waited for.
//! - **A capture cannot be broken by accident.** Allocating, freeing, loading and waiting inside one are refused
//!   ([`DriverError::InCapture`]) or put off before the driver hears of them. Binding the workspaces of cuBLAS is part
//!   of [`Capture::begin`].
//! - **Order between streams is the program's.** Streams are non-blocking and nothing is tracked behind its back:
//!   work of two streams is unordered until one [waits](Stream::wait) for an [`Event`] of the other.
//! - **Errors of drops are not lost:** the next call returns them and does nothing else ([`DriverError::Dropped`]). A
//!   lost context is noticed once and then refuses every call ([`DriverError::Poisoned`]).
//! - **Memory is counted** and can be limited ([`Gpu::memory`], [`Gpu::set_memory_limit`]). It is plain memory, never
//!   stream-ordered, on devices with and without memory pools: stream-ordered memory turns into nodes of a captured
//!   graph, and a graph with such nodes is refused.
//!
//! Not here: models, several devices in one operation, managed memory, textures, graphs built by hand. A program
//! whose device is to be shared by many short-lived buffers will want a pool of its own, for example by cutting up
//! one [`Buffer`] ([`Buffer::split`]).
//!
//! Tests run on a machine without a GPU, against `gpu-emulator`; how it compares with hardware is said there.
#![deny(unsafe_code)]

mod blas;
mod buffer;
mod capture;
mod codes;
mod context;
mod device;
mod element;
mod entry;
mod error;
mod event;
mod gpu;
mod launch;
mod library;
mod module;
mod pinned;
mod resource;
mod shape;
mod stream;

pub use blas::{Blas, Factor, Layout, Op, ProductInput};
pub use buffer::{Buffer, View, ViewMut};
pub use capture::{Capture, Graph, GraphExec};
pub use context::Memory;
pub use device::{Device, devices};
pub use element::DeviceType;
pub use error::{DriverError, Result};
pub use event::Event;
pub use gpu::Gpu;
pub use launch::Argument;
pub use module::{Kernel, Module};
pub use pinned::{FrozenBuffer, InFlight, PinnedBuffer, Refused, Transfer};
pub use stream::Stream;

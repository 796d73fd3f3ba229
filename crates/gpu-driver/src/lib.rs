//! What an NVIDIA driver on this machine offers, over cudarc, with typed errors and without a panic: the library is
//! looked for before the first call, for cudarc panics where it or a function of it is missing.
//!
//! This crate knows nothing of models. So far it finds devices; streams, memory, launches and graphs are not here.
//!
//! ```
//! match gpu_driver::devices() {
//!     Ok(devices) => devices.iter().for_each(|device| println!("{device}")),
//!     Err(error) => println!("no GPU: {error}"),
//! }
//! ```
#![deny(unsafe_code)]

mod device;
mod error;

pub use device::{Device, devices};
pub use error::DriverError;

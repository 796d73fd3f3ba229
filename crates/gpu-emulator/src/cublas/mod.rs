//! cuBLAS on the emulated device: handles, workspaces, and the products.

use crate::driver::state::{Driver, Handle};
use crate::exec::Fault;

/// A cuBLAS handle.
#[derive(Clone, Debug)]
pub struct Blas {
    /// The stream that its work goes to.
    pub stream: Handle,
}

/// A product, ready to run.
#[derive(Clone, Debug)]
pub struct Product {}

impl Product {
    /// Computes it.
    pub fn run(&self, _driver: &mut Driver) -> Result<(), Fault> {
        Ok(())
    }
}

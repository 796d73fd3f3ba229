//! Hand-written PTX kernels for 4-bit fine-tuning, as text with typed signatures.
//!
//! One kernel is one file under `ptx/`, named as its entry, with its contract in the header: what each parameter
//! points at, the grid and block it expects, shared memory, registers, the oldest architecture and ISA version that
//! will do, and the CPU function that computes the same thing. [`KERNELS`] lists them all.
//!
//! This crate is `no_std`, has no dependency, and calls no CUDA function: a program hands [`Kernel::source`] to
//! whatever driver binding it uses, checks its arguments against [`Kernel::parameters`], and gets the launch from
//! [`Kernel::launch`].
//!
//! Conventions that hold for every kernel:
//! - tensors are row-major; pointers need the alignment of their element only, though 16-byte alignment is faster;
//! - any length is accepted, also 0 (a launch with an empty grid, see [`Launch::is_empty`], has nothing to do);
//! - sums have a fixed order that depends on shapes only; the only atomics are integer counters and minima;
//! - every operation is written with its rounding, so the assembler fuses nothing and results are the same on
//!   every architecture.
//!
//! # Using one kernel from another program
//!
//! ```
//! use kernels_ptx::{CAST_F32_TO_F16, Element, Kind};
//!
//! let kernel = &CAST_F32_TO_F16;
//! // The module text, and the entry to look up in it.
//! assert!(kernel.source.contains(".visible .entry cast_f32_to_f16("));
//! // What to pass, in this order.
//! let names: Vec<_> = kernel.parameters.iter().map(|p| p.name).collect();
//! assert_eq!(names, ["source", "target", "elements"]);
//! assert!(matches!(kernel.parameters[1].kind, Kind::Pointer { element: Element::F16, .. }));
//! assert_eq!(kernel.parameters[2].kind, Kind::U64);
//! // How to launch it for 5000 elements.
//! let launch = kernel.launch(&[5000])?;
//! assert_eq!((launch.grid, launch.block), ([3, 1, 1], [256, 1, 1]));
//! // With a driver binding, e.g. cudarc's `result` level:
//! //   let module = module::load_data(kernel.source)?;
//! //   let function = module::get_function(module, kernel.name)?;
//! //   launch_kernel(function, launch.grid, launch.block, launch.shared_bytes, stream, &mut arguments)?;
//! # Ok::<(), kernels_ptx::ShapeError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod manifest;

pub use manifest::*;

/// One kernel: its text, its signature, and how to launch it.
#[derive(Debug)]
pub struct Kernel {
    /// Name of the entry, which is the stem of the file.
    pub name: &'static str,
    /// The PTX module that holds the entry, and nothing else.
    pub source: &'static str,
    /// What it computes, in one line.
    pub summary: &'static str,
    /// The lowest PTX ISA version that has the instructions used, as (major, minor).
    pub isa: (u8, u8),
    /// The lowest compute capability, as major * 10 + minor: 75 is Turing.
    pub min_capability: u32,
    /// Parameters in the order of the entry.
    pub parameters: &'static [Param],
    /// Names of the sizes that [`Kernel::launch`] takes, in its order.
    pub dimensions: &'static [&'static str],
    /// Block and grid.
    pub geometry: Geometry,
    /// Statically declared shared memory of a block. No kernel here needs dynamic shared memory.
    pub shared_bytes: u32,
    /// The CPU function that computes the same thing.
    pub oracle: &'static str,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Its name in the entry.
    pub name: &'static str,
    /// What is passed.
    pub kind: Kind,
    /// Shape of a pointer's target, or the meaning of a number, in words.
    pub note: &'static str,
}

/// What a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The device address of elements.
    Pointer {
        /// Type of the elements.
        element: Element,
        /// What the kernel does with them.
        access: Access,
        /// Whether address 0 is allowed and means "not given".
        optional: bool,
    },
    /// An unsigned 32-bit number.
    U32,
    /// An unsigned 64-bit number.
    U64,
    /// A 32-bit float.
    F32,
    /// A 64-bit float.
    F64,
}

/// Type of the elements behind a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Byte.
    U8,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Element {
    /// Size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::F64 => 8,
        }
    }
}

/// What a kernel does with the elements behind a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes only: what was there does not matter.
    Write,
    /// Reads and writes.
    Update,
}

/// Block size, and the grid as a function of the sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Threads of a block in x, y and z; the entry requires exactly this.
    pub block: [u32; 3],
    /// Blocks in x, y and z.
    pub grid: [Axis; 3],
}

/// Blocks along one axis of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// One block.
    One,
    /// One block for each `per_block` of a dimension, the last one partly filled.
    Tiles {
        /// Index into [`Kernel::dimensions`].
        dimension: usize,
        /// How much of it a block covers.
        per_block: u32,
    },
}

/// How to launch a kernel for given sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub shared_bytes: u32,
}

impl Launch {
    /// Whether there is nothing to do: drivers refuse an empty grid, so skip the launch.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// Why a kernel cannot be launched for the given sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShapeError {
    /// Another number of sizes than the kernel has dimensions.
    Count {
        /// The kernel.
        kernel: &'static str,
        /// How many it wants.
        expected: usize,
        /// How many there were.
        found: usize,
    },
    /// More blocks along an axis than CUDA allows.
    Grid {
        /// The kernel.
        kernel: &'static str,
        /// The dimension that is too large.
        dimension: &'static str,
        /// Its size.
        size: u64,
        /// The largest size that can be launched.
        limit: u64,
    },
}

impl core::fmt::Display for ShapeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Count { kernel, expected, found } => {
                write!(f, "{kernel}: needs {expected} sizes to be launched, got {found}")
            }
            Self::Grid { kernel, dimension, size, limit } => {
                write!(
                    f,
                    "{kernel}: {dimension} = {size} is more than one launch can cover; split it at {limit}"
                )
            }
        }
    }
}

impl core::error::Error for ShapeError {}

impl Kernel {
    /// Grid and block for `sizes`, one for each of [`dimensions`](Self::dimensions).
    ///
    /// # Errors
    /// The number of sizes is wrong, or one needs more blocks than CUDA allows (2^31 - 1 in x, 65535 in y and z).
    pub fn launch(&self, sizes: &[u64]) -> Result<Launch, ShapeError> {
        if sizes.len() != self.dimensions.len() {
            return Err(ShapeError::Count {
                kernel: self.name,
                expected: self.dimensions.len(),
                found: sizes.len(),
            });
        }
        let mut grid = [1u32; 3];
        for (axis, (blocks, extent)) in grid.iter_mut().zip(self.geometry.grid).enumerate() {
            if let Axis::Tiles { dimension, per_block } = extent {
                let limit: u32 = if axis == 0 { i32::MAX as u32 } else { 65535 };
                let size = sizes[dimension];
                let tiles = size.div_ceil(u64::from(per_block));
                if tiles > u64::from(limit) {
                    return Err(ShapeError::Grid {
                        kernel: self.name,
                        dimension: self.dimensions[dimension],
                        size,
                        limit: u64::from(limit) * u64::from(per_block),
                    });
                }
                *blocks = tiles as u32;
            }
        }
        Ok(Launch { grid, block: self.geometry.block, shared_bytes: 0 })
    }
}

/// The kernel of this name.
///
/// ```
/// assert!(kernels_ptx::find("rms_norm_forward").is_some());
/// assert!(kernels_ptx::find("rms_norm").is_none());
/// ```
pub fn find(name: &str) -> Option<&'static Kernel> {
    KERNELS.binary_search_by(|kernel| kernel.name.cmp(name)).ok().map(|index| KERNELS[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_sorted_and_each_is_found() {
        assert!(!KERNELS.is_empty());
        assert!(KERNELS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for kernel in KERNELS {
            assert!(core::ptr::eq(find(kernel.name).unwrap(), *kernel));
        }
    }

    #[test]
    fn a_launch_covers_every_element_and_no_empty_block() {
        for kernel in KERNELS {
            let mut sizes = [0u64; 4];
            for size in [1u64, 255, 256, 257, 2047, 2048, 2049, 60_000] {
                sizes.fill(size);
                let launch = kernel.launch(&sizes[..kernel.dimensions.len()]).unwrap();
                for (blocks, axis) in launch.grid.into_iter().zip(kernel.geometry.grid) {
                    if let Axis::Tiles { per_block, .. } = axis {
                        assert!(u64::from(blocks) * u64::from(per_block) >= size, "{}", kernel.name);
                        assert!((u64::from(blocks) - 1) * u64::from(per_block) < size, "{}", kernel.name);
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let kernel = &CAST_F32_TO_F16;
        assert!(matches!(kernel.launch(&[]), Err(ShapeError::Count { expected: 1, found: 0, .. })));
        assert!(matches!(kernel.launch(&[u64::MAX]), Err(ShapeError::Grid { dimension: "elements", .. })));
        assert!(kernel.launch(&[1 << 33]).is_ok());
        assert!(kernel.launch(&[0]).unwrap().is_empty());
    }
}

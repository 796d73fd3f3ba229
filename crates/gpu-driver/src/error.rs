//! Everything that can go wrong, by what it was.

use kernels_ptx::{Element, ShapeError};

use crate::codes::{blas, hint, name};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, DriverError>;

/// A call into the driver or cuBLAS failed, was refused before it was made, or there is no driver to call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver's library is not on this machine.
    #[error(
        "no NVIDIA driver: {looked_for} cannot be opened; install the driver of the card, or use the CPU"
    )]
    NoLibrary {
        /// The names that were tried.
        looked_for: &'static str,
    },
    /// The library is older than the functions that are needed.
    #[error("the NVIDIA driver has no {function}, it is older than CUDA 12.0; update it")]
    TooOld {
        /// The first missing function.
        function: &'static str,
    },
    /// The driver says that it is older than needed.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}, and {}.{} is needed; update it", .found.0, .found.1, .needed.0, .needed.1
    )]
    OldDriver {
        /// Major and minor version of the driver.
        found: (u32, u32),
        /// The oldest that will do.
        needed: (u32, u32),
    },
    /// There is no device of this number.
    #[error("there is no device cuda:{ordinal}; there is {present}")]
    NoSuchDevice {
        /// The number that was asked for.
        ordinal: u32,
        /// The devices that there are.
        present: String,
    },
    /// A call returned an error.
    #[error("{call} failed with CUDA error {code} ({}){}", name(*.code), hint(*.code))]
    Call {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
    },
    /// An earlier call found the context lost; nothing more is asked of it.
    #[error(
        "the GPU cannot be used any more: {call} failed with CUDA error {code} ({}){}; start the program anew",
        name(*.code), hint(*.code)
    )]
    Poisoned {
        /// The function that found it.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
    },
    /// Something could not be given back when its owner went. The call that returns this did nothing.
    #[error("an earlier {what} could not be given back: {source}")]
    Dropped {
        /// What it was.
        what: &'static str,
        /// Why not.
        source: Box<DriverError>,
    },
    /// The device has no room.
    #[error(
        "out of device memory: {requested} bytes were asked for, {free} of {total} are free, {in_use} are in use by this program"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        requested: u64,
        /// Bytes that the driver says are free.
        free: u64,
        /// Bytes of the device.
        total: u64,
        /// Bytes of our own buffers.
        in_use: u64,
    },
    /// The limit that was set would be passed.
    #[error(
        "over the limit of device memory: {requested} bytes were asked for, {in_use} of {limit} are in use"
    )]
    OverLimit {
        /// Bytes that were asked for.
        requested: u64,
        /// Bytes of our own buffers.
        in_use: u64,
        /// The limit.
        limit: u64,
    },
    /// No more host memory can be pinned.
    #[error(
        "{requested} bytes of host memory cannot be pinned, {in_use} are; pin less (WSL allows under 1 GB)"
    )]
    OutOfPinned {
        /// Bytes that were asked for.
        requested: u64,
        /// Bytes that are pinned by this program.
        in_use: u64,
    },
    /// A number of elements whose bytes cannot be counted.
    #[error("{elements} elements of {element:?} are more bytes than can be counted")]
    TooLarge {
        /// How many.
        elements: usize,
        /// Their type.
        element: Element,
    },
    /// Two lengths that must be equal differ.
    #[error("{operation}: the lengths differ, {from} elements to {to}")]
    Lengths {
        /// What was to be done.
        operation: &'static str,
        /// Elements of the source.
        from: usize,
        /// Elements of the target.
        to: usize,
    },
    /// A range that does not lie in the buffer.
    #[error("elements {start}..{end} are not in a buffer of {len}")]
    Range {
        /// First element.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements that there are.
        len: usize,
    },
    /// Memory that cannot be seen as another type.
    #[error(
        "{bytes} bytes at {address:#x} cannot be seen as {element:?}: they must be a multiple of its size"
    )]
    Cast {
        /// Where they start.
        address: u64,
        /// How many.
        bytes: usize,
        /// The other type.
        element: Element,
    },
    /// Something that would break a capture was not done; the capture goes on.
    #[error("{operation} is not possible while a stream captures; {remedy}")]
    InCapture {
        /// What was to be done.
        operation: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A capture gave no graph. Its streams can be used again.
    #[error("the capture failed with CUDA error {code} ({}){}{}", name(*.code), hint(*.code), caused(.first))]
    Capture {
        /// The `CUresult` of its end.
        code: u32,
        /// The first call inside it that failed.
        first: Option<Box<DriverError>>,
    },
    /// A captured graph allocates or frees memory by itself, so that what it uses could not be accounted for.
    #[error(
        "the captured graph has {nodes} memory nodes: something allocated on the captured stream (a library without a workspace does)"
    )]
    MemoryNodes {
        /// How many.
        nodes: usize,
    },
    /// Work of a stream with something of another device.
    #[error("a stream of cuda:{stream} cannot use what is of cuda:{other}; copy it through the host")]
    OtherDevice {
        /// The stream's device.
        stream: u32,
        /// The other one.
        other: u32,
    },
    /// An event was used before it was recorded.
    #[error("{operation}: the event was never recorded")]
    NotRecorded {
        /// What was to be done.
        operation: &'static str,
    },
    /// A module did not load.
    #[error("{what} does not load (CUDA error {code}, {}){}; its PTX is of {version}, the driver supports CUDA {}.{}\n{log}",
        name(*.code), hint(*.code), .driver.0, .driver.1)]
    Module {
        /// The kernel, or "a module".
        what: String,
        /// The `CUresult`.
        code: u32,
        /// The `.version` and `.target` of the text.
        version: String,
        /// CUDA version of the driver.
        driver: (u32, u32),
        /// What the driver's compiler said.
        log: String,
    },
    /// PTX text with a zero byte inside.
    #[error("the PTX has a zero byte at {at}")]
    ZeroByte {
        /// Where.
        at: usize,
    },
    /// The device lacks instructions of the kernel.
    #[error("{kernel} needs compute capability {}.{}, {device} has {}.{}", .needed / 10, .needed % 10, .found / 10, .found % 10)]
    Capability {
        /// The kernel, or the operation.
        kernel: &'static str,
        /// major * 10 + minor.
        needed: u32,
        /// The device's.
        found: u32,
        /// Its name.
        device: String,
    },
    /// The module has no entry of this name.
    #[error("the module has no kernel `{kernel}`")]
    NoKernel {
        /// The name.
        kernel: String,
    },
    /// A signature that is not that of the entry in the PTX text.
    #[error("{kernel} takes parameters of {entry:?} bytes, and its signature says {signature:?}")]
    Signature {
        /// The kernel.
        kernel: String,
        /// Bytes of each parameter in the text.
        entry: Vec<usize>,
        /// Bytes of each parameter of the signature.
        signature: Vec<usize>,
    },
    /// Another number of arguments than the kernel has parameters.
    #[error("{kernel} has {expected} parameters ({names}), {found} arguments were given")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// How many it has.
        expected: usize,
        /// How many were given.
        found: usize,
        /// The names of the parameters.
        names: String,
    },
    /// An argument that does not fit its parameter.
    #[error("{kernel}: argument {index} (`{parameter}`) must be {expected}, and is {found}")]
    Argument {
        /// The kernel.
        kernel: String,
        /// Which, from 0.
        index: usize,
        /// The parameter.
        parameter: &'static str,
        /// What it takes.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A buffer shorter than what the kernel would touch.
    #[error("{kernel}: `{parameter}` has {found} elements, and needs {needed} for {shape}")]
    TooShort {
        /// The kernel.
        kernel: String,
        /// The parameter.
        parameter: &'static str,
        /// The shape that its signature states.
        shape: &'static str,
        /// Elements that it has at these sizes.
        needed: u64,
        /// Elements that were given.
        found: u64,
    },
    /// A size of the launch and the argument of the same name differ.
    #[error("{kernel} is launched for {name} = {launched}, and its argument says {argument}")]
    SizeMismatch {
        /// The kernel.
        kernel: String,
        /// Name of both.
        name: &'static str,
        /// What the grid is made for.
        launched: u64,
        /// What the kernel is told.
        argument: u64,
    },
    /// A program's own kernel was to be launched by sizes, and its grid is not known.
    #[error("{kernel} is no kernel of kernels-ptx: launch it with Kernel::launch_grid")]
    NoGrid {
        /// The kernel.
        kernel: String,
    },
    /// The sizes cannot be launched.
    #[error("{0}")]
    Shape(ShapeError),
    /// A grid or block beyond what CUDA can launch.
    #[error("{kernel}: {what} is {found}, and can be {limit} at most")]
    Geometry {
        /// The kernel.
        kernel: String,
        /// What is too large.
        what: &'static str,
        /// How large.
        found: u64,
        /// The largest.
        limit: u64,
    },
    /// cuBLAS is not on this machine.
    #[error(
        "no cuBLAS: {looked_for} cannot be opened; install it, give its path, or use the products of kernels-ptx"
    )]
    NoBlas {
        /// The names that were tried.
        looked_for: String,
    },
    /// The library lacks a function.
    #[error("cuBLAS has no {function}: it is older than version 11")]
    OldBlas {
        /// The first missing function.
        function: &'static str,
    },
    /// A call into cuBLAS returned a status.
    #[error("{call} failed with cuBLAS status {status} ({})", blas(*.status))]
    Blas {
        /// The function.
        call: &'static str,
        /// Its `cublasStatus_t`.
        status: u32,
    },
    /// The environment would change the precision of products.
    #[error("NVIDIA_TF32_OVERRIDE is set to {value:?}, which changes the precision of products; unset it")]
    Tf32Override {
        /// Its value.
        value: String,
    },
    /// A matrix that its buffer does not hold, or a size that cuBLAS cannot take.
    #[error("product: {what} is {found}, and must be {expected}")]
    Product {
        /// What is wrong.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it must be.
        expected: String,
    },
    /// A product on a capturing stream by a handle whose workspace was not bound for the capture.
    #[error(
        "a product inside a capture that began without its cuBLAS handle; give the handle to Capture::begin"
    )]
    BlasNotInCapture,
}

fn caused(first: &Option<Box<DriverError>>) -> String {
    first.as_ref().map(|first| format!("; the first failure inside it: {first}")).unwrap_or_default()
}

impl DriverError {
    /// The CUDA code behind it, where there is one.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Call { code, .. }
            | Self::Poisoned { code, .. }
            | Self::Capture { code, .. }
            | Self::Module { code, .. } => Some(*code),
            Self::Dropped { source, .. } => source.code(),
            Self::OutOfMemory { .. } | Self::OutOfPinned { .. } => Some(2),
            _ => None,
        }
    }

    /// Whether the context is lost, so that only a new process can use the device again.
    pub fn is_sticky(&self) -> bool {
        match self {
            Self::Poisoned { .. } => true,
            Self::Call { code, .. } => crate::codes::is_sticky(*code),
            Self::Dropped { source, .. } => source.is_sticky(),
            _ => false,
        }
    }
}

impl From<ShapeError> for DriverError {
    fn from(error: ShapeError) -> Self {
        Self::Shape(error)
    }
}

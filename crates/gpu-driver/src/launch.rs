//! Launches whose arguments are checked against the kernel's signature: their number, types and access, and the
//! lengths of buffers as far as the signature states them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUfunction_attribute;
use kernels_ptx::{Access, Element, Kind, Launch, Param};

use crate::module::{Kernel, Signature};
use crate::resource::Owned;
use crate::shape::{self, Sizes};
use crate::{Buffer, DeviceType, DriverError, Result, Stream, View, ViewMut};

/// Shared memory of a block that needs no opting in.
const SHARED_WITHOUT_OPT_IN: u32 = 48 << 10;

/// What is passed for a parameter; made by `into()` from views, `&Buffer`, `&mut Buffer`, `None` and numbers.
#[derive(Debug)]
pub struct Argument<'a>(pub(crate) Value<'a>);

#[derive(Debug)]
pub(crate) enum Value<'a> {
    Elements { owner: &'a Arc<Owned>, address: u64, len: usize, element: Element, writes: bool },
    Nothing,
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
}

/// The arguments of a launch: each expression as an [`Argument`].
///
/// ```no_run
/// # fn f(kernel: gpu_driver::Kernel, stream: gpu_driver::Stream, x: gpu_driver::Buffer<f32>,
/// #     mut y: gpu_driver::Buffer<f32>) -> gpu_driver::Result<()> {
/// kernel.launch(&stream, &[100], &gpu_driver::arguments![&x, &mut y, 100u64, 0.5f32])
/// # }
/// ```
#[macro_export]
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { [$($crate::Argument::from($value)),*] };
}

impl Argument<'_> {
    /// For an optional pointer that is not given.
    pub const NOTHING: Argument<'static> = Argument(Value::Nothing);
}

impl<'a, T: DeviceType> From<View<'a, T>> for Argument<'a> {
    fn from(view: View<'a, T>) -> Self {
        let (owner, address, len) = (view.owner(), view.address(), view.len());
        Self(Value::Elements { owner, address, len, element: T::ELEMENT, writes: false })
    }
}

impl<'a, T: DeviceType> From<ViewMut<'a, T>> for Argument<'a> {
    fn from(view: ViewMut<'a, T>) -> Self {
        let (owner, address, len) = (view.owner(), view.address(), view.len());
        Self(Value::Elements { owner, address, len, element: T::ELEMENT, writes: true })
    }
}

impl<'a, T: DeviceType> From<&'a Buffer<T>> for Argument<'a> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.view().into()
    }
}

impl<'a, T: DeviceType> From<&'a mut Buffer<T>> for Argument<'a> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        buffer.view_mut().into()
    }
}

macro_rules! numbers {
    ($($type:ty => $variant:ident),*) => {
        $(impl From<$type> for Argument<'_> {
            fn from(value: $type) -> Self {
                Self(Value::$variant(value))
            }
        })*
    };
}

numbers!(u32 => U32, u64 => U64, f32 => F32, f64 => F64);

impl Kernel {
    /// Launches a kernel of kernels-ptx for `sizes`, one for each of its dimensions. Where a size is 0 there is
    /// nothing to do, and nothing is launched.
    ///
    /// Returns when it is enqueued: failures of the kernel itself come with a later call.
    ///
    /// # Errors
    /// An argument or a size that does not fit, named; a program's own kernel, whose grid is not known
    /// ([`Self::launch_grid`]); a failure of the call or of earlier work.
    pub fn launch(&self, stream: &Stream, sizes: &[u64], arguments: &[Argument<'_>]) -> Result<()> {
        let Signature::Known(kernel) = self.signature else {
            return Err(DriverError::NoGrid { kernel: self.name().to_owned() });
        };
        let launch = kernel.launch(sizes)?;
        self.check(arguments, kernel.dimensions, sizes)?;
        self.enqueue(stream, launch, arguments)
    }

    /// Launches a program's own kernel with this grid and block.
    ///
    /// # Errors
    /// An argument that does not fit, named; a grid or block beyond CUDA's limits; a failure of the call or of
    /// earlier work.
    pub fn launch_grid(&self, stream: &Stream, launch: Launch, arguments: &[Argument<'_>]) -> Result<()> {
        self.check(arguments, &[], &[])?;
        self.enqueue(stream, launch, arguments)
    }

    /// Checks the arguments against the signature.
    fn check(
        &self,
        arguments: &[Argument<'_>],
        dimensions: &'static [&'static str],
        launched: &[u64],
    ) -> Result<()> {
        let kernel = self.name();
        let parameters = self.signature.parameters();
        if arguments.len() != parameters.len() {
            return Err(DriverError::ArgumentCount {
                kernel: kernel.to_owned(),
                expected: parameters.len(),
                found: arguments.len(),
                names: parameters.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
            });
        }
        let mut sizes = Sizes::default();
        for (&name, &size) in dimensions.iter().zip(launched) {
            sizes.set(name, size);
        }
        for (index, (argument, parameter)) in arguments.iter().zip(parameters).enumerate() {
            if !fits(&argument.0, parameter.kind) {
                return Err(DriverError::Argument {
                    kernel: kernel.to_owned(),
                    index,
                    parameter: parameter.name,
                    expected: expected(parameter.kind),
                    found: found(&argument.0),
                });
            }
            let number = match argument.0 {
                Value::U32(value) => u64::from(value),
                Value::U64(value) => value,
                _ => continue,
            };
            if let Some(launched) = sizes.get(parameter.name).filter(|&launched| launched != number) {
                return Err(DriverError::SizeMismatch {
                    kernel: kernel.to_owned(),
                    name: parameter.name,
                    launched,
                    argument: number,
                });
            }
            sizes.set(parameter.name, number);
        }
        for (argument, parameter) in arguments.iter().zip(parameters) {
            self.check_length(&argument.0, parameter, &sizes)?;
        }
        Ok(())
    }

    /// Refuses a buffer that is shorter than what the note of its parameter states.
    fn check_length(&self, value: &Value<'_>, parameter: &Param, sizes: &Sizes) -> Result<()> {
        let Value::Elements { len, .. } = *value else { return Ok(()) };
        match shape::elements(parameter.note, sizes) {
            Some((shape, needed)) if (len as u64) < needed => Err(DriverError::TooShort {
                kernel: self.name().to_owned(),
                parameter: parameter.name,
                shape,
                needed,
                found: len as u64,
            }),
            _ => Ok(()),
        }
    }

    /// Checks the geometry, and enqueues.
    fn enqueue(&self, stream: &Stream, launch: Launch, arguments: &[Argument<'_>]) -> Result<()> {
        let Launch { grid, block, shared_bytes } = launch;
        if launch.is_empty() {
            return Ok(());
        }
        let threads = block.iter().map(|&threads| u64::from(threads)).product();
        let limits = [
            ("the grid in x", u64::from(grid[0]), 0x7FFF_FFFF),
            ("the grid in y", u64::from(grid[1]), 65_535),
            ("the grid in z", u64::from(grid[2]), 65_535),
            ("the block in z", u64::from(block[2]), 64),
            ("the number of threads of a block", threads, 1024),
        ];
        for (what, found, limit) in limits {
            if found > limit {
                return Err(DriverError::Geometry { kernel: self.name().to_owned(), what, found, limit });
            }
        }
        let mut owners = vec![&self.owner];
        let mut words = Vec::with_capacity(arguments.len());
        for argument in arguments {
            words.push(match argument.0 {
                Value::Elements { owner, address, .. } => {
                    owners.push(owner);
                    address
                }
                Value::Nothing => 0,
                // The driver reads as many bytes as the parameter has, from the low end of the word.
                Value::U32(value) => u64::from(value),
                Value::U64(value) => value,
                Value::F32(value) => u64::from(value.to_bits()),
                Value::F64(value) => value.to_bits(),
            });
        }
        let mut pointers: Vec<*mut c_void> =
            words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let function = self.function.0;
        let [[gx, gy, gz], [bx, by, bz]] = [grid, block];
        // SAFETY: there is a pointer for each parameter of the entry, to a word at least as large (`check` compared
        // with the signature, which is the entry's: the manifest's, or promised to `Module::kernel`). `submit` keeps
        // the module and the buffers until the launch is done.
        stream.inner.submit(&owners, |driver, raw| unsafe {
            if shared_bytes > SHARED_WITHOUT_OPT_IN {
                let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                driver.cuFuncSetAttribute(
                    function,
                    attribute,
                    shared_bytes.try_into().unwrap_or(i32::MAX),
                )?;
            }
            let extra = std::ptr::null_mut();
            driver.cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                raw,
                pointers.as_mut_ptr(),
                extra,
            )
        })
    }
}

fn fits(value: &Value<'_>, kind: Kind) -> bool {
    match (value, kind) {
        (&Value::Elements { element, writes, .. }, Kind::Pointer { element: wanted, access, .. }) => {
            // What is only read may well be lent to write; the other way round a kernel would change what its
            // caller only lent to read.
            element == wanted && (writes || access == Access::Read)
        }
        (Value::Nothing, Kind::Pointer { optional, .. }) => optional,
        (Value::U32(_), Kind::U32) | (Value::U64(_), Kind::U64) => true,
        (Value::F32(_), Kind::F32) | (Value::F64(_), Kind::F64) => true,
        _ => false,
    }
}

fn expected(kind: Kind) -> String {
    match kind {
        Kind::Pointer { element, access, optional } => {
            let what = match access {
                Access::Read => "a buffer",
                Access::Write | Access::Update => "a buffer to write (&mut)",
            };
            format!("{what} of {element:?}{}", if optional { ", or nothing" } else { "" })
        }
        Kind::U32 => "a u32".into(),
        Kind::U64 => "a u64".into(),
        Kind::F32 => "an f32".into(),
        Kind::F64 => "an f64".into(),
    }
}

fn found(value: &Value<'_>) -> String {
    match value {
        Value::Elements { element, writes: true, .. } => format!("a buffer to write (&mut) of {element:?}"),
        Value::Elements { element, .. } => format!("a buffer of {element:?} to read"),
        Value::Nothing => "nothing".into(),
        Value::U32(value) => format!("the u32 {value}"),
        Value::U64(value) => format!("the u64 {value}"),
        Value::F32(value) => format!("the f32 {value}"),
        Value::F64(value) => format!("the f64 {value}"),
    }
}

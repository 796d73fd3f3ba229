//! The functions of the driver's library, looked up once and by name.
//!
//! cudarc finds and opens the library. Its functions are not called through cudarc, for two reasons: it panics where
//! one is missing, and it returns statuses as a Rust enum, of which a newer driver may return a value that is not in
//! it. Here a missing function is an error and a status is a number, and each call gives a `Result` that carries the
//! function's name.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute,
    CUgraph, CUgraphExec, CUgraphNode, CUjit_option, CUmodule, CUstream,
};
use libloading::Library;

use crate::{DriverError, Result};

/// Defines a table of C functions that return a status, each a method that returns a `Result`.
macro_rules! functions {
    (
        $(#[$doc:meta])* $table:ident, $missing:path, $checked:path;
        $(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(crate) struct $table {
            $($name: unsafe extern "C" fn($($type),*) -> std::ffi::c_int,)*
        }

        #[allow(non_snake_case)]
        impl $table {
            /// Looks every function up.
            pub(crate) fn look_up(library: &libloading::Library) -> $crate::Result<Self> {
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($type),*) -> std::ffi::c_int;
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the library's header declares the function with this signature (`int` and an enum
                        // of C are the same); the library is never closed. It is looked up, not called.
                        let found = unsafe { library.get::<Function>(name.as_bytes()) };
                        *found.map_err(|_| $missing(stringify!($name)))?
                    },)*
                })
            }

            $(
                /// Calls the function.
                ///
                /// # Safety
                /// - Pointers and handles are as its documentation asks.
                // The C function decides how many arguments there are.
                #[allow(clippy::too_many_arguments)]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> $crate::Result<()> {
                    // SAFETY: the caller keeps the function's contract.
                    $checked(stringify!($name), unsafe { (self.$name)($($argument),*) })
                }
            )*
        }
    };
}
pub(crate) use functions;

fn missing(function: &'static str) -> DriverError {
    DriverError::TooOld { function }
}

fn checked(call: &'static str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        code => Err(DriverError::Call { call, code: code.unsigned_abs() }),
    }
}

functions! {
    /// What this crate calls of the driver.
    Driver, missing, checked;
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void,
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(exec: CUgraphExec);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_int);
}

/// The oldest CUDA version of a driver that is used, as (major, minor).
const NEEDED: (u32, u32) = (12, 0);

impl Driver {
    /// The initialised driver; the first call opens it.
    ///
    /// # Errors
    /// There is no library, it is too old, or it shows no device.
    pub(crate) fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        let driver = match DRIVER.get() {
            Some(driver) => driver,
            None => {
                let found = Self::look_up(library()?)?;
                DRIVER.get_or_init(|| found)
            }
        };
        let version = driver.version()?;
        if version < NEEDED {
            return Err(DriverError::OldDriver { found: version, needed: NEEDED });
        }
        // SAFETY: it takes no pointers, and may be called any number of times.
        unsafe { driver.cuInit(0) }?;
        Ok(driver)
    }

    /// The newest CUDA version that the driver supports, as (major, minor).
    pub(crate) fn version(&self) -> Result<(u32, u32)> {
        let mut version = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        unsafe { self.cuDriverGetVersion(&raw mut version) }?;
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }
}

fn library() -> Result<&'static Library> {
    // SAFETY: opens the driver's library, whose initialisers are NVIDIA's; no function of it is called.
    if !unsafe { sys::is_culib_present() } {
        let looked_for = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so" };
        return Err(DriverError::NoLibrary { looked_for });
    }
    // SAFETY: the library is there, so that this does not panic; it is held for good.
    Ok(unsafe { sys::culib() })
}

/// A handle of the driver.
///
/// It is a number to the driver, which takes it from any thread; who owns it says when it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle<T>(pub(crate) T);

// SAFETY: the driver's functions are thread-safe, and a handle is not dereferenced on this side.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

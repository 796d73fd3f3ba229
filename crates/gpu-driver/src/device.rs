//! The devices that the driver shows.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};

use crate::DriverError;

/// One GPU, as far as it can be described without a context on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its number, as in `cuda:0`.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Compute capability, (8, 6) for sm_86.
    pub capability: (u32, u32),
    /// Memory in bytes.
    pub total_memory: u64,
    /// Whether it shares the host's memory.
    pub integrated: bool,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ordinal, name, capability: (major, minor), total_memory, .. } = self;
        let megabytes = total_memory / 1_000_000;
        write!(f, "cuda:{ordinal}: {name}, sm_{major}{minor}, {megabytes} MB")
    }
}

/// All devices that are visible to this process, in the driver's order. Takes no memory on any of them.
///
/// # Errors
/// There is no driver, it is too old, or a call fails; no device at all is CUDA's error 100.
pub fn devices() -> Result<Vec<Device>, DriverError> {
    check_library()?;
    // SAFETY: `check_library` found the functions that this file calls. `cuInit` takes no pointers.
    call("cuInit", unsafe { sys::cuInit(0) })?;
    let mut count: c_int = 0;
    // SAFETY: as above; the pointer is to a local that outlives the call.
    call("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    (0..count).map(device).collect()
}

fn device(ordinal: c_int) -> Result<Device, DriverError> {
    let mut handle = 0;
    // SAFETY: `devices` has initialised the driver; the pointer is to a local that outlives the call.
    call("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut handle, ordinal) })?;
    let attribute = |attribute| {
        let mut value: c_int = 0;
        // SAFETY: `handle` is a device of this driver, the pointer is to a local that outlives the call.
        call("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, handle) })?;
        Ok(value)
    };
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver writes at most the length that it is told, with a terminating zero.
    call("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 256, handle) })?;
    let mut total_memory = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    call("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut total_memory, handle) })?;
    use CUdevice_attribute as Attribute;
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    // SAFETY: the array is zeroed and at least its last byte still is, for the driver ends the name with one.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Device {
        ordinal: ordinal as u32,
        name,
        capability: (major as u32, minor as u32),
        total_memory: total_memory as u64,
        integrated,
    })
}

/// That the library can be opened and has what this file calls.
fn check_library() -> Result<(), DriverError> {
    // SAFETY: opens the driver's library, whose initialisers are NVIDIA's; no function of it is called.
    if !unsafe { sys::is_culib_present() } {
        let looked_for = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so" };
        return Err(DriverError::NoLibrary { looked_for });
    }
    // SAFETY: the library is there, so that this does not panic.
    let library = unsafe { sys::culib() };
    let functions: [(&CStr, &str); 6] = [
        (c"cuInit", "cuInit"),
        (c"cuDeviceGetCount", "cuDeviceGetCount"),
        (c"cuDeviceGet", "cuDeviceGet"),
        (c"cuDeviceGetAttribute", "cuDeviceGetAttribute"),
        (c"cuDeviceGetName", "cuDeviceGetName"),
        (c"cuDeviceTotalMem_v2", "cuDeviceTotalMem_v2"),
    ];
    for (symbol, function) in functions {
        // SAFETY: the symbol is looked up, not called.
        if unsafe { library.get::<unsafe extern "C" fn()>(symbol.to_bytes_with_nul()) }.is_err() {
            return Err(DriverError::TooOld { function });
        }
    }
    Ok(())
}

fn call(call: &'static str, result: CUresult) -> Result<(), DriverError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(DriverError::Call { call, code: error as u32 }),
    }
}

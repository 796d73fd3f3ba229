//! The devices that the driver shows.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute};

use crate::library::Driver;
use crate::{DriverError, Result};

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
    /// Whether it shares the host's memory, rather than being reached over PCIe or NVLink.
    pub integrated: bool,
    /// How many streaming multiprocessors it has. Products of cuBLAS give the same bits only for the same number.
    pub multiprocessors: u32,
    /// Whether the driver has memory pools for it. Nothing here allocates from them.
    pub memory_pools: bool,
}

impl Device {
    /// Compute capability as major * 10 + minor, as kernels state it.
    pub fn compute(&self) -> u32 {
        self.capability.0 * 10 + self.capability.1
    }
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
pub fn devices() -> Result<Vec<Device>> {
    let driver = Driver::get()?;
    (0..count(driver)?).map(|ordinal| describe(driver, handle(driver, ordinal)?, ordinal)).collect()
}

/// The device of this number, with its handle.
///
/// # Errors
/// As [`devices`], and [`DriverError::NoSuchDevice`], which lists those that there are.
pub(crate) fn find(driver: &Driver, ordinal: u32) -> Result<(CUdevice, Device)> {
    match c_int::try_from(ordinal) {
        Ok(number) if number < count(driver)? => {
            let handle = handle(driver, number)?;
            Ok((handle, describe(driver, handle, number)?))
        }
        _ => {
            let present: Vec<String> = devices()?.iter().map(Device::to_string).collect();
            let present = if present.is_empty() { "none".to_owned() } else { present.join("; ") };
            Err(DriverError::NoSuchDevice { ordinal, present })
        }
    }
}

fn count(driver: &Driver) -> Result<c_int> {
    let mut count = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }?;
    Ok(count)
}

fn handle(driver: &Driver, ordinal: c_int) -> Result<CUdevice> {
    let mut handle = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    unsafe { driver.cuDeviceGet(&raw mut handle, ordinal) }?;
    Ok(handle)
}

fn describe(driver: &Driver, handle: CUdevice, ordinal: c_int) -> Result<Device> {
    let attribute = |attribute| -> Result<c_int> {
        let mut value = 0;
        // SAFETY: `handle` is a device of this driver, the pointer is to a local that outlives the call.
        unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, handle) }?;
        Ok(value)
    };
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver writes at most the length that it is told, with a terminating zero.
    unsafe { driver.cuDeviceGetName(name.as_mut_ptr(), 256, handle) }?;
    let mut total_memory = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    unsafe { driver.cuDeviceTotalMem_v2(&raw mut total_memory, handle) }?;
    use CUdevice_attribute as Attribute;
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let memory_pools = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0;
    // SAFETY: the array is zeroed and at least its last byte still is, for the driver ends the name with one.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Device {
        ordinal: ordinal.unsigned_abs(),
        name,
        capability: (major.unsigned_abs(), minor.unsigned_abs()),
        total_memory: total_memory as u64,
        integrated,
        multiprocessors: multiprocessors.unsigned_abs(),
        memory_pools,
    })
}

//! Initialisation, devices, contexts, and the names of errors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::codes::{
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_FOUND, PRIMARY_CONTEXT_ACTIVE,
    UNSUPPORTED_LIMIT, describe,
};
use super::ffi::{Host, Out, Status, Text, api};
use super::state::{Handle, Locked, PRIMARY, current_stack};

/// `CUdevice_attribute` values that the emulated device answers; what is not here is refused by number.
fn attribute(d: &Locked, number: c_int) -> Option<i32> {
    let config = &d.config;
    let sm = config.compute;
    let on = i32::from;
    Some(match number {
        1 => 1024,                   // MAX_THREADS_PER_BLOCK
        2 | 3 => 1024,               // MAX_BLOCK_DIM_X, _Y
        4 => 64,                     // MAX_BLOCK_DIM_Z
        5 => i32::MAX,               // MAX_GRID_DIM_X
        6 | 7 => 65535,              // MAX_GRID_DIM_Y, _Z
        8 => 48 << 10,               // MAX_SHARED_MEMORY_PER_BLOCK
        9 => 64 << 10,               // TOTAL_CONSTANT_MEMORY
        10 => 32,                    // WARP_SIZE
        11 => i32::MAX,              // MAX_PITCH
        12 => 65536,                 // MAX_REGISTERS_PER_BLOCK
        13 => 1_500_000,             // CLOCK_RATE in kHz
        14 => 512,                   // TEXTURE_ALIGNMENT
        15 => 1,                     // GPU_OVERLAP
        16 => 16,                    // MULTIPROCESSOR_COUNT
        17 => 0,                     // KERNEL_EXEC_TIMEOUT
        18 => on(config.integrated), // INTEGRATED
        19 => 1,                     // CAN_MAP_HOST_MEMORY
        20 => 0,                     // COMPUTE_MODE: default
        31 => 1,                     // CONCURRENT_KERNELS
        32 => 0,                     // ECC_ENABLED
        33 => 1,                     // PCI_BUS_ID
        34 | 50 => 0,                // PCI_DEVICE_ID, PCI_DOMAIN_ID
        35 => 0,                     // TCC_DRIVER
        36 => 7_000_000,             // MEMORY_CLOCK_RATE in kHz
        37 => 256,                   // GLOBAL_MEMORY_BUS_WIDTH
        38 => 4 << 20,               // L2_CACHE_SIZE
        39 => {
            if sm == 75 {
                1024
            } else {
                1536
            }
        } // MAX_THREADS_PER_MULTIPROCESSOR
        40 => 2,                     // ASYNC_ENGINE_COUNT
        41 => 1,                     // UNIFIED_ADDRESSING
        75 => (sm / 10) as i32,      // COMPUTE_CAPABILITY_MAJOR
        76 => (sm % 10) as i32,      // COMPUTE_CAPABILITY_MINOR
        78 => 1,                     // STREAM_PRIORITIES_SUPPORTED
        79 | 80 => 1,                // GLOBAL_/LOCAL_L1_CACHE_SUPPORTED
        81 => shared_per_multiprocessor(sm), // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        82 => 65536,                 // MAX_REGISTERS_PER_MULTIPROCESSOR
        83 => 1,                     // MANAGED_MEMORY
        84 | 85 => 0,                // MULTI_GPU_BOARD and its group
        86 => 0,                     // HOST_NATIVE_ATOMIC_SUPPORTED
        87 => {
            if sm == 80 || sm == 90 {
                2
            } else {
                32
            }
        } // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
        88 => 0,                     // PAGEABLE_MEMORY_ACCESS
        89 => 1,                     // CONCURRENT_MANAGED_ACCESS
        90 => 1,                     // COMPUTE_PREEMPTION_SUPPORTED
        91 => 1,                     // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        95 => 0,                     // COOPERATIVE_LAUNCH
        97 => max_shared_opt_in(sm) as i32, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        99 => 1,                     // HOST_REGISTER_SUPPORTED
        100 | 101 => 0,              // page tables of the host
        102 => 0,                    // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        106 => 16,                   // MAX_BLOCKS_PER_MULTIPROCESSOR
        111 => 1 << 10,              // RESERVED_SHARED_MEMORY_PER_BLOCK
        115 => on(config.pools),     // MEMORY_POOLS_SUPPORTED
        120 => 0,                    // CLUSTER_LAUNCH
        _ => return None,
    })
}

fn shared_per_multiprocessor(sm: u32) -> i32 {
    match sm {
        75 => 64 << 10,
        80 | 87 => 164 << 10,
        90 | 100 => 228 << 10,
        _ => 100 << 10,
    }
}

/// Dynamic shared memory that a block may opt in to.
pub fn max_shared_opt_in(sm: u32) -> u32 {
    match sm {
        0..=69 => 48 << 10,
        70 => 96 << 10,
        75 => 64 << 10,
        80 | 87 => 163 << 10,
        90 | 100 => 227 << 10,
        _ => 99 << 10,
    }
}

fn device(d: &Locked, device: c_int) -> Status {
    d.ready()?;
    if device == 0 { Ok(()) } else { Err(INVALID_DEVICE) }
}

const STACK_SIZE: c_int = 0;
const PRINTF_FIFO_SIZE: c_int = 1;
const MALLOC_HEAP_SIZE: c_int = 2;

fn retain_primary(d: &mut Locked) -> Handle {
    if d.primary_users == 0 && !d.contexts.contains_key(&PRIMARY) {
        let flags = d.primary_flags;
        d.new_context(PRIMARY, flags);
    }
    d.primary_users += 1;
    PRIMARY
}

/// Ends a context: its work is done first, then everything that belongs to it goes.
fn destroy_context(d: &mut Locked, context: Handle) {
    d.drain_context(context);
    d.streams.retain(|_, s| s.context != context);
    d.events.retain(|_, e| e.context != context);
    let modules: Vec<Handle> =
        d.modules.iter().filter(|(_, m)| m.context == context).map(|(&h, _)| h).collect();
    for module in modules {
        super::api_module::unload(d, module);
    }
    d.contexts.remove(&context);
}

fn copy_text(out: Out<c_char>, room: c_int, text: &str) -> Status {
    let room = usize::try_from(room).map_err(|_| INVALID_VALUE)?;
    if room == 0 {
        return Err(INVALID_VALUE);
    }
    let mut bytes: Vec<c_char> = text.bytes().take(room - 1).map(|b| b as c_char).collect();
    bytes.push(0);
    out.set_all(&bytes)
}

api! {
    fn cuInit(flags: c_uint) |d| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if d.config.devices == 0 {
            return Err(NO_DEVICE);
        }
        d.initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<c_int>) |d| { version.set(d.config.driver_version) }

    fn cuGetErrorName(code: c_int, out: Out<*const c_char>) |_d| { error_text(code, out, false) }

    fn cuGetErrorString(code: c_int, out: Out<*const c_char>) |_d| { error_text(code, out, true) }

    fn cuGetProcAddress(name: Text, out: Out<*const c_void>, _version: c_int, _flags: u64) |d| {
        proc_address(d, name, out, Out::null())
    }

    fn cuGetProcAddress_v2(name: Text, out: Out<*const c_void>, _version: c_int, _flags: u64, found: Out<c_int>) |d| {
        proc_address(d, name, out, found)
    }

    fn cuDeviceGet(out: Out<c_int>, ordinal: c_int) |d| {
        device(d, ordinal)?;
        out.set(ordinal)
    }

    fn cuDeviceGetCount(out: Out<c_int>) |d| {
        d.ready()?;
        out.set(d.config.devices)
    }

    fn cuDeviceGetName(out: Out<c_char>, room: c_int, dev: c_int) |d| {
        device(d, dev)?;
        copy_text(out, room, &d.config.name)
    }

    fn cuDeviceGetUuid(out: Out<[u8; 16]>, dev: c_int) |d| {
        device(d, dev)?;
        out.set(*b"software-gpu-000")
    }

    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, dev: c_int) |d| {
        device(d, dev)?;
        out.set(*b"software-gpu-000")
    }

    fn cuDeviceTotalMem_v2(out: Out<usize>, dev: c_int) |d| {
        device(d, dev)?;
        out.set(d.memory.total() as usize)
    }

    fn cuDeviceGetAttribute(out: Out<c_int>, number: c_int, dev: c_int) |d| {
        device(d, dev)?;
        match attribute(d, number) {
            Some(value) => out.set(value),
            None => {
                d.report(format!("cuDeviceGetAttribute: the emulator does not know attribute {number}"));
                Err(INVALID_VALUE)
            }
        }
    }

    fn cuDeviceGetPCIBusId(out: Out<c_char>, room: c_int, dev: c_int) |d| {
        device(d, dev)?;
        copy_text(out, room, "0000:01:00.0")
    }

    fn cuDeviceCanAccessPeer(out: Out<c_int>, dev: c_int, peer: c_int) |d| {
        device(d, dev)?;
        device(d, peer)?;
        out.set(0)
    }

    fn cuDevicePrimaryCtxRetain(out: Out<Handle>, dev: c_int) |d| {
        device(d, dev)?;
        out.set(retain_primary(d))
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: c_int) |d| {
        device(d, dev)?;
        if d.primary_users == 0 {
            return Err(INVALID_CONTEXT);
        }
        d.primary_users -= 1;
        if d.primary_users == 0 {
            destroy_context(d, PRIMARY);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(dev: c_int) |d| {
        device(d, dev)?;
        destroy_context(d, PRIMARY);
        let flags = d.primary_flags;
        if d.primary_users > 0 {
            d.new_context(PRIMARY, flags);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: c_int, flags: c_uint) |d| {
        device(d, dev)?;
        if d.primary_users > 0 {
            return Err(PRIMARY_CONTEXT_ACTIVE);
        }
        d.primary_flags = flags;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: c_int, flags: Out<c_uint>, active: Out<c_int>) |d| {
        device(d, dev)?;
        flags.set(d.primary_flags)?;
        active.set(i32::from(d.primary_users > 0))
    }

    fn cuCtxCreate_v2(out: Out<Handle>, flags: c_uint, dev: c_int) |d| { create(d, out, flags, dev) }

    fn cuCtxCreate_v3(out: Out<Handle>, _affinity: Host, _count: c_int, flags: c_uint, dev: c_int) |d| {
        create(d, out, flags, dev)
    }

    fn cuCtxDestroy_v2(context: Handle) |d| {
        d.ready()?;
        if context == PRIMARY || !d.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        destroy_context(d, context);
        current_stack(|s| s.retain(|&h| h != context));
        Ok(())
    }

    fn cuCtxGetCurrent(out: Out<Handle>) |d| {
        d.ready()?;
        out.set(current_stack(|s| s.last().copied()).unwrap_or(0))
    }

    fn cuCtxSetCurrent(context: Handle) |d| {
        d.ready()?;
        if context != 0 && !d.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        current_stack(|s| {
            s.pop();
            if context != 0 {
                s.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) |d| {
        d.ready()?;
        if !d.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        current_stack(|s| s.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: Out<Handle>) |d| {
        d.ready()?;
        let popped = current_stack(Vec::pop).ok_or(INVALID_CONTEXT)?;
        out.set_if_wanted(popped);
        Ok(())
    }

    fn cuCtxGetDevice(out: Out<c_int>) |d| {
        d.current()?;
        out.set(0)
    }

    fn cuCtxGetApiVersion(context: Handle, out: Out<c_uint>) |d| {
        if !d.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        out.set(3020)
    }

    fn cuCtxGetFlags(out: Out<c_uint>) |d| {
        let context = d.current()?;
        out.set(d.contexts[&context].flags)
    }

    fn cuCtxSetFlags(flags: c_uint) |d| {
        let context = d.current()?;
        if let Some(c) = d.contexts.get_mut(&context) {
            c.flags = flags;
        }
        Ok(())
    }

    fn cuCtxSynchronize() |d| {
        let context = d.current()?;
        let capturing: Vec<Handle> = d.streams.iter().filter(|(_, s)| s.context == context && s.capture.is_some()).map(|(&h, _)| h).collect();
        if let Some(&stream) = capturing.first() {
            return Err(d.invalidate(stream, "cuCtxSynchronize while a stream of the context captures", super::codes::STREAM_CAPTURE_UNSUPPORTED));
        }
        d.drain_context(context);
        d.current().map(|_| ())
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) |d| {
        d.current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    fn cuCtxGetLimit(out: Out<usize>, limit: c_int) |d| {
        let context = d.current()?;
        let value = match (d.contexts[&context].limits.get(&limit), limit) {
            (Some(&value), _) => value,
            (None, STACK_SIZE) => 1024,
            (None, PRINTF_FIFO_SIZE) => 1 << 20,
            (None, MALLOC_HEAP_SIZE) => 8 << 20,
            _ => return Err(UNSUPPORTED_LIMIT),
        };
        out.set(value as usize)
    }

    fn cuCtxSetLimit(limit: c_int, value: usize) |d| {
        let context = d.current()?;
        if !(STACK_SIZE..=MALLOC_HEAP_SIZE).contains(&limit) {
            return Err(UNSUPPORTED_LIMIT);
        }
        if let Some(c) = d.contexts.get_mut(&context) {
            c.limits.insert(limit, value as u64);
        }
        Ok(())
    }

    fn cuCtxGetCacheConfig(out: Out<c_int>) |d| {
        d.current()?;
        out.set(0)
    }

    fn cuCtxSetCacheConfig(_config: c_int) |d| { d.current().map(|_| ()) }

    fn cuProfilerStart() |d| { d.current().map(|_| ()) }

    fn cuProfilerStop() |d| { d.current().map(|_| ()) }
}

fn create(d: &mut Locked, out: Out<Handle>, flags: c_uint, dev: c_int) -> Status {
    device(d, dev)?;
    let handle = d.handle();
    d.new_context(handle, flags);
    current_stack(|s| s.push(handle));
    out.set(handle)
}

fn error_text(code: c_int, out: Out<*const c_char>, long: bool) -> Status {
    let found: Option<(&'static CStr, &'static CStr)> = describe(code);
    match found {
        Some((name, text)) => out.set(if long { text.as_ptr() } else { name.as_ptr() }),
        None => {
            out.set_if_wanted(std::ptr::null());
            Err(INVALID_VALUE)
        }
    }
}

fn proc_address(d: &mut Locked, name: Text, out: Out<*const c_void>, found: Out<c_int>) -> Status {
    let name = name.get()?;
    let all = super::functions();
    // The newest suffixed form is what a name without one means.
    let hit = ["_v3", "_v2", ""].iter().find_map(|suffix| {
        let full = format!("{name}{suffix}");
        all.iter().find(|(n, _)| *n == full && !d.config.missing.contains(&full))
    });
    match hit {
        Some(&(_, address)) => {
            found.set_if_wanted(0);
            out.set(address as *const c_void)
        }
        None => {
            // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
            found.set_if_wanted(1);
            out.set_if_wanted(std::ptr::null());
            Err(NOT_FOUND)
        }
    }
}

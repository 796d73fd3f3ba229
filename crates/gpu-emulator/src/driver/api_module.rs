//! Modules, functions and launches.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::api_context::max_shared_opt_in;
use super::codes::{
    FILE_NOT_FOUND, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES,
    NOT_FOUND, NOT_SUPPORTED, OUT_OF_MEMORY, UNSUPPORTED_PTX_VERSION,
};
use super::ffi::{Host, In, Out, Status, Text, api};
use super::state::{Function, Handle, Locked, Module};
use super::stream::{KernelWork, Work};
use crate::ptx::ast::Space;
use crate::ptx::{PtxError, decode, parser};

/// Numbers of `CUjit_option` that this driver heeds.
const JIT_INFO_BUFFER: c_int = 3;
const JIT_INFO_SIZE: c_int = 4;
const JIT_ERROR_BUFFER: c_int = 5;
const JIT_ERROR_SIZE: c_int = 6;

/// The newest PTX version that a driver of CUDA `version` (1000 major + 10 minor) reads.
pub fn newest_ptx(version: i32) -> (u32, u32) {
    let (major, minor) = (version / 1000, version % 1000 / 10);
    match (major, minor) {
        (..=10, _) => (6, 3 + u32::from(minor >= 2)),
        (11, m) => (7, m as u32),
        (12, m) if m < 5 => (8, m as u32),
        (12, 5 | 6) => (8, 5),
        (12, 7 | 8) => (8, 7),
        (12, _) => (8, 8),
        (_, m) => (9, m as u32),
    }
}

/// Reads a module from PTX text.
fn load(d: &mut Locked, source: &str) -> Result<Handle, (i32, String)> {
    let context = d.current().map_err(|c| (c, String::new()))?;
    d.forbid_in_capture("loading a module").map_err(|c| (c, String::new()))?;
    if source.as_bytes().starts_with(b"\x7fELF") || !source.contains(".version") {
        return Err((INVALID_IMAGE, "the emulator loads PTX text only, and this is none".into()));
    }
    let tree = parser::parse(source).map_err(refuse)?;
    let supported = newest_ptx(d.config.driver_version);
    if tree.version > supported {
        return Err(refuse(PtxError::Version { found: tree.version, supported }));
    }
    if tree.target > d.config.compute {
        return Err(refuse(PtxError::Target { target: tree.target, device: d.config.compute }));
    }
    let mut addresses = HashMap::new();
    let mut variables = HashMap::new();
    let undo = |d: &mut Locked, variables: &HashMap<String, (u64, u64)>| {
        for (at, _) in variables.values() {
            d.memory.free(*at, true);
        }
    };
    for v in tree.variables.iter().filter(|v| matches!(v.space, Some(Space::Global | Space::Const))) {
        let bytes = (v.ty.bytes() * v.count) as u64;
        let name = if v.space == Some(Space::Const) { "constant variable" } else { "global variable" };
        let Some(at) = d.memory.allocate(bytes.max(1), name, true) else {
            undo(d, &variables);
            return Err((OUT_OF_MEMORY, format!("no room for the variable `{}`", v.name)));
        };
        // Without an initial value a variable is zero.
        let zero = vec![0; bytes as usize];
        if d.memory.write(at, v.init.as_ref().unwrap_or(&zero)).is_err() {
            return Err((OUT_OF_MEMORY, format!("no room for the variable `{}`", v.name)));
        }
        addresses.insert(v.name.clone(), at);
        variables.insert(v.name.clone(), (at, bytes));
    }
    let mut kernels = Vec::new();
    for entry in &tree.entries {
        match decode::decode(&tree, entry, &addresses) {
            Ok(kernel) => kernels.push(Arc::new(kernel)),
            Err(error) => {
                undo(d, &variables);
                let (code, text) = refuse(error);
                return Err((code, format!("kernel `{}`: {text}", entry.name)));
            }
        }
    }
    let handle = d.handle();
    let mut functions = HashMap::new();
    for kernel in kernels {
        let function = d.handle();
        functions.insert(kernel.name.clone(), function);
        d.functions.insert(function, Function { module: handle, kernel, max_dynamic_shared: 0 });
    }
    d.modules.insert(handle, Module { context, functions, variables });
    Ok(handle)
}

fn refuse(error: PtxError) -> (i32, String) {
    let code = match error {
        PtxError::Version { .. } => UNSUPPORTED_PTX_VERSION,
        _ => INVALID_PTX,
    };
    (code, format!("ptxas-like error: {error}"))
}

/// Unloads a module and its variables.
pub fn unload(d: &mut Locked, module: Handle) {
    if let Some(m) = d.modules.remove(&module) {
        d.functions.retain(|_, f| f.module != module);
        for (at, _) in m.variables.values() {
            d.memory.free(*at, true);
        }
    }
}

fn load_into(d: &mut Locked, out: Out<Handle>, source: &str, log: Option<(Out<c_char>, usize)>) -> Status {
    match load(d, source) {
        Ok(module) => out.set(module),
        Err((code, text)) => {
            if let Some((buffer, size)) = log.filter(|l| l.1 > 0) {
                let mut bytes: Vec<c_char> = text.bytes().take(size - 1).map(|b| b as c_char).collect();
                bytes.push(0);
                buffer.set_all(&bytes)?;
            }
            if !text.is_empty() {
                d.report(text);
            }
            Err(code)
        }
    }
}

fn function(d: &Locked, handle: Handle) -> Result<&Function, i32> {
    d.functions.get(&handle).ok_or(INVALID_HANDLE)
}

/// Checks a launch as the driver does, before anything is enqueued.
fn check_launch(d: &mut Locked, handle: Handle, grid: [u32; 3], block: [u32; 3], shared: u32) -> Status {
    let f = function(d, handle)?;
    let kernel = f.kernel.clone();
    let name = kernel.name.clone();
    let threads = block.iter().map(|&b| u64::from(b)).product::<u64>();
    let allowed = f.max_dynamic_shared.max((48u32 << 10).saturating_sub(kernel.shared_bytes as u32));
    let complaint = if grid.contains(&0) || block.contains(&0) {
        Some((INVALID_VALUE, format!("a grid of {grid:?} blocks of {block:?} threads is empty")))
    } else if grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
        Some((INVALID_VALUE, format!("a grid of {grid:?}: the limits are 2^31 - 1, 65535 and 65535")))
    } else if block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > 1024 {
        Some((
            INVALID_VALUE,
            format!("a block of {block:?}: the limits are 1024, 1024 and 64, and 1024 in all"),
        ))
    } else if shared > allowed {
        Some((
            INVALID_VALUE,
            format!(
                "{shared} bytes of dynamic shared memory; {allowed} are allowed without opting in to more"
            ),
        ))
    } else if kernel.max_threads.is_some_and(|m| threads > u64::from(m)) {
        Some((
            LAUNCH_OUT_OF_RESOURCES,
            format!("{threads} threads a block; .maxntid allows {}", kernel.max_threads.unwrap_or(0)),
        ))
    } else if kernel.required.is_some_and(|r| r != block) {
        Some((
            INVALID_VALUE,
            format!("a block of {block:?}; .reqntid wants {:?}", kernel.required.unwrap_or_default()),
        ))
    } else {
        let registers = &d.config.registers;
        registers
            .complaint(&name, d.config.compute, threads as u32)
            .map(|text| (LAUNCH_OUT_OF_RESOURCES, text))
    };
    match complaint {
        None => Ok(()),
        Some((code, text)) => {
            d.report(format!("launch of `{name}` refused ({code}): {text}"));
            Err(code)
        }
    }
}

struct Geometry {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
}

fn launch(
    d: &mut Locked,
    handle: Handle,
    g: &Geometry,
    stream: Handle,
    params: In<*const u8>,
    extra: In<*const u8>,
) -> Status {
    let stream = d.stream(stream)?;
    check_launch(d, handle, g.grid, g.block, g.shared)?;
    let kernel = function(d, handle)?.kernel.clone();
    let mut buffer = vec![0u8; kernel.param_bytes];
    if extra.at(0).is_some() {
        d.report(format!("launch of `{}` with `extra`: the emulator takes kernelParams only", kernel.name));
        return Err(NOT_SUPPORTED);
    }
    for (i, param) in kernel.params.iter().enumerate() {
        let pointer = params.at(i).filter(|p| !p.is_null());
        let Some(pointer) = pointer else {
            d.report(format!(
                "launch of `{}`: argument {i} (`{}`, {} bytes) is missing",
                kernel.name, param.name, param.size
            ));
            return Err(INVALID_VALUE);
        };
        let value = Host::from_const(pointer).snapshot(param.size);
        buffer[param.offset..param.offset + param.size].copy_from_slice(&value);
    }
    let work = KernelWork {
        kernel,
        grid: g.grid,
        block: g.block,
        params: buffer,
        dynamic_shared: g.shared as usize,
    };
    d.submit(stream, Work::Kernel(Arc::new(work)))
}

api! {
    fn cuModuleLoad(out: Out<Handle>, path: Text) |d| {
        let path = path.get()?;
        let source = std::fs::read(&path).map_err(|_| FILE_NOT_FOUND)?;
        load_into(d, out, &String::from_utf8_lossy(&source), None)
    }

    fn cuModuleLoadData(out: Out<Handle>, image: Text) |d| {
        let source = image.get()?;
        load_into(d, out, &source, None)
    }

    fn cuModuleLoadDataEx(out: Out<Handle>, image: Text, count: c_uint, options: In<c_int>, values: In<*mut c_void>) |d| {
        let source = image.get()?;
        let mut error = (None, 0usize);
        for i in 0..count as usize {
            let (Some(option), Some(value)) = (options.at(i), values.at(i)) else { return Err(INVALID_VALUE) };
            match option {
                JIT_ERROR_BUFFER => error.0 = Some(Out::from_raw(value.cast::<c_char>())),
                // Sizes travel in the pointer itself.
                JIT_ERROR_SIZE => error.1 = value as usize,
                // The information log stays empty: there is nothing to say of code that loads.
                JIT_INFO_BUFFER => Out::from_raw(value.cast::<c_char>()).set_if_wanted(0),
                JIT_INFO_SIZE => {}
                // Optimisation level, target, debug and line information change nothing here.
                _ => {}
            }
        }
        load_into(d, out, &source, error.0.map(|b| (b, error.1)))
    }

    fn cuModuleUnload(module: Handle) |d| {
        d.ready()?;
        if !d.modules.contains_key(&module) {
            return Err(INVALID_HANDLE);
        }
        d.forbid_in_capture("cuModuleUnload")?;
        unload(d, module);
        Ok(())
    }

    fn cuModuleGetFunction(out: Out<Handle>, module: Handle, name: Text) |d| {
        d.current()?;
        let name = name.get()?;
        let found = d.modules.get(&module).ok_or(INVALID_HANDLE)?.functions.get(&name).copied().ok_or(NOT_FOUND)?;
        out.set(found)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) |d| {
        d.current()?;
        let name = name.get()?;
        let (at, len) = d.modules.get(&module).ok_or(INVALID_HANDLE)?.variables.get(&name).copied().ok_or(NOT_FOUND)?;
        address.set_if_wanted(at);
        bytes.set_if_wanted(len as usize);
        Ok(())
    }

    fn cuModuleGetLoadingMode(out: Out<c_int>) |_d| { out.set(1) }

    fn cuFuncGetAttribute(out: Out<c_int>, attribute: c_int, handle: Handle) |d| {
        d.current()?;
        let sm = d.config.compute as i32;
        let f = function(d, handle)?;
        let kernel = &f.kernel;
        let value = match attribute {
            0 => kernel.max_threads.unwrap_or(1024) as i32,
            1 => kernel.shared_bytes as i32,
            2 => 0,
            3 => kernel.local_bytes as i32,
            4 => d.config.registers.of(&kernel.name, d.config.compute).unwrap_or(kernel.registers) as i32,
            5 => kernel.target as i32,
            6 => sm,
            7 => 0,
            8 => if f.max_dynamic_shared > 0 { f.max_dynamic_shared as i32 } else { (48 << 10) - kernel.shared_bytes as i32 },
            9 => -1,
            _ => return Err(INVALID_VALUE),
        };
        out.set(value)
    }

    fn cuFuncSetAttribute(handle: Handle, attribute: c_int, value: c_int) |d| {
        d.current()?;
        let most = max_shared_opt_in(d.config.compute);
        let f = d.functions.get_mut(&handle).ok_or(INVALID_HANDLE)?;
        match attribute {
            8 => {
                let wanted = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
                if wanted + f.kernel.shared_bytes as u32 > most {
                    return Err(INVALID_VALUE);
                }
                f.max_dynamic_shared = wanted;
                Ok(())
            }
            // The preferred carve-out is a hint.
            9 => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuFuncSetCacheConfig(handle: Handle, _config: c_int) |d| { function(d, handle).map(|_| ()) }

    fn cuFuncGetModule(out: Out<Handle>, handle: Handle) |d| {
        let module = function(d, handle)?.module;
        out.set(module)
    }

    fn cuLaunchKernel(
        handle: Handle,
        gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Handle, params: In<*const u8>, extra: In<*const u8>,
    ) |d| {
        launch(d, handle, &Geometry { grid: [gx, gy, gz], block: [bx, by, bz], shared }, stream, params, extra)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<c_int>, handle: Handle, block: c_int, shared: usize) |d| {
        let blocks = occupancy(function(d, handle)?, block, shared)?;
        out.set(blocks)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<c_int>, handle: Handle, block: c_int, shared: usize, _flags: c_uint) |d| {
        let blocks = occupancy(function(d, handle)?, block, shared)?;
        out.set(blocks)
    }
}

/// Blocks that fit a multiprocessor by threads and shared memory (registers are not known here).
fn occupancy(f: &Function, block: c_int, shared: usize) -> Result<c_int, i32> {
    if block <= 0 {
        return Err(INVALID_VALUE);
    }
    let by_threads = 1536 / block;
    let bytes = f.kernel.shared_bytes + shared;
    let by_shared = (100usize << 10).checked_div(bytes).map_or(16, |n| n as c_int);
    Ok(by_threads.min(by_shared).min(16))
}

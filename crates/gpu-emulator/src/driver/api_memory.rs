//! Memory: allocation, pools, pinned memory, copies and fills.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::codes::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND,
    NOT_SUPPORTED, OUT_OF_MEMORY, STREAM_CAPTURE_UNSUPPORTED,
};
use super::ffi::{Host, In, Out, Status, api};
use super::state::{Handle, Locked, Pool};
use super::stream::{Work, digest};
use crate::memory::DeviceMemory;
use crate::memory::host::HostKind;

/// Allocates device memory, beyond VRAM where the spill setting allows that.
fn allocate(d: &mut Locked, len: usize, name: &'static str) -> Result<u64, i32> {
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    if let Some(at) = d.memory.allocate(len as u64, name, true) {
        return Ok(at);
    }
    if d.config.spill {
        let at = d.memory.allocate(len as u64, name, false).ok_or(OUT_OF_MEMORY)?;
        d.spilled.insert(at);
        return Ok(at);
    }
    let (used, total) = (d.memory.used(), d.memory.total());
    d.report(format!("out of memory: {len} bytes asked for, {used} of {total} in use"));
    Err(OUT_OF_MEMORY)
}

fn free_now(d: &mut Locked, at: u64) -> Status {
    let released = !d.spilled.remove(&at);
    match d.memory.free(at, released) {
        Some(len) => {
            d.unpool(at, len);
            Ok(())
        }
        None => {
            let what = d.memory.describe(at);
            d.report(format!("cuMemFree of {what}, which is not the start of a live allocation"));
            Err(INVALID_VALUE)
        }
    }
}

fn allocate_async(d: &mut Locked, out: Out<u64>, len: usize, stream: Handle, pool: Option<Handle>) -> Status {
    let stream = d.stream(stream)?;
    if !d.config.pools {
        return Err(NOT_SUPPORTED);
    }
    let pool = pool.unwrap_or(d.current_pool);
    if !d.pools.contains_key(&pool) {
        return Err(INVALID_HANDLE);
    }
    if let Some(id) = d.streams[&stream].capture {
        // A memory node: the address is fixed now, the memory exists while the graph runs.
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let at = d.memory.allocate(len as u64, "graph allocation", false).ok_or(OUT_OF_MEMORY)?;
        d.memory.free(at, false);
        d.capture_node(stream, Work::GraphAlloc { at })?;
        if let Some(c) = d.captures.get_mut(&id) {
            c.allocations.insert(at, false);
        }
        return out.set(at);
    }
    let at = allocate(d, len, "pool allocation")?;
    d.pooled.insert(at, pool);
    if let Some(p) = d.pools.get_mut(&pool) {
        p.used += DeviceMemory::charged(len as u64);
        p.high = p.high.max(p.used);
    }
    out.set(at)
}

/// A synchronous copy or fill: through the legacy stream, and then waited for.
fn now(d: &mut Locked, what: &str, work: Work) -> Status {
    let context = d.current()?;
    d.forbid_in_capture(what)?;
    let legacy = d.contexts[&context].legacy;
    d.submit(legacy, work)?;
    d.drain(legacy, u64::MAX);
    d.current().map(|_| ())
}

fn check_range(d: &mut Locked, what: &str, at: u64, len: usize) -> Status {
    if len == 0 || d.memory.holds(at, len as u64) {
        return Ok(());
    }
    // Memory of a graph has an address before it exists; a copy captured with it is checked when it runs.
    if d.captures.values().any(|c| c.allocations.keys().any(|&a| at >= a)) {
        return Ok(());
    }
    let crate::memory::BadAccess::Address(text) = d.memory.bad(at, len as u64) else {
        return Err(INVALID_VALUE);
    };
    d.report(format!("{what} of {len} bytes: {text}"));
    Err(INVALID_VALUE)
}

fn pinned(d: &Locked, host: Host, len: usize) -> bool {
    d.memory.host.find(host.address(), len as u64).is_some()
}

fn upload(d: &mut Locked, to: u64, from: Host, len: usize, stream: Option<Handle>) -> Status {
    check_range(d, "copy to the device", to, len)?;
    if len == 0 {
        return d.current().map(|_| ());
    }
    let Some(stream) = stream else {
        let data = Arc::new(from.snapshot(len));
        return now(d, "a synchronous copy", Work::Upload { to, data });
    };
    let capturing = d.streams[&stream].capture.is_some();
    if pinned(d, from, len) {
        // A graph reads its source at each launch, so only a plain copy knows what it should find.
        let seen = if capturing { None } else { digest(&d.memory, from.address(), len as u64) };
        return d.submit(stream, Work::UploadPinned { to, from: from.address(), len: len as u64, seen });
    }
    if capturing {
        return Err(d.invalidate(
            stream,
            "a copy from pageable memory on a capturing stream",
            STREAM_CAPTURE_UNSUPPORTED,
        ));
    }
    let data = Arc::new(from.snapshot(len));
    d.submit(stream, Work::Upload { to, data })
}

fn download(d: &mut Locked, to: Host, from: u64, len: usize, stream: Option<Handle>) -> Status {
    check_range(d, "copy to the host", from, len)?;
    if len == 0 {
        return d.current().map(|_| ());
    }
    if let Some(stream) = stream {
        if pinned(d, to, len) {
            return d.submit(stream, Work::Download { to: to.address(), from, len: len as u64 });
        }
        if d.streams[&stream].capture.is_some() {
            return Err(d.invalidate(
                stream,
                "a copy to pageable memory on a capturing stream",
                STREAM_CAPTURE_UNSUPPORTED,
            ));
        }
        // To pageable memory: the call returns when the copy is done.
        d.submit(stream, Work::Empty)?;
        d.drain(stream, u64::MAX);
    } else {
        now(d, "a synchronous copy", Work::Empty)?;
    }
    d.current()?;
    let mut data = vec![0; len];
    match d.memory.read(from, &mut data, false) {
        Ok(()) => {
            to.deliver(&data);
            Ok(())
        }
        // The range was checked above, and work that ran since has freed it.
        Err(_) => {
            let what = d.memory.describe(from);
            d.report(format!(
                "copy to the host of {len} bytes from {what}, which was freed before the copy ran"
            ));
            Err(INVALID_VALUE)
        }
    }
}

fn copy(d: &mut Locked, to: u64, from: u64, len: usize, stream: Option<Handle>) -> Status {
    check_range(d, "copy on the device", to, len)?;
    check_range(d, "copy on the device", from, len)?;
    if len == 0 {
        return d.current().map(|_| ());
    }
    let work = Work::Copy { to, from, len: len as u64 };
    match stream {
        Some(stream) => d.submit(stream, work),
        None => now(d, "a synchronous copy", work),
    }
}

/// `cuMemcpy`: each side is whatever its address says.
fn copy_any(d: &mut Locked, to: u64, from: u64, len: usize, stream: Option<Handle>) -> Status {
    let known = |d: &Locked, at| d.memory.holds(at, len as u64);
    match (known(d, to), known(d, from)) {
        (true, false) => upload(d, to, Host::from_address(from), len, stream),
        (false, true) => download(d, Host::from_address(to), from, len, stream),
        _ => copy(d, to, from, len, stream),
    }
}

fn fill(d: &mut Locked, to: u64, pattern: &[u8], count: usize, stream: Option<Handle>) -> Status {
    let len = pattern.len().checked_mul(count).ok_or(INVALID_VALUE)?;
    check_range(d, "memset", to, len)?;
    if to % pattern.len() as u64 != 0 {
        return Err(INVALID_VALUE);
    }
    if count == 0 {
        return d.current().map(|_| ());
    }
    let work = Work::Fill { to, pattern: pattern.to_vec(), count: count as u64 };
    match stream {
        Some(stream) => d.submit(stream, work),
        None => now(d, "a synchronous memset", work),
    }
}

fn fill_rows(
    d: &mut Locked,
    to: u64,
    pitch: usize,
    pattern: &[u8],
    width: usize,
    rows: usize,
    stream: Option<Handle>,
) -> Status {
    if width * pattern.len() > pitch && rows > 1 {
        return Err(INVALID_VALUE);
    }
    if width == 0 || rows == 0 {
        return d.current().map(|_| ());
    }
    check_range(d, "memset", to, (rows - 1) * pitch + width * pattern.len())?;
    let work = Work::FillRows {
        to,
        pitch: pitch as u64,
        pattern: pattern.to_vec(),
        width: width as u64,
        rows: rows as u64,
    };
    match stream {
        Some(stream) => d.submit(stream, work),
        None => now(d, "a synchronous memset", work),
    }
}

fn pin(d: &mut Locked, len: usize) -> Status {
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    match d.config.pinned_limit {
        Some(limit) if d.memory.host.pinned() + len as u64 > limit => {
            let message = format!(
                "{len} bytes of pinned memory asked for, {} of {limit} in use",
                d.memory.host.pinned()
            );
            d.report(message);
            Err(OUT_OF_MEMORY)
        }
        _ => Ok(()),
    }
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Copy2d {
    src_x: usize,
    src_y: usize,
    src_type: c_int,
    src_host: *const c_void,
    src_device: u64,
    src_array: u64,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_type: c_int,
    dst_host: *mut c_void,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

fn copy_2d(d: &mut Locked, p: Copy2d, stream: Option<Handle>) -> Status {
    const HOST: c_int = 1;
    const DEVICE: c_int = 2;
    const UNIFIED: c_int = 4;
    if p.width == 0 || p.height == 0 {
        return d.current().map(|_| ());
    }
    if (p.src_pitch < p.src_x + p.width || p.dst_pitch < p.dst_x + p.width) && p.height > 1 {
        return Err(INVALID_VALUE);
    }
    let side = |kind: c_int, host: u64, device: u64| match kind {
        HOST => Ok(host),
        DEVICE | UNIFIED => Ok(device),
        _ => Err(NOT_SUPPORTED),
    };
    let from = side(p.src_type, p.src_host.expose_provenance() as u64, p.src_device)?
        + (p.src_y * p.src_pitch + p.src_x) as u64;
    let to = side(p.dst_type, p.dst_host.expose_provenance() as u64, p.dst_device)?
        + (p.dst_y * p.dst_pitch + p.dst_x) as u64;
    if d.memory.holds(from, p.width as u64) && d.memory.holds(to, p.width as u64) {
        let work = Work::CopyRows {
            to,
            to_pitch: p.dst_pitch as u64,
            from,
            from_pitch: p.src_pitch as u64,
            width: p.width as u64,
            rows: p.height as u64,
        };
        return match stream {
            Some(stream) => d.submit(stream, work),
            None => now(d, "a synchronous copy", work),
        };
    }
    for row in 0..p.height as u64 {
        copy_any(d, to + row * p.dst_pitch as u64, from + row * p.src_pitch as u64, p.width, stream)?;
    }
    Ok(())
}

api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |d| {
        d.current()?;
        total.set(d.memory.total() as usize)?;
        free.set((d.memory.total().saturating_sub(d.memory.used())) as usize)
    }

    fn cuMemAlloc_v2(out: Out<u64>, len: usize) |d| {
        d.current()?;
        d.forbid_in_capture("cuMemAlloc")?;
        let at = allocate(d, len, "allocation")?;
        out.set(at)
    }

    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: c_uint) |d| {
        d.current()?;
        d.forbid_in_capture("cuMemAllocPitch")?;
        let row = width.div_ceil(512) * 512;
        let at = allocate(d, row * height, "pitched allocation")?;
        pitch.set(row)?;
        out.set(at)
    }

    fn cuMemFree_v2(at: u64) |d| {
        let context = d.current()?;
        if at == 0 {
            return Ok(());
        }
        d.forbid_in_capture("cuMemFree")?;
        // It waits for everything that might still use the memory.
        d.drain_context(context);
        d.current()?;
        free_now(d, at)
    }

    fn cuMemAllocAsync(out: Out<u64>, len: usize, stream: Handle) |d| { allocate_async(d, out, len, stream, None) }

    fn cuMemAllocFromPoolAsync(out: Out<u64>, len: usize, pool: Handle, stream: Handle) |d| {
        allocate_async(d, out, len, stream, Some(pool))
    }

    fn cuMemFreeAsync(at: u64, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        if at == 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(id) = d.streams[&stream].capture {
            match d.captures.get_mut(&id).and_then(|c| c.allocations.get_mut(&at)) {
                Some(freed) => *freed = true,
                None => {
                    return Err(d.invalidate(stream, "cuMemFreeAsync, on a capturing stream, of memory from outside the capture", INVALID_VALUE));
                }
            }
            return d.submit(stream, Work::Free { at });
        }
        if d.memory.range(at).is_none_or(|(base, _)| base != at) {
            let what = d.memory.describe(at);
            d.report(format!("cuMemFreeAsync of {what}, which is not the start of a live allocation"));
            return Err(INVALID_VALUE);
        }
        d.submit(stream, Work::Free { at })
    }

    fn cuMemAllocHost_v2(out: Out<u64>, len: usize) |d| {
        d.current()?;
        pin(d, len)?;
        let at = d.memory.host.allocate(len as u64, HostKind::Pinned, 0).ok_or(OUT_OF_MEMORY)?;
        out.set(at)
    }

    fn cuMemHostAlloc(out: Out<u64>, len: usize, flags: c_uint) |d| {
        d.current()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        pin(d, len)?;
        let at = d.memory.host.allocate(len as u64, HostKind::Pinned, flags).ok_or(OUT_OF_MEMORY)?;
        out.set(at)
    }

    fn cuMemFreeHost(at: u64) |d| {
        let context = d.current()?;
        d.drain_context(context);
        if d.memory.host.free(at, &[HostKind::Pinned]) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuMemHostGetFlags(out: Out<c_uint>, at: Host) |d| {
        d.current()?;
        match d.memory.host.find(at.address(), 1) {
            Some((_, _, _, flags)) => out.set(flags),
            None => Err(INVALID_VALUE),
        }
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, at: Host, flags: c_uint) |d| {
        d.current()?;
        if flags != 0 || d.memory.host.find(at.address(), 1).is_none() {
            return Err(INVALID_VALUE);
        }
        out.set(at.address())
    }

    fn cuMemHostRegister_v2(at: Host, len: usize, flags: c_uint) |d| {
        d.current()?;
        pin(d, len)?;
        if d.memory.host.register(at.address(), len as u64, flags) { Ok(()) } else { Err(HOST_MEMORY_ALREADY_REGISTERED) }
    }

    fn cuMemHostUnregister(at: Host) |d| {
        let context = d.current()?;
        d.drain_context(context);
        if d.memory.host.free(at.address(), &[HostKind::Registered]) { Ok(()) } else { Err(HOST_MEMORY_NOT_REGISTERED) }
    }

    fn cuMemAllocManaged(out: Out<u64>, len: usize, _flags: c_uint) |d| {
        d.current()?;
        d.forbid_in_capture("cuMemAllocManaged")?;
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let at = d.memory.host.allocate(len as u64, HostKind::Managed, 0).ok_or(OUT_OF_MEMORY)?;
        out.set(at)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: Host, len: usize) |d| { upload(d, to, from, len, None) }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: Host, len: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        upload(d, to, from, len, Some(stream))
    }

    fn cuMemcpyDtoH_v2(to: Host, from: u64, len: usize) |d| { download(d, to, from, len, None) }

    fn cuMemcpyDtoHAsync_v2(to: Host, from: u64, len: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        download(d, to, from, len, Some(stream))
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) |d| { copy(d, to, from, len, None) }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        copy(d, to, from, len, Some(stream))
    }

    fn cuMemcpy(to: u64, from: u64, len: usize) |d| { copy_any(d, to, from, len, None) }

    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        copy_any(d, to, from, len, Some(stream))
    }

    fn cuMemcpyPeerAsync(to: u64, _to_context: Handle, from: u64, _from_context: Handle, len: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        copy(d, to, from, len, Some(stream))
    }

    fn cuMemcpy2D_v2(p: In<Copy2d>) |d| {
        let p = p.get().ok_or(INVALID_VALUE)?;
        copy_2d(d, p, None)
    }

    fn cuMemcpy2DAsync_v2(p: In<Copy2d>, stream: Handle) |d| {
        let p = p.get().ok_or(INVALID_VALUE)?;
        let stream = d.stream(stream)?;
        copy_2d(d, p, Some(stream))
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |d| { fill(d, to, &[value], count, None) }

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) |d| { fill(d, to, &value.to_le_bytes(), count, None) }

    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) |d| { fill(d, to, &value.to_le_bytes(), count, None) }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        fill(d, to, &[value], count, Some(stream))
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        fill(d, to, &value.to_le_bytes(), count, Some(stream))
    }

    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        fill(d, to, &value.to_le_bytes(), count, Some(stream))
    }

    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        fill_rows(d, to, pitch, &[value], width, height, Some(stream))
    }

    fn cuMemsetD2D32Async(to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        fill_rows(d, to, pitch, &value.to_le_bytes(), width, height, Some(stream))
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, len: Out<usize>, at: u64) |d| {
        d.current()?;
        let (start, size) = d.memory.range(at).or_else(|| d.memory.host.find(at, 1).map(|r| (r.0, r.1))).ok_or(NOT_FOUND)?;
        base.set_if_wanted(start);
        len.set_if_wanted(size as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(out: Out<u64>, attribute: c_int, at: u64) |d| {
        let context = d.current()?;
        let device = d.memory.range(at);
        let host = d.memory.host.find(at, 1);
        if device.is_none() && host.is_none() {
            return Err(INVALID_VALUE);
        }
        // Results narrower than 64 bits share the little end of the caller's variable.
        let small = |value: u32| Out::from_raw(out.pointer().cast::<u32>()).set(value);
        match attribute {
            1 => out.set(context),
            2 => small(if device.is_some() { 2 } else { 1 }),
            3 => out.set(at),
            4 => match host {
                Some(_) => out.set(at),
                None => Err(INVALID_VALUE),
            },
            9 => small(0),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemAdvise(_at: u64, _len: usize, _advice: c_int, _device: c_int) |d| { d.current().map(|_| ()) }

    fn cuMemPrefetchAsync(_at: u64, _len: usize, _device: c_int, stream: Handle) |d| { d.stream(stream).map(|_| ()) }

    fn cuDeviceGetDefaultMemPool(out: Out<Handle>, device: c_int) |d| {
        d.ready()?;
        if device != 0 {
            return Err(super::codes::INVALID_DEVICE);
        }
        if !d.config.pools {
            return Err(NOT_SUPPORTED);
        }
        out.set(d.default_pool())
    }

    fn cuDeviceGetMemPool(out: Out<Handle>, device: c_int) |d| {
        d.ready()?;
        if device != 0 {
            return Err(super::codes::INVALID_DEVICE);
        }
        out.set(d.current_pool)
    }

    fn cuDeviceSetMemPool(device: c_int, pool: Handle) |d| {
        d.ready()?;
        if device != 0 || !d.pools.contains_key(&pool) {
            return Err(INVALID_VALUE);
        }
        d.current_pool = pool;
        Ok(())
    }

    fn cuMemPoolCreate(out: Out<Handle>, _properties: Host) |d| {
        d.ready()?;
        if !d.config.pools {
            return Err(NOT_SUPPORTED);
        }
        let handle = d.handle();
        d.pools.insert(handle, Pool::default());
        out.set(handle)
    }

    fn cuMemPoolDestroy(pool: Handle) |d| {
        d.ready()?;
        if pool == d.default_pool() {
            return Err(INVALID_VALUE);
        }
        d.pools.remove(&pool).ok_or(INVALID_HANDLE)?;
        if d.current_pool == pool {
            d.current_pool = d.default_pool();
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: Handle, _keep: usize) |d| {
        // Memory goes back to the device when it is freed, so there is never anything to trim.
        d.pools.get(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_int, out: Out<u64>) |d| {
        let p = d.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        let small = |value: u64| Out::from_raw(out.pointer().cast::<u32>()).set(value as u32);
        match attribute {
            1..=3 => small(p.attributes.get(&attribute).copied().unwrap_or(1)),
            4 => out.set(p.attributes.get(&4).copied().unwrap_or(0)),
            // Reserved and used are the same here, now and at their highest.
            5 | 7 => out.set(p.used),
            6 | 8 => out.set(p.high),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: In<u64>) |d| {
        let p = d.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?;
        match attribute {
            1..=3 => {
                let small: In<u32> = value.cast();
                p.attributes.insert(attribute, u64::from(small.get().ok_or(INVALID_VALUE)?));
            }
            4 => {
                p.attributes.insert(4, value.get().ok_or(INVALID_VALUE)?);
            }
            6 | 8 => p.high = p.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

//! Pinned and managed host memory: owned by the driver, visible to the device under its host address.
//!
//! The program writes to it through raw pointers while the driver knows it, so the driver never makes a
//! reference to it: bytes are copied in and out. This file is one of those that may be unsafe.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;

/// What kind of host memory a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// `cuMemHostAlloc`, `cuMemAllocHost`.
    Pinned,
    /// `cuMemHostRegister`: the program's own memory.
    Registered,
    /// `cuMemAllocManaged`.
    Managed,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    len: u64,
    kind: HostKind,
    flags: u32,
}

/// The ranges of host memory that the device may touch.
#[derive(Debug, Default)]
pub struct HostMemory {
    ranges: BTreeMap<u64, Range>,
    pinned: u64,
}

const ALIGN: usize = 4096;

impl HostMemory {
    /// Allocates `len` bytes; `None` where the host has no more.
    pub fn allocate(&mut self, len: u64, kind: HostKind, flags: u32) -> Option<u64> {
        let layout = Layout::from_size_align(usize::try_from(len).ok()?.max(1), ALIGN).ok()?;
        // SAFETY: the layout has a size above 0; the block is freed by `free` with the same layout,
        // which this registry remembers.
        let pointer = unsafe { alloc_zeroed(layout) };
        if pointer.is_null() {
            return None;
        }
        let address = pointer.expose_provenance() as u64;
        self.ranges.insert(address, Range { len, kind, flags });
        if kind == HostKind::Pinned {
            self.pinned += len;
        }
        Some(address)
    }

    /// Registers memory of the program. `false` where it overlaps a known range.
    pub fn register(&mut self, address: u64, len: u64, flags: u32) -> bool {
        let overlaps = self
            .ranges
            .range(..address.saturating_add(len))
            .next_back()
            .is_some_and(|(a, r)| a + r.len > address);
        if overlaps || len == 0 {
            return false;
        }
        self.ranges.insert(address, Range { len, kind: HostKind::Registered, flags });
        self.pinned += len;
        true
    }

    /// Forgets the range that starts at `address`, and frees it unless it is the program's. `kinds`
    /// are those that the calling function may free.
    pub fn free(&mut self, address: u64, kinds: &[HostKind]) -> bool {
        let Some(range) = self.ranges.get(&address).copied().filter(|r| kinds.contains(&r.kind)) else {
            return false;
        };
        self.ranges.remove(&address);
        if range.kind != HostKind::Managed {
            self.pinned -= range.len;
        }
        if range.kind != HostKind::Registered {
            let layout = Layout::from_size_align((range.len as usize).max(1), ALIGN)
                .expect("it was allocated with it");
            // SAFETY: `allocate` made this block with this layout, and the range was still registered,
            // so it was not freed before.
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address as usize), layout) };
        }
        true
    }

    /// Bytes that are pinned.
    pub fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Start, length, kind and flags of the range that holds `len` bytes at `address`.
    pub fn find(&self, address: u64, len: u64) -> Option<(u64, u64, HostKind, u32)> {
        let (&start, range) = self.ranges.range(..=address).next_back()?;
        (address.checked_add(len)? <= start + range.len && address < start + range.len.max(1)).then_some((
            start,
            range.len,
            range.kind,
            range.flags,
        ))
    }

    /// Reads from a known range. `false` where it is none.
    pub fn read(&self, address: u64, out: &mut [u8]) -> bool {
        if self.find(address, out.len() as u64).is_none() {
            return false;
        }
        // SAFETY: `find` holds the whole range inside memory that is alive while it is registered;
        // `out` is a different object. Writes by the program at the same time are the program's race,
        // as they are with hardware.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::with_exposed_provenance::<u8>(address as usize),
                out.as_mut_ptr(),
                out.len(),
            );
        }
        true
    }

    /// Writes to a known range. `false` where it is none.
    pub fn write(&mut self, address: u64, data: &[u8]) -> bool {
        if self.find(address, data.len() as u64).is_none() {
            return false;
        }
        // SAFETY: as in `read`, the other way round.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                std::ptr::with_exposed_provenance_mut::<u8>(address as usize),
                data.len(),
            );
        }
        true
    }

    /// What `address` is, where it lies in or just behind a known range.
    pub fn describe(&self, address: u64) -> Option<String> {
        let (&start, range) = self.ranges.range(..=address).next_back()?;
        let kind = match range.kind {
            HostKind::Pinned => "pinned",
            HostKind::Registered => "registered",
            HostKind::Managed => "managed",
        };
        (address <= start + range.len + 4096).then(|| {
            format!(
                "{address:#x} lies {} bytes into the {}-byte {kind} host memory at {start:#x}",
                address - start,
                range.len
            )
        })
    }
}

/// Copies `len` bytes of the program's memory.
///
/// # Safety
/// - `address` points to `len` readable bytes for the duration of the call; the caller of the driver
///   function that got the pointer promises that.
pub unsafe fn snapshot(address: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    // SAFETY: readable by the caller's promise; `out` has room for `len` bytes, which are then filled.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::with_exposed_provenance::<u8>(address as usize),
            out.as_mut_ptr(),
            len,
        );
        out.set_len(len);
    }
    out
}

/// Writes `data` into the program's memory.
///
/// # Safety
/// - `address` points to `data.len()` writable bytes for the duration of the call; the caller of the
///   driver function that got the pointer promises that.
pub unsafe fn deliver(address: u64, data: &[u8]) {
    // SAFETY: writable by the caller's promise, and not part of `data`, which the driver owns.
    unsafe {
        std::ptr::copy_nonoverlapping(
            data.as_ptr(),
            std::ptr::with_exposed_provenance_mut::<u8>(address as usize),
            data.len(),
        );
    }
}

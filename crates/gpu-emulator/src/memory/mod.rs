//! Device memory: an address space of its own, in pages of 2 MiB that get host memory when touched.
//!
//! Addresses lie above 2^48, where no host pointer does, so that a host pointer passed as a device
//! pointer is caught. Each allocation has its own pages with an unmapped page behind it, addresses are
//! not used again after a free, and a page knows its exact length: so every access is checked to the
//! byte by the one lookup that finds it. Shadow bits remember which bytes were written.

pub mod host;
mod page;
pub mod race;

use host::HostMemory;
pub use page::{PageData, Written};

/// Bytes of a page, and the unit in which VRAM is charged.
pub const PAGE: u64 = 2 << 20;
/// First device address.
pub const BASE: u64 = 0x0001_d000_0000_0000;
/// Generic addresses of shared memory start here.
pub const SHARED_WINDOW: u64 = 0x0001_c000_0000_0000;
/// Generic addresses of local memory start here.
pub const LOCAL_WINDOW: u64 = 0x0001_c100_0000_0000;
/// Bytes of either window.
pub const WINDOW: u64 = 1 << 24;
/// What fresh memory holds: as f32, f16 and bf16 a NaN.
pub const POISON: u8 = 0xff;

const NONE: u32 = u32::MAX;

/// What is wrong with an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadAccess {
    /// No live allocation holds these bytes; the text says what is there instead.
    Address(String),
    /// Bytes that nothing has written.
    Uninitialised(String),
}

/// What became of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Freed,
}

/// One allocation.
#[derive(Clone, Debug)]
struct Allocation {
    base: u64,
    len: u64,
    state: State,
    name: &'static str,
}

#[derive(Debug)]
struct Page {
    allocation: u32,
    data: Option<Box<PageData>>,
}

/// All memory that a device can address.
#[derive(Debug)]
pub struct DeviceMemory {
    pages: Vec<Page>,
    allocations: Vec<Allocation>,
    /// Pinned and managed host memory.
    pub host: HostMemory,
    total: u64,
    used: u64,
    peak: u64,
    /// Whether reads of unwritten bytes are found.
    pub track_writes: bool,
}

impl DeviceMemory {
    /// A device with `total` bytes.
    pub fn new(total: u64, track_writes: bool) -> Self {
        Self {
            pages: Vec::new(),
            allocations: Vec::new(),
            host: HostMemory::default(),
            total,
            used: 0,
            peak: 0,
            track_writes,
        }
    }

    /// Bytes of the device.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Changes the size of the device; what is allocated stays.
    pub fn set_total(&mut self, total: u64) {
        self.total = total;
    }

    /// Bytes in use, in whole pages.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The most that was in use.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Live allocations.
    pub fn live(&self) -> usize {
        self.allocations.iter().filter(|a| a.state == State::Live).count()
    }

    /// Reserves `len` bytes; `None` where they don't fit. `charge` is whether VRAM pays for them.
    pub fn allocate(&mut self, len: u64, name: &'static str, charge: bool) -> Option<u64> {
        let pages = len.div_ceil(PAGE);
        if len == 0 || (charge && pages.checked_mul(PAGE)? > self.total.saturating_sub(self.used)) {
            return None;
        }
        let base = BASE + self.pages.len() as u64 * PAGE;
        let id = self.allocations.len() as u32;
        if charge {
            self.charge(pages * PAGE);
        }
        self.allocations.push(Allocation { base, len, state: State::Live, name });
        for _ in 0..pages {
            self.pages.push(Page { allocation: id, data: None });
        }
        // The guard page: what runs off the end meets it.
        self.pages.push(Page { allocation: NONE, data: None });
        Some(base)
    }

    /// Adds to the memory in use (for memory held without an allocation).
    pub fn charge(&mut self, bytes: u64) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
    }

    /// Takes memory in use back.
    pub fn release(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Bytes that VRAM pays for an allocation of `len`.
    pub fn charged(len: u64) -> u64 {
        len.div_ceil(PAGE) * PAGE
    }

    /// Frees the allocation that starts at `base`; its length, or `None` where there is none.
    /// `release`: whether VRAM gets the bytes back.
    pub fn free(&mut self, base: u64, release: bool) -> Option<u64> {
        let id = self.page(base)?.allocation;
        let allocation = self.allocations.get_mut(id as usize)?;
        if allocation.base != base || allocation.state != State::Live {
            return None;
        }
        allocation.state = State::Freed;
        let len = allocation.len;
        let first = ((base - BASE) / PAGE) as usize;
        for page in &mut self.pages[first..first + len.div_ceil(PAGE) as usize] {
            page.data = None;
        }
        if release {
            self.release(Self::charged(len));
        }
        Some(len)
    }

    /// Makes a freed allocation live again with poisoned bytes (a graph's memory node, launched again).
    pub fn revive(&mut self, base: u64) -> bool {
        let Some(id) = self.page(base).map(|p| p.allocation) else { return false };
        match self.allocations.get_mut(id as usize) {
            Some(a) if a.base == base && a.state == State::Freed => {
                a.state = State::Live;
                true
            }
            _ => false,
        }
    }

    /// Base and length of the live allocation that holds `address`.
    pub fn range(&self, address: u64) -> Option<(u64, u64)> {
        let a = self.allocations.get(self.page(address)?.allocation as usize)?;
        (a.state == State::Live && address < a.base + a.len).then_some((a.base, a.len))
    }

    /// Whether `len` bytes at `address` lie in one live allocation or in pinned memory.
    pub fn holds(&self, address: u64, len: u64) -> bool {
        match self.range(address) {
            Some((base, size)) => len <= base + size - address,
            None => self.host.find(address, len).is_some(),
        }
    }

    fn page(&self, address: u64) -> Option<&Page> {
        self.pages.get(usize::try_from(address.checked_sub(BASE)? / PAGE).ok()?)
    }

    /// The page of `address`, with host memory behind it; `None` where nothing live is there.
    #[inline]
    pub fn touch(&mut self, address: u64) -> Option<&mut PageData> {
        let index = usize::try_from(address.wrapping_sub(BASE) / PAGE).ok()?;
        if self.pages.get(index)?.data.is_none() {
            self.materialise(index)?;
        }
        self.pages[index].data.as_deref_mut()
    }

    #[cold]
    fn materialise(&mut self, index: usize) -> Option<()> {
        let track = self.track_writes;
        let page = &mut self.pages[index];
        let allocation = self.allocations.get(page.allocation as usize)?;
        if allocation.state != State::Live {
            return None;
        }
        let start = BASE + index as u64 * PAGE - allocation.base;
        let len = (allocation.len - start).min(PAGE) as usize;
        page.data = Some(Box::new(PageData::new(len, track)));
        Some(())
    }

    /// Copies `out.len()` bytes from `address`. `check`: refuse bytes that nothing has written.
    ///
    /// # Errors
    /// Memory that is not there, and unwritten bytes.
    pub fn read(&mut self, address: u64, out: &mut [u8], check: bool) -> Result<(), BadAccess> {
        let mut at = address;
        let mut rest = &mut out[..];
        while !rest.is_empty() {
            let offset = (at % PAGE) as usize;
            let n = rest.len().min(PAGE as usize - offset);
            let (now, later) = rest.split_at_mut(n);
            let Some(page) = self.touch(at) else {
                if at == address && self.host.read(at, now) {
                    rest = later;
                    at += n as u64;
                    continue;
                }
                return Err(self.bad(at, n as u64));
            };
            let Some(bytes) = page.bytes.get(offset..offset + n) else {
                return Err(self.bad(at, n as u64));
            };
            now.copy_from_slice(bytes);
            if check && let Some(first) = page.written.first_unwritten(offset, n) {
                return Err(BadAccess::Uninitialised(self.describe(at + first as u64)));
            }
            rest = later;
            at += n as u64;
        }
        Ok(())
    }

    /// Copies `data` to `address`.
    ///
    /// # Errors
    /// Memory that is not there. Nothing is written then.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), BadAccess> {
        if data.is_empty() {
            return Ok(());
        }
        if !self.holds(address, data.len() as u64) {
            return Err(self.bad(address, data.len() as u64));
        }
        if self.host.write(address, data) {
            return Ok(());
        }
        let mut at = address;
        let mut rest = data;
        while !rest.is_empty() {
            let offset = (at % PAGE) as usize;
            let n = rest.len().min(PAGE as usize - offset);
            let Some(page) = self.touch(at) else { return Err(self.bad(at, n as u64)) };
            page.bytes[offset..offset + n].copy_from_slice(&rest[..n]);
            page.written.mark(offset, n);
            rest = &rest[n..];
            at += n as u64;
        }
        Ok(())
    }

    /// Fills `count` elements of `pattern` at `address`.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn fill(&mut self, address: u64, pattern: &[u8], count: u64) -> Result<(), BadAccess> {
        let total = pattern.len() as u64 * count;
        if !self.holds(address, total) {
            return Err(self.bad(address, total));
        }
        let chunk = (1 << 16) / pattern.len() as u64;
        let block: Vec<u8> =
            pattern.iter().copied().cycle().take(chunk.min(count) as usize * pattern.len()).collect();
        let mut done = 0;
        while done < total {
            let n = (total - done).min(block.len() as u64) as usize;
            self.write(address + done, &block[..n])?;
            done += n as u64;
        }
        Ok(())
    }

    /// Copies within the device; what was never written stays unwritten.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<(), BadAccess> {
        if !self.holds(to, len) {
            return Err(self.bad(to, len));
        }
        let mut buffer = vec![0; len.min(PAGE) as usize];
        let overlap_up = to > from && to < from + len;
        if overlap_up {
            let mut all = vec![0; len as usize];
            self.read(from, &mut all, false)?;
            return self.write(to, &all);
        }
        let mut done = 0;
        while done < len {
            // Up to the end of either page, so that shadow bits copy page to page.
            let n = (len - done).min(PAGE - (from + done) % PAGE).min(PAGE - (to + done) % PAGE) as usize;
            self.read(from + done, &mut buffer[..n], false)?;
            let unwritten: Vec<usize> = match self.touch(from + done) {
                Some(page) if page.written.tracks() => {
                    let offset = ((from + done) % PAGE) as usize;
                    (0..n).filter(|i| !page.written.holds(offset + i)).collect()
                }
                _ => Vec::new(),
            };
            self.write(to + done, &buffer[..n])?;
            if !unwritten.is_empty()
                && let Some(page) = self.touch(to + done)
            {
                let offset = ((to + done) % PAGE) as usize;
                for i in unwritten {
                    page.written.clear(offset + i);
                }
            }
            done += n as u64;
        }
        Ok(())
    }

    /// Why `len` bytes at `address` cannot be touched.
    pub fn bad(&self, address: u64, len: u64) -> BadAccess {
        let end = address.saturating_add(len);
        if let Some(a) = self.page(address).and_then(|p| self.allocations.get(p.allocation as usize)) {
            let name = a.name;
            return BadAccess::Address(if a.state == State::Freed {
                format!("{address:#x} lies in the {}-byte {name} at {:#x}, which was freed", a.len, a.base)
            } else if address >= a.base + a.len {
                format!(
                    "{address:#x} is {} bytes past the end of the {}-byte {name} at {:#x}",
                    address - (a.base + a.len),
                    a.len,
                    a.base
                )
            } else {
                format!(
                    "{address:#x} + {len} runs {} bytes past the end of the {}-byte {name} at {:#x}",
                    end - (a.base + a.len),
                    a.len,
                    a.base
                )
            });
        }
        if address < 4096 {
            return BadAccess::Address(format!("{address:#x} is a null pointer"));
        }
        if address >= BASE && self.page(address).is_some() {
            // A guard page: the allocation before it is the one that was overrun.
            let index = ((address - BASE) / PAGE) as usize;
            if let Some(a) =
                index.checked_sub(1).and_then(|i| self.allocations.get(self.pages[i].allocation as usize))
            {
                return BadAccess::Address(format!(
                    "{address:#x} is {} bytes past the end of the {}-byte {} at {:#x}",
                    address - (a.base + a.len),
                    a.len,
                    a.name,
                    a.base
                ));
            }
        }
        if let Some(text) = self.host.describe(address) {
            return BadAccess::Address(text);
        }
        BadAccess::Address(if address < 1 << 47 {
            format!("{address:#x} is no device memory (a host pointer that is not pinned?)")
        } else {
            format!("{address:#x} is no device memory")
        })
    }

    /// `address` in words: how far into which allocation.
    pub fn describe(&self, address: u64) -> String {
        match self.page(address).and_then(|p| self.allocations.get(p.allocation as usize)) {
            Some(a) => format!(
                "{address:#x}, byte {} of the {}-byte {} at {:#x}",
                address - a.base,
                a.len,
                a.name,
                a.base
            ),
            None => format!("{address:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_checked() {
        let mut memory = DeviceMemory::new(64 << 20, true);
        let a = memory.allocate(1000, "allocation", true).unwrap();
        assert_eq!(memory.used(), PAGE);
        memory.write(a, &[1; 1000]).unwrap();
        let mut out = [0; 4];
        memory.read(a + 996, &mut out, true).unwrap();
        let text = |e: BadAccess| match e {
            BadAccess::Address(t) | BadAccess::Uninitialised(t) => t,
        };
        assert!(
            text(memory.read(a + 998, &mut out, true).unwrap_err())
                .contains("runs 2 bytes past the end of the 1000-byte")
        );
        assert!(text(memory.read(a + 1000, &mut out, true).unwrap_err()).contains("is 0 bytes past the end"));
        assert!(text(memory.read(0, &mut out, true).unwrap_err()).contains("null pointer"));
        let host = [0u8; 8];
        assert!(
            text(memory.read(host.as_ptr() as u64, &mut out, true).unwrap_err()).contains("host pointer")
        );
        memory.free(a, true).unwrap();
        assert_eq!(memory.used(), 0);
        assert!(text(memory.read(a, &mut out, true).unwrap_err()).contains("was freed"));
        assert_eq!(memory.free(a, true), None);
    }

    #[test]
    fn unwritten_bytes_are_known_and_copies_carry_them() {
        let mut memory = DeviceMemory::new(64 << 20, true);
        let a = memory.allocate(5 << 20, "allocation", true).unwrap();
        let b = memory.allocate(5 << 20, "allocation", true).unwrap();
        memory.write(a + PAGE - 2, &[7; 4]).unwrap();
        let mut out = [0; 5];
        assert!(memory.read(a + PAGE - 2, &mut out[..4], true).is_ok());
        assert!(matches!(memory.read(a + PAGE - 2, &mut out, true), Err(BadAccess::Uninitialised(_))));
        memory.copy(b + 1, a + PAGE - 3, 6).unwrap();
        assert!(matches!(memory.read(b + 1, &mut out[..1], true), Err(BadAccess::Uninitialised(_))));
        memory.read(b + 2, &mut out[..4], true).unwrap();
        assert_eq!(out[..4], [7; 4]);
        memory.read(b + 100, &mut out, false).unwrap();
        assert_eq!(out, [POISON; 5]);
    }

    #[test]
    fn vram_ends_where_it_should() {
        let mut memory = DeviceMemory::new(8 << 20, true);
        let a = memory.allocate(6 << 20, "allocation", true).unwrap();
        assert_eq!(memory.allocate(3 << 20, "allocation", true), None);
        memory.free(a, true).unwrap();
        assert!(memory.allocate(8 << 20, "allocation", true).is_some());
    }
}

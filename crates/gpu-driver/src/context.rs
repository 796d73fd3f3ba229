//! The context of a device: every call goes through it, so that each finds the context current and the first lost
//! context and every failure of a drop are noticed.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use cudarc::driver::sys::{CUcontext, CUdevice};

use crate::device::{self, Device};
use crate::library::{Driver, Handle};
use crate::resource::Resource;
use crate::{DriverError, Result};

/// Bytes of our own buffers on a device, or of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// In use now.
    pub in_use: u64,
    /// The most that ever was.
    pub peak: u64,
    /// What may be in use at most; `u64::MAX` where no limit was set.
    pub limit: u64,
    /// Pinned host memory in use now.
    pub pinned: u64,
}

/// The primary context of one device, and what belongs to it.
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    pub(crate) device: Device,
    number: CUdevice,
    handle: Handle<CUcontext>,
    memory: Mutex<Memory>,
    /// The call that found the context lost, and its code.
    lost: OnceLock<(&'static str, u32)>,
    /// What went wrong in drops and was not returned yet.
    dropped: Mutex<Vec<DriverError>>,
    /// What could not be freed when its owner went, because a stream captured.
    waiting: Mutex<Vec<Resource>>,
}

thread_local! {
    /// Captures that this thread has begun and not ended.
    static CAPTURES: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread captures: allocating, freeing, loading and waiting would break its capture.
pub(crate) fn captures_here() -> bool {
    CAPTURES.with(|captures| captures.get() > 0)
}

/// Notes that the calling thread begins a capture, or has ended one.
pub(crate) fn count_captures(change: i32) {
    CAPTURES.with(|captures| captures.set(captures.get().saturating_add_signed(change)));
}

/// Locks what is consistent after each statement, also where a thread died holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

impl Context {
    /// The context of a device; opening it twice gives the same one, so that memory is counted once.
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Self>> {
        let driver = Driver::get()?;
        let (number, device) = device::find(driver, ordinal)?;
        let mut open = lock(&OPEN);
        open.retain(|context| context.strong_count() > 0);
        if let Some(context) =
            open.iter().filter_map(Weak::upgrade).find(|context| context.device.ordinal == ordinal)
        {
            return Ok(context);
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call. The context is released when this is dropped.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, number) }?;
        let context = Arc::new(Self {
            driver,
            device,
            number,
            handle: Handle(handle),
            memory: Mutex::new(Memory { in_use: 0, peak: 0, limit: u64::MAX, pinned: 0 }),
            lost: OnceLock::new(),
            dropped: Mutex::new(Vec::new()),
            waiting: Mutex::new(Vec::new()),
        });
        open.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// Calls the driver with the context current on this thread.
    ///
    /// # Errors
    /// What a drop left behind, with the call not made; a context that is lost; and the call's own.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&Driver) -> Result<R>) -> Result<R> {
        if let Some(&(call, code)) = self.lost.get() {
            return Err(DriverError::Poisoned { call, code });
        }
        let left = lock(&self.dropped).pop();
        if let Some(error) = left {
            return Err(error);
        }
        self.direct(call)
    }

    /// As [`Self::call`], from a drop: a failure is kept for the next call, and a lost context is left alone, for
    /// its memory goes with it.
    pub(crate) fn call_in_drop(&self, what: &'static str, call: impl FnOnce(&Driver) -> Result<()>) {
        if self.lost.get().is_some() {
            return;
        }
        if let Err(error) = self.direct(call) {
            lock(&self.dropped).push(DriverError::Dropped { what, source: Box::new(error) });
        }
    }

    /// As [`Self::call`], but made also where a drop has left an error: for what must happen now.
    pub(crate) fn direct<R>(&self, call: impl FnOnce(&Driver) -> Result<R>) -> Result<R> {
        // SAFETY: the context was retained by `open` and is released in `drop`.
        let result = unsafe { self.driver.cuCtxSetCurrent(self.handle.0) }.and_then(|()| call(self.driver));
        if let Err(DriverError::Call { call, code }) = &result
            && crate::codes::is_sticky(*code)
        {
            // The first to see it is the one that is named.
            let _ = self.lost.set((*call, *code));
        }
        result
    }

    /// Free and total bytes of the device.
    pub(crate) fn free_memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to locals that outlive the call.
        self.call(|driver| unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }

    /// Frees what nobody owns any more, now or when no capture forbids it.
    pub(crate) fn free(&self, resource: Resource) {
        if captures_here() || !resource.try_free(self) {
            lock(&self.waiting).push(resource);
        }
    }

    /// Frees what waited for the end of a capture.
    pub(crate) fn free_waiting(&self) {
        if captures_here() {
            return;
        }
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        let still: Vec<Resource> = waiting.into_iter().filter(|resource| !resource.try_free(self)).collect();
        lock(&self.waiting).extend(still);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nobody is left to tell of a failure; the driver releases all of it when the process ends.
        // SAFETY: retained once by `open`, and nothing that holds it is left.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.number) };
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gpu, PinnedBuffer};

    /// Another context that says it is of device 1; the emulator has one device.
    fn other(context: &Context) -> Gpu {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a local; what is retained here is released by the drop of what holds it.
        unsafe { context.driver.cuDevicePrimaryCtxRetain(&raw mut handle, context.number) }.unwrap();
        let memory = Memory { in_use: 0, peak: 0, limit: u64::MAX, pinned: 0 };
        let other = Context {
            driver: context.driver,
            device: Device { ordinal: 1, ..context.device.clone() },
            number: context.number,
            handle: Handle(handle),
            memory: Mutex::new(memory),
            lost: OnceLock::new(),
            dropped: Mutex::new(Vec::new()),
            waiting: Mutex::new(Vec::new()),
        };
        Gpu { context: Arc::new(other) }
    }

    #[test]
    fn what_is_of_another_device_is_refused() {
        gpu_emulator::install().unwrap();
        let gpu = Gpu::open(0).unwrap();
        let other = other(&gpu.context);
        let stream = gpu.stream().unwrap();
        let there = other.stream().unwrap();
        let mut buffer = there.buffer(&[1.0f32; 4]).unwrap();
        let event = other.event().unwrap();
        event.record(&there).unwrap();
        let refused = DriverError::OtherDevice { stream: 0, other: 1 };
        assert_eq!(stream.wait(&event), Err(refused.clone()));
        assert_eq!(stream.read(&buffer), Err(refused.clone()));
        assert_eq!(stream.upload(&[0.0; 4], &mut buffer), Err(refused.clone()));
        assert_eq!(stream.zero(&mut buffer), Err(refused.clone()));
        let pinned: PinnedBuffer<f32> = gpu.pinned(4).unwrap();
        let back = stream.fetch(buffer, pinned).unwrap_err();
        assert_eq!(back.error, refused);
        assert!(refused.to_string().contains("a stream of cuda:0 cannot use what is of cuda:1"));
    }
}

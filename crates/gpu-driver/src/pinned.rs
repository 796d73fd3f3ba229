//! Pinned host memory, and copies that run beside other work.
//!
//! ```text
//! Stream::send(PinnedBuffer, Buffer) ─► Transfer ─ wait ─► (PinnedBuffer, Buffer)
//!                                          └─ continue_on(other stream) ─► (Buffer, InFlight) ─ wait ─► PinnedBuffer
//! PinnedBuffer ─ freeze ─► FrozenBuffer: never written again, so any number of copies may read it, captured ones too
//! ```
//!
//! The host must not touch pinned memory that a copy works on, so the copy owns it, and dropping the handle waits.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, RangeBounds};
use std::sync::Arc;

use cudarc::driver::sys::CUstream;

use crate::buffer::resolve;
use crate::context::Context;
use crate::element::{DeviceType, bytes};
use crate::library::Driver;
use crate::resource::Owned;
use crate::stream::same_length;
use crate::{Buffer, DriverError, Event, Result, Stream, ViewMut};

/// `len` elements of pinned host memory, readable by the CPU at full speed.
#[derive(Debug)]
pub struct PinnedBuffer<T> {
    owner: Arc<Owned>,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T: DeviceType> PinnedBuffer<T> {
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self> {
        Ok(Self { owner: Owned::pinned(context, bytes::<T>(len)?)?, len, _elements: PhantomData })
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the owner holds `len` initialised elements, which no copy works on while this exists: a copy takes
        // the buffer. The driver aligns to a page.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len) }
    }

    /// The elements, to write.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len) }
    }

    /// Gives up writing for good, so that copies may share it.
    pub fn freeze(self) -> FrozenBuffer<T> {
        FrozenBuffer(Arc::new(self))
    }

    fn pointer(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.owner.address() as usize)
    }
}

/// Pinned memory that is never written again. Clones share it.
#[derive(Debug, Clone)]
pub struct FrozenBuffer<T>(Arc<PinnedBuffer<T>>);

impl<T: DeviceType> Deref for FrozenBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_slice()
    }
}

/// A copy that was not enqueued, with both ends.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// Why not.
    pub error: DriverError,
    /// The host's end.
    pub host: PinnedBuffer<T>,
    /// The device's end.
    pub device: Buffer<T>,
}

impl<T> From<Refused<T>> for DriverError {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

impl<T> From<Box<Refused<T>>> for DriverError {
    fn from(refused: Box<Refused<T>>) -> Self {
        refused.error
    }
}

/// A copy in flight, which owns both ends. Dropping it waits.
#[derive(Debug)]
pub struct Transfer<T: DeviceType> {
    device: Buffer<T>,
    host: InFlight<T>,
}

/// The host's end of a copy in flight. Dropping it waits.
#[derive(Debug)]
pub struct InFlight<T: DeviceType> {
    // Its memory waits for the streams that used it before it is freed.
    buffer: PinnedBuffer<T>,
    done: Event,
}

impl<T: DeviceType> Transfer<T> {
    /// Waits for the copy and gives both ends back.
    ///
    /// # Errors
    /// A failure of the copy or of work before it; both ends are freed then.
    pub fn wait(self) -> Result<(PinnedBuffer<T>, Buffer<T>)> {
        Ok((self.host.wait()?, self.device))
    }

    /// Whether it is done.
    ///
    /// # Errors
    /// A failure of the copy or of work before it.
    pub fn is_done(&self) -> Result<bool> {
        self.host.done.is_done()
    }

    /// Makes later work of `stream` wait for the copy, without waiting here, and gives the device's end to it.
    ///
    /// # Errors
    /// The call fails; the copy is waited for and both ends are freed then.
    pub fn continue_on(self, stream: &Stream) -> Result<(Buffer<T>, InFlight<T>)> {
        stream.wait(&self.host.done)?;
        Ok((self.device, self.host))
    }
}

impl<T: DeviceType> InFlight<T> {
    /// Waits for the copy and gives the host's end back.
    ///
    /// # Errors
    /// A failure of the copy or of work before it; the memory is freed then.
    pub fn wait(self) -> Result<PinnedBuffer<T>> {
        self.done.synchronize()?;
        Ok(self.buffer)
    }
}

impl Stream {
    /// Copies pinned memory to the device beside the host's work. Both are owned by the copy until it is waited for.
    ///
    /// # Errors
    /// The lengths differ, the stream captures, or the call fails; both ends come back with the error.
    pub fn send<T: DeviceType>(
        &self,
        host: PinnedBuffer<T>,
        mut device: Buffer<T>,
    ) -> std::result::Result<Transfer<T>, Box<Refused<T>>> {
        let to = device.view_mut();
        let (from, bytes) = (host.pointer().cast_const(), host.len * size_of::<T>());
        let same = same_length("sending to the device", host.len, to.len());
        let enqueued = same.and_then(|()| {
            self.in_flight(&[&host.owner, to.owner()], bytes, |driver, stream| {
                // SAFETY: both hold as many bytes; the transfer owns both until the copy is done.
                unsafe { driver.cuMemcpyHtoDAsync_v2(to.address(), from.cast(), bytes, stream) }
            })
        });
        transfer(enqueued, host, device)
    }

    /// Copies device memory to pinned memory beside the host's work. Both are owned by the copy until it is waited
    /// for.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn fetch<T: DeviceType>(
        &self,
        device: Buffer<T>,
        host: PinnedBuffer<T>,
    ) -> std::result::Result<Transfer<T>, Box<Refused<T>>> {
        let from = device.view();
        let (to, bytes) = (host.pointer(), host.len * size_of::<T>());
        let same = same_length("fetching from the device", from.len(), host.len);
        let enqueued = same.and_then(|()| {
            self.in_flight(&[&host.owner, from.owner()], bytes, |driver, stream| {
                // SAFETY: both hold as many bytes; the transfer owns both until the copy is done.
                unsafe { driver.cuMemcpyDtoHAsync_v2(to.cast(), from.address(), bytes, stream) }
            })
        });
        transfer(enqueued, host, device)
    }

    /// Copies a part of frozen pinned memory to the device, in the order of the stream. Captured, the graph keeps
    /// the memory and reads it at each launch.
    ///
    /// # Errors
    /// The range, or lengths that differ; the call fails.
    pub fn send_frozen<'a, T: DeviceType>(
        &self,
        from: &FrozenBuffer<T>,
        range: impl RangeBounds<usize>,
        to: impl Into<ViewMut<'a, T>>,
    ) -> Result<()> {
        let to = to.into();
        let (start, len) = resolve(range, from.0.len)?;
        same_length("sending to the device", len, to.len())?;
        if len == 0 {
            return Ok(());
        }
        let source = from.0.pointer().cast_const().wrapping_add(start);
        // SAFETY: `source` points at `len` elements that are never written again; `submit` keeps both ends until the
        // copy is done, or as long as the graph.
        self.inner.submit(&[&from.0.owner, to.owner()], |driver, stream| unsafe {
            driver.cuMemcpyHtoDAsync_v2(to.address(), source.cast(), len * size_of::<T>(), stream)
        })
    }

    /// Enqueues a copy whose ends somebody gets back, and the event of its end.
    fn in_flight(
        &self,
        ends: &[&Arc<Owned>],
        bytes: usize,
        copy: impl FnOnce(&Driver, CUstream) -> Result<()>,
    ) -> Result<Event> {
        let remedy = "freeze the buffer and use Stream::send_frozen, or copy outside of the graph";
        let capture = self.inner.outside_capture("a copy whose memory comes back", remedy)?;
        self.inner.same_device(ends)?;
        let done = Event::new(&self.inner.context)?;
        for end in ends {
            end.use_on(&self.inner);
        }
        if bytes > 0 {
            self.inner.context.call(|driver| copy(driver, self.inner.handle()))?;
        }
        if let Err(error) = done.record_holding(self, &capture) {
            // The ends go back to their owner, so the copy must not be in flight.
            self.inner.drain_holding("transfer", &capture);
            return Err(error);
        }
        Ok(done)
    }
}

/// The handle of a copy that was enqueued, or both ends.
fn transfer<T: DeviceType>(
    enqueued: Result<Event>,
    host: PinnedBuffer<T>,
    device: Buffer<T>,
) -> std::result::Result<Transfer<T>, Box<Refused<T>>> {
    match enqueued {
        Ok(done) => Ok(Transfer { device, host: InFlight { buffer: host, done } }),
        Err(error) => Err(Box::new(Refused { error, host, device })),
    }
}

//! Streams: queues of work, each in its order, and none ordered with another except through an [`Event`].
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::CUstream;

use crate::capture::Record;
use crate::context::{Context, lock};
use crate::library::{Driver, Handle};
use crate::resource::Owned;
use crate::{Buffer, DeviceType, DriverError, Event, Gpu, Result, View, ViewMut};

const NON_BLOCKING: u32 = 1;

/// A queue of work on a device. Clones are the same queue.
///
/// It is non-blocking: the legacy default stream, which other libraries may use, neither waits for it nor is waited
/// for. Work of two streams is unordered until one waits for an event of the other.
#[derive(Debug, Clone)]
pub struct Stream {
    pub(crate) inner: Arc<StreamInner>,
}

/// The queue itself.
pub(crate) struct StreamInner {
    pub(crate) context: Arc<Context>,
    handle: Handle<CUstream>,
    /// The capture that it takes part in.
    capture: Mutex<Option<Arc<Record>>>,
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        context.call(|driver| unsafe { driver.cuStreamCreate(&raw mut handle, NON_BLOCKING) })?;
        let inner =
            StreamInner { context: context.clone(), handle: Handle(handle), capture: Mutex::new(None) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device.
    pub fn gpu(&self) -> Gpu {
        Gpu { context: self.inner.context.clone() }
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    /// A failure of that work, and [`DriverError::InCapture`] while it captures.
    pub fn synchronize(&self) -> Result<()> {
        let _idle = self.inner.outside_capture("waiting for a stream", "wait after Capture::end")?;
        self.inner.synchronize()
    }

    /// Whether all its work is done.
    ///
    /// # Errors
    /// As [`Self::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        let _idle =
            self.inner.outside_capture("asking whether a stream is done", "ask after Capture::end")?;
        // SAFETY: the handle is of a stream that this owns.
        match self.inner.context.call(|driver| unsafe { driver.cuStreamQuery(self.inner.handle.0) }) {
            Ok(()) => Ok(true),
            Err(DriverError::Call { code: 600, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether it captures.
    pub fn is_capturing(&self) -> bool {
        self.inner.lock().is_some()
    }

    /// Makes later work of this stream wait for what was before the event. Within a capture that is how another
    /// stream joins it, and how it is joined again.
    ///
    /// # Errors
    /// The event was never recorded, or only one of the two belongs to a capture: that would break it.
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.wait_on(&self.inner)
    }

    /// Copies to the device and waits until it is done, and everything before it on this stream.
    ///
    /// # Errors
    /// The lengths differ; a capture; a failure of earlier work.
    pub fn upload<'a, T: DeviceType>(&self, from: &[T], to: impl Into<ViewMut<'a, T>>) -> Result<()> {
        let to = to.into();
        same_length("copying to the device", from.len(), to.len())?;
        let _idle = self.inner.outside_capture(
            "copying from pageable memory",
            "freeze a pinned buffer and use Stream::send_frozen",
        )?;
        self.inner.same_device(&[to.owner()])?;
        to.owner().use_on(&self.inner);
        let bytes = size_of_val(from);
        if bytes == 0 {
            return self.inner.synchronize();
        }
        // SAFETY: the slice is borrowed until the stream is done with it, below; the view holds as many bytes.
        self.inner.context.call(|driver| unsafe {
            driver.cuMemcpyHtoDAsync_v2(to.address(), from.as_ptr().cast(), bytes, self.inner.handle.0)
        })?;
        self.inner.synchronize()
    }

    /// A new buffer that holds `from`; see [`Self::upload`].
    ///
    /// # Errors
    /// As [`Self::upload`] and [`Gpu::buffer`].
    pub fn buffer<T: DeviceType>(&self, from: &[T]) -> Result<Buffer<T>> {
        let mut buffer = Buffer::new(&self.inner.context, from.len())?;
        self.upload(from, &mut buffer)?;
        Ok(buffer)
    }

    /// Copies from the device and waits until it is done, and everything before it on this stream.
    ///
    /// # Errors
    /// The lengths differ; a capture; a failure of earlier work.
    pub fn download<'a, T: DeviceType>(&self, from: impl Into<View<'a, T>>, to: &mut [T]) -> Result<()> {
        let from = from.into();
        same_length("copying from the device", from.len(), to.len())?;
        let _idle =
            self.inner.outside_capture("copying to pageable memory", "copy after the graph was launched")?;
        self.inner.same_device(&[from.owner()])?;
        from.owner().use_on(&self.inner);
        let bytes = size_of_val(to);
        if bytes == 0 {
            return self.inner.synchronize();
        }
        // SAFETY: the slice is borrowed until the stream is done with it, below; the view holds as many bytes.
        self.inner.context.call(|driver| unsafe {
            driver.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.address(), bytes, self.inner.handle.0)
        })?;
        self.inner.synchronize()
    }

    /// The content of a buffer; see [`Self::download`].
    ///
    /// # Errors
    /// As [`Self::download`].
    pub fn read<'a, T: DeviceType>(&self, from: impl Into<View<'a, T>>) -> Result<Vec<T>> {
        let from = from.into();
        let mut to = vec![T::zeroed(); from.len()];
        self.download(from, &mut to)?;
        Ok(to)
    }

    /// Copies within the device, in the order of the stream.
    ///
    /// # Errors
    /// The lengths differ, or the call fails.
    pub fn copy<'a, 'b, T: DeviceType>(
        &self,
        from: impl Into<View<'a, T>>,
        to: impl Into<ViewMut<'b, T>>,
    ) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        same_length("copying on the device", from.len(), to.len())?;
        let bytes = from.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both views hold as many bytes, and `submit` keeps their memory until the copy is done.
        self.inner.submit(&[from.owner(), to.owner()], |driver, stream| unsafe {
            driver.cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, stream)
        })
    }

    /// Fills with zero bytes, in the order of the stream.
    ///
    /// # Errors
    /// The call fails.
    pub fn zero<'a, T: DeviceType>(&self, to: impl Into<ViewMut<'a, T>>) -> Result<()> {
        let to = to.into();
        let bytes = to.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the view holds as many bytes, and `submit` keeps its memory until the fill is done.
        self.inner.submit(&[to.owner()], |driver, stream| unsafe {
            driver.cuMemsetD8Async(to.address(), 0, bytes, stream)
        })
    }
}

impl StreamInner {
    /// Enqueues work. Its resources live until the work is done, or, in a capture, as long as its graph.
    pub(crate) fn submit(
        self: &Arc<Self>,
        resources: &[&Arc<Owned>],
        work: impl FnOnce(&Driver, CUstream) -> Result<()>,
    ) -> Result<()> {
        self.submit_if(resources, |_| Ok(()), work)
    }

    /// As [`Self::submit`], where `may` has nothing against the capture that the stream is in.
    pub(crate) fn submit_if(
        self: &Arc<Self>,
        resources: &[&Arc<Owned>],
        may: impl FnOnce(Option<&Record>) -> Result<()>,
        work: impl FnOnce(&Driver, CUstream) -> Result<()>,
    ) -> Result<()> {
        self.same_device(resources)?;
        let capture = self.lock();
        may(capture.as_deref())?;
        let result = self.context.call(|driver| work(driver, self.handle.0));
        match &*capture {
            Some(record) => match result {
                Ok(()) => record.keep(resources),
                Err(error) => {
                    record.failed(&error);
                    return Err(error);
                }
            },
            None => {
                result?;
                for resource in resources {
                    resource.use_on(self);
                }
            }
        }
        Ok(())
    }

    /// That everything is of the stream's device: addresses of another one would cost the context.
    pub(crate) fn same_device(&self, resources: &[&Arc<Owned>]) -> Result<()> {
        match resources.iter().find(|resource| !Arc::ptr_eq(&resource.context, &self.context)) {
            None => Ok(()),
            Some(other) => Err(DriverError::OtherDevice {
                stream: self.context.device.ordinal,
                other: other.context.device.ordinal,
            }),
        }
    }

    /// The lock on the capture it takes part in.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Arc<Record>>> {
        lock(&self.capture)
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle.0
    }

    /// That it does not capture, and does not begin to while the guard lives.
    pub(crate) fn outside_capture(
        &self,
        operation: &'static str,
        remedy: &'static str,
    ) -> Result<MutexGuard<'_, Option<Arc<Record>>>> {
        let capture = self.lock();
        match *capture {
            Some(_) => Err(DriverError::InCapture { operation, remedy }),
            None => Ok(capture),
        }
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is of a stream that this owns.
        self.context.call(|driver| unsafe { driver.cuStreamSynchronize(self.handle.0) })
    }

    /// Waits for its work, from a drop; `false`, at once, where it captures.
    pub(crate) fn drain_for_drop(&self, what: &'static str) -> bool {
        self.drain_holding(what, &self.lock())
    }

    /// As [`Self::drain_for_drop`], by who holds the lock on the capture.
    pub(crate) fn drain_holding(&self, what: &'static str, capture: &Option<Arc<Record>>) -> bool {
        if capture.is_some() {
            return false;
        }
        // SAFETY: the handle is of a stream that this owns.
        self.context.call_in_drop(what, |driver| unsafe { driver.cuStreamSynchronize(self.handle.0) });
        true
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // SAFETY: made by `Stream::new`, and nothing that holds it is left; its work still runs to the end.
        self.context.call_in_drop("stream", |driver| unsafe { driver.cuStreamDestroy_v2(self.handle.0) });
    }
}

impl std::fmt::Debug for StreamInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("handle", &self.handle).finish_non_exhaustive()
    }
}

pub(crate) fn same_length(operation: &'static str, from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(DriverError::Lengths { operation, from, to }) }
}

//! Opening a device, and its memory.

use std::sync::Arc;

use crate::context::{Context, Memory};
use crate::device::Device;
use crate::{Buffer, DeviceType, Event, PinnedBuffer, Result, Stream};

/// An open device. Clones share it; whatever was made from it keeps it open.
#[derive(Debug, Clone)]
pub struct Gpu {
    pub(crate) context: Arc<Context>,
}

impl Gpu {
    /// Opens the device of this number (its primary context, which other libraries of the process share).
    ///
    /// # Errors
    /// There is no driver, it is too old, or there is no such device: the error lists those that there are.
    pub fn open(ordinal: u32) -> Result<Self> {
        Ok(Self { context: Context::open(ordinal)? })
    }

    /// What it is.
    pub fn device(&self) -> &Device {
        &self.context.device
    }

    /// The newest CUDA version that the driver supports, as (major, minor).
    ///
    /// # Errors
    /// The call fails.
    pub fn driver_version(&self) -> Result<(u32, u32)> {
        self.context.driver.version()
    }

    /// Free and total bytes of the device now; other programs take their share of what is free.
    ///
    /// # Errors
    /// The context is lost.
    pub fn free_memory(&self) -> Result<(u64, u64)> {
        self.context.free_memory()
    }

    /// Bytes of our own buffers, in multiples of 256. The context itself takes 300 to 500 MB besides.
    pub fn memory(&self) -> Memory {
        *self.context.memory()
    }

    /// Sets what [`Memory::in_use`] may reach; `u64::MAX` for no limit. Buffers that exist stay.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.context.memory().limit = bytes;
    }

    /// A stream of its own, which is not ordered with any other.
    ///
    /// # Errors
    /// The call fails.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(&self.context)
    }

    /// An event that was not recorded yet.
    ///
    /// # Errors
    /// The call fails.
    pub fn event(&self) -> Result<Event> {
        Event::new(&self.context)
    }

    /// A buffer of `len` elements whose content is unspecified until something writes it.
    ///
    /// The memory is plain, not stream-ordered: it is valid on every stream at once, it cannot become a node of a
    /// captured graph, and a buffer that goes is freed when the streams that used it are done.
    ///
    /// # Errors
    /// No room, over the limit, or a capture on this thread.
    pub fn buffer<T: DeviceType>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::new(&self.context, len)
    }

    /// Pinned host memory of `len` zeros.
    ///
    /// # Errors
    /// The system pins no more, or a capture on this thread.
    pub fn pinned<T: DeviceType>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        PinnedBuffer::new(&self.context, len)
    }

    /// Reports what is left of failed drops, one a call, and whether the context is lost.
    ///
    /// # Errors
    /// Those.
    pub fn check(&self) -> Result<()> {
        self.context.call(|_| Ok(()))
    }
}

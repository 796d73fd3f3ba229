//! What the driver gives and must get back: device memory, pinned memory, modules, executable graphs, cuBLAS handles.
//!
//! Work on a stream uses them after the call that enqueued it has returned, so each notes the streams that it was
//! used on. When its last owner goes, those streams are waited for, and then it is freed. While one of them captures,
//! or the thread itself does, neither is possible without breaking the capture; it then waits in the context, and is
//! freed when the capture ends.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUgraphExec, CUmodule};

use crate::blas::BlasHandle;
use crate::context::{Context, captures_here, lock};
use crate::library::Handle;
use crate::stream::StreamInner;
use crate::{DriverError, Result};

/// What there is to give back.
#[derive(Debug)]
pub(crate) enum Kind {
    Device { address: u64, bytes: u64 },
    Pinned { address: Handle<*mut c_void>, bytes: u64 },
    Module(Handle<CUmodule>),
    GraphExec(Handle<CUgraphExec>),
    Blas(BlasHandle),
}

/// One such thing without an owner, and the streams whose work may still use it.
#[derive(Debug)]
pub(crate) struct Resource {
    kind: Kind,
    used_on: Vec<Arc<StreamInner>>,
}

impl Resource {
    /// Waits for its streams and frees it; `false` where one of them captures. The thread itself does not capture.
    pub(crate) fn try_free(&self, context: &Context) -> bool {
        for stream in &self.used_on {
            if !stream.drain_for_drop(self.name()) {
                return false;
            }
        }
        // SAFETY: `Owned` made the resource and was its last owner; work that used it is done.
        context.call_in_drop(self.name(), |driver| unsafe {
            match &self.kind {
                Kind::Device { address, .. } => driver.cuMemFree_v2(*address),
                Kind::Pinned { address, .. } => driver.cuMemFreeHost(address.0),
                Kind::Module(module) => driver.cuModuleUnload(module.0),
                Kind::GraphExec(graph) => driver.cuGraphExecDestroy(graph.0),
                Kind::Blas(handle) => handle.destroy(),
            }
        });
        let mut memory = context.memory();
        match self.kind {
            Kind::Device { bytes, .. } => memory.in_use -= bytes,
            Kind::Pinned { bytes, .. } => memory.pinned -= bytes,
            _ => {}
        }
        true
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Device { .. } => "buffer",
            Kind::Pinned { .. } => "pinned buffer",
            Kind::Module(_) => "module",
            Kind::GraphExec(_) => "graph",
            Kind::Blas(_) => "cuBLAS handle",
        }
    }
}

/// A resource with its owners: buffers and views, kernels, graphs.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) context: Arc<Context>,
    kind: Option<Kind>,
    used_on: Mutex<Vec<Arc<StreamInner>>>,
}

impl Owned {
    pub(crate) fn new(context: Arc<Context>, kind: Kind) -> Arc<Self> {
        Arc::new(Self { context, kind: Some(kind), used_on: Mutex::new(Vec::new()) })
    }

    /// Device memory, aligned to 256 bytes, of unspecified content.
    ///
    /// # Errors
    /// A capture on this thread, the limit, no room.
    pub(crate) fn device(context: &Arc<Context>, bytes: usize) -> Result<Arc<Self>> {
        if captures_here() {
            return Err(DriverError::InCapture {
                operation: "allocating device memory",
                remedy: "allocate before Capture::begin",
            });
        }
        // An empty buffer has an address of its own, for address 0 means "not given" to a kernel.
        let bytes = bytes.max(1);
        // The driver's own granularity is its affair; 256 is what every allocation is aligned to.
        let counted = (bytes as u64).next_multiple_of(256);
        {
            let mut memory = context.memory();
            let in_use = memory.in_use;
            if in_use.checked_add(counted).is_none_or(|total| total > memory.limit) {
                return Err(DriverError::OverLimit { requested: counted, in_use, limit: memory.limit });
            }
            memory.in_use += counted;
            memory.peak = memory.peak.max(memory.in_use);
        }
        let mut address = 0;
        // SAFETY: the pointer is to a local that outlives the call. Plain memory is valid on every stream at once.
        let result = context.call(|driver| unsafe { driver.cuMemAlloc_v2(&raw mut address, bytes) });
        if let Err(error) = result {
            let in_use = {
                let mut memory = context.memory();
                memory.in_use -= counted;
                memory.in_use
            };
            if !matches!(error, DriverError::Call { code: 2, .. }) {
                return Err(error);
            }
            let (free, total) = context.free_memory()?;
            return Err(DriverError::OutOfMemory { requested: counted, free, total, in_use });
        }
        Ok(Self::new(context.clone(), Kind::Device { address, bytes: counted }))
    }

    /// Pinned host memory, which the CPU reads and writes at full speed (not write-combined), filled with zeros.
    ///
    /// # Errors
    /// A capture on this thread, or the system pins no more.
    pub(crate) fn pinned(context: &Arc<Context>, bytes: usize) -> Result<Arc<Self>> {
        if captures_here() {
            return Err(DriverError::InCapture {
                operation: "pinning host memory",
                remedy: "make the buffer before Capture::begin",
            });
        }
        let bytes = bytes.max(1);
        let mut address = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        let result = context.call(|driver| unsafe { driver.cuMemHostAlloc(&raw mut address, bytes, 0) });
        let requested = bytes as u64;
        if let Err(error) = result {
            return Err(match error {
                DriverError::Call { code: 2, .. } => {
                    DriverError::OutOfPinned { requested, in_use: context.memory().pinned }
                }
                other => other,
            });
        }
        context.memory().pinned += requested;
        // SAFETY: the driver gave this many bytes, which nobody else knows of yet.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self::new(context.clone(), Kind::Pinned { address: Handle(address), bytes: requested }))
    }

    pub(crate) fn kind(&self) -> Option<&Kind> {
        self.kind.as_ref()
    }

    /// The device address, of device or pinned memory (one address space).
    pub(crate) fn address(&self) -> u64 {
        match &self.kind {
            Some(Kind::Device { address, .. }) => *address,
            Some(Kind::Pinned { address, .. }) => address.0.expose_provenance() as u64,
            _ => 0,
        }
    }

    /// Notes that work on a stream uses it.
    pub(crate) fn use_on(&self, stream: &Arc<StreamInner>) {
        let mut used_on = lock(&self.used_on);
        if !used_on.iter().any(|known| Arc::ptr_eq(known, stream)) {
            used_on.push(stream.clone());
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(kind) = self.kind.take() {
            let used_on = std::mem::take(&mut *lock(&self.used_on));
            self.context.free(Resource { kind, used_on });
        }
    }
}

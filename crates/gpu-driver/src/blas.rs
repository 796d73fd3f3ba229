//! Products by cuBLAS, where it is installed: inputs of f16, bf16 or f32, sums and results in f32.
//!
//! A handle belongs to one stream and has a workspace of its own, so that nothing races and the same product gives
//! the same bits (for one version of cuBLAS, one architecture and one number of multiprocessors). Setting a stream
//! makes cuBLAS forget its workspace, so the two are set together, here only; and [`crate::Capture::begin`] sets them
//! again, because a handle without a workspace allocates one inside the capture.
//!
//! Matrices are row-major. cuBLAS has columns first, where a row-major matrix is its own transpose: C = A B becomes
//! C' = B' A', the same memory with the operands swapped.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_longlong, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::cublas::sys::cublasHandle_t;
use cudarc::driver::sys::CUstream;
use kernels_ptx::Element;
use libloading::Library;

use crate::capture::Record;
use crate::context::{captures_here, lock};
use crate::library::{Handle, functions};
use crate::resource::{Kind, Owned};
use crate::{Buffer, DeviceType, DriverError, Result, Stream, View, ViewMut};

/// Names under which cuBLAS is looked for, in this order.
const NAMES: &[&str] = if cfg!(windows) {
    &["cublas64_13.dll", "cublas64_12.dll", "cublas64_11.dll"]
} else {
    &["libcublas.so", "libcublas.so.13", "libcublas.so.12", "libcublas.so.11"]
};

const HOST_POINTERS: c_int = 0;
/// Sums of half-precision products are kept in f32 to the end, also where a product is split.
const DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;
const COMPUTE_32F: c_int = 68;
const DEFAULT_ALGORITHM: c_int = -1;
const TF32_OVERRIDE: &str = "NVIDIA_TF32_OVERRIDE";

fn missing(function: &'static str) -> DriverError {
    DriverError::OldBlas { function }
}

fn checked(call: &'static str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        status => Err(DriverError::Blas { call, status: status.unsigned_abs() }),
    }
}

functions! {
    /// What this crate calls of cuBLAS.
    Functions, missing, checked;
    fn cublasCreate_v2(handle: *mut cublasHandle_t);
    fn cublasDestroy_v2(handle: cublasHandle_t);
    fn cublasGetVersion_v2(handle: cublasHandle_t, version: *mut c_int);
    fn cublasSetStream_v2(handle: cublasHandle_t, stream: CUstream);
    fn cublasSetWorkspace_v2(handle: cublasHandle_t, workspace: *mut c_void, bytes: usize);
    fn cublasSetPointerMode_v2(handle: cublasHandle_t, mode: c_int);
    fn cublasSetMathMode(handle: cublasHandle_t, mode: c_int);
    fn cublasGemmStridedBatchedEx(
        handle: cublasHandle_t, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: *const c_void, a_type: c_int, a_stride: c_int, a_batch: c_longlong,
        b: *const c_void, b_type: c_int, b_stride: c_int, b_batch: c_longlong, beta: *const c_void,
        c: *mut c_void, c_type: c_int, c_stride: c_int, c_batch: c_longlong,
        count: c_int, compute: c_int, algorithm: c_int,
    );
}

/// Opens a library, once for the process; it is held for good.
fn open(path: Option<&Path>) -> Result<&'static Functions> {
    static OPEN: Mutex<Vec<(Option<PathBuf>, &'static Functions)>> = Mutex::new(Vec::new());
    let mut open = lock(&OPEN);
    if let Some((_, functions)) = open.iter().find(|(known, _)| known.as_deref() == path) {
        return Ok(functions);
    }
    let library = match path {
        Some(path) => first_of(&[path])?,
        None => first_of(NAMES)?,
    };
    let functions: &'static Functions = Box::leak(Box::new(Functions::look_up(library)?));
    open.push((path.map(Path::to_owned), functions));
    Ok(functions)
}

/// The first that can be opened.
fn first_of<P: AsRef<Path>>(names: &[P]) -> Result<&'static Library> {
    for name in names {
        // SAFETY: cuBLAS's initialisers are NVIDIA's.
        if let Ok(library) = unsafe { Library::new(name.as_ref()) } {
            return Ok(Box::leak(Box::new(library)));
        }
    }
    let names: Vec<String> = names.iter().map(|name| name.as_ref().display().to_string()).collect();
    Err(DriverError::NoBlas { looked_for: names.join(", ") })
}

/// A handle with its functions, to be destroyed when its stream is done.
#[derive(Clone, Copy)]
pub(crate) struct BlasHandle {
    functions: &'static Functions,
    handle: Handle<cublasHandle_t>,
}

impl BlasHandle {
    /// Destroys the handle.
    ///
    /// # Safety
    /// - It is not used again, and the work of its stream is done.
    pub(crate) unsafe fn destroy(&self) -> Result<()> {
        // SAFETY: as promised.
        unsafe { self.functions.cublasDestroy_v2(self.handle.0) }
    }
}

impl std::fmt::Debug for BlasHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BlasHandle").field(&self.handle).finish()
    }
}

/// A type that products take.
pub trait ProductInput: DeviceType {}
impl ProductInput for half::f16 {}
impl ProductInput for half::bf16 {}
impl ProductInput for f32 {}

/// `cudaDataType_t`
fn data_type(element: Element) -> c_int {
    match element {
        Element::F16 => 2,
        Element::Bf16 => 14,
        _ => 0,
    }
}

/// Whether a stored matrix is taken as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// As it is stored.
    None,
    /// Rows and columns swapped.
    Transpose,
}

/// Row-major matrices in device memory, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Rows, as stored.
    pub rows: usize,
    /// Columns, as stored.
    pub columns: usize,
    /// Elements from the start of a row to that of the next.
    pub stride: usize,
    /// Elements from the start of a matrix to that of the next of the batch; 0 uses the same one for all.
    pub batch_stride: usize,
}

impl Layout {
    /// One matrix without gaps.
    pub fn new(rows: usize, columns: usize) -> Self {
        Self { rows, columns, stride: columns, batch_stride: rows * columns }
    }

    /// The distance of rows as cuBLAS checks it, also where there is but one row.
    fn distance(&self) -> usize {
        if self.rows > 1 { self.stride } else { self.columns }.max(1)
    }

    /// Elements that `count` of them reach over.
    fn reach(&self, count: usize) -> Option<usize> {
        if self.rows == 0 || self.columns == 0 || count == 0 {
            return Some(0);
        }
        let last = (count - 1).checked_mul(self.batch_stride)?;
        let row = (self.rows - 1).checked_mul(self.stride)?;
        last.checked_add(row)?.checked_add(self.columns)
    }
}

/// An input of a product.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a, T> {
    /// Its elements.
    pub view: View<'a, T>,
    /// How they lie.
    pub layout: Layout,
    /// How they are taken.
    pub op: Op,
}

impl<'a, T: DeviceType> Factor<'a, T> {
    /// A matrix without gaps, taken as it is.
    pub fn new(view: impl Into<View<'a, T>>, rows: usize, columns: usize) -> Self {
        Self { view: view.into(), layout: Layout::new(rows, columns), op: Op::None }
    }

    /// The same, transposed.
    pub fn t(self) -> Self {
        Self { op: Op::Transpose, ..self }
    }

    /// Rows and columns as the product sees them.
    fn shape(&self) -> (usize, usize) {
        match self.op {
            Op::None => (self.layout.rows, self.layout.columns),
            Op::Transpose => (self.layout.columns, self.layout.rows),
        }
    }
}

/// A cuBLAS handle, bound to one stream, with a workspace.
#[derive(Debug)]
pub struct Blas {
    handle: BlasHandle,
    owner: Arc<Owned>,
    stream: Stream,
    workspace: Buffer<u8>,
    /// cuBLAS wants one call at a time on a handle.
    turn: Mutex<()>,
}

impl Blas {
    /// A handle of the cuBLAS that is installed, for products on `stream`, with a workspace of
    /// [`Self::recommended_workspace`].
    ///
    /// # Errors
    /// There is no cuBLAS; `NVIDIA_TF32_OVERRIDE` is set; no room for the workspace; a capture; a call fails.
    pub fn new(stream: &Stream) -> Result<Self> {
        let workspace = Self::recommended_workspace(stream.gpu().device().capability);
        Self::with(stream, workspace, None)
    }

    /// As [`Self::new`], with a workspace of this many bytes (kept constant, it keeps the bits) and, where given, the
    /// library at this path.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(stream: &Stream, workspace: usize, library: Option<&Path>) -> Result<Self> {
        if let Some(value) = std::env::var_os(TF32_OVERRIDE) {
            return Err(DriverError::Tf32Override { value: value.to_string_lossy().into_owned() });
        }
        if captures_here() {
            let remedy = "make it before Capture::begin";
            return Err(DriverError::InCapture { operation: "making a cuBLAS handle", remedy });
        }
        let functions = open(library)?;
        let gpu = stream.gpu();
        let workspace = gpu.buffer::<u8>(workspace)?;
        let mut raw: cublasHandle_t = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call; the context is current.
        gpu.context.call(|_| unsafe { functions.cublasCreate_v2(&raw mut raw) })?;
        let handle = BlasHandle { functions, handle: Handle(raw) };
        let owner = Owned::new(gpu.context.clone(), Kind::Blas(handle));
        let blas = Self { handle, owner, stream: stream.clone(), workspace, turn: Mutex::new(()) };
        // SAFETY: the handle is alive.
        gpu.context.call(|_| unsafe {
            functions.cublasSetPointerMode_v2(raw, HOST_POINTERS)?;
            functions.cublasSetMathMode(raw, DISALLOW_REDUCED_PRECISION_REDUCTION)
        })?;
        blas.bind_workspace()?;
        Ok(blas)
    }

    /// NVIDIA's recommendation of workspace bytes for a capability: 32 MiB for sm_90 and sm_100, 12 MiB for sm_120,
    /// 4 MiB before.
    pub fn recommended_workspace((major, _): (u32, u32)) -> usize {
        match major {
            9 | 10 => 32 << 20,
            11.. => 12 << 20,
            _ => 4 << 20,
        }
    }

    /// Version of the library, as 10000 major + 100 minor + patch. The bits of a product depend on it.
    ///
    /// # Errors
    /// The call fails.
    pub fn version(&self) -> Result<u32> {
        let mut version = 0;
        let _turn = self.take_turn();
        // SAFETY: the handle is alive, the pointer is to a local that outlives the call.
        self.owner.context.call(|_| unsafe {
            self.handle.functions.cublasGetVersion_v2(self.handle.handle.0, &raw mut version)
        })?;
        Ok(version.unsigned_abs())
    }

    /// The stream that its products run on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// `count` products C = alpha A B + beta C, in the order of the handle's stream. With beta 0, C is not read.
    ///
    /// # Errors
    /// Sizes that do not fit each other, their buffers or cuBLAS; bf16 before sm_80; a capture that began without
    /// this handle; a failure of the call or of earlier work.
    pub fn product<T: ProductInput>(
        &self,
        count: usize,
        alpha: f32,
        a: Factor<'_, T>,
        b: Factor<'_, T>,
        beta: f32,
        c: (ViewMut<'_, f32>, Layout),
    ) -> Result<()> {
        let device = self.owner.context.device.compute();
        if T::ELEMENT == Element::Bf16 && device < 80 {
            let device_name = self.owner.context.device.name.clone();
            let kernel = "a product of bf16";
            return Err(DriverError::Capability { kernel, needed: 80, found: device, device: device_name });
        }
        let (c, c_layout) = c;
        let ((m, k), (b_rows, n)) = (a.shape(), b.shape());
        equal("the number of rows of B", b_rows, k, "columns of A")?;
        equal("the number of rows of C", c_layout.rows, m, "rows of A")?;
        equal("the number of columns of C", c_layout.columns, n, "columns of B")?;
        holds("the length of A", a.view.len(), &a.layout, count)?;
        holds("the length of B", b.view.len(), &b.layout, count)?;
        holds("the length of C", c.len(), &c_layout, count)?;
        if count > 1 && c_layout.reach(1).is_none_or(|one| c_layout.batch_stride < one) {
            let (what, found) = ("the batch stride of C", c_layout.batch_stride as u64);
            return Err(DriverError::Product { what, found, expected: "at least one matrix".into() });
        }
        if m == 0 || n == 0 || count == 0 {
            return Ok(());
        }
        let ints = [m, n, k, a.layout.distance(), b.layout.distance(), c_layout.distance(), count];
        let mut as_int = [0; 7];
        for (int, &size) in as_int.iter_mut().zip(&ints) {
            *int = c_int::try_from(size).map_err(|_| DriverError::Product {
                what: "a size",
                found: size as u64,
                expected: "below 2^31; split the product".into(),
            })?;
        }
        let [m, n, k, a_stride, b_stride, c_stride, count] = as_int;
        let op = |op| c_int::from(op == Op::Transpose);
        let _turn = self.take_turn();
        let known = |record: Option<&Record>| match record {
            Some(record) if !record.has_blas(self.identity()) => Err(DriverError::BlasNotInCapture),
            _ => Ok(()),
        };
        let owners = [a.view.owner(), b.view.owner(), c.owner(), self.workspace(), &self.owner];
        let pointer = |address: u64| std::ptr::with_exposed_provenance::<c_void>(address as usize);
        let kind = data_type(T::ELEMENT);
        // SAFETY: the handle is alive and on this stream with its workspace; each matrix lies in its view, which
        // `submit` keeps until the product is done; alpha and beta are read during the call (host pointers).
        self.stream.inner.submit_if(&owners, known, |_, _| unsafe {
            self.handle.functions.cublasGemmStridedBatchedEx(
                self.handle.handle.0,
                op(b.op),
                op(a.op),
                n,
                m,
                k,
                (&raw const alpha).cast(),
                pointer(b.view.address()),
                kind,
                b_stride,
                b.layout.batch_stride as c_longlong,
                pointer(a.view.address()),
                kind,
                a_stride,
                a.layout.batch_stride as c_longlong,
                (&raw const beta).cast(),
                pointer(c.address()).cast_mut(),
                data_type(Element::F32),
                c_stride,
                c_layout.batch_stride as c_longlong,
                count,
                COMPUTE_32F,
                DEFAULT_ALGORITHM,
            )
        })
    }

    /// Sets stream and workspace, in this order: the first forgets the second.
    pub(crate) fn bind_workspace(&self) -> Result<()> {
        let _turn = self.take_turn();
        let (functions, raw) = (self.handle.functions, self.handle.handle.0);
        let address = std::ptr::with_exposed_provenance_mut(self.workspace.view().address() as usize);
        // SAFETY: handle and stream are alive; the workspace is device memory of this length, aligned to 256 bytes,
        // which this owns, and every product and graph keeps.
        self.owner.context.call(|_| unsafe {
            functions.cublasSetStream_v2(raw, self.stream.inner.handle())?;
            functions.cublasSetWorkspace_v2(raw, address, self.workspace.len())
        })
    }

    pub(crate) fn workspace(&self) -> &Arc<Owned> {
        self.workspace.view().owner()
    }

    pub(crate) fn owner(&self) -> &Arc<Owned> {
        &self.owner
    }

    /// What a capture knows it by.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.owner).addr()
    }

    fn take_turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }
}

fn equal(what: &'static str, found: usize, expected: usize, of: &'static str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(DriverError::Product { what, found: found as u64, expected: format!("{expected}, the {of}") })
}

fn holds(what: &'static str, len: usize, layout: &Layout, count: usize) -> Result<()> {
    if layout.rows > 1 && layout.stride < layout.columns {
        let found = layout.stride as u64;
        let expected = format!("at least the {} columns", layout.columns);
        return Err(DriverError::Product { what: "a row stride", found, expected });
    }
    match layout.reach(count) {
        Some(needed) if needed <= len => Ok(()),
        needed => {
            let needed = needed.map_or("more than can be counted".to_owned(), |needed| needed.to_string());
            Err(DriverError::Product { what, found: len as u64, expected: format!("{needed} at least") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_names_what_was_looked_for() {
        let error = first_of(&["libno-such-cublas.so", "libnor-this.so"]).err().unwrap();
        assert!(
            error.to_string().contains("libno-such-cublas.so, libnor-this.so cannot be opened"),
            "{error}"
        );
    }

    #[test]
    fn names_include_the_versions_that_bindings_do_not_know() {
        assert!(NAMES.iter().any(|name| name.contains("13")));
    }

    #[test]
    fn layouts_reach_over_their_gaps() {
        let layout = Layout { rows: 3, columns: 4, stride: 10, batch_stride: 100 };
        assert_eq!(layout.reach(2), Some(124));
        assert_eq!(Layout::new(0, 4).reach(2), Some(0));
        assert_eq!(Layout { stride: usize::MAX, ..layout }.reach(1), None);
    }
}

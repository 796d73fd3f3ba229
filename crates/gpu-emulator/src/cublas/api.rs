//! The cuBLAS functions, under the names that the second library forwards to.
//!
//! They return `cublasStatus_t`. What the emulator does not compute it refuses with
//! `CUBLAS_STATUS_NOT_SUPPORTED` and a report that says which combination it was.

use std::ffi::{c_char, c_int, c_longlong};
use std::sync::Arc;

use super::product::{Element, Matrix, Operation, Product, Scalar};
use super::{ALLOC_FAILED, Blas, EXECUTION_FAILED, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, VERSION};
use crate::driver::ffi::{In, Out, Status, api};
use crate::driver::state::{Handle, Locked};
use crate::driver::stream::Work;

fn blas(d: &Locked, handle: Handle) -> Result<Blas, i32> {
    d.blas.get(&handle).cloned().ok_or(NOT_INITIALIZED)
}

fn change(d: &mut Locked, handle: Handle, f: impl FnOnce(&mut Blas)) -> Status {
    d.blas.get_mut(&handle).map(f).ok_or(NOT_INITIALIZED)
}

/// The scale type of a compute type.
fn scale_type(compute: c_int) -> Option<Element> {
    match compute {
        64 | 65 => Some(Element::F16),
        68 | 69 | 74 | 75 | 77 => Some(Element::F32),
        70 | 71 => Some(Element::F64),
        _ => None,
    }
}

fn scalar(b: &Blas, pointer: In<u8>, element: Element) -> Result<Scalar, i32> {
    if b.device_pointers {
        return Ok(Scalar::Device(pointer.address(), element));
    }
    let value = match element {
        Element::F32 => pointer.cast::<f32>().get().map(f64::from),
        Element::F64 => pointer.cast::<f64>().get(),
        Element::F16 => pointer.cast::<u16>().get().map(|bits| half::f16::from_bits(bits).to_f64()),
        Element::Bf16 => pointer.cast::<u16>().get().map(|bits| half::bf16::from_bits(bits).to_f64()),
    };
    value.map(Scalar::Value).ok_or(INVALID_VALUE)
}

/// Puts a product on the handle's stream.
fn submit(d: &mut Locked, name: &'static str, handle: Handle, operation: Operation) -> Status {
    let b = blas(d, handle)?;
    let stream = d.stream(b.stream).map_err(|_| EXECUTION_FAILED)?;
    let capturing = d.streams[&stream].capture;
    let product = Product { name, handle, workspace: b.workspace, operation };
    if capturing.is_some() && b.workspace.is_none() {
        if !d.config.cublas_allocates {
            let what = format!(
                "{name} allocates its workspace on a capturing stream (bind one with cublasSetWorkspace, after cublasSetStream)"
            );
            d.invalidate(stream, &what, crate::driver::codes::STREAM_CAPTURE_UNSUPPORTED);
            return Err(ALLOC_FAILED);
        }
        // As reported since CUDA 12.2: the workspace becomes a memory node of the graph.
        let at = d.memory.allocate(4 << 20, "cuBLAS workspace", false).ok_or(ALLOC_FAILED)?;
        d.memory.free(at, false);
        for work in [Work::GraphAlloc { at }, Work::Product(Arc::new(product)), Work::Free { at }] {
            d.capture_node(stream, work).map_err(|_| EXECUTION_FAILED)?;
        }
        return Ok(());
    }
    d.submit(stream, Work::Product(Arc::new(product))).map_err(|_| EXECUTION_FAILED)
}

struct Gemm {
    transposes: [c_int; 2],
    shape: [c_int; 3],
    alpha: In<u8>,
    beta: In<u8>,
    addresses: [u64; 3],
    types: [c_int; 3],
    lds: [c_int; 3],
    strides: [c_longlong; 3],
    batch: c_int,
    compute: c_int,
}

fn gemm(d: &mut Locked, name: &'static str, handle: Handle, g: &Gemm) -> Status {
    let b = blas(d, handle)?;
    let [Ok(m), Ok(n), Ok(k)] = g.shape.map(usize::try_from) else { return Err(INVALID_VALUE) };
    let batch = usize::try_from(g.batch).map_err(|_| INVALID_VALUE)?;
    if g.transposes.iter().any(|t| !(0..=2).contains(t)) {
        return Err(INVALID_VALUE);
    }
    let elements = g.types.map(Element::from_code);
    let supported = match (elements, scale_type(g.compute)) {
        ([Some(a), Some(bb), Some(c)], Some(scale)) => {
            a == bb
                && match (a, c, scale) {
                    (Element::F32, Element::F32, Element::F32)
                    | (Element::F64, Element::F64, Element::F64) => true,
                    (Element::F16 | Element::Bf16, c, Element::F32) => c == a || c == Element::F32,
                    (Element::F16, Element::F16, Element::F16) => true,
                    _ => false,
                }
        }
        _ => false,
    };
    let ([Some(ea), Some(eb), Some(ec)], Some(scale), true) = (elements, scale_type(g.compute), supported)
    else {
        d.report(format!(
            "{name}: the emulator has no product of types {:?} with compute type {}",
            g.types, g.compute
        ));
        return Err(NOT_SUPPORTED);
    };
    let (ta, tb) = (g.transposes[0] != 0, g.transposes[1] != 0);
    let rows = [if ta { k } else { m }, if tb { n } else { k }, m];
    for (ld, rows) in g.lds.iter().zip(rows) {
        if usize::try_from(*ld).map_err(|_| INVALID_VALUE)? < rows.max(1) {
            d.report(format!("{name}: a leading dimension of {ld} for {rows} rows"));
            return Err(INVALID_VALUE);
        }
    }
    if m == 0 || n == 0 || batch == 0 {
        return Ok(());
    }
    let matrix = |i: usize, element, transposed| Matrix {
        at: g.addresses[i],
        element,
        ld: g.lds[i] as usize,
        stride: g.strides[i],
        transposed,
    };
    let operation = Operation::Gemm {
        shape: [m, n, k],
        batch,
        alpha: scalar(&b, g.alpha, scale)?,
        matrices: [matrix(0, ea, ta), matrix(1, eb, tb), matrix(2, ec, false)],
        beta: scalar(&b, g.beta, scale)?,
    };
    submit(d, name, handle, operation)
}

struct Gemv {
    transposed: c_int,
    shape: [c_int; 2],
    alpha: In<u8>,
    beta: In<u8>,
    a: (u64, c_int),
    x: (u64, c_int),
    y: (u64, c_int),
}

fn gemv(d: &mut Locked, name: &'static str, handle: Handle, element: Element, g: &Gemv) -> Status {
    let b = blas(d, handle)?;
    let [Ok(rows), Ok(columns)] = g.shape.map(usize::try_from) else { return Err(INVALID_VALUE) };
    if (g.a.1 as usize) < rows.max(1) || g.x.1 == 0 || g.y.1 == 0 || !(0..=2).contains(&g.transposed) {
        return Err(INVALID_VALUE);
    }
    let operation = Operation::Gemv {
        shape: [rows, columns],
        alpha: scalar(&b, g.alpha, element)?,
        a: Matrix { at: g.a.0, element, ld: g.a.1 as usize, stride: 0, transposed: g.transposed != 0 },
        x: (g.x.0, g.x.1.into()),
        beta: scalar(&b, g.beta, element)?,
        y: (g.y.0, g.y.1.into()),
    };
    submit(d, name, handle, operation)
}

/// A sum of magnitudes. With host pointers the call waits for the result.
fn asum(
    d: &mut Locked,
    name: &'static str,
    handle: Handle,
    element: Element,
    n: c_int,
    x: (u64, c_int),
    out: Out<u8>,
) -> Status {
    let b = blas(d, handle)?;
    let n = usize::try_from(n).map_err(|_| INVALID_VALUE)?;
    let x = (x.0, x.1.into());
    if b.device_pointers {
        let result = out.pointer().expose_provenance() as u64;
        return submit(d, name, handle, Operation::Asum { n, element, x, result });
    }
    let scratch = d.memory.allocate(8, "cuBLAS scratch", false).ok_or(ALLOC_FAILED)?;
    submit(d, name, handle, Operation::Asum { n, element, x, result: scratch })?;
    let stream = d.stream(b.stream).map_err(|_| EXECUTION_FAILED)?;
    d.drain(stream, u64::MAX);
    d.current().map_err(|_| EXECUTION_FAILED)?;
    let mut bytes = vec![0; element.bytes()];
    let read = d.memory.read(scratch, &mut bytes, false);
    d.memory.free(scratch, false);
    read.map_err(|_| EXECUTION_FAILED)?;
    out.set_all(&bytes)
}

const F32: c_int = 0;
const F64: c_int = 1;
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;

api! {
    fn emu_cublasCreate_v2(out: Out<Handle>) |d| {
        let context = d.current().map_err(|_| NOT_INITIALIZED)?;
        let handle = d.handle();
        d.blas.insert(handle, Blas {
            context,
            stream: 0,
            workspace: None,
            device_pointers: false,
            math_mode: 0,
            atomics_mode: 0,
        });
        out.set(handle)
    }

    fn emu_cublasDestroy_v2(handle: Handle) |d| {
        let b = d.blas.remove(&handle).ok_or(NOT_INITIALIZED)?;
        // It waits for the device.
        d.drain_context(b.context);
        Ok(())
    }

    fn emu_cublasSetStream_v2(handle: Handle, stream: Handle) |d| {
        change(d, handle, |b| {
            b.stream = stream;
            // Documented: the workspace goes back to the default pool.
            b.workspace = None;
        })
    }

    fn emu_cublasGetStream_v2(handle: Handle, out: Out<Handle>) |d| {
        let b = blas(d, handle)?;
        out.set(b.stream)
    }

    fn emu_cublasSetWorkspace_v2(handle: Handle, at: u64, len: usize) |d| {
        blas(d, handle)?;
        if at % 256 != 0 || (len > 0 && !d.memory.holds(at, len as u64)) {
            d.report(format!("cublasSetWorkspace: {len} bytes at {at:#x} are not device memory aligned to 256 bytes"));
            return Err(INVALID_VALUE);
        }
        change(d, handle, |b| b.workspace = (len > 0).then_some((at, len as u64)))
    }

    fn emu_cublasSetPointerMode_v2(handle: Handle, mode: c_int) |d| {
        change(d, handle, |b| b.device_pointers = mode == 1)
    }

    fn emu_cublasGetPointerMode_v2(handle: Handle, out: Out<c_int>) |d| {
        let b = blas(d, handle)?;
        out.set(i32::from(b.device_pointers))
    }

    fn emu_cublasSetMathMode(handle: Handle, mode: c_int) |d| { change(d, handle, |b| b.math_mode = mode) }

    fn emu_cublasGetMathMode(handle: Handle, out: Out<c_int>) |d| {
        let b = blas(d, handle)?;
        out.set(b.math_mode)
    }

    fn emu_cublasSetAtomicsMode(handle: Handle, mode: c_int) |d| { change(d, handle, |b| b.atomics_mode = mode) }

    fn emu_cublasGetAtomicsMode(handle: Handle, out: Out<c_int>) |d| {
        let b = blas(d, handle)?;
        out.set(b.atomics_mode)
    }

    fn emu_cublasGetVersion_v2(_handle: Handle, out: Out<c_int>) |_d| { out.set(VERSION) }

    fn emu_cublasGetProperty(which: c_int, out: Out<c_int>) |_d| {
        match which {
            0 => out.set(VERSION / 10_000),
            1 => out.set(VERSION / 100 % 100),
            2 => out.set(VERSION % 100),
            _ => Err(INVALID_VALUE),
        }
    }

    fn emu_cublasGemmEx(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: In<u8>, a: u64, a_type: c_int, lda: c_int, b: u64, b_type: c_int, ldb: c_int,
        beta: In<u8>, c: u64, c_type: c_int, ldc: c_int, compute: c_int, _algorithm: c_int,
    ) |d| {
        gemm(d, "cublasGemmEx", handle, &Gemm {
            transposes: [ta, tb], shape: [m, n, k], alpha, beta, addresses: [a, b, c],
            types: [a_type, b_type, c_type], lds: [lda, ldb, ldc], strides: [0; 3], batch: 1, compute,
        })
    }

    fn emu_cublasGemmStridedBatchedEx(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: In<u8>, a: u64, a_type: c_int, lda: c_int, stride_a: c_longlong,
        b: u64, b_type: c_int, ldb: c_int, stride_b: c_longlong,
        beta: In<u8>, c: u64, c_type: c_int, ldc: c_int, stride_c: c_longlong,
        batch: c_int, compute: c_int, _algorithm: c_int,
    ) |d| {
        gemm(d, "cublasGemmStridedBatchedEx", handle, &Gemm {
            transposes: [ta, tb], shape: [m, n, k], alpha, beta, addresses: [a, b, c],
            types: [a_type, b_type, c_type], lds: [lda, ldb, ldc], strides: [stride_a, stride_b, stride_c],
            batch, compute,
        })
    }

    fn emu_cublasSgemm_v2(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: In<u8>, a: u64, lda: c_int, b: u64, ldb: c_int, beta: In<u8>, c: u64, ldc: c_int,
    ) |d| {
        gemm(d, "cublasSgemm", handle, &Gemm {
            transposes: [ta, tb], shape: [m, n, k], alpha, beta, addresses: [a, b, c],
            types: [F32; 3], lds: [lda, ldb, ldc], strides: [0; 3], batch: 1, compute: COMPUTE_32F,
        })
    }

    fn emu_cublasDgemm_v2(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: In<u8>, a: u64, lda: c_int, b: u64, ldb: c_int, beta: In<u8>, c: u64, ldc: c_int,
    ) |d| {
        gemm(d, "cublasDgemm", handle, &Gemm {
            transposes: [ta, tb], shape: [m, n, k], alpha, beta, addresses: [a, b, c],
            types: [F64; 3], lds: [lda, ldb, ldc], strides: [0; 3], batch: 1, compute: COMPUTE_64F,
        })
    }

    fn emu_cublasSgemmStridedBatched(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: In<u8>, a: u64, lda: c_int, stride_a: c_longlong, b: u64, ldb: c_int, stride_b: c_longlong,
        beta: In<u8>, c: u64, ldc: c_int, stride_c: c_longlong, batch: c_int,
    ) |d| {
        gemm(d, "cublasSgemmStridedBatched", handle, &Gemm {
            transposes: [ta, tb], shape: [m, n, k], alpha, beta, addresses: [a, b, c],
            types: [F32; 3], lds: [lda, ldb, ldc], strides: [stride_a, stride_b, stride_c], batch,
            compute: COMPUTE_32F,
        })
    }

    fn emu_cublasDgemmStridedBatched(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: In<u8>, a: u64, lda: c_int, stride_a: c_longlong, b: u64, ldb: c_int, stride_b: c_longlong,
        beta: In<u8>, c: u64, ldc: c_int, stride_c: c_longlong, batch: c_int,
    ) |d| {
        gemm(d, "cublasDgemmStridedBatched", handle, &Gemm {
            transposes: [ta, tb], shape: [m, n, k], alpha, beta, addresses: [a, b, c],
            types: [F64; 3], lds: [lda, ldb, ldc], strides: [stride_a, stride_b, stride_c], batch,
            compute: COMPUTE_64F,
        })
    }

    fn emu_cublasSgemv_v2(
        handle: Handle, ta: c_int, m: c_int, n: c_int, alpha: In<u8>, a: u64, lda: c_int,
        x: u64, incx: c_int, beta: In<u8>, y: u64, incy: c_int,
    ) |d| {
        gemv(d, "cublasSgemv", handle, Element::F32, &Gemv {
            transposed: ta, shape: [m, n], alpha, beta, a: (a, lda), x: (x, incx), y: (y, incy),
        })
    }

    fn emu_cublasDgemv_v2(
        handle: Handle, ta: c_int, m: c_int, n: c_int, alpha: In<u8>, a: u64, lda: c_int,
        x: u64, incx: c_int, beta: In<u8>, y: u64, incy: c_int,
    ) |d| {
        gemv(d, "cublasDgemv", handle, Element::F64, &Gemv {
            transposed: ta, shape: [m, n], alpha, beta, a: (a, lda), x: (x, incx), y: (y, incy),
        })
    }

    fn emu_cublasSasum_v2(handle: Handle, n: c_int, x: u64, incx: c_int, out: Out<u8>) |d| {
        asum(d, "cublasSasum", handle, Element::F32, n, (x, incx), out)
    }

    fn emu_cublasDasum_v2(handle: Handle, n: c_int, x: u64, incx: c_int, out: Out<u8>) |d| {
        asum(d, "cublasDasum", handle, Element::F64, n, (x, incx), out)
    }

    fn emu_cublasStatusText(status: c_int, long: c_int, out: Out<*const c_char>) |_d| {
        let (name, text) = match status {
            0 => (c"CUBLAS_STATUS_SUCCESS", c"success"),
            NOT_INITIALIZED => (c"CUBLAS_STATUS_NOT_INITIALIZED", c"the library was not initialized"),
            ALLOC_FAILED => (c"CUBLAS_STATUS_ALLOC_FAILED", c"the resource allocation failed"),
            INVALID_VALUE => (c"CUBLAS_STATUS_INVALID_VALUE", c"an unsupported value or parameter was passed to the function"),
            8 => (c"CUBLAS_STATUS_ARCH_MISMATCH", c"the function requires a feature absent from the device architecture"),
            11 => (c"CUBLAS_STATUS_MAPPING_ERROR", c"an access to GPU memory space failed"),
            EXECUTION_FAILED => (c"CUBLAS_STATUS_EXECUTION_FAILED", c"the function failed to launch on the GPU"),
            14 => (c"CUBLAS_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
            NOT_SUPPORTED => (c"CUBLAS_STATUS_NOT_SUPPORTED", c"the functionality requested is not supported"),
            _ => (c"unknown status", c"unknown status"),
        };
        out.set(if long != 0 { text.as_ptr() } else { name.as_ptr() })
    }
}

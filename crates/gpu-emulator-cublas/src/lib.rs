//! `libcublas.so` for the emulated device: every function is forwarded to the open `libcuda.so`, which
//! is the emulator and holds all state.
//!
//! Two libraries, because programs open two. A function that is not here does not exist for the program,
//! which is how the emulator refuses it.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::sync::OnceLock;

const RTLD_NOW: c_int = 2;
const RTLD_NOLOAD: c_int = 4;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `CUBLAS_STATUS_NOT_INITIALIZED`: what a program gets when no emulator is behind this library.
const NOT_INITIALIZED: c_int = 1;

/// The emulator's function of that name, or null where the open libcuda is not the emulator.
fn forward(name: &CStr) -> *mut c_void {
    // SAFETY: terminated names; RTLD_NOLOAD only finds what is open (the emulator carries that name),
    // and dlsym on a null handle is avoided.
    unsafe {
        let library = dlopen(c"libcuda.so".as_ptr(), RTLD_NOW | RTLD_NOLOAD);
        if library.is_null() { library } else { dlsym(library, name.as_ptr()) }
    }
}

macro_rules! forwarded {
    ($(fn $name:ident => $target:literal ($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`, forwarded.\n\n# Safety\n- Pointers are as the cuBLAS API asks.")]
            #[allow(non_snake_case)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
                type Function = unsafe extern "C" fn($($ty),*) -> c_int;
                static FOUND: OnceLock<usize> = OnceLock::new();
                let found = *FOUND.get_or_init(|| forward($target).expose_provenance());
                if found == 0 {
                    return NOT_INITIALIZED;
                }
                // SAFETY: the emulator of the same build exports this name with this signature, and its
                // library is never closed.
                let function: Function = unsafe { std::mem::transmute(std::ptr::with_exposed_provenance::<c_void>(found)) };
                // SAFETY: the caller's promises are passed on as they came.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

type Handle = *mut c_void;
type Device = *mut c_void;
type Scalar = *const c_void;

forwarded! {
    fn cublasCreate_v2 => c"emu_cublasCreate_v2" (out: *mut Handle);
    fn cublasDestroy_v2 => c"emu_cublasDestroy_v2" (handle: Handle);
    fn cublasSetStream_v2 => c"emu_cublasSetStream_v2" (handle: Handle, stream: *mut c_void);
    fn cublasGetStream_v2 => c"emu_cublasGetStream_v2" (handle: Handle, out: *mut *mut c_void);
    fn cublasSetWorkspace_v2 => c"emu_cublasSetWorkspace_v2" (handle: Handle, at: Device, len: usize);
    fn cublasSetPointerMode_v2 => c"emu_cublasSetPointerMode_v2" (handle: Handle, mode: c_int);
    fn cublasGetPointerMode_v2 => c"emu_cublasGetPointerMode_v2" (handle: Handle, out: *mut c_int);
    fn cublasSetMathMode => c"emu_cublasSetMathMode" (handle: Handle, mode: c_int);
    fn cublasGetMathMode => c"emu_cublasGetMathMode" (handle: Handle, out: *mut c_int);
    fn cublasSetAtomicsMode => c"emu_cublasSetAtomicsMode" (handle: Handle, mode: c_int);
    fn cublasGetAtomicsMode => c"emu_cublasGetAtomicsMode" (handle: Handle, out: *mut c_int);
    fn cublasGetVersion_v2 => c"emu_cublasGetVersion_v2" (handle: Handle, out: *mut c_int);
    fn cublasGetProperty => c"emu_cublasGetProperty" (which: c_int, out: *mut c_int);
    fn cublasGemmEx => c"emu_cublasGemmEx" (
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: Scalar,
        a: Device, a_type: c_int, lda: c_int, b: Device, b_type: c_int, ldb: c_int,
        beta: Scalar, c: Device, c_type: c_int, ldc: c_int, compute: c_int, algorithm: c_int,
    );
    fn cublasGemmStridedBatchedEx => c"emu_cublasGemmStridedBatchedEx" (
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: Scalar,
        a: Device, a_type: c_int, lda: c_int, stride_a: c_longlong,
        b: Device, b_type: c_int, ldb: c_int, stride_b: c_longlong,
        beta: Scalar, c: Device, c_type: c_int, ldc: c_int, stride_c: c_longlong,
        batch: c_int, compute: c_int, algorithm: c_int,
    );
    fn cublasSgemm_v2 => c"emu_cublasSgemm_v2" (
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: Scalar,
        a: Device, lda: c_int, b: Device, ldb: c_int, beta: Scalar, c: Device, ldc: c_int,
    );
    fn cublasDgemm_v2 => c"emu_cublasDgemm_v2" (
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: Scalar,
        a: Device, lda: c_int, b: Device, ldb: c_int, beta: Scalar, c: Device, ldc: c_int,
    );
    fn cublasSgemmStridedBatched => c"emu_cublasSgemmStridedBatched" (
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: Scalar,
        a: Device, lda: c_int, stride_a: c_longlong, b: Device, ldb: c_int, stride_b: c_longlong,
        beta: Scalar, c: Device, ldc: c_int, stride_c: c_longlong, batch: c_int,
    );
    fn cublasDgemmStridedBatched => c"emu_cublasDgemmStridedBatched" (
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: Scalar,
        a: Device, lda: c_int, stride_a: c_longlong, b: Device, ldb: c_int, stride_b: c_longlong,
        beta: Scalar, c: Device, ldc: c_int, stride_c: c_longlong, batch: c_int,
    );
    fn cublasSgemv_v2 => c"emu_cublasSgemv_v2" (
        handle: Handle, ta: c_int, m: c_int, n: c_int, alpha: Scalar, a: Device, lda: c_int,
        x: Device, incx: c_int, beta: Scalar, y: Device, incy: c_int,
    );
    fn cublasDgemv_v2 => c"emu_cublasDgemv_v2" (
        handle: Handle, ta: c_int, m: c_int, n: c_int, alpha: Scalar, a: Device, lda: c_int,
        x: Device, incx: c_int, beta: Scalar, y: Device, incy: c_int,
    );
    fn cublasSasum_v2 => c"emu_cublasSasum_v2" (handle: Handle, n: c_int, x: Device, incx: c_int, out: *mut c_void);
    fn cublasDasum_v2 => c"emu_cublasDasum_v2" (handle: Handle, n: c_int, x: Device, incx: c_int, out: *mut c_void);
}

fn status_text(status: c_int, long: c_int) -> *const c_char {
    let found = forward(c"emu_cublasStatusText");
    let mut text = c"no emulator is open".as_ptr();
    if !found.is_null() {
        type Function = unsafe extern "C" fn(c_int, c_int, *mut *const c_char) -> c_int;
        // SAFETY: the emulator of the same build exports this name with this signature.
        let function: Function = unsafe { std::mem::transmute(found) };
        // SAFETY: `text` is a place for the result and outlives the call.
        unsafe { function(status, long, &raw mut text) };
    }
    text
}

/// `cublasGetStatusName`.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusName(status: c_int) -> *const c_char {
    status_text(status, 0)
}

/// `cublasGetStatusString`.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(status: c_int) -> *const c_char {
    status_text(status, 1)
}

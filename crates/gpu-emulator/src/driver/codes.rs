//! `CUresult` values with their names and texts.

macro_rules! codes {
    ($($name:ident = $value:literal, $cuda:literal, $text:literal;)*) => {
        $(#[doc = $text] pub const $name: i32 = $value;)*

        /// Name and text of a code.
        pub fn describe(code: i32) -> Option<(&'static std::ffi::CStr, &'static std::ffi::CStr)> {
            match code {
                $($value => Some((
                    const { match std::ffi::CStr::from_bytes_with_nul(concat!($cuda, "\0").as_bytes()) { Ok(s) => s, Err(_) => panic!() } },
                    const { match std::ffi::CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) { Ok(s) => s, Err(_) => panic!() } },
                )),)*
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0, "CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    MAP_FAILED = 205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed";
    NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device";
    UNSUPPORTED_LIMIT = 215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture";
    INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
    JIT_COMPILER_NOT_FOUND = 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found";
    UNSUPPORTED_PTX_VERSION = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain.";
    INVALID_SOURCE = 300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid";
    FILE_NOT_FOUND = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated";
    PEER_ACCESS_UNSUPPORTED = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices";
    PRIMARY_CONTEXT_ACTIVE = 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    ASSERT = 710, "CUDA_ERROR_ASSERT", "device-side assert triggered";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space";
    INVALID_PC = 718, "CUDA_ERROR_INVALID_PC", "invalid program counter";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    SYSTEM_NOT_READY = 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination";
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

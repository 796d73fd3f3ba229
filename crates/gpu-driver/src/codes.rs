//! Names of CUDA's and cuBLAS's status codes, and what to do about those that have a usual cause.
//!
//! A table of our own, because codes must also be named where the driver is missing or its context is lost.

/// The name of a `CUresult`, or what stands for one that is not in the table.
pub(crate) fn name(code: u32) -> &'static str {
    match code {
        1 => "invalid value",
        2 => "out of memory",
        3 => "not initialized",
        4 => "driver shutting down",
        36 => "API call not supported by the installed driver",
        46 => "device unavailable",
        100 => "no device",
        101 => "invalid device",
        200 => "invalid image",
        201 => "invalid context",
        209 => "no binary for this GPU",
        214 => "uncorrectable ECC error",
        218 => "invalid PTX",
        220 => "uncorrectable NVLink error",
        221 => "JIT compiler not found",
        222 => "unsupported PTX version",
        300 => "invalid source",
        301 => "file not found",
        400 => "invalid handle",
        401 => "illegal state",
        500 => "not found",
        600 => "not ready",
        700 => "illegal address",
        701 => "too many resources for the launch",
        702 => "launch timed out",
        709 => "context is destroyed",
        710 => "device-side assertion",
        712 => "host memory already registered",
        713 => "host memory not registered",
        714 => "hardware stack error",
        715 => "illegal instruction",
        716 => "misaligned address",
        717 => "invalid address space",
        718 => "invalid program counter",
        719 => "launch failed",
        800 => "not permitted",
        801 => "not supported",
        802 => "system not ready",
        803 => "system driver mismatch",
        804 => "driver too old for the container",
        900 => "unsupported in a stream capture",
        901 => "stream capture invalidated",
        902 => "merge of two stream captures",
        903 => "stream capture ended on another stream",
        904 => "unjoined work in a stream capture",
        905 => "stream capture depends on work outside of it",
        906 => "legacy stream used during a stream capture",
        907 => "event was recorded in a stream capture",
        908 => "stream capture ended on another thread",
        910 => "graph cannot be updated",
        999 => "unknown error",
        _ => "an error that this build has no name for",
    }
}

/// What the code usually comes from and what to do; empty where there is nothing to say.
pub(crate) fn hint(code: u32) -> &'static str {
    match code {
        36 => {
            ": the kernel module and the library of the driver are of different versions; restart the machine"
        }
        46 => ": another process holds the device exclusively; look at `nvidia-smi`",
        100 => ": no device is visible; look at CUDA_VISIBLE_DEVICES and at `nvidia-smi`",
        221 => {
            ": the driver's PTX compiler (libnvidia-ptxjitcompiler) is not there; give the container the capability `compute,utility`"
        }
        222 => ": update the driver, or write an older .version in the PTX",
        700 | 714..=719 => ": the context is lost; run under the emulator to see kernel, line and address",
        701 => ": the block needs more registers or shared memory than there are",
        702 => ": a display's watchdog ends launches after two seconds; make launches shorter",
        802 => ": the fabric manager of this machine does not run",
        803 => ": the driver's library and its kernel module are of different versions; restart the machine",
        804 => ": this driver is too old for the container's CUDA libraries",
        900 => {
            ": allocating, freeing, waiting and loading are not possible while a stream captures; do them before"
        }
        901 => ": an earlier call broke the capture",
        902 => ": streams of two captures were joined",
        904 => {
            ": a stream that was forked into the capture was not joined again; let the captured stream wait for its event"
        }
        905 => {
            ": the captured stream waits for an event that was recorded outside; record it on a stream of the capture"
        }
        906 => ": something uses the legacy default stream; give it a stream of its own",
        907 => ": wait for an event that is recorded after the capture",
        999 => ": after a suspend, reload the nvidia_uvm module",
        _ => "",
    }
}

/// Whether the code means that the context is lost: every later call on it fails with the same code.
pub(crate) fn is_sticky(code: u32) -> bool {
    matches!(code, 214 | 220 | 700 | 702 | 709 | 710 | 714..=719)
}

/// The name of a `cublasStatus_t`, and what it usually comes from.
pub(crate) fn blas(status: u32) -> &'static str {
    match status {
        1 => "not initialized: the library does not fit the driver, or memory is full",
        3 => "allocation failed: memory is full, or no workspace is bound while a stream captures",
        7 => "invalid value",
        8 => "not supported by this architecture",
        11 => "mapping error",
        13 => "execution failed",
        14 => "internal error",
        15 => "not supported",
        16 => "licence error",
        _ => "a status that this build has no name for",
    }
}

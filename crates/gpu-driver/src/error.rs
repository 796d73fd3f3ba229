//! Why the driver cannot be used.

/// A call into the driver failed, or there is no driver to call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver's library is not on this machine.
    #[error(
        "no NVIDIA driver: {looked_for} cannot be opened; install the driver of the card, or use the CPU"
    )]
    NoLibrary {
        /// The names that were tried.
        looked_for: &'static str,
    },
    /// The library is older than the functions that are needed.
    #[error("the NVIDIA driver has no {function}, it is older than CUDA 12.0; update it")]
    TooOld {
        /// The first missing function.
        function: &'static str,
    },
    /// A call returned an error.
    #[error("{call} failed with CUDA error {code}{}", hint(*.code))]
    Call {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
    },
}

/// What the usual codes of a start mean, and what to do.
fn hint(code: u32) -> &'static str {
    match code {
        100 => ": no device is visible; look at CUDA_VISIBLE_DEVICES and at `nvidia-smi`",
        802 => ": the system is not ready; the fabric manager of this machine does not run",
        803 => ": the driver's library and its kernel module are of different versions; restart the machine",
        804 => ": this driver is too old for the container's CUDA libraries",
        999 => ": unknown to the driver; after a suspend, reload the nvidia_uvm module",
        _ => "",
    }
}

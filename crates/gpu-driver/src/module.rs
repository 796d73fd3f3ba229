//! Modules: PTX that the driver compiles for the device, and the kernels in it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule};
use kernels_ptx::{Kind as ParamKind, Param};

use crate::context::{Context, captures_here};
use crate::entry;
use crate::library::Handle;
use crate::resource::{Kind, Owned};
use crate::{DriverError, Gpu, Result};

/// Bytes of the compiler's error log that are kept.
const LOG: usize = 16 << 10;

/// A loaded module of a program's own PTX.
#[derive(Debug, Clone)]
pub struct Module {
    owner: Arc<Owned>,
    ptx: Arc<str>,
}

/// A kernel with its signature, ready to be launched. Clones share the module.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub(crate) owner: Arc<Owned>,
    pub(crate) function: Handle<CUfunction>,
    pub(crate) signature: Signature,
    registers: u32,
}

/// What a kernel takes.
#[derive(Debug, Clone)]
pub(crate) enum Signature {
    /// One of kernels-ptx: its launch is known too.
    Known(&'static kernels_ptx::Kernel),
    /// A program's own.
    Own { name: Arc<str>, parameters: Arc<[Param]> },
}

impl Signature {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Known(kernel) => kernel.name,
            Self::Own { name, .. } => name,
        }
    }

    pub(crate) fn parameters(&self) -> &[Param] {
        match self {
            Self::Known(kernel) => kernel.parameters,
            Self::Own { parameters, .. } => parameters,
        }
    }
}

impl Gpu {
    /// Compiles and loads a kernel of kernels-ptx.
    ///
    /// Load all kernels before the first launch: a failure is found before anything was computed, and nothing loads
    /// during a capture.
    ///
    /// # Errors
    /// The device lacks its instructions; the driver does not compile it (with the compiler's log); a capture.
    pub fn load(&self, kernel: &'static kernels_ptx::Kernel) -> Result<Kernel> {
        let found = self.context.device.compute();
        if found < kernel.min_capability {
            return Err(DriverError::Capability {
                kernel: kernel.name,
                needed: kernel.min_capability,
                found,
                device: self.context.device.name.clone(),
            });
        }
        let owner = load(&self.context, kernel.source, kernel.name)?;
        find(owner, kernel.name, Signature::Known(kernel))
    }
}

impl Module {
    /// Compiles and loads PTX text.
    ///
    /// # Errors
    /// It holds a zero byte, the driver does not compile it (with the compiler's log), or a capture.
    pub fn load(gpu: &Gpu, ptx: &str) -> Result<Self> {
        Ok(Self { owner: load(&gpu.context, ptx, "a module")?, ptx: ptx.into() })
    }

    /// The entry `name` with the signature that its arguments are checked against.
    ///
    /// # Errors
    /// There is no such entry, or its parameters in the text are not as many or not of the sizes that `parameters`
    /// states.
    ///
    /// # Safety
    /// - `parameters` are those of the entry, in this order.
    /// - The entry touches only what its arguments point at, and nothing beyond the lengths that `note` states.
    pub unsafe fn kernel(&self, name: &str, parameters: &[Param]) -> Result<Kernel> {
        let stated: Vec<usize> = parameters.iter().map(|parameter| bytes(parameter.kind)).collect();
        let signature = Signature::Own { name: name.into(), parameters: parameters.into() };
        let kernel = find(self.owner.clone(), name, signature)?;
        match entry::parameters(&self.ptx, name) {
            Some(entry) if entry != stated => {
                Err(DriverError::Signature { kernel: name.to_owned(), entry, signature: stated })
            }
            _ => Ok(kernel),
        }
    }
}

/// Bytes of a parameter.
fn bytes(kind: ParamKind) -> usize {
    match kind {
        ParamKind::Pointer { .. } | ParamKind::U64 | ParamKind::F64 => 8,
        ParamKind::U32 | ParamKind::F32 => 4,
    }
}

impl Kernel {
    /// Name of its entry.
    pub fn name(&self) -> &str {
        self.signature.name()
    }

    /// Registers of a thread, as compiled for this device.
    pub fn registers(&self) -> u32 {
        self.registers
    }
}

/// Loads PTX with the compiler's log in the error.
fn load(context: &Arc<Context>, ptx: &str, what: &str) -> Result<Arc<Owned>> {
    if captures_here() {
        let remedy = "load all kernels before Capture::begin";
        return Err(DriverError::InCapture { operation: "loading a module", remedy });
    }
    let image = CString::new(ptx).map_err(|zero| DriverError::ZeroByte { at: zero.nul_position() })?;
    let mut log = vec![0u8; LOG];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size travels in the pointer itself.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG)];
    let mut module: CUmodule = std::ptr::null_mut();
    // SAFETY: the image ends with a zero; the log has the length that is given with it; both arrays have two elements;
    // all of them outlive the call.
    let loaded = context.call(|driver| unsafe {
        driver.cuModuleLoadDataEx(
            &raw mut module,
            image.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    });
    match loaded {
        Ok(()) => Ok(Owned::new(context.clone(), Kind::Module(Handle(module)))),
        Err(DriverError::Call { code, .. }) if !crate::codes::is_sticky(code) => {
            // The driver ends the log with a zero and leaves the rest of the buffer alone.
            let log = CStr::from_bytes_until_nul(&log).unwrap_or(c"").to_string_lossy().trim_end().to_owned();
            let driver = context.driver.version()?;
            Err(DriverError::Module { what: what.to_owned(), code, version: header(ptx), driver, log })
        }
        Err(error) => Err(error),
    }
}

/// The `.version` and `.target` of PTX text, as they stand there.
fn header(ptx: &str) -> String {
    let directive = |name: &str| {
        ptx.lines().map(str::trim).find_map(|line| line.strip_prefix(name)).map_or("none", str::trim)
    };
    format!("version {} for {}", directive(".version"), directive(".target"))
}

fn find(owner: Arc<Owned>, name: &str, signature: Signature) -> Result<Kernel> {
    let no_kernel = || DriverError::NoKernel { kernel: name.to_owned() };
    let Some(Kind::Module(module)) = owner.kind() else { return Err(no_kernel()) };
    let c_name = CString::new(name).map_err(|_| no_kernel())?;
    let mut function: CUfunction = std::ptr::null_mut();
    let mut registers = 0;
    let context = owner.context.clone();
    // SAFETY: the module is alive, the name ends with a zero, the pointers are to locals that outlive the calls.
    let found = context.call(|driver| unsafe {
        driver.cuModuleGetFunction(&raw mut function, module.0, c_name.as_ptr())?;
        // Also makes a driver that loads lazily load the code now, and not within a capture.
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
        driver.cuFuncGetAttribute(&raw mut registers, attribute, function)
    });
    match found {
        Ok(()) => {
            Ok(Kernel { owner, function: Handle(function), signature, registers: registers.unsigned_abs() })
        }
        Err(DriverError::Call { code: 500, .. }) => Err(no_kernel()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_kernels_ptx_has_the_parameters_of_its_entry() {
        for kernel in kernels_ptx::KERNELS {
            let stated: Vec<usize> = kernel.parameters.iter().map(|p| bytes(p.kind)).collect();
            assert_eq!(entry::parameters(kernel.source, kernel.name), Some(stated), "{}", kernel.name);
        }
    }

    #[test]
    fn the_header_of_a_module_is_quoted() {
        assert_eq!(header("// x\n.version 7.1\n  .target sm_80\n"), "version 7.1 for sm_80");
        assert_eq!(header(""), "version none for none");
    }
}

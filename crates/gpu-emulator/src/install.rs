//! Opens the emulator in place of libcuda, and talks to it afterwards.
//!
//! glibc answers `dlopen("libcuda.so")` with a library that is already open under that name. The
//! emulator's shared object carries it (`DT_SONAME`), so opening the object by its path before the first
//! CUDA call is all that is needed. This file is one of those that may be unsafe.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Why the emulator could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// `REQUIRE_GPU=1`: this run is to use hardware.
    #[error("REQUIRE_GPU=1 is set, so the emulator must not stand in for a GPU")]
    GpuRequired,
    /// The shared library was not built, or lies elsewhere.
    #[error(
        "{file} was found neither in {first} nor in {second}: build it with `cargo build -p {package}`, or run through `cargo xtask emulate`"
    )]
    NotFound {
        /// File name.
        file: &'static str,
        /// The folder of the executable.
        first: PathBuf,
        /// The other folder.
        second: PathBuf,
        /// The package that makes it.
        package: &'static str,
    },
    /// The dynamic linker refused it.
    #[error("opening {path}: {reason}")]
    Open {
        /// File.
        path: PathBuf,
        /// The linker's words.
        reason: String,
    },
    /// Another libcuda is open in this process, so a later open would find that one.
    #[error("a libcuda.so is open in this process already; install the emulator before the first CUDA call")]
    TooLate,
    /// A function named in `GPU_EMULATOR_MISSING` is not there to be removed.
    #[error("GPU_EMULATOR_MISSING names `{0}`, which the emulator does not export")]
    NotExported(String),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A setting that the emulator refused.
    #[error("the emulator does not accept {name}={value} (code {code}); its report says why")]
    Setting {
        /// Name.
        name: String,
        /// Value.
        value: String,
        /// `CUresult`.
        code: i32,
    },
}

/// The installed emulator. It stays installed for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Emulator {
    library: usize,
}

const RTLD_NOW: c_int = 2;
const RTLD_NOLOAD: c_int = 4;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

static INSTALLED: Mutex<Option<Emulator>> = Mutex::new(None);

/// Installs the emulator in this process. Once installed, calling again changes nothing.
///
/// The library is looked for beside the executable (where cargo puts it for tests), then one folder up,
/// then in `deps` below (for an example or a binary).
///
/// # Errors
/// See [`InstallError`].
pub fn install() -> Result<Emulator, InstallError> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(emulator) = *installed {
        return Ok(emulator);
    }
    if std::env::var("REQUIRE_GPU").is_ok_and(|v| v == "1") {
        return Err(InstallError::GpuRequired);
    }
    if is_open(c"libcuda.so") && std::env::var_os("GPU_EMULATOR_PRELOADED").is_none() {
        return Err(InstallError::TooLate);
    }
    let driver = find("libgpu_emulator.so", "gpu-emulator")?;
    let missing: Vec<String> = std::env::var("GPU_EMULATOR_MISSING")
        .unwrap_or_default()
        .split(',')
        .map(|s| s.trim().to_string())
        .filter(|s| !s.is_empty())
        .collect();
    let library = if missing.is_empty() { open(&driver)? } else { open_without(&driver, &missing)? };
    let emulator = Emulator { library };
    // cuBLAS is optional: a test that does not use it need not build it.
    if let Ok(blas) = find("libgpu_emulator_cublas.so", "gpu-emulator-cublas") {
        open(&blas)?;
    }
    *installed = Some(emulator);
    Ok(emulator)
}

fn is_open(name: &CStr) -> bool {
    // SAFETY: `name` is a terminated string; RTLD_NOLOAD opens nothing new.
    !unsafe { dlopen(name.as_ptr(), RTLD_NOW | RTLD_NOLOAD) }.is_null()
}

fn find(file: &'static str, package: &'static str) -> Result<PathBuf, InstallError> {
    let executable = std::env::current_exe()
        .map_err(|source| InstallError::Io { path: "/proc/self/exe".into(), source })?;
    let first = executable.parent().unwrap_or(Path::new("/")).to_path_buf();
    let second = first.parent().unwrap_or(Path::new("/")).to_path_buf();
    [first.join(file), second.join(file), first.join("deps").join(file), second.join("deps").join(file)]
        .into_iter()
        .find(|p| p.exists())
        .ok_or(InstallError::NotFound { file, first, second, package })
}

fn open(path: &Path) -> Result<usize, InstallError> {
    let error = |reason: String| InstallError::Open { path: path.into(), reason };
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| error(e.to_string()))?;
    // SAFETY: a terminated path to a library whose initialisers are those of the Rust runtime.
    let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
    if library.is_null() {
        // SAFETY: after a failed dlopen the message is a terminated string that lives until the next call
        // on this thread.
        let reason = unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy().into_owned();
        return Err(error(reason));
    }
    Ok(library.expose_provenance())
}

/// Opens a copy of the library in whose table of names the missing functions are spelt otherwise, so that
/// looking them up fails as it does with an old driver.
fn open_without(path: &Path, missing: &[String]) -> Result<usize, InstallError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| InstallError::Io { path, source }
    };
    let mut bytes = std::fs::read(path).map_err(io(path))?;
    for name in missing {
        let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
        let mut found = false;
        let mut at = 0;
        while let Some(hit) = bytes[at..].windows(wanted.len()).position(|w| w == wanted) {
            // Another first letter: the hash tables still lead here, and the comparison then fails.
            bytes[at + hit + 1] = b'-';
            found = true;
            at += hit + 1;
        }
        if !found {
            return Err(InstallError::NotExported(name.clone()));
        }
    }
    let copy = std::env::temp_dir().join(format!("gpu-emulator-{}.so", std::process::id()));
    std::fs::write(&copy, bytes).map_err(io(&copy))?;
    let library = open(&copy);
    // It stays mapped; the file is not needed again.
    std::fs::remove_file(&copy).map_err(io(&copy))?;
    library
}

impl Emulator {
    fn symbol(self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle came from dlopen and is never closed; the name is terminated.
        let symbol = unsafe { dlsym(std::ptr::with_exposed_provenance_mut(self.library), name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?} is exported by the library of the same build");
        symbol
    }

    /// Changes a setting (see [`crate::config::SETTINGS`]) of the running emulator.
    ///
    /// # Errors
    /// An unknown setting or a value that means nothing.
    pub fn set(self, name: &str, value: &str) -> Result<(), InstallError> {
        type Set = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
        // SAFETY: `emu_set` has this signature in the library of the same build.
        let set: Set = unsafe { std::mem::transmute(self.symbol(c"emu_set")) };
        let refused = |code| InstallError::Setting { name: name.into(), value: value.into(), code };
        let (Ok(c_name), Ok(c_value)) = (CString::new(name), CString::new(value)) else {
            return Err(refused(1));
        };
        // SAFETY: both are terminated strings that outlive the call.
        match unsafe { set(c_name.as_ptr(), c_value.as_ptr()) } {
            0 => Ok(()),
            code => Err(refused(code)),
        }
    }

    /// A counter by name (see [`crate::driver::control::COUNTERS`]), or how often a driver function was
    /// called. `None` for a name that is neither.
    pub fn counter(self, name: &str) -> Option<u64> {
        type Counter = unsafe extern "C" fn(*const c_char, *mut u64) -> c_int;
        // SAFETY: `emu_counter` has this signature in the library of the same build.
        let counter: Counter = unsafe { std::mem::transmute(self.symbol(c"emu_counter")) };
        let name = CString::new(name).ok()?;
        let mut value = 0;
        // SAFETY: a terminated string and a place for the result, both alive during the call.
        (unsafe { counter(name.as_ptr(), &raw mut value) } == 0).then_some(value)
    }

    /// Everything reported since the start or the last [`Self::clear_reports`]: faults with kernel, line,
    /// lane and address, refused calls, broken captures.
    pub fn reports(self) -> Vec<String> {
        type Report = unsafe extern "C" fn(usize, *mut c_char, usize, *mut usize) -> c_int;
        // SAFETY: `emu_report` has this signature in the library of the same build.
        let report: Report = unsafe { std::mem::transmute(self.symbol(c"emu_report")) };
        let mut all = Vec::new();
        loop {
            let mut buffer = vec![0u8; 4096];
            let mut len = 0;
            // SAFETY: a buffer of the length that is named, and a place for the length, alive during the call.
            let code = unsafe { report(all.len(), buffer.as_mut_ptr().cast(), buffer.len(), &raw mut len) };
            if code != 0 {
                return all;
            }
            buffer.truncate(len);
            all.push(String::from_utf8_lossy(&buffer).into_owned());
        }
    }

    /// Forgets the reports.
    pub fn clear_reports(self) {
        type Clear = unsafe extern "C" fn() -> c_int;
        // SAFETY: `emu_clear_reports` has this signature in the library of the same build.
        let clear: Clear = unsafe { std::mem::transmute(self.symbol(c"emu_clear_reports")) };
        // SAFETY: it takes nothing.
        unsafe { clear() };
    }
}

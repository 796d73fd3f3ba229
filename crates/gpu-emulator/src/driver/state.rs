//! The driver's state, its lock, and the lookups that every function starts with.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::capture::{Capture, Graph, GraphExec};
use super::codes::{
    CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_HANDLE, NO_DEVICE, NOT_INITIALIZED,
    STREAM_CAPTURE_UNSUPPORTED,
};
use super::stream::{Event, Stream};
use crate::config::Config;
use crate::exec::{Counts, Fault};
use crate::memory::DeviceMemory;
use crate::ptx::code::Kernel;

/// A `CUcontext`, `CUstream`, …: a number that is no address.
pub type Handle = u64;

/// The handle of the primary context.
pub const PRIMARY: Handle = 0x1000;

/// A context.
#[derive(Debug)]
pub struct Context {
    /// The error that every later call returns.
    pub error: Option<i32>,
    /// Its legacy stream.
    pub legacy: Handle,
    /// The per-thread stream (one for all threads: the lock serialises them anyway).
    pub per_thread: Handle,
    /// Creation flags.
    pub flags: u32,
    /// Limits that were set.
    pub limits: HashMap<i32, u64>,
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    /// Its context.
    pub context: Handle,
    /// Functions: name and handle.
    pub functions: HashMap<String, Handle>,
    /// Variables: name, address and bytes.
    pub variables: HashMap<String, (u64, u64)>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its module.
    pub module: Handle,
    /// The code.
    pub kernel: Arc<Kernel>,
    /// Dynamic shared memory that was opted in to.
    pub max_dynamic_shared: u32,
}

/// A memory pool.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Attributes by number.
    pub attributes: HashMap<i32, u64>,
    /// Bytes from it that are in use.
    pub used: u64,
    /// The most that were.
    pub high: u64,
}

/// Everything.
#[derive(Debug)]
pub struct Driver {
    /// Settings.
    pub config: Config,
    /// Whether `cuInit` was called.
    pub initialised: bool,
    next: Handle,
    /// Contexts.
    pub contexts: HashMap<Handle, Context>,
    /// How often the primary context is retained.
    pub primary_users: u32,
    /// Flags for the primary context.
    pub primary_flags: u32,
    /// Streams.
    pub streams: HashMap<Handle, Stream>,
    /// Events.
    pub events: HashMap<Handle, Event>,
    /// Modules.
    pub modules: HashMap<Handle, Module>,
    /// Functions.
    pub functions: HashMap<Handle, Function>,
    /// Captures in progress.
    pub captures: HashMap<Handle, Capture>,
    /// Graphs.
    pub graphs: HashMap<Handle, Graph>,
    /// Executable graphs.
    pub executables: HashMap<Handle, GraphExec>,
    /// Memory pools.
    pub pools: HashMap<Handle, Pool>,
    /// The pool that asynchronous allocations come from.
    pub current_pool: Handle,
    /// Which pool an allocation came from.
    pub pooled: HashMap<u64, Handle>,
    /// Allocations that exceed VRAM (the spill setting).
    pub spilled: std::collections::HashSet<u64>,
    /// Device memory.
    pub memory: DeviceMemory,
    /// What ran.
    pub counts: Counts,
    /// Numbers launches.
    pub launches: u32,
    /// Messages: faults, refusals, and what a program should know.
    pub reports: Vec<String>,
    /// Calls of each function.
    pub calls: HashMap<&'static str, u64>,
    /// cuBLAS handles.
    pub blas: HashMap<Handle, crate::cublas::Blas>,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

thread_local! {
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
}

/// The driver, locked.
pub struct Locked {
    guard: Option<MutexGuard<'static, Option<Driver>>>,
}

impl Locked {
    /// Takes the lock; the first caller makes the driver from the environment.
    pub fn take() -> Self {
        let mut guard = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            let (config, report) = match Config::from_env() {
                Ok(config) => (config, None),
                // A C function has nowhere to say this but a report and a refusing cuInit.
                Err(error) => (Config { devices: 0, ..Config::default() }, Some(error.to_string())),
            };
            let mut driver = Driver::new(config);
            if let Some(report) = report {
                driver.report(report);
            }
            *guard = Some(driver);
        }
        Self { guard: Some(guard) }
    }

    /// Calls `f` with the lock released.
    pub fn unlocked(&mut self, f: impl FnOnce()) {
        self.guard = None;
        f();
        self.guard = Some(DRIVER.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Deref for Locked {
    type Target = Driver;
    fn deref(&self) -> &Driver {
        self.guard
            .as_ref()
            .and_then(|g| g.as_ref())
            .expect("held except inside `unlocked`, and made by `take`")
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Driver {
        self.guard
            .as_mut()
            .and_then(|g| g.as_mut())
            .expect("held except inside `unlocked`, and made by `take`")
    }
}

impl Driver {
    fn new(config: Config) -> Self {
        let memory = DeviceMemory::new(config.vram, config.exec.uninitialised);
        let mut driver = Self {
            config,
            initialised: false,
            next: PRIMARY + 0x10,
            contexts: HashMap::new(),
            primary_users: 0,
            primary_flags: 0,
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            pools: HashMap::new(),
            current_pool: 0,
            pooled: HashMap::new(),
            spilled: std::collections::HashSet::new(),
            memory,
            counts: Counts::default(),
            launches: 0,
            reports: Vec::new(),
            calls: HashMap::new(),
            blas: HashMap::new(),
        };
        let pool = driver.handle();
        driver.pools.insert(pool, Pool::default());
        driver.current_pool = pool;
        driver
    }

    /// The default pool of the device.
    pub fn default_pool(&self) -> Handle {
        PRIMARY + 0x10
    }

    /// A handle that nothing has.
    pub fn handle(&mut self) -> Handle {
        let handle = self.next;
        self.next += 0x10;
        handle
    }

    /// Notes a message and shows it.
    pub fn report(&mut self, message: impl Into<String>) {
        let message = message.into();
        eprintln!("gpu-emulator: {message}");
        self.reports.push(message);
    }

    /// Counts a call of `name` and fails it where a setting says so.
    pub fn called(&mut self, name: &'static str) -> Result<(), i32> {
        // cuBLAS functions are exported under another name.
        let name = name.strip_prefix("emu_").unwrap_or(name);
        *self.calls.entry(name).or_default() += 1;
        let mut code = None;
        for (function, left, with) in &mut self.config.fail {
            if function == name && *left > 0 {
                *left -= 1;
                if *left == 0 {
                    code = Some(*with);
                }
            }
        }
        match code {
            Some(code) => {
                self.report(format!("{name} fails with {code}, as GPU_EMULATOR_FAIL asks"));
                Err(code)
            }
            None => Ok(()),
        }
    }

    /// The driver is initialised and has a device.
    pub fn ready(&self) -> Result<(), i32> {
        if !self.initialised {
            return Err(NOT_INITIALIZED);
        }
        if self.config.devices == 0 { Err(NO_DEVICE) } else { Ok(()) }
    }

    /// Makes a context.
    pub fn new_context(&mut self, handle: Handle, flags: u32) {
        let legacy = self.handle();
        let per_thread = self.handle();
        self.streams.insert(legacy, Stream::new(handle, true, false, 0));
        self.streams.insert(per_thread, Stream::new(handle, false, false, 0));
        let context = Context { error: None, legacy, per_thread, flags, limits: HashMap::new() };
        self.contexts.insert(handle, context);
    }

    /// The calling thread's context, which must be alive and without error.
    pub fn current(&self) -> Result<Handle, i32> {
        let handle = self.current_even_if_failed()?;
        match self.contexts.get(&handle) {
            None => Err(CONTEXT_IS_DESTROYED),
            Some(Context { error: Some(code), .. }) => Err(*code),
            Some(_) => Ok(handle),
        }
    }

    /// The calling thread's context.
    pub fn current_even_if_failed(&self) -> Result<Handle, i32> {
        self.ready()?;
        current_stack(|s| s.last().copied()).filter(|&h| h != 0).ok_or(INVALID_CONTEXT)
    }

    /// Resolves a stream argument: 0 and 1 are the legacy stream, 2 the thread's.
    pub fn stream(&self, handle: Handle) -> Result<Handle, i32> {
        let context = self.current()?;
        let found = match handle {
            0 | 1 => self.contexts[&context].legacy,
            2 => self.contexts[&context].per_thread,
            other => other,
        };
        match self.streams.get(&found) {
            Some(stream) if !stream.destroyed => match self.contexts.get(&stream.context) {
                Some(Context { error: Some(code), .. }) => Err(*code),
                Some(_) => Ok(found),
                None => Err(CONTEXT_IS_DESTROYED),
            },
            _ => Err(INVALID_HANDLE),
        }
    }

    /// A fault of a kernel or of stream work: reported, and sticky for the context.
    pub fn fail(&mut self, context: Handle, fault: Fault) {
        self.report(fault.message);
        if let Some(context) = self.contexts.get_mut(&context) {
            context.error.get_or_insert(fault.code);
        }
        for stream in self.streams.values_mut().filter(|s| s.context == context) {
            stream.abandon();
        }
    }

    /// Refuses a call that may block or allocate while a capture forbids it, and invalidates the capture.
    ///
    /// A global-mode capture forbids it to every thread, a thread-local one to its own, a relaxed one to
    /// nobody; a thread in relaxed mode is free.
    pub fn forbid_in_capture(&mut self, what: &str) -> Result<(), i32> {
        if capture_mode() == 2 {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let mut hit = false;
        for capture in self.captures.values_mut() {
            let forbids = match capture.mode {
                0 => capture_mode() == 0 || capture.thread == thread,
                1 => capture.thread == thread,
                _ => false,
            };
            if forbids {
                capture.invalidated = true;
                hit = true;
            }
        }
        if hit {
            self.report(format!(
                "{what} during a stream capture: the capture is invalidated (900, then 901 at its end)"
            ));
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }
}

/// Works on the calling thread's stack of contexts.
pub fn current_stack<T>(f: impl FnOnce(&mut Vec<Handle>) -> T) -> T {
    CURRENT.with(|c| f(&mut c.borrow_mut()))
}

/// The calling thread's capture mode.
pub fn capture_mode() -> i32 {
    CAPTURE_MODE.with(Cell::get)
}

/// Changes it; the one before.
pub fn exchange_capture_mode(mode: i32) -> i32 {
    CAPTURE_MODE.with(|m| m.replace(mode))
}

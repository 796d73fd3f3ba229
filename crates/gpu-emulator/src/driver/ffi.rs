//! The border with C: argument types that carry the API's promises about pointers, and the entry that
//! every exported function goes through.
//!
//! The exported functions are unsafe to call, and what their callers promise about each pointer is
//! spent here, in one method a kind, so that the functions themselves hold no unsafe code.

use std::ffi::{CStr, c_char, c_void};
use std::panic::AssertUnwindSafe;

use super::codes::{INVALID_VALUE, UNKNOWN};
use super::state::Locked;

/// Success, or a `CUresult`.
pub type Status = Result<(), i32>;

/// A pointer through which one `T` is returned.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// From a pointer that came inside another argument.
    pub fn from_raw(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Nobody wants the result.
    pub fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// Writes the result; null is refused.
    pub fn set(self, value: T) -> Status {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; the caller of the exported function promises that it points to one `T`
        // that it may write.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the result where somebody asked for it.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// Writes up to `values.len()` results.
    pub fn set_all(self, values: &[T]) -> Status
    where
        T: Copy,
    {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as in `set`, for as many elements as the caller said there is room for.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }

    /// What stands there now.
    pub fn get(self) -> Option<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null; the caller promises an initialised `T` where the API reads one.
        Some(unsafe { self.0.read() })
    }

    /// The pointer itself.
    pub fn pointer(self) -> *mut T {
        self.0
    }

    /// Whether nobody wants the result.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A pointer to constant elements of the caller.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The first element.
    pub fn get(self) -> Option<T> {
        self.at(0)
    }

    /// Element `i`, which the caller promises to be there.
    pub fn at(self, i: usize) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null; the caller of the exported function promises an array long enough for the
        // count that it gave with it.
        Some(unsafe { self.0.add(i).read_unaligned() })
    }

    /// The address.
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The same place, read as another type.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

/// A string of the caller that ends with a zero byte.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The string.
    pub fn get(self) -> Result<String, i32> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; the caller of the exported function promises a terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Host memory of the caller.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Host(*mut c_void);

impl Host {
    /// From a pointer that came inside another argument.
    pub fn from_const(pointer: *const u8) -> Self {
        Self(pointer.cast_mut().cast())
    }

    /// From an address that the caller passed as a number.
    pub fn from_address(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Its address.
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// A copy of `len` bytes.
    pub fn snapshot(self, len: usize) -> Vec<u8> {
        // SAFETY: the caller of the exported function promises `len` readable bytes for the call.
        unsafe { crate::memory::host::snapshot(self.address(), len) }
    }

    /// Writes `data` there.
    pub fn deliver(self, data: &[u8]) {
        // SAFETY: the caller of the exported function promises `data.len()` writable bytes for the call.
        unsafe { crate::memory::host::deliver(self.address(), data) }
    }
}

/// A function of the caller and its argument, to be called when a stream comes to it.
#[derive(Clone, Copy, Debug)]
pub struct HostFunction {
    function: unsafe extern "C" fn(*mut c_void),
    argument: u64,
}

impl HostFunction {
    /// From the arguments of `cuLaunchHostFunc`.
    pub fn new(function: Option<unsafe extern "C" fn(*mut c_void)>, argument: Host) -> Result<Self, i32> {
        Ok(Self { function: function.ok_or(INVALID_VALUE)?, argument: argument.address() })
    }

    /// Calls it.
    pub fn call(self) {
        // SAFETY: whoever enqueued it promises that function and argument stay valid until it ran; it
        // is called once for each time it was enqueued.
        unsafe { (self.function)(std::ptr::with_exposed_provenance_mut(self.argument as usize)) }
    }
}

/// Runs the body of an exported function: counts the call, injects faults, turns a panic into an error.
pub fn enter(name: &'static str, body: impl FnOnce(&mut Locked) -> Status) -> i32 {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut driver = Locked::take();
        driver.called(name)?;
        body(&mut driver)
    }));
    match outcome {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Defines exported driver functions and a table of them.
///
/// Each is `fn name(arguments) |driver| { body }`, where the body returns a [`Status`].

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$driver:pat_param| $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the CUDA driver API.\n\n# Safety\n- Pointers are as that API asks.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
                $crate::driver::ffi::enter(stringify!($name), |driver: &mut $crate::driver::state::Locked| {
                    let $driver = driver;
                    $body
                })
            }
        )*

        /// The functions of this file, by name.
        pub fn table() -> Vec<(&'static str, usize)> {
            vec![$((stringify!($name), $name as *const () as usize)),*]
        }
    };
}
pub(crate) use api;

//! The types that a buffer may hold.

use half::{bf16, f16};

/// A type of elements in device or pinned memory: the one that `kernels-ptx` calls [`Self::ELEMENT`].
///
/// Any bits are a value, so that memory may be read whatever a kernel left in it. The trait is sealed.
pub trait DeviceType: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// Its name in a kernel's signature.
    const ELEMENT: kernels_ptx::Element;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! device_types {
    ($($type:ty => $element:ident),*) => {
        $(
            impl sealed::Sealed for $type {}
            impl DeviceType for $type {
                const ELEMENT: kernels_ptx::Element = kernels_ptx::Element::$element;
            }
        )*
    };
}

device_types!(u8 => U8, u32 => U32, i32 => I32, u64 => U64, f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64);

/// Bytes of `len` elements, as far as memory can have them on any machine.
pub(crate) fn bytes<T: DeviceType>(len: usize) -> crate::Result<usize> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes < isize::MAX as usize);
    bytes.ok_or(crate::DriverError::TooLarge { elements: len, element: T::ELEMENT })
}

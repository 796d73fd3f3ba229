//! Device memory with a type and a length, and views of parts of it.
//!
//! A view borrows its buffer, so a launch cannot be given the same elements to read and to write by accident
//! ([`ViewMut::aliased`] is for kernels that work in place). What a program must order itself is work of different
//! streams: the borrow ends when a launch is enqueued.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use crate::context::Context;
use crate::element::{DeviceType, bytes};
use crate::resource::Owned;
use crate::{DriverError, Result};

/// `len` elements in device memory, aligned to 256 bytes where they are a whole allocation.
///
/// Freed when the last part of it, the last graph and the last transfer that use it are gone, and the streams that
/// used it are done.
#[derive(Debug)]
pub struct Buffer<T> {
    owner: Arc<Owned>,
    address: u64,
    len: usize,
    _elements: PhantomData<T>,
}

/// Elements to read.
#[derive(Debug)]
pub struct View<'a, T> {
    owner: &'a Arc<Owned>,
    address: u64,
    len: usize,
    _elements: PhantomData<&'a T>,
}

/// Elements to write, or to read and write.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    owner: &'a Arc<Owned>,
    address: u64,
    len: usize,
    _elements: PhantomData<&'a mut T>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<T: DeviceType> Buffer<T> {
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self> {
        let owner = Owned::device(context, bytes::<T>(len)?)?;
        Ok(Self { address: owner.address(), owner, len, _elements: PhantomData })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All elements, to read.
    pub fn view(&self) -> View<'_, T> {
        View { owner: &self.owner, address: self.address, len: self.len, _elements: PhantomData }
    }

    /// All elements, to write.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut { owner: &self.owner, address: self.address, len: self.len, _elements: PhantomData }
    }

    /// The first `at` elements and the rest, as two buffers of one allocation: how an arena is cut up.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), gpu_driver::DriverError> {
    /// let gpu = gpu_driver::Gpu::open(0)?;
    /// let (weights, rest) = gpu.buffer::<u8>(1 << 20)?.split(4096)?;
    /// let weights = weights.cast::<f32>()?;
    /// assert_eq!(weights.len(), 1024);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `at` is past the end.
    pub fn split(self, at: usize) -> Result<(Self, Self)> {
        if at > self.len {
            return Err(DriverError::Range { start: 0, end: at, len: self.len });
        }
        let part = |address, len| Self { owner: self.owner.clone(), address, len, _elements: PhantomData };
        let first = part(self.address, at);
        let rest = part(self.address + (at * size_of::<T>()) as u64, self.len - at);
        Ok((first, rest))
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// Address or length is no multiple of that type's size.
    pub fn cast<U: DeviceType>(self) -> Result<Buffer<U>> {
        let len = cast_len::<T, U>(self.address, self.len)?;
        Ok(Buffer { owner: self.owner, address: self.address, len, _elements: PhantomData })
    }
}

impl<'a, T: DeviceType> View<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Errors
    /// The range does not lie in it.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = resolve(range, self.len)?;
        Ok(Self { address: self.address + (start * size_of::<T>()) as u64, len, ..*self })
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// Address or length is no multiple of that type's size.
    pub fn cast<U: DeviceType>(&self) -> Result<View<'a, U>> {
        let len = cast_len::<T, U>(self.address, self.len)?;
        Ok(View { owner: self.owner, address: self.address, len, _elements: PhantomData })
    }

    pub(crate) fn owner(&self) -> &'a Arc<Owned> {
        self.owner
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl<'a, T: DeviceType> ViewMut<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Errors
    /// The range does not lie in it.
    pub fn range(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = resolve(range, self.len)?;
        Ok(Self { address: self.address + (start * size_of::<T>()) as u64, len, ..self })
    }

    /// The first `at` elements and the rest.
    ///
    /// # Errors
    /// `at` is past the end.
    pub fn split(self, at: usize) -> Result<(Self, Self)> {
        let (_, len) = resolve(..at, self.len)?;
        let rest = self.address + (at * size_of::<T>()) as u64;
        let part = |address, len| Self { address, len, owner: self.owner, _elements: PhantomData };
        Ok((part(self.address, len), part(rest, self.len - at)))
    }

    /// The same elements for a shorter time, so that this view can be used again.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { owner: self.owner, address: self.address, len: self.len, _elements: PhantomData }
    }

    /// The same elements to read in the same launch, for kernels whose header says that they work in place.
    pub fn aliased(&self) -> View<'a, T> {
        View { owner: self.owner, address: self.address, len: self.len, _elements: PhantomData }
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// Address or length is no multiple of that type's size.
    pub fn cast<U: DeviceType>(self) -> Result<ViewMut<'a, U>> {
        let len = cast_len::<T, U>(self.address, self.len)?;
        Ok(ViewMut { owner: self.owner, address: self.address, len, _elements: PhantomData })
    }

    pub(crate) fn owner(&self) -> &'a Arc<Owned> {
        self.owner
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl<'a, T: DeviceType> From<&'a Buffer<T>> for View<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.view()
    }
}

impl<'a, T: DeviceType> From<&'a mut Buffer<T>> for ViewMut<'a, T> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        buffer.view_mut()
    }
}

/// First element and length of a range, which must lie in `len` elements.
pub(crate) fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        return Err(DriverError::Range { start, end, len });
    }
    Ok((start, end - start))
}

fn cast_len<T: DeviceType, U: DeviceType>(address: u64, len: usize) -> Result<usize> {
    let bytes = len * size_of::<T>();
    if !bytes.is_multiple_of(size_of::<U>()) || !address.is_multiple_of(size_of::<U>() as u64) {
        return Err(DriverError::Cast { address, bytes, element: U::ELEMENT });
    }
    Ok(bytes / size_of::<U>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        assert_eq!(resolve(.., 5), Ok((0, 5)));
        assert_eq!(resolve(2..=3, 5), Ok((2, 2)));
        assert_eq!(resolve(5..5, 5), Ok((5, 0)));
        for bad in [(Bound::Included(3), Bound::Excluded(2)), (Bound::Unbounded, Bound::Included(usize::MAX))]
        {
            assert!(matches!(resolve(bad, 5), Err(DriverError::Range { len: 5, .. })), "{bad:?}");
        }
        assert_eq!(resolve(0..6, 5), Err(DriverError::Range { start: 0, end: 6, len: 5 }));
    }

    #[test]
    fn casts_need_whole_and_aligned_elements() {
        assert_eq!(cast_len::<u8, f32>(256, 8), Ok(2));
        assert_eq!(cast_len::<f32, u8>(260, 2), Ok(8));
        assert!(cast_len::<u8, f32>(256, 7).is_err());
        assert!(cast_len::<u8, f32>(258, 8).is_err());
    }
}

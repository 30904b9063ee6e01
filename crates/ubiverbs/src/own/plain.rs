//! Vectors and boxed slices of plain data.

use super::{Memory, OwnMemory};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Data that is its bytes and nothing else: any bytes are a value, and there are no gaps between them. Numbers are;
/// with the feature `bytemuck` everything is that is `bytemuck::Pod`.
///
/// ```compile_fail,E0277
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// pd.register_own(vec!["a reference"])?; // error: its bytes are an address, which others could change
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// # Safety
/// As that says. It is `Copy`, so nothing is dropped.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

#[cfg(feature = "bytemuck")]
// SAFETY: what `Pod` promises is more.
unsafe impl<T: bytemuck::Pod + Send + Sync> Plain for T {}

#[cfg(not(feature = "bytemuck"))]
macro_rules! numbers {
    ($($number:ty)*) => {
        $(
            // SAFETY: a number has a value for every pattern of its bits, and no gaps.
            unsafe impl Plain for $number {}
        )*
    };
}

#[cfg(not(feature = "bytemuck"))]
numbers! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

// SAFETY: the vector's allocation is its own, and stays where it is as long as the vector is not there to be used.
unsafe impl<T: Plain> Memory for Vec<T> {
    type Rest = (usize, usize);

    fn take_apart(self) -> (NonNull<u8>, usize, (usize, usize)) {
        let mut vector = ManuallyDrop::new(self);
        let first = NonNull::new(vector.as_mut_ptr()).unwrap_or(NonNull::dangling());
        (first.cast(), size_of_val(&**vector), (vector.len(), vector.capacity()))
    }

    unsafe fn put_together(first: NonNull<u8>, (length, capacity): (usize, usize)) -> Vec<T> {
        // SAFETY: the parts of the vector that was taken apart. Its values may have changed, and any bytes are values.
        unsafe { Vec::from_raw_parts(first.cast().as_ptr(), length, capacity) }
    }
}

// SAFETY: as of a vector.
unsafe impl<T: Plain> Memory for Box<[T]> {
    type Rest = usize;

    fn take_apart(self) -> (NonNull<u8>, usize, usize) {
        let (bytes, length) = (size_of_val(&*self), self.len());
        (NonNull::from(Box::leak(self)).cast(), bytes, length)
    }

    unsafe fn put_together(first: NonNull<u8>, length: usize) -> Box<[T]> {
        // SAFETY: the slice that was leaked when the box was taken apart.
        unsafe { Box::from_raw(NonNull::slice_from_raw_parts(first.cast(), length).as_ptr()) }
    }
}

/// The values that some bytes are. They begin where a value may, because they were values before.
fn values<T: Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: any bytes are values.
    let (before, values, after) = unsafe { bytes.align_to::<T>() };
    debug_assert!(before.is_empty() && after.is_empty());
    values
}

fn values_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: any bytes are values, and any values are initialised bytes.
    let (before, values, after) = unsafe { bytes.align_to_mut::<T>() };
    debug_assert!(before.is_empty() && after.is_empty());
    values
}

impl<T: Plain> OwnMemory for Vec<T> {
    type Slice = [T];

    fn view(bytes: &[u8]) -> &[T] {
        values(bytes)
    }

    fn view_mut(bytes: &mut [u8]) -> &mut [T] {
        values_mut(bytes)
    }
}

impl<T: Plain> OwnMemory for Box<[T]> {
    type Slice = [T];

    fn view(bytes: &[u8]) -> &[T] {
        values(bytes)
    }

    fn view_mut(bytes: &mut [u8]) -> &mut [T] {
        values_mut(bytes)
    }
}

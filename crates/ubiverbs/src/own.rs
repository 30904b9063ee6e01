//! Memory that a program has: which values can be registered where they are, and how one is put away while the NIC may
//! touch its bytes.
#![allow(unsafe_code)]

/// [`Memory`] of a type whose bytes stay where they are when the value moves, so that all of it is the rest. What makes
/// that sound is said where the macro is used.
macro_rules! kept_whole {
    ($Type:ty, |$memory:ident| $bytes:expr) => {
        // SAFETY: see the comment at the use of this macro.
        unsafe impl $crate::own::Memory for $Type {
            type Rest = $Type;

            #[allow(unused_mut, reason = "some are asked by a shared reference")]
            fn take_apart(mut self) -> (NonNull<u8>, usize, $Type) {
                let $memory = &mut self;
                let bytes: NonNull<[u8]> = $bytes;
                (bytes.cast(), bytes.len(), self)
            }

            unsafe fn put_together(_: NonNull<u8>, rest: $Type) -> $Type {
                rest
            }
        }
    };
}

/// [`OwnMemory`] of types that are read and written as bytes.
macro_rules! own_bytes {
    ($Type:ty) => {
        impl $crate::own::OwnMemory for $Type {
            type Slice = [u8];

            fn view(bytes: &[u8]) -> &[u8] {
                bytes
            }

            fn view_mut(bytes: &mut [u8]) -> &mut [u8] {
                bytes
            }
        }
    };
}

#[cfg(feature = "bytes")]
mod bytes;
mod mapped;
#[cfg(feature = "memmap2")]
mod memmap;
mod plain;

pub(crate) use mapped::FileMap;
pub use mapped::Mapped;
pub use plain::Plain;

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory of the program's own that it alone uses, and that can be registered where it is, by
/// [`register_own`](crate::ProtectionDomain::register_own) or [`share_own`](crate::ProtectionDomain::share_own).
///
/// | type | feature |
/// |---|---|
/// | `Vec<T>`, `Box<[T]>` of numbers | |
/// | `Vec<T>`, `Box<[T]>` of any plain data (`bytemuck::Pod`) | `bytemuck` |
/// | `bytes::BytesMut` | `bytes` |
/// | [`Mapped`]: pages of their own, huge ones where wanted | |
/// | `memmap2::MmapMut` | `memmap2` |
pub trait OwnMemory: Memory {
    /// What the program sees of it while it is registered: a slice of `T`, or of bytes.
    type Slice: ?Sized;

    #[doc(hidden)]
    fn view(bytes: &[u8]) -> &Self::Slice;

    #[doc(hidden)]
    fn view_mut(bytes: &mut [u8]) -> &mut Self::Slice;
}

/// Bytes that nobody changes any more, and that can be registered where they are, by
/// [`register_read_only`](crate::ProtectionDomain::register_read_only) or
/// [`publish`](crate::ProtectionDomain::publish): `&'static [u8]`, `Arc<[u8]>`, `Vec<u8>` and `Box<[u8]>`; with
/// features `bytes::Bytes` and `memmap2::Mmap`.
pub trait ReadOnlyMemory: Memory {}

/// A value that has bytes elsewhere.
///
/// # Safety
/// Between `take_apart` and `put_together` the bytes stay where they are and initialised. Of an [`OwnMemory`] nobody
/// else reads or writes them meanwhile, of a [`ReadOnlyMemory`] nobody else writes them; of others anybody may do both,
/// by means that tolerate it. `put_together` gets what `take_apart` answered, once. `view` and `view_mut` answer all of
/// the bytes that they are given, if these are those of `take_apart`.
pub unsafe trait Memory: Sized + Send + 'static {
    /// What is left of it without its bytes.
    #[doc(hidden)]
    type Rest: Send + Sync + 'static;

    /// Its first byte, how many there are, and the rest of it.
    #[doc(hidden)]
    fn take_apart(self) -> (NonNull<u8>, usize, Self::Rest);

    /// # Safety
    /// Both are what `take_apart` answered, and are used once.
    #[doc(hidden)]
    unsafe fn put_together(first: NonNull<u8>, rest: Self::Rest) -> Self;
}

/// A value of the program's whose bytes the NIC may touch. Dropping it drops the value.
pub(crate) struct Kept<M: Memory> {
    first: NonNull<u8>,
    rest: ManuallyDrop<M::Rest>,
}

// SAFETY: what it is made of may be sent, as the trait demands, and the address is only handed back.
unsafe impl<M: Memory> Send for Kept<M> {}
// SAFETY: nothing of it is reached through a shared reference.
unsafe impl<M: Memory> Sync for Kept<M> {}

impl<M: Memory> Kept<M> {
    pub fn new(memory: M) -> (NonNull<u8>, usize, Kept<M>) {
        let (first, length, rest) = memory.take_apart();
        (first, length, Kept { first, rest: ManuallyDrop::new(rest) })
    }

    pub fn into_inner(self) -> M {
        let mut kept = ManuallyDrop::new(self);
        // SAFETY: what `take_apart` answered; it is not dropped, so this is the only time.
        unsafe { M::put_together(kept.first, ManuallyDrop::take(&mut kept.rest)) }
    }
}

impl<M: Memory> Drop for Kept<M> {
    fn drop(&mut self) {
        // SAFETY: as in `into_inner`, which does not get here.
        drop(unsafe { M::put_together(self.first, ManuallyDrop::take(&mut self.rest)) });
    }
}

// SAFETY: bytes of a constant stay where they are for ever, and nobody writes them.
kept_whole!(&'static [u8], |bytes| NonNull::from(*bytes));
// SAFETY: the bytes are those of an allocation that the handle keeps; nobody writes them, because `Arc::get_mut` needs
// this handle.
kept_whole!(Arc<[u8]>, |bytes| NonNull::from(&**bytes));

impl ReadOnlyMemory for &'static [u8] {}
impl ReadOnlyMemory for Arc<[u8]> {}
impl ReadOnlyMemory for Vec<u8> {}
impl ReadOnlyMemory for Box<[u8]> {}

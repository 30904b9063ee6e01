//! Buffers of the crate `bytes`, registered without a copy.

use super::{Memory, OwnMemory, ReadOnlyMemory};
use bytes::{Bytes, BytesMut};
use std::ptr::NonNull;

// SAFETY: its bytes are in an allocation that it keeps, wherever it is moved, and nobody writes them.
unsafe impl Memory for Bytes {
    type Rest = Bytes;

    fn take_apart(self) -> (NonNull<u8>, usize, Bytes) {
        (NonNull::from(&*self).cast(), self.len(), self)
    }

    unsafe fn put_together(_: NonNull<u8>, rest: Bytes) -> Bytes {
        rest
    }
}

impl ReadOnlyMemory for Bytes {}

// SAFETY: its bytes are its alone, also where others have other parts of the same allocation, and stay where they are
// until it is used again.
unsafe impl Memory for BytesMut {
    type Rest = BytesMut;

    fn take_apart(mut self) -> (NonNull<u8>, usize, BytesMut) {
        (NonNull::from(&mut *self).cast(), self.len(), self)
    }

    unsafe fn put_together(_: NonNull<u8>, rest: BytesMut) -> BytesMut {
        rest
    }
}

impl OwnMemory for BytesMut {
    type Slice = [u8];

    fn view(bytes: &[u8]) -> &[u8] {
        bytes
    }

    fn view_mut(bytes: &mut [u8]) -> &mut [u8] {
        bytes
    }
}

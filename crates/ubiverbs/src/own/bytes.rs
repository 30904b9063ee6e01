//! Buffers of the crate `bytes`: both ways without a copy.

use super::{Memory, OwnMemory, ReadOnlyMemory};
use crate::buffer::{Registered, RegisteredMut};
use crate::completion::Received;
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

/// These bytes, registered until the last of their handles is dropped.
impl From<Registered> for Bytes {
    fn from(buffer: Registered) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

/// These bytes, registered until the last of their handles is dropped.
impl From<RegisteredMut> for Bytes {
    fn from(buffer: RegisteredMut) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

impl Received {
    /// The message as [`Bytes`], without a copy: the buffer is free again when the last of its handles is dropped. Of
    /// an arena's buffer, it then goes back.
    ///
    /// ```
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// let arena = pd.arena(4096)?;
    /// let receiving = b.recv(arena.allocate(4096)?)?;
    /// a.send(pd.register_read_only(bytes::Bytes::from_static(b"hello"))?)?.wait()?;
    ///
    /// let message: bytes::Bytes = receiving.wait()?.into_bytes();
    /// assert_eq!((&message[..], arena.available()), (&b"hello"[..], 0));
    /// drop(message);
    /// assert_eq!(arena.available(), 4096);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    pub fn into_bytes(self) -> Bytes {
        let place = self.place();
        Bytes::from(self.into_buffer()).slice(place)
    }
}

//! Buffers of the crate `bytes`, registered without a copy.

use super::ReadOnlyMemory;
use bytes::{Bytes, BytesMut};
use std::ptr::NonNull;

// SAFETY: its bytes are in an allocation that it keeps, wherever it is moved, and nobody writes them.
kept_whole!(Bytes, |bytes| NonNull::from(&**bytes));
impl ReadOnlyMemory for Bytes {}

// SAFETY: its bytes are its alone, also where others have other parts of the same allocation, and stay where they are
// until it is used again.
kept_whole!(BytesMut, |bytes| NonNull::from(&mut **bytes));
own_bytes!(BytesMut);

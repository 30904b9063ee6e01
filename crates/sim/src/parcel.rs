//! What is under way: one frame, or one train on a link that carries trains whole. Parcels live in one pool and are
//! named by number, so that the agenda stays small and the buffers are used again.

use crate::frame::Path;
use wire::Headers;

/// Something between two hosts.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) path: Path,
    /// A frame, or the payload of a train.
    pub(crate) bytes: Vec<u8>,
    /// Present if it is a train.
    pub(crate) train: Option<Train>,
}

/// What a ring in shared memory carries beside the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Train {
    pub(crate) headers: Headers,
    pub(crate) count: u32,
    pub(crate) marked: bool,
}

/// The pool.
#[derive(Debug, Default)]
pub(crate) struct Parcels {
    parcels: Vec<Option<Parcel>>,
    free: Vec<u32>,
    buffers: Vec<Vec<u8>>,
}

impl Parcels {
    /// A buffer, used before if possible.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.buffers.push(buffer);
    }

    pub(crate) fn put(&mut self, parcel: Parcel) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.parcels[number as usize] = Some(parcel);
                number
            }
            None => {
                self.parcels.push(Some(parcel));
                (self.parcels.len() - 1) as u32
            }
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Parcel> {
        self.parcels.get(number as usize)?.as_ref()
    }

    pub(crate) fn take(&mut self, number: u32) -> Option<Parcel> {
        let parcel = self.parcels.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(parcel)
    }
}

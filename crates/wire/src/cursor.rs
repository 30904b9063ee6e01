//! Reading and writing big-endian fields in order. A [`Reader`] is opened on one header of known length, so that a
//! short input is reported once, with the header's name; the reads themselves never index. A [`Writer`] is its mirror
//! image.

use crate::{EncodeError, Header, ParseError};

pub(crate) struct Reader<'a> {
    header: Header,
    length: usize,
    window: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Opens `header`, which is `length` bytes at the front of `bytes`.
    #[inline]
    pub(crate) fn new(header: Header, length: usize, bytes: &'a [u8]) -> Result<Self, ParseError> {
        match bytes.split_at_checked(length) {
            Some((window, rest)) => Ok(Reader { header, length, window, rest }),
            None => Err(ParseError::Truncated { header, need: length, have: bytes.len() }),
        }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        match self.window.split_first_chunk() {
            Some((chunk, window)) => {
                self.window = window;
                Ok(*chunk)
            }
            None => {
                let have = self.length - self.window.len();
                Err(ParseError::Truncated { header: self.header, need: have + N, have: self.length })
            }
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, ParseError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, ParseError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, ParseError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, ParseError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// What follows the header.
    #[inline]
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}

pub(crate) struct Writer<'a> {
    header: Header,
    length: usize,
    window: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Opens `length` bytes for `header` at the front of `out`.
    #[inline]
    pub(crate) fn new(header: Header, length: usize, out: &'a mut [u8]) -> Result<Self, EncodeError> {
        let have = out.len();
        match out.split_at_mut_checked(length) {
            Some((window, _)) => Ok(Writer { header, length, window }),
            None => Err(EncodeError::NoRoom { header, need: length, have }),
        }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self, value: [u8; N]) -> Result<(), EncodeError> {
        let window = core::mem::take(&mut self.window);
        let left = window.len();
        match window.split_first_chunk_mut() {
            Some((chunk, window)) => {
                *chunk = value;
                self.window = window;
                Ok(())
            }
            None => {
                let need = self.length - left + N;
                Err(EncodeError::NoRoom { header: self.header, need, have: self.length })
            }
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) -> Result<(), EncodeError> {
        self.array(value.to_be_bytes())
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) -> Result<(), EncodeError> {
        self.array(value.to_be_bytes())
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.array(value.to_be_bytes())
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.array(value.to_be_bytes())
    }

    /// The value, if it fits a field of `bits` bits.
    #[inline]
    pub(crate) fn fit<T: Copy + Into<u64>>(&self, field: &'static str, value: T, bits: u8) -> Result<T, EncodeError> {
        match value.into() >> bits {
            0 => Ok(value),
            _ => Err(EncodeError::TooLarge { header: self.header, field, value: value.into(), bits }),
        }
    }

    /// Ends the header and says how long it is.
    #[inline]
    pub(crate) fn finish(self) -> usize {
        debug_assert!(self.window.is_empty(), "{} has bytes nobody wrote", self.header);
        self.length
    }
}

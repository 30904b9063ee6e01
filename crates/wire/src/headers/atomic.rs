//! AtomicETH and AtomicAckETH, the two halves of a 64-bit atomic (specification 9.3.4).

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, Key, ParseError};

/// The header of an atomic request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// The remote address.
    pub va: u64,
    /// The remote key.
    pub rkey: Key,
    /// What compare-and-swap stores, or fetch-and-add adds.
    pub swap_add: u64,
    /// What compare-and-swap compares with.
    pub compare: u64,
}

impl AtomicEth {
    /// Its encoded length.
    pub const LEN: usize = 28;

    /// Reads it from the front of `bytes`; returns what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(AtomicEth, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::AtomicEth, AtomicEth::LEN, bytes)?;
        let atomic = AtomicEth {
            va: reader.u64()?,
            rkey: Key::new(reader.u32()?),
            swap_add: reader.u64()?,
            compare: reader.u64()?,
        };
        Ok((atomic, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::AtomicEth, AtomicEth::LEN, out)?;
        writer.u64(self.va)?;
        writer.u32(self.rkey.value())?;
        writer.u64(self.swap_add)?;
        writer.u64(self.compare)?;
        Ok(writer.finish())
    }
}

/// The header of an atomic's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAckEth {
    /// The value that was there before.
    pub original: u64,
}

impl AtomicAckEth {
    /// Its encoded length.
    pub const LEN: usize = 8;

    /// Reads it from the front of `bytes`; returns what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(AtomicAckEth, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::AtomicAckEth, AtomicAckEth::LEN, bytes)?;
        let ack = AtomicAckEth { original: reader.u64()? };
        Ok((ack, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::AtomicAckEth, AtomicAckEth::LEN, out)?;
        writer.u64(self.original)?;
        Ok(writer.finish())
    }
}

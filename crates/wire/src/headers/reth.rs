//! RETH, the header that names remote memory (specification 9.3.3).

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, Key, ParseError};

/// The RDMA header. On the first packet of a message it describes the whole message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// The remote address.
    pub va: u64,
    /// The remote key.
    pub rkey: Key,
    /// The length of the whole message.
    pub len: u32,
}

impl Reth {
    /// Its encoded length.
    pub const LEN: usize = 16;

    /// Reads it from the front of `bytes`; returns what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Reth, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Reth, Reth::LEN, bytes)?;
        let reth = Reth { va: reader.u64()?, rkey: Key::new(reader.u32()?), len: reader.u32()? };
        Ok((reth, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Reth, Reth::LEN, out)?;
        writer.u64(self.va)?;
        writer.u32(self.rkey.value())?;
        writer.u32(self.len)?;
        Ok(writer.finish())
    }
}

//! DETH, the datagram header (specification 9.3.2).

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError, Qkey, Qpn};

/// The datagram header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// The key the receiver checks.
    pub qkey: Qkey,
    /// The sender.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Its encoded length.
    pub const LEN: usize = 8;

    /// Reads it from the front of `bytes`; returns what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Deth, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Deth, Deth::LEN, bytes)?;
        let deth = Deth { qkey: Qkey::new(reader.u32()?), src_qpn: Qpn::new(reader.u32()?) };
        Ok((deth, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Deth, Deth::LEN, out)?;
        writer.u32(self.qkey.value())?;
        writer.u32(self.src_qpn.value())?;
        Ok(writer.finish())
    }
}

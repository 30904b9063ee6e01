//! DREQ and DREP: the two messages that end a connection (specification 12.6.10 and 12.6.11).

use super::{BODY_LEN, CommId, Data, MessageKind};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError, Qpn};

/// Request to disconnect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for it.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// For the user.
    pub private_data: Data<220>,
}

impl Dreq {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Dreq, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Dreq), BODY_LEN, body)?;
        Ok(Dreq {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            remote_qpn: Qpn::new(reader.u32()? >> 8),
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Dreq), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(self.remote_comm_id.value())?;
        writer.u32(self.remote_qpn.value() << 8)?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

/// Reply to a disconnection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for it.
    pub remote_comm_id: CommId,
    /// For the user.
    pub private_data: Data<224>,
}

impl Drep {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Drep, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Drep), BODY_LEN, body)?;
        Ok(Drep {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Drep), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(self.remote_comm_id.value())?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

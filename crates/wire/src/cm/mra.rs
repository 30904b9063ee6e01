//! MRA: says that a message arrived and that the answer will take a while (specification 12.6.6).

use super::code::codes;
use super::{BODY_LEN, CommId, Data, MessageKind};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError, Timeout};

codes! {
    /// The message whose receipt is acknowledged.
    ReceivedMessage(u8), bits 2, {
        Req = 0 "REQ",
        Rep = 1 "REP",
        Lap = 2 "LAP",
    }
}

/// Message receipt acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for it.
    pub remote_comm_id: CommId,
    /// What arrived.
    pub received: ReceivedMessage,
    /// How long the answer will take.
    pub service_timeout: Timeout,
    /// For the user.
    pub private_data: Data<222>,
}

impl Mra {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Mra, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Mra), BODY_LEN, body)?;
        Ok(Mra {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            received: ReceivedMessage::from_code(reader.u8()? >> 6),
            service_timeout: Timeout::new(reader.u8()? >> 3),
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Mra), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(self.remote_comm_id.value())?;
        writer.u8(self.received.code() << 6)?;
        writer.u8(self.service_timeout.value() << 3)?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

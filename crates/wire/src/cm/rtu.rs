//! RTU: tells the replier that the connection is ready to use (specification 12.6.9).

use super::{BODY_LEN, CommId, Data, MessageKind};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

/// Ready to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for it.
    pub remote_comm_id: CommId,
    /// For the user.
    pub private_data: Data<224>,
}

impl Rtu {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Rtu, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Rtu), BODY_LEN, body)?;
        Ok(Rtu {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Rtu), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(self.remote_comm_id.value())?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

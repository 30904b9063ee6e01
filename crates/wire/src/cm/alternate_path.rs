//! LAP and APR: a connected side offers another path, the other answers (specification 12.8.1 and 12.8.2).

use super::code::codes;
use super::fields::message;
use super::{BODY_LEN, CommId, Data, MessageKind, Path};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError, Qpn, Timeout};

/// Load alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lap {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for it.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// How long the receiver may take to answer.
    pub remote_cm_response_timeout: Timeout,
    /// The path that is offered.
    pub alternate: Path,
    /// For the user.
    pub private_data: Data<168>,
}

impl Lap {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Lap, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Lap), BODY_LEN, body)?;
        let local_comm_id = CommId::new(reader.u32()?);
        let remote_comm_id = CommId::new(reader.u32()?);
        let _reserved = reader.u32()?;
        let qpn_timeout = reader.u32()?;
        let _reserved = reader.u32()?;
        Ok(Lap {
            local_comm_id,
            remote_comm_id,
            remote_qpn: Qpn::new(qpn_timeout >> 8),
            remote_cm_response_timeout: Timeout::new(qpn_timeout as u8 >> 3),
            alternate: Path::parse_lap(&mut reader)?,
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Lap), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(self.remote_comm_id.value())?;
        writer.u32(0)?;
        let timeout = self.remote_cm_response_timeout.value() << 3;
        writer.u32(self.remote_qpn.value() << 8 | u32::from(timeout))?;
        writer.u32(0)?;
        self.alternate.encode_lap(&mut writer)?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

codes! {
    /// What became of the offered path.
    ApStatus(u8), bits 8, {
        Loaded = 0 "path loaded",
        InvalidCommId = 1 "invalid communication id",
        NotSupported = 2 "alternate paths are not supported",
        Rejected = 3 "rejected by the application",
        Redirected = 4 "go to another port",
        Duplicate = 5 "same as the current path",
        QpnMismatch = 6 "queue pair number does not match",
        Lid = 7 "remote port LID rejected",
        Gid = 8 "remote port GID rejected",
        FlowLabel = 9 "flow label rejected",
        TrafficClass = 10 "traffic class rejected",
        HopLimit = 11 "hop limit rejected",
        PacketRate = 12 "packet rate rejected",
        ServiceLevel = 13 "service level rejected",
    }
}

message! {
    /// Alternate path response.
    Apr {
        /// The sender's name for the connection.
        local_comm_id: CommId;
        /// The receiver's name for it.
        remote_comm_id: CommId;
        /// How many bytes of [`Apr::info`] count.
        info_length: u8;
        /// What became of the path.
        status: ApStatus, then 2 reserved;
        /// What would have been accepted, depending on the status.
        info: Data<72>;
        /// For the user.
        private_data: Data<148>;
    }
}

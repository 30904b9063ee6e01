//! REJ: ends an attempt to connect, with a reason (specification 12.6.7).

use super::code::codes;
use super::{BODY_LEN, CommId, Data, MessageKind};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

codes! {
    /// The message that is rejected.
    RejectedMessage(u8), bits 2, {
        Req = 0 "REQ",
        Rep = 1 "REP",
        NoMessage = 2 "no message",
    }
}

codes! {
    /// Why (specification 12.6.7.2).
    RejectReason(u16), bits 16, {
        NoQp = 1 "no queue pair available",
        NoEec = 2 "no end-to-end context available",
        NoResources = 3 "no resources available",
        Timeout = 4 "timeout",
        UnsupportedRequest = 5 "unsupported request",
        InvalidCommId = 6 "invalid communication id",
        InvalidCommInstance = 7 "invalid communication instance",
        InvalidServiceId = 8 "invalid service id: nobody listens",
        InvalidTransport = 9 "invalid transport service type",
        StaleConnection = 10 "stale connection",
        RdcDoesNotExist = 11 "reliable datagram channel does not exist",
        PrimaryGid = 12 "primary remote port GID rejected",
        PrimaryLid = 13 "primary remote port LID rejected",
        PrimarySl = 14 "primary service level rejected",
        PrimaryTrafficClass = 15 "primary traffic class rejected",
        PrimaryHopLimit = 16 "primary hop limit rejected",
        PrimaryPacketRate = 17 "primary packet rate rejected",
        AlternateGid = 18 "alternate remote port GID rejected",
        AlternateLid = 19 "alternate remote port LID rejected",
        AlternateSl = 20 "alternate service level rejected",
        AlternateTrafficClass = 21 "alternate traffic class rejected",
        AlternateHopLimit = 22 "alternate hop limit rejected",
        AlternatePacketRate = 23 "alternate packet rate rejected",
        PortAndCmRedirection = 24 "go to another port and connection manager",
        PortRedirection = 25 "go to another port",
        InvalidPathMtu = 26 "invalid path MTU",
        InsufficientResponderResources = 27 "insufficient responder resources",
        Consumer = 28 "rejected by the application",
        RnrRetryCount = 29 "RNR retry count rejected",
        DuplicateLocalCommId = 30 "duplicate local communication id",
        InvalidClassVersion = 31 "invalid class version",
        PrimaryFlowLabel = 32 "primary flow label rejected",
        AlternateFlowLabel = 33 "alternate flow label rejected",
        VendorOption = 35 "vendor option not supported",
    }
}

/// Rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's name for the connection; 0 if it has none.
    pub local_comm_id: CommId,
    /// The receiver's name for it.
    pub remote_comm_id: CommId,
    /// What is rejected.
    pub rejected: RejectedMessage,
    /// How many bytes of [`Rej::info`] count, seven bits.
    pub info_length: u8,
    /// Why.
    pub reason: RejectReason,
    /// What would have been accepted, depending on the reason.
    pub info: Data<72>,
    /// For the user.
    pub private_data: Data<148>,
}

impl Rej {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Rej, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Rej), BODY_LEN, body)?;
        Ok(Rej {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            rejected: RejectedMessage::from_code(reader.u8()? >> 6),
            info_length: reader.u8()? >> 1,
            reason: RejectReason::from_code(reader.u16()?),
            info: Data::new(reader.array()?),
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Rej), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(self.remote_comm_id.value())?;
        writer.u8(self.rejected.code() << 6)?;
        writer.u8(writer.fit("reject info length", self.info_length, 7)? << 1)?;
        writer.u16(self.reason.code())?;
        writer.array(*self.info.bytes())?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

//! SIDR_REQ and SIDR_REP: find the datagram queue pair behind a service id (specification 12.11).

use super::code::codes;
use super::{BODY_LEN, CommId, Data, MessageKind, ServiceId};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError, Pkey, Qkey, Qpn};

/// Request for the queue pair behind a service id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's name for the request.
    pub request_id: CommId,
    /// The partition.
    pub pkey: Pkey,
    /// What is asked for.
    pub service_id: ServiceId,
    /// For the user; an IP service begins with [`IpCm`](super::IpCm).
    pub private_data: Data<216>,
}

impl SidrReq {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<SidrReq, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::SidrReq), BODY_LEN, body)?;
        let request_id = CommId::new(reader.u32()?);
        let pkey = Pkey::new(reader.u16()?);
        let _reserved = reader.u16()?;
        let service_id = ServiceId::new(reader.u64()?);
        Ok(SidrReq { request_id, pkey, service_id, private_data: Data::new(reader.array()?) })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::SidrReq), BODY_LEN, out)?;
        writer.u32(self.request_id.value())?;
        writer.u16(self.pkey.value())?;
        writer.u16(0)?;
        writer.u64(self.service_id.value())?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

codes! {
    /// How the resolution went.
    SidrStatus(u8), bits 8, {
        Valid = 0 "queue pair found",
        ServiceIdNotSupported = 1 "service id not supported",
        Rejected = 2 "rejected by the service",
        NoQp = 3 "no queue pair available",
        Redirected = 4 "go to another port",
        UnsupportedVersion = 5 "unsupported version",
    }
}

/// Reply to a service id resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The receiver's name for the request.
    pub request_id: CommId,
    /// How it went.
    pub status: SidrStatus,
    /// How many bytes of [`SidrRep::info`] count.
    pub info_length: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// What was asked for.
    pub service_id: ServiceId,
    /// The key of the queue pair.
    pub qkey: Qkey,
    /// More, depending on the status.
    pub info: Data<72>,
    /// For the user.
    pub private_data: Data<136>,
}

impl SidrRep {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<SidrRep, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::SidrRep), BODY_LEN, body)?;
        let request_id = CommId::new(reader.u32()?);
        let status = SidrStatus::from_code(reader.u8()?);
        let info_length = reader.u8()?;
        let _reserved = reader.u16()?;
        Ok(SidrRep {
            request_id,
            status,
            info_length,
            qpn: Qpn::new(reader.u32()? >> 8),
            service_id: ServiceId::new(reader.u64()?),
            qkey: Qkey::new(reader.u32()?),
            info: Data::new(reader.array()?),
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::SidrRep), BODY_LEN, out)?;
        writer.u32(self.request_id.value())?;
        writer.u8(self.status.code())?;
        writer.u8(self.info_length)?;
        writer.u16(0)?;
        writer.u32(self.qpn.value() << 8)?;
        writer.u64(self.service_id.value())?;
        writer.u32(self.qkey.value())?;
        writer.array(*self.info.bytes())?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

//! REQ: asks for a connection (specification 12.6.5).

use super::code::codes;
use super::{BODY_LEN, CommId, Data, MessageKind, Path, ServiceId};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, Mtu, ParseError, Pkey, Psn, Qkey, Qpn, Timeout, Transport};

codes! {
    /// The transport service that is asked for.
    TransportService(u8), bits 2, {
        ReliableConnection = 0 "reliable connection",
        UnreliableConnection = 1 "unreliable connection",
        ReliableDatagram = 2 "reliable datagram",
        Extended = 3 "extended transport",
    }
}

/// Request for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// Whose vendor options the attribute modifier of the datagram holds, 24 bits; 0 for none.
    pub vendor_id: u32,
    /// What is asked for.
    pub service_id: ServiceId,
    /// The sender's channel adapter.
    pub local_ca_guid: u64,
    /// The key of the sender's queue pair, for reliable datagram.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// How many reads and atomics the sender can answer at a time.
    pub responder_resources: u8,
    /// The sender's end-to-end context, 24 bits, for reliable datagram.
    pub local_eecn: u32,
    /// How many reads and atomics the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context, 24 bits, for reliable datagram.
    pub remote_eecn: u32,
    /// How long the receiver may take to answer.
    pub remote_cm_response_timeout: Timeout,
    /// The transport service.
    pub service: TransportService,
    /// Whether the sender does end-to-end flow control.
    pub flow_control: bool,
    /// The first PSN the sender expects: the receiver begins with it.
    pub starting_psn: Psn,
    /// How long the sender will take to answer.
    pub local_cm_response_timeout: Timeout,
    /// How often to retry after a missing acknowledgement, three bits.
    pub retry_count: u8,
    /// The partition.
    pub pkey: Pkey,
    /// The code of the path MTU, four bits; [`Req::mtu`] decodes it.
    pub path_mtu: u8,
    /// Whether the end-to-end context exists already.
    pub rdc_exists: bool,
    /// How often to retry when the receiver is not ready, three bits; 7 is for ever.
    pub rnr_retry_count: u8,
    /// How often the sender will repeat its messages, four bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Which extended transport, three bits: 1 is XRC.
    pub extended_transport: u8,
    /// The path to use.
    pub primary: Path,
    /// The path to fall back to, all zero for none.
    pub alternate: Path,
    /// Whether the sender understands suggested alternate paths.
    pub sap_supported: bool,
    /// For the user; an IP service begins with [`IpCm`](super::IpCm).
    pub private_data: Data<92>,
}

impl Req {
    /// The transport asked for, or nothing where it is one that RoCEv2 does not have.
    pub const fn transport(&self) -> Option<Transport> {
        match (self.service, self.extended_transport) {
            (TransportService::ReliableConnection, _) => Some(Transport::Rc),
            (TransportService::UnreliableConnection, _) => Some(Transport::Uc),
            (TransportService::Extended, 1) => Some(Transport::Xrc),
            _ => None,
        }
    }

    /// The path MTU, if the code is one.
    pub const fn mtu(&self) -> Option<Mtu> {
        Mtu::from_code(self.path_mtu)
    }

    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Req, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Req), BODY_LEN, body)?;
        let local_comm_id = CommId::new(reader.u32()?);
        let vendor_id = reader.u32()? & 0xff_ffff;
        let service_id = ServiceId::new(reader.u64()?);
        let local_ca_guid = reader.u64()?;
        let _reserved = reader.u32()?;
        let local_qkey = Qkey::new(reader.u32()?);
        let qpn_resources = reader.u32()?;
        let eecn_depth = reader.u32()?;
        let remote_eecn = reader.u32()?;
        let psn_retry = reader.u32()?;
        let pkey = Pkey::new(reader.u16()?);
        let mtu_rnr = reader.u8()?;
        let retries_srq = reader.u8()?;
        let (primary, _) = Path::parse_req(&mut reader)?;
        let (alternate, alternate_extra) = Path::parse_req(&mut reader)?;
        Ok(Req {
            local_comm_id,
            vendor_id,
            service_id,
            local_ca_guid,
            local_qkey,
            local_qpn: Qpn::new(qpn_resources >> 8),
            responder_resources: qpn_resources as u8,
            local_eecn: eecn_depth >> 8,
            initiator_depth: eecn_depth as u8,
            remote_eecn: remote_eecn >> 8,
            remote_cm_response_timeout: Timeout::new(remote_eecn as u8 >> 3),
            service: TransportService::from_code(remote_eecn as u8 >> 1),
            flow_control: remote_eecn & 1 != 0,
            starting_psn: Psn::new(psn_retry >> 8),
            local_cm_response_timeout: Timeout::new(psn_retry as u8 >> 3),
            retry_count: psn_retry as u8 & 0x7,
            pkey,
            path_mtu: mtu_rnr >> 4,
            rdc_exists: mtu_rnr & 0x08 != 0,
            rnr_retry_count: mtu_rnr & 0x7,
            max_cm_retries: retries_srq >> 4,
            srq: retries_srq & 0x08 != 0,
            extended_transport: retries_srq & 0x7,
            primary,
            alternate,
            sap_supported: alternate_extra & 0x4 != 0,
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Req), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(writer.fit("vendor id", self.vendor_id, 24)?)?;
        writer.u64(self.service_id.value())?;
        writer.u64(self.local_ca_guid)?;
        writer.u32(0)?;
        writer.u32(self.local_qkey.value())?;
        writer.u32(self.local_qpn.value() << 8 | u32::from(self.responder_resources))?;
        let local_eecn = writer.fit("local EECN", self.local_eecn, 24)?;
        writer.u32(local_eecn << 8 | u32::from(self.initiator_depth))?;
        let remote_eecn = writer.fit("remote EECN", self.remote_eecn, 24)?;
        let timeout = self.remote_cm_response_timeout.value() << 3;
        let service = timeout | self.service.code() << 1 | u8::from(self.flow_control);
        writer.u32(remote_eecn << 8 | u32::from(service))?;
        let retry_count = writer.fit("retry count", self.retry_count, 3)?;
        let retry = self.local_cm_response_timeout.value() << 3 | retry_count;
        writer.u32(self.starting_psn.value() << 8 | u32::from(retry))?;
        writer.u16(self.pkey.value())?;
        let path_mtu = writer.fit("path MTU", self.path_mtu, 4)?;
        let rnr_retry_count = writer.fit("RNR retry count", self.rnr_retry_count, 3)?;
        writer.u8(path_mtu << 4 | u8::from(self.rdc_exists) << 3 | rnr_retry_count)?;
        let max_cm_retries = writer.fit("max CM retries", self.max_cm_retries, 4)?;
        let extended_transport = writer.fit("extended transport", self.extended_transport, 3)?;
        writer.u8(max_cm_retries << 4 | u8::from(self.srq) << 3 | extended_transport)?;
        self.primary.encode_req(&mut writer, 0)?;
        self.alternate.encode_req(&mut writer, u8::from(self.sap_supported) << 2)?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

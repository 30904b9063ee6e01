//! REP: accepts a request (specification 12.6.8).

use super::code::codes;
use super::{BODY_LEN, CommId, Data, MessageKind};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError, Psn, Qkey, Qpn, Timeout};

codes! {
    /// What became of the alternate path.
    Failover(u8), bits 2, {
        Accepted = 0 "accepted",
        NotSupported = 1 "failover not supported",
        Rejected = 2 "alternate path rejected",
    }
}

/// Reply to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for it.
    pub remote_comm_id: CommId,
    /// The key of the sender's queue pair, for reliable datagram.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// The sender's end-to-end context, 24 bits; an XRC target's queue pair is here.
    pub local_eecn: u32,
    /// The first PSN the sender expects: the receiver begins with it.
    pub starting_psn: Psn,
    /// Whose vendor options the attribute modifier of the datagram holds, 24 bits; 0 for none.
    pub vendor_id: u32,
    /// How many reads and atomics the sender can answer at a time.
    pub responder_resources: u8,
    /// How many reads and atomics the sender will have outstanding.
    pub initiator_depth: u8,
    /// How long the sender takes to acknowledge.
    pub target_ack_delay: Timeout,
    /// What became of the alternate path.
    pub failover: Failover,
    /// Whether the sender does end-to-end flow control.
    pub flow_control: bool,
    /// How often to retry when the sender is not ready, three bits; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's channel adapter.
    pub local_ca_guid: u64,
    /// For the user.
    pub private_data: Data<196>,
}

impl Rep {
    /// Reads it from the front of `body`.
    pub fn parse(body: &[u8]) -> Result<Rep, ParseError> {
        let mut reader = Reader::new(Header::Cm(MessageKind::Rep), BODY_LEN, body)?;
        let local_comm_id = CommId::new(reader.u32()?);
        let remote_comm_id = CommId::new(reader.u32()?);
        let local_qkey = Qkey::new(reader.u32()?);
        // Three words of 24 bits; the byte behind each is one of the vendor id's.
        let qpn = reader.u32()?;
        let eecn = reader.u32()?;
        let psn = reader.u32()?;
        let responder_resources = reader.u8()?;
        let initiator_depth = reader.u8()?;
        let delay_failover = reader.u8()?;
        let rnr_srq = reader.u8()?;
        Ok(Rep {
            local_comm_id,
            remote_comm_id,
            local_qkey,
            local_qpn: Qpn::new(qpn >> 8),
            local_eecn: eecn >> 8,
            starting_psn: Psn::new(psn >> 8),
            vendor_id: u32::from_be_bytes([0, qpn as u8, eecn as u8, psn as u8]),
            responder_resources,
            initiator_depth,
            target_ack_delay: Timeout::new(delay_failover >> 3),
            failover: Failover::from_code(delay_failover >> 1),
            flow_control: delay_failover & 1 != 0,
            rnr_retry_count: rnr_srq >> 5,
            srq: rnr_srq & 0x10 != 0,
            local_ca_guid: reader.u64()?,
            private_data: Data::new(reader.array()?),
        })
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Cm(MessageKind::Rep), BODY_LEN, out)?;
        writer.u32(self.local_comm_id.value())?;
        writer.u32(self.remote_comm_id.value())?;
        writer.u32(self.local_qkey.value())?;
        let [_, high, middle, low] = writer.fit("vendor id", self.vendor_id, 24)?.to_be_bytes().map(u32::from);
        writer.u32(self.local_qpn.value() << 8 | high)?;
        writer.u32(writer.fit("local EECN", self.local_eecn, 24)? << 8 | middle)?;
        writer.u32(self.starting_psn.value() << 8 | low)?;
        writer.u8(self.responder_resources)?;
        writer.u8(self.initiator_depth)?;
        let delay = self.target_ack_delay.value() << 3;
        writer.u8(delay | self.failover.code() << 1 | u8::from(self.flow_control))?;
        let rnr_retry_count = writer.fit("RNR retry count", self.rnr_retry_count, 3)?;
        writer.u8(rnr_retry_count << 5 | u8::from(self.srq) << 4)?;
        writer.u64(self.local_ca_guid)?;
        writer.array(*self.private_data.bytes())?;
        Ok(writer.finish())
    }
}

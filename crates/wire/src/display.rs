//! One line of text for a packet or a CM message, as a person wants to read it in a log: what it is, whom it is for,
//! and the fields that are not what they always are. It reads well and is stable enough for a test to look at, but it
//! is no format to parse.

use core::fmt;

use crate::cm::{CmDatagram, Message};
use crate::{Bth, Headers, Packet, Pkey, Qpn};

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The specification's names say RDMA before READ and WRITE; a log of RDMA packets need not.
        for part in self.opcode.name().split("RDMA ") {
            f.write_str(part)?;
        }
        write!(f, "  qp {} psn {}", self.dest_qpn, self.psn)?;
        if self.pkey != Pkey::DEFAULT {
            write!(f, " pkey {}", self.pkey)?;
        }
        let flags = [
            (self.ack_req, " ack-req"),
            (self.solicited, " solicited"),
            (self.mig_req, " mig-req"),
            (self.fecn, " fecn"),
            (self.becn, " becn"),
        ];
        for (_, name) in flags.into_iter().filter(|(set, _)| *set) {
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bth.fmt(f)?;
        if let Some(srqn) = self.xrc {
            write!(f, " srq {srqn}")?;
        }
        if let Some(deth) = self.deth {
            write!(f, " from {} qkey {}", deth.src_qpn, deth.qkey)?;
        }
        if let Some(feth) = self.feth {
            write!(f, " placement {:#x} selectivity {:?}", feth.placement.bits(), feth.selectivity)?;
        }
        if let Some(reth) = self.reth {
            write!(f, " va {:#x} rkey {} len {}", reth.va, reth.rkey, reth.len)?;
        }
        if let Some(atomic) = self.atomic {
            write!(f, " va {:#x} rkey {} swap/add {:#x}", atomic.va, atomic.rkey, atomic.swap_add)?;
            write!(f, " compare {:#x}", atomic.compare)?;
        }
        if let Some(aeth) = self.aeth {
            write!(f, " {} msn {}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(ack) = self.atomic_ack {
            write!(f, " original {:#x}", ack.original)?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, " imm {immediate:#x}")?;
        }
        if let Some(key) = self.invalidate {
            write!(f, " invalidate {key}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headers.fmt(f)?;
        if self.headers.bth.opcode.has_payload() {
            write!(f, " | {} B", self.payload.len())?;
        }
        if self.headers.bth.dest_qpn == Qpn::GSI
            && let Ok(datagram) = CmDatagram::parse(self.payload)
        {
            write!(f, " CM {}", datagram.message)?;
        }
        Ok(())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)?;
        match self {
            Message::Req(m) => {
                write!(f, " id {} service {} qp {}", m.local_comm_id, m.service_id, m.local_qpn)?;
                write!(f, " psn {} {}", m.starting_psn, m.service)
            }
            Message::Mra(m) => {
                write!(f, " id {} for {} of {}", m.local_comm_id, m.remote_comm_id, m.received)?;
                write!(f, " timeout {}", m.service_timeout)
            }
            Message::Rej(m) => {
                write!(f, " id {} for {} of {}", m.local_comm_id, m.remote_comm_id, m.rejected)?;
                write!(f, ": {}", m.reason)
            }
            Message::Rep(m) => {
                write!(f, " id {} for {} qp {}", m.local_comm_id, m.remote_comm_id, m.local_qpn)?;
                write!(f, " psn {}", m.starting_psn)
            }
            Message::Rtu(m) => write!(f, " id {} for {}", m.local_comm_id, m.remote_comm_id),
            Message::Dreq(m) => {
                write!(f, " id {} for {} qp {}", m.local_comm_id, m.remote_comm_id, m.remote_qpn)
            }
            Message::Drep(m) => write!(f, " id {} for {}", m.local_comm_id, m.remote_comm_id),
            Message::SidrReq(m) => write!(f, " id {} service {}", m.request_id, m.service_id),
            Message::SidrRep(m) => {
                write!(f, " id {} service {} qp {}", m.request_id, m.service_id, m.qpn)?;
                write!(f, " qkey {}: {}", m.qkey, m.status)
            }
            Message::Lap(m) => {
                write!(f, " id {} for {} qp {}", m.local_comm_id, m.remote_comm_id, m.remote_qpn)?;
                write!(f, " path {} to {}", m.alternate.local_gid, m.alternate.remote_gid)
            }
            Message::Apr(m) => {
                write!(f, " id {} for {}: {}", m.local_comm_id, m.remote_comm_id, m.status)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{CommId, Data, Rej, RejectReason, RejectedMessage};
    use crate::{Aeth, Deth, Key, Msn, NakCode, Opcode, Psn, Qkey, Reth, Syndrome};
    use alloc::string::ToString;

    #[test]
    fn a_write_reads_as_one_line() {
        let mut headers = Headers::new(Opcode::RcWriteFirst, Qpn::new(0x11), Psn::new(5));
        headers.reth = Some(Reth { va: 0x7f00_0000_1000, rkey: Key::new(0x1234), len: 8192 });
        let packet = Packet { headers, payload: &[0; 1024] };
        assert_eq!(packet.to_string(), "RC WRITE First  qp 0x11 psn 5 va 0x7f0000001000 rkey 0x1234 len 8192 | 1024 B");
    }

    #[test]
    fn an_answer_says_what_it_answers() {
        let mut headers = Headers::new(Opcode::RcAcknowledge, Qpn::new(0x12), Psn::new(7));
        headers.aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: Msn::new(3) });
        let packet = Packet { headers, payload: &[] };
        assert_eq!(packet.to_string(), "RC Acknowledge  qp 0x12 psn 7 NAK remote access error msn 3");
    }

    #[test]
    fn a_management_datagram_names_its_message() {
        let rej = Rej {
            local_comm_id: CommId::new(0),
            remote_comm_id: CommId::new(0xabc),
            rejected: RejectedMessage::Req,
            info_length: 0,
            reason: RejectReason::InvalidServiceId,
            info: Data::default(),
            private_data: Data::default(),
        };
        let mut payload = [0; 256];
        CmDatagram::new(1, rej.into()).encode(&mut payload).unwrap();
        let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
        headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
        headers.bth.ack_req = true;
        assert_eq!(
            Packet { headers, payload: &payload }.to_string(),
            "UD SEND Only  qp 0x1 psn 0 ack-req from 0x1 qkey 0x80010000 | 256 B \
             CM REJ id 0x0 for 0xabc of REQ: invalid service id: nobody listens"
        );
    }
}

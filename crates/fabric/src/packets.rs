//! Packets under way, in 48 bytes each: a network of ten thousand hosts has a million of them, and every hop looks at
//! one. Payload is only a length, and headers are cut down to what packets of WRITEs, acknowledgements and congestion
//! notifications have.

use crate::endpoint::{endpoint_of, qpn_of};
use wire::{Aeth, Headers, Key, Msn, Opcode, Psn, Reth, Syndrome};

/// No packet, or no port.
pub(crate) const NONE: u32 = u32::MAX;

/// The packet may be marked.
pub(crate) const ECN_CAPABLE: u8 = 1;
/// It is marked.
pub(crate) const MARKED: u8 = 1 << 1;
/// It goes before others, and nothing pauses it: a congestion notification.
pub(crate) const URGENT: u8 = 1 << 2;

/// What a hop needs, and what its receiver does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The next in its queue, or the next free.
    pub next: u32,
    /// The port it is on or waits at.
    pub port: u32,
    /// Where in the list of all paths its way goes on.
    pub path: u32,
    /// The port by which it came to where it waits.
    pub ingress: u32,
    /// Bytes on the wire.
    pub wire: u32,
    pub flags: u8,
    pub content: Content,
}

/// Headers and the length of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    opcode: Opcode,
    /// Bits of the BTH.
    bits: u8,
    /// 4096 at most.
    pub payload: u16,
    /// The host that sent it.
    pub source: u32,
    /// For which queue pair it is.
    pub endpoint: u32,
    psn: Psn,
    /// RETH: the length of the message. AETH: the syndrome, and the messages.
    extended: u32,
    immediate: u32,
}

const ACK_REQ: u8 = 1;
const SOLICITED: u8 = 1 << 1;
const BECN: u8 = 1 << 2;
const RETH: u8 = 1 << 3;
const AETH: u8 = 1 << 4;
const IMMEDIATE: u8 = 1 << 5;

/// Where messages go in the memory that nobody has.
pub(crate) const ADDRESS: u64 = 0;
pub(crate) const KEY: Key = Key::new(1);

impl Content {
    pub fn new(headers: &Headers, payload: u32, source: u32) -> Content {
        let bth = &headers.bth;
        let bit = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
        Content {
            opcode: bth.opcode,
            bits: bit(ACK_REQ, bth.ack_req)
                | bit(SOLICITED, bth.solicited)
                | bit(BECN, bth.becn)
                | bit(RETH, headers.reth.is_some())
                | bit(AETH, headers.aeth.is_some())
                | bit(IMMEDIATE, headers.immediate.is_some()),
            payload: payload as u16,
            source,
            endpoint: endpoint_of(bth.dest_qpn),
            psn: bth.psn,
            extended: match (headers.reth, headers.aeth) {
                (Some(reth), _) => reth.len,
                (_, Some(aeth)) => u32::from(aeth.syndrome.byte()) << 24 | aeth.msn.value(),
                _ => 0,
            },
            immediate: headers.immediate.unwrap_or(0),
        }
    }

    /// The headers again.
    pub fn headers(&self) -> Headers {
        let mut headers = Headers::new(self.opcode, qpn_of(self.endpoint), self.psn);
        let is_set = |bit: u8| self.bits & bit != 0;
        headers.bth.ack_req = is_set(ACK_REQ);
        headers.bth.solicited = is_set(SOLICITED);
        headers.bth.becn = is_set(BECN);
        headers.bth.pad = wire::Packet::pad(usize::from(self.payload));
        headers.reth = is_set(RETH).then_some(Reth { va: ADDRESS, rkey: KEY, len: self.extended });
        headers.aeth = is_set(AETH).then(|| Aeth {
            syndrome: Syndrome::from_byte((self.extended >> 24) as u8),
            msn: Msn::new(self.extended & 0xff_ffff),
        });
        headers.immediate = is_set(IMMEDIATE).then_some(self.immediate);
        headers
    }
}

/// All packets under way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    pub all: Vec<Packet>,
    free: Option<u32>,
}

impl Packets {
    pub fn add(&mut self, packet: Packet) -> u32 {
        match self.free {
            Some(number) => {
                let place = &mut self.all[number as usize];
                self.free = (place.next != NONE).then_some(place.next);
                *place = packet;
                number
            }
            None => {
                self.all.push(packet);
                (self.all.len() - 1) as u32
            }
        }
    }

    pub fn remove(&mut self, number: u32) {
        self.all[number as usize].next = self.free.unwrap_or(NONE);
        self.free = Some(number);
    }
}

/// The bytes that a packet takes on an Ethernet wire: preamble, headers, payload, both checksums, and the gap after it.
pub(crate) fn wire_bytes(headers: &Headers, payload: u32) -> u32 {
    const PREAMBLE_AND_GAP: u32 = 20;
    const ETHERNET_IP_UDP: u32 = 14 + 20 + 8;
    const ICRC_AND_FCS: u32 = 8;
    let frame = ETHERNET_IP_UDP + headers.len() as u32 + payload.next_multiple_of(4) + ICRC_AND_FCS;
    frame.max(64) + PREAMBLE_AND_GAP
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::NakCode;

    #[test]
    fn headers_come_out_as_they_went_in() {
        let mut write = Headers::new(Opcode::RcWriteOnlyImmediate, qpn_of(77), Psn::new(0xff_ffff));
        write.reth = Some(Reth { va: ADDRESS, rkey: KEY, len: 1001 });
        write.immediate = Some(u32::MAX);
        (write.bth.ack_req, write.bth.pad) = (true, 3);
        let mut middle = Headers::new(Opcode::RcWriteMiddle, qpn_of(0), Psn::new(5));
        middle.bth.ack_req = true;
        let mut nak = Headers::new(Opcode::RcAcknowledge, qpn_of(3), Psn::new(9));
        nak.aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::SequenceError), msn: Msn::new(0xab_cdef) });
        let mut ack = nak;
        ack.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
        for (headers, payload) in [(write, 1001), (middle, 4096), (nak, 0), (ack, 0), (Headers::cnp(qpn_of(12)), 16)] {
            let content = Content::new(&headers, payload, 5);
            assert_eq!(content.headers(), headers);
            assert_eq!((u32::from(content.payload), content.source), (payload, 5));
        }
        assert_eq!(size_of::<Packet>(), 48);
    }
}

//! Packets under way, in 32 bytes each: a network of ten thousand hosts has a million of them, and every hop looks at
//! one. Payload is only a length, and headers are cut down to what packets of WRITEs, acknowledgements and congestion
//! notifications have.

use crate::endpoint::{endpoint_of, qpn_of};
use wire::{Aeth, Headers, Key, Msn, Opcode, Psn, Reth, Syndrome};

/// No packet, or no port.
pub(crate) const NO_PACKET: u32 = u32::MAX;

/// The packet may be marked.
pub(crate) const ECN_CAPABLE: u8 = 1;
/// It is marked.
pub(crate) const FLAG_MARKED: u8 = 1 << 1;
/// It goes before others, and nothing pauses it: a congestion notification.
pub(crate) const FLAG_URGENT: u8 = 1 << 2;
/// It has not left its host: `port` is the one it waits at, not the one by which it came.
pub(crate) const FLAG_OWN: u8 = 1 << 3;
/// Pad bytes of the payload, two bits.
const PAD_SHIFT: u32 = 4;

/// What a hop needs, and what its receiver does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The calendar's: when it arrives, in its epoch.
    pub place: u32,
    /// The port it is on, or by which it came to where it waits.
    pub port: u32,
    /// Where in the list of all paths the port is that it waits for, or will reach.
    pub path: u32,
    /// For which queue pair it is.
    pub endpoint: u32,
    /// The sequence number, and bits of the BTH above it.
    psn: u32,
    /// RETH: the length of the message. AETH: the syndrome, and the messages.
    extended: u32,
    immediate: u32,
    /// Bytes on the wire.
    wire: u16,
    opcode: Opcode,
    pub flags: u8,
}

const ACK_REQ: u32 = 1 << 24;
const HEADER_SOLICITED: u32 = 1 << 25;
const HEADER_BECN: u32 = 1 << 26;
const HEADER_RETH: u32 = 1 << 27;
const HEADER_AETH: u32 = 1 << 28;
const HEADER_IMMEDIATE: u32 = 1 << 29;

/// Where messages go in the memory that nobody has.
pub(crate) const NOBODYS_ADDRESS: u64 = 0;
pub(crate) const NOBODYS_KEY: Key = Key::new(1);

impl Packet {
    /// A packet that waits at the first port of its way, which begins at `path`.
    pub fn new(headers: &Headers, payload: u32, port: u32, path: u32, flags: u8) -> Packet {
        let bth = &headers.bth;
        let bit = |bit: u32, is_set: bool| if is_set { bit } else { 0 };
        let bits = bit(ACK_REQ, bth.ack_req)
            | bit(HEADER_SOLICITED, bth.solicited)
            | bit(HEADER_BECN, bth.becn)
            | bit(HEADER_RETH, headers.reth.is_some())
            | bit(HEADER_AETH, headers.aeth.is_some())
            | bit(HEADER_IMMEDIATE, headers.immediate.is_some());
        let pad = payload.wrapping_neg() & 3;
        Packet {
            place: 0,
            port,
            path,
            endpoint: endpoint_of(bth.dest_qpn),
            psn: bth.psn.value() | bits,
            extended: match (headers.reth, headers.aeth) {
                (Some(reth), _) => reth.len,
                (_, Some(aeth)) => u32::from(aeth.syndrome.byte()) << 24 | aeth.msn.value(),
                _ => 0,
            },
            immediate: headers.immediate.unwrap_or(0),
            wire: (overhead(bth.opcode) + payload + pad) as u16,
            opcode: bth.opcode,
            flags: flags | FLAG_OWN | (pad as u8) << PAD_SHIFT,
        }
    }

    /// Bytes on the wire.
    #[inline]
    pub fn wire(&self) -> u32 {
        u32::from(self.wire)
    }

    /// Bytes of payload.
    pub fn payload(&self) -> u32 {
        self.wire() - overhead(self.opcode) - u32::from(self.flags >> PAD_SHIFT & 3)
    }

    /// The headers again.
    pub fn headers(&self) -> Headers {
        let mut headers = Headers::new(self.opcode, qpn_of(self.endpoint), Psn::new(self.psn & 0xff_ffff));
        let is_set = |bit: u32| self.psn & bit != 0;
        headers.bth.ack_req = is_set(ACK_REQ);
        headers.bth.solicited = is_set(HEADER_SOLICITED);
        headers.bth.becn = is_set(HEADER_BECN);
        headers.bth.pad = self.flags >> PAD_SHIFT & 3;
        headers.reth =
            is_set(HEADER_RETH).then_some(Reth { va: NOBODYS_ADDRESS, rkey: NOBODYS_KEY, len: self.extended });
        headers.aeth = is_set(HEADER_AETH).then(|| Aeth {
            syndrome: Syndrome::from_byte((self.extended >> 24) as u8),
            msn: Msn::new(self.extended & 0xff_ffff),
        });
        headers.immediate = is_set(HEADER_IMMEDIATE).then_some(self.immediate);
        headers
    }
}

/// Packets with numbers, which are used again: the last that became free first, which the processor knows best.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    all: Vec<Packet>,
    free: Vec<u32>,
}

impl Packets {
    #[inline]
    pub fn add(&mut self, packet: Packet) -> u32 {
        let Some(number) = self.free.pop() else {
            self.all.push(packet);
            return (self.all.len() - 1) as u32;
        };
        self.all[number as usize] = packet;
        number
    }

    #[inline]
    pub fn take(&mut self, number: u32) -> Packet {
        self.free.push(number);
        self.all[number as usize]
    }
}

/// The bytes that a packet takes on an Ethernet wire beside its payload: preamble, headers, both checksums, and the gap
/// after it. None is so short that Ethernet would fill it up.
fn overhead(opcode: Opcode) -> u32 {
    const PREAMBLE_AND_GAP: u32 = 20;
    const ETHERNET_IP_UDP: u32 = 14 + 20 + 8;
    const ICRC_AND_FCS: u32 = 8;
    PREAMBLE_AND_GAP + ETHERNET_IP_UDP + opcode.header_length() as u32 + ICRC_AND_FCS
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::NakCode;

    #[test]
    fn headers_come_out_as_they_went_in() {
        let mut write = Headers::new(Opcode::RcWriteOnlyImmediate, qpn_of(77), Psn::new(0xff_ffff));
        write.reth = Some(Reth { va: NOBODYS_ADDRESS, rkey: NOBODYS_KEY, len: 1001 });
        write.immediate = Some(u32::MAX);
        (write.bth.ack_req, write.bth.pad) = (true, 3);
        let mut middle = Headers::new(Opcode::RcWriteMiddle, qpn_of(0), Psn::new(5));
        middle.bth.ack_req = true;
        let mut nak = Headers::new(Opcode::RcAcknowledge, qpn_of(3), Psn::new(9));
        nak.aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::SequenceError), msn: Msn::new(0xab_cdef) });
        let mut ack = nak;
        ack.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
        for (headers, payload) in [(write, 1001), (middle, 4096), (nak, 0), (ack, 0), (Headers::cnp(qpn_of(12)), 16)] {
            let packet = Packet::new(&headers, payload, 1, 2, ECN_CAPABLE);
            assert_eq!((packet.headers(), packet.payload()), (headers, payload));
            assert!(packet.wire() >= 64 + 20);
        }
        assert_eq!(size_of::<Packet>(), 32);
    }
}

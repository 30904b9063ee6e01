//! What stands in front of a packet, inside and outside, and the ICRC over both. Packets that follow one another differ
//! in little.

use super::way::Route;
use host::family::Family;
use std::net::IpAddr;
use wire::{Bth, EncodeError, Headers, Icrc, IpHeader, Ipv4Header, Ipv6Header, Outer, Psn, Qpn, Series, UdpHeader};

/// What is in front of a packet's payload, and of the packet itself. Of packets that follow one another most is the
/// same.
pub(super) struct Front {
    pub bytes: [u8; Headers::MAX_LEN],
    /// How many of them there are.
    pub length: usize,
    pub payload: usize,
    pub pad: usize,
    /// With headers, pad and ICRC.
    pub total: usize,
    pub to: Qpn,
    /// What they add to the ICRC, once there are several and they are a BTH alone.
    series: Option<Series>,
}

/// Where the word with the sequence number lies in a BTH, and how many bits of it that takes.
const PSN_WORD_RANGE: std::ops::Range<usize> = 8..12;
const SEQUENCE_BITS: u32 = 24;

impl Front {
    /// Of a packet with so much payload.
    pub fn of(headers: &Headers, payload: usize) -> Result<Front, EncodeError> {
        let mut bytes = [0; Headers::MAX_LEN];
        let length = headers.encode(&mut bytes)?;
        let pad = usize::from(headers.bth.pad);
        let total = length + payload + pad + Icrc::LEN;
        Ok(Front { bytes, length, payload, pad, total, to: headers.bth.dest_qpn, series: None })
    }

    /// Writes the headers to the front of a packet.
    #[inline]
    pub fn write(&self, packet: &mut [u8]) {
        match (packet.first_chunk_mut::<{ Bth::LEN }>(), self.bytes.first_chunk()) {
            // Mostly: a length that is known is no call.
            (Some(place), Some(bth)) if self.length == Bth::LEN => *place = *bth,
            _ => packet[..self.length].copy_from_slice(&self.bytes[..self.length]),
        }
    }

    /// The ICRC of a packet with this payload, which has no pad.
    #[inline]
    pub fn icrc(&mut self, outer: &Outer, place: u16, payload: &[u8]) -> [u8; Icrc::LEN] {
        match self.bytes.first_chunk::<{ Bth::LEN }>() {
            Some(bth) if self.length == Bth::LEN => {
                let series = self.series.get_or_insert_with(|| outer.series(bth, payload.len()));
                let [.., upper, middle, lower] = *bth;
                series.icrc(place, Psn::new(u32::from_be_bytes([0, upper, middle, lower])), payload)
            }
            _ => outer.icrc_of(place, self.bytes.get(..self.length).unwrap_or(&[]), payload),
        }
    }

    /// Goes on to the packet with the next sequence number.
    #[inline]
    pub fn advance(&mut self) {
        if let Some(word) = self.bytes.get_mut(PSN_WORD_RANGE).and_then(|word| <&mut [u8; 4]>::try_from(word).ok()) {
            let number = u32::from_be_bytes(*word);
            let (beside, mask) = (number >> SEQUENCE_BITS << SEQUENCE_BITS, (1 << SEQUENCE_BITS) - 1);
            *word = (beside | (number + 1) & mask).to_be_bytes();
        }
    }
}

/// Writes the ICRC of a packet behind these headers. The kernel counts identifications up within a datagram: `place` is
/// the packet's there.
#[inline]
pub(super) fn seal(packet: &mut [u8], outer: &Outer, place: u16) {
    if let Some((covered, icrc)) = packet.split_last_chunk_mut::<{ Icrc::LEN }>() {
        *icrc = outer.icrc_in_place(place, covered);
    }
}

/// What the headers outside add to packets that go this way.
pub(super) fn outer(route: &Route, family: Family, port: u16) -> Option<Outer> {
    let udp = UdpHeader::roce(port, 0).ok()?;
    let ip = match (route.source, route.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) if family == Family::V4 => {
            IpHeader::V4(Ipv4Header::udp(source, destination, 0).ok()?)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) if family == Family::V6 => {
            IpHeader::V6(Ipv6Header::udp(source, destination, 0).ok()?)
        }
        _ => return None,
    };
    Some(Outer::new(&ip, &udp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Opcode;

    #[test]
    fn the_next_sequence_number_after_the_last_is_zero_and_what_is_beside_it_stays() {
        let mut headers = Headers::new(Opcode::RcSendMiddle, Qpn::new(7), Psn::new(0xff_fffe));
        headers.bth.ack_req = true;
        let front = |headers: &Headers| Front::of(headers, 8).unwrap();
        let mut following = front(&headers);
        for psn in [0xff_ffff, 0, 1] {
            following.advance();
            headers.bth.psn = Psn::new(psn);
            assert_eq!(following.bytes, front(&headers).bytes);
        }
    }
}

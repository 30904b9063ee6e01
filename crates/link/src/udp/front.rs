//! What stands in front of a packet, inside and outside, and the ICRC over both. Packets that follow one another differ in little.

use super::send::{MAX_DATAGRAM, Route, SendError};
use super::socket::Family;
use std::net::IpAddr;
use wire::{Headers, Icrc, IpHeader, Ipv4Header, Ipv6Header, Outer, Qpn, UdpHeader};

/// What is in front of a packet's payload, and of the packet itself. Of packets that follow one another most is the same.
pub(super) struct Front {
    pub bytes: [u8; Headers::MAX_LEN],
    /// How many of them there are; none before the first packet.
    pub length: usize,
    pub payload: usize,
    pub pad: usize,
    /// With headers, pad and ICRC.
    pub total: usize,
    pub to: Qpn,
    /// What depends on its place in its datagram: there the kernel counts identifications up.
    pub outer: Outer,
}

/// Where the word with the sequence number lies in a BTH, and how many bits of it that takes.
const SEQUENCE: std::ops::Range<usize> = 8..12;
const SEQUENCE_BITS: u32 = 24;

impl Default for Front {
    fn default() -> Front {
        let (bytes, outer) = ([0; Headers::MAX_LEN], Outer::V4([0; 28]));
        Front { bytes, length: 0, payload: 0, pad: 0, total: 0, to: Qpn::default(), outer }
    }
}

impl Front {
    pub fn of<E>(
        headers: &Headers,
        payload: usize,
        route: &Route,
        family: Family,
        port: u16,
    ) -> Result<Front, SendError<E>> {
        let mut bytes = [0; Headers::MAX_LEN];
        let length = headers.encode(&mut bytes)?;
        let pad = usize::from(headers.bth.pad);
        let total = length + payload + pad + Icrc::LEN;
        if total > MAX_DATAGRAM {
            return Err(SendError::TooLong { length: total, destination: route.destination });
        }
        let (ip, udp) = outer(total, route, family, port)?;
        Ok(Front { bytes, length, payload, pad, total, to: headers.bth.dest_qpn, outer: Outer::new(&ip, &udp) })
    }

    /// Goes on to the packet with the next sequence number.
    #[inline]
    pub fn advance(&mut self) {
        if let Some(word) = self.bytes.get_mut(SEQUENCE).and_then(|word| <&mut [u8; 4]>::try_from(word).ok()) {
            let number = u32::from_be_bytes(*word);
            let (beside, mask) = (number >> SEQUENCE_BITS << SEQUENCE_BITS, (1 << SEQUENCE_BITS) - 1);
            *word = (beside | (number + 1) & mask).to_be_bytes();
        }
    }
}

/// Writes the ICRC of a packet behind these headers.
pub(super) fn seal(packet: &mut [u8], outer: &Outer) {
    if let Some((covered, icrc)) = packet.split_last_chunk_mut::<{ Icrc::LEN }>() {
        *icrc = outer.icrc(covered);
    }
}

/// The headers in front of a packet of that length, as its receiver will see them, but for the identification.
pub(super) fn outer<E>(
    total: usize,
    route: &Route,
    family: Family,
    port: u16,
) -> Result<(IpHeader, UdpHeader), SendError<E>> {
    let udp = UdpHeader::roce(port, total)?;
    let ip = match (route.source, route.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) if family == Family::V4 => {
            IpHeader::V4(Ipv4Header::udp(source, destination, total)?)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) if family == Family::V6 => {
            IpHeader::V6(Ipv6Header::udp(source, destination, total)?)
        }
        (source, destination) => return Err(SendError::Families(source, destination)),
    };
    Ok((ip, udp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use wire::{Opcode, Psn};

    #[test]
    fn the_next_sequence_number_after_the_last_is_zero_and_what_is_beside_it_stays() {
        let here = Ipv4Addr::LOCALHOST.into();
        let route = Route { source: here, destination: here, scope: 0, traffic_class: 0, hop_limit: 64 };
        let mut headers = Headers::new(Opcode::RcSendMiddle, Qpn::new(7), Psn::new(0xff_fffe));
        headers.bth.ack_req = true;
        let front = |headers: &Headers| Front::of::<()>(headers, 8, &route, Family::V4, 1).unwrap();
        let mut following = front(&headers);
        for psn in [0xff_ffff, 0, 1] {
            following.advance();
            headers.bth.psn = Psn::new(psn);
            assert_eq!(following.bytes, front(&headers).bytes);
        }
        let refused = Front::of::<()>(&headers, MAX_DATAGRAM, &route, Family::V4, 1);
        assert!(matches!(refused, Err(SendError::TooLong { .. })));
    }
}

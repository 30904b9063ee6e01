//! Which IPv4 identification a packet had, seen through the only window a UDP socket leaves: its ICRC.
//!
//! Peers of our kind send 0, or 0, 1, 2… inside one GSO datagram, always with "don't fragment": those are tried first, and cost one CRC. A peer
//! whose packets need another identification is foreign (kernel Soft-RoCE and hardware count up, per destination or per flow). CRCs are
//! linear, so the one identification that fits can be solved for; but one in 2^15 damaged packets would find one too, so from a foreign peer only
//! identifications near its last one are believed, and from a peer that is of our kind none, unless several in a row agree.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use wire::{Identification, Ipv4Header, Outer, UdpHeader, solve_identification};

/// How far a foreign peer's counter may move between two packets that we see: others of its packets go elsewhere.
const NEAR: u16 = 4096;

/// After this many packets in a row that are not near the last, the peer has jumped rather than its packets been damaged.
const JUMPS: u8 = 3;

#[derive(Debug, Default)]
struct Peer {
    /// None: it has been of our kind so far.
    last: Option<u16>,
    dont_fragment: bool,
    /// Packets in a row that fitted an identification far from the last, and that identification.
    far: u8,
    candidate: u16,
}

/// What is known of peers' identifications.
#[derive(Debug, Default)]
pub(super) struct Identifications {
    peers: HashMap<Ipv4Addr, Peer>,
    /// The last that was found to be of our kind, so that a stream of packets from it costs no look into the table.
    ours: Option<Ipv4Addr>,
}

/// More peers than this are not remembered one by one: the table starts afresh.
const PEERS: usize = 65_536;

impl Identifications {
    /// Whether `bytes`, from the BTH to the end of the ICRC, arrived undamaged; they are written to and are then as they were. `index` is the packet's place in its GRO buffer, and `outer` of
    /// headers as `ip`, which has "don't fragment".
    pub fn intact(&mut self, outer: &Outer, ip: &mut Ipv4Header, port: u16, bytes: &mut [u8], index: u16) -> bool {
        for guess in [index, 0] {
            ip.identification = guess;
            if matches(outer, guess, bytes) {
                self.is_ours(ip.source);
                return true;
            }
            if index == 0 {
                break;
            }
        }
        let solved = UdpHeader::roce(port, bytes.len()).ok().and_then(|udp| solve_identification(ip, &udp, bytes));
        let Some(Identification { identification, dont_fragment }) = solved else { return false };
        (ip.identification, ip.dont_fragment) = (identification, dont_fragment);
        self.make_room();
        let first = Peer { last: Some(identification), dont_fragment, ..Peer::default() };
        let peer = self.peers.entry(ip.source).or_insert(first);
        if peer.last.is_some_and(|last| near(last, identification)) && peer.dont_fragment == dont_fragment {
            (peer.last, peer.far) = (Some(identification), 0);
            return true;
        }
        peer.far = if near(peer.candidate, identification) { peer.far + 1 } else { 1 };
        peer.candidate = identification;
        if peer.far >= JUMPS {
            *peer = Peer { last: Some(identification), dont_fragment, ..Peer::default() };
            return true;
        }
        false
    }

    /// A packet of this peer had what peers of our kind send. One that is known to be foreign stays so: its counter passes zero at times.
    fn is_ours(&mut self, peer: Ipv4Addr) {
        if self.ours != Some(peer) {
            self.ours = Some(peer);
            self.make_room();
            self.peers.entry(peer).or_default();
        }
    }

    fn make_room(&mut self) {
        if self.peers.len() >= PEERS {
            self.peers.clear();
            self.ours = None;
        }
    }
}

fn near(a: u16, b: u16) -> bool {
    b.wrapping_sub(a) < NEAR || a.wrapping_sub(b) < NEAR
}

/// Whether a packet behind these headers ends with the right ICRC.
#[inline]
pub(super) fn matches(outer: &Outer, identification: u16, bytes: &mut [u8]) -> bool {
    bytes.split_last_chunk_mut().is_some_and(|(covered, icrc)| outer.icrc_in_place(identification, covered) == *icrc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Icrc, IpHeader};

    /// From the BTH to the end of the payload.
    const LENGTH: usize = 4124;

    /// The sender's port.
    const PORT: u16 = 49_152;

    fn header(source: [u8; 4]) -> (Ipv4Header, UdpHeader) {
        let length = LENGTH + Icrc::LEN;
        let ip = Ipv4Header::udp(source.into(), [192, 0, 2, 9].into(), length).expect("it fits");
        (Ipv4Header { dont_fragment: true, ..ip }, UdpHeader::roce(PORT, length).expect("it fits"))
    }

    /// A packet as a peer sends it with that identification.
    fn packet(ip: &Ipv4Header, udp: &UdpHeader, identification: u16) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..LENGTH).map(|at| (at * 7) as u8).collect();
        let ip = Ipv4Header { identification, ..*ip };
        let icrc = wire::icrc(&IpHeader::V4(ip), udp, &bytes);
        bytes.extend_from_slice(&icrc);
        bytes
    }

    /// A bit of the payload that, when it flips, looks like another identification.
    fn treacherous(ip: &Ipv4Header, udp: &UdpHeader) -> usize {
        let mut bytes = packet(ip, udp, 0);
        let fits = |bit: &usize| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let fits = solve_identification(ip, udp, &bytes).is_some();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fits
        };
        // There is one about so far from the end, whatever the packet holds: the CRC is linear.
        ((LENGTH - 2300) * 8..(LENGTH - 2250) * 8).find(fits).expect("a bit that can be mistaken")
    }

    #[test]
    fn a_damaged_packet_of_a_peer_of_our_kind_is_not_taken_for_a_foreign_one() {
        let (ip, udp) = header([192, 0, 2, 1]);
        let bit = treacherous(&ip, &udp);
        let mut known = Identifications::default();
        let good = packet(&ip, &udp, 0);
        let mut damaged = good.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let outer = Outer::new(&IpHeader::V4(ip), &udp);
        assert!(known.intact(&outer, &mut ip.clone(), PORT, &mut good.clone(), 0));
        assert!(!known.intact(&outer, &mut ip.clone(), PORT, &mut damaged.clone(), 0), "bit {bit}");
        assert!(known.intact(&outer, &mut ip.clone(), PORT, &mut good.clone(), 0));
    }

    #[test]
    fn a_foreign_peer_is_believed_near_its_last_and_after_several_that_agree() {
        let (ip, udp) = header([192, 0, 2, 2]);
        let mut known = Identifications::default();
        let outer = Outer::new(&IpHeader::V4(ip), &udp);
        let mut arrives =
            |identification| known.intact(&outer, &mut ip.clone(), PORT, &mut packet(&ip, &udp, identification), 0);
        assert_eq!([7, 8, 300].map(&mut arrives), [true; 3]);
        assert_eq!([30_000, 30_001, 30_002, 30_003].map(&mut arrives), [false, false, true, true]);
    }
}

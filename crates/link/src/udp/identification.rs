//! Which IPv4 identification a packet had, seen through the only window a UDP socket leaves: its ICRC.
//!
//! Peers of our kind send 0, or 0, 1, 2… inside one GSO datagram, always with "don't fragment": those are tried first, and cost one CRC. A peer
//! whose packets need another identification is foreign (kernel Soft-RoCE and hardware count up, per destination or per flow), or one of our kind on this
//! host that has a connected socket, and counts up, too: what it would use next is tried. CRCs are linear, so the one identification that fits can be solved for;
//! but one in 2^15 damaged packets would find one too, so from such a peer only identifications near its last one are believed, and from one that
//! does not count none, unless several in a row agree. Inside this host nothing damages packets but faults that we inject ourselves: where there are none,
//! whatever fits is believed.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use wire::{Identification, Ipv4Header, Outer, UdpHeader, solve_identification};

/// How far a counter may move between two packets that we see: others of the peer's packets go elsewhere.
const NEAR: u16 = 4096;

/// After this many packets in a row that are not near the last, the peer has jumped rather than its packets been damaged.
const JUMPS: u8 = 3;

/// What counts for itself: another host, or one socket of this host, which many processes of our kind share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Source(Ipv4Addr, u16);

impl Source {
    fn of(address: Ipv4Addr, port: u16) -> Source {
        Source(address, if address.is_loopback() { port } else { 0 })
    }
}

#[derive(Debug, Default)]
struct Peer {
    /// None: it has not counted so far.
    last: Option<u16>,
    dont_fragment: bool,
    /// Packets in a row that fitted an identification far from the last, and that identification.
    far: u8,
    candidate: u16,
}

/// What is known of peers' identifications.
#[derive(Debug, Default)]
pub(super) struct Identifications {
    peers: HashMap<Source, Peer>,
    /// Who sent last, so that a stream of packets costs no look into the table.
    hot: Option<Hot>,
    /// Packets may be damaged inside this host.
    pub suspicious: bool,
}

#[derive(Clone, Copy, Debug)]
struct Hot {
    source: Source,
    /// The identification of its last datagram, if it counts them. The table knows an older one.
    last: Option<u16>,
    /// It is in the table.
    known: bool,
}

/// More peers than this are not remembered one by one: the table starts afresh.
const PEERS: usize = 65_536;

impl Identifications {
    /// Whether `bytes`, from the BTH to the end of the ICRC, arrived undamaged; they are written to and are then as they were. `index` is the packet's place in its GRO buffer, and `outer` of
    /// headers as `ip`, which has "don't fragment".
    pub fn intact(&mut self, outer: &Outer, ip: &mut Ipv4Header, port: u16, bytes: &mut [u8], index: u16) -> bool {
        let source = Source::of(ip.source, port);
        let hot = self.heat(source);
        if let Some(last) = hot.last {
            // Within a datagram they count up from that of the first, and the next datagram has the next.
            let begin = if index == 0 { last.wrapping_add(1) } else { last };
            ip.identification = begin.wrapping_add(index);
            if matches(outer, ip.identification, bytes) {
                hot.last = Some(begin);
                return true;
            }
        }
        for guess in [index, 0] {
            ip.identification = guess;
            if matches(outer, guess, bytes) {
                self.is_ours(source);
                return true;
            }
            if index == 0 {
                break;
            }
        }
        self.solve(source, ip, port, bytes, index)
    }

    /// Whether some other identification fits that can be believed.
    #[cold]
    fn solve(&mut self, source: Source, ip: &mut Ipv4Header, port: u16, bytes: &[u8], index: u16) -> bool {
        let solved = UdpHeader::roce(port, bytes.len()).ok().and_then(|udp| solve_identification(ip, &udp, bytes));
        let Some(Identification { identification, dont_fragment }) = solved else { return false };
        (ip.identification, ip.dont_fragment) = (identification, dont_fragment);
        self.cool();
        self.make_room();
        let counting = Peer { last: Some(identification), dont_fragment, ..Peer::default() };
        let peer = self.peers.entry(source).or_insert(Peer { ..counting });
        let near_last = peer.last.is_some_and(|last| near(last, identification)) && peer.dont_fragment == dont_fragment;
        if !near_last {
            peer.far = if near(peer.candidate, identification) { peer.far + 1 } else { 1 };
            peer.candidate = identification;
        }
        let believed = near_last || peer.far >= JUMPS || ip.source.is_loopback() && !self.suspicious;
        if believed {
            *peer = counting;
            let last = dont_fragment.then(|| identification.wrapping_sub(index));
            self.hot = Some(Hot { source, last, known: true });
        }
        believed
    }

    /// What is known of one who sends now.
    #[inline]
    fn heat(&mut self, source: Source) -> &mut Hot {
        if self.hot.is_none_or(|hot| hot.source != source) {
            self.cool();
            let peer = self.peers.get(&source);
            let last = peer.and_then(|peer| peer.last.filter(|_| peer.dont_fragment));
            self.hot = Some(Hot { source, last, known: peer.is_some() });
        }
        self.hot.get_or_insert(Hot { source, last: None, known: false })
    }

    /// Writes down how far the last one has counted.
    fn cool(&mut self) {
        if let Some(Hot { source, last: Some(last), .. }) = self.hot.take()
            && let Some(peer) = self.peers.get_mut(&source)
        {
            peer.last = Some(last);
        }
    }

    /// A packet of this peer had what peers of our kind send. A host that is known to count still does: it passes zero at times. A port of this host has
    /// a new owner.
    fn is_ours(&mut self, source: Source) {
        let Source(address, _) = source;
        if self.hot.is_none_or(|hot| !hot.known || hot.last.is_some() && address.is_loopback()) {
            self.make_room();
            self.peers.entry(source).and_modify(|peer| peer.last = None).or_default();
            self.hot = Some(Hot { source, last: None, known: true });
        }
    }

    fn make_room(&mut self) {
        if self.peers.len() >= PEERS {
            self.peers.clear();
            self.hot = None;
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

    /// What arrives of packets with these identifications, one to a datagram, from a port.
    fn arrive(known: &mut Identifications, source: [u8; 4], port: u16, identifications: &[u16]) -> Vec<bool> {
        let (ip, udp) = header(source);
        let udp = UdpHeader { source_port: port, ..udp };
        let outer = Outer::new(&IpHeader::V4(ip), &udp);
        let arrives = |identification: &u16| {
            known.intact(&outer, &mut ip.clone(), port, &mut packet(&ip, &udp, *identification), 0)
        };
        identifications.iter().map(arrives).collect()
    }

    #[test]
    fn sockets_of_this_host_count_each_for_itself() {
        let (here, mut known) = ([127, 0, 0, 1], Identifications { suspicious: true, ..Identifications::default() });
        assert_eq!(arrive(&mut known, here, 7, &[0, 0]), [true; 2]);
        assert_eq!(
            arrive(&mut known, here, 8, &[65_530, 65_531, 65_535, 0, 1, 9]),
            [true; 6],
            "also if some were lost"
        );
        assert_eq!(known.hot.and_then(|hot| hot.last), Some(9));
        assert_eq!(arrive(&mut known, here, 9, &[30_000, 30_001]), [true; 2]);
        for _ in 0..2 {
            assert_eq!(arrive(&mut known, here, 8, &[10, 11]), [true; 2]);
            assert_eq!(arrive(&mut known, here, 7, &[0]), [true]);
        }
        // What a socket that does not count has not sent is not believed, and far from where another is neither.
        assert_eq!(arrive(&mut known, here, 7, &[30_000, 30_001]), [false; 2]);
        assert_eq!(arrive(&mut known, here, 8, &[30_000, 12]), [false, true]);
        known.suspicious = false;
        assert_eq!(arrive(&mut known, here, 8, &[40_000, 40_001, 7]), [true; 3], "nothing is damaged here");
        assert_eq!(
            arrive(&mut known, here, 7, &[0, 50_000, 50_001, 0, 0]),
            [true; 5],
            "a port has a new owner, and again"
        );
        assert_eq!(known.hot.and_then(|hot| hot.last), None);
        // Other hosts count for all of their ports.
        assert_eq!(arrive(&mut known, [192, 0, 2, 3], 7, &[500]), [true]);
        assert_eq!(arrive(&mut known, [192, 0, 2, 3], 8, &[501, 40_000]), [true, false]);
    }

    #[test]
    fn packets_of_one_datagram_count_up_from_its_first() {
        let (ip, udp) = header([127, 0, 0, 1]);
        let (outer, mut known) = (Outer::new(&IpHeader::V4(ip), &udp), Identifications::default());
        for begin in [65_533u16, 65_534, 65_535, 0, 1] {
            for index in 0..4 {
                let mut bytes = packet(&ip, &udp, begin.wrapping_add(index));
                let mut ip = ip;
                assert!(known.intact(&outer, &mut ip, PORT, &mut bytes, index));
                assert_eq!(ip.identification, begin.wrapping_add(index));
            }
            assert_eq!(known.hot.and_then(|hot| hot.last), Some(begin), "it is known without solving");
        }
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

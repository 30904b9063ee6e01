//! Which IPv4 identification a packet had, seen through the only window a UDP socket leaves: its ICRC.
//!
//! Peers of our kind send 0, or 0, 1, 2… inside one GSO datagram, always with "don't fragment": those are tried first, and cost one CRC. A peer
//! whose packets need another identification is foreign (kernel Soft-RoCE and hardware count up, per destination or per flow). CRCs are
//! linear, so the one identification that fits can be solved for; but one in 2^15 damaged packets would find one too, so from a foreign peer only
//! identifications near its last one are believed.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use wire::{Icrc, Identification, IpHeader, Ipv4Header, UdpHeader, solve_identification};

/// How far a foreign peer's counter may move between two packets that we see: others of its packets go elsewhere.
const NEAR: u16 = 4096;

/// After this many packets in a row that are not near the last, the peer has jumped rather than its packets been damaged.
const JUMPS: u8 = 3;

#[derive(Debug, Default)]
struct Foreign {
    last: u16,
    dont_fragment: bool,
    /// Packets in a row that fitted an identification far from the last, and that identification.
    far: u8,
    candidate: u16,
}

/// What is known of peers' identifications.
#[derive(Debug, Default)]
pub(super) struct Identifications {
    foreign: HashMap<Ipv4Addr, Foreign>,
}

/// More peers than this are not remembered one by one: the table starts afresh.
const PEERS: usize = 65_536;

impl Identifications {
    /// Whether `bytes`, from the BTH to the end of the ICRC, arrived undamaged. `index` is the packet's place in its GRO buffer.
    pub fn intact(&mut self, ip: &mut Ipv4Header, udp: &UdpHeader, bytes: &[u8], index: u16) -> bool {
        ip.dont_fragment = true;
        for guess in [index, 0] {
            ip.identification = guess;
            if matches(ip, udp, bytes) {
                return true;
            }
            if index == 0 {
                break;
            }
        }
        let Some(Identification { identification, dont_fragment }) = solve_identification(ip, udp, bytes) else {
            return false;
        };
        (ip.identification, ip.dont_fragment) = (identification, dont_fragment);
        if self.foreign.len() >= PEERS {
            self.foreign.clear();
        }
        let peer = self.foreign.entry(ip.source).or_insert_with(|| Foreign {
            last: identification,
            dont_fragment,
            ..Foreign::default()
        });
        if near(peer.last, identification) && peer.dont_fragment == dont_fragment {
            (peer.last, peer.far) = (identification, 0);
            return true;
        }
        peer.far = if near(peer.candidate, identification) { peer.far + 1 } else { 1 };
        peer.candidate = identification;
        if peer.far >= JUMPS {
            *peer = Foreign { last: identification, dont_fragment, ..Foreign::default() };
            return true;
        }
        false
    }
}

fn near(a: u16, b: u16) -> bool {
    b.wrapping_sub(a) < NEAR || a.wrapping_sub(b) < NEAR
}

fn matches(ip: &Ipv4Header, udp: &UdpHeader, bytes: &[u8]) -> bool {
    let Some((covered, icrc)) = bytes.split_last_chunk::<{ Icrc::LEN }>() else { return false };
    wire::icrc(&IpHeader::V4(*ip), udp, covered) == *icrc
}

//! The invariant CRC of RoCEv2: CRC-32 over what no router may change, from the IP header to the pad bytes (RoCEv2
//! annex). Fields that change on the way count as ones, and eight bytes of ones stand where the InfiniBand local header
//! was. Hashing goes piece by piece, so that a sender need not join headers and payload.
//!
//! Over IPv4 it covers the identification and the don't-fragment flag, which a UDP socket does not show its receiver.
//! Because a CRC is linear, [`solve_identification`] finds the one pair that makes it right.

use crc32fast::Hasher;

use crate::ip::{IpHeader, Ipv4Header, Ipv6Header, UdpHeader};
use crate::{Bth, Headers, Psn};

/// An ICRC being computed: outer headers first, then BTH and its headers, then payload and pad.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// The length of the ICRC.
    pub const LEN: usize = 4;

    /// Starts with the headers of an IPv4 datagram: TOS, TTL and both checksums as ones.
    pub fn v4(ip: &Ipv4Header, udp: &UdpHeader) -> Icrc {
        Icrc::start(&covered_v4(ip, udp))
    }

    /// Starts with the headers of an IPv6 datagram: traffic class, flow label, hop limit and the UDP checksum as ones.
    pub fn v6(ip: &Ipv6Header, udp: &UdpHeader) -> Icrc {
        Icrc::start(&covered_v6(ip, udp))
    }

    /// Starts with the headers of a datagram of either family.
    pub fn new(ip: &IpHeader, udp: &UdpHeader) -> Icrc {
        match ip {
            IpHeader::V4(ip) => Icrc::v4(ip, udp),
            IpHeader::V6(ip) => Icrc::v6(ip, udp),
        }
    }

    /// Adds the BTH and what follows it, headers alone or payload and pad too; `bytes` begins with the BTH. FECN, BECN
    /// and the six reserved bits beside them count as ones.
    pub fn headers(&mut self, bytes: &[u8]) -> &mut Icrc {
        // One copy of the front, so that the hasher is not called for a few bytes around the one that is masked.
        let (front, rest) = bytes.split_at(bytes.len().min(Headers::MAX_LEN));
        let mut masked = [0; Headers::MAX_LEN];
        if let Some(masked) = masked.get_mut(..front.len()) {
            masked.copy_from_slice(front);
            if let Some(reserved) = masked.get_mut(MASKED_BYTE) {
                *reserved = 0xff;
            }
            self.0.update(masked);
        }
        self.0.update(rest);
        self
    }

    /// Adds payload or pad bytes.
    pub fn payload(&mut self, bytes: &[u8]) -> &mut Icrc {
        self.0.update(bytes);
        self
    }

    /// The four bytes at the end of the packet.
    pub fn finish(&self) -> [u8; Icrc::LEN] {
        self.0.clone().finalize().to_le_bytes()
    }

    fn start(bytes: &[u8]) -> Icrc {
        let mut hasher = Hasher::new_with_initial(LEADING_ONES_CRC);
        hasher.update(bytes);
        Icrc(hasher)
    }
}

/// The CRC of the eight bytes of ones in front.
const LEADING_ONES_CRC: u32 = 0x2144_df1c;

const V4_HEADER_BYTES: usize = Ipv4Header::LEN + UdpHeader::LEN;
const V6_HEADER_BYTES: usize = Ipv6Header::LEN + UdpHeader::LEN;

/// The outer headers as they count.
fn covered_v4(ip: &Ipv4Header, udp: &UdpHeader) -> [u8; V4_HEADER_BYTES] {
    let [l0, l1] = ip.total_length.to_be_bytes();
    let [i0, i1] = ip.identification.to_be_bytes();
    let [f0, f1] = ip.fragment_field().to_be_bytes();
    let [a, b, c, d] = ip.source.octets();
    let [e, f, g, h] = ip.destination.octets();
    let [u0, u1, u2, u3, u4, u5] = covered_udp(udp);
    #[rustfmt::skip]
    let covered = [
        0x45, 0xff, l0, l1,
        i0, i1, f0, f1,
        0xff, ip.protocol, 0xff, 0xff,
        a, b, c, d,
        e, f, g, h,
        u0, u1, u2, u3,
        u4, u5, 0xff, 0xff,
    ];
    covered
}

fn covered_v6(ip: &Ipv6Header, udp: &UdpHeader) -> [u8; V6_HEADER_BYTES] {
    let [l0, l1] = ip.payload_length.to_be_bytes();
    let mut bytes = [0xff; V6_HEADER_BYTES];
    let (start, rest) = bytes.split_at_mut(8);
    let (source, rest) = rest.split_at_mut(16);
    let (destination, rest) = rest.split_at_mut(16);
    let (ports, _) = rest.split_at_mut(6);
    start.copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, l0, l1, ip.next_header, 0xff]);
    source.copy_from_slice(&ip.source.octets());
    destination.copy_from_slice(&ip.destination.octets());
    ports.copy_from_slice(&covered_udp(udp));
    bytes
}

/// What counts of the UDP header: all but the checksum.
fn covered_udp(udp: &UdpHeader) -> [u8; 6] {
    let [s0, s1] = udp.source_port.to_be_bytes();
    let [d0, d1] = udp.destination_port.to_be_bytes();
    let [l0, l1] = udp.length.to_be_bytes();
    [s0, s1, d0, d1, l0, l1]
}

/// What the headers outside packets from one port to one host add to their ICRC. What differs from packet to packet,
/// lengths and identification, is added to the CRC of the rest, as a CRC is linear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// The CRC behind them, were the lengths and the identification zero.
    crc: u32,
    v4: bool,
}

impl Outer {
    /// Of a datagram and all that differ from it in lengths and identification only.
    pub fn new(ip: &IpHeader, udp: &UdpHeader) -> Outer {
        let udp = UdpHeader { length: 0, ..*udp };
        match ip {
            IpHeader::V4(ip) => {
                let ip = Ipv4Header { total_length: 0, identification: 0, ..*ip };
                Outer { crc: crc_of(&covered_v4(&ip, &udp)), v4: true }
            }
            IpHeader::V6(ip) => {
                let ip = Ipv6Header { payload_length: 0, ..*ip };
                Outer { crc: crc_of(&covered_v6(&ip, &udp)), v4: false }
            }
        }
    }

    /// The ICRC of a packet behind them, for a sender whose payload lies elsewhere: `front` from the BTH on, `rest` up
    /// to the last pad byte. IPv6 has no identification.
    #[inline]
    pub fn icrc_of(&self, identification: u16, front: &[u8], rest: &[u8]) -> [u8; Icrc::LEN] {
        let length = UdpHeader::LEN + front.len() + rest.len() + Icrc::LEN;
        let mut hasher = Hasher::new_with_initial(self.crc_with(length as u16, identification));
        let behind = match front.split_first_chunk::<{ Bth::LEN }>() {
            Some((bth, behind)) => {
                let mut masked = *bth;
                masked[MASKED_BYTE] = 0xff;
                hasher.update(&masked);
                behind
            }
            // Nobody sends that.
            None => {
                for (at, byte) in front.iter().enumerate() {
                    hasher.update(&[if at == MASKED_BYTE { 0xff } else { *byte }]);
                }
                &[]
            }
        };
        for piece in [behind, rest] {
            if !piece.is_empty() {
                hasher.update(piece);
            }
        }
        hasher.finalize().to_le_bytes()
    }

    /// The ICRC of a packet that may be written to meanwhile, and is then as it was: it is hashed in one go.
    #[inline]
    pub fn icrc_in_place(&self, identification: u16, bytes: &mut [u8]) -> [u8; Icrc::LEN] {
        let length = UdpHeader::LEN + bytes.len() + Icrc::LEN;
        let mut hasher = Hasher::new_with_initial(self.crc_with(length as u16, identification));
        let masked = bytes.get_mut(MASKED_BYTE).map(|byte| core::mem::replace(byte, 0xff));
        hasher.update(bytes);
        if let (Some(byte), Some(masked)) = (bytes.get_mut(MASKED_BYTE), masked) {
            *byte = masked;
        }
        hasher.finalize().to_le_bytes()
    }

    /// The headers of packets that follow one another behind them: a BTH alone, whatever its sequence number, and so
    /// much payload, pad included.
    pub fn series(&self, bth: &[u8; Bth::LEN], payload: usize) -> Series {
        let length = UdpHeader::LEN + Bth::LEN + payload + Icrc::LEN;
        let mut hasher = Hasher::new_with_initial(self.crc_with(length as u16, 0));
        let mut bth = *bth;
        bth[MASKED_BYTE] = 0xff;
        let [.., upper, middle, lower] = &mut bth;
        (*upper, *middle, *lower) = (0, 0, 0);
        hasher.update(&bth);
        Series { crc: hasher.finalize(), v4: self.v4 }
    }

    /// The CRC behind them, for a UDP datagram of that length.
    #[inline]
    fn crc_with(&self, length: u16, identification: u16) -> u32 {
        use polynomial::{UDP_LENGTH, V4_IDENTIFICATION, V4_LENGTH, V6_LENGTH};
        self.crc
            ^ UDP_LENGTH.of(length)
            ^ match self.v4 {
                true => {
                    V4_LENGTH.of(length.wrapping_add(Ipv4Header::LEN as u16)) ^ V4_IDENTIFICATION.of(identification)
                }
                false => V6_LENGTH.of(length),
            }
    }
}

/// What all headers add to the ICRC of packets that differ in sequence number, identification and payload only.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// The CRC behind the BTH, were both numbers zero.
    crc: u32,
    v4: bool,
}

impl Series {
    /// The ICRC of the packet with these numbers and this payload.
    #[inline]
    pub fn icrc(&self, identification: u16, psn: Psn, payload: &[u8]) -> [u8; Icrc::LEN] {
        let identification = if self.v4 { polynomial::V4_IDENTIFICATION_BEFORE_BTH.of(identification) } else { 0 };
        let mut hasher = Hasher::new_with_initial(self.crc ^ polynomial::psn(psn.value()) ^ identification);
        hasher.update(payload);
        hasher.finalize().to_le_bytes()
    }
}

/// The CRC of the bytes of ones in front and of outer headers.
fn crc_of(covered: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(LEADING_ONES_CRC);
    hasher.update(covered);
    hasher.finalize()
}

/// The byte of the BTH that is masked.
const MASKED_BYTE: usize = 4;

/// The ICRC of a UDP payload: `bytes` from the BTH to the last pad byte, without the ICRC itself.
pub fn icrc(ip: &IpHeader, udp: &UdpHeader, bytes: &[u8]) -> [u8; Icrc::LEN] {
    Icrc::new(ip, udp).headers(bytes).finish()
}

/// Whether a UDP payload ends with the right ICRC: `bytes` from the BTH to the end of the ICRC.
pub fn icrc_matches(ip: &IpHeader, udp: &UdpHeader, bytes: &[u8]) -> bool {
    bytes.split_last_chunk().is_some_and(|(covered, received)| icrc(ip, udp, covered) == *received)
}

/// The identification and don't-fragment flag of an IPv4 datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identification {
    /// The 16-bit identification.
    pub identification: u16,
    /// Whether fragmentation was forbidden.
    pub dont_fragment: bool,
}

/// Finds the identification and don't-fragment flag that make the ICRC of an IPv4 datagram right, whatever `ip` has
/// there; nothing if none does. `bytes` from the BTH to the end of the ICRC.
///
/// At most one pair fits. A damaged packet finds one by chance once in 2^15, so a receiver should believe only answers
/// near the sender's last one.
pub fn solve_identification(ip: &Ipv4Header, udp: &UdpHeader, bytes: &[u8]) -> Option<Identification> {
    let (covered, received) = bytes.split_last_chunk()?;
    let computed = Icrc::v4(ip, udp).headers(covered).finish();
    let assumed = Identification { identification: ip.identification, dont_fragment: ip.dont_fragment };
    solve_identification_from(assumed, computed, *received, covered.len())
}

/// Like [`solve_identification`], for a receiver that has computed the ICRC with an assumption already. `covered` is
/// the number of bytes from the BTH to the last pad byte.
pub fn solve_identification_from(
    assumed: Identification,
    computed: [u8; Icrc::LEN],
    received: [u8; Icrc::LEN],
    covered: usize,
) -> Option<Identification> {
    // CRC(m ^ d) ^ CRC(m) depends on d alone, and is d times a power of x. Here d is three bytes, identification and
    // flags; dividing by the power of x for those three and all bytes behind them (13 of the IP header, 8 of UDP, the
    // packet) gives d back.
    let difference = u32::from_le_bytes(computed) ^ u32::from_le_bytes(received);
    let bytes = covered.checked_add(3 + 13 + UdpHeader::LEN)?;
    let [i0, i1, flags, beyond] = polynomial::divide_by_bytes(difference, bytes)?.to_le_bytes();
    if flags & !DONT_FRAGMENT != 0 || beyond != 0 {
        return None;
    }
    Some(Identification {
        identification: assumed.identification ^ u16::from_be_bytes([i0, i1]),
        dont_fragment: assumed.dont_fragment ^ (flags != 0),
    })
}

const DONT_FRAGMENT: u8 = 0x40;

/// Arithmetic of the CRC's polynomials: bit 31 is x^0, as CRC-32 orders its bits.
mod polynomial {
    const CRC32: u32 = 0xedb8_8320;
    const ONE: u32 = 1 << 31;

    /// `INVERSE[k]` is x to the power of -8 * 2^k: division by 2^k bytes.
    static INVERSE: [u32; 17] = {
        let mut byte = ONE;
        let mut step = 0;
        while step < 8 {
            // Undoes one shift: the top bit tells whether the polynomial had been added.
            byte = if byte & ONE != 0 { (byte ^ CRC32) << 1 | 1 } else { byte << 1 };
            step += 1;
        }
        let mut table = [byte; 17];
        let mut at = 1;
        while at < table.len() {
            table[at] = multiply(table[at - 1], table[at - 1]);
            at += 1;
        }
        table
    };

    /// Divides by x to the power of 8 * `bytes`; nothing if that is beyond any IP datagram.
    pub(super) fn divide_by_bytes(mut value: u32, bytes: usize) -> Option<u32> {
        if bytes >> INVERSE.len() != 0 {
            return None;
        }
        for (at, &inverse) in INVERSE.iter().enumerate() {
            if bytes >> at & 1 != 0 {
                value = multiply(value, inverse);
            }
        }
        Some(value)
    }

    /// What each value of a field of two bytes adds to a CRC, by its upper and its lower byte.
    pub(super) struct Field([[u32; 256]; 2]);

    impl Field {
        /// One with so many bytes behind it.
        const fn before(behind: usize) -> Field {
            Field([multiples(behind + 1), multiples(behind)])
        }

        #[inline]
        pub fn of(&self, value: u16) -> u32 {
            let [upper, lower] = value.to_be_bytes();
            self.0[0][usize::from(upper)] ^ self.0[1][usize::from(lower)]
        }
    }

    /// Fields of the outer headers, by what is behind them up to the end of the UDP header.
    pub(super) static V4_LENGTH: Field = Field::before(24);
    pub(super) static V4_IDENTIFICATION: Field = Field::before(22);
    pub(super) static V6_LENGTH: Field = Field::before(42);
    pub(super) static UDP_LENGTH: Field = Field::before(2);

    /// The identification of IPv4, by what is behind it up to the end of a BTH.
    pub(super) static V4_IDENTIFICATION_BEFORE_BTH: Field = Field::before(22 + 12);
    static PSN: [[u32; 256]; 3] = [multiples(2), multiples(1), multiples(0)];

    /// What a sequence number at the end of a BTH adds to the CRC behind it.
    #[inline]
    pub(super) fn psn(psn: u32) -> u32 {
        let [_, upper, middle, lower] = psn.to_be_bytes();
        PSN[0][usize::from(upper)] ^ PSN[1][usize::from(middle)] ^ PSN[2][usize::from(lower)]
    }

    /// What a byte with so many bytes behind it adds to a CRC.
    const fn multiples(behind: usize) -> [u32; 256] {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < table.len() {
            let mut value = byte as u32;
            let mut step = 0;
            while step < 8 * (behind + 1) {
                value = if value & 1 != 0 { value >> 1 ^ CRC32 } else { value >> 1 };
                step += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    }

    /// The product of two polynomials, modulo the CRC's.
    const fn multiply(a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        let mut bit = 32;
        while bit > 0 {
            bit -= 1;
            if a >> bit & 1 != 0 {
                product ^= b;
            }
            b = if b & 1 != 0 { b >> 1 ^ CRC32 } else { b >> 1 };
        }
        product
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    fn headers(payload: usize) -> (Ipv4Header, UdpHeader) {
        let ip = Ipv4Header::udp(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), payload).unwrap();
        (ip, UdpHeader::roce(0xc001, payload).unwrap())
    }

    #[test]
    fn what_a_router_changes_does_not_count() {
        let (ip, udp) = headers(20);
        let bytes = [0x11; 16];
        let reference = icrc(&IpHeader::V4(ip), &udp, &bytes);
        let routed = Ipv4Header { tos: 3, ttl: 1, ..ip };
        assert_eq!(icrc(&IpHeader::V4(routed), &UdpHeader { checksum: 7, ..udp }, &bytes), reference);
        let mut marked = bytes;
        marked[4] = 0x80;
        assert_eq!(icrc(&IpHeader::V4(ip), &udp, &marked), reference, "FECN is masked");
        let v6 = Ipv6Header::udp(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 20).unwrap();
        let routed = Ipv6Header { traffic_class: 2, flow_label: 0x12345, hop_limit: 1, ..v6 };
        assert_eq!(icrc(&IpHeader::V6(v6), &udp, &bytes), icrc(&IpHeader::V6(routed), &udp, &bytes));
    }

    #[test]
    fn packets_of_all_lengths_are_hashed_as_if_piece_by_piece() {
        let bytes: [u8; 1100] = core::array::from_fn(|at| (at * 7 + at / 256) as u8);
        for length in 0..bytes.len() {
            let (covered, (v4, udp)) = (&bytes[..length], headers(length + Icrc::LEN));
            let v6 = Ipv6Header::udp(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, length + Icrc::LEN).unwrap();
            for ip in [IpHeader::V4(v4), IpHeader::V6(v6)] {
                let mut masked = bytes;
                masked[4] = 0xff;
                let mut pieces = Icrc::new(&ip, &udp);
                for piece in masked[..length].chunks(100) {
                    pieces.payload(piece);
                }
                assert_eq!(icrc(&ip, &udp, covered), pieces.finish(), "{length} bytes");
            }
        }
    }

    #[test]
    fn lengths_and_identifications_are_added_as_if_they_had_been_there_from_the_beginning() {
        let bytes: [u8; 4200] = core::array::from_fn(|at| (at * 7 + at / 256) as u8);
        let (any, udp) = headers(77);
        let here = Ipv6Addr::LOCALHOST;
        let v6 = |payload| IpHeader::V6(Ipv6Header::udp(here, Ipv6Addr::UNSPECIFIED, payload).unwrap());
        let outers = [Outer::new(&IpHeader::V4(any), &udp), Outer::new(&v6(77), &udp)];
        let identifications = (0..=u16::MAX).step_by(1037).chain([1, 255, 256, u16::MAX]).cycle();
        for (length, identification) in (0..bytes.len()).zip(identifications) {
            let (covered, (v4, udp)) = (&bytes[..length], headers(length + Icrc::LEN));
            let ips = [IpHeader::V4(Ipv4Header { identification, ..v4 }), v6(length + Icrc::LEN)];
            for (ip, outer) in ips.iter().zip(outers) {
                let expected = icrc(ip, &udp, covered);
                assert_eq!(outer.icrc_of(identification, covered, &[]), expected, "{length} bytes");
                let mut place = bytes;
                assert_eq!(outer.icrc_in_place(identification, &mut place[..length]), expected, "{length} bytes");
                assert_eq!(place, bytes, "it is as it was");
                if let Some((bth, payload)) = covered.split_first_chunk::<12>() {
                    // The sequence number is another, and what is beside it the same.
                    let mut another = *bth;
                    another[9..].copy_from_slice(&[0xab, 0xcd, 0xef]);
                    let psn = Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]]));
                    let series = outer.series(&another, payload.len());
                    assert_eq!(series.icrc(identification, psn, payload), expected, "{length} bytes");
                }
                for front in [12, 28, 60, 400].into_iter().filter(|front| *front <= length) {
                    let (front, rest) = covered.split_at(front);
                    assert_eq!(outer.icrc_of(identification, front, rest), expected, "{length} bytes in two");
                }
            }
        }
    }

    #[test]
    fn what_a_router_keeps_counts() {
        let (ip, udp) = headers(20);
        let bytes = [0x11; 16];
        let of = |ip, udp: UdpHeader, bytes: &[u8]| icrc(&IpHeader::V4(ip), &udp, bytes);
        let reference = of(ip, udp, &bytes);
        assert_ne!(of(Ipv4Header { identification: 1, ..ip }, udp, &bytes), reference);
        assert_ne!(of(Ipv4Header { dont_fragment: false, ..ip }, udp, &bytes), reference);
        assert_ne!(of(Ipv4Header { source: Ipv4Addr::LOCALHOST, ..ip }, udp, &bytes), reference);
        assert_ne!(of(ip, UdpHeader { source_port: 0xc002, ..udp }, &bytes), reference);
        for at in (0..bytes.len()).filter(|&at| at != 4) {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_ne!(of(ip, udp, &changed), reference, "byte {at}");
        }
    }

    #[test]
    fn it_is_the_crc_of_the_masked_bytes() {
        let (ip, udp) = headers(20);
        let bytes = [0x11; 16];
        let mut whole = alloc::vec![0xff; 8];
        whole.extend(ip.bytes());
        whole.extend([0xc0, 0x01, 0x12, 0xb7, 0, 28, 0xff, 0xff]);
        whole.extend(bytes);
        for at in [8 + 1, 8 + 8, 8 + 10, 8 + 11, 8 + 20 + 8 + 4] {
            whole[at] = 0xff;
        }
        assert_eq!(icrc(&IpHeader::V4(ip), &udp, &bytes), crc32fast::hash(&whole).to_le_bytes());
    }

    #[test]
    fn pieces_hash_like_the_whole() {
        let (ip, udp) = headers(1004);
        let bytes = [0x5a; 1000];
        let whole = icrc(&IpHeader::V4(ip), &udp, &bytes);
        for cut in [5, 12, 28, 500, 999] {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(Icrc::v4(&ip, &udp).headers(front).payload(back).finish(), whole, "{cut}");
        }
    }

    #[test]
    fn the_identification_is_found() {
        for length in [16, 100, 4096 + 28] {
            let (ip, udp) = headers(length + 4);
            let mut bytes = alloc::vec![0x3c; length + 4];
            for (identification, dont_fragment) in
                [(0, true), (1, true), (0x1234, false), (0xffff, true), (0xff00, false)]
            {
                let sent = Ipv4Header { identification, dont_fragment, ..ip };
                let crc = Icrc::v4(&sent, &udp).headers(&bytes[..length]).finish();
                bytes[length..].copy_from_slice(&crc);
                let found = solve_identification(&ip, &udp, &bytes);
                assert_eq!(found, Some(Identification { identification, dont_fragment }));
            }
        }
    }

    #[test]
    fn a_damaged_packet_finds_no_identification() {
        let (ip, udp) = headers(104);
        let mut bytes = [0x3c; 104];
        let crc = Icrc::v4(&ip, &udp).headers(&bytes[..100]).finish();
        bytes[100..].copy_from_slice(&crc);
        let found = (0..104 * 8)
            .filter(|bit| bit / 8 != 4)
            .filter(|bit| {
                let mut damaged = bytes;
                damaged[bit / 8] ^= 1 << (bit % 8);
                solve_identification(&ip, &udp, &damaged).is_some()
            })
            .count();
        assert_eq!(found, 0, "a single flipped bit is never mistaken for an identification");
    }
}

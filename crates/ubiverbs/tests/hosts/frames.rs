//! A reading of captured frames, written from the specification and not with our own crates: it is to catch what they
//! get wrong in both directions. Ethernet, IP, UDP, BTH, and the ICRC.

use std::net::IpAddr;

/// A packet, and what it was wrapped in.
#[derive(Clone, Debug)]
pub struct Frame {
    pub from: IpAddr,
    /// The UDP destination port.
    pub port: u16,
    /// Of IPv4.
    pub identification: Option<u16>,
    /// No router may cut it; true for IPv6, where none does.
    pub dont_fragment: bool,
    pub opcode: u8,
    /// The destination queue pair.
    pub destination: u32,
    pub psn: u32,
    /// Bytes of payload, without headers and pad.
    pub payload: usize,
    pub icrc: [u8; 4],
    pub computed_icrc: [u8; 4],
}

/// What makes the kernel look for a neighbour: a datagram of nothing, to the port of the discard service.
const DISCARD_PORT_SEARCH: [u8; 4] = [0, 9, 0, 8];

/// The UDP frames of a capture, but for searches for neighbours, in the classic format, little-endian, of Ethernet.
pub fn read(file: &[u8]) -> Result<Vec<Frame>, String> {
    let (head, mut rest) = file.split_at_checked(24).ok_or("no header")?;
    if head[..4] != 0xa1b2_c3d4u32.to_le_bytes() || head[20..] != 1u32.to_le_bytes() {
        return Err("not a capture of Ethernet with microseconds".into());
    }
    let mut frames = Vec::new();
    while let Some((record, after)) = rest.split_at_checked(16) {
        let length =
            |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]) as usize;
        if length(8) != length(12) {
            return Err("a frame was cut off".into());
        }
        // The last record may be half written.
        let Some((bytes, after)) = after.split_at_checked(length(8)) else { break };
        rest = after;
        frames.extend(frame(bytes).map_err(|error| format!("frame {}: {error}", frames.len()))?);
    }
    Ok(frames)
}

/// A frame, if it carries UDP.
fn frame(bytes: &[u8]) -> Result<Option<Frame>, String> {
    let (ethernet, packet) = bytes.split_at_checked(14).ok_or("no Ethernet header")?;
    let carries_search = |udp: usize| packet.get(udp + 2..udp + 6) == Some(&DISCARD_PORT_SEARCH);
    match [ethernet[12], ethernet[13]] {
        [0x08, 0x00] if packet.get(9) == Some(&17) && carries_search(20) => Ok(None),
        [0x86, 0xdd] if packet.get(6) == Some(&17) && carries_search(40) => Ok(None),
        [0x08, 0x00] if packet.get(9) == Some(&17) => ipv4(packet).map(Some),
        [0x86, 0xdd] if packet.get(6) == Some(&17) => ipv6(packet).map(Some),
        // Address resolution and the like. A fragment header of IPv6 is not UDP, and tshark looks for those.
        _ => Ok(None),
    }
}

fn ipv4(packet: &[u8]) -> Result<Frame, String> {
    let (ip, udp) = packet.split_at_checked(20).ok_or("no IPv4 header")?;
    if ip[0] != 0x45 || usize::from(be(ip, 2)) != packet.len() {
        return Err(format!("version, options or length: {ip:02x?}"));
    }
    if be(ip, 6) & 0x3fff != 0 {
        return Err("a fragment".into());
    }
    // What routers change counts as ones: type of service, time to live, checksum.
    let mut masked = ip.to_vec();
    [1, 8, 10, 11].into_iter().for_each(|at| masked[at] = 0xff);
    let from: [u8; 4] = ip[12..16].try_into().expect("four bytes");
    let mut frame = roce(from.into(), &masked, udp)?;
    frame.identification = Some(be(ip, 4));
    frame.dont_fragment = ip[6] & 0x40 != 0;
    Ok(frame)
}

fn ipv6(packet: &[u8]) -> Result<Frame, String> {
    let (ip, udp) = packet.split_at_checked(40).ok_or("no IPv6 header")?;
    if ip[0] >> 4 != 6 || usize::from(be(ip, 4)) != udp.len() {
        return Err(format!("version or length: {ip:02x?}"));
    }
    // Traffic class, flow label, hop limit.
    let mut masked = ip.to_vec();
    masked[0] |= 0x0f;
    [1, 2, 3, 7].into_iter().for_each(|at| masked[at] = 0xff);
    let from: [u8; 16] = ip[8..24].try_into().expect("sixteen bytes");
    roce(from.into(), &masked, udp)
}

fn roce(from: IpAddr, masked_ip: &[u8], datagram: &[u8]) -> Result<Frame, String> {
    let (udp, transport) = datagram.split_at_checked(8).ok_or("no UDP header")?;
    if usize::from(be(udp, 4)) != datagram.len() {
        return Err("the UDP length is not the packet's".into());
    }
    let covered = transport.len().checked_sub(4).filter(|covered| *covered >= 12).ok_or("too short for a BTH")?;
    let (covered, icrc) = transport.split_at(covered);
    let opcode = covered[0];
    let pad = usize::from(covered[1] >> 4 & 3);
    let headers = 12 + Operation::of(opcode).map_or(0, Operation::extended_headers);
    let payload = covered.len().checked_sub(headers + pad).ok_or("too short for its headers")?;
    if !(payload + pad).is_multiple_of(4) {
        return Err(format!("{payload} bytes with a pad of {pad}"));
    }
    let mut crc = Crc(0xffff_ffff);
    // In the place of the routing header that RoCE does not have.
    crc.add(&[0xff; 8]);
    crc.add(masked_ip);
    crc.add(&udp[..6]);
    crc.add(&[0xff; 2]);
    crc.add(&covered[..4]);
    // Congestion marks.
    crc.add(&[0xff]);
    crc.add(&covered[5..]);
    Ok(Frame {
        from,
        port: be(udp, 2),
        identification: None,
        dont_fragment: true,
        opcode,
        destination: u32::from_be_bytes([0, covered[5], covered[6], covered[7]]),
        psn: u32::from_be_bytes([0, covered[9], covered[10], covered[11]]),
        payload,
        icrc: icrc.try_into().expect("four bytes"),
        computed_icrc: (!crc.0).to_le_bytes(),
    })
}

fn be(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The CRC of Ethernet, one byte after the other.
struct Crc(u32);

impl Crc {
    /// What becomes of each byte, worked out bit by bit.
    const OF_BYTE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut crc, mut bit) = (byte as u32, 0);
            while bit < 8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 >> 8 ^ Crc::OF_BYTE[usize::from(self.0 as u8 ^ byte)];
        }
    }
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    First,
    Middle,
    Last,
    Only,
}

impl Part {
    /// Another packet of the message follows.
    pub fn goes_on(self) -> bool {
        matches!(self, Part::First | Part::Middle)
    }

    /// One came before it.
    pub fn goes_on_from_before(self) -> bool {
        matches!(self, Part::Middle | Part::Last)
    }
}

/// What the packets of these tests do: name, opcode, bytes of extended headers.
macro_rules! operations {
    ($($name:ident = $opcode:literal, $headers:literal, $part:ident;)*) => {
        /// What a packet does.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Operation { $($name),* }

        impl Operation {
            pub const ALL: &'static [Operation] = &[$(Operation::$name),*];

            pub fn of(opcode: u8) -> Option<Operation> {
                match opcode { $($opcode => Some(Operation::$name),)* _ => None }
            }

            /// Bytes between the BTH and the payload.
            fn extended_headers(self) -> usize {
                match self { $(Operation::$name => $headers),* }
            }

            pub fn part(self) -> Part {
                match self { $(Operation::$name => Part::$part),* }
            }
        }
    };
}

// Table 38 of the specification, as far as it concerns these tests.
operations! {
    SendFirst = 0x00, 0, First;
    SendMiddle = 0x01, 0, Middle;
    SendLast = 0x02, 0, Last;
    SendOnly = 0x04, 0, Only;
    SendOnlyImmediate = 0x05, 4, Only;
    WriteFirst = 0x06, 16, First;
    WriteMiddle = 0x07, 0, Middle;
    WriteLast = 0x08, 0, Last;
    WriteOnly = 0x0a, 16, Only;
    ReadRequest = 0x0c, 16, Only;
    ReadResponseFirst = 0x0d, 4, First;
    ReadResponseMiddle = 0x0e, 0, Middle;
    ReadResponseLast = 0x0f, 4, Last;
    ReadResponseOnly = 0x10, 4, Only;
    Acknowledge = 0x11, 4, Only;
    AtomicAcknowledge = 0x12, 12, Only;
    CompareSwap = 0x13, 28, Only;
    FetchAdd = 0x14, 28, Only;
    UnreliableDatagram = 0x64, 8, Only;
}

impl Operation {
    /// Whether the responder sends it.
    pub fn is_answer(self) -> bool {
        (Operation::ReadResponseFirst..=Operation::AtomicAcknowledge).contains(&self)
    }
}

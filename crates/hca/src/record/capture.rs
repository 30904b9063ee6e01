//! A capture of this process's packets, as the NIC hands them over and takes them: what it sends (also to queue pairs
//! of its own) and what arrives for it. IP and UDP headers are those of the wire as far as a socket knows them;
//! Ethernet addresses it does not know, and they are zero, and a checksum of UDP, which IPv6 wants and the kernel does
//! not show us, is made. Every frame is in the file before the next is, so that a process that is killed leaves a
//! capture that can be read; if it is killed in the middle of a write, the last frame may lack its end.

use crate::record::file::RecordFile;
use crate::tuning::CAPTURE_BUFFER_BYTES;
use link::udp::Route;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io::{self, BufWriter};
use std::time::{SystemTime, UNIX_EPOCH};
use trace::{Direction, Interface, PcapNg};
use wire::{EncodeError, Ethernet, Frame, Gid, Headers, IpHeader, Ipv6Header, Packet, UdpHeader};

/// A capture under way.
pub(crate) struct Capture {
    writer: PcapNg<BufWriter<RecordFile>>,
    /// By the names of devices.
    interfaces: HashMap<String, Interface>,
    packet: Vec<u8>,
    built: Vec<u8>,
    /// The disk is full, or something like it: nothing is written any more.
    failed: bool,
    /// Whom to tell.
    ended: Option<Ended>,
}

/// Takes the errno by which a capture ended.
type Ended = Box<dyn Fn(i32) + Send>;

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Capture {
    pub fn new(file: RecordFile) -> Result<Capture, trace::Error> {
        let mut writer = PcapNg::new(BufWriter::with_capacity(CAPTURE_BUFFER_BYTES, file))?;
        writer.flush()?;
        let interfaces = HashMap::new();
        Ok(Capture { writer, interfaces, packet: Vec::new(), built: Vec::new(), failed: false, ended: None })
    }

    /// Has `tell` called when nothing is written any more.
    pub fn when_ended(&mut self, tell: impl Fn(i32) + Send + 'static) {
        self.ended = Some(Box::new(tell));
    }

    /// A packet that goes along `route`, or came, without having been one on the wire.
    pub fn frame(
        &mut self,
        device: &str,
        route: &Route,
        port: u16,
        headers: &Headers,
        payload: &[u8],
        direction: Direction,
    ) {
        let packet = Packet { headers: *headers, payload };
        let mut bytes = std::mem::take(&mut self.packet);
        bytes.clear();
        bytes.resize(packet.encoded_length(), 0);
        let written = ip_header(route, bytes.len()).and_then(|ip| {
            packet.encode(&ip, &UdpHeader::roce(port, bytes.len())?, &mut bytes)?;
            self.encode(ip, port, &bytes)
        });
        self.packet = bytes;
        if written.is_ok() {
            self.write(device, direction);
        }
    }

    /// A packet that arrived, from its BTH to its ICRC.
    pub fn received(&mut self, device: &str, ip: &IpHeader, port: u16, bytes: &[u8]) {
        let written = ip.with_udp_payload(bytes.len()).and_then(|ip| self.encode(ip, port, bytes));
        if written.is_ok() {
            self.write(device, Direction::Inbound);
        }
    }

    /// A frame as it was, of a raw queue pair.
    pub fn raw(&mut self, device: &str, frame: &[u8], direction: Direction) {
        self.built.clear();
        self.built.extend_from_slice(frame);
        self.write(device, direction);
    }

    fn encode(&mut self, ip: IpHeader, port: u16, bytes: &[u8]) -> Result<(), EncodeError> {
        let ethernet = Ethernet { destination: [0; 6], source: [0; 6], ethertype: ip.ethertype() };
        let mut udp = UdpHeader::roce(port, bytes.len())?;
        if let IpHeader::V6(ip) = &ip {
            udp.checksum = checksum(ip, &udp, bytes);
        }
        let frame = Frame { ethernet, ip, udp, payload: bytes };
        self.built.clear();
        self.built.resize(frame.encoded_length(), 0);
        frame.encode(&mut self.built).map(drop)
    }

    fn write(&mut self, device: &str, direction: Direction) {
        if self.failed {
            return;
        }
        if let Err(error) = self.try_write(device, direction) {
            self.failed = true;
            let system = error.source().and_then(|error| error.downcast_ref::<io::Error>()?.raw_os_error());
            self.ended.iter().for_each(|tell| tell(system.unwrap_or(libc::EIO)));
        }
    }

    fn try_write(&mut self, device: &str, direction: Direction) -> Result<(), trace::Error> {
        let interface = match self.interfaces.get(device) {
            Some(interface) => *interface,
            None => {
                let interface = self.writer.interface(device)?;
                self.interfaces.insert(device.to_owned(), interface);
                interface
            }
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        self.writer.directed(interface, now, &self.built, direction)?;
        self.writer.flush()
    }
}

/// The IP header of a packet that goes that way.
fn ip_header(route: &Route, length: usize) -> Result<IpHeader, EncodeError> {
    let mut ip = IpHeader::udp(Gid::from_ip(route.source), Gid::from_ip(route.destination), length)?;
    match &mut ip {
        IpHeader::V4(ip) => (ip.tos, ip.ttl) = (route.traffic_class, route.hop_limit),
        IpHeader::V6(ip) => (ip.traffic_class, ip.hop_limit) = (route.traffic_class, route.hop_limit),
    }
    Ok(ip)
}

/// The checksum of a UDP datagram over IPv6, where there must be one.
fn checksum(ip: &Ipv6Header, udp: &UdpHeader, payload: &[u8]) -> u16 {
    let [source, destination] = [ip.source, ip.destination].map(|address| address.segments());
    let header = [udp.length, u16::from(ip.next_header), udp.source_port, udp.destination_port, udp.length];
    let (pairs, rest) = payload.as_chunks::<2>();
    let words =
        source.into_iter().chain(destination).chain(header).chain(pairs.iter().map(|pair| u16::from_be_bytes(*pair)));
    let last = rest.first().map_or(0, |byte| u16::from_be_bytes([*byte, 0]));
    let mut sum: u64 = words.chain([last]).map(u64::from).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // Zero would mean that there is none.
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use wire::{Opcode, Psn, Qpn};

    fn route(source: &str, destination: &str) -> Route {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        Route { source: address(source), destination: address(destination), scope: 0, traffic_class: 4, hop_limit: 9 }
    }

    #[test]
    fn what_is_sent_can_be_read_and_has_its_checksums() {
        let path = std::env::temp_dir().join(format!("ubiverbs-capture-{}.pcapng", std::process::id()));
        let mut capture = Capture::new(RecordFile::open(&path).unwrap()).unwrap();
        let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(7), Psn::new(1));
        let mut length = std::fs::metadata(&path).unwrap().len();
        for (source, destination) in [("fd00::1", "fd00::2"), ("10.0.0.1", "10.0.0.2")] {
            let route = route(source, destination);
            capture.frame("ubi_x", &route, 50_000, &headers, b"seven b", Direction::Outbound);
            // It is in the file already.
            let now = std::fs::metadata(&path).unwrap().len();
            assert!(now > length);
            length = now;
            let frame = Frame::parse(&capture.built).unwrap();
            assert_eq!(frame.ip.source(), Gid::from_ip(source.parse().unwrap()));
            let packet = Packet::parse_checked(&frame.ip, &frame.udp, frame.payload).unwrap();
            assert_eq!((packet.payload, frame.udp.source_port), (&b"seven b"[..], 50_000));
            if let IpHeader::V6(ip) = frame.ip {
                assert_eq!((ip.traffic_class, ip.hop_limit), (4, 9));
                let without = UdpHeader { checksum: 0, ..frame.udp };
                assert_ne!(frame.udp.checksum, 0);
                assert_eq!(frame.udp.checksum, checksum(&ip, &without, frame.payload));
            }
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_checksum_is_that_of_udp() {
        // A datagram whose sum was made by hand: 8 bytes of header, 2 of payload, ::1 to ::1.
        let [source, destination] = ["::1"; 2].map(|text| text.parse().unwrap());
        let ip = Ipv6Header::udp(source, destination, 2).unwrap();
        let udp = UdpHeader { source_port: 1, destination_port: 2, length: 10, checksum: 0 };
        // 1 + 1 + 10 + 17 + 1 + 2 + 10 + 0x1234 = 0x125e
        assert_eq!(checksum(&ip, &udp, &[0x12, 0x34]), !0x125e);
        assert_eq!(checksum(&ip, &udp, &[0x12, 0x34, 0x01]), !(0x125e + 0x100));
    }
}

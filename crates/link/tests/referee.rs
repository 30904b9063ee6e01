//! The identification that a packet had on the wire, told by the kernel to a raw socket (in a
//! namespace of one's own), beside what a receiver without that right took it for.

mod network;

use link::udp::{Family, Receiver, Route, Sender};
use network::{Parcel, Rights};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use wire::{Headers, Icrc, IpHeader, Ipv4Header, Opcode, Packet, Psn, Qpn, ROCE_PORT, UdpHeader};

const HERE: Route = Route {
    source: IpAddr::V4(Ipv4Addr::LOCALHOST),
    destination: IpAddr::V4(Ipv4Addr::LOCALHOST),
    scope: 0,
    traffic_class: 0,
    hop_limit: 64,
};

/// Sees every UDP datagram of the namespace, headers included.
struct Referee(socket2::Socket);

impl Referee {
    fn new() -> Referee {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(socket2::Protocol::UDP));
        let socket = socket.expect("in a namespace of one's own one may listen");
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Referee(socket)
    }

    /// Identification, "don't fragment", source port and sequence number of the next datagram to the port of RoCE.
    fn next(&self) -> (u16, bool, u16, u32) {
        loop {
            let mut buffer = [const { MaybeUninit::uninit() }; 65_536];
            let length = self.0.recv(&mut buffer).expect("a datagram");
            // SAFETY: so many bytes were received.
            let bytes: Vec<u8> = buffer[..length].iter().map(|byte| unsafe { byte.assume_init() }).collect();
            let pair = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            if pair(22) == ROCE_PORT && length >= 20 + 8 + 12 {
                let psn = u32::from_be_bytes([0, bytes[37], bytes[38], bytes[39]]);
                return (pair(4), bytes[6] & 0x40 != 0, pair(20), psn);
            }
        }
    }
}

/// What a receiver took the identifications of packets for, by sequence number.
fn taken(receiver: &mut Receiver, count: usize) -> HashMap<u32, u16> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut found = HashMap::new();
    while found.len() < count && Instant::now() < deadline {
        receiver
            .receive(|arrival| {
                let IpHeader::V4(ip) = arrival.ip else { panic!("{:?}", arrival.ip) };
                found.insert(arrival.headers.bth.psn.value(), ip.identification);
            })
            .unwrap();
    }
    found
}

fn packets_of_our_kind_have_what_receivers_predict(_: Rights) {
    let referee = Referee::new();
    let mut receiver = Receiver::open(Family::V4).unwrap();
    let mut sender = Sender::open(Family::V4).unwrap();
    for one_by_one in [true, false] {
        let payload = [7; 1024];
        let mut parcel = Parcel { opcode: Opcode::RcSendMiddle, to: Qpn::new(7), psn: 0, payload: &payload, count: 9 };
        sender.send(&HERE, &mut parcel, one_by_one).unwrap();
        let found = taken(&mut receiver, 9);
        assert_eq!(found.len(), 9);
        let mut seen = 0;
        while seen < 9 {
            let (identification, dont_fragment, port, psn) = referee.next();
            assert!(dont_fragment && port == sender.port());
            assert_eq!(found[&psn], identification, "packet {psn}, one by one {one_by_one}");
            // Here the kernel does not cut a datagram before its receiver has it: its packets count up from its own.
            seen += if one_by_one { 1 } else { 9 };
        }
    }
}

/// A packet with a right ICRC, if that is its identification.
fn sealed(source: (Ipv4Addr, u16), identification: u16, psn: u32) -> Vec<u8> {
    let mut headers = Headers::new(Opcode::RcSendOnly, Qpn::new(7), Psn::new(psn));
    headers.bth.pad = 0;
    let mut bytes = vec![0; headers.len()];
    headers.encode(&mut bytes).unwrap();
    bytes.extend([psn as u8; 64]);
    let length = bytes.len() + Icrc::LEN;
    let ip = Ipv4Header::udp(source.0, Ipv4Addr::LOCALHOST, length).unwrap();
    let ip = IpHeader::V4(Ipv4Header { identification, dont_fragment: true, ..ip });
    let icrc = wire::icrc(&ip, &UdpHeader::roce(source.1, length).unwrap(), &bytes);
    bytes.extend(icrc);
    assert!(Packet::parse(&bytes).is_ok());
    bytes
}

fn a_sender_that_counts_is_understood_and_nothing_it_sent_is_lost(_: Rights) {
    let referee = Referee::new();
    let mut receiver = Receiver::open(Family::V4).unwrap();
    // The kernel counts the datagrams of a connected socket, from a number that it chooses.
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, ROCE_PORT)).unwrap();
    let source = (Ipv4Addr::LOCALHOST, socket.local_addr().unwrap().port());
    forbid_fragments(&socket).unwrap();
    socket.send(b"what comes next?").unwrap();
    let (mut last, ..) = referee.next_of_any();
    let mut sent = HashMap::new();
    let mut found = HashMap::new();
    for psn in 0..8 {
        last = last.wrapping_add(1);
        socket.send(&sealed(source, last, psn)).unwrap();
        let (identification, dont_fragment, ..) = referee.next();
        assert!(dont_fragment && identification == last, "the kernel counts on");
        sent.insert(psn, identification);
        // The first two are held back until the third agrees.
        let expected = if psn < 2 { 0 } else { psn as usize + 1 };
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            let received = receiver
                .receive(|arrival| {
                    let IpHeader::V4(ip) = arrival.ip else { panic!("{:?}", arrival.ip) };
                    assert!(arrival.payload.iter().all(|byte| *byte == arrival.headers.bth.psn.value() as u8));
                    found.insert(arrival.headers.bth.psn.value(), ip.identification);
                })
                .unwrap();
            if received.unproven + received.packets > 0 {
                break;
            }
        }
        assert_eq!(found.len(), expected, "after packet {psn}");
        if psn == 0 && last >= 64 {
            assert_eq!(receiver.questions(), [(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST)]);
        }
    }
    assert_eq!(found, sent, "as the kernel told");
}

impl Referee {
    /// The identification of whatever comes next.
    fn next_of_any(&self) -> (u16,) {
        let mut buffer = [const { MaybeUninit::uninit() }; 2048];
        let length = self.0.recv(&mut buffer).expect("a datagram");
        assert!(length > 28);
        // SAFETY: at least six bytes were received.
        let [upper, lower] = [4, 5].map(|at: usize| unsafe { buffer[at].assume_init() });
        (u16::from_be_bytes([upper, lower]),)
    }
}

fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let value = libc::IP_PMTUDISC_DO;
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option value is a live number of the size given.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, (&raw const value).cast(), size)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn main() -> std::process::ExitCode {
    network::run(&[
        ("packets_of_our_kind_have_what_receivers_predict", packets_of_our_kind_have_what_receivers_predict),
        (
            "a_sender_that_counts_is_understood_and_nothing_it_sent_is_lost",
            a_sender_that_counts_is_understood_and_nothing_it_sent_is_lost,
        ),
    ])
}

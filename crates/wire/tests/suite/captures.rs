//! Every packet that kernel Soft-RoCE put on the wire in `captures/` parses, encodes to the same bytes, and has the
//! ICRC we compute. The counts are exact, so that a capture that is cut or a packet that is passed over fails the test.

use crate::frames;
use std::collections::{BTreeMap, BTreeSet};

use wire::cm::{CmDatagram, IpCm, Message, MessageKind, PortSpace};
use wire::{
    Ethernet, Frame, Gid, Header, Identification, IpHeader, Ipv4Header, Opcode, Packet, ParseError, Qpn, ROCE_PORT,
    grh_bytes, icrc_matches, mad::MAD_LEN, solve_identification, source_port,
};

/// What a capture holds: packets of RoCEv2, CM messages among them, and by protocol what else was on the network.
#[derive(PartialEq, Eq, Debug, Default)]
struct Count {
    roce: usize,
    cm: usize,
    tcp: usize,
    icmp: usize,
    igmp: usize,
    icmpv6: usize,
}

// Counted with tshark: RoCE, CM, TCP, ICMP, IGMP, ICMPv6.
#[rustfmt::skip]
const COUNTS: [(&str, usize, usize, usize, usize, usize, usize); 32] = [
    ("atomic-cmp-swap", 10, 0, 41, 0, 0, 0),
    ("atomic-fetch-add", 10, 0, 39, 0, 0, 0),
    ("cmtime", 10, 10, 0, 0, 0, 1),
    ("loss-read", 98, 0, 39, 0, 0, 1),
    ("loss-send", 212, 0, 11, 0, 0, 0),
    ("loss-write", 100, 0, 40, 0, 0, 4),
    ("mckey", 3, 0, 0, 0, 8, 0),
    ("no-rxe-at-peer", 11, 11, 0, 11, 0, 1),
    ("rc_pingpong-120K", 240, 0, 11, 0, 0, 0),
    ("rc_pingpong-ipv6", 50, 0, 12, 0, 0, 2),
    ("rc_pingpong", 100, 0, 12, 0, 0, 0),
    ("rdma_client", 9, 5, 0, 0, 0, 1),
    ("read", 20, 0, 40, 0, 0, 0),
    ("retry-exceeded", 59, 5, 0, 0, 0, 0),
    ("rnr", 114, 0, 29, 0, 0, 0),
    ("rping-ipv6", 41, 5, 0, 0, 0, 2),
    ("rping-no-listener", 2, 2, 0, 0, 0, 1),
    ("rping", 41, 5, 0, 0, 0, 0),
    ("rstream", 37, 5, 0, 0, 0, 0),
    ("send-uc", 15, 0, 31, 0, 0, 0),
    ("send-ud", 5, 0, 31, 0, 0, 0),
    ("send", 20, 0, 29, 0, 0, 1),
    ("srq_pingpong", 66, 0, 52, 0, 0, 0),
    ("uc_pingpong", 80, 0, 11, 0, 0, 0),
    ("ucmatose", 17, 5, 0, 0, 0, 0),
    ("ud_pingpong", 20, 0, 11, 0, 0, 0),
    ("udaddy", 8, 2, 0, 0, 0, 1),
    ("write-40k", 205, 0, 39, 0, 0, 2),
    ("write-cm", 96, 12, 0, 0, 0, 0),
    ("write-padded", 15, 0, 41, 0, 0, 0),
    ("write-uc", 15, 0, 39, 0, 0, 0),
    ("write", 20, 0, 41, 0, 0, 0),
];

/// Either a RoCEv2 packet in its frame, or the IP protocol of what else it is.
fn roce(bytes: &[u8]) -> Result<Frame<'_>, u8> {
    match Frame::parse(bytes) {
        Ok(frame) if frame.udp.destination_port == ROCE_PORT => Ok(frame),
        Ok(frame) => panic!("UDP to port {}", frame.udp.destination_port),
        Err(ParseError::Unexpected { header: Header::Ipv4 | Header::Ipv6, field: "protocol", value, .. }) => {
            Err(value as u8)
        }
        // The router alert of IGMP.
        Err(ParseError::Ipv4Options(6)) => Err(bytes[Ethernet::LEN + 9]),
        Err(error) => panic!("{error}"),
    }
}

fn packets(name: &str) -> Vec<Vec<u8>> {
    frames::of(name).into_iter().filter(|bytes| roce(bytes).is_ok()).collect()
}

/// Everything the wire crate can say about one captured packet, checked; the CM message if it is one.
fn check(bytes: &[u8], frame: &Frame<'_>) -> Option<CmDatagram> {
    let packet = Packet::parse_checked(&frame.ip, &frame.udp, frame.payload).expect("a packet with a good ICRC");
    assert!(icrc_matches(&frame.ip, &frame.udp, frame.payload));

    let mut out = vec![0xee; frame.payload.len()];
    assert_eq!(packet.encode(&frame.ip, &frame.udp, &mut out), Ok(out.len()));
    assert_eq!(out, frame.payload, "{packet}");

    let mut out = vec![0xee; frame.encoded_length()];
    frame.encode(&mut out).unwrap();
    assert_eq!(out, bytes[..out.len()]);

    let grh = grh_bytes(&frame.ip);
    assert!(grh.ends_with(&bytes[Ethernet::LEN..Ethernet::LEN + frame.ip.header_length()]));

    if let IpHeader::V4(ip) = frame.ip {
        // What a UDP socket would know: not these two.
        let blind = Ipv4Header { identification: 0, dont_fragment: false, ..ip };
        let sent = Identification { identification: ip.identification, dont_fragment: ip.dont_fragment };
        assert_eq!(solve_identification(&blind, &frame.udp, frame.payload), Some(sent));
    }

    if packet.headers.bth.dest_qpn != Qpn::GSI {
        return None;
    }
    let datagram = CmDatagram::parse(packet.payload).expect("QP 1 gets CM messages only");
    let mut out = [0xee; MAD_LEN];
    assert_eq!(datagram.encode(&mut out), Ok(MAD_LEN));
    assert_eq!(out, packet.payload, "{packet}");
    Some(datagram)
}

#[test]
fn every_captured_packet_parses_and_encodes_to_the_same_bytes() {
    assert_eq!(frames::names().len(), COUNTS.len(), "a capture without a line in the table, or the reverse");
    let mut total = 0;
    for (name, roce_count, cm, tcp, icmp, igmp, icmpv6) in COUNTS {
        let expected = Count { roce: roce_count, cm, tcp, icmp, igmp, icmpv6 };
        let mut found = Count::default();
        for bytes in frames::of(name) {
            match roce(&bytes) {
                Ok(frame) => {
                    found.roce += 1;
                    found.cm += usize::from(check(&bytes, &frame).is_some());
                }
                Err(1) => found.icmp += 1,
                Err(2) => found.igmp += 1,
                Err(6) => found.tcp += 1,
                // ICMPv6, alone or behind hop-by-hop options.
                Err(0 | 58) => found.icmpv6 += 1,
                Err(other) => panic!("{name}: IP protocol {other}"),
            }
        }
        assert_eq!(found, expected, "{name}");
        total += found.roce;
    }
    assert_eq!(total, 1749);
}

#[test]
fn the_captures_show_these_opcodes() {
    let mut seen = BTreeMap::new();
    for name in frames::names() {
        for bytes in packets(&name) {
            let packet = Packet::parse(Frame::parse(&bytes).unwrap().payload).unwrap();
            *seen.entry(packet.headers.bth.opcode).or_insert(0) += 1;
        }
    }
    use Opcode::*;
    #[rustfmt::skip]
    let expected = [
        (RcSendFirst, 80), (RcSendMiddle, 433), (RcSendLast, 83), (RcSendOnly, 178),
        (RcWriteFirst, 29), (RcWriteMiddle, 272), (RcWriteLast, 31), (RcWriteOnly, 6), (RcWriteOnlyImmediate, 16),
        (RcReadRequest, 22), (RcReadResponseFirst, 13), (RcReadResponseMiddle, 73), (RcReadResponseLast, 16),
        (RcReadResponseOnly, 6), (RcAcknowledge, 260), (RcAtomicAcknowledge, 10), (RcCompareSwap, 5), (RcFetchAdd, 5),
        (UcSendFirst, 25), (UcSendMiddle, 45), (UcSendLast, 25),
        (UcWriteFirst, 5), (UcWriteMiddle, 5), (UcWriteLast, 5),
        (UdSendOnly, 92), (UdSendOnlyImmediate, 9),
    ];
    assert_eq!(seen, BTreeMap::from(expected));
}

#[test]
fn the_captures_show_these_messages() {
    let mut seen = BTreeMap::new();
    for name in frames::names() {
        for bytes in packets(&name) {
            let frame = Frame::parse(&bytes).unwrap();
            if let Some(datagram) = check(&bytes, &frame) {
                *seen.entry(datagram.message.kind()).or_insert(0) += 1;
            }
        }
    }
    use MessageKind::*;
    let expected = [(Req, 21), (Rej, 2), (Rep, 10), (Rtu, 10), (Dreq, 11), (Drep, 11), (SidrReq, 1), (SidrRep, 1)];
    assert_eq!(seen, BTreeMap::from(expected));
}

#[test]
fn a_connection_keeps_the_source_port_of_its_queue_pairs() {
    for name in ["rc_pingpong", "rc_pingpong-120K", "rc_pingpong-ipv6", "uc_pingpong", "write-uc", "read", "loss-send"]
    {
        let mut destinations = BTreeSet::new();
        let mut ports = BTreeSet::new();
        for bytes in packets(name) {
            let frame = Frame::parse(&bytes).unwrap();
            destinations.insert(Packet::parse(frame.payload).unwrap().headers.bth.dest_qpn);
            ports.insert(frame.udp.source_port);
        }
        let destinations: Vec<Qpn> = destinations.into_iter().collect();
        match destinations[..] {
            [one, other] => assert_eq!(ports, BTreeSet::from([source_port(one, other)]), "{name}"),
            // A stream of unreliable writes goes one way; the sender's number is in no packet.
            [_] => assert_eq!((ports.len(), name), (1, "write-uc")),
            _ => panic!("{name} is between two queue pairs, not {destinations:?}"),
        }
    }
}

#[test]
fn a_request_says_where_it_comes_from() {
    for (name, source, destination) in [
        ("rping", "10.77.0.3", "10.77.0.2"),
        ("rping-ipv6", "fd77::3", "fd77::2"),
        ("udaddy", "10.77.0.3", "10.77.0.2"),
    ] {
        let bytes = packets(name).swap_remove(0);
        let frame = Frame::parse(&bytes).unwrap();
        let request = check(&bytes, &frame).expect("the first packet is a request").message;
        let (space, data): (_, &[u8]) = match request {
            Message::Req(ref req) => {
                assert_eq!(req.primary.local_gid, frame.ip.source());
                assert_eq!(req.primary.remote_gid, frame.ip.destination());
                assert_eq!((req.primary.local_lid, req.primary.local_ack_timeout.value()), (0xffff, 19));
                assert_eq!((req.max_cm_retries, req.local_cm_response_timeout.value()), (15, 20));
                (req.service_id, req.private_data.bytes())
            }
            Message::SidrReq(ref req) => (req.service_id, req.private_data.bytes()),
            other => panic!("{name} begins with {other}"),
        };
        let expected = if name == "udaddy" { (PortSpace::Udp, 7174) } else { (PortSpace::Tcp, 7174) };
        assert_eq!((space.port_space(), space.port()), (Some(expected.0), Some(expected.1)), "{name}");
        let (ip, _) = IpCm::parse(data).unwrap();
        assert_eq!((ip.source, ip.destination), (source.parse().unwrap(), destination.parse().unwrap()));
        assert_eq!(Gid::from(ip.source), frame.ip.source());
    }
}

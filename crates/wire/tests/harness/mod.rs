//! What a fuzzer may throw at the crate, as two functions over bytes that panic when something is wrong. The fuzz
//! targets, the property tests and the replay of the corpus share them.

use std::fmt::Write;

use wire::cm::{BODY_LEN, CmDatagram, IpCm, Message, MessageKind};
use wire::mad::MAD_LEN;
use wire::{
    EncodeError, Frame, Gid, Headers, IpHeader, Ipv4Header, Packet, UdpHeader, icrc_matches, solve_identification,
};

/// Gives the bytes to every parser. None may panic, and what they return lies inside what they were given.
pub fn parse(bytes: &[u8]) {
    let mut line = String::new();
    if let Ok((headers, rest)) = Headers::parse(bytes) {
        assert_eq!(headers.len() + rest.len(), bytes.len());
        write!(line, "{headers}").unwrap();
    }
    match Packet::parse(bytes) {
        Ok(packet) => {
            let pad = usize::from(packet.headers.bth.pad);
            assert_eq!(packet.headers.len() + packet.payload.len() + pad + 4, bytes.len());
            write!(line, "{packet}").unwrap();
        }
        Err(error) => write!(line, "{error}").unwrap(),
    }
    match Frame::parse(bytes) {
        Ok(frame) => {
            assert!(frame.encoded_length() <= bytes.len());
            icrc_matches(&frame.ip, &frame.udp, frame.payload);
            let checked = Packet::parse_checked(&frame.ip, &frame.udp, frame.payload);
            if let IpHeader::V4(ip) = frame.ip {
                let solved = solve_identification(&ip, &frame.udp, frame.payload);
                assert!(checked.is_err() || solved.is_some(), "a good ICRC has an identification: the right one");
            }
        }
        Err(error) => write!(line, "{error}").unwrap(),
    }
    match CmDatagram::parse(bytes) {
        Ok(datagram) => write!(line, "{}", datagram.message).unwrap(),
        Err(error) => write!(line, "{error}").unwrap(),
    }
    let _ = IpCm::parse(bytes);
    for &kind in MessageKind::ALL {
        assert_eq!(Message::parse(kind, bytes).is_ok(), bytes.len() >= BODY_LEN);
    }
}

/// Whatever parses must encode, read back the same, and encode the same again.
pub fn round_trip(bytes: &[u8]) {
    if let Ok(packet) = Packet::parse(bytes) {
        packet_round_trip(&packet);
        if let Ok(datagram) = CmDatagram::parse(packet.payload) {
            datagram_round_trip(&datagram);
        }
    }
    if let Ok(datagram) = CmDatagram::parse(bytes) {
        datagram_round_trip(&datagram);
    }
    if let Ok(frame) = Frame::parse(bytes) {
        let mut out = vec![0xee; frame.encoded_length()];
        assert_eq!(frame.encode(&mut out), Ok(out.len()));
        assert_eq!(Frame::parse(&out), Ok(frame));
        if let Ok(packet) = Packet::parse(frame.payload) {
            packet_round_trip(&packet);
        }
    }
    if let Ok((ip_cm, _)) = IpCm::parse(bytes) {
        let mut out = [0xee; IpCm::LEN];
        assert_eq!(ip_cm.encode(&mut out), Ok(IpCm::LEN));
        assert_eq!(IpCm::parse(&out), Ok((ip_cm, &[][..])));
    }
    if bytes.len() >= BODY_LEN {
        for &kind in MessageKind::ALL {
            let message = Message::parse(kind, bytes).expect("long enough is all it takes");
            datagram_round_trip(&CmDatagram::new(1, message));
        }
    }
}

fn packet_round_trip(packet: &Packet<'_>) {
    let length = packet.encoded_length();
    let address = Gid::from_ipv4([127, 0, 0, 1].into());
    let (Ok(ip), Ok(udp)) = (IpHeader::udp(address, address, length), UdpHeader::roce(0xc000, length)) else {
        assert!(length + Ipv4Header::LEN + UdpHeader::LEN > 65535);
        return;
    };
    let mut out = vec![0xee; length];
    match packet.encode(&ip, &udp, &mut out) {
        Ok(written) => {
            assert_eq!(written, length);
            assert_eq!(Packet::parse_checked(&ip, &udp, &out), Ok(*packet));
        }
        Err(EncodeError::UnexpectedPayload { have, .. }) => {
            assert!(!packet.headers.bth.opcode.has_payload() && have == packet.payload.len());
        }
        Err(error) => panic!("{error}"),
    }
}

fn datagram_round_trip(datagram: &CmDatagram) {
    let mut out = [0xee; MAD_LEN];
    assert_eq!(datagram.encode(&mut out), Ok(MAD_LEN));
    assert_eq!(CmDatagram::parse(&out).as_ref(), Ok(datagram));
}

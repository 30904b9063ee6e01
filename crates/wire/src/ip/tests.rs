use super::*;
use core::net::{Ipv4Addr, Ipv6Addr};

// 10.77.0.3 to 10.77.0.2, 284 bytes of UDP payload, the checksum left out.
const V4: [u8; 20] = [0x45, 0, 0x01, 0x38, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 3, 10, 77, 0, 2];

#[test]
fn the_ipv4_checksum_is_made_and_verified() {
    let header = Ipv4Header::udp(Ipv4Addr::new(10, 77, 0, 3), Ipv4Addr::new(10, 77, 0, 2), 0x11c).unwrap();
    let mut bytes = header.bytes();
    let checksum = u16::from_be_bytes([bytes[10], bytes[11]]);
    assert_eq!((&bytes[..10], &bytes[12..]), (&V4[..10], &V4[12..]));
    // All words of a good header add up to ones.
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    bytes[8] = 63;
    let error = Ipv4Header::parse(&bytes).unwrap_err();
    assert_eq!(error, ParseError::Ipv4Checksum { have: checksum, computed: checksum + 0x100 });
}

#[test]
fn lengths_that_lie_are_refused() {
    let header = Ipv4Header::udp(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 4).unwrap();
    let mut bytes = [0; 64];
    header.encode(&mut bytes).unwrap();
    assert_eq!(Ipv4Header::parse(&bytes).unwrap().1.len(), 12, "what follows the datagram is cut off");
    assert!(matches!(Ipv4Header::parse(&bytes[..31]), Err(ParseError::BadLength { said: 32, have: 31, .. })));
    let short = Ipv4Header { total_length: 19, ..header };
    short.encode(&mut bytes).unwrap();
    assert!(matches!(Ipv4Header::parse(&bytes), Err(ParseError::BadLength { said: 19, have: 64, .. })));
    assert!(matches!(UdpHeader::parse(&[0, 0, 0, 0, 0, 7, 0, 0]), Err(ParseError::BadLength { said: 7, have: 8, .. })));
    assert!(Ipv4Header::udp(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 65508).is_err());
    assert!(UdpHeader::roce(1, 65528).is_err() && UdpHeader::roce(1, 65527).is_ok());
}

#[test]
fn a_frame_reads_back_in_both_families() {
    for (source, destination, ethertype) in [
        (Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1)), Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2)), Ethernet::IPV4),
        (Gid::from_ipv6(Ipv6Addr::LOCALHOST), Gid::from_ipv6(Ipv6Addr::LOCALHOST), Ethernet::IPV6),
    ] {
        let payload = [7; 20];
        let ip = IpHeader::udp(source, destination, payload.len()).unwrap();
        let udp = UdpHeader::roce(0xc123, payload.len()).unwrap();
        let frame =
            Frame { ethernet: Ethernet { destination: [2; 6], source: [4; 6], ethertype }, ip, udp, payload: &payload };
        let mut bytes = [0; 100];
        let length = frame.encode(&mut bytes).unwrap();
        assert_eq!(length, frame.encoded_length());
        assert_eq!(Frame::parse(&bytes), Ok(frame), "padding behind the frame is cut off");
        assert!(Frame::parse(&bytes[..length - 1]).is_err());
        assert_eq!((ip.source(), ip.destination()), (source, destination));
    }
}

#[test]
fn a_fragment_is_no_datagram() {
    let gid = Gid::from_ipv4(Ipv4Addr::LOCALHOST);
    let IpHeader::V4(ip) = IpHeader::udp(gid, gid, 4).unwrap() else { panic!("both ends are IPv4") };
    let ip = IpHeader::V4(Ipv4Header { more_fragments: true, ..ip });
    let ethernet = Ethernet { destination: [2; 6], source: [4; 6], ethertype: Ethernet::IPV4 };
    let frame = Frame { ethernet, ip, udp: UdpHeader::roce(1, 4).unwrap(), payload: &[0; 4] };
    let mut bytes = [0; 46];
    frame.encode(&mut bytes).unwrap();
    assert!(matches!(Frame::parse(&bytes), Err(ParseError::Unexpected { field: "fragment", .. })));
}

#[test]
fn udp_and_ip_must_agree_where_the_datagram_ends() {
    let gid = Gid::from_ipv6(Ipv6Addr::LOCALHOST);
    let ethernet = Ethernet { destination: [2; 6], source: [4; 6], ethertype: Ethernet::IPV6 };
    let (ip, udp) = (IpHeader::udp(gid, gid, 20).unwrap(), UdpHeader::roce(1, 16).unwrap());
    let mut bytes = [0; 82];
    Frame { ethernet, ip, udp, payload: &[0; 20] }.encode(&mut bytes).unwrap();
    assert_eq!(Frame::parse(&bytes), Err(ParseError::BadLength { header: Header::Udp, said: 24, have: 28 }));
}

#[test]
fn a_grh_is_the_ip_header_in_40_bytes() {
    let v4 = Ipv4Header::udp(Ipv4Addr::new(1, 2, 3, 4), Ipv4Addr::new(5, 6, 7, 8), 100).unwrap();
    let grh = grh_bytes(&IpHeader::V4(v4));
    assert_eq!((&grh[..20], &grh[20..]), (&[0; 20][..], &v4.bytes()[..]));
    let v6 = Ipv6Header::udp(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED, 100).unwrap();
    assert_eq!(grh_bytes(&IpHeader::V6(v6)), v6.bytes());
}

#[test]
fn source_ports_are_symmetric_and_in_the_dynamic_range() {
    for (local, remote) in [(0x11, 0x12), (0xffffff, 0xfffffe), (1, 0x800000), (0, 5)] {
        let (local, remote) = (Qpn::new(local), Qpn::new(remote));
        assert_eq!(source_port(local, remote), source_port(remote, local));
        assert!(source_port(local, remote) >= 0xc000);
    }
    // 0x11 * 0x12 = 0x132 has nothing to fold.
    assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x12)), 0xc132);
    assert_eq!(source_port_of_flow_label(0x4_8003), 0xc000 | 0x0003 ^ 0x12);
}

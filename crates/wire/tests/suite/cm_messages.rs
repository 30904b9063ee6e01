//! The messages of connection management, byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::cm::*;
use wire::mad::MAD_LEN;
use wire::{EncodeError, Gid, Mtu, ParseError, Pkey, Psn, Qkey, Qpn, Timeout, Transport};

fn path(seed: u8) -> Path {
    Path {
        local_lid: 0xffff,
        remote_lid: 0xfffe,
        local_gid: Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, seed)),
        remote_gid: Gid::from_ipv4(Ipv4Addr::new(10, 0, 1, seed)),
        flow_label: 0xabcde,
        packet_rate: 0x2d,
        traffic_class: 0x68,
        hop_limit: 63,
        service_level: 0xa,
        subnet_local: true,
        local_ack_timeout: Timeout::new(19),
    }
}

fn req() -> Req {
    Req {
        local_comm_id: CommId::new(0x0102_0304),
        vendor_id: 0x15b3,
        service_id: ServiceId::ip(PortSpace::Tcp, 7174),
        local_ca_guid: 0x1122_3344_5566_7788,
        local_qkey: Qkey::new(0xa1a2_a3a4),
        local_qpn: Qpn::new(0x11),
        responder_resources: 4,
        local_eecn: 0x10203,
        initiator_depth: 5,
        remote_eecn: 0x40506,
        remote_cm_response_timeout: Timeout::new(20),
        service: TransportService::Extended,
        flow_control: true,
        starting_psn: Psn::new(0x0a_0b0c),
        local_cm_response_timeout: Timeout::new(21),
        retry_count: 7,
        pkey: Pkey::DEFAULT,
        path_mtu: Mtu::B1024.code(),
        rdc_exists: false,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        extended_transport: 1,
        primary: path(1),
        alternate: path(2),
        sap_supported: true,
        private_data: Data::from_slice(b"hello").unwrap(),
    }
}

#[test]
fn a_req_has_its_fields_where_the_specification_puts_them() {
    let mut out = [0xff; BODY_LEN];
    assert_eq!(req().encode(&mut out), Ok(BODY_LEN));
    assert_eq!(out[..12], [1, 2, 3, 4, 0, 0, 0x15, 0xb3, 0, 0, 0, 0]);
    assert_eq!(out[12..16], [0x01, 0x06, 0x1c, 0x06]);
    assert_eq!(out[24..28], [0; 4], "reserved");
    assert_eq!(out[28..32], [0xa1, 0xa2, 0xa3, 0xa4]);
    assert_eq!(out[32..36], [0, 0, 0x11, 4]);
    assert_eq!(out[36..40], [1, 2, 3, 5]);
    assert_eq!(out[40..44], [4, 5, 6, 20 << 3 | 3 << 1 | 1]);
    assert_eq!(out[44..48], [0x0a, 0x0b, 0x0c, 21 << 3 | 7]);
    assert_eq!(out[48..52], [0xff, 0xff, 3 << 4 | 6, 15 << 4 | 1 << 3 | 1]);
    assert_eq!(out[52..56], [0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(out[88..96], [0xab, 0xcd, 0xe0, 0x2d, 0x68, 63, 0xa8, 19 << 3]);
    assert_eq!(out[139], 19 << 3 | 4);
    assert_eq!(&out[140..146], b"hello\0");
    assert_eq!(Req::parse(&out), Ok(req()));
    assert_eq!((req().transport(), req().mtu()), (Some(Transport::Xrc), Some(Mtu::B1024)));
}

#[test]
fn a_rep_hides_the_vendor_between_its_numbers() {
    let rep = Rep {
        local_comm_id: CommId::new(1),
        remote_comm_id: CommId::new(2),
        local_qkey: Qkey::new(3),
        local_qpn: Qpn::new(0x040506),
        local_eecn: 0x070809,
        starting_psn: Psn::new(0x0a0b0c),
        vendor_id: 0xc1c2c3,
        responder_resources: 0x0d,
        initiator_depth: 0x0e,
        target_ack_delay: Timeout::new(15),
        failover: Failover::NotSupported,
        flow_control: true,
        rnr_retry_count: 7,
        srq: true,
        local_ca_guid: 0x10,
        private_data: Data::default(),
    };
    let mut out = [0xff; BODY_LEN];
    rep.encode(&mut out).unwrap();
    assert_eq!(out[12..24], [4, 5, 6, 0xc1, 7, 8, 9, 0xc2, 10, 11, 12, 0xc3]);
    assert_eq!(out[24..28], [0x0d, 0x0e, 15 << 3 | 1 << 1 | 1, 7 << 5 | 1 << 4]);
    assert_eq!(Rep::parse(&out), Ok(rep));
}

#[test]
fn a_lap_orders_its_path_differently() {
    let lap = Lap {
        local_comm_id: CommId::new(1),
        remote_comm_id: CommId::new(2),
        remote_qpn: Qpn::new(0x030405),
        remote_cm_response_timeout: Timeout::new(9),
        alternate: path(3),
        private_data: Data::default(),
    };
    let mut out = [0xff; BODY_LEN];
    lap.encode(&mut out).unwrap();
    assert_eq!(out[8..20], [0, 0, 0, 0, 3, 4, 5, 9 << 3, 0, 0, 0, 0]);
    assert_eq!(out[56..64], [0xab, 0xcd, 0xe0, 0x68, 63, 0x2d, 0xa8, 19 << 3]);
    assert_eq!(Lap::parse(&out), Ok(lap));
}

#[test]
fn codes_are_kept_whether_assigned_or_not() {
    for code in 0..=u16::MAX {
        assert_eq!(RejectReason::from_code(code).code(), code);
    }
    for code in 0..=u8::MAX {
        assert_eq!(ApStatus::from_code(code).code(), code);
        assert_eq!(SidrStatus::from_code(code).code(), code);
        assert_eq!(Failover::from_code(code).code(), code & 3);
    }
    assert_eq!(RejectReason::ALL.len(), 34);
    assert_eq!(RejectReason::from_code(8), RejectReason::InvalidServiceId);
    assert_eq!(RejectReason::from_code(34).to_string(), "unassigned code 34");
    assert_eq!(RejectReason::Consumer.to_string(), "rejected by the application");
}

#[test]
fn a_value_too_large_for_its_field_is_refused_by_name() {
    let error = Req { retry_count: 8, ..req() }.encode(&mut [0; BODY_LEN]).unwrap_err();
    assert_eq!(error.to_string(), "CM REQ retry count 0x8 does not fit 3 bits");
    let mut wide = req();
    wide.alternate.flow_label = 1 << 20;
    assert!(matches!(wide.encode(&mut [0; BODY_LEN]), Err(EncodeError::TooLarge { field: "flow label", .. })));
    assert_eq!(Data::<4>::from_slice(&[0; 5]), Err(EncodeError::DataTooLong { have: 5, room: 4 }));
}

#[test]
fn a_datagram_that_is_none_of_ours_is_refused() {
    let datagram = CmDatagram::new(7, req().into());
    let mut bytes = [0; MAD_LEN];
    assert_eq!(datagram.encode(&mut bytes), Ok(MAD_LEN));
    assert_eq!(bytes[..8], [1, 7, 2, 3, 0, 0, 0, 0]);
    assert_eq!(bytes[16..18], [0, 0x10]);
    assert_eq!(CmDatagram::parse(&bytes), Ok(datagram));
    for (at, field) in [(0, "base version"), (1, "class"), (2, "class version"), (3, "method")] {
        let mut other = bytes;
        other[at] ^= 0x80;
        let error = CmDatagram::parse(&other).unwrap_err();
        assert!(matches!(error, ParseError::Unexpected { field: wrong, .. } if wrong == field), "{error}");
    }
    bytes[17] = 0x1b;
    assert_eq!(CmDatagram::parse(&bytes), Err(ParseError::UnknownAttribute(0x1b)));
    bytes[17] = 0x10;
    let error = CmDatagram::parse(&bytes[..255]).unwrap_err();
    assert_eq!(error.to_string(), "CM REQ is cut short: it needs 232 bytes and 231 are there");
}

#[test]
fn every_attribute_finds_its_message() {
    for &kind in MessageKind::ALL {
        assert_eq!(MessageKind::from_attribute_id(kind.attribute_id()), Some(kind));
        let message = Message::parse(kind, &[0x5a; BODY_LEN]).unwrap();
        assert_eq!(message.kind(), kind);
        let mut out = [0; BODY_LEN];
        assert_eq!(message.encode(&mut out), Ok(BODY_LEN), "{kind}");
        assert_eq!(Message::parse(kind, &out), Ok(message));
    }
    assert_eq!(MessageKind::ALL.len(), 11);
}

#[test]
fn an_ip_service_is_a_port() {
    let id = ServiceId::ip(PortSpace::Udp, 0x1234);
    assert_eq!(id.to_string(), "0x0000000001111234");
    assert_eq!((id.port_space(), id.port()), (Some(PortSpace::Udp), Some(0x1234)));
    assert_eq!(ServiceId::new(0x0200_0000_0106_1234).port(), None);
}

#[test]
fn ip_cm_headers_hold_either_family() {
    let v4 = IpCm::new(0x1234, Ipv4Addr::new(10, 77, 0, 3).into(), Ipv4Addr::new(10, 77, 0, 2).into());
    let mut out = [0xff; 40];
    assert_eq!(v4.encode(&mut out), Ok(36));
    assert_eq!(out[..4], [0, 0x40, 0x12, 0x34]);
    assert_eq!(out[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77, 0, 3]);
    assert_eq!(IpCm::parse(&out), Ok((v4, &[0xff; 4][..])));
    let v6 = IpCm::new(1, Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into());
    v6.encode(&mut out).unwrap();
    assert_eq!(IpCm::parse(&out).unwrap().0, v6);
    out[1] = 0x50;
    assert!(matches!(IpCm::parse(&out), Err(ParseError::Unexpected { field: "IP version", value: 5, .. })));
    let mixed = IpCm::new(1, Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    mixed.encode(&mut out).unwrap();
    let (read, _) = IpCm::parse(&out).unwrap();
    assert_eq!(read.source, IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped()));
}

#[test]
fn data_shows_what_was_filled() {
    let data = Data::<8>::from_slice(&[1, 0, 0xab]).unwrap();
    assert_eq!(format!("{data:?}"), "Data(0100ab of 8)");
    assert_eq!(format!("{:?}", Data::<8>::default()), "Data( of 8)");
}

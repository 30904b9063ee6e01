//! What we encode, Wireshark decodes: a capture with every RC, UC and UD opcode and every CM message, read back through
//! tshark, an implementation that shares nothing with ours.

use std::path::Path;
use std::process::Command;

use wire::cm::{
    ApStatus, Apr, CmDatagram, CommId, Data, Drep, Dreq, Failover, IpCm, Lap, Message, MessageKind, Mra,
    Path as CmPath, PortSpace, ReceivedMessage, Rej, RejectReason, RejectedMessage, Rep, Req, Rtu, ServiceId, SidrRep,
    SidrReq, SidrStatus, TransportService,
};
use wire::mad::MAD_LEN;
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Ecn, Ethernet, Feth, Frame, Gid, HeaderSet, Headers, IpHeader, Key, Msn, Mtu,
    Opcode, Operation, Packet, Pkey, Placement, Psn, Qkey, Qpn, Reth, Selectivity, Srqn, Syndrome, Timeout, Transport,
    UdpHeader,
};

/// The headers around a UDP payload of this length.
fn outer(length: usize) -> (IpHeader, UdpHeader) {
    let (source, destination) = (Gid::from_ipv4([10, 0, 0, 1].into()), Gid::from_ipv4([10, 0, 0, 2].into()));
    (IpHeader::udp(source, destination, length).unwrap(), UdpHeader::roce(0xc001, length).unwrap())
}

/// A packet in its frame.
fn frame(headers: Headers, payload: &[u8]) -> Vec<u8> {
    let packet = Packet { headers, payload };
    let (ip, udp) = outer(packet.encoded_length());
    let mut roce = vec![0; packet.encoded_length()];
    packet.encode(&ip, &udp, &mut roce).unwrap();
    frame_of(&roce)
}

/// Any UDP payload in a frame.
fn frame_of(payload: &[u8]) -> Vec<u8> {
    let (ip, udp) = outer(payload.len());
    let ethernet = Ethernet { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], ethertype: Ethernet::IPV4 };
    let frame = Frame { ethernet, ip, udp, payload };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

fn headers(opcode: Opcode, psn: u32) -> Headers {
    let mut headers = Headers::new(opcode, Qpn::new(0x1234), Psn::new(psn));
    headers.xrc = Some(Srqn::new(0x55));
    headers.deth = Some(Deth { qkey: Qkey::new(0x11111111), src_qpn: Qpn::new(0x4321) });
    headers.feth = Some(Feth { placement: Placement::GLOBAL, selectivity: Selectivity::Range });
    headers.reth = Some(Reth { va: 0x7f00_0000_1000, rkey: Key::new(0x1234), len: 3000 });
    headers.atomic = Some(AtomicEth { va: 0x7f00_0000_2000, rkey: Key::new(9), swap_add: 10, compare: 11 });
    headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(7) });
    headers.atomic_ack = Some(AtomicAckEth { original: 12 });
    headers.immediate = Some(0xdead_beef);
    headers.invalidate = Some(Key::new(0x77));
    headers
}

/// Writes the frames to a capture file and returns the fields tshark finds, one row per frame; a field it does not find
/// is empty.
fn tshark(name: &str, fields: &[&str], frames: &[Vec<u8>]) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.pcap"));
    // The older format, which is simple: its number, version 2.4, two fields without a use, the most that is captured
    // of a frame, and the link type; then for each frame seconds, microseconds, and its length twice.
    let mut capture: Vec<u8> =
        [0xa1b2_c3d4, 0x0002_0004, 0, 0, 0xffff, 1].into_iter().flat_map(u32::to_be_bytes).collect();
    for (at, frame) in (0..).zip(frames) {
        let length = frame.len() as u32;
        capture.extend([at / 1000, at % 1000 * 1000, length, length].into_iter().flat_map(u32::to_be_bytes));
        capture.extend(frame);
    }
    std::fs::write(&path, capture).unwrap();

    let mut command = Command::new("tshark");
    command.args(["--disable-protocol", "rpcordma", "-T", "fields", "-E", "occurrence=f", "-r"]).arg(&path);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap_or_else(|error| panic!("tshark: {error}; apt-get install tshark"));
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<String>> = text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    assert_eq!(rows.len(), frames.len());
    rows
}

/// The fields that must be found in every packet, and must be empty when all is well.
const FRAME: [&str; 6] = [
    "frame.protocols",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "_ws.malformed",
    "_ws.expert",
];

fn assert_frame(row: &[String], opcode: Opcode, qpn: Qpn, psn: u32) {
    let [protocols, found, destination, sequence, malformed, expert, ..] = row else { panic!("{row:?}") };
    assert!(protocols.starts_with("eth:ethertype:ip:udp:infiniband"), "{opcode}: {protocols}");
    assert_eq!(*found, opcode.byte().to_string(), "{opcode}");
    assert_eq!(*destination, format!("{:#08x}", qpn.value()), "{opcode}");
    assert_eq!(*sequence, psn.to_string(), "{opcode}");
    assert_eq!((&malformed[..], &expert[..]), ("", ""), "{opcode}");
}

/// What tshark must say of each header in [`headers`].
const HEADERS: [(HeaderSet, &str, &str); 12] = [
    (HeaderSet::DETH, "infiniband.deth.q_key", "0x0000000011111111"),
    (HeaderSet::DETH, "infiniband.deth.srcqp", "0x00004321"),
    (HeaderSet::RETH, "infiniband.reth.va", "0x00007f0000001000"),
    (HeaderSet::RETH, "infiniband.reth.r_key", "0x00001234"),
    (HeaderSet::RETH, "infiniband.reth.dmalen", "3000"),
    (HeaderSet::ATOMIC_ETH, "infiniband.atomiceth.swapdt", "10"),
    (HeaderSet::ATOMIC_ETH, "infiniband.atomiceth.cmpdt", "11"),
    (HeaderSet::AETH, "infiniband.aeth.syndrome", "31"),
    (HeaderSet::AETH, "infiniband.aeth.msn", "7"),
    (HeaderSet::ATOMIC_ACK_ETH, "infiniband.atomicacketh.origremdt", "12"),
    (HeaderSet::IMMEDIATE, "infiniband.immdt", "deadbeef"),
    (HeaderSet::IETH, "infiniband.ieth", "00000077"),
];

/// Whether tshark 4.0 knows what follows the BTH. It does not know flush, atomic write and CNP, and of XRC only the
/// names.
fn known(opcode: Opcode) -> bool {
    matches!(opcode.transport(), Transport::Rc | Transport::Uc | Transport::Ud)
        && !matches!(opcode.operation(), Operation::Flush | Operation::AtomicWrite)
}

#[test]
fn every_opcode_is_recognised() {
    let payload = [0x5a; 1027];
    let frames: Vec<_> = (0..)
        .zip(Opcode::ALL)
        .map(|(psn, &opcode)| {
            let payload = if opcode.has_payload() { &payload[..] } else { &[] };
            frame(headers(opcode, psn), payload)
        })
        .collect();
    let fields: Vec<&str> = FRAME.into_iter().chain(HEADERS.iter().map(|(_, field, _)| *field)).collect();
    let rows = tshark("opcodes", &fields, &frames);
    for ((psn, &opcode), row) in (0..).zip(Opcode::ALL).zip(&rows) {
        assert_frame(row, opcode, Qpn::new(0x1234), psn);
        if !known(opcode) {
            continue;
        }
        for ((set, field, value), found) in HEADERS.iter().zip(&row[FRAME.len()..]) {
            // tshark files the address and key of an atomic under RETH.
            let expected = match (opcode.headers().contains(HeaderSet::ATOMIC_ETH), *field) {
                (true, "infiniband.reth.va") => "0x00007f0000002000",
                (true, "infiniband.reth.r_key") => "0x00000009",
                _ if opcode.headers().contains(*set) => value,
                _ => "",
            };
            assert_eq!(found.replace(':', ""), expected, "{opcode}: {field}");
        }
    }
}

#[test]
fn marks_and_notifications_are_recognised_in_both_families() {
    let cnp = Headers::cnp(Qpn::new(0x1234));
    let send = headers(Opcode::RcSendOnly, 0);
    let mut frames = Vec::new();
    let mut expected = Vec::new();
    for v6 in [false, true] {
        for (headers, payload, ecn) in [
            (send, &[0x5a; 16], Ecn::of_sent(Opcode::RcSendOnly)),
            (send, &[0x5a; 16], Ecn::Experienced),
            (cnp, &Headers::CNP_PAYLOAD, Ecn::of_sent(Opcode::Cnp)),
        ] {
            let gid = |last| {
                if v6 {
                    Gid::new([0xfd; 15].iter().copied().chain([last]).collect::<Vec<_>>().try_into().unwrap())
                } else {
                    Gid::from_ipv4([10, 0, 0, last].into())
                }
            };
            let packet = Packet { headers, payload };
            let mut ip = IpHeader::udp(gid(1), gid(2), packet.encoded_length()).unwrap();
            ip.set_traffic_class(ecn.in_class(0x68));
            let udp = UdpHeader::roce(0xc001, packet.encoded_length()).unwrap();
            let mut roce = vec![0; packet.encoded_length()];
            packet.encode(&ip, &udp, &mut roce).unwrap();
            let ethernet =
                Ethernet { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], ethertype: ip.ethertype() };
            let frame = Frame { ethernet, ip, udp, payload: &roce };
            let mut bytes = vec![0; frame.encoded_length()];
            frame.encode(&mut bytes).unwrap();
            frames.push(bytes);
            let ecn = (ecn as u8).to_string();
            let (in_v4, in_v6) = if v6 { (String::new(), ecn) } else { (ecn, String::new()) };
            expected.push([headers.bth.opcode.byte().to_string(), in_v4, in_v6, String::new()]);
        }
    }
    let fields = ["infiniband.bth.opcode", "ip.dsfield.ecn", "ipv6.tclass.ecn", "_ws.malformed"];
    let rows = tshark("marks", &[&fields[..], &["udp.payload"]].concat(), &frames);
    for (row, expected) in rows.iter().zip(expected) {
        assert_eq!(row[..fields.len()], expected);
        if row[0] == "129" {
            // Opcode, P_Key, BECN, the queue pair, sequence number 0, sixteen bytes of nothing; then the ICRC.
            let bytes = row[fields.len()].replace(':', "");
            assert_eq!((bytes.len(), &bytes[..56]), (64, &*format!("8100ffff40001234{}", "0".repeat(40))));
        }
    }
}

fn data<const N: usize>() -> Data<N> {
    Data::from_slice(&[0xd0, 0xd1]).unwrap()
}

/// One message of each kind; the numbers are all different, so that none can stand for another.
fn messages() -> [Message; 11] {
    let (local_comm_id, remote_comm_id) = (CommId::new(0x0a0b0c0d), CommId::new(0x1a1b1c1d));
    let path = CmPath {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: Gid::from_ipv4([10, 0, 0, 1].into()),
        remote_gid: Gid::from_ipv4([10, 0, 0, 2].into()),
        hop_limit: 64,
        local_ack_timeout: Timeout::new(19),
        ..CmPath::default()
    };
    let mut ip_cm = [0; IpCm::LEN];
    IpCm::new(0x8123, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()).encode(&mut ip_cm).unwrap();
    [
        Message::Req(Req {
            local_comm_id,
            vendor_id: 0,
            service_id: ServiceId::ip(PortSpace::Tcp, 7174),
            local_ca_guid: 0x1122_3344_5566_7788,
            local_qkey: Qkey::new(0),
            local_qpn: Qpn::new(0x112233),
            responder_resources: 5,
            local_eecn: 0,
            initiator_depth: 6,
            remote_eecn: 0,
            remote_cm_response_timeout: Timeout::new(20),
            service: TransportService::UnreliableConnection,
            flow_control: true,
            starting_psn: Psn::new(0x445566),
            local_cm_response_timeout: Timeout::new(21),
            retry_count: 7,
            pkey: Pkey::DEFAULT,
            path_mtu: Mtu::B1024.code(),
            rdc_exists: false,
            rnr_retry_count: 4,
            max_cm_retries: 15,
            srq: true,
            extended_transport: 0,
            primary: path,
            alternate: CmPath::default(),
            sap_supported: false,
            private_data: Data::from_slice(&ip_cm).unwrap(),
        }),
        Message::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            received: ReceivedMessage::Req,
            service_timeout: Timeout::new(22),
            private_data: data(),
        }),
        Message::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            rejected: RejectedMessage::Rep,
            info_length: 1,
            reason: RejectReason::Consumer,
            info: data(),
            private_data: data(),
        }),
        Message::Rep(Rep {
            local_comm_id,
            remote_comm_id,
            local_qkey: Qkey::new(0),
            local_qpn: Qpn::new(0x332211),
            local_eecn: 0,
            starting_psn: Psn::new(0x665544),
            vendor_id: 0,
            responder_resources: 8,
            initiator_depth: 9,
            target_ack_delay: Timeout::new(15),
            failover: Failover::NotSupported,
            flow_control: true,
            rnr_retry_count: 3,
            srq: true,
            local_ca_guid: 0x99aa_bbcc_ddee_ff00,
            private_data: data(),
        }),
        Message::Rtu(Rtu { local_comm_id, remote_comm_id, private_data: data() }),
        Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(0x112233), private_data: data() }),
        Message::Drep(Drep { local_comm_id, remote_comm_id, private_data: data() }),
        Message::SidrReq(SidrReq {
            request_id: local_comm_id,
            pkey: Pkey::DEFAULT,
            service_id: ServiceId::ip(PortSpace::Udp, 7174),
            private_data: Data::from_slice(&ip_cm).unwrap(),
        }),
        Message::SidrRep(SidrRep {
            request_id: local_comm_id,
            status: SidrStatus::Valid,
            info_length: 0,
            qpn: Qpn::new(0x112233),
            service_id: ServiceId::ip(PortSpace::Udp, 7174),
            qkey: Qkey::new(0x01234567),
            info: data(),
            private_data: data(),
        }),
        Message::Lap(Lap {
            local_comm_id,
            remote_comm_id,
            remote_qpn: Qpn::new(0x112233),
            remote_cm_response_timeout: Timeout::new(20),
            alternate: path,
            private_data: data(),
        }),
        Message::Apr(Apr {
            local_comm_id,
            remote_comm_id,
            info_length: 0,
            status: ApStatus::Loaded,
            info: data(),
            private_data: data(),
        }),
    ]
}

/// What tshark must say of the messages it takes apart: field and value.
#[rustfmt::skip]
const MESSAGES: [(MessageKind, &str, &str); 45] = [
    (MessageKind::Req, "infiniband.cm.req", "0x0a0b0c0d"),
    (MessageKind::Req, "infiniband.cm.req.serviceid", "0x0000000001061c06"),
    (MessageKind::Req, "infiniband.cm.req.localcaguid", "0x1122334455667788"),
    (MessageKind::Req, "infiniband.cm.req.localqpn", "0x112233"),
    (MessageKind::Req, "infiniband.cm.req.responderres", "0x05"),
    (MessageKind::Req, "infiniband.cm.req.initdepth", "0x06"),
    (MessageKind::Req, "infiniband.cm.req.remoteresptout", "0x14"),
    (MessageKind::Req, "infiniband.cm.req.transpsvctype", "0x01"),
    (MessageKind::Req, "infiniband.cm.req.e2eflowctrl", "0x01"),
    (MessageKind::Req, "infiniband.cm.req.startpsn", "0x445566"),
    (MessageKind::Req, "infiniband.cm.req.localresptout", "0x15"),
    (MessageKind::Req, "infiniband.cm.req.retrcount", "0x07"),
    (MessageKind::Req, "infiniband.cm.req.pkey", "0xffff"),
    (MessageKind::Req, "infiniband.cm.req.pppmtu", "0x03"),
    (MessageKind::Req, "infiniband.cm.req.rnrretrcount", "0x04"),
    (MessageKind::Req, "infiniband.cm.req.maxcmretr", "0x0f"),
    (MessageKind::Req, "infiniband.cm.req.srq", "0x01"),
    (MessageKind::Req, "infiniband.cm.req.prim_locallid", "65535"),
    (MessageKind::Req, "infiniband.cm.req.prim_localgid_ipv4", "10.0.0.1"),
    (MessageKind::Req, "infiniband.cm.req.prim_remotegid_ipv4", "10.0.0.2"),
    (MessageKind::Req, "infiniband.cm.req.prim_hoplim", "0x40"),
    (MessageKind::Req, "infiniband.cm.req.prim_localacktout", "0x13"),
    (MessageKind::Req, "infiniband.cm.req.ip_cm.sport", "0x8123"),
    (MessageKind::Req, "infiniband.cm.req.ip_cm.sip4", "10.0.0.1"),
    (MessageKind::Req, "infiniband.cm.req.ip_cm.dip4", "10.0.0.2"),
    (MessageKind::Rej, "infiniband.cm.rej.localcommid", "0x0a0b0c0d"),
    (MessageKind::Rej, "infiniband.cm.rej.remotecommid", "0x1a1b1c1d"),
    (MessageKind::Rej, "infiniband.cm.rej.msgrej", "0x01"),
    (MessageKind::Rej, "infiniband.cm.rej.rejinfolen", "0x01"),
    (MessageKind::Rej, "infiniband.cm.rej.reason", "0x001c"),
    (MessageKind::Rep, "infiniband.cm.rep", "0x0a0b0c0d"),
    (MessageKind::Rep, "infiniband.cm.rep.remotecommid", "0x1a1b1c1d"),
    (MessageKind::Rep, "infiniband.cm.rep.localqpn", "0x332211"),
    (MessageKind::Rep, "infiniband.cm.rep.startpsn", "0x665544"),
    (MessageKind::Rep, "infiniband.cm.rep.respres", "0x08"),
    (MessageKind::Rep, "infiniband.cm.rep.initdepth", "0x09"),
    (MessageKind::Rep, "infiniband.cm.rep.tgtackdelay", "0x0f"),
    (MessageKind::Rep, "infiniband.cm.rep.failoveracc", "0x01"),
    (MessageKind::Rep, "infiniband.cm.rep.rnrretrcount", "0x03"),
    (MessageKind::Rep, "infiniband.cm.rep.srq", "0x01"),
    (MessageKind::Rtu, "infiniband.cm.rtu.localcommid", "0x0a0b0c0d"),
    (MessageKind::Rtu, "infiniband.cm.rtu.remotecommid", "0x1a1b1c1d"),
    (MessageKind::Dreq, "infiniband.cm.dreq.localcommid", "0x0a0b0c0d"),
    (MessageKind::Dreq, "infiniband.cm.req.remoteqpneecn", "0x112233"),
    (MessageKind::Drep, "infiniband.cm.drsp.remotecommid", "0x1a1b1c1d"),
];

/// The name tshark gives each message.
fn name(kind: MessageKind) -> &'static str {
    match kind {
        MessageKind::Req => "CM: ConnectRequest",
        MessageKind::Mra => "CM: MsgRcptAck",
        MessageKind::Rej => "CM: ConnectReject",
        MessageKind::Rep => "CM: ConnectReply",
        MessageKind::Rtu => "CM: ReadyToUse",
        MessageKind::Dreq => "CM: DisconnectRequest",
        MessageKind::Drep => "CM: DisconnectReply",
        MessageKind::SidrReq => "CM: ServiceIDResReq",
        MessageKind::SidrRep => "CM: ServiceIDResReqResp",
        MessageKind::Lap => "CM: LoadAlternatePath",
        MessageKind::Apr => "CM: AlternatePathResponse",
    }
}

#[test]
fn every_cm_message_is_recognised() {
    let messages = messages();
    let kinds: Vec<MessageKind> = messages.iter().map(Message::kind).collect();
    assert_eq!(kinds, MessageKind::ALL, "one message of each kind");
    let frames: Vec<_> = (0..)
        .zip(messages)
        .map(|(psn, message)| {
            let mut bytes = [0; MAD_LEN];
            CmDatagram::new(0x1234, message).encode(&mut bytes).unwrap();
            let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(psn));
            headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
            frame(headers, &bytes)
        })
        .collect();
    let mut fields = FRAME.to_vec();
    fields.extend(["infiniband.mad.attributeid", "infiniband.mad.transactionid", "_ws.col.Info"]);
    let common = fields.len();
    fields.extend(MESSAGES.iter().map(|(_, field, _)| *field));
    let rows = tshark("messages", &fields, &frames);
    for ((psn, &kind), row) in (0..).zip(&kinds).zip(&rows) {
        assert_frame(row, Opcode::UdSendOnly, Qpn::GSI, psn);
        let attribute = format!("{:#06x}", kind.attribute_id());
        assert_eq!(row[FRAME.len()..common], [attribute, "0x0000000000001234".into(), name(kind).into()], "{kind}");
        for ((of, field, value), found) in MESSAGES.iter().zip(&row[common..]) {
            assert_eq!(found, if *of == kind { value } else { "" }, "{kind}: {field}");
        }
    }
}

#[test]
fn a_cut_packet_is_called_malformed() {
    // A write that ends inside its RETH.
    let mut roce = [0; 20];
    roce[0] = Opcode::RcWriteOnly.byte();
    let rows = tshark("malformed", &FRAME, &[frame_of(&roce)]);
    let [_, _, _, _, malformed, _] = &rows[0][..] else { panic!("{rows:?}") };
    assert_ne!(malformed, "", "or the other tests prove nothing");
}

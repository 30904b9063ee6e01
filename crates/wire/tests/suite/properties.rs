//! What holds for any bytes and any values: nothing panics, what is read can be written and reads the same again, and
//! only reserved bits are lost on the way.

use crate::harness;
use proptest::prelude::*;
use wire::cm::{BODY_LEN, Message, MessageKind};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Gid, HeaderSet, Headers, IpHeader, Key, Msn, Opcode, Packet, Pkey,
    Placement, Psn, Qkey, Qpn, Reth, Selectivity, Srqn, Syndrome, UdpHeader,
};

fn opcode() -> impl Strategy<Value = Opcode> {
    prop::sample::select(Opcode::ALL)
}

/// Headers with every field at random, of which the opcode's are kept.
fn headers() -> impl Strategy<Value = Headers> {
    let bth = (any::<[bool; 5]>(), any::<u16>(), any::<u32>(), any::<u32>());
    let numbers = (any::<[u64; 5]>(), any::<[u32; 8]>(), any::<[u8; 3]>());
    (opcode(), bth, numbers).prop_map(|(opcode, (flags, pkey, qpn, psn), (wide, words, small))| {
        let mut headers = Headers::new(opcode, Qpn::new(qpn), Psn::new(psn));
        headers.bth.pkey = Pkey::new(pkey);
        let [solicited, mig_req, fecn, becn, ack_req] = flags;
        headers.bth = wire::Bth { solicited, mig_req, fecn, becn, ack_req, ..headers.bth };
        let feth =
            Feth { placement: Placement::from_bits_truncate(small[0]), selectivity: Selectivity::from_bits(small[1]) };
        let set = opcode.headers();
        let wanted = |header| set.contains(header);
        headers.xrc = wanted(HeaderSet::XRCETH).then(|| Srqn::new(words[0]));
        headers.deth = wanted(HeaderSet::DETH).then(|| Deth { qkey: Qkey::new(words[1]), src_qpn: Qpn::new(words[2]) });
        headers.feth = wanted(HeaderSet::FETH).then_some(feth);
        headers.reth = wanted(HeaderSet::RETH).then(|| Reth { va: wide[0], rkey: Key::new(words[3]), len: words[4] });
        headers.atomic = wanted(HeaderSet::ATOMIC_ETH).then(|| AtomicEth {
            va: wide[1],
            rkey: Key::new(words[5]),
            swap_add: wide[2],
            compare: wide[3],
        });
        headers.aeth =
            wanted(HeaderSet::AETH).then(|| Aeth { syndrome: Syndrome::from_byte(small[2]), msn: Msn::new(words[6]) });
        headers.atomic_ack = wanted(HeaderSet::ATOMIC_ACK_ETH).then(|| AtomicAckEth { original: wide[4] });
        headers.immediate = wanted(HeaderSet::IMMEDIATE).then(|| words[7]);
        headers.invalidate = wanted(HeaderSet::IETH).then(|| Key::new(words[7]));
        headers
    })
}

/// Which bits of `opcode`'s headers mean something: those that survive.
fn meaningful(opcode: Opcode) -> Vec<u8> {
    let mut ones = vec![0xff; opcode.header_length()];
    ones[0] = opcode.byte();
    ones[1] &= 0xf0; // a version other than 0 is refused
    let (headers, _) = Headers::parse(&ones).unwrap();
    let mut mask = vec![0; ones.len()];
    headers.encode(&mut mask).unwrap();
    mask[0] = 0xff;
    mask
}

fn body(kind: MessageKind, bytes: &[u8]) -> [u8; BODY_LEN] {
    let mut out = [0xee; BODY_LEN];
    let message = Message::parse(kind, bytes).unwrap();
    assert_eq!(message.encode(&mut out), Ok(BODY_LEN));
    assert_eq!(Message::parse(kind, &out), Ok(message));
    out
}

/// How many bits of the message are reserved, by its table in the specification.
fn reserved_bits(kind: MessageKind) -> u32 {
    match kind {
        // A byte before the vendor id, a word, and in the paths 6 + 3 + 3 and 6 + 3 + 2.
        MessageKind::Req => 8 + 32 + 12 + 11,
        MessageKind::Mra => 6 + 3,
        MessageKind::Rej => 6 + 1,
        MessageKind::Rep => 4,
        MessageKind::Rtu | MessageKind::Drep => 0,
        MessageKind::Dreq => 8,
        MessageKind::SidrReq => 16,
        MessageKind::SidrRep => 16 + 8,
        MessageKind::Lap => 32 + 3 + 32 + 4 + 2 + 3 + 3,
        MessageKind::Apr => 16,
    }
}

#[test]
fn each_opcode_loses_its_reserved_bits_and_no_other() {
    for &opcode in Opcode::ALL {
        // Six beside FECN and BECN, seven beside the acknowledge request, and the version, which must be 0.
        let bth = 6 + 7 + 4;
        let extended = [(HeaderSet::XRCETH, 8), (HeaderSet::DETH, 8), (HeaderSet::FETH, 26)];
        let reserved: u32 =
            extended.iter().filter(|(set, _)| opcode.headers().contains(*set)).map(|(_, bits)| bits).sum();
        let lost: u32 = meaningful(opcode).iter().map(|byte| byte.count_zeros()).sum();
        assert_eq!(lost, bth + reserved, "{opcode}");
    }
}

#[test]
fn each_message_loses_its_reserved_bits_and_no_other() {
    for &kind in MessageKind::ALL {
        let lost: u32 = body(kind, &[0xff; BODY_LEN]).iter().map(|byte| byte.count_zeros()).sum();
        assert_eq!(lost, reserved_bits(kind), "{kind}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn headers_read_back_as_written(headers in headers()) {
        let mut out = [0xee; Headers::MAX_LEN];
        let length = headers.encode(&mut out).unwrap();
        prop_assert_eq!(length, headers.len());
        prop_assert_eq!(Headers::parse(&out[..length]), Ok((headers, &[][..])));
    }

    #[test]
    fn packets_read_back_as_written(headers in headers(), payload in prop::collection::vec(any::<u8>(), 0..300), v6: bool) {
        let mut headers = headers;
        let payload = if headers.bth.opcode.has_payload() { &payload[..] } else { &[] };
        headers.bth.pad = Packet::pad(payload.len());
        let packet = Packet { headers, payload };
        let gid = if v6 { Gid::new([7; 16]) } else { Gid::from_ipv4([10, 0, 0, 1].into()) };
        let length = packet.encoded_length();
        let ip = IpHeader::udp(gid, gid, length).unwrap();
        let udp = UdpHeader::roce(0xc000, length).unwrap();
        let mut out = [0xee; 500];
        prop_assert_eq!(packet.encode(&ip, &udp, &mut out), Ok(length));
        prop_assert_eq!(Packet::parse_checked(&ip, &udp, &out[..length]), Ok(packet));
        prop_assert!(out[length..].iter().all(|&byte| byte == 0xee), "nothing is written behind the packet");
    }

    #[test]
    fn only_reserved_bits_of_headers_are_lost(opcode in opcode(), bytes: [u8; Headers::MAX_LEN]) {
        let length = opcode.header_length();
        let mut bytes = bytes[..length].to_vec();
        bytes[0] = opcode.byte();
        bytes[1] &= 0xf0;
        let (headers, _) = Headers::parse(&bytes).unwrap();
        let mut out = vec![0xee; length];
        headers.encode(&mut out).unwrap();
        let expected: Vec<u8> = bytes.iter().zip(meaningful(opcode)).map(|(byte, mask)| byte & mask).collect();
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn only_reserved_bits_of_messages_are_lost(kind in prop::sample::select(MessageKind::ALL), bytes in prop::collection::vec(any::<u8>(), BODY_LEN)) {
        let mask = body(kind, &[0xff; BODY_LEN]);
        let expected: Vec<u8> = bytes.iter().zip(mask).map(|(byte, mask)| byte & mask).collect();
        prop_assert_eq!(body(kind, &bytes).to_vec(), expected);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        harness::parse(&bytes);
        harness::round_trip(&bytes);
    }

    #[test]
    fn bytes_that_begin_well_are_parsed_or_refused(opcode in opcode(), rest in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = vec![opcode.byte(), 0, 0xff, 0xff];
        bytes.extend(rest);
        harness::parse(&bytes);
        harness::round_trip(&bytes);
    }
}

//! Transport headers, byte by byte.

use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EncodeError, Feth, Header, HeaderSet, Headers, Key, Msn, Opcode,
    ParseError, Placement, Psn, Qkey, Qpn, Reth, Selectivity, Srqn, Syndrome,
};

fn filled(opcode: Opcode) -> Headers {
    let mut headers = Headers::new(opcode, Qpn::new(0x11), Psn::new(5));
    headers.xrc = Some(Srqn::new(0x123456));
    headers.deth = Some(Deth { qkey: Qkey::new(0x11111111), src_qpn: Qpn::new(0x12) });
    headers.feth = Some(Feth { placement: Placement::PERSISTENT, selectivity: Selectivity::Region });
    headers.reth = Some(Reth { va: 0x7f00_0000_1000, rkey: Key::new(0x1234), len: 8192 });
    headers.atomic = Some(AtomicEth { va: 8, rkey: Key::new(9), swap_add: 10, compare: 11 });
    headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(7) });
    headers.atomic_ack = Some(AtomicAckEth { original: 12 });
    headers.immediate = Some(0xdead_beef);
    headers.invalidate = Some(Key::new(0x77));
    headers
}

#[test]
fn a_bth_has_its_bits_where_the_specification_puts_them() {
    let mut bth = Bth::new(Opcode::RcSendOnly, Qpn::new(0x0a0b0c), Psn::new(0x0d0e0f));
    bth.solicited = true;
    bth.pad = 3;
    bth.becn = true;
    bth.ack_req = true;
    let mut out = [0; 12];
    assert_eq!(bth.encode(&mut out), Ok(12));
    assert_eq!(out, [0x04, 0xb0, 0xff, 0xff, 0x40, 0x0a, 0x0b, 0x0c, 0x80, 0x0d, 0x0e, 0x0f]);
}

#[test]
fn every_opcode_encodes_what_it_demands_and_reads_it_back() {
    for &opcode in Opcode::ALL {
        let given = filled(opcode);
        let mut out = [0xaa; Headers::MAX_LEN];
        let length = given.encode(&mut out).unwrap();
        assert_eq!(length, given.len(), "{opcode}");
        let (read, rest) = Headers::parse(&out[..length]).unwrap();
        assert!(rest.is_empty(), "{opcode}");
        assert_eq!(read.bth, given.bth);
        // Every header the reader found is one the opcode demands, and holds what was written.
        let set = opcode.headers();
        assert_eq!(read.xrc, given.xrc.filter(|_| set.contains(HeaderSet::XRCETH)));
        assert_eq!(read.deth, given.deth.filter(|_| set.contains(HeaderSet::DETH)));
        assert_eq!(read.feth, given.feth.filter(|_| set.contains(HeaderSet::FETH)));
        assert_eq!(read.reth, given.reth.filter(|_| set.contains(HeaderSet::RETH)));
        assert_eq!(read.atomic, given.atomic.filter(|_| set.contains(HeaderSet::ATOMIC_ETH)));
        assert_eq!(read.aeth, given.aeth.filter(|_| set.contains(HeaderSet::AETH)));
        assert_eq!(read.atomic_ack, given.atomic_ack.filter(|_| set.contains(HeaderSet::ATOMIC_ACK_ETH)));
        assert_eq!(read.immediate, given.immediate.filter(|_| set.contains(HeaderSet::IMMEDIATE)));
        assert_eq!(read.invalidate, given.invalidate.filter(|_| set.contains(HeaderSet::IETH)));
    }
}

#[test]
fn a_cut_packet_names_the_header_it_ends_in() {
    for &opcode in Opcode::ALL {
        let mut out = [0; Headers::MAX_LEN];
        let length = filled(opcode).encode(&mut out).unwrap();
        for cut in 0..length {
            let error = Headers::parse(&out[..cut]).unwrap_err();
            assert!(
                matches!(error, ParseError::Truncated { need, have, .. } if have < need),
                "{opcode} {cut}: {error}"
            );
        }
        assert_eq!(
            filled(opcode).encode(&mut out[..length - 1]),
            Err(EncodeError::NoRoom { header: Header::Bth, need: length, have: length - 1 })
        );
    }
    let error = Headers::parse(&[0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap_err();
    assert_eq!(error.to_string(), "RETH is cut short: it needs 16 bytes and 3 are there");
}

#[test]
fn a_missing_header_is_refused_by_name() {
    let headers = Headers::new(Opcode::XrcFlush, Qpn::new(1), Psn::new(0));
    let error = headers.encode(&mut [0; Headers::MAX_LEN]).unwrap_err();
    assert_eq!(error.to_string(), "XRC FLUSH needs a XRCETH and none was given");
    for &opcode in Opcode::ALL {
        let bare = Headers::new(opcode, Qpn::new(1), Psn::new(0));
        let demands_none = opcode.headers() - HeaderSet::PAYLOAD == HeaderSet::empty();
        assert_eq!(bare.encode(&mut [0; Headers::MAX_LEN]).is_ok(), demands_none, "{opcode}");
    }
}

#[test]
fn bad_bth_fields_are_refused() {
    let mut bytes = [0; 12];
    bytes[0] = 0x15;
    assert_eq!(Headers::parse(&bytes), Err(ParseError::UnknownOpcode(0x15)));
    bytes[0] = 0x04;
    bytes[1] = 0x01;
    assert_eq!(Headers::parse(&bytes), Err(ParseError::BadVersion(1)));
    let mut headers = filled(Opcode::RcSendOnly);
    headers.bth.pad = 4;
    let error = headers.encode(&mut [0; 12]).unwrap_err();
    assert_eq!(error.to_string(), "BTH pad count 0x4 does not fit 2 bits");
}

#[test]
fn a_congestion_notification_is_a_bth_with_becn() {
    let mut out = [0; 12];
    assert_eq!(Headers::cnp(Qpn::new(0x11)).encode(&mut out), Ok(12));
    assert_eq!(out, [0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x11, 0, 0, 0, 0]);
}

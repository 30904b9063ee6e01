use super::*;
use wire::{IpHeader, UdpHeader};

/// From the BTH to the end of the payload.
const LENGTH: usize = 4124;

/// The sender's port.
const PORT: u16 = 49_152;

const HERE: [u8; 4] = [192, 0, 2, 9];
const PEER: [u8; 4] = [192, 0, 2, 1];

fn header(source: [u8; 4], port: u16) -> (Ipv4Header, UdpHeader) {
    let length = LENGTH + Icrc::LEN;
    let ip = Ipv4Header::udp(source.into(), HERE.into(), length).expect("it fits");
    (Ipv4Header { dont_fragment: true, ..ip }, UdpHeader::roce(port, length).expect("it fits"))
}

/// A packet as a peer sends it with that identification, and without "don't fragment" if it should.
fn packet(ip: &Ipv4Header, udp: &UdpHeader, identification: u16) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..LENGTH).map(|at| (at * 7) as u8).collect();
    let ip = Ipv4Header { identification, ..*ip };
    let icrc = wire::icrc(&IpHeader::V4(ip), udp, &bytes);
    bytes.extend_from_slice(&icrc);
    bytes
}

/// What becomes of a packet that was sent with this identification, after `damage`.
fn arrive(
    known: &mut Identifications,
    (source, port): ([u8; 4], u16),
    identification: u16,
    index: u16,
    damage: impl FnOnce(&mut [u8]),
) -> Verdict {
    let (mut ip, udp) = header(source, port);
    let outer = Outer::new(&IpHeader::V4(ip), &udp);
    let mut bytes = packet(&ip, &udp, identification);
    damage(&mut bytes);
    if index == 0 {
        known.begin_datagram();
    }
    let before = bytes.clone();
    let verdict = known.judge(&outer, &mut ip, port, &mut bytes, index, true);
    assert!(bytes == before, "it is as it was");
    if matches!(verdict, Verdict::Intact) {
        assert_eq!(ip.identification, identification);
    }
    verdict
}

/// What becomes of undamaged packets with these identifications, one packet to a datagram.
fn each(known: &mut Identifications, from: ([u8; 4], u16), identifications: &[u16]) -> Vec<Verdict> {
    identifications.iter().map(|identification| arrive(known, from, *identification, 0, |_| ())).collect()
}

use Verdict::{Damaged, Intact, Proves, Unproven};

/// The byte of a packet, from the BTH on, that has this place among all bytes that the ICRC covers.
const fn covered(place: usize) -> usize {
    place - 8 - Ipv4Header::LEN - UdpHeader::LEN
}

#[test]
fn the_two_bits_that_look_like_another_identification_are_found_however_often_they_flip() {
    for (byte, bit) in [(covered(209), 0x08), (covered(1870), 0x40)] {
        let (ip, udp) = header(PEER, PORT);
        let mut treacherous = packet(&ip, &udp, 0);
        treacherous[byte] ^= bit;
        let solved = wire::solve_identification(&ip, &udp, &treacherous).expect("this one does");
        assert!(!solved.dont_fragment, "the flag gives it away");
        // Of a peer of our kind, of one that counts, and of one that is not known yet; also if nothing else ever comes.
        for first in [0, 700] {
            let mut known = Identifications::default();
            for at in 0..20 {
                let identification = if first == 0 { 0 } else { first + at };
                let verdict = arrive(&mut known, (PEER, PORT), identification, 0, |bytes| bytes[byte] ^= bit);
                assert_eq!(verdict, Damaged);
            }
            each(&mut known, (PEER, PORT), &[first, first, first]);
            assert_eq!(arrive(&mut known, (PEER, PORT), first, 0, |bytes| bytes[byte] ^= bit), Damaged);
        }
    }
}

#[test]
fn a_sender_of_our_kind_has_zero_or_the_place_in_the_datagram() {
    let mut known = Identifications::default();
    assert_eq!(each(&mut known, (PEER, PORT), &[0, 0, 0]), [Intact; 3]);
    for index in 0..15 {
        assert_eq!(arrive(&mut known, (PEER, PORT), index, index, |_| ()), Intact);
    }
    // Datagrams of one packet each that were merged.
    for index in 0..15 {
        assert_eq!(arrive(&mut known, (PEER, PORT), 0, index, |_| ()), Intact);
    }
    // One that was lost, or damaged, in the middle.
    for index in (0..15).filter(|index| *index != 4) {
        assert_eq!(arrive(&mut known, (PEER, PORT), index, index, |_| ()), Intact);
    }
    assert!(known.runs.is_empty() && known.counters.is_empty() && !known.has_questions());
}

#[test]
fn which_of_two_a_datagram_has_is_settled_by_its_second_packet() {
    let mut known = Identifications::default();
    for index in 0..3 {
        assert_eq!(arrive(&mut known, (PEER, PORT), index, index, |_| ()), Intact);
    }
    // Two bits of a packet that look like the difference between 13 and 0.
    let two = |bytes: &mut [u8]| {
        bytes[covered(2101)] ^= 1 << 5;
        bytes[covered(4102)] ^= 1 << 6;
    };
    assert_eq!(arrive(&mut known, (PEER, PORT), 13, 13, two), Unproven, "0 would fit, and is not what comes next");
    let mut known = Identifications::default();
    for index in 0..3 {
        assert_eq!(arrive(&mut known, (PEER, PORT), 0, index, |_| ()), Intact);
    }
    assert_eq!(arrive(&mut known, (PEER, PORT), 0, 13, two), Unproven, "13 would fit");
}

#[test]
fn datagrams_that_were_cut_and_merged_otherwise_are_understood_after_three_packets() {
    // The end of one, the beginning of another.
    let mut known = Identifications::default();
    let sent: Vec<u16> = (9..15).chain(0..6).collect();
    let verdicts: Vec<_> =
        (0..).zip(&sent).map(|(at, sent)| arrive(&mut known, (PEER, PORT), *sent, at, |_| ())).collect();
    assert_eq!(verdicts[..6], [Unproven, Unproven, Proves { first: 9 }, Intact, Intact, Intact]);
    assert_eq!(verdicts[6..], [Unproven, Unproven, Proves { first: 0 }, Intact, Intact, Intact]);
    assert!(known.counters.is_empty() && !known.has_questions());
}

#[test]
fn a_counter_is_proven_by_three_that_agree_and_then_followed() {
    let mut known = Identifications::default();
    let verdicts = each(&mut known, (PEER, PORT), &[700, 701, 703, 704, 705, 713]);
    assert_eq!(verdicts, [Unproven, Unproven, Proves { first: 700 }, Intact, Intact, Intact]);
    // All ports of a sender may share a counter, and each may have its own.
    assert_eq!(each(&mut known, (PEER, PORT + 1), &[714, 715]), [Intact; 2]);
    let own = [Unproven, Unproven, Proves { first: 30_000 }, Intact];
    assert_eq!(each(&mut known, (PEER, PORT + 2), &[30_000, 30_001, 30_002, 30_003]), own);
    assert_eq!(each(&mut known, (PEER, PORT), &[716, 717]), [Intact; 2]);
    assert_eq!(each(&mut known, (PEER, PORT + 2), &[30_004]), [Intact]);
    // It goes round, and does not go back.
    let mut known = Identifications::default();
    let round = [65_533, 65_534, 65_535, 0, 1, 2];
    assert_eq!(each(&mut known, (PEER, PORT), &round)[2..], [Proves { first: 65_533 }, Intact, Intact, Intact]);
    assert_eq!(each(&mut known, (PEER, PORT), &[65_000]), [Unproven]);
}

#[test]
fn a_sender_whose_packets_mostly_go_elsewhere_gets_a_wider_window() {
    let mut known = Identifications::default();
    let far: Vec<u16> = (0..12).map(|at| 1000 + at * 900).collect();
    assert_eq!(each(&mut known, (PEER, PORT), &far)[2..], [[Proves { first: 1000 }].as_slice(), &[Intact; 9]].concat());
    let counter = known.hot.and_then(|hot| hot.counter).expect("it counts");
    assert_eq!(counter.window, 1800);
    let close: Vec<u16> = (1..200).map(|at| far[11] + at).collect();
    assert!(each(&mut known, (PEER, PORT), &close).iter().all(|verdict| *verdict == Intact));
    let counter = known.hot.and_then(|hot| hot.counter).expect("it counts");
    assert_eq!(counter.window, SHORTEST_WINDOW, "and loses it again");
}

#[test]
fn what_is_not_in_a_row_proves_nothing() {
    let mut known = Identifications::default();
    for between in [0, 0, 0, 0] {
        // Of a peer of our kind these are damaged: it sends others in between.
        assert_eq!(each(&mut known, (PEER, PORT), &[700, between]), [Unproven, Intact]);
        assert_eq!(each(&mut known, (PEER, PORT), &[701, between]), [Unproven, Intact]);
    }
    // The same identification again and again is no counter, and neither is one that goes back.
    assert_eq!(each(&mut known, (PEER, PORT), &[700; 9]), [Unproven; 9]);
    assert_eq!(each(&mut known, (PEER, PORT), &[700, 690, 680, 670, 660]), [Unproven; 5]);
    // One that fits nothing ends the row.
    let mut known = Identifications::default();
    for at in 0..9 {
        let damage = |bytes: &mut [u8]| {
            if at % 3 == 2 {
                bytes[77] ^= 1
            }
        };
        let verdict = arrive(&mut known, (PEER, PORT), 700 + at, 0, damage);
        assert_eq!(verdict, if at % 3 == 2 { Damaged } else { Unproven });
    }
}

#[test]
fn a_sender_that_is_not_understood_is_questioned_but_not_all_the_time() {
    let mut known = Identifications::default();
    each(&mut known, (PEER, PORT), &[700]);
    assert_eq!(known.questions(), [(PEER.into(), HERE.into())]);
    each(&mut known, (PEER, PORT), &[9000, 20_000, 9000, 20_000]);
    assert!(!known.has_questions(), "a moment ago");
    // An answer comes from another port.
    let mut known = Identifications::default();
    let verdicts =
        [(PORT, 700), (PORT + 1, 701), (PORT + 1, 702)].map(|(port, sent)| each(&mut known, (PEER, port), &[sent])[0]);
    assert_eq!(verdicts, [Unproven, Unproven, Proves { first: 700 }]);
}

#[test]
fn what_another_process_has_proven_is_believed() {
    let mut known = Identifications::default();
    assert_eq!(each(&mut known, (PEER, PORT), &[700]), [Unproven]);
    let (ip, _) = header(PEER, PORT);
    let passed_on = Ipv4Header { identification: 702, ..ip };
    assert!(
        matches!(known.teach(&passed_on, PORT + 1), Proves { first } if 700u16.wrapping_sub(first) <= LONGEST_STEP)
    );
    assert_eq!(known.teach(&Ipv4Header { identification: 705, ..ip }, PORT + 1), Intact, "that was known");
    assert_eq!(each(&mut known, (PEER, PORT), &[706]), [Intact]);
    assert_eq!(
        known.teach(&Ipv4Header { identification: 3, ..ip }, PORT),
        Intact,
        "of our kind: there is nothing to learn"
    );
}

#[test]
fn the_tables_do_not_grow_without_end() {
    let mut known = Identifications::default();
    let (ip, _) = header(PEER, PORT);
    for at in 0..MAX_SENDERS as u32 + 100 {
        let source = Ipv4Addr::from(0x0a00_0000 + at);
        known.surprise(&Ipv4Header { source, identification: 700, ..ip }, PORT, 0, true);
        assert!(known.runs.len() <= MAX_SENDERS + 2 && known.questions.len() <= MAX_QUESTIONS);
    }
}

//! Segmented messages between two managers, with and without loss.
#![allow(missing_docs)]

use mad::{Config, Delivery, Handled, Manager, Outgoing, Peer, PortId, Registration, Route, Time, Transmit};
use ubiverbs_mad as mad;
use wire::mad::{MAD_LEN, MadHeader};
use wire::{Gid, Qpn};

const HERE: u32 = 2;
const CLASS: u8 = 0x33;
/// Where the data of the class begins.
const DATA: usize = 40;

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, last].into())
}

fn route(local: u8, remote: u8) -> Route {
    let (local, remote) = (gid(local), gid(remote));
    Route { local, remote, qpn: Qpn::GSI, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

/// A message with so many bytes of data, as a program writes it: the flag of RMPP is set, the rest is the library's.
fn message(method: u8, transaction_id: u64, length: usize) -> Vec<u8> {
    let header = MadHeader {
        base_version: 1,
        management_class: CLASS,
        class_version: 1,
        method,
        transaction_id,
        ..MadHeader::default()
    };
    let mut bytes = vec![0; DATA];
    header.encode(&mut bytes).unwrap();
    bytes[26] = 1;
    bytes[37..40].copy_from_slice(&[0, 0x14, 0x05]);
    bytes.extend((0..length).map(|at| (at * 7 + at / 200) as u8));
    bytes
}

struct Side {
    manager: Manager,
    port: PortId,
    own: u8,
    other: u8,
}

impl Side {
    fn new(own: u8, other: u8, methods: u128) -> Side {
        let first = u32::from(own) << 20;
        let mut manager = Manager::new(Config { first, last: first + 9, seed: first });
        let port = manager.open(HERE);
        let wanted =
            Registration { class: CLASS, version: 1, oui: 0x1405, methods, rmpp_version: 1, ..Registration::default() };
        assert_eq!(manager.register(port, &wanted), Ok(0));
        Side { manager, port, own, other }
    }

    fn send(&mut self, now: Time, bytes: &[u8], timeout_ms: u32, retries: u32) {
        let to = Peer::Address(route(self.own, self.other));
        let out = Outgoing { bytes, to, pkey_index: 0, timeout_ms, retries };
        self.manager.send(now, (self.port, 0), &out, |_| None).unwrap();
    }

    fn transmits(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.manager.poll_transmit()).collect()
    }

    fn take(&mut self, now: Time, packets: Vec<Transmit>) {
        for packet in packets {
            assert_eq!(packet.to.remote, gid(self.own));
            assert_eq!(self.manager.handle(now, HERE, &route(self.own, self.other), &packet.bytes), Handled::Taken);
        }
    }

    fn delivered(&mut self) -> Vec<Delivery> {
        std::iter::from_fn(|| self.manager.poll_delivery()).map(|(_, delivery)| delivery).collect()
    }
}

/// Packets go to and fro until there are none.
fn exchange(now: Time, one: &mut Side, other: &mut Side) {
    loop {
        let (there, back) = (one.transmits(), other.transmits());
        if there.is_empty() && back.is_empty() {
            return;
        }
        other.take(now, there);
        one.take(now, back);
    }
}

#[test]
fn messages_of_every_length_arrive_whole() {
    for length in [0, 1, 215, 216, 217, 431, 432, 433, 216 * 64, 216 * 65 + 1, 100_000] {
        let (mut client, mut server) = (Side::new(1, 2, 0), Side::new(2, 1, u128::MAX));
        let now = Time::ZERO;
        let sent = message(MadHeader::METHOD_SET, 5, length);
        client.send(now, &sent, 1000, 0);
        exchange(now, &mut client, &mut server);
        let [asked] = server.delivered().try_into().unwrap();
        assert_eq!(asked.bytes[DATA..], sent[DATA..], "{length}");
        assert_eq!(asked.bytes.len(), sent.len());
        // And a long answer to it, which ends the wait.
        let transaction = MadHeader::parse(&asked.bytes).unwrap().0.transaction_id;
        let answer = message(MadHeader::METHOD_GET_RESPONSE, transaction, length);
        server.send(now, &answer, 0, 0);
        exchange(now, &mut client, &mut server);
        let [answered] = client.delivered().try_into().unwrap();
        assert_eq!(answered.bytes[DATA..], answer[DATA..], "{length}");
        assert_eq!(client.manager.poll_timeout(), None);
        assert_eq!(server.manager.poll_timeout(), None);
    }
}

#[test]
fn lost_segments_and_acknowledgements_are_sent_again() {
    for lost in 0..12 {
        let (mut client, mut server) = (Side::new(1, 2, 0), Side::new(2, 1, u128::MAX));
        let sent = message(MadHeader::METHOD_SET, 5, 3000);
        let (mut now, mut count) = (Time::ZERO, 0);
        client.send(now, &sent, 1000, 4);
        let mut asked = Vec::new();
        for _ in 0..4 {
            loop {
                let mut packets = client.transmits();
                let mut back = server.transmits();
                if packets.is_empty() && back.is_empty() {
                    break;
                }
                for list in [&mut packets, &mut back] {
                    list.retain(|_| {
                        count += 1;
                        count != lost + 1
                    });
                }
                for packet in packets {
                    let _ = server.manager.handle(now, HERE, &route(2, 1), &packet.bytes);
                }
                for packet in back {
                    let _ = client.manager.handle(now, HERE, &route(1, 2), &packet.bytes);
                }
            }
            asked.extend(server.delivered());
            now = now.plus_nanos(1_000_000_000);
            client.manager.handle_timeout(now);
        }
        assert_eq!(asked.len(), 1, "packet {lost} was lost");
        assert_eq!(asked[0].bytes[DATA..], sent[DATA..]);
    }
}

#[test]
fn segments_out_of_nowhere_lead_to_nothing() {
    let mut server = Side::new(2, 1, u128::MAX);
    let mut client = Side::new(1, 2, 0);
    client.send(Time::ZERO, &message(MadHeader::METHOD_SET, 5, 3000), 1000, 0);
    let [first] = client.transmits().try_into().unwrap();
    // The second of a message that never began; and more messages than are kept.
    let mut second = first.bytes;
    second[31] = 2;
    assert!(matches!(server.manager.handle(Time::ZERO, HERE, &route(2, 1), &second), Handled::Dropped(_)));
    for transaction in 0..100u8 {
        let mut bytes: [u8; MAD_LEN] = first.bytes;
        bytes[15] = transaction;
        let handled = server.manager.handle(Time::ZERO, HERE, &route(2, 1), &bytes);
        let expected = usize::from(transaction) < mad::limits::MAX_MESSAGES;
        assert_eq!(handled == Handled::Taken, expected, "{transaction}");
    }
    // Those that nobody goes on with make room.
    let later = Time::from_nanos(60_000_000_000);
    assert_eq!(server.manager.handle(later, HERE, &route(2, 1), &first.bytes), Handled::Taken);
}

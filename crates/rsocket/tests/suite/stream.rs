//! Both sides of a connection, without a network.

use std::net::SocketAddr;
use ubiverbs_rsocket::*;
use wire::{Key, Qpn};

fn place(address: u64) -> Span {
    Span { address, key: Key::new(9) }
}

fn sizes() -> Sizes {
    Sizes { send_buffer: 8192, receive_buffer: 4096, send_queue: 20, receive_queue: 16, inline: 16, io_mappings: 2 }
}

fn pair() -> (Stream, Stream) {
    let local = Local { receive: place(0x1000), targets: place(0x9000) };
    let (mut one, mut other) = (Stream::new(sizes(), local), Stream::new(sizes(), local));
    other.handle_connection_data(&one.connection_data().to_bytes()).unwrap();
    one.handle_connection_data(&other.connection_data().to_bytes()).unwrap();
    (one, other)
}

#[test]
fn connection_data_comes_back_as_it_was() {
    let data = ConnectionData {
        big_endian: false,
        knows_io_mappings: true,
        credits: 384,
        io_mappings: 100,
        targets: Target { place: place(0x1122_3344_5566_7788), length: 2 },
        buffer: Target { place: place(42), length: 65536 },
    };
    let bytes = data.to_bytes();
    assert_eq!(ConnectionData::from_bytes(&bytes), Ok(data));
    assert_eq!(ConnectionData::from_bytes(&bytes[..39]), Err(ProtocolError::Short { length: 39 }));
    let mut other = bytes;
    other[0] = 2;
    assert_eq!(ConnectionData::from_bytes(&other), Err(ProtocolError::Version { version: 2 }));
    let mut none = bytes;
    none[20..24].fill(0);
    assert_eq!(ConnectionData::from_bytes(&none), Err(ProtocolError::NoTargets));
}

#[test]
fn numbers_of_mappings_are_exact_up_to_128_and_rounded_down_above() {
    for value in 0..=128 {
        assert_eq!(u32::from(scale_to_value(value_to_scale(value))), value);
    }
    assert_eq!(scale_to_value(value_to_scale(1000)), 768);
    assert_eq!(scale_to_value(value_to_scale(u32::MAX)), 127 << 8);
}

#[test]
fn every_immediate_is_a_message_or_refused() {
    let messages = [
        Message::Data(0),
        Message::Data(65536),
        Message::Direct(5),
        Message::Credits(65535),
        Message::IoMapping(3),
        Message::Control(Control::Disconnect),
        Message::Control(Control::KeepAlive),
        Message::Control(Control::Shutdown),
    ];
    for message in messages {
        assert_eq!(Message::decode(message.encode()), Ok(message));
    }
    for immediate in [1 << 29, 3 << 29, 5 << 29, 7 << 29 | 3] {
        assert_eq!(Message::decode(immediate), Err(ProtocolError::Unknown { immediate }));
    }
}

#[test]
fn a_sender_stops_where_its_peers_buffer_ends_and_goes_on_when_it_is_lent_more() {
    let (mut alice, mut bob) = pair();
    // The other half is lent at once.
    let Some(ControlWork::Target { bytes, remote, immediate }) = bob.poll_control() else { panic!() };
    assert_eq!(remote.address, 0x9000 + 16);
    let mut list = [0; 32];
    list[16..].copy_from_slice(&bytes);
    assert_eq!(bob.poll_control(), None);

    let mut moved = 0;
    while let Some(transfer) = alice.next_transfer(10_000) {
        assert_eq!(transfer.remote.address, 0x1000 + moved);
        moved += u64::from(transfer.length);
        bob.handle_received(transfer.immediate(), transfer.length, &[]).unwrap();
        alice.handle_sent(transfer.wr_id(), true);
    }
    assert_eq!((moved, bob.unread()), (2048, 2048));
    alice.handle_received(immediate, 16, &list).unwrap();
    let second = alice.next_transfer(10_000).unwrap();
    assert_eq!((second.remote.address, second.length), (0x1000 + 2048, 2048));
    bob.handle_received(second.immediate(), second.length, &[]).unwrap();
    assert_eq!(bob.unread_runs(5000), [Run { offset: 0, length: 4096 }, Run::default()]);
    bob.consume(2047);
    assert_eq!(bob.poll_control(), None);
    bob.consume(1);
    let Some(ControlWork::Target { remote, .. }) = bob.poll_control() else { panic!() };
    assert_eq!(remote.address, 0x9000, "the first entry, in turn");
}

#[test]
fn a_sender_sends_no_more_messages_than_its_peer_keeps() {
    let (mut alice, mut bob) = pair();
    let mut sent = Vec::new();
    while let Some(transfer) = alice.next_transfer(1) {
        assert_eq!(transfer.place, TransferMemory::Inline);
        bob.handle_received(transfer.immediate(), transfer.length, &[]).unwrap();
        sent.push(transfer);
    }
    assert_eq!(sent.len(), 16);
    for transfer in sent {
        alice.handle_sent(transfer.wr_id(), true);
    }
    assert!(!alice.can_send());
    // The first is the other half of the buffer; after eight messages it is time to tell again.
    assert!(matches!(bob.poll_control(), Some(ControlWork::Target { .. })));
    bob.consume(7);
    assert_eq!(bob.poll_control(), None);
    bob.consume(1);
    let Some(ControlWork::Message { immediate }) = bob.poll_control() else { panic!() };
    assert_eq!(Message::decode(immediate), Ok(Message::Credits(24)));
    alice.handle_received(immediate, 0, &[]).unwrap();
    assert!(alice.can_send());
}

#[test]
fn a_peer_that_overruns_its_limits_ends_the_connection() {
    let data = |bytes| Message::Data(bytes).encode();
    let (_, mut bob) = pair();
    assert_eq!(bob.handle_received(data(2049), 2049, &[]), Err(ProtocolError::Overrun { bytes: 2049, lent: 2048 }));
    assert!(bob.has_failed() && !bob.is_readable());

    let (_, mut bob) = pair();
    for _ in 0..16 {
        bob.handle_received(data(0), 0, &[]).unwrap();
    }
    assert_eq!(bob.handle_received(data(0), 0, &[]), Err(ProtocolError::TooManyMessages { allowed: 16 }));

    let (_, mut bob) = pair();
    assert!(bob.handle_received(data(4), 5, &[]).is_err(), "the bytes are not those that were written");

    let (_, mut bob) = pair();
    let credits = Message::Credits(100).encode();
    assert!(bob.handle_received(credits, 16, &[0; 32]).is_err(), "an empty target");
    let (_, mut bob) = pair();
    assert!(bob.handle_received(credits, 15, &[1; 32]).is_err());
    let (_, mut bob) = pair();
    for more in [true, true, false] {
        assert_eq!(bob.handle_received(credits, 16, &[1; 32]).is_ok(), more);
    }
}

#[test]
fn each_side_may_end_its_direction_first() {
    let tell = |from: &mut Stream, to: &mut Stream| {
        while let Some(work) = from.poll_control() {
            if let ControlWork::Message { immediate } = work {
                to.handle_received(immediate, 0, &[]).unwrap();
                from.handle_sent(immediate.into(), true);
            }
        }
    };
    let (mut alice, mut bob) = pair();
    alice.shutdown(Shutdown::Write);
    tell(&mut alice, &mut bob);
    assert!(alice.is_readable() && !alice.is_writable() && alice.is_connected());
    assert!(!bob.is_readable() && bob.is_writable() && bob.is_connected());
    assert!(alice.next_transfer(1).is_none());
    bob.shutdown(Shutdown::Write);
    tell(&mut bob, &mut alice);
    assert!(alice.is_disconnected() && bob.is_disconnected());

    let (mut alice, mut bob) = pair();
    let last = alice.next_transfer(1).unwrap();
    bob.handle_received(last.immediate(), 1, &[]).unwrap();
    alice.shutdown(Shutdown::Both);
    tell(&mut alice, &mut bob);
    assert!(alice.is_disconnected() && bob.is_disconnected());
    assert_eq!(bob.unread(), 1, "what came before can be read");

    let (mut alice, mut bob) = pair();
    alice.shutdown(Shutdown::Read);
    tell(&mut alice, &mut bob);
    assert!(bob.is_connected() && bob.is_readable());
}

#[test]
fn an_end_that_has_to_wait_for_a_slot_is_told_though_the_peer_ends_first() {
    let (mut alice, _) = pair();
    let slots: Vec<_> = (0..4)
        .map(|_| {
            alice.keep_alive();
            alice.poll_control().unwrap()
        })
        .collect();
    assert_eq!(slots.len(), 4);
    alice.shutdown(Shutdown::Write);
    assert_eq!(alice.poll_control(), None, "no slot");
    alice.handle_received(Message::Control(Control::Shutdown).encode(), 0, &[]).unwrap();
    assert!(alice.is_connected());
    alice.handle_sent(Message::Control(Control::KeepAlive).encode().into(), true);
    let immediate = Message::Control(Control::Disconnect).encode();
    assert_eq!(alice.poll_control(), Some(ControlWork::Message { immediate }));
    alice.handle_sent(immediate.into(), true);
    assert!(alice.is_disconnected());
}

#[test]
fn a_peer_is_told_once_that_a_direction_has_ended() {
    let (mut alice, _) = pair();
    assert!(matches!(alice.poll_control(), Some(ControlWork::Target { .. })), "the second half is lent first");
    assert!(alice.shutdown(Shutdown::Write) && !alice.shutdown(Shutdown::Write));
    let immediate = Message::Control(Control::Shutdown).encode();
    assert_eq!(alice.poll_control(), Some(ControlWork::Message { immediate }));
    assert!(!alice.shutdown(Shutdown::Write));
    assert_eq!(alice.poll_control(), None);
    assert!(alice.shutdown(Shutdown::Both));
    let immediate = Message::Control(Control::Disconnect).encode();
    assert_eq!(alice.poll_control(), Some(ControlWork::Message { immediate }));
    assert!(!alice.shutdown(Shutdown::Both));
}

#[test]
fn mappings_are_written_to_the_peers_list_and_found_by_their_offset() {
    let (mut alice, mut bob) = pair();
    let mapping = IoMapping { offset: 100, target: Target { place: place(0x5000), length: 50 } };
    assert_eq!(alice.peer_io_mappings(), 2);
    let work = alice.next_io_mapping(1, &mapping).unwrap();
    assert_eq!(work.remote.address, 0x9000 + 32 + 24);
    assert_eq!(alice.next_io_mapping(2, &mapping), None);
    bob.handle_received(work.immediate, 24, &[]).unwrap();
    let seen = IoMapping::from_memory(&work.bytes);
    assert_eq!(seen, mapping);
    assert_eq!((seen.bytes_from(99), seen.bytes_from(149), seen.bytes_from(150)), (None, Some(1), None));
    let transfer = bob.next_direct_transfer(&seen, 140, 500).unwrap();
    assert_eq!((transfer.length, transfer.remote.address), (10, 0x5000 + 40));
    bob.handle_sent(transfer.wr_id(), true);
    alice.handle_sent(work.immediate.into(), true);
    assert!(alice.is_idle() && bob.is_idle());
}

#[test]
fn headers_of_datagrams_come_back_as_they_were() {
    for text in ["10.1.2.3:7000", "[fe80::7]:9"] {
        let source: SocketAddr = text.parse().unwrap();
        let mut bytes = [0; MAX_DATAGRAM_HEADER];
        let length = DatagramHeader { source }.encode(&mut bytes);
        assert_eq!(DatagramHeader::decode(&bytes[..length]), Some((DatagramHeader { source }, length)));
        assert_eq!(DatagramHeader::decode(&bytes[..length - 1]), None);

        for kind in [DiscoveryKind::Data, DiscoveryKind::Answer] {
            let header = DiscoveryHeader { kind, qpn: Qpn::new(0x12_3456), address: source.ip() };
            let mut bytes = [0; DiscoveryHeader::MAX_LENGTH];
            let length = header.encode(&mut bytes);
            let over_ipv4 = source.is_ipv4();
            assert_eq!(DiscoveryHeader::decode(&bytes[..length], over_ipv4), Some((header, length)));
            assert_eq!(DiscoveryHeader::decode(&bytes[..length], !over_ipv4), None);
            assert_eq!(DiscoveryHeader::decode(&bytes[..length - 1], over_ipv4), None);
        }
    }
}

#[test]
fn a_peer_that_has_said_its_last_may_go_without_our_credits_but_not_without_our_bytes() {
    let credits = u64::from(Message::Credits(7).encode());
    let ended = |says_so: bool, wr_id: u64| {
        let (_, mut bob) = pair();
        if says_so {
            bob.handle_received(Message::Control(Control::Shutdown).encode(), 0, &[]).unwrap();
        }
        bob.handle_sent(wr_id, false);
        (bob.is_disconnected(), bob.has_failed())
    };
    assert_eq!(ended(true, credits), (true, false));
    assert_eq!(ended(false, credits), (false, true));
    assert_eq!(ended(true, u64::from(Message::Data(5).encode())), (false, true));
}

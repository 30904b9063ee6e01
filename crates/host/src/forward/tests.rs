use super::*;
use crate::arrival::{Arrival, Origin};
use crate::names::{self, Name, PORTS_PER_BLOCK};
use crate::ports::Ports;
use crate::slots::{Slot, Slots};
use std::cell::Cell;
use std::time::{Duration, Instant};
use wire::cm::PortSpace;
use wire::{Gid, Headers, IpHeader, Opcode, Packet, Psn, UdpHeader};

/// A packet to a slot with a number as payload.
struct Sample {
    ip: IpHeader,
    bytes: Vec<u8>,
}

fn sample(gid: [Gid; 2], slot: Slot, number: u32, length: usize) -> Sample {
    let mut payload = vec![0x5a; length];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    let headers = Headers::new(Opcode::UcSendOnly, slot.qpn(5), Psn::new(number));
    let packet = Packet { headers, payload: &payload };
    let [source, destination] = gid;
    let mut ip = IpHeader::udp(source, destination, packet.encoded_length()).unwrap();
    match &mut ip {
        IpHeader::V4(ip) => {
            (ip.tos, ip.ttl, ip.identification, ip.dont_fragment) = (0x2b, 17, 0x1234, number.is_multiple_of(2))
        }
        IpHeader::V6(ip) => (ip.traffic_class, ip.hop_limit) = (0x2b, 17),
    }
    let mut bytes = vec![0; packet.encoded_length()];
    packet.encode(&ip, &UdpHeader::roce(777, bytes.len()).unwrap(), &mut bytes).unwrap();
    Sample { ip, bytes }
}

impl Sample {
    fn arrival(&self) -> Arrival<'_> {
        let Packet { headers, payload } = Packet::parse(&self.bytes).unwrap();
        let (ip, bytes, origin) = (self.ip, &self.bytes, Origin::Forwarded);
        Arrival { headers, payload, ip, bytes, port: 777, interface: 0, congestion_marked: true, origin }
    }
}

fn addresses(last: u8) -> [[Gid; 2]; 2] {
    let v6 = |n| Gid::from_ipv6([0xfd00, 0, 0, 0, 0, 0, 0, n].into());
    [[Gid::from_ipv4([10, 0, 0, 1].into()), Gid::from_ipv4([10, 0, 0, last].into())], [v6(1), v6(last.into())]]
}

/// What the inbox gets, at least `wanted` packets, but it does not wait for ever.
fn collect(inbox: &mut Inbox, wanted: usize) -> Vec<u32> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut numbers = Vec::new();
    while numbers.len() < wanted && Instant::now() < deadline {
        inbox.receive(|arrival| numbers.push(arrival.headers.bth.psn.value())).unwrap();
    }
    // What is there beyond that shows too.
    while inbox.receive(|arrival| numbers.push(arrival.headers.bth.psn.value())).unwrap() {}
    numbers
}

fn nothing_lost(_: &Arrival<'_>, loss: Loss) {
    panic!("{loss:?}");
}

#[test]
fn a_message_reads_as_it_was_written() {
    let slot = Slot::new(9).unwrap();
    let samples: Vec<_> =
        (0..20u32).map(|n| sample(addresses(2)[n as usize % 2], slot, n, 4 + 3 * n as usize)).collect();
    let mut bytes = Vec::new();
    for sample in &samples {
        assert!(message::append(&mut bytes, &sample.arrival()));
    }
    assert_eq!(message::count(&bytes), 20);
    let mut next = samples.iter();
    let malformed = message::read(&bytes, |arrival| {
        let expected = next.next().unwrap();
        assert_eq!(format!("{arrival:?}"), format!("{:?}", expected.arrival()));
    });
    assert_eq!((malformed, next.count()), (0, 0));
}

#[test]
fn a_message_ends_where_it_is_full() {
    let slot = Slot::new(9).unwrap();
    let sample = sample(addresses(2)[0], slot, 1, 4096);
    let mut bytes = Vec::new();
    let count = (0..1000).take_while(|_| message::append(&mut bytes, &sample.arrival())).count();
    assert!((15..17).contains(&count) && bytes.len() <= message::MAX_MESSAGE_BYTES);
    let mut read = 0;
    assert_eq!(message::read(&bytes, |_| read += 1), 0);
    assert_eq!(read, count);
}

/// Whatever arrives, reading ends without panic, and never yields more packets than were claimed.
#[test]
fn garbage_is_counted() {
    let mut bytes = Vec::new();
    for n in 0..5 {
        message::append(&mut bytes, &sample(addresses(2)[n as usize % 2], Slot::new(9).unwrap(), n, 40).arrival());
    }
    for length in 0..bytes.len() {
        let mut read = 0;
        let malformed = message::read(&bytes[..length], |_| read += 1);
        assert!(malformed >= 1 && read < 5, "{length}");
    }
    // SplitMix64.
    let mut state = 3u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for _ in 0..20_000 {
        let mut damaged = bytes.clone();
        for _ in 0..=next() % 4 {
            let at = next() as usize % damaged.len();
            damaged[at] = next() as u8;
        }
        let mut read = 0;
        message::read(&damaged, |_| read += 1);
        assert!(read <= message::count(&damaged));
    }
    bytes.push(0);
    assert_eq!(message::read(&bytes, |_| {}), 1, "something follows the last packet");
}

#[test]
fn packets_reach_the_owner_in_order() {
    let (slots, mut forwarder) = (Slots::open().unwrap(), Forwarder::new());
    let (one, two) = (slots.take().unwrap(), slots.take().unwrap());
    let mut inbox = Inbox::new(&slots);
    for n in 0..1000 {
        let slot = if n % 2 == 0 { one } else { two };
        forwarder.push(Name::Slot(slot), &sample(addresses(2)[0], slot, n, 256).arrival(), nothing_lost);
        if n % 100 == 99 {
            forwarder.flush(nothing_lost);
        }
    }
    let numbers = collect(&mut inbox, 1000);
    let (even, odd): (Vec<u32>, Vec<u32>) = numbers.iter().partition(|n| **n % 2 == 0);
    assert!(even.iter().copied().eq((0..1000).step_by(2)) && odd.iter().copied().eq((1..1000).step_by(2)));
    let Forwarded { packets, messages, .. } = forwarder.forwarded();
    assert_eq!((packets, messages), (1000, 20), "many packets to a message");
    assert_eq!(inbox.collected(), Collected { messages: 20, packets: 1000, ..Collected::default() });
}

#[test]
fn nobody_is_told_from_somebody_who_does_not_read() {
    let (slots, mut forwarder) = (Slots::open().unwrap(), Forwarder::new());
    let slot = slots.take().unwrap();
    let big = sample(addresses(2)[0], slot, 7, 4096);
    let (full, nobody) = (Cell::new(0u64), Cell::new(0u64));
    let mut count = |arrival: &Arrival<'_>, loss| {
        assert_eq!(arrival.bytes, big.bytes);
        match loss {
            Loss::Full => full.set(full.get() + 1),
            Loss::NoOwner => nobody.set(nobody.get() + 1),
            Loss::System => panic!(),
        }
    };
    // The owner does not read: after some megabytes packets are dropped, and nothing waits.
    for _ in 0..10_000 {
        forwarder.push(Name::Slot(slot), &big.arrival(), &mut count);
    }
    forwarder.flush(&mut count);
    // When the owner reads, it goes on.
    let mut inbox = Inbox::new(&slots);
    let arrived = collect(&mut inbox, 1).len() as u64;
    forwarder.push(Name::Slot(slot), &big.arrival(), &mut count);
    forwarder.flush(&mut count);
    assert_eq!(collect(&mut inbox, 1).len(), 1);
    // When the owner has gone, no process has the name, unless another test has taken the slot: then it is that one's
    // for a while.
    drop((inbox, slots));
    let mut elsewhere = 0;
    loop {
        forwarder.push(Name::Slot(slot), &big.arrival(), &mut count);
        forwarder.flush(&mut count);
        if nobody.get() == 1 {
            break;
        }
        elsewhere += 1;
        assert!(elsewhere < 30_000, "the slot always has an owner");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let full = full.get();
    assert!(full > 0);
    let forwarded = forwarder.forwarded();
    assert_eq!((forwarded.full, forwarded.no_owner, forwarded.packets), (full, 1, arrived + 1 + elsewhere));
    assert_eq!(arrived + full, 10_000);
}

#[test]
fn a_slot_that_changes_hands_is_found_again() {
    let (slots, mut forwarder) = (Slots::open().unwrap(), Forwarder::new());
    let slot = slots.take().unwrap();
    let mut inbox = Inbox::new(&slots);
    let packet = |n| sample(addresses(2)[0], slot, n, 64);
    forwarder.push(Name::Slot(slot), &packet(1).arrival(), nothing_lost);
    forwarder.flush(nothing_lost);
    assert_eq!(collect(&mut inbox, 1), [1]);
    slots.release(slot);
    let (others, socket) = (Slots::open().unwrap(), names::socket().unwrap());
    names::listen_patiently(&socket, Name::Slot(slot)).unwrap();
    others.registry().enter(Name::Slot(slot), socket).unwrap();
    let mut other = Inbox::new(&others);
    // The old owner still has the connection. It takes no packet for a slot that it gave back, and hangs up.
    forwarder.push(Name::Slot(slot), &packet(2).arrival(), nothing_lost);
    forwarder.flush(nothing_lost);
    let deadline = Instant::now() + Duration::from_secs(60);
    while inbox.collected().misdelivered == 0 && Instant::now() < deadline {
        inbox.receive(|_| panic!()).unwrap();
    }
    assert_eq!(inbox.collected().misdelivered, 1);
    forwarder.push(Name::Slot(slot), &packet(3).arrival(), nothing_lost);
    forwarder.flush(nothing_lost);
    assert_eq!(collect(&mut other, 1), [3]);
}

/// A process that was stopped for a while finds connections of many that only checked whether it is there, more than it
/// keeps.
#[test]
fn a_crowd_at_the_door_costs_nobody_a_packet() {
    let slots = Slots::open().unwrap();
    let slot = slots.take().unwrap();
    let mut inbox = Inbox::new(&slots);
    let push = |forwarder: &mut Forwarder, n| {
        forwarder.push(Name::Slot(slot), &sample(addresses(2)[0], slot, n, 64).arrival(), nothing_lost);
        forwarder.flush(nothing_lost);
    };
    let mut forwarders: Vec<_> = (0..270).map(|_| Forwarder::new()).collect();
    // So many that they are not read in one go.
    (0..20).for_each(|n| push(&mut forwarders[0], n));
    for _ in 0..300 {
        assert!(names::is_reachable(Name::Slot(slot)).unwrap());
    }
    assert!(collect(&mut inbox, 20).into_iter().eq(0..20));
    // All of these are kept open: some must go, and connect again.
    for n in 0..4 {
        (0..270).for_each(|at| push(&mut forwarders[at as usize], at * 4 + n));
        if n == 1 {
            assert_eq!(collect(&mut inbox, 540).len(), 540);
        }
    }
    let mut numbers = collect(&mut inbox, 540);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq((0..1080).filter(|n| n % 4 > 1)));
}

#[test]
fn a_stranger_who_speaks_nonsense_is_hung_up_on() {
    let slots = Slots::open().unwrap();
    let slot = slots.take().unwrap();
    let mut inbox = Inbox::new(&slots);
    let mut packets = 0;
    for nonsense in [&b"hello"[..], &[0; 40_000], &[0xff; 70_000]] {
        let stranger = names::socket().unwrap();
        names::connect(&stranger, Name::Slot(slot)).unwrap();
        // SAFETY: the bytes are live and as long as they say.
        let sent = unsafe { libc::send(stranger.raw(), nonsense.as_ptr().cast(), nonsense.len(), libc::MSG_NOSIGNAL) };
        assert_eq!(sent, nonsense.len() as isize);
        let (before, deadline) = (inbox.collected().malformed, Instant::now() + Duration::from_secs(60));
        while inbox.collected().malformed == before && Instant::now() < deadline {
            inbox.receive(|_| packets += 1).unwrap();
        }
        assert_eq!(inbox.collected().malformed, before + 1);
        let mut byte = 0u8;
        // SAFETY: room for one byte.
        let end = unsafe { libc::recv(stranger.raw(), (&raw mut byte).cast(), 1, 0) };
        assert!(end <= 0, "the connection is closed");
    }
    assert_eq!(packets, 0);
}

#[test]
fn the_name_of_a_port_that_no_process_has_is_not_looked_for_each_time() {
    let ports = Ports::new(&Slots::open().unwrap());
    let port = ports.bind(PortSpace::Tcp, 0).unwrap().number();
    let (own, block) = (Name::Port(PortSpace::Tcp, port), Name::Block(PortSpace::Tcp, port / PORTS_PER_BLOCK));
    let (mut forwarder, now) = (Forwarder::new(), Instant::now());
    let order = |forwarder: &Forwarder, after| forwarder.names_of_port(PortSpace::Tcp, port, now + after);
    assert_eq!(order(&forwarder, Duration::ZERO), [own, block]);
    assert!(!forwarder.reaches(own));
    assert_eq!(order(&forwarder, Duration::ZERO), [own, block], "the block may have no owner, either");
    assert!(forwarder.reaches(block));
    assert_eq!(order(&forwarder, Duration::ZERO), [block, own]);
    assert_eq!(order(&forwarder, Duration::from_secs(60)), [own, block]);
}

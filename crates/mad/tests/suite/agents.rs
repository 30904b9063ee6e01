//! Agents and what they send and hear, in virtual time.
#![allow(missing_docs)]

use mad::answer::{self, Counters};
use mad::{
    Config, Delivery, Handled, Key, Manager, Outgoing, Peer, PortId, Refusal, Registration, Route, SendError, Time,
};
use trace::DropReason;
use ubiverbs_mad as mad;
use wire::mad::{MAD_LEN, MadHeader};
use wire::{Gid, Qpn};

const HERE: u32 = 2;
const PING: u8 = 0x32;
const OPENIB: u32 = 0x1405;

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, last].into())
}

fn route() -> Route {
    Route { local: gid(1), remote: gid(2), qpn: Qpn::GSI, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

fn manager() -> Manager {
    Manager::new(Config { first: 0x0070_0001, last: 0x0070_000f, seed: 0x0070_0003 })
}

fn ping(methods: u128) -> Registration {
    Registration { class: PING, version: 1, oui: OPENIB, methods, ..Registration::default() }
}

fn datagram(class: u8, method: u8, transaction_id: u64) -> [u8; MAD_LEN] {
    let header = MadHeader {
        base_version: 1,
        management_class: class,
        class_version: if class == MadHeader::CLASS_SUBNET_ADMINISTRATION { 2 } else { 1 },
        method,
        transaction_id,
        ..MadHeader::default()
    };
    let mut bytes = [0; MAD_LEN];
    header.encode(&mut bytes).unwrap();
    if mad::class::has_oui(class) {
        bytes[37..40].copy_from_slice(&[0, 0x14, 0x05]);
    }
    bytes
}

fn out(bytes: &[u8], timeout_ms: u32, retries: u32) -> Outgoing<'_> {
    Outgoing { bytes, to: Peer::Address(route()), pkey_index: 0, timeout_ms, retries }
}

fn at(milliseconds: u64) -> Time {
    Time::from_nanos(milliseconds * 1_000_000)
}

fn send(manager: &mut Manager, now: Time, port: PortId, agent: u8, out: &Outgoing<'_>) -> Result<(), SendError> {
    manager.send(now, (port, agent), out, |_| Some(gid(1)))
}

fn deliveries(manager: &mut Manager) -> Vec<Delivery> {
    std::iter::from_fn(|| manager.poll_delivery()).map(|(_, delivery)| delivery).collect()
}

#[test]
fn what_a_roce_port_does_not_have_is_refused() {
    let mut manager = manager();
    let port = manager.open(HERE);
    let smi = Registration { subnet_management: true, class: 1, version: 1, ..Registration::default() };
    let plain = Registration { class: 4, version: 1, ..Registration::default() };
    for (wanted, refusal) in [
        (smi, Refusal::NoSubnetManagement),
        (Registration { class: 0x81, ..smi }, Refusal::NoSubnetManagement),
        (Registration { class: 4, ..smi }, Refusal::WrongQueuePair),
        (Registration { class: 1, ..plain }, Refusal::WrongQueuePair),
        (Registration { class: 80, ..plain }, Refusal::Class),
        (Registration { version: 8, ..plain }, Refusal::Class),
        (Registration { rmpp_version: 1, ..plain }, Refusal::Rmpp),
        (Registration { class: 3, rmpp_version: 2, ..plain }, Refusal::Rmpp),
        (Registration { class: PING, ..plain }, Refusal::Vendor),
        (Registration { class: 7, version: 2, methods: 1 << 3, ..plain }, Refusal::Taken),
    ] {
        assert_eq!(manager.register(port, &wanted), Err(refusal), "{wanted:?}");
    }
    // A client of subnet administration, as every program of libibmad is one.
    assert_eq!(manager.register(port, &Registration { class: 3, version: 2, rmpp_version: 1, ..plain }), Ok(0));
    assert_eq!(manager.register(port, &Registration { class: 7, version: 2, ..plain }), Ok(1), "no method");
    for id in 2..32 {
        assert_eq!(
            manager.register(port, &Registration::default()),
            if id < 15 { Ok(id) } else { Err(Refusal::TooMany) }
        );
    }
    manager.close(port);
    assert_eq!(manager.register(port, &plain), Err(Refusal::NoPort));
}

#[test]
fn a_method_of_a_class_has_one_agent_on_each_device() {
    let mut manager = manager();
    let (port, second) = (manager.open(HERE), manager.open(HERE));
    assert_eq!(manager.register(port, &ping(0b0010)), Ok(0));
    assert_eq!(manager.register(second, &ping(0b0110)), Err(Refusal::Taken));
    assert_eq!(manager.register(second, &ping(0b0100)), Ok(0));
    assert_eq!(manager.register(second, &Registration { oui: 1, ..ping(0b0110) }), Ok(1), "another vendor");
    let elsewhere = manager.open(HERE + 1);
    assert_eq!(manager.register(elsewhere, &ping(u128::MAX)), Ok(0));
    let key = ping(1).key(HERE).unwrap();
    assert!(manager.has_class(key));
    assert_eq!(manager.unregister(port, 0), Ok(None), "the other port has the class, too");
    assert_eq!(manager.unregister(port, 0), Err(SendError::NoAgent));
    assert_eq!(manager.close(second), [key, Key { oui: 1, ..key }]);
    assert!(!manager.has_class(key));
}

#[test]
fn a_request_finds_its_agent_and_the_answer_the_one_that_asked() {
    let (mut client, mut server) = (manager(), manager());
    let (here, there) = (client.open(HERE), server.open(HERE));
    assert_eq!(client.register(here, &ping(0)), Ok(0));
    assert_eq!(server.register(there, &ping(u128::MAX)), Ok(0));
    let question = datagram(PING, MadHeader::METHOD_GET, 0xdead_beef_0000_0007);
    assert_eq!(send(&mut client, at(0), here, 0, &out(&question, 100, 1)), Ok(()));
    let sent = client.poll_transmit().unwrap();
    let (header, _) = MadHeader::parse(&sent.bytes).unwrap();
    assert_eq!(header.transaction_id & 0xffff_ffff, 7);
    assert_eq!(header.agent() >> 4, 0x0007_0000, "the upper half is the agent's, whatever the program wrote");

    let back = Route { local: gid(2), remote: gid(1), ..route() };
    assert_eq!(server.handle(at(1), HERE, &back, &sent.bytes), Handled::Taken);
    let [asked] = deliveries(&mut server).try_into().unwrap();
    assert_eq!((asked.agent, asked.timed_out, asked.peer), (0, false, Peer::Address(back)));
    assert_eq!(asked.bytes, sent.bytes);
    // As ibping answers: without an address. It goes where the request came from.
    let mut answer = sent.bytes;
    answer[3] |= MadHeader::RESPONSE;
    let reply = Outgoing { to: Peer::Lid(0), ..out(&answer, 0, 0) };
    assert_eq!(send(&mut server, at(2), there, 0, &reply), Ok(()));
    let answered = server.poll_transmit().unwrap();
    assert_eq!((answered.to.remote, answered.bytes), (gid(1), answer));

    // Not from another address, in another class or on another device; and only once.
    let stranger = Route { remote: gid(3), ..route() };
    let unknown = Handled::Dropped(DropReason::CmUnknown);
    assert_eq!(client.handle(at(3), HERE, &stranger, &answer), unknown);
    assert_eq!(client.handle(at(3), HERE + 1, &route(), &answer), unknown);
    let mut other = answer;
    other[1] = 0x33;
    assert_eq!(client.handle(at(3), HERE, &route(), &other), unknown);
    assert_eq!(client.handle(at(3), HERE, &route(), &answer), Handled::Taken);
    assert_eq!(client.handle(at(3), HERE, &route(), &answer), unknown, "a second answer");
    assert_eq!(deliveries(&mut client).len(), 1);
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn silence_is_a_repetition_and_then_a_timeout() {
    let mut manager = manager();
    let port = manager.open(HERE);
    manager.register(port, &ping(0)).unwrap();
    let question = datagram(PING, MadHeader::METHOD_GET, 7);
    send(&mut manager, at(0), port, 0, &out(&question, 100, 2)).unwrap();
    assert_eq!(send(&mut manager, at(0), port, 0, &out(&question, 100, 2)), Err(SendError::Duplicate));
    let mut sent = vec![manager.poll_transmit().unwrap()];
    for now in [100, 200] {
        assert_eq!(manager.poll_timeout(), Some(at(now)));
        manager.handle_timeout(at(now - 1));
        assert!(manager.poll_transmit().is_none());
        manager.handle_timeout(at(now));
        sent.push(manager.poll_transmit().unwrap());
    }
    assert!(sent.iter().all(|again| *again == sent[0]));
    manager.handle_timeout(at(300));
    assert!(manager.poll_transmit().is_none() && manager.poll_timeout().is_none());
    let [end] = deliveries(&mut manager).try_into().unwrap();
    assert!(end.timed_out && end.bytes == sent[0].bytes[..MadHeader::LEN] && end.peer == Peer::Address(route()));
    // Without a timeout nothing is waited for, and the answer is nobody's.
    send(&mut manager, at(400), port, 0, &out(&question, 0, 5)).unwrap();
    let mut answer = manager.poll_transmit().unwrap().bytes;
    answer[3] |= MadHeader::RESPONSE;
    assert_eq!(manager.handle(at(401), HERE, &route(), &answer), Handled::Dropped(DropReason::CmUnknown));
    // An agent takes what it has under way with it.
    send(&mut manager, at(500), port, 0, &out(&question, 100, 2)).unwrap();
    manager.unregister(port, 0).unwrap();
    assert_eq!(manager.poll_timeout(), None);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let mut manager = manager();
    let port = manager.open(HERE);
    manager.register(port, &ping(0)).unwrap();
    let administration = Registration { class: 3, version: 2, rmpp_version: 1, ..Registration::default() };
    manager.register(port, &administration).unwrap();
    let question = datagram(PING, MadHeader::METHOD_GET, 7);
    let long = [question, question].concat();
    for (agent, wrong, error) in [
        (5, out(&question, 1, 0), SendError::NoAgent),
        (0, out(&question[..35], 1, 0), SendError::Length),
        (0, out(&[], 1, 0), SendError::Length),
        (0, out(&long, 1, 0), SendError::Length),
        (0, Outgoing { pkey_index: 1, ..out(&question, 1, 0) }, SendError::Partition),
        (0, Outgoing { to: Peer::Lid(0), ..out(&question, 1, 0) }, SendError::NoRoute),
        (0, Outgoing { to: Peer::Lid(9), ..out(&question, 1, 0) }, SendError::NoRoute),
        (1, out(&datagram(4, 1, 1), 1, 0), SendError::Class),
    ] {
        assert_eq!(send(&mut manager, at(0), port, agent, &wrong), Err(error));
    }
    assert!(manager.poll_transmit().is_none() && manager.poll_timeout().is_none());
    // A short one is filled up.
    send(&mut manager, at(0), port, 0, &out(&question[..40], 0, 0)).unwrap();
    assert_eq!(manager.poll_transmit().unwrap().bytes[40..], [0; 216]);
}

#[test]
fn requests_that_nobody_wants_are_answered_by_the_port() {
    let counters = Counters {
        xmit_bytes: 40,
        rcv_bytes: 1 << 40,
        xmit_packets: 3,
        rcv_packets: 5,
        multicast_rcv_packets: 2,
        rcv_errors: 70_000,
        ..Counters::default()
    };
    let ask = |attribute: u16, port: u8| {
        let mut bytes = datagram(MadHeader::CLASS_PERFORMANCE, MadHeader::METHOD_GET, 9);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[65] = port;
        let mut manager = manager();
        assert!(matches!(manager.handle(at(0), HERE, &route(), &bytes), Handled::Unclaimed(key) if key.class == 4));
        let answer = answer::answer(&bytes, || counters).unwrap();
        let (header, _) = MadHeader::parse(&answer).unwrap();
        assert_eq!((header.method, header.transaction_id), (MadHeader::METHOD_GET_RESPONSE, 9));
        (header.status, answer)
    };
    let long = |bytes: &[u8], at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().unwrap());
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().unwrap());
    let (status, info) = ask(MadHeader::ATTRIBUTE_CLASS_PORT_INFO, 0);
    assert_eq!((status, &info[64..68]), (0, &[1, 1, 3, 0][..]));
    let (status, short) = ask(0x12, 1);
    assert_eq!((status, short[65]), (0, 1));
    assert_eq!(short[72..74], [0xff, 0xff], "errors stop at their largest value");
    assert_eq!([word(&short, 88), word(&short, 92), word(&short, 96), word(&short, 100)], [10, u32::MAX, 3, 5]);
    let (status, extended) = ask(0x1d, 0xff);
    let values: Vec<u64> = (0..8).map(|index| long(&extended, 72 + 8 * index)).collect();
    assert_eq!((status, values), (0, vec![10, 1 << 38, 3, 5, 3, 3, 0, 2]));
    assert_eq!(ask(0x12, 2).0, MadHeader::STATUS_INVALID_FIELD);
    assert_eq!(ask(0x15, 1).0, MadHeader::STATUS_UNSUPPORTED);
    // Strangers do not reset counters, other classes are unsupported, and what asks nothing gets nothing.
    for (class, method, expected) in [
        (4, MadHeader::METHOD_SET, Some(MadHeader::STATUS_UNSUPPORTED)),
        (PING, MadHeader::METHOD_GET, Some(MadHeader::STATUS_UNSUPPORTED)),
        (PING, MadHeader::METHOD_SEND, None),
        (4, MadHeader::METHOD_GET_RESPONSE, None),
    ] {
        let answer = answer::answer(&datagram(class, method, 1), || counters);
        assert_eq!(answer.map(|answer| MadHeader::parse(&answer).unwrap().0.status), expected);
    }
}

#[test]
fn a_path_to_an_address_is_a_lid_that_leads_there() {
    let mut manager = manager();
    let port = manager.open(HERE);
    manager.register(port, &Registration { class: 3, version: 2, rmpp_version: 1, ..Registration::default() }).unwrap();
    manager.register(port, &ping(0)).unwrap();
    let lid_of = |manager: &mut Manager, destination: Gid, mask: u64| {
        let mut question = datagram(3, MadHeader::METHOD_GET, 1);
        question[16..18].copy_from_slice(&0x35u16.to_be_bytes());
        question[48..56].copy_from_slice(&mask.to_be_bytes());
        question[64..80].copy_from_slice(&destination.octets());
        let ask = Outgoing { to: Peer::Lid(mask as u16 % 3), ..out(&question, 1000, 0) };
        assert_eq!(send(manager, at(0), port, 0, &ask), Ok(()));
        let [answer] = deliveries(manager).try_into().unwrap();
        let (header, _) = MadHeader::parse(&answer.bytes).unwrap();
        (header.status, u16::from_be_bytes([answer.bytes[96], answer.bytes[97]]))
    };
    // As a program builds it that knows a GUID: with the prefix of link-local addresses.
    let guessed: Gid = "fe80::ffff:a00:2".parse::<std::net::Ipv6Addr>().map(Gid::from_ipv6).unwrap();
    assert_eq!(lid_of(&mut manager, guessed, 12), (0, 1));
    assert_eq!(lid_of(&mut manager, gid(2), 12), (0, 1), "the same address");
    // Or with the prefix of its own port.
    let guessed: Gid = "fd77::ffff:a00:2".parse::<std::net::Ipv6Addr>().map(Gid::from_ipv6).unwrap();
    assert_eq!(lid_of(&mut manager, guessed, 12), (0, 1));
    assert_eq!(lid_of(&mut manager, gid(3), 4), (0, 2));
    assert_ne!(lid_of(&mut manager, gid(3), 8).0, 0, "no destination");
    let question = datagram(PING, MadHeader::METHOD_GET, 7);
    send(&mut manager, at(0), port, 1, &Outgoing { to: Peer::Lid(2), ..out(&question, 100, 0) }).unwrap();
    let sent = manager.poll_transmit().unwrap();
    assert_eq!((sent.to.local, sent.to.remote), (gid(1), gid(3)));
    let mut answer = sent.bytes;
    answer[3] |= MadHeader::RESPONSE;
    let from = Route { remote: gid(3), ..route() };
    assert_eq!(manager.handle(at(1), HERE, &from, &answer), Handled::Taken);
    assert_eq!(deliveries(&mut manager)[0].peer, Peer::Lid(2));
}

//! Ids of one process that find each other by address and port, over the real sockets of `lo`: what programs are told,
//! and in which order. Queue pairs are not needed for that; the peer's number and the attributes are compared instead.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use transport::{Access, Kind, State};
use ubiverbs_hca::Nic;
use ubiverbs_hca::cm::{
    Body, CmError, ConnectParameters, ConnectionBody, Event, EventChannel, EventKind, Id, IdError, IdOption, UDP_QKEY,
};
use wire::Qpn;
use wire::cm::{PortSpace, RejectReason};

/// One NIC for all tests of this process, as programs have it.
fn nic() -> &'static Arc<Nic> {
    static NIC: OnceLock<Arc<Nic>> = OnceLock::new();
    NIC.get_or_init(|| Nic::of_process().unwrap())
}

fn channel() -> Arc<EventChannel> {
    Arc::new(EventChannel::new().unwrap())
}

fn id(channel: &Arc<EventChannel>) -> Arc<Id> {
    Id::new(nic(), channel, PortSpace::Tcp, Kind::ReliableConnected, 0)
}

fn datagrams(channel: &Arc<EventChannel>) -> Arc<Id> {
    Id::new(nic(), channel, PortSpace::Udp, Kind::UnreliableDatagram, 0)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The next event, which must come within a minute.
fn next(channel: &EventChannel) -> Event {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(event) = channel.try_take() {
            return event;
        }
        let mut polled = libc::pollfd { fd: channel.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        unsafe { libc::poll(&raw mut polled, 1, 100) };
        assert!(Instant::now() < deadline, "no event in a minute");
    }
}

fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let event = next(channel);
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// Proves that no event comes: within this time one would have.
fn quiet(channel: &EventChannel) {
    std::thread::sleep(Duration::from_millis(50));
    assert!(channel.try_take().is_none());
}

fn listen(channel: &Arc<EventChannel>, address: &str) -> (Arc<Id>, u16) {
    let listener = id(channel);
    listener.bind(at(address)).unwrap();
    listener.listen(0).unwrap();
    let port = listener.source().unwrap().port();
    (listener, port)
}

fn resolve(channel: &Arc<EventChannel>, id: &Id, address: &str, port: u16) {
    let mut address = at(address);
    address.set_port(port);
    id.resolve_address(None, address).unwrap();
    assert_eq!(expect(channel, EventKind::AddressResolved).status, 0);
    id.resolve_route().unwrap();
    assert_eq!(expect(channel, EventKind::RouteResolved).status, 0);
}

fn parameters(qpn: u32, private_data: &[u8]) -> ConnectParameters<'_> {
    ConnectParameters {
        private_data,
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 7,
        qpn: Qpn::new(qpn),
        ..ConnectParameters::default()
    }
}

/// Parameters of a queue pair that nobody else has: who asks twice for the same one is taken for a ghost.
fn anybody() -> ConnectParameters<'static> {
    static NEXT: AtomicU32 = AtomicU32::new(0x1000);
    parameters(NEXT.fetch_add(1, Ordering::Relaxed), &[])
}

fn connection(event: &Event) -> &ConnectionBody {
    let Body::Connection(body) = &event.body else { panic!("{event:?}") };
    body
}

/// A connected pair: the client and the server's id, each with a channel.
fn pair(address: &str, to: &str) -> (Arc<Id>, Arc<EventChannel>, Arc<Id>, Arc<EventChannel>) {
    let (server, client) = (channel(), channel());
    let (_listener, port) = listen(&server, address);
    let active = id(&client);
    resolve(&client, &active, to, port);
    active.connect(&anybody()).unwrap();
    let passive = expect(&server, EventKind::ConnectRequest).id;
    passive.accept(&anybody()).unwrap();
    expect(&client, EventKind::ConnectResponse);
    active.establish().unwrap();
    expect(&server, EventKind::Established);
    (active, client, passive, server)
}

/// Three bits say how often: more than seven is seven, as with Linux.
#[test]
fn counts_of_retries_above_seven_are_seven() {
    let (server, client) = (channel(), channel());
    let (_listener, port) = listen(&server, "0.0.0.0:0");
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", port);
    active.connect(&ConnectParameters { retry_count: 8, rnr_retry_count: 255, ..anybody() }).unwrap();
    let request = expect(&server, EventKind::ConnectRequest);
    let body = connection(&request);
    assert_eq!((body.retry_count, body.rnr_retry_count), (7, 7));
    request.id.reject(RejectReason::Consumer, &[]).unwrap();
}

#[test]
fn two_ids_connect_use_each_others_numbers_and_part() {
    let (server, client) = (channel(), channel());
    let (listener, port) = listen(&server, "0.0.0.0:0");
    assert!(port != 0 && listener.device().is_none(), "a wildcard is of no device");
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", port);
    assert_eq!(active.device().unwrap().name(), "ubi_lo");
    assert_ne!(active.source().unwrap().port(), 0);
    active.connect(&parameters(0x111, b"hello")).unwrap();

    let request = expect(&server, EventKind::ConnectRequest);
    assert!(Arc::ptr_eq(request.listener.as_ref().unwrap(), &listener));
    let body = connection(&request);
    assert_eq!((body.private_data.len(), &body.private_data[..6]), (56, &b"hello\0"[..]));
    assert_eq!((body.responder_resources, body.initiator_depth), (5, 3), "the other side's point of view");
    assert_eq!((body.retry_count, body.rnr_retry_count, body.qpn), (6, 7, 0x111));
    let passive = Arc::clone(&request.id);
    assert_eq!(passive.source(), Some(SocketAddr::new([127, 0, 0, 1].into(), port)));
    assert_eq!(passive.destination(), active.source());
    assert_eq!(passive.device().unwrap().name(), "ubi_lo");
    passive.accept(&ConnectParameters { responder_resources: 2, ..parameters(0x222, b"welcome") }).unwrap();
    let ready = passive.modify_for(State::ReadyToReceive).unwrap();
    assert_eq!((ready.dest_qpn, ready.rq_psn), (Some(Qpn::new(0x111)), Some(passive.receive_psn())));
    assert_eq!(passive.modify_for(State::ReadyToSend).unwrap().sq_psn, Some(active.receive_psn()), "the peer chooses");
    assert_eq!(ready.max_dest_rd_atomic, Some(2));

    let response = expect(&client, EventKind::ConnectResponse);
    let body = connection(&response);
    assert_eq!((body.private_data.len(), &body.private_data[..8]), (196, &b"welcome\0"[..]));
    assert_eq!((body.responder_resources, body.initiator_depth, body.qpn), (5, 2, 0x222));
    let ready = active.modify_for(State::ReadyToReceive).unwrap();
    assert_eq!((ready.dest_qpn, ready.rq_psn), (Some(Qpn::new(0x222)), Some(active.receive_psn())));
    let sending = active.modify_for(State::ReadyToSend).unwrap();
    assert_eq!((sending.retry_cnt, sending.sq_psn), (Some(6), Some(passive.receive_psn())));
    let everything = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    assert_eq!(active.modify_for(State::Init).unwrap().access, Some(everything));
    quiet(&server);
    active.establish().unwrap();
    expect(&server, EventKind::Established);

    active.disconnect().unwrap();
    expect(&server, EventKind::Disconnected);
    passive.disconnect().unwrap();
    assert_eq!(expect(&client, EventKind::Disconnected).status, 0);
    expect(&client, EventKind::TimewaitExit);
    expect(&server, EventKind::TimewaitExit);
}

#[test]
fn whoever_goes_without_a_word_disconnects_its_peer() {
    let (active, _client, _passive, server) = pair("127.0.0.1:0", "127.0.0.1:1");
    active.destroy();
    expect(&server, EventKind::Disconnected);
}

#[test]
fn both_may_part_at_once() {
    let (active, client, passive, server) = pair("127.0.0.1:0", "127.0.0.1:1");
    active.disconnect().unwrap();
    passive.disconnect().unwrap();
    for channel in [&client, &server] {
        expect(channel, EventKind::Disconnected);
        expect(channel, EventKind::TimewaitExit);
    }
}

#[test]
fn a_wildcard_of_ipv6_hears_ipv4_too_and_one_that_says_otherwise_does_not() {
    let (_, _, passive, _) = pair("[::]:0", "127.0.0.1:1");
    assert_eq!(passive.source().unwrap().ip(), at("127.0.0.1:1").ip());
    let (_, _, passive, _) = pair("[::]:0", "[::1]:1");
    assert_eq!(passive.source().unwrap().ip(), at("[::1]:1").ip());
    let (server, client) = (channel(), channel());
    let listener = id(&server);
    listener.set(IdOption::OnlyItsFamily(true)).unwrap();
    listener.bind(at("[::]:0")).unwrap();
    listener.listen(0).unwrap();
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", listener.source().unwrap().port());
    active.connect(&anybody()).unwrap();
    assert_eq!(expect(&client, EventKind::Rejected).status, 8);
}

#[test]
fn nobody_listens() {
    let client = channel();
    let unused = id(&client);
    unused.bind(at("127.0.0.1:0")).unwrap();
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", unused.source().unwrap().port());
    active.connect(&anybody()).unwrap();
    let event = expect(&client, EventKind::Rejected);
    assert_eq!((event.status, connection(&event).private_data.len()), (8, 148));
}

#[test]
fn a_listener_refuses_with_words() {
    let (server, client) = (channel(), channel());
    let (_listener, port) = listen(&server, "127.0.0.1:0");
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", port);
    active.connect(&anybody()).unwrap();
    let request = expect(&server, EventKind::ConnectRequest);
    let long = [7; 149];
    assert!(matches!(
        request.id.reject(RejectReason::Consumer, &long),
        Err(CmError::Id(IdError::PrivateData { room: 148, .. }))
    ));
    request.id.reject(RejectReason::Consumer, b"no").unwrap();
    let event = expect(&client, EventKind::Rejected);
    assert_eq!((event.status, &connection(&event).private_data[..3]), (28, &b"no\0"[..]));
}

#[test]
fn a_client_may_refuse_the_answer() {
    let (server, client) = (channel(), channel());
    let (_listener, port) = listen(&server, "127.0.0.1:0");
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", port);
    active.connect(&anybody()).unwrap();
    let passive = expect(&server, EventKind::ConnectRequest).id;
    passive.accept(&anybody()).unwrap();
    expect(&client, EventKind::ConnectResponse);
    active.reject(RejectReason::Consumer, b"changed my mind").unwrap();
    let event = expect(&server, EventKind::Rejected);
    assert_eq!((event.status, &connection(&event).private_data[..7]), (28, &b"changed"[..]));
}

/// Kernels tell nothing of such an id: its program may not have looked at it yet.
#[test]
fn a_client_that_gives_up_is_no_news_until_it_is_accepted() {
    let (server, client) = (channel(), channel());
    let (_listener, port) = listen(&server, "127.0.0.1:0");
    let ask = || {
        let active = id(&client);
        resolve(&client, &active, "127.0.0.1:1", port);
        active.connect(&anybody()).unwrap();
        (active, expect(&server, EventKind::ConnectRequest).id)
    };
    let (active, passive) = ask();
    active.destroy();
    // An id at its end is disconnected already.
    let deadline = Instant::now() + Duration::from_secs(60);
    while passive.disconnect().is_err() {
        assert!(Instant::now() < deadline, "the client gave up, and it was not heard");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (active, other) = ask();
    assert_eq!(passive.accept(&anybody()).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(passive.reject(RejectReason::Consumer, &[]).unwrap_err().errno(), libc::EINVAL);
    quiet(&server);
    other.accept(&anybody()).unwrap();
    expect(&client, EventKind::ConnectResponse);
    active.establish().unwrap();
    expect(&server, EventKind::Established);
}

#[test]
fn who_listens_no_more_refuses_what_it_has_not_seen() {
    let (server, client) = (channel(), channel());
    let (listener, port) = listen(&server, "127.0.0.1:0");
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", port);
    active.connect(&anybody()).unwrap();
    let mut polled = libc::pollfd { fd: server.raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live structure.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 60_000) }, 1);
    listener.destroy();
    expect(&client, EventKind::Rejected);
    assert!(server.try_take().is_none(), "what waited for it is gone");
    // The port is free again, though another test may have it for a while.
    let (again, deadline) = (id(&server), Instant::now() + Duration::from_secs(60));
    while let Err(error) = again.bind(SocketAddr::new([127, 0, 0, 1].into(), port)) {
        assert!(matches!(error, CmError::Id(IdError::InUse { .. })) && Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As with kernels: libfabric finds no device that connects otherwise.
#[test]
fn a_loopback_address_chooses_no_device_until_the_peer_is_known() {
    for (loopback, peer) in [("127.0.0.1:0", "127.0.0.1:1"), ("127.1.2.3:0", "127.1.2.3:1"), ("[::1]:0", "[::1]:1")] {
        let (server, client) = (channel(), channel());
        let (listener, port) = listen(&server, loopback);
        assert!(listener.device().is_none() && listener.source_gid().is_none(), "{loopback}");
        assert_eq!(listener.source().unwrap(), SocketAddr::new(at(loopback).ip(), port));
        let active = id(&client);
        active.bind(at(loopback)).unwrap();
        assert!(active.device().is_none(), "{loopback}");
        resolve(&client, &active, peer, port);
        assert_eq!(active.device().unwrap().name(), "ubi_lo");
        active.connect(&anybody()).unwrap();
        let passive = expect(&server, EventKind::ConnectRequest).id;
        assert_eq!(passive.device().unwrap().name(), "ubi_lo");
    }
}

#[test]
fn an_address_has_one_owner() {
    let channel = channel();
    let (_listener, port) = listen(&channel, "127.0.0.1:0");
    let errno = |address: String| id(&channel).bind(at(&address)).err().map(|error| error.errno());
    assert_eq!(errno(format!("127.0.0.1:{port}")), Some(libc::EADDRNOTAVAIL));
    assert_eq!(errno(format!("0.0.0.0:{port}")), Some(libc::EADDRNOTAVAIL));
    assert_eq!(errno(format!("[::]:{port}")), Some(libc::EADDRNOTAVAIL));
    assert_eq!(errno(format!("[::1]:{port}")), None);
    assert_eq!(errno("203.0.113.7:0".into()), Some(libc::EADDRNOTAVAIL));
    assert_eq!(errno("239.1.1.1:0".into()), Some(libc::EADDRNOTAVAIL));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let channel = channel();
    let fresh = id(&channel);
    let invalid = |answer: Result<(), CmError>| assert_eq!(answer.unwrap_err().errno(), libc::EINVAL);
    invalid(fresh.resolve_route());
    invalid(fresh.connect(&anybody()));
    invalid(fresh.accept(&anybody()));
    invalid(fresh.reject(RejectReason::Consumer, &[]));
    invalid(fresh.establish());
    invalid(fresh.disconnect());
    invalid(fresh.notify_established());
    invalid(fresh.set(IdOption::AckTimeout(32)));
    invalid(fresh.modify_for(State::ReadyToReceive).map(|_| ()));
    invalid(fresh.modify_for(State::Error).map(|_| ()));
    assert_eq!(fresh.modify_for(State::Init).unwrap().access, Some(Access::empty()));
    resolve(&channel, &fresh, "127.0.0.1:1", 1);
    invalid(fresh.connect(&parameters(1, &[0; 57])));
    invalid(fresh.connect(&ConnectParameters { initiator_depth: 200, ..anybody() }));
    invalid(fresh.bind(at("127.0.0.1:0")));
    invalid(fresh.listen(1));
    fresh.destroy();
    invalid(fresh.resolve_route());
    quiet(&channel);
}

#[test]
fn datagrams_find_a_queue_pair_or_are_refused() {
    let (server, client) = (channel(), channel());
    let listener = datagrams(&server);
    listener.bind(at("127.0.0.1:0")).unwrap();
    listener.listen(4).unwrap();
    let port = listener.source().unwrap().port();
    let asking = |data: &[u8]| {
        let active = datagrams(&client);
        resolve(&client, &active, "127.0.0.1:1", port);
        active.connect(&parameters(0x333, data)).unwrap();
        active
    };
    let active = asking(b"where?");
    let request = expect(&server, EventKind::ConnectRequest);
    let Body::Datagram(body) = &request.body else { panic!("{request:?}") };
    assert_eq!((body.private_data.len(), &body.private_data[..7]), (180, &b"where?\0"[..]));
    request.id.accept(&parameters(0x444, b"here")).unwrap();
    let event = expect(&client, EventKind::Established);
    let Body::Datagram(body) = &event.body else { panic!("{event:?}") };
    assert_eq!((body.qpn, body.qkey, body.private_data.len()), (Qpn::new(0x444), UDP_QKEY, 136));
    assert_eq!(body.av.dgid.to_ip(), at("127.0.0.1:1").ip());
    assert_eq!(active.modify_for(State::Init).unwrap().qkey, Some(UDP_QKEY));
    active.disconnect().unwrap();
    request.id.disconnect().unwrap();
    let _other = asking(&[]);
    expect(&server, EventKind::ConnectRequest).id.reject(RejectReason::Consumer, b"no").unwrap();
    assert_eq!(expect(&client, EventKind::Unreachable).status, 2);
    quiet(&server);
}

#[test]
fn an_id_takes_its_events_along() {
    let (one, other) = (channel(), channel());
    let moving = id(&one);
    moving.resolve_address(None, at("127.0.0.1:9")).unwrap();
    moving.migrate(&other).unwrap();
    assert!(one.try_take().is_none());
    expect(&other, EventKind::AddressResolved);
    moving.resolve_route().unwrap();
    expect(&other, EventKind::RouteResolved);
}

#[test]
fn an_observer_is_told_of_events_and_may_call_the_manager() {
    let (server, client) = (channel(), channel());
    let (listener, port) = listen(&server, "127.0.0.1:0");
    let (watched, seen) = (Arc::downgrade(&server), Arc::new(Mutex::new(Vec::new())));
    let told = Arc::clone(&seen);
    assert!(server.observe(move || {
        while let Some(event) = watched.upgrade().and_then(|server| server.try_take()) {
            // Whatever thread this is: nothing is locked.
            assert_eq!(event.id.source().map(|source| source.port()), Some(port));
            told.lock().unwrap().push((event.kind, Arc::clone(&event.id)));
            match event.kind {
                EventKind::ConnectRequest => event.id.accept(&anybody()).unwrap(),
                EventKind::Disconnected => event.id.disconnect().unwrap(),
                _ => {}
            }
        }
    }));
    assert!(!server.observe(|| ()), "there is one");
    let active = id(&client);
    resolve(&client, &active, "127.0.0.1:1", port);
    active.connect(&anybody()).unwrap();
    expect(&client, EventKind::ConnectResponse);
    active.establish().unwrap();
    active.disconnect().unwrap();
    expect(&client, EventKind::Disconnected);
    let kinds: Vec<_> = seen.lock().unwrap().iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [EventKind::ConnectRequest, EventKind::Established, EventKind::Disconnected]);
    drop(listener);
}

#[test]
fn groups_are_joined_from_a_device() {
    let channel = channel();
    let member = datagrams(&channel);
    assert!(member.join("239.1.2.3".parse().unwrap(), 7).is_err(), "from nowhere");
    member.bind(at("127.0.0.1:0")).unwrap();
    assert!(member.join("239.1.2.3".parse().unwrap(), 7).is_err(), "a loopback address is of no device");
    member.resolve_address(None, at("239.1.2.3:0")).unwrap();
    expect(&channel, EventKind::AddressResolved);
    assert!(member.join("10.1.2.3".parse().unwrap(), 7).is_err(), "not a group");
    member.join("239.1.2.3".parse().unwrap(), 7).unwrap();
    let event = expect(&channel, EventKind::MulticastJoin);
    let Body::Datagram(body) = &event.body else { panic!("{event:?}") };
    assert_eq!((body.qpn, body.user, body.av.dgid.is_multicast()), (Qpn::MULTICAST, 7, true));
    member.leave("239.1.2.3".parse().unwrap()).unwrap();
    assert!(member.leave("239.1.2.3".parse().unwrap()).is_err());
}

#[test]
fn a_thousand_connect_and_nothing_is_left() {
    let (server, client) = (channel(), channel());
    let (_listener, port) = listen(&server, "127.0.0.1:0");
    let actives: Vec<_> = (0..1000).map(|_| id(&client)).collect();
    for active in &actives {
        resolve(&client, active, "127.0.0.1:1", port);
        active.connect(&anybody()).unwrap();
    }
    let mut passives = Vec::new();
    let (mut answered, mut established) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(120);
    // Both sides in turn: a message that was lost on the way comes again, and then the other side has something to do.
    while established < actives.len() || answered < actives.len() {
        assert!(Instant::now() < deadline, "{answered} were answered, {established} were established");
        while let Some(event) = server.try_take() {
            match event.kind {
                EventKind::ConnectRequest => {
                    event.id.accept(&anybody()).unwrap();
                    passives.push(event.id);
                }
                EventKind::Established => established += 1,
                _ => panic!("{event:?}"),
            }
        }
        while let Some(event) = client.try_take() {
            assert_eq!(event.kind, EventKind::ConnectResponse, "{event:?}");
            event.id.establish().unwrap();
            answered += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    for active in &actives {
        active.disconnect().unwrap();
    }
    for _ in 0..actives.len() {
        expect(&server, EventKind::Disconnected).id.disconnect().unwrap();
    }
}

/// Calls of the program are told to the NIC that is present: none may be lost because two threads call at once.
#[test]
fn a_nic_that_is_there_is_present_for_all_threads_at_once() {
    let ours = nic();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let absent = (0..100_000).filter(|_| Nic::present().is_none()).count();
                assert_eq!(absent, 0);
            });
        }
    });
    assert!(Arc::ptr_eq(ours, &Nic::present().unwrap()));
}

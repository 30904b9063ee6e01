//! What a stranger cannot do who sends UDP packets with any source address and knows the numbers of queue pairs: end a
//! connection of the connection manager.

use crate::crafted::{Crafted, general_services, management};
use hca::cm::{ConnectParameters, Event, EventChannel, EventKind, Id};
use stage::drops::{Bench, LIMIT};
use stage::turn;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;
use trace::DropReason;
use transport::Kind;
use wire::cm::{CmDatagram, IpCm, Message, PortSpace, ServiceId};
use wire::{Gid, Psn, Qpn};

/// Events of a channel, in order, while the NIC is driven.
fn next(bench: &Bench, channel: &EventChannel, kind: EventKind) -> Event {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(event) = channel.try_take() {
            assert_eq!(event.kind, kind, "{event:?}");
            return event;
        }
        assert!(Instant::now() < deadline, "no {kind:?}");
        bench.turn();
    }
}

/// A REQ as the connection manager of another program of this host sends it.
fn request(port: u16, qpn: Qpn) -> CmDatagram {
    let own = Gid::from_ipv4(Ipv4Addr::LOCALHOST);
    let route = cm::Route { source: own, destination: own };
    let mut manager = cm::Manager::new(cm::Config::default());
    let mut private_data = [0; 92];
    IpCm::new(9, Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()).encode(&mut private_data).unwrap();
    let private_data = wire::cm::Data::new(private_data);
    let connect = cm::Connect::new(route, ServiceId::ip(PortSpace::Tcp, port), qpn, Psn::new(1));
    manager.connect(cm::Time::ZERO, cm::Connect { private_data, ..connect }).unwrap();
    manager.poll_transmit().expect("the request").datagram
}

#[test]
fn a_request_that_claims_a_queue_pair_in_use_ends_nothing() {
    let _turn = turn();
    let (bench, raw) = (Bench::new(), Crafted::new());
    let [server, client] = [(); 2].map(|()| Arc::new(EventChannel::new().unwrap()));
    let new = |channel| Id::new(&bench.nic, channel, PortSpace::Tcp, Kind::ReliableConnected, 0);
    let listener = new(&server);
    listener.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    listener.listen(0).unwrap();
    let port = listener.source().unwrap().port();
    let active = new(&client);
    active.resolve_address(None, (Ipv4Addr::LOCALHOST, port).into()).unwrap();
    next(&bench, &client, EventKind::AddressResolved);
    active.resolve_route().unwrap();
    next(&bench, &client, EventKind::RouteResolved);
    let with = |qpn| ConnectParameters { qpn: Qpn::new(qpn), ..ConnectParameters::default() };
    active.connect(&with(0x1111)).unwrap();
    let passive = next(&bench, &server, EventKind::ConnectRequest).id;
    passive.accept(&with(0x2222)).unwrap();
    next(&bench, &client, EventKind::ConnectResponse);
    active.establish().unwrap();
    next(&bench, &server, EventKind::Established);
    // The claim is refused; the refusal comes back to this host, where no request is known that it could be for.
    let claim = request(port, Qpn::new(0x1111));
    assert!(matches!(claim.message, Message::Req(_)));
    let before = bench.nic.drops(DropReason::CmUnknown);
    let deadline = Instant::now() + LIMIT;
    while bench.nic.drops(DropReason::CmUnknown) < before + 4 {
        raw.tell(&management(&raw, &general_services(), &claim));
        bench.turn();
        assert!(Instant::now() < deadline, "no refusal");
    }
    assert!(server.try_take().is_none() && client.try_take().is_none(), "a claim ends nothing");
    active.disconnect().unwrap();
    next(&bench, &server, EventKind::Disconnected);
    passive.disconnect().unwrap();
    next(&bench, &client, EventKind::Disconnected);
    drop((listener, active, passive));
    while server.try_take().or_else(|| client.try_take()).is_some() {}
}

//! The plain course of things, without faults.
#![allow(missing_docs)]

use std::time::Duration;
use ubiverbs_cm::{Accept, Config, Connect, Event, Listen, Manager, Resolve, Route, SidrAnswer, Time};
use wire::cm::{Data, PortSpace, ServiceId};
use wire::{Gid, Psn, Qkey, Qpn};

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, last].into())
}

fn service() -> ServiceId {
    ServiceId::ip(PortSpace::Tcp, 7174)
}

fn route() -> Route {
    Route { source: gid(1), destination: gid(2) }
}

fn exchange(now: Time, a: &mut Manager, b: &mut Manager) {
    loop {
        let (from_a, from_b) = (a.poll_transmit(), b.poll_transmit());
        if from_a.is_none() && from_b.is_none() {
            return;
        }
        for (transmit, to) in [(from_a, &mut *b), (from_b, &mut *a)] {
            if let Some(transmit) = transmit {
                to.handle(now, transmit.route, &transmit.datagram);
            }
        }
    }
}

fn pair() -> (Manager, Manager) {
    (Manager::new(Config { seed: 1, ..Config::default() }), Manager::new(Config { seed: 2, ..Config::default() }))
}

#[test]
fn a_connection_is_made_and_ended() {
    let (mut a, mut b) = pair();
    let now = Time::from_nanos(5);
    let listener = b.listen(Listen::new(service())).unwrap();
    let private_data = Data::from_slice(b"hello").unwrap();
    let connect = Connect { private_data, ..Connect::new(route(), service(), Qpn::new(0x11), Psn::new(7)) };
    let active = a.connect(now, connect).unwrap();
    exchange(now, &mut a, &mut b);
    let Some(Event::Request { listener: heard, id: passive, route: back, request, .. }) = b.poll_event() else {
        panic!("no request")
    };
    assert_eq!((heard, back, request.local_qpn), (listener, route().reversed(), Qpn::new(0x11)));
    assert_eq!(request.private_data, private_data);
    b.accept(now, passive, Accept::new(Qpn::new(0x22), Psn::new(8))).unwrap();
    exchange(now, &mut a, &mut b);
    let Some(Event::Reply { id, reply, .. }) = a.poll_event() else { panic!("no reply") };
    assert_eq!((id, reply.local_qpn, reply.starting_psn), (active, Qpn::new(0x22), Psn::new(8)));
    a.confirm(now, active, b"").unwrap();
    exchange(now, &mut a, &mut b);
    assert_eq!(b.poll_event(), Some(Event::Established { id: passive }));
    a.disconnect(now, active, b"bye").unwrap();
    exchange(now, &mut a, &mut b);
    let Some(Event::DisconnectRequested { id, private_data }) = b.poll_event() else { panic!("no DREQ") };
    assert_eq!((id, &private_data.bytes()[..4]), (passive, &b"bye\0"[..]));
    b.answer_disconnect(now, passive, b"too").unwrap();
    exchange(now, &mut a, &mut b);
    assert!(matches!(a.poll_event(), Some(Event::Disconnected { id, .. }) if id == active));
    assert_eq!((a.poll_event(), b.poll_event()), (None, None));
    for (manager, id) in [(&mut a, active), (&mut b, passive)] {
        let until = manager.poll_timeout().unwrap();
        manager.handle_timeout(until);
        assert_eq!(manager.poll_event(), Some(Event::TimewaitEnded { id }));
        assert_eq!((manager.remembered(), manager.poll_timeout(), manager.poll_transmit()), (0, None, None));
    }
}

#[test]
fn a_request_that_is_not_confirmed_can_be_forgotten() {
    let (mut a, mut b) = pair();
    let now = Time::from_nanos(5);
    b.listen(Listen::new(service())).unwrap();
    let connect = Connect::new(route(), service(), Qpn::new(0x11), Psn::new(7));
    let active = a.connect(now, connect).unwrap();
    exchange(now, &mut a, &mut b);
    let Some(Event::Request { id: passive, .. }) = b.poll_event() else { panic!("no request") };
    b.accept(now, passive, Accept::new(Qpn::new(0x22), Psn::new(8))).unwrap();
    // The reply is lost. Nothing is left of the request, nor is anything sent to an address that has proven nothing.
    assert!(b.poll_transmit().is_some());
    b.forget(now, passive).unwrap();
    assert_eq!((b.remembered(), b.poll_timeout(), b.poll_transmit(), b.poll_event()), (0, None, None, None));
    // Who asks again asks anew.
    a.handle_timeout(a.poll_timeout().expect("it repeats its request"));
    exchange(now, &mut a, &mut b);
    let Some(Event::Request { id: passive, .. }) = b.poll_event() else { panic!("no request") };
    b.accept(now, passive, Accept::new(Qpn::new(0x22), Psn::new(8))).unwrap();
    exchange(now, &mut a, &mut b);
    assert!(matches!(a.poll_event(), Some(Event::Reply { id, .. }) if id == active));
}

/// The REP is not repeated, as the peer has proven nothing, and its RTU is lost. Its data is not.
#[test]
fn data_is_an_answer_to_a_reply() {
    let (mut a, mut b) = pair();
    let (mut now, second) = (Time::from_nanos(5), Duration::from_secs(1));
    b.listen(Listen::new(service())).unwrap();
    let active = a.connect(now, Connect::new(route(), service(), Qpn::new(0x11), Psn::new(7))).unwrap();
    exchange(now, &mut a, &mut b);
    let Some(Event::Request { id: passive, .. }) = b.poll_event() else { panic!("no request") };
    b.accept(now, passive, Accept::new(Qpn::new(0x22), Psn::new(8))).unwrap();
    let lost = b.poll_transmit().expect("a reply");
    // A second later the request is repeated, and so is the reply.
    let since = now;
    while now < since + second {
        now = b.poll_timeout().expect("it waits").min(since + second);
        b.handle_timeout(now);
        assert_eq!(b.poll_transmit(), None, "the peer has not proven itself");
    }
    a.handle_timeout(now);
    exchange(now, &mut a, &mut b);
    let Some(Event::Reply { reply, .. }) = a.poll_event() else { panic!("no reply") };
    assert_eq!(wire::cm::Message::Rep(reply), lost.datagram.message);
    a.confirm(now, active, b"").unwrap();
    assert!(a.poll_transmit().is_some(), "an RTU, which is lost");
    // Soon the driver is asked whether the queue pair has got something, whatever the pace of the repetitions is.
    let look = b.poll_timeout().expect("it waits");
    assert!(look <= now + Duration::from_millis(10), "{look:?}");
    assert_eq!(b.unheard(look).collect::<Vec<_>>(), [passive]);
    b.heard(look, passive);
    b.handle_timeout(look);
    assert_eq!((b.poll_event(), b.poll_transmit()), (Some(Event::Established { id: passive }), None));
    assert_eq!(b.poll_timeout(), None);
}

#[test]
fn a_datagram_service_is_found() {
    let (mut a, mut b) = pair();
    let now = Time::ZERO;
    b.listen(Listen::new(service())).unwrap();
    let asked = a.resolve(now, Resolve::new(route(), service())).unwrap();
    exchange(now, &mut a, &mut b);
    let Some(Event::ServiceRequest { id, request, .. }) = b.poll_event() else { panic!("no request") };
    assert_eq!(request.service_id, service());
    b.answer(now, id, SidrAnswer::valid(Qpn::new(0x33), Qkey::new(0x0123_4567))).unwrap();
    exchange(now, &mut a, &mut b);
    let Some(Event::ServiceAnswer { id, answer }) = a.poll_event() else { panic!("no answer") };
    assert_eq!((id, answer.qpn, answer.qkey), (asked, Qpn::new(0x33), Qkey::new(0x0123_4567)));
    assert_eq!(a.remembered(), 0);
    b.handle_timeout(b.poll_timeout().unwrap());
    assert_eq!(b.remembered(), 0);
}

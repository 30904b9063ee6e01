//! A model of what programs may hear of their ids. Random programs on two hosts call whatever they like in any weather;
//! the model knows which calls a stage of an id allows and which events may follow each other, compares what two sides
//! agreed on, and fails on a port, a connection or an entry of a table that is left behind.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use cm::id::{Body, ConnectParameters, EventKind, IdOption, IdRecord, LocalAddress, Output, Stage};
use cm::{Config, IdError, IdKey, Ids, Route, Time, Transmit};
use proptest::prelude::*;
use scenery::connections::{A, B, Weather};
use sim::Rng;
use trace::ConnectionEnd;
use transport::{Kind, State};
use wire::cm::{CommId, PortSpace, RejectReason};
use wire::{Gid, Mtu, Qpn};

/// One thing that happens. `which` picks among the ids a host has.
#[derive(Clone, Debug)]
enum Step {
    Create {
        host: usize,
        datagrams: bool,
        reuse: bool,
    },
    /// An id that listens.
    Serve {
        host: usize,
        datagrams: bool,
        reuse: bool,
        port: u16,
    },
    /// An id that asks for a connection.
    Dial {
        host: usize,
        datagrams: bool,
        port: u16,
    },
    Call {
        host: usize,
        which: usize,
        call: Call,
    },
    /// Data came before the peer's confirmation did.
    HearEarly {
        host: usize,
        which: usize,
    },
    /// A process ends without a word.
    Die {
        host: usize,
    },
    Wait {
        micros: u64,
    },
    Weather {
        loss: f64,
        duplicate: f64,
        jitter: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Bind { port: u16, anywhere: bool },
    Listen,
    StopListening,
    ResolveAddress { port: u16 },
    ResolveRoute,
    Connect,
    Accept,
    Reject,
    Establish,
    Disconnect,
    Destroy { forgets: bool },
}

impl Call {
    /// In which stages an id may make it.
    fn stages(self) -> &'static [Stage] {
        match self {
            Call::Bind { .. } => &[Stage::Idle],
            Call::Listen => &[Stage::Bound],
            Call::StopListening => &[Stage::Listening],
            Call::ResolveAddress { .. } => &[Stage::Idle, Stage::Bound],
            Call::ResolveRoute => &[Stage::AddressResolved],
            Call::Connect => &[Stage::RouteResolved],
            Call::Accept => &[Stage::Requested],
            Call::Reject => &[Stage::Requested, Stage::Answered],
            Call::Establish => &[Stage::Answered],
            Call::Disconnect => {
                &[Stage::Connected, Stage::Accepted, Stage::PeerLeft, Stage::Disconnecting, Stage::Ended]
            }
            Call::Destroy { .. } => &[],
        }
    }

    /// Whether the connection may have ended meanwhile though its program has not heard of it.
    fn may_come_too_late(self) -> bool {
        matches!(self, Call::Accept | Call::Reject | Call::Disconnect)
    }

    /// The stage that follows where the call succeeds.
    fn leads_to(self, from: Stage, datagrams: bool) -> Stage {
        match (self, from) {
            (Call::Bind { .. } | Call::StopListening, _) => Stage::Bound,
            (Call::Listen, _) => Stage::Listening,
            (Call::ResolveAddress { .. }, _) => Stage::AddressResolved,
            (Call::ResolveRoute, _) => Stage::RouteResolved,
            (Call::Connect, _) => Stage::Connecting,
            (Call::Accept, _) if !datagrams => Stage::Accepted,
            (Call::Accept | Call::Establish, _) => Stage::Connected,
            (Call::Reject, _) => Stage::Ended,
            (Call::Disconnect, Stage::Connected | Stage::Accepted) if !datagrams => Stage::Disconnecting,
            (Call::Disconnect, Stage::PeerLeft) => Stage::Ended,
            (Call::Disconnect | Call::Destroy { .. }, stage) => stage,
        }
    }
}

#[derive(Clone, Debug)]
struct Program {
    seed: u64,
    steps: Vec<Step>,
}

/// What a program has heard of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Nothing,
    Address,
    Route,
    Asked,
    Answered,
    Accepted,
    Up,
    Down,
    Over,
}

/// What a program knows of an id, and what it did.
#[derive(Clone, Debug)]
struct Known {
    heard: Heard,
    reuse: bool,
    /// The address at which it has its port, if it has one. An id of a peer's request shares its listener's.
    claimed: Option<IpAddr>,
    /// What it said when it connected or accepted.
    said: Vec<u8>,
    disconnected: bool,
}

struct Host {
    ids: Ids,
    address: Ipv4Addr,
    ports: BTreeSet<(PortSpace, u16)>,
    known: BTreeMap<IdKey, Known>,
    died: bool,
}

impl Host {
    fn local(&self) -> LocalAddress {
        let (gid, mtu) = (Gid::from_ipv4(self.address), Mtu::B4096);
        LocalAddress { gid, port: 1, index: 3, mtu, ca_guid: u64::from(u32::from(self.address)), interface: 2 }
    }

    fn ids_of(&self, space: PortSpace) -> impl Iterator<Item = (IdKey, &IdRecord)> {
        self.ids.iter().filter(move |(_, record)| record.space == space)
    }
}

/// Takes a port for a process that does not have it.
fn take(ports: &mut BTreeSet<(PortSpace, u16)>, space: PortSpace, address: SocketAddr) -> Result<u16, IdError> {
    let port = match address.port() {
        0 => (20_000..).find(|port| !ports.contains(&(space, *port))).unwrap(),
        port => port,
    };
    assert!(ports.insert((space, port)), "{port} is taken twice");
    Ok(port)
}

struct Model {
    hosts: [Host; 2],
    now: Time,
    rng: Rng,
    weather: Weather,
    /// Messages under way.
    parcels: BTreeMap<(Time, u64), (usize, Transmit)>,
    posted: u64,
    /// Numbers of queue pairs and of private data.
    count: u32,
    /// Sides that were connected.
    connected: usize,
    /// Pairs of ids that were compared.
    compared: usize,
}

impl Model {
    fn new(seed: u64) -> Model {
        let host = |index: u8| Host {
            ids: Ids::new(Config { seed: u128::from(seed) * 2 + u128::from(index), ..Config::default() }),
            address: Ipv4Addr::new(10, 0, 0, index + 1),
            ports: BTreeSet::new(),
            known: BTreeMap::new(),
            died: false,
        };
        Model {
            hosts: [host(0), host(1)],
            now: Time::from_nanos(1_000_000),
            rng: Rng::new(seed),
            weather: Weather::FINE,
            parcels: BTreeMap::new(),
            posted: 0,
            count: 0,
            connected: 0,
            compared: 0,
        }
    }

    fn create(&mut self, host: usize, datagrams: bool, reuse: bool) -> IdKey {
        let Host { ids, known, .. } = &mut self.hosts[host];
        let (space, kind) = match datagrams {
            true => (PortSpace::Udp, Kind::UnreliableDatagram),
            false => (PortSpace::Tcp, Kind::ReliableConnected),
        };
        let key = ids.create(space, kind);
        ids.set(key, IdOption::ReuseAddress(reuse)).unwrap();
        let fresh = Known { heard: Heard::Nothing, reuse, claimed: None, said: Vec::new(), disconnected: false };
        assert!(known.insert(key, fresh).is_none(), "a key was used twice");
        key
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Create { host, datagrams, reuse } => drop(self.create(host, datagrams, reuse)),
            Step::Serve { host, datagrams, reuse, port } => {
                let key = self.create(host, datagrams, reuse);
                self.call(host, key, Call::Bind { port, anywhere: true });
                self.call(host, key, Call::Listen);
            }
            Step::Dial { host, datagrams, port } => {
                let key = self.create(host, datagrams, false);
                for call in [Call::ResolveAddress { port }, Call::ResolveRoute, Call::Connect] {
                    self.call(host, key, call);
                    self.drain();
                }
            }
            Step::Call { host, which, call } => {
                // Most calls are made where they may be.
                let fits = |record: &IdRecord| which % 4 == 0 || call.stages().contains(&record.stage);
                let ids = self.hosts[host].ids.iter().filter(|(_, record)| fits(record));
                let keys: Vec<IdKey> = ids.map(|(key, _)| key).collect();
                let Some(&key) = keys.get(which % keys.len().max(1)) else { return };
                self.call(host, key, call);
            }
            Step::HearEarly { host, which } => {
                let accepted = |record: &IdRecord| record.stage == Stage::Accepted && record.qpn != Qpn::new(0);
                let records = self.hosts[host].ids.iter().map(|(_, record)| record);
                let records: Vec<_> = records.filter(|record| accepted(record)).collect();
                let Some(record) = records.get(which % records.len().max(1)) else { return };
                // Data comes only from a peer that has confirmed.
                let (qpn, psn, peer) = (record.qpn, record.receive_psn, record.peer_communication.unwrap());
                if self.hosts[1 - host].ids.of(peer).is_some_and(|peer| peer.stage == Stage::Connected) {
                    let from = self.hosts[1 - host].local().gid;
                    self.hosts[host].ids.heard_early(self.now, from, qpn, psn);
                }
            }
            Step::Die { host } => {
                let Host { ids, known, ports, died, .. } = &mut self.hosts[host];
                ids.end_process(self.now);
                assert_eq!(ids.iter().count(), 0);
                known.clear();
                ports.clear();
                *died = true;
            }
            Step::Wait { micros } => self.run_until(self.now + Duration::from_micros(micros)),
            Step::Weather { loss, duplicate, jitter } => {
                self.weather = Weather { loss, duplicate, jitter: Duration::from_millis(jitter) };
            }
        }
        self.drain();
    }

    /// Whether another id has a port in a way that this one cannot share.
    fn is_taken(&self, host: usize, key: IdKey, address: IpAddr, port: u16, listens: bool) -> bool {
        let Host { ids, known, .. } = &self.hosts[host];
        let space = ids.get(key).unwrap().space;
        self.hosts[host].ids_of(space).filter(|(other, _)| *other != key).any(|(other, record)| {
            let (Some(theirs), Some(source)) = (known[&other].claimed, record.source) else { return false };
            let overlaps = theirs == address || theirs.is_unspecified() || address.is_unspecified();
            let shares = known[&key].reuse && known[&other].reuse;
            let both_listen = listens && record.stage == Stage::Listening;
            source.port() == port && overlaps && (!shares || both_listen)
        })
    }

    fn call(&mut self, host: usize, key: IdKey, call: Call) {
        let now = self.now;
        self.count += 1;
        let (said, qpn) = (self.count.to_be_bytes().to_vec(), Qpn::new(self.count));
        let record = self.hosts[host].ids.get(key).unwrap();
        let (stage, source, datagrams) = (record.stage, record.source, record.is_datagram());
        let (local, peer) = (self.hosts[host].local(), self.hosts[1 - host].address);
        let address = match call {
            Call::Bind { anywhere: true, port } => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
            Call::Bind { port, .. } => SocketAddr::new(local.gid.to_ip(), port),
            _ => source.unwrap_or(SocketAddr::new(local.gid.to_ip(), 0)),
        };
        let taken = match call {
            Call::Bind { port, .. } => self.is_taken(host, key, address.ip(), port, false),
            Call::Listen => {
                let claimed = self.hosts[host].known[&key].claimed.unwrap_or(address.ip());
                self.is_taken(host, key, claimed, address.port(), true)
            }
            _ => false,
        };
        let parameters = ConnectParameters {
            private_data: &said,
            responder_resources: (self.count % 5) as u8,
            initiator_depth: (self.count % 7) as u8,
            retry_count: 9,
            qpn,
            ..ConnectParameters::default()
        };
        let Host { ids, ports, known, .. } = &mut self.hosts[host];
        let take = |space, address| take(ports, space, address);
        let answer = match call {
            Call::Bind { anywhere, .. } => ids.bind(key, address, (!anywhere).then_some(local), take),
            Call::Listen => ids.listen(key, None, 0),
            Call::StopListening => ids.stop_listening(now, key),
            Call::ResolveAddress { port } => {
                ids.resolve_address(key, local.gid.to_ip(), local, SocketAddr::new(peer.into(), port), take)
            }
            Call::ResolveRoute => ids.resolve_route(key),
            Call::Connect => ids.connect(now, key, &parameters, false),
            Call::Accept => ids.accept(now, key, &parameters),
            Call::Reject => ids.reject(now, key, RejectReason::Consumer, &said),
            Call::Establish => ids.establish(now, key),
            Call::Disconnect => ids.disconnect(now, key, &said),
            Call::Destroy { forgets } => {
                ids.destroy(now, key, forgets);
                known.remove(&key);
                assert!(ids.get(key).is_none() && ids.resolve_route(key).is_err());
                return;
            }
        };
        let after = ids.get(key).unwrap().stage;
        let allowed = call.stages().contains(&stage) || call == Call::Disconnect && datagrams;
        let context = || format!("{call:?} in {stage:?}: {answer:?}, then {after:?}");
        match answer {
            Ok(()) => {
                assert!(allowed && !taken && after == call.leads_to(stage, datagrams), "{}", context());
                let known = known.get_mut(&key).unwrap();
                match call {
                    Call::Bind { .. } => known.claimed = Some(address.ip()),
                    Call::ResolveAddress { .. } => drop(known.claimed.get_or_insert(local.gid.to_ip())),
                    Call::Connect => (known.heard, known.said) = (Heard::Asked, said),
                    // Of a datagram service nothing is heard any more.
                    Call::Accept if datagrams => known.heard = Heard::Over,
                    Call::Accept => (known.heard, known.said) = (Heard::Accepted, said),
                    Call::Reject => known.heard = Heard::Over,
                    Call::Establish => known.heard = Heard::Up,
                    Call::Disconnect => known.disconnected = true,
                    _ => {}
                }
                self.connected += usize::from(call == Call::Establish);
            }
            Err(IdError::State { .. }) => {
                assert!(!allowed || call.may_come_too_late() || after == Stage::Idle, "{}", context());
                assert_eq!(after, stage, "a refused call changes nothing");
            }
            Err(IdError::InUse { .. }) => assert!(allowed && taken && after == stage, "{}", context()),
            Err(error) => panic!("{error} {}", context()),
        }
    }

    /// Sends what is to be sent, and lets the programs hear.
    fn drain(&mut self) {
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, self.posted) != self.posted {
            for host in [A, B] {
                let local = self.hosts[host].local();
                loop {
                    while let Some(transmit) = self.hosts[host].ids.manager.poll_transmit() {
                        self.post(host, transmit);
                    }
                    let find = |gid| Some(local).filter(|local| local.gid == gid);
                    // Some programs have looked through what completed, and hear of a disconnection at once.
                    if self.hosts[host].ids.has_farewells() {
                        let some = self.rng.below(3);
                        self.hosts[host].ids.tell_farewells_of(|key, _| key.0 % 3 == some);
                    }
                    match self.hosts[host].ids.poll_output(self.now, find) {
                        Some(output) => self.hear(host, output),
                        None => break,
                    }
                }
                self.hosts[host].ids.audit().unwrap_or_else(|wrong| panic!("host {host}: {wrong}"));
            }
        }
    }

    fn post(&mut self, from: usize, transmit: Transmit) {
        self.posted += 1;
        let Route { source, destination } = transmit.route;
        assert_eq!((source, destination), (self.hosts[from].local().gid, self.hosts[1 - from].local().gid));
        if self.rng.chance(self.weather.loss) {
            return;
        }
        for copy in 0..1 + u64::from(self.rng.chance(self.weather.duplicate)) {
            let jitter = self.rng.below(self.weather.jitter.as_nanos() as u64 + 1);
            let when = self.now + Duration::from_micros(50) + Duration::from_nanos(jitter);
            self.parcels.insert((when, self.posted * 2 + copy), (1 - from, transmit));
        }
    }

    fn next(&self) -> Option<Time> {
        let parcel = self.parcels.first_key_value().map(|((when, _), _)| *when);
        parcel.into_iter().chain(self.hosts.iter().filter_map(|host| host.ids.poll_timeout())).min()
    }

    fn run_until(&mut self, end: Time) {
        self.drain();
        while let Some(when) = self.next().filter(|when| *when <= end) {
            self.now = self.now.max(when);
            if let Some(entry) = self.parcels.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (to, Transmit { route, datagram, .. }) = entry.remove();
                self.hosts[to].ids.handle(self.now, route, &datagram, false);
            }
            self.hosts.iter_mut().for_each(|host| host.ids.handle_timeout(self.now, |_| false));
            self.drain();
        }
        self.now = end;
    }

    fn hear(&mut self, host: usize, output: Output) {
        match output {
            Output::Event { key, kind, status, body } => self.hear_event(host, key, kind, status, &body),
            Output::Request { key, listener, body } => self.hear_request(host, key, listener, &body),
            Output::Ended { key } => {
                let stage = self.hosts[host].ids.get(key).unwrap().stage;
                assert!(matches!(stage, Stage::PeerLeft | Stage::Ended), "{stage:?}");
            }
            Output::PortFreed { space, port } => {
                assert!(self.hosts[host].ports.remove(&(space, port)), "{port} was not taken");
            }
            Output::Suspected { .. } => panic!("numbers of queue pairs are not used twice"),
        }
    }

    fn hear_request(&mut self, host: usize, key: IdKey, listener: IdKey, body: &Body) {
        let peers = &self.hosts[1 - host];
        let Host { ids, known, .. } = &self.hosts[host];
        let (record, listening) = (ids.get(key).unwrap(), ids.get(listener).unwrap());
        assert_eq!((record.stage, listening.stage), (Stage::Requested, Stage::Listening));
        assert_eq!(record.source.map(|source| source.port()), listening.source.map(|source| source.port()));
        let data = match body {
            Body::Connection(body) => {
                // The peer may have gone meanwhile, and its process too.
                if let Some((asking, peer)) = peer_of(record, peers) {
                    assert_eq!((body.qpn, body.retry_count), (peer.qpn.value(), 7));
                    assert_eq!(record.destination.unwrap().port(), peer.source.unwrap().port());
                    assert!(body.private_data.starts_with(&peers.known[&asking].said));
                }
                &body.private_data
            }
            Body::Datagram(body) => &body.private_data,
            other => panic!("{other:?}"),
        };
        assert!(data.len() > 4);
        let reuse = known[&listener].reuse;
        let fresh = Known { heard: Heard::Nothing, reuse, claimed: None, said: Vec::new(), disconnected: false };
        assert!(self.hosts[host].known.insert(key, fresh).is_none(), "a key was used twice");
        if key.0.is_multiple_of(2) {
            self.hosts[host].ids.taken(key);
        }
    }

    fn hear_event(&mut self, host: usize, key: IdKey, kind: EventKind, status: i32, body: &Body) {
        let [first, second] = &mut self.hosts;
        let (ours, theirs) = if host == A { (first, second) } else { (second, first) };
        let record = ours.ids.get(key).unwrap_or_else(|| panic!("{kind:?} of nothing"));
        let known = ours.known.get_mut(&key).unwrap();
        let before = known.heard;
        known.heard = match (kind, before) {
            (EventKind::AddressResolved, Heard::Nothing) => Heard::Address,
            (EventKind::RouteResolved, Heard::Address) => Heard::Route,
            (EventKind::ConnectResponse, Heard::Asked) => {
                let Body::Connection(body) = body else { panic!("{body:?}") };
                if let Some((accepting, peer)) = peer_of(record, theirs) {
                    assert_eq!(body.qpn, peer.qpn.value());
                    assert!(body.private_data.starts_with(&theirs.known[&accepting].said));
                }
                Heard::Answered
            }
            (EventKind::Established, Heard::Asked) if record.is_datagram() => Heard::Up,
            (EventKind::Established, Heard::Accepted) => {
                self.connected += 1;
                Heard::Up
            }
            (EventKind::Rejected, Heard::Asked | Heard::Answered | Heard::Accepted) => Heard::Over,
            (EventKind::Unreachable, Heard::Asked | Heard::Accepted) => Heard::Over,
            (EventKind::Disconnected, Heard::Answered | Heard::Accepted | Heard::Up) => {
                let Body::Connection(body) = body else { panic!("{body:?}") };
                let fits = match body.end {
                    Some(ConnectionEnd::Local) => known.disconnected,
                    Some(ConnectionEnd::PeerDied) => theirs.died,
                    end => end == Some(ConnectionEnd::Peer),
                };
                assert!(fits && matches!(status, 0 | -110), "{body:?} {status} {known:?}");
                Heard::Down
            }
            (EventKind::TimewaitExit, Heard::Down) => Heard::Over,
            other => panic!("{other:?} of {record:?}"),
        };
        // Where both sides are connected, each knows the numbers of the other.
        if let Some((_, peer)) = peer_of(record, theirs)
            && (record.stage, peer.stage) == (Stage::Connected, Stage::Connected)
        {
            self.compared += 1;
            for (one, other) in [(record, peer), (peer, record)] {
                let (agreed, theirs) = (one.agreement.unwrap(), other.agreement.unwrap());
                assert_eq!((agreed.peer_qpn, agreed.send_psn), (other.qpn, other.receive_psn));
                assert_eq!(
                    (agreed.mtu, agreed.numbers.responder_resources),
                    (theirs.mtu, theirs.numbers.initiator_depth)
                );
                let [receive, send] = [State::ReadyToReceive, State::ReadyToSend].map(|to| one.modify_for(to).unwrap());
                assert_eq!((receive.dest_qpn, receive.rq_psn), (Some(other.qpn), Some(one.receive_psn)));
                assert_eq!((send.sq_psn, send.retry_cnt), (Some(other.receive_psn), Some(7)));
                assert_eq!(receive.av.unwrap().dgid, other.path.unwrap().sgid);
            }
        }
    }

    /// Lets the programs come to an end, and looks at what is left.
    fn finish(mut self) -> (usize, usize) {
        self.weather = Weather::FINE;
        // Requests that are under way when ids go arrive at those that are left.
        for _ in 0..3 {
            for host in [A, B] {
                let keys: Vec<IdKey> = self.hosts[host].known.keys().copied().collect();
                for key in keys {
                    self.call(host, key, Call::Destroy { forgets: key.0.is_multiple_of(3) });
                }
            }
            self.run_until(self.now + Duration::from_secs(4 * 3600));
        }
        for (index, Host { ids, ports, .. }) in self.hosts.iter().enumerate() {
            assert_eq!(ids.iter().count(), 0, "host {index} has an id that no program has");
            assert_eq!(ids.manager.remembered(), 0, "host {index} remembers something");
            assert_eq!((ids.poll_timeout(), ports.len()), (None, 0), "host {index}");
        }
        (self.connected, self.compared)
    }
}

/// The peer of an id, if its program still has it and both mean the same connection.
fn peer_of<'a>(record: &IdRecord, there: &'a Host) -> Option<(IdKey, &'a IdRecord)> {
    let (ours, theirs): (CommId, CommId) = (record.communication?, record.peer_communication?);
    let mut found = there.ids.iter().filter(|(_, peer)| peer.communication == Some(theirs));
    found.find(|(_, peer)| peer.peer_communication.is_none_or(|named| named == ours))
}

fn run(program: &Program) -> (usize, usize) {
    let mut model = Model::new(program.seed);
    program.steps.iter().for_each(|step| model.step(step));
    model.finish()
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        1 => (port(), any::<bool>()).prop_map(|(port, anywhere)| Call::Bind { port, anywhere }),
        1 => Just(Call::Listen),
        1 => Just(Call::StopListening),
        1 => port().prop_map(|port| Call::ResolveAddress { port }),
        1 => Just(Call::ResolveRoute),
        1 => Just(Call::Connect),
        6 => Just(Call::Accept),
        1 => Just(Call::Reject),
        6 => Just(Call::Establish),
        4 => Just(Call::Disconnect),
        1 => any::<bool>().prop_map(|forgets| Call::Destroy { forgets }),
    ]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![5 => Just(7000), 1 => Just(7001)]
}

fn step() -> impl Strategy<Value = Step> {
    let host = || 0usize..2;
    // Most programs connect.
    let datagrams = || prop_oneof![4 => Just(false), 1 => Just(true)];
    prop_oneof![
        1 => (host(), datagrams(), any::<bool>())
            .prop_map(|(host, datagrams, reuse)| Step::Create { host, datagrams, reuse }),
        3 => (host(), datagrams(), any::<bool>(), port())
            .prop_map(|(host, datagrams, reuse, port)| Step::Serve { host, datagrams, reuse, port }),
        4 => (host(), datagrams(), port()).prop_map(|(host, datagrams, port)| Step::Dial { host, datagrams, port }),
        20 => (host(), 0usize..16, call()).prop_map(|(host, which, call)| Step::Call { host, which, call }),
        2 => (host(), 0usize..4).prop_map(|(host, which)| Step::HearEarly { host, which }),
        9 => prop_oneof![2 => 0u64..2000, 1 => 0u64..300_000, 1 => 0u64..20_000_000]
            .prop_map(|micros| Step::Wait { micros }),
        1 => (0.0..0.4, 0.0..0.4, prop_oneof![0u64..2, 0u64..800])
            .prop_map(|(loss, duplicate, jitter)| Step::Weather { loss, duplicate, jitter }),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let death = (0usize..160, 0usize..2).prop_map(|(at, host)| (at, Step::Die { host }));
    (any::<u32>(), prop::collection::vec(step(), 0..120), death).prop_map(|(seed, mut steps, (at, death))| {
        if at < steps.len() {
            steps.insert(at, death);
        }
        // A program listens, so that there is something to connect to.
        steps.insert(0, Step::Serve { host: B, datagrams: false, reuse: true, port: 7000 });
        Program { seed: seed.into(), steps }
    })
}

/// How many programs the default run has; the variable asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|value| value.parse().ok()).unwrap_or(600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_programs_do_with_ids_they_hear_what_fits_and_nothing_is_left(program in program()) {
        run(&program);
    }
}

#[test]
fn the_model_sees_ids_that_connect() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut connected, mut compared) = (0, 0);
    for _ in 0..300 {
        let program = program().new_tree(&mut runner).expect("a program").current();
        let (sides, pairs) = run(&program);
        connected += sides;
        compared += pairs;
    }
    assert!(connected > 200 && compared > 80, "{connected} sides connected, {compared} pairs compared");
}

//! Two hosts that connect to each other: a connection manager on each, a program with manners above it, and a network between them that loses,
//! repeats and delays by a seed. Time is virtual: it jumps to the next thing that happens. Every message travels as bytes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use cm::{Accept, Config, Connect, Event, Listen, ListenerId, Manager, Route, SidrAnswer, Time, Transmit};
use sim::Rng;
use wire::cm::{CmDatagram, CommId, Message, MessageKind, PortSpace, RejectReason, ServiceId};
use wire::mad::MAD_LEN;
use wire::{Gid, Psn, Qkey, Qpn};

/// What the network does to messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// The share of messages that is lost.
    pub loss: f64,
    /// The share that arrives twice.
    pub duplicate: f64,
    /// How long a message may take beyond the usual; messages overtake each other.
    pub jitter: Duration,
}

impl Weather {
    /// Nothing goes wrong.
    pub const FINE: Weather = Weather { loss: 0.0, duplicate: 0.0, jitter: Duration::ZERO };
}

/// What a program does about a request, when it hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Accepts it.
    Accept,
    /// Rejects it.
    Reject,
    /// Nothing yet.
    Nothing,
}

/// What a program does by itself.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// About requests.
    pub request: Answer,
    /// About replies.
    pub reply: Answer,
    /// Whether it agrees to disconnect.
    pub agree: bool,
}

impl Manners {
    /// Accepts and agrees to everything.
    pub const GOOD: Manners = Manners { request: Answer::Accept, reply: Answer::Accept, agree: true };
}

/// One of the two.
pub struct Host {
    /// Its address.
    pub gid: Gid,
    /// Its connection manager.
    pub manager: Manager,
    /// Its program.
    pub manners: Manners,
    /// What the program heard.
    pub events: Vec<Event>,
    /// What it sent, repetitions included.
    pub sent: Vec<MessageKind>,
    /// Whether it is there at all.
    pub up: bool,
}

impl Host {
    /// What the program heard about `id`, in words.
    pub fn heard(&self, id: CommId) -> Vec<String> {
        self.events.iter().filter(|event| event.id() == id).map(words).collect()
    }

    /// What it heard about everything.
    pub fn heard_all(&self) -> Vec<String> {
        self.events.iter().map(words).collect()
    }

    /// The request that it heard of last.
    ///
    /// # Panics
    /// If there was none.
    pub fn requested(&self) -> CommId {
        let found = self.events.iter().rev().find_map(|event| match event {
            Event::Request { id, .. } | Event::ServiceRequest { id, .. } => Some(*id),
            _ => None,
        });
        found.expect("a request was heard of")
    }

    /// How often it sent this message.
    pub fn count(&self, kind: MessageKind) -> usize {
        self.sent.iter().filter(|sent| **sent == kind).count()
    }
}

/// Both, and what is between them.
pub struct World {
    /// What time it is.
    pub now: Time,
    /// The active side first.
    pub hosts: [Host; 2],
    /// What the network does.
    pub weather: Weather,
    /// Messages that are under way.
    parcels: BTreeMap<(Time, u64), (usize, Transmit)>,
    posted: u64,
    rng: Rng,
    qpns: u32,
    /// Which host heard something, in order over both.
    pub order: Vec<usize>,
    /// Kinds of messages that do not pass, by who sends them.
    pub censored: Vec<(usize, MessageKind)>,
    /// The transaction of each request, by the name that who asks has for it.
    pub transactions: BTreeMap<CommId, u64>,
    /// How many messages may still be sent before one side talks too much.
    budget: u64,
    /// Whether a peer that is suspected does not answer when it is asked.
    pub peers_lost: bool,
    /// Whether the managers' tables are looked through after every step.
    pub audited: bool,
}

/// The first host: the active side of most scenarios.
pub const A: usize = 0;
/// The second: it listens.
pub const B: usize = 1;

impl World {
    /// Two hosts with good manners, of which the second listens for [`World::service`].
    pub fn new(seed: u64, weather: Weather) -> World {
        World::with(seed, weather, |config| config)
    }

    /// Two such hosts, with managers of another configuration.
    pub fn with(seed: u64, weather: Weather, configure: impl Fn(Config) -> Config) -> World {
        let host = |index: usize| Host {
            gid: Gid::from_ipv4([10, 0, 0, index as u8 + 1].into()),
            manager: Manager::new(configure(Config {
                seed: u128::from(seed) * 2 + index as u128,
                ..Config::default()
            })),
            manners: Manners::GOOD,
            events: Vec::new(),
            sent: Vec::new(),
            up: true,
        };
        let mut world = World {
            now: Time::from_nanos(1_000_000),
            hosts: [host(A), host(B)],
            weather,
            parcels: BTreeMap::new(),
            posted: 0,
            rng: Rng::new(seed),
            qpns: 0x10,
            order: Vec::new(),
            censored: Vec::new(),
            transactions: BTreeMap::new(),
            budget: 2_000_000,
            peers_lost: false,
            audited: true,
        };
        world.listen(B);
        world
    }

    /// What is listened for.
    pub fn service() -> ServiceId {
        ServiceId::ip(PortSpace::Tcp, 7174)
    }

    /// The way from one host to the other.
    pub fn route(&self, from: usize) -> Route {
        Route { source: self.hosts[from].gid, destination: self.hosts[1 - from].gid }
    }

    /// Lets a host listen.
    ///
    /// # Panics
    /// If it does already.
    pub fn listen(&mut self, host: usize) -> ListenerId {
        self.hosts[host].manager.listen(Listen::new(World::service())).expect("nobody listens yet")
    }

    /// A queue pair that nobody has.
    pub fn qpn(&mut self) -> Qpn {
        self.qpns += 1;
        Qpn::new(self.qpns)
    }

    /// What a connection from `host` to the other asks for.
    pub fn request(&mut self, host: usize) -> Connect {
        let psn = Psn::new(self.rng.next_u64() as u32);
        Connect::new(self.route(host), World::service(), self.qpn(), psn)
    }

    /// Connects `host` to the other.
    pub fn connect(&mut self, host: usize) -> CommId {
        let request = self.request(host);
        self.connect_with(host, request)
    }

    /// Connects `host` to the other with these parameters.
    ///
    /// # Panics
    /// If they are refused.
    pub fn connect_with(&mut self, host: usize, connect: Connect) -> CommId {
        let id = self.hosts[host].manager.connect(self.now, connect).expect("the request is good");
        self.drain();
        id
    }

    /// Lets a program call its manager, and sends what comes of it.
    ///
    /// # Panics
    /// If the manager refuses.
    pub fn call(&mut self, host: usize, call: impl FnOnce(&mut Manager, Time) -> Result<(), cm::CmError>) {
        call(&mut self.hosts[host].manager, self.now).expect("the call is allowed");
        self.drain();
    }

    /// A connection that both sides know to be established: its names here and there.
    ///
    /// # Panics
    /// If it is not made.
    pub fn established(&mut self) -> [CommId; 2] {
        let weather = std::mem::replace(&mut self.weather, Weather::FINE);
        let active = self.connect(A);
        self.run_for(Duration::from_millis(50));
        let passive = self.hosts[B].requested();
        assert_eq!(self.hosts[A].heard(active), ["reply"]);
        assert_eq!(self.hosts[B].heard(passive), ["request", "established"]);
        self.weather = weather;
        [active, passive]
    }

    /// A host dies and one that knows nothing takes its address. It listens if it did.
    pub fn restart(&mut self, host: usize, seed: u64) {
        self.hosts[host].manager = Manager::new(Config { seed: seed.into(), ..Config::default() });
        self.hosts[host].up = true;
        if host == B {
            self.listen(B);
        }
    }

    /// Passes time.
    pub fn run_for(&mut self, span: Duration) {
        let until = self.now + span;
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until nothing will happen any more.
    ///
    /// # Panics
    /// If there is no end to it.
    pub fn run_until_quiet(&mut self) {
        let until = self.now + Duration::from_secs(4 * 3600);
        while self.step(until) {}
        assert!(self.next().is_none(), "after four hours there is still something to do");
    }

    fn next(&self) -> Option<Time> {
        let parcel = self.parcels.first_key_value().map(|((when, _), _)| *when);
        let timers = self.hosts.iter().filter(|host| host.up).filter_map(|host| host.manager.poll_timeout());
        parcel.into_iter().chain(timers).min()
    }

    /// Does what comes next, if it comes before `until`.
    fn step(&mut self, until: Time) -> bool {
        self.drain();
        let Some(when) = self.next().filter(|when| *when <= until) else { return false };
        self.now = self.now.max(when);
        if let Some(entry) = self.parcels.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, transmit) = entry.remove();
            if self.hosts[to].up {
                let now = self.now;
                self.hosts[to].manager.handle(now, transmit.route, &transmit.datagram);
            }
        }
        for host in self.hosts.iter_mut().filter(|host| host.up) {
            if host.manager.poll_timeout().is_some_and(|when| when <= self.now) {
                host.manager.handle_timeout(self.now);
                let next = host.manager.poll_timeout();
                assert!(next.is_none_or(|next| next > self.now), "a timeout that was handled is due again");
            }
        }
        self.drain();
        true
    }

    /// Sends what the managers want sent, and lets the programs hear and act.
    pub fn drain(&mut self) {
        loop {
            let before = self.posted;
            let mut acted = false;
            for index in [A, B] {
                while let Some(transmit) = self.hosts[index].manager.poll_transmit() {
                    self.post(index, transmit);
                }
                while let Some(event) = self.hosts[index].manager.poll_event() {
                    acted = true;
                    self.act(index, &event);
                    self.hosts[index].events.push(event);
                    self.order.push(index);
                }
                if self.audited {
                    self.hosts[index].manager.audit().unwrap_or_else(|wrong| panic!("host {index}: {wrong}"));
                }
            }
            if !acted && self.posted == before {
                return;
            }
        }
    }

    /// Puts a message of any side on the wire.
    pub fn post(&mut self, from: usize, transmit: Transmit) {
        self.posted += 1;
        self.budget = self.budget.checked_sub(1).expect("one side talks without end");
        let kind = transmit.datagram.message.kind();
        self.hosts[from].sent.push(kind);
        assert_eq!(transmit.route.source, self.hosts[from].gid);
        let transaction = transmit.datagram.header.transaction_id;
        if let Some(id) = match transmit.datagram.message {
            Message::Req(req) => Some(req.local_comm_id),
            Message::SidrReq(req) => Some(req.request_id),
            _ => None,
        } {
            self.transactions.insert(id, transaction);
        }
        // To another address than the other host's it goes nowhere.
        let arrives = transmit.route.destination == self.hosts[1 - from].gid && self.hosts[from].up;
        if !arrives || self.rng.chance(self.weather.loss) || self.censored.contains(&(from, kind)) {
            return;
        }
        let mut bytes = [0; MAD_LEN];
        transmit.datagram.encode(&mut bytes).expect("what is sent can be encoded");
        let datagram = CmDatagram::parse(&bytes).expect("what was encoded parses");
        assert_eq!(datagram, transmit.datagram);
        let copies = 1 + u64::from(self.rng.chance(self.weather.duplicate));
        for copy in 0..copies {
            let jitter = self.rng.below(self.weather.jitter.as_nanos() as u64 + 1);
            let when = self.now + Duration::from_micros(50) + Duration::from_nanos(jitter);
            self.parcels.insert((when, self.posted * 2 + copy), (1 - from, transmit));
        }
    }

    /// What a program of these manners does about an event. A refusal is fine: the connection may have moved on.
    fn act(&mut self, index: usize, event: &Event) {
        let (now, lost) = (self.now, self.peers_lost);
        let qpn = self.qpn();
        let Host { manager, manners, .. } = &mut self.hosts[index];
        let _ = match *event {
            Event::Request { id, .. } => match manners.request {
                Answer::Accept => manager.accept(now, id, Accept::new(qpn, Psn::new(qpn.value()))),
                Answer::Reject => manager.reject(now, id, RejectReason::Consumer, &[], b"no"),
                Answer::Nothing => Ok(()),
            },
            Event::Reply { id, .. } => match manners.reply {
                Answer::Accept => manager.confirm(now, id, b""),
                Answer::Reject => manager.reject(now, id, RejectReason::Consumer, &[], b"no"),
                Answer::Nothing => Ok(()),
            },
            Event::ServiceRequest { id, .. } if manners.request == Answer::Accept => {
                manager.answer(now, id, SidrAnswer::valid(qpn, Qkey::new(0x0123_4567)))
            }
            Event::Suspected { id } if lost => {
                manager.peer_lost(now, id);
                Ok(())
            }
            Event::DisconnectRequested { id, .. } if manners.agree => manager.answer_disconnect(now, id, b""),
            _ => Ok(()),
        };
    }

    /// Everything that happened has been forgotten.
    ///
    /// # Panics
    /// If something has not.
    pub fn assert_forgotten(&self) {
        for (index, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.up) {
            assert_eq!(host.manager.remembered(), 0, "host {index} remembers something");
            assert_eq!(host.manager.poll_timeout(), None, "host {index}");
        }
    }
}

/// An event in words.
pub fn words(event: &Event) -> String {
    let mut text = String::new();
    let _ = match event {
        Event::Request { .. } => write!(text, "request"),
        Event::Reply { .. } => write!(text, "reply"),
        Event::Established { .. } => write!(text, "established"),
        Event::Rejected { reason, .. } => write!(text, "rejected {}", reason.code()),
        Event::TimedOut { what, .. } => write!(text, "timed out {what:?}"),
        Event::DisconnectRequested { .. } => write!(text, "disconnect requested"),
        Event::Disconnected { .. } => write!(text, "disconnected"),
        Event::Suspected { .. } => write!(text, "suspected"),
        Event::TimewaitEnded { .. } => write!(text, "timewait ended"),
        Event::ServiceRequest { .. } => write!(text, "service request"),
        Event::ServiceAnswer { answer, .. } => write!(text, "service answer {}", answer.status.code()),
        Event::ServiceTimedOut { .. } => write!(text, "service timed out"),
        _ => write!(text, "something new"),
    };
    text
}

/// The message in a datagram that is to be forged: the same header, another body.
pub fn forged(datagram: &CmDatagram, change: impl FnOnce(&mut Message)) -> CmDatagram {
    let mut message = datagram.message;
    change(&mut message);
    CmDatagram { message, ..*datagram }
}

/// Two hosts with good manners in fine weather.
pub fn fine() -> World {
    World::new(1, Weather::FINE)
}

/// A span.
pub fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Hands a message to a host as if it came from the other, and returns what it sends.
pub fn arrives(world: &mut World, host: usize, datagram: CmDatagram) -> Vec<Transmit> {
    let (now, route) = (world.now, world.route(1 - host));
    world.hosts[host].manager.handle(now, route, &datagram);
    std::iter::from_fn(|| world.hosts[host].manager.poll_transmit()).collect()
}

/// The next message that a manager wants to send.
///
/// # Panics
/// If there is none.
pub fn next(manager: &mut Manager) -> CmDatagram {
    manager.poll_transmit().expect("there is something to send").datagram
}

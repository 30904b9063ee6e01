//! What a program says when it listens, connects, accepts, or asks for a datagram service. Where a value exists that
//! the kernel's connection manager would send, `new` fills it in.

use core::net::IpAddr;
use core::time::Duration;

use wire::cm::{CommId, Data, ServiceId, SidrStatus};
use wire::{Gid, Mtu, Pkey, Psn, Qkey, Qpn, Timeout, Transport};

/// Where a manager finds its communication ids, and how it paces itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The first communication id it may use.
    pub first: CommId,
    /// The last one.
    pub last: CommId,
    /// What communication ids and transaction ids are derived from: take it from a good source, for who can guess them
    /// can interfere.
    pub seed: u128,
    /// A message that nobody answers is repeated after this long, then after twice as long, and so on until the pace is
    /// that of its timeout. `None` keeps to the timeout from the start. When the attempt is given up does not depend on
    /// it.
    pub eager: Option<Duration>,
    /// How many requests may wait for their program to answer, over all listeners.
    pub half_open: usize,
    /// How many ended connections are remembered so that late messages find an answer. The oldest leave early when
    /// there are more.
    pub timewait: usize,
    /// A connection is [suspected](crate::Event::Suspected) at most once in this time, whatever is claimed of its peer.
    pub suspicion: Duration,
    /// A refusal this soon after an [id](crate::id) first asked at a port that the process is connected to already is
    /// passed over, until the request was repeated: the peer may be about to listen.
    pub early_refusal: Duration,
    /// How much later than the peer's request the program of an [id](crate::id) hears of a disconnection: threads look
    /// at their completion queues first.
    pub disconnect_event_delay: Duration,
}

impl Config {
    /// With the usual limits.
    pub const fn new(first: CommId, last: CommId, seed: u128) -> Config {
        let eager = Some(Duration::from_millis(250));
        let suspicion = Duration::from_secs(30);
        let (early_refusal, disconnect_event_delay) = (Duration::from_millis(100), Duration::from_micros(500));
        let (half_open, timewait) = (8192, 32768);
        Config { first, last, seed, eager, half_open, timewait, suspicion, early_refusal, disconnect_event_delay }
    }
}

impl Default for Config {
    /// Every communication id, and a seed that everybody knows: for tests.
    fn default() -> Config {
        Config::new(CommId::new(1), CommId::new(u32::MAX), 0)
    }
}

/// Between which addresses a message travels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Route {
    /// Who sends.
    pub source: Gid,
    /// Who receives.
    pub destination: Gid,
}

impl Route {
    /// The way back.
    pub const fn reversed(self) -> Route {
        Route { source: self.destination, destination: self.source }
    }
}

/// Vendor options that two sides negotiate ("enhanced connection establishment"); all zero for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ece {
    /// Whose options, 24 bits.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// Which addresses a listener without an address of its own hears.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Families {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Both.
    Both,
}

impl Families {
    pub(crate) const fn holds(self, address: IpAddr) -> bool {
        matches!((self, address), (Families::Both, _) | (Families::V4, IpAddr::V4(_)) | (Families::V6, IpAddr::V6(_)))
    }

    pub(crate) const fn overlaps(self, other: Families) -> bool {
        matches!(
            (self, other),
            (Families::Both, _) | (_, Families::Both) | (Families::V4, Families::V4) | (Families::V6, Families::V6)
        )
    }
}

/// What to listen for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// The service.
    pub service: ServiceId,
    /// Which bits of it count.
    pub mask: u64,
    /// Only requests to this address; otherwise to any of `families`.
    pub address: Option<IpAddr>,
    /// The families, where there is no address.
    pub families: Families,
    /// How many requests may wait to be [taken](crate::Manager::taken). More are dropped, as TCP does: the peer repeats
    /// them.
    pub backlog: u32,
}

impl Listen {
    /// For one service at every address.
    pub const fn new(service: ServiceId) -> Listen {
        Listen { service, mask: u64::MAX, address: None, families: Families::Both, backlog: 1024 }
    }
}

/// The name of a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub(crate) u64);

/// What to connect, and to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect {
    /// From where to where.
    pub route: Route,
    /// What is asked for.
    pub service: ServiceId,
    /// RC, UC or XRC.
    pub transport: Transport,
    /// Our channel adapter.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN it expects: the peer's begins with it.
    pub psn: Psn,
    /// How many READs and atomics it can answer at a time.
    pub responder_resources: u8,
    /// How many it wants to have outstanding.
    pub initiator_depth: u8,
    /// How often the peer's queue pair is to retry, at most 7.
    pub retry_count: u8,
    /// How often it is to retry when ours is not ready, at most 7.
    pub rnr_retry_count: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// The partition.
    pub pkey: Pkey,
    /// The path MTU.
    pub mtu: Mtu,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Service level, four bits.
    pub service_level: u8,
    /// Static rate, six bits.
    pub packet_rate: u8,
    /// Whether the RTU is repeated. It need not be where the peer repeats its REP: on our own host.
    pub repeat_rtu: bool,
    /// How long queue pairs wait for an acknowledgement; twice the life of a packet.
    pub local_ack_timeout: Timeout,
    /// How long the peer may take to answer.
    pub remote_cm_response_timeout: Timeout,
    /// How long we may take to answer.
    pub local_cm_response_timeout: Timeout,
    /// How often a message is repeated, at most 15.
    pub max_cm_retries: u8,
    /// For the peer's program. An IP service begins with [`IpCm`](wire::cm::IpCm); the caller has put it there.
    pub private_data: Data<92>,
    /// Vendor options.
    pub ece: Ece,
}

impl Connect {
    /// A reliable connection of `qpn`, with what the kernel would put into the other fields.
    pub fn new(route: Route, service: ServiceId, qpn: Qpn, psn: Psn) -> Connect {
        Connect {
            route,
            service,
            transport: Transport::Rc,
            ca_guid: 0,
            qpn,
            psn,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: false,
            srq: false,
            pkey: Pkey::DEFAULT,
            mtu: Mtu::B1024,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            service_level: 0,
            packet_rate: 0,
            repeat_rtu: true,
            local_ack_timeout: Timeout::new(19),
            remote_cm_response_timeout: Timeout::new(20),
            local_cm_response_timeout: Timeout::new(20),
            max_cm_retries: 15,
            private_data: Data::default(),
            ece: Ece::default(),
        }
    }
}

/// How to accept a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Our channel adapter.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN it expects: the peer's begins with it.
    pub psn: Psn,
    /// How many READs and atomics it can answer at a time.
    pub responder_resources: u8,
    /// How many it will have outstanding.
    pub initiator_depth: u8,
    /// How often the peer's queue pair is to retry when ours is not ready, at most 7.
    pub rnr_retry_count: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// How long our queue pair takes to acknowledge.
    pub target_ack_delay: Timeout,
    /// For the peer's program.
    pub private_data: Data<196>,
    /// Vendor options.
    pub ece: Ece,
}

impl Accept {
    /// With `qpn`, and what the kernel would put into the other fields.
    pub fn new(qpn: Qpn, psn: Psn) -> Accept {
        Accept {
            ca_guid: 0,
            qpn,
            psn,
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            flow_control: false,
            srq: false,
            target_ack_delay: Timeout::new(15),
            private_data: Data::default(),
            ece: Ece::default(),
        }
    }
}

/// A connection whose owner died without a word: what its peer must be told is in here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orphan {
    /// Its name here.
    pub id: CommId,
    /// The peer's name for it.
    pub peer: CommId,
    /// The way to the peer.
    pub route: Route,
    /// Its queue pair here.
    pub local_qpn: Qpn,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
}

/// A datagram service to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolve {
    /// From where to where.
    pub route: Route,
    /// What is asked for.
    pub service: ServiceId,
    /// The partition.
    pub pkey: Pkey,
    /// For the peer's program. An IP service begins with [`IpCm`](wire::cm::IpCm); the caller has put it there.
    pub private_data: Data<216>,
    /// How long to wait for an answer.
    pub timeout: Timeout,
    /// How often to ask again.
    pub retries: u8,
}

impl Resolve {
    /// With the kernel's patience.
    pub fn new(route: Route, service: ServiceId) -> Resolve {
        let (private_data, timeout) = (Data::default(), Timeout::new(20));
        Resolve { route, service, pkey: Pkey::DEFAULT, private_data, timeout, retries: 15 }
    }
}

/// What to say to a peer that asked for a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrAnswer {
    /// Whether there is a queue pair.
    pub status: SidrStatus,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: Qkey,
    /// For the peer's program.
    pub private_data: Data<136>,
}

impl SidrAnswer {
    /// The queue pair that was asked for.
    pub fn valid(qpn: Qpn, qkey: Qkey) -> SidrAnswer {
        SidrAnswer { status: SidrStatus::Valid, qpn, qkey, private_data: Data::default() }
    }

    /// No queue pair, and why.
    pub fn refused(status: SidrStatus) -> SidrAnswer {
        SidrAnswer { status, ..SidrAnswer::valid(Qpn::new(0), Qkey::new(0)) }
    }
}

//! A simulated host: one process with one NIC. It holds queue pairs, shared receive queues, memory and congestion
//! windows, and a receive buffer of a size, emptied at a speed. It is passive; the simulation moves it.

mod port;

pub(crate) use port::World;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use transport::congestion::{STOCK_BUFFER, WindowConfig};
use transport::weak::Weakness;
use transport::{AsyncEvent, Capabilities, Completion, Kind, Limits, ProtectionDomain, QueuePair, Time};
use wire::{Gid, Mtu, Pkey, Qpn, Srqn};

/// A host of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(crate) u32);

impl HostId {
    /// Its place among the hosts, counted from 0 in the order they were added.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A queue pair of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QpId {
    /// Whose it is.
    pub host: HostId,
    /// Its number, which is unique in the simulation unless a test chose it.
    pub qpn: Qpn,
}

/// A shared receive queue of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SrqId {
    /// Whose it is.
    pub host: HostId,
    /// Its number.
    pub srqn: Srqn,
}

/// How much may wait at a host until it is looked at. Only what datagram links bring counts: a ring in shared memory
/// has its own bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveBuffer {
    /// As a socket counts: [`transport::congestion::packet_cost`] of every packet.
    Bytes(u64),
    /// A number of packets.
    Packets(usize),
    /// Anything.
    Unlimited,
}

/// What a host is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// For logs and captures.
    pub name: Option<String>,
    /// Its addresses, in the order of the GID table. Empty: one of IPv4 and one of IPv6.
    pub addresses: Vec<IpAddr>,
    /// Its receive buffer.
    pub receive_buffer: ReceiveBuffer,
    /// Nanoseconds it takes to look at one packet; 0 looks at once, so that nothing ever waits.
    pub service: u64,
    /// How its congestion windows behave.
    pub window: WindowConfig,
    /// How weak the order is in which its queue pairs do things; none if they do everything in order and at once.
    pub weakness: Option<Weakness>,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig {
            name: None,
            addresses: Vec::new(),
            receive_buffer: ReceiveBuffer::Bytes(STOCK_BUFFER),
            service: 0,
            window: WindowConfig::default(),
            weakness: None,
        }
    }
}

impl HostConfig {
    /// A host with a name.
    pub fn named(name: &str) -> HostConfig {
        HostConfig { name: Some(name.into()), ..HostConfig::default() }
    }
}

/// What a queue pair is like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QpSpec {
    /// Its service.
    pub kind: Kind,
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// How much work it holds.
    pub capabilities: Capabilities,
    /// Where its receives come from, if not from its own queue.
    pub srq: Option<Srqn>,
    /// Whether every send completes with a word.
    pub signal_all: bool,
    /// XRC target: the domain of shared receive queues it reaches.
    pub xrc_domain: u32,
    /// A number of the test's choice.
    pub qpn: Option<Qpn>,
    /// The device's limits.
    pub limits: Limits,
    /// Its partition.
    pub pkey: Pkey,
    /// The largest datagram.
    pub port_mtu: Mtu,
}

impl QpSpec {
    /// The protection domain things are in unless they say otherwise.
    pub const PD: ProtectionDomain = ProtectionDomain(1);

    /// A queue pair of this kind with room for what tests do.
    pub fn new(kind: Kind) -> QpSpec {
        QpSpec {
            kind,
            pd: QpSpec::PD,
            capabilities: Capabilities {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 8,
                max_recv_sge: 8,
                max_inline_data: 512,
            },
            srq: None,
            signal_all: false,
            xrc_domain: 1,
            qpn: None,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        }
    }

    /// Reliable connected.
    pub fn rc() -> QpSpec {
        QpSpec::new(Kind::ReliableConnected)
    }

    /// Unreliable connected.
    pub fn uc() -> QpSpec {
        QpSpec::new(Kind::UnreliableConnected)
    }

    /// Unreliable datagram.
    pub fn ud() -> QpSpec {
        QpSpec::new(Kind::UnreliableDatagram)
    }

    /// This queue pair with its receives from a shared queue.
    pub fn with_srq(mut self, srq: SrqId) -> QpSpec {
        self.srq = Some(srq.srqn);
        self
    }
}

/// What a shared receive queue is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqSpec {
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// How many receives it holds.
    pub max_wr: u32,
    /// How many pieces each may have.
    pub max_sge: u32,
    /// The XRC domain it is reached through, if any.
    pub xrc_domain: Option<u32>,
}

impl Default for SrqSpec {
    fn default() -> SrqSpec {
        SrqSpec { pd: QpSpec::PD, max_wr: 256, max_sge: 8, xrc_domain: None }
    }
}

/// A queue pair and what the host keeps for it.
pub(crate) struct Slot {
    pub(crate) qp: QueuePair,
    pub(crate) qpn: Qpn,
    /// The earliest moment the agenda holds for its timer. Later entries are stale.
    pub(crate) armed: Option<Time>,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// Who is at the other end, once it is known.
    pub(crate) peer: Option<HostId>,
    /// Which windows of the host guard the peer and, for what the peer sends unasked, the host itself.
    pub(crate) windows: (usize, usize),
    /// Whether it is in the queue of the link to its peer.
    pub(crate) waits_for_ring: bool,
}

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) gids: Vec<Gid>,
    pub(crate) config: HostConfig,
    pub(crate) slots: Vec<Option<Slot>>,
    pub(crate) by_number: HashMap<Qpn, u32>,
    pub(crate) world: World,
    pub(crate) inbox: Inbox,
    pub(crate) paused: bool,
    /// Whether queue pair 1 is answered for.
    pub(crate) managed: bool,
    /// Multicast groups and the queue pairs that joined them.
    pub(crate) groups: HashMap<Gid, Vec<Qpn>>,
}

/// What has arrived and was not looked at yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Parcels of the network, with what each costs the buffer.
    pub(crate) waiting: VecDeque<(u32, u64)>,
    pub(crate) cost: u64,
    /// Whether the next look is planned.
    pub(crate) serving: bool,
}

impl Host {
    pub(crate) fn new(id: HostId, config: HostConfig) -> Host {
        let number = u16::try_from(id.0 + 1).expect("a simulation has fewer than 65,535 hosts");
        let [high, low] = number.to_be_bytes();
        let gids = match config.addresses.as_slice() {
            [] => vec![
                Gid::from_ipv4(Ipv4Addr::new(10, 0, high, low)),
                Gid::from_ipv6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number)),
            ],
            addresses => addresses.iter().copied().map(Gid::from).collect(),
        };
        Host {
            name: config.name.clone().unwrap_or_else(|| format!("host{number}")),
            gids,
            slots: Vec::new(),
            by_number: HashMap::new(),
            world: World::new(id, config.window),
            inbox: Inbox::default(),
            paused: false,
            managed: false,
            groups: HashMap::new(),
            config,
        }
    }

    pub(crate) fn index_of(&self, qpn: Qpn) -> Option<u32> {
        self.by_number.get(&qpn).copied()
    }

    pub(crate) fn slot(&self, qpn: Qpn) -> Option<&Slot> {
        self.index_of(qpn).and_then(|index| self.slots.get(index as usize)?.as_ref())
    }

    pub(crate) fn slot_mut(&mut self, qpn: Qpn) -> Option<&mut Slot> {
        let index = self.index_of(qpn)?;
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// Queue pairs that joined a multicast group.
    pub(crate) fn members(&self, group: Gid) -> impl Iterator<Item = Qpn> {
        self.groups.get(&group).into_iter().flatten().copied()
    }

    /// Whether a packet of this cost still fits.
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        match self.config.receive_buffer {
            ReceiveBuffer::Bytes(limit) => self.inbox.cost + cost <= limit,
            ReceiveBuffer::Packets(limit) => self.inbox.waiting.len() < limit,
            ReceiveBuffer::Unlimited => true,
        }
    }
}

//! What is known of an id: where it is in its life, between which addresses, and what the two sides agreed on.

use alloc::vec::Vec;
use core::net::SocketAddr;

use trace::ConnectionEnd;
use transport::{Access, AddressVector, Kind, Modify, State};
use wire::cm::{CommId, PortSpace, Rep, Req};
use wire::{Gid, Mtu, Psn, Qkey, Qpn};

use super::{ConnectionBody, IdError, LocalAddress, PathFacts};
use crate::{Ece, ListenerId, Time};

/// The key of datagrams between queue pairs that the connection manager introduced.
pub const UDP_QKEY: Qkey = Qkey::new(0x0123_4567);

/// How long a packet lives on Ethernet, as the kernel's connection manager says it: `4.096 us * 2^18`.
const PACKET_LIFETIME: u8 = 18;

/// The ACK timeout of queue pairs that did not ask for another: twice that.
const ACK_TIMEOUT: u8 = PACKET_LIFETIME + 1;

wire::named! {
    /// Where an id is in its life.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Stage {
        /// It has no address.
        Idle: "idle",
        /// It has an address of its own.
        Bound: "bound to an address",
        /// It searches for the way to the peer's address.
        AddressQueried: "resolving an address",
        /// It knows the peer's address, and from which of its own it is reached.
        AddressResolved: "resolved to an address",
        /// It knows the way.
        RouteResolved: "resolved to a route",
        /// It waits for peers.
        Listening: "listening",
        /// We asked for a connection.
        Connecting: "connecting",
        /// The peer accepted, and waits for us.
        Answered: "accepted by its peer",
        /// The peer asked, and waits for us.
        Requested: "asked for by a peer",
        /// We accepted, and wait for the peer.
        Accepted: "accepted",
        /// The connection stands.
        Connected: "connected",
        /// We asked for the end.
        Disconnecting: "being disconnected",
        /// The peer asked for the end, and perhaps waits for us.
        PeerLeft: "being disconnected",
        /// It has ended, or never came to be.
        Ended: "at its end",
    }
}

/// What a program may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Settings {
    pub type_of_service: u8,
    pub reuse_address: bool,
    pub only_its_family: bool,
    pub by_gid: bool,
    pub ack_timeout: Option<u8>,
    pub ece: Ece,
}

/// The numbers of a request, from our point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// READs and atomics of the peer's that we answer at a time.
    pub responder_resources: u8,
    /// READs and atomics of ours outstanding at a time.
    pub initiator_depth: u8,
    /// How often to retry after a missing acknowledgement.
    pub retry_count: u8,
    /// How often to retry when the receiver is not ready.
    pub rnr_retry_count: u8,
}

/// What the two sides agreed on, from our point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The first sequence number of what we send: the peer chose it.
    pub send_psn: Psn,
    /// The path MTU.
    pub mtu: Mtu,
    /// The numbers.
    pub numbers: Asked,
    /// The ACK timeout, `4.096 us * 2^n`.
    pub ack_timeout: u8,
}

/// Everything about an id. Only [`Ids`](super::Ids) change it.
#[derive(Debug)]
pub struct IdRecord {
    /// Its namespace of ports.
    pub space: PortSpace,
    /// The kind of its queue pair.
    pub kind: Kind,
    /// As the how manieth of its process its connection began, from 1: when it asked for the peer's address, or the peer
    /// asked. 0 before.
    pub order: u32,
    /// A peer asked for its connection.
    pub is_asked_for: bool,
    /// Where it is in its life.
    pub stage: Stage,
    /// A peer asked for it, and the program has not accepted: then it is told nothing of it, as with kernels. The
    /// program has not said yet what it keeps with the id, and finds out when it accepts.
    pub(super) unaccepted: bool,
    pub(super) settings: Settings,
    /// Our address.
    pub source: Option<SocketAddr>,
    /// The peer's address.
    pub destination: Option<SocketAddr>,
    /// It holds a port.
    pub(super) bound: bool,
    /// The address of a device that it is bound to.
    pub local: Option<LocalAddress>,
    pub(super) listener: Option<ListenerId>,
    /// Its connection, or its request for a datagram service.
    pub communication: Option<CommId>,
    /// How the peer names it.
    pub peer_communication: Option<CommId>,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first sequence number of what we receive: we choose it, and the peer begins with it.
    pub receive_psn: Psn,
    /// What we asked for, or were asked for.
    pub(super) asked: Option<Asked>,
    /// When we asked.
    pub(super) asked_at: Option<Time>,
    /// What the two sides agreed on.
    pub agreement: Option<Agreement>,
    /// The way to the peer.
    pub path: Option<PathFacts>,
    /// The groups that it is a member of.
    pub(super) groups: Vec<Gid>,
    /// The end has been told, or is about to be.
    pub(super) told_of_end: bool,
    /// How it is going to end, where that is known before the peer or we say so.
    pub(super) foreseen_end: Option<ConnectionEnd>,
    /// What is told of the end.
    pub(super) end: ConnectionBody,
}

impl IdRecord {
    pub(super) fn new(space: PortSpace, kind: Kind, receive_psn: Psn) -> IdRecord {
        IdRecord {
            space,
            kind,
            order: 0,
            is_asked_for: false,
            stage: Stage::Idle,
            unaccepted: false,
            settings: Settings::default(),
            source: None,
            destination: None,
            bound: false,
            local: None,
            listener: None,
            communication: None,
            peer_communication: None,
            qpn: Qpn::new(0),
            receive_psn,
            asked: None,
            asked_at: None,
            agreement: None,
            path: None,
            groups: Vec::new(),
            told_of_end: false,
            foreseen_end: None,
            end: ConnectionBody::default(),
        }
    }

    /// Refuses a call for the stage the id is in.
    pub fn refuse<T>(&self, what: &'static str) -> Result<T, IdError> {
        Err(IdError::State { what, state: self.stage.name() })
    }

    /// Refuses a call in any stage but these.
    pub fn expect(&self, what: &'static str, stages: &[Stage]) -> Result<(), IdError> {
        if stages.contains(&self.stage) { Ok(()) } else { self.refuse(what) }
    }

    /// Whether it is of datagrams, and not of a connection.
    pub fn is_datagram(&self) -> bool {
        matches!(self.space, PortSpace::Udp | PortSpace::Ipoib) || self.kind == Kind::UnreliableDatagram
    }

    /// The port that is listened on: ours, if the peer asked.
    pub fn service_port(&self) -> Option<u16> {
        if self.is_asked_for { self.source } else { self.destination }.map(|address| address.port())
    }

    /// Whether its program is told of events: not of a request before it accepts.
    pub fn hears_events(&self) -> bool {
        !self.unaccepted
    }

    /// Whether its addresses are GIDs, and requests do not begin with IP addresses.
    pub fn is_by_gid(&self) -> bool {
        self.settings.by_gid
    }

    /// The ACK timeout of its queue pair, `4.096 us * 2^n`: what the program set, else what was agreed on.
    pub fn ack_timeout(&self) -> u8 {
        let agreed = self.agreement.map_or(ACK_TIMEOUT, |agreement| agreement.ack_timeout);
        self.settings.ack_timeout.unwrap_or(agreed)
    }

    /// The peer's GID. The loopback of another device than the loopback's is that device itself.
    pub fn peer_gid(&self) -> Option<Gid> {
        let (local, destination) = (self.local?, self.destination?.ip());
        let itself = destination.is_loopback() && !local.gid.to_ip().is_loopback();
        Some(if itself { local.gid } else { Gid::from_ip(destination) })
    }

    /// The way from our address to another.
    pub(super) fn path_to(&self, dgid: Gid) -> Option<PathFacts> {
        let local = self.local?;
        Some(PathFacts {
            sgid: local.gid,
            dgid,
            sgid_index: local.index,
            mtu: local.mtu,
            traffic_class: self.settings.type_of_service,
            flow_label: 0,
            hop_limit: 64,
            service_level: self.settings.type_of_service >> 5,
            packet_lifetime: PACKET_LIFETIME,
        })
    }

    /// The way to the peer as queue pairs want it.
    pub fn address_vector(&self) -> Option<AddressVector> {
        let path = self.path?;
        Some(AddressVector {
            dgid: path.dgid,
            sgid_index: path.sgid_index,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            service_level: path.service_level,
            port: self.port(),
            ..AddressVector::default()
        })
    }

    /// The port of its device that it is bound to.
    fn port(&self) -> u8 {
        self.local.map_or(1, |local| local.port)
    }

    /// Takes note of what a peer that asks for a connection wants.
    pub(super) fn take_request(&mut self, request: &Req) {
        let mtu = self.path.map_or(Mtu::B1024, |path| path.mtu);
        // The peer's depth is what we are to answer, and the other way round.
        let numbers = Asked {
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
        };
        self.peer_communication = Some(request.local_comm_id);
        self.asked = Some(numbers);
        self.agreement = Some(Agreement {
            peer_qpn: request.local_qpn,
            send_psn: request.starting_psn,
            mtu: request.mtu().unwrap_or(mtu).min(mtu),
            numbers,
            ack_timeout: request.primary.local_ack_timeout.value(),
        });
    }

    /// The queue pair of a peer that accepted: an XRC target's stands where an end-to-end context would.
    pub(super) fn answering_qpn(&self, reply: &Rep) -> Qpn {
        if self.kind == Kind::XrcInitiator { Qpn::new(reply.local_eecn) } else { reply.local_qpn }
    }

    /// Takes note of what a peer that accepted said.
    pub(super) fn take_reply(&mut self, reply: &Rep) {
        let Some(asked) = self.asked else { return };
        self.peer_communication = Some(reply.local_comm_id);
        self.agreement = Some(Agreement {
            peer_qpn: self.answering_qpn(reply),
            send_psn: reply.starting_psn,
            mtu: self.path.map_or(Mtu::B1024, |path| path.mtu),
            numbers: Asked {
                responder_resources: reply.initiator_depth,
                initiator_depth: reply.responder_resources,
                retry_count: asked.retry_count,
                rnr_retry_count: reply.rnr_retry_count,
            },
            ack_timeout: self.ack_timeout(),
        });
    }

    /// What a queue pair of this id must be told on its way to `state`.
    pub fn modify_for(&self, state: State) -> Result<Modify, IdError> {
        let mut modify = Modify { state: Some(state), ..Modify::default() };
        let reliable = self.kind != Kind::UnreliableConnected;
        let agreement = self.agreement.ok_or(IdError::State { what: "rdma_init_qp_attr", state: self.stage.name() });
        match (state, self.is_datagram()) {
            (State::Init, true) => {
                (modify.pkey_index, modify.port, modify.qkey) = (Some(0), Some(self.port()), Some(UDP_QKEY))
            }
            (State::ReadyToReceive, true) => {}
            (State::ReadyToSend, true) => modify.sq_psn = Some(Psn::new(0)),
            (State::Init, false) => {
                (modify.pkey_index, modify.port) = (Some(0), Some(self.port()));
                let numbers = agreement.ok().map(|agreement| agreement.numbers).or(self.asked);
                modify.access = Some(match numbers.map(|numbers| numbers.responder_resources) {
                    None => Access::empty(),
                    Some(0) => Access::REMOTE_WRITE,
                    Some(_) => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
                });
            }
            (State::ReadyToReceive, false) => {
                let Agreement { peer_qpn, mtu, numbers, .. } = agreement?;
                modify.av = self.address_vector();
                (modify.path_mtu, modify.dest_qpn) = (Some(mtu), Some(peer_qpn));
                modify.rq_psn = Some(self.receive_psn);
                if reliable && self.kind != Kind::XrcInitiator {
                    modify.max_dest_rd_atomic = Some(numbers.responder_resources);
                    modify.min_rnr_timer = Some(0);
                }
            }
            (State::ReadyToSend, false) => {
                let Agreement { send_psn, numbers, .. } = agreement?;
                modify.sq_psn = Some(send_psn);
                if reliable {
                    modify.timeout = Some(self.ack_timeout());
                }
                if reliable && self.kind != Kind::XrcTarget {
                    modify.retry_cnt = Some(numbers.retry_count);
                    modify.rnr_retry = Some(numbers.rnr_retry_count);
                    modify.max_rd_atomic = Some(numbers.initiator_depth);
                }
            }
            _ => return Err(IdError::Invalid("attributes are known for INIT, RTR and RTS")),
        }
        Ok(modify)
    }
}

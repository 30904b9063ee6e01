//! What is known of an id: where it is in its life, between which addresses, and what the two sides agreed on.

use super::error::CmError;
use super::event::{ConnectionBody, EventChannel};
use super::id::Id;
use super::route::{PathFacts, Place};
use ::cm::ListenerId;
use ::host::slots::Slot;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use trace::ConnectionEnd;
use transport::{Access, AddressVector, Kind, Modify, State};
use wire::cm::{CommId, PortSpace, Rep, Req};
use wire::{Gid, Mtu, Psn, Qkey, Qpn};

/// The key of datagrams between queue pairs that the connection manager introduced.
pub const UDP_QKEY: Qkey = Qkey::new(0x0123_4567);

/// How long a packet lives on Ethernet, as the kernel's connection manager says it: `4.096 us * 2^18`.
pub(crate) const PACKET_LIFETIME: u8 = 18;

/// The ACK timeout of queue pairs that did not ask for another: twice that.
pub(crate) const ACK_TIMEOUT: u8 = PACKET_LIFETIME + 1;

/// Where an id is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// We asked for a connection.
    Connecting,
    /// The peer accepted, and waits for us.
    Answered,
    /// The peer asked, and waits for us.
    Requested,
    /// We accepted, and wait for the peer.
    Accepted,
    Connected,
    /// We asked for the end.
    Disconnecting,
    /// The peer asked for the end, and perhaps waits for us.
    PeerLeft,
    /// It has ended, or never came to be.
    Ended,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Idle => "idle",
            Stage::Bound => "bound to an address",
            Stage::AddressResolved => "resolved to an address",
            Stage::RouteResolved => "resolved to a route",
            Stage::Listening => "listening",
            Stage::Connecting => "connecting",
            Stage::Answered => "accepted by its peer",
            Stage::Requested => "asked for by a peer",
            Stage::Accepted => "accepted",
            Stage::Connected => "connected",
            Stage::Disconnecting | Stage::PeerLeft => "being disconnected",
            Stage::Ended => "at its end",
        }
    }
}

/// What a program may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    pub type_of_service: u8,
    pub reuse_address: bool,
    pub only_its_family: bool,
    pub ack_timeout: Option<u8>,
    pub ece: ::cm::Ece,
}

/// What the two sides agreed on, from our point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreement {
    pub peer_qpn: Qpn,
    /// The first sequence number of what we send: the peer chose it.
    pub send_psn: Psn,
    pub mtu: Mtu,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub ack_timeout: u8,
}

/// A group that an id is a member of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub group: Gid,
}

/// Everything about an id.
#[derive(Debug)]
pub(crate) struct Record {
    pub id: Weak<Id>,
    pub channel: Arc<EventChannel>,
    pub space: PortSpace,
    pub kind: Kind,
    pub stage: Stage,
    /// A peer asked for it, and the program has not accepted: then it is told nothing of it, as with kernels. The
    /// program has not said yet what it keeps with the id, and finds out when it accepts.
    pub unaccepted: bool,
    pub settings: Settings,
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
    /// It holds a port.
    pub bound: bool,
    pub place: Option<Place>,
    pub listener: Option<ListenerId>,
    pub communication: Option<CommId>,
    /// How the peer names it.
    pub peer_communication: Option<CommId>,
    /// The process of the peer, if it is on this host and we watch it.
    pub watched: Option<Slot>,
    /// Where it stands in the connection records of this process.
    pub recorded_at: Option<usize>,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first sequence number of what we receive: we choose it, and the peer begins with it.
    pub receive_psn: Psn,
    /// What we asked for, or were asked for.
    pub asked: Option<Asked>,
    /// When we asked.
    pub asked_at: Option<::cm::Time>,
    pub agreement: Option<Agreement>,
    pub path: Option<PathFacts>,
    pub groups: Vec<Member>,
    /// The end has been told.
    pub told_of_end: bool,
    /// How it is going to end, where that is known before the peer or we say so.
    pub foreseen_end: Option<ConnectionEnd>,
    /// What is told of the end.
    pub end: ConnectionBody,
}

/// The numbers of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
}

impl Record {
    pub fn new(id: Weak<Id>, channel: Arc<EventChannel>, space: PortSpace, kind: Kind, receive_psn: Psn) -> Record {
        Record {
            id,
            channel,
            space,
            kind,
            stage: Stage::Idle,
            unaccepted: false,
            settings: Settings::default(),
            source: None,
            destination: None,
            bound: false,
            place: None,
            listener: None,
            communication: None,
            peer_communication: None,
            watched: None,
            recorded_at: None,
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

    /// Itself, for those who ask what there is.
    pub fn report(&self, number: u32) -> inventory::ConnectionId {
        // The kernel's `enum rdma_cm_state`.
        let state = match self.stage {
            Stage::Idle => 0,
            Stage::AddressResolved => 2,
            Stage::RouteResolved => 4,
            Stage::Connecting | Stage::Answered | Stage::Requested | Stage::Accepted | Stage::Connected => 5,
            Stage::Disconnecting | Stage::PeerLeft | Stage::Ended => 6,
            Stage::Bound => 7,
            Stage::Listening => 8,
        };
        let space = match self.space {
            PortSpace::Ipoib => 0x0002,
            PortSpace::Tcp => 0x0106,
            PortSpace::Udp => 0x0111,
            PortSpace::Ib => 0x013f,
        };
        inventory::ConnectionId {
            number,
            interface: self.place.as_ref().map_or(0, |place| place.device.interface_index()),
            queue_pair: self.qpn.value(),
            kind: self.kind.code(),
            space,
            state,
            source: self.source,
            destination: self.destination,
        }
    }

    pub fn refuse<T>(&self, what: &'static str) -> Result<T, CmError> {
        Err(CmError::State { what, state: self.stage.name() })
    }

    pub fn expect(&self, what: &'static str, stages: &[Stage]) -> Result<(), CmError> {
        if stages.contains(&self.stage) { Ok(()) } else { self.refuse(what) }
    }

    pub fn is_datagram(&self) -> bool {
        matches!(self.space, PortSpace::Udp | PortSpace::Ipoib) || self.kind == Kind::UnreliableDatagram
    }

    pub fn ack_timeout(&self) -> u8 {
        self.settings.ack_timeout.unwrap_or(ACK_TIMEOUT)
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
            ..AddressVector::default()
        })
    }

    /// Takes note of what a peer that asks for a connection wants.
    pub fn take_request(&mut self, request: &Req, mtu: Mtu) {
        self.peer_communication = Some(request.local_comm_id);
        // The peer's depth is what we are to answer, and the other way round.
        self.asked = Some(Asked {
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
        });
        self.agreement = Some(Agreement {
            peer_qpn: request.local_qpn,
            send_psn: request.starting_psn,
            mtu: request.mtu().unwrap_or(mtu).min(mtu),
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ack_timeout: request.primary.local_ack_timeout.value(),
        });
    }

    /// The queue pair of a peer that accepted: an XRC target's stands where an end-to-end context would.
    pub fn answering_qpn(&self, reply: &Rep) -> Qpn {
        if self.kind == Kind::XrcInitiator { Qpn::new(reply.local_eecn) } else { reply.local_qpn }
    }

    /// Takes note of what a peer that accepted said.
    pub fn take_reply(&mut self, reply: &Rep) {
        let Some(asked) = self.asked else { return };
        self.peer_communication = Some(reply.local_comm_id);
        self.agreement = Some(Agreement {
            peer_qpn: self.answering_qpn(reply),
            send_psn: reply.starting_psn,
            mtu: self.path.map_or(Mtu::B1024, |path| path.mtu),
            responder_resources: reply.initiator_depth,
            initiator_depth: reply.responder_resources,
            retry_count: asked.retry_count,
            rnr_retry_count: reply.rnr_retry_count,
            ack_timeout: self.ack_timeout(),
        });
    }

    /// What a queue pair of this id must be told on its way to `state`.
    pub fn modify_for(&self, state: State) -> Result<Modify, CmError> {
        let mut modify = Modify { state: Some(state), ..Modify::default() };
        if self.is_datagram() {
            match state {
                State::Init => {
                    (modify.pkey_index, modify.port, modify.qkey) = (Some(0), Some(1), Some(UDP_QKEY));
                }
                State::ReadyToReceive => {}
                State::ReadyToSend => modify.sq_psn = Some(Psn::new(0)),
                _ => return Err(CmError::Invalid("attributes are known for INIT, RTR and RTS")),
            }
            return Ok(modify);
        }
        let reliable = self.kind != Kind::UnreliableConnected;
        let agreement = self.agreement.ok_or(CmError::State { what: "rdma_init_qp_attr", state: self.stage.name() });
        match state {
            State::Init => {
                (modify.pkey_index, modify.port) = (Some(0), Some(1));
                let agreed = agreement.ok().map(|agreement| agreement.responder_resources);
                modify.access = Some(match agreed.or(self.asked.map(|asked| asked.responder_resources)) {
                    None => Access::empty(),
                    Some(0) => Access::REMOTE_WRITE,
                    Some(_) => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
                });
            }
            State::ReadyToReceive => {
                let agreement = agreement?;
                modify.av = self.address_vector();
                modify.path_mtu = Some(agreement.mtu);
                modify.dest_qpn = Some(agreement.peer_qpn);
                modify.rq_psn = Some(self.receive_psn);
                if reliable && self.kind != Kind::XrcInitiator {
                    modify.max_dest_rd_atomic = Some(agreement.responder_resources);
                    modify.min_rnr_timer = Some(0);
                }
            }
            State::ReadyToSend => {
                let agreement = agreement?;
                modify.sq_psn = Some(agreement.send_psn);
                if reliable {
                    modify.timeout = Some(self.settings.ack_timeout.unwrap_or(agreement.ack_timeout));
                    if self.kind != Kind::XrcTarget {
                        modify.retry_cnt = Some(agreement.retry_count);
                        modify.rnr_retry = Some(agreement.rnr_retry_count);
                        modify.max_rd_atomic = Some(agreement.initiator_depth);
                    }
                }
            }
            _ => return Err(CmError::Invalid("attributes are known for INIT, RTR and RTS")),
        }
        Ok(modify)
    }
}

//! What the connection manager of a simulated host knows of an id: where it is in its life, between which addresses,
//! and what the two sides agreed on.

use super::connections::{Channel, SimulatedId};
use crate::backend::connections::ConnectionEvent;
use crate::cm::ConnectError;
use crate::error::Error;
use cm::ListenerId;
use hca::cm::{Body, ConnectionBody, EventKind, UDP_QKEY};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use transport::{Access, AddressVector, Kind, Modify, State};
use wire::cm::{CommId, PortSpace, Rep, Req};
use wire::{Gid, Mtu, Psn, Qpn};

/// The path MTU of connections.
pub(super) const MTU: Mtu = Mtu::B4096;

/// The ACK timeout of those who did not ask for another: `4.096 us * 2^n`, as kernels have it.
const ACK_TIMEOUT: u8 = 19;

/// Where an id is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    Connecting,
    Answered,
    Requested,
    Accepted,
    Connected,
    Disconnecting,
    PeerLeft,
    Ended,
}

/// What a program may set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    pub(super) type_of_service: u8,
    pub(super) reuse_address: bool,
    pub(super) only_its_family: bool,
    pub(super) ack_timeout: Option<u8>,
    pub(super) ece: cm::Ece,
}

/// The numbers of a request, from our point of view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreement {
    peer_qpn: Qpn,
    send_psn: Psn,
    mtu: Mtu,
    pub(super) numbers: Asked,
    ack_timeout: u8,
}

/// Everything about an id.
pub(super) struct Record {
    pub(super) id: Weak<SimulatedId>,
    pub(super) channel: Arc<Channel>,
    pub(super) space: PortSpace,
    pub(super) kind: Kind,
    pub(super) stage: Stage,
    /// A peer asked for it, and the program has not accepted: until then it is told nothing of it.
    pub(super) unaccepted: bool,
    pub(super) settings: Settings,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    /// Our address, the peer's, and the place of ours in the table.
    pub(super) path: Option<(Gid, Gid, u8)>,
    pub(super) listener: Option<ListenerId>,
    pub(super) communication: Option<CommId>,
    /// Our queue pair.
    pub(super) qpn: Qpn,
    pub(super) receive_psn: Psn,
    pub(super) asked: Option<Asked>,
    pub(super) agreement: Option<Agreement>,
    pub(super) groups: Vec<Gid>,
    pub(super) told_of_end: bool,
    pub(super) end: ConnectionBody,
}

impl Record {
    pub(super) fn new(id: Weak<SimulatedId>, channel: Arc<Channel>, space: PortSpace, kind: Kind, psn: Psn) -> Record {
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
            path: None,
            listener: None,
            communication: None,
            qpn: Qpn::new(0),
            receive_psn: psn,
            asked: None,
            agreement: None,
            groups: Vec::new(),
            told_of_end: false,
            end: ConnectionBody::default(),
        }
    }

    pub(super) fn expect(&self, what: &'static str, stages: &[Stage]) -> Result<(), Error> {
        match stages.contains(&self.stage) {
            true => Ok(()),
            false => {
                let what = format!("{what} is not possible for an id in stage {:?}", self.stage);
                Err(ConnectError::State { what }.into())
            }
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        matches!(self.space, PortSpace::Udp | PortSpace::Ipoib) || self.kind == Kind::UnreliableDatagram
    }

    pub(super) fn ack_timeout(&self) -> u8 {
        self.settings.ack_timeout.unwrap_or(ACK_TIMEOUT)
    }

    /// The way to the peer as queue pairs want it.
    pub(super) fn address_vector(&self) -> Option<AddressVector> {
        let (_, dgid, sgid_index) = self.path?;
        let traffic_class = self.settings.type_of_service;
        Some(AddressVector { dgid, sgid_index, hop_limit: 64, traffic_class, ..AddressVector::default() })
    }

    /// Tells the program, unless it has yet to accept. Answers what may only be let go of without the lock.
    pub(super) fn tell(&self, kind: EventKind, status: i32, body: Body) -> Option<Arc<SimulatedId>> {
        let id = self.id.upgrade()?;
        if !self.unaccepted {
            let event = ConnectionEvent { id: Arc::clone(&id) as _, listener: None, kind, status, body };
            self.channel.push(id.key, event);
        }
        Some(id)
    }

    /// What a peer that asks for a connection wants: its depth is what we are to answer, and the other way round.
    pub(super) fn take_request(&mut self, request: &Req) {
        let numbers = Asked {
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
        };
        self.asked = Some(numbers);
        self.agreement = Some(Agreement {
            peer_qpn: request.local_qpn,
            send_psn: request.starting_psn,
            mtu: request.mtu().unwrap_or(MTU).min(MTU),
            numbers,
            ack_timeout: request.primary.local_ack_timeout.value(),
        });
    }

    /// The queue pair of a peer that accepted: an XRC target's stands where an end-to-end context would.
    pub(super) fn answering_qpn(&self, reply: &Rep) -> Qpn {
        if self.kind == Kind::XrcInitiator { Qpn::new(reply.local_eecn) } else { reply.local_qpn }
    }

    /// What a peer that accepted said.
    pub(super) fn take_reply(&mut self, reply: &Rep) {
        let Some(asked) = self.asked else { return };
        self.agreement = Some(Agreement {
            peer_qpn: self.answering_qpn(reply),
            send_psn: reply.starting_psn,
            mtu: MTU,
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
    pub(super) fn modify_for(&self, state: State) -> Result<Modify, Error> {
        let mut modify = Modify { state: Some(state), ..Modify::default() };
        let unknown = || ConnectError::Refused { what: "attributes are known for INIT, RTR and RTS".into() };
        let reliable = !matches!(self.kind, Kind::UnreliableConnected | Kind::UnreliableDatagram);
        let agreement = || {
            let what = format!("no peer has agreed yet: the id is in stage {:?}", self.stage);
            self.agreement.ok_or(ConnectError::State { what })
        };
        match (state, self.is_datagram()) {
            (State::Init, true) => (modify.pkey_index, modify.port, modify.qkey) = (Some(0), Some(1), Some(UDP_QKEY)),
            (State::ReadyToReceive, true) => {}
            (State::ReadyToSend, true) => modify.sq_psn = Some(Psn::new(0)),
            (State::Init, false) => {
                (modify.pkey_index, modify.port) = (Some(0), Some(1));
                let numbers = self.agreement.map(|agreement| agreement.numbers).or(self.asked);
                modify.access = Some(match numbers.map(|numbers| numbers.responder_resources) {
                    None => Access::empty(),
                    Some(0) => Access::REMOTE_WRITE,
                    Some(_) => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
                });
            }
            (State::ReadyToReceive, false) => {
                let Agreement { peer_qpn, mtu, numbers, .. } = agreement()?;
                modify.av = self.address_vector();
                (modify.path_mtu, modify.dest_qpn) = (Some(mtu), Some(peer_qpn));
                modify.rq_psn = Some(self.receive_psn);
                if reliable && self.kind != Kind::XrcInitiator {
                    modify.max_dest_rd_atomic = Some(numbers.responder_resources);
                    modify.min_rnr_timer = Some(0);
                }
            }
            (State::ReadyToSend, false) => {
                let Agreement { send_psn, numbers, ack_timeout, .. } = agreement()?;
                modify.sq_psn = Some(send_psn);
                if reliable {
                    modify.timeout = Some(self.settings.ack_timeout.unwrap_or(ack_timeout));
                }
                if reliable && self.kind != Kind::XrcTarget {
                    modify.retry_cnt = Some(numbers.retry_count);
                    modify.rnr_retry = Some(numbers.rnr_retry_count);
                    modify.max_rd_atomic = Some(numbers.initiator_depth);
                }
            }
            _ => return Err(unknown().into()),
        }
        Ok(modify)
    }
}

//! What the manager tells the program, and the messages it wants sent.

use alloc::vec::Vec;

use wire::cm::{CmDatagram, CommId, Data, RejectReason, RejectedMessage, Rep, Req, SidrRep, SidrReq};

use crate::{Ece, ListenerId, Route};

/// What happened to a connection or a request for a service. Of one attempt to connect, each side hears at most one of
/// established, rejected and timed out; of one connection, at most one of the events that end it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant)] // a request is moved twice in its life
pub enum Event {
    /// A peer wants to connect: [accept](crate::Manager::accept) or [reject](crate::Manager::reject).
    Request {
        /// Who was asked.
        listener: ListenerId,
        /// The new connection.
        id: CommId,
        /// The way to the peer.
        route: Route,
        /// The message.
        request: Req,
        /// The vendor options it came with.
        ece: Ece,
    },
    /// The peer accepts: [confirm](crate::Manager::confirm) or [reject](crate::Manager::reject).
    Reply {
        /// The connection.
        id: CommId,
        /// The message.
        reply: Rep,
        /// The vendor options it came with.
        ece: Ece,
    },
    /// The peer has confirmed.
    Established {
        /// The connection.
        id: CommId,
    },
    /// The attempt has ended: the peer does not want it. The id is gone.
    Rejected {
        /// The connection.
        id: CommId,
        /// Why.
        reason: RejectReason,
        /// What would have been accepted, depending on the reason.
        ari: Vec<u8>,
        /// From the peer's program.
        private_data: Data<148>,
        /// What was rejected.
        rejected: RejectedMessage,
    },
    /// Nobody answers. After a DREQ the connection is over and in timewait; otherwise the attempt has ended and the id
    /// is gone.
    TimedOut {
        /// The connection.
        id: CommId,
        /// What was not answered.
        what: Unanswered,
    },
    /// The peer disconnects: [answer](crate::Manager::answer_disconnect).
    DisconnectRequested {
        /// The connection.
        id: CommId,
        /// From the peer's program.
        private_data: Data<220>,
    },
    /// The peer agrees that the connection is over.
    Disconnected {
        /// The connection.
        id: CommId,
        /// From the peer's program.
        private_data: Data<224>,
    },
    /// A message from the peer's address asks for a connection of the queue pair that this one is with, as if the peer
    /// had lost it. Anybody may claim that, so the connection stands: ask the peer, and if it does not answer, say that
    /// it [is lost](crate::Manager::peer_lost).
    Suspected {
        /// The connection.
        id: CommId,
    },
    /// No packet of an ended connection can be under way any more. The id is gone.
    TimewaitEnded {
        /// The connection.
        id: CommId,
    },
    /// A peer asks for a datagram service: [answer](crate::Manager::answer).
    ServiceRequest {
        /// Who was asked.
        listener: ListenerId,
        /// The request.
        id: CommId,
        /// The way to the peer.
        route: Route,
        /// The message.
        request: SidrReq,
    },
    /// The answer to a request for a datagram service. The id is gone.
    ServiceAnswer {
        /// The request.
        id: CommId,
        /// The message.
        answer: SidrRep,
    },
    /// Nobody answers a request for a datagram service. The id is gone.
    ServiceTimedOut {
        /// The request.
        id: CommId,
    },
}

impl Event {
    /// Whom it is about.
    pub const fn id(&self) -> CommId {
        match self {
            Event::Request { id, .. }
            | Event::Reply { id, .. }
            | Event::Established { id }
            | Event::Rejected { id, .. }
            | Event::TimedOut { id, .. }
            | Event::DisconnectRequested { id, .. }
            | Event::Disconnected { id, .. }
            | Event::Suspected { id }
            | Event::TimewaitEnded { id }
            | Event::ServiceRequest { id, .. }
            | Event::ServiceAnswer { id, .. }
            | Event::ServiceTimedOut { id } => *id,
        }
    }
}

/// A message that was not answered, however often it was repeated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unanswered {
    /// The request for a connection.
    Req,
    /// The reply to one.
    Rep,
    /// The request to disconnect.
    Dreq,
}

/// A message to send, from QP 1 to QP 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// From where to where.
    pub route: Route,
    /// The message.
    pub datagram: CmDatagram,
    /// It was sent before. What is sent for the first time should arrive in the order in which it is sent; what is sent
    /// again should go another way where there is one.
    pub again: bool,
}

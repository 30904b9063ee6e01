//! What programs say to their ids and hear of them, with the names and numbers of librdmacm.

use alloc::vec::Vec;

use trace::ConnectionEnd;
use transport::AddressVector;
use wire::cm::{CommId, PortSpace};
use wire::{Qkey, Qpn};

use super::IdKey;
use crate::Ece;

/// What one side offers when it connects or accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnectParameters<'a> {
    /// For the peer's program.
    pub private_data: &'a [u8],
    /// READs and atomics of the peer's that we answer at a time.
    pub responder_resources: u8,
    /// READs and atomics of ours outstanding at a time.
    pub initiator_depth: u8,
    /// Whether we do end-to-end flow control.
    pub flow_control: bool,
    /// How often to retry after a missing acknowledgement.
    pub retry_count: u8,
    /// How often to retry when the receiver is not ready; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The key of our datagrams, if it is another than the usual one.
    pub qkey: Option<Qkey>,
}

/// What may be set on an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_set_option")]
pub enum IdOption {
    /// IP type of service of everything it sends.
    TypeOfService(u8),
    /// Others that say so may bind the same address.
    ReuseAddress(bool),
    /// A wildcard of IPv6 leaves IPv4 alone.
    OnlyItsFamily(bool),
    /// Its addresses are GIDs (`AF_IB`): a request does not begin with the IP addresses of both sides.
    ByGid(bool),
    /// The ACK timeout of its queue pair, `4.096 us * 2^n`.
    AckTimeout(u8),
    /// Vendor and options of enhanced connection establishment.
    Ece(u32, u32),
}

/// What happened, with the numbers of `rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// The address has a device and a source address.
    AddressResolved = 0,
    /// It has not.
    AddressError = 1,
    /// The way is known.
    RouteResolved = 2,
    /// It is not.
    RouteError = 3,
    /// A peer asks a listener for a connection.
    ConnectRequest = 4,
    /// The peer accepted; the queue pair is to be made ready, and then [`establish`](super::Ids::establish) is due.
    ConnectResponse = 5,
    /// Something went wrong while connecting.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer does not want to.
    Rejected = 8,
    /// The connection stands.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// The group was joined.
    MulticastJoin = 12,
    /// It was not, or no longer.
    MulticastError = 13,
    /// The address of the device changed.
    AddressChange = 14,
    /// The queue pair's number may be used again.
    TimewaitExit = 15,
    /// A name was looked up.
    AddressInfoResolved = 16,
    /// It could not be.
    AddressInfoError = 17,
    /// What the program itself has to say.
    User = 18,
}

/// What comes with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Body {
    /// Nothing.
    #[default]
    None,
    /// What a peer said of a connection, from our point of view.
    Connection(ConnectionBody),
    /// How to reach a queue pair of datagrams, or a group.
    Datagram(DatagramBody),
    /// What the program wrote itself.
    Number(u64),
}

/// What a peer said of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionBody {
    /// What it wants its peer to know: as long as the field of the message, filled up with zeros.
    pub private_data: Vec<u8>,
    /// How many READs and atomics of the peer's we are asked to answer at a time.
    pub responder_resources: u8,
    /// How many of ours the peer answers at a time.
    pub initiator_depth: u8,
    /// Whether the peer does end-to-end flow control.
    pub flow_control: bool,
    /// How often to retry.
    pub retry_count: u8,
    /// How often to retry when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qpn: u32,
    /// Vendor and options of the peer's enhanced connection establishment.
    pub ece: Ece,
    /// How the connection ended, with [`EventKind::Disconnected`].
    pub end: Option<ConnectionEnd>,
}

/// How to reach a queue pair of datagrams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramBody {
    /// As in [`ConnectionBody`].
    pub private_data: Vec<u8>,
    /// The way.
    pub av: AddressVector,
    /// The queue pair, or the number that stands for a group.
    pub qpn: Qpn,
    /// The key its datagrams show.
    pub qkey: Qkey,
    /// What the program gave when it joined a group.
    pub user: u64,
}

/// What a driver of [`Ids`](super::Ids) is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The program of an id hears this.
    Event {
        /// Which id.
        key: IdKey,
        /// What happened.
        kind: EventKind,
        /// 0, a negative errno, or the reason of a rejection.
        status: i32,
        /// What comes with it.
        body: Body,
    },
    /// A peer asks a listener, and there is a new id for it. A driver that cannot tell the listener's program rejects
    /// and destroys it.
    Request {
        /// The new id.
        key: IdKey,
        /// The one that listens.
        listener: IdKey,
        /// What comes with it.
        body: Body,
    },
    /// The connection of an id has ended. Its program hears of it in an [event](Output::Event), perhaps a moment later.
    Ended {
        /// Which id.
        key: IdKey,
    },
    /// It is claimed that the peer does not have the connection any more, as with
    /// [`Event::Suspected`](crate::Event::Suspected).
    Suspected {
        /// Which id.
        key: IdKey,
        /// Its connection.
        communication: CommId,
    },
    /// No id has this port any more.
    PortFreed {
        /// The namespace.
        space: PortSpace,
        /// The port.
        port: u16,
    },
}

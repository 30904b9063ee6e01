//! What the API asks of a connection manager: ids, and channels of their events. Calls do at once what they can, and
//! the rest arrives as events; an id whose last handle is dropped is taken down.

use super::Error;
use cm::id::{Body, ConnectParameters, EventKind, IdOption};
use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use transport::{Kind, Modify, State};
use wire::cm::{PortSpace, RejectReason};

/// A connection manager.
pub trait Connections {
    /// Makes a channel for events of ids.
    fn create_event_channel(&self) -> Result<Arc<dyn EventChannel>, Error>;

    /// Makes an id whose events go to `channel`.
    fn create_id(
        &self,
        channel: &Arc<dyn EventChannel>,
        space: PortSpace,
        kind: Kind,
    ) -> Result<Arc<dyn ConnectionId>, Error>;
}

/// Where events of ids arrive, oldest first.
pub trait EventChannel: Any + Debug + Send + Sync {
    /// The descriptor, readable while events wait.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether the program has made the descriptor non-blocking: then nobody waits for it.
    fn is_nonblocking(&self) -> io::Result<bool>;

    /// The oldest event.
    fn try_take(&self) -> Option<ConnectionEvent>;

    /// Calls `observer` whenever an event was added, with no lock held that a call into the connection manager would
    /// want. Set once, before there are ids.
    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>);
}

/// What happened to an id.
#[derive(Clone, Debug)]
pub struct ConnectionEvent {
    /// To which. A request comes with an id of its own.
    pub id: Arc<dyn ConnectionId>,
    /// The id that listens, if it is a request.
    pub listener: Option<Arc<dyn ConnectionId>>,
    /// What.
    pub kind: EventKind,
    /// 0, a negative errno, or the reason of a rejection.
    pub status: i32,
    /// What comes with it.
    pub body: Body,
}

/// An endpoint of the connection manager. `ubiverbs::cm::Id` says what each call does.
pub trait ConnectionId: Debug + Send + Sync {
    /// What all handles of this id return, and those of no other id that exists.
    fn identity(&self) -> usize;

    /// What the program keeps with it; 0 at first.
    fn user(&self) -> u64;

    /// Keeps something else with it.
    fn set_user(&self, user: u64);

    /// The name of the device it is bound to.
    fn device(&self) -> Option<String>;

    /// Our address.
    fn source(&self) -> Option<SocketAddr>;

    /// The peer's address.
    fn destination(&self) -> Option<SocketAddr>;

    /// Sets an option.
    fn set(&self, option: IdOption) -> Result<(), Error>;

    /// Takes an address and port.
    fn bind(&self, address: SocketAddr) -> Result<(), Error>;

    /// Waits for requests.
    fn listen(&self, backlog: u32) -> Result<(), Error>;

    /// Finds the device and the source address for a peer.
    fn resolve_address(&self, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Error>;

    /// Finds the way.
    fn resolve_route(&self) -> Result<(), Error>;

    /// Asks the peer for a connection.
    fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error>;

    /// Accepts what a peer asked for.
    fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error>;

    /// Refuses it.
    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), Error>;

    /// Says that our queue pair is ready.
    fn establish(&self) -> Result<(), Error>;

    /// Data came: the peer's is.
    fn notify_established(&self) -> Result<(), Error>;

    /// Ends the connection, with something for the peer's program; or agrees to its end.
    fn disconnect(&self, private_data: &[u8]) -> Result<(), Error>;

    /// What a queue pair must be told on its way to `state`.
    fn modify_for(&self, state: State) -> Result<Modify, Error>;

    /// Joins a group.
    fn join(&self, group: IpAddr, user: u64) -> Result<(), Error>;

    /// Leaves a group.
    fn leave(&self, group: IpAddr) -> Result<(), Error>;

    /// Sends its events elsewhere.
    fn migrate(&self, to: &Arc<dyn EventChannel>) -> Result<(), Error>;

    /// Ends it, also if there are other handles.
    fn destroy(&self);
}

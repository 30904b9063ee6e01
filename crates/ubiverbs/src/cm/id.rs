//! Ids: connecting step by step, as programs of librdmacm do.

use super::channel::EventChannel;
use super::{ConnectParameters, IdOption, PortSpace};
use crate::device::{Device, devices_of};
use seam::{Argument, Backend, Error, connections::ConnectionId};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use transport::{Kind, Modify, State};
use wire::cm::RejectReason;

/// An endpoint of the connection manager, step by step. A handle; when the last clone is dropped, whatever it stood for
/// is taken down.
///
/// Each call begins a step; an [`Event`](super::Event) on its [`EventChannel`] tells how it went. Its queue pair is the
/// program's: made with [`prepare`](crate::QueuePairBuilder::prepare), moved with what [`modify_for`](Id::modify_for)
/// says.
///
/// ```
/// use ubiverbs::cm::{ConnectParameters, EventChannel, EventKind, Id, PortSpace};
/// use ubiverbs::{Kind, Reliable, State};
///
/// let channel = EventChannel::new()?;
/// let new_id = || Id::new(&channel, PortSpace::Tcp, Kind::ReliableConnected);
/// let expect = |kind| channel.wait().inspect(|event| assert_eq!(event.kind, kind));
///
/// // One listens ...
/// let listener = new_id()?;
/// listener.bind(([127, 0, 0, 1], 0).into())?;
/// listener.listen(16)?;
///
/// // ... another asks for a connection.
/// let active = new_id()?;
/// active.resolve_address(None, listener.local_addr().expect("it is bound"))?;
/// expect(EventKind::AddressResolved)?;
/// active.resolve_route()?;
/// expect(EventKind::RouteResolved)?;
/// let context = active.device().expect("it is resolved").open()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.completion_queue(16).create()?;
/// let mut here = pd.queue_pair::<Reliable>(&cq).prepare()?;
/// let offer = ConnectParameters { private_data: b"hello", retry_count: 7, rnr_retry_count: 7, ..Default::default() };
/// active.connect(&ConnectParameters { qpn: here.qpn(), ..offer })?;
///
/// // The listener gets an id for it; its queue pair must be ready before it accepts.
/// let passive = expect(EventKind::ConnectRequest)?.id;
/// let mut there = pd.queue_pair::<Reliable>(&cq).prepare()?;
/// there.modify(&passive.modify_for(State::ReadyToReceive)?)?;
/// there.modify(&passive.modify_for(State::ReadyToSend)?)?;
/// passive.accept(&ConnectParameters { qpn: there.qpn(), ..offer })?;
///
/// expect(EventKind::ConnectResponse)?;
/// here.modify(&active.modify_for(State::ReadyToReceive)?)?;
/// here.modify(&active.modify_for(State::ReadyToSend)?)?;
/// active.establish()?;
/// expect(EventKind::Established)?;
///
/// let (here, there) = (here.finish()?, there.finish()?);
/// let receiving = there.recv(pd.allocate(64)?)?;
/// here.send_inline(b"connected")?.wait()?;
/// assert_eq!(receiving.wait()?.payload(), b"connected");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "rdma_cm_id")]
#[doc(alias = "rdma_create_id")]
pub struct Id {
    backend: Arc<dyn Backend>,
    id: Arc<dyn ConnectionId>,
}

impl Id {
    /// A fresh one whose events go to `channel`.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &EventChannel, space: PortSpace, kind: Kind) -> Result<Id, Error> {
        let id = channel.backend().create_id(channel.channel(), space, kind)?;
        Ok(Id { backend: Arc::clone(channel.backend()), id })
    }

    pub(super) fn from_backend(backend: &Arc<dyn Backend>, id: Arc<dyn ConnectionId>) -> Id {
        Id { backend: Arc::clone(backend), id }
    }

    /// A number that the program keeps with it; 0 at first.
    pub fn user(&self) -> u64 {
        self.id.user()
    }

    /// Keeps another number with it.
    pub fn set_user(&self, user: u64) {
        self.id.set_user(user);
    }

    /// The device it is bound to, once it is.
    pub fn device(&self) -> Option<Device> {
        let name = self.device_name()?;
        devices_of(&self.backend).into_iter().find(|device| device.name() == name)
    }

    pub(super) fn device_name(&self) -> Option<String> {
        self.id.device()
    }

    /// Our address and port.
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.source()
    }

    /// The peer's address and port.
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.destination()
    }

    /// Sets an option.
    #[doc(alias = "rdma_set_option")]
    pub fn set(&self, option: IdOption) -> Result<(), Error> {
        self.id.set(option)
    }

    /// Takes an address and port of this host; port 0 is any, an unspecified address all.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.id.bind(address)
    }

    /// Waits for requests, at most `backlog` of them that nobody has looked at; 0 is as many as the system thinks
    /// right. Each comes as an [event](super::EventKind::ConnectRequest).
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.id.listen(backlog)
    }

    /// Finds the device and the source address for a peer.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_address(&self, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Error> {
        self.id.resolve_address(source, destination)
    }

    /// Finds the way to it.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self) -> Result<(), Error> {
        self.id.resolve_route()
    }

    /// Asks the peer for a connection, or for its queue pair of datagrams.
    ///
    /// # Errors
    /// [`Error::Argument`] for numbers of retries that the message has no room for.
    #[doc(alias = "rdma_connect")]
    #[track_caller]
    pub fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        check(parameters)?;
        self.id.connect(parameters)
    }

    /// Accepts what a peer asked for. The queue pair must be able to receive before.
    ///
    /// # Errors
    /// As [`connect`](Id::connect).
    #[doc(alias = "rdma_accept")]
    #[track_caller]
    pub fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        check(parameters)?;
        self.id.accept(parameters)
    }

    /// Refuses what a peer asked for, or what it answered.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), Error> {
        self.id.reject(reason, private_data)
    }

    /// Says that our queue pair is ready: after [`ConnectResponse`](super::EventKind::ConnectResponse).
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), Error> {
        self.id.establish()
    }

    /// Data came before the peer said that it is ready: it is.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<(), Error> {
        self.id.notify_established()
    }

    /// Ends the connection, or agrees to its end. The queue pair should be in error before, so that nothing waits for
    /// ever.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        self.id.disconnect(&[])
    }

    /// Ends the connection with up to 220 bytes for the peer's program, if it is the first to end the connection.
    pub fn disconnect_with(&self, private_data: &[u8]) -> Result<(), Error> {
        self.id.disconnect(private_data)
    }

    /// What a queue pair of this id must be told on its way to `state`: for
    /// [`PreparedQueuePair::modify`](crate::PreparedQueuePair::modify).
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn modify_for(&self, state: State) -> Result<Modify, Error> {
        self.id.modify_for(state)
    }

    /// Joins a group; `user` comes back with the event, and so does the group's address.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(&self, group: IpAddr, user: u64) -> Result<(), Error> {
        self.id.join(group, user)
    }

    /// Leaves a group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&self, group: IpAddr) -> Result<(), Error> {
        self.id.leave(group)
    }

    /// Sends its events to another channel from now on, those that wait included.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &EventChannel) -> Result<(), Error> {
        self.id.migrate(to.channel())
    }

    /// Ends it, also if there are other handles: what stands is taken down, what waits for it on its channel is
    /// forgotten, its port is free.
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy(&self) {
        self.id.destroy();
    }
}

/// Whether the message has room for them.
#[track_caller]
fn check(parameters: &ConnectParameters<'_>) -> Result<(), Argument> {
    let three_bits = "it has three bits: 0 to 7";
    match *parameters {
        ConnectParameters { retry_count: count @ 8.., .. } => Err(Argument::refuse("retry_count", count, three_bits)),
        ConnectParameters { rnr_retry_count: count @ 8.., .. } => {
            Err(Argument::refuse("rnr_retry_count", count, three_bits))
        }
        _ => Ok(()),
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Id) -> bool {
        self.id.identity() == other.id.identity()
    }
}

impl Eq for Id {}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |address: Option<SocketAddr>| address.map_or_else(|| "?".to_owned(), |address| address.to_string());
        write!(f, "Id({} -> {})", end(self.local_addr()), end(self.peer_addr()))
    }
}

//! Datagrams: finding the queue pair behind an address and port, and groups that any number of queue pairs are in.

use super::hub::{Hub, Party};
use super::pending::Pending;
use super::{ConnectError, ConnectParameters, Event, EventKind, QKEY, Route};
use crate::address::AddressHandle;
use crate::queue_pair::QueuePair;
use crate::transports::{Datagram, Transport};
use seam::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use wire::{Gid, refuse_if};

/// A service of datagrams that was found by its address and port.
#[derive(Clone, Debug)]
pub struct Service {
    address: AddressHandle,
    peer: SocketAddr,
    private_data: Vec<u8>,
}

impl Route<Datagram> {
    /// Asks the peer which queue pair is behind its port, with up to 180 bytes for its program.
    ///
    /// ```
    /// use ubiverbs::{Datagram, GRH_LENGTH, cm};
    ///
    /// let listener = cm::Listener::<Datagram>::bind_as("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// let server = std::thread::spawn(move || {
    ///     let request = listener.next().wait()?;
    ///     let context = request.context()?;
    ///     let pd = context.alloc_pd()?;
    ///     let qp = pd.queue_pair::<Datagram>(&context.completion_queue(16).create()?).prepare()?.activate()?;
    ///     let receiving = qp.recv(pd.allocate(GRH_LENGTH + 64)?)?;
    ///     request.answer(&qp, b"send it here")?;
    ///     Ok::<_, ubiverbs::Error>(receiving.wait()?.payload().to_vec())
    /// });
    ///
    /// let route = cm::resolve_as::<Datagram>(address).wait()?;
    /// let context = route.context()?;
    /// let pd = context.alloc_pd()?;
    /// let qp = pd.queue_pair::<Datagram>(&context.completion_queue(16).create()?).prepare()?.activate()?;
    /// let service = route.find_service(b"where?").wait()?;
    /// assert!(service.private_data().starts_with(b"send it here"));
    /// qp.send_inline_to(b"found you", service.address())?.wait()?;
    /// assert_eq!(server.join().unwrap()?, b"found you");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Cancel safety
    /// Dropping it gives the question up. It can be asked again.
    #[doc(alias = "rdma_connect")]
    pub fn find_service(self, private_data: &[u8]) -> Pending<Service> {
        let (party, private_data) = (self.party, private_data.to_vec());
        Pending::start(async move {
            party.id.connect(&ConnectParameters { private_data: &private_data, ..ConnectParameters::default() })?;
            let event = party.expect(EventKind::Established).await?;
            let (address, peer) = (address(&event)?, party.peer_addr());
            Ok(Service { address, peer, private_data: event.private_data().to_vec() })
        })
    }
}

fn address(event: &Event) -> Result<AddressHandle, Error> {
    let unexpected = || ConnectError::Unexpected { event: event.kind, status: event.status }.into();
    event.address().ok_or_else(unexpected)
}

impl Service {
    /// Where its datagrams go.
    pub fn address(&self) -> &AddressHandle {
        &self.address
    }

    /// The address and port it was found at.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// What its program said, filled up with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }
}

/// A place in a multicast group: the queue pair gets what is sent to the group, also by itself, until this is dropped.
#[must_use = "dropping it leaves the group"]
pub struct Membership {
    qp: QueuePair<Datagram>,
    address: AddressHandle,
    group: IpAddr,
    /// Holds the connection manager's side of it.
    _party: Party,
}

/// Lets a queue pair of datagrams join a multicast group, on the network of its device. Its Q_Key must be [`QKEY`], as
/// all members' is.
///
/// ```
/// use ubiverbs::{Datagram, GRH_LENGTH, cm};
///
/// let context = ubiverbs::device("ubi_lo")?.open()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.completion_queue(16).create()?;
/// let qp = pd.queue_pair::<Datagram>(&cq).qkey(cm::QKEY).prepare()?.activate()?;
/// let receiving = qp.recv(pd.allocate(GRH_LENGTH + 64)?)?;
///
/// let membership = cm::join("239.7.1.4".parse().unwrap(), &qp).wait()?;
/// qp.send_inline_to(b"hello, all", membership.address())?.wait()?;
/// assert_eq!(receiving.wait()?.payload(), b"hello, all");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// # Cancel safety
/// Dropping it gives up, and leaves the group if it had been joined already.
#[doc(alias = "rdma_join_multicast")]
pub fn join(group: IpAddr, qp: &QueuePair<Datagram>) -> Pending<Membership> {
    let qp = qp.clone();
    Pending::start(async move {
        refuse_if!(qp.endpoint().qkey() != QKEY, ConnectError::GroupKey.into());
        let party = Hub::ours()?.party(Datagram::KIND)?;
        let (_, source) = qp.core().context().source_for(Gid::from_ip(group))?;
        // Not bound but resolved: a loopback address chooses no device by itself.
        party.id.resolve_address(Some(SocketAddr::new(source.to_ip(), 0)), SocketAddr::new(group, 0))?;
        party.expect(EventKind::AddressResolved).await?;
        refuse_if!(!party.is_on(qp.core().context()), Error::OtherDevice { what: "queue pair" });
        party.id.join(group, 0)?;
        let event = party.expect(EventKind::MulticastJoin).await?;
        let address = address(&event)?;
        qp.attach(address.gid())?;
        Ok(Membership { qp, address, group, _party: party })
    })
}

impl Membership {
    /// Where datagrams to the group go.
    pub fn address(&self) -> &AddressHandle {
        &self.address
    }

    /// The group.
    pub fn group(&self) -> IpAddr {
        self.group
    }

    /// Leaves the group: as dropping it.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(self) {}
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.qp.detach(self.address.gid());
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Membership({} in {})", self.qp.qpn(), self.group)
    }
}

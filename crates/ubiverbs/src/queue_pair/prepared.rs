//! A queue pair that has no peer yet.

use crate::buffer::RegisteredMut;
use crate::completion::Received;
use crate::endpoint::Endpoint;
use crate::operation::Operation;
use crate::queue_pair::{
    Core, QueuePair,
    builder::{Connection, random_psn},
};
use crate::transports::{Connected, Datagram, Transport};
use seam::{Error, Failed};
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;
use transport::{AddressVector, Attributes, Kind, Modify, State};
use wire::{Gid, Mtu, Psn, Qpn, refuse_if};

/// A queue pair before it is connected: it has a number and takes receives, and nothing arrives yet.
///
/// Each side prepares one, sends its [`endpoint`](PreparedQueuePair::endpoint) to the other by any means, posts the
/// receives the peer will need, and [`connect`](PreparedQueuePair::connect)s. That is a one-way step, so a queue pair
/// without a peer cannot be sent on:
///
/// ```
/// # use ubiverbs::Reliable;
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let (here, there) = (pd.queue_pair::<Reliable>(&cq).prepare()?, pd.queue_pair::<Reliable>(&cq).prepare()?);
/// let (at_here, at_there) = (here.endpoint(), there.endpoint());
/// let first = there.recv(pd.allocate(100)?)?; // before anything can arrive
/// let (here, there) = (here.connect(&at_there)?, there.connect(&at_here)?);
/// here.send_inline(b"hello")?.wait()?;
/// assert_eq!(first.wait()?.payload(), b"hello");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// ```compile_fail,E0599
/// # use ubiverbs::Reliable;
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
/// prepared.send_inline(b"hello")?; // error: no such method
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[must_use = "a queue pair that is dropped is destroyed"]
pub struct PreparedQueuePair<T: Transport> {
    core: Core,
    connection: Connection,
    sgid_index: u8,
    gid: Gid,
    mtu: Mtu,
    psn: Psn,
    transport: PhantomData<T>,
}

impl<T: Transport> PreparedQueuePair<T> {
    pub(super) fn new(
        core: Core,
        connection: Connection,
        sgid_index: u8,
        gid: Gid,
        mtu: Mtu,
        psn: Psn,
    ) -> PreparedQueuePair<T> {
        PreparedQueuePair { core, connection, sgid_index, gid, mtu, psn, transport: PhantomData }
    }

    /// What the peer must know of it.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(T::KIND, self.mtu, self.gid, self.core.pair.qpn(), self.psn, self.core.qkey)
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.pair.qpn()
    }

    /// Posts a receive.
    ///
    /// # Cancel safety
    /// As [`QueuePair::recv`].
    #[doc(alias = "ibv_post_recv")]
    pub fn recv(&self, buffer: RegisteredMut) -> Result<Operation<Received>, Failed<RegisteredMut>> {
        self.core.recv(buffer)
    }

    /// Its attributes as they are now.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Attributes {
        self.core.pair.attributes()
    }

    /// Moves it by hand, for those who need attributes that [`connect`](PreparedQueuePair::connect) does not set. When
    /// it is ready, [`finish`](PreparedQueuePair::finish). In RESET everything outstanding ends with
    /// [`Error::Destroyed`].
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, modify: &Modify) -> Result<(), Error> {
        self.core.pair.modify(modify)?;
        if modify.state == Some(State::Reset) {
            self.core.after_reset();
        }
        Ok(())
    }

    /// Takes a queue pair that was moved by hand as connected.
    ///
    /// # Errors
    /// [`Error::State`] if it is not ready to send.
    pub fn finish(self) -> Result<QueuePair<T>, Error> {
        match self.attributes().state {
            State::ReadyToSend => Ok(QueuePair::new(self)),
            actual => Err(Error::State { actual, wanted: "move it to RTS first" }),
        }
    }

    pub(super) fn to_init(&self, modify: &Modify) -> Result<(), Error> {
        Ok(self.core.pair.modify(modify)?)
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// How it wants to be connected.
    pub(crate) fn connection(&self) -> Connection {
        self.connection
    }

    /// Connects it, from that address, as the connection manager agreed with the peer: first it can receive, then send.
    pub(crate) fn follow(&mut self, receive: &Modify, send: &Modify, local: IpAddr) -> Result<(), Error> {
        let port = receive.av.map_or(1, |av| av.port);
        if port != self.attributes().port {
            self.to_init(&Modify { state: Some(State::Init), port: Some(port), ..Modify::default() })?;
        }
        self.core.pair.modify(receive)?;
        self.core.pair.modify(send)?;
        self.psn = send.sq_psn.unwrap_or(self.psn);
        self.mtu = receive.path_mtu.unwrap_or(self.mtu);
        if let Some(av) = receive.av {
            // The context tells of port 1.
            let gid = if port == 1 { self.core.context.gid(av.sgid_index) } else { Some(Gid::from_ip(local)) };
            (self.sgid_index, self.gid) = (av.sgid_index, gid.unwrap_or(self.gid));
        }
        Ok(())
    }

    /// Takes one that has followed.
    pub(crate) fn into_ready(self) -> QueuePair<T> {
        QueuePair::new(self)
    }
}

impl<T: Connected> PreparedQueuePair<T> {
    /// Connects it to its peer. The link is chosen here; nothing is exchanged, so the peer may connect earlier or
    /// later.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, peer: &Endpoint) -> Result<QueuePair<T>, Error> {
        self.connect_to(peer, T::KIND)
    }
}

impl<T: Transport> PreparedQueuePair<T> {
    /// Connects it to a peer of that kind.
    pub(crate) fn connect_to(self, peer: &Endpoint, kind: Kind) -> Result<QueuePair<T>, Error> {
        refuse_if!(peer.kind() != kind, Error::OtherTransport { ours: T::KIND, theirs: peer.kind() });
        if peer.gid().to_ip().is_ipv4() != self.gid.to_ip().is_ipv4() {
            return Err(Error::AddressFamily { from: self.gid, to: peer.gid() });
        }
        let reliable = T::KIND.is_reliable();
        let responds = reliable && T::KIND != Kind::XrcInitiator;
        let requests = reliable && T::KIND != Kind::XrcTarget;
        let Connection { timeout, retries, not_ready_retries, not_ready_delay, max_reads } = self.connection;
        let av = AddressVector { dgid: peer.gid(), sgid_index: self.sgid_index, ..AddressVector::default() };
        self.core.pair.modify(&Modify {
            state: Some(State::ReadyToReceive),
            av: Some(av),
            path_mtu: Some(self.mtu.min(peer.mtu())),
            dest_qpn: Some(peer.qpn()),
            rq_psn: Some(peer.psn()),
            max_dest_rd_atomic: responds.then_some(max_reads),
            min_rnr_timer: responds.then_some(not_ready_delay),
            ..Modify::default()
        })?;
        self.core.pair.modify(&Modify {
            state: Some(State::ReadyToSend),
            sq_psn: Some(self.psn),
            timeout: reliable.then_some(timeout),
            retry_cnt: requests.then_some(retries),
            rnr_retry: requests.then_some(not_ready_retries),
            max_rd_atomic: requests.then_some(max_reads),
            ..Modify::default()
        })?;
        Ok(QueuePair::new(self))
    }
}

impl PreparedQueuePair<Datagram> {
    /// Starts it: datagrams need no peer.
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(self) -> Result<QueuePair<Datagram>, Error> {
        self.core.pair.modify(&Modify { state: Some(State::ReadyToReceive), ..Modify::default() })?;
        let ready = Modify { state: Some(State::ReadyToSend), sq_psn: Some(self.psn), ..Modify::default() };
        self.core.pair.modify(&ready)?;
        Ok(QueuePair::new(self))
    }
}

impl<T: Transport> fmt::Debug for PreparedQueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedQueuePair({})", self.endpoint())
    }
}

impl<T: Transport> QueuePair<T> {
    /// Back to the beginning: everything outstanding ends with [`Error::Destroyed`], the number stays, and it can be
    /// connected anew, from another sequence number on: the endpoint is a new one, and late packets of the old
    /// connection are not taken for the new one's.
    ///
    /// # Errors
    /// [`Error::Shared`], with the queue pair, if other handles of it exist.
    pub fn reset(self) -> Result<PreparedQueuePair<T>, Failed<QueuePair<T>>> {
        let prepared = Arc::try_unwrap(self.into_inner()).map_err(|shared| Failed {
            error: Error::Shared { what: "queue pair" },
            buffer: QueuePair::from_inner(shared),
        })?;
        let before = prepared.attributes();
        let connected = T::KIND.is_connected();
        let again = Modify {
            state: Some(State::Init),
            pkey_index: Some(before.pkey_index),
            port: Some(before.port),
            access: connected.then_some(before.access),
            qkey: (!connected).then_some(before.qkey),
            ..Modify::default()
        };
        let mut prepared = prepared;
        let reset = Modify { state: Some(State::Reset), ..Modify::default() };
        match prepared.modify(&reset).and_then(|()| prepared.to_init(&again)) {
            Ok(()) => {
                prepared.psn = random_psn();
                Ok(prepared)
            }
            Err(error) => Err(Failed { error, buffer: QueuePair::new(prepared) }),
        }
    }
}

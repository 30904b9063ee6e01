//! Queue pairs: where work is posted. Typed by transport, so that what a transport cannot do is not there to be called.

mod batch;
mod builder;
mod extended;
mod prepared;
mod scatter;
mod work;

pub use batch::Batch;
pub use builder::QueuePairBuilder;
pub use extended::Flush;
pub use prepared::PreparedQueuePair;
pub(crate) use work::Work;

use crate::address::AddressHandle;
use crate::buffer::{Destination, RegisteredMut, Source, sealed::Lend};
use crate::completion::Received;
use crate::completion_queue::CompletionQueue;
use crate::device::{Context, ContextCore};
use crate::domain::ProtectionDomain;
use crate::ending::Ending;
use crate::operation::Operation;
use crate::posting::post_receive;
use crate::remote::RemoteSlice;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::table::{How, Reporter, Table, Ticket};
use crate::transports::{Connected, Datagram, Reliable, Transport};
use seam::{CloseReason, Error, Failed, Stats};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use transport::{Attributes, Modify, SendFlags, State};
use wire::{Gid, Qkey, Qpn};

/// A queue pair that is ready. A handle; clones are the same queue pair, which is destroyed with the last of them.
///
/// Each method posts its work when it is called and returns an [`Operation`] to await, to leave to the completion
/// queue, or to drop. The buffer belongs to the NIC until then. If the work is not taken at all, the error gives the
/// buffer back.
///
/// ```
/// # use ubiverbs::{Access, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let [here, there] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
///
/// // Two-sided: a SEND meets a receive.
/// let receiving = there.recv(pd.allocate(64)?)?;
/// let buffer = here.send(pd.register(b"hello".to_vec())?)?.wait()?;
/// assert_eq!(receiving.wait()?.payload(), b"hello");
///
/// // One-sided: the peer only shares its memory.
/// let region = pd.share(64, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
/// here.write(buffer, region.remote_slice())?.wait()?;
/// let copy = here.read(pd.allocate(5)?, region.remote_slice().slice(0..5)?)?.wait()?;
/// assert_eq!(&*copy, b"hello");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[doc(alias = "ibv_qp")]
pub struct QueuePair<T: Transport> {
    /// A queue pair that is ready is a prepared one that cannot be taken apart any more.
    inner: Arc<PreparedQueuePair<T>>,
}

impl<T: Transport> QueuePair<T> {
    fn new(prepared: PreparedQueuePair<T>) -> QueuePair<T> {
        QueuePair { inner: Arc::new(prepared) }
    }

    fn into_inner(self) -> Arc<PreparedQueuePair<T>> {
        self.inner
    }

    pub(crate) fn from_inner(inner: Arc<PreparedQueuePair<T>>) -> QueuePair<T> {
        QueuePair { inner }
    }

    /// A handle that does not keep it.
    pub(crate) fn weak(&self) -> Weak<PreparedQueuePair<T>> {
        Arc::downgrade(&self.inner)
    }

    pub(crate) fn core(&self) -> &Core {
        self.inner.core()
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core().pair.qpn()
    }

    /// How it reaches its peer, in words: `shared memory`, `UDP`, `inside the process`; `none` for datagrams, which
    /// have no one peer.
    pub fn link(&self) -> &'static str {
        self.core().pair.link()
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.attributes().state
    }

    /// Why it ended, if it has: what stopped it, or who ended its connection.
    ///
    /// ```
    /// # use ubiverbs::{Access, CloseReason, Key, Reliable, RemoteSlice, Status};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// let [here, there] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// assert_eq!(here.close_reason(), None);
    /// let nobodys = RemoteSlice::new(0x1000, 8, Key::new(77));
    /// here.write_inline(&[1; 8], nobodys)?.wait().unwrap_err();
    ///
    /// let Some(CloseReason::Failed(error)) = here.close_reason() else { panic!() };
    /// assert_eq!(error.status, Status::RemoteAccess);
    /// assert!(matches!(there.close_reason(), Some(CloseReason::PeerFault { .. })));
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.core().ending.reason()
    }

    /// What it has counted since it was made, and how congested the way to its peer is. A
    /// [`Connection`](crate::cm::Connection) has this, too.
    pub fn stats(&self) -> Stats {
        self.core().pair().stats()
    }

    /// Its attributes as they are now.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Attributes {
        self.core().pair.attributes()
    }

    /// Changes attributes by hand, or the state; ERR ends everything outstanding with a flush.
    ///
    /// # Errors
    /// [`Error::State`] for RESET: use [`reset`](QueuePair::reset), which makes sure that nobody else is posting.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, modify: &Modify) -> Result<(), Error> {
        if modify.state == Some(State::Reset) {
            return Err(Error::State {
                actual: self.state(),
                wanted: "go to RESET with `reset`, which takes the last handle",
            });
        }
        Ok(self.core().pair.modify(modify)?)
    }

    /// What a peer must know of it; of a datagram queue pair, what is sent to those who shall write to it.
    pub fn endpoint(&self) -> crate::Endpoint {
        self.inner.endpoint()
    }

    /// How many sends and receives the NIC has and has not told the end of. Receives of a shared queue are not counted.
    pub fn outstanding(&self) -> (usize, usize) {
        let core = self.core();
        (core.send.pending(), if core.shared.is_some() { 0 } else { core.receive.pending() })
    }

    /// Posts a receive. For datagrams the buffer needs 40 bytes more than the message:
    /// [`GRH_LENGTH`](crate::GRH_LENGTH).
    ///
    /// # Cancel safety
    /// Dropping the operation loses no message. The NIC cannot give a receive back: it stays, with its buffer, and
    /// what arrives for it goes to the receive that has been waited for longest, or else is kept for the next call,
    /// which returns it at once. So a message may come in the buffer of an earlier call, and must fit that;
    /// `buffer` joins the queue. Of receives and messages that nobody waits for there are at most as many as the queue
    /// holds; a buffer beyond that is freed. [`Operation::discard`] is for messages that nobody wants.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [peer, qp] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// let too_late = qp.recv(pd.allocate(64)?)?.wait_for(Duration::from_millis(1));
    /// assert!(too_late.is_none()); // and the operation is dropped
    /// peer.send_inline(b"one")?.wait()?;
    /// peer.send_inline(b"two")?; // needs another receive
    /// assert_eq!(qp.recv(pd.allocate(64)?)?.wait()?.payload(), b"one");
    /// assert_eq!(qp.recv(pd.allocate(64)?)?.wait()?.payload(), b"two");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_post_recv")]
    pub fn recv(&self, buffer: RegisteredMut) -> Result<Operation<Received>, Failed<RegisteredMut>> {
        self.core().recv(buffer)
    }

    /// Takes up a receive whose operation was dropped, with the message that came for it, if there is one; none if
    /// there is no such receive, or if all of them are waited for. As [`recv`](QueuePair::recv) without another
    /// buffer:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [peer, qp] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// # peer.send_inline(b"hello")?;
    /// let message = loop {
    ///     let mut receiving = match qp.resume_recv() {
    ///         Some(receiving) => receiving,
    ///         None => qp.recv(pd.allocate(64)?)?,
    ///     };
    ///     if let Some(message) = receiving.wait_for(Duration::from_millis(10)) {
    ///         break message?;
    ///     }
    ///     // Something else is to be done; one receive is enough, however often this happens.
    /// };
    /// assert_eq!(message.payload(), b"hello");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Cancel safety
    /// As [`recv`](QueuePair::recv).
    pub fn resume_recv(&self) -> Option<Operation<Received>> {
        let table = &self.core().receive;
        Some(Operation::new(table, table.resume()?))
    }

    /// Several sends that are handed to the NIC together, with one ring of its doorbell; and options of single ones.
    pub fn batch(&self) -> Batch<'_, T> {
        Batch::new(self)
    }
}

impl<T: Connected> QueuePair<T> {
    /// Sends a message, which meets a receive at the peer.
    ///
    /// # Cancel safety
    /// Dropping the operation cancels nothing: the message goes out all the same. Whether it arrived is not heard, and
    /// the buffer is freed.
    #[doc(alias = "ibv_post_send")]
    pub fn send<B: Source>(&self, buffer: B) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::send(None), buffer)
    }

    /// Sends a message with a number beside it.
    ///
    /// # Cancel safety
    /// As [`send`](QueuePair::send).
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn send_imm<B: Source>(&self, buffer: B, immediate: u32) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::send(Some(immediate)), buffer)
    }

    /// Sends a short message. The bytes are copied: they need not be registered and can be used again at once.
    ///
    /// # Cancel safety
    /// As [`send`](QueuePair::send), without a buffer.
    #[doc(alias = "IBV_SEND_INLINE")]
    pub fn send_inline(&self, bytes: &[u8]) -> Result<Operation<()>, Error> {
        self.post_inline(Work::send(None), bytes)
    }

    /// Writes into the peer's memory, without its program's doing.
    ///
    /// # Cancel safety
    /// Dropping the operation cancels nothing: the bytes are written all the same. Whether they were is not heard, and
    /// the buffer is freed.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write<B: Source>(&self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::write(remote, None), buffer)
    }

    /// Writes into the peer's memory and completes one of its receives, with a number.
    ///
    /// # Cancel safety
    /// As [`write`](QueuePair::write).
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_imm<B: Source>(
        &self,
        buffer: B,
        remote: RemoteSlice,
        immediate: u32,
    ) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::write(remote, Some(immediate)), buffer)
    }

    /// Writes a few bytes into the peer's memory. They are copied at once.
    ///
    /// # Cancel safety
    /// As [`write`](QueuePair::write), without a buffer.
    #[doc(alias = "IBV_SEND_INLINE")]
    pub fn write_inline(&self, bytes: &[u8], remote: RemoteSlice) -> Result<Operation<()>, Error> {
        self.post_inline(Work::write(remote, None), bytes)
    }

    /// Sends a short message of which nothing more is heard, unless it fails: then its completion comes from the
    /// completion queue, with this number. The bytes are copied. See [`write_quietly`](QueuePair::write_quietly).
    #[doc(alias = "unsignaled")]
    pub fn send_quietly(&self, bytes: &[u8], wr_id: u32) -> Result<(), Error> {
        self.post_quietly(Work::send(None), bytes, wr_id)
    }

    /// Writes a few bytes into the peer's memory, of which nothing more is heard, unless it fails: then its completion
    /// comes from the completion queue, with this number. The bytes are copied. What nobody is told costs less; but the
    /// place it takes in the send queue is free again only when a later operation has completed, so let one of many be
    /// told of.
    ///
    /// ```
    /// # use ubiverbs::{Access, Reliable};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [here, there] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// let counters = pd.share(64, Access::REMOTE_WRITE)?;
    /// for (number, at) in (0..7).zip((0..).step_by(8)) {
    ///     here.write_quietly(&[1; 8], counters.remote_slice().slice(at..at + 8)?, number)?;
    /// }
    /// // The last one is reported, and with it the others: reliable connections keep the order.
    /// here.write_inline(&[1; 8], counters.remote_slice().slice(56..64)?)?.wait()?;
    /// let mut bytes = [0; 64];
    /// counters.read_at(0, &mut bytes)?;
    /// assert_eq!(bytes, [1; 64]);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    #[doc(alias = "unsignaled")]
    pub fn write_quietly(&self, bytes: &[u8], remote: RemoteSlice, wr_id: u32) -> Result<(), Error> {
        self.post_quietly(Work::write(remote, None), bytes, wr_id)
    }
}

impl QueuePair<Reliable> {
    /// Reads the peer's memory into the beginning of `buffer`, without its program's doing.
    ///
    /// # Cancel safety
    /// Dropping the operation loses what was read, with the buffer. It can be read again.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read<B: Destination>(&self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::read(remote), buffer)
    }

    /// Replaces the first eight bytes of `remote` by `swap` if they are `compare`, at once, and returns what they were:
    /// the swap happened if that is `compare`.
    ///
    /// # Cancel safety
    /// **Not cancel safe**: dropping the operation loses the answer, and the peer's memory is changed all the same.
    /// Keep the operation, and await `&mut operation`.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap(&self, remote: RemoteSlice, compare: u64, swap: u64) -> Result<Operation<u64>, Error> {
        self.post_atomic(Work::compare_swap(remote, compare, swap))
    }

    /// Adds to the first eight bytes of `remote`, at once, and returns what they were.
    ///
    /// # Cancel safety
    /// **Not cancel safe**: dropping the operation loses the answer, and the peer's memory is changed all the same.
    /// Keep the operation, and await `&mut operation`.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add(&self, remote: RemoteSlice, add: u64) -> Result<Operation<u64>, Error> {
        self.post_atomic(Work::fetch_add(remote, add))
    }
}

impl QueuePair<Datagram> {
    /// Sends a datagram. It must fit one packet.
    ///
    /// # Cancel safety
    /// As [`send`](QueuePair::send): the datagram goes out all the same.
    #[doc(alias = "ibv_post_send")]
    pub fn send_to<B: Source>(&self, buffer: B, to: &AddressHandle) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::send_to(to, None), buffer)
    }

    /// Sends a short datagram. The bytes are copied at once.
    ///
    /// # Cancel safety
    /// As [`send`](QueuePair::send), without a buffer.
    #[doc(alias = "IBV_SEND_INLINE")]
    pub fn send_inline_to(&self, bytes: &[u8], to: &AddressHandle) -> Result<Operation<()>, Error> {
        self.post_inline(Work::send_to(to, None), bytes)
    }

    /// Sends a short datagram of which nothing more is heard, unless it cannot be sent: then its completion comes from
    /// the completion queue, with this number.
    #[doc(alias = "unsignaled")]
    pub fn send_quietly_to(&self, bytes: &[u8], to: &AddressHandle, wr_id: u32) -> Result<(), Error> {
        self.post_quietly(Work::send_to(to, None), bytes, wr_id)
    }

    /// The way to a peer whose Q_Key is the same as ours.
    pub(crate) fn address(&self, gid: Gid, qpn: Qpn) -> Result<AddressHandle, Error> {
        AddressHandle::new(&self.core().context, gid, qpn, self.core().qkey)
    }

    /// Gets what is sent to a multicast group.
    pub(crate) fn attach(&self, group: Gid) -> Result<(), Error> {
        self.core().pair.attach(group)
    }

    /// Gets it no more.
    pub(crate) fn detach(&self, group: Gid) {
        // It may be destroyed, and out of all groups with that.
        let _ = self.core().pair.detach(group);
    }
}

impl Received {
    /// Of a datagram: where an answer from `qp` goes. The sender's Q_Key is taken to be that of `qp`; a datagram does
    /// not tell it.
    pub fn reply_address(&self, qp: &QueuePair<Datagram>) -> Option<AddressHandle> {
        qp.address(self.source_gid()?, self.source_qpn()?).ok()
    }
}

/// Work without options, posted at once.
impl<T: Transport> QueuePair<T> {
    fn post<B: Lend>(&self, work: Work, buffer: B) -> Result<Operation<B>, Failed<B>> {
        let core = self.core();
        core.with_buffer(work, SendFlags::empty(), buffer, |request| core.post_now(request))
    }

    fn post_inline(&self, work: Work, bytes: &[u8]) -> Result<Operation<()>, Error> {
        let core = self.core();
        core.with_inline(work, SendFlags::empty(), bytes, |request| core.post_now(request))
    }

    fn post_quietly(&self, work: Work, bytes: &[u8], wr_id: u32) -> Result<(), Error> {
        let core = self.core();
        core.quietly(work, SendFlags::empty(), bytes, wr_id, |request| core.post_now(request))
    }

    fn post_atomic(&self, work: Work) -> Result<Operation<u64>, Error> {
        let core = self.core();
        core.with_word(work, SendFlags::empty(), |request| core.post_now(request))
    }
}

impl<T: Transport> Clone for QueuePair<T> {
    fn clone(&self) -> QueuePair<T> {
        QueuePair { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Transport> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({} {} in {})", T::KIND, self.qpn(), self.state())
    }
}

/// Two queue pairs of this program, connected to each other: for tests, examples and threads that talk.
pub fn connected_pair<T: Connected>(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<[QueuePair<T>; 2], Error> {
    let (a, b) = (pd.queue_pair::<T>(cq).prepare()?, pd.queue_pair::<T>(cq).prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    Ok([a.connect(&at_b)?, b.connect(&at_a)?])
}

/// A queue pair and what is in flight on it. Dropping it destroys the queue pair first and lets go of the buffers
/// afterwards.
#[repr(C)]
pub(crate) struct Core {
    pair: Arc<dyn seam::QueuePair>,
    send: Arc<Table>,
    receive: Arc<Table>,
    domain: transport::ProtectionDomain,
    context: Arc<ContextCore>,
    shared: Option<SharedReceiveQueue>,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    qkey: Qkey,
    ending: Arc<Ending>,
    /// For the next batch.
    spare: Mutex<batch::Kept>,
}

impl Core {
    fn recv(&self, buffer: RegisteredMut) -> Result<Operation<Received>, Failed<RegisteredMut>> {
        post_receive(&self.receive, self.domain, buffer, |request| {
            // SAFETY: `post_receive` has moved the buffer into the table, where nothing reaches it until the work has
            // ended.
            #[allow(unsafe_code)]
            unsafe { self.pair.post_receive(&[request]) }.map_err(|(_, error)| error)
        })
    }

    pub(crate) fn context(&self) -> &Arc<ContextCore> {
        &self.context
    }

    pub(crate) fn pd(&self) -> ProtectionDomain {
        ProtectionDomain { context: Context { core: Arc::clone(&self.context) }, id: self.domain }
    }

    pub(crate) fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    pub(crate) fn has_shared_receives(&self) -> bool {
        self.shared.is_some()
    }

    pub(crate) fn ending(&self) -> &Arc<Ending> {
        &self.ending
    }

    pub(crate) fn pair(&self) -> &Arc<dyn seam::QueuePair> {
        &self.pair
    }

    /// The NIC has forgotten all work.
    fn after_reset(&self) {
        self.ending.clear();
        self.send_cq.core.dispatch();
        self.receive_cq.core.dispatch();
        self.send.cancel(false);
        if self.shared.is_none() {
            self.receive.cancel(false);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Work that was flushed may be asked why when the queue pair is gone.
        let _ = self.ending.reason();
        let taken = self.pair.destroy();
        // What completed before that is still told.
        for cq in [&self.send_cq, &self.receive_cq] {
            cq.core.dispatch();
            cq.core.leave(self.pair.qpn());
        }
        self.send.cancel(true);
        match (&self.shared, taken) {
            (None, _) => self.receive.cancel(true),
            // A receive of the shared queue that a message had begun to fill: it ends with the queue pair.
            (Some(_), Some(wr_id)) => self.receive.end(Ticket::of(wr_id), How::Destroyed).carry_out(),
            (Some(_), None) => {}
        }
    }
}

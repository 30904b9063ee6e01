//! Extended reliable connections: one connection per pair of processes, whatever number of receive queues there are at
//! its end.

use crate::buffer::{Destination, RegisteredMut, Source, sealed::Lend};
use crate::completion::{Received, ReceivedInto};
use crate::completion_queue::CompletionQueue;
use crate::device::Context;
use crate::domain::ProtectionDomain;
use crate::endpoint::Endpoint;
use crate::operation::Operation;
use crate::queue_pair::{PreparedQueuePair, QueuePair, QueuePairBuilder, Work};
use crate::remote::RemoteSlice;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::transports::{XrcReceive, XrcSend};
use latch::lock;
use seam::{Error, Failed, Stats};
use std::fmt;
use std::sync::{Arc, Mutex};
use transport::{Kind, SendFlags};
use wire::{Qpn, Srqn, refuse_if};

/// A domain of extended reliable connections (XRC): receive queues, and the ends of connections that may fill any of
/// them. A handle; clones are the same domain.
///
/// Where many threads of many processes talk to one another, each with each, an ordinary connection per pair of threads
/// is too many. Here a process needs one to each other process: each thread there has a queue of receives, and each
/// message names the queue it is for. A connection has one direction.
///
/// ```
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(64).create()?;
/// // The receiving process: a queue for each of its threads, and one end for all of them.
/// let domain = context.xrc_domain()?;
/// let queues = [domain.receive_queue(&pd, &cq, 16)?, domain.receive_queue(&pd, &cq, 16)?];
/// let target = domain.target()?;
///
/// // The sending process.
/// let sender = pd.xrc_sender(&cq)?;
/// let (at_sender, at_target) = (sender.endpoint(), target.endpoint());
/// let sender = sender.connect(&at_target)?;
/// let target = target.connect(&at_sender)?;
///
/// let receiving = queues[1].recv(pd.allocate(64)?)?;
/// sender.to(queues[1].number()).send(pd.register(b"to the second".to_vec())?)?.wait()?;
/// assert_eq!(receiving.wait()?.payload(), b"to the second");
/// # drop(target);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_xrcd")]
pub struct XrcDomain {
    core: Arc<Domain>,
}

struct Domain {
    context: Context,
    number: u32,
    /// Its queues, which last as long as a target may be filling one of their receives.
    queues: Mutex<Vec<Arc<ReceiveQueue>>>,
}

struct ReceiveQueue {
    queue: SharedReceiveQueue,
    cq: CompletionQueue,
    capacity: u32,
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        self.cq.core.leave_shared(self.queue.number(), self.capacity);
    }
}

impl Context {
    /// A domain of extended reliable connections.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain(&self) -> Result<XrcDomain, Error> {
        let number = self.core.opened.new_xrc_domain();
        Ok(XrcDomain { core: Arc::new(Domain { context: self.clone(), number, queues: Mutex::default() }) })
    }
}

impl XrcDomain {
    /// A queue of up to `capacity` receives, which complete in `cq`. It lasts as long as the domain and its targets:
    /// receives that were posted to it are not given back before.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn receive_queue(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        capacity: u32,
    ) -> Result<XrcReceiveQueue, Error> {
        refuse_if!(!Arc::ptr_eq(pd.core(), &self.core.context.core), Error::OtherDevice { what: "protection domain" });
        let queue = SharedReceiveQueue::of_xrc_domain(pd, self.core.number, cq, capacity)?;
        let queue = Arc::new(ReceiveQueue { queue, cq: cq.clone(), capacity });
        lock(&self.core.queues).push(Arc::clone(&queue));
        Ok(XrcReceiveQueue { queue })
    }

    /// The receiving end of a connection, about to be connected.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn target(&self) -> Result<PreparedXrcTarget, Error> {
        let context = &self.core.context;
        // Neither is used: memory is that of the receive queues, and so are completions.
        let (pd, cq) = (context.alloc_pd()?, context.completion_queue(1).create()?);
        let prepared = QueuePairBuilder::<XrcReceive>::new(&pd, &cq).in_xrc_domain(self.core.number).prepare()?;
        Ok(PreparedXrcTarget { prepared, domain: Arc::clone(&self.core) })
    }
}

/// A queue of receives that senders name. Made by [`XrcDomain::receive_queue`]. A handle; clones are the same queue.
#[derive(Clone)]
#[doc(alias = "IBV_SRQT_XRC")]
pub struct XrcReceiveQueue {
    queue: Arc<ReceiveQueue>,
}

impl XrcReceiveQueue {
    /// Its number, for senders.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Srqn {
        self.queue.queue.number()
    }

    /// Posts a receive.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn recv(&self, buffer: RegisteredMut) -> Result<Operation<Received>, Failed<RegisteredMut>> {
        self.queue.queue.recv(buffer)
    }

    /// Posts a receive into a buffer of any type, as [`QueuePair::recv_into`].
    pub fn recv_into<B: Destination>(&self, buffer: B) -> Result<Operation<ReceivedInto<B>>, Failed<B>> {
        self.queue.queue.recv_into(buffer)
    }

    /// How many receives have been posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.queue.queue.outstanding()
    }
}

/// The receiving end of a connection that has no peer yet. Made by [`XrcDomain::target`].
#[must_use = "one that is dropped is destroyed"]
pub struct PreparedXrcTarget {
    prepared: PreparedQueuePair<XrcReceive>,
    domain: Arc<Domain>,
}

impl PreparedXrcTarget {
    /// What the sender must know of it.
    pub fn endpoint(&self) -> Endpoint {
        self.prepared.endpoint()
    }

    /// Connects it to its sender.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, sender: &Endpoint) -> Result<XrcTarget, Error> {
        let qp = self.prepared.connect_to(sender, Kind::XrcInitiator)?;
        Ok(XrcTarget { qp, _domain: self.domain })
    }
}

/// The receiving end of a connection: messages come by it, and go to the queues of its domain. A handle; clones are the
/// same end.
#[derive(Clone)]
#[must_use = "the connection ends with its last handle"]
pub struct XrcTarget {
    // First: it goes before the queues it fills.
    qp: QueuePair<XrcReceive>,
    _domain: Arc<Domain>,
}

impl XrcTarget {
    /// Its number, by which received messages name it.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// How it reaches its peer, in words.
    pub fn link(&self) -> &'static str {
        self.qp.link()
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        self.qp.stats()
    }
}

impl ProtectionDomain {
    /// The sending end of an extended reliable connection, whose work completes in `cq`, about to be connected.
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub fn xrc_sender(&self, cq: &CompletionQueue) -> Result<PreparedXrcSender, Error> {
        Ok(PreparedXrcSender { prepared: QueuePairBuilder::<XrcSend>::new(self, cq).prepare()? })
    }
}

/// The sending end of a connection that has no peer yet. Made by [`ProtectionDomain::xrc_sender`].
#[must_use = "one that is dropped is destroyed"]
pub struct PreparedXrcSender {
    prepared: PreparedQueuePair<XrcSend>,
}

impl PreparedXrcSender {
    /// What the target must know of it.
    pub fn endpoint(&self) -> Endpoint {
        self.prepared.endpoint()
    }

    /// Connects it to its target.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, target: &Endpoint) -> Result<XrcSender, Error> {
        Ok(XrcSender { qp: self.prepared.connect_to(target, Kind::XrcTarget)? })
    }
}

/// The sending end of a connection. A handle; clones are the same end.
#[derive(Clone)]
pub struct XrcSender {
    qp: QueuePair<XrcSend>,
}

impl XrcSender {
    /// The way to a queue of the peer's domain. Which one makes a difference for SENDs, and for the memory: each
    /// operation reaches what is of the protection domain of that queue.
    pub fn to(&self, queue: Srqn) -> XrcTo<'_> {
        XrcTo { qp: &self.qp, queue }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// How it reaches its peer, in words.
    pub fn link(&self) -> &'static str {
        self.qp.link()
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        self.qp.stats()
    }
}

/// The way to one receive queue over an [`XrcSender`]. Each method is as that of a [`QueuePair`].
#[derive(Clone, Copy, Debug)]
pub struct XrcTo<'a> {
    qp: &'a QueuePair<XrcSend>,
    queue: Srqn,
}

impl XrcTo<'_> {
    /// As [`QueuePair::send`].
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    pub fn send<B: Source>(&self, buffer: B) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::send(None), buffer)
    }

    /// As [`QueuePair::send_imm`].
    pub fn send_imm<B: Source>(&self, buffer: B, immediate: u32) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::send(Some(immediate)), buffer)
    }

    /// As [`QueuePair::send_inline`].
    pub fn send_inline(&self, bytes: &[u8]) -> Result<Operation<()>, Error> {
        self.post_inline(Work::send(None), bytes)
    }

    /// As [`QueuePair::write`].
    pub fn write<B: Source>(&self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::write(remote, None), buffer)
    }

    /// As [`QueuePair::write_imm`].
    pub fn write_imm<B: Source>(
        &self,
        buffer: B,
        remote: RemoteSlice,
        immediate: u32,
    ) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::write(remote, Some(immediate)), buffer)
    }

    /// As [`QueuePair::write_inline`].
    pub fn write_inline(&self, bytes: &[u8], remote: RemoteSlice) -> Result<Operation<()>, Error> {
        self.post_inline(Work::write(remote, None), bytes)
    }

    /// As [`QueuePair::read`].
    pub fn read<B: Destination>(&self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::read(remote), buffer)
    }

    /// As [`QueuePair::compare_swap`].
    pub fn compare_swap(&self, remote: RemoteSlice, compare: u64, swap: u64) -> Result<Operation<u64>, Error> {
        self.post_atomic(Work::compare_swap(remote, compare, swap))
    }

    /// As [`QueuePair::fetch_add`].
    pub fn fetch_add(&self, remote: RemoteSlice, add: u64) -> Result<Operation<u64>, Error> {
        self.post_atomic(Work::fetch_add(remote, add))
    }

    fn post<B: Lend>(&self, work: Work, buffer: B) -> Result<Operation<B>, Failed<B>> {
        let core = self.qp.core();
        core.with_buffer(work.at(self.queue), SendFlags::empty(), buffer, |request| core.post_now(request))
    }

    fn post_inline(&self, work: Work, bytes: &[u8]) -> Result<Operation<()>, Error> {
        let core = self.qp.core();
        core.with_inline(work.at(self.queue), SendFlags::empty(), bytes, |request| core.post_now(request))
    }

    fn post_atomic(&self, work: Work) -> Result<Operation<u64>, Error> {
        let core = self.qp.core();
        core.with_word(work.at(self.queue), SendFlags::empty(), |request| core.post_now(request))
    }
}

macro_rules! debug {
    ($($name:ident($field:ident . $by:ident),)*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.$field.$by())
            }
        })*
    };
}

debug! {
    XrcReceiveQueue(queue.number_of),
    PreparedXrcTarget(prepared.endpoint),
    XrcTarget(qp.qpn),
    PreparedXrcSender(prepared.endpoint),
    XrcSender(qp.qpn),
}

impl ReceiveQueue {
    fn number_of(&self) -> Srqn {
        self.queue.number()
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XrcDomain({} of {})", self.core.number, self.core.context.name())
    }
}

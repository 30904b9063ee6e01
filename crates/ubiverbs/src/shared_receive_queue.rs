//! Receives that many queue pairs share.

use crate::buffer::{Destination, RegisteredMut};
use crate::completion::{Received, ReceivedInto};
use crate::completion_queue::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::operation::Operation;
use crate::posting::{post_receive, post_scatter};
use crate::table::Table;
use seam::{Argument, Error, Failed};
use std::fmt;
use std::sync::Arc;
use transport::SrqModify;
use wire::{Srqn, refuse_if};

/// Pieces of one receive.
const MAX_SGE: u32 = 4;

/// A queue of receives from which many queue pairs take: a server needs as many buffers as messages under way, not as
/// clients. A handle; clones are the same queue, and its queue pairs keep it.
///
/// ```
/// # use ubiverbs::Reliable;
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let receives = pd.shared_receive_queue(16)?;
/// let server = pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).prepare()?;
/// let client = pd.queue_pair::<Reliable>(&cq).prepare()?;
/// # let (at_server, at_client) = (server.endpoint(), client.endpoint());
/// # let (server, client) = (server.connect(&at_client)?, client.connect(&at_server)?);
/// let next = receives.recv(pd.allocate(100)?)?;
/// client.send_inline(b"hello")?.wait()?;
/// let message = next.wait()?;
/// assert_eq!((message.payload(), message.qpn()), (&b"hello"[..], server.qpn()));
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    core: Arc<Core>,
}

struct Core {
    queue: Arc<dyn seam::SharedReceiveQueue>,
    pd: ProtectionDomain,
    table: Arc<Table>,
}

impl ProtectionDomain {
    /// A queue of up to `capacity` receives that many queue pairs share.
    #[doc(alias = "ibv_create_srq")]
    #[track_caller]
    pub fn shared_receive_queue(&self, capacity: u32) -> Result<SharedReceiveQueue, Error> {
        if capacity == 0 {
            return Err(Argument::refuse("shared_receive_queue", capacity, "it must hold one receive at least").into());
        }
        SharedReceiveQueue::new(self, capacity)
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, capacity: u32) -> Result<SharedReceiveQueue, Error> {
        let queue = pd.core().opened.create_shared_receive_queue(pd.id, capacity, MAX_SGE, None)?;
        Ok(SharedReceiveQueue { core: Arc::new(Core { queue, pd: pd.clone(), table: Table::of_receives(capacity) }) })
    }

    /// One of an XRC domain, whose receives complete in `cq`. Its maker keeps it until no target of the domain is left.
    pub(crate) fn of_xrc_domain(
        pd: &ProtectionDomain,
        domain: u32,
        cq: &CompletionQueue,
        capacity: u32,
    ) -> Result<SharedReceiveQueue, Error> {
        let context = pd.core();
        refuse_if!(!Arc::ptr_eq(&cq.core.context, context), Error::OtherDevice { what: "completion queue" });
        let xrc = Some((domain, &cq.core.queue));
        let queue = context.opened.create_shared_receive_queue(pd.id, capacity, MAX_SGE, xrc)?;
        let core = Core { queue, pd: pd.clone(), table: Table::of_receives(capacity) };
        core.table.reported_by(&cq.core);
        cq.core.join_shared(core.queue.number(), &core.table, capacity);
        Ok(SharedReceiveQueue { core: Arc::new(core) })
    }

    /// Posts a receive. Its completion comes to the completion queue of the queue pair that took it.
    ///
    /// # Cancel safety
    /// As [`QueuePair::recv`](crate::QueuePair::recv), for all its queue pairs together: what arrived for a receive
    /// that was dropped goes to the task that waits for one of this queue, or next calls this.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn recv(&self, buffer: RegisteredMut) -> Result<Operation<Received>, Failed<RegisteredMut>> {
        // SAFETY: `post_receive` has moved the buffer into the table, where nothing reaches it until the work has
        // ended.
        #[allow(unsafe_code)]
        post_receive(&self.core.table, self.core.pd.id, buffer, |request| unsafe { self.core.queue.post(&request) })
    }

    /// Takes up a receive whose operation was dropped, with the message that came for it, if there is one. As
    /// [`QueuePair::resume_recv`](crate::QueuePair::resume_recv).
    pub fn resume_recv(&self) -> Option<Operation<Received>> {
        let table = &self.core.table;
        Some(Operation::new(table, table.resume()?))
    }

    /// Posts a receive into a buffer of any type, as [`QueuePair::recv_into`](crate::QueuePair::recv_into); of up to
    /// four pieces.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn recv_into<B: Destination>(&self, buffer: B) -> Result<Operation<ReceivedInto<B>>, Failed<B>> {
        // SAFETY: `post_scatter` has moved the buffer into the table, where nothing reaches it until the work has
        // ended.
        #[allow(unsafe_code)]
        post_scatter(&self.core.table, self.core.pd.id, buffer, |request| unsafe { self.core.queue.post(&request) })
    }

    /// Asks for an event when fewer than `receives` are left:
    /// [`AsyncEvent::SharedReceiveQueueLimit`](crate::AsyncEvent). It is raised once; 0 asks for none.
    #[doc(alias = "ibv_modify_srq")]
    #[track_caller]
    pub fn set_limit(&self, receives: u32) -> Result<(), Error> {
        if receives > self.capacity() {
            return Err(Argument::refuse("set_limit", receives, "there are never more receives than it holds").into());
        }
        Ok(self.core.queue.modify(&SrqModify { limit: Some(receives), ..SrqModify::default() })?)
    }

    /// Changes how many receives it holds.
    #[doc(alias = "ibv_modify_srq")]
    #[track_caller]
    pub fn resize(&self, capacity: u32) -> Result<(), Error> {
        refuse_if!(capacity == 0, Argument::refuse("resize", capacity, "it must hold one receive at least").into());
        Ok(self.core.queue.modify(&SrqModify { max_wr: Some(capacity), ..SrqModify::default() })?)
    }

    /// How many receives it holds.
    #[doc(alias = "ibv_query_srq")]
    pub fn capacity(&self) -> u32 {
        self.core.queue.attributes().max_wr
    }

    /// Its number, by which events name it.
    pub fn number(&self) -> Srqn {
        self.core.queue.number()
    }

    /// How many receives have been posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.core.table.pending()
    }

    pub(crate) fn domain(&self) -> transport::ProtectionDomain {
        self.core.pd.id
    }

    pub(crate) fn backend(&self) -> &Arc<dyn seam::SharedReceiveQueue> {
        &self.core.queue
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.core.table
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // The queue pairs that took from it are gone: they hold handles of it.
        self.queue.destroy();
        self.table.cancel(true);
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedReceiveQueue({} of {})", self.outstanding(), self.capacity())
    }
}

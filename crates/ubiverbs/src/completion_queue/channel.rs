//! Completion channels: how a program that sleeps hears of completions.

use super::{CompletionQueue, Core};
use crate::device::{Context, ContextCore};
use latch::lock;
use seam::Error;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Tells which completion queues have something, to a program that waits for it or watches a descriptor with `poll` or
/// `epoll`. A handle; clones are the same channel.
///
/// A queue reports once each time it is [armed](CompletionQueue::arm). Arm it, poll it (what came before raises no
/// event), then wait:
///
/// ```
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let channel = context.completion_channel()?;
/// let cq = context.completion_queue(16).channel(&channel).create()?;
/// # let other = context.completion_queue(16).create()?;
/// # let a = pd.queue_pair::<ubiverbs::Reliable>(&other).prepare()?;
/// # let b = pd.queue_pair::<ubiverbs::Reliable>(&cq).prepare()?;
/// # let (at_a, at_b) = (a.endpoint(), b.endpoint());
/// # let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
/// b.recv(pd.allocate(10)?)?.polled(1);
/// cq.arm();
/// assert_eq!(cq.poll()?.count(), 0);
/// a.send_inline(b"wake up")?.wait()?;
/// assert_eq!(channel.wait()?, cq);
/// assert_eq!(cq.poll()?.count(), 1);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<ContextCore>,
    channel: Arc<dyn seam::Channel>,
    queues: Mutex<HashMap<u32, Weak<Core>>>,
}

impl Context {
    /// A channel on which completion queues report that they have something.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        let channel = self.core.backend.create_channel()?;
        let inner = Inner { context: Arc::clone(&self.core), channel, queues: Mutex::new(HashMap::new()) };
        Ok(CompletionChannel { inner: Arc::new(inner) })
    }
}

impl CompletionChannel {
    /// Waits until a queue reports, and returns it. The waiting thread drives. If the program has made the descriptor
    /// non-blocking, the answer is an error of kind `WouldBlock` instead of a wait.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self) -> Result<CompletionQueue, Error> {
        let failed = |source| Error::System { what: "waiting for a completion event", source };
        if self.inner.channel.is_nonblocking().map_err(failed)? {
            self.inner.context.backend.progress();
            return self.try_next().ok_or_else(|| failed(io::ErrorKind::WouldBlock.into()));
        }
        loop {
            if let Some(queue) = self.wait_until(None)? {
                return Ok(queue);
            }
        }
    }

    /// Waits until a queue reports, but not longer than `limit`. The waiting thread drives.
    ///
    /// # Cancel safety
    /// An event that comes later stays in the channel.
    pub fn wait_for(&self, limit: Duration) -> Result<Option<CompletionQueue>, Error> {
        self.wait_until(Instant::now().checked_add(limit))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<Option<CompletionQueue>, Error> {
        loop {
            let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let id = self.inner.context.backend.wait(&*self.inner.channel, limit);
            let id = id.map_err(|source| Error::System { what: "waiting for a completion event", source })?;
            let Some(id) = id else { return Ok(None) };
            // A queue that is gone has nothing to tell.
            if let Some(queue) = self.find(id) {
                return Ok(Some(queue));
            }
        }
    }

    /// The next queue that has reported, if there is one: after the descriptor became readable.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn try_next(&self) -> Option<CompletionQueue> {
        loop {
            let id = self.inner.channel.try_take()?;
            if let Some(queue) = self.find(id) {
                return Some(queue);
            }
        }
    }

    pub(super) fn backend(&self) -> &Arc<dyn seam::Channel> {
        &self.inner.channel
    }

    pub(super) fn report(&self, core: &Arc<Core>) {
        let mut queues = lock(&self.inner.queues);
        queues.retain(|_, queue| queue.strong_count() > 0);
        queues.insert(core.queue.id(), Arc::downgrade(core));
    }

    fn find(&self, id: u32) -> Option<CompletionQueue> {
        let core = lock(&self.inner.queues).get(&id)?.upgrade()?;
        Some(CompletionQueue { core })
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.channel.fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel({})", self.as_raw_fd())
    }
}

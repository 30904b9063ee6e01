//! The work that came to verbs later: invalidating a peer's key, flushing what was written, writing eight bytes at
//! once.

use crate::buffer::Source;
use crate::operation::{Operation, Outcome};
use crate::queue_pair::{
    Batch, Core, QueuePair,
    work::{Work, keep_aligned},
};
use crate::remote::RemoteSlice;
use crate::table::Held;
use crate::transports::Reliable;
use seam::{Error, Failed};
use std::any::Any;
use std::fmt;
use transport::{Data, PostError, SendFlags, SendRequest};
use wire::Key;

/// How far what was written must have come when a FLUSH is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_placement_type")]
pub enum Flush {
    /// Everybody at the peer's host sees it. The memory must have been shared with
    /// [`Access::FLUSH_GLOBAL`](crate::Access::FLUSH_GLOBAL).
    Visible,
    /// It survives the loss of power, if the memory is a file's: it has been written back. The memory must have been
    /// shared with
    /// [`Access::FLUSH_PERSISTENT`](crate::Access::FLUSH_PERSISTENT).
    Persistent,
}

impl QueuePair<Reliable> {
    /// Sends a message and takes a key away at the peer: that of a [window](crate::Window) of type 2 which the peer
    /// bound on this connection. The receiver hears of it [with the message](crate::Received::invalidated).
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_invalidate<B: Source>(&self, buffer: B, key: Key) -> Result<Operation<B>, Failed<B>> {
        self.post(Work::send_invalidate(key), buffer)
    }

    /// Is done when what this connection wrote into these bytes before is as far as `to` says.
    ///
    /// ```
    /// # use ubiverbs::{Access, Flush, Reliable};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [here, _there] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// let log = pd.share(4096, Access::REMOTE_WRITE | Access::FLUSH_PERSISTENT)?;
    /// drop(here.write_inline(b"a record", log.remote_slice())?);
    /// here.flush(log.remote_slice().slice(0..8)?, Flush::Persistent)?.wait()?;
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_wr_flush")]
    #[doc(alias = "IBV_WR_FLUSH")]
    pub fn flush(&self, remote: RemoteSlice, to: Flush) -> Result<Operation<()>, Error> {
        let core = self.core();
        core.without_data(Work::flush(remote, to)?, SendFlags::empty(), |request| core.post_now(request))
    }

    /// Flushes all of the region that these bytes are of, like [`flush`](Self::flush).
    #[doc(alias = "IBV_FLUSH_MR")]
    pub fn flush_region(&self, remote: RemoteSlice, to: Flush) -> Result<Operation<()>, Error> {
        let core = self.core();
        core.without_data(Work::flush_region(remote, to), SendFlags::empty(), |request| core.post_now(request))
    }

    /// Writes a number into the first eight bytes of `remote`, which must be aligned: who looks there sees the old or
    /// the new one, and if the new one, all that was written before it.
    ///
    /// ```
    /// # use ubiverbs::{Access, Reliable};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [here, _there] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// let region = pd.share(64, Access::REMOTE_WRITE)?;
    /// here.atomic_write(region.remote_slice().slice(8..16)?, 42)?.wait()?;
    /// assert_eq!(region.load(8)?, 42);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_wr_atomic_write")]
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    pub fn atomic_write(&self, remote: RemoteSlice, value: u64) -> Result<Operation<()>, Error> {
        keep_aligned(remote)?;
        self.post_inline(Work::atomic_write(remote), &value.to_ne_bytes())
    }
}

impl Batch<'_, Reliable> {
    /// As [`QueuePair::send_invalidate`].
    pub fn send_invalidate<B: Source>(&mut self, buffer: B, key: Key) -> Result<Operation<B>, Failed<B>> {
        self.with_core(|core, flags, post| core.with_buffer(Work::send_invalidate(key), flags, buffer, post))
    }

    /// As [`QueuePair::flush`].
    pub fn flush(&mut self, remote: RemoteSlice, to: Flush) -> Result<Operation<()>, Error> {
        let work = Work::flush(remote, to)?;
        self.with_core(|core, flags, post| core.without_data(work, flags, post))
    }

    /// As [`QueuePair::atomic_write`].
    pub fn atomic_write(&mut self, remote: RemoteSlice, value: u64) -> Result<Operation<()>, Error> {
        keep_aligned(remote)?;
        self.with_core(|core, flags, post| {
            core.with_inline(Work::atomic_write(remote), flags, &value.to_ne_bytes(), post)
        })
    }
}

impl Core {
    /// Takes work that has no bytes.
    fn without_data(
        &self,
        work: Work,
        flags: SendFlags,
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<Operation<()>, Error> {
        let ticket = self.send.insert(Held::Nothing).map_err(|_| Error::Destroyed)?;
        match post(&work.request(ticket.wr_id(), flags, Data::Gather(&[]))) {
            Ok(()) => Ok(Operation::new(&self.send, ticket)),
            Err(error) => {
                self.send.withdraw(ticket);
                Err(error.into())
            }
        }
    }

    /// Takes work that has no bytes and holds on to a value; gives that back if it is not taken.
    pub(crate) fn with_value<V: Any + Send + Sync + fmt::Debug, R: Outcome>(
        &self,
        work: Work,
        flags: SendFlags,
        value: V,
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<Operation<R>, (Error, V)> {
        let back = |held| match held {
            Held::Value(value) => *value.downcast().unwrap_or_else(|_| unreachable!("it is what was put aside")),
            _ => unreachable!("it was put aside"),
        };
        let ticket = self.send.insert(Held::Value(Box::new(value))).map_err(|held| (Error::Destroyed, back(held)))?;
        match post(&work.request(ticket.wr_id(), flags, Data::Gather(&[]))) {
            Ok(()) => Ok(Operation::new(&self.send, ticket)),
            Err(error) => Err((error.into(), back(self.send.withdraw(ticket)))),
        }
    }
}

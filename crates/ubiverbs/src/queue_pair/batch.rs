//! Several sends at once.

use crate::address::AddressHandle;
use crate::buffer::{Destination, Source};
use crate::operation::Operation;
use crate::queue_pair::{Core, QueuePair, work::Work};
use crate::remote::RemoteSlice;
use crate::table::{How, Ticket};
use crate::transports::{Connected, Datagram, Reliable, Transport};
use latch::lock;
use seam::{Error, Failed};
use std::fmt;
use std::ops::Range;
use transport::{Data, DatagramTarget, Operation as Verb, PostError, SendFlags, SendRequest, Sge};

/// Sends that are handed to the NIC together. Made by [`QueuePair::batch`].
///
/// Each method returns the handle of its operation at once; the work begins with [`post`](Batch::post). Options are
/// said before the operation they are for. A batch that is dropped has never been: its operations end with
/// [`Error::NotPosted`] and give their buffers back.
///
/// ```
/// # use ubiverbs::{Access, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [here, there] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// # let region = pd.share(64, Access::REMOTE_WRITE)?;
/// let told = there.recv(pd.allocate(1)?)?;
/// let mut batch = here.batch();
/// batch.write(pd.register(b"the data".to_vec())?, region.remote_slice())?.polled(1);
/// let done = batch.solicited().send_inline(b"!")?;
/// batch.post()?;
/// done.wait()?;
/// told.wait()?; // the data is there: reliable connections keep the order
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[must_use = "nothing is posted before `post`"]
#[doc(alias = "ibv_post_send")]
#[doc(alias = "ibv_wr_start")]
pub struct Batch<'a, T: Transport> {
    qp: &'a QueuePair<T>,
    kept: Kept,
    options: SendFlags,
}

/// Work requests that wait for their doorbell, with room for their bytes and pieces. It goes from batch to batch of its
/// queue pair, so that many small batches need no memory each.
#[derive(Default)]
pub(super) struct Kept {
    entries: Vec<BatchedRequest>,
    inline: Vec<u8>,
    pieces: Vec<Sge>,
}

/// A work request that waits for its doorbell.
struct BatchedRequest {
    wr_id: u64,
    verb: Verb,
    flags: SendFlags,
    target: Option<DatagramTarget>,
    data: EntryData,
}

/// Where its bytes or pieces are.
enum EntryData {
    Pieces(Range<usize>),
    Inline(Range<usize>),
}

impl Kept {
    #[inline]
    fn keep(&mut self, request: &SendRequest<'_>) {
        let data = match request.data {
            Data::Gather(sges) => EntryData::Pieces(append(&mut self.pieces, sges)),
            Data::Inline(bytes) => EntryData::Inline(append(&mut self.inline, bytes)),
        };
        let SendRequest { wr_id, operation: verb, flags, target, .. } = *request;
        self.entries.push(BatchedRequest { wr_id, verb, flags, target, data });
    }

    #[inline]
    fn request(&self, entry: &BatchedRequest) -> SendRequest<'_> {
        let data = match &entry.data {
            EntryData::Pieces(range) => Data::Gather(&self.pieces[range.clone()]),
            EntryData::Inline(range) => Data::Inline(&self.inline[range.clone()]),
        };
        let BatchedRequest { wr_id, verb: operation, flags, target, .. } = *entry;
        SendRequest { wr_id, operation, flags, data, target, xrc_srq: None }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.inline.clear();
        self.pieces.clear();
    }
}

/// Adds to the end, and says where that is.
#[inline]
fn append<T: Copy>(to: &mut Vec<T>, more: &[T]) -> Range<usize> {
    let start = to.len();
    to.extend_from_slice(more);
    start..to.len()
}

impl<'a, T: Transport> Batch<'a, T> {
    pub(super) fn new(qp: &'a QueuePair<T>) -> Batch<'a, T> {
        let kept = std::mem::take(&mut *lock(&qp.core().spare));
        Batch { qp, kept, options: SendFlags::empty() }
    }

    /// The next operation waits for earlier READs and atomic operations.
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fence(&mut self) -> &mut Batch<'a, T> {
        self.options |= SendFlags::FENCE;
        self
    }

    /// The next message wakes a peer that waits for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub fn solicited(&mut self) -> &mut Batch<'a, T> {
        self.options |= SendFlags::SOLICITED;
        self
    }

    /// How many operations wait.
    pub fn len(&self) -> usize {
        self.kept.entries.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.kept.entries.is_empty()
    }

    /// Hands everything to the NIC, in order.
    ///
    /// # Errors
    /// Why the NIC did not take all of it. What came before goes on; the operation it refused ends with the same error,
    /// those after it with [`Error::NotPosted`].
    pub fn post(mut self) -> Result<(), Error> {
        // What the NIC has been shown must not end with this value, should something panic.
        let mut kept = std::mem::take(&mut self.kept);
        let posted = self.hand_over(&kept);
        match posted {
            Ok(()) => kept.clear(),
            Err((refused, error)) => {
                if let Some(entry) = kept.entries.get(refused) {
                    self.end(entry, How::Refused(error));
                }
                kept.entries.drain(..kept.entries.len().min(refused + 1));
            }
        }
        // What is left was never posted, as dropping says.
        self.kept = kept;
        posted.map_err(|(_, error)| error.into())
    }

    /// Shows the NIC everything, until it refuses one: then its index and why.
    fn hand_over(&self, kept: &Kept) -> Result<(), (usize, PostError)> {
        /// How many are handed over with one call.
        const REQUESTS_PER_CALL: usize = 16;
        for (index, entries) in kept.entries.chunks(REQUESTS_PER_CALL).enumerate() {
            // Unused places of the last chunk repeat its last request and are cut off.
            let requests: [SendRequest<'_>; REQUESTS_PER_CALL] =
                std::array::from_fn(|place| kept.request(&entries[place.min(entries.len() - 1)]));
            // SAFETY: as in `Core::post_now`, with one thing more: the batch borrows its queue pair, so no reset has
            // given the buffers back.
            #[allow(unsafe_code)]
            let posted = unsafe { self.qp.core().pair.post_send(&requests[..entries.len()]) };
            posted.map_err(|(refused, error)| (index * REQUESTS_PER_CALL + refused, error))?;
        }
        Ok(())
    }

    fn end(&self, entry: &BatchedRequest, how: How) {
        self.qp.core().send.end(Ticket::of(entry.wr_id), how).carry_out();
    }

    /// Has the queue pair take work, with the options that were said for it, that waits for the doorbell.
    pub(crate) fn with_core<R>(
        &mut self,
        take: impl FnOnce(&Core, SendFlags, &mut dyn FnMut(&SendRequest<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        let options = self.options();
        let kept = &mut self.kept;
        take(self.qp.core(), options, &mut |request| {
            kept.keep(request);
            Ok(())
        })
    }

    fn options(&mut self) -> SendFlags {
        std::mem::take(&mut self.options)
    }
}

/// Keeps a work request for the doorbell.
fn keep(kept: &mut Kept) -> impl FnOnce(&SendRequest<'_>) -> Result<(), PostError> + '_ {
    |request| {
        kept.keep(request);
        Ok(())
    }
}

impl<T: Transport> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        self.kept.entries.iter().for_each(|entry| self.end(entry, How::NotPosted));
        self.kept.clear();
        let mut spare = lock(&self.qp.core().spare);
        // Of several batches at a time, the largest is kept.
        if spare.entries.capacity() < self.kept.entries.capacity() {
            std::mem::swap(&mut *spare, &mut self.kept);
        }
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} of queue pair {})", self.kept.entries.len(), self.qp.qpn())
    }
}

impl<T: Connected> Batch<'_, T> {
    /// As [`QueuePair::send`].
    pub fn send<B: Source>(&mut self, buffer: B) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::send(None), options, buffer, keep(&mut self.kept))
    }

    /// As [`QueuePair::send_imm`].
    pub fn send_imm<B: Source>(&mut self, buffer: B, immediate: u32) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::send(Some(immediate)), options, buffer, keep(&mut self.kept))
    }

    /// As [`QueuePair::send_inline`].
    pub fn send_inline(&mut self, bytes: &[u8]) -> Result<Operation<()>, Error> {
        let options = self.options();
        self.qp.core().with_inline(Work::send(None), options, bytes, keep(&mut self.kept))
    }

    /// As [`QueuePair::write`].
    pub fn write<B: Source>(&mut self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::write(remote, None), options, buffer, keep(&mut self.kept))
    }

    /// As [`QueuePair::write_imm`].
    pub fn write_imm<B: Source>(
        &mut self,
        buffer: B,
        remote: RemoteSlice,
        immediate: u32,
    ) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::write(remote, Some(immediate)), options, buffer, keep(&mut self.kept))
    }

    /// As [`QueuePair::write_inline`].
    pub fn write_inline(&mut self, bytes: &[u8], remote: RemoteSlice) -> Result<Operation<()>, Error> {
        let options = self.options();
        self.qp.core().with_inline(Work::write(remote, None), options, bytes, keep(&mut self.kept))
    }

    /// As [`QueuePair::send_quietly`].
    pub fn send_quietly(&mut self, bytes: &[u8], wr_id: u32) -> Result<(), Error> {
        let options = self.options();
        self.qp.core().quietly(Work::send(None), options, bytes, wr_id, keep(&mut self.kept))
    }

    /// As [`QueuePair::write_quietly`].
    pub fn write_quietly(&mut self, bytes: &[u8], remote: RemoteSlice, wr_id: u32) -> Result<(), Error> {
        let options = self.options();
        self.qp.core().quietly(Work::write(remote, None), options, bytes, wr_id, keep(&mut self.kept))
    }
}

impl Batch<'_, Reliable> {
    /// As [`QueuePair::read`].
    pub fn read<B: Destination>(&mut self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::read(remote), options, buffer, keep(&mut self.kept))
    }

    /// As [`QueuePair::compare_swap`].
    pub fn compare_swap(&mut self, remote: RemoteSlice, compare: u64, swap: u64) -> Result<Operation<u64>, Error> {
        let options = self.options();
        self.qp.core().with_word(Work::compare_swap(remote, compare, swap), options, keep(&mut self.kept))
    }

    /// As [`QueuePair::fetch_add`].
    pub fn fetch_add(&mut self, remote: RemoteSlice, add: u64) -> Result<Operation<u64>, Error> {
        let options = self.options();
        self.qp.core().with_word(Work::fetch_add(remote, add), options, keep(&mut self.kept))
    }
}

impl Batch<'_, Datagram> {
    /// As [`QueuePair::send_to`].
    pub fn send_to<B: Source>(&mut self, buffer: B, to: &AddressHandle) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::send_to(to, None), options, buffer, keep(&mut self.kept))
    }

    /// As [`QueuePair::send_inline_to`].
    pub fn send_inline_to(&mut self, bytes: &[u8], to: &AddressHandle) -> Result<Operation<()>, Error> {
        let options = self.options();
        self.qp.core().with_inline(Work::send_to(to, None), options, bytes, keep(&mut self.kept))
    }

    /// As [`QueuePair::send_quietly_to`].
    pub fn send_quietly_to(&mut self, bytes: &[u8], to: &AddressHandle, wr_id: u32) -> Result<(), Error> {
        let options = self.options();
        self.qp.core().quietly(Work::send_to(to, None), options, bytes, wr_id, keep(&mut self.kept))
    }
}

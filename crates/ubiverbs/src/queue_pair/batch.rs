//! Several sends at once.

use crate::address::AddressHandle;
use crate::buffer::{Destination, Source};
use crate::error::{Error, Failed};
use crate::operation::Operation;
use crate::queue_pair::QueuePair;
use crate::queue_pair::work::{Pieces, Work};
use crate::remote::RemoteSlice;
use crate::table::{After, How, Ticket};
use crate::transports::{Connected, Datagram, Reliable, Transport};
use std::fmt;
use transport::{Data, DatagramTarget, Operation as Verb, PostError, SendFlags, SendRequest};

/// Sends that are handed to the NIC together. Made by [`QueuePair::batch`].
///
/// Each method returns the handle of its operation at once; the work begins with [`post`](Batch::post). Options are said before the operation
/// they are for. A batch that is dropped has never been: its operations end with [`Error::NotPosted`] and give their buffers back.
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
    entries: Vec<Entry>,
    options: SendFlags,
}

/// A work request that waits for its doorbell.
struct Entry {
    wr_id: u64,
    verb: Verb,
    flags: SendFlags,
    target: Option<DatagramTarget>,
    data: EntryData,
}

enum EntryData {
    Pieces(Pieces),
    Inline(Vec<u8>),
}

impl Entry {
    fn of(request: &SendRequest<'_>) -> Entry {
        let data = match request.data {
            Data::Gather(sges) => EntryData::Pieces(Pieces::of(sges)),
            Data::Inline(bytes) => EntryData::Inline(bytes.to_vec()),
        };
        let SendRequest { wr_id, operation: verb, flags, target, .. } = *request;
        Entry { wr_id, verb, flags, target, data }
    }

    fn request(&self) -> SendRequest<'_> {
        let data = match &self.data {
            EntryData::Pieces(pieces) => Data::Gather(pieces.as_slice()),
            EntryData::Inline(bytes) => Data::Inline(bytes),
        };
        let Entry { wr_id, verb: operation, flags, target, .. } = *self;
        SendRequest { wr_id, operation, flags, data, target, xrc_srq: None }
    }
}

impl<'a, T: Transport> Batch<'a, T> {
    pub(super) fn new(qp: &'a QueuePair<T>) -> Batch<'a, T> {
        Batch { qp, entries: Vec::new(), options: SendFlags::empty() }
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
        self.entries.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Hands everything to the NIC, in order.
    ///
    /// # Errors
    /// Why the NIC did not take all of it. What came before goes on; the operation it refused ends with the same error, those after it with
    /// [`Error::NotPosted`].
    pub fn post(mut self) -> Result<(), Error> {
        /// How many are handed over with one call.
        const TOGETHER: usize = 16;
        let entries = std::mem::take(&mut self.entries);
        for (index, entries_now) in entries.chunks(TOGETHER).enumerate() {
            // Unused places of the last chunk repeat its last request and are cut off.
            let requests: [SendRequest<'_>; TOGETHER] =
                std::array::from_fn(|place| entries_now[place.min(entries_now.len() - 1)].request());
            if let Err((refused, error)) = self.qp.core().pair.post_send(&requests[..entries_now.len()]) {
                let mut rest = entries.into_iter().skip(index * TOGETHER + refused);
                if let Some(entry) = rest.next() {
                    self.end(&entry, How::Refused(error));
                }
                rest.for_each(|entry| self.end(&entry, How::NotPosted));
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn end(&self, entry: &Entry, how: How) {
        match self.qp.core().send.resolve(Ticket::of(entry.wr_id), how) {
            After::Wake(waker) => waker.wake(),
            After::Nothing | After::Queue(..) | After::Drop(_) => {}
        }
    }

    fn options(&mut self) -> SendFlags {
        std::mem::take(&mut self.options)
    }
}

/// Keeps a work request for the doorbell.
fn keep(entries: &mut Vec<Entry>) -> impl FnOnce(&SendRequest<'_>) -> Result<(), PostError> + '_ {
    |request| {
        entries.push(Entry::of(request));
        Ok(())
    }
}

impl<T: Transport> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.entries) {
            self.end(&entry, How::NotPosted);
        }
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} of queue pair {})", self.entries.len(), self.qp.qpn())
    }
}

impl<T: Connected> Batch<'_, T> {
    /// As [`QueuePair::send`].
    pub fn send<B: Source>(&mut self, buffer: B) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::send(None), options, buffer, keep(&mut self.entries))
    }

    /// As [`QueuePair::send_imm`].
    pub fn send_imm<B: Source>(&mut self, buffer: B, immediate: u32) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::send(Some(immediate)), options, buffer, keep(&mut self.entries))
    }

    /// As [`QueuePair::send_inline`].
    pub fn send_inline(&mut self, bytes: &[u8]) -> Result<Operation<()>, Error> {
        let options = self.options();
        self.qp.core().with_inline(Work::send(None), options, bytes, keep(&mut self.entries))
    }

    /// As [`QueuePair::write`].
    pub fn write<B: Source>(&mut self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::write(remote, None), options, buffer, keep(&mut self.entries))
    }

    /// As [`QueuePair::write_imm`].
    pub fn write_imm<B: Source>(
        &mut self,
        buffer: B,
        remote: RemoteSlice,
        immediate: u32,
    ) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::write(remote, Some(immediate)), options, buffer, keep(&mut self.entries))
    }

    /// As [`QueuePair::write_inline`].
    pub fn write_inline(&mut self, bytes: &[u8], remote: RemoteSlice) -> Result<Operation<()>, Error> {
        let options = self.options();
        self.qp.core().with_inline(Work::write(remote, None), options, bytes, keep(&mut self.entries))
    }
}

impl Batch<'_, Reliable> {
    /// As [`QueuePair::read`].
    pub fn read<B: Destination>(&mut self, buffer: B, remote: RemoteSlice) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::read(remote), options, buffer, keep(&mut self.entries))
    }

    /// As [`QueuePair::compare_swap`].
    pub fn compare_swap(&mut self, remote: RemoteSlice, compare: u64, swap: u64) -> Result<Operation<u64>, Error> {
        let options = self.options();
        self.qp.core().with_word(Work::compare_swap(remote, compare, swap), options, keep(&mut self.entries))
    }

    /// As [`QueuePair::fetch_add`].
    pub fn fetch_add(&mut self, remote: RemoteSlice, add: u64) -> Result<Operation<u64>, Error> {
        let options = self.options();
        self.qp.core().with_word(Work::fetch_add(remote, add), options, keep(&mut self.entries))
    }
}

impl Batch<'_, Datagram> {
    /// As [`QueuePair::send_to`].
    pub fn send_to<B: Source>(&mut self, buffer: B, to: &AddressHandle) -> Result<Operation<B>, Failed<B>> {
        let options = self.options();
        self.qp.core().with_buffer(Work::send_to(to, None), options, buffer, keep(&mut self.entries))
    }

    /// As [`QueuePair::send_inline_to`].
    pub fn send_inline_to(&mut self, bytes: &[u8], to: &AddressHandle) -> Result<Operation<()>, Error> {
        let options = self.options();
        self.qp.core().with_inline(Work::send_to(to, None), options, bytes, keep(&mut self.entries))
    }
}

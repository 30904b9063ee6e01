//! What comes of work: completions as a completion queue hands them out, and received messages.

use crate::buffer::{Buffer, Destination, RegisteredMut};
use crate::ending::Ending;
use seam::{CompletionError, Error, Failed};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use transport::{CompletionKind, Failure, Status};
use wire::{Gid, Key, Qpn};

/// Why a completion is an error, if it is one. `ending` finds the queue pair's, of work that was flushed.
pub(crate) fn verdict(
    completion: &transport::Completion,
    ending: impl FnOnce() -> Option<Arc<Ending>>,
) -> Result<(), CompletionError> {
    Work::of(completion, ending).result()
}

/// One piece of finished work, taken from a [`CompletionQueue`](crate::CompletionQueue) in polling style.
#[doc(alias = "ibv_wc")]
pub struct Completion {
    wr_id: u64,
    work: Work,
    buffer: Option<Buffer>,
    value: u64,
}

/// What is told of work. A completion is handed on several times before the program has it: so it is short, and why
/// work failed is elsewhere.
#[derive(Debug)]
struct Work {
    status: Status,
    kind: CompletionKind,
    grh: bool,
    qpn: Qpn,
    bytes: u32,
    beside: Beside,
    src_qpn: Option<Qpn>,
    /// When it was told, if the completion queue says so.
    told_at: Option<NonZeroU64>,
    trouble: Option<Box<Trouble>>,
}

/// Why it failed.
#[derive(Debug)]
struct Trouble {
    cause: Option<Failure>,
    ending: Option<Arc<Ending>>,
}

/// What came with a received message, which has room for one of them.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Nothing,
    Immediate(u32),
    Invalidated(Key),
}

const _: () = assert!(size_of::<Completion>() <= 96);

impl Work {
    #[inline]
    fn of(completion: &transport::Completion, ending: impl FnOnce() -> Option<Arc<Ending>>) -> Work {
        let transport::Completion { status, kind, grh, qpn, bytes, src_qpn, .. } = *completion;
        let trouble = (status != Status::Success).then(|| {
            let ending = if status == Status::WorkRequestFlushed { ending() } else { None };
            Box::new(Trouble { cause: completion.failure(), ending })
        });
        let beside = match (completion.immediate, completion.invalidated) {
            (Some(immediate), _) => Beside::Immediate(immediate),
            (None, Some(key)) => Beside::Invalidated(key),
            (None, None) => Beside::Nothing,
        };
        Work { status, kind, grh, qpn, bytes, beside, src_qpn, told_at: NonZeroU64::new(completion.told_at), trouble }
    }

    /// How long the network header in front of the message is.
    fn header(&self) -> usize {
        if self.grh { GRH_LENGTH } else { 0 }
    }

    /// Which bytes of the buffer are the message.
    fn place(&self) -> Range<usize> {
        let start = self.header();
        match self.kind {
            CompletionKind::ReceiveWriteImmediate => start..start,
            _ => start..(self.bytes as usize).max(start),
        }
    }

    fn timestamp(&self) -> Option<Duration> {
        self.told_at.map(|nanos| Duration::from_nanos(nanos.get()))
    }

    fn immediate(&self) -> Option<u32> {
        if let Beside::Immediate(immediate) = self.beside { Some(immediate) } else { None }
    }

    fn invalidated(&self) -> Option<Key> {
        if let Beside::Invalidated(key) = self.beside { Some(key) } else { None }
    }

    fn result(&self) -> Result<(), CompletionError> {
        if self.status == Status::Success {
            return Ok(());
        }
        let Work { status, kind, qpn, .. } = *self;
        let trouble = self.trouble.as_deref();
        let reason = trouble.and_then(|trouble| trouble.ending.as_ref()?.reason());
        Err(CompletionError::new(status, kind, qpn, trouble.and_then(|trouble| trouble.cause), reason))
    }
}

impl Completion {
    #[inline]
    pub(crate) fn new(
        wr_id: u64,
        work: &transport::Completion,
        buffer: Option<Buffer>,
        value: u64,
        ending: impl FnOnce() -> Option<Arc<Ending>>,
    ) -> Completion {
        Completion { wr_id, work: Work::of(work, ending), buffer, value }
    }

    /// The number the program gave to [`polled`](crate::Operation::polled).
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// How it ended.
    pub fn status(&self) -> Status {
        self.work.status
    }

    /// Whether it ended well.
    pub fn is_ok(&self) -> bool {
        self.work.status == Status::Success
    }

    /// How it ended, with the reason if badly.
    pub fn result(&self) -> Result<(), CompletionError> {
        self.work.result()
    }

    /// What kind of work it was.
    pub fn kind(&self) -> CompletionKind {
        self.work.kind
    }

    /// The local queue pair.
    pub fn qpn(&self) -> Qpn {
        self.work.qpn
    }

    /// How many bytes were moved.
    pub fn bytes(&self) -> usize {
        self.work.bytes as usize
    }

    /// The number that came with a received message.
    pub fn immediate(&self) -> Option<u32> {
        self.work.immediate()
    }

    /// The key that the sender of a received message invalidated: one of a window of this queue pair's.
    #[doc(alias = "IBV_WC_WITH_INV")]
    pub fn invalidated(&self) -> Option<Key> {
        self.work.invalidated()
    }

    /// When it was told, by the device's [clock](crate::Context::clock), if its completion queue has
    /// [timestamps](crate::CompletionQueueBuilder::timestamps).
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn timestamp(&self) -> Option<Duration> {
        self.work.timestamp()
    }

    /// What an atomic operation found in the peer's memory.
    pub fn value(&self) -> Option<u64> {
        let atomic = matches!(self.work.kind, CompletionKind::CompareSwap | CompletionKind::FetchAdd);
        (atomic && self.is_ok()).then_some(self.value)
    }

    /// The buffer the work was posted with, whatever came of it. None for inline data and atomic operations.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.buffer
    }

    /// The message, if this was a receive.
    ///
    /// # Errors
    /// How the receive failed; or [`Error::NotPosted`] if this was no receive.
    pub fn into_received(self) -> Result<Received, Failed<Option<Buffer>>> {
        self.into_message(|buffer, work| match buffer {
            Buffer::Mut(buffer) => Ok(ReceivedInto { buffer, work }),
            other => Err(Some(other)),
        })
    }

    /// The message, if this was a receive into a buffer of this type.
    ///
    /// # Errors
    /// How the receive failed; or [`Error::NotPosted`] if this was no receive, or one into something else, whose buffer
    /// is lost then.
    pub fn into_received_as<B: Destination>(self) -> Result<ReceivedInto<B>, Failed<Option<Buffer>>> {
        self.into_message(|buffer, work| B::from_buffer(buffer).map(|buffer| ReceivedInto { buffer, work }).ok_or(None))
    }

    fn into_message<M>(
        self,
        make: impl FnOnce(Buffer, Work) -> Result<M, Option<Buffer>>,
    ) -> Result<M, Failed<Option<Buffer>>> {
        let received = matches!(self.work.kind, CompletionKind::Receive | CompletionKind::ReceiveWriteImmediate);
        match (self.result(), self.buffer) {
            (Ok(()), Some(buffer)) if received => {
                make(buffer, self.work).map_err(|buffer| Failed { error: Error::NotPosted, buffer })
            }
            (Err(error), buffer) => Err(Failed { error: error.into(), buffer }),
            (Ok(()), buffer) => Err(Failed { error: Error::NotPosted, buffer }),
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Work { kind, status, qpn, bytes, .. } = self.work;
        write!(f, "Completion({} {} on {qpn}: {status}, {bytes} bytes)", kind.name(), self.wr_id)
    }
}

/// How much of a datagram's buffer the network header takes.
pub const GRH_LENGTH: usize = 40;

/// A message, in the buffer that was posted for it.
pub type Received = ReceivedInto<RegisteredMut>;

#[cfg(feature = "bytes")]
impl Received {
    /// The message as [`Bytes`](bytes::Bytes), without a copy: the buffer is free again when the last of its handles is dropped. Of
    /// an arena's buffer, it then goes back.
    ///
    /// ```
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// let arena = pd.arena(4096)?;
    /// let receiving = b.recv(arena.allocate(4096)?)?;
    /// a.send(pd.register_read_only(bytes::Bytes::from_static(b"hello"))?)?.wait()?;
    ///
    /// let message: bytes::Bytes = receiving.wait()?.into_bytes();
    /// assert_eq!((&message[..], arena.available()), (&b"hello"[..], 0));
    /// drop(message);
    /// assert_eq!(arena.available(), 4096);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    pub fn into_bytes(self) -> bytes::Bytes {
        bytes::Bytes::from(self.buffer).slice(self.work.place())
    }
}

/// A message, in the buffer of any type that was posted for it by [`recv_into`](crate::QueuePair::recv_into).
///
/// ```
/// # use ubiverbs::Reliable;
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// // The header here, the numbers there: one receive in two pieces of different types.
/// let receiving = b.recv_into((pd.allocate(8)?, pd.register_own(vec![0f64; 100])?))?;
/// a.send((pd.register(b"numbers!".to_vec())?, pd.register_own(vec![1.5f64; 100])?))?.wait()?;
///
/// let message = receiving.wait()?;
/// assert_eq!(message.bytes(), 808);
/// let (header, numbers) = message.into_buffer();
/// assert_eq!((&*header, numbers[99]), (&b"numbers!"[..], 1.5));
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Debug)]
pub struct ReceivedInto<B> {
    buffer: B,
    work: Work,
}

impl<B> ReceivedInto<B> {
    pub(crate) fn new(buffer: B, work: &transport::Completion) -> ReceivedInto<B> {
        ReceivedInto { buffer, work: Work::of(work, || None) }
    }

    /// How many bytes came: of the message, or of the WRITE that brought the immediate. Of a datagram the network
    /// header, which is in the first [`GRH_LENGTH`](crate::GRH_LENGTH) bytes of the buffer, is not counted.
    pub fn bytes(&self) -> usize {
        (self.work.bytes as usize).saturating_sub(self.work.header())
    }

    /// The number that came with it.
    pub fn immediate(&self) -> Option<u32> {
        self.work.immediate()
    }

    /// The key that the sender invalidated: one of a window of this queue pair's.
    #[doc(alias = "IBV_WC_WITH_INV")]
    pub fn invalidated(&self) -> Option<Key> {
        self.work.invalidated()
    }

    /// When it was told, by the device's [clock](crate::Context::clock), if its completion queue has
    /// [timestamps](crate::CompletionQueueBuilder::timestamps).
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn timestamp(&self) -> Option<Duration> {
        self.work.timestamp()
    }

    /// The local queue pair it came to; of interest with a shared receive queue.
    pub fn qpn(&self) -> Qpn {
        self.work.qpn
    }

    /// Of a datagram: the sender's queue pair.
    pub fn source_qpn(&self) -> Option<Qpn> {
        self.work.src_qpn
    }

    /// The buffer; of several, those behind the end of the message are as they were.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// The buffer, back.
    pub fn into_buffer(self) -> B {
        self.buffer
    }
}

impl<B: AsRef<[u8]>> ReceivedInto<B> {
    /// The message. Of a datagram, what comes after the network header. A WRITE with immediate has none: its bytes
    /// went elsewhere.
    pub fn payload(&self) -> &[u8] {
        self.buffer.as_ref().get(self.work.place()).unwrap_or_default()
    }

    /// Of a datagram: the sender's address.
    pub fn source_gid(&self) -> Option<Gid> {
        gid_of(self.buffer.as_ref(), self.work.grh)
    }
}

impl ReceivedInto<Vec<RegisteredMut>> {
    /// The message, piece by piece.
    pub fn payload_pieces(&self) -> impl Iterator<Item = &[u8]> {
        let place = self.work.place();
        let mut before = 0;
        let pieces = self.buffer.iter().map(move |piece| {
            let here = before..before + piece.len();
            before = here.end;
            let (start, end) = (place.start.clamp(here.start, here.end), place.end.clamp(here.start, here.end));
            piece.get(start - here.start..end - here.start).unwrap_or_default()
        });
        pieces.filter(|piece| !piece.is_empty())
    }
}

/// The sender's address in the network header in front of a datagram.
fn gid_of(buffer: &[u8], has_header: bool) -> Option<Gid> {
    let grh: &[u8; GRH_LENGTH] = buffer.first_chunk().filter(|_| has_header)?;
    // An IPv6 header as it is; an IPv4 header in the second half (annex A17.4.5.2).
    Some(match grh[0] >> 4 {
        6 => Gid::new(*grh.get(8..24)?.first_chunk()?),
        _ => {
            let [.., a, b, c, d, _, _, _, _] = *grh;
            Gid::from_ip(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
        }
    })
}

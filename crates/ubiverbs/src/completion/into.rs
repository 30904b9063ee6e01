//! Messages in buffers of any type.

use super::{Completion, Work, gid_of};
use crate::buffer::{Buffer, Destination, RegisteredMut, sealed::Lend};
use crate::operation::{Outcome, sealed};
use crate::seam::{Error, Failed};
use crate::table::Held;
use std::time::Duration;
use transport::CompletionKind;
use wire::{Gid, Key, Qpn};

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
    /// How many bytes came: of the message, or of the WRITE that brought the immediate. Of a datagram the network
    /// header, which is in the first
    /// [`GRH_LENGTH`](crate::GRH_LENGTH) bytes of the buffer, is not counted.
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

    /// The local queue pair it came to.
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
    /// The message. Of a datagram, what comes after the network header. A WRITE with immediate has none: its bytes went
    /// elsewhere.
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

impl<B: Lend> Outcome for ReceivedInto<B> {}

impl<B: Lend> sealed::Outcome for ReceivedInto<B> {
    type Buffer = B;

    fn succeeded(completion: &transport::Completion, held: Held, _: u64) -> Option<ReceivedInto<B>> {
        Some(ReceivedInto { buffer: B::from_buffer(held.into_buffer()?)?, work: Work::of(completion, || None) })
    }

    fn failed(held: Held) -> Option<B> {
        B::from_buffer(held.into_buffer()?)
    }
}

impl Completion {
    /// The message, if this was a receive into a buffer of this type.
    ///
    /// # Errors
    /// How the receive failed; or [`Error::NotPosted`] if this was no receive, or one into something else, whose buffer
    /// is lost then.
    pub fn into_received_as<B: Destination>(self) -> Result<ReceivedInto<B>, Failed<Option<Buffer>>> {
        let received = matches!(self.work.kind, CompletionKind::Receive | CompletionKind::ReceiveWriteImmediate);
        match (self.result(), self.buffer) {
            (Ok(()), Some(buffer)) if received => match B::from_buffer(buffer) {
                Some(buffer) => Ok(ReceivedInto { buffer, work: self.work }),
                None => Err(Failed { error: Error::NotPosted, buffer: None }),
            },
            (Err(error), buffer) => Err(Failed { error: error.into(), buffer }),
            (Ok(()), buffer) => Err(Failed { error: Error::NotPosted, buffer }),
        }
    }
}

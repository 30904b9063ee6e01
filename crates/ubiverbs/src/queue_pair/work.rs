//! Work for the send queue: from what a program asks for to what the NIC takes. The same steps whether the work is
//! posted at once or in a batch.

use crate::address::AddressHandle;
use crate::buffer::{Buffer, sealed::Lend};
use crate::operation::Operation;
use crate::posting::RequestPieces;
use crate::queue_pair::{Core, Flush};
use crate::remote::RemoteSlice;
use crate::table::{Held, Reporter, Ticket};
use seam::{Error, Failed};
use transport::{Bind, Data, DatagramTarget, Operation as Verb, PostError, SendFlags, SendRequest, Sge};
use wire::{Key, Placement, Selectivity, Srqn};

/// What is to be done, but for the bytes.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    verb: Verb,
    target: Option<DatagramTarget>,
    /// On an extended connection: the peer's queue.
    queue: Option<Srqn>,
    room: PeerRoom,
}

/// What the peer's memory says about the length of ours.
#[derive(Clone, Copy)]
enum PeerRoom {
    /// Nothing: a message is as long as its buffer.
    Any,
    /// So many bytes can be written there.
    AtMost(u64),
    /// So many bytes are read from there.
    Exactly(u64),
}

impl Work {
    #[inline]
    pub fn send(immediate: Option<u32>) -> Work {
        Work { verb: Verb::Send { immediate }, target: None, queue: None, room: PeerRoom::Any }
    }

    #[inline]
    pub fn send_to(to: &AddressHandle, immediate: Option<u32>) -> Work {
        Work { target: Some(to.target()), ..Work::send(immediate) }
    }

    #[inline]
    pub fn write(remote: RemoteSlice, immediate: Option<u32>) -> Work {
        let verb = Verb::Write { remote: remote.remote(), immediate };
        Work { verb, target: None, queue: None, room: PeerRoom::AtMost(remote.len()) }
    }

    #[inline]
    pub fn read(remote: RemoteSlice) -> Work {
        Work {
            verb: Verb::Read { remote: remote.remote() },
            target: None,
            queue: None,
            room: PeerRoom::Exactly(remote.len()),
        }
    }

    pub fn compare_swap(remote: RemoteSlice, compare: u64, swap: u64) -> Work {
        let verb = Verb::CompareSwap { remote: remote.remote(), compare, swap };
        Work { verb, target: None, queue: None, room: PeerRoom::AtMost(remote.len()) }
    }

    pub fn fetch_add(remote: RemoteSlice, add: u64) -> Work {
        let verb = Verb::FetchAdd { remote: remote.remote(), add };
        Work { verb, target: None, queue: None, room: PeerRoom::AtMost(remote.len()) }
    }

    pub fn send_invalidate(key: Key) -> Work {
        Work { verb: Verb::SendInvalidate { key }, target: None, queue: None, room: PeerRoom::Any }
    }

    pub fn atomic_write(remote: RemoteSlice) -> Work {
        let verb = Verb::AtomicWrite { remote: remote.remote() };
        Work { verb, target: None, queue: None, room: PeerRoom::AtMost(remote.len()) }
    }

    pub fn flush(remote: RemoteSlice, to: Flush) -> Result<Work, Error> {
        let too_long = PostError::MessageTooLong { length: remote.len() };
        let length = u32::try_from(remote.len()).map_err(|_| too_long)?;
        Ok(Work::flush_some(remote, length, to, Selectivity::Range))
    }

    pub fn flush_region(remote: RemoteSlice, to: Flush) -> Work {
        Work::flush_some(remote, 0, to, Selectivity::Region)
    }

    fn flush_some(remote: RemoteSlice, length: u32, to: Flush, selectivity: Selectivity) -> Work {
        let placement = match to {
            Flush::Visible => Placement::GLOBAL,
            Flush::Persistent => Placement::PERSISTENT,
        };
        let verb = Verb::Flush { remote: remote.remote(), length, placement, selectivity };
        Work { verb, target: None, queue: None, room: PeerRoom::Any }
    }

    pub fn bind(bind: Bind) -> Work {
        Work { verb: Verb::BindWindow(bind), target: None, queue: None, room: PeerRoom::Any }
    }

    pub fn invalidate(key: Key) -> Work {
        Work { verb: Verb::LocalInvalidate { key }, target: None, queue: None, room: PeerRoom::Any }
    }

    /// This work for a queue of the peer's, on an extended connection.
    pub fn at(self, queue: Srqn) -> Work {
        Work { queue: Some(queue), ..self }
    }

    /// How many of `length` bytes it concerns.
    #[inline]
    fn fit(&self, length: u64) -> Result<u64, Error> {
        match self.room {
            PeerRoom::AtMost(available) if length > available => Err(Error::TooSmall { needed: length, available }),
            PeerRoom::Exactly(needed) if needed > length => Err(Error::TooSmall { needed, available: length }),
            PeerRoom::Exactly(needed) => Ok(needed),
            PeerRoom::Any | PeerRoom::AtMost(_) => Ok(length),
        }
    }

    /// The work request, whose completion is reported.
    #[inline]
    pub(super) fn request<'a>(&self, wr_id: u64, flags: SendFlags, data: Data<'a>) -> SendRequest<'a> {
        self.quiet_request(wr_id, flags | SendFlags::SIGNALED, data)
    }

    /// A work request without a completion, unless it fails.
    #[inline]
    fn quiet_request<'a>(&self, wr_id: u64, flags: SendFlags, data: Data<'a>) -> SendRequest<'a> {
        SendRequest { wr_id, operation: self.verb, flags, data, target: self.target, xrc_srq: self.queue }
    }
}

impl Core {
    /// Takes work on a buffer; `post` hands it on.
    #[inline]
    pub(crate) fn with_buffer<B: Lend>(
        &self,
        work: Work,
        flags: SendFlags,
        buffer: B,
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<Operation<B>, Failed<B>> {
        let buffer = buffer.into_buffer();
        let pieces = match self.gather(&work, &buffer) {
            Ok(pieces) => pieces,
            Err(error) => return Err(give_back(error, Held::Buffer(buffer))),
        };
        let ticket = self.send.insert(Held::Buffer(buffer)).map_err(|held| give_back(Error::Destroyed, held))?;
        match post(&work.request(ticket.wr_id(), flags, Data::Gather(pieces.as_slice()))) {
            Ok(()) => Ok(Operation::new(&self.send, ticket)),
            Err(error) => Err(give_back(error.into(), self.send.withdraw(ticket))),
        }
    }

    /// Takes work on bytes that are copied.
    #[inline]
    pub(crate) fn with_inline(
        &self,
        work: Work,
        flags: SendFlags,
        bytes: &[u8],
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<Operation<()>, Error> {
        work.fit(bytes.len() as u64)?;
        let ticket = self.send.insert(Held::Nothing).map_err(|_| Error::Destroyed)?;
        match post(&work.request(ticket.wr_id(), flags, Data::Inline(bytes))) {
            Ok(()) => Ok(Operation::new(&self.send, ticket)),
            Err(error) => {
                self.send.withdraw(ticket);
                Err(error.into())
            }
        }
    }

    /// Takes work on bytes that are copied and of which only a failure is reported.
    #[inline]
    pub(super) fn quietly(
        &self,
        work: Work,
        flags: SendFlags,
        bytes: &[u8],
        number: u32,
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<(), Error> {
        work.fit(bytes.len() as u64)?;
        Ok(post(&work.quiet_request(Ticket::quiet(number).wr_id(), flags, Data::Inline(bytes)))?)
    }

    /// Takes an atomic operation, whose answer lands in memory of the queue pair's own.
    pub(crate) fn with_word(
        &self,
        work: Work,
        flags: SendFlags,
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<Operation<u64>, Error> {
        work.fit(8)?;
        let (Verb::CompareSwap { remote, .. } | Verb::FetchAdd { remote, .. }) = work.verb else {
            return Err(Error::NotPosted);
        };
        aligned(remote.address)?;
        let word = self.send.take_word().or_else(|| {
            // Answers that have come and not been looked at hold on to their places.
            self.send_cq.core.dispatch();
            self.send.take_word()
        });
        let capacity = self.pair.attributes().capabilities.max_send_wr;
        let (word, words) = word.ok_or(PostError::QueueFull { queue: "send", capacity })?;
        let sge = Sge { address: words.address() + word as u64 * 8, length: 8, key: words.registration().key() };
        let ticket = match self.send.insert(Held::Word(word)) {
            Ok(ticket) => ticket,
            Err(_) => {
                self.send.return_word(word);
                return Err(Error::Destroyed);
            }
        };
        match post(&work.request(ticket.wr_id(), flags, Data::Gather(&[sge]))) {
            Ok(()) => Ok(Operation::new(&self.send, ticket)),
            Err(error) => {
                self.send.withdraw(ticket);
                Err(error.into())
            }
        }
    }

    /// Hands one work request to the NIC: one that the functions above made.
    #[inline]
    pub(crate) fn post_now(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: the functions above have moved the buffer whose pieces it names into the table, where nothing reaches
        // it until the work has ended. The pieces of an answer to an atomic operation are loaded as atomics. Windows
        // are bound to memory that is used by atomics only.
        #[allow(unsafe_code)]
        unsafe { self.pair.post_send(std::slice::from_ref(request)) }.map_err(|(_, error)| error)
    }

    /// The pieces of a buffer, cut to what the work concerns.
    #[inline]
    fn gather(&self, work: &Work, buffer: &Buffer) -> Result<RequestPieces, Error> {
        let mut left = work.fit(buffer.len())?;
        let mut pieces = RequestPieces::default();
        buffer.pieces(self.domain, &mut |mut sge: Sge| {
            sge.length = u64::from(sge.length).min(left) as u32;
            left -= u64::from(sge.length);
            pieces.push(sge);
        })?;
        Ok(pieces)
    }
}

/// Atomic operations need eight aligned bytes.
fn aligned(address: u64) -> Result<(), Error> {
    if address.is_multiple_of(8) { Ok(()) } else { Err(Error::Misaligned { offset: address }) }
}

/// Checks that a place at the peer is aligned for atomic operations.
pub(super) fn keep_aligned(remote: RemoteSlice) -> Result<(), Error> {
    aligned(remote.address())
}

fn give_back<B: Lend>(error: Error, held: Held) -> Failed<B> {
    let buffer = if let Held::Buffer(buffer) = held { B::from_buffer(buffer) } else { None };
    Failed { error, buffer: buffer.expect("what was lent as one type comes back as the same") }
}

//! Sending and receiving.

use crate::endpoint::{Endpoint, Parts};
use crate::error::Error;
use crate::socket::Socket;
use rsocket::{Run, Span, Transfer, TransferMemory};
use std::sync::{Arc, PoisonError};
use transport::{Data, Sge};
use wire::refuse_if;

/// Reads up to this length are copied under the socket's lock, which is cheaper than to take it twice.
const SHORT_READ_MAX: usize = 8192;
/// The most that is copied before the peer is notified, and what it sent meanwhile is taken.
const COPY_CHUNK_MAX: usize = 128 * 1024;
/// Bytes from this length on are lent to the NIC for the duration of a call, if the peer is reached through shared
/// memory.
const LOAN_MIN: usize = 32 * 1024;
/// The most that is lent at a time: the memory is looked at before.
const LOAN_MAX: usize = 4 << 20;
/// After so many bytes the peer is in the middle of a stream: a program with room for more gets what follows, too.
const STREAM_MIN_BYTES: usize = 16 * 1024;
/// Room for inline data that does not lie in one piece.
const MAX_INLINE: usize = hca::limits::MAX_INLINE as usize;

/// Bytes to send, in pieces.
#[derive(Debug)]
pub struct Slices<'a> {
    pieces: &'a [&'a [u8]],
    /// How far the first is used up.
    used: usize,
}

impl<'a> Slices<'a> {
    /// All of these.
    pub fn new(pieces: &'a [&'a [u8]]) -> Slices<'a> {
        Slices { pieces, used: 0 }
    }

    /// How many are left.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum::<usize>() - self.used
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next bytes that lie side by side: all of them.
    fn front(&self) -> &'a [u8] {
        let left =
            |(at, piece): (usize, &&'a [u8])| piece.get(if at == 0 { self.used } else { 0 }..).unwrap_or_default();
        self.pieces.iter().enumerate().map(left).find(|left| !left.is_empty()).unwrap_or_default()
    }

    /// Passes over so many.
    pub fn skip(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0 && !self.next(left, &mut |piece| left -= piece.len()) {}
    }

    /// The next bytes that lie side by side, `most` at most. True if there were none.
    fn next(&mut self, most: usize, take: &mut dyn FnMut(&'a [u8])) -> bool {
        while let Some((first, rest)) = self.pieces.split_first() {
            let left = first.get(self.used..).unwrap_or_default();
            if !left.is_empty() {
                let taken = left.len().min(most);
                take(&left[..taken]);
                self.used += taken;
                return false;
            }
            (self.pieces, self.used) = (rest, 0);
        }
        true
    }

    /// Shows the next `length` bytes, piece by piece.
    fn take(&mut self, length: usize, mut show: impl FnMut(&'a [u8])) {
        let mut left = length;
        while left > 0
            && !self.next(left, &mut |piece| {
                left -= piece.len();
                show(piece);
            })
        {}
    }
}

/// Room for bytes to receive, in pieces.
pub trait Scatter {
    /// How many bytes there is room for.
    fn room(&self) -> usize;

    /// The next place of `most` bytes at most, which the caller fills; empty if there is none.
    fn next(&mut self, most: usize) -> &mut [u8];

    /// The next place to fill, which the caller may leave as it is: then it comes again.
    fn peek(&mut self) -> &mut [u8];
}

/// One piece.
impl Scatter for &mut [u8] {
    fn room(&self) -> usize {
        self.len()
    }

    fn next(&mut self, most: usize) -> &mut [u8] {
        let whole = std::mem::take(self);
        let (first, rest) = whole.split_at_mut(most.min(whole.len()));
        *self = rest;
        first
    }

    fn peek(&mut self) -> &mut [u8] {
        self
    }
}

/// How to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Receive {
    /// What is received stays where it is.
    pub peek: bool,
}

impl Socket {
    /// Sends as much as there is room for now, and returns how much that was: none of it is `EAGAIN`.
    pub fn send(&self, bytes: &mut Slices<'_>) -> Result<usize, Error> {
        let _turn = self.send_turn.lock().unwrap_or_else(PoisonError::into_inner);
        refuse_if!(!self.send_io_mappings()?, Error::WOULD_BLOCK);
        let whole = bytes.len();
        let mut left = whole;
        if left == 0 {
            let mut state = self.lock();
            let endpoint = state.connection()?;
            return if endpoint.protocol.is_writable() { Ok(0) } else { Err(cannot_send(endpoint)) };
        }
        let (mut begun, mut may_lend) = (false, true);
        while left > 0 {
            let mut state = self.lock();
            let endpoint = state.connection()?;
            if !std::mem::replace(&mut begun, true) {
                endpoint.protocol.begin_send();
            }
            let piece = bytes.front();
            if piece.len() >= LOAN_MIN && may_lend && endpoint.may_lend() {
                let parts = Arc::clone(&endpoint.parts);
                drop(state);
                let lent = &piece[..piece.len().min(LOAN_MAX)];
                let sent = self.send_lent(&parts, lent);
                bytes.skip(sent);
                left -= sent;
                match sent {
                    // Something is in the way; what, the copying way finds out.
                    0 => may_lend = false,
                    all if all == lent.len() => {}
                    // There is no more room.
                    _ => break,
                }
                continue;
            }
            let transfer = match endpoint.protocol.next_transfer(left) {
                Some(transfer) => transfer,
                None => {
                    state.progress();
                    let endpoint = state.connection()?;
                    match endpoint.protocol.next_transfer(left) {
                        Some(transfer) => transfer,
                        None if left < whole => break,
                        None if endpoint.protocol.is_writable() => return Err(Error::WOULD_BLOCK),
                        None => {
                            let error = cannot_send(endpoint);
                            (state.error, state.failure_told) = (0, true);
                            return Err(error);
                        }
                    }
                }
            };
            let posted = match transfer.place {
                // It is posted sooner than the lock could be let go and taken again.
                TransferMemory::Inline => post_transfer(&state.connection()?.parts, &transfer, bytes),
                TransferMemory::Buffer(_) => {
                    let parts = Arc::clone(&state.connection()?.parts);
                    drop(state);
                    let posted = post_transfer(&parts, &transfer, bytes);
                    state = self.lock();
                    posted
                }
            };
            if !posted {
                state.could_not_post(&transfer)?;
                return if left < whole { Ok(whole - left) } else { Err(Error(libc::ECONNRESET)) };
            }
            left -= transfer.length as usize;
        }
        Ok(whole - left)
    }

    /// Sends bytes through shared memory from where they are: they are copied once, into the ring. What the peer has
    /// not acknowledged at the end is copied into the send buffer, since it may have to be sent again. Returns how many
    /// were sent: not all of them if there is no more room, or if something is wrong, of which the next call hears.
    fn send_lent(&self, parts: &Parts, bytes: &[u8]) -> usize {
        let lent = parts.nic.lend(bytes, parts.domain.number, |key| {
            let (mut transfers, mut sent) = (Vec::new(), 0);
            while let Some(left) = bytes.get(sent..).filter(|left| !left.is_empty()) {
                let Some(transfer) = self.next_transfer(left.len()) else { break };
                let piece = &left[..transfer.length as usize];
                let sge = Sge { address: piece.as_ptr() as u64, length: transfer.length, key };
                let data = match transfer.place {
                    TransferMemory::Inline => Data::Inline(piece),
                    TransferMemory::Buffer(_) => Data::Gather(std::slice::from_ref(&sge)),
                };
                if !parts.write(transfer.wr_id(), transfer.remote, Some(transfer.immediate()), data) {
                    let _ = self.lock().could_not_post(&transfer);
                    break;
                }
                transfers.push((sge.address, piece, transfer.place));
                sent += piece.len();
            }
            parts.qp.relocate(key, |sge| keep(parts, &transfers, sge));
            sent
        });
        lent.unwrap_or(0)
    }

    /// The next transfer of so many bytes, if there is room for any.
    fn next_transfer(&self, wanted: usize) -> Option<Transfer> {
        let mut state = self.lock();
        if let Some(transfer) = state.connection().ok()?.protocol.next_transfer(wanted) {
            return Some(transfer);
        }
        state.progress();
        state.connection().ok()?.protocol.next_transfer(wanted)
    }

    /// Receives what there is, and returns how much that was: 0 at the end, and if there is nothing yet, `EAGAIN`.
    pub fn receive(&self, into: &mut dyn Scatter, how: Receive) -> Result<usize, Error> {
        let _turn = self.receive_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let room = into.room();
        let mut received = 0;
        while state.connection()?.protocol.unread() == 0 {
            if how.peek || room == 0 {
                state.progress();
                break;
            }
            let landed = state.progress_into(into.peek());
            into.next(landed);
            received += landed;
            if received == room || landed < STREAM_MIN_BYTES {
                break;
            }
        }
        let endpoint = state.connection()?;
        let unread = endpoint.protocol.unread();
        if received > 0 && (unread == 0 || received == room) {
            return Ok(received);
        }
        if unread == 0 {
            return match (endpoint.protocol.is_readable(), endpoint.protocol.has_failed()) {
                (true, _) => Err(Error::WOULD_BLOCK),
                (false, true) if !std::mem::replace(&mut state.failure_told, true) => {
                    Err(Error(match std::mem::take(&mut state.error) {
                        0 => libc::ECONNRESET,
                        code => code,
                    }))
                }
                _ => Ok(0),
            };
        }
        loop {
            let endpoint = state.connection()?;
            let runs =
                endpoint.protocol.unread_runs((room - received).min(if how.peek { room } else { COPY_CHUNK_MAX }));
            let length: usize = runs.iter().map(|run| run.length as usize).sum();
            let parts = Arc::clone(&endpoint.parts);
            if length <= SHORT_READ_MAX {
                copy_out(&parts, &runs, into)?;
            } else {
                drop(state);
                copy_out(&parts, &runs, into)?;
                state = self.lock();
            }
            received += length;
            if how.peek {
                return Ok(received);
            }
            let endpoint = state.connection()?;
            endpoint.protocol.consume(length);
            endpoint.post_due();
            if length < COPY_CHUNK_MAX || received == room {
                return Ok(received);
            }
            // The peer goes on while the rest is copied.
            state.progress();
            if state.connection()?.protocol.unread() == 0 {
                return Ok(received);
            }
        }
    }
}

/// Why nothing more can be sent.
fn cannot_send(endpoint: &Endpoint) -> Error {
    // Our own program has said so, or the peer is gone.
    Error(if endpoint.protocol.is_connected() { libc::EPIPE } else { libc::ECONNRESET })
}

/// Copies what one of the transfers of a loan needs into the send buffer, and answers where it is now.
fn keep(parts: &Parts, transfers: &[(u64, &[u8], TransferMemory)], sge: Sge) -> [Sge; 2] {
    let found = transfers.binary_search_by_key(&sge.address, |(address, ..)| *address);
    match found.ok().and_then(|at| transfers.get(at)) {
        Some((_, bytes, TransferMemory::Buffer(runs))) => {
            let (first, second) = bytes.split_at((runs[0].length as usize).min(bytes.len()));
            // They fit: the buffer is as long as the protocol was told.
            let _ = parts.send.write(runs[0].offset as usize, first);
            let _ = parts.send.write(runs[1].offset as usize, second);
            parts.pieces(runs)
        }
        _ => [sge, Sge::default()],
    }
}

/// Posts a transfer of the next bytes of a stream.
fn post_transfer(parts: &Parts, transfer: &Transfer, bytes: &mut Slices<'_>) -> bool {
    let immediate = Some(transfer.immediate());
    post(parts, transfer.wr_id(), transfer.remote, immediate, transfer.place, transfer.length, bytes)
}

/// Posts a transfer of the next bytes.
pub(crate) fn post(
    parts: &Parts,
    wr_id: u64,
    to: Span,
    immediate: Option<u32>,
    place: TransferMemory,
    length: u32,
    bytes: &mut Slices<'_>,
) -> bool {
    match place {
        TransferMemory::Inline => {
            if let Some(whole) = bytes.front().get(..length as usize) {
                bytes.skip(whole.len());
                return parts.write(wr_id, to, immediate, Data::Inline(whole));
            }
            let mut room = [0; MAX_INLINE];
            let mut filled = 0;
            bytes.take(length as usize, |piece| {
                if let Some(place) = room.get_mut(filled..filled + piece.len()) {
                    place.copy_from_slice(piece);
                    filled += piece.len();
                }
            });
            parts.write(wr_id, to, immediate, Data::Inline(&room[..filled]))
        }
        TransferMemory::Buffer(runs) => {
            let mut fine = true;
            for run in runs {
                let mut offset = run.offset as usize;
                bytes.take(run.length as usize, |piece| {
                    fine &= parts.send.write(offset, piece).is_ok();
                    offset += piece.len();
                });
            }
            let sges = parts.pieces(&runs);
            let count = if runs[1].length == 0 { 1 } else { 2 };
            fine && parts.write(wr_id, to, immediate, Data::Gather(&sges[..count]))
        }
    }
}

fn copy_out(parts: &Parts, runs: &[Run; 2], into: &mut dyn Scatter) -> Result<(), Error> {
    for run in runs {
        let (mut offset, end) = (run.offset as usize, (run.offset + run.length) as usize);
        while offset < end {
            let place = into.next(end - offset);
            if place.is_empty() {
                return Ok(());
            }
            parts.receive.read(offset, place).map_err(|_| Error(libc::EIO))?;
            offset += place.len();
        }
    }
    Ok(())
}

//! Sending and receiving.

use crate::endpoint::{Endpoint, Parts};
use crate::error::Error;
use crate::socket::Socket;
use rsocket::{Place, Run, Span};
use std::sync::{Arc, PoisonError};
use transport::{Data, Sge};

/// Reads up to this length are copied under the socket's lock, which is cheaper than to take it twice.
const SHORT: usize = 8192;
/// The most that is copied before the peer is told, and what it sent meanwhile is taken.
const LONG: usize = 128 * 1024;
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
}

/// How to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Receive {
    /// What is received stays where it is.
    pub peek: bool,
}

impl Socket {
    /// Sends as much as there is room for now, and answers how much that was: none of it is `EAGAIN`.
    pub fn send(&self, bytes: &mut Slices<'_>) -> Result<usize, Error> {
        let _turn = self.send_turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.send_io_mappings()? {
            return Err(Error::WOULD_BLOCK);
        }
        let whole = bytes.len();
        let mut left = whole;
        if left == 0 {
            let mut state = self.lock();
            let endpoint = state.connection()?;
            return if endpoint.protocol.is_writable() { Ok(0) } else { Err(cannot_send(endpoint)) };
        }
        let mut begun = false;
        while left > 0 {
            let mut state = self.lock();
            let endpoint = state.connection()?;
            if !std::mem::replace(&mut begun, true) {
                endpoint.protocol.begin_send();
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
            let parts = Arc::clone(&state.connection()?.parts);
            drop(state);
            let immediate = Some(transfer.immediate());
            let posted =
                post(&parts, transfer.wr_id(), transfer.remote, immediate, transfer.place, transfer.length, bytes);
            if !posted {
                let mut state = self.lock();
                state.connection()?.protocol.handle_sent(transfer.wr_id(), false);
                state.mark_changed();
                return if left < whole { Ok(whole - left) } else { Err(Error(libc::ECONNRESET)) };
            }
            left -= transfer.length as usize;
        }
        Ok(whole - left)
    }

    /// Receives what there is, and answers how much that was: 0 at the end, and if there is nothing yet, `EAGAIN`.
    pub fn receive(&self, into: &mut dyn Scatter, how: Receive) -> Result<usize, Error> {
        let _turn = self.receive_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        if state.connection()?.protocol.unread() == 0 {
            state.progress();
        }
        let endpoint = state.connection()?;
        let room = into.room();
        let unread = endpoint.protocol.unread();
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
        let mut received = 0;
        loop {
            let endpoint = state.connection()?;
            let runs = endpoint.protocol.unread_runs((room - received).min(if how.peek { room } else { LONG }));
            let length: usize = runs.iter().map(|run| run.length as usize).sum();
            let parts = Arc::clone(&endpoint.parts);
            if length <= SHORT {
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
            if length < LONG || received == room {
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

/// Posts a transfer of the next bytes.
pub(crate) fn post(
    parts: &Parts,
    wr_id: u64,
    to: Span,
    immediate: Option<u32>,
    place: Place,
    length: u32,
    bytes: &mut Slices<'_>,
) -> bool {
    match place {
        Place::Inline => {
            let mut room = [0; MAX_INLINE];
            let mut whole: Option<&[u8]> = None;
            let mut filled = 0;
            bytes.take(length as usize, |piece| {
                if piece.len() == length as usize {
                    whole = Some(piece);
                } else if let Some(place) = room.get_mut(filled..filled + piece.len()) {
                    place.copy_from_slice(piece);
                    filled += piece.len();
                }
            });
            parts.write(wr_id, to, immediate, Data::Inline(whole.unwrap_or(&room[..filled])))
        }
        Place::Buffer(runs) => {
            let mut fine = true;
            for run in runs {
                let mut offset = run.offset as usize;
                bytes.take(run.length as usize, |piece| {
                    fine &= parts.send.write(offset, piece).is_ok();
                    offset += piece.len();
                });
            }
            let sges = runs.map(|run: Run| Sge {
                address: parts.send.address() + u64::from(run.offset),
                length: run.length,
                key: parts.send.key(),
            });
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

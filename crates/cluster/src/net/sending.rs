//! Sending: inline what is short, from registered buffers what is not; credits, and the room of the send queue.

use super::{Message, Net, Outgoing, Peer, State};
use crate::call::{Call, Collective, Header, Kind};
use crate::element::Element;
use crate::error::Error;
use ubiverbs::Part;
use ubiverbs::cm::Connection;

/// What goes inline, header included.
pub(super) const MAX_INLINE_BYTES: usize = 256;

/// Room of a send queue. Parts of calls leave some of it to what needs no credits.
pub(super) const SEND_QUEUE_DEPTH: u32 = 64;
const SENDS_OF_PARTS: u32 = 48;

/// One in so many short messages is told of when it is done.
const SIGNAL_INTERVAL: u32 = 16;

impl Net {
    pub fn header(&self, to: u32, step: u32, offset: usize) -> Header {
        let call = self.current.unwrap_or(Call::of(Collective::Message));
        Header {
            kind: Kind::Part,
            credits: 0,
            origin: self.rank,
            destination: to,
            sequence: self.sequence,
            step,
            offset: offset as u64,
            call,
        }
    }

    /// Sends elements, at most as many as fit a message.
    pub fn send<T: Element>(&mut self, header: Header, data: &[T]) -> Result<(), Error> {
        let length = Header::LENGTH + data.len() * T::SIZE;
        if length <= MAX_INLINE_BYTES {
            let mut bytes = [0; MAX_INLINE_BYTES];
            if let Some(place) = bytes.first_chunk_mut() {
                header.encode(place);
            }
            T::put(data, &mut bytes[Header::LENGTH..length]);
            return self.send_short(header.destination, &mut bytes[..length]);
        }
        let mut buffer = self.slot()?;
        T::put(data, &mut buffer[Header::LENGTH..length]);
        self.send_slot(header, buffer, length)
    }

    /// Passes a message on that arrived, under another header.
    pub fn pass_on(&mut self, header: Header, message: Message) -> Result<(), Error> {
        let Message { buffer, length, .. } = message;
        self.send_slot(header, buffer, length)
    }

    fn send_slot(&mut self, header: Header, mut buffer: ubiverbs::RegisteredMut, length: usize) -> Result<(), Error> {
        if let Some(place) = buffer.first_chunk_mut() {
            header.encode(place);
        }
        let hop = self.routes.hop(header.destination);
        self.peers[hop as usize].outbox.push_back(Outgoing::Slot { buffer, length });
        self.reach(hop)?;
        self.flush(hop)
    }

    fn send_short(&mut self, to: u32, bytes: &mut [u8]) -> Result<(), Error> {
        let hop = self.routes.hop(to);
        let peer = &mut self.peers[hop as usize];
        if !(peer.outbox.is_empty() && peer.may_send() && matches!(peer.state, State::Up { .. })) {
            peer.outbox.push_back(Outgoing::Short(bytes.into()));
            self.reach(hop)?;
            return self.flush(hop);
        }
        peer.credits -= 1;
        peer.post_short(bytes)
    }

    /// Whether more can be sent to a member without piling it up here.
    pub fn has_room(&self, to: u32) -> bool {
        self.peers[self.routes.hop(to) as usize].outbox.len() < self.settings.receives as usize
    }

    /// Waits until there is. Messages that arrive meanwhile are kept.
    pub async fn room(&mut self, to: u32) -> Result<(), Error> {
        while !self.has_room(to) {
            if let Some(failure) = self.failure() {
                return Err(failure.clone());
            }
            self.awaits = Some(to);
            self.progress().await?;
        }
        Ok(())
    }

    /// Sends what waits, as far as there are credits and room.
    pub(super) fn flush(&mut self, rank: u32) -> Result<(), Error> {
        loop {
            let peer = &mut self.peers[rank as usize];
            if !peer.may_send() || !matches!(peer.state, State::Up { .. }) {
                return Ok(());
            }
            let Some(next) = peer.outbox.pop_front() else { return Ok(()) };
            peer.credits -= 1;
            match next {
                Outgoing::Short(mut bytes) => peer.post_short(&mut bytes)?,
                Outgoing::Slot { buffer, length } => peer.post_slot(buffer, length)?,
            }
        }
    }

    /// Says how many receives were posted: needs no credit.
    pub(super) fn send_credits(&mut self, to: u32) -> Result<(), Error> {
        let header = Header { kind: Kind::Credits, ..self.header(to, 0, 0) };
        let mut bytes = [0; Header::LENGTH];
        header.encode(&mut bytes);
        self.peers[to as usize].post_short(&mut bytes)
    }

    /// Tells all neighbours something but the one it was heard from. Needs no credit.
    pub(super) fn tell_all(&mut self, header: Header, payload: &[u8], but: Option<u32>) {
        for rank in (0..self.size).filter(|rank| Some(*rank) != but) {
            self.tell(rank, header, payload);
        }
    }

    /// Tells one of them.
    pub(super) fn tell(&mut self, rank: u32, header: Header, payload: &[u8]) {
        let mut bytes = [0; MAX_INLINE_BYTES];
        if let Some(place) = bytes.first_chunk_mut() {
            header.encode(place);
        }
        let length = Header::LENGTH + payload.len().min(MAX_INLINE_BYTES - Header::LENGTH);
        bytes[Header::LENGTH..length].copy_from_slice(&payload[..length - Header::LENGTH]);
        // A member that has gone need not hear it.
        let _ = self.peers[rank as usize].post_short(&mut bytes[..length]);
    }

    /// Sees to it that we are told when everything sent to a member has arrived.
    pub(super) fn ask_for_answer(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if peer.posted != peer.completed && matches!(peer.state, State::Up { .. }) {
            // The next to be told of.
            peer.posted |= SIGNAL_INTERVAL - 1;
            // A connection that has ended says so itself.
            let _ = self.send_credits(rank);
        }
    }

    /// Waits until everything sent has arrived, as far as the members are still there.
    pub async fn drain(&mut self) -> Result<(), Error> {
        for rank in 0..self.size {
            self.ask_for_answer(rank);
        }
        loop {
            let is_busy = |peer: &Peer| peer.posted != peer.completed && matches!(peer.state, State::Up { .. });
            let Some(rank) = (0..self.size).find(|rank| is_busy(&self.peers[*rank as usize])) else { return Ok(()) };
            self.wait_for(rank).await?;
        }
    }
}

impl Peer {
    fn may_send(&self) -> bool {
        self.credits > 0 && self.posted.wrapping_sub(self.completed) < SENDS_OF_PARTS
    }

    /// Its connection, for a message that gets the credits that it is owed.
    fn link(&mut self, bytes: &mut [u8]) -> Option<&Connection> {
        if let (State::Up { .. }, Some(place)) = (&self.state, bytes.get_mut(2..4)) {
            place.copy_from_slice(&std::mem::take(&mut self.owed).to_le_bytes());
        }
        match &self.state {
            State::Up { connection, .. } => Some(connection),
            _ => None,
        }
    }

    fn post_short(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let posted = self.posted.wrapping_add(1);
        let Some(connection) = self.link(bytes) else { return Ok(()) };
        let done = if posted.is_multiple_of(SIGNAL_INTERVAL) {
            connection.send_inline(bytes).map(|sending| sending.polled(posted.into()))
        } else {
            connection.send_quietly(bytes, posted)
        };
        // A connection that has ended says so itself.
        if done.is_ok() || !connection.is_connected() {
            self.posted = posted;
            return Ok(());
        }
        Ok(done?)
    }

    fn post_slot(&mut self, mut buffer: ubiverbs::RegisteredMut, length: usize) -> Result<(), Error> {
        let posted = self.posted.wrapping_add(1);
        let Some(connection) = self.link(&mut buffer) else { return Ok(()) };
        let done = if length == buffer.len() {
            connection.send(buffer).map(|sending| sending.polled(posted.into())).map_err(|failed| failed.error)
        } else {
            let part = Part::of(buffer, 0..length)?;
            connection.send(part).map(|sending| sending.polled(posted.into())).map_err(|failed| failed.error)
        };
        if done.is_ok() || !connection.is_connected() {
            self.posted = posted;
            return Ok(());
        }
        Ok(done?)
    }
}

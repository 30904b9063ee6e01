//! What the responder owes its peer: acknowledgements, READ responses and atomic results, in the order of the requests;
//! and what it keeps of answered requests so that a repeated one gets the same answer (IBA 9.7.5.1.2: as many as
//! `max_dest_rd_atomic`).

use crate::completed_work::Count;
use crate::connection::Connection;
use crate::port::MAX_TRAIN;
use crate::port::Port;
use crate::requester::MOST_PACKETS;
use crate::state::Kind;
use crate::train::pad;
use alloc::collections::VecDeque;
use wire::access::{Access, Range, Refusal, Subject};
use wire::{Aeth, AtomicAckEth, Headers, Msn, NakCode, Opcode, Operation, Position, Psn, Reth, Syndrome, Tail};

/// What a READ, atomic or flush left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResponderResource {
    /// Memory to be read: again, as it is then, when the request is repeated.
    Read(Subject, Range),
    /// What the eight bytes were before the operation, which must not run twice.
    Original(u64),
    /// Only that it was done.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct ExecutedRequest {
    psn: Psn,
    psns: u32,
    msn: Msn,
    kept: ResponderResource,
    operation: Operation,
    /// All of the response has been handed out, once at least.
    complete: bool,
    /// The part of the response still to be sent.
    stream: Option<Stream>,
}

/// Packets `next..end` of a response that began with packet `first` and whose last byte is `bytes`.
#[derive(Clone, Copy, Debug)]
struct Stream {
    first: u32,
    next: u32,
    end: u32,
    bytes: u64,
    /// The request was repeated: this response may be given up for a new request's.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
enum Owed {
    Acknowledgement { psn: Psn, msn: Msn, syndrome: Syndrome },
    Response { id: u64 },
}

/// A response train before its payload is looked up.
#[derive(Debug)]
pub(crate) struct ResponseTrain {
    pub headers: Headers,
    pub count: u32,
    pub region: Option<(Subject, Range)>,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Responses {
    owed: VecDeque<Owed>,
    /// An acknowledgement that is owed after all these. Mostly it is all that is.
    last: Option<(Psn, Msn)>,
    capacity: usize,
    kept: VecDeque<ExecutedRequest>,
    /// The number of the first kept request; they count up from there.
    base: u64,
    /// READs whose responses have been handed out, counted until they are asked for.
    pub read: Count,
}

impl Responses {
    pub fn reset(&mut self, capacity: u8) {
        self.kept.clear();
        self.owed.clear();
        self.last = None;
        self.base = 0;
        self.capacity = usize::from(capacity);
    }

    /// Acknowledges everything up to `psn`, together with an acknowledgement that waits already.
    #[inline]
    pub fn acknowledge(&mut self, psn: Psn, msn: Msn) {
        if self.last.is_some() || self.has_room_to_owe() {
            self.last = Some((psn, msn));
        }
    }

    /// Owes no acknowledgement any more.
    pub fn forget_acknowledgement(&mut self) {
        self.last = None;
    }

    /// Whether anything is owed.
    #[inline]
    pub fn owes(&self) -> bool {
        self.last.is_some() || !self.owed.is_empty()
    }

    /// Whether that is an acknowledgement and nothing else.
    #[inline]
    pub fn owes_acknowledgement_only(&self) -> bool {
        self.last.is_some() && self.owed.is_empty()
    }

    /// Whether what is owed first is a response.
    pub fn owes_response_next(&self) -> bool {
        matches!(self.owed.front(), Some(Owed::Response { .. }))
    }

    /// Takes the acknowledgement that is owed, if it is all that is.
    #[inline]
    pub fn take_acknowledgement(&mut self) -> Option<(Psn, Msn)> {
        if self.owed.is_empty() { self.last.take() } else { None }
    }

    /// Owes nothing any more.
    pub fn give_up(&mut self) {
        self.owed.clear();
        self.last = None;
        for answered in &mut self.kept {
            answered.stream = None;
        }
    }

    /// Refuses `psn`.
    pub fn refuse(&mut self, psn: Psn, msn: Msn, syndrome: Syndrome) {
        self.owe(Owed::Acknowledgement { psn, msn, syndrome });
    }

    /// False if too much is owed already. Acknowledgements merge and responses are limited by `capacity`, so only a
    /// driver that cannot send comes there; what is not answered will be asked again.
    fn owe(&mut self, owed: Owed) -> bool {
        let room = self.has_room_to_owe();
        if room {
            if let Some((psn, msn)) = self.last.take() {
                self.owed.push_back(Owed::Acknowledgement { psn, msn, syndrome: Syndrome::ACK });
            }
            self.owed.push_back(owed);
        }
        room
    }

    #[inline]
    fn has_room_to_owe(&self) -> bool {
        self.owed.len() + usize::from(self.last.is_some()) < 4 * (self.capacity + 4)
    }

    /// Owes the response kept at `index`, or leaves it to the next repetition of its request.
    fn owe_response(&mut self, index: usize) {
        if !self.owe(Owed::Response { id: self.base + index as u64 })
            && let Some(answered) = self.kept.get_mut(index)
        {
            answered.stream = None;
        }
    }

    /// Whether one more READ or atomic can be kept: not while as many as agreed are still being answered.
    pub fn has_room(&self) -> bool {
        match self.kept.front() {
            Some(oldest) if self.kept.len() >= self.capacity => oldest.stream.is_none_or(|stream| stream.again),
            _ => self.capacity > 0,
        }
    }

    /// Keeps an executed request and owes its response.
    pub fn keep(&mut self, psn: Psn, psns: u32, msn: Msn, operation: Operation, kept: ResponderResource) {
        if self.kept.len() >= self.capacity && self.kept.pop_front().is_some() {
            self.base += 1;
        }
        let bytes = match kept {
            ResponderResource::Read(_, range) => range.length,
            _ => 0,
        };
        let stream = Some(Stream { first: 0, next: 0, end: psns, bytes, again: false });
        self.kept.push_back(ExecutedRequest { psn, psns, msn, kept, operation, complete: false, stream });
        self.owe_response(self.kept.len() - 1);
    }

    /// A request that was executed before comes again: owes the kept response again, or `false` if there is none that
    /// fits.
    pub fn repeat(&mut self, psn: Psn, operation: Operation, reth: Option<Reth>, mtu: u32) -> bool {
        let found = self.kept.iter().rposition(|kept| psn.distance_from(kept.psn) < kept.psns);
        let Some(index) = found else { return false };
        let answered = &mut self.kept[index];
        if answered.operation != operation {
            return false;
        }
        let first = psn.distance_from(answered.psn);
        let (end, bytes) = match (answered.kept, reth) {
            (ResponderResource::Read(_, range), Some(reth)) => {
                // The rest of a READ may be asked for: the address has moved on by as many packets as the number has.
                let skipped = u64::from(first) * u64::from(mtu);
                let bytes = skipped + u64::from(reth.len);
                let fits = reth.rkey == range.key && reth.va == range.address.wrapping_add(skipped);
                if !fits || bytes > range.length {
                    return false;
                }
                (first + reth.len.div_ceil(mtu).max(1), bytes)
            }
            _ if first == 0 => (1, 0),
            _ => return false,
        };
        let waiting = answered.stream.is_some();
        answered.stream = match answered.stream {
            // The next part of a response that is being repeated part by part.
            Some(stream) if stream.again && stream.end == first => Some(Stream { end, bytes, ..stream }),
            // Still on its way to this packet: it will be sent anyway.
            Some(stream) if stream.next <= first && stream.end >= end => Some(stream),
            // What comes after the part that is asked for was not sent yet.
            Some(Stream { next, end: last, bytes: all, again, .. }) if next < last && last > end => {
                Some(Stream { first, next: first, end: last, bytes: all.max(bytes), again })
            }
            _ => Some(Stream { first, next: first, end, bytes, again: true }),
        };
        if !waiting {
            self.owe_response(index);
        }
        true
    }

    /// Builds the next train to send, if there is one, of so many packets at most. `Err` when memory a READ was granted
    /// is gone: with the packet that cannot be answered.
    #[inline]
    pub fn next<P: Port>(
        &mut self,
        connection: &Connection,
        packets: u32,
        port: &mut P,
    ) -> Result<Option<ResponseTrain>, (Psn, Refusal)> {
        if let Some((psn, msn)) = self.take_acknowledgement() {
            return Ok(Some(acknowledgement(connection, psn, msn, Syndrome::ACK)));
        }
        self.next_of_several(connection, packets, port)
    }

    fn next_of_several<P: Port>(
        &mut self,
        connection: &Connection,
        packets: u32,
        port: &mut P,
    ) -> Result<Option<ResponseTrain>, (Psn, Refusal)> {
        let transport = connection.transport();
        while let Some(&owed) = self.owed.front() {
            let id = match owed {
                Owed::Acknowledgement { psn, msn, syndrome } => {
                    self.owed.pop_front();
                    return Ok(Some(acknowledgement(connection, psn, msn, syndrome)));
                }
                Owed::Response { id } => id,
            };
            let kept = id.checked_sub(self.base).and_then(|index| self.kept.get_mut(index as usize));
            let Some((answered, stream)) = kept.and_then(|kept| kept.stream.map(|stream| (kept, stream))) else {
                self.owed.pop_front();
                continue;
            };
            let mtu = connection.mtu();
            let longest = match answered.kept {
                ResponderResource::Read(_, range) if stream.bytes > u64::from(MAX_TRAIN) => {
                    port.longest_train(range.key)
                }
                _ => MAX_TRAIN,
            };
            let count = (stream.end - stream.next).min((longest / mtu).clamp(1, MOST_PACKETS)).min(packets);
            let psn = answered.psn.add(stream.next);
            let mut region = None;
            if let ResponderResource::Read(subject, range) = answered.kept {
                let start = u64::from(stream.next) * u64::from(mtu);
                let stop = ((u64::from(stream.next) + u64::from(count)) * u64::from(mtu)).min(stream.bytes);
                let part = Range {
                    key: range.key,
                    address: range.address.wrapping_add(start),
                    length: stop.saturating_sub(start),
                };
                if let Err(refusal) = port.check(subject, part, Access::REMOTE_READ) {
                    answered.stream = None;
                    if stream.again {
                        // The network may have kept a copy of the request back until its READ was long over and its
                        // memory was revoked, which is lawful. Who still waits for this packet is refused; who does
                        // not, drops a refusal it has left behind.
                        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
                        let refused = Owed::Acknowledgement { psn, msn: answered.msn, syndrome };
                        self.owed[0] = refused;
                        continue;
                    }
                    self.owed.pop_front();
                    return Err((psn, refusal));
                }
                region = Some((subject, part));
            }
            let position = Position::of(stream.next == stream.first, stream.next + count == stream.end);
            let operation = match answered.kept {
                ResponderResource::Original(_) => Operation::AtomicAcknowledge,
                _ => Operation::ReadResponse,
            };
            let opcode = Opcode::of(transport, operation, position, Tail::Plain);
            let mut headers = connection.response(opcode.unwrap_or(Opcode::RcAcknowledge), psn);
            headers.bth.pad = pad(region.map_or(0, |(_, range): (Subject, Range)| range.length as u32));
            if position != Position::Middle {
                headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: answered.msn });
            }
            if let ResponderResource::Original(original) = answered.kept {
                headers.atomic_ack = Some(AtomicAckEth { original });
            }
            let next = stream.next + count;
            answered.stream = (next < stream.end).then_some(Stream { next, ..stream });
            if next == answered.psns && !answered.complete {
                answered.complete = true;
                if let ResponderResource::Read(_, range) = answered.kept {
                    self.read.add(range.length);
                }
            }
            if answered.stream.is_none() {
                self.owed.pop_front();
            }
            return Ok(Some(ResponseTrain { headers, count, region }));
        }
        let acknowledged = self.last.take();
        Ok(acknowledged.map(|(psn, msn)| acknowledgement(connection, psn, msn, Syndrome::ACK)))
    }
}

#[inline]
pub(crate) fn acknowledgement(connection: &Connection, psn: Psn, msn: Msn, syndrome: Syndrome) -> ResponseTrain {
    let opcode = match connection.kind {
        Kind::ReliableConnected => Opcode::RcAcknowledge,
        _ => {
            let opcode = Opcode::of(connection.transport(), Operation::Acknowledge, Position::Only, Tail::Plain);
            opcode.unwrap_or(Opcode::RcAcknowledge)
        }
    };
    let mut headers = connection.response(opcode, psn);
    headers.aeth = Some(Aeth { syndrome, msn });
    ResponseTrain { headers, count: 1, region: None }
}

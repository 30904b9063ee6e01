//! Connections with other members: asked for, accepted, ended.

use super::{Net, State, sending};
use crate::call::MESSAGE_VERSION;
use crate::error::Error;
use crate::secret::{Secret, TAG_BYTES};
use crate::settings::SPARE_RECEIVES;
use std::task::{Context, Poll};
use ubiverbs::cm::{self, ConnectError, Request};
use ubiverbs::{CloseReason, PreparedQueuePair, Reliable};

/// What a process says when it asks for a connection: fits the private data of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Introduction {
    pub purpose: Purpose,
    /// Shows that it is of the group: see [`Introduction::sign`].
    pub tag: [u8; TAG_BYTES],
    pub from: Option<u32>,
    pub to: u32,
    pub size: u32,
    pub digest: u64,
    /// Where it listens.
    pub port: u16,
    /// The number that member 0 has for this meeting, if it was heard.
    pub challenge: u64,
}

/// What for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To meet the others, at member 0.
    Meet = 1,
    /// For messages.
    Link = 2,
}

const HELLO_MAGIC: [u8; 4] = *b"ubiG";

impl Introduction {
    pub const LENGTH: usize = 56;

    pub fn encode(&self) -> [u8; Introduction::LENGTH] {
        let mut bytes = [0; Introduction::LENGTH];
        bytes[..4].copy_from_slice(&HELLO_MAGIC);
        bytes[4] = MESSAGE_VERSION;
        bytes[5] = self.purpose as u8;
        bytes[6..8].copy_from_slice(&self.port.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.tag);
        bytes[24..28].copy_from_slice(&self.from.unwrap_or(u32::MAX).to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.size.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.digest.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.challenge.to_le_bytes());
        bytes
    }

    /// The version of one that is of this crate, perhaps of another time.
    pub fn version(bytes: &[u8]) -> Option<u8> {
        bytes.strip_prefix(&HELLO_MAGIC)?.first().copied()
    }

    /// None if it is none of ours.
    pub fn decode(bytes: &[u8]) -> Option<Introduction> {
        let bytes: &[u8; Introduction::LENGTH] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != HELLO_MAGIC || bytes[4] != MESSAGE_VERSION {
            return None;
        }
        let purpose = match bytes[5] {
            1 => Purpose::Meet,
            2 => Purpose::Link,
            _ => return None,
        };
        let from = Some(word(24)).filter(|from| *from != u32::MAX);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&bytes[8..24]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let port = u16::from_le_bytes([bytes[6], bytes[7]]);
        let (digest, challenge) = (long(40), long(48));
        Some(Introduction { purpose, tag, from, to: word(28), size: word(32), digest, port, challenge })
    }

    /// This introduction with the proof that its sender knows the secret: the group's when members meet, afterwards the
    /// session's.
    pub fn sign(self, secret: &Secret) -> Introduction {
        let unsigned = Introduction { tag: [0; TAG_BYTES], ..self };
        Introduction { tag: secret.tag(&[&unsigned.encode()]), ..self }
    }

    pub fn is_of(&self, secret: &Secret) -> bool {
        secret.proves(&[&Introduction { tag: [0; TAG_BYTES], ..*self }.encode()], &self.tag)
    }
}

impl Net {
    /// Sees to it that there is a connection, or will be.
    pub(super) fn reach(&mut self, rank: u32) -> Result<(), Error> {
        match self.peers[rank as usize].state {
            State::Apart if rank != self.rank => self.ask(rank),
            // The reason may still arrive: ticks see to it.
            State::Gone if self.peers[rank as usize].left.is_some() => Ok(()),
            State::Gone => {
                let left = Error::Left { rank };
                Err(self.fail(left))
            }
            _ => Ok(()),
        }
    }

    /// Asks all neighbours of a lower rank, and waits until all connections stand.
    pub async fn connect_all(&mut self, near: &[u32]) -> Result<(), Error> {
        self.near = near.to_vec();
        for &rank in near {
            if rank < self.rank {
                self.ask(rank)?;
            }
        }
        loop {
            if self.apart(near).is_empty() {
                return Ok(());
            }
            if let Some(failure) = self.failure() {
                return Err(failure.clone());
            }
            self.progress().await?;
        }
    }

    /// With whom no connection stands yet.
    pub fn apart(&self, near: &[u32]) -> Vec<u32> {
        let apart = |rank: &u32| !matches!(self.peers[*rank as usize].state, State::Up { .. });
        near.iter().copied().filter(apart).collect()
    }

    /// A queue pair for a member, with its receives.
    fn prepared(&mut self, rank: u32) -> Result<PreparedQueuePair<Reliable>, Error> {
        let builder = self.pd.queue_pair::<Reliable>(&self.cq).max_sends(sending::SEND_QUEUE_DEPTH).max_pieces(1);
        let builder = builder.max_inline(sending::MAX_INLINE_BYTES as u32);
        if let Some(queue) = &self.shared {
            let prepared = builder.shared_receives(queue).prepare()?;
            self.by_number.insert(prepared.qpn(), rank);
            return Ok(prepared);
        }
        let receives = self.settings.receives + SPARE_RECEIVES;
        let prepared = builder.max_receives(receives).prepare()?;
        self.by_number.insert(prepared.qpn(), rank);
        for _ in 0..receives {
            prepared.recv(self.slot()?)?.polled(0);
        }
        Ok(prepared)
    }

    fn ask(&mut self, rank: u32) -> Result<(), Error> {
        let prepared = self.prepared(rank)?;
        let introduction = Introduction {
            purpose: Purpose::Link,
            tag: [0; TAG_BYTES],
            from: Some(self.rank),
            to: rank,
            size: self.size,
            digest: 0,
            port: 0,
            challenge: 0,
        }
        .sign(&self.session);
        let address = self.addresses[rank as usize];
        let source = std::net::SocketAddr::new(self.listener.local_addr().ip(), 0);
        self.peers[rank as usize].state = State::Asking(Box::pin(async move {
            let route = cm::resolve_from::<Reliable>(source, address).await?;
            route.connect().queue_pair(prepared).private_data(&introduction.encode()).await
        }));
        self.bell.ring();
        Ok(())
    }

    pub(super) fn poll_requests(&mut self, context: &mut Context<'_>) -> Result<(), Error> {
        loop {
            let listener = &self.listener;
            let asking = self.asking.get_or_insert_with(|| listener.next());
            let Poll::Ready(request) = Future::poll(std::pin::Pin::new(asking), context) else { return Ok(()) };
            self.asking = None;
            self.requested(request?)?;
        }
    }

    /// Accepts members that have no connection with us. Any other process that asks is refused, and nothing is kept of
    /// it.
    fn requested(&mut self, request: Request<Reliable>) -> Result<(), Error> {
        let Some(asked) = Introduction::decode(request.private_data()) else { return Ok(()) };
        let ours = asked.purpose == Purpose::Link
            && asked.is_of(&self.session)
            && (asked.to, asked.size) == (self.rank, self.size);
        let Some(from) = asked.from.filter(|from| ours && *from < self.size && *from != self.rank) else {
            return Ok(());
        };
        match self.peers[from as usize].state {
            State::Apart => {}
            // Both ask: the request of the higher rank counts.
            State::Asking(_) if from > self.rank => {}
            _ => return Ok(()),
        }
        let prepared = self.prepared(from)?;
        let accepting = request.accept().queue_pair(prepared).start();
        self.peers[from as usize].state = State::Accepting(Box::pin(accepting));
        self.bell.ring();
        Ok(())
    }

    pub(super) fn poll_peer(&mut self, rank: u32, context: &mut Context<'_>) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        let (attempt, asks) = match &mut peer.state {
            State::Asking(attempt) => (attempt, true),
            State::Accepting(attempt) => (attempt, false),
            State::Up { closed, .. } => {
                let Poll::Ready(reason) = Future::poll(std::pin::Pin::new(closed), context) else { return Ok(()) };
                return self.ended(rank, &reason?);
            }
            State::Apart | State::Gone => return Ok(()),
        };
        let Poll::Ready(outcome) = attempt.as_mut().poll(context) else { return Ok(()) };
        match outcome {
            Ok(connection) => {
                let mut closed = connection.closed();
                let early = std::mem::take(&mut peer.early);
                let ended = Future::poll(std::pin::Pin::new(&mut closed), context);
                peer.state = State::Up { connection, closed };
                for completion in early {
                    self.completed(completion)?;
                }
                if let Poll::Ready(reason) = ended {
                    return self.ended(rank, &reason?);
                }
                self.tell_late(rank);
                self.flush(rank)
            }
            // It is not there yet, or has asked us meanwhile; at the next tick we ask again.
            Err(ubiverbs::Error::Connect(
                ConnectError::NobodyListens { .. }
                | ConnectError::Rejected { .. }
                | ConnectError::TimedOut { .. }
                | ConnectError::Gone { .. },
            )) => {
                peer.state = State::Apart;
                Ok(())
            }
            Err(error) if asks => {
                let why = format!("no connection with rank {rank}: {error}");
                let rank = self.rank;
                Err(self.fail(Error::Failed { rank, why }))
            }
            Err(_) => {
                peer.state = State::Apart;
                Ok(())
            }
        }
    }

    /// A connection has ended.
    fn ended(&mut self, rank: u32, reason: &CloseReason) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        peer.state = State::Gone;
        match reason {
            // What it said last may still be on its way.
            CloseReason::PeerDisconnected { .. } | CloseReason::LocalClose => {
                peer.left = Some(0);
                Ok(())
            }
            reason => {
                let why = reason.to_string();
                Err(self.fail(Error::Died { rank, why }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introductions_come_back_and_strangers_do_not() {
        let one = Introduction {
            purpose: Purpose::Link,
            tag: [7; TAG_BYTES],
            from: Some(3),
            to: 4,
            size: 5,
            digest: 1 << 50,
            port: 77,
            challenge: 1 << 60 | 5,
        };
        for one in [one, Introduction { purpose: Purpose::Meet, from: None, ..one }] {
            let bytes = one.encode();
            assert!(bytes.len() <= 56, "a request has no more room");
            assert_eq!(Introduction::decode(&bytes), Some(one));
            assert_eq!(Introduction::decode(&bytes[..55]), None);
            for wrong in [0, 4, 5] {
                let mut bytes = bytes;
                bytes[wrong] ^= 0x40;
                assert_eq!(Introduction::decode(&bytes), None);
            }
        }
    }

    #[test]
    fn an_introduction_proves_each_of_its_words() {
        let secret = Secret::new("ours");
        let one = Introduction {
            purpose: Purpose::Link,
            tag: [0; TAG_BYTES],
            from: Some(1),
            to: 0,
            size: 2,
            digest: 3,
            port: 4,
            challenge: 5,
        };
        let bytes = one.sign(&secret).encode();
        assert!(Introduction::decode(&bytes).is_some_and(|one| one.is_of(&secret) && !one.is_of(&Secret::new(""))));
        for at in (0..bytes.len()).filter(|at| !(36..40).contains(at)) {
            let mut bytes = bytes;
            bytes[at] ^= 3;
            assert!(Introduction::decode(&bytes).is_none_or(|changed| !changed.is_of(&secret)), "byte {at}");
        }
    }
}

//! What is said at a meeting: short messages over a connection of its own.

use crate::error::Error;
use crate::secret::TAG_BYTES;
use crate::topology::MAX_MEMBERS;
use crate::verdict::{self, ADDRESS_BYTES};
use std::collections::VecDeque;
use std::net::SocketAddr;
use ubiverbs::cm::Connection;
use ubiverbs::{Operation, PreparedQueuePair, ProtectionDomain, Received, Registered, Reliable};

/// The longest message.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Addresses in one message.
pub(super) const ADDRESSES_PER_MESSAGE: usize = (MAX_MESSAGE_BYTES - 8) / ADDRESS_BYTES;

/// Receives of a side.
const POSTED_RECEIVES: u32 = 4;

/// What is said.
#[derive(Debug)]
pub(crate) enum Word {
    /// Your rank, the number of the session, and the proof that I am of the group.
    Welcome { rank: u32, session: [u8; TAG_BYTES], proof: [u8; TAG_BYTES] },
    /// Where members are, from this rank on.
    Roster { from: u32, addresses: Vec<SocketAddr> },
    /// All my connections stand.
    Ready,
    /// All members are ready.
    Go,
    /// It does not come to be.
    Failure(Error),
}

impl Word {
    pub fn encode(&self, rank: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Word::Welcome { rank, session, proof } => {
                bytes.extend([1, 0, 0, 0]);
                bytes.extend(rank.to_le_bytes());
                bytes.extend(session);
                bytes.extend(proof);
            }
            Word::Roster { from, addresses } => {
                bytes.push(2);
                bytes.push(0);
                bytes.extend((addresses.len() as u16).to_le_bytes());
                bytes.extend(from.to_le_bytes());
                addresses.iter().for_each(|address| bytes.extend(verdict::address_bytes(*address)));
            }
            Word::Ready => bytes.extend([3; 4]),
            Word::Go => bytes.extend([4; 4]),
            Word::Failure(error) => {
                bytes.extend([5, 0, 0, 0]);
                bytes.extend(verdict::encode(error, rank));
            }
        }
        bytes
    }

    /// In a group of `size`; none if it has no meaning.
    pub fn decode(bytes: &[u8], size: u32) -> Option<Word> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u32::from_le_bytes(*word));
        Some(match head[0] {
            1 => {
                let rank = word(rest).filter(|rank| *rank < size)?;
                let (session, rest) = rest.get(4..)?.split_first_chunk()?;
                Word::Welcome { rank, session: *session, proof: *rest.first_chunk()? }
            }
            2 => {
                let count = u16::from_le_bytes([head[2], head[3]]);
                let from = word(rest).filter(|from| *from <= MAX_MEMBERS)?;
                let (places, _) = rest.get(4..)?.as_chunks::<ADDRESS_BYTES>();
                let places = places.get(..usize::from(count))?;
                if from as usize + places.len() > size as usize || places.is_empty() {
                    return None;
                }
                let addresses = places.iter().map(verdict::read_address).collect::<Option<Vec<_>>>()?;
                Word::Roster { from, addresses }
            }
            3 => Word::Ready,
            4 => Word::Go,
            5 => Word::Failure(verdict::decode(rest, size)?),
            _ => return None,
        })
    }
}

/// One end of a conversation.
pub(super) struct Talk {
    pub connection: Connection,
    receiving: VecDeque<Operation<Received>>,
}

/// A queue pair for one, with receives.
pub(super) struct Prepared {
    pub queue_pair: PreparedQueuePair<Reliable>,
    receiving: VecDeque<Operation<Received>>,
}

impl Prepared {
    pub fn new(pd: &ProtectionDomain) -> Result<Prepared, Error> {
        let cq = pd.context().completion_queue(32).create()?;
        let builder = pd.queue_pair::<Reliable>(&cq).max_sends(16).max_receives(POSTED_RECEIVES).max_pieces(1);
        let queue_pair = builder.prepare()?;
        let mut receiving = VecDeque::new();
        for buffer in pd.allocate(MAX_MESSAGE_BYTES * POSTED_RECEIVES as usize)?.chunks(MAX_MESSAGE_BYTES) {
            receiving.push_back(queue_pair.recv(buffer)?);
        }
        Ok(Prepared { queue_pair, receiving })
    }

    pub fn split(self) -> (PreparedQueuePair<Reliable>, Receiving) {
        (self.queue_pair, Receiving(self.receiving))
    }
}

/// Receives of a connection that does not stand yet.
pub(super) struct Receiving(VecDeque<Operation<Received>>);

impl Talk {
    pub fn new(connection: Connection, receiving: Receiving) -> Talk {
        Talk { connection, receiving: receiving.0 }
    }

    pub async fn say(&self, word: &Word, rank: u32) -> Result<(), Error> {
        let buffer = self.connection.pd().register(word.encode(rank))?;
        self.connection.send(buffer)?.await?;
        Ok(())
    }

    /// Sends bytes that are the same for every member.
    pub async fn repeat(&self, bytes: &Registered) -> Result<(), Error> {
        self.connection.send(bytes.clone())?.await?;
        Ok(())
    }

    /// The next word of rank `from`, in a group of `size`. Errors name that rank.
    pub async fn hear(&mut self, from: u32, size: u32) -> Result<Word, Error> {
        let died = |why: String| Error::Died { rank: from, why };
        let Some(front) = self.receiving.front_mut() else { return Err(died("nothing is received".into())) };
        let received = front.await;
        self.receiving.pop_front();
        let received = received.map_err(|failed| match self.connection.close_reason() {
            Some(reason) => died(reason.to_string()),
            None => died(failed.to_string()),
        })?;
        let word = Word::decode(received.payload(), size).ok_or_else(|| Error::nonsense(from, "a word of a meeting"));
        if let Ok(receiving) = self.connection.recv(received.into_buffer()) {
            self.receiving.push_back(receiving);
        }
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_nonsense_does_not() {
        let addresses: Vec<SocketAddr> = (0..5).map(|n| SocketAddr::from(([10, 0, 0, n], 7000))).collect();
        let words = [
            Word::Welcome { rank: 3, session: [9; TAG_BYTES], proof: [8; TAG_BYTES] },
            Word::Roster { from: 2, addresses },
            Word::Ready,
            Word::Go,
            Word::Failure(Error::Left { rank: 1 }),
        ];
        for word in words {
            let bytes = word.encode(0);
            assert!(bytes.len() <= MAX_MESSAGE_BYTES);
            assert_eq!(format!("{:?}", Word::decode(&bytes, 7).unwrap()), format!("{word:?}"));
            for shorter in 0..bytes.len() {
                let _ = Word::decode(&bytes[..shorter], 7);
            }
        }
        let beyond = Word::Roster { from: 2, addresses: vec![SocketAddr::from(([10, 0, 0, 1], 1)); 5] }.encode(0);
        assert!(Word::decode(&beyond, 6).is_none(), "more members than there are");
        assert!(
            Word::decode(&Word::Welcome { rank: 9, session: [0; TAG_BYTES], proof: [0; TAG_BYTES] }.encode(0), 9)
                .is_none()
        );
        assert!(Word::decode(&[9, 9, 9, 9, 9], 9).is_none());
    }
}

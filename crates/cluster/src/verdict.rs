//! Errors as members tell them to each other: a few bytes, checked when they are read.

use crate::call::Call;
use crate::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The most bytes of one: what fits a rejected request.
pub(crate) const MAX_LENGTH: usize = 148;
const MAX_RANKS: usize = 6;

/// What the group should hear of an error of this member's, `rank`.
pub(crate) fn encode(error: &Error, rank: u32) -> Vec<u8> {
    let mut out = Out(Vec::new());
    match error {
        Error::Missing { ranks, limit } => out.code(1).ranks(ranks).limit(*limit),
        Error::RankTwice { rank, first, second } => out.code(2).word(*rank).address(*first).address(*second),
        Error::Disagrees { rank, what } => out.code(3).word(*rank).text(what),
        Error::Died { rank, why } => out.code(4).word(*rank).text(why),
        Error::Left { rank } => out.code(5).word(*rank),
        Error::Silent { ranks, call, limit } => out.code(6).ranks(ranks).limit(*limit).call(call),
        Error::Calls { rank, theirs, other, ours } => out.code(7).word(*rank).word(*other).call(theirs).call(ours),
        Error::Abandoned { rank, call } => out.code(8).word(*rank).call(call),
        Error::Nonsense { rank, what } => out.code(9).word(*rank).text(what),
        Error::Failed { rank, why } => out.code(10).word(*rank).text(why),
        other => out.code(10).word(rank).text(&other.to_string()),
    };
    out.0
}

/// Reads one in a group of `size`; none if it has no meaning.
pub(crate) fn decode(bytes: &[u8], size: u32) -> Option<Error> {
    let mut from = In(bytes);
    let code = from.byte()?;
    let error = match code {
        1 => Error::Missing { ranks: from.ranks(size)?, limit: from.limit()? },
        2 => Error::RankTwice { rank: from.rank(size)?, first: from.address()?, second: from.address()? },
        3 => Error::Disagrees { rank: from.rank(size)?, what: from.text() },
        4 => Error::Died { rank: from.rank(size)?, why: from.text() },
        5 => Error::Left { rank: from.rank(size)? },
        6 => Error::Silent { ranks: from.ranks(size)?, limit: from.limit()?, call: from.call()? },
        7 => {
            let (rank, other) = (from.rank(size)?, from.rank(size)?);
            Error::Calls { rank, other, theirs: from.call()?, ours: from.call()? }
        }
        8 => Error::Abandoned { rank: from.rank(size)?, call: from.call()? },
        9 => Error::Nonsense { rank: from.rank(size)?, what: from.text() },
        10 => Error::Failed { rank: from.rank(size)?, why: from.text() },
        _ => return None,
    };
    Some(error)
}

struct Out(Vec<u8>);

impl Out {
    fn code(&mut self, code: u8) -> &mut Out {
        self.0.push(code);
        self
    }

    fn word(&mut self, word: u32) -> &mut Out {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn ranks(&mut self, ranks: &[u32]) -> &mut Out {
        let told = ranks.len().min(MAX_RANKS);
        self.0.push(told as u8);
        ranks[..told].iter().for_each(|rank| self.0.extend(rank.to_le_bytes()));
        self
    }

    fn limit(&mut self, limit: Duration) -> &mut Out {
        self.word(u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))
    }

    fn call(&mut self, call: &Call) -> &mut Out {
        let mut bytes = [0; Call::ENCODED];
        call.encode(&mut bytes);
        self.0.extend(bytes);
        self
    }

    fn address(&mut self, address: SocketAddr) -> &mut Out {
        self.0.extend(address_bytes(address));
        self
    }

    /// As much of it as there is room for; zeros may follow.
    fn text(&mut self, text: &str) -> &mut Out {
        let room = MAX_LENGTH - self.0.len() - 1;
        let end = text.floor_char_boundary(room);
        self.0.push(end as u8);
        self.0.extend(&text.as_bytes()[..end]);
        self
    }
}

struct In<'a>(&'a [u8]);

impl In<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn rank(&mut self, size: u32) -> Option<u32> {
        self.take().map(u32::from_le_bytes).filter(|rank| *rank < size)
    }

    fn ranks(&mut self, size: u32) -> Option<Vec<u32>> {
        let count = usize::from(self.byte()?);
        if count > MAX_RANKS {
            return None;
        }
        (0..count).map(|_| self.rank(size)).collect()
    }

    fn limit(&mut self) -> Option<Duration> {
        self.take().map(|bytes| Duration::from_millis(u32::from_le_bytes(bytes).into()))
    }

    fn call(&mut self) -> Option<Call> {
        Call::decode(&self.take()?)
    }

    fn address(&mut self) -> Option<SocketAddr> {
        read_address(&self.take()?)
    }

    /// What others say is shown to people: nothing that a terminal would obey.
    fn text(&mut self) -> String {
        let length = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let text = String::from_utf8_lossy(&self.0[..length]);
        text.chars().filter(|letter| !letter.is_control()).collect()
    }
}

/// An address in a message: as IPv6, and its port.
pub(crate) const ADDRESS_BYTES: usize = 18;

pub(crate) fn address_bytes(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// None for what nobody can be reached at.
pub(crate) fn read_address(bytes: &[u8; ADDRESS_BYTES]) -> Option<SocketAddr> {
    let [ip @ .., high, low] = *bytes;
    let (ip, port) = (IpAddr::from(ip).to_canonical(), u16::from_be_bytes([high, low]));
    let reachable = port != 0 && !ip.is_unspecified() && !ip.is_multicast();
    reachable.then(|| SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Collective;

    #[test]
    fn errors_come_back_as_the_same_sentence() {
        let call = Call::of(Collective::Barrier);
        let (ranks, limit) = (vec![1, 4], Duration::from_millis(1500));
        let (first, second) = ("10.0.0.1:7".parse().unwrap(), "[fd00::1]:9".parse().unwrap());
        let all = [
            Error::Missing { ranks: ranks.clone(), limit },
            Error::RankTwice { rank: 2, first, second },
            Error::Disagrees { rank: 3, what: "it says ring".into() },
            Error::Died { rank: 0, why: "its process ended".into() },
            Error::Left { rank: 4 },
            Error::Silent { ranks, call, limit },
            Error::Calls { rank: 1, other: 2, theirs: call, ours: Call::of(Collective::AllToAll) },
            Error::Abandoned { rank: 1, call },
            Error::Nonsense { rank: 1, what: "none".into() },
            Error::Failed { rank: 1, why: "the disk is full".into() },
        ];
        for error in all {
            let bytes = encode(&error, 3);
            assert!(bytes.len() <= MAX_LENGTH);
            let mut padded = bytes.clone();
            padded.resize(MAX_LENGTH, 0);
            for bytes in [&bytes, &padded] {
                assert_eq!(decode(bytes, 5).unwrap().to_string(), error.to_string());
            }
            for shorter in 0..bytes.len() {
                let _ = decode(&bytes[..shorter], 5);
            }
        }
        assert_eq!(
            decode(&encode(&Error::Verbs("no memory".into()), 3), 5).unwrap().to_string(),
            "rank 3 failed: no memory"
        );
    }

    #[test]
    fn strangers_words_are_bounded_and_harmless() {
        let long = Error::Failed { rank: 1, why: "ü".repeat(500) };
        assert!(encode(&long, 1).len() <= MAX_LENGTH);
        let rude = Error::Failed { rank: 1, why: "\x1b[2Jgone\n".into() };
        assert_eq!(decode(&encode(&rude, 1), 5).unwrap().to_string(), "rank 1 failed: [2Jgone");
        assert!(decode(&encode(&long, 1), 1).is_none(), "a rank that does not exist");
        assert!(decode(&[], 5).is_none() && decode(&[77], 5).is_none() && decode(&[1, 255], 5).is_none());
    }

    #[test]
    fn addresses_that_lead_nowhere_are_refused() {
        for address in ["0.0.0.0:5", "10.1.2.3:0", "[::]:1", "224.0.0.1:4", "[ff02::1]:5"] {
            assert_eq!(read_address(&address_bytes(address.parse().unwrap())), None, "{address}");
        }
        for address in ["10.1.2.3:4791", "[fe80::1]:5"] {
            let address = address.parse().unwrap();
            assert_eq!(read_address(&address_bytes(address)), Some(address));
        }
    }
}

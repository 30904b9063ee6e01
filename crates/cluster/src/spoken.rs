//! What other members say, as bytes, read and said again: for fuzzing.

use crate::call::Header;
use crate::meeting::Word;
use crate::net::Introduction;
use crate::verdict;

/// What comes from peers.
#[doc(hidden)] // for fuzzing
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoken {
    /// What a message begins with.
    Header,
    /// With which a process asks for a connection.
    Introduction,
    /// What is said at a meeting.
    Word,
    /// Why a group has failed.
    Verdict,
}

impl Spoken {
    /// Every kind.
    pub const ALL: [Spoken; 4] = [Spoken::Header, Spoken::Introduction, Spoken::Word, Spoken::Verdict];

    /// Reads bytes as such, in a group of `size`. Answers how it would be said again and what people are shown of it;
    /// none if it has no meaning.
    pub fn again(self, bytes: &[u8], size: u32) -> Option<(Vec<u8>, String)> {
        match self {
            Spoken::Header => {
                let header = Header::decode(bytes, size).ok()?;
                let mut again = [0; Header::LENGTH];
                header.encode(&mut again);
                Some((again.to_vec(), header.call.to_string()))
            }
            Spoken::Introduction => {
                let introduction = Introduction::decode(bytes)?;
                Some((introduction.encode().to_vec(), String::new()))
            }
            Spoken::Word => {
                let word = Word::decode(bytes, size)?;
                let shown = if let Word::Failure(error) = &word { error.to_string() } else { String::new() };
                Some((word.encode(0), shown))
            }
            Spoken::Verdict => {
                let error = verdict::decode(bytes, size)?;
                Some((verdict::encode(&error, 0), error.to_string()))
            }
        }
    }
}

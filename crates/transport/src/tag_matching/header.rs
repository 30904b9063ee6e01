//! The headers of tag matching, as `infiniband/tm_types.h` has them: they are the first bytes of a SEND, and so a
//! peer's word. What they do not say properly is handed to software whole.

use super::MAX_RENDEZVOUS_HEADER;
use crate::completion::TagHeader;
use crate::work::Remote;
use wire::Key;

/// Length of the tag matching header.
pub(crate) const TMH_LENGTH: usize = 16;

/// Length of what answers a rendezvous: both headers.
pub(crate) const FIN_LENGTH: usize = 32;

/// The numbers of `ibv_tmh_op`. 0 is a message without a tag.
const OP_RENDEZVOUS: u8 = 1;
const OP_FIN: u8 = 2;
const OP_EAGER: u8 = 3;

/// How a message is to be matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaggedMessage {
    /// Not at all: it has no tag, or ends a rendezvous, or its headers are no headers.
    Untagged,
    /// The data follows the header.
    Eager(TagHeader),
    /// The data is to be read from the sender's memory.
    Rendezvous {
        /// The tag.
        header: TagHeader,
        /// Where the data is.
        remote: Remote,
        /// How long it is.
        length: u32,
    },
}

impl TaggedMessage {
    /// What the first bytes of a message say; `whole` if there are no more.
    pub fn of(first: &[u8], whole: bool) -> TaggedMessage {
        let Some((tmh, rest)) = first.split_first_chunk::<TMH_LENGTH>() else { return TaggedMessage::Untagged };
        let [opcode, _, _, _, a, b, c, d, tag @ ..] = *tmh;
        let header = TagHeader { tag: u64::from_be_bytes(tag), app_ctx: u32::from_be_bytes([a, b, c, d]) };
        match opcode {
            OP_EAGER => TaggedMessage::Eager(header),
            OP_RENDEZVOUS if whole && first.len() <= MAX_RENDEZVOUS_HEADER as usize => {
                let Some((va, rest)) = rest.split_first_chunk() else { return TaggedMessage::Untagged };
                let Some((rkey, rest)) = rest.split_first_chunk() else { return TaggedMessage::Untagged };
                let Some(length) = rest.first_chunk() else { return TaggedMessage::Untagged };
                let (address, key) = (u64::from_be_bytes(*va), Key::new(u32::from_be_bytes(*rkey)));
                let (remote, length) = (Remote { address, key }, u32::from_be_bytes(*length));
                TaggedMessage::Rendezvous { header, remote, length }
            }
            _ => TaggedMessage::Untagged,
        }
    }

    /// Its header, if it is to be matched.
    pub fn header(&self) -> Option<TagHeader> {
        match *self {
            TaggedMessage::Untagged => None,
            TaggedMessage::Eager(header) | TaggedMessage::Rendezvous { header, .. } => Some(header),
        }
    }
}

/// What tells the sender of a rendezvous that its data was read: its own headers, but for the opcode.
pub(crate) fn fin(request: &[u8]) -> Option<[u8; FIN_LENGTH]> {
    let mut fin = *request.first_chunk()?;
    fin[0] = OP_FIN;
    Some(fin)
}

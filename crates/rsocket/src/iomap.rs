//! I/O mappings: memory that a program lends its peer's program by an offset of its choice. An entry lies in the
//! peer's memory, behind its list of targets, and is written there by an RDMA WRITE.

use crate::target::{ByteOrder, Target, put};

/// An entry of the list of I/O mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoMapping {
    /// What the peer calls its first byte.
    pub offset: u64,
    /// Where it is.
    pub target: Target,
}

impl IoMapping {
    /// Bytes of an entry.
    pub const LENGTH: usize = 24;

    pub(crate) fn encode(&self, order: ByteOrder) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        order.put_u64(&mut out, 0, self.offset);
        put(&mut out, 8, &self.target.encode(order));
        out
    }

    /// Reads an entry of a list that lies in this machine's memory.
    pub fn from_memory(bytes: &[u8]) -> IoMapping {
        let target = Target::decode(ByteOrder::HERE, bytes.get(8..).unwrap_or_default());
        IoMapping { offset: ByteOrder::HERE.get_u64(bytes, 0), target }
    }

    /// Whether it has the byte of that offset, and how many from there on.
    pub fn bytes_from(&self, offset: u64) -> Option<u32> {
        let past = offset.checked_sub(self.offset)?;
        u64::from(self.target.length).checked_sub(past).filter(|left| *left > 0).map(|left| left as u32)
    }
}

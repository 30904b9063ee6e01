//! Work for the queue pair, as a stream hands it out.

use crate::iomap::IoMapping;
use crate::message::Message;
use crate::target::{Span, Target};

/// Bytes of a ring that lie side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// The first.
    pub offset: u32,
    /// How many.
    pub length: u32,
}

/// Where the bytes of a transfer are until it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferMemory {
    /// In the work request.
    Inline,
    /// In the send buffer: two runs, of which the second may be empty.
    Buffer([Run; 2]),
}

/// Bytes for the peer's receive buffer: an RDMA WRITE with an immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// How many.
    pub length: u32,
    /// Where to.
    pub remote: Span,
    /// Where from.
    pub place: TransferMemory,
}

impl Transfer {
    /// The message to the peer.
    pub fn immediate(&self) -> u32 {
        Message::Data(self.length).encode()
    }

    /// What its work request is called.
    pub fn wr_id(&self) -> u64 {
        self.immediate().into()
    }
}

/// Bytes for an I/O mapping of the peer's: an RDMA WRITE of which its program hears nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectTransfer {
    /// How many.
    pub length: u32,
    /// Where to.
    pub remote: Span,
    /// Where from.
    pub place: TransferMemory,
}

impl DirectTransfer {
    /// What its work request is called.
    pub fn wr_id(&self) -> u64 {
        Message::Direct(self.length).encode().into()
    }
}

/// An entry for the peer's list of I/O mappings: an RDMA WRITE with an immediate, of inline data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoMapWork {
    /// The entry.
    pub bytes: [u8; IoMapping::LENGTH],
    /// Where to.
    pub remote: Span,
    /// The message to the peer; also what the work request is called.
    pub immediate: u32,
}

/// A message about the connection: work for the queue pair, of inline data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlWork {
    /// An RDMA WRITE with an immediate and no data.
    Message {
        /// The message to the peer; also what the work request is called.
        immediate: u32,
    },
    /// An RDMA WRITE with an immediate of an entry of the peer's list of targets.
    Target {
        /// The entry.
        bytes: [u8; Target::LENGTH],
        /// Where to.
        remote: Span,
        /// The message to the peer; also what the work request is called.
        immediate: u32,
    },
    /// An empty RDMA WRITE without immediate, which the peer's NIC acknowledges.
    KeepAlive {
        /// What the work request is called.
        wr_id: u64,
    },
}

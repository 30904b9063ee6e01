//! The protocol of sockets over RDMA, sans-IO: the bytes that both sides of a connection exchange when they connect,
//! the messages by which they tell each other what was written and what may be written next, and the headers of
//! datagrams. It is the protocol of `rsocket(7)`. No queue pair, clock, thread or `unsafe` is here: completions and
//! calls go in, work for a queue pair comes out.
//!
//! # How bytes travel
//!
//! Each side lends its peer half of a receive buffer at a time. The sender writes bytes into that half with RDMA
//! WRITEs; the immediate of a WRITE says how many there are. When a half has been read, the reader lends it again: it
//! writes where the half lies into a *target list* of the sender's, with an immediate that also says how many
//! messages the sender may have sent by then.
//!
//! ```
//! use ubiverbs_rsocket::{Local, Sizes, Stream, Span};
//! use wire::Key;
//!
//! let place = |address| Span { address, key: Key::new(7) };
//! let local = Local { receive: place(0x1000), targets: place(0x9000) };
//! let (mut alice, mut bob) = (Stream::new(Sizes::default(), local), Stream::new(Sizes::default(), local));
//! // These bytes are the private data of the connection manager's request and of its answer.
//! let (request, answer) = (alice.connection_data().to_bytes(), bob.connection_data().to_bytes());
//! bob.handle_connection_data(&request)?;
//! alice.handle_connection_data(&answer)?;
//!
//! // Alice writes five bytes; Bob's completion says so.
//! let transfer = alice.next_transfer(5).expect("there is room");
//! bob.handle_received(transfer.immediate(), transfer.length, &[])?;
//! assert_eq!(bob.unread(), 5);
//! alice.handle_sent(transfer.wr_id(), true);
//! # Ok::<(), ubiverbs_rsocket::ProtocolError>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod connection_data;
mod datagram;
mod iomap;
mod message;
mod scale;
mod sizes;
mod stream;
mod target;
mod work;

pub use connection_data::ConnectionData;
pub use datagram::{DatagramHeader, DiscoveryHeader, DiscoveryKind, MAX_DATAGRAM_HEADER};
pub use iomap::IoMapping;
pub use message::{Control, Message};
pub use scale::{scale_to_value, value_to_scale};
pub use sizes::{CONTROL_SLOTS, MAX_QUEUE, MIN_QUEUE, SEND_LOW_WATER, Sizes};
pub use stream::{Local, Shutdown, Stream};
pub use target::{Span, Target};
pub use work::{ControlWork, DirectTransfer, IoMapWork, Run, Transfer, TransferMemory};

/// What a peer did that the protocol does not allow. The connection is of no use afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Its connection data is shorter than the protocol has it.
    #[error("connection data of {length} bytes; the protocol has {} of them", ConnectionData::LENGTH)]
    Short {
        /// How long it is.
        length: usize,
    },
    /// It speaks another version.
    #[error("version {version} of the socket protocol; this is version 1")]
    Version {
        /// Which.
        version: u8,
    },
    /// Its list of targets has no entries.
    #[error("the peer's target list has no entries")]
    NoTargets,
    /// More bytes than it was lent room for.
    #[error("a message of {bytes} bytes where {lent} are lent")]
    Overrun {
        /// How many it claims.
        bytes: u32,
        /// How many it was lent.
        lent: u32,
    },
    /// More messages than it was allowed.
    #[error("more messages than the {allowed} that were allowed")]
    TooManyMessages {
        /// How many it was.
        allowed: u16,
    },
    /// A message whose data and immediate do not agree.
    #[error("{bytes} bytes came with the message {message:?}")]
    Length {
        /// The message.
        message: Message,
        /// What came.
        bytes: u32,
    },
    /// A target that is empty, or one more than the list has.
    #[error("a target of {length} bytes while {waiting} wait")]
    Target {
        /// Its length.
        length: u32,
        /// How many wait.
        waiting: usize,
    },
    /// An immediate that means nothing.
    #[error("no message is {immediate:#010x}")]
    Unknown {
        /// The immediate.
        immediate: u32,
    },
    /// A completion without an immediate.
    #[error("something came without an immediate")]
    NoImmediate,
}

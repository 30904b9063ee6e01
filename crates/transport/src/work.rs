//! Work requests as a program posts them: what to send, from where, to where. Borrowed, because posting copies them
//! into the queue.

use crate::attributes::AddressVector;
use crate::kind::{Kind, State};
use alloc::vec::Vec;
use wire::access::{Access, Bind};
use wire::{Feth, Key, Placement, Qkey, Qpn, Selectivity, Srqn};

/// The longest message a queue pair carries (IBA 9.3.3.1: 2^31 bytes).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// A piece of registered local memory. It lies in memory as C programs have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// First byte.
    pub address: u64,
    /// How many bytes. Zero means zero here; the C interface's old "zero is 2^31" rule is its own business.
    pub length: u32,
    /// The L_Key.
    pub key: Key,
}

/// What one send-queue work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// SEND, consuming a receive at the peer.
    Send {
        /// Delivered beside the data.
        immediate: Option<u32>,
    },
    /// SEND that invalidates a key of the peer's.
    SendInvalidate {
        /// The peer's R_Key.
        key: Key,
    },
    /// RDMA WRITE.
    Write {
        /// Where.
        remote: Remote,
        /// If present, a receive is consumed at the peer and completes with this value.
        immediate: Option<u32>,
    },
    /// RDMA READ into the local pieces.
    Read {
        /// From where.
        remote: Remote,
    },
    /// 64-bit compare and swap; the original value lands in the local piece.
    CompareSwap {
        /// Where.
        remote: Remote,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// 64-bit fetch and add; the original value lands in the local piece.
    FetchAdd {
        /// Where.
        remote: Remote,
        /// The addend.
        add: u64,
    },
    /// Writes eight bytes as one.
    AtomicWrite {
        /// Where.
        remote: Remote,
    },
    /// Asks that earlier writes become visible or persistent.
    Flush {
        /// First byte and key.
        remote: Remote,
        /// How many bytes, unless the whole region.
        length: u32,
        /// How far the data must have travelled.
        placement: Placement,
        /// Range or region.
        selectivity: Selectivity,
    },
    /// Invalidates a local key.
    LocalInvalidate {
        /// The key.
        key: Key,
    },
    /// Binds a memory window.
    BindWindow(Bind),
}

impl Default for Operation {
    fn default() -> Operation {
        Operation::Send { immediate: None }
    }
}

/// A place in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// The address.
    pub address: u64,
    /// The R_Key.
    pub key: Key,
}

impl Operation {
    /// The name programs know it by.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Send { immediate: None } => "SEND",
            Operation::Send { .. } => "SEND_WITH_IMM",
            Operation::SendInvalidate { .. } => "SEND_WITH_INV",
            Operation::Write { immediate: None, .. } => "RDMA_WRITE",
            Operation::Write { .. } => "RDMA_WRITE_WITH_IMM",
            Operation::Read { .. } => "RDMA_READ",
            Operation::CompareSwap { .. } => "ATOMIC_CMP_AND_SWP",
            Operation::FetchAdd { .. } => "ATOMIC_FETCH_AND_ADD",
            Operation::AtomicWrite { .. } => "ATOMIC_WRITE",
            Operation::Flush { .. } => "FLUSH",
            Operation::LocalInvalidate { .. } => "LOCAL_INV",
            Operation::BindWindow(_) => "BIND_MW",
        }
    }

    /// Whether the peer answers it with data or a value rather than a plain acknowledgement, so that it occupies one of
    /// `max_rd_atomic`. FLUSH and ATOMIC WRITE count too: they are answered by a READ response.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(
            self,
            Operation::Read { .. }
                | Operation::CompareSwap { .. }
                | Operation::FetchAdd { .. }
                | Operation::AtomicWrite { .. }
                | Operation::Flush { .. }
        )
    }

    /// Whether queue pairs of this kind have it.
    pub(crate) fn is_of(&self, kind: Kind) -> bool {
        match self {
            Operation::Send { immediate } => immediate.is_none() || kind != Kind::RawPacket,
            Operation::Write { .. } | Operation::LocalInvalidate { .. } | Operation::BindWindow(_) => {
                kind.is_connected()
            }
            _ => kind.is_reliable(),
        }
    }

    /// Whether it never leaves the NIC.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Operation::LocalInvalidate { .. } | Operation::BindWindow(_))
    }

    /// The right its local pieces must grant.
    pub(crate) fn local_access(&self) -> Access {
        match self {
            Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => Access::LOCAL_WRITE,
            _ => Access::empty(),
        }
    }

    pub(crate) fn feth(&self) -> Option<Feth> {
        match *self {
            Operation::Flush { placement, selectivity, .. } => Some(Feth { placement, selectivity }),
            _ => None,
        }
    }
}

bitflags::bitflags! {
    /// Options of one send-queue work request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u8 {
        /// Wait for earlier READs and atomics of this queue pair.
        const FENCE = 1;
        /// Complete with an entry in the completion queue.
        const SIGNALED = 1 << 1;
        /// Mark the message so that the peer's completion queue wakes a waiter that asked for solicited events only.
        const SOLICITED = 1 << 2;
        /// Raw packets: fill in the checksums of IPv4, TCP and UDP.
        const CHECKSUMS = 1 << 3;
    }
}

/// Where the bytes of a work request come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// Registered memory, gathered when it is sent (or scattered into, for READ and atomics).
    Gather(&'a [Sge]),
    /// Copied now, at posting; the program may reuse its buffer at once.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// How many bytes it is.
    #[inline]
    pub fn length(&self) -> u64 {
        match self {
            // Mostly it lies in one place.
            Data::Gather([sge]) => sge.length.into(),
            Data::Gather(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Data::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramTarget {
    /// The address handle's contents.
    pub av: AddressVector,
    /// The queue pair there.
    pub qpn: Qpn,
    /// Its Q_Key; a privileged value (top bit set) means the sender's own Q_Key.
    pub qkey: Qkey,
}

/// One work request for the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// Options.
    pub flags: SendFlags,
    /// The bytes.
    pub data: Data<'a>,
    /// UD only: where to.
    pub target: Option<DatagramTarget>,
    /// XRC only: the peer's shared receive queue.
    pub xrc_srq: Option<Srqn>,
}

/// A receive that has been posted, or taken off its queue to be filled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReceiveWork {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: Vec<Sge>,
}

impl ReceiveWork {
    /// Becomes a copy of `request`, in the memory it already has.
    pub fn fill(&mut self, request: &ReceiveRequest<'_>) {
        self.wr_id = request.wr_id;
        self.sges.clear();
        self.sges.extend_from_slice(request.sges);
    }

    /// How many bytes it takes.
    pub fn space(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// One work request for a receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: &'a [Sge],
}

/// Why a work request was not taken. Nothing of it was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair's state takes no such work.
    #[error("a queue pair in state {state} takes no {queue} work")]
    WrongState {
        /// The state.
        state: State,
        /// "send" or "receive".
        queue: &'static str,
    },
    /// All slots hold work that has not completed.
    #[error("the {queue} queue is full: {capacity} work requests are outstanding")]
    QueueFull {
        /// "send" or "receive".
        queue: &'static str,
        /// How many it holds.
        capacity: u32,
    },
    /// More pieces than the queue was created for.
    #[error("{given} scatter/gather entries where the queue takes {max}")]
    TooManySges {
        /// How many were given.
        given: usize,
        /// How many fit.
        max: u32,
    },
    /// More inline bytes than the queue was created for.
    #[error("{given} bytes of inline data where the queue takes {max}")]
    InlineTooLong {
        /// How many were given.
        given: usize,
        /// How many fit.
        max: u32,
    },
    /// Inline data makes no sense for an operation that writes into local memory.
    #[error("{operation} cannot take inline data")]
    InlineNotAllowed {
        /// Its name.
        operation: &'static str,
    },
    /// Not even an Ethernet header.
    #[error("a frame of {length} bytes is shorter than an Ethernet header")]
    FrameTooShort {
        /// Its length.
        length: u64,
    },
    /// Longer than the specification's 2^31 bytes.
    #[error("a message of {length} bytes is longer than 2^31")]
    MessageTooLong {
        /// Its length.
        length: u64,
    },
    /// The transport has no such operation.
    #[error("a {transport} queue pair cannot {operation}")]
    NotSupported {
        /// The transport's name.
        transport: &'static str,
        /// The operation's name.
        operation: &'static str,
    },
    /// A datagram without address handle, or one on a connected queue pair.
    #[error("a UD send needs an address handle, and only a UD send takes one")]
    Target,
    /// An XRC send without the peer's shared receive queue, or one elsewhere.
    #[error("an XRC send needs the peer's shared receive queue number, and only an XRC send takes one")]
    XrcTarget,
    /// Receives of this queue pair come from a shared receive queue.
    #[error("receives for this queue pair are posted to its shared receive queue")]
    UsesSrq,
    /// A shared receive queue or queue pair kind with no receive queue.
    #[error("this queue pair has no receive queue")]
    NoReceiveQueue,
    /// Tags for a shared receive queue that matches none.
    #[error("this shared receive queue matches no tags")]
    NoTags,
    /// The card that the device is like does not do it.
    #[error(transparent)]
    Device(#[from] crate::DeviceRefusal),
    /// A failure script lets the call fail.
    #[error(transparent)]
    Injected(#[from] crate::InjectedError),
}

impl PostError {
    /// The stable name: what traces say.
    pub fn name(&self) -> &'static str {
        match self {
            PostError::WrongState { .. } => "wrong_state",
            PostError::QueueFull { .. } => "queue_full",
            PostError::TooManySges { .. } => "too_many_sges",
            PostError::InlineTooLong { .. } => "inline_too_long",
            PostError::InlineNotAllowed { .. } => "inline_not_allowed",
            PostError::FrameTooShort { .. } => "frame_too_short",
            PostError::MessageTooLong { .. } => "message_too_long",
            PostError::NotSupported { .. } => "not_supported",
            PostError::Target => "target",
            PostError::XrcTarget => "xrc_target",
            PostError::UsesSrq => "uses_srq",
            PostError::NoReceiveQueue => "no_receive_queue",
            PostError::NoTags => "no_tags",
            PostError::Device(_) => "refused_by_device",
            PostError::Injected(_) => "injected",
        }
    }
}

//! Completions: how a work request ended, with the reason a person can act on beside the code a program switches on.

use core::fmt;
use trace::Failure;
use wire::{Key, Qpn, Srqn};

wire::named! {
    /// How a work request ended, with the numbers of `ibv_wc_status`.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    #[repr(u8)]
    pub enum Status {
        /// It did what it says.
        Success = 0: "IBV_WC_SUCCESS",
        /// A message was longer than the space for it.
        LocalLength = 1: "IBV_WC_LOC_LEN_ERR",
        /// The queue pair itself was not set up for this work.
        LocalQpOperation = 2: "IBV_WC_LOC_QP_OP_ERR",
        /// A local piece may not be touched.
        LocalProtection = 4: "IBV_WC_LOC_PROT_ERR",
        /// The queue pair was already in error; the work was not attempted, or not finished.
        WorkRequestFlushed = 5: "IBV_WC_WR_FLUSH_ERR",
        /// A memory window could not be bound.
        MemoryWindowBind = 6: "IBV_WC_MW_BIND_ERR",
        /// The peer answered something that cannot be right.
        BadResponse = 7: "IBV_WC_BAD_RESP_ERR",
        /// A local access failed while a peer's message was placed.
        LocalAccess = 8: "IBV_WC_LOC_ACCESS_ERR",
        /// The peer found the request malformed or too long.
        RemoteInvalidRequest = 9: "IBV_WC_REM_INV_REQ_ERR",
        /// The peer's memory may not be touched that way.
        RemoteAccess = 10: "IBV_WC_REM_ACCESS_ERR",
        /// The peer could not carry out the request.
        RemoteOperation = 11: "IBV_WC_REM_OP_ERR",
        /// The peer did not answer, however often it was asked.
        RetryExceeded = 12: "IBV_WC_RETRY_EXC_ERR",
        /// The peer had no receive posted, however long we waited.
        RnrRetryExceeded = 13: "IBV_WC_RNR_RETRY_EXC_ERR",
        /// The peer cannot take the request now (XRC: no such shared receive queue).
        RemoteAborted = 16: "IBV_WC_REM_ABORT_ERR",
        /// Something that should not happen did.
        General = 21: "IBV_WC_GENERAL_ERR",
        /// A tagged buffer was to be deleted that is not there any more.
        TagOperation = 22: "IBV_WC_TM_ERR",
        /// A message was matched whose data was not read: software goes on with it.
        RendezvousIncomplete = 23: "IBV_WC_TM_RNDV_INCOMPLETE",
    }
}

impl Status {
    /// The status of this number.
    pub fn of_code(code: u8) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.code() == code)
    }

    /// The number C programs know.
    pub fn code(self) -> u8 {
        self as u8
    }
}

wire::named! {
    /// What kind of work completed.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum CompletionKind {
        /// SEND, with or without immediate or invalidate.
        Send: "SEND",
        /// RDMA WRITE.
        Write: "RDMA_WRITE",
        /// RDMA READ.
        Read: "RDMA_READ",
        /// Compare and swap.
        CompareSwap: "COMP_SWAP",
        /// Fetch and add.
        FetchAdd: "FETCH_ADD",
        /// ATOMIC WRITE.
        AtomicWrite: "ATOMIC_WRITE",
        /// FLUSH.
        Flush: "FLUSH",
        /// Memory window bind.
        Bind: "BIND_MW",
        /// Local invalidate.
        LocalInvalidate: "LOCAL_INV",
        /// A receive, filled by a SEND.
        Receive: "RECV",
        /// A receive, consumed by a WRITE with immediate.
        ReceiveWriteImmediate: "RECV_RDMA_WITH_IMM",
        /// A tagged buffer was added.
        TagAdd: "TM_ADD",
        /// A tagged buffer was deleted.
        TagDelete: "TM_DEL",
        /// The counts of messages that matched nothing were compared.
        TagSynchronize: "TM_SYNC",
        /// A receive, filled by a message whose tag matched nothing.
        TagUnexpected: "TM_RECV",
        /// A receive, filled by a message that is not to be matched.
        TagUntagged: "TM_NO_TAG",
        /// A tagged buffer was matched; its data is on the way.
        TagMatch: "TM_RECV (match)",
        /// A tagged buffer that was matched before has its data.
        TagData: "TM_RECV (data)",
        /// A tagged buffer was matched and has its data.
        TagMessage: "TM_RECV (match, data)",
    }
}

impl CompletionKind {
    /// Whether the completion is the last of a tagged buffer.
    pub fn ends_tagged_buffer(self) -> bool {
        matches!(self, CompletionKind::TagData | CompletionKind::TagMessage)
    }
}

/// Which queue the work had been posted to, and so which completion queue hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The queue pair's own receive queue.
    Receive,
    /// A shared receive queue. For XRC the completion goes to that queue's completion queue.
    Shared(Srqn),
}

/// What a completion has to say beside its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Why the work failed.
    Failed(Failure),
    /// No error: the message that matched a tagged buffer has this header.
    Matched(TagHeader),
    /// No error: software is to say how many messages that matched nothing it has handled.
    OutOfStep,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Failed(failure) => failure.fmt(f),
            Cause::Matched(header) => write!(f, "the message has tag {:#x}", header.tag),
            Cause::OutOfStep => f.write_str("messages that matched no tag have not been handled"),
        }
    }
}

/// One entry for a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The work request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub kind: CompletionKind,
    /// Which queue it had been posted to.
    pub queue: Queue,
    /// The local queue pair.
    pub qpn: Qpn,
    /// Bytes moved: received (UD: with the 40 bytes of GRH), read, or sent.
    pub bytes: u32,
    /// The immediate that came with a received message.
    pub immediate: Option<u32>,
    /// The key a received SEND invalidated.
    pub invalidated: Option<Key>,
    /// UD: who sent it.
    pub src_qpn: Option<Qpn>,
    /// UD: the first 40 bytes of the buffer hold the GRH.
    pub grh: bool,
    /// UD: it came over IPv4, so the GRH is twenty bytes of nothing and an IPv4 header.
    pub over_ipv4: bool,
    /// Wakes a waiter that asked for solicited events only (errors always do).
    pub solicited: bool,
    /// Raw packets: what the device found out about the frame.
    pub frame: FrameNotes,
    /// For errors: why. For tag matching: what it has to say.
    pub cause: Option<Cause>,
    /// When it was told, in nanoseconds of its driver's clock, where a driver writes that down; else 0.
    pub told_at: u64,
}

impl Completion {
    /// That work of a queue has ended, and how; nothing else is known of it.
    #[inline]
    pub const fn of(wr_id: u64, kind: CompletionKind, status: Status, queue: Queue, qpn: Qpn) -> Completion {
        Completion {
            wr_id,
            status,
            kind,
            queue,
            qpn,
            bytes: 0,
            immediate: None,
            invalidated: None,
            src_qpn: None,
            grh: false,
            over_ipv4: false,
            solicited: false,
            frame: FrameNotes { flow_tag: 0, vlan: 0, checksums_are_right: false },
            cause: None,
            told_at: 0,
        }
    }

    /// Why the work failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        match self.cause {
            Some(Cause::Failed(failure)) => Some(failure),
            _ => None,
        }
    }
}

/// What a device says of a frame beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameNotes {
    /// The tag of the flow that took it.
    pub flow_tag: u32,
    /// The VLAN tag that was taken out of it.
    pub vlan: u16,
    /// Its checksums are right.
    pub checksums_are_right: bool,
}

// Completions are copied for every message: what explains the few that fail must not make all of them larger.
const _: () = assert!(size_of::<Cause>() <= 56 && size_of::<Completion>() <= 128);

/// What a tag matching header says of its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_tmh")]
pub struct TagHeader {
    /// The tag.
    pub tag: u64,
    /// Something of the sender's, for the receiver.
    pub app_ctx: u32,
}

/// Something that happened to a queue pair and that its program hears of beside its completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AsyncEvent {
    /// The first packet arrived while the queue pair was ready to receive only.
    CommunicationEstablished,
    /// All work begun before the move to SQD has ended.
    SendQueueDrained,
    /// In error, and no more receives of the shared receive queue will be used.
    LastWqeReached,
    /// The queue pair failed.
    QpFatal,
    /// The peer's request could not be understood.
    QpRequestError,
    /// The peer's request reached for memory it may not touch.
    QpAccessError,
    /// It goes by its alternate path now.
    PathMigrated,
    /// It could not go by its alternate path.
    PathMigrationFailed,
}

impl AsyncEvent {
    /// The name C programs know.
    pub fn name(self) -> &'static str {
        match self {
            AsyncEvent::CommunicationEstablished => "IBV_EVENT_COMM_EST",
            AsyncEvent::SendQueueDrained => "IBV_EVENT_SQ_DRAINED",
            AsyncEvent::LastWqeReached => "IBV_EVENT_QP_LAST_WQE_REACHED",
            AsyncEvent::QpFatal => "IBV_EVENT_QP_FATAL",
            AsyncEvent::QpRequestError => "IBV_EVENT_QP_REQ_ERR",
            AsyncEvent::QpAccessError => "IBV_EVENT_QP_ACCESS_ERR",
            AsyncEvent::PathMigrated => "IBV_EVENT_PATH_MIG",
            AsyncEvent::PathMigrationFailed => "IBV_EVENT_PATH_MIG_ERR",
        }
    }
}

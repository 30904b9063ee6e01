//! Why something happened: drops, refusals, retries, state changes, window changes. These are the words that end up
//! in front of a person with a broken program, so each reads as a sentence. They carry no behaviour.

use core::fmt;

use crate::vocabulary::vocabulary;

vocabulary! {
    /// Why a packet was dropped.
    ///
    /// Silence on the wire is often what the specification demands (IBTA volume 1, section 9.6: packet validation);
    /// silence in the trace never is.
    pub enum DropReason {
        // The packet itself.
        Malformed = "malformed": "the bytes do not parse as a RoCEv2 packet",
        BadIcrc = "bad_icrc": "the invariant CRC does not match the packet",
        BadOpcodeForTransport = "bad_opcode_for_transport": "the opcode does not belong to this queue pair's transport",
        BadLength = "bad_length": "the payload length does not fit the opcode and the path MTU",
        TooLong = "too_long": "the message is longer than the receive buffer or the largest message",
        // Where it was going.
        UnknownQp = "unknown_qp": "no queue pair has the destination number",
        WrongState = "wrong_state": "the queue pair is not in a state that receives this packet",
        WrongDestination = "wrong_destination": "the destination address is not one of the queue pair's",
        WrongSource = "wrong_source": "the source address is not the connected peer's",
        PkeyMismatch = "pkey_mismatch": "the partition key does not match",
        QkeyMismatch = "qkey_mismatch": "the queue key does not match",
        UnknownXrcSrq = "unknown_xrc_srq": "no shared receive queue of this XRC domain has the number in the packet",
        // Requests.
        OutOfOrder = "out_of_order": "a request is missing before this one",
        OutOfWindow = "out_of_window": "the sequence number is neither expected nor a duplicate",
        Duplicate = "duplicate": "the request was executed before",
        BadSequence = "bad_sequence": "the opcode cannot follow the one before it",
        NoReceive = "no_receive": "no receive work request is posted",
        AfterNak = "after_nak": "the responder waits for the request it refused to come again",
        AccessRefused = "access_refused": "the memory it names may not be touched that way",
        MessageAbandoned = "message_abandoned": "an earlier packet of the message was lost, so the rest is discarded",
        NoReplaySlot = "no_replay_slot": "the duplicate read or atomic is older than the results kept for replay",
        // Responses.
        StaleAck = "stale_ack": "the acknowledgement is older than one already seen",
        GhostAck = "ghost_ack": "the acknowledgement answers nothing outstanding",
        UnexpectedResponse = "unexpected_response": "the response does not fit the request it answers",
        AfterRetry = "after_retry": "the response belongs to a request that is being sent again",
        // Local limits and injected faults.
        Overflow = "overflow": "the receiver's buffer is full",
        NoMemory = "no_memory": "a local limit on queued responses is reached",
        RandomLoss = "random_loss": "lost by an injected fault",
        Partitioned = "partitioned": "the network is partitioned between the two hosts",
        NoRoute = "no_route": "no host has the destination address",
        QueuePairGone = "queue_pair_gone": "the queue pair was destroyed or reset while the packet was under way",
    }
}

/// The rights an access to registered memory needed, with the bit values of `ibv_access_flags`. Empty is what needs no
/// right beyond the key: reading one's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccessFlags(pub u32);

impl AccessFlags {
    const NAMES: [(u32, &'static str); 11] = [
        (1, "LOCAL_WRITE"),
        (1 << 1, "REMOTE_WRITE"),
        (1 << 2, "REMOTE_READ"),
        (1 << 3, "REMOTE_ATOMIC"),
        (1 << 4, "MW_BIND"),
        (1 << 5, "ZERO_BASED"),
        (1 << 6, "ON_DEMAND"),
        (1 << 7, "HUGETLB"),
        (1 << 8, "FLUSH_GLOBAL"),
        (1 << 9, "FLUSH_PERSISTENT"),
        (1 << 20, "RELAXED_ORDERING"),
    ];
}

/// The names joined by `|`, bits without a name as one hexadecimal number, `LOCAL_READ` for none.
impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("LOCAL_READ");
        }
        let mut unnamed = self.0;
        let mut separator = "";
        for (bit, name) in Self::NAMES {
            if self.0 & bit != 0 {
                write!(f, "{separator}{name}")?;
                separator = "|";
                unnamed &= !bit;
            }
        }
        if unnamed != 0 {
            write!(f, "{separator}{unnamed:#x}")?;
        }
        Ok(())
    }
}

/// Why registered memory refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCause {
    /// No region or window has this key.
    UnknownKey,
    /// The region exists, in another protection domain than the queue pair's.
    WrongProtectionDomain,
    /// The window is bound to another queue pair.
    WrongQueuePair,
    /// The region does not grant this kind of access.
    NotPermitted,
    /// The queue pair does not grant this kind of access to its peer.
    QueuePairForbids,
    /// The range reaches outside the region.
    OutOfBounds {
        /// First address of the region.
        start: u64,
        /// Length of the region in bytes.
        length: u64,
    },
    /// An 8-byte access is not aligned to 8 bytes.
    Misaligned,
    /// The key was valid and has been invalidated.
    Invalidated,
    /// The window exists and is bound to nothing.
    WindowUnbound,
    /// A region with windows bound to it cannot be invalidated.
    WindowsBound,
    /// The key names something that cannot be used this way.
    WrongKind,
}

impl RefusalCause {
    /// The stable name: what JSON lines and counters say.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownKey => "unknown_key",
            Self::WrongProtectionDomain => "wrong_protection_domain",
            Self::WrongQueuePair => "wrong_queue_pair",
            Self::NotPermitted => "not_permitted",
            Self::QueuePairForbids => "queue_pair_forbids",
            Self::OutOfBounds { .. } => "out_of_bounds",
            Self::Misaligned => "misaligned",
            Self::Invalidated => "invalidated",
            Self::WindowUnbound => "window_unbound",
            Self::WindowsBound => "windows_bound",
            Self::WrongKind => "wrong_kind",
        }
    }
}

impl fmt::Display for RefusalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownKey => "no region or window has this key",
            Self::WrongProtectionDomain => "the region belongs to another protection domain",
            Self::WrongQueuePair => "the window is bound to another queue pair",
            Self::NotPermitted => "the region does not grant this access",
            Self::QueuePairForbids => "the queue pair does not grant this access to its peer",
            Self::OutOfBounds { start, length } => {
                let end = start.saturating_add(*length);
                return write!(f, "the range reaches outside the region {start:#x}..{end:#x}");
            }
            Self::Misaligned => "the address is not aligned to 8 bytes",
            Self::Invalidated => "the key has been invalidated",
            Self::WindowUnbound => "the window is not bound to a region",
            Self::WindowsBound => "windows are still bound to the region",
            Self::WrongKind => "the key names something that cannot be used this way",
        })
    }
}

vocabulary! {
    /// Why the requester sends again.
    pub enum RetryCause {
        Timeout = "timeout": "no acknowledgement arrived in time",
        SequenceNak = "sequence_nak": "the responder reported a sequence error",
        ImpliedNak = "implied_nak": "a later response showed that an earlier one was lost",
        TailLoss = "tail_loss": "silence for several round trips",
        RnrNak = "rnr_nak": "the responder had no receive posted",
    }
}

vocabulary! {
    /// What a deadline is for.
    pub enum Timer {
        Ack = "ack": "acknowledgement",
        Rnr = "rnr": "receiver not ready",
        AckDelay = "ack_delay": "delayed acknowledgement",
        Pacing = "pacing": "pacing",
        Congestion = "congestion": "congestion recovery",
        Cm = "cm": "connection manager retry",
        TimeWait = "time_wait": "time wait",
    }
}

/// What made a queue pair change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateCause {
    /// The program asked for it.
    Modify,
    /// A work request of the send queue failed with this status.
    SendFailed {
        /// The request that failed.
        wr_id: u64,
        /// Its completion status.
        status: &'static str,
    },
    /// A work request of the receive queue failed with this status.
    ReceiveFailed {
        /// The request that failed.
        wr_id: u64,
        /// Its completion status.
        status: &'static str,
    },
    /// The peer sent something that the specification answers with an error of this queue pair.
    PeerRequest(&'static str),
    /// The peer or the connection manager disconnected.
    Disconnected,
    /// The send queue has drained after a move to SQD was asked for.
    Drained,
    /// Something of this device, other than a work request, failed.
    Local(&'static str),
}

impl StateCause {
    /// The stable name: what JSON lines and counters say.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Modify => "modify",
            Self::SendFailed { .. } => "send_failed",
            Self::ReceiveFailed { .. } => "receive_failed",
            Self::PeerRequest(_) => "peer_request",
            Self::Disconnected => "disconnected",
            Self::Drained => "drained",
            Self::Local(_) => "local",
        }
    }
}

impl fmt::Display for StateCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Modify => f.write_str("the program asked for it"),
            Self::SendFailed { wr_id, status } => write!(f, "send work request {wr_id} failed: {status}"),
            Self::ReceiveFailed { wr_id, status } => write!(f, "receive work request {wr_id} failed: {status}"),
            Self::PeerRequest(what) => write!(f, "the peer's request was in error: {what}"),
            Self::Disconnected => f.write_str("the connection ended"),
            Self::Drained => f.write_str("the send queue has drained"),
            Self::Local(what) => write!(f, "local error: {what}"),
        }
    }
}

vocabulary! {
    /// What made a congestion window change.
    pub enum WindowCause {
        Acknowledged = "acknowledged": "data was acknowledged",
        Loss = "loss": "a packet was lost",
        Timeout = "timeout": "an acknowledgement timed out",
        Marked = "marked": "the network marked packets as congested",
        Delay = "delay": "the round trip grew",
        Idle = "idle": "the path was idle",
    }
}

vocabulary! {
    /// The work queue an event is about.
    pub enum Queue {
        Send = "send": "send queue",
        Receive = "receive": "receive queue",
        SharedReceive = "shared_receive": "shared receive queue",
    }
}

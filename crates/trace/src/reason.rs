//! Why something happened: drops, retries, state changes, window changes. These are the words that end up
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
        BadFcs = "bad_fcs": "the frame check sequence does not match the Ethernet frame",
        BadOpcodeForTransport = "bad_opcode_for_transport": "the opcode does not belong to this queue pair's transport",
        BadLength = "bad_length": "the payload length does not fit the opcode and the path MTU",
        TooLong = "too_long": "the message is longer than the receive buffer or the largest message",
        // Where it was going.
        UnknownQp = "unknown_qp": "no queue pair has the destination number",
        WrongState = "wrong_state": "the queue pair is not in a state that receives this packet",
        WrongDestination = "wrong_destination": "the destination address is not one of the queue pair's",
        WrongSource = "wrong_source": "the source address is not the connected peer's",
        WrongLink = "wrong_link": "it came by another link than the one to the queue pair's peer",
        WrongSocket = "wrong_socket": "it came from a socket of this host that is not its peer's user's",
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
        Overtaken = "overtaken": "a later packet of the unreliable connection has come before it",
        MessageAbandoned = "message_abandoned": "an earlier packet of the message was lost, so the rest is discarded",
        NoReplaySlot = "no_replay_slot": "the duplicate read or atomic is older than the results kept for replay",
        // Responses.
        StaleAck = "stale_ack": "the acknowledgement is older than one already seen",
        GhostAck = "ghost_ack": "the acknowledgement answers nothing outstanding",
        UnexpectedResponse = "unexpected_response": "the response does not fit the request it answers",
        AfterRetry = "after_retry": "the response belongs to a request that is being sent again",
        // Congestion notifications.
        CnpTooSoon = "cnp_too_soon": "a congestion notification came sooner after the last than any peer sends one",
        CnpUnwanted = "cnp_unwanted": "the NIC was told not to slow down for congestion notifications",
        // Local limits and injected faults.
        Overflow = "overflow": "the receiver's buffer is full",
        NoMemory = "no_memory": "a local limit on queued responses is reached",
        RandomLoss = "random_loss": "lost by an injected fault",
        Partitioned = "partitioned": "the network is partitioned between the two hosts",
        NoRoute = "no_route": "no host has the destination address",
        PortDown = "port_down": "the port is down, or its device has failed",
        QueuePairGone = "queue_pair_gone": "the queue pair was destroyed or reset while the packet was under way",
        SystemRefused = "system_refused": "the operating system refused to carry it",
        Unproven = "unproven": "the IPv4 identification that its invariant CRC needs was not proven in time",
        Untrusted = "untrusted": "it came from another user's process, which may not hand packets to this one",
        PeerGone = "peer_gone": "the process it was for has gone",
        // Shared memory.
        BrokenRing = "broken_ring": "the ring of shared memory makes no sense, so the rest of it is not read",
        NamedPayload = "named_payload": "its payload is in memory of a GPU that this process cannot open; the sender sends it again",
        RingRefused = "ring_refused": "a ring of shared memory that another process offered was refused",
        BadRecord = "bad_record": "a record of a dead process's connections cannot be read",
        // Multicast.
        NotMember = "not_member": "no queue pair of this process is in the multicast group",
        FlowDrops = "flow_drops": "a flow of the program has such frames dropped",
        OwnMulticast = "own_multicast": "the queue pair does not want what it sends to the group itself",
        // Sockets.
        ForgedSender = "forged_sender": "it names another sender than the socket and host that it came from",
        // Management, and connections.
        NotFromGsi = "not_from_gsi": "it is for queue pair 1 and does not come from one",
        NotManagement = "not_management": "the payload for queue pair 1 is no management datagram that can be read",
        CmUnknown = "cm_unknown": "no connection or request is known by what the message names",
        CmWrongTransaction = "cm_wrong_transaction": "the answer does not repeat the transaction id of what it answers",
        CmWrongState = "cm_wrong_state": "the connection is not in a state that the message could move",
        CmCrowded = "cm_crowded": "too many requests or answers wait already",
        CmTooSoon = "cm_too_soon": "the peer may listen in a moment, so its first refusal does not count",
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

vocabulary! {
    /// What was wrong with a peer's request, other than the memory it names.
    pub enum RequestFault {
        NotGranted = "not_granted": "the queue pair does not grant its peer this kind of access",
        FlushNotGranted = "flush_not_granted": "a FLUSH the queue pair does not grant",
        Misaligned = "misaligned": "an atomic at an address that is no multiple of 8",
        MemoryMisaligned = "memory_misaligned": "an atomic at memory that is not aligned to 8 bytes",
        TooManyReads = "too_many_reads": "more READs and atomics at once than max_dest_rd_atomic",
        PayloadLength = "payload_length": "the payload has not the length its place in the message demands",
        OutOfSequence = "out_of_sequence": "the packet does not continue the message before it, or does not begin one",
        ReadInMessage = "read_in_message": "a READ or atomic in the middle of a message",
        WriteLength = "write_length": "a WRITE is not as long as it said",
        MessageTooLong = "message_too_long": "a message longer than 2^31 bytes",
        AtomicWriteLength = "atomic_write_length": "an ATOMIC WRITE that is not of 8 bytes",
        ForeignXrcQueue = "foreign_xrc_queue": "the XRC shared receive queue is not one of this domain",
        SharedQueueGone = "shared_queue_gone": "the shared receive queue is gone",
        WriteWithoutReth = "write_without_reth": "a WRITE without RETH",
        FlushWithoutFeth = "flush_without_feth": "a FLUSH without FETH",
        HeadersMissing = "headers_missing": "the headers its opcode demands are missing",
    }
}

impl RequestFault {
    /// The fault that this sentence tells of.
    #[must_use]
    pub fn told_by(sentence: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| fault.sentence() == sentence)
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
    /// Who ended a connection.
    pub enum ConnectionEnd {
        Local = "local": "this program ended it",
        Peer = "peer": "the peer ended it",
        PeerDied = "peer_died": "the peer's process has ended",
        PeerLost = "peer_lost": "the peer does not have it any more",
        DeviceGone = "device_gone": "its device is gone",
    }
}

vocabulary! {
    /// What made a congestion window change.
    pub enum WindowCause {
        Acknowledged = "acknowledged": "data was acknowledged",
        Loss = "loss": "a packet was lost",
        Timeout = "timeout": "an acknowledgement timed out",
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

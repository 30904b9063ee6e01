//! What can happen, as values. An [`Event`] is built without touching the heap, so that a queue pair can emit one per
//! packet; how it looks as text is here too, how it looks as JSON is in `json_lines`.

use core::fmt;

use wire::access::{Access, RefusalCause};
use wire::{Headers, Key, Psn, Qpn};

use crate::call::Call;
use crate::failure::Failure;
use crate::reason::{ConnectionEnd, DropReason, Queue, RetryCause, StateCause, Timer, WindowCause};
use crate::text::Text;

/// One thing that happened, when, and to which queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since whatever the emitter counts from: the start of a simulation, the Unix epoch.
    pub at: u64,
    /// The local queue pair, where there is one.
    pub qpn: Option<Qpn>,
    /// What happened.
    pub kind: Kind,
}

impl Event {
    /// What follows if the call that this event tells of posts a work request, and it is accepted.
    #[must_use]
    #[inline]
    pub fn acceptance(&self) -> Option<Event> {
        let Kind::Called { call, .. } = &self.kind else { return None };
        let (wr_id, queue, opcode, bytes) = match call {
            Call::PostSend { wr_id, opcode, pieces, .. } => (*wr_id, Queue::Send, *opcode, pieces.bytes),
            Call::PostReceive { wr_id, srq: None, pieces, .. } => (*wr_id, Queue::Receive, "RECV", pieces.bytes),
            _ => return None,
        };
        Some(Event { kind: Kind::WorkPosted { wr_id, queue, opcode, bytes }, ..*self })
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A work request was accepted.
    WorkPosted {
        /// The program's name for it.
        wr_id: u64,
        /// Where it was posted.
        queue: Queue,
        /// What it asks for, as verbs spell it.
        opcode: &'static str,
        /// Sum of its scatter/gather lengths.
        bytes: u64,
    },
    /// A work request was refused when it was posted; it will not complete.
    PostRefused {
        /// The program's name for it.
        wr_id: u64,
        /// Where it was posted.
        queue: Queue,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A packet, or a train of them, was handed to the link.
    PacketSent {
        /// Headers of the first packet.
        headers: Headers,
        /// Payload bytes of all the packets together.
        payload_len: u32,
        /// How many packets; their PSNs follow each other.
        packets: u32,
        /// The work request it belongs to, for requests.
        wr_id: Option<u64>,
        /// Whether these sequence numbers were sent before.
        retransmit: bool,
    },
    /// A packet, or a train of them, arrived for this queue pair.
    PacketReceived {
        /// Headers of the first packet.
        headers: Headers,
        /// Payload bytes of all the packets together.
        payload_len: u32,
        /// How many packets; their PSNs follow each other.
        packets: u32,
    },
    /// A packet went no further.
    PacketDropped {
        /// Its headers, if it could be read that far.
        headers: Option<Headers>,
        /// Why.
        reason: DropReason,
    },
    /// A message of connection management went no further.
    CmMessageDropped {
        /// What kind of message.
        message: &'static str,
        /// The local communication identifier that it names; 0 if it names none.
        local_comm_id: u32,
        /// Why.
        reason: DropReason,
    },
    /// The queue pair moved from one state to another.
    StateChanged {
        /// State before.
        from: &'static str,
        /// State after.
        to: &'static str,
        /// What made it move.
        cause: StateCause,
    },
    /// A work request completed.
    Completed {
        /// The program's name for it.
        wr_id: u64,
        /// The queue it was posted to.
        queue: Queue,
        /// Completion status, as verbs spell it.
        status: &'static str,
        /// Completion opcode, as verbs spell it.
        opcode: &'static str,
        /// Bytes moved.
        bytes: u64,
        /// For errors: why.
        failure: Option<Failure>,
    },
    /// The program called something.
    Called {
        /// The thread that did, as the system numbers it; 0 where that is not known.
        thread: u32,
        /// What it called.
        call: Call,
    },
    /// A queue pair went into error and took all its work with it. Each completes with a flush of its own, later.
    Flushed {
        /// Work requests of its send queue.
        sends: u32,
        /// Receives that were its own.
        receives: u32,
    },
    /// A deadline was set, or moved.
    TimerSet {
        /// What for.
        timer: Timer,
        /// When, on the clock of [`Event::at`].
        deadline: u64,
    },
    /// A deadline passed.
    TimerFired {
        /// What for.
        timer: Timer,
        /// When it was due, on the clock of [`Event::at`].
        deadline: u64,
    },
    /// A deadline is no longer needed.
    TimerCleared {
        /// What for.
        timer: Timer,
    },
    /// The requester goes back.
    Retry {
        /// Why.
        cause: RetryCause,
        /// The first sequence number that is sent again.
        from: Psn,
        /// How many more times it may; `None` is forever.
        left: Option<u8>,
    },
    /// Registered memory refused an access.
    AccessRefused {
        /// The key that was shown.
        key: Key,
        /// First address wanted.
        address: u64,
        /// Bytes wanted.
        length: u64,
        /// The rights it needed.
        access: Access,
        /// Why not.
        cause: RefusalCause,
    },
    /// The responder refused a request.
    NakSent {
        /// The sequence number of the refused request.
        psn: Psn,
        /// The refusal, as the specification names it.
        code: &'static str,
    },
    /// The peer's responder refused a request.
    NakReceived {
        /// The sequence number of the refused request.
        psn: Psn,
        /// The refusal, as the specification names it.
        code: &'static str,
    },
    /// The congestion window towards a peer changed.
    WindowChanged {
        /// Packets allowed in flight before.
        from: u32,
        /// Packets allowed in flight now.
        to: u32,
        /// Why.
        cause: WindowCause,
    },
    /// A congestion notification changed the rate of a queue pair.
    RateChanged {
        /// Bits a second before.
        from: u64,
        /// Bits a second now.
        to: u64,
    },
    /// An affiliated or unaffiliated asynchronous event was raised for the program.
    AsyncEvent {
        /// Its name, as verbs spell it.
        name: &'static str,
    },
    /// A completion queue was full when work completed: the completion is lost, and the queue is dead. The queue pair is
    /// the one whose completion was lost.
    CqOverflowed {
        /// The queue.
        cq: u32,
        /// How many completions it holds.
        capacity: u32,
    },
    /// A connection of the connection manager moved from one state to another.
    CmTransition {
        /// The local communication identifier.
        local_comm_id: u32,
        /// State before.
        from: &'static str,
        /// State after.
        to: &'static str,
        /// The message that made it move; `None` for a call of the program or a timeout.
        message: Option<&'static str>,
    },
    /// A connection of the connection manager ended.
    ConnectionEnded {
        /// The local communication identifier.
        local_comm_id: u32,
        /// Who ended it.
        by: ConnectionEnd,
    },
    /// A failure script did something: what follows from it is no fault of the program.
    Injected {
        /// The name of the script.
        script: Text<48>,
        /// The line that says so.
        line: u32,
        /// What it did, in the words of scripts.
        what: Text<80>,
        /// It has ended; otherwise it happened, or has begun.
        ends: bool,
        /// There was nothing to do it to.
        missed: bool,
    },
    /// The posting thread moved the bytes of a WRITE or READ itself, into or out of the memory of the peer's process: no
    /// packet was sent.
    MovedDirectly {
        /// The program's name for the work request.
        wr_id: u64,
        /// What it asks for, as verbs spell it.
        opcode: &'static str,
        /// The peer's queue pair.
        dest_qpn: Qpn,
        /// The key of the peer's memory.
        key: Key,
        /// The first address there.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// How: `mapping`, `system_call`.
        by: &'static str,
    },
    /// The engine's thread slept and has woken.
    EngineWoke {
        /// What woke it.
        reason: &'static str,
    },
    /// The capture of packets ends before the program does.
    CaptureEnded {
        /// What the system said: no space, or a file that would be too large.
        errno: i32,
    },
}

impl Kind {
    /// The stable name: what JSON lines and counters say.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::WorkPosted { .. } => "work_posted",
            Self::PostRefused { .. } => "post_refused",
            Self::PacketSent { .. } => "packet_sent",
            Self::PacketReceived { .. } => "packet_received",
            Self::PacketDropped { .. } => "packet_dropped",
            Self::CmMessageDropped { .. } => "cm_message_dropped",
            Self::StateChanged { .. } => "state_changed",
            Self::Completed { .. } => "completed",
            Self::Called { .. } => "called",
            Self::Flushed { .. } => "flushed",
            Self::TimerSet { .. } => "timer_set",
            Self::TimerFired { .. } => "timer_fired",
            Self::TimerCleared { .. } => "timer_cleared",
            Self::Retry { .. } => "retry",
            Self::AccessRefused { .. } => "access_refused",
            Self::NakSent { .. } => "nak_sent",
            Self::NakReceived { .. } => "nak_received",
            Self::WindowChanged { .. } => "window_changed",
            Self::RateChanged { .. } => "rate_changed",
            Self::AsyncEvent { .. } => "async_event",
            Self::CqOverflowed { .. } => "cq_overflowed",
            Self::CmTransition { .. } => "cm_transition",
            Self::ConnectionEnded { .. } => "connection_ended",
            Self::Injected { .. } => "injected",
            Self::MovedDirectly { .. } => "moved_directly",
            Self::EngineWoke { .. } => "engine_woke",
            Self::CaptureEnded { .. } => "capture_ended",
        }
    }

    /// The one word that says why, where the kind has one: the reason of a drop, the cause of a retry, the status of a
    /// completion. [`Counters`](crate::Counters) count by it.
    #[must_use]
    pub const fn detail(&self) -> Option<&'static str> {
        Some(match self {
            Self::PostRefused { reason, .. } => reason,
            Self::PacketDropped { reason, .. } | Self::CmMessageDropped { reason, .. } => reason.name(),
            Self::StateChanged { to, .. } | Self::CmTransition { to, .. } => to,
            Self::Completed { status, .. } => status,
            Self::TimerSet { timer, .. } | Self::TimerFired { timer, .. } | Self::TimerCleared { timer } => {
                timer.name()
            }
            Self::Retry { cause, .. } => cause.name(),
            Self::AccessRefused { cause, .. } => cause.name(),
            Self::NakSent { code, .. } | Self::NakReceived { code, .. } => code,
            Self::WindowChanged { cause, .. } => cause.name(),
            Self::ConnectionEnded { by, .. } => by.name(),
            Self::AsyncEvent { name } => name,
            Self::WorkPosted { opcode, .. } | Self::MovedDirectly { opcode, .. } => opcode,
            Self::EngineWoke { reason } => reason,
            Self::Called { call, .. } => call.name(),
            Self::PacketSent { retransmit: true, .. } => "retransmit",
            Self::PacketSent { .. }
            | Self::PacketReceived { .. }
            | Self::Flushed { .. }
            | Self::RateChanged { .. }
            | Self::CqOverflowed { .. }
            | Self::Injected { .. }
            | Self::CaptureEnded { .. } => return None,
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: u64 = 1_000_000_000;
        write!(f, "{}.{:09} ", self.at / SECOND, self.at % SECOND)?;
        if let Some(qpn) = self.qpn {
            write!(f, "QP {qpn} ")?;
        }
        self.kind.fmt(f)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkPosted { wr_id, queue, opcode, bytes } => {
                write!(f, "work request {wr_id} posted to the {queue}: {opcode}, {bytes} bytes")
            }
            Self::PostRefused { wr_id, queue, reason } => {
                write!(f, "work request {wr_id} refused by the {queue}: {reason}")
            }
            Self::PacketSent { headers, payload_len, packets, wr_id, retransmit } => {
                f.write_str(if *retransmit { "sent again: " } else { "sent: " })?;
                packet(f, headers, *payload_len, *packets)?;
                match wr_id {
                    Some(wr_id) => write!(f, ", work request {wr_id}"),
                    None => Ok(()),
                }
            }
            Self::PacketReceived { headers, payload_len, packets } => {
                f.write_str("received: ")?;
                packet(f, headers, *payload_len, *packets)
            }
            Self::PacketDropped { headers: Some(headers), reason } => write!(f, "dropped: {headers}: {reason}"),
            Self::PacketDropped { headers: None, reason } => write!(f, "dropped a packet: {reason}"),
            Self::CmMessageDropped { message, local_comm_id, reason } => {
                write!(f, "dropped: {message} for connection {local_comm_id:#010x}: {reason}")
            }
            Self::StateChanged { from, to, cause } => write!(f, "{from} -> {to}: {cause}"),
            Self::Completed { wr_id, queue, status, opcode, bytes, failure } => {
                write!(f, "work request {wr_id} of the {queue} completed: {status}, {opcode}, {bytes} bytes")?;
                match failure {
                    Some(failure) => write!(f, ": {failure}"),
                    None => Ok(()),
                }
            }
            Self::Called { call, .. } => write!(f, "called: {call}"),
            Self::Flushed { sends, receives } => {
                write!(f, "flushed: {sends} work requests of the send queue, {receives} of the receive queue")
            }
            Self::TimerSet { timer, deadline } => write!(f, "{timer} timer set for {deadline} ns"),
            Self::TimerFired { timer, deadline } => write!(f, "{timer} timer fired, due at {deadline} ns"),
            Self::TimerCleared { timer } => write!(f, "{timer} timer cleared"),
            Self::Retry { cause, from, left } => {
                write!(f, "retry from PSN {from}: {cause}, ")?;
                match left {
                    Some(left) => write!(f, "{left} left"),
                    None => f.write_str("without limit"),
                }
            }
            Self::AccessRefused { key, address, length, access, cause } => {
                write!(f, "memory access refused: {access} of {length} bytes at {address:#x} with key {key}: {cause}")
            }
            Self::NakSent { psn, code } => write!(f, "NAK sent for PSN {psn}: {code}"),
            Self::NakReceived { psn, code } => write!(f, "NAK received for PSN {psn}: {code}"),
            Self::WindowChanged { from, to, cause } => write!(f, "window {from} -> {to} packets: {cause}"),
            Self::RateChanged { from, to } => {
                let mbps = |rate: &u64| rate / 1_000_000;
                write!(f, "rate {} -> {} Mbit/s: the peer told of congestion", mbps(from), mbps(to))
            }
            Self::AsyncEvent { name } => write!(f, "asynchronous event {name}"),
            Self::CqOverflowed { cq, capacity } => {
                write!(f, "completion queue {cq} overflowed: it holds {capacity} completions and all wait to be polled")
            }
            Self::Injected { script, line, what, ends, missed } => {
                write!(f, "injected by line {line} of {script}: {what}{}", if *ends { " ends" } else { "" })?;
                f.write_str(if *missed { ", and there was nothing to do it to" } else { "" })
            }
            Self::MovedDirectly { wr_id, opcode, dest_qpn, key, address, bytes, by } => {
                write!(f, "work request {wr_id} moved its bytes directly: {opcode}, {bytes} bytes at {address:#x} ")?;
                write!(f, "with key {key} of queue pair {dest_qpn}, by {by}")
            }
            Self::EngineWoke { reason } => write!(f, "the engine woke: {reason}"),
            Self::CaptureEnded { errno } => write!(f, "the capture ends: its file cannot be written (errno {errno})"),
            Self::ConnectionEnded { local_comm_id, by } => {
                write!(f, "connection {local_comm_id:#010x} ended: {by}")
            }
            Self::CmTransition { local_comm_id, from, to, message } => {
                write!(f, "connection {local_comm_id:#010x} {from} -> {to}")?;
                match message {
                    Some(message) => write!(f, " on {message}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// One packet or train: its headers as `wire` shows them, then what they do not say.
fn packet(f: &mut fmt::Formatter<'_>, headers: &Headers, payload_len: u32, packets: u32) -> fmt::Result {
    write!(f, "{headers}")?;
    if headers.bth.opcode.has_payload() {
        write!(f, " | {payload_len} B")?;
    }
    if packets > 1 {
        write!(f, " in {packets} packets to psn {}", headers.bth.psn.add(packets - 1))?;
    }
    Ok(())
}

//! What can break.

use core::fmt;

use crate::moment::Moment;
use crate::script::{Chance, Nanos};
use crate::words;

/// What a failure does.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// The port goes down; when the failure ends, up again.
    PortDown,
    /// The port goes up, whatever took it down.
    PortUp,
    /// The port goes down and up, again and again. A machine gives strikes of [`Action::PortDown`] for it.
    Flap {
        /// From one going down to the next; half of it the port is down.
        period: Nanos,
    },
    /// The port reports another speed, and no more leaves it.
    LinkSpeed {
        /// Bits per second.
        speed: u64,
    },
    /// An entry of the GID table goes.
    GidRemove {
        /// Which.
        index: u16,
    },
    /// An entry of the GID table becomes another.
    GidChange {
        /// Which.
        index: u16,
        /// The new one.
        gid: [u8; 16],
    },
    /// The port has another LID: `IBV_EVENT_LID_CHANGE`.
    LidChange {
        /// The new one.
        lid: u16,
    },
    /// `IBV_EVENT_SM_CHANGE`.
    SmChange,
    /// `IBV_EVENT_CLIENT_REREGISTER`.
    ClientReregister,
    /// An entry of the P_Key table becomes another: `IBV_EVENT_PKEY_CHANGE`.
    PkeyChange {
        /// Which.
        index: u16,
        /// The new one.
        pkey: u16,
    },
    /// The device is dead: `IBV_EVENT_DEVICE_FATAL`, and every call answers `EIO`; when the failure ends, another takes
    /// its place.
    DeviceFatal,
    /// The device is unplugged; when the failure ends, it is back.
    DeviceRemove,
    /// The queue pair goes to ERR: `IBV_EVENT_QP_FATAL`.
    QpError,
    /// The queue pair goes to SQE.
    QpSqe,
    /// A completion has another status.
    Complete {
        /// Its number in `ibv_wc_status`. It strikes work that can have this status.
        status: u32,
        /// The vendor's.
        vendor: u32,
    },
    /// A completion never comes.
    LoseCompletion,
    /// A completion comes later.
    DelayCompletion {
        /// By so much.
        by: Nanos,
    },
    /// The completion queue overruns: `IBV_EVENT_CQ_ERR`.
    CqOverrun,
    /// The shared receive queue fails: `IBV_EVENT_SRQ_ERR`.
    SrqError,
    /// `IBV_EVENT_PATH_MIG`.
    PathMigrated,
    /// `IBV_EVENT_PATH_MIG_ERR`.
    PathMigrationFailed,
    /// A call fails.
    Fail {
        /// With this errno.
        errno: i32,
    },
    /// A call takes longer.
    Delay {
        /// By so much.
        by: Nanos,
    },
    /// An event of the connection manager: in place of the one that says the opposite, if there is one.
    CmEvent {
        /// Its number in `rdma_cm_event_type`.
        event: u32,
        /// Its status.
        status: i32,
    },
    /// A connection request is rejected.
    Reject {
        /// The reason of the REJ.
        reason: u16,
    },
    /// A message of the connection manager is lost.
    LoseMessage {
        /// Its attribute identifier.
        message: u32,
    },
    /// Packets are lost.
    Loss {
        /// How many.
        chance: Chance,
    },
    /// Packets arrive later.
    Latency {
        /// By so much.
        by: Nanos,
        /// And up to so much more.
        jitter: Nanos,
    },
    /// No more than this passes.
    RateLimit {
        /// Bits per second.
        speed: u64,
    },
    /// Packets are overtaken.
    Reorder {
        /// How many.
        chance: Chance,
    },
    /// Packets pass twice.
    Duplicate {
        /// How many.
        chance: Chance,
    },
    /// Packets are damaged.
    Damage {
        /// How many.
        chance: Chance,
    },
    /// Nothing passes.
    BlackHole {
        /// Which way.
        direction: Direction,
    },
    /// The process stops, as by SIGSTOP; when the failure ends, it goes on.
    Stop,
    /// The process goes on.
    Continue,
    /// The process gets a signal.
    Kill {
        /// Its number.
        signal: i32,
    },
    /// The NIC gets a share of the time.
    Slow {
        /// Which share.
        share: Chance,
    },
    /// Copies from and to GPU memory fail.
    GpuCopyFails,
}

/// Which way packets go, as this process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To this process.
    In,
    /// From this process.
    Out,
    /// Both ways.
    Both,
}

impl Direction {
    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::Both => "both",
        }
    }
}

/// What an action takes hold of as it passes. Such an action strikes the moment itself that the machine was fed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// A call of the program.
    Call,
    /// A completion that is about to be delivered.
    Completion,
    /// An event of the connection manager with this number that is about to be delivered.
    ConnectionEvent(u32),
    /// A connection request that has arrived.
    ConnectionRequest,
    /// A message of the connection manager with this attribute identifier, sent or received.
    ConnectionMessage(u32),
    /// A copy from or to GPU memory.
    GpuCopy,
}

impl Action {
    /// What it takes hold of; none where it strikes a thing.
    #[must_use]
    pub fn hook(self) -> Option<Hook> {
        Some(match self {
            Action::Fail { .. } | Action::Delay { .. } => Hook::Call,
            Action::Complete { .. } | Action::LoseCompletion | Action::DelayCompletion { .. } => Hook::Completion,
            Action::CmEvent { event, .. } => Hook::ConnectionEvent(words::replaced_cm_event(event)?),
            Action::Reject { .. } => Hook::ConnectionRequest,
            Action::LoseMessage { message } => Hook::ConnectionMessage(message),
            Action::GpuCopyFails => Hook::GpuCopy,
            _ => return None,
        })
    }

    /// Whether this moment is what it takes hold of; a call is only if the script names it.
    #[must_use]
    pub fn takes_hold_of(self, moment: &Moment<'_>) -> bool {
        match (self.hook(), moment) {
            (Some(Hook::Completion), Moment::Completion { scene, is_receive, .. }) => match (self, scene.pair) {
                (Action::Complete { status, .. }, Some(pair)) => words::completes_with(status, *is_receive, pair.kind),
                _ => true,
            },
            (Some(Hook::ConnectionRequest), Moment::ConnectionRequest(_))
            | (Some(Hook::GpuCopy), Moment::GpuCopy(_)) => true,
            (Some(Hook::ConnectionEvent(wanted)), Moment::ConnectionEvent { event, .. }) => wanted == *event,
            (Some(Hook::ConnectionMessage(wanted)), Moment::ConnectionMessage { message, .. }) => wanted == *message,
            _ => false,
        }
    }

    /// Whether it goes on until something ends it: then `for` says how long, and a script's end restores.
    #[must_use]
    pub fn lasts(self) -> bool {
        self.is_of_network()
            || matches!(
                self,
                Action::PortDown
                    | Action::Flap { .. }
                    | Action::LinkSpeed { .. }
                    | Action::GidRemove { .. }
                    | Action::GidChange { .. }
                    | Action::LidChange { .. }
                    | Action::PkeyChange { .. }
                    | Action::DeviceFatal
                    | Action::DeviceRemove
                    | Action::Stop
                    | Action::Slow { .. }
            )
    }

    /// Whether it is about the network between hosts, of which `to` names the other end.
    #[must_use]
    pub fn is_of_network(self) -> bool {
        matches!(
            self,
            Action::Loss { .. }
                | Action::Latency { .. }
                | Action::RateLimit { .. }
                | Action::Reorder { .. }
                | Action::Duplicate { .. }
                | Action::Damage { .. }
                | Action::BlackHole { .. }
        )
    }

    /// Its word in scripts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::PortDown => "port-down",
            Action::PortUp => "port-up",
            Action::Flap { .. } => "flap",
            Action::LinkSpeed { .. } => "link-speed",
            Action::GidRemove { .. } => "gid-remove",
            Action::GidChange { .. } => "gid-change",
            Action::LidChange { .. } => "lid-change",
            Action::SmChange => "sm-change",
            Action::ClientReregister => "client-reregister",
            Action::PkeyChange { .. } => "pkey-change",
            Action::DeviceFatal => "device-fatal",
            Action::DeviceRemove => "device-remove",
            Action::QpError => "qp-error",
            Action::QpSqe => "qp-sqe",
            Action::Complete { .. } => "complete",
            Action::LoseCompletion => "lose-completion",
            Action::DelayCompletion { .. } => "delay-completion",
            Action::CqOverrun => "cq-overrun",
            Action::SrqError => "srq-error",
            Action::PathMigrated => "path-migrated",
            Action::PathMigrationFailed => "path-migration-failed",
            Action::Fail { .. } => "fail",
            Action::Delay { .. } => "delay",
            Action::CmEvent { .. } => "cm-event",
            Action::Reject { .. } => "reject",
            Action::LoseMessage { .. } => "lose-message",
            Action::Loss { .. } => "loss",
            Action::Latency { .. } => "latency",
            Action::RateLimit { .. } => "rate-limit",
            Action::Reorder { .. } => "reorder",
            Action::Duplicate { .. } => "duplicate",
            Action::Damage { .. } => "damage",
            Action::BlackHole { .. } => "black-hole",
            Action::Stop => "stop",
            Action::Continue => "continue",
            Action::Kill { .. } => "kill",
            Action::Slow { .. } => "slow",
            Action::GpuCopyFails => "gpu-copy-fails",
        }
    }
}

/// The word, with its values in brackets: `complete (status 12 RETRY_EXC_ERR, vendor error 129)`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let known = |table, number| words::name(table, number).unwrap_or("?");
        match *self {
            Action::Flap { period } => write!(f, " (every {})", Span(period)),
            Action::LinkSpeed { speed } | Action::RateLimit { speed } => write!(f, " ({speed} bit/s)"),
            Action::GidRemove { index } => write!(f, " (index {index})"),
            Action::GidChange { index, gid } => write!(f, " (index {index}, {})", core::net::Ipv6Addr::from(gid)),
            Action::LidChange { lid } => write!(f, " (LID {lid})"),
            Action::PkeyChange { index, pkey } => write!(f, " (index {index}, {pkey:#06x})"),
            Action::Complete { status, vendor } => {
                write!(f, " (status {status} {}, vendor error {vendor})", known(words::STATUSES, status))
            }
            Action::DelayCompletion { by } | Action::Delay { by } => write!(f, " (by {})", Span(by)),
            Action::Fail { errno } => write!(f, " ({})", known(words::ERRNOS, errno.cast_unsigned())),
            Action::CmEvent { event, status } => write!(f, " ({}, status {status})", known(words::CM_EVENTS, event)),
            Action::Reject { reason } => write!(f, " (reason {reason})"),
            Action::LoseMessage { message } => write!(f, " ({})", known(words::CM_MESSAGES, message)),
            Action::Latency { by, jitter } => write!(f, " (by {}, jitter {})", Span(by), Span(jitter)),
            Action::Loss { chance }
            | Action::Reorder { chance }
            | Action::Duplicate { chance }
            | Action::Damage { chance }
            | Action::Slow { share: chance } => write!(f, " ({}%)", chance.0 * 100.0),
            Action::BlackHole { direction } => write!(f, " ({})", direction.name()),
            Action::Kill { signal } => write!(f, " ({})", known(words::SIGNALS, signal.cast_unsigned())),
            _ => Ok(()),
        }
    }
}

/// A time for people: in the largest unit in which it is a whole number.
struct Span(Nanos);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (divisor, unit) = match self.0 {
            nanos if nanos % 1_000_000_000 == 0 => (1_000_000_000, "s"),
            nanos if nanos % 1_000_000 == 0 => (1_000_000, "ms"),
            nanos if nanos % 1_000 == 0 => (1_000, "us"),
            _ => (1, "ns"),
        };
        write!(f, "{} {unit}", self.0 / divisor)
    }
}

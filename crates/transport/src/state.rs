//! The states of a queue pair and the moves between them, as data: which attributes each move needs and which it also
//! takes, for each kind of queue pair (IBA 11.2.5.2). [`check`] judges a request against that table and the device's
//! limits and says in a sentence what is wrong with it. Carrying a move out is the queue pair's business.

mod error;
mod table;
#[cfg(test)]
mod tests;

pub use error::ModifyError;
pub use table::{Requirements, requirements};

use crate::attributes::{AddressVector, AttributeMask, Limits, Modify};
use crate::rate::RateLimit;
use core::fmt;
use wire::{Qpn, Transport};

/// Where a queue pair is in its life, with the numbers of `ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum State {
    /// Created, or back from anywhere: nothing is queued, nothing is known.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Packets of the peer are taken.
    ReadyToReceive = 2,
    /// Packets are sent too.
    ReadyToSend = 3,
    /// Sending has stopped at a work request boundary, so that attributes may change.
    SendQueueDrained = 4,
    /// A send failed on an unreliable queue pair; it still receives.
    SendQueueError = 5,
    /// Everything outstanding is flushed, nothing is taken.
    Error = 6,
}

impl State {
    /// Every one, in the order of their numbers.
    pub const ALL: [State; 7] = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::SendQueueDrained,
        State::SendQueueError,
        State::Error,
    ];

    /// The number C programs know.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// From the number C programs know.
    pub fn from_code(code: u8) -> Option<State> {
        State::ALL.get(usize::from(code)).copied()
    }

    /// The specification's abbreviation.
    pub const fn name(self) -> &'static str {
        match self {
            State::Reset => "RESET",
            State::Init => "INIT",
            State::ReadyToReceive => "RTR",
            State::ReadyToSend => "RTS",
            State::SendQueueDrained => "SQD",
            State::SendQueueError => "SQE",
            State::Error => "ERR",
        }
    }

    /// Whether packets of the peer are taken (IBA 10.3.1: RTR, RTS, SQD and SQE).
    pub const fn receives(self) -> bool {
        matches!(self, State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained | State::SendQueueError)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What kind of service a queue pair gives, with the numbers of `ibv_qp_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// One peer, everything arrives, once and in order.
    ReliableConnected = 2,
    /// One peer, a message may be lost.
    UnreliableConnected = 3,
    /// Any peer, one packet per message, a message may be lost.
    UnreliableDatagram = 4,
    /// Ethernet frames as they are, headers and all.
    RawPacket = 8,
    /// The sending half of a reliable connection to a process rather than to a queue.
    XrcInitiator = 9,
    /// The receiving half; its receives come from the shared receive queue each message names.
    XrcTarget = 10,
}

impl Kind {
    /// Every one, in the order of their numbers.
    pub const ALL: [Kind; 6] = [
        Kind::ReliableConnected,
        Kind::UnreliableConnected,
        Kind::UnreliableDatagram,
        Kind::RawPacket,
        Kind::XrcInitiator,
        Kind::XrcTarget,
    ];

    /// The number C programs know.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// From the number C programs know.
    pub fn from_code(code: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The name programs know it by.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::ReliableConnected => "RC",
            Kind::UnreliableConnected => "UC",
            Kind::UnreliableDatagram => "UD",
            Kind::RawPacket => "RAW_PACKET",
            Kind::XrcInitiator => "XRC_SEND",
            Kind::XrcTarget => "XRC_RECV",
        }
    }

    /// Whether it has one peer.
    pub const fn is_connected(self) -> bool {
        !matches!(self, Kind::UnreliableDatagram | Kind::RawPacket)
    }

    /// Whether requests are acknowledged and sent again.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Kind::ReliableConnected | Kind::XrcInitiator | Kind::XrcTarget)
    }

    /// Whether it is one half of an extended reliable connection.
    pub const fn is_xrc(self) -> bool {
        matches!(self, Kind::XrcInitiator | Kind::XrcTarget)
    }

    /// Whether sends may be posted to it.
    pub const fn has_send_queue(self) -> bool {
        !matches!(self, Kind::XrcTarget)
    }

    /// Whether it takes receives of its own (or a shared receive queue in their stead).
    pub const fn has_receive_queue(self) -> bool {
        !self.is_xrc()
    }

    /// Whether it executes a peer's requests.
    pub const fn responds(self) -> bool {
        !matches!(self, Kind::XrcInitiator)
    }

    /// The transport its packets belong to. Frames belong to none: a raw queue pair is handed no packets.
    pub const fn transport(self) -> Transport {
        match self {
            Kind::ReliableConnected => Transport::Rc,
            Kind::UnreliableConnected => Transport::Uc,
            Kind::UnreliableDatagram | Kind::RawPacket => Transport::Ud,
            Kind::XrcInitiator | Kind::XrcTarget => Transport::Xrc,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// May a queue pair of this kind, in state `from`, do what `modify` asks? Answers the state it ends in, which is `from`
/// where no state is asked for. Nothing changes either way.
pub fn check(kind: Kind, from: State, modify: &Modify, limits: &Limits) -> Result<State, ModifyError> {
    let to = modify.state.unwrap_or(from);
    // The belief is tested before the move: a queue pair that fell into SQE or ERR on its own is the reason programs
    // state it.
    if let Some(believed) = modify.current_state
        && believed != from
    {
        return Err(ModifyError::NotInState { believed, actual: from });
    }
    let Some(Requirements { required, optional }) = requirements(kind, from, to) else {
        return Err(ModifyError::NotATransition { kind, from, to });
    };
    let given = modify.mask();
    let missing = required.difference(given);
    if !missing.is_empty() {
        return Err(ModifyError::Missing { kind, from, to, missing });
    }
    let excess = given.difference(required | optional | AttributeMask::STATE);
    if !excess.is_empty() {
        return Err(ModifyError::NotAllowed { kind, from, to, excess });
    }
    check_values(modify, limits)?;
    Ok(to)
}

fn check_values(modify: &Modify, limits: &Limits) -> Result<(), ModifyError> {
    within("PKEY_INDEX", modify.pkey_index, 0, last_of(limits.pkeys))?;
    within("PORT", modify.port, 1, limits.ports)?;
    within("TIMEOUT", modify.timeout, 0, 31u8)?;
    within("RETRY_CNT", modify.retry_cnt, 0, 7u8)?;
    within("RNR_RETRY", modify.rnr_retry, 0, 7u8)?;
    within("MIN_RNR_TIMER", modify.min_rnr_timer, 0, 31u8)?;
    within("MAX_QP_RD_ATOMIC", modify.max_rd_atomic, 0, limits.max_rd_atomic)?;
    within("MAX_DEST_RD_ATOMIC", modify.max_dest_rd_atomic, 0, limits.max_dest_rd_atomic)?;
    if let Some(RateLimit { kbps, max_burst, typical_packet }) = modify.rate_limit {
        // A burst of what is not limited is a contradiction, and so is one that no limit ever holds back.
        let given = u32::from(max_burst > 0 || typical_packet > 0);
        within("RATE_LIMIT", Some(kbps), given * RateLimit::MIN_KBPS, RateLimit::MAX_KBPS)?;
        within("RATE_LIMIT.max_burst_sz", Some(max_burst), 0, RateLimit::MAX_BURST)?;
    }
    if let Some(mtu) = modify.path_mtu
        && mtu > limits.max_mtu
    {
        return Err(ModifyError::MtuTooLarge { mtu, max: limits.max_mtu });
    }
    if let Some(av) = &modify.av {
        check_route(AttributeMask::AV, av)?;
        within("AV.sgid_index", Some(av.sgid_index), 0, last_of(limits.gids))?;
        within("AV.port", Some(av.port), 1, limits.ports)?;
    }
    if let Some(path) = &modify.alternate {
        check_route(AttributeMask::ALT_PATH, &path.av)?;
        within("ALT_PATH.sgid_index", Some(path.av.sgid_index), 0, last_of(limits.gids))?;
        within("ALT_PATH.port", Some(path.port), 1, limits.ports)?;
        within("ALT_PATH.pkey_index", Some(path.pkey_index), 0, last_of(limits.pkeys))?;
        within("ALT_PATH.timeout", Some(path.timeout), 0, 31u8)?;
    }
    // QP 0 and QP 1 are odd peers for a connection but harmless ones: their packets are dropped there. The multicast
    // number is no queue pair.
    if modify.dest_qpn == Some(Qpn::MULTICAST) {
        return Err(ModifyError::NoSuchPeer { qpn: Qpn::MULTICAST });
    }
    Ok(())
}

/// RoCE routes by IP address, which only the global part of a vector holds (annex A17).
fn check_route(attribute: AttributeMask, av: &AddressVector) -> Result<(), ModifyError> {
    if av.is_global { Ok(()) } else { Err(ModifyError::NoGlobalRoute { attribute }) }
}

fn within(what: &'static str, value: Option<impl Into<u32>>, min: u32, max: impl Into<u32>) -> Result<(), ModifyError> {
    let max = max.into();
    match value.map(Into::into) {
        Some(value) if value < min || value > max => Err(ModifyError::OutOfRange { what, value, min, max }),
        _ => Ok(()),
    }
}

/// The last index of a table; a table without entries takes index 0, since the field cannot say "none".
fn last_of(entries: u16) -> u16 {
    entries.saturating_sub(1)
}

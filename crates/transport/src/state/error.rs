//! Why a queue pair may not be modified as asked, in sentences that say what to change.

use super::{Kind, State, requirements};
use crate::attributes::AttributeMask;
use core::fmt;
use core::net::IpAddr;
use wire::{Mtu, Qpn};

/// Why a queue pair may not be modified as asked. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// One cannot get there from here.
    #[error("{from} -> {to} is not a transition of {} queue pair; from {from} one may go to {}", Article(*kind), Ways(*kind, *from))]
    NotATransition {
        /// The queue pair's kind.
        kind: Kind,
        /// Its state.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// The program is wrong about the present state.
    #[error("the queue pair is in {actual}, not in {believed} as CUR_STATE says")]
    NotInState {
        /// What `CUR_STATE` said.
        believed: State,
        /// What is.
        actual: State,
    },
    /// The transition needs more.
    #[error("{from} -> {to} of {} queue pair needs {missing}", Article(*kind))]
    Missing {
        /// The queue pair's kind.
        kind: Kind,
        /// Its state.
        from: State,
        /// The state asked for.
        to: State,
        /// What was not given.
        missing: AttributeMask,
    },
    /// The transition takes less.
    #[error("{from} -> {to} of {} queue pair does not take {excess}", Article(*kind))]
    NotAllowed {
        /// The queue pair's kind.
        kind: Kind,
        /// Its state.
        from: State,
        /// The state asked for.
        to: State,
        /// What was given in vain.
        excess: AttributeMask,
    },
    /// A value outside its range.
    #[error("{what} is {value}; it may be {min} to {max}")]
    OutOfRange {
        /// The attribute, and its field where it has some.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The smallest allowed.
        min: u32,
        /// The largest allowed.
        max: u32,
    },
    /// A path MTU beyond the port's.
    #[error("PATH_MTU is {mtu} bytes and the port carries {max}")]
    MtuTooLarge {
        /// The one asked for.
        mtu: Mtu,
        /// The largest.
        max: Mtu,
    },
    /// An address vector without a global route, which on RoCE leads nowhere.
    #[error("{attribute} has no global route (is_global is 0); on RoCE the peer is found by its GID alone")]
    NoGlobalRoute {
        /// `AV` or `ALT_PATH`.
        attribute: AttributeMask,
    },
    /// An empty entry of the port's GID table.
    #[error(
        "AV.sgid_index {index} is an empty entry of the GID table: the port has no such address, or has it no more"
    )]
    NoSourceAddress {
        /// The entry.
        index: u8,
    },
    /// The host has no way to the peer.
    #[error("no way to {to}: {why}")]
    NoWay {
        /// The peer's address.
        to: IpAddr,
        /// What is in the way.
        why: &'static str,
    },
    /// The network does not know the peer, or the gateway to it.
    #[error("no host of the network answers for {to}, or for the gateway to it")]
    NoNeighbour {
        /// The peer's address.
        to: IpAddr,
    },
    /// A number that no queue pair has.
    #[error("DEST_QPN {qpn} stands for multicast and is no queue pair to connect to")]
    NoSuchPeer {
        /// The number.
        qpn: Qpn,
    },
    /// The card that the device is like does not do it.
    #[error(transparent)]
    Device(#[from] crate::DeviceRefusal),
    /// A failure script lets the call fail.
    #[error(transparent)]
    Injected(#[from] crate::InjectedError),
}

/// "an RC", "a UC".
struct Article(Kind);

impl fmt::Display for Article {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = match self.0 {
            Kind::ReliableConnected | Kind::XrcInitiator | Kind::XrcTarget => "an",
            Kind::UnreliableConnected | Kind::UnreliableDatagram | Kind::RawPacket => "a",
        };
        write!(f, "{article} {}", self.0)
    }
}

/// "RESET, INIT, RTR or ERR": where one may go.
struct Ways(Kind, State);

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = || State::ALL.into_iter().filter(|to| requirements(self.0, self.1, *to).is_some());
        let mut left = ways().count();
        for to in ways() {
            left = left.saturating_sub(1);
            let separator = match left {
                0 => "",
                1 => " or ",
                _ => ", ",
            };
            write!(f, "{to}{separator}")?;
        }
        Ok(())
    }
}

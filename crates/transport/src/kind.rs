//! The kinds of queue pairs, and the states that each can be in, with the numbers of verbs.

use wire::Transport;

wire::named! {
    /// Where a queue pair is in its life, with the numbers of `ibv_qp_state`.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    #[repr(u8)]
    pub enum State {
        /// Created, or back from anywhere: nothing is queued, nothing is known.
        #[default]
        Reset = 0: "RESET",
        /// Receives may be posted.
        Init = 1: "INIT",
        /// Packets of the peer are taken.
        ReadyToReceive = 2: "RTR",
        /// Packets are sent too.
        ReadyToSend = 3: "RTS",
        /// Sending has stopped at a work request boundary, so that attributes may change.
        SendQueueDrained = 4: "SQD",
        /// A send failed on an unreliable queue pair; it still receives.
        SendQueueError = 5: "SQE",
        /// Everything outstanding is flushed, nothing is taken.
        Error = 6: "ERR",
    }
}

impl State {
    /// The number C programs know.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// From the number C programs know.
    pub fn from_code(code: u8) -> Option<State> {
        State::ALL.get(usize::from(code)).copied()
    }

    /// Whether packets of the peer are taken (IBA 10.3.1: RTR, RTS, SQD and SQE).
    pub const fn receives(self) -> bool {
        matches!(self, State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained | State::SendQueueError)
    }
}

wire::named! {
    /// What kind of service a queue pair gives, with the numbers of `ibv_qp_type`.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    #[repr(u8)]
    pub enum Kind {
        /// One peer, everything arrives, once and in order.
        ReliableConnected = 2: "RC",
        /// One peer, a message may be lost.
        UnreliableConnected = 3: "UC",
        /// Any peer, one packet per message, a message may be lost.
        UnreliableDatagram = 4: "UD",
        /// Ethernet frames as they are, headers and all.
        RawPacket = 8: "RAW_PACKET",
        /// The sending half of a reliable connection to a process rather than to a queue.
        XrcInitiator = 9: "XRC_SEND",
        /// The receiving half; its receives come from the shared receive queue each message names.
        XrcTarget = 10: "XRC_RECV",
    }
}

impl Kind {
    /// The number C programs know.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// From the number C programs know.
    pub fn from_code(code: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code)
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

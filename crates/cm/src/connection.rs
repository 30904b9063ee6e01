//! One connection: its state, who the peer is, the message that waits for an answer, and the answer that a repeated
//! message gets.

use alloc::boxed::Box;
use core::time::Duration;

use trace::DropReason;
use wire::cm::{CmDatagram, CommId, Message, Req};
use wire::mad::MadHeader;
use wire::{Psn, Qpn, Transport};

use crate::output::Passed;
use crate::proof::RTU_REPEATS;
use crate::{Connect, ListenerId, Route, Time};

wire::named! {
    /// The states of a connection (specification 12.9.7). The active side walks down the left, the passive side down the
    /// right:
    ///
    /// ```text
    ///        ReqSent            ReqReceived
    ///    MraReqReceived          MraReqSent
    ///      RepReceived             RepSent
    ///       MraRepSent         MraRepReceived
    ///                Established
    ///        DreqSent           DreqReceived
    ///                 Timewait
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum State {
        /// We sent a REQ.
        ReqSent: "REQ sent",
        /// The peer says that its answer takes a while.
        MraReqReceived: "MRA(REQ) received",
        /// We got a REQ.
        ReqReceived: "REQ received",
        /// We said that our answer takes a while.
        MraReqSent: "MRA(REQ) sent",
        /// We sent a REP.
        RepSent: "REP sent",
        /// The peer says that its answer takes a while.
        MraRepReceived: "MRA(REP) received",
        /// We got a REP.
        RepReceived: "REP received",
        /// We said that our answer takes a while.
        MraRepSent: "MRA(REP) sent",
        /// Both sides agree.
        Established: "established",
        /// We sent a DREQ.
        DreqSent: "DREQ sent",
        /// We got a DREQ.
        DreqReceived: "DREQ received",
        /// It is over, and late messages are still answered.
        Timewait: "timewait",
    }
}

impl State {
    /// Whether the program has yet to answer the peer's request.
    pub(crate) const fn is_half_open(self) -> bool {
        matches!(self, State::ReqReceived | State::MraReqSent)
    }

    /// Whether neither side has ended it.
    pub(crate) const fn is_open(self) -> bool {
        !matches!(self, State::DreqSent | State::DreqReceived | State::Timewait)
    }
}

/// What tells a repeated REQ from a new one that has the same communication id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint {
    transaction: u64,
    ca_guid: u64,
    qpn: Qpn,
    psn: Psn,
}

impl Fingerprint {
    pub const fn of(header: &MadHeader, req: &Req) -> Fingerprint {
        Fingerprint {
            transaction: header.transaction_id,
            ca_guid: req.local_ca_guid,
            qpn: req.local_qpn,
            psn: req.starting_psn,
        }
    }
}

/// How long a message of connection management lives on Ethernet, as kernels have it: a quarter of a second. Queue pairs
/// keep to what kernels had before, a second, which leaves a busy peer more time to acknowledge.
const MESSAGE_LIFETIME: wire::Timeout = wire::Timeout::new(16);

/// A timeout as the kernel's connection manager counts it: in milliseconds, each of which stands for `4.096 us * 2^8`.
/// 16 attempts to connect then take 74 seconds, as there.
const fn kernel_duration(timeout: wire::Timeout) -> Duration {
    Duration::from_millis(1 << timeout.value().saturating_sub(8))
}

/// How patient a side is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// How long the peer has for an answer.
    pub timeout: Duration,
    /// How often it is asked again.
    pub retries: u8,
    /// How long the connection stays in timewait.
    pub timewait: Duration,
}

impl Patience {
    /// Peers and programs choose what they like, but no message is repeated faster than this,
    const MIN_REPEAT_INTERVAL: Duration = Duration::from_millis(4);
    /// nor slower than this.
    const MAX_REPEAT_INTERVAL: Duration = Duration::from_secs(30);
    /// Late packets have this long at least,
    const TIMEWAIT_SHORTEST: Duration = Duration::from_millis(50);
    /// and at most this long.
    const TIMEWAIT_LONGEST: Duration = Duration::from_secs(4);

    pub fn new(timeout: Duration, retries: u8, ack_timeout: wire::Timeout) -> Patience {
        Patience {
            timeout: timeout.clamp(Patience::MIN_REPEAT_INTERVAL, Patience::MAX_REPEAT_INTERVAL),
            retries,
            timewait: ack_timeout.duration().clamp(Patience::TIMEWAIT_SHORTEST, Patience::TIMEWAIT_LONGEST),
        }
    }

    /// After which time without an answer the attempt is over.
    pub fn total(&self) -> Duration {
        self.timeout * (u32::from(self.retries) + 1)
    }
}

/// A message that waits for its answer.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub datagram: Box<CmDatagram>,
    /// How long until it is repeated,
    interval: Duration,
    /// and when that is.
    repeat_at: Time,
    /// How long until the driver looks whether the peer has sent something instead; only a REP is answered so.
    look: Option<Duration>,
    /// When it is given up.
    pub give_up: Time,
    /// How often the peer asked for more time.
    pub delays: u8,
}

impl Pending {
    /// A REP that was sent is looked after this soon, then after twice as long, and so on until it is sent again.
    const FIRST_LOOK: Duration = Duration::from_millis(4);

    /// One that is being sent now.
    pub fn new(now: Time, datagram: CmDatagram, patience: &Patience, eager: Option<Duration>) -> Pending {
        let interval =
            eager.map_or(patience.timeout, |eager| eager.clamp(Patience::MIN_REPEAT_INTERVAL, patience.timeout));
        let look = matches!(datagram.message, Message::Rep(_)).then_some(Pending::FIRST_LOOK);
        let (repeat_at, give_up) = (now + interval, now + patience.total());
        Pending { datagram: Box::new(datagram), interval, repeat_at, look, give_up, delays: 0 }
    }

    /// When something is to be done about it.
    pub fn deadline(&self, now: Time) -> Time {
        let deadline = self.repeat_at.min(self.give_up);
        self.look.map_or(deadline, |look| deadline.min(now + look))
    }

    /// Whether it is to be repeated. If not, it was only looked after.
    pub fn is_due(&mut self, now: Time) -> bool {
        self.look = self.look.map(|look| look * 2);
        now >= self.repeat_at
    }

    /// It is repeated now, and next time after twice as long, but not longer than `most`.
    pub fn repeated(&mut self, now: Time, most: Duration) {
        self.interval = (self.interval * 2).min(most);
        self.repeat_at = now + self.interval;
        self.sent_again();
    }

    /// It was sent once more, before its time.
    pub fn sent_again(&mut self) {
        self.look = self.look.map(|_| Pending::FIRST_LOOK);
    }

    /// The peer asks for time: `until` then nothing is repeated, and afterwards at this pace.
    pub fn delay(&mut self, delay: Duration, until: Time, interval: Duration) {
        self.delays += 1;
        self.interval = interval;
        self.repeat_at = until;
        // The wait does not count as attempts: those that are left are left afterwards.
        self.give_up = (self.give_up + delay).max(until);
        self.sent_again();
    }
}

/// A connection, or what is left of one.
#[derive(Debug)]
pub(crate) struct Connection {
    pub state: State,
    pub route: Route,
    /// The peer's name for it; 0 while it is not known.
    pub peer: CommId,
    pub local_qpn: Qpn,
    /// The peer's queue pair; 0 while it is not known.
    pub remote_qpn: Qpn,
    /// Our channel adapter, on the active side: a REJ that gives up names it.
    pub ca_guid: u64,
    /// The transaction that established it: the active side's.
    pub transaction: u64,
    /// The REQ, on the passive side.
    pub request: Option<Fingerprint>,
    /// Whether it is of an XRC target, whose REP has the queue pair elsewhere.
    pub xrc: bool,
    pub patience: Patience,
    pub pending: Option<Pending>,
    /// What a repetition of the peer's last message is answered with.
    pub answer: Option<Box<CmDatagram>>,
    pub timer: Option<Time>,
    /// Whether anybody wants to hear of it.
    pub owned: bool,
    /// Whether the program has yet to hear that timewait has ended.
    pub lasting: bool,
    /// Whose backlog it counts for, until the program has taken it.
    pub listener: Option<ListenerId>,
    /// Whether the program may know of it.
    pub announced: bool,
    /// When the program was last told that the peer may not have it any more.
    pub suspected: Option<Time>,
    /// Whether the peer has proven that it is at its address,
    pub proven: bool,
    /// and until then, how many messages may be sent to it.
    pub allowance: u32,
    /// How often the RTU, or the MRA before it, is repeated,
    pub rtus: u8,
    /// and how often still.
    pub rtus_left: u8,
}

impl Connection {
    /// Drops an answer that does not repeat the transaction of what it answers. Kernels repeat it too. A stranger that
    /// has not seen the request would have to guess 64 bits, beside the communication ids.
    pub fn check_transaction(&self, header: &MadHeader) -> Passed {
        if header.transaction_id == self.transaction { Ok(()) } else { Err(DropReason::CmWrongTransaction) }
    }

    /// One that we ask for.
    pub fn active(connect: &Connect, transaction: u64) -> Connection {
        // The answer may take the peer's time and that of two packets on the way.
        let timeout = kernel_duration(connect.remote_cm_response_timeout) + 2 * kernel_duration(MESSAGE_LIFETIME);
        Connection {
            state: State::ReqSent,
            route: connect.route,
            peer: CommId::new(0),
            local_qpn: connect.qpn,
            remote_qpn: Qpn::new(0),
            ca_guid: connect.ca_guid,
            transaction,
            request: None,
            xrc: connect.transport == Transport::Xrc,
            patience: Patience::new(timeout, connect.max_cm_retries, connect.local_ack_timeout),
            pending: None,
            answer: None,
            timer: None,
            owned: true,
            lasting: false,
            listener: None,
            announced: true,
            suspected: None,
            proven: true,
            allowance: 0,
            rtus: if connect.repeat_rtu { RTU_REPEATS } else { 0 },
            rtus_left: 0,
        }
    }

    /// One that a peer asks for, with this REQ.
    pub fn passive(route: Route, header: &MadHeader, req: &Req, listener: ListenerId, proven: bool) -> Connection {
        Connection {
            state: State::ReqReceived,
            route,
            peer: req.local_comm_id,
            local_qpn: Qpn::new(0),
            remote_qpn: req.local_qpn,
            ca_guid: 0,
            transaction: header.transaction_id,
            request: Some(Fingerprint::of(header, req)),
            xrc: req.transport() == Some(Transport::Xrc),
            patience: Patience::new(
                kernel_duration(req.local_cm_response_timeout),
                req.max_cm_retries,
                req.primary.local_ack_timeout,
            ),
            pending: None,
            answer: None,
            timer: None,
            owned: true,
            lasting: false,
            listener: Some(listener),
            announced: false,
            suspected: None,
            proven,
            allowance: 1,
            rtus: 0,
            rtus_left: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::cm::{PortSpace, ServiceId};
    use wire::{Gid, Psn};

    #[test]
    fn an_attempt_to_connect_takes_as_long_as_a_kernels() {
        let route = Route { source: Gid::default(), destination: Gid::default() };
        let connect = Connect::new(route, ServiceId::ip(PortSpace::Tcp, 1), Qpn::new(1), Psn::new(1));
        let patience = Connection::active(&connect, 1).patience;
        assert_eq!((patience.timeout, patience.total()), (Duration::from_millis(4608), Duration::from_millis(73_728)));
    }
}

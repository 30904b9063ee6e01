//! Who has proven that it is at the address it writes from. Any host can send a REQ with the address of another one,
//! so **until the other side has proven itself, one REQ brings at most one message back**, and all messages are of one
//! length:
//!
//! - A passive connection may send as many messages as it got REQs, repeated ones included. A REP that was lost comes
//!   again when the REQ does. An MRA leaves one message for the REP.
//! - What names our communication id, which only the owner of the address was told, is a proof, and so is a packet on
//!   the queue pair. From then on messages are repeated by the timer.
//! - An address that proved itself in the last minutes is believed: peers that do not repeat their RTU (the kernel)
//!   then get their REP repeated. The driver may know by other means ([`Manager::handle_proven`]).
//! - Since a REP may not be repeated, the active side repeats its RTU a few times, until it hears of the peer. While
//!   its program thinks about the REP, it says so with an MRA, which proves it, and repeats that.

use core::time::Duration;

use wire::Gid;
use wire::cm::CommId;

use crate::connection::{Connection, State};
use crate::{Manager, Time};

/// How long an address is believed that has proven itself,
const PROOF_LIFETIME: Duration = Duration::from_secs(600);
/// and how many are. The one that proved itself first leaves when there are more.
const MAX_PROVEN_ADDRESSES: usize = 1024;
/// How often an RTU or the MRA before it is repeated; each time it takes twice as long.
pub(crate) const RTU_REPEATS: u8 = 6;

impl Connection {
    /// Whether another message may be sent, and if so, takes note of it. `kept` are left for later ones.
    pub fn may_send(&mut self, kept: u32) -> bool {
        if self.proven {
            return true;
        }
        let may = self.allowance > kept;
        self.allowance -= u32::from(may);
        may
    }
}

impl Manager {
    /// The peer of a connection has proven that it is at its address.
    pub(crate) fn prove(&mut self, now: Time, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.proven = true;
        let address = connection.route.destination;
        self.believed.insert(address, now + PROOF_LIFETIME);
        if self.believed.len() > MAX_PROVEN_ADDRESSES
            && let Some(oldest) = self.believed.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address)
        {
            self.believed.remove(&oldest);
        }
    }

    /// Whether an address has proven itself lately.
    pub(crate) fn believes(&self, now: Time, address: Gid) -> bool {
        self.believed.get(&address).is_some_and(|until| now < *until)
    }

    /// Connections that wait for an answer to their REP, or are about to repeat an RTU: for a driver that can see
    /// whether their queue pairs have got a packet from the peer, and then says that it was [`heard`](Manager::heard).
    pub fn unheard(&self, now: Time) -> impl Iterator<Item = CommId> + '_ {
        let due = self.timers.iter().take_while(move |(when, _)| *when <= now).map(|(_, id)| *id);
        due.filter(|id| matches!(self.state(*id), Some(State::RepSent | State::MraRepReceived | State::Established)))
    }

    /// Says that a packet of the peer has come on the queue pair: the connection is established, and nothing is
    /// repeated.
    pub fn heard(&mut self, now: Time, id: CommId) {
        match self.state(id) {
            Some(State::RepSent | State::MraRepReceived) => self.establish(now, id, None),
            Some(State::Established) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.rtus_left = 0;
                    if let Some(when) = connection.timer.take() {
                        self.timers.remove(&(when, id));
                    }
                }
            }
            _ => {}
        }
    }

    /// What the active side has just said about the REP will be repeated. `anew` if it says so for the first time.
    pub(crate) fn repeat_rtu(&mut self, now: Time, id: CommId, anew: bool) {
        let eager = self.config.eager;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if anew {
            connection.rtus_left = connection.rtus;
        }
        if connection.rtus_left == 0 {
            return;
        }
        let first = eager.unwrap_or(connection.patience.timeout);
        let wait = first * 2u32.pow(u32::from(RTU_REPEATS - connection.rtus_left.min(RTU_REPEATS)));
        self.set_timer(id, now + wait);
    }

    /// What the active side says about the REP is due again.
    pub(crate) fn rtu_due(&mut self, now: Time, id: CommId) {
        let _ = match self.state(id) {
            Some(State::RepReceived) => self.say_thinking(now, id, State::MraRepSent),
            _ => self.answer_again(id),
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.rtus_left = connection.rtus_left.saturating_sub(1);
        }
        self.repeat_rtu(now, id, false);
    }
}

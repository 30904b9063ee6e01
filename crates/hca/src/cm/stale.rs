//! Connections that are said to be stale: a message from the peer's address asks for another connection of the peer's
//! queue pair, as a peer would that has lost its memory. Anybody can send such a message, so the peer is asked:
//!
//! | the peer is | how it is asked |
//! |---|---|
//! | a process of this host | it stands as long as the system knows the process ([`super::death`]) |
//! | elsewhere, and the connection reliable | its queue pair is sent a packet that it has had already, and acknowledges it |
//! | elsewhere, and the connection UC or XRC | it cannot be asked; the connection stands |
//!
//! A peer that is not there has as long to answer, and is asked as often, as with any request of the queue pair; then
//! the connection ends. Requests under way are questions themselves: then the queue pair finds out, and not we.

use super::Inner;
use super::record::{Record, Stage};
use crate::nic::Nic;
use crate::tuning::STALE_QUESTION_INTERVAL;
use ::host::names::{self, Name};
use ::host::slots::Slot;
use std::time::Duration;
use trace::ConnectionEnd;
use transport::{Kind, Time};
use wire::Timeout;
use wire::cm::CommId;

/// A peer that is being asked.
#[derive(Debug)]
pub(super) struct Question {
    id: CommId,
    /// How often it is asked still.
    left: u8,
    interval: Duration,
    pub next: Time,
    asked: bool,
}

impl Inner {
    /// It is claimed that the peer of a connection does not have it any more.
    pub(super) fn suspected(&mut self, nic: &Nic, id: CommId, now: Time) {
        let Some(record) = self.communications.get(&id).and_then(|key| self.records.get_mut(key)) else { return };
        let (Some(path), Some(agreement)) = (record.path, record.agreement) else { return };
        if nic.is_own_address(path.dgid) {
            if record.peer_process_is_gone(nic) {
                record.foreseen_end = Some(ConnectionEnd::PeerDied);
                self.manager.peer_lost(now, id);
            }
        } else if record.kind == Kind::ReliableConnected && !self.questions.iter().any(|question| question.id == id) {
            let timeout = record.settings.ack_timeout.unwrap_or(agreement.ack_timeout);
            // A queue pair whose timeout is 0 waits for ever.
            if timeout > 0 {
                let (shortest, longest) = STALE_QUESTION_INTERVAL.into_inner();
                let interval = Timeout::new(timeout).duration().clamp(shortest, longest);
                let left = agreement.retry_count + 1;
                self.questions.push(Question { id, left, interval, next: now, asked: false });
            }
        }
    }

    /// Asks the peers whose turn it is, and ends the connections of those that did not answer.
    pub(super) fn ask_suspects(&mut self, nic: &Nic, now: Time) {
        let Inner { questions, records, communications, manager, .. } = self;
        questions.retain_mut(|question| {
            if question.next > now {
                return true;
            }
            let record = communications.get(&question.id).and_then(|key| records.get(key));
            match record.map_or(Asked::Pointless, |record| record.ask_peer(nic, question)) {
                Asked::Yes => {
                    (question.asked, question.left, question.next) = (true, question.left - 1, now + question.interval);
                    true
                }
                Asked::Pointless => false,
                Asked::InVain => {
                    if let Some(record) = communications.get(&question.id).and_then(|key| records.get_mut(key)) {
                        record.foreseen_end = Some(ConnectionEnd::PeerLost);
                    }
                    manager.peer_lost(now, question.id);
                    false
                }
            }
        });
    }
}

/// What came of it.
enum Asked {
    Yes,
    /// It has answered, or there is nothing to ask it.
    Pointless,
    InVain,
}

impl Record {
    fn ask_peer(&self, nic: &Nic, question: &Question) -> Asked {
        let (Stage::Connected, Some(path), Some(agreement)) = (self.stage, self.path, self.agreement) else {
            return Asked::Pointless;
        };
        let Some(qp) = nic.qps.get(self.qpn) else { return Asked::Pointless };
        if question.asked && qp.peer_answered() {
            return Asked::Pointless;
        }
        match question.left {
            0 => Asked::InVain,
            _ if qp.ask_peer(nic, path.dgid, agreement.peer_qpn) => Asked::Yes,
            _ => Asked::Pointless,
        }
    }

    /// Whether the process of a peer on this host has ended. While it is watched the system will tell.
    fn peer_process_is_gone(&mut self, nic: &Nic) -> bool {
        self.watch_peer(nic);
        let slot = self.peer_communication.and_then(Slot::of_communication);
        self.watched.is_none()
            && slot.is_some_and(|slot| !nic.has_slot(slot) && matches!(names::owner(Name::Slot(slot)), Ok(None)))
    }
}

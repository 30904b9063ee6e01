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
use crate::nic::Nic;
use crate::tuning::STALE_QUESTION_INTERVAL;
use ::cm::IdKey;
use ::cm::id::{IdRecord, Stage};
use ::host::names::{self, Name};
use ::host::slots::Slot;
use std::time::Duration;
use trace::ConnectionEnd;
use transport::{Kind, Time};
use wire::Timeout;
use wire::cm::CommId;

/// A peer that is being asked.
#[derive(Debug)]
pub(super) struct PeerProbe {
    id: CommId,
    /// How often it is asked still.
    left: u8,
    interval: Duration,
    pub next: Time,
    asked: bool,
}

impl Inner {
    /// It is claimed that the peer of a connection does not have it any more.
    pub(super) fn suspected(&mut self, nic: &Nic, key: IdKey, id: CommId, now: Time) {
        let Some(record) = self.ids.get(key) else { return };
        let (Some(path), Some(agreement)) = (record.path, record.agreement) else { return };
        if nic.ground.host.is_own_address(path.dgid) {
            let peer = record.peer_communication;
            if self.peer_process_is_gone(nic, key, peer) {
                self.ids.peer_lost(now, id, ConnectionEnd::PeerDied);
            }
        } else if record.kind == Kind::ReliableConnected && !self.questions.iter().any(|question| question.id == id) {
            let timeout = record.ack_timeout();
            // A queue pair whose timeout is 0 waits for ever.
            if timeout > 0 {
                let (shortest, longest) = STALE_QUESTION_INTERVAL.into_inner();
                let interval = Timeout::new(timeout).duration().clamp(shortest, longest);
                let left = agreement.numbers.retry_count + 1;
                self.questions.push(PeerProbe { id, left, interval, next: now, asked: false });
            }
        }
    }

    /// Asks the peers whose turn it is, and ends the connections of those that did not answer.
    pub(super) fn ask_suspects(&mut self, nic: &Nic, now: Time) {
        let Inner { questions, ids, .. } = self;
        questions.retain_mut(|question| {
            if question.next > now {
                return true;
            }
            match ids.of(question.id).map_or(Asked::Pointless, |record| question.ask_peer(nic, record)) {
                Asked::Yes => {
                    (question.asked, question.left, question.next) = (true, question.left - 1, now + question.interval);
                    true
                }
                Asked::Pointless => false,
                Asked::InVain => {
                    ids.peer_lost(now, question.id, ConnectionEnd::PeerLost);
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

impl PeerProbe {
    fn ask_peer(&self, nic: &Nic, record: &IdRecord) -> Asked {
        let (Stage::Connected, Some(path), Some(agreement)) = (record.stage, record.path, record.agreement) else {
            return Asked::Pointless;
        };
        let Some(qp) = nic.objects.qps.get(record.qpn) else { return Asked::Pointless };
        if self.asked && qp.peer_answered() {
            return Asked::Pointless;
        }
        match self.left {
            0 => Asked::InVain,
            _ if qp.ask_peer(&nic.ground, path.dgid, agreement.peer_qpn) => Asked::Yes,
            _ => Asked::Pointless,
        }
    }
}

impl Inner {
    /// Whether the process of a peer on this host has ended. While it is watched the system will tell.
    fn peer_process_is_gone(&mut self, nic: &Nic, key: IdKey, peer: Option<CommId>) -> bool {
        self.watch_peer(nic, key);
        let slot = peer.and_then(Slot::of_communication);
        self.handles.get(&key).is_some_and(|handle| handle.watched.is_none())
            && slot.is_some_and(|slot| {
                !nic.ground.host.has_slot(slot) && matches!(names::owner(Name::Slot(slot)), Ok(None))
            })
    }
}

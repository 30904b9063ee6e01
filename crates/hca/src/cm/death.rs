//! Processes that die without a word. One of this host cannot say any more that it disconnects; the system can say that it has ended, and then it is
//! as if it had asked for the end. Peers on other hosts hear it from a survivor, which has the will of the dead ([`link::wills`]).

use super::record::{Record, Stage};
use super::{Cm, Inner, mad, route_of};
use crate::nic::Nic;
use link::slots::Slot;
use link::wills::{Bequest, Will};
use std::time::Duration;
use transport::Time;
use wire::cm::{CmDatagram, Data, Dreq, Message};

/// How often a survivor says that somebody has died: nobody tells it that it was heard.
const TIMES: u8 = 3;

/// And how long it waits in between.
const PAUSE: Duration = Duration::from_millis(300);

/// How long until somebody who lives alone looks for another to leave its will to.
const SEARCH: Duration = Duration::from_secs(1);

/// What is said for the dead, how often still, and when next.
#[derive(Debug)]
pub(super) struct LastWords {
    route: ::cm::Route,
    message: CmDatagram,
    left: u8,
    next: Time,
}

impl Record {
    /// Watches the peer's process, if it is another one of this host.
    pub(super) fn watch_peer(&mut self, nic: &Nic) {
        let (Some(path), Some(peer), None) = (self.path, self.peer_communication, self.watched) else { return };
        let Some(slot) = Slot::of_communication(peer) else { return };
        if nic.is_own_address(path.dgid) && !nic.has_slot(slot) && nic.lives.watch(slot).unwrap_or(false) {
            self.watched = Some(slot);
        }
    }

    /// Watches it no more.
    pub(super) fn let_go_of_peer(&mut self, nic: &Nic) {
        if let Some(slot) = self.watched.take() {
            nic.lives.unwatch(slot);
        }
    }
}

impl Record {
    /// Takes a connection to another host into the will, or out of it when it has ended.
    pub(super) fn bequeath(&mut self, will: &mut Will, nic: &Nic) {
        let stands = matches!(self.stage, Stage::Connected | Stage::Disconnecting);
        match (stands, self.bequeathed) {
            (true, None) => {
                let (Some(path), Some(our_communication), Some(peer_communication), Some(agreement)) =
                    (self.path, self.communication, self.peer_communication, self.agreement)
                else {
                    return;
                };
                if nic.is_own_address(path.dgid) {
                    return;
                }
                let peer_qpn = agreement.peer_qpn;
                let (ours, peers) = (path.sgid, path.dgid);
                let bequest = Bequest { ours, peers, our_communication, peer_communication, peer_qpn };
                self.bequeathed = will.enter(&bequest).ok();
            }
            (false, Some(at)) => {
                will.strike(at);
                self.bequeathed = None;
            }
            _ => {}
        }
    }
}

impl Inner {
    /// Sees to it that somebody has our will. Answers when to look again.
    pub(super) fn entrust_will(&mut self, nic: &Nic, now: Time) -> Option<Time> {
        if self.will.is_empty() || self.will.survivor().is_some() {
            return None;
        }
        if self.search.is_none_or(|search| search <= now) {
            self.search = Some(now + SEARCH);
            if self.will.entrust(&nic.slots)
                && let Some(slot) = self.will.survivor()
            {
                // Without this we would not hear of its end, and die intestate.
                let _ = nic.lives.watch(slot);
                self.search = None;
            }
        }
        self.search
    }

    /// Speaks for the dead. Answers when to do so again.
    pub(super) fn speak_for_the_dead(&mut self, nic: &Nic, now: Time) -> Option<Time> {
        let Inner { last_words, psn, .. } = self;
        for words in last_words.iter_mut().filter(|words| words.next <= now) {
            *psn = psn.wrapping_add(1);
            mad::send(nic, &words.route, &words.message, *psn);
            words.left -= 1;
            words.next = now + PAUSE;
        }
        last_words.retain(|words| words.left > 0);
        last_words.iter().map(|words| words.next).min()
    }
}

impl Cm {
    /// Ends the connections of processes that have ended, and carries out their wills.
    pub fn bury(&self, nic: &Nic) {
        let (ended, bequests) = (nic.lives.ended(), nic.lives.bequests());
        if ended.is_empty() && bequests.is_empty() {
            return;
        }
        self.with(nic, |inner, _| {
            let now = nic.now();
            if inner.will.survivor().is_some_and(|slot| ended.contains(&slot)) {
                inner.will.lose_survivor();
            }
            for bequest in bequests.iter().filter(|bequest| nic.is_own_address(bequest.ours)) {
                let dreq = Dreq {
                    local_comm_id: bequest.our_communication,
                    remote_comm_id: bequest.peer_communication,
                    remote_qpn: bequest.peer_qpn,
                    private_data: Data::default(),
                };
                let transaction = u64::from(bequest.our_communication.value());
                inner.last_words.push(LastWords {
                    route: route_of(bequest.ours, bequest.peers),
                    message: CmDatagram::new(transaction, Message::Dreq(dreq)),
                    left: TIMES,
                    next: Time::ZERO,
                });
            }
            let mut last_words = Vec::new();
            for record in inner.records.values_mut().filter(|record| record.watched.is_some()) {
                if !record.watched.is_some_and(|slot| ended.contains(&slot)) {
                    continue;
                }
                record.watched = None;
                if let (Some(path), Some(ours), Some(peers)) =
                    (record.path, record.communication, record.peer_communication)
                {
                    let dreq = Dreq {
                        local_comm_id: peers,
                        remote_comm_id: ours,
                        remote_qpn: record.qpn,
                        private_data: Data::default(),
                    };
                    // As it would have come.
                    let route = route_of(path.dgid, path.sgid);
                    last_words.push((route, CmDatagram::new(0, Message::Dreq(dreq))));
                }
            }
            for (route, message) in last_words {
                inner.manager.handle(now, route, &message);
            }
        });
    }
}

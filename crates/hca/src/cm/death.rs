//! Peers that die without a word. A process of this host that ends cannot say so any more; the system can, and then it is as if the process had
//! asked to disconnect. Of processes on other hosts nothing is known here: their messages stay away.

use super::record::Record;
use super::{Cm, moment, route_of};
use crate::nic::Nic;
use link::slots::Slot;
use wire::cm::{CmDatagram, Data, Dreq, Message};

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

impl Cm {
    /// Ends the connections of processes that have ended.
    pub fn bury(&self, nic: &Nic) {
        let ended = nic.lives.ended();
        if ended.is_empty() {
            return;
        }
        self.with(nic, |inner, _| {
            let now = moment(nic.now());
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
                    last_words.push((route_of(path.sgid, path.dgid), CmDatagram::new(0, Message::Dreq(dreq))));
                }
            }
            for (route, message) in last_words {
                inner.manager.handle(now, route, &message);
            }
        });
    }
}

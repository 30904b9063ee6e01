//! Processes that end without disconnecting. The system tells that a process of this host has ended; then it is as if
//! that had asked to disconnect. Peers on other hosts hear it from a survivor, a process of the same host that has the
//! ended one's [connection records](::host::connection_records). Where there is no survivor they find out by asking
//! the host ([`super::deserted_hosts`]).

use super::{Cm, Inner, mad};
use crate::nic::Nic;
use crate::tuning::{DEATH_NOTICE_INTERVAL, DEATH_NOTICES, RECORD_KEEPER_SEARCH};
use ::cm::id::Stage;
use ::cm::{IdKey, Transmit};
use ::host::connection_records::ConnectionRecord;
use ::host::slots::Slot;
use trace::DropReason;
use transport::Time;
use wire::cm::{CmDatagram, Dreq, Message};

/// A DREQ sent for a process that has ended, how often still, and when next.
#[derive(Debug)]
pub(super) struct DreqForDead {
    route: ::cm::Route,
    message: CmDatagram,
    left: u8,
    next: Time,
}

impl Inner {
    /// Watches the peer's process, if it is another one of this host.
    pub(super) fn watch_peer(&mut self, nic: &Nic, key: IdKey) {
        let (Some(record), Some(handle)) = (self.ids.get(key), self.handles.get_mut(&key)) else { return };
        let (Some(path), Some(peer), None) = (record.path, record.peer_communication, handle.watched) else { return };
        let Some(slot) = Slot::of_communication(peer) else { return };
        if nic.ground.host.is_own_address(path.dgid) && !nic.ground.host.has_slot(slot) {
            handle.watched = nic.ground.host.process_watch.watch(slot).unwrap_or_default();
        }
    }

    /// Takes a connection to another host into the connection records, or out of them when it has ended.
    pub(super) fn record_connection(&mut self, nic: &Nic, key: IdKey) {
        let (Some(record), Some(handle)) = (self.ids.get(key), self.handles.get_mut(&key)) else { return };
        let stands = matches!(record.stage, Stage::Connected | Stage::Disconnecting);
        match (stands, handle.recorded_at) {
            (true, None) => {
                let (Some(path), Some(our_communication), Some(peer_communication), Some(agreement)) =
                    (record.path, record.communication, record.peer_communication, record.agreement)
                else {
                    return;
                };
                if nic.ground.host.is_own_address(path.dgid) {
                    return;
                }
                let peer_qpn = agreement.peer_qpn;
                let (ours, peers) = (path.sgid, path.dgid);
                let connection = ConnectionRecord { ours, peers, our_communication, peer_communication, peer_qpn };
                match self.connection_records.enter(&connection) {
                    Ok(at) => (handle.recorded_at, handle.recorded_since) = (Some(at), nic.now()),
                    Err(_) => nic.ground.dropped(nic.now(), Some(record.qpn), None, DropReason::SystemRefused),
                }
            }
            (false, Some(at)) => {
                self.connection_records.strike(at);
                handle.recorded_at = None;
            }
            _ => {}
        }
    }

    /// Sees to it that another process has our connection records. Answers when to look again.
    pub(super) fn entrust_connection_records(&mut self, nic: &Nic, now: Time) -> Option<Time> {
        if self.connection_records.is_empty() || self.connection_records.survivor().is_some() {
            return None;
        }
        if self.search.is_none_or(|search| search <= now) {
            self.search = Some(now + RECORD_KEEPER_SEARCH);
            if self.connection_records.entrust(&nic.ground.host.slots)
                && let Some(slot) = self.connection_records.survivor()
            {
                // Without this we would not hear of its end, and after it no process would have our records.
                let _ = nic.ground.host.process_watch.watch(slot);
                self.search = None;
            }
        }
        self.search
    }

    /// Sends the DREQs of processes that have ended. Answers when to do so again.
    pub(super) fn send_dreqs_for_dead(&mut self, nic: &Nic, now: Time) -> Option<Time> {
        let Inner { dreqs_for_dead, psn, .. } = self;
        for words in dreqs_for_dead.iter_mut().filter(|words| words.next <= now) {
            *psn = psn.wrapping_add(1);
            mad::send(&nic.ground, &Transmit { route: words.route, datagram: words.message, again: true }, *psn);
            words.left -= 1;
            words.next = now + DEATH_NOTICE_INTERVAL;
        }
        dreqs_for_dead.retain(|words| words.left > 0);
        dreqs_for_dead.iter().map(|words| words.next).min()
    }
}

impl Cm {
    /// Ends the connections of processes that have ended, and sends DREQs for those in their connection records.
    pub fn end_connections_of_dead(&self, nic: &Nic) {
        let (ended, (connections_of_dead, unreadable)) =
            (nic.ground.host.process_watch.ended(), nic.ground.host.process_watch.connections_of_dead());
        for _ in 0..unreadable {
            nic.ground.dropped(nic.now(), None, None, DropReason::BadRecord);
        }
        if ended.is_empty() && connections_of_dead.is_empty() {
            return;
        }
        self.with(nic, |inner, _| {
            let now = nic.now();
            if inner
                .connection_records
                .survivor()
                .is_some_and(|slot| ended.iter().any(|process| process.slot() == slot))
            {
                inner.connection_records.lose_survivor();
            }
            for connection in &connections_of_dead {
                if !nic.ground.host.is_own_address(connection.ours) {
                    nic.ground.dropped(now, None, None, DropReason::NoRoute);
                    continue;
                }
                let dreq = Dreq {
                    local_comm_id: connection.our_communication,
                    remote_comm_id: connection.peer_communication,
                    remote_qpn: connection.peer_qpn,
                    private_data: ::cm::process_ended(),
                };
                let transaction = u64::from(connection.our_communication.value());
                inner.dreqs_for_dead.push(DreqForDead {
                    route: ::cm::Route { source: connection.ours, destination: connection.peers },
                    message: CmDatagram::new(transaction, Message::Dreq(dreq)),
                    left: DEATH_NOTICES,
                    next: Time::ZERO,
                });
            }
            let mut bereft = Vec::new();
            for (key, handle) in &mut inner.handles {
                if handle.watched.is_some_and(|process| ended.contains(&process)) {
                    handle.watched = None;
                    bereft.push(*key);
                }
            }
            bereft.into_iter().for_each(|key| inner.ids.peer_died(now, key));
        });
    }
}

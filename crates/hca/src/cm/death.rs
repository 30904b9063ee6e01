//! Processes that end without disconnecting. The system tells that a process of this host has ended; then it is as if
//! that had asked to disconnect. Peers on other hosts hear it from a survivor, a process of the same host that has the
//! ended one's [connection records](::host::connection_records).

use super::record::{Record, Stage};
use super::{Cm, Inner, mad, route_of};
use crate::nic::Nic;
use crate::tuning::{DEATH_NOTICE_INTERVAL, DEATH_NOTICES, RECORD_KEEPER_SEARCH};
use ::host::connection_records::{ConnectionRecord, ConnectionRecords};
use ::host::slots::Slot;
use trace::{ConnectionEnd, DropReason};
use transport::Time;
use wire::cm::{CmDatagram, Data, Dreq, Message};

/// A DREQ sent for a process that has ended, how often still, and when next.
#[derive(Debug)]
pub(super) struct DreqForDead {
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
        if nic.is_own_address(path.dgid) && !nic.has_slot(slot) && nic.process_watch.watch(slot).unwrap_or(false) {
            self.watched = Some(slot);
        }
    }

    /// Watches it no more.
    pub(super) fn let_go_of_peer(&mut self, nic: &Nic) {
        if let Some(slot) = self.watched.take() {
            nic.process_watch.unwatch(slot);
        }
    }
}

impl Record {
    /// Who ended it, for the program and for the log.
    pub(super) fn note_end(&mut self, nic: &Nic, by_us: bool, private_data: &[u8]) {
        let of_process = private_data.starts_with(::cm::PROCESS_ENDED);
        let by = match self.foreseen_end {
            Some(end) => end,
            None if by_us => ConnectionEnd::Local,
            None if of_process => ConnectionEnd::PeerDied,
            None => ConnectionEnd::Peer,
        };
        self.end.end = Some(by);
        // The field is always as long as the message has it; a peer that says nothing fills it with zeros.
        if by == ConnectionEnd::Peer && private_data.iter().any(|byte| *byte != 0) {
            self.end.private_data = private_data.to_vec();
        }
        self.trace_end(nic, by);
    }

    /// Says in the log who ended it.
    pub(super) fn trace_end(&self, nic: &Nic, by: ConnectionEnd) {
        if let (true, Some(communication)) = (nic.trace.is_on(), self.communication) {
            let kind = trace::Kind::ConnectionEnded { local_comm_id: communication.value(), by };
            nic.trace.record(&trace::Event { at: nic.now().as_nanos(), qpn: Some(self.qpn), kind });
        }
    }

    /// Takes a connection to another host into the connection records, or out of them when it has ended.
    pub(super) fn record_connection(&mut self, connection_records: &mut ConnectionRecords, nic: &Nic) {
        let stands = matches!(self.stage, Stage::Connected | Stage::Disconnecting);
        match (stands, self.recorded_at) {
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
                let connection = ConnectionRecord { ours, peers, our_communication, peer_communication, peer_qpn };
                match connection_records.enter(&connection) {
                    Ok(at) => self.recorded_at = Some(at),
                    Err(_) => nic.dropped(nic.now(), Some(self.qpn), None, DropReason::SystemRefused),
                }
            }
            (false, Some(at)) => {
                connection_records.strike(at);
                self.recorded_at = None;
            }
            _ => {}
        }
    }
}

impl Inner {
    /// Sees to it that another process has our connection records. Answers when to look again.
    pub(super) fn entrust_connection_records(&mut self, nic: &Nic, now: Time) -> Option<Time> {
        if self.connection_records.is_empty() || self.connection_records.survivor().is_some() {
            return None;
        }
        if self.search.is_none_or(|search| search <= now) {
            self.search = Some(now + RECORD_KEEPER_SEARCH);
            if self.connection_records.entrust(&nic.slots)
                && let Some(slot) = self.connection_records.survivor()
            {
                // Without this we would not hear of its end, and after it no process would have our records.
                let _ = nic.process_watch.watch(slot);
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
            mad::send(nic, &words.route, &words.message, *psn);
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
            (nic.process_watch.ended(), nic.process_watch.connections_of_dead());
        for _ in 0..unreadable {
            nic.dropped(nic.now(), None, None, DropReason::BadRecord);
        }
        if ended.is_empty() && connections_of_dead.is_empty() {
            return;
        }
        self.with(nic, |inner, _| {
            let now = nic.now();
            if inner.connection_records.survivor().is_some_and(|slot| ended.contains(&slot)) {
                inner.connection_records.lose_survivor();
            }
            for connection in &connections_of_dead {
                if !nic.is_own_address(connection.ours) {
                    nic.dropped(now, None, None, DropReason::NoRoute);
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
                    route: route_of(connection.ours, connection.peers),
                    message: CmDatagram::new(transaction, Message::Dreq(dreq)),
                    left: DEATH_NOTICES,
                    next: Time::ZERO,
                });
            }
            let mut dreqs_for_dead = Vec::new();
            for record in inner.records.values_mut().filter(|record| record.watched.is_some()) {
                if !record.watched.is_some_and(|slot| ended.contains(&slot)) {
                    continue;
                }
                record.watched = None;
                record.foreseen_end = Some(ConnectionEnd::PeerDied);
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
                    dreqs_for_dead.push((route, CmDatagram::new(0, Message::Dreq(dreq))));
                }
            }
            for (route, message) in dreqs_for_dead {
                inner.manager.handle(now, route, &message);
            }
        });
    }
}

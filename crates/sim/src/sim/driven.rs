//! For those who drive a simulation from outside, with programs and a connection manager of their own: memory that is
//! theirs, datagrams of queue pair 1, news of queue pairs, a clock that goes no further than they want, and hosts that
//! lose their power.

use std::collections::VecDeque;
use transport::{AddressVector, Inbound, Modify, Queue, QueuePair, State, Time};
use wire::{Gid, Headers, Qpn};

use super::Sim;
use crate::host::{HostId, QpId};
use crate::memory::HostMemory;

/// A datagram that came for queue pair 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Management {
    /// Who sent it.
    pub from: Gid,
    /// To which of the host's addresses.
    pub to: Gid,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Management {
    pub(crate) fn of(inbound: &Inbound<'_>, gids: &[Gid]) -> Management {
        let v4 = inbound.from.to_ip().is_ipv4();
        let own = gids.iter().find(|gid| gid.to_ip().is_ipv4() == v4).or(gids.first());
        Management {
            from: inbound.from,
            to: own.copied().unwrap_or_default(),
            headers: *inbound.headers,
            payload: inbound.payload.to_vec(),
        }
    }
}

impl Sim {
    /// From now on the queue pairs of a host reach this memory, and not the simulation's own.
    pub fn use_memory(&mut self, host: HostId, memory: Box<dyn HostMemory>) {
        self.hosts[host.index()].world.outside = Some(memory);
    }

    /// From now on datagrams for queue pair 1 of a host are kept for [`next_management`](Sim::next_management).
    pub fn answer_for_management(&mut self, host: HostId) {
        self.hosts[host.index()].managed = true;
    }

    /// The oldest datagram that came for queue pair 1 of a host that is answered for.
    pub fn next_management(&mut self) -> Option<(HostId, Management)> {
        self.management.pop_front()
    }

    /// Sends a packet from an address of a host, over the link, with all that may happen to it there.
    pub fn send_packet(&mut self, from: HostId, source: Gid, destination: Gid, headers: &Headers, payload: &[u8]) {
        let to = AddressVector { dgid: destination, hop_limit: 64, ..AddressVector::default() };
        self.net.send_packet(from, source, &to, headers, payload);
    }

    /// From now on the simulation keeps a list of the queue pairs that have something to tell.
    pub fn keep_news(&mut self) {
        self.news.get_or_insert_with(VecDeque::new);
    }

    /// Takes a queue pair that has completions or events. One that has been asked since may have none any more.
    pub fn next_news(&mut self) -> Option<QpId> {
        self.news.as_mut()?.pop_front()
    }

    /// When the next thing may happen; nothing may come of it.
    pub fn next_at(&self) -> Option<Time> {
        self.net.agenda.next_at()
    }

    /// Lets the next thing happen that is due by `end`. False if there is none; the clock stays where it is then.
    pub fn run_one_by(&mut self, end: Time) -> bool {
        self.step(end)
    }

    /// Sets the clock forward to `to`, if nothing is due before.
    pub fn wait_until(&mut self, to: Time) {
        while self.step(to) {}
        self.net.now = self.net.now.max(to);
    }

    /// A queue pair, to look at.
    pub fn queue_pair(&self, qp: QpId) -> Option<&QueuePair> {
        self.hosts[qp.host.index()].slot(qp.qpn).map(|slot| &slot.qp)
    }

    /// The connection of a queue pair has ended: what is outstanding is flushed.
    pub fn disconnect(&mut self, qp: QpId) {
        let now = self.now();
        self.with_qp(qp, |queue_pair, world| queue_pair.disconnect(now, world));
        self.drive_all(qp);
    }

    /// Destroys a queue pair and returns the receive of a shared queue that it had taken and not finished.
    pub fn destroy_qp_with_receive(&mut self, qp: QpId) -> Option<u64> {
        let now = self.now();
        let taken = self.with_qp(qp, |queue_pair, world| {
            queue_pair.shared_queue()?;
            // ERR is legal from every state, and flushes what is in hand.
            let _ = queue_pair.modify(now, &Modify { state: Some(State::Error), ..Modify::default() }, world);
            let mut taken = None;
            while let Some(completion) = queue_pair.poll_completion(now, world) {
                taken = matches!(completion.queue, Queue::Shared(_)).then_some(completion.wr_id).or(taken);
            }
            taken
        });
        self.destroy_qp(qp);
        taken
    }

    /// Ends the membership of a queue pair in a multicast group.
    pub fn leave_group(&mut self, qp: QpId, group: Gid) {
        let groups = &mut self.hosts[qp.host.index()].groups;
        let Some(members) = groups.get_mut(&group) else { return };
        members.retain(|member| *member != qp.qpn);
        if members.is_empty()
            && let Some(hosts) = self.net.groups.get_mut(&group)
        {
            hosts.retain(|host| *host != qp.host);
        }
    }

    /// A host loses its power: its queue pairs, shared receive queues and memory are gone, and what has arrived is not
    /// looked at. What it has sent is still under way. It keeps its addresses.
    pub fn lose_power(&mut self, host: HostId) {
        let mut numbers: Vec<Qpn> = self.hosts[host.index()].by_number.keys().copied().collect();
        numbers.sort();
        for qpn in numbers {
            self.leave_all_groups(QpId { host, qpn });
            self.destroy_qp(QpId { host, qpn });
        }
        self.hosts[host.index()].world.lose_power();
        self.management.retain(|(to, _)| *to != host);
    }

    /// Ends all memberships of a queue pair.
    pub fn leave_all_groups(&mut self, qp: QpId) {
        let mut groups: Vec<Gid> = self.hosts[qp.host.index()].groups.keys().copied().collect();
        groups.sort();
        for group in groups {
            self.leave_group(qp, group);
        }
    }
}

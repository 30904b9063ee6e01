//! Hosts where no process has port 4791 any more. A process that is killed cannot disconnect, and where it was the only
//! one of its host no survivor speaks for it ([`super::death`]); a kernel would. So each host that we are connected to
//! is sent a reminder of one of the connections, every [`HOST_PROBE_INTERVAL`]: a message that the peer passes over. If
//! no process has the port, the host's kernel sends the message back, and after [`HOST_PROBES_REFUSED`] of them in a
//! row all connections to that host end, as if their peers had disconnected.
//!
//! A process that is stopped keeps its port, so its connections stand. Hosts that do not answer are not known to be
//! deserted: those that are switched off or cut off, and those with an RDMA adapter. A stranger can make up what a
//! kernel sends back, but not the number that each reminder carries. A process that is started within a second of
//! another's death has the port then: connections of the dead one stand, until the program uses them.

use super::{Inner, mad, secret};
use crate::nic::Nic;
use crate::tuning::{HOST_PROBE_AGAIN, HOST_PROBE_INTERVAL, HOST_PROBES_REFUSED};
use ::cm::IdKey;
use ::cm::id::Stage;
use link::udp::{Family, PortProbe};
use std::collections::HashMap;
use transport::Time;
use wire::Gid;
use wire::cm::CommId;

/// A random number, which no stranger can guess.
type Nonce = [u8; 16];

/// The hosts that are asked.
#[derive(Debug, Default)]
pub(super) struct HostProbes {
    /// For IPv4 and IPv6, opened for the first host of each.
    v4: Option<PortProbe>,
    v6: Option<PortProbe>,
    hosts: HashMap<Gid, HostProbe>,
    next: Option<Time>,
}

#[derive(Debug)]
struct HostProbe {
    /// What the last reminder carried.
    nonce: Nonce,
    /// It has come back.
    is_refused: bool,
    /// How many have in a row, and when the first of them was sent.
    refusals: u8,
    since: Time,
}

impl HostProbes {
    /// Takes what has come back.
    fn take_refusals(&mut self) {
        let HostProbes { v4, v6, hosts, .. } = self;
        for probe in [v4, v6].into_iter().flatten() {
            probe.refusals(|from, quote| {
                if let Some(host) = hosts.get_mut(&Gid::from_ip(from)) {
                    host.is_refused |= quote.windows(host.nonce.len()).any(|part| part == host.nonce);
                }
            });
        }
    }

    /// The socket for a host. Where none can be opened the host is not asked.
    fn socket(&mut self, host: Gid) -> Option<&mut PortProbe> {
        let (socket, family) = match host.to_ip().is_ipv4() {
            true => (&mut self.v4, Family::V4),
            false => (&mut self.v6, Family::V6),
        };
        if socket.is_none() {
            *socket = PortProbe::open(family).ok();
        }
        socket.as_mut()
    }
}

impl Inner {
    /// Asks the hosts that we are connected to, if it is time, and ends the connections to those that are deserted.
    /// Returns when to do so again.
    pub(super) fn probe_hosts(&mut self, nic: &Nic, now: Time) -> Option<Time> {
        if self.host_probes.next.is_some_and(|next| next > now) {
            return self.host_probes.next;
        }
        if self.connection_records.is_empty() {
            self.host_probes = HostProbes::default();
            return None;
        }
        if self.host_probes.next.is_some() {
            self.end_connections_to_deserted(now);
            self.send_reminders(nic, now);
        }
        let suspicious = self.host_probes.hosts.values().any(|host| host.refusals > 0);
        self.host_probes.next = Some(now + if suspicious { HOST_PROBE_AGAIN } else { HOST_PROBE_INTERVAL });
        self.host_probes.next
    }

    fn end_connections_to_deserted(&mut self, now: Time) {
        self.host_probes.take_refusals();
        let mut deserted = HashMap::new();
        for (&gid, host) in &mut self.host_probes.hosts {
            host.refusals = if host.is_refused { host.refusals + 1 } else { 0 };
            if host.refusals >= HOST_PROBES_REFUSED {
                deserted.insert(gid, host.since);
            }
        }
        if deserted.is_empty() {
            return;
        }
        // A process that was started meanwhile may have connections already.
        let has_ended =
            |(_, since, _, host): &(IdKey, Time, CommId, Gid)| deserted.get(host).is_some_and(|at| since < at);
        let ended: Vec<_> = self.connections_to_hosts().filter(has_ended).map(|(key, ..)| key).collect();
        self.host_probes.hosts.retain(|gid, _| !deserted.contains_key(gid));
        ended.into_iter().for_each(|key| self.ids.peer_died(now, key));
    }

    /// Sends each host a reminder of one of its connections, any of them.
    fn send_reminders(&mut self, nic: &Nic, now: Time) {
        let mut chosen: HashMap<Gid, (u64, CommId)> = HashMap::new();
        for (_, _, communication, host) in self.connections_to_hosts() {
            let (count, chosen) = chosen.entry(host).or_insert((0, communication));
            *count += 1;
            if ::host::random().is_multiple_of(*count) {
                *chosen = communication;
            }
        }
        self.host_probes.hosts.retain(|gid, _| chosen.contains_key(gid));
        for (gid, (_, communication)) in chosen {
            let nonce: Nonce = secret::random();
            let Some(transmit) = self.ids.manager.reminder(communication, &nonce) else { continue };
            let host = self.host_probes.hosts.entry(gid).or_insert(HostProbe {
                nonce,
                is_refused: false,
                refusals: 0,
                since: now,
            });
            (host.nonce, host.is_refused) = (nonce, false);
            if host.refusals == 0 {
                host.since = now;
            }
            self.psn = self.psn.wrapping_add(1);
            if let Some(socket) = self.host_probes.socket(gid) {
                mad::probe(&nic.ground, socket, &transmit, self.psn);
            }
        }
    }

    /// The connections that stand with other hosts: since when, what they are called here, and the host.
    fn connections_to_hosts(&self) -> impl Iterator<Item = (IdKey, Time, CommId, Gid)> + use<'_> {
        self.handles.iter().filter(|(_, handle)| handle.recorded_at.is_some()).filter_map(|(key, handle)| {
            let record = self.ids.get(*key).filter(|record| record.stage == Stage::Connected)?;
            Some((*key, handle.recorded_since, record.communication?, record.path?.dgid))
        })
    }
}

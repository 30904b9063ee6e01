//! How a queue pair keeps to its rate, and how it hears and tells of congestion: marked packets are answered with
//! notifications (CNPs), and notifications slow it down. A queue pair that nothing slows down has no rate, and every
//! question here is one comparison for it.

use super::{QueuePair, State};
use crate::attributes::AddressVector;
use crate::port::Port;
use crate::rate::{Flow, Rate, RateLimit, static_rate_kbps};
use crate::train::{Inbound, Payload, Train};
use crate::work::DatagramTarget;
use alloc::boxed::Box;
use trace::{DropReason, Time};
use wire::{Gid, Headers, Opcode, Psn, Qpn, grh_destination};

/// A congestion notification goes out at most this often, and is believed no more often.
pub(super) const CNP_INTERVAL: u64 = 50_000;

/// Addresses that datagrams went to lately. Who was not among them has no business to slow a sender of datagrams down.
#[derive(Debug, Default)]
pub(super) struct RecentTargets {
    gids: [Gid; 4],
    next: usize,
}

impl RecentTargets {
    #[inline]
    pub fn note(&mut self, gid: Gid) {
        if !self.gids.contains(&gid) {
            self.gids[self.next] = gid;
            self.next = (self.next + 1) % self.gids.len();
        }
    }

    pub fn contains(&self, gid: Gid) -> bool {
        gid != Gid::default() && self.gids.contains(&gid)
    }
}

/// A datagram that came with a mark.
#[derive(Debug)]
pub(super) struct MarkedDatagram {
    sender: DatagramTarget,
    /// To which of our addresses it came.
    address: Option<Gid>,
}

impl QueuePair {
    /// From which address the notification goes that is owed to the sender of a datagram, if one is: the one it had
    /// sent to, as it believes no other. The address vector of its train does not know it.
    #[inline]
    pub fn owes_notification_from(&self) -> Option<Gid> {
        if self.cnp_owed { self.marked_by.as_ref().and_then(|marked| marked.address) } else { None }
    }

    /// What congestion leaves of the line rate at this moment, in bit/s; none if it takes nothing.
    pub fn congested_rate(&mut self, now: Time) -> Option<u64> {
        self.rate.as_mut().and_then(|rate| rate.congested_rate(now))
    }

    /// How many full packets may be sent now; none before [`paced_until`](QueuePair::paced_until).
    #[inline]
    pub(super) fn allowance(&mut self, now: Time, flow: Flow) -> Option<u32> {
        if self.rate.is_none() { Some(u32::MAX) } else { self.paced_allowance(now, flow) }
    }

    #[cold]
    fn paced_allowance(&mut self, now: Time, flow: Flow) -> Option<u32> {
        let rate = self.rate.as_mut()?;
        if rate.is_over(now) {
            self.rate = None;
            return Some(u32::MAX);
        }
        rate.grant(now, flow, self.connection.mtu()).ok()
    }

    /// Packets go out, with so much payload in all.
    #[inline]
    pub(super) fn spend(&mut self, now: Time, flow: Flow, packets: u32, payload: u32) {
        if let Some(rate) = &mut self.rate {
            rate.spent(now, flow, packets, payload);
        }
    }

    /// When something goes out that waits because of the rate.
    #[inline]
    pub fn paced_until(&self) -> Option<Time> {
        self.rate.as_ref().and_then(|rate| rate.waits_until())
    }

    /// The limit of the program is another, or the way, which may have one of its own.
    pub(super) fn limit_rate(&mut self, now: Time) {
        let attributes = &self.connection.attributes;
        let mut limit = attributes.rate_limit;
        let way = static_rate_kbps(attributes.av.static_rate).filter(|_| self.connection.kind.is_connected());
        if let Some(kbps) = way
            && (limit.kbps == 0 || kbps < limit.kbps)
        {
            limit = RateLimit { kbps, ..limit };
        }
        match &mut self.rate {
            Some(rate) => rate.set_limit(limit),
            None if limit.kbps > 0 => self.rate.insert(Box::new(Rate::new(now))).set_limit(limit),
            None => {}
        }
    }

    /// A packet arrived that the network had marked: its sender is to hear of it, unless it has just done.
    #[cold]
    pub(super) fn note_mark(&mut self, now: Time, inbound: &Inbound<'_>) {
        if self.last_cnp.is_some_and(|last| now.since(last) < CNP_INTERVAL) {
            return;
        }
        if self.connection.kind.is_connected() {
            self.cnp_owed = true;
        } else if let Some(deth) = inbound.headers.deth
            // A group would answer one packet with as many notifications as it has members.
            && inbound.headers.bth.dest_qpn != Qpn::MULTICAST
        {
            let av = AddressVector { dgid: inbound.from, ..AddressVector::default() };
            let sender = DatagramTarget { av, qpn: deth.src_qpn, qkey: deth.qkey };
            self.marked_by = Some(Box::new(MarkedDatagram { sender, address: grh_destination(inbound.grh) }));
            self.cnp_owed = true;
        }
    }

    /// The notification that is owed.
    #[cold]
    pub(super) fn notify_congestion<P: Port>(&mut self, now: Time, port: &mut P) -> Train<'_> {
        self.cnp_owed = false;
        self.last_cnp = Some(now);
        self.incidents.cnps_sent += 1;
        self.traffic.sent(Opcode::Cnp, 1, Headers::CNP_PAYLOAD.len() as u32, self.ip_header);
        let mut headers = self.connection.response(Opcode::Cnp, Psn::default());
        headers.bth.becn = true;
        if let Some(marked) = &self.marked_by {
            headers.bth.dest_qpn = marked.sender.qpn;
        }
        let train = self.answer_train(now, &headers, 1, Payload::Bytes(&Headers::CNP_PAYLOAD), port);
        match &self.marked_by {
            Some(marked) => Train { to: &marked.sender.av, ..train },
            None => train,
        }
    }

    /// Whether to believe a notification, as far as its sender goes. It is about requests, or about the answers to
    /// READs, which go out as soon as requests come in.
    pub(super) fn screen_notification(&self, from: Gid) -> Result<(), DropReason> {
        let (connection, state) = (&self.connection, self.state());
        let (speaks, known) = match connection.kind.is_connected() {
            true => (state.receives(), from == connection.attributes.av.dgid),
            false => (matches!(state, State::ReadyToSend | State::SendQueueDrained), self.recent.contains(from)),
        };
        match (speaks, known) {
            (false, _) => Err(DropReason::WrongState),
            (true, false) => Err(DropReason::WrongSource),
            (true, true) => Ok(()),
        }
    }

    /// A notification came from a peer.
    #[cold]
    pub(super) fn handle_notification<P: Port>(&mut self, now: Time, headers: &Headers, port: &mut P) {
        if !self.limits.obeys_congestion {
            self.incidents.cnps_ignored += 1;
            return self.dropped(now, Some(headers), DropReason::CnpUnwanted, port);
        }
        if self.believed_cnp.is_some_and(|last| now.since(last) < CNP_INTERVAL) {
            self.incidents.cnps_ignored += 1;
            return self.dropped(now, Some(headers), DropReason::CnpTooSoon, port);
        }
        self.believed_cnp = Some(now);
        self.incidents.cnps_handled += 1;
        let rate = self.rate.get_or_insert_with(|| Box::new(Rate::new(now)));
        let (from, to) = rate.notified(now, self.limits.line_rate);
        self.trace(now, port, || trace::Kind::RateChanged { from, to });
    }
}

//! What a queue pair does over UDP: packets out, packets in, and the acknowledgements that go along; and datagrams, over whatever link.

use super::{Inner, LastWay, Qp};
use crate::debt::Debt;
use crate::host::Host;
use crate::nic::Nic;
use crate::path::{Link, Path};
use crate::udp::Outgoing;
use link::udp::{Arrival, Route, SendError};
use std::sync::atomic::Ordering;
use transport::{AddressVector, Inbound, SendRequest, Time, Train};
use wire::{Headers, Operation, Qpn, grh_bytes};

/// How many trains are sent from copies after one had to be sent again.
const COPIES: u32 = 256;

impl Qp {
    /// Whether a train may be sent from the program's memory. Not one that is sent again: perhaps the program changes what it sends, and would change it
    /// again. Then neither are those that follow, for a while.
    pub(crate) fn may_lend(&self, retransmission: bool) -> bool {
        let copies = if retransmission { COPIES } else { self.copies.load(Ordering::Relaxed) };
        if copies > 0 {
            self.copies.store(copies - 1, Ordering::Relaxed);
        }
        copies == 0
    }

    /// Takes packets that came over UDP, and are for it. Answers how many it has taken since it was driven: somebody must see to it that it is.
    pub(crate) fn take_arrivals(&self, nic: &Nic, now: Time, run: &[Arrival<'_>]) -> u32 {
        let mut inner = self.inner.lock();
        let Inner { pair, windows, touched, .. } = &mut *inner;
        let mut host = Host { nic, windows, xrc_domain: self.xrc_domain };
        *touched += run.len() as u32;
        let Some(first) = run.first() else { return *touched };
        // One sender has sent them all. Who it is is written down once: what was written in parts and is read as a whole waits until everything stored
        // before it is in the cache, and that is the payload of the packet before.
        let mut inbound = Inbound {
            headers: &first.headers,
            count: 1,
            payload: first.payload,
            from: first.source(),
            grh: &[0; 40],
            congestion_marked: first.congestion_marked,
        };
        for arrival in run {
            (inbound.headers, inbound.payload) = (&arrival.headers, arrival.payload);
            inbound.congestion_marked = arrival.congestion_marked;
            match self.kind.is_connected() {
                true => pair.handle(now, &inbound, &mut host),
                // Only a receiver of datagrams is shown it.
                false => pair.handle(now, &Inbound { grh: &grh_bytes(&arrival.ip), ..inbound }, &mut host),
            }
        }
        *touched
    }

    /// Sends work over UDP the short way, as long as it may go that way. Answers how many requests were posted, and whether nothing more is to be
    /// done about them.
    pub(super) fn send_at_once(
        &self,
        nic: &Nic,
        inner: &mut Inner,
        requests: &[SendRequest<'_>],
        now: Time,
    ) -> (usize, bool) {
        let Inner { pair, windows, path, debt, .. } = inner;
        let mut host = Host { nic, windows, xrc_domain: self.xrc_domain };
        // Who captures wants whole trains.
        let Some(route) = path.route.as_ref().filter(|_| nic.capture().is_none()) else { return (0, false) };
        let mut outgoing = nic.outgoing(self.qpn);
        let mut sent = 0;
        for request in requests {
            let Some(at_once) = pair.may_send_at_once(request, &mut host) else { break };
            sent += 1;
            let payload = pair.payload_at_once(request, &at_once);
            let put = outgoing.send_one(route, at_once.to(), (at_once.len(), payload.len() as usize), |front, body| {
                at_once.encode(front);
                payload.copy(0, body, &mut host)
            });
            self.accompany(nic, pair, route, debt, now, &mut outgoing);
            if sent == requests.len() {
                // The peer need not wait until it has been booked.
                outgoing.flush();
            }
            pair.sent_at_once(now, request, &at_once, &mut host);
            if let Err(SendError::Payload(refusal)) = put {
                pair.transmit_refused(now, refusal, &mut host);
                return (sent, false);
            }
        }
        (sent, sent == requests.len() && !pair.may_transmit())
    }

    /// Sends the acknowledgement that should go along with a request, if one should.
    #[inline]
    fn accompany(
        &self,
        nic: &Nic,
        pair: &transport::QueuePair,
        route: &Route,
        debt: &mut Debt,
        now: Time,
        outgoing: &mut Outgoing<'_>,
    ) {
        if let Some((psn, msn)) = debt.goes_with(now, nic.debtor()) {
            nic.acknowledge(route, &pair.acknowledgement(psn, msn), outgoing);
            debt.paid(nic.debtor());
        }
    }

    /// Sends what there is to send, but for an acknowledgement that may wait.
    pub(super) fn transmit_packets(&self, nic: &Nic, inner: &mut Inner, now: Time) {
        let Inner { pair, windows, path, debt, .. } = &mut *inner;
        let mut host = Host { nic, windows, xrc_domain: self.xrc_domain };
        let may_wait = pair.owes_acknowledgement_only() && matches!(path.link, Link::Udp) && nic.capture().is_none();
        if may_wait
            && debt.may_hold(nic.debtor(), self.qpn, || nic.engine().is_leased() && !nic.trace.is_on())
            && let Some(acknowledgement) = pair.take_acknowledgement(&host)
        {
            return debt.hold(acknowledgement, now, nic.debtor());
        }
        let mut outgoing = nic.outgoing(self.qpn);
        while pair.may_transmit()
            && let Some(train) = pair.poll_transmit(now, &mut host)
        {
            let opcode = train.headers.bth.opcode;
            let sent = nic.send(self, path, &train, &mut outgoing, &mut host);
            if opcode.operation() == Operation::Acknowledge {
                // What was held is part of it.
                debt.paid(nic.debtor());
            } else if let Some(route) = path.route.as_ref().filter(|_| opcode.is_request()) {
                self.accompany(nic, pair, route, debt, now, &mut outgoing);
            }
            if let Err(refusal) = sent {
                pair.transmit_refused(now, refusal, &mut host);
            }
        }
    }

    pub(super) fn transmit_datagrams(&self, nic: &Nic, inner: &mut Inner, now: Time) {
        let Inner { pair, windows, last, held, .. } = &mut *inner;
        let mut host = Host { nic, windows, xrc_domain: self.xrc_domain };
        let mut outgoing = nic.outgoing(self.qpn);
        while pair.may_transmit() {
            if let Some(target) = pair.next_datagram() {
                let path = self.way(nic, last, &target.av, target.qpn);
                if held.holds_back(nic, self.qpn, path, now) {
                    return;
                }
            }
            // What comes may be another: work that cannot be done takes no way.
            let Some(train) = pair.poll_transmit(now, &mut host) else { return };
            let path = self.way(nic, last, train.to, train.headers.bth.dest_qpn);
            if let Err(refusal) = nic.send(self, path, &train, &mut outgoing, &mut host) {
                pair.transmit_refused(now, refusal, &mut host);
            }
        }
    }

    /// The way of a datagram, which mostly is that of the one before.
    #[inline]
    fn way<'a>(&self, nic: &Nic, last: &'a mut Option<LastWay>, to: &AddressVector, qpn: Qpn) -> &'a Path {
        let epoch = nic.epoch();
        if last.as_ref().is_some_and(|last| last.qpn != qpn || last.epoch != epoch || last.to != *to) {
            *last = None;
        }
        let found = || LastWay { to: *to, qpn, epoch, path: nic.path(self.context.device(), to, qpn, self.lane()) };
        &last.get_or_insert_with(found).path
    }
}

/// A train as the UDP link wants it.
pub(crate) struct TrainCargo<'a, 'b, 'c> {
    pub train: &'a Train<'a>,
    pub host: &'b mut Host<'c>,
}

impl link::udp::Cargo for TrainCargo<'_, '_, '_> {
    type Error = transport::Refusal;

    fn count(&self) -> u32 {
        self.train.count
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        (self.train.packet(index), self.train.slice(index).1 as usize)
    }

    fn follows(&self, index: u32) -> bool {
        self.train.follows(index)
    }

    fn goes_on(&self) -> bool {
        let bth = &self.train.headers.bth;
        bth.opcode.is_request() && !bth.opcode.ends() && !bth.ack_req
    }

    fn payload(&mut self, index: u32, out: &mut [u8]) -> Result<(), transport::Refusal> {
        self.train.payload.copy(self.train.slice(index).0, out, self.host)
    }
}

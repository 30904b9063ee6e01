//! What a queue pair does over UDP: packets out, packets in, and the acknowledgements that go along; and datagrams,
//! over whatever link.

use super::{Inner, LastWay, Qp};
use crate::ground::Ground;
use crate::links::path::{Link, Path};
use crate::links::udp::Outgoing;
use crate::progress::delayed_ack::DelayedAck;
use crate::queue_pair::datagrams::{DatagramRoom, write_datagram};
use crate::queue_pair::port::{GpuTrains, NicPort};
use crate::queue_pair::refusal::is_refusal;
use crate::tuning::COPIES_AFTER_RETRANSMISSION;
use link::udp::{Arrival, Route, SendError};
use std::sync::atomic::Ordering;
use trace::DropReason;
use transport::{AddressVector, Inbound, Kind, Refusal, SendRequest, Time, Train};
use wire::{Gid, Headers, Opcode, Operation, Qpn, grh_bytes};

impl Qp {
    /// Whether a train may be sent from the program's memory. Not one that is sent again: perhaps the program changes
    /// what it sends, and would change it again. Then neither are those that follow, for a while.
    pub(crate) fn may_lend(&self, retransmission: bool) -> bool {
        let copies = if retransmission { COPIES_AFTER_RETRANSMISSION } else { self.copies.load(Ordering::Relaxed) };
        if copies > 0 {
            self.copies.store(copies - 1, Ordering::Relaxed);
        }
        copies == 0
    }

    /// Takes packets that came over UDP, and are for it. Returns how many it has taken since it was driven: the caller
    /// must see to it that it is.
    pub(crate) fn take_arrivals(&self, nic: &Ground, now: Time, run: &[Arrival<'_>]) -> u32 {
        let mut inner = self.inner.lock();
        let Inner { pair, windows, weak, touched, belief, path, order, .. } = &mut *inner;
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        let Some(first) = run.first() else { return *touched };
        let takes = match self.kind.is_connected() {
            true => belief.takes_from_port(&nic.host, &path.link, first.port, now),
            false => belief.takes_any(),
        };
        if let Err(reason) = takes {
            run.iter().for_each(|arrival| nic.dropped(now, Some(self.qpn), Some(&arrival.headers), reason));
            return *touched;
        }
        *touched += run.len() as u32;
        let may_be_overtaken = self.kind == Kind::UnreliableConnected && belief.is_of_this_host();
        // One sender has sent them all. Its address is written down once: what was written in parts and is read as a
        // whole waits until everything stored before it is in the cache, and that is the payload of the packet before.
        let mut inbound = Inbound {
            headers: &first.headers,
            count: 1,
            payload: first.payload,
            from: first.source(),
            grh: &[0; 40],
            congestion_marked: first.congestion_marked,
        };
        for arrival in run {
            if may_be_overtaken && order.is_late(pair.is_behind(arrival.headers.bth.psn), now) {
                nic.dropped(now, Some(self.qpn), Some(&arrival.headers), DropReason::Overtaken);
                continue;
            }
            (inbound.headers, inbound.payload) = (&arrival.headers, arrival.payload);
            if !self.kind.is_connected() && arrival.headers.bth.dest_qpn == Qpn::MULTICAST {
                pair.incidents().multicast_received_packets += 1;
            }
            inbound.congestion_marked = arrival.congestion_marked;
            self.handle_counted(pair, &inbound, &mut port, |pair, port| match self.kind.is_connected() {
                true => pair.handle(now, &inbound, port),
                // Only a receiver of datagrams is shown it.
                false => pair.handle(now, &Inbound { grh: &grh_bytes(&arrival.ip), ..inbound }, port),
            });
        }
        *touched
    }

    /// Sends work over UDP the short way, as long as it may go that way. Returns how many requests were posted, and
    /// whether nothing more is to be done about them.
    pub(super) fn send_at_once(
        &self,
        nic: &Ground,
        inner: &mut Inner,
        requests: &[SendRequest<'_>],
        first: usize,
        now: Time,
    ) -> (usize, bool) {
        let Inner { pair, windows, weak, path, delayed_ack, belief, .. } = inner;
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        // A capture wants whole trains.
        let Some(route) = path.route.as_ref().filter(|_| nic.records.capture.is_none()) else { return (0, false) };
        belief.expects_answer(&nic.host, now);
        let mut outgoing = nic.outgoing(self.qpn);
        let mut sent = 0;
        for request in requests {
            let Some(at_once) = pair.may_send_at_once(request, &mut port) else { break };
            sent += 1;
            let payload = pair.payload_at_once(request, &at_once);
            let put = outgoing.send_one(route, at_once.to(), (at_once.len(), payload.len() as usize), |front, body| {
                at_once.encode(front);
                payload.copy(0, body, &mut port)
            });
            self.accompany(nic, pair, route, delayed_ack, now, &mut outgoing);
            if nic.records.trace.is_on() {
                nic.records.tell_send(now, self.qpn, first + sent - 1, request);
            }
            pair.sent_at_once(now, request, &at_once, &mut port);
            if let Err(SendError::Payload(refusal)) = put {
                pair.transmit_refused(now, refusal, &mut port);
                return (sent, false);
            }
        }
        (sent, sent == requests.len() && !pair.may_transmit())
    }

    /// Asks the peer over UDP whether its queue pair is still there, unless it is another peer, or requests are under
    /// way, which ask it too. Returns whether it was asked.
    pub(crate) fn ask_peer(&self, nic: &Ground, host: Gid, peer: Qpn) -> bool {
        let mut inner = self.inner.lock();
        let Inner { pair, path, .. } = &mut *inner;
        let attributes = pair.attributes();
        if !matches!(path.link, Link::Udp) || attributes.av.dgid != host || attributes.dest_qpn != peer {
            return false;
        }
        let (Some(route), Some(question)) = (&path.route, pair.ask_peer()) else { return false };
        nic.send_alone(route, &question, &mut nic.outgoing(self.qpn));
        pair.sent_alone(question.bth.opcode);
        true
    }

    /// Whether this peer, by its address and number, has sent it a packet since it was connected.
    pub(crate) fn has_heard(&self, peer: (Gid, Qpn)) -> bool {
        let inner = self.inner.lock();
        let attributes = inner.pair.attributes();
        (attributes.av.dgid, attributes.dest_qpn) == peer && inner.pair.has_heard()
    }

    /// Whether the peer has answered since.
    pub(crate) fn peer_answered(&self) -> bool {
        self.inner.lock().pair.peer_answered()
    }

    /// Sends the acknowledgement that should go along with a request, if one should.
    #[inline]
    fn accompany(
        &self,
        nic: &Ground,
        pair: &mut transport::QueuePair,
        route: &Route,
        delayed_ack: &mut DelayedAck,
        now: Time,
        outgoing: &mut Outgoing<'_>,
    ) {
        if let Some((psn, msn)) = delayed_ack.goes_with(now, nic.delayed_ack_owner()) {
            nic.send_alone(route, &pair.acknowledgement(psn, msn), outgoing);
            pair.sent_alone(Opcode::RcAcknowledge);
            delayed_ack.paid(nic.delayed_ack_owner());
        }
    }

    /// Sends what there is to send, but for an acknowledgement that may wait.
    pub(super) fn transmit_packets(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        let Inner { pair, windows, weak, path, delayed_ack, belief, .. } = &mut *inner;
        if matches!(path.link, Link::Udp) && pair.may_transmit() {
            belief.expects_answer(&nic.host, now);
        }
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        let may_wait =
            pair.owes_acknowledgement_only() && matches!(path.link, Link::Udp) && nic.records.capture.is_none();
        if may_wait
            && delayed_ack.may_hold(nic.delayed_ack_owner(), self.qpn, || {
                nic.progress.engine.is_leased() && !nic.records.trace.is_on()
            })
            && let Some(acknowledgement) = pair.take_acknowledgement(&port)
        {
            pair.incidents().acknowledgements_deferred += 1;
            return delayed_ack.hold(acknowledgement, now, nic.delayed_ack_owner());
        }
        let mut outgoing = nic.outgoing(self.qpn);
        while pair.may_transmit()
            && let Some(train) = pair.poll_transmit(now, &mut port)
        {
            let opcode = train.headers.bth.opcode;
            if let Link::General(entry) = &path.link
                && is_refusal(&train.headers)
            {
                if let Some(capture) = &nic.records.capture {
                    nic.capture_sent(
                        &mut capture.lock(),
                        self,
                        path,
                        &mut TrainCargo { train: &train, port: &mut port },
                    );
                }
                let headers = train.headers;
                let reason = nic.reason_of(pair, &headers);
                let reason = reason.as_ref().map_or(&[][..], |reason| &reason[..]);
                nic.refuse_through(entry.link(), self.qpn, path, &headers, reason);
                continue;
            }
            let sent = nic.send(self, path, &train, &mut outgoing, &mut port);
            if opcode.operation() == Operation::Acknowledge {
                // What was held is part of it.
                delayed_ack.paid(nic.delayed_ack_owner());
            } else if let Some(route) = path.route.as_ref().filter(|_| opcode.is_request()) {
                self.accompany(nic, pair, route, delayed_ack, now, &mut outgoing);
            }
            if let Err(refusal) = sent {
                pair.transmit_refused(now, refusal, &mut port);
            }
        }
    }

    pub(super) fn transmit_datagrams(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        let Inner { pair, windows, weak, last, held, .. } = &mut *inner;
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        let mut outgoing = nic.outgoing(self.qpn);
        while pair.may_transmit() {
            let reserved = pair.next_datagram().map(|target| {
                let way = self.way(nic, last, &target.av, target.qpn);
                (&*way, held.room(nic, self.qpn, &way.path, now))
            });
            if let Some((_, DatagramRoom::Wait)) = reserved {
                return pair.keep_datagrams(&mut port);
            }
            let notifies_from = pair.owes_notification_from();
            let Some(train) = pair.poll_transmit(now, &mut port) else { return };
            let (mut to, qpn) = (train.to, train.headers.bth.dest_qpn);
            let answer;
            if let Some(address) = notifies_from {
                let own = self.port_device().port().gids.iter().position(|gid| *gid == Some(address));
                answer = AddressVector { sgid_index: own.unwrap_or(0) as u8, ..*to };
                to = &answer;
            }
            let sent = match reserved {
                Some((way, room)) if way.leads_to(to, qpn) => {
                    self.send_datagram(nic, &way.path, room, &train, &mut outgoing, &mut port, now)
                }
                // Work that cannot be done takes no way, and this is what was behind it.
                reserved => {
                    drop(reserved);
                    let way = self.way(nic, last, to, qpn);
                    // It does not wait: that was decided before it was taken from its queue.
                    let room = match held.room(nic, self.qpn, &way.path, now) {
                        DatagramRoom::Wait => DatagramRoom::Lost,
                        room => room,
                    };
                    self.send_datagram(nic, &way.path, room, &train, &mut outgoing, &mut port, now)
                }
            };
            if let Err(refusal) = sent {
                pair.transmit_refused(now, refusal, &mut port);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "two call sites; every argument is a different thing")]
    fn send_datagram(
        &self,
        nic: &Ground,
        path: &Path,
        room: DatagramRoom<'_>,
        train: &Train<'_>,
        outgoing: &mut Outgoing<'_>,
        port: &mut NicPort<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        match room {
            DatagramRoom::Ring(writer) => {
                if let Some(capture) = &nic.records.capture {
                    nic.capture_sent(&mut capture.lock(), self, path, &mut TrainCargo { train, port });
                }
                write_datagram(&nic.records, writer, path, train, port)
            }
            DatagramRoom::Elsewhere => nic.send(self, path, train, outgoing, port),
            DatagramRoom::Lost | DatagramRoom::Wait => {
                nic.dropped(now, Some(self.qpn), Some(&train.headers), DropReason::Overflow);
                Ok(())
            }
        }
    }

    /// The way of a datagram, which mostly is that of the one before.
    #[inline]
    fn way<'a>(&self, nic: &Ground, last: &'a mut Option<LastWay>, to: &AddressVector, qpn: Qpn) -> &'a mut LastWay {
        let epoch = nic.links.epoch();
        if last.as_ref().is_some_and(|last| last.epoch != epoch || !last.leads_to(to, qpn)) {
            *last = None;
        }
        let found = || LastWay { to: *to, qpn, epoch, path: nic.path(self.context.device(), to, qpn, self.lane()) };
        last.get_or_insert_with(found)
    }
}

/// A train as the UDP link wants it.
pub(crate) struct TrainCargo<'a, 'b, 'c> {
    pub train: &'a Train<'a>,
    pub port: &'b mut NicPort<'c>,
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
        self.train.payload.copy(self.train.slice(index).0, out, self.port)
    }
}

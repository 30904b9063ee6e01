//! The common case, in one go. Most messages are a SEND or WRITE of one packet on a reliable connection, with nothing
//! before it that waits and nothing wrong with it: such a message is posted and handed out, or taken and completed,
//! without a step per pipeline. Whatever is out of the ordinary is left untouched, for the long way. Both ways leave
//! the queue pair in the same state.

use super::{Handed, QueuePair, State};
use crate::congestion::Window;
use crate::port::{Port, Toward};
use crate::responder::responses;
use crate::state::Kind;
use crate::train::{Inbound, Payload, Train, pad};
use crate::work::{Data, Operation, SendFlags, SendRequest};
use trace::Time;
use wire::{Aeth, Bth, Gid, Headers, Msn, Opcode, Psn, Qpn, Reth, Syndrome};

/// A request that can be sent now and whole: what its packet says, and what it costs.
#[derive(Clone, Copy, Debug)]
pub struct AtOnce {
    bth: Bth,
    reth: Option<Reth>,
    immediate: Option<u32>,
    /// The path MTU.
    pub mtu: u32,
    length: u32,
    charge: u64,
    lossless: bool,
}

// The encoded length; headers are never empty.
#[allow(clippy::len_without_is_empty)]
impl AtOnce {
    /// Its headers, as anybody may read them.
    pub fn headers(&self) -> Headers {
        let mut headers = Headers::new(self.bth.opcode, self.bth.dest_qpn, self.bth.psn);
        (headers.bth, headers.reth, headers.immediate) = (self.bth, self.reth, self.immediate);
        headers
    }

    /// How long its headers are.
    #[inline]
    pub fn len(&self) -> usize {
        let immediate = if self.immediate.is_some() { 4 } else { 0 };
        Bth::LEN + if self.reth.is_some() { Reth::LEN } else { 0 } + immediate
    }

    /// The queue pair it is for.
    #[inline]
    pub fn to(&self) -> Qpn {
        self.bth.dest_qpn
    }

    /// Whether it reaches for the peer's memory, and the peer's program hears nothing of it.
    #[inline]
    pub fn is_one_sided(&self) -> bool {
        self.reth.is_some() && self.immediate.is_none()
    }

    /// Writes its headers to `out`, which is as long as they are. Returns whether they were.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> bool {
        let Some((bth, rest)) = out.split_at_mut_checked(Bth::LEN) else { return false };
        let rest = match self.reth {
            None => rest,
            Some(reth) => {
                let Some((place, rest)) = rest.split_at_mut_checked(Reth::LEN) else { return false };
                if reth.encode(place).is_err() {
                    return false;
                }
                rest
            }
        };
        let fits = match self.immediate {
            None => rest.is_empty(),
            Some(immediate) => {
                let fits = rest.len() == 4;
                if fits {
                    rest.copy_from_slice(&immediate.to_be_bytes());
                }
                fits
            }
        };
        fits && self.bth.encode(bth).is_ok()
    }
}

impl QueuePair {
    /// Posts work and hands out its train, if it can be sent now and whole. `None` if it cannot: then nothing has
    /// happened, and [`post_send`](QueuePair::post_send) takes it or says what is wrong.
    #[inline]
    pub fn send_at_once<'a, P: Port>(
        &'a mut self,
        now: Time,
        request: &SendRequest<'a>,
        port: &mut P,
    ) -> Option<Train<'a>> {
        let at_once = self.may_send_at_once(request, port)?;
        self.sent_at_once(now, request, &at_once, port);
        Some(self.train_at_once(request, &at_once))
    }

    /// The first of three steps of [`send_at_once`](QueuePair::send_at_once), for a link whose peer need not wait for
    /// the last. Once it has answered, [`payload_at_once`](QueuePair::payload_at_once) is what the packet carries, and
    /// [`sent_at_once`](QueuePair::sent_at_once) must follow before anything else.
    #[inline]
    pub fn may_send_at_once<P: Port>(&mut self, request: &SendRequest<'_>, port: &mut P) -> Option<AtOnce> {
        let (opcode, remote, immediate) = match request.operation {
            Operation::Send { immediate: None } => (Opcode::RcSendOnly, None, None),
            Operation::Send { immediate } => (Opcode::RcSendOnlyImmediate, None, immediate),
            Operation::Write { remote, immediate: None } => (Opcode::RcWriteOnly, Some(remote), None),
            Operation::Write { remote, immediate } => (Opcode::RcWriteOnlyImmediate, Some(remote), immediate),
            _ => return None,
        };
        let mtu = self.connection.mtu();
        let length = u32::try_from(request.data.length()).ok().filter(|length| *length <= mtu)?;
        if !self.sends_freely() || request.flags.contains(SendFlags::FENCE) {
            return None;
        }
        if request.target.is_some() || request.xrc_srq.is_some() || !self.queue.may_post(request) {
            return None;
        }
        let psn = self.requester.is_at_the_end(self.completer.una(), &self.queue)?;
        let qpn = self.connection.qpn;
        let lossless = port.is_unlimited(qpn, Toward::Peer);
        let charge = match lossless {
            true => Window::charge_of(length, 1, length),
            false => port.window(qpn, Toward::Peer, |window| window.reserve_one(length))?,
        };
        let bth = Bth {
            pkey: self.connection.pkey,
            solicited: request.flags.contains(SendFlags::SOLICITED),
            ack_req: true,
            pad: pad(length),
            ..Bth::new(opcode, self.connection.attributes.dest_qpn, psn)
        };
        let reth = remote.map(|remote| Reth { va: remote.address, rkey: remote.key, len: length });
        Some(AtOnce { bth, reth, immediate, mtu, length, charge, lossless })
    }

    /// The train of a request that can be sent at once.
    #[inline]
    fn train_at_once<'a>(&'a self, request: &SendRequest<'a>, at_once: &AtOnce) -> Train<'a> {
        let payload = self.payload_at_once(request, at_once);
        let (mtu, to) = (self.connection.mtu(), &self.connection.attributes.av);
        let headers = at_once.headers();
        Train { headers, count: 1, mtu, payload, to, wr_id: Some(request.wr_id), retransmission: false }
    }

    /// Its payload.
    #[inline]
    pub fn payload_at_once<'a>(&self, request: &SendRequest<'a>, at_once: &AtOnce) -> Payload<'a> {
        let length = at_once.length;
        match request.data {
            Data::Inline(bytes) => Payload::Bytes(bytes),
            Data::Gather(_) if length == 0 => Payload::NONE,
            Data::Gather(sges) => Payload::Gather { subject: self.connection.local(), sges, offset: 0, length },
        }
    }

    /// A request is being sent at once: it is posted, and waits for its acknowledgement.
    #[inline]
    pub fn sent_at_once<P: Port>(&mut self, now: Time, request: &SendRequest<'_>, at_once: &AtOnce, port: &mut P) {
        let AtOnce { length, charge, lossless, bth: Bth { psn, .. }, .. } = *at_once;
        let posted = self.queue.post_started(request, length, psn);
        debug_assert!(posted.is_ok(), "there was room");
        let Ok(seq) = posted else { return };
        self.trace_posted(now, request, port);
        self.requester.send_at_once(seq, charge);
        self.traffic.sent(at_once.bth.opcode, 1, length, self.ip_header);
        self.traffic.sends += u64::from(at_once.reth.is_none());
        self.handed = Handed::Request { seq };
        let armed = self.completer.ack_deadline();
        self.completer.trust(lossless);
        self.completer.sent(now, psn, 1, false, false, self.connection.attributes.timeout);
        self.trace_timer(now, armed, port);
        self.trace(now, port, || trace::Kind::PacketSent {
            headers: at_once.headers(),
            payload_len: length,
            packets: 1,
            wr_id: Some(request.wr_id),
            retransmit: false,
        });
    }

    /// Whether nothing but what was posted before stands in the way of the next request.
    #[inline]
    pub(super) fn sends_freely(&self) -> bool {
        self.connection.kind == Kind::ReliableConnected
            && self.state() == State::ReadyToSend
            && self.completer.not_ready_until().is_none()
            && self.rate.is_none()
            && !self.cnp_owed
            && !self.refuses_work
            && !self.drain_owed
            && (!self.responder.owes() || self.responder.owes_acknowledgement_only())
    }

    /// Whether all there is to send is an acknowledgement, which may wait a moment and then stands for those that would
    /// have followed it.
    #[inline]
    pub fn owes_acknowledgement_only(&self) -> bool {
        !self.cnp_owed
            && !self.drain_owed
            && self.responder.owes_acknowledgement_only()
            && !self.requester.has_more(&self.queue)
    }

    /// The acknowledgement that is owed, for a link that carries it along with a request: which packet, and how many
    /// messages. Taken, it must go. Who looks on sees packets, so for them there is none.
    #[inline]
    pub fn take_acknowledgement<P: Port>(&mut self, port: &P) -> Option<(Psn, Msn)> {
        if port.separates_packets() { None } else { self.responder.take_acknowledgement() }
    }

    /// Tells the trace of an acknowledgement that went along with a request.
    #[inline]
    pub fn trace_along<P: Port>(&self, now: Time, along: (Psn, Msn), port: &mut P) {
        self.trace(now, port, || trace::Kind::PacketSent {
            headers: self.acknowledgement(along.0, along.1),
            payload_len: 0,
            packets: 1,
            wr_id: None,
            retransmit: false,
        });
    }

    /// The acknowledgement that is owed as a packet, for a link that carries nothing else.
    pub fn acknowledgement(&self, psn: Psn, msn: Msn) -> Headers {
        responses::acknowledgement(&self.connection, psn, msn, Syndrome::ACK).headers
    }

    /// It did not go after all.
    #[inline]
    pub fn owe_acknowledgement(&mut self, acknowledgement: Option<(Psn, Msn)>) {
        if let Some((psn, msn)) = acknowledgement {
            self.responder.owe_acknowledgement(psn, msn);
        }
    }

    /// Takes an acknowledgement that came along with a request, as if it had come before it as a packet of its own.
    #[inline]
    pub fn handle_acknowledgement<P: Port>(&mut self, now: Time, from: Gid, psn: Psn, msn: Msn, port: &mut P) {
        if self.acknowledge_at_once(now, from, psn, port) {
            self.traffic.received(Opcode::RcAcknowledge, 1, 0, self.ip_header);
        } else {
            let mut headers = Headers::new(Opcode::RcAcknowledge, self.connection.qpn, psn);
            headers.bth.pkey = self.connection.pkey;
            headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn });
            let inbound =
                Inbound { headers: &headers, count: 1, payload: &[], from, grh: &[0; 40], congestion_marked: false };
            self.handle(now, &inbound, port);
        }
    }

    /// The acknowledgement of one request, when nothing went wrong before. False if it is not that, and then nothing
    /// has happened.
    #[inline]
    fn acknowledge_at_once<P: Port>(&mut self, now: Time, from: Gid, psn: Psn, port: &mut P) -> bool {
        let ordinary = self.connection.kind == Kind::ReliableConnected
            && self.state() == State::ReadyToSend
            && self.requester.is_going_on()
            && psn.is_before(self.requester.high())
            && from == self.connection.attributes.av.dgid
            && !port.tracing()
            && port.is_unlimited(self.connection.qpn, Toward::Peer);
        if !ordinary {
            return false;
        }
        let Some(progress) = self.completer.acknowledge_one(now, psn, &self.connection, &mut self.queue) else {
            return false;
        };
        let charges = self.requester.charges();
        *charges = charges.saturating_sub(progress.charge);
        self.completer.settle_timer(self.requester.psn());
        true
    }

    /// Takes a request of one packet that nothing is wrong with. False if it is not one, and then nothing has happened.
    #[inline]
    pub(super) fn take_at_once<P: Port>(&mut self, inbound: &Inbound<'_>, port: &mut P) -> bool {
        let receives = match self.state() {
            State::ReadyToSend => true,
            State::ReadyToReceive => self.established,
            _ => false,
        };
        receives
            && self.connection.kind == Kind::ReliableConnected
            && inbound.count == 1
            && !inbound.congestion_marked
            && inbound.from == self.connection.attributes.av.dgid
            && self.connection.pkey.matches(inbound.headers.bth.pkey)
            && self.responder.at_once(inbound, &self.connection, port)
    }
}

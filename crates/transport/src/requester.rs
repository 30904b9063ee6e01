//! The requester: takes work in posting order, gives it sequence numbers, and cuts it into trains as far as the
//! congestion windows, the fence and `max_rd_atomic` allow. It knows nothing of answers: when the completer decides to
//! go back, the queue pair moves its cursor.

use crate::attributes::FailingWork;
use crate::completion::{Queue, Status};
use crate::connection::Connection;
use crate::port::MAX_TRAIN;
use crate::port::{Port, Toward};
use crate::receive::check_all;
use crate::send_queue::{Outcome, SendQueue, SendWork};
use crate::state::Kind;
use crate::train::pad;
use crate::work::{Operation, SendFlags};
use trace::Failure;
use wire::access::{Access, Refusal};
use wire::{AtomicEth, Deth, Headers, Opcode, Position, Psn, Qpn, Reth, Tail};

/// The most packets of answer one READ request asks for on a link without a window.
const MAX_READ: u32 = 1024;

/// The most packets of a train: links count them in 16 bits.
pub(crate) const MOST_PACKETS: u32 = 0xffff;

/// The longest answer that is asked for twice where a packet of it is missing.
pub(crate) const MAX_COPIED_ANSWER: u32 = 4;

/// Sequence numbers that may be outstanding: far below half the number space, so that old and new stay distinguishable.
const MAX_OUTSTANDING: u32 = 1 << 20;

/// What the requester wants done next.
pub(crate) enum Step {
    /// Nothing can be sent now.
    Idle,
    /// Send [`Requester::train`].
    Train,
    /// Work `seq` cannot be carried out. The requester has stopped in front of it.
    Failed(u64, Status, Failure),
}

/// A request train before its payload is looked up.
#[derive(Debug)]
pub(crate) struct RequestTrain {
    pub seq: u64,
    pub headers: Headers,
    /// Packets on the wire.
    pub count: u32,
    /// Sequence numbers it takes, more than `count` for a READ.
    pub psns: u32,
    /// Payload: offset into the message and length.
    pub offset: u32,
    pub length: u32,
    pub retransmission: bool,
}

/// What the completer knows that the requester must respect, as values.
pub(crate) struct Limits {
    /// The oldest unacknowledged sequence number.
    pub una: Psn,
    /// READs and atomics under way.
    pub responses: usize,
    /// The longest the next READ request may be, where it is asked again.
    pub longest_read: Option<u32>,
    /// The next READ request would be the rest of one whose first part is asked for again, and not answered yet.
    pub partly_under_way: bool,
    /// How much of what is sent once more is missing at most.
    pub missing: u32,
    /// The send queue is being drained, or its driver holds work back: begin nothing new.
    pub draining: bool,
    /// The most packets that the rate allows now; `u32::MAX` if there is none.
    pub packets: u32,
    /// What the device takes and cannot do.
    pub failing_work: FailingWork,
}

/// What is sent once more: a packet or request, the work it belongs to, and how often.
#[derive(Clone, Copy, Debug)]
struct Again {
    psn: Psn,
    seq: u64,
    copies: u32,
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Requester {
    /// The train last built. It stays here and is lent out: headers are too large to be handed from function to
    /// function.
    train: RequestTrain,
    /// The next sequence number to send.
    psn: Psn,
    /// The first sequence number never sent.
    high: Psn,
    /// The work being sent, and how many of its sequence numbers have been.
    cursor: u64,
    sent: u32,
    /// Stopped in front of work that failed locally, until everything before it is settled.
    halted: bool,
    /// What is to be sent once more before anything else.
    again: Option<Again>,
    /// Packets sent since an acknowledgement was last asked for.
    unasked: u32,
    /// What our unacknowledged packets hold in the peer's window, and our unanswered READs in our own.
    charged: u64,
    charged_here: u64,
}

impl Default for Requester {
    fn default() -> Requester {
        let headers = Headers::new(Opcode::RcSendOnly, Qpn::default(), Psn::default());
        Requester {
            psn: Psn::default(),
            high: Psn::default(),
            cursor: 0,
            sent: 0,
            halted: false,
            again: None,
            unasked: 0,
            charged: 0,
            charged_here: 0,
            train: RequestTrain { seq: 0, headers, count: 0, psns: 0, offset: 0, length: 0, retransmission: false },
        }
    }
}

impl Requester {
    /// From this byte on every message needs it.
    pub const HOT: usize = core::mem::offset_of!(Requester, psn);

    /// A requester whose first packet will be `psn`.
    pub fn start(&mut self, psn: Psn) {
        self.psn = psn;
        self.high = psn;
    }

    pub fn psn(&self) -> Psn {
        self.psn
    }

    /// The number of what goes out next.
    pub fn next_psn(&self) -> Psn {
        self.again.map_or(self.psn, |again| again.psn)
    }

    /// The train that [`Step::Train`] announced.
    pub fn train(&self) -> &RequestTrain {
        &self.train
    }

    pub fn high(&self) -> Psn {
        self.high
    }

    pub fn charges(&mut self) -> &mut u64 {
        &mut self.charged
    }

    pub fn charges_here(&mut self) -> &mut u64 {
        &mut self.charged_here
    }

    /// Stops in front of work `seq`, which cannot be carried out.
    pub fn halt_at(&mut self, seq: u64) {
        self.cursor = seq;
        self.halted = true;
    }

    /// Whether work has begun that is not entirely sent.
    pub fn is_mid_work(&self, queue: &SendQueue) -> bool {
        // Begun is begun, even if no window has let its first packet out yet.
        queue.get(self.cursor).is_some_and(|work| work.started && work.is_open() && self.sent < work.packets)
    }

    /// Whether there is work that is not entirely sent, or has not been looked at.
    #[inline]
    pub fn has_more(&self, queue: &SendQueue) -> bool {
        self.next_seq(queue) < queue.tail() || self.again.is_some()
    }

    /// The first of it.
    #[inline]
    pub fn next_work<'a>(&self, queue: &'a SendQueue) -> Option<&'a SendWork> {
        queue.get(self.next_seq(queue))
    }

    #[inline]
    pub fn next_seq(&self, queue: &SendQueue) -> u64 {
        let next = self.cursor.max(queue.head());
        let behind =
            queue.get(next).is_some_and(|work| work.started && self.sent >= work.packets && next == self.cursor);
        next + u64::from(behind)
    }

    /// The next sequence number, if everything posted so far is sent, none of it is being sent again, and no more is
    /// outstanding than may be.
    #[inline]
    pub fn is_at_the_end(&self, una: Psn, queue: &SendQueue) -> Option<Psn> {
        let free = self.is_going_on() && self.psn.distance_from(una) < MAX_OUTSTANDING;
        (free && !self.has_more(queue)).then_some(self.psn)
    }

    /// Whether nothing is being sent again, and nothing has failed.
    #[inline]
    pub fn is_going_on(&self) -> bool {
        self.psn == self.high && !self.halted
    }

    /// Work `seq` goes out at once, as one packet that the caller builds.
    #[inline]
    pub fn send_at_once(&mut self, seq: u64, charge: u64) {
        self.psn = self.psn.add(1);
        self.high = self.psn;
        (self.cursor, self.sent) = (seq, 1);
        self.charged += charge;
    }

    /// Work `seq`, which has no packets and no sequence numbers, was carried out.
    pub fn handed_out(&mut self, seq: u64) {
        (self.cursor, self.sent) = (seq + 1, 0);
    }

    /// Resumes at `psn`, which lies in work `seq` (or is where the next work will begin).
    pub fn resume_at(&mut self, psn: Psn, seq: u64, queue: &SendQueue) {
        self.psn = psn;
        self.cursor = seq;
        self.sent = match queue.get(seq) {
            Some(work) if work.started => psn.distance_from(work.first).min(work.packets),
            _ => 0,
        };
        self.halted = false;
        self.again = None;
    }

    /// The packet, or request, `psn`, which lies in work `seq`, goes out once more, ahead of everything else, without what
    /// is behind it, so many times. It needs no room in a window: it has it since it was sent first.
    pub fn repeat(&mut self, psn: Psn, seq: u64, copies: u32) {
        self.again = Some(Again { psn, seq, copies });
    }

    /// Forgets everything; the next work is `seq`.
    pub fn reset(&mut self, seq: u64) {
        *self = Requester { cursor: seq, psn: self.psn, high: self.high, ..Requester::default() };
    }

    /// The next thing to do.
    pub fn step<P: Port>(
        &mut self,
        connection: &Connection,
        queue: &mut SendQueue,
        limits: &Limits,
        port: &mut P,
    ) -> Step {
        if let Some(again) = self.again.take() {
            match self.send_again(&again, connection, queue, limits, port) {
                Ok(true) => return Step::Train,
                Ok(false) => {}
                Err((status, cause)) => {
                    self.halted = true;
                    return Step::Failed(again.seq, status, cause);
                }
            }
        }
        loop {
            if self.halted {
                return Step::Idle;
            }
            let seq = self.cursor;
            let Some(work) = queue.get(seq) else {
                // The work we stood on was sent, answered and taken since we last looked; or there is none.
                if seq >= queue.head() {
                    return Step::Idle;
                }
                (self.cursor, self.sent) = (queue.head(), 0);
                continue;
            };
            match work.outcome() {
                Some(Outcome::Failed(..)) => {
                    // Seen before, on the way to a retry: still nothing after it may be sent.
                    self.halted = true;
                    return Step::Idle;
                }
                None if !work.started => {
                    if limits.draining || work.flags.contains(SendFlags::FENCE) && queue.awaits_answers() {
                        return Step::Idle;
                    }
                    if work.flags.contains(SendFlags::FENCE) {
                        // It may read what a READ before it has brought.
                        port.tells(Queue::Send);
                    }
                    if let Err((status, cause)) = self.begin(seq, connection, queue, limits, port) {
                        self.halted = true;
                        return Step::Failed(seq, status, cause);
                    }
                    // It may have been carried out without a packet.
                }
                None if self.sent < work.packets => {
                    return match self.send(seq, connection, queue, limits, port) {
                        Ok(true) => {
                            self.advance(self.train.psns);
                            Step::Train
                        }
                        Ok(false) => Step::Idle,
                        Err((status, cause)) => {
                            self.halted = true;
                            Step::Failed(seq, status, cause)
                        }
                    };
                }
                _ => {
                    self.cursor += 1;
                    self.sent = 0;
                }
            }
        }
    }

    fn advance(&mut self, psns: u32) {
        self.psn = self.psn.add(psns);
        self.sent += psns;
        if self.psn.is_after(self.high) {
            self.high = self.psn;
        }
    }

    /// The packet that is to be sent once more, unless it was acknowledged meanwhile.
    fn send_again<P: Port>(
        &mut self,
        again: &Again,
        connection: &Connection,
        queue: &SendQueue,
        limits: &Limits,
        port: &mut P,
    ) -> Result<bool, (Status, Failure)> {
        let &Again { psn, seq, copies } = again;
        let Some(work) = queue.get(seq).filter(|work| work.started && work.is_open()) else { return Ok(false) };
        if psn != limits.una || !psn.is_before(self.high) {
            return Ok(false);
        }
        let going_on = (self.psn, self.sent);
        (self.psn, self.sent) = (psn, psn.distance_from(work.first));
        let answered = work.operation.is_answered();
        let psns = if answered {
            limits.longest_read.unwrap_or(1).min(work.packets - self.sent).min(limits.missing)
        } else {
            1
        };
        if psns == 0 {
            (self.psn, self.sent) = going_on;
            return Ok(false);
        }
        if copies > 1 && psns <= MAX_COPIED_ANSWER {
            self.again = Some(Again { copies: copies - 1, ..*again });
        }
        let checked = self.recheck(work, psns, connection, port);
        if checked.is_ok() {
            match answered {
                true => self.request_with_response(seq, work, psns, connection),
                false => self.request(seq, work, 1, connection),
            }
        }
        (self.psn, self.sent) = going_on;
        checked.map(|()| true)
    }

    /// Checks work, gives it its sequence numbers, and carries out what never leaves the NIC.
    fn begin<P: Port>(
        &mut self,
        seq: u64,
        connection: &Connection,
        queue: &mut SendQueue,
        limits: &Limits,
        port: &mut P,
    ) -> Result<(), (Status, Failure)> {
        let Some(work) = queue.get_mut(seq) else { return Ok(()) };
        let subject = work.subject(connection);
        if let Some(status) = limits.failing_work.status_of(work.operation.name()) {
            // The device took it, and cannot do it.
            return Err((status, Failure::Unsuitable { what: "the NIC's profile takes this work and lets it fail" }));
        }
        if !work.operation.is_of(connection.kind) {
            // What mlx5 and Soft-RoCE report.
            return Err((Status::LocalQpOperation, Failure::NotCarried { transport: connection.kind.name() }));
        }
        match work.operation {
            Operation::LocalInvalidate { key } => {
                // The status of every operation on memory keys that fails (IBA 11.6.2), not only of binds: what mlx5
                // reports, too. Soft-RoCE says IBV_WC_LOC_QP_OP_ERR.
                port.invalidate(subject, key).map_err(|refusal| refused(Status::MemoryWindowBind, refusal))?;
                queue.start(seq, self.psn, 0);
                queue.settle(seq, Outcome::Done);
                return Ok(());
            }
            Operation::BindWindow(bind) => {
                port.bind(subject, &bind).map_err(|refusal| refused(Status::MemoryWindowBind, refusal))?;
                queue.start(seq, self.psn, 0);
                queue.settle(seq, Outcome::Done);
                return Ok(());
            }
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } | Operation::AtomicWrite { .. } => {
                if work.length < 8 {
                    return Err((Status::LocalLength, Failure::AtomicTooShort { length: u64::from(work.length) }));
                }
                work.length = 8;
            }
            Operation::Flush { .. } => work.length = 0,
            _ => {}
        }
        if work.operation.is_answered() && connection.attributes.max_rd_atomic == 0 {
            return Err((
                Status::LocalQpOperation,
                Failure::Unsuitable { what: "max_rd_atomic of the queue pair is 0" },
            ));
        }
        let mtu = connection.mtu();
        if connection.kind == Kind::UnreliableDatagram && work.length > mtu {
            let cause = Failure::OverMtu { length: u64::from(work.length), mtu: u64::from(mtu) };
            return Err((Status::LocalLength, cause));
        }
        // What goes out in one packet is looked at when it does, and then nothing of it has gone before.
        let at_once = (1..=mtu).contains(&work.length) && !work.operation.is_answered();
        if !work.is_inline() && !at_once {
            check_all(work.sges(), 0, u64::from(work.length), work.operation.local_access(), subject, port)
                .map_err(|refusal| refused(Status::LocalProtection, refusal))?;
        }
        let packets = match work.operation {
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } | Operation::AtomicWrite { .. } => 1,
            _ if work.length <= mtu => 1,
            _ => work.length.div_ceil(mtu),
        };
        queue.start(seq, self.psn, packets);
        Ok(())
    }

    /// The next train of work that has begun, if the windows allow one.
    fn send<P: Port>(
        &mut self,
        seq: u64,
        connection: &Connection,
        queue: &mut SendQueue,
        limits: &Limits,
        port: &mut P,
    ) -> Result<bool, (Status, Failure)> {
        let Some(work) = queue.get(seq) else { return Ok(false) };
        let mtu = connection.mtu();
        let left = work.packets - self.sent;
        let retransmission = self.psn.is_before(self.high);
        if !connection.kind.is_reliable() {
            // Nobody acknowledges: no window, no retries. The work is done when its last packet is handed out.
            let count = left.min(train_packets(mtu)).min(limits.packets);
            if self.sent > 0 {
                self.recheck(work, count, connection, port)?;
            }
            self.request(seq, work, count, connection);
            if count == left {
                queue.settle(seq, Outcome::Done);
            }
            return Ok(true);
        }
        let outstanding = self.psn.distance_from(limits.una);
        if outstanding >= MAX_OUTSTANDING {
            return Ok(false);
        }
        let qpn = connection.qpn;
        if work.operation.is_answered() {
            if limits.responses >= usize::from(connection.attributes.max_rd_atomic) || limits.partly_under_way {
                return Ok(false);
            }
            let mut longest = MAX_READ;
            if left > MAX_READ
                && let [sge] = work.sges()
            {
                longest = (port.longest_train(sge.key) / mtu).clamp(MAX_READ, MOST_PACKETS);
            }
            let want = left.min(limits.longest_read.unwrap_or(longest));
            let Some(psns) = self.reserve_answer(work, want, longest, connection, limits, port) else {
                return Ok(false);
            };
            if self.sent > 0 || retransmission {
                self.recheck(work, psns, connection, port)?;
            }
            self.request_with_response(seq, work, psns, connection);
            return Ok(true);
        }
        let mut want = left.min(MAX_OUTSTANDING - outstanding).min(limits.packets);
        if retransmission {
            // What was sent before and what was not are different trains: links treat them differently.
            want = want.min(self.high.distance_from(self.psn));
        }
        let unasked = self.unasked;
        let mut unlimited = train_packets(mtu);
        if want > unlimited
            && let (Operation::Write { .. }, [sge]) = (&work.operation, work.sges())
        {
            unlimited = (port.longest_train(sge.key) / mtu).clamp(unlimited, MOST_PACKETS);
        }
        let (count, asks) = port.window(qpn, Toward::Peer, |window| {
            let want = want.min(match work.operation {
                _ if want == 1 => 1,
                _ if window.is_unlimited() => unlimited,
                Operation::Write { .. } if self.sent == 0 => window.burst_after_longer(mtu),
                _ => window.burst(mtu),
            });
            let last = work.packet_length(self.sent + want - 1, mtu);
            let count = window.reserve_together(qpn, mtu, want, last);
            (count, window.should_ask(mtu, unasked + count))
        });
        if count == 0 {
            return Ok(false);
        }
        self.charged += work.charge(self.sent, count, mtu);
        if self.sent > 0 || retransmission {
            self.recheck(work, count, connection, port)?;
        }
        self.request(seq, work, count, connection);
        // Where a rate holds packets back, the next may come long after the peer's time to answer this one.
        let asks = asks || retransmission || count == left || limits.packets != u32::MAX;
        self.train.headers.bth.ack_req = asks;
        self.unasked = if asks { 0 } else { unasked + count };
        Ok(true)
    }

    /// Room in our own receive buffer for answers: how many packets of answer may be asked for now. The request itself
    /// needs no room of the peer's: it costs no more there than its answer does here, so what is asked for is bounded
    /// by what may be answered.
    ///
    /// While other answers are under way a mere sliver is declined: their arrival makes room for a longer request, and
    /// long READs would otherwise dissolve into requests of one packet each.
    fn reserve_answer<P: Port>(
        &mut self,
        work: &SendWork,
        left: u32,
        longest: u32,
        connection: &Connection,
        limits: &Limits,
        port: &mut P,
    ) -> Option<u32> {
        let (qpn, mtu) = (connection.qpn, connection.mtu());
        let want = left.min(longest);
        let last = work.packet_length(self.sent + want - 1, mtu);
        let granted = port.window(qpn, Toward::Here, |window| match limits.responses {
            0 => window.reserve(qpn, mtu, want, last),
            _ => window.reserve_unless_sliver(qpn, mtu, want, last),
        });
        if granted == 0 {
            return None;
        }
        self.charged_here += work.charge(self.sent, granted, mtu);
        Some(granted)
    }

    /// Looks again at memory that was checked when the work began: it may have been deregistered since.
    fn recheck<P: Port>(
        &self,
        work: &SendWork,
        count: u32,
        connection: &Connection,
        port: &mut P,
    ) -> Result<(), (Status, Failure)> {
        if work.is_inline() {
            return Ok(());
        }
        let (offset, length) = work.span(self.sent, count, connection.mtu());
        let access: Access = work.operation.local_access();
        check_all(work.sges(), u64::from(offset), u64::from(length), access, work.subject(connection), port)
            .map_err(|refusal| refused(Status::LocalProtection, refusal))
    }

    /// A SEND or WRITE train of `count` packets.
    fn request(&mut self, seq: u64, work: &SendWork, count: u32, connection: &Connection) {
        let (starts, ends) = (self.sent == 0, self.sent + count == work.packets);
        let (operation, tail) = match work.operation {
            Operation::Write { immediate, .. } => (wire::Operation::Write, tail_of(immediate)),
            Operation::SendInvalidate { .. } => (wire::Operation::Send, Tail::Invalidate),
            Operation::Send { immediate } => (wire::Operation::Send, tail_of(immediate)),
            _ => (wire::Operation::Send, Tail::Plain),
        };
        let tail = if ends { tail } else { Tail::Plain };
        let opcode = Opcode::of(connection.transport(), operation, Position::of(starts, ends), tail);
        // `begin` has refused what the transport has no opcode for.
        let (offset, length) = work.span(self.sent, count, connection.mtu());
        let headers = self.headers(opcode.unwrap_or(Opcode::RcSendOnly), work, connection);
        headers.bth.solicited = ends && work.flags.contains(SendFlags::SOLICITED);
        headers.bth.ack_req = connection.kind.is_reliable();
        match work.operation {
            Operation::Write { remote, immediate } => {
                if starts {
                    headers.reth = Some(Reth { va: remote.address, rkey: remote.key, len: work.length });
                }
                headers.immediate = immediate.filter(|_| ends);
            }
            Operation::Send { immediate } => headers.immediate = immediate.filter(|_| ends),
            Operation::SendInvalidate { key } => headers.invalidate = Some(key).filter(|_| ends),
            _ => {}
        }
        if let Some(target) = &work.target {
            let qkey = if target.qkey.is_privileged() { connection.attributes.qkey } else { target.qkey };
            headers.bth.dest_qpn = target.qpn;
            headers.deth = Some(Deth { qkey, src_qpn: connection.qpn });
        }
        headers.bth.pad = pad(length);
        let train = &mut self.train;
        (train.seq, train.count, train.psns, train.offset, train.length) = (seq, count, count, offset, length);
    }

    /// A request that is answered: READ for `psns` packets, an atomic, a flush.
    fn request_with_response(&mut self, seq: u64, work: &SendWork, psns: u32, connection: &Connection) {
        let (offset, length) = work.span(self.sent, psns, connection.mtu());
        let operation = match work.operation {
            Operation::CompareSwap { .. } => wire::Operation::CompareSwap,
            Operation::FetchAdd { .. } => wire::Operation::FetchAdd,
            Operation::AtomicWrite { .. } => wire::Operation::AtomicWrite,
            Operation::Flush { .. } => wire::Operation::Flush,
            _ => wire::Operation::ReadRequest,
        };
        let opcode = Opcode::of(connection.transport(), operation, Position::Only, Tail::Plain);
        let headers = self.headers(opcode.unwrap_or(Opcode::RcReadRequest), work, connection);
        headers.bth.ack_req = true;
        let mut payload = 0;
        match work.operation {
            Operation::Read { remote } => {
                let va = remote.address.wrapping_add(u64::from(offset));
                headers.reth = Some(Reth { va, rkey: remote.key, len: length });
            }
            Operation::CompareSwap { remote, compare, swap } => {
                headers.atomic = Some(AtomicEth { va: remote.address, rkey: remote.key, swap_add: swap, compare });
            }
            Operation::FetchAdd { remote, add } => {
                headers.atomic = Some(AtomicEth { va: remote.address, rkey: remote.key, swap_add: add, compare: 0 });
            }
            Operation::AtomicWrite { remote } => {
                headers.reth = Some(Reth { va: remote.address, rkey: remote.key, len: 8 });
                payload = 8;
            }
            Operation::Flush { remote, length, .. } => {
                headers.feth = work.operation.feth();
                headers.reth = Some(Reth { va: remote.address, rkey: remote.key, len: length });
            }
            _ => {}
        }
        let train = &mut self.train;
        (train.seq, train.count, train.psns, train.offset, train.length) = (seq, 1, psns, offset, payload);
    }

    /// Begins the train's headers in place.
    fn headers(&mut self, opcode: Opcode, work: &SendWork, connection: &Connection) -> &mut Headers {
        self.train.retransmission = self.psn.is_before(self.high);
        let headers = &mut self.train.headers;
        *headers = Headers::new(opcode, connection.attributes.dest_qpn, self.psn);
        headers.bth.pkey = connection.pkey;
        headers.xrc = work.xrc_srq;
        headers
    }
}

fn tail_of(immediate: Option<u32>) -> Tail {
    if immediate.is_some() { Tail::Immediate } else { Tail::Plain }
}

fn train_packets(mtu: u32) -> u32 {
    (MAX_TRAIN / mtu).max(1)
}

fn refused(status: Status, refusal: Refusal) -> (Status, Failure) {
    (status, Failure::Refused(refusal))
}

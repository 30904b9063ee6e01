//! Queue pairs: the transport's machine behind a lock, joined to completion queues, a link and a timer. Driving one
//! means sending what it wants sent, then telling its program what it completed, in this order.

mod belief;
pub(crate) mod counters;
mod cut;
mod datagrams;
mod direct;
pub(crate) mod frames;
mod gpu;
mod order;
pub(crate) mod port;
pub(crate) mod reach;
mod refusal;
mod rings;
pub(crate) mod shared_link;
mod standing;
mod stopping;
mod strikes;
mod through_trait;
mod udp;
mod ways;
mod weak;

pub(crate) use belief::ArrivalWay;
pub(crate) use udp::TrainCargo;

use crate::ground::Ground;
use crate::ground::ledger::Ledger;
use crate::ground::progress_state::ProgressState;
use crate::links::path::{Link, Path};
use crate::links::windows::{Congestion, WindowOf, Windows};
use crate::objects::completion_queue::{Added, CompletionQueue, Observer, Poller};
use crate::objects::context::{AsyncEvent, Context};
use crate::objects::device::Device;
use crate::objects::shared_queue::SharedQueue;
use crate::progress::delayed_ack::DelayedAck;
use crate::progress::piggybacked_ack::PiggybackedAck;
use crate::progress::timers::Alarm;
use crate::queue_pair::belief::Belief;
use crate::queue_pair::counters::CounterSet;
use crate::queue_pair::datagrams::HeldDatagram;
use crate::queue_pair::direct::DirectWay;
use crate::queue_pair::frames::{RawPart, Unreceived};
use crate::queue_pair::order::Order;
use crate::queue_pair::port::{GpuTrains, NicPort};
use crate::queue_pair::reach::Neighbour;
use crate::queue_pair::shared_link::{Patience, Shared, Way};
use crate::queue_pair::standing::Standstill;
use crate::queue_pair::strikes::LateCompletions;
use crate::tuning::{EXIT_LOCK_TRIES, UDP_PATIENCE, nanos};
use latch::{Guard, Mutex, Rank};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use transport::weak::{Before, Weak, Weakness};
use transport::{
    AddressVector, Attributes, Completion, Counters, Inbound, Kind, Modify, ModifyError, PostError, Queue,
    ReceiveRequest, SendRequest, Sge, State, Status, Time,
};
use wire::{Key, Opcode, Qpn};

/// A queue pair of this process. Fields lie in the order in which they are written down: what every message needs lies
/// together, as a message of a queue pair that was not used for long waits for each cache line of it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Qp {
    qpn: Qpn,
    kind: Kind,
    /// Its receives come from a shared receive queue.
    uses_srq: bool,
    /// What it sends to a multicast group that it is in does not come back to it.
    ignores_own: AtomicBool,
    /// Its observer is to be told when it stops.
    tells_stop: AtomicBool,
    /// Something completed in the completion queue of a shared receive queue, whose observer is to be told.
    told_elsewhere: AtomicBool,
    /// The number of its port.
    port: AtomicU8,
    xrc_domain: Option<u32>,
    send_cq: Option<Arc<CompletionQueue>>,
    receive_cq: Option<Arc<CompletionQueue>>,
    context: Arc<Context>,
    inner: Mutex<Inner>,
    /// Its shared receive queue, if that matches tags.
    tags: Option<Arc<SharedQueue>>,
    /// Trains that are sent from copies, because something had to be sent again.
    copies: AtomicU32,
    /// What a raw queue pair or work queue has beside.
    raw: Option<Box<RawPart>>,
    /// Who is told when it stops.
    stop_observer: OnceLock<Observer>,
}

#[derive(Debug)]
#[repr(C)]
struct Inner {
    /// Whether its program answers what it receives.
    piggyback: PiggybackedAck,
    /// Packets that were handled while what follows from them has not been sent.
    touched: u32,
    windows: Windows,
    /// The deadline that stands in the NIC's timers.
    alarm: Alarm,
    /// The link through shared memory, as far as it concerns this queue pair.
    shared: Shared,
    /// What keeps the next datagram back.
    held: HeldDatagram,
    /// What it keeps back on the weakest NIC.
    weak: Option<Box<Weak>>,
    /// Its peer may reach memory without this process.
    published: bool,
    /// Its way to the peer's memory.
    direct: DirectWay,
    /// Other hosts may send to it.
    uses_udp: bool,
    /// Whose packets it takes.
    belief: Belief,
    order: Order,
    path: Path,
    /// An acknowledgement that waits for an answer.
    delayed_ack: DelayedAck,
    /// The way of the last datagram, as most go the same way.
    last: Option<LastWay>,
    /// What counts its completions.
    counters: Option<Box<CounterSet>>,
    pair: transport::QueuePair,
    /// Frames of a raw queue pair on their way out, and those that wait for a receive.
    outbox: Vec<Vec<u8>>,
    unreceived: Unreceived,
    /// Completions that a failure script holds back.
    late: LateCompletions,
    standstill: Standstill,
}

/// The way to where a datagram went.
#[derive(Debug)]
struct LastWay {
    to: AddressVector,
    qpn: Qpn,
    /// When ways were last found to have changed.
    epoch: u32,
    path: Path,
}

impl LastWay {
    /// Whether it leads there.
    #[inline]
    fn leads_to(&self, to: &AddressVector, qpn: Qpn) -> bool {
        self.qpn == qpn && self.to == *to
    }
}

/// What joins a queue pair to the rest of the NIC.
#[derive(Clone, Debug)]
pub struct Joins {
    /// The device it is on.
    pub context: Arc<Context>,
    /// Where sends complete; none for an XRC target.
    pub send_cq: Option<Arc<CompletionQueue>>,
    /// Where receives complete; none for XRC.
    pub receive_cq: Option<Arc<CompletionQueue>>,
    /// The domain of an XRC target.
    pub xrc_domain: Option<u32>,
}

impl Inner {
    /// When time is to be let pass.
    #[inline]
    fn deadline(&self) -> Option<Time> {
        match (self.held.deadline(), &self.weak) {
            (None, None) => self.pair.poll_timeout(),
            (held, weak) => {
                let weak = weak.as_ref().and_then(|weak| weak.deadline());
                held.into_iter().chain(weak).chain(self.pair.poll_timeout()).min()
            }
        }
    }
}

/// What lies before the data of a mutex, mostly.
const LATCH_HEADER_BYTES: usize = 8;

impl Qp {
    /// Begins to bring what the next message needs of it. Where there are thousands of queue pairs it comes from afar.
    #[inline]
    pub fn prefetch(&self) {
        const INNER: usize = offset_of!(Qp, inner) + LATCH_HEADER_BYTES;
        const PAIR: usize = INNER + offset_of!(Inner, pair);
        const HOT: Range<usize> = transport::QueuePair::HOT;
        link::prefetch(self, 0..INNER + offset_of!(Inner, path) + offset_of!(Path, route));
        link::prefetch(self, PAIR + HOT.start..PAIR + HOT.end);
    }

    pub(crate) fn new(
        config: transport::QueuePairConfig,
        joins: Joins,
        tags: Option<Arc<SharedQueue>>,
        raw: Option<Box<RawPart>>,
        weakness: Option<Weakness>,
    ) -> Qp {
        let weak = weakness.filter(|_| config.kind != Kind::RawPacket);
        let weak = weak.map(|weakness| Box::new(Weak::new(weakness, config.qpn.value())));
        let mut pair = transport::QueuePair::new(config);
        if let Some(srq) = &tags {
            pair.match_tags(srq.number(), srq.domain());
        }
        Qp {
            qpn: config.qpn,
            kind: config.kind,
            context: joins.context,
            send_cq: joins.send_cq,
            receive_cq: joins.receive_cq,
            xrc_domain: joins.xrc_domain,
            uses_srq: config.srq.is_some() || config.kind == Kind::XrcTarget,
            ignores_own: AtomicBool::new(false),
            tells_stop: AtomicBool::new(false),
            told_elsewhere: AtomicBool::new(false),
            port: AtomicU8::new(1),
            copies: AtomicU32::new(0),
            raw,
            tags,
            stop_observer: OnceLock::new(),
            inner: Mutex::new(
                Rank::QueuePair,
                Inner {
                    pair,
                    windows: Windows::unlimited(),
                    path: Path::default(),
                    alarm: Alarm::default(),
                    touched: 0,
                    shared: Shared::default(),
                    published: false,
                    direct: DirectWay::default(),
                    uses_udp: false,
                    belief: Belief::default(),
                    order: Order::default(),
                    last: None,
                    counters: None,
                    held: HeldDatagram::default(),
                    weak,
                    delayed_ack: DelayedAck::default(),
                    piggyback: PiggybackedAck::default(),
                    outbox: Vec::new(),
                    unreceived: Unreceived::default(),
                    late: LateCompletions::default(),
                    standstill: Standstill::default(),
                },
            ),
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its kind of service.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The opened device it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The port that it is on: port 1, until INIT says which.
    pub fn port_device(&self) -> &Arc<Device> {
        let device = self.context.device();
        device.at_port(self.port.load(Ordering::Relaxed)).unwrap_or(device)
    }

    /// From now on it does not get what it sends itself to a multicast group.
    pub fn ignore_own_multicast(&self) {
        self.ignores_own.store(true, Ordering::Relaxed);
    }

    pub(crate) fn ignores_own(&self) -> bool {
        self.ignores_own.load(Ordering::Relaxed)
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.inner.lock().pair.state()
    }

    /// How it reaches its peer, in words: through shared memory, say. Datagrams have no one peer.
    pub fn link(&self) -> &'static str {
        self.inner.lock().path.link.name()
    }

    /// Its attributes as they are now.
    pub fn attributes(&self) -> Attributes {
        self.inner.lock().pair.attributes()
    }

    /// As whom it asks for memory, and who its peer is, in words, for a sanitizer.
    pub(crate) fn judged(&self) -> (wire::access::Subject, String) {
        let inner = self.inner.lock();
        let subject = wire::access::Subject { qpn: self.qpn, pd: inner.pair.domain(), remote: false };
        if !self.kind.is_connected() {
            return (subject, String::new());
        }
        let attributes = inner.pair.attributes();
        let (peer, gid) = (attributes.dest_qpn.value(), attributes.av.dgid);
        (subject, format!(" (peer: queue pair {peer:#x} at {gid})"))
    }

    /// What it has counted since it was made.
    pub fn counters(&self) -> Counters {
        self.inner.lock().pair.counters()
    }

    /// How congested the way to its peer is, if packets may get lost on it: the round trip and the window that all
    /// queue pairs of this process have towards that process.
    pub fn congestion(&self) -> Option<Congestion> {
        match &self.inner.lock().windows.peer {
            WindowOf::None => None,
            WindowOf::Shared(window) => Some(window.congestion()),
        }
    }

    /// What it has counted, unless a thread is in the middle of something: it may be the one that ends the process.
    pub(crate) fn try_counters(&self) -> Option<Counters> {
        self.inner.try_lock().map(|inner| inner.pair.counters())
    }

    /// What congestion leaves of the line rate at this moment, in bit/s; none if it takes nothing.
    pub fn congested_rate(&self, now: Time) -> Option<u64> {
        self.inner.lock().pair.congested_rate(now)
    }

    /// Changes state and attributes, or neither. The link to its peer is chosen on the way to RTR.
    pub(crate) fn change(&self, nic: &Ground, modify: &Modify, neighbour: Neighbour) -> Result<(), ModifyError> {
        if modify.state == Some(State::ReadyToReceive)
            && self.kind.is_connected()
            && self.state() == State::Init
            && let (Some(av), Some(peer)) = (&modify.av, modify.dest_qpn)
        {
            let port = self.port_device().port_number();
            if av.port != port {
                let [value, port] = [av.port, port].map(u32::from);
                return Err(ModifyError::OutOfRange { what: "AV.port", value, min: port, max: port });
            }
            // Without our lock: it looks at the receiving socket, whose holder may be about to hand us a packet.
            nic.obstacle(self.context.device(), av, peer, modify.path_mtu, self.lane(), neighbour)?;
        }
        let mut inner = self.inner.lock();
        self.flush_acks(nic, &mut inner);
        let now = nic.now();
        let (pair, mut port) = self.split(nic, &mut inner);
        let in_hand = if modify.state == Some(State::Reset) { pair.tagged_in_hand() } else { 0 };
        if modify.state == Some(State::Reset) {
            port.before(Before::Everything);
        }
        pair.modify(now, modify, &mut port)?;
        self.port.store(inner.pair.attributes().port, Ordering::Relaxed);
        if self.kind == Kind::RawPacket && !inner.pair.state().receives() {
            self.lose_unreceived(nic, &mut inner);
        }
        self.tagged_finished(in_hand);
        if modify.state == Some(State::Reset) {
            inner.late.clear(nic);
        }
        if modify.state == Some(State::ReadyToReceive) || modify.av.is_some() {
            let attributes = inner.pair.attributes();
            if self.kind.is_connected() {
                inner.path = nic.path(self.context.device(), &attributes.av, attributes.dest_qpn, self.lane());
                let windows = nic.windows(&inner.path, &attributes.av, attributes.dest_qpn);
                // It may have been named in the windows it leaves.
                let left = std::mem::replace(&mut inner.windows, windows);
                self.pass_on(&nic.progress, &left);
                inner.shared = Shared::default();
                inner.belief = Belief::of(&nic.host, &inner.path, attributes.dest_qpn);
            } else {
                inner.path = Path::default();
                inner.belief = self.belief_without_peer();
            }
            self.note_udp(&nic.progress, &mut inner);
        }
        self.publish(nic, &mut inner);
        self.drive(nic, &mut inner, now);
        self.leave(nic, inner);
        Ok(())
    }

    /// Posts sends, in order, until one is refused: then its index and why. The program's list has `first` before them.
    pub(crate) fn send(
        &self,
        nic: &Ground,
        requests: &[SendRequest<'_>],
        first: usize,
    ) -> Result<(), (usize, PostError)> {
        self.prefetch();
        nic.progress.engine.sends();
        let alone = nic.alone();
        let mut inner = self.inner.lock();
        inner.piggyback.habit.answers();
        let is_weak = inner.weak.is_some();
        let placed = if is_weak { 0 } else { self.place_first(nic, &mut inner, requests) };
        let (requests, first) = (&requests[placed..], first + placed);
        if requests.is_empty() {
            self.leave(nic, inner);
            return Ok(());
        }
        let Inner { pair, windows, weak, path, shared, .. } = &mut *inner;
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        let (sent, done, call) = match &path.link {
            _ if is_weak || pair.holds_back() => (0, false, None),
            Link::Udp => {
                let (sent, done) = self.send_at_once(nic, &mut inner, requests, first, nic.now());
                (sent, done, None)
            }
            _ => shared.send_at_once(nic, path, pair, &mut port, requests, first),
        };
        let mut refused = Ok(());
        match done {
            true => {
                if !inner.pair.may_transmit() {
                    // What waited has gone along.
                    inner.piggyback.ends(&nic.progress.piggyback_owners);
                }
                self.sleep(&nic.progress, &mut inner);
            }
            false => {
                let (now, tells) = (nic.now(), nic.records.trace.is_on());
                let (pair, mut port) = self.split(nic, &mut inner);
                for (index, request) in requests.iter().enumerate().skip(sent) {
                    if tells {
                        nic.records.tell_send(now, self.qpn, first + index, request);
                    }
                    if let Err(error) = pair.post_send(now, request, &mut port) {
                        refused = Err((placed + index, error));
                        break;
                    }
                }
                self.drive(nic, &mut inner, now);
            }
        }
        self.leave(nic, inner);
        drop(alone);
        if let Some(call) = call {
            call.ring();
        }
        refused
    }

    /// Whether it reaches its peer through shared memory: what is posted is read at once, mostly.
    pub fn is_in_shared_memory(&self) -> bool {
        matches!(self.inner.lock().path.link, Link::Shared(_))
    }

    /// Work that is not answered yet and whose bytes lie in the region of this key takes them from elsewhere from now
    /// on: `to` is asked for each piece, and answers two, of which the second may be empty. The bytes must be the same.
    /// It is called while the queue pair is locked, and calls nothing of the NIC but its memory.
    pub fn relocate(&self, key: Key, to: impl FnMut(Sge) -> [Sge; 2]) {
        self.inner.lock().pair.relocate(key, to);
    }

    /// How many more sends fit, and whether the queue pair takes any; with the capacity of its queue.
    pub(crate) fn send_room(&self) -> (usize, u32, State) {
        let inner = self.inner.lock();
        (inner.pair.send_room() as usize, inner.pair.attributes().capabilities.max_send_wr, inner.pair.state())
    }

    /// How much work has not completed: of the send queue, and of a receive queue of its own.
    pub(crate) fn outstanding(&self) -> [u32; 2] {
        self.inner.lock().pair.outstanding()
    }

    /// Posts receives, in order, until one is refused: then its index and why.
    pub(crate) fn receive(
        &self,
        nic: &Ground,
        requests: &[ReceiveRequest<'_>],
        first: usize,
    ) -> Result<(), (usize, PostError)> {
        let alone = nic.alone();
        let mut inner = self.inner.lock();
        // Nothing waits for a receive that is posted: only a trace wants to know when.
        let tells = nic.records.trace.is_on();
        let now = if tells || inner.pair.state() == State::Error { nic.now() } else { Time::ZERO };
        let (pair, mut port) = self.split(nic, &mut inner);
        let mut refused = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if tells {
                nic.records.tell_receive(now, Some(self.qpn), None, first + index, request);
            }
            if latch::sanitizer::judges_accesses() {
                judge_receive(nic, pair, request);
            }
            if let Err(error) = pair.post_receive(now, request, &mut port) {
                refused = Err((index, error));
                break;
            }
        }
        let late = self.kind == Kind::RawPacket && self.take_unreceived(nic, &mut inner);
        // In error a receive is flushed at once; otherwise posting one sends and completes nothing, unless a frame
        // waits for it.
        if late || inner.pair.state() == State::Error {
            let now = if late { nic.now() } else { now };
            self.drive(nic, &mut inner, now);
            self.leave(nic, inner);
        } else {
            drop(inner);
        }
        drop(alone);
        refused
    }

    /// Takes a packet or train. Returns how many it has taken since it was driven: at the first, the caller must see to
    /// it that it is.
    pub(crate) fn take(&self, nic: &Ground, now: Time, came: ArrivalWay<'_>, inbound: &Inbound<'_>) -> u32 {
        let mut inner = self.inner.lock();
        let Inner { belief, path, .. } = &mut *inner;
        let takes = match self.kind.is_connected() {
            true => belief.takes(&path.link, came),
            false => belief.takes_any(),
        };
        if let Err(reason) = takes {
            nic.dropped(now, Some(self.qpn), Some(inbound.headers), reason);
            return inner.touched;
        }
        let (pair, mut port) = self.split(nic, &mut inner);
        self.handle_counted(pair, inbound, &mut port, |pair, port| {
            refusal::handle_from_host(pair, now, inbound, port);
        });
        inner.touched += 1;
        inner.touched
    }

    /// Sends and completes what follows from packets that were taken.
    pub(crate) fn advance(&self, nic: &Ground, now: Time) {
        self.advance_for(nic, now, None);
    }

    /// Sends and completes like [`advance`](Qp::advance), for a polling thread, which is shown at once what completes.
    pub(crate) fn advance_for(&self, nic: &Ground, now: Time, poller: Option<&mut Poller<'_>>) {
        let mut inner = self.inner.lock();
        match inner.weak {
            None => {
                inner.touched = 0;
                self.transmit(nic, &mut inner, now);
                self.complete_all(nic, &mut inner, now, poller);
                self.sleep(&nic.progress, &mut inner);
            }
            Some(_) => self.drive_weak(nic, &mut inner, now),
        }
        self.leave(nic, inner);
    }

    /// Does what follows from the passing of time, if this entry of the NIC's timers is the one that counts.
    pub(crate) fn time_has_come(&self, nic: &Ground, now: Time, entry: Time) {
        let mut inner = self.inner.lock();
        if !inner.alarm.comes_up(entry) {
            return;
        }
        // Mostly what it was set for has been answered long ago.
        if inner.deadline().is_none_or(|deadline| deadline > now) && !self.moderates() {
            return self.sleep(&nic.progress, &mut inner);
        }
        inner.observe_standstill(now);
        // What was sent is late only if it was sent: what waits because of a rate is not.
        if inner.pair.answer_deadline().is_some_and(|deadline| deadline <= now) {
            let Inner { pair, path, shared, .. } = &mut *inner;
            match shared.patience(path, pair.awaited_answer(), pair.time_to_answer().unwrap_or(0)) {
                Patience::Hold => pair.hold_timers(now),
                Patience::Forgive => pair.forgive_timeout(now, nanos(UDP_PATIENCE)),
                Patience::Over => {}
            }
        }
        if inner.pair.poll_timeout().is_some_and(|deadline| deadline <= now) {
            let (pair, mut port) = self.split(nic, &mut inner);
            pair.handle_timeout(now, &mut port);
        }
        if inner.weak.is_some() {
            self.place_some(nic, &mut inner, now);
        }
        // Else its deadline would be in the past, and set again and again.
        inner.held.time_has_come(now);
        self.drive(nic, &mut inner, now);
        if let Some(deadline) = self.wake_moderated(Some(now)) {
            self.wake_at(&nic.progress, &mut inner.alarm, deadline);
        }
        self.leave(nic, inner);
    }

    /// Sends the acknowledgement that waits. `idle` if the program looked for more and there was nothing.
    pub(crate) fn flush_delayed_ack(&self, nic: &Ground, idle: bool) {
        let mut inner = self.inner.lock();
        if idle {
            inner.piggyback.habit.asks_for_more();
            inner.delayed_ack.is_idle();
        }
        self.flush_ack(nic, &mut inner);
    }

    /// Sends the acknowledgement that waits, if one does.
    fn flush_ack(&self, nic: &Ground, inner: &mut Inner) {
        if inner.piggyback.ends(&nic.progress.piggyback_owners) {
            self.transmit(nic, inner, nic.now());
        }
        if let (Some((psn, msn)), Some(route)) = (inner.delayed_ack.held(), &inner.path.route) {
            nic.send_alone(route, &inner.pair.acknowledgement(psn, msn), &mut nic.outgoing(self.qpn));
            inner.pair.sent_alone(Opcode::RcAcknowledge);
        }
        inner.delayed_ack.paid(nic.delayed_ack_owner());
    }

    /// Sends the acknowledgement that waits before the queue pair changes or is destroyed, and the acknowledgements of
    /// packets that another thread has taken a moment ago: what they brought may have been what the program had waited
    /// for.
    fn flush_acks(&self, nic: &Ground, inner: &mut Inner) {
        if inner.touched > 0 {
            self.transmit(nic, inner, nic.now());
        }
        self.flush_ack(nic, inner);
    }

    /// Sends and completes what is due, because the process ends. The lock's holder may be the thread that ends the
    /// process: then nothing is sent or completed.
    pub(crate) fn flush_before_exit(&self, nic: &Ground) {
        for _ in 0..EXIT_LOCK_TRIES {
            match self.inner.try_lock() {
                Some(mut inner) => {
                    self.end_weakness(nic, &mut inner);
                    self.drive(nic, &mut inner, nic.now());
                    self.flush_ack(nic, &mut inner);
                    return;
                }
                None => {
                    let _shield = ::host::thread::Shield::up();
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
    }

    /// Forgets everything: the queue pair is being destroyed. Returns the work request of a shared receive queue that
    /// it had taken and not finished, which the program will not hear of otherwise.
    pub(crate) fn shut(&self, nic: &Ground) -> Option<u64> {
        let mut inner = self.inner.lock();
        if inner.weak.is_some() {
            self.end_weakness(nic, &mut inner);
            self.transmit(nic, &mut inner, nic.now());
        }
        self.flush_acks(nic, &mut inner);
        let now = nic.now();
        let (pair, mut port) = self.split(nic, &mut inner);
        let mut taken = None;
        if self.uses_srq {
            // ERR is legal from every state, and flushes what is in hand.
            let _ = pair.modify(now, &Modify { state: Some(State::Error), ..Modify::default() }, &mut port);
            while let Some(completion) = pair.poll_completion(now, &mut port) {
                if completion.kind.ends_tagged_buffer() {
                    self.tagged_finished(1);
                } else if let Queue::Shared(_) = completion.queue {
                    taken = Some(completion.wr_id);
                }
            }
        }
        // RESET is legal from every state.
        let _ = pair.modify(now, &Modify { state: Some(State::Reset), ..Modify::default() }, &mut port);
        self.withdraw(nic, &mut inner);
        self.lose_unreceived(nic, &mut inner);
        inner.late.clear(nic);
        self.note_udp(&nic.progress, &mut inner);
        self.wake_moderated(None);
        self.leave(nic, inner);
        taken
    }

    /// So many tagged buffers that it had taken have completed, or will not.
    fn tagged_finished(&self, buffers: u32) {
        if let Some(srq) = &self.tags {
            srq.tagged_finished(buffers);
        }
    }

    fn split<'a>(&self, nic: &'a Ground, inner: &'a mut Inner) -> (&'a mut transport::QueuePair, NicPort<'a>) {
        let port = NicPort {
            nic,
            windows: &mut inner.windows,
            weak: inner.weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        (&mut inner.pair, port)
    }

    /// The loop of the transport's documentation: send, then complete, then sleep.
    fn drive(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        if inner.weak.is_some() {
            return self.drive_weak(nic, inner, now);
        }
        inner.touched = 0;
        self.transmit(nic, inner, now);
        self.complete_all(nic, inner, now, None);
        self.sleep(&nic.progress, inner);
    }

    /// Tells the program what has completed, and what else happened.
    #[inline]
    fn complete_all(&self, nic: &Ground, inner: &mut Inner, now: Time, poller: Option<&mut Poller<'_>>) {
        self.withdraw_if_stopped(nic, inner);
        let Inner { pair, windows, weak, alarm, counters, shared, path, late, .. } = inner;
        if shared.keeps_answer(path, pair) {
            return;
        }
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        match nic.records.trace.is_on() && nic.scripts.watch_completions() {
            false => self.complete(nic, pair, &mut port, alarm, now, poller),
            true => self.complete_watched(nic, pair, &mut port, (alarm, late), now, poller),
        }
        if let Some(counters) = counters {
            counters.collect(pair);
        }
        let mut is_established = false;
        while let Some(event) = pair.poll_event() {
            is_established |= event == transport::AsyncEvent::CommunicationEstablished;
            self.context.raise(AsyncEvent::Qp(self.qpn, event));
        }
        if is_established {
            self.publish(nic, inner);
        }
    }

    /// Tells the program what has completed.
    #[inline]
    fn complete(
        &self,
        nic: &Ground,
        pair: &mut transport::QueuePair,
        port: &mut NicPort<'_>,
        alarm: &mut Alarm,
        now: Time,
        mut poller: Option<&mut Poller<'_>>,
    ) {
        pair.show_completions(now, port, |completion| {
            self.deliver(nic, alarm, completion, now, poller.as_deref_mut());
        });
    }

    /// Puts a completion where the program finds it.
    #[inline]
    fn deliver(
        &self,
        nic: &Ground,
        alarm: &mut Alarm,
        completion: &Completion,
        now: Time,
        poller: Option<&mut Poller<'_>>,
    ) {
        if completion.status != Status::Success {
            nic.records.failures.count(self.qpn, completion.queue, completion.status);
        }
        if Ledger::is_kept() {
            nic.ledger.finished(self.qpn, completion.queue);
        }
        let shared;
        let mut elsewhere = false;
        let cq = match completion.queue {
            Queue::Send => self.send_cq.as_ref(),
            Queue::Receive => self.receive_cq.as_ref(),
            Queue::Shared(srq) => {
                if completion.kind.ends_tagged_buffer() {
                    self.tagged_finished(1);
                }
                shared = nic.shared_queues.usable_by(srq, self.xrc_domain);
                let own = shared.as_ref().and_then(|queue| queue.completion_queue());
                elsewhere = own.is_some_and(|cq| cq.is_observed());
                own.or(self.receive_cq.as_ref())
            }
        };
        let Some(cq) = cq else { return };
        if let Some(poller) = poller
            && poller.shows(cq, completion, now.as_nanos())
        {
            return;
        }
        match cq.push(completion, now.as_nanos()) {
            Added::Fine | Added::Dead => {}
            Added::Overflowed | Added::Dropped => {
                nic.cq_overflowed(now, self.qpn, cq);
                self.context.raise(AsyncEvent::CqError(cq.id));
            }
            // Time is kept by the queue pairs that a completion queue is made for, not by all that share a receive
            // queue.
            Added::Later(_) if !self.completes_in(cq) => cq.rouse(),
            Added::Later(until) => self.wake_at(&nic.progress, alarm, Time::from_nanos(until)),
        }
        if elsewhere {
            // After the entry, never before: the thread that takes the flag away has the observer look for entries.
            self.told_elsewhere.store(true, Ordering::Release);
        }
    }

    /// Sets the NIC's timer for what is to happen next.
    #[inline]
    fn sleep(&self, progress: &ProgressState, inner: &mut Inner) {
        if let Some(deadline) = inner.deadline() {
            self.wake_at(progress, &mut inner.alarm, deadline);
        }
    }

    #[inline]
    fn wake_at(&self, progress: &ProgressState, alarm: &mut Alarm, deadline: Time) {
        if alarm.advances_to(deadline) {
            progress.wake_at(deadline, self.qpn);
        }
    }

    fn completes_in(&self, cq: &Arc<CompletionQueue>) -> bool {
        [&self.send_cq, &self.receive_cq].into_iter().flatten().any(|own| Arc::ptr_eq(own, cq))
    }

    /// Whether the program may wait for completions that wait for others.
    fn moderates(&self) -> bool {
        [&self.send_cq, &self.receive_cq].into_iter().flatten().any(|cq| cq.may_wake())
    }

    /// Wakes programs whose completions have waited long enough; without a time, all. Returns when the next will have.
    fn wake_moderated(&self, now: Option<Time>) -> Option<Time> {
        let queues = [&self.send_cq, &self.receive_cq].into_iter().flatten();
        queues.filter_map(|cq| cq.time_has_come(now.map(Time::as_nanos))).min().map(Time::from_nanos)
    }

    /// Sends what there is to send, as far as the link takes it.
    fn transmit(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        let placed = inner.pair.holds_back() && self.place_held(nic, inner, now);
        self.transmit_trains(nic, inner, now);
        if placed {
            self.complete_all(nic, inner, now, None);
        }
    }

    fn transmit_trains(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        if !self.kind.is_connected() {
            return match self.kind {
                Kind::RawPacket => self.transmit_frames(nic, inner, now),
                _ => self.transmit_datagrams(nic, inner, now),
            };
        }
        let Inner { pair, windows, weak, path, shared, .. } = &mut *inner;
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        match shared.transmit(nic, self, path, pair, &mut port, now) {
            Way::Done => return,
            Way::Other => {}
            Way::Refused => {
                // Nothing has gone this way yet: the queue pair takes the other as if it had never known better.
                let attributes = inner.pair.attributes();
                inner.path.link = Link::Udp;
                self.note_udp(&nic.progress, inner);
                inner.windows = nic.windows(&inner.path, &attributes.av, attributes.dest_qpn);
            }
        }
        self.transmit_packets(nic, inner, now);
    }

    /// The lane it uses: that of all whose receives complete in the same queue, as one thread polls for them.
    fn lane(&self) -> u32 {
        self.receive_cq.as_ref().or(self.send_cq.as_ref()).map_or(0, |cq| cq.id)
    }

    /// Whether `thread`, which is about to do something else, has looked at all completions, and all work has one: the
    /// last acknowledgement may come behind the end of the connection.
    pub(crate) fn is_looked_through(&self, thread: usize) -> bool {
        [&self.send_cq, &self.receive_cq].into_iter().flatten().all(|cq| cq.is_looked_through(thread))
            && self.inner.lock().pair.outstanding()[0] == 0
    }

    /// Tells the NIC whether other hosts may send to it.
    fn note_udp(&self, progress: &ProgressState, inner: &mut Inner) {
        let over_network = self.kind != Kind::RawPacket;
        let uses = over_network
            && inner.pair.state().receives()
            && (!self.kind.is_connected() || matches!(inner.path.link, Link::Udp));
        if std::mem::replace(&mut inner.uses_udp, uses) != uses {
            progress.uses_udp(uses);
        }
    }

    #[inline]
    fn pass_on(&self, progress: &ProgressState, windows: &Windows) {
        if windows.are_shared() {
            for window in [&windows.peer, &windows.local_receive_window] {
                if let Some(qpn) = window.pass_on(self.qpn) {
                    progress.make_ready(qpn);
                }
            }
        }
    }

    /// Passes room in shared windows on to queue pairs that wait for it, lets go of the lock, then tells the observers
    /// of the completion queues.
    #[inline]
    fn leave(&self, nic: &Ground, inner: Guard<'_, Inner>) {
        self.pass_on(&nic.progress, &inner.windows);
        if self.tells_stop.load(Ordering::Relaxed) && inner.pair.state() == State::Error {
            // By the next thread that drives, under no lock.
            nic.progress.make_ready(self.qpn);
        }
        drop(inner);
        if let Some(cq) = &self.send_cq {
            cq.announce();
        }
        if let Some(cq) = &self.receive_cq {
            cq.announce();
        }
        if self.told_elsewhere.load(Ordering::Relaxed) && self.told_elsewhere.swap(false, Ordering::AcqRel) {
            nic.shared_queues.announce();
        }
    }
}

#[cfg(test)]
mod tests;

/// Has a sanitizer judge where a receive leads to, while the stack is that of the call.
#[cold]
fn judge_receive(nic: &Ground, pair: &transport::QueuePair, request: &ReceiveRequest<'_>) {
    let subject = wire::access::Subject { qpn: pair.qpn(), pd: pair.domain(), remote: false };
    for sge in request.sges {
        let range = wire::access::Range { key: sge.key.of_region(), address: sge.address, length: sge.length.into() };
        // What cannot be had fails when a message comes.
        drop(nic.memory.lend_briefly(subject, range, wire::access::Access::LOCAL_WRITE));
    }
}

//! Queue pairs: the transport's machine behind a lock, joined to completion queues, a link and a timer. Driving one means sending what it wants
//! sent, then telling its program what it completed, in this order.

mod shared;
mod udp;

pub(crate) use udp::TrainCargo;

use crate::answering::Answering;
use crate::completion_queue::{Added, CompletionQueue, Poller};
use crate::context::{AsyncEvent, Context};
use crate::debt::Debt;
use crate::host::{Host, Windows};
use crate::nic::Nic;
use crate::path::{Link, Path};
use crate::shared::datagrams::Held;
use crate::shared::{Shared, Way};
use crate::timers::Alarm;
use latch::{Guard, Mutex};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use transport::{
    AddressVector, Attributes, Completion, Inbound, Kind, Modify, ModifyError, PostError, Queue, ReceiveRequest,
    SendRequest, State, Time,
};
use wire::Qpn;

/// How often a process that ends looks whether a queue pair is free, every 100 us.
const LAST_TRIES: u32 = 200;

/// A queue pair of this process. Fields lie in the order in which they are written down: what every message needs lies together, as a message of a queue
/// pair that was not used for long waits for each cache line of it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Qp {
    qpn: Qpn,
    kind: Kind,
    /// Its receives come from a shared receive queue.
    uses_shared: bool,
    /// What it sends to a multicast group that it is in does not come back to it.
    ignores_own: AtomicBool,
    xrc_domain: Option<u32>,
    send_cq: Option<Arc<CompletionQueue>>,
    receive_cq: Option<Arc<CompletionQueue>>,
    context: Arc<Context>,
    inner: Mutex<Inner>,
    /// Trains that are sent from copies, because something had to be sent again.
    copies: AtomicU32,
}

#[derive(Debug)]
#[repr(C)]
struct Inner {
    /// Whether its program answers what it receives.
    answering: Answering,
    /// Packets that were handled while what follows from them has not been sent.
    touched: u32,
    windows: Windows,
    /// The deadline that stands in the NIC's timers.
    alarm: Alarm,
    /// The link through shared memory, as far as it concerns this queue pair.
    shared: Shared,
    /// What keeps the next datagram back.
    held: Held,
    /// Other hosts may send to it.
    uses_udp: bool,
    path: Path,
    /// An acknowledgement that waits for an answer.
    debt: Debt,
    /// The way of the last datagram, as most go the same way.
    last: Option<LastWay>,
    pair: transport::QueuePair,
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
        // Datagrams have no other.
        self.pair.poll_timeout().or_else(|| self.held.deadline())
    }
}

/// What lies before the data of a mutex, mostly.
const BEFORE: usize = 8;

impl Qp {
    /// Begins to bring what the next message needs of it. Where there are thousands of queue pairs it comes from afar.
    #[inline]
    pub fn prefetch(&self) {
        const INNER: usize = offset_of!(Qp, inner) + BEFORE;
        const PAIR: usize = INNER + offset_of!(Inner, pair);
        const HOT: Range<usize> = transport::QueuePair::HOT;
        link::prefetch(self, 0..INNER + offset_of!(Inner, path) + offset_of!(Path, route));
        link::prefetch(self, PAIR + HOT.start..PAIR + HOT.end);
    }

    pub(crate) fn new(config: transport::QueuePairConfig, joins: Joins) -> Qp {
        Qp {
            qpn: config.qpn,
            kind: config.kind,
            context: joins.context,
            send_cq: joins.send_cq,
            receive_cq: joins.receive_cq,
            xrc_domain: joins.xrc_domain,
            uses_shared: config.srq.is_some() || config.kind == Kind::XrcTarget,
            ignores_own: AtomicBool::new(false),
            copies: AtomicU32::new(0),
            inner: Mutex::new(Inner {
                pair: transport::QueuePair::new(config),
                windows: Windows::unlimited(),
                path: Path::default(),
                alarm: Alarm::default(),
                touched: 0,
                shared: Shared::default(),
                uses_udp: false,
                last: None,
                held: Held::default(),
                debt: Debt::default(),
                answering: Answering::default(),
            }),
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

    /// Changes state and attributes, or neither. The link to its peer is chosen on the way to RTR.
    pub fn modify(&self, nic: &Nic, modify: &Modify) -> Result<(), ModifyError> {
        if modify.state == Some(State::ReadyToReceive)
            && self.kind.is_connected()
            && self.state() == State::Init
            && let (Some(av), Some(peer)) = (&modify.av, modify.dest_qpn)
        {
            // Without our lock: it looks at the receiving socket, whose holder may be about to hand us a packet.
            nic.obstacle(self.context.device(), av, peer, modify.path_mtu, self.lane())?;
        }
        let mut inner = self.inner.lock();
        self.pay_all(nic, &mut inner);
        let now = nic.now();
        let (pair, mut host) = self.split(nic, &mut inner);
        pair.modify(now, modify, &mut host)?;
        if modify.state == Some(State::ReadyToReceive) || modify.av.is_some() {
            let attributes = inner.pair.attributes();
            if self.kind.is_connected() {
                inner.path = nic.path(self.context.device(), &attributes.av, attributes.dest_qpn, self.lane());
                let windows = nic.windows(&inner.path, &attributes.av, attributes.dest_qpn);
                // It may have been named in the windows it leaves.
                let left = std::mem::replace(&mut inner.windows, windows);
                self.pass_on(nic, &left);
                inner.shared = Shared::default();
            } else {
                inner.path = Path::default();
            }
            self.note_udp(nic, &mut inner);
        }
        self.drive(nic, &mut inner, now);
        self.leave(nic, inner);
        nic.after_call(now);
        Ok(())
    }

    /// Whether the peer has not answered something yet.
    pub(crate) fn is_owed(&self) -> bool {
        self.inner.lock().pair.poll_timeout().is_some()
    }

    /// Posts sends, in order, until one is refused: then its index and why.
    pub fn post_send(&self, nic: &Nic, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        self.prefetch();
        nic.engine().sends();
        let alone = nic.alone();
        let mut inner = self.inner.lock();
        inner.answering.habit.answers();
        let Inner { pair, windows, path, shared, .. } = &mut *inner;
        let mut host = Host { nic, windows, xrc_domain: self.xrc_domain };
        let (sent, done, call) = match &path.link {
            Link::Udp => {
                let (sent, done) = self.send_at_once(nic, &mut inner, requests, nic.now());
                (sent, done, None)
            }
            _ => shared.send_at_once(nic, path, pair, &mut host, requests),
        };
        let mut refused = Ok(());
        match done {
            true => {
                if !inner.pair.may_transmit() {
                    // What waited has gone along.
                    inner.answering.ends(&nic.owing);
                }
                self.sleep(nic, &mut inner);
            }
            false => {
                let now = nic.now();
                let (pair, mut host) = self.split(nic, &mut inner);
                for (index, request) in requests.iter().enumerate().skip(sent) {
                    if let Err(error) = pair.post_send(now, request, &mut host) {
                        refused = Err((index, error));
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
        nic.after_posting();
        refused
    }

    /// Posts sends like [`post_send`](Qp::post_send), but none of them if the queue has no room for all. The index is then that of the first
    /// for which there is none.
    pub fn post_send_all(&self, nic: &Nic, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        // One alone is taken or not.
        if requests.len() > 1 {
            let inner = self.inner.lock();
            let room = inner.pair.send_room() as usize;
            if requests.len() > room && inner.pair.state() >= State::ReadyToSend {
                let capacity = inner.pair.attributes().capabilities.max_send_wr;
                return Err((room, PostError::QueueFull { queue: "send", capacity }));
            }
        }
        self.post_send(nic, requests)
    }

    /// Posts receives, in order, until one is refused: then its index and why.
    pub fn post_receive(&self, nic: &Nic, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostError)> {
        let alone = nic.alone();
        let mut inner = self.inner.lock();
        // Nothing waits for a receive that is posted: only who looks on wants to know when.
        let now = if nic.trace.is_on() || inner.pair.state() == State::Error { nic.now() } else { Time::ZERO };
        let (pair, mut host) = self.split(nic, &mut inner);
        let mut refused = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(error) = pair.post_receive(now, request, &mut host) {
                refused = Err((index, error));
                break;
            }
        }
        // In error a receive is flushed at once; otherwise posting one sends and completes nothing.
        if pair.state() == State::Error {
            self.drive(nic, &mut inner, now);
            self.leave(nic, inner);
        } else {
            drop(inner);
        }
        drop(alone);
        nic.after_posting();
        refused
    }

    /// Takes a packet or train. Answers how many it has taken since it was driven: at the first somebody must see to it that it is.
    pub(crate) fn take(&self, nic: &Nic, now: Time, inbound: &Inbound<'_>) -> u32 {
        let mut inner = self.inner.lock();
        let (pair, mut host) = self.split(nic, &mut inner);
        pair.handle(now, inbound, &mut host);
        inner.touched += 1;
        inner.touched
    }

    /// Sends and completes what follows from packets that were taken.
    pub(crate) fn settle(&self, nic: &Nic, now: Time) {
        self.settle_for(nic, now, None);
    }

    /// The same, for one who polls and is shown at once what completes.
    pub(crate) fn settle_for(&self, nic: &Nic, now: Time, poller: Option<&mut Poller<'_>>) {
        let mut inner = self.inner.lock();
        inner.touched = 0;
        self.transmit(nic, &mut inner, now);
        self.complete_all(nic, &mut inner, now, poller);
        self.sleep(nic, &mut inner);
        self.leave(nic, inner);
    }

    /// Does what follows from the passing of time, if this entry of the NIC's timers is the one that counts.
    pub(crate) fn time_has_come(&self, nic: &Nic, now: Time, entry: Time) {
        let mut inner = self.inner.lock();
        if !inner.alarm.comes_up(entry) {
            return;
        }
        // Mostly what it was set for has been answered long ago.
        if inner.deadline().is_none_or(|deadline| deadline > now) && !self.moderates() {
            return self.sleep(nic, &mut inner);
        }
        if inner.pair.poll_timeout().is_some_and(|deadline| deadline <= now) {
            let Inner { pair, path, shared, .. } = &mut *inner;
            if shared.is_unread(path) {
                pair.hold_timers(now);
            }
            let (pair, mut host) = self.split(nic, &mut inner);
            pair.handle_timeout(now, &mut host);
        }
        self.drive(nic, &mut inner, now);
        if let Some(deadline) = self.wake_moderated(Some(now)) {
            self.wake_at(nic, &mut inner.alarm, deadline);
        }
        self.leave(nic, inner);
    }

    /// Sends the acknowledgement that waits. `idle` if the program looked for more and there was nothing.
    pub(crate) fn pay_debt(&self, nic: &Nic, idle: bool) {
        let mut inner = self.inner.lock();
        if idle {
            inner.answering.habit.asks_for_more();
            inner.debt.is_idle();
        }
        self.pay(nic, &mut inner);
    }

    /// Sends the acknowledgement that waits, if one does.
    fn pay(&self, nic: &Nic, inner: &mut Inner) {
        if inner.answering.ends(&nic.owing) {
            self.transmit(nic, inner, nic.now());
        }
        if let (Some((psn, msn)), Some(route)) = (inner.debt.held(), &inner.path.route) {
            nic.acknowledge(route, &inner.pair.acknowledgement(psn, msn), &mut nic.outgoing(self.qpn));
        }
        inner.debt.paid(nic.debtor());
    }

    /// The same before the queue pair changes or goes, and what is owed for packets that another thread has taken a moment ago: what they brought may
    /// have been what the program had waited for.
    fn pay_all(&self, nic: &Nic, inner: &mut Inner) {
        if inner.touched > 0 {
            self.transmit(nic, inner, nic.now());
        }
        self.pay(nic, inner);
    }

    /// Sends and completes what is due, because the process ends. Whoever holds the queue pair may be the one who ends it: then nothing is.
    pub(crate) fn settle_debts(&self, nic: &Nic) {
        for _ in 0..LAST_TRIES {
            match self.inner.try_lock() {
                Some(mut inner) => {
                    self.drive(nic, &mut inner, nic.now());
                    self.pay(nic, &mut inner);
                    return;
                }
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Forgets everything: the queue pair is being destroyed. Answers the work request of a shared receive queue that it had taken and not
    /// finished, which nobody will hear of otherwise.
    pub(crate) fn shut(&self, nic: &Nic) -> Option<u64> {
        let mut inner = self.inner.lock();
        self.pay_all(nic, &mut inner);
        let now = nic.now();
        let (pair, mut host) = self.split(nic, &mut inner);
        let mut taken = None;
        if self.uses_shared {
            // ERR is legal from every state, and flushes what is in hand.
            let _ = pair.modify(now, &Modify { state: Some(State::Error), ..Modify::default() }, &mut host);
            while let Some(completion) = pair.poll_completion(now, &mut host) {
                if let Queue::Shared(_) = completion.queue {
                    taken = Some(completion.wr_id);
                }
            }
        }
        // RESET is legal from every state.
        let _ = pair.modify(now, &Modify { state: Some(State::Reset), ..Modify::default() }, &mut host);
        self.note_udp(nic, &mut inner);
        self.wake_moderated(None);
        self.leave(nic, inner);
        taken
    }

    fn split<'a>(&self, nic: &'a Nic, inner: &'a mut Inner) -> (&'a mut transport::QueuePair, Host<'a>) {
        let host = Host { nic, windows: &mut inner.windows, xrc_domain: self.xrc_domain };
        (&mut inner.pair, host)
    }

    /// The loop of the transport's documentation: send, then complete, then sleep.
    fn drive(&self, nic: &Nic, inner: &mut Inner, now: Time) {
        inner.touched = 0;
        self.transmit(nic, inner, now);
        self.complete_all(nic, inner, now, None);
        self.sleep(nic, inner);
    }

    /// Tells the program what has completed, and what else happened.
    #[inline]
    fn complete_all(&self, nic: &Nic, inner: &mut Inner, now: Time, poller: Option<&mut Poller<'_>>) {
        let Inner { pair, windows, alarm, .. } = inner;
        let mut host = Host { nic, windows, xrc_domain: self.xrc_domain };
        self.complete(nic, pair, &mut host, alarm, now, poller);
        while let Some(event) = pair.poll_event() {
            self.context.raise(AsyncEvent::Qp(self.qpn, event));
        }
    }

    /// Tells the program what has completed.
    #[inline]
    fn complete(
        &self,
        nic: &Nic,
        pair: &mut transport::QueuePair,
        host: &mut Host<'_>,
        alarm: &mut Alarm,
        now: Time,
        mut poller: Option<&mut Poller<'_>>,
    ) {
        pair.show_completions(now, host, |completion| {
            self.deliver(nic, alarm, completion, now, poller.as_deref_mut());
        });
    }

    /// Puts a completion where the program finds it.
    #[inline]
    fn deliver(
        &self,
        nic: &Nic,
        alarm: &mut Alarm,
        completion: &Completion,
        now: Time,
        poller: Option<&mut Poller<'_>>,
    ) {
        let xrc;
        let cq = match completion.queue {
            Queue::Send => self.send_cq.as_ref(),
            Queue::Receive => self.receive_cq.as_ref(),
            Queue::Shared(srq) => match nic.shared_queue(srq, self.xrc_domain) {
                Some(queue) if queue.xrc().is_some() => {
                    xrc = queue.xrc().map(|xrc| Arc::clone(&xrc.cq));
                    xrc.as_ref()
                }
                _ => self.receive_cq.as_ref(),
            },
        };
        let Some(cq) = cq else { return };
        if let Some(poller) = poller
            && poller.shows(cq, completion, now.as_nanos())
        {
            return;
        }
        match cq.push(completion, now.as_nanos()) {
            Added::Fine | Added::Dead => {}
            Added::Overflowed => self.context.raise(AsyncEvent::CqError(cq.id)),
            // Time is kept by the queue pairs that a completion queue is made for, not by all that share a receive queue.
            Added::Later(_) if !self.completes_in(cq) => cq.rouse(),
            Added::Later(until) => self.wake_at(nic, alarm, Time::from_nanos(until)),
        }
    }

    /// Sets the NIC's timer for what is to happen next.
    #[inline]
    fn sleep(&self, nic: &Nic, inner: &mut Inner) {
        if let Some(deadline) = inner.deadline() {
            self.wake_at(nic, &mut inner.alarm, deadline);
        }
    }

    #[inline]
    fn wake_at(&self, nic: &Nic, alarm: &mut Alarm, deadline: Time) {
        if alarm.advances_to(deadline) {
            nic.wake_at(deadline, self.qpn);
        }
    }

    fn completes_in(&self, cq: &Arc<CompletionQueue>) -> bool {
        [&self.send_cq, &self.receive_cq].into_iter().flatten().any(|own| Arc::ptr_eq(own, cq))
    }

    /// Whether somebody may wait for completions that wait for others.
    fn moderates(&self) -> bool {
        [&self.send_cq, &self.receive_cq].into_iter().flatten().any(|cq| cq.may_wake())
    }

    /// Wakes programs whose completions have waited long enough; without a time, all. Answers when the next will have.
    fn wake_moderated(&self, now: Option<Time>) -> Option<Time> {
        let queues = [&self.send_cq, &self.receive_cq].into_iter().flatten();
        queues.filter_map(|cq| cq.time_has_come(now.map(Time::as_nanos))).min().map(Time::from_nanos)
    }

    /// Sends what there is to send, as far as the link takes it.
    fn transmit(&self, nic: &Nic, inner: &mut Inner, now: Time) {
        if !self.kind.is_connected() {
            return self.transmit_datagrams(nic, inner, now);
        }
        let Inner { pair, windows, path, shared, .. } = &mut *inner;
        let mut host = Host { nic, windows, xrc_domain: self.xrc_domain };
        match shared.transmit(nic, self, path, pair, &mut host, now) {
            Way::Done => return,
            Way::Other => {}
            Way::Refused => {
                // Nothing has gone this way yet: the queue pair takes the other as if it had never known better.
                let attributes = inner.pair.attributes();
                inner.path.link = Link::Udp;
                self.note_udp(nic, inner);
                inner.windows = nic.windows(&inner.path, &attributes.av, attributes.dest_qpn);
            }
        }
        self.transmit_packets(nic, inner, now);
    }

    /// The lane it uses: that of all whose receives complete in the same queue, as one thread polls for them.
    fn lane(&self) -> u32 {
        self.receive_cq.as_ref().or(self.send_cq.as_ref()).map_or(0, |cq| cq.id)
    }

    /// Tells the NIC whether other hosts may send to it.
    fn note_udp(&self, nic: &Nic, inner: &mut Inner) {
        let uses = inner.pair.state().receives() && (!self.kind.is_connected() || matches!(inner.path.link, Link::Udp));
        if std::mem::replace(&mut inner.uses_udp, uses) != uses {
            nic.uses_udp(uses);
        }
    }

    #[inline]
    fn pass_on(&self, nic: &Nic, windows: &Windows) {
        if windows.are_shared() {
            for window in [&windows.peer, &windows.here] {
                if let Some(qpn) = window.pass_on(self.qpn) {
                    nic.make_ready(qpn);
                }
            }
        }
    }

    /// Passes room in shared windows on to those who wait for it, lets go of the lock, then tells who observes the completion queues.
    #[inline]
    fn leave(&self, nic: &Nic, inner: Guard<'_, Inner>) {
        self.pass_on(nic, &inner.windows);
        drop(inner);
        if let Some(cq) = &self.send_cq {
            cq.announce();
        }
        if let Some(cq) = &self.receive_cq {
            cq.announce();
        }
    }
}

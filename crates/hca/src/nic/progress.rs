//! How work gets done: whoever polls, waits or lends its thread takes what has arrived, sends what is due and lets deadlines pass.

use super::{Nic, local_grh, lock};
use crate::completion_queue::{CompletionChannel, CompletionQueue, Poller};
use crate::manners::WITH_SOCKETS;
use crate::queue_pair::Qp;
use crate::sleep;
use crate::udp::Found;
use crate::watch::OnWatch;
use link::shared::Sleeper;
use link::udp::Arrival;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::{Completion, Inbound, Time};
use wire::Qpn;
use wire::cm::CmDatagram;

/// Packets of one queue pair after which it is driven, though more are at hand: more than the datagrams bring that are taken at once.
const OFTEN: u32 = 64;

/// A datagram of so many packets is one of many, mostly: then up to so many are taken at once.
const FULL: u32 = 8;
const TOGETHER: u32 = 4;

/// How often a process that ends looks for packets.
const LAST_LOOKS: u32 = 64;

/// Of so many polls one looks at the clock, where trains come through shared memory.
const SELDOM: u64 = 32;

/// How long, in nanoseconds, sockets are left alone by one who polls, where trains come through shared memory: with and without queue pairs that
/// other hosts may send to. And how long they are looked at every time after something has come.
const LOOK_OFTEN: u64 = 20_000;
const LOOK_SELDOM: u64 = 1_000_000;
const HOT: u64 = 1_000_000;

/// How long, in nanoseconds, one who polls looks only at the socket that brought packets last, if looking at everything finds nothing else again
/// and again.
const LOOK_RARELY: u64 = 320_000;

/// How long, in nanoseconds, a timer waits for a socket to be empty.
const PATIENCE: u64 = 2_000_000;

/// What there is to do, at a glance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Glance {
    Nothing,
    /// Rings have something, and that is all.
    Rings,
    /// It takes a longer look.
    Perhaps,
}

impl Nic {
    /// Sends the acknowledgement that waits, if it is due, because the program finds nothing else.
    #[inline]
    fn pay_debt(&self) {
        let due = || self.debtor.get().filter(|_| self.debtor.is_due(self.now()));
        // Now and then everybody sees to everything: a thread may have stopped.
        let owing = match self.sees_to_everything() {
            true => self.owing.get(),
            false => self.owing.get_here(),
        };
        if let Some(debtor) = owing.or_else(due)
            && let Some(qp) = self.qps.get(debtor)
        {
            qp.pay_debt(self, true);
        }
    }

    /// Sends it in any case: the engine does, who cannot know whether the program is about to answer, and who goes to sleep.
    pub(crate) fn see_to_debt(&self) {
        for debtor in [self.owing.strike(), self.debtor.get_last()].into_iter().flatten() {
            if let Some(qp) = self.qps.get(debtor) {
                qp.pay_debt(self, false);
            }
        }
    }

    pub(crate) fn wake_at(&self, deadline: Time, qpn: Qpn) {
        if self.timers.set(deadline, qpn) {
            self.engine.deadline_moved(deadline);
        }
    }

    pub(crate) fn make_ready(&self, qpn: Qpn) {
        self.ready.add(qpn);
    }

    /// Does what there is to do, without waiting. Answers whether there was anything.
    pub fn progress(&self) -> bool {
        if self.owing.get().or_else(|| self.debtor.get()).is_some() {
            self.see_to_debt();
        }
        self.receive_shared(None, None) | self.advance(None)
    }

    /// Uses the calling thread's right to all locks, if it has one, until what this answers is dropped. Not while the engine works, too, and not where
    /// others are called meanwhile, who may wait for other threads.
    #[inline]
    pub(crate) fn alone(&self) -> Option<latch::Alone> {
        let may = self.engine.is_leased() && !self.trace.is_on() && self.capture.is_none();
        may.then(latch::alone)
    }

    /// Does what there is to do besides what comes through shared memory; with a poller for one who will call again at once if there was nothing.
    fn advance(&self, poller: Option<&mut Poller<'_>>) -> bool {
        let polling = poller.is_some();
        let mut any = false;
        self.impatience.check(self);
        if self.exchange.has_stalled() {
            any |= self.resume_stalled(!polling);
        }
        // Where trains come through shared memory, sockets and clocks are looked at now and then only: a system call costs more than a message.
        if polling && self.exchange.has_inbound() && !self.sees_to_everything() && !self.is_hot() {
            any |= !self.local.seems_empty() && self.settle_local();
            any |= !self.ready.is_empty() && self.settle(&self.ready, self.now());
            return any;
        }
        let now = self.now();
        let looks = !polling || self.should_look(now);
        if polling && looks {
            self.engine.looked();
        }
        let received = looks && self.receive(poller, now);
        if received && polling && self.local.seems_empty() && self.ready.is_empty() && !self.sees_to_everything() {
            // What has come is worth more than what else there may be: the program has it sooner.
            return true;
        }
        if self.exchange.is_called() {
            self.serve_exchange();
            any = true;
        }
        if self.lives.has_news() {
            self.cm.bury(self);
            any = true;
        }
        any |= received;
        any |= !(polling && self.local.seems_empty()) && self.settle_local();
        any |= self.settle(&self.ready, now);
        // What a timer waits for may be among what has not been taken yet: first everything is. But not for ever.
        let latest = now.as_nanos().saturating_sub(if received { PATIENCE } else { 0 });
        any |= self.fire_timers(Time::from_nanos(latest), now);
        any
    }

    /// Whether this is one of the polls that leave nothing out.
    #[inline]
    fn sees_to_everything(&self) -> bool {
        self.engine.polls_here().is_multiple_of(SELDOM)
    }

    /// Whether packets came over the sockets lately.
    #[inline]
    fn is_hot(&self) -> bool {
        self.hot_until.load(Ordering::Relaxed) > self.looked.load(Ordering::Relaxed)
    }

    /// Whether one who polls should look at the sockets.
    fn should_look(&self, now: Time) -> bool {
        let since = now.as_nanos().saturating_sub(self.looked.load(Ordering::Relaxed));
        let pause = match self.udp_users.load(Ordering::Relaxed) {
            0 => LOOK_SELDOM,
            _ => LOOK_OFTEN,
        };
        if self.exchange.has_inbound() && !self.is_hot() && since < pause {
            return false;
        }
        self.looked.store(now.as_nanos(), Ordering::Relaxed);
        true
    }

    /// A queue pair begins, or ceases, to be one that other hosts may send to.
    pub(crate) fn uses_udp(&self, uses: bool) {
        match uses {
            true => self.udp_users.fetch_add(1, Ordering::Relaxed),
            false => self.udp_users.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// What one who polls would find, as far as that can be told by a few loads. Now and then, and where it cannot, everything is looked at.
    #[inline]
    fn glance(&self, alone: Option<&latch::Alone>) -> Glance {
        let Some(alone) = alone else { return Glance::Perhaps };
        let plain = self.owing.get().is_none()
            && self.debtor.get().is_none()
            && !self.impatience.any()
            && !self.exchange.has_stalled()
            && self.exchange.has_inbound()
            && !self.sees_to_everything()
            && !self.is_hot()
            && self.local.seems_empty()
            && self.ready.is_empty();
        match plain.then(|| self.exchange.glance(alone)).flatten() {
            Some(false) => Glance::Nothing,
            Some(true) => Glance::Rings,
            None => Glance::Perhaps,
        }
    }

    /// The program has taken what somebody else had put into a completion queue: it has not polled in vain.
    #[inline]
    pub fn has_taken(&self) {
        self.manners.found_something();
    }

    /// A poll found nothing, and took as long as so many short ones.
    #[inline]
    fn found_nothing(&self, took: u32) {
        self.manners.found_nothing(took, || self.now(), || self.engine.has_few_processors() && self.is_owed());
    }

    /// Whether others have not done what this process asked of them: by the first who will ask again.
    #[cold]
    fn is_owed(&self) -> bool {
        self.timers.first().and_then(|qpn| self.qps.get(qpn)).is_some_and(|qp| qp.is_owed())
    }

    /// Takes up to `room` completions. An empty queue drives: what has arrived is looked at before the answer is "nothing".
    /// `take` is given each with its moment. It may be called while queue pairs are locked: it takes, and calls nothing of the NIC.
    pub fn poll(&self, cq: &CompletionQueue, room: usize, mut take: impl FnMut(&Completion, u64)) -> usize {
        cq.polls();
        let alone = self.alone();
        let taken = cq.poll(room, &mut take);
        if taken > 0 {
            self.has_taken();
            return taken;
        }
        let glance = self.glance(alone.as_ref());
        if glance == Glance::Nothing {
            drop(alone);
            self.engine.polled();
            self.found_nothing(1);
            return 0;
        }
        if glance != Glance::Rings {
            self.pay_debt();
        }
        let mut poller = Poller { cq, room, show: &mut take };
        let received = self.receive_shared(alone.as_ref(), Some(&mut poller));
        drop(alone);
        if glance == Glance::Rings && poller.room < room {
            self.engine.polled();
            self.manners.found_something();
            return room - poller.room;
        }
        let looks = self.engine.looks();
        let any = received | self.advance(Some(&mut poller));
        let left = poller.room;
        // Not before: both look at how often that was, and should see the same.
        self.engine.polled();
        match any {
            true => self.manners.found_something(),
            false => self.found_nothing(if self.engine.looks() != looks { WITH_SOCKETS } else { 1 }),
        }
        room - left + cq.poll(left, take)
    }

    /// Waits for the next event of a channel: the number of a completion queue. The waiting thread drives, so that one wake-up is enough. A
    /// channel whose descriptor does not block answers `WouldBlock` instead, and a signal that arrives meanwhile is `Interrupted`.
    pub fn wait(&self, channel: &CompletionChannel) -> io::Result<u32> {
        self.see_to_debt();
        if channel.is_nonblocking()? {
            self.progress();
            return channel.try_take().ok_or_else(|| io::ErrorKind::WouldBlock.into());
        }
        loop {
            self.engine.enter_wait();
            let answer = self.drive_until(channel, None);
            self.engine.leave_wait();
            if let Some(event) = answer? {
                return Ok(event);
            }
        }
    }

    /// Waits like [`wait`](Nic::wait), but not longer than `limit`, and whatever the mode of the descriptor.
    pub fn wait_for(&self, channel: &CompletionChannel, limit: Option<Duration>) -> io::Result<Option<u32>> {
        self.see_to_debt();
        let deadline = limit.map(|limit| self.now() + limit);
        self.engine.enter_wait();
        let answer = loop {
            match self.drive_until(channel, deadline) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                answer => break answer,
            }
        };
        self.engine.leave_wait();
        answer
    }

    /// Waits, and hands back to the engine what was taken from it meanwhile.
    fn drive_until(&self, channel: &CompletionChannel, deadline: Option<Time>) -> io::Result<Option<u32>> {
        let mut on_watch = None;
        let answer = self.drive_on_watch(channel, deadline, &mut on_watch);
        if on_watch.is_some() {
            self.exchange.face().settle_down(Sleeper::Engine);
            self.receive_shared(None, None);
        }
        answer
    }

    /// What there is to do besides the sockets; `asleep` for one who goes to sleep afterwards. Deadlines are the engine's.
    pub(crate) fn look_again(&self, asleep: bool) -> bool {
        let mut any = self.receive_shared(None, None);
        if self.exchange.has_stalled() {
            any |= self.resume_stalled(asleep);
        }
        let now = self.now();
        any | self.settle_local() | self.settle(&self.ready, now)
    }

    fn drive_on_watch<'a>(
        &'a self,
        channel: &CompletionChannel,
        deadline: Option<Time>,
        on_watch: &mut Option<OnWatch<'a>>,
    ) -> io::Result<Option<u32>> {
        // One waiting thread drives for all.
        loop {
            if let Some(event) = channel.try_take() {
                return Ok(Some(event));
            }
            if deadline.is_some_and(|deadline| deadline <= self.now()) {
                return Ok(None);
            }
            *on_watch = on_watch.take().or_else(|| self.watch.take());
            if on_watch.is_some() {
                if self.receive_shared(None, None) {
                    continue;
                }
                // Say that we sleep, then look once more: what was written meanwhile is either seen here or rings. What has come to the
                // sockets ends the sleep before it begins.
                self.exchange.face().settle_down(Sleeper::Caller);
                if self.look_again(true) {
                    continue;
                }
            }
            // The engine sees to deadlines: it can be told of new ones.
            let left = deadline.map(|deadline| deadline.since(self.now()));
            match on_watch {
                Some(_) => {
                    let bell = self.exchange.face().fd(Sleeper::Caller);
                    let slept = sleep::until_ready([bell, self.udp.fd(), channel.raw_fd()], left);
                    self.exchange.face().wake(Sleeper::Caller);
                    if slept? & 2 != 0 {
                        self.progress();
                    }
                }
                None => self.watch.relieve(|free| sleep::until_ready([free, channel.raw_fd()], left).map(drop))?,
            }
        }
    }

    /// How long one may sleep though nothing arrives.
    pub(crate) fn patience(&self) -> Option<u64> {
        let timers = self.timers.next().map(|deadline| deadline.since(self.now()));
        timers.into_iter().chain(self.udp.patience()).min()
    }

    /// Does what follows from a call of the program's: trains inside the process, and queue pairs that got room to send.
    pub(crate) fn after_call(&self, now: Time) {
        // What this thread has sent to the process itself it sees.
        if self.local.seems_empty() && self.ready.is_empty() {
            return;
        }
        while self.settle_local() || self.settle(&self.ready, now) {}
    }

    /// The same after work was posted, which mostly is nothing.
    #[inline]
    pub(crate) fn after_posting(&self) {
        if !self.local.seems_empty() || !self.ready.is_empty() {
            self.after_call(self.now());
        }
    }

    /// Does what others still need of this process, because it ends: acknowledges messages that the engine has placed and not acknowledged yet, for the
    /// program has seen them and wants no more; and passes on what the kernel gave us for other processes, or it would end with us.
    pub(crate) fn settle_debts(&self) {
        self.cm.leave(self);
        self.qps.for_each(|qp| qp.settle_debts(self));
        // Bounded: packets may come as fast as they are taken.
        for _ in 0..LAST_LOOKS {
            if !self.progress() && !self.udp.is_tended() {
                return;
            }
        }
    }

    /// Takes what has arrived over UDP.
    fn receive(&self, poller: Option<&mut Poller<'_>>, now: Time) -> bool {
        let polling = poller.is_some();
        let alone = if polling { self.alone() } else { None };
        let mut messages: Vec<(::cm::Route, CmDatagram)> = Vec::new();
        // Packets come in runs: mostly this one is for the same as the last. Queue pairs that something came for are driven at the end.
        let mut last: Option<Arc<Qp>> = None;
        let mut before: Vec<Arc<Qp>> = Vec::new();
        let packets = Cell::new(0);
        let mut take = |run: &[Arrival<'_>]| {
            packets.set(packets.get() + run.len() as u32);
            if let Some(capture) = &self.capture {
                for arrival in run {
                    let device = self.device_of(arrival);
                    lock(capture).received(&device, &arrival.ip, arrival.port, arrival.bytes);
                }
            }
            let Some(first) = run.first() else { return };
            if !polling {
                self.note_moved(run.iter().map(|arrival| arrival.payload.len()).sum());
            }
            let qpn = first.headers.bth.dest_qpn;
            if last.as_ref().is_none_or(|last| last.qpn() != qpn) {
                before.extend(std::mem::replace(&mut last, self.qps.get(qpn)));
            }
            match &last {
                Some(qp) => {
                    if qp.take_arrivals(self, now, run) >= OFTEN {
                        // The peer's window is open for as much as it may be short of: it should hear while we still have something to do.
                        qp.settle(self, now);
                    }
                }
                None => {
                    for arrival in run {
                        if qpn == Qpn::GSI
                            && let Ok(message) = CmDatagram::parse(arrival.payload)
                        {
                            let came = ::cm::Route { source: arrival.source(), destination: arrival.destination() };
                            messages.push((came, message));
                        } else if qpn == Qpn::MULTICAST {
                            self.members(arrival, |qp| {
                                qp.take_arrivals(self, now, std::slice::from_ref(arrival));
                                before.push(Arc::clone(qp));
                            });
                        }
                    }
                }
            }
        };
        let since = now.as_nanos().saturating_sub(self.looked_at_all.load(Ordering::Relaxed));
        let pause = self.look_pause.load(Ordering::Relaxed);
        let mut hot_only = since < pause && (polling || self.flows.load(Ordering::Relaxed) && self.is_hot());
        let Found { mut any, mut elsewhere } = self.udp.receive(hot_only, &mut take);
        if hot_only && !any && !polling {
            // Who does not call again at once looks at everything before there is nothing.
            hot_only = false;
            Found { any, elsewhere } = self.udp.receive(false, &mut take);
        }
        if !hot_only {
            self.looked_at_all.store(now.as_nanos(), Ordering::Relaxed);
            let next = if elsewhere { LOOK_OFTEN } else { (2 * pause).clamp(LOOK_OFTEN, LOOK_RARELY) };
            self.look_pause.store(next, Ordering::Relaxed);
        }
        // One acknowledgement is enough for several datagrams full of packets.
        let mut looks = 1;
        while looks < TOGETHER && packets.replace(0) >= FULL {
            any |= self.udp.receive(true, &mut take).any;
            looks += 1;
        }
        if any && !polling {
            self.flows.store(looks > 1, Ordering::Relaxed);
        }
        if last.is_some() || !before.is_empty() {
            self.hot_until.store(now.as_nanos() + HOT, Ordering::Relaxed);
        }
        for qp in before {
            qp.settle(self, now);
        }
        if let Some(qp) = last {
            qp.settle_for(self, now, poller);
        }
        // The connection manager has a lock of another kind, under which it sends.
        drop(alone);
        self.cm.receive(self, &messages);
        any
    }

    /// Takes trains inside the process until there are none.
    fn settle_local(&self) -> bool {
        self.local.drain(|address, headers, count, payload| {
            let Some(qp) = self.qps.get(headers.bth.dest_qpn) else { return };
            let now = self.now();
            let grh = match qp.kind().is_connected() {
                true => [0; 40],
                false => local_grh((address.source, address.destination), headers.len() + payload.len()),
            };
            let inbound =
                Inbound { headers, count, payload, from: address.source, grh: &grh, congestion_marked: false };
            qp.take(self, now, &inbound);
            qp.settle(self, now);
        })
    }

    /// Drives the queue pairs that wait there.
    pub(super) fn settle(&self, waiting: &Waiting, now: Time) -> bool {
        let mut any = false;
        while let Some(qpn) = waiting.next() {
            any = true;
            if let Some(qp) = self.qps.get(qpn) {
                qp.settle(self, now);
            }
        }
        any
    }

    /// Wakes those whose deadline has come.
    pub(crate) fn fire_due(&self, now: Time) -> bool {
        self.fire_timers(now, now)
    }

    /// Wakes the queue pairs whose deadline was `latest` or before.
    fn fire_timers(&self, latest: Time, now: Time) -> bool {
        let mut any = false;
        while let Some((entry, qpn)) = self.timers.due(latest) {
            any = true;
            if qpn == Qpn::GSI {
                self.cm.wake(self, entry);
                self.mourn_due(now);
            }
            if let Some(qp) = self.qps.get(qpn) {
                qp.time_has_come(self, now, entry);
            }
        }
        any
    }
}

/// Queue pairs that somebody must drive.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: Mutex<VecDeque<Qpn>>,
    /// How many, to see without the lock that there are none.
    count: AtomicU32,
}

impl Waiting {
    fn add(&self, qpn: Qpn) {
        let mut queue = lock(&self.queue);
        queue.push_back(qpn);
        self.count.store(queue.len() as u32, Ordering::Release);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn next(&self) -> Option<Qpn> {
        if self.is_empty() {
            return None;
        }
        let mut queue = lock(&self.queue);
        let next = queue.pop_front();
        self.count.store(queue.len() as u32, Ordering::Release);
        next
    }
}

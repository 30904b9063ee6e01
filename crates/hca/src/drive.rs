//! How work gets done: the polling thread, the blocked caller or the engine takes what has arrived, sends what is due
//! and lets deadlines pass.

pub(crate) mod blocked_call;
pub(crate) mod connection_wait;
pub(crate) mod engine_thread;
mod links;
mod packets;
mod rings;

use crate::ground::script_moments::SCRIPT_TIMER;
use crate::gsi::Datagram;
use crate::links::udp::Found;
use crate::nic::Nic;
use crate::nic::reserved::EarlyPackets;
use crate::objects::completion_queue::{CompletionQueue, Poller};
use crate::objects::landing::{Land, Landing};
use crate::progress::ready::ReadyQueue;
use crate::queue_pair::Qp;
use crate::tuning::{
    EXIT_LOOKS, FULL_DATAGRAM_PACKETS, FULL_POLL_EVERY, LOOKS_TOGETHER, PACKETS_PER_DRIVE, SOCKET_LOOK_POLLS,
    TIMER_GRACE, TIMERS_PER_TURN, nanos,
};
use ::host::arrival::Origin;
use ::host::thread::Shield;
use link::Dropped;
use link::udp::Arrival;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;
use trace::DropReason;
use transport::{Completion, Time};
use wire::Qpn;

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
    fn flush_delayed_ack(&self) {
        let due = || {
            self.ground
                .progress
                .delayed_ack_owner
                .get()
                .filter(|_| self.ground.progress.delayed_ack_owner.is_due(self.now()))
        };
        if let Some(owner) = self.ground.progress.piggyback_owners.of_this_thread().or_else(due)
            && let Some(qp) = self.objects.qps.get(owner)
        {
            qp.flush_delayed_ack(&self.ground, true);
        }
    }

    /// Sends it in any case. The engine does so, as it cannot know whether the program is about to answer; so does a
    /// thread that goes to sleep.
    pub(crate) fn flush_waiting_acks(&self) {
        let progress = &self.ground.progress;
        let owners = progress.piggyback_owners.strike().chain(progress.delayed_ack_owner.get_last());
        for qp in owners.filter_map(|owner| self.objects.qps.get(owner)) {
            qp.flush_delayed_ack(&self.ground, false);
        }
    }

    /// Sends the acknowledgements that wait for threads which have stopped to poll: others go on, so that the engine
    /// leaves the rest to them.
    pub(crate) fn flush_acks_of_stopped(&self, stopped: impl Iterator<Item = usize>) {
        let owners = &self.ground.progress.piggyback_owners;
        for qp in stopped.filter_map(|stripe| self.objects.qps.get(owners.of_stripe(stripe)?)) {
            qp.flush_delayed_ack(&self.ground, false);
        }
    }

    /// Does what there is to do, without waiting. Returns whether there was anything.
    pub fn progress(&self) -> bool {
        if self.ground.progress.piggyback_owners.any() || self.ground.progress.delayed_ack_owner.get().is_some() {
            self.flush_waiting_acks();
        }
        self.receive_shared(None, None) | self.advance(None)
    }

    /// Does what there is to do besides what comes through shared memory; with a poller for a polling thread, which
    /// will call again at once if there was nothing.
    fn advance(&self, mut poller: Option<&mut Poller<'_>>) -> bool {
        let polling = poller.is_some();
        let mut any = false;
        if self.ground.links.packets.any() {
            any |= self.receive_packets(poller.as_deref_mut());
        }
        if self.ground.links.unread_watch.any() {
            self.ground.links.unread_watch.check(self.now());
        }
        if self.ground.links.exchange.has_stalled() {
            any |= self.resume_stalled(!polling);
        }
        // Where trains come through shared memory, sockets and clocks are looked at now and then only: a system call
        // costs more than a message.
        if polling
            && self.ground.links.exchange.has_inbound()
            && !self.sees_to_everything()
            && !self.ground.progress.engine.policy.sockets.is_hot()
        {
            any |= !self.ground.links.registry.seem_empty() && self.receive_links();
            any |=
                !self.ground.progress.ready.is_empty() && self.advance_ready(&self.ground.progress.ready, self.now());
            return any;
        }
        let now = self.now();
        let looks = !polling
            || self.ground.progress.engine.policy.sockets.should_look(now, self.ground.links.exchange.has_inbound());
        if polling && looks {
            self.ground.progress.engine.looked();
        }
        let received = looks && self.receive(poller, now);
        if self.ground.links.exchange.is_called() {
            let _shield = Shield::up();
            self.serve_exchange();
            any = true;
        }
        if self.ground.host.process_watch.has_news() {
            let _shield = Shield::up();
            self.cm.end_connections_of_dead(self);
            any = true;
        }
        any |= received;
        any |= !(polling && self.ground.links.registry.seem_empty()) && self.receive_links();
        any |= self.advance_ready(&self.ground.progress.ready, now);
        // What a timer waits for may be among what has not been taken yet: first everything is. But not for ever.
        let latest = now.as_nanos().saturating_sub(if received { nanos(TIMER_GRACE) } else { 0 });
        any |= self.fire_timers(Time::from_nanos(latest), now);
        any
    }

    /// Takes what has arrived by the sockets, for a thread that sleeps on them alone.
    pub(crate) fn serve_sockets(&self) {
        self.advance(None);
    }

    /// Whether this is one of the polls that leave nothing out.
    #[inline]
    fn sees_to_everything(&self) -> bool {
        self.ground.progress.engine.polls_here().is_multiple_of(FULL_POLL_EVERY)
    }

    /// What a polling thread would find, as far as that can be told by a few loads. Now and then, and where it cannot,
    /// everything is looked at.
    #[inline]
    fn glance(&self, alone: Option<&latch::Alone>) -> Glance {
        let Some(alone) = alone.filter(|alone| alone.is_used()) else { return Glance::Perhaps };
        let plain = self.ground.progress.piggyback_owners.of_this_thread().is_none()
            && self.ground.progress.delayed_ack_owner.get().is_none()
            && !self.ground.links.unread_watch.any()
            && !self.ground.links.exchange.has_stalled()
            && !self.ground.links.packets.any()
            && self.ground.links.exchange.has_inbound()
            && !self.sees_to_everything()
            && !self.ground.progress.engine.policy.sockets.is_hot()
            && self.ground.links.registry.seem_empty()
            && self.ground.progress.ready.is_empty();
        match plain.then(|| self.ground.links.exchange.glance(alone)).flatten() {
            Some(false) => Glance::Nothing,
            Some(true) => Glance::Rings,
            None => Glance::Perhaps,
        }
    }

    /// The program has taken what another thread had put into a completion queue: its poll found something.
    #[inline]
    pub fn has_taken(&self) {
        self.ground.progress.engine.policy.yields.found_something();
    }

    /// A poll found nothing, and took as long as so many short ones. The thread yields if it is time to.
    #[inline]
    fn found_nothing(&self, cost: u32) {
        if self.ground.progress.engine.policy.yields.found_nothing(cost) {
            self.yield_processor();
        }
    }

    #[cold]
    fn yield_processor(&self) {
        let before = self.now();
        std::thread::yield_now();
        self.ground.progress.engine.policy.yields.yielded(self.now().since(before));
    }

    /// Takes up to `room` completions. An empty queue drives: what has arrived is looked at before the answer is
    /// "nothing". `take` is given each with its moment. It may be called while queue pairs are locked: it takes, and
    /// calls nothing of the NIC.
    #[inline]
    pub fn poll(&self, cq: &CompletionQueue, room: usize, take: impl FnMut(&Completion, u64)) -> usize {
        self.poll_for(cq, room, None, take)
    }

    /// Polls like [`poll`](Nic::poll); what a peer writes through shared memory meanwhile may land elsewhere.
    pub fn poll_into(
        &self,
        cq: &CompletionQueue,
        room: usize,
        landing: &mut Landing<'_>,
        take: impl FnMut(&Completion, u64),
    ) -> usize {
        self.poll_for(cq, room, Some(landing), take)
    }

    #[inline]
    fn poll_for(
        &self,
        cq: &CompletionQueue,
        room: usize,
        landing: Option<&mut dyn Land>,
        mut take: impl FnMut(&Completion, u64),
    ) -> usize {
        if self.ground.records.trace.is_on() {
            return self.poll_and_tell(cq, room, landing, &mut take);
        }
        self.poll_untold(cq, room, landing, take)
    }

    /// Polls like [`poll_into`](Nic::poll_into), and reports it to the trace.
    #[cold]
    fn poll_and_tell(
        &self,
        cq: &CompletionQueue,
        room: usize,
        landing: Option<&mut dyn Land>,
        take: &mut dyn FnMut(&Completion, u64),
    ) -> usize {
        let got = self.poll_untold(cq, room, landing, |completion, at| {
            self.ground.records.tell_polled(cq, completion);
            take(completion, at);
        });
        self.ground.records.tell_poll(cq, room, got);
        if got == 0 {
            self.ground.records.trace.catch_up();
        }
        got
    }

    /// Takes up to `room` completions that wait, and drives nothing.
    pub fn take_waiting(&self, cq: &CompletionQueue, room: usize, mut take: impl FnMut(&Completion, u64)) -> usize {
        let tells = self.ground.records.trace.is_on();
        let got = cq.poll(room, |completion, at| {
            if tells {
                self.ground.records.tell_polled(cq, completion);
            }
            take(completion, at);
        });
        if got > 0 {
            self.has_taken();
        }
        if tells {
            self.ground.records.tell_poll(cq, room, got);
        }
        got
    }

    #[inline]
    fn poll_untold(
        &self,
        cq: &CompletionQueue,
        room: usize,
        landing: Option<&mut dyn Land>,
        mut take: impl FnMut(&Completion, u64),
    ) -> usize {
        cq.polls();
        let alone = self.ground.alone();
        let taken = cq.poll(room, &mut take);
        if taken > 0 {
            self.has_taken();
            return taken;
        }
        let glance = self.glance(alone.as_ref());
        if glance == Glance::Nothing {
            drop(alone);
            self.ground.progress.engine.polled();
            self.found_nothing(1);
            return 0;
        }
        if glance != Glance::Rings {
            self.flush_delayed_ack();
        }
        #[expect(clippy::needless_match, reason = "borrowed anew, for as long as the poller lives")]
        let landing: Option<&mut dyn Land> = match landing {
            Some(landing) => Some(landing),
            None => None,
        };
        let mut poller = Poller { cq, room, show: &mut take, landing };
        let received = self.receive_shared(alone.as_ref(), Some(&mut poller));
        drop(alone);
        if glance == Glance::Rings && poller.room < room {
            self.ground.progress.engine.polled();
            self.ground.progress.engine.policy.yields.found_something();
            return room - poller.room;
        }
        let looks = self.ground.progress.engine.looks();
        let any = received | self.advance(Some(&mut poller));
        let left = poller.room;
        // Not before: both look at how often that was, and should see the same.
        self.ground.progress.engine.polled();
        match any {
            true => self.ground.progress.engine.policy.yields.found_something(),
            false => {
                self.found_nothing(if self.ground.progress.engine.looks() != looks { SOCKET_LOOK_POLLS } else { 1 })
            }
        }
        room - left + cq.poll(left, take)
    }

    /// What there is to do besides the sockets; `asleep` for a thread that goes to sleep afterwards. Deadlines are the
    /// engine's.
    pub(crate) fn look_again(&self, asleep: bool) -> bool {
        let mut any = self.receive_shared(None, None);
        if self.ground.links.exchange.has_stalled() {
            any |= self.resume_stalled(asleep);
        }
        let now = self.now();
        any | self.receive_links() | self.advance_ready(&self.ground.progress.ready, now)
    }

    /// How long one may sleep though nothing arrives.
    pub(crate) fn patience(&self) -> Option<u64> {
        let timers = self.ground.progress.timers.next().map(|deadline| deadline.since(self.now()));
        let held = [
            self.ground.links.udp.next_deadline(),
            self.ground.links.registry.deadline(),
            self.ground.links.packets.deadline(),
        ]
        .into_iter()
        .flatten()
        .min();
        let held = held.map(|moment| moment.saturating_duration_since(Instant::now()).as_nanos() as u64);
        timers.into_iter().chain(held).min()
    }

    /// Does what follows from a call of the program's: trains inside the process, and queue pairs that got room to
    /// send.
    pub(crate) fn after_call(&self, now: Time) {
        // What this thread has sent to the process itself it sees.
        if self.ground.links.registry.seem_empty() && self.ground.progress.ready.is_empty() {
            return;
        }
        while self.receive_links() || self.advance_ready(&self.ground.progress.ready, now) {}
    }

    /// Does what follows from posted work, which mostly is nothing.
    #[inline]
    pub(crate) fn after_posting(&self) {
        if !self.ground.links.registry.seem_empty() || !self.ground.progress.ready.is_empty() {
            self.after_call(self.now());
        }
    }

    /// Does what others still need of this process, because it ends: acknowledges messages that the engine has placed
    /// and not acknowledged yet, for the program has seen them and wants no more; and passes on what the kernel gave us
    /// for other processes, or it would end with us.
    pub(crate) fn flush_before_exit(&self) {
        self.cm.leave(self);
        self.objects.qps.for_each(|qp| qp.flush_before_exit(&self.ground));
        self.count_as_ended();
        self.ground.links.udp.leave_soon();
        // Bounded: packets may come as fast as they are taken.
        for _ in 0..EXIT_LOOKS {
            // The thread that ends the process has stopped waiting for this.
            if self.ground.progress.engine.wants_summary() {
                return;
            }
            if !self.progress() && !self.ground.links.udp.is_tended() {
                return;
            }
        }
    }

    /// Takes what has arrived over UDP.
    fn receive(&self, poller: Option<&mut Poller<'_>>, now: Time) -> bool {
        let polling = poller.is_some();
        let alone = if polling { self.ground.alone() } else { None };
        let mut any_messages = false;
        let mut datagrams: Vec<Datagram> = Vec::new();
        let mut early = EarlyPackets::default();
        // Packets come in runs: mostly this one is for the same as the last. Queue pairs that something came for are
        // driven at the end.
        let mut last: Option<Arc<Qp>> = None;
        let mut before: Vec<Arc<Qp>> = Vec::new();
        let packets = Cell::new(0);
        let mut take = |run: &[Arrival<'_>]| {
            packets.set(packets.get() + run.len() as u32);
            if let Some(capture) = &self.ground.records.capture {
                for arrival in run {
                    let device = self.ground.device_of(arrival);
                    capture.lock().received(&device, &arrival.ip, arrival.port, arrival.bytes);
                }
            }
            let Some(first) = run.first() else { return };
            if !polling {
                self.ground.progress.note_moved(run.iter().map(|arrival| arrival.payload.len()).sum());
            }
            let qpn = first.headers.bth.dest_qpn;
            if last.as_ref().is_none_or(|last| last.qpn() != qpn) {
                before.extend(std::mem::replace(&mut last, self.objects.qps.get(qpn)));
            }
            match &last {
                Some(qp) => {
                    if qp.take_arrivals(&self.ground, now, run) >= PACKETS_PER_DRIVE {
                        // The peer's window is open for as much as it may be short of: it should hear while we still
                        // have something to do.
                        qp.advance(&self.ground, now);
                    }
                }
                None => {
                    for arrival in run {
                        let drop = |reason| self.ground.dropped(now, None, Some(&arrival.headers), reason);
                        if qpn == Qpn::GSI {
                            let came = ::cm::Route { source: arrival.source(), destination: arrival.destination() };
                            match self.cm.message_in(&arrival.headers, arrival.payload) {
                                // Of this host's own, only those whose speaker the kernel has named.
                                Ok(_)
                                    if self.ground.host.is_own_address(came.source)
                                        != (arrival.origin == Origin::Local) =>
                                {
                                    drop(DropReason::Untrusted);
                                }
                                Ok(message) => {
                                    if let Some(device) = self.ground.host.device_with(came.destination) {
                                        if device.port().is_cut {
                                            drop(DropReason::PortDown);
                                            continue;
                                        }
                                        let (opcode, length) = (arrival.headers.bth.opcode, arrival.payload.len());
                                        device.count_mad(came.source, opcode, length, false);
                                    }
                                    match message {
                                        Some(message) => {
                                            any_messages = true;
                                            self.cm.has_arrived(came, message);
                                        }
                                        None => datagrams.push(Datagram::of(arrival)),
                                    }
                                }
                                Err(reason) => drop(reason),
                            }
                        } else if qpn == Qpn::MULTICAST {
                            let members = self.members(now, arrival, |qp| {
                                qp.take_arrivals(&self.ground, now, std::slice::from_ref(arrival));
                                before.push(Arc::clone(qp));
                            });
                            if members == 0 {
                                drop(DropReason::NotMember);
                            }
                        } else if !early.keep(self, arrival) {
                            drop(DropReason::UnknownQp);
                        }
                    }
                }
            }
        };
        let sockets = &self.ground.progress.engine.policy.sockets;
        let hot_only = polling && sockets.is_one_enough(now);
        let Found { mut any, elsewhere, mut questions, mut drops, overflow } =
            self.ground.links.udp.receive(hot_only, &mut take);
        if !hot_only {
            sockets.looked_at_all(now, elsewhere);
        }
        // One acknowledgement is enough for several datagrams full of packets.
        let mut looks = 1;
        while looks < LOOKS_TOGETHER && packets.replace(0) >= FULL_DATAGRAM_PACKETS {
            let mut found = self.ground.links.udp.receive(true, &mut take);
            any |= found.any;
            questions.append(&mut found.questions);
            drops.append(&mut found.drops);
            looks += 1;
        }
        if last.is_some() || !before.is_empty() {
            sockets.received(now);
        }
        for Dropped { headers, reason } in drops {
            self.ground.dropped(now, None, headers.as_ref(), reason);
        }
        if overflow > 0 {
            self.ground.records.drops.count(DropReason::Overflow, overflow - 1);
            self.ground.dropped(now, None, None, DropReason::Overflow);
        }
        for qp in before {
            qp.advance(&self.ground, now);
        }
        if let Some(qp) = last {
            qp.advance_for(&self.ground, now, poller);
        }
        // The connection manager has a lock of another kind, under which it sends.
        drop(alone);
        let any_management = any_messages || !questions.is_empty() || !datagrams.is_empty();
        let _shield = (any_management || !early.is_empty()).then(Shield::up);
        if any_messages {
            self.cm.receive(self);
            self.cm.tell_farewells(self);
        }
        early.hand_out(self, now);
        self.gsi.receive(&self.ground, &datagrams);
        for (peer, here) in questions {
            self.cm.question(self, here, peer);
        }
        any
    }

    /// Drives the queue pairs that wait there.
    pub(crate) fn advance_ready(&self, waiting: &ReadyQueue, now: Time) -> bool {
        let mut any = false;
        while let Some(qpn) = waiting.next() {
            any = true;
            if let Some(qp) = self.objects.qps.get(qpn) {
                qp.advance(&self.ground, now);
                qp.tell_of_stop();
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
        // Bounded: a thread that polls is to come back, and the engine has more to see to.
        for _ in 0..TIMERS_PER_TURN {
            let Some((entry, qpn)) = self.ground.progress.timers.due(latest) else { break };
            any = true;
            if qpn == Qpn::GSI {
                let _shield = Shield::up();
                self.cm.wake(self, entry);
                self.gsi.wake(&self.ground, entry);
                self.fail_gone_peers(now);
            }
            if qpn == SCRIPT_TIMER {
                self.wake_scripts(now, entry);
            }
            if let Some(qp) = self.objects.qps.get(qpn) {
                qp.time_has_come(&self.ground, now, entry);
            }
        }
        any
    }
}

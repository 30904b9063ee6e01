//! What failure scripts do to a queue pair: its completions as they are told, and the queue pair itself.

use super::{Inner, Qp};
use crate::ground::Ground;
use crate::objects::completion_queue::{CompletionQueue, Poller};
use crate::progress::timers::Alarm;
use crate::queue_pair::port::NicPort;
use failures::{Action, DeviceView, Moment, PairView, QueueView, Scene};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use trace::Failure;
use transport::{Cause, Completion, Inbound, Queue, Status, Time};
use wire::Srqn;

/// Completions that scripts hold back, oldest first, each until its time.
#[derive(Debug, Default)]
pub(super) struct LateCompletions(VecDeque<(Time, Completion)>);

impl LateCompletions {
    /// None is any more: the queue pair is reset, or goes.
    pub fn clear(&mut self, nic: &Ground) {
        self.0.drain(..).for_each(|_| nic.scripts.let_go_of_completion());
    }
}

/// What becomes of a completion.
enum Fate {
    Told,
    Lost,
    LateBy(u64),
}

impl Qp {
    /// Tells the program what has completed, while a script looks at completions.
    #[cold]
    pub(super) fn complete_watched(
        &self,
        nic: &Ground,
        pair: &mut transport::QueuePair,
        port: &mut NicPort<'_>,
        (alarm, late): (&mut Alarm, &mut LateCompletions),
        now: Time,
        mut poller: Option<&mut Poller<'_>>,
    ) {
        let mut has_struck = false;
        while let Some(mut completion) = pair.take_untold_completion() {
            if has_struck && completion.queue == Queue::Send && completion.status == Status::Success {
                // It came after one that failed.
                completion.status = Status::WorkRequestFlushed;
                completion.cause = Some(Cause::Failed(Failure::Flushed));
            }
            let fate = self.strike_completion(nic, pair, &mut completion, port, now, &mut has_struck);
            pair.tell_completion(now, &completion, port);
            match fate {
                Fate::Lost if completion.kind.ends_tagged_buffer() => self.tagged_finished(1),
                Fate::Lost => {}
                Fate::Told if late.0.is_empty() => {
                    self.deliver(nic, alarm, &completion, now, poller.as_deref_mut());
                }
                fate => {
                    let by = if let Fate::LateBy(by) = fate { by } else { 0 };
                    let due = late.0.back().map_or(now, |(due, _)| *due).max(now.plus_nanos(by));
                    late.0.push_back((due, completion));
                    nic.scripts.hold_completion();
                    nic.wake_scripts_at(due);
                }
            }
        }
    }

    /// Handles a packet or train that has come. While a script counts messages, a WRITE, READ or atomic operation that is
    /// executed with it is one, though the program hears nothing of it. Of a WRITE in several trains the bytes of the last
    /// count.
    #[inline]
    pub(super) fn handle_counted<'a>(
        &self,
        pair: &mut transport::QueuePair,
        inbound: &Inbound<'_>,
        port: &mut NicPort<'a>,
        handle: impl FnOnce(&mut transport::QueuePair, &mut NicPort<'a>),
    ) {
        let nic = port.nic;
        let counts = nic.records.trace.is_on() && nic.scripts.wants_messages();
        let before = counts.then(|| pair.msn());
        handle(pair, port);
        if before.is_some_and(|before| pair.msn() != before) {
            self.note_executed(nic, pair, inbound);
        }
    }

    #[cold]
    fn note_executed(&self, nic: &Ground, pair: &transport::QueuePair, inbound: &Inbound<'_>) {
        let opcode = inbound.headers.bth.opcode;
        if opcode.operation() == wire::Operation::Send || opcode.has_immediate() {
            // It counts when the receive completes.
            return;
        }
        let asked = inbound.headers.reth.map_or(0, |reth| u64::from(reth.len));
        let bytes = asked.max(inbound.payload.len() as u64);
        let peer = self.kind.is_connected().then(|| pair.attributes().av.dgid.to_ip());
        nic.strikes_on(&Moment::Message { scene: self.scene(nic, peer, true), bytes });
    }

    fn strike_completion(
        &self,
        nic: &Ground,
        pair: &mut transport::QueuePair,
        completion: &mut Completion,
        port: &mut NicPort<'_>,
        now: Time,
        has_struck: &mut bool,
    ) -> Fate {
        let is_receive = completion.queue != Queue::Send;
        let peer = self.kind.is_connected().then(|| pair.attributes().av.dgid.to_ip());
        let scene = self.scene(nic, peer, is_receive);
        let bytes = completion.bytes.into();
        if is_receive && completion.status == Status::Success && nic.scripts.wants_messages() {
            nic.strikes_on(&Moment::Message { scene, bytes });
        }
        // What fails already, or is flushed, is no work that succeeds and could fail.
        if completion.status != Status::Success || !nic.scripts.wants_completions() {
            return Fate::Told;
        }
        let mut fate = Fate::Told;
        for struck in nic.strikes_on(&Moment::Completion { scene, bytes, is_receive }) {
            match struck.action() {
                Action::Complete { status, vendor } => {
                    if let (Some(status), false) = (u8::try_from(status).ok().and_then(Status::of_code), *has_struck) {
                        let cause = Failure::Injected { line: struck.strike.line() as u32, vendor };
                        pair.fail_completed(now, completion, status, cause, port);
                        *has_struck = true;
                    }
                }
                Action::LoseCompletion => fate = Fate::Lost,
                Action::DelayCompletion { by } if !matches!(fate, Fate::Lost) => fate = Fate::LateBy(by),
                _ => {}
            }
        }
        fate
    }

    /// The address of its peer, if it has one.
    pub(crate) fn peer_address(&self) -> Option<IpAddr> {
        self.kind.is_connected().then(|| self.attributes().av.dgid.to_ip())
    }

    /// Itself, as scripts see it, with the completion queue of its receives or of its sends.
    pub(crate) fn scene(&self, nic: &Ground, peer: Option<IpAddr>, is_receive: bool) -> Scene<'_> {
        let device = self.port_device();
        let queue = if is_receive { self.receive_cq.as_ref() } else { self.send_cq.as_ref() };
        Scene {
            device: Some(DeviceView { name: device.name(), index: nic.host.device_index(device.number()) }),
            port: Some(device.port_number()),
            pair: Some(PairView {
                number: self.qpn.value(),
                kind: self.kind.name(),
                peer,
                order: nic.scripts.pair_order(self.qpn),
            }),
            // Completion queues are numbered as they are made.
            queue: queue.map(|cq| QueueView { number: cq.id, order: cq.id }),
            connection: None,
        }
    }

    /// It breaks: it goes to ERR, with an event, and its work is flushed. Returns whether it worked before.
    pub(crate) fn break_down(&self, nic: &Ground) -> bool {
        self.strike(nic, |pair, now, port| pair.break_down(now, port))
    }

    /// Its send queue breaks. Returns whether it could: not that of a reliable queue pair.
    pub(crate) fn break_send_queue(&self, nic: &Ground) -> bool {
        self.strike(nic, |pair, now, port| pair.break_send_queue(now, port))
    }

    /// Its program hears of this event.
    pub(crate) fn raise_event(&self, nic: &Ground, event: transport::AsyncEvent) {
        self.strike(nic, |pair, now, port| {
            pair.raise_event(now, event, port);
            true
        });
    }

    fn strike(
        &self,
        nic: &Ground,
        strike: impl FnOnce(&mut transport::QueuePair, Time, &mut NicPort<'_>) -> bool,
    ) -> bool {
        let mut inner = self.inner.lock();
        self.flush_acks(nic, &mut inner);
        let now = nic.now();
        let (pair, mut port) = self.split(nic, &mut inner);
        let has_struck = strike(pair, now, &mut port);
        self.drive(nic, &mut inner, now);
        self.leave(nic, inner);
        has_struck
    }

    /// The completion queues in which its work completes.
    pub(crate) fn completion_queues(&self) -> impl Iterator<Item = &Arc<CompletionQueue>> {
        [&self.send_cq, &self.receive_cq].into_iter().flatten()
    }

    /// The number of the shared receive queue that its receives come from.
    pub(crate) fn shared_queue(&self) -> Option<Srqn> {
        self.inner.lock().pair.shared_queue()
    }

    /// Tells completions whose time has come.
    pub(crate) fn tell_late_completions(&self, nic: &Ground, now: Time) {
        let mut inner = self.inner.lock();
        if inner.late.0.is_empty() {
            return;
        }
        let Inner { alarm, late, .. } = &mut *inner;
        while let Some((_, completion)) = late.0.pop_front_if(|(due, _)| *due <= now) {
            nic.scripts.let_go_of_completion();
            self.deliver(nic, alarm, &completion, now, None);
        }
        self.leave(nic, inner);
    }
}

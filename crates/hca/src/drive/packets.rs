//! Raw packets: how frames that came get to the queue pairs whose flows match them.

use crate::links::packets::Target;
use crate::nic::Nic;
use crate::objects::completion_queue::Poller;
use crate::queue_pair::Qp;
use crate::tuning::FRAME_BATCHES;
use link::packet::FrameIn;
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Instant;
use trace::{Direction, DropReason};
use transport::{FrameNotes, State, Time};
use wire::flow::{Layers, Origin, Table, Verdict, checksums};

impl Nic {
    /// Takes what has come to the interfaces of raw queue pairs.
    #[cold]
    pub(crate) fn receive_packets(&self, mut poller: Option<&mut Poller<'_>>) -> bool {
        let mut any = false;
        let batches = if poller.is_some() { 1 } else { FRAME_BATCHES };
        for port in self.ground.links.packets.ports() {
            for _ in 0..batches {
                let now = self.now();
                let mut touched: Vec<Arc<Qp>> = Vec::new();
                let received = port.receive(
                    |flows, frame| self.route_frame(now, flows, frame, &mut touched),
                    |reason| self.ground.dropped(now, None, None, reason),
                );
                for qp in touched {
                    qp.advance_for(&self.ground, now, poller.as_deref_mut());
                }
                let Some(received) = received else { break };
                any |= received.any;
                if received.overflowed > 0 {
                    self.ground.records.drops.count(DropReason::Overflow, received.overflowed - 1);
                    self.ground.dropped(now, None, None, DropReason::Overflow);
                }
                if !received.full {
                    break;
                }
            }
        }
        if let Some(deadline) = self.packets_deadline() {
            self.ground.progress.engine.deadline_moved(deadline);
        }
        any
    }

    /// When a frame that a fault holds back is due.
    pub(crate) fn packets_deadline(&self) -> Option<Time> {
        let deadline = self.ground.links.packets.deadline()?;
        Some(self.now() + deadline.saturating_duration_since(Instant::now()))
    }

    /// Gives a frame to those whose flows match it. One that none matches is none of this process's business: the
    /// kernel shows every process all frames.
    fn route_frame(&self, now: Time, flows: &Table<Target>, frame: &FrameIn<'_>, touched: &mut Vec<Arc<Qp>>) {
        let Some(layers) = Layers::parse(frame.bytes) else {
            return self.ground.dropped(now, None, None, DropReason::Malformed);
        };
        let right = OnceCell::new();
        let right = || *right.get_or_init(|| checksums(frame.bytes, &layers, frame.checksums_known).are_right());
        let looped_to_group = frame.origin != Origin::Wire && layers.is_multicast();
        let mut first = true;
        let verdict = flows.route(&layers, frame.origin, |rule, copy| {
            if let Some(counters) = &rule.target.counters {
                counters.count(frame.bytes.len());
            }
            let qpn = rule.target.qpn;
            if !copy {
                return;
            }
            let Some(qp) = self.objects.qps.get(qpn) else {
                return self.ground.dropped(now, Some(qpn), None, DropReason::UnknownQp);
            };
            if looped_to_group && qp.ignores_own() {
                return self.ground.dropped(now, Some(qpn), None, DropReason::OwnMulticast);
            }
            if let Some(capture) = self.ground.records.capture.as_ref().filter(|_| std::mem::take(&mut first)) {
                capture.lock().raw(qp.port_device().port_name(), frame.bytes, Direction::Inbound);
            }
            let taker = match qp.work_queue(&layers) {
                Some(_) if qp.state() == State::Error => {
                    return self.ground.dropped(now, Some(qpn), None, DropReason::WrongState);
                }
                Some(queue) => Arc::clone(queue),
                None => qp,
            };
            let notes = FrameNotes { flow_tag: rule.tag, vlan: 0, checksums_are_right: right() };
            taker.take_frame(&self.ground, now, frame.bytes, notes);
            if !touched.iter().any(|other| Arc::ptr_eq(other, &taker)) {
                touched.push(taker);
            }
        });
        if verdict == Verdict::Dropped {
            self.ground.dropped(now, None, None, DropReason::FlowDrops);
        }
    }
}

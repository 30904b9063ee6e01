//! How a queue pair stands: what it tells those who ask what there is, and since when its oldest work has not moved. The
//! data path keeps nothing for that. A deadline that passes unanswered notes which work was the oldest then, and so does
//! every question.

use crate::ground::Ground;
use crate::objects::completion_queue::CompletionQueue;
use crate::progress::lock_tries::LockTries;
use crate::queue_pair::{Inner, Qp};
use std::sync::Arc;
use transport::{Time, Waiting};

/// The work that was the oldest when it was last looked at.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    /// Its number, and the oldest sequence number that was not acknowledged.
    seen: Option<(u64, wire::Psn)>,
    since: Time,
}

impl Standstill {
    /// Notes what waits now; returns since when it does.
    fn observe(&mut self, waiting: Option<&Waiting>, now: Time) -> Time {
        let seen = waiting.map(|waiting| (waiting.oldest, waiting.psn));
        if self.seen != seen {
            (self.seen, self.since) = (seen, now);
        }
        let left = waiting.and_then(|waiting| waiting.since).unwrap_or(self.since);
        self.since = self.since.min(left);
        self.since
    }
}

impl Inner {
    /// A deadline has passed: notes which work is the oldest.
    pub(super) fn observe_standstill(&mut self, now: Time) {
        let waiting = self.pair.waiting();
        self.standstill.observe(waiting.as_ref(), now);
    }
}

impl Qp {
    /// Itself, for those who ask what there is. Where other threads hold the lock all the time, only what needs none.
    pub(crate) fn report(&self, nic: &Ground, tries: &mut LockTries) -> inventory::QueuePair {
        let queue = |cq: &Option<Arc<CompletionQueue>>| cq.as_ref().map_or(0, |cq| cq.id);
        let mut report = inventory::QueuePair {
            number: self.qpn.value(),
            interface: self.context.device().number(),
            port: self.port_device().port_number(),
            kind: self.kind.code(),
            send_queue: queue(&self.send_cq),
            receive_queue: queue(&self.receive_cq),
            busy: 1,
            ..inventory::QueuePair::default()
        };
        let Some(mut inner) = tries.lock(&self.inner) else { return report };
        // Numbers first: nothing is written down, and no memory asked for, while a thread may wait for the lock.
        let now = nic.now();
        let attributes = inner.pair.attributes();
        let [first_send_psn, first_receive_psn] = inner.pair.first_psns().map(wire::Psn::value);
        let (counters, domain, shared_queue) = (
            inner.pair.counters(),
            inner.pair.domain().0,
            inner.pair.shared_queue().map_or(0, |number| number.value()),
        );
        let (waiting, sends) = (inner.pair.waiting(), inner.pair.unfinished_sends());
        let receives = inner.pair.outstanding()[1];
        let since = inner.standstill.observe(waiting.as_ref(), now);
        let stop = inner.pair.stop();
        let rate = inner.pair.congested_rate(now);
        let link = inner.path.link.name();
        let window = inner.windows.peer.clone();
        drop(inner);
        report.state = attributes.state as u8;
        report.peer = attributes.dest_qpn.value();
        (report.send_psn, report.receive_psn) = (attributes.sq_psn.value(), attributes.rq_psn.value());
        (report.first_send_psn, report.first_receive_psn) = (first_send_psn, first_receive_psn);
        report.path_mtu = attributes.path_mtu.bytes();
        report.qkey = attributes.qkey.value();
        report.access = attributes.access.bits();
        report.max_rd_atomic = attributes.max_rd_atomic;
        report.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
        report.destination = attributes.av.dgid.octets();
        (report.domain, report.shared_queue) = (domain, shared_queue);
        link.clone_into(&mut report.link);
        report.counters = counters;
        report.busy = 0;
        (report.sends, report.max_sends) = (sends, attributes.capabilities.max_send_wr);
        (report.receives, report.max_receives) = (receives, attributes.capabilities.max_recv_wr);
        report.waiting = waiting.map(|waiting| inventory::Waiting {
            reason: waiting.reason as u8,
            nanos: now.since(since),
            psn: waiting.psn.value(),
            tries: waiting.tries,
            tries_allowed: waiting.tries_allowed,
            wr_id: waiting.wr_id,
            operation: waiting.operation.to_owned(),
        });
        let congestion = window.try_congestion();
        if congestion.is_some() || rate.is_some() {
            let of_window = congestion.map_or(inventory::Congestion::default(), |congestion| inventory::Congestion {
                window: congestion.window,
                in_flight: congestion.in_flight,
                round_trip_nanos: congestion.round_trip_nanos,
                rate: None,
            });
            report.congestion = Some(inventory::Congestion { rate, ..of_window });
        }
        report.stop = stop.map(|stop| stop.to_string()).unwrap_or_default();
        report
    }
}

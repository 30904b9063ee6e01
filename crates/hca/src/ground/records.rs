//! The records of a NIC: when something happened, what it was, what was dropped and what failed.

use crate::objects::completion_queue::CompletionQueue;
use crate::record::capture::Capture;
use crate::record::clock::Clock;
use crate::record::drops::Drops;
use crate::record::failures::Failures;
use crate::record::tracing::Tracing;
use latch::plain::Mutex;
use trace::{DropReason, Event, Kind};
use transport::Time;
use wire::{Headers, Qpn};

/// See the module.
#[derive(Debug)]
pub(crate) struct Records {
    pub clock: Clock,
    pub trace: Tracing,
    pub drops: Drops,
    pub failures: Failures,
    pub capture: Option<Mutex<Capture>>,
}

impl Records {
    /// The NIC's clock.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.clock.nanos())
    }

    /// A packet or train of, or for, this queue pair goes no further; none where no queue pair of ours has to do with
    /// it.
    #[cold]
    pub fn dropped(&self, now: Time, qpn: Option<Qpn>, headers: Option<&Headers>, reason: DropReason) {
        self.drops.count(reason, 1);
        if self.trace.is_on() {
            let kind = Kind::PacketDropped { headers: headers.copied(), reason };
            self.trace.record(&Event { at: now.as_nanos(), qpn, kind });
        }
    }

    /// The engine's thread has woken. Logs do not have it: it happens too often.
    pub fn engine_woke(&self, reason: &'static str) {
        self.trace.record_only(|| Event { at: self.clock.nanos(), qpn: None, kind: Kind::EngineWoke { reason } });
    }

    /// A completion of this queue pair was lost.
    #[cold]
    pub fn cq_overflowed(&self, now: Time, qpn: Qpn, cq: &CompletionQueue) {
        if self.trace.is_on() {
            let kind = Kind::CqOverflowed { cq: cq.id, capacity: cq.capacity() };
            self.trace.record(&Event { at: now.as_nanos(), qpn: Some(qpn), kind });
        }
    }
}

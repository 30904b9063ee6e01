//! What this process has counted on a port: queue pairs count for themselves, and here they are added up. Not the
//! host's figures: those are the sum over all processes.

use crate::nic::Nic;
use crate::objects::device::Device;
use crate::queue_pair::Qp;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trace::DropReason;
use transport::Counters;
use transport::packet_counters::Incidents;

impl Nic {
    /// What this process has counted on each port, since it opened its NIC. What belongs to no queue
    /// pair, a packet for one that does not exist or a wake of the engine, say, counts for the device that the process
    /// opened first.
    pub fn counters(&self) -> Vec<(Arc<Device>, Counters)> {
        self.sum(|qp| Some(qp.counters()))
    }

    /// What this process has counted; nothing once it was added to what the host remembers of processes that ended.
    pub(crate) fn living_counters(&self) -> Vec<(Arc<Device>, Counters)> {
        if self.counted_as_ended.load(Ordering::Acquire) { Vec::new() } else { self.counters() }
    }

    /// As [`living_counters`](Nic::living_counters), where its queue pairs have counted this on each port.
    pub(crate) fn living_counters_of(&self, of_port: HashMap<u32, Counters>) -> Vec<(Arc<Device>, Counters)> {
        if self.counted_as_ended.load(Ordering::Acquire) { Vec::new() } else { self.with_the_rest(of_port) }
    }

    /// What this process has counted without what a thread is in the middle of, which may be the one that ends the
    /// process.
    pub(crate) fn counters_before_exit(&self) -> Vec<(Arc<Device>, Counters)> {
        self.sum(Qp::try_counters)
    }

    fn sum(&self, of_qp: impl Fn(&Qp) -> Option<Counters>) -> Vec<(Arc<Device>, Counters)> {
        let mut of_port: HashMap<u32, Counters> = HashMap::new();
        self.each_qp(|qp| {
            let port = of_port.entry(qp.port_device().port_id()).or_default();
            *port += of_qp(qp).unwrap_or_default();
        });
        self.with_the_rest(of_port)
    }

    /// Adds what belongs to no queue pair, or to one that has gone, to what those that live have counted on each port.
    fn with_the_rest(&self, mut of_port: HashMap<u32, Counters>) -> Vec<(Arc<Device>, Counters)> {
        let mut all: Vec<(Arc<Device>, Counters)> = self
            .port_devices()
            .into_iter()
            .map(|device| {
                let mut counters = device.counted();
                counters += of_port.remove(&device.port_id()).unwrap_or_default();
                (device, counters)
            })
            .collect();
        let known = all.iter().fold(Incidents::default(), |mut sum, (_, counters)| {
            sum += counters.incidents;
            sum
        });
        let first = self.objects.first_opened.get().copied();
        let place = all.iter().position(|(device, _)| Some(device.number()) == first).unwrap_or(0);
        if let Some((_, counters)) = all.get_mut(place) {
            counters.incidents += self.of_no_queue_pair(&known);
            counters.engine_wakes += self.ground.progress.engine.wakes.so_far();
        }
        all
    }

    /// What was dropped beside what queue pairs know of.
    fn of_no_queue_pair(&self, known: &Incidents) -> Incidents {
        let mut drops = Incidents::default();
        DropReason::ALL.iter().for_each(|reason| drops.dropped(*reason, self.drops(*reason)));
        Incidents {
            duplicate_requests: drops.duplicate_requests.saturating_sub(known.duplicate_requests),
            out_of_sequence_requests: drops.out_of_sequence_requests.saturating_sub(known.out_of_sequence_requests),
            no_receives: drops.no_receives.saturating_sub(known.no_receives),
            access_refused: drops.access_refused.saturating_sub(known.access_refused),
            receive_errors: drops.receive_errors.saturating_sub(known.receive_errors),
            receive_discards: drops.receive_discards.saturating_sub(known.receive_discards),
            send_errors: drops.send_errors.saturating_sub(known.send_errors),
            ..Incidents::default()
        }
    }
}

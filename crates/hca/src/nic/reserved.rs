//! Numbers of queue pairs that do not exist yet. A peer may be told of one before anything is allocated for it; what it
//! sends there early may be the first that is heard of it.

use crate::error::Error;
use crate::nic::Nic;
use crate::tuning::EARLY_PACKETS;
use link::udp::Arrival;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trace::DropReason;
use transport::Time;
use wire::Qpn;

/// A number that no queue pair has and none will be given, except the one that is [made with
/// it](Nic::create_reserved_qp).
#[derive(Debug)]
pub struct ReservedNumber {
    nic: Arc<Nic>,
    /// Until it is a queue pair's.
    qpn: Option<Qpn>,
}

impl ReservedNumber {
    /// A new one.
    pub fn new(nic: &Arc<Nic>) -> Result<ReservedNumber, Error> {
        let qpn = nic.new_number()?;
        nic.objects.reserved_numbers.fetch_add(1, Ordering::Relaxed);
        Ok(ReservedNumber { nic: Arc::clone(nic), qpn: Some(qpn) })
    }

    /// The number.
    pub fn qpn(&self) -> Qpn {
        self.qpn.unwrap_or_default()
    }

    /// A queue pair has it from now on.
    pub(super) fn use_up(mut self) -> Qpn {
        let qpn = self.qpn.take().unwrap_or_default();
        self.nic.objects.reserved_numbers.fetch_sub(1, Ordering::Relaxed);
        qpn
    }
}

impl Drop for ReservedNumber {
    fn drop(&mut self) {
        if let Some(qpn) = self.qpn.take() {
            self.nic.objects.reserved_numbers.fetch_sub(1, Ordering::Relaxed);
            self.nic.ground.host.numbers.give_back(qpn);
        }
    }
}

/// Packets for reserved numbers, kept while what came with them is looked at: the peer's confirmation may be among it,
/// and then there is a queue pair for them.
#[derive(Debug, Default)]
pub(crate) struct EarlyPackets {
    packets: Vec<(Arrival<'static>, Vec<u8>)>,
}

impl EarlyPackets {
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Keeps a copy. False if there are too many, or nothing is reserved.
    pub fn keep(&mut self, nic: &Nic, arrival: &Arrival<'_>) -> bool {
        let keeps = nic.objects.reserved_numbers.load(Ordering::Relaxed) > 0 && self.packets.len() < EARLY_PACKETS;
        if keeps {
            self.packets.push((Arrival { payload: &[], bytes: &[], ..*arrival }, arrival.payload.to_vec()));
        }
        keeps
    }

    /// The connection manager has seen what else came: gives them to their queue pairs. The first packet of a connection
    /// confirms it as well as a message would.
    pub fn hand_out(self, nic: &Nic, now: Time) {
        for (arrival, payload) in self.packets {
            let bth = &arrival.headers.bth;
            let qp = nic.objects.qps.get(bth.dest_qpn).or_else(|| {
                nic.cm.heard_early(nic, arrival.source(), bth.dest_qpn, bth.psn);
                nic.objects.qps.get(bth.dest_qpn)
            });
            match qp {
                Some(qp) => {
                    qp.take_arrivals(&nic.ground, now, &[Arrival { payload: &payload, ..arrival }]);
                    qp.advance(&nic.ground, now);
                }
                None => nic.ground.dropped(now, None, Some(&arrival.headers), DropReason::UnknownQp),
            }
        }
    }
}

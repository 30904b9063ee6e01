//! Links as the trait has them: how what arrived on one gets to its queue pair.

use crate::links::path::local_grh;
use crate::links::registry::ReceivedLink;
use crate::nic::Nic;
use crate::queue_pair::ArrivalWay;
use link::{Arrived, Link};
use std::time::Instant;
use trace::DropReason;
use transport::{Inbound, Time};
use wire::grh_bytes;

impl Nic {
    /// Takes what has arrived on the links that are received from through the trait.
    pub(crate) fn receive_links(&self) -> bool {
        let mut any = false;
        for ReceivedLink { link, known_as } in self.ground.links.registry.received() {
            // What this process has sent to itself was captured when it was sent.
            let capture = self.ground.records.capture.as_ref().filter(|_| link.descriptor().is_some());
            any |= link.receive(&mut |arrived| {
                if let Some(capture) = capture {
                    self.ground.capture_arrived(capture, arrived);
                }
                self.deliver(&**known_as, arrived);
            });
        }
        if any {
            let drops = self.ground.links.registry.received().iter().flat_map(|received| received.link.take_drops());
            drops.for_each(|dropped| self.ground.dropped(self.now(), None, dropped.headers.as_ref(), dropped.reason));
        }
        if let Some(deadline) = self.links_deadline() {
            self.ground.progress.engine.deadline_moved(deadline);
        }
        any
    }

    /// When one of them wants to be received from though nothing arrives.
    pub(crate) fn links_deadline(&self) -> Option<Time> {
        let deadline = self.ground.links.registry.deadline()?;
        Some(self.now() + deadline.saturating_duration_since(Instant::now()))
    }

    /// Gives what has arrived to its queue pair.
    fn deliver(&self, link: &dyn Link, arrived: &Arrived<'_>) {
        let Arrived { headers, count, payload, source, destination, handling, congestion_marked, .. } = *arrived;
        let now = self.now();
        let Some(qp) = self.qp(headers.bth.dest_qpn) else {
            return self.ground.dropped(now, None, Some(headers), DropReason::UnknownQp);
        };
        let grh = match (qp.kind().is_connected(), &arrived.ip) {
            (true, _) => [0; 40],
            (false, Some(ip)) => grh_bytes(ip),
            (false, None) => local_grh((source, destination), handling, headers.len() + payload.len()),
        };
        let inbound = Inbound { headers, count, payload, from: source, grh: &grh, congestion_marked };
        qp.take(&self.ground, now, arrived.process.map_or(ArrivalWay::General(link), ArrivalWay::Ring), &inbound);
        qp.advance(&self.ground, now);
    }
}

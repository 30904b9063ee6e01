//! What a queue pair does through shared memory: it takes trains out of a ring, and its acknowledgements may wait for
//! others.

use super::{Inner, Qp, gpu};
use crate::ground::Ground;
use crate::ground::progress_state::ProgressState;
use crate::links::path::Link;
use crate::links::path::local_grh;
use crate::objects::completion_queue::Poller;
use crate::objects::landing::Land;
use crate::queue_pair::port::{GpuTrains, NicPort};
use crate::tuning::{BYTES_PER_RUN, TRAINS_PER_RUN};
use link::shared::{Broken, Outbound, Reading};
use std::sync::Arc;
use trace::DropReason;
use transport::{Inbound, Time};

impl Qp {
    /// Goes on, because there is room on the link, or because it has become another.
    pub(crate) fn resume(&self, nic: &Ground, now: Time) {
        let mut inner = self.inner.lock();
        let waited = inner.shared.resumed(now);
        inner.pair.incidents().wait_nanos += waited;
        inner.held.resumed();
        self.drive(nic, &mut inner, now);
        self.leave(nic, inner);
    }

    /// Takes trains from a ring as long as they are for this queue pair, then does what follows from them. Answers how
    /// many, and whether the program should see them before more are taken.
    pub(crate) fn take_run(
        &self,
        nic: &Ground,
        now: Time,
        mut poller: Option<&mut Poller<'_>>,
        reading: &mut Reading<'_>,
    ) -> Result<(u32, bool), Broken> {
        let mut inner = self.inner.lock();
        let takes = match self.kind.is_connected() {
            true => inner.belief.takes_from_ring(reading.writer()),
            false => inner.belief.takes_any(),
        };
        if let Err(reason) = takes {
            let headers = reading.train_and_payload().map(|(train, _)| train.headers);
            nic.dropped(now, Some(self.qpn), headers.as_ref(), reason);
            reading.consume();
            return Ok((1, false));
        }
        if memory::has_gpu_regions() {
            gpu::take_names(&nic.records, reading);
        }
        let answers = poller.is_some() && inner.piggyback.habit.is_expected();
        let Inner { pair, windows, weak, .. } = &mut *inner;
        let landing: Option<&mut dyn Land> = match &mut poller {
            Some(Poller { landing: Some(landing), .. }) => Some(&mut **landing),
            _ => None,
        };
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing,
            gpu: GpuTrains::None,
        };
        let (mut taken, mut bytes, mut requests) = (0, 0, 0);
        let mut answer = Ok(());
        while let Some((train, mut payload)) = reading.train_and_payload() {
            if train.is_named {
                let Some((source, shadow)) = gpu::named(payload, reading) else {
                    nic.dropped(now, Some(self.qpn), Some(&train.headers), DropReason::NamedPayload);
                    reading.refuse_names();
                    reading.consume();
                    taken += 1;
                    break;
                };
                port.gpu = GpuTrains::Received(source);
                payload = shadow;
            }
            let grh = match self.kind.is_connected() {
                true => [0; 40],
                false => local_grh(train.addresses, train.handling, train.headers.len() + payload.len()),
            };
            let inbound = Inbound {
                headers: &train.headers,
                count: train.count,
                payload,
                from: train.addresses.0,
                grh: &grh,
                congestion_marked: false,
            };
            if let Some(capture) = &nic.records.capture {
                if let Some(acknowledgement) = train.acknowledgement() {
                    nic.capture_train(capture, &acknowledgement, &[]);
                }
                let is_refusal = super::refusal::is_refusal(&train.headers);
                nic.capture_train(capture, train, if is_refusal { &[] } else { payload });
            }
            if let Some((psn, msn)) = train.along {
                pair.handle_acknowledgement(now, inbound.from, psn, msn, &mut port);
            }
            self.handle_counted(pair, &inbound, &mut port, |pair, port| {
                super::refusal::handle_from_host(pair, now, &inbound, port);
            });
            if train.is_named {
                port.gpu = GpuTrains::None;
            }
            taken += 1;
            bytes += payload.len();
            requests += u32::from(inbound.headers.bth.opcode.is_request());
            reading.consume();
            if reading.should_tell() {
                reading.tell(false);
            }
            // A program that is about to answer is not made to wait for what else there is.
            if taken >= TRAINS_PER_RUN || bytes >= BYTES_PER_RUN || answers && requests > 0 {
                break;
            }
            match reading.front() {
                Ok(Some(next)) if next.headers.bth.dest_qpn == self.qpn => {}
                Ok(_) => break,
                Err(broken) => {
                    answer = Err(broken);
                    break;
                }
            }
        }
        nic.progress.note_moved(bytes);
        // Messages are for the thread that polls for receives, acknowledgements for that which polls for sends.
        let cq = match requests {
            0 => self.send_cq.as_ref().or(self.receive_cq.as_ref()),
            _ => self.receive_cq.as_ref().or(self.send_cq.as_ref()),
        };
        if let (Some(_), Some(cq)) = (&poller, cq) {
            reading.is_for(cq.polled_by());
        }
        if inner.weak.is_some() {
            self.drive_weak(nic, &mut inner, now);
            self.leave(nic, inner);
            return answer.map(|()| (taken, false));
        }
        let may_wait = inner.piggyback.habit.came(requests)
            && poller.is_some()
            && nic.records.capture.is_none()
            && inner.pair.owes_acknowledgement_only()
            && inner.piggyback.wait(self.qpn, &nic.progress.piggyback_owners, || nic.progress.engine.is_leased());
        if !may_wait && !self.may_gather(&nic.progress, &mut inner, requests) {
            inner.touched = 0;
            self.transmit(nic, &mut inner, now);
        }
        self.complete_all(nic, &mut inner, now, poller);
        self.sleep(&nic.progress, &mut inner);
        self.leave(nic, inner);
        answer.map(|()| (taken, may_wait && requests > 0))
    }

    /// Whether the acknowledgement of so many WRITEs may wait until there are more of them, or none: the engine spins
    /// and will drive this queue pair, and the program of this process waits for nothing of it. One acknowledgement
    /// then serves a batch: 446 -> 332 ns per 64 B WRITE on 16 processors.
    fn may_gather(&self, progress: &ProgressState, inner: &mut Inner, requests: u32) -> bool {
        let gathered = inner.touched + requests;
        let may = requests > 0
            && gathered < TRAINS_PER_RUN
            && progress.engine.spins()
            && inner.pair.owes_acknowledgement_only()
            && !inner.pair.may_complete();
        if may {
            if inner.touched == 0 {
                progress.make_ready(self.qpn);
            }
            inner.touched = gathered;
        }
        may
    }

    /// Whether it sends through this link.
    pub(crate) fn sends_through(&self, link: &Arc<Outbound>) -> bool {
        matches!(&self.inner.lock().path.link, Link::Shared(other) if Arc::ptr_eq(other, link))
    }
}

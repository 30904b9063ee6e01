//! What comes through shared memory: trains are taken out of rings and given to their queue pairs; links come up, end,
//! and get room again.

use crate::nic::Nic;
use crate::objects::completion_queue::Poller;
use crate::queue_pair::Qp;
use crate::tuning::{DISCONNECT_GRACE, GONE_PEER_LOOKS, OTHER_THREADS_RINGS_EVERY, TRAINS_PER_TURN};
use link::shared::{Broken, Change, Inbound, Notes, Outbound, Reading};
use std::sync::Arc;
use trace::DropReason;
use transport::Time;
use wire::Qpn;

impl Nic {
    /// Takes what has come through shared memory. A program that polls is shown at once what completes for it.
    #[inline]
    pub(crate) fn receive_shared(&self, alone: Option<&latch::Alone>, mut poller: Option<&mut Poller<'_>>) -> bool {
        if self.ground.links.registry.rings_meet_faults() {
            return self.receive_links();
        }
        let mut any = false;
        let mut broken: Option<Arc<Inbound>> = None;
        // Where several threads poll, each looks at what is its own, and now and then at everything: a thread may have
        // stopped.
        let hurry = poller.is_some()
            && latch::is_crowded()
            && !self.ground.progress.engine.polls_here().is_multiple_of(OTHER_THREADS_RINGS_EVERY);
        self.ground.links.exchange.each_with_something(alone, hurry, |inbound| {
            let Some(mut reading) = inbound.reader() else { return };
            match self.take_turn(poller.as_deref_mut(), &mut reading) {
                Ok(taken) => any |= taken > 0,
                Err(Broken) => broken = Some(Arc::clone(inbound)),
            }
        });
        if let Some(inbound) = broken {
            self.ground.dropped(self.now(), None, None, DropReason::BrokenRing);
            self.ground.links.exchange.drop_inbound(&inbound);
        }
        any
    }

    fn take_turn(&self, mut poller: Option<&mut Poller<'_>>, reading: &mut Reading<'_>) -> Result<u32, Broken> {
        let mut taken = 0;
        let mut now = None;
        while let Some(front) = reading.front()? {
            let qpn = front.headers.bth.dest_qpn;
            let now = *now.get_or_insert_with(|| self.now());
            let (notes, same) = self.note(reading, qpn);
            match notes.as_ref().and_then(|notes| notes.object.downcast_ref::<Qp>()) {
                Some(qp) => {
                    // Where queue pairs take turns, the next one is brought into the cache meanwhile.
                    if !same
                        && let Some(next) = reading.following()
                        && next != qpn
                    {
                        self.prefetch_qp(next);
                    }
                    let (run, enough) = qp.take_run(&self.ground, now, poller.as_deref_mut(), reading)?;
                    reading.notes = notes;
                    taken += run;
                    if enough {
                        return Ok(taken);
                    }
                }
                None => {
                    let headers = reading.train_and_payload().map(|(train, _)| train.headers);
                    self.ground.dropped(now, None, headers.as_ref(), DropReason::UnknownQp);
                    reading.consume();
                    taken += 1;
                }
            }
            if taken >= TRAINS_PER_TURN {
                reading.tell(false);
                return Ok(taken);
            }
        }
        // The writer need not know yet, unless much was read. A look that finds nothing tells it.
        if taken == 0 || reading.has_much_to_tell() {
            reading.tell(true);
        }
        Ok(taken)
    }

    /// The queue pair of that number, and whether it is the last one's: trains come in runs, and looking one up costs 5
    /// % of a 64 B SEND.
    #[inline]
    fn note(&self, reading: &mut Reading<'_>, qpn: Qpn) -> (Option<Notes>, bool) {
        let (version, number) = (self.objects.qps.version(), qpn.value());
        match reading.notes.take() {
            Some(notes) if notes.version == version && notes.number == number => (Some(notes), true),
            _ => (self.qp(qpn).map(|object| Notes { version, number, object }), false),
        }
    }

    /// Sees to the connections behind the links, and to queue pairs that wait for one.
    pub(crate) fn serve_exchange(&self) {
        let mut died = Vec::new();
        let mut settled = false;
        let refused = self.ground.links.exchange.serve(|link, change| {
            settled = true;
            if change == Change::Died {
                died.push(Arc::clone(link));
            }
        });
        for socket in self.ground.host.slots.registry().take_inquiries() {
            self.background.inquiries.add("ubiverbs-reports", socket);
        }
        for injection in self.ground.host.slots.registry().take_injections() {
            self.background.injections.add("ubiverbs-inject", injection);
        }
        for _ in 0..refused {
            self.ground.dropped(self.now(), None, None, DropReason::RingRefused);
        }
        if settled {
            self.ground.links.ways_changed();
        }
        // Queue pairs that waited for a link, or for room that was just told of, may go on. Perhaps no thread looks
        // again for them until the peer tells, so the peer is asked to.
        if self.ground.links.exchange.has_stalled() {
            self.resume_stalled(true);
        }
        for link in died {
            match self.cm.has_ids() {
                true => {
                    let when = self.now() + DISCONNECT_GRACE;
                    self.gone_peers.lock().push((when, link));
                    self.ground.progress.wake_at(when, Qpn::GSI);
                }
                false => self.fail_gone_peer(&link),
            }
        }
    }

    /// Fails what waits for gone peers whose delay has passed.
    pub(crate) fn fail_gone_peers(&self, now: Time) {
        let mut gone_peers = self.gone_peers.lock();
        let due: Vec<_> = gone_peers.extract_if(.., |(when, _)| *when <= now).collect();
        drop(gone_peers);
        for (_, link) in due {
            self.fail_gone_peer(&link);
        }
    }

    /// A peer has gone. What it sent before counts; then every queue pair that sends to the peer fails the work that
    /// was not acknowledged. Datagrams are not acknowledged: those that the peer has not read are lost.
    fn fail_gone_peer(&self, link: &Arc<Outbound>) {
        for _ in 0..GONE_PEER_LOOKS {
            if !self.receive_shared(None, None) {
                break;
            }
        }
        link.give_up();
        let now = self.now();
        for headers in link.take_unread_datagrams() {
            self.ground.dropped(now, headers.deth.map(|deth| deth.src_qpn), Some(&headers), DropReason::PeerGone);
        }
        self.each_qp(|qp| {
            if qp.sends_through(link) {
                qp.resume(&self.ground, now);
            }
        });
    }

    /// Lets queue pairs go on that waited for room.
    pub(crate) fn resume_stalled(&self, asleep: bool) -> bool {
        let mut any = false;
        self.ground.links.exchange.resume(asleep, |qpn| {
            any = true;
            if let Some(qp) = self.qp(qpn) {
                qp.resume(&self.ground, self.now());
            }
        });
        any
    }
}

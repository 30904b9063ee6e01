//! Queue pairs on links through shared memory: how their trains get into rings and out of them, who waits for room, and what happens when a peer
//! is stopped (its time to answer does not run) or has gone (what it owes fails at once).

pub(crate) mod datagrams;

use crate::completion_queue::Poller;
use crate::host::Host;
use crate::nic::{Nic, lock};
use crate::path::{Link, Path};
use crate::queue_pair::{Qp, TrainCargo};
use latch::Mutex;
use link::shared::{Broken, Change, Inbound, Notes, Outbound, Reading, Sleeper, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;
use transport::{QueuePair, SendRequest, Time};
use wire::{Headers, Opcode, Qpn, Syndrome};

/// Of so many polls of a thread's one looks at rings that other threads poll for.
const RARELY: u64 = 16;

/// Trains taken from rings before whoever drives looks at something else.
const TURN: u32 = 64;

/// A long train, in bytes.
const LONG: usize = 16 * 1024;

/// How often rings are looked at before a peer that has gone is believed to have said nothing more.
const LAST_LOOKS: u32 = 1024;

/// How long, where the program has connections, it takes until work fails that a process owes which has gone: programs expect to hear first that they
/// are disconnected, as they do from other NICs, whose work fails when all retries are used up.
const MOURNING: Duration = Duration::from_millis(2);

/// What a queue pair remembers of its link.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// It is among those who wait for room.
    waits: bool,
    /// Where its last train ends in the ring.
    position: u64,
    /// The last time its timer came up the peer had not read everything.
    unread: bool,
}

/// How long, in nanoseconds, a peer whose program polls has to take a WRITE, a READ or an atomic before its engine is rung for.
const PATIENCE: u64 = 10_000;

/// One-sided work for peers whose programs are said to poll. Whoever spins on memory instead makes no call at all.
#[derive(Debug, Default)]
pub(crate) struct Impatience {
    any: AtomicBool,
    waiting: Mutex<Vec<Unread>>,
}

/// What a peer was given to read.
#[derive(Debug)]
struct Unread {
    link: Arc<Outbound>,
    /// Where it ends, since when that is so, and where what was written since ends.
    position: u64,
    since: Time,
    latest: u64,
}

impl Impatience {
    fn wait_for(&self, link: &Arc<Outbound>, position: u64, now: Time) {
        let mut waiting = self.waiting.lock();
        match waiting.iter_mut().find(|unread| Arc::ptr_eq(&unread.link, link)) {
            Some(unread) => unread.latest = position,
            None => waiting.push(Unread { link: Arc::clone(link), position, since: now, latest: position }),
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether somebody is waited for.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Rings for those who have not taken what was written for them.
    #[inline]
    pub fn check(&self, nic: &Nic) {
        if self.any() {
            self.check_all(nic.now());
        }
    }

    fn check_all(&self, now: Time) {
        let mut waiting = self.waiting.lock();
        waiting.retain_mut(|unread| {
            if now.since(unread.since) < PATIENCE {
                return true;
            }
            let Unread { link, position, since, latest } = unread;
            if link.was_read(*position) {
                // The peer is at it. What came later has as much time.
                let more = position != latest;
                (*position, *since) = (*latest, now);
                return more;
            }
            link.is_leased() && !link.insist()
        });
        self.any.store(!waiting.is_empty(), Ordering::Release);
    }
}

/// What was written to a ring.
#[derive(Clone, Copy, Default)]
struct Written {
    /// More than acknowledgements.
    urgent: bool,
    /// WRITEs, READs or atomics.
    one_sided: bool,
}

/// Whether a train says only that something was done.
fn is_acknowledgement(headers: &Headers) -> bool {
    headers.bth.opcode == Opcode::RcAcknowledge
        && headers.aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}

/// Somebody in another process that sleeps and has to be rung for.
pub(crate) struct Call(Arc<Outbound>, Sleeper);

impl Call {
    pub fn ring(&self) {
        self.0.strike(self.1);
    }
}

/// What came of sending through shared memory.
pub(crate) enum Way {
    /// What can be sent is.
    Done,
    /// The queue pair has another link.
    Other,
    /// The peer wants no shared memory.
    Refused,
}

impl Shared {
    /// Sends what there is to send, if the way is through shared memory.
    #[inline]
    pub fn transmit(
        &mut self,
        nic: &Nic,
        qp: &Qp,
        path: &Path,
        pair: &mut QueuePair,
        host: &mut Host<'_>,
        now: Time,
    ) -> Way {
        let Link::Shared(link) = &path.link else { return Way::Other };
        loop {
            let state = link.state();
            // Then nobody need be asked to tell when there is room.
            let looked_for = nic.engine().looks_for_room();
            let done = match state {
                State::Up => self.write(nic, qp, path, link, pair, host, looked_for, now),
                State::Connecting => false,
                State::Refused => return Way::Refused,
                State::Dead => {
                    Shared::give_up(link, pair, host, now);
                    return Way::Done;
                }
            };
            if done || self.waits {
                return Way::Done;
            }
            self.waits = true;
            nic.exchange.stall(link, qp.qpn());
            fence(Ordering::SeqCst);
            if link.state() == state && looked_for <= nic.engine().looks_for_room() {
                return Way::Done;
            }
            // It has become another meanwhile, or nobody looks any more, and perhaps nobody saw us waiting.
        }
    }

    /// Sends work the short way, as long as it may go that way: posted and written to the ring in one go. Answers how many requests were posted, whether
    /// nothing more is to be done about them, and whom to ring for when the queue pair's lock has been let go: who is woken may take the processor away.
    #[inline]
    pub fn send_at_once(
        &mut self,
        nic: &Nic,
        path: &Path,
        pair: &mut QueuePair,
        host: &mut Host<'_>,
        requests: &[SendRequest<'_>],
    ) -> (usize, bool, Option<Call>) {
        let Link::Shared(link) = &path.link else { return (0, false, None) };
        if self.waits || nic.capture().is_some() {
            return (0, false, None);
        }
        let Some(mut writer) = link.writer() else { return (0, false, None) };
        let before = writer.position();
        let (mut sent, mut fine, mut one_sided) = (0, true, false);
        let mut now = None;
        for request in requests {
            if !writer.has_room() {
                break;
            }
            let along = pair.take_acknowledgement(host);
            let Some(at_once) = pair.may_send_at_once(request, host) else {
                pair.owe_acknowledgement(along);
                break;
            };
            sent += 1;
            one_sided |= at_once.is_one_sided();
            let payload = pair.payload_at_once(request, &at_once);
            let fill = |out: &mut [u8]| payload.copy(0, out, host);
            let headers = (at_once.len(), |out: &mut [u8]| at_once.encode(out));
            // The peer has it while the queue pair remembers it, and before anybody asks what time it is.
            let addresses = (path.source, path.destination);
            let written = writer.push_with(along, addresses, headers, (1, at_once.mtu), payload.len() as usize, fill);
            let now = *now.get_or_insert_with(|| nic.now());
            pair.sent_at_once(now, request, &at_once, host);
            if let Err(refusal) = written {
                pair.owe_acknowledgement(along);
                pair.transmit_refused(now, refusal, host);
                fine = false;
                break;
            }
        }
        let after = writer.position();
        drop(writer);
        let mut call = None;
        if after != before {
            let sleeper = self.wrote(nic, link, after, Written { urgent: true, one_sided });
            call = sleeper.map(|sleeper| Call(Arc::clone(link), sleeper));
        }
        (sent, fine && sent == requests.len(), call)
    }

    /// Something was written up to there. Answers whom to ring for.
    #[inline]
    #[must_use]
    fn wrote(&mut self, nic: &Nic, link: &Arc<Outbound>, position: u64, what: Written) -> Option<Sleeper> {
        self.position = position;
        let sleeper = link.to_ring_for(what.urgent);
        if what.one_sided && link.is_leased() {
            nic.impatience.wait_for(link, position, nic.now());
        }
        sleeper
    }

    /// Writes to the ring what fits. Answers whether that is everything.
    #[expect(clippy::too_many_arguments, reason = "one call site; every argument is a different thing")]
    fn write(
        &mut self,
        nic: &Nic,
        qp: &Qp,
        path: &Path,
        link: &Arc<Outbound>,
        pair: &mut QueuePair,
        host: &mut Host<'_>,
        looked_for: bool,
        now: Time,
    ) -> bool {
        if !pair.may_transmit() {
            return true;
        }
        let Some(mut writer) = link.writer() else { return false };
        let before = writer.position();
        let mut what = Written::default();
        let done = loop {
            if !writer.has_room() {
                if writer.is_broken() {
                    link.condemn();
                    break false;
                }
                if looked_for {
                    break false;
                }
                writer.want_room();
                if !writer.has_room() {
                    break false;
                }
            }
            let Some(train) = pair.poll_transmit(now, host) else { break true };
            if let Some(capture) = nic.capture() {
                nic.capture_sent(&mut lock(capture), qp, path, &mut TrainCargo { train: &train, host });
            }
            what.one_sided |= train.headers.reth.is_some() || train.headers.atomic.is_some();
            what.urgent |= !is_acknowledgement(&train.headers);
            let length = train.payload.len() as usize;
            nic.note_moved(length);
            let addresses = (path.source, path.destination);
            let fill = |out: &mut [u8]| train.payload.copy(0, out, host);
            if let Err(refusal) = writer.push(addresses, &train.headers, (train.count, train.mtu), length, fill) {
                pair.transmit_refused(now, refusal, host);
            }
            if !pair.may_transmit() {
                break true;
            }
        };
        let after = writer.position();
        drop(writer);
        if after != before {
            // If there was no room, the reader is to make some, whatever it is full of.
            what.urgent |= !done;
            if let Some(sleeper) = self.wrote(nic, link, after, what) {
                link.strike(sleeper);
            }
        }
        done
    }

    /// The peer has gone: nothing more is sent, and what it has not acknowledged fails, once everything it had said is known.
    fn give_up(link: &Outbound, pair: &mut QueuePair, host: &mut Host<'_>, now: Time) {
        if !link.is_mourned() {
            return;
        }
        while pair.poll_transmit(now, host).is_some() {}
        pair.peer_gone(now, host);
    }

    /// It no longer waits.
    pub fn resumed(&mut self) {
        self.waits = false;
    }

    /// Whether the peer's time to answer has yet to begin: it has not read all we sent, or we have only just seen that it did.
    pub fn is_unread(&mut self, path: &Path) -> bool {
        let Link::Shared(link) = &path.link else { return false };
        let unread = !link.was_read(self.position);
        std::mem::replace(&mut self.unread, unread) || unread
    }
}

impl Nic {
    /// Takes what has come through shared memory. A program that polls is shown at once what completes for it.
    #[inline]
    pub(crate) fn receive_shared(&self, alone: Option<&latch::Alone>, mut poller: Option<&mut Poller<'_>>) -> bool {
        let mut any = false;
        let mut broken: Option<Arc<Inbound>> = None;
        // Where several threads poll, each looks at what is its own, and now and then at everything: a thread may have stopped.
        let hurry = poller.is_some() && latch::is_crowded() && !self.engine().polls_here().is_multiple_of(RARELY);
        self.exchange.each_with_something(alone, hurry, |inbound| {
            let Some(mut reading) = inbound.reader() else { return };
            match self.take_turn(poller.as_deref_mut(), &mut reading) {
                Ok(taken) => any |= taken > 0,
                Err(Broken) => broken = Some(Arc::clone(inbound)),
            }
        });
        if let Some(inbound) = broken {
            self.exchange.drop_inbound(&inbound);
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
                    // Where there is more than one in turn, the next one is brought from afar meanwhile.
                    if !same
                        && let Some(next) = reading.following()
                        && next != qpn
                    {
                        self.prefetch_qp(next);
                    }
                    let (run, enough) = qp.take_run(self, now, poller.as_deref_mut(), reading)?;
                    reading.notes = notes;
                    taken += run;
                    if enough {
                        return Ok(taken);
                    }
                }
                None => {
                    reading.consume();
                    taken += 1;
                }
            }
            if taken >= TURN {
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

    /// How many bytes went through shared memory in long trains, in either direction.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Counts them, roughly: threads may count at the same time.
    #[inline]
    pub(crate) fn note_moved(&self, bytes: usize) {
        if bytes >= LONG {
            self.moved.store(self.moved() + bytes as u64, Ordering::Relaxed);
        }
    }

    /// The queue pair of that number, and whether it is the last one's: trains come in runs.
    #[inline]
    fn note(&self, reading: &mut Reading<'_>, qpn: Qpn) -> (Option<Notes>, bool) {
        let (version, number) = (self.qp_version(), qpn.value());
        match reading.notes.take() {
            Some(notes) if notes.version == version && notes.number == number => (Some(notes), true),
            _ => (self.qp(qpn).map(|object| Notes { version, number, object }), false),
        }
    }

    /// Sees to the connections behind the links, and to queue pairs that wait for one.
    pub(crate) fn serve_exchange(&self) {
        let mut died = Vec::new();
        let mut settled = false;
        self.exchange.serve(|link, change| {
            settled = true;
            if change == Change::Died {
                died.push(Arc::clone(link));
            }
        });
        if settled {
            self.ways_changed();
        }
        // Whoever waited for a link, or for room that was just told of, may go on. Nobody may look again for them before being told.
        if self.exchange.has_stalled() {
            self.resume_stalled(true);
        }
        for link in died {
            match self.cm.has_ids() {
                true => {
                    let when = self.now() + MOURNING;
                    lock(&self.dying).push((when, link));
                    self.wake_at(when, Qpn::GSI);
                }
                false => self.mourn(&link),
            }
        }
    }

    /// Mourns those whose time has come.
    pub(crate) fn mourn_due(&self, now: Time) {
        let mut dying = lock(&self.dying);
        let due: Vec<_> = dying.extract_if(.., |(when, _)| *when <= now).collect();
        drop(dying);
        for (_, link) in due {
            self.mourn(&link);
        }
    }

    /// A peer has gone. What it said before counts; then everybody who waits for it learns.
    fn mourn(&self, link: &Arc<Outbound>) {
        for _ in 0..LAST_LOOKS {
            if !self.receive_shared(None, None) {
                break;
            }
        }
        link.mourn();
        let now = self.now();
        self.each_qp(|qp| {
            if qp.sends_through(link) {
                qp.resume(self, now);
            }
        });
    }

    /// Lets queue pairs go on that waited for room.
    pub(crate) fn resume_stalled(&self, asleep: bool) -> bool {
        let mut any = false;
        self.exchange.resume(asleep, |qpn| {
            any = true;
            if let Some(qp) = self.qp(qpn) {
                qp.resume(self, self.now());
            }
        });
        any
    }
}

//! Queue pairs on links through shared memory: how their trains get into rings and out of them, which queue pairs wait
//! for room, and what happens when a peer is stopped (its time to answer does not run) or has gone (what it has not
//! acknowledged fails at once).

use crate::ground::Ground;
use crate::links::path::{Link, Path};
use crate::queue_pair::port::{GpuTrains, NicPort};
use crate::queue_pair::refusal::is_refusal;
use crate::queue_pair::{Qp, TrainCargo, gpu};
use crate::tuning::{LOSSLESS_PATIENCE, nanos};
use link::shared::{Needs, Outbound, Sleeper, State, Unwritten};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use trace::DropReason;
use transport::{QueuePair, SendRequest, Time};
use wire::access::Refusal;
use wire::{Headers, Opcode, Psn, Syndrome};

/// What a queue pair remembers of its link.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// It is among the queue pairs that wait for room.
    waits: bool,
    /// Since when.
    since: Time,
    /// Where its last train ends in the ring.
    position: u64,
    late_answer: LateAnswer,
}

/// An answer that did not come in time, on a link that loses nothing.
#[derive(Debug, Default)]
struct LateAnswer {
    /// Which answer: `QueuePair::awaited_answer`.
    awaited: Option<(Psn, u64)>,
    /// Its time does not run before what was sent up to here was dealt with ...
    until: u64,
    /// ... and so often, with what was sent by then: the answer may be among it.
    rounds: u8,
    /// How often the timer came up since then.
    quiet: u32,
}

impl LateAnswer {
    /// Whether it is late enough to ask again, where the peer has `time` nanoseconds to answer. Trains were sent up to
    /// `sent`; `is_done` says up to where they were dealt with. What is sent meanwhile changes nothing: two queue pairs
    /// that refuse each other's messages never stop sending.
    fn is_overdue(&mut self, awaited: (Psn, u64), time: u64, sent: u64, is_done: impl Fn(u64) -> bool) -> bool {
        let is_new = self.awaited != Some(awaited);
        if is_new {
            *self = LateAnswer { awaited: Some(awaited), until: sent, rounds: 2, quiet: 0 };
        }
        let was_under_way = !is_new && self.rounds > 0;
        while self.rounds > 0 && is_done(self.until) {
            (self.rounds, self.until) = (self.rounds - 1, sent);
        }
        if self.rounds > 0 || was_under_way {
            // Its time begins when we have seen that all was dealt with.
            return false;
        }
        self.quiet += 1;
        let is_overdue = u64::from(self.quiet) * time >= nanos(LOSSLESS_PATIENCE);
        if is_overdue {
            *self = LateAnswer::default();
        }
        is_overdue
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

/// Whether a train reaches for the peer's memory, and the peer's program hears nothing of it. A program polls for a
/// WRITE with an immediate as it does for a SEND.
fn is_one_sided(headers: &Headers) -> bool {
    (headers.reth.is_some() && headers.immediate.is_none()) || headers.atomic.is_some()
}

/// A thread of another process that sleeps and has to be rung for.
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

/// What to do about an answer that is late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Its time begins only now: nothing is lost, so nothing is sent again.
    Hold,
    /// It is sent for again, without counting that, unless it is very late.
    Forgive,
    /// It counts as a retry.
    Over,
}

impl Shared {
    /// Sends what there is to send, if the way is through shared memory.
    #[inline]
    pub fn transmit(
        &mut self,
        nic: &Ground,
        qp: &Qp,
        path: &Path,
        pair: &mut QueuePair,
        port: &mut NicPort<'_>,
        now: Time,
    ) -> Way {
        let Link::Shared(link) = &path.link else { return Way::Other };
        loop {
            let state = link.state();
            // Then the peer need not be asked to tell when there is room.
            let looked_for = nic.progress.engine.looks_for_room();
            let done = match state {
                State::Up => self.write(nic, qp, path, link, pair, port, looked_for, now),
                State::Connecting => false,
                State::Refused => return Way::Refused,
                State::Dead => {
                    Shared::give_up(nic, qp, link, pair, port, now);
                    return Way::Done;
                }
            };
            if done || self.waits {
                return Way::Done;
            }
            (self.waits, self.since) = (true, now);
            nic.links.exchange.stall(link, qp.qpn());
            fence(Ordering::SeqCst);
            if link.state() == state && looked_for <= nic.progress.engine.looks_for_room() {
                return Way::Done;
            }
            // The state has become another meanwhile, or no thread looks for room any more; perhaps the thread that
            // changed it did not see us waiting.
        }
    }

    /// Sends work the short way, as long as it may go that way: posted and written to the ring in one go. Answers how
    /// many requests were posted, whether nothing more is to be done about them, and which thread to ring for when the
    /// queue pair's lock has been let go: the thread that is woken may take the processor away.
    #[inline]
    pub fn send_at_once(
        &mut self,
        nic: &Ground,
        path: &Path,
        pair: &mut QueuePair,
        port: &mut NicPort<'_>,
        requests: &[SendRequest<'_>],
        first: usize,
    ) -> (usize, bool, Option<Call>) {
        let Link::Shared(link) = &path.link else { return (0, false, None) };
        if self.waits || nic.records.capture.is_some() {
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
            let along = pair.take_acknowledgement(port);
            let Some(at_once) = pair.may_send_at_once(request, port) else {
                pair.owe_acknowledgement(along);
                break;
            };
            sent += 1;
            one_sided |= at_once.is_one_sided();
            let payload = pair.payload_at_once(request, &at_once);
            let fill = |out: &mut [u8]| payload.copy(0, out, port);
            let headers = (at_once.len(), |out: &mut [u8]| at_once.encode(out));
            // The peer has it while the queue pair remembers it, and before the clock is read.
            let addresses = (path.source, path.destination);
            let written = writer.push_with(along, addresses, headers, (1, at_once.mtu), payload.len() as usize, fill);
            let now = *now.get_or_insert_with(|| nic.now());
            if nic.records.trace.is_on() {
                if let (Some(along), Ok(())) = (along, &written) {
                    pair.trace_along(now, along, port);
                }
                nic.records.tell_send(now, pair.qpn(), first + sent - 1, request);
            }
            pair.sent_at_once(now, request, &at_once, port);
            match written {
                Ok(()) if along.is_some() => pair.sent_alone(Opcode::RcAcknowledge),
                Ok(()) => {}
                Err(Unwritten::Payload(refusal)) => {
                    pair.owe_acknowledgement(along);
                    pair.transmit_refused(now, refusal, port);
                    fine = false;
                    break;
                }
                Err(Unwritten::NoRecord) => {
                    pair.owe_acknowledgement(along);
                    nic.dropped(now, Some(pair.qpn()), None, DropReason::BadLength);
                }
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

    /// Something was written up to there. Returns which thread of the peer to ring for.
    #[inline]
    #[must_use]
    fn wrote(&mut self, nic: &Ground, link: &Arc<Outbound>, position: u64, what: Written) -> Option<Sleeper> {
        self.position = position;
        match link.needs(what.urgent) {
            Needs::Ring(sleeper) => return Some(sleeper),
            Needs::Lease if what.one_sided => nic.links.unread_watch.wait_for(link, position, nic.now()),
            Needs::Lease | Needs::Nothing => {}
        }
        None
    }

    /// Writes to the ring what fits. Returns whether that is everything.
    #[expect(clippy::too_many_arguments, reason = "one call site; every argument is a different thing")]
    fn write(
        &mut self,
        nic: &Ground,
        qp: &Qp,
        path: &Path,
        link: &Arc<Outbound>,
        pair: &mut QueuePair,
        port: &mut NicPort<'_>,
        looked_for: bool,
        now: Time,
    ) -> bool {
        if !pair.may_transmit() {
            return true;
        }
        let Some(mut writer) = link.writer() else { return false };
        let before = writer.position();
        let mut what = Written::default();
        let names = memory::has_gpu_regions() && gpu::may_name(&nic.records, qp, &writer);
        port.gpu = if names { GpuTrains::Sent } else { GpuTrains::None };
        let done = loop {
            if !writer.has_room() {
                if writer.is_broken() {
                    nic.condemn(link);
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
            let Some(train) = pair.poll_transmit(now, port) else { break true };
            if let Some(capture) = &nic.records.capture {
                nic.capture_sent(&mut capture.lock(), qp, path, &mut TrainCargo { train: &train, port });
            }
            what.one_sided |= is_one_sided(&train.headers);
            what.urgent |= !is_acknowledgement(&train.headers);
            let length = train.payload.len() as usize;
            nic.progress.note_moved(length);
            let addresses = (path.source, path.destination);
            if is_refusal(&train.headers) {
                let (headers, mtu) = (train.headers, train.mtu);
                let reason = nic.reason_of(pair, &headers);
                let reason = reason.as_ref().map_or(&[][..], |reason| &reason[..]);
                let fill = |out: &mut [u8]| -> Result<(), Refusal> {
                    out.copy_from_slice(reason);
                    Ok(())
                };
                if writer.push(addresses, &headers, (1, mtu), reason.len(), fill).is_err() {
                    nic.dropped(now, Some(qp.qpn()), Some(&headers), DropReason::BadLength);
                }
                continue;
            }
            if names && let Some(name) = gpu::name(nic, &train, link, &mut writer) {
                if writer.push_named::<Refusal>(addresses, &train.headers, (train.count, train.mtu), &name).is_err() {
                    nic.dropped(now, Some(qp.qpn()), Some(&train.headers), DropReason::BadLength);
                }
                if !pair.may_transmit() {
                    break true;
                }
                continue;
            }
            if names && length > link::shared::MAX_PAYLOAD_BYTES {
                // It could be named a moment ago: the memory was freed.
                let refusal = gpu::vanished(&train);
                pair.transmit_refused(now, refusal, port);
                continue;
            }
            let fill = |out: &mut [u8]| train.payload.copy(0, out, port);
            match writer.push(addresses, &train.headers, (train.count, train.mtu), length, fill) {
                Ok(()) => {}
                Err(Unwritten::Payload(refusal)) => pair.transmit_refused(now, refusal, port),
                Err(Unwritten::NoRecord) => {
                    nic.dropped(now, Some(qp.qpn()), Some(&train.headers), DropReason::BadLength);
                }
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

    /// The peer has gone: nothing more is sent, and what it has not acknowledged fails, once everything it had said is
    /// known.
    fn give_up(nic: &Ground, qp: &Qp, link: &Outbound, pair: &mut QueuePair, port: &mut NicPort<'_>, now: Time) {
        if !link.is_given_up() {
            return;
        }
        while let Some(train) = pair.poll_transmit(now, port) {
            nic.dropped(now, Some(qp.qpn()), Some(&train.headers), DropReason::PeerGone);
        }
        pair.peer_gone(now, port);
        if nic.options.stops_without_peer {
            pair.stop_without_peer(now, port);
        }
    }

    /// Whether an answer to the peer waits until the link is up. What it answers does not complete before: a program
    /// that leaves by `_exit` once it has its message has acknowledged it.
    #[inline]
    pub fn keeps_answer(&self, path: &Path, pair: &QueuePair) -> bool {
        self.waits
            && matches!(&path.link, Link::Shared(link) if link.state() == State::Connecting)
            && pair.owes_answer()
            && pair.state().receives()
    }

    /// It no longer waits. Answers for how many nanoseconds it did.
    pub fn resumed(&mut self, now: Time) -> u64 {
        if std::mem::take(&mut self.waits) { now.since(self.since) } else { 0 }
    }

    /// What to do about a timeout, where the peer has so many nanoseconds to answer. Links that lose nothing know
    /// whether a train is under way; and if none is, the thread that answers may wait for a processor.
    pub fn patience(&mut self, path: &Path, awaited: (Psn, u64), time: u64) -> Patience {
        let late = &mut self.late_answer;
        let is_overdue = match &path.link {
            Link::Shared(link) => late.is_overdue(awaited, time, self.position, |until| link.was_read(until)),
            Link::General(entry) => match entry.link().traffic() {
                Some((sent, done)) => late.is_overdue(awaited, time, sent, |until| done >= until),
                None => return Patience::Forgive,
            },
            Link::None | Link::Udp => return Patience::Forgive,
            // A cut way: no peer is waited for, and retries run out as fast as the program has chosen.
            Link::Down | Link::BlackHole => return Patience::Over,
        };
        if is_overdue { Patience::Over } else { Patience::Hold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::registry::LinkEntry;

    fn inside_the_process() -> Link {
        Link::General(Arc::new(LinkEntry::general(Arc::new(link::process::Process::default()), |_, _, _| None)))
    }

    const AWAITED: (Psn, u64) = (Psn::new(7), 0);
    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn where_nothing_is_lost_an_answer_is_late_after_a_tenth_of_a_second() {
        let (mut shared, path) = (Shared::default(), Path { link: inside_the_process(), ..Path::default() });
        for _ in 0..2 {
            assert!((0..99).all(|_| shared.patience(&path, AWAITED, MILLISECOND) == Patience::Hold));
            assert_eq!(shared.patience(&path, AWAITED, MILLISECOND), Patience::Over);
        }
        // A program whose timeout is longer waits no longer than that.
        assert_eq!(shared.patience(&path, AWAITED, 100 * MILLISECOND), Patience::Over);
        assert_eq!(shared.patience(&Path::default(), AWAITED, MILLISECOND), Patience::Forgive);
    }

    #[test]
    fn time_to_answer_runs_when_request_and_answer_have_been_dealt_with() {
        let mut late = LateAnswer::default();
        let mut is_overdue =
            |awaited, sent, done| late.is_overdue(awaited, 100 * MILLISECOND, sent, |until| done >= until);
        // Nothing is under way: the peer does not answer.
        assert!(is_overdue(AWAITED, 7, 7));
        // A thread is stopped in the middle of a train, for as long as you like.
        assert!((0..1000).all(|_| !is_overdue(AWAITED, 9, 7)));
        // The request is done; the answer, which is the tenth, is not.
        assert!((0..1000).all(|_| !is_overdue(AWAITED, 10, 9)));
        // When all is seen to be done, the time begins.
        assert!(!is_overdue(AWAITED, 10, 10) && is_overdue(AWAITED, 10, 10));
        // Another answer has a time of its own.
        assert!(!is_overdue((Psn::new(8), 0), 11, 10) && !is_overdue((Psn::new(8), 1), 12, 11));
    }

    #[test]
    fn an_answer_is_late_though_something_is_always_under_way() {
        let mut late = LateAnswer::default();
        let is_overdue: Vec<bool> =
            (0..103).map(|sent| late.is_overdue(AWAITED, MILLISECOND, sent + 1, |until| sent >= until)).collect();
        assert_eq!(is_overdue.iter().position(|is_overdue| *is_overdue), Some(102));
    }
}

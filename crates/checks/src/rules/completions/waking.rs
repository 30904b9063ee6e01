//! Sleeping until a completion comes: arming, waiting at a channel, and wake-ups that never come: UV-0404 to UV-0406,
//! UV-0413 to UV-0416, UV-0424.

use alloc::format;

use trace::{Call, Kind, Queue};

use crate::examine::{Examine, Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::Model;
use crate::rule::catalogue::completions::*;
use crate::witness::Witness;

/// How long a program sleeps beside completions until that is no accident.
const ASLEEP_NS: u64 = 1_000_000_000;

/// How often a queue is armed for nothing until it is reported.
const NEEDLESS_ARMS: u64 = 64;

/// How many events a program may leave alone: one that polls once more after it has armed finds what it waits for, and
/// need not read the event.
const EVENTS_LEFT_ALONE: u64 = 3;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Waking {
    queues: Map<u32, Armed>,
    /// Threads that sleep: at which channel, since when.
    sleepers: Map<u32, (u32, u64)>,
    /// What each thread did about the last event that it got.
    answers: Map<u32, AnsweredEvent>,
}

/// How a completion queue is armed.
#[derive(Clone, Copy, Default, Debug)]
struct Armed {
    /// Times it was armed that no event was got for.
    pending: u64,
    /// Only for solicited completions.
    solicited_only: bool,
    /// Completions since it was armed.
    completed: u64,
    /// Completions that waited when it was armed, and no poll since.
    missed: usize,
    /// Of those, how many the polls since have left.
    left: usize,
    /// How often it was armed although it was armed and nothing had completed.
    needless: u64,
    /// How often it was armed, with a completion after it.
    fired: u64,
    /// A thread of the program waited for its events, or got one.
    has_reader: bool,
}

/// A thread got an event and has not polled the queue it was about.
#[derive(Clone, Copy, Debug)]
struct AnsweredEvent {
    /// What the event was about.
    cq: u32,
    /// What was polled instead, and was empty.
    polled: Option<u32>,
}

impl Examine for Waking {
    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let (model, event) = (moment.model, moment.event);
        match &event.kind {
            Kind::Completed { queue, .. } => {
                let Some(pair) = model.pair_of(event) else { return };
                let cq = if *queue == Queue::Send { pair.send_cq } else { pair.receive_cq };
                if let Some(armed) = cq.and_then(|cq| self.queues.get_mut(&cq))
                    && armed.pending > 0
                {
                    armed.completed += 1;
                    armed.fired += u64::from(armed.completed == 1 && !armed.solicited_only);
                }
            }
            Kind::Called { thread, call } => {
                self.sleepers.remove(thread);
                self.called(event.at, *thread, call, model, out);
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        for (channel, since) in self.sleepers.values() {
            if now.saturating_sub(*since) < ASLEEP_NS {
                continue;
            }
            let queues = model.cqs.iter().filter(|(_, queue)| queue.channel == Some(*channel));
            for (cq, queue) in queues {
                let Some(oldest) = queue.unheard().next() else { continue };
                if now.saturating_sub(oldest.at) < ASLEEP_NS || polled_since(queue.last_poll, *since) {
                    continue;
                }
                let armed = self.queues.get(cq).copied().unwrap_or_default();
                let (waiting, slept) = (queue.waiting(), now.saturating_sub(*since) / 1_000_000);
                if armed.pending == 0 {
                    out.tell(not_armed(*cq, *channel, waiting, slept));
                } else if armed.solicited_only && armed.missed == 0 && !queue.unheard().any(|one| one.is_failure()) {
                    out.tell(not_solicited(*cq, *channel, waiting, slept));
                }
            }
        }
    }

    fn finish(&mut self, _now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        for (cq, armed) in &self.queues {
            let Some(queue) = model.cqs.get(cq) else { continue };
            self.unread(*cq, *armed, queue.channel, model, out);
        }
    }
}

fn polled_since(last_poll: Option<(u64, u32)>, since: u64) -> bool {
    last_poll.is_some_and(|(at, _)| at > since)
}

impl Waking {
    fn called(&mut self, at: u64, thread: u32, call: &Call, model: &Model, out: &mut Out<'_>) {
        match *call {
            Call::ArmCq { cq, solicited_only } => self.arms(cq, solicited_only, model, out),
            Call::Poll { cq, got, room } => {
                if let Some(armed) = self.queues.get_mut(&cq) {
                    // A poll that had room for more has taken all.
                    let before = armed.left.max(armed.missed);
                    armed.left = if got > 0 && got == room { before.saturating_sub(got as usize) } else { 0 };
                    armed.missed = 0;
                }
                match self.answers.get_mut(&thread) {
                    Some(answer) if answer.cq == cq || got > 0 => {
                        self.answers.remove(&thread);
                    }
                    Some(answer) => answer.polled = Some(cq),
                    None => {}
                }
            }
            Call::WaitCqEvent { channel } => {
                self.waits(thread, channel, model, out);
                self.read(channel, model);
                self.sleepers.insert(thread, (channel, at));
            }
            Call::GetCqEvent { channel, cq } => {
                self.waits(thread, channel, model, out);
                self.read(channel, model);
                let armed = self.queues.entry(cq).or_default();
                armed.pending = armed.pending.saturating_sub(1);
                (armed.completed, armed.left) = (0, 0);
                self.answers.insert(thread, AnsweredEvent { cq, polled: None });
            }
            Call::DestroyCq { cq } => {
                if let Some(armed) = self.queues.remove(&cq)
                    && let Some(queue) = model.cqs.get(&cq)
                {
                    self.unread(cq, armed, queue.channel, model, out);
                }
                self.answers.retain(|_, answer| answer.cq != cq);
            }
            _ => {}
        }
    }

    fn arms(&mut self, cq: u32, solicited_only: bool, model: &Model, out: &mut Out<'_>) {
        let Some(queue) = model.cqs.get(&cq) else { return };
        if queue.channel.is_none() {
            out.tell(
                Finding::new(
                    ARMED_WITHOUT_CHANNEL,
                    Subject::CompletionQueue(cq),
                    format!("ibv_req_notify_cq armed CQ {cq}, which has no channel: its events go nowhere"),
                    "make the queue with a channel (ibv_create_comp_channel, then ibv_create_cq with it), or do not \
                     arm it and poll",
                )
                .because("ibv_create_cq was called with a null channel, so that nobody can wait for its events"),
            );
            return;
        }
        let armed = self.queues.entry(cq).or_default();
        let widens = armed.solicited_only && !solicited_only;
        if armed.pending > 0 && armed.completed == 0 && !widens {
            armed.needless += 1;
            if armed.needless == NEEDLESS_ARMS {
                out.tell(
                    Finding::new(
                        ARMED_AGAIN,
                        Subject::CompletionQueue(cq),
                        format!("CQ {cq} was armed {NEEDLESS_ARMS} times while it was armed and nothing had completed"),
                        "call ibv_req_notify_cq once after each event, and not before each wait",
                    )
                    .because("an armed queue stays armed until its event; arming it again costs a write to the device"),
                );
            }
        }
        // An event that was raised and not read wakes the program in any case.
        let may_have_event = armed.pending > 0 && armed.completed > 0;
        armed.missed = if may_have_event { 0 } else { queue.unpolled().filter(|one| one.is_live).count() };
        armed.left = 0;
        armed.solicited_only = solicited_only && (armed.pending == 0 || armed.solicited_only);
        armed.pending += 1;
        armed.completed = 0;
    }

    /// A thread waits at a channel, or has waited.
    fn waits(&mut self, thread: u32, channel: u32, model: &Model, out: &mut Out<'_>) {
        self.queues.for_each_mut(|cq, armed| {
            let Some(queue) = model.cqs.get(cq) else { return };
            if armed.left > 0 && queue.channel == Some(channel) && armed.completed == 0 {
                out.tell(partly_polled(*cq, core::mem::take(&mut armed.left)));
            }
            if armed.missed == 0 || queue.channel != Some(channel) {
                return;
            }
            let missed = core::mem::take(&mut armed.missed);
            out.tell(
                Finding::new(
                    ARMED_AFTER_LAST_POLL,
                    Subject::CompletionQueue(*cq),
                    format!(
                        "the program armed CQ {cq} and waited for its event without a poll in between, while {missed} \
                         completions waited in it already"
                    ),
                    "after ibv_req_notify_cq poll until the queue is empty, and only then call ibv_get_cq_event",
                )
                .because(
                    "an armed queue promises an event for the next completion, not for those that came before: a NIC \
                     that keeps to that lets the program sleep beside them (the lost wake-up)",
                )
                .shown_by(format!(
                    "{missed} completions came after the last poll and before ibv_req_notify_cq; this NIC, as many \
                     others, raises an event for them all the same"
                )),
            );
        });
        let Some(AnsweredEvent { cq, polled: Some(other) }) = self.answers.remove(&thread) else { return };
        let Some(queue) = model.cqs.get(&cq) else { return };
        let unheard = queue.unheard().count();
        // Another thread may be the one that polls it.
        let is_own = queue.last_poll.is_none_or(|(_, poller)| poller == thread);
        if unheard > 0 && is_own && queue.channel == Some(channel) {
            out.tell(
                Finding::new(
                    OTHER_QUEUE_POLLED,
                    Subject::CompletionQueue(cq),
                    format!(
                        "the program got an event of CQ {cq}, polled CQ {other}, which was empty, and waited again; \
                         {unheard} completions wait in CQ {cq}"
                    ),
                    "poll and arm the queue that ibv_get_cq_event stored in its second argument",
                )
                .because(format!("CQ {cq} and others report to channel {channel}; an event is about one of them")),
            );
        }
    }

    /// A thread of the program reads the events of a channel.
    fn read(&mut self, channel: u32, model: &Model) {
        let of_channel = model.cqs.iter().filter(|(_, queue)| queue.channel == Some(channel));
        for (cq, _) in of_channel {
            self.queues.entry(*cq).or_default().has_reader = true;
        }
    }

    /// A queue goes: were its events read?
    fn unread(&self, cq: u32, armed: Armed, channel: Option<u32>, model: &Model, out: &mut Out<'_>) {
        let Some(channel) = channel else { return };
        // A thread that sleeps at the channel for others reads this one's events as well.
        let is_read = |(other, armed): (&u32, &Armed)| {
            armed.has_reader && model.cqs.get(other).is_some_and(|queue| queue.channel == Some(channel))
        };
        if armed.fired < EVENTS_LEFT_ALONE || armed.has_reader || self.queues.iter().any(is_read) {
            return;
        }
        out.tell(
            Finding::new(
                CHANNEL_UNREAD,
                Subject::CompletionQueue(cq),
                format!(
                    "the program asked {} times for events of CQ {cq} that came, and never read one from channel \
                     {channel}",
                    armed.fired
                ),
                "call ibv_get_cq_event where the program waits; or, if it polls only, leave ibv_req_notify_cq out",
            )
            .because("every event costs an interrupt on hardware, and those of this channel wake nobody"),
        );
    }
}

fn partly_polled(cq: u32, left: usize) -> Finding {
    Finding::new(
        PARTLY_POLLED,
        Subject::CompletionQueue(cq),
        format!(
            "the program armed CQ {cq}, polled some of what waited in it, and waits for its event; {left} completions \
             are left"
        ),
        "after ibv_req_notify_cq poll until ibv_poll_cq returns fewer than there was room for, and only then call \
         ibv_get_cq_event",
    )
    .because(
        "one event may stand for many completions, and those that came before the queue was armed raise none: a NIC that \
         keeps to that lets the program sleep beside them",
    )
    .shown_by("this NIC, as many others, raises an event for completions that wait when the queue is armed")
}

fn not_armed(cq: u32, channel: u32, waiting: usize, slept_ms: u64) -> Finding {
    Finding::new(
        NOT_ARMED,
        Subject::CompletionQueue(cq),
        format!(
            "a thread waits in ibv_get_cq_event at channel {channel}, and {waiting} completions wait in CQ {cq}, which \
             is not armed: no event will come"
        ),
        "call ibv_req_notify_cq, poll until the queue is empty, and only then ibv_get_cq_event; again after each event",
    )
    .because("a completion queue raises one event each time it was armed, and none without")
    .shown_by(format!("the thread has slept for {slept_ms} ms, and nobody has polled the queue meanwhile"))
}

fn not_solicited(cq: u32, channel: u32, waiting: usize, slept_ms: u64) -> Finding {
    Finding::new(
        NOT_SOLICITED,
        Subject::CompletionQueue(cq),
        format!(
            "a thread waits in ibv_get_cq_event at channel {channel} for a solicited completion of CQ {cq}; {waiting} \
             others wait there"
        ),
        "call ibv_req_notify_cq(cq, 0) to be woken by any completion, or let the peer post with IBV_SEND_SOLICITED",
    )
    .because(
        "the queue was armed with solicited_only: only receives of messages that the peer marked, and failures, \
         raise an event",
    )
    .shown_by(format!("the thread has slept for {slept_ms} ms, and nobody has polled the queue meanwhile"))
}

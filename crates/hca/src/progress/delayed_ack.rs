//! Acknowledgements that wait. Over UDP an acknowledgement costs its receiver and its sender as much as the message
//! itself. A program that answers message after message at once would pay that twice for each. So its queue pair holds
//! the acknowledgement until the answer has gone, and then for another moment: the next message is mostly under way
//! already, and one acknowledgement is enough for all that came meanwhile. It is sent while the program waits, so it
//! delays neither side.
//!
//! A peer that does wait for it (it wants to know that its message has arrived before it sends the next) finds out that
//! nothing comes for a while; so does the queue pair that holds it, and from then on the acknowledgement travels with
//! the answer, as one datagram.
//!
//! Whatever else happens first sends the waiting acknowledgement: a poll that finds nothing before the program has
//! answered, the engine, which looks in every millisecond on a program that polls, a call that waits, a change of
//! state, the end of the queue pair, and the end of the process, if it is one that a process hears of. Only a process
//! that is killed (or leaves by `_exit`) in that moment never sends it.

use crate::progress::piggybacked_ack::Habit;
use crate::progress::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::tuning::{
    ACK_DELAY_MAX, ACK_DELAY_MESSAGES, ACK_WAIT_FOR_NEXT, ACKS_WITH_ANSWER_MAX, ACKS_WITH_ANSWER_MIN, nanos,
};
use transport::Time;
use wire::{Msn, Psn, Qpn};

/// The queue pair whose acknowledgement waits: one of the NIC at most, so that every thread can see without a lock that
/// none does.
#[derive(Debug, Default)]
pub(crate) struct DelayedAckOwner {
    qpn: AtomicU32,
    /// Until when a program that polls need not send it, in nanoseconds.
    due: AtomicU64,
    /// How often another queue pair would have held an acknowledgement.
    wanted: AtomicU32,
}

impl DelayedAckOwner {
    /// The queue pair whose acknowledgement waits.
    #[inline]
    pub fn get(&self) -> Option<Qpn> {
        match self.qpn.load(Ordering::Relaxed) {
            0 => None,
            qpn => Some(Qpn::new(qpn)),
        }
    }

    /// The queue pair whose acknowledgement waits, for an engine that goes to sleep: it has said so, and no
    /// acknowledgement waits that it does not see here.
    pub fn get_last(&self) -> Option<Qpn> {
        fence(Ordering::SeqCst);
        self.get()
    }

    /// Whether a poll that found nothing should send it.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.due.load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// Makes this the queue pair whose acknowledgement waits, if no other's does and the engine will look in soon.
    fn become_one(&self, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        match self.qpn.compare_exchange(0, qpn.value(), Ordering::Relaxed, Ordering::Relaxed) {
            Err(other) if other != qpn.value() => {
                self.wanted.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            _ => {}
        }
        // Pairs with `get_last`: either the engine sees the waiting acknowledgement before it sleeps, or we see that it
        // no longer looks in.
        fence(Ordering::SeqCst);
        let fine = looks_in();
        if !fine {
            self.clear();
        }
        fine
    }

    fn clear(&self) {
        self.qpn.store(0, Ordering::Relaxed);
    }
}

/// The acknowledgement that a queue pair holds for its peer.
#[derive(Debug, Default)]
pub(crate) struct DelayedAck {
    held: Option<(Psn, Msn)>,
    /// Since when, and for how many messages.
    since: Time,
    messages: u32,
    /// Whether the program answers at once.
    habit: Habit,
    /// It has done for all messages that it should do for.
    complete: bool,
    /// So many answers take the acknowledgement along, and so many will the next time.
    together: u32,
    next_together: u32,
    /// How often other queue pairs had wanted to hold one when this one was last asked.
    wanted: u32,
}

impl DelayedAck {
    /// A message has come. Whether its acknowledgement may wait: then it is to be [held](DelayedAck::hold), and if not,
    /// sent. `looks_in` says whether the engine will see to it soon.
    #[inline]
    pub fn may_hold(&mut self, delayed_ack_owner: &DelayedAckOwner, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        self.habit.came(1) && delayed_ack_owner.become_one(qpn, looks_in)
    }

    /// Takes an acknowledgement that may wait. What was held before is then part of it.
    #[inline]
    pub fn hold(&mut self, acknowledgement: (Psn, Msn), now: Time, delayed_ack_owner: &DelayedAckOwner) {
        if self.held.replace(acknowledgement).is_none() {
            (self.since, self.messages) = (now, 0);
        }
        self.messages += 1;
        // Before the program has answered, whatever else it does sends it.
        delayed_ack_owner.due.store(0, Ordering::Relaxed);
    }

    /// A request of the program's is sent. Returns what should go with it.
    #[inline]
    pub fn goes_with(&mut self, now: Time, delayed_ack_owner: &DelayedAckOwner) -> Option<(Psn, Msn)> {
        self.habit.answers();
        let held = self.held?;
        let wanted = delayed_ack_owner.wanted.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.wanted, wanted) != wanted {
            // Other queue pairs wanted to hold theirs, and could not while this one held its own.
            self.together = ACKS_WITH_ANSWER_MIN;
        }
        let owed_for = now.since(self.since);
        if self.together > 0
            || owed_for >= nanos(ACK_DELAY_MAX) + nanos(ACK_WAIT_FOR_NEXT)
            || self.messages >= ACK_DELAY_MESSAGES + ACK_DELAY_MESSAGES / 2
        {
            self.together = self.together.saturating_sub(1);
            return Some(held);
        }
        self.complete = owed_for >= nanos(ACK_DELAY_MAX) || self.messages >= ACK_DELAY_MESSAGES;
        let due = if self.complete { now } else { now.plus_nanos(nanos(ACK_WAIT_FOR_NEXT)) };
        delayed_ack_owner.due.store(due.as_nanos(), Ordering::Relaxed);
        None
    }

    /// The acknowledgement that waits.
    pub fn held(&self) -> Option<(Psn, Msn)> {
        self.held
    }

    /// It has been sent, or one that it is part of.
    #[inline]
    pub fn paid(&mut self, delayed_ack_owner: &DelayedAckOwner) {
        if self.held.take().is_some() {
            delayed_ack_owner.clear();
        }
    }

    /// The program looked for more, and there was nothing. If the waiting acknowledgement is not complete, what it
    /// waited for did not come: the answer, or a next message.
    pub fn is_idle(&mut self) {
        if self.held.is_none() {
            return;
        }
        if self.habit.is_open() {
            self.habit.asks_for_more();
        } else if self.complete {
            self.next_together = ACKS_WITH_ANSWER_MIN;
        } else {
            self.together = self.next_together.clamp(ACKS_WITH_ANSWER_MIN, ACKS_WITH_ANSWER_MAX);
            self.next_together = 2 * self.together;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::ANSWERS_IN_A_ROW;

    const QPN: Qpn = Qpn::new(17);

    /// So many nanoseconds after the beginning.
    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    /// An acknowledgement is due. Does it wait? Otherwise it is sent.
    fn takes(
        delayed_ack: &mut DelayedAck,
        delayed_ack_owner: &DelayedAckOwner,
        qpn: Qpn,
        psn: u32,
        nanos: u64,
    ) -> bool {
        let may = delayed_ack.may_hold(delayed_ack_owner, qpn, || true);
        match may {
            true => delayed_ack.hold((Psn::new(psn), Msn::new(1)), at(nanos), delayed_ack_owner),
            false => delayed_ack.paid(delayed_ack_owner),
        }
        may
    }

    /// A queue pair and what it shares with others.
    #[derive(Default)]
    struct Pair {
        delayed_ack: DelayedAck,
        delayed_ack_owner: DelayedAckOwner,
    }

    impl Pair {
        /// One that has answered so many messages at once.
        fn after(answers: u32) -> Pair {
            let mut pair = Pair::default();
            for psn in 0..answers {
                assert!(!pair.takes(psn, 0), "too few answers: {psn}");
                assert_eq!(pair.answers(0), None);
            }
            pair
        }

        fn takes(&mut self, psn: u32, nanos: u64) -> bool {
            takes(&mut self.delayed_ack, &self.delayed_ack_owner, QPN, psn, nanos)
        }

        /// The program answers. Which acknowledgement goes with it?
        fn answers(&mut self, nanos: u64) -> Option<u32> {
            let psn = self.delayed_ack.goes_with(at(nanos), &self.delayed_ack_owner).map(|(psn, _)| psn.value());
            if psn.is_some() {
                self.delayed_ack.paid(&self.delayed_ack_owner);
            }
            psn
        }

        /// The program looks for more and there is nothing. Which acknowledgement is sent?
        fn polls(&mut self, nanos: u64) -> Option<u32> {
            if self.delayed_ack_owner.get().is_none() || !self.delayed_ack_owner.is_due(at(nanos)) {
                return None;
            }
            self.delayed_ack.is_idle();
            let psn = self.delayed_ack.held().map(|(psn, _)| psn.value());
            self.delayed_ack.paid(&self.delayed_ack_owner);
            psn
        }

        /// A message comes, is answered, and nothing follows. How does its acknowledgement go?
        fn exchange(&mut self, psn: u32, at: u64) -> &'static str {
            if !self.takes(psn, at) {
                assert_eq!(self.answers(at), None);
                return "at once";
            }
            match self.answers(at) {
                Some(_) => "with the answer",
                None => {
                    assert_eq!(self.polls(at + nanos(ACK_WAIT_FOR_NEXT)), Some(psn));
                    "later"
                }
            }
        }
    }

    #[test]
    fn one_acknowledgement_is_sent_for_messages_that_were_answered_at_once() {
        for (messages, until) in [(ACK_DELAY_MESSAGES / 2, nanos(ACK_DELAY_MAX)), (ACK_DELAY_MESSAGES, 1000)] {
            let mut pair = Pair::after(ANSWERS_IN_A_ROW);
            for step in 1..messages {
                let now = u64::from(step) * until / u64::from(messages);
                assert!(pair.takes(100 + step, now));
                assert_eq!(pair.delayed_ack_owner.get(), Some(QPN));
                assert_eq!(pair.answers(now + 100), None);
                assert_eq!(pair.polls(now + 200), None, "the next message may be under way");
            }
            // The first was held at the first step.
            let last = until + nanos(ACK_DELAY_MAX) / u64::from(ACK_DELAY_MESSAGES / 2);
            assert!(pair.takes(110, last));
            assert_eq!(pair.answers(last), None);
            assert_eq!(pair.polls(last), Some(110), "it has waited long enough, or there were enough");
            assert_eq!((pair.delayed_ack_owner.get(), pair.answers(last)), (None, None));
            assert!(pair.takes(111, last));
            assert_eq!(pair.answers(last), None, "it was not in vain");
        }
    }

    #[test]
    fn who_never_finds_nothing_sends_it_with_an_answer_in_the_end() {
        let mut pair = Pair::after(ANSWERS_IN_A_ROW);
        assert!(pair.takes(100, 0));
        assert_eq!(pair.answers(100), None);
        assert!(pair.takes(101, nanos(ACK_DELAY_MAX) + nanos(ACK_WAIT_FOR_NEXT)));
        assert_eq!(pair.answers(nanos(ACK_DELAY_MAX) + nanos(ACK_WAIT_FOR_NEXT)), Some(101));
        let mut pair = Pair::after(ANSWERS_IN_A_ROW);
        for psn in 1..ACK_DELAY_MESSAGES + ACK_DELAY_MESSAGES / 2 {
            assert!(pair.takes(psn, 0));
            assert_eq!(pair.answers(0), None);
        }
        assert!(pair.takes(ACK_DELAY_MESSAGES + ACK_DELAY_MESSAGES / 2, 0));
        assert_eq!(pair.answers(0), Some(ACK_DELAY_MESSAGES + ACK_DELAY_MESSAGES / 2), "or when there are too many");
    }

    #[test]
    fn a_peer_that_stops_after_a_few_messages_has_waited_for_the_acknowledgement() {
        let mut pair = Pair::after(ANSWERS_IN_A_ROW);
        for (psn, now) in [(100, 0), (101, nanos(ACK_DELAY_MAX) / 2), (102, nanos(ACK_DELAY_MAX) - 1)] {
            assert!(pair.takes(psn, now));
            assert_eq!(pair.answers(now), None);
        }
        assert_eq!(pair.polls(nanos(ACK_DELAY_MAX) - 1 + nanos(ACK_WAIT_FOR_NEXT)), Some(102));
        assert_eq!(pair.exchange(103, 2 * nanos(ACK_DELAY_MAX)), "with the answer");
    }

    #[test]
    fn a_message_that_does_not_come_lets_acknowledgements_travel_with_answers() {
        let mut pair = Pair::after(ANSWERS_IN_A_ROW);
        let mut psn = 100;
        let mut run = |pair: &mut Pair, now| {
            let mut count = 0;
            loop {
                psn += 1;
                match pair.exchange(psn, now) {
                    "with the answer" => count += 1,
                    other => return (count, other),
                }
            }
        };
        assert_eq!(run(&mut pair, 0), (0, "later"));
        assert_eq!(run(&mut pair, 0), (ACKS_WITH_ANSWER_MIN, "later"));
        assert_eq!(run(&mut pair, 0), (2 * ACKS_WITH_ANSWER_MIN, "later"));
        for _ in 0..20 {
            run(&mut pair, 0);
        }
        assert_eq!(run(&mut pair, 0), (ACKS_WITH_ANSWER_MAX, "later"));
    }

    #[test]
    fn a_poll_that_finds_nothing_before_the_answer_ends_the_waiting() {
        let mut pair = Pair::after(ANSWERS_IN_A_ROW);
        assert!(pair.takes(100, 5));
        assert_eq!(pair.polls(5), Some(100));
        assert_eq!(pair.answers(6), None);
        assert!(!pair.takes(101, 7), "once was not enough");
    }

    #[test]
    fn a_message_that_comes_before_the_answer_to_the_last_one_ends_the_waiting() {
        let mut pair = Pair::after(ANSWERS_IN_A_ROW);
        assert!(pair.takes(100, 0));
        assert!(!pair.takes(101, 0), "sent at once, and with it what waited");
        assert_eq!((pair.delayed_ack_owner.get(), pair.answers(0)), (None, None));
    }

    #[test]
    fn nothing_waits_if_nobody_looks_in() {
        let mut pair = Pair::after(ANSWERS_IN_A_ROW);
        assert!(!pair.delayed_ack.may_hold(&pair.delayed_ack_owner, QPN, || false));
        assert_eq!(pair.delayed_ack_owner.get(), None);
    }

    #[test]
    fn only_one_owes_and_it_hurries_if_others_would() {
        let mut first = Pair::after(ANSWERS_IN_A_ROW);
        let mut second = Pair::after(ANSWERS_IN_A_ROW).delayed_ack;
        assert!(first.takes(1, 0));
        assert_eq!(first.answers(0), None);
        assert!(!takes(&mut second, &first.delayed_ack_owner, Qpn::new(99), 1, 0));
        assert_eq!(first.delayed_ack_owner.get(), Some(QPN));
        assert!(first.takes(2, 0));
        assert_eq!(first.answers(0), Some(2), "another waits for it to have paid");
        second.goes_with(at(0), &first.delayed_ack_owner);
        assert!(takes(&mut second, &first.delayed_ack_owner, Qpn::new(99), 2, 0));
    }
}

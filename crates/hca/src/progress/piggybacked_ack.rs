//! Whether a program answers what it receives. An acknowledgement costs both sides as much as a message; a program that
//! answers message after message at once would have it stand in the way of each answer. So, through shared memory, it
//! waits in the queue pair for the answer and goes along with it, in one record. Whatever else happens first sends it:
//! the program's next poll that finds nothing, the engine, which looks in every millisecond on a program that polls, a
//! change of state, the end of the queue pair, and the end of the process, if it is one that a process hears of.

use crate::tuning::ANSWERS_IN_A_ROW;
use latch::Apart;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use wire::Qpn;

/// The queue pair whose acknowledgements may wait: one of the NIC at most, so that every thread can see without a lock
/// that none does.
#[derive(Debug, Default)]
pub(crate) struct PiggybackOwner {
    /// Its number. Once it has been asked whether the engine looks in, it need not ask again: the engine strikes it out
    /// before it stops, and then takes the queue pair's lock.
    qpn: AtomicU32,
    /// The thread that takes what comes for it.
    thread: AtomicUsize,
    /// One waits now. Written with every message: other threads leave it alone.
    owes: Apart<AtomicBool>,
}

impl PiggybackOwner {
    /// The queue pair whose acknowledgement waits, if this thread is to send it.
    #[inline]
    pub fn get_here(&self) -> Option<Qpn> {
        if self.thread.load(Ordering::Relaxed) == latch::this_thread() { self.get() } else { None }
    }

    /// Whose acknowledgement waits.
    #[inline]
    pub fn get(&self) -> Option<Qpn> {
        if self.owes.0.load(Ordering::Relaxed) { Some(Qpn::new(self.qpn.load(Ordering::Relaxed))) } else { None }
    }

    /// Strikes out the queue pair whose acknowledgements may wait, and answers which that was: its acknowledgement is
    /// to be sent now, if one waits.
    pub fn strike(&self) -> Option<Qpn> {
        // Pairs with the one below: either the waiting acknowledgement is seen here, or it is seen there that the
        // engine no longer looks in.
        fence(Ordering::SeqCst);
        match self.qpn.load(Ordering::Relaxed) {
            0 => None,
            qpn => {
                self.qpn.store(0, Ordering::Relaxed);
                Some(Qpn::new(qpn))
            }
        }
    }

    /// An acknowledgement of this queue pair's, whose lock the caller holds, waits from now on, if it may: no other
    /// queue pair's does, and the engine will look in soon.
    #[inline]
    fn owe(&self, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        let known = self.qpn.load(Ordering::Relaxed) == qpn.value();
        if !known && !self.become_one(qpn, looks_in) {
            return false;
        }
        self.owes.0.store(true, Ordering::Relaxed);
        true
    }

    #[cold]
    fn become_one(&self, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        if self.qpn.compare_exchange(0, qpn.value(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        self.thread.store(latch::this_thread(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let fine = looks_in();
        if !fine {
            self.qpn.store(0, Ordering::Relaxed);
        }
        fine
    }
}

/// Whether a program answers messages at once, by what it did so far.
#[derive(Debug, Default)]
pub(crate) struct Habit {
    /// Messages in a row that it answered before the next one came, and before it asked for more.
    answered: u32,
    /// One has come and was not answered yet.
    open: bool,
}

impl Habit {
    /// Whether the program has answered enough messages to be expected to answer the next one.
    #[inline]
    pub fn is_expected(&self) -> bool {
        self.answered >= ANSWERS_IN_A_ROW
    }

    /// Whether a message waits for its answer.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// So many messages have come at once. Returns whether their acknowledgement may wait.
    #[inline]
    pub fn came(&mut self, messages: u32) -> bool {
        if messages > 0 && (std::mem::replace(&mut self.open, true) || messages > 1) {
            self.answered = 0;
        }
        self.is_expected()
    }

    /// The program has posted requests, which answer what came.
    #[inline]
    pub fn answers(&mut self) {
        if std::mem::take(&mut self.open) {
            self.answered = self.answered.saturating_add(1);
        }
    }

    /// The program asks for more.
    #[inline]
    pub fn asks_for_more(&mut self) {
        if self.open {
            self.answered = 0;
        }
    }
}

/// The acknowledgement of a queue pair that waits for an answer.
#[derive(Debug, Default)]
pub(crate) struct PiggybackedAck {
    pub habit: Habit,
    /// One waits.
    waits: bool,
}

impl PiggybackedAck {
    /// Lets the acknowledgement of what came wait, if it may.
    #[inline]
    pub fn wait(&mut self, qpn: Qpn, piggyback_owner: &PiggybackOwner, looks_in: impl FnOnce() -> bool) -> bool {
        let may = piggyback_owner.owe(qpn, looks_in);
        if !may {
            // One that waited goes now, too.
            self.ends(piggyback_owner);
        }
        self.waits = may;
        may
    }

    /// It has gone, or is about to. Returns whether one waited.
    #[inline]
    pub fn ends(&mut self, piggyback_owner: &PiggybackOwner) -> bool {
        let waited = std::mem::take(&mut self.waits);
        if waited {
            piggyback_owner.owes.0.store(false, Ordering::Relaxed);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piggyback(messages: u32) -> PiggybackedAck {
        let mut piggyback = PiggybackedAck::default();
        for _ in 0..messages {
            assert!(!piggyback.habit.came(1), "too few answers");
            piggyback.habit.answers();
            piggyback.habit.asks_for_more();
        }
        piggyback
    }

    #[test]
    fn an_acknowledgement_waits_once_enough_messages_were_answered_at_once() {
        assert!(piggyback(ANSWERS_IN_A_ROW).habit.came(1));
    }

    #[test]
    fn one_who_asks_for_more_before_it_answers_starts_anew() {
        let mut piggyback = piggyback(ANSWERS_IN_A_ROW);
        piggyback.habit.came(1);
        piggyback.habit.asks_for_more();
        piggyback.habit.answers();
        assert!(!piggyback.habit.came(1));
    }

    #[test]
    fn messages_that_come_together_or_before_an_answer_are_not_answered_at_once() {
        assert!(!piggyback(ANSWERS_IN_A_ROW).habit.came(2));
        let mut piggyback = piggyback(ANSWERS_IN_A_ROW);
        assert!(piggyback.habit.came(1));
        assert!(!piggyback.habit.came(1));
    }

    #[test]
    fn one_queue_pair_may_owe_and_only_while_somebody_looks_in() {
        let piggyback_owner = PiggybackOwner::default();
        let (mut first, mut second) = (piggyback(ANSWERS_IN_A_ROW), piggyback(ANSWERS_IN_A_ROW));
        assert!(!first.wait(Qpn::new(1), &piggyback_owner, || false));
        assert_eq!(piggyback_owner.get(), None);
        assert!(first.wait(Qpn::new(1), &piggyback_owner, || true));
        assert!(!second.wait(Qpn::new(2), &piggyback_owner, || true));
        assert_eq!((piggyback_owner.get(), piggyback_owner.get_here()), (Some(Qpn::new(1)), Some(Qpn::new(1))));
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(piggyback_owner.get_here(), None)).join().unwrap());
        assert!(first.ends(&piggyback_owner) && !first.ends(&piggyback_owner));
        assert_eq!(piggyback_owner.get(), None);
        assert!(first.wait(Qpn::new(1), &piggyback_owner, || panic!("it was asked before")));
        assert_eq!((piggyback_owner.strike(), piggyback_owner.strike()), (Some(Qpn::new(1)), None));
        assert!(!first.wait(Qpn::new(1), &piggyback_owner, || false), "it must ask anew");
        assert_eq!(piggyback_owner.get(), None, "what waited before goes with what may not");
        assert!(second.wait(Qpn::new(2), &piggyback_owner, || true));
    }
}

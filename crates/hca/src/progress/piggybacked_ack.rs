//! Whether a program answers what it receives. An acknowledgement costs both sides as much as a message; a program that
//! answers message after message at once would have it stand in the way of each answer. So, through shared memory, it
//! waits in the queue pair for the answer and goes along with it, in one record. Whatever else happens first sends it:
//! the thread's next poll that finds nothing, the engine, which looks in every millisecond on a program that polls, a
//! change of state, the end of the queue pair, and the end of the process, if it is one that a process hears of.

use crate::tuning::ANSWERS_IN_A_ROW;
use latch::{Apart, STRIPE_COUNT};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use wire::Qpn;

/// The queue pairs whose acknowledgements may wait: one of each thread that polls, so that a thread sees by a load of a
/// line of its own that none does.
#[derive(Debug, Default)]
pub(crate) struct PiggybackOwners {
    owners: [Apart<PiggybackOwner>; STRIPE_COUNT],
}

/// The queue pair of one thread whose acknowledgement may wait.
#[derive(Debug, Default)]
struct PiggybackOwner {
    /// Its number. Once it has been asked whether the engine looks in, it need not ask again: the engine strikes it out
    /// before it stops, and then takes the queue pair's lock.
    qpn: AtomicU32,
    /// The thread that takes what comes for it: no other lets acknowledgements wait here.
    thread: AtomicUsize,
    /// One waits now.
    owes: AtomicBool,
}

impl PiggybackOwners {
    /// The queue pair whose acknowledgement waits for this thread to answer.
    #[inline]
    pub fn of_this_thread(&self) -> Option<Qpn> {
        self.owners[latch::stripe()].0.waiting()
    }

    /// The queue pair whose acknowledgement waits for the thread of this stripe.
    pub fn of_stripe(&self, stripe: usize) -> Option<Qpn> {
        self.owners.get(stripe)?.0.waiting()
    }

    /// Whether one waits.
    pub fn any(&self) -> bool {
        self.owners.iter().any(|owner| owner.0.waiting().is_some())
    }

    /// Strikes out the queue pairs whose acknowledgements may wait, and answers which they were: their acknowledgements
    /// are to be sent now, if they wait.
    pub fn strike(&self) -> impl Iterator<Item = Qpn> {
        // Pairs with the one below: either the waiting acknowledgement is seen here, or it is seen there that the
        // engine no longer looks in.
        fence(Ordering::SeqCst);
        self.owners.iter().filter_map(|owner| owner.0.strike())
    }
}

impl PiggybackOwner {
    #[inline]
    fn waiting(&self) -> Option<Qpn> {
        if self.owes.load(Ordering::Relaxed) { Some(Qpn::new(self.qpn.load(Ordering::Relaxed))) } else { None }
    }

    fn strike(&self) -> Option<Qpn> {
        if self.qpn.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.qpn.swap(0, Ordering::Relaxed) {
            0 => None,
            qpn => Some(Qpn::new(qpn)),
        }
    }

    /// An acknowledgement of this queue pair's, whose lock the caller holds, waits from now on, if it may: none of
    /// another queue pair does, and the engine will look in soon.
    #[inline]
    fn owe(&self, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        let known = self.thread.load(Ordering::Relaxed) == latch::this_thread()
            && self.qpn.load(Ordering::Relaxed) == qpn.value();
        if !known && !self.become_one(qpn, looks_in) {
            return false;
        }
        self.owes.store(true, Ordering::Relaxed);
        true
    }

    #[cold]
    fn become_one(&self, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        let (before, me) = (self.qpn.load(Ordering::Relaxed), latch::this_thread());
        if before != 0 {
            // The thread's queue pairs take turns. One that was not struck out need not be asked about.
            return self.thread.load(Ordering::Relaxed) == me
                && !self.owes.load(Ordering::Relaxed)
                && self.qpn.compare_exchange(before, qpn.value(), Ordering::Relaxed, Ordering::Relaxed).is_ok();
        }
        if self.qpn.compare_exchange(0, qpn.value(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        self.thread.store(me, Ordering::Relaxed);
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
    /// One waits, for the thread of this stripe.
    waits: Option<usize>,
}

impl PiggybackedAck {
    /// Lets the acknowledgement of what came wait, if it may.
    #[inline]
    pub fn wait(&mut self, qpn: Qpn, owners: &PiggybackOwners, looks_in: impl FnOnce() -> bool) -> bool {
        let stripe = latch::stripe();
        let may = owners.owners[stripe].0.owe(qpn, looks_in);
        if self.waits != Some(stripe) || !may {
            // One that waited goes now, too, or waits with this one.
            self.ends(owners);
        }
        if may {
            self.waits = Some(stripe);
        }
        may
    }

    /// It has gone, or is about to. Returns whether one waited.
    #[inline]
    pub fn ends(&mut self, owners: &PiggybackOwners) -> bool {
        let waited = self.waits.take();
        if let Some(owner) = waited.and_then(|stripe| owners.owners.get(stripe)) {
            owner.0.owes.store(false, Ordering::Relaxed);
        }
        waited.is_some()
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
    fn one_queue_pair_of_a_thread_may_owe_and_only_while_the_engine_looks_in() {
        let owners = PiggybackOwners::default();
        let (mut first, mut second) = (piggyback(ANSWERS_IN_A_ROW), piggyback(ANSWERS_IN_A_ROW));
        assert!(!first.wait(Qpn::new(1), &owners, || false));
        assert!(!owners.any());
        assert!(first.wait(Qpn::new(1), &owners, || true));
        assert!(!second.wait(Qpn::new(2), &owners, || true));
        assert_eq!(owners.of_this_thread(), Some(Qpn::new(1)));
        assert!(first.ends(&owners) && !first.ends(&owners));
        assert_eq!((owners.of_this_thread(), owners.any()), (None, false));
        assert!(first.wait(Qpn::new(1), &owners, || panic!("it was asked before")));
        assert_eq!(owners.strike().collect::<Vec<_>>(), [Qpn::new(1)]);
        assert_eq!(owners.strike().next(), None);
        assert!(!first.wait(Qpn::new(1), &owners, || false), "it must ask anew");
        assert!(!owners.any(), "what waited before goes with what may not");
        assert!(second.wait(Qpn::new(2), &owners, || true));
    }

    #[test]
    fn queue_pairs_of_one_thread_take_turns() {
        let owners = PiggybackOwners::default();
        let (mut first, mut second) = (piggyback(ANSWERS_IN_A_ROW), piggyback(ANSWERS_IN_A_ROW));
        assert!(first.wait(Qpn::new(1), &owners, || true));
        assert!(first.ends(&owners));
        assert!(second.wait(Qpn::new(2), &owners, || panic!("it was asked before")));
        assert_eq!(owners.of_this_thread(), Some(Qpn::new(2)));
        assert_eq!(owners.strike().collect::<Vec<_>>(), [Qpn::new(2)]);
    }

    #[test]
    fn threads_that_poll_for_queue_pairs_of_their_own_do_not_see_each_other() {
        let owners = PiggybackOwners::default();
        let (mut first, mut second) = (piggyback(ANSWERS_IN_A_ROW), piggyback(ANSWERS_IN_A_ROW));
        assert!(first.wait(Qpn::new(1), &owners, || true));
        std::thread::scope(|scope| {
            let other = || {
                assert_eq!(owners.of_this_thread(), None);
                assert!(second.wait(Qpn::new(2), &owners, || true));
                assert_eq!(owners.of_this_thread(), Some(Qpn::new(2)));
                // It polls for the first one, too, from now on.
                assert!(!first.wait(Qpn::new(1), &owners, || true), "another one's waits");
                assert!(second.ends(&owners) && first.wait(Qpn::new(1), &owners, || true));
            };
            scope.spawn(other).join().unwrap();
        });
        assert_eq!(owners.of_this_thread(), None, "it waits for the other thread");
        assert!(owners.any() && first.ends(&owners) && !owners.any());
    }
}

//! Acknowledgements that wait a moment to travel with an answer. Over UDP an acknowledgement costs its receiver and its sender as much as the message
//! itself. A program that answers message after message at once would pay that twice for each, so its queue pair owes the acknowledgement until
//! the answer is posted, and both go as one datagram. Whatever else happens first pays the debt: the program's next poll that finds nothing,
//! the engine, which looks in every millisecond on a program that polls, a change of state, the end of the queue pair, and the end of the process,
//! if it is one that a process hears of. Only who is killed (or leaves by `_exit`) in that moment takes the acknowledgement along.

use crate::sync::{AtomicU32, Ordering, fence};
use link::udp::Cargo;
use wire::{Headers, Operation, Qpn, Syndrome};

/// Messages in a row that were answered at once, before an acknowledgement waits for an answer.
const ENOUGH: u32 = 16;

/// Who owes: one queue pair of the NIC at most, so that everybody can see without a lock that nobody does.
#[derive(Debug, Default)]
pub(crate) struct Debtor(AtomicU32);

impl Debtor {
    /// Who owes something.
    #[inline]
    pub fn get(&self) -> Option<Qpn> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            qpn => Some(Qpn::new(qpn)),
        }
    }

    /// The same for an engine that goes to sleep: it has said so, and a debt that it does not see here is not made.
    pub fn get_last(&self) -> Option<Qpn> {
        fence(Ordering::SeqCst);
        self.get()
    }

    /// Becomes the one who owes, if nobody else does and somebody will look in soon.
    fn become_one(&self, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        match self.0.compare_exchange(0, qpn.value(), Ordering::Relaxed, Ordering::Relaxed) {
            Err(other) if other != qpn.value() => return false,
            _ => {}
        }
        // Pairs with `get_last`: either the engine sees the debt before it sleeps, or we see that it no longer looks in.
        fence(Ordering::SeqCst);
        let fine = looks_in();
        if !fine {
            self.clear();
        }
        fine
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// What a queue pair owes its peer.
#[derive(Debug, Default)]
pub(crate) struct Debt {
    held: Option<Headers>,
    /// Messages in a row that the program answered before the next one came.
    answered: u32,
    /// One has come and was not answered yet.
    open: bool,
}

impl Debt {
    /// Takes the acknowledgement, if it is one and may wait for an answer. What was held before is then part of it. `looks_in` says whether the engine
    /// will see to it soon.
    pub fn takes(&mut self, headers: &Headers, debtor: &Debtor, qpn: Qpn, looks_in: impl FnOnce() -> bool) -> bool {
        let acknowledges = headers.bth.opcode.operation() == Operation::Acknowledge;
        if !acknowledges || !matches!(headers.aeth.map(|aeth| aeth.syndrome), Some(Syndrome::Ack { .. })) {
            return false;
        }
        if std::mem::replace(&mut self.open, true) {
            self.answered = 0;
        }
        if self.answered < ENOUGH || !debtor.become_one(qpn, looks_in) {
            // What was held is part of what is sent now.
            self.paid(debtor);
            return false;
        }
        self.held = Some(*headers);
        true
    }

    /// A train is sent. If it is a request of the program's, answers what should go with it: others do not answer anything.
    pub fn goes_with(&mut self, headers: &Headers) -> Option<&Headers> {
        if !headers.bth.opcode.is_request() {
            return None;
        }
        if std::mem::replace(&mut self.open, false) {
            self.answered = self.answered.saturating_add(1);
        }
        self.held.as_ref()
    }

    /// What is owed and waits.
    pub fn held(&self) -> Option<&Headers> {
        self.held.as_ref()
    }

    /// It has been sent.
    pub fn paid(&mut self, debtor: &Debtor) {
        if self.held.take().is_some() {
            debtor.clear();
        }
    }

    /// The program looked for more before it answered.
    pub fn was_in_vain(&mut self) {
        self.answered = 0;
    }
}

/// Nothing but an acknowledgement.
pub(crate) struct Alone<'a>(pub &'a Headers);

impl Cargo for Alone<'_> {
    type Error = std::convert::Infallible;

    fn count(&self) -> u32 {
        1
    }

    fn packet(&self, _: u32) -> (Headers, usize) {
        (*self.0, 0)
    }

    fn payload(&mut self, _: u32, _: &mut [u8]) -> Result<(), Self::Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Aeth, Msn, NakCode, Opcode, Psn};

    const QPN: Qpn = Qpn::new(17);

    fn answer(psn: u32, syndrome: Syndrome) -> Headers {
        let mut headers = Headers::new(Opcode::RcAcknowledge, QPN, Psn::new(psn));
        headers.aeth = Some(Aeth { syndrome, msn: Msn::new(1) });
        headers
    }

    fn acknowledgement(psn: u32) -> Headers {
        answer(psn, Syndrome::ACK)
    }

    fn request() -> Headers {
        Headers::new(Opcode::RcSendOnly, QPN, Psn::new(1))
    }

    /// One that has answered so many messages at once.
    fn debt(answers: u32, debtor: &Debtor) -> Debt {
        let mut debt = Debt::default();
        for psn in 0..answers {
            assert!(!debt.takes(&acknowledgement(psn), debtor, QPN, || true), "too few answers: {psn}");
            assert!(debt.goes_with(&request()).is_none());
        }
        debt
    }

    #[test]
    fn an_acknowledgement_waits_once_enough_messages_were_answered_at_once() {
        let debtor = Debtor::default();
        let mut debt = debt(ENOUGH, &debtor);
        assert!(debt.takes(&acknowledgement(100), &debtor, QPN, || true));
        assert_eq!(debtor.get(), Some(QPN));
        let held = debt.goes_with(&request()).map(|headers| headers.bth.psn.value());
        assert_eq!(held, Some(100));
        debt.paid(&debtor);
        assert_eq!((debtor.get(), debt.goes_with(&request())), (None, None));
    }

    #[test]
    fn a_message_that_comes_before_the_answer_to_the_last_one_ends_the_waiting() {
        let debtor = Debtor::default();
        let mut debt = debt(ENOUGH, &debtor);
        assert!(debt.takes(&acknowledgement(100), &debtor, QPN, || true));
        assert!(!debt.takes(&acknowledgement(101), &debtor, QPN, || true), "sent at once, and with it what waited");
        assert_eq!((debtor.get(), debt.goes_with(&request())), (None, None));
    }

    #[test]
    fn nothing_waits_if_nobody_looks_in_or_another_owes() {
        let debtor = Debtor::default();
        let mut first = debt(ENOUGH, &debtor);
        assert!(!first.takes(&acknowledgement(1), &debtor, QPN, || false));
        assert_eq!(debtor.get(), None);
        let mut first = debt(ENOUGH, &debtor);
        assert!(first.takes(&acknowledgement(1), &debtor, Qpn::new(99), || true));
        let mut second = debt(ENOUGH, &debtor);
        assert!(!second.takes(&acknowledgement(1), &debtor, QPN, || true));
        assert_eq!(debtor.get(), Some(Qpn::new(99)));
    }

    #[test]
    fn refusals_and_answers_never_wait() {
        let debtor = Debtor::default();
        let mut debt = debt(ENOUGH, &debtor);
        let refusal = answer(1, Syndrome::Nak(NakCode::SequenceError));
        assert!(!debt.takes(&refusal, &debtor, QPN, || true));
        let response = Headers::new(Opcode::RcReadResponseOnly, QPN, Psn::new(1));
        assert!(!debt.takes(&response, &debtor, QPN, || true));
        assert!(debt.takes(&acknowledgement(1), &debtor, QPN, || true));
        assert!(debt.goes_with(&response).is_none());
    }
}

//! Calls of programs that a sanitizer judges: what they post and poll is entered in a ledger on the way.

use crate::nic::Nic;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::shared_queue::SharedQueue;
use crate::queue_pair::Qp;
use std::sync::Arc;
use transport::{Completion, PostError, ReceiveRequest, SendRequest};
use wire::access::Subject;
use wire::{Qpn, Srqn};

impl Nic {
    /// Has reports of sanitizers name work requests and peers.
    pub(crate) fn name_judged_work(self: &Arc<Nic>) {
        let nic = Arc::downgrade(self);
        latch::sanitizer::name_work_by(move |qpn, address, remote| {
            nic.upgrade().map(|nic| nic.ground.ledger.name(Qpn::new(qpn), address, remote))
        });
    }

    /// Posts sends of a program that a sanitizer judges.
    pub fn post_judged_sends(
        &self,
        qp: &Qp,
        requests: &[SendRequest<'_>],
        post: impl FnOnce() -> Result<(), (usize, PostError)>,
    ) -> Result<(), (usize, PostError)> {
        let (subject, peer) = qp.judged();
        self.ground.ledger.sends(&self.ground.memory, subject, peer, requests);
        let posted = post();
        if let Err((index, _)) = posted {
            self.ground.ledger.refused_sends(qp.qpn(), requests.len() - index);
        }
        posted
    }

    /// Posts a receive of a program that a sanitizer judges.
    pub fn post_judged_receive<E>(
        &self,
        qp: &Qp,
        request: &ReceiveRequest<'_>,
        post: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let (subject, peer) = qp.judged();
        self.ground.ledger.note_peer(subject.qpn, peer);
        self.judge_receive(subject, None, request, post)
    }

    /// Posts a receive of such a program to a shared queue.
    pub fn post_judged_shared<E>(
        &self,
        queue: &SharedQueue,
        request: &ReceiveRequest<'_>,
        post: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let subject = Subject { qpn: Qpn::new(0), pd: queue.domain(), remote: false };
        self.judge_receive(subject, Some(queue.number()), request, post)
    }

    fn judge_receive<E>(
        &self,
        subject: Subject,
        srqn: Option<Srqn>,
        request: &ReceiveRequest<'_>,
        post: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.ground.ledger.receives(&self.ground.memory, subject, srqn, std::slice::from_ref(request));
        let posted = post();
        if posted.is_err() {
            self.ground.ledger.refused_receives(subject.qpn, srqn, 1);
        }
        posted
    }

    /// Polls for a program that a sanitizer judges, like [`poll`](Nic::poll).
    pub fn poll_judged(&self, cq: &CompletionQueue, room: usize, mut take: impl FnMut(&Completion, u64)) -> usize {
        let mut completions = Vec::new();
        let taken = self.poll(cq, room, |completion, at| {
            completions.push(*completion);
            take(completion, at);
        });
        // Now no lock is held.
        self.ground.ledger.told(&completions);
        taken
    }

    /// What was posted to a queue pair that is reset does not complete any more.
    pub fn forget_judged(&self, qp: &Qp) {
        self.ground.ledger.forget(qp.qpn(), false);
    }
}

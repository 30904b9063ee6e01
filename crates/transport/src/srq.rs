//! A shared receive queue: receives that any queue pair attached to it may take. It counts what is left and says once
//! when that falls below a limit. Sans-IO like the queue pair: the NIC owns it, locks it, and carries its event to the
//! program.

use crate::receive::ReceiveQueue;
use crate::work::ReceiveWork;
use crate::work::{PostError, ReceiveRequest};
use wire::access::ProtectionDomain;
use wire::{Srqn, refuse_if};

/// Receives shared by queue pairs.
///
/// # The limit
/// [`set_limit`](SharedReceiveQueue::set_limit) arms it. The first time the queue is asked for a receive and holds
/// fewer than the limit afterwards, the event is raised and the limit falls back to 0, disarmed (IBA 10.2.9,
/// `ibv_modify_srq`). Arming does not raise it by itself, even if the queue is already that low: devices differ there,
/// and a program that arms before it posts must not be told at once. A queue that was asked and had nothing to give
/// counts as asked.
#[derive(Debug)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    srqn: Srqn,
    pd: ProtectionDomain,
    queue: ReceiveQueue,
    limit: u32,
    limit_reached: bool,
}

/// What a shared receive queue tells its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SrqEvent {
    /// Fewer receives are left than the limit.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    LimitReached,
}

/// What a query answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttributes {
    /// How many receives may wait.
    pub max_wr: u32,
    /// How many pieces each may have.
    pub max_sge: u32,
    /// The armed limit, 0 if none is.
    pub limit: u32,
}

/// What a program asks to change. `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_modify_srq")]
pub struct SrqModify {
    /// How many receives may wait.
    pub max_wr: Option<u32>,
    /// The limit to arm, 0 to disarm.
    pub limit: Option<u32>,
}

/// Why a shared receive queue may not be modified as asked. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SrqError {
    /// The queue could never hold as many.
    #[error("a limit of {limit} cannot be reached from above in a shared receive queue of {max_wr} work requests")]
    LimitTooHigh {
        /// The limit.
        limit: u32,
        /// The queue's size.
        max_wr: u32,
    },
    /// What is posted would not fit.
    #[error("{outstanding} receives are outstanding, more than the {max_wr} the shared receive queue would hold")]
    TooSmall {
        /// The size asked for.
        max_wr: u32,
        /// What is posted.
        outstanding: u32,
    },
    /// A failure script lets the call fail.
    #[error(transparent)]
    Injected(#[from] crate::InjectedError),
}

impl SharedReceiveQueue {
    /// An empty queue for `max_wr` receives of up to `max_sge` pieces.
    pub fn new(srqn: Srqn, pd: ProtectionDomain, max_wr: u32, max_sge: u32) -> SharedReceiveQueue {
        let queue = ReceiveQueue::named("shared receive", max_wr, max_sge);
        SharedReceiveQueue { srqn, pd, queue, limit: 0, limit_reached: false }
    }

    /// Its number.
    pub fn srqn(&self) -> Srqn {
        self.srqn
    }

    /// Its protection domain, which the keys of its receives belong to.
    pub fn pd(&self) -> ProtectionDomain {
        self.pd
    }

    /// How many receives wait.
    pub fn len(&self) -> u32 {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a receive.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        self.queue.post(request)
    }

    /// Takes the oldest receive into `into`, reusing both allocations. False if there is none.
    pub fn take(&mut self, into: &mut ReceiveWork) -> bool {
        let taken = self.queue.take(into);
        if self.queue.len() < self.limit {
            self.limit = 0;
            self.limit_reached = true;
        }
        taken
    }

    /// The next event to report, once each.
    pub fn poll_event(&mut self) -> Option<SrqEvent> {
        core::mem::take(&mut self.limit_reached).then_some(SrqEvent::LimitReached)
    }

    /// Arms the limit; 0 disarms it. An event already raised stays raised.
    pub fn set_limit(&mut self, limit: u32) -> Result<(), SrqError> {
        self.modify(&SrqModify { limit: Some(limit), ..SrqModify::default() })
    }

    /// Changes how many receives may wait.
    pub fn resize(&mut self, max_wr: u32) -> Result<(), SrqError> {
        self.modify(&SrqModify { max_wr: Some(max_wr), ..SrqModify::default() })
    }

    /// Changes both, or neither if either cannot be.
    pub fn modify(&mut self, modify: &SrqModify) -> Result<(), SrqError> {
        let max_wr = modify.max_wr.unwrap_or(self.queue.capacity());
        let limit = modify.limit.unwrap_or(self.limit);
        refuse_if!(max_wr < self.queue.len(), SrqError::TooSmall { max_wr, outstanding: self.queue.len() });
        refuse_if!(limit > max_wr, SrqError::LimitTooHigh { limit, max_wr });
        self.queue.set_capacity(max_wr);
        self.limit = limit;
        Ok(())
    }

    /// What it holds at most, and the armed limit.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> SrqAttributes {
        SrqAttributes { max_wr: self.queue.capacity(), max_sge: self.queue.max_sge(), limit: self.limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn queue(max_wr: u32, posted: u64) -> SharedReceiveQueue {
        let mut srq = SharedReceiveQueue::new(Srqn::new(1), ProtectionDomain(1), max_wr, 1);
        for wr_id in 0..posted {
            srq.post(&ReceiveRequest { wr_id, sges: &[] }).unwrap();
        }
        srq
    }

    #[test]
    fn the_limit_event_comes_once_when_the_count_falls_below_it() {
        let mut srq = queue(10, 5);
        srq.set_limit(3).unwrap();
        let mut work = ReceiveWork::default();
        for wr_id in 0..2 {
            assert!(srq.take(&mut work));
            assert_eq!((work.wr_id, srq.poll_event()), (wr_id, None), "{} left are not below 3", srq.len());
        }
        assert!(srq.take(&mut work));
        assert_eq!(srq.poll_event(), Some(SrqEvent::LimitReached));
        assert_eq!(srq.query().limit, 0, "disarmed");
        while srq.take(&mut work) {
            assert_eq!(srq.poll_event(), None);
        }
    }

    #[test]
    fn a_limit_armed_too_late_fires_at_the_next_take_and_not_before() {
        let mut srq = queue(10, 2);
        srq.set_limit(5).unwrap();
        assert_eq!(srq.poll_event(), None);
        assert!(srq.take(&mut ReceiveWork::default()));
        assert_eq!(srq.poll_event(), Some(SrqEvent::LimitReached));

        let mut empty = queue(10, 0);
        empty.set_limit(1).unwrap();
        assert!(!empty.take(&mut ReceiveWork::default()));
        assert_eq!(empty.poll_event(), Some(SrqEvent::LimitReached), "asked in vain is asked");
    }

    #[test]
    fn a_disarmed_or_full_enough_queue_says_nothing() {
        let mut srq = queue(4, 4);
        srq.set_limit(4).unwrap();
        srq.set_limit(0).unwrap();
        assert!(srq.take(&mut ReceiveWork::default()));
        assert_eq!(srq.poll_event(), None);
        srq.set_limit(2).unwrap();
        assert!(srq.take(&mut ReceiveWork::default()));
        assert_eq!((srq.len(), srq.poll_event()), (2, None));
    }

    #[test]
    fn limit_and_size_bound_each_other_and_change_together_or_not_at_all() {
        let mut srq = queue(4, 3);
        assert_eq!(srq.set_limit(4), Ok(()));
        assert_eq!(srq.set_limit(5), Err(SrqError::LimitTooHigh { limit: 5, max_wr: 4 }));
        assert_eq!(srq.resize(3), Err(SrqError::LimitTooHigh { limit: 4, max_wr: 3 }));
        let both = SrqModify { max_wr: Some(2), limit: Some(0) };
        assert_eq!(srq.modify(&both), Err(SrqError::TooSmall { max_wr: 2, outstanding: 3 }));
        assert_eq!(srq.query(), SrqAttributes { max_wr: 4, max_sge: 1, limit: 4 });
        let both = SrqModify { max_wr: Some(3), limit: Some(3) };
        assert_eq!(srq.modify(&both), Ok(()));
        assert_eq!(srq.query(), SrqAttributes { max_wr: 3, max_sge: 1, limit: 3 });
        let full = srq.post(&ReceiveRequest { wr_id: 9, sges: &[] }).unwrap_err();
        assert_eq!(full.to_string(), "the shared receive queue is full: 3 work requests are outstanding");
        assert_eq!(srq.resize(8), Ok(()));
        for wr_id in 3..8 {
            assert_eq!(srq.post(&ReceiveRequest { wr_id, sges: &[] }), Ok(()));
        }
        let mut work = ReceiveWork::default();
        for wr_id in 0..8 {
            assert!(srq.take(&mut work) && work.wr_id == wr_id, "order survives a resize");
        }
    }
}

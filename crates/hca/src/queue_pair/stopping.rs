//! Queue pairs that stop: why, and who is told.

use super::Qp;
use crate::ground::Ground;
use crate::objects::completion_queue::Observer;
use std::sync::atomic::Ordering;
use transport::{State, Stop};

impl Qp {
    /// What stopped it, while it is in an error state.
    pub fn stop(&self) -> Option<Stop> {
        self.inner.lock().pair.stop()
    }

    /// Calls `observer` once when it goes to ERR, in whichever thread drives, with no lock held. There can be one.
    pub(crate) fn set_stop_observer(&self, observer: impl Fn() + Send + Sync + 'static) {
        if self.stop_observer.set(Observer(Box::new(observer))).is_ok() {
            // Under the lock: who stops it later sees that there is an observer.
            let _inner = self.inner.lock();
            self.tells_stop.store(true, Ordering::Relaxed);
        }
    }

    /// Its connection has ended: everything outstanding is flushed.
    pub(crate) fn end_connection(&self, nic: &Ground) {
        let mut inner = self.inner.lock();
        self.flush_acks(nic, &mut inner);
        let now = nic.now();
        let (pair, mut port) = self.split(nic, &mut inner);
        pair.disconnect(now, &mut port);
        self.drive(nic, &mut inner, now);
        self.leave(nic, inner);
    }

    /// Tells the observer if the queue pair has stopped. Called with no lock held.
    pub(crate) fn tell_of_stop(&self) {
        if self.tells_stop.load(Ordering::Relaxed)
            && self.state() == State::Error
            && self.tells_stop.swap(false, Ordering::AcqRel)
            && let Some(Observer(observer)) = self.stop_observer.get()
        {
            observer();
        }
    }
}

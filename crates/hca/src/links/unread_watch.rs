//! Peers whose programs are said to poll, and have not taken one-sided work: after a while their engines are rung for.

use crate::tuning::{UNREAD_RING_AFTER, nanos};
use latch::{Mutex, Rank};
use link::shared::Outbound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::Time;

/// One-sided work for peers whose programs are said to poll. A program that spins on memory instead makes no call at
/// all.
#[derive(Debug)]
pub(crate) struct UnreadWatch {
    any: AtomicBool,
    waiting: Mutex<Vec<Unread>>,
}

impl Default for UnreadWatch {
    fn default() -> UnreadWatch {
        UnreadWatch { any: AtomicBool::new(false), waiting: Mutex::new(Rank::Unread, Vec::new()) }
    }
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

impl UnreadWatch {
    pub fn wait_for(&self, link: &Arc<Outbound>, position: u64, now: Time) {
        let mut waiting = self.waiting.lock();
        match waiting.iter_mut().find(|unread| Arc::ptr_eq(&unread.link, link)) {
            Some(unread) => unread.latest = position,
            None => waiting.push(Unread { link: Arc::clone(link), position, since: now, latest: position }),
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether a peer is waited for.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Rings for the engines of peers that have not taken what was written for them.
    pub fn check(&self, now: Time) {
        let mut waiting = self.waiting.lock();
        waiting.retain_mut(|unread| {
            if now.since(unread.since) < nanos(UNREAD_RING_AFTER) {
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

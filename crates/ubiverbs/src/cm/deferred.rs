//! Things to do a moment later, and a thread that lives while there are any.

use latch::lock;
use seam::environment;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How much later: long enough for a thread at work to come round once more, on a busy machine too.
const FLUSH_DELAY: Duration = Duration::from_millis(100);

type Work = Arc<dyn Fn() + Send + Sync>;

/// What is to be done, soonest first.
#[derive(Default)]
pub(crate) struct Deferred {
    works: Mutex<VecDeque<(Instant, Work)>>,
}

impl Deferred {
    /// Does something a moment later.
    pub fn push(self: &Arc<Deferred>, work: impl Fn() + Send + Sync + 'static) {
        let work: Work = Arc::new(work);
        if let Some(environment) = environment::current() {
            let work = Arc::clone(&work);
            if environment.later(FLUSH_DELAY, Box::new(move || work())) {
                return;
            }
        }
        let mut works = lock(&self.works);
        works.push_back((Instant::now() + FLUSH_DELAY, work));
        if works.len() > 1 {
            // The thread that does the others does this.
            return;
        }
        drop(works);
        let deferred = Arc::clone(self);
        if hca::spawn("ubiverbs-cm", move || deferred.run()).is_err() {
            self.run();
        }
    }

    fn run(&self) {
        let first = || lock(&self.works).front().cloned();
        while let Some((due, work)) = first() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            work();
            // Taken off last: while something is there, nobody starts another thread.
            lock(&self.works).pop_front();
        }
    }
}

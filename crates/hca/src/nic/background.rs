//! Work that a thread of its own does, so that neither the engine nor a polling thread waits for it. The thread starts
//! with the first item and ends when none is left; what comes meanwhile waits for it, as far as there is room.

use latch::Rank;
use latch::plain::Mutex;
use std::sync::{Arc, OnceLock};

/// Items that wait at most.
const MAX_WAITING: usize = 64;

/// What the thread does with the items that have come.
type Work<T> = dyn Fn(Vec<T>) + Send + Sync;

/// See the module.
pub(crate) struct Background<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// None while there is no thread.
    waiting: Mutex<Option<Vec<T>>>,
    work: OnceLock<Box<Work<T>>>,
}

impl<T> Default for Background<T> {
    fn default() -> Background<T> {
        let waiting = Mutex::new(Rank::Background, None);
        Background(Arc::new(Shared { waiting, work: OnceLock::new() }))
    }
}

impl<T> std::fmt::Debug for Background<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Background<T> {
    /// Says what is to be done. Once, and before there is anything to do.
    pub fn does(&self, work: impl Fn(Vec<T>) + Send + Sync + 'static) {
        let _ = self.0.work.set(Box::new(work));
    }

    /// Has something done, soon. False if it will not be: too much waits, or there is no thread to be had.
    pub fn add(&self, thread_name: &str, item: T) -> bool {
        let mut waiting = self.0.waiting.lock();
        let starts = waiting.is_none();
        let items = waiting.get_or_insert_default();
        if items.len() >= MAX_WAITING {
            return false;
        }
        items.push(item);
        drop(waiting);
        let shared = Arc::clone(&self.0);
        let started = !starts || ::host::thread::spawn(thread_name, move || shared.work_off()).is_ok();
        if !started {
            *self.0.waiting.lock() = None;
        }
        started
    }
}

impl<T> Shared<T> {
    fn work_off(&self) {
        while let Some(items) = self.next() {
            if let Some(work) = self.work.get() {
                work(items);
            }
        }
    }

    /// What has come; none if nothing has. Then the thread ends, and the next item starts another.
    fn next(&self) -> Option<Vec<T>> {
        let mut waiting = self.waiting.lock();
        let items = waiting.take().filter(|items| !items.is_empty())?;
        *waiting = Some(Vec::new());
        Some(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn what_comes_while_the_thread_works_is_done_next() {
        let background = Background::default();
        let (tell, told) = channel();
        let (go, gate) = channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        background.does(move |items: Vec<u32>| {
            tell.send(items).unwrap();
            gate.lock().unwrap().recv_timeout(REPLY_TIMEOUT).unwrap();
        });
        assert!(background.add("test", 0));
        assert_eq!(told.recv_timeout(REPLY_TIMEOUT), Ok(vec![0]));
        let taken = (1..=100).filter(|item| background.add("test", *item)).count();
        assert_eq!(taken, MAX_WAITING);
        go.send(()).unwrap();
        assert_eq!(told.recv_timeout(REPLY_TIMEOUT).map(|items| items.len()), Ok(MAX_WAITING));
        go.send(()).unwrap();
        // Once it has ended, another begins.
        let deadline = std::time::Instant::now() + REPLY_TIMEOUT;
        while background.0.waiting.lock().is_some() && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(background.add("test", 7));
        assert_eq!(told.recv_timeout(REPLY_TIMEOUT), Ok(vec![7]));
        go.send(()).unwrap();
    }
}

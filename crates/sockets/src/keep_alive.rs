//! Messages that keep connections: one thread for all sockets of the process that want them, as long as there are any.

use crate::events::Hub;
use crate::socket::Socket;
use latch::PerProcess;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Sockets, how often each wants to send something, and when it does next.
#[derive(Default)]
struct KeepAliveBook {
    sockets: HashMap<u64, (Duration, Instant)>,
    running: bool,
}

static DEADLINE_BOOK: PerProcess<(Mutex<KeepAliveBook>, Condvar)> = PerProcess::new();

fn book() -> &'static (Mutex<KeepAliveBook>, Condvar) {
    DEADLINE_BOOK.get_or_make(Default::default)
}

impl Socket {
    /// Sends something to the peer each time so long has passed; `None` for never. A peer that does not answer ends
    /// the connection.
    pub fn keep_alive(&self, every: Option<Duration>) {
        let (lock, changed) = book();
        let mut book = lock.lock().unwrap_or_else(PoisonError::into_inner);
        match every {
            Some(every) => book.sockets.insert(self.key, (every, Instant::now() + every)),
            None => book.sockets.remove(&self.key),
        };
        if every.is_some() && !book.running {
            let hub = self.hub;
            book.running = hca::spawn("rsocket-keep-alive", move || run(hub)).is_ok();
        }
        drop(book);
        changed.notify_all();
    }

    /// Asks the protocol for such a message, and posts it.
    fn send_keep_alive(&self) {
        let mut state = self.lock();
        state.progress();
        if let Ok(endpoint) = state.connection() {
            endpoint.protocol.keep_alive();
            endpoint.post_due();
            state.mark_changed();
        }
    }
}

/// Forgets a socket that has gone.
pub(crate) fn forget(key: u64) {
    if let Some((lock, changed)) = DEADLINE_BOOK.get() {
        lock.lock().unwrap_or_else(PoisonError::into_inner).sockets.remove(&key);
        changed.notify_all();
    }
}

fn run(hub: &'static Hub) {
    let (lock, changed) = book();
    let mut book = lock.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(next) = book.sockets.values().map(|(_, next)| *next).min() else {
            book.running = false;
            return;
        };
        let now = Instant::now();
        if next > now {
            book = changed.wait_timeout(book, next - now).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let due: Vec<u64> = book.sockets.iter().filter(|(_, (_, next))| *next <= now).map(|(key, _)| *key).collect();
        for (every, next) in book.sockets.values_mut().filter(|(_, next)| *next <= now) {
            *next = now + *every;
        }
        drop(book);
        for socket in due.into_iter().filter_map(|key| hub.find(key)) {
            socket.send_keep_alive();
        }
        book = lock.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

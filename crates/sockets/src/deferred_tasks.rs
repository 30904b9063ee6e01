//! What cannot be done in the middle of the NIC, and the thread that does it. Completions are told of by the thread
//! that made the progress, which may have the lists of rings locked: it must not speak to the connection manager then,
//! nor destroy queue pairs.

use crate::events::Hub;
use crate::socket::Socket;
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the thread waits for more: connections that are short come one after the other, and a new thread for each
/// costs more.
const IDLE_THREAD_TIME: Duration = Duration::from_secs(1);

thread_local! {
    static IN_NIC: Cell<bool> = const { Cell::new(false) };
}

/// Does something that was called by the NIC.
pub(crate) fn in_the_nic(work: impl FnOnce()) {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_NIC.set(self.0);
        }
    }
    let _leave = Leave(IN_NIC.replace(true));
    work();
}

/// Whether this thread is in the middle of the NIC.
pub(crate) fn is_in_nic() -> bool {
    IN_NIC.get()
}

/// What is to be done with a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeferredTask {
    /// It was closed, and has sent everything.
    End,
    /// The connection manager has said something.
    HandleCmEvents,
    /// Its queue pair has failed, which its peer must hear.
    TellPeer,
    /// Nobody has it any more.
    Release,
}

/// What is to be done, and the thread that does it, as long as there is something.
#[derive(Debug, Default)]
pub(crate) struct DeferredTasks {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct List {
    tasks: Vec<(Arc<Socket>, DeferredTask)>,
    running: bool,
}

impl DeferredTasks {
    /// Adds something. Where no thread can be made it waits for the next attempt.
    pub fn add(&'static self, hub: &'static Hub, socket: Arc<Socket>, task: DeferredTask) {
        self.lock().tasks.push((socket, task));
        self.start(hub);
        self.changed.notify_one();
    }

    /// Starts the thread, unless it runs.
    pub fn start(&'static self, hub: &'static Hub) {
        let mut list = self.lock();
        if !list.running {
            list.running = hca::spawn("rsocket-close", move || self.run(hub)).is_ok();
        }
    }

    fn run(&self, hub: &Hub) {
        let mut list = self.lock();
        loop {
            let tasks = std::mem::take(&mut list.tasks);
            if tasks.is_empty() {
                let (after, waited) =
                    self.changed.wait_timeout(list, IDLE_THREAD_TIME).unwrap_or_else(PoisonError::into_inner);
                list = after;
                if waited.timed_out() && list.tasks.is_empty() {
                    drop(list);
                    hub.overdue().iter().for_each(|socket| socket.end());
                    list = self.lock();
                    if list.tasks.is_empty() && !hub.keeps_any() {
                        list.running = false;
                        return;
                    }
                }
                continue;
            }
            drop(list);
            for (socket, task) in tasks {
                match task {
                    DeferredTask::End => socket.end(),
                    DeferredTask::HandleCmEvents => socket.kick(),
                    DeferredTask::TellPeer => socket.tell_peer_of_failure(),
                    DeferredTask::Release => drop(socket),
                }
            }
            list = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

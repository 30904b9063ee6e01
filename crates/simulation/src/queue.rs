//! Completion queues and channels of simulated NICs.

use super::world::{Observer, PartyLife};
use latch::lock;
use seam::{Channel, CompletionQueue, Error};
use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use transport::Completion;

/// What a completion queue holds.
pub(super) struct Queue {
    id: u32,
    channel: Option<Arc<Events<u32>>>,
    state: Mutex<State>,
    waiting: AtomicUsize,
}

struct State {
    capacity: u32,
    entries: VecDeque<(Completion, u64)>,
    observer: Option<Observer>,
    /// An event was asked for: at any completion, or at solicited ones only.
    armed: Option<Notify>,
    /// Something was added that no event has told of.
    untold: bool,
    overflowed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notify {
    Any,
    Solicited,
}

impl Queue {
    pub(super) fn new(id: u32, capacity: u32, channel: Option<Arc<Events<u32>>>) -> Queue {
        let state =
            State { capacity, entries: VecDeque::new(), observer: None, armed: None, untold: false, overflowed: false };
        Queue { id, channel, state: Mutex::new(state), waiting: AtomicUsize::new(0) }
    }

    /// Adds a completion. If it is lost, the queue's number, the first time.
    pub(super) fn add(&self, completion: Completion, at: u64) -> Option<u32> {
        let mut state = lock(&self.state);
        if state.entries.len() >= state.capacity as usize {
            return (!std::mem::replace(&mut state.overflowed, true)).then_some(self.id);
        }
        let urgent = completion.solicited || completion.status != transport::Status::Success;
        state.entries.push_back((completion, at));
        self.waiting.store(state.entries.len(), Ordering::Release);
        match state.armed {
            Some(Notify::Any) => self.tell(&mut state),
            Some(Notify::Solicited) if urgent => self.tell(&mut state),
            _ => state.untold = true,
        }
        None
    }

    fn tell(&self, state: &mut State) {
        (state.armed, state.untold) = (None, false);
        if let Some(channel) = &self.channel {
            channel.push(self.id);
        }
    }

    pub(super) fn observer(&self) -> Option<Observer> {
        lock(&self.state).observer.clone()
    }

    /// Takes out what a queue pair that is destroyed has left there.
    pub(super) fn forget(&self, qpn: wire::Qpn) {
        let mut state = lock(&self.state);
        state.entries.retain(|(completion, _)| completion.qpn != qpn);
        self.waiting.store(state.entries.len(), Ordering::Release);
    }
}

/// A completion queue as the API has it.
pub(super) struct SimulatedQueue {
    pub(super) place: PartyLife,
    pub(super) queue: Arc<Queue>,
}

impl std::fmt::Debug for SimulatedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulated completion queue {}", self.queue.id)
    }
}

// SAFETY: the transport adds one completion for each request it took, when the request is done; what a queue pair left
// is taken out when it is destroyed.
#[allow(unsafe_code)]
unsafe impl CompletionQueue for SimulatedQueue {
    fn id(&self) -> u32 {
        self.queue.id
    }

    fn waiting(&self) -> usize {
        self.queue.waiting.load(Ordering::Acquire)
    }

    fn poll(&self, room: usize, take: &mut dyn FnMut(&Completion, u64)) -> usize {
        let taken = self.take(room, take);
        if taken == 0 {
            super::current::polled_in_vain();
        }
        taken
    }

    fn take(&self, room: usize, take: &mut dyn FnMut(&Completion, u64)) -> usize {
        for taken in 0..room {
            let mut state = lock(&self.queue.state);
            let Some((completion, at)) = state.entries.pop_front() else {
                state.untold = false;
                return taken;
            };
            self.queue.waiting.store(state.entries.len(), Ordering::Release);
            drop(state);
            take(&completion, at);
        }
        room
    }

    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>) {
        lock(&self.queue.state).observer = Some(observer.into());
    }

    fn arm(&self, solicited_only: bool) {
        let mut state = lock(&self.queue.state);
        state.armed = Some(if solicited_only { Notify::Solicited } else { Notify::Any });
        if state.untold && !state.entries.is_empty() {
            self.queue.tell(&mut state);
        }
    }

    fn rouse(&self) {
        let mut state = lock(&self.queue.state);
        if state.armed.is_some() {
            self.queue.tell(&mut state);
        }
    }

    fn capacity(&self) -> u32 {
        lock(&self.queue.state).capacity
    }

    fn resize(&self, capacity: u32) -> Result<(), Error> {
        let mut state = lock(&self.queue.state);
        let waiting = state.entries.len();
        if (capacity as usize) < waiting {
            let source = format!("{waiting} completions wait, and {capacity} would fit").into();
            return Err(Error::Create { what: "a completion queue", source });
        }
        state.capacity = capacity;
        Ok(())
    }

    fn has_overflowed(&self) -> bool {
        lock(&self.queue.state).overflowed
    }
}

/// Events behind a descriptor, which is readable while there are some.
pub(super) struct Events<T> {
    events: Mutex<VecDeque<T>>,
    readable: (PipeReader, PipeWriter),
}

impl<T> Events<T> {
    pub(super) fn new() -> Result<Events<T>, Error> {
        let readable = io::pipe().map_err(|source| Error::System { what: "cannot make a channel", source })?;
        Ok(Events { events: Mutex::default(), readable })
    }

    pub(super) fn push(&self, event: T) {
        let mut events = lock(&self.events);
        events.push_back(event);
        if events.len() == 1 {
            // One byte is there while there are events: the pipe has room for it.
            let _ = (&self.readable.1).write(&[1]);
        }
    }

    pub(super) fn take(&self) -> Option<T> {
        let mut events = lock(&self.events);
        let event = events.pop_front()?;
        if events.is_empty() {
            let _ = (&self.readable.0).read(&mut [0]);
        }
        Some(event)
    }

    /// Takes those out that are wanted.
    pub(super) fn extract(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut events = lock(&self.events);
        let before = events.len();
        let (out, left): (Vec<T>, Vec<T>) = events.drain(..).partition(|event| wanted(event));
        *events = left.into();
        if before > 0 && events.is_empty() {
            let _ = (&self.readable.0).read(&mut [0]);
        }
        out
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.0.as_fd()
    }
}

impl<T> std::fmt::Debug for Events<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a simulated channel")
    }
}

/// A completion channel.
#[derive(Debug)]
pub(super) struct SimulatedChannel(pub(super) Arc<Events<u32>>);

/// What a call that would wait returns instead.
pub(super) fn must_not_wait() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "a party of a simulation awaits; a call that waits would stop the clock")
}

impl Channel for SimulatedChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn is_nonblocking(&self) -> io::Result<bool> {
        Err(must_not_wait())
    }

    fn try_take(&self) -> Option<u32> {
        self.0.take()
    }

    fn push(&self, event: u32) {
        self.0.push(event);
    }
}

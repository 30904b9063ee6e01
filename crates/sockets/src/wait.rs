//! Waiting until a socket has changed. A thread may be ended while it sleeps (`pthread_cancel`), and then no destructor
//! runs: so a call that waits is taken apart, as [`hca::BlockedCall`] is. What it has taken is plain data.
//!
//! Several calls may wait for one socket, and each has a channel of its own, which every change is told to, and every
//! event of the socket's completion queue. Whichever call takes that event looks at the queue, and what it finds is a
//! change. A socket itself has no descriptor.

use crate::error::Error;
use crate::socket::Readiness;
use hca::{BlockedCall, CompletionChannel, Look, Nic};
use latch::{PerProcess, lock};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::Time;

/// Channels that no call uses at the moment: a new one takes several system calls.
static FREE_CHANNELS: PerProcess<Mutex<Vec<Arc<CompletionChannel>>>> = PerProcess::new();

/// A call that waits, as sockets know it.
#[derive(Clone, Debug)]
pub struct Waiter {
    number: u64,
    channel: Arc<CompletionChannel>,
    /// What its channel is notified of.
    token: u32,
}

/// The number of the next.
fn new_number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl Waiter {
    /// A new one, which no socket knows.
    pub fn new() -> Result<Waiter, Error> {
        let free = lock(FREE_CHANNELS.get_or_make(Mutex::default)).pop();
        let channel = match free {
            Some(channel) => channel,
            None => Arc::new(CompletionChannel::new()?),
        };
        Ok(Waiter { number: new_number(), channel, token: 0 })
    }

    /// The descriptor that becomes readable when a socket has changed.
    pub fn fd(&self) -> RawFd {
        self.channel.raw_fd()
    }

    /// Takes what it was told.
    pub fn clear(&self) {
        while self.channel.try_take().is_some() {}
    }

    /// It waits no more, and no socket knows it.
    pub fn end(self) {
        self.clear();
        lock(FREE_CHANNELS.get_or_make(Mutex::default)).push(self.channel);
    }
}

/// The calls that wait for a socket.
#[derive(Debug, Default)]
pub struct Waiters {
    count: AtomicU32,
    list: Mutex<Vec<Waiter>>,
}

impl Waiters {
    /// Where completions of their socket come: each call that waits is notified.
    pub(crate) fn channel(self: &Arc<Waiters>) -> Arc<CompletionChannel> {
        let waiters = Arc::clone(self);
        Arc::new(CompletionChannel::relay(move || waiters.wake()))
    }

    /// From now on it is told of changes.
    pub fn join(&self, waiter: &Waiter) {
        lock(&self.list).push(waiter.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// It is told no more.
    pub fn leave(&self, number: u64) -> Option<Waiter> {
        let mut list = lock(&self.list);
        let at = list.iter().position(|waiter| waiter.number == number)?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(list.swap_remove(at))
    }

    fn find(&self, number: u64) -> Option<Waiter> {
        lock(&self.list).iter().find(|waiter| waiter.number == number).cloned()
    }

    /// Tells all that something has changed.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            for waiter in lock(&self.list).iter() {
                waiter.channel.push_if(waiter.token, |told| !told.contains(&waiter.token));
            }
        }
    }
}

/// A thread that waits for many sockets, each of which it knows by a number of its own. The sockets need no descriptors
/// for it.
#[derive(Debug)]
pub struct Gathering {
    nic: Arc<Nic>,
    channel: Arc<CompletionChannel>,
}

impl Gathering {
    /// One for no sockets.
    pub fn new() -> Result<Gathering, Error> {
        let channel = Arc::new(CompletionChannel::new()?);
        Ok(Gathering { nic: Arc::clone(crate::events::Hub::of_process()?.nic()), channel })
    }

    /// From now on changes of a socket are reported as `token`; [`Waiters::leave`] ends it. Completions are told once
    /// after each [`arm`](Waitable::arm).
    pub fn join(&self, socket: &dyn Waitable, token: u32) -> u64 {
        let waiter = Waiter { number: new_number(), channel: Arc::clone(&self.channel), token };
        socket.waiters().join(&waiter);
        waiter.number
    }

    /// Tells a token.
    pub fn tell(&self, token: u32) {
        self.channel.push_if(token, |told| !told.contains(&token));
    }

    /// The next token, if there is one.
    pub fn next(&self) -> Option<u32> {
        self.channel.try_take()
    }

    /// Waits for the next token, until a descriptor is readable, or for so long. The thread drives the NIC meanwhile.
    pub fn wait(&self, fd: RawFd, limit: Option<Duration>) -> Option<u32> {
        self.nic.wait_for_either(&self.channel, fd, limit).ok().flatten()
    }
}

/// A call that waits for a socket, between two looks. It has nothing to drop.
#[derive(Debug, Default)]
pub struct Wait {
    /// What to sleep on.
    pub call: BlockedCall,
    /// The number of its [`Waiter`], which the socket keeps; 0 if there is none.
    waiter: u64,
}

/// A socket that calls may wait for.
pub trait Waitable: Send + Sync {
    /// The NIC it is on.
    fn nic(&self) -> &Arc<Nic>;

    /// Where completions come.
    fn channel(&self) -> &Arc<CompletionChannel>;

    /// The calls that wait for it.
    fn waiters(&self) -> &Waiters;

    /// Has the next completion wake the calls that wait.
    fn arm(&self);

    /// What a program could do without waiting, after a look at what has arrived.
    fn readiness(&self) -> Readiness;

    /// From now on a change wakes this call: it must look once more before it sleeps, or it misses one.
    fn begin_wait(&self, wait: &mut Wait) -> Result<(), Error> {
        if wait.waiter == 0 {
            let waiter = Waiter::new()?;
            wait.waiter = waiter.number;
            self.waiters().join(&waiter);
        }
        self.arm();
        Ok(())
    }

    /// Whether something has happened. If nothing has, the caller is to sleep as `wait` says, and to ask again.
    fn look(&self, wait: &mut Wait, deadline: Option<Time>) -> Look {
        match self.waiters().find(wait.waiter) {
            Some(waiter) => {
                let channels = [&*waiter.channel, &**self.channel()];
                let look = self.nic().look_for_event_of(channels, &mut wait.call, deadline);
                if matches!(look, Look::Event(_)) {
                    // One event is told in both, and the caller looks at the socket next.
                    waiter.clear();
                    self.clear_wake();
                }
                look
            }
            None => self.nic().look_for_event(self.channel(), &mut wait.call, deadline),
        }
    }

    /// Whether something has happened, for a call that waits for several sockets, this one among them.
    fn look_for(&self, waiter: &Waiter, wait: &mut Wait) -> Look {
        self.nic().look_for_event_of([&*waiter.channel, &**self.channel()], &mut wait.call, None)
    }

    /// Takes the events of its completion queue. The caller looks at the socket afterwards.
    fn clear_wake(&self) {
        while self.channel().try_take().is_some() {}
    }

    /// The call is over, however it ended.
    fn end_wait(&self, wait: &mut Wait) {
        self.nic().end_wait(&mut wait.call);
        if let Some(waiter) = self.waiters().leave(std::mem::take(&mut wait.waiter)) {
            waiter.end();
        }
    }
}

impl Waiter {
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Its number among all.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// Waits that are worth it only if they end soon. After one that did not, the next so many are left out, and more each
/// time: where other threads want the processor, to look again and again is slower than to sleep.
#[derive(Debug, Default)]
pub struct ShortWaits {
    /// How many did not end soon, in a row.
    missed: AtomicU32,
    left_out: AtomicU32,
}

impl ShortWaits {
    /// The most that are left out, as a power of two.
    const MAX_SKIPPED_LOG2: u32 = 8;

    /// Whether the next one is worth a try.
    pub fn is_due(&self) -> bool {
        let left_out = self.left_out.load(Ordering::Relaxed);
        self.left_out.store(left_out.saturating_sub(1), Ordering::Relaxed);
        left_out == 0
    }

    /// One has ended, soon or not.
    pub fn ended(&self, soon: bool) {
        let missed = if soon { 0 } else { (self.missed.load(Ordering::Relaxed) + 1).min(Self::MAX_SKIPPED_LOG2) };
        self.missed.store(missed, Ordering::Relaxed);
        self.left_out.store((1 << missed) - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::ShortWaits;

    #[test]
    fn waits_that_do_not_end_soon_become_rare() {
        let waits = ShortWaits::default();
        let until_due = || (0..10_000).take_while(|_| !waits.is_due()).count();
        assert_eq!(until_due(), 0);
        let rests: Vec<usize> = (0..10)
            .map(|_| {
                waits.ended(false);
                until_due()
            })
            .collect();
        assert_eq!(rests, [1, 3, 7, 15, 31, 63, 127, 255, 255, 255]);
        waits.ended(true);
        assert_eq!(until_due(), 0);
    }
}

//! Calls that wait for the next event of a completion channel. The waiting thread drives the NIC, so that one wake-up
//! is enough; of several, one drives for all.
//!
//! A thread may be ended while it sleeps here (`pthread_cancel`), and then no destructor runs. So a call is taken
//! apart: [`Nic::look_for_event`] looks, and says what to sleep on; the caller sleeps, with no lock and nothing of ours
//! on its stack but a [`BlockedCall`], which is plain data; [`Nic::end_wait`] gives back what the call has taken,
//! however it ended.

use crate::nic::Nic;
use crate::objects::completion_queue::CompletionChannel;
use crate::progress::sleep::Sleep;
use link::shared::Sleeper;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;
use trace::Call;
use transport::Time;

/// A call that waits, between two looks.
#[derive(Debug, Default)]
pub struct BlockedCall {
    /// What to sleep on, and what of that was ready.
    pub sleep: Sleep,
    /// The engine knows that a thread waits.
    entered: bool,
    /// This thread drives for all.
    on_watch: bool,
    /// It sleeps, or has slept since it last looked.
    asleep: bool,
    /// The trace knows that it sleeps.
    told: bool,
}

/// What a look has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// The number of a completion queue.
    Event(u32),
    /// Nothing: the thread is to sleep, and to look again.
    Sleep,
    /// Nothing, and it is too late.
    TooLate,
}

/// Which of the descriptors is the bell: of a thread on watch the doorbell's, of one in line the watch's.
const BELL_BIT: u32 = 1;

/// Which of the descriptors of a thread on watch are the sockets of UDP.
const SOCKETS_BIT: u32 = 1 << 1;

impl Nic {
    /// Waits for the next event of a channel: the number of a completion queue. A channel whose descriptor does not
    /// block returns `WouldBlock` instead, and a signal that arrives meanwhile is `Interrupted`.
    pub fn wait(&self, channel: &CompletionChannel) -> io::Result<u32> {
        if channel.is_nonblocking()? {
            return self.take_event_now(channel);
        }
        let mut call = BlockedCall::default();
        let answer = loop {
            match self.look_for_event(channel, &mut call, None) {
                Look::Event(event) => break Ok(event),
                Look::Sleep | Look::TooLate => {}
            }
            if let Err(error) = call.sleep.until_ready() {
                break Err(error);
            }
        };
        self.end_wait(&mut call);
        answer
    }

    /// Waits like [`wait`](Nic::wait), but not longer than `limit`, and whatever the mode of the descriptor.
    pub fn wait_for(&self, channel: &CompletionChannel, limit: Option<Duration>) -> io::Result<Option<u32>> {
        self.wait_for_either(channel, -1, limit)
    }

    /// Waits like [`wait_for`](Nic::wait_for), and until a descriptor is readable; one below zero never is. `None` if
    /// it is, or if it is too late.
    pub fn wait_for_either(
        &self,
        channel: &CompletionChannel,
        fd: RawFd,
        limit: Option<Duration>,
    ) -> io::Result<Option<u32>> {
        let deadline = limit.map(|limit| self.now() + limit);
        let mut call = BlockedCall::default();
        let answer = loop {
            match self.look_for_event(channel, &mut call, deadline) {
                Look::Event(event) => break Ok(Some(event)),
                Look::TooLate => break Ok(None),
                Look::Sleep => {}
            }
            match call.sleep.until_ready_or(fd) {
                Ok(true) => break Ok(None),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break Err(error),
                _ => {}
            }
        };
        self.end_wait(&mut call);
        answer
    }

    /// The next event of a channel whose descriptor does not block; the error is `WouldBlock`.
    pub fn take_event_now(&self, channel: &CompletionChannel) -> io::Result<u32> {
        self.flush_waiting_acks();
        self.progress();
        channel.try_take().ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Looks for an event, and prepares to sleep if there is none. After the last look, [`end_wait`](Nic::end_wait) is
    /// due.
    pub fn look_for_event(&self, channel: &CompletionChannel, call: &mut BlockedCall, deadline: Option<Time>) -> Look {
        self.look_for_event_of([channel], call, deadline)
    }

    /// Looks for an event on several channels, two at most: the first that has an event.
    pub fn look_for_event_of<const N: usize>(
        &self,
        channels: [&CompletionChannel; N],
        call: &mut BlockedCall,
        deadline: Option<Time>,
    ) -> Look {
        const { assert!(N <= 2, "there is room for so many descriptors") };
        if !call.entered {
            self.flush_waiting_acks();
            self.ground.progress.engine.enter_wait();
            call.entered = true;
        }
        let woken_by = self.wake(call);
        if woken_by & SOCKETS_BIT != 0 && call.on_watch {
            self.progress();
        }
        let mut in_vain = woken_by & BELL_BIT != 0 && !call.on_watch;
        loop {
            if let Some(event) = channels.iter().find_map(|channel| channel.try_take()) {
                return Look::Event(event);
            }
            if deadline.is_some_and(|deadline| deadline <= self.now()) {
                return Look::TooLate;
            }
            call.on_watch = call.on_watch || self.watch.take();
            if !call.on_watch && std::mem::take(&mut in_vain) {
                self.watch.was_taken();
            }
            if call.on_watch {
                if self.receive_shared(None, None) {
                    continue;
                }
                // Say that we sleep, then look once more: what was written meanwhile is either seen here or rings. What
                // has come to the sockets ends the sleep before it begins.
                self.ground.links.exchange.doorbell().prepare_sleep(Sleeper::Caller);
                if self.look_again(true) {
                    continue;
                }
            }
            // The engine sees to deadlines: it can be told of new ones.
            let left = deadline.map(|deadline| deadline.since(self.now()));
            let awaited = channels.map(|channel| channel.raw_fd());
            if call.on_watch {
                let fds = [self.ground.links.exchange.doorbell().fd(Sleeper::Caller), self.ground.links.udp.fd()];
                let links = self.ground.links.registry.descriptors();
                call.sleep = Sleep::on(fds.into_iter().chain(awaited).chain(links.iter().copied()), left);
            } else {
                let Some(free) = self.watch.wait_in_line() else { continue };
                call.sleep = Sleep::on([free].into_iter().chain(awaited), left);
            }
            call.asleep = true;
            // One that waits for so long only is not stuck, whatever happens.
            if deadline.is_none() && !std::mem::replace(&mut call.told, true) {
                channels.iter().for_each(|channel| self.ground.records.waits_for_event(channel));
            }
            return Look::Sleep;
        }
    }

    /// Gives back what a call has taken: the engine drives again, or the next thread that waits.
    pub fn end_wait(&self, call: &mut BlockedCall) {
        self.wake(call);
        if std::mem::take(&mut call.on_watch) {
            self.ground.links.exchange.doorbell().prepare_sleep(Sleeper::Engine);
            self.receive_shared(None, None);
            self.watch.give_up();
        }
        if std::mem::take(&mut call.entered) {
            self.ground.progress.engine.leave_wait();
        }
        if std::mem::take(&mut call.told) {
            self.called(None, || Call::StopWaiting {});
        }
    }

    /// The thread no longer sleeps. Returns what was ready.
    fn wake(&self, call: &mut BlockedCall) -> u32 {
        if !std::mem::take(&mut call.asleep) {
            return 0;
        }
        let ready = call.sleep.ready();
        if call.on_watch {
            self.ground.links.exchange.doorbell().wake(Sleeper::Caller, ready & BELL_BIT != 0);
        } else {
            self.watch.leave_line();
        }
        ready
    }
}

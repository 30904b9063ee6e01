//! `rpoll` and `rselect`: waiting for sockets over RDMA and for ordinary descriptors at once. The waiting thread drives
//! the NIC, as one does that waits for completions.

use super::table::{SocketEntry, find};
use crate::boundary::{self, number};
use crate::cancellation::{Turn, Waits, call_that_waits};
use crate::errno::{Errno, refuse_if};
use hca::{Look, Sleep};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, fd_set, nfds_t, pollfd, timespec, timeval};
use sockets::{Readiness, Settings, Wait, Waiter};
use std::ffi::{c_int, c_short};
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

// Declared here, since a thread may be cancelled in it; that of the crate `libc` is said not to unwind.
unsafe extern "C-unwind" {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
}

/// Waits until one of the descriptors is ready.
///
/// # Safety
/// As for `poll`.
#[unsafe(export_name = "ubiverbs_rpoll")]
pub unsafe extern "C-unwind" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let mut waiting: *mut Polling = null_mut();
    let first = number("rpoll", || {
        if fds.is_null() {
            return if count == 0 { Ok(0) } else { Err(Errno::of(libc::EFAULT)) };
        }
        // SAFETY: as `poll` wants them.
        let asked = unsafe { slice::from_raw_parts_mut(fds, count as usize) };
        let polling = Polling::new(asked, timeout);
        if polling.sockets.is_empty() {
            return Ok(0);
        }
        let polling = Box::new(polling);
        let since = Instant::now();
        loop {
            let ready = polling.check(asked)?;
            if ready > 0 {
                return Ok(ready);
            }
            if timeout == 0 || since.elapsed() >= Settings::of_process().polling_time {
                break;
            }
        }
        waiting = Box::into_raw(polling);
        Ok(0)
    });
    if first != 0 {
        return first;
    }
    if waiting.is_null() {
        // No socket of ours is among them.
        // SAFETY: the arguments are those of `poll`.
        return unsafe { poll(fds, count, timeout) };
    }
    let mut ready = 0;
    if timeout == 0 {
        // SAFETY: from the box above, and given up here.
        drop(unsafe { Box::from_raw(waiting) });
        return 0;
    }
    let call = PollCall { polling: waiting, fds, count: count as usize, ready: &raw mut ready, wait: Wait::default() };
    if call_that_waits(call) == 0 { ready } else { -1 }
}

/// A call of `rpoll` that has sockets among its descriptors.
struct Polling {
    /// The sockets, and where they are in the program's array.
    sockets: Vec<(usize, Arc<SocketEntry>)>,
    deadline: Option<Instant>,
    /// What to sleep on: what the NIC wants, the sockets, the other descriptors.
    sleeping: Vec<pollfd>,
    limit: timespec,
    has_limit: bool,
    /// What sockets tell of changes.
    waiter: Option<Waiter>,
    looked: bool,
}

/// How many descriptors the NIC wants to be woken by.
const NIC_DESCRIPTORS: usize = 8;

impl Polling {
    fn new(asked: &[pollfd], timeout: c_int) -> Polling {
        let sockets = asked.iter().enumerate().filter_map(|(at, one)| Some((at, find(one.fd)?))).collect::<Vec<_>>();
        let deadline = u64::try_from(timeout).ok().map(|millis| Instant::now() + Duration::from_millis(millis));
        Polling {
            sockets,
            deadline,
            sleeping: Vec::new(),
            limit: timespec { tv_sec: 0, tv_nsec: 0 },
            has_limit: false,
            waiter: None,
            looked: false,
        }
    }

    /// Looks at all, and writes down what is ready. Returns how many are.
    fn check(&self, asked: &mut [pollfd]) -> Result<c_int, Errno> {
        if self.sockets.len() < asked.len() {
            // Those that are ours count for nothing there: a negative number is passed over.
            let mut others: Vec<pollfd> = asked.to_vec();
            for (at, _) in &self.sockets {
                others[*at].fd = -1;
            }
            // SAFETY: live descriptors.
            if unsafe { libc::poll(others.as_mut_ptr(), others.len() as nfds_t, 0) } < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            for (one, other) in asked.iter_mut().zip(&others) {
                one.revents = other.revents;
            }
        }
        for (at, entry) in &self.sockets {
            let one = &mut asked[*at];
            one.revents = events(entry.waitable().readiness(), one.events);
        }
        Ok(asked.iter().filter(|one| one.revents != 0).count() as c_int)
    }

    /// A change of any socket wakes this call from now on.
    fn arm(&mut self) -> Result<Waiter, Errno> {
        let waiter = match &self.waiter {
            Some(waiter) => waiter.clone(),
            None => {
                let waiter = Waiter::new()?;
                self.sockets.iter().for_each(|(_, entry)| entry.waitable().waiters().join(&waiter));
                self.waiter.insert(waiter).clone()
            }
        };
        waiter.clear();
        for (_, entry) in &self.sockets {
            entry.waitable().clear_wake();
            entry.waitable().arm();
        }
        Ok(waiter)
    }

    /// Sets up what to sleep on.
    fn prepare(&mut self, asked: &[pollfd], nic: &mut Sleep) {
        self.sleeping.clear();
        self.sleeping.extend(nic.descriptors().iter().copied());
        self.sleeping.resize(NIC_DESCRIPTORS, pollfd { fd: -1, events: 0, revents: 0 });
        let mut sockets = self.sockets.iter().peekable();
        for (at, one) in asked.iter().enumerate() {
            match sockets.next_if(|(place, _)| *place == at) {
                // It tells the call's waiter, which the NIC's part has.
                Some(_) => self.sleeping.push(pollfd { fd: -1, events: 0, revents: 0 }),
                None => self.sleeping.push(pollfd { revents: 0, ..*one }),
            }
        }
        let interval = Settings::of_process().wake_up_interval.max(Duration::from_millis(1));
        let left = self.deadline.map_or(interval, |deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.min(interval);
        self.limit = timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        self.has_limit = true;
    }

    /// Takes what has woken this call, from all sockets.
    fn woken(&mut self, nic: &mut Sleep) {
        for (place, slept) in nic.descriptors().iter_mut().zip(&self.sleeping) {
            place.revents = slept.revents;
        }
    }
}

/// What a program learns of a socket.
fn events(ready: Readiness, wanted: c_short) -> c_short {
    let mut events = 0;
    let mut tell = |is: bool, event: c_short| events |= if is { event } else { 0 };
    tell(ready.readable, wanted & (libc::POLLIN | libc::POLLRDNORM));
    tell(ready.writable, wanted & (libc::POLLOUT | libc::POLLWRNORM));
    tell(ready.peer_closed, wanted & libc::POLLRDHUP);
    tell(ready.hung_up, libc::POLLHUP);
    tell(ready.failed, libc::POLLERR);
    events
}

/// The call, while it waits.
struct PollCall {
    polling: *mut Polling,
    fds: *mut pollfd,
    count: usize,
    /// In the caller's frame.
    ready: *mut c_int,
    wait: Wait,
}

impl Waits for PollCall {
    const CALL: &'static str = "rpoll";

    fn go_on(&mut self, sleep: &mut Sleep) -> Result<Turn, Errno> {
        // SAFETY: from `rpoll`, whose frame waits for this call: its own, the program's descriptors, and the place
        // for the answer.
        let (polling, asked, ready) =
            unsafe { (&mut *self.polling, slice::from_raw_parts_mut(self.fds, self.count), &mut *self.ready) };
        let Some((_, first)) = polling.sockets.first() else { return Ok(Turn::Done) };
        let first = Arc::clone(first);
        if std::mem::take(&mut polling.looked) {
            polling.woken(sleep);
        }
        loop {
            let waiter = polling.arm()?;
            *ready = polling.check(asked)?;
            if *ready > 0 || polling.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(Turn::Done);
            }
            self.wait.call.sleep = *sleep;
            match first.waitable().look_for(&waiter, &mut self.wait) {
                Look::Event(_) => {}
                Look::Sleep | Look::TooLate => {
                    *sleep = self.wait.call.sleep;
                    polling.prepare(asked, sleep);
                    polling.looked = true;
                    return Ok(Turn::Sleep);
                }
            }
        }
    }

    fn sleeps_on(&mut self, _sleep: &mut Sleep) -> (*mut pollfd, usize, *const timespec) {
        // SAFETY: as in `go_on`.
        let polling = unsafe { &mut *self.polling };
        let limit = if polling.has_limit { &raw const polling.limit } else { null() };
        (polling.sleeping.as_mut_ptr(), polling.sleeping.len(), limit)
    }

    fn end(&mut self) {
        // SAFETY: from the box of `rpoll`; this is the one place that gives it back.
        let polling = unsafe { Box::from_raw(self.polling) };
        if let Some((_, first)) = polling.sockets.first() {
            first.waitable().end_wait(&mut self.wait);
        }
        if let Some(waiter) = polling.waiter {
            polling.sockets.iter().for_each(|(_, entry)| drop(entry.waitable().waiters().leave(waiter.number())));
            waiter.end();
        }
    }
}

/// Waits until one of the descriptors of the sets is ready.
///
/// # Safety
/// As for `select`.
#[unsafe(export_name = "ubiverbs_rselect")]
pub unsafe extern "C-unwind" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let mut asked: *mut Selected = null_mut();
    let sets = SelectSets([read, write, except]);
    let known = boundary::zero("rselect", || {
        // SAFETY: as `select` wants them.
        asked = Box::into_raw(unsafe { Selected::new(count, sets, timeout) }?);
        Ok(())
    });
    if known < 0 {
        return known;
    }
    // SAFETY: from the box above, which stays until it is taken back. A thread that is cancelled here leaves it behind.
    let (fds, number_of, millis) = unsafe { ((*asked).fds.as_mut_ptr(), (*asked).fds.len(), (*asked).millis) };
    // SAFETY: live descriptors.
    let answer = unsafe { rpoll(fds, number_of as nfds_t, millis) };
    boundary::value("rselect", -1, || {
        // SAFETY: from the box above, and given up here; the sets are the program's.
        let selected = unsafe { Box::from_raw(asked) };
        match answer {
            0.. if selected.fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) => {
                boundary::minus_one(Errno::of(libc::EBADF))
            }
            0.. => sets.answer(&selected.fds),
            _ => answer,
        }
    })
}

/// The sets of `rselect` as `rpoll` has them.
struct Selected {
    fds: Vec<pollfd>,
    millis: c_int,
}

impl Selected {
    /// # Safety
    /// As for `select`.
    unsafe fn new(count: c_int, sets: SelectSets, timeout: *mut timeval) -> Result<Box<Selected>, Errno> {
        refuse_if!(!(0..=libc::FD_SETSIZE as c_int).contains(&count), Errno::INVALID);
        // SAFETY: null, or a time.
        let millis = match unsafe { timeout.as_ref() } {
            None => -1,
            Some(time) if time.tv_sec < 0 || !(0..1_000_000).contains(&time.tv_usec) => return Err(Errno::INVALID),
            Some(time) => {
                let millis = (time.tv_sec as i128) * 1000 + (i128::from(time.tv_usec) + 999) / 1000;
                millis.min(c_int::MAX.into()) as c_int
            }
        };
        Ok(Box::new(Selected { fds: sets.asked(count), millis }))
    }
}

/// The three sets of `select`, as bits. They may be longer than the type says.
#[derive(Clone, Copy)]
pub(crate) struct SelectSets(pub [*mut fd_set; 3]);

/// What each of the three asks for, and what answers it.
const SELECT_EVENTS: [(c_short, c_short); 3] =
    [(POLLIN, POLLIN | POLLHUP | POLLERR), (POLLOUT, POLLOUT | POLLERR), (POLLPRI, POLLPRI)];

impl SelectSets {
    fn bit(set: *mut fd_set, fd: c_int) -> Option<(*mut u64, u64)> {
        // SAFETY: the caller of `select` says that the sets have a bit for every descriptor below its number.
        (!set.is_null()).then(|| (unsafe { set.cast::<u64>().add(fd as usize / 64) }, 1 << (fd % 64)))
    }

    pub(crate) fn events(self, fd: c_int) -> c_short {
        let asked = self.0.iter().zip(SELECT_EVENTS).filter(|(set, _)| {
            // SAFETY: as above.
            SelectSets::bit(**set, fd).is_some_and(|(word, bit)| unsafe { *word } & bit != 0)
        });
        asked.fold(0, |events, (_, (asked, _))| events | asked)
    }

    pub(crate) fn asked(self, count: c_int) -> Vec<pollfd> {
        let entry = |fd| pollfd { fd, events: self.events(fd), revents: 0 };
        (0..count).map(entry).filter(|one| one.events != 0).collect()
    }

    /// Writes down what is ready, and returns how many bits that is.
    pub(crate) fn answer(self, fds: &[pollfd]) -> c_int {
        let mut bits = 0;
        for one in fds {
            for (set, (asked, means)) in self.0.iter().zip(SELECT_EVENTS) {
                let Some((word, bit)) = SelectSets::bit(*set, one.fd) else { continue };
                let is = one.events & asked != 0 && one.revents & means != 0;
                // SAFETY: as above.
                unsafe { *word = if is { *word | bit } else { *word & !bit } };
                bits += c_int::from(is);
            }
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_become_questions_and_answers_become_sets() {
        // SAFETY: all zeros are empty sets; descriptors are below their size.
        unsafe {
            let [mut read, mut write]: [fd_set; 2] = std::mem::zeroed();
            libc::FD_SET(3, &raw mut read);
            libc::FD_SET(3, &raw mut write);
            libc::FD_SET(70, &raw mut read);
            let sets = SelectSets([&raw mut read, &raw mut write, std::ptr::null_mut()]);
            let mut asked = sets.asked(71);
            assert_eq!(
                asked.iter().map(|one| (one.fd, one.events)).collect::<Vec<_>>(),
                [(3, POLLIN | POLLOUT), (70, POLLIN)]
            );
            assert_eq!(sets.asked(70).len(), 1);
            asked[0].revents = POLLOUT;
            asked[1].revents = POLLHUP;
            assert_eq!(sets.answer(&asked), 2);
            assert!(!libc::FD_ISSET(3, &raw const read) && libc::FD_ISSET(3, &raw const write));
            assert!(libc::FD_ISSET(70, &raw const read));
        }
    }
}

//! Waiting for many descriptors, as `epoll` does, on top of [`rpoll`]: whatever that can wait for, these can. A set is
//! named by a descriptor of its own, which says nothing when it is looked at. Events are those of `poll`, and they are
//! told as long as they last.

use crate::boundary::{number, zero};
use crate::errno::{Errno, refuse_if};
use crate::registry::{PerProcess, lock};
use crate::rsocket::poll::rpoll;
use libc::{epoll_event, pollfd};
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The sets of this process, by their descriptors.
static PROCESS_SETS: PerProcess<HashMap<RawFd, Arc<Set>>> = PerProcess::new();

struct Set {
    /// Names the set, and wakes its waiters when it changes.
    bell: OwnedFd,
    members: Mutex<Vec<Member>>,
}

#[derive(Clone, Copy)]
struct Member {
    descriptor: RawFd,
    events: u32,
    data: u64,
}

/// What `poll` knows of `epoll`'s events. The rest of them, as to be told once only, is not offered.
const POLL_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl Set {
    fn of(descriptor: c_int) -> Result<Arc<Set>, Errno> {
        PROCESS_SETS.lock().get(&descriptor).cloned().ok_or_else(|| Errno::invalid("not a descriptor of repoll_create"))
    }

    /// What waits on it looks again.
    fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of this function.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    fn quiet(&self) {
        let mut rung = 0u64;
        // SAFETY: room for eight bytes; the descriptor does not block.
        unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut rung).cast(), size_of::<u64>()) };
    }

    fn change(&self, operation: c_int, descriptor: RawFd, event: Option<epoll_event>) -> Result<(), Errno> {
        let mut members = lock(&self.members);
        let known = members.iter().position(|member| member.descriptor == descriptor);
        let member = || -> Result<Member, Errno> {
            let epoll_event { events, u64: data } = event.ok_or(Errno::of(libc::EFAULT))?;
            refuse_if!(events & !POLL_EVENTS != 0, Errno::invalid("events that poll does not have"));
            Ok(Member { descriptor, events, data })
        };
        match (operation, known) {
            (libc::EPOLL_CTL_ADD, None) => members.push(member()?),
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::of(libc::EEXIST)),
            (libc::EPOLL_CTL_MOD, Some(at)) => members[at] = member()?,
            (libc::EPOLL_CTL_DEL, Some(at)) => drop(members.remove(at)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno::of(libc::ENOENT)),
            _ => return Err(Errno::invalid("no such operation")),
        }
        Ok(())
    }
}

/// Forgets a set; false if it is none. For the call that closes descriptors of this library.
pub(crate) fn close(descriptor: c_int) -> bool {
    let set = PROCESS_SETS.lock().remove(&descriptor);
    if let Some(set) = &set {
        // Those that still wait find it empty.
        lock(&set.members).clear();
        set.ring();
    }
    set.is_some()
}

/// A new set. Flags are those of `epoll_create1`.
#[unsafe(export_name = "ubiverbs_repoll_create")]
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    number("repoll_create", || {
        refuse_if!(flags & !libc::EPOLL_CLOEXEC != 0, Errno::invalid("the flag is EPOLL_CLOEXEC"));
        let close_on_exec = if flags == 0 { 0 } else { libc::EFD_CLOEXEC };
        // SAFETY: a call without pointers.
        let bell = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | close_on_exec) };
        refuse_if!(bell < 0, std::io::Error::last_os_error().into());
        // SAFETY: just made, and the set's alone.
        let set = Set { bell: unsafe { OwnedFd::from_raw_fd(bell) }, members: Mutex::default() };
        PROCESS_SETS.lock().insert(bell, Arc::new(set));
        Ok(bell)
    })
}

/// Adds a descriptor to a set, changes what is asked of it, or removes it.
///
/// # Safety
/// `event` is null or an event.
#[unsafe(export_name = "ubiverbs_repoll_ctl")]
pub unsafe extern "C" fn repoll_ctl(set: c_int, operation: c_int, descriptor: c_int, event: *mut epoll_event) -> c_int {
    zero("repoll_ctl", || {
        let it = Set::of(set)?;
        refuse_if!(descriptor < 0, Errno::of(libc::EBADF));
        refuse_if!(descriptor == set, Errno::invalid("a set in itself"));
        // SAFETY: null, or an event.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        it.change(operation, descriptor, event)?;
        it.ring();
        Ok(())
    })
}

/// One look at a set: how it is to be asked, and what the answers are for.
struct SetPoll {
    asked: Vec<pollfd>,
    data: Vec<u64>,
}

impl SetPoll {
    fn at(set: &Set) -> SetPoll {
        let bell = pollfd { fd: set.bell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let members = lock(&set.members);
        let ask = |member: &Member| pollfd { fd: member.descriptor, events: member.events as i16, revents: 0 };
        SetPoll {
            asked: std::iter::once(bell).chain(members.iter().map(ask)).collect(),
            data: members.iter().map(|member| member.data).collect(),
        }
    }

    fn was_rung(&self) -> bool {
        self.asked[0].revents != 0
    }

    /// What is ready.
    fn ready(&self) -> impl Iterator<Item = epoll_event> {
        let told = self.asked[1..].iter().zip(&self.data).filter(|(asked, _)| asked.revents != 0);
        told.map(|(asked, data)| epoll_event { events: u32::from(asked.revents as u16), u64: *data })
    }
}

/// Waits until something of a set is ready, and tells what: how many events, or -1.
///
/// # Safety
/// `events` is null or has room for `room` events.
#[unsafe(export_name = "ubiverbs_repoll_wait")]
pub unsafe extern "C-unwind" fn repoll_wait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
) -> c_int {
    let Ok(it) = checked(set, events, room) else { return -1 };
    let end = u64::try_from(timeout).ok().map(|milliseconds| Instant::now() + Duration::from_millis(milliseconds));
    loop {
        let mut look = SetPoll::at(&it);
        let left = end.map_or(-1, |end| {
            let left = end.saturating_duration_since(Instant::now());
            c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
        });
        // SAFETY: that many descriptors. No lock is held, for a thread may be cancelled there.
        let answer = unsafe { rpoll(look.asked.as_mut_ptr(), look.asked.len() as libc::nfds_t, left) };
        if answer <= 0 {
            return answer;
        }
        if look.was_rung() {
            it.quiet();
        }
        let mut count = 0;
        for event in look.ready().take(room as usize) {
            // SAFETY: there is room for more events than were written so far.
            unsafe { events.add(count).write_unaligned(event) };
            count += 1;
        }
        if count > 0 {
            return count as c_int;
        }
        if !look.was_rung() || Set::of(set).is_err() {
            return number("repoll_wait", || Err(Errno::of(libc::EBADF)));
        }
    }
}

fn checked(set: c_int, events: *mut epoll_event, room: c_int) -> Result<Arc<Set>, c_int> {
    let mut found = None;
    let answer = number("repoll_wait", || {
        let it = Set::of(set)?;
        refuse_if!(room <= 0, Errno::invalid("room for no event"));
        refuse_if!(events.is_null(), Errno::of(libc::EFAULT));
        found = Some(it);
        Ok(0)
    });
    found.ok_or(answer)
}

//! Waiting for descriptors, rsockets among them. `poll` and `select` ask rsockets directly. What `epoll` waits for is
//! handed over to the kernel, and so is what is waited for with other signals let through: only the kernel does that
//! without a gap.

use super::notes::Watcher;
use super::options;
use super::table::{self, Socket};
use super::{errno, fail, handover, real, rsocket};
use crate::rsocket::poll::SelectSets;
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a thread waits before it looks whether a socket has been handed over meanwhile, by another thread.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// `poll`.
#[unsafe(export_name = "ubiverbs_rspreload_poll")]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: there are `count` entries, as `poll` asks.
    unsafe {
        if fds.is_null() || !any_direct(fds, count) {
            return real::poll(fds, count, timeout);
        }
        let asked = std::slice::from_raw_parts_mut(fds, count as usize);
        let end = u64::try_from(timeout).ok().map(|limit| Instant::now() + Duration::from_millis(limit));
        poll_until(asked, end)
    }
}

/// # Safety
/// There are so many.
unsafe fn any_direct(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: there are `count` entries.
    (0..count as usize).any(|at| table::direct(unsafe { (*fds.add(at)).fd }).is_some())
}

/// Waits with rsockets where there are some.
fn poll_until(asked: &mut [pollfd], end: Option<Instant>) -> c_int {
    let mut copies = asked.to_vec();
    loop {
        for (copy, one) in copies.iter_mut().zip(&*asked) {
            *copy = pollfd { fd: table::direct(one.fd).unwrap_or(one.fd), events: one.events, revents: 0 };
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let limit = left.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL);
        let limit = limit.as_micros().div_ceil(1000) as c_int;
        // SAFETY: as many as it says.
        let ready = unsafe { rsocket::rpoll(copies.as_mut_ptr(), copies.len() as nfds_t, limit) };
        let over = left.is_some_and(|left| left <= LOOK_INTERVAL);
        if ready == 0 && !over {
            continue;
        }
        for (one, copy) in asked.iter_mut().zip(&copies) {
            one.revents = copy.revents;
        }
        return ready;
    }
}

/// `poll` of programs that are checked for overflows.
#[unsafe(export_name = "ubiverbs_rspreload___poll_chk")]
pub unsafe extern "C-unwind" fn poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        overflow();
    }
    // SAFETY: there is room for `count` entries, as was just compared.
    unsafe { poll(fds, count, timeout) }
}

/// The program is wrong, as the C library says it then.
fn overflow() -> ! {
    crate::log::print("buffer overflow detected: the program is ended");
    std::process::abort()
}

/// `ppoll`.
#[unsafe(export_name = "ubiverbs_rspreload_ppoll")]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: there are `count` entries, and time and mask are null or one each, as `ppoll` asks.
    unsafe {
        if fds.is_null() || !any_direct(fds, count) {
            return real::ppoll(fds, count, timeout, mask);
        }
        let asked = std::slice::from_raw_parts_mut(fds, count as usize);
        if !mask.is_null() {
            asked.iter().for_each(|one| handover::hand_over_descriptor(one.fd));
            return real::ppoll(fds, count, timeout, mask);
        }
        match deadline(timeout) {
            Ok(end) => poll_until(asked, end),
            Err(code) => fail(code),
        }
    }
}

/// # Safety
/// It is null or a time.
unsafe fn deadline(timeout: *const timespec) -> Result<Option<Instant>, c_int> {
    // SAFETY: null, or a time.
    let Some(time) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(rest @ 0..1_000_000_000)) => Ok(Instant::now().checked_add(Duration::new(seconds, rest))),
        _ => Err(libc::EINVAL),
    }
}

/// `ppoll` of programs that are checked for overflows.
#[unsafe(export_name = "ubiverbs_rspreload___ppoll_chk")]
pub unsafe extern "C-unwind" fn ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        overflow();
    }
    // SAFETY: there is room for `count` entries, as was just compared; time and mask are as for `ppoll`.
    unsafe { ppoll(fds, count, timeout, mask) }
}

fn any_selected(sets: SelectSets, count: c_int) -> bool {
    (0..count.min(table::highest() + 1)).any(|fd| table::direct(fd).is_some() && sets.events(fd) != 0)
}

fn select_until(sets: SelectSets, count: c_int, end: Option<Instant>) -> c_int {
    let mut fds = sets.asked(count);
    match poll_until(&mut fds, end) {
        ..0 => -1,
        _ if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) => fail(libc::EBADF),
        _ => sets.answer(&fds),
    }
}

/// `select`. What is left of the time is told, as the kernel does.
#[unsafe(export_name = "ubiverbs_rspreload_select")]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = SelectSets([read, write, except]);
    // SAFETY: sets are null or have a bit for each number below `count`, the time is null or one, as `select` asks.
    unsafe {
        if count < 0 || !any_selected(sets, count) {
            return real::select(count, read, write, except, timeout);
        }
        let end = match timeout.as_ref() {
            None => None,
            Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => return fail(libc::EINVAL),
            Some(time) => {
                let limit = Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64);
                Instant::now().checked_add(limit)
            }
        };
        let result = select_until(sets, count, end);
        if let (Some(time), Some(end)) = (timeout.as_mut(), end) {
            let left = end.saturating_duration_since(Instant::now());
            (time.tv_sec, time.tv_usec) = (left.as_secs() as _, left.subsec_micros().into());
        }
        result
    }
}

/// `pselect`.
#[unsafe(export_name = "ubiverbs_rspreload_pselect")]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = SelectSets([read, write, except]);
    // SAFETY: sets are null or have a bit for each number below `count`, as is asked; time and mask are null or one.
    unsafe {
        if count < 0 || !any_selected(sets, count) {
            return real::pselect(count, read, write, except, timeout, mask);
        }
        if !mask.is_null() {
            sets.asked(count).iter().for_each(|one| handover::hand_over_descriptor(one.fd));
            return real::pselect(count, read, write, except, timeout, mask);
        }
        match deadline(timeout) {
            Ok(end) => select_until(sets, count, end),
            Err(code) => fail(code),
        }
    }
}

/// `epoll_ctl`. A socket that is neither connected nor listens is remembered, and handed over when it is.
#[unsafe(export_name = "ubiverbs_rspreload_epoll_ctl")]
pub unsafe extern "C-unwind" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if let Some(socket) = table::socket(fd) {
        if !socket.is_stream() && socket.direct().is_some() {
            crate::log::print("a datagram socket over RDMA cannot be waited for with epoll (EPERM)");
            return fail(libc::EPERM);
        }
        if operation != libc::EPOLL_CTL_DEL {
            handover::hand_over(socket);
        }
        if socket.direct().is_some() {
            // SAFETY: the event is null or one, as `epoll_ctl` asks.
            let event = unsafe { event.as_ref() }.copied();
            options::with_notes(socket, |notes| {
                notes.watchers.retain(|watcher| (watcher.epoll, watcher.fd) != (epoll, fd));
                let more = event.filter(|_| operation != libc::EPOLL_CTL_DEL);
                notes.watchers.extend(more.map(|event| Watcher { epoll, fd, event }));
            });
        }
    }
    // SAFETY: the event is null or one, as `epoll_ctl` asks.
    unsafe { real::epoll_ctl(epoll, operation, fd, event) }
}

/// A socket has begun to listen or to connect: who waits for it with `epoll` waits for what the kernel knows.
pub(super) fn see_to_watchers(socket: &'static Socket) {
    let kept = errno();
    let watched =
        table::with_book(|book| book.notes.get(&table::key(socket)).is_some_and(|notes| !notes.watchers.is_empty()));
    if watched && (socket.listens.load(Ordering::Relaxed) || socket.connects.load(Ordering::Relaxed)) {
        handover::hand_over(socket);
    }
    fail(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_none_are_refused() {
        let time = |tv_sec, tv_nsec| timespec { tv_sec, tv_nsec };
        // SAFETY: null, or a time.
        unsafe {
            assert_eq!(deadline(std::ptr::null()), Ok(None));
            assert_eq!(deadline(&time(-1, 0)), Err(libc::EINVAL));
            assert_eq!(deadline(&time(0, 1_000_000_000)), Err(libc::EINVAL));
            assert_eq!(deadline(&time(i64::MAX, 0)), Ok(None));
        }
    }
}

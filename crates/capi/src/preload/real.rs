//! The C library's functions under their own names, wherever they are: behind ours in the order in which libraries are
//! searched. Called through pointers, so that no call of ours comes back to us.

use super::symbols;
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec, timeval,
};
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked for once.
struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Function {
        Function { name, found: AtomicPtr::new(null_mut()) }
    }

    #[inline]
    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Acquire);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let found = find(self.name);
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Somewhere in librspreload.so.
static PRELOADED_ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Where librspreload.so is: functions of the same names come after it.
pub(super) fn remember_table(table: *const c_void) {
    PRELOADED_ADDRESS.store(table.cast_mut(), Ordering::Release);
}

/// The function of that name; one that fails where there is none.
pub(super) fn find(name: &CStr) -> *mut c_void {
    let before = PRELOADED_ADDRESS.load(Ordering::Acquire).addr();
    let found = symbols::after(name, before, find as *const () as usize);
    if found.is_null() { missing as *mut c_void } else { found }
}

/// Stands for what this C library does not have.
extern "C" fn missing() -> c_long {
    c_long::from(super::fail(libc::ENOSYS))
}

macro_rules! real {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the C library's.
        #[inline]
        pub(super) unsafe fn $name($($argument: $type),*) -> $answer {
            static FUNCTION: Function = Function::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );
            // SAFETY: the C library's function of this name has these arguments, which are as the caller promises.
            unsafe {
                let function: unsafe extern "C-unwind" fn($($type),*) -> $answer =
                    std::mem::transmute(FUNCTION.get());
                function($($argument),*)
            }
        }
    )*};
}

real! {
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fn fork() -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
    fn open(path: *const c_char, flags: c_int) -> c_int;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn pread(fd: c_int, buffer: *mut c_void, length: size_t, offset: i64) -> ssize_t;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    fn __read_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t
    ) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    fn sendfile(out: c_int, from: c_int, offset: *mut i64, length: size_t) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t
    ) -> ssize_t;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    fn splice(
        from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: size_t, flags: c_uint
    ) -> ssize_t;
    fn syscall(
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
    ) -> c_long;
    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn _exit(status: c_int) -> ();
}

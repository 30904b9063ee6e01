//! A library to preload: shows one program files under `/sys/class/infiniband` and `/dev/infiniband` that are not there. Calls of the C library that
//! take such a path get one under the directory that `UBIVERBS_FILES` names instead; every other call goes through untouched. It knows nothing of
//! what the files say.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Names the directory in which `sys` and `dev` are.
const VARIABLE: &CStr = c"UBIVERBS_FILES";

/// What begins so is elsewhere: at the end of a name, or where the name goes on.
const ELSEWHERE: [&[u8]; 3] = [b"/sys/class/infiniband", b"/sys/class/infiniband_verbs", b"/dev/infiniband"];

/// The longest path the system takes.
const ROOM: usize = libc::PATH_MAX as usize;

/// A path, and room for another in its place.
struct Path {
    room: [u8; ROOM],
}

impl Path {
    fn new() -> Path {
        Path { room: [0; ROOM] }
    }

    /// The path to use in place of this one: mostly itself.
    ///
    /// # Safety
    /// It is null or a C string.
    unsafe fn instead(&mut self, path: *const c_char) -> *const c_char {
        if path.is_null() {
            return path;
        }
        // SAFETY: the caller says that it is a string.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        let elsewhere = ELSEWHERE
            .iter()
            .any(|start| bytes.strip_prefix(*start).is_some_and(|rest| matches!(rest.first(), None | Some(b'/'))));
        if !elsewhere {
            return path;
        }
        match files() {
            Some(files) => join(files.to_bytes(), bytes, &mut self.room).map_or(path, |path| path.as_ptr().cast()),
            None => path,
        }
    }
}

/// Both one after the other, and a zero; none if they do not fit.
fn join<'a>(start: &[u8], end: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let length = start.len() + end.len();
    let place = room.get_mut(..=length)?;
    place.get_mut(..start.len())?.copy_from_slice(start);
    place.get_mut(start.len()..length)?.copy_from_slice(end);
    *place.last_mut()? = 0;
    Some(place)
}

/// The directory, as it was named when it was first needed: programs change their environment.
fn files() -> Option<&'static CStr> {
    static KEPT: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    let mut kept = KEPT.load(Ordering::Acquire);
    if kept.is_null() {
        // SAFETY: the name is a string; what is found is copied at once, and the copy stays for ever. Two threads that are here at the same
        // time make the same copy.
        unsafe {
            let found = libc::getenv(VARIABLE.as_ptr());
            if found.is_null() {
                return None;
            }
            kept = libc::strdup(found);
        }
        KEPT.store(kept, Ordering::Release);
    }
    // SAFETY: a string that is never freed.
    (!kept.is_null()).then(|| unsafe { CStr::from_ptr(kept) })
}

/// The function of the same name that comes after ours.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    fn get(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            // SAFETY: the name is a string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Release);
        }
        (!found.is_null()).then_some(found)
    }
}

/// The C library has no such function.
fn missing() {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

/// Functions whose path is their first argument, or the second behind a number. What they answer if there is no such function stands at the end.
macro_rules! redirect {
    ($($(#[$doc:meta])* $name:literal $function:ident($([$before:ident: $number:ty])? path $(, $argument:ident: $type:ty)*) -> $answer:ty, $otherwise:expr;)*) => {$(
        #[doc = concat!("`", $name, "`, with another path where that is due.")]
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function($($before: $number,)? path: *const c_char $(, $argument: $type)*) -> $answer {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            });
            let Some(next) = NEXT.get() else {
                missing();
                return $otherwise;
            };
            // SAFETY: the C library's function of this name has these arguments; the path is a string, as its caller promised.
            unsafe {
                let next: unsafe extern "C" fn($($number,)? *const c_char $(, $type)*) -> $answer = std::mem::transmute(next);
                next($($before,)? Path::new().instead(path) $(, $argument)*)
            }
        }
    )*};
}

// A mode that `open` was not given is one that it does not look at.
redirect! {
    "open" open(path, flags: c_int, mode: c_uint) -> c_int, -1;
    "open64" open64(path, flags: c_int, mode: c_uint) -> c_int, -1;
    "__open_2" open_2(path, flags: c_int) -> c_int, -1;
    "__open64_2" open64_2(path, flags: c_int) -> c_int, -1;
    "openat" openat([at: c_int] path, flags: c_int, mode: c_uint) -> c_int, -1;
    "openat64" openat64([at: c_int] path, flags: c_int, mode: c_uint) -> c_int, -1;
    "__openat_2" openat_2([at: c_int] path, flags: c_int) -> c_int, -1;
    "__openat64_2" openat64_2([at: c_int] path, flags: c_int) -> c_int, -1;
    "fopen" fopen(path, mode: *const c_char) -> *mut c_void, null_mut();
    "fopen64" fopen64(path, mode: *const c_char) -> *mut c_void, null_mut();
    "opendir" opendir(path) -> *mut c_void, null_mut();
    "scandir" scandir(path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int, -1;
    "scandir64" scandir64(path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int, -1;
    "stat" stat(path, answer: *mut c_void) -> c_int, -1;
    "stat64" stat64(path, answer: *mut c_void) -> c_int, -1;
    "lstat" lstat(path, answer: *mut c_void) -> c_int, -1;
    "lstat64" lstat64(path, answer: *mut c_void) -> c_int, -1;
    "fstatat" fstatat([at: c_int] path, answer: *mut c_void, flags: c_int) -> c_int, -1;
    "fstatat64" fstatat64([at: c_int] path, answer: *mut c_void, flags: c_int) -> c_int, -1;
    "statx" statx([at: c_int] path, flags: c_int, mask: c_uint, answer: *mut c_void) -> c_int, -1;
    "__xstat" xstat([version: c_int] path, answer: *mut c_void) -> c_int, -1;
    "__xstat64" xstat64([version: c_int] path, answer: *mut c_void) -> c_int, -1;
    "__lxstat" lxstat([version: c_int] path, answer: *mut c_void) -> c_int, -1;
    "__lxstat64" lxstat64([version: c_int] path, answer: *mut c_void) -> c_int, -1;
    "access" access(path, mode: c_int) -> c_int, -1;
    "eaccess" eaccess(path, mode: c_int) -> c_int, -1;
    "euidaccess" euidaccess(path, mode: c_int) -> c_int, -1;
    "faccessat" faccessat([at: c_int] path, mode: c_int, flags: c_int) -> c_int, -1;
    "readlink" readlink(path, room: *mut c_char, size: usize) -> isize, -1;
    "__readlink_chk" readlink_chk(path, room: *mut c_char, size: usize, has: usize) -> isize, -1;
    "readlinkat" readlinkat([at: c_int] path, room: *mut c_char, size: usize) -> isize, -1;
    "__readlinkat_chk" readlinkat_chk([at: c_int] path, room: *mut c_char, size: usize, has: usize) -> isize, -1;
    "realpath" realpath(path, room: *mut c_char) -> *mut c_char, null_mut();
    "__realpath_chk" realpath_chk(path, room: *mut c_char, has: usize) -> *mut c_char, null_mut();
    "canonicalize_file_name" canonicalize_file_name(path) -> *mut c_char, null_mut();
    "chdir" chdir(path) -> c_int, -1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    /// What a path becomes, with the directory `/ours`.
    fn instead(path: &CStr) -> String {
        // SAFETY: set once, before anybody else looks, to what it stays; the strings are strings.
        unsafe {
            libc::setenv(VARIABLE.as_ptr(), c"/ours".as_ptr(), 1);
            let mut room = Path::new();
            CStr::from_ptr(room.instead(path.as_ptr())).to_string_lossy().into_owned()
        }
    }

    #[test]
    fn only_our_paths_are_elsewhere() {
        assert_eq!(instead(c"/sys/class/infiniband"), "/ours/sys/class/infiniband");
        assert_eq!(instead(c"/sys/class/infiniband/ubi_lo/ports"), "/ours/sys/class/infiniband/ubi_lo/ports");
        assert_eq!(instead(c"/sys/class/infiniband_verbs/abi_version"), "/ours/sys/class/infiniband_verbs/abi_version");
        assert_eq!(instead(c"/dev/infiniband/uverbs0"), "/ours/dev/infiniband/uverbs0");
        for path in [c"/sys/class/infiniband_mad/x", c"/dev/infinibandit", c"/dev/null", c"sys/class/infiniband", c""] {
            assert_eq!(instead(path), path.to_string_lossy());
        }
    }

    #[test]
    fn a_path_that_would_be_too_long_stays() {
        let long = format!("/dev/infiniband/{}", "x".repeat(ROOM - 20));
        assert_eq!(instead(&std::ffi::CString::new(long.clone()).unwrap()), long);
        assert_eq!(join(b"ab", b"c", &mut [9; 3]), None);
        assert_eq!(join(b"ab", b"c", &mut [9; 4]), Some(&b"abc\0"[..]));
    }

    #[test]
    fn no_path_is_none() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { Path::new().instead(null()) }, null());
    }
}

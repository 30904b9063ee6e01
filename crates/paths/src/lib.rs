//! A library to preload: shows one program files under `/sys/class/infiniband`, `/sys/devices` and `/dev/infiniband`
//! that are not there. Calls of the C library that take such a path get one under the directory that `UBIVERBS_FILES`
//! names instead, and those that resolve links answer without that directory; every other call goes through untouched.
//! It knows nothing of what the files say. Of a port that a failure script breaks there are others (`broken.rs`). Where files
//! count something, the process that tidies them up is asked to
//! bring them up to date first (`attendant.rs`); and it answers `NETLINK_RDMA` (`netlink.rs`).

mod attendant;
mod broken;
mod netlink;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Names the directory in which `sys` and `dev` are.
const FILES_VARIABLE: &CStr = c"UBIVERBS_FILES";

/// What begins so, below the root, is elsewhere: at the end of a name, or where the name goes on.
const REDIRECTED_PREFIXES: [&[u8]; 4] =
    [b"sys/class/infiniband", b"sys/class/infiniband_verbs", b"dev/infiniband", b"sys/class/pci_bus"];

/// Where devices without a place of their own are, beside the GPUs.
const OWN_PCI_ROOTS: &[u8] = b"sys/devices/pci7562:";

/// Where the kernel has devices, and the directories there which have those of RDMA.
const DEVICES_DIRECTORY: &[u8] = b"sys/devices/";
const OF_DEVICES: [&[u8]; 2] = [b"infiniband", b"infiniband_verbs"];

/// The longest path the system takes.
const MAX_PATH_BYTES: usize = libc::PATH_MAX as usize;

/// A path, and room for another in its place.
struct Path {
    room: [u8; MAX_PATH_BYTES],
}

impl Path {
    fn new() -> Path {
        Path { room: [0; MAX_PATH_BYTES] }
    }

    /// The path to use in place of this one: mostly itself.
    ///
    /// # Safety
    /// It is null or a C string.
    unsafe fn instead(&mut self, directory: Option<c_int>, path: *const c_char) -> *const c_char {
        if path.is_null() {
            return path;
        }
        // SAFETY: the caller says that it is a string.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        // Programs that can be told to look at another system begin at a descriptor of its root.
        let below = bytes.strip_prefix(b"/");
        if !is_elsewhere(below.unwrap_or(bytes)) || below.is_none() && !directory.is_some_and(is_root) {
            return path;
        }
        let below = below.unwrap_or(bytes);
        match files() {
            Some(files) => {
                if of_counters(below) {
                    attendant::refresh(files);
                }
                if let Some(rest) = of_port(below)
                    && let Some(path) = broken::instead(files, rest, &mut self.room)
                {
                    return path;
                }
                join(&[files.to_bytes(), b"/", below], &mut self.room).map_or(path, |path| path.as_ptr().cast())
            }
            None => path,
        }
    }
}

/// Whether a path below the root is one of those that we show.
fn is_elsewhere(path: &[u8]) -> bool {
    let begins =
        |start: &&[u8]| path.strip_prefix(*start).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')));
    let of_device = |rest: &[u8]| rest.split(|byte| *byte == b'/').any(|name| OF_DEVICES.contains(&name));
    REDIRECTED_PREFIXES.iter().any(begins)
        || path.starts_with(OWN_PCI_ROOTS)
        || path.strip_prefix(DEVICES_DIRECTORY).is_some_and(of_device)
}

/// Whether it is among files that say how often something happened.
fn of_counters(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| matches!(name, b"counters" | b"hw_counters"))
}

/// What follows the class in a path of something that a port has: `ubi_lo/ports/1/state`.
fn of_port(path: &[u8]) -> Option<&[u8]> {
    const CLASS: &[u8] = b"infiniband/";
    let begin = path.windows(CLASS.len()).position(|part| part == CLASS)? + CLASS.len();
    let rest = &path[begin..];
    let mut names = rest.split(|byte| *byte == b'/').skip(1);
    (names.next() == Some(b"ports") && names.nth(1).is_some() && !names.any(|name| name == b"..")).then_some(rest)
}

/// Whether a descriptor is of the root directory.
fn is_root(descriptor: c_int) -> bool {
    // SAFETY: all zeros are such structures; the calls write into them, and read a string.
    unsafe {
        let (mut it, mut root): (libc::stat, libc::stat) = (std::mem::zeroed(), std::mem::zeroed());
        descriptor >= 0
            && libc::fstat(descriptor, &raw mut it) == 0
            && libc::stat(c"/".as_ptr(), &raw mut root) == 0
            && (it.st_dev, it.st_ino) == (root.st_dev, root.st_ino)
    }
}

/// A path that was resolved, without the directory in which our files really are.
///
/// # Safety
/// It is null or a C string that may be written.
unsafe fn shown(path: *mut c_char) -> *mut c_char {
    let Some(files) = files().filter(|_| !path.is_null()) else { return path };
    // SAFETY: a string, which ends with a zero; what remains of it moves to its beginning, and is shorter.
    unsafe {
        let bytes = CStr::from_ptr(path).to_bytes_with_nul();
        if let Some(rest) = bytes.strip_prefix(files.to_bytes()).filter(|rest| rest.first() == Some(&b'/')) {
            path.copy_from(rest.as_ptr().cast(), rest.len());
        }
    }
    path
}

/// One after the other, and a zero; none if they do not fit.
fn join<'a>(parts: &[&[u8]], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut length = 0;
    for part in parts {
        room.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    *room.get_mut(length)? = 0;
    room.get(..=length)
}

/// The directory, as it was named when it was first needed: programs change their environment.
fn files() -> Option<&'static CStr> {
    static KEPT: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    let mut kept = KEPT.load(Ordering::Acquire);
    if kept.is_null() {
        // SAFETY: the name is a string; what is found is copied at once, and the copy stays for ever. Two threads that
        // are here at the same time make the same copy.
        unsafe {
            let found = libc::getenv(FILES_VARIABLE.as_ptr());
            // A program with more rights than its user believes no variable of his.
            if found.is_null() || libc::getauxval(libc::AT_SECURE) != 0 {
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

/// Functions whose path is their first argument, or the second behind a directory (in brackets) or another number. What
/// they answer if there is no such function stands at the end, and what is done to their answer before that.
macro_rules! redirect {
    ($($name:literal $function:ident($({$version:ident})? $([$at:ident])? path $(, $argument:ident: $type:ty)*) -> $answer:ty $(, $then:ident)?; $otherwise:expr;)*) => {$(
        #[doc = concat!("`", $name, "`, with another path where that is due.")]
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function($($version: c_int,)? $($at: c_int,)? path: *const c_char $(, $argument: $type)*) -> $answer {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            });
            let Some(next) = NEXT.get() else {
                missing();
                return $otherwise;
            };
            let directory: &[c_int] = &[$($at)?];
            // SAFETY: the C library's function of this name has these arguments; the path is a string, as its caller
            // promised.
            unsafe {
                let next: unsafe extern "C" fn($(redirect!(number $version),)? $(redirect!(number $at),)? *const c_char $(, $type)*) -> $answer =
                    std::mem::transmute(next);
                let mut room = Path::new();
                let answer = next($($version,)? $($at,)? room.instead(directory.first().copied(), path) $(, $argument)*);
                $(let answer = $then(answer);)?
                answer
            }
        }
    )*};
    (number $name:ident) => { c_int };
}

// A mode that `open` was not given is one that it does not look at.
redirect! {
    "open" open(path, flags: c_int, mode: c_uint) -> c_int; -1;
    "open64" open64(path, flags: c_int, mode: c_uint) -> c_int; -1;
    "__open_2" open_2(path, flags: c_int) -> c_int; -1;
    "__open64_2" open64_2(path, flags: c_int) -> c_int; -1;
    "openat" openat([at] path, flags: c_int, mode: c_uint) -> c_int; -1;
    "openat64" openat64([at] path, flags: c_int, mode: c_uint) -> c_int; -1;
    "__openat_2" openat_2([at] path, flags: c_int) -> c_int; -1;
    "__openat64_2" openat64_2([at] path, flags: c_int) -> c_int; -1;
    "fopen" fopen(path, mode: *const c_char) -> *mut c_void; null_mut();
    "fopen64" fopen64(path, mode: *const c_char) -> *mut c_void; null_mut();
    "freopen" freopen(path, mode: *const c_char, stream: *mut c_void) -> *mut c_void; null_mut();
    "freopen64" freopen64(path, mode: *const c_char, stream: *mut c_void) -> *mut c_void; null_mut();
    "opendir" opendir(path) -> *mut c_void; null_mut();
    "scandir" scandir(path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int; -1;
    "scandir64" scandir64(path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int; -1;
    "stat" stat(path, answer: *mut c_void) -> c_int; -1;
    "stat64" stat64(path, answer: *mut c_void) -> c_int; -1;
    "lstat" lstat(path, answer: *mut c_void) -> c_int; -1;
    "lstat64" lstat64(path, answer: *mut c_void) -> c_int; -1;
    "fstatat" fstatat([at] path, answer: *mut c_void, flags: c_int) -> c_int; -1;
    "fstatat64" fstatat64([at] path, answer: *mut c_void, flags: c_int) -> c_int; -1;
    "statx" statx([at] path, flags: c_int, mask: c_uint, answer: *mut c_void) -> c_int; -1;
    "__xstat" xstat({version} path, answer: *mut c_void) -> c_int; -1;
    "__xstat64" xstat64({version} path, answer: *mut c_void) -> c_int; -1;
    "__lxstat" lxstat({version} path, answer: *mut c_void) -> c_int; -1;
    "__lxstat64" lxstat64({version} path, answer: *mut c_void) -> c_int; -1;
    "__fxstatat" fxstatat({version} [at] path, answer: *mut c_void, flags: c_int) -> c_int; -1;
    "__fxstatat64" fxstatat64({version} [at] path, answer: *mut c_void, flags: c_int) -> c_int; -1;
    "statfs" statfs(path, answer: *mut c_void) -> c_int; -1;
    "statfs64" statfs64(path, answer: *mut c_void) -> c_int; -1;
    "statvfs" statvfs(path, answer: *mut c_void) -> c_int; -1;
    "statvfs64" statvfs64(path, answer: *mut c_void) -> c_int; -1;
    "getxattr" getxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize; -1;
    "lgetxattr" lgetxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize; -1;
    "listxattr" listxattr(path, list: *mut c_char, size: usize) -> isize; -1;
    "llistxattr" llistxattr(path, list: *mut c_char, size: usize) -> isize; -1;
    "access" access(path, mode: c_int) -> c_int; -1;
    "eaccess" eaccess(path, mode: c_int) -> c_int; -1;
    "euidaccess" euidaccess(path, mode: c_int) -> c_int; -1;
    "faccessat" faccessat([at] path, mode: c_int, flags: c_int) -> c_int; -1;
    "readlink" readlink(path, room: *mut c_char, size: usize) -> isize; -1;
    "__readlink_chk" readlink_chk(path, room: *mut c_char, size: usize, has: usize) -> isize; -1;
    "readlinkat" readlinkat([at] path, room: *mut c_char, size: usize) -> isize; -1;
    "__readlinkat_chk" readlinkat_chk([at] path, room: *mut c_char, size: usize, has: usize) -> isize; -1;
    "realpath" realpath(path, room: *mut c_char) -> *mut c_char, shown; null_mut();
    "__realpath_chk" realpath_chk(path, room: *mut c_char, has: usize) -> *mut c_char, shown; null_mut();
    "canonicalize_file_name" canonicalize_file_name(path) -> *mut c_char, shown; null_mut();
    "chdir" chdir(path) -> c_int; -1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    /// What a path becomes, with the directory `/ours`.
    fn instead(path: &CStr) -> String {
        // SAFETY: set once, before anybody else looks, to what it stays; the strings are strings.
        unsafe {
            libc::setenv(FILES_VARIABLE.as_ptr(), c"/ours".as_ptr(), 1);
            let mut room = Path::new();
            CStr::from_ptr(room.instead(None, path.as_ptr())).to_string_lossy().into_owned()
        }
    }

    #[test]
    fn only_our_paths_are_elsewhere() {
        assert_eq!(instead(c"/sys/class/infiniband"), "/ours/sys/class/infiniband");
        assert_eq!(instead(c"/sys/class/infiniband/ubi_lo/ports"), "/ours/sys/class/infiniband/ubi_lo/ports");
        assert_eq!(instead(c"/sys/class/infiniband_verbs/abi_version"), "/ours/sys/class/infiniband_verbs/abi_version");
        assert_eq!(instead(c"/dev/infiniband/uverbs0"), "/ours/dev/infiniband/uverbs0");
        let gpu = c"/sys/class/pci_bus/0000:00/../../0000:00:06.0";
        assert_eq!(instead(gpu), format!("/ours{}", gpu.to_str().unwrap()));
        assert_eq!(instead(c"/sys/devices/pci7562:00/x/class"), "/ours/sys/devices/pci7562:00/x/class");
        assert_eq!(instead(c"/sys/devices/virtual/infiniband/x/ports"), "/ours/sys/devices/virtual/infiniband/x/ports");
        for path in [
            c"/sys/class/infiniband_mad/x",
            c"/dev/infinibandit",
            c"/dev/null",
            c"sys/class/infiniband",
            c"/sys/devices/virtual/infinibandit/x",
            c"/sys/devices/pci0000:00/0000:00:03.0",
            c"",
        ] {
            assert_eq!(instead(path), path.to_string_lossy());
        }
    }

    #[test]
    fn a_path_may_begin_at_a_descriptor_of_the_root() {
        assert_eq!(instead(c"/dev/infiniband"), "/ours/dev/infiniband");
        // SAFETY: the paths are strings.
        let at = |directory: &CStr, path: &CStr| unsafe {
            let descriptor = libc::open(directory.as_ptr(), libc::O_PATH);
            let mut room = Path::new();
            let instead = CStr::from_ptr(room.instead(Some(descriptor), path.as_ptr())).to_string_lossy().into_owned();
            libc::close(descriptor);
            instead
        };
        assert_eq!(at(c"/", c"sys/class/infiniband"), "/ours/sys/class/infiniband");
        assert_eq!(at(c"/", c"sys/class/net"), "sys/class/net");
        assert_eq!(at(c"/tmp", c"sys/class/infiniband"), "sys/class/infiniband");
    }

    #[test]
    fn a_resolved_path_is_shown_where_the_program_looked() {
        assert_eq!(instead(c"/dev/infiniband"), "/ours/dev/infiniband");
        // SAFETY: copies of strings, freed once.
        let shown = |path: &CStr| unsafe {
            let copy = shown(libc::strdup(path.as_ptr()));
            let text = CStr::from_ptr(copy).to_string_lossy().into_owned();
            libc::free(copy.cast());
            text
        };
        assert_eq!(shown(c"/ours/sys/devices/virtual/infiniband/x"), "/sys/devices/virtual/infiniband/x");
        assert_eq!(shown(c"/oursother"), "/oursother");
        assert_eq!(shown(c"/sys"), "/sys");
    }

    #[test]
    fn a_path_that_would_be_too_long_stays() {
        let long = format!("/dev/infiniband/{}", "x".repeat(MAX_PATH_BYTES - 20));
        assert_eq!(instead(&std::ffi::CString::new(long.clone()).unwrap()), long);
        assert_eq!(join(&[b"ab", b"c"], &mut [9; 3]), None);
        assert_eq!(join(&[b"ab", b"", b"c"], &mut [9; 4]), Some(&b"abc\0"[..]));
    }

    #[test]
    fn no_path_is_none() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { Path::new().instead(None, null()) }, null());
    }
}

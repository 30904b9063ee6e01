//! What the dynamic linker is told, so that a program gets our libraries: `LD_LIBRARY_PATH`, for programs that look for
//! the system's, and `LD_PRELOAD`, for those that bring copies of their own. A copy is found by the program's own path
//! (`DT_RPATH`) or has another name, as in Python's wheels. Symbols and their versions are looked up in what is
//! preloaded first, so the copy is loaded and never called.

use crate::exit::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The libraries that programs look for. The others jump into the first.
pub const LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"];

/// What makes sockets rsockets.
pub const SOCKETS_LIBRARY: &str = "librspreload.so";

/// What answers for the device files.
pub const PATHS_LIBRARY: &str = "libubiverbs-paths.so";

/// What the dynamic linker loads before anything else.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Where the dynamic linker looks first.
pub const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// What the runtimes of sanitizers are told: AddressSanitizer's need not be the first library, as it insists otherwise
/// though it needs nothing of that order, and ThreadSanitizer's lets forked children start threads. Programs that the
/// program starts are to start as well, so it is no matter whether this one has such a runtime.
pub const SANITIZER_OPTIONS: [(&str, &str); 2] =
    [("ASAN_OPTIONS", "verify_asan_link_order=0"), ("TSAN_OPTIONS", "die_after_fork=0")];

/// What AddressSanitizer's is told where a program goes on after reports: all of the NIC's come from one place in our
/// code, and count as the same otherwise.
pub const ASAN_CONTINUES: (&str, &str) =
    ("ASAN_OPTIONS", "verify_asan_link_order=0:halt_on_error=0:suppress_equal_pcs=0");

/// Ours, then what the user has, which has the last word.
pub fn options(ours: &str, users: Option<OsString>) -> OsString {
    let mut options = OsString::from(ours);
    if let Some(users) = users.filter(|users| !users.is_empty()) {
        options.push(":");
        options.push(users);
    }
    options
}

/// Our directory, then what the user has.
pub fn search_path(directory: &Path, users: Option<OsString>) -> Result<OsString, Failure> {
    // It takes a semicolon for a colon, and replaces what begins with a dollar.
    if directory.as_os_str().as_bytes().iter().any(|byte| b":;$".contains(byte)) {
        return Err(Failure::Unloadable { path: directory.to_owned() });
    }
    let mut path = directory.as_os_str().to_owned();
    if let Some(users) = users.filter(|users| !users.is_empty()) {
        path.push(":");
        path.push(users);
    }
    Ok(path)
}

/// What the user preloads, then ours: some libraries insist on being first, as sanitizers do. Other copies of ours are
/// left out: the first would win.
pub fn preloaded(directory: &Path, ours: &[&str], users: Option<OsString>) -> OsString {
    let name = |entry: &[u8]| Path::new(OsStr::from_bytes(entry)).file_name().map(OsStr::to_owned);
    let users = users.unwrap_or_default().into_vec();
    let mut list: Vec<Vec<u8>> = users
        .split(|byte| b" :".contains(byte))
        .filter(|entry| !entry.is_empty() && !ours.iter().any(|ours| name(entry).as_deref() == Some(OsStr::new(ours))))
        .map(<[u8]>::to_vec)
        .collect();
    for ours in ours {
        // A path survives a program that sets its own search path. One with a space cannot be written here; a bare name
        // is searched for.
        let path = directory.join(ours).into_os_string().into_vec();
        list.push(if path.contains(&b' ') { ours.as_bytes().to_vec() } else { path });
    }
    OsString::from_vec(list.join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preload(directory: &str, users: &str) -> String {
        preloaded(Path::new(directory), &LIBRARIES, Some(users.into())).into_string().unwrap()
    }

    #[test]
    fn ours_come_after_what_the_user_preloads() {
        assert_eq!(preload("/d", ""), "/d/libibverbs.so.1:/d/librdmacm.so.1:/d/libibumad.so.3");
        assert_eq!(
            preload("/d", "libasan.so.8 /x/y.so"),
            "libasan.so.8:/x/y.so:/d/libibverbs.so.1:/d/librdmacm.so.1:/d/libibumad.so.3"
        );
    }

    #[test]
    fn other_copies_of_ours_are_left_out() {
        assert_eq!(
            preload("/d", "/old/librdmacm.so.1:a.so:libibverbs.so.1"),
            "a.so:/d/libibverbs.so.1:/d/librdmacm.so.1:/d/libibumad.so.3"
        );
    }

    #[test]
    fn the_users_options_have_the_last_word() {
        assert_eq!(options("a=0", None), "a=0");
        assert_eq!(options("a=0", Some("a=1:b=2".into())), "a=0:a=1:b=2");
    }

    #[test]
    fn a_directory_with_a_space_is_searched() {
        assert_eq!(preload("/a b", ""), "libibverbs.so.1:librdmacm.so.1:libibumad.so.3");
    }

    #[test]
    fn what_the_linker_would_take_for_something_else_is_refused() {
        assert!(search_path(Path::new("/a:b"), None).is_err());
        assert!(search_path(Path::new("/$ORIGIN"), None).is_err());
        assert_eq!(search_path(Path::new("/a b"), Some("/x:/y".into())).unwrap(), "/a b:/x:/y");
    }
}

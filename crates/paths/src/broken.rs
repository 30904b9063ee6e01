//! Files of ports that a failure script breaks: each process keeps those of its own ports in a directory below that of the
//! files (`crates/hca/src/nic/port_files.rs`), as long as they are broken. A process reads its own, or else those of
//! another process of the run that lives: its ports are the same.

use super::{MAX_PATH_BYTES, join};
use std::ffi::{CStr, c_char};

/// The directory, below that of the files; in it there is one for each process.
const DIRECTORY: &[u8] = b"/broken/";

/// Where a file of a port is instead, if a process has broken that port: `rest` follows the class in its path.
pub fn instead(files: &CStr, rest: &[u8], room: &mut [u8; MAX_PATH_BYTES]) -> Option<*const c_char> {
    let mut number = [0; 12];
    // SAFETY: numbers; strings that end with a zero; a directory that is open until it is closed, and whose entry is
    // read before the next is asked for.
    unsafe {
        let errno = *libc::__errno_location();
        let mut found = in_process(files, decimal(libc::getpid(), &mut number), rest, room);
        if !found {
            join(&[files.to_bytes(), DIRECTORY], room)?;
            let directory = libc::opendir(room.as_ptr().cast());
            while !found && !directory.is_null() {
                let entry = libc::readdir(directory);
                if entry.is_null() {
                    break;
                }
                let name = CStr::from_ptr((&raw const (*entry).d_name).cast());
                found = lives(name) && in_process(files, name.to_bytes(), rest, room);
            }
            if !directory.is_null() {
                libc::closedir(directory);
            }
        }
        *libc::__errno_location() = errno;
        found.then_some(room.as_ptr().cast())
    }
}

/// Whether the process has a file for this one; its path is in `room` then.
fn in_process(files: &CStr, process: &[u8], rest: &[u8], room: &mut [u8]) -> bool {
    // SAFETY: a string.
    join(&[files.to_bytes(), DIRECTORY, process, b"/", rest], room)
        .is_some_and(|path| unsafe { libc::access(path.as_ptr().cast(), libc::F_OK) == 0 })
}

/// Whether there is a process with this number.
fn lives(name: &CStr) -> bool {
    let number = name.to_str().ok().and_then(|name| name.parse::<libc::pid_t>().ok());
    // SAFETY: nothing is sent.
    number.is_some_and(|pid| pid > 0 && unsafe { libc::kill(pid, 0) == 0 })
}

/// A number in decimal digits.
fn decimal(number: libc::pid_t, room: &mut [u8; 12]) -> &[u8] {
    let (mut left, mut begin) = (number.unsigned_abs(), room.len());
    loop {
        begin -= 1;
        room[begin] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            return &room[begin..];
        }
    }
}

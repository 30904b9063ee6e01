//! The limit of file sizes (`ulimit -f`). It counts for memory that is shared as a file, too. Beyond it the kernel
//! sends SIGXFSZ, which ends a program that did not expect it: so whatever may become long asks first.

use std::io;
use std::mem::MaybeUninit;

/// How long a file may become.
pub fn largest() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: fills in a live structure, for which zeros are a value.
    let (answer, limit) = unsafe { (libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()), limit.assume_init()) };
    if answer == 0 { limit.rlim_cur } else { u64::MAX }
}

/// Whether a file may have that length; `EFBIG` if not.
pub fn check(length: u64) -> io::Result<()> {
    if length <= largest() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFBIG)) }
}

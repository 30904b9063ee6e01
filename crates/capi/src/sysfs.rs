//! Files under `/sys` that programs ask the library for. There are none for the devices of this library unless some
//! were mounted there; the answers are what one gets for a file that is not there.

use crate::boundary::number;
use crate::errno::{Errno, refuse_if};
use abi::{Handle, ibv_device};
use latch::PerProcess;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where sysfs is: `SYSFS_PATH`, or `/sys`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: PerProcess<CString> = PerProcess::new();
    PATH.get_or_make(|| {
        let path = hca::environment::variable("SYSFS_PATH")
            .and_then(|path| path.into_string().ok())
            .unwrap_or_else(|| "/sys".into());
        CString::new(path.trim_end_matches('/')).unwrap_or_default()
    })
    .as_ptr()
}

/// Reads `file` of `directory`; the length, or -1.
///
/// # Safety
/// `directory` and `file` are null or C strings; `buffer` is null or has room for `size` characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    number("ibv_read_sysfs_file", || {
        refuse_if!(directory.is_null() || file.is_null() || buffer.is_null(), Errno::INVALID);
        // SAFETY: not null, so C strings.
        let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
        let path = |text: &CStr| Path::new(OsStr::from_bytes(text.to_bytes())).to_path_buf();
        let content = std::fs::read(path(directory).join(path(file)))?;
        // SAFETY: not null, so with room for `size` characters.
        Ok(unsafe { fill(&content, buffer, size) })
    })
}

/// Reads a file of a device's directory.
///
/// # Safety
/// `buffer` is null or has room for `size` characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    _device: Handle<'_, ibv_device>,
    _format: *const c_char,
) -> c_int {
    number("ibv_read_ibdev_sysfs_file", || {
        if !buffer.is_null() && size > 0 {
            // SAFETY: not null, and with room.
            unsafe { buffer.write(0) };
        }
        Err(Errno::of(libc::ENOENT))
    })
}

/// Copies text without its last newline, and ends it with a zero.
///
/// # Safety
/// `buffer` has room for `size` characters.
unsafe fn fill(content: &[u8], buffer: *mut c_char, size: usize) -> c_int {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    let length = content.len().min(size.saturating_sub(1));
    if size > 0 {
        // SAFETY: fewer characters than `size`, and the zero after them.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(content.as_ptr(), length);
            buffer.add(length).write(0);
        }
    }
    length as c_int
}

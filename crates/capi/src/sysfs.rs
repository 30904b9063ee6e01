//! Files under `/sys` that programs ask the library for. There are none for our devices unless somebody mounted some; the answers are what
//! one gets for a file that is not there.

use crate::boundary::number;
use crate::errno::Errno;
use abi::ibv_device;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Where sysfs is: `SYSFS_PATH`, or `/sys`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = std::env::var("SYSFS_PATH").unwrap_or_else(|_| "/sys".into());
        CString::new(path.trim_end_matches('/')).unwrap_or_default()
    })
    .as_ptr()
}

/// Reads `file` of `directory`; the length, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    number("ibv_read_sysfs_file", || {
        if directory.is_null() || file.is_null() || buffer.is_null() {
            return Err(Errno::INVALID);
        }
        let text = |string| Path::new(OsStr::from_bytes(CStr::to_bytes(CStr::from_ptr(string))));
        let content = std::fs::read(text(directory).join(text(file)))?;
        Ok(fill(&content, buffer, size))
    })
}

/// Reads a file of a device's directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    _device: *mut ibv_device,
    _format: *const c_char,
) -> c_int {
    number("ibv_read_ibdev_sysfs_file", || {
        if !buffer.is_null() && size > 0 {
            buffer.write(0);
        }
        Err(Errno(libc::ENOENT))
    })
}

/// Copies text without its last newline, and ends it with a zero.
unsafe fn fill(content: &[u8], buffer: *mut c_char, size: usize) -> c_int {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    let length = content.len().min(size.saturating_sub(1));
    buffer.cast::<u8>().copy_from_nonoverlapping(content.as_ptr(), length);
    if size > 0 {
        buffer.add(length).write(0);
    }
    length as c_int
}

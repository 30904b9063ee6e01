//! Between files and sockets: `sendfile` and `splice`.

use super::{data, errno, fail, handover, real, table};
use libc::{size_t, ssize_t};
use std::ffi::{c_int, c_uint};

/// Bytes of a file that are read at a time.
const CHUNK_BYTES: usize = 128 << 10;

/// As much as the kernel sends at most.
const MAX_SENDFILE_BYTES: usize = 0x7fff_f000;

/// `sendfile` and `sendfile64`. The file's position, or the offset, is where the next byte is that was not sent.
#[unsafe(export_name = "ubiverbs_rspreload_sendfile")]
pub unsafe extern "C-unwind" fn sendfile(out: c_int, from: c_int, offset: *mut i64, length: size_t) -> ssize_t {
    if table::socket(from).is_some() {
        handover::hand_over_descriptor(from);
    }
    // SAFETY: the offset is null or one, as `sendfile` asks.
    unsafe {
        if table::direct(out).is_none() {
            return real::sendfile(out, from, offset, length);
        }
        let start = if offset.is_null() { libc::lseek(from, 0, libc::SEEK_CUR) } else { *offset };
        if start < 0 {
            return if offset.is_null() { copy_stream(out, from, length) } else { fail(libc::EINVAL) as ssize_t };
        }
        let result = copy_file(out, from, start, length.min(MAX_SENDFILE_BYTES));
        if result > 0 {
            if offset.is_null() {
                libc::lseek(from, start + result as i64, libc::SEEK_SET);
            } else {
                *offset = start + result as i64;
            }
        }
        result
    }
}

/// Sends a part of a file. Returns how many bytes went, or the failure of the first.
fn copy_file(out: c_int, from: c_int, start: i64, length: usize) -> ssize_t {
    let mut buffer = vec![0_u8; CHUNK_BYTES.min(length.max(1))];
    let mut sent = 0;
    while sent < length {
        let wanted = buffer.len().min(length - sent);
        // SAFETY: a buffer and its length.
        let read = unsafe { real::pread(from, buffer.as_mut_ptr().cast(), wanted, start + sent as i64) };
        let failed = match read {
            0 => break,
            1.. => {
                // SAFETY: bytes and their length.
                let written = unsafe { data::write(out, buffer.as_ptr().cast(), read as usize) };
                if written > 0 {
                    sent += written as usize;
                    if written == read {
                        continue;
                    }
                    break;
                }
                written
            }
            _ => read,
        };
        return if sent > 0 { sent as ssize_t } else { failed };
    }
    sent as ssize_t
}

/// From what has no positions: what is read must be sent, so no more is read than is sent.
fn copy_stream(out: c_int, from: c_int, length: usize) -> ssize_t {
    handover::hand_over_descriptor(out);
    // SAFETY: both are the kernel's now.
    unsafe { real::sendfile(out, from, std::ptr::null_mut(), length) }
}

/// `splice`: the kernel's, between what is the kernel's.
#[unsafe(export_name = "ubiverbs_rspreload_splice")]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    let code = errno();
    handover::hand_over_descriptor(from);
    handover::hand_over_descriptor(to);
    fail(code);
    // SAFETY: both offsets are null or one, as `splice` asks.
    unsafe { real::splice(from, from_at, to, to_at, length, flags) }
}

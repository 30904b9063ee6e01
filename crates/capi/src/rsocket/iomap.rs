//! `riomap`, `riounmap` and `riowrite`: memory that a program lends its peer's program.

use super::table::{SocketEntry, entry};
use super::waiting::{Operation, errno, perform};
use crate::boundary::{data_path, number, zero};
use crate::errno::{Errno, refuse_if};
use libc::{off_t, size_t};
use sockets::{LentMemory, Slices, Waitable};
use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;
use transport::Access;

/// Lends memory. Returns the offset by which the peer calls it: the one that is given, or its address.
///
/// # Safety
/// `buffer` has `length` bytes, which stay mapped until they are taken back; with `PROT_WRITE` the peer may write into
/// them at any time.
#[unsafe(export_name = "ubiverbs_riomap")]
pub unsafe extern "C" fn riomap(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mut answer = offset;
    let done = number("riomap", || {
        let entry = entry(fd)?;
        let socket = entry.stream()?;
        refuse_if!(protection & !(libc::PROT_WRITE | libc::PROT_NONE) != 0, Errno::INVALID);
        let domain = socket.domain()?;
        let short = u32::try_from(length).map_err(|_| Errno::INVALID)?;
        let for_peer = protection & libc::PROT_WRITE != 0;
        let access = Access::LOCAL_WRITE | if for_peer { Access::REMOTE_WRITE } else { Access::empty() };
        // SAFETY: the memory stays mapped until it is unmapped here, as `riomap` asks.
        let key = unsafe { socket.nic().register(buffer.cast(), length, domain, access) }?;
        if answer == -1 {
            answer = buffer as usize as off_t;
        }
        let memory = LentMemory { address: buffer as u64, length: short, key, offset: answer as u64, for_peer };
        socket.lend(memory).inspect_err(|_| drop(socket.nic().deregister(key)))?;
        Ok(0)
    });
    if done == 0 { answer } else { -1 }
}

/// Takes memory back.
#[unsafe(export_name = "ubiverbs_riounmap")]
pub extern "C" fn riounmap(fd: c_int, buffer: *mut c_void, length: size_t) -> c_int {
    zero("riounmap", || {
        let entry = entry(fd)?;
        let socket = entry.stream()?;
        let key = socket.take_back(buffer as u64, length)?;
        socket.nic().deregister(key)?;
        Ok(())
    })
}

/// Writes into memory that the peer has lent. Returns how much was written.
///
/// # Safety
/// `buffer` is null or has `length` bytes.
#[unsafe(export_name = "ubiverbs_riowrite")]
pub unsafe extern "C-unwind" fn riowrite(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    if buffer.is_null() && length > 0 {
        let fault = entry(fd).err().unwrap_or(Errno::of(libc::EFAULT));
        return data_path::number("riowrite", || Err(fault)) as size_t;
    }
    perform(fd, flags, Write { buffer: buffer.cast(), length, offset: offset as u64, written: 0 }) as size_t
}

struct Write {
    buffer: *const u8,
    length: usize,
    offset: u64,
    written: usize,
}

impl Operation for Write {
    const CALL: &'static str = "riowrite";

    fn attempt(&mut self, entry: &Arc<SocketEntry>) -> Result<(), Errno> {
        while self.written < self.length {
            // SAFETY: the program's bytes, from those on that were not written.
            let left = unsafe { slice::from_raw_parts(self.buffer.add(self.written), self.length - self.written) };
            let at = self.offset.wrapping_add(self.written as u64);
            let some = entry.stream()?.send_direct(&mut Slices::new(&[left]), at).map_err(errno)?;
            if some == 0 {
                // The peer has lent nothing there.
                break;
            }
            self.written += some;
        }
        Ok(())
    }

    fn answer(&self) -> isize {
        self.written as isize
    }

    fn part(&self) -> Option<isize> {
        (self.written > 0).then_some(self.written as isize)
    }
}

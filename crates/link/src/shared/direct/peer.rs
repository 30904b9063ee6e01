//! The requester's side: another process's table, and its memory.

use super::protocol::reach;
use super::published::address_words;
use super::{
    ADDRESS_OFFSET, MAGIC_OFFSET, Mapping, OPEN_OFFSET, SCRATCH_OFFSET, SECRET_OFFSET, Shelf, TABLE_MAGIC, find_entry,
    name_of, set_position, word,
};
use host::descriptor::{Descriptor, Opening};
use latch::{Mutex, Rank};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::access::{Access, Range};
use wire::{Gid, Qpn, refuse_if};

/// The bytes of a WRITE that are stored last, and whole.
const TAIL_BYTES: usize = 8;

/// So many accesses that fail one after the other are not by chance.
pub(super) const FAILURES_MAX: u32 = 16;

/// The table of another process.
#[derive(Debug)]
pub(in super::super) struct PeerTable(Mapping);

impl PeerTable {
    /// The table that a process has by this descriptor, if the kernel lets us read it.
    pub fn open(process: i32, descriptor: u64) -> io::Result<PeerTable> {
        refuse_if!(process <= 0, io::ErrorKind::NotFound.into());
        let file = {
            let _opening = Opening::begin();
            // It may be anything by now: nothing that is opened here may make us wait.
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/{process}/fd/{descriptor}"))?
        };
        let map = Mapping::accept_published(file.as_fd(), Shelf::TABLE_BYTES)?;
        match word(&map, MAGIC_OFFSET).load(Ordering::Acquire) {
            TABLE_MAGIC => Ok(PeerTable(map)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The number that shows that we could.
    pub fn secret(&self) -> u64 {
        word(&self.0, SECRET_OFFSET).load(Ordering::Relaxed)
    }
}

/// An access to memory of the peer.
#[derive(Clone, Copy, Debug)]
pub struct DirectAccess {
    /// The queue pair that asks for it, and its address.
    pub from: Qpn,
    /// See there.
    pub address: Gid,
    /// The peer's queue pair.
    pub to: Qpn,
    /// Which bytes.
    pub range: Range,
    /// [`Access::REMOTE_WRITE`] or [`Access::REMOTE_READ`].
    pub access: Access,
}

/// The memory of another process, as far as that process lets us.
#[derive(Debug)]
pub struct PeerMemory {
    table: PeerTable,
    memory: Descriptor,
    grant: u64,
    /// Its position belongs to the lock's holder.
    turn: Mutex<()>,
    /// Accesses in a row that were allowed and failed. The peer may have taken back other memory at that moment; or the
    /// memory is not there, or the system forbids it.
    failures: AtomicU32,
}

impl PeerMemory {
    /// What the peer has granted, if it can be used.
    pub(in super::super) fn accept(table: PeerTable, memory: OwnedFd, grant: u64) -> io::Result<PeerMemory> {
        let memory = Descriptor::keep(memory);
        check_is_proc(memory.raw())?;
        try_memory(&table.0, memory.raw())?;
        Ok(PeerMemory { table, memory, grant, turn: Mutex::new(Rank::PeerMemory, ()), failures: AtomicU32::new(0) })
    }

    /// Whether the peer lets us in at present.
    #[inline]
    pub fn is_open(&self) -> bool {
        word(&self.table.0, OPEN_OFFSET).load(Ordering::Relaxed) != 0
            && self.failures.load(Ordering::Relaxed) < FAILURES_MAX
    }

    /// Where the first byte lies in the peer, if the peer allows the access.
    #[inline]
    fn find(&self, access: &DirectAccess) -> Option<u64> {
        let map = &self.table.0;
        if word(map, OPEN_OFFSET).load(Ordering::Acquire) == 0 {
            return None;
        }
        find_entry(Shelf::Grants.places(map, self.grant), self.grant)?;
        let queue_pair = name_of(access.to.value());
        let [peer, high, low, granted, ..] = find_entry(Shelf::QueuePairs.places(map, queue_pair), queue_pair)?;
        let wanted = u64::from(access.access.bits());
        if peer != u64::from(access.from.value())
            || [high, low] != address_words(access.address)
            || granted & wanted == 0
        {
            return None;
        }
        let key = name_of(access.range.key.value());
        let [start, length, base, terms, ..] = find_entry(Shelf::Regions.places(map, key), key)?;
        let offset = access.range.address.checked_sub(start)?;
        let fits = access.range.length <= length.checked_sub(offset)?;
        let allowed = terms >> 32 == granted >> 32 && terms & wanted != 0;
        (fits && allowed).then(|| base.wrapping_add(offset))
    }

    /// Writes `length` bytes from `source` on into the peer's memory: ascending, the last up to eight of them last.
    /// False if they were not, or not all, written: then packets say why, or write them.
    ///
    /// # Safety
    /// The kernel may read as many bytes there.
    #[inline]
    pub unsafe fn write(&self, access: &DirectAccess, source: *const u8, length: usize) -> bool {
        let bulk = length.saturating_sub(TAIL_BYTES);
        let piece = |from: usize, length| libc::iovec {
            iov_base: source.wrapping_add(from).cast_mut().cast(),
            iov_len: length,
        };
        let pieces = [piece(0, bulk), piece(bulk, length - bulk)];
        let pieces = if bulk == 0 { &pieces[1..] } else { &pieces };
        // SAFETY: the caller vouches for the bytes; the call is no point of cancellation.
        self.access(access, length, || unsafe {
            libc::syscall(libc::SYS_writev, self.memory.raw(), pieces.as_ptr(), pieces.len())
        })
    }

    /// Reads `length` bytes of the peer's memory to `target`. False if not all were read: packets say why, or read
    /// them.
    ///
    /// # Safety
    /// The kernel may write as many bytes there.
    #[inline]
    pub unsafe fn read(&self, access: &DirectAccess, target: *mut u8, length: usize) -> bool {
        // SAFETY: the caller vouches for the bytes; the call is no point of cancellation.
        self.access(access, length, || unsafe { libc::syscall(libc::SYS_read, self.memory.raw(), target, length) })
    }

    fn access(&self, access: &DirectAccess, length: usize, call: impl FnOnce() -> libc::c_long) -> bool {
        let _turn = self.turn.lock();
        let moved = reach(|| self.find(access), |address| set_position(self.memory.raw(), address), call);
        let done = moved == Some(length as libc::c_long);
        if done {
            if self.failures.load(Ordering::Relaxed) != 0 {
                self.failures.store(0, Ordering::Relaxed);
            }
        } else if moved.is_some() && self.find(access).is_some() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        done
    }
}

/// Whether a descriptor is a file of /proc: nothing there makes who writes to it wait.
fn check_is_proc(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the kernel fills in a live structure, for which zeros are a value.
    let kind = unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        host::descriptor::check(libc::fstatfs(descriptor, &raw mut system))?;
        system.f_type
    };
    if kind == libc::PROC_SUPER_MAGIC { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Reads a word of the process that has published the table, and writes another, by a descriptor of its memory.
pub(super) fn try_memory(table: &Mapping, memory: RawFd) -> io::Result<()> {
    let address = word(table, ADDRESS_OFFSET).load(Ordering::Relaxed);
    let (mut magic, probe) = (0u64, std::process::id() | 1);
    let failed = || match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::ErrorKind::InvalidData.into(),
        error => error,
    };
    set_position(memory, address + MAGIC_OFFSET as u64);
    // SAFETY: eight bytes of a live number.
    let got = unsafe { libc::syscall(libc::SYS_read, memory, &raw mut magic, size_of::<u64>()) };
    refuse_if!(got != size_of::<u64>() as libc::c_long || magic != TABLE_MAGIC, failed());
    set_position(memory, address + SCRATCH_OFFSET as u64);
    // SAFETY: four bytes of a live number.
    let put = unsafe { libc::syscall(libc::SYS_write, memory, &raw const probe, size_of::<u32>()) };
    refuse_if!(put != size_of::<u32>() as libc::c_long, failed());
    Ok(())
}

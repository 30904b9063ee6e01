//! The requester's side: another process's table, and its memory.

use super::claim::Claims;
use super::protocol::{begin_claim, end_claim, reach};
use super::published::{SharedFile, address_words};
use super::restartable::{self, ThreadRecord};
use super::views::Views;
use super::{
    ADDRESS_OFFSET, GENERATION_OFFSET, MAGIC_OFFSET, Mapping, OPEN_OFFSET, SCRATCH_OFFSET, SECRET_OFFSET, Shelf,
    TABLE_MAGIC, find_entry, name_of, set_position, word,
};
use crate::sync::is_registered_for_fences;
use host::descriptor::{Descriptor, Opening};
use latch::{Guard, Mutex, Rank};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wire::access::{Access, Atomic, Range};
use wire::{Gid, Qpn, refuse_if};

/// The longest access by a system call, and the longest piece of one by a mapping. The kernel moves 7 GB/s, and the ring
/// 13 with both processes at work. 16 KiB on 2 processors: WRITE 14.1 -> 5.4 us, READ 12.0 -> 3.3 us.
pub const PIECE_BYTES: usize = 16 * 1024;

/// The bytes of a WRITE that are stored last, and whole.
const TAIL_BYTES: usize = 8;

/// So many accesses are made under one claim at most, and so many bytes moved: the peer's deregistration waits for it.
const CLAIM_MAX_ACCESSES: u32 = 64;
const CLAIM_MAX_BYTES: usize = PIECE_BYTES;

/// So many accesses that fail one after the other are not by chance.
pub(super) const FAILURES_MAX: u32 = 16;

/// The table of another process.
#[derive(Debug)]
pub(in super::super) struct PeerTable {
    map: Mapping,
    process: i32,
}

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
            TABLE_MAGIC => Ok(PeerTable { map, process }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The number that shows that we could.
    pub fn secret(&self) -> u64 {
        word(&self.map, SECRET_OFFSET).load(Ordering::Relaxed)
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
    /// [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`] or [`Access::REMOTE_ATOMIC`].
    pub access: Access,
}

/// How an access was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// By this process's own mapping of the memory.
    ByMapping,
    /// By a system call.
    ByKernel,
}

/// The memory of another process, as far as that process lets us.
#[derive(Debug)]
pub struct PeerMemory {
    table: PeerTable,
    memory: Descriptor,
    grant: u64,
    /// Where this process says what it is at, if it may map the peer's files.
    claims: Option<Claims>,
    /// The position of the open file and the claim belong to the lock's holder.
    turn: Mutex<Turn>,
    /// Accesses in a row that were allowed and failed. The peer may have taken back other memory at that moment; or the
    /// memory is not there, or the system forbids it.
    failures: AtomicU32,
}

/// What accesses of one peer's memory know of each other.
#[derive(Debug, Default)]
struct Turn {
    /// The last answer of the table, which holds for as long as the table is of that generation.
    found: Option<Found>,
    views: Views,
    claims_made: u64,
}

/// An answer of the table.
#[derive(Clone, Copy, Debug)]
struct Found {
    generation: u64,
    /// What was asked. The range is the whole region's.
    access: DirectAccess,
    /// The region's first byte in the peer.
    base: u64,
    /// The region's first byte in this process.
    view: Option<*mut u8>,
    /// The file that it may be mapped from, and the number of its registration.
    file: Option<(SharedFile, u64)>,
}

// SAFETY: the address is of a mapping that belongs to the process; the lock's holder uses it.
unsafe impl Send for Found {}

impl Found {
    /// How far into the region the range begins, if the answer is one to this access.
    #[inline]
    fn offset_of(&self, access: &DirectAccess) -> Option<u64> {
        let DirectAccess { from, address, to, range, access: right } = self.access;
        let is_alike = (from, address, to, range.key, right)
            == (access.from, access.address, access.to, access.range.key, access.access);
        let offset = access.range.address.checked_sub(range.address)?;
        (is_alike && access.range.length <= range.length.checked_sub(offset)?).then_some(offset)
    }
}

impl PeerMemory {
    /// What the peer has granted, if it can be used. The claims are for a peer whose files may be mapped.
    pub(in super::super) fn accept(
        table: PeerTable,
        memory: OwnedFd,
        claims: Option<OwnedFd>,
        grant: u64,
    ) -> io::Result<PeerMemory> {
        let memory = Descriptor::keep(memory);
        check_is_proc(memory.raw())?;
        try_memory(&table.map, memory.raw())?;
        // The peer has to be able to look at the threads that make claims, and these copy by restartable sequences.
        let sees_us = restartable::record().is_some()
            && find_entry(Shelf::Grants.places(&table.map, grant), grant)
                .is_some_and(|[process, ..]| process == u64::from(std::process::id()))
            && has_our_process_numbers(table.process);
        let claims = claims.filter(|_| sees_us).and_then(|page| Claims::accept(page.as_fd()).ok());
        let turn = Mutex::new(Rank::PeerMemory, Turn::default());
        Ok(PeerMemory { table, memory, grant, claims, turn, failures: AtomicU32::new(0) })
    }

    /// Whether the peer lets us in at present.
    #[inline]
    pub fn is_open(&self) -> bool {
        word(&self.table.map, OPEN_OFFSET).load(Ordering::Relaxed) != 0
            && self.failures.load(Ordering::Relaxed) < FAILURES_MAX
    }

    /// Whether the peer allows this access, in memory that this process can map.
    pub fn may_store(&self, access: &DirectAccess) -> bool {
        self.claims.is_some() && self.find(access).is_some_and(|found| found.file.is_some())
    }

    /// Begins accesses, one after the other. Other threads wait until this is dropped.
    #[inline]
    pub fn begin(&self) -> PeerAccesses<'_> {
        PeerAccesses { peer: self, turn: self.turn.lock(), record: None, claimed: None }
    }

    #[inline]
    fn generation(&self) -> &AtomicU64 {
        word(&self.table.map, GENERATION_OFFSET)
    }

    /// The region of an access, if the peer allows it.
    fn find(&self, access: &DirectAccess) -> Option<Found> {
        let map = &self.table.map;
        let generation = self.generation().load(Ordering::Acquire);
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
        let [start, length, base, terms, file, offset, registration] =
            find_entry(Shelf::Regions.places(map, key), key)?;
        let allowed = terms >> 32 == granted >> 32 && terms & wanted != 0;
        let range = Range { address: start, length, ..access.range };
        let found = Found {
            generation,
            access: DirectAccess { range, ..*access },
            base,
            view: None,
            file: SharedFile::from_words([file, offset]).map(|file| (file, registration)),
        };
        (allowed && found.offset_of(access).is_some()).then_some(found)
    }

    /// The same, with the mapping of its file if there is one, for the next accesses to remember.
    #[cold]
    fn find_anew(&self, turn: &mut Turn, access: &DirectAccess) -> Option<Found> {
        let mut found = self.find(access)?;
        if let (Some((file, registration)), Some(_)) = (found.file, &self.claims) {
            let is_published = || self.find(access).is_some_and(|now| now.file == found.file);
            let length = found.access.range.length;
            // The kernel does neither.
            let at_once = access.range.length > PIECE_BYTES as u64 || access.access == Access::REMOTE_ATOMIC;
            found.view = turn.views.first_byte(self.table.process, registration, &file, length, at_once, is_published);
        }
        turn.found = Some(found);
        Some(found)
    }
}

/// Accesses to the memory of one peer, by the thread that began them.
#[derive(Debug)]
pub struct PeerAccesses<'a> {
    peer: &'a PeerMemory,
    turn: Guard<'a, Turn>,
    /// What this thread copies with, once it has.
    record: Option<ThreadRecord>,
    /// How much was done under the claim that stands.
    claimed: Option<Claimed>,
}

/// What was done under a claim.
#[derive(Clone, Copy, Default, Debug)]
struct Claimed {
    accesses: u32,
    bytes: usize,
}

impl PeerAccesses<'_> {
    /// Writes `length` bytes from `source` on into the peer's memory: ascending, the last up to eight of them last.
    /// None if they were not, or not all, written: then packets say why, or write them. By a system call only if it
    /// `may_call`, or if the memory can be mapped soon.
    ///
    /// # Safety
    /// As many bytes may be read there, also by the kernel; by the kernel only, if they `may_vanish`.
    #[inline]
    pub unsafe fn write(
        &mut self,
        access: &DirectAccess,
        source: *const u8,
        length: usize,
        (may_call, may_vanish): (bool, bool),
    ) -> Option<Moved> {
        // SAFETY: the caller vouches for the bytes, and what the mapping has the protocol.
        let copy = |copy: &Copy<'_>, peer: *mut u8, piece: std::ops::Range<usize>| unsafe {
            copy.run(peer.wrapping_add(piece.start), source.wrapping_add(piece.start), piece.len())
        };
        self.access(access, length, (may_call, may_vanish), copy, |memory| {
            let bulk = length.saturating_sub(TAIL_BYTES);
            let piece = |from: usize, length| libc::iovec {
                iov_base: source.wrapping_add(from).cast_mut().cast(),
                iov_len: length,
            };
            let pieces = [piece(0, bulk), piece(bulk, length - bulk)];
            let pieces = if bulk == 0 { &pieces[1..] } else { &pieces };
            // SAFETY: the caller vouches for the bytes; the call is no point of cancellation.
            unsafe { libc::syscall(libc::SYS_writev, memory, pieces.as_ptr(), pieces.len()) }
        })
    }

    /// Reads `length` bytes of the peer's memory to `target`. None if not all were read: packets say why, or read
    /// them. By a system call only if it `may_call`, or if the memory can be mapped soon.
    ///
    /// # Safety
    /// As many bytes may be written there, also by the kernel; by the kernel only, if they `may_vanish`.
    #[inline]
    pub unsafe fn read(
        &mut self,
        access: &DirectAccess,
        target: *mut u8,
        length: usize,
        (may_call, may_vanish): (bool, bool),
    ) -> Option<Moved> {
        // SAFETY: the caller vouches for the bytes, and what the mapping has the protocol.
        let copy = |copy: &Copy<'_>, peer: *mut u8, piece: std::ops::Range<usize>| unsafe {
            copy.run(target.wrapping_add(piece.start), peer.wrapping_add(piece.start), piece.len())
        };
        // SAFETY: the caller vouches for the bytes; the call is no point of cancellation.
        self.access(access, length, (may_call, may_vanish), copy, |memory| unsafe {
            libc::syscall(libc::SYS_read, memory, target, length)
        })
    }

    /// Runs an operation on eight aligned bytes of the peer's, and returns what was there before; none if it was not
    /// run. The processor runs it: it is one towards the peer's program as well.
    #[inline]
    pub fn atomic(&mut self, access: &DirectAccess, operation: Atomic) -> Option<u64> {
        let (found, offset) = self.find(access)?;
        let (view, claims) = (found.view?, self.peer.claims.as_ref()?);
        let view = view.wrapping_add(offset as usize);
        if access.range.length != 8 || !view.addr().is_multiple_of(8) {
            return None;
        }
        let record = self.record.or_else(restartable::record)?;
        self.record = Some(record);
        self.claim(claims, &record, size_of::<u64>());
        let generation = (self.peer.generation().as_ptr().cast_const(), found.generation);
        // SAFETY: eight bytes of the mapping, aligned; this thread's record, and a word that lives.
        unsafe { restartable::atomic_while(&record, generation, view, operation) }
    }

    /// What the table says of an access; the last answer may do.
    #[inline]
    fn find(&mut self, access: &DirectAccess) -> Option<(Found, u64)> {
        if let Some(found) = &self.turn.found
            && found.generation == self.peer.generation().load(Ordering::Acquire)
            && let Some(offset) = found.offset_of(access)
            && (found.view.is_some() || found.file.is_none())
        {
            return Some((*found, offset));
        }
        self.end_claim();
        let found = self.peer.find_anew(&mut self.turn, access)?;
        found.offset_of(access).map(|offset| (found, offset))
    }

    #[inline]
    fn access(
        &mut self,
        access: &DirectAccess,
        length: usize,
        (may_call, may_vanish): (bool, bool),
        copy: impl Fn(&Copy<'_>, *mut u8, std::ops::Range<usize>) -> bool,
        call: impl FnOnce(RawFd) -> libc::c_long,
    ) -> Option<Moved> {
        let (found, offset) = self.find(access)?;
        let peer = self.peer;
        let generation = (peer.generation(), found.generation);
        let address = found.base.wrapping_add(offset);
        if let (Some(view), Some(claims)) = (found.view, &peer.claims)
            && !may_vanish
            && restartable::fits(address, length)
            && let Some(record) = self.record.or_else(restartable::record)
        {
            self.record = Some(record);
            let view = view.wrapping_add(offset as usize);
            // Piece by piece: the peer's deregistration waits for one.
            let mut from = 0;
            while from < length {
                let piece = from..length.min(from + PIECE_BYTES);
                from = piece.end;
                self.claim(claims, &record, piece.len());
                if !copy(&Copy { record: &record, generation }, view, piece) {
                    return None;
                }
            }
            return Some(Moved::ByMapping);
        }
        self.end_claim();
        if length > PIECE_BYTES || !may_call && (found.file.is_none() || peer.claims.is_none()) {
            return None;
        }
        let memory = peer.memory.raw();
        let moved = reach(generation, || set_position(memory, address), || call(memory));
        let done = moved == Some(length as libc::c_long);
        if done {
            if peer.failures.load(Ordering::Relaxed) != 0 {
                peer.failures.store(0, Ordering::Relaxed);
            }
        } else if moved.is_some() && peer.find(access).is_some() {
            peer.failures.fetch_add(1, Ordering::Relaxed);
        }
        done.then_some(Moved::ByKernel)
    }

    /// Says that this thread is at it, unless it says so already and has not done much since.
    #[inline]
    fn claim(&mut self, claims: &Claims, record: &ThreadRecord, bytes: usize) {
        match &mut self.claimed {
            Some(claimed) if claimed.accesses < CLAIM_MAX_ACCESSES && claimed.bytes + bytes <= CLAIM_MAX_BYTES => {
                claimed.accesses += 1;
                claimed.bytes += bytes;
            }
            claimed => {
                *claimed = Some(Claimed { accesses: 1, bytes });
                self.turn.claims_made += 1;
                let claim = self.turn.claims_made << 32 | u64::from(record.thread());
                begin_claim(claims.word(), claim, is_registered_for_fences());
            }
        }
    }

    #[inline]
    fn end_claim(&mut self) {
        if self.claimed.take().is_some()
            && let Some(claims) = &self.peer.claims
        {
            end_claim(claims.word());
        }
    }
}

impl Drop for PeerAccesses<'_> {
    #[inline]
    fn drop(&mut self) {
        self.end_claim();
    }
}

/// What a copy by a mapping needs.
struct Copy<'a> {
    record: &'a ThreadRecord,
    generation: (&'a AtomicU64, u64),
}

impl Copy<'_> {
    /// False if the peer has taken something back, or if the thread was interrupted too often.
    ///
    /// # Safety
    /// Both ranges have so many bytes.
    #[inline]
    unsafe fn run(&self, to: *mut u8, from: *const u8, length: usize) -> bool {
        let (generation, expected) = self.generation;
        // SAFETY: the caller's ranges, this thread's record, and a word that lives.
        unsafe { restartable::copy_while(self.record, (generation.as_ptr(), expected), to, from, length) }
    }
}

/// Whether a process knows threads by the numbers that this one knows them by.
fn has_our_process_numbers(process: i32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    namespace("self").is_some_and(|ours| namespace(&process.to_string()) == Some(ours))
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

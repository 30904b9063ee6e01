//! Memory that the program has mapped itself, shared and from a file: peers can map that file as well. Only where it can
//! never become shorter (a memfd sealed against shrinking): a store beyond the end of a file ends the process that makes
//! it, and anybody who has the file may truncate it. Other shared memory is reached as private memory is.
//!
//! The kernel says what is mapped (`PROCMAP_QUERY`, Linux 6.11), and the file is found among the descriptors of the
//! process, where the program may have closed it: then it is not.

use crate::mapping::is_sealed;
use crate::shareable::FilePart;
use latch::plain::Mutex;
use latch::{PerProcess, Rank};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use wire::refuse_if;

/// So many files of the program are held open at a time.
const MAX_PROGRAM_FILES: usize = 64;

/// The files that regions hold.
static KNOWN_FILES: Mutex<Vec<Weak<ProgramFile>>> = Mutex::new(Rank::ReplacedPages, Vec::new());

/// A file of the program, with a descriptor of its own for as long as a region is published with it.
#[derive(Debug)]
struct ProgramFile {
    descriptor: OwnedFd,
    identity: Identity,
}

/// Which file: its device, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    device: (u32, u32),
    inode: u64,
}

/// The part of a file that a region is of.
#[derive(Clone, Debug)]
pub(crate) struct ProgramPart {
    file: Arc<ProgramFile>,
    offset: u64,
}

impl ProgramPart {
    /// As it is published.
    pub(crate) fn part(&self) -> FilePart {
        let ProgramFile { descriptor, identity } = &*self.file;
        FilePart { descriptor: descriptor.as_raw_fd(), inode: identity.inode, offset: self.offset }
    }
}

/// The file that all of a range is mapped from, shared and to be written, if peers may map it as well.
pub(crate) fn find(start: usize, length: usize) -> Option<ProgramPart> {
    let mapped = query(start, length).ok()?;
    let mut known = KNOWN_FILES.lock();
    known.retain(|file| file.strong_count() > 0);
    let found = known.iter().filter_map(Weak::upgrade).find(|file| file.identity == mapped.identity);
    let file = match found {
        Some(file) => file,
        None if known.len() >= MAX_PROGRAM_FILES => return None,
        None => {
            let file = Arc::new(open(mapped.identity)?);
            known.push(Arc::downgrade(&file));
            file
        }
    };
    Some(ProgramPart { file, offset: mapped.offset })
}

/// What a range of addresses is mapped from.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    identity: Identity,
    offset: u64,
}

/// The list of this process's mappings, of which the kernel is asked. To open it takes longer than to ask, so it stays
/// open; a program may have closed it, and the number may be another file's by now.
fn maps() -> io::Result<BorrowedFd<'static>> {
    static MAPS: PerProcess<Option<(File, Identity)>> = PerProcess::new();
    let open = || {
        let file = File::open("/proc/self/maps").ok()?;
        let identity = identity_of(file.as_fd()).ok()?;
        Some((file, identity))
    };
    let Some((file, identity)) = MAPS.get_or_make(open) else { return Err(io::ErrorKind::NotFound.into()) };
    refuse_if!(identity_of(file.as_fd())? != *identity, io::ErrorKind::NotFound.into());
    Ok(file.as_fd())
}

/// Asks the kernel for the shared, writable mapping of a file that holds all of a range.
fn query(start: usize, length: usize) -> io::Result<Mapped> {
    let maps = maps()?;
    let mut query = MapQuery {
        size: size_of::<MapQuery>() as u64,
        flags: QUERY_WRITABLE | QUERY_SHARED | QUERY_FILE_BACKED,
        address: start as u64,
        ..MapQuery::default()
    };
    // SAFETY: the kernel reads and fills in a live structure of the size that it is told.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as libc::Ioctl, &raw mut query) };
    refuse_if!(result != 0, io::Error::last_os_error());
    let inside = start as u64 - query.start;
    refuse_if!(length as u64 > query.end - start as u64, io::ErrorKind::NotFound.into());
    let identity = Identity { device: (query.device_major, query.device_minor), inode: query.inode };
    Ok(Mapped { identity, offset: query.offset + inside })
}

/// A descriptor of that file, if the process has one that may write, and the file is sealed against shrinking.
fn open(identity: Identity) -> Option<ProgramFile> {
    let candidates = fs::read_dir("/proc/self/fd").ok()?.filter_map(|entry| {
        let number: RawFd = entry.ok()?.file_name().to_str()?.parse().ok()?;
        duplicate(number, identity)
    });
    candidates.into_iter().next().map(|descriptor| ProgramFile { descriptor, identity })
}

/// A copy of a descriptor, if it is of that file. Another thread may close it at any moment, so the copy is looked at.
fn duplicate(number: RawFd, identity: Identity) -> Option<OwnedFd> {
    // SAFETY: the descriptor is only asked for what it is, and an error if it is none.
    let is_it = |number: RawFd| unsafe { identity_of(BorrowedFd::borrow_raw(number)) }.is_ok_and(|it| it == identity);
    if !is_it(number) {
        return None;
    }
    // SAFETY: numbers; the copy is new and not shared.
    let copy = unsafe {
        let copy = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0);
        if copy < 0 { return None } else { OwnedFd::from_raw_fd(copy) }
    };
    // SAFETY: a call without pointers.
    let mode = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GETFL) } & libc::O_ACCMODE;
    (is_it(copy.as_raw_fd()) && mode == libc::O_RDWR && is_sealed(copy.as_fd())).then_some(copy)
}

fn identity_of(file: BorrowedFd<'_>) -> io::Result<Identity> {
    // SAFETY: the kernel fills in a live structure, for which zeros are a value.
    unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        refuse_if!(libc::fstat(file.as_raw_fd(), &raw mut facts) != 0, io::Error::last_os_error());
        Ok(Identity { device: (libc::major(facts.st_dev), libc::minor(facts.st_dev)), inode: facts.st_ino })
    }
}

// From linux/fs.h.
const PROCMAP_QUERY: u64 = 0xc068_6611;
const QUERY_WRITABLE: u64 = 1 << 1;
const QUERY_SHARED: u64 = 1 << 3;
const QUERY_FILE_BACKED: u64 = 1 << 5;

/// `struct procmap_query`.
#[derive(Default)]
#[repr(C)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_length: u32,
    build_id_length: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<MapQuery>() == 104);

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::mapped::page_size;
    use crate::mapping::{Mapping, sealed_file};

    #[test]
    fn a_part_of_a_sealed_file_is_found_while_the_program_has_it() {
        let page = page_size();
        let file = sealed_file(8 * page).unwrap();
        let memory = Mapping::of_file(file.as_fd(), 2 * page as u64, 4 * page, true).unwrap();
        let start = memory.first().addr();
        let found = find(start + page + 8, 2 * page).unwrap();
        assert_eq!(found.part().offset, 3 * page as u64 + 8);
        assert_ne!(found.part().descriptor, file.as_raw_fd());
        assert_eq!(found.part().inode, identity_of(file.as_fd()).unwrap().inode);
        assert!(find(start, 4 * page + 1).is_none(), "past the end");
        let again = find(start, 8).unwrap();
        assert_eq!(again.part().descriptor, found.part().descriptor, "one descriptor for all regions");
        drop((found, again, file));
        assert!(find(start, 8).is_none(), "the program has closed it");
    }

    #[test]
    fn memory_that_may_become_shorter_or_is_private_is_not_found() {
        let page = page_size();
        // SAFETY: a C string and a flag; nobody else's descriptor.
        let loose = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"loose".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        File::from(loose.try_clone().unwrap()).set_len(page as u64).unwrap();
        let memory = Mapping::of_file(loose.as_fd(), 0, page, true).unwrap();
        assert!(query(memory.first().addr(), page).is_ok() && find(memory.first().addr(), page).is_none());
        let file = sealed_file(page).unwrap();
        let read_only = Mapping::of_file(file.as_fd(), 0, page, false).unwrap();
        assert!(find(read_only.first().addr(), page).is_none());
        let private = Mapping::anonymous(page).unwrap();
        assert!(find(private.first().addr(), page).is_none());
    }
}

//! The requester's mappings of files that a peer's regions are of. A mapping keeps memory alive and no right: each
//! access asks the peer's table first.

use super::Mapping;
use super::published::SharedFile;
use host::descriptor::Opening;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use wire::refuse_if;

/// So many regions of a peer are mapped at a time.
const MAX_VIEWS: usize = 64;
/// Mapping costs as much as some accesses by the kernel: what is accessed less often is not mapped.
const ACCESSES_BEFORE_MAPPING: u32 = 4;

/// Bytes of a peer's region, as this process sees them.
#[derive(Debug)]
struct View {
    /// The number that the peer gave this registration, which it gives no other.
    registration: u64,
    accesses: u32,
    /// None where it cannot be had, or not yet.
    map: Option<Mapping>,
    /// Where the region begins in the mapping.
    offset: usize,
}

/// The mappings of one peer's regions.
#[derive(Debug, Default)]
pub(super) struct Views {
    known: Vec<View>,
    /// What is given up next when there are too many.
    oldest: usize,
}

impl Views {
    /// Where the region of that registration lies in this process, if it is mapped. `length` bytes from its start on are
    /// the peer's promise. Mapped `at_once` is what the kernel does not copy.
    pub fn first_byte(
        &mut self,
        process: i32,
        registration: u64,
        file: &SharedFile,
        length: u64,
        at_once: bool,
        is_published: impl FnOnce() -> bool,
    ) -> Option<*mut u8> {
        let place = self.known.iter().position(|view| view.registration == registration);
        let place = place.unwrap_or_else(|| self.enter(registration));
        let view = self.known.get_mut(place)?;
        if view.accesses < ACCESSES_BEFORE_MAPPING {
            view.accesses = if at_once { ACCESSES_BEFORE_MAPPING } else { view.accesses + 1 };
            if view.accesses == ACCESSES_BEFORE_MAPPING
                && let Ok((map, offset)) = map_file(process, file, length)
                // The descriptor was that of this region: its file is closed after the region is withdrawn.
                && is_published()
            {
                (view.map, view.offset) = (Some(map), offset);
            }
        }
        view.map.as_ref().map(|map| map.at(view.offset, length as usize))
    }

    fn enter(&mut self, registration: u64) -> usize {
        let view = View { registration, accesses: 0, map: None, offset: 0 };
        if self.known.len() < MAX_VIEWS {
            self.known.push(view);
            return self.known.len() - 1;
        }
        self.oldest = (self.oldest + 1) % MAX_VIEWS;
        self.known[self.oldest] = view;
        self.oldest
    }
}

/// Maps a part of a file of another process, which must be sealed against shrinking.
fn map_file(process: i32, file: &SharedFile, length: u64) -> io::Result<(Mapping, usize)> {
    let SharedFile { descriptor, inode, offset } = *file;
    let opened = {
        let _opening = Opening::begin();
        // It may be anything by now: nothing that is opened here may make us wait.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = format!("/proc/{process}/fd/{descriptor}");
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?
    };
    refuse_if!(opened.metadata()?.ino() as u32 != inode, io::ErrorKind::NotFound.into());
    Mapping::accept_part(opened.as_fd(), offset, length)
}

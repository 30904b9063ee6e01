//! Memory of this process that lies in files of its own, so that peers can map it. A region inside such memory is
//! published with its file.

use crate::mapped;
use latch::Rank;
use latch::plain::Mutex;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// A part of a file that is sealed against shrinking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePart {
    /// A descriptor of this process, open for as long as the memory is there.
    pub descriptor: RawFd,
    /// The file's number.
    pub inode: u64,
    /// Where the part begins.
    pub offset: u64,
}

/// Memory, and the whole of the file it is of.
#[derive(Debug)]
struct Shareable {
    start: usize,
    span: usize,
    file: FilePart,
}

static SHAREABLE: Mutex<Vec<Shareable>> = Mutex::new(Rank::ShareableMemory, Vec::new());

/// Memory was mapped from the beginning of this file on.
pub(crate) fn note(start: usize, span: usize, file: &OwnedFd) -> io::Result<()> {
    let descriptor = file.as_raw_fd();
    let inode = mapped::inode_of(file.as_fd())?;
    SHAREABLE.lock().push(Shareable { start, span, file: FilePart { descriptor, inode, offset: 0 } });
    Ok(())
}

/// It is not there any more.
pub(crate) fn forget(start: usize) {
    SHAREABLE.lock().retain(|memory| memory.start != start);
}

/// How many there are.
pub(crate) fn count() -> usize {
    SHAREABLE.lock().len()
}

/// The file that all of a range is of, and where.
pub(crate) fn find(start: usize, length: u64) -> Option<FilePart> {
    SHAREABLE.lock().iter().find_map(|memory| {
        let offset = start.checked_sub(memory.start)?;
        let room = memory.span.checked_sub(offset)?;
        (length <= room as u64).then_some(FilePart { offset: offset as u64, ..memory.file })
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn a_range_inside_is_found_until_the_memory_is_gone() {
        let memory = Mapping::shareable(10_000).unwrap();
        let start = memory.first().addr();
        let whole = find(start, 10_000).unwrap();
        assert_eq!(whole.offset, 0);
        assert_eq!(find(start + 5000, 100), Some(FilePart { offset: 5000, ..whole }));
        assert_eq!(find(start + 5000, 10_000), None);
        assert_eq!(find(start - 1, 1), None);
        drop(memory);
        assert_eq!(find(start, 1), None);
    }
}

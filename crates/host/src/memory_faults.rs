//! What a process that is checked says before it dies by touching memory that it has registered and does not have any
//! more: which key, which range. The program's own handler, or the system, has its way afterwards.
//!
//! The handler may run in the middle of anything. It takes no lock and no memory, and reads a table of atomics.

use std::fmt::{self, Write};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// So many regions are known; those that find no place are not.
const MAX_KNOWN_REGIONS: usize = 1024;

/// A region. A length of 0 is a free place.
#[derive(Debug)]
struct Region {
    length: AtomicU64,
    start: AtomicU64,
    key: AtomicU32,
}

static KNOWN_REGIONS: [Region; MAX_KNOWN_REGIONS] =
    [const { Region { length: AtomicU64::new(0), start: AtomicU64::new(0), key: AtomicU32::new(0) } };
        MAX_KNOWN_REGIONS];

/// The handlers are installed.
static HANDLERS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// What stood before for SIGSEGV and SIGBUS.
static EARLIER_HANDLERS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

const FAULT_SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Memory was registered. The caller lets one thread at a time in here and into [`forget`].
pub fn note(key: u32, start: u64, length: u64) {
    if start == 0 || length == 0 {
        return;
    }
    if !HANDLERS_INSTALLED.swap(true, Ordering::AcqRel) {
        install();
    }
    if let Some(free) = KNOWN_REGIONS.iter().find(|region| region.length.load(Ordering::Relaxed) == 0) {
        free.key.store(key, Ordering::Relaxed);
        free.start.store(start, Ordering::Relaxed);
        free.length.store(length, Ordering::Release);
    }
}

/// Memory is not registered any more.
pub fn forget(key: u32) {
    let is_it =
        |region: &&Region| region.length.load(Ordering::Relaxed) > 0 && region.key.load(Ordering::Relaxed) == key;
    if let Some(region) = KNOWN_REGIONS.iter().find(is_it) {
        region.length.store(0, Ordering::Release);
    }
}

/// The region that an address lies in: key, start, length.
fn region_at(address: u64) -> Option<(u32, u64, u64)> {
    KNOWN_REGIONS.iter().find_map(|region| {
        let length = region.length.load(Ordering::Acquire);
        let start = region.start.load(Ordering::Relaxed);
        let holds = length > 0 && address.wrapping_sub(start) < length;
        holds.then(|| (region.key.load(Ordering::Relaxed), start, length))
    })
}

fn install() {
    for (signal, before) in FAULT_SIGNALS.into_iter().zip(&EARLIER_HANDLERS) {
        // SAFETY: live records; the handler does what a handler may. What stood before is kept for ever.
        unsafe {
            let mut ours: libc::sigaction = zeroed();
            ours.sa_sigaction = handle as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let theirs = Box::into_raw(Box::new(zeroed()));
            before.store(theirs, Ordering::Release);
            libc::sigaction(signal, &raw const ours, theirs);
        }
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system hands in what it knows of the fault.
    let address = unsafe { (*info).si_addr() }.addr() as u64;
    if let Some((key, start, length)) = region_at(address) {
        let mut line = Line::new();
        // What finds no place in the line is left out.
        let _ = writeln!(
            line,
            "ubiverbs: error: memory at {address:#x} was touched that is registered and not mapped any more: key \
             {key:#010x} belongs to [{start:#x}, +{length})\n  do: unmap or free memory only after ibv_dereg_mr; this \
             process ends now [UV-0209]"
        );
        line.print();
    }
    let index = usize::from(signal == libc::SIGBUS);
    let before = EARLIER_HANDLERS[index].load(Ordering::Acquire);
    // SAFETY: what the system said stood there before, if it was asked; a handler is called as it would have been.
    unsafe {
        if !before.is_null() && ![libc::SIG_DFL, libc::SIG_IGN].contains(&(*before).sa_sigaction) {
            let handler = (*before).sa_sigaction;
            if (*before).sa_flags & libc::SA_SIGINFO != 0 {
                type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
            } else {
                std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal);
            }
            return;
        }
        // The instruction runs again, and the system ends the process.
        let mut default: libc::sigaction = zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const default, null_mut());
        // A signal that a process sent does not come again by itself.
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

/// A line that is written without memory of the heap.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Line {
    const fn new() -> Line {
        Line { bytes: [0; 512], length: 0 }
    }

    fn print(&self) {
        // SAFETY: as many bytes as were filled.
        unsafe { libc::write(libc::STDERR_FILENO, self.bytes.as_ptr().cast(), self.length) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let count = room.len().min(text.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_until_it_is_gone() {
        note(7, 0x1000, 0x100);
        note(8, 0x2000, 1);
        assert_eq!(region_at(0x10ff), Some((7, 0x1000, 0x100)));
        assert_eq!(region_at(0x2000), Some((8, 0x2000, 1)));
        assert_eq!((region_at(0xfff), region_at(0x1100), region_at(0x2001)), (None, None, None));
        forget(7);
        assert_eq!(region_at(0x1000), None);
        forget(8);
    }

    #[test]
    fn a_process_that_touches_what_it_has_unmapped_says_so_and_dies() {
        let mut pipe = [0; 2];
        // SAFETY: a pipe, and a child that only makes system calls and reads memory which is not there.
        let (status, told) = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                libc::dup2(pipe[1], libc::STDERR_FILENO);
                note(0x77, page.addr() as u64, 4096);
                libc::munmap(page, 4096);
                page.cast::<u8>().read_volatile();
                libc::_exit(0);
            }
            libc::close(pipe[1]);
            let (mut status, mut told) = (0, [0_u8; 600]);
            let count = libc::read(pipe[0], told.as_mut_ptr().cast(), told.len());
            libc::waitpid(child, &raw mut status, 0);
            libc::close(pipe[0]);
            libc::munmap(page, 4096);
            (status, String::from_utf8_lossy(&told[..count.max(0) as usize]).into_owned())
        };
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
        assert!(told.contains("key 0x00000077 belongs to [0x") && told.contains("+4096)"), "{told}");
    }
}

//! A copy that is not finished late: a thread that the kernel takes from its processor in the middle begins it again,
//! from the look whether it is still allowed. Only where the C library has registered its threads for such sequences
//! (`rseq(2)`, glibc 2.35 and newer), and only where their instructions are written here: on x86-64. Elsewhere there
//! is none.

use std::sync::atomic::{AtomicIsize, Ordering};
use wire::access::Atomic;

/// How often a copy is begun before it is left to another way.
const MAX_ATTEMPTS: u32 = 8;

/// A thread's record for restartable sequences: where it is, in bytes from the thread pointer; [`NOT_LOOKED`], or
/// [`NO_RECORD`].
static RECORD_OFFSET: AtomicIsize = AtomicIsize::new(NOT_LOOKED);
const NOT_LOOKED: isize = isize::MIN;
const NO_RECORD: isize = isize::MAX;

/// What came of one attempt.
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
const STORE_REFUSED: u64 = 0;
/// From here on the processor's string copy is faster than a loop over words.
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
const STRING_COPY_MIN_BYTES: usize = 1024;

const STORE_DONE: u64 = 1;
const STORE_INTERRUPTED: u64 = 2;

/// Whether a copy of so many bytes, whose side in the peer's memory begins there, can be made: words of that memory stay
/// whole only if they are aligned.
#[inline]
pub(super) fn fits(peer_address: u64, length: usize) -> bool {
    peer_address.is_multiple_of(8) || matches!(length, 1 | 2 | 4) && peer_address.is_multiple_of(length as u64)
}

/// The record of this thread, if the kernel knows it.
#[inline]
pub(super) fn record() -> Option<ThreadRecord> {
    let offset = match RECORD_OFFSET.load(Ordering::Relaxed) {
        NOT_LOOKED => find_record(),
        offset => offset,
    };
    if offset == NO_RECORD { None } else { ThreadRecord::of_this_thread(offset) }
}

/// The record of the thread that asked for it, and the thread's number.
#[cfg_attr(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))), allow(dead_code))]
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadRecord {
    first: *mut u8,
    thread: u32,
}

impl ThreadRecord {
    /// The thread's number, as the system has it.
    #[inline]
    pub fn thread(&self) -> u32 {
        self.thread
    }
}

/// The number of this thread, asked for once in each process.
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
#[inline]
fn thread_number() -> u32 {
    thread_local! {
        /// With the generation of processes that it is of: a forked child's thread has another.
        static NUMBER: std::cell::Cell<(u32, u32)> = const { std::cell::Cell::new((0, 0)) };
    }
    NUMBER.with(|known| {
        let generation = latch::generation();
        if let (number @ 1.., of) = known.get()
            && of == generation
        {
            return number;
        }
        // SAFETY: a call without arguments.
        let number = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        known.set((number, generation));
        number
    })
}

#[cold]
fn find_record() -> isize {
    let offset = if cfg!(all(target_arch = "x86_64", target_env = "gnu", not(miri))) {
        // SAFETY: names of symbols that are, where they exist, an `unsigned int` and a `ptrdiff_t` of the C library.
        unsafe {
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
            if size.is_null() || offset.is_null() || *size == 0 { NO_RECORD } else { *offset }
        }
    } else {
        NO_RECORD
    };
    RECORD_OFFSET.store(offset, Ordering::Relaxed);
    offset
}

/// Copies `length` bytes, each aligned word and the last store whole, the last store last, if the word at `generation` says
/// `expected` until the last of them is stored. False if it does not, or if the thread is interrupted again and again:
/// then some bytes may be written, but none after this returns.
///
/// # Safety
/// This thread's record. Both ranges and the word live; the copy of the peer's side `fits`; `length` is not 0.
#[inline]
pub(super) unsafe fn copy_while(
    record: &ThreadRecord,
    (generation, expected): (*const u64, u64),
    to: *mut u8,
    from: *const u8,
    length: usize,
) -> bool {
    // The last store is of the largest aligned piece that ends there.
    let last = if length.is_multiple_of(8) { 8 } else { 1 << length.trailing_zeros() };
    for _ in 0..MAX_ATTEMPTS {
        // SAFETY: as of this function.
        let outcome = unsafe {
            match last {
                8 => record.copy_8(generation, expected, to, from, length - 8),
                4 => record.copy_4(generation, expected, to, from, length - 4),
                2 => record.copy_2(generation, expected, to, from, length - 2),
                _ => record.copy_1(generation, expected, to, from, length - 1),
            }
        };
        if outcome != STORE_INTERRUPTED {
            return outcome == STORE_DONE;
        }
    }
    false
}

/// Runs an operation on eight aligned bytes as one, if the word at `generation` says `expected` then. Returns what was
/// there before; none if it was not run.
///
/// # Safety
/// This thread's record. The bytes and the word live, and the bytes may be written.
pub(super) unsafe fn atomic_while(
    record: &ThreadRecord,
    (generation, expected): (*const u64, u64),
    at: *mut u8,
    operation: Atomic,
) -> Option<u64> {
    for _ in 0..MAX_ATTEMPTS {
        // SAFETY: as of this function.
        let (outcome, before) = unsafe {
            match operation {
                Atomic::FetchAdd { add } => record.fetch_add(generation, expected, at, add),
                Atomic::CompareSwap { compare, swap } => record.compare_swap(generation, expected, at, compare, swap),
                Atomic::Write { .. } => return None,
            }
        };
        if outcome != STORE_INTERRUPTED {
            return (outcome == STORE_DONE).then_some(before);
        }
    }
    None
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))))]
impl ThreadRecord {
    unsafe fn fetch_add(&self, _: *const u64, _: u64, _: *mut u8, _: u64) -> (u64, u64) {
        (STORE_INTERRUPTED, 0)
    }

    unsafe fn compare_swap(&self, _: *const u64, _: u64, _: *mut u8, _: u64, _: u64) -> (u64, u64) {
        (STORE_INTERRUPTED, 0)
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))))]
impl ThreadRecord {
    fn of_this_thread(_: isize) -> Option<ThreadRecord> {
        None
    }
}

/// An attempt for each size of the last store: after it the sequence is over, so it is not made twice.
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))))]
macro_rules! attempt {
    ($name:ident, $last:literal) => {
        impl ThreadRecord {
            unsafe fn $name(&self, _: *const u64, _: u64, _: *mut u8, _: *const u8, _: usize) -> u64 {
                STORE_INTERRUPTED
            }
        }
    };
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
impl ThreadRecord {
    #[inline]
    fn of_this_thread(offset: isize) -> Option<ThreadRecord> {
        let thread: *mut u8;
        // SAFETY: the first word of a thread's block is its address, on this system.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, preserves_flags, readonly, pure));
        }
        let record = thread.wrapping_offset(offset);
        // SAFETY: the C library has reserved the record in each thread's block. Its second word is the thread's
        // processor, or negative as long as the kernel does not know the record.
        let is_known = unsafe { record.cast::<i32>().add(1).read_volatile() } >= 0;
        is_known.then(|| ThreadRecord { first: record, thread: thread_number() })
    }
}

/// An attempt for each size of the last store: after it the sequence is over, so it is not made twice. `before` bytes
/// are stored before it.
///
/// From 20 to 25 the kernel sends the thread to 27 when it has interrupted it. The record names the sequence (28) for as
/// long as the thread is in it, and until the kernel next looks.
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
macro_rules! attempt {
    ($name:ident, $last:literal) => {
        impl ThreadRecord {
            #[inline]
            unsafe fn $name(
                &self,
                generation: *const u64,
                expected: u64,
                to: *mut u8,
                from: *const u8,
                before: usize,
            ) -> u64 {
                let outcome: u64;
                // SAFETY: the caller's ranges; the record is this thread's, and the code of the sequence stays where it
                // is for as long as the process has it.
                unsafe {
                    std::arch::asm!(
                        "lea {word}, [rip + 28f]",
                        "mov qword ptr [{record} + 8], {word}",
                        "20:",
                        "cmp qword ptr [{generation}], {expected}",
                        "jne 26f",
                        "xor {done:e}, {done:e}",
                        "mov {outcome}, {before}",
                        "and {outcome}, -8",
                        "jz 22f",
                        "cmp {outcome}, {bulk}",
                        "jb 21f",
                        "mov rcx, {outcome}",
                        "rep movsb",
                        "jmp 22f",
                        "21:",
                        "mov {word}, qword ptr [rsi + {done}]",
                        "mov qword ptr [rdi + {done}], {word}",
                        "add {done}, 8",
                        "cmp {done}, {outcome}",
                        "jb 21b",
                        "22:",
                        "test {before:l}, 4",
                        "jz 23f",
                        "mov {word:e}, dword ptr [rsi + {done}]",
                        "mov dword ptr [rdi + {done}], {word:e}",
                        "add {done}, 4",
                        "23:",
                        "test {before:l}, 2",
                        "jz 24f",
                        "mov {word:x}, word ptr [rsi + {done}]",
                        "mov word ptr [rdi + {done}], {word:x}",
                        "add {done}, 2",
                        "24:",
                        concat!("mov {word", $last, "}, [rsi + {done}]"),
                        concat!("mov [rdi + {done}], {word", $last, "}"),
                        "25:",
                        "mov {outcome:e}, {yes}",
                        "jmp 29f",
                        // The signature that the C library registers with.
                        ".byte 0x0f, 0xb9, 0x3d",
                        ".long 0x53053053",
                        "27:",
                        "mov {outcome:e}, {interrupted}",
                        "jmp 29f",
                        "26:",
                        "mov {outcome:e}, {no}",
                        "29:",
                        ".pushsection __rseq_cs, \"aw\"",
                        ".balign 32",
                        "28:",
                        ".long 0, 0",
                        ".quad 20b, 25b - 20b, 27b",
                        ".popsection",
                        record = in(reg) self.first,
                        generation = in(reg) generation,
                        expected = in(reg) expected,
                        inout("rdi") to => _,
                        inout("rsi") from => _,
                        out("rcx") _,
                        before = in(reg) before,
                        done = out(reg) _,
                        word = out(reg) _,
                        outcome = out(reg) outcome,
                        bulk = const STRING_COPY_MIN_BYTES,
                        yes = const STORE_DONE,
                        no = const STORE_REFUSED,
                        interrupted = const STORE_INTERRUPTED,
                        options(nostack),
                    );
                }
                outcome
            }
        }
    };
}

/// An attempt at an operation of one instruction, which ends the sequence: what interrupts it comes before or after it.
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
macro_rules! attempt_atomic {
    ($self:ident, $generation:ident, $expected:ident, $at:ident, $operation:literal, $($operand:tt)*) => {{
        let outcome: u64;
        // SAFETY: the caller's eight bytes and word; the record is this thread's, and the code of the sequence stays
        // where it is for as long as the process has it.
        unsafe {
            std::arch::asm!(
                "lea {outcome}, [rip + 28f]",
                "mov qword ptr [{record} + 8], {outcome}",
                "20:",
                "cmp qword ptr [{generation}], {expected}",
                "jne 26f",
                $operation,
                "25:",
                "mov {outcome:e}, {yes}",
                "jmp 29f",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "27:",
                "mov {outcome:e}, {interrupted}",
                "jmp 29f",
                "26:",
                "mov {outcome:e}, {no}",
                "29:",
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "28:",
                ".long 0, 0",
                ".quad 20b, 25b - 20b, 27b",
                ".popsection",
                record = in(reg) $self.first,
                generation = in(reg) $generation,
                expected = in(reg) $expected,
                at = in(reg) $at,
                outcome = out(reg) outcome,
                yes = const STORE_DONE,
                no = const STORE_REFUSED,
                interrupted = const STORE_INTERRUPTED,
                $($operand)*
                options(nostack),
            );
        }
        outcome
    }};
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
impl ThreadRecord {
    unsafe fn fetch_add(&self, generation: *const u64, expected: u64, at: *mut u8, add: u64) -> (u64, u64) {
        let mut value = add;
        let outcome = attempt_atomic!(
            self, generation, expected, at, "lock xadd qword ptr [{at}], {value}", value = inout(reg) value,
        );
        (outcome, value)
    }

    unsafe fn compare_swap(
        &self,
        generation: *const u64,
        expected: u64,
        at: *mut u8,
        compare: u64,
        swap: u64,
    ) -> (u64, u64) {
        let mut value = compare;
        let outcome = attempt_atomic!(
            self, generation, expected, at, "lock cmpxchg qword ptr [{at}], {swap}",
            swap = in(reg) swap, inout("rax") value,
        );
        (outcome, value)
    }
}

attempt!(copy_8, "");
attempt!(copy_4, ":e");
attempt!(copy_2, ":x");
attempt!(copy_1, ":l");

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn copies_of_every_length_are_whole_and_stay_inside() {
        let Some(record) = record() else { panic!("the C library of this machine has no restartable sequences") };
        let generation = AtomicU64::new(7);
        let source: Vec<u8> = (1..=255).cycle().take(8192).collect();
        for length in (1..=200).chain([1023, 1024, 1025, 1032, 4096, 4099]) {
            for (offset, expected) in [(0, 7), (0, 6), (8, 7)] {
                let mut target = vec![0u64; 1100];
                let bytes = target.as_mut_ptr().cast::<u8>();
                // SAFETY: live ranges, and this thread's record.
                let done = unsafe {
                    let to = bytes.add(offset);
                    assert!(fits(to.addr() as u64, length));
                    copy_while(&record, (generation.as_ptr(), expected), to, source.as_ptr(), length)
                };
                let copied = if expected == 7 { length } else { 0 };
                assert_eq!(done, expected == 7);
                let bytes: Vec<u8> = target.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(bytes[offset..offset + copied], source[..copied], "{length} bytes");
                assert!(
                    bytes[..offset].iter().chain(&bytes[offset + copied..]).all(|byte| *byte == 0),
                    "{length} bytes"
                );
            }
        }
    }

    #[test]
    fn what_is_not_aligned_in_the_peer_does_not_fit() {
        for (address, length, is_right) in
            [(0x1000, 3, true), (0x1004, 4, true), (0x1004, 8, false), (0x1001, 1, true), (0x1001, 2, false)]
        {
            assert_eq!(fits(address, length), is_right, "{length} at {address:#x}");
        }
    }

    #[test]
    fn atomics_return_what_was_there_and_run_while_it_is_allowed() {
        let Some(record) = record() else { panic!("the C library of this machine has no restartable sequences") };
        let (generation, word) = (AtomicU64::new(7), AtomicU64::new(40));
        // SAFETY: live words, and this thread's record.
        let run = |expected, operation| unsafe {
            atomic_while(&record, (generation.as_ptr(), expected), word.as_ptr().cast(), operation)
        };
        assert_eq!(run(7, Atomic::FetchAdd { add: 2 }), Some(40));
        assert_eq!(run(7, Atomic::CompareSwap { compare: 41, swap: 1 }), Some(42));
        assert_eq!(run(7, Atomic::CompareSwap { compare: 42, swap: 50 }), Some(42));
        assert_eq!(run(8, Atomic::FetchAdd { add: 2 }), None);
        assert_eq!(run(8, Atomic::CompareSwap { compare: 50, swap: 2 }), None);
        assert_eq!(run(7, Atomic::FetchAdd { add: u64::MAX }), Some(50));
        assert_eq!(word.load(Ordering::Relaxed), 49);
    }

    #[test]
    fn no_addition_is_lost_or_made_twice_by_an_interruption() {
        let (generation, word) = (AtomicU64::new(0), AtomicU64::new(0));
        let made: u64 = std::thread::scope(|scope| {
            let adders: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let record = record().expect("restartable sequences");
                        // SAFETY: live words, and this thread's record.
                        let add = || unsafe {
                            let word = word.as_ptr().cast();
                            atomic_while(&record, (generation.as_ptr(), 0), word, Atomic::FetchAdd { add: 1 })
                        };
                        (0..200_000).filter(|_| add().is_some()).count() as u64
                    })
                })
                .collect();
            adders.into_iter().map(|adder| adder.join().unwrap()).sum()
        });
        assert_eq!(word.load(Ordering::Relaxed), made);
    }

    /// A copy that is interrupted by the timer all the time: begun again until it was never interrupted, or given up.
    #[test]
    fn an_interrupted_copy_begins_again_or_ends() {
        let generation = AtomicU64::new(0);
        let ends = std::sync::atomic::AtomicBool::new(false);
        let (mut done, mut given_up) = (0u64, 0u64);
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                });
            }
            let source = vec![0x5au8; 1 << 20];
            let mut target = vec![0u8; 1 << 20];
            let Some(record) = record() else { panic!("the C library of this machine has no restartable sequences") };
            let until = std::time::Instant::now() + std::time::Duration::from_millis(200);
            while std::time::Instant::now() < until {
                // SAFETY: live ranges, and this thread's record.
                let whole = unsafe {
                    copy_while(&record, (generation.as_ptr(), 0), target.as_mut_ptr(), source.as_ptr(), source.len())
                };
                done += u64::from(whole);
                given_up += u64::from(!whole);
                assert!(!whole || target == source);
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert!(done + given_up > 0);
    }
}

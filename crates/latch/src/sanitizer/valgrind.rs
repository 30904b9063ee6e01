//! Requests to Valgrind, under which a program may run. A request is a sequence of instructions that changes nothing on
//! a processor, and that Valgrind knows when it translates the program; other processors than these two have none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

/// It is not known yet.
const NOT_ASKED: u8 = 0;
/// No Valgrind, or a tool that neither follows memory nor threads.
const NO_TOOL: u8 = 1;
const MEMCHECK: u8 = 2;
/// Helgrind or DRD, which understand each other's requests about order.
const THREAD_TOOL: u8 = 3;

static RUNNING_TOOL: AtomicU8 = AtomicU8::new(NOT_ASKED);

/// A tool's requests begin with its two letters.
const fn of_tool(letters: [u8; 2], number: usize) -> usize {
    (letters[0] as usize) << 24 | (letters[1] as usize) << 16 | number
}

const RUNNING_ON_VALGRIND: usize = 0x1001;
const CHANGE_ERROR_DISABLEMENT: usize = 0x1801;
const MAKE_UNDEFINED: usize = of_tool(*b"MC", 1);
const CHECK_ADDRESSABLE: usize = of_tool(*b"MC", 4);
const CHECK_DEFINED: usize = of_tool(*b"MC", 5);
const MAKE_DEFINED_IF_ADDRESSABLE: usize = of_tool(*b"MC", 11);
const HAPPENS_BEFORE: usize = of_tool(*b"HG", 256 + 33);
const HAPPENS_AFTER: usize = of_tool(*b"HG", 256 + 34);
/// Helgrind: how much of a range is accessible.
const ACCESSIBLE_BYTES: usize = of_tool(*b"HG", 256 + 46);
/// DRD: its number of this thread.
const DRD_THREAD: usize = of_tool(*b"DR", 1);

/// What Valgrind answers; `otherwise` if there is none, or the tool does not know the request.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
fn request(otherwise: usize, number: usize, first: usize, second: usize, third: usize) -> usize {
    let words = [number, first, second, third, 0, 0];
    let mut answer = otherwise;
    // SAFETY: rotates a register by 128 bits in all, and exchanges one with itself; Valgrind reads the words.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") words.as_ptr(), inout("rdx") answer, options(nostack)
        );
    }
    // SAFETY: rotates a register by 128 bits in all, and stores one in itself; Valgrind reads the words.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "ror x12, x12, #3", "ror x12, x12, #13", "ror x12, x12, #51", "ror x12, x12, #61", "orr x10, x10, x10",
            in("x4") words.as_ptr(), inout("x3") answer, options(nostack)
        );
    }
    answer
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
fn request(otherwise: usize, _number: usize, _first: usize, _second: usize, _third: usize) -> usize {
    otherwise
}

fn tool() -> u8 {
    match RUNNING_TOOL.load(Ordering::Relaxed) {
        NOT_ASKED => ask(),
        known => known,
    }
}

#[cold]
fn ask() -> u8 {
    /// What no tool answers.
    const UNKNOWN: usize = usize::MAX - 7;
    let here = 0_u8;
    let knows = |number, second, third| request(UNKNOWN, number, (&raw const here).addr(), second, third) != UNKNOWN;
    let found = match () {
        () if request(0, RUNNING_ON_VALGRIND, 0, 0, 0) == 0 => NO_TOOL,
        () if knows(MAKE_DEFINED_IF_ADDRESSABLE, 0, 0) => MEMCHECK,
        () if knows(ACCESSIBLE_BYTES, 0, 1) || knows(DRD_THREAD, 0, 0) => THREAD_TOOL,
        () => NO_TOOL,
    };
    RUNNING_TOOL.store(found, Ordering::Relaxed);
    found
}

/// Whether the program runs under a tool that must be told something.
pub(super) fn is_running() -> bool {
    tool() != NO_TOOL
}

pub(super) fn is_memcheck() -> bool {
    tool() == MEMCHECK
}

thread_local! {
    /// How often this thread has asked for silence.
    static SILENCE_DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// No errors are reported that this thread makes, or they are again. It nests.
pub(super) fn silence(on: bool) {
    if !is_running() {
        return;
    }
    SILENCE_DEPTH.with(|depth| depth.set(if on { depth.get() + 1 } else { depth.get().saturating_sub(1) }));
    disable_errors(on);
}

fn disable_errors(on: bool) {
    request(0, CHANGE_ERROR_DISABLEMENT, if on { 1 } else { usize::MAX }, 0, 0);
}

/// Calls a function with errors reported, whatever the thread is in.
pub(super) fn aloud<T>(call: impl FnOnce() -> T) -> T {
    let depth = if is_running() { SILENCE_DEPTH.with(Cell::get) } else { 0 };
    (0..depth).for_each(|_| disable_errors(false));
    let answer = call();
    (0..depth).for_each(|_| disable_errors(true));
    answer
}

/// Asks with errors reported.
fn ask_aloud(number: usize, start: *const u8, length: usize) -> usize {
    aloud(|| request(0, number, start.addr(), length, 0))
}

/// Has memcheck report bytes that the program may not touch. Returns whether there are any.
pub(super) fn has_unaddressable(start: *const u8, length: usize) -> bool {
    ask_aloud(CHECK_ADDRESSABLE, start, length) != 0
}

/// Has memcheck report bytes that are not initialised, or may not be touched. Returns whether there are any.
pub(super) fn has_undefined(start: *const u8, length: usize) -> bool {
    ask_aloud(CHECK_DEFINED, start, length) != 0
}

/// From now on the bytes count as initialised, or as not, as far as the program may touch them.
pub(super) fn make_defined(start: *const u8, length: usize, defined: bool) {
    let number = if defined { MAKE_DEFINED_IF_ADDRESSABLE } else { MAKE_UNDEFINED };
    request(0, number, start.addr(), length, 0);
}

/// What was done before a [`happens_before`] of a token comes before what is done after a later [`happens_after`].
pub(super) fn happens_before(token: *const u8) {
    if tool() == THREAD_TOOL {
        request(0, HAPPENS_BEFORE, token.addr(), 0, 0);
    }
}

/// See [`happens_before`].
pub(super) fn happens_after(token: *const u8) {
    if tool() == THREAD_TOOL {
        request(0, HAPPENS_AFTER, token.addr(), 0, 0);
    }
}

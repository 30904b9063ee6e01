//! What the runtime of a sanitizer must be told, if the program was built with ThreadSanitizer, MemorySanitizer or
//! AddressSanitizer, which finds leaks as well. A runtime sees what the compiler has instrumented, and the functions of
//! the C library that it stands in for, whichever library calls them: of this library it sees a `memmove`, and none of
//! the locks, stores and atomics around it. So it would report races and uninitialised bytes that are none; and leaks
//! in a forked child, which does not have the threads that knew of the memory. It is told:
//!
//! | what | when | who is told |
//! |---|---|---|
//! | not to judge what this thread does | in calls of the library, and in threads of its own: [`Unjudged`] | all |
//! | what calls order between threads of the program | [`release`] when one begins, [`acquire`] when it ends | ThreadSanitizer |
//! | which bytes the library has filled in | [`initialised`] | MemorySanitizer |
//! | what a thread of the library has on the heap when it begins | [`begin_thread`] | AddressSanitizer |
//! | which bytes of the program's the NIC reads or writes | [`judge_access`] | AddressSanitizer, memcheck |
//! | which bytes the program hands to the NIC to be read | [`judge_initialised`] | MemorySanitizer, memcheck |
//! | which bytes the NIC has placed, and that the program knows | [`withhold`], [`hand_over`] | MemorySanitizer, memcheck |
//! | what the NIC does as a thread of its own, and what is ordered before what | [`Fiber`], [`Token`] | ThreadSanitizer |
//!
//! Nothing is linked: the functions are looked for once, by name; Valgrind is asked by instructions that do nothing
//! elsewhere.

mod fiber;
mod valgrind;

pub use fiber::{Fiber, Step, Token, callers, follows_accesses};

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, transmute};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// It is not known yet which runtime the program has.
const NOT_LOOKED: u8 = 0;
const NO_RUNTIME: u8 = 1;
const THREAD_RUNTIME: u8 = 2;
const MEMORY_RUNTIME: u8 = 3;
const LEAK_RUNTIME: u8 = 4;
/// None, but the program runs under a tool of Valgrind's that must be told something.
const VALGRIND: u8 = 5;

/// Which runtime the program has. All stores are of what looking would find once more, so none has to wait for another.
static PROGRAM_RUNTIME: AtomicU8 = AtomicU8::new(NOT_LOOKED);

/// A function of a runtime.
#[derive(Clone, Copy)]
enum Hook {
    Pause,
    Resume,
    Acquire,
    Release,
    Initialised,
    Ignore,
    Poison,
    Check,
    FirstPoisoned,
}

const HOOK_COUNT: usize = Hook::FirstPoisoned as usize + 1;

/// AddressSanitizer's answer to which bytes the program may not touch, and its reports of a read and of a write, which
/// end the process as its settings say. The runtime for leaks alone has none of them.
static IS_POISONED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static REPORT_READ: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static REPORT_WRITE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

static RUNTIME_HOOKS: [AtomicPtr<c_void>; HOOK_COUNT] = [const { AtomicPtr::new(null_mut()) }; HOOK_COUNT];

/// What the functions are called, in the order of [`Hook`]; a runtime has those that it has a name for.
const THREAD_HOOKS: [Option<&CStr>; HOOK_COUNT] = [
    Some(c"AnnotateIgnoreReadsBegin"),
    Some(c"AnnotateIgnoreReadsEnd"),
    Some(c"__tsan_acquire"),
    Some(c"__tsan_release"),
    None,
    None,
    None,
    None,
    None,
];
const MEMORY_HOOKS: [Option<&CStr>; HOOK_COUNT] = [
    Some(c"__msan_scoped_disable_interceptor_checks"),
    Some(c"__msan_scoped_enable_interceptor_checks"),
    None,
    None,
    Some(c"__msan_unpoison"),
    None,
    Some(c"__msan_poison"),
    Some(c"__msan_check_mem_is_initialized"),
    Some(c"__msan_test_shadow"),
];
const LEAK_HOOKS: [Option<&CStr>; HOOK_COUNT] = [
    Some(c"__lsan_disable"),
    Some(c"__lsan_enable"),
    None,
    None,
    None,
    Some(c"__lsan_ignore_object"),
    None,
    None,
    None,
];

/// Each runtime: what it is called, a function by which it is known, what the library needs of it, and its number.
const RUNTIMES: [(&str, &CStr, &[Option<&CStr>; HOOK_COUNT], u8); 3] = [
    ("ThreadSanitizer", c"__tsan_init", &THREAD_HOOKS, THREAD_RUNTIME),
    ("MemorySanitizer", c"__msan_init", &MEMORY_HOOKS, MEMORY_RUNTIME),
    ("AddressSanitizer", c"__lsan_disable", &LEAK_HOOKS, LEAK_RUNTIME),
];

/// What AddressSanitizer has beyond the runtime for leaks.
const ADDRESS_HOOKS: [(&CStr, &AtomicPtr<c_void>); 3] = [
    (c"__asan_region_is_poisoned", &IS_POISONED),
    (c"__asan_report_load_n_noabort", &REPORT_READ),
    (c"__asan_report_store_n_noabort", &REPORT_WRITE),
];

/// Whether the program has a runtime that must be told something.
#[inline]
pub fn is_present() -> bool {
    runtime() != NO_RUNTIME
}

#[inline]
fn runtime() -> u8 {
    match PROGRAM_RUNTIME.load(Ordering::Acquire) {
        NOT_LOOKED => look(),
        known => known,
    }
}

/// A function of that name in all that is loaded; null if there is none. Miri has no linker.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a name, looked for in all that is loaded.
    if cfg!(miri) { null_mut() } else { unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } }
}

/// A runtime of another version lacks a function: what follows from that, on standard error.
#[cold]
fn say_missing(runtime: &str, missing: &CStr, so: &str) {
    let missing = missing.to_string_lossy();
    say(&format!("{runtime} of this program has no {missing}: it is of another version, and {so}"));
}

/// Says a sentence on standard error, by one system call: the thread may hold locks.
fn say(text: &str) {
    let text = format!("ubiverbs: {text}\n");
    // SAFETY: a live text.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Looks which runtime the program has. One that lacks a function is left alone.
#[cold]
fn look() -> u8 {
    let known = RUNTIMES.iter().find(|(_, mark, ..)| !find(mark).is_null());
    let found = match known {
        None if valgrind::is_running() => VALGRIND,
        None => NO_RUNTIME,
        Some((name, _, hooks, number)) => {
            let places = hooks.map(|hook| hook.map(find));
            let missing = hooks
                .iter()
                .zip(places)
                .find_map(|(hook, place)| hook.filter(|_| place.is_some_and(|place| place.is_null())));
            match missing {
                Some(missing) => {
                    // Known first: saying it allocates, which asks again.
                    PROGRAM_RUNTIME.store(NO_RUNTIME, Ordering::Release);
                    say_missing(name, missing, "it is told nothing of the NIC");
                    NO_RUNTIME
                }
                None => {
                    for (hook, place) in RUNTIME_HOOKS.iter().zip(places) {
                        hook.store(place.unwrap_or(null_mut()), Ordering::Release);
                    }
                    PROGRAM_RUNTIME.store(*number, Ordering::Release);
                    if *number == LEAK_RUNTIME {
                        look_for_address();
                    }
                    *number
                }
            }
        }
    };
    PROGRAM_RUNTIME.store(found, Ordering::Release);
    found
}

/// What AddressSanitizer has beyond the runtime for leaks.
fn look_for_address() {
    if find(c"__asan_init").is_null() {
        return;
    }
    let found = ADDRESS_HOOKS.map(|(name, place)| (name, place, find(name)));
    if let Some((missing, ..)) = found.iter().find(|(_, _, function)| function.is_null()) {
        return say_missing("AddressSanitizer", missing, "it does not judge what the NIC does");
    }
    // What is asked for first comes last.
    found.iter().rev().for_each(|(_, place, function)| place.store(*function, Ordering::Release));
}

/// Has the runtime not judge what this thread does, until it is dropped. They nest.
#[derive(Debug)]
#[must_use]
pub struct Unjudged(PhantomData<*const ()>);

impl Unjudged {
    /// Begins.
    #[inline(never)]
    pub fn begin() -> Unjudged {
        toggle(Hook::Pause);
        valgrind::silence(true);
        if runtime() == MEMORY_RUNTIME {
            // What functions of the program had on the stack before counts as uninitialised for ever.
            let here = 0_u8;
            initialised((&raw const here).wrapping_byte_sub(CALL_STACK_BYTES).cast(), CALL_STACK_BYTES);
        }
        Unjudged(PhantomData)
    }
}

/// How much of the stack a call uses that is copied from, or handed to functions of the C library.
const CALL_STACK_BYTES: usize = 64 << 10;

impl Drop for Unjudged {
    fn drop(&mut self) {
        valgrind::silence(false);
        toggle(Hook::Resume);
    }
}

fn toggle(hook: Hook) {
    match runtime() {
        THREAD_RUNTIME => {
            // SAFETY: the runtime's function of this name takes a file and a line.
            let function: extern "C" fn(*const c_char, c_int) = unsafe { transmute(function(hook)) };
            function(c"ubiverbs".as_ptr(), 0);
        }
        MEMORY_RUNTIME | LEAK_RUNTIME => {
            // SAFETY: the runtimes' functions of these names take nothing.
            let function: extern "C" fn() = unsafe { transmute(function(hook)) };
            function();
        }
        _ => {}
    }
}

/// A function of the runtime that the program is known to have.
fn function(hook: Hook) -> *mut c_void {
    RUNTIME_HOOKS[hook as usize].load(Ordering::Relaxed)
}

/// All orders of [`release`] and [`acquire`] are of one object.
static EVERYTHING: Token = Token::new();

/// What the program has done before in this thread comes before what it does after a later [`acquire`].
pub fn release() {
    EVERYTHING.release();
}

/// What the program does from now on in this thread comes after what it did before an earlier [`release`].
pub fn acquire() {
    EVERYTHING.acquire();
}

/// A thread of the library has touched bytes of the program: to Valgrind's tools, which see that themselves, this comes
/// before what the program does after a later call.
pub fn release_to_tools() {
    if runtime() == VALGRIND {
        EVERYTHING.release();
    }
}

/// Calls a function that may sleep for ever, in a thread of the library's own. Valgrind warns of threads that it is told
/// to be silent of when the process ends.
pub fn asleep<T>(sleep: impl FnOnce() -> T) -> T {
    release_to_tools();
    valgrind::aloud(sleep)
}

/// Whether every call of the library comes after what other threads of it did, since a tool sees those.
#[must_use]
pub fn sees_threads_of_the_library() -> bool {
    runtime() == VALGRIND
}

/// A thread of the library's own begins: it is not judged until what is returned is dropped. What the thread has on the
/// heap already is no leak either, in a forked child, where a new thread may get its place.
pub fn begin_thread() -> Unjudged {
    if runtime() == LEAK_RUNTIME {
        ignore_what_this_thread_has();
    }
    Unjudged::begin()
}

/// What the C library has for a thread lies at the end of its stack.
#[cold]
fn ignore_what_this_thread_has() {
    /// How much there is at most.
    const THREAD_LOCAL_BYTES: usize = 32 << 10;
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut size) = (null_mut(), 0);
    // SAFETY: room for the attributes, which are valid where the first call succeeds; places for the answers.
    let known = unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return;
        }
        let known = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        known
    };
    let length = if known { size.min(THREAD_LOCAL_BYTES) } else { 0 };
    // SAFETY: the runtime's function of this name takes any address, and passes over those of no memory on the heap.
    let ignore: extern "C" fn(*const c_void) = unsafe { transmute(function(Hook::Ignore)) };
    let words: *const *const c_void = lowest.wrapping_byte_add(size - length).cast_const().cast();
    for word in 0..length / size_of::<usize>() {
        // SAFETY: part of the stack, which is aligned to more than this, and which other code changes by whole words.
        let word = unsafe { words.add(word).read_volatile() };
        if !word.is_null() {
            ignore(word);
        }
    }
}

thread_local! {
    /// What this thread looks at has been judged.
    static JUDGED: Cell<bool> = const { Cell::new(false) };
}

/// Looks at memory whose access was judged already.
pub fn judged<R>(look: impl FnOnce() -> R) -> R {
    JUDGED.set(true);
    let seen = look();
    JUDGED.set(false);
    seen
}

/// Whether [`judge_access`] has somebody to ask.
pub fn judges_accesses() -> bool {
    match runtime() {
        LEAK_RUNTIME => !IS_POISONED.load(Ordering::Relaxed).is_null(),
        VALGRIND => valgrind::is_memcheck(),
        _ => false,
    }
}

/// The NIC is about to read or write these bytes of the program. If the program itself may not, `work` says in a
/// sentence whose work it is, and AddressSanitizer or memcheck report the access as the program's own; the process ends
/// then if their settings say so. Returns whether AddressSanitizer has reported it and the process goes on: then nothing
/// may be written there, as the runtime keeps its notes in memory that was freed.
pub fn judge_access(start: *mut u8, length: usize, writes: bool, work: impl FnOnce() -> String) -> bool {
    if !judges_accesses() || JUDGED.get() {
        return false;
    }
    if runtime() == VALGRIND {
        if valgrind::has_unaddressable(start, length) {
            say(&work());
        }
        return false;
    }
    // SAFETY: the runtime's function of this name and arguments, which looks at its own notes only.
    let is_poisoned: extern "C" fn(*mut u8, usize) -> *mut u8 =
        unsafe { transmute(IS_POISONED.load(Ordering::Relaxed)) };
    let first = is_poisoned(start, length);
    if first.is_null() {
        return false;
    }
    say(&work());
    let report = if writes { &REPORT_WRITE } else { &REPORT_READ };
    // SAFETY: the runtime's functions of these names take an address and a length.
    let report: extern "C" fn(*mut u8, usize) = unsafe { transmute(report.load(Ordering::Relaxed)) };
    report(first, length - (first.addr() - start.addr()));
    true
}

/// Whether [`judge_initialised`] has somebody to ask.
fn judges_contents() -> bool {
    runtime() == MEMORY_RUNTIME || runtime() == VALGRIND && valgrind::is_memcheck()
}

/// The program hands these bytes to the NIC to be read. If not all are initialised, and they are not `excused`, `work` says
/// in a sentence for what, and MemorySanitizer or memcheck report it with the stack of the call. They call functions of
/// the program for it: the caller holds no lock.
pub fn judge_initialised(
    start: *const u8,
    length: usize,
    excused: impl FnOnce() -> bool,
    work: impl FnOnce() -> String,
) {
    if !judges_contents() || length == 0 {
        return;
    }
    if runtime() == VALGRIND {
        if !excused() && valgrind::has_undefined(start, length) {
            say(&work());
        }
        return;
    }
    // SAFETY: the runtime's function of this name takes an address and a length, and looks at its own notes only.
    let first: extern "C" fn(*const u8, usize) -> isize = unsafe { transmute(function(Hook::FirstPoisoned)) };
    // Another thread of the library may just have placed them: so the excuse is looked for afterwards.
    if first(start, length) < 0 || excused() {
        return;
    }
    say(&work());
    // SAFETY: as above.
    let check: extern "C" fn(*const u8, usize) = unsafe { transmute(function(Hook::Check)) };
    check(start, length);
}

/// The NIC has placed these bytes, and the program is not told yet: until then they count as uninitialised.
pub fn withhold(start: *const u8, length: usize) {
    match runtime() {
        MEMORY_RUNTIME => {
            // SAFETY: the runtime's function of this name takes an address and a length, and notes something about them.
            let poison: extern "C" fn(*const u8, usize) = unsafe { transmute(function(Hook::Poison)) };
            poison(start, length);
        }
        VALGRIND if valgrind::is_memcheck() => valgrind::make_defined(start, length, false),
        _ => {}
    }
}

/// The program has been told of bytes that the NIC has placed.
pub fn hand_over(start: *const u8, length: usize) {
    match runtime() {
        MEMORY_RUNTIME => initialised(start.cast(), length),
        VALGRIND if valgrind::is_memcheck() => valgrind::make_defined(start, length, true),
        _ => {}
    }
}

/// Names the work request that an access is of: its queue pair, an address of the access, and whether a peer asks.
type Namer = Box<dyn Fn(u32, usize, bool) -> Option<String> + Send + Sync>;

static WORK_NAMER: OnceLock<Namer> = OnceLock::new();

/// Has `name` say of which work request an access is, for reports. There can be one.
pub fn name_work_by(name: impl Fn(u32, usize, bool) -> Option<String> + Send + Sync + 'static) {
    let _ = WORK_NAMER.set(Box::new(name));
}

/// Of which work request an access is, as far as that is known.
#[must_use]
pub fn work_name(qpn: u32, address: usize, remote: bool) -> Option<String> {
    WORK_NAMER.get()?(qpn, address, remote)
}

/// The library has filled in these bytes.
#[inline]
pub fn initialised(start: *const c_void, length: usize) {
    if runtime() == MEMORY_RUNTIME {
        // SAFETY: the runtime's function of this name takes an address and a length, and notes something about them.
        let function: extern "C" fn(*const c_void, usize) = unsafe { transmute(function(Hook::Initialised)) };
        function(start, length);
    }
}

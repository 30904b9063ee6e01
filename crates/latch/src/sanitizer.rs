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
//! | which bytes of the program's the NIC reads or writes | [`judge_access`] | AddressSanitizer |
//!
//! Nothing is linked: the functions are looked for once, by name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, transmute};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// It is not known yet which runtime the program has.
const NOT_LOOKED: u8 = 0;
const NO_RUNTIME: u8 = 1;
const THREAD_RUNTIME: u8 = 2;
const MEMORY_RUNTIME: u8 = 3;
const LEAK_RUNTIME: u8 = 4;

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
}

const HOOK_COUNT: usize = Hook::Ignore as usize + 1;

/// AddressSanitizer's answer to which bytes the program may not touch, and its report. The runtime for leaks alone has
/// neither.
static IS_POISONED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static REPORT_ERROR: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

static RUNTIME_HOOKS: [AtomicPtr<c_void>; HOOK_COUNT] = [const { AtomicPtr::new(null_mut()) }; HOOK_COUNT];

/// What the functions are called, in the order of [`Hook`]; a runtime has those that it has a name for.
const THREAD_HOOKS: [Option<&CStr>; HOOK_COUNT] = [
    Some(c"AnnotateIgnoreReadsBegin"),
    Some(c"AnnotateIgnoreReadsEnd"),
    Some(c"__tsan_acquire"),
    Some(c"__tsan_release"),
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
];
const LEAK_HOOKS: [Option<&CStr>; HOOK_COUNT] =
    [Some(c"__lsan_disable"), Some(c"__lsan_enable"), None, None, None, Some(c"__lsan_ignore_object")];

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

/// Looks which runtime the program has. One that lacks a function is left alone.
#[cold]
fn look() -> u8 {
    let has = |names: [Option<&CStr>; HOOK_COUNT]| {
        // SAFETY: a name, looked for in all that is loaded.
        let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let found = names.map(|name| name.map(find));
        let is_whole = found.iter().flatten().all(|function| !function.is_null());
        if is_whole {
            for (hook, function) in RUNTIME_HOOKS.iter().zip(found) {
                hook.store(function.unwrap_or(null_mut()), Ordering::Release);
            }
        }
        is_whole
    };
    let found = match () {
        // Miri has no linker.
        () if cfg!(miri) => NO_RUNTIME,
        () if has(THREAD_HOOKS) => THREAD_RUNTIME,
        () if has(MEMORY_HOOKS) => MEMORY_RUNTIME,
        () if has(LEAK_HOOKS) => {
            // SAFETY: names, looked for in all that is loaded.
            let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            REPORT_ERROR.store(find(c"__asan_report_error"), Ordering::Release);
            IS_POISONED.store(find(c"__asan_region_is_poisoned"), Ordering::Release);
            LEAK_RUNTIME
        }
        () => NO_RUNTIME,
    };
    PROGRAM_RUNTIME.store(found, Ordering::Release);
    found
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

/// What the program has done before in this thread comes before what it does after a later [`acquire`].
pub fn release() {
    order(Hook::Release);
}

/// What the program does from now on in this thread comes after what it did before an earlier [`release`].
pub fn acquire() {
    order(Hook::Acquire);
}

fn order(hook: Hook) {
    /// All orders are of one object.
    static EVERYTHING: AtomicU8 = AtomicU8::new(0);
    if runtime() == THREAD_RUNTIME {
        // SAFETY: the runtime's function of this name takes an address, which it does not follow.
        let function: extern "C" fn(*mut c_void) = unsafe { transmute(function(hook)) };
        function(EVERYTHING.as_ptr().cast());
    }
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

/// Whether [`judge_access`] has somebody to ask.
pub fn judges_accesses() -> bool {
    let has = |function: &AtomicPtr<c_void>| !function.load(Ordering::Relaxed).is_null();
    runtime() == LEAK_RUNTIME && has(&IS_POISONED) && has(&REPORT_ERROR)
}

/// The NIC is about to read or write these bytes of the program. If the program itself may not, `work` says in a
/// sentence whose work it is, and AddressSanitizer reports the access and ends the process, as it does for the program's
/// own.
pub fn judge_access(start: *mut u8, length: usize, writes: bool, work: impl FnOnce() -> String) {
    if !judges_accesses() {
        return;
    }
    // SAFETY: the runtime's functions of these names and arguments; the first looks at its own notes only.
    let is_poisoned: extern "C" fn(*mut u8, usize) -> *mut u8 =
        unsafe { transmute(IS_POISONED.load(Ordering::Relaxed)) };
    let report: extern "C" fn(*const c_void, *const c_void, *const c_void, *mut u8, c_int, usize) =
        // SAFETY: as above.
        unsafe { transmute(REPORT_ERROR.load(Ordering::Relaxed)) };
    let first = is_poisoned(start, length);
    if first.is_null() {
        return;
    }
    let text = format!("ubiverbs: {}\n", work());
    let here = 0_u8;
    // SAFETY: a live text.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    let (code, stack) = (judges_accesses as *const c_void, (&raw const here).cast());
    report(code, stack, stack, first, c_int::from(writes), length - (first.addr() - start.addr()));
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

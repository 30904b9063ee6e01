//! What the NIC does, as ThreadSanitizer sees it: accesses of a fiber, which is a thread that the runtime knows of and
//! that runs inside another one's time. Orders are by tokens, addresses that mean nothing else.

use super::{Hook, THREAD_RUNTIME, find, runtime, say_missing, toggle};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU8;

/// The functions of the runtime.
#[derive(Debug)]
struct Functions {
    current: extern "C" fn() -> *mut c_void,
    create: extern "C" fn(c_uint) -> *mut c_void,
    destroy: extern "C" fn(*mut c_void),
    switch: extern "C" fn(*mut c_void, c_uint),
    name: extern "C" fn(*mut c_void, *const c_char),
    acquire: extern "C" fn(*const c_void),
    release: extern "C" fn(*const c_void),
    read: extern "C" fn(*const c_void, usize, *const c_void),
    write: extern "C" fn(*const c_void, usize, *const c_void),
    enter: extern "C" fn(*const c_void),
    exit: extern "C" fn(),
}

/// The functions, if the program has ThreadSanitizer's runtime and that has them all.
fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    if runtime() != THREAD_RUNTIME {
        return None;
    }
    let look = || {
        const NAMES: [&CStr; 11] = [
            c"__tsan_get_current_fiber",
            c"__tsan_create_fiber",
            c"__tsan_destroy_fiber",
            c"__tsan_switch_to_fiber",
            c"__tsan_set_fiber_name",
            c"__tsan_acquire",
            c"__tsan_release",
            c"__tsan_read_range_pc",
            c"__tsan_write_range_pc",
            c"__tsan_func_entry",
            c"__tsan_func_exit",
        ];
        let found = NAMES.map(find);
        if let Some(missing) = NAMES.iter().zip(found).find_map(|(name, place)| place.is_null().then_some(name)) {
            say_missing("ThreadSanitizer", missing, "the NIC's accesses are not shown to it");
            return None;
        }
        let [current, create, destroy, switch, name, acquire, release, read, write, enter, exit] = found;
        // SAFETY: none is null, and the runtime's functions of these names have these arguments.
        Some(unsafe {
            Functions {
                current: transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(current),
                create: transmute::<*mut c_void, extern "C" fn(c_uint) -> *mut c_void>(create),
                destroy: transmute::<*mut c_void, extern "C" fn(*mut c_void)>(destroy),
                switch: transmute::<*mut c_void, extern "C" fn(*mut c_void, c_uint)>(switch),
                name: transmute::<*mut c_void, extern "C" fn(*mut c_void, *const c_char)>(name),
                acquire: transmute::<*mut c_void, extern "C" fn(*const c_void)>(acquire),
                release: transmute::<*mut c_void, extern "C" fn(*const c_void)>(release),
                read: transmute::<*mut c_void, extern "C" fn(*const c_void, usize, *const c_void)>(read),
                write: transmute::<*mut c_void, extern "C" fn(*const c_void, usize, *const c_void)>(write),
                enter: transmute::<*mut c_void, extern "C" fn(*const c_void)>(enter),
                exit: transmute::<*mut c_void, extern "C" fn()>(exit),
            }
        })
    };
    FUNCTIONS.get_or_init(look).as_ref()
}

/// Whether the program's runtime follows accesses of fibers.
pub fn follows_accesses() -> bool {
    functions().is_some()
}

/// What orders one thing before another, for a runtime: its address alone counts.
#[derive(Debug, Default)]
pub struct Token(AtomicU8);

impl Token {
    /// One that orders nothing yet.
    #[must_use]
    pub const fn new() -> Token {
        Token(AtomicU8::new(0))
    }

    fn address(&self) -> *const c_void {
        self.0.as_ptr().cast_const().cast()
    }

    /// What this thread has done comes before what follows a later [`acquire`](Token::acquire).
    pub fn release(&self) {
        order(Hook::Release, self.address());
        super::valgrind::happens_before(self.address().cast());
    }

    /// What this thread does from now on comes after what preceded an earlier [`release`](Token::release).
    pub fn acquire(&self) {
        order(Hook::Acquire, self.address());
        super::valgrind::happens_after(self.address().cast());
    }
}

fn order(hook: Hook, token: *const c_void) {
    if runtime() == THREAD_RUNTIME {
        // SAFETY: the runtime's functions of these names take an address, which they do not follow.
        let function: extern "C" fn(*const c_void) = unsafe { transmute(super::function(hook)) };
        function(token);
    }
}

/// What a fiber does.
#[derive(Debug)]
pub enum Step<'a> {
    /// It goes on after what released this token.
    Acquire(&'a Token),
    /// What it has done comes before what acquires this token.
    Release(&'a Token),
    /// Atomic loads of the program of these addresses come after what it has done.
    ReleaseAddress(*const u8),
    /// It reads or writes bytes.
    Access {
        /// The first.
        start: *const u8,
        /// How many.
        length: usize,
        /// Whether it writes.
        writes: bool,
        /// The frames of the call that asked for it, innermost first.
        stack: &'a [usize],
    },
}

/// A thread of its own to ThreadSanitizer. It runs in one thread at a time.
#[derive(Debug)]
pub struct Fiber(NonNull<c_void>);

// SAFETY: the runtime's fibers may run in any thread, one at a time, which `&mut` sees to.
unsafe impl Send for Fiber {}

impl Fiber {
    /// A new one of that name; none where the runtime has no fibers.
    #[must_use]
    pub fn create(name: &str) -> Option<Fiber> {
        let functions = functions()?;
        let fiber = NonNull::new((functions.create)(0))?;
        let name = CString::new(name).unwrap_or_default();
        (functions.name)(fiber.as_ptr(), name.as_ptr());
        Some(Fiber(fiber))
    }

    /// Does these steps. The runtime may report a race, and calls functions of the program for it: the caller holds no
    /// lock if there is an access among them.
    pub fn run<'a>(&mut self, steps: impl IntoIterator<Item = Step<'a>>) {
        /// The switch orders nothing.
        const NO_ORDER: c_uint = 1;
        let Some(functions) = functions() else { return };
        let before = (functions.current)();
        (functions.switch)(self.0.as_ptr(), NO_ORDER);
        // What this library does meanwhile is no access of the NIC's.
        toggle(Hook::Pause);
        for step in steps {
            match step {
                Step::Acquire(token) => (functions.acquire)(token.address()),
                Step::Release(token) => (functions.release)(token.address()),
                Step::ReleaseAddress(address) => (functions.release)(address.cast()),
                Step::Access { start, length, writes, stack } => {
                    let frame = |pc: usize| std::ptr::without_provenance::<c_void>(pc);
                    let (innermost, callers) =
                        stack.split_first().map_or((null(), &[][..]), |(pc, callers)| (frame(*pc), callers));
                    callers.iter().rev().for_each(|pc| (functions.enter)(frame(*pc)));
                    let access = if writes { functions.write } else { functions.read };
                    toggle(Hook::Resume);
                    access(start.cast(), length, innermost);
                    toggle(Hook::Pause);
                    callers.iter().for_each(|_| (functions.exit)());
                }
            }
        }
        toggle(Hook::Resume);
        (functions.switch)(before, NO_ORDER);
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if let Some(functions) = functions() {
            (functions.destroy)(self.0.as_ptr());
        }
    }
}

/// How many frames of a stack are kept.
const STACK_FRAMES_MAX: usize = 32;

/// The frames of the program that lead here, innermost first: those of this library are left out.
#[must_use]
pub fn callers() -> Vec<usize> {
    let mut frames = [null_mut::<c_void>(); STACK_FRAMES_MAX];
    // SAFETY: room for as many frames.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), STACK_FRAMES_MAX as c_int) };
    let frames = &frames[..usize::try_from(count).unwrap_or(0)];
    let own = object_of((callers as fn() -> Vec<usize>) as *const c_void);
    let is_own = |frame: &*mut c_void| object_of(*frame) == own;
    // The innermost is that of the runtime, which stands in for the function above.
    let first = frames.iter().position(is_own).unwrap_or(0);
    let inside = frames[first..].iter().take_while(|frame| is_own(frame)).count();
    // Of a program that has the library in itself all is shown.
    let shown = frames.get(first + inside..).filter(|shown| !shown.is_empty()).unwrap_or(frames);
    shown.iter().map(|frame| frame.addr()).collect()
}

/// Where the library or program begins that has this code.
fn object_of(code: *const c_void) -> usize {
    let mut info = libc::Dl_info { dli_fname: null(), dli_fbase: null_mut(), dli_sname: null(), dli_saddr: null_mut() };
    // SAFETY: fills in what it knows of an address.
    if unsafe { libc::dladdr(code, &raw mut info) } == 0 { 0 } else { info.dli_fbase.addr() }
}

//! The stack of the calling thread. A program may give its threads as little as `PTHREAD_STACK_MIN` (16 KiB), of which
//! thread-local storage takes a part, and calls of this library need more. Such a call is refused with `ENOMEM` and a
//! line on standard error: it would end the process with a signal otherwise, far from the reason.

use std::cell::Cell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::Once;

/// What a call needs. Code that is not optimised needs more.
pub(crate) const CALL_STACK_BYTES: usize = if cfg!(debug_assertions) { 144 << 10 } else { 48 << 10 };

/// What a call needs that is made for every message.
pub(crate) const DATA_PATH_CALL: usize = if cfg!(debug_assertions) { 48 << 10 } else { 20 << 10 };

/// What programs are told to give their threads: docs/c-library.md says the same.
const ADVISED_KIB: usize = 64;

thread_local! {
    /// The lowest address of the stack; 0 as long as it is not known.
    static LOWEST_STACK_ADDRESS: Cell<usize> = const { Cell::new(0) };
}

/// A stack that is not looked at: any address is far from its end.
const UNCHECKED_STACK: usize = 1;

/// Whether so many bytes of the stack are left.
#[inline]
pub(crate) fn has(bytes: usize) -> bool {
    let here = black_box(&raw const bytes).addr();
    let lowest = match LOWEST_STACK_ADDRESS.try_with(Cell::get) {
        Ok(0) => find_lowest(),
        Ok(lowest) => lowest,
        Err(_) => UNCHECKED_STACK,
    };
    // On another stack, such as a coroutine's, nothing is known.
    here.wrapping_sub(lowest) >= bytes || is_too_small(here.wrapping_sub(lowest))
}

#[cold]
fn find_lowest() -> usize {
    // SAFETY: numbers.
    let is_first = unsafe { libc::gettid() == libc::getpid() };
    let lowest = if is_first { UNCHECKED_STACK } else { lowest_of_thread().unwrap_or(UNCHECKED_STACK) };
    let _ = LOWEST_STACK_ADDRESS.try_with(|known| known.set(lowest));
    lowest
}

/// What the C library says of this thread.
fn lowest_of_thread() -> Option<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut size, mut guard) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: room for the attributes, which are valid where the first call succeeds; places for the answers.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) == 0
            && libc::pthread_attr_getguardsize(attributes.as_ptr(), &raw mut guard) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        found.then(|| lowest.addr() + guard)
    }
}

/// Says so, once.
#[cold]
fn is_too_small(left: usize) -> bool {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        crate::log::print(format_args!(
            "a call is refused (ENOMEM): its thread has {} KiB of stack left, and needs {ADVISED_KIB} KiB in all",
            left >> 10
        ));
    });
    false
}

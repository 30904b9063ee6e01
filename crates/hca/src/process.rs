//! One NIC per process, and none that outlives a fork: the child closes what its parent's NIC had open, without taking a lock that a thread
//! of the parent may have held, and makes a NIC of its own when it needs one. What it sees of the parent's objects in its memory is dead. A
//! process that ends in good order says first what its NIC still owes.

use crate::nic::{Error, Nic, lock};
use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};

type Place = Mutex<Option<Arc<Nic>>>;

/// Where this process keeps its NIC. A child finds null and makes its own place: the parent's may be locked for ever.
static PLACE: AtomicPtr<Place> = AtomicPtr::new(null_mut());

/// The NIC of this process.
pub(crate) fn nic() -> Result<Arc<Nic>, Error> {
    guard_forks();
    let mut held = lock(place());
    if let Some(nic) = &*held {
        return Ok(Arc::clone(nic));
    }
    let nic = Nic::open()?;
    *held = Some(Arc::clone(&nic));
    Ok(nic)
}

fn place() -> &'static Place {
    let found = PLACE.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from a leaked box, which lives as long as the process.
    if let Some(place) = unsafe { found.as_ref() } {
        return place;
    }
    let made = Box::into_raw(Box::new(Mutex::new(None)));
    match PLACE.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just leaked, and reachable for ever.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: nobody has seen ours; the other was leaked by the thread that was faster.
            unsafe {
                drop(Box::from_raw(made));
                &*other
            }
        }
    }
}

/// From now on a forked child lets go of what its parent has.
pub(crate) fn guard_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is async-signal-safe: it stores to atomics and closes descriptors.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    PLACE.store(null_mut(), Ordering::Release);
    latch::forget_in_child();
    link::descriptor::close_in_child();
}

/// The NICs of this process, and the process they belong to: they may owe something when it ends.
static OWING: Mutex<Vec<(u32, Weak<Nic>)>> = Mutex::new(Vec::new());

/// Sees to it that what this NIC owes its peers is sent when the process ends, though its objects are never destroyed.
pub(crate) fn settle_at_exit(nic: &Arc<Nic>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a plain function that takes nothing and does not unwind.
        unsafe { libc::atexit(at_exit) };
    });
    // A thread of the parent may hold it for ever in a forked child: then this NIC ends without a word.
    if let Ok(mut owing) = OWING.try_lock() {
        owing.retain(|(_, nic)| nic.strong_count() > 0);
        owing.push((std::process::id(), Arc::downgrade(nic)));
    }
}

extern "C" fn at_exit() {
    let Ok(owing) = OWING.try_lock() else { return };
    for (process, nic) in owing.iter() {
        if *process == std::process::id()
            && let Some(nic) = nic.upgrade()
        {
            let _ = catch_unwind(std::panic::AssertUnwindSafe(|| nic.settle_debts()));
        }
    }
}

//! How the engine gets a processor on which programs spin: at once. By default the scheduler lets whoever runs finish a slice of milliseconds before one who wakes;
//! one who asks for shorter slices goes before it. That takes nothing away from others: it is the same share, in smaller pieces. Kernels before 6.12 ignore it.

use std::mem::size_of;

/// The shortest slice that can be asked for, in nanoseconds.
const SHORT: u64 = 100_000;

const SCHED_OTHER: u32 = libc::SCHED_OTHER as u32;

/// Asks for short slices, for the thread that calls, if it has none of the special policies.
pub(crate) fn shorten() {
    let mut now = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: a live structure of the size that is told; zero is the calling thread.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) } == 0;
    if known && now.sched_policy == SCHED_OTHER {
        now.size = size as u32;
        now.sched_runtime = SHORT;
        // SAFETY: as above. Where it is refused, by an old kernel or by a filter of system calls, nothing has changed.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const now, 0) };
    }
}

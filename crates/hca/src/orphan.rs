//! The checker of a forked child that has no NIC. It uses objects of its parent, and is refused: that is told, although
//! no device was opened in this process.

use crate::environment;
use crate::record::why::Why;
use checks::Absent;
use latch::PerProcess;
use trace::{Call, Event, Kind};

/// The checker, if the environment asks for one.
static ORPHAN_CHECKER: PerProcess<Option<Why>> = PerProcess::new();

/// A call of this process was refused, and it has no NIC. In a process that was not forked, the program has no objects
/// that it could misuse.
pub fn told_without_nic(call: Call) {
    if latch::generation() == 0 {
        return;
    }
    let checker = ORPHAN_CHECKER.get_or_make(|| {
        let asked = environment::asked()?;
        Some(Why::new(asked, Box::new(Absent), || {}))
    });
    if let Some(checker) = checker {
        let kind = Kind::Called { thread: ::host::thread::number(), call };
        checker.record(&Event { at: 0, qpn: None, kind });
    }
}

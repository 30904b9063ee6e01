//! The counters of a port, in the words of performance management.

use crate::ground::Ground;
use mad::answer::Counters;
use trace::DropReason;
use wire::Gid;

/// The counters of the device with that address.
pub(super) fn of(ground: &Ground, _local: Gid) -> Counters {
    let drops = |reasons: &[DropReason]| reasons.iter().map(|reason| ground.drops(*reason)).sum();
    Counters {
        rcv_errors: drops(&[DropReason::Malformed, DropReason::BadIcrc, DropReason::BadLength]),
        xmit_discards: drops(&[DropReason::SystemRefused, DropReason::NoRoute]),
        rcv_constraint_errors: drops(&[DropReason::PkeyMismatch]),
        ..Counters::default()
    }
}

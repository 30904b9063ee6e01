//! Which thread moves packets, and when: the policy that decides it, and what threads tell one another about it. The
//! threads that obey are in `drive`.

pub(crate) mod bell;
pub(crate) mod delayed_ack;
pub(crate) mod engine;
pub(crate) mod engine_affinity;
mod lease;
pub(crate) mod lock_tries;
pub(crate) mod piggybacked_ack;
pub(crate) mod policy;
pub(crate) mod ready;
pub(crate) mod sleep;
mod socket_policy;
pub(crate) mod socket_watch;
pub(crate) mod sync;
pub(crate) mod timers;
pub(crate) mod wake_reason;
pub(crate) mod watch;
pub(crate) mod yield_policy;

//! What is known of the NIC from outside: its clock, its trace, what it has dropped, its captures and its messages.

pub(crate) mod appended_file;
pub(crate) mod capture;
pub(crate) mod clock;
pub(crate) mod drops;
pub(crate) mod failures;
pub(crate) mod file;
pub(crate) mod log;
#[cfg(feature = "capture")]
pub(crate) mod posting_stack;
#[cfg(feature = "capture")]
pub(crate) mod recording;
pub(crate) mod tracing;
#[cfg(feature = "checks")]
pub(crate) mod why;

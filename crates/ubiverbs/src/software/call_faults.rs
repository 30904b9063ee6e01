//! What failure scripts do to calls of the program: calls go by their names in C. Without a script they cost one relaxed
//! load.

use hca::{CallFailure, CallFault, Nic};
use std::io;

/// Why a call fails that a script strikes.
#[derive(Debug, thiserror::Error)]
#[error("{call} fails: {}: {failure}", io::Error::from_raw_os_error(failure.errno))]
pub struct StruckCall {
    call: &'static str,
    failure: CallFailure,
}

impl StruckCall {
    /// As the core says it.
    pub fn plain(&self) -> transport::InjectedError {
        transport::InjectedError { errno: self.failure.errno, line: self.failure.line }
    }
}

/// The program makes this call: a script may let it take its time, or fail.
#[inline]
pub fn strike(nic: &Nic, call: &'static str) -> Result<(), StruckCall> {
    if nic.tracing().is_on() { strike_traced(nic, call) } else { Ok(()) }
}

#[cold]
fn strike_traced(nic: &Nic, call: &'static str) -> Result<(), StruckCall> {
    let Some(failure) = nic.strike_call(call).and_then(CallFault::wait) else { return Ok(()) };
    nic.refused(call, failure.errno, &failure);
    Err(StruckCall { call, failure })
}

//! What failure scripts let calls fail with: posting and modifying say so with errors of their own, in which this stands.

/// A failure script lets a call fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the call fails with errno {errno}: injected by line {line} of a failure script")]
pub struct InjectedError {
    /// What C programs would get.
    pub errno: i32,
    /// The line.
    pub line: u32,
}

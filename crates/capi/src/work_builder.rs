//! The work requests that a program builds by calls, before they are posted.

use crate::errno::Errno;
use std::ops::Range;
use transport::{DatagramTarget, Operation, SendFlags, Sge};
use wire::Srqn;

/// The requests built so far. Its room is used again.
#[derive(Debug, Default)]
pub struct Builder {
    pub(crate) requests: Vec<BuiltRequest>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Vec<u8>,
    /// The first error of a call that built one.
    pub(crate) first_error: Option<Errno>,
}

#[derive(Debug)]
pub(crate) struct BuiltRequest {
    pub wr_id: u64,
    pub operation: Operation,
    pub flags: SendFlags,
    pub data: BuiltData,
    pub target: Option<DatagramTarget>,
    pub xrc_srq: Option<Srqn>,
}

#[derive(Debug)]
pub(crate) enum BuiltData {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

impl Builder {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.first_error = None;
    }

    pub(crate) fn last(&mut self) -> Result<&mut BuiltRequest, Errno> {
        self.requests.last_mut().ok_or(Errno::INVALID)
    }
}

//! Work requests that own their pieces: what tests and programs of the simulator write down, one line each. They become
//! the transport's borrowed requests when they are posted.

use transport::{Bind, Data, DatagramTarget, Operation, Remote, SendFlags, SendRequest, Sge};
use wire::{Key, Placement, Selectivity, Srqn};

/// A work request for a send queue. Signaled unless it says otherwise.
///
/// ```
/// use sim::Work;
/// use transport::{Remote, SendFlags};
///
/// let work = Work::write(Remote::default()).id(7).inline(b"hello").immediate(1).fenced();
/// assert_eq!(work.request().wr_id, 7);
/// assert_eq!(work.request().flags, SendFlags::SIGNALED | SendFlags::FENCE);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    wr_id: u64,
    operation: Operation,
    flags: SendFlags,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    target: Option<DatagramTarget>,
    xrc_srq: Option<Srqn>,
}

impl Work {
    /// Any operation.
    pub fn new(operation: Operation) -> Work {
        Work {
            wr_id: 0,
            operation,
            flags: SendFlags::SIGNALED,
            sges: Vec::new(),
            inline: None,
            target: None,
            xrc_srq: None,
        }
    }

    /// SEND.
    pub fn send() -> Work {
        Work::new(Operation::Send { immediate: None })
    }

    /// SEND that invalidates a key of the peer's.
    pub fn send_invalidate(key: Key) -> Work {
        Work::new(Operation::SendInvalidate { key })
    }

    /// RDMA WRITE.
    pub fn write(remote: Remote) -> Work {
        Work::new(Operation::Write { remote, immediate: None })
    }

    /// RDMA READ.
    pub fn read(remote: Remote) -> Work {
        Work::new(Operation::Read { remote })
    }

    /// Compare and swap.
    pub fn compare_swap(remote: Remote, compare: u64, swap: u64) -> Work {
        Work::new(Operation::CompareSwap { remote, compare, swap })
    }

    /// Fetch and add.
    pub fn fetch_add(remote: Remote, add: u64) -> Work {
        Work::new(Operation::FetchAdd { remote, add })
    }

    /// ATOMIC WRITE.
    pub fn atomic_write(remote: Remote) -> Work {
        Work::new(Operation::AtomicWrite { remote })
    }

    /// FLUSH of a range.
    pub fn flush(remote: Remote, length: u32, placement: Placement) -> Work {
        Work::new(Operation::Flush { remote, length, placement, selectivity: Selectivity::Range })
    }

    /// Local invalidate.
    pub fn local_invalidate(key: Key) -> Work {
        Work::new(Operation::LocalInvalidate { key })
    }

    /// Memory window bind.
    pub fn bind(bind: Bind) -> Work {
        Work::new(Operation::BindWindow(bind))
    }

    /// The number that comes back in the completion.
    pub fn id(mut self, wr_id: u64) -> Work {
        self.wr_id = wr_id;
        self
    }

    /// One more local piece.
    pub fn sge(mut self, sge: Sge) -> Work {
        self.sges.push(sge);
        self
    }

    /// More local pieces.
    pub fn sges(mut self, sges: &[Sge]) -> Work {
        self.sges.extend_from_slice(sges);
        self
    }

    /// Bytes of its own instead of local pieces.
    pub fn inline(mut self, bytes: &[u8]) -> Work {
        self.inline = Some(bytes.to_vec());
        self
    }

    /// Immediate data.
    ///
    /// # Panics
    /// If the operation has none.
    pub fn immediate(mut self, value: u32) -> Work {
        match &mut self.operation {
            Operation::Send { immediate } | Operation::Write { immediate, .. } => *immediate = Some(value),
            other => panic!("{} has no immediate data", other.name()),
        }
        self
    }

    /// Completes without a word if it succeeds.
    pub fn unsignaled(mut self) -> Work {
        self.flags -= SendFlags::SIGNALED;
        self
    }

    /// Waits for earlier READs and atomics.
    pub fn fenced(mut self) -> Work {
        self.flags |= SendFlags::FENCE;
        self
    }

    /// Wakes a peer that waits for solicited completions.
    pub fn solicited(mut self) -> Work {
        self.flags |= SendFlags::SOLICITED;
        self
    }

    /// UD: where to.
    pub fn to(mut self, target: DatagramTarget) -> Work {
        self.target = Some(target);
        self
    }

    /// XRC: the peer's shared receive queue.
    pub fn to_srq(mut self, srqn: Srqn) -> Work {
        self.xrc_srq = Some(srqn);
        self
    }

    /// As the transport takes it.
    pub fn request(&self) -> SendRequest<'_> {
        SendRequest {
            wr_id: self.wr_id,
            operation: self.operation,
            flags: self.flags,
            data: match &self.inline {
                Some(bytes) => Data::Inline(bytes),
                None => Data::Gather(&self.sges),
            },
            target: self.target,
            xrc_srq: self.xrc_srq,
        }
    }
}

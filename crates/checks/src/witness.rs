//! What only a live process can be asked.

use trace::Pieces;

/// Answers questions about the process that is checked.
pub trait Witness {
    /// A digest of what the pieces hold now; `None` if nobody can say.
    fn digest(&mut self, pieces: &Pieces) -> Option<u64>;

    /// Whether the memory is mapped now; `None` if nobody can say.
    fn is_mapped(&mut self, address: u64, length: u64) -> Option<bool>;

    /// Whether [`digest`](Witness::digest) may answer now. A look takes time, and who is asked may have no more of it.
    fn may_look(&mut self) -> bool {
        false
    }

    /// Whether the memory is part of a thread's stack; `None` if nobody can say.
    fn is_on_stack(&mut self, _address: u64, _length: u64) -> Option<bool> {
        None
    }
}

/// Nobody to ask: an earlier run, a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Absent;

impl Witness for Absent {
    fn digest(&mut self, _pieces: &Pieces) -> Option<u64> {
        None
    }

    fn is_mapped(&mut self, _address: u64, _length: u64) -> Option<bool> {
        None
    }
}

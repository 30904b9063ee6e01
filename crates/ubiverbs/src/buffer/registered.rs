//! A read-only buffer with any number of owners.

use crate::allocation::Allocation;
use crate::buffer::RegisteredMut;
use crate::remote::RemoteSlice;
use std::fmt;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;
use transport::Access;
use wire::refuse_if;

/// Registered memory that anybody may read and nobody may change; the source of SENDs and WRITEs.
///
/// Made by [`RegisteredMut::freeze`]. Clones and slices are cheap and share the bytes, so one message can go to many
/// peers at once.
///
/// ```
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let mut buffer = pd.allocate(11)?;
/// buffer.copy_from_slice(b"hello world");
/// let message = buffer.freeze();
/// let (hello, world) = (message.slice(..5), message.slice(6..));
/// assert_eq!((&*hello, &*world), (&b"hello"[..], &b"world"[..]));
///
/// // With the last owner it can be changed again.
/// drop((hello, world));
/// let buffer = message.try_into_mut().expect("nobody else has it");
/// assert_eq!(buffer.len(), 11);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// It cannot be received into, because others may be reading it:
///
/// ```compile_fail,E0277
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [qp, _peer] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
/// # let there = ubiverbs::RemoteSlice::new(0, 8, ubiverbs::Key::new(0));
/// qp.read(pd.allocate(10)?.freeze(), there)?; // error: Registered is no Destination
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct Registered {
    whole: Arc<RegisteredMut>,
    start: usize,
    length: usize,
}

impl Registered {
    pub(crate) fn new(whole: RegisteredMut) -> Registered {
        let length = whole.len();
        Registered { whole: Arc::new(whole), start: 0, length }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the range is not within.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Registered {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => *start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => *end + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.length,
        };
        assert!(start <= end && end <= self.length, "range {start}..{end} is not within {} bytes", self.length);
        Registered { whole: Arc::clone(&self.whole), start: self.start + start, length: end - start }
    }

    /// The buffer that was frozen, all of it, if this is its last owner. What was registered to be read only stays so.
    pub fn try_into_mut(self) -> Result<RegisteredMut, Registered> {
        refuse_if!(self.place().0.is_read_only(), self);
        let (start, length) = (self.start, self.length);
        Arc::try_unwrap(self.whole).map_err(|whole| Registered { whole, start, length })
    }

    /// What a peer uses to READ it, if it was [published](crate::ProtectionDomain::publish).
    pub fn remote_slice(&self) -> Option<RemoteSlice> {
        let (allocation, start, length) = self.place();
        let there =
            RemoteSlice::new(allocation.address() + start as u64, length as u64, allocation.registration().key());
        allocation.access().contains(Access::REMOTE_READ).then_some(there)
    }

    pub(crate) fn place(&self) -> (&Allocation, usize, usize) {
        let (allocation, start, _) = self.whole.place();
        (allocation, start + self.start, self.length)
    }
}

impl Deref for Registered {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.whole.get(self.start..self.start + self.length).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Registered {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({} bytes)", self.length)
    }
}

/// These bytes, registered until the last of their handles is dropped.
#[cfg(feature = "bytes")]
impl From<Registered> for bytes::Bytes {
    fn from(buffer: Registered) -> bytes::Bytes {
        bytes::Bytes::from_owner(buffer)
    }
}

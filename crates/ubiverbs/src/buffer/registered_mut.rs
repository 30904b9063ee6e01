//! A buffer with exactly one owner.

use crate::allocation::{Allocation, Span};
use crate::buffer::Registered;
use crate::domain::ProtectionDomain;
use seam::{Error, Failed};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Registered memory with exactly one owner, who may read and write it as a slice; the destination of receives and
/// READs.
///
/// Made by [`ProtectionDomain::allocate`](crate::ProtectionDomain::allocate) or
/// [`register`](crate::ProtectionDomain::register). Moving it into a call that posts work makes the NIC its owner until
/// the work is done. It can be cut into pieces, each with one owner again, so one registration serves many buffers; the
/// memory is freed with the last piece.
///
/// ```
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let mut buffer = pd.allocate(100)?;
/// buffer[..5].copy_from_slice(b"hello");
/// let mut rest = buffer.split_off(5);
/// assert_eq!(&*buffer, b"hello");
/// rest.fill(7);
/// buffer.unsplit(rest).unwrap();
/// assert_eq!((buffer.len(), buffer[5]), (100, 7));
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// Once it is posted it is gone, so what the NIC is about to send cannot change any more:
///
/// ```compile_fail,E0382
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [qp, _peer] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
/// let mut buffer = pd.allocate(100)?;
/// let sending = qp.send(buffer)?;
/// buffer[0] = 1; // error: borrow of moved value
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
pub struct RegisteredMut {
    span: Span,
}

impl ProtectionDomain {
    /// Allocates and registers `length` zeroed bytes, aligned to a cache line.
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, length: usize) -> Result<RegisteredMut, Error> {
        let allocation = Allocation::owned(&self.core().opened, self.id, length)?;
        Ok(RegisteredMut::new(Span::all(allocation)))
    }

    /// Registers bytes the program has, where they are.
    ///
    /// ```
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// let message = pd.register(b"a message".to_vec())?.freeze();
    /// assert_eq!(&*message, b"a message");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Gives the bytes back if they cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&self, bytes: impl Into<Box<[u8]>>) -> Result<RegisteredMut, Failed<Box<[u8]>>> {
        match Allocation::adopt(&self.core().opened, self.id, bytes.into()) {
            Ok(allocation) => Ok(RegisteredMut::new(Span::all(allocation))),
            Err((error, buffer)) => Err(Failed { error, buffer }),
        }
    }
}

impl RegisteredMut {
    pub(crate) fn new(span: Span) -> RegisteredMut {
        RegisteredMut { span }
    }

    /// Cuts off everything from byte `at` on and returns it. The two halves are independent and of the same
    /// registration.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    #[must_use = "what was cut off is dropped otherwise"]
    pub fn split_off(&mut self, at: usize) -> RegisteredMut {
        RegisteredMut { span: self.span.split_off(at) }
    }

    /// Joins the piece that comes next in memory. Another piece is given back.
    pub fn unsplit(&mut self, next: RegisteredMut) -> Result<(), RegisteredMut> {
        self.span.unsplit(next.span).map_err(RegisteredMut::new)
    }

    /// Cuts it into pieces of `length` bytes; a shorter rest is the last.
    ///
    /// # Panics
    /// If `length` is zero.
    pub fn chunks(mut self, length: usize) -> Vec<RegisteredMut> {
        assert!(length > 0, "cannot cut a buffer into pieces of nothing");
        let mut pieces = Vec::with_capacity(self.len().div_ceil(length));
        while self.len() > length {
            let rest = self.split_off(length);
            pieces.push(std::mem::replace(&mut self, rest));
        }
        pieces.push(self);
        pieces
    }

    /// Makes it read-only, so that it can be cloned and sliced.
    pub fn freeze(self) -> Registered {
        Registered::new(self)
    }

    /// Ends the registration and gives the bytes back that [`register`](crate::ProtectionDomain::register) was given.
    ///
    /// ```
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// let mut buffer = pd.register(b"mine".to_vec())?;
    /// buffer[0] = b'M';
    /// let bytes: Vec<u8> = buffer.into_boxed_slice().expect("all of it").into_vec();
    /// assert_eq!(bytes, b"Mine");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Gives the buffer back if other pieces of it exist, or if it was made in another way.
    pub fn into_boxed_slice(self) -> Result<Box<[u8]>, RegisteredMut> {
        self.span.into_box().map_err(RegisteredMut::new)
    }

    /// Ends the registration and gives the value back that the memory is of.
    pub(crate) fn into_program<M: crate::own::Memory>(self) -> Result<M, RegisteredMut> {
        self.span.into_program().map_err(RegisteredMut::new)
    }

    pub(crate) fn place(&self) -> (&Allocation, usize, usize) {
        (self.span.allocation(), self.span.start(), self.span.len())
    }
}

impl Deref for RegisteredMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.span
    }
}

impl DerefMut for RegisteredMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.span
    }
}

impl AsRef<[u8]> for RegisteredMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for RegisteredMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for RegisteredMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredMut({} bytes)", self.len())
    }
}

/// These bytes, registered until the last of their handles is dropped.
#[cfg(feature = "bytes")]
impl From<RegisteredMut> for bytes::Bytes {
    fn from(buffer: RegisteredMut) -> bytes::Bytes {
        bytes::Bytes::from_owner(buffer)
    }
}

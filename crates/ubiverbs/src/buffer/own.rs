//! Registered memory that is inside a value of the program's, and the ways to get one.

use crate::allocation::{Allocation, Span};
use crate::buffer::{Buffer, Destination, Registered, RegisteredMut, SharedRegion, Source, sealed::Lend};
use crate::domain::{ProtectionDomain, grantable};
use crate::own::{OwnMemory, ReadOnlyMemory};
use seam::{Error, Failed};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use transport::Access;

/// A `Vec`, a box, a map of the program's own, registered where it is, with exactly one owner: what [`RegisteredMut`]
/// is, as the type that the memory came as.
///
/// Made by [`ProtectionDomain::register_own`]. It is read and written as a slice of what is in it, moves to the NIC
/// when it is posted, and comes back with the completion; [`into_inner`](Own::into_inner) ends the registration and
/// gives the value back.
///
/// ```
/// # use ubiverbs::{Access, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// let gradients: Vec<f32> = vec![0.5; 1000];
/// let mut gradients = pd.register_own(gradients)?;
/// gradients[7] = 2.0;
///
/// let receiving = b.recv_into(pd.register_own(vec![0f32; 1000])?)?;
/// let gradients = a.send(gradients)?.wait()?;
/// let received = receiving.wait()?;
/// assert_eq!(received.buffer()[7], 2.0);
///
/// // Back as what they were.
/// let (sent, received): (Vec<f32>, Vec<f32>) = (gradients.into_inner()?, received.into_buffer().into_inner()?);
/// assert_eq!(sent, received);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// While the NIC has it, nobody else does:
///
/// ```compile_fail,E0382
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [qp, _peer] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
/// let numbers = pd.register_own(vec![1u32; 8])?;
/// let sending = qp.send(numbers)?;
/// let numbers = numbers.into_inner(); // error: use of moved value
/// # Ok::<(), ubiverbs::Error>(())
/// ```
pub struct Own<M: OwnMemory> {
    bytes: RegisteredMut,
    memory: PhantomData<M>,
}

impl<M: OwnMemory> Own<M> {
    /// Ends the registration and gives the value back.
    ///
    /// # Errors
    /// If the NIC does not let go of it, which has no reason to happen.
    pub fn into_inner(self) -> Result<M, Failed<Own<M>>> {
        let back = |bytes| Failed { error: Error::Shared { what: "memory" }, buffer: Own::new(bytes) };
        self.bytes.into_program().map_err(back)
    }

    /// This memory as bytes, to cut into pieces or to freeze. [`from_bytes`](Own::from_bytes) is the way back.
    pub fn into_bytes(self) -> RegisteredMut {
        self.bytes
    }

    /// The memory as what it came as: of all the bytes, put together again, or of a buffer that a completion queue
    /// handed back.
    ///
    /// # Errors
    /// Gives the bytes back if they are not all of it, or came as something else.
    pub fn from_bytes(bytes: RegisteredMut) -> Result<Own<M>, RegisteredMut> {
        let (allocation, _, length) = bytes.place();
        if allocation.is_of::<M>() && length == allocation.len() { Ok(Own::new(bytes)) } else { Err(bytes) }
    }

    /// How many bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// All of a value's memory.
    fn new(bytes: RegisteredMut) -> Own<M> {
        Own { bytes, memory: PhantomData }
    }
}

impl<M: OwnMemory> Deref for Own<M> {
    type Target = M::Slice;

    fn deref(&self) -> &M::Slice {
        M::view(&self.bytes)
    }
}

impl<M: OwnMemory> DerefMut for Own<M> {
    fn deref_mut(&mut self) -> &mut M::Slice {
        M::view_mut(&mut self.bytes)
    }
}

impl<M: OwnMemory> AsRef<[u8]> for Own<M> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<M: OwnMemory> Lend for Own<M> {
    fn into_buffer(self) -> Buffer {
        Buffer::Mut(self.bytes)
    }

    fn from_buffer(buffer: Buffer) -> Option<Own<M>> {
        Own::from_bytes(buffer.into_mut()?).ok()
    }
}

impl<M: OwnMemory> Source for Own<M> {}
impl<M: OwnMemory> Destination for Own<M> {}

impl<M: OwnMemory> fmt::Debug for Own<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own<{}>({} bytes)", std::any::type_name::<M>(), self.bytes.len())
    }
}

/// Memory of the program's own that peers reach while the program does, until it wants it back. Made by
/// [`ProtectionDomain::share_own`]; derefs to the
/// [`SharedRegion`] through which it is used.
///
/// ```
/// # use ubiverbs::{Access, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [client, _server] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// let shared = pd.share_own(vec![1u64, 2, 3], Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
/// let there = shared.remote_slice();
/// client.fetch_add(there.slice(8..16)?, 40)?.wait()?;
/// client.write_inline(&7u64.to_ne_bytes(), there.slice(16..24)?)?.wait()?;
///
/// // Taken away from peers, and back as what it was.
/// assert_eq!(shared.into_inner()?, [1, 42, 7]);
/// assert!(client.fetch_add(there, 1)?.wait().is_err());
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// As long as peers may write there is no slice of it:
///
/// ```compile_fail,E0608
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let shared = pd.share_own(vec![1u64, 2, 3], ubiverbs::Access::REMOTE_WRITE)?;
/// let first = shared[0]; // error: cannot index into a value of type SharedOwn
/// # Ok::<(), ubiverbs::Error>(())
/// ```
pub struct SharedOwn<M: OwnMemory> {
    region: SharedRegion,
    memory: PhantomData<M>,
}

impl<M: OwnMemory> SharedOwn<M> {
    /// Takes the memory away from peers and gives the value back: when this returns, no peer touches it, and no key
    /// they hold opens anything.
    ///
    /// # Errors
    /// [`Error::Shared`] while other handles of the region exist, in work under way perhaps; peers keep their access
    /// then.
    pub fn into_inner(self) -> Result<M, Failed<SharedOwn<M>>> {
        let back = |(error, allocation)| {
            let error = if let Error::Shared { .. } = error { Error::Shared { what: "region" } } else { error };
            Failed { error, buffer: SharedOwn::new(allocation) }
        };
        self.region.into_allocation().into_program().map_err(back)
    }

    /// The region, for work to be posted with it; a handle of it.
    pub fn region(&self) -> SharedRegion {
        self.region.clone()
    }

    fn new(allocation: Arc<Allocation>) -> SharedOwn<M> {
        SharedOwn { region: SharedRegion::new(allocation), memory: PhantomData }
    }
}

impl<M: OwnMemory> Deref for SharedOwn<M> {
    type Target = SharedRegion;

    fn deref(&self) -> &SharedRegion {
        &self.region
    }
}

impl<M: OwnMemory> fmt::Debug for SharedOwn<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedOwn<{}>({:?})", std::any::type_name::<M>(), self.region)
    }
}

impl ProtectionDomain {
    /// Registers memory of the program's own where it is: a `Vec`, a box, a map. No byte is copied.
    ///
    /// # Errors
    /// Gives the memory back if it cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_own<M: OwnMemory>(&self, memory: M) -> Result<Own<M>, Failed<M>> {
        match Allocation::keep(&self.core().opened, self.id, memory, Access::LOCAL_WRITE) {
            Ok(allocation) => Ok(Own::new(RegisteredMut::new(Span::all(allocation)))),
            Err((error, buffer)) => Err(Failed { error, buffer }),
        }
    }

    /// Lets peers reach memory of the program's own, with these rights, until [`into_inner`](SharedOwn::into_inner)
    /// takes it back.
    ///
    /// # Errors
    /// Gives the memory back if it cannot be registered, or not with these rights.
    #[doc(alias = "ibv_reg_mr")]
    pub fn share_own<M: OwnMemory>(&self, memory: M, rights: Access) -> Result<SharedOwn<M>, Failed<M>> {
        let given = if rights.is_empty() { Err(Error::NoRights) } else { grantable(rights) };
        if let Err(error) = given {
            return Err(Failed { error, buffer: memory });
        }
        match Allocation::keep(&self.core().opened, self.id, memory, rights | Access::LOCAL_WRITE) {
            Ok(allocation) => Ok(SharedOwn::new(allocation)),
            Err((error, buffer)) => Err(Failed { error, buffer }),
        }
    }

    /// Registers bytes that nobody changes any more where they are, to send and write from.
    /// [`Registered::try_into_mut`] never gives them back for writing, as others may be reading them.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// let page: Arc<[u8]> = Arc::from(*b"HTTP/1.1 200 OK\r\n");
    /// let response = pd.register_read_only(Arc::clone(&page))?;
    /// let receiving = b.recv(pd.allocate(64)?)?;
    /// a.send(response)?.wait()?;
    /// assert_eq!(receiving.wait()?.payload(), &*page);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Gives the memory back if it cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_read_only<M: ReadOnlyMemory>(&self, memory: M) -> Result<Registered, Failed<M>> {
        self.read_only(memory, Access::empty())
    }

    /// Lets peers READ bytes that nobody changes any more, while the program reads them too, as a slice. It ends with
    /// the last handle.
    ///
    /// ```
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [client, _server] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// let table = pd.publish(b"a table that does not change".to_vec())?;
    /// let there = table.remote_slice().expect("peers may read it");
    /// let read = client.read(pd.allocate(7)?, there.slice(0..7)?)?.wait()?;
    /// assert_eq!(*read, table[..7]);
    /// // Nobody writes it.
    /// assert!(client.write_inline(b"!", there)?.wait().is_err());
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Gives the memory back if it cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn publish<M: ReadOnlyMemory>(&self, memory: M) -> Result<Registered, Failed<M>> {
        self.read_only(memory, Access::REMOTE_READ)
    }

    fn read_only<M: ReadOnlyMemory>(&self, memory: M, access: Access) -> Result<Registered, Failed<M>> {
        match Allocation::keep(&self.core().opened, self.id, memory, access) {
            Ok(allocation) => Ok(RegisteredMut::new(Span::all(allocation)).freeze()),
            Err((error, buffer)) => Err(Failed { error, buffer }),
        }
    }
}

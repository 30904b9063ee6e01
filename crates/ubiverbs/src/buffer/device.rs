//! Memory of the device: allocated and copied by the program, reached by peers through regions over it.

use crate::device::{Context, ContextCore};
use crate::domain::{ProtectionDomain, grantable};
use crate::registration::{Registration, empty, within};
use crate::remote::RemoteSlice;
use seam::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use transport::Access;
use wire::refuse_if;

/// Memory that lies in the NIC and not in the program. A handle; clones are the same memory, which is given back with
/// the last handle and the last region over it.
///
/// Made by [`Context::device_memory`]. The program has no address of it: bytes are copied in and out, so it is no
/// slice. There is little of it, [`Context::device_memory_size`] bytes for all. On hardware a word in it is nearer to
/// the peers than any other, so it is the place for counters and locks; the NIC in software keeps to the same rules, so
/// that a program can be tried without the hardware.
///
/// ```
/// # use ubiverbs::{Access, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [_server, client] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// let memory = context.device_memory(4096).aligned_to(64).allocate()?;
/// memory.write_at(64, b"in the device   ")?;
///
/// // A region over it is what peers reach, by addresses that begin at zero.
/// let region = pd.share_device(&memory, 0..128, Access::REMOTE_READ | Access::REMOTE_ATOMIC)?;
/// let there = region.remote_slice();
/// assert_eq!(there.address(), 0);
/// let read = client.read(pd.allocate(13)?, there.slice(64..77)?)?.wait()?;
/// assert_eq!(&*read, b"in the device");
/// client.fetch_add(there, 1)?.wait()?;
///
/// let mut counter = [0; 8];
/// memory.read_at(0, &mut counter)?;
/// assert_eq!(u64::from_ne_bytes(counter), 1);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// ```compile_fail,E0614
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// let memory = context.device_memory(4096).allocate()?;
/// let bytes: &[u8] = &*memory; // error: DeviceMemory cannot be dereferenced
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_dm")]
pub struct DeviceMemory {
    memory: Arc<dyn seam::DeviceMemory>,
    context: Arc<ContextCore>,
    length: usize,
}

/// Device memory that is about to be allocated. Made by [`Context::device_memory`].
#[derive(Debug)]
#[must_use = "call `allocate`"]
#[doc(alias = "ibv_alloc_dm_attr")]
pub struct DeviceMemoryBuilder<'a> {
    context: &'a Context,
    length: usize,
    alignment: usize,
}

impl Context {
    /// How many bytes of memory the device has of its own, in use or not; zero if it has none.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn device_memory_size(&self) -> u64 {
        self.core.opened.device_memory_size()
    }

    /// `length` bytes of the device's own memory, about to be allocated.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn device_memory(&self, length: usize) -> DeviceMemoryBuilder<'_> {
        DeviceMemoryBuilder { context: self, length, alignment: 1 }
    }
}

impl<'a> DeviceMemoryBuilder<'a> {
    /// Where it begins in the device is a multiple of this power of two, of up to two megabytes; it is one of 64 in any
    /// case.
    pub fn aligned_to(self, alignment: usize) -> DeviceMemoryBuilder<'a> {
        DeviceMemoryBuilder { alignment, ..self }
    }

    /// Allocates it, zeroed.
    ///
    /// # Errors
    /// [`Error::Create`] for nothing, for more than the device has left, and for an alignment it cannot give.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn allocate(self) -> Result<DeviceMemory, Error> {
        if !self.alignment.is_power_of_two() {
            let source = format!("its alignment must be a power of two, and {} is none", self.alignment).into();
            return Err(Error::Create { what: "device memory", source });
        }
        let context = &self.context.core;
        let memory = context.opened.allocate_device_memory(self.length, self.alignment)?;
        Ok(DeviceMemory { memory, context: Arc::clone(context), length: self.length })
    }
}

impl DeviceMemory {
    /// How many bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies bytes in: as many as a multiple of four, to an offset that is one. Eight that are aligned go in whole.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], and [`Error::DeviceMemory`] if they are no multiples. Nothing is copied then.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        within(self.length, offset, bytes.len())?;
        self.memory.write(offset as u64, bytes)
    }

    /// Copies bytes out: as many as a multiple of four, from an offset that is one. Eight that are aligned are of one
    /// age.
    ///
    /// # Errors
    /// As [`write_at`](DeviceMemory::write_at).
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        within(self.length, offset, out.len())?;
        self.memory.read(offset as u64, out)
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes of {})", self.length, self.context.name)
    }
}

/// A part of [`DeviceMemory`] that has a key: peers reach it with the rights it was shared with, and the program sends,
/// writes and reads with it as with any other buffer, device to device if both ends are. A handle; clones are the same
/// region, which keeps its memory.
///
/// Made by [`ProtectionDomain::share_device`]. As nobody has a reference to the bytes, it may be posted many times at
/// once.
///
/// ```
/// # use ubiverbs::{Access, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [qp, _peer] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// let [here, there] = [(); 2].map(|()| context.device_memory(64).allocate());
/// let (here, there) = (here?, there?);
/// here.write_at(0, b"straight through")?;
///
/// let source = pd.share_device(&here, 0..16, Access::empty())?;
/// let target = pd.share_device(&there, 32..64, Access::REMOTE_WRITE)?;
/// qp.write(source, target.remote_slice())?.wait()?;
///
/// let mut copy = [0; 16];
/// there.read_at(32, &mut copy)?;
/// assert_eq!(&copy, b"straight through");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct DeviceRegion {
    cover: Arc<Cover>,
    start: usize,
    length: usize,
}

/// A registration over device memory, and the memory, in the order in which they go.
struct Cover {
    registration: Registration,
    memory: DeviceMemory,
    /// Where it begins in the memory.
    offset: usize,
}

impl ProtectionDomain {
    /// Registers a part of the device's memory, for peers with these rights, if any, and for work of this program.
    /// Several regions may cover the same bytes.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn share_device(
        &self,
        memory: &DeviceMemory,
        range: Range<usize>,
        rights: Access,
    ) -> Result<DeviceRegion, Error> {
        grantable(rights)?;
        refuse_if!(!Arc::ptr_eq(&memory.context, self.core()), Error::OtherDevice { what: "device memory" });
        let length = range.end.saturating_sub(range.start);
        within(memory.length, range.start, length)?;
        refuse_if!(length == 0, empty());
        let key = memory.memory.register(range.start as u64, length, self.id, rights | Access::LOCAL_WRITE)?;
        let registration = Registration::new(&self.core().opened, self.id, key);
        let cover = Cover { registration, memory: memory.clone(), offset: range.start };
        Ok(DeviceRegion { cover: Arc::new(cover), start: 0, length })
    }
}

impl DeviceRegion {
    /// How many bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.length
    }

    /// A handle of a part, to send from or read into.
    pub fn part(&self, range: Range<usize>) -> Result<DeviceRegion, Error> {
        let length = range.end.saturating_sub(range.start);
        within(self.length, range.start, length)?;
        Ok(DeviceRegion { cover: Arc::clone(&self.cover), start: self.start + range.start, length })
    }

    /// What a peer uses to reach it. Addresses count from the beginning of what was shared.
    pub fn remote_slice(&self) -> RemoteSlice {
        RemoteSlice::new(self.start as u64, self.length as u64, self.cover.registration.key())
    }

    /// The memory it is a part of.
    pub fn memory(&self) -> &DeviceMemory {
        &self.cover.memory
    }

    /// Where in that memory it begins.
    pub fn offset(&self) -> usize {
        self.cover.offset + self.start
    }

    /// Takes the memory away from peers: when this returns, none touches it through this region. Work of our own that
    /// is in flight for it fails. The program's copies go on.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(&self) -> Result<(), Error> {
        self.cover.registration.revoke()
    }

    /// Whether peers' access was taken away.
    pub fn is_revoked(&self) -> bool {
        self.cover.registration.is_revoked()
    }

    pub(crate) fn place(&self) -> (&Registration, u64, usize) {
        (&self.cover.registration, self.start as u64, self.length)
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        // What the NIC would not let go of stays allocated, because it refuses to free it.
        let _ = self.registration.revoke();
    }
}

impl fmt::Debug for DeviceRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revoked = if self.is_revoked() { ", revoked" } else { "" };
        write!(f, "DeviceRegion({} bytes at {} of the device's{revoked})", self.length, self.offset())
    }
}

//! Protection domains, and the memory registered in them.

use crate::address::AddressHandle;
use crate::allocation::{Allocation, Span};
use crate::buffer::{DeviceMemory, DeviceRegion, RegisteredMut, SharedRegion};
use crate::completion_queue::CompletionQueue;
use crate::device::{Context, ContextCore};
use crate::endpoint::Endpoint;
use crate::error::{Argument, Error, Failed};
use crate::queue_pair::QueuePairBuilder;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::transports::Transport;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use transport::Access;

/// Memory and queues that belong together: a queue pair reaches only memory of its own protection domain. A handle;
/// clones are the same domain, which lasts as long as anything in it.
#[derive(Clone)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    pub(crate) context: Context,
    pub(crate) id: transport::ProtectionDomain,
}

/// What peers may be allowed.
pub(crate) const GRANTABLE_ACCESS: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT)
    .union(Access::MW_BIND)
    .union(Access::LOCAL_WRITE);

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> ProtectionDomain {
        ProtectionDomain { context: context.clone(), id: context.core.opened.new_domain() }
    }

    /// The opened device it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

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

    /// Allocates `length` zeroed bytes that peers may reach with these rights, while the program uses them too. With
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE) alone no peer reaches them, and work of this program may name them many
    /// times at once.
    ///
    /// # Errors
    /// [`Error::NoRights`] for no rights at all, [`Error::Rights`] for those that cannot be given.
    #[doc(alias = "ibv_reg_mr")]
    pub fn share(&self, length: usize, rights: Access) -> Result<SharedRegion, Error> {
        grantable(rights)?;
        if rights.is_empty() {
            return Err(Error::NoRights);
        }
        Ok(SharedRegion::new(Allocation::shared(&self.core().opened, self.id, length, rights)?))
    }

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
        DeviceRegion::new(self, memory, range, rights | Access::LOCAL_WRITE)
    }

    /// A queue pair whose work completes in `cq`, about to be made. The transport is the type:
    /// [`Reliable`](crate::Reliable), [`Unreliable`](crate::Unreliable) or [`Datagram`](crate::Datagram).
    #[doc(alias = "ibv_create_qp")]
    pub fn queue_pair<T: Transport>(&self, cq: &CompletionQueue) -> QueuePairBuilder<T> {
        QueuePairBuilder::new(self, cq)
    }

    /// A queue of up to `capacity` receives that many queue pairs share.
    #[doc(alias = "ibv_create_srq")]
    #[track_caller]
    pub fn shared_receive_queue(&self, capacity: u32) -> Result<SharedReceiveQueue, Error> {
        if capacity == 0 {
            return Err(Argument::refuse("shared_receive_queue", capacity, "it must hold one receive at least").into());
        }
        SharedReceiveQueue::new(self, capacity)
    }

    /// The way to a datagram queue pair.
    #[doc(alias = "ibv_create_ah")]
    pub fn address(&self, peer: &Endpoint) -> Result<AddressHandle, Error> {
        AddressHandle::new(self.core(), peer.gid(), peer.qpn(), peer.qkey())
    }

    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.context.core
    }
}

/// Whether peers can be given these rights.
pub(crate) fn grantable(rights: Access) -> Result<(), Error> {
    let beyond = rights.difference(GRANTABLE_ACCESS);
    if beyond.is_empty() { Ok(()) } else { Err(Error::Rights { bits: beyond.bits() }) }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &ProtectionDomain) -> bool {
        self.id == other.id && Arc::ptr_eq(self.core(), other.core())
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({} of {})", self.id.0, self.context.name())
    }
}

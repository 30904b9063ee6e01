//! Memory of a GPU, registered where it lies.
#![allow(unsafe_code)]

use crate::domain::{ProtectionDomain, grantable};
use crate::registration::{Registration, empty, within};
use crate::remote::RemoteSlice;
use seam::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use transport::Access;
use wire::refuse_if;

/// Memory of a GPU that has a key: peers reach it with the rights it was shared with, and the program sends, writes and
/// reads with it as with any other buffer. The NIC has the GPU's driver copy; between two processes that use the same
/// GPU, long WRITEs and READs stay inside it. A handle; clones are the same region.
///
/// Made by [`ProtectionDomain::share_gpu`]. As nobody has a reference to the bytes, it may be posted many times at
/// once. Work that the driver refuses, because the memory was freed or its context destroyed, fails as if the key were
/// gone.
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct GpuRegion {
    cover: Arc<Cover>,
    start: usize,
    length: usize,
}

struct Cover {
    registration: Registration,
    address: u64,
}

impl ProtectionDomain {
    /// Registers memory of a GPU, by the pointer that its driver gave (`cuMemAlloc`, `cudaMalloc`), for peers with
    /// these rights, if any, and for work of this program. The program must have loaded the driver, `libcuda.so.1`.
    ///
    /// What the program's kernels wrote must be there before work is posted for it: wait for their stream. What peers
    /// wrote is there when a completion says so.
    ///
    /// # Errors
    /// [`Error::Rights`], and [`Error::Register`] where no memory is, or less than that.
    ///
    /// # Safety
    /// `pointer` is memory of a GPU that stays allocated until the last handle of the region is gone or
    /// [`revoke`](GpuRegion::revoke) has returned, and that may be read at any time, and with a right to write be
    /// changed.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn share_gpu(&self, pointer: u64, length: usize, rights: Access) -> Result<GpuRegion, Error> {
        grantable(rights)?;
        refuse_if!(length == 0, empty());
        let (context, access) = (&self.core().opened, rights | Access::LOCAL_WRITE);
        let first = std::ptr::without_provenance_mut(pointer as usize);
        // SAFETY: the memory stays until the registration is revoked, as this function asks.
        let key = unsafe { context.register(first, length, self.id, access) }?;
        let registration = Registration::new(context, self.id, key);
        Ok(GpuRegion { cover: Arc::new(Cover { registration, address: pointer }), start: 0, length })
    }
}

impl GpuRegion {
    /// How many bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.length
    }

    /// A handle of a part, to send from or read into.
    pub fn part(&self, range: Range<usize>) -> Result<GpuRegion, Error> {
        let length = range.end.saturating_sub(range.start);
        within(self.length, range.start, length)?;
        Ok(GpuRegion { cover: Arc::clone(&self.cover), start: self.start + range.start, length })
    }

    /// What a peer uses to reach it.
    pub fn remote_slice(&self) -> RemoteSlice {
        RemoteSlice::new(self.pointer(), self.length as u64, self.cover.registration.key())
    }

    /// Where it begins, for the driver.
    pub fn pointer(&self) -> u64 {
        self.cover.address + self.start as u64
    }

    /// Takes the memory away from peers and from work: when this returns, the NIC touches it no more.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(&self) -> Result<(), Error> {
        self.cover.registration.revoke()
    }

    /// Whether it was taken away.
    pub fn is_revoked(&self) -> bool {
        self.cover.registration.is_revoked()
    }

    pub(crate) fn place(&self) -> (&Registration, u64, usize) {
        (&self.cover.registration, self.pointer(), self.length)
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        // The NIC lets go of all regions.
        let _ = self.registration.revoke();
    }
}

impl fmt::Debug for GpuRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revoked = if self.is_revoked() { ", revoked" } else { "" };
        write!(f, "GpuRegion({} bytes at {:#x}{revoked})", self.length, self.pointer())
    }
}

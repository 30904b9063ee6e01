//! Addresses of ids: binding, resolving, listening.

use super::address;
use super::id::ConnectionId;
use crate::boundary::{number, zero};
use crate::errno::Errno;
use crate::object::{Object, set_field};
use abi::{Handle, rdma_cm_id};
use hca::cm::IdOption;
use libc::sockaddr;
use std::ffi::c_int;
use std::time::Duration;

impl ConnectionId {
    /// Takes a local address.
    ///
    /// # Safety
    /// `local` is null or a socket address.
    pub(super) unsafe fn bind(&self, local: *const sockaddr) -> Result<(), Errno> {
        // SAFETY: as this function demands.
        let (by_gid, local) = unsafe { address::of_id_from_c(local, self.id.space()) }?;
        self.id.set(IdOption::ByGid(by_gid))?;
        Ok(self.id.bind(local)?)
    }
}

/// Takes a local address. If it is a particular one, the id belongs to that device from then on.
///
/// # Safety
/// `local` is null or a socket address.
#[unsafe(export_name = "ubiverbs_rdma_bind_addr")]
pub unsafe extern "C" fn rdma_bind_addr(id: Handle<'_, rdma_cm_id>, local: *mut sockaddr) -> c_int {
    zero("rdma_bind_addr", || {
        let it = ConnectionId::of(id)?;
        // SAFETY: null, or an address.
        unsafe { it.bind(local) }?;
        it.tell("rdma_bind_addr");
        it.refresh()
    })
}

/// Finds a device and a source address for a destination. The system's routing answers at once; the time is for the
/// network to say where the destination is, if the system does not know.
///
/// # Safety
/// `source` and `destination` are null or socket addresses.
#[unsafe(export_name = "ubiverbs_rdma_resolve_addr")]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: Handle<'_, rdma_cm_id>,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    milliseconds: c_int,
) -> c_int {
    number("rdma_resolve_addr", || {
        let it = ConnectionId::of(id)?;
        // SAFETY: null, or an address.
        let of_id = |address| unsafe { address::of_id_from_c(address, it.id.space()) };
        let source = if source.is_null() { None } else { Some(of_id(source)?) };
        let (by_gid, destination) = of_id(destination)?;
        if source.is_some_and(|(source, _)| source != by_gid) {
            return Err(Errno::invalid("source and destination are of different families"));
        }
        let source = source.map(|(_, source)| source);
        it.id.set(IdOption::ByGid(by_gid))?;
        it.tell("rdma_resolve_addr");
        it.tell_place("rdma_resolve_addr", Some(destination));
        let timeout = Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0));
        it.id.resolve_address_within(source, destination, timeout)?;
        set_field!(it.base, route.addr.dst_addr, it.address_to_c(destination));
        it.complete()
    })
}

/// Finds the way to it.
#[unsafe(export_name = "ubiverbs_rdma_resolve_route")]
pub extern "C" fn rdma_resolve_route(id: Handle<'_, rdma_cm_id>, _milliseconds: c_int) -> c_int {
    number("rdma_resolve_route", || {
        let it = ConnectionId::of(id)?;
        it.tell("rdma_resolve_route");
        it.id.resolve_route()?;
        it.complete()
    })
}

/// Listens for peers that want to connect. An id that has no port gets one.
#[unsafe(export_name = "ubiverbs_rdma_listen")]
pub extern "C" fn rdma_listen(id: Handle<'_, rdma_cm_id>, backlog: c_int) -> c_int {
    zero("rdma_listen", || {
        let it = ConnectionId::of(id)?;
        it.tell("rdma_listen");
        it.id.listen(u32::try_from(backlog).unwrap_or(0))?;
        it.refresh()?;
        it.tell_place("rdma_listen", it.id.source());
        Ok(())
    })
}

impl From<hca::cm::CmError> for Errno {
    fn from(error: hca::cm::CmError) -> Errno {
        Errno::of(error.errno()).with_reason(&error)
    }
}

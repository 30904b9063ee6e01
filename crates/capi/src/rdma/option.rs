//! Options of ids.

use super::id::ConnectionId;
use crate::boundary::number;
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use abi::{Handle, ibv_path_data, rdma_cm_id};
use hca::cm::IdOption;
use std::ffi::{c_int, c_void};

/// A type of which any bytes are a value.
trait Plain: Copy {}

impl Plain for u8 {}
impl Plain for c_int {}

/// The value of an option, which must be as long as its type is.
///
/// # Safety
/// `data` is null or has `length` bytes.
unsafe fn value<T: Plain>(data: *const c_void, length: usize) -> Result<T, Errno> {
    if data.is_null() || length != size_of::<T>() {
        return Err(Errno::invalid("the option's value is missing or of another length"));
    }
    // SAFETY: not null, and of the length of a `T`, of which any bytes are a value.
    Ok(unsafe { data.cast::<T>().read_unaligned() })
}

/// Takes a path of the program's. It must be one both ways; what RoCE has of a path the NIC knows better, so it becomes
/// the resolved route.
///
/// # Safety
/// `data` is null or has `length` bytes.
pub(super) unsafe fn set_path(it: &ConnectionId, data: *const c_void, length: usize) -> Result<(), Errno> {
    let count = length / size_of::<ibv_path_data>();
    if data.is_null() || count == 0 || !length.is_multiple_of(size_of::<ibv_path_data>()) {
        return Err(Errno::invalid("a path is an array of struct ibv_path_data"));
    }
    let primary = abi::IBV_PATH_FLAG_PRIMARY | abi::IBV_PATH_FLAG_OUTBOUND | abi::IBV_PATH_FLAG_INBOUND_REVERSE;
    let usable = |at: usize| {
        // SAFETY: not null, and there are `count` paths, which are numbers.
        let path = unsafe { data.cast::<ibv_path_data>().add(at).read_unaligned() };
        path.flags & primary == primary
    };
    refuse_if!(!(0..count).any(usable), Errno::invalid("none of the paths is the primary one in both directions"));
    Ok(it.id.resolve_route()?)
}

/// Sets an option.
///
/// # Safety
/// `data` is null or has `length` bytes.
#[unsafe(export_name = "ubiverbs_rdma_set_option")]
pub unsafe extern "C" fn rdma_set_option(
    id: Handle<'_, rdma_cm_id>,
    level: c_int,
    name: c_int,
    data: *mut c_void,
    length: usize,
) -> c_int {
    number("rdma_set_option", || {
        let it = ConnectionId::of(id)?;
        // SAFETY: null, or of that length.
        let number = || unsafe { value::<c_int>(data, length) };
        // SAFETY: as above.
        let byte = || unsafe { value::<u8>(data, length) };
        let option = match (level as u32, name as u32) {
            (abi::RDMA_OPTION_ID, abi::RDMA_OPTION_ID_TOS) => IdOption::TypeOfService(byte()?),
            (abi::RDMA_OPTION_ID, abi::RDMA_OPTION_ID_REUSEADDR) => IdOption::ReuseAddress(number()? != 0),
            (abi::RDMA_OPTION_ID, abi::RDMA_OPTION_ID_AFONLY) => IdOption::OnlyItsFamily(number()? != 0),
            (abi::RDMA_OPTION_ID, abi::RDMA_OPTION_ID_ACK_TIMEOUT) => IdOption::AckTimeout(byte()?),
            (abi::RDMA_OPTION_IB, abi::RDMA_OPTION_IB_PATH) => {
                // SAFETY: as above.
                unsafe { set_path(it, data, length) }?;
                return Ok(0);
            }
            _ => return Err(Errno::of(libc::ENOSYS).because("no such option")),
        };
        it.id.set(option)?;
        Ok(0)
    })
}

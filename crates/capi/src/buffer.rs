//! Buffers that the library allocates for a program, to be registered. On hardware the driver knows where they should
//! lie, as for a guest whose memory is encrypted; here it is memory that peers on this host may map.

use crate::boundary::{number, object, unreported};
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::protection_domain::Pd;
use abi::{Handle, Out, Owned, ibv_buf, ibv_pd};
use memory::Mapping;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A buffer.
#[repr(C)]
pub struct Buffer {
    base: ibv_buf,
    /// The domain it was allocated in, which counts it as a user.
    pub(crate) domain: *mut ibv_pd,
    /// Regions over it keep the memory when the buffer is freed.
    pub(crate) memory: Arc<Mapping>,
    pub(crate) size: usize,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for Buffer {
    type C = ibv_buf;
}

impl Buffer {
    /// Whether a range lies inside.
    pub(crate) fn contains(&self, address: *mut c_void, length: usize) -> bool {
        let offset = address.addr().checked_sub(self.memory.first().addr());
        offset.and_then(|offset| self.size.checked_sub(offset)).is_some_and(|left| length <= left)
    }
}

/// Zeroed memory from a page's start on, and a handle for it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_buf(pd: Handle<'_, ibv_pd>, size: usize, mut buffer: Out<'_, *mut ibv_buf>) -> *mut c_void {
    object("ibv_alloc_buf", || {
        let domain = Pd::by_handle(pd)?;
        refuse_if!(buffer.is_null(), Errno::null());
        refuse_if!(size == 0, Errno::invalid("a buffer of no bytes"));
        let memory = Arc::new(Mapping::shareable(size).map_or_else(|| Mapping::anonymous(size), Ok)?);
        let address = memory.first().cast();
        domain.join();
        let made = Buffer { base: ibv_buf::zeroed(), domain: pd.as_ptr(), memory, size };
        buffer.write(Box::new(made).into_c());
        Ok(address)
    })
}

/// Frees a buffer; what is registered of it stays until it is deregistered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_buf(buffer: Owned<'_, ibv_buf>) {
    unreported("ibv_free_buf", || {
        let Buffer { domain, .. } = *Buffer::from_c(buffer)?;
        // SAFETY: the domain of the buffer.
        unsafe { Pd::leave(domain) };
        Ok(())
    });
}

/// A descriptor of the buffer, had it been allocated as a dma-buf.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(buffer: Handle<'_, ibv_buf>) -> c_int {
    number("ibv_export_buf_dmabuf_fd", || {
        Buffer::of(buffer)?;
        Err(Errno::of(libc::ENODATA))
    })
}

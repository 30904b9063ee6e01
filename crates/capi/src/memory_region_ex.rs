//! Registering memory by attributes: any of the other ways to register, and what only this one can say. Also memory by
//! its descriptor.

use crate::boundary::object;
use crate::buffer::Buffer;
use crate::dma_handle::DmaHandle;
use crate::errno::{Errno, refuse_if};
use crate::memory_region::{MemoryRegion, Needs, access, register};
use crate::object::Object;
use crate::protection_domain::Pd;
use abi::{Handle, In, ibv_buf, ibv_mr, ibv_mr_init_attr, ibv_pd};
use memory::{Mapping, ProtectionDomain, RegionSpec, Translation};
use profiles::Feature;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// The rights that memory of a descriptor may have, but for those that a device may ignore.
const RIGHTS_BY_DESCRIPTOR: c_uint = abi::IBV_ACCESS_LOCAL_WRITE
    | abi::IBV_ACCESS_REMOTE_WRITE
    | abi::IBV_ACCESS_REMOTE_READ
    | abi::IBV_ACCESS_REMOTE_ATOMIC
    | abi::IBV_ACCESS_OPTIONAL_RANGE;

/// The unit in which a descriptor's memory and its addresses must agree.
const PAGE_BYTES: u64 = 4096;

/// Part of what a descriptor stands for.
struct ByDescriptor {
    descriptor: c_int,
    offset: u64,
    length: usize,
    iova: u64,
}

impl ByDescriptor {
    fn register(&self, pd: Handle<'_, ibv_pd>, flags: c_uint, mut needs: Needs) -> Result<*mut ibv_mr, Errno> {
        let domain = Pd::by_handle(pd)?;
        domain.opened.device().offers(Feature::RegDmabuf)?;
        if flags & !RIGHTS_BY_DESCRIPTOR != 0 {
            return Err(Errno::invalid("a right that memory of a descriptor cannot have"));
        }
        let access = access(flags)?;
        let ByDescriptor { descriptor, offset, length, iova } = *self;
        if offset % PAGE_BYTES != iova % PAGE_BYTES {
            return Err(Errno::invalid("offset and iova are at different places of a page"));
        }
        if descriptor == -1 {
            return Err(Errno::bad_descriptor("no descriptor; programs ask so whether there is such a call"));
        }
        // SAFETY: a call without pointers.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            return Err(Errno::bad_descriptor("the descriptor is not open"));
        }
        // SAFETY: an open descriptor, which the program keeps during the call.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        if !memory::is_shareable(descriptor) {
            return Err(Errno::invalid("neither a dma-buf nor memory whose size is sealed"));
        }
        let translation = match Mapping::of_file(descriptor, offset, length, access.writes()) {
            Ok(mapping) => {
                let mapping = needs.mapping.insert(Arc::new(mapping));
                Translation { address: mapping.first(), length, iova: Some(iova) }
            }
            // Memory of a GPU cannot be mapped. Programs register it under the address that the GPU's driver knows.
            Err(error) => match memory::is_gpu_memory(descriptor, offset, iova, length)? {
                true => Translation::new(without_provenance_mut(iova as usize), length),
                false => return Err(unmappable(error)),
            },
        };
        domain.opened.nic.profile_admits_region(domain.opened.device(), length, access)?;
        let spec = RegionSpec { translation, domain: ProtectionDomain(domain.domain.0), access };
        // SAFETY: the region keeps the mapping until it is gone; memory of a GPU stays allocated, as registering
        // demands.
        let key = unsafe { domain.opened.nic.register_region(&spec) }?;
        // An offset stands where other regions have their address.
        MemoryRegion::make_with(pd, key, without_provenance_mut(offset as usize), length, needs)
    }
}

/// Why memory of a descriptor is not registered that the processor cannot map.
fn unmappable(error: io::Error) -> Errno {
    /// A driver whose memory no process may map says so by this number, which is the kernel's own: programs know no such
    /// errno.
    const NOT_SUPPORTED: c_int = 524;
    match error.raw_os_error() {
        Some(NOT_SUPPORTED | libc::ENODEV) => {
            Errno::unsupported("the memory cannot be mapped, and no GPU's driver knows the address that is its iova")
        }
        _ => error.into(),
    }
}

/// Memory that several devices share, by its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    pd: Handle<'_, ibv_pd>,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut ibv_mr {
    object("ibv_reg_dmabuf_mr", || {
        ByDescriptor { descriptor, offset, length, iova }.register(pd, access as c_uint, Needs::default())
    })
}

/// What a region needs besides its memory, by the attributes.
fn needs(pd: &Pd, attributes: &ibv_mr_init_attr) -> Result<Needs, Errno> {
    let mut needs = Needs::default();
    if attributes.comp_mask & u64::from(abi::IBV_REG_MR_MASK_DMAH) != 0 {
        // SAFETY: a field of the attributes, which the manual page wants to be a DMA handle.
        let handle = DmaHandle::of(unsafe { Handle::new(attributes.dmah) })?;
        if handle.context_in_c() != pd.context_in_c() {
            return Err(Errno::invalid("the DMA handle is of another context than the domain"));
        }
        if attributes.access as c_uint & abi::IBV_ACCESS_ON_DEMAND != 0 {
            return Err(Errno::invalid("a DMA handle is about memory that stays, not about memory on demand"));
        }
        needs.dma_handle = attributes.dmah;
    }
    Ok(needs)
}

/// Registers memory as the attributes say.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_ex(pd: Handle<'_, ibv_pd>, attributes: In<'_, ibv_mr_init_attr>) -> *mut ibv_mr {
    object("ibv_reg_mr_ex", || {
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        by_attributes(pd, attributes)
    })
}

fn by_attributes(pd: Handle<'_, ibv_pd>, attributes: &ibv_mr_init_attr) -> Result<*mut ibv_mr, Errno> {
    let domain = Pd::by_handle(pd)?;
    let has = |bit: u32| attributes.comp_mask & u64::from(bit) != 0;
    let known = u64::from((abi::IBV_REG_MR_MASK_BUF << 1) - 1);
    refuse_if!(attributes.comp_mask & !known != 0, Errno::invalid("comp_mask has bits that are not known"));
    let mut needs = needs(domain, attributes)?;
    let &ibv_mr_init_attr { length, addr, fd, fd_offset, iova, .. } = attributes;
    let flags = attributes.access as c_uint;
    if has(abi::IBV_REG_MR_MASK_FD) {
        if !has(abi::IBV_REG_MR_MASK_FD_OFFSET) || !has(abi::IBV_REG_MR_MASK_IOVA) || has(abi::IBV_REG_MR_MASK_ADDR) {
            return Err(Errno::invalid("a descriptor goes with an offset and an iova, and without an address"));
        }
        refuse_if!(has(abi::IBV_REG_MR_MASK_BUF), Errno::invalid("a buffer and a descriptor"));
        return ByDescriptor { descriptor: fd, offset: fd_offset, length, iova }.register(pd, flags, needs);
    }
    if !has(abi::IBV_REG_MR_MASK_ADDR) || has(abi::IBV_REG_MR_MASK_FD_OFFSET) {
        return Err(Errno::invalid("without a descriptor there is an address, and no offset"));
    }
    if length == usize::MAX && !addr.is_null() && flags & abi::IBV_ACCESS_ON_DEMAND != 0 {
        return Err(Errno::invalid("all memory begins at address 0"));
    }
    if has(abi::IBV_REG_MR_MASK_BUF) {
        // SAFETY: a field of the attributes, which the manual page wants to be a buffer.
        let buffer = Buffer::of(unsafe { Handle::new(attributes.buf) })?;
        refuse_if!(buffer.domain != pd.as_ptr(), Errno::invalid("the buffer was allocated in another domain"));
        refuse_if!(!buffer.contains(addr, length), Errno::invalid("the range is not inside the buffer"));
        needs.mapping = Some(Arc::clone(&buffer.memory));
    }
    let iova = has(abi::IBV_REG_MR_MASK_IOVA).then_some(iova).filter(|iova| *iova != addr.addr() as u64);
    // SAFETY: the memory stays mapped, as `ibv_reg_mr` demands; that of a buffer the region keeps.
    unsafe { register(pd, addr, length, iova, flags, needs) }
}

/// Registers part of a buffer.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_buf_mr(
    pd: Handle<'_, ibv_pd>,
    buffer: Handle<'_, ibv_buf>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    object("ibv_reg_buf_mr", || {
        let comp_mask = u64::from(abi::IBV_REG_MR_MASK_BUF | abi::IBV_REG_MR_MASK_ADDR);
        let buf = buffer.as_ptr();
        by_attributes(pd, &ibv_mr_init_attr { length, access, comp_mask, addr, buf, ..ibv_mr_init_attr::zeroed() })
    })
}

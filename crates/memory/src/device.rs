//! Device memory: what on hardware is memory of the NIC. Here it is memory of the process that no program has the
//! address of; it is reached by copies in and out, and by regions over it, and there is only so much. It lies in a file
//! of its own, which can be exported; where the system gives no such file, it is of the heap.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::block::{Block, DeviceMemory};
use crate::copy;
use crate::error::Error;
use crate::holding::{Holding, MemoryPlace};
use crate::memory::Memory;
use wire::access::{Access, ProtectionDomain};
use wire::{Key, refuse_if};

/// The largest alignment, as a logarithm.
const MAX_ALIGNMENT_LOG: u32 = 21;

/// Offsets and lengths of copies are multiples of this, as on hardware.
const COPY_UNIT_BYTES: u64 = 4;

impl Memory {
    /// Allocates zeroed device memory, aligned to `1 << log_alignment` (and to 64 at least).
    ///
    /// # Errors
    /// [`Error::DeviceMemoryExhausted`] past the limit, [`Error::DeviceMemoryAlignment`], [`Error::Empty`].
    pub fn allocate_device(&self, length: usize, log_alignment: u32) -> Result<DeviceMemory, Error> {
        refuse_if!(length == 0, Error::Empty);
        refuse_if!(log_alignment > MAX_ALIGNMENT_LOG, Error::DeviceMemoryAlignment { log: log_alignment });
        let mut books = self.books();
        let left = self.limits.device_memory.saturating_sub(books.device_used);
        let length_u64 = length as u64;
        refuse_if!(length_u64 > left, Error::DeviceMemoryExhausted { length: length_u64, left });
        let block = Arc::new(Block::new(length, log_alignment)?);
        // Numbers go round after four billion; what is still there is passed over.
        while books.device.contains_key(&DeviceMemory(books.device_next)) {
            books.device_next = books.device_next.wrapping_add(1);
        }
        let number = DeviceMemory(books.device_next);
        books.device_next = books.device_next.wrapping_add(1);
        books.device.insert(number, block);
        books.device_used += length_u64;
        Ok(number)
    }

    /// Copies into device memory.
    ///
    /// # Errors
    /// Offset and length that are not multiples of 4, or reach past the end, copy nothing.
    pub fn write_device(&self, device: DeviceMemory, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (block, offset) = self.device_range(device, offset, bytes.len())?;
        // SAFETY: the range is inside the block, which lives as long as `block`.
        unsafe { copy::store(block.at(offset), bytes) };
        Ok(())
    }

    /// Copies out of device memory.
    ///
    /// # Errors
    /// As [`write_device`](Memory::write_device).
    pub fn read_device(&self, device: DeviceMemory, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let (block, offset) = self.device_range(device, offset, out.len())?;
        // SAFETY: the range is inside the block, which lives as long as `block`.
        unsafe { copy::load(out, block.at(offset)) };
        Ok(())
    }

    /// Registers part of device memory. The region counts its addresses from 0, and `access` must say so
    /// (`ZERO_BASED`). It may be empty.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn register_device(
        &self,
        device: DeviceMemory,
        offset: u64,
        length: usize,
        domain: ProtectionDomain,
        access: Access,
    ) -> Result<Key, Error> {
        let block = self.device_block(device)?;
        let offset = block.offset(offset, length)?;
        let mut holding = Holding::new(MemoryPlace::Device { block, offset, length }, domain, access);
        self.validate(&mut holding)?;
        self.enroll(holding)
    }

    /// A descriptor of the file that the device memory lies in, for a process that is to map it. It stays good when the
    /// device memory is freed.
    ///
    /// # Errors
    /// [`Error::NotExportable`] where the system gave no file, or gives no descriptor.
    pub fn export_device(&self, device: DeviceMemory) -> Result<OwnedFd, Error> {
        self.device_block(device)?.export()
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// [`Error::DeviceMemoryInUse`] while regions cover it.
    pub fn free_device(&self, device: DeviceMemory) -> Result<(), Error> {
        let mut books = self.books();
        let block = books.device.get(&device).ok_or(Error::UnknownDeviceMemory)?;
        block.free()?;
        let length = block.length();
        books.device.remove(&device);
        books.device_used -= length;
        Ok(())
    }

    fn device_block(&self, device: DeviceMemory) -> Result<Arc<Block>, Error> {
        self.books().device.get(&device).cloned().ok_or(Error::UnknownDeviceMemory)
    }

    fn device_range(&self, device: DeviceMemory, offset: u64, length: usize) -> Result<(Arc<Block>, usize), Error> {
        let block = self.device_block(device)?;
        let length_u64 = length as u64;
        if !offset.is_multiple_of(COPY_UNIT_BYTES) || !length_u64.is_multiple_of(COPY_UNIT_BYTES) {
            return Err(Error::DeviceMemoryMisaligned { offset, length: length_u64 });
        }
        let offset = block.offset(offset, length)?;
        Ok((block, offset))
    }
}

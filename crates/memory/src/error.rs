//! What can go wrong when memory is registered, changed or given back. Each error knows the errno a verbs program
//! expects.

use wire::Key;
use wire::access::Access;

/// A call that manages memory failed; nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Peers would have a right to change what the owner may not.
    #[error("remote write and remote atomic rights need local write")]
    LocalWriteMissing,
    /// Device memory whose addresses are to count from something else than 0.
    #[error("a region of device memory counts its addresses from 0, and ZERO_BASED is not among its rights")]
    ZeroBasedMissing,
    /// A right that does not exist or does not apply here.
    #[error("these rights cannot be granted here: {}", Access::from_bits_retain(*.bits))]
    Rights {
        /// The offending bits.
        bits: u32,
    },
    /// A region of no bytes at the start of a page, or device memory of none.
    #[error("there is nothing to register: no bytes, and no page that they are on")]
    Empty,
    /// The region would reach past the end of the address space.
    #[error("{length} bytes from {address:#x} reach past the end of the address space")]
    AddressOverflow {
        /// The first address.
        address: u64,
        /// The length.
        length: u64,
    },
    /// The region is longer than the limit.
    #[error("a region of {length} bytes is longer than {limit}")]
    TooLong {
        /// The length.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// As many regions exist as may.
    #[error("{limit} regions are registered and no more may be")]
    TooManyRegions {
        /// The limit.
        limit: u32,
    },
    /// As many windows exist as may.
    #[error("{limit} windows are allocated and no more may be")]
    TooManyWindows {
        /// The limit.
        limit: u32,
    },
    /// Part of the range is not mapped.
    #[error("nothing is mapped at {address:#x}")]
    NotMapped {
        /// The first such address, or the page it is in.
        address: u64,
    },
    /// Part of the range may not be read, or not written where rights to write were asked for.
    #[error("the memory at {address:#x} may not be {}", if *.write { "written" } else { "read" })]
    Protected {
        /// The first such address, or the page it is in.
        address: u64,
        /// Whether writing was asked for.
        write: bool,
    },
    /// The pages could not be brought in, though they are mapped (past the end of a file, or the storage failed).
    #[error("the pages of {address:#x} and {length} bytes on cannot be brought in")]
    Absent {
        /// The first address of the range.
        address: u64,
        /// The length of the range.
        length: u64,
    },
    /// The system has no memory for it.
    #[error("out of memory")]
    OutOfMemory,
    /// No such region or window.
    #[error("no region or window has the key {key}")]
    UnknownKey {
        /// The key.
        key: Key,
    },
    /// The key is another kind of object's, or the object does not take this change.
    #[error("the key {key} names something that cannot be used this way")]
    WrongKind {
        /// The key.
        key: Key,
    },
    /// Windows are bound to the region.
    #[error("{windows} windows are bound to the region {key}")]
    WindowsBound {
        /// The region.
        key: Key,
        /// How many.
        windows: u32,
    },
    /// Another thread is changing or freeing it.
    #[error("another thread is changing {key}")]
    ChangeUnderWay {
        /// The key.
        key: Key,
    },
    /// A change that changes nothing.
    #[error("a reregistration has to change something")]
    NothingToChange,
    /// No such device memory.
    #[error("no such device memory")]
    UnknownDeviceMemory,
    /// Not enough device memory left.
    #[error("{length} bytes of device memory asked for, {left} left")]
    DeviceMemoryExhausted {
        /// What was asked for.
        length: u64,
        /// What is left.
        left: u64,
    },
    /// Device memory cannot be aligned like that.
    #[error("device memory cannot be aligned to 2^{log}")]
    DeviceMemoryAlignment {
        /// The logarithm of the alignment.
        log: u32,
    },
    /// An offset or length in device memory is not a multiple of 4.
    #[error("{length} bytes at {offset} of device memory are not multiples of 4")]
    DeviceMemoryMisaligned {
        /// The offset.
        offset: u64,
        /// The length.
        length: u64,
    },
    /// A range reaches past the end of the device memory.
    #[error("{length} bytes at {offset} reach past the end of {size} bytes of device memory")]
    DeviceMemoryBounds {
        /// The offset.
        offset: u64,
        /// The length.
        length: u64,
        /// The size of the device memory.
        size: u64,
    },
    /// A range begins in memory of a GPU and does not end there, or is in allocations of several.
    #[error("{length} bytes from {address:#x} reach past the end of the GPU's memory there")]
    GpuRange {
        /// The first address.
        address: u64,
        /// The length.
        length: u64,
    },
    /// The GPU's driver does not let its memory be reached.
    #[error("the GPU's driver failed with error {error}")]
    GpuDriver {
        /// The driver's number for why.
        error: u32,
    },
    /// The device memory lies in no file, or the process has no descriptor left for it.
    #[error("the system gives no descriptor for the device memory")]
    NotExportable,
    /// Regions are registered over the device memory.
    #[error("{regions} regions are registered over the device memory")]
    DeviceMemoryInUse {
        /// How many.
        regions: u32,
    },
}

impl Error {
    /// The errno a verbs call reports it with.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotMapped { .. }
            | Self::Protected { .. }
            | Self::Absent { .. }
            | Self::GpuRange { .. }
            | Self::GpuDriver { .. } => libc::EFAULT,
            Self::TooManyRegions { .. }
            | Self::TooManyWindows { .. }
            | Self::OutOfMemory
            | Self::NotExportable
            | Self::DeviceMemoryExhausted { .. } => libc::ENOMEM,
            Self::WindowsBound { .. } | Self::ChangeUnderWay { .. } | Self::DeviceMemoryInUse { .. } => libc::EBUSY,
            Self::LocalWriteMissing
            | Self::ZeroBasedMissing
            | Self::Rights { .. }
            | Self::Empty
            | Self::AddressOverflow { .. }
            | Self::TooLong { .. }
            | Self::UnknownKey { .. }
            | Self::WrongKind { .. }
            | Self::NothingToChange
            | Self::UnknownDeviceMemory
            | Self::DeviceMemoryAlignment { .. }
            | Self::DeviceMemoryMisaligned { .. }
            | Self::DeviceMemoryBounds { .. } => libc::EINVAL,
        }
    }
}

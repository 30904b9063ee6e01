//! Registered memory of one process: regions over any memory it has, windows over regions, and device memory. Keys and
//! ranges go in; bytes are copied, or a refusal says why not. This is the only crate that touches a user's bytes; it
//! knows no packets, queues or sockets.
//!
//! ```
//! use memory::{Access, ProtectionDomain, Memory, Qpn, RegionSpec, Subject, Translation};
//!
//! let memory = Memory::new();
//! let mut buffer = [0u8; 64];
//! let translation = Translation::new(buffer.as_mut_ptr(), buffer.len());
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! // SAFETY: `buffer` is not used until the region is gone.
//! let key = unsafe { memory.register(&RegionSpec { translation, domain: ProtectionDomain(1), access }) }?;
//!
//! let peer = Subject { pd: ProtectionDomain(1), qpn: Qpn::new(7), remote: true };
//! let address = buffer.as_ptr().addr() as u64;
//! memory.write(peer, key, address + 8, b"from afar")?;
//! memory.read(peer, key, address, &mut [0; 8]).unwrap_err(); // no right to read was given
//!
//! memory.deregister(key)?;
//! assert_eq!(&buffer[8..17], b"from afar");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! - A key opens its bytes to the protection domain or queue pair, and for the accesses, that it was given for, and not
//!   one byte beyond; an old key opens nothing.
//! - When `deregister` returns, no access touches the memory any more. The same goes for the old binding of a window
//!   when `bind`, `invalidate` or `free_window` returns.
//! - A range that is not there is an error at registration. What the program unmaps later is gone: nothing is pinned,
//!   and an access to it faults, unless the region is `ON_DEMAND`.
//! - Bytes go in ascending order, a few KiB at a time; the last up to eight are stored last, with release. Eight
//!   aligned bytes at the end are stored whole.
//! - Atomic operations are the processor's, so they are atomic towards the program's own threads as well.
//!
//! # Testing it
//!
//! The ordinary tests include a model of the waiting protocol (`tests/suite/protocol.rs`). What needs no kernel runs
//! under Miri too, slowly: the unit tests by `cargo xtask miri`, all of them by
//! `MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation" cargo +nightly miri test -p
//! ubiverbs-memory` (Miri's emulation of weak memory does not know atomics of two sizes on one byte; the model covers
//! the orderings).

mod block;
mod books;
mod copy;
mod current_access;
mod device;
mod error;
mod gate;
mod gpu;
mod guard;
mod holding;
mod keys;
mod mapped;
mod mapping;
mod memory;
mod on_demand;
mod peek;
mod program_files;
mod published;
mod region;
mod replaced_pages;
mod shareable;
mod slot;
mod sync;
mod table;
mod version;
mod window;

pub use block::DeviceMemory;
pub use books::{RegionFacts, WindowType};
pub use error::Error;
pub use gpu::{
    DriverError, LONGEST_REFERENCE, REFERENCE_BYTES, Reference, Source, descriptor_of, fail_gpu_copies_if,
    has_gpu_regions, is_gpu_memory, is_in_gpu_region, open, set_gpu_patience, shadow,
};
pub use guard::Guard;
pub use holding::{Change, RegionSpec, Translation};
#[doc(hidden)] // for fuzzing
pub use keys::KeyLayout;
pub use mapped::judge;
pub use mapping::{Mapping, is_shareable};
pub use memory::{Limits, Memory, Usage};
pub use peek::{is_mapped, peek};
pub use published::{PublicTerms, Publisher};
pub use replaced_pages::{keep_replaced_pages_in_child, replace_pages};
pub use shareable::FilePart;
pub use wire::access::{Access, Atomic, Bind, ProtectionDomain, Range, Refusal, RefusalCause, Subject};
pub use wire::{Key, Qpn};

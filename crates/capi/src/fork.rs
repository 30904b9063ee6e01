//! Forks. Memory is copied by the processor on behalf of the process that registered it, so a fork takes nothing away
//! from it and there is nothing to prepare; a child makes a NIC of its own, and is refused the objects that it inherits
//! (`Object::is_inherited`, by `latch::generation`). So `RDMAV_FORK_SAFE` and `IBV_FORK_SAFE`,
//! with which rdma-core's library prepares at its start, have nothing to ask for.

use std::ffi::{c_int, c_void};

/// Prepares for forks: nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    // A validation layer wants to know: on hardware there is something to prepare.
    hca::fork_init();
    0
}

/// Whether preparations were made: none are needed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    abi::IBV_FORK_UNNEEDED as c_int
}

/// Keeps memory from children: not needed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Lets children have memory again.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

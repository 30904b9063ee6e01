//! The C entry points of the connection manager. What the kernel does for librdmacm, `hca::cm` does here; what
//! librdmacm does itself is in these modules: the structures of `rdma_cma.h` and their owners, queue pairs that follow
//! their connection, ids that wait for their own events.
//!
//! `librdmacm.so.1` is a small object that jumps here (see `link/`), because a process has one NIC, whichever library
//! it asks. So that no linker takes these functions for those of another library, their names begin with `ubiverbs_`
//! where the linker sees them.

pub mod address;
pub mod addrinfo;
pub mod bind;
mod call_trace;
pub mod channel;
pub mod connect;
mod delivered_event;
pub mod device;
pub mod endpoint;
pub mod event;
mod group;
pub mod id;
pub mod lifecycle;
pub mod lookup;
pub mod multicast;
pub mod option;
pub mod queue_pair;
pub mod shared_receive_queue;

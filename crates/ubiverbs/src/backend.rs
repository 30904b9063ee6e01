//! What the API asks of a NIC: the seam at which another one can be put in. A program never names these traits; it
//! calls [`devices`](crate::devices) and gets the NIC of this process. Work, attributes and completions are the
//! transport's values; objects are trait objects, so that no type of the API depends on the NIC under it.
//!
//! Two things are expected of every NIC. Work given to it progresses whether or not anybody polls. And the observer of
//! a completion queue is called after something was added, with no lock held that a call into the NIC would want.
//!
//! # Safety
//!
//! The API hands out `&mut [u8]` to a buffer as soon as the NIC says that the buffer's work has ended. So the memory
//! safety of a program rests on what the NIC says, and the traits through which it speaks are unsafe to implement:
//! [`Context`], [`DeviceMemory`], [`CompletionQueue`], [`QueuePair`] and [`SharedReceiveQueue`]. A crate that
//! implements them promises:
//!
//! 1. **Memory.** The NIC touches the memory of [`Context::register`] only within the range and the rights of a key
//!    that is registered: for peers where the rights say so, else to carry out work posted for it.
//! 2. **Keys.** No two registrations that exist at one time have the same key, whether of memory or of device memory.
//! 3. **Deregistration.** When [`Context::deregister`] returns, answered with an error or not, nothing touches the
//!    memory through that key.
//! 4. **Completions.** A completion bears the number (`wr_id`) and the queue pair of work that was posted, comes at
//!    most once for it, and comes after the NIC has touched its buffers for the last time. Of work that was refused
//!    there is none.
//! 5. **Ends.** When [`QueuePair::destroy`], [`SharedReceiveQueue::destroy`] or a [`QueuePair::modify`] to RESET
//!    returns, the NIC touches no buffer of that queue's work any more. A receive of a shared queue that a destroyed
//!    queue pair had taken is the one that `destroy` names.
//!
//! [`Backend`], [`Channel`] and the traits of [`connections`] are safe to implement: they make such objects or tell of
//! events, and whatever they answer, no buffer comes back by it.
//!
//! Without that promise nothing compiles:
//!
//! ```compile_fail,E0200
//! # use transport::{Access, ProtectionDomain};
//! # use ubiverbs::{Error, Key, seam::DeviceMemory};
//! #[derive(Debug)]
//! struct Careless;
//!
//! impl DeviceMemory for Careless {
//! #   fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> { Ok(()) }
//! #   fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Error> { Ok(()) }
//!     fn register(&self, _: u64, _: usize, _: ProtectionDomain, _: Access) -> Result<Key, Error> {
//!         Ok(Key::new(1)) // perhaps the key of a buffer that the program is reading
//!     }
//! }
//! ```
//!
//! The other way round the NIC believes what is posted: it writes where work says. So posting is unsafe to call, as
//! registering is.
//!
//! ```compile_fail,E0133
//! # use transport::ReceiveRequest;
//! # use ubiverbs::backend::QueuePair;
//! fn post(pair: &dyn QueuePair, into_whose_buffer: ReceiveRequest<'_>) {
//!     let _ = pair.post_receive(&[into_whose_buffer]);
//! }
//! ```

pub use crate::seam::{
    AsyncEvent, Backend, Channel, CompletionQueue, Context, DeviceInfo, DeviceLimits, DeviceMemory, Parker, Port,
    QueuePair, QueuePairSpec, SharedReceiveQueue, connections,
};
pub use crate::software::{software, software_over_udp};
/// The transport's values that these traits speak in, for those who implement them.
pub use transport::{
    Capabilities, Completion, Data, DatagramTarget, FrameNotes, Operation, ProtectionDomain, Queue, ReceiveRequest,
    Remote, SendFlags, SendRequest, Sge, SrqAttributes, SrqError, SrqModify, Stop,
};

use crate::seam::{Error, environment};
use std::sync::Arc;

/// The NIC of this program: that of the party, inside of a simulation, and else that of the process.
pub(crate) fn current() -> Result<Arc<dyn Backend>, Error> {
    environment::current().map_or_else(software, |environment| environment.backend())
}

//! The NIC under the API: the seam at which another one can be put in. A program never names these traits; it calls
//! [`devices`](crate::devices) and gets the NIC of this process. What they expect of a NIC, and what those promise that
//! are unsafe to implement, is in the documentation of the crate [`seam`] (`ubiverbs-seam`), which has them.

pub use crate::software::{software, software_over_udp};
#[doc(inline)]
pub use seam::{
    AsyncEvent, Backend, Channel, CompletionQueue, Context, DeviceInfo, DeviceLimits, DeviceMemory, Parker, Port,
    QueuePair, QueuePairSpec, SharedReceiveQueue, connections,
};
/// The transport's values that these traits speak in, for those who implement them.
pub use transport::{
    Capabilities, Completion, Data, DatagramTarget, FrameNotes, Operation, ProtectionDomain, Queue, ReceiveRequest,
    Remote, SendFlags, SendRequest, Sge, SrqAttributes, SrqError, SrqModify, Stop,
};

use seam::{Error, environment};
use std::sync::Arc;

/// The NIC of this program: that of the party, inside of a simulation, and else that of the process.
pub(crate) fn current() -> Result<Arc<dyn Backend>, Error> {
    environment::current().map_or_else(software, |environment| environment.backend())
}

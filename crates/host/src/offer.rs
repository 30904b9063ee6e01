//! What another process offers over the connection to this process's slot: a ring to read.

use crate::descriptor::Descriptor;
use std::os::fd::OwnedFd;

/// A connection that offers a ring, as the inbox found it.
#[derive(Debug)]
pub struct Offer {
    /// The connection it came over.
    pub socket: Descriptor,
    /// The user at its other end, as the kernel says.
    pub uid: u32,
    /// What came with it.
    pub descriptors: Vec<OwnedFd>,
}

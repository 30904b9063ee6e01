//! Forwarding: whoever receives a packet for another process of this host passes it on, over a connection to the owner's name. This is what
//! makes sharing one UDP port correct, whatever the kernel's choice among the sockets was; [`steering`](crate::steering) only makes it rare.
//!
//! Packets travel several to a message, as they were on the wire and with what the socket told about them. Nobody ever waits: what an owner
//! does not take (it is stopped, or too slow) is dropped and counted, like a packet at a full socket. The owner believes only
//! its own user and whoever holds the UDP port, and reads what they send like any packet.

mod inbox;
pub(crate) mod message;
mod sender;
#[cfg(test)]
mod tests;

pub use inbox::{Collected, Inbox};
pub use sender::{Forwarded, Forwarder, Loss};

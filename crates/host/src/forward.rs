//! Forwarding: a process that receives a packet for another process of this host passes it on, over a connection to the
//! owner's name. This is what makes sharing one UDP port correct, whatever the kernel's choice among the sockets was;
//! [`steering`](crate::steering) only makes it rare.
//!
//! Packets travel several to a message, as they were on the wire and with what the socket told about them. No process
//! ever waits: what an owner does not take (it is stopped, or too slow) is dropped and counted, like a packet at a full
//! socket. The owner believes its own user, and of another user what that user can have from a socket: packets of the
//! family and to the addresses for which it holds the UDP port, and only where this process could not have it. It
//! checks the ICRC again, and reads the rest like any packet.
//!
//! Messages of connection management between processes of one host travel the same way, straight from the process that
//! speaks to the one that is spoken to: the kernel says who it is, which a UDP datagram does not (see `claims`).

mod all_slots;
mod claims;
pub(crate) mod connections;
mod inbox;
pub mod message;
mod sender;
#[cfg(test)]
mod tests;

pub use connections::Collected;
pub use inbox::Inbox;
pub use sender::{Forwarded, Forwarder, Loss};

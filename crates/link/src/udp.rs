//! RoCEv2 over UDP port 4791, for peers on other hosts: trains become GSO datagrams, GRO datagrams become packets
//! again, and every packet carries and is held to an exact ICRC, though a UDP socket neither sets nor sees all of the
//! IP header that the ICRC covers.
//!
//! **The identification of IPv4.** An unconnected socket that asks for path MTU discovery sends identification 0 with
//! "don't fragment", and 0, 1, 2… in the segments of one GSO datagram. A sender that knows this computes the right
//! ICRC. A receiver predicts what such senders use, and learns how others count: see `identification.rs`.

pub mod attachment;
pub(crate) mod call;
mod envelope;
mod front;
mod general;
mod group;
mod identification;
mod probe;
mod receive;
mod send;
mod socket;
#[cfg(test)]
mod tests;
mod unproven;
mod way;

pub use group::Group;
pub use host::arrival::Arrival;
pub use host::family::{Family, Scope};
pub use probe::PortProbe;
pub use receive::{Received, Receiver, Segment};
pub use send::{Cargo, SendError, Sender, Sent};
pub use socket::BindError;
pub use way::Route;

//! RoCEv2 over UDP port 4791, for peers on other hosts: trains become GSO datagrams, GRO datagrams become packets again, and every packet
//! carries and is held to an exact ICRC, though a UDP socket neither sets nor sees all of the IP header that the ICRC covers.
//!
//! **The identification of IPv4.** An unconnected socket that asks for path MTU discovery sends identification 0 with "don't fragment", and
//! 0, 1, 2… in the segments of one GSO datagram. A sender that knows this computes the right ICRC. A connected one counts up from a number that has to
//! be found out: see `quick.rs`. A receiver tries what such senders would have used, and otherwise solves for the identification that fits: see
//! `identification.rs`.

mod call;
mod envelope;
mod front;
mod group;
mod identification;
mod quick;
mod receive;
mod send;
mod socket;
#[cfg(test)]
mod tests;
mod way;

pub use group::Group;
pub use receive::{Arrival, Received, Receiver, Segment};
pub use send::{Cargo, SendError, Sender, Sent};
pub use socket::{BindError, Family, Scope};
pub use way::Route;

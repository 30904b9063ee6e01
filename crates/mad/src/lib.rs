//! Management agents, sans-IO: what the kernel's MAD layer is for programs on `/dev/infiniband/umad*`, without sockets,
//! clocks, threads, globals or `unsafe`. Calls, datagrams and time go in; datagrams, deadlines and deliveries come out.
//!
//! A [`Manager`] serves a whole process. A program opens a port ([`Manager::open`]) and registers agents on it: for a
//! class, and perhaps for methods of it. A request that arrives goes to the agent that has its class, version, method
//! and vendor; a response goes to the agent that asked, which the upper half of the transaction id names. What no
//! agent wants the port answers itself ([`answer`]): performance management from its counters, anything else that
//! asks with "unsupported". Subnet administration, which RoCE does not have, is there for one question of the port's
//! own programs, the way to an address ([`path`]).
//!
//! **After everything that goes in, send what comes out, deliver what is to be delivered, and wake up at the
//! deadline.**

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod agent;
pub mod answer;
pub mod class;
mod manager;
pub mod path;
pub mod rmpp;
mod route;
mod send;

pub use agent::{Key, Refusal, Registration};
pub use manager::{Config, Delivery, Handled, Manager, PortId, Transmit, limits};
pub use route::{Peer, Route};
pub use send::{Outgoing, SendError};
pub use trace::Time;

//! RoCEv2 on the wire: opcodes, headers, ICRC, management datagrams and CM messages. Bytes become values and values become bytes; what the
//! values mean to a queue pair or to a connection is decided elsewhere. No sockets, no clocks, no allocation on the way of a packet.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate alloc;

pub mod cm;
mod cursor;
mod display;
mod error;
mod gid;
mod headers;
mod icrc;
pub mod ip;
pub mod mad;
mod numbers;
mod opcode;
mod packet;

pub use error::{EncodeError, Header, ParseError};
pub use gid::Gid;
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Headers, NakCode, Placement, Reth, RnrTimer, Selectivity, Syndrome,
};
pub use icrc::{Icrc, Identification, icrc, icrc_matches, solve_identification, solve_identification_from};
pub use ip::{Ethernet, Frame, IpHeader, Ipv4Header, Ipv6Header, ROCE_PORT, UdpHeader, grh_bytes, source_port};
pub use numbers::{Key, Msn, Mtu, Pkey, Psn, Qkey, Qpn, Srqn, Timeout};
pub use opcode::{HeaderSet, Opcode, Operation, Position, Tail, Transport};
pub use packet::Packet;

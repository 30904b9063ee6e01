//! RoCEv2 on the wire: opcodes, headers, ICRC, management datagrams and CM messages. Bytes become values and values
//! become bytes; what the values mean to a queue pair or to a connection is decided elsewhere. No sockets, no clocks,
//! no allocation on the way of a packet.
//!
//! [`access`] has the words for what packets ask of memory, since those that ask and those that answer share only this
//! crate. [`flow`] has what raw queue pairs know of Ethernet frames.
//!
//! ```
//! use wire::{Gid, Headers, IpHeader, Key, Opcode, Packet, Psn, Qpn, Reth, UdpHeader};
//!
//! let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(0x11), Psn::new(5));
//! headers.reth = Some(Reth { va: 0x1000, rkey: Key::new(0x1234), len: 5 });
//! let packet = Packet { headers, payload: b"hello" };
//!
//! // The ICRC covers the addresses, so they are needed to encode and to check.
//! let length = packet.encoded_length();
//! let ip = IpHeader::udp(Gid::from_ipv4([10, 0, 0, 1].into()), Gid::from_ipv4([10, 0, 0, 2].into()), length)?;
//! let udp = UdpHeader::roce(0xc001, length)?;
//! let mut bytes = [0; 64];
//! packet.encode(&ip, &udp, &mut bytes)?;
//!
//! let read = Packet::parse_checked(&ip, &udp, &bytes[..length])?;
//! assert_eq!(read.payload, b"hello");
//! assert_eq!(read.to_string(), "RC WRITE Only  qp 0x11 psn 5 va 0x1000 rkey 0x1234 len 5 | 5 B");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// Leaves a function with this error if something is wrong.
///
/// ```
/// fn half(number: u32) -> Result<u32, &'static str> {
///     wire::refuse_if!(number % 2 != 0, "an odd number");
///     Ok(number / 2)
/// }
/// assert!(half(2).is_ok() && half(3).is_err());
/// ```
#[macro_export]
macro_rules! refuse_if {
    ($wrong:expr, $error:expr $(,)?) => {
        if $wrong {
            return Err($error);
        }
    };
}

/// Declares an enum of a closed set of words from a table of their names, each with its number where it has one. From the
/// table follow `ALL`, `name` and `Display`.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $Name:ident {
        $( $(#[$word_meta:meta])* $Word:ident $(= $number:literal)? : $name:literal, )+
    }) => {
        $(#[$meta])*
        pub enum $Name {
            $( $(#[$word_meta])* $Word $(= $number)?, )+
        }

        impl $Name {
            /// Every one, in the order of the table.
            pub const ALL: [$Name; [$($name),+].len()] = [$($Name::$Word),+];

            /// The name that programs, logs and people know it by.
            pub const fn name(self) -> &'static str {
                match self {
                    $( $Name::$Word => $name, )+
                }
            }
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub mod access;
pub mod cm;
mod cursor;
mod display;
mod error;
pub mod flow;
mod gid;
mod headers;
mod icrc;
pub mod ip;
pub mod mad;
mod message_kind;
mod numbers;
mod opcode;
mod packet;
mod train;

pub use error::{EncodeError, Header, ParseError};
pub use gid::Gid;
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Headers, NakCode, Placement, Reth, RnrTimer, Selectivity, Syndrome,
};
pub use icrc::{
    Icrc, Identification, Outer, Series, icrc, icrc_matches, solve_identification, solve_identification_from,
};
pub use ip::{
    Ecn, Ethernet, Frame, IpHeader, Ipv4Header, Ipv6Header, ROCE_PORT, UdpHeader, grh_bytes, grh_destination,
    source_port,
};
pub use numbers::{Key, Msn, Mtu, Pkey, Psn, Qkey, Qpn, Srqn, Timeout};
pub use opcode::{HeaderSet, Opcode, Operation, Position, Tail, Transport};
pub use packet::Packet;
pub use train::{packet_of, slice_of};

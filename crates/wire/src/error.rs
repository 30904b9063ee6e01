//! Why bytes could not become a packet, or a packet bytes. Each error names the header and the numbers, so that a log
//! line of it is enough to find the fault; what to do about it (drop, NAK, disconnect) is the caller's business.

use core::fmt;

use crate::message_kind::MessageKind;

/// A header, or another delimited part of a frame, as the errors name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // each is the specification's name of one header
pub enum Header {
    Ethernet,
    Ipv4,
    Ipv6,
    Udp,
    Bth,
    XrcEth,
    Deth,
    Feth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    ImmDt,
    Ieth,
    Payload,
    Icrc,
    Mad,
    Cm(MessageKind),
    IpCm,
}

impl Header {
    /// The name the specification uses.
    pub const fn name(self) -> &'static str {
        match self {
            Header::Ethernet => "Ethernet header",
            Header::Ipv4 => "IPv4 header",
            Header::Ipv6 => "IPv6 header",
            Header::Udp => "UDP header",
            Header::Bth => "BTH",
            Header::XrcEth => "XRCETH",
            Header::Deth => "DETH",
            Header::Feth => "FETH",
            Header::Reth => "RETH",
            Header::AtomicEth => "AtomicETH",
            Header::Aeth => "AETH",
            Header::AtomicAckEth => "AtomicAckETH",
            Header::ImmDt => "ImmDt",
            Header::Ieth => "IETH",
            Header::Payload => "payload",
            Header::Icrc => "ICRC",
            Header::Mad => "MAD",
            Header::Cm(kind) => kind.header_name(),
            Header::IpCm => "IP CM private data header",
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why bytes are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes end inside a header.
    #[error("{header} is cut short: it needs {need} bytes and {have} are there")]
    Truncated {
        /// The header that does not fit.
        header: Header,
        /// Its length.
        need: usize,
        /// The bytes that were left for it.
        have: usize,
    },
    /// The BTH names an opcode that nobody assigned.
    #[error("BTH opcode {0:#04x} is not assigned")]
    UnknownOpcode(u8),
    /// The BTH names a transport header version other than 0.
    #[error("BTH transport version {0} is unknown; only 0 exists")]
    BadVersion(u8),
    /// The pad count says more than the bytes behind the headers hold.
    #[error("BTH pad count {pad} exceeds the {have} bytes behind the headers")]
    BadPad {
        /// The pad count.
        pad: u8,
        /// Payload and pad together.
        have: usize,
    },
    /// Payload and pad together are not a multiple of 4 bytes.
    #[error("payload and pad together are {have} bytes, not a multiple of 4")]
    Misaligned {
        /// Payload and pad together.
        have: usize,
    },
    /// The ICRC does not fit the packet.
    #[error("ICRC is {have:02x?}, computed {computed:02x?}")]
    BadIcrc {
        /// The four bytes at the end of the packet.
        have: [u8; 4],
        /// The four that should be there.
        computed: [u8; 4],
    },
    /// A version or type field of an outer header has a value this is not the parser of.
    #[error("{header} {field} is {value:#x}, expected {expected:#x}")]
    Unexpected {
        /// The header.
        header: Header,
        /// Its field.
        field: &'static str,
        /// What the field says.
        value: u32,
        /// What it had to say.
        expected: u32,
    },
    /// The attribute of a CM datagram is none of its messages.
    #[error("MAD attribute {0:#06x} is no CM message")]
    UnknownAttribute(u16),
    /// A length field disagrees with the bytes that are there.
    #[error("{header} says {said} bytes and {have} are there")]
    BadLength {
        /// The header.
        header: Header,
        /// What its length field says.
        said: usize,
        /// The bytes that are there.
        have: usize,
    },
    /// The IPv4 header has options, which RoCEv2 does not use.
    #[error("IPv4 header has options: IHL {0}, RoCEv2 uses 5")]
    Ipv4Options(u8),
    /// The IPv4 header's checksum is wrong.
    #[error("IPv4 header checksum is {have:#06x}, computed {computed:#06x}")]
    Ipv4Checksum {
        /// The checksum in the header.
        have: u16,
        /// The one it should be.
        computed: u16,
    },
}

/// Why a value cannot be put on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The opcode demands a header that was not given.
    #[error("{opcode} needs a {header} and none was given")]
    Missing {
        /// The opcode's name.
        opcode: &'static str,
        /// The header it demands.
        header: Header,
    },
    /// The buffer is too short.
    #[error("{header} needs {need} bytes of buffer and {have} are there")]
    NoRoom {
        /// What was being written.
        header: Header,
        /// The bytes it takes.
        need: usize,
        /// The bytes the buffer has.
        have: usize,
    },
    /// The opcode carries no payload and one was given.
    #[error("{opcode} carries no payload and {have} bytes were given")]
    UnexpectedPayload {
        /// The opcode's name.
        opcode: &'static str,
        /// The payload's length.
        have: usize,
    },
    /// More data than the message has room for.
    #[error("{have} bytes of data do not fit the {room} of the message")]
    DataTooLong {
        /// The data's length.
        have: usize,
        /// The room for it.
        room: usize,
    },
    /// A value does not fit its field.
    #[error("{header} {field} {value:#x} does not fit {bits} bits")]
    TooLarge {
        /// The header.
        header: Header,
        /// Its field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The field's width.
        bits: u8,
    },
}

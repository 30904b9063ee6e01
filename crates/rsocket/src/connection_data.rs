//! What both sides tell each other when they connect: the private data of the connection manager's request and of its
//! answer.

use crate::ProtocolError;
use crate::scale::{scale_to_value, value_to_scale};
use crate::target::{ByteOrder, Target, get, put};

const DATA_VERSION: u8 = 1;
/// Numbers in this side's memory have the order of the network.
const BIG_ENDIAN: u8 = 1 << 0;
/// This side knows of I/O mappings.
const IO_MAPPINGS: u8 = 1 << 1;

/// One side's connection data. All numbers travel in the order of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionData {
    /// Whether the numbers in this side's target list have the most significant byte first.
    pub big_endian: bool,
    /// Whether it knows of I/O mappings.
    pub knows_io_mappings: bool,
    /// How many messages it can keep.
    pub credits: u16,
    /// How many I/O mappings its peer may make.
    pub io_mappings: u16,
    /// Its list of targets. The length counts entries; the I/O mappings lie behind them.
    pub targets: Target,
    /// The first half of its receive buffer.
    pub buffer: Target,
}

impl ConnectionData {
    /// How many bytes it has.
    pub const LENGTH: usize = 40;

    /// As it travels.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.big_endian, BIG_ENDIAN) | flag(self.knows_io_mappings, IO_MAPPINGS);
        put(&mut out, 0, &[DATA_VERSION, flags]);
        put(&mut out, 2, &self.credits.to_be_bytes());
        put(&mut out, 7, &[value_to_scale(self.io_mappings.into())]);
        put(&mut out, 8, &self.targets.encode(ByteOrder::Big));
        put(&mut out, 24, &self.buffer.encode(ByteOrder::Big));
        out
    }

    /// Reads what a peer sent. What follows it is not looked at: private data is filled up with zeros.
    pub fn from_bytes(bytes: &[u8]) -> Result<ConnectionData, ProtocolError> {
        if bytes.len() < Self::LENGTH {
            return Err(ProtocolError::Short { length: bytes.len() });
        }
        let [version, flags, _, _, _, _, _, io_mappings] = get::<8>(bytes, 0);
        if version != DATA_VERSION {
            return Err(ProtocolError::Version { version });
        }
        let tail = |at: usize| bytes.get(at..).unwrap_or_default();
        let targets = Target::decode(ByteOrder::Big, tail(8));
        if targets.length == 0 {
            return Err(ProtocolError::NoTargets);
        }
        Ok(ConnectionData {
            big_endian: flags & BIG_ENDIAN != 0,
            knows_io_mappings: flags & IO_MAPPINGS != 0,
            credits: u16::from_be_bytes(get(bytes, 2)),
            io_mappings: scale_to_value(io_mappings),
            targets,
            buffer: Target::decode(ByteOrder::Big, tail(24)),
        })
    }

    pub(crate) fn byte_order(&self) -> ByteOrder {
        if self.big_endian { ByteOrder::Big } else { ByteOrder::Little }
    }
}

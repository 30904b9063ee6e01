//! Messages: the immediate of an RDMA WRITE. The upper three bits say what it is.

use crate::ProtocolError;

const KIND_DATA: u32 = 0;
/// Never sent: what a work request is called that writes into an I/O mapping.
const KIND_DIRECT: u32 = 2;
const KIND_CREDITS: u32 = 4;
const IO_MAPPING: u32 = 6;
const KIND_CONTROL: u32 = 7;

const KIND_SHIFT: u32 = 29;
/// The bits below.
const VALUE_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// What one side tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// So many bytes were written into the receive buffer.
    Data(u32),
    /// So many bytes go into an I/O mapping. The number of a work request, never an immediate.
    Direct(u32),
    /// Messages may be sent up to this number. With sixteen bytes: half of a buffer is lent.
    Credits(u16),
    /// The entry of this index of the I/O mappings was written.
    IoMapping(u16),
    /// See [`Control`].
    Control(Control),
}

/// A message about the connection itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Control {
    /// The sender neither sends nor receives any more.
    Disconnect = 0,
    /// The connection is to be kept. Not an immediate but an empty WRITE, which the peer's NIC acknowledges.
    KeepAlive = 1,
    /// The sender sends no more data.
    Shutdown = 2,
}

impl Message {
    /// The immediate, which is also the number of the work request.
    pub fn encode(self) -> u32 {
        let (kind, value) = match self {
            Message::Data(bytes) => (KIND_DATA, bytes),
            Message::Direct(bytes) => (KIND_DIRECT, bytes),
            Message::Credits(limit) => (KIND_CREDITS, u32::from(limit)),
            Message::IoMapping(index) => (IO_MAPPING, u32::from(index)),
            Message::Control(control) => (KIND_CONTROL, control as u32),
        };
        kind << KIND_SHIFT | (value & VALUE_MASK)
    }

    /// What an immediate means.
    pub fn decode(immediate: u32) -> Result<Message, ProtocolError> {
        let value = immediate & VALUE_MASK;
        Ok(match immediate >> KIND_SHIFT {
            KIND_DATA => Message::Data(value),
            KIND_DIRECT => Message::Direct(value),
            // Sequence numbers have sixteen bits; a sender leaves what carries over in the value.
            KIND_CREDITS => Message::Credits(value as u16),
            IO_MAPPING => Message::IoMapping(value as u16),
            KIND_CONTROL => Message::Control(match value {
                0 => Control::Disconnect,
                1 => Control::KeepAlive,
                2 => Control::Shutdown,
                _ => return Err(ProtocolError::Unknown { immediate }),
            }),
            _ => return Err(ProtocolError::Unknown { immediate }),
        })
    }
}

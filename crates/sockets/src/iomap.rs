//! I/O mappings: memory of the program's that its peer's program writes into by an offset.

use crate::error::Error;
use crate::socket::Socket;

/// The I/O mappings of a socket.
#[derive(Debug, Default)]
pub(crate) struct IoMaps {}

impl Socket {
    /// Tells the peer of mappings that it does not know of yet. False if there is no room.
    pub(crate) fn send_io_mappings(&self) -> Result<bool, Error> {
        Ok(true)
    }
}

//! How large the queues and buffers of a connection are.

/// The fewest entries of a queue.
pub const MIN_QUEUE: u16 = 16;
/// The most entries of a queue.
pub const MAX_QUEUE: u16 = 0xFFFE;
/// Entries of the send queue that are kept for control messages.
pub const CONTROL_SLOTS: u16 = 4;
/// Room in the send buffer without which nothing is sent.
pub const SEND_LOW_WATER: u32 = 2048;

/// Sizes of one side of a connection. Each side chooses its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes on their way at most.
    pub send_buffer: u32,
    /// Bytes of the receive buffer. Half of it is lent at a time.
    pub receive_buffer: u32,
    /// Entries of the send queue.
    pub send_queue: u16,
    /// Entries of the receive queue: messages that the program has not read.
    pub receive_queue: u16,
    /// Bytes that need no place in the send buffer.
    pub inline: u16,
    /// I/O mappings that the peer may make.
    pub io_mappings: u16,
}

impl Default for Sizes {
    /// What `rsocket(7)` has where no file says otherwise.
    fn default() -> Sizes {
        Sizes {
            send_buffer: 1 << 17,
            receive_buffer: 1 << 17,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            io_mappings: 0,
        }
    }
}

impl Sizes {
    /// The nearest sizes with which the protocol works, on a device whose queues have at most `max_queue` entries.
    pub fn fitted(self, max_queue: u16) -> Sizes {
        let queue = |size: u16| size.clamp(MIN_QUEUE, max_queue.clamp(MIN_QUEUE, MAX_QUEUE));
        Sizes {
            send_buffer: self.send_buffer.clamp(2 * SEND_LOW_WATER, 1 << 30),
            // Both halves are of the same size, and never empty.
            receive_buffer: (self.receive_buffer.clamp(2, 1 << 30) + 1) & !1,
            send_queue: queue(self.send_queue),
            receive_queue: queue(self.receive_queue),
            ..self
        }
    }

    /// Bytes of a half of the receive buffer.
    pub(crate) fn half(&self) -> u32 {
        self.receive_buffer / 2
    }
}

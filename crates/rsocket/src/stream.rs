//! One side of a connection: what it may write where, what it has been told, what its program has not read, and what
//! its peer is owed.

use crate::ProtocolError;
use crate::connection_data::ConnectionData;
use crate::iomap::IoMapping;
use crate::message::{Control, Message};
use crate::sizes::{CONTROL_SLOTS, SEND_LOW_WATER, Sizes};
use crate::target::{ByteOrder, Span, Target};
use crate::work::{ControlWork, DirectTransfer, IoMapWork, Run, Transfer, TransferMemory};
use alloc::collections::VecDeque;

/// Entries of this side's list of targets.
const TARGET_ENTRIES: usize = 2;

/// The first transfer of a long send; each further one is twice as long. The peer's program begins to read while the
/// rest is on its way.
const FIRST_TRANSFER: u32 = 16384;
/// The longest transfer.
const MAX_TRANSFER: u32 = 65536;
/// The most of a send buffer that is used: what goes round in a larger one has left the processor's cache when it is
/// its turn again.
const MAX_IN_FLIGHT: u32 = 1 << 19;

/// Where this side's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// The receive buffer.
    pub receive: Span,
    /// The list of targets, with the I/O mappings behind it: [`Stream::target_list_length`] bytes.
    pub targets: Span,
}

/// Which directions a program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// It reads no more.
    Read,
    /// It writes no more.
    Write,
    /// Both.
    Both,
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The peer's connection data is not known.
    Connecting,
    Connected,
    /// One side has ended both directions.
    Disconnected,
    Failed,
}

/// What is known of the peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    order: ByteOrder,
    targets: Target,
    io_mappings: u16,
}

/// One side of a connection.
///
/// | goes in | comes out |
/// |---|---|
/// | [`handle_connection_data`](Stream::handle_connection_data), [`handle_received`](Stream::handle_received), [`handle_sent`](Stream::handle_sent) | [`poll_control`](Stream::poll_control), after everything that goes in and after each [`consume`](Stream::consume) |
/// | a program's bytes | [`next_transfer`](Stream::next_transfer), until it returns nothing |
/// | a program's wish to read | [`unread_runs`](Stream::unread_runs), then [`consume`](Stream::consume) |
#[derive(Debug)]
pub struct Stream {
    sizes: Sizes,
    local: Local,
    peer: Option<Peer>,
    phase: Phase,
    /// The program may read more than there is; else it has the end next.
    readable: bool,
    writable: bool,

    /// Entries of the send queue that are free for data, and for control messages.
    send_slots: u16,
    control_slots: u16,
    /// Free bytes of the send buffer, and where the next go.
    send_room: u32,
    send_head: u32,
    /// Messages sent so far, and how many may be, modulo 2^16.
    sent: u16,
    allowed: u16,
    /// Where the next bytes go, and what is lent after that.
    target: Target,
    targets: VecDeque<Target>,
    /// The entry of the own list that the peer writes next.
    next_target: usize,
    /// How long the next transfer of this send is at most.
    next_length: u32,

    /// Lengths of messages that the program has not read, and their sum.
    messages: VecDeque<u32>,
    unread: u32,
    read_offset: u32,
    /// Bytes that the peer may write.
    lent: u32,
    /// Bytes that were read and are not lent again, and where those begin.
    returned: u32,
    lend_offset: u32,
    /// Messages that were read, modulo 2^16, and the number at which the peer is notified.
    read_messages: u16,
    tell_at: u16,
    /// The entry of the peer's list to write next.
    remote_entry: u32,

    /// What is to be said about the connection, when there is a slot.
    farewell: Option<Control>,
    keep_alive: bool,
}

impl Stream {
    /// One side that has not heard of the other. `sizes` must be [`fitted`](Sizes::fitted).
    pub fn new(sizes: Sizes, local: Local) -> Stream {
        let half = sizes.half();
        Stream {
            sizes,
            local,
            peer: None,
            phase: Phase::Connecting,
            readable: false,
            writable: false,
            send_slots: sizes.send_queue.saturating_sub(CONTROL_SLOTS),
            control_slots: CONTROL_SLOTS,
            send_room: sizes.send_buffer.min(MAX_IN_FLIGHT),
            send_head: 0,
            sent: 0,
            allowed: 0,
            target: Target::default(),
            targets: VecDeque::with_capacity(TARGET_ENTRIES),
            next_target: 1,
            next_length: FIRST_TRANSFER,
            messages: VecDeque::with_capacity(sizes.receive_queue.into()),
            unread: 0,
            read_offset: 0,
            lent: half,
            returned: half,
            lend_offset: half,
            read_messages: 0,
            tell_at: sizes.receive_queue / 2,
            remote_entry: 1,
            farewell: None,
            keep_alive: false,
        }
    }

    /// Bytes that the list of targets takes, with the I/O mappings.
    pub fn target_list_length(sizes: &Sizes) -> usize {
        TARGET_ENTRIES * Target::LENGTH + usize::from(sizes.io_mappings) * IoMapping::LENGTH
    }

    /// Where in the list of targets the I/O mapping of this index is.
    pub fn io_mapping_offset(index: u16) -> usize {
        TARGET_ENTRIES * Target::LENGTH + usize::from(index) * IoMapping::LENGTH
    }

    /// The sizes it was made with.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// What the peer must be told of this side.
    pub fn connection_data(&self) -> ConnectionData {
        Stream::connection_data_of(&self.sizes, &self.local)
    }

    /// What the peer must be told of a side that does not exist yet, and will be made like this.
    pub fn connection_data_of(sizes: &Sizes, local: &Local) -> ConnectionData {
        ConnectionData {
            big_endian: ByteOrder::HERE == ByteOrder::Big,
            knows_io_mappings: true,
            credits: sizes.receive_queue,
            io_mappings: sizes.io_mappings,
            targets: Target { place: local.targets, length: TARGET_ENTRIES as u32 },
            buffer: Target { place: local.receive, length: sizes.half() },
        }
    }

    /// Takes what the peer said of itself: the connection stands.
    pub fn handle_connection_data(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        let data = ConnectionData::from_bytes(bytes)?;
        let io_mappings = if data.knows_io_mappings { data.io_mappings } else { 0 };
        self.peer = Some(Peer { order: data.byte_order(), targets: data.targets, io_mappings });
        self.target = data.buffer;
        self.allowed = data.credits;
        self.remote_entry = 1 % data.targets.length;
        (self.phase, self.readable, self.writable) = (Phase::Connected, true, true);
        Ok(())
    }

    /// A receive has completed: a message with its immediate and as many bytes came. `targets` is the own list of
    /// targets as it is in memory now; only messages of credits look at it.
    pub fn handle_received(&mut self, immediate: u32, bytes: u32, targets: &[u8]) -> Result<(), ProtocolError> {
        let taken = self.receive(immediate, bytes, targets);
        if taken.is_err() && self.phase == Phase::Connected {
            self.end(Phase::Failed);
        }
        taken
    }

    fn receive(&mut self, immediate: u32, bytes: u32, targets: &[u8]) -> Result<(), ProtocolError> {
        let message = Message::decode(immediate)?;
        match message {
            Message::Data(length) => {
                if length != bytes {
                    return Err(ProtocolError::Length { message, bytes });
                }
                self.lent = self.lent.checked_sub(length).ok_or(ProtocolError::Overrun { bytes, lent: self.lent })?;
                if self.messages.len() >= self.sizes.receive_queue.into() {
                    return Err(ProtocolError::TooManyMessages { allowed: self.sizes.receive_queue });
                }
                self.messages.push_back(length);
                self.unread += length;
            }
            Message::Credits(limit) => {
                self.allowed = limit;
                match bytes as usize {
                    0 => {}
                    Target::LENGTH => self.take_target(targets)?,
                    _ => return Err(ProtocolError::Length { message, bytes }),
                }
            }
            // The entry is looked at when the program writes to its offset.
            Message::IoMapping(_) => {}
            Message::Control(Control::Disconnect) => self.handle_disconnected(),
            Message::Control(Control::Shutdown) => match (self.writable, self.farewell) {
                (true, _) => self.readable = false,
                // The peer does not know of our end yet: it is both ends now.
                (false, Some(_)) => (self.readable, self.farewell) = (false, Some(Control::Disconnect)),
                (false, None) => self.handle_disconnected(),
            },
            Message::Control(Control::KeepAlive) => {}
            Message::Direct(_) => return Err(ProtocolError::Unknown { immediate }),
        }
        Ok(())
    }

    /// The peer lends another half of its buffer: it has written where that lies into the list.
    fn take_target(&mut self, list: &[u8]) -> Result<(), ProtocolError> {
        let entry = list.get(self.next_target * Target::LENGTH..).unwrap_or_default();
        let target = Target::decode(ByteOrder::HERE, entry);
        let waiting = self.targets.len();
        if target.length == 0 || waiting == TARGET_ENTRIES {
            return Err(ProtocolError::Target { length: target.length, waiting });
        }
        self.next_target = (self.next_target + 1) % TARGET_ENTRIES;
        self.targets.push_back(target);
        self.next_target_if_used_up();
        Ok(())
    }

    fn next_target_if_used_up(&mut self) {
        if self.target.length == 0
            && let Some(next) = self.targets.pop_front()
        {
            self.target = next;
        }
    }

    /// Work of the send queue has completed; `wr_id` is what it was called.
    pub fn handle_sent(&mut self, wr_id: u64, succeeded: bool) {
        let message = Message::decode(wr_id as u32);
        match message {
            Ok(Message::Data(bytes) | Message::Direct(bytes)) => self.give_back(bytes),
            Ok(Message::IoMapping(_)) => self.give_back(IoMapping::LENGTH as u32),
            Ok(Message::Credits(_)) => self.control_slots += 1,
            Ok(Message::Control(control)) => {
                self.control_slots += 1;
                if control == Control::Disconnect && self.phase == Phase::Connected {
                    self.end(Phase::Disconnected);
                }
            }
            Err(_) => {}
        }
        if !succeeded && self.phase == Phase::Connected {
            // A peer that has sent its last byte may be gone: then it does not miss our credits.
            let missed = self.readable || !matches!(message, Ok(Message::Credits(_) | Message::Control(_)));
            self.end(if missed { Phase::Failed } else { Phase::Disconnected });
        }
    }

    fn give_back(&mut self, bytes: u32) {
        self.send_slots += 1;
        self.send_room += bytes;
    }

    /// The peer is gone, or says that it neither sends nor receives.
    pub fn handle_disconnected(&mut self) {
        if matches!(self.phase, Phase::Connected | Phase::Connecting) {
            self.end(Phase::Disconnected);
        }
    }

    /// The connection can be used no more.
    pub fn handle_failure(&mut self) {
        if self.phase != Phase::Disconnected {
            self.end(Phase::Failed);
        }
    }

    fn end(&mut self, phase: Phase) {
        (self.phase, self.readable, self.writable) = (phase, false, false);
        (self.farewell, self.keep_alive) = (None, false);
    }

    /// Whether both sides know of each other, and neither has ended the connection.
    pub fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    /// Whether one side has ended both directions.
    pub fn is_disconnected(&self) -> bool {
        self.phase == Phase::Disconnected
    }

    /// Whether the connection broke.
    pub fn has_failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    /// Whether the peer may send more.
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether this side may send more.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether there is room for bytes of the program's: in the send queue, in the send buffer and at the peer.
    pub fn can_send(&self) -> bool {
        self.has_room() && self.sent != self.allowed && self.target.length != 0
    }

    fn has_room(&self) -> bool {
        self.send_slots > 0 && self.send_room >= SEND_LOW_WATER
    }

    /// Whether everything that was sent has completed.
    pub fn is_idle(&self) -> bool {
        self.send_slots == self.sizes.send_queue - CONTROL_SLOTS
            && self.control_slots == CONTROL_SLOTS
            && self.farewell.is_none()
    }

    /// A program begins to send: its first transfer is short, unless others are on their way.
    pub fn begin_send(&mut self) {
        if self.send_slots == self.sizes.send_queue - CONTROL_SLOTS {
            self.next_length = FIRST_TRANSFER;
        }
    }

    /// The next transfer of a program that wants to send so many bytes; `None` as long as there is no room for any.
    /// The caller must post it.
    pub fn next_transfer(&mut self, wanted: usize) -> Option<Transfer> {
        if wanted == 0 || !self.writable || !self.can_send() {
            return None;
        }
        let length = self.piece(wanted).min(self.target.length);
        self.sent = self.sent.wrapping_add(1);
        let remote = self.target.place;
        self.target.place.address = remote.address.wrapping_add(length.into());
        self.target.length -= length;
        self.next_target_if_used_up();
        Some(Transfer { length, remote, place: self.place(length) })
    }

    /// The next transfer into an I/O mapping of the peer's, from an offset in it.
    pub fn next_direct_transfer(&mut self, into: &IoMapping, offset: u64, wanted: usize) -> Option<DirectTransfer> {
        let left = into.bytes_from(offset)?;
        if wanted == 0 || !self.writable || !self.has_room() {
            return None;
        }
        let length = self.piece(wanted).min(left);
        let Span { address, key } = into.target.place;
        let address = address.wrapping_add(offset - into.offset);
        Some(DirectTransfer { length, remote: Span { address, key }, place: self.place(length) })
    }

    /// How long the next transfer is at most, of so many bytes.
    fn piece(&mut self, wanted: usize) -> u32 {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let longest = self.next_length;
        if longest < wanted {
            self.next_length = (2 * longest).min(MAX_TRANSFER);
        }
        wanted.min(longest).min(self.send_room)
    }

    /// Takes room for a transfer.
    fn place(&mut self, length: u32) -> TransferMemory {
        self.send_slots -= 1;
        self.send_room -= length;
        if length <= self.sizes.inline.into() {
            return TransferMemory::Inline;
        }
        let ring = self.sizes.send_buffer.min(MAX_IN_FLIGHT);
        let first = Run { offset: self.send_head, length: length.min(ring - self.send_head) };
        let second = Run { offset: 0, length: length - first.length };
        self.send_head = (self.send_head + length) % ring;
        TransferMemory::Buffer([first, second])
    }

    /// How many I/O mappings of this side the peer keeps.
    pub fn peer_io_mappings(&self) -> u16 {
        self.peer.map_or(0, |peer| peer.io_mappings)
    }

    /// An entry for the peer's list of I/O mappings; `None` as long as there is no room, or if the list has no such
    /// index. The caller must post it. It counts towards no credits: the peer keeps nothing for it.
    pub fn next_io_mapping(&mut self, index: u16, mapping: &IoMapping) -> Option<IoMapWork> {
        let peer = self.peer.filter(|peer| index < peer.io_mappings)?;
        if !self.writable || !self.has_room() {
            return None;
        }
        self.send_slots -= 1;
        self.send_room -= IoMapping::LENGTH as u32;
        let list = u64::from(peer.targets.length) * Target::LENGTH as u64;
        let past = list + u64::from(index) * IoMapping::LENGTH as u64;
        let Span { address, key } = peer.targets.place;
        Some(IoMapWork {
            bytes: mapping.encode(peer.order),
            remote: Span { address: address.wrapping_add(past), key },
            immediate: Message::IoMapping(index).encode(),
        })
    }

    /// Bytes that the program has not read.
    pub fn unread(&self) -> usize {
        self.unread as usize
    }

    /// Bytes of the send buffer that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.sizes.send_buffer.min(MAX_IN_FLIGHT).saturating_sub(self.send_room)
    }

    /// Where the next bytes to read lie in the receive buffer, `wanted` at most: two runs, of which the second may be
    /// empty.
    pub fn unread_runs(&self, wanted: usize) -> [Run; 2] {
        let length = u32::try_from(wanted).unwrap_or(u32::MAX).min(self.unread);
        let first = Run { offset: self.read_offset, length: length.min(self.sizes.receive_buffer - self.read_offset) };
        [first, Run { offset: 0, length: length - first.length }]
    }

    /// Where the bytes of the peer's next message will lie in the receive buffer, as far as they may, while the program
    /// has read everything; `None` if it has not.
    pub fn next_run(&self) -> Option<Run> {
        let length = self.lent.min(self.sizes.receive_buffer - self.read_offset);
        (self.unread == 0).then_some(Run { offset: self.read_offset, length })
    }

    /// The program has read so many bytes.
    pub fn consume(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.unread);
        let mut left = bytes;
        while let Some(first) = self.messages.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.messages.pop_front();
            self.read_messages = self.read_messages.wrapping_add(1);
        }
        self.unread -= bytes;
        self.returned += bytes;
        self.read_offset = (self.read_offset + bytes) % self.sizes.receive_buffer;
    }

    /// Asks for a message that keeps the connection.
    pub fn keep_alive(&mut self) {
        self.keep_alive = self.is_connected();
    }

    /// The program ends a direction. What the peer must be told comes out of [`poll_control`](Stream::poll_control).
    /// Returns whether that is something new: a peer that is told of one end twice takes it for both.
    pub fn shutdown(&mut self, which: Shutdown) -> bool {
        let before = (self.readable, self.writable);
        if !self.is_connected() {
            return false;
        }
        self.readable &= which == Shutdown::Write;
        self.writable &= which == Shutdown::Read;
        if before == (self.readable, self.writable) {
            return false;
        }
        if !self.writable {
            self.farewell = Some(if self.readable { Control::Shutdown } else { Control::Disconnect });
        }
        true
    }

    /// The next message about the connection that is due. The caller must post it.
    pub fn poll_control(&mut self) -> Option<ControlWork> {
        if self.control_slots == 0 || !self.is_connected() {
            return None;
        }
        if let Some(work) = self.credits() {
            self.control_slots -= 1;
            return Some(work);
        }
        if let Some(control) = self.farewell.take() {
            self.control_slots -= 1;
            return Some(ControlWork::Message { immediate: Message::Control(control).encode() });
        }
        if core::mem::take(&mut self.keep_alive) {
            self.control_slots -= 1;
            return Some(ControlWork::KeepAlive { wr_id: Message::Control(Control::KeepAlive).encode().into() });
        }
        None
    }

    /// What the peer may send now, if it is time to tell it: a half of the buffer is free, or half of its messages
    /// were read.
    fn credits(&mut self) -> Option<ControlWork> {
        let half = self.sizes.half();
        let lends = self.returned >= half;
        let is_time = self.read_messages.wrapping_sub(self.tell_at) as i16 >= 0;
        let peer = self.peer.filter(|_| lends || is_time)?;
        self.tell_at = self.read_messages.wrapping_add(self.sizes.receive_queue / 2);
        let limit = self.read_messages.wrapping_add(self.sizes.receive_queue);
        let immediate = Message::Credits(limit).encode();
        if !lends {
            return Some(ControlWork::Message { immediate });
        }
        let Span { address, key } = self.local.receive;
        let place = Span { address: address + u64::from(self.lend_offset), key };
        let bytes = Target { place, length: half }.encode(peer.order);
        let Span { address, key } = peer.targets.place;
        let past = u64::from(self.remote_entry) * Target::LENGTH as u64;
        self.remote_entry = (self.remote_entry + 1) % peer.targets.length;
        self.returned -= half;
        self.lent += half;
        self.lend_offset = (self.lend_offset + half) % self.sizes.receive_buffer;
        Some(ControlWork::Target { bytes, remote: Span { address: address.wrapping_add(past), key }, immediate })
    }
}

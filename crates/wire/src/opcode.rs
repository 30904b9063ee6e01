//! Opcodes and what follows from them: transport service, operation, place in the message, and the headers behind the
//! BTH. The facts are in its table; this module is the vocabulary in which it answers.

use core::fmt;

mod table;

pub use table::Opcode;

/// The service of a queue pair, in the top bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification: addressed to a queue pair of any service.
    Cnp,
}

/// What a packet does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Operation {
    /// Data for the receiver's next receive request.
    Send,
    /// Data for the receiver's memory.
    Write,
    /// Asks for data of the receiver's memory.
    ReadRequest,
    /// Answers a read, and also a flush or an atomic write.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Answers compare-and-swap and fetch-and-add with the value before.
    AtomicAcknowledge,
    /// 64-bit compare-and-swap.
    CompareSwap,
    /// 64-bit fetch-and-add.
    FetchAdd,
    /// Eight bytes that become visible at once.
    AtomicWrite,
    /// Makes earlier writes visible or persistent.
    Flush,
    /// Congestion notification.
    Cnp,
}

impl Operation {
    /// How many there are.
    const COUNT: usize = Operation::Cnp as usize + 1;

    /// Whether the requester sends it.
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Operation::Cnp)
    }

    /// Whether the responder sends it.
    pub const fn is_response(self) -> bool {
        matches!(self, Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge)
    }
}

/// The place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Position {
    /// The first of several.
    First,
    /// Between the first and the last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether the message starts here.
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether the message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// From whether the message starts and ends here.
    pub const fn of(starts: bool, ends: bool) -> Position {
        match (starts, ends) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }
}

/// What the last packet of a message carries besides data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Tail {
    /// Nothing.
    #[default]
    Plain,
    /// Four bytes of immediate data.
    Immediate,
    /// A key to invalidate.
    Invalidate,
}

bitflags::bitflags! {
    /// The headers that follow the BTH. Their order on the wire is the order here.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct HeaderSet: u16 {
        /// XRC: the shared receive queue.
        const XRCETH = 1 << 0;
        /// Datagram: Q_Key and source queue pair.
        const DETH = 1 << 1;
        /// Flush: placement and selectivity.
        const FETH = 1 << 2;
        /// RDMA: address, key and length.
        const RETH = 1 << 3;
        /// Atomic: address, key and operands.
        const ATOMIC_ETH = 1 << 4;
        /// Acknowledgement: syndrome and message sequence number.
        const AETH = 1 << 5;
        /// Atomic acknowledgement: the value before.
        const ATOMIC_ACK_ETH = 1 << 6;
        /// Immediate data.
        const IMMEDIATE = 1 << 7;
        /// The key to invalidate.
        const IETH = 1 << 8;
        /// Payload may follow (it may also be empty).
        const PAYLOAD = 1 << 9;
    }
}

impl HeaderSet {
    /// The length of the BTH and these headers, without payload.
    const fn length(self) -> u8 {
        const LENGTHS: [(HeaderSet, u8); 9] = [
            (HeaderSet::XRCETH, 4),
            (HeaderSet::DETH, 8),
            (HeaderSet::FETH, 4),
            (HeaderSet::RETH, 16),
            (HeaderSet::ATOMIC_ETH, 28),
            (HeaderSet::AETH, 4),
            (HeaderSet::ATOMIC_ACK_ETH, 8),
            (HeaderSet::IMMEDIATE, 4),
            (HeaderSet::IETH, 4),
        ];
        let mut sum = 12;
        let mut at = 0;
        while at < LENGTHS.len() {
            if self.contains(LENGTHS[at].0) {
                sum += LENGTHS[at].1;
            }
            at += 1;
        }
        sum
    }
}

impl Opcode {
    /// The opcode with this number.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        BY_BYTE[byte as usize]
    }

    /// Its number.
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The transport service.
    #[inline]
    pub const fn transport(self) -> Transport {
        self.row().transport
    }

    /// What it does.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.row().operation
    }

    /// Its place in the message.
    #[inline]
    pub const fn position(self) -> Position {
        self.row().position
    }

    /// What this packet carries besides data; `Plain` for a first or middle packet, whatever the last will bring.
    #[inline]
    pub const fn tail(self) -> Tail {
        self.row().tail
    }

    /// Whether a message starts with it.
    #[inline]
    pub const fn starts(self) -> bool {
        self.position().starts()
    }

    /// Whether a message ends with it.
    #[inline]
    pub const fn ends(self) -> bool {
        self.position().ends()
    }

    /// Whether it carries immediate data.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        self.headers().contains(HeaderSet::IMMEDIATE)
    }

    /// Whether it carries a key to invalidate.
    #[inline]
    pub const fn has_invalidate(self) -> bool {
        self.headers().contains(HeaderSet::IETH)
    }

    /// Whether payload may follow its headers.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.headers().contains(HeaderSet::PAYLOAD)
    }

    /// Whether a requester sends it.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.operation().is_request()
    }

    /// Whether a responder sends it.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.operation().is_response()
    }

    /// The headers behind the BTH.
    #[inline]
    pub const fn headers(self) -> HeaderSet {
        self.row().headers
    }

    /// The length of BTH and headers together, without payload.
    #[inline]
    pub const fn header_length(self) -> usize {
        self.row().length as usize
    }

    /// Its name, as the specification writes it: "RC RDMA WRITE First".
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The opcode of a packet at `position` of a message that ends with `tail`, or nothing where the transport does not
    /// have it: a datagram has no middle, an unreliable connection cannot invalidate.
    #[inline]
    pub const fn of(transport: Transport, operation: Operation, position: Position, tail: Tail) -> Option<Opcode> {
        BY_MEANING[index(transport, operation, position, tail)]
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

static BY_BYTE: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        table[Opcode::ALL[at] as usize] = Some(Opcode::ALL[at]);
        at += 1;
    }
    table
};

const MEANING_COUNT: usize = 5 * Operation::COUNT * 4 * 3;

const fn index(transport: Transport, operation: Operation, position: Position, tail: Tail) -> usize {
    ((transport as usize * Operation::COUNT + operation as usize) * 4 + position as usize) * 3 + tail as usize
}

static BY_MEANING: [Option<Opcode>; MEANING_COUNT] = {
    let mut table: [Option<Opcode>; MEANING_COUNT] = [None; MEANING_COUNT];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        let opcode = Opcode::ALL[at];
        let row = opcode.row();
        table[index(row.transport, row.operation, row.position, row.tail)] = Some(opcode);
        at += 1;
    }
    // A message that will end with immediate data or an invalidation begins like any other.
    let mut at = 0;
    while at < Opcode::ALL.len() {
        let row = Opcode::ALL[at].row();
        if matches!(row.position, Position::Last) && !matches!(row.tail, Tail::Plain) {
            let (transport, operation) = (row.transport, row.operation);
            table[index(transport, operation, Position::First, row.tail)] =
                table[index(transport, operation, Position::First, Tail::Plain)];
            table[index(transport, operation, Position::Middle, row.tail)] =
                table[index(transport, operation, Position::Middle, Tail::Plain)];
        }
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_finds_its_opcode_and_no_other() {
        let mut found = 0;
        for byte in 0..=u8::MAX {
            if let Some(opcode) = Opcode::from_byte(byte) {
                assert_eq!(opcode.byte(), byte);
                found += 1;
            }
        }
        assert_eq!((found, Opcode::ALL.len()), (65, 65));
        for reserved in [0x15, 0x18, 0x2c, 0x36, 0x40, 0x60, 0x66, 0x80, 0x82, 0xb5, 0xc0, 0xff] {
            assert_eq!(Opcode::from_byte(reserved), None, "{reserved:#x}");
        }
    }

    #[test]
    fn meaning_finds_the_opcode_back() {
        for &opcode in Opcode::ALL {
            let (transport, operation) = (opcode.transport(), opcode.operation());
            assert_eq!(Opcode::of(transport, operation, opcode.position(), opcode.tail()), Some(opcode));
            assert_eq!(Position::of(opcode.starts(), opcode.ends()), opcode.position());
        }
    }

    #[test]
    fn a_message_with_a_tail_begins_like_any_other() {
        use Position::*;
        let of = |transport, position, tail| Opcode::of(transport, Operation::Send, position, tail);
        assert_eq!(of(Transport::Rc, First, Tail::Immediate), Some(Opcode::RcSendFirst));
        assert_eq!(of(Transport::Rc, Middle, Tail::Invalidate), Some(Opcode::RcSendMiddle));
        assert_eq!(of(Transport::Rc, Only, Tail::Invalidate), Some(Opcode::RcSendOnlyInvalidate));
        assert_eq!(of(Transport::Uc, First, Tail::Invalidate), None);
        assert_eq!(of(Transport::Ud, First, Tail::Plain), None);
        assert_eq!(Opcode::of(Transport::Rc, Operation::Write, First, Tail::Invalidate), None);
    }

    #[test]
    fn header_sets_and_lengths_are_the_specification_s() {
        assert_eq!(Opcode::RcWriteOnlyImmediate.header_length(), 12 + 16 + 4);
        assert_eq!(Opcode::RcAtomicAcknowledge.header_length(), 12 + 4 + 8);
        assert_eq!(Opcode::RcFlush.header_length(), 12 + 4 + 16);
        assert_eq!(Opcode::UdSendOnlyImmediate.header_length(), 12 + 8 + 4);
        assert_eq!(Opcode::XrcCompareSwap.header_length(), 12 + 4 + 28);
        assert_eq!(Opcode::Cnp.header_length(), 12);
        for &opcode in Opcode::ALL {
            let headers = opcode.headers();
            let xrc_request = opcode.transport() == Transport::Xrc && opcode.is_request();
            assert_eq!(headers.contains(HeaderSet::XRCETH), xrc_request, "{opcode}");
            assert_eq!(headers.contains(HeaderSet::DETH), opcode.transport() == Transport::Ud, "{opcode}");
            assert_eq!(opcode.has_immediate(), opcode.tail() == Tail::Immediate, "{opcode}");
            assert_eq!(opcode.has_invalidate(), opcode.tail() == Tail::Invalidate, "{opcode}");
            assert!(!(opcode.is_request() && opcode.is_response()), "{opcode}");
        }
    }

    #[test]
    fn xrc_mirrors_rc() {
        for &rc in Opcode::ALL.iter().filter(|opcode| opcode.transport() == Transport::Rc) {
            let xrc = Opcode::from_byte(rc.byte() + 0xa0).expect("XRC has every opcode of RC");
            assert_eq!(xrc.transport(), Transport::Xrc);
            assert_eq!((xrc.operation(), xrc.position(), xrc.tail()), (rc.operation(), rc.position(), rc.tail()));
            assert_eq!(xrc.headers() - HeaderSet::XRCETH, rc.headers());
        }
    }
}

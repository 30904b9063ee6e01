//! The table of opcodes: the one place that says which transport, operation, position and headers a BTH opcode stands
//! for. Everything that asks about an opcode asks this table; nothing else matches on opcode numbers. (Specification
//! 9.2.1 and 9.3; flush and atomic write are of the memory placement annex, CNP of the RoCEv2 annex, XRC of the
//! extended reliable connection annex.)

use super::{HeaderSet, Operation, Position, Tail, Transport};

/// What the table says about one opcode.
pub(super) struct Row {
    pub(super) transport: Transport,
    pub(super) operation: Operation,
    pub(super) position: Position,
    pub(super) tail: Tail,
    pub(super) headers: HeaderSet,
    pub(super) length: u8,
    pub(super) name: &'static str,
}

/// Makes the enum, its list and its rows out of one listing.
macro_rules! opcodes {
    ($($opcode:ident = $byte:literal, $transport:ident, $operation:ident, $position:ident, $tail:ident,
       [$($header:ident),*], $name:literal;)*) => {
        /// A BTH opcode: transport service and operation in one byte.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $name] $opcode = $byte,)*
        }

        impl Opcode {
            /// Every opcode, by number.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$opcode),*];

            // A `match` over a dense enum compiles to one indexed load, and cannot miss a row.
            #[inline]
            pub(super) const fn row(self) -> &'static Row {
                match self {
                    $(Opcode::$opcode => {
                        const HEADERS: HeaderSet = HeaderSet::empty()$(.union(HeaderSet::$header))*;
                        const ROW: Row = Row {
                            transport: Transport::$transport,
                            operation: Operation::$operation,
                            position: Position::$position,
                            tail: Tail::$tail,
                            headers: HEADERS,
                            length: HEADERS.length(),
                            name: $name,
                        };
                        &ROW
                    })*
                }
            }
        }
    };
}

#[rustfmt::skip] // columns
opcodes! {
    RcSendFirst = 0x00,                   Rc,   Send,              First,  Plain,      [PAYLOAD],                            "RC SEND First";
    RcSendMiddle = 0x01,                  Rc,   Send,              Middle, Plain,      [PAYLOAD],                            "RC SEND Middle";
    RcSendLast = 0x02,                    Rc,   Send,              Last,   Plain,      [PAYLOAD],                            "RC SEND Last";
    RcSendLastImmediate = 0x03,           Rc,   Send,              Last,   Immediate,  [IMMEDIATE, PAYLOAD],                 "RC SEND Last with Immediate";
    RcSendOnly = 0x04,                    Rc,   Send,              Only,   Plain,      [PAYLOAD],                            "RC SEND Only";
    RcSendOnlyImmediate = 0x05,           Rc,   Send,              Only,   Immediate,  [IMMEDIATE, PAYLOAD],                 "RC SEND Only with Immediate";
    RcWriteFirst = 0x06,                  Rc,   Write,             First,  Plain,      [RETH, PAYLOAD],                      "RC RDMA WRITE First";
    RcWriteMiddle = 0x07,                 Rc,   Write,             Middle, Plain,      [PAYLOAD],                            "RC RDMA WRITE Middle";
    RcWriteLast = 0x08,                   Rc,   Write,             Last,   Plain,      [PAYLOAD],                            "RC RDMA WRITE Last";
    RcWriteLastImmediate = 0x09,          Rc,   Write,             Last,   Immediate,  [IMMEDIATE, PAYLOAD],                 "RC RDMA WRITE Last with Immediate";
    RcWriteOnly = 0x0a,                   Rc,   Write,             Only,   Plain,      [RETH, PAYLOAD],                      "RC RDMA WRITE Only";
    RcWriteOnlyImmediate = 0x0b,          Rc,   Write,             Only,   Immediate,  [RETH, IMMEDIATE, PAYLOAD],           "RC RDMA WRITE Only with Immediate";
    RcReadRequest = 0x0c,                 Rc,   ReadRequest,       Only,   Plain,      [RETH],                               "RC RDMA READ Request";
    RcReadResponseFirst = 0x0d,           Rc,   ReadResponse,      First,  Plain,      [AETH, PAYLOAD],                      "RC RDMA READ Response First";
    RcReadResponseMiddle = 0x0e,          Rc,   ReadResponse,      Middle, Plain,      [PAYLOAD],                            "RC RDMA READ Response Middle";
    RcReadResponseLast = 0x0f,            Rc,   ReadResponse,      Last,   Plain,      [AETH, PAYLOAD],                      "RC RDMA READ Response Last";
    RcReadResponseOnly = 0x10,            Rc,   ReadResponse,      Only,   Plain,      [AETH, PAYLOAD],                      "RC RDMA READ Response Only";
    RcAcknowledge = 0x11,                 Rc,   Acknowledge,       Only,   Plain,      [AETH],                               "RC Acknowledge";
    RcAtomicAcknowledge = 0x12,           Rc,   AtomicAcknowledge, Only,   Plain,      [AETH, ATOMIC_ACK_ETH],               "RC ATOMIC Acknowledge";
    RcCompareSwap = 0x13,                 Rc,   CompareSwap,       Only,   Plain,      [ATOMIC_ETH],                         "RC CmpSwap";
    RcFetchAdd = 0x14,                    Rc,   FetchAdd,          Only,   Plain,      [ATOMIC_ETH],                         "RC FetchAdd";
    RcSendLastInvalidate = 0x16,          Rc,   Send,              Last,   Invalidate, [IETH, PAYLOAD],                      "RC SEND Last with Invalidate";
    RcSendOnlyInvalidate = 0x17,          Rc,   Send,              Only,   Invalidate, [IETH, PAYLOAD],                      "RC SEND Only with Invalidate";
    RcFlush = 0x1c,                       Rc,   Flush,             Only,   Plain,      [FETH, RETH],                         "RC FLUSH";
    RcAtomicWrite = 0x1d,                 Rc,   AtomicWrite,       Only,   Plain,      [RETH, PAYLOAD],                      "RC ATOMIC WRITE";
    UcSendFirst = 0x20,                   Uc,   Send,              First,  Plain,      [PAYLOAD],                            "UC SEND First";
    UcSendMiddle = 0x21,                  Uc,   Send,              Middle, Plain,      [PAYLOAD],                            "UC SEND Middle";
    UcSendLast = 0x22,                    Uc,   Send,              Last,   Plain,      [PAYLOAD],                            "UC SEND Last";
    UcSendLastImmediate = 0x23,           Uc,   Send,              Last,   Immediate,  [IMMEDIATE, PAYLOAD],                 "UC SEND Last with Immediate";
    UcSendOnly = 0x24,                    Uc,   Send,              Only,   Plain,      [PAYLOAD],                            "UC SEND Only";
    UcSendOnlyImmediate = 0x25,           Uc,   Send,              Only,   Immediate,  [IMMEDIATE, PAYLOAD],                 "UC SEND Only with Immediate";
    UcWriteFirst = 0x26,                  Uc,   Write,             First,  Plain,      [RETH, PAYLOAD],                      "UC RDMA WRITE First";
    UcWriteMiddle = 0x27,                 Uc,   Write,             Middle, Plain,      [PAYLOAD],                            "UC RDMA WRITE Middle";
    UcWriteLast = 0x28,                   Uc,   Write,             Last,   Plain,      [PAYLOAD],                            "UC RDMA WRITE Last";
    UcWriteLastImmediate = 0x29,          Uc,   Write,             Last,   Immediate,  [IMMEDIATE, PAYLOAD],                 "UC RDMA WRITE Last with Immediate";
    UcWriteOnly = 0x2a,                   Uc,   Write,             Only,   Plain,      [RETH, PAYLOAD],                      "UC RDMA WRITE Only";
    UcWriteOnlyImmediate = 0x2b,          Uc,   Write,             Only,   Immediate,  [RETH, IMMEDIATE, PAYLOAD],           "UC RDMA WRITE Only with Immediate";
    UdSendOnly = 0x64,                    Ud,   Send,              Only,   Plain,      [DETH, PAYLOAD],                      "UD SEND Only";
    UdSendOnlyImmediate = 0x65,           Ud,   Send,              Only,   Immediate,  [DETH, IMMEDIATE, PAYLOAD],           "UD SEND Only with Immediate";
    Cnp = 0x81,                           Cnp,  Cnp,               Only,   Plain,      [PAYLOAD],                            "CNP";
    XrcSendFirst = 0xa0,                  Xrc,  Send,              First,  Plain,      [XRCETH, PAYLOAD],                    "XRC SEND First";
    XrcSendMiddle = 0xa1,                 Xrc,  Send,              Middle, Plain,      [XRCETH, PAYLOAD],                    "XRC SEND Middle";
    XrcSendLast = 0xa2,                   Xrc,  Send,              Last,   Plain,      [XRCETH, PAYLOAD],                    "XRC SEND Last";
    XrcSendLastImmediate = 0xa3,          Xrc,  Send,              Last,   Immediate,  [XRCETH, IMMEDIATE, PAYLOAD],         "XRC SEND Last with Immediate";
    XrcSendOnly = 0xa4,                   Xrc,  Send,              Only,   Plain,      [XRCETH, PAYLOAD],                    "XRC SEND Only";
    XrcSendOnlyImmediate = 0xa5,          Xrc,  Send,              Only,   Immediate,  [XRCETH, IMMEDIATE, PAYLOAD],         "XRC SEND Only with Immediate";
    XrcWriteFirst = 0xa6,                 Xrc,  Write,             First,  Plain,      [XRCETH, RETH, PAYLOAD],              "XRC RDMA WRITE First";
    XrcWriteMiddle = 0xa7,                Xrc,  Write,             Middle, Plain,      [XRCETH, PAYLOAD],                    "XRC RDMA WRITE Middle";
    XrcWriteLast = 0xa8,                  Xrc,  Write,             Last,   Plain,      [XRCETH, PAYLOAD],                    "XRC RDMA WRITE Last";
    XrcWriteLastImmediate = 0xa9,         Xrc,  Write,             Last,   Immediate,  [XRCETH, IMMEDIATE, PAYLOAD],         "XRC RDMA WRITE Last with Immediate";
    XrcWriteOnly = 0xaa,                  Xrc,  Write,             Only,   Plain,      [XRCETH, RETH, PAYLOAD],              "XRC RDMA WRITE Only";
    XrcWriteOnlyImmediate = 0xab,         Xrc,  Write,             Only,   Immediate,  [XRCETH, RETH, IMMEDIATE, PAYLOAD],   "XRC RDMA WRITE Only with Immediate";
    XrcReadRequest = 0xac,                Xrc,  ReadRequest,       Only,   Plain,      [XRCETH, RETH],                       "XRC RDMA READ Request";
    XrcReadResponseFirst = 0xad,          Xrc,  ReadResponse,      First,  Plain,      [AETH, PAYLOAD],                      "XRC RDMA READ Response First";
    XrcReadResponseMiddle = 0xae,         Xrc,  ReadResponse,      Middle, Plain,      [PAYLOAD],                            "XRC RDMA READ Response Middle";
    XrcReadResponseLast = 0xaf,           Xrc,  ReadResponse,      Last,   Plain,      [AETH, PAYLOAD],                      "XRC RDMA READ Response Last";
    XrcReadResponseOnly = 0xb0,           Xrc,  ReadResponse,      Only,   Plain,      [AETH, PAYLOAD],                      "XRC RDMA READ Response Only";
    XrcAcknowledge = 0xb1,                Xrc,  Acknowledge,       Only,   Plain,      [AETH],                               "XRC Acknowledge";
    XrcAtomicAcknowledge = 0xb2,          Xrc,  AtomicAcknowledge, Only,   Plain,      [AETH, ATOMIC_ACK_ETH],               "XRC ATOMIC Acknowledge";
    XrcCompareSwap = 0xb3,                Xrc,  CompareSwap,       Only,   Plain,      [XRCETH, ATOMIC_ETH],                 "XRC CmpSwap";
    XrcFetchAdd = 0xb4,                   Xrc,  FetchAdd,          Only,   Plain,      [XRCETH, ATOMIC_ETH],                 "XRC FetchAdd";
    XrcSendLastInvalidate = 0xb6,         Xrc,  Send,              Last,   Invalidate, [XRCETH, IETH, PAYLOAD],              "XRC SEND Last with Invalidate";
    XrcSendOnlyInvalidate = 0xb7,         Xrc,  Send,              Only,   Invalidate, [XRCETH, IETH, PAYLOAD],              "XRC SEND Only with Invalidate";
    XrcFlush = 0xbc,                      Xrc,  Flush,             Only,   Plain,      [XRCETH, FETH, RETH],                 "XRC FLUSH";
    XrcAtomicWrite = 0xbd,                Xrc,  AtomicWrite,       Only,   Plain,      [XRCETH, RETH, PAYLOAD],              "XRC ATOMIC WRITE";
}

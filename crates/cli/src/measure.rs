//! What is measured, and how the two sides agree on it. The first side gives orders: a run of so many messages of one
//! size by one carrier, as round trips, as a stream or in batches. Carriers take turns in short runs, so that a busy
//! machine is busy for all of them alike.

#[allow(unsafe_code, reason = "memory shared by processes")]
pub mod bare;
pub mod bob;
mod calls;
mod figures;
mod first;
pub mod machine;
mod many_queue_pairs;
mod patience;
mod sockets;
mod statistics;
mod threads;
mod verbs;

pub use figures::{Figures, small_table};
pub use first::{Extras, FirstSide, Measured};
pub use many_queue_pairs::{QUEUE_PAIR_COUNTS, WRITE_BYTES as MANY_QUEUE_PAIRS_BYTES};
pub use threads::{SEND_BYTES as THREADS_SIZE, counts as thread_counts};

use serde::{Deserialize, Serialize};
use statistics::Summary;
use std::fmt;

/// The longest message that is measured.
pub const LARGEST_MESSAGE: usize = 64 << 20;

/// The most messages of a run: what is kept of each is eight bytes.
const MOST_MESSAGES: u64 = 1_000_000;

/// The most threads of a side: more do not fit into one order.
const MOST_THREADS: usize = 250;

/// What carries the messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// RDMA SEND, met by receives
    Send,
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// RDMA FETCH_ADD
    Atomic,
    /// A TCP connection
    Tcp,
    /// A Unix stream socket
    Unix,
    /// A limit: a ring in memory that two processes share, with a copy in and a copy out
    Ring,
    /// A limit: one process copies into another's memory, by one system call
    ProcessVm,
    /// A limit: one thread copies
    Memcpy,
    /// The connection manager, which carries no messages
    Manager,
}

impl Carrier {
    /// Those that carry messages.
    pub const ALL: [Carrier; 9] = [
        Carrier::Send,
        Carrier::Write,
        Carrier::Read,
        Carrier::Atomic,
        Carrier::Tcp,
        Carrier::Unix,
        Carrier::Ring,
        Carrier::ProcessVm,
        Carrier::Memcpy,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Carrier::Send => "SEND",
            Carrier::Write => "WRITE",
            Carrier::Read => "READ",
            Carrier::Atomic => "ATOMIC",
            Carrier::Tcp => "TCP",
            Carrier::Unix => "Unix",
            Carrier::Ring => "bare ring",
            Carrier::ProcessVm => "process_vm_writev",
            Carrier::Memcpy => "memcpy",
            Carrier::Manager => "RDMA CM",
        }
    }

    /// Whether it is RDMA.
    pub fn is_verb(self) -> bool {
        matches!(self, Carrier::Send | Carrier::Write | Carrier::Read | Carrier::Atomic)
    }

    /// Whether it does nothing but what anything faster would have to do, too.
    pub fn is_limit(self) -> bool {
        matches!(self, Carrier::Ring | Carrier::ProcessVm | Carrier::Memcpy)
    }
}

/// How both sides wait for what comes next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitMode {
    /// They look until it is there.
    Spin,
    /// They sleep until they are woken: in the call for the next event of a completion channel, or for the next bytes
    /// of a socket.
    Sleep,
    /// They sleep in epoll on the descriptor of the completion channel.
    Epoll,
    /// They look at the memory that the peer writes, and at a completion queue only for what they sent themselves.
    Memory,
}

impl WaitMode {
    /// Whether the processor is free meanwhile.
    pub fn sleeps(self) -> bool {
        matches!(self, WaitMode::Sleep | WaitMode::Epoll)
    }
}

/// How messages follow each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// There and back, one at a time: latency.
    RoundTrip,
    /// One way, many at a time: bandwidth and message rate.
    Stream,
    /// As a stream, with many posted by one call: the highest message rate.
    Batch,
    /// No messages: connections, one after the other.
    Connect,
    /// One way, many at a time, over so many queue pairs in turn.
    ManyQueuePairs(u32),
    /// There and back, by so many threads of each side at the same time.
    Threads(u32),
}

/// Something that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Point {
    pub kind: Kind,
    pub size: usize,
    pub carrier: Carrier,
    pub waiting: WaitMode,
    /// By the second pair of processes, which speaks UDP.
    pub udp: bool,
}

impl Point {
    pub fn new(kind: Kind, carrier: Carrier, waiting: WaitMode, size: usize) -> Point {
        Point { kind, size, carrier, waiting, udp: false }
    }

    /// A point measured over UDP.
    pub fn over_udp(self) -> Point {
        Point { udp: true, ..self }
    }

    /// What this is compared with: TCP, waiting alike.
    pub fn beside(self) -> Point {
        let round_trip = self.kind == Kind::RoundTrip;
        let (kind, waiting) = match self.waiting {
            WaitMode::Spin | WaitMode::Memory if round_trip => (Kind::RoundTrip, WaitMode::Spin),
            _ if round_trip => (Kind::RoundTrip, WaitMode::Sleep),
            _ if self.kind == Kind::Connect => (Kind::Connect, WaitMode::Sleep),
            // A stream does best on sockets that block.
            _ => (Kind::Stream, WaitMode::Sleep),
        };
        Point::new(kind, Carrier::Tcp, waiting, self.size)
    }

    /// Messages under way at once, in a stream: a megabyte of them, which is more than a link holds. More would only
    /// need more receives, whose buffers would push each other out of the cache.
    fn depth(self) -> u64 {
        let fits = (1 << 20) / self.size.max(1) as u64;
        fits.clamp(2, if self.carrier == Carrier::Read { 16 } else { 64 })
    }

    /// What to call it beside others.
    pub fn label(self) -> String {
        let how = match (self.waiting, self.kind) {
            (_, Kind::Batch) => ", batches",
            (_, Kind::Threads(count)) => return format!("{}, {count} threads", self.carrier.name()),
            (_, Kind::ManyQueuePairs(count)) => return format!("{}, {count} queue pairs", self.carrier.name()),
            (WaitMode::Spin, Kind::RoundTrip) if matches!(self.carrier, Carrier::Tcp | Carrier::Unix) => ", spinning",
            (WaitMode::Sleep, Kind::RoundTrip) => ", blocking",
            (WaitMode::Epoll, Kind::RoundTrip) => ", epoll",
            (WaitMode::Memory, Kind::RoundTrip) => ", memory only",
            _ => "",
        };
        format!("{}{how}{}", self.carrier.name(), if self.udp { ", UDP" } else { "" })
    }
}

/// So many messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    pub point: Point,
    pub count: u64,
}

/// What the first side asks for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Make a queue pair for messages up to this size; this is mine.
    Connect { end: End, largest: usize },
    /// Make sockets to connect to.
    Listen { unix: bool },
    /// Use the memory that you were started with, and give me memory of this size to write to.
    Bare { largest: usize },
    /// Make something to be connected to, again and again.
    Welcome,
    /// Make as many more queue pairs as these of mine, and connect them.
    ManyQueuePairs { endpoints: Vec<String> },
    /// Make as many connections for threads as these of mine, and connect them.
    Team { ends: Vec<End> },
    /// Start a partner of your own and lead it, over UDP.
    Lead { largest: usize },
    /// Do this with your partner.
    Turn(Run),
    /// Take your part in this. Answered with ready; I say when it is done.
    Run(Run),
    /// It is done. Answered with ran.
    Done,
}

impl Order {
    /// Whether only the process that started this one may ask for it. A caller over TCP may have messages answered, and
    /// its part of a few connections taken: no more than that.
    pub fn is_private(&self) -> bool {
        match self {
            Order::Connect { .. } | Order::Listen { .. } | Order::Run(_) | Order::Done => false,
            Order::Bare { .. }
            | Order::Welcome
            | Order::ManyQueuePairs { .. }
            | Order::Team { .. }
            | Order::Lead { .. }
            | Order::Turn(_) => true,
        }
    }

    /// Whether what it asks for has a size that we would ask for.
    pub fn is_bounded(&self) -> bool {
        match self {
            Order::Connect { largest, .. } | Order::Bare { largest } | Order::Lead { largest } => {
                *largest <= LARGEST_MESSAGE
            }
            Order::Run(Run { point, count }) | Order::Turn(Run { point, count }) => {
                let sizes = if point.kind == Kind::Connect { 0..=0 } else { 1..=LARGEST_MESSAGE };
                sizes.contains(&point.size) && (1..=MOST_MESSAGES).contains(count)
            }
            Order::ManyQueuePairs { endpoints } => endpoints.len() <= many_queue_pairs::ENDPOINTS_PER_MESSAGE,
            Order::Team { ends } => ends.len() <= MOST_THREADS,
            Order::Listen { .. } | Order::Welcome | Order::Done => true,
        }
    }
}

/// What the second side answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasureAnswer {
    /// My queue pair.
    Connected(End),
    /// Where I listen, at my end of our TCP connections; and the name of an abstract Unix socket.
    Listening { port: u16, unix: Option<String> },
    /// My memory, in my process.
    Bare { address: u64 },
    /// Where I can be called.
    Welcoming(calls::Places),
    /// My queue pairs, in the order of yours.
    ManyQueuePairs { endpoints: Vec<String> },
    /// My connections for threads, in the order of yours.
    Teamed { ends: Vec<End> },
    /// My partner and I are connected.
    Leading,
    /// What my partner and I have measured.
    Turned(RunResult),
    /// My part is done too.
    Ran,
}

/// What one run has taken.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunResult {
    pub nanos: u64,
    /// Of its round trips.
    pub summary: Summary,
}

/// A queue pair and the memory that its peer writes and reads.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct End {
    pub endpoint: String,
    pub region: String,
}

/// A size as people write it.
pub struct Size(pub usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{} MiB", size >> 20),
            size if size >= 1 << 10 && size % (1 << 10) == 0 => format!("{} KiB", size >> 10),
            size => format!("{size} B"),
        };
        f.pad(&text)
    }
}

//! What is measured, and how the two sides agree on it. The first side gives orders: a run of so many messages of one size by one carrier, as
//! round trips or as a stream. Carriers take turns in short runs, so that a busy machine is busy for all of them alike.

pub mod bob;
mod figures;
mod first;
pub mod machine;
mod patience;
mod sockets;
mod statistics;
mod verbs;

pub use figures::{Figures, small_table};
pub use first::{Measured, Turns};

use serde::{Deserialize, Serialize};
use std::fmt;

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
}

impl Carrier {
    pub const ALL: [Carrier; 6] =
        [Carrier::Send, Carrier::Write, Carrier::Read, Carrier::Atomic, Carrier::Tcp, Carrier::Unix];

    pub fn name(self) -> &'static str {
        match self {
            Carrier::Send => "SEND",
            Carrier::Write => "WRITE",
            Carrier::Read => "READ",
            Carrier::Atomic => "ATOMIC",
            Carrier::Tcp => "TCP",
            Carrier::Unix => "Unix",
        }
    }

    /// Whether it is RDMA.
    pub fn is_verb(self) -> bool {
        !matches!(self, Carrier::Tcp | Carrier::Unix)
    }
}

/// How both sides wait for what comes next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// They look until it is there.
    Spin,
    /// They sleep until they are woken.
    Sleep,
}

/// How messages follow each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// There and back, one at a time: latency.
    RoundTrip,
    /// One way, many at a time: bandwidth and message rate.
    Stream,
}

/// Something that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Point {
    pub kind: Kind,
    pub size: usize,
    pub carrier: Carrier,
    pub waiting: Waiting,
}

impl Point {
    pub fn new(kind: Kind, carrier: Carrier, waiting: Waiting, size: usize) -> Point {
        Point { kind, size, carrier, waiting }
    }

    /// Messages under way at once, in a stream: a few megabytes of them.
    fn depth(self) -> u64 {
        let fits = (8 << 20) / self.size.max(1) as u64;
        fits.clamp(2, if self.carrier == Carrier::Read { 16 } else { 64 })
    }

    /// What to call it beside others.
    pub fn label(self) -> String {
        match (self.carrier, self.waiting, self.kind) {
            (Carrier::Tcp | Carrier::Unix, Waiting::Sleep, Kind::RoundTrip) => {
                format!("{}, blocking", self.carrier.name())
            }
            (Carrier::Tcp | Carrier::Unix, Waiting::Spin, Kind::RoundTrip) => {
                format!("{}, spinning", self.carrier.name())
            }
            _ => self.carrier.name().into(),
        }
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
    /// Take your part in this. Answered with ready; I say when it is done.
    Run(Run),
    /// It is done. Answered with ran.
    Done,
}

/// What the second side answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// My queue pair.
    Connected(End),
    /// Where I listen, at my end of our TCP connections; and the name of an abstract Unix socket.
    Listening { port: u16, unix: Option<String> },
    /// My part is done too.
    Ran,
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

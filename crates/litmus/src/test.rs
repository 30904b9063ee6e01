//! A litmus test as it is run: names have become numbers.

use crate::outcome::Outcome;

/// A test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Test {
    /// Its name: a word.
    pub name: String,
    /// What it is about, in a sentence.
    pub about: String,
    /// The line at which it begins.
    pub line: usize,
    /// Who takes part.
    pub processes: Vec<Process>,
    /// The connections that are used.
    pub pairs: Vec<Pair>,
    /// The names of registers, which all processes have in common.
    pub registers: Vec<String>,
    /// The names of signals.
    pub signals: Vec<String>,
    /// What may come of it, and what may not.
    pub outcomes: Vec<Outcome>,
}

/// A process: its memory and what it does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Its name: a word.
    pub name: String,
    /// Its memory: cells of eight bytes, one behind the other, each with a name and what it holds at first.
    pub cells: Vec<(String, u64)>,
    /// The names of what is waited for.
    pub handles: Vec<String>,
    /// What it does, in this order.
    pub steps: Vec<Step>,
}

/// A connection between two processes: a queue pair at each end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Both processes, the one with the lower number first.
    pub ends: [usize; 2],
    /// Tells several between the same two apart.
    pub label: String,
    /// Whether it is unreliable (UC), not reliable (RC).
    pub unreliable: bool,
}

/// Cells that lie one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cells {
    /// The first of them.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// What is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// This number.
    Value(u64),
    /// What the register holds.
    Register(usize),
}

/// One thing that a process does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Stores into its own memory.
    Store(usize, Operand),
    /// Loads from its own memory into a register.
    Load(usize, usize),
    /// Waits until its stores are visible.
    Fence,
    /// Posts to a send queue.
    Post(Posted),
    /// Posts a receive of these cells.
    Receive {
        /// On this connection.
        pair: usize,
        /// Where the message goes.
        cells: Cells,
        /// By which its completion is waited for.
        handle: usize,
    },
    /// Polls until it has completed.
    Wait(usize),
    /// Polls once, and says in a register whether it has completed.
    Poll(usize, usize),
    /// Loads from its own memory until it finds this number.
    Spin(usize, u64),
    /// Tells the other processes, on a way that is not the NIC's.
    Signal(usize),
    /// Waits until it is told.
    Await(usize),
}

/// Work for a send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posted {
    /// On this connection.
    pub pair: usize,
    /// What it does.
    pub what: What,
    /// Own memory that is read or written.
    pub local: Option<Cells>,
    /// The first cell of the peer's.
    pub remote: Option<usize>,
    /// By which its completion is waited for.
    pub handle: usize,
    /// Waits for earlier READs and atomics.
    pub fenced: bool,
    /// Its bytes are copied when it is posted.
    pub inline: bool,
    /// It completes without a word.
    pub unsignaled: bool,
}

/// The operation of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // They are those of the specification.
pub enum What {
    Send,
    Write,
    WriteImmediate(u32),
    Read,
    FetchAdd(u64),
    CompareSwap(u64, u64),
    AtomicWrite,
    Flush,
}

impl Test {
    /// The other end of a connection.
    pub fn peer(&self, pair: usize, process: usize) -> usize {
        let ends = self.pairs[pair].ends;
        if ends[0] == process { ends[1] } else { ends[0] }
    }

    /// Which end of a connection a process is.
    pub fn end(&self, pair: usize, process: usize) -> usize {
        usize::from(self.pairs[pair].ends[0] != process)
    }
}
